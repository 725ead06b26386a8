"""Verify: holds a snapshot's files against its manifest, without TensorFlow or Beam."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator

from ..schemas.errors import DamagedSnapshotError
from ..schemas.manifest import Manifest, ShardEntry
from ..schemas.naming import MANIFEST, UNLISTED, ShardName, join
from ..schemas.progress import Progress
from ..transforms import storage
from ..transforms.index import index_sizes
from ..transforms.tfrecord import scan_tfrecord
from .snapshot import Snapshot

_CHUNK_BYTES = 16 << 20
_BYTECODE = "__pycache__"
"""Python makes it where a trainer imports the reader from the snapshot."""


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
            shard, the first record that is not.
        StorageError: if a file that is there cannot be read.
    """
    manifest = snapshot.manifest
    findings = list(_contradictions(manifest))
    progress.start("verify", total=len(manifest.files), unit="files")
    found = set(storage.walk(snapshot.path))
    progress.advance("verify", done=0)
    checker = _Checker(snapshot)
    for done, name in enumerate(sorted(manifest.files), start=1):
        wrong = checker.check(name) if name in found else "is missing"
        if wrong is not None:
            findings.append(f"{name}: {wrong}")
        progress.advance("verify", done=done)
    extra = found - set(manifest.files) - UNLISTED
    findings.extend(f"{name}: is not in the manifest" for name in sorted(extra) if _matters(name))
    progress.finish("verify", reused=False)
    if findings:
        listed = "\n".join(f"  {finding}" for finding in findings)
        raise DamagedSnapshotError(
            f"{snapshot.path} is damaged:\n{listed}\nRestore the files from a copy, or remove the "
            "folder and build again."
        )
    return Verified(
        num_files=len(manifest.files),
        num_bytes=sum(entry.bytes for entry in manifest.files.values()),
        num_examples=sum(split.num_examples for split in manifest.splits.values()),
    )


def _contradictions(manifest: Manifest) -> list[str]:
    """Where the manifest does not agree with itself."""
    findings = []
    for name, split in manifest.splits.items():
        for shard in split.shards:
            entry = manifest.files.get(shard.file)
            if entry is None or (entry.bytes, entry.sha256) != (shard.num_bytes, shard.sha256):
                findings.append(f"{MANIFEST}: shard {shard.file} differs from its entry in files")
            findings.extend(_odd_index(shard, manifest))
        for total in ("num_examples", "num_bytes"):
            told, summed = getattr(split, total), sum(getattr(s, total) for s in split.shards)
            if told != summed:
                findings.append(
                    f"{MANIFEST}: {total} of split {name!r} is {told:,}, its shards' sum {summed:,}"
                )
    return findings


def _odd_index(shard: ShardEntry, manifest: Manifest) -> Iterator[str]:
    """Which index files of a shard are too long or too short for the number of its records."""
    name = ShardName.parse(shard.file)
    sizes = {} if name is None else index_sizes(name, shard.num_examples)
    for file, expected in sizes.items():
        entry = manifest.files.get(file)
        if entry is not None and entry.bytes != expected:
            yield (
                f"{MANIFEST}: {file} has {entry.bytes:,} bytes, expected {expected:,} for "
                f"{shard.num_examples:,} examples"
            )


def _matters(name: str) -> bool:
    parts = name.split("/")
    return _BYTECODE not in parts[:-1] and not storage.TEMPORARY.fullmatch(parts[-1])


class _Checker:
    """Checks the files of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._path = snapshot.path
        self._files = snapshot.manifest.files
        splits = snapshot.manifest.splits.values()
        self._shards = {shard.file: shard for split in splits for shard in split.shards}
        self._by_hash = {entry.sha256: name for name, entry in self._files.items()}

    def check(self, name: str) -> str | None:
        """What is wrong with one file; None if nothing is."""
        entry, url = self._files[name], join(self._path, name)
        num_bytes = storage.num_bytes(url)
        shard = self._shards.get(name)
        if num_bytes == entry.bytes or shard is not None:
            sha256 = _sha256(url, num_bytes)
            if sha256 == entry.sha256:
                return None
            other = self._by_hash.get(sha256)
            if other is not None:
                return f"holds what belongs into {other}; were they swapped?"
        if num_bytes != entry.bytes:
            wrong = f"has {num_bytes:,} bytes, expected {entry.bytes:,}"
        else:
            wrong = "its content is not what was written (sha256 differs)"
        return wrong if shard is None else f"{wrong}; {_first_damage(url, shard)}"


def _first_damage(url: str, shard: ShardEntry) -> str:
    """Which record of a shard is damaged, or that its records are others than were written."""
    name = ShardName.parse(shard.file)
    if name is None:
        return "its name is no shard's"
    try:
        num_records = sum(1 for _ in scan_tfrecord(url, name.compression))
    except DamagedSnapshotError as error:
        return str(error).removeprefix(f"{storage.redact(url)} is ").partition(". Restore")[0]
    if num_records != shard.num_examples:
        return f"it holds {num_records:,} whole records, expected {shard.num_examples:,}"
    return "all its records are whole, but they are not the ones that were written"


def _sha256(url: str, num_bytes: int) -> str:
    hasher = hashlib.sha256()
    for start in range(0, num_bytes, _CHUNK_BYTES):
        stop = min(num_bytes, start + _CHUNK_BYTES)
        hasher.update(storage.read_bytes(url, start=start, stop=stop))
    return hasher.hexdigest()
