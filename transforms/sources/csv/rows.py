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

import contextlib
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
DANGLING = "nothing after the escape"
TOO_LONG = "row too long"
AFTER_QUOTE = "text after a closing quote"
OVER_LINES = "quoted cell over complete lines"

_QUOTE, _LF, _CR, _ZERO = b'"\n\r0'

_LINE_END = re.compile(rb"\r\n?|\n")

TRUE_VALUES = ("true", "True", "TRUE")
FALSE_VALUES = ("false", "False", "FALSE")


def _in_cases(*words: str) -> tuple[str, ...]:
    return tuple(form for word in words for form in (word, word.title(), word.upper()))


TRUE_TEXTS = ("1", *TRUE_VALUES, *_in_cases("yes", "y", "t", "on"))
FALSE_TEXTS = ("0", *FALSE_VALUES, *_in_cases("no", "n", "f", "off"))
"""What a column that is declared as bool may hold; of these, only words of truth are inferred."""

_NULL, _CELL_END = b"\x01", "\x02"
"""In texts of numbers that are parsed again: a missing one, and what separates no cells."""
_NO_NUMBER = r"[^\t\x20-\x7e]"
_ASCII = bytes(range(128)) + b"x" * 128
_INTEGER = r"^[ \t]*[-+]?[0-9]+[ \t]*$"
_QUOTED = re.compile(rb'((?<![^ \t\r\n])"[^"]*(?:""[^"]*)*")')
_PLAIN_NUMBER = re.compile(rb"[ \t]*[-+]?[0-9][0-9.]*([eE][-+]?[0-9]+)?[ \t]*")
_BLANKS = re.compile(rb"[ \t]+")
_ZERO_LED = r"^[ \t]*[-+]?0[0-9xX]"
_MAX_DIGITS = 400
"""More digits than any float has. Python itself reads at most 4,300."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """What separates the rows and cells of a file; see ``Csv``."""

    delimiter: str
    quoted: bool = True
    """Whether cells may be in quotes."""
    strip: bool = False
    """Whether blanks around cells, outside quotes, are left out."""
    escape: str | None = None
    """The character after which the next one means itself."""

    @property
    def blanks(self) -> bytes:
        """The bytes that mean nothing around cells."""
        if self.delimiter == WHITESPACE:
            return b" \t"
        return b"" if not self.strip else b" " if self.delimiter == "\t" else b" \t"

    def masked(self, data: bytes) -> bytes:
        r"""Rows with ``xx`` for each escape and the byte after it: what is left has its meaning.

        >>> Form(delimiter=",", escape="!").masked(b'a!,b,!"')
        b'axxb,xx'
        """
        if self.escape is None or self.escape.encode() not in data:
            return data
        return re.sub(re.escape(self.escape.encode()) + rb"[\s\S]", b"xx", data)

    def normal(self, data: bytes) -> bytes:
        r"""Rows without blanks that mean nothing.

        >>> Form(delimiter=",", strip=True).normal(b'a b , " c"\n 1,2 \n')
        b'a b," c"\n1,2\n'
        """
        if self.delimiter == WHITESPACE:
            return with_single_blanks(data, quoted=self.quoted)
        if not self.strip:
            return data
        plain = self.masked(data)
        codes = np.frombuffer(plain, np.uint8)
        blank = np.isin(codes, [*self.blanks])
        for cell in self.quoted_cell.finditer(plain) if self.quoted and b'"' in plain else ():
            blank[cell.start("quoted") : cell.end("quoted")] = False
        places = np.arange(len(codes), dtype=np.int32)
        before = np.maximum.accumulate(np.where(blank, -1, places))
        after = np.minimum.accumulate(np.where(blank, len(codes), places)[::-1])[::-1]
        # The last entry is the end, and, as that of -1, the beginning.
        ends = np.append(np.isin(codes, [*marks(self.delimiter), _LF, _CR]), True)
        kept = ~(blank & (ends[before] | ends[after]))
        return bytes(np.frombuffer(data, np.uint8)[kept])

    @functools.cached_property
    def quoted_cell(self) -> re.Pattern[bytes]:
        """A cell that begins with a quote, up to the quote that closes it, or the end."""
        blanks = b"[" + self.blanks + b"]*" if self.strip else b""
        start = re.escape(marks(self.delimiter)) + rb"\r\n"
        cell = rb'"[^"]*(?:""[^"]*)*(?:"|\Z)'
        return re.compile(rb"(?<![^" + start + rb"])" + blanks + rb"(?P<quoted>" + cell + rb")")


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
    form: Form,
    *,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Rows]:
    """Finds the rows of bytes [start, stop) of a text, in windows of bounded size.

    If cells are not quoted, quotes mean nothing, and each line is a row.

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
            plain = form.masked(view)
            split = _find_ends(plain, form, final=final and not too_much)
            if len(split.ends):
                end = int(split.ends[-1])
                yield _whole_rows(held[:end], plain[:end], position - len(held), split, form.blanks)
                held = held[end:]
            elif final or too_much:
                bad, held, position = _bad_row(
                    text, held, position, stop, open_quote=split.open_quote, max_bytes=max_bytes
                )
                if final and not too_much and split.open_quote is None:
                    bad = dataclasses.replace(bad, problem=DANGLING)
                yield bad
            else:
                break
        if final:
            return


