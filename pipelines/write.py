"""Write, Beam job 3: every planned shard is merged from the runs, encoded, verified, put in place.

``Create(shards) | Reshuffle | WriteShard``. What crosses Beam is the plan of a shard and the
name of a file; records are read from the runs by key range and never leave the worker.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import apache_beam as beam

from ..schemas.blocks import ShardPlan, SplitPlan
from ..transforms.shards import ShardSettings, ShardWriter
from ..transforms.summary import read_runs
from .concurrent import ConcurrentDoFn


class _WriteShardFn(ConcurrentDoFn):
    """Writes one shard; the name of its file is what goes on."""

    def __init__(
        self,
        settings: ShardSettings,
        splits: Sequence[SplitPlan],
        *,
        summary_digest: str,
        num_threads: int,
    ) -> None:
        super().__init__(num_threads)
        self._settings = settings
        # Of a split, a writer needs what says which records belong to it, not all its shards.
        self._splits = {split.name: dataclasses.replace(split, shards=()) for split in splits}
        self._summary_digest = summary_digest

    def setup(self) -> None:
        entries = read_runs(self._settings.workspace, self._summary_digest)
        self._writer = ShardWriter(self._settings, entries)

    def work(self, element: ShardPlan) -> str:
        """Makes sure that the shard is in place."""
        return self._writer.write(self._splits[element.split], element).file


@dataclasses.dataclass(eq=False)
class WriteShards(beam.PTransform):
    """Writes the shards of a plan.

    Input:  the pipeline. Output: the name of each shard's file. Idempotent: a shard in place
    is reported, not written again.
    """

    settings: ShardSettings
    splits: Sequence[SplitPlan]
    summary_digest: str
    num_threads: int = 1
    """Shards at once in one worker."""

    def expand(self, pbegin: Any) -> Any:
        """Wires the steps."""
        shards = [shard for split in self.splits for shard in split.shards]
        write = _WriteShardFn(
            self.settings,
            self.splits,
            summary_digest=self.summary_digest,
            num_threads=self.num_threads,
        )
        return (
            pbegin
            | "PlannedShards" >> beam.Create(shards, reshuffle=False)  # ShardPlan
            | "SpreadShards" >> beam.Reshuffle()
            | "WriteShard" >> beam.ParDo(write)  # file name
        )
