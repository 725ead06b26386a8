"""Exports a snapshot to the formats of other tools: Parquet files, or tars of WebDataset.

Each shard becomes one file, in the order of its records, read and written in batches of bounded
memory without TensorFlow. Files are written to a folder beside the destination, which gets its name
when all are complete: there is never half an export.

Parquet, ``data/<split>-00000-of-00004.parquet``, as ``datasets.load_dataset`` reads them: a column
for each feature, and ``record_id``. Structs are structs, classes a dictionary of their names, times
timestamps in UTC; images and sounds are files in a struct of ``bytes`` and ``path``; a missing
value is null. WebDataset, ``<split>-000000.tar``: images and sounds of a record are members, the
label ``.cls``, lists of numbers ``.npy``, and the rest ``.json``. Pixels become PNG, samples WAV:
nothing is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import math
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.errors import DamagedSnapshotError, DataError, PlaceError, RecipeError
from ...schemas.features import (
    Audio,
    ClassLabel,
    Feature,
    Features,
    Image,
    Scalar,
    Sequence,
    Tensor,
    Text,
    Timestamp,
    frames_of,
    is_encoded,
    is_optional,
    presence_name,
    tensor_form,
)
from ...schemas.manifest import Manifest, ShardEntry
from ...schemas.naming import ShardName, join, stays_inside
from ...schemas.progress import Progress
from ...transforms import storage
from ...transforms.examples.stored_records import stored_ids
from ...transforms.examples.tfrecord import stored_examples
from ...transforms.storage.failures import os_errors_as_storage_errors
from ...transforms.storage.local import held_folder, make_folders, sync_tree
from ..display import plain
from ..reader.emit import describe, sides_of
from ..reader.runtime.examples import Parser
from ..records import id_name
from ..snapshot import Snapshot, SnapshotFiles

STEP = "export"
_BATCH_BYTES = 8 << 20
"""Approximate size of the examples that are in memory, …"""
_BATCH_RECORDS = 8192
"""… and maximum number of them: a row group of Parquet."""
_MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""How ``datasets`` stores images and sounds."""
_SUFFIXES = {b"\xff\xd8\xff": "jpg", b"\x89PN": "png", b"GIF": "gif", b"BM": "bmp", b"RIF": "webp"}
_COLOURS = {1: 0, 3: 2, 4: 6}
"""PNG's colour types, by number of channels."""

Record = dict[str, Any]
"""Values by feature, as the reader gives them; None where one is missing."""
Put = Callable[[list[str], list[Record]], None]
"""Writes a batch: ids, and their records."""


