"""Which way shards are written: by the plan, the place and the engine, and nothing else."""

import pytest

from snapshard.pipelines.write.strategy import (
    MAX_GROUP,
    WriteBy,
    checked_write_by,
    mean_slice_bytes,
    runs_per_task,
    shuffles,
)
from snapshard.schemas.errors import RecipeError

KIB = 1024


@pytest.mark.parametrize(
    ("num_shards", "workspace", "engine", "expected"),
    [
        (255, "gs://bucket/out", "flink", False),
        (257, "gs://bucket/out", "flink", True),
        (257, "s3://bucket/out", "dataflow", True),
        (257, "/mnt/out", "flink", False),
        (257, "gs://bucket/out", "direct", False),
        (257, "gs://bucket/out", "prism", False),
    ],
)
def test_auto(num_shards: int, workspace: str, engine: str, expected: bool) -> None:
    """Runs of 64 MiB: the mean slice falls under 256 KiB at 256 shards, about 40 GB."""
    mean = mean_slice_bytes(3 * 64 * KIB**2, num_runs=3, num_shards=num_shards)

    def chosen(way: WriteBy, max_shard_bytes: int = 10**9) -> bool:
        return shuffles(
            way,
            mean_slice_bytes=mean,
            max_shard_bytes=max_shard_bytes,
            workspace=workspace,
            engine=engine,
        )

    assert chosen("auto") is expected
    assert chosen("auto", max_shard_bytes=10**9 + 1) is False
    assert chosen("shuffle") is True
    assert chosen("ranges") is False


def test_tasks_merge_more_runs_where_slices_are_small() -> None:
    assert runs_per_task(256 * KIB) == runs_per_task(10**9) == 1
    assert runs_per_task(25 * KIB) == 11
    assert runs_per_task(1.5) == MAX_GROUP
    assert runs_per_task(mean_slice_bytes(0, num_runs=0, num_shards=0)) == 1


def test_another_word_is_refused() -> None:
    assert checked_write_by("shuffle") == "shuffle"
    with pytest.raises(RecipeError, match="write_by='sort', expected one of auto, ranges, shuffle"):
        checked_write_by("sort")
