"""Beam job 1, prepare: every unit of work, a block or a range of runs, becomes one sorted run.

``Create(descriptor files) | read blocks | Reshuffle | PrepareBlock | combine summaries``. Beam
carries descriptors and summaries, never records.
"""

import dataclasses
import queue
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from ...schemas.blocks import unit_from_line
from ...schemas.naming import Workspace
from ...transforms import beam_hooks  # noqa: F401 - reports what Beam does; makes it set up faster
from ...transforms.activity import advance
from ...transforms.runs.key_histogram import KeyHistogram
from ...transforms.runs.summary import Summary, num_parts, write_summary
from ...transforms.storage.failures import os_errors_as_storage_errors
from ..inventory.step import read_descriptors
from .block_worker import PrepareConfig, RunMaker

COUNTERS = "snapshard"
"""Namespace of the counters that engines show: see docs/engines.md."""
_INTERRUPTED_S = 2.0
"""Time for elements in progress to finish when the bundle is interrupted."""


@dataclasses.dataclass(eq=False)
class PrepareRuns(beam.PTransform):
    """Prepares the blocks of descriptor files into sorted runs, and summarizes their contents.

    Input: the pipeline. Output: none; runs and the summary are in the workspace. Idempotent.
    """

    config: PrepareConfig
    descriptors: Sequence[str]
    summary_name: str
    num_threads: int = 1
    """Blocks that one worker prepares concurrently."""

    def expand(self, pbegin: Any) -> Any:
        """Connects the transforms."""
        prepare = beam.ParDo(_PrepareBlockFn(self.config, self.num_threads))
        return (
            pbegin
            | "DescriptorFiles" >> beam.Create(list(self.descriptors))  # url
            | "ReadBlocks" >> beam.FlatMap(_packed_blocks)  # a block's line, compressed
            | "SpreadBlocks" >> beam.Reshuffle()
            | "PrepareBlock" >> prepare.with_output_types(Summary)
            | "SumUp"
            >> _SumUp(self.config.workspace, self.summary_name, may_be_empty=not self.descriptors)
        )


