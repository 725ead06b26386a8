"""The shards of a split: where they are, where their records begin, and how one is read."""

from __future__ import annotations

import bisect
import concurrent.futures
import hashlib
import itertools
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .frames import fault_of_shard, how_to_verify, masked_crc32c

READ_BYTES = 256 << 10
"""One read of a local shard; page faults of larger ones cost more."""
FETCH_BYTES = 4 << 20
"""One read where each is a request to a store."""
_THREADS = 32
"""Requests to a store that are under way at a time."""


class Shard(NamedTuple):
    """One file of a split, as the manifest lists it."""

    path: str
    num_examples: int
    num_bytes: int
    checksum: int | None = None
    """Of its first record, or with GZIP of its content; None where it is not known."""
    index_sha256: str = ""
    """In hex, of its index; empty where the manifest does not list it."""
    labels_sha256: str = ""
    """The same of the classes of its records."""


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
    if content is None:
        raise ValueError(
            f"{path} is missing. Pass the folder of {facts.NAME} {facts.FINGERPRINT} as root=."
        )
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
    entries = manifest["splits"][split]["shards"]
    sha256 = {name: entry["sha256"] for name, entry in manifest.get("files", {}).items()}
    checksums = facts.SHARD_CHECKSUMS.get(split) or [None] * len(entries)
    return [
        Shard(
            path=f"{root}/{entry['file']}",
            num_examples=entry["num_examples"],
            num_bytes=entry["num_bytes"],
            checksum=checksum,
            index_sha256=sha256.get(f"index/{entry['file']}.idx", ""),
            labels_sha256=sha256.get(f"index/{entry['file']}.labels", ""),
        )
        for entry, checksum in zip(entries, checksums, strict=True)
    ]


def read_text(path: str) -> str | None:
    """A file's content, or the reason why it cannot be read; None if it is missing."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return bytes(file.read()).decode(errors="replace")
    except tf.errors.UnimplementedError:  # a protocol that TensorFlow does not know
        from .local_copy import read_bytes

        return read_bytes(path).decode(errors="replace")
    except tf.errors.NotFoundError:
        return None
    except tf.errors.OpError as error:
        return str(error.message)


def ends_of(shards: Sequence[Shard]) -> list[int]:
    """Where each shard ends in the split's stored order."""
    return [*itertools.accumulate(shard.num_examples for shard in shards)]


