"""Groups files into blocks at content-defined boundaries.

Blocks follow the order of paths. A block ends after a file whose path hash is the smallest within
half a block to either side, so boundaries depend only on nearby paths. Adding, changing or removing
a file moves no boundary beyond that distance; other blocks stay unchanged, and their runs are
reused. Cutting at local extrema is from Bjørner, Blass and Gurevich, "Content-dependent chunking
for differential compression, the local maximum approach" (2010).
"""

from __future__ import annotations

import array
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...schemas.blocks import Block, FileRange, SourceFile, packed

BLOCK_BYTES = 64 << 20
"""Approximate input size of a block of a large source; see :func:`block_size`."""

MIN_BLOCK_BYTES = 256 << 10
"""Approximate input size of a block of little data."""

MOST_SMALL_BLOCKS = 128
"""About so many blocks have less than :data:`BLOCK_BYTES`."""

MIN_CUT_BYTES = 4 << 20
"""Files up to this size are not cut."""

FILE_COST_BYTES = 4096
"""Cost of a file besides its content: a block has at most 32,768 empty files."""


def block_size(num_bytes: int) -> int:
    """The target size of the blocks of a source of this size, in bytes.

    Small data has small blocks, so that all cores have work, and a changed file leaves most of them
    as they were. A source that outgrows a size, at 32 MiB, 128 MiB, 512 MiB and 2 GiB, is prepared
    again.

    >>> [block_size(num_mib << 20) >> 10 for num_mib in (1, 32, 100, 500, 2_000, 10_000)]
    [256, 256, 1024, 4096, 16384, 65536]
    """
    size = MIN_BLOCK_BYTES
    while size < BLOCK_BYTES and num_bytes > MOST_SMALL_BLOCKS * size:
        size *= 4
    return min(size, BLOCK_BYTES)


