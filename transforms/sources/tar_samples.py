"""Samples of WebDataset tars: members of one key that follow each other, read front to back.

The key of a member is its path up to the first dot of its file name; what follows is the part's
name: ``a/0001.left.jpg`` is the part ``left.jpg`` of the sample ``a/0001``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ...schemas.recipe import OpenSource
from ..storage.decompress import MAGIC_BYTES, DamagedError, compression_of, decompressed
from ..storage.tar import BLOCK_BYTES, TarDamagedError, TarHeaders, TarMember

_EMPTY_BYTES = 20 * BLOCK_BYTES
_END_BYTES = 1 << 20
"""So many zeros are in an empty tar, and at the end of another; a broken copy leaves more."""
_PIECE_BYTES = 1 << 20
_CUT_BYTES = 32 << 20


@dataclasses.dataclass(kw_only=True)
class Sample:
    """The parts of one key."""

    offset: int
    """Where its first member begins, in bytes of the tar, uncompressed."""
    key: str
    parts: dict[str, bytes] = dataclasses.field(default_factory=dict)
    num_bytes: int = 0
    """Of all parts."""
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Damage:
    """Where a tar cannot be read on."""

    offset: int
    message: str


def read_samples(opened: OpenSource, path: str, start: int, stop: int) -> Iterator[Sample | Damage]:
    """Reads the samples of bytes [start, stop) of a tar; a compressed one is read whole.

    Ends with the damage, if there is any.

    Raises:
        StorageError: if the file cannot be read.
    """
    stream = _Forward(opened, path, start, stop)
    headers = TarHeaders(stream.read)
    sample: Sample | None = None
    try:
        for member in headers:
            named = split_name(member.name) if member.kind in ("file", "sparse") else None
            if named is None:
                continue
            key, part = named
            if sample is None or sample.key != key:
                if sample is not None:
                    yield sample
                sample = Sample(offset=start + member.offset, key=key)
            _add(sample, part, member, stream, opened)
    except TarDamagedError as error:
        if sample is not None:
            yield sample
        yield Damage(start + headers.offset, stream.damage or str(error))
        return
    if sample is not None:
        yield sample
    found = stream.damage or _behind(stream, headers.offset, opened, path)
    if found:
        yield Damage(start + headers.offset, found)


def sample_offsets(opened: OpenSource, path: str, num_bytes: int) -> Iterator[int]:
    """Where samples begin, about every 32 MiB; none of a compressed tar.

    Raises:
        StorageError: if the file cannot be read.
    """
    if compression_of(opened.read(path, 0, MAGIC_BYTES)):
        return
    last, key = 0, ""
    try:
        for member in TarHeaders(_Forward(opened, path, 0, num_bytes).read):
            named = split_name(member.name)
            if named is None or named[0] == key:
                continue
            key = named[0]
            if member.offset - last >= _CUT_BYTES:
                last = member.offset
                yield last
    except TarDamagedError:
        # The last range finds it too, and says where.
        return


def _add(
    sample: Sample, part: str, member: TarMember, stream: _Forward, opened: OpenSource
) -> None:
    max_bytes, max_parts = opened.limits.max_record_bytes, opened.limits.max_columns
    if part in sample.parts:
        problem = f"it has two parts {part!r}"
    elif not part:
        problem = f"the member {member.name!r} has no suffix"
    elif member.kind == "sparse":
        problem = f"its part {part!r} is sparse"
    elif sample.num_bytes + member.num_bytes > max_bytes:
        problem = f"with its part {part!r} it has more than {max_bytes:,} bytes"
    elif len(sample.parts) == max_parts:
        problem = f"it has more than {max_parts:,} parts"
    else:
        content = stream.read(member.start, member.start + member.num_bytes)
        problem = "" if len(content) == member.num_bytes else f"its part {part!r} is truncated"
        sample.parts[part] = content
        sample.num_bytes += len(content)
    sample.problem = sample.problem or problem


def split_name(name: str) -> tuple[str, str] | None:
    """(key, part) of a member; None for hidden files and those that describe the tar."""
    folder, slash, bare = name.removeprefix("./").rpartition("/")
    if not bare or bare.startswith(".") or (bare.startswith("__") and bare.endswith("__")):
        return None
    stem, _, part = bare.partition(".")
    return folder + slash + stem, part.lower()


def _behind(stream: _Forward, offset: int, opened: OpenSource, path: str) -> str:
    """What is wrong behind the last member: a tar ends with zeros, and a part of one anywhere."""
    if stream.is_zero(offset):
        return stream.behind_end(offset)
    if stream.holds(offset):
        return "no valid header"
    more = not stream.compression and opened.read(path, stream.stop, stream.stop + 1)
    return "" if more else "it ends without the mark of an end"


class _Forward:
    """A file that is read front to back, and a little back."""

    def __init__(self, opened: OpenSource, path: str, start: int, stop: int) -> None:
        self.stop = stop
        self.damage = ""
        self.compression = compression_of(opened.read(path, 0, MAGIC_BYTES)) if not start else ""
        self._starts_within = start > 0
        self._held_from, self._held = 0, b""
        if self.compression:
            self._pieces = decompressed(
                lambda first, last: opened.read(path, first, last),
                self.compression,
                max_expansion=opened.limits.max_expansion,
            )
        else:
            self._pieces = (
                opened.read(path, first, min(first + _PIECE_BYTES, stop))
                for first in range(start, stop, _PIECE_BYTES)
            )

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop), fewer at the end; ``start`` is never far before the last one."""
        self._fill(start, stop)
        first = start - self._held_from
        assert first >= 0
        return self._held[first : max(stop - self._held_from, first)]

    def is_zero(self, offset: int) -> bool:
        """Whether a block of zeros stands there."""
        return self.read(offset, offset + BLOCK_BYTES) == bytes(BLOCK_BYTES)

    def behind_end(self, offset: int) -> str:
        """What is wrong behind the zeros that mark the end: another tar, for example."""
        num_bytes = 0
        while block := self.read(offset + num_bytes, offset + num_bytes + _PIECE_BYTES):
            if block.strip(b"\0"):
                return f"its end is marked at byte {offset:,}, and more follows"
            num_bytes += len(block)
        if self.damage:
            return self.damage
        empty = not offset and not self._starts_within
        if num_bytes % BLOCK_BYTES or num_bytes > (_EMPTY_BYTES if empty else _END_BYTES):
            return f"it holds {num_bytes:,} zeros and nothing else from there on"
        return ""

    def holds(self, offset: int) -> bool:
        """Whether any byte stands there."""
        return bool(self.read(offset, offset + 1))

    def _fill(self, start: int, stop: int) -> None:
        """Reads on up to there, a piece at least; keeps the piece before, for a step back."""
        end = self._held_from + len(self._held)
        if stop <= end:
            return
        # At least a piece: what is held is copied each time.
        stop = max(stop, end + _PIECE_BYTES)
        kept_from = start - _PIECE_BYTES
        drop = min(max(kept_from - self._held_from, 0), len(self._held))
        held = [self._held[drop:]]
        self._held_from += drop
        while end < stop:
            try:
                piece = next(self._pieces, b"")
            except DamagedError as error:
                self.damage, piece = str(error), b""
            if not piece:
                break
            end += len(piece)
            if end <= kept_from:
                # It is skipped.
                held, self._held_from = [], end
            else:
                held.append(piece)
        self._held = b"".join(held)
