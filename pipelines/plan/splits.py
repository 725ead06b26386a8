"""Which records belong to each split: the key ranges of all splits and their contents, bin by bin.

All kinds of splits have one form: a split is the records of one partition whose key is in the
split's range for the record's stratum.

* hash: partition 0, one stratum, the fixed ranges of :meth:`Splits.key_ranges`;
* ``group_by``, and splits by folder, column or time: a partition per split, one stratum, all keys;
* ``stratify_by``: partition 0, and separate ranges for each stratum, which end where the split has
  its share of the stratum's records.

Results depend only on the records, not on the order of the input or on the workers.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from ...schemas.splits import KEY_SPACE, Splits
from ...transforms.runs.key_histogram import BIN_BITS, BIN_SHIFT, NUM_KEY_BINS, KeyHistogram
from .key_columns import Ints, KeyRows, KeyRowsReader


@dataclasses.dataclass(frozen=True, eq=False)
class SplitContent:
    """A split's records: the rule that selects them, and their number in some bins.

    All other bins are empty.
    """

    name: str
    partition: int
    ranges: tuple[tuple[int, int], ...]
    """The key range [start, stop) of each stratum."""
    bins: npt.NDArray[np.integer]
    """int[n], ascending: all 4,096, or the fine ones that contain records."""
    num_records: Ints
    """int64[n], exact."""
    num_bytes: Ints
    """int64[n], exact."""
    max_bytes: Ints
    """int64[n], size of the largest record."""
    bits: int = BIN_BITS
    """Number of the key's top bits that determine a bin."""

    def holds(self, rows: KeyRows) -> npt.NDArray[np.bool_]:
        """Whether each row belongs to the split: bool[n]."""
        starts, stops = zip(*self.ranges, strict=True)
        held = _at_or_above(rows, starts) & ~_at_or_above(rows, stops)
        held &= rows.partitions == self.partition
        return held


@dataclasses.dataclass(frozen=True)
class _Cut:
    """An end of a split inside a bin of a stratum, before its rank-th record."""

    stratum: int
    bin: int
    split: int
    rank: int


