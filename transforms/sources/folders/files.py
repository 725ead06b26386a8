"""The base of media folder sources: selects files, reads them, and rejects invalid ones."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pyarrow as pa

from ....schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ....schemas.config import config_class
from ....schemas.errors import DataError, Reject
from ....schemas.features import Feature, Features, Text
from ....schemas.recipe import OpenSource
from ...examples.encode import binary_array
from ...rejects import reject_at, with_bytes
from ...runs.files import wire_schema
from ...storage.opened_source import is_hidden
from ...storage.read_files import read_ahead
from ..table_files import select_where
from .bystanders import IMAGES, why_beside
from .decoded import UnreadableTextError, utf8_text
from .labels import LABEL, FileLabels, LabelReader, Unlisted
from .side_files import SideFiles, pair
from .side_tables import RowsOf, UnlabelledError

BATCH_FILES = 256
BATCH_BYTES = 8 << 20
"""Maximum records and encoded bytes in a raw batch, which has at least one record."""

TEXT = "text"
"""The feature of texts beside media."""

_SYSTEM_FILES = {
    name.lower(): name for name in ("Thumbs.db", "ehthumbs.db", "desktop.ini", "Icon\r")
}
_SYSTEM_FOLDERS = frozenset({"__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information"})
_H = TypeVar("_H")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MediaKind(Generic[_H]):
    """The parts that are specific to a kind of media."""

    name: str
    """The feature of the files' bytes."""
    read: Callable[[bytes], tuple[bytes, _H]]
    """A file's bytes -> the record's bytes, and their header.

    Raises an ``unreadable`` error, which has a ``reason`` to group by.
    """
    unreadable: type[Exception]
    weigh: Callable[[_H], int]
    """The decoded size of a file …"""
    max_weight: int
    """… and its maximum sum over a batch of several files."""
    sides: Callable[[Sequence[_H]], Mapping[str, pa.Array]] = lambda headers: {}
    """The columns besides the bytes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Partner(Generic[_H]):
    """The file that a record has besides its own, such as a mask."""

    read: Callable[[bytes | None, _H], Any]
    """The file's bytes, None if there is none, and the header of the record's own -> its value.

    Raises an ``unreadable`` error, which has a ``reason`` to group by.
    """
    unreadable: type[Exception]
    columns: Callable[[Sequence[Any]], Mapping[str, pa.Array]]
    """The wire columns of values."""


@config_class
class LabelledFolder(abc.ABC):
    """A source of media files, labelled by folders, names or a table."""

    url: str
    pattern: str | None = None
    table: Any = None
    split_folders: bool | None = None
    label: str | None = LABEL
    unlisted: Unlisted = "reject"
    one_hot: tuple[str, ...] = ()
    rows: RowsOf = "one"
    lists: Mapping[str, str | None] | None = None

    media = True
    numbered = False

    @property
    @abc.abstractmethod
    def _content(self) -> str:
        """The feature of the files' bytes."""

    def __post_init__(self) -> None:
        """Checks the origin of labels."""
        self._labels.check()

    @property
    def side_urls(self) -> tuple[str, ...]:
        """The table and lists, if there are any."""
        return self._labels.side_urls

    @property
    def _labels(self) -> FileLabels:
        return FileLabels(
            source=type(self).__name__,
            content=self._content,
            pattern=self.pattern,
            table=self.table,
            split_folders=self.split_folders,
            label=self.label,
            by_folder=self.label is not None,
            unlisted=self.unlisted,
            one_hot=self.one_hot,
            rows=self.rows,
            lists=self.lists,
        )

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects all files except hidden ones, system files, the table, and unfit ones."""
        labels = self._labels

        def why(path: str) -> str:
            if beside := labels.why_beside(path):
                return beside
            if labels.is_outside(path):
                return "in no folder that has a table"
            return why_skipped(path) or self._why_unfit(path)

        return select_where(files, why)

    def select_listed(self, selection: Selection, opened: OpenSource) -> Selection:
        """The selection, without files that have no row in the table or are in no list."""
        if self.unlisted == "reject" and self.lists is None:
            return selection
        unlisted = self._labels.why_unlisted({f.record_id for f in selection.files}, opened)
        files = tuple(file for file in selection.files if file.record_id not in unlisted)
        skipped = Counter(selection.num_skipped)
        skipped.update(unlisted[f.record_id] for f in selection.files if f.record_id in unlisted)
        return Selection(files=files, num_skipped=dict(skipped))

    def _why_unfit(self, path: str) -> str:
        """Why a file is skipped for its path; empty if it is not."""
        del path
        return ""

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        """None: no file has several records."""
        return ()

    def infer_labels(self, files: Sequence[SourceFile], opened: OpenSource) -> dict[str, Feature]:
        """The features besides the files' content. Reads at most a table.

        Raises:
            RecipeError: if class folders are named like splits, or the table has no such label.
            DataError: if no file has labels, or the table is not valid.
        """
        return self._labels.infer(self._records(files), opened)

    def read_labels(
        self, files: Sequence[SourceFile], *, features: Features, opened: OpenSource
    ) -> tuple[list[str], Mapping[str, pa.Array]]:
        """The ids of records and the wire columns of some features, without reading the files.

        Records that would be rejected for their labels are left out.

        Args:
            files: The records' files.
            features: Features besides the files' content.
            opened: The opened source.
        """
        reader = self._labels.reader(features, opened)
        ids, found = [], []
        for file in self._records(files):
            with contextlib.suppress(UnlabelledError):
                found.append(reader.find(file.path))
                ids.append(file.path)
        return ids, reader.columns(found)

    def num_unused_rows(self, files: Sequence[SourceFile], opened: OpenSource) -> int:
        """The number of table rows without a record."""
        return self._labels.num_unused_rows(self._records(files), opened)

    def rows_digest(self, block: Block, *, features: Features, opened: OpenSource) -> str:
        """Hash of what the table says of a block's records; empty if there is no table."""
        records = [part.record_id for part in block.ranges if not part.of]
        return self._labels.rows_digest(records, self._besides_files(features), opened)

    def _records(self, files: Sequence[SourceFile]) -> Sequence[SourceFile]:
        """A file for each record, with the path by which it is labelled."""
        if not any(file.of for file in files):
            return files
        return [file for file in files if not file.of]

    def _besides_files(self, features: Features) -> Features:
        """The features besides the content of a record's second file."""
        return features


