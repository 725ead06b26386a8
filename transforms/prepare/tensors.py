"""Between Arrow and TensorFlow: wire columns in, records of tensors, wire columns out.

In a record, a feature is a tensor: ``string[]`` for an encoded image (its side columns stand
beside it as int64 scalars), ``uint8[height, width, channels]`` for a decoded one, int64 for a
class, the declared dtype and shape for all else. A missing optional value is the feature's
``fill``, or a list of length zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from ...schemas.errors import RecipeError
from ...schemas.features import (
    Audio,
    Dtype,
    Feature,
    Features,
    Image,
    Scalar,
    Tensor,
    TensorForm,
    WireColumn,
    side_columns,
    tensor_form,
    wire_columns,
)
from ...schemas.wire import ITEM_BYTES

_DTYPES = frozenset(get_args(Dtype))
_WIRE_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}
_PCM = 32_768
"""16-bit samples of a sound in [-1, 1]."""


def to_batch(columns: pa.RecordBatch, features: Features, names: Set[str]) -> dict[str, Any]:
    """The named wire columns of features as tensors of whole batches."""
    batch: dict[str, Any] = {}
    for name, feature in features.items():
        form = tensor_form(feature)
        fill = form.fill if form is not None and not form.shape else None
        for column in feature.wire_columns(name):
            if column.name in names:
                batch[column.name] = _column_tensor(columns.column(column.name), column, fill)
    return batch


def batch_specs(features: Features, names: Set[str]) -> dict[str, Any]:
    """TypeSpecs of what :func:`to_batch` gives."""
    specs: dict[str, Any] = {}
    for column in wire_columns(features):
        if column.name not in names:
            continue
        dtype = _WIRE_DTYPES[column.kind]
        if column.length is None:
            specs[column.name] = tf.RaggedTensorSpec([None, None], dtype, row_splits_dtype=tf.int64)
        else:
            shape = [None] if column.length == 1 else [None, column.length]
            specs[column.name] = tf.TensorSpec(shape, dtype)
    return specs


def record_specs(features: Features) -> dict[str, Any]:
    """TypeSpecs of one record's wire columns: the elements of :func:`to_batch`."""
    specs: dict[str, Any] = {}
    for column in wire_columns(features):
        shape = [] if column.length == 1 else [column.length]
        specs[column.name] = tf.TensorSpec(shape, _WIRE_DTYPES[column.kind])
    return specs


def to_record(wire: dict[str, Any], features: Features) -> dict[str, Any]:
    """One record, as steps see it, from its wire columns."""
    record: dict[str, Any] = {}
    for name, feature in features.items():
        record |= {side: wire[side] for side in side_columns(name, feature)}
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
    """A tensor of its dtype and shape from the stored list, or packed bytes, of one record."""
    column, *sides = columns
    value = wire[column.name]
    if column.packed is not None:
        value = tf.io.decode_raw(value, column.packed)
    elif form.dtype == "uint64":
        value = tf.bitcast(value, tf.uint64)
    elif value.dtype.name != form.dtype:
        value = tf.cast(value, form.dtype)
    if value.shape.as_list() == list(form.shape):
        return value
    sizes = wire[sides[0].name] if sides else [-1 if dim is None else dim for dim in form.shape]
    return tf.ensure_shape(tf.reshape(value, sizes), form.shape)


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
        form = tensor_form(feature)
        for column in form.wire_columns(name) if form is not None else ():
            if column.name in wire and column.packed is not None:
                num_values = math.prod(dim or 0 for dim in form.shape)
                wire[name] = tf.constant(bytes(num_values * ITEM_BYTES[column.packed]))
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
    sides = {side: record[side] for side in side_columns(name, feature)}
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
    if column.packed is not None:
        value = tf.cast(value, column.packed)
    elif form.dtype == "uint64":
        value = tf.bitcast(value, tf.int64)
    elif column.kind != "bytes":
        value = tf.cast(value, _WIRE_DTYPES[column.kind])
    return {name: value if len(form.shape) <= 1 else tf.reshape(value, [-1]), **sides}


def wire_specs(name: str, feature: Feature) -> dict[str, Any]:
    """TensorSpecs of what :func:`to_wire` gives, of one record."""
    specs: dict[str, Any] = {}
    form = tensor_form(feature)
    for column in feature.wire_columns(name):
        shape: list[int | None] = [column.length]
        dtype = _WIRE_DTYPES[column.kind]
        if isinstance(feature, Image) and feature.storage == "raw" and column.name == name:
            dtype = tf.uint8
            shape = [feature.height, feature.width, feature.channels]
            shape = shape if feature.fixed_size else [None]
        elif form is None or column.name != name or not form.shape:
            shape = [] if column.length == 1 else shape
        elif column.packed is not None:
            shape = [None if None in form.shape else math.prod(map(int, form.shape))]
        if column.packed is not None:
            dtype = tf.as_dtype(column.packed)
        specs[column.name] = tf.TensorSpec(shape, dtype)
    return specs


