"""The shuffle's pure halves: cut by shard into chunks, and sorted again, however they arrive."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.blocks import ShardPlan, SplitPlan
from snapshard.schemas.features import ClassLabel, Features, Scalar
from snapshard.transforms.examples.shards import number_shards, records_of
from snapshard.transforms.examples.shuffled import ShardCutter, chunks_of, sort_chunks
from snapshard.transforms.runs import files as runs
from snapshard.transforms.runs.files import KeyRange

FEATURES: Features = {"kind": ClassLabel(("a", "b")), "text": Scalar("string", optional=True)}
SCHEMA = runs.run_schema(FEATURES)
END = 1 << 64
KEYS = st.one_of(st.sampled_from([0, 1, 99, 100, 2**63, END - 1]), st.integers(0, END - 1))
Row = tuple[int, int, int]
ROWS = st.lists(st.tuples(st.integers(0, 2), KEYS, st.integers(0, 1)), max_size=60)


def records(rows: list[Row], *, size: int = 3) -> pa.RecordBatch:
    texts = [None if index % 5 == 0 else b"%d" % index * size for index in range(len(rows))]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([row[0] for row in rows], pa.int16()),
            pa.array([row[1] for row in rows], pa.uint64()),
            pa.array([b"r%d" % index for index in range(len(rows))], pa.large_binary()),
            pa.array([1] * len(rows), pa.int64()),
            pa.array([row[2] for row in rows], pa.int64()),
            pa.array(texts, pa.large_binary()),
        ],
        schema=SCHEMA,
    )
    return runs.sort_records(batch)


def split(name: str, partition: int, starts: list[int], stop: int, **rest: object) -> SplitPlan:
    ends = [*starts[1:], stop]
    shards = tuple(
        ShardPlan(
            split=name,
            index=index,
            num_shards=len(starts),
            partition=partition,
            start_key=start,
            stop_key=end,
            num_examples=0,
            num_bytes=0,
        )
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    )
    return SplitPlan(name=name, shards=shards, **rest)  # type: ignore[arg-type]


STRATA = {
    "a": {"a": (0, 1 << 63), "b": (0, 100)},
    "b": {"a": (1 << 63, END), "b": (100, END)},
}
PLANS = {
    "hash": (split("train", 0, [0, 100, 1 << 62], 1 << 63), split("test", 0, [1 << 63], END)),
    "partitioned": (split("train", 0, [0, 7], END), split("test", 2, [0, 1 << 63], END)),
    "stratified": (
        split("train", 0, [0, 50], 1 << 63, strata=STRATA["a"]),
        split("test", 0, [100, 1 << 63], END, strata=STRATA["b"]),
    ),
}


class OneRun:
    """Stands for a run in memory."""

    url = "memory://run"

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def spans(self, keys: KeyRange) -> list[tuple[int, int, float]]:
        return [(keys.start, keys.stop, 1)]

    def read(self, keys: KeyRange) -> list[pa.RecordBatch]:
        found = runs.records_within(self.batch, keys)
        return [found] if found.num_rows else []


@given(
    rows=ROWS,
    plan=st.sampled_from(sorted(PLANS)),
    left_out=st.sets(st.integers(0, 3)),
    seed=st.randoms(use_true_random=False),
)
def test_shards_hold_what_range_reads_give(
    rows: list[Row], plan: str, left_out: set[int], seed: random.Random
) -> None:
    """Whichever shards are wanted, in whatever order chunks arrive."""
    splits = PLANS[plan]
    stratify_by = "kind" if plan == "stratified" else None
    planned = number_shards(splits)
    wanted = [number for number in range(len(planned)) if number not in left_out]
    batch = records(rows)
    cutter = ShardCutter(splits, wanted=wanted, prepared=FEATURES, stratify_by=stratify_by)
    chunks: dict[int, list[bytes]] = {}
    for keys in cutter.ranges():
        for number, kept in cutter.cut(runs.records_within(batch, keys)):
            chunks.setdefault(number, []).extend(
                chunk for row in range(kept.num_rows) for chunk in chunks_of(kept.slice(row, 1))
            )
    assert set(chunks) <= set(wanted)
    for number in wanted:
        of_split, shard = planned[number]
        whole = records_of(
            [OneRun(batch)],  # type: ignore[list-item]
            split=of_split,
            shard=shard,
            prepared=FEATURES,
            stratify_by=stratify_by,
        )
        found = chunks.get(number, [])
        seed.shuffle(found)
        keys = KeyRange(shard.partition, shard.start_key, shard.stop_key)
        given = sort_chunks(found, keys, prepared=FEATURES, scratch="unused")
        assert table(given) == table(whole)


def table(batches: object) -> list[dict[str, object]]:
    return pa.Table.from_batches(batches, schema=SCHEMA).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("sort_bytes", [1, 20_000, 10**9])
def test_what_does_not_fit_is_merged_from_local_files(tmp_path: Path, sort_bytes: int) -> None:
    rng = np.random.default_rng(0)
    rows = [(0, int(key), 0) for key in rng.integers(0, END, 500, np.uint64)]
    rows[7:9] = [(0, 5, 0)] * 2  # equal keys: ids decide
    batch = records(rows, size=40)
    single = [chunk for row in range(500) for chunk in chunks_of(batch.slice(row, 1))]
    random.Random(0).shuffle(single)
    found = list(
        sort_chunks(
            iter(single),
            KeyRange(0, 0, END),
            prepared=FEATURES,
            scratch=str(tmp_path),
            sort_bytes=sort_bytes,
        )
    )
    assert pa.Table.from_batches(found).to_pylist() == batch.to_pylist()
    assert bool(list(tmp_path.iterdir())) == (sort_bytes < 10**9)


def test_chunks_are_small() -> None:
    """A record larger than a chunk is one by itself; nothing but a slice's own bytes travels."""
    batch = records([(0, key, 0) for key in range(100)], size=500)
    chunks = list(chunks_of(batch, chunk_bytes=4000))
    assert len(chunks) >= 20
    assert max(map(len, chunks)) < 8000
    records_of_9_kb = records([(0, key, 0) for key in range(3)], size=9000)
    large = list(chunks_of(records_of_9_kb, chunk_bytes=4000))
    assert len(large) == 3
