"""Which records belong to each split: the key ranges of all splits and their contents, bin by bin.

All kinds of splits have one form: a split is the records of one partition whose key is in the
split's range for the record's stratum.

* hash: partition 0, one stratum, the fixed ranges of :meth:`Splits.key_ranges`;
* ``group_by``, and splits by folder, column or time: a partition per split, one stratum, all keys;
* fractions of train: train's partition, and the ranges of a hash or stratified split in it;
* ``stratify_by``: partition 0, and separate ranges for each stratum, which end where the split has
  its share of the stratum's records.

Results depend only on the records, not on the order of the input or on the workers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
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
    num_partitions = len(splits.names) if splits.partitioned else 1
    if len(histogram.bin) and histogram.partition.max() >= num_partitions:
        raise ValueError(f"partition {histogram.partition.max()} is not one of these splits")
    if not splits.partitioned:
        return _divide_by_key(histogram, splits=splits, partition=0, reader=reader, stop=stop)
    contents = _divide_by_partition(histogram, splits=splits, stop=stop)
    if splits.of_train is None or not splits.train_is_divided_by_key:
        return contents
    of_train = _divide_by_key(
        histogram,
        splits=splits.of_train,
        partition=splits.names.index(splits.of_train.names[0]),
        reader=reader,
        stop=stop,
    )
    by_name = {content.name: content for content in of_train}
    return tuple(by_name.get(content.name, content) for content in contents)


def _divide_by_partition(
    histogram: KeyHistogram, *, splits: Splits, stop: int
) -> tuple[SplitContent, ...]:
    """The content of splits that are partitions."""
    num_strata = len(histogram.strata) if splits.key_strata is not None else 1
    sums = _Sums.of(len(splits.names))
    sums.add(
        histogram.partition.astype(np.int64),
        histogram.bin,
        histogram.num_records,
        histogram.num_bytes,
        histogram.max_bytes,
    )
    ranges = [((0, stop),) * num_strata] * len(splits.names)
    return sums.contents(splits, partitions=range(len(splits.names)), ranges=ranges)


def _divide_by_key(
    histogram: KeyHistogram, *, splits: Splits, partition: int, reader: KeyRowsReader, stop: int
) -> tuple[SplitContent, ...]:
    """The ranges and the content of hash or stratified splits of the records of a partition."""
    inside = histogram.partition == partition
    stratified = splits.key_strata is not None
    bins = histogram.bin[inside]
    strata = histogram.stratum[inside] if stratified else np.zeros(len(bins), np.int32)
    counted = (histogram.num_records, histogram.num_bytes, histogram.max_bytes)
    cuts: list[_Cut] = []
    if stratified:
        ends, cuts = _stratified_ends(histogram.strata, strata, bins, counted[0][inside], splits)
    else:
        ends = [[end * stop // KEY_SPACE for _, _, end in splits.key_ranges()]]
    split_of_entry, is_open = _place_entries(bins, strata, ends, cuts)

    sums = _Sums.of(len(splits.names))
    whole = ~is_open
    sums.add(split_of_entry[whole], bins[whole], *(column[inside][whole] for column in counted))
    open_cells = np.unique(strata[is_open].astype(np.int64) * NUM_KEY_BINS + bins[is_open])
    for rows in reader.batches({(partition, int(bin_)) for bin_ in bins[is_open]}):
        rows = _rows_of_cells(rows, open_cells)
        _resolve(cuts, rows, ends)
        ones = np.ones(len(rows.keys), np.int64)
        sums.add(_split_of_rows(rows, ends), rows.bins, ones, rows.num_bytes, rows.num_bytes)

    ends = [[min(end, stop) for end in stops] for stops in ends]
    starts = [[0, *stops[:-1]] for stops in ends]
    ranges = [
        tuple((a[i], b[i]) for a, b in zip(starts, ends, strict=True))
        for i in range(len(splits.names))
    ]
    return sums.contents(splits, partitions=[partition] * len(splits.names), ranges=ranges)


@dataclasses.dataclass(frozen=True)
class _Sums:
    """Sums over records, by split and bin: int64[splits, 4,096]."""

    num_records: Ints
    num_bytes: Ints
    max_bytes: Ints

    @classmethod
    def of(cls, num_splits: int) -> _Sums:
        """No records."""
        return cls(*(np.zeros((num_splits, NUM_KEY_BINS), np.int64) for _ in range(3)))

    def add(
        self,
        splits: Ints,
        bins: npt.NDArray[np.int32],
        num_records: Ints,
        num_bytes: Ints,
        max_bytes: Ints,
    ) -> None:
        """Adds records, or entries of a histogram."""
        cell = (splits, bins)
        np.add.at(self.num_records, cell, num_records)
        np.add.at(self.num_bytes, cell, num_bytes)
        np.maximum.at(self.max_bytes, cell, max_bytes)

    def contents(
        self,
        splits: Splits,
        *,
        partitions: Sequence[int],
        ranges: Sequence[tuple[tuple[int, int], ...]],
    ) -> tuple[SplitContent, ...]:
        """The splits with these sums; partitions and ranges are in the order of the splits."""
        return tuple(
            SplitContent(
                name=name,
                partition=partitions[i],
                ranges=ranges[i],
                bins=np.arange(NUM_KEY_BINS),
                num_records=self.num_records[i],
                num_bytes=self.num_bytes[i],
                max_bytes=self.max_bytes[i],
            )
            for i, name in enumerate(splits.names)
        )


def _stratified_ends(
    names: Sequence[str],
    strata: npt.NDArray[np.int32],
    bins: npt.NDArray[np.int32],
    num_records: Ints,
    splits: Splits,
) -> tuple[list[list[int]], list[_Cut]]:
    """The ends [stratum][split], and the cuts that are still to be resolved.

    If a cut is inside a bin, the end is that bin's start for now, which is correct for the rows of
    all other bins.

    Args:
        names: The names of the strata.
        strata: Each entry's index into these, ascending: int32[n].
        bins: Each entry's bin, ascending in a stratum: int32[n].
        num_records: Each entry's number of records: int64[n].
        splits: Stratified splits.
    """
    edges = np.searchsorted(strata, np.arange(len(names) + 1))
    ends, cuts = [], []
    for stratum, name in enumerate(names):
        entries = slice(edges[stratum], edges[stratum + 1])
        bins_of_stratum, cumulative = bins[entries], np.cumsum(num_records[entries])
        total = int(num_records[entries].sum())
        stops = []
        for split, before in enumerate(shares(total, splits=splits, stratum=name)):
            if before in (0, total):
                stops.append(0 if before == 0 else KEY_SPACE)
                continue
            entry = int(np.searchsorted(cumulative, before))
            bin_ = int(bins_of_stratum[entry])
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
