"""The dialect of CSV files: their delimiter, encoding and header, declared or guessed."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from ....schemas.errors import SchemaError
from ....schemas.recipe import OpenSource
from ...storage.decompress import SUFFIXES as COMPRESSED_SUFFIXES
from ..encodings import Reading, not_marked, readings, unmarked_utf16
from ..text_stream import Rows, Text, held_text, open_text, shown_text, text_start, undamaged
from .rows import WHITESPACE, Form, Table, find_rows, thousands_form, without_comments

SUFFIXES = tuple(name + end for name in (".csv", ".tsv") for end in ("", *COMPRESSED_SUFFIXES))
"""Suffixes of CSV and TSV files, compressed or not."""

NULL_VALUES = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")

_HEADER_WINDOW_BYTES = 1 << 16
_MAX_FIRST_ROWS = 100
"""So many rows show which columns a header names that does not fit them."""
_COMMA_BETWEEN = re.compile(r"(?<![0-9]),|,(?![0-9])")
"""A comma that is not within a number."""
_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_DATE = re.compile(r"\s*(\d{4}[-/]\d\d?[-/]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{4})")
_LINE_END = re.compile(r"\r\n?|\n")
_LINE_BREAK = re.compile(rb"\r\n?|\n")
_MAX_SKIPPED_BYTES = 1 << 20
_MIN_BODY = 4
"""So many lines with the same number of cells show that lines before them are titles."""
_MANY_ROWS = 10
_MAX_CATEGORY = 20
_COMMA_NUMBER = re.compile(r"\s*[-+]?\d+(,\d+)?([eE][-+]?\d+)?\s*")
_CLEAR_COMMA = re.compile(r"\s*[-+]?(\d+,(\d{1,2}|\d{4,})|(0|\d{4,}),\d+)([eE][-+]?\d+)?\s*")
_POINT_NUMBER = re.compile(r"\s*[-+]?\d+\.\d+\s*")
_POINT_THOUSANDS = re.compile(r"\s*[-+]?[1-9]\d{0,2}(\.\d{3})+\s*")
_SEPARATOR = re.compile(r"sep=([,;|\t])\r?\n", re.IGNORECASE)
_YEARS = range(1800, 2200)
_MIN_LIKE = 3
"""So many cells below show what all cells of a column have in common."""
_DIGITS = re.compile(r"[0-9]+")
_RUN_OF_BLANKS = re.compile(r"\S  +\S")
_FILE_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{1,3}$")
_SENTENCE = re.compile("[.!?\u3002\uff01\uff1f]\\W*$")


@dataclasses.dataclass(frozen=True)
class Header:
    """The column names of a file."""

    names: tuple[str, ...]
    """All different, and none empty."""
    stop: int
    """The byte offset in the text at which the rows begin."""
    looked: int
    """The byte offset up to which the text determines the names."""
    written: tuple[str, ...] = ()
    """The names as written, ``""`` for a missing one; () without a header."""

    @property
    def nameless(self) -> tuple[str, ...]:
        """The names of the columns that the file does not name."""
        return tuple(self.names[i] for i, written in enumerate(self.written) if not written)

    @property
    def doubled(self) -> tuple[str, ...]:
        """The names that the file gives to several columns."""
        return tuple(name for name, num in Counter(self.written).items() if name and num > 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """How the files of a source are formatted; see ``Csv``."""

    delimiter: str | None
    null_values: tuple[str, ...]
    encoding: str
    header: bool
    columns: tuple[str, ...]
    union: bool = False
    """Whether files may lack columns that others have."""
    quoted: bool = True
    """Whether cells may be in quotes."""
    skip: int = 0
    """The number of lines before the header."""
    comment: str | None = None
    """The first character of lines that are not rows."""
    decimal: str = "."
    """The mark before the fraction of a number."""
    thousands: str | None = None
    """The mark between groups of three digits."""
    strip: bool = False
    """Whether blanks around cells are left out."""
    escape: str | None = None
    """The character after which the next one means itself."""

    def delimiter_of(self, path: str) -> str:
        """The delimiter of a file."""
        return default_delimiter(path) if self.delimiter is None else self.delimiter

    def table(self, path: str, names: tuple[str, ...], *, plain: bool = True) -> Table:
        """How to parse the rows of a file."""
        return Table(
            path=path,
            header=names,
            delimiter=self.delimiter_of(path),
            null_values=self.null_values,
            encoding=self.encoding,
            plain=plain,
            quoted=self.quoted,
            comment=self.comment,
            decimal=self.decimal,
            thousands=self.thousands,
            strip=self.strip,
            escape=self.escape,
        )

    def open(self, opened: OpenSource, path: str, num_bytes: int) -> Text:
        """The text of a file, or of its first ``num_bytes`` bytes if it is plain UTF-8."""
        return open_text(opened, path, num_bytes=num_bytes, encoding=self.encoding)

    def read_header(self, text: Text, path: str) -> Header | None:
        """The columns of a file; None if it has no row.

        They are named by the first row (see :func:`column_names`), declared, or ``column_0`` and
        so on, one for each cell of the first row.

        Raises:
            SchemaError: if its first row cannot be read.
            DamagedError: if the file is compressed and damaged before the end of that row.
        """
        table, start = self.table(path, ()), _after_lines(text, text_start(text), self.skip)
        rows = next((rows for rows in _windows(text, start, table) if len(rows)), None)
        if rows is None:
            return None
        if not self.header and self.columns:
            return Header(self.columns, start, start)
        what = "the header" if self.header else "the first row"
        if rows.problem:
            raise SchemaError(f"{path}: {what}: {rows.problem}. Fix the file's first line.")
        line = rows.text(0)
        if self.header and not line.strip(b"\0"):
            raise SchemaError(
                f"{path} begins with zero bytes, as an incompletely written file does; expected "
                f"{what}. Copy or create it again."
            )
        if wide := unmarked_utf16(rows.data[:_HEADER_WINDOW_BYTES]):
            raise SchemaError(not_marked(path, wide))
        try:
            decoded = line.decode(errors="strict" if self.header else "replace")
        except UnicodeDecodeError as error:
            position, bytes_there = rows.offset + error.start, line[error.start :]
            raise SchemaError(
                f"{path}: the header is not {self.encoding.upper()} (byte {position}: "
                f"'{shown_text(bytes_there)[:20]}'). "
                'Name the file\'s encoding in the source, for example encoding="latin-1".'
            ) from None
        try:
            cells = split_row(decoded, table)
        except csv.Error as error:
            raise SchemaError(f"{path}: {what}: {error}. Fix the file's first line.") from None
        if not self.header:
            names = tuple(f"column_{position}" for position in range(len(cells)))
            return Header(names, start, start)
        stop = rows.offset + int(rows.starts[1] if len(rows) > 1 else len(rows.data))
        named = [cell if cell.strip() else "" for cell in cells]
        following = parsed_rows(text, stop, table)
        first = list(itertools.islice(following, 1))
        if first and len(first[0].cells) != len(named):
            first += itertools.islice(following, _MAX_FIRST_ROWS - 1)
            named = _fitted(named, first, table.delimiter)
        looked = first[-1].stop if first else stop
        return Header(column_names(named), stop, looked, tuple(named))


@dataclasses.dataclass(frozen=True)
class ParsedRow:
    """One row of a file, without types."""

    cells: list[str]
    quoted: bool
    """Whether the first cell is."""
    stop: int
    """The byte offset in the text at which the row ends."""


def _windows(text: Text, start: int, table: Table) -> Iterator[Rows]:
    found = find_rows(text, start, text.stop, table, window_bytes=_HEADER_WINDOW_BYTES)
    return (without_comments(rows, table.comment) for rows in found)


def _after_lines(text: Text, start: int, num: int) -> int:
    """The offset after a number of lines."""
    data = b""
    while num and (piece := text.read(start + len(data), start + _MAX_SKIPPED_BYTES)):
        data += piece
    ends = [match.end() for match in itertools.islice(_LINE_BREAK.finditer(data), num)]
    return start + (ends[-1] if len(ends) == num > 0 else len(data))


def parsed_rows(text: Text, start: int, table: Table) -> Iterator[ParsedRow]:
    """The rows from an offset on, up to the first that cannot be read."""
    for rows in undamaged(_windows(text, start, table)):
        if rows.problem:
            return
        for row, stop in enumerate(rows.stops.tolist()):
            line = rows.text(row).decode(errors="replace")
            try:
                cells = split_row(line, table)
            except csv.Error:
                return
            in_quotes = table.quoted and line.lstrip(" \t").startswith('"')
            yield ParsedRow(cells, in_quotes, rows.offset + stop)


def split_row(line: str, form: Form) -> list[str]:
    """The cells of a row.

    Raises:
        csv.Error: if it has none.
    """
    if form.blanks:
        line = form.normal(line.encode(errors="replace")).decode()
    mark = " " if form.delimiter == WHITESPACE else form.delimiter
    if not form.quoted and form.escape is None:
        return line.split(mark)
    lines = io.StringIO(line, newline="")
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if form.quoted else csv.QUOTE_NONE
    return next(csv.reader(lines, delimiter=mark, escapechar=form.escape, quoting=quoting))


def _fitted(names: list[str], rows: Sequence[ParsedRow], delimiter: str) -> list[str]:
    """The names of a header, one for each cell of the first rows if it is clear which.

    R writes no name for the column of row names, and some programs end each row, or only the
    header, with a delimiter.
    """
    sizes = {len(row.cells) for row in rows}
    num = sizes.pop()
    if sizes or num > len(names) + 1 or any(names[num:]):
        return names
    if num < len(names):
        return names[:num]
    if not any(row.cells[-1] for row in rows):
        return [*names, ""]
    return ["", *names] if _are_row_names(rows, delimiter) else names


def _are_row_names(rows: Sequence[ParsedRow], delimiter: str) -> bool:
    """Whether the first cells name rows. An unquoted ``Paris,2,5`` may contain a decimal comma."""
    first = [row.cells[0] for row in rows]
    counted = first == [str(number) for number in range(1, len(first) + 1)]
    clear = delimiter != "," or counted or all(row.quoted for row in rows)
    return clear and len(set(first)) == len(first)


def column_names(written: Sequence[str]) -> tuple[str, ...]:
    """A name for each column of a header: names that are missing or repeated get a number.

    >>> column_names(["", "x", "x", "y", ""])
    ('column_0', 'x', 'x_2', 'y', 'column_4')
    """
    taken, names = set(written), dict[str, None]()
    for position, name in enumerate(written):
        new = name
        if not name or name in names:
            base = name or f"column_{position}"
            numbered = (f"{base}_{number}" for number in itertools.count(2))
            new = next(new for new in itertools.chain([base], numbered) if new not in taken)
            taken.add(new)
        names[new] = None
    return tuple(names)


def default_delimiter(path: str) -> str:
    r"""The delimiter implied by a file's name.

    >>> default_delimiter("b.tsv.gz"), default_delimiter("b.csv")
    ('\t', ',')
    """
    lower = path.lower()
    compression = next((end for end in COMPRESSED_SUFFIXES if lower.endswith(end)), "")
    return "\t" if lower.removesuffix(compression).endswith(".tsv") else ","


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sniffed:
    """The dialect that a file seems to have."""

    delimiter: str
    encoding: str
    header: bool
    quoted: bool = True
    skip: int = 0
    comment: str | None = None
    decimal: Literal[".", ","] = "."
    thousands: Literal[".", ","] | None = None
    strip: bool = False
    is_table: bool = False
    """Whether the text shows by itself that it is a table, whatever the file's name."""
    readings: tuple[Reading, ...] = ()
    """The encodings that the text may have, the most plausible first."""


