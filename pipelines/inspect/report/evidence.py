"""What is known of a snapshot: its manifest, statistics and build, and the first records of splits.

Records are stored in random order, so the first of each split are a random sample of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ....schemas.errors import SnapshardError, StorageError
from ....schemas.features import Audio, ClassLabel, Feature, Image
from ....schemas.naming import join
from ....transforms import storage
from ...frame import first_records, values_of
from ...snapshot import Snapshot, build_facts

STATISTICS = "statistics.json"
_FIRST = ("train", "validation", "val", "test")
_MAX_RECORDS = 4_000
_MAX_VALUES = 80_000
_MAX_BYTES = 96 << 20
_MIN_RECORDS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """The first records of every split.

    Attributes:
        ids: Their ids.
        splits: The split of each.
        values: The values of each feature; None where one is missing.
        rates: The rates (Hz) of sounds whose rates differ, by feature.
        trouble: Why there are no records, if so.
    """

    ids: Sequence[str] = ()
    splits: Sequence[str] = ()
    values: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    rates: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    trouble: str = ""

    def __len__(self) -> int:
        """The number of records."""
        return len(self.ids)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the page is made from.

    Attributes:
        snapshot: The snapshot.
        build: Content of its ``build.json``; empty without one.
        statistics: Features by split; None if it was built without statistics.
        sample: Its first records.
    """

    snapshot: Snapshot
    build: Mapping[str, Any]
    statistics: Mapping[str, Any] | None
    sample: Sample

    @property
    def features(self) -> Mapping[str, Feature]:
        """The snapshot's features."""
        return self.snapshot.manifest.features

    @property
    def label(self) -> str | None:
        """The feature to predict."""
        return self.snapshot.manifest.label

    @property
    def splits(self) -> list[str]:
        """The names of its splits: train, validation, test, then all others."""
        names = list(self.snapshot.manifest.splits)
        return sorted(names, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))

    def num_examples(self, split: str) -> int:
        """Number of examples of a split."""
        return self.snapshot.manifest.splits[split].num_examples

    @property
    def total(self) -> int:
        """Number of examples of all splits."""
        return sum(map(self.num_examples, self.splits))

    def stats(self, split: str, feature: str) -> Mapping[str, Any]:
        """Statistics of a feature in a split; empty if unknown."""
        splits: Mapping[str, Any] = (self.statistics or {}).get("splits", {})
        found: Mapping[str, Any] = splits.get(split, {}).get("features", {}).get(feature, {})
        return found

    def num_missing(self, feature: str) -> int:
        """Number of examples without a value, in all splits."""
        return self.snapshot.manifest.num_missing.get(feature, 0)

    def label_counts(self) -> dict[str, dict[str, int]]:
        """Examples of each class by split, classes without examples included; empty without any."""
        by_split = {name: self.snapshot.manifest.splits[name].label_counts for name in self.splits}
        if not any(by_split.values()):
            return {}
        label = self.features.get(self.label or "")
        names = label.names if isinstance(label, ClassLabel) else ()
        known = dict.fromkeys([*names, *(name for one in by_split.values() for name in one)])
        return {
            split: {name: one.get(name, 0) for name in known} for split, one in by_split.items()
        }


def gather(snapshot: Snapshot) -> Evidence:
    """Reads what the page is made from. What is missing or damaged is left out."""
    return Evidence(
        snapshot=snapshot,
        build=build_facts(snapshot.path),
        statistics=read_statistics(snapshot),
        sample=_sample(snapshot),
    )


def read_statistics(snapshot: Snapshot) -> Mapping[str, Any] | None:
    """The content of the snapshot's statistics; None if it has none."""
    if STATISTICS not in snapshot.manifest.files:
        return None
    try:
        found = json.loads(storage.read_bytes(join(snapshot.path, STATISTICS)))
    except (StorageError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("splits"), dict) else None


def _sample(snapshot: Snapshot) -> Sample:
    features, splits = snapshot.manifest.features, snapshot.manifest.splits
    total = sum(split.num_examples for split in splits.values())
    if not total:
        return Sample(trouble="The snapshot has no records.")
    record_bytes = max(1, sum(split.num_bytes for split in splits.values()) // total)
    most = min(_MAX_RECORDS, _MAX_VALUES // max(1, len(features)), _MAX_BYTES // record_bytes)
    ids: list[str] = []
    names: list[str] = []
    values: dict[str, list[Any]] = {name: [] for name in features}
    rates: dict[str, list[int]] = {}
    try:
        reader = snapshot.reader()
        for name, split in splits.items():
            num = max(_MIN_RECORDS, most * split.num_examples // total)
            if not split.num_examples:
                continue
            rows, own = first_records(snapshot.path, reader, split=name, num=num)
            ids += own
            names += [name] * len(own)
            for feature, column in values_of(rows, reader, features).items():
                values[feature] += column
            for feature, kind in features.items():
                if isinstance(kind, Audio) and f"{feature}/rate" in rows[0]:
                    rates.setdefault(feature, []).extend(int(r[f"{feature}/rate"]) for r in rows)
    except (SnapshardError, ImportError, ValueError, OSError, KeyError) as error:
        reason = storage.redact(str(error))
        return Sample(trouble=f"Its records could not be read: {reason}")
    return Sample(ids=ids, splits=names, values=values, rates=rates)


def is_picture(feature: Feature) -> bool:
    """Whether a feature is an image that can be shown: not a mask."""
    return isinstance(feature, Image) and feature.kind == "image"
