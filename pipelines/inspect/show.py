"""Show: records of a snapshot as text, and images on one sheet; without TensorFlow."""

from __future__ import annotations

import io
import math
import pathlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schemas.errors import RecipeError
from ...schemas.features import Audio, Feature, Image, Mask, frames_of
from ...schemas.visible import visible
from ..records import Record, value_of
from ..snapshot import Snapshot

_SIDE = 96
"""Height and width of the images on a sheet."""
_MAX_TEXT = 200
"""Characters that are shown of one value."""


def find_records(
    snapshot: Snapshot, split: str | None, *, num: int, ids: Collection[str], label: str | None
) -> list[Record]:
    """Reads records as :meth:`Snapshot.records` does; an error if there are none."""
    found = [*snapshot.records(split, num=num, ids=ids, label=label)]
    if not found and num:
        of_class = "" if label is None else f" of class {label!r}"
        raise RecipeError(
            f"Split {split or snapshot.main_split!r} has no records{of_class}: pass another one as "
            "--split."
        )
    return found


def describe(record: Record, snapshot: Snapshot) -> dict[str, str]:
    """Each feature's value as one line of text."""
    features = snapshot.manifest.features
    return {
        name: _text(value_of(record, name, feature), feature) for name, feature in features.items()
    }


def write_sheet(snapshot: Snapshot, records: Sequence[Record], path: str) -> tuple[str, int]:
    """Writes the first image of each record into one PNG, in a square grid.

    Returns:
        The name of the feature, and the number of images.

    Raises:
        RecipeError: if the snapshot has no images, or the file cannot be written.
    """
    from PIL import Image as Pillow

    name = first_image(snapshot)
    if name is None:
        raise RecipeError(f"{snapshot.path} has no images: leave out --sheet.")
    if not records:
        raise RecipeError("There are no records for --sheet.")
    feature = snapshot.manifest.features[name]
    columns = math.ceil(math.sqrt(len(records)))
    rows = math.ceil(len(records) / columns)
    sheet = Pillow.new("RGB", (columns * (_SIDE + 2), rows * (_SIDE + 2)))
    for number, record in enumerate(records):
        row, column = divmod(number, columns)
        image = Pillow.fromarray(as_pixels(record.values[name], feature)).convert("RGB")
        small = image.resize((_SIDE, _SIDE), Pillow.Resampling.BILINEAR)
        sheet.paste(small, (column * (_SIDE + 2), row * (_SIDE + 2)))
    content = io.BytesIO()
    sheet.save(content, "PNG")
    try:
        pathlib.Path(path).write_bytes(content.getvalue())
    except OSError as error:
        raise RecipeError(f"--sheet {path} cannot be written: {error}.") from None
    return name, len(records)


def first_image(snapshot: Snapshot) -> str | None:
    """The name of the first feature of images; None if there is none."""
    for name, feature in snapshot.manifest.features.items():
        if isinstance(feature, Image) and not isinstance(feature, Mask):
            return name
    return None


def as_pixels(value: Any, feature: Feature) -> npt.NDArray[np.uint8]:
    """An image as uint8[height, width] or [height, width, channels], turned upright.

    Args:
        value: Pixels, or the content of a file.
        feature: Its feature.
    """
    if isinstance(value, bytes):
        from PIL import Image as Pillow
        from PIL import ImageOps

        with Pillow.open(io.BytesIO(value)) as file:
            image = ImageOps.exif_transpose(file)
            if image.mode.startswith("I"):  # 16 bits
                value = np.asarray(image).astype(np.uint16)
            else:
                channels = feature.channels if isinstance(feature, Image) else 3
                value = np.asarray(image.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    pixels: npt.NDArray[Any] = value[..., 0] if value.ndim == 3 and value.shape[2] == 1 else value
    # As bright as in the file.
    return (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 else pixels


def _text(value: Any, feature: Feature) -> str:
    """One value as a line of text."""
    if value is None:
        return "missing"
    if isinstance(feature, Image) and isinstance(value, bytes):
        pixels = as_pixels(value, feature)
        shape = [*pixels.shape, 1][:3]
        return f"{len(value):,} bytes, {pixels.dtype.name}{shape}, mean {pixels.mean():.3g}"
    if frames_of(feature) is not None:
        return f"{len(value):,} images"
    if isinstance(feature, Image | Audio):
        array = np.asarray(value)
        return f"{array.dtype.name}{list(array.shape)}, mean {array.mean():.3g}"
    plain = value.tolist() if hasattr(value, "tolist") else value
    names = getattr(feature, "names", None)
    if names and isinstance(plain, int) and 0 <= plain < len(names):
        name = visible(names[plain])
        return name if name == str(plain) else f"{plain} = {name}"
    text = visible(repr(plain.decode(errors="replace") if isinstance(plain, bytes) else plain))
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} …"