class _NotTextError(Exception):
    """A string of the feature named in ``args`` is not UTF-8."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """What was exported."""

    folder: str
    num_files: int
    num_examples: int
    num_bytes: int


def export(
    snapshot: Snapshot, to: str, output: str, *, split: str | None, progress: Progress
) -> Exported:
    """Exports a snapshot, or one split of it, into a new folder.

    Args:
        snapshot: The snapshot, on this machine or in a store.
        to: The format: "parquet" or "webdataset".
        output: Destination: a local folder that does not exist.
        split: The name of a split; None for all.
        progress: Receives the number of records done.

    Raises:
        RecipeError: if there is no such split or format, or two features would be one part of a
            WebDataset.
        PlaceError: if the output exists, or is in a store.
        DamagedSnapshotError: if a shard or its index is damaged.
        DataError: if the format cannot hold a value.
        StorageError: if a file cannot be read or written.
    """
    manifest = snapshot.manifest
    if split is not None and split not in manifest.splits:
        raise RecipeError(f"There is no split {split!r}, only {', '.join(manifest.splits)}.")
    if to not in _WRITERS:
        raise RecipeError(f"Unknown format {to!r}: expected {' or '.join(_WRITERS)}.")
    chosen = [split] if split is not None else list(manifest.splits)
    shards = [shard for name in chosen for shard in manifest.splits[name].shards]
    total = sum(shard.num_examples for shard in shards)
    binary: frozenset[str] = frozenset()
    """Features with strings that are not text, which is known only when one is met."""
    with _new_folder(output) as folder:
        progress.start(STEP, total=total, unit="records")
        while True:
            try:
                writer = _WRITERS[to](manifest, binary)
                _write(snapshot, shards, writer, folder, progress)
                break
            except _NotTextError as error:
                (name,) = error.args
                if name in binary:
                    raise DataError(
                        f"Feature {name!r} has lists of strings that are not UTF-8, which JSON "
                        "cannot hold. Export to parquet, or drop the feature (ss.records.drop)."
                    ) from None
                binary |= {name}
        progress.finish(STEP, reused=False)
        sizes = storage.sizes(folder)
    return Exported(
        folder=os.path.abspath(output),
        num_files=len(sizes),
        num_examples=total,
        num_bytes=sum(sizes.values()),
    )


@contextlib.contextmanager
def _new_folder(output: str) -> Iterator[str]:
    """A folder that gets the name ``output`` when the body has ended without an exception."""
    if not storage.is_local(output):
        raise PlaceError(
            f"{storage.redact(output)} is not on this machine. Export to a local folder, and copy "
            "it to the store."
        )
    path = os.path.abspath(storage.local_path(output))
    taken = PlaceError(f"{path} exists already. Name a folder that does not exist, or remove it.")
    if os.path.lexists(path):
        raise taken
    parent = os.path.dirname(path)
    with os_errors_as_storage_errors("write", path):
        make_folders(parent)
        with held_folder(parent) as held:
            folder = os.path.join(held, "export")
            os.mkdir(folder)
            yield folder
            sync_tree(folder)
            if os.path.lexists(path):
                raise taken
            os.rename(folder, path)


def _write(
    snapshot: Snapshot,
    shards: list[ShardEntry],
    writer: _ParquetWriter | _WebDatasetWriter,
    folder: str,
    progress: Progress,
) -> None:
    num_done = 0
    for shard in shards:
        name = ShardName.parse(shard.file)
        if name is None:
            raise DamagedSnapshotError(f"{shard.file!r} is not a valid name of a shard.")
        with writer.open(folder, name) as put:
            for ids, records in _batches(snapshot, shard, name, writer.parser):
                put(ids, records)
                num_done += len(ids)
                progress.advance(STEP, done=num_done)


def _parser(features: Features) -> Parser:
    """Parses examples, and notes for every feature that may be missing whether it is there."""
    described = describe(features)
    for name, feature in features.items():
        if is_optional(feature):
            described[name]["present"] = presence_name(name)
    return Parser(described, sides=sides_of(features, frozenset()), decode=None)


def _batches(
    snapshot: Snapshot, shard: ShardEntry, name: ShardName, parser: Parser
) -> Iterator[tuple[list[str], list[Record]]]:
    """The ids and records of a shard, whose hash is checked first.

    Raises:
        DamagedSnapshotError: if the shard is not the file that the manifest lists, or its index
            lists other records.
    """
    with storage.losses_as_damage():
        yield from _batches_of(snapshot, shard, name, parser)


def _batches_of(
    snapshot: Snapshot, shard: ShardEntry, name: ShardName, parser: Parser
) -> Iterator[tuple[list[str], list[Record]]]:
    url = join(snapshot.path, shard.file)
    advice = "Run `snapshard verify` to find all damage."
    if SnapshotFiles(snapshot.path).sha256(shard.file, shard.num_bytes) != shard.sha256:
        raise DamagedSnapshotError(
            f"{storage.redact(url)} is not the file that the manifest lists: its sha256 differs. "
            f"{advice}"
        )
    optional = {
        n: presence_name(n) for n, f in snapshot.manifest.features.items() if is_optional(f)
    }
    ids = itertools.chain.from_iterable(
        batch.to_pylist() for batch in stored_ids(join(snapshot.path, name.index_files[1]))
    )
    pairs = itertools.zip_longest(ids, stored_examples(url, name.compression))
    while True:
        found: tuple[list[str], list[Record]] = ([], [])
        num_bytes = 0
        for record_id, example in itertools.islice(pairs, _BATCH_RECORDS):
            if record_id is None or example is None:
                raise DamagedSnapshotError(f"{storage.redact(url)} and its index differ. {advice}")
            record = parser(example)
            for missing, presence in optional.items():
                if not record.pop(presence):
                    record[missing] = None
            found[0].append(record_id.decode())
            found[1].append(record)
            num_bytes += len(example)
            if num_bytes >= _BATCH_BYTES:
                break
        if not found[0]:
            return
        yield found


class _ParquetWriter:
    """Parquet files, one row group for each batch."""

    def __init__(self, manifest: Manifest, binary: frozenset[str]) -> None:
        self._features, self._structs, self._binary = manifest.features, manifest.structs, binary
        self.parser = _parser(self._features)
        self._id = id_name(self._features)
        specs = {name: _hugging_face(feature) for name, feature in self._features.items()}
        known = {name: spec for name, spec in _nested(specs, self._structs).items() if spec}
        self._metadata = {b"huggingface": json.dumps({"info": {"features": known}}).encode()}

    @contextlib.contextmanager
    def open(self, folder: str, name: ShardName) -> Iterator[Put]:
        path = os.path.join(folder, "data", f"{str(name).partition('.')[0]}.parquet")
        make_folders(os.path.dirname(path))
        schema = self._table([], []).schema
        with pq.ParquetWriter(path, schema) as writer:
            yield lambda ids, records: writer.write_table(self._table(ids, records))

    def _table(self, ids: list[str], records: list[Record]) -> pa.Table:
        columns: dict[str, Any] = {}
        for name, feature in self._features.items():
            values = [record[name] for record in records]
            if isinstance(feature, Image | Audio) or frames_of(feature) is not None:
                rates = [record.get(f"{name}/rate") for record in records]
                columns[name] = _media_column(feature, values, rates)
            else:
                columns[name] = _column(name, feature, values, is_binary=name in self._binary)
        nested = {self._id: pa.array(ids, pa.string())} | _nested(columns, self._structs)
        table = pa.table({name: _struct_array(column) for name, column in nested.items()})
        return table.replace_schema_metadata(self._metadata)


def _nested(columns: Mapping[str, Any], structs: list[str]) -> dict[str, Any]:
    """The same columns, those of each struct's fields in a dict."""
    nested = dict(columns)
    for struct_name in reversed(structs):  # inner ones first
        fields = [name for name in nested if name.startswith(f"{struct_name}.")]
        inner = {name[len(struct_name) + 1 :]: nested.pop(name) for name in fields}
        if inner:
            nested[struct_name] = inner
    return nested


