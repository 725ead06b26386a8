"""Writes and reads records that are extracted to the workspace.

They are in Arrow IPC files named by content hash. Each row has a position, its row number or key,
in an extra column. A record's id is ``<name>#<position>``, or ``<name>/<key>#0`` if keys are texts,
so ids do not depend on how rows are divided into files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ...schemas.config import config_class
from ...schemas.errors import DataError, PlaceError, RecipeError, Reject, SchemaError
from ...schemas.features import Features, features_from_json
from ...schemas.limits import Limits
from ...schemas.naming import join
from ...schemas.recipe import OpenSource
from .. import storage
from ..activity import advance
from ..rejects import WRONG_TYPE, reject_at, with_row
from ..runs.keys import text_keys
from ..storage import git_lfs
from ..storage.opened_source import open_source
from ..storage.read_files import open_for_arrow
from .arrow.files import DAMAGE
from .arrow.hugging_face import class_names, classes_by_leaf, with_column_types
from .arrow.ipc import Arrow
from .arrow.rows import RowReader
from .arrow.types import leaves_of
from .table_files import check_columns, types_to_json

POSITION = "snapshard.position"
"""The extra column of positions: int64, or the texts of keys."""
PROBLEM = "snapshard.problem"
"""An optional column of texts: why the row is a reject, or null."""

FILE_BYTES = 64 << 20
"""Approximate size of the Arrow columns in a file."""
BATCH_BYTES = 4 << 20
"""Approximate size of a record batch."""

RANGE_ROWS = 1 << 17
"""Approximate rows in a key range; at most twice as many if keys are evenly spaced."""

_MAX_STEP = 1 << 62
_BATCH_ROWS = 1 << 16
_SAMPLED_ROWS = 1024
_COMPARED_BYTES = 16 << 20
_CHUNK_BYTES = 4 << 20
_HEAD_BYTES = 512


@config_class
class ExtractedTable:
    """Rows that were extracted to files.

    Attributes:
        url: The folder of the workspace with these and other extracted files.
        files: Names of the files, in order.
        name: The origin of the rows, for ids and messages: ``query`` or ``table``.
        of: The class of the source, for messages.
        columns: The columns of the records.
        unit: The unit of positions, for messages: ``row`` or ``key``.
        label: The label of the source.
        types: The types of the source, and other known types of columns.
        specs: The column types of a Hugging Face dataset.
        notes: How columns are read that have no name, a line each.
    """

    url: str
    files: tuple[str, ...]
    name: str
    of: str
    columns: tuple[str, ...]
    unit: str = "row"
    label: str | None = None
    types: Mapping[str, Any] | None = None
    specs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    media = False
    numbered = True
    side_urls = ()

    def to_json(self) -> dict[str, object]:
        """Plain JSON without the folder, which :meth:`from_json` reads."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        types = None if self.types is None else types_to_json(self.types)
        return {**plain, "url": "", "types": types, "specs": dict(self.specs)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, folder: str) -> ExtractedTable:
        """Reads the output of :meth:`to_json`, for files in this folder."""
        types = value["types"]
        if types is not None:
            types = {
                name: kind if isinstance(kind, str) else features_from_json({name: kind})[name]
                for name, kind in types.items()
            }
        lists = {name: tuple(value[name]) for name in ("files", "columns", "notes")}
        return cls(**{**value, **lists, "url": folder, "types": types})

    def settings(self) -> dict[str, object]:
        """The settings that determine the records, as plain JSON, for the fingerprint."""
        return {
            "columns": list(self.columns),
            "label": self.label,
            "name": self.name,
            "of": self.of,
            "specs": dict(self.specs),
            "types": types_to_json(self.types),
        }

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects its own files."""
        own = set(self.files)
        return Selection(files=tuple(f for f in files if f.path in own), num_skipped={})

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        """Offsets of record batches."""
        return self._arrow().cuts(file, opened, every=every)

    def offset_of(self, file: SourceFile, row: int, opened: OpenSource) -> None:
        """None: the location of a position is unknown."""
        del file, row, opened

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the columns, inferred as for Arrow files.

        Raises:
            SchemaError: if a column cannot be stored.
            RecipeError: if ``label`` or ``types`` name a column that does not exist.
        """
        if files:
            with _opened(opened, files[0].path) as reader:
                names = leaves_of(_of_records(reader.schema), path=f"the {self.name}")
            check_columns(self.of, names, label=self.label, types=self.types)
        is_class = class_names(self.specs.get(self.label or "")) is not None
        arrow = dataclasses.replace(self._arrow(), label=None if is_class else self.label)
        inferred: Mapping[str, Any] = arrow.infer(files, opened)
        return with_column_types(inferred, self.specs, declared=self.types or {})

    def named_numbers(self, files: Sequence[SourceFile], opened: OpenSource) -> Set[str]:
        """The features whose classes are in the metadata."""
        del files, opened
        return {*classes_by_leaf(self.specs)}

    def remarks(self, files: Sequence[SourceFile], opened: OpenSource) -> Sequence[str]:
        """See :attr:`notes`."""
        del files, opened
        return self.notes

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads the record batches that begin in a block's ranges; ids are ``name#position``.

        Raises:
            PlaceError: if a file is damaged.
        """
        for index in ordered:
            part = block.ranges[index]
            try:
                yield from self._read_part(part, features, opened)
            except DAMAGE as error:
                raise PlaceError(
                    f"{join(self.url, part.path)}, an extracted file of the {self.name}, cannot be "
                    f"read ({error or type(error).__name__}). Delete it, and start the build "
                    "again: finished work is kept."
                ) from None

    def _read_part(
        self, part: FileRange, features: Features, opened: OpenSource
    ) -> Iterator[RawBatch]:
        if part.problem:
            raise ValueError(part.problem)
        file = SourceFile(path=part.path, num_bytes=1, stamp="")
        offsets = (0, *self.cuts(file, opened, every=0))
        with _opened(opened, part.path) as reader:
            schema = _of_records(reader.schema)
            rows = RowReader(
                schema,
                features,
                path=self.name,
                unit=self.unit,
                classes=classes_by_leaf(self.specs),
            )
            for number, offset in zip(range(reader.num_record_batches), offsets, strict=True):
                if part.start <= offset < part.stop:
                    yield self._read_batch(reader.get_batch(number), rows)

    def _read_batch(self, batch: pa.RecordBatch, rows: RowReader) -> RawBatch:
        rejects = []
        if PROBLEM in batch.schema.names:
            problems = batch.column(PROBLEM)
            bad_rows = batch.filter(problems.is_valid())
            rejects = [
                with_row(self._reject(position, problem), bad_rows, row)
                for row, (position, problem) in enumerate(
                    zip(
                        bad_rows.column(POSITION).to_pylist(),
                        bad_rows.column(PROBLEM).cast(pa.large_binary()).to_pylist(),
                        strict=True,
                    )
                )
            ]
            batch = batch.filter(problems.is_null())
        positions = batch.column(POSITION)
        records = batch.select(_of_records(batch.schema).names)
        if not pa.types.is_integer(positions.type):
            return self._with_texts(rows.read(records, np.arange(len(batch))), positions)
        read = rows.read(records, positions.to_numpy())
        return dataclasses.replace(read, rejects=(*rejects, *read.rejects))

    def _with_texts(self, read: RawBatch, keys: pa.Array) -> RawBatch:
        """A batch whose ids have row numbers, with the keys of these rows instead."""
        texts = keys.to_pylist()
        ids = [f"{self.name}/{texts[int(each.rpartition('#')[2])]}#0" for each in read.ids]
        rejects = []
        for reject in read.rejects:
            key = texts[reject.position or 0]
            message = reject.message.removeprefix(f"{self.name} {self.unit} {reject.position}: ")
            rejects.append(
                dataclasses.replace(
                    reject,
                    record_id=f"{self.name}/{key}#0",
                    source=f"{self.name}/{key}",
                    position=0,
                    message=f"{self.name} {self.unit} {key!r}: {message}",
                )
            )
        return dataclasses.replace(read, ids=ids, rejects=tuple(rejects))

    def _reject(self, position: int, problem: bytes) -> Reject:
        return reject_at(
            self.name,
            position,
            stage="read",
            reason=WRONG_TYPE,
            message=f"{self.name} {self.unit} {position}: {_shortened(problem)}. Fix "
            "the value, declare the column in types=, or raise max_rejects to quarantine such "
            "rows.",
        )

    def _arrow(self) -> Arrow:
        return Arrow(self.url, label=self.label, columns=self.columns, types=self.types)


def _shortened(problem: bytes) -> str:
    """A finding, with the middle of a long value left out."""
    text = problem.decode(errors="replace")
    return text if len(text) <= 300 else f"{text[:150]} … {text[-100:]}"


def import_extra(module: str, *, of: str, extra: str) -> Any:
    """A module of a package that an extra installs.

    Raises:
        RecipeError: if it is not installed; ``of`` is what needs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise RecipeError(
            f"{of} needs the package {package}, which is not installed ({error}). Run: pip install "
            f'"snapshard[{extra}]"'
        ) from None