class MediaFolder(LabelledFolder):
    """A source of media files, each of which is a record."""

    _suffixes: ClassVar[tuple[str, ...]]
    """Of files of this kind: files of another known kind are skipped."""
    _what: ClassVar[str] = "file"
    """What a file is called."""
    texts: str | None = None
    """The suffix of the files' texts, where each has one."""

    def __post_init__(self) -> None:
        """Checks the suffix of texts, and the origin of labels."""
        if self.texts is not None and not re.fullmatch(r"(\.[^./\\]+)+", self.texts):
            raise ValueError(f"texts={self.texts!r}: expected the suffix of the texts: '.txt'")
        super().__post_init__()

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects the files of this kind, with their texts as parts of their records."""
        if self.texts is None:
            return super().select(files)
        return self._select_paired(files, SideFiles(suffix=self.texts.lower(), required=True))

    def _select_paired(self, files: Sequence[SourceFile], of: SideFiles) -> Selection:
        """Selects files, and the side files that belong to them."""
        sides = [
            file
            for file in files
            if file.path.lower().endswith(of.suffix)
            and not why_skipped(file.path)
            and not self._is_named(file.path)
            and not self._labels.why_beside(file.path)
        ]
        set_aside = {file.path for file in sides}
        selection = super().select([file for file in files if file.path not in set_aside])
        marked, skipped = pair(selection.files, sides, of, what=self._what)
        return Selection(
            files=tuple(marked[file.path] for file in files if file.path in marked),
            num_skipped=dict(sorted((skipped + Counter(selection.num_skipped)).items())),
        )

    def _is_named(self, path: str) -> bool:
        """Whether a file is one that the source names."""
        del path
        return False

    def with_text(self, features: Mapping[str, Feature]) -> dict[str, Feature]:
        """Features, with those of the texts if there are any.

        Raises:
            DataError: if one has the name already.
        """
        if self.texts is None:
            return dict(features)
        if TEXT in features:
            raise DataError(
                f"{type(self).__name__}: a field or column is called {TEXT!r}, which is the name "
                f"of the texts of texts={self.texts!r}. Rename it."
            )
        return {**features, TEXT: Text()}

    def _why_unfit(self, path: str) -> str:
        return why_beside(path, media=self._suffixes)

    @abc.abstractmethod
    def _kind(self, features: Features) -> MediaKind[Any]:
        """The specifics of the media kind, for these features."""

    def _partner(self, features: Features, opened: OpenSource) -> Partner[Any] | None:
        """How the file is read that each record has besides its own, if any."""
        del features, opened
        if self.texts is None:
            return None
        return Partner(
            read=lambda data, header: utf8_text(data or b"").rstrip(b"\r\n"),
            unreadable=UnreadableTextError,
            columns=lambda texts: {TEXT: contents_array(texts)},
        )

    @property
    def _partner_features(self) -> frozenset[str]:
        """The features of that file."""
        return frozenset() if self.texts is None else frozenset((TEXT,))

    def _besides_files(self, features: Features) -> Features:
        return {n: f for n, f in features.items() if n not in self._partner_features}

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads a block's files in the order of ``ordered``, many at a time.

        A file becomes a reject of its batch if the inventory could not read it, or if its labels or
        header are missing or do not match ``features``.

        Raises:
            StorageError: if a file has changed since the inventory. Its new bytes do not belong in
                a snapshot with the fingerprint of the old ones, and it is not a bad record either:
                the next build reads the new content.
        """
        max_bytes = opened.limits.max_record_bytes
        parts = [_within(block.ranges[i], max_bytes) for i in ordered if not block.ranges[i].of]
        partners = {part.of: _within(part, max_bytes) for part in block.ranges if part.of}
        kind, partner = self._kind(features), self._partner(features, opened)
        labels = self._labels.reader(self._besides_files(features), opened)
        chunks = (
            [*chunk, *(partners[part.path] for part in chunk if part.path in partners)]
            for chunk in grouped([part] for part in parts)
        )
        with contextlib.closing(read_ahead(opened, chunks)) as contents:
            for chunk in contents:
                pending = _Pending(kind, features, labels, partner)
                yield from _read_chunk(pending, chunk)