def _struct_array(column: Any) -> pa.Array:
    if not isinstance(column, dict):
        return column
    return pa.StructArray.from_arrays([*map(_struct_array, column.values())], names=[*column])


def _hugging_face(feature: Feature) -> Any:
    """The type of a column to ``datasets``, which its Arrow type does not say; None for others."""
    if frames_of(feature) is not None:
        return {"_type": "List", "feature": {"_type": "Image"}}
    if isinstance(feature, Image | Audio):
        return {"_type": "Audio" if isinstance(feature, Audio) else "Image"}
    if isinstance(feature, ClassLabel):
        return {"_type": "ClassLabel", "names": list(feature.names)}
    return None


def _media_column(feature: Feature, values: list[Any], rates: list[Any]) -> pa.Array:
    if frames_of(feature) is not None:
        clips = [[{"bytes": frame} for frame in frames] for frames in values]
        return pa.array(clips, pa.list_(_MEDIA))
    pairs = zip(values, rates, strict=True)
    return pa.array([{"bytes": _file(feature, value, rate)} for value, rate in pairs], _MEDIA)


def _column(name: str, feature: Feature, values: list[Any], *, is_binary: bool) -> pa.Array:
    """An Arrow column of the values; None is null."""
    form = tensor_form(feature)
    assert form is not None
    if form.shape:
        return _lists(name, feature, values, form.shape, is_binary=is_binary)
    if isinstance(feature, ClassLabel):
        codes = pa.array(values, pa.int32())
        return pa.DictionaryArray.from_arrays(codes, pa.array(feature.names, pa.string()))
    return _flat(name, feature, values, is_binary=is_binary)


def _flat(name: str, feature: Feature, values: Any, *, is_binary: bool) -> pa.Array:
    """Single values, or those of all lists."""
    form = tensor_form(feature)
    assert form is not None
    item = feature.of if isinstance(feature, Sequence) else feature
    if isinstance(item, ClassLabel):
        return pa.array([item.names[code] for code in values], pa.string())
    if form.dtype == "string":
        if is_binary:
            return pa.array(values, pa.binary())
        return pa.array([_text(name, value) for value in values], pa.string())
    dtype = {"bfloat16": "float32", "bool": "bool_"}.get(form.dtype, form.dtype)
    array = pa.array(values, getattr(pa, dtype)())
    if not isinstance(item, Timestamp):
        return array
    # Parquet has no seconds: Arrow stores them as milliseconds.
    unit = "ms" if item.unit == "s" else item.unit
    try:
        return array.cast(pa.timestamp(item.unit, "UTC")).cast(pa.timestamp(unit, "UTC"))
    except pa.ArrowInvalid as error:
        raise RecipeError(
            f"Feature {name!r} has a time that Parquet cannot store: {error}. Export it with --to "
            "webdataset."
        ) from None


