"""Rows of CSV text: where they begin and end, and how pyarrow parses a window of them.

Rows are found by the quoting rules of RFC 4180, with exact byte offsets, in constant memory. A line
break inside a quoted cell does not end a row. A quote opens a quoted cell only at the cell's start,
and ``""`` inside one is a quote. pyarrow's parser follows the same rules, so it parses exactly the
rows found here. Lines end with LF, CRLF or CR.

A quoted cell that is not closed within :data:`MAX_ROW_BYTES` would swallow the rest of the file. In
that case the quote is the error: the row up to the end of its line is bad, and the next row begins
on the next line.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ..text_stream import Offsets, Rows, Text, join_rows

WINDOW_BYTES = 4 << 20
"""Approximate number of bytes held, split into rows and parsed at a time."""
MAX_ROW_BYTES = 16 << 20
"""Maximum length of a row."""

WHITESPACE = "whitespace"
"""The delimiter of cells that runs of blanks and tabs separate; those around a row are none."""

UNCLOSED = "quote not closed"
TOO_LONG = "row too long"
AFTER_QUOTE = "text after a closing quote"
OVER_LINES = "quoted cell over complete lines"

_QUOTE, _LF, _CR, _ZERO = b'"\n\r0'

_LINE_END = re.compile(rb"\r\n?|\n")

TRUE_VALUES = ("true", "True", "TRUE")
FALSE_VALUES = ("false", "False", "FALSE")

_ASCII = bytes(range(128)) + b"x" * 128
_INTEGER = r"^[ \t]*[-+]?[0-9]+[ \t]*$"
_QUOTED = re.compile(rb'((?<![^ \t\r\n])"[^"]*(?:""[^"]*)*")')
_PLAIN_NUMBER = re.compile(rb"[ \t]*[-+]?[0-9][0-9.]*([eE][-+]?[0-9]+)?[ \t]*")
_BLANKS = re.compile(rb"[ \t]+")
_ZERO_LED = r"^[ \t]*[-+]?0[0-9]"
_MAX_DIGITS = 400
"""More digits than any float has. Python itself reads at most 4,300."""


@dataclasses.dataclass(frozen=True)
class _Found:
    """The row ends in a stretch of bytes that begins with a row."""

    ends: Offsets
    """Where the rows end, each after its line break."""
    open_quote: int | None
    """Where a quoted cell begins that is still open at the end."""
    breaks_in_cells: bool


def find_rows(
    text: Text,
    start: int,
    stop: int,
    *,
    delimiter: str,
    quoted: bool = True,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Rows]:
    """Finds the rows of bytes [start, stop) of a text, in windows of bounded size.

    Without ``quoted``, quotes mean nothing, and each line is a row.

    ``start`` must be the start of a row, ``stop`` the end of a row or of the text. Each bad row is
    yielded separately. No row is longer than the text's maximum, or :data:`MAX_ROW_BYTES`.

    Raises:
        DamagedError: if the rest of a compressed file cannot be decompressed.
    """
    max_bytes = MAX_ROW_BYTES if text.max_row_bytes is None else text.max_row_bytes
    held, position = b"", start
    while True:
        chunk = text.read(position, min(position + window_bytes, stop))
        position += len(chunk)
        held += chunk
        final = position >= stop or not chunk
        while held:
            # Row boundaries must not depend on how far the file has been read, so no row is
            # searched for beyond the maximum length.
            too_much = len(held) > max_bytes
            view = held[:max_bytes] if too_much else held
            split = _find_ends(view, delimiter, quoted=quoted, final=final and not too_much)
            if len(split.ends):
                end = int(split.ends[-1])
                blank = b" \t" if delimiter == WHITESPACE else b""
                yield _whole_rows(held[:end], position - len(held), split, blank)
                held = held[end:]
            elif final or too_much:
                bad, held, position = _bad_row(
                    text, held, position, stop, open_quote=split.open_quote, max_bytes=max_bytes
                )
                yield bad
            else:
                break
        if final:
            return


def cut_offsets(
    text: Text, start: int, *, delimiter: str, every: int, quoted: bool = True
) -> list[int]:
    """Offsets of rows at which a file may be cut, about ``every`` bytes.

    Reads the entire file once, in bounded memory, and finds the same rows as :func:`find_rows`.
    """
    cuts: list[int] = []
    wanted = start + every
    for rows in find_rows(text, start, text.stop, delimiter=delimiter, quoted=quoted):
        while len(rows) and rows.offset + int(rows.starts[-1]) >= wanted:
            row = int(np.searchsorted(rows.starts, wanted - rows.offset))
            cuts.append(rows.offset + int(rows.starts[row]))
            wanted = cuts[-1] + every
    return cuts


def without_comments(rows: Rows, comment: str | None) -> Rows:
    """Rows without those that begin with a character; line breaks stand for them in ``data``."""
    codes = np.frombuffer(rows.data, np.uint8)
    if comment is None or not len(rows) or not (said := codes[rows.starts] == ord(comment)).any():
        return rows
    data = bytearray(rows.data)
    for start, stop in zip(rows.starts[said].tolist(), rows.stops[said].tolist(), strict=True):
        data[start:stop] = b"\n" * (stop - start)
    return dataclasses.replace(
        rows, data=bytes(data), starts=rows.starts[~said], stops=rows.stops[~said], problem=""
    )


def _bad_row(
    text: Text, held: bytes, position: int, stop: int, *, open_quote: int | None, max_bytes: int
) -> tuple[Rows, bytes, int]:
    """Ends an endless row at the next line break, reading ahead to find one.

    Returns the bad row, the bytes held after it, and how far the file has been read.
    """
    offset = position - len(held)
    kept = held
    match = _LINE_END.search(held, open_quote or 0)
    # A CR at the end of the bytes may be the first half of a CRLF.
    while (match is None or match.end() == len(held)) and position < stop:
        tail = held[-1:] if match is not None else b""
        held = tail + text.read(position, min(position + WINDOW_BYTES, stop))
        if len(held) == len(tail):
            break
        position += len(held) - len(tail)
        match = _LINE_END.search(held)
    end = match.end() if match is not None else len(held)
    length = position - (len(held) - end) - offset
    data = kept[: min(length, max_bytes)]
    bad = Rows(
        data=data,
        offset=offset,
        starts=np.zeros(1, np.int64),
        stops=np.array([len(data.rstrip(b"\r\n"))], np.int64),
        problem=TOO_LONG if open_quote is None else UNCLOSED,
        max_row_bytes=max_bytes,
    )
    return bad, held[end:], position


def marks(delimiter: str) -> bytes:
    """The bytes that separate cells."""
    return b" \t" if delimiter == WHITESPACE else delimiter.encode()


def with_single_blanks(data: bytes, *, quoted: bool = True) -> bytes:
    r"""Rows of blank-separated cells with one blank between cells, and none around rows.

    >>> with_single_blanks(b'  1   "a  b"\t2 \n3 4 5\n')
    b'1 "a  b" 2\n3 4 5\n'
    """
    parts = _QUOTED.split(data) if quoted and b'"' in data else [data]
    for index in range(0, len(parts), 2):
        part = _BLANKS.sub(b" ", parts[index])
        for end in (b"\n", b"\r"):
            part = part.replace(end + b" ", end).replace(b" " + end, end)
        parts[index] = part
    parts[0] = parts[0].removeprefix(b" ")
    parts[-1] = parts[-1].removesuffix(b" ")
    return b"".join(parts)


def _whole_rows(data: bytes, offset: int, found: _Found, blank: bytes) -> Rows:
    starts = np.concatenate(([0], found.ends[:-1]))
    codes = np.frombuffer(data, np.uint8)
    last = codes[found.ends - 1]
    stops = found.ends - ((last == _LF) | (last == _CR))
    if b"\r" in data:
        before = codes[np.maximum(found.ends - 2, 0)]
        stops -= (last == _LF) & (before == _CR) & (stops > starts)
    full = stops > starts
    if blank:
        inked = np.concatenate(([0], np.cumsum(~np.isin(codes, list(blank)))))
        full = inked[stops] > inked[starts]
    if not full.all():
        starts, stops = starts[full], stops[full]
    return Rows(
        data=data,
        offset=offset,
        starts=starts,
        stops=stops,
        breaks_in_cells=found.breaks_in_cells,
    )


def _find_ends(data: bytes, delimiter: str, *, quoted: bool, final: bool) -> _Found:
    codes = np.frombuffer(data, np.uint8)
    breaks = _line_breaks(data, codes, final=final)
    open_quote, in_cells = None, False
    if quoted and b'"' in data:
        quotes = np.flatnonzero(codes == _QUOTE)
        if _regular(codes, quotes, delimiter):
            inside = (np.searchsorted(quotes, breaks) & 1).astype(bool)
            in_cells = bool(inside.any())
            breaks = breaks[~inside]
            open_quote = _last_opened(quotes) if len(quotes) % 2 else None
        else:
            breaks, open_quote = _scan(data, delimiter, final=final)
            in_cells = True
    ends = breaks + 1
    if final and open_quote is None and (not len(ends) or ends[-1] < len(data)):
        ends = np.append(ends, len(data))
    return _Found(ends, open_quote, in_cells)


def _line_breaks(data: bytes, codes: npt.NDArray[np.uint8], *, final: bool) -> Offsets:
    """The position of the last byte of each line break."""
    breaks = np.flatnonzero(codes == _LF)
    if b"\r" not in data:
        return breaks
    returns = np.flatnonzero(codes == _CR)
    # What follows a CR at the very end is unknown until the end of the file.
    following = np.append(codes[1:], np.uint8(0 if final else _LF))
    alone = returns[following[returns] != _LF]
    return np.sort(np.concatenate((breaks, alone)))


def _regular(codes: npt.NDArray[np.uint8], quotes: Offsets, delimiter: str) -> bool:
    """Whether every other quote opens a cell, or is the second of a doubled one.

    If so, a byte is in a quoted cell if an odd number of quotes precedes it.
    """
    opening = quotes[::2]
    before = codes[np.maximum(opening - 1, 0)]
    doubled = np.zeros(len(opening), bool)
    doubled[1:] = quotes[1::2][: len(opening) - 1] == opening[1:] - 1
    at_start = np.isin(before, [*marks(delimiter), _LF, _CR])
    at_start[0] |= opening[0] == 0
    return bool((at_start | doubled).all())


def _last_opened(quotes: Offsets) -> int:
    """The quote that opened the cell still open after an odd number of regular quotes."""
    index = len(quotes) - 1
    while index > 0 and quotes[index - 1] == quotes[index] - 1:
        index -= 2
    return int(quotes[index])


def _scan(data: bytes, delimiter: str, *, final: bool) -> tuple[Offsets, int | None]:
    """Row ends, and any unclosed quote, where unquoted cells also contain quotes.

    About ten times slower, and correct for any bytes.
    """
    start_of_cell = re.escape(marks(delimiter)) + rb"\r\n"
    token = re.compile(rb"(?<![^" + start_of_cell + rb'])"[^"]*(?:""[^"]*)*(?:"|\Z)|\r\n?|\n')
    breaks, open_quote = [], None
    for match in token.finditer(data):
        begin, end = match.span()
        if data[begin] != _QUOTE:
            if final or end < len(data) or data[end - 1] == _LF:
                breaks.append(end - 1)
        elif end == len(data) and data.count(b'"', begin) % 2:
            open_quote = begin
    return np.array(breaks, np.int64), open_quote


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """How to parse the rows of one file."""

    path: str
    """The file, relative to the source's root."""
    header: tuple[str, ...]
    delimiter: str
    null_values: tuple[str, ...]
    encoding: str = "utf-8"
    plain: bool = True
    """Whether offsets count the file's own bytes, not those of its decoded text."""
    quoted: bool = True
    """Whether cells may be in quotes."""
    comment: str | None = None
    """The first character of lines that are not rows."""
    decimal: str = "."
    """The mark before the fraction of a number."""

    def place(self, position: int) -> str:
        """A position in the file, for messages."""
        return f"{self.path} byte {position}" + ("" if self.plain else " of its text as UTF-8")

    def parse(
        self,
        rows: Rows,
        *,
        types: Mapping[int, pa.DataType] | None = None,
        columns: Sequence[int] | None = None,
        zero_one: bool = True,
        on_ragged: Callable[[Any], str] | None = None,
    ) -> pa.Table:
        """Parses rows with pyarrow. Columns are named by position: ``"0"``, ``"1"`` ….

        Args:
            rows: At least one row.
            types: Position -> type. Types of other columns are inferred.
            columns: Positions of the columns to read; all by default. Those beyond the last column
                are null.
            zero_one: Whether ``1`` and ``0`` are also bools.
            on_ragged: Decides what to do with a row that has too few or too many cells.

        Raises:
            pa.ArrowInvalid: if a cell does not fit its column's type, or a row is ragged.
        """
        is_blank = self.delimiter == WHITESPACE
        data = rows.data
        if is_blank:
            data = with_single_blanks(data, quoted=self.quoted)
        if data.startswith(b"\xef"):
            # At the very start pyarrow would drop this as a byte order mark.
            data = b"\n" + data
        return pa.csv.read_csv(
            pa.py_buffer(data),
            read_options=pa.csv.ReadOptions(
                column_names=[str(i) for i in range(len(self.header))],
                block_size=len(data) + 1,
                use_threads=False,
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter=" " if is_blank else self.delimiter,
                quote_char='"' if self.quoted else False,
                newlines_in_values=rows.breaks_in_cells,
                invalid_row_handler=on_ragged,
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types={str(i): kind for i, kind in (types or {}).items()},
                include_columns=None if columns is None else [str(i) for i in columns],
                include_missing_columns=True,
                null_values=list(self.null_values),
                strings_can_be_null=True,
                true_values=[*TRUE_VALUES, *(["1"] if zero_one else [])],
                decimal_point=self.decimal,
                false_values=[*FALSE_VALUES, *(["0"] if zero_one else [])],
            ),
        )

    def ragged(self, rows: Rows) -> list[int]:
        """Rows with too few or too many cells."""
        numbers: list[int] = []

        def skip(row: Any) -> str:
            numbers.append(row.number - 1)
            return "skip"

        # pyarrow cannot report a row that is not UTF-8. Replacing its bytes moves no cell.
        ascii_rows = dataclasses.replace(rows, data=rows.data.translate(_ASCII))
        self.parse(ascii_rows, types={0: pa.binary()}, columns=[0], on_ragged=skip)
        return numbers

    def misquoted(self, rows: Rows) -> dict[int, str]:
        """Rows whose quotes cannot be meant as they stand: their number -> what is wrong."""
        if not self.quoted or b'"' not in rows.data:
            return {}
        found = dict.fromkeys(_rows_after_quotes(rows, self.delimiter), AFTER_QUOTE)
        for row in _rows_over_lines(rows) if rows.breaks_in_cells and len(self.header) > 1 else ():
            if _are_complete(rows.text(row), self.delimiter, len(self.header)):
                found.setdefault(row, OVER_LINES)
        return found

    def well_quoted(self, rows: Rows) -> Rows:
        """The rows whose quotes can be meant as they stand."""
        wrong = self.misquoted(rows)
        return rows.take(np.delete(np.arange(len(rows)), sorted(wrong))) if wrong else rows

    def whole(self, rows: Rows) -> Rows:
        """The rows that have the right number of cells."""
        return rows.take(np.delete(np.arange(len(rows)), self.ragged(rows)))

    def texts(self, rows: Rows, column: int) -> pa.Array:
        """The raw cells of one column, large_binary[n]; null where missing.

        Raises:
            pa.ArrowInvalid: if a row is ragged.
        """
        table = self.parse(rows, types={column: pa.large_binary()}, columns=[column])
        return table.column(0).combine_chunks()

    def with_points(self, texts: pa.Array) -> pa.Array:
        """Cells, large_binary[n], with a point for the decimal mark, and the mark for a point."""
        if self.decimal == ".":
            return texts
        swap = bytes.maketrans(f"{self.decimal}.".encode(), f".{self.decimal}".encode())
        cells = [None if text is None else text.translate(swap) for text in texts.to_pylist()]
        return pa.array(cells, texts.type)

    def written_integers(
        self, rows: Rows, kept: Offsets, column: int, *, values: pa.Array, smallest: int
    ) -> tuple[Offsets, np.ndarray[Any, Any]]:
        """The cells of a column of floats that are written as large integers.

        Args:
            rows: The rows.
            kept: The indices of the parsed rows, int64[n].
            column: The column's position.
            values: The parsed floats of the column, [n].
            smallest: The smallest absolute value to find.

        Returns:
            Their indices in ``values``, int64[m], and the integers, as objects [m].
        """
        large = np.flatnonzero(np.abs(values.to_numpy(zero_copy_only=False)) >= smallest)
        if not len(large):
            return large, np.zeros(0, object)
        texts = self.texts(rows.take(kept[large]), column)
        written = pc.match_substring_regex(texts, _INTEGER).fill_null(False)
        integers = [_integer(text) for text in texts.filter(written).to_pylist()]
        return large[written.to_numpy(zero_copy_only=False)], np.array(integers, object)

    def zero_led(self, rows: Rows, columns: Sequence[int]) -> set[int]:
        """Which of these columns have a number written with leading zeros, such as ``007``.

        No row may be ragged.
        """
        rows = rows.take(_rows_with_zeros(rows, marks(self.delimiter)))
        if not len(rows) or not columns:
            return set()
        table = self.parse(rows, types=dict.fromkeys(columns, pa.large_binary()), columns=columns)
        return {
            column
            for column in columns
            if pc.any(pc.match_substring_regex(table.column(str(column)), _ZERO_LED)).as_py()
        }