def cut_spacing(
    num_bytes: int, *, block_bytes: int | None = None, min_cut_bytes: int = MIN_CUT_BYTES
) -> int:
    """Bytes between the places where a file of this size may be cut.

    >>> [cut_spacing(num_mib << 20) >> 20 for num_mib in (24, 500, 2_000, 10_000)]
    [4, 4, 8, 32]
    """
    return max(min_cut_bytes, (block_bytes or block_size(num_bytes)) // 2)


def group_blocks(
    files: Sequence[SourceFile],
    cuts: Mapping[str, Sequence[int]],
    *,
    parts: Mapping[str, Sequence[str]] | None = None,
    block_bytes: int | None = None,
) -> tuple[Block, ...]:
    """Groups files into blocks, with the files of a record in one.

    Args:
        files: Files with content hashes, ordered by the bytes of their paths. One that is part of
            the record of another is in its block.
        cuts: Path -> ascending offsets at which the file may be cut. Such a file gets separate
            blocks: as few and as equal as possible under ``block_bytes``, where the cuts allow.
        parts: Path -> hashes of the parts before, between and after all its cuts, if the records
            of a part depend on nothing else in the file. Its blocks are then identified by these
            hashes instead of the file's, and have ``block_bytes`` from its beginning on, so that a
            changed byte, or rows appended at the end, change one block.
        block_bytes: The target size; by default it follows from the files. Blocks have a quarter to
            twice this size, except for larger files that cannot be cut, and the remainders before
            and after a file with cuts.

    Returns:
        The blocks, in the order of paths and offsets. Every byte of every file is in exactly one.
    """
    partners: dict[str, list[SourceFile]] = {}
    num_bytes = 0
    for file in files:
        if file.of:
            partners.setdefault(file.of, []).append(file)
        if not file.of or file.record:
            num_bytes += _size(file)
    block_bytes = block_bytes or block_size(num_bytes)
    if partners:
        # A mask does not count: it is small, and blocks stay as they were without it.
        sizes = {
            path: sum(_size(file) for file in parts_of if file.record)
            for path, parts_of in partners.items()
        }
        alone = [file for file in files if not file.of]
        return tuple(
            _with_partners(block, partners, of=len(files))
            for block in _group_blocks(alone, cuts, parts, sizes, block_bytes)
        )
    return tuple(_group_blocks(files, cuts, parts, {}, block_bytes))


def _group_blocks(
    files: Sequence[SourceFile],
    cuts: Mapping[str, Sequence[int]],
    parts: Mapping[str, Sequence[str]] | None,
    more: Mapping[str, int],
    block_bytes: int,
) -> list[Block]:
    """Groups files that are not parts of others; ``more`` is the size of the parts of each."""
    blocks: list[Block] = []
    groups: Iterable[tuple[bool, Iterable[SourceFile]]] = [(False, files)] if files else []
    if cuts:
        groups = itertools.groupby(files, key=lambda file: bool(cuts.get(file.path)))
    for cut, group in groups:
        if not cut:
            whole = files if group is files else packed(SourceFile, group)
            ranges = (_range(file, 0, file.num_bytes) for file in whole)
            blocks.extend(
                Block(packed(FileRange, itertools.islice(ranges, stop - start), of=len(files)))
                for start, stop in _group(whole, more, block_bytes)
            )
            continue
        for file in group:
            hashes = (parts or {}).get(file.path)
            if hashes:
                blocks.extend(_independent(file, cuts[file.path], hashes, block_bytes=block_bytes))
                continue
            offsets = _choose_cuts(file.num_bytes, cuts[file.path], block_bytes=block_bytes)
            ends = itertools.pairwise([0, *offsets, file.num_bytes])
            blocks.extend(Block((_range(file, start, stop),)) for start, stop in ends)
    return blocks


def _with_partners(block: Block, partners: Mapping[str, Sequence[SourceFile]], *, of: int) -> Block:
    """A block with the files that are part of its records."""
    files = [file for part in block.ranges for file in partners.get(part.path, ())]
    ranges = (_range(file, 0, file.num_bytes) for file in files)
    return Block(packed(FileRange, [*block.ranges, *ranges], of=of))


def _range(file: SourceFile, start: int, stop: int) -> FileRange:
    if file.problem:
        start, stop = 0, 0
    return FileRange(
        path=file.path,
        sha256=file.sha256,
        start=start,
        stop=stop,
        problem=file.problem,
        stamp=file.stamp,
        of=file.of,
        unpaired=file.unpaired,
        record=file.record,
    )


def _independent(
    file: SourceFile, cuts: Sequence[int], parts: Sequence[str], *, block_bytes: int
) -> Iterator[Block]:
    """Blocks of a file with independent parts. A block's end depends only on preceding parts."""
    ends = [*cuts, file.num_bytes]
    start = first = 0
    for index, end in enumerate(ends):
        full = 4 * (end - start) >= 3 * block_bytes and 4 * (file.num_bytes - end) >= block_bytes
        if full or end == file.num_bytes:
            joined = "\n".join(parts[first : index + 1])
            content = hashlib.sha256(joined.encode("ascii")).hexdigest()
            part = dataclasses.replace(
                _range(file, start, end), sha256=content, whole_sha256=file.sha256
            )
            yield Block((part,))
            start, first = end, index + 1


def _choose_cuts(num_bytes: int, offsets: Sequence[int], *, block_bytes: int) -> list[int]:
    """Chooses the offsets that cut a file into even blocks."""
    num_blocks = -(-num_bytes // block_bytes)
    chosen: list[int] = []
    inside = sorted({offset for offset in offsets if 0 < offset < num_bytes})
    position = 0
    for index in range(1, num_blocks):
        ideal = index * num_bytes / num_blocks
        while position + 1 < len(inside) and (
            abs(inside[position + 1] - ideal) <= abs(inside[position] - ideal)
        ):
            position += 1
        if inside and inside[position] not in chosen[-1:]:
            chosen.append(inside[position])
    return chosen


@dataclasses.dataclass(frozen=True)
class _Ends:
    """Cumulative end positions of files, and the score of a cut after each."""

    positions: array.array[int]
    scores: array.array[int]


def _group(
    files: Sequence[SourceFile], more: Mapping[str, int], block_bytes: int
) -> Iterator[tuple[int, int]]:
    """Ranges of files, [start, stop), one for each block."""
    ends = _Ends(array.array("Q"), array.array("Q"))
    position = 0
    for file in files:
        position += _size(file) + more.get(file.path, 0)
        ends.positions.append(position)
        ends.scores.append(_score(file.path))
    start = 0
    for stop in sorted({*(i + 1 for i in _lowest_nearby(ends, block_bytes)), len(files)}):
        yield from _halve(ends, start, stop, block_bytes=block_bytes)
        start = stop


def _size(file: SourceFile) -> int:
    return FILE_COST_BYTES + (0 if file.problem else file.num_bytes)


def _score(path: str) -> int:
    encoded = path.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")


def _lowest_nearby(ends: _Ends, block_bytes: int) -> list[int]:
    """The ends that have the lowest score within half a block to either side, in order."""
    positions, scores = ends.positions, ends.scores
    reach, margin = block_bytes // 2, block_bytes // 4
    total = positions[-1]
    # A stack of ends with ascending scores: below each is the last end with a lower score.
    stack: list[int] = []
    lowest: list[int] = []

    def settle(index: int, next_lower: int | None) -> None:
        before = positions[stack[-1]] + reach if stack else margin
        after = positions[next_lower] - reach if next_lower is not None else total - margin
        if before <= positions[index] <= after:
            lowest.append(index)

    for index, score in enumerate(scores):
        while stack and scores[stack[-1]] > score:
            settle(stack.pop(), index)
        stack.append(index)
    while stack:
        settle(stack.pop(), None)
    return sorted(lowest)


def _halve(ends: _Ends, start: int, stop: int, *, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Repeatedly cuts a range larger than two blocks at its lowest score."""
    pending = [(start, stop)]
    while pending:
        start, stop = pending.pop()
        first = ends.positions[start - 1] if start else 0
        last = ends.positions[stop - 1]
        margin = block_bytes // 4
        inner = [
            index
            for index in range(start, stop - 1)
            if last - first > 2 * block_bytes
            and first + margin <= ends.positions[index] <= last - margin
        ]
        if not inner:
            yield start, stop
            continue
        cut = min(inner, key=lambda index: ends.scores[index]) + 1
        pending += [(cut, stop), (start, cut)]
