"""The records that analysis sees: the train split's, run by run, in a fixed order.

A function of a module and plain arguments, so that it reaches the process that analyses.
"""

from __future__ import annotations

import functools
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from ..schemas.blocks import ShardPlan, SplitPlan
from ..schemas.features import Features
from ..schemas.naming import Workspace
from ..transforms.runs import KeyRange
from ..transforms.shards import rows_of_shard, run_readers
from ..transforms.summary import read_summary

_POLL_SECONDS = 0.02


def train_records(
    split: SplitPlan,
    *,
    workspace: Workspace,
    summary_digest: str,
    prepared: Features,
    stratify_by: str | None,
) -> Callable[[Sequence[str]], Iterable[pa.RecordBatch]]:
    """A picklable function that reads named wire columns of a split's records.

    The records come run by run, runs in the order of their ids, each in its own order: no merge
    is needed, and the order depends on nothing but the inputs.
    """
    # All shards of a split are neighbouring key ranges of one partition: together, one range.
    whole = ShardPlan(
        split=split.name,
        index=0,
        num_shards=1,
        partition=split.shards[0].partition if split.shards else 0,
        start_key=min((shard.start_key for shard in split.shards), default=0),
        stop_key=max((shard.stop_key for shard in split.shards), default=0),
        num_examples=sum(shard.num_examples for shard in split.shards),
        num_bytes=sum(shard.num_bytes for shard in split.shards),
    )
    return functools.partial(
        _read,
        split=SplitPlan(name=split.name, shards=(), strata=split.strata),
        whole=whole,
        workspace=workspace,
        summary_digest=summary_digest,
        prepared=prepared,
        stratify_by=stratify_by,
    )


def read_handed_over(columns: Sequence[str], *, path: str) -> Iterable[pa.RecordBatch]:
    """Reads what a pickled function reads, once it is handed over by the process that builds.

    Args:
        columns: Wire columns.
        path: The file with the function, which the build puts in place when it is known.
    """
    while not os.path.exists(path):
        time.sleep(_POLL_SECONDS)
    with open(path, "rb") as file:
        read = pickle.load(file)
    found: Iterable[pa.RecordBatch] = read(columns)
    return found


def _read(
    columns: Sequence[str],
    *,
    split: SplitPlan,
    whole: ShardPlan,
    workspace: Workspace,
    summary_digest: str,
    prepared: Features,
    stratify_by: str | None,
) -> Iterator[pa.RecordBatch]:
    entries = read_summary(workspace, summary_digest).entries
    keys = KeyRange(whole.partition, whole.start_key, whole.stop_key)
    for reader in run_readers(entries, workspace, prepared):
        for records in reader.scan(keys):
            kept = rows_of_shard(
                records, split=split, shard=whole, prepared=prepared, stratify_by=stratify_by
            )
            if kept.num_rows:
                yield kept.select(list(columns))
