"""Runs: sorted Arrow IPC files of prepared records, written once and read by key range.

A run holds the records of one block, sorted by (partition, key, id), in record batches of about
256 KiB. The run's :class:`RunInfo` has the offset, first key and checksum of each batch, so one
ranged request fetches any slice, and the result is checked. Merging the slices of all runs gives
the records of a key range in their final order: an external merge sort whose shuffle is range
reads.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.blocks import BatchInfo
from ...schemas.errors import DamagedWorkError, StorageError
from ...schemas.features import RESERVED_PREFIX, Features, WireColumn, wire_columns
from .. import storage
from ..activity import advance
from ..storage.artifacts import is_lost

PARTITION = RESERVED_PREFIX + "partition"
KEY = RESERVED_PREFIX + "key"
ID = RESERVED_PREFIX + "id"
NUM_BYTES = RESERVED_PREFIX + "bytes"
STRATUM = RESERVED_PREFIX + "stratum"
CONTENT = RESERVED_PREFIX + "content"

BATCH_BYTES = 256 << 10
"""Approximate size of a record batch, the unit of range reads …"""
_COLUMN_BYTES = 512
"""… or this for each column, if that is more: a batch describes each of its columns."""
MERGE_BYTES = 16 << 20
"""Approximate number of bytes, from all runs together, that are merged at once …"""
_SLICE_BYTES, _SLICE_BYTES_OF_STORE = 64 << 10, 256 << 10
"""… or of each run, if that is more. A store takes as long for a small slice as for a large one."""

_SCAN_BYTES = 1 << 20
"""Bytes that a scan reads in one request."""
_STEPS = 16
"""Places at which a part may end within each batch."""
_MAGIC_BYTES = 8
_REDONE = "Start the build again to recreate it."
_META = (
    pa.field(PARTITION, pa.int16(), nullable=False),
    pa.field(KEY, pa.uint64(), nullable=False),
    pa.field(ID, pa.large_binary(), nullable=False),
    pa.field(NUM_BYTES, pa.int64(), nullable=False),
)
_VALUES = {"bytes": pa.large_binary(), "int64": pa.int64(), "float32": pa.float32()}


def arrow_type(column: WireColumn) -> pa.DataType:
    """The Arrow type of a wire column in a run."""
    value = _VALUES[column.kind]
    if column.length is None:
        return pa.large_list(value)
    return value if column.length == 1 else pa.list_(value, column.length)


def wire_schema(features: Features) -> pa.Schema:
    """The Arrow schema of records in wire form, columns sorted by name."""
    return pa.schema(
        [pa.field(c.name, arrow_type(c), nullable=c.optional) for c in wire_columns(features)]
    )


def run_schema(features: Features) -> pa.Schema:
    """The Arrow schema of a run: partition, key, id, encoded size, then the features."""
    return pa.schema([*_META, *wire_schema(features)])


def keys_schema() -> pa.Schema:
    """The Arrow schema of a run's key file, which planning reads instead of the run."""
    stratum = pa.field(STRATUM, pa.large_string(), nullable=True)
    content = pa.field(CONTENT, pa.uint64(), nullable=False)
    return pa.schema([_META[0], _META[1], _META[3], stratum, content])


@dataclasses.dataclass(frozen=True)
class KeyRange:
    """Keys [start, stop) of one partition."""

    partition: int
    start: int
    stop: int


def sort_records(records: pa.RecordBatch) -> pa.RecordBatch:
    """Sorts records by (partition, key, id)."""
    partitions = records.column(PARTITION).to_numpy()
    keys = records.column(KEY).to_numpy()
    order = np.lexsort((keys, partitions))
    keys, partitions = keys[order], partitions[order]
    ties = (keys[1:] == keys[:-1]) & (partitions[1:] == partitions[:-1])
    if ties.any():
        # Equal 64-bit keys are rare: only then sort by id, too.
        names = (PARTITION, KEY, *((ID,) if ID in records.schema.names else ()))
        order = pc.sort_indices(records, sort_keys=[(name, "ascending") for name in names])
    elif np.array_equal(order, np.arange(len(order))):
        return records
    return records.take(pa.array(order))


