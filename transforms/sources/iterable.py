"""The source of Python records: a function that returns an iterable, a list, or a ``tf.data``.

The records are converted to Arrow batches of bounded size, in types that hold the values of each,
and written to a scratch file. A second pass over it converts them to the types that hold the values
of all, and writes the files of the workspace; with a ``key``, sorted by it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.config import config_class
from ...schemas.errors import DataError, RecipeError, SchemaError, SnapshardError
from ...schemas.limits import DEFAULT_LIMITS, Limits
from ...schemas.recipe import Source
from .. import storage
from ..activity import advance
from ..in_parts import in_batches
from ..storage.redaction import redact_repeated
from .arrow.types import leaves_of
from .arrow_records import UnfitValueError, join_columns, records_to_batch, to_columns
from .extracted import (
    ExtractedTable,
    extract_batches,
    keyed,
    numbered_rows,
    plain_batch,
    plain_schema,
    range_step,
    write_ranges,
)
from .memory import is_frame, table_batches
from .table_files import check_types

_NAME = "iterable"
_CHUNK_RECORDS = 4096
_CHUNK_BYTES = 8 << 20
_LED_ROWS = 1024
_SORT_BYTES = 64 << 20
"""Size of the records that are sorted in memory."""
_RUN_BATCH_BYTES = 1 << 20
_MERGED_RUNS = 64
"""Number of sorted files that are merged at a time, with a batch of each in memory."""
_WORDS = 500
_SMALL = frozenset({int, float, bool, type(None)})


@config_class
class Iterable:
    """Records that Python code makes: dicts, or batches of rows.

    Each build calls the function once, in the process that starts the build, and copies its records
    to the workspace, in bounded memory. They are identified by content: the same records give the
    same snapshot, and nothing is prepared again. The function's code is not part of the
    fingerprint; the function should return the same records in the same order each time.

    A record is a dict of values: bools, integers, floats, strings, bytes, times with a zone, NumPy
    scalars and arrays, tensors, lists, dicts, or None where a value is missing. A name that some
    records lack is an optional feature. A ``pa.RecordBatch``, a ``pa.Table``, or a frame of pandas
    or Polars stands for its rows.

    Types are those that hold the values of all records: integers among floats are floats. With a
    ``key``, a record's id is ``iterable#<key>`` for integers and ``iterable/<key>#0`` for strings,
    and added records do not move others; otherwise the id is ``iterable#<row>``.

    Attributes:
        records: A function without arguments that returns an iterable of records, such as a
            generator function; or a list or a ``tf.data.Dataset`` of them, unbatched.
        key: The name of a value: a unique integer or string. Records need not be in its order.
        label: The feature to predict. Strings and bools become a ClassLabel; numbers are kept.
        types: Overrides inferred types: ``{"age": "float32"}``, or a feature such as
            ``ss.ClassLabel(("no", "yes"))``. The field of a dict is ``"dict.field"``.
        names: The names of the values, for records that are tuples: ``("image", "label")``.
    """

    records: Any = dataclasses.field(repr=False, compare=False)
    key: str | None = None
    label: str | None = None
    types: Mapping[str, Any] | None = None
    names: tuple[str, ...] | None = None

    media = False

    def __post_init__(self) -> None:
        """Checks the types, and that the records can be read more than once."""
        check_types(self.types)
        kind = type(self.records).__name__
        problem = ""
        if isinstance(self.records, Mapping) or is_frame(self.records):
            problem = ". For a table or a dict of arrays, use ss.Table"
        elif isinstance(self.records, Iterator):
            problem = ". An iterator can be read only once: give the function that returns it"
        elif isinstance(self.records, str | bytes | set | frozenset) or not (
            callable(self.records) or hasattr(self.records, "__iter__")
        ):
            problem = "."
        if problem:
            raise ValueError(
                f"records is a {kind}, expected a function that returns records, or a list of "
                f"dicts{problem}"
            )
        if self.names is not None and len(set(self.names)) < len(self.names):
            raise ValueError(f"names={self.names!r}, expected unique names")

    def extract(self, folder: str, *, base: str, limits: Limits = DEFAULT_LIMITS) -> Source:
        """Copies the records to files in the folder.

        Raises:
            RecipeError: if what the function returns are not records, or the key does not exist.
            SchemaError: if a value cannot be stored, or values of one name have no common type.
            DataError: if the function raises an exception, there are no records, or a key is
                missing or not unique.
        """
        del base, limits
        with storage.scratch_folder(folder.rpartition("/")[0] or ".") as scratch:
            spool = _Spool(os.path.join(scratch, "records.arrows"))
            spool.write(self._batches())
            plain = spool.schema
            if plain is None:
                raise DataError("Iterable: there are no records.")
            if not leaves_of(plain, path="Iterable"):
                raise DataError(
                    'Iterable: the records have no values. Give each at least one, as in {"x": 1}.'
                )
            batches = _led(spool.read())
            unit = "record"
            if self.key is None:
                files = extract_batches(numbered_rows(batches), plain, folder)
            else:
                unit = "key"
                sorted_runs = _SortedRuns(self.key, plain, scratch)
                files = sorted_runs.extract(batches, folder)
        return ExtractedTable(
            folder,
            files=files,
            name=_NAME,
            of="Iterable",
            columns=tuple(plain.names),
            unit=unit,
            label=self.label,
            types=self.types,
        )

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, list[Mapping[str, Any]]]]:
        """Batches in the types of their own values, and the dicts that they were made of."""
        held: list[Mapping[str, Any]] = []
        num_rows = num_bytes = 0
        for record in self._found():
            if isinstance(record, pa.RecordBatch):
                if held:
                    yield _batch_of(held, num_rows), held
                    num_rows, num_bytes, held = num_rows + len(held), 0, []
                if len(record):
                    yield record, []
                num_rows += len(record)
                continue
            held.append(record)
            num_bytes += _size(record)
            if len(held) >= _CHUNK_RECORDS or num_bytes >= _CHUNK_BYTES:
                yield _batch_of(held, num_rows), held
                num_rows, num_bytes, held = num_rows + len(held), 0, []
        if held:
            yield _batch_of(held, num_rows), held

    def _found(self) -> Iterator[Mapping[str, Any] | pa.RecordBatch]:
        """The dicts and the batches that the function yields."""
        number = 0
        records: Any = None
        name = getattr(self.records, "__qualname__", "") or "the iterable"
        try:
            try:
                records = self._records(name)
            except SnapshardError:
                raise
            except Exception as error:
                raise _raised(error, name, 0) from error
            while True:
                try:
                    record = next(records)
                except StopIteration:
                    return
                except SnapshardError:
                    raise
                except Exception as error:
                    raise _raised(error, name, number) from error
                advance()
                if isinstance(record, dict):
                    yield record
                    number += 1
                    continue
                for each in self._rows(record, number):
                    yield each
                    number += len(each) if isinstance(each, pa.RecordBatch) else 1
        finally:
            if hasattr(records, "close"):
                records.close()

    def _records(self, name: str) -> Iterator[Any]:
        records = self.records() if callable(self.records) else self.records
        if is_frame(records):
            records = [records]
        if hasattr(records, "as_numpy_iterator"):  # tf.data.Dataset
            records = records.as_numpy_iterator()
        if isinstance(records, Mapping | str | bytes) or not hasattr(records, "__iter__"):
            raise RecipeError(
                f"Iterable: {name} returns a {type(records).__name__}, expected an iterable of "
                "dicts. Let it yield records."
            )
        return iter(records)

    def _rows(self, record: Any, number: int) -> Iterator[Mapping[str, Any] | pa.RecordBatch]:
        if isinstance(record, Mapping):
            yield record
        elif isinstance(record, pa.RecordBatch) or is_frame(record):
            try:
                schema, batches = table_batches(record)
                plain = plain_schema(schema, path=f"Iterable: record {number:,}")
                yield from (plain_batch(batch, plain) for batch in batches)
            except (pa.ArrowException, TypeError, ValueError, KeyError, OverflowError) as error:
                raise DataError(
                    f"Iterable: record {number:,}, a {type(record).__name__}, cannot be converted "
                    f"to an Arrow table: {error}. Give each column one type and a name of its own."
                ) from None
        elif isinstance(record, tuple | list) and self.names is not None:
            if len(record) != len(self.names):
                raise RecipeError(
                    f"Iterable: record {number:,} has {len(record)} values, but names= has "
                    f"{len(self.names)} names: {', '.join(self.names)}."
                )
            yield dict(zip(self.names, record, strict=True))
        else:
            hint = ""
            if isinstance(record, tuple | list):
                hint = f'. Name its {len(record)} values: names=("image", "label")'
            raise RecipeError(
                f"Iterable: record {number:,} is a {type(record).__name__}, expected a dict, a "
                f"pa.RecordBatch or a table{hint or '.'}"
            )


def _raised(error: Exception, name: str, number: int) -> DataError:
    """The error for an exception of the user's function; it names the record."""
    words = " ".join(redact_repeated(str(error)).split())[:_WORDS]
    return DataError(
        f"Iterable: {name} raised {type(error).__name__}{f': {words}' if words else ''}, at "
        f"record {number:,} (the first is 0). Nothing was published. Fix the function."
    )


