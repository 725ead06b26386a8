"""Drift: how the schema and the distributions of two snapshots differ, or those of its splits.

Reads manifests and statistics only. ``distances`` says how distributions are compared.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...schemas.errors import RecipeError, SnapshardError
from ...schemas.features import features_to_json
from ...schemas.manifest import Manifest
from ...schemas.naming import STATISTICS, OutputPaths
from ...schemas.visible import human_count, visible
from ...transforms import storage
from ..frame import OTHER_FORM, damaged_statistics
from ..recipe.lock import Thresholds
from ..snapshot import Snapshot, manifest_bytes, read_latest
from .distances import Comparison, Sizes

_CHANGES_TYPE = {"dtype", "kind", "of.dtype", "of.kind", "shape", "storage"}
_NAMES = ("names", "of.names")
"""Settings that hold class names, by dotted names."""
SHOWN = 8
"""A build names so many differences at most."""
_MAX_TEXT = 80
_SHOWN_CLASSES = 3
_OF_SPLITS = Thresholds(categories=0.05, numbers=0.01)
"""Splits of one snapshot are alike, unless their records were divided by something else."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """What is compared of a snapshot.

    Attributes:
        features: Its features, as plain JSON.
        label: The feature to predict.
        structs: Its structs.
        statistics: The content of ``statistics.json``; None without it.
    """

    features: Mapping[str, Any]
    label: str | None
    structs: Sequence[str]
    statistics: Mapping[str, Any] | None

    @classmethod
    def of(cls, snapshot: Snapshot) -> Profile:
        """The profile of a published snapshot.

        Raises:
            DamagedSnapshotError: if its statistics are no JSON object.
            StorageError: if they cannot be read.
        """
        manifest = snapshot.manifest
        features = features_to_json(manifest.features)
        return cls(features, manifest.label, manifest.structs, snapshot.statistics)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """One difference.

    Attributes:
        feature: The feature; empty if it is one of the snapshot.
        measure: What differs: of the schema "added", "removed", "type", "settings", "classes",
            "label" or "structs", of a distribution what ``distances.Change`` names.
        splits: The split, or the two that are compared with each other; none for the schema.
        before: What it was, as plain JSON.
        after: What it is.
        text: The change in a line, such as "median 4.5 → 45".
        distance: How far the distributions are apart; None for the schema.
        limit: The distance from which on they count as different.
    """

    feature: str
    measure: str
    splits: tuple[str, ...] = ()
    before: Any
    after: Any
    text: str
    distance: float | None = None
    limit: float | None = None

    @property
    def excess(self) -> float:
        """How many times as far the distributions are apart as is allowed."""
        return (self.distance or 0.0) / (self.limit or 1.0)

    @property
    def appends_classes(self) -> bool:
        """Whether there are more classes, and those that there were have the same indexes."""
        return self.measure == "classes" and {*self.before.values()} == {None}

    @property
    def advice(self) -> str:
        """What to do about it."""
        if self.appends_classes:
            return "Models that were trained before do not know them: train again."
        if self.measure == "classes":
            return (
                "Models that were trained before name the wrong classes: train again; or keep the "
                "old indexes: pin the snapshot before (snapshard pin RECIPE --out ITS_FOLDER), and "
                "build again."
            )
        if self.distance is None:
            return "Models that expect the old schema may fail: correct the data, or train again."
        return "Look for another unit, source or filter; if the data is right, train again."

    def to_json(self) -> dict[str, Any]:
        """The difference as plain JSON."""
        return {**dataclasses.asdict(self), "splits": list(self.splits), "advice": self.advice}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drift:
    """What differs between two snapshots, or between the splits of one.

    Attributes:
        old: The snapshot to compare with; None if splits are compared.
        new: The snapshot.
        differences: What differs: the schema first.
        notes: What could not be compared, for people.
    """

    old: Snapshot | None
    new: Snapshot
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The differences as plain JSON."""
        sides = {"old": self.old, "new": self.new}
        return {
            **{
                name: side and {"path": side.path, "fingerprint": side.manifest.fingerprint}
                for name, side in sides.items()
            },
            "drifted": bool(self.differences),
            "differences": [difference.to_json() for difference in self.differences],
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """The differences for people, each with what to do."""
        for name, side in (("old", self.old), ("new", self.new)):
            if side is not None:
                yield f"{name} {side.manifest.fingerprint}  {side.path}"
        for note in self.notes:
            yield f"note: {note}"
        advice = ""
        for difference, line in difference_lines(self.differences):
            if advice not in ("", difference.advice):
                yield f"  {advice}"
            yield line
            advice = difference.advice
        yield f"  {advice}" if advice else "no drift"


def drift(old: Snapshot, new: Snapshot) -> Drift:
    """How a snapshot differs from an older one.

    Raises:
        DamagedSnapshotError: if the statistics of one are damaged.
        StorageError: if they cannot be read.
    """
    sides = [Profile.of(snapshot) for snapshot in (old, new)]
    notes = [
        f"{snapshot.path} was built by an older version, without {STATISTICS}: only the schema was "
        "compared. Build it again to compare distributions."
        for snapshot, side in zip((old, new), sides, strict=True)
        if side.statistics is None
    ]
    differences = tuple(compare(sides[0], sides[1]))
    return Drift(old=old, new=new, differences=differences, notes=tuple(notes))


def drift_warnings(new: Snapshot, out: OutputPaths) -> Iterator[str]:
    """What to warn of before a snapshot becomes the latest: how it differs from the one that is.

    A latest snapshot that is missing, damaged or of an older version is no reason to fail.
    """
    try:
        latest = read_latest(out.latest) if storage.exists(out.latest) else ""
        if latest in ("", new.manifest.fingerprint):
            return
        folder = out.snapshot(latest)
        old = Snapshot(folder, Manifest.from_bytes(manifest_bytes(folder), where=folder))
        found = drift(old, new)
    except SnapshardError as error:
        yield f"drift since the latest snapshot is not known: {storage.redact(str(error))}"
        return
    lines = [*difference_lines(found.differences)]
    for difference, line in lines[:SHOWN]:
        yield f"drift since {latest}: {line}. {difference.advice}"
    if len(lines) > SHOWN:
        yield (
            f"drift since {latest}: {human_count(len(lines) - SHOWN, 'more differences')}: "
            f"snapshard drift {shlex.quote(old.path)} {shlex.quote(new.path)}"
        )


def drift_of_splits(snapshot: Snapshot) -> Drift:
    """How the splits of a snapshot differ from train, or from the largest one.

    Raises:
        RecipeError: if it has no statistics, or a single split.
        DamagedSnapshotError: if its statistics are damaged.
        StorageError: if they cannot be read.
    """
    profile = Profile.of(snapshot)
    if profile.statistics is None:
        raise RecipeError(
            f"{snapshot.path} was built by an older version, without {STATISTICS}. Build it again."
        )
    sizes = {name: split.num_examples for name, split in snapshot.manifest.splits.items()}
    main = snapshot.main_split
    others = [name for name, size in sizes.items() if size and name != main]
    if not others:
        raise RecipeError(
            f"{snapshot.path} has examples in the split {main!r} only, and nothing to compare them "
            "with. Name an older snapshot: snapshard drift OLD NEW."
        )
    differences = tuple(split_differences(profile, main, others))
    return Drift(old=None, new=snapshot, differences=differences, notes=())


def split_differences(profile: Profile, main: str, others: Sequence[str]) -> list[Difference]:
    """How the distributions of other splits differ from those of a main one.

    A column that has one value in each split is left out: it divides them.

    Raises:
        DamagedSnapshotError: if the statistics are not such as a build writes.
    """
    splits = _splits(profile)
    try:
        varying = {
            name: feature
            for name, feature in profile.features.items()
            if any(
                splits[split]["features"][name].get("distinct", {}).get("count") != 1
                for split in (main, *others)
            )
        }
    except OTHER_FORM as error:
        raise damaged_statistics(error) from None
    pairs = [(main, other) for other in others]
    profile = dataclasses.replace(profile, features=varying)
    return _distributions(profile, profile, pairs, lambda _: _OF_SPLITS)


ThresholdsOf = Callable[[str], Thresholds]
"""The thresholds of a feature."""


def compare(
    old: Profile, new: Profile, thresholds_of: ThresholdsOf | None = None
) -> list[Difference]:
    """How a snapshot differs from an older one: the schema, and the splits that both have.

    Raises:
        DamagedSnapshotError: if the statistics are not such as a build writes.
    """
    names = [[*_splits(side)] for side in (old, new)]
    pairs = [(name, name) for name in names[1] if name in names[0]]
    found = schema_differences(old, new)
    if all(names) and not pairs:
        text = f"splits {_short(names[0])} → {_short(names[1])}: no distributions to compare"
        found.append(_schema("", "splits", names[0], names[1], text))
    return [*found, *_distributions(old, new, pairs, thresholds_of)]


def schema_differences(old: Profile, new: Profile) -> list[Difference]:
    """How two schemas differ."""
    found: list[Difference] = []
    for name in sorted({*old.features, *new.features}, key=str.encode):
        before, after = old.features.get(name), new.features.get(name)
        if before is None:
            found.append(_schema(name, "added", None, after, f"added: {_short(after)}"))
        elif after is None:
            found.append(_schema(name, "removed", before, None, f"removed: {_short(before)}"))
        elif before != after:
            found += _feature_differences(name, before, after)
    for what in ("label", "structs"):
        before, after = (getattr(profile, what) for profile in (old, new))
        if before != after:
            text = f"{what} {_short(before)} → {_short(after)}"
            found.append(_schema("", what, before, after, text))
    return found


def _feature_differences(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Difference]:
    old, new = _flat(before), _flat(after)
    classes = [[flat.pop(key, None) for key in _NAMES] for flat in (old, new)]
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if changed:
        measure = "settings" if _CHANGES_TYPE.isdisjoint(changed) else "type"
        text = ", ".join(f"{k} {_short(old.get(k))} → {_short(new.get(k))}" for k in changed)
        yield _schema(name, measure, before, after, text)
    for names, others in zip(*classes, strict=True):
        if names is not None and others is not None and names != others:
            yield _class_difference(name, names, others)


def _class_difference(feature: str, old: Sequence[str], new: Sequence[str]) -> Difference:
    """Classes that have another index now, or none."""
    places = [{name: place for place, name in enumerate(names)} for names in (old, new)]
    changed = [n for n in {**places[0], **places[1]} if places[0].get(n) != places[1].get(n)]
    before, after = ({name: side.get(name) for name in changed} for side in places)
    kinds: dict[str, list[str]] = {"added": [], "removed": [], "moved": []}
    for name in changed:
        is_kept = name in places[0], name in places[1]
        kind = "moved" if all(is_kept) else "removed" if is_kept[0] else "added"
        ends = " → ".join(str(place) for place in (before[name], after[name]) if place is not None)
        kinds[kind].append(f"{visible(name)} ({ends})")
    texts = [
        f"{kind} {', '.join(names[:_SHOWN_CLASSES])}"
        + (f" and {more:,} more" if (more := len(names) - _SHOWN_CLASSES) > 0 else "")
        for kind, names in kinds.items()
        if names
    ]
    return _schema(feature, "classes", before, after, f"classes (index) {'; '.join(texts)}")


def _schema(feature: str, measure: str, before: Any, after: Any, text: str) -> Difference:
    return Difference(feature=feature, measure=measure, before=before, after=after, text=text)


def _flat(feature: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a feature by dotted names.

    >>> _flat({"kind": "sequence", "of": {"dtype": "int64"}})
    {'kind': 'sequence', 'of.dtype': 'int64'}
    """
    flat: dict[str, Any] = {}
    for key, value in feature.items():
        inner = _flat(value) if isinstance(value, Mapping) else {}
        flat |= {f"{key}.{k}": v for k, v in inner.items()} or {key: value}
    return flat


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        settings = {"kind": "", **_flat(value)}.items()
        shown = ", ".join(f"{k} {v}" for k, v in settings if v not in (None, False))
    else:
        shown = "none" if value is None or value == [] else str(value)
    shown = visible(shown)
    return shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]} …"


def _splits(profile: Profile) -> dict[str, Any]:
    """The statistics of the splits, the largest first; none without statistics."""
    if profile.statistics is None:
        return {}
    try:
        splits = profile.statistics["splits"].items()
        return dict(sorted(splits, key=lambda split: -split[1]["num_examples"]))
    except OTHER_FORM as error:
        raise damaged_statistics(error) from None


def _distributions(
    old: Profile,
    new: Profile,
    pairs: Sequence[tuple[str, str]],
    thresholds_of: ThresholdsOf | None = None,
) -> list[Difference]:
    """How the distributions of pairs of splits differ.

    Features of another type are left out, and of times all but gaps: they differ as time goes on.

    Raises:
        DamagedSnapshotError: if the statistics are not such as a build writes.
    """
    found, sides = [], (_splits(old), _splits(new))
    try:
        for name, feature in old.features.items():
            other = new.features.get(name, {})
            kind = feature["kind"], feature.get("dtype")
            if kind != (other.get("kind"), other.get("dtype")):
                continue
            for pair in pairs:
                before, after = (side[split] for side, split in zip(sides, pair, strict=True))
                comparison = Comparison(
                    before["features"][name],
                    after["features"][name],
                    kind=kind,
                    classes={*feature.get("names", ())} & {*other.get("names", ())},
                    sizes=Sizes(before["num_examples"], after["num_examples"]),
                    thresholds=Thresholds() if thresholds_of is None else thresholds_of(name),
                )
                where = tuple(dict.fromkeys(pair))
                found += [
                    Difference(feature=name, splits=where, **change._asdict())
                    for change in comparison.changes()
                    if change.distance > change.limit
                    and (kind[0] != "timestamp" or change.measure == "missing")
                ]
    except OTHER_FORM as error:
        raise damaged_statistics(error) from None
    return found


def difference_lines(differences: Sequence[Difference]) -> Iterator[tuple[Difference, str]]:
    """A line for each difference; what several splits of both snapshots share is one."""
    shared: dict[tuple[object, ...], list[Difference]] = {}
    for difference in differences:
        pair = difference.splits if len(difference.splits) == 2 else ()
        shared.setdefault((difference.feature, difference.measure, pair), []).append(difference)
    for first, *others in shared.values():
        where = " → ".join(first.splits)
        if others:
            where += f" (and {', '.join(split for other in others for split in other.splits)})"
        place = ", ".join(filter(None, (visible(first.feature), where)))
        text = first.text
        if first.distance is not None:
            text += f" (distance {first.distance:.3g}, allowed {first.limit:.3g})"
        yield first, f"{place}: {text}" if place else text
