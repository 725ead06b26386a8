"""Records that a recipe leaves out for good: the list of their ids, and the blocks they are in.

A file that is one excluded record does not reach the inventory: it is neither read nor hashed. Of a
file of many records, each block holds the ids that it leaves out, and so they are part of what
names its run: a longer list prepares only the blocks again that hold the added records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ...schemas.blocks import Block, SourceFile
from ...schemas.errors import RecipeError
from ...schemas.recipe import NumbersRecords, Source
from ...transforms.rejects import printable
from ...transforms.sources.extracted import ExtractedTable
from ...transforms.storage import redact
from ...transforms.storage.decompress import compression_of, other_compression
from ...transforms.storage.opened_source import open_source, path_bytes

_UTF8_MARK = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class IdList:
    """The ids of records in a text file, each once, in the order of their bytes."""

    ids: tuple[str, ...]

    @classmethod
    def of(cls, content: bytes) -> IdList:
        r"""Reads one id from each line; blank lines, and lines that begin with ``# ``, are skipped.

        A line with spaces around it is an id with and without them: a file's name may end with a
        space, but an id that is pasted with one must not be missed. A line in double quotes is the
        id as a JSON string, and ``./`` before an id is left out: so any name can be written, also
        one that begins with ``# `` or holds a line break. Bytes that are not UTF-8 are kept
        (``surrogateescape``), as in the ids of records.

        Raises:
            ValueError: if it is no list of lines: it would name no record, and prove nothing.

        >>> IdList.of(b"# asked on 12 May\n3/b.jpg\n3/a.jpg\n3/b.jpg\n").ids
        ('3/a.jpg', '3/b.jpg')
        >>> IdList.of(b'"a\\nb.txt"\n./# a.txt\n').ids
        ('# a.txt', 'a\nb.txt')
        """
        if problem := _why_no_list(content):
            raise ValueError(problem)
        lines = content.removeprefix(_UTF8_MARK).split(b"\n")
        unique = {line.removesuffix(b"\r") for line in lines}
        wanted = {line for line in unique if line.strip() and not _is_comment(line)}
        wanted |= {line.strip() for line in wanted}
        ids = {_plain(line) for line in wanted}
        return cls(tuple(line.decode("utf-8", "surrogateescape") for line in sorted(ids)))

    @functools.cached_property
    def sha256(self) -> str:
        """SHA-256, hex, of the sorted ids, each followed by a line feed.

        Neither comments nor the order of the lines change it.
        """
        return hashlib.sha256(
            b"".join(path_bytes(record_id) + b"\n" for record_id in self.ids)
        ).hexdigest()

    @functools.cached_property
    def _held(self) -> frozenset[str]:
        return frozenset(self.ids)

    def __contains__(self, record_id: str) -> bool:
        r"""Whether the list has the id; one that is not UTF-8 may be listed as shown (``\xNN``)."""
        return record_id in self._held or printable(record_id) in self._held

    def to_json(self) -> dict[str, object]:
        """What the fingerprint and the manifest hold of it."""
        return {"num_ids": len(self.ids), "sha256": self.sha256}


def _why_no_list(content: bytes) -> str:
    """What a file is that is no text of one id per line; empty if it is one."""
    if compression := compression_of(content) or other_compression(content):
        return f"it is compressed with {compression}"
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "it is UTF-16 or UTF-32"
    if content.startswith(b"PK\3\4"):
        return "it is a zip archive"
    if b"\0" in content:
        return "it holds NUL bytes"
    if any(b"\r" in line.strip() for line in content.split(b"\n")):
        return "its lines end with CR alone; in double quotes, \\r is part of an id"
    return ""


def _plain(line: bytes) -> bytes:
    """The id that a line means: of a JSON string its value, of a path what follows ``./``."""
    if len(line) > 1 and line.startswith(b'"') and line.endswith(b'"'):
        with contextlib.suppress(ValueError):
            return path_bytes(json.loads(line.decode("utf-8", "surrogateescape")))
    return line.removeprefix(b"./") or line


def _is_comment(line: bytes) -> bool:
    return line.startswith(b"# ") or line.strip() == b"#"


def read_ids(url: str, folder: str, *, argument: str) -> IdList:
    """Reads a list of ids.

    Args:
        url: A path or URL of a text file.
        folder: What a relative path is relative to.
        argument: What names the file, for messages.

    Raises:
        RecipeError: if it is not a text file of ids.
        StorageError: if it cannot be read.
    """
    try:
        opened = open_source(url, folder)
    except RecipeError:
        raise RecipeError(
            f"{argument}: the file {redact(url)} does not exist. Expected a text file with one "
            f"record id per line; a relative path starts at {folder or '.'}."
        ) from None
    if not opened.single:
        raise RecipeError(
            f"{argument}: {redact(url)} is a folder or a glob, expected one text file."
        )
    try:
        return IdList.of(opened.read(opened.single))
    except ValueError as error:
        raise RecipeError(
            f"{argument}: {redact(url)} cannot be read as a list of ids ({error}). Expected UTF-8 "
            "text with one record id per line."
        ) from None


def exclude_records(blocks: Sequence[Block], excluded: IdList, source: Source) -> tuple[Block, ...]:
    """The blocks of a source of many records per file, each with the ids that it leaves out.

    An id belongs to the blocks of the file that it names; where ids have byte offsets, only to the
    block that holds its offset. A table that was extracted has ids that name no file: all of its
    blocks get them.
    """
    parts: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for number, block in enumerate(blocks):
        for part in block.ranges:
            parts[part.path].append((number, part.start, part.stop))
    not_utf8 = {shown: path for path in parts if (shown := printable(path)) != path}
    table = source.name if isinstance(source, ExtractedTable) else None
    by_offset = not isinstance(source, NumbersRecords)
    left_out: dict[int, list[str]] = defaultdict(list)
    ids = dict.fromkeys(excluded.ids)
    for record_id in excluded.ids:
        shown, _, position = record_id.rpartition("#")
        split, _, below = shown.partition("/")
        if own := not_utf8.get(shown):
            ids[f"{own}#{position}"] = None
        elif own := not_utf8.get(below):
            ids[f"{split}/{own}#{position}"] = None
    for record_id in ids:
        path, _, position = record_id.rpartition("#")
        if table is not None and (path == table or path.startswith(f"{table}/")):
            numbers: Iterable[int] = range(len(blocks))
        else:
            # Sources that read several splits from one file name the split before it.
            blocks_of_path = parts.get(path) or parts.get(path.partition("/")[2]) or []
            numbers = dict.fromkeys(_holding(blocks_of_path, position, by_offset=by_offset))
        for number in numbers:
            left_out[number].append(record_id)
    return tuple(
        dataclasses.replace(block, excluded=tuple(left_out.get(number, ())))
        for number, block in enumerate(blocks)
    )


def _holding(
    parts: Sequence[tuple[int, int, int]], position: str, *, by_offset: bool
) -> Iterator[int]:
    """The blocks of a file that may hold the record at a position."""
    if not position.isdecimal():
        return
    if by_offset and len(parts) > 1:
        at = int(position)
        inside = [number for number, start, stop in parts if start <= at < stop]
        if inside:
            yield from inside
            return
    yield from (number for number, _, _ in parts)


def without_excluded(files: Sequence[SourceFile], excluded: IdList) -> tuple[SourceFile, ...]:
    """The files, each of them one record or part of one, that are not excluded."""
    return tuple(file for file in files if file.record_id not in excluded)
