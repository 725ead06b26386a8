"""One record between its wire columns and the tensors that steps see.

In a record, a feature is a tensor: ``string[]`` for an encoded image (its side columns stand
beside it as int64 scalars), ``uint8[height, width, channels]`` for a decoded one, int64 for a
class, the declared dtype and shape for all else. A missing optional value is the feature's
``fill``, or a list of length zero; ``presence_name(name)``, a bool, stands beside it.

Wire columns come from Arrow as ``batches`` lays them out: packed ones as values of their dtype.
"""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Any, get_args

import tensorflow as tf

from ....schemas.errors import RecipeError
from ....schemas.features import (
    Audio,
    Dtype,
    Feature,
    Features,
    Image,
    Scalar,
    Tensor,
    TensorForm,
    WireColumn,
    is_optional,
    presence_name,
    side_columns,
    side_names,
    tensor_form,
)

WIRE_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}
_DTYPES = frozenset(get_args(Dtype))
_PCM = 32_768
"""16-bit samples of a sound in [-1, 1]."""


def value_spec(column: WireColumn, form: TensorForm | None) -> Any:
    """TensorSpec of one record's wire column: packed values are unpacked."""
    if column.packed is None or form is None:
        shape = [] if column.length == 1 else [column.length]
        return tf.TensorSpec(shape, WIRE_DTYPES[column.kind])
    if not form.shape:
        return tf.TensorSpec([], column.packed)
    return tf.TensorSpec([None if None in form.shape else size_of(form.shape)], column.packed)


def size_of(shape: tuple[int | None, ...]) -> int:
    """Values of a tensor of fixed shape."""
    return math.prod(dim or 0 for dim in shape)


def record_specs(features: Features) -> dict[str, Any]:
    """TypeSpecs of one record's wire columns, and whether optional features are there."""
    specs: dict[str, Any] = {}
    for name, feature in features.items():
        form = tensor_form(feature)
        for column in feature.wire_columns(name):
            specs[column.name] = value_spec(column, form if column.name == name else None)
        if is_optional(feature):
            specs[presence_name(name)] = tf.TensorSpec([], tf.bool)
    return specs


def to_record(wire: dict[str, Any], features: Features) -> dict[str, Any]:
    """One record, as steps see it, from its wire columns."""
    record: dict[str, Any] = {}
    for name, feature in features.items():
        record |= {side: wire[side] for side in side_names(name, feature)}
        form = tensor_form(feature)
        if isinstance(feature, Image) and feature.storage == "raw":
            size: list[Any] = [feature.height, feature.width]
            if not feature.fixed_size:
                size = [wire[f"{name}/height"], wire[f"{name}/width"]]
            pixels = tf.reshape(tf.io.decode_raw(wire[name], tf.uint8), [*size, feature.channels])
            record[name] = tf.ensure_shape(
                pixels, (feature.height, feature.width, feature.channels)
            )
        elif form is None:
            record[name] = wire[name]
        else:
            record[name] = _tensor(wire, form.wire_columns(name), form)
            if isinstance(feature, Audio) and feature.dtype == "int16":
                record[name] = tf.cast(record[name], tf.float32) / _PCM
    return record


def _tensor(wire: dict[str, Any], columns: tuple[WireColumn, ...], form: TensorForm) -> Any:
    """A tensor of its dtype and shape from the stored list of one record."""
    column, *sides = columns
    value = from_wire_dtype(wire[column.name], form)
    if value.shape.as_list() == list(form.shape):
        return value
    sizes = wire[sides[0].name] if sides else [-1 if dim is None else dim for dim in form.shape]
    return tf.ensure_shape(tf.reshape(value, sizes), form.shape)


def from_wire_dtype(value: Any, form: TensorForm) -> Any:
    """Values of a wire column as values of the feature's dtype."""
    if form.dtype == "uint64":
        return tf.bitcast(value, tf.uint64)
    return value if value.dtype.name == form.dtype else tf.cast(value, form.dtype)


def to_wire_dtype(value: Any, column: WireColumn, form: TensorForm) -> Any:
    """Values of a feature's dtype as values of its wire column."""
    if column.packed is not None:
        return tf.cast(value, column.packed)
    if form.dtype == "uint64":
        return tf.bitcast(value, tf.int64)
    return value if column.kind == "bytes" else tf.cast(value, WIRE_DTYPES[column.kind])


