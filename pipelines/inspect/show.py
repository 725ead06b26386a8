"""Show: the first records of a snapshot as text, and images on one sheet."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np

from ...schemas.errors import RecipeError
from ...schemas.features import Audio, Feature, Image, Mask, frames_of
from ...schemas.visible import visible
from ..frame import flat
from ..snapshot import Snapshot

_SIDE = 96
"""Height and width to which images of varying sizes are resized."""
_MAX_TEXT = 200
"""Characters that are shown of one value."""


def show_records(snapshot: Snapshot, split: str | None, num: int) -> list[dict[str, str]]:
    """The first records of a split: each feature's value as one line of text.

    Args:
        snapshot: The snapshot.
        split: A split or a part of one, such as "train[-10:]"; by default the snapshot's
            :attr:`~Snapshot.main_split`.
        num: Number of records.

    Raises:
        RecipeError: if there is no such split, or it has no records.
    """
    batch = _first_batch(snapshot, split, num)
    features = snapshot.manifest.features
    count = len(next(iter(batch.values())))
    return [
        {name: _text(column[row], features.get(name)) for name, column in batch.items()}
        for row in range(count)
    ]


def write_sheet(snapshot: Snapshot, split: str | None, num: int, path: str) -> tuple[str, int]:
    """Writes the first images of a split into one PNG, in a square grid.

    Returns:
        The name of the feature, and the number of images.

    Raises:
        RecipeError: if the snapshot has no images, or the file cannot be written.
    """
    import tensorflow as tf  # takes seconds

    names = [
        name
        for name, feature in snapshot.manifest.features.items()
        if isinstance(feature, Image) and not isinstance(feature, Mask)
    ]
    if not names:
        raise RecipeError(f"{snapshot.path} has no images: leave out --sheet.")
    images = np.asarray(_first_batch(snapshot, split, num)[names[0]])
    if images.dtype == np.uint16:  # as bright as in the file
        images = (images >> 8).astype(np.uint8)
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = np.zeros((rows * (height + 2), columns * (width + 2), channels), np.uint8)
    for number, image in enumerate(images):
        top, left = (height + 2) * (number // columns), (width + 2) * (number % columns)
        sheet[top : top + height, left : left + width] = image
    try:
        pathlib.Path(path).write_bytes(tf.io.encode_png(sheet).numpy())
    except OSError as error:
        raise RecipeError(f"--sheet {path} cannot be written: {error}.") from None
    return names[0], count


def _first_batch(snapshot: Snapshot, split: str | None, num: int) -> dict[str, Any]:
    """The first records of a split, by dotted feature name; images of varying sizes resized."""
    manifest = snapshot.manifest
    name = split or snapshot.main_split
    pixels = [
        image
        for feature in manifest.features.values()
        if (image := feature if isinstance(feature, Image) else frames_of(feature)) is not None
    ]
    resized = {} if all(image.fixed_size for image in pixels) else {"image_size": (_SIDE, _SIDE)}
    try:
        dataset = snapshot.reader().dataset(name, num, shuffle=False, **resized)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    batch = next(iter(dataset), None)
    if batch is None:
        raise RecipeError(f"Split {name!r} has no records: pass another one as --split.")
    return dict(flat(batch))


def _text(value: Any, feature: Feature | None) -> str:
    """One value as a line of text."""
    plain = value.to_list() if hasattr(value, "to_list") else value.numpy()
    if isinstance(feature, Image | Audio) or (feature is not None and frames_of(feature)):
        array = np.asarray(plain)
        return f"{array.dtype.name}{list(array.shape)}, mean {array.mean():.3g}"
    plain = plain.tolist() if hasattr(plain, "tolist") else plain
    names = getattr(feature, "names", None)
    if names and isinstance(plain, int) and 0 <= plain < len(names):
        name = visible(names[plain])
        return name if name == str(plain) else f"{plain} = {name}"
    text = visible(repr(plain.decode(errors="replace") if isinstance(plain, bytes) else plain))
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} …"