def _text(name: str, value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        raise _NotTextError(name) from None


def _lists(
    name: str,
    feature: Feature,
    values: list[Any],
    shape: tuple[int | None, ...],
    *,
    is_binary: bool,
) -> pa.Array:
    """Nested lists: fixed-size ones for dimensions that do not vary.

    The values of all tensors are one array, which each dimension cuts, the last one first. For
    ``[[1, 2], [3, 4]]`` and ``[[5, 6]]`` of the shape (None, 2): 1 to 6, cut into three pairs, cut
    into two and one of these.
    """
    num_dims = len(shape)
    dtype = np.dtype(object) if not values else None
    tensors = [np.empty((0,) * num_dims, dtype) if v is None else np.asarray(v) for v in values]
    sizes = np.array([tensor.shape for tensor in tensors], np.int64).reshape(-1, num_dims)
    parts = [tensor.reshape(-1) for tensor in tensors if tensor.size]
    flat = np.concatenate(parts) if parts else np.empty(0, object)
    array = _flat(name, feature, flat, is_binary=is_binary)
    for level in reversed(range(num_dims)):
        size = shape[level]
        if size is not None:
            array = pa.FixedSizeListArray.from_arrays(array, size)
            continue
        lengths = np.repeat(sizes[:, level], sizes[:, :level].prod(axis=1))
        ends = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()]).astype(np.int32)
        missing = [value is None for value in values]
        mask = pa.array(missing, pa.bool_()) if level == 0 and any(missing) else None
        array = pa.ListArray.from_arrays(pa.array(ends), array, mask=mask)
    return array


class _WebDatasetWriter:
    """Tars, whose members say nothing but the records: no times, owners or permissions."""

    def __init__(self, manifest: Manifest, binary: frozenset[str]) -> None:
        self._features, self._structs, self._binary = manifest.features, manifest.structs, binary
        self._label = manifest.label
        self.parser = _parser(self._features)

    @contextlib.contextmanager
    def open(self, folder: str, name: ShardName) -> Iterator[Put]:
        path = os.path.join(folder, f"{name.split}-{name.index:06d}.tar")
        with open(path, "wb") as archive:
            keys: set[str] = set()

            def put(ids: list[str], records: list[Record]) -> None:
                for record_id, record in zip(ids, records, strict=True):
                    parts = self._parts(record)
                    key = _key(record_id, parts, keys)
                    keys.add(key)
                    for part, content in parts.items():
                        member = tarfile.TarInfo(f"{key}.{part}")
                        member.size = len(content)
                        archive.write(member.tobuf(tarfile.GNU_FORMAT))
                        archive.write(content)
                        archive.write(bytes(-len(content) % tarfile.BLOCKSIZE))

            yield put
            archive.write(bytes(2 * tarfile.BLOCKSIZE))  # the end

    def _parts(self, record: Record) -> dict[str, bytes]:
        """The members of a record by suffix."""
        parts: dict[str, bytes] = {}
        rest: dict[str, Any] = {}
        for name, feature in self._features.items():
            value = record[name]
            if frames_of(feature) is not None:
                frames = enumerate(value)
                found = {_part(name, "", f"{n:06d}.{_suffix(frame)}"): frame for n, frame in frames}
            elif isinstance(feature, Image):
                content = _file(feature, value, None)
                found = {_part(name, "image", _suffix(content)): content}
            elif isinstance(feature, Audio):
                content = _file(feature, value, record.get(f"{name}/rate"))
                found = {_part(name, "audio", "wav"): content}
            elif value is None:
                rest[name] = None
                continue
            elif name == self._label and isinstance(value, np.integer):
                found = {"cls": str(value).encode()}
                if isinstance(feature, ClassLabel):
                    rest[name] = feature.names[int(value)]
            elif _is_array(feature):
                found = {_part(name, "array", "npy"): _npy(value)}
            elif name in self._binary and isinstance(value, bytes):
                found = {_part(name, "", "bin"): value}
            elif name == "text" and isinstance(feature, Text):
                found = {"txt": value}
            else:
                rest[name] = plain(feature, value, text=functools.partial(_text, name))
                continue
            if double := {*map(str.lower, found)}.intersection(map(str.lower, parts)):
                raise RecipeError(
                    f"Feature {name!r} would be the part {min(double)!r} of each record, which "
                    "another feature is already. Rename one of them (ss.records.rename)."
                )
            parts |= found
        if rest or not parts:
            parts["json"] = json.dumps(_nested(rest, self._structs), ensure_ascii=False).encode()
        return parts