def sides_of(name: str, feature: Feature, record: dict[str, Any], present: Any) -> dict[str, Any]:
    """What stands beside a feature's tensor; ``present`` where no step said whether it is there."""
    sides = {side: record[side] for side in side_columns(name, feature)}
    if is_optional(feature):
        sides[presence_name(name)] = record.get(presence_name(name), present)
    return sides


def empty_wire(features: Features, names: Set[str]) -> dict[str, Any]:
    """Constants for one record's wire columns that no step looks at; of ``names``, none."""
    wire = {
        name: tf.zeros([dim or 0 for dim in spec.shape], spec.dtype)
        for name, spec in record_specs(features).items()
        if name not in names
    }
    for name, feature in features.items():
        if name in wire and isinstance(feature, Image) and feature.storage == "raw":
            num_bytes = (feature.height or 0) * (feature.width or 0) * feature.channels
            wire[name] = tf.constant(bytes(num_bytes))
    return wire


def infer_feature(name: str, value: Any, *, given: Feature | None, where: str) -> Feature:
    """The feature that a tensor of a record is.

    Args:
        name: The feature's name.
        value: The tensor, as a function gave it.
        given: What the feature was before, if the function gave the very tensor that it got.
        where: Names the function, for the error.

    Raises:
        RecipeError: if such a tensor cannot be stored.
    """
    if given is not None:
        return given
    found = f"prepare: {where} gives {name!r}"
    if not isinstance(value, tf.Tensor):
        raise RecipeError(f"{found} as a {type(value).__name__}, expected a dense tensor.")
    dtype, shape = value.dtype.name, value.shape
    if dtype not in _DTYPES:
        why = "an Example has no complex numbers: give two features" if "complex" in dtype else ""
        raise RecipeError(
            f"{found} as {dtype}, expected one of {', '.join(sorted(_DTYPES))}. "
            + (why or "Cast it with tf.cast.")
        )
    if dtype == "uint8" and shape.rank == 3 and shape[2] in (1, 3, 4):
        return Image(height=shape[0], width=shape[1], channels=shape[2])
    if shape.rank == 0:
        return Scalar(dtype=dtype)
    if shape.rank is not None:
        return Tensor(dtype=dtype, shape=tuple(shape.as_list()))
    raise RecipeError(
        f"{found} with the shape {shape}; expected a known number of dimensions. Fix it with "
        "tf.ensure_shape."
    )


def to_wire(name: str, feature: Feature, record: dict[str, Any]) -> dict[str, Any]:
    """The wire columns of one record's feature as tensors of the wire's dtypes; pixels stay uint8.

    Fails where the tensor has not the feature's shape.
    """
    value = record[name]
    sides = sides_of(name, feature, record, present=True)
    form = tensor_form(feature)
    if form is None:
        if not isinstance(feature, Image) or feature.storage == "encoded":
            return {name: value, **sides}
        value = tf.ensure_shape(value, (feature.height, feature.width, feature.channels))
        if feature.fixed_size:
            return {name: value}
        height, width, _ = tf.unstack(tf.shape(value, tf.int64))
        return {name: tf.reshape(value, [-1]), f"{name}/height": height, f"{name}/width": width}
    value = tf.ensure_shape(value, form.shape)
    if isinstance(feature, Audio) and feature.dtype == "int16":
        value = tf.saturate_cast(tf.round(value * _PCM), tf.int16)
    column, *shape_column = form.wire_columns(name)
    if shape_column:
        sides[shape_column[0].name] = tf.shape(value, tf.int64)
    value = to_wire_dtype(value, column, form)
    return {name: value if len(form.shape) <= 1 else tf.reshape(value, [-1]), **sides}


def wire_specs(name: str, feature: Feature) -> dict[str, Any]:
    """TensorSpecs of what :func:`to_wire` gives, of one record."""
    specs: dict[str, Any] = {}
    form = tensor_form(feature)
    for column in feature.wire_columns(name):
        shape: list[int | None] = [column.length]
        dtype = WIRE_DTYPES[column.kind]
        if isinstance(feature, Image) and feature.storage == "raw" and column.name == name:
            dtype = tf.uint8
            shape = [feature.height, feature.width, feature.channels]
            shape = shape if feature.fixed_size else [None]
        elif form is None or column.name != name or not form.shape:
            shape = [] if column.length == 1 else shape
        elif column.packed is not None:
            shape = [None if None in form.shape else size_of(form.shape)]
        if column.packed is not None:
            dtype = tf.as_dtype(column.packed)
        specs[column.name] = tf.TensorSpec(shape, dtype)
    if is_optional(feature):
        specs[presence_name(name)] = tf.TensorSpec([], tf.bool)
    return specs
