"""Ranges of a file that count by their own bytes hold the same records whatever lies around them.

The run of such a block is reused after the rest of its file has changed, so that must be so for any
bytes: quotes that open and never close, lines without end, broken frames.
"""

import functools
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

import snapshard as ss
from snapshard.pipelines.inventory.step import Sizes, take_inventory
from snapshard.schemas.blocks import Block
from snapshard.schemas.features import flatten
from snapshard.schemas.naming import Workspace
from snapshard.schemas.progress import Silent
from snapshard.schemas.recipe import CutsApart, OpenSource
from snapshard.transforms.examples.tfrecord import write_tfrecord
from snapshard.transforms.storage.opened_source import open_source

CUT_BYTES = 32
SMALL = Sizes(block_bytes=2 * CUT_BYTES, min_cut_bytes=CUT_BYTES, chunk_bytes=CUT_BYTES // 2)
NUMBER = {"n": ss.Scalar("int64")}

_PIECES = {
    "csv": ["a,b\n", "1,2\n", '"x\ny",3\n', '"', "\n", "1,2,3\n", "word,é\n", "\r\n", '"",""\n'],
    "jsonl": ['{"a": 1}\n', '{"a": "x"}\n', "{\n", "\n", '{"a": [1, 2]}\r\n', "nonsense\n", '"'],
    "txt": ["a line\n", "\n", "\n\n", "word ", "é\n", "\r\n", "x" * 40 + "\n"],
}
_SOURCES: dict[str, tuple[str, Callable[[str], Any], Any]] = {
    "csv": ("csv", ss.Csv, {"a": ss.Text(optional=True), "b": ss.Text(optional=True)}),
    "jsonl": ("jsonl", ss.JsonLines, {"a": ss.Text(optional=True)}),
    "lines": ("txt", ss.TextFiles, {"text": ss.Text()}),
    "paragraphs": (
        "txt",
        functools.partial(ss.TextFiles, per="paragraph"),
        {"text": ss.Text()},
    ),
}


def blocks_and_source(folder: Path, source: Any) -> tuple[tuple[Block, ...], OpenSource]:
    opened = open_source(source.url, str(folder))
    found = take_inventory(
        source,
        opened,
        workspace=Workspace(str(folder / "work")),
        progress=Silent(),
        write=False,
        sizes=SMALL,
    )
    return found.blocks, opened


def held(source: Any, block: Block, features: Any, opened: OpenSource) -> list[Any]:
    """All that a run is made of: ids and columns, and rejects."""
    flat, _ = flatten(features)
    rows: list[Any] = []
    for batch in source.read(block, features=flat, opened=opened, ordered=[0]):
        rows += zip(batch.ids, batch.columns.to_pylist(), strict=True)
        rows += batch.rejects
    return rows


def check(name: str, first: bytes, second: bytes, make: Callable[[str], Any], features: Any) -> int:
    """Reads the blocks that two contents of a file have in common; gives how many there are."""
    with tempfile.TemporaryDirectory() as folder:
        told = []
        for content in (first, second):
            place = Path(folder) / str(len(told))
            (place / "data").mkdir(parents=True)
            (place / "data" / name).write_bytes(content)
            source = make("data")
            assert isinstance(source, CutsApart)
            told.append((source, *blocks_and_source(place, source)))
        (old, old_blocks, old_opened), (new, new_blocks, new_opened) = told
        shared = set(old_blocks) & set(new_blocks)
        for block in shared:
            assert held(old, block, features, old_opened) == held(new, block, features, new_opened)
        return len(shared)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("kind", _SOURCES)
@given(data=st.data())
def test_text_of_any_form(kind: str, data: st.DataObject) -> None:
    suffix, make, features = _SOURCES[kind]
    pieces = st.lists(st.sampled_from(_PIECES[suffix]), max_size=25).map("".join)
    head = "a,b\n" if suffix == "csv" else ""
    before, between, after, other = (data.draw(pieces) for _ in range(4))
    first = head + before + between + after
    second = head + before + data.draw(st.sampled_from([other, between])) + after + other
    if not (first and second):
        return
    check(f"x.{suffix}", first.encode(), second.encode(), make, features)


def test_blocks_are_shared() -> None:
    """Or the test above would hold for nothing."""
    lines = {
        "csv": ["a,b\n", *(f"{n},{n}\n" for n in range(100))],
        "jsonl": [f'{{"a": "{n}"}}\n' for n in range(100)],
        "txt": [f"{n}\n\n" for n in range(200)],
    }
    for suffix, make, features in _SOURCES.values():
        text = "".join(lines[suffix])
        longer = text + lines[suffix][-1]
        assert check(f"x.{suffix}", text.encode(), longer.encode(), make, features) > 5


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 99), min_size=5, max_size=40),
    edit=st.tuples(st.integers(0, 2000), st.binary(max_size=3)),
)
def test_tfrecords_and_broken_frames(numbers: list[int], edit: tuple[int, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tfrecord"
        examples = pa.array([ss.encode_example({"n": n}, NUMBER) for n in numbers], "large_binary")
        write_tfrecord(str(path), [examples], compression="none")
        content = path.read_bytes()
    place = edit[0] % len(content)
    changed = content[:place] + edit[1] + content[place + len(edit[1]) :]
    check("x.tfrecord", content, changed, ss.TFRecords, NUMBER)
    check("x.tfrecord", content, content + content, ss.TFRecords, NUMBER)


def test_no_range_is_taken_for_another(tmp_path: Path) -> None:
    """Equal bytes at two places of a file are two blocks."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text("a,b\n" + "1234567,1234567\n" * 40)
    blocks, _ = blocks_and_source(tmp_path, ss.Csv("data"))
    assert len(set(blocks)) == len(blocks) > 5
    assert all(
        one.ranges[0].stop == other.ranges[0].start for one, other in itertools.pairwise(blocks)
    )