@contextlib.contextmanager
def local_file(
    url: str, *, of: str, base: str, limits: Limits, near: str
) -> Iterator[tuple[str, str]]:
    """The path of a source's single file on this machine, and its name for messages.

    A file in an archive or a store is copied to a scratch folder.

    Args:
        url: Any fsspec URL.
        of: The class of the source, for messages.
        base: The recipe's folder.
        limits: Limits on what the file may request.
        near: Where the scratch folder is.

    Raises:
        RecipeError: if it does not exist or is not a single file.
        DataError: if it is empty, or a pointer of Git LFS.
        SourceChangedError: if it changed before the body ended.
        StorageError: if it cannot be read.
    """
    opened = open_source(url, base, limits)
    if not opened.single:
        raise RecipeError(
            f"{of}: {opened.shown} is a folder, a glob or an archive, expected one file. Name the "
            "file, and combine several by ss.Sources(a=…, b=…)."
        )
    opened = opened.proving([])
    head = opened.read(opened.single, 0, _HEAD_BYTES)
    if git_lfs.is_pointer(head):
        raise git_lfs.refusal(opened.shown)
    if not head:
        raise DataError(f"{of}: {opened.shown} is empty.")
    try:
        if opened.local:
            yield opened.full_path(opened.single), opened.shown
        else:
            with storage.scratch_folder(near) as scratch:
                path = os.path.join(scratch, os.path.basename(opened.single))
                chunks = opened.chunks(opened.single, chunk_bytes=_CHUNK_BYTES)
                with storage.failing_as_storage_error("write", path), open(path, "wb") as file:
                    file.writelines(chunks)
                yield path, opened.shown
    finally:
        opened.check()


