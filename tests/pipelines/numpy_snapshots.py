"""Snapshots made by hand with their index, for tests of the reader without TensorFlow."""

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from snapshard.pipelines.reader.emit import emit_reader
from snapshard.schemas.features import flatten
from snapshard.schemas.manifest import ShardEntry
from snapshard.schemas.naming import ShardName
from snapshard.transforms.examples.index import index_bytes
from snapshard.transforms.examples.tfrecord import write_tfrecord
from snapshard.transforms.prepare.engine.rows import encode_example

from .conftest import load, part
from .made_snapshots import put_manifest, shard_entry


def numpy_snapshot(
    folder: Path,
    declared: Mapping[str, Any],
    splits: Mapping[str, Sequence[Sequence[Mapping[str, Any] | bytes]]],
    *,
    compression: Any = "none",
) -> types.ModuleType:
    """Writes shards, index and manifest as a build does, and gives ``reader.arrays``, imported."""
    features, structs = flatten(declared)
    (folder / "index").mkdir(parents=True)
    written: dict[str, list[ShardEntry]] = {}
    sizes = [1]
    checksums: dict[str, list[int | None]] = {}
    for split, shards in splits.items():
        written[split], checksums[split] = [], []
        for number, records in enumerate(shards):
            name = ShardName(
                split=split, index=number, num_shards=len(shards), compression=compression
            )
            examples = [
                record if isinstance(record, bytes) else encode_example(record, features)
                for record in records
            ]
            sizes += map(len, examples)
            chunk = pa.array(examples, pa.large_binary())
            made = write_tfrecord(str(folder / str(name)), [chunk], compression=compression)
            content = index_bytes(made.offsets, made.lengths)
            (folder / name.index_files[0]).write_bytes(content)
            entry = shard_entry(str(name), num_examples=made.num_examples, num_bytes=made.num_bytes)
            written[split].append(entry)
            checksums[split].append(made.checksum)
    facts = put_manifest(
        folder,
        features,
        written,
        sizes=sizes,
        compression=compression,
        structs=structs,
        shard_checksums=checksums,
    )
    for name, text in emit_reader(facts).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return arrays_of(folder)


def arrays_of(folder: Path) -> types.ModuleType:
    """The module ``reader.arrays`` of a snapshot, under a name that no other has."""
    arrays: types.ModuleType = part(load(folder), "arrays")
    return arrays
