"""Diff: what changed between two snapshots, in their records and in what they were made with."""

from __future__ import annotations

import dataclasses

from ...schemas.features import features_to_json
from ...schemas.progress import Progress
from ..snapshot import Snapshot
from .diff_records import OutOfOrderError, compare_records, num_shared, split_names
from .diff_tally import RecordChanges, Tally
from .part_changes import Change, feature_changes, part_changes, told_of

SHOWN = 10
"""How many ids of each kind are named by default."""

_TOLD_OTHERWISE = ("inputs", "features", "classes")
"""By what the records and the manifests say."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapshotDiff:
    """What changed.

    Attributes:
        old: The one snapshot.
        new: The other.
        records: What became of the records.
        contents: Whether records were compared by what they hold, or by their ids alone.
        features: Changes of what the examples hold, classes included.
        versions: Of the libraries' versions.
        settings: Of all else that the snapshots were made with.
        notes: What makes the comparison less plain than it looks, for a person.
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
        """Whether both are one snapshot."""
        return self.old.manifest == self.new.manifest

    def to_json(self) -> dict[str, object]:
        """The changes as plain JSON."""
        return {
            "old": {"path": self.old.path, "fingerprint": self.old.manifest.fingerprint},
            "new": {"path": self.new.path, "fingerprint": self.new.manifest.fingerprint},
            "same": self.same,
            "contents": self.contents,
            "records": self.records.to_json(),
            "features": [change.to_json() for change in self.features],
            "versions": [change.to_json() for change in self.versions],
            "settings": [change.to_json() for change in self.settings],
            "notes": list(self.notes),
        }


def diff(
    old: Snapshot,
    new: Snapshot,
    *,
    progress: Progress,
    num_shown: int = SHOWN,
    contents: bool = True,
) -> SnapshotDiff:
    """Says what changed from one snapshot to another.

    Memory is bounded by the splits' number, not by the records'. Shards that both snapshots have
    are not read.

    Args:
        old: A snapshot.
        new: Another one, of any recipe.
        progress: Told how many records have been compared.
        num_shown: How many ids of each kind to name.
        contents: Whether to read what the records hold; else only indexes are read, and no
            record counts as changed.

    Raises:
        DamagedSnapshotError: if the shards and indexes of one do not agree.
        StorageError: if a file cannot be read.
    """

    def compare(*, sorted_alike: bool) -> RecordChanges:
        tally = Tally(split_names(old, new), num_shown=num_shown, contents=contents)
        for compared in compare_records(
            old, new, progress=progress, contents=contents, sorted_alike=sorted_alike
        ):
            tally.see(compared)
        numbers = [_num_records(snapshot) for snapshot in (old, new)]
        shared = num_shared(old, new)
        return tally.found(num_old=numbers[0], num_new=numbers[1], num_shared=shared)

    try:
        records = compare(sorted_alike=old.manifest.seed == new.manifest.seed)
    except OutOfOrderError:
        # Names that are no UTF-8 stand in an index in a printable form: their keys cannot be told.
        records = compare(sorted_alike=False)
    first, second, complete = told_of(old, new)
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
            change for change in changes if change.part not in ("versions", *_TOLD_OTHERWISE)
        ),
        notes=tuple(_notes(old, new, complete=complete)),
    )


def _num_records(snapshot: Snapshot) -> int:
    return sum(split.num_examples for split in snapshot.manifest.splits.values())


def _notes(old: Snapshot, new: Snapshot, *, complete: bool) -> list[str]:
    notes = []
    before, after = old.manifest, new.manifest
    if before.name != after.name:
        notes.append(
            f"These are snapshots of two recipes, {before.name!r} and {after.name!r}: records are "
            "paired by their ids, whatever these mean in each."
        )
    if before.seed != after.seed:
        notes.append(
            f"The seeds differ ({before.seed} and {after.seed}): every record's place is drawn "
            "anew, and its split where a hash decides it, so records move between splits."
        )
    if not complete:
        notes.append(
            "A build.json is missing or damaged: settings and code were not compared, but for what "
            "the manifests hold."
        )
    return notes
