"""What a dataset of Hugging Face says of its columns, as features.

Its Arrow schema carries the metadata ``huggingface``: JSON with a type for each column, which says
more than Arrow's own: names of classes, shapes of arrays, which columns are images and sounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, get_args

import pyarrow as pa

from ...schemas.features import (
    Audio,
    ClassLabel,
    Dtype,
    Feature,
    Image,
    Sequence,
    Struct,
    Tensor,
    is_optional,
)

METADATA = b"huggingface"
_DTYPES = frozenset(get_args(Dtype))
_ARRAY = re.compile(r"Array[2-5]D")


def column_types(schema: pa.Schema) -> dict[str, Any]:
    """What the metadata say of each column; {} where there are none."""
    try:
        found = json.loads((schema.metadata or {}).get(METADATA, b"{}"))
        features = found.get("info", {}).get("features", {})
    except (ValueError, AttributeError, RecursionError):
        return {}
    return dict(features) if isinstance(features, dict) else {}


def class_names(spec: Any) -> tuple[str, ...] | None:
    """The names of a column's classes; None where it has none."""
    names = spec.get("names") if isinstance(spec, dict) else None
    if not isinstance(names, list) or spec.get("_type") != "ClassLabel" or not names:
        return None
    return tuple(names) if all(isinstance(name, str) for name in names) else None


def classes_of(spec: Any, name: str = "") -> dict[str, tuple[str, ...]]:
    """The names of the classes of all columns, also those inside lists and structs, by place."""
    names = class_names(spec)
    if names is not None:
        return {name: names}
    found: dict[str, tuple[str, ...]] = {}
    if isinstance(spec, dict):
        for key, inner in spec.items():
            found |= classes_of(inner, f"{name}.{key}" if name else key)
    return found


def is_media(spec: Any) -> bool:
    """Whether a column is one of images or sounds."""
    return isinstance(spec, dict) and spec.get("_type") in ("Image", "Audio")


def with_column_types(
    inferred: Mapping[str, Feature | Struct], specs: Mapping[str, Any], *, declared: Collection[str]
) -> dict[str, Feature | Struct]:
    """The features of Arrow columns with what the metadata say of them.

    Args:
        inferred: What Arrow's types say.
        specs: What :func:`column_types` gave.
        declared: Names whose type the user has given, which stay.
    """
    return {
        name: _typed(feature, specs.get(name), name, declared) for name, feature in inferred.items()
    }


def _typed(found: Any, spec: Any, name: str, declared: Collection[str]) -> Any:
    if name in declared:
        return found
    if isinstance(found, Struct):
        if is_media(spec):
            return media_feature(spec)
        fields = spec if isinstance(spec, dict) and not isinstance(spec.get("_type"), str) else {}
        return Struct(
            {
                key: _typed(field, fields.get(key), f"{name}.{key}", declared)
                for key, field in found.fields.items()
            }
        )
    if not isinstance(spec, dict):
        return found
    kind, optional = spec.get("_type"), is_optional(found)
    names = class_names(spec)
    if names is not None:
        # Texts of a label that were gathered from the rows say the same.
        return found if isinstance(found, ClassLabel) else ClassLabel(names, optional=optional)
    if is_media(spec):
        return media_feature(spec)
    if kind in ("List", "LargeList", "Sequence") and isinstance(found, Sequence):
        items = class_names(spec.get("feature"))
        return found if items is None else Sequence(ClassLabel(items), optional=optional)
    if isinstance(kind, str) and _ARRAY.fullmatch(kind) and spec.get("dtype") in _DTYPES:
        shape = spec.get("shape")
        if isinstance(found, Tensor) and isinstance(shape, list) and len(shape) == len(found.shape):
            return Tensor(spec["dtype"], tuple(shape))
    return found


def media_feature(spec: Mapping[str, Any]) -> Image | Audio:
    """The feature of a column of images or sounds."""
    return Image(storage="encoded") if spec["_type"] == "Image" else Audio(storage="encoded")
