"""What is known of a snapshot: its manifest, statistics and build, and the first records of splits.

Records are stored in random order, so the first of each split are a random sample of it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....schemas.errors import SnapshardError
from ....schemas.features import Audio, ClassLabel, Feature, Image, features_to_json, item_class
from ....transforms import storage
from ...records import Record, value_of
from ...snapshot import Snapshot, build_facts
from ..drift import Profile

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
        statistics: Features by split; None without them.
        sample: Its first records.
        no_statistics: Why there are none.
    """

    snapshot: Snapshot
    build: Mapping[str, Any]
    statistics: Mapping[str, Any] | None
    sample: Sample
    no_statistics: str = "The snapshot was built by an older version. Build it again."

    @property
    def why_no_statistics(self) -> str:
        """Why there are no statistics; empty if there are."""
        return self.no_statistics if self.statistics is None else ""

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

    @property
    def profile(self) -> Profile:
        """What drift compares of it."""
        structs = self.snapshot.manifest.structs
        return Profile(features_to_json(self.features), self.label, structs, self.statistics)

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

    def class_counts(self) -> tuple[str, dict[str, dict[str, int]]]:
        """Of what classes are counted, and how many by split: those of boxes without a label."""
        if counts := self.label_counts():
            return "records", counts
        for name, feature in self.features.items():
            if (item := item_class(feature)) is None:
                continue
            tops = {s: dict(map(tuple, self.stats(s, name).get("top", ()))) for s in self.splits}
            if any(tops.values()):
                return f"values of {name}", {
                    split: {one: counts.get(one, 0) for one in item.names}
                    for split, counts in tops.items()
                }
        return "", {}


def gather(snapshot: Snapshot) -> Evidence:
    """Reads what the page is made from. What is missing or damaged is left out."""
    evidence = Evidence(
        snapshot=snapshot,
        build=build_facts(snapshot.path),
        statistics=None,
        sample=_sample(snapshot),
    )
    try:
        return dataclasses.replace(evidence, statistics=snapshot.statistics)
    except SnapshardError as error:
        return dataclasses.replace(evidence, no_statistics=storage.redact(str(error)))


def _sample(snapshot: Snapshot) -> Sample:
    features = snapshot.manifest.features
    records: list[Record] = []
    names: list[str] = []
    try:
        left = _MAX_BYTES
        for name, num in sample_sizes(snapshot).items():
            for record in snapshot.records(name, num=num) if left > 0 else ():
                records.append(record)
                names.append(name)
                left -= sum(map(_num_bytes, record.values.values()))
                if left <= 0:
                    break
    except (SnapshardError, ValueError, OSError) as error:
        return Sample(trouble=f"Its records could not be read: {storage.redact(str(error))}")
    return Sample(
        ids=[record.record_id for record in records],
        splits=names,
        values={
            name: [value_of(record, name, feature) for record in records]
            for name, feature in features.items()
        },
        rates={
            name: [int(record.values[f"{name}/rate"]) for record in records]
            for name, feature in features.items()
            if isinstance(feature, Audio) and records and f"{name}/rate" in records[0].values
        },
    )


def _num_bytes(value: Any) -> int:
    return int(value.nbytes) if isinstance(value, np.ndarray) else sys.getsizeof(value)


def sample_sizes(snapshot: Snapshot) -> dict[str, int]:
    """How many records of each split are read."""
    splits = snapshot.manifest.splits
    total = sum(split.num_examples for split in splits.values()) or 1
    record_bytes = max(1, sum(split.num_bytes for split in splits.values()) // total)
    num_features = max(1, len(snapshot.manifest.features))
    most = min(_MAX_RECORDS, _MAX_VALUES // num_features, _MAX_BYTES // record_bytes)
    return {
        name: min(split.num_examples, max(_MIN_RECORDS, most * split.num_examples // total))
        for name, split in splits.items()
    }


def expected_seconds(snapshot: Snapshot) -> float:
    """About how long the page takes, processor time in a process that has not made one before.

    Measured: 0.2 s to load and compile the templates, and the rest for each value, image, sound,
    chart and reject.
    """
    features = snapshot.manifest.features
    num_records = sum(sample_sizes(snapshot).values())
    num_images = num_records * sum(map(is_picture, features.values()))
    num_sounds = num_records * sum(isinstance(feature, Audio) for feature in features.values())
    return (
        0.2
        + 18e-6 * num_records * len(features)
        + 1.5e-3 * num_images
        + 4e-3 * num_sounds
        + 2e-3 * min(len(features), 300)  # of columns as they were read, too
        + 20e-6 * min(snapshot.manifest.num_rejects, 20_000)
    )


def is_picture(feature: Feature) -> bool:
    """Whether a feature is an image that can be shown: not a mask."""
    return isinstance(feature, Image) and feature.kind == "image"
