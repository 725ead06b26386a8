"""The shards of a split: where they are, where their records begin, and how one is read."""

from __future__ import annotations

import bisect
import concurrent.futures
import io
import itertools
import json
import os
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .frames import how_to_verify, masked_crc32c

READ_BYTES = 256 << 10
"""One read of a local shard; page faults of larger ones cost more."""
FETCH_BYTES = 4 << 20
"""One read where each is a request to a store."""
_INDEX_BYTES = 4 << 20
"""An index of up to this size is read whole, a larger one entry by entry."""
_THREADS = 32
"""Requests to a store that are under way at a time."""


class Shard(NamedTuple):
    """One file of a split, as the manifest lists it."""

    path: str
    num_examples: int
    num_bytes: int


class Piece(NamedTuple):
    """Consecutive records of one shard, which are read one after another."""

    path: str
    offset: int
    """Byte at which reading begins."""
    skip: int
    """Records after it that are passed over, where no index says at which byte to begin."""
    take: int
    """How many records there are."""
    place: int
    """Place of the first one in the split's stored order."""


def list_shards(split: str, root: str) -> list[Shard]:
    """The split's shards in stored order.

    Raises:
        ValueError: if ``root`` does not hold the snapshot that this reader belongs to.
    """
    path = f"{root}/manifest.json"
    content = read_text(path)
    try:
        manifest = json.loads(content)
        found = (manifest["fingerprint"], manifest["format_version"])
    except (ValueError, LookupError, TypeError):
        raise ValueError(
            f"{path} is not a manifest ({content[:99]!r}). Pass the folder of {facts.NAME} "
            f"{facts.FINGERPRINT} as root=."
        ) from None
    if found != (facts.FINGERPRINT, facts.FORMAT_VERSION):
        raise ValueError(
            f"{path} has fingerprint {found[0]} (format {found[1]}), this reader "
            f"{facts.FINGERPRINT} (format {facts.FORMAT_VERSION}). Use the reader of that "
            "snapshot, or pass another root=."
        )
    shards = manifest["splits"][split]["shards"]
    return [Shard(f"{root}/{s['file']}", s["num_examples"], s["num_bytes"]) for s in shards]


def read_text(path: str) -> str:
    """A file's content; or the reason why it cannot be read."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return bytes(file.read()).decode(errors="replace")
    except tf.errors.UnimplementedError:  # a protocol that TensorFlow does not know
        from .local_copy import read_bytes

        return read_bytes(path).decode(errors="replace")
    except tf.errors.OpError as error:
        return str(error.message)


def whole_shards(shards: Sequence[Shard]) -> list[Piece]:
    """Each shard as one piece."""
    places = itertools.accumulate((shard.num_examples for shard in shards), initial=0)
    return [
        Piece(shard.path, 0, 0, shard.num_examples, place)
        for shard, place in zip(shards, places, strict=False)
        if shard.num_examples
    ]


def cut(shards: Sequence[Shard], start: int, stop: int) -> list[Piece]:
    """The records from one place of the split's stored order to another."""
    ends = [*itertools.accumulate(shard.num_examples for shard in shards)]
    pieces, number = [], bisect.bisect_right(ends, start)
    while start < stop:
        begin = ends[number] - shards[number].num_examples
        take = min(stop, ends[number]) - start
        if take > 0:
            pieces.append(Piece(shards[number].path, 0, start - begin, take, start))
        start, number = start + take, number + 1
    return pieces


