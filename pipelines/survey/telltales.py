"""Columns of a table that tell nothing, or too much: ids, counts of the rows, and the label again.

A model learns an id by heart, and a copy of the label gives the answer away. Such columns are
pointed out from the first records, where names and values both speak for it, and never left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.blocks import Block, FileRange, SourceFile
from ...schemas.errors import SnapshardError
from ...schemas.features import ClassLabel, Feature, Features, Scalar
from ...schemas.recipe import Source
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
_ID = re.compile(r"(?i:(.*[_\-. ])?(id|uuid|guid))|.*[a-z](Id|ID)")
_INDEX = re.compile(r"(?i)unnamed: 0|index|level_0|__index_level_0__|row_?(id|num|number)?")


def is_id(name: str) -> bool:
    """Whether a column is called like an id.

    >>> [is_id(name) for name in ("id", "user_id", "userId", "paid", "valid")]
    [True, True, True, False, False]
    """
    return _ID.fullmatch(name) is not None


def telltale_columns(
    source: Source, files: Sequence[SourceFile], opened: OpenedSource, features: Features
) -> list[str]:
    """A line for each column that is clearly an id, a count of the rows, or the label again.

    Args:
        source: A source of CSV, JSON, Parquet or Arrow files; of others, nothing is said.
        files: Its files.
        opened: Its root.
        features: The features of its records.
    """
    label = getattr(source, "label", None)
    columns = {name: feature for name, feature in features.items() if _is_column(feature)}
    named = {n for n in columns if n != label and (is_id(n) or _INDEX.fullmatch(n))}
    wanted = dict(columns) if label in columns else {name: columns[name] for name in named}
    if not isinstance(source, _TABLES) or not 0 < len(wanted) <= _MAX_COLUMNS:
        return []
    try:
        table = _first_records(source, files, opened, wanted)
    except SnapshardError:
        return []  # a build will report the error
    return list(_lines(table, named, label)) if table.num_rows >= _MIN_ROWS else []


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
        elif is_id(name) and pc.count_distinct(values).as_py() == len(values):
            yield f"{name!r} is an id: no value occurs twice in {rows}. {how}"


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
