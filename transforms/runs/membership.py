"""The one rule by which a record belongs to a shard: writing and analysing both go by it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.blocks import ShardPlan, SplitPlan
from ...schemas.errors import PlaceError
from .key_histogram import stratum_codes
from .keys import Keys


def select_rows(
    split: SplitPlan,
    shard: ShardPlan,
    *,
    partitions: npt.NDArray[np.int16],
    keys: Keys,
    strata: pa.Array | None = None,
) -> npt.NDArray[np.bool_]:
    """Says which rows belong to a shard: bool[n].

    Those of the shard's partition and key range and, in a stratified split, of the key range
    of their own stratum.

    Args:
        split: The split that the shard is of.
        shard: The shard.
        partitions: int16[n].
        keys: uint64[n].
        strata: string or binary[n], or a dictionary of them; needed for a stratified split.

    Raises:
        PlaceError: if a row has a stratum that the plan does not know.
    """
    if split.strata is not None and strata is None:
        raise ValueError(f"split {split.name!r} is stratified: strata are needed")
    selected = in_key_range(keys, shard.start_key, shard.stop_key)
    selected &= partitions == shard.partition
    if split.strata is None or strata is None:
        return selected
    codes = stratum_codes(strata, tuple(split.strata))
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        raise PlaceError(
            f"The plan of split {split.name!r} knows no stratum {strata[row].as_py()!r}, which a "
            "run holds: runs and plan are not of one build. Remove the workspace and build again."
        )
    ranges = split.strata.values()
    # By the last key and not the stop, which may be 2**64; an empty range becomes [1, 0].
    starts = np.array([start if start < stop else 1 for start, stop in ranges], np.uint64)
    lasts = np.array([stop - 1 if start < stop else 0 for start, stop in ranges], np.uint64)
    selected &= (starts[codes] <= keys) & (keys <= lasts[codes])
    return selected


def in_key_range(keys: Keys, start: int, stop: int) -> npt.NDArray[np.bool_]:
    """Says which keys lie in [start, stop), stop up to 2**64: bool[n] for uint64[n]."""
    if start >= stop:
        return np.zeros(len(keys), np.bool_)
    inside: npt.NDArray[np.bool_] = (np.uint64(start) <= keys) & (keys <= np.uint64(stop - 1))
    return inside
