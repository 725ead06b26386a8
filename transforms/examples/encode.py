"""Encodes Arrow record batches as serialized ``tf.train.Example``, column by column.

A batch in *wire form* has one column per feature:

=========================================== =================================================
Arrow type                                  in the Example
=========================================== =================================================
(large_)binary, (large_)string,             ``bytes_list`` of one value
fixed_size_binary
(u)int8 to (u)int64, bool                   ``int64_list`` of one value; a uint64 keeps its
                                            bits, so that its upper half reads as negative
float16, float32                            ``float_list`` of one value
(large_)list, fixed_size_list of these      the same list with all its values
=========================================== =================================================

A null row is a feature that this Example does not have. An empty list is a feature that is
present with an empty list of its kind (the Feature is ``0a 00`` for bytes, ``12 00`` for float,
``1a 00`` for int64). The bytes depend only on the content: features are sorted by the UTF-8 bytes
of their names, numbers are packed, varints have minimal length. C++ protobuf writes the same with
deterministic serialization; Python's (upb) differs if one name is a prefix of another: it puts
``image/height`` before ``image``.

Why it is fast: all sizes are computed first, from lengths alone. Then the constant bytes and
numbers of a feature are laid out for many rows at once, and NumPy copies them to the rows'
positions in one buffer, each as a single opaque item. Long payloads (bytes, lists) are not copied
until Arrow joins them with the buffers between them.

For example, two records whose feature ``n`` is 1 and 300, an int64. As varints, the values have 1
and 2 bytes, so all enclosing lengths are known: 0c 0a 05 03 01 and 0d 0b 06 04 02. The examples are
``0a 0c 0a 0a 0a 01 6e 12 05 1a 03 0a 01 01`` and ``0a 0d 0a 0b 0a 01 6e 12 06 1a 04 0a 02 ac 02``.
What does not differ between rows is laid out once for many of them.

Wire format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .varint import (
    ALL_ROWS,
    Matrix,
    Rows,
    Sizes,
    equal_widths,
    lay_beside,
    packed_varints,
    scatter,
    store_varints,
    through_table,
    varint,
    varint_sizes,
)

MAX_EXAMPLE_BYTES = 2**31 - 1
"""Protobuf does not parse longer messages."""

ListKind = Literal["bytes", "float", "int64"]

_LIST_TAGS: dict[ListKind, bytes] = {"bytes": b"\x0a", "float": b"\x12", "int64": b"\x1a"}

# Rows assembled at a time: their part of the buffer stays in the CPU cache while the pieces are
# copied into it.
_TILE_ROWS = 4096
# Features of floats are laid out side by side up to about this size: 2 MiB in a tile.
_ITEM_BYTES = 512


@dataclasses.dataclass(frozen=True)
class _Feature:
    """One column with its computed sizes."""

    sizes: Sizes
    """int64[n], bytes of the feature in each Example, its name and all lengths included."""
    head: Piece
    """The bytes before the payload, or the complete feature."""
    payload: Callable[[], pa.Array] | None
    """Returns large_binary[n], which Arrow appends to the head. A null appends nothing."""


@dataclasses.dataclass(frozen=True)
class _Framing:
    """The bytes around the payload of a feature.

    ``features.feature`` is a map, so each feature is an entry of a key and a Feature:
    ``0a <entry> 0a <key> 12 <feature> <tag> <list>``, followed by the list's content. Each
    ``<…>`` is the length of everything that follows in it, as a varint.
    """

    key: bytes
    """The key's own field, ``0a <length> <name>``."""
    tag: bytes
    packing: Literal["packed", "single", "framed"]
    """Between the list's header and the payload: ``0a <payload>`` unless the payload is empty
    (numbers), ``0a <payload>`` always (one value of bytes), or nothing (the payload contains the
    frames of its values)."""

    def _lengths(self, payload: Sizes) -> tuple[Sizes, Sizes, Sizes]:
        content = payload
        if self.packing != "framed":
            content = payload + (1 + varint_sizes(payload))
        if self.packing == "packed":
            content[payload == 0] = 0
        feature = content + (1 + varint_sizes(content))
        entry = feature + (1 + varint_sizes(feature)) + len(self.key)
        return entry, feature, content

    def sizes(self, payload: Sizes) -> Sizes:
        """Bytes of the complete feature: int64[n] for payloads of int64[n] bytes."""
        return through_table(self._sizes, payload)

    def heads(self, payload: Sizes) -> Matrix:
        """The heads of payloads whose heads have equal length: uint8[n, width].

        Every length grows with the payload, so heads of equal width have varints of equal
        widths, and so do those of all payload sizes in between.
        """
        return through_table(self._heads, payload)

    def number_head(self, width: int) -> bytes:
        """The bytes before one packed number of this many bytes."""
        content = b"\x0a" + varint(width)
        feature = self.tag + varint(len(content) + width) + content
        entry = self.key + b"\x12" + varint(len(feature) + width) + feature
        return b"\x0a" + varint(len(entry) + width) + entry

    def _sizes(self, payload: Sizes) -> Sizes:
        entry, _, _ = self._lengths(payload)
        return entry + (1 + varint_sizes(entry))

    def _heads(self, payload: Sizes) -> Matrix:
        entry, feature, content = self._lengths(payload)
        fields: list[bytes | Sizes] = [
            b"\x0a",
            entry,
            self.key + b"\x12",
            feature,
            self.tag,
            content,
        ]
        if self.packing == "single" or (self.packing == "packed" and payload[0]):
            fields += [b"\x0a", payload]
        return lay_beside(fields, len(payload))


