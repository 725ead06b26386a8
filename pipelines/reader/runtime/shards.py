"""The shards of a split: how they are listed, checked, divided among workers, and read."""

from __future__ import annotations

import bisect
import concurrent.futures
import hashlib
import itertools
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .frames import fault_of_shard, how_to_verify, masked_crc32c, read_manifest
from .splits import Split, select

READ_BYTES = 256 << 10
"""Size of one read from a local shard; larger reads cost more page faults."""
FETCH_BYTES = 4 << 20
"""Maximum size of one read from a store, where each read is a request."""
_THREADS = 32
"""Maximum number of concurrent requests to a store."""


class Shard(NamedTuple):
    """One file of a split, as the manifest lists it, or the records of it that are selected."""

    path: str
    num_examples: int
    """Number of the selected records."""
    num_bytes: int
    """Size of the file."""
    checksum: int | None = None
    """Of its first record, or with GZIP of its content; None if unknown."""
    index_sha256: str = ""
    """Of its index, in hex; empty if the manifest does not list it."""
    labels_sha256: str = ""
    """Of the file with the classes of its records; otherwise as ``index_sha256``."""
    first: int = 0
    """Number of the first selected record within the file."""
    num_others: int = 0
    """Number of records of the file that are not selected."""

    @property
    def num_stored(self) -> int:
        """Number of records in the file."""
        return self.num_examples + self.num_others


class Piece(NamedTuple):
    """Consecutive records of one shard, read sequentially."""

    path: str
    offset: int
    """Byte at which reading starts."""
    skip: int
    """Records to skip from there, if no index gives the byte of the first one."""
    take: int
    """Number of records."""
    place: int
    """Position of the first record in the stored order of all selected records."""


def list_shards(split: Split, root: str) -> list[Shard]:
    """Lists the shards of a split, or of parts of splits, in stored order.

    Raises:
        ValueError: if ``root`` does not contain the snapshot that this reader belongs to, or the
            split does not exist.
    """
    selection = select(split)
    manifest = manifest_of(root)
    sha256 = {name: entry["sha256"] for name, entry in manifest.get("files", {}).items()}
    return [
        Shard(
            path=f"{root}/{entry['file']}",
            num_examples=num,
            num_bytes=entry["num_bytes"],
            checksum=checksum,
            index_sha256=sha256.get(f"index/{entry['file']}.idx", ""),
            labels_sha256=sha256.get(f"index/{entry['file']}.labels", ""),
            first=first,
            num_others=entry["num_examples"] - num,
        )
        for entry, checksum, first, num in selection.sections(manifest)
    ]


def manifest_of(root: str) -> dict[str, Any]:
    """The manifest of the snapshot in a folder or at a URL.

    Raises:
        ValueError: if it is missing, cannot be read, or belongs to another snapshot.
    """
    path = f"{root}/manifest.json"
    content = read_text(path)
    if content is None:
        raise ValueError(
            f"{path} is missing. Pass the folder of {facts.NAME} {facts.FINGERPRINT} as root=."
        )
    return read_manifest(content, path)


def read_text(path: str) -> str | None:
    """A file's content; None if it is missing.

    Raises:
        ValueError: if it cannot be read.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return bytes(file.read()).decode(errors="replace")
    except tf.errors.UnimplementedError:  # TensorFlow does not support this protocol
        from .urls import read_bytes

        return read_bytes(path).decode(errors="replace")
    except tf.errors.NotFoundError:
        return None
    except tf.errors.OpError as error:
        raise ValueError(
            f"{path} cannot be read ({error.message}). Check the permissions and the connection, "
            "or pass another root=."
        ) from None


def ends_of(shards: Sequence[Shard]) -> list[int]:
    """Positions in the stored order at which the shards end."""
    return [*itertools.accumulate(shard.num_examples for shard in shards)]


def cut(shards: Sequence[Shard], ends: Sequence[int], start: int, stop: int) -> list[Piece]:
    """The records between two positions in the stored order, as pieces.

    Args:
        shards: All shards to read.
        ends: ``ends_of(shards)``, computed once for many cuts.
        start: The first position.
        stop: The position after the last one.
    """
    pieces, number = [], bisect.bisect_right(ends, start)
    while start < stop:
        begin = ends[number] - shards[number].num_examples
        take = min(stop, ends[number]) - start
        if take > 0:
            skip = shards[number].first + start - begin
            pieces.append(Piece(shards[number].path, 0, skip, take, start))
        start, number = start + take, number + 1
    return pieces


def divide(shards: Sequence[Shard], part: tuple[int, int], *, even: bool = False) -> list[Piece]:
    """Part ``index`` of ``count`` parts of all records, as pieces.

    The cuts are at i / count of the records in stored order, so each record is in exactly one part.
    If moving all cuts to the nearest shard ends keeps every part within 5 % of an even share, they
    are moved, unless ``even``.
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
    """Looks up in the shards' index the byte at which each piece starts.

    Starting at a byte costs nothing; skipping records costs half as much as reading them. Without
    an index, or with GZIP, records are skipped.

    Also checks the shards of these pieces: their sizes and checksums (see ``check_shard``), their
    index (see ``read_index``), and in local files that a record starts at each of these bytes.

    Args:
        pieces: The pieces to read.
        shards: All shards to read.
        root: Folder or URL of the snapshot.
        may_be_missing: Whether shards may be missing, because a cache or a local copy may hold
            them.

    Returns:
        The same pieces, with ``offset`` set and ``skip`` 0 where the byte is known.

    Raises:
        ValueError: if a shard or its index is damaged, or belongs to another snapshot.
    """
    by_path = {shard.path: shard for shard in shards}
    wanted: dict[str, list[int]] = {}
    for piece in pieces:
        wanted.setdefault(piece.path, []).append(piece.skip)
    is_store = "://" in root
    with concurrent.futures.ThreadPoolExecutor(_THREADS if is_store else 1) as pool:
        offsets_of = pool.map(
            lambda item: _offsets(by_path[item[0]], item[1], root, may_be_missing),
            [*wanted.items()],
        )
        offsets = dict(zip(wanted, offsets_of, strict=True))
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
    """The byte at which each of these records of a shard starts; None if unknown."""
    offsets: dict[int, int] | None = {0: 0}
    if {*records} != {0}:
        offsets = _indexed(shard, records, root)
    # Do not send requests for shards that may be missing.
    if not may_be_missing or ("://" not in root and os.path.exists(shard.path)):
        check_shard(shard, offsets if offsets and facts.COMPRESSION == "none" else {})
    return offsets


