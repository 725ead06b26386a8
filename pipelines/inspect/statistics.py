"""A snapshot's ``statistics.json`` and ``statistics.pb``, from what its runs and shards measured.

Exact figures cover all records. Quantiles, histograms, frequent values and figures of classes come
from the sampled records (``num_sampled``), as ``transforms/examples/statistics.py`` explains.
``statistics.pb`` is a ``DatasetFeatureStatisticsList`` of TensorFlow Metadata, for tools of TFX.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schemas.blocks import ShardInfo
from ...schemas.features import (
    Audio,
    BoundingBoxes,
    ClassLabel,
    Feature,
    Features,
    Image,
    Mask,
    item_class,
    tensor_form,
)
from ...schemas.wire import FLOATS
from ...transforms.examples.statistics import (
    MODES,
    Numbers,
    RawTotals,
    SplitStatistics,
    Tally,
    estimate_distinct,
)
from ..frame import RAW, RAW_DATASET

FORMAT_VERSION = 1
MAX_CLASSES = 50
"""Figures of classes are given for at most this many, the most frequent ones."""
ASPECTS = ("lengths", "heights", "widths", "rates")
"""Numbers that a record has of a feature besides its value."""
MEDIA_ASPECTS = ("brightness", "levels", "areas")
"""What is measured of sampled images, sounds and boxes."""
MAX_TOP = 50
"""At most this many frequent values are listed."""
_MAX_EXACT = 2.0**53
"""Sampled numbers are float64: larger integers are rounded."""
_NUM_BINS = 20
_OUTER = 10
"""Where all values span more than this many times the middle 98 %, the outer bins hold the rest."""

Json = dict[str, Any]
_Floats = npt.NDArray[np.float64]
_Key = tuple[str, str]
"""A feature and an aspect."""


def statistics_of(
    features: Features,
    shards: Mapping[str, Sequence[ShardInfo]],
    measured: Mapping[str, SplitStatistics],
    *,
    label: str | None,
    raw: RawTotals | None = None,
) -> Json:
    """The content of ``statistics.json``.

    Args:
        features: Features of the examples.
        shards: The shards of each split, in order.
        measured: What was measured of them, by split.
        label: The label, if there is one.
        raw: Figures of the records as they were read, if steps change them.
    """
    samples = {split: _samples(features, found) for split, found in measured.items()}
    edges = _all_edges(measured, samples)
    splits = {}
    for split, infos in shards.items():
        counts = _sums(shard.label_counts for shard in infos)
        missing = _sums(shard.num_missing for shard in infos)
        num_examples = sum(shard.num_examples for shard in infos)
        found = measured[split]
        described: dict[str, Json] = {}
        for name in sorted(features, key=str.encode):
            facts = _describe(name, features[name], found, samples[split], edges)
            described[name] = {"num_missing": missing[name], **facts}
        if label is not None and isinstance(features[label], ClassLabel) and counts:
            described[label] |= {"top": _most(counts), "top_of": counts.total()}
        splits[split] = {
            "num_examples": num_examples,
            "num_sampled": found.num_sampled,
            "features": described,
            "classes": _of_classes(features, label, found),
        }
    described = {} if raw is None else {RAW: _of_raw_columns(raw)}
    return {"format_version": FORMAT_VERSION, "splits": splits, **described}


def _of_raw_columns(raw: RawTotals) -> Json:
    features, exact = {}, raw.finish()
    for name in sorted(raw.features, key=str.encode):
        feature = raw.features[name]
        facts = {"num_missing": raw.num_missing[name], **_exact(name, exact)}
        if counts := raw.texts.get(name):
            facts |= {"top": _most(counts), "top_of": counts.total()}
        elif (tally := raw.tallies.get(name)) is not None and facts["count"]:
            facts |= _of_tally(feature, tally, float(facts["min"]), float(facts["max"]))
        features[name] = facts
    return {"num_records": raw.num_records, "features": features}


def _of_tally(feature: Feature, tally: Tally, low: float, high: float) -> Json:
    """Frequent values, histogram and quantiles of all numbers; interpolated inside buckets."""
    spans, counts = tally.spans(low, high), tally.counts
    begins = spans[:, 0]
    edges = _edges(begins, counts, low, high)
    if not tally.level:
        few = isinstance(feature, ClassLabel) or len(counts) <= MAX_TOP
        return _of_values(feature, begins, counts, edges, few=few)
    if isinstance(feature, ClassLabel):
        return {}
    after = np.cumsum(counts)
    curve = spans.ravel(), np.stack([after - counts, after], axis=1).ravel()
    below = np.interp(edges, *curve).round().astype(int)
    quantiles = np.interp(np.linspace(0, 1, 11) * int(after[-1]), *curve[::-1])
    return {
        "histogram": {"edges": edges, "counts": np.diff(below).tolist()},
        "quantiles": quantiles.tolist(),
    }


def _sums(counts: Iterator[Mapping[str, int]]) -> Counter[str]:
    total = Counter[str]()
    for mapping in counts:
        total.update(mapping)
    return total


def _samples(features: Features, split: SplitStatistics) -> dict[_Key, _Floats]:
    """Sampled numbers, and what was measured of sampled media."""
    return split.sampled | {
        (name, aspect): values
        for name, media in split.media.items()
        for aspect, values in _of_media(features[name], media).items()
    }


def _all_edges(
    splits: Mapping[str, SplitStatistics], samples: Mapping[str, Mapping[_Key, _Floats]]
) -> dict[_Key, list[float]]:
    """Edges of the bins of each histogram, the same in all splits; none without values."""
    edges = {}
    for key in {key: None for sampled in samples.values() for key in sampled}:
        parts = [sampled[key] for sampled in samples.values() if key in sampled]
        values, counts = _counted(np.concatenate(parts))
        if not len(values):
            continue
        exact = [split.numbers[key] for split in splits.values() if key in split.numbers]
        lows = [float(found.min) for found in exact if found.min is not None]
        highs = [float(found.max) for found in exact if found.max is not None]
        low, high = (min(lows), max(highs)) if lows else values[[0, -1]].tolist()
        edges[key] = _edges(values, counts, low, high)
    return edges


def _counted(sampled: _Floats) -> tuple[_Floats, npt.NDArray[np.int64]]:
    """The distinct finite values, ascending, and how often each occurs."""
    values, counts = np.unique(sampled[np.isfinite(sampled)], return_counts=True)
    return values, counts


def _quantiles(values: _Floats, counts: npt.NDArray[np.int64], shares: Sequence[float]) -> _Floats:
    """The values at these ranks, as shares of all."""
    ends = np.cumsum(counts)
    ranks = np.round(np.array(shares) * (ends[-1] - 1))
    found: _Floats = values[np.searchsorted(ends, ranks, side="right")]
    return found


def _edges(values: _Floats, counts: npt.NDArray[np.int64], low: float, high: float) -> list[float]:
    """Edges of bins from the lowest to the highest value, given ascending ones."""
    if low == high or not math.isfinite(high - low):
        return [low, high]
    first, last = _quantiles(values, counts, (0.01, 0.99)).tolist()
    if 0 < (last - first) * _OUTER < high - low:
        edges = [low, *np.linspace(first, last, _NUM_BINS - 1).tolist(), high]
    elif high - low < _NUM_BINS and low.is_integer() and bool((values == np.round(values)).all()):
        # One bin for each number.
        edges = (low - 0.5 + np.arange(int(high - low) + 2)).tolist()
    else:
        edges = np.linspace(low, high, _NUM_BINS + 1).tolist()
    return sorted(set(edges))


def _describe(
    name: str,
    feature: Feature,
    split: SplitStatistics,
    samples: Mapping[_Key, _Floats],
    edges: Mapping[_Key, list[float]],
) -> Json:
    """The figures of one feature of one split."""
    facts = _exact(name, split)
    for aspect in (*ASPECTS, *MEDIA_ASPECTS):
        if (sampled := samples.get((name, aspect))) is not None:
            facts.setdefault(aspect, _figures(Numbers.of(sampled)))
            facts[aspect] |= _spread(*_counted(sampled), edges.get((name, aspect)))
    if (items := item_class(feature)) is not None:
        classes = _shown(items, split.classes[name])
        facts |= {"top": _most(classes, len(classes)), "top_of": classes.total()}
    elif name in split.texts:
        known = Counter(text for text in split.texts[name] if text is not None)
        facts |= {"top": _most(known), "top_of": known.total()}
    elif (sampled := samples.get((name, "values"))) is not None:
        values, counts = _counted(sampled)
        few = isinstance(feature, ClassLabel) or facts["distinct"]["count"] <= MAX_TOP
        facts |= _of_values(feature, values, counts, edges.get((name, "values")), few=few)
    return facts | _media(feature, split.media.get(name, []))


def _exact(name: str, split: SplitStatistics) -> Json:
    """The figures of a feature that cover all records."""
    facts: Json = {}
    if (values := split.numbers.get((name, "values"))) is not None:
        facts |= _figures(values)
        facts |= {"num_zeros": values.num_zeros, "num_non_finite": values.num_non_finite}
    for aspect in ASPECTS:
        if (found := split.numbers.get((name, aspect))) is not None:
            facts[aspect] = _figures(found)
    if name in split.hashes:
        count, exact = estimate_distinct(split.hashes[name])
        num_values = facts.get("lengths", facts)["count"]
        facts["distinct"] = {"count": min(count, num_values), "exact": exact}
    return facts


def _figures(found: Numbers) -> Json:
    """Count, extremes, mean and deviation; null where there are none."""
    known = found.count > 0
    return {
        "count": found.count,
        "min": found.min,
        "max": found.max,
        "mean": _number(found.mean) if known else None,
        "deviation": _number(found.deviation) if known else None,
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _of_values(
    feature: Feature,
    values: _Floats,
    counts: npt.NDArray[np.int64],
    edges: list[float] | None,
    *,
    few: bool,
) -> Json:
    """Frequent values, histogram and quantiles, given the values, ascending, and their numbers."""
    facts: Json = {}
    is_exact = not len(values) or float(np.abs(values[[0, -1]]).max()) <= _MAX_EXACT
    if few and is_exact:
        facts["top"] = _most(_shown(feature, dict(zip(values, counts.tolist(), strict=True))))
        facts["top_of"] = int(counts.sum())
    if isinstance(feature, ClassLabel) or _dtype(feature) == "bool":
        return facts
    return facts | _spread(values, counts, edges)


def _spread(values: _Floats, counts: npt.NDArray[np.int64], edges: list[float] | None) -> Json:
    """Histogram and quantiles, given the values, ascending, and their numbers."""
    if edges is None:
        return {}
    in_bins = [int(counts.sum())]
    if len(edges) > 2:
        places = np.searchsorted(edges, values, side="right") - 1
        weights = np.bincount(places.clip(0, len(edges) - 2), counts, len(edges) - 1)
        in_bins = weights.astype(int).tolist()
    facts: Json = {"histogram": {"edges": edges, "counts": in_bins}}
    if len(values):
        facts["quantiles"] = _quantiles(values, counts, np.linspace(0, 1, 11).tolist()).tolist()
    return facts


def _shown(feature: Feature, counts: Mapping[Any, int]) -> Counter[Any]:
    """The number of each value, as it is shown."""
    show: Callable[[Any], Any] = float
    if isinstance(feature, ClassLabel):
        names = feature.names
        show = lambda value: names[int(value)]  # noqa: E731
        counts = {value: counts[value] for value in counts if 0 <= value < len(names)}
    elif (dtype := _dtype(feature)) not in FLOATS:
        show = {"bool": bool, "string": str}.get(dtype, int)
    return Counter({show(value): count for value, count in counts.items()})


def _dtype(feature: Feature) -> str:
    form = tensor_form(feature)
    return "" if form is None else form.dtype


def _most(counts: Counter[Any], most: int = MAX_TOP) -> list[list[Any]]:
    """The most frequent values with their numbers; equally frequent ones in order."""
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [[value, count] for value, count in ordered if count][:most]


def _media(feature: Feature, measured: Sequence[Any]) -> Json:
    """Figures of the sampled pixels, sounds or boxes."""
    measured = [one for one in measured if one is not None]
    if not measured:
        return {}
    if isinstance(feature, Mask):
        shares = Counter[int]()
        for pairs in measured:
            shares.update(dict(pairs))
        total = shares.total()
        return {"shares": {str(index): shares[index] / total for index in sorted(shares)}}
    if isinstance(feature, Image):
        num, *sums = (sum(column) for column in zip(*measured, strict=True))
        if not num:
            return {}
        channels = feature.channels
        means = [total / num for total in sums[:channels]]
        squares = (total / num for total in sums[channels : 2 * channels])
        pairs = zip(means, squares, strict=True)
        deviations = [math.sqrt(max(0.0, square - mean**2)) for mean, square in pairs]
        stored = zip(MODES.values(), sums[2 * channels :], strict=False)  # of files only
        modes = {mode: count for mode, count in stored if count}
        return {
            "channel_means": means,
            "channel_deviations": deviations,
            **({"modes": modes} if modes else {}),
        }
    if isinstance(feature, Audio):
        num, squares = (sum(column) for column in zip(*measured, strict=True))
        return {"level": math.sqrt(squares / num) if num else None}
    return {}


def _of_media(feature: Feature, measured: Sequence[Any]) -> dict[str, _Floats]:
    """The mean of each sampled image, the level of each sound, the area of each box."""
    known = [one for one in measured if one is not None]
    if not known:
        return {}
    if isinstance(feature, BoundingBoxes):
        return {"areas": np.array([area for boxes in known for area in boxes], np.float64)}
    if isinstance(feature, Mask) or not isinstance(feature, Image | Audio):
        return {}
    known = [one for one in known if one[0]]
    if isinstance(feature, Audio):
        return {"levels": np.array([math.sqrt(squares / num) for num, squares in known])}
    num = min(3, feature.channels)  # without transparency
    return {"brightness": np.array([sum(one[1 : 1 + num]) / one[0] / num for one in known])}


def _of_classes(features: Features, label: str | None, split: SplitStatistics) -> Json:
    """Figures of each class of the label, from the sample."""
    feature = features.get(label) if label is not None else None
    if label is None or not isinstance(feature, ClassLabel):
        return {}
    if (codes := split.sampled.get((label, "values"))) is None:
        return {}
    known, counts = np.unique(codes[np.isfinite(codes)].astype(int), return_counts=True)
    most = sorted(zip((-counts).tolist(), known.tolist(), strict=True))[:MAX_CLASSES]
    classes = {}
    for _, code in sorted(most, key=lambda pair: pair[1]):
        rows = np.flatnonzero(codes == code)
        facts: dict[str, Json] = {}
        for (name, aspect), values in split.sampled.items():
            if aspect != "values":
                facts.setdefault(name, {})[aspect] = _figures(Numbers.of(values[rows]))
            elif not isinstance(features[name], ClassLabel):
                facts.setdefault(name, {}).update(_figures(Numbers.of(values[rows])))
        for name, media in split.media.items():
            some = [media[row] for row in rows]
            found = _media(features[name], some)
            for aspect, values in _of_media(features[name], some).items():
                found[aspect] = _figures(Numbers.of(values))
            if found:
                facts.setdefault(name, {}).update(found)
        classes[feature.names[code]] = facts
    return classes


def statistics_json(statistics: Json) -> bytes:
    """The file's bytes."""
    text = json.dumps(statistics, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def statistics_pb(statistics: Json, features: Features, *, raw: Features | None = None) -> bytes:
    """``statistics.pb``: a serialized ``tensorflow.metadata.v0.DatasetFeatureStatisticsList``.

    Numbers have numeric statistics whatever their storage; classes, strings and bools are
    categorical, images and sounds bytes.

    Args:
        statistics: The content of ``statistics.json``.
        features: Features of the examples.
        raw: Features of the records as they were read, if there are figures of these.
    """
    from tensorflow_metadata.proto.v0 import statistics_pb2

    found = statistics_pb2.DatasetFeatureStatisticsList()
    for split, facts in statistics["splits"].items():
        _add_dataset(found, split, facts["num_examples"], facts["features"], features)
    if raw is not None:
        facts = statistics[RAW]
        _add_dataset(found, RAW_DATASET, facts["num_records"], facts["features"], raw)
    return bytes(found.SerializeToString(deterministic=True))


def _add_dataset(
    found: Any, name: str, num_examples: int, figures: Mapping[str, Json], features: Features
) -> None:
    """Adds the figures of a split, or of all raw columns."""
    dataset = found.datasets.add(name=name, num_examples=num_examples)
    for feature, facts in figures.items():
        _add_feature(dataset.features.add(), feature, features[feature], facts, num_examples)


def _add_feature(stats: Any, name: str, feature: Feature, facts: Json, num_examples: int) -> None:
    """Fills one ``FeatureNameStatistics``."""
    stats.path.step.append(name)
    form = tensor_form(feature)
    is_single = form is not None and not form.shape
    if isinstance(feature, ClassLabel) or (
        form is not None and is_single and form.dtype in ("string", "bool")
    ):
        stats.type, filled = stats.STRING, stats.string_stats
        _fill_categories(filled, facts)
    elif "count" in facts:
        stats.type = stats.INT if form is not None and "int" in form.dtype else stats.FLOAT
        filled = stats.num_stats
        _fill_numbers(filled, facts)
    else:
        stats.type, filled = stats.BYTES, stats.bytes_stats
    common = filled.common_stats
    common.num_missing = facts["num_missing"]
    common.num_non_missing = num_examples - facts["num_missing"]
    if is_single:
        common.min_num_values = common.max_num_values = 1
        common.avg_num_values, common.tot_num_values = 1.0, common.num_non_missing
    elif (lengths := facts.get("lengths")) and lengths["count"]:
        common.min_num_values, common.max_num_values = lengths["min"], lengths["max"]
        common.avg_num_values = lengths["mean"] or 0.0  # unknown in very wide tables


def _fill_categories(strings: Any, facts: Json) -> None:
    if "distinct" in facts:
        strings.unique = facts["distinct"]["count"]
    for rank, (value, count) in enumerate(facts.get("top", [])):
        text = value if isinstance(value, str) else str(value).lower()
        strings.top_values.add(value=text, frequency=count)
        strings.rank_histogram.buckets.add(
            low_rank=rank, high_rank=rank, label=text, sample_count=count
        )
    if facts.get("lengths", {}).get("count"):
        strings.avg_length = facts["lengths"]["mean"] or 0.0


def _fill_numbers(numbers: Any, facts: Json) -> None:
    names = {"mean": "mean", "std_dev": "deviation", "min": "min", "max": "max"}
    for field, key in names.items():
        if facts[key] is not None:
            setattr(numbers, field, facts[key])
    numbers.num_zeros = facts["num_zeros"]
    if "histogram" in facts:
        edges, counts = facts["histogram"]["edges"], facts["histogram"]["counts"]
        bins = numbers.histograms.add(type="STANDARD", num_nan=facts["num_non_finite"]).buckets
        for (low, high), count in zip(itertools.pairwise(edges), counts, strict=True):
            bins.add(low_value=low, high_value=high, sample_count=count)
    if "quantiles" in facts:
        quantiles = facts["quantiles"]
        numbers.median = quantiles[len(quantiles) // 2]
        bins = numbers.histograms.add(type="QUANTILES").buckets
        share = facts["count"] / (len(quantiles) - 1)
        for low, high in itertools.pairwise(quantiles):
            bins.add(low_value=low, high_value=high, sample_count=share)