def find_splits(
    histogram: KeyHistogram, *, splits: Splits, reader: KeyRowsReader, stop: int = KEY_SPACE
) -> tuple[SplitContent, ...]:
    """Finds each split's exact ranges and content.

    Reads keys only of the bins that contain an end. All keys and ranges are below ``stop``; the
    fractions divide the keys below it.
    """
    num_splits = len(splits.names)
    partitioned, stratified = splits.partitioned, splits.stratify_by is not None
    if len(histogram.bin) and histogram.partition.max() >= (num_splits if partitioned else 1):
        raise ValueError(f"partition {histogram.partition.max()} is not one of these splits")
    strata = histogram.stratum if stratified else np.zeros_like(histogram.stratum)
    cuts: list[_Cut] = []
    if partitioned:
        ends = [[KEY_SPACE] * num_splits]
        split_of_entry = histogram.partition.astype(np.int64)
        is_open = np.zeros(len(split_of_entry), np.bool_)
    else:
        if stratified:
            ends, cuts = _stratified_ends(histogram, splits)
        else:
            ends = [[end * stop // KEY_SPACE for _, _, end in splits.key_ranges()]]
        split_of_entry, is_open = _place_entries(histogram.bin, strata, ends, cuts)

    count, size, largest = (np.zeros((num_splits, NUM_KEY_BINS), np.int64) for _ in range(3))
    whole = ~is_open
    cell = (split_of_entry[whole], histogram.bin[whole])
    np.add.at(count, cell, histogram.num_records[whole])
    np.add.at(size, cell, histogram.num_bytes[whole])
    np.maximum.at(largest, cell, histogram.max_bytes[whole])

    open_cells = np.unique(strata[is_open].astype(np.int64) * NUM_KEY_BINS + histogram.bin[is_open])
    for rows in reader.batches({(0, int(bin_)) for bin_ in histogram.bin[is_open]}):
        rows = _rows_of_cells(rows, open_cells)
        _resolve(cuts, rows, ends)
        cell = (_split_of_rows(rows, ends), rows.bins)
        np.add.at(count, cell, 1)
        np.add.at(size, cell, rows.num_bytes)
        np.maximum.at(largest, cell, rows.num_bytes)

    ends = [[min(end, stop) for end in stops] for stops in ends]
    starts = [[0] * num_splits if partitioned else [0, *stops[:-1]] for stops in ends]
    return tuple(
        SplitContent(
            name=name,
            partition=i if partitioned else 0,
            ranges=tuple((a[i], b[i]) for a, b in zip(starts, ends, strict=True)),
            bins=np.arange(NUM_KEY_BINS),
            num_records=count[i],
            num_bytes=size[i],
            max_bytes=largest[i],
        )
        for i, name in enumerate(splits.names)
    )


def _stratified_ends(histogram: KeyHistogram, splits: Splits) -> tuple[list[list[int]], list[_Cut]]:
    """The ends [stratum][split], and the cuts that are still to be resolved.

    If a cut is inside a bin, the end is that bin's start for now, which is correct for the rows of
    all other bins.
    """
    edges = np.searchsorted(histogram.stratum, np.arange(len(histogram.strata) + 1))
    ends, cuts = [], []
    for stratum, name in enumerate(histogram.strata):
        entries = slice(edges[stratum], edges[stratum + 1])
        bins, cumulative = histogram.bin[entries], np.cumsum(histogram.num_records[entries])
        total = int(cumulative[-1])
        stops = []
        for split, before in enumerate(shares(total, splits=splits, stratum=name)):
            if before in (0, total):
                stops.append(0 if before == 0 else KEY_SPACE)
                continue
            entry = int(np.searchsorted(cumulative, before))
            bin_ = int(bins[entry])
            if cumulative[entry] == before:
                stops.append((bin_ + 1) << BIN_SHIFT)
                continue
            rank = before - int(cumulative[entry - 1]) if entry else before
            stops.append(bin_ << BIN_SHIFT)
            cuts.append(_Cut(stratum, bin_, split, rank))
        ends.append(stops)
    return ends, cuts


def shares(num_records: int, *, splits: Splits, stratum: str) -> list[int]:
    """The number of a stratum's records before the end of each split.

    A split gets its fraction, rounded up or down to an integer. The stratum's name decides which
    (systematic sampling with a start in [0, 1)): if all strata were rounded alike, splits of many
    small strata would miss their fractions by far, as with 0.8, 0.1 and 0.1 of a thousand classes
    of 4, where the last split would get nothing.

    >>> shares(1000, splits=Splits(train=0.8, test=0.2), stratum="cat")
    [800, 1000]
    """
    digest = blake2b(stratum.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    start = Fraction(int.from_bytes(digest, "big"), KEY_SPACE)
    return [math.floor(end * num_records + start) for end in splits.boundaries()]


def _place_entries(
    bins: npt.NDArray[np.int32],
    strata: npt.NDArray[np.int32],
    ends: list[list[int]],
    cuts: list[_Cut],
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The split of each histogram entry, int64[n], and whether an end is inside it, bool[n]."""
    split_of = np.zeros(len(bins), np.int64)
    is_open = np.zeros(len(bins), np.bool_)
    for stops in list(zip(*ends, strict=True))[:-1]:
        end_bins = np.array([stop >> BIN_SHIFT for stop in stops])[strata]
        inside = np.array([stop % (1 << BIN_SHIFT) > 0 for stop in stops])[strata]
        split_of += bins >= end_bins
        is_open |= inside & (bins == end_bins)
    cut_cells = np.array([cut.stratum * NUM_KEY_BINS + cut.bin for cut in cuts], np.int64)
    is_open |= np.isin(strata.astype(np.int64) * NUM_KEY_BINS + bins, cut_cells)
    return split_of, is_open


def _rows_of_cells(rows: KeyRows, cells: Ints) -> KeyRows:
    """The rows in the given (stratum, bin) cells, sorted by cell and key."""
    cell = rows.strata.astype(np.int64) * NUM_KEY_BINS + rows.bins
    chosen = np.flatnonzero(np.isin(cell, cells))
    return rows.take(chosen[np.lexsort((rows.keys[chosen], cell[chosen]))])


def _resolve(cuts: list[_Cut], rows: KeyRows, ends: list[list[int]]) -> None:
    """Stores in ``ends`` the key of each cut within these rows, which are sorted by cell and key.

    Records with equal keys stay together, on the side nearer to the wanted count (the earlier
    split if both are equally near).
    """
    cell = rows.strata.astype(np.int64) * NUM_KEY_BINS + rows.bins
    for cut in cuts:
        code = cut.stratum * NUM_KEY_BINS + cut.bin
        first, last = (int(np.searchsorted(cell, code, side)) for side in ("left", "right"))
        keys = rows.keys[first:last]
        if not len(keys):
            continue
        key = keys[cut.rank]
        before, after = (int(np.searchsorted(keys, key, side)) for side in ("left", "right"))
        if cut.rank - before < after - cut.rank:
            end = int(key)
        elif after < len(keys):
            end = int(keys[after])
        else:
            end = (cut.bin + 1) << BIN_SHIFT
        ends[cut.stratum][cut.split] = end


def _split_of_rows(rows: KeyRows, ends: list[list[int]]) -> Ints:
    """The split of each row: int64[n]."""
    split_of = np.zeros(len(rows.keys), np.int64)
    for stops in list(zip(*ends, strict=True))[:-1]:
        split_of += _at_or_above(rows, stops)
    return split_of


def _at_or_above(rows: KeyRows, bounds: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Whether each row's key is at or above the bound of its stratum, each in [0, 2**64]."""
    # Compare with the number below each bound, because 2**64 does not fit 64 bits.
    below = np.array([max(bound - 1, 0) for bound in bounds], np.uint64)[rows.strata]
    above = np.array([bound == 0 for bound in bounds], np.bool_)[rows.strata]
    above |= rows.keys > below
    return above


def fine_splits(histogram: KeyHistogram, splits: Splits) -> tuple[SplitContent, ...]:
    """The content of each split, from a histogram that counts by split; reads no key.

    See :class:`~.KeyBins`: each split has its own partition, or no split ends inside a cell.
    """
    ranges = [(0, KEY_SPACE)] * len(splits.names)
    if not splits.partitioned:
        ranges = [(start, stop) for _, start, stop in splits.key_ranges()]
    edges = np.searchsorted(histogram.partition, np.arange(len(ranges) + 1))
    if edges[-1] < len(histogram.bin):
        raise ValueError(f"partition {histogram.partition[-1]} is not one of these splits")
    for index, (start, stop) in enumerate(ranges):
        bins = histogram.bin[edges[index] : edges[index + 1]]
        shift = 64 - histogram.bits
        if len(bins) and not (start >> shift <= bins[0] and bins[-1] <= (stop - 1) >> shift):
            raise ValueError(f"the histogram's ends are not those of {splits.names}")
    return tuple(
        SplitContent(
            name=name,
            partition=index if splits.partitioned else 0,
            ranges=(ranges[index],),
            bins=histogram.bin[edges[index] : edges[index + 1]],
            num_records=histogram.num_records[edges[index] : edges[index + 1]],
            num_bytes=histogram.num_bytes[edges[index] : edges[index + 1]],
            max_bytes=histogram.max_bytes[edges[index] : edges[index + 1]],
            bits=histogram.bits,
        )
        for index, name in enumerate(splits.names)
    )