def extract_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, folder: str
) -> tuple[str, ...]:
    """Writes rows and their positions to files named by content hash.

    Args:
        batches: Batches of any size and of this schema, with a last column of positions.
        schema: The schema of the batches without that column.
        folder: The folder of the files. Existing files are not written again.

    Returns:
        The names of the files, in the order of the rows; empty if there are no rows.

    Raises:
        StorageError: if a file cannot be written.
    """
    names = []
    with storage.scratch_folder(folder.rpartition("/")[0] or ".") as scratch:
        path = os.path.join(scratch, "extracted.arrow")
        bounded = _rebatched(batches)
        first = next(bounded, None)
        while first is not None:
            num_bytes, batch = 0, first
            schema = _with_position(schema, batch.schema.field(POSITION).type)
            with (
                storage.failing_as_storage_error("write", path),
                pa.OSFile(path, "wb") as sink,
                pa.ipc.new_file(sink, schema) as writer,
            ):
                while batch is not None:
                    writer.write_batch(batch)
                    num_bytes += batch.nbytes
                    if num_bytes >= FILE_BYTES:
                        break
                    batch = next(bounded, None)
            names.append(_put(path, folder))
            first = next(bounded, None)
    return tuple(names)


def range_step(num_rows: int, low: int, high: int) -> int:
    """The width of key ranges: a power of two that depends on the density of keys.

    This keeps the ranges unchanged when rows are appended.

    >>> range_step(1_000_000, 1, 1_000_000)
    131072
    >>> range_step(2_000_000, 1, 2_000_000)
    131072
    """
    step = 1
    while step < _MAX_STEP and step * num_rows < RANGE_ROWS * (high - low + 1):
        step *= 2
    return step


