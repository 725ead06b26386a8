"""The text source: each line, paragraph or file is a record.

Lines end with LF or CRLF. A blank line ends a paragraph, and is not a record. Offsets count bytes
of the text: of the file itself if it is plain UTF-8, else of its decompressed text as UTF-8. A
record's id is ``path#offset``, or ``path`` if the file is the record.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa

from ...schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ...schemas.config import config_class
from ...schemas.errors import RECORD_ERROR, Reject, SchemaError
from ...schemas.features import Features, Text, tensor_form
from ...schemas.recipe import OpenSource
from ..rejects import reject_at, with_bytes
from ..runs.files import wire_schema
from ..storage.decompress import SUFFIXES as COMPRESSED
from ..storage.decompress import DamagedError
from .encodings import not_marked, unmarked_utf16
from .table_files import read_ranges, select_files
from .text_stream import ZERO_FILLED, codec_name, is_zero_filled, open_text
from .text_stream import Text as TextStream

SUFFIXES = (".txt", ".text", ".md", *(f".txt{suffix}" for suffix in COMPRESSED))
"""Suffixes of text files."""

MAX_RECORD_BYTES = 16 << 20
"""Maximum length of a line or paragraph. A file may have 64 MiB."""

_MAX_FILE_BYTES = 64 << 20
_WINDOW_BYTES = 4 << 20
_ENDS = {
    "line": re.compile(rb"\n"),
    "paragraph": re.compile(rb"\n[ \t\r]*\n"),
}
_SEARCH_BYTES = 64 << 10
_HEAD_BYTES = 4 << 10
_BLANK = b" \t\r\n"


@config_class
class TextFiles:
    """Lines, paragraphs or entire files of text: the feature ``text``.

    Attributes:
        url: A file, a folder (its ``.txt``, ``.text`` and ``.md`` files at any depth, including
            compressed ones), a glob, or any fsspec URL.
        per: The unit that is a record: ``line``, ``paragraph`` or ``file``.
        name: The name of the feature.
        encoding: Python's name of the encoding, such as ``latin-1``. Not needed for text that
            begins with a byte order mark of UTF-16 or UTF-32.
    """

    url: str
    per: Literal["line", "paragraph", "file"] = "line"
    name: str = "text"
    encoding: str = "utf-8"
    label = None
    media = False
    side_urls: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Checks the encoding."""
        codec_name(self.encoding)

    @property
    def numbered(self) -> bool:
        """Whether a file contains many records."""
        return self.per != "file"

    def settings(self) -> dict[str, object]:
        """The settings that determine the records, as plain JSON, for the fingerprint."""
        return {"encoding": codec_name(self.encoding), "name": self.name, "per": self.per}

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects text files, files with a glob's suffix, or a single file of any name."""
        return select_files(self.url, files, suffixes=SUFFIXES, what="a .txt file")

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        """Offsets of records at which to cut a large file of plain UTF-8."""
        if file.problem or self.per == "file" or file.num_bytes <= every + every // 2:
            return ()
        text = self._open(opened, file.path, file.num_bytes)
        if not text.plain:
            return ()
        ends = []
        for near in range(every, file.num_bytes - every // 2, every):
            end = self._end_of_record(text, near)
            if end is not None and end < file.num_bytes:
                ends.append(end)
        return tuple(sorted(set(ends)))

    def _end_of_record(self, text: TextStream, start: int) -> int | None:
        """The end of the record at an offset; None if it is too long."""
        max_bytes = text.max_row_bytes or MAX_RECORD_BYTES
        size = min(_SEARCH_BYTES, max_bytes)
        while True:
            end = _ENDS[self.per].search(text.read(start, start + size))
            if end is not None:
                return start + end.end()
            if size == max_bytes:
                return None
            size = min(4 * size, max_bytes)

    def head_bytes(self, file: SourceFile, opened: OpenSource) -> int:
        """0: nothing precedes the records."""
        del file, opened
        return 0

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The feature of the text.

        Raises:
            SchemaError: if the first file is UTF-16 and does not say so.
        """
        first = next((file for file in files if not file.problem and file.num_bytes), None)
        if first is not None and codec_name(self.encoding) == "utf-8":
            head = opened.read(first.path, 0, min(first.num_bytes, _HEAD_BYTES))
            if wide := unmarked_utf16(head):
                raise SchemaError(not_marked(first.path, wide))
        return {self.name: Text()}

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads the records of a block's ranges.

        Records that are invalid in the encoding, or too long, are rejected.

        Raises:
            SchemaError: if the features are not exactly the text.
        """
        self._check(features)
        yield from read_ranges(
            block,
            ordered,
            features=features,
            read=lambda part: self._read_part(part, features, opened),
            may_be_empty=True,
        )

    def _read_part(
        self, part: FileRange, features: Features, opened: OpenSource
    ) -> Iterator[RawBatch]:
        text = self._open(opened, part.path, part.stop)
        stop = part.stop if text.plain else text.stop
        if self.per == "file":
            records = _whole_file(text, stop)
        else:
            records = _records(text, part.start, stop, ends=_ENDS[self.per])
        batch: list[tuple[int, bytes]] = []
        rejects: list[Reject] = []
        size = 0
        try:
            for offset, content, problem in records:
                if problem:
                    rejects.append(self._reject("too long", part.path, offset, problem, content))
                    continue
                batch.append((offset, content))
                size += len(content)
                if size >= _WINDOW_BYTES:
                    yield self._batch(part.path, batch, rejects, features)
                    batch, rejects, size = [], [], 0
        except DamagedError as error:
            rejects.append(self._damaged(part.path, error))
        yield self._batch(part.path, batch, rejects, features)

    def _batch(
        self,
        path: str,
        records: Sequence[tuple[int, bytes]],
        rejects: Sequence[Reject],
        features: Features,
    ) -> RawBatch:
        rejected = list(rejects)
        kept = []
        for offset, content in records:
            try:
                content.decode()
            except UnicodeDecodeError as error:
                problem = f"byte {error.start} of it is not valid {self.encoding}"
                rejected.append(
                    self._reject("not text of the encoding", path, offset, problem, content)
                )
                continue
            if is_zero_filled(content):
                problem = f"it is {len(content):,} zero bytes"
                rejected.append(self._reject(ZERO_FILLED, path, offset, problem, content))
            else:
                kept.append((offset, content))
        schema = wire_schema(features)
        column = pa.array([content for _, content in kept], schema.types[0])
        ids = [path if self.per == "file" else f"{path}#{offset}" for offset, _ in kept]
        return RawBatch(
            ids=ids,
            columns=pa.RecordBatch.from_arrays([column], schema=schema),
            rejects=tuple(rejected),
        )

    def _reject(self, reason: str, path: str, offset: int, problem: str, content: bytes) -> Reject:
        whole = self.per == "file"
        where = path if whole else f"{path} byte {offset}"
        reject = reject_at(
            path,
            None if whole else offset,
            stage="read",
            reason=reason,
            message=f"{where}: the {self.per}: {problem}. Fix it, name its encoding=, or raise "
            "max_rejects to do without it.",
            exception="UnicodeDecodeError" if "encoding" in reason else RECORD_ERROR,
        )
        # The content of a record that is too long is not kept.
        return with_bytes(reject, content) if content else reject

    def _damaged(self, path: str, error: DamagedError) -> Reject:
        return Reject(
            record_id=path,
            stage="read",
            reason="damaged file",
            message=f"{path}: {error}: what follows is lost. Copy or create the file again, or "
            "raise max_rejects to do without it.",
            source=path,
            position=None if self.per == "file" else error.offset,
            exception=type(error).__name__,
        )

    def _open(self, opened: OpenSource, path: str, num_bytes: int) -> TextStream:
        return open_text(opened, path, num_bytes=num_bytes, encoding=codec_name(self.encoding))

    def _check(self, features: Features) -> None:
        form = tensor_form(features[self.name]) if self.name in features else None
        if set(features) != {self.name} or form is None or form.dtype != "string" or form.shape:
            raise SchemaError(
                f"features= declares {dict(features)}; TextFiles has one feature, {self.name!r}, "
                "an ss.Text()."
            )


def _whole_file(text: TextStream, stop: int) -> Iterator[tuple[int, bytes, str]]:
    parts, offset, max_bytes = [], 0, text.max_row_bytes or _MAX_FILE_BYTES
    while offset < min(stop, max_bytes + 1):
        part = text.read(offset, min(stop, offset + _WINDOW_BYTES))
        if not part:
            break
        parts.append(part)
        offset += len(part)
    problem = f"it has more than {max_bytes:,} bytes" if offset > max_bytes else ""
    yield 0, b"".join(parts).removeprefix(codecs.BOM_UTF8) if not problem else b"", problem


def _records(
    text: TextStream, start: int, stop: int, *, ends: re.Pattern[bytes]
) -> Iterator[tuple[int, bytes, str]]:
    """(offset, content, problem) of each record of a range, except blank ones."""
    held, offset, at = b"", start, start
    max_bytes = text.max_row_bytes or MAX_RECORD_BYTES
    damage: DamagedError | None = None
    skipping = False
    while True:
        try:
            piece = text.read(at, min(stop, at + _WINDOW_BYTES)) if at < stop else b""
        except DamagedError as error:
            damage, piece = error, b""
        at += len(piece)
        if offset == 0 and not held:
            bare = piece.removeprefix(codecs.BOM_UTF8)
            offset += len(piece) - len(bare)
            piece = bare
        # A record's end may span two pieces, so all held bytes are searched.
        held += piece
        position = 0
        for end in ends.finditer(held):
            if not skipping and end.start() - position > max_bytes:
                yield offset + position, b"", _too_long(max_bytes)
            elif not skipping:
                yield from _trimmed(offset + position, held[position : end.start()])
            skipping = False
            position = end.end()
        held, offset = held[position:], offset + position
        if not piece:
            break
        if len(held) > max_bytes:
            if not skipping:
                yield offset, b"", _too_long(max_bytes)
            skipping = True
            # The end may begin in the last bytes.
            offset += len(held) - _WINDOW_BYTES
            held = held[-_WINDOW_BYTES:]
    if not skipping and damage is None:
        yield from _trimmed(offset, held)
    if damage is not None:
        raise damage


def _too_long(max_bytes: int) -> str:
    return f"it is more than {max_bytes:,} bytes long"


def _trimmed(offset: int, content: bytes) -> Iterator[tuple[int, bytes, str]]:
    """A record without surrounding line breaks; nothing if it is blank."""
    if not content.strip(_BLANK):
        return
    lead = len(content) - len(content.lstrip(b"\r\n"))
    yield offset + lead, content.strip(b"\r\n"), ""