def _within(part: FileRange, max_bytes: int) -> FileRange:
    """The file, with a problem noted if it is too large for a record."""
    if part.problem or part.stop - part.start <= max_bytes:
        return part
    problem = f"file of more than {max_bytes:,} bytes"
    return dataclasses.replace(part, problem=problem)


def may_be_image(path: str) -> bool:
    """Whether a file has the suffix of an image, or none."""
    name = path.rpartition("/")[2].lower()
    return name.endswith(IMAGES) or not re.search(r"\.[a-z][a-z0-9]*$", name)


def why_skipped(path: str) -> str:
    """Why a file is skipped; empty if it is a record."""
    folder, _, name = path.rpartition("/")
    if reason := _why_folder_skipped(folder):
        return reason
    if name in _SYSTEM_FOLDERS:
        return name
    if name == ".DS_Store":
        return name
    if name.startswith("."):
        return "hidden file"
    return _SYSTEM_FILES.get(name.lower(), "")


@functools.lru_cache
def _why_folder_skipped(folder: str) -> str:
    for name in folder.split("/"):
        if name in _SYSTEM_FOLDERS:
            return name
        if is_hidden(name):
            return "in a hidden folder"
    return ""


def _read_chunk(
    pending: _Pending[_H], chunk: Sequence[tuple[FileRange, bytes]]
) -> Iterator[RawBatch]:
    kind, labels = pending.kind, pending.reader
    partners = {part.of: (part, data) for part, data in chunk if part.of}
    for part, data in chunk:
        path = part.path
        if part.of:
            continue
        if part.problem:
            pending.reject(path, part.problem, stage="inventory", reason=part.problem)
            continue
        if part.unpaired:
            unpaired = UnlabelledError(part.unpaired, part.unpaired)
            pending.reject(path, unpaired, stage="validate", reason=unpaired.reason, data=data)
            continue
        try:
            label = labels.find(path)
            content, header = kind.read(data)
            label = labels.check(label, header)
        except UnlabelledError as error:
            pending.reject(path, error, stage="validate", reason=error.reason, data=data)
            continue
        except kind.unreadable as error:
            reason: str = error.reason  # type: ignore[attr-defined]
            pending.reject(path, error, stage="read", reason=reason, data=data)
            continue
        value: Any = None
        if (partner := pending.partner) is not None:
            second, second_data = partners.get(path, (None, None))
            if second is not None and second.problem:
                text = f"{second.path}: {second.problem}"
                pending.reject(path, text, stage="inventory", reason=second.problem)
                continue
            try:
                value = partner.read(second_data, header)
            except partner.unreadable as error:
                reason = error.reason  # type: ignore[attr-defined]
                text = str(error) if second is None else f"{second.path}: {error}"
                pending.reject(path, text, stage="read", reason=reason, data=data)
                continue
        weight = kind.weigh(header)
        if pending.weight and pending.weight + weight > kind.max_weight:
            yield pending.batch()
            pending = pending.emptied()
        pending.add(path, data=content, header=header, label=label, weight=weight, value=value)
    if pending.ids or pending.rejects:
        yield pending.batch()


