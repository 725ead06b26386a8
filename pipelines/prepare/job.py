"""Prepare, Beam job 1: every unit of work, a block or a range of runs, becomes one sorted run.

``Create(descriptor files) | read blocks | Reshuffle | PrepareBlock | combine summaries``. Beam
carries descriptors and summaries, never records.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam

from ...schemas.blocks import unit_from_line
from ...schemas.naming import Workspace
from ...transforms.activity import advance
from ...transforms.runs.key_histogram import KeyHistogram
from ...transforms.runs.summary import Summary, num_parts, write_summary
from ..inventory.step import read_descriptors
from .block_worker import PrepareConfig, RunMaker
from .concurrent import ConcurrentDoFn


class _PrepareBlockFn(ConcurrentDoFn):
    """Prepares one block; the summary of its run is what goes on."""

    def __init__(self, config: PrepareConfig, num_threads: int) -> None:
        super().__init__(num_threads)
        self._config = config

    def setup(self) -> None:
        self._maker = RunMaker(self._config)

    def work(self, element: bytes) -> Summary:
        """Makes sure that the unit of work of a descriptor line has its run."""
        return self._maker.make(unit_from_line(element))


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
        # As much again as is merged already waits to be merged: else all would be, over and over.
        first, *waiting = (len(summary.histogram.bin) for summary in mutable_accumulator)
        return self.compact(mutable_accumulator) if sum(waiting) > first else mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Summary]]) -> list[Summary]:  # noqa: D102
        return self.compact([part for parts in accumulators for part in parts])

    def compact(self, accumulator: list[Summary]) -> list[Summary]:  # noqa: D102
        return [Summary.merge(accumulator)]

    def extract_output(self, accumulator: list[Summary]) -> Summary:  # noqa: D102
        return Summary.merge(accumulator)


class _CutSummaryFn(beam.DoFn):
    """Cuts the summary of a run, of which each part is combined in a place of its own."""

    def __init__(self, number: int) -> None:
        self._number = number

    def process(self, summary: Summary) -> Iterator[tuple[int, Summary]]:
        yield from summary.parts(self._number)


class _WriteSummaryFn(beam.DoFn):
    """Puts a part of the combined summary into the workspace."""

    def __init__(self, workspace: Workspace, digest: str) -> None:
        self._workspace = workspace
        self._digest = digest

    def process(self, element: tuple[int, Summary] | Summary) -> None:
        part, summary = (0, element) if isinstance(element, Summary) else element
        write_summary(summary, self._workspace, self._digest, part)


@dataclasses.dataclass(eq=False)
class _SumUp(beam.PTransform):
    """Combines the summaries of runs, and puts what comes of it into the workspace.

    Input: a Summary of each run. Output: none.
    """

    workspace: Workspace
    name: str
    may_be_none: bool
    """Whether there may be no run at all."""

    def expand(self, summaries: Any) -> Any:
        number = num_parts(self.name)
        if number == 1:
            combine = beam.CombineGlobally(CombineSummaries())
            if not self.may_be_none:
                # An empty summary instead of none costs a build of few files five more transforms.
                combine = combine.without_defaults()
            parts = summaries | "CombineSummaries" >> combine  # Summary
        else:
            cut = summaries | "CutSummary" >> beam.ParDo(_CutSummaryFn(number))  # (part, Summary)
            # So that there is a file of every part, of one without records too.
            nothing = Summary(KeyHistogram.empty(), ())
            empty = summaries.pipeline | "EveryPart" >> beam.Create(
                [(part, nothing) for part in range(number)]
            )
            parts = (
                (cut, empty)
                | "WithEveryPart" >> beam.Flatten()
                | "CombineParts" >> beam.CombinePerKey(CombineSummaries())  # (part, Summary)
            )
        return parts | "WriteSummary" >> beam.ParDo(_WriteSummaryFn(self.workspace, self.name))


@dataclasses.dataclass(eq=False)
class PrepareRuns(beam.PTransform):
    """Prepares the blocks of descriptor files into sorted runs, and sums up what they hold.

    Input:  the pipeline. Output: none; runs and the summary lie in the workspace. Idempotent.
    """

    config: PrepareConfig
    descriptors: Sequence[str]
    summary_digest: str
    num_threads: int = 1
    """Blocks at once in one worker."""

    def expand(self, pbegin: Any) -> Any:
        """Wires the steps."""
        return (
            pbegin
            | "DescriptorFiles" >> beam.Create(list(self.descriptors))  # url
            | "ReadBlocks" >> beam.FlatMap(read_descriptors)  # a block's line
            | "SpreadBlocks" >> beam.Reshuffle()
            | "PrepareBlock"
            >> beam.ParDo(_PrepareBlockFn(self.config, self.num_threads))  # Summary
            | "SumUp"
            >> _SumUp(self.config.workspace, self.summary_digest, may_be_none=not self.descriptors)
        )