def divide(shards: Sequence[Shard], part: tuple[int, int], *, even: bool = False) -> list[Piece]:
    """One of ``count`` parts of all records: what lies between two cuts in the stored order.

    The cuts are at i / count of the records, so that each record is in exactly one part. Where
    moving all cuts to the nearest ends of shards keeps every part within 5 % of an even share,
    they are moved, unless ``even``.
    """
    index, count = part
    starts = [0, *itertools.accumulate(shard.num_examples for shard in shards)]
    total = starts[-1]
    cuts = [total * i // count for i in range(count + 1)]
    moved = [min((abs(start - at), start) for start in starts)[1] for at in cuts]
    shares = [b - a for a, b in itertools.pairwise(moved)]
    if not even and all(abs(share * count - total) <= 0.05 * total for share in shares):
        cuts = moved
    return cut(shards, cuts[index], cuts[index + 1])


def locate(
    pieces: Sequence[Piece], shards: Sequence[Shard], root: str, *, may_be_missing: bool = False
) -> list[Piece]:
    """The same pieces, each with the byte at which it begins, from the shards' index.

    Reading on from there costs nothing; passing over records costs half of reading them. The
    shards are checked as far as they are used: their sizes, that neighbouring entries of the index
    are contiguous, and that a record begins at each of these bytes. Where a snapshot has no index,
    records are passed over.

    Args:
        pieces: What is to be read.
        shards: Of the split.
        root: Folder or URL of the snapshot.
        may_be_missing: Whether a shard may be gone, since a cache may hold it.

    Raises:
        ValueError: if a shard or its index is damaged, or belongs to another snapshot.
    """
    by_path = {shard.path: shard for shard in shards}
    wanted: dict[str, list[int]] = {}
    for piece in pieces:
        wanted.setdefault(piece.path, []).append(piece.skip)
    is_store = "://" in root
    with concurrent.futures.ThreadPoolExecutor(_THREADS if is_store else 1) as pool:
        found = pool.map(
            lambda item: _offsets(by_path[item[0]], item[1], root, may_be_missing),
            [*wanted.items()],
        )
        offsets = dict(zip(wanted, found, strict=True))
    located = []
    for piece in pieces:
        of_shard = offsets[piece.path]
        if of_shard is not None:
            piece = piece._replace(offset=of_shard[piece.skip], skip=0)
        located.append(piece)
    return located


def _offsets(
    shard: Shard, records: list[int], root: str, may_be_missing: bool
) -> dict[int, int] | None:
    """The byte at which each of these records of a shard begins; None without an index."""
    if "://" in root:  # there is no request for what is not needed
        return _indexed(shard, records, root)
    try:
        num_bytes = os.path.getsize(shard.path)
    except OSError as error:
        if may_be_missing:
            return None
        raise _damaged(shard, f"cannot be read ({error.strerror})") from None
    if num_bytes != shard.num_bytes:
        raise _damaged(shard, f"has {num_bytes:,} bytes, expected {shard.num_bytes:,}")
    found = _indexed(shard, records, root)
    with open(shard.path, "rb") as file:
        for record, offset in (found or {}).items():
            file.seek(offset)
            _check_frame(shard, record, offset, file.read(12))
    return found


def _indexed(shard: Shard, records: list[int], root: str) -> dict[int, int] | None:
    """The same, as the index has it."""
    if {*records} == {0}:
        return {0: 0}
    path = f"{root}/index/{shard.path.removeprefix(f'{root}/')}.idx"
    is_small = "://" in root and 16 * shard.num_examples <= _INDEX_BYTES
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            index = io.BytesIO(file.read()) if is_small else file
            return {record: _offset(index, path, shard, record) for record in {*records}}
    except tf.errors.UnimplementedError:  # a protocol that TensorFlow does not know
        content = _fetched(path)
    except (tf.errors.OpError, OSError):  # there is none, or it cannot be read
        return None
    if content is None:
        return None
    index = io.BytesIO(content)
    return {record: _offset(index, path, shard, record) for record in {*records}}


def _fetched(url: str) -> bytes | None:
    """What fsspec reads at a URL, if it can."""
    from .local_copy import read_bytes

    try:
        return read_bytes(url)
    except ValueError:
        return None


def _offset(file: Any, path: str, shard: Shard, record: int) -> int:
    """Where a record begins: entries are pairs of (offset, length), little-endian uint64."""
    before = max(0, record - 1)
    file.seek(16 * before)
    content = file.read(16 * (record - before + 1))
    if len(content) != 16 * (record - before + 1):
        raise _damaged(shard, f"has an index {path} that is too short for record {record:,}")
    *previous, offset, length = struct.unpack(f"<{len(content) // 8}Q", content)
    if (sum(previous) if record else 0) != offset or offset + length > shard.num_bytes:
        raise _damaged(
            shard, f"has an index {path} whose entries {before:,} and {record:,} are not contiguous"
        )
    return int(offset)


def _check_frame(shard: Shard, record: int, offset: int, head: bytes) -> None:
    """Raises where no record begins: the CRC32C of a frame's length follows it."""
    if len(head) < 12 or struct.unpack("<I", head[8:])[0] != masked_crc32c(head[:8]):
        raise _damaged(shard, f"has no record {record:,} at byte {offset:,}, where its index says")


def _damaged(shard: Shard, what: str) -> ValueError:
    """The error for a shard, with the command that verifies it."""
    return ValueError(f"{shard.path} {what}. {how_to_verify(os.path.dirname(shard.path))}")


def as_columns(pieces: Sequence[Piece]) -> tuple[Any, ...]:
    """Pieces as tensors: string[n] and four of int64[n]."""
    columns: Any = zip(*pieces, strict=True) if pieces else ((), (), (), (), ())
    dtypes = (tf.string, tf.int64, tf.int64, tf.int64, tf.int64)
    return tuple(map(tf.constant, columns, dtypes))


def open_records(
    path: Any,
    offset: Any,
    skip: Any,
    take: Any,
    *_: Any,
    is_whole: bool = False,
    passes_over: bool = True,
    is_remote: bool = False,
) -> tf.data.Dataset:
    """The serialized examples of one piece; fewer raise, as do more of a whole shard.

    The raw op begins at a byte, which the public ``TFRecordDataset`` cannot, and takes 6 to 9 %
    less processor time.

    Args:
        path: Of a ``Piece``, like the next three, as a scalar tensor.
        offset: Its first byte.
        skip: Records to pass over.
        take: Records to read.
        is_whole: Whether each piece is a whole shard.
        passes_over: Whether some piece has records to pass over.
        is_remote: Whether the shards are at a URL.
    """
    at_once: Any = tf.constant(READ_BYTES, tf.int64)
    if is_remote:
        about = take * (facts.RECORD_BYTES + 16)  # no more than the piece is fetched
        at_once = tf.clip_by_value(about, READ_BYTES, FETCH_BYTES)
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=tf.reshape(path, [1]),
        compression_type="GZIP" if facts.COMPRESSION == "gzip" else "",
        buffer_size=at_once,
        byte_offsets=tf.reshape(offset, [1]),
    )
    records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    if passes_over and not is_whole:
        records = records.skip(skip)
    if not is_whole:
        records = records.take(take)
    return records.apply(tf.data.experimental.assert_cardinality(take))
