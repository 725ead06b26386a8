"""Grouping files into blocks: every byte once, bounded sizes, and changes that stay local."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.blocks import Block, SourceFile
from snapshard.transforms.sources.blocks import (
    BLOCK_BYTES,
    FILE_COST_BYTES,
    block_size,
    cut_spacing,
    group_blocks,
)

SMALL_BLOCK = 32 * FILE_COST_BYTES
"""Small enough for a few hundred files to make many blocks."""


def _file(name: str, size: int, *, problem: str = "", content: str = "a") -> SourceFile:
    sha256 = "" if problem else content * 64
    return SourceFile(path=name, num_bytes=size, stamp="", sha256=sha256, problem=problem)


def _sorted(files: list[SourceFile]) -> list[SourceFile]:
    return sorted(files, key=lambda file: file.path.encode())


def _weight(block: Block) -> int:
    return block.num_bytes + FILE_COST_BYTES * len(block.ranges)


sizes = st.one_of(
    st.integers(0, FILE_COST_BYTES),
    st.integers(0, SMALL_BLOCK // 2),
    st.integers(0, 5 * SMALL_BLOCK),
)
file_lists = st.dictionaries(
    st.text("abc/", min_size=1, max_size=6),
    st.tuples(sizes, st.sampled_from(["", "", "", "", "dangling symbolic link"])),
    max_size=120,
).map(
    lambda found: _sorted(
        [_file(name, 0 if bad else size, problem=bad) for name, (size, bad) in found.items()]
    )
)


@given(file_lists, st.sampled_from([1, SMALL_BLOCK]))
def test_every_file_lies_in_one_block_in_order(files: list[SourceFile], block_bytes: int) -> None:
    blocks = group_blocks(files, {}, block_bytes=block_bytes)
    assert all(block.ranges for block in blocks)
    assert [
        (part.path, part.sha256, part.start, part.stop, part.problem)
        for block in blocks
        for part in block.ranges
    ] == [(file.path, file.sha256, 0, file.num_bytes, file.problem) for file in files]


@given(file_lists)
def test_blocks_are_of_bounded_size(files: list[SourceFile]) -> None:
    blocks = group_blocks(files, {}, block_bytes=SMALL_BLOCK)
    for block in blocks:
        largest = max(part.stop - part.start for part in block.ranges) + FILE_COST_BYTES
        assert _weight(block) <= max(2 * SMALL_BLOCK, largest + SMALL_BLOCK // 2)
        if len(blocks) > 1:
            assert _weight(block) >= SMALL_BLOCK // 4


@given(file_lists.filter(len), st.data())
def test_a_changed_content_changes_one_block(files: list[SourceFile], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(files) - 1))
    before = group_blocks(files, {}, block_bytes=SMALL_BLOCK)
    files[index] = dataclasses.replace(files[index], sha256="b" * 64, problem="")
    after = group_blocks(files, {}, block_bytes=SMALL_BLOCK)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


@given(file_lists, st.text("abc/", min_size=1, max_size=6), sizes)
def test_an_added_or_removed_file_changes_what_lies_near_it(
    files: list[SourceFile], name: str, size: int
) -> None:
    without = [file for file in files if file.path != name]
    added = _file(name, size)
    blocks = group_blocks(without, {}, block_bytes=SMALL_BLOCK)
    changed = group_blocks(_sorted([*without, added]), {}, block_bytes=SMALL_BLOCK)
    kept = set(blocks) & set(changed)
    # What is computed anew lies within a few blocks' size of the file, whatever the rest.
    new = [block for block in changed if block not in kept]
    others = sum(_weight(block) for block in new) - size
    largest = max((file.num_bytes for file in files), default=0)
    assert others <= 12 * SMALL_BLOCK + 4 * largest


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    # Groups 3,000 files a hundred times.
    [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)],
)
def test_adding_a_file_changes_one_or_two_blocks(seed: int) -> None:
    draw = random.Random(seed)
    files = [
        _file(f"class_{draw.randrange(10)}/{index:05}.jpg", draw.randrange(2 * FILE_COST_BYTES))
        for index in range(3_000)
    ]
    before = group_blocks(_sorted(files), {}, block_bytes=SMALL_BLOCK)
    assert len(before) > 100
    num_new = []
    for trial in range(100):
        added = _file(f"class_{draw.randrange(10)}/{draw.randrange(3_000):05}+{trial}.jpg", 5_000)
        after = group_blocks(_sorted([*files, added]), {}, block_bytes=SMALL_BLOCK)
        num_new.append(len(set(after) - set(before)))
    assert max(num_new) <= 4
    assert sum(num_new) / len(num_new) < 1.5


@pytest.mark.slow
def test_equal_files_make_blocks_of_about_the_aim() -> None:
    files = _sorted([_file(f"{index:06}", FILE_COST_BYTES) for index in range(20_000)])
    blocks = group_blocks(files, {}, block_bytes=SMALL_BLOCK)
    mean = sum(map(_weight, blocks)) / len(blocks)
    assert 0.7 * SMALL_BLOCK <= mean <= 1.4 * SMALL_BLOCK


def test_the_number_of_empty_files_in_a_block_is_bounded() -> None:
    size = BLOCK_BYTES // 16
    files = [_file(f"{index:06}", 0) for index in range(100_000 // 16)]
    blocks = group_blocks(files, {}, block_bytes=size)
    assert max(len(block.ranges) for block in blocks) <= 2 * size // FILE_COST_BYTES
    assert len(blocks) >= 4


def test_large_files_without_cuts_stand_alone() -> None:
    files = [_file(f"{index}.tar", 3 * SMALL_BLOCK) for index in range(5)]
    blocks = group_blocks(files, {}, block_bytes=SMALL_BLOCK)
    assert [len(block.ranges) for block in blocks] == [1] * 5


def test_no_files_make_no_blocks() -> None:
    assert group_blocks([], {}) == ()


@given(
    st.integers(1, 20 * SMALL_BLOCK),
    st.lists(st.integers(-5, 21 * SMALL_BLOCK), min_size=1, max_size=50),
)
def test_cut_files_are_covered_by_ranges(num_bytes: int, cuts: list[int]) -> None:
    files = [_file("a.csv", 10), _file("b.csv", num_bytes), _file("c.csv", 20)]
    blocks = group_blocks(files, {"b.csv": cuts}, block_bytes=SMALL_BLOCK)
    assert [part.path for part in blocks[0].ranges] == ["a.csv"]
    assert [part.path for part in blocks[-1].ranges] == ["c.csv"]
    ranges = [block.ranges[0] for block in blocks[1:-1]]
    assert all(len(block.ranges) == 1 for block in blocks[1:-1])
    assert {part.path for part in ranges} == {"b.csv"}
    assert ranges[0].start == 0
    assert ranges[-1].stop == num_bytes
    for one, two in itertools.pairwise(ranges):
        assert one.stop == two.start
        assert one.stop in cuts
        assert one.start < one.stop


@pytest.mark.parametrize(
    ("num_bytes", "step", "num_blocks"),
    [(10_000_000, 1_000, 77), (SMALL_BLOCK, 100, 1), (SMALL_BLOCK + 1, 100, 2)],
)
def test_cuts_are_chosen_even(num_bytes: int, step: int, num_blocks: int) -> None:
    cuts = range(step, num_bytes, step)
    blocks = group_blocks([_file("a", num_bytes)], {"a": cuts}, block_bytes=SMALL_BLOCK)
    assert len(blocks) == num_blocks
    lengths = [block.num_bytes for block in blocks]
    assert max(lengths) - min(lengths) <= 2 * step


_CUT_FILES = st.lists(st.integers(1, SMALL_BLOCK), min_size=2, max_size=30)
"""Lengths of what lies before, between and behind the cuts of a file."""


def _blocks_of_parts(lengths: list[int], parts: list[str]) -> tuple[Block, ...]:
    *cuts, num_bytes = itertools.accumulate(lengths)
    file = _file("large.csv", num_bytes)
    return group_blocks(
        [file], {file.path: cuts}, parts={file.path: parts}, block_bytes=SMALL_BLOCK
    )


@given(_CUT_FILES, st.data())
def test_ranges_that_stand_alone_count_by_what_they_hold(
    lengths: list[int], data: st.DataObject
) -> None:
    parts = [f"{index:064x}" for index in range(len(lengths))]
    before = _blocks_of_parts(lengths, parts)
    ranges = [block.ranges[0] for block in before]
    assert [part.start for part in ranges] == [0, *(part.stop for part in ranges[:-1])]
    assert ranges[-1].stop == sum(lengths)
    changed = data.draw(st.integers(0, len(lengths) - 1))
    after = _blocks_of_parts(lengths, [*parts[:changed], "f" * 64, *parts[changed + 1 :]])
    place = sum(lengths[:changed])
    assert [one == other for one, other in zip(before, after, strict=True)] == [
        not part.start <= place < part.stop for part in ranges
    ]


@given(_CUT_FILES, _CUT_FILES)
def test_what_is_put_at_the_end_changes_the_last_block(lengths: list[int], more: list[int]) -> None:
    """The last part grows, and others follow."""
    parts = [f"{index:064x}" for index in range(len(lengths) + len(more))]
    before = _blocks_of_parts(lengths, parts[: len(lengths)])
    longer = [*lengths[:-1], lengths[-1] + more[0], *more[1:]]
    after = _blocks_of_parts(longer, [*parts[: len(lengths) - 1], *parts[-len(more) :]])
    assert before[:-1] == after[: len(before) - 1]


def test_few_changes_leave_most_blocks_of_little_data() -> None:
    files = [_file(f"{i:05}.jpg", 24_000) for i in range(1_020)]
    blocks = group_blocks(files, {})
    assert 64 <= len(blocks) <= 192
    near = [dataclasses.replace(file, sha256="b" * 64) for file in files[100:155]]
    spread = [dataclasses.replace(file, sha256="b" * 64) for file in files[::19]]
    for changed, most in ((near, 0.15), (spread, 0.6)):
        new = {file.path: file for file in changed}
        again = group_blocks([new.get(file.path, file) for file in files], {})
        assert len(set(again) - set(blocks)) < most * len(blocks)


@given(st.integers(0, 2**44))
def test_small_data_has_small_blocks_and_large_data_large_ones(num_bytes: int) -> None:
    size = block_size(num_bytes)
    assert size <= BLOCK_BYTES
    assert num_bytes // size <= 128 or size == BLOCK_BYTES
    assert block_size(num_bytes + 1) >= size
    assert cut_spacing(num_bytes) <= BLOCK_BYTES // 2


@given(file_lists)
def test_a_second_file_of_a_record_is_in_its_block(files: list[SourceFile]) -> None:
    seconds = [
        dataclasses.replace(_file(f"second of {file.path}", 5, content="b"), of=file.path)
        for file in files[::2]
    ]
    alone = group_blocks(files, {}, block_bytes=SMALL_BLOCK)
    blocks = group_blocks(_sorted([*files, *seconds]), {}, block_bytes=SMALL_BLOCK)
    firsts = [[part.path for part in block.ranges if not part.of] for block in blocks]
    assert firsts == [[part.path for part in block.ranges] for block in alone]
    for block in blocks:
        of = {part.of for part in block.ranges if part.of}
        assert of == {part.path for part in block.ranges} & {file.of for file in seconds}
        again = Block.from_line(block.to_line())
        assert [dataclasses.astuple(part) for part in again.ranges] == [
            dataclasses.astuple(part) for part in block.ranges
        ]


def _record_of(file: SourceFile) -> SourceFile:
    return dataclasses.replace(file, record=f"clip {file.path}")


@given(file_lists, st.lists(st.integers(0, 3 * FILE_COST_BYTES), max_size=5))
def test_all_files_of_a_record_are_in_one_block(files: list[SourceFile], more: list[int]) -> None:
    firsts = [_record_of(file) for file in files]
    others = [
        dataclasses.replace(_file(f"{file.path} {number}", size), of=file.path, record=file.record)
        for file in firsts
        for number, size in enumerate(more)
    ]
    besides = sum(size + FILE_COST_BYTES for size in more)
    largest = max((file.num_bytes + FILE_COST_BYTES + besides for file in files), default=0)
    blocks = group_blocks(_sorted([*firsts, *others]), {}, block_bytes=SMALL_BLOCK)
    ranges = [part for block in blocks for part in block.ranges]
    assert sorted(part.path for part in ranges) == sorted(f.path for f in [*firsts, *others])
    for block in blocks:
        clips = [part.record_id for part in block.ranges if not part.of]
        assert {part.record_id for part in block.ranges} == set(clips)
        again = Block.from_line(block.to_line())
        assert [dataclasses.astuple(part) for part in again.ranges] == [
            dataclasses.astuple(part) for part in block.ranges
        ]
        assert len(clips) == 1 or _weight(block) <= 2 * SMALL_BLOCK + largest


def test_why_a_record_is_incomplete_is_part_of_a_blocks_name() -> None:
    file = _file("masks/a.png", 5)
    lone = dataclasses.replace(file, unpaired="mask without an image")
    (before,), (after,) = group_blocks([file], {}), group_blocks([lone], {})
    assert before.block_id != after.block_id
    assert Block.from_line(after.to_line()).ranges[0].unpaired == "mask without an image"
