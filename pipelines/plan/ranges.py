"""Plans the key range of every shard of every split from the combined summaries.

Pure functions. The caller's ``read_keys`` reads keys only of the few histogram bins that contain
a cut, in two rounds: first the ends of the splits, then the cuts between shards. With fine bins,
which builds of many runs have, no key is read if cuts at bin edges are good enough.

Cuts divide a row of atoms (records, or records that must stay together) into consecutive parts.
Positions are ``bounds``: int64[n + 1], ascending, the total weight before each atom, first 0 and
last the total. Cuts are indices into them: int64[parts + 1], first 0 and last n.

For example, a split of 1,000 bytes is to become two shards. The histogram says that its bins hold
300, 500 and 200 bytes, so the best cut, at 500, is inside the second bin. Only the keys of that bin
are read. If it holds five records of 100 bytes, the bounds are 0, 300, 400, 500, 600, 700, 800 and
1,000, and the cut is exact: after the second of the five.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schemas.blocks import ShardPlan, SplitPlan
from ...schemas.errors import RecipeError
from ...schemas.shards import Shards
from ...schemas.splits import KEY_SPACE, Splits
from ...transforms.examples.tfrecord import FRAME_BYTES
from ...transforms.runs.key_histogram import BIN_BITS, KeyHistogram
from ..inventory.sample import Limit
from .key_columns import MAX_ROWS, Ints, KeyRows, KeyRowsReader, ReadKeys
from .sample import lowest_records
from .splits import SplitContent, find_splits, fine_splits

_FINE_RECORDS = 1_000_000
"""Splits of up to this many records have all keys read if shards are too small to cut blindly."""
_MANY_ROWS = 1 << 24
"""Maximum number of keys read from fine bins: each pass over them reads from every run."""


def plan_splits(
    histogram: KeyHistogram,
    *,
    splits: Splits,
    shards: Shards,
    size_ratio: float,
    read_keys: ReadKeys,
    limit: Limit | None = None,
    max_rows: int = MAX_ROWS,
    max_fine_rows: int = _MANY_ROWS,
) -> tuple[SplitPlan, ...]:
    """Plans the splits and cuts them into shards.

    Every record of the histogram is in exactly one shard of one split, counts are exact, and no
    shard is empty. Shards are balanced by uncompressed bytes (encoded records and framing): the
    shards of a split differ by at most 1 % or by the largest record, whichever is more. If shards
    are so small that single records matter, and the split has over a million records, only the
    keys around the cuts are read: shards then differ by up to two records of the size found
    there. With ``num_examples`` each shard except the last holds exactly that many records.
    Records with equal keys stay together; 64-bit keys of different ids are equal only by chance.
    With fine bins, shards may differ by the heaviest bin if cuts within 1 % would need the keys of
    more than 16.8 million records: with ``bins_for``, above some 100,000 shards.

    Args:
        histogram: All prepared records. Partitions: the split's index if splits are partitioned or
            bins are fine (see :class:`~.KeyBins`), otherwise 0. Strata: the values of
            ``stratify_by`` as text.
        splits: Names and fractions.
        shards: The settings that determine each split's number of shards.
        size_ratio: Stored bytes per encoded byte, for the number of shards: 1.0 except with GZIP
            or a ``preprocessing_fn``.
        read_keys: Returns the rows of the given (partition, bin) pairs. Called for the ends of the
            splits, then for the cuts, each time for at most ``max_rows`` or one bin.
        limit: Restricts the plan to the records with the lowest keys.
        max_rows: Number of rows read at a time.
        max_fine_rows: Maximum number of rows of fine bins that are read in total.

    Returns:
        A plan per split, in the order of the splits; a split without records has no shards.

    Raises:
        RecipeError: if the settings determine no number of shards for a split, or if
            ``num_examples`` would need the keys of more records than can be read.
        PlaceError: if ``read_keys`` returns other records than the histogram counted.
    """
    stratified = splits.key_strata is not None
    stop = KEY_SPACE
    if limit is not None:
        histogram = histogram.coarse(partitioned=splits.partitioned)
        histogram, read_keys, stop = lowest_records(histogram, read_keys, limit)
    if histogram.bits > BIN_BITS:
        contents = fine_splits(histogram, splits)
        if not splits.partitioned:
            nowhere = np.broadcast_to(np.int16(0), histogram.partition.shape)
            histogram = dataclasses.replace(histogram, partition=nowhere)
        reader = KeyRowsReader(histogram, read_keys, stratified, max_rows)
    else:
        reader = KeyRowsReader(histogram, read_keys, stratified, max_rows)
        contents = find_splits(histogram, splits=splits, reader=reader, stop=stop)
    planned: dict[str, tuple[ShardPlan, ...]] = {}
    cutters = []
    for content in contents:
        if not len(content.bins) or not content.num_records.any():
            continue
        cutter = _Cutter.of(content, shards=shards, size_ratio=size_ratio, max_rows=max_fine_rows)
        if cutter.wanted.any():
            cutters.append(cutter)
        else:
            # Immediately: with fine bins, a cutter contains much data.
            planned[content.name] = cutter.shards()
    pairs = {
        (cutter.content.partition, int(bin_))
        for cutter in cutters
        for bin_ in cutter.content.bins[cutter.wanted]
    }
    for rows in reader.batches(pairs):
        for cutter in cutters:
            cutter.add(rows)
    planned |= {cutter.content.name: cutter.shards() for cutter in cutters}
    return tuple(
        SplitPlan(
            name=content.name,
            shards=planned.get(content.name, ()),
            strata=dict(zip(histogram.strata, content.ranges, strict=True)) if stratified else None,
        )
        for content in contents
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Atoms:
    """Records that stay together: those of one key, or of one unread bin. Sorted."""

    keys: npt.NDArray[np.uint64]
    """The lowest key, or the start of the bin."""
    num_records: Ints
    num_bytes: Ints
    max_bytes: Ints

    def take(self, atoms: npt.NDArray[np.intp]) -> _Atoms:
        """The atoms with these indices, in that order."""
        return _Atoms(
            self.keys[atoms], self.num_records[atoms], self.num_bytes[atoms], self.max_bytes[atoms]
        )

    def merged_at(self, starts: Ints) -> _Atoms:
        """Joins atoms: each new one begins at an index in ``starts``, the first of which is 0."""
        return _Atoms(
            self.keys[starts],
            np.add.reduceat(self.num_records, starts),
            np.add.reduceat(self.num_bytes, starts),
            np.maximum.reduceat(self.max_bytes, starts),
        )

    def weights(self, *, by_count: bool) -> Ints:
        """The weights that cuts balance: numbers of records, or bytes as written."""
        if by_count:
            return self.num_records
        return self.num_bytes + FRAME_BYTES * self.num_records


@dataclasses.dataclass(eq=False)
class _Cutter:
    """Cuts one split into shards, bin by bin as its rows are read."""

    content: SplitContent
    targets: list[Fraction]
    """Target weights of the shards' ends, without the last."""
    by_count: bool
    """Whether weights are numbers of records and the targets must be met exactly."""
    fine: bool
    """Whether all records are considered, not only those next to a target."""
    wanted: npt.NDArray[np.bool_]
    """Whether the rows of each of the content's bins are needed."""
    parts: list[_Atoms]

    @classmethod
    def of(
        cls, content: SplitContent, *, shards: Shards, size_ratio: float, max_rows: int
    ) -> _Cutter:
        """Computes the targets of a non-empty split, and finds the bins to read."""
        num_records = int(content.num_records.sum())
        written = int(content.num_bytes.sum()) + FRAME_BYTES * num_records
        num_shards = shards.num_shards_of(
            content.name, num_examples=num_records, num_bytes=math.ceil(written * size_ratio)
        )
        by_count = shards.num_examples is not None
        if shards.num_examples is not None:
            targets = [Fraction(shards.num_examples * i) for i in range(1, num_shards)]
        else:
            targets = even_targets(written, num_shards)
        whole = _whole_bins(content)
        bounds = _bounds(whole.weights(by_count=by_count))
        floors = _floors(targets)
        hit = np.searchsorted(bounds, floors, side="right") - 1
        several = content.num_records > 1
        # A target at a bin's edge, or in a bin of one record, is met without reading.
        wanted = np.zeros(len(content.bins), np.bool_)
        wanted[hit[(bounds[hit] != floors) & several[hit]]] = True
        fine = at_edges = False
        if content.bits > BIN_BITS:
            # By number, all targets must be met; by size, bin edges are usually good enough.
            rows = int(content.num_records[wanted].sum())
            if by_count and rows > max_rows:
                raise RecipeError(_say_too_many(content, rows, num_shards, max_rows=max_rows))
            at_edges = not by_count and (
                rows > max_rows or _level_at_edges(whole, bounds, num_shards)
            )
        if at_edges:
            wanted[:] = False
        elif not by_count and num_shards > 1:
            # A cut misses its target by at most half a record, so shards differ by at most two.
            local = int(content.max_bytes[hit].max()) + FRAME_BYTES
            largest = int(content.max_bytes.max()) + FRAME_BYTES
            coarse = 2 * local > max(largest, written // num_shards // 101)
            fine = coarse and num_records <= _FINE_RECORDS
        if fine:
            wanted = several
        unread = (content.num_records > 0) & ~wanted
        parts = [whole if unread.all() else whole.take(np.flatnonzero(unread))]
        return cls(content, targets, by_count, fine, wanted, parts)

    def add(self, rows: KeyRows) -> None:
        """Adds the split's rows of a batch that holds complete bins."""
        content = self.content
        place = np.minimum(np.searchsorted(content.bins, rows.bins), len(content.bins) - 1)
        rows = rows.take(np.flatnonzero(self.wanted[place] & (content.bins[place] == rows.bins)))
        rows = rows.take(np.flatnonzero(self.content.holds(rows)))
        if not len(rows.keys):
            return
        rows = rows.take(np.argsort(rows.keys, kind="stable"))
        ones = np.ones(len(rows.keys), np.int64)
        atoms = _Atoms(rows.keys, ones, rows.num_bytes, rows.num_bytes)
        atoms = atoms.merged_at(np.flatnonzero(np.diff(rows.keys, prepend=~rows.keys[:1])))
        self.parts.append(atoms if self.fine else self._next_to_targets(atoms))

    def _next_to_targets(self, atoms: _Atoms) -> _Atoms:
        """Joins the atoms of each bin except at the bounds next to a target, to keep little."""
        bins = np.searchsorted(
            self.content.bins, (atoms.keys >> np.uint64(64 - self.content.bits)).astype(np.int64)
        )
        starts = np.flatnonzero(np.diff(bins, prepend=-1))
        weights = atoms.weights(by_count=self.by_count)
        before = np.cumsum(weights) - weights
        before_bin = _bounds(_whole_bins(self.content).weights(by_count=self.by_count))
        offsets = before_bin[bins[starts]] - before[starts]
        before += np.repeat(offsets, np.diff(starts, append=len(bins)))
        above = np.searchsorted(before, _floors(self.targets), side="right")
        kept = np.concatenate([starts, above - 1, above])
        return atoms.merged_at(np.unique(kept[(kept >= 0) & (kept < len(bins))]))

    def shards(self) -> tuple[ShardPlan, ...]:
        """Cuts the split, once all rows of the wanted bins have been added."""
        if len(self.parts) == 1:
            atoms = self.parts[0]
        else:
            atoms = _Atoms(
                *(
                    np.concatenate([getattr(part, column.name) for part in self.parts])
                    for column in dataclasses.fields(_Atoms)
                )
            )
            atoms = atoms.take(np.argsort(atoms.keys))
        bounds = _bounds(atoms.weights(by_count=self.by_count))
        # Fewer only if records share keys.
        num_shards = min(len(self.targets) + 1, len(atoms.keys))
        if num_shards <= len(self.targets):
            cuts = nearest_cuts(bounds, even_targets(int(bounds[-1]), num_shards))
        elif self.by_count:
            cuts = nearest_cuts(bounds, self.targets)
        else:
            largest = int(atoms.max_bytes.max()) + FRAME_BYTES
            cuts = balanced_cuts(bounds, num_shards, largest=largest)
        return self._shard_plans(atoms, cuts)

    def _shard_plans(self, atoms: _Atoms, cuts: Ints) -> tuple[ShardPlan, ...]:
        ranges = [(start, stop) for start, stop in self.content.ranges if start < stop]
        start, stop = min(a for a, _ in ranges), max(b for _, b in ranges)
        if len(ranges) > 1:
            # A stratum's range may extend to where other strata have no record of the split.
            start = max(start, int(atoms.keys[0]))
            shift = 64 - self.content.bits
            stop = min(stop, ((int(atoms.keys[-1]) >> shift) + 1) << shift)
        edges = [start, *(int(key) for key in atoms.keys[cuts[1:-1]]), stop]
        num_records = np.add.reduceat(atoms.num_records, cuts[:-1])
        num_bytes = np.add.reduceat(atoms.num_bytes, cuts[:-1])
        return tuple(
            ShardPlan(
                split=self.content.name,
                index=index,
                num_shards=len(edges) - 1,
                partition=self.content.partition,
                start_key=edges[index],
                stop_key=edges[index + 1],
                num_examples=int(num_records[index]),
                num_bytes=int(num_bytes[index]),
            )
            for index in range(len(edges) - 1)
        )


def _whole_bins(content: SplitContent) -> _Atoms:
    """All bins as atoms."""
    return _Atoms(
        content.bins.astype(np.uint64) << np.uint64(64 - content.bits),
        content.num_records,
        content.num_bytes,
        content.max_bytes,
    )


def _level_at_edges(bins: _Atoms, bounds: Ints, num_shards: int) -> bool:
    """Whether shards that end at bin edges are as equal as records allow, or within 1 %."""
    if len(bins.keys) < num_shards:
        return False
    heaviest = int(np.diff(bounds).max())
    # Shards that differ by the heaviest bin are no smaller than the mean minus that bin.
    smallest = int(bounds[-1]) // num_shards - heaviest
    return heaviest * 100 <= smallest or heaviest <= int(bins.max_bytes.max()) + FRAME_BYTES


def _say_too_many(content: SplitContent, num_rows: int, num_shards: int, *, max_rows: int) -> str:
    return (
        f"Shards: num_examples puts {num_shards - 1:,} cuts of split {content.name!r} at exact "
        f"records, which needs the keys of {num_rows:,} of its {int(content.num_records.sum()):,} "
        f"records from every run; at most {max_rows:,} are read. Give num_shards or "
        "target_bytes, which need no keys, or more examples per shard."
    )


def _bounds(weights: Ints) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(weights)])