def sniff(head: bytes, *, default: str = ",") -> Sniffed:
    """Guesses the dialect from the beginning of a file's text.

    The delimiter is what a first line such as ``sep=;`` says, as Excel reads it. Else it is the
    candidate of which all first lines have as many, or the most frequent one in the first line,
    outside quotes. If there is none, or tabs in lines with runs of blanks or
    different numbers of tabs, and blanks separate as many cells in every line, most of them
    numbers, it is whitespace. See :mod:`..encodings` for the encoding.

    Args:
        head: Bytes of the text; the last line may be incomplete.
        default: The delimiter if the first line has none.
    """
    found = readings(head)
    encoding = found[0].encoding
    text = head.removeprefix(b"\xef\xbb\xbf").decode(encoding, "replace")
    said = _SEPARATOR.match(text)
    skip, comment = (1, None) if said else _leading_comments(text, default)
    if comment:
        lines = [line for line in _LINE_END.split(text) if not line.startswith(comment)]
        text = "\n".join(lines)
    elif not skip:
        skip = _num_titles(text, default)
    text = (_LINE_END.split(text, maxsplit=skip)[-1] if skip else text).lstrip("\r\n")
    delimiter = said[1] if said else _delimiter(text, default)
    strip = _is_padded(text, delimiter)
    quoted = strip or not _has_plain_quotes(text, delimiter)
    rows = _sniffed_rows(text, Form(delimiter=delimiter, quoted=quoted, strip=strip))
    thousands = _thousands_mark(rows, delimiter)
    commas = thousands == "." or (delimiter != "," and _has_decimal_commas(rows))
    if commas and any(_POINT_THOUSANDS.fullmatch(cell) for row in rows[1:] for cell in row):
        thousands = "."
    return Sniffed(
        delimiter=delimiter,
        encoding=encoding,
        header=not rows or _is_only_quoted(text) or _is_header(rows),
        quoted=quoted,
        skip=skip,
        comment=comment,
        decimal="," if commas else ".",
        thousands=thousands,
        strip=strip,
        is_table=_is_table(rows, delimiter, commas=commas),
        readings=tuple(found),
    )