class ConcurrentDoFn(beam.DoFn):
    """A DoFn that works on several elements at once, in threads of its worker.

    The embedded engine gives a worker one element after another. Decoding, hashing, reading and
    writing release Python's lock for much of their time, so a second element in progress keeps the
    other cores busy without a second process and its imports.

    :meth:`work` runs for up to ``num_threads`` elements at once. Outputs are in the order of the
    elements, in the global window. An exception in ``work`` fails the bundle, as in any DoFn.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads

    def work(self, element: Any) -> Any:
        """Turns one element into one output; called in several threads concurrently."""
        raise NotImplementedError

    def counts(self, output: Any) -> Mapping[str, int]:
        """What to add to the engine's counters for an output; their names are stable."""
        return {}

    def start_bundle(self) -> None:
        """Starts with nothing in progress, however the bundle before ended."""
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Any] | None] = queue.SimpleQueue()
        self._under_way: list[Future[Any]] = []
        self._threads: list[threading.Thread] = []

    def process(self, element: Any) -> None:
        """Accepts one element, which waits in a queue while all threads are busy."""
        future: Future[Any] = Future()
        self._under_way.append(future)
        self._waiting.put((future, element))
        if len(self._threads) < self._num_threads:
            # Not a pool's threads: Python would wait at exit for one that is blocked forever.
            thread = threading.Thread(target=self._serve, args=(self._waiting,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, waiting: queue.SimpleQueue[tuple[Future[Any], Any] | None]) -> None:
        """Works on queued elements until the queue delivers None."""
        while (taken := waiting.get()) is not None:
            future, element = taken
            if future.set_running_or_notify_cancel():
                try:
                    output = self._work(element)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(output)

    def _work(self, element: Any) -> Any:
        # The engine keeps an error's message but not its errno: explain it here.
        with os_errors_as_storage_errors("use", "a file of the worker"):
            return self.work(element)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Yields the outputs once all elements are done or the first one fails."""
        deadline = None
        try:
            done, _ = wait(self._under_way, return_when=FIRST_EXCEPTION)
            failed = [future for future in self._under_way if future in done and future.exception()]
            outputs = [future.result() for future in failed or self._under_way]
        except (KeyboardInterrupt, SystemExit):
            deadline = time.monotonic() + _INTERRUPTED_S
            raise
        finally:
            # If the bundle fails, elements that are still queued need not start.
            for future in self._under_way:
                future.cancel()
            for _ in self._threads:
                self._waiting.put(None)
            for thread in self._threads:
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        window = GlobalWindow()
        for output in outputs:
            for name, number in self.counts(output).items():
                Metrics.counter(COUNTERS, name).inc(number)
            yield WindowedValue(output, window.max_timestamp(), [window])


def _packed_blocks(url: str) -> Iterator[bytes]:
    """The lines of a descriptor file, each compressed: an engine may keep all in memory.

    Lines and not blocks: a block of ten thousand files would be ten thousand objects to pickle.
    """
    return (zlib.compress(line, 1) for line in read_descriptors(url))


class _PrepareBlockFn(ConcurrentDoFn):
    """Prepares one block; outputs the summary of its run."""

    def __init__(self, config: PrepareConfig, num_threads: int) -> None:
        super().__init__(num_threads)
        self._config = config

    def setup(self) -> None:
        self._maker = RunMaker(self._config)

    def work(self, element: bytes) -> Summary:
        """Ensures that the unit of work of a descriptor line has its run."""
        return self._maker.make(unit_from_line(zlib.decompress(element)))

    def counts(self, output: Summary) -> Mapping[str, int]:
        """Blocks and records, including those of reused runs."""
        runs = [entry.run for entry in output.entries]
        return {
            "blocks_prepared": len(runs),
            "records_prepared": sum(run.num_records for run in runs),
            "records_rejected": sum(run.num_rejects for run in runs),
            "records_filtered": sum(run.num_filtered for run in runs),
        }


@dataclasses.dataclass(eq=False)
class _SumUp(beam.PTransform):
    """Combines the summaries of runs, and writes the result to the workspace.

    Input: a Summary of each run. Output: none.
    """

    workspace: Workspace
    name: str
    may_be_empty: bool
    """Whether there may be no runs."""

    def expand(self, summaries: Any) -> Any:
        number = num_parts(self.name)
        if number == 1:
            combine = beam.CombineGlobally(CombineSummaries())
            if not self.may_be_empty:
                # The default, an empty summary, costs five more transforms.
                combine = combine.without_defaults()
            parts = summaries | "CombineSummaries" >> combine  # Summary
        else:
            cut = summaries | "CutSummary" >> beam.ParDo(_CutSummaryFn(number))  # (part, Summary)
            # Ensures that every part has a file, even one without records.
            nothing = Summary(KeyHistogram.empty(), ())
            empty = summaries.pipeline | "EveryPart" >> beam.Create(
                [(part, nothing) for part in range(number)]
            )
            parts = (
                (cut, empty)
                | "WithEveryPart" >> beam.Flatten()
                | "CombineParts" >> beam.CombinePerKey(CombineSummaries())  # (part, Summary)
            )
        write = beam.ParDo(_WriteSummaryFn(self.workspace, self.name))
        return parts | "WriteSummary" >> write.with_output_types(type(None))


class CombineSummaries(beam.CombineFn):
    """Merges the summaries of runs, many at a time."""

    def create_accumulator(self) -> list[Summary]:  # noqa: D102
        return []

    def add_input(  # noqa: D102
        self, mutable_accumulator: list[Summary], element: Summary
    ) -> list[Summary]:
        advance()
        mutable_accumulator.append(element)
        if len(mutable_accumulator) % 64:
            return mutable_accumulator
        # Merge only once as much is waiting as is already merged, to avoid repeated merging.
        first, *waiting = (len(summary.histogram.bin) for summary in mutable_accumulator)
        return self.compact(mutable_accumulator) if sum(waiting) > first else mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Summary]]) -> list[Summary]:  # noqa: D102
        return self.compact([part for parts in accumulators for part in parts])

    def compact(self, accumulator: list[Summary]) -> list[Summary]:  # noqa: D102
        return [Summary.merge(accumulator)]

    def extract_output(self, accumulator: list[Summary]) -> Summary:  # noqa: D102
        return Summary.merge(accumulator)


class _CutSummaryFn(beam.DoFn):
    """Divides the summary of a run into parts, each of which is combined separately."""

    def __init__(self, number: int) -> None:
        self._number = number

    def process(self, summary: Summary) -> Iterator[tuple[int, Summary]]:
        yield from summary.parts(self._number)


class _WriteSummaryFn(beam.DoFn):
    """Writes a part of the combined summary to the workspace."""

    def __init__(self, workspace: Workspace, name: str) -> None:
        self._workspace = workspace
        self._name = name

    def process(self, element: tuple[int, Summary] | Summary) -> None:
        part, summary = (0, element) if isinstance(element, Summary) else element
        write_summary(summary, self._workspace, self._name, part)


def run_groups(element: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Divides a number of runs into groups of a size: [start, stop) of indices in the summary.

    >>> list(run_groups((5, 2)))
    [(0, 2), (2, 4), (4, 5)]
    """
    num_runs, group = element
    for start in range(0, num_runs, group):
        yield start, min(start + group, num_runs)
