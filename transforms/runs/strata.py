"""Labels as text: the values of a feature, as strata to divide by and as labels to count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.features import ClassLabel, Feature, tensor_form
from ...schemas.manifest import MAX_LABELS
from ...schemas.wire import FLOATS


def is_countable(feature: Feature | None) -> bool:
    """Whether a feature has labels: one class, integer, bool, time or string a record."""
    form = tensor_form(feature) if feature is not None else None
    return form is not None and form.shape == () and form.dtype not in FLOATS


def bytes_texts(column: pa.Array) -> pa.Array:
    r"""Bytes as text; those that are not UTF-8 are written as ``\xNN``."""
    try:
        return column.cast(pa.large_string())
    except pa.ArrowInvalid:
        values = column.to_pylist()
        texts = [v if v is None else v.decode(errors="backslashreplace") for v in values]
        return pa.array(texts, pa.large_string())


def label_texts(column: pa.Array, feature: Feature) -> pa.Array:
    """The values of a wire column as text: class names, numbers, strings; null where missing."""
    if isinstance(feature, ClassLabel):
        return pa.array(feature.names, pa.large_string()).take(column)
    form = tensor_form(feature)
    assert form is not None
    if form.dtype == "string":
        return bytes_texts(column)
    if form.dtype == "uint64":
        column = column.view(pa.uint64())
    return column.cast(pa.large_string())


def count_labels(column: pa.Array, feature: Feature) -> Counter[str]:
    """Counts the labels of a wire column; missing ones are left out."""
    if len(column) == 0:
        return Counter()
    counts = pc.value_counts(column.drop_null())
    texts = label_texts(counts.field("values"), feature)
    return Counter(dict(zip(texts.to_pylist(), counts.field("counts").to_pylist(), strict=True)))


def most_frequent(counts: Mapping[str, int]) -> dict[str, int]:
    """The 1,000 most frequent labels, by name; ties go to the first in the order of names."""
    kept = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_LABELS]
    return dict(sorted(kept))
