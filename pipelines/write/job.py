"""Beam job 3, write: every planned shard is encoded, verified and put in place.

There are two jobs, which differ only in how records reach their shard; order, encoding and bytes
are the same. ``strategy`` chooses one.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.metrics import Metrics

from ...schemas.blocks import ShardPlan
from ...transforms.activity import advance, working_on
from ...transforms.analysis.graph import TransformGraph
from ...transforms.examples.shards import ShardSettings, ShardWriter, number_shards
from ...transforms.examples.shuffled import ShardCutter, chunks_of, sort_chunks
from ...transforms.runs.files import KeyRange, merge_range
from ...transforms.runs.summary import RunEntry, read_runs, run_readers
from ...transforms.storage.failures import os_errors_as_storage_errors
from ..plan.step import plan_of
from ..prepare.job import COUNTERS, ConcurrentDoFn, run_groups


@dataclasses.dataclass(eq=False)
class WriteShards(beam.PTransform):
    """Writes shards of the plan in the workspace; each reads its key range of the runs.

    ``Create(groups of shards) | Reshuffle | WriteShards``. Beam carries only the numbers of shards
    in the plan; records never leave the worker.

    Input: the pipeline. Output: each group again. Idempotent: an existing shard is not written
    again.
    """

    settings: ShardSettings
    summary_name: str
    groups: Sequence[tuple[int, int]]
    """[first, stop) of the numbers in the plan of shards that are written together."""
    num_threads: int = 1
    """Groups that one worker writes concurrently."""

    def expand(self, pbegin: Any) -> Any:
        """Connects the transforms."""
        write = beam.ParDo(
            _WriteShardsFn(
                self.settings, summary_name=self.summary_name, num_threads=self.num_threads
            )
        )
        return (
            pbegin
            | "PlannedShards" >> beam.Create(self.groups, reshuffle=False)  # (first, stop)
            | "SpreadShards" >> beam.Reshuffle()
            | "WriteShards" >> write.with_output_types(tuple[int, int])  # (first, stop)
        )


class _WriteShardsFn(ConcurrentDoFn):
    """Writes one group of shards; outputs it again."""

    def __init__(self, settings: ShardSettings, *, summary_name: str, num_threads: int) -> None:
        super().__init__(num_threads)
        self._settings = settings
        self._summary_name = summary_name

    def setup(self) -> None:
        settings = self._settings
        entries = read_runs(settings.workspace, self._summary_name)
        self._writer = _shard_writer(settings, entries)
        self._planned = number_shards(plan_of(settings).splits)

    def work(self, element: tuple[int, int]) -> tuple[int, int]:
        """Ensures that the shards are in place."""
        planned = self._planned[slice(*element)]
        self._writer.write(planned[0][0], [shard for _, shard in planned])
        return element

    def counts(self, output: tuple[int, int]) -> Mapping[str, int]:
        """Shards and examples, including those that were there."""
        planned = [shard for _, shard in self._planned[slice(*output)]]
        return _counts_of(planned)


@dataclasses.dataclass(eq=False)
class ShuffleShards(beam.PTransform):
    """Writes shards of the plan in the workspace; the engine groups records by shard.

    ``Create | groups of runs | Reshuffle | CutByShard | GroupByKey | WriteShard``. If both runs and
    shards are many, a shard's slice of a run is too small to be worth a request. So each run is
    read completely, once, and Beam carries chunks of records, keyed by shard.

    Input: the pipeline. Output: the number of each shard. Idempotent: an existing shard is not
    written again; a shard that is written twice has the same bytes.
    """

    settings: ShardSettings
    summary_name: str
    wanted: Sequence[int]
    """Numbers in the plan of the shards to write, ascending."""
    num_runs: int
    """Number of runs in the summary."""
    group: int = 1
    """Number of runs that one task reads together."""

    def expand(self, pbegin: Any) -> Any:
        """Connects the transforms."""
        cut = _CutByShardFn(self.settings, summary_name=self.summary_name, wanted=self.wanted)
        return (
            pbegin
            | "AllRuns" >> beam.Create([(self.num_runs, self.group)], reshuffle=False)
            | "GroupRuns" >> beam.FlatMap(run_groups)  # (first run, stop)
            | "SpreadRuns" >> beam.Reshuffle()
            | "CutByShard" >> beam.ParDo(cut).with_output_types(tuple[int, bytes])
            | "GroupByShard" >> beam.GroupByKey()  # (number of the shard, chunks)
            | "WriteShard" >> beam.ParDo(_WriteGroupedFn(self.settings))  # its number
        )


class _CutByShardFn(beam.DoFn):
    """Merges a group of runs; outputs chunks of records with the number of their shard."""

    def __init__(
        self, settings: ShardSettings, *, summary_name: str, wanted: Sequence[int]
    ) -> None:
        self._settings = settings
        self._summary_name = summary_name
        self._wanted = tuple(wanted)

    def setup(self) -> None:
        settings = self._settings
        self._runs = read_runs(settings.workspace, self._summary_name)
        self._cutter = ShardCutter(
            plan_of(settings).splits,
            wanted=self._wanted,
            prepared=settings.prepared,
            stratify_by=settings.stratify_by,
        )

    def process(self, element: tuple[int, int]) -> Iterator[tuple[int, bytes]]:
        settings = self._settings
        # The engine keeps an error's message but not its errno: explain it here.
        with (
            os_errors_as_storage_errors("use", "a file of the worker"),
            working_on(f"cutting runs {element[0]:,} to {element[1] - 1:,} into shards"),
        ):
            entries = self._runs[slice(*element)]
            readers = run_readers(entries, settings.workspace, settings.prepared)
            for keys in self._cutter.ranges():
                for records in merge_range(readers, keys):
                    for number, kept in self._cutter.cut(records):
                        for chunk in chunks_of(kept):
                            advance()
                            yield number, chunk


class _WriteGroupedFn(beam.DoFn):
    """Writes one shard from its chunks; outputs its number."""

    def __init__(self, settings: ShardSettings) -> None:
        self._settings = settings

    def setup(self) -> None:
        settings = self._settings
        self._writer = _shard_writer(settings, ())
        self._planned = number_shards(plan_of(settings).splits)

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[int]:
        number, chunks = element
        split, shard = self._planned[number]
        with os_errors_as_storage_errors("use", "a file of the worker"):
            records = functools.partial(self._sorted, chunks, shard)
            self._writer.write(split, [shard], records=records)
        for name, num in _counts_of([shard]).items():
            Metrics.counter(COUNTERS, name).inc(num)
        yield number

    def _sorted(
        self, chunks: Iterable[bytes], shard: ShardPlan, scratch: str
    ) -> Iterator[pa.RecordBatch]:
        keys = KeyRange(shard.partition, shard.start_key, shard.stop_key)
        return sort_chunks(chunks, keys, prepared=self._settings.prepared, scratch=scratch)


def _counts_of(shards: Sequence[ShardPlan]) -> dict[str, int]:
    """What to add to the engine's counters for written shards."""
    num_examples = sum(shard.num_examples for shard in shards)
    return {"shards_written": len(shards), "examples_written": num_examples}


def _shard_writer(settings: ShardSettings, entries: Sequence[RunEntry]) -> ShardWriter:
    graph = None if settings.graph is None else TransformGraph(settings.graph).apply
    return ShardWriter(settings, entries, apply_graph=graph)
