"""Reads the records that are analyzed: those of the train split, run by run, in a fixed order."""

from __future__ import annotations

import dataclasses
import os
import pickle
import time
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from ...schemas.blocks import ShardPlan, SplitPlan
from ...schemas.features import Features
from ...schemas.naming import Workspace
from ...transforms.activity import advance
from ...transforms.examples.shards import rows_of_shard
from ...transforms.runs.files import KeyRange, RunReader
from ...transforms.runs.summary import read_runs, run_readers

_POLL_SECONDS = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainRecords:
    """Reads wire columns of a split's records: plain data, usable in any process."""

    workspace: Workspace
    summary_name: str
    prepared: Features
    split: SplitPlan
    """Without its shards."""
    whole: ShardPlan
    """All shards as one: together they are one range of one partition."""
    stratify_by: str | None

    @property
    def num_records(self) -> int:
        """Number of records."""
        return self.whole.num_examples

    def readers(self) -> list[RunReader]:
        """Readers of all runs, in the order of their ids."""
        entries = read_runs(self.workspace, self.summary_name)
        return run_readers(entries, self.workspace, self.prepared)

    def read(
        self, readers: Iterable[RunReader], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The given columns of the split's records in some runs, run by run, in the runs' order."""
        keys = KeyRange(self.whole.partition, self.whole.start_key, self.whole.stop_key)
        for reader in readers:
            for records in reader.scan(keys):
                kept = rows_of_shard(
                    records,
                    split=self.split,
                    shard=self.whole,
                    prepared=self.prepared,
                    stratify_by=self.stratify_by,
                )
                if kept.num_rows:
                    yield kept.select(list(columns))

    def __call__(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The same for all runs: no merge is needed, and the order depends only on the inputs."""
        yield from self.read(self.readers(), columns)


def train_records(
    split: SplitPlan,
    *,
    workspace: Workspace,
    summary_name: str,
    prepared: Features,
    stratify_by: str | None,
) -> TrainRecords:
    """Returns a reader of the records of a planned split."""
    # All shards of a split are adjacent key ranges of one partition: together, one range.
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
    return TrainRecords(
        workspace=workspace,
        summary_name=summary_name,
        prepared=prepared,
        split=SplitPlan(name=split.name, shards=(), strata=split.strata),
        whole=whole,
        stratify_by=stratify_by,
    )


def read_handed_over(columns: Sequence[str], *, path: str) -> Iterable[pa.RecordBatch]:
    """Reads batches with a pickled function, once the building process has provided it.

    Args:
        columns: Wire columns.
        path: The file with the function, which the build puts in place once it is known.
    """
    while not os.path.exists(path):
        advance()
        time.sleep(_POLL_SECONDS)
    with open(path, "rb") as file:
        read = pickle.load(file)
    batches: Iterable[pa.RecordBatch] = read(columns)
    return batches
