"""Infers features of, and reads, files of Arrow columns in any format.

A file consists of *units* (row groups of Parquet, record batches of Arrow IPC) that are read
separately: a damaged one becomes a reject, and the others are kept. A block's range contains the
units whose first byte is in it. A record's id is ``relative/path#row``, its row number in the file.
:class:`ArrowSource` is the base of the Parquet and Arrow sources.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import pyarrow as pa

from ....schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ....schemas.errors import Reject, SchemaError, SourceChangedError
from ....schemas.features import Feature, Features, Struct, is_encoded, tensor_form
from ....schemas.limits import FREE_BYTES, Limits
from ....schemas.manifest import MAX_LABELS
from ....schemas.recipe import OpenSource
from ...rejects import reject_at
from ...storage.decompress import grows_beyond
from ..bundles import remembered
from ..table_files import (
    INFER_ALL_BYTES,
    READ_UNION,
    UNION,
    check_columns,
    check_types,
    may_be_class,
    no_rows,
    read_ranges,
    types_to_json,
    utf8_texts,
    with_class,
    with_types,
)
from .hive import infer_with_folders, read_with_folders
from .rows import RowReader
from .types import (
    Leaf,
    extract,
    join_schemas,
    join_structs,
    leaf_feature,
    leaves_of,
    missing_leaves,
    nest,
)
from .values import texts

BATCH_ROWS = 1 << 16
"""Maximum number of rows converted at a time."""
BATCH_BYTES = 16 << 20
"""Approximate maximum size of the Arrow columns converted at a time."""

MEDIA_BATCH_BYTES = 2 << 20
"""The same for columns of media files, which grow many times when decoded."""

DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)
"""The exceptions raised for a damaged file."""

_PARQUET_MAGIC, _ARROW_MAGIC = b"PAR1", b"ARROW1"


@dataclasses.dataclass(frozen=True)
class Unit:
    """A part of a file that is read separately."""

    offset: int
    """Offset of its first byte in the file."""
    first_row: int
    num_rows: int | None
    """None if unknown before it is read."""
    folder: str = ""
    """A folder before the path in the ids of its records; empty for none."""


def offset_between(units: Sequence[Unit], row: int, *, num_bytes: int) -> int:
    """The approximate offset of a row in a file, assuming equal sizes within a unit.

    >>> offset_between([Unit(0, 0, 10), Unit(100, 10, 20)], 15, num_bytes=300)
    150
    """
    ends = [*(unit.offset for unit in units[1:]), num_bytes]
    for unit, end in zip(units, ends, strict=False):
        if row < unit.first_row + (unit.num_rows or 0):
            share = (row - unit.first_row) / (unit.num_rows or 1)
            return unit.offset + round((end - unit.offset) * share)
    return num_bytes


class ArrowFile(Protocol):
    """An open file of one format."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of its columns."""

    @property
    def units(self) -> Sequence[Unit]:
        """Its parts, in order."""

    def read(self, unit: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a unit, in batches with at least these columns."""

    def offset_of(self, row: int) -> int:
        """The approximate byte offset of a row."""

    def lacking(self) -> tuple[set[str], set[str]]:
        """Names of leaves that have missing values by the file's statistics, and unknown ones."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrowFormat:
    """A file format: how to open it, and its terms."""

    name: str
    unit: str
    """The term for a unit in messages."""
    open: Callable[[OpenSource, str], ArrowFile]
    """Raises one of DAMAGE if the file has another format or is damaged."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspected:
    """What a file shows when it is opened."""

    file: SourceFile
    schema: pa.Schema
    known: set[str]
    """Names of leaves that have missing values by the file's statistics."""
    unknown: set[str]
    """Names of leaves of which the statistics do not say."""
    texts: list[str] | None
    """The distinct texts of the label; None if there are too many for a class."""
    has_texts: bool
    """Whether they were read."""


class ArrowSource(abc.ABC):
    """A source of files of columns. Subclasses are frozen dataclasses with ``url`` and these."""

    label: str | None
    columns: tuple[str, ...] | Literal["union"] | None = None
    """The columns to read, all if None; ``UNION`` if files may lack some."""
    types: Mapping[str, Any] | None
    hive: bool = False
    """Whether folders named ``key=value`` are columns, too."""

    media = False
    numbered = True
    _remedy = f"Select common columns with columns=. {READ_UNION}"
    """What to do if files have different columns, for the error."""
    _reader: ClassVar[Callable[..., Any]] = RowReader
    """Constructor of the converter of batches, with the arguments of RowReader."""

    def __post_init__(self) -> None:
        """Checks the types."""
        check_types(self.types)

    @property
    @abc.abstractmethod
    def _format(self) -> ArrowFormat: ...

    @property
    def side_urls(self) -> tuple[str, ...]:
        """None."""
        return ()

    @abc.abstractmethod
    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects files of the format, with a glob's suffix, or a single file of any name."""

    def settings(self) -> dict[str, object]:
        """The settings that determine the records and their inferred features, as plain JSON."""
        columns = list(self.columns) if isinstance(self.columns, tuple) else self.columns
        hive = {"hive": True} if self.hive else {}
        types = types_to_json(self.types)
        return hive | {"columns": columns, "label": self.label, "types": types}

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        """Offsets of all units but the first, such as row groups; none for an unreadable file."""
        if file.problem or not file.num_bytes:
            return ()
        try:
            units = self._format.open(opened, file.path).units
        except DAMAGE:
            return ()
        return tuple(sorted({unit.offset for unit in units})[1:])

    def offset_of(self, file: SourceFile, row: int, opened: OpenSource) -> int | None:
        """The approximate byte offset of a row; None if the file is unreadable."""
        try:
            return self._format.open(opened, file.path).offset_of(row)
        except DAMAGE:
            return None

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the rows, from the files' schemas and statistics.

        Without statistics, all rows are read to find the columns with missing values; above
        256 MiB, every nullable column is taken to have some.

        Raises:
            SchemaError: if no file can be read, their columns differ, or one cannot be stored.
            RecipeError: if ``label`` or ``types`` name a column that does not exist.
        """
        if self.hive:
            return infer_with_folders(self, files, opened)
        return self._infer(self._inspect(files, opened), opened)

    def _infer(
        self, inspected: Sequence[Inspected], opened: OpenSource
    ) -> dict[str, Feature | Struct]:
        """The same from what the files show."""
        first = inspected[0]
        label = self._read_label(first.schema)
        paths: dict[pa.Schema, str] = {}
        for each in inspected:
            paths.setdefault(each.schema, each.file.path)
        union = self.columns == UNION
        joined = join_schemas(paths, declared=self.types or {}, union=union, remedy=self._remedy)
        schema = join_structs(paths) if union else first.schema
        check_columns(self._format.name, joined, label=label, types=self.types)
        scan = sum(each.file.num_bytes for each in inspected) <= INFER_ALL_BYTES
        missing = set().union(*(self._missing(each, opened, scan=scan) for each in inspected))
        for other, path in paths.items():
            missing |= joined.keys() - leaves_of(other, path=path).keys()
        inferred = {
            name: leaf_feature(leaf, missing=name in missing) for name, leaf in joined.items()
        }
        features = with_class(
            with_types(inferred, self.types),
            label=label,
            types=self.types,
            texts_of=lambda label: (
                each.texts
                if each.has_texts
                else self._texts_of(each.file, opened, label, self._open_again(opened, each.file))
                for each in inspected
            ),
        )
        return nest(schema, features, path=first.file.path)

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads the units that begin in a block's ranges; ids are ``path#row``.

        Raises:
            SchemaError: if a file lacks the column of a feature, or the type is incompatible.
        """
        if self.hive:
            yield from read_with_folders(
                self, block, features=features, opened=opened, ordered=ordered
            )
            return
        yield from read_ranges(
            block,
            ordered,
            features=features,
            read=lambda part: self._read_file(part, features, opened),
        )

    def _read_file(
        self, part: FileRange, features: Features, opened: OpenSource
    ) -> Iterator[RawBatch]:
        try:
            file = self._format.open(opened, part.path)
            schema = self._chosen(file.schema, part.path)
            leaves = leaves_of(schema, path=part.path)  # raises if names are not text
            units = file.units
        except DAMAGE as error:
            yield no_rows(features, self._damaged_file(part, error))
            return
        absent: dict[str, Feature] = {}
        if self.columns == UNION:
            there = {*leaves, *schema.names}
            absent = {name: f for name, f in features.items() if name not in there}
        complete = _with_absent(schema, absent)
        reader = self._reader(complete, features, path=part.path)  # raises if a column is missing
        columns = _columns_of(
            schema, [name for name in features if name not in absent], path=part.path
        )
        columns = columns or schema.names[:1]  # which counts the rows
        decoded = _Decoded(part.stop - part.start, opened.limits.max_expansion)
        media = any(map(is_encoded, features.values()))
        batch_bytes = MEDIA_BATCH_BYTES if media else BATCH_BYTES
        for index, unit in enumerate(units):
            if not part.start <= unit.offset < part.stop:
                continue
            row = unit.first_row
            batches = decoded.counting(_batches(file, index, columns, num_bytes=batch_bytes))
            for batch in _readable(batches, unit):
                if isinstance(batch, str):
                    yield no_rows(features, self._damaged(part, index, row, unit, batch))
                    continue
                every = _all_columns(batch, complete, absent=absent)
                read = reader.read(every, np.arange(row, row + len(batch)))
                yield _in_folder(read, unit.folder) if unit.folder else read
                row += len(batch)

    def _chosen(self, schema: pa.Schema, path: str) -> pa.Schema:
        """The columns to read."""
        if self.columns is None or isinstance(self.columns, str):
            return schema
        missing = [name for name in self.columns if name not in schema.names]
        if missing:
            raise SchemaError(
                f"{path} has no column {', '.join(map(repr, missing))}, which columns= names; it "
                f"has {', '.join(map(repr, schema.names))}. Fix columns= in the recipe."
            )
        chosen = [field for field in schema if field.name in self.columns]
        return pa.schema(chosen, metadata=schema.metadata)

    def _read_label(self, schema: pa.Schema) -> str | None:
        """The label if its classes are found in the rows, not in the metadata of this schema."""
        return self.label

    def _inspect(self, files: Sequence[SourceFile], opened: OpenSource) -> list[Inspected]:
        """What files show when they are opened, each of them once."""
        inspected: list[Inspected] = []
        why = "all are empty"
        label, leaves = None, dict[str, Leaf]()
        for file in files:
            if file.problem:
                why = f"{file.path}: {file.problem}"
            if file.problem or not file.num_bytes:
                continue
            try:
                arrow = self._format.open(opened, file.path)
                schema = self._chosen(arrow.schema, file.path)
                if not inspected or not schema.equals(inspected[-1].schema):
                    leaves = leaves_of(schema, path=file.path)  # raises if names are not text
            except DAMAGE as error:
                why = f"{file.path}: {_why_damaged(error, file, opened)}"
                continue
            if not inspected:
                label = self._read_label(schema)
            known, unknown = _lacking(arrow)
            texts, has_texts = None, label in leaves and self._may_be_class(leaves[label])
            if label is not None and has_texts:
                texts = self._texts_of(file, opened, label, arrow)
                if texts is None:
                    label = None  # it has too many values for a class
            inspected.append(
                Inspected(
                    file=file,
                    schema=schema,
                    known=known & leaves.keys(),
                    unknown=unknown & leaves.keys(),
                    texts=texts,
                    has_texts=has_texts,
                )
            )
        if not inspected:
            raise SchemaError(
                f"{self._format.name}: none of {len(files):,} files can be read ({why}). Copy or "
                "create them again, or correct the source in the recipe."
            )
        return inspected

    def _may_be_class(self, label: Leaf) -> bool:
        """Whether the label becomes a class if it has few values, by one file's type of it."""
        types = {name: kind for name, kind in (self.types or {}).items() if name == label.name}
        feature = with_types({label.name: leaf_feature(label, missing=False)}, types)[label.name]
        return may_be_class(feature, types.get(label.name))

    def _open_again(self, opened: OpenSource, file: SourceFile) -> ArrowFile:
        """Opens a file that could be opened before.

        Raises:
            SourceChangedError: if it cannot be opened: other bytes are there now.
        """
        try:
            return self._format.open(opened, file.path)
        except DAMAGE:
            raise SourceChangedError.of(file.path) from None

    def _missing(self, inspected: Inspected, opened: OpenSource, *, scan: bool) -> set[str]:
        """Names of the leaves with missing values. Without a scan, includes unknown ones."""
        known, unknown, file = inspected.known, inspected.unknown, inspected.file
        if not scan or not unknown:
            return known | unknown

        def look() -> list[str]:
            arrow = self._open_again(opened, file)
            schema = self._chosen(arrow.schema, file.path)
            leaves = leaves_of(schema, path=file.path)
            columns = list(dict.fromkeys(schema.names[leaves[n].column] for n in unknown))
            found = set[str]()
            for batch in _whole(arrow, columns, num_bytes=file.num_bytes, limits=opened.limits):
                read = pa.RecordBatch.from_arrays(
                    [batch.column(name) for name in columns], names=columns
                )
                found |= missing_leaves(read, path=file.path)
            return sorted(found & leaves.keys())

        return known | set(remembered(opened, file.sha256, "missing", look))

    def _texts_of(
        self, file: SourceFile, opened: OpenSource, label: str, arrow: ArrowFile
    ) -> list[str] | None:
        """The distinct texts of the label in all rows; None if too many for a class."""

        def look() -> list[str] | None:
            leaves = leaves_of(arrow.schema, path=file.path)
            if label not in leaves and self.columns == UNION:
                return []
            leaf = leaves[label]
            name = arrow.schema.names[leaf.column]
            distinct: set[bytes] = set()
            for batch in _whole(arrow, [name], num_bytes=file.num_bytes, limits=opened.limits):
                values = texts(extract(batch.column(name), leaf).values)
                distinct.update(values.cast(pa.large_binary()).unique().drop_null().to_pylist())
                if len(distinct) > MAX_LABELS:
                    return None
            return utf8_texts(distinct)

        return remembered(opened, file.sha256, "classes", look)

    def _damaged_file(self, part: FileRange, error: BaseException) -> Reject:
        return reject_at(
            part.path,
            None,
            stage="read",
            reason="damaged file",
            message=f"{part.path} cannot be read: {_first_line(str(error))}; expected "
            f"{self._format.name}. Copy or create it again, or remove it from the source.",
            exception=type(error).__name__,
        )

    def _damaged(self, part: FileRange, index: int, row: int, unit: Unit, found: str) -> Reject:
        lost, num_rows = "all rows that follow", 1
        if unit.num_rows is not None:
            num_rows = unit.first_row + unit.num_rows - row
            lost = f"{num_rows:,} rows"
        reject = reject_at(
            part.path,
            row,
            stage="read",
            reason=f"damaged {self._format.unit}",
            message=f"{part.path} row {row}: {self._format.unit} {index} is damaged "
            f"({found}): {lost} are lost. Copy or create the file again, or raise max_rejects to "
            "do without them.",
        )
        return dataclasses.replace(reject, num_records=max(1, num_rows))


def _lacking(file: ArrowFile) -> tuple[set[str], set[str]]:
    try:
        return file.lacking()
    except DAMAGE:
        return set(), set()  # the read of its block reports the damage


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200] or "no reason given"


