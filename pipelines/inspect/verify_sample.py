"""A quick look at a snapshot: all names and lengths, small files whole, and a sample of records.

Records are read by range, through the index. A compressed shard has no places to read from: of
such a snapshot whole shards are drawn, and held against their hashes.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Mapping

from ...schemas.errors import RecipeError, StorageError
from ...schemas.manifest import Manifest, ShardEntry
from ...schemas.naming import ShardName
from ...schemas.progress import Progress
from ...transforms.examples.index import index_from_bytes
from ...transforms.examples.tfrecord import FRAME_BYTES, frame_trouble
from ..snapshot_files import FoundFile, SnapshotFiles
from .verify_contents import ContentChecker
from .verify_index import read_id
from .verify_report import Finding, Findings, Sampled

SMALL_BYTES = 1 << 20
"""Files up to this length are held against their hashes, shards and their indexes apart."""
_MIN_PLACES = 64
_MAX_STRETCH = 64
_MAX_READ_BYTES = 16 << 20
_PAIR_BYTES = 16
_STEP = "verify"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleSize:
    """How many records to look at, and which."""

    fraction: float | None = None
    """Of all records, above 0 and up to 1 …"""
    count: int | None = None
    """… or so many."""
    seed: int = 0
    """Another seed draws other records."""

    @classmethod
    def parse(cls, text: str, *, seed: int = 0) -> SampleSize:
        """Reads ``1%``, ``0.01`` or ``500`` (records).

        Raises:
            RecipeError: if it is none of these.
        """
        number = text.strip()
        try:
            if number.endswith("%"):
                found = cls(fraction=float(number[:-1]) / 100, seed=seed)
            elif number.isdecimal():
                found = cls(count=int(number), seed=seed)
            else:
                found = cls(fraction=float(number), seed=seed)
        except ValueError:
            found = cls(seed=seed)
        if not (0 < (found.fraction or 0) <= 1 or (found.count or 0) > 0):
            raise RecipeError(
                f"--sample {text!r}: expected a share such as 1% or 0.01, or a number of records "
                "such as 500."
            )
        return found

    def of(self, total: int) -> int:
        """How many of so many records."""
        if self.count is not None:
            return min(total, self.count)
        return min(total, math.ceil(total * (self.fraction or 0)))


def check_sample(
    files: SnapshotFiles,
    found: Mapping[str, FoundFile],
    manifest: Manifest,
    present: set[str],
    *,
    findings: Findings,
    size: SampleSize,
    progress: Progress,
) -> Sampled:
    """Looks at the files that are there: lengths of all, contents of some.

    Args:
        files: The snapshot's.
        found: What lies under which name.
        manifest: What should lie there.
        present: Names of the files that can be opened.
        findings: Where to note what is wrong.
        size: How many records to read.
        progress: Told how many places of shards have been looked at.
    """
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    large = {shard.file for shard in shards}
    for shard in shards:
        parsed = ShardName.parse(shard.file)
        large.update(() if parsed is None else (*parsed.index_files, parsed.labels_file))
    checker = ContentChecker(files, manifest, findings)
    odd, num_hashed = set(), 0
    for name in sorted(present):
        entry = manifest.files[name]
        if name not in large and found[name].num_bytes <= SMALL_BYTES:
            checker.check(name, found[name])
            num_hashed += 1
        elif found[name].num_bytes != entry.bytes:
            odd.add(name)
            what = f"has {found[name].num_bytes:,} bytes, expected {entry.bytes:,}"
            findings.damage(name, "length", what)
    total = sum(shard.num_examples for shard in shards)
    wanted = size.of(total)
    rng = random.Random(size.seed)
    readable = [shard for shard in shards if _is_readable(shard, manifest, present - odd)]
    if manifest.compression == "gzip":
        chosen = _choose_shards(readable, wanted, rng)
        progress.start(_STEP, total=len(chosen), unit="shards")
        for done, shard in enumerate(chosen, start=1):
            checker.check(shard.file, found[shard.file])
            progress.advance(_STEP, done=done)
        checker.look_closer(present)
        num_records = sum(shard.num_examples for shard in chosen)
        num_hashed += len(chosen)
    else:
        stretches = list(_choose_stretches(readable, wanted, rng))
        stretches.sort(key=lambda stretch: (stretch[0].file, stretch[1]))
        progress.start(_STEP, total=len(stretches), unit="places")
        num_records = 0
        for done, (shard, first, number) in enumerate(stretches, start=1):
            try:
                _Place(files, shard, findings, usable=present - odd).check(first, number)
                num_records += number
            except StorageError as error:
                findings.cannot(shard.file, str(error))
            progress.advance(_STEP, done=done)
    progress.finish(_STEP, reused=False)
    return Sampled(
        num_records=num_records,
        total_records=total,
        num_bytes_read=files.num_bytes_read,
        total_bytes=sum(entry.bytes for entry in manifest.files.values()),
        num_hashed=num_hashed,
        seed=size.seed,
    )


def _is_readable(shard: ShardEntry, manifest: Manifest, usable: set[str]) -> bool:
    """Whether a shard is there, with an index of as many records as it is said to have."""
    name = ShardName.parse(shard.file)
    if name is None or not usable.issuperset((shard.file, name.index_files[0])):
        return False
    return manifest.files[name.index_files[0]].bytes == _PAIR_BYTES * shard.num_examples


def _choose_shards(shards: list[ShardEntry], wanted: int, rng: random.Random) -> list[ShardEntry]:
    """Shards at random, until they hold as many records as are wanted."""
    chosen: list[ShardEntry] = []
    held = 0
    for shard in rng.sample(shards, len(shards)):
        if held >= wanted:
            break
        chosen.append(shard)
        held += shard.num_examples
    return chosen


def _choose_stretches(
    shards: list[ShardEntry], wanted: int, rng: random.Random
) -> Iterator[tuple[ShardEntry, int, int]]:
    """Records at random places, in short stretches: the shard, the first one, how many.

    A stretch is one request on a store: of few records each is a place of its own, of many
    up to 64 neighbours are.
    """
    total = sum(shard.num_examples for shard in shards)
    length = max(1, min(_MAX_STRETCH, wanted // _MIN_PLACES))
    # Numbers of the places before each shard's.
    ends = list(itertools.accumulate(-(-shard.num_examples // length) for shard in shards))
    num_places = ends[-1] if ends else 0
    left = min(wanted, total)
    # A shard's last stretch may be shorter.
    num_drawn = min(num_places, -(-left // length) + len(shards))
    for place in rng.sample(range(num_places), num_drawn):
        if not left:
            return
        at = bisect.bisect_right(ends, place)
        shard = shards[at]
        first = (place - (ends[at - 1] if at else 0)) * length
        number = min(length, shard.num_examples - first, left)
        yield shard, first, number
        left -= number


class _Place:
    """Some neighbouring records of one shard."""

    def __init__(
        self, files: SnapshotFiles, shard: ShardEntry, findings: Findings, *, usable: set[str]
    ) -> None:
        self._files = files
        self._shard = shard
        self._findings = findings
        self._usable = usable

    def check(self, first: int, number: int) -> None:
        """Reads their offsets and then their bytes: two requests."""
        name = ShardName.parse(self._shard.file)
        if name is None:
            return
        offsets_file, table = name.index_files
        content = self._files.read(
            offsets_file, _PAIR_BYTES * first, _PAIR_BYTES * (first + number)
        )
        if len(content) != _PAIR_BYTES * number:
            self._note(offsets_file, first, "does not fit its shard: it ends before", offset=None)
            return
        offsets, lengths = index_from_bytes(content)
        at = int(offsets[0])
        for n, (offset, length) in enumerate(zip(offsets.tolist(), lengths.tolist(), strict=True)):
            if offset != at or length < FRAME_BYTES or at + length > self._shard.num_bytes:
                self._note(
                    offsets_file,
                    first + n,
                    f"does not fit its shard: it tells {length:,} bytes from byte {offset:,}",
                    offset=None,
                )
                return
            at += length
        start = 0
        while start < number:
            stop = start + 1
            base = int(offsets[start])
            while stop < number and int(offsets[stop] + lengths[stop]) - base <= _MAX_READ_BYTES:
                stop += 1
            end = int(offsets[stop - 1] + lengths[stop - 1])
            held = self._files.read(self._shard.file, base, end)
            for n in range(start, stop):
                offset, length = int(offsets[n]), int(lengths[n])
                trouble = frame_trouble(held[offset - base : offset - base + length], length)
                if trouble is not None:
                    trouble += " (or the index is not that of the shard)"
                    record_id = self._id(table, first + n)
                    self._note(
                        self._shard.file, first + n, trouble, offset=offset, record_id=record_id
                    )
            start = stop

    def _id(self, table: str, record: int) -> str | None:
        try:
            return read_id(self._files.read(table), record) if table in self._usable else None
        except StorageError:
            return None

    def _note(
        self,
        file: str,
        record: int,
        what: str,
        *,
        offset: int | None,
        record_id: str | None = None,
    ) -> None:
        self._findings.damages.append(
            Finding(
                file=file,
                kind="record" if file == self._shard.file else "index",
                what=what,
                record=record,
                offset=offset,
                record_id=record_id,
            )
        )
