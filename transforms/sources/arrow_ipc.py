"""Arrow files as a source: IPC files and streams, and Feather.

The content decides which it is: ``ARROW1`` begins an IPC file (and Feather V2, which is one),
anything else is read as a stream. Feather V1 (``FEA1``, before 2020) is a reject that says how to
rewrite it. A record's id is ``relative/path#row``.
An IPC file is read by its record batches, each of them checked; a stream has no index, so what
follows a damage in it is lost, and it cannot be cut.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ...schemas.blocks import Selection, SourceFile
from ...schemas.config import config_class
from ...schemas.limits import FREE_BYTES
from ...schemas.recipe import OpenSource
from ..storage.decompress import grows_beyond
from ..storage.read_files import is_at_hand, open_for_arrow
from .arrow_bodies import (
    HEADER,
    decompressed_bytes,
    field,
    message_of,
    root,
    stream_messages,
)
from .arrow_files import DAMAGE, ArrowFile, ArrowFormat, Unit, offset_between
from .arrow_leaves import leaves_of
from .arrow_source import ArrowSource
from .table_files import select_files

SUFFIXES = (".arrow", ".feather", ".ipc", ".arrows")
"""What Arrow files' names end with."""

_MAGIC = b"ARROW1"
_FEATHER_V1_MAGIC = b"FEA1"
# Of the flatbuffers tables Footer and Message.
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_BATCH_LENGTH = 0
_MAX_ROWS = 1 << 48
_BLOCK = struct.Struct("<qi4xq")


@config_class
class Arrow(ArrowSource):
    """Rows of Arrow IPC files and streams and of Feather files.

    Attributes:
        url: A file, a folder (its ``.arrow``, ``.feather``, ``.ipc`` and ``.arrows`` files, at any
            depth), a glob, or any fsspec URL.
        label: The column to predict. Strings and bools become a ClassLabel; numbers stay.
        columns: The columns to read; all by default.
        types: Types in place of inferred ones: ``{"age": "float32"}``, or a feature such as
            ``ss.ClassLabel(("no", "yes"))`` or ``ss.Tensor("uint8", (28, 28))``. A struct's
            field is ``"struct.field"``.
    """

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Takes Arrow files, those of a glob's own suffix, and a single file as it is."""
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
            "it is Feather V1, which Arrow gives up and whose damage it does not notice. Rewrite "
            "it: pyarrow.feather.write_feather(pyarrow.feather.read_table(path), path)"
        )
    return _Stream(source, path, opened.limits.max_expansion)


class _Unindexed:
    """What is one unit, whose statistics nobody has counted."""

    schema: pa.Schema
    _path: str
    units: Sequence[Unit] = (Unit(0, 0, None),)

    def lacking(self) -> tuple[set[str], set[str]]:
        """All leaves of columns that may hold nulls."""
        leaves = leaves_of(self.schema, path=self._path)
        return set(), {
            name
            for name, leaf in leaves.items()
            if leaf.fields or self.schema.field(leaf.column).nullable
        }


class _IpcFile(_Unindexed):
    """An IPC file, whose footer says where its record batches lie."""

    def __init__(self, source: Any, path: str, max_expansion: int) -> None:
        self._source, self._path = source, path
        _check_sizes(source, _blocks(source, _FOOTER_DICTIONARIES), max_expansion)
        self._max_expansion = max_expansion
        self._reader = pa.ipc.open_file(source)
        self.schema = self._reader.schema

    @functools.cached_property
    def units(self) -> Sequence[Unit]:  # type: ignore[override]
        found, row = [], 0
        blocks = _blocks(self._source, _FOOTER_BATCHES)
        if len(blocks) != self._reader.num_record_batches:
            raise ValueError("the footer names other record batches than the file holds")
        for offset, metadata_bytes in blocks:
            try:
                if not (offset >= 0 and 0 <= metadata_bytes <= self._source.size() - offset):
                    raise ValueError("a batch lies outside of the file")
                num_rows = _batch_length(self._source.read_at(metadata_bytes, offset))
            except DAMAGE:
                num_rows = None  # reading it will say why
            found.append(Unit(max(0, min(offset, self._source.size() - 1)), row, num_rows))
            row += num_rows or 0
        return found

    def read(self, unit: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        block = _blocks(self._source, _FOOTER_BATCHES)[unit]
        _check_sizes(self._source, [block], self._max_expansion)
        yield _checked(self._reader.get_batch(unit), columns)

    def offset_of(self, row: int) -> int:
        return offset_between(self.units, row, num_bytes=self._source.size())


class _Stream(_Unindexed):
    """An IPC stream: read from its start to its end."""

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
    """The columns of a batch, whose offsets nothing has checked yet: bad ones would crash."""
    found = []
    for name in columns:
        array = batch.column(name)
        kind = array.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            # Text that is not UTF-8 is a matter of its row alone.
            array.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary()).validate(
                full=True
            )
        else:
            array.validate(full=True)
        found.append(array)
    return pa.RecordBatch.from_arrays(found, names=list(columns))


def _check_sizes(source: Any, messages: Sequence[tuple[int, int]], max_expansion: int) -> None:
    """Refuses messages that a file of this size should not hold once they are decompressed.

    Of a store's file nothing is known without reading all of it; what is decoded is counted then.

    Raises:
        ValueError: saying which limit they break.
    """
    if not is_at_hand(source):
        return
    allowed = max(FREE_BYTES, source.size() * max_expansion)
    for offset, metadata_bytes in messages:
        if not (offset >= 0 and 0 <= metadata_bytes <= source.size() - offset):
            continue  # reading it will say why
        if decompressed_bytes(source, offset, metadata_bytes) > allowed:
            raise ValueError(f"it {grows_beyond(max_expansion)}")


def _blocks(source: Any, kind: int) -> list[tuple[int, int]]:
    """Offset and bytes of metadata of each record batch (or dictionary) of a file, by its footer.

    Raises:
        ValueError: if the footer is none.
    """
    num_bytes = source.size()
    tail = source.read_at(10, max(0, num_bytes - 10))
    size = int.from_bytes(tail[:4], "little", signed=True)
    if tail[4:] != _MAGIC or not 0 < size <= num_bytes - 10:
        raise ValueError("the file has no footer")
    footer = source.read_at(size, num_bytes - 10 - size)
    try:
        place = field(footer, root(footer), kind)
        if place is None:
            return []
        vector = place + struct.unpack_from("<I", footer, place)[0]
        (count,) = struct.unpack_from("<I", footer, vector)
        if count * _BLOCK.size > len(footer):
            raise ValueError("the footer names more record batches than fit into it")
        found = [_BLOCK.unpack_from(footer, vector + 4 + i * _BLOCK.size) for i in range(count)]
    except struct.error as error:
        raise ValueError(f"the footer is damaged: {error}") from None
    return [(offset, metadata) for offset, metadata, _ in found]


def _batch_length(metadata: bytes) -> int:
    """Rows of the record batch that a message describes.

    Raises:
        ValueError: if it describes none.
    """
    try:
        message = message_of(metadata)
        place = field(message, root(message), HEADER)
        if place is None:
            raise ValueError("a message has no header")
        batch = place + struct.unpack_from("<I", message, place)[0]
        length = field(message, batch, _BATCH_LENGTH)
        found = 0 if length is None else int(struct.unpack_from("<q", message, length)[0])
    except struct.error as error:
        raise ValueError(f"a message is damaged: {error}") from None
    if not 0 <= found < _MAX_ROWS:
        raise ValueError(f"a batch of {found} rows")
    return found


FORMAT = ArrowFormat(name="Arrow IPC or Feather", unit="record batch", open=_open)
