"""Snapshots made by hand with their index, for tests of the reader without TensorFlow."""

import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from snapshard.pipelines.emit import ReaderFacts
from snapshard.pipelines.readers import emit_numpy_reader
from snapshard.schemas.features import flatten
from snapshard.schemas.manifest import FORMAT_VERSION, Manifest, ShardEntry, SplitEntry
from snapshard.schemas.naming import ShardName
from snapshard.transforms.index import index_bytes
from snapshard.transforms.rows import encode_example
from snapshard.transforms.tfrecord import write_tfrecord

FINGERPRINT = "0123456789abcdef"


def numpy_snapshot(
    folder: Path,
    declared: Mapping[str, Any],
    splits: Mapping[str, Sequence[Sequence[Mapping[str, Any] | bytes]]],
    *,
    compression: Any = "none",
) -> types.ModuleType:
    """Writes shards, index and manifest as a build does, and gives the reader, imported."""
    features, structs = flatten(declared)
    (folder / "index").mkdir(parents=True)
    entries, sizes = {}, [1]
    for split, shards in splits.items():
        written = []
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
            written.append(
                ShardEntry(
                    file=str(name),
                    num_examples=made.num_examples,
                    num_bytes=made.num_bytes,
                    sha256="",
                    label_counts={},
                )
            )
        entries[split] = SplitEntry(
            num_examples=sum(shard.num_examples for shard in written),
            num_bytes=sum(shard.num_bytes for shard in written),
            shards=written,
        )
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="made",
        fingerprint=FINGERPRINT,
        features=dict(features),
        structs=list(structs),
        label=None,
        compression=compression,
        num_rejects=0,
        seed=0,
        versions={},
        splits=entries,
        files={},
    )
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    facts = ReaderFacts(
        name="made",
        fingerprint=FINGERPRINT,
        features=features,
        label=None,
        compression=compression,
        num_examples={split: entry.num_examples for split, entry in entries.items()},
        record_bytes=sum(sizes) // len(sizes),
        rotated_images=frozenset(),
        version="0.0.0",
        structs=structs,
    )
    (folder / "reader_numpy.py").write_text(emit_numpy_reader(facts), encoding="utf-8")
    return load(folder / "reader_numpy.py")


def load(path: Path) -> types.ModuleType:
    """Imports an emitted reader so that what it makes can be pickled."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