def _columns_of(schema: pa.Schema, features: Iterable[str], *, path: str) -> list[str]:
    """The columns of the features."""
    leaves = leaves_of(schema, path=path)
    names = schema.names
    # A feature named after a column that is not a leaf uses the entire column.
    return list(
        dict.fromkeys(
            names[leaves[name].column] if name in leaves or name not in names else name
            for name in features
        )
    )


def _in_folder(batch: RawBatch, folder: str) -> RawBatch:
    """A batch whose ids begin with a folder."""
    rejects = (
        dataclasses.replace(reject, record_id=f"{folder}/{reject.record_id}")
        for reject in batch.rejects
    )
    ids = [f"{folder}/{record_id}" for record_id in batch.ids]
    return dataclasses.replace(batch, ids=ids, rejects=tuple(rejects))


def _with_absent(schema: pa.Schema, absent: Features) -> pa.Schema:
    """A schema with columns that its file lacks, of types that the features accept."""
    if not absent:
        return schema
    fields = list(schema)
    for name, feature in absent.items():
        form = tensor_form(feature)
        type_ = pa.binary() if form is None else pa.null()
        for _ in () if form is None else form.shape:
            type_ = pa.list_(type_)
        fields.append(pa.field(name, type_))
    return pa.schema(fields, metadata=schema.metadata)


