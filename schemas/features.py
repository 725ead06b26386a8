"""Features: the named contents of a record, and how they are stored in a ``tf.train.Example``.

A feature is the logical value (an image, a class); a :class:`WireColumn` is how it is stored: one
list of an Example, one column of a run. ``wire_columns`` maps features to columns, and everything
that writes or reads examples (encoder, reader, schema) uses it. The types are defined in
``values``, ``media`` and ``nested``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic

from .errors import RecipeError
from .media import Audio, Image, Mask
from .nested import Leaf, Sequence, Struct, flatten, nest
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
from .visible import shorten, visible
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
    "Mask",
    "Scalar",
    "Sequence",
    "Struct",
    "Tensor",
    "TensorForm",
    "Text",
    "Timestamp",
    "WireColumn",
    "call",
    "check_masks",
    "describe",
    "domain_of",
    "features_from_json",
    "features_to_json",
    "flatten",
    "frames_of",
    "is_encoded",
    "is_optional",
    "list_kind",
    "mask_name",
    "nest",
    "presence_name",
    "side_columns",
    "side_names",
    "tensor_form",
    "wire_columns",
    "without_unset_names",
    "written",
]

RESERVED_PREFIX = "snapshard/"
"""Feature names must not begin with this prefix: runs keep keys and ids under it."""

Feature = Leaf
"""A stored feature: any type except Struct, whose fields are separate features."""
Features = Mapping[str, Feature]
"""Features by name. Their order has no meaning; they are stored in the order of their names."""

_ADAPTER: pydantic.TypeAdapter[dict[str, Feature]] = pydantic.TypeAdapter(
    dict[str, Annotated[Feature, pydantic.Field(discriminator="kind")]]
)
_LIMITS = {"min": None, "max": None, "values": None, "finite": False, "max_length": None}
_LIMITS |= {"unit": None}


def is_encoded(feature: Feature) -> bool:
    """Whether a feature is an image or a sound stored as the bytes of its file."""
    return isinstance(feature, Image | Audio) and feature.storage == "encoded"


def frames_of(feature: Feature | None) -> Image | None:
    """What the frames of a clip are: the encoded images of a sequence; None if it has none."""
    of = feature.of if isinstance(feature, Sequence) else None
    return of if isinstance(of, Image) else None


def item_class(feature: Feature | None) -> ClassLabel | None:
    """The classes of the items of a list, such as those of boxes; None if it has none."""
    of = feature.of if isinstance(feature, Sequence) else None
    return of if isinstance(of, ClassLabel) else None


def tensor_form(feature: Feature) -> TensorForm | None:
    """A feature's tensor; None for images and encoded media, which have more than one."""
    return None if isinstance(feature, Image) or is_encoded(feature) else feature.form


def can_batch(feature: Feature) -> bool:
    """Whether the values of many records fit in one tensor, dense or ragged."""
    form = tensor_form(feature)
    if form is None:
        return is_encoded(feature)
    return not isinstance(feature, Audio) and None not in form.shape[1:]


def presence_name(name: str) -> str:
    """Name of the bool scalar in a step's record that says whether an optional feature is present.

    >>> presence_name("age")
    'snapshard/present/age'
    """
    return f"{RESERVED_PREFIX}present/{name}"


def side_columns(name: str, feature: Feature) -> tuple[str, ...]:
    """Additional columns of a feature in a record, which say how to interpret its bytes."""
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
    """The reader's name for a feature's mask; None if it has none.

    >>> mask_name("age", Scalar("int64", optional=True))
    'age_present'
    """
    form = tensor_form(feature)
    return f"{name}_present" if form is not None and form.masked else None


