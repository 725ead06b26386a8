"""The Parquet source: each row is a record, read by row group.

A record's id is ``relative/path#row``. ``types`` documents the feature of each column. Columns with
missing values are found from the files' statistics, or from the rows if there are none. A damaged
row group is one reject; the rows read before the damage, and all other row groups, are kept.

Footers are parsed without pyarrow: for some damaged footers, pyarrow 25 terminates the process with
an uncaught exception when a column's statistics are requested. The footer is Thrift in the compact
protocol; only the required fields are read. Format:
https://github.com/apache/parquet-format (parquet.thrift).

The number of rows decoded at a time is limited by their decoded size. A column of texts may have
one long text in its dictionary and refer to it in every row: a kilobyte can decode to a terabyte,
and neither the footer nor the page sizes show it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ....schemas.blocks import Selection, SourceFile
from ....schemas.config import config_class
from ....schemas.limits import FREE_BYTES
from ....schemas.recipe import OpenSource
from ...storage.decompress import grows_beyond
from ...storage.read_files import is_at_hand, open_for_arrow
from ..table_files import select_files
from .files import BATCH_BYTES, BATCH_ROWS, ArrowFormat, Unit, offset_between
from .hugging_face import DescribedColumns
from .types import leaves_of, plain_type

_MAGIC = b"PAR1"
_TAIL_BYTES = 8
_ARROW_TYPES = b"\x0cARROW:schema"
"""Key of the metadata in which Arrow stores its types, after its length."""
_MAX_DEPTH = 32

# Types in the compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(
    13
)
_INTEGERS = (_I16, _I32, _I64)

# Field numbers of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, Statistics.
_ROW_GROUPS = 4
_COLUMNS, _TOTAL_BYTES, _NUM_ROWS = 1, 2, 3
_META_DATA = 3
_TYPE, _PATH, _NUM_VALUES, _CHUNK_BYTES = 1, 3, 5, 6
_DATA_PAGE, _DICTIONARY_PAGE, _STATISTICS = 9, 11, 12
_BYTES_TYPES = (6, 7)  # BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY
_NULL_COUNT = 3

_VALUE_BYTES = 8
_SMALL_BYTES = 16 << 10
"""Size of a column chunk up to which it is taken as the bound of its texts."""

SUFFIXES = (".parquet", ".pq", ".parq")
"""Suffixes of Parquet files."""


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A stored column of a row group, as described by the footer."""

    num_values: int
    """Including values inside lists."""
    num_bytes: int
    """Uncompressed."""
    is_bytes: bool
    """Whether its values are byte strings."""
    has_dictionary: bool


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """A row group, as described by the footer."""

    offset: int
    """Offset of its first byte in the file; 0 if it has no columns."""
    num_rows: int
    num_bytes: int
    """Uncompressed."""
    null_counts: Mapping[str, int | None]
    """Dotted path of a stored column -> its number of nulls; None if the file does not say."""
    chunks: Mapping[str, Chunk] = dataclasses.field(default_factory=dict)
    """By stored column."""


def read_row_groups(source: Any) -> list[RowGroup]:
    """Reads the footer of an open Parquet file, a ``pa.NativeFile``.

    Raises:
        ValueError: if it is damaged.
    """
    return _row_groups(_read_footer(source))


@functools.lru_cache(maxsize=4)
def _row_groups(footer: bytes) -> list[RowGroup]:
    """What a footer says: parsed once, though each block of a file opens it."""
    try:
        groups = _struct(footer, 0)[0].get(_ROW_GROUPS, [])
        return [_row_group(group) for group in groups]
    except (IndexError, AttributeError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"the footer is damaged: {error}") from None


def _read_footer(source: Any) -> bytes:
    num_bytes = source.size()
    tail = source.read_at(_TAIL_BYTES, max(0, num_bytes - _TAIL_BYTES))
    size = int.from_bytes(tail[:4], "little")
    if size > num_bytes - _TAIL_BYTES:
        raise ValueError("the footer is longer than the file")
    return bytes(source.read_at(size, num_bytes - _TAIL_BYTES - size))


def _plain_metadata(source: Any) -> pq.FileMetaData:
    """The metadata of a file, without the types that Arrow stored beside those of Parquet."""
    before, key, after = _read_footer(source).rpartition(_ARROW_TYPES)
    footer = before + key.replace(b":", b"-") + after
    size = len(footer).to_bytes(4, "little")
    return pq.read_metadata(pa.BufferReader(_MAGIC + footer + size + _MAGIC))


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
        raise ValueError(f"the footer is damaged: it has {type(value).__name__} for a number")
    return value


_Read = tuple[Any, int]
"""A value, and the offset of what follows it."""


