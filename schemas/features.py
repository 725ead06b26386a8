"""Features: what a record holds, by name, and how all of it lies in a ``tf.train.Example``.

A feature is what a person means (an image, a class); a :class:`WireColumn` is how it is
stored: one list of an Example, one column of a run. ``wire_columns`` leads from one to the
other, and everything that writes or reads examples (encoder, reader, schema) goes through it.
The types themselves stand in ``values``, ``media`` and ``nested``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import pydantic

from .errors import RecipeError
from .media import Audio, Image
from .nested import Leaf, Sequence, Struct, flatten
from .values import (
    BoundingBoxes,
    ClassLabel,
    Domain,
    Scalar,
    Tensor,
    TensorForm,
    Text,
    Timestamp,
)
from .wire import Dtype, ListKind, WireColumn, list_kind

__all__ = [
    "RESERVED_PREFIX",
    "Audio",
    "BoundingBoxes",
    "ClassLabel",
    "Domain",
    "Dtype",
    "Feature",
    "Features",
    "Image",
    "ListKind",
    "Scalar",
    "Sequence",
    "Struct",
    "Tensor",
    "TensorForm",
    "Text",
    "Timestamp",
    "WireColumn",
    "check_masks",
    "domain_of",
    "features_from_json",
    "features_to_json",
    "flatten",
    "is_encoded",
    "is_optional",
    "list_kind",
    "mask_name",
    "presence_name",
    "side_columns",
    "side_names",
    "tensor_form",
    "wire_columns",
]

RESERVED_PREFIX = "snapshard/"
"""Feature names must not begin so: runs keep keys and ids under it."""

Feature = Leaf
"""One feature as it is stored: any type but a Struct, whose fields are features of their own."""
Features = Mapping[str, Feature]
"""Features by name. Their order means nothing; they are stored in the order of their names."""

_ADAPTER: pydantic.TypeAdapter[dict[str, Feature]] = pydantic.TypeAdapter(
    dict[str, Annotated[Feature, pydantic.Field(discriminator="kind")]]
)
_LIMITS = {"min": None, "max": None, "values": None, "finite": False, "max_length": None}
_LIMITS |= {"unit": None}


def is_encoded(feature: Feature) -> bool:
    """Whether a feature is an image or a sound that is kept as its file's bytes."""
    return isinstance(feature, Image | Audio) and feature.storage == "encoded"


def tensor_form(feature: Feature) -> TensorForm | None:
    """What a feature is as a tensor; None for images and encoded media, which are more."""
    return None if isinstance(feature, Image) or is_encoded(feature) else feature.form


def presence_name(name: str) -> str:
    """Where a step's record says whether an optional feature is there: a bool scalar.

    >>> presence_name("age")
    'snapshard/present/age'
    """
    return f"{RESERVED_PREFIX}present/{name}"


def side_columns(name: str, feature: Feature) -> tuple[str, ...]:
    """What stands beside a feature in a record: the columns that say how to take its bytes."""
    if isinstance(feature, Image) and feature.storage == "encoded":
        return tuple(f"{name}/{part}" for part in ("height", "width", "orientation"))
    if isinstance(feature, Audio) and feature.storage == "raw" and feature.rate is None:
        return (f"{name}/rate",)
    return ()


def is_optional(feature: Feature) -> bool:
    """Whether a feature may be missing from a record."""
    form = tensor_form(feature)
    return form is not None and form.optional


def mask_name(name: str, feature: Feature) -> str | None:
    """What the reader calls the mask of a feature; None where it gives none.

    >>> mask_name("age", Scalar("int64", optional=True))
    'age_present'
    """
    form = tensor_form(feature)
    return f"{name}_present" if form is not None and form.masked else None


def check_masks(features: Features) -> None:
    """Checks that no mask is called as a feature is, or as a struct that holds some.

    Raises:
        RecipeError: naming both.
    """
    for name, feature in features.items():
        mask = mask_name(name, feature)
        if mask is not None and any(f"{other}.".startswith(f"{mask}.") for other in features):
            raise RecipeError(
                f"Feature {name!r} may be missing, so that the reader gives {mask!r} beside it, "
                "and there is a feature of that name already. Rename one of them, or state what "
                f"to read where {name!r} is missing: default= of its type, or ss.tables.fill."
            )


def side_names(name: str, feature: Feature) -> tuple[str, ...]:
    """What goes with a feature in a step's record: side columns, whether it is there."""
    presence = (presence_name(name),) if is_optional(feature) else ()
    return (*side_columns(name, feature), *presence)


def domain_of(feature: Feature) -> Domain:
    """Which values a feature may hold."""
    return feature.domain if isinstance(feature, Scalar | Tensor | Text | Sequence) else Domain()


def wire_columns(features: Features) -> tuple[WireColumn, ...]:
    """All stored columns of the features, in the order of their names' UTF-8 bytes.

    Raises:
        RecipeError: if two features would store the same column, or a name is reserved.
    """
    columns: dict[str, WireColumn] = {}
    for name, feature in features.items():
        if not name or name.startswith(RESERVED_PREFIX):
            raise RecipeError(
                f"Feature name {name!r} is empty or begins with the reserved {RESERVED_PREFIX!r}. "
                "Rename it."
            )
        for column in feature.wire_columns(name):
            if column.name in columns:
                raise RecipeError(
                    f"Feature {name!r} stores a column {column.name!r} that another feature has "
                    "already. Rename one of them."
                )
            columns[column.name] = column
    return tuple(sorted(columns.values(), key=lambda column: column.name.encode()))


def features_to_json(features: Features) -> dict[str, object]:
    """Features as plain JSON, names sorted; :func:`features_from_json` is its dual.

    Limits that are not set are left out, and so are defaults, but for a Scalar's.
    """
    dumped = _ADAPTER.dump_python(dict(features), mode="json")
    return {name: _without_limits(dumped[name]) for name in sorted(dumped, key=str.encode)}


def _without_limits(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {
        key: _without_limits(item)
        for key, item in value.items()
        if (key not in _LIMITS or item != _LIMITS[key])
        and not (key == "default" and item is None and value.get("kind") != "scalar")
    }


def features_from_json(value: object) -> dict[str, Feature]:
    """Reads what :func:`features_to_json` wrote.

    Raises:
        pydantic.ValidationError: if it is not of that form.
    """
    return _ADAPTER.validate_python(value)
