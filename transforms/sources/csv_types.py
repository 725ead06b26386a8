"""The features of CSV files, told from their headers and cells.

Each window of rows is typed by pyarrow, and the windows' types are joined: a missing value fits
any type, integers fit floats, anything else that differs is a string. So the result does not
depend on where windows begin.

=========================== =====================================================================
cells                       feature
=========================== =====================================================================
integers                    int64
decimal numbers             float32: an Example holds no double. Where 7 digits are too few
                            (time stamps, identifiers), declare ``types={"name": "string"}``
true, false                 bool; 0 and 1 are integers
anything else, dates too    string
the label, if its cells     ClassLabel, names sorted, where there are at most 1,000 of them
are strings or bools
=========================== =====================================================================

A column with missing values is optional; a class must be there.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import pyarrow as pa

from ...schemas.errors import SchemaError
from ...schemas.features import ClassLabel, Dtype, Feature, Scalar
from ...schemas.manifest import MAX_LABELS
from .csv_rows import Read, Rows, find_rows, skip_mark
from .csv_table import Table

Kind = Literal["null", "bool", "int64", "float32", "string"]

_HEADER_WINDOW_BYTES = 1 << 16
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclasses.dataclass(frozen=True)
class Header:
    """The first row of a file."""

    names: tuple[str, ...]
    stop: int
    """Where the header's line ends and the rows begin, in bytes."""


def read_header(read: Read, num_bytes: int, *, path: str, delimiter: str) -> Header | None:
    """Reads the names of a file's columns; None where the file is empty.

    Raises:
        SchemaError: if the file does not begin with a row of UTF-8 text.
    """
    if read(0, 2) in _WIDE_MARKS:
        raise SchemaError(
            f"{path} is UTF-16 text, expected UTF-8. Convert it: iconv -f utf-16 -t utf-8."
        )
    found = find_rows(
        read,
        skip_mark(read),
        num_bytes,
        delimiter=delimiter,
        window_bytes=_HEADER_WINDOW_BYTES,
    )
    rows = next((rows for rows in found if len(rows)), None)
    if rows is None:
        return None
    if rows.problem:
        raise SchemaError(f"{path}: the header: {rows.problem}. Mend the file's first line.")
    try:
        text = rows.text(0).decode()
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"{path}: the header is not UTF-8 (byte {rows.offset + error.start}: "
            f"{error.object[error.start : error.start + 1]!r}). Convert the file, for example "
            "with iconv -f latin1 -t utf-8."
        ) from None
    try:
        (names,) = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    except csv.Error as error:
        raise SchemaError(f"{path}: the header: {error}. Mend the file's first line.") from None
    following = rows.starts[1] if len(rows) > 1 else len(rows.data)
    return Header(tuple(names), rows.offset + int(following))


def check_names(names: Sequence[str], *, path: str) -> None:
    """Checks that every column has a name of its own.

    Raises:
        SchemaError: naming the columns that do not.
    """
    for position, name in enumerate(names, start=1):
        if not name.strip():
            raise SchemaError(
                f"{path}: column {position} of {len(names)} has no name in the header. Name it, or "
                "declare the columns to read with features=."
            )
    if len(set(names)) < len(names):
        double = sorted({name for name in names if names.count(name) > 1})
        raise SchemaError(
            f"{path}: the header names {', '.join(map(repr, double))} more than once. Rename the "
            "columns."
        )


@dataclasses.dataclass
class ColumnTypes:
    """What the cells of a table's columns have turned out to be, so far."""

    names: tuple[str, ...]
    kinds: list[Kind]
    optional: list[bool]
    num_rows: int = 0

    @classmethod
    def of(cls, names: tuple[str, ...]) -> ColumnTypes:
        """Nothing seen yet."""
        return cls(names, ["null"] * len(names), [False] * len(names))

    def add(self, table: Table, rows: Rows) -> None:
        """Takes in some rows of a file. Ragged and bad rows tell nothing."""
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
        for position, name in enumerate(self.names):
            column = parsed.column(table.header.index(name))
            self.kinds[position] = join(self.kinds[position], kind_of(column.type))
            self.optional[position] |= column.null_count > 0

    def features(self) -> dict[str, Feature]:
        """The feature of each column."""
        found: dict[str, Feature] = {}
        for name, kind, optional in zip(self.names, self.kinds, self.optional, strict=True):
            dtype: Dtype = "string" if kind == "null" else kind
            found[name] = Scalar(dtype, optional=optional)
        return found


def kind_of(type_: pa.DataType) -> Kind:
    """What a type that pyarrow inferred means to us."""
    if pa.types.is_null(type_):
        return "null"
    if pa.types.is_boolean(type_):
        return "bool"
    if pa.types.is_integer(type_):
        return "int64"
    return "float32" if pa.types.is_floating(type_) else "string"


def join(one: Kind, other: Kind) -> Kind:
    """The narrowest kind that holds both.

    >>> join("int64", "float32"), join("null", "bool"), join("bool", "int64")
    ('float32', 'bool', 'string')
    """
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    return "float32" if {one, other} == {"int64", "float32"} else "string"


def class_label(windows: Iterator[tuple[Table, Rows]], name: str) -> ClassLabel | None:
    """The classes that a column's texts name; None where they are too many, or none.

    Texts that are not UTF-8 are left out: their rows will be rejected.
    """
    found: set[bytes] = set()
    for table, rows in windows:
        if rows.problem or not len(rows):
            continue
        column = table.header.index(name)
        try:
            texts = table.texts(rows, column)
        except pa.ArrowInvalid:
            rows = table.whole(rows)
            if not len(rows):
                continue
            texts = table.texts(rows, column)
        found.update(texts.unique().drop_null().to_pylist())
        if len(found) > MAX_LABELS:
            return None
    names = []
    for text in found:
        try:
            names.append(text.decode())
        except UnicodeDecodeError:
            continue
    return ClassLabel(tuple(sorted(names))) if names else None


def override(
    inferred: Mapping[str, Feature], types: Mapping[str, str | Feature]
) -> dict[str, Feature]:
    """The features with declared types in place of inferred ones.

    A dtype alone keeps what is known of missing values.
    """
    chosen = dict(inferred)
    for name, wanted in types.items():
        found = inferred[name]
        if isinstance(wanted, str):
            optional = isinstance(found, Scalar) and found.optional
            chosen[name] = Scalar(wanted, optional=optional)  # type: ignore[arg-type]
        else:
            chosen[name] = wanted
    return chosen
