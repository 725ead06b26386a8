"""What each of several workers reads of a split, by the arithmetic of the emitted reader.

``dataset(…, shard=(index, count))`` divides in the same way; the tests hold both against each
other.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...schemas.errors import DamagedSnapshotError
from ...schemas.manifest import ShardEntry, SplitEntry
from ...schemas.naming import ShardName, join
from ...transforms import storage
from ..snapshot import Snapshot

if TYPE_CHECKING:
    from .forecast import SplitForecast

_TOLERANCE = 0.05
"""So far from an even share, of it, may parts of whole shards be."""
_OFFSET_BYTES = 8
_PAIR_BYTES = 16

Shares = list[list[tuple[int, int, int]]]
"""For each worker its ranges of records: (number of the shard, first, end)."""


@dataclasses.dataclass(frozen=True)
class WorkerShare:
    """What one worker reads in an epoch."""

    num_shards: int
    """From which it reads, be it a part of one."""
    num_examples: int
    num_bytes: int
    """Of the shards' files, stored as they are."""

    def num_batches(self, batch_size: int) -> int:
        """Batches of an epoch, the short one at its end among them."""
        return -(-self.num_examples // batch_size)


@dataclasses.dataclass(frozen=True)
class SplitShares:
    """What workers read of one split."""

    name: str
    num_examples: int
    workers: tuple[WorkerShare, ...]
    even: tuple[WorkerShare, ...]
    """The same with ``equal_steps=True``, where their numbers of examples differ by one at most."""
    num_divided: int
    """Shards of which several workers read a part."""

    def equal_steps(self, batch_size: int) -> int:
        """Batches of an epoch for every worker, with ``equal_steps=True``."""
        return min(worker.num_batches(batch_size) for worker in self.even)

    def num_left_out(self, batch_size: int) -> int:
        """Examples that are in no batch of an epoch then."""
        most = self.equal_steps(batch_size) * batch_size
        return sum(max(0, worker.num_examples - most) for worker in self.even)


def divide(sizes: Sequence[int], count: int, *, even: bool) -> Shares:
    """The ranges of records that make up each of ``count`` parts, every record in one.

    Args:
        sizes: Records of each shard, in stored order.
        count: Parts.
        even: Whether their sizes may differ by one record only. Else all cuts move to the nearest
            ends of shards, if that keeps every part within 5 % of an even share.
    """
    starts = [0, *itertools.accumulate(sizes)]
    total = starts[-1]
    cuts = [total * part // count for part in range(count + 1)]
    if not even:
        whole = [_nearest(starts, cut) for cut in cuts]
        shares = [stop - start for start, stop in itertools.pairwise(whole)]
        if all(abs(share * count - total) <= _TOLERANCE * total for share in shares):
            cuts = whole
    return [list(_ranges(starts, first, last)) for first, last in itertools.pairwise(cuts)]


def _ranges(starts: Sequence[int], first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """The ranges between two places in the stored order."""
    for shard in range(bisect.bisect_right(starts, first) - 1, len(starts) - 1):
        start, stop = starts[shard], starts[shard + 1]
        if last <= start:
            return
        if max(first, start) < min(last, stop):
            yield shard, max(first, start) - start, min(last, stop) - start


def _nearest(starts: Sequence[int], cut: int) -> int:
    """The start that is nearest to a place; of two, the lower."""
    at = bisect.bisect_left(starts, cut)
    return min(starts[max(0, at - 1) : at + 1], key=lambda start: (abs(start - cut), start))


def split_shares(
    name: str,
    sizes: Sequence[int],
    *,
    num_workers: int,
    num_bytes: Callable[[int, int, int], int],
) -> SplitShares:
    """What workers get of a split.

    Args:
        name: The split's.
        sizes: Examples of each shard.
        num_workers: Among which they are divided.
        num_bytes: Gives the bytes of a range: (number of the shard, first, end).
    """

    def told(shares: Shares) -> tuple[WorkerShare, ...]:
        return tuple(
            WorkerShare(
                num_shards=len(ranges),
                num_examples=sum(end - first for _, first, end in ranges),
                num_bytes=sum(num_bytes(*part) for part in ranges),
            )
            for ranges in shares
        )

    parted = divide(sizes, num_workers, even=False)
    readers = [shard for ranges in parted for shard, _, _ in ranges]
    return SplitShares(
        name=name,
        num_examples=sum(sizes),
        workers=told(parted),
        even=told(divide(sizes, num_workers, even=True)),
        num_divided=sum(1 for _, same in itertools.groupby(readers) if len(list(same)) > 1),
    )


def shares_to_come(split: SplitForecast, num_workers: int) -> SplitShares:
    """What workers will get of a split, if its shards and its examples come out even."""
    total, num = split.num_examples, split.num_shards
    ends = [total * shard // max(1, num) for shard in range(num + 1)]
    return split_shares(
        split.name,
        [end - start for start, end in itertools.pairwise(ends)],
        num_workers=num_workers,
        num_bytes=lambda _, first, end: round(split.num_bytes * (end - first) / max(1, total)),
    )


def shares_of_snapshot(snapshot: Snapshot, num_workers: int) -> list[SplitShares]:
    """What workers get of each split of a snapshot: exact, but for parts of GZIP shards.

    Raises:
        StorageError: if an index, which tells where records lie, cannot be read.
    """
    return [
        split_shares(
            name,
            [shard.num_examples for shard in split.shards],
            num_workers=num_workers,
            num_bytes=_bytes_of_ranges(snapshot, split),
        )
        for name, split in snapshot.manifest.splits.items()
    ]


def _bytes_of_ranges(snapshot: Snapshot, split: SplitEntry) -> Callable[[int, int, int], int]:
    places: dict[tuple[str, int], int] = {}

    def place(shard: ShardEntry, record: int) -> int:
        """Where a record begins in its file."""
        if record in (0, shard.num_examples):
            return shard.num_bytes if record else 0
        if snapshot.manifest.compression == "gzip":
            return shard.num_bytes * record // shard.num_examples
        key = (shard.file, record)
        if key not in places:
            places[key] = _offset(snapshot, shard, record)
        return places[key]

    def num_bytes(number: int, first: int, end: int) -> int:
        shard = split.shards[number]
        return place(shard, end) - place(shard, first)

    return num_bytes


def _offset(snapshot: Snapshot, shard: ShardEntry, record: int) -> int:
    name = ShardName.parse(shard.file)
    if name is None:
        raise DamagedSnapshotError(
            f"{snapshot.path}: {shard.file!r} is no name of a shard, expected one such as "
            "'train-00000-of-00016.tfrecord'. Build again."
        )
    url = join(snapshot.path, name.index_files[0])
    start = record * _PAIR_BYTES
    content = storage.read_bytes(url, start, start + _OFFSET_BYTES)
    if len(content) < _OFFSET_BYTES:
        raise DamagedSnapshotError(
            f"{url} ends before record {record:,}, expected {shard.num_examples:,} records. "
            "Restore the file from a copy, or remove the snapshot and build again."
        )
    return int.from_bytes(content, "little")
