"""Drift: how the schema and the distributions of two snapshots differ, or those of its splits.

Reads manifests and statistics only. Categories are compared by the largest change of a share (the
L-infinity distance): cats from 50 % to 35 % are 0.15. Numbers are compared by the Jensen-Shannon
divergence, in bits, of two histograms over common bins: 0 if they are equal, 1 if they have no bin
in common, 0.045 if a normal distribution moves by half its deviation. Of lists, lengths and sizes
means are compared, of all features the shares of missing values.

A distribution has drifted if its distance is above a threshold, and above what sampling explains:
of 20 records, half may be cats by chance. The latter follows from bounds of tails, which equal data
exceeds in one of 160,000 comparisons.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...schemas.errors import DamagedSnapshotError, RecipeError, SnapshardError
from ...schemas.features import features_to_json
from ...schemas.manifest import Manifest
from ...schemas.naming import STATISTICS, OutputPaths
from ...schemas.visible import human_count, visible
from ...transforms import storage
from ...transforms.examples.statistics import MEDIA_RECORDS
from ..recipe.lock import Thresholds
from ..snapshot import Snapshot, manifest_bytes, read_latest
from .statistics import MAX_TOP

_EXPONENT = 12.0
"""Sampling alone exceeds a limit with a probability of at most exp(-12)."""
_MAX_VALUES = 20
"""Numbers of up to so many different values are compared value by value, others in bins."""
_MEDIA = (
    ("brightness", "channel_means", 64.0),
    ("shares", "shares", 0.25),
    ("level", "level", 6.0),
)
"""What is measured of images (of 8 bits), masks and sounds (in dB), with an assumed deviation."""
_OTHER_FORM = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading edited statistics may raise."""
_CHANGES_TYPE = {"dtype", "kind", "of.dtype", "of.kind", "shape", "storage"}
_NAMES = ("names", "of.names")
"""Settings that hold class names, by dotted names."""
SHOWN = 8
"""A build names so many differences at most."""
_MAX_TEXT = 80
_SHOWN_CLASSES = 3


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
        try:
            statistics = snapshot.statistics
        except (*_OTHER_FORM, RecursionError) as error:
            raise _damaged(error) from None
        manifest = snapshot.manifest
        features = features_to_json(manifest.features)
        return cls(features, manifest.label, manifest.structs, statistics)


