"""Infers the features of CSV files from their cells.

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
numbers with leading zeros  string: 02134 is a ZIP code, not 2,134
anything else, also dates   string
the label, if its cells     ClassLabel, names sorted, if there are at most 1,000 of them
are strings or bools
=========================== =====================================================================

A column with missing values is optional; a class is required.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....schemas.features import Dtype, Feature, Scalar
from ...examples.dtypes import PRECISION, holds_exactly
from ..text_stream import Rows
from .rows import SmallTable, Table, join_tables, large_numbers, one_batch

Kind = Literal["null", "bool", "int64", "float", "string"]


@dataclasses.dataclass
class ColumnType:
    """The type of a column, as inferred from the cells seen so far."""

    kind: Kind = "null"
    optional: bool = False
    wide: bool = False
    """Whether a number of the column loses digits as a float32."""
    inexact: bool = False
    """Whether an integer of the column changes as a float64."""

    def merge(self, other: ColumnType) -> None:
        """Adds what has been seen of other cells."""
        self.kind = join(self.kind, other.kind)
        self.optional |= other.optional
        self.wide |= other.wide
        self.inexact |= other.inexact

    def feature(self) -> Feature:
        """The feature that stores the cells."""
        dtype: Dtype = "string"
        if self.kind == "float":
            dtype = "string" if self.inexact else "float64" if self.wide else "float32"
        elif self.kind != "null":
            dtype = self.kind
        return _scalar(dtype, self.optional)


@functools.cache
def _scalar(dtype: Dtype, optional: bool) -> Scalar:
    """The same object for thousands of columns."""
    return Scalar(dtype, optional=optional)


@dataclasses.dataclass
class ColumnTypes:
    """The types of a table's columns, by name."""

    columns: dict[str, ColumnType]
    num_rows: int = 0

    @classmethod
    def of(cls, names: Iterable[str]) -> ColumnTypes:
        """Nothing seen yet."""
        return cls({name: ColumnType() for name in names})

    @classmethod
    def of_files(cls, files: Sequence[SmallTable]) -> ColumnTypes | None:
        """The types in several files; None if their columns differ."""
        rows = join_tables(files)
        if rows is None:
            return None
        seen = cls.of(files[0].table.header)
        seen.add(files[0].table, rows)
        return seen

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, which :meth:`merge` reads."""
        return dataclasses.asdict(self)

    def merge(self, value: Mapping[str, Any]) -> None:
        """Adds what another instance has seen of the same columns, or some, in any order."""
        self.num_rows += value["num_rows"]
        for name, column in self.columns.items():
            other = value["columns"].get(name)
            column.merge(ColumnType(optional=True) if other is None else ColumnType(**other))

    def add(self, table: Table, rows: Rows) -> None:
        """Adds some rows of a file. Ragged and bad rows are ignored."""
        rows = table.well_quoted(rows)
        if rows.problem or not len(rows):
            return
        try:
            parsed = table.parse(rows, declared=False)
        except pa.ArrowInvalid:
            rows = table.whole(rows)
            if not len(rows):
                return
            parsed = table.parse(rows, declared=False)
        self.num_rows += len(parsed)
        batch = one_batch(parsed)
        kinds = [kind_of(type_) for type_ in batch.schema.types]
        places = [(place, self.columns[name]) for place, name in enumerate(table.header)]
        numeric = [
            place
            for place, column in places
            if kinds[place] in ("int64", "float") and column.kind != "string"
        ]
        zero_led = table.zero_led(rows, numeric)
        floats = [place for place, _ in places if kinds[place] == "float"]
        undecided = [
            (place, column)
            for place, column in places
            if kinds[place] == "float" and not column.wide
        ]
        flags = are_wide([batch.column(place) for place, _ in undecided])
        for (_, column), wide in zip(undecided, flags, strict=True):
            column.wide = wide
        smallest = {
            place: 1 << PRECISION["float64" if column.wide else "float32"]
            for place, column in places
        }
        large = {*large_numbers(batch, floats, [smallest[place] for place in floats])}
        for place, column in places:
            values, kind = batch.column(place), kinds[place]
            kind = "string" if place in zero_led else kind
            integers: npt.NDArray[Any] | None = None
            if kind == "int64":
                integers = values.drop_null().to_numpy()
            elif kind == "float" and place in large:
                _, integers = table.written_integers(
                    rows, np.arange(len(rows)), place, values=values, smallest=smallest[place]
                )
                if any(abs(value) >= 1 << 63 for value in integers):
                    kind = "string"
            if integers is not None:
                column.wide = column.wide or not holds_exactly(integers, "float32").all()
                column.inexact |= not holds_exactly(integers, "float64").all()
            column.merge(ColumnType(kind, optional=values.null_count > 0))

    def features(self) -> dict[str, Feature]:
        """The feature of each column."""
        return {name: column.feature() for name, column in self.columns.items()}


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
    joined = pa.concat_arrays([pa.array([], pa.float64()), *columns])
    values = joined.to_numpy(zero_copy_only=False)  # NaN where missing
    column_of = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
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
    flags: list[bool] = wide.tolist()
    return flags


def cell_texts(table: Table, rows: Rows, name: str) -> set[bytes]:
    """The distinct texts of a column in some rows. Ragged and bad rows are ignored."""
    rows = table.well_quoted(rows)
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


def integers(table: Table, rows: Rows, name: str) -> npt.NDArray[np.int64] | None:
    """The cells of a column of integers, int64[n]; None if one is missing. Bad rows are ignored."""
    rows = table.well_quoted(rows)
    if rows.problem or not len(rows):
        return np.zeros(0, np.int64)
    column = table.header.index(name)
    try:
        cells = table.parse(rows, types={column: pa.int64()}, columns=[column])
    except pa.ArrowInvalid:
        rows = table.whole(rows)
        if not len(rows):
            return np.zeros(0, np.int64)
        cells = table.parse(rows, types={column: pa.int64()}, columns=[column])
    numbers = cells.column(0).combine_chunks()
    return None if numbers.null_count else numbers.to_numpy()


def span_of(windows: Iterable[npt.NDArray[np.int64] | None]) -> list[int] | None:
    """The first and the last of consecutive integers; [] if there are none, None if others.

    >>> span_of([np.array([1, 2]), np.array([3])]), span_of([np.array([1, 3])])
    ([1, 3], None)
    """
    span: list[int] = []
    for numbers in windows:
        if numbers is None:
            return None
        if not len(numbers):
            continue
        first, last = int(numbers[0]), int(numbers[-1])
        if (np.diff(numbers) != 1).any() or (span and first != span[1] + 1):
            return None
        span = [span[0] if span else first, last]
    return span
