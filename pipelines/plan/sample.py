"""Limited builds: the records with the lowest keys, which are a uniform sample without drawing.

If each file is one record, keys follow from the paths, and only the files with the lowest keys are
read. Otherwise all records are prepared (a later full build reuses that), and the plan omits those
above the limit. Either way one key separates the sample from the rest, and the splits divide the
keys below it by their fractions, as they divide all keys without a limit: with a limit, a record
may be in another split than without.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from ...schemas.splits import KEY_SPACE
from ...transforms.runs.key_histogram import BIN_SHIFT, KeyColumns, KeyHistogram
from ..inventory.sample import Limit
from .key_columns import ReadKeys


def lowest_records(
    histogram: KeyHistogram, read_keys: ReadKeys, limit: Limit
) -> tuple[KeyHistogram, ReadKeys, int]:
    """Restricts a histogram and its keys to the records with the lowest keys.

    Reads the keys of one bin, the one that contains the limit. Records that share the key of the
    first excluded record are excluded too.

    Returns:
        The histogram, a function that reads its keys, and the first excluded key.
    """
    stop = limit.stop
    if stop is None:
        stop = _first_left_out(histogram, read_keys, limit.num_records)
    if stop == KEY_SPACE:
        return histogram, read_keys, stop

    def read_below(pairs: Collection[tuple[int, int]]) -> KeyColumns:
        return _below(read_keys(pairs), stop)

    bin_ = stop >> BIN_SHIFT
    whole = histogram.take(np.flatnonzero(histogram.bin < bin_))
    pairs = _pairs(histogram, bin_)
    if not pairs or stop % (1 << BIN_SHIFT) == 0:
        return whole, read_below, stop
    cut = read_below(pairs)
    inside = KeyHistogram.from_arrays(
        cut.partitions, cut.keys, num_bytes=cut.num_bytes, strata=cut.strata
    )
    parts = [part for part in (whole, inside) if len(part.bin)]
    return KeyHistogram.merge(parts), read_below, stop


def _first_left_out(histogram: KeyHistogram, read_keys: ReadKeys, limit: int) -> int:
    counts = np.zeros((KEY_SPACE >> BIN_SHIFT) + 1, np.int64)
    np.add.at(counts, histogram.bin.astype(np.int64) + 1, histogram.num_records)
    before = np.cumsum(counts)
    if limit >= before[-1]:
        return KEY_SPACE
    bin_ = int(np.searchsorted(before, limit, side="right")) - 1
    keys = np.sort(read_keys(_pairs(histogram, bin_)).keys)
    return int(keys[limit - int(before[bin_])])


def _pairs(histogram: KeyHistogram, bin_: int) -> list[tuple[int, int]]:
    """The (partition, bin) pairs of a bin that contain records."""
    partitions = np.unique(histogram.partition[histogram.bin == bin_])
    return [(int(partition), bin_) for partition in partitions]


def _below(columns: KeyColumns, stop: int) -> KeyColumns:
    kept = columns.keys < np.uint64(stop)
    return KeyColumns(
        columns.partitions[kept],
        columns.keys[kept],
        columns.num_bytes[kept],
        None if columns.strata is None else columns.strata.filter(pa.array(kept)),
    )
