"""The JSON source: objects, one per line, in a list, or one per file; compressed or not.

A record's id is ``relative/path#offset``, the byte offset of its object in the decompressed text.
``documents`` says how objects are found, ``types`` documents the feature of each key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ....schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ....schemas.config import config_class
from ....schemas.errors import SchemaError
from ....schemas.features import Feature, Features, Scalar, tensor_form
from ....schemas.limits import too_many_columns
from ....schemas.manifest import MAX_LABELS
from ....schemas.recipe import OpenSource
from ...examples.row_values import UnfitError
from ...storage.decompress import SUFFIXES as COMPRESSED_SUFFIXES
from ...storage.decompress import DamagedError
from ..arrow.hive import infer_with_folders, read_with_folders
from ..blocks import cut_spacing
from ..bundles import bundles, content_of, read_bundle, remembered, small_windows
from ..table_files import (
    COPY_AGAIN,
    INFER_ALL_BYTES,
    check_columns,
    check_types,
    damaged_text,
    first_damage,
    no_rows,
    read_ranges,
    select_files,
    types_to_json,
    with_class,
    with_types,
)
from ..text_stream import Rows, Text, open_text, undamaged
from .documents import NO_LIST, find_cuts, find_form, find_records
from .rows import FileLines, JsonReader, read_together
from .types import JsonTypes
from .values import parse_line

MAX_SAMPLES = 64
"""Maximum number of windows in a sample, each of about 1 MiB."""

_NAMES = (".jsonl", ".ndjson", ".json")
SUFFIXES = (*_NAMES, *(name + end for name in _NAMES for end in COMPRESSED_SUFFIXES))
"""Suffixes of JSON Lines files."""

_SEARCH_BYTES = 1 << 16
_STREAM_WINDOWS = 64
# Lines checked in a file that has no object, for the message.
_NUM_CHECKED = 3


@config_class
class JsonLines:
    """Objects of JSON files: one per line (JSON Lines, ndjson), in a list, or one per file.

    The beginning of each file shows which it is. Objects of a list, and objects that are alone in
    their file, may span lines. UTF-8, plain or compressed.

    Nested objects become features named ``outer.inner``, lists become sequences, and lists of lists
    become tensors. A feature of a list of objects is the sequence of their values. Null and a
    missing key are both missing values.

    Attributes:
        url: A file, a folder (its ``.jsonl``, ``.ndjson`` and ``.json`` files at any depth,
            including compressed ones), a glob, or any fsspec URL.
        label: The feature to predict. Strings and bools become a ClassLabel; numbers are kept.
        types: Overrides inferred types: ``{"age": "float32"}``, or a feature such as
            ``ss.ClassLabel(("no", "yes"))`` or ``ss.Timestamp("s")``, which reads ISO 8601.
        records: Where each file is an object that holds the list of records: the key of that list,
            such as ``"data"``, or the keys that lead to it: ``"result.items"``.
        hive: Whether folders named ``key=value`` are columns, too, as in ``year=2024/month=01``.
    """

    url: str
    label: str | None = None
    types: Mapping[str, Any] | None = None
    records: str | None = None
    hive: bool = False
    media = False
    numbered = True
    side_urls: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Checks the types and keys."""
        check_types(self.types)
        if self.records is not None and not (isinstance(self.records, str) and self.records):
            raise ValueError(
                f'JsonLines: records={self.records!r}, expected a key such as "data", or None'
            )

    def settings(self) -> dict[str, object]:
        """The settings that determine the records and their inferred features, as plain JSON."""
        settings: dict[str, object] = {"label": self.label, "types": types_to_json(self.types)}
        settings |= {"hive": True} if self.hive else {}
        return settings if self.records is None else settings | {"records": self.records}

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects JSON Lines files, files with a glob's suffix, or a single file of any name."""
        return select_files(self.url, files, suffixes=SUFFIXES, what="a .jsonl file")

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        """Offsets of records at which to cut; none if the file is small or compressed."""
        if file.problem or file.num_bytes <= every + every // 2:
            return ()
        text = _open(opened, file.path, file.num_bytes)
        if not text.plain:
            return ()
        form = find_form(text, self.records)
        if form.kind != "lines":
            return find_cuts(text, form, every=every)
        starts = (
            _line_start(text, place, file.num_bytes)
            for place in range(every, file.num_bytes - every // 2, every)
        )
        return tuple(sorted({start for start in starts if start < file.num_bytes}))

    def head_bytes(self, file: SourceFile, opened: OpenSource) -> int:
        """What shows the form of the file; 0 if it has an object per line."""
        text = _open(opened, file.path, file.num_bytes)
        return find_form(text, self.records).head_bytes

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the objects, inferred from all up to 256 MiB, else from a sample.

        Raises:
            SchemaError: if there is no object, or one is nested too deeply.
            RecipeError: if ``label`` or ``types`` name a feature that does not exist.
        """
        if self.hive:
            return infer_with_folders(self, files, opened)
        readable = [file for file in files if not file.problem and file.num_bytes]
        sample = sum(file.num_bytes for file in readable) > INFER_ALL_BYTES
        seen = JsonTypes(readable[0].path if readable else self.url)
        for bundle in bundles(readable):
            for types in self._types(bundle, opened, sample=sample):
                seen.merge(types)
        if not seen.num_rows:
            raise SchemaError(_why_no_rows(files, readable, opened, self.records))
        inferred = seen.features()
        check_columns("JsonLines", inferred, label=self.label, types=self.types)
        features = with_types(inferred, self.types)
        if not features:
            raise SchemaError(
                f"{readable[0].path} has only objects without keys, so there are no features. Is "
                "it the right file?"
            )
        return with_class(
            features,
            label=self.label,
            types=self.types,
            texts_of=lambda label: (
                _texts_of(bundle, opened, label, features[label], self.records)
                for bundle in bundles(readable)
            ),
        )

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads the objects that begin in a block's ranges; ids are ``path#offset``.

        Raises:
            SchemaError: if a feature has a type that JSON cannot store.
        """
        if self.hive:
            yield from read_with_folders(
                self, block, features=features, opened=opened, ordered=ordered
            )
            return
        for name, feature in features.items():
            if tensor_form(feature) is None:
                raise SchemaError(
                    f"features= declares {name!r} as {type(feature).__name__}, whose values are "
                    "the bytes of files. JSON cannot store them."
                )
        yield from read_ranges(
            block,
            ordered,
            features=features,
            read=lambda part: _read_range(part, features, opened, self.records),
            small=lambda part: _small(part, opened, self.records),
            together=lambda files: read_together(files, features),
            read_small=lambda file: map(
                JsonReader(file.path, features, what=file.what).read, file.windows
            ),
        )

    def _types(
        self, bundle: Sequence[SourceFile], opened: OpenSource, *, sample: bool
    ) -> Iterator[JsonTypes]:
        """The types in the files of a bundle, of all together or of one after another."""
        max_columns = opened.limits.max_columns

        def alone(file: SourceFile, read: FileLines | None) -> Iterator[JsonTypes]:
            types = JsonTypes(file.path)
            windows = read.windows if read else self._windows(file, opened, sample=sample)
            for lines in windows:
                types.add(lines)
                if len(types.seen) > max_columns:
                    raise SchemaError(too_many_columns(file.path, len(types.seen), max_columns))
            yield types

        def look() -> list[dict[str, Any]]:
            by_file: Iterator[JsonTypes] = read_bundle(
                bundle,
                small=lambda file: _small(file, opened, self.records),
                together=lambda files: JsonTypes.of_files(files, max_columns=max_columns),
                alone=alone,
            )
            return [types.to_json() for types in by_file]

        for value in remembered(opened, content_of(bundle), f"types {sample}", look):
            yield JsonTypes.from_json(bundle[0].path, value)

    def _windows(self, file: SourceFile, opened: OpenSource, *, sample: bool) -> Iterator[Rows]:
        """The objects of a file, or of evenly spaced windows of it."""
        if not sample:
            yield from _objects(file, opened, self.records)
            return
        text = _open(opened, file.path, file.num_bytes)
        form = find_form(text, self.records)
        starts = (0, *self.cuts(file, opened, every=cut_spacing(file.num_bytes)))
        limit = _STREAM_WINDOWS if len(starts) == 1 else 1
        for start in starts[:: -(-len(starts) // MAX_SAMPLES)]:
            windows = undamaged(find_records(text, start, text.stop, form))
            for lines, _ in zip(windows, range(limit), strict=False):
                yield lines


def _open(opened: OpenSource, path: str, num_bytes: int) -> Text:
    return open_text(opened, path, num_bytes=num_bytes, encoding="utf-8")


def _objects(file: SourceFile, opened: OpenSource, records: str | None) -> Iterator[Rows]:
    """The objects of a file, up to any damage."""
    text = _open(opened, file.path, file.num_bytes)
    return undamaged(find_records(text, 0, text.stop, find_form(text, records)))


def _small(
    part: SourceFile | FileRange, opened: OpenSource, records: str | None
) -> FileLines | None:
    """The objects of a small file, or of a small range of one."""
    start, stop = (part.start, part.stop) if isinstance(part, FileRange) else (0, part.num_bytes)
    text = _open(opened, part.path, stop)
    form = find_form(text, records)
    windows = small_windows(find_records(text, start, text.stop, form))
    return None if windows is None else FileLines(part.path, windows, form.record)


def _texts_of(
    bundle: Sequence[SourceFile],
    opened: OpenSource,
    label: str,
    feature: Feature,
    records: str | None,
) -> list[str] | None:
    """The distinct texts of the label in all objects; None if too many for a class."""
    is_bool = isinstance(feature, Scalar) and feature.dtype == "bool"
    wanted: Features = {label: Scalar("bool" if is_bool else "string", optional=True)}

    def alone(file: SourceFile, read: FileLines | None) -> Iterator[RawBatch]:
        windows = read.windows if read else _objects(file, opened, records)
        return map(JsonReader(file.path, wanted).read, windows)

    def look() -> list[str] | None:
        texts = set[Any]()
        for batch in read_bundle(
            bundle,
            small=lambda file: _small(file, opened, records),
            together=lambda files: read_together(files, wanted),
            alone=alone,
        ):
            texts.update(batch.columns.column(label).unique().to_pylist())
            if len(texts) > MAX_LABELS + 1:
                return None
        texts.discard(None)
        if is_bool:
            return sorted("true" if value else "false" for value in texts)
        return sorted(value.decode() for value in texts)

    return remembered(opened, content_of(bundle), "classes", look)


def _read_range(
    part: FileRange, features: Features, opened: OpenSource, records: str | None
) -> Iterator[RawBatch]:
    text = _open(opened, part.path, part.stop)
    form = find_form(text, records)
    reader, done = JsonReader(part.path, features, what=form.record), part.start

    def is_cut() -> bool:
        return text.plain and bool(opened.read(part.path, part.stop, part.stop + 1))

    try:
        for rows in find_records(text, part.start, text.stop, form, is_cut=is_cut):
            yield reader.read(rows)
            done = rows.offset + len(rows.data)
    except DamagedError as error:
        yield no_rows(features, damaged_text(part, error, done, records=f"{form.record}s"))


def _line_start(text: Text, place: int, num_bytes: int) -> int:
    """The offset of the first line after ``place``."""
    while place < num_bytes:
        piece = text.read(place, min(place + _SEARCH_BYTES, num_bytes))
        newline = piece.find(b"\n")
        if newline >= 0:
            return place + newline + 1
        place += max(1, len(piece))
    return num_bytes


def _damage(file: SourceFile, opened: OpenSource, records: str | None) -> str:
    """Why a compressed file has no readable object; empty if it has one."""
    text = _open(opened, file.path, file.num_bytes)
    try:
        next(find_records(text, 0, text.stop, find_form(text, records)), None)
    except DamagedError as error:
        return str(error)
    return ""


def _why_no_rows(
    files: Sequence[SourceFile],
    readable: Sequence[SourceFile],
    opened: OpenSource,
    records: str | None,
) -> str:
    """Why nothing can be inferred."""
    if damage := first_damage(files, lambda file: _damage(file, opened, records)):
        return f"{damage}, so no object can be read. {COPY_AGAIN}"
    if not readable:
        what = f"{files[0].path} has" if len(files) == 1 else f"{len(files):,} files have"
        return f"{what} no readable object, expected JSON objects: one per line, or in a list."
    path, why = readable[0].path, ""
    text = _open(opened, path, readable[0].num_bytes)
    form = find_form(text, records)
    for rows in undamaged(find_records(text, 0, text.stop, form)):
        if rows.problem == NO_LIST:
            return f"{path} {rows.detail}."
        for row in range(min(len(rows), _NUM_CHECKED)):
            try:
                parse_line(rows.text(row), what=form.record)
            except UnfitError as error:
                why = why or f" (byte {int(rows.positions[row])}: {error})"
        break
    return f"{path} holds no JSON object{why}, expected one per line, or a list of them."