def _key(record_id: str, parts: Collection[str], taken: Collection[str]) -> str:
    """A record's key, up to the first dot of its members' names: ``c0/7`` of ``c0/7.png``.

    Where the suffix is not that of a part, or the key is taken, it stays in the key, with its dot
    as ``%2E``.
    """
    name = _quoted(record_id)
    if not stays_inside(name):
        name = name.replace("/", "%2F").replace("\\", "%5C")
    folder, slash, base = name.rpartition("/")
    stem, _, suffix = base.rpartition(".")
    keys = [folder + slash + text.replace(".", "%2E") for text in (stem, base)]
    is_known = suffix.lower().replace("jpeg", "jpg") in parts
    key = keys[0] if stem and is_known and keys[0] not in taken else keys[1]
    while key in taken:
        key += "%2E"
    return key


def _quoted(name: str) -> str:
    return name.replace("%", "%25").replace("\0", "%00")


def _part(name: str, kind: str, suffix: str) -> str:
    """The suffix of a member: "jpg" for the feature "image", "left.jpg" for "left.image"."""
    is_kind = kind and (name == kind or name.endswith(f".{kind}"))
    prefix = name.removesuffix(kind) if is_kind else f"{name}."
    return _quoted(prefix).replace("/", "%2F") + suffix


def _suffix(content: bytes) -> str:
    found = (suffix for magic, suffix in _SUFFIXES.items() if content.startswith(magic))
    return next(found, "img")


def _is_array(feature: Feature) -> bool:
    """Whether a feature is a list of plain numbers."""
    item = feature.of if isinstance(feature, Sequence) else feature
    form = tensor_form(feature)
    is_number = isinstance(item, Scalar | Tensor) and item.dtype != "string"
    return is_number and form is not None and bool(form.shape)


def _file(feature: Feature, value: Any, rate: Any) -> bytes:
    """An image or a sound as a file, without a loss."""
    if isinstance(feature, Audio):
        is_pcm = feature.dtype == "int16"
        return _wav(value, rate=int(feature.rate or rate), is_pcm=is_pcm)
    return bytes(value) if is_encoded(feature) else _png(value)


def _png(pixels: npt.NDArray[Any]) -> bytes:
    """A PNG of ``uint8`` or ``uint16[height, width, channels]``: differences to the row above."""
    height, width, channels = pixels.shape
    rows = pixels.astype(pixels.dtype.newbyteorder(">")).reshape(height, -1).view(np.uint8)
    filtered = np.full((height, rows.shape[1] + 1), 2, np.uint8)  # 2: the filter "up"
    filtered[:, 1:] = rows
    filtered[1:, 1:] -= rows[:-1]
    head = struct.pack(">IIBBBBB", width, height, 8 * pixels.itemsize, _COLOURS[channels], 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for chunk in (b"IHDR" + head, b"IDAT" + zlib.compress(filtered.tobytes()), b"IEND"):
        content += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return content


def _wav(samples: npt.NDArray[np.float32], *, rate: int, is_pcm: bool) -> bytes:
    """A WAV file of ``float32[samples]`` or ``float32[samples, channels]``."""
    content = (samples * 32_768).astype("<i2") if is_pcm else samples.astype("<f4")
    channels, width = math.prod(samples.shape[1:]), content.itemsize
    form = struct.pack(
        "<HHIIHH",
        *(1 if is_pcm else 3, channels, rate, rate * channels * width),
        *(channels * width, 8 * width),
    )
    chunks = ((b"fmt ", form), (b"data", content.tobytes()))
    body = b"".join(kind + struct.pack("<I", len(data)) + data for kind, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


def _npy(array: npt.NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


_WRITERS: Mapping[str, Callable[[Manifest, frozenset[str]], _ParquetWriter | _WebDatasetWriter]] = {
    "parquet": _ParquetWriter,
    "webdataset": _WebDatasetWriter,
}