def _struct(content: bytes, at: int, depth: int = 0) -> _Read:
    """A struct of the compact protocol: field number -> value.

    Footers consist of numbers and texts, a hundred in each column, so these are read here.
    """
    found: dict[int, Any] = {}
    number = 0
    while head := content[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(content, at)
        if kind in _INTEGERS:
            value = content[at]
            at += 1
            if value > 127:
                value, at = _varint(content, at - 1)
            found[number] = (value >> 1) ^ -(value & 1)
        elif kind == _BINARY:
            size = content[at]
            at += 1
            if size > 127:
                size, at = _varint(content, at - 1)
            found[number] = content[at : at + _checked(content, at, size)]
            at += size
        elif kind in (_TRUE, _FALSE):
            found[number] = kind == _TRUE
        else:
            found[number], at = _value(content, at, kind, depth)
    return found, at + 1


def _value(content: bytes, at: int, kind: int, depth: int) -> _Read:
    """A value of a list, or of a struct unless it is a bool."""
    if kind in _INTEGERS:
        return _integer(content, at)
    if kind in (_TRUE, _FALSE):
        return content[at] == _TRUE, at + 1
    if kind == _BYTE:
        return content[at], at + 1
    if kind in (_DOUBLE, _BINARY):
        size, at = (8, at) if kind == _DOUBLE else _varint(content, at)
        end = at + _checked(content, at, size)
        return content[at:end], end
    if depth == _MAX_DEPTH:
        raise ValueError("the footer is nested too deeply")
    if kind == _STRUCT:
        return _struct(content, at, depth + 1)
    if kind in (_LIST, _SET):
        head = content[at]
        size, at = _varint(content, at + 1) if head >> 4 == 15 else (head >> 4, at + 1)
        kinds = [head & 15]
    elif kind == _MAP:
        size, at = _varint(content, at)
        kinds = [content[at] >> 4, content[at] & 15] if size else []
        at += bool(size)
    else:
        raise ValueError(f"the footer has a value of the unknown type {kind}")
    items = []  # of a map: keys and values in turn
    for kind in kinds * _checked(content, at, size):
        item, at = _value(content, at, kind, depth + 1)
        items.append(item)
    return items, at


def _checked(content: bytes, at: int, size: int) -> int:
    """A number of bytes or items (of at least a byte), checked against the rest."""
    if size > len(content) - at:
        raise ValueError("the footer ends too early")
    return size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = content[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
        shift += 7
        if shift > 63:
            raise ValueError("the footer has a number that is too long")


def _integer(content: bytes, at: int) -> tuple[int, int]:
    found, at = _varint(content, at)
    return (found >> 1) ^ -(found & 1), at


def check_lists(
    group: RowGroup, columns: Iterable[str], *, num_bytes: int, max_expansion: int
) -> None:
    """Refuses lists with too many values for a file of ``num_bytes``.

    Raises:
        ValueError: naming the limit that is exceeded.
    """
    wanted = set(columns)
    allowed = max(FREE_BYTES, num_bytes * max_expansion)
    for path, chunk in group.chunks.items():
        name, nested, _ = path.partition(".")
        if nested and name in wanted and chunk.num_values * _VALUE_BYTES > allowed:
            raise ValueError(f"it {grows_beyond(max_expansion)}")


def rows_at_once(
    source: Any, unit: int, group: RowGroup, columns: Iterable[str], *, num_rows: int
) -> int:
    """``num_rows``, or fewer if the rows could otherwise decode to too many bytes."""
    wanted = set(columns)
    for path, chunk in group.chunks.items():
        if not (chunk.has_dictionary and chunk.is_bytes and path.partition(".")[0] in wanted):
            continue
        each = -(-chunk.num_values // max(1, group.num_rows))
        longest = min(chunk.num_bytes, _SMALL_BYTES)
        if chunk.num_bytes > _SMALL_BYTES:
            longest = _longest(source, unit, path)
        num_rows = min(num_rows, max(1, FREE_BYTES // max(1, longest * each)))
    return num_rows


def _longest(source: Any, unit: int, path: str) -> int:
    """The longest text in a column chunk's dictionary, in bytes."""
    file = pq.ParquetFile(
        source, read_dictionary=[path], pre_buffer=False, page_checksum_verification=True
    )
    batches = file.iter_batches(batch_size=1, row_groups=[unit], columns=[path], use_threads=False)
    batch = next(batches, None)
    if batch is None:
        return 0
    batch.validate()
    return max((_longest_of(column) for column in batch.columns), default=0)


def _has_vectors(type_: pa.DataType) -> bool:
    """Whether a type has lists of fixed size anywhere."""
    type_ = plain_type(type_)
    if pa.types.is_fixed_size_list(type_):
        return True
    return any(_has_vectors(type_.field(index).type) for index in range(type_.num_fields))


def _longest_of(array: Any) -> int:
    kind = array.type
    if pa.types.is_dictionary(kind):
        if pa.types.is_fixed_size_binary(kind.value_type):
            return int(kind.value_type.byte_width)
        if not (pa.types.is_binary(kind.value_type) or pa.types.is_string(kind.value_type)):
            return 0
        return int(pc.max(pc.binary_length(array.dictionary)).as_py() or 0)
    if pa.types.is_struct(kind):
        return max((_longest_of(array.field(i)) for i in range(kind.num_fields)), default=0)
    return _longest_of(array.values) if hasattr(array, "values") else 0


@config_class
class Parquet(DescribedColumns):
    """Rows of Parquet files.

    Files that ``datasets`` has written, as on the Hugging Face hub, say which columns are images,
    sounds and classes.

    Attributes:
        url: A file, a folder (its ``.parquet`` files at any depth), a glob, or any fsspec URL.
        label: The column to predict. Strings and bools become a ClassLabel; numbers are kept.
        columns: The columns to read; all by default. Or ``"union"``, for files with different
            columns: all of them; one that a file lacks is a missing value in its rows.
        types: Overrides inferred types: ``{"age": "float32"}``, or a feature such as
            ``ss.ClassLabel(("no", "yes"))`` or ``ss.Tensor("uint8", (28, 28))``. The field of a
            struct is ``"struct.field"``.
        hive: Whether folders named ``key=value`` are columns, too, as in ``year=2024/month=01``.
    """

    url: str
    label: str | None = None
    columns: tuple[str, ...] | Literal["union"] | None = None
    types: Mapping[str, Any] | None = None
    hive: bool = False

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects Parquet files, files with a glob's suffix, or a single file of any name."""
        return select_files(self.url, files, suffixes=SUFFIXES, what="a .parquet file")

    @property
    def _format(self) -> ArrowFormat:
        return _FORMAT


class _ParquetFile:
    """An open Parquet file."""

    def __init__(self, opened: OpenSource, path: str) -> None:
        source = open_for_arrow(opened, path)
        local = is_at_hand(source)
        # From a store, the columns of a row group are fetched in few, large requests.
        self._file = pq.ParquetFile(source, pre_buffer=not local, page_checksum_verification=True)
        self._path = path
        self._source, self._num_bytes = source, source.size()
        self._max_expansion = opened.limits.max_expansion
        self._groups = read_row_groups(source)
        self.schema: pa.Schema = self._file.schema_arrow
        self._vectors = {field.name for field in self.schema if _has_vectors(field.type)}

    @functools.cached_property
    def _plain(self) -> pq.ParquetFile:
        """The file with lists of any size: pyarrow 25 reads none of fixed size that may be null."""
        return pq.ParquetFile(
            self._source,
            metadata=_plain_metadata(self._source),
            pre_buffer=not is_at_hand(self._source),
            page_checksum_verification=True,
        )

    @functools.cached_property
    def units(self) -> Sequence[Unit]:
        row_groups, row = [], 0
        for group in self._groups:
            # Blocks end at the end of the file, so an invalid offset is clamped into one.
            start = max(0, min(group.offset, self._num_bytes - 1))
            row_groups.append(Unit(start, row, group.num_rows))
            row += group.num_rows
        return row_groups

    def read(self, unit: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        group = self._groups[unit]
        check_lists(group, columns, num_bytes=self._num_bytes, max_expansion=self._max_expansion)
        row_bytes = max(1, group.num_bytes // max(1, group.num_rows))
        num_rows = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes))
        vectors = tuple(f"{name}." for name in self._vectors.intersection(columns))
        lacks = any(num != 0 for n, num in group.null_counts.items() if n.startswith(vectors))
        file = self._plain if lacks else self._file
        batches: Iterator[pa.RecordBatch] = file.iter_batches(
            batch_size=rows_at_once(self._source, unit, group, columns, num_rows=num_rows),
            row_groups=[unit],
            columns=list(columns),
            use_threads=False,
        )
        for batch in batches:
            batch.validate()
            yield self._typed(batch) if lacks else batch

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of plain columns, with the types that Arrow stored."""
        arrays = []
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            wanted = self.schema.field(name).type
            if isinstance(wanted, pa.BaseExtensionType):
                wanted = wanted.storage_type
            arrays.append(array if array.type == wanted else array.cast(wanted))
        return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)

    def offset_of(self, row: int) -> int:
        return offset_between(self.units, row, num_bytes=self._num_bytes)

    def lacking(self) -> tuple[set[str], set[str]]:
        """From statistics, which count nulls of scalars, but nulls and empty lists together."""
        leaves = leaves_of(self.schema, path=self._path)
        counts = self._null_counts()
        known, unknown = set(), set()
        for name, leaf in leaves.items():
            column = self.schema.names[leaf.column]
            if not leaf.shape and name in counts:
                num_nulls = counts[name]
            else:
                below = [n for path, n in counts.items() if path.startswith(f"{column}.")]
                num_nulls = None if None in below or any(below) or not below else 0
            if num_nulls is None:
                unknown.add(name)
            elif num_nulls:
                known.add(name)
        return known, unknown

    def _null_counts(self) -> dict[str, int | None]:
        """Nulls of each stored column over all row groups; None if a group does not say."""
        counts: dict[str, int | None] = {}
        for group in self._groups:
            for name, found in group.null_counts.items():
                before = counts.get(name, 0)
                counts[name] = None if before is None or found is None else before + found
        return counts


_FORMAT = ArrowFormat(name="Parquet", unit="row group", open=_ParquetFile)
