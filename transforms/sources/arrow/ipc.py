"""The Arrow source: IPC files and streams, and Feather files.

The content determines the format: an IPC file (also Feather V2) begins with ``ARROW1``; other files
are read as streams. A Feather V1 file (``FEA1``, before 2020) is a reject whose message says how to
rewrite it. A record's id is ``relative/path#row``.
IPC files are read by record batch, and each batch is validated. A stream has no index, so it cannot
be cut, and everything after damage is lost.

The decompressed size of a message is checked in advance: a compressed buffer begins with its
decompressed length (``BodyCompression`` in the format's Message.fbs), and pyarrow allocates
whatever that says.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from ....schemas.blocks import Selection, SourceFile
from ....schemas.config import config_class
from ....schemas.limits import FREE_BYTES
from ....schemas.recipe import OpenSource
from ...storage.decompress import grows_beyond
from ...storage.read_files import is_at_hand, open_for_arrow
from ..table_files import select_files
from .files import DAMAGE, ArrowFile, ArrowFormat, ArrowSource, Unit, offset_between
from .types import leaves_of

HEADER = 2
"""The field of a message that has its header."""

_KIND, _BODY_BYTES = 1, 3
_DICTIONARY, _BATCH = 2, 3
_DICTIONARY_DATA = 1
_BUFFERS, _COMPRESSION = 2, 3
_BUFFER = struct.Struct("<qq")
_CONTINUED = b"\xff\xff\xff\xff"

SUFFIXES = (".arrow", ".feather", ".ipc", ".arrows")
"""Suffixes of Arrow files."""

_MAGIC = b"ARROW1"
_FEATHER_V1_MAGIC = b"FEA1"
# Fields of the flatbuffers tables Footer and Message.
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_BATCH_LENGTH = 0
_MAX_ROWS = 1 << 48
_BLOCK = struct.Struct("<qi4xq")


def root(buffer: bytes) -> int:
    """The offset of a flatbuffer's root table."""
    return int(struct.unpack_from("<I", buffer, 0)[0])


def field(buffer: bytes, table: int, index: int) -> int | None:
    """The offset of a field of a flatbuffers table; None if it is absent.

    Raises:
        ValueError: if the table is damaged.
        struct.error: if the table is damaged.
    """
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    if vtable < 0:
        raise ValueError("a table is damaged")
    (size,) = struct.unpack_from("<H", buffer, vtable)
    if 4 + 2 * index + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", buffer, vtable + 4 + 2 * index)
    return table + offset if offset else None


def message_of(metadata: bytes) -> bytes:
    """A message's flatbuffer, without its length prefix."""
    return metadata[8 if metadata[:4] == _CONTINUED else 4 :]


