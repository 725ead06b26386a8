"""Splits that depend on all records: the ends of splits by time, the split of each balanced group.

Found between two stages of prepare, because records of the next one are assigned by them. Results
depend only on the records, not on the order of the input or on the workers.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.errors import DataError
from ...schemas.features import Features
from ...schemas.naming import Workspace
from ...schemas.recipe import Recipe
from ...schemas.splits import Splits
from ...transforms import storage
from ...transforms.runs.files import ID
from ...transforms.runs.keys import text_keys, value_texts
from ...transforms.runs.partitions import (
    GroupSplits,
    SplitEnds,
    label_texts,
    named_partitions,
    strata_of,
)
from ...transforms.runs.summary import RunEntry, run_readers
from ..survey.stages import stages_of
from .stratified_groups import PairCounter, assign_stratified

MAX_GROUPS = 100_000
"""Maximum number of balanced groups: their splits, 1 MB, are sent to every worker."""
MAX_PAIRS = 5_000_000
"""Maximum number of pairs of a group and a class, about 100 bytes each."""
_SHOWN = 5
_TRIED = 200_000
"""Up to this many assignments are tried exhaustively: enough for 11 groups in 3 splits."""
_SWAPPED = 200
"""Up to this many groups, pairs are swapped as long as that brings splits closer."""
_CHUNK = 1 << 20
_BINS = 1 << 16
Times = npt.NDArray[np.int64]
Sizes = Sequence[int]


def find_split_ends(
    entries: Sequence[RunEntry],
    *,
    recipe: Recipe,
    features: Features,
    workspace: Workspace,
    warn: Callable[[str], None],
) -> SplitEnds | None:
    """Finds the ends of splits by time, or the split of each balanced group.

    Args:
        entries: The runs that contain all records, of the first stage.
        recipe: The recipe, with its splits and seed.
        features: Features of the runs.
        workspace: The runs' workspace.
        warn: Receives which splits cannot have records of a class.

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
    if splits.stratify_by is not None:
        rows = _group_rows(entries, recipe=recipe, features=features, workspace=workspace)
        return _stratified_groups(rows, splits=splits, seed=recipe.seed, warn=warn)
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


def _over(times: Times, function: Callable[[Times], Any]) -> npt.NDArray[np.int64]:
    """Applies a function to each chunk of the times."""
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


def _group_rows(
    entries: Sequence[RunEntry], *, recipe: Recipe, features: Features, workspace: Workspace
) -> Iterator[tuple[pa.DictionaryArray, pa.DictionaryArray]]:
    """The groups and classes, as texts, of all records that the splits' fractions divide."""
    splits = recipe.splits
    cross = stages_of(recipe)[1].cross
    assert cross is not None
    length, group_by = cross.prefix_bytes, splits.group_by or ""
    for reader in run_readers(entries, workspace, features):
        for batch in reader.scan():
            if splits.of_train is not None:
                ids = [
                    record_id[length:].decode("utf-8", "surrogateescape")
                    for record_id in batch.column(ID).to_pylist()
                ]
                named, _ = named_partitions(ids, batch, splits=splits, features=features)
                train = splits.names.index(splits.of_train.names[0])
                batch = batch.filter(pa.array(named == train))
            groups = label_texts(batch.column(group_by), features[group_by])
            classes = strata_of(batch, features, splits.stratify_by)
            yield value_texts(groups), value_texts(classes)


