"""What a Schema of TensorFlow Metadata says of a feature's values: its domain, its annotations.

A domain speaks of the lists that an Example has. What it has no word for stands as tags:
``dtype=``, ``shape=``, ``max_length=``, ``values=``, and the limits of packed values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...schemas.features import (
    Audio,
    ClassLabel,
    Domain,
    Feature,
    Image,
    Sequence,
    TensorForm,
    Text,
    Timestamp,
    WireColumn,
    domain_of,
    tensor_form,
)

_PLAIN = ("bool", "int64", "float32", "string")
_TIMES = {"s": "SECONDS", "ms": "MILLISECONDS", "us": "MICROSECONDS", "ns": "NANOSECONDS"}


def describe_values(added: Any, column: WireColumn, feature: Feature) -> None:
    """Says in a ``schema_pb2.Feature`` what is known of the values of a feature.

    Args:
        added: The Schema's entry for the feature's main column.
        column: That column, as it is described: stored, or as tensorflow-transform sees it.
        feature: The feature.
    """
    if isinstance(feature, Image):
        _describe_image(added, feature)
        return
    if isinstance(feature, Audio):
        added.audio_domain.SetInParent()
    form = tensor_form(feature)
    if form is None:
        return
    if form.dtype not in _PLAIN:
        added.annotation.tag.append(f"dtype={form.dtype}")
    if column.packed is not None or None in form.shape:
        added.annotation.tag.append(f"shape={_shape_text(form.shape)}")
    domain = domain_of(feature)
    if column.packed is not None:
        _tag_limits(added, domain, ("min", "max", "values"))
        if domain.finite:
            added.annotation.tag.append("finite")
        return
    item = feature.of if isinstance(feature, Sequence) else feature
    if isinstance(item, ClassLabel):
        added.int_domain.min = 0
        added.int_domain.max = len(item.names) - 1
        added.int_domain.is_categorical = True
    elif isinstance(item, Timestamp):
        formats = type(added.time_domain).IntegerTimeFormat
        added.time_domain.integer_format = formats.Value(f"UNIX_{_TIMES[item.unit]}")
    elif isinstance(item, Text):
        added.natural_language_domain.SetInParent()
    elif form.dtype == "bool":
        added.bool_domain.SetInParent()
    elif column.kind == "int64":
        _describe_integers(added, form, domain)
    elif column.kind == "float32":
        _describe_floats(added, domain)
    elif domain.values is not None:
        added.string_domain.value.extend(map(str, domain.values))
    _tag_limits(added, domain, ("max_length",) if column.kind == "bytes" else ("values",))


def _describe_image(added: Any, image: Image) -> None:
    if image.storage == "encoded":
        added.image_domain.SetInParent()
    else:
        shape = (image.height, image.width, image.channels)
        added.annotation.tag.extend(["dtype=uint8", f"shape={_shape_text(shape)}"])


def _describe_integers(added: Any, form: TensorForm, domain: Domain) -> None:
    """A range, where there is one; that of a uint64 only where it keeps out of the upper half."""
    info = np.iinfo(form.dtype)
    allowed = [int(value) for value in domain.values or ()]
    low, high = int(info.min), int(info.max)
    low = max([low, *([int(np.ceil(domain.min))] if domain.min is not None else [])])
    high = min([high, *([int(np.floor(domain.max))] if domain.max is not None else [])])
    if allowed:
        low, high = max(low, min(allowed)), min(high, max(allowed))
    if form.dtype == "int64" and (low, high) == (info.min, info.max):
        return
    if high >= 2**63:
        _tag_limits(added, domain, ("min", "max"))
        return
    added.int_domain.min, added.int_domain.max = low, high


def _describe_floats(added: Any, domain: Domain) -> None:
    if domain.min is not None:
        added.float_domain.min = domain.min
    if domain.max is not None:
        added.float_domain.max = domain.max
    if domain.finite:
        added.float_domain.disallow_nan = True
        added.float_domain.disallow_inf = True


def _tag_limits(added: Any, domain: Domain, names: tuple[str, ...]) -> None:
    for name in names:
        limit = getattr(domain, name)
        if limit is not None:
            shown = list(limit) if isinstance(limit, tuple) else limit
            added.annotation.tag.append(f"{name}={shown}")


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return str(list(shape)).replace("None", "?")
