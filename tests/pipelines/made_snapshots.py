"""What snapshots made by hand have in common: their manifest, and what a reader is told."""

import os
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snapshard.pipelines.reader.emit import ReaderFacts
from snapshard.schemas.features import Features
from snapshard.schemas.manifest import FORMAT_VERSION, Manifest, ShardEntry, SplitEntry

FINGERPRINT = "0123456789abcdef"


def shard_entry(name: str, *, num_examples: int, num_bytes: int) -> ShardEntry:
    return ShardEntry(
        file=name, num_examples=num_examples, num_bytes=num_bytes, sha256="", label_counts={}
    )


def put_manifest(
    folder: Path,
    features: Features,
    shards: Mapping[str, Sequence[ShardEntry]],
    *,
    sizes: Sequence[int],
    label: str | None = None,
    compression: Any = "none",
    structs: tuple[str, ...] = (),
    fingerprint: str = FINGERPRINT,
    rotated: frozenset[str] = frozenset(),
    **told: Any,
) -> ReaderFacts:
    """Writes the manifest of shards that lie in a folder, with examples of these sizes."""
    entries = {
        split: SplitEntry(
            num_examples=sum(shard.num_examples for shard in written),
            num_bytes=sum(shard.num_bytes for shard in written),
            shards=list(written),
        )
        for split, written in shards.items()
    }
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="made",
        fingerprint=fingerprint,
        features=dict(features),
        structs=list(structs),
        label=label,
        compression=compression,
        num_rejects=0,
        seed=0,
        versions={},
        splits=entries,
        files={},
    )
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    return ReaderFacts(
        name="made",
        fingerprint=fingerprint,
        features=features,
        label=label,
        compression=compression,
        num_examples={split: entry.num_examples for split, entry in entries.items()},
        record_bytes=sum(sizes) // max(1, len(sizes)),
        rotated_images=rotated,
        version="0.0.0",
        structs=structs,
        **told,
    )


def num_open(reader: types.ModuleType, split: str) -> int:
    """How many shards of a split this process has open, of the snapshot that a reader lies in."""
    folder = Path(str(reader.__file__)).parent.parent
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(
        os.path.islink(link) and os.readlink(link).startswith(f"{folder}/{split}") for link in links
    )