def check_masks(features: Features) -> None:
    """Checks that no mask has the name of a feature, or of a struct that contains features.

    Raises:
        RecipeError: if one does; the message names both.
    """
    for name, feature in features.items():
        mask = mask_name(name, feature)
        if mask is not None and any(f"{other}.".startswith(f"{mask}.") for other in features):
            raise RecipeError(
                f"Feature {name!r} may be missing, so the reader adds a mask {mask!r}, but a "
                "feature of that name already exists. Rename one of them, or set the value to read "
                f"where {name!r} is missing: default= of its type, or ss.tables.fill."
            )


def side_names(name: str, feature: Feature) -> tuple[str, ...]:
    """Additional entries of a feature in a step's record: side columns, and its presence."""
    presence = (presence_name(name),) if is_optional(feature) else ()
    return (*side_columns(name, feature), *presence)


def domain_of(feature: Feature) -> Domain:
    """The values that a feature may have."""
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
                    f"Feature {name!r} stores a column {column.name!r} that another feature "
                    "already has. Rename one of them."
                )
            columns[column.name] = column
    return tuple(sorted(columns.values(), key=lambda column: column.name.encode()))


def features_to_json(features: Features) -> dict[str, object]:
    """Features as plain JSON, names sorted; :func:`features_from_json` is the inverse.

    Omits limits that are not set, the usual dtype of images, and defaults that are None except a
    Scalar's.
    """
    # Thousands of columns may share one feature, and then also its JSON.
    first = {id(feature): name for name, feature in features.items()}
    distinct = {name: features[name] for name in first.values()}
    dumped = _ADAPTER.dump_python(distinct, mode="json")
    dumped = {name: _without_limits(value) for name, value in dumped.items()}
    ordered = sorted(features, key=str.encode)
    return {name: dumped[first[id(features[name])]] for name in ordered}