def _rows_after_quotes(rows: Rows, delimiter: str) -> list[int]:
    """Rows that have text between a closing quote and the end of its cell."""
    codes = np.frombuffer(rows.data, np.uint8)
    quotes = np.flatnonzero(codes == _QUOTE)
    if _regular(codes, quotes, delimiter):
        # The second of a doubled quote opens the cell again.
        following = np.append(codes, np.uint8(_LF))[quotes[1::2] + 1]
        ends = np.isin(following, [*marks(delimiter), _LF, _CR, _QUOTE])
        quotes = quotes[1::2][~ends]
    doubtful = np.unique(np.searchsorted(rows.starts, quotes, side="right") - 1)
    form = _row_form(delimiter)
    blank = delimiter == WHITESPACE
    return [
        row
        for row in doubtful.tolist()
        if not form.fullmatch(with_single_blanks(rows.text(row)) if blank else rows.text(row))
    ]


@functools.lru_cache(maxsize=8)
def _row_form(delimiter: str) -> re.Pattern[bytes]:
    """A row whose quoted cells end with a quote. Blanks after it are let pass."""
    mark = re.escape(b" " if delimiter == WHITESPACE else delimiter.encode())
    blanks = {" ": rb"", "\t": rb" *", WHITESPACE: rb""}.get(delimiter, rb"[ \t]*")
    quoted = rb'"[^"]*(?:""[^"]*)*"' + blanks
    cell = rb"(?:" + quoted + rb'|[^"' + mark + rb"][^" + mark + rb"]*|)"
    return re.compile(cell + rb"(?:" + mark + cell + rb")*")


