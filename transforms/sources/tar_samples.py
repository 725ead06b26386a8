"""Samples of WebDataset tars: members of one key that follow each other, read front to back.

The key of a member is its path up to the first dot of its file name; what follows is the part's
name: ``a/0001.left.jpg`` is the part ``left.jpg`` of the sample ``a/0001``.
"""

from __future__ import annotations

import dataclasses
import tarfile
from collections.abc import Iterator
from typing import Any

from ...schemas.recipe import OpenSource
from ..tar_archive import MAX_HEADER_BYTES
from .decompress import MAGIC_BYTES, DamagedError, compression_of, decompressed

_BLOCK_BYTES = 512
_EMPTY_BYTES = 20 * _BLOCK_BYTES
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
    archive: Any = None
    sample: Sample | None = None
    try:
        archive = tarfile.TarFile(fileobj=stream, errorlevel=2)  # type: ignore[arg-type]
        while (member := archive.next()) is not None:
            archive.members.clear()  # else it keeps all of them
            named = split_name(member.name) if member.isreg() else None
            if named is None:
                continue
            key, part = named
            if sample is None or sample.key != key:
                if sample is not None:
                    yield sample
                sample = Sample(offset=start + member.offset, key=key)
            stream.expected_bytes = member.size
            _add(sample, part, member, archive, max_bytes=opened.limits.max_record_bytes)
            stream.expected_bytes = 0
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        if sample is not None:
            yield sample
        offset = archive.offset if archive is not None else 0
        yield Damage(start + offset, stream.damage or str(error))
        return
    if sample is not None:
        yield sample
    found = stream.damage or _behind(stream, archive.offset, opened, path)
    if found:
        yield Damage(start + archive.offset, found)


def sample_offsets(opened: OpenSource, path: str, num_bytes: int) -> Iterator[int]:
    """Where samples begin, about every 32 MiB; none of a compressed tar.

    Raises:
        StorageError: if the file cannot be read.
    """
    if compression_of(opened.read(path, 0, MAGIC_BYTES)):
        return
    stream = _Forward(opened, path, 0, num_bytes)
    last, key = 0, ""
    try:
        archive: Any = tarfile.TarFile(fileobj=stream, errorlevel=2)  # type: ignore[arg-type]
        while (member := archive.next()) is not None:
            archive.members.clear()
            named = split_name(member.name)
            if named is None or named[0] == key:
                continue
            key = named[0]
            if member.offset - last >= _CUT_BYTES:
                last = member.offset
                yield last
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError):
        # The last range finds it too, and says where.
        return


def _add(
    sample: Sample, part: str, member: tarfile.TarInfo, archive: Any, *, max_bytes: int
) -> None:
    if part in sample.parts:
        sample.problem = sample.problem or f"it has two parts {part!r}"
    elif not part:
        sample.problem = sample.problem or f"the member {member.name!r} has no suffix"
    elif member.sparse is not None:
        sample.problem = sample.problem or f"its part {part!r} is sparse"
    elif member.size + sum(map(len, sample.parts.values())) > max_bytes:
        problem = f"with its part {part!r} it has more than {max_bytes:,} bytes"
        sample.problem = sample.problem or problem
    else:
        try:
            content = archive.extractfile(member).read()
        except tarfile.ReadError:
            content = b""
        if len(content) < member.size:
            sample.problem = f"its part {part!r} is cut off"
        sample.parts[part] = content


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
    """A file that is read front to back, and a little back: what tarfile needs."""

    def __init__(self, opened: OpenSource, path: str, start: int, stop: int) -> None:
        self.stop = stop
        self.damage = ""
        self.expected_bytes = 0
        self.compression = compression_of(opened.read(path, 0, MAGIC_BYTES)) if not start else ""
        self._starts_within = start > 0
        self._position = 0
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

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        assert whence == 0
        self._position = position
        return position

    def read(self, size: int = -1) -> bytes:
        if size > max(self.expected_bytes, MAX_HEADER_BYTES):
            raise tarfile.ReadError(f"a header states {size:,} bytes")
        stop = self._position + size if size >= 0 else 1 << 62
        self._fill(stop)
        first = self._position - self._held_from
        found = self._held[max(first, 0) : max(stop - self._held_from, 0)]
        self._position += len(found)
        return found

    def is_zero(self, offset: int) -> bool:
        """Whether a whole block of zeros stands there."""
        self._fill(offset + _BLOCK_BYTES)
        return self._block(offset) == bytes(_BLOCK_BYTES)

    def behind_end(self, offset: int) -> str:
        """What is wrong behind the zeros that mark the end: another tar, for example."""
        num_bytes = 0
        while block := self._skipped(offset + num_bytes):
            if block.strip(b"\0"):
                return f"its end is marked at byte {offset:,}, and more follows"
            num_bytes += len(block)
        if self.damage:
            return self.damage
        empty = not offset and not self._starts_within
        if num_bytes % _BLOCK_BYTES or num_bytes > (_EMPTY_BYTES if empty else _END_BYTES):
            return f"it holds {num_bytes:,} zeros and nothing else from there on"
        return ""

    def _skipped(self, position: int) -> bytes:
        self._position = position
        return self.read(_PIECE_BYTES)

    def holds(self, offset: int) -> bool:
        """Whether any byte stands there."""
        return bool(self._block(offset))

    def _block(self, offset: int) -> bytes:
        first = offset - self._held_from
        return self._held[first : first + _BLOCK_BYTES] if first >= 0 else b""

    def _fill(self, stop: int) -> None:
        """Reads on up to there; keeps the piece before, for a step back."""
        if stop <= self._held_from + len(self._held):
            return
        keep = max(min(self._position - _PIECE_BYTES, stop) - self._held_from, 0)
        held = [self._held[keep:]]
        end = self._held_from + len(self._held)
        self._held_from += min(keep, len(self._held))
        while end < stop:
            try:
                piece = next(self._pieces, b"")
            except DamagedError as error:
                self.damage, piece = str(error), b""
            if not piece:
                break
            end += len(piece)
            if end <= self._position - _PIECE_BYTES:
                # It is skipped.
                held, self._held_from = [], end
            else:
                held.append(piece)
        self._held = b"".join(held)