def cut_offsets(text: Text, start: int, form: Form, *, every: int) -> list[int]:
    """Offsets of rows at which a file may be cut, about ``every`` bytes.

    Reads the entire file once, in bounded memory, and finds the same rows as :func:`find_rows`.
    """
    cuts: list[int] = []
    wanted = start + every
    for rows in find_rows(text, start, text.stop, form):
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


def _whole_rows(data: bytes, plain: bytes, offset: int, found: _Found, blank: bytes) -> Rows:
    starts = np.concatenate(([0], found.ends[:-1]))
    codes = np.frombuffer(plain, np.uint8)
    last = codes[found.ends - 1]
    stops = found.ends - ((last == _LF) | (last == _CR))
    if b"\r" in plain:
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


def _find_ends(data: bytes, form: Form, *, final: bool) -> _Found:
    codes = np.frombuffer(data, np.uint8)
    breaks = _line_breaks(data, codes, final=final)
    escape = form.escape.encode() if form.escape else b""
    # An escaped line break may be masked.
    open_quote, in_cells = None, bool(escape)
    if form.quoted and b'"' in data:
        quotes = np.flatnonzero(codes == _QUOTE)
        if _regular(codes, quotes, form):
            inside = (np.searchsorted(quotes, breaks) & 1).astype(bool)
            in_cells |= bool(inside.any())
            breaks = breaks[~inside]
            open_quote = _last_opened(quotes) if len(quotes) % 2 else None
        else:
            breaks, open_quote = _scan(data, form, final=final)
            in_cells = True
    ends = breaks + 1
    dangling = escape and data.endswith(escape)
    if final and open_quote is None and not dangling and (not len(ends) or ends[-1] < len(data)):
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


def _regular(codes: npt.NDArray[np.uint8], quotes: Offsets, form: Form) -> bool:
    """Whether every other quote opens a cell, or is the second of a doubled one.

    If so, a byte is in a quoted cell if an odd number of quotes precedes it.
    """
    opening = quotes[::2]
    places = opening - 1
    if form.strip:
        inked = ~np.isin(codes, [*form.blanks])
        places = np.maximum.accumulate(np.where(inked, np.arange(len(codes)), -1))[places]
        places[0] *= opening[0] > 0
    before = codes[np.maximum(places, 0)]
    doubled = np.zeros(len(opening), bool)
    doubled[1:] = quotes[1::2][: len(opening) - 1] == opening[1:] - 1
    at_start = np.isin(before, [*marks(form.delimiter), _LF, _CR]) | (places < 0)
    at_start[0] |= opening[0] == 0
    return bool((at_start | doubled).all())


def _last_opened(quotes: Offsets) -> int:
    """The quote that opened the cell still open after an odd number of regular quotes."""
    index = len(quotes) - 1
    while index > 0 and quotes[index - 1] == quotes[index] - 1:
        index -= 2
    return int(quotes[index])


