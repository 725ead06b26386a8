"""Converts records and batches between Arrow wire columns and the tensors that steps see.

In a record, a feature is a tensor: ``string[]`` for an encoded image (with its side columns as
int64 scalars), ``uint8[height, width, channels]`` for a decoded one, int64 for a class, the
declared dtype and shape for anything else. A missing optional value is the feature's ``fill``, or
a list of length zero; the bool ``presence_name(name)`` says whether it is present.

A graph maps batches in one of two ways. ``map_records`` runs a function of one record in a loop. If
steps also work with a leading batch dimension, ``to_records`` and ``from_records`` process all
records at once: as dense tensors ``[num_records, *shape]``, and as ``tf.RaggedTensor`` if the first
dimension of a feature varies.

Imports TensorFlow: import it only where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
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
    can_batch,
    is_optional,
    presence_name,
    side_columns,
    side_names,
    tensor_form,
)
from ...examples.encode import binary_array, offsets_of
from ..values import MAX_FOUND, Flag

WIRE_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}
_DTYPES = frozenset(get_args(Dtype))
_PCM = 32_768
"""Scale from samples in [-1, 1] to 16-bit samples."""


def value_spec(column: WireColumn, form: TensorForm | None) -> Any:
    """The TensorSpec of one record's wire column, with packed values unpacked."""
    if column.packed is None or form is None:
        shape = [] if column.length == 1 else [column.length]
        return tf.TensorSpec(shape, WIRE_DTYPES[column.kind])
    if not form.shape:
        return tf.TensorSpec([], column.packed)
    return tf.TensorSpec([None if None in form.shape else size_of(form.shape)], column.packed)


def size_of(shape: tuple[int | None, ...]) -> int:
    """The number of values of a tensor of fixed shape."""
    return math.prod(dim or 0 for dim in shape)


def record_specs(features: Features) -> dict[str, Any]:
    """The TypeSpecs of one record's wire columns, and of the presence of optional features."""
    specs: dict[str, Any] = {}
    for name, feature in features.items():
        form = tensor_form(feature)
        for column in feature.wire_columns(name):
            specs[column.name] = value_spec(column, form if column.name == name else None)
        if is_optional(feature):
            specs[presence_name(name)] = tf.TensorSpec([], tf.bool)
    return specs


def to_record(wire: dict[str, Any], features: Features) -> dict[str, Any]:
    """Converts one record's wire columns to the form that steps see."""
    record: dict[str, Any] = {}
    for name, feature in features.items():
        record |= {side: wire[side] for side in side_names(name, feature)}
        form = tensor_form(feature)
        if isinstance(feature, Image) and feature.storage == "raw":
            size: list[Any] = [feature.height, feature.width]
            if not feature.fixed_size:
                size = [wire[f"{name}/height"], wire[f"{name}/width"]]
            flat = tf.io.decode_raw(wire[name], tf.as_dtype(feature.dtype))
            pixels = tf.reshape(flat, [*size, feature.channels])
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
    """Converts the stored list of one record to a tensor of the feature's dtype and shape."""
    column, *sides = columns
    value = from_wire_dtype(wire[column.name], form)
    if value.shape.as_list() == list(form.shape):
        return value
    sizes = wire[sides[0].name] if sides else [-1 if dim is None else dim for dim in form.shape]
    return tf.ensure_shape(tf.reshape(value, sizes), form.shape)


def from_wire_dtype(value: Any, form: TensorForm) -> Any:
    """Converts values of a wire column to the feature's dtype."""
    if form.dtype == "uint64":
        return tf.bitcast(value, tf.uint64)
    return value if value.dtype.name == form.dtype else tf.cast(value, form.dtype)


def to_wire_dtype(value: Any, column: WireColumn, form: TensorForm) -> Any:
    """Converts values of a feature's dtype to the type of its wire column."""
    if column.packed is not None:
        return tf.cast(value, column.packed)
    if form.dtype == "uint64":
        return tf.bitcast(value, tf.int64)
    return value if column.kind == "bytes" else tf.cast(value, WIRE_DTYPES[column.kind])


def sides_of(name: str, feature: Feature, record: dict[str, Any], present: Any) -> dict[str, Any]:
    """The side tensors of a feature; ``present`` is the default for an unset presence."""
    sides = {side: record[side] for side in side_columns(name, feature)}
    if is_optional(feature):
        sides[presence_name(name)] = record.get(presence_name(name), present)
    return sides


