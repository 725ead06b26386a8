"""Which records belong to each split, as far as it depends on all records.

Between the stages of prepare, :func:`find_split_ends` finds the ends of splits by time and the
split of each balanced group. For the plan, :func:`find_splits` finds the key ranges of all splits
and their contents, bin by bin. All kinds of splits have one form: a split is the records of one
partition whose key is in the split's range for the record's stratum.

* hash: partition 0, one stratum, the fixed ranges of :meth:`Splits.key_ranges`;
* ``group_by``, and splits by folder, column or time: a partition per split, one stratum, all keys;
* ``stratify_by``: partition 0, and separate ranges for each stratum, which end where the split has
  its share of the stratum's records.

Results depend only on the records, not on the order of the input or on the workers.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from ...schemas.errors import DataError
from ...schemas.features import Features
from ...schemas.naming import Workspace
from ...schemas.recipe import Recipe
from ...schemas.splits import KEY_SPACE, Splits
from ...transforms import storage
from ...transforms.examples.shards import run_readers
from ...transforms.runs.key_histogram import BIN_BITS, BIN_SHIFT, NUM_KEY_BINS, KeyHistogram
from ...transforms.runs.keys import text_keys, value_texts
from ...transforms.runs.partitions import GroupSplits, SplitEnds, label_texts
from ...transforms.runs.summary import RunEntry
from .key_columns import Ints, KeyRows, KeyRowsReader

MAX_GROUPS = 100_000
"""Maximum number of balanced groups: their splits, 1 MB, are sent to every worker."""
_TRIED = 200_000
"""Up to this many assignments are tried exhaustively: enough for 11 groups in 3 splits."""
_SWAPPED = 200
"""Up to this many groups, pairs are swapped as long as that brings splits closer."""
_CHUNK = 1 << 20
_BINS = 1 << 16
Times = npt.NDArray[np.int64]
Sizes = Sequence[int]


def find_split_ends(
    entries: Sequence[RunEntry], *, recipe: Recipe, features: Features, workspace: Workspace
) -> SplitEnds | None:
    """Finds the ends of splits by time, or the split of each balanced group.

    Args:
        entries: The runs that contain all records.
        recipe: The recipe, with its splits and seed.
        features: Features of the runs.
        workspace: The runs' workspace.

    Returns:
        None if each record's split is independent of other records.

    Raises:
        DataError: if no record has a time or group, or there are too many groups.
    """
    splits = recipe.splits
    if not splits.decided_by_all:
        return None
    if splits.group_by is None:
        return find_time_ends(entries, splits=splits, features=features, workspace=workspace)
    return find_group_splits(
        entries, splits=splits, features=features, workspace=workspace, seed=recipe.seed
    )


def find_time_ends(
    entries: Sequence[RunEntry], *, splits: Splits, features: Features, workspace: Workspace
) -> tuple[int, ...]:
    """The ends of all splits except the last, in the unit of the feature.

    Reads the records once and keeps their times, 8 bytes each, in a scratch file, so memory is
    bounded. Records without a time are ignored.

    Raises:
        DataError: if no record has a time.
    """
    assert splits.rule is not None
    assert splits.rule.feature is not None
    with storage.scratch_folder(workspace.root) as scratch:
        path = os.path.join(scratch, "times")
        with open(path, "wb") as file:
            for reader in run_readers(entries, workspace, features):
                for batch in reader.scan():
                    values = batch.column(splits.rule.feature).drop_null()
                    file.write(values.to_numpy().astype(np.int64).tobytes())
        if not os.path.getsize(path):
            raise DataError(
                f"Splits.by_time: no record has a value of {splits.rule.feature!r}, so no time "
                "can divide them. Is it the right feature?"
            )
        times = np.memmap(path, np.int64, "r")
        ranks = [int(end * len(times)) for end in splits.boundaries()[:-1]]
        return tuple(end_before(times, rank) for rank in ranks)


def end_before(times: Times, rank: int) -> int:
    """The time before which about ``rank`` of the times are; equal times stay together.

    Of the two candidates next to the rank-th time, the nearer one, or the earlier if both are
    equally near. Counts in ever narrower ranges, a chunk at a time.

    >>> end_before(np.array([1, 2, 2, 3]), 2)
    2
    """
    if rank >= len(times):
        return int(_over(times, np.max).max()) + 1
    value = _value_of_rank(times, rank)
    before = int(_over(times, lambda part: np.sum(part < value)).sum())
    upto = int(_over(times, lambda part: np.sum(part <= value)).sum())
    return value if rank - before <= upto - rank else value + 1


def _value_of_rank(times: Times, rank: int) -> int:
    low, high = int(_over(times, np.min).min()), int(_over(times, np.max).max())
    while low < high:
        width = (high - low) // _BINS + 1
        counts = np.zeros(_BINS + 1, np.int64)
        for start in range(0, len(times), _CHUNK):
            part = np.asarray(times[start : start + _CHUNK])
            part = part[(part >= low) & (part <= high)]
            # Unsigned: the width of a range may exceed int64.
            offsets = part.astype(np.uint64) - np.uint64(low % (1 << 64))
            counts += np.bincount(
                (offsets // np.uint64(width)).astype(np.int64), minlength=_BINS + 1
            )
        ends = np.cumsum(counts)
        chosen = int(np.searchsorted(ends, rank, side="right"))
        rank -= int(ends[chosen - 1]) if chosen else 0
        low, high = low + chosen * width, min(high, low + (chosen + 1) * width - 1)
    return low


def _over(times: Times, function: object) -> npt.NDArray[np.int64]:
    """Applies a function to each chunk of the times."""
    assert callable(function)
    starts = range(0, len(times), _CHUNK)
    return np.array([function(times[start : start + _CHUNK]) for start in starts], np.int64)


def find_group_splits(
    entries: Sequence[RunEntry],
    *,
    splits: Splits,
    features: Features,
    workspace: Workspace,
    seed: int,
) -> GroupSplits:
    """The split of each group.

    Args:
        entries: The runs that contain all records.
        splits: The splits, whose ``group_by`` names the groups' feature.
        features: Features of the runs.
        workspace: The runs' workspace.
        seed: The recipe's seed, from which the groups' keys are computed.

    Raises:
        DataError: if there are no groups, or more than 100,000.
    """
    sizes = group_sizes(entries, splits=splits, features=features, workspace=workspace)
    if sizes is None:
        raise DataError(
            f'Splits: assign="balanced" supports up to {MAX_GROUPS:,} groups, but '
            f'{splits.group_by!r} has more. Remove assign="balanced": with so many groups, the '
            "fractions are met without it."
        )
    if not sizes:
        raise DataError(
            f"Splits: no record has a value of {splits.group_by!r}, so no group can divide them. "
            "Is it the right feature?"
        )
    keys = text_keys(sizes, seed)
    # Groups with equal keys, which are extremely unlikely, share a split.
    known, index = np.unique(keys, return_inverse=True)
    totals = np.bincount(index, weights=list(sizes.values())).astype(np.int64)
    return GroupSplits.of(known, assign_groups(totals.tolist(), splits))


def group_sizes(
    entries: Sequence[RunEntry], *, splits: Splits, features: Features, workspace: Workspace
) -> dict[bytes, int] | None:
    """The number of records of each group, by its value as text; None if there are too many groups.

    Reads the runs once, and keeps only the name and size of each group.
    """
    name = splits.group_by or ""
    sizes: Counter[bytes] = Counter()
    for reader in run_readers(entries, workspace, features):
        for batch in reader.scan():
            texts = value_texts(label_texts(batch.column(name), features[name]))
            counts = np.bincount(
                texts.indices.drop_null().to_numpy(), minlength=len(texts.dictionary)
            )
            sizes.update(dict(zip(texts.dictionary.to_pylist(), counts.tolist(), strict=True)))
            if len(sizes) > MAX_GROUPS:
                return None
    return dict(sorted((text, size) for text, size in sizes.items() if size))


def assign_groups(sizes: Sizes, splits: Splits) -> list[int]:
    """Assigns groups to splits, with sizes as close to the fractions as possible.

    Minimizes the sum of squared differences. No split is empty if there are enough groups. Exact
    for few groups (see ``_TRIED``). With more, each group, the largest first, goes to the split
    that misses most; then groups move, and pairs of up to 200 groups are swapped, while that helps.

    Args:
        sizes: Number of records of each group, at least 1, in the order of the groups' keys.
        splits: The splits, with their fractions.

    Returns:
        The index of each group's split.

    >>> splits = Splits(train=0.7, validation=0.15, test=0.15, group_by="speaker")
    >>> assign_groups([50, 50, 50, 50, 50, 50], splits)
    [0, 0, 0, 0, 1, 2]
    """
    order = sorted(range(len(sizes)), key=lambda group: (-sizes[group], group))
    ends = splits.boundaries()
    shares = [end - start for start, end in zip((Fraction(0), *ends), ends, strict=False)]
    ranked = [sizes[group] for group in order]
    if len(shares) ** len(ranked) <= _TRIED:
        found = _try_all(ranked, shares)
    else:
        found = _improved(ranked, shares)
    assigned = [0] * len(sizes)
    for group, split in zip(order, found, strict=True):
        assigned[group] = split
    return assigned


def _try_all(sizes: Sizes, shares: Sequence[Fraction]) -> list[int]:
    num_splits, num_groups = len(shares), len(sizes)
    codes = np.arange(num_splits**num_groups)
    loads = np.zeros((len(codes), num_splits), np.int64)
    members = np.zeros((len(codes), num_splits), np.int64)
    rows = np.arange(len(codes))
    for group in range(num_groups):
        split = codes // num_splits ** (num_groups - 1 - group) % num_splits
        loads[rows, split] += sizes[group]
        members[rows, split] += 1
    num_empty = (members == 0).sum(axis=1)
    total = sum(sizes)
    missed = loads - np.array([float(share * total) for share in shares])
    cost = np.where(num_empty == num_empty.min(), (missed**2).sum(axis=1), np.inf)
    best = int(np.argmin(cost))
    return [
        best // num_splits ** (num_groups - 1 - group) % num_splits for group in range(num_groups)
    ]


def _improved(sizes: Sizes, shares: Sequence[Fraction]) -> list[int]:
    num_splits, num_groups = len(shares), len(sizes)
    # In units in which the wanted sizes are integers, to avoid rounding.
    unit = int(np.lcm.reduce([share.denominator for share in shares]))
    weights = [size * unit for size in sizes]
    wanted = [int(share * unit) * sum(sizes) for share in shares]
    over = [-number for number in wanted]
    members = [0] * num_splits
    found = []
    for left, weight in zip(range(num_groups, 0, -1), weights, strict=True):
        empty = [split for split in range(num_splits) if not members[split]]
        # The last groups, which are the smallest, go to splits that would otherwise stay empty.
        among = empty if len(empty) >= left else range(num_splits)
        split = min(among, key=lambda one: (over[one], one))
        found.append(split)
        over[split] += weight
        members[split] += 1

    def move(group: int) -> bool:
        here, weight = found[group], weights[group]
        if members[here] == 1:
            return False
        there = min(range(num_splits), key=lambda one: (over[one], one))
        # The change of the sum of squares, divided by twice the weight.
        if there == here or over[there] - over[here] + weight >= 0:
            return False
        over[here] -= weight
        over[there] += weight
        members[here] -= 1
        members[there] += 1
        found[group] = there
        return True

    def swap(group: int, other: int) -> bool:
        here, there = found[group], found[other]
        weight = weights[group] - weights[other]
        if here == there or weight <= 0 or over[there] - over[here] + weight >= 0:
            return False
        over[here] -= weight
        over[there] += weight
        found[group], found[other] = there, here
        return True

    groups = range(num_groups)
    pairs = [(a, b) for a in groups for b in groups] if num_groups <= _SWAPPED else []
    # Each change reduces the sum, so this terminates; a few rounds find nearly all improvements.
    for _ in range(20):
        moved = [move(group) for group in groups]
        swapped = [swap(group, other) for group, other in pairs]
        if not any(moved) and not any(swapped):
            break
    return found


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
    grouped, stratified = splits.partitioned, splits.stratify_by is not None
    if len(histogram.bin) and histogram.partition.max() >= (num_splits if grouped else 1):
        raise ValueError(f"partition {histogram.partition.max()} is not one of these splits")
    strata = histogram.stratum if stratified else np.zeros_like(histogram.stratum)
    cuts: list[_Cut] = []
    if grouped:
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
    starts = [[0] * num_splits if grouped else [0, *stops[:-1]] for stops in ends]
    return tuple(
        SplitContent(
            name=name,
            partition=i if grouped else 0,
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
