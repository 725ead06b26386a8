"""Compares the records of two snapshots in bounded memory, whatever their number.

The splits of a snapshot are sorted by key, a hash of id and seed. With one seed, a range of keys
is contiguous in each split of both snapshots: ranges are read and compared one after another. If
the seeds differ, or records are out of order, they are first partitioned by key into files of a
scratch folder, which are then compared.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.manifest import ShardEntry
from ...schemas.naming import ShardName
from ...schemas.progress import Progress
from ...transforms import storage
from ...transforms.examples.stored_records import DIGEST_BYTES, StoredRecords, read_shard
from ..snapshot import Snapshot

STEP = "compare"
_PART_RECORDS = 1 << 18
"""Approximate number of records of each snapshot in one file of the scratch folder."""
_MAX_PART_BITS = 9
_PART_SCHEMA = pa.schema(
    [
        pa.field("key", pa.uint64()),
        pa.field("id", pa.large_binary()),
        pa.field("content", pa.binary(DIGEST_BYTES)),
        pa.field("split", pa.int16()),
    ]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparedRecords:
    """Records of both snapshots whose keys are in one range, side by side.

    ``old[pairs[:, 0]]`` and ``new[pairs[:, 1]]`` have the same ids.
    """

    old: StoredRecords
    new: StoredRecords
    pairs: npt.NDArray[np.int64]
    """int64[n, 2]: rows of the records that are in both."""
    removed: npt.NDArray[np.int64]
    """int64[n]: rows of ``old`` whose ids are not in ``new`` …"""
    added: npt.NDArray[np.int64]
    """… and of ``new`` whose ids are not in ``old``."""


class OutOfOrderError(Exception):
    """Records are not in the order of the keys of their ids."""


def compare_records(
    old: Snapshot, new: Snapshot, *, progress: Progress, contents: bool, sorted_alike: bool
) -> Iterator[ComparedRecords]:
    """Compares the records of two snapshots, range by range of their keys.

    Shards that both have, byte for byte, are left out: nothing in them differs.

    Args:
        old: A snapshot.
        new: Another one.
        progress: Receives the number of records compared.
        contents: Whether to compare contents; else only ids and splits.
        sorted_alike: Whether both are in the order of the same keys: then nothing is written.

    Raises:
        OutOfOrderError: if they are not, although ``sorted_alike`` says so.
        DamagedSnapshotError: if shards contradict their indexes.
        StorageError: if a file cannot be read.
    """
    numbers = {name: number for number, name in enumerate(split_names(old, new))}
    sides = [
        _Side(snapshot, _unshared_shards(snapshot, other), numbers, old.manifest.seed, contents)
        for snapshot, other in ((old, new), (new, old))
    ]
    progress.start(STEP, total=sum(side.num_records for side in sides), unit="records")
    progress.advance(STEP, done=0)
    num_done = 0
    for first, second in _by_order(sides) if sorted_alike else _by_parts(sides):
        yield _paired(first, second)
        num_done += len(first) + len(second)
        progress.advance(STEP, done=num_done)
    progress.finish(STEP, reused=False)


def num_records(snapshot: Snapshot) -> int:
    """The number of records of all splits."""
    return sum(split.num_examples for split in snapshot.manifest.splits.values())


def num_shared(old: Snapshot, new: Snapshot) -> int:
    """The number of records in shards that both snapshots have."""
    own = sum(
        shard.num_examples for shards in _unshared_shards(old, new).values() for shard in shards
    )
    return num_records(old) - own


def split_names(old: Snapshot, new: Snapshot) -> list[str]:
    """The splits of both snapshots: the number of each is its position here."""
    return list(dict.fromkeys([*new.manifest.splits, *old.manifest.splits]))


def _unshared_shards(snapshot: Snapshot, other: Snapshot) -> dict[str, list[ShardEntry]]:
    """A snapshot's shards by split, without those that the other one has in the same split."""
    known = {
        (split, *_hashes(other, shard))
        for split, entry in other.manifest.splits.items()
        for shard in entry.shards
    }
    return {
        split: [shard for shard in entry.shards if (split, *_hashes(snapshot, shard)) not in known]
        for split, entry in snapshot.manifest.splits.items()
    }


def _hashes(snapshot: Snapshot, shard: ShardEntry) -> tuple[str, str]:
    """The hashes of a shard, and of the file with the ids of its records."""
    name = ShardName.parse(shard.file)
    entry = None if name is None else snapshot.manifest.files.get(name.index_files[1])
    return shard.sha256, snapshot.path if entry is None else entry.sha256


@dataclasses.dataclass(frozen=True)
class _Side:
    """One snapshot of a comparison."""

    snapshot: Snapshot
    shards: dict[str, list[ShardEntry]]
    """By split."""
    numbers: dict[str, int]
    """Numbers of the splits."""
    seed: int
    contents: bool

    @property
    def num_records(self) -> int:
        return sum(shard.num_examples for shards in self.shards.values() for shard in shards)

    def read(self, split: str) -> Iterator[StoredRecords]:
        """The records of a split, in batches."""
        for shard in self.shards[split]:
            yield from read_shard(
                self.snapshot.path,
                shard,
                split=self.numbers[split],
                seed=self.seed,
                contents=self.contents,
            )


