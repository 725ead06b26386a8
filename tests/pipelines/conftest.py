"""Snapshots made by hand, with TensorFlow's own writer, for tests of the snapshot's reader."""

import importlib
import importlib.util
import sys
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from snapshard.pipelines.reader.emit import emit_reader
from snapshard.schemas.features import Features, wire_columns
from snapshard.schemas.manifest import ShardEntry
from snapshard.schemas.naming import ShardName

from .made_snapshots import FINGERPRINT, checksum, put_manifest, shard_entry

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
    **told: Any,
) -> types.ModuleType:
    """Writes shards, manifest and reader, and imports the reader, which is told more."""
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, list[ShardEntry]] = {}
    sizes = [1]
    checksums: dict[str, list[int | None]] = {}
    for split, shards in splits.items():
        written[split], checksums[split] = [], []
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
            num_bytes = (folder / name).stat().st_size
            entry = shard_entry(name, num_examples=len(records), num_bytes=num_bytes)
            written[split].append(entry)
            checksums[split].append(checksum(folder / name, compression))
    facts = put_manifest(
        folder,
        features,
        written,
        sizes=sizes,
        label=label,
        compression=compression,
        structs=structs,
        fingerprint=fingerprint,
        rotated=rotated,
        **{"shard_checksums": checksums, **told},
    )
    for name, text in emit_reader(facts).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return load(folder)


def load(folder: Path) -> types.ModuleType:
    """The reader package of a snapshot, under a name that no other has."""
    path = folder / "reader" / "__init__.py"
    name = f"emitted_reader_{uuid.uuid4().hex}"
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(path.parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def part(reader: types.ModuleType, name: str) -> Any:
    """A module of a reader package."""
    return importlib.import_module(f".{name}", reader.__name__)


@pytest.fixture(scope="module")
def readers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, types.ModuleType]:
    """Compression -> the reader of what the ``write`` of a test's module makes with it."""
    return {
        compression: request.module.write(
            tmp_path_factory.mktemp(compression), write_snapshot, compression
        )
        for compression in ("none", "gzip")
    }


@pytest.fixture(params=["none", "gzip"])
def reader(
    request: pytest.FixtureRequest, readers: dict[str, types.ModuleType]
) -> types.ModuleType:
    """Each of these; modules that write one snapshot have a fixture of this name of their own."""
    return readers[request.param]


@pytest.fixture(scope="session", name="serialize")
def serialize_fixture() -> Callable[[Features, Record], bytes]:
    return serialize


@pytest.fixture(scope="session", name="write_snapshot")
def write_snapshot_fixture() -> Callable[..., types.ModuleType]:
    return write_snapshot