def _indexed(shard: Shard, records: list[int], root: str) -> dict[int, int] | None:
    """The same, from the index alone."""
    if facts.COMPRESSION != "none":
        return None
    try:
        index = read_index(shard, root)
    except (tf.errors.OpError, OSError):  # unreadable: do without it
        index = None
    if index is None:
        return None
    return dict(zip(records, index[records, 0].tolist(), strict=True))


def check_shard(shard: Shard, offsets: Mapping[int, int]) -> None:
    """Checks a shard's size and checksum, and that records start where its index says.

    Reads the frame of the first record (with GZIP, the end of the file), and in a local file the
    head of each of the given records.

    Args:
        shard: As the manifest lists it.
        offsets: The byte at which each of some records starts.

    Raises:
        ValueError: if the shard is damaged, or belongs to another snapshot.
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
    """Raises if no record starts here; a frame's length is followed by its CRC32C."""
    if len(head) < 12 or struct.unpack("<I", head[8:])[0] != masked_crc32c(head[:8]):
        raise _damaged(shard, f"has no record {record:,} at byte {offset:,}, unlike its index")


def read_index(shard: Shard, root: str) -> npt.NDArray[np.int64] | None:
    """The offset and length of each frame of a shard, uncompressed: int64[num_stored, 2].

    Its sha256 must match the manifest; the check takes 5 ms of a core per 100,000 records. If the
    manifest lists none, the entries must be contiguous.

    Returns:
        The index; None if the snapshot has none.

    Raises:
        ValueError: if the index is damaged, or belongs to another shard.
    """
    path = f"{root}/index/{shard.path.removeprefix(f'{root}/')}.idx"
    content = read_listed(path, 16 * shard.num_stored, shard.index_sha256, root)
    if content is None:
        return None
    index = np.frombuffer(content, "<i8").reshape(-1, 2)
    if not shard.index_sha256 and (fault := _fault_of_index(index, shard)):
        raise ValueError(f"{path} {fault}, of {shard.path}. {how_to_verify(root)}")
    return index


def _fault_of_index(index: npt.NDArray[np.int64], shard: Shard) -> str:
    """Describes what is wrong with the offsets and lengths of a shard's frames; "" if nothing."""
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
    """The content of a file of the index that the manifest lists; None if it is missing.

    Raises:
        ValueError: if its size or sha256 (if one is given) differs.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = bytes(file.read())
    except tf.errors.UnimplementedError:  # TensorFlow does not support this protocol
        from .urls import read_bytes

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
    """The error for a damaged shard, with the command that verifies the snapshot."""
    return ValueError(f"{shard.path} {what}. {how_to_verify(os.path.dirname(shard.path))}")


def as_columns(pieces: Sequence[Piece]) -> tuple[Any, ...]:
    """Pieces as tensors: one string[n] and four int64[n]."""
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
    """The serialized examples of one piece; raises if there are fewer, or more in a whole shard.

    Uses the raw op because it can start at a byte, which the public ``TFRecordDataset`` cannot; it
    also takes 6 to 9 % less processor time.

    Args:
        path: Of a ``Piece``, as are the next three; a scalar tensor.
        offset: Byte at which to start.
        skip: Records to skip.
        take: Records to read.
        is_whole: Whether every piece is a whole shard.
        passes_over: Whether some piece has records to skip.
        is_remote: Whether the shards are at a URL.
    """
    at_once: Any = tf.constant(READ_BYTES, tf.int64)
    if is_remote:
        about = take * (facts.RECORD_BYTES + 16)  # do not fetch more than the piece
        at_once = tf.clip_by_value(about, READ_BYTES, FETCH_BYTES)
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=path,
        compression_type="GZIP" if facts.COMPRESSION == "gzip" else "",
        buffer_size=at_once,
        byte_offsets=offset,
    )
    records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    if passes_over and not is_whole:
        records = records.skip(skip)
    if not is_whole:
        records = records.take(take)
    return records.apply(tf.data.experimental.assert_cardinality(take))