def decompressed_bytes(source: Any, offset: int, metadata_bytes: int) -> int:
    """Decompressed size of a message's buffers; 0 if it is not compressed.

    Raises:
        ValueError: if the message is damaged.
    """
    message = message_of(source.read_at(metadata_bytes, offset))
    try:
        (kind,) = struct.unpack_from("<B", message, field(message, root(message), _KIND) or 0)
        batch = _followed(message, root(message), HEADER)
        if kind == _DICTIONARY and batch is not None:
            batch = _followed(message, batch, _DICTIONARY_DATA)
        elif kind != _BATCH:
            batch = None
        if batch is None or field(message, batch, _COMPRESSION) is None:
            return 0
        vector = _followed(message, batch, _BUFFERS)
        if vector is None:
            return 0
        (count,) = struct.unpack_from("<I", message, vector)
        total = 0
        for i in range(min(count, len(message) // _BUFFER.size)):
            place, size = _BUFFER.unpack_from(message, vector + 4 + i * _BUFFER.size)
            if size >= 8:
                length = source.read_at(8, max(0, offset + metadata_bytes + place))
                total += max(0, int.from_bytes(length, "little", signed=True))
    except struct.error as error:
        raise ValueError(f"a message is damaged: {error}") from None
    return total


def stream_messages(source: Any) -> list[tuple[int, int]]:
    """Offset and metadata size of a stream's messages, up to its end or the first damage."""
    messages: list[tuple[int, int]] = []
    offset, num_bytes = 0, source.size()
    while offset + 8 <= num_bytes:
        head = source.read_at(8, offset)
        prefix = 8 if head[:4] == _CONTINUED else 4
        size = int.from_bytes(head[prefix - 4 : prefix], "little", signed=True)
        if not 0 < size <= num_bytes - offset - prefix:
            break
        message = source.read_at(size, offset + prefix)
        try:
            place = field(message, root(message), _BODY_BYTES)
            body = 0 if place is None else struct.unpack_from("<q", message, place)[0]
        except (struct.error, ValueError):
            break
        messages.append((offset, prefix + size))
        offset += prefix + size + max(0, body)
    return messages


def _followed(buffer: bytes, table: int, index: int) -> int | None:
    """The offset of the object that a field refers to."""
    place = field(buffer, table, index)
    return None if place is None else int(place + struct.unpack_from("<I", buffer, place)[0])


@config_class
class Arrow(ArrowSource):
    """Rows of Arrow IPC files and streams, and of Feather files.

    Attributes:
        url: A file, a folder (its ``.arrow``, ``.feather``, ``.ipc`` and ``.arrows`` files at any
            depth), a glob, or any fsspec URL.
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
        """Selects Arrow files, files with a glob's suffix, or a single file of any name."""
        return select_files(self.url, files, suffixes=SUFFIXES, what="an .arrow or .feather file")

    @property
    def _format(self) -> ArrowFormat:
        return FORMAT


def _open(opened: OpenSource, path: str) -> ArrowFile:
    source = open_for_arrow(opened, path)
    magic = source.read(len(_MAGIC))
    source.seek(0)
    if magic == _MAGIC:
        return _IpcFile(source, path, opened.limits.max_expansion)
    if magic.startswith(_FEATHER_V1_MAGIC):
        raise ValueError(
            "it is Feather V1, which Arrow is dropping and whose damage it does not detect. "
            "Rewrite it: pyarrow.feather.write_feather(pyarrow.feather.read_table(path), path)"
        )
    return _Stream(source, path, opened.limits.max_expansion)


class _Unindexed:
    """A file without statistics, and one unit by default."""

    schema: pa.Schema
    _path: str
    units: Sequence[Unit] = (Unit(0, 0, None),)

    def lacking(self) -> tuple[set[str], set[str]]:
        """All leaves of nullable columns are unknown."""
        leaves = leaves_of(self.schema, path=self._path)
        return set(), {
            name
            for name, leaf in leaves.items()
            if leaf.fields or self.schema.field(leaf.column).nullable
        }


class _IpcFile(_Unindexed):
    """An IPC file, whose footer lists its record batches."""

    def __init__(self, source: Any, path: str, max_expansion: int) -> None:
        self._source, self._path = source, path
        _check_sizes(source, _blocks(source, _FOOTER_DICTIONARIES), max_expansion)
        self._max_expansion = max_expansion
        self._reader = pa.ipc.open_file(source)
        self.schema = self._reader.schema

    @functools.cached_property
    def _batches(self) -> list[tuple[int, int]]:
        return _blocks(self._source, _FOOTER_BATCHES)

    @functools.cached_property
    def units(self) -> Sequence[Unit]:  # type: ignore[override]
        batches, row = [], 0
        blocks = self._batches
        if len(blocks) != self._reader.num_record_batches:
            raise ValueError("the record batches in the footer differ from those in the file")
        for offset, metadata_bytes in blocks:
            try:
                if not (offset >= 0 and 0 <= metadata_bytes <= self._source.size() - offset):
                    raise ValueError("a batch is outside the file")
                num_rows = _batch_length(self._source.read_at(metadata_bytes, offset))
            except DAMAGE:
                num_rows = None  # reading it reports why
            batches.append(Unit(max(0, min(offset, self._source.size() - 1)), row, num_rows))
            row += num_rows or 0
        return batches

    def read(self, unit: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        _check_sizes(self._source, [self._batches[unit]], self._max_expansion)
        yield _checked(self._reader.get_batch(unit), columns)

    def offset_of(self, row: int) -> int:
        return offset_between(self.units, row, num_bytes=self._source.size())


class _Stream(_Unindexed):
    """An IPC stream, read from start to end."""

    def __init__(self, source: Any, path: str, max_expansion: int) -> None:
        self._path = path
        if is_at_hand(source):
            _check_sizes(source, stream_messages(source), max_expansion)
            source.seek(0)
        self._reader = pa.ipc.open_stream(source)
        self._fresh = True
        self._source = source
        self.schema = self._reader.schema

    def read(self, unit: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in self._batches():
            yield _checked(batch, columns)

    def offset_of(self, row: int) -> int:
        start = 0
        for batch in self._batches():
            end = int(self._source.tell())
            if row < len(batch):
                return start + (end - start) * row // len(batch)
            row, start = row - len(batch), end
        return start

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if not self._fresh:
            self._source.seek(0)
            self._reader = pa.ipc.open_stream(self._source)
        self._fresh = False
        yield from self._reader


def _checked(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """The columns of a batch, after validating offsets: invalid ones would crash."""
    arrays = []
    for name in columns:
        array = batch.column(name)
        kind = array.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            # Text that is not UTF-8 only affects its row.
            array.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary()).validate(
                full=True
            )
        else:
            array.validate(full=True)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _check_sizes(source: Any, messages: Sequence[tuple[int, int]], max_expansion: int) -> None:
    """Refuses messages whose decompressed size is too large for a file of this size.

    Skipped for files on a store, which would have to be read entirely; their decoded bytes are
    counted instead.

    Raises:
        ValueError: naming the limit that is exceeded.
    """
    if not is_at_hand(source):
        return
    allowed = max(FREE_BYTES, source.size() * max_expansion)
    for offset, metadata_bytes in messages:
        if not (offset >= 0 and 0 <= metadata_bytes <= source.size() - offset):
            continue  # reading it reports why
        if decompressed_bytes(source, offset, metadata_bytes) > allowed:
            raise ValueError(f"it {grows_beyond(max_expansion)}")


def _blocks(source: Any, kind: int) -> list[tuple[int, int]]:
    """Offset and metadata size of each record batch (or dictionary) in a file's footer.

    Raises:
        ValueError: if the footer is missing or invalid.
    """
    num_bytes = source.size()
    tail = source.read_at(10, max(0, num_bytes - 10))
    size = int.from_bytes(tail[:4], "little", signed=True)
    if tail[4:] != _MAGIC or not 0 < size <= num_bytes - 10:
        raise ValueError("the file has no footer")
    footer = source.read_at(size, num_bytes - 10 - size)
    try:
        vector = _followed(footer, root(footer), kind)
        if vector is None:
            return []
        (count,) = struct.unpack_from("<I", footer, vector)
        if count * _BLOCK.size > len(footer):
            raise ValueError("the footer claims more record batches than fit in it")
        found = [_BLOCK.unpack_from(footer, vector + 4 + i * _BLOCK.size) for i in range(count)]
    except struct.error as error:
        raise ValueError(f"the footer is damaged: {error}") from None
    return [(offset, metadata) for offset, metadata, _ in found]


def _batch_length(metadata: bytes) -> int:
    """The number of rows of the record batch that a message describes.

    Raises:
        ValueError: if the message is not a valid record batch.
    """
    try:
        message = message_of(metadata)
        batch = _followed(message, root(message), HEADER)
        if batch is None:
            raise ValueError("a message has no header")
        length = field(message, batch, _BATCH_LENGTH)
        found = 0 if length is None else int(struct.unpack_from("<q", message, length)[0])
    except struct.error as error:
        raise ValueError(f"a message is damaged: {error}") from None
    if not 0 <= found < _MAX_ROWS:
        raise ValueError(f"a batch of {found} rows")
    return found


FORMAT = ArrowFormat(name="Arrow IPC or Feather", unit="record batch", open=_open)
