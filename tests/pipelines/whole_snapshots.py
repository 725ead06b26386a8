"""Whole snapshots made by hand, without TensorFlow: each file is as the manifest says."""

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

import snapshard as ss
from snapshard.schemas.manifest import (
    FileEntry,
    Manifest,
    ShardEntry,
    SplitEntry,
    file_entry,
    json_checksum,
    with_checksum,
)
from snapshard.schemas.naming import ShardName
from snapshard.transforms.examples.index import index_bytes, labels_bytes, write_index_table

FINGERPRINT = "0123456789abcdef"
CLASSES = ("no", "yes")


def masked(content: bytes) -> bytes:
    crc = google_crc32c.value(content)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def frame(record: bytes) -> bytes:
    head = len(record).to_bytes(8, "little")
    return head + masked(head) + record + masked(record)


def whole_snapshot(
    folder: Path,
    splits: Mapping[str, Sequence[Sequence[bytes]]],
    *,
    compress: bool = False,
    fingerprint: str = FINGERPRINT,
    labelled: bool = False,
) -> Path:
    """Writes a snapshot of these records: by split, shard by shard.

    Record n of shard s of split x has the id ``x/s/n.txt`` and, if labelled, class n % 2.
    """
    contents: dict[str, bytes] = {}
    entries: dict[str, SplitEntry] = {}
    for split, shards in splits.items():
        written = []
        for number, records in enumerate(shards):
            name = ShardName(
                split=split,
                index=number,
                num_shards=len(shards),
                compression="gzip" if compress else "none",
            )
            content = b"".join(map(frame, records))
            content = gzip.compress(content, mtime=0) if compress else content
            ids = [f"{split}/{number}/{n}.txt" for n in range(len(records))]
            codes = np.arange(len(records), dtype=np.int32) % 2
            contents |= {str(name): content, **_index(folder, name, records, ids)}
            counts: dict[str, int] = {}
            if labelled:
                contents[name.labels_file] = labels_bytes([codes])
                found = np.bincount(codes, minlength=2).tolist()
                counts = dict(zip(CLASSES, found, strict=True))
            entry = file_entry(content)
            written.append(
                ShardEntry(
                    file=str(name),
                    num_examples=len(records),
                    num_bytes=entry.bytes,
                    sha256=entry.sha256,
                    label_counts=counts,
                )
            )
        entries[split] = SplitEntry(
            num_examples=sum(shard.num_examples for shard in written),
            num_bytes=sum(shard.num_bytes for shard in written),
            shards=written,
        )
    code = f'"""Made."""\n\nFINGERPRINT = "{fingerprint}"\n'
    contents |= {
        "reader/facts.py": code.encode(),
        "reader/doctor.py": b"DOCTOR = 1\n",
        "schema.pbtxt": b"s",
        "rejects.parquet": b"r" * 30,
    }
    features: dict[str, Any] = {"x": ss.Scalar("int64")}
    if labelled:
        features["label"] = ss.ClassLabel(CLASSES)
    manifest = Manifest(
        format_version=1,
        name="made",
        fingerprint=fingerprint,
        features=features,
        label="label" if labelled else None,
        compression="gzip" if compress else "none",
        num_rejects=0,
        seed=0,
        versions={},
        splits=entries,
        files={name: file_entry(content) for name, content in contents.items()},
    )
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    (folder / "build.json").write_text(json.dumps(with_checksum({"runner": "made"})))
    return folder


def _index(
    folder: Path, name: ShardName, records: Sequence[bytes], ids: list[str]
) -> dict[str, bytes]:
    lengths = np.array([len(record) + 16 for record in records], np.uint64)
    offsets_file, table_file = name.index_files
    (folder / "index").mkdir(parents=True, exist_ok=True)
    write_index_table(str(folder / table_file), [pa.array(ids, pa.string())], numbered=False)
    return {
        offsets_file: index_bytes(np.cumsum(lengths) - lengths, lengths),
        table_file: (folder / table_file).read_bytes(),
    }


def edit_manifest(folder: Path, edit: Callable[[Any], object], *, honest: bool = True) -> None:
    """Changes a manifest; an honest edit leaves the checksum as it was."""
    value = json.loads((folder / "manifest.json").read_text())
    edit(value)
    if not honest:
        value["checksum"] = json_checksum(value)
    (folder / "manifest.json").write_text(json.dumps(value))


def list_file(folder: Path, name: str, content: bytes) -> None:
    """Puts a file in place and makes the manifest tell of it as if it had been written so."""
    (folder / name).write_bytes(content)
    entry = FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    def edit(manifest: Any) -> None:
        manifest["files"][name] = entry.model_dump()
        for split in manifest["splits"].values():
            for shard in split["shards"]:
                if shard["file"] == name:
                    shard["sha256"] = entry.sha256

    edit_manifest(folder, edit, honest=False)