def map_records(
    function: Callable[[dict[str, Any]], dict[str, Any]],
    wire: dict[str, Any],
    num_records: Any,
    specs: dict[str, Any],
    *,
    parallel_records: int,
) -> dict[str, Any]:
    """Maps a function over the records of a batch, inside a traced function.

    As ``tf.map_fn`` does, but lists of varying length are laid end to end in one copy: its ragged
    outputs took four times as long for images of different sizes.

    Args:
        function: From one record's wire columns to one record's values, 1-D where they vary.
        wire: The batch, as :func:`to_batch` gives it.
        num_records: int32 scalar.
        specs: Of the function's values, by name.
        parallel_records: How many records may be in flight.

    Returns:
        By name the values, stacked; where lengths vary, (all values end to end, int64 lengths).
    """
    arrays = {
        name: tf.TensorArray(value.dtype, size=num_records, element_shape=value.shape[1:]).unstack(
            value
        )
        for name, value in wire.items()
        if not isinstance(value, tf.RaggedTensor)
    }
    varying = [name for name, spec in specs.items() if None in spec.shape]
    outputs = {
        name: tf.TensorArray(
            spec.dtype, size=num_records, element_shape=spec.shape, infer_shape=name not in varying
        )
        for name, spec in specs.items()
    }
    lengths = {
        name: tf.TensorArray(tf.int64, size=num_records, element_shape=[]) for name in varying
    }

    def body(row: Any, outputs: dict[str, Any], lengths: dict[str, Any]) -> tuple[Any, Any, Any]:
        record = {
            name: arrays[name].read(row) if name in arrays else value[row]
            for name, value in wire.items()
        }
        values = function(record)
        outputs = {name: array.write(row, values[name]) for name, array in outputs.items()}
        lengths = {
            name: array.write(row, tf.size(values[name], tf.int64))
            for name, array in lengths.items()
        }
        return row + 1, outputs, lengths

    _, outputs, lengths = tf.while_loop(
        lambda row, outputs, lengths: row < num_records,
        body,
        (tf.constant(0), outputs, lengths),
        parallel_iterations=parallel_records,
        maximum_iterations=num_records,
    )
    return {
        name: (array.concat(), lengths[name].stack()) if name in lengths else array.stack()
        for name, array in outputs.items()
    }


def from_batch(value: Any, column: WireColumn) -> pa.Array:
    """One column of a batch, as :func:`map_records` gave it, as an Arrow array."""
    if isinstance(value, tuple):
        flat, lengths = (part.numpy() for part in value)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        if column.length is not None:
            return _binary(offsets * flat.itemsize, flat)
        return pa.LargeListArray.from_arrays(pa.array(offsets), _flat(flat, column))
    array = value.numpy()
    if column.packed is not None or array.dtype == np.uint8:
        row_bytes = int(np.prod(array.shape[1:])) * array.itemsize
        return _binary(np.arange(len(array) + 1, dtype=np.int64) * row_bytes, array)
    values = _flat(array.reshape(-1), column)
    if column.length == 1:
        return values
    return pa.FixedSizeListArray.from_arrays(values, column.length)


def _column_tensor(array: pa.Array, column: WireColumn, fill: object) -> Any:
    if array.null_count and column.length is not None:
        array = pc.fill_null(array, pa.scalar(_stored(fill, column), array.type))
    if column.length == 1:
        return tf.constant(array.to_numpy(zero_copy_only=False), _WIRE_DTYPES[column.kind])
    flat = tf.constant(array.flatten().to_numpy(zero_copy_only=False), _WIRE_DTYPES[column.kind])
    if column.length is not None:
        return tf.reshape(flat, [len(array), column.length])
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)


def _stored(fill: Any, column: WireColumn) -> Any:
    """A value of a wire column that stands for a missing one."""
    if column.packed is not None:
        return b"" if fill is None else np.array(fill, column.packed).tobytes()
    if column.kind == "bytes":
        return str(fill).encode()
    # A uint64 keeps its bits.
    return fill - (1 << 64) if column.kind == "int64" and fill >= 1 << 63 else fill


def _flat(values: Any, column: WireColumn) -> pa.Array:
    if column.kind == "bytes":
        return pa.array(values.tolist(), pa.large_binary())
    return pa.array(values)


def _binary(offsets: Any, values: Any) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
