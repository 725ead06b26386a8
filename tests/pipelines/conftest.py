"""Snapshots made by hand, with TensorFlow's own writer, for tests of the emitted reader."""

import importlib.util
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from snapshard.pipelines.emit import ReaderFacts, emit_reader
from snapshard.pipelines.emit_tools import emit_tools
from snapshard.schemas.features import Features, wire_columns
from snapshard.schemas.manifest import FORMAT_VERSION, Manifest, ShardEntry, SplitEntry
from snapshard.schemas.naming import ShardName

FINGERPRINT = "0123456789abcdef"
Record = Mapping[str, Any]


def serialize(features: Features, record: Record) -> bytes:
    """One example in wire form; a value of None is left out, an array is packed bytes."""
    content = {}
    for column in wire_columns(features):
        value = record.get(column.name)
        if value is None:
            continue
        if isinstance(value, np.ndarray):
            value = value.tobytes()
        values = value if isinstance(value, list) else [value]
        lists = {
            "bytes": lambda v: tf.train.Feature(bytes_list=tf.train.BytesList(value=v)),
            "int64": lambda v: tf.train.Feature(int64_list=tf.train.Int64List(value=v)),
            "float32": lambda v: tf.train.Feature(float_list=tf.train.FloatList(value=v)),
        }
        content[column.name] = lists[column.kind](values)
    example = tf.train.Example(features=tf.train.Features(feature=content))
    return bytes(example.SerializeToString(deterministic=True))


def write_snapshot(
    folder: Path,
    features: Features,
    splits: Mapping[str, Sequence[Sequence[Record | bytes]]],
    *,
    label: str | None = "label",
    compression: str = "none",
    rotated: frozenset[str] = frozenset(),
    fingerprint: str = FINGERPRINT,
    structs: tuple[str, ...] = (),
) -> types.ModuleType:
    """Writes shards, manifest and reader, and imports the reader."""
    folder.mkdir(parents=True, exist_ok=True)
    entries, sizes = {}, [1]
    for split, shards in splits.items():
        written = []
        for index, records in enumerate(shards):
            name = str(
                ShardName(split=split, index=index, num_shards=len(shards), compression=compression)
            )
            options = tf.io.TFRecordOptions("GZIP" if compression == "gzip" else "")
            with tf.io.TFRecordWriter(str(folder / name), options) as writer:
                for record in records:
                    content = record if isinstance(record, bytes) else serialize(features, record)
                    sizes.append(len(content))
                    writer.write(content)
            written.append(
                ShardEntry(
                    file=name,
                    num_examples=len(records),
                    num_bytes=(folder / name).stat().st_size,
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
        fingerprint=fingerprint,
        features=dict(features),
        structs=list(structs),
        label=label,
        compression="gzip" if compression == "gzip" else "none",
        num_rejects=0,
        seed=0,
        versions={},
        splits=entries,
        files={},
    )
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    text = emit_reader(
        ReaderFacts(
            name="made",
            fingerprint=fingerprint,
            features=features,
            label=label,
            compression=compression,
            num_examples={split: entry.num_examples for split, entry in entries.items()},
            record_bytes=sum(sizes) // len(sizes),
            rotated_images=rotated,
            version="0.0.0",
            structs=structs,
        )
    )
    (folder / "reader.py").write_text(text, encoding="utf-8")
    (folder / "reader_options.py").write_text(emit_tools()["reader_options.py"], encoding="utf-8")
    return load(folder / "reader.py")


def load(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("emitted_reader", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session", name="serialize")
def serialize_fixture() -> Callable[[Features, Record], bytes]:
    return serialize


@pytest.fixture(scope="session", name="write_snapshot")
def write_snapshot_fixture() -> Callable[..., types.ModuleType]:
    return write_snapshot
