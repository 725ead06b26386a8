"""Cuts batches of encoded images by what they take once decoded: their length does not tell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...schemas.blocks import RawBatch
from ...schemas.features import Features, Image

MAX_PIXELS = 48 << 20
"""Decoded together at most, unless one image alone has more: 144 MiB as RGB."""


def parts_by_pixels(batch: RawBatch, features: Features) -> Iterator[RawBatch]:
    """The batch, in parts of bounded numbers of pixels where it holds too many.

    Args:
        batch: Of wire columns of the features.
        features: An encoded image's size stands in the columns beside it.
    """
    names = [
        name
        for name, feature in features.items()
        if isinstance(feature, Image) and feature.storage == "encoded"
    ]
    pixels = np.zeros(len(batch.ids), np.int64)
    for name in names:
        height, width = (batch.columns.column(f"{name}/{side}") for side in ("height", "width"))
        if height.null_count == width.null_count == 0:
            pixels += height.to_numpy() * width.to_numpy()
    if pixels.sum() <= MAX_PIXELS:
        yield batch
        return
    start, held = 0, 0
    for row, weight in enumerate(pixels.tolist()):
        if row > start and held + weight > MAX_PIXELS:
            yield _part(batch, start, row)
            start, held = row, 0
        held += weight
    yield _part(batch, start, len(batch.ids))


def _part(batch: RawBatch, start: int, stop: int) -> RawBatch:
    """Some of a batch's rows; what it says of others goes with the first."""
    first = start == 0
    return RawBatch(
        ids=batch.ids[start:stop],
        columns=batch.columns.slice(start, stop - start),
        rejects=batch.rejects if first else (),
        num_filtered=batch.num_filtered if first else 0,
    )
