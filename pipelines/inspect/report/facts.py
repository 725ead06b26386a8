"""What the page shows, as plain data: tables, charts and pictures of one snapshot."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ....schemas.errors import SnapshardError
from ....schemas.features import (
    Audio,
    ClassLabel,
    Feature,
    Image,
    Timestamp,
    describe,
    features_from_json,
    frames_of,
    is_optional,
    item_class,
)
from ....schemas.manifest import SplitEntry
from ....schemas.naming import REJECTS
from ....schemas.steps import STEPS
from ....schemas.visible import human_bytes, human_count, human_number, shorten
from ...display import plain
from ...frame import RAW
from ..rejects import RejectFilter, RejectsFile
from .charts import Bars, Histogram, bars, histogram, percentage
from .evidence import Evidence
from .findings import Finding, find_all
from .odd_images import OddImage
from .pictures import (
    Album,
    Picture,
    Sheet,
    first_looked_at,
    is_shown,
    opened,
    picture_of,
    sheets,
)

_TEXT = 80
"""Characters that are shown of a value."""
_MAX_REJECTS_READ = 20_000
_REJECTS_SHOWN = 4
_SHARD_BARS = 200
_SPANS = {"lengths": "length", "heights": "height", "widths": "width", "rates": "rate (Hz)"}
_DRAWN = _SPANS | {
    "brightness": "mean of an image's pixels",
    "levels": "root mean square of a sound",
    "areas": "area of a box, as a share of the image",
}
"""What charts show of features that are not single numbers."""
_TELLING = 0.1
"""The most frequent values are drawn if they make up this part of the records."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a page shows; a page that is too long is made again with half of it."""

    charts: int = 300
    """Features that have a chart."""
    values: int = 12
    """Values that a chart of categories names."""
    listed: int = 10_000
    """Features that are listed."""
    classes: int = 1_000
    columns: int = 40
    """Features in the table of first rows."""
    rows: int = 8
    picture_bytes: int = 1_100_000

    def halved(self) -> Limits:
        """Half of everything."""
        return Limits(**{key: value // 2 for key, value in dataclasses.asdict(self).items()})


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureFacts:
    """One feature: its type, gaps and chart."""

    name: str
    type: str
    is_label: bool = False
    missing: str
    """The share of records without a value, and how many."""
    missing_by_split: Sequence[tuple[str, str]] = ()
    numbers: Sequence[tuple[str, str]]
    """Statistics of all splits together."""
    charts: Sequence[Histogram | Bars]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reason:
    """The rejects of one reason."""

    stage: str
    reason: str
    num_rejects: int
    examples: Sequence[tuple[str, str, str, Picture | None]]
    """Ids, messages, contents as text, and contents as pictures."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the page shows of one snapshot."""

    name: str
    fingerprint: str
    limit: int | None
    summary: str
    card: Sequence[tuple[str, str]]
    reading: str
    findings: Sequence[tuple[Finding, Sequence[tuple[Picture, Picture]]]]
    splits: Sequence[tuple[str, ...]]
    sizes: Bars | None
    shards: Sequence[tuple[str, str, str]]
    """Of each split: its name, the outline of its shards' sizes, and these in words."""
    classes: Sequence[tuple[str, ...]]
    class_unit: str
    """Of what classes are counted: records, or values of a feature."""
    class_splits: Sequence[str]
    num_classes: int
    rarest: str
    features: Sequence[FeatureFacts]
    """Those with a chart."""
    listed: Sequence[tuple[str, str, str]]
    """Name, type and missing values of all others."""
    num_features: int
    raw: Sequence[FeatureFacts]
    """Columns as they were read, if steps change them."""
    num_raw: int
    no_statistics: str
    """Why there are no statistics, if so."""
    trouble: str
    """Why no records are shown, if so."""
    sheets: Sequence[tuple[str, bool, Sequence[Sheet]]]
    """Of each image and sound: its name, whether it is a sound, its contact sheets."""
    columns: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    num_rejects: int
    reasons: Sequence[Reason]
    rejects_note: str
    steps: Bars | None


def facts_of(evidence: Evidence, limits: Limits) -> Facts:
    """Prepares what a page shows of a snapshot."""
    manifest, album = evidence.snapshot.manifest, Album(limits.picture_bytes)
    findings = [(one, _pairs(evidence, album, one.images)) for one in find_all(evidence)]
    reasons, rejects_note = _rejects(evidence, album)
    media = [
        (name, isinstance(feature, Audio), sheets(evidence, album, name))
        for name, feature in evidence.features.items()
        if len(evidence.sample) and is_shown(feature)
    ]
    class_unit, classes, class_splits, rarest = _classes(evidence)
    raw = _raw_columns(evidence)
    drawn, others = _chosen(evidence, limits.charts)
    return Facts(
        name=manifest.name,
        fingerprint=manifest.fingerprint,
        limit=manifest.limit,
        summary=_summary(evidence),
        card=_card(evidence),
        reading=_reading(evidence),
        findings=findings,
        splits=_splits(evidence),
        sizes=bars(
            [("", {name: evidence.num_examples(name) for name in evidence.splits}, None)], most=50
        ),
        shards=[_shards(name, manifest.splits[name]) for name in evidence.splits],
        classes=classes[: limits.classes],
        class_unit=class_unit,
        class_splits=class_splits,
        num_classes=len(classes),
        rarest=rarest,
        features=[_feature(evidence, name, limits.values) for name in drawn],
        listed=[_line(evidence, name) for name in others[: limits.listed]],
        num_features=len(evidence.features),
        raw=[_raw_column(evidence, *column, limits.values) for column in raw[: limits.charts]],
        num_raw=len(raw),
        no_statistics=evidence.why_no_statistics,
        trouble=evidence.sample.trouble,
        sheets=media,
        **_first_rows(evidence, limits),
        num_rejects=manifest.num_rejects,
        reasons=reasons,
        rejects_note=rejects_note,
        steps=bars([("", _seconds(evidence), None)], most=20),
    )


def _seconds(evidence: Evidence) -> dict[str, float]:
    """How long each step took, in their order."""
    seconds: dict[str, float] = evidence.build.get("seconds", {})
    return {step: seconds[step] for step in STEPS if step in seconds}


def _pairs(
    evidence: Evidence, album: Album, odd: Sequence[OddImage]
) -> list[tuple[Picture, Picture]]:
    """Each odd image or sound beside the one that it resembles."""
    name = first_looked_at(evidence.features) or ""
    pairs = []
    for one in odd:
        shown = [picture_of(evidence, album, name, row) for row in (one.row, one.neighbour)]
        if shown[0] is not None and shown[1] is not None:
            pairs.append((shown[0], shown[1]))
    return pairs


def _summary(evidence: Evidence) -> str:
    splits = evidence.snapshot.manifest.splits.values()
    parts = [
        human_count(evidence.total, "examples"),
        human_count(len(splits), "splits"),
        human_count(len(evidence.features), "features"),
        human_bytes(sum(split.num_bytes for split in splits)),
    ]
    if evidence.snapshot.manifest.num_rejects:
        parts.append(human_count(evidence.snapshot.manifest.num_rejects, "rejects"))
    return " · ".join(parts)


def _card(evidence: Evidence) -> list[tuple[str, str]]:
    manifest, build = evidence.snapshot.manifest, evidence.build
    metadata, source = build.get("metadata", {}), build.get("input", {})
    steps = build.get("fingerprint_details", {}).get("steps", [])
    places = source.get("source")
    lines = {
        "description": metadata.get("description", ""),
        "version": metadata.get("version", ""),
        "license": metadata.get("license", ""),
        "citation": metadata.get("citation", ""),
        "tags": ", ".join(metadata.get("tags", [])),
        "source": "; ".join(f"{k}: {v}" for k, v in places.items())
        if isinstance(places, dict)
        else str(places or ""),
        "input": (
            f"{human_count(source['files'], 'files')}, {human_bytes(source['bytes'])}"
            if "files" in source
            else ""
        ),
        "recipe": manifest.name,
        "steps": " → ".join(_step(step) for step in steps),
        "label": manifest.label or "none",
        "built": build.get("started", ""),
        "engine": build.get("runner", ""),
        "fingerprint": manifest.fingerprint,
        "seed": str(manifest.seed),
        "compression": manifest.compression,
        "files": human_count(len(manifest.files), "files")
        + ", "
        + human_bytes(sum(entry.bytes for entry in manifest.files.values())),
        "filtered": f"{manifest.num_filtered:,} records dropped by steps"
        if manifest.num_filtered
        else "",
        "excluded": f"{manifest.excluded.num_ids:,} ids" if manifest.excluded else "",
        "written with": ", ".join(f"{name} {v}" for name, v in manifest.versions.items()),
    }
    return [(name, shorten(text, 1000)) for name, text in lines.items() if text]


def _step(step: Mapping[str, Any]) -> str:
    settings = dict(step.get("settings", {}))
    name = settings.pop("step", step.get("name", "?"))
    given = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return shorten(f"{name}({given})", 200)


def _reading(evidence: Evidence) -> str:
    """The lines that load the snapshot."""
    label = ", as_supervised=True" if evidence.label else ""
    split = evidence.snapshot.main_split
    return (
        "import snapshard as ss\n\n"
        f"reader = ss.load({evidence.snapshot.path!r}).reader()\n"
        f'train = reader.dataset("{split}", batch_size=128{label})\n\n'
        "# or, with TensorFlow alone:\n"
        "import sys\n\n"
        f"sys.path.insert(0, {evidence.snapshot.path!r})\n"
        "import reader"
    )


def _splits(evidence: Evidence) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name in evidence.splits:
        split = evidence.snapshot.manifest.splits[name]
        share = split.num_examples / max(1, evidence.total)
        rows.append(
            (
                name,
                f"{split.num_examples:,}",
                percentage(share),
                f"{len(split.shards):,}",
                human_bytes(split.num_bytes),
            )
        )
    return rows


def _shards(name: str, split: SplitEntry) -> tuple[str, str, str]:
    """The sizes of a split's shards: title, outline and text."""
    sizes = [shard.num_bytes for shard in split.shards]
    if not sizes:
        return name, "", "no shards"
    # Of many shards, each bar is the mean of some.
    parts = np.array_split(np.array(sizes, float), min(len(sizes), _SHARD_BARS))
    means = [float(part.mean()) for part in parts]
    wide, highest = min(24.0, 400 / len(means)), max(means)
    outline = "".join(
        f"M{number * wide:.1f} 30v-{28 * mean / highest:.1f}h{max(wide - 1, 0.8):.1f}V30z"
        for number, mean in enumerate(means)
    )
    span = " to ".join(dict.fromkeys(human_bytes(size) for size in (min(sizes), max(sizes))))
    return name, outline, f"{human_count(len(sizes), 'shards')} of {span}"


def _classes(evidence: Evidence) -> tuple[str, list[tuple[str, ...]], list[str], str]:
    """What is counted; rows of classes, the most frequent first; splits; the rarest in words."""
    unit, counts = evidence.class_counts()
    if not counts:
        return "", [], [], ""
    splits = list(counts)
    totals = {name: sum(one[name] for one in counts.values()) for name in counts[splits[0]]}
    whole = sum(totals.values()) or 1
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    most = max(totals.values()) or 1
    rows = [
        (
            name,
            *(f"{counts[split][name]:,}" for split in splits),
            f"{totals[name]:,}",
            percentage(totals[name] / whole),
            f"{100 * totals[name] / most:.1f}",
        )
        for name in ordered
    ]
    rarest = ", ".join(f"{shorten(name, 40)} ({totals[name]:,})" for name in ordered[::-1][:3])
    return unit, rows, splits, rarest


def _chosen(evidence: Evidence, most: int) -> tuple[list[str], list[str]]:
    """The features that have a chart, and the others: the label first, then in their order."""
    names = sorted(evidence.features, key=lambda name: name != evidence.label)
    if evidence.statistics is None:
        return [], names
    return names[:most], names[most:]


def _missing(evidence: Evidence, name: str) -> str:
    return _missing_of(evidence.features[name], evidence.num_missing(name), evidence.total)


def _missing_of(feature: Feature, num: int, total: int) -> str:
    if not is_optional(feature):
        return "none missing"
    return f"{percentage(num / max(1, total))} missing ({num:,} of {total:,})"


def _line(evidence: Evidence, name: str) -> tuple[str, str, str]:
    return name, describe(evidence.features[name]), _missing(evidence, name)


def _feature(evidence: Evidence, name: str, num_values: int) -> FeatureFacts:
    series = [(split, stats) for split in evidence.splits if (stats := evidence.stats(split, name))]
    gaps = []
    if evidence.num_missing(name):
        for split, stats in series:
            share = stats.get("num_missing", 0) / max(1, evidence.num_examples(split))
            gaps.append((split, percentage(share)))
    facts = _column(name, evidence.features[name], series, num_values, _missing(evidence, name))
    return dataclasses.replace(facts, is_label=name == evidence.label, missing_by_split=gaps)


def _column(
    name: str,
    feature: Feature,
    series: Sequence[tuple[str, Mapping[str, Any]]],
    num_values: int,
    missing: str,
) -> FeatureFacts:
    return FeatureFacts(
        name=name,
        type=describe(feature),
        missing=missing,
        numbers=_numbers_of(series, feature),
        charts=_charts(series, feature, num_values),
    )


def _raw_columns(evidence: Evidence) -> list[tuple[str, Feature]]:
    """The columns as they were read; none if no step changes them."""
    measured = (evidence.statistics or {}).get(RAW, {"features": {}})["features"]
    parts = evidence.build.get("fingerprint_parts", {}).get("prepare", {})
    columns = features_from_json(parts.get("raw", {})).items()
    return [(name, feature) for name, feature in columns if name in measured]


def _raw_column(evidence: Evidence, name: str, feature: Feature, num_values: int) -> FeatureFacts:
    raw = (evidence.statistics or {})[RAW]
    facts: Mapping[str, Any] = raw["features"][name]
    missing = _missing_of(feature, facts["num_missing"], raw["num_records"])
    return _column(name, feature, [("", facts)], num_values, missing)


def _charts(
    series: Sequence[tuple[str, Mapping[str, Any]]], feature: Feature, num_values: int
) -> list[Histogram | Bars]:
    """The chart of a feature's values, or those of what varies besides them."""
    tops = []
    for split, stats in series:
        if values := {str(value): float(number) for value, number in stats.get("top", [])}:
            tops.append((split, values, stats.get("top_of", 0)))
    if sum(sum(values.values()) for _, values, _ in tops) < _TELLING * sum(num for *_, num in tops):
        tops = []  # each of them is rare
    numeric = not isinstance(feature, ClassLabel) and any(
        stats.get("histogram", {}).get("counts") for _, stats in series
    )
    few = all(len(values) <= 12 for _, values, _ in tops)
    if tops and (few or not numeric):
        order = float if numeric else None
        drawn: list[Histogram | Bars | None] = [bars(tops, most=num_values, order=order)]
    elif isinstance(feature, Timestamp) and numeric:
        edges = next(stats["histogram"]["edges"] for _, stats in series if "histogram" in stats)
        first, last = (_value(edges[place], feature)[:10] for place in (0, -1))
        length = 10 if first != last else 19  # a date, or with its time
        drawn = [histogram(series, show=lambda number: _value(number, feature)[:length])]
    elif numeric:
        drawn = [histogram(series)]
    else:
        shares = [
            (split, {_class_name(feature, key): value for key, value in stats["shares"].items()})
            for split, stats in series
            if stats.get("shares")
        ]
        drawn = [bars([(t, v, sum(v.values())) for t, v in shares], most=num_values)]
        for aspect, caption in _DRAWN.items():
            spread = [(split, stats[aspect]) for split, stats in series if stats.get(aspect)]
            if any(len(one.get("histogram", {}).get("edges", ())) > 2 for _, one in spread):
                drawn.append(histogram(spread, caption=caption))
    return [chart for chart in drawn if chart is not None]


def _class_name(feature: Feature, index: str) -> str:
    names = getattr(feature, "names", None)
    known = names and index.isdigit() and int(index) < len(names)
    return f"{index} {names[int(index)]}" if known and names else index


def _numbers_of(
    series: Sequence[tuple[str, Mapping[str, Any]]], feature: Feature
) -> list[tuple[str, str]]:
    """Statistics in words: of all splits together, or of each where there is no chart."""
    lines: list[tuple[str, str]] = []
    stats = [facts for _, facts in series]
    known = [one for one in stats if one.get("min") is not None and one.get("max") is not None]
    is_class = isinstance(feature, ClassLabel) or item_class(feature) is not None
    is_number = not is_class and getattr(feature, "dtype", "") != "bool"
    if known and is_number:
        low, high = min(one["min"] for one in known), max(one["max"] for one in known)
        lines.append(("range", f"{_value(low, feature)} to {_value(high, feature)}"))
        count = sum(one.get("count", 0) for one in known)
        if count and not isinstance(feature, Timestamp):
            mean = sum((one.get("mean") or 0) * one.get("count", 0) for one in known) / count
            square = sum(
                one.get("count", 0)
                * ((one.get("deviation") or 0) ** 2 + (one.get("mean") or 0) ** 2)
                for one in known
            )
            deviation = math.sqrt(max(0.0, square / count - mean * mean))
            if all(one.get("mean") is not None for one in known):
                lines.append(("mean", f"{human_number(mean)} ± {human_number(deviation)}"))
            if zeros := sum(one.get("num_zeros", 0) for one in known):
                lines.append(("zero", percentage(zeros / count)))
    for key, words in _SPANS.items():
        spans = [one[key] for one in stats if one.get(key) and one[key].get("max") is not None]
        if spans:
            low, high = min(span["min"] for span in spans), max(span["max"] for span in spans)
            lines.append((words, f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"))
    distinct = [(one["distinct"], split) for split, one in series if one.get("distinct")]
    if distinct and is_number:
        most, split = max(distinct, key=lambda pair: pair[0]["count"])
        about = "" if most.get("exact") else "about "
        where = f" in {split}" if len(distinct) > 1 else ""
        lines.append(("distinct", f"{about}{most['count']:,}{where}"))
    if bad := sum(one.get("num_non_finite", 0) for one in stats):
        lines.append(("NaN or infinite", f"{bad:,}"))
    lines += _by_split(
        "channel means", series, "channel_means", lambda it: ", ".join(f"{mean:.0f}" for mean in it)
    )
    lines += _by_split(
        "stored as",
        series,
        "modes",
        lambda it: ", ".join(f"{mode} {count}" for mode, count in it.items()),
    )
    lines += _by_split("level", series, "level", lambda it: f"{20 * math.log10(it or 1e-9):.0f} dB")
    lines += _by_split(
        "area of a box",
        [(split, one.get("areas", {})) for split, one in series],
        "mean",
        lambda it: f"{percentage(it)} of the image",
    )
    return lines


def _by_split(
    title: str,
    series: Sequence[tuple[str, Mapping[str, Any]]],
    key: str,
    show: Callable[[Any], str],
) -> list[tuple[str, str]]:
    """A figure of each split, or one if all are shown alike."""
    shown = [(split, show(one[key])) for split, one in series if one.get(key) is not None]
    if len({text for _, text in shown}) > 1:
        return [(title, "; ".join(f"{split} {text}" for split, text in shown))]
    return [(title, text) for _, text in shown[:1]]


def _value(number: Any, feature: Feature) -> str:
    if isinstance(feature, Timestamp):
        try:
            return str(np.datetime64(int(number), feature.unit))
        except (ValueError, OverflowError):
            return str(number)
    return f"{number:,}" if isinstance(number, int) else human_number(number, digits=6)


def _first_rows(evidence: Evidence, limits: Limits) -> dict[str, Any]:
    sample = evidence.sample
    names = sorted(evidence.features, key=lambda name: name != evidence.label)[: limits.columns]
    first = [
        row for row in range(len(sample)) if sample.splits[row] == evidence.snapshot.main_split
    ]
    rows = [
        (
            sample.ids[row],
            *(shown_value(sample.values[name][row], evidence.features[name]) for name in names),
        )
        for row in first[: limits.rows]
    ]
    return {"columns": names if rows else [], "rows": rows}


def shown_value(value: Any, feature: Feature) -> str:
    """A value of a record as text."""
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return "missing" if is_optional(feature) else "NaN"
    if isinstance(feature, ClassLabel):
        index = int(value)
        return feature.names[index] if 0 <= index < len(feature.names) else str(index)
    if isinstance(feature, Timestamp):
        return _value(int(value), feature)
    if isinstance(feature, Image | Audio) or frames_of(feature) is not None:
        if isinstance(value, bytes):
            return f"file of {human_bytes(len(value))}"
        return f"{value.dtype.name}{[*value.shape]}" if hasattr(value, "shape") else "frames"
    if isinstance(value, bytes):
        return shorten(value.decode(errors="replace"), _TEXT)
    if isinstance(value, np.ndarray):
        flat: list[Any] = [
            item.decode(errors="replace") if isinstance(item, bytes) else item
            for item in value.ravel()[:8].tolist()
        ]
        if item_class(feature) is not None:
            flat = plain(feature, value.ravel()[:8])
        texts = [f"{item:.4g}" if isinstance(item, float) else str(item) for item in flat]
        more = ", …" if value.size > 8 else ""
        return shorten(f"[{', '.join(texts)}{more}]" + f" {[*value.shape]}" * bool(more), _TEXT)
    return f"{value:.7g}" if isinstance(value, float | np.floating) else str(value)


def _rejects(evidence: Evidence, album: Album) -> tuple[list[Reason], str]:
    """Rejects by reason, most frequent first; and what is left out."""
    manifest = evidence.snapshot.manifest
    if not manifest.num_rejects or REJECTS not in manifest.files:
        return [], ""
    counts: dict[tuple[str, str], int] = {}
    examples: dict[tuple[str, str], list[tuple[str, str, str, Picture | None]]] = {}
    note = ""
    try:
        rows = RejectsFile.find(evidence.snapshot.path).rows(RejectFilter())
        for number, row in enumerate(rows):
            if number == _MAX_REJECTS_READ:
                note = f"Only the first {_MAX_REJECTS_READ:,} are counted here."
                break
            key = row["stage"], row["reason"]
            counts[key] = counts.get(key, 0) + 1
            own = examples.setdefault(key, [])
            if len(own) < _REJECTS_SHOWN:
                own.append((row["id"], shorten(row["message"], 400), *_payload(row, album)))
    except SnapshardError as error:
        note = f"They could not be read: {error}"
    ordered = sorted(counts, key=lambda key: -counts[key])[:50]
    if len(counts) > 50:
        note += f" {len(counts) - 50:,} rare reasons are not shown."
    reasons = [
        Reason(stage=key[0], reason=key[1], num_rejects=counts[key], examples=examples[key])
        for key in ordered
    ]
    return reasons, note


def _payload(row: Mapping[str, Any], album: Album) -> tuple[str, Picture | None]:
    """The content of a rejected record, as text or as a picture."""
    content: bytes | None = row["payload"]
    if content is None:
        size = row["payload_bytes"]
        return ("" if size is None else f"{human_bytes(size)}, not kept"), None
    if row["payload_kind"] == "values":
        try:
            return shorten(json.dumps(json.loads(content), ensure_ascii=False), 300), None
        except (ValueError, RecursionError):
            return "", None
    image = opened(content, 96)
    uri = None if image is None else album.uri(image)
    if image is not None and uri is not None:
        picture = Picture(
            uri=uri, width=image.width, height=image.height, caption=row["id"], note=""
        )
        return "", picture
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"{human_bytes(len(content))}, begins with {content[:16].hex(' ')}", None
    return shorten(text, 300), None
