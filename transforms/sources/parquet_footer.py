"""What the footer of a Parquet file says of its row groups, read without pyarrow.

pyarrow 25 ends the process over some damaged footers, when it is asked for a column's facts: what
throws there is not caught. The footer is Thrift in its compact protocol, of which this reads the
few fields that are needed. Format: https://github.com/apache/parquet-format (parquet.thrift).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_TAIL_BYTES = 8
_MAX_DEPTH = 32

# Types of the compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(
    13
)

# Numbers of fields: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, Statistics.
_ROW_GROUPS = 4
_COLUMNS, _TOTAL_BYTES, _NUM_ROWS = 1, 2, 3
_META_DATA = 3
_TYPE, _PATH, _NUM_VALUES, _CHUNK_BYTES = 1, 3, 5, 6
_DATA_PAGE, _DICTIONARY_PAGE, _STATISTICS = 9, 11, 12
_BYTES_TYPES = (6, 7)  # BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY
_NULL_COUNT = 3


@dataclasses.dataclass(frozen=True)
class Chunk:
    """What the footer says of one stored column of a row group."""

    num_values: int
    """With those inside of lists."""
    num_bytes: int
    """Uncompressed."""
    is_bytes: bool
    """Whether its values are strings of bytes."""
    has_dictionary: bool


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """What the footer says of one row group."""

    offset: int
    """Of its first byte in the file; 0 where it has no columns."""
    num_rows: int
    num_bytes: int
    """Uncompressed."""
    null_counts: Mapping[str, int | None]
    """Stored column, its path joined by dots -> nulls in it; None where the file does not say."""
    chunks: Mapping[str, Chunk] = dataclasses.field(default_factory=dict)
    """By stored column."""


def read_row_groups(source: Any) -> list[RowGroup]:
    """Reads the footer of an open Parquet file, a ``pa.NativeFile``.

    Raises:
        ValueError: if it is damaged.
    """
    num_bytes = source.size()
    tail = source.read_at(_TAIL_BYTES, max(0, num_bytes - _TAIL_BYTES))
    size = int.from_bytes(tail[:4], "little")
    if size > num_bytes - _TAIL_BYTES:
        raise ValueError("the footer is longer than the file")
    footer = _Compact(source.read_at(size, num_bytes - _TAIL_BYTES - size))
    try:
        groups = footer.struct().get(_ROW_GROUPS, [])
        return [_row_group(group) for group in groups]
    except (IndexError, AttributeError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"the footer is damaged: {error}") from None


def _row_group(group: Mapping[int, Any]) -> RowGroup:
    starts, null_counts, chunks = [], dict[str, int | None](), dict[str, Chunk]()
    for chunk in group.get(_COLUMNS, []):
        facts = chunk.get(_META_DATA, {})
        pages = (_number(facts.get(number)) for number in (_DATA_PAGE, _DICTIONARY_PAGE))
        starts += [page for page in pages if page]
        path = b".".join(facts.get(_PATH, [])).decode()
        null_counts[path] = _number(facts.get(_STATISTICS, {}).get(_NULL_COUNT))
        chunks[path] = Chunk(
            num_values=max(0, _number(facts.get(_NUM_VALUES)) or 0),
            num_bytes=max(0, _number(facts.get(_CHUNK_BYTES)) or 0),
            is_bytes=facts.get(_TYPE) in _BYTES_TYPES,
            has_dictionary=_DICTIONARY_PAGE in facts,
        )
    return RowGroup(
        offset=min(starts, default=0),
        num_rows=max(0, _number(group.get(_NUM_ROWS)) or 0),
        num_bytes=max(0, _number(group.get(_TOTAL_BYTES)) or 0),
        null_counts=null_counts,
        chunks=chunks,
    )


def _number(value: Any) -> int | None:
    if value is not None and not isinstance(value, int):
        raise ValueError(f"the footer is damaged: it holds {type(value).__name__} for a number")
    return value


class _Compact:
    """Reads values of the compact protocol, one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content, self._position = content, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Field number -> value."""
        found: dict[int, Any] = {}
        number = 0
        while kind := self._byte():
            number = number + (kind >> 4) if kind >> 4 else self._integer()
            found[number] = self._value(kind & 15, depth, in_struct=True)
        return found

    def _value(self, kind: int, depth: int, *, in_struct: bool = False) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE if in_struct else self._byte() == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind == _DOUBLE:
            return self._take(8)
        if kind == _BINARY:
            return self._take(self._varint())
        if depth == _MAX_DEPTH:
            raise ValueError("the footer is nested too deeply")
        if kind in (_LIST, _SET):
            head = self._byte()
            size = self._varint() if head >> 4 == 15 else head >> 4
            return [self._value(head & 15, depth + 1) for _ in range(self._checked(size))]
        if kind == _MAP:
            size = self._checked(self._varint())
            kinds = self._byte() if size else 0
            return [
                (self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1))
                for _ in range(size)
            ]
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise ValueError(f"the footer holds a value of the unknown type {kind}")

    def _byte(self) -> int:
        found = self._content[self._position]
        self._position += 1
        return found

    def _take(self, size: int) -> bytes:
        start = self._position
        self._position += self._checked(size)
        return self._content[start : self._position]

    def _checked(self, size: int) -> int:
        """A number of bytes, or of items of a byte and more, that can still follow."""
        if size > len(self._content) - self._position:
            raise ValueError("the footer ends too early")
        return size

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
            if shift > 63:
                raise ValueError("the footer holds a number that is too long")

    def _integer(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)