def empty_wire(features: Features, names: Set[str]) -> dict[str, Any]:
    """Constants for the wire columns of one record that no step reads: all but ``names``."""
    wire = {
        name: tf.zeros([dim or 0 for dim in spec.shape], spec.dtype)
        for name, spec in record_specs(features).items()
        if name not in names
    }
    for name, feature in features.items():
        if name in wire and isinstance(feature, Image) and feature.storage == "raw":
            num_bytes = (feature.height or 0) * (feature.width or 0) * feature.pixel_bytes
            wire[name] = tf.constant(bytes(num_bytes))
    return wire


def infer_feature(name: str, value: Any, *, given: Feature | None, where: str) -> Feature:
    """Infers the feature of a tensor.

    Args:
        name: The feature's name.
        value: The tensor that a function returned.
        given: The feature before, if the function returned its input tensor unchanged.
        where: The function's name, for the error.

    Raises:
        RecipeError: if such a tensor cannot be stored.
    """
    if given is not None:
        return given
    problem = f"prepare: {where} returned {name!r}"
    if not isinstance(value, tf.Tensor):
        raise RecipeError(f"{problem} as a {type(value).__name__}, expected a dense tensor.")
    dtype, shape = value.dtype.name, value.shape
    if dtype not in _DTYPES:
        why = "Return the real and imaginary parts as two features." if "complex" in dtype else ""
        raise RecipeError(
            f"{problem} as {dtype}, expected one of {', '.join(sorted(_DTYPES))}. "
            + (why or "Cast it with tf.cast.")
        )
    if dtype == "uint8" and shape.rank == 3 and shape[2] in (1, 3, 4):
        return Image(height=shape[0], width=shape[1], channels=shape[2])
    if shape.rank == 0:
        return Scalar(dtype=dtype)
    if shape.rank is not None:
        return Tensor(dtype=dtype, shape=tuple(shape.as_list()))
    raise RecipeError(
        f"{problem} with shape {shape}, expected a known number of dimensions. Set it with "
        "tf.ensure_shape."
    )


def to_wire(name: str, feature: Feature, record: dict[str, Any]) -> dict[str, Any]:
    """Converts a feature of one record to its wire columns, in wire dtypes; pixels keep theirs.

    Fails if the tensor does not have the feature's shape.
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
    """The TensorSpecs of the result of :func:`to_wire`."""
    specs: dict[str, Any] = {}
    form = tensor_form(feature)
    for column in feature.wire_columns(name):
        shape: list[int | None] = [column.length]
        dtype = WIRE_DTYPES[column.kind]
        if isinstance(feature, Image) and feature.storage == "raw" and column.name == name:
            dtype = tf.as_dtype(feature.dtype)
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
    """Converts the named wire columns of a batch to tensors.

    An optional feature's column comes with its presence.
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
    """The TypeSpecs of the result of :func:`to_batch`."""
    specs: dict[str, Any] = {}
    for name, feature in features.items():
        form = tensor_form(feature)
        for column in feature.wire_columns(name):
            if column.name not in names:
                continue
            spec = value_spec(column, form if column.name == name else None)
            if None in spec.shape:
                specs[column.name] = tf.RaggedTensorSpec(
                    [None, None], spec.dtype, row_splits_dtype=tf.int64
                )
            else:
                specs[column.name] = tf.TensorSpec([None, *spec.shape], spec.dtype)
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

    Like ``tf.map_fn``, but lists of varying length are concatenated in one copy: the ragged
    outputs of ``tf.map_fn`` took four times as long for images of different sizes.

    Args:
        function: From one record's wire columns to one record's values, 1-D if lengths vary.
        wire: The batch, as returned by :func:`to_batch`.
        num_records: int32 scalar.
        specs: The TensorSpecs of the function's values, by name.
        parallel_records: How many records may be processed in parallel.

    Returns:
        The stacked values, by name; if lengths vary, (concatenated values, int64 lengths).
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
    """Converts a batch to the form that batched steps see.

    Anything that is not in ``wire``, or cannot be batched, is an empty tensor that no step reads.
    """
    records: dict[str, Any] = {}
    empty = tf.zeros([0])
    for name, feature in features.items():
        form = tensor_form(feature)
        for part in (name, *side_names(name, feature)):
            records[part] = wire.get(part, empty)
        if name in wire and form is not None and can_batch(feature):
            records[name] = _tensors(wire[name], form)
    return records