def _all_columns(
    batch: pa.RecordBatch, schema: pa.Schema, *, absent: Collection[str]
) -> pa.RecordBatch:
    """A batch of some columns, extended to the full schema with null columns.

    Those that the file lacks have the type of the schema.
    """
    if batch.schema.names == schema.names:
        return batch
    arrays = [
        batch.column(field.name)
        if field.name in batch.schema.names
        else pa.nulls(len(batch), field.type if field.name in absent else pa.null())
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


def _batches(
    file: ArrowFile, unit: int, columns: Sequence[str], *, num_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """The rows of a unit in batches of bounded size."""
    for batch in file.read(unit, columns):
        row_bytes = max(1, batch.nbytes // max(1, len(batch)))
        rows = max(1, min(BATCH_ROWS, num_bytes // row_bytes))
        for start in range(0, len(batch), rows):
            yield batch.slice(start, rows)


def _readable(batches: Iterator[pa.RecordBatch], unit: Unit) -> Iterator[pa.RecordBatch | str]:
    """The batches of a unit, up to damage, which is described last."""
    num_rows = 0
    while True:
        try:
            batch = next(batches, None)
        except DAMAGE as error:
            yield _first_line(str(error))
            return
        if batch is None:
            break
        num_rows += len(batch)
        if unit.num_rows is not None and num_rows > unit.num_rows:
            # They would have the ids of other rows.
            yield f"it holds more than {unit.num_rows:,} rows"
            return
        yield batch
    if unit.num_rows is not None and num_rows < unit.num_rows:
        yield f"it holds {num_rows:,} rows"


class _Decoded:
    """Counts the decoded bytes of a file, and limits its expansion."""

    def __init__(self, num_bytes: int, max_expansion: int) -> None:
        self._max_expansion = max_expansion
        self._left = max(FREE_BYTES, num_bytes * max_expansion)

    def counting(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, up to the limit.

        Raises:
            ValueError: instead of the first batch that exceeds the limit.
        """
        for batch in batches:
            self._left -= batch.nbytes
            if self._left < 0:
                raise ValueError(f"it {grows_beyond(self._max_expansion)}")
            yield batch


def _whole(
    file: ArrowFile, columns: Sequence[str], *, num_bytes: int, limits: Limits
) -> Iterator[pa.RecordBatch]:
    """All readable rows of a file. The read of its blocks reports damage."""
    decoded = _Decoded(num_bytes, limits.max_expansion)
    for unit in range(len(file.units)):
        try:
            yield from decoded.counting(_batches(file, unit, columns))
        except DAMAGE:
            continue


def _why_damaged(error: Exception, file: SourceFile, opened: OpenSource) -> str:
    """Why a file cannot be opened. Parquet and Arrow files end with the magic they begin with."""
    head = opened.read(file.path, 0, len(_ARROW_MAGIC))
    for magic, kind in ((_PARQUET_MAGIC, "Parquet"), (_ARROW_MAGIC, "Arrow")):
        tail = opened.read(file.path, max(0, file.num_bytes - len(magic)), file.num_bytes)
        if head.startswith(magic) and tail != magic:
            return (
                f"truncated: it begins as {kind} files do and has {file.num_bytes:,} bytes, "
                "without the footer that states the expected size"
            )
    return _first_line(str(error))
