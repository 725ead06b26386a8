"""Reads the records of a published shard batch by batch: ids, keys and content hashes.

Used to compare two snapshots. The content hash is 128 bits of BLAKE2b of the record's serialized
example, independent of the shard's compression. Nothing is parsed, so neither TensorFlow nor
the features are needed.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.errors import DamagedSnapshotError
from ...schemas.manifest import ShardEntry
from ...schemas.naming import ShardName, join
from .. import storage
from ..runs.keys import Keys, text_keys
from .index import index_from_bytes
from .tfrecord import FOOT_BYTES, FRAME_BYTES, HEAD_BYTES, filled, uncompressed_chunks

DIGEST_BYTES = 16
BATCH_ROWS = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredRecords:
    """Some records of a snapshot, in stored order."""

    keys: Keys
    """uint64[n]."""
    ids: pa.Array
    """large_binary[n]."""
    contents: npt.NDArray[np.uint64]
    """uint64[n, 2]: the content hash of each; all zero if contents were not requested."""
    splits: npt.NDArray[np.int16]
    """int16[n]: the number of each record's split."""

    def __len__(self) -> int:
        """The number of records."""
        return len(self.keys)

    def take(self, rows: slice | npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> StoredRecords:
        """Selects rows by slice, mask or indices."""
        if isinstance(rows, slice):
            ids = self.ids[rows]
        else:
            ids = self.ids.take(pa.array(np.flatnonzero(rows) if rows.dtype == bool else rows))
        return StoredRecords(
            keys=self.keys[rows], ids=ids, contents=self.contents[rows], splits=self.splits[rows]
        )

    @classmethod
    def concat(cls, parts: list[StoredRecords]) -> StoredRecords:
        """Concatenates the records of all parts."""
        ids = [part.ids for part in parts]
        return cls(
            keys=np.concatenate([np.empty(0, np.uint64), *(part.keys for part in parts)]),
            ids=pa.concat_arrays([pa.array([], pa.large_binary()), *ids]),
            contents=np.concatenate(
                [np.empty((0, 2), np.uint64), *(part.contents for part in parts)]
            ),
            splits=np.concatenate([np.empty(0, np.int16), *(part.splits for part in parts)]),
        )


def read_shard(
    folder: str, shard: ShardEntry, *, split: int, seed: int, contents: bool = True
) -> Iterator[StoredRecords]:
    """Reads a shard's records in batches of at most BATCH_ROWS.

    Args:
        folder: The snapshot's folder.
        shard: The shard's entry in the manifest.
        split: The number to give to its split.
        seed: The seed of the keys.
        contents: Whether to read and hash the records' contents, not just their ids.

    Raises:
        DamagedSnapshotError: if index and shard disagree.
        StorageError: if a file cannot be read.
    """
    name = ShardName.parse(shard.file)
    if name is None:
        raise DamagedSnapshotError(f"{join(folder, shard.file)}: not a valid name of a shard.")
    offsets_file, table_file = name.index_files
    hashes = _content_hashes(folder, name, offsets_file) if contents else None
    num_read = 0
    for ids in stored_ids(join(folder, table_file)):
        num_read += len(ids)
        pairs = np.zeros((len(ids), 2), np.uint64)
        if hashes is not None:
            taken = b"".join(itertools.islice(hashes, len(ids)))
            if len(taken) != len(ids) * DIGEST_BYTES:
                raise _disagreeing(folder, name)
            pairs = np.frombuffer(taken, np.uint64).reshape(-1, 2)
        yield StoredRecords(
            keys=text_keys(ids.to_pylist(), seed),
            ids=ids,
            contents=pairs,
            splits=np.full(len(ids), split, np.int16),
        )
    if num_read != shard.num_examples:
        raise _disagreeing(folder, name)


def stored_ids(url: str) -> Iterator[pa.Array]:
    """The ids of a shard's records, in order, from its index: large_binary arrays.

    Raises:
        DamagedSnapshotError: if it is not an index.
        StorageError: if it cannot be read.
    """
    try:
        table = pq.ParquetFile(io.BytesIO(storage.read_bytes(url)))
        for batch in table.iter_batches(BATCH_ROWS, columns=["id"]):
            yield batch.column(0).cast(pa.large_string()).cast(pa.large_binary())
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        raise DamagedSnapshotError(
            f"{storage.redact(url)} is not a valid index: {error}. Run `snapshard verify` to find "
            f"all damage."
        ) from None


def _content_hashes(folder: str, name: ShardName, offsets_file: str) -> Iterator[bytes]:
    """The hash of each record's example, in order."""
    try:
        _, lengths = index_from_bytes(storage.read_bytes(join(folder, offsets_file)))
    except ValueError as error:
        raise DamagedSnapshotError(f"{join(folder, offsets_file)}: {error}.") from None
    chunks = uncompressed_chunks(join(folder, str(name)), name.compression)
    held, at = b"", 0
    for length in lengths.tolist():
        if at + length > len(held):
            held, at = filled(held[at:], length, chunks), 0
            if len(held) < length or length < FRAME_BYTES:
                raise _disagreeing(folder, name)
        example = memoryview(held)[at + HEAD_BYTES : at + length - FOOT_BYTES]
        yield blake2b(example, digest_size=DIGEST_BYTES).digest()
        at += length


def _disagreeing(folder: str, name: ShardName) -> DamagedSnapshotError:
    return DamagedSnapshotError(
        f"{join(folder, str(name))} does not contain the records that its index lists. "
        "Run `snapshard verify` to find all damage."
    )
