"""Leaks: contents that stand in more than one split, told from the key files.

An image that is in train and in test makes the test worth less. Contents are compared by a 64-bit
hash of all features but the label, so the same input under two labels counts as well.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..schemas.blocks import ShardPlan, SplitPlan
from ..schemas.naming import Workspace
from ..schemas.splits import KEY_SPACE
from ..transforms import storage
from ..transforms.membership import select_rows
from ..transforms.runs import CONTENT, KEY, PARTITION, STRATUM, RunReader, keys_schema
from ..transforms.summary import RunEntry

_MEMORY_RECORDS = 4_000_000
"""So many records are compared at once, in about 200 MB."""
_ROW = np.dtype([("content", np.uint64), ("split", np.int8)])

Rows = npt.NDArray[np.void]


def find_leaks(
    entries: Sequence[RunEntry],
    plans: Sequence[SplitPlan],
    *,
    workspace: Workspace,
    suffix: str,
) -> dict[str, int]:
    """How many contents stand in several splits, by these splits' names: ``"train, test"``.

    Memory is bounded: many records are first divided by their hash, on disk.
    """
    used = [plan for plan in plans if plan.shards]
    if len(used) < 2:
        return {}
    num_records = sum(entry.run.num_records for entry in entries)
    num_parts = -(-num_records // _MEMORY_RECORDS)
    rows = _rows(entries, used, workspace=workspace, suffix=suffix)
    counts: Counter[tuple[int, ...]] = Counter()
    if num_parts <= 1:
        found = list(rows)
        if found:
            counts = _count(np.concatenate(found))
    else:
        with storage.scratch_folder(workspace.root) as scratch:
            for path in _divide(rows, num_parts, scratch):
                counts += _count(np.fromfile(path, _ROW))
    names = [plan.name for plan in used]
    return {
        ", ".join(names[split] for split in splits): number
        for splits, number in sorted(counts.items())
    }


def _count(rows: Rows) -> Counter[tuple[int, ...]]:
    """How many contents stand in each set of two or more splits."""
    distinct = np.unique(rows)
    contents, splits = distinct["content"], distinct["split"]
    first = np.flatnonzero(np.diff(contents, prepend=~contents[:1]))
    sizes = np.diff(first, append=len(contents))
    counts: Counter[tuple[int, ...]] = Counter()
    for start, size in zip(first[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        counts[tuple(splits[start : start + size].tolist())] += 1
    return counts


def _divide(rows: Iterator[Rows], num_parts: int, scratch: str) -> list[str]:
    paths = [os.path.join(scratch, f"contents-{part}") for part in range(num_parts)]
    files = [open(path, "wb") for path in paths]  # noqa: SIM115
    try:
        for batch in rows:
            part_of = (batch["content"] >> np.uint64(32)) * np.uint64(num_parts) >> np.uint64(32)
            for part, file in enumerate(files):
                file.write(batch[part_of == part].tobytes())
    finally:
        for file in files:
            file.close()
    return paths


def _rows(
    entries: Sequence[RunEntry], plans: Sequence[SplitPlan], *, workspace: Workspace, suffix: str
) -> Iterator[Rows]:
    """Content and split of all records, batch by batch."""
    for entry in entries:
        reader = RunReader(workspace.run_keys(entry.run.run_id, suffix), entry.keys, keys_schema())
        for batch in reader.scan():
            rows = np.zeros(batch.num_rows, _ROW)
            rows["content"] = batch.column(CONTENT).to_numpy()
            strata = batch.column(STRATUM)
            for index, plan in enumerate(plans):
                inside = select_rows(
                    plan,
                    _whole(plan),
                    partitions=batch.column(PARTITION).to_numpy(),
                    keys=batch.column(KEY).to_numpy(),
                    strata=None if strata.null_count else strata,
                )
                rows["split"][inside] = index
            yield rows


def _whole(plan: SplitPlan) -> ShardPlan:
    """All of a split as one shard."""
    stratified = plan.strata is not None
    return ShardPlan(
        split=plan.name,
        index=0,
        num_shards=1,
        partition=plan.shards[0].partition,
        start_key=0 if stratified else plan.shards[0].start_key,
        stop_key=KEY_SPACE if stratified else plan.shards[-1].stop_key,
        num_examples=0,
        num_bytes=0,
    )
