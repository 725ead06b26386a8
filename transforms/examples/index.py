"""A shard's index files: each record's offset, origin and class.

``<shard>.idx`` holds a pair of little-endian uint64 for each record, in the shard's order: the
offset and the length of its frame, in uncompressed bytes. A frame is 12 bytes of head, the
serialized Example, and 4 bytes of checksum. One read gives everything needed to check a record,
and consecutive records are one range (each offset is the previous offset plus its length). The
pairs are those of NVIDIA DALI's ``tfrecord2idx``, in binary. With the standard library::

    pairs = array.array("Q", open("index/<shard>.idx", "rb").read())  # on a little-endian machine
    offset, length = pairs[2 * n], pairs[2 * n + 1]
    shard.seek(offset)
    serialized = shard.read(length)[12:-4]

``<shard>.parquet`` has the columns ``id`` (of the record), ``source`` (relative path of the file
it came from) and ``position`` (byte offset or row in it; null if the file is the record). The
same ids give the same bytes with the same version of Arrow.

``<shard>.labels`` exists if the label is a class: a little-endian int32 for each record, in the
shard's order: its index in the class names, or -1 if the label is missing. Samplers use it to
choose records without reading any.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...schemas.naming import ShardName

_PAIR = np.dtype("<u8")
_CLASS = np.dtype("<i4")
_NO_CLASS = -1
_ROW_GROUP_ROWS = 1 << 16
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.large_string(), nullable=False),
        pa.field("source", pa.large_string(), nullable=False),
        pa.field("position", pa.int64()),
    ]
)


def index_bytes(offsets: npt.NDArray[np.uint64], lengths: npt.NDArray[np.uint64]) -> bytes:
    """The content of ``<shard>.idx``.

    Args:
        offsets: uint64[n], the start of each frame in the uncompressed bytes.
        lengths: uint64[n], bytes of each complete frame.
    """
    return np.stack([offsets, lengths], axis=1).astype(_PAIR).tobytes()


def index_from_bytes(content: bytes) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Reads what :func:`index_bytes` wrote: offsets and lengths, uint64[n] each.

    Raises:
        ValueError: if it is not a whole number of pairs.
    """
    if len(content) % (2 * _PAIR.itemsize):
        raise ValueError(
            f"expected a whole number of pairs of 16 bytes, found {len(content):,} bytes"
        )
    pairs = np.frombuffer(content, _PAIR).astype(np.uint64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def class_codes(column: pa.Array) -> npt.NDArray[np.int32]:
    """The classes of a wire column of int64, as ``<shard>.labels`` stores them: int32[n]."""
    codes: npt.NDArray[np.int64] = pc.fill_null(column, _NO_CLASS).to_numpy(zero_copy_only=False)
    return codes.astype(_CLASS)


def labels_bytes(codes: Iterable[npt.NDArray[np.int32]]) -> bytes:
    """The content of ``<shard>.labels``, from the batches returned by :func:`class_codes`."""
    return b"".join(part.astype(_CLASS, copy=False).tobytes() for part in codes)


def class_codes_from_bytes(content: bytes) -> npt.NDArray[np.int32]:
    """Reads what :func:`labels_bytes` wrote: int32[n].

    Raises:
        ValueError: if it is not a whole number of classes.
    """
    if len(content) % _CLASS.itemsize:
        raise ValueError(
            f"expected a whole number of classes of 4 bytes, found {len(content):,} bytes"
        )
    return np.frombuffer(content, _CLASS).astype(np.int32)


def index_sizes(name: ShardName, num_examples: int) -> dict[str, int]:
    """The sizes in bytes of the offsets and labels files, by file name."""
    offsets_file, _ = name.index_files
    return {
        offsets_file: 2 * _PAIR.itemsize * num_examples,
        name.labels_file: _CLASS.itemsize * num_examples,
    }


def write_index_table(
    where: str | pa.NativeFile,
    ids: Iterable[pa.Array],
    *,
    numbered: bool,
    group_rows: int = _ROW_GROUP_ROWS,
) -> None:
    """Writes ``<shard>.parquet``; its bytes do not depend on how the ids are batched.

    Args:
        where: A local path, of which an existing file is overwritten, or an output stream.
        ids: The records' ids in the shard's order, strings.
        numbered: Whether ids are ``path#position``.
        group_rows: Number of rows of a row group.

    Raises:
        ValueError: if an id should have a position and has none.
    """
    # Every option that affects the bytes is explicit: new defaults of Arrow change nothing.
    with pq.ParquetWriter(
        where,
        _SCHEMA,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=["source"],
        write_statistics=True,
        store_schema=False,
    ) as writer:
        for group in _groups(ids, group_rows):
            writer.write_table(_table(group, numbered=numbered), row_group_size=group_rows)


def _groups(ids: Iterable[pa.Array], num_rows: int) -> Iterator[pa.Array]:
    """Rebatches the ids to arrays of ``num_rows``."""
    held: list[pa.Array] = []
    num_held = 0
    for array in ids:
        held.append(array.cast(pa.large_string()))
        num_held += len(array)
        if num_held >= num_rows:
            whole = pa.concat_arrays(held)
            for start in range(0, num_held - num_rows + 1, num_rows):
                yield whole.slice(start, num_rows)
            num_held %= num_rows
            held = [whole.slice(len(whole) - num_held)]
    if num_held:
        yield pa.concat_arrays(held)


def _table(ids: pa.Array, *, numbered: bool) -> pa.Table:
    if not numbered:
        return pa.Table.from_arrays([ids, ids, pa.nulls(len(ids), pa.int64())], schema=_SCHEMA)
    parts = pc.extract_regex(ids, r"(?s)^(?P<source>.*)#(?P<position>-?[0-9]+)$")
    if parts.null_count:
        first = ids.filter(parts.is_null())[0].as_py()
        raise ValueError(f"id {first!r} has no position; expected 'relative/path#position'")
    source, position = parts.flatten()
    return pa.Table.from_arrays([ids, source, position.cast(pa.int64())], schema=_SCHEMA)
