"""Converts rows of CSV text to the wire columns of features, with a reject for each invalid row.

pyarrow parses rows directly into the features' types, a window at a time. Only if that fails, or a
value does not fit, is the bad cell searched for: with the same parser on fewer rows, never with a
cast from strings, which accepts different texts.

A text in ``null_values`` is a missing value in every column, quoted or not. Blanks around numbers
and times are ignored. Other valid cells:

=========== =======================================================================================
feature     texts
=========== =======================================================================================
int8 … 64,  decimal digits with an optional ``-``, or ``0x`` and hexadecimal digits, within the
uint8 … 64  dtype's range; ``1.0``, ``+1`` and ``1e3`` are not integers
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
Timestamp   ISO 8601: ``2026-11-21``, with a time ``T09:30`` or ``09:30`` (seconds and a fraction
            of up to nine digits may follow), with ``Z`` or an offset ``+02:00``; without one it is
            UTC. A fraction finer than the unit is rejected, not rounded
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
from ....schemas.wire import FLOATS
from ...examples.dtypes import PRECISION, holds_exactly, is_exact, numpy_dtype
from ...prepare.engine.validate import is_utf8
from ...rejects import reject_at, with_bytes
from ...runs.files import wire_schema
from ..arrow.values import INEXACT, class_codes, culprits, mapped_classes, shown_classes
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
    thousands_setting,
)

CellFeature = ClassLabel | Scalar | Text | Timestamp
Mask = npt.NDArray[np.bool_]

_BOOLS = tuple(text.encode() for text in (*TRUE_TEXTS, *FALSE_TEXTS))
_INTEGER = r"^[ \t]*-?[0-9]+[ \t]*$"
_HEXADECIMAL = r"^[ \t]*0[xX][0-9a-fA-F]+[ \t]*$"
_FLOAT = (
    r"^[ \t]*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*$"
    r"|^[ \t]*[-+]?((?i)inf|infinity|nan|nan\([a-z0-9_]*\))[ \t]*$"
)
_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?"
_ZONE = r"(Z|[-+]([01][0-9]|2[0-3]):?[0-5][0-9])"
_TIMESTAMP = rf"^{_DATE}([T ]{_TIME}{_ZONE}?)?$"
_ZONED = rf"{_ZONE}$"
_DAYS = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
# All days of these years can be expressed in ns.
_NS_YEARS = (1678, 2261)

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


def expected(feature: CellFeature) -> str:
    """The expected content of a cell, for messages."""
    if isinstance(feature, Scalar):
        return feature.dtype
    if isinstance(feature, ClassLabel):
        return shown_classes(feature)
    if isinstance(feature, Timestamp):
        return f"a time such as 2026-11-21T09:30:00Z, no finer than {feature.unit}"
    return "text"


def to_wire(values: pa.Array, feature: CellFeature, kind: pa.DataType) -> pa.Array:
    """Parsed cells in their stored form; null if a value is invalid for the feature.

    Args:
        values: Cells of the type that :func:`parse_type` gives.
        feature: Their feature.
        kind: The type of the stored column.
    """
    if isinstance(feature, ClassLabel) and feature.values is not None:
        return class_codes(values, feature.values).cast(kind)
    if isinstance(feature, ClassLabel):
        return pc.index_in(values, pa.array(feature.names, pa.large_string())).cast(kind)
    if isinstance(feature, Timestamp):
        return to_timestamps(values, feature.unit).cast(kind)
    if isinstance(feature, Text):
        return values.cast(kind)
    if feature.dtype == "float64":
        return _packed(values, kind)
    if feature.dtype == "uint64":
        return values.view(pa.int64())
    if feature.dtype in ("float16", "bfloat16"):
        return _narrowed(values, feature.dtype)
    return values.cast(kind)


def infinite(values: pa.Array, feature: CellFeature) -> list[int]:
    """Rows whose stored number is infinite."""
    if not isinstance(feature, Scalar) or feature.dtype not in FLOATS:
        return []
    if feature.dtype in ("float16", "bfloat16"):
        values = _narrowed(values, feature.dtype)
    numbers = values.to_numpy(zero_copy_only=False)  # a missing one is NaN
    rows: list[int] = np.flatnonzero(np.isinf(numbers)).tolist()
    return rows


def unfit_texts(texts: pa.Array, kind: pa.DataType) -> Mask:
    """Which of large_binary[n] pyarrow cannot parse into a type, found in one pass."""
    if pa.types.is_boolean(kind):
        fits = pc.is_in(texts, pa.array(_BOOLS, texts.type))
        return ~_mask(fits)
    if pa.types.is_floating(kind):
        return ~_mask(pc.match_substring_regex(texts, _FLOAT))
    if not pa.types.is_integer(kind):
        return np.array([not is_utf8(text) for text in texts.to_pylist()], bool)
    decimal = _mask(pc.match_substring_regex(texts, _INTEGER))
    fits_mask = decimal | _mask(pc.match_substring_regex(texts, _HEXADECIMAL))
    for row in np.flatnonzero(fits_mask):
        fits_mask[row] = _in_range(texts[int(row)].as_py(), kind)
    return ~fits_mask


def _in_range(text: bytes, kind: pa.DataType) -> bool:
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


def _packed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """float64[n] as 8 little-endian bytes each."""
    packed = values.fill_null(0.0).view(pa.binary(8)).cast(pa.large_binary())
    if values.null_count:
        packed = pc.if_else(values.is_valid(), packed, pa.scalar(None, pa.large_binary()))
    return packed.cast(kind)


def _narrowed(values: pa.Array, dtype: str) -> pa.Array:
    """Numbers rounded to the nearest value of a 16-bit dtype, ties to even, as float32[n]."""
    missing = values.is_null().to_numpy(zero_copy_only=False)
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        rounded = numbers.astype(numpy_dtype(dtype)).astype(np.float32)
    if dtype == "bfloat16":
        rounded[np.isnan(rounded)] = np.nan  # of one sign
    return pa.array(rounded, mask=missing)


def to_timestamps(texts: pa.Array, unit: str) -> pa.Array:
    """ISO 8601 texts as int64[n] since 1970; null if a text is not a time in the unit."""
    trimmed = pc.ascii_trim(texts, " \t")
    fits = _mask(pc.match_substring_regex(trimmed, _TIMESTAMP).fill_null(False))
    years, months, days = (
        _numbers(pc.if_else(pa.array(fits), trimmed, "0000-00-00"), start, stop)
        for start, stop in ((0, 4), (5, 7), (8, 10))
    )
    leap = (years % 4 == 0) & ((years % 100 != 0) | (years % 400 == 0))
    fits &= (days <= _DAYS[months]) & ((months != 2) | (days < 29) | leap)
    if unit == "ns":
        fits &= (years >= _NS_YEARS[0]) & (years <= _NS_YEARS[1])
    # Strip trailing zeros from fractions.
    short = pc.replace_substring_regex(trimmed, r"(\.[0-9]*?)0+(Z|[-+][0-9:]+)?$", r"\1\2")
    short = pc.replace_substring_regex(short, r"\.(Z|[-+][0-9:]+)?$", r"\1")
    finer = pc.match_substring_regex(short, rf"\.[0-9]{{{_DIGITS[unit] + 1},}}")
    fits &= ~_mask(finer.fill_null(False))
    zoned = _mask(pc.match_substring_regex(short, _ZONED).fill_null(False))
    none = pa.scalar(None, pa.large_string())
    times = []
    for mask, kind in (
        (fits & ~zoned, pa.timestamp(unit)),
        (fits & zoned, pa.timestamp(unit, "UTC")),
    ):
        times.append(pc.if_else(pa.array(mask), short, none).cast(kind).cast(pa.int64()))
    return pc.coalesce(*times)


def _numbers(texts: pa.Array, start: int, stop: int) -> npt.NDArray[np.int64]:
    """The numbers at [start, stop) of each text."""
    cut = pc.utf8_slice_codeunits(texts, start, stop)
    numbers: npt.NDArray[np.int64] = cut.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers


@dataclasses.dataclass(frozen=True)
class _Column:
    """A feature and its position in a file."""

    name: str
    feature: CellFeature
    index: int
    arrow_type: pa.DataType
    expected: str


_Bad = dict[int, tuple[str, str, str]]
"""Why rows are rejected: row -> the first (stage, reason, message)."""


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
            index, kind = indices[name], parse_type(feature)
            self._columns.append(_Column(name, feature, index, kind, expected(feature)))
        self._columns.sort(key=lambda column: column.index)
        self._schema = wire_schema(features)

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
            bad[0] = ("read", rows.problem, _row_problem(rows))
            return self._batch(rows, np.zeros(0, np.int64), self._schema.empty_table(), bad)
        for row, problem in self._table.misquoted(rows).items():
            bad[row] = ("read", problem, _quoting_problem(rows.text(row), problem))
        kept = np.delete(np.arange(len(rows)), sorted(bad))
        types = {column.index: column.arrow_type for column in self._columns}
        if not len(kept):
            return self._batch(rows, kept, self._schema.empty_table(), bad)
        try:
            well_quoted = rows.take(kept) if bad else rows
            parsed = self._table.parse(well_quoted, types=types, columns=list(types))
        except pa.ArrowInvalid:
            kept, parsed = self._parse_what_fits(rows, kept, types, bad)
        if len(parsed) != len(kept):
            # Otherwise records would get the wrong ids.
            raise AssertionError(
                f"{self._table.path} byte {rows.offset}: found {len(kept)} rows, but pyarrow "
                f"parsed {len(parsed)}. This is a bug in snapshard: please report it."
            )
        columns, fits = self._wire(rows, kept, parsed, bad)
        if not fits.all():
            mask = pa.array(fits)
            columns, kept = columns.filter(mask), kept[fits]
        return self._batch(rows, kept, columns, bad)

    def _batch(self, rows: Rows, kept: Offsets, columns: pa.Table, bad: _Bad) -> RawBatch:
        prefix = f"{self._table.path}#"
        positions = rows.positions[kept].tolist()
        return RawBatch(
            ids=[prefix + position for position in map(str, positions)],
            columns=pa.RecordBatch.from_arrays(
                [column.combine_chunks() for column in columns.columns], schema=self._schema
            ),
            rejects=tuple(self._reject(rows, row, *bad[row]) for row in sorted(bad)),
        )

    def _reject(self, rows: Rows, row: int, stage: str, reason: str, message: str) -> Reject:
        position = int(rows.positions[row])
        reject = reject_at(
            self._table.path,
            position,
            stage=stage,
            reason=reason,
            message=f"{self._table.place(position)}: {message}",
            exception=RECORD_ERROR if stage == "validate" else "ArrowInvalid",
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
            bad[row] = ("read", "wrong number of cells", _with_fix(message, fix))
        return np.setdiff1d(kept, ragged)

    def _parse_what_fits(
        self, rows: Rows, kept: Offsets, types: dict[int, pa.DataType], bad: _Bad
    ) -> tuple[Offsets, pa.Table]:
        """Finds every cell that does not fit its type, and parses the remaining rows."""
        kept = self._without_ragged(rows, kept, bad)
        if not len(kept):
            return kept, self._nothing(types)
        whole = rows.take(kept)
        unfit: set[int] = set()
        for column in self._columns:
            if self._fails(whole, column):
                unfit.update(self._find_unfit(whole, kept, column, bad))
        left = np.setdiff1d(np.arange(len(kept)), sorted(unfit))
        if not len(left):
            return kept[:0], self._nothing(types)
        parsed = self._table.parse(whole.take(left), types=types, columns=list(types))
        return kept[left], parsed

    def _nothing(self, types: dict[int, pa.DataType]) -> pa.Table:
        return pa.schema([(str(i), kind) for i, kind in types.items()]).empty_table()

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
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        unfit = self._unfit_codes(rows, column, codes=codes, texts=coded.dictionary)
        text = column.arrow_type == pa.large_string()
        for row in np.flatnonzero(np.isin(codes, unfit)).tolist():
            cell = coded.dictionary[int(codes[row])].as_py()
            if text:
                encoding = self._table.encoding.upper()
                reason, fix = f"not {encoding}", "Name the file's encoding in the source"
                message = f"column {column.name!r} is {_shown(cell)}, expected {encoding} text"
            else:
                reason, fix = "wrong type", self._how_to_fix(column, cell)
                message = f"column {column.name!r} is {_shown(cell)}, expected {column.expected}"
            bad.setdefault(int(kept[row]), ("read", reason, _with_fix(message, fix)))
            yield row

    def _unfit_codes(
        self, rows: Rows, column: _Column, *, codes: Offsets, texts: pa.Array
    ) -> Offsets:
        """The codes of the texts of a column that cannot be parsed."""
        plain = self._table.plain_numbers(texts) if is_number(column.arrow_type) else texts
        hopeless = unfit_texts(plain, column.arrow_type)
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

    def _wire(
        self, rows: Rows, kept: Offsets, parsed: pa.Table, bad: _Bad
    ) -> tuple[pa.Table, Mask]:
        """The wire columns of parsed rows, and which rows can be stored."""
        fits = np.ones(len(kept), bool)
        wires: dict[str, pa.Array] = {}
        for column in self._columns:
            values = parsed.column(str(column.index)).combine_chunks()
            wire = to_wire(values, column.feature, self._schema.field(column.name).type)
            wires[column.name] = wire
            for row, finding in self._unstorable(rows, kept, column, values=values, wire=wire):
                fits[row] = False
                bad.setdefault(int(kept[row]), finding)
        arrays = [wires[name] for name in self._schema.names]
        return pa.table(arrays, names=self._schema.names), fits

    def _unstorable(
        self, rows: Rows, kept: Offsets, column: _Column, *, values: pa.Array, wire: pa.Array
    ) -> Iterator[tuple[int, tuple[str, str, str]]]:
        """Rows whose value in a column cannot be stored, each with (stage, reason, message)."""
        feature, name = column.feature, f"column {column.name!r}"
        if values.null_count and not feature.optional:
            fix = "Fill it, or give the feature optional=True"
            message = _with_fix(f"{name} has no value, expected {column.expected}", fix)
            for row in _rows_where(values.is_null()):
                yield row, ("validate", "missing value", message)
        if wire.null_count > values.null_count:
            for row in _rows_where(pc.and_(values.is_valid(), wire.is_null())):
                cell = values[row].as_py().encode()
                message = f"{name} is {_shown(cell)}, expected {column.expected}"
                if isinstance(feature, Timestamp):
                    finding = ("read", "wrong type", self._how_to_fix(column, cell))
                else:
                    fix = "Add it to the names of the class, or fix the cell"
                    if isinstance(feature, ClassLabel) and re.fullmatch(rb"-?[0-9]+", cell):
                        fix += f", or map integers to names: {mapped_classes(feature)}"
                    finding = ("validate", "unknown class", fix)
                yield row, (*finding[:2], _with_fix(message, finding[2]))
        for row, cell in self._too_large(rows, kept, column, values):
            message = f"{name} is {_shown(cell)}, which is too large for {column.expected}"
            fix = f"Rescale it, declare types={{{column.name!r}: 'string'}}"
            yield row, ("validate", "out of range", _with_fix(message, fix))
        for row, value in self._inexact(rows, kept, column, values):
            message = f"{name} is {value}, expected {column.expected}, which cannot represent it"
            other = "float64" if is_exact(value, "float64") else "string"
            fix = f"Declare types={{{column.name!r}: {other!r}}}"
            yield row, ("validate", INEXACT, _with_fix(message, fix))

    def _too_large(
        self, rows: Rows, kept: Offsets, column: _Column, values: pa.Array
    ) -> Iterator[tuple[int, bytes]]:
        """Rows whose number became infinite without being written as an infinity."""
        places = infinite(values, column.feature)
        if not places:
            return
        texts = self._table.texts(rows.take(kept[places]), column.index)
        for row, cell in zip(places, texts.to_pylist(), strict=True):
            if not _INFINITY.fullmatch(cell.decode(errors="replace")):
                yield row, cell

    def _inexact(
        self, rows: Rows, kept: Offsets, column: _Column, values: pa.Array
    ) -> Iterator[tuple[int, int]]:
        """Rows whose cell is an integer that the column's float dtype cannot represent."""
        feature = column.feature
        if not isinstance(feature, Scalar) or feature.dtype not in PRECISION:
            return
        places, integers = self._table.written_integers(
            rows, kept, column.index, values=values, smallest=1 << PRECISION[feature.dtype]
        )
        unfit = ~holds_exactly(integers, feature.dtype)
        yield from zip(places[unfit].tolist(), integers[unfit].tolist(), strict=True)


def _rows_where(mask: pa.Array) -> list[int]:
    rows: list[int] = pc.indices_nonzero(mask).to_pylist()
    return rows


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
