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
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

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
from ..bundles import SMALL_BYTES, remembered
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
            texts_of=lambda label: (self._label_texts(each, opened, label) for each in inspected),
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
        reader = _BlockReader(self, features, opened)
        yield from read_ranges(
            block,
            ordered,
            features=features,
            read=reader.read,
            small=reader.small,
            together=reader.together,
            read_small=reader.read_small,
        )

    def layout(self, schema: pa.Schema, features: Features, *, path: str) -> Layout:
        """The columns of a file's schema that the features are read from.

        Raises:
            SchemaError: if the name of a column is not text.
            RecipeError: if ``columns`` names one that does not exist.
        """
        schema = self._chosen(schema, path)
        leaves = leaves_of(schema, path=path)
        absent: dict[str, Feature] = {}
        if self.columns == UNION:
            there = {*leaves, *schema.names}
            absent = {name: f for name, f in features.items() if name not in there}
        names = [name for name in features if name not in absent]
        return Layout(
            schema=_with_absent(schema, absent),
            absent=absent,
            # One column counts the rows.
            columns=_columns_of(schema, leaves, names) or schema.names[:1],
        )

    def converter(self, layout: Layout, features: Features, *, path: str) -> Any:
        """What converts the batches of a file.

        Raises:
            SchemaError: if a column is missing, or has a type that its feature cannot store.
        """
        return self._reader(layout.schema, features, path=path)

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
        label, leaves, has_texts = None, dict[str, Leaf](), False
        for file in files:
            if file.problem:
                why = f"{file.path}: {file.problem}"
            if file.problem or not file.num_bytes:
                continue
            try:
                arrow = self._format.open(opened, file.path)
                schema = self._chosen(arrow.schema, file.path)
                differs = not inspected or not schema.equals(inspected[-1].schema)
                if differs:
                    leaves = leaves_of(schema, path=file.path)  # raises if names are not text
            except DAMAGE as error:
                why = f"{file.path}: {_why_damaged(error, file, opened)}"
                continue
            if not inspected:
                label = self._read_label(schema)
            if differs:
                has_texts = label in leaves and self._may_be_class(leaves[label])
            known, unknown = _lacking(arrow)
            texts = None
            if label is not None and has_texts:
                leaf = leaves[label]
                column = schema.names[leaf.column]
                texts = _texts_of(arrow, file, opened, column=column, leaf=leaf)
                if texts is None:
                    label = None  # nor need other files be read
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

    def _label_texts(
        self, inspected: Inspected, opened: OpenSource, label: str
    ) -> list[str] | None:
        """The distinct texts of the label in all rows of a file; None if too many for a class."""
        if inspected.has_texts:
            return inspected.texts
        file = inspected.file
        arrow = self._open_again(opened, file)
        leaf = leaves_of(arrow.schema, path=file.path).get(label)
        if leaf is None:
            return []
        column = arrow.schema.names[leaf.column]
        return _texts_of(arrow, file, opened, column=column, leaf=leaf)


