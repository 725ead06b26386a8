"""Verify: holds a snapshot's files against its manifest, without TensorFlow or Beam."""

from __future__ import annotations

import dataclasses
import hashlib

from ..schemas.errors import DamagedSnapshotError
from ..schemas.manifest import Manifest
from ..schemas.naming import MANIFEST, UNLISTED, ShardName, join
from ..schemas.progress import Progress
from ..transforms import storage
from ..transforms.index import index_from_bytes
from ..transforms.tfrecord import scan_tfrecord
from .snapshot import Snapshot


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
    """
    manifest = snapshot.manifest
    findings = _contradictions(manifest)
    progress.start("verify", total=len(manifest.files), unit="files")
    num_bytes = 0
    for done, (name, entry) in enumerate(sorted(manifest.files.items()), start=1):
        found = _check_file(snapshot, name)
        if found is not None:
            findings.append(f"{name}: {found}")
        num_bytes += entry.bytes
        progress.advance("verify", done=done)
    extra = set(storage.walk(snapshot.path)) - set(manifest.files) - UNLISTED
    findings.extend(f"{name}: is not in the manifest" for name in sorted(extra))
    progress.finish("verify", reused=False)
    if findings:
        listed = "\n".join(f"  {finding}" for finding in findings)
        raise DamagedSnapshotError(
            f"{snapshot.path} is damaged:\n{listed}\nRemove the folder and build again."
        )
    num_examples = sum(split.num_examples for split in manifest.splits.values())
    return Verified(len(manifest.files), num_bytes, num_examples)


def _contradictions(manifest: Manifest) -> list[str]:
    """Where the manifest does not agree with itself."""
    findings = []
    for name, split in manifest.splits.items():
        for shard in split.shards:
            entry = manifest.files.get(shard.file)
            if entry is None or (entry.bytes, entry.sha256) != (shard.num_bytes, shard.sha256):
                findings.append(f"{MANIFEST}: shard {shard.file} differs from its entry in files")
        for total in ("num_examples", "num_bytes"):
            if getattr(split, total) != sum(getattr(shard, total) for shard in split.shards):
                findings.append(f"{MANIFEST}: {total} of split {name!r} is not its shards' sum")
    return findings


def _check_file(snapshot: Snapshot, name: str) -> str | None:
    """What is wrong with one file of the snapshot; None if nothing is."""
    entry = snapshot.manifest.files[name]
    url = join(snapshot.path, name)
    if not storage.exists(url):
        return "is missing"
    num_bytes = storage.num_bytes(url)
    if num_bytes != entry.bytes:
        wrong = f"has {num_bytes:,} bytes, expected {entry.bytes:,}"
    elif _sha256(url, num_bytes) != entry.sha256:
        wrong = "its content is not what was written (sha256 differs)"
    else:
        return _check_count(snapshot, name)
    shard = ShardName.parse(name)
    if shard is None:
        return wrong
    try:
        for _ in scan_tfrecord(url, shard.compression):
            pass
    except DamagedSnapshotError as error:
        return f"{wrong}; {error}"
    return wrong


def _check_count(snapshot: Snapshot, name: str) -> str | None:
    """Whether a shard's index has as many records as the manifest says."""
    shard = ShardName.parse(name)
    if shard is None:
        return None
    expected = next(
        (
            entry.num_examples
            for split in snapshot.manifest.splits.values()
            for entry in split.shards
            if entry.file == name
        ),
        None,
    )
    url = join(snapshot.path, shard.index_files[0])
    if not storage.exists(url):
        return None
    found = len(index_from_bytes(storage.read_bytes(url))[0])
    if expected is not None and found != expected:
        return f"its index lists {found:,} records, the manifest {expected:,}"
    return None


def _sha256(url: str, num_bytes: int) -> str:
    hasher = hashlib.sha256()
    step = 16 << 20
    for start in range(0, num_bytes, step):
        hasher.update(storage.read_bytes(url, start=start, stop=min(num_bytes, start + step)))
    return hasher.hexdigest()