def _scan(data: bytes, form: Form, *, final: bool) -> tuple[Offsets, int | None]:
    """Row ends, and any unclosed quote, where unquoted cells also contain quotes.

    About ten times slower, and correct for any bytes.
    """
    token = re.compile(form.quoted_cell.pattern + rb"|\r\n?|\n")
    breaks, open_quote = [], None
    for match in token.finditer(data):
        begin, end = match.start("quoted"), match.end()
        if begin < 0:
            if final or end < len(data) or data[end - 1] == _LF:
                breaks.append(end - 1)
        elif end == len(data) and data.count(b'"', begin) % 2:
            open_quote = begin
    return np.array(breaks, np.int64), open_quote


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table(Form):
    """How to parse the rows of one file."""

    path: str
    """The file, relative to the source's root."""
    header: tuple[str, ...]
    null_values: tuple[str, ...]
    encoding: str = "utf-8"
    plain: bool = True
    """Whether offsets count the file's own bytes, not those of its decoded text."""
    comment: str | None = None
    """The first character of lines that are not rows."""
    decimal: str = "."
    """The mark before the fraction of a number."""
    thousands: str | None = None
    """The mark between groups of three digits."""

    @property
    def unit(self) -> str:
        """The unit of positions, for messages."""
        return "byte" if self.plain else "decoded byte"

    def parse(
        self,
        rows: Rows,
        *,
        types: Mapping[int, pa.DataType] | None = None,
        columns: Sequence[int] | None = None,
        declared: bool = True,
        on_ragged: Callable[[Any], str] | None = None,
    ) -> pa.Table:
        """Parses rows with pyarrow. Columns are named by position: ``"0"``, ``"1"`` ….

        Args:
            rows: At least one row.
            types: Position -> type. Types of other columns are inferred.
            columns: Positions of the columns to read; all by default. Those beyond the last column
                are null.
            declared: Whether bools are declared, and may be ``1`` and ``0`` or ``yes`` and ``no``.
            on_ragged: Decides what to do with a row that has too few or too many cells.

        Raises:
            pa.ArrowInvalid: if a cell does not fit its column's type, or a row is ragged.
        """
        wanted = dict(types or {})
        numbers = {i: kind for i, kind in wanted.items() if self.thousands and is_number(kind)}
        parsed = self._parse(
            rows,
            types=wanted | dict.fromkeys(numbers, pa.large_binary()),
            columns=columns,
            declared=declared,
            on_ragged=on_ragged,
        )
        for place, name in enumerate(parsed.column_names if self.thousands else ()):
            texts = parsed.column(name).combine_chunks()
            if int(name) in numbers:
                values = _parse_numbers(self.plain_numbers(texts), numbers[int(name)])
                parsed = parsed.set_column(place, name, values)
            elif int(name) not in wanted and self._has_thousands(texts):
                with contextlib.suppress(pa.ArrowInvalid):
                    values = _parse_numbers(self.plain_numbers(texts.cast(pa.large_binary())), None)
                    if is_number(values.type):
                        parsed = parsed.set_column(place, name, values)
        return parsed

    def _parse(
        self,
        rows: Rows,
        *,
        types: Mapping[int, pa.DataType],
        columns: Sequence[int] | None,
        declared: bool,
        on_ragged: Callable[[Any], str] | None,
    ) -> pa.Table:
        data = self.normal(rows.data)
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
                delimiter=" " if self.delimiter == WHITESPACE else self.delimiter,
                quote_char='"' if self.quoted else False,
                escape_char=self.escape or False,
                newlines_in_values=rows.breaks_in_cells,
                invalid_row_handler=on_ragged,
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types={str(i): kind for i, kind in types.items()},
                include_columns=None if columns is None else [str(i) for i in columns],
                include_missing_columns=True,
                null_values=list(self.null_values),
                strings_can_be_null=True,
                true_values=list(TRUE_TEXTS if declared else TRUE_VALUES),
                decimal_point=self.decimal,
                false_values=list(FALSE_TEXTS if declared else FALSE_VALUES),
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
        rows = dataclasses.replace(rows, data=self.masked(rows.data))
        if not self.quoted or b'"' not in rows.data:
            return {}
        found = dict.fromkeys(_rows_after_quotes(rows, self), AFTER_QUOTE)
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

    def plain_numbers(self, texts: pa.Array) -> pa.Array:
        """Cells, large_binary[n], as Python writes numbers; a text that is no number stays none.

        Marks between thousands are left out, and a point and the decimal mark change places.
        """
        if self.thousands:
            bare = pc.replace_substring(texts, self.thousands, "")
            texts = pc.if_else(self._are_thousands(texts), bare, texts)
        if self.decimal == ".":
            return texts
        swap = bytes.maketrans(f"{self.decimal}.".encode(), f".{self.decimal}".encode())
        cells = [None if text is None else text.translate(swap) for text in texts.to_pylist()]
        return pa.array(cells, texts.type)

    def _has_thousands(self, texts: pa.Array) -> bool:
        """Whether one of the cells, of any type, is a number with marks between thousands."""
        is_text = pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)
        return is_text and bool(pc.any(self._are_thousands(texts)).as_py())

    def _are_thousands(self, texts: pa.Array) -> pa.Array:
        pattern = thousands_form(self.thousands or "", self.decimal)
        return pc.match_substring_regex(texts, f"^{pattern}$")

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
        texts = self.plain_numbers(self.texts(rows.take(kept[large]), column))
        written = pc.match_substring_regex(texts, _INTEGER).fill_null(False)
        integers = [_integer(text) for text in texts.filter(written).to_pylist()]
        return large[written.to_numpy(zero_copy_only=False)], np.array(integers, object)

    def zero_led(self, rows: Rows, columns: Sequence[int]) -> set[int]:
        """Which of these columns have a number with leading zeros or hexadecimal digits.

        No row may be ragged.
        """
        before = marks(self.delimiter) + (self.escape or "").encode()
        rows = rows.take(_rows_with_zeros(rows, before))
        if not len(rows) or not columns:
            return set()
        table = self.parse(rows, types=dict.fromkeys(columns, pa.large_binary()), columns=columns)
        return {
            column
            for column in columns
            if pc.any(pc.match_substring_regex(table.column(str(column)), _ZERO_LED)).as_py()
        }


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """All rows of a table, for thousands of columns in one call."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def large_numbers(
    batch: pa.RecordBatch, columns: Sequence[int], smallest: Sequence[int]
) -> list[int]:
    """Which columns of floats have a number of at least some absolute value; NaN is none.

    Args:
        batch: The columns, and others.
        columns: Positions of the columns of floats.
        smallest: The smallest absolute value to find in each.
    """
    found: list[int] = []
    limits = dict(zip(columns, smallest, strict=True))
    types = batch.schema.types
    for kind in dict.fromkeys(types[place] for place in columns):
        alike = [place for place in columns if types[place] == kind]
        values = pa.concat_arrays([batch.column(place) for place in alike])
        sizes = np.abs(values.to_numpy(zero_copy_only=False)).reshape(len(alike), -1)
        large = sizes >= np.array([[limits[place]] for place in alike], sizes.dtype)
        found += [alike[index] for index in np.flatnonzero(large.any(axis=1)).tolist()]
    return sorted(found)


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is one of integers or floats."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def thousands_form(mark: str, decimal: str) -> str:
    """A pattern of numbers with marks between groups of three digits, blanks around included.

    >>> form = thousands_form(",", ".")
    >>> [bool(re.fullmatch(form, text)) for text in ("1,234.5", "12,345,678", "1,23", "0,123")]
    [True, True, False, False]
    """
    groups = rf"[1-9][0-9]{{0,2}}(?:{re.escape(mark)}[0-9]{{3}})+"
    return rf"[ \t]*[-+]?{groups}(?:{re.escape(decimal)}[0-9]*)?(?:[eE][-+]?[0-9]+)?[ \t]*"


def thousands_setting(cell: str) -> str:
    """The settings with which a cell is a number with marks between thousands; empty if none.

    >>> thousands_setting("1,234"), thousands_setting("1.234,5"), thousands_setting("1,5")
    ("thousands=','", "thousands='.', decimal=','", '')
    """
    for mark, decimal in ((",", "."), (".", ","), ("'", "."), (" ", ".")):
        if re.fullmatch(thousands_form(mark, decimal), cell):
            return f"thousands={mark!r}" + (", decimal=','" if decimal == "," else "")
    return ""


def _parse_numbers(texts: pa.Array, kind: pa.DataType | None) -> pa.Array:
    """Cells, large_binary[n], as pyarrow parses them in a file; of any type it infers if None.

    Raises:
        pa.ArrowInvalid: if one is not of the type.
    """
    if pc.any(pc.match_substring_regex(texts, _NO_NUMBER)).as_py():
        raise pa.ArrowInvalid("a character that no number has")
    data = b"\n".join(texts.fill_null(_NULL).to_pylist()) + b"\n"
    parsed = pa.csv.read_csv(
        pa.py_buffer(data),
        read_options=pa.csv.ReadOptions(
            column_names=["0"], block_size=len(data) + 1, use_threads=False
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter=_CELL_END, quote_char=False, ignore_empty_lines=False
        ),
        convert_options=pa.csv.ConvertOptions(
            column_types={} if kind is None else {"0": kind}, null_values=[_NULL.decode()]
        ),
    )
    return parsed.column(0).combine_chunks()


def _rows_after_quotes(rows: Rows, form: Form) -> list[int]:
    """Rows that have text between a closing quote and the end of its cell."""
    codes = np.frombuffer(rows.data, np.uint8)
    quotes = np.flatnonzero(codes == _QUOTE)
    if _regular(codes, quotes, form):
        # The second of a doubled quote opens the cell again.
        following = np.append(codes, np.uint8(_LF))[quotes[1::2] + 1]
        ends = np.isin(following, [*marks(form.delimiter), _LF, _CR, _QUOTE])
        quotes = quotes[1::2][~ends]
    doubtful = np.unique(np.searchsorted(rows.starts, quotes, side="right") - 1)
    whole = _row_form(form.delimiter)
    return [row for row in doubtful.tolist() if not whole.fullmatch(form.normal(rows.text(row)))]


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
    """The rows in which a cell may begin with 0 and a digit or x, or a sign before them."""
    codes = np.frombuffer(rows.data, np.uint8)
    zeros = np.flatnonzero(codes[:-1] == _ZERO)
    after = codes[zeros + 1]
    zeros = zeros[(after - _ZERO < 10) | (after == ord("x")) | (after == ord("X"))]
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
