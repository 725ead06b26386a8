"""Verify: checks a snapshot's files against its manifest, without TensorFlow or Beam.

A full check hashes every file, then locates the damaged records of those that differ. A sample
checks all names and lengths, small files completely, and some records, which it reads by range
through the index. Compressed shards cannot be read by range: entire shards are drawn and hashed.
Both report everything that is wrong, not only the first problem.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import json
import math
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

from ...schemas.errors import DamagedSnapshotError, RecipeError, SnapshardError, StorageError
from ...schemas.features import ClassLabel
from ...schemas.fingerprint import digest
from ...schemas.manifest import Manifest, ShardEntry, json_checksum, read_manifest
from ...schemas.naming import (
    BUILD,
    FINGERPRINT,
    MANIFEST,
    READER_FACTS,
    SCHEMA,
    UNLISTED,
    ShardName,
    is_reader_file,
    join,
)
from ...schemas.progress import Progress
from ...transforms import storage
from ...transforms.examples.index import index_from_bytes, index_sizes
from ...transforms.examples.tfrecord import FRAME_BYTES, frame_trouble
from ..inventory.exclusions import IdList
from ..snapshot import (
    FoundFile,
    Snapshot,
    SnapshotFiles,
    build_facts,
    locate,
    manifest_bytes,
    reader_file_of,
)
from .verify_contents import ContentChecker, find_present, length_text, read_id
from .verify_report import Finding, Findings, Report, Sampled

STEP = "verify"
SMALL_BYTES = 1 << 20
"""Up to this length, a sample hashes any file that is neither a shard nor an index."""
_MIN_PLACES = 64
_MAX_STRETCH = 64
_MAX_READ_BYTES = 16 << 20
_PAIR_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Verified:
    """What was checked."""

    num_files: int
    num_bytes: int
    num_examples: int


def verify(snapshot: Snapshot, *, progress: Progress) -> Verified:
    """Checks every file: there, of its length and hash; shards record by record; none extra.

    Raises:
        DamagedSnapshotError: naming every file that is not as the manifest says and, in a
            shard, the records that are not.
        StorageError: if a file that is there cannot be read.
    """
    report = check_snapshot(snapshot.path, progress=progress)
    raise_findings(report)
    return Verified(report.num_files, report.num_bytes, report.num_examples)


def raise_findings(report: Report) -> None:
    """Raises what was found, if anything was.

    Args:
        report: Of :func:`check_snapshot`.

    Raises:
        DamagedSnapshotError: if anything is damaged.
        StorageError: if nothing is damaged, but something could not be checked.
    """
    message = "\n".join(report.lines())
    if report.damages:
        raise DamagedSnapshotError(message)
    if report.unreadable:
        raise StorageError(message)


def check_snapshot(
    path: str | os.PathLike[str],
    *,
    progress: Progress,
    sample: SampleSize | None = None,
    absent: IdList | None = None,
) -> Report:
    """Finds everything in a snapshot that differs from what was written.

    Args:
        path: A snapshot's folder, or one that holds snapshots: then the latest.
        progress: Receives the number of files checked.
        sample: Checks only this many records, and only the lengths of large files.
        absent: Ids of records that must not be there: neither in a shard, by its index, nor among
            the rejects.

    Raises:
        RecipeError: if there is no snapshot at this path, or several.
        StorageError: if the folder cannot be listed.
    """
    try:
        folder = locate(path)
    except DamagedSnapshotError as error:
        findings = Findings()
        if error.file:
            what = str(error).removeprefix(f"{error.file} ")
            findings.damage(error.file.rpartition("/")[2], "content", what)
        else:
            findings.damage(MANIFEST, "missing", str(error))
        return _make_report(storage.absolute(os.fspath(path)), None, findings)
    findings = Findings()
    manifest = _read_manifest(folder, findings)
    if manifest is None:
        return _make_report(folder, None, findings)
    _check_manifest(manifest, folder, findings)
    files = SnapshotFiles(folder)
    found, extra, refused = files.look([*sorted(manifest.files), BUILD, MANIFEST])
    for name in refused:
        findings.unchecked(name, "the folder cannot be listed")
    present = {name for name in sorted(manifest.files) if _is_there(name, found, findings)}
    for name, there in found.items():
        if there.outside is not None:
            what = f"its target is {there.outside}, which may change or disappear independently"
            findings.warn(name, "link", f"is a link that leaves the snapshot: {what}")
    for name in extra:
        if is_reader_file(name) and "/" not in name and READER_FACTS in manifest.files:
            what = (
                "belongs to an old single-file reader, which a repair replaced; it can be removed"
            )
            findings.warn(name, "extra", what)
        elif name not in UNLISTED:
            findings.damage(name, "extra", "is not in the manifest")
    limit = _check_build(files, found, manifest, findings)
    if sample is not None:
        sampled = _check_sample(
            files, found, manifest, present, findings=findings, size=sample, progress=progress
        )
        report = _make_report(folder, manifest, findings, limit=limit)
        return dataclasses.replace(report, sampled=sampled)
    progress.start(STEP, total=len(manifest.files), unit="files")
    progress.advance(STEP, done=0)
    checker = ContentChecker(files, manifest, findings)
    for done, name in enumerate(sorted(manifest.files), start=1):
        if name in present:
            checker.check(name, found[name])
        progress.advance(STEP, done=done)
    checker.locate_damage(present)
    absence = None
    if absent is not None:
        absence = find_present(files, manifest, present, absent=absent, findings=findings)
        if not (absence.found or _is_seen(folder, absent)):
            absence = dataclasses.replace(absence, is_seen=False)
    progress.finish(STEP, reused=False)
    report = _make_report(folder, manifest, findings, limit=limit)
    return dataclasses.replace(report, absence=absence)


def _is_seen(folder: str, ids: IdList) -> bool:
    """Whether any of the ids names a record that a snapshot there has, or was built without."""
    parent, _, own = folder.rstrip("/").rpartition("/")
    names = [own, *(n for n in storage.list_names(parent) if n != own and FINGERPRINT.fullmatch(n))]
    for name in names:
        try:
            snapshot = Snapshot.open(join(parent, name))
        except SnapshardError:
            continue  # no snapshot, or one that is damaged
        absence = find_present(
            SnapshotFiles(snapshot.path),
            snapshot.manifest,
            set(snapshot.manifest.files),
            absent=ids,
            findings=Findings(),
        )
        left_out = build_facts(snapshot.path).get("excluded")
        if absence.found or (absence.excluded and left_out and left_out["records"]):
            return True
    return False


def _read_manifest(folder: str, findings: Findings) -> Manifest | None:
    """The manifest, edited or not; None if it is invalid or cannot be read."""
    where = storage.redact(join(folder, MANIFEST))
    try:
        content = manifest_bytes(folder)
    except DamagedSnapshotError as error:
        findings.damage(MANIFEST, "not a file", str(error).removeprefix(f"{where} "))
        return None
    except StorageError as error:
        findings.unchecked(MANIFEST, f"{error} Nothing else can be checked without it.")
        return None
    try:
        manifest, checksum = read_manifest(content, where=where)
    except DamagedSnapshotError as error:
        what = str(error).removeprefix(f"{where} ").partition(" Build again with --repair")[0]
        findings.manifest(f"{what} Nothing else can be checked without it.")
        return None
    if checksum == "wrong":
        findings.manifest("was edited or is damaged: its checksum does not match its content")
    if checksum == "missing":
        findings.manifest("has no checksum: it predates checksums, or was edited")
    return manifest


def _check_manifest(manifest: Manifest, folder: str, findings: Findings) -> None:
    """Notes where the manifest contradicts itself or its location."""
    last = folder.rstrip("/").rsplit("/", 1)[-1]
    if FINGERPRINT.fullmatch(last) and last != manifest.fingerprint:
        findings.manifest(f"is that of {manifest.fingerprint}, but is in the folder of {last}")
    for name in (reader_file_of(manifest.files), SCHEMA):
        if name not in manifest.files:
            findings.manifest(f"does not list {name}, which every snapshot has")
    for name, split in manifest.splits.items():
        for number, shard in enumerate(split.shards):
            parsed = ShardName.parse(shard.file)
            expected = (name, number, len(split.shards), manifest.compression)
            if parsed is None or dataclasses.astuple(parsed) != expected:
                findings.manifest(
                    f"names shard {number:,} of {len(split.shards):,} of split {name!r} "
                    f"{shard.file!r}"
                )
            for what in _odd_entries(shard, manifest):
                findings.manifest(what)
        for total in ("num_examples", "num_bytes"):
            stated, summed = getattr(split, total), sum(getattr(s, total) for s in split.shards)
            if stated != summed:
                findings.manifest(
                    f"{total} of split {name!r} is {stated:,}, but the sum of its shards is "
                    f"{summed:,}"
                )
    listed = {shard.file for split in manifest.splits.values() for shard in split.shards}
    for name in sorted(manifest.files):
        if ShardName.parse(name) is not None and name not in listed:
            findings.manifest(f"lists {name}, which is in no split")


def _odd_entries(shard: ShardEntry, manifest: Manifest) -> Iterator[str]:
    """How a shard differs from its entry in the list of files, and from those of its index."""
    entry = manifest.files.get(shard.file)
    if entry is None or (entry.bytes, entry.sha256) != (shard.num_bytes, shard.sha256):
        yield f"shard {shard.file} differs from its entry in files"
    name = ShardName.parse(shard.file)
    if name is None:
        return
    label = manifest.features.get(manifest.label) if manifest.label is not None else None
    wanted = [*name.index_files, *([name.labels_file] if isinstance(label, ClassLabel) else [])]
    for file in wanted:
        if file not in manifest.files:
            yield f"does not list {file}, which is the index of a listed shard"
    for file, expected in index_sizes(name, shard.num_examples).items():
        entry = manifest.files.get(file)
        if entry is not None and entry.bytes != expected:
            yield (
                f"{file} has {entry.bytes:,} bytes, expected {expected:,} for "
                f"{shard.num_examples:,} examples"
            )


def _is_there(name: str, found: dict[str, FoundFile], findings: Findings) -> bool:
    """Whether a file can be opened; if not, notes why."""
    there = found.get(name)
    if there is None:
        findings.damage(name, "missing", "is missing")
        return False
    if there.trouble is not None:
        findings.unchecked(name, f"cannot be checked: {there.trouble}")
        return False
    if there.other is not None:
        findings.damage(name, "not a file", f"is missing: {there.other} occupies its path")
        return False
    return True


def _check_build(
    files: SnapshotFiles, found: dict[str, FoundFile], manifest: Manifest, findings: Findings
) -> int | None:
    """Notes problems of ``build.json``; returns the limit that it states, if any."""
    there = found.get(BUILD)
    if there is None:
        what = "is missing: what the snapshot was built from, and when, is no longer known"
        findings.warn(BUILD, "edited", what)
    elif there.other is not None or there.trouble is not None:
        findings.warn(BUILD, "edited", f"cannot be read: it is {there.other or there.trouble}")
    else:
        try:
            return _check_build_facts(files.read(BUILD), manifest, findings)
        except StorageError as error:
            findings.warn(BUILD, "unreadable", str(error))
    return None


def _check_build_facts(content: bytes, manifest: Manifest, findings: Findings) -> int | None:
    """Notes problems of the content of ``build.json``, which the manifest does not list.

    Returns:
        The limit that the snapshot was built with, if known.
    """
    try:
        value: Any = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        findings.warn(BUILD, "edited", f"is not JSON: {error}")
        return None
    if not isinstance(value, dict):
        findings.warn(BUILD, "edited", "is not a JSON object")
        return None
    try:
        right = value.get("checksum") == json_checksum(value)
    except RecursionError:
        right = False
    if not right:
        what = "its checksum does not match its content" if "checksum" in value else "it has none"
        findings.warn(BUILD, "edited", f"was edited, or predates checksums: {what}")
        return None
    parts = value.get("fingerprint_parts")
    if parts is not None and _fingerprint_of(parts) != manifest.fingerprint:
        what = f"is of another snapshot: its fingerprint_parts do not give {manifest.fingerprint}"
        findings.warn(BUILD, "foreign", what)
        return None
    splits = parts.get("splits") if isinstance(parts, dict) else None
    limit = splits.get("limit") if isinstance(splits, dict) else None
    return limit if isinstance(limit, int) else None


def _fingerprint_of(parts: object) -> str | None:
    try:
        return digest(parts)[:16]
    except (TypeError, ValueError, RecursionError):
        return None


def _make_report(
    folder: str, manifest: Manifest | None, findings: Findings, *, limit: int | None = None
) -> Report:
    report = Report(
        path=folder,
        fingerprint=None if manifest is None else manifest.fingerprint,
        damages=_in_order(findings.damages),
        warnings=_in_order(findings.warnings),
        unreadable=_in_order(findings.unreadable),
    )
    if manifest is None:
        return report
    return dataclasses.replace(
        report,
        options=f" --limit {limit}" if limit is not None else "",
        num_files=len(manifest.files),
        num_bytes=sum(entry.bytes for entry in manifest.files.values()),
        num_examples=sum(split.num_examples for split in manifest.splits.values()),
    )


def _in_order(found: list[Finding]) -> list[Finding]:
    """Findings of the manifest first, then by file."""
    return sorted(found, key=lambda finding: (finding.file != MANIFEST, finding.file))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleSize:
    """How many records to check, and which."""

    fraction: float | None = None
    """Of all records, above 0 and up to 1; or else …"""
    count: int | None = None
    """… a number of records."""
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
                f"Invalid --sample {text!r}: expected a share such as 1% or 0.01, or a number of "
                "records such as 500."
            )
        return found

    def of(self, total: int) -> int:
        """The number of records to check out of ``total``."""
        if self.count is not None:
            return min(total, self.count)
        return min(total, math.ceil(total * (self.fraction or 0)))


def _check_sample(
    files: SnapshotFiles,
    found: Mapping[str, FoundFile],
    manifest: Manifest,
    present: set[str],
    *,
    findings: Findings,
    size: SampleSize,
    progress: Progress,
) -> Sampled:
    """Checks the lengths of all files that are present, and the contents of some.

    Args:
        files: Those of the snapshot.
        found: The files on disk, by name.
        manifest: What the files should be.
        present: Names of the files that can be opened.
        findings: Collects what is wrong.
        size: How many records to read.
        progress: Receives the number of stretches of records checked.
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
            findings.damage(name, "length", length_text(found[name].num_bytes, entry))
    total = sum(shard.num_examples for shard in shards)
    wanted = size.of(total)
    rng = random.Random(size.seed)
    readable = [shard for shard in shards if _is_readable(shard, manifest, present - odd)]
    if manifest.compression == "gzip":
        chosen = _choose_shards(readable, wanted, rng)
        progress.start(STEP, total=len(chosen), unit="shards")
        for done, shard in enumerate(chosen, start=1):
            checker.check(shard.file, found[shard.file])
            progress.advance(STEP, done=done)
        checker.locate_damage(present)
        num_records = sum(shard.num_examples for shard in chosen)
        num_hashed += len(chosen)
    else:
        stretches = list(_choose_stretches(readable, wanted, rng))
        stretches.sort(key=lambda stretch: (stretch[0].file, stretch[1]))
        progress.start(STEP, total=len(stretches), unit="places")
        num_records = 0
        for done, (shard, first, number) in enumerate(stretches, start=1):
            try:
                _StretchChecker(files, shard, findings, usable=present - odd).check(first, number)
                num_records += number
            except StorageError as error:
                findings.unchecked(shard.file, str(error))
            progress.advance(STEP, done=done)
    progress.finish(STEP, reused=False)
    return Sampled(
        num_records=num_records,
        total_records=total,
        num_bytes_read=files.num_bytes_read,
        total_bytes=sum(entry.bytes for entry in manifest.files.values()),
        num_hashed=num_hashed,
        seed=size.seed,
    )