def _batch_of(records: Sequence[Mapping[str, Any]], first: int) -> pa.RecordBatch:
    """A batch of dicts; ``first`` is the number of the first one, for errors."""
    try:
        return records_to_batch(records)
    except UnfitValueError as error:
        raise _unfit(records, first, None) or _described(error, None, None) from None


def _unfit(
    records: Sequence[Mapping[str, Any]], first: int, schema: pa.Schema | None
) -> SchemaError | None:
    """The error of the first dict that does not fit those before it."""
    for number, record in enumerate(records, first):
        try:
            own = records_to_batch([record]).schema
            schema = own if schema is None else join_columns(schema, own)
        except UnfitValueError as error:
            return _described(error, record, number)
    return None


def _described(
    error: UnfitValueError, record: Mapping[str, Any] | None, number: int | None
) -> SchemaError:
    where = "" if number is None else f"record {number:,} (the first is 0): "
    shown = ""
    if record is not None:
        top = next(
            (n for n in record if error.name == n or str(error.name).startswith(f"{n}.")), None
        )
        if top is not None and (value := reprlib.repr(record[top])) not in str(error):
            shown = f"; the record has {value}"
    return SchemaError(
        f"Iterable: {where}{error}{shown}. Convert it in the function, so that all values of a "
        "name have one type."
    )


