"""Infers the features of CSV files from their headers and cells.

pyarrow types each window of rows, and the types of the windows are joined: a missing value fits any
type, integers fit decimal numbers, and any other combination is a string. The result does not
depend on where windows begin.

=========================== =====================================================================
cells                       feature
=========================== =====================================================================
integers                    int64; a string if one needs more than 64 bits, or, among decimal
                            numbers, more than the 53 bits of a float64
decimal numbers             float32 if that keeps every written digit, as for 39.1 or 123456.78: the
                            shortest text of the float32 is the same number, and integers among them
                            are exact. Otherwise float64: 1234567890.5, 41.892042136.
                            ``types={"name": "float32"}`` settles for seven digits of such numbers
true, false                 bool; 0 and 1 are integers
anything else, also dates   string
the label, if its cells     ClassLabel, names sorted, if there are at most 1,000 of them
are strings or bools
=========================== =====================================================================

A column with missing values is optional; a class is required.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ....schemas.errors import SchemaError
from ....schemas.features import Dtype, Feature, Scalar
from ....schemas.limits import too_many_columns
from ...examples.dtypes import PRECISION, holds_exactly
from ..text_stream import Text, shown_text
from .rows import Rows, SmallTable, Table, find_rows, join_rows, skip_mark

Kind = Literal["null", "bool", "int64", "float", "string"]

_HEADER_WINDOW_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Header:
    """The column names of a file."""

    names: tuple[str, ...]
    stop: int
    """The byte offset in the text at which the rows begin."""


def read_header(
    text: Text,
    *,
    path: str,
    delimiter: str,
    encoding: str,
    names: tuple[str, ...] | None = (),
) -> Header | None:
    """Reads the column names of a file; None if the file has no row.

    Args:
        text: The file's text.
        path: The file's path, for messages.
        delimiter: The character between cells.
        encoding: The file's encoding, for messages.
        names: Empty if the first row names the columns. Otherwise the file has no header, and
            these are the names; None for ``column_0`` and so on, one for each cell of the first
            row.

    Raises:
        SchemaError: if the file's first row cannot be read.
        DamagedError: if the file is compressed and damaged before the end of that row.
    """
    start = skip_mark(text.read)
    found = find_rows(
        text.read,
        start,
        text.stop,
        delimiter=delimiter,
        window_bytes=_HEADER_WINDOW_BYTES,
        max_row_bytes=text.max_row_bytes,
    )
    rows = next((rows for rows in found if len(rows)), None)
    if rows is None:
        return None
    if names:
        return Header(names, start)
    what = "the header" if names is not None else "the first row"
    if rows.problem:
        raise SchemaError(f"{path}: {what}: {rows.problem}. Fix the file's first line.")
    line = rows.text(0)
    if names is not None and not line.strip(b"\0"):
        raise SchemaError(
            f"{path} begins with zero bytes, as an incompletely written file does; expected "
            f"{what}. Copy or create it again."
        )
    try:
        decoded = line.decode(errors="replace" if names is None else "strict")
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"{path}: the header is not {encoding.upper()} (byte {rows.offset + error.start}: "
            f"'{shown_text(line[error.start :])[:20]}'). Name the file's encoding in the source, "
            'for example encoding="latin-1".'
        ) from None
    try:
        (cells,) = csv.reader(io.StringIO(decoded, newline=""), delimiter=delimiter)
    except csv.Error as error:
        raise SchemaError(f"{path}: {what}: {error}. Fix the file's first line.") from None
    if names is None:
        return Header(tuple(f"column_{position}" for position in range(len(cells))), start)
    following = rows.starts[1] if len(rows) > 1 else len(rows.data)
    return Header(tuple(cells), rows.offset + int(following))


def check_names(names: Sequence[str], *, path: str, max_columns: int) -> None:
    """Checks that every column has a unique name, and that there are not too many columns.

    Raises:
        SchemaError: naming the columns at fault.
    """
    if len(names) > max_columns:
        raise SchemaError(too_many_columns(path, len(names), max_columns))
    for position, name in enumerate(names, start=1):
        if not name.strip():
            raise SchemaError(
                f"{path}: column {position} of {len(names)} has no name in the header. Name it, or "
                "declare the columns to read with features=."
            )
    if len(set(names)) < len(names):
        double = sorted(name for name, num in Counter(names).items() if num > 1)
        raise SchemaError(
            f"{path}: the header names {', '.join(map(repr, double))} more than once. Rename the "
            "columns."
        )


@dataclasses.dataclass
class ColumnTypes:
    """The types of a table's columns, as inferred from the cells seen so far."""

    names: tuple[str, ...]
    kinds: list[Kind]
    optional: list[bool]
    wide: list[bool]
    """Whether a number of the column loses digits as a float32."""
    inexact: list[bool]
    """Whether an integer of the column changes as a float64."""
    num_rows: int = 0

    @classmethod
    def of(cls, names: Iterable[str]) -> ColumnTypes:
        """Nothing seen yet."""
        names = tuple(names)
        num = len(names)
        return cls(names, ["null"] * num, [False] * num, [False] * num, [False] * num)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, which :meth:`merge` reads."""
        return dataclasses.asdict(self)

    def merge(self, value: Mapping[str, Any]) -> None:
        """Adds what another instance has seen of the same columns, or some, in any order."""
        self.num_rows += value["num_rows"]
        others = {name: other for other, name in enumerate(value["names"])}
        for position, name in enumerate(self.names):
            other = others.get(name)
            if other is None:
                self.optional[position] = True
                continue
            self.kinds[position] = join(self.kinds[position], value["kinds"][other])
            self.optional[position] |= value["optional"][other]
            self.wide[position] |= value["wide"][other]
            self.inexact[position] |= value["inexact"][other]

    def add(self, table: Table, rows: Rows) -> None:
        """Adds some rows of a file. Ragged and bad rows are ignored."""
        if rows.problem or not len(rows):
            return
        try:
            parsed = table.parse(rows, zero_one=False)
        except pa.ArrowInvalid:
            rows = table.whole(rows)
            if not len(rows):
                return
            parsed = table.parse(rows, zero_one=False)
        self.num_rows += len(parsed)
        indices = {name: index for index, name in enumerate(table.header)}
        columns = [parsed.column(indices[name]).combine_chunks() for name in self.names]
        kinds = [kind_of(column.type) for column in columns]
        undecided = [
            position
            for position, kind in enumerate(kinds)
            if kind == "float" and not self.wide[position]
        ]
        found = are_wide([columns[position] for position in undecided])
        for position, wide in zip(undecided, found, strict=True):
            self.wide[position] = wide
        for position, (column, kind) in enumerate(zip(columns, kinds, strict=True)):
            if kind in ("int64", "float"):
                index, wide = indices[self.names[position]], self.wide[position]
                if kind == "int64":
                    integers = column.drop_null().to_numpy()
                else:
                    smallest = 1 << PRECISION["float64" if wide else "float32"]
                    _, integers = table.written_integers(
                        rows, np.arange(len(rows)), index, values=column, smallest=smallest
                    )
                    if any(abs(value) >= 1 << 63 for value in integers):
                        kind = "string"
                self.wide[position] = wide or not holds_exactly(integers, "float32").all()
                self.inexact[position] |= not holds_exactly(integers, "float64").all()
            self.kinds[position] = join(self.kinds[position], kind)
            self.optional[position] |= column.null_count > 0

    @classmethod
    def of_files(cls, files: Sequence[SmallTable]) -> ColumnTypes | None:
        """The types in several files; None if their columns differ."""
        rows = join_rows(files)
        if rows is None:
            return None
        seen = cls.of(files[0].table.header)
        seen.add(files[0].table, rows)
        return seen

    def features(self) -> dict[str, Feature]:
        """The feature of each column."""
        found: dict[str, Feature] = {}
        columns = zip(self.names, self.kinds, self.optional, self.wide, self.inexact, strict=True)
        for name, kind, optional, wide, inexact in columns:
            dtype: Dtype = "string"
            if kind == "float":
                dtype = "string" if inexact else "float64" if wide else "float32"
            elif kind != "null":
                dtype = kind
            found[name] = Scalar(dtype, optional=optional)
        return found


def kind_of(type_: pa.DataType) -> Kind:
    """The kind of a type that pyarrow inferred."""
    if pa.types.is_null(type_):
        return "null"
    if pa.types.is_boolean(type_):
        return "bool"
    if pa.types.is_integer(type_):
        return "int64"
    return "float" if pa.types.is_floating(type_) else "string"


def join(one: Kind, other: Kind) -> Kind:
    """The narrowest kind that holds both.

    >>> join("int64", "float"), join("null", "bool"), join("bool", "int64")
    ('float', 'bool', 'string')
    """
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    return "float" if {one, other} == {"int64", "float"} else "string"


def are_wide(columns: Sequence[pa.Array]) -> list[bool]:
    """Which columns of float64[n] contain a number that loses digits as a float32.

    A number survives if the shortest text of its float32 is the same number.

    >>> are_wide([pa.array([39.1, 123456.78, None]), pa.array([1234567890.5])])
    [False, True]
    """
    present = [column.drop_null().to_numpy() for column in columns]
    values = np.concatenate([np.zeros(0), *present])
    column_of = np.repeat(np.arange(len(columns)), [len(numbers) for numbers in present])
    # Six digits always survive. Most numbers have no more, and need no conversion to text.
    with np.errstate(over="ignore", invalid="ignore"):
        narrow, hundreds = values.astype(np.float32), np.rint(values * 100)
        doubtful = (hundreds / 100 != values) | (np.abs(hundreds) >= 1e6)
        doubtful &= (narrow != values) & np.isfinite(values)
    values, narrow, column_of = values[doubtful], narrow[doubtful], column_of[doubtful]
    wide = np.zeros(len(columns), bool)
    for start in range(0, len(values), 1 << 12):
        part = slice(start, start + (1 << 12))
        texts = pa.array(narrow[part]).cast(pa.string())
        wide[column_of[part][texts.cast(pa.float64()).to_numpy() != values[part]]] = True
    found: list[bool] = wide.tolist()
    return found


def cell_texts(table: Table, rows: Rows, name: str) -> set[bytes]:
    """The distinct texts of a column in some rows. Ragged and bad rows are ignored."""
    if rows.problem or not len(rows):
        return set()
    column = table.header.index(name)
    try:
        texts = table.texts(rows, column)
    except pa.ArrowInvalid:
        rows = table.whole(rows)
        if not len(rows):
            return set()
        texts = table.texts(rows, column)
    return set(texts.unique().drop_null().to_pylist())
