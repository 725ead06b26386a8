"""Records and batches between Arrow's wire columns and the tensors that steps see.

In a record, a feature is a tensor: ``string[]`` for an encoded image (its side columns stand
beside it as int64 scalars), ``uint8[height, width, channels]`` for a decoded one, int64 for a
class, the declared dtype and shape for all else. A missing optional value is the feature's
``fill``, or a list of length zero; ``presence_name(name)``, a bool, stands beside it.

Batches are mapped in a graph in one of two ways. ``map_records`` runs a function of one record in a
loop. Where steps work on a leading batch dimension as well, ``to_records`` and ``from_records``
take all records through at once: dense tensors ``[num_records, *shape]``, and ``tf.RaggedTensor``
where the first dimension of a feature varies.

A module about TensorFlow: import it where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from .chain import can_batch

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


def to_batch(columns: pa.RecordBatch, features: Features, names: Set[str]) -> dict[str, Any]:
    """The named wire columns of features as tensors of whole batches.

    With a column, whether it is there comes along, where it may be missing.
    """
    batch: dict[str, Any] = {}
    for name, feature in features.items():
        form = tensor_form(feature)
        for column in feature.wire_columns(name):
            if column.name not in names:
                continue
            array = columns.column(column.name)
            batch[column.name] = _column_tensor(array, column, form)
            if column.name == name and is_optional(feature):
                present = array.is_valid().to_numpy(zero_copy_only=False)
                batch[presence_name(name)] = tf.constant(present)
    return batch


def batch_specs(features: Features, names: Set[str]) -> dict[str, Any]:
    """TypeSpecs of what :func:`to_batch` gives."""
    specs: dict[str, Any] = {}
    for name, feature in features.items():
        form = tensor_form(feature)
        for column in feature.wire_columns(name):
            if column.name not in names:
                continue
            one = value_spec(column, form if column.name == name else None)
            if None in one.shape:
                specs[column.name] = tf.RaggedTensorSpec(
                    [None, None], one.dtype, row_splits_dtype=tf.int64
                )
            else:
                specs[column.name] = tf.TensorSpec([None, *one.shape], one.dtype)
            if column.name == name and is_optional(feature):
                specs[presence_name(name)] = tf.TensorSpec([None], tf.bool)
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


def to_records(wire: dict[str, Any], features: Features) -> dict[str, Any]:
    """All records of a batch, as batched steps see them.

    What is not in ``wire``, or cannot be batched, is there as an empty tensor that no step reads.
    """
    records: dict[str, Any] = {}
    for name, feature in features.items():
        form = tensor_form(feature)
        for part in (name, *side_names(name, feature)):
            records[part] = wire.get(part, tf.zeros([0]))
        if name in wire and form is not None and can_batch(feature):
            records[name] = _tensors(wire[name], form)
    return records


def _tensors(values: Any, form: TensorForm) -> Any:
    if isinstance(values, tf.RaggedTensor):
        flat = tf.reshape(from_wire_dtype(values.flat_values, form), [-1, *form.shape[1:]])
        lengths = values.row_lengths() // size_of(form.shape[1:])
        return tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)
    return tf.reshape(from_wire_dtype(values, form), [-1, *form.shape])


def from_records(name: str, feature: Feature, records: dict[str, Any], like: Any) -> dict[str, Any]:
    """The wire columns of all records' feature, as :func:`map_records` gives them.

    Args:
        name: The feature's name.
        feature: One that :func:`can_batch`.
        records: What the batched steps gave.
        like: bool[num_records], all True: the presence of what no step said is missing.

    Raises:
        RecipeError: if a tensor has not the feature's shape behind a batch dimension.
    """
    value = records[name]
    sides = sides_of(name, feature, records, present=like)
    form = tensor_form(feature)
    if form is None:
        return {name: value, **sides}
    (column,) = form.wire_columns(name)
    try:
        if form.shape[:1] != (None,):
            value = tf.ensure_shape(value, [None, *form.shape])
            value = value if len(form.shape) <= 1 else tf.reshape(value, [-1, size_of(form.shape)])
            return {name: to_wire_dtype(value, column, form), **sides}
        if not isinstance(value, tf.RaggedTensor):
            value = tf.RaggedTensor.from_tensor(value)
        flat = tf.ensure_shape(value.flat_values, form.shape)
    except (ValueError, TypeError, AttributeError) as error:
        raise RecipeError(
            f"prepare: a step on whole batches gives {name!r} as {value!r}, expected the shape "
            f"{form.shape} behind a batch dimension: {error}. Leave batched=True out where a "
            "function works on single records only."
        ) from None
    lengths = tf.cast(value.row_lengths(), tf.int64) * size_of(form.shape[1:])
    return {name: (tf.reshape(to_wire_dtype(flat, column, form), [-1]), lengths), **sides}


def from_batch(value: Any, column: WireColumn, present: Any = None) -> pa.Array:
    """One column of a batch, as :func:`map_records` gave it, as an Arrow array.

    ``present``: bool[num_records], where the column is not missing; None where it never is.
    """
    array = _array(value, column)
    if present is None or present.numpy().all():
        return array
    return pc.if_else(pa.array(present.numpy()), array, pa.scalar(None, array.type))


def _array(value: Any, column: WireColumn) -> pa.Array:
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


def _column_tensor(array: pa.Array, column: WireColumn, form: TensorForm | None) -> Any:
    if array.null_count and column.length is not None:
        fill = form.fill if form is not None and not form.shape else None
        array = pc.fill_null(array, pa.scalar(_stored(fill, column), array.type))
    if column.packed is not None and form is not None:
        return _unpacked(array, column, form)
    if column.length == 1:
        return tf.constant(array.to_numpy(zero_copy_only=False), WIRE_DTYPES[column.kind])
    flat = tf.constant(array.flatten().to_numpy(zero_copy_only=False), WIRE_DTYPES[column.kind])
    if column.length is not None:
        return tf.reshape(flat, [len(array), column.length])
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)


def _unpacked(array: pa.Array, column: WireColumn, form: TensorForm) -> Any:
    """Packed values as a tensor of their dtype: no string of bytes is made of any."""
    dtype = np.dtype(tf.as_dtype(column.packed).as_numpy_dtype)
    if not len(array):
        array = pa.array([b""], array.type).slice(1)
    _, offsets, data = array.buffers()
    stops = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(data or b"", np.uint8)[stops[0] : stops[-1]]
    flat = tf.constant(np.frombuffer(content.tobytes(), dtype))
    if None in form.shape:
        lengths = np.diff(stops) // dtype.itemsize
        return tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)
    return tf.reshape(flat, [-1, size_of(form.shape)] if form.shape else [-1])


def _stored(fill: Any, column: WireColumn) -> Any:
    """A value of a wire column that stands for a missing one."""
    if column.packed is not None:
        return b"" if fill is None else np.array(fill, column.packed).tobytes()
    if column.kind == "bytes":
        return str(fill).encode()
    if column.kind == "int64":
        fill = int(fill)
    # A uint64 keeps its bits.
    return fill - (1 << 64) if column.kind == "int64" and fill >= 1 << 63 else fill


def _flat(values: Any, column: WireColumn) -> pa.Array:
    if column.kind == "bytes":
        return pa.array(values.tolist(), pa.large_binary())
    return pa.array(values)


def _binary(offsets: Any, values: Any) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
