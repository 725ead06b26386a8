"""Data passed between the steps: files, blocks, batches, runs and shards.

``*Info`` describes something written; ``*Plan`` is computed from such facts. All of it is small:
none of these types carries records, except :class:`RawBatch`, which stays in one process.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .errors import Reject

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
_PACKED_TOGETHER = 128
_PACKED_FROM = 1 << 15
"""As many files take 20 MB, and a tenth of a build if each pass over them makes them anew."""


class Packed(Sequence[_T]):
    """Many files or ranges, compressed: some 60 bytes each, with path and hash, instead of 500.

    An item is made whenever it is asked for, from the part that it is compressed with: iterating is
    faster than indexing.
    """

    __slots__ = ("_kind", "_num", "_parts")

    def __init__(self, kind: type[_T], items: Iterable[_T] = ()) -> None:
        """Packs items, whose class is a dataclass with slots, of texts and integers."""
        self._kind = kind
        names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        self._parts: list[bytes] = []
        self._num = 0
        rows = map(operator.attrgetter(*names), items)
        while part := list(itertools.islice(rows, _PACKED_TOGETHER)):
            columns = list(zip(*part, strict=True))
            self._parts.append(zlib.compress(json.dumps(columns).encode(), 1))
            self._num += len(part)

    def _unpacked(self, part: bytes) -> list[_T]:
        # As the class would make them, in a fifth of the time: each field of all items at once.
        kind: Any = self._kind
        columns = json.loads(zlib.decompress(part))
        items: list[_T] = [object.__new__(kind) for _ in columns[0]]
        for put, column in zip(_setters(kind), columns, strict=True):
            collections.deque(map(put, items, column), maxlen=0)
        return items

    def __iter__(self) -> Iterator[_T]:
        return itertools.chain.from_iterable(map(self._unpacked, self._parts))

    def __len__(self) -> int:
        return self._num

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_T]: ...
    def __getitem__(self, index: int | slice) -> _T | Sequence[_T]:
        numbers = range(self._num)[index]
        if isinstance(numbers, int):
            part, place = divmod(numbers, _PACKED_TOGETHER)
            return self._unpacked(self._parts[part])[place]
        if numbers.step != 1:
            return [self[number] for number in numbers]
        first = numbers.start // _PACKED_TOGETHER
        last = -(-numbers.stop // _PACKED_TOGETHER)
        items = itertools.chain.from_iterable(map(self._unpacked, self._parts[first:last]))
        skipped = first * _PACKED_TOGETHER
        return list(itertools.islice(items, numbers.start - skipped, numbers.stop - skipped))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def packed(kind: type[_T], items: Iterable[_T], *, of: int = 0) -> Sequence[_T]:
    """Files or ranges as a tuple, or :class:`Packed` if there are many.

    Args:
        kind: Their class.
        items: The files or ranges.
        of: How many there are, if these are a part of them.
    """
    items = iter(items)
    first = tuple(itertools.islice(items, _PACKED_FROM))
    if max(len(first), of) < _PACKED_FROM:
        return first
    return Packed(kind, itertools.chain(first, items))


@functools.cache
def _setters(kind: Any) -> list[Callable[[object, Any], None]]:
    return [getattr(kind, field.name).__set__ for field in dataclasses.fields(kind)]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One file of the source, as listed; with its content hash once the inventory knows it."""

    path: str
    """Path relative to the source's root, parts joined by '/'."""
    num_bytes: int
    stamp: str
    """The store's etag, or the modification time in ns: part of the hash cache's key."""
    sha256: str = ""
    """SHA-256 of the content, hex; empty until known, or if ``problem`` says why it is not."""
    problem: str = ""
    """Why the file cannot be read (dangling symlink, no permission …); it becomes a reject."""
    of: str = ""
    """Path of the file whose record this file is part of; empty if it is a record of its own."""
    unpaired: str = ""
    """Why the record of this file is incomplete; it becomes a reject, with its content."""
    record: str = ""
    """Id of its record, if that is not the path of a file; see :attr:`record_id`."""

    @property
    def record_id(self) -> str:
        """Id of the record of this file, in sources of files that are records."""
        return self.record or self.of or self.path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """The listed files that contain records, and how many were skipped, by reason."""

    files: Sequence[SourceFile]
    num_skipped: Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FileRange:
    """Bytes [start, stop) of one file; the complete file in most formats."""

    path: str
    sha256: str
    """SHA-256 of the complete file, hex; or of the range, if its records depend only on it."""
    start: int
    stop: int
    problem: str = ""
    stamp: str = dataclasses.field(default="", compare=False)
    """The file's stamp, if it proves that the content is unchanged; see
    ``transforms.storage.unchanged``. Equal content makes equal blocks, whatever the stamp."""
    whole_sha256: str = dataclasses.field(default="", compare=False)
    """SHA-256 of the complete file, hex, if ``sha256`` is that of the range."""
    of: str = dataclasses.field(default="", compare=False)
    """As in :class:`SourceFile`; that file is in the same block."""
    unpaired: str = ""
    """As in :class:`SourceFile`."""
    record: str = dataclasses.field(default="", compare=False)
    """As in :class:`SourceFile`."""

    @property
    def record_id(self) -> str:
        """As in :class:`SourceFile`."""
        return self.record or self.of or self.path

    @property
    def num_bytes(self) -> int:
        """The number of bytes of the range."""
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class Block:
    """A deterministic unit of input work: some files, or a range of one file."""

    ranges: Sequence[FileRange]
    rows: str = ""
    """Hash of what shapes its records besides its files, such as the rows of a side table that
    belong to them; empty if there is nothing that not all blocks share."""
    excluded: tuple[str, ...] = ()
    """Ids of records that the recipe excludes and that may be in the block."""
    missing: tuple[str, ...] = ()
    """Features that its source lacks, and another source of the recipe has."""

    @functools.cached_property
    def block_id(self) -> str:
        """Hash of what the block reads: 32 hex digits."""
        parts: object = [
            [p.path, p.sha256, p.start, p.stop, p.problem] + ([p.unpaired] if p.unpaired else [])
            for p in self.ranges
        ]
        if more := self._besides():
            parts = {"ranges": parts, **more}
        content = json.dumps(parts, separators=(",", ":")).encode("ascii")
        return hashlib.sha256(content).hexdigest()[:32]

    def __hash__(self) -> int:
        return hash(self.block_id)

    def _besides(self) -> dict[str, object]:
        """What the block is made of besides its ranges, if anything."""
        facts: dict[str, object] = {}
        if self.rows:
            facts["rows"] = self.rows
        if self.excluded:
            facts["excluded"] = list(self.excluded)
        if self.missing:
            facts["missing"] = list(self.missing)
        return facts

    @property
    def num_bytes(self) -> int:
        """Number of input bytes that the block reads."""
        return sum(part.stop - part.start for part in self.ranges)

    def describe(self) -> str:
        """The block's name in messages."""
        if len(self.ranges) != 1:
            ends = [part.path for part in self.ranges[:: max(1, len(self.ranges) - 1)]]
            return f"{len(self.ranges):,} files{' from ' * bool(ends)}{' to '.join(ends)}"
        (part,) = self.ranges
        return f"{part.path}, bytes {part.start:,} to {part.stop:,}"

    def to_line(self) -> bytes:
        """The block as one line of ASCII JSON; :meth:`from_line` is the inverse."""
        parts: object = [
            [p.path, p.sha256, p.start, p.stop, p.problem, p.stamp, p.whole_sha256]
            + ([p.of, p.unpaired] if p.of or p.unpaired or p.record else [])
            + ([p.record] if p.record else [])
            for p in self.ranges
        ]
        if more := self._besides():
            parts = {"ranges": parts, **more}
        return json.dumps(parts, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_line(cls, line: bytes) -> Block:
        """Reads the output of :meth:`to_line`."""
        names = [field.name for field in dataclasses.fields(FileRange)]
        parts = json.loads(line)
        more = parts if isinstance(parts, dict) else {"ranges": parts}
        return cls(
            tuple(FileRange(**dict(zip(names, part, strict=False))) for part in more["ranges"]),
            rows=more.get("rows", ""),
            excluded=tuple(more.get("excluded", ())),
            missing=tuple(more.get("missing", ())),
        )


@dataclasses.dataclass(frozen=True)
class KeySpan:
    """A deterministic unit of work of a later stage: the records in a range of keys."""

    start: int
    stop: int

    @property
    def block_id(self) -> str:
        """Identifies the range within its stage."""
        return f"{self.start:016x}-{self.stop - 1:016x}"

    def describe(self) -> str:
        """The range's name in messages."""
        return f"the records of keys {self.block_id}"

    def to_line(self) -> bytes:
        """The range as one line of ASCII JSON; :meth:`from_line` is the inverse."""
        return json.dumps({"span": [str(self.start), str(self.stop)]}).encode("ascii")

    @classmethod
    def from_line(cls, line: bytes) -> KeySpan:
        """Reads the output of :meth:`to_line`."""
        start, stop = json.loads(line)["span"]
        return cls(int(start), int(stop))


WorkUnit = Block | KeySpan
"""The input of one run."""


def unit_from_line(line: bytes) -> WorkUnit:
    """Reads the output of ``to_line`` of a block or a range."""
    return KeySpan.from_line(line) if line.startswith(b'{"span"') else Block.from_line(line)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawBatch:
    """Records of one block during prepare, in one process.

    ``ids[i]`` is the record id of row i of ``columns``, the wire columns of the features at this
    stage. Rejects are records that never became rows.
    """

    ids: list[str]
    columns: pa.RecordBatch
    rejects: tuple[Reject, ...] = ()
    num_filtered: int = 0
    """Records that a step dropped on purpose."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchInfo:
    """Position of one record batch in a run's file, and its smallest key."""

    offset: int
    """Byte offset of the batch's IPC message in the run."""
    num_bytes: int
    num_records: int
    partition: int
    """Partition of the first record."""
    key: int
    """Key of the first record."""
    checksum: int
    """CRC32C of the message; checked whenever the batch is read."""


@dataclasses.dataclass(frozen=True)
class ImageFacts:
    """Common properties of a set of stored images; merging is exact and order-independent."""

    height: int | None
    """Height of all images; None if they differ."""
    width: int | None
    rotated: bool
    """Whether any has an EXIF orientation other than 1."""
    formats: tuple[str, ...] = ()
    """File formats that occur, sorted: ``jpeg``, ``png``, ``gif``, ``bmp``, ``webp``; also ``cmyk``
    if a feature of one channel has JPEGs with four."""

    def merge(self, other: ImageFacts) -> ImageFacts:
        """The facts of both sets together."""
        return ImageFacts(
            self.height if self.height == other.height else None,
            self.width if self.width == other.width else None,
            self.rotated or other.rotated,
            tuple(sorted({*self.formats, *other.formats})),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunInfo:
    """One run: the prepared records of one block, sorted by (partition, key, id)."""

    run_id: str
    """Hash of the block, the prepare code, its settings and libraries: 32 hex digits."""
    num_records: int
    num_bytes: int
    """Length of the run's file."""
    num_rejects: int
    rejects_sha256: str
    """SHA-256 of the file of its rejects; empty if there are none."""
    batches: Sequence[BatchInfo]
    image_facts: Mapping[str, ImageFacts] = dataclasses.field(default_factory=dict)
    """Common properties of the records' images, by feature."""
    num_filtered: int = 0
    """Records that a step dropped on purpose."""
    num_excluded: int = 0
    """Records that the recipe excludes."""
    rejects_by_stage: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Number of rejects by stage."""

    def to_json(self) -> dict[str, object]:
        """The facts as plain JSON; :meth:`from_json` is the inverse."""
        value = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        value["batches"] = [list(dataclasses.astuple(batch)) for batch in self.batches]
        value["image_facts"] = {
            name: list(dataclasses.astuple(facts)) for name, facts in self.image_facts.items()
        }
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunInfo:
        """Reads the output of :meth:`to_json`."""
        names = [field.name for field in dataclasses.fields(BatchInfo)]
        batches = tuple(
            BatchInfo(**dict(zip(names, batch, strict=True))) for batch in value["batches"]
        )
        facts = {
            name: ImageFacts(height, width, rotated, tuple(formats))
            for name, (height, width, rotated, formats) in value["image_facts"].items()
        }
        return cls(**{**value, "batches": batches, "image_facts": facts})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """A planned shard: the records in a key range of a partition.

    A record of ``partition`` belongs to it if ``start_key <= key < stop_key`` and, in a stratified
    split, the range of its stratum contains the key too: see ``SplitPlan``.
    """

    split: str
    index: int
    num_shards: int
    partition: int
    start_key: int
    stop_key: int
    num_examples: int
    """Exact."""
    num_bytes: int
    """Encoded, uncompressed bytes; exact if there is no ``preprocessing_fn``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """A planned split and its shards."""

    name: str
    shards: tuple[ShardPlan, ...]
    strata: Mapping[str, tuple[int, int]] | None = None
    """Stratum -> range [start, stop) of its keys in this split; None unless stratified."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """One verified shard in its final place."""

    file: str
    num_examples: int
    num_bytes: int
    """Length of the file."""
    sha256: str
    label_counts: Mapping[str, int]
    """Examples by label: all classes that occur, or the most frequent of other labels."""
    lengths: Mapping[str, Sequence[int]]
    """A sample: lengths of the lists in the first records, by feature."""
    num_missing: Mapping[str, int]
    """Number of records without a value, by feature that may be missing."""
    statistics: Mapping[str, Any]
    """What was measured of its records, as ``ShardStatistics`` writes it."""
    start_key: int
    stop_key: int
    index_files: Mapping[str, tuple[int, str]]
    """Name relative to the snapshot -> (bytes, sha256) of the shard's index files."""
    checksum: int | None = None
    """See ``TFRecordFile``; also None for shards written by versions that did not record it."""

    def to_json(self) -> dict[str, object]:
        """The facts as plain JSON; :meth:`from_json` is the inverse."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShardInfo:
        """Reads the output of :meth:`to_json`."""
        index_files = {name: (pair[0], pair[1]) for name, pair in value["index_files"].items()}
        return cls(**{**value, "index_files": index_files})
