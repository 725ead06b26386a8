"""Converts rows of CSV text to the wire columns of features, with a reject for each invalid row.

pyarrow parses rows directly into the features' types, a window at a time. Only if that fails, or a
number changes, is the bad cell searched for: with the same parser on fewer rows, never with a cast
from strings, which accepts different texts. What is parsed is converted as Arrow columns are.

A text in ``null_values`` is a missing value in every column, quoted or not. Blanks around numbers
and times are ignored. Other valid cells:

=========== =======================================================================================
feature     texts
=========== =======================================================================================
int8 … 64,  decimal digits with an optional ``-``, or ``0x`` and hexadecimal digits, within the
uint8 … 64  dtype's range; ``1.0``, ``+1`` and ``1e3`` are not integers. Undeclared, a column with
            hexadecimal digits is one of strings
floats      a decimal number, rounded to the nearest value of the dtype, but one written as an
            integer must be exact: ``16777217`` is not a float32, ``16777217.0`` is rounded to one;
            ``inf`` and ``nan`` in any case (but texts in ``null_values``, by default including
            ``NaN``, are missing). A number too large for the dtype is rejected, not turned into
            an infinity
bool        ``true``, ``yes``, ``y``, ``t``, ``on`` and ``1``; ``false``, ``no``, ``n``, ``f``,
            ``off`` and ``0``; also as ``True`` and ``TRUE``
string,     any text in the file's encoding, including blanks
Text
class       exactly one of the class's names
Timestamp   ISO 8601, as ``arrow.values`` accepts it. A fraction finer than the unit is rejected,
            not rounded
=========== =======================================================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....schemas.blocks import RawBatch
from ....schemas.errors import RECORD_ERROR, Reject
from ....schemas.features import ClassLabel, Features, Scalar, Text, Timestamp
from ...examples.dtypes import PRECISION, holds_exactly, is_exact
from ...prepare.engine.validate import is_utf8
from ...rejects import INEXACT, OUT_OF_RANGE, WRONG_TYPE, reject_at, with_bytes
from ..arrow.rows import RowReader
from ..arrow.types import Leaf
from ..arrow.values import culprits, expected
from ..text_stream import Offsets, Rows, shown_text
from .rows import (
    AFTER_QUOTE,
    DANGLING,
    FALSE_TEXTS,
    OVER_LINES,
    TOO_LONG,
    TRUE_TEXTS,
    SmallTable,
    Table,
    is_number,
    join_tables,
    large_numbers,
    one_batch,
    thousands_setting,
)

CellFeature = ClassLabel | Scalar | Text | Timestamp
Mask = npt.NDArray[np.bool_]

_BOOLS = tuple(text.encode() for text in (*TRUE_TEXTS, *FALSE_TEXTS))
_INTEGER = re.compile(rb"[ \t]*(-?[0-9]+|0[xX][0-9a-fA-F]+)[ \t]*")
_FLOAT = (
    r"^[ \t]*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*$"
    r"|^[ \t]*[-+]?((?i)inf|infinity|nan|nan\([a-z0-9_]*\))[ \t]*$"
)

MAX_BATCH_ROWS = 1 << 16
"""Maximum number of rows in a RawBatch."""

_SHOWN_CELL_CHARS = 60
_INFINITY = re.compile(r"\s*[-+]?inf(inity)?\s*", re.IGNORECASE)


def parse_type(feature: CellFeature) -> pa.DataType:
    """The type that pyarrow parses a cell into: the closest one to the stored type."""
    if not isinstance(feature, Scalar) or feature.dtype == "string":
        return pa.large_string()
    if feature.dtype == "bfloat16":
        return pa.float32()
    if feature.dtype == "float16":
        return pa.float64()
    return getattr(pa, "bool_" if feature.dtype == "bool" else feature.dtype)()


def unfit_texts(texts: pa.Array, kind: pa.DataType) -> Mask:
    """Which of large_binary[n] pyarrow cannot parse into a type, found in one pass."""
    if pa.types.is_boolean(kind):
        fits = pc.is_in(texts, pa.array(_BOOLS, texts.type))
        return ~_mask(fits)
    if pa.types.is_floating(kind):
        return ~_mask(pc.match_substring_regex(texts, _FLOAT))
    if not pa.types.is_integer(kind):
        return np.array([not is_utf8(text) for text in texts.to_pylist()], bool)
    return np.array([not _is_integer(text, kind) for text in texts.to_pylist()], bool)


def _is_integer(text: bytes, kind: pa.DataType) -> bool:
    if not _INTEGER.fullmatch(text):
        return False
    digits, bits = text.strip(b" \t"), int(kind.bit_width)
    if digits[1:2] in (b"x", b"X"):
        return len(digits) - 2 <= bits // 4
    negative = digits.startswith(b"-")
    digits = digits.lstrip(b"-").lstrip(b"0")
    if pa.types.is_unsigned_integer(kind):
        return not negative and len(digits) <= 20 and int(digits or b"0") >> bits == 0
    return len(digits) <= 20 and int(digits or b"0") < (1 << bits - 1) + negative


def _mask(flags: pa.Array) -> Mask:
    mask: Mask = flags.to_numpy(zero_copy_only=False).astype(bool)
    return mask


@dataclasses.dataclass(frozen=True)
class _Column:
    """A feature and its position in a file."""

    name: str
    feature: CellFeature
    index: int
    arrow_type: pa.DataType


_Bad = dict[int, tuple[str, str]]
"""Why rows cannot be read: row -> the first (reason, message)."""


def read_together(files: Sequence[SmallTable], features: Features) -> RawBatch | None:
    """The records of several files; None if there may be rejects."""
    rows = join_tables(files)
    if rows is None or not 0 < len(rows) <= MAX_BATCH_ROWS:
        return None
    (batch,) = CellReader(files[0].table, features).read(rows)
    if batch.rejects:
        return None
    ids = [
        f"{table.path}#{position}"
        for table, windows in files
        for rows in windows
        for position in rows.positions.tolist()
    ]
    return dataclasses.replace(batch, ids=ids)


class CellReader:
    """Converts the rows of one file to batches of wire columns.

    Every feature must be a :data:`CellFeature`. One that is not in the table's header is missing.
    """

    def __init__(self, table: Table, features: Features) -> None:
        """Looks up the position of each feature; absent ones are beyond the last column."""
        known = set(table.header)
        absent = [name for name in features if name not in known]
        indices = {name: index for index, name in enumerate((*table.header, *absent))}
        self._table = table
        self._columns: list[_Column] = []
        for name, feature in features.items():
            if not isinstance(feature, CellFeature):
                raise TypeError(f"feature {name!r} is {feature}, which a CSV column cannot be")
            self._columns.append(_Column(name, feature, indices[name], parse_type(feature)))
        self._columns.sort(key=lambda column: column.index)
        leaves = {
            column.name: Leaf(name=column.name, column=place, fields=(), type=column.arrow_type)
            for place, column in enumerate(self._columns)
        }
        self._floats = [
            (place, column.feature)
            for place, column in enumerate(self._columns)
            if isinstance(column.feature, Scalar) and column.feature.dtype in PRECISION
        ]
        self._schema = pa.schema([(str(c.index), c.arrow_type) for c in self._columns])
        self._values = RowReader(
            self._schema,
            features,
            path=table.path,
            unit=table.unit,
            leaves=leaves,
            fix="Fix the cell, list it in null_values if it means a missing value, or declare "
            "another type",
        )

    def read(self, rows: Rows) -> Iterator[RawBatch]:
        """Parses rows. Yields batches of at most MAX_BATCH_ROWS, each with its rejects."""
        # A window of one-byte rows could otherwise yield two million rejects at once.
        for first in range(0, len(rows), MAX_BATCH_ROWS):
            part = rows
            if len(rows) > MAX_BATCH_ROWS:
                part = rows.part(first, min(first + MAX_BATCH_ROWS, len(rows)))
            yield self._read(part)

    def _read(self, rows: Rows) -> RawBatch:
        bad: _Bad = {}
        if rows.problem:
            bad[0] = (rows.problem, _row_problem(rows))
        else:
            for row, problem in self._table.misquoted(rows).items():
                bad[row] = (problem, _quoting_problem(rows.text(row), problem))
        kept = np.delete(np.arange(len(rows)), sorted(bad))
        try:
            parsed = self._parse(rows.take(kept) if bad else rows)
        except pa.ArrowInvalid:
            kept, parsed = self._parse_what_fits(rows, kept, bad)
        if len(parsed) != len(kept):
            # Otherwise records would get the wrong ids.
            raise AssertionError(
                f"{self._table.path} byte {rows.offset}: found {len(kept)} rows, but pyarrow "
                f"parsed {len(parsed)}. This is a bug in snapshard: please report it."
            )
        num_bad = len(bad)
        batch = one_batch(parsed)
        self._find_changed(rows, kept, batch, bad)
        if len(bad) > num_bad:
            fits = ~np.isin(kept, list(bad))
            kept, batch = kept[fits], batch.filter(pa.array(fits))
        read = self._values.read(
            batch,
            rows.positions[kept],
            payload=lambda row: rows.text(int(kept[row])),
        )
        if not bad:
            return read
        rejects = [*read.rejects, *(self._reject(rows, row, *bad[row]) for row in bad)]
        rejects.sort(key=lambda reject: reject.position or 0)
        return dataclasses.replace(read, rejects=tuple(rejects))

    def _parse(self, rows: Rows) -> pa.Table:
        types = {column.index: column.arrow_type for column in self._columns}
        if not len(rows):
            return self._schema.empty_table()
        return self._table.parse(rows, types=types, columns=list(types))

    def _reject(self, rows: Rows, row: int, reason: str, message: str) -> Reject:
        position = int(rows.positions[row])
        is_check = reason in (INEXACT, OUT_OF_RANGE)
        reject = reject_at(
            self._table.path,
            position,
            stage="validate" if is_check else "read",
            reason=reason,
            message=f"{self._table.path} {self._table.unit} {position}: {message}",
            exception=RECORD_ERROR if is_check else "ArrowInvalid",
        )
        return with_bytes(reject, rows.text(row))

    def _without_ragged(self, rows: Rows, kept: Offsets, bad: _Bad) -> Offsets:
        """Those of the kept rows that have the right number of cells."""
        ragged = kept[self._table.ragged(rows.take(kept))].tolist()
        wanted = len(self._table.header)
        for row in ragged:
            line = rows.text(row)
            message = f"the row {_shown(line)} does not have {wanted} cells, one for each column"
            fix = f"Fix it: quote cells that contain {self._table.delimiter!r}"
            if not line.strip(b"\0"):
                message = f"{len(line):,} zero bytes, expected a row of {wanted} cells"
                fix = "The file is incomplete: copy or create it again"
            bad[row] = ("wrong number of cells", _with_fix(message, fix))
        return np.setdiff1d(kept, ragged)

    def _parse_what_fits(self, rows: Rows, kept: Offsets, bad: _Bad) -> tuple[Offsets, pa.Table]:
        """Finds every cell that does not fit its type, and parses the remaining rows."""
        kept = self._without_ragged(rows, kept, bad)
        whole = rows.take(kept)
        unfit: set[int] = set()
        for column in self._columns:
            if len(kept) and self._fails(whole, column):
                unfit.update(self._find_unfit(whole, kept, column, bad))
        left = np.setdiff1d(np.arange(len(kept)), sorted(unfit))
        return kept[left], self._parse(whole.take(left))

    def _fails(self, rows: Rows, column: _Column) -> bool:
        try:
            self._table.parse(rows, types={column.index: column.arrow_type}, columns=[column.index])
        except pa.ArrowInvalid:
            return True
        return False

    def _find_unfit(self, rows: Rows, kept: Offsets, column: _Column, bad: _Bad) -> Iterator[int]:
        """Rows whose cell in a column cannot be parsed.

        Equal texts parse alike, so one row represents all rows with the same text.
        """
        coded = self._table.texts(rows, column.index).dictionary_encode()
        codes, plain = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False), coded.dictionary
        if is_number(column.arrow_type):
            plain = self._table.plain_numbers(plain)
        unfit = self._unfit_codes(rows, column, codes=codes, texts=plain)
        text = column.arrow_type == pa.large_string()
        for row in np.flatnonzero(np.isin(codes, unfit)).tolist():
            cell = coded.dictionary[int(codes[row])].as_py()
            if text:
                encoding = self._table.encoding.upper()
                reason, fix = f"not {encoding}", "Name the file's encoding in the source"
                message = f"column {column.name!r} is {_shown(cell)}, expected {encoding} text"
            else:
                reason, fix = WRONG_TYPE, self._how_to_fix(column, cell)
                number = plain[int(codes[row])].as_py()
                if pa.types.is_integer(column.arrow_type) and _INTEGER.fullmatch(number):
                    reason = OUT_OF_RANGE
                message = (
                    f"column {column.name!r} is {_shown(cell)}, expected {expected(column.feature)}"
                )
            bad.setdefault(int(kept[row]), (reason, _with_fix(message, fix)))
            yield row

    def _unfit_codes(
        self, rows: Rows, column: _Column, *, codes: Offsets, texts: pa.Array
    ) -> Offsets:
        """The codes of the texts of a column that cannot be parsed."""
        hopeless = unfit_texts(texts, column.arrow_type)
        if column.arrow_type == pa.large_string():
            return np.flatnonzero(hopeless)
        # The parser decides about the rest.
        present, first = np.unique(codes, return_index=True)
        first = first[present >= 0]
        doubtful = np.sort(first[~hopeless])
        asked = rows.take(doubtful)

        def fits(start: int, stop: int) -> bool:
            return not self._fails(asked.part(start, stop), column)

        refused = culprits(fits, len(doubtful))
        return np.concatenate((np.flatnonzero(hopeless), codes[doubtful[refused]]))

    def _how_to_fix(self, column: _Column, cell: bytes) -> str:
        other = "string"
        if pa.types.is_integer(column.arrow_type) and not cell.strip().lstrip(b"+-").isdigit():
            with contextlib.suppress(ValueError), np.errstate(over="ignore"):
                number = float(cell)
                other = "float32" if float(str(np.float32(number))) == number else "float64"
        shown = _shown(cell)
        is_marked = is_number(column.arrow_type) and self._table.thousands is None
        if is_marked and (setting := thousands_setting(cell.decode(errors="replace"))):
            return f"If it is a number, set {setting} in the source"
        return (
            f"Fix the cell, list {shown} in null_values if it means a missing value, declare "
            f"types={{{column.name!r}: {other!r}}}"
        )

    def _find_changed(self, rows: Rows, kept: Offsets, parsed: pa.RecordBatch, bad: _Bad) -> None:
        """Finds numbers that a column cannot represent as they are written."""
        if b"0x" in rows.data or b"0X" in rows.data:
            for place, column in enumerate(self._columns):
                if pa.types.is_signed_integer(column.arrow_type):
                    for row, cell in self._wrapped(rows, kept, column, parsed.column(place)):
                        message = f"column {column.name!r} is {_shown(cell)}, too large for "
                        message += f"{column.arrow_type}"
                        fix = f"Declare types={{{column.name!r}: 'u{column.arrow_type}'}}"
                        bad.setdefault(int(kept[row]), (OUT_OF_RANGE, _with_fix(message, fix)))
        exact = [1 << PRECISION[feature.dtype] for _, feature in self._floats]
        for place in large_numbers(parsed, [place for place, _ in self._floats], exact):
            column, feature = self._columns[place], self._columns[place].feature
            assert isinstance(feature, Scalar)
            values, name = parsed.column(place), f"column {column.name!r}"
            for row, cell in self._too_large(rows, kept, column, values):
                message = f"{name} is {_shown(cell)}, which is too large for {feature.dtype}"
                fix = f"Rescale it, declare types={{{column.name!r}: 'string'}}"
                bad.setdefault(int(kept[row]), (OUT_OF_RANGE, _with_fix(message, fix)))
            places, integers = self._table.written_integers(
                rows, kept, column.index, values=values, smallest=1 << PRECISION[feature.dtype]
            )
            unfit = ~holds_exactly(integers, feature.dtype)
            for row, value in zip(places[unfit].tolist(), integers[unfit].tolist(), strict=True):
                message = f"{name} is {value}, expected {feature.dtype}, which cannot represent it"
                other = "float64" if is_exact(value, "float64") else "string"
                fix = f"Declare types={{{column.name!r}: {other!r}}}"
                bad.setdefault(int(kept[row]), (INEXACT, _with_fix(message, fix)))

    def _wrapped(
        self, rows: Rows, kept: Offsets, column: _Column, values: pa.Array
    ) -> Iterator[tuple[int, bytes]]:
        """Rows whose hexadecimal number was read as a negative one."""
        for row, cell in self._cells(rows, kept, column, values.fill_null(0).to_numpy() < 0):
            if cell.strip()[:2].lower() == b"0x":
                yield row, cell

    def _too_large(
        self, rows: Rows, kept: Offsets, column: _Column, values: pa.Array
    ) -> Iterator[tuple[int, bytes]]:
        """Rows whose number became infinite without being written as an infinity."""
        # A missing value is NaN.
        is_infinite = np.isinf(values.to_numpy(zero_copy_only=False))
        for row, cell in self._cells(rows, kept, column, is_infinite):
            if not _INFINITY.fullmatch(cell.decode(errors="replace")):
                yield row, cell

    def _cells(
        self, rows: Rows, kept: Offsets, column: _Column, chosen: Mask
    ) -> Iterator[tuple[int, bytes]]:
        """The text of some cells of a column, with their rows."""
        places = np.flatnonzero(chosen)
        if len(places):
            texts = self._table.texts(rows.take(kept[places]), column.index)
            yield from zip(places.tolist(), texts.to_pylist(), strict=True)


def _row_problem(rows: Rows) -> str:
    within = f"within {rows.max_row_bytes:,} bytes"
    longer = "let limits=ss.Limits(max_row_bytes=…) allow longer ones"
    quarantine = "or raise max_rejects to quarantine such rows."
    if rows.problem == TOO_LONG:
        return (
            f"the line does not end {within}. Is this a CSV file? Remove the line, {longer}, "
            f"{quarantine}"
        )
    if rows.problem == DANGLING:
        return f"the text ends after an escape, which needs a character. Remove it, {quarantine}"
    return (
        f"a cell begins with a quote that is not closed {within}. Close it, or double the quote "
        f"inside quotes; if cells are that long, {longer}; {quarantine}"
    )


def _quoting_problem(row: bytes, problem: str) -> str:
    num_lines = len(row.splitlines())
    found = f"the row {_shown(row)} has text between a closing quote and the end of its cell"
    if problem == OVER_LINES:
        found = (
            f"a quote makes one row of {num_lines:,} lines that each look complete, from "
            f"{_shown(row)} on"
        )
    if problem == AFTER_QUOTE and b'\\"' in row:
        fix = "If a backslash and a quote mean the quote, set escape='\\\\' in the source"
        return _with_fix(found, fix)
    return _with_fix(
        found,
        "If quotes are plain text in this file, set quote=None in the source; otherwise double "
        "those inside of quoted cells",
    )


def _shown(cell: bytes) -> str:
    """A cell for a message: quoted, shortened, with undecodable bytes escaped."""
    text = shown_text(cell[: 4 * _SHOWN_CELL_CHARS])
    if len(text) > _SHOWN_CELL_CHARS or len(cell) > 4 * _SHOWN_CELL_CHARS:
        return repr(text[:_SHOWN_CELL_CHARS]) + "…"
    return repr(text)


def _with_fix(message: str, fix: str) -> str:
    return f"{message}. {fix}, or raise max_rejects to quarantine such rows."