def _tensors(values: Any, form: TensorForm) -> Any:
    if isinstance(values, tf.RaggedTensor):
        flat = tf.reshape(from_wire_dtype(values.flat_values, form), [-1, *form.shape[1:]])
        lengths = values.row_lengths() // size_of(form.shape[1:])
        return tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)
    value = from_wire_dtype(values, form)
    if value.shape.rank == 1 + len(form.shape):
        return value
    return tf.reshape(value, [-1, *form.shape])


def from_records(name: str, feature: Feature, records: dict[str, Any], like: Any) -> dict[str, Any]:
    """Converts a feature of a batch to its wire columns, in the form of :func:`map_records`.

    Args:
        name: The feature's name.
        feature: A feature for which :func:`can_batch` is true.
        records: The result of the batched steps.
        like: bool[num_records], all True: the default for an unset presence.

    Raises:
        RecipeError: if a tensor does not have the feature's shape after the batch dimension.
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
            f"prepare: a batched step returned {name!r} as {value!r}, expected shape "
            f"{form.shape} after the batch dimension: {error}. Remove batched=True from "
            "functions that work on single records only."
        ) from None
    lengths = tf.cast(value.row_lengths(), tf.int64) * size_of(form.shape[1:])
    return {name: (tf.reshape(to_wire_dtype(flat, column, form), [-1]), lengths), **sides}


def of_failed(flag: Flag) -> Flag:
    """A flag with what was found in the records that fail, without the others."""
    found = [
        tf.ragged.boolean_mask(part, ~flag.fits) if part.shape.rank else part for part in flag.found
    ]
    return flag._replace(found=found)


def errors_of(flags: Sequence[Flag]) -> dict[int, Exception]:
    """The errors of the records of a batch that fail: row -> the error of the first check.

    Args:
        flags: From :func:`of_failed`, in the order of the checks.
    """
    errors: dict[int, Exception] = {}
    for flag in flags:
        rows = np.flatnonzero(~flag.fits.numpy()).tolist()
        found = [_by_row(part) for part in flag.found] if rows else []
        for index, row in enumerate(rows):
            if row not in errors:
                scope = flag.scope.numpy().decode()
                errors[row] = _assertion_error(scope, [part(index) for part in found])
    return dict(sorted(errors.items()))


def _by_row(part: Any) -> Callable[[int], Any]:
    """From a row to the part of a tensor that a batch of this record alone would have."""
    if isinstance(part, tf.RaggedTensor):
        flat, ends = part.flat_values.numpy(), part.row_splits.numpy()
        return lambda row: flat[ends[row] : ends[row + 1]]
    if not part.shape.rank:
        return lambda row: part
    values = part.numpy()
    return lambda row: values[row : row + 1]


def _assertion_error(scope: str, found: list[Any]) -> Exception:
    """The error that an assertion in a graph gives; TensorFlow makes the text of the values."""
    text = ""
    try:
        tf.raw_ops.Assert(condition=False, data=found, summarize=MAX_FOUND)
    except tf.errors.InvalidArgumentError as error:
        _, start, rest = error.message.partition("assertion failed:")
        text = start + rest.rpartition(" [Op:Assert]")[0]
    message = f"{text}\n\t [[{{{{node {scope}/Assert}}}}]]"
    made: Exception = tf.errors.InvalidArgumentError(None, None, message)
    return made


def from_batch(value: Any, column: WireColumn, present: Any = None) -> pa.Array:
    """Converts one column of a batch, from :func:`map_records`, to an Arrow array.

    ``present``: bool[num_records], in which rows the column is present; None if in all.
    """
    array = _array(value, column)
    if present is None or present.numpy().all():
        return array
    return pc.if_else(pa.array(present.numpy()), array, pa.scalar(None, array.type))


def _array(value: Any, column: WireColumn) -> pa.Array:
    if isinstance(value, tuple):
        flat, lengths = (part.numpy() for part in value)
        offsets = offsets_of(lengths)
        if column.length is not None:
            return _binary(offsets * flat.itemsize, flat)
        return pa.LargeListArray.from_arrays(pa.array(offsets), _flat(flat, column))
    array = value.numpy()
    if column.packed is not None or array.dtype in (np.uint8, np.uint16):
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
    """Converts packed values to a tensor of their dtype, without creating a string per value."""
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
    """The value of a wire column that represents a missing one."""
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
    return binary_array(offsets, pa.py_buffer(np.ascontiguousarray(values)))