def _floors(targets: Sequence[Fraction]) -> Ints:
    return np.array([int(target) for target in targets], np.int64)


def balanced_cuts(bounds: Ints, num_parts: int, *, largest: int) -> Ints:
    """Cuts into parts of nearly equal weight: nearest to even, or level if that is too coarse.

    Parts differ by at most 1 % of the smallest or by ``largest`` (the heaviest record, or the
    heaviest atom if that is more).
    """
    cuts = nearest_cuts(bounds, even_targets(int(bounds[-1]), num_parts))
    if is_balanced(np.diff(bounds[cuts]), largest=largest):
        return cuts
    level = level_cuts(bounds, num_parts)
    return min(cuts, level, key=lambda candidate: float(np.ptp(np.diff(bounds[candidate]))))


def is_balanced(weights: Ints, *, largest: int) -> bool:
    """Whether parts differ by at most 1 % of the smallest, or by the largest record."""
    smallest, heaviest = int(weights.min()), int(weights.max())
    return (heaviest - smallest) * 100 <= max(smallest, largest * 100)


def nearest_cuts(bounds: Ints, targets: Sequence[Fraction]) -> Ints:
    """Cuts at the bound nearest to each target (the lower of two equally near); no part is empty.

    There must be more atoms than targets.
    """
    num_atoms, num_parts = len(bounds) - 1, len(targets) + 1
    if num_atoms < num_parts:
        raise ValueError(f"{num_atoms} atoms cannot fill {num_parts} parts")
    cuts = np.zeros(num_parts + 1, np.int64)
    cuts[-1] = num_atoms
    below = np.searchsorted(bounds, _floors(targets), side="right") - 1
    for part, (target, low) in enumerate(zip(targets, below, strict=True), start=1):
        high = min(int(low) + 1, num_atoms)
        nearer_high = int(bounds[high]) - target < target - int(bounds[low])
        cuts[part] = high if nearer_high else low
    # If several cuts meet at a heavy atom, spread them: first to the right, then, from the end,
    # to the left.
    steps = np.arange(num_parts + 1)
    cuts = np.maximum.accumulate(cuts - steps) + steps
    return np.minimum(cuts, num_atoms - num_parts + steps)