def _has_decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a column has nothing but numbers, some with a comma that cannot mean thousands.

    No cell is a number with a point, unless that may mean thousands.
    """
    columns = [[cell for cell in column if cell.strip()] for column in zip(*rows[1:], strict=False)]
    return any(
        len(cells) >= _MIN_BODY
        and all(map(_COMMA_NUMBER.fullmatch, cells))
        and any(map(_CLEAR_COMMA.fullmatch, cells))
        for cells in columns
    ) and not any(
        _POINT_NUMBER.fullmatch(cell) and not _POINT_THOUSANDS.fullmatch(cell)
        for cells in columns
        for cell in cells
    )


def _thousands_mark(rows: Sequence[Sequence[str]], delimiter: str) -> Literal[".", ","] | None:
    """The mark between thousands of a column, if it can mean nothing else.

    One of its numbers has two such marks, or one and another before a fraction, as 1,234.5 does.
    They have different numbers of digits, as addresses such as 192.168.100.200 may not, and no
    column has a number in which the mark comes before other than three digits.
    """
    columns = [[cell for cell in column if cell.strip()] for column in zip(*rows[1:], strict=False)]
    marks: tuple[tuple[Literal[".", ","], str], ...] = ((",", "."), (".", ","))
    for mark, decimal in marks[: 1 if delimiter == "," else 2]:
        form = re.compile(thousands_form(mark, decimal))
        number = re.compile(rf"{form.pattern}|\s*[-+]?[0-9]+(?:{re.escape(decimal)}[0-9]*)?\s*")
        other = re.compile(rf"\s*[-+]?[0-9]+{re.escape(mark)}[0-9]+\s*")
        wrong = (other.fullmatch(c) and not form.fullmatch(c) for cells in columns for c in cells)
        if any(wrong):
            continue
        for cells in columns:
            written = [cell for cell in cells if form.fullmatch(cell)]
            clear = any(cell.count(mark) > 1 or decimal in cell for cell in written)
            enough = len(cells) >= _MIN_BODY and len({*map(len, map(str.strip, cells))}) > 1
            if clear and enough and all(map(number.fullmatch, cells)):
                return mark
    return None


def _is_padded(text: str, delimiter: str) -> bool:
    """Whether each delimiter of the first lines has a blank after it, or each one before it."""
    lines = [re.sub(r'"[^"]*"', '""', line).split(delimiter) for line in _first_lines(text)]
    if delimiter == WHITESPACE or len(lines) < _MIN_BODY or any(len(line) < 2 for line in lines):
        return False
    return all(cell.startswith(" ") for cells in lines for cell in cells[1:]) or all(
        cell.endswith(" ") for cells in lines for cell in cells[:-1]
    )


def _is_table(rows: Sequence[Sequence[str]], delimiter: str, *, commas: bool = False) -> bool:
    """Whether rows have as many cells, and numbers in a column or a delimiter that texts lack.

    With ``commas``, a column has numbers with decimal commas.
    """
    widths = {*map(len, rows[1:])}
    if len(rows) < _MIN_BODY or len(widths) != 1 or widths == {1}:
        return False
    if abs(len(rows[0]) - widths.pop()) > 1:
        return False
    columns = list(zip(*rows[1:], strict=True))
    if commas or any(map(_is_numeric, columns)):
        return True
    enough = len(rows) >= _MANY_ROWS
    return enough and (delimiter in ("\t", "|", ";") or _are_categories(columns))


def _are_categories(columns: Sequence[Sequence[str]]) -> bool:
    """Whether columns have a few short words, again and again, and most of them several."""
    return sum(len({*cells}) > 1 for cells in columns) * 2 > len(columns) and all(
        max(map(len, cells)) <= _MAX_CATEGORY
        and not any(" " in cell for cell in cells)
        and 2 * len({*cells}) <= len(cells)
        for cells in columns
    )


def _delimiter(text: str, default: str) -> str:
    written = _first_lines(text)
    lines = [re.sub(r'"[^"]*"', "", line) for line in written]
    marks = [default, *_DELIMITERS]
    # The first line may have units: "Zeit, s;Weg, m".
    body = lines[1:] or lines
    within_numbers = "," in "".join(body) and not any(map(_COMMA_BETWEEN.search, body))

    def fits(mark: str) -> tuple[bool, bool, bool, int, bool, int]:
        counts = [line.count(mark) for line in lines]
        alike = len(set(counts)) == 1 and counts[0] > 0
        separates = alike and not (mark == "," and within_numbers)
        # Quotes may be text, and two of them have a delimiter between them.
        in_all = mark in written[0] and len({line.count(mark) for line in written}) == 1
        is_tab = alike and mark == "\t"
        return alike, separates, in_all and not alike, counts[0], is_tab, -marks.index(mark)

    delimiter: str = max(marks, key=fits)
    cells = [line.split() for line in body]
    widths = {*map(len, cells)}
    if delimiter == "," and within_numbers and len(widths) == 1 and widths != {1}:
        return WHITESPACE if all(map(_COMMA_NUMBER.fullmatch, itertools.chain(*cells))) else ","
    if not lines[0].count(delimiter) and _is_blank_separated(text):
        return WHITESPACE
    uneven = len({line.count("\t") for line in lines}) > 1
    if delimiter == "\t" and (uneven or all(map(_RUN_OF_BLANKS.search, lines))):
        return WHITESPACE if _is_blank_separated(text, quotes_show=False) else delimiter
    return delimiter


def _leading_comments(text: str, default: str) -> tuple[int, str | None]:
    """The number of first lines that begin with ``#`` or ``%``; the character if others do, too.

    No comment is a line with as many cells as the first one after them: a header ``#x,y``.
    """
    found = re.match(r"[\r\n]*(?:([#%])[^\r\n]*(?:\r\n?|\n))(?:\1[^\r\n]*(?:\r\n?|\n))*", text)
    if found is None:
        return 0, None
    body = text[found.end() :]
    delimiter = _delimiter(body, default)
    num = _first_lines(body)[0].count(delimiter)

    def are_cells(line: str) -> bool:
        return line.startswith(found[1]) and line.count(delimiter) == num > 0

    if any(map(are_cells, _first_lines(text))):
        return 0, None
    if any(line.startswith(found[1]) for line in _first_lines(body)):
        return 0, found[1]
    return len(_LINE_END.findall(found[0])), None


def _num_titles(text: str, default: str) -> int:
    """The number of lines before a table: none of them has as many delimiters as all after them.

    The header may have one more or less. Before columns in blanks, it is the number of rows.
    Lines that are themselves a table are not titles.
    """
    lines = _LINE_END.split(text[:_HEADER_WINDOW_BYTES])[:_MAX_FIRST_ROWS][:-1]
    if lines and lines[0].strip().isdecimal() and _is_blank_separated("\n".join(lines[1:]) + "\n"):
        return 1
    bare = [re.sub(r'"[^"]*"', "", line) for line in lines]
    there = [number for number, line in enumerate(lines) if line.strip()]
    found = []
    for mark in (default, *_DELIMITERS):
        counts = {number: bare[number].count(mark) for number in there}
        num = counts[there[-1]] if there else 0
        titles = list(there)
        while titles and counts[titles[-1]] == num:
            titles.pop()
        first = next((number for number in there if number not in titles), 0)
        enough = num > 0 and len(there) - len(titles) >= _MIN_BODY
        if not enough or any(counts[number] == num for number in titles):
            continue
        if not titles:
            return 0
        if counts[titles[-1]] > 0 and abs(counts[titles[-1]] - num) == 1:
            first = titles.pop()
        if not titles or any('"' in bare[number] for number in titles):
            return 0
        for width, block in itertools.groupby(titles, counts.__getitem__):
            above = "".join(f"{lines[number]}\n" for number in block)
            if width and _is_table(_sniffed_rows(above, Form(delimiter=mark)), mark):
                return 0
        rows = _sniffed_rows("\n".join(lines[first:]) + "\n", Form(delimiter=mark))
        found += [first] if _is_table(rows, mark) else []
    return min(found, default=0)


def _first_lines(text: str) -> list[str]:
    """The first lines that are complete and not blank, at least one."""
    lines = _LINE_END.split(text[:_HEADER_WINDOW_BYTES])
    lines = [line for line in lines[:_MAX_FIRST_ROWS] if line.strip()]
    return lines[:-1] if len(lines) > 2 else lines or [""]


def _sniffed_rows(text: str, form: Form) -> list[list[str]]:
    """The cells of the first rows; not of the last one, which may be incomplete."""
    data = text[:_HEADER_WINDOW_BYTES].encode(errors="replace")
    held = held_text(data)
    rows: list[list[str]] = []
    for window in find_rows(held, 0, held.stop, form):
        for row in range(min(len(window), _MAX_FIRST_ROWS + 1 - len(rows))):
            with contextlib.suppress(csv.Error):
                line = window.text(row).decode(errors="replace")
                rows.append(split_row(line, form))
    ended = len(text) <= _HEADER_WINDOW_BYTES and text.endswith(("\n", "\r"))
    return rows if ended or len(rows) < 3 else rows[:-1]


def _has_plain_quotes(text: str, delimiter: str) -> bool:
    """Whether quotes are text: taken as such, all lines have as many cells, and otherwise not.

    In no column do most cells begin with a quote.
    """
    if '"' not in text:
        return False
    lines = [line for line in _LINE_END.split(text) if line.strip()]
    form = Form(delimiter=delimiter, quoted=False)
    rows = [split_row(line, form) for line in lines[: max(len(lines) - 1, 1)]]
    if {*map(len, rows)} != {len(rows[0])} or len(rows[0]) < 2:
        return False
    begin = (sum(cell.startswith('"') for cell in column) for column in zip(*rows, strict=True))
    if any(2 * num > len(rows) for num in begin):
        return False
    held = held_text(text.encode(errors="replace"))
    names = tuple(map(str, range(len(rows[0]))))
    table = Table(path="", header=names, delimiter=delimiter, null_values=())
    return any(map(table.misquoted, find_rows(held, 0, held.stop, table)))


def _is_blank_separated(text: str, *, quotes_show: bool = True) -> bool:
    """Whether blanks separate as many cells in each row, and numbers fill most columns.

    Of R's row names the header has none. If quotes show it, too, or all other columns are of
    categories, one column of numbers is enough.
    """
    first, *others = _sniffed_rows(text, Form(delimiter=WHITESPACE)) or [[]]
    rows = others or [first]
    width = len(rows[0])
    is_short = width == len(first) + 1 and not any(map(_NUMBER.fullmatch, first))
    if len(first) < 2 or {*map(len, rows)} != {width} or not (is_short or width == len(first)):
        return False
    texts = [column for column in zip(*rows, strict=True) if not _is_numeric(column)]
    if len(texts) == width:
        return False
    if 2 * len(texts) < width or (quotes_show and '"' in text):
        return True
    return width > 2 and len(rows) >= _MANY_ROWS and _are_categories(texts)


def _are_values(cells: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Whether cells are like all that are below them, and not names.

    One is equal up to its digits, or ends in the suffix of a file; or two end as sentences do. None
    is empty where all below are not, as in tables with names of rows.

    >>> _are_values(["a1.jpg", "x"], [["a2.jpg", "b3.jpg", "c.jpg"], ["y", "z", "v"]])
    True
    """
    pairs = [(c, below) for c, below in zip(cells, columns, strict=True) if len(below) >= _MIN_LIKE]
    if any(not cell and all(below) for cell, below in pairs):
        return False
    for cell, below in pairs:
        form = _DIGITS.sub("0", cell)
        if form != cell and all(_DIGITS.sub("0", other) == form for other in below):
            return True
        suffix = _FILE_SUFFIX.search(cell)
        if suffix and all(other.endswith(suffix[0]) for other in below):
            return True
    ended = sum(all(map(_SENTENCE.search, (cell, *below))) for cell, below in pairs)
    return ended > 1


