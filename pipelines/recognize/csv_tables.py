"""Recognizes tables of text by their content, whatever their names: delimiter, header, encoding."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Sequence

from ...schemas.blocks import SourceFile
from ...schemas.errors import DataError
from ...schemas.splits import FOLDERS, USUAL_WORDS, Splits, split_in
from ...transforms.sources.combined import Sources
from ...transforms.sources.csv.dialect import Sniffed, default_delimiter, sniff
from ...transforms.sources.csv.source import Csv
from ...transforms.sources.text_stream import open_text
from ...transforms.storage.decompress import DamagedError
from ...transforms.storage.opened_source import OpenedSource
from .readings import Reading, UnclearError
from .table_folders import are_parts, are_splits, columns_in
from .unread_formats import check_lines, recipe_for
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
    _refuse_lines(first.path, head, found)
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


def find_other_tables(view: View) -> tuple[Csv, Sequence[SourceFile]] | None:
    """A CSV source of files with other suffixes whose content shows that they are tables.

    Returns:
        The source, and its files.

    Raises:
        UnclearError: if there are several, or several files of a suffix that are not clearly one.
    """
    groups: dict[str, list[SourceFile]] = {}
    for file in view.visible:
        suffix = os.path.splitext(file.path)[1] or os.path.basename(file.path)
        if file.num_bytes:
            groups.setdefault(suffix if view.has_urls else "", []).append(file)
    tables = [
        table for suffix, files in groups.items() for table in _tables_of(suffix, files, view)
    ]
    if len(tables) > 1:
        readings = [*_by_suffixes(tables), *(Reading(table) for table, _ in tables)]
        raise UnclearError(f"{view.shown} holds several tables.", readings)
    return tables[0] if tables else None


def _by_suffixes(tables: Sequence[tuple[Csv, Sequence[SourceFile]]]) -> list[Reading]:
    """The reading of tables that only suffixes tell apart, as in ``adult.data``, ``adult.test``."""
    names = [os.path.splitext(files[0].path) for _, files in tables]
    of_suffix = {"data": "train", "tra": "train", "tes": "test", **USUAL_WORDS}
    splits = [of_suffix.get(suffix.removeprefix(".").lower()) for _, suffix in names]
    is_one = len({stem for stem, _ in names}) == 1 and len(set(splits)) == len(splits)
    if not is_one or not are_splits(set(splits)):
        return []
    parts = {split: tables[splits.index(split)][0] for split in FOLDERS if split in splits}
    return [Reading(Sources(**parts), Splits.by_folder())]


def _tables_of(
    suffix: str, files: Sequence[SourceFile], view: View
) -> list[tuple[Csv, Sequence[SourceFile]]]:
    """The tables that files of a suffix are: one if they have the same columns, or one each.

    None if any of those looked at is not clearly a table.
    """
    looked = files[:: 1 + len(files) // _MAX_TABLES]
    tables: list[Csv] = []
    for file in looked:
        if (table := sniff_table(view.url, file, view.opened)) is None:
            return []
        tables.append(table)
    if not view.has_urls:
        return [(tables[0], files)]
    if len(files) > 1 and _are_one(tables, looked, view):
        deep = "**/" * any("/" in file.path for file in files)
        place = view.inner_url(f"{deep}*{glob.escape(suffix)}")
        return [(dataclasses.replace(tables[0], url=place or view.url), files)]
    return [
        (dataclasses.replace(table, url=view.inner_url(file.path) or view.url), [file])
        for table, file in zip(tables, looked, strict=True)
    ]


def _are_one(tables: Sequence[Csv], files: Sequence[SourceFile], view: View) -> bool:
    """Whether tables are formatted alike, and have the same columns.

    Without a header, numbers or splits in their names must say that they are parts.
    """
    names = {os.path.basename(file.path) for file in files}
    is_named = are_parts(names) or are_splits(set(map(split_in, names)))
    alike = all(table == tables[0] for table in tables) and (tables[0].header or is_named)
    return alike and bool(columns_in(tables[0], files, view.opened))


def sniff_table(url: str, file: SourceFile, opened: OpenedSource) -> Csv | None:
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
        _refuse_lines(file.path, head, found)
        return None
    return csv_tables(url, [file], opened)


def _refuse_lines(path: str, head: bytes, found: Sniffed) -> None:
    """Refuses lines of other formats, and a table whose columns are separated by two characters.

    Raises:
        DataError: if the lines are of such a format; or if all of the first lines have as many of
            these characters, and no delimiter is one of them.
    """
    check_lines(path, head[:_HEAD_BYTES])
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
                "reads delimiters of one character. A function can read it: copy "
                f"{recipe_for('two characters')}"
            )
