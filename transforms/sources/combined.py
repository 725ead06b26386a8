"""Several sources in one recipe: each is read as a folder that has the source's name.

The path of a file is ``<name>/<its path in that source>``, and so are the ids of its records: no
source can change the ids of another one. :class:`Sources` is what users write, `open_files` opens
the files of any source, and `parts_of` lists the sources that are inventoried each on its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar, cast

import numpy as np
import pyarrow as pa

from ...schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile, packed
from ...schemas.errors import DataError, RecipeError, Reject, SchemaError
from ...schemas.features import (
    ClassLabel,
    Feature,
    Features,
    Scalar,
    Tensor,
    flatten,
    is_optional,
    nest,
    written,
)
from ...schemas.features import Sequence as SequenceOf
from ...schemas.fingerprint import digest
from ...schemas.limits import DEFAULT_LIMITS, Limits
from ...schemas.recipe import (
    CountsRows,
    ExtractedSource,
    HasRows,
    OpenSource,
    Source,
    reads_files,
)
from ...schemas.wire import Dtype
from ..code.digest import functions_of
from ..runs.files import wire_schema
from ..storage.opened_source import OpenedSource, open_source, path_bytes, unopened_source
from .arrow.types import join_types
from .extracted import ExtractedTable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_SOURCES = "sources"
_File = TypeVar("_File", SourceFile, FileRange)


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Sources:
    """Several sources in one snapshot: ``Sources(old=ss.Csv("a.csv"), new=ss.Parquet("b"))``.

    Each source has a name. It begins the ids of its records (``new/part-0.parquet#17``), so that
    adding, removing or reordering sources does not change the ids, keys and splits of the others;
    do not rename one. ``ss.Splits.by_folder(train="old", test="new")`` splits by source.

    A feature that a source lacks is missing in its records, and optional. Numbers of several types
    are converted exactly to one that holds all of them, and the classes of a ClassLabel are those
    of all sources. Other types must be equal.
    """

    sources: tuple[tuple[str, Any], ...]
    """Name and source, in the order given."""

    def __init__(self, **sources: Source | ExtractedSource) -> None:
        """Checks names and sources; reads nothing.

        Args:
            sources: The sources, by name: ASCII letters, digits, '_' and '-'.

        Raises:
            RecipeError: if there is none, a name or source is invalid, or their labels differ.
        """
        if not sources:
            raise RecipeError(
                'Sources: no sources given. Write for example ss.Sources(old=ss.Csv("a.csv"), '
                'new=ss.Csv("b.csv")).'
            )
        for name, source in sources.items():
            if not _NAME.fullmatch(name):
                raise RecipeError(
                    f"Sources: {name!r} is not a valid name. Use up to 100 ASCII letters, digits, "
                    "'_' and '-', starting with a letter or digit."
                )
            if isinstance(source, Sources):
                raise RecipeError(
                    f"Sources: {name!r} is itself ss.Sources. Give all sources to one of them."
                )
            if not isinstance(source, Source | ExtractedSource):
                raise RecipeError(
                    f"Sources: {name}={reprlib.repr(source)} is not a source. Write for example "
                    f'{name}=ss.Csv("table.csv").'
                )
        labels = {source.label: name for name, source in sources.items() if source.label}
        if len(labels) > 1:
            (one, first), (other, second) = list(labels.items())[:2]
            raise RecipeError(
                f"Sources: the label of {first!r} is {one!r}, that of {second!r} is {other!r}. "
                "Give them the same label=, or give it to only one of them."
            )
        object.__setattr__(self, "sources", tuple(sources.items()))

    def __repr__(self) -> str:
        return f"Sources({', '.join(f'{name}={source!r}' for name, source in self.sources)})"

    @property
    def url(self) -> str:
        """The URLs of all sources, separated by commas."""
        return ", ".join(source.url for _, source in self.sources)

    @property
    def label(self) -> str | None:
        """The label of the sources that have one."""
        return next((source.label for _, source in self.sources if source.label), None)

    @property
    def media(self) -> bool:
        """Whether all of them are sources of media files."""
        return all(source.media for _, source in self.sources)

    @property
    def numbered(self) -> bool:
        """Whether ids are ``path#position``: a file that is one record is at position 0."""
        return any(source.numbered for _, source in self.sources)

    @property
    def side_urls(self) -> tuple[str, ...]:
        """Those of all sources."""
        return tuple(dict.fromkeys(url for _, source in self.sources for url in source.side_urls))

    @property
    def functions(self) -> tuple[Any, ...]:
        """The user's functions that the sources call."""
        return tuple(function for _, source in self.sources for function in functions_of(source))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The passwords that are written in the sources."""
        return tuple(text for _, source in self.sources for text in getattr(source, "secrets", ()))

    def extract(self, folder: str, *, base: str, limits: Limits = DEFAULT_LIMITS) -> Sources:
        """The sources with records that are not in files, such as query results, extracted.

        Raises:
            SnapshardError: as the ``extract`` of one of them does, with its name.
        """
        made = {}
        for name, source in self.sources:
            made[name] = source
            if not reads_files(source):
                with naming(name):
                    made[name] = source.extract(folder, base=base, limits=limits)
        return Sources(**made)

    def settings(self) -> dict[str, object]:
        """The settings of all sources, by name."""
        return {_SOURCES: {name: _described(source) for name, source in self.sources}}

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """The files that each source selects."""
        selected: list[Sequence[SourceFile]] = []
        skipped = Counter[str]()
        for name, source in self.in_order():
            selection = source.select(without_prefix(files, f"{name}/"))
            selected.append(with_prefix(selection.files, f"{name}/"))
            skipped.update(selection.num_skipped)
        files = packed(SourceFile, itertools.chain(*selected))
        return Selection(files=files, num_skipped=dict(sorted(skipped.items())))

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        """Those of the file's source."""
        name, path = _divided(file.path)
        own = dataclasses.replace(file, path=path)
        return self._source(name).cuts(own, _opened_part(opened, name), every=every)

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of all sources; see :func:`join_features`.

        Raises:
            SchemaError: if two sources have a feature in different types, or one lacks a feature
                that cannot be missing.
        """
        by_source = {
            name: flatten(
                source.infer(without_prefix(files, f"{name}/"), _opened_part(opened, name))
            )
            for name, source in self.sources
        }
        joined = join_features({name: features for name, (features, _) in by_source.items()})
        structs = (struct for _, names in by_source.values() for struct in names)
        return nest(joined.features, tuple(structs))

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads a block through its source: no block has files of two.

        ``block.missing`` names the features that this source lacks: they are missing values.
        """
        schema = wire_schema(features)
        own = {name: feature for name, feature in features.items() if name not in block.missing}
        name, _ = _divided(block.ranges[0].path)
        source, prefix = self._source(name), f"{name}/"
        suffix = self.suffix_of(source)
        batches = source.read(
            Block(tuple(without_prefix(block.ranges, prefix))),
            features=own,
            opened=_opened_part(opened, name),
            ordered=ordered,
        )
        for batch in batches:
            yield RawBatch(
                ids=[f"{prefix}{record_id}{suffix}" for record_id in batch.ids],
                columns=_completed(batch.columns, schema),
                rejects=tuple(_renamed(reject, prefix, suffix) for reject in batch.rejects),
                num_filtered=batch.num_filtered,
            )

    def num_unused_rows(self, files: Sequence[SourceFile], opened: OpenSource) -> int:
        """The number of rows of side tables that match no file of their source."""
        return sum(
            source.num_unused_rows(without_prefix(files, f"{name}/"), _opened_part(opened, name))
            for name, source in self.sources
            if isinstance(source, CountsRows)
        )

    def rows_digest(self, block: Block, *, features: Features, opened: OpenSource) -> str:
        """Hash of what shapes the block's records besides its files: only its own source."""
        name, _ = _divided(block.ranges[0].path)
        source, part = self._source(name), _opened_part(opened, name)
        rows: object = [part.side_digest(url) for url in source.side_urls]
        if isinstance(source, HasRows) and source.side_urls:
            own = {name: feature for name, feature in features.items() if name not in block.missing}
            inner = Block(tuple(without_prefix(block.ranges, f"{name}/")))
            rows = source.rows_digest(inner, features=own, opened=part)
        return digest({"numbered": self.numbered, "rows": rows, "source": _described(source)})[:32]

    def _source(self, name: str) -> Source:
        source: Source = dict(self.sources)[name]
        return source

    def in_order(self) -> list[tuple[str, Source]]:
        """The sources in the order of their files' paths."""
        return sorted(self.sources, key=lambda item: path_bytes(f"{item[0]}/"))

    def suffix_of(self, source: Source) -> str:
        """What ids have at their end if the source's files are records, and others' are not."""
        return "#0" if self.numbered and not source.numbered else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedSources(OpenedSource):
    """The opened roots of :class:`Sources`; paths begin with the name of a source."""

    opened: Mapping[str, OpenedSource] = dataclasses.field(repr=False)

    @property
    def shown(self) -> str:
        """The URLs of all sources, without credentials."""
        return ", ".join(part.shown for part in self.opened.values())

    @property
    def location(self) -> str | dict[str, str]:
        """See :attr:`OpenedSource.location`."""
        return {name: part.shown for name, part in self.opened.items()}

    def each(self, change: Callable[[str, OpenedSource], OpenedSource]) -> Self:
        """The same sources, each changed by a function of its name and root."""
        changed = {name: change(name, part) for name, part in self.opened.items()}
        return dataclasses.replace(self, opened=changed)

    def list(self) -> Sequence[SourceFile]:
        """See :meth:`OpenedSource.list`."""
        listed = [with_prefix(part.list(), f"{name}/") for name, part in self.opened.items()]
        files = sorted(itertools.chain(*listed), key=lambda file: path_bytes(file.path))
        return packed(SourceFile, files)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """See :meth:`OpenedSource.read`."""
        name, own = _divided(path)
        return self.opened[name].read(own, start, stop)

    def proving(self, files: Iterable[SourceFile | FileRange]) -> Self:
        """See :meth:`OpenedSource.proving`."""
        by_name: dict[str, list[SourceFile | FileRange]] = {}
        for file in files:
            name, path = _divided(file.path)
            by_name.setdefault(name, []).append(dataclasses.replace(file, path=path))
        # A block has files of one source: there may be hundreds of others.
        proving = {name: self.opened[name].proving(own) for name, own in by_name.items()}
        return dataclasses.replace(self, opened={**self.opened, **proving})

    def check(self) -> None:
        """See :meth:`OpenedSource.check`."""
        for part in self.opened.values():
            part.check()

    def expecting(self, sides: Mapping[str, str]) -> OpenedSource:
        """See :meth:`OpenedSource.expecting`."""
        changed = self.each(lambda _, part: part.expecting(sides))
        return dataclasses.replace(changed, sides=dict(sides))


def open_files(source: Source, folder: str, limits: Limits, *, look: bool = True) -> OpenedSource:
    """Opens the root of a recipe's source, or the roots of several sources.

    Args:
        source: The source of a recipe.
        folder: The recipe's folder; relative local paths are relative to it.
        limits: Limits on what files may request.
        look: Whether to look for the source; otherwise none of its files can be read.

    Raises:
        RecipeError: if a source does not exist.
        StorageError: if one cannot be accessed.
    """
    if isinstance(source, Sources):
        parts = {name: open_files(part, folder, limits, look=look) for name, part in source.sources}
        return OpenedSources(url="", root="", folder=folder, limits=limits, opened=parts)
    return (open_source if look else unopened_source)(source.url, folder, limits)


def sources_of(source: Source | ExtractedSource) -> tuple[Source, ...]:
    """The sources of files in a recipe: none if its records are not in files."""
    return tuple(filter(reads_files, _parts(source)))


def tables_of(source: Source) -> dict[str, ExtractedTable]:
    """What the records of a source were extracted to: by name, empty if it is the only one."""
    parts = source.sources if isinstance(source, Sources) else (("", source),)
    return {name: part for name, part in parts if isinstance(part, ExtractedTable)}


def with_tables(
    source: Source | ExtractedSource, tables: Mapping[str, ExtractedTable]
) -> Source | ExtractedSource:
    """A source that reads what its records were extracted to, as :func:`tables_of` returned it."""
    if isinstance(source, Sources):
        return Sources(**{name: tables.get(name, part) for name, part in source.sources})
    return tables.get("", source)


def urls_of(source: Any) -> tuple[str, ...]:
    """The URLs that a recipe's source, or each of several, reads."""
    return tuple(
        url
        for part in _parts(source)
        for url in (getattr(part, "url", ""), *getattr(part, "side_urls", ()))
        if url
    )


def _parts(source: Any) -> list[Any]:
    """Each of several sources, or the only one."""
    return [part for _, part in source.sources] if isinstance(source, Sources) else [source]


@dataclasses.dataclass(frozen=True)
class SourcePart:
    """One source of a recipe, with its root."""

    name: str
    """Its name among several; empty if the recipe has only this one."""
    source: Source
    opened: OpenedSource
    suffix: str = ""
    """What the ids of its records have at their end, among several sources."""

    @property
    def prefix(self) -> str:
        """What the recipe's paths have in front of the source's own paths."""
        return f"{self.name}/" if self.name else ""

    def among_all(self, block: Block) -> Block:
        """A block of the source as one of the recipe."""
        return dataclasses.replace(
            block,
            ranges=with_prefix(block.ranges, self.prefix),
            excluded=tuple(self.prefix + record_id for record_id in block.excluded),
        )

    def own_ids(self, ids: Iterable[str]) -> tuple[str, ...]:
        """The ids that its records have in the source, of those of the recipe."""
        return tuple(
            record_id.removeprefix(self.prefix).removesuffix(self.suffix)
            for record_id in ids
            if record_id.startswith(self.prefix) and record_id.endswith(self.suffix)
        )

    def naming(self) -> contextlib.AbstractContextManager[None]:
        """Adds the source's name to errors about its data or settings."""
        return naming(self.name)


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Adds the name of one of several sources to errors about its data or settings."""
    try:
        yield
    except (DataError, RecipeError) as error:
        if not name:
            raise
        raise type(error)(f"Source {name!r}: {error}") from error


def parts_of(source: Source, opened: OpenedSource) -> tuple[SourcePart, ...]:
    """The sources of a recipe, in the order of their files' paths.

    Args:
        source: The recipe's source.
        opened: The result of :func:`open_files`.
    """
    if isinstance(source, Sources):
        assert isinstance(opened, OpenedSources)
        return tuple(
            SourcePart(name, part, opened.opened[name], source.suffix_of(part))
            for name, part in source.in_order()
        )
    return (SourcePart("", source, opened),)


def part_of(parts: Sequence[SourcePart], path: str) -> SourcePart:
    """The source to which a path belongs."""
    return next(part for part in parts if path.startswith(part.prefix))


def settings_of_all(source: Source, described: object) -> object:
    """The settings on which every block of a source depends.

    Args:
        source: The recipe's source.
        described: Its settings, as ``source_settings`` returns them. Those of one of several
            sources are left out: they are in the digests of its own blocks alone.
    """
    if isinstance(source, Sources):
        assert isinstance(described, Mapping)
        return {key: value for key, value in described.items() if key != _SOURCES}
    return described


def blocks_have_sides(source: Source) -> bool:
    """Whether each block is identified by what the source's side files say of it."""
    by_rows = isinstance(source, HasRows) and bool(source.side_urls)
    return by_rows or isinstance(source, Sources)


@dataclasses.dataclass(frozen=True)
class JoinedFeatures:
    """The features of several sources together."""

    features: dict[str, Feature]
    missing: Mapping[str, tuple[str, ...]]
    """The features that each source lacks, by its name."""


def join_features(by_source: Mapping[str, Features]) -> JoinedFeatures:
    """Joins the features of several sources.

    A feature is optional if it is in one source, or if a source lacks it. The classes of a
    ClassLabel are those of all sources, sorted. Numbers have a dtype that holds those of all
    sources; one that it cannot hold, an integer beyond 2^53 in float64, will be a reject. All else
    must be equal.

    Args:
        by_source: Flat features of each source, by the source's name.

    Raises:
        SchemaError: if two sources have a feature in different types, or one lacks a feature that
            cannot be missing; the message names the feature and both sources.
    """
    joined: dict[str, Feature] = {}
    first: dict[str, str] = {}
    for source, features in by_source.items():
        for name, feature in features.items():
            if name not in joined:
                joined[name], first[name] = feature, source
                continue
            both = _join(joined[name], feature)
            if both is None:
                raise SchemaError(
                    f"Sources: {name!r} is {written(by_source[first[name]][name])} in "
                    f"{first[name]!r}, and {written(feature)} in {source!r}. Give it one type, "
                    "for example with types= of one source, or another name in one of them."
                )
            joined[name] = both
    missing = {
        source: tuple(name for name in joined if name not in features)
        for source, features in by_source.items()
    }
    for source, names in missing.items():
        for name in names:
            joined[name] = _made_optional(name, joined[name], first[name], source)
    return JoinedFeatures(joined, {source: names for source, names in missing.items() if names})


def without_prefix(files: Sequence[_File], prefix: str) -> Sequence[_File]:
    """The files whose paths begin with a prefix, without it."""
    if not prefix or not files:
        return files
    own = (
        dataclasses.replace(
            file,
            path=file.path.removeprefix(prefix),
            of=file.of.removeprefix(prefix),
            record=file.record.removeprefix(prefix),
        )
        for file in files
        if file.path.startswith(prefix)
    )
    return packed(type(files[0]), own)


def with_prefix(files: Sequence[_File], prefix: str) -> Sequence[_File]:
    """Files with a prefix in front of their paths."""
    if not prefix or not files:
        return files
    named = (
        dataclasses.replace(
            file,
            path=prefix + file.path,
            of=file.of and prefix + file.of,
            record=file.record and prefix + file.record,
        )
        for file in files
    )
    return packed(type(files[0]), named)


def _divided(path: str) -> tuple[str, str]:
    """The name of a source, and the path in it."""
    name, _, own = path.partition("/")
    return name, own


def _opened_part(opened: OpenSource, name: str) -> OpenedSource:
    assert isinstance(opened, OpenedSources)
    return opened.opened[name]


def _described(source: Source) -> dict[str, object]:
    return {"type": type(source).__name__, **source.settings()}


def _join(one: Feature, other: Feature) -> Feature | None:
    """A feature that holds the values of both; None if there is none."""
    if one == other:
        return one
    if isinstance(one, SequenceOf) and isinstance(other, SequenceOf):
        of: Any = _join(one.of, other.of)
        if of is None:
            return None
        one, other = dataclasses.replace(one, of=of), dataclasses.replace(other, of=of)
    if isinstance(one, ClassLabel) and isinstance(other, ClassLabel) and one.names != other.names:
        labels, values = (one, other), None
        if all(map(_is_numbered, labels)):
            values = tuple(sorted({*(one.values or ()), *(other.values or ())}))
        # Names in an order of their own, or with integers, are declared, and stay as they are.
        elif any(label.values or list(label.names) != sorted(label.names) for label in labels):
            return None
        names = tuple(map(str, values or sorted({*one.names, *other.names})))
        one, other = (dataclasses.replace(label, names=names, values=values) for label in labels)
    if isinstance(one, Scalar | Tensor) and isinstance(other, Scalar | Tensor):
        dtype = _wider(one.dtype, other.dtype)
        if dtype is None:
            return None
        one, other = (dataclasses.replace(feature, dtype=dtype) for feature in (one, other))
    if is_optional(one) != is_optional(other):
        one, other = (_optional(feature) for feature in (one, other))
    return one if one == other else None


def _is_numbered(label: ClassLabel) -> bool:
    """Whether the classes are numbers that were inferred, without other names."""
    return label.values is not None and label.names == tuple(map(str, label.values))


def _wider(one: Dtype, other: Dtype) -> Dtype | None:
    """The dtype that holds numbers of both, as for the columns of one source; None if none does."""
    if one == other:
        return one
    if not all(dtype.startswith(("int", "uint", "float")) for dtype in (one, other)):
        return None
    joined = join_types(pa.type_for_alias(one), pa.type_for_alias(other))
    return None if joined is None else cast(Dtype, np.dtype(joined.to_pandas_dtype()).name)


def _optional(feature: Any) -> Feature:
    optional: Feature = (
        feature if is_optional(feature) else dataclasses.replace(feature, optional=True)
    )
    return optional


def _made_optional(name: str, feature: Feature, source: str, lacking: str) -> Feature:
    """The feature as optional.

    Raises:
        SchemaError: if it cannot be.
    """
    with contextlib.suppress(TypeError, RecipeError):  # it has no such setting, or refuses it
        return _optional(feature)
    raise SchemaError(
        f"Sources: {lacking!r} has no feature {name!r}, which is {written(feature)} in {source!r} "
        "and cannot be missing. Combine sources that all have it, or leave it out."
    )


def _completed(columns: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema; those that a source lacks are null."""
    if columns.schema.names == schema.names:
        return columns
    there = set(columns.schema.names)
    arrays = [
        columns.column(field.name)
        if field.name in there
        else pa.nulls(columns.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _renamed(reject: Reject, prefix: str, suffix: str) -> Reject:
    """The reject of a source, with the names of its file and record among several sources."""
    message = reject.message
    if message.startswith(reject.source):
        message = prefix + message
    return dataclasses.replace(
        reject,
        record_id=f"{prefix}{reject.record_id}{suffix}",
        source=f"{prefix}{reject.source}",
        position=0 if suffix else reject.position,
        message=message,
    )
