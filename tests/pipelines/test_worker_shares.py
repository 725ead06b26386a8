"""What workers get: the arithmetic of the snapshot's reader, and exact bytes of a snapshot."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import snapshard as ss
from snapshard.pipelines.inspect.forecast import (
    SplitForecast,
    divide,
    shares_of_snapshot,
    shares_to_come,
    split_shares,
)
from snapshard.pipelines.reader.runtime import shards as of_reader
from snapshard.pipelines.snapshot import is_snapshot
from snapshard.schemas.errors import DamagedSnapshotError, StorageError
from snapshard.schemas.features import Features
from snapshard.schemas.manifest import ShardEntry
from snapshard.schemas.naming import ShardName
from snapshard.transforms.examples.index import index_bytes

from .made_snapshots import put_manifest, shard_entry

FEATURES: Features = {"x": ss.Scalar("int64")}


@given(
    sizes=st.lists(st.integers(0, 40), max_size=12),
    count=st.integers(1, 9),
    even=st.booleans(),
)
def test_divides_as_the_reader_does(sizes: list[int], count: int, even: bool) -> None:
    shards = [of_reader.Shard(str(number), size, 0) for number, size in enumerate(sizes)]
    for index, ranges in enumerate(divide(sizes, count, even=even)):
        expected = of_reader.divide(shards, (index, count), even=even)
        assert [(str(shard), first, end - first) for shard, first, end in ranges] == [
            (piece.path, piece.skip, piece.take) for piece in expected
        ]


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    count=st.integers(1, 9),
    batch_size=st.integers(1, 50),
)
def test_every_record_is_counted(sizes: list[int], count: int, batch_size: int) -> None:
    found = split_shares(
        "train", sizes, num_workers=count, num_bytes=lambda _, first, end: 7 * (end - first)
    )
    for workers in (found.workers, found.even):
        assert len(workers) == count
        assert sum(worker.num_examples for worker in workers) == sum(sizes) == found.num_examples
        assert sum(worker.num_bytes for worker in workers) == 7 * sum(sizes)
    even = [worker.num_examples for worker in found.even]
    assert max(even) - min(even) <= 1
    steps = found.equal_steps(batch_size)
    assert steps == math.ceil(min(even) / batch_size)
    delivered = sum(min(number, steps * batch_size) for number in even)
    assert found.num_left_out(batch_size) == sum(sizes) - delivered < count
    assert found.num_divided <= len(sizes)


def test_whole_shards_where_they_come_out_even() -> None:
    found = shares_to_come(SplitForecast("train", 1000, 50_000, 8), 4)
    assert [worker.num_shards for worker in found.workers] == [2] * 4
    assert [worker.num_examples for worker in found.workers] == [250] * 4
    assert [worker.num_bytes for worker in found.workers] == [12_500] * 4
    assert found.num_divided == 0


def test_fewer_shards_than_workers_and_fewer_records() -> None:
    found = shares_to_come(SplitForecast("train", 3, 30, 1), 5)
    assert sum(worker.num_examples for worker in found.workers) == 3
    assert sum(worker.num_shards == 0 for worker in found.workers) == 2
    assert found.num_divided == 1
    assert found.equal_steps(2) == 0
    assert found.num_left_out(2) == 3
    nothing = shares_to_come(SplitForecast("train", 0, 0, 0), 2)
    assert [worker.num_examples for worker in nothing.workers] == [0, 0]


def made(folder: Path, lengths: list[list[int]], *, compression: str = "none") -> ss.Snapshot:
    """A snapshot whose shards have records of these lengths; of its files, only the index."""
    (folder / "index").mkdir(parents=True)
    entries: list[ShardEntry] = []
    for index, sizes in enumerate(lengths):
        name = ShardName(
            split="train",
            index=index,
            num_shards=len(lengths),
            compression="gzip" if compression == "gzip" else "none",
        )
        ends = np.cumsum(sizes, dtype=np.uint64)
        content = index_bytes(ends - np.array(sizes, np.uint64), np.array(sizes, np.uint64))
        (folder / name.index_files[0]).write_bytes(content)
        entries.append(shard_entry(str(name), num_examples=len(sizes), num_bytes=sum(sizes)))
    put_manifest(folder, FEATURES, {"train": entries}, sizes=[1], compression=compression)
    return ss.Snapshot.open(folder)


def test_bytes_of_a_snapshot_are_exact(tmp_path: Path) -> None:
    snapshot = made(tmp_path / "made", [[100, 20, 30], [400, 5, 6, 7]])
    (found,) = shares_of_snapshot(snapshot, 2)
    # 3 and 4 records are further from even than 5 %.
    assert [worker.num_bytes for worker in found.workers] == [150, 418]
    (found,) = shares_of_snapshot(snapshot, 7)
    assert [worker.num_bytes for worker in found.workers] == [100, 20, 30, 400, 5, 6, 7]
    assert found.num_divided == 2


def test_parts_of_gzip_are_shares(tmp_path: Path) -> None:
    snapshot = made(tmp_path / "made", [[100, 20, 30, 50]], compression="gzip")
    (found,) = shares_of_snapshot(snapshot, 4)
    assert [worker.num_bytes for worker in found.workers] == [50] * 4


def test_index_that_is_damaged_or_gone(tmp_path: Path) -> None:
    snapshot = made(tmp_path / "made", [[100, 20, 30]])
    (index,) = (tmp_path / "made" / "index").iterdir()
    index.write_bytes(index.read_bytes()[:20])
    with pytest.raises(DamagedSnapshotError, match=r"idx ends before record 1, expected 3"):
        shares_of_snapshot(snapshot, 3)
    index.unlink()
    with pytest.raises(StorageError, match="idx"):
        shares_of_snapshot(snapshot, 3)


def test_where_a_snapshot_lies(tmp_path: Path) -> None:
    made(tmp_path / "made" / "0", [[1]])
    assert is_snapshot(str(tmp_path / "made" / "0"))
    assert not is_snapshot(str(tmp_path / "made"))
    (tmp_path / "made" / "latest.json").write_text("{}")
    assert is_snapshot(str(tmp_path / "made"))
    for path in ("", "*.csv", "zip://*::" + str(tmp_path / "made"), str(tmp_path / "recipe.py")):
        assert not is_snapshot(path)
