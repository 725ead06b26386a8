"""Leaks: contents that occur in more than one split, found from the key files.

An image in both train and test makes test results less meaningful. Contents are compared by a
64-bit hash of all features except the label, so the same input with two labels also counts.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.blocks import ShardPlan, SplitPlan
from ...schemas.naming import Workspace
from ...schemas.splits import KEY_SPACE
from ...transforms import storage
from ...transforms.runs.files import CONTENT, KEY, PARTITION, STRATUM, RunReader, keys_schema
from ...transforms.runs.partitions import select_rows
from ...transforms.runs.summary import RunEntry

_MEMORY_RECORDS = 4_000_000
"""Records compared at once, in about 200 MB."""
_MAX_PARTS = 512
"""Maximum number of files open at once: above two billion records, more memory is used."""
ROW = np.dtype([("content", np.uint64), ("split", np.int16)])

Rows = npt.NDArray[np.void]
_T = TypeVar("_T")


def find_leaks(
    entries: Sequence[RunEntry],
    plans: Sequence[SplitPlan],
    *,
    workspace: Workspace,
    suffix: str,
    stop: threading.Event | None = None,
    max_records: int = _MEMORY_RECORDS,
) -> dict[str, int]:
    """The number of contents that occur in several splits, by their names: ``"train, test"``.

    Memory is bounded: more than ``max_records`` are first partitioned by their hash, on disk.

    Raises:
        CancelledError: soon after ``stop`` is set.
    """
    stop = stop or threading.Event()
    used = [plan for plan in plans if plan.shards]
    if len(used) < 2:
        return {}
    num_records = sum(entry.run.num_records for entry in entries)
    num_parts = min(-(-num_records // max_records), _MAX_PARTS)
    rows = read_rows(entries, used, workspace=workspace, suffix=suffix, stop=stop)
    counts: Counter[tuple[int, ...]] = Counter()
    if num_parts <= 1:
        batches = list(rows)
        if batches:
            counts = count_rows(np.concatenate(batches))
    else:
        with storage.scratch_folder(workspace.root) as scratch:
            for path in _until(stop, _divide(rows, num_parts, scratch)):
                counts += count_rows(np.fromfile(path, ROW))
    names = [plan.name for plan in used]
    return {
        ", ".join(names[split] for split in splits): number
        for splits, number in sorted(counts.items())
    }


def count_rows(rows: Rows) -> Counter[tuple[int, ...]]:
    """The number of contents that occur in each set of two or more splits."""
    contents, splits = rows["content"], rows["split"]
    # Three times as fast as sorting rows of two fields.
    order = np.lexsort((splits, contents))
    contents, splits = contents[order], splits[order]
    other = np.flatnonzero((contents[1:] != contents[:-1]) | (splits[1:] != splits[:-1])) + 1
    distinct = np.concatenate([np.zeros(min(1, len(rows)), np.int64), other])
    contents, splits = contents[distinct], splits[distinct]
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
            order = np.argsort(part_of, kind="stable")
            ends = np.searchsorted(part_of[order], np.arange(num_parts, dtype=np.uint64), "right")
            for file, some in zip(files, np.split(order, ends[:-1]), strict=True):
                file.write(batch[some].tobytes())
    finally:
        for file in files:
            file.close()
    return paths


def _until(stop: threading.Event, items: Iterable[_T]) -> Iterator[_T]:
    """Yields the items.

    Raises:
        CancelledError: if ``stop`` is set.
    """
    for item in items:
        if stop.is_set():
            raise CancelledError
        yield item


def read_rows(
    entries: Sequence[RunEntry],
    plans: Sequence[SplitPlan],
    *,
    workspace: Workspace,
    suffix: str,
    stop: threading.Event,
) -> Iterator[Rows]:
    """The content hash and split of all records, batch by batch."""

    def key_file(entry: RunEntry) -> list[pa.RecordBatch]:
        url = workspace.run_keys(entry.run.run_id, suffix)
        return list(_until(stop, RunReader(url, entry.keys, keys_schema()).scan()))

    at_once = storage.num_requests(workspace.root)
    with ThreadPoolExecutor(at_once) as pool:
        files = iter(entries)
        while some := list(itertools.islice(files, at_once)):
            batches = (batch for key_batches in pool.map(key_file, some) for batch in key_batches)
            yield from _rows_of(_until(stop, batches), plans)


def _rows_of(batches: Iterable[pa.RecordBatch], plans: Sequence[SplitPlan]) -> Iterator[Rows]:
    for batch in batches:
        rows = np.zeros(batch.num_rows, ROW)
        rows["content"] = batch.column(CONTENT).to_numpy()
        strata = batch.column(STRATUM)
        rows["split"] = split_of_rows(
            plans,
            partitions=batch.column(PARTITION).to_numpy(),
            keys=batch.column(KEY).to_numpy(),
            strata=None if strata.null_count else strata,
        )
        yield rows[rows["split"] >= 0]


def split_of_rows(
    plans: Sequence[SplitPlan],
    *,
    partitions: npt.NDArray[np.int16],
    keys: npt.NDArray[np.uint64],
    strata: pa.Array | None,
) -> npt.NDArray[np.int16]:
    """The split of each record, an index into ``plans``, or -1 where a limit excludes it: int16[n].

    Args:
        plans: Splits that have shards.
        partitions: int16[n].
        keys: uint64[n].
        strata: string[n]; required for stratified splits.
    """
    split_of = np.full(len(keys), -1, np.int16)
    for index, plan in enumerate(plans):
        inside = select_rows(plan, _whole(plan), partitions=partitions, keys=keys, strata=strata)
        split_of[inside] = index
    return split_of


def _whole(plan: SplitPlan) -> ShardPlan:
    """The complete split as one shard."""
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
