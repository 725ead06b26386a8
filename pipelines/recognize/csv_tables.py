"""Recognizes tables of text by their content, whatever their names: delimiter, header, encoding."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from ...schemas.blocks import SourceFile
from ...schemas.errors import DataError, SnapshardError
from ...schemas.naming import join
from ...transforms.sources.csv.dialect import Sniffed, default_delimiter, sniff
from ...transforms.sources.csv.source import Csv
from ...transforms.sources.text_stream import open_text
from ...transforms.storage.decompress import DamagedError
from ...transforms.storage.opened_source import OpenedSource, open_source
from .readings import Reading, UnclearError
from .view import View

_SNIFFED_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16
_LONG_DELIMITERS = ("::", "||", ";;", "@@", "##", "~~", "^^")
_MAX_TABLES = 20
_MAX_SKIPPING = 1_000
"""Of so many files at most, ``skip=`` is suggested: the head of each is read."""


def csv_tables(url: str, tables: Sequence[SourceFile], opened: OpenedSource) -> Csv:
    """A CSV source with the first file's delimiter and encoding, with or without a header."""
    first = next((file for file in tables if not file.problem and file.num_bytes), None)
    if first is None:
        return Csv(url)
    default = default_delimiter(first.path)
    text = open_text(opened, first.path, num_bytes=first.num_bytes, encoding="utf-8")
    try:
        head = text.read(0, _SNIFFED_BYTES)
    except DamagedError:
        return Csv(url)
    found = sniff(head, default=default)
    _refuse_long_delimiter(first.path, head, found)
    source = Csv(
        url,
        delimiter=None if found.delimiter == default else found.delimiter,
        encoding=found.encoding,
        header=found.header,
        quote='"' if found.quoted else None,
        skip=found.skip if _all_skip(found.skip, tables, opened) else 0,
        comment=found.comment,
        decimal=found.decimal,
        thousands=found.thousands,
        strip=found.strip,
    )
    if len(found.readings) > 1:
        raise UnclearError(
            f"{first.path} is not UTF-8, and its encoding is not clear.",
            [
                Reading(
                    dataclasses.replace(source, encoding=reading.encoding),
                    against=(f"with {reading.sample!r} in it:",),
                )
                for reading in found.readings
            ],
        )
    return source


def _all_skip(num: int, tables: Sequence[SourceFile], opened: OpenedSource) -> bool:
    """Whether files all begin with so many lines that are not rows; else rows would be lost."""
    if num and len(tables) > _MAX_SKIPPING:
        return False
    for file in tables[1:] if num else ():
        text = open_text(opened, file.path, num_bytes=file.num_bytes, encoding="utf-8")
        try:
            head = text.read(0, _HEAD_BYTES)
        except DamagedError:
            continue
        if sniff(head, default=default_delimiter(file.path)).skip != num:
            return False
    return True


def find_other_tables(view: View) -> Csv | None:
    """A CSV source of files with other suffixes whose content shows that they are tables.

    In a folder, these are files directly in it.

    Raises:
        UnclearError: if there are several, or several files of a suffix without the same header.
    """
    url = view.url
    groups: dict[str, list[SourceFile]] = {}
    for file in view.visible:
        suffix = os.path.splitext(file.path)[1] or file.path
        if file.num_bytes and not view.has_urls:
            groups.setdefault(url, []).append(file)
        elif file.num_bytes and "/" not in file.path:
            groups.setdefault(join(url, f"*{suffix}"), []).append(file)
    tables = [
        table for place in groups for table in _tables_of(place, url, groups[place], view.opened)
    ]
    if len(tables) > 1:
        raise UnclearError(f"{view.shown} holds several tables.", list(map(Reading, tables)))
    return tables[0] if tables else None


def _tables_of(
    place: str, root: str, files: Sequence[SourceFile], opened: OpenedSource
) -> list[Csv]:
    """The tables that the files of a glob are: one if they have one header, or one for each file.

    None if any of those looked at is not clearly a table.
    """
    looked = files[:: 1 + len(files) // _MAX_TABLES]
    found = [_sniff_table(place, file, opened) for file in looked]
    tables = [table for table in found if table is not None]
    if not tables or len(tables) < len(found):
        return []
    if place == root or (len(files) > 1 and _have_one_header(tables)):
        return tables[:1]
    return [
        dataclasses.replace(table, url=join(root, file.path))
        for table, file in zip(tables, looked, strict=True)
    ]


def _have_one_header(tables: Sequence[Csv]) -> bool:
    """Whether tables of one glob are formatted alike, and their files have the same columns."""
    source = tables[0]
    if not source.header or any(table != source for table in tables):
        return False
    opened = open_source(source.url, ".")
    try:
        source.infer(source.select(opened.list()).files, opened)
    except SnapshardError:
        return False
    return True


def _sniff_table(url: str, file: SourceFile, opened: OpenedSource) -> Csv | None:
    """A CSV source for a file whose content shows that it is a table."""
    text = open_text(opened, file.path, num_bytes=file.num_bytes, encoding="utf-8")
    try:
        head = text.read(0, _SNIFFED_BYTES)
    except DamagedError:
        return None
    if b"\0" in head[:_HEAD_BYTES]:
        return None
    found = sniff(head)
    if not found.is_table:
        _refuse_long_delimiter(file.path, head, found)
        return None
    return csv_tables(url, [file], opened)


def _refuse_long_delimiter(path: str, head: bytes, found: Sniffed) -> None:
    """Refuses a table whose columns are separated by two characters.

    Raises:
        DataError: if all of the first lines have as many of them, and no delimiter is one of them.
    """
    *lines, _ = head[:_HEAD_BYTES].split(b"\n")
    lines = [line for line in lines if line.strip()]
    for delimiter in map(str.encode, _LONG_DELIMITERS if len(lines) > 1 else ()):
        counts = {line.count(delimiter) for line in lines}
        single = found.delimiter.encode()
        rest = (line.replace(delimiter, b"") for line in lines)
        if found.is_table and (single not in delimiter or any(single in line for line in rest)):
            continue
        if len(counts) == 1 and counts != {0}:
            raise DataError(
                f"{path} is a table whose columns are separated by {delimiter.decode()!r}; ss.Csv "
                "reads delimiters of one character. A function can read it: copy the recipe in "
                "docs/sources.md, 'Formats without a source: two characters'."
            )
