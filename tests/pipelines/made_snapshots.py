"""What snapshots made by hand have in common: their manifest, and what a reader is told."""

import gzip
import hashlib
import json
import os
import struct
import types
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from snapshard.pipelines.reader.emit import ReaderFacts
from snapshard.schemas.features import Features
from snapshard.schemas.manifest import FORMAT_VERSION, Manifest, ShardEntry, SplitEntry
from snapshard.transforms.examples.index import index_bytes, labels_bytes, write_index_table

FINGERPRINT = "0123456789abcdef"


def shard_entry(name: str, *, num_examples: int, num_bytes: int) -> ShardEntry:
    return ShardEntry(
        file=name, num_examples=num_examples, num_bytes=num_bytes, sha256="", label_counts={}
    )


def checksum(path: Path, compression: str) -> int | None:
    """The checksum of a shard's first record, or of a GZIP file's content; None if it is empty."""
    content = path.read_bytes()
    if compression == "gzip":
        return zlib.crc32(gzip.decompress(content)) if content else None
    if not content:
        return None
    (length,) = struct.unpack_from("<Q", content)
    return int.from_bytes(content[12 + length : 16 + length], "little")


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
        limit=told.get("limit"),
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


def put_index(folder: Path, compression: str, codes: Sequence[int]) -> None:
    """Writes the index files of the train shards as a build does."""
    import tensorflow as tf

    (folder / "index").mkdir(exist_ok=True)
    first = 0
    suffix = "GZIP" if compression == "gzip" else ""
    for path in sorted(folder.glob("train-*.tfrecord*")):
        sizes = [
            len(one) + 16 for one in tf.data.TFRecordDataset(str(path), suffix).as_numpy_iterator()
        ]
        lengths = np.array(sizes, np.uint64)
        offsets = np.cumsum(lengths) - lengths
        mine = np.array(codes[first : first + len(sizes)], np.int32)
        (folder / "index" / f"{path.name}.idx").write_bytes(index_bytes(offsets, lengths))
        (folder / "index" / f"{path.name}.labels").write_bytes(labels_bytes([mine]))
        first += len(sizes)


def put_ids(folder: Path) -> None:
    """Writes offsets and ids of all shards: ``train-0``, ``train-1`` … in each split."""
    import tensorflow as tf

    (folder / "index").mkdir(exist_ok=True)
    firsts: Counter[str] = Counter()
    for path in sorted(folder.glob("*.tfrecord*")):
        suffix = "GZIP" if path.suffix == ".gz" else ""
        examples = tf.data.TFRecordDataset(str(path), suffix).as_numpy_iterator()
        lengths = np.array([len(one) + 16 for one in examples], np.uint64)
        split = path.name.partition("-")[0]
        numbers = range(firsts[split], firsts[split] + len(lengths))
        firsts[split] += len(lengths)
        content = index_bytes(np.cumsum(lengths) - lengths, lengths)
        (folder / "index" / f"{path.name}.idx").write_bytes(content)
        ids = pa.array([f"{split}-{number}" for number in numbers])
        table = str(folder / "index" / f"{path.name}.parquet")
        write_index_table(table, [ids], numbered=False)


def list_files(folder: Path) -> None:
    """Lets the manifest list the files of the index, as a build does."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for path in (folder / "index").iterdir():
        content = path.read_bytes()
        entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest["files"][f"index/{path.name}"] = entry
    (folder / "manifest.json").write_text(json.dumps(manifest))


def num_open(reader: types.ModuleType, split: str) -> int:
    """How many shards of a split this process has open, of the snapshot that a reader lies in."""
    folder = Path(str(reader.__file__)).parent.parent
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(
        os.path.islink(link) and os.readlink(link).startswith(f"{folder}/{split}") for link in links
    )


def put_hashes(folder: Path) -> None:
    """Adds the shards' sha256 to the manifest, as a build writes them."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            content = (folder / shard["file"]).read_bytes()
            shard["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