def _is_readable(shard: ShardEntry, manifest: Manifest, usable: set[str]) -> bool:
    """Whether a shard and its index are present, the index with as many records as expected."""
    name = ShardName.parse(shard.file)
    if name is None or not usable.issuperset((shard.file, name.index_files[0])):
        return False
    return manifest.files[name.index_files[0]].bytes == _PAIR_BYTES * shard.num_examples


def _choose_shards(shards: list[ShardEntry], wanted: int, rng: random.Random) -> list[ShardEntry]:
    """Random shards, until they hold as many records as wanted."""
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
    """Stretches of neighbouring records at random places: shard, first record, number.

    A stretch is one request to a store. A small sample has one record in each, a large one up
    to 64.
    """
    total = sum(shard.num_examples for shard in shards)
    length = max(1, min(_MAX_STRETCH, wanted // _MIN_PLACES))
    # For each shard, the number of places up to its end.
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


class _StretchChecker:
    """Checks stretches of neighbouring records of one shard."""

    def __init__(
        self, files: SnapshotFiles, shard: ShardEntry, findings: Findings, *, usable: set[str]
    ) -> None:
        self._files = files
        self._shard = shard
        self._findings = findings
        self._usable = usable

    def check(self, first: int, number: int) -> None:
        """Reads the offsets of the records, then their bytes: two requests."""
        name = ShardName.parse(self._shard.file)
        if name is None:
            return
        offsets_file, table = name.index_files
        content = self._files.read(
            offsets_file, _PAIR_BYTES * first, _PAIR_BYTES * (first + number)
        )
        if len(content) != _PAIR_BYTES * number:
            what = "does not match its shard: it ends before this record"
            self._findings.damage(offsets_file, "index", what, record=first)
            return
        offsets, lengths = index_from_bytes(content)
        at = int(offsets[0])
        for n, (offset, length) in enumerate(zip(offsets.tolist(), lengths.tolist(), strict=True)):
            if offset != at or length < FRAME_BYTES or at + length > self._shard.num_bytes:
                what = f"does not match its shard: it states {length:,} bytes from byte {offset:,}"
                self._findings.damage(offsets_file, "index", what, record=first + n)
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
                    self._findings.damage(
                        self._shard.file,
                        "record",
                        f"{trouble} (or the index is not that of the shard)",
                        record=first + n,
                        offset=offset,
                        record_id=self._id(table, first + n),
                    )
            start = stop

    def _id(self, table: str, record: int) -> str | None:
        try:
            return read_id(self._files.read(table), record) if table in self._usable else None
        except StorageError:
            return None