def _texts_of(
    arrow: ArrowFile, file: SourceFile, opened: OpenSource, *, column: str, leaf: Leaf
) -> list[str] | None:
    """The distinct texts of the label, a leaf of a column; None if too many for a class."""

    def look() -> list[str] | None:
        distinct: set[bytes] = set()
        for batch in _whole(arrow, [column], num_bytes=file.num_bytes, limits=opened.limits):
            values = texts(extract(batch.column(column), leaf).values)
            distinct.update(values.cast(pa.large_binary()).unique().drop_null().to_pylist())
            if len(distinct) > MAX_LABELS:
                return None
        return utf8_texts(distinct)

    return remembered(opened, file.sha256, "classes", look)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How the columns of a file become features."""

    schema: pa.Schema
    """With the columns that only other files have."""
    absent: Features
    """Features of which the file has no column."""
    columns: Sequence[str]
    """Names of the columns to read."""


class _SmallFile(NamedTuple):
    """The rows of a small file, which are converted together with those of others."""

    part: FileRange
    layout: Layout
    batches: Sequence[tuple[Unit, int, pa.RecordBatch]]
    """Each with its unit and the row that it begins with."""


class _BlockReader:
    """Reads the files of a block, most of which have the same schema."""

    def __init__(self, source: ArrowSource, features: Features, opened: OpenSource) -> None:
        self._source, self._features, self._opened = source, features, opened
        self._format = source._format
        self._known: tuple[pa.Schema, Layout] | None = None
        media = any(map(is_encoded, features.values()))
        self._batch_bytes = MEDIA_BATCH_BYTES if media else BATCH_BYTES

    def read(self, part: FileRange) -> Iterator[RawBatch]:
        """The records of a file, batch by batch, with a reject for each unit that is damaged."""
        try:
            file, layout = self._open(part)
            units = file.units
        except DAMAGE as error:
            yield no_rows(self._features, self._damaged_file(part, error))
            return
        converter = self._source.converter(layout, self._features, path=part.path)
        for index, unit, row, batch in self._batches(part, file, layout, units):
            if isinstance(batch, str):
                yield no_rows(self._features, self._damaged(part, index, row, unit, batch))
            else:
                yield _convert(converter, layout, unit, row, batch)

    def small(self, part: FileRange) -> _SmallFile | None:
        """The rows of a small file; None if it is damaged, or they are many."""
        batches: list[tuple[Unit, int, pa.RecordBatch]] = []
        num_bytes = 0
        try:
            file, layout = self._open(part)
            for _, unit, row, batch in self._batches(part, file, layout, file.units):
                if isinstance(batch, str) or (num_bytes := num_bytes + batch.nbytes) > SMALL_BYTES:
                    return None
                batches.append((unit, row, batch))
        except DAMAGE:
            return None
        return _SmallFile(part, layout, batches)

    def read_small(self, file: _SmallFile) -> Iterator[RawBatch]:
        """The records of a small file."""
        layout = file.layout
        converter = self._source.converter(layout, self._features, path=file.part.path)
        for unit, row, batch in file.batches:
            yield _convert(converter, layout, unit, row, batch)

    def together(self, files: Sequence[_SmallFile]) -> RawBatch | None:
        """The records of several small files; None if one may be a reject, or columns differ."""
        layout = files[0].layout
        parts = [(file, *batch) for file in files for batch in file.batches]
        num_rows = sum(len(batch) for *_, batch in parts)
        if any(file.layout is not layout for file in files) or not 0 < num_rows <= BATCH_ROWS:
            return None
        try:
            joined = pa.concat_batches([batch for *_, batch in parts])
        except pa.ArrowException:
            return None  # of a type whose arrays cannot be joined
        rows = [np.arange(row, row + len(batch)) for _, _, row, batch in parts]
        converter = self._source.converter(layout, self._features, path=files[0].part.path)
        every = _all_columns(joined, layout.schema, absent=layout.absent)
        read: RawBatch = converter.read(every, np.concatenate(rows))
        if read.rejects:
            return None
        ids = [
            f"{prefix}{file.part.path}#{number}"
            for (file, unit, _, _), numbers in zip(parts, rows, strict=True)
            for prefix in [unit.folder and f"{unit.folder}/"]
            for number in numbers.tolist()
        ]
        return dataclasses.replace(read, ids=ids)

    def _open(self, part: FileRange) -> tuple[ArrowFile, Layout]:
        """Opens a file. Files of the same schema share their layout.

        Raises:
            SchemaError: if the name of a column is not text.
        """
        file = self._format.open(self._opened, part.path)
        if self._known is None or not file.schema.equals(self._known[0], check_metadata=True):
            layout = self._source.layout(file.schema, self._features, path=part.path)
            self._known = file.schema, layout
        return file, self._known[1]

    def _batches(
        self, part: FileRange, file: ArrowFile, layout: Layout, units: Sequence[Unit]
    ) -> Iterator[tuple[int, Unit, int, pa.RecordBatch | str]]:
        """The batches of a range's units: index, unit, first row, and rows or what is damaged."""
        decoded = _Decoded(part.stop - part.start, self._opened.limits.max_expansion)
        for index, unit in enumerate(units):
            if not part.start <= unit.offset < part.stop:
                continue
            row = unit.first_row
            read = _batches(file, index, layout.columns, num_bytes=self._batch_bytes)
            for batch in _readable(decoded.counting(read), unit):
                yield index, unit, row, batch
                row += len(batch)

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


def _convert(
    converter: Any, layout: Layout, unit: Unit, row: int, batch: pa.RecordBatch
) -> RawBatch:
    """The records of a batch that begins with a row."""
    every = _all_columns(batch, layout.schema, absent=layout.absent)
    read: RawBatch = converter.read(every, np.arange(row, row + len(batch)))
    return _in_folder(read, unit.folder) if unit.folder else read


def _lacking(file: ArrowFile) -> tuple[set[str], set[str]]:
    try:
        return file.lacking()
    except DAMAGE:
        return set(), set()  # the read of its block reports the damage


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200] or "no reason given"


def _columns_of(
    schema: pa.Schema, leaves: Mapping[str, Leaf], features: Iterable[str]
) -> list[str]:
    """The columns of the features that have one."""
    # A feature named after a column that is not a leaf uses the entire column.
    columns = {name: name for name in schema.names}
    columns |= {name: schema.names[leaf.column] for name, leaf in leaves.items()}
    return list(dict.fromkeys(columns[name] for name in features if name in columns))


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
