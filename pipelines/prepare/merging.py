"""Reading for a later stage: the sorted runs of the stage before, merged by ranges of their keys.

Ranges follow from what the runs hold and nothing else, so neither blocks, runners nor workers
change what a step across records sees.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.blocks import KeySpan, RawBatch, WorkUnit
from ...schemas.errors import Reject
from ...schemas.features import Features
from ...schemas.naming import Workspace
from ...schemas.recipe import CrossStep, Recipe, SortedRecords
from ...schemas.splits import KEY_SPACE
from ...transforms.examples.shards import run_readers
from ...transforms.rejects import reject_rows
from ...transforms.runs.files import ID, KeyRange, merge_range, wire_schema
from ...transforms.runs.key_histogram import BIN_SHIFT, NUM_KEY_BINS, KeyHistogram
from ...transforms.runs.keys import NO_PARTITION
from ...transforms.runs.partitions import SplitEnds
from ...transforms.runs.summary import read_runs
from .sort_keys import split_of_records

SPAN_BYTES = 64 << 20
"""About so much of the stage before is one unit of work."""


def plan_spans(histogram: KeyHistogram, *, span_bytes: int = SPAN_BYTES) -> tuple[KeySpan, ...]:
    """Cuts the space of keys into ranges of about ``span_bytes``, at the edges of its bins.

    One range at the least; one bin at the least is a range, however much it holds.
    """
    size = np.zeros(NUM_KEY_BINS, np.int64)
    np.add.at(size, histogram.bin, histogram.num_bytes)
    starts, held = [0], 0
    for bin_, num_bytes in enumerate(size.tolist()):
        if held and held + num_bytes > span_bytes:
            starts.append(bin_ << BIN_SHIFT)
            held = 0
        held += num_bytes
    stops = [*starts[1:], KEY_SPACE]
    return tuple(KeySpan(start, stop) for start, stop in zip(starts, stops, strict=True))


class RangeReader:
    """Gives a step across records the records of a range, and what comes of them to others."""

    def __init__(
        self,
        recipe: Recipe,
        cross: CrossStep,
        *,
        workspace: Workspace,
        summary_digest: str,
        features: Features,
        ends: SplitEnds | None,
    ) -> None:
        """Looks the runs of the stage before up.

        Args:
            recipe: Its splits and seed.
            cross: The step.
            workspace: Where the runs lie.
            summary_digest: Names their summary.
            features: Of their records.
            ends: Of splits that all records decide.
        """
        self._recipe = recipe
        self._cross = cross
        self._features = features
        self._ends = ends
        self._names = wire_schema(features).names
        entries = read_runs(workspace, summary_digest)
        self._runs = run_readers(entries, workspace, features)

    def read(self, span: WorkUnit) -> Iterator[RawBatch]:
        """What the step makes of the records of a range; those without a split are rejects."""
        assert isinstance(span, KeySpan)
        rejects: list[Reject] = []
        merged = self._sorted_records(span, rejects)
        yield from self._cross.merge(merged, features=self._features)
        if rejects:
            empty = wire_schema(self._cross.features(self._features))
            columns = pa.RecordBatch.from_pylist([], schema=empty)
            yield RawBatch(ids=[], columns=columns, rejects=tuple(rejects))

    def _sorted_records(self, span: KeySpan, rejects: list[Reject]) -> Iterator[SortedRecords]:
        length = self._cross.prefix_bytes
        for records in merge_range(self._runs, KeyRange(0, span.start, span.stop)):
            composite = records.column(ID)
            prefixes = pc.binary_slice(composite, 0, length)
            ids = [
                text[length:].decode("utf-8", "surrogateescape") for text in composite.to_pylist()
            ]
            columns = records.select(self._names)
            splits, why = split_of_records(
                ids, columns, recipe=self._recipe, features=self._features, ends=self._ends
            )
            homeless = splits == NO_PARTITION
            if homeless.any():
                rejects += reject_rows(
                    ids,
                    np.flatnonzero(homeless),
                    stage="split",
                    reason="no split",
                    message=why,
                    numbered=self._recipe.files.numbered,
                    columns=columns,
                )
                kept = np.flatnonzero(~homeless)
                ids, splits = [ids[row] for row in kept], splits[kept]
                columns, prefixes = columns.take(pa.array(kept)), prefixes.take(pa.array(kept))
            yield SortedRecords(
                ids=ids,
                prefixes=prefixes,
                splits=splits,
                columns=columns,
                numbered=self._recipe.files.numbered,
            )
