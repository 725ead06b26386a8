"""Which way shards are written: by the plan, the place and the engine, and nothing else."""

import pytest

from snapshard.pipelines.ways import MAX_GROUP, check_way, runs_per_task, shuffles
from snapshard.schemas.blocks import RunInfo
from snapshard.schemas.errors import RecipeError


def runs(num: int, *, num_bytes: int = 64 << 20) -> list[RunInfo]:
    return [
        RunInfo(
            run_id=f"{index:032x}",
            num_records=1,
            num_bytes=num_bytes,
            num_rejects=0,
            rejects_sha256="",
            batches=(),
        )
        for index in range(num)
    ]


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
    settings = {"num_shards": num_shards, "workspace": workspace, "engine": engine}
    assert shuffles("auto", runs(3), **settings) is expected  # type: ignore[arg-type]
    assert shuffles("shuffle", runs(3), **settings) is True  # type: ignore[arg-type]
    assert shuffles("ranges", runs(3), **settings) is False  # type: ignore[arg-type]


def test_tasks_merge_more_runs_where_slices_are_small() -> None:
    assert runs_per_task(runs(9), num_shards=256) == 1
    assert runs_per_task(runs(9), num_shards=2560) == 10
    assert runs_per_task(runs(9), num_shards=10**6) == MAX_GROUP
    assert runs_per_task([], num_shards=0) == 1


def test_another_word_is_refused() -> None:
    assert check_way("shuffle") == "shuffle"
    with pytest.raises(RecipeError, match="write_by='sort', expected one of auto, ranges, shuffle"):
        check_way("sort")