def cut(shards: Sequence[Shard], ends: Sequence[int], start: int, stop: int) -> list[Piece]:
    """The records from one place of the split's stored order to another.

    Args:
        shards: Of the split.
        ends: ``ends_of`` these, which many cuts share.
        start: The first place.
        stop: The place behind the last one.
    """
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
    starts = [0, *ends_of(shards)]
    total = starts[-1]
    cuts = [total * i // count for i in range(count + 1)]
    moved = [min((abs(start - at), start) for start in starts)[1] for at in cuts]
    shares = [b - a for a, b in itertools.pairwise(moved)]
    if not even and all(abs(share * count - total) <= 0.05 * total for share in shares):
        cuts = moved
    return cut(shards, starts[1:], cuts[index], cuts[index + 1])


def locate(
    pieces: Sequence[Piece], shards: Sequence[Shard], root: str, *, may_be_missing: bool = False
) -> list[Piece]:
    """The same pieces, each with the byte at which it begins, from the shards' index.

    Reading on from there costs nothing; passing over records costs half of reading them. Where a
    snapshot has no index, or its shards are GZIP, records are passed over.

    The shards of these pieces are checked: their sizes and checksums (see ``check_shard``), their
    index (see ``read_index``), and in local files that a record begins at each of these bytes.

    Args:
        pieces: What is to be read.
        shards: Of the split.
        root: Folder or URL of the snapshot.
        may_be_missing: Whether a shard may be gone, since a cache or a local copy may hold it.

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
    """The byte at which each of these records of a shard begins; None where it is not known."""
    found: dict[int, int] | None = {0: 0}
    if {*records} != {0}:
        found = _indexed(shard, records, root)
    # There is no request for what need not be there.
    if not may_be_missing or ("://" not in root and os.path.exists(shard.path)):
        check_shard(shard, found if found and facts.COMPRESSION == "none" else {})
    return found


def _indexed(shard: Shard, records: list[int], root: str) -> dict[int, int] | None:
    """The same, as the index has it."""
    if facts.COMPRESSION != "none":
        return None
    try:
        index = read_index(shard, root)
    except (tf.errors.OpError, OSError):  # it cannot be read
        index = None
    if index is None:
        return None
    return dict(zip(records, index[records, 0].tolist(), strict=True))


def check_shard(shard: Shard, offsets: Mapping[int, int]) -> None:
    """Checks a shard's size and checksum, and that records begin where its index says.

    It reads the frame of the first record (of GZIP the end of the file), and in a local file the
    head of each other one.

    Args:
        shard: As the manifest lists it.
        offsets: The bytes at which some of its records begin.

    Raises:
        ValueError: if it is damaged, or is a shard of another snapshot.
    """
    is_remote = "://" in shard.path
    try:
        with _opened(shard.path) as file:
            num_bytes = file.size() if is_remote else os.fstat(file.fileno()).st_size
            if num_bytes != shard.num_bytes:
                raise _damaged(shard, f"has {num_bytes:,} bytes, expected {shard.num_bytes:,}")
            read = read_of(file)
            fault = fault_of_shard(read, num_bytes, facts.COMPRESSION, shard.checksum)
            if fault:
                raise _damaged(shard, fault)
            for record, offset in {} if is_remote else offsets.items():
                _check_head(shard, record, offset, read(offset, 12))
    except tf.errors.UnimplementedError:  # a protocol that TensorFlow does not know
        return
    except (OSError, tf.errors.OpError) as error:
        reason = error.message if isinstance(error, tf.errors.OpError) else error.strerror
        raise _damaged(shard, f"cannot be read ({reason})") from None


def _opened(path: str) -> Any:
    return tf.io.gfile.GFile(path, "rb") if "://" in path else open(path, "rb")


def read_of(file: Any) -> Callable[[int, int], bytes]:
    """(offset, size) -> bytes of an open file."""

    def read(offset: int, size: int) -> bytes:
        file.seek(offset)
        return bytes(file.read(size))

    return read


def _check_head(shard: Shard, record: int, offset: int, head: bytes) -> None:
    """Raises where no record begins: the CRC32C of a frame's length follows it."""
    if len(head) < 12 or struct.unpack("<I", head[8:])[0] != masked_crc32c(head[:8]):
        raise _damaged(shard, f"has no record {record:,} at byte {offset:,}, where its index says")


def read_index(shard: Shard, root: str) -> npt.NDArray[np.int64] | None:
    """The offset and length of each frame of a shard, uncompressed: int64[num_examples, 2].

    It must have the sha256 that the manifest lists: 5 ms of a core for each 100,000 records.
    Where none is listed, its entries must be contiguous.

    Returns:
        None where the snapshot has no index.

    Raises:
        ValueError: if the index is damaged, or belongs to another shard.
    """
    path = f"{root}/index/{shard.path.removeprefix(f'{root}/')}.idx"
    content = read_listed(path, 16 * shard.num_examples, shard.index_sha256, root)
    if content is None:
        return None
    index = np.frombuffer(content, "<i8").reshape(-1, 2)
    if not shard.index_sha256 and (fault := _fault_of_index(index, shard)):
        raise ValueError(f"{path} {fault}, of {shard.path}. {how_to_verify(root)}")
    return index


def _fault_of_index(index: npt.NDArray[np.int64], shard: Shard) -> str:
    """What is wrong with the offsets and lengths of a shard's frames, if anything."""
    ends = np.cumsum(index[:, 1])
    wrong = np.flatnonzero((index[:, 0] != ends - index[:, 1]) | (index[:, 1] < 16))
    if len(wrong):
        number, (offset, length) = int(wrong[0]), index[wrong[0]].tolist()
        expected = int(ends[number - 1]) if number else 0
        return (
            f"has record {number:,} at byte {offset:,} with {length:,} bytes, expected it at byte "
            f"{expected:,} (entries must be contiguous)"
        )
    end = int(ends[-1]) if len(ends) else 0
    if facts.COMPRESSION == "none" and end != shard.num_bytes:
        return f"ends at byte {end:,}, expected {shard.num_bytes:,}"
    return ""


def read_listed(path: str, num_bytes: int, sha256: str, root: str) -> bytes | None:
    """The content of a file of the index, which the manifest lists; None if it is missing.

    Raises:
        ValueError: if it is not of this size, or does not have this sha256, where one is given.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = bytes(file.read())
    except tf.errors.UnimplementedError:  # a protocol that TensorFlow does not know
        from .local_copy import read_bytes

        try:
            content = read_bytes(path)
        except ValueError:
            return None
    except tf.errors.NotFoundError:
        return None
    if len(content) != num_bytes:
        raise ValueError(
            f"{path} has {len(content):,} bytes, expected {num_bytes:,}: copy it again. "
            f"{how_to_verify(root)}"
        )
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(
            f"{path} is not the file that the manifest lists: its sha256 differs. Copy it again. "
            f"{how_to_verify(root)}"
        )
    return content


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