@dataclasses.dataclass
class _Pending(Generic[_H]):
    """Rows and rejects of an unfinished raw batch."""

    kind: MediaKind[_H]
    features: Features
    reader: LabelReader
    partner: Partner[_H] | None
    ids: list[str] = dataclasses.field(default_factory=list)
    contents: list[bytes] = dataclasses.field(default_factory=list)
    headers: list[_H] = dataclasses.field(default_factory=list)
    labels: list[Any] = dataclasses.field(default_factory=list)
    values: list[Any] = dataclasses.field(default_factory=list)
    """Those of the records' second files."""
    rejects: list[Reject] = dataclasses.field(default_factory=list)
    weight: int = 0

    def emptied(self) -> _Pending[_H]:
        """An empty one of the same kind."""
        return _Pending(self.kind, self.features, self.reader, self.partner)

    def add(
        self,
        path: str,
        *,
        data: bytes,
        header: _H,
        label: Any,
        weight: int,
        value: Any,
    ) -> None:
        self.ids.append(path)
        self.contents.append(data)
        self.headers.append(header)
        self.labels.append(label)
        self.weight += weight
        self.values.append(value)

    def reject(
        self,
        path: str,
        error: Exception | str,
        *,
        stage: str,
        reason: str,
        data: bytes | None = None,
    ) -> None:
        reject = reject_at(
            path,
            None,
            stage=stage,
            reason=reason,
            message=str(error),
            exception="OSError" if isinstance(error, str) else type(error).__name__,
        )
        self.rejects.append(reject if data is None else with_bytes(reject, data, start=0))

    def batch(self) -> RawBatch:
        columns = {
            self.kind.name: contents_array(self.contents),
            **self.kind.sides(self.headers),
            **self.reader.columns(self.labels),
        }
        if self.partner is not None:
            columns |= self.partner.columns(self.values)
        schema = wire_schema(self.features)
        arrays = [columns[name] for name in schema.names]
        return RawBatch(
            ids=self.ids,
            columns=pa.RecordBatch.from_arrays(arrays, schema=schema),
            rejects=tuple(self.rejects),
        )


def contents_array(contents: Sequence[bytes]) -> pa.LargeBinaryArray:
    """``pa.array(contents, pa.large_binary())`` with one copy of the bytes instead of two."""
    ends = np.cumsum([0, *map(len, contents)], dtype=np.int64)
    return binary_array(ends, pa.py_buffer(b"".join(contents)))


def grouped(records: Iterable[list[FileRange]]) -> Iterator[list[FileRange]]:
    """The files of records in groups to read together: as many records as are small."""
    group: list[FileRange] = []
    num_records = num_bytes = 0
    for files in records:
        size = sum(part.stop - part.start for part in files)
        if group and (num_records == BATCH_FILES or num_bytes + size > BATCH_BYTES):
            yield group
            group, num_records, num_bytes = [], 0, 0
        group += files
        num_records += 1
        num_bytes += size
    if group:
        yield group