def encode_examples(batch: pa.RecordBatch) -> pa.LargeBinaryArray:
    """Encodes each row of a batch in wire form as a ``tf.train.Example``.

    Args:
        batch: n rows; one column per feature, of the types in the module's table.

    Returns:
        n serialized Examples, without nulls.

    Raises:
        TypeError: if an Example cannot hold a column's type.
        ValueError: if names are not unique, a list contains a null, or an Example would be longer
            than protobuf allows.
    """
    features = _measure(batch)
    body = _body_sizes(features, batch.num_rows)
    parts: list[pa.Array] = []
    pieces = [length_head(body)]
    for feature in features:
        pieces.append(feature.head)
        if feature.payload is not None:
            parts += [assemble(pieces), feature.payload()]
            pieces = []
    if pieces:
        parts.append(assemble(pieces))
    return join(parts)


def example_sizes(batch: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """Computes the size of each encoded Example without building it.

    Args:
        batch: As in :func:`encode_examples`, which raises the same errors.

    Returns:
        uint64[n], in bytes.
    """
    body = _body_sizes(_measure(batch), batch.num_rows)
    return (body + (1 + varint_sizes(body))).astype(np.uint64)


def _measure(batch: pa.RecordBatch) -> list[_Feature]:
    """Computes the sizes of all features, sorted by the bytes of their names."""
    names = batch.schema.names
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"Column names {twice} are not unique; an Example has one of each.")
    columns = sorted(zip(names, batch.columns, strict=True), key=lambda item: item[0].encode())
    features: list[_Feature] = []
    for are_floats, several in itertools.groupby(columns, lambda item: _is_plain_float(item[1])):
        if are_floats:
            features += _float_features(several, batch.num_rows)
        else:
            features += itertools.starmap(_measure_column, several)
    return features


def _is_plain_float(column: pa.Array) -> bool:
    return pa.types.is_float32(column.type) and not column.null_count


def _float_features(columns: Iterable[tuple[str, pa.Array]], num_rows: int) -> Iterator[_Feature]:
    """Consecutive features of one float each, which all records have.

    Their bytes are the same in all records but for the values. So several features are laid out and
    copied as one item: there may be thousands.
    """
    item = bytearray()
    held: list[tuple[int, pa.Array]] = []
    for name, column in columns:
        item += _float_head(name)
        held.append((len(item), column))
        item += bytes(4)
        if len(item) >= _ITEM_BYTES:
            yield _floats_feature(bytes(item), held, num_rows)
            item, held = bytearray(), []
    if held:
        yield _floats_feature(bytes(item), held, num_rows)


def _floats_feature(item: bytes, columns: list[tuple[int, pa.Array]], num_rows: int) -> _Feature:
    """Features laid out in an item, in which each column of values has its place."""

    def build(tile: slice) -> Iterator[tuple[Rows, Matrix]]:
        rows = len(range(num_rows)[tile])
        chunk = np.repeat(np.frombuffer(item, np.uint8)[np.newaxis], rows, axis=0)
        for place, column in columns:
            values = _numbers(column)[tile]
            np.ndarray(rows, np.float32, chunk, place, chunk.strides[:1])[:] = values
        yield ALL_ROWS, chunk

    sizes = np.full(num_rows, len(item), np.int64)
    return _Feature(sizes, Piece(sizes, build), None)


@functools.lru_cache(maxsize=1 << 14)
def _float_head(name: str) -> bytes:
    """The bytes before one float: every batch asks for them again."""
    return _framing(name, "float", "packed").number_head(4)


def _framing(name: str, kind: ListKind, packing: Literal["packed", "single", "framed"]) -> _Framing:
    encoded = name.encode()
    key = b"\x0a" + varint(len(encoded)) + encoded
    return _Framing(key, _LIST_TAGS[kind], packing)