def _stratified_groups(
    rows: Iterator[tuple[pa.DictionaryArray, pa.DictionaryArray]],
    *,
    splits: Splits,
    seed: int,
    warn: Callable[[str], None],
) -> GroupSplits:
    """The split of each group, so that classes have the fractions in every split."""
    counter = PairCounter()
    for groups, classes in rows:
        counter.add(groups, classes)
        if counter.num_groups > MAX_GROUPS:
            raise DataError(
                f"Splits: stratify_by with group_by supports up to {MAX_GROUPS:,} groups, but "
                f"{splits.group_by!r} has more. Remove stratify_by: with so many groups, a hash "
                "gives each split nearly its fraction of every class."
            )
        if counter.num_pairs > MAX_PAIRS:
            raise DataError(
                f"Splits: stratify_by={splits.stratify_by!r} with group_by={splits.group_by!r} has "
                f"more than {MAX_PAIRS:,} pairs of a group and a value. Stratify by a feature "
                "with fewer values, or remove stratify_by."
            )
    if not counter.num_groups:
        where = "" if splits.of_train is None else " of train"
        raise DataError(
            f"Splits: no record{where} has a value of {splits.group_by!r}, so no group can divide "
            "them. Is it the right feature?"
        )
    keys, names, counts = counter.result(seed)
    divided = splits.of_train or splits
    assigned = assign_stratified(counts, divided)
    members = counts.in_splits(assigned, len(divided.names))
    if message := _lacking(members, names, divided):
        warn(message)
    return GroupSplits.of(keys, assigned.tolist())


def _lacking(members: Times, names: Sequence[bytes], splits: Splits) -> str:
    """Which splits have no group of a class, for people; empty if all have some of each.

    Args:
        members: Number of groups, int64[splits, classes].
        names: The classes.
        splits: The splits.
    """
    lacking = np.flatnonzero((members == 0).any(axis=0)).tolist()
    if not lacking:
        return ""
    told = []
    for index in lacking[:_SHOWN]:
        name, number = names[index].decode(errors="backslashreplace"), int(members[:, index].sum())
        empty = [splits.names[split] for split in np.flatnonzero(members[:, index] == 0)]
        groups = f"{number:,} group{'' if number == 1 else 's'}"
        told.append(f"{name!r} ({groups}) is not in {' and '.join(empty)}")
    if more := len(lacking) - len(told):
        told.append(f"{more:,} more are not in all splits")
    return (
        f"splits: groups of {splits.group_by!r} stay whole, so of the values of "
        f"{splits.stratify_by!r}, {'; '.join(told)}"
    )


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
        chosen = _try_all(ranked, shares)
    else:
        chosen = _improved(ranked, shares)
    assigned = [0] * len(sizes)
    for group, split in zip(order, chosen, strict=True):
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
    assigned = []
    for left, weight in zip(range(num_groups, 0, -1), weights, strict=True):
        empty = [split for split in range(num_splits) if not members[split]]
        # The last groups, which are the smallest, go to splits that would otherwise stay empty.
        among = empty if len(empty) >= left else range(num_splits)
        split = min(among, key=lambda index: (over[index], index))
        assigned.append(split)
        over[split] += weight
        members[split] += 1

    def move(group: int) -> bool:
        here, weight = assigned[group], weights[group]
        if members[here] == 1:
            return False
        there = min(range(num_splits), key=lambda index: (over[index], index))
        # The change of the sum of squares, divided by twice the weight.
        if there == here or over[there] - over[here] + weight >= 0:
            return False
        over[here] -= weight
        over[there] += weight
        members[here] -= 1
        members[there] += 1
        assigned[group] = there
        return True

    def swap(group: int, other: int) -> bool:
        here, there = assigned[group], assigned[other]
        weight = weights[group] - weights[other]
        if here == there or weight <= 0 or over[there] - over[here] + weight >= 0:
            return False
        over[here] -= weight
        over[there] += weight
        assigned[group], assigned[other] = there, here
        return True

    groups = range(num_groups)
    pairs = [(a, b) for a in groups for b in groups] if num_groups <= _SWAPPED else []
    # Each change reduces the sum, so this terminates; a few rounds find nearly all improvements.
    for _ in range(20):
        moved = [move(group) for group in groups]
        swapped = [swap(group, other) for group, other in pairs]
        if not any(moved) and not any(swapped):
            break
    return assigned