def _without_limits(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {
        key: _without_limits(item)
        for key, item in value.items()
        if (key not in _LIMITS or item != _LIMITS[key])
        and not (key in ("names", "ignore") and item is None)
        and not (key == "dtype" and item == "uint8" and value.get("kind") in ("image", "mask"))
        and not (key == "default" and item is None and value.get("kind") != "scalar")
    }


def without_unset_names(feature: dict[str, object]) -> dict[str, object]:
    """A feature as a manifest holds it, with all fields but names that are not set.

    Manifests of snapshots without them are as they were before features had them.
    """
    of = feature.get("of")
    plain = {**feature, "of": without_unset_names(of)} if isinstance(of, dict) else feature
    unset = {"class_label": "values", "tensor": "names"}.get(str(feature.get("kind")))
    usual = {"image": "uint8", "mask": "uint8"}.get(str(feature.get("kind")))
    return {
        key: item
        for key, item in plain.items()
        if (key != unset or item is not None) and (key != "dtype" or item != usual)
    }


def features_from_json(value: object) -> dict[str, Feature]:
    """Reads the output of :func:`features_to_json`. Features of the same JSON are one object.

    Raises:
        pydantic.ValidationError: if it does not have that form.
    """
    if not isinstance(value, dict):
        return _ADAPTER.validate_python(value)
    texts = {name: json.dumps(feature) for name, feature in value.items()}
    first: dict[str, str] = {}
    for name, text in texts.items():
        first.setdefault(text, name)
    distinct = _ADAPTER.validate_python({name: value[name] for name in first.values()})
    return {name: distinct[first[text]] for name, text in texts.items()}


def is_time(feature: Feature) -> bool:
    """Whether a feature can order records in time: a time, or an integer that int64 holds."""
    form = tensor_form(feature)
    if isinstance(feature, ClassLabel) or form is None or form.shape != ():
        return False
    return "int" in form.dtype and form.dtype != "uint64"


def time_advice(name: str, feature: Feature) -> str:
    """How to fix a feature that is not a time, for messages."""
    form = tensor_form(feature)
    if form is not None and form.shape == () and form.dtype.startswith("float"):
        return (
            f"Declare it in types= of the source: {{{written(name)}: ss.Timestamp(…)}}, or "
            f'{{{written(name)}: "int64"}} if it holds whole numbers.'
        )
    if form is None or form.shape != () or form.dtype not in ("string", "uint64"):
        return "Name a feature of times."
    if form.dtype == "uint64":
        return f'Cast it: ss.tables.cast({written(name)}, "int64").'
    return (
        f"Parse it: ss.tables.parse_time({written(name)}), or declare it in types= of the source: "
        f"{{{written(name)}: ss.Timestamp(…)}}."
    )


def describe(feature: Feature) -> str:
    """A feature's type and shape, for people, in one line.

    >>> from snapshard.schemas.features import ClassLabel, Image, Scalar, Sequence
    >>> describe(Image(height=64, width=64))
    'image, uint8[64, 64, 3]'
    >>> describe(Scalar("float32", optional=True))
    'float32'
    >>> describe(ClassLabel(names=("no", "yes")))
    'class, one of 2: no, yes'
    >>> describe(Sequence(ClassLabel(names=("no", "yes"))))
    'class[any], one of 2: no, yes'
    """
    if isinstance(feature, ClassLabel):
        names = shorten(", ".join(map(visible, feature.names)), 40)
        return f"class, one of {len(feature.names):,}: {names}"
    if (items := item_class(feature)) is not None:
        return describe(items).replace("class", "class[any]", 1)
    frame = frames_of(feature)
    if frame is not None:
        return f"clip: {describe(frame)}"
    if isinstance(feature, Image):
        shape = (feature.height, feature.width, feature.channels)
        kind = "mask" if isinstance(feature, Mask) else "image"
        sides = ", ".join("any" if n is None else str(n) for n in shape)
        text = f"{kind}, {feature.dtype}[{sides}]"
        return text + (", its file's bytes" if feature.storage == "encoded" else "")
    form = tensor_form(feature)
    if form is None:
        return "sound, its file's bytes"
    words = {Audio: "sound, ", Timestamp: "time, ", BoundingBoxes: "boxes, "}
    shape_text = ", ".join("any" if n is None else str(n) for n in form.shape)
    text = words.get(type(feature), "") + form.dtype + (f"[{shape_text}]" if form.shape else "")
    if isinstance(feature, Timestamp):
        text += f" {feature.unit}"
    default = getattr(feature, "default", None)
    return text if default is None else f"{text}, default {default!r}"


def written(value: object) -> str:
    """The Python expression for a value; features assume ``import snapshard as ss``.

    >>> from .features import Scalar, Sequence
    >>> written(Sequence(Scalar("float32", min=0)))
    'ss.Sequence(ss.Scalar("float32", min=0))'
    """
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, tuple):
        return f"({', '.join(map(written, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{written(key)}: {written(item)}' for key, item in value.items())}}}"
    if isinstance(value, Feature | Struct):
        return f"ss.{call(value, type(value).__name__)}"
    return repr(value)


def call(value: Any, name: str) -> str:
    """The call that constructs a configuration object; arguments equal to defaults are omitted.

    >>> from .features import Scalar
    >>> call(Scalar("float32", optional=True), "Scalar")
    'Scalar("float32", optional=True)'
    """
    if isinstance(value, ClassLabel) and value.values is not None:
        by_value = dict(zip(value.values, value.names, strict=True))
        rest = {"optional": value.optional, "default": value.default}
        settings = [
            f"{key}={written(setting)}"
            for key, setting in rest.items()
            if setting not in (None, False)
        ]
        return f"{name}({', '.join([written(by_value), *settings])})"
    fields = sorted(dataclasses.fields(value), key=lambda field: bool(field.kw_only))
    arguments = []
    for field in fields:
        given, default = getattr(value, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            arguments.append(written(given))
        elif given != default:
            arguments.append(f"{field.name}={written(given)}")
    return f"{name}({', '.join(arguments)})"


def _quoted(text: str) -> str:
    """A string literal, in double quotes unless the text contains quotes."""
    single = repr(text)
    return f'"{single[1:-1]}"' if single[0] == "'" and '"' not in text else single