class _Spool:
    """A scratch file of batches, each in its own types, and the types that hold them all."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.schema: pa.Schema | None = None
        """None if there are no rows."""

    def write(self, batches: Iterator[tuple[pa.RecordBatch, list[Mapping[str, Any]]]]) -> None:
        """Writes batches, with the dicts that they were made of, if any.

        Raises:
            SchemaError: if values of one name have no common type.
        """
        first = 0
        with (
            storage.failing_as_storage_error("write", self._path),
            pa.OSFile(self._path, "wb") as sink,
        ):
            for batch, records in batches:
                schema = batch.schema
                try:
                    joined = schema if self.schema is None else join_columns(self.schema, schema)
                except UnfitValueError as error:
                    unfit = _unfit(records, first, self.schema)
                    raise unfit or _described(error, None, first) from None
                if joined != self.schema:
                    plain_schema(joined, path="Iterable")
                    self.schema = joined
                # A stream for each: types may differ.
                with pa.ipc.new_stream(sink, schema) as writer:
                    writer.write_batch(batch)
                first += len(batch)

    def read(self) -> Iterator[pa.RecordBatch]:
        """The batches, in the types that hold them all.

        Raises:
            SchemaError: naming a record with an integer that its float type cannot represent.
        """
        first = 0
        with pa.OSFile(self._path) as source:
            while source.tell() < source.size():
                with pa.ipc.open_stream(source) as reader:
                    for batch in reader:
                        yield self._converted(batch, first)
                        first += len(batch)

    def _converted(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        if batch.schema == self.schema:
            return batch
        try:
            return to_columns(batch, self.schema)
        except UnfitValueError:
            for row in range(len(batch)):
                try:
                    to_columns(batch.slice(row, 1), self.schema)
                except UnfitValueError as error:
                    raise _described(error, None, first + row) from None
            raise


class _SortedRuns:
    """Sorts records by key, in bounded memory: sorted files in a scratch folder, merged."""

    def __init__(self, key: str, schema: pa.Schema, scratch: str) -> None:
        """Checks the key.

        Raises:
            RecipeError: if it is not a column of integers or strings.
        """
        if key not in schema.names:
            raise RecipeError(
                f"Iterable: key names {key!r}, which no record has. The names are "
                f"{', '.join(map(repr, schema.names))}."
            )
        type_ = schema.field(key).type
        self._is_integer = pa.types.is_integer(type_) and not pa.types.is_uint64(type_)
        if not self._is_integer and not (
            pa.types.is_string(type_) or pa.types.is_large_string(type_)
        ):
            raise RecipeError(
                f"Iterable: the key {key!r} is {type_}, expected integers or strings. Name another "
                "value."
            )
        self._key, self._schema, self._scratch = key, schema, scratch
        self._number = itertools.count()

    def extract(self, batches: Iterator[pa.RecordBatch], folder: str) -> tuple[str, ...]:
        """Writes the records in the order of their keys; returns the names of the files.

        Added records change only the files of the ranges that hold their keys.

        Raises:
            DataError: if a key is missing or not unique.
        """
        num_rows, low, high = 0, None, None
        runs: list[str] = []
        for batch in self._sorted(batches):
            num_rows += len(batch)
            keys = batch.column(self._key)
            if self._is_integer:
                first, last = keys[0].as_py(), keys[-1].as_py()
                low = first if low is None else min(low, first)
                high = last if high is None else max(high, last)
            runs.append(self._write(iter([batch])))
        while len(runs) > _MERGED_RUNS:
            merged, runs = runs[:_MERGED_RUNS], runs[_MERGED_RUNS:]
            runs.append(self._write(self._merged(merged)))
            for path in merged:
                os.unlink(path)
        fix = "Name a unique value, or leave out key=."
        rows = keyed(self._merged(runs), self._key, of="Iterable", fix=fix)
        step = None
        if low is not None and high is not None:
            step = range_step(num_rows, low, high)
        return write_ranges(rows, self._schema, folder, step=step)

    def _sorted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with_keys = self._with_keys(batches)
        for some in in_batches(with_keys, lambda batch: batch.nbytes, max_size=_SORT_BYTES):
            yield self._in_order(some)

    def _with_keys(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        num_rows = 0
        for batch in batches:
            keys = batch.column(self._key)
            if keys.null_count:
                row = num_rows + int(np.flatnonzero(keys.is_null())[0])
                raise DataError(
                    f"Iterable: record {row:,} (the first is 0) has no value for the key "
                    f"{self._key!r}. Give each record a unique one."
                )
            num_rows += len(batch)
            yield batch

    def _in_order(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        together = pa.concat_batches(batches)
        return together.take(pc.sort_indices(together.column(self._key)))

    def _write(self, batches: Iterator[pa.RecordBatch]) -> str:
        path = os.path.join(self._scratch, f"sorted-{next(self._number)}.arrow")
        with (
            storage.failing_as_storage_error("write", path),
            pa.OSFile(path, "wb") as sink,
            pa.ipc.new_stream(sink, self._schema) as writer,
        ):
            for batch in batches:
                rows = max(1, _RUN_BATCH_BYTES * len(batch) // max(1, batch.nbytes))
                for start in range(0, len(batch), rows):
                    writer.write_batch(batch.slice(start, rows))
        return path

    def _merged(self, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The records of sorted files in the order of their keys."""
        with contextlib.ExitStack() as closing:
            runs = [
                iter(pa.ipc.open_stream(closing.enter_context(pa.OSFile(path)))) for path in paths
            ]
            heads = dict(enumerate(next(run) for run in runs))
            while heads:
                advance()
                # All records up to this key are in the heads.
                last = min(head.column(self._key)[-1].as_py() for head in heads.values())
                parts = []
                for number, head in list(heads.items()):
                    rows = pc.sum(pc.less_equal(head.column(self._key), last)).as_py()
                    parts.append(head.slice(0, rows))
                    rest = head.slice(rows) if rows < len(head) else next(runs[number], None)
                    if rest is None:
                        del heads[number]
                    else:
                        heads[number] = rest
                parts = [part for part in parts if len(part)]
                yield parts[0] if len(parts) == 1 else self._in_order(parts)


def _led(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, the first batch of 1024 or more: it decides how the rows are divided."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(map(len, held)) >= _LED_ROWS:
            break
    if held:
        yield pa.concat_batches(held)
    yield from batches


def _size(value: Any) -> int:
    """About the bytes of a value."""
    kind = type(value)
    if kind in _SMALL:
        return 8
    if kind is str or kind is bytes:
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], int | float):
            return 8 * len(value)
        return sum(map(_size, value))
    return getattr(value, "nbytes", 8)
