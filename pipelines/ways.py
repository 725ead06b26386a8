"""Which way records come to their shard: each shard reads its ranges of the runs, or all shuffle.

Both give the same bytes, so this is no part of a fingerprint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from ..schemas.blocks import RunInfo
from ..schemas.errors import RecipeError
from ..transforms import storage

WriteBy = Literal["auto", "ranges", "shuffle"]
"""How shards are written: ``ranges``, ``shuffle``, or whichever fits."""

MIN_SLICE_BYTES = 256 << 10
"""A mean slice below this is not worth a request of a store."""
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


def shuffles(
    write_by: WriteBy, runs: Sequence[RunInfo], *, num_shards: int, workspace: str, engine: str
) -> bool:
    """Whether shards are written by the runner's shuffle.

    Left to itself: where the mean slice of a run that belongs to a shard is under 256 KiB, runs
    lie on a store, where each slice is a request, and the engine does not shuffle in memory.

    Args:
        write_by: What the user asks for.
        runs: All runs.
        num_shards: Of all splits, done or not: a build that goes on goes on the same way.
        workspace: Where the runs lie.
        engine: The runner's name.
    """
    if write_by != "auto":
        return write_by == "shuffle"
    if storage.is_local(workspace) or engine in _HOLD_IN_MEMORY:
        return False
    return mean_slice_bytes(runs, num_shards=num_shards) < MIN_SLICE_BYTES


def mean_slice_bytes(runs: Sequence[RunInfo], *, num_shards: int) -> float:
    """Bytes of a run that belong to a shard, in the mean; 0 where there are no runs or shards."""
    num_slices = len(runs) * num_shards
    return sum(run.num_bytes for run in runs) / num_slices if num_slices else 0.0


def runs_per_task(runs: Sequence[RunInfo], *, num_shards: int) -> int:
    """How many runs one task of the shuffle merges, so that chunks are not much too small."""
    mean = mean_slice_bytes(runs, num_shards=num_shards)
    return max(1, min(MAX_GROUP, math.ceil(MIN_SLICE_BYTES / mean) if mean else 1))