def even_targets(total: int, num_parts: int) -> list[Fraction]:
    """The weights at which equal parts would end; without the last."""
    return [Fraction(total * part, num_parts) for part in range(1, num_parts)]


def level_cuts(bounds: Ints, num_parts: int) -> Ints:
    """Cuts into parts that differ by at most the heaviest atom. No part is empty.

    Such cuts always exist (Barany and Grinberg, "Block partitions of sequences", 2015). Let `low`
    be the largest number for which there are cuts whose parts all weigh at least `low`. Then there
    are cuts whose parts all weigh at least `low` and at most `high = low + heaviest`: parts that
    extend as far as `high` allows each weigh more than `low`, so if they left a remainder, `low`
    would not be the largest. The possible ends of parts within [low, high] after each step are all
    bounds between the nearest and the farthest, because adjacent bounds differ by at most the
    heaviest atom; so a valid bound always exists when going back from the end.

    Weights must be positive, and there must be at least as many atoms as parts.
    """
    # Not an array: bisect on this takes a tenth of the time of NumPy's search for one number.
    # Not a list: it would be five times as large.
    contiguous: Any = np.ascontiguousarray(bounds)
    positions: Sequence[int] = memoryview(contiguous)
    num_atoms, total = len(positions) - 1, positions[-1]
    if num_atoms < num_parts:
        raise ValueError(f"{num_atoms} atoms cannot fill {num_parts} parts")
    near = 2 * num_atoms // num_parts + 2

    def first_from(start: int, position: int) -> int:
        """The first bound after ``start`` that is at least ``position``."""
        stop = min(start + near, num_atoms + 1)
        if positions[stop - 1] < position:
            start, stop = stop, num_atoms + 1
        return bisect.bisect_left(positions, position, start, stop)

    def nearest_ends(least: int) -> list[int] | None:
        ends = [0]
        for _ in range(num_parts):
            ends.append(first_from(ends[-1], positions[ends[-1]] + least))
            if ends[-1] > num_atoms:
                return None
        return ends

    heaviest = int(np.diff(bounds).max())
    # Parts of at most `low + heaviest` cover everything, so `low` is at least this.
    low, too_much = max(1, -(-total // num_parts) - heaviest), total // num_parts + 1
    while too_much - low > 1:
        middle = (low + too_much) // 2
        if nearest_ends(middle) is None:
            too_much = middle
        else:
            low = middle
    high = low + heaviest
    nearest = nearest_ends(low)
    if nearest is None:
        raise ValueError("weights must be positive")
    farthest = [0]
    for _ in range(num_parts):
        farthest.append(bisect.bisect_right(positions, positions[farthest[-1]] + high) - 1)

    cuts = np.zeros(num_parts + 1, np.int64)
    end = num_atoms
    for part in range(num_parts, 0, -1):
        cuts[part] = end
        first = max(nearest[part - 1], bisect.bisect_left(positions, positions[end] - high))
        last = min(farthest[part - 1], bisect.bisect_right(positions, positions[end] - low) - 1)
        wanted = bisect.bisect_left(positions, total * (part - 1) // num_parts)
        end = min(max(wanted, first), last)
    return cuts


def empty_splits(splits: Splits, num_records: Mapping[str, int]) -> list[str]:
    """The splits that have a fraction but no record."""
    return [name for name, share in splits.fractions if share and not num_records.get(name)]


def refuse_empty_splits(
    splits: Splits,
    num_records: Mapping[str, int],
    *,
    num_groups: int | None = None,
    num_rejects: int = 0,
) -> None:
    """Refuses splits without records, unless the recipe allows them.

    Args:
        splits: The splits; without fractions, nothing is refused.
        num_records: Number of records of each split.
        num_groups: Number of groups, if known.
        num_rejects: Number of rejects, for the error.

    Raises:
        RecipeError: if a split is empty; names the empty splits and how to fix them.
    """
    empty = [] if splits.allow_empty else empty_splits(splits, num_records)
    if not empty:
        return
    listed = ", ".join(f"{name!r} ({dict(splits.fractions)[name]:g})" for name in empty)
    total = sum(num_records.values())
    of = f"{total:,} record" + ("" if total == 1 else "s")
    by, remedy = "", "other fractions or fewer splits"
    if splits.group_by is not None:
        plural = "" if num_groups == 1 else "s"
        groups = "groups" if num_groups is None else f"{num_groups:,} group{plural}"
        by = f", which {splits.group_by!r} keeps together in {groups}"
        if splits.assign == "hash":
            remedy = f'assign="balanced" (undivided groups, by their sizes), {remedy}'
    elif splits.rule is not None and splits.rule.by == "time":
        by = f", divided by the time {splits.rule.feature!r}"
    elif splits.stratify_by is not None:
        by = f", divided within each value of {splits.stratify_by!r}"
    if num_rejects:
        by += f"; {num_rejects:,} {'was' if num_rejects == 1 else 'were'} rejected"
    raise RecipeError(
        f"Splits: {listed} would be empty: there {'is' if total == 1 else 'are'} {of}{by}. Give "
        f"Splits(…) {remedy}, such as splits=ss.Splits(train=1.0); or allow_empty=True if empty "
        "splits are intended. Without a recipe file, `snapshard init DATA > recipe.py` writes one "
        "whose splits fit the data."
    )


def plan_to_json(plan: Sequence[SplitPlan]) -> list[dict[str, Any]]:
    """A plan as values that JSON has."""
    return [
        {
            "name": split.name,
            "shards": [vars(shard) for shard in split.shards],
            "strata": None
            if split.strata is None
            else [[name, *ends] for name, ends in split.strata.items()],
        }
        for split in plan
    ]


def plan_from_json(value: list[dict[str, Any]]) -> tuple[SplitPlan, ...]:
    """The plan of which :func:`plan_to_json` made these values."""
    return tuple(
        SplitPlan(
            name=split["name"],
            shards=tuple(ShardPlan(**shard) for shard in split["shards"]),
            strata=None
            if split["strata"] is None
            else {name: (start, stop) for name, start, stop in split["strata"]},
        )
        for split in value
    )
