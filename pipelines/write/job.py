"""Write, Beam job 3: every planned shard is merged from the runs, encoded, verified, put in place.

``Create(numbers of shards) | Reshuffle | WriteShard``. What crosses Beam is a shard's place in the
plan, which lies in the workspace, and the name of a file; records are read from the runs by key
range and never leave the worker.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import apache_beam as beam

from ...transforms.examples.shards import ShardSettings, ShardWriter, number_shards
from ...transforms.runs.summary import read_runs
from ..plan.step import layout_of
from ..prepare.concurrent import ConcurrentDoFn


class _WriteShardFn(ConcurrentDoFn):
    """Writes one shard; the name of its file is what goes on."""

    def __init__(self, settings: ShardSettings, *, summary_digest: str, num_threads: int) -> None:
        super().__init__(num_threads)
        self._settings = settings
        self._summary_digest = summary_digest

    def setup(self) -> None:
        settings = self._settings
        entries = read_runs(settings.workspace, self._summary_digest)
        self._writer = ShardWriter(settings, entries)
        self._planned = number_shards(layout_of(settings).splits)

    def work(self, element: int) -> str:
        """Makes sure that the shard is in place."""
        return self._writer.write(*self._planned[element]).file


@dataclasses.dataclass(eq=False)
class WriteShards(beam.PTransform):
    """Writes shards of the plan that the workspace has.

    Input:  the pipeline. Output: the name of each shard's file. Idempotent: a shard in place
    is reported, not written again.
    """

    settings: ShardSettings
    summary_digest: str
    wanted: Sequence[int]
    """Numbers of the shards to write, ascending, by their place in the plan."""
    num_threads: int = 1
    """Shards at once in one worker."""

    def expand(self, pbegin: Any) -> Any:
        """Wires the steps."""
        write = _WriteShardFn(
            self.settings, summary_digest=self.summary_digest, num_threads=self.num_threads
        )
        return (
            pbegin
            | "PlannedShards" >> beam.Create(self.wanted, reshuffle=False)  # number of the shard
            | "SpreadShards" >> beam.Reshuffle()
            | "WriteShard" >> beam.ParDo(write)  # file name
        )