def slices_of(records: pa.RecordBatch, slice_bytes: int) -> Iterator[pa.RecordBatch]:
    """Consecutive slices of about so many bytes, of at least one record."""
    rows = max(1, slice_bytes * records.num_rows // max(1, records.nbytes))
    for start in range(0, records.num_rows, rows):
        yield records.slice(start, rows)


class RunWriter:
    """Writes sorted records into one local Arrow IPC file, batch by batch.

    Use as a context manager; ``num_bytes`` is valid once it is closed.
    """

    def __init__(self, path: str, schema: pa.Schema) -> None:
        """Creates the file at ``path``."""
        self._path = path
        self._sink = pa.OSFile(path, "wb")
        self._fd = os.open(path, os.O_RDONLY)
        self._writer = pa.ipc.new_file(self._sink, schema)
        # Arrow writes the header (magic bytes and schema) together with the first batch.
        self._end = _MAGIC_BYTES + schema.serialize().size
        self._last: tuple[int, int] | None = None
        self.batches: list[BatchInfo] = []
        self.num_records = 0

    def write(self, records: pa.RecordBatch) -> None:
        """Appends sorted records, in record batches of about BATCH_BYTES.

        Raises:
            ValueError: if they are not in the order of (partition, key).
        """
        batch_bytes = max(BATCH_BYTES, _COLUMN_BYTES * records.num_columns)
        for batch in slices_of(records, batch_bytes):
            self._write_batch(batch)

    def _write_batch(self, batch: pa.RecordBatch) -> None:
        first = (batch.column(PARTITION)[0].as_py(), batch.column(KEY)[0].as_py())
        if self._last is not None and first < self._last:
            raise ValueError(f"records out of order in {self._path}: {first} after {self._last}")
        last = batch.num_rows - 1
        self._last = (batch.column(PARTITION)[last].as_py(), batch.column(KEY)[last].as_py())
        offset = self._end
        self._writer.write_batch(batch)
        advance()
        self._end = self._sink.tell()
        self.batches.append(
            BatchInfo(
                offset=offset,
                num_bytes=self._end - offset,
                num_records=batch.num_rows,
                partition=first[0],
                key=first[1],
                # Read back from the file: Arrow writes a batch in many small parts.
                checksum=google_crc32c.value(os.pread(self._fd, self._end - offset, offset)),
            )
        )
        self.num_records += batch.num_rows

    def close(self) -> None:
        """Completes and closes the file; closes it also where a disk is full."""
        with contextlib.ExitStack() as closing:  # the last one first
            closing.callback(os.close, self._fd)
            closing.callback(self._sink.close)
            closing.callback(self._writer.close)

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_bytes(self) -> int:
        """Length of the closed file."""
        return os.path.getsize(self._path)


BATCH_COLUMNS = pa.schema(
    [
        (field.name, pa.uint64() if field.name == "key" else pa.int64())
        for field in dataclasses.fields(BatchInfo)
    ]
)


def table_of_batches(batches: Iterable[BatchInfo]) -> pa.RecordBatch:
    """Batches as columns, 48 bytes for each."""
    rows = list(zip(*map(dataclasses.astuple, batches), strict=True)) or [()] * len(BATCH_COLUMNS)
    columns = [pa.array(row, field.type) for row, field in zip(rows, BATCH_COLUMNS, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=BATCH_COLUMNS)


class Batches(Sequence[BatchInfo]):
    """The batches of a run: rows of a table that has those of many runs, loaded when needed."""

    def __init__(self, load: Callable[[], pa.RecordBatch], start: int, stop: int) -> None:
        """Stores how to load the table, and which of its rows these are: [start, stop)."""
        self._load, self._start, self._stop = load, start, stop

    @classmethod
    def of(cls, batches: Sequence[BatchInfo]) -> Batches:
        """The batches as such a sequence."""
        if isinstance(batches, Batches):
            return batches
        return cls(functools.cache(lambda: table_of_batches(batches)), 0, len(batches))

    @functools.cached_property
    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        """The fields of the batches: views of the table."""
        rows = self._load().slice(self._start, len(self))
        return {name: rows.column(name).to_numpy() for name in BATCH_COLUMNS.names}

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> BatchInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[BatchInfo]: ...
    def __getitem__(self, index: int | slice) -> BatchInfo | Sequence[BatchInfo]:
        """A batch, or several of them."""
        if isinstance(index, int):
            return BatchInfo(**{name: col[index].item() for name, col in self._columns.items()})
        rows = zip(*(column[index].tolist() for column in self._columns.values()), strict=True)
        return [BatchInfo(**dict(zip(self._columns, row, strict=True))) for row in rows]

    def __iter__(self) -> Iterator[BatchInfo]:
        return iter(self[:])

    def before(self, partition: int, key: int) -> int:
        """How many batches begin before a key of a partition."""
        partitions = self._columns["partition"]
        low = bisect.bisect_left(partitions, partition)
        high = bisect.bisect_right(partitions, partition, low)
        return bisect.bisect_left(self._columns["key"], key, low, high)


class RunReader:
    """Reads slices of one run, local or remote, with one ranged read each.

    Every batch is checked against its checksum. A run that is missing, truncated or altered
    raises a DamagedWorkError, and no record of a damaged batch is returned.
    """

    def __init__(self, url: str, batches: Sequence[BatchInfo], schema: pa.Schema) -> None:
        """Stores the run's description; opens nothing."""
        self.url = url
        self._schema = schema
        self.batches = Batches.of(batches)

    def _overlap(self, keys: KeyRange) -> tuple[int, int]:
        """Indices [first, stop) of the batches that may hold records of the range."""
        # The batch before the first one that starts inside may end inside.
        first = self.batches.before(keys.partition, keys.start) - 1
        return max(first, 0), self.batches.before(keys.partition, keys.stop)

    def spans(self, keys: KeyRange) -> Iterator[tuple[int, int, float]]:
        """(start, stop, bytes) of the part of each batch that may be in a range.

        Keys are hashes: half of a batch's keys hold about half of its bytes.
        """
        first, stop = self._overlap(keys)
        batches = self.batches[first : stop + 1]
        for batch, following in zip(batches[: stop - first], [*batches[1:], None], strict=False):
            begin = batch.key if batch.partition == keys.partition else keys.start
            end = max(begin, keys.stop)
            if following is not None and following.partition == keys.partition:
                end = following.key
            inside = max(begin, keys.start), min(end, keys.stop)
            share = (inside[1] - inside[0]) / (end - begin) if begin < end else 1.0
            yield *inside, batch.num_bytes * share

    def scan(self, keys: KeyRange | None = None) -> Iterator[pa.RecordBatch]:
        """All records, or those of a range, batch by batch, in order."""
        wanted = self.batches if keys is None else self.batches[slice(*self._overlap(keys))]
        # Each stretch starts in another _SCAN_BYTES of the file.
        for _, stretch in itertools.groupby(wanted, lambda info: info.offset // _SCAN_BYTES):
            for batch in self._fetch(list(stretch)):
                yield batch if keys is None else records_within(batch, keys)

    def read(self, keys: KeyRange) -> list[pa.RecordBatch]:
        """The records of the range, in order."""
        first, stop = self._overlap(keys)
        if first >= stop:
            return []
        inside = (records_within(batch, keys) for batch in self._fetch(self.batches[first:stop]))
        # Copied: a slice would keep all of its batch in memory, and so a batch of every run.
        return [pa.concat_batches([batch]) for batch in inside if batch.num_rows]

    def read_all(self, ranges: KeyRanges) -> Iterator[pa.RecordBatch]:
        """The records of several ranges; reads each batch once, consecutive ones in one request."""
        batches = self.batches[:]
        stretch: list[BatchInfo] = []
        for info, following in zip(batches, [*batches[1:], None], strict=False):
            if ranges.overlap(info, following):
                stretch.append(info)
            elif stretch:
                yield from map(ranges.select, self._fetch(stretch))
                stretch = []
        if stretch:
            yield from map(ranges.select, self._fetch(stretch))

    def _fetch(self, wanted: Sequence[BatchInfo]) -> Iterator[pa.RecordBatch]:
        """Fetches consecutive batches in one request, and checks each."""
        origin, stop = wanted[0].offset, wanted[-1].offset + wanted[-1].num_bytes
        try:
            content = storage.read_bytes(self.url, start=origin, stop=stop)
        except StorageError as error:
            if not is_lost(error):
                raise
            raise DamagedWorkError(f"{error} {_REDONE}") from None
        buffer = pa.py_buffer(content)
        for info in wanted:
            start = info.offset - origin
            # Slices the buffer: slicing bytes would copy. Shorter if the file is truncated.
            message = buffer[start : start + info.num_bytes]
            if message.size != info.num_bytes or google_crc32c.value(message) != info.checksum:
                raise DamagedWorkError(
                    f"{storage.redact(self.url)} is damaged: the checksum of {info.num_bytes:,} "
                    f"bytes at {info.offset:,} is wrong. {_REDONE}"
                )
            yield pa.ipc.read_record_batch(pa.ipc.read_message(message), self._schema)


class KeyRanges:
    """Several key ranges. Made once for all runs: most plans ask for thousands of ranges."""

    def __init__(self, ranges: Sequence[KeyRange]) -> None:
        """Stores the ranges, which must be in ascending order, without overlaps."""
        self._starts = [(keys.partition, keys.start) for keys in ranges]
        self._stops = [(keys.partition, keys.stop) for keys in ranges]
        self._of_partition = {
            partition: (
                np.array([keys.start for keys in some], np.uint64),
                # Not the stops: the last one may be 2**64.
                np.array([keys.stop - 1 for keys in some], np.uint64),
            )
            for partition, group in itertools.groupby(ranges, lambda keys: keys.partition)
            for some in [list(group)]
        }

    def overlap(self, batch: BatchInfo, following: BatchInfo | None) -> bool:
        """Whether a batch, before another one or the last one, may hold records of a range."""
        place = bisect.bisect_right(self._stops, (batch.partition, batch.key))
        return place < len(self._starts) and (
            following is None or self._starts[place] <= (following.partition, following.key)
        )

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a sorted batch that are in any of the ranges."""
        partitions, keys = batch.column(PARTITION).to_numpy(), batch.column(KEY).to_numpy()
        mask = np.zeros(len(keys), np.bool_)
        for partition, (starts, lasts) in self._of_partition.items():
            low, high = np.searchsorted(partitions, [partition, partition + 1])
            inside = keys[low:high]
            place = np.searchsorted(starts, inside, side="right")
            mask[low:high] = (place > 0) & (inside <= lasts[place - 1])
        return batch if mask.all() else batch.filter(pa.array(mask))


def records_within(batch: pa.RecordBatch, keys: KeyRange) -> pa.RecordBatch:
    """The rows of a sorted batch that are in the range."""
    partitions = batch.column(PARTITION).to_numpy()
    low = int(np.searchsorted(partitions, keys.partition, side="left"))
    high = int(np.searchsorted(partitions, keys.partition, side="right"))
    inside = batch.column(KEY).to_numpy()[low:high]
    start = low + int(np.searchsorted(inside, np.uint64(keys.start), side="left"))
    if keys.stop < 1 << 64:
        high = low + int(np.searchsorted(inside, np.uint64(keys.stop), side="left"))
    return batch.slice(start, max(0, high - start))


def split_range(
    readers: Iterable[RunReader], keys: KeyRange, *, max_bytes: int = MERGE_BYTES
) -> list[KeyRange]:
    """Cuts a key range into even parts of at most about ``max_bytes``, over all runs together.

    Not at the first keys of batches, which are alike in all runs: with 300 runs of 64 batches each,
    a part between two such keys would have 300 batches.
    """
    spans = [span for reader in readers for span in reader.spans(keys)]
    sizes = np.array([size for _, _, size in spans])
    num_parts = math.ceil(sizes.sum() / max_bytes)
    if num_parts < 2:
        return [keys] if keys.start < keys.stop else []
    # Integers: a float64 cannot distinguish the keys of a series, nor hold bytes per key of both
    # a narrow and a wide batch.
    starts = np.array([start for start, _, _ in spans], np.uint64)
    steps = np.array([(stop - start) // _STEPS for start, stop, _ in spans], np.uint64)
    places = (starts + np.arange(_STEPS, dtype=np.uint64)[:, None] * steps).ravel()
    order = np.argsort(places, kind="stable")
    filled = np.cumsum(np.tile(sizes / _STEPS, _STEPS)[order])
    ideal = filled[-1] * np.arange(1, num_parts) / num_parts
    cuts = places[order][np.searchsorted(filled, ideal)].tolist()
    inside = sorted({cut for cut in cuts if keys.start < cut < keys.stop})
    ends = itertools.pairwise([keys.start, *inside, keys.stop])
    return [KeyRange(keys.partition, start, stop) for start, stop in ends]


def merge_range(
    readers: Sequence[RunReader], keys: KeyRange, *, max_bytes: int = MERGE_BYTES
) -> Iterator[pa.RecordBatch]:
    """Merges the records of a key range from all runs, in order of (key, id).

    Yields record batches of about ``max_bytes``, or of 64 KiB from each run if that is more (256 on
    a store); needs about twice that in memory.
    """
    # For each part, a batch is read from every run, or two: smaller parts would read all data again
    # and again.
    is_local = not readers or storage.is_local(readers[0].url)
    slice_bytes = _SLICE_BYTES if is_local else _SLICE_BYTES_OF_STORE
    parts = split_range(readers, keys, max_bytes=max(max_bytes, slice_bytes * len(readers)))
    # Not a loop, which would keep each batch until the next one is merged.
    yield from filter(len, map(functools.partial(_merge, readers), parts))


def _merge(readers: Sequence[RunReader], keys: KeyRange) -> pa.RecordBatch | tuple[()]:
    """The records of a key range from all runs, in order of (key, id); () if there are none."""
    batches = [batch for reader in readers for batch in reader.read(keys)]
    if not batches:
        return ()
    merged = pa.concat_batches(batches)
    batches.clear()
    return sort_records(merged)
