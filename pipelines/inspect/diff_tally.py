"""Counting what became of the records of one snapshot in another."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...transforms.examples.stored_records import StoredRecords
from .diff_records import ComparedRecords
from .diff_shifts import ShiftedFile, Shifts

KINDS = ("added", "removed", "changed", "moved")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordChanges:
    """What became of the records.

    Attributes:
        num_old: Records of the old snapshot.
        num_new: Records of the new one.
        num_same: Of both, with the same content in the same split.
        counts: Split -> how many records of each kind; those that are gone in their old split,
            all others in their new one.
        moves: (old split, new split) -> how many records; of these some may be changed, too.
        first: Ids of each kind: those with the lowest keys.
        moved_from: Of each of the moved ids, its old split and its new one.
        shifted: Files in which records of the same content lie at other places.
    """

    num_old: int
    num_new: int
    num_same: int
    counts: dict[str, dict[str, int]]
    moves: dict[tuple[str, str], int]
    first: dict[str, tuple[str, ...]]
    moved_from: tuple[tuple[str, str], ...]
    shifted: tuple[ShiftedFile, ...]

    def total(self, kind: str) -> int:
        """How many records of a kind."""
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
            "shifted_files": [dataclasses.asdict(file) for file in self.shifted],
        }


class Tally:
    """Takes in compared records, range by range."""

    def __init__(self, splits: Sequence[str], *, num_shown: int, contents: bool) -> None:
        """Nothing counted yet.

        Args:
            splits: Names of the splits by their numbers.
            num_shown: How many ids of each kind to keep.
            contents: Whether it is known what the records hold.
        """
        self._splits = list(splits)
        self._num_shown = num_shown
        self._counts = {name: dict.fromkeys(KINDS, 0) for name in splits}
        self._moves: collections.Counter[tuple[int, int]] = collections.Counter()
        self._first: dict[str, list[str]] = {kind: [] for kind in KINDS}
        self._moved_from: list[tuple[str, str]] = []
        self._num_same = 0
        self._shifts = Shifts(contents=contents)

    def see(self, compared: ComparedRecords) -> None:
        """Takes in a range of compared records."""
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
        self._shifts.see(compared, changed)

    def _note(self, kind: str, records: StoredRecords, rows: npt.NDArray[np.int64]) -> list[int]:
        """Counts records; gives the rows of those whose ids are kept."""
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
        """What was counted.

        Args:
            num_old: Records of the old snapshot.
            num_new: Records of the new one.
            num_shared: Records of both that were not looked at, since their shards are the same.
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
            shifted=tuple(self._shifts.found(none_same=self._num_same + num_shared == 0)),
        )
