"""Decodes records of a TFRecord file to Arrow columns: Examples, SequenceExamples, tensors.

tfx_bsl decodes batches of Examples into lists for each feature. The file does not say what the
lists mean (a single value, a fixed number, frames of a sequence, or a serialized tensor in the
bytes), so :func:`shapes_of` infers it from the records. An encoded image gets columns for the facts
in its header.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....schemas.errors import SchemaError
from ....schemas.features import (
    ClassLabel,
    Feature,
    Image,
    Scalar,
    Tensor,
    TensorForm,
    is_encoded,
    tensor_form,
)
from ....schemas.wire import FLOATS
from ...examples.decode import NotAnExampleError, read_frames, top_level_fields
from ...examples.dtypes import numpy_dtype
from ...examples.encode import offsets_of
from ...examples.varint import varint
from ...media.image_header import UnreadableImageError
from ...media.tiff import readable_image
from ..arrow.rows import with_converted
from ..arrow.types import is_list_type

TENSOR = "tensor"
"""The feature name of a record that is a serialized tensor."""

_STRINGS = "\x08\x07\x12"
"""The first bytes of serialized string tensors: their dtype, and the tag of their shape."""
_PIXELS = "\x08\x04\x12"
"""The same for uint8."""
_DTYPES = {"int64": "int64", "float": "float32", "large_binary": "string", "binary": "string"}

_VALUES = {"int64": pa.int64(), "float32": pa.float32(), "string": pa.large_binary()}

IMAGE_SIDES = ("height", "width", "orientation")
"""What wire columns have of an encoded image, beside its bytes."""


@dataclasses.dataclass
class ColumnShape:
    """The common shape of the lists of one feature."""

    kind: str = ""
    """int64, float32 or string; empty if no list had a value."""
    num_present: int = 0
    lengths: tuple[int, int] | None = None
    """Minimum and maximum number of values; for sequences, in each frame."""
    framed: bool = False
    tensors: tuple[str, tuple[int | None, ...]] | None = None
    """Dtype and shape, if every value is a serialized tensor."""
    may_be_tensors: bool = True

    def merge(self, other: ColumnShape, *, name: str, paths: tuple[str, str]) -> ColumnShape:
        """The common shape of both; ``paths`` are their files, for errors.

        Raises:
            SchemaError: if they have values of different kinds.
        """
        if self.kind and other.kind and self.kind != other.kind:
            raise SchemaError(
                f"feature {name!r} has {self.kind} values in records of {paths[0]} and "
                f"{other.kind} values in records of {paths[1]}. Read the files as separate "
                "sources, or write them again."
            )
        if self.framed != other.framed and self.num_present and other.num_present:
            raise SchemaError(
                f"feature {name!r} is in the context of some records and in the sequences of "
                f"others ({paths[0]}, {paths[1]}). Write the files again."
            )
        pairs = [lengths for lengths in (self.lengths, other.lengths) if lengths is not None]
        given = [tensors for tensors in (self.tensors, other.tensors) if tensors is not None]
        return ColumnShape(
            kind=self.kind or other.kind,
            num_present=self.num_present + other.num_present,
            lengths=(min(a for a, _ in pairs), max(b for _, b in pairs)) if pairs else None,
            framed=self.framed or other.framed,
            tensors=_common(given),
            may_be_tensors=self.may_be_tensors and other.may_be_tensors,
        )

    def feature(self, num_records: int) -> Feature:
        """The feature that stores such lists."""
        optional = self.num_present < num_records
        if (
            self.may_be_tensors
            and self.tensors is not None
            and not optional
            and (0 not in self.tensors[1])
        ):
            dtype, shape = self.tensors
            return Tensor(dtype, shape) if shape else Scalar(dtype)  # type: ignore[arg-type]
        low, high = self.lengths or (0, 0)
        kind: Any = self.kind or "string"
        if self.framed:
            if low == high == 1:
                return Tensor(kind, (None,), optional=optional)
            if low == high and high:
                return Tensor(kind, (None, high), optional=optional)
            return Tensor(kind, (None, None))
        if low == high == 1:
            return Scalar(kind, optional=optional)
        if low == high and high and not optional:
            return Tensor(kind, (high,))
        return Tensor(kind, (None,), optional=optional)

    def to_json(self) -> list[Any]:
        """Plain JSON, which :meth:`from_json` reads."""
        return [*dataclasses.astuple(self)]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> ColumnShape:
        """Reads the output of :meth:`to_json`."""
        kind, present, lengths, framed, tensors, may_be = value
        return cls(
            kind=kind,
            num_present=present,
            lengths=tuple(lengths) if lengths is not None else None,
            framed=framed,
            tensors=(tensors[0], tuple(tensors[1])) if tensors is not None else None,
            may_be_tensors=may_be,
        )


def decode(
    records: Sequence[bytes], names: Mapping[str, Sequence[str]] | None = None
) -> pa.RecordBatch:
    """Decodes records to a column per feature: lists, or lists of lists for sequence frames.

    Args:
        records: Serialized Examples, SequenceExamples or tensors, all of one kind.
        names: The features to decode, each with its possible kinds of values; None for all.

    Raises:
        RuntimeError: if a record is invalid, or a feature has several kinds of values.
    """
    tensors = [record[:1] == b"\x08" for record in records]
    if any(tensors):
        if not all(tensors) or (names is not None and list(names) != [TENSOR]):
            raise RuntimeError("a serialized tensor among Examples")
        column = pa.array([[record] for record in records], pa.large_list(pa.large_binary()))
        return pa.RecordBatch.from_arrays([column], names=[TENSOR])
    frames = [read_frames(record) if _has_frames(record) else {} for record in records]
    # A SequenceExample's context has the field number of an Example's features.
    columns = _decode_examples(records)
    for name in sorted({name for record in frames for name in record}, key=str.encode):
        if name in columns and columns[name].null_count < len(records):
            raise RuntimeError(f"{name!r} is both in the context and in the sequences")
        columns[name] = _frames_column([record.get(name) for record in frames])
    return _chosen(columns, len(records), names)


def _decode_examples(records: Sequence[bytes]) -> dict[str, pa.Array]:
    """The features of Examples, name -> column of lists."""
    from tfx_bsl.coders import example_coder

    batch = example_coder.ExamplesToRecordBatchDecoder().DecodeBatch(list(records))
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _frames_column(rows: Sequence[list[bytes] | None]) -> pa.Array:
    """Decodes the frames of one name, each a serialized Feature, to a column of lists of lists.

    Each frame is decoded as an Example with one feature, because tfx_bsl's decoder of
    SequenceExamples keeps only the low 32 bits of an int64 (docs/decisions/0011-sources.md).
    """
    flat = [frame for frames in rows if frames for frame in frames]
    heads = {size: _head(size) for size in set(map(len, flat))}
    examples = [heads[len(frame)] + frame for frame in flat]
    columns = _decode_examples(examples) if examples else {}
    values = columns.get("", pa.nulls(len(examples)))
    ends = np.cumsum([0, *(len(frames or ()) for frames in rows)])
    missing = pa.array([frames is None for frames in rows])
    return pa.LargeListArray.from_arrays(pa.array(ends), values, mask=missing)


def _head(size: int) -> bytes:
    """The bytes before a Feature of this size in an Example of a single unnamed feature."""
    value = b"\x12" + varint(size)
    entry = b"\x0a" + varint(len(value) + size) + value
    return b"\x0a" + varint(len(entry) + size) + entry


def shapes_of(batch: pa.RecordBatch) -> dict[str, ColumnShape]:
    """The common shape of the lists of each column."""
    return {
        name: _shape_of(column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }


def read_tensor(content: bytes) -> np.ndarray[Any, Any]:
    """Reads a tensor written by ``tf.io.serialize_tensor``; strings as objects of bytes.

    Other messages may parse as a tensor by chance, or as zeros if they have no values, so the
    tensor must serialize to the same bytes.

    Raises:
        ValueError: if the bytes are not a serialized tensor.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework import tensor_pb2

    proto = tensor_pb2.TensorProto()
    try:
        proto.ParseFromString(content)
        values: np.ndarray[Any, Any] = tf.make_ndarray(proto)
        same = _written(proto, values) == content or (
            tf.make_tensor_proto(values, proto.dtype).SerializeToString() == content
        )
    except (DecodeError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise ValueError(f"not a serialized tensor ({type(error).__name__})") from None
    if not same:
        raise ValueError("not a serialized tensor (it serializes to different bytes)")
    return values


def _written(proto: Any, values: np.ndarray[Any, Any]) -> bytes:
    """A tensor as ``tf.io.serialize_tensor`` writes it."""
    made = type(proto)(dtype=proto.dtype, tensor_shape=proto.tensor_shape)
    if values.dtype == object:
        made.string_val.extend(values.ravel().tolist())
    else:
        made.tensor_content = values.tobytes()
    return bytes(made.SerializeToString())


def _has_frames(record: bytes) -> bool:
    try:
        return 2 in top_level_fields(record)
    except NotAnExampleError:
        return False


def kinds_of(feature: Feature) -> tuple[str, ...]:
    """The kinds of values that a feature accepts, first the default for missing columns.

    Strings may be serialized tensors, or the name of a class.
    """
    form = tensor_form(feature)
    if isinstance(feature, Image) and not is_encoded(feature):
        return ("string", "int64")
    if form is None or form.dtype == "string":
        return ("string",)
    return ("float32", "int64", "string") if form.dtype in FLOATS else ("int64", "string")


def _chosen(
    columns: Mapping[str, Any], num_records: int, names: Mapping[str, Sequence[str]] | None
) -> pa.RecordBatch:
    if names is None:
        ordered = sorted(columns, key=str.encode)
        return pa.RecordBatch.from_arrays([columns[name] for name in ordered], names=ordered)
    arrays = []
    for name, kinds in names.items():
        column = columns.get(name)
        if column is None or pa.types.is_null(column.type):
            column = pa.nulls(num_records, pa.large_list(_VALUES[kinds[0]]))
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _kind_of(type_: pa.DataType) -> str:
    while is_list_type(type_):
        type_ = type_.value_type
    return _DTYPES.get(str(type_), "")


def _shape_of(column: pa.Array) -> ColumnShape:
    kind = _kind_of(column.type)
    present = len(column) - column.null_count
    if pa.types.is_null(column.type) or not present:
        return ColumnShape(kind=kind)
    framed = is_list_type(column.type.value_type)
    inner = column.flatten() if framed else column
    counts = pc.list_value_length(inner).drop_null()
    lengths = (pc.min(counts).as_py(), pc.max(counts).as_py()) if len(counts) else None
    if lengths is None or not lengths[1]:
        kind = ""  # the kind of empty lists is unknown
    shape = ColumnShape(kind=kind, num_present=present, lengths=lengths, framed=framed)
    if kind != "string" or framed or lengths != (1, 1):
        return dataclasses.replace(shape, may_be_tensors=not present or lengths is None)
    tensors = []
    for value in column.flatten():
        content = value.as_py()
        if content[:1] != b"\x08" or b"\x12" not in content[:4]:
            return dataclasses.replace(shape, may_be_tensors=False)
        try:
            array = read_tensor(content)
        except ValueError:
            return dataclasses.replace(shape, may_be_tensors=False)
        name = "string" if array.dtype == object else array.dtype.name
        tensors.append((name, array.shape))
    return dataclasses.replace(shape, tensors=_common(tensors))


def _common(
    tensors: Sequence[tuple[str, tuple[int | None, ...]]],
) -> tuple[str, tuple[int | None, ...]] | None:
    """The common dtype and shape, with None for dimensions that vary; None if there is none."""
    if not tensors:
        return None
    dtype, shape = tensors[0]
    for other, sizes in tensors[1:]:
        if other != dtype or len(sizes) != len(shape):
            return None
        shape = tuple(a if a == b else None for a, b in zip(shape, sizes, strict=True))
    return dtype, shape


def adapted(
    column: pa.Array, feature: Feature, *, kinds: Sequence[str]
) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """Converts a decoded column to the form that a row reader accepts for a feature.

    Single values become scalars, frames of single values one list, and serialized tensors lists of
    their values.

    Returns:
        The column, and bool[n]: the rows that do not fit.
    """
    form = tensor_form(feature) or TensorForm(dtype="string")
    if isinstance(feature, Image) and not is_encoded(feature):
        shape = (feature.height, feature.width, feature.channels)
        pixels = TensorForm(dtype=feature.dtype, shape=shape)
        if _kind_of(column.type) == "int64" or _may_hold_tensors(column, pixels):
            form = pixels
    counts = _lengths(column)
    if _kind_of(column.type) not in kinds:
        # The kind of an empty list is unknown.
        return _emptied(column, form, kinds[0]), counts > 0
    if _kind_of(column.type) == "string" and not isinstance(feature, ClassLabel):
        if form.dtype != "string":
            return _unpacked(column, form)
        may_hold = not is_list_type(column.type.value_type) and _may_hold_tensors(column, form)
        if form.shape and may_hold:
            return _unpacked(column, form)
    if is_list_type(column.type.value_type):
        bad = np.zeros(len(column), bool)
        if len(form.shape) == 2:
            return column, bad
        if form.shape != (None,):
            return _emptied(column, form, _kind_of(column.type)), counts > 0
        inner = column.flatten()
        sizes = _lengths(inner)
        bad[np.repeat(np.arange(len(column)), counts)[sizes != 1]] = True
        if bad.any():
            # Bad rows are emptied here, and rejected for their length.
            return adapted(_without(column, bad), feature, kinds=kinds)[0], bad
        offsets = pa.array(offsets_of(counts))
        missing = column.is_null() if column.null_count else None
        return pa.LargeListArray.from_arrays(offsets, inner.flatten(), mask=missing), bad
    if form.shape.count(None) > 1:
        return _emptied(column, form, _kind_of(column.type)), counts > 0
    return (column, np.zeros(len(column), bool)) if form.shape else _single(column)


def _emptied(column: pa.Array, form: TensorForm, kind: str) -> pa.Array:
    """A column with the same number of lists, all empty, and the nesting of the feature."""
    if not form.shape:
        return pa.nulls(len(column), _VALUES[kind])
    values = pa.array([], _VALUES[kind])
    for _ in form.shape[1:]:
        values = pa.LargeListArray.from_arrays(pa.array([0]), values)
    offsets = pa.array(np.zeros(len(column) + 1, np.int64))
    missing = column.is_null() if column.null_count else None
    return pa.LargeListArray.from_arrays(offsets, values, mask=missing)


def _may_hold_tensors(column: pa.Array, form: TensorForm) -> bool:
    """Whether a value begins like a serialized tensor of strings, or of pixels."""
    if _kind_of(column.type) != "string" or is_list_type(column.type.value_type):
        return False
    values = column.flatten()
    if form.dtype == "string":
        return len(values) > 0 and bool(pc.any(pc.starts_with(values, pattern=_STRINGS)).as_py())
    # Pixels may begin so too, but have another length than a tensor of them.
    begins = pc.starts_with(values, pattern=_PIXELS)
    longer = pc.greater(pc.binary_length(values), math.prod(dim or 0 for dim in form.shape))
    return len(values) > 0 and bool(pc.all(pc.and_(begins, longer)).as_py())


def shown(value: Any) -> str:
    """The value of a feature, for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _single(column: pa.Array) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """Lists of one value as scalars, and which rows have more values."""
    counts = _lengths(column)
    ends = np.cumsum(counts)
    first = pa.array(np.where(counts > 0, ends - counts, 0), mask=counts == 0)
    return column.flatten().take(first), counts > 1


def _unpacked(column: pa.Array, form: TensorForm) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """Serialized tensors as lists of their values. Strings may also be unserialized."""
    rows: list[Any] = []
    bad = np.zeros(len(column), bool)
    is_flat = form.shape.count(None) <= 1
    for row, values in enumerate(column.to_pylist()):
        tensor = None
        if values is not None and len(values) == 1:
            with contextlib.suppress(ValueError, TypeError):  # TypeError: frames are not bytes
                tensor = read_tensor(values[0])
        if tensor is not None and not _has_shape(tensor, form):
            tensor = None
        if tensor is None and values is not None and form.dtype == "string" and is_flat:
            tensor = np.array(values, object)
        bad[row] = tensor is None and values is not None
        rows.append(tensor)
    dtype = form.dtype if form.dtype != "bfloat16" else "float32"
    value_type = pa.large_binary() if dtype == "string" else pa.from_numpy_dtype(dtype)
    if form.shape.count(None) > 1:
        kind = value_type
        for _ in form.shape:
            kind = pa.large_list(kind)
        return pa.array([None if r is None else r.tolist() for r in rows], kind), bad
    sizes = [0 if r is None else r.size for r in rows]
    flat = [r.reshape(-1) for r in rows if r is not None]
    values = np.concatenate(flat) if flat else np.zeros(0, numpy_dtype(dtype))
    items = pa.array(values, value_type)
    missing = pa.array([r is None for r in rows])
    offsets = pa.array(offsets_of(np.array(sizes, np.int64)))
    lists = pa.LargeListArray.from_arrays(offsets, items, mask=missing)
    if form.shape:
        return lists, bad
    return _single(lists)[0], bad


def _has_shape(values: np.ndarray[Any, Any], form: TensorForm) -> bool:
    dtype = "string" if values.dtype == object else values.dtype.name
    if dtype != form.dtype or len(values.shape) != len(form.shape):
        return False
    pairs = zip(values.shape, form.shape, strict=True)
    return all(wanted in (None, size) for size, wanted in pairs)


def _lengths(column: pa.Array) -> np.ndarray[Any, Any]:
    lengths: np.ndarray[Any, Any] = (
        pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths


def _without(column: pa.Array, rows: np.ndarray[Any, Any]) -> pa.Array:
    """A column with nulls in these rows."""
    indices = pa.array(np.arange(len(column)), mask=rows)
    return column.take(indices)


def image_columns(name: str, contents: pa.Array) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """The wire columns of an encoded image, and the problems of rows without a valid one.

    Args:
        name: The feature.
        contents: large_binary[n], the bytes of image files, or null.

    Returns:
        Name -> column of n rows, with zeros for bad rows; and row -> problem.
    """
    sides = np.zeros((len(IMAGE_SIDES), len(contents)), np.int64)
    problems: dict[int, str] = {}
    converted: dict[int, bytes] = {}
    for row, content in enumerate(contents.to_pylist()):
        if content is None:
            problems[row] = "is missing, expected one image"
            continue
        try:
            readable, header = readable_image(content)
        except UnreadableImageError as error:
            problems[row] = str(error)
            continue
        sides[:, row] = [getattr(header, side) for side in IMAGE_SIDES]
        if readable is not content:
            converted[row] = readable
    contents = with_converted(contents, converted)
    columns = {f"{name}/{side}": pa.array(sides[i]) for i, side in enumerate(IMAGE_SIDES)}
    return {name: contents.fill_null(b""), **columns}, problems
