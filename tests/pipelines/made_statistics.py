"""Statistics of columns made by hand, in the form of a snapshot's ``statistics.json``."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from snapshard.schemas.features import Feature, Features, tensor_form

SAMPLED = 4096
Columns = Mapping[str, Sequence[Any]]
"""The values of each feature, None where one is missing."""


def statistics_of(features: Features, splits: Mapping[str, Columns]) -> dict[str, Any]:
    """The statistics of splits."""
    edges = {}
    for name in features:
        numbers = [v for columns in splits.values() for v in columns[name] if _is_finite(v)]
        if numbers:
            edges[name] = np.histogram_bin_edges(np.array(numbers, float), 20)
    return {
        "format_version": 1,
        "splits": {
            split: {
                "num_examples": len(next(iter(columns.values()))),
                "num_sampled": min(SAMPLED, len(next(iter(columns.values())))),
                "features": {
                    name: _feature(feature, columns[name], edges.get(name))
                    for name, feature in features.items()
                },
                "classes": {},
            }
            for split, columns in splits.items()
        },
    }


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def moments(values: Sequence[float]) -> dict[str, Any]:
    """Exact figures of numbers."""
    if not len(values):
        return dict.fromkeys(("min", "max", "mean", "deviation"))
    numbers = np.array(values, np.float64)
    return {
        "min": numbers.min().item(),
        "max": numbers.max().item(),
        "mean": numbers.mean().item(),
        "deviation": numbers.std().item(),
    }


def _feature(feature: Feature, values: Sequence[Any], edges: Any) -> dict[str, Any]:
    present = [value for value in values if value is not None]
    distinct = {"count": len({*map(str, present)}), "exact": True}
    facts: dict[str, Any] = {"num_missing": len(values) - len(present), "distinct": distinct}
    form = tensor_form(feature)
    assert form is not None
    sample = [value for value in values[:SAMPLED] if value is not None]
    if feature.kind == "class_label" or form.dtype in ("string", "bool"):
        facts |= {"top": Counter(sample).most_common(50), "top_of": len(sample)}
        if form.dtype == "string":
            facts["lengths"] = moments([len(text) for text in present])
        return facts
    if form.shape:
        facts["lengths"] = moments([len(items) for items in present])
        present = [item for items in present for item in items]
    finite = [value for value in present if math.isfinite(value)]
    facts |= {
        "count": len(finite),
        "num_zeros": finite.count(0),
        "num_non_finite": len(present) - len(finite),
        **moments(finite),
    }
    if form.shape:
        return facts
    numbers = np.array([value for value in sample if math.isfinite(value)], np.float64)
    distinct = Counter(numbers.tolist())
    if len(distinct) <= 50:
        facts |= {"top": distinct.most_common(), "top_of": len(numbers)}
    if len(numbers):
        places = np.round(np.linspace(0, 1, 11) * (len(numbers) - 1)).astype(int)
        facts["quantiles"] = np.sort(numbers)[places].tolist()
        counts = np.histogram(numbers, edges)[0].tolist()
        facts["histogram"] = {"edges": edges.tolist(), "counts": counts}
    return facts
