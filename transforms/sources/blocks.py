"""Grouping files into blocks at content-defined boundaries.

Blocks follow the order of paths. After which file a block ends is decided by the hashes of the
paths nearby alone: after one whose hash is the smallest within half a block to either side. So
adding, changing or removing a file moves no boundary farther than that away, and the blocks
beyond stay what they were: their runs are reused. Cutting at local extrema is from Bjørner,
Blass and Gurevich, "Content-dependent chunking for differential compression, the local maximum
approach" (2010).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence

from ...schemas.blocks import Block, FileRange, SourceFile

BLOCK_BYTES = 64 * 2**20
"""About so much input is one block; at most twice as much, unless a file cannot be cut."""

FILE_COST_BYTES = 4096
"""What a file counts beside its content: a block holds some 16,000 empty files, 32,768 at most."""


def group_blocks(
    files: Sequence[SourceFile],
    cuts: Mapping[str, Sequence[int]],
    *,
    parts: Mapping[str, Sequence[str]] | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> tuple[Block, ...]:
    """Groups files into blocks.

    Args:
        files: In the order of their paths' bytes, contents hashed.
        cuts: Path -> ascending offsets at which the file may be cut. Such a file gives blocks of
            its own, as equal and as few as stay under ``block_bytes`` where the cuts allow.
        parts: Path -> hashes of what lies before, between and behind all its cuts, where the
            records there depend on nothing else in the file. Its blocks then count by these in
            place of the whole content, and are of ``block_bytes`` from its beginning on: a
            changed byte changes one block, and so do rows put at the end.
        block_bytes: The size to aim at. Blocks are of a quarter of it to twice as much, but for
            files that are larger and cannot be cut, and for what remains before and after a
            file with cuts.

    Returns:
        The blocks, in the order of paths and offsets: every byte of every file in exactly one.
    """
    blocks: list[Block] = []
    for cut, group in itertools.groupby(files, key=lambda file: bool(cuts.get(file.path))):
        if not cut:
            whole = tuple(group)
            blocks.extend(
                Block(tuple(_range(file, 0, file.num_bytes) for file in whole[start:stop]))
                for start, stop in _group(whole, block_bytes)
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
    return tuple(blocks)


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
    )


def _independent(
    file: SourceFile, cuts: Sequence[int], parts: Sequence[str], *, block_bytes: int
) -> Iterator[Block]:
    """Blocks of a file whose parts stand alone: where they end hangs on what lies before alone."""
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
    """Of the offsets at which a file may be cut, those that make it even blocks."""
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
    """Where a file ends, counted from the first file on, and the score of a cut there."""

    positions: list[int]
    scores: list[int]


def _group(files: Sequence[SourceFile], block_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of files, [start, stop), that make a block each."""
    sizes = (FILE_COST_BYTES + (0 if file.problem else file.num_bytes) for file in files)
    ends = _Ends(list(itertools.accumulate(sizes)), [_score(file.path) for file in files])
    start = 0
    for stop in [*(i + 1 for i in _lowest_nearby(ends, block_bytes)), len(files)]:
        yield from _halve(ends, start, stop, block_bytes=block_bytes)
        start = stop


def _score(path: str) -> int:
    encoded = path.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")


def _lowest_nearby(ends: _Ends, block_bytes: int) -> list[int]:
    """The ends that have the lowest score within half a block to either side, in order."""
    positions, scores = ends.positions, ends.scores
    reach, margin = block_bytes // 2, block_bytes // 4
    total = positions[-1]
    # A stack of ends with ascending scores: below each lies the last end with a lower score.
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
    """Cuts a range of more than two blocks' size at its lowest score, as often as need be."""
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