def _by_order(sides: Sequence[_Side]) -> Iterator[tuple[StoredRecords, StoredRecords]]:
    """Records of both sides by key range; all splits are sorted by key."""
    streams = [[_Stream(side.read(split)) for split in side.shards] for side in sides]
    while True:
        going = [stream for side in streams for stream in side if not stream.ended]
        # A batch may begin with the key that the previous one ends with.
        stop = min((stream.last_key for stream in going), default=None)
        first, second = (
            StoredRecords.concat([stream.below(stop) for stream in side]) for side in streams
        )
        if len(first) or len(second):
            yield first, second
        if stop is None:
            return
        for stream in going:
            if stream.last_key == stop:
                stream.more()


class _Stream:
    """The records of one split, in the order of their keys."""

    def __init__(self, batches: Iterator[StoredRecords]) -> None:
        self._batches = batches
        self._last = 0
        self._held = StoredRecords.concat([])
        self.ended = False
        self.more()

    @property
    def last_key(self) -> int:
        """The largest key read so far: no later one is smaller."""
        return self._last

    def more(self) -> None:
        """Reads another batch."""
        batch = next(self._batches, None)
        if batch is None:
            self.ended = True
            return
        if not len(batch):
            return
        keys = batch.keys
        if int(keys[0]) < self._last or (keys[1:] < keys[:-1]).any():
            raise OutOfOrderError
        self._last = int(keys[-1])
        self._held = StoredRecords.concat([self._held, batch])

    def below(self, stop: int | None) -> StoredRecords:
        """Takes the records with smaller keys; all remaining ones if ``stop`` is None."""
        held = self._held
        place = len(held)
        if stop is not None:
            place = int(np.searchsorted(held.keys, np.uint64(stop), side="left"))
        self._held = held.take(slice(place, None))
        return held.take(slice(0, place))


def _by_parts(sides: Sequence[_Side]) -> Iterator[tuple[StoredRecords, StoredRecords]]:
    """Records of both sides by key range, partitioned on disk."""
    largest = max(side.num_records for side in sides)
    bits = max(0, min(_MAX_PART_BITS, (largest // _PART_RECORDS).bit_length()))
    with storage.temporary_folder() as scratch:
        folders = [os.path.join(scratch, str(index)) for index in range(len(sides))]
        for side, folder in zip(sides, folders, strict=True):
            _divide(side, folder, bits=bits)
        for part in range(1 << bits):
            first, second = (_read_part(os.path.join(folder, f"{part}")) for folder in folders)
            yield first, second


def _divide(side: _Side, folder: str, *, bits: int) -> None:
    """Writes the records of a side to one file for each value of the first bits of their keys."""
    os.makedirs(folder)
    with contextlib.ExitStack() as stack:
        files: dict[int, Any] = {}
        for split in side.shards:
            for batch in side.read(split):
                parts = (batch.keys >> np.uint64(63 - bits) >> np.uint64(1)).astype(np.int64)
                for part in np.unique(parts).tolist():
                    if part not in files:
                        sink = pa.OSFile(os.path.join(folder, f"{part}"), "wb")
                        stack.enter_context(sink)
                        files[part] = stack.enter_context(pa.ipc.new_stream(sink, _PART_SCHEMA))
                    files[part].write_batch(_as_arrow(batch.take(parts == part)))


def _as_arrow(records: StoredRecords) -> pa.RecordBatch:
    contents = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(DIGEST_BYTES), len(records), [None, pa.py_buffer(records.contents.tobytes())]
    )
    columns = [pa.array(records.keys), records.ids, contents, pa.array(records.splits)]
    return pa.RecordBatch.from_arrays(columns, schema=_PART_SCHEMA)


def _read_part(path: str) -> StoredRecords:
    if not os.path.exists(path):
        return StoredRecords.concat([])
    with pa.OSFile(path, "rb") as source, pa.ipc.open_stream(source) as reader:
        table = reader.read_all().combine_chunks()
    keys, ids, contents, splits = (
        column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        for column in table.columns
    )
    return StoredRecords(
        keys=keys.to_numpy(),
        ids=ids,
        contents=np.frombuffer(contents.buffers()[1], np.uint64).reshape(-1, 2)[: len(contents)],
        splits=splits.to_numpy(),
    )


def _paired(old: StoredRecords, new: StoredRecords) -> ComparedRecords:
    """Pairs the records whose ids are on both sides."""
    old_ids, new_ids = old.ids, new.ids
    if not (_are_distinct(old_ids) and _are_distinct(new_ids)):
        old_ids, new_ids = _numbered(old_ids), _numbered(new_ids)
    places = pc.index_in(old_ids, value_set=new_ids)
    kept = places.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(kept)
    partners = places.drop_null().to_numpy().astype(np.int64)
    left_over = np.ones(len(new), bool)
    left_over[partners] = False
    return ComparedRecords(
        old=old,
        new=new,
        pairs=np.stack([rows, partners], axis=1),
        removed=np.flatnonzero(~kept),
        added=np.flatnonzero(left_over),
    )


def _are_distinct(ids: pa.Array) -> bool:
    return bool(pc.count_distinct(ids).as_py() == len(ids))


def _numbered(ids: pa.Array) -> pa.Array:
    """Each id with the number of its earlier occurrences."""
    seen: collections.Counter[bytes] = collections.Counter()
    numbered = []
    for record_id in ids.to_pylist():
        numbered.append(b"%b#%d" % (record_id, seen[record_id]))
        seen[record_id] += 1
    return pa.array(numbered, pa.large_binary())
