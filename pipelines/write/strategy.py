"""Which way records come to their shard: each shard reads its ranges of the runs, or all shuffle.

Both give the same bytes, so this is no part of a fingerprint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any, Literal, get_args

from ...schemas.blocks import SplitPlan
from ...schemas.errors import RecipeError
from ...schemas.naming import ShardName
from ...schemas.runner import JobRunner
from ...transforms import storage
from ...transforms.examples.shards import ShardSettings, shard_name
from ...transforms.runs.summary import Summary

WriteBy = Literal["auto", "ranges", "shuffle"]
"""How shards are written: ``ranges``, ``shuffle``, or whichever fits."""

MIN_SLICE_BYTES = 256 << 10
"""A mean slice below this is not worth a request of a store."""
MAX_SHARD_BYTES = 1_000_000_000
"""Of prepared records: Flink hands a worker all records of a shard as one element, in memory."""
MAX_GROUP = 64
"""So many runs at the most are merged by one task of the shuffle."""

_HOLD_IN_MEMORY = frozenset({"direct", "prism"})
"""Engines that keep what they shuffle in memory: there, many small requests are the lesser evil."""


def check_way(write_by: str) -> WriteBy:
    """The way that a user asks for.

    Raises:
        RecipeError: if there is no such way.
    """
    for way in get_args(WriteBy):
        if write_by == way:
            found: WriteBy = way
            return found
    raise RecipeError(f"write_by={write_by!r}, expected one of {', '.join(get_args(WriteBy))}.")


def write_job(
    summary: Summary,
    digest: str,
    splits: Sequence[SplitPlan],
    *,
    settings: ShardSettings,
    missing: Set[ShardName],
    runner: JobRunner,
    write_by: WriteBy = "auto",
) -> tuple[Any, WriteBy]:
    """The job that writes shards, and by which way it does.

    Args:
        summary: Of the runs.
        digest: Its name.
        splits: The plan.
        settings: What the shards have in common.
        missing: The shards that are to be written.
        runner: Where the job is to run.
        write_by: What the user asks for.

    Raises:
        RecipeError: if a shard is too large for the way that the user asks for.
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
            f"write_by='shuffle': {shard_name(largest, settings)} is to hold "
            f"{largest.num_bytes:,} bytes, and engines hold the records of a shard in a worker's "
            f"memory, of which {MAX_SHARD_BYTES:,} are allowed. Ask for more shards "
            "(ss.Shards(num_shards=…)), or write by ranges."
        )
    by_shuffle = shuffles(
        write_by,
        mean_slice_bytes=mean,
        max_shard_bytes=largest.num_bytes,
        workspace=settings.workspace.root,
        engine=runner.name,
    )
    wanted = [n for n, shard in enumerate(shards) if shard_name(shard, settings) in missing]
    if not by_shuffle:
        return WriteShards(settings, digest, wanted, runner.threads_per_worker), "ranges"
    group = runs_per_task(mean)
    return ShuffleShards(settings, digest, wanted, num_runs=num_runs, group=group), "shuffle"


def shuffles(
    write_by: WriteBy,
    *,
    mean_slice_bytes: float,
    max_shard_bytes: int,
    workspace: str,
    engine: str,
) -> bool:
    """Whether shards are written by the runner's shuffle.

    Left to itself: where the mean slice of a run that belongs to a shard is under 256 KiB, runs
    lie on a store, where each slice is a request, the engine does not shuffle in memory, and no
    shard is too large for a worker's.

    Args:
        write_by: What the user asks for.
        mean_slice_bytes: Of all shards, done or not: a build that goes on goes on the same way.
        max_shard_bytes: The largest shard.
        workspace: Where the runs lie.
        engine: The runner's name.
    """
    if write_by != "auto":
        return write_by == "shuffle"
    if storage.is_local(workspace) or engine in _HOLD_IN_MEMORY:
        return False
    return mean_slice_bytes < MIN_SLICE_BYTES and max_shard_bytes <= MAX_SHARD_BYTES


def mean_slice_bytes(num_bytes: int, *, num_runs: int, num_shards: int) -> float:
    """Bytes of a run that belong to a shard, in the mean; 0 where there are no runs or shards."""
    num_slices = num_runs * num_shards
    return num_bytes / num_slices if num_slices else 0.0


def runs_per_task(mean_slice_bytes: float) -> int:
    """How many runs one task of the shuffle merges, so that chunks are not much too small."""
    wanted = math.ceil(MIN_SLICE_BYTES / mean_slice_bytes) if mean_slice_bytes else 1
    return max(1, min(MAX_GROUP, wanted))
