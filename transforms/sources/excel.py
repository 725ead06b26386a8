"""The source of Excel workbooks: the rows of one sheet, read by python-calamine.

The sheet is read twice, a few thousand rows at a time: cells are first counted by type, then each
column is converted to the type of most of its cells. python-calamine holds a whole sheet in
memory, 32 bytes for each cell from the first to the last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import os
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa

from ...schemas.config import config_class
from ...schemas.errors import DataError, RecipeError, SchemaError
from ...schemas.features import call
from ...schemas.limits import DEFAULT_LIMITS, FREE_BYTES, Limits, too_many_columns
from ...schemas.recipe import Source
from ..storage.decompress import grows_beyond
from .csv.dialect import column_names
from .extracted import (
    PROBLEM,
    ExtractedTable,
    extract_batches,
    import_extra,
    local_file,
    plain_schema,
    with_positions,
)
from .table_files import check_types

SUFFIXES = (".xlsx", ".xlsm", ".xls")
"""Suffixes of workbooks."""

_NAME = "sheet"
_ROWS = 4096
_MAX_CELLS = 1 << 26
"""Of a sheet; in memory they take 2 GiB."""
_MAX_ROW_BYTES = 64 << 20
_READ_BYTES = 1 << 20
_EXACT = 1 << 53
"""Excel stores numbers as float64: from here on, not every integer."""
_ROW = re.compile(rb"""<(?:\w+:)?row\b(?:[^>]*?\br=["'](\d+))?""")
_CELL = re.compile(rb"""<(?:\w+:)?c\b(?:[^>]*?\br=["']([A-Za-z]{1,3})\d)?""")
_WHOLE_CELL = re.compile(rb"""<(?:\w+:)?c\b([^>]*?)(?:/>|>(.*?)</(?:\w+:)?c>)""", re.DOTALL)
_REFERENCE = re.compile(rb"""\br=["']([A-Za-z]{1,3})\d""")
_VALUE = re.compile(rb"<(?:\w+:)?v>([^<]*)<")
_KINDS: Mapping[type, str] = {
    bool: "bool",
    int: "number",
    float: "number",
    str: "text",
    datetime.date: "date",
    datetime.datetime: "date",
    datetime.time: "duration",
    datetime.timedelta: "duration",
}


@config_class
class Excel:
    """Rows of a sheet of an Excel workbook (``pip install "snapshard[excel]"``).

    The first row that has cells names the columns. Each build reads the sheet once, in the process
    that starts it, and copies the rows to the workspace. A record's id is ``sheet#<row>``, with the
    row's number in the sheet.

    A column has the type of most of its cells: numbers (int64 if all are integers, else float64),
    bools, dates, durations, or else strings. A text among numbers is a reject, a number among texts
    becomes text. Empty cells, and errors such as ``#N/A``, are missing.

    Attributes:
        url: A workbook, ``.xlsx``, ``.xlsm`` or ``.xls``: a path or any fsspec URL.
        sheet: The name of the sheet; None for the only one that is visible and has cells.
        label: The column to predict. Strings and bools become a ClassLabel; numbers are kept.
        types: Overrides inferred types: ``{"zip": "string"}``, or a feature such as
            ``ss.ClassLabel(("no", "yes"))``.
    """

    url: str
    sheet: str | None = None
    label: str | None = None
    types: Mapping[str, Any] | None = None

    media = False

    def __post_init__(self) -> None:
        """Checks the types."""
        check_types(self.types)

    def readings(
        self, folder: str, *, base: str, limits: Limits = DEFAULT_LIMITS
    ) -> tuple[Excel, ...]:
        """This source with each sheet that may be meant.

        Args:
            folder: As for :meth:`extract`.
            base: The recipe's folder.
            limits: Limits on what the file may request.

        Raises:
            SnapshardError: as :meth:`extract` does.
        """
        with self._opened(folder, base, limits) as (book, *_):
            names = _with_cells(book)
        if len(names) == 1:
            return (self,)
        return tuple(dataclasses.replace(self, sheet=name) for name in names)

    def say_readings(self, readings: Sequence[Excel]) -> str:
        """What there is, in the words of a refusal."""
        if not readings:
            return "no visible sheet with cells."
        return f"{len(readings)} sheets with cells, each of which may be the records."

    def extract(self, folder: str, *, base: str, limits: Limits = DEFAULT_LIMITS) -> Source:
        """Copies the rows of the sheet to files in the folder.

        Raises:
            RecipeError: if the workbook or the sheet does not exist, or python-calamine is not
                installed.
            DataError: if several sheets may be meant, there are no rows, or the workbook is damaged
                or too large.
            SchemaError: if the first row does not name the columns.
            SourceChangedError: if the workbook changes while it is read.
        """
        with self._opened(folder, base, limits) as (book, path, shown):
            name = self._sheet_name(book, shown)
            sheet = book.get_sheet_by_name(name)
            where = f"{shown}, sheet {name!r}"
            columns, notes = _columns(sheet, where, self.types or {}, self.label, limits)
            fields = [pa.field(column.name, column.type) for column in columns]
            schema = plain_schema(pa.schema(fields), path=where)
            if any(column.num_misfits for column in columns):
                schema = schema.append(pa.field(PROBLEM, pa.string()))
            times = {column.place for column in columns if column.has_times}
            lost = _lost_times(path, sheet, times) if times else {}
            files = extract_batches(_batches(sheet, columns, schema, lost), schema, folder)
        return ExtractedTable(
            folder,
            files=files,
            name=_NAME,
            of="Excel",
            columns=tuple(column.name for column in columns),
            label=self.label,
            types=self.types,
            notes=notes,
        )

    @contextlib.contextmanager
    def _opened(self, folder: str, base: str, limits: Limits) -> Iterator[tuple[Any, str, str]]:
        """The workbook, where it is, and its name for messages."""
        calamine = import_extra("python_calamine", of="ss.Excel", extra="excel")
        near = folder.rpartition("/")[0] or "."
        with local_file(self.url, of="Excel", base=base, limits=limits, near=near) as (path, shown):
            try:
                _check_size(path, shown, limits)
                with calamine.CalamineWorkbook.from_path(path) as book:
                    yield book, path, shown
            except (calamine.CalamineError, zipfile.BadZipFile, ElementTree.ParseError) as error:
                why = str(error) or type(error).__name__
                raise DataError(
                    f"Excel: {shown} cannot be read ({why}). Expected an intact workbook without "
                    f"a password ({', '.join(SUFFIXES)}). Save it again."
                ) from None

    def _sheet_name(self, book: Any, shown: str) -> str:
        if self.sheet is not None:
            if self.sheet not in book.sheet_names:
                raise RecipeError(
                    f"Excel: {shown} has no sheet {self.sheet!r}. Its sheets are "
                    f"{', '.join(map(repr, book.sheet_names))}."
                )
            return self.sheet
        names = _with_cells(book)
        if len(names) != 1:
            readings = [dataclasses.replace(self, sheet=name) for name in names]
            lines = (f"\n  source={call(source, 'ss.Excel')}" for source in readings)
            how = " Name one:" if readings else ""
            raise DataError(
                f"Excel: {shown} holds {self.say_readings(readings)}{how}{''.join(lines)}"
            )
        return names[0]


def _with_cells(book: Any) -> list[str]:
    """The names of the visible worksheets that have cells; each is loaded in turn."""
    names = []
    for sheet in book.sheets_metadata:
        is_shown = str(sheet.typ).endswith("WorkSheet") and str(sheet.visible).endswith("Visible")
        if is_shown and book.get_sheet_by_name(sheet.name).start is not None:
            names.append(sheet.name)
    return names


@dataclasses.dataclass(frozen=True)
class _Column:
    """A column of the sheet, and what its cells become."""

    place: int
    name: str
    kind: str
    type: pa.DataType
    num_misfits: int
    has_times: bool
    """Whether there are times of day."""

    def convert(self, cell: Any) -> Any:
        """The value of a cell; None if it is empty. It must fit."""
        if cell == "" and isinstance(cell, str):
            return None
        if self.kind == "text":
            return _text(cell)
        if self.kind == "date" and not isinstance(cell, datetime.datetime):
            return datetime.datetime.combine(cell, datetime.time())
        if self.kind == "duration" and isinstance(cell, datetime.time):
            return datetime.datetime.combine(datetime.date.min, cell) - datetime.datetime.min
        return int(cell) if self.type == pa.int64() else cell

    def problem(self, cell: Any) -> str | None:
        """Why a cell does not fit; None if it does."""
        if not self.num_misfits or cell == "" or _KINDS[type(cell)] == self.kind:
            return None
        return f"column {self.name!r} is {_text(cell)!r}, expected a {self.kind}"


def _text(cell: Any) -> str:
    """A cell as text: numbers and times as a CSV file has them."""
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < _EXACT:
        cell = int(cell)
    return str(cell) if not isinstance(cell, datetime.datetime) else cell.isoformat(" ")


class _Counts:
    """What the cells of a column are."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.integers = True
        self.has_times = False
        self.counting: set[int] = {0, 1}
        """From which of these the cells count: first, first + 1 …"""
        self._num_rows = 0

    def add(self, cells: Sequence[Any]) -> None:
        """Counts some of the cells, in order."""
        self.kinds.update(_KINDS[type(cell)] for cell in cells if cell != "")
        self.has_times |= any(type(cell) is datetime.time for cell in cells)
        numbers = [cell for cell in cells if type(cell) in (int, float)]
        self.integers &= all(abs(n) < _EXACT and float(n).is_integer() for n in numbers)
        for first in list(self.counting):
            expected = range(first + self._num_rows, first + self._num_rows + len(cells))
            if list(cells) != list(expected):
                self.counting.discard(first)
        self._num_rows += len(cells)

    def column(self, place: int, name: str, declared: object) -> _Column:
        """The column: of the kind of at least half of the cells, else of text."""
        num = self.kinds.total()
        by_number = [(count, kind != "text", kind) for kind, count in self.kinds.items()]
        most, _, kind = max(by_number, default=(0, False, "text"))
        if declared == "string" or getattr(declared, "dtype", "") == "string" or 2 * most < num:
            kind = "text"
        types: Mapping[str, pa.DataType] = {
            "bool": pa.bool_(),
            "number": pa.int64() if self.integers else pa.float64(),
            "date": pa.timestamp("us"),
            "duration": pa.duration("us"),
            "text": pa.string(),
        }
        misfits = 0 if kind == "text" else num - most
        return _Column(place, name, kind, types[kind], misfits, self.has_times)


def _rows(sheet: Any) -> Iterator[tuple[int, list[Any]]]:
    """The rows that have cells, with their numbers in the sheet, from 1."""
    for number, row in enumerate(sheet.iter_rows(), 1):
        if any(cell != "" for cell in row):
            yield number, row


def _chunks(sheet: Any) -> Iterator[list[tuple[int, list[Any]]]]:
    """The rows below the header, some at a time."""
    rows = itertools.islice(_rows(sheet), 1, None)
    while chunk := list(itertools.islice(rows, _ROWS)):
        yield chunk


def _columns(
    sheet: Any, where: str, types: Mapping[str, Any], label: str | None, limits: Limits
) -> tuple[list[_Column], tuple[str, ...]]:
    """The columns to read, and how those are read that have no name of their own.

    Raises:
        DataError: if there are no rows, or too many columns.
        SchemaError: if the first row does not name the columns.
    """
    number, header = next(_rows(sheet), (0, []))
    written = [_text(cell).strip() for cell in header]
    counts = [_Counts() for _ in written]
    num_rows = 0
    for chunk in _chunks(sheet):
        num_rows += len(chunk)
        for column, cells in zip(counts, zip(*(row for _, row in chunk), strict=True), strict=True):
            column.add(cells)
    if not num_rows:
        raise DataError(f"Excel: {where} has no rows below its header.")
    names = column_names(written)
    empty = [place for place, found in enumerate(counts) if not found.kinds and not written[place]]
    places = [place for place in range(len(names)) if place not in empty]
    if len(places) > limits.max_columns:
        raise DataError(too_many_columns(where, len(places), limits.max_columns))
    notes, kept = [], []
    for place in places:
        name, declared = names[place], names[place] in {*types, label}
        if not written[place] and counts[place].counting and not declared and len(places) > 1:
            notes.append(
                f"{where}: a column without a name is left out: it only counts the rows. "
                f"types={{{name!r}: 'int64'}} reads it."
            )
            continue
        if not written[place]:
            notes.append(f"{where}: a column without a name is read as {name!r}.")
        elif written[place] != name:
            notes.append(f"{where}: another column named {written[place]!r} is read as {name!r}.")
        kept.append(place)
    _refuse_titles([written[place] for place in kept], number, where)
    return [counts[p].column(p, names[p], types.get(names[p])) for p in kept], tuple(notes)


def _refuse_titles(written: Collection[str], number: int, where: str) -> None:
    named = list(filter(None, written))
    # Columns before the first name may be those of row names.
    inner = itertools.dropwhile(lambda name: not name, written)
    if sum(not name for name in inner) >= len(named):
        raise SchemaError(
            f"Excel: {where}: row {number} is the first with cells, and names {len(named)} of "
            f"{len(written)} columns: {', '.join(map(repr, named)) or 'none'}. If it is a title, "
            "delete it in the workbook; else name all columns."
        )


_Cells = Mapping[tuple[int, int], Any]
"""Cells by the numbers of their row, from 1, and of their column, from 0."""


def _batches(
    sheet: Any, columns: Sequence[_Column], schema: pa.Schema, lost: _Cells
) -> Iterator[pa.RecordBatch]:
    """The rows as columns, with their numbers as positions; some cells have other values."""
    for chunk in _chunks(sheet):
        problems: list[str | None] = [None] * len(chunk)
        arrays = []
        for column in columns:
            values = []
            for place, (number, row) in enumerate(chunk):
                cell = lost.get((number, column.place), row[column.place])
                problem = column.problem(cell)
                problems[place] = problems[place] or problem
                values.append(None if problem else column.convert(cell))
            arrays.append(pa.array(values, column.type))
        if PROBLEM in schema.names:
            arrays.append(pa.array(problems, pa.string()))
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        yield with_positions(batch, pa.array([number for number, _ in chunk]))


def _check_size(path: str, shown: str, limits: Limits) -> None:
    """Checks that sheets fit into memory, before python-calamine allocates it.

    Raises:
        DataError: if it is a kind of file whose size is unknown, or a sheet is too large.
    """
    if not zipfile.is_zipfile(path):
        return  # .xls: at most 65,536 rows of 256 cells
    allowed = max(FREE_BYTES, limits.max_expansion * os.path.getsize(path))
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if "xl/workbook.xml" not in archive.namelist():
            raise DataError(
                f"Excel: {shown} is not a workbook of a kind that is read "
                f"({', '.join(SUFFIXES)}). Save it as .xlsx."
            )
        if sum(member.file_size for member in members) > allowed:
            raise DataError(f"Excel: {shown} {grows_beyond(limits.max_expansion)}.")
        for member in members:
            with archive.open(member) as part:
                num_rows, num_columns = _extent(part)
            if num_rows * num_columns > _MAX_CELLS:
                raise DataError(
                    f"Excel: {shown}: {member.filename} extends over {num_rows:,} rows and "
                    f"{num_columns:,} columns, more than {_MAX_CELLS:,} cells. Delete what is "
                    "far from the table, or save the sheet as CSV."
                )


def _extent(part: Any) -> tuple[int, int]:
    """At most how many rows and columns the XML of a sheet has."""
    last_row = last_column = 0
    for number, text in _xml_rows(part):
        if text is None:
            return _MAX_CELLS, 2
        cells = _CELL.findall(text)
        named = max(map(_column_number, set(cells)), default=0)
        last_row, last_column = number, max(last_column, len(cells), named)
    return last_row, last_column


def _xml_rows(part: Any) -> Iterator[tuple[int, bytes | None]]:
    """The numbers of rows and their XML, read piece by piece; None for a row that is too long."""
    last_row = 0
    rest = b""
    while True:
        more = part.read(_READ_BYTES)
        text = rest + more
        starts = [found.start() for found in _ROW.finditer(text)]
        end = len(text) if not more else starts[-1] if starts else max(0, len(text) - _READ_BYTES)
        if len(text) - end > _MAX_ROW_BYTES:
            yield last_row, None
            return
        for start, stop in itertools.pairwise([*(s for s in starts if s < end), end]):
            row = _ROW.match(text, start)
            last_row = max(last_row + 1, int(row[1] or 0) if row else 0)
            yield last_row, text[start:stop]
        rest = text[end:]
        if not more:
            return


def _lost_times(path: str, sheet: Any, places: Set[int]) -> _Cells:
    """The cells of these columns whose time of day python-calamine gets wrong, as they are.

    A cell holds a number of days. Below 1 it is a time of day in python-calamine, whose sign is
    lost: 21:36 for -0.1; and 0:00 for 0.999999999, such as a sum of times may be.
    """
    found: dict[tuple[int, int], datetime.timedelta] = {}
    if not zipfile.is_zipfile(path):
        return found  # .xls
    _, first = sheet.start  # its columns begin there
    with zipfile.ZipFile(path) as archive, archive.open(_part_of(archive, sheet.name)) as part:
        for number, text in _xml_rows(part):
            place = -1
            for attributes, content in _WHOLE_CELL.findall(text or b""):
                named = _REFERENCE.search(attributes)
                place = _column_number(named[1]) - 1 if named else place + 1
                value = _VALUE.search(content)
                if place - first not in places or value is None:
                    continue
                with contextlib.suppress(ValueError, OverflowError):
                    days = float(value[1])
                    if days < 0 or 0.9999 < days < 1:
                        found[number, place - first] = datetime.timedelta(days=days)
    return found


def _part_of(archive: zipfile.ZipFile, sheet: str) -> str:
    """The name of the part of a workbook that holds a sheet."""
    links = {
        link.get("Id"): link.get("Target", "")
        for link in ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))
    }
    for element in ElementTree.fromstring(archive.read("xl/workbook.xml")).iter():
        if element.tag.endswith("}sheet") and element.get("name") == sheet:
            ids = (value for name, value in element.items() if name.endswith("}id"))
            target = links.get(next(ids, ""), "")
            part = target.lstrip("/") if target.startswith("/") else f"xl/{target}"
            if part in archive.namelist():
                return part
    raise zipfile.BadZipFile(f"no part holds the sheet {sheet!r}")


def _column_number(letters: bytes) -> int:
    """The number of a column, from 1.

    >>> _column_number(b"A"), _column_number(b"AB")
    (1, 28)
    """
    number = 0
    for letter in letters.upper():
        number = 26 * number + letter - 64
    return number
