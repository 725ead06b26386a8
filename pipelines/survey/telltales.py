"""Columns of a table that tell nothing, or too much, and values that are not what they seem.

A model learns an id by heart, a copy of the label gives the answer away, and -999 degrees is a
missing value. Such columns are pointed out from the first records, and never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.blocks import Block, FileRange, SourceFile
from ...schemas.errors import SnapshardError
from ...schemas.features import ClassLabel, Feature, Features, Scalar
from ...schemas.recipe import Source
from ...schemas.splits import Splits
from ...transforms.examples.dtypes import joined_bytes, unpacked
from ...transforms.sources.arrow.files import ArrowSource
from ...transforms.sources.csv.source import Csv
from ...transforms.sources.json.source import JsonLines
from ...transforms.storage.opened_source import OpenedSource

_TABLES = (Csv, JsonLines, ArrowSource)
_MAX_FILES = 20
_ENOUGH_ROWS = 1_000
"""No more records are looked at than the batches that hold these."""
_MIN_ROWS = 20
_MIN_REPEATS = 5
"""Values of a label that another column repeats occur at least this often, on average."""
_MAX_COLUMNS = 1_000
_NINES = re.compile(r"-?9{2,}(\.9+)?")
"""Numbers that often stand for a missing value."""
_MIN_SENTINELS = 2
_POINTED = r"^[0-9]+\.[0-9]+$"
_POWER = r"^[0-9]+[eE][0-9]$"
"""No program writes a number so, without a point or a sign."""
_MOST = 0.8
_ID = re.compile(r"(?i:(.*[_\-. ])?(id|uuid|guid))|.*[a-z](Id|ID)")
_GROUP = re.compile(
    r"(?i)(.*[_\-. ])?(donor|fold|participant|patient|person|recording|scene|session|slide|speaker"
    r"|subject|video)s?([_\-. ]?(id|name|no|nr|num|number))?"
)
"""Columns that say what records were taken from: those of one person are alike."""
_BY_GROUP = "ss.Splits(…, group_by="
_INDEX = re.compile(r"(?i)unnamed: 0|index|level_0|__index_level_0__|row_?(id|num|number)?")


def is_id(name: str) -> bool:
    """Whether a column is called like an id.

    >>> [is_id(name) for name in ("id", "user_id", "userId", "paid", "valid")]
    [True, True, True, False, False]
    """
    return _ID.fullmatch(name) is not None


def alike_classes(features: Features) -> list[str]:
    """A line for classes whose names differ in blanks or case alone, as ``yes`` and ``Yes`` do."""
    lines = []
    for feature_name, feature in features.items():
        alike: dict[str, list[str]] = {}
        for name in feature.names if isinstance(feature, ClassLabel) else ():
            alike.setdefault(" ".join(name.casefold().split()), []).append(name)
        if both := next((names for names in alike.values() if len(names) > 1), None):
            lines.append(
                f"{feature_name!r} has the classes {both[0]!r} and {both[1]!r}, which differ in "
                "blanks or case alone. If they are one, give them one name in the data."
            )
    return lines


def relevant(remarks: Sequence[str], splits: Splits) -> tuple[str, ...]:
    """The lines without those on groups, if the splits keep groups whole, or are given."""
    has_groups = splits.group_by is not None or splits.rule is not None
    return tuple(line for line in remarks if not (has_groups and _BY_GROUP in line))


def telltale_columns(
    source: Source, files: Sequence[SourceFile], opened: OpenedSource, features: Features
) -> list[str]:
    """A line for each column that is clearly an id, a count of the rows, or the label again.

    And for each with a number such as -999, repeatedly and far from all others.

    Args:
        source: A source of CSV, JSON, Parquet or Arrow files; of others, nothing is said.
        files: Its files.
        opened: Its root.
        features: The features of its records.
    """
    label = getattr(source, "label", None)
    columns = {name: feature for name, feature in features.items() if _is_column(feature)}
    forms = (_ID, _INDEX, _GROUP)
    named = {n for n in columns if n != label and any(form.fullmatch(n) for form in forms)}
    wanted = {
        name: feature
        for name, feature in columns.items()
        if name in named
        or (len(columns) <= _MAX_COLUMNS and (label in columns or _is_number(feature)))
    }
    if not isinstance(source, _TABLES) or not 0 < len(wanted) <= _MAX_COLUMNS:
        return []
    try:
        table = _first_records(source, files, opened, wanted)
    except SnapshardError:
        return []  # a build will report the error
    if table.num_rows < _MIN_ROWS:
        return []
    # Where commas are decimal marks, tables have semicolons.
    is_european = isinstance(source, Csv) and source.delimiter == ";" and source.decimal == "."
    lines = [*_lines(table, named, label), *_lines_on_numbers(table, wanted, points=is_european)]
    said = {label, *(getattr(source, "types", None) or {})}
    coded: Features = {
        name: Scalar("string", optional=True)
        for name, feature in wanted.items()
        if _may_be_codes(feature) and name not in said and _repeats(table.column(name))
    }
    if isinstance(source, Csv) and coded:
        lines += _lines_on_codes(_first_records(source, files, opened, coded))
    return lines


def _is_number(feature: Feature) -> bool:
    return isinstance(feature, Scalar) and feature.dtype not in ("string", "bool")


def _may_be_codes(feature: Feature) -> bool:
    return isinstance(feature, Scalar) and feature.dtype in ("float32", "float64")


def _repeats(values: pa.ChunkedArray) -> bool:
    """Whether many values occur four times on average, as codes do and most measurements not."""
    return len(values) <= _ENOUGH_ROWS or 4 * _num_values(values) <= len(values)


def _is_column(feature: Feature) -> bool:
    return isinstance(feature, Scalar | ClassLabel)


def _first_records(
    source: Source, files: Sequence[SourceFile], opened: OpenedSource, features: Features
) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    num = 0
    for file in [file for file in files if not file.problem and file.num_bytes][:_MAX_FILES]:
        part = FileRange(path=file.path, sha256=file.sha256, start=0, stop=file.num_bytes)
        for batch in source.read(Block((part,)), features=features, opened=opened, ordered=[0]):
            batches.append(batch.columns)
            num += batch.columns.num_rows
            if num >= _ENOUGH_ROWS:
                return pa.Table.from_batches(batches)
    return pa.Table.from_batches(batches) if batches else pa.table({})


def _lines(table: pa.Table, named: set[str], label: str | None) -> Iterator[str]:
    rows = f"the {table.num_rows:,} rows looked at"
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    for name, values in columns.items():
        how = f"To leave it out: ss.records.drop({name!r}) in prepare."
        if label in columns and name != label and _are_one_to_one(values, columns[label]):
            yield f"{name!r} tells {label!r}, the label: their values in {rows} are paired. {how}"
        elif name not in named or values.null_count:
            continue
        elif _INDEX.fullmatch(name) and _counts(values):
            yield f"{name!r} counts {rows}, as pandas' index does. {how}"
        elif is_id(name) and _num_values(values) == len(values):
            yield f"{name!r} is an id: no value occurs twice in {rows}. {how}"
        elif _GROUP.fullmatch(name) and 1 < (num := _num_values(values)) <= len(values) // 2:
            yield (
                f"{name!r} has {num:,} values in {rows}. If the records of each belong together: "
                f"{_BY_GROUP}{name!r}) keeps them in one split."
            )


def _num_values(values: pa.Array | pa.ChunkedArray) -> int:
    num: int = pc.count_distinct(values).as_py()
    return num


def _lines_on_numbers(table: pa.Table, features: Features, *, points: bool) -> Iterator[str]:
    """A line for each column of numbers that may stand for something else.

    Args:
        table: The first records, in wire form.
        features: Their features.
        points: Whether a point in a number may mark thousands.
    """
    rows = f"the {table.num_rows:,} rows looked at"
    for name, feature in features.items():
        if not _is_number(feature):
            continue
        numbers = _numbers(table.column(name).combine_chunks(), feature)
        if sentinel := _sentinel(numbers):
            yield (
                f"{name!r} has {sentinel} several times in {rows}, far from all other values: a "
                "missing value, maybe. null_values= of ss.Csv, or a step in prepare, can say so."
            )
        elif points and _are_thousandths(numbers):
            yield (
                f"{name!r} is read as decimal numbers, such as {numbers[0]!s}. If the points mark "
                "thousands, add thousands='.', decimal=',' to the source."
            )


def _lines_on_codes(table: pa.Table) -> Iterator[str]:
    """A line for each column of decimal numbers whose texts may be codes, such as versions.

    Two are one number (``1.1`` and ``1.10``), or one is a number by its letter (``3E5``).
    """
    for name in table.column_names:
        texts = pc.unique(table.column(name)).drop_null().cast(pa.large_string())
        same: list[str] = texts.filter(pc.match_substring_regex(texts, _POWER)).to_pylist()[:1]
        pointed = texts.filter(pc.match_substring_regex(texts, _POINTED))
        short = pc.utf8_rtrim(pointed, "0")
        if not same and _num_values(short) < len(short):
            alike = pc.value_counts(short)
            first = alike.field("values").filter(pc.greater(alike.field("counts"), 1))[0]
            same = pointed.filter(pc.equal(short, first)).to_pylist()
        if same:
            shown = " and ".join(map(repr, same[:2]))
            yield (
                f"{name!r} is read as numbers, {shown} as {float(same[0]):g}. If they are codes or "
                f"versions, types={{{name!r}: 'string'}} in the source keeps them as they are."
            )


def _numbers(values: pa.Array, feature: Feature) -> npt.NDArray[Any]:
    """The finite values of a column of numbers."""
    assert isinstance(feature, Scalar)
    kept = values.drop_null()
    if pa.types.is_large_binary(kept.type):
        numbers = unpacked(joined_bytes(kept), feature.dtype)
    else:
        numbers = kept.to_numpy()
    finite: npt.NDArray[Any] = numbers[np.isfinite(numbers)]
    return finite


def _sentinel(numbers: npt.NDArray[Any]) -> str:
    """A number of nines that occurs repeatedly, as far from all others as these from another."""
    found, counts = np.unique(numbers, return_counts=True)
    for end, others in ((0, found[1:]), (-1, found[:-1])):
        text = str(found[end]).removesuffix(".0") if len(others) > 1 else ""
        if not _NINES.fullmatch(text) or counts[end] < _MIN_SENTINELS:
            continue
        if abs(float(found[end]) - float(others[end])) > float(others[-1]) - float(others[0]):
            return text
    return ""


def _are_thousandths(numbers: npt.NDArray[Any]) -> bool:
    """Whether decimal numbers from 1 to 1,000 have three decimals, as ``58.178`` does."""
    sizes = np.abs(numbers.astype(np.float64))
    if numbers.dtype.kind != "f" or not sizes.size or sizes.min() < 1 or sizes.max() >= 1000:
        return False
    thousandths = np.rint(sizes * 1000)
    is_close = np.abs(thousandths - sizes * 1000) < 0.1  # a float32 is not exact
    return bool(is_close.all() and np.mean(thousandths % 10 > 0) > _MOST)


def _counts(values: pa.Array) -> bool:
    """Whether integers count from 0 or 1."""
    if not pa.types.is_integer(values.type) or values[0].as_py() not in (0, 1):
        return False
    steps = pc.subtract(values.slice(1), values.slice(0, len(values) - 1))
    return bool(pc.all(pc.equal(steps, 1)).as_py())


def _are_one_to_one(values: pa.Array, label: pa.Array) -> bool:
    """Whether each value of a column comes with one value of the label, and the reverse.

    If nearly all values differ, as measurements do, they must be equal.
    """
    one, other = (array.dictionary_encode().indices.fill_null(-1) for array in (values, label))
    num = pc.count_distinct(one).as_py()
    if num < 2 or num != pc.count_distinct(other).as_py():
        return False
    if num * _MIN_REPEATS > len(values):
        return values.type == label.type and bool(values.equals(label))
    pairs = pa.table({"a": one, "b": other}).group_by(["a", "b"]).aggregate([])
    return bool(pairs.num_rows == num)