def _is_numeric(cells: Sequence[str]) -> bool:
    there = [cell for cell in cells if cell.strip() not in NULL_VALUES]
    return bool(there) and all(map(_NUMBER.fullmatch, there))


def _is_only_quoted(text: str) -> bool:
    """Whether the first line has quotes around all of its cells, and the second has numbers."""
    first, second, *_ = [
        re.sub(r'"[^"]*"', '""', line) for line in [*_LINE_END.split(text, maxsplit=2)[:2], "", ""]
    ]
    return '"' in first and not re.search(r"\w", first) and bool(re.search(r"\d", second))


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names columns.

    It does if it has texts where all other rows have numbers, and does not if it has the values of
    other rows. By itself it does if it has no numbers, or only years or positions.
    """
    first, *others = rows
    alike = [row for row in others if len(row) == len(first)]
    columns = list(zip(*alike, strict=True)) if alike else [()] * len(first)
    numbers = [cell.strip() for cell in first if _NUMBER.fullmatch(cell)]
    told = [cell for cell, below in zip(first, columns, strict=True) if _is_numeric(below)]
    texts = [cell for cell in told if not _NUMBER.fullmatch(cell) and re.search(r"[^\W\d]", cell)]
    texts = [cell for cell in texts if cell.strip() not in NULL_VALUES]
    if texts and all(map(str.isdecimal, numbers)) and len(texts) > len(numbers):
        return True
    if any(
        _DATE.match(cell) and all(map(_DATE.match, below))
        for cell, below in zip(first, columns, strict=True)
        if below
    ):
        return False
    if not numbers:
        different = [row for row in alike if row != first]
        again = (
            cell and cell == other
            for row in different
            for cell, other in zip(first, row, strict=True)
        )
        return bool(texts) or not (any(again) or _are_values(first, columns))
    if not all(cell.isdecimal() for cell in numbers):
        return False
    values = [int(cell) for cell in numbers]
    consecutive = values == list(range(values[0], values[0] + len(values)))
    labels = consecutive and (len(values) > 1 or len(first) == 1 or values[0] in _YEARS)
    return labels or (len(set(values)) == len(values) and all(year in _YEARS for year in values))
