"""Snapshots of given records, as bytes: what a comparison reads, without a build."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import snapshard as ss
from snapshard.pipelines.snapshot import Snapshot
from snapshard.schemas.manifest import FORMAT_VERSION, FileEntry, Manifest, ShardEntry, SplitEntry
from snapshard.schemas.naming import ShardName
from snapshard.transforms.examples.index import index_bytes, write_index_table
from snapshard.transforms.examples.tfrecord import write_tfrecord
from snapshard.transforms.runs.keys import record_keys

Records = Mapping[str, tuple[str, bytes]]
"""Id -> split, content."""


def put_records(
    folder: Path,
    records: Records,
    *,
    seed: int = 0,
    num_shards: int = 2,
    compression: Any = "none",
    **told: Any,
) -> Snapshot:
    """Writes a snapshot of these records, in the order that a build gives them."""
    (folder / "index").mkdir(parents=True)
    files: dict[str, FileEntry] = {}

    def note(name: str) -> FileEntry:
        content = (folder / name).read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        files[name] = FileEntry(bytes=len(content), sha256=sha256)
        return files[name]

    splits = {}
    for split in sorted({split for split, _ in records.values()}):
        ids = [record_id for record_id, (where, _) in records.items() if where == split]
        keys = dict(zip(ids, record_keys(ids, seed).tolist(), strict=True))
        ids.sort(key=lambda record_id: (keys[record_id], record_id))
        shards = []
        for index, part in enumerate(np.array_split(np.array(ids, object), num_shards)):
            name = ShardName(
                split=split, index=index, num_shards=num_shards, compression=compression
            )
            examples = pa.array([records[i][1] for i in part], pa.large_binary())
            written = write_tfrecord(str(folder / str(name)), [examples], compression=compression)
            offsets_file, table_file = name.index_files
            content = index_bytes(written.offsets, written.lengths)
            (folder / offsets_file).write_bytes(content)
            numbered = all("#" in record_id for record_id in part)
            chunks = [pa.array(list(part), pa.large_string())]
            write_index_table(str(folder / table_file), chunks, numbered=numbered)
            entry = note(str(name))
            note(offsets_file)
            note(table_file)
            shards.append(
                ShardEntry(
                    file=str(name),
                    num_examples=len(part),
                    num_bytes=entry.bytes,
                    sha256=entry.sha256,
                    label_counts={},
                )
            )
        splits[split] = SplitEntry(
            num_examples=len(ids), num_bytes=sum(s.num_bytes for s in shards), shards=shards
        )
    facts: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "name": "made",
        "features": {"x": ss.Scalar("int64")},
        "structs": [],
        "label": None,
        "compression": compression,
        "num_rejects": 0,
        "versions": {"numpy": "2.4"},
        **told,
    }
    content = json.dumps([sorted(map(list, map(str, records.items()))), seed, str(facts)]).encode()
    fingerprint = hashlib.sha256(content).hexdigest()[:16]
    manifest = Manifest(
        **{"fingerprint": fingerprint, **facts}, seed=seed, splits=splits, files=files
    )
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    return Snapshot.open(folder)
