"""Diff: what changed between two snapshots: records, features, settings and code, versions."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.features import features_to_json
from ...schemas.naming import REJECTS
from ...schemas.progress import Progress
from ...schemas.visible import visible
from ...transforms import storage
from ...transforms.examples.stored_records import StoredRecords
from ..snapshot import Snapshot
from .diff_records import (
    ComparedRecords,
    OutOfOrderError,
    compare_records,
    num_records,
    num_shared,
    split_names,
)
from .why import Change, change_lines, feature_changes, fingerprint_facts, name_lines, part_changes

SHOWN = 10
"""How many ids of each kind are named by default."""
KINDS = ("added", "removed", "changed", "moved")
_NOT_SETTINGS = ("inputs", "features", "classes")
"""Parts that the comparison of records and manifests covers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapshotDiff:
    """What changed.

    Attributes:
        old: The first snapshot.
        new: The second.
        records: Changes of the records.
        contents: Whether the contents of records were compared, or only their ids.
        features: Changes of the features of the examples, classes included.
        versions: Changes of library versions.
        settings: Changes of all other settings, and of code.
        notes: Limits of the comparison, for people.
    """

    old: Snapshot
    new: Snapshot
    records: RecordChanges
    contents: bool
    features: tuple[Change, ...]
    versions: tuple[Change, ...]
    settings: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether both are the same snapshot."""
        return self.old.manifest == self.new.manifest

    @property
    def rejects_differ(self) -> bool:
        """Whether the snapshots have other rejects, or these have other reasons."""
        old, new = (s.manifest.files.get(REJECTS) for s in (self.old, self.new))
        return old != new

    def to_json(self) -> dict[str, object]:
        """The changes as plain JSON."""
        return {
            "old": {"path": self.old.path, "fingerprint": self.old.manifest.fingerprint},
            "new": {"path": self.new.path, "fingerprint": self.new.manifest.fingerprint},
            "same": self.same,
            "contents": self.contents,
            "records": self.records.to_json(),
            "rejects": {
                "old": self.old.manifest.num_rejects,
                "new": self.new.manifest.num_rejects,
                "same": not self.rejects_differ,
            },
            "features": [change.to_json() for change in self.features],
            "versions": [change.to_json() for change in self.versions],
            "settings": [change.to_json() for change in self.settings],
            "notes": list(self.notes),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordChanges:
    """How the records changed.

    Attributes:
        num_old: Records of the old snapshot.
        num_new: Records of the new one.
        num_same: Records of both, with the same content in the same split.
        counts: Split -> number of records of each kind; removed ones count in their old split, all
            others in their new one.
        moves: (old split, new split) -> number of records; some of them may also be changed.
        first: Ids of each kind: those with the lowest keys.
        moved_from: The old and the new split of each moved id in ``first``.
    """

    num_old: int
    num_new: int
    num_same: int
    counts: dict[str, dict[str, int]]
    moves: dict[tuple[str, str], int]
    first: dict[str, tuple[str, ...]]
    moved_from: tuple[tuple[str, str], ...]

    def total(self, kind: str) -> int:
        """The number of records of a kind."""
        return sum(counts[kind] for counts in self.counts.values())

    def to_json(self) -> dict[str, object]:
        """The changes as plain JSON."""
        return {
            "old": self.num_old,
            "new": self.num_new,
            "same": self.num_same,
            **{kind: self.total(kind) for kind in KINDS},
            "by_split": self.counts,
            "moves": [
                {"from": old, "to": new, "records": number}
                for (old, new), number in sorted(self.moves.items())
            ],
            "first_ids": {
                **{kind: list(ids) for kind, ids in self.first.items()},
                "moved": [
                    {"id": record_id, "from": old, "to": new}
                    for record_id, (old, new) in zip(
                        self.first["moved"], self.moved_from, strict=True
                    )
                ],
            },
        }


def diff(
    old: Snapshot,
    new: Snapshot,
    *,
    progress: Progress,
    num_shown: int = SHOWN,
    contents: bool = True,
) -> SnapshotDiff:
    """Compares two snapshots.

    Memory is bounded by the number of splits, not of records. Shards that both snapshots have are
    not read.

    Args:
        old: A snapshot.
        new: Another one, of any recipe.
        progress: Receives the number of records compared.
        num_shown: How many ids of each kind to name.
        contents: Whether to read the contents of records; else only indexes are read, and no
            record counts as changed.

    Raises:
        DamagedSnapshotError: if the shards of a snapshot contradict their indexes.
        StorageError: if a file cannot be read.
    """

    def compare(*, sorted_alike: bool) -> RecordChanges:
        tally = _Tally(split_names(old, new), num_shown=num_shown)
        for compared in compare_records(
            old, new, progress=progress, contents=contents, sorted_alike=sorted_alike
        ):
            tally.add(compared)
        numbers = [num_records(snapshot) for snapshot in (old, new)]
        shared = num_shared(old, new)
        return tally.found(num_old=numbers[0], num_new=numbers[1], num_shared=shared)

    with storage.losses_as_damage():
        try:
            records = compare(sorted_alike=old.manifest.seed == new.manifest.seed)
        except OutOfOrderError:
            # An index escapes ids that are not UTF-8: their keys cannot be computed from it.
            records = compare(sorted_alike=False)
    first, second, complete = fingerprint_facts(old, new)
    changes = part_changes(first, second)
    shapes = [features_to_json(snapshot.manifest.features) for snapshot in (old, new)]
    return SnapshotDiff(
        old=old,
        new=new,
        records=records,
        contents=contents,
        features=tuple(feature_changes(shapes[0], shapes[1])),
        versions=tuple(change for change in changes if change.part == "versions"),
        settings=tuple(
            change for change in changes if change.part not in ("versions", *_NOT_SETTINGS)
        ),
        notes=tuple(_notes(old, new, complete=complete)),
    )


def _notes(old: Snapshot, new: Snapshot, *, complete: bool) -> list[str]:
    notes = []
    before, after = old.manifest, new.manifest
    if before.name != after.name:
        notes.append(
            f"The snapshots are of two recipes, {before.name!r} and {after.name!r}: records are "
            "paired by id, whatever the ids mean in each."
        )
    if before.seed != after.seed:
        notes.append(
            f"The seeds differ ({before.seed} and {after.seed}): the order of records changes, "
            "and so do splits by hash, so records move between splits."
        )
    if not complete:
        notes.append(
            "A build.json is missing or damaged: of settings and code, only what the manifests "
            "contain was compared."
        )
    return notes


class _Tally:
    """Counts compared records, range by range."""

    def __init__(self, splits: Sequence[str], *, num_shown: int) -> None:
        """Starts with empty counts.

        Args:
            splits: Names of the splits by their numbers.
            num_shown: How many ids of each kind to keep.
        """
        self._splits = list(splits)
        self._num_shown = num_shown
        self._counts = {name: dict.fromkeys(KINDS, 0) for name in splits}
        self._moves: collections.Counter[tuple[int, int]] = collections.Counter()
        self._first: dict[str, list[str]] = {kind: [] for kind in KINDS}
        self._moved_from: list[tuple[str, str]] = []
        self._num_same = 0

    def add(self, compared: ComparedRecords) -> None:
        """Counts a range of compared records."""
        old, new = compared.old, compared.new
        before, after = compared.pairs[:, 0], compared.pairs[:, 1]
        changed = (old.contents[before] != new.contents[after]).any(axis=1)
        moved = old.splits[before] != new.splits[after]
        self._num_same += int((~changed & ~moved).sum())
        self._note("added", new, compared.added)
        self._note("removed", old, compared.removed)
        self._note("changed", new, after[changed])
        rows = self._note("moved", new, after[moved])
        origin = dict(zip(after[moved].tolist(), old.splits[before[moved]].tolist(), strict=True))
        for row in rows:
            pair = origin[row], int(new.splits[row])
            self._moved_from.append((self._splits[pair[0]], self._splits[pair[1]]))
        self._moves.update(zip(origin.values(), new.splits[list(origin)].tolist(), strict=True))

    def _note(self, kind: str, records: StoredRecords, rows: npt.NDArray[np.int64]) -> list[int]:
        """Counts records; returns the rows of those whose ids are kept."""
        if not len(rows):
            return []
        for split, number in zip(*np.unique(records.splits[rows], return_counts=True), strict=True):
            self._counts[self._splits[int(split)]][kind] += int(number)
        free = self._num_shown - len(self._first[kind])
        if free <= 0:
            return []
        chosen = rows[np.argsort(records.keys[rows], kind="stable")[:free]]
        ids = records.ids.take(pa.array(chosen)).to_pylist()
        self._first[kind] += [text.decode("utf-8", "backslashreplace") for text in ids]
        return [int(row) for row in chosen]

    def found(self, *, num_old: int, num_new: int, num_shared: int) -> RecordChanges:
        """The result.

        Args:
            num_old: Records of the old snapshot.
            num_new: Records of the new one.
            num_shared: Records of both that were not compared, since their shards are identical.
        """
        names = self._splits
        return RecordChanges(
            num_old=num_old,
            num_new=num_new,
            num_same=self._num_same + num_shared,
            counts=self._counts,
            moves={(names[old], names[new]): n for (old, new), n in self._moves.items()},
            first={kind: tuple(ids) for kind, ids in self._first.items()},
            moved_from=tuple(self._moved_from),
        )


def diff_text(found: SnapshotDiff) -> str:
    """What changed from one snapshot to another, as text.

    Names from the data appear as they are, except for line breaks; a terminal escapes the rest.
    """
    return "\n".join(_diff_lines(found))


def _diff_lines(found: SnapshotDiff) -> Iterator[str]:
    old, new, records = found.old, found.new, found.records
    yield f"old {old.manifest.fingerprint}  {old.path}"
    yield f"new {new.manifest.fingerprint}  {new.path}"
    if found.same:
        yield "the same snapshot"
        return
    for note in found.notes:
        yield f"note: {note}"
    rows = [
        (name, *(_num_examples(s, name) for s in (old, new)), *(counts[kind] for kind in KINDS))
        for name, counts in records.counts.items()
    ]
    totals = [records.total(kind) for kind in KINDS]
    yield "records"
    yield from _table(
        ("split", "old", "new", *KINDS), [*rows, ("all", records.num_old, records.num_new, *totals)]
    )
    yield f"  {records.num_same:,} unchanged: the same content in the same split"
    if not found.contents:
        yield "  contents of records were not compared (--only-ids)"
    for (before, after), number in sorted(records.moves.items()):
        yield f"  moved from {before} to {after}: {number:,}"
    for kind in KINDS:
        yield from name_lines(kind, records.first[kind], records.total(kind))
    if found.rejects_differ:
        yield _rejects_line(old.manifest.num_rejects, new.manifest.num_rejects)
    yield from change_lines("features", found.features)
    yield from change_lines("settings and code", found.settings)
    yield from change_lines("versions", found.versions)


def _rejects_line(before: int, after: int) -> str:
    """One line for people.

    >>> _rejects_line(1, 2), _rejects_line(2, 2)
    ('rejects: 1 before, 2 now', 'rejects: 2 before, 2 now, others')
    """
    return f"rejects: {before:,} before, {after:,} now{', others' if before == after else ''}"


def _num_examples(snapshot: Snapshot, split: str) -> int:
    entry = snapshot.manifest.splits.get(split)
    return 0 if entry is None else entry.num_examples


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    lines = [list(columns), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for first, *numbers in lines:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        yield f"  {'  '.join([first.ljust(widths[0]), *cells])}"


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else visible(str(value))