def _damaged(error: Exception) -> DamagedSnapshotError:
    return DamagedSnapshotError(
        f"{STATISTICS} is damaged ({type(error).__name__}: {error}). `snapshard verify` shows what "
        "else is; building again with --repair repairs it."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """One difference.

    Attributes:
        feature: The feature; empty if it is one of the snapshot.
        measure: What differs. In the schema "added", "removed", "type", "settings", "classes",
            "label" or "structs"; of a distribution "missing", "not finite", "values", "lengths",
            "heights", "widths", "areas", "shares", "brightness" or "level".
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
    def advice(self) -> str:
        """What to do about it."""
        if self.measure == "classes":
            return "Models do not know them: train again; `snapshard pin` keeps old indexes."
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

    @property
    def exit_code(self) -> int:
        """The command's: 3 if there are differences, as for data that is refused."""
        return 3 if self.differences else 0

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
    if old.manifest.name != new.manifest.name:
        names = f"{old.manifest.name!r} and {new.manifest.name!r}"
        notes.append(f"The snapshots are of two recipes, {names}.")
    differences = compare(sides[0], sides[1])
    return Drift(old=old, new=new, differences=tuple(differences), notes=tuple(notes))


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
    except SnapshardError:
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
    found = _distributions(profile, profile, [(main, other) for other in others], usual_thresholds)
    return Drift(old=None, new=snapshot, differences=tuple(found), notes=())


ThresholdsOf = Callable[[str], Thresholds]
"""The thresholds of a feature."""


def usual_thresholds(feature: str) -> Thresholds:
    """The same for every feature."""
    del feature
    return Thresholds()


def compare(
    old: Profile, new: Profile, thresholds_of: ThresholdsOf = usual_thresholds
) -> list[Difference]:
    """How a snapshot differs from an older one: the schema, and the splits that both have.

    Raises:
        DamagedSnapshotError: if the statistics are not such as a build writes.
    """
    pairs = [(name, name) for name in _splits(new) if name in _splits(old)]
    return [*schema_differences(old, new), *_distributions(old, new, pairs, thresholds_of)]


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


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """The sizes of two samples, and the differences that they explain at most."""

    old: int
    new: int

    @property
    def both(self) -> tuple[int, int]:
        """The old and the new one."""
        return self.old, self.new

    @property
    def variance(self) -> float:
        """That of the difference of two means, if a value has the variance 1."""
        return 1 / self.old + 1 / self.new

    def share(self, old: float, new: float, *, among: int = 1) -> float:
        """Of a share, the one of so many that differs most (Bernstein's inequality)."""
        exponent = _EXPONENT + math.log(among)
        share = (old * self.old + new * self.new) / (self.old + self.new)
        spread = math.sqrt(2 * exponent * share * (1 - share) * self.variance)
        return spread + 2 / 3 * exponent / min(self.old, self.new)

    def mean(self) -> float:
        """Of a mean, in deviations."""
        return math.sqrt(2 * _EXPONENT * self.variance)

    def divergence(self, num_bins: int) -> float:
        """Of the Jensen-Shannon divergence in bits: chi-squared, times ``variance`` / (8 ln 2).

        The tail of chi-squared is bounded as by Laurent and Massart (2000).
        """
        freedom = max(1, num_bins - 1)
        tail = freedom + 2 * math.sqrt(freedom * _EXPONENT) + 2 * _EXPONENT
        return tail * self.variance / (8 * math.log(2))


def _splits(profile: Profile) -> dict[str, Any]:
    """The statistics of the splits, the largest first; none without statistics."""
    if profile.statistics is None:
        return {}
    try:
        splits = profile.statistics["splits"].items()
        return dict(sorted(splits, key=lambda split: -split[1]["num_examples"]))
    except _OTHER_FORM as error:
        raise _damaged(error) from None


def _distributions(
    old: Profile,
    new: Profile,
    pairs: Iterable[tuple[str, str]],
    thresholds_of: ThresholdsOf,
) -> list[Difference]:
    """How the distributions of pairs of splits differ.

    Features of another type are left out, and times: they differ as time goes on.

    Raises:
        DamagedSnapshotError: if the statistics are not such as a build writes.
    """
    pairs = [*pairs]
    found = []
    try:
        for name, feature in old.features.items():
            other = new.features.get(name, {})
            kind = feature["kind"], feature.get("dtype")
            if kind[0] == "timestamp" or kind != (other.get("kind"), other.get("dtype")):
                continue
            for splits in pairs:
                before, after = _splits(old)[splits[0]], _splits(new)[splits[1]]
                compared = _Compared(
                    before["features"][name],
                    after["features"][name],
                    kind=kind,
                    classes={*feature.get("names", ())} & {*other.get("names", ())},
                    sizes=_Sizes(before["num_examples"], after["num_examples"]),
                    thresholds=thresholds_of(name),
                )
                where = tuple(dict.fromkeys(splits))
                found += [
                    Difference(feature=name, splits=where, **change._asdict())
                    for change in compared.changes()
                    if change.distance > change.limit
                ]
    except _OTHER_FORM as error:
        raise _damaged(error) from None
    return found


class _Change(NamedTuple):
    measure: str
    text: str
    before: Any
    after: Any
    distance: float
    limit: float


@dataclasses.dataclass(frozen=True)
class _Compared:
    """The statistics of a feature in two splits."""

    old: Mapping[str, Any]
    new: Mapping[str, Any]
    kind: tuple[str, str | None]
    classes: Set[str]
    """Those that both know: others are a difference of the schema."""
    sizes: _Sizes
    thresholds: Thresholds

    def changes(self) -> Iterator[_Change]:
        """The distances of all that both have, large or not."""
        if not (self.sizes.old and self.sizes.new):
            return
        yield from self._missing()
        if self._both("quantiles"):
            yield from self._numbers()
        elif self._both("top"):
            yield from self._categories()
        elif self._both("mean"):
            yield self._mean("values", self.old, self.new)
        for aspect in ("lengths", "heights", "widths", "areas"):
            if self._both(aspect, "mean"):
                yield self._mean(aspect, self.old[aspect], self.new[aspect])
        yield from self._media()

    def _both(self, *keys: str) -> bool:
        """Whether both have such a figure."""
        for side in (self.old, self.new):
            found: Any = side
            for key in keys:
                found = ({} if found is None else found).get(key)
            if found in (None, [], {}):
                return False
        return True

    def _missing(self) -> Iterator[_Change]:
        for measure, key in (("missing", "num_missing"), ("not finite", "num_non_finite")):
            if not self._both(key):
                continue
            totals = self.sizes.both
            if key == "num_non_finite":
                totals = tuple(max(1, side["count"] + side[key]) for side in (self.old, self.new))
            before, after = self.old[key] / totals[0], self.new[key] / totals[1]
            limit = max(self.thresholds.missing, self.sizes.share(before, after))
            text = _arrow(f"share {measure}", before, after)
            yield _Change(measure, text, before, after, abs(after - before), limit)

    def _categories(self) -> Iterator[_Change]:
        """The share that changed most; one beyond the top may be as large as the last of them."""
        counts = [{str(name): n for name, n in side["top"]} for side in (self.old, self.new)]
        totals = [side["top_of"] for side in (self.old, self.new)]
        if self.kind[0] == "class_label":
            counts = [{c: n for c, n in side.items() if c in self.classes} for side in counts]
            totals = [sum(side.values()) for side in counts]
        if not all(totals):
            return
        sizes = _Sizes(*totals)
        old, new = (
            {name: n / total for name, n in side.items()}
            for side, total in zip(counts, totals, strict=True)
        )
        rest = [min(shares.values()) if len(shares) >= MAX_TOP else 0.0 for shares in (old, new)]
        changes = []
        for name in {**old, **new}:
            before = old.get(name, min(rest[0], new.get(name, 0.0)))
            after = new.get(name, min(rest[1], before))
            noise = sizes.share(before, after, among=len(old) + len(new))
            limit, text = max(self.thresholds.categories, noise), _arrow("share", before, after)
            sides_of = {name: before}, {name: after}
            text = f"{_short(name)}: {text}"
            changes.append(_Change("values", text, *sides_of, abs(after - before), limit))
        yield max(changes, key=lambda change: change.distance - change.limit)

    def _numbers(self) -> Iterator[_Change]:
        sides = self.old, self.new
        counts = [dict(map(tuple, side.get("top", ()))) for side in sides]
        if all(0 < len(values) <= _MAX_VALUES for values in counts):
            either = {**counts[0], **counts[1]}
            bins = [np.array([values.get(key, 0) for key in either]) for values in counts]
            sizes = _Sizes(*(sum(values.values()) for values in counts))
        else:
            bins = _common_bins(*(np.array(side["quantiles"], np.float64) for side in sides))
            sizes = _Sizes(*(sum(side["histogram"]["counts"]) for side in sides))
        limit = max(self.thresholds.numbers, sizes.divergence(len(bins[0])))
        before, after = ({"median": s["quantiles"][5], "mean": s["mean"]} for s in sides)
        text = ", ".join(_arrow(key, before[key], after[key]) for key in before)
        yield _Change("values", text, before, after, jensen_shannon(*bins), limit)

    def _mean(self, aspect: str, old: Mapping[str, float], new: Mapping[str, float]) -> _Change:
        before, after = old["mean"], new["mean"]
        pooled = math.hypot(old["deviation"], new["deviation"]) / math.sqrt(2)
        # Where all values are equal, any other value is far away.
        pooled = max(pooled, 1e-6 * max(abs(before), abs(after)), 1e-300)
        limit = max(self.thresholds.means, self.sizes.mean())
        text = _arrow("mean" if aspect == "values" else f"mean of {aspect}", before, after)
        return _Change(aspect, text, before, after, abs(after - before) / pooled, limit)

    def _media(self) -> Iterator[_Change]:
        """Of the few records whose pixels and sounds are measured."""
        sizes = _Sizes(*(min(size, MEDIA_RECORDS) for size in self.sizes.both))
        limit = max(self.thresholds.means, sizes.mean())
        for measure, key, deviation in _MEDIA:
            if self._both(key):
                old, new = (_figures(side[key]) for side in (self.old, self.new))
                indices = {**old, **new}
                changes = [(index, old.get(index, 0.0), new.get(index, 0.0)) for index in indices]
                index, before, after = max(changes, key=lambda change: abs(change[2] - change[1]))
                deviation *= 257 if self.kind == ("image", "uint16") else 1
                distance = abs(after - before) / deviation
                text = _arrow(f"{measure} {visible(index)}", before, after)
                yield _Change(measure, text, before, after, distance, limit)


def _figures(value: Any) -> dict[str, float]:
    """What was measured of media, by what it is of."""
    if isinstance(value, Mapping):
        return {f"of index {index}": share for index, share in value.items()}
    if isinstance(value, list):
        return {f"of channel {channel}": mean for channel, mean in enumerate(value)}
    return {"in dB": 20 * math.log10(max(value, 1e-6))}


def _common_bins(
    old: npt.NDArray[np.float64], new: npt.NDArray[np.float64]
) -> list[npt.NDArray[np.float64]]:
    """The shares of two samples of numbers in common bins, from their deciles.

    The bins end halfway between a decile of one and that of the other, so that each has about a
    tenth of the values. Up to the third decile are 30 % of a sample, and between two of them a part
    as on a straight line. But if many values are equal, such as 35 % zeros, up to them may be any
    share from 30 % to 40 %: then one that fits both is taken.
    """
    edges = np.unique(old[1:-1] / 2 + new[1:-1] / 2)
    frequent = np.concatenate([deciles[1:][np.diff(deciles) == 0] for deciles in (old, new)])
    bounds = [_shares_up_to(edges, deciles, frequent) for deciles in (old, new)]
    low, high = np.maximum(*(low for low, _ in bounds)), np.minimum(*(high for _, high in bounds))
    shares = [np.maximum.accumulate(np.clip((low + high) / 2, *bound)) for bound in bounds]
    return [np.diff(share, prepend=0.0, append=1.0) for share in shares]


def _shares_up_to(
    edges: npt.NDArray[np.float64],
    deciles: npt.NDArray[np.float64],
    frequent: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The smallest and the largest share of values up to each edge."""
    last = len(deciles) - 1
    place = np.searchsorted(deciles, edges, side="right") - 1
    ends = [np.clip(place + k, 0, last) for k in (0, 1)]
    is_known = ~np.isin(deciles[ends[0]], frequent) & ~np.isin(deciles[ends[1]], frequent)
    start, stop = (deciles[end] for end in ends)
    part = (edges - start) / np.where(stop > start, stop - start, 1.0)
    between = (ends[0] + np.clip(part, 0, 1) * (ends[1] - ends[0])) / last
    low, high = (np.where(is_known, between, end / last) for end in ends)
    return low, high


def jensen_shannon(old: npt.NDArray[np.float64], new: npt.NDArray[np.float64]) -> float:
    """The divergence of two histograms, in bits.

    >>> jensen_shannon(np.array([1, 1]), np.array([2, 2]))
    0.0
    >>> jensen_shannon(np.array([1, 0]), np.array([0, 1]))
    1.0
    """
    p, q = old / old.sum(), new / new.sum()
    middle = (p + q) / 2
    parts = [side[side > 0] * np.log2(side[side > 0] / middle[side > 0]) for side in (p, q)]
    return float(sum(part.sum() for part in parts) / 2)


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


def _arrow(what: str, before: float, after: float) -> str:
    """A change for people.

    >>> _arrow("mean", 4.5, 45000.25)
    'mean 4.5 → 4.5e+04'
    """
    return f"{what} {before:,.4g} → {after:,.4g}"
