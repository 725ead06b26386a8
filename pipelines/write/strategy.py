"""How records reach their shard: each shard reads its ranges of the runs, or the engine shuffles.

Both strategies give the same bytes, so the choice is not part of a fingerprint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any, Literal, get_args

from ...schemas.blocks import SplitPlan
from ...schemas.errors import RecipeError
from ...schemas.naming import ShardName
from ...schemas.runner import JobRunner, JobSize
from ...transforms import storage
from ...transforms.examples.shards import ShardSettings, group_shards, shard_name
from ...transforms.runs.summary import Summary

WriteBy = Literal["auto", "ranges", "shuffle"]
"""How shards are written: by ``ranges``, by ``shuffle``, or by the more suitable one."""

MIN_SLICE_BYTES = 256 << 10
"""A mean slice below this is not worth a request to a store."""
MAX_SHARD_BYTES = 1_000_000_000
"""Prepared bytes: Flink passes all records of a shard to a worker as one element, in memory."""
MAX_GROUP = 64
"""Maximum number of runs that one task of the shuffle merges."""

_HOLD_IN_MEMORY = frozenset({"direct", "prism"})
"""Engines that shuffle in memory: with these, many small requests are the lesser evil."""


def checked_write_by(write_by: str) -> WriteBy:
    """Validates the strategy that a user requested.

    Raises:
        RecipeError: if it is invalid.
    """
    for strategy in get_args(WriteBy):
        if write_by == strategy:
            valid: WriteBy = strategy
            return valid
    raise RecipeError(f"write_by={write_by!r}, expected one of {', '.join(get_args(WriteBy))}.")


def write_job(
    summary: Summary,
    summary_name: str,
    splits: Sequence[SplitPlan],
    *,
    settings: ShardSettings,
    missing: Set[ShardName],
    runner: JobRunner,
    write_by: WriteBy = "auto",
) -> tuple[Any, WriteBy, JobSize]:
    """The job that writes shards, its strategy and size.

    Args:
        summary: Summary of the runs.
        summary_name: Its name.
        splits: The plan.
        settings: Settings that the shards have in common.
        missing: The shards to write.
        runner: The engine that will run the job.
        write_by: The requested strategy.

    Raises:
        RecipeError: if a shard is too large for the requested strategy.
    """
    from .job import ShuffleShards, WriteShards

    shards = [shard for split in splits for shard in split.shards]
    num_runs = len(summary.entries)
    mean = mean_slice_bytes(
        int(summary.histogram.num_bytes.sum()), num_runs=num_runs, num_shards=len(shards)
    )
    largest = max(shards, key=lambda shard: shard.num_bytes)
    if write_by == "shuffle" and largest.num_bytes > MAX_SHARD_BYTES:
        raise RecipeError(
            f"write_by='shuffle': {shard_name(largest, settings)} would contain "
            f"{largest.num_bytes:,} bytes, but engines hold the records of a shard in a worker's "
            f"memory, and at most {MAX_SHARD_BYTES:,} bytes are allowed. Increase the number of "
            "shards (ss.Shards(num_shards=…)), or write by ranges."
        )
    by_shuffle = shuffles(
        write_by,
        mean_slice_bytes=mean,
        max_shard_bytes=largest.num_bytes,
        workspace=settings.workspace.root,
        engine=runner.name,
    )
    wanted = [n for n, shard in enumerate(shards) if shard_name(shard, settings) in missing]
    size = JobSize(len(wanted), sum(shards[n].num_bytes for n in wanted))
    if not by_shuffle:
        groups, threads = group_shards(wanted, shards), runner.threads_per_worker(size)
        return WriteShards(settings, summary_name, groups, threads), "ranges", size
    job = ShuffleShards(
        settings, summary_name, wanted, num_runs=num_runs, group=runs_per_task(mean)
    )
    return job, "shuffle", size


def shuffles(
    write_by: WriteBy,
    *,
    mean_slice_bytes: float,
    max_shard_bytes: int,
    workspace: str,
    engine: str,
) -> bool:
    """Whether shards are written by the engine's shuffle.

    "auto" chooses it if a shard's mean slice of a run is under 256 KiB, the runs are on a store,
    where each slice is a request, the engine does not shuffle in memory, and no shard is too large
    for a worker's memory.

    Args:
        write_by: The requested strategy.
        mean_slice_bytes: Mean over all shards, done or not, so a resumed build uses the same
            strategy.
        max_shard_bytes: Size of the largest shard.
        workspace: Location of the runs.
        engine: The runner's name.
    """
    if write_by != "auto":
        return write_by == "shuffle"
    if storage.is_local(workspace) or engine in _HOLD_IN_MEMORY:
        return False
    return mean_slice_bytes < MIN_SLICE_BYTES and max_shard_bytes <= MAX_SHARD_BYTES


def mean_slice_bytes(num_bytes: int, *, num_runs: int, num_shards: int) -> float:
    """Mean number of bytes of a run that belong to a shard; 0 if there are no runs or shards."""
    num_slices = num_runs * num_shards
    return num_bytes / num_slices if num_slices else 0.0


def runs_per_task(mean_slice_bytes: float) -> int:
    """The number of runs that one task of the shuffle merges, so that chunks are not too small."""
    wanted = math.ceil(MIN_SLICE_BYTES / mean_slice_bytes) if mean_slice_bytes else 1
    return max(1, min(MAX_GROUP, wanted))