def write_ranges(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, folder: str, *, step: int | None
) -> tuple[str, ...]:
    """Writes rows in the order of their positions, each range of positions to separate files.

    Args:
        batches: Batches with a last column of positions, ascending.
        schema: The schema of the batches without that column.
        folder: The folder of the files.
        step: The width of the ranges, from :func:`range_step`; None if positions are texts.

    Returns:
        The names of the files, in the order of the rows.
    """
    parts = _cut_by_hash(batches) if step is None else _cut(batches, step)
    names: list[str] = []
    for _, group in itertools.groupby(parts, key=lambda part: part[0]):
        names += extract_batches((batch for _, batch in group), schema, folder)
    return tuple(names)


def _cut(batches: Iterable[pa.RecordBatch], step: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in batches:
        ranges = batch.column(batch.num_columns - 1).to_numpy() // step
        ends = (np.flatnonzero(ranges[1:] != ranges[:-1]) + 1).tolist()
        for start, stop in itertools.pairwise([0, *ends, len(batch)]):
            yield int(ranges[start]), batch.slice(start, stop - start)


def _cut_by_hash(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches cut into ranges that begin at keys chosen by hash: added keys move no others."""
    number = 0
    for batch in batches:
        keys = batch.column(batch.num_columns - 1).cast(pa.large_binary()).to_pylist()
        starts = np.flatnonzero(text_keys(keys, 0) % np.uint64(RANGE_ROWS) == 0).tolist()
        for start, stop in itertools.pairwise([0, *starts, len(batch)]):
            number += start in starts
            if start < stop:
                yield number, batch.slice(start, stop - start)


def numbered_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches with row numbers as positions."""
    row = 0
    for batch in batches:
        yield with_positions(batch, pa.array(np.arange(row, row + len(batch))))
        row += len(batch)


def keyed(
    batches: Iterable[pa.RecordBatch], key: str, *, of: str, fix: str
) -> Iterator[pa.RecordBatch]:
    """Batches with the values of a column, by which they are sorted, as positions.

    Raises:
        DataError: if two rows have the same key. The error begins with ``of`` and ends with
            ``fix``.
    """
    last: Any = None
    for batch in filter(len, batches):
        keys = batch.column(key)
        twice = pc.index(pc.equal(keys[1:], keys[:-1]), True).as_py()
        if keys[0].as_py() == last or twice >= 0:
            value = last if keys[0].as_py() == last else keys[twice].as_py()
            raise DataError(
                f"{of}: the key {key!r} is {value!r} in several records, expected one. {fix}"
            )
        last = keys[-1].as_py()
        yield with_positions(batch, keys)


def with_positions(batch: pa.RecordBatch, positions: pa.Array) -> pa.RecordBatch:
    """A batch with its positions: integers, or texts, each without missing values."""
    if pa.types.is_integer(positions.type):
        positions = positions.cast(pa.int64())
    schema = _with_position(batch.schema, positions.type)
    return pa.RecordBatch.from_arrays([*batch.columns, positions], schema=schema)


def plain_schema(schema: pa.Schema, *, path: str) -> pa.Schema:
    """A schema without dictionaries, of which an IPC file allows only one for each column.

    Raises:
        SchemaError: if a column has a duplicate or reserved name, or an unsupported type.
    """
    leaves_of(schema, path=path)
    for name in (POSITION, PROBLEM):
        if name in schema.names:
            raise SchemaError(f"{path} has a column named {name!r}. Rename it.")
    fields = [pa.field(field.name, _decoded(field.type)) for field in schema]
    return pa.schema(fields)


def plain_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch converted to a schema from :func:`plain_schema`."""
    pairs = zip(batch.columns, schema, strict=True)
    columns = [_plain_column(column, field.type) for column, field in pairs]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain_column(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        # Arrow cannot decode a dictionary of views.
        values = column.dictionary.cast(type_)
        return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
    return column if column.type == type_ else column.cast(type_)


def _decoded(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return _decoded(type_.value_type)
    # Views may share their texts with other rows: the same texts in different bytes.
    if pa.types.is_string_view(type_) or pa.types.is_binary_view(type_):
        return pa.large_string() if pa.types.is_string_view(type_) else pa.large_binary()
    if isinstance(type_, pa.BaseExtensionType):
        return type_.storage_type
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _decoded(f.type)) for f in type_])
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_decoded(type_.value_type), type_.list_size)
    if pa.types.is_list(type_):
        return pa.list_(_decoded(type_.value_type))
    if pa.types.is_large_list(type_):
        return pa.large_list(_decoded(type_.value_type))
    return type_


def _rebatched(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about BATCH_BYTES."""
    held: list[pa.RecordBatch] = []
    num_rows, num_bytes, wanted = 0, 0, 0
    for batch in batches:
        advance()
        if not len(batch):
            continue
        if not wanted:
            head = batch.slice(0, _SAMPLED_ROWS)
            wanted = max(1, min(_BATCH_ROWS, BATCH_BYTES * len(head) // max(1, head.nbytes)))
        start = 0
        while start < len(batch):
            part = batch.slice(start, wanted - num_rows)
            while len(part) > 1 and part.nbytes > BATCH_BYTES:
                part = part.slice(0, len(part) // 2)
            start += len(part)
            held.append(part)
            num_rows, num_bytes = num_rows + len(part), num_bytes + part.nbytes
            if num_rows >= wanted or num_bytes >= BATCH_BYTES:
                yield pa.concat_batches(held)
                held, num_rows, num_bytes = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _put(path: str, folder: str) -> str:
    with open(path, "rb") as file:
        name = f"{hashlib.file_digest(file, 'sha256').hexdigest()[:32]}.arrow"
    url = join(folder, name)
    if not _is_same_file(path, url):
        storage.put_file(path, url)
    return name


def _is_same_file(path: str, url: str) -> bool:
    """Whether the file already exists with the content of a local one.

    Its name does not reveal damage: the hash cache identifies an extracted file by its time.
    """
    size = os.path.getsize(path)
    if not storage.exists(url) or storage.num_bytes(url) != size:
        return False
    with open(path, "rb") as file:
        return all(
            storage.read_bytes(url, start, min(size, start + _COMPARED_BYTES))
            == file.read(_COMPARED_BYTES)
            for start in range(0, size, _COMPARED_BYTES)
        )


def _opened(opened: OpenSource, path: str) -> Any:
    return pa.ipc.open_file(open_for_arrow(opened, path))


def _with_position(schema: pa.Schema, type_: pa.DataType) -> pa.Schema:
    fields = [field for field in schema if field.name != POSITION]
    return pa.schema([*fields, pa.field(POSITION, type_, nullable=False)])


def _of_records(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in (POSITION, PROBLEM)])