def _measure_column(name: str, column: pa.Array) -> _Feature:
    is_list = (
        pa.types.is_list(column.type)
        or pa.types.is_large_list(column.type)
        or pa.types.is_fixed_size_list(column.type)
    )
    kind = _list_kind(name, column.type.value_type if is_list else column.type)
    present = None
    if column.null_count:
        present = pc.is_valid(column).to_numpy(zero_copy_only=False)
    if is_list:
        framing = _framing(name, kind, "framed" if kind == "bytes" else "packed")
        return _list_feature(framing, kind, _List.of(name, column, present), present)
    if kind == "bytes":
        framing = _framing(name, kind, "single")
        values = _large_binary(column)
        sizes = np.diff(_offsets(values))
        return _payload_feature(framing, sizes, present, lambda: values)
    return _number_feature(_framing(name, kind, "packed"), _numbers(column), present)


def _list_kind(name: str, kind: pa.DataType) -> ListKind:
    """Which of the three lists holds values of an Arrow type."""
    types = pa.types
    if types.is_integer(kind) or types.is_boolean(kind):
        return "int64"
    if types.is_float16(kind) or types.is_float32(kind):
        return "float"
    if (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return "bytes"
    if types.is_float64(kind):
        raise TypeError(
            f"Column {name!r} is float64, but an Example holds float32. Cast it to float32 if "
            "the lost digits do not matter, or keep the value as bytes."
        )
    raise TypeError(
        f"Column {name!r} has values of type {kind}; expected bytes, a string, an integer, a bool, "
        "float16, float32, or a list of one of these. Cast the column."
    )


def _number_feature(
    framing: _Framing, values: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None
) -> _Feature:
    """One number per row: head and value are copied as one item."""
    is_float = values.dtype == np.float32
    widths = np.full(len(values), 4, np.uint8) if is_float else varint_sizes(values)
    if present is not None:
        widths *= present
    heads = {width: framing.number_head(width) for width, _ in equal_widths(widths)}
    sizes_by_width = np.zeros(11, np.int64)
    for width, head in heads.items():
        sizes_by_width[width] = len(head) + width

    def build(tile: slice) -> Iterator[tuple[Rows, Matrix]]:
        tile_values = values[tile]
        for width, rows in equal_widths(widths[tile]):
            chosen = tile_values[rows]
            item = np.frombuffer(heads[width] + bytes(width), np.uint8)
            chunk = np.repeat(item[np.newaxis], len(chosen), axis=0)
            if is_float:
                place = chunk.shape[1] - width
                np.ndarray(len(chosen), np.float32, chunk, place, chunk.strides[:1])[:] = chosen
            else:
                store_varints(chosen, chunk[:, -width:])
            yield rows, chunk

    sizes = sizes_by_width[widths]
    return _Feature(sizes, Piece(sizes, build), None)


def _payload_feature(
    framing: _Framing,
    payload_sizes: Sizes,
    present: npt.NDArray[np.bool_] | None,
    payload: Callable[[], pa.Array],
) -> _Feature:
    """A payload of any length per row, each after its own head."""
    sizes = framing.sizes(payload_sizes)
    head_sizes = sizes - payload_sizes
    if present is not None:
        sizes *= present
        head_sizes *= present

    def build(tile: slice) -> Iterator[tuple[Rows, Matrix]]:
        tile_sizes = payload_sizes[tile]
        for _, rows in equal_widths(head_sizes[tile]):
            yield rows, framing.heads(tile_sizes[rows])

    return _Feature(sizes, Piece(head_sizes, build), payload)


@dataclasses.dataclass(frozen=True)
class _List:
    """A list column: all values in one array, and the bounds of each row."""

    values: pa.Array
    bounds: Sizes
    """int64[n + 1]."""

    @classmethod
    def of(cls, name: str, column: pa.Array, present: npt.NDArray[np.bool_] | None) -> _List:
        """Splits a column into values and bounds; a null has no values."""
        values = column.flatten()
        if pa.types.is_fixed_size_list(column.type):
            counts = np.full(len(column), column.type.list_size, np.int64)
            if present is not None:
                counts *= present
        else:
            counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        bounds = offsets_of(counts)
        if values.null_count:
            place = pc.index(values.is_null(), True).as_py()
            row = int(np.searchsorted(bounds, place, side="right")) - 1
            raise ValueError(
                f"Column {name!r} row {row}: the list contains a null, which an Example cannot "
                "hold. Fill or drop it."
            )
        return cls(values, bounds)


def _list_feature(
    framing: _Framing, kind: ListKind, lists: _List, present: npt.NDArray[np.bool_] | None
) -> _Feature:
    """Any number of values per row: their bytes are built as one flat column, then cut."""
    starts, flat = _flat_values(kind, lists.values)
    bounds = starts[lists.bounds]
    return _payload_feature(framing, np.diff(bounds), present, lambda: binary_array(bounds, flat()))


def _flat_values(kind: ListKind, values: pa.Array) -> tuple[Sizes, Callable[[], pa.Buffer]]:
    """The offsets of values in their joined bytes (int64[m + 1]), and what builds the bytes."""
    if kind == "bytes":
        texts = _large_binary(values)
        lengths = np.diff(_offsets(texts))
        head = length_head(lengths)
        bounds = offsets_of(head.sizes + lengths)
        return bounds, lambda: join([assemble([head]), texts]).buffers()[2]
    numbers = _numbers(values)
    if kind == "float":
        return 4 * np.arange(len(numbers) + 1), lambda: pa.py_buffer(numbers)
    starts = offsets_of(varint_sizes(numbers))
    return starts, lambda: pa.py_buffer(packed_varints(numbers, starts))


def _body_sizes(features: list[_Feature], num_rows: int) -> Sizes:
    """Bytes of each Example without the header that holds their length: int64[n]."""
    body = np.zeros(num_rows, np.int64)
    for feature in features:
        body += feature.sizes
    too_long = np.flatnonzero(body > MAX_EXAMPLE_BYTES - 6)
    if too_long.size:
        raise ValueError(
            f"Row {too_long[0]}: its Example would have {body[too_long[0]]:,} bytes; protobuf "
            f"reads at most {MAX_EXAMPLE_BYTES:,}. Split the record."
        )
    return body


def _large_binary(column: pa.Array) -> pa.LargeBinaryArray:
    """The same values with 64-bit offsets; the bytes are not copied."""
    return column if pa.types.is_large_binary(column.type) else column.cast(pa.large_binary())


def _offsets(column: pa.LargeBinaryArray) -> Sizes:
    """The offset of each value in the column's bytes: int64[n + 1]."""
    if not len(column):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int64)
    return offsets[column.offset : column.offset + len(column) + 1]


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """The values as uint64[n] (two's complement) or float32[n]; undefined under a null."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if pa.types.is_floating(column.type):
        dtype: Any = np.float32
    else:
        dtype = np.int64 if pa.types.is_signed_integer(column.type) else np.uint64
    if not len(column):
        return np.empty(0, dtype)
    stored = np.frombuffer(column.buffers()[1], column.type.to_pandas_dtype())
    return stored[column.offset : column.offset + len(column)].astype(dtype, copy=False)


@dataclasses.dataclass(frozen=True)
class Piece:
    """Part of the bytes of each row, not yet built."""

    sizes: Sizes
    """int64[n], bytes of each row; 0 if the row has none."""
    build: Callable[[slice], Iterator[tuple[Rows, Matrix]]]
    """Builds a range of rows: groups of rows (relative to the range's start) and their bytes."""


def length_head(lengths: Sizes) -> Piece:
    """``0a <length>``: precedes each value of a list of bytes, and the body of an Example."""
    sizes = 1 + varint_sizes(lengths).astype(np.int64)

    def head(chosen: Sizes) -> Matrix:
        return lay_beside([b"\x0a", chosen], len(chosen))

    def build(tile: slice) -> Iterator[tuple[Rows, Matrix]]:
        tile_lengths = lengths[tile]
        for _, rows in equal_widths(sizes[tile]):
            yield rows, through_table(head, tile_lengths[rows])

    return Piece(sizes, build)


def assemble(pieces: list[Piece]) -> pa.LargeBinaryArray:
    """Builds pieces and concatenates them within each row: large_binary[n]."""
    sizes = pieces[0].sizes.copy()
    for piece in pieces[1:]:
        sizes += piece.sizes
    offsets = offsets_of(sizes)
    out = np.empty(int(offsets[-1]), np.uint8)
    for first in range(0, len(sizes), _TILE_ROWS):
        tile = slice(first, first + _TILE_ROWS)
        starts = offsets[:-1][tile].copy()
        for piece in pieces:
            for rows, chunk in piece.build(tile):
                scatter(out, starts[rows], chunk)
            starts += piece.sizes[tile]
    return binary_array(offsets, pa.py_buffer(out))


def join(parts: list[pa.Array]) -> pa.Array:
    """Concatenates columns of large_binary[n] row by row; a null adds nothing."""
    if len(parts) == 1:
        return parts[0]
    separator = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(
        *parts, separator, null_handling="replace", null_replacement=b""
    )


def offsets_of(sizes: npt.NDArray[Any]) -> Sizes:
    """Offsets of n consecutive items from their sizes: int64[n + 1]."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, dtype=np.int64, out=offsets[1:])
    return offsets


def binary_array(offsets: Sizes, data: pa.Buffer) -> pa.LargeBinaryArray:
    """Splits bytes at n + 1 offsets: large_binary[n]; nothing is copied."""
    buffers = [None, pa.py_buffer(offsets), data]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