def _rows_over_lines(rows: Rows) -> list[int]:
    """Rows that contain a line break."""
    codes = np.frombuffer(rows.data, np.uint8)
    breaks = np.flatnonzero((codes == _LF) | (codes == _CR))
    row = np.searchsorted(rows.starts, breaks, side="right") - 1
    inside = (row >= 0) & (breaks < rows.stops[np.maximum(row, 0)])
    numbers: list[int] = np.unique(row[inside]).tolist()
    return numbers


def _are_complete(row: bytes, delimiter: str, width: int) -> bool:
    """Whether each line of a row looks like a row: quotes then stand in it for themselves.

    Between commas, which texts contain, there must be numbers in one column of all lines.
    """
    lines = [line for line in _LINE_END.split(row) if line.strip()]
    blank = delimiter == WHITESPACE
    cells = [
        with_single_blanks(line, quoted=False).split(b" ")
        if blank
        else line.split(delimiter.encode())
        for line in lines
    ]
    if len(lines) < 2 or {*map(len, cells)} != {width}:
        return False
    if delimiter not in (",", WHITESPACE):
        return True
    columns = zip(*cells, strict=True)
    return any(all(_PLAIN_NUMBER.fullmatch(cell) for cell in column) for column in columns)


def _rows_with_zeros(rows: Rows, delimiters: bytes) -> Offsets:
    """The rows in which a cell may begin with 0 and a digit, or a sign before them."""
    codes = np.frombuffer(rows.data, np.uint8)
    zeros = np.flatnonzero(codes[:-1] == _ZERO)
    zeros = zeros[codes[zeros + 1] - _ZERO < 10]
    before = codes[np.maximum(zeros - 1, 0)]
    signed = (before == ord("+")) | (before == ord("-"))
    starts = np.zeros(256, bool)
    starts[[*delimiters, *b'" \t\r\n']] = True
    at_start = starts[codes[np.maximum(zeros - 1 - signed, 0)]] | (zeros - signed <= 0)
    return np.unique(np.searchsorted(rows.starts, zeros[at_start], side="right") - 1)


class SmallTable(NamedTuple):
    """The rows of a small file, which are parsed together with those of others."""

    table: Table
    windows: Sequence[Rows]


def join_tables(files: Sequence[SmallTable]) -> Rows | None:
    """The rows of several files, whose ``offset`` is meaningless; None if their columns differ."""
    first = files[0].table
    if any(
        (table.header, table.delimiter) != (first.header, first.delimiter) for table, _ in files
    ):
        return None
    return join_rows([rows for file in files for rows in file.windows])


def _integer(text: bytes) -> int:
    digits = text.strip(b" \t")
    size = int(digits.lstrip(b"+-0")[:_MAX_DIGITS] or b"0")
    return -size if digits.startswith(b"-") else size
