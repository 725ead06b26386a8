"""Prepares one unit of work: reads a block or merges a range, then prepares, keys and writes a run.

A block is read from the source. A later stage reads a key range of the sorted runs of the stage
before, merged. Ranges depend only on the contents of those runs, so blocks, runners and workers do
not affect the input of a step across records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.blocks import Block, KeySpan, RawBatch, WorkUnit
from ...schemas.errors import DamagedWorkError, PayloadPlace, Reject, StorageError
from ...schemas.features import Features
from ...schemas.naming import Workspace
from ...schemas.progress import Counted
from ...schemas.recipe import CrossStep, OpenSource, Recipe, SortedRecords
from ...transforms.activity import advance, count, working_on
from ...transforms.code.dependencies import Dependencies, functions_in, refuse_undeclared
from ...transforms.examples.statistics import ExampleMeasures, RawStatistics
from ...transforms.media.image_codecs import parts_by_pixels
from ...transforms.prepare.engine.program import StepRunner, with_record
from ...transforms.prepare.engine.user_functions import MapPython
from ...transforms.prepare.engine.validate import Validator
from ...transforms.rejects import Dropped
from ...transforms.runs.files import ID, KeyRange, merge_range, wire_schema
from ...transforms.runs.key_histogram import KeyBins
from ...transforms.runs.keys import NO_PARTITION, record_keys
from ...transforms.runs.partitions import SplitEnds
from ...transforms.runs.summary import Summary, name_summary, read_runs, run_readers
from ...transforms.sources.combined import open_files, with_tables
from ...transforms.sources.extracted import ExtractedTable
from ..recipe.shipping import StagedRecipe, altered
from ..survey.stages import StageFeatures, changes_records, stages_of
from .run_files import RunFiles, keys_suffix, run_in_place
from .sort_keys import RecordKeys, reject_unassigned, split_of_records

_PYTHON_ROWS = 1024
"""Records that Python functions, which may be slow, work on before they are counted as done."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageKey:
    """Names the runs of a stage, and their summary, by all that decides what they contain."""

    digest: str
    """Hash of what turns a unit of work into a run, apart from the unit."""
    contents_before: str = ""
    """Digest of what the runs of the stage before contain; empty for the first stage."""
    revision: int = 0
    """The recipe's: a unit whose run of revision 0 holds rejects has a run of this one."""

    @property
    def revisions(self) -> tuple[int, ...]:
        """The revisions that a unit may have runs of: one counts where all before hold rejects."""
        return (0, self.revision) if self.revision else (0,)

    def run_id(self, unit: WorkUnit, revision: int = 0) -> str:
        """The name of a unit's run of a revision."""
        text = f"{self.digest}/{self.contents_before}/{unit.block_id}"
        if revision:
            text = f"{text}/{revision}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def summary_name(self, units: Sequence[WorkUnit], *, recipe: Recipe, bins: KeyBins) -> str:
        """The name of the summary of these units' runs."""
        run_ids = sorted(self.run_id(unit) for unit in units)
        counted_by = [] if bins == KeyBins() else [repr(bins)]
        revision = [f"revision {self.revision}"] if self.revision else []
        text = "\n".join([keys_suffix(recipe), *counted_by, *revision, *run_ids])
        return name_summary(hashlib.sha256(text.encode()).hexdigest()[:32], len(units))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Everything that determines a stage's runs, as plain data that is sent to every worker."""

    staged: StagedRecipe
    folder: str
    """The recipe's folder, to which a relative source is relative."""
    workspace: Workspace
    features: StageFeatures
    key: StageKey
    stage: int = 0
    previous_summary: str = ""
    """The name of the summary of the stage before; empty for the first stage."""
    given: Features = dataclasses.field(default_factory=dict)
    """The features of the stage before."""
    ends: SplitEnds | None = None
    """Ends of splits by time, or splits of balanced groups, once known."""
    tables: Mapping[str, ExtractedTable] = dataclasses.field(default_factory=dict)
    """What records that are not in files were extracted to, by the names of their sources."""
    sides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The sha256 of each additional file of the source, by URL."""
    dependencies: Dependencies = dataclasses.field(default_factory=Dependencies)
    """Dependencies of the recipe in addition to its source."""
    bins: KeyBins = KeyBins()  # noqa: RUF009
    """The bins of the runs' summaries."""


class RunMaker:
    """Turns units of work into runs, one after another; keeps what is costly to set up."""

    def __init__(self, config: PrepareConfig) -> None:
        """Loads the recipe and compiles the stage's steps."""
        self._config = config
        recipe = config.staged.load()
        if config.tables:
            recipe = altered(recipe, source=with_tables(recipe.source, config.tables))
        self._functions = tuple(functions_in(recipe))
        self._held = config.dependencies.hold()
        stages = stages_of(recipe)
        self._stage = stages[config.stage]
        last = config.stage + 1 == len(stages)
        following = None if last else stages[config.stage + 1].cross
        splits = recipe.splits
        self._reader: SourceReader | RangeReader
        if self._stage.cross is None:
            self._reader = SourceReader(recipe, config)
        else:
            self._reader = RangeReader(
                recipe,
                self._stage.cross,
                workspace=config.workspace,
                summary_name=config.previous_summary,
                features=config.given,
                ends=config.ends,
            )
        self._steps = StepRunner(
            self._stage.steps,
            config.features.inputs,
            config.features.outputs,
            numbered=recipe.files.numbered,
        )
        slow = any(isinstance(step, MapPython) for step in self._stage.steps)
        self._max_rows = _PYTHON_ROWS if slow else sys.maxsize
        self._raw_measures = None
        if config.stage == 0 and changes_records(recipe):
            self._raw_measures = ExampleMeasures(config.features.inputs, sampled=False)
        self._validator = Validator(config.features.outputs)
        self._numbered = recipe.files.numbered
        self._keys = RecordKeys(
            recipe, config.features.outputs, following=following, ends=config.ends
        )
        self._in_order = (
            config.stage == 0 and last and not recipe.files.numbered and not splits.partitioned
        )
        self._files = RunFiles.of_stage(
            config.workspace,
            recipe,
            outputs=config.features.outputs,
            stage=config.stage,
            bins=config.bins,
        )

    def make(self, unit: WorkUnit) -> Summary:
        """Ensures that the unit's run and its key file are in the workspace and complete."""
        with working_on(f"preparing {unit.describe()}"):
            return self._make(unit)

    def _make(self, unit: WorkUnit) -> Summary:
        key = self._config.key
        for revision in key.revisions:
            made = self._make_run(unit, key.run_id(unit, revision))
            if not made.entries[0].run.num_rejects:
                break
        return made

    def _make_run(self, unit: WorkUnit, run_id: str) -> Summary:
        info = run_in_place(self._config.workspace, run_id)
        if info is not None:
            with contextlib.suppress(DamagedWorkError):
                return self._files.summarize(info)
        dropped = Dropped()
        raw = None if self._raw_measures is None else RawStatistics(self._raw_measures)
        records = self.records(unit, dropped, raw)
        return self._files.write(run_id, records, dropped=dropped, in_order=self._in_order, raw=raw)

    def records(
        self, unit: WorkUnit, dropped: Dropped, raw: RawStatistics | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The unit's prepared records with their keys, batch by batch.

        Args:
            unit: The unit.
            dropped: Receives the records that are left out.
            raw: Measures the records as they are read.
        """
        reader = self._reader
        payloads = RejectPayloads(
            unit,
            features=self._config.features.inputs,
            numbered=self._numbered,
            opened=reader.opened if isinstance(reader, SourceReader) else None,
        )
        inputs = self._config.features.inputs
        excluded = frozenset(unit.excluded) if isinstance(unit, Block) else frozenset()
        kept = (_without(read, excluded, dropped) for read in reader.read(unit))
        parts = (parts_by_pixels(read, inputs, max_rows=self._max_rows) for read in kept)
        for batch in itertools.chain.from_iterable(parts):
            advance()
            if raw is not None:
                raw.add(batch.columns)
            prepared = self._validator.validate(self._steps.prepare(batch), numbered=self._numbered)
            rejects = list(prepared.rejects)
            if len(prepared.ids):
                yield self._keys.add(prepared, rejects=rejects)
            dropped.add(payloads.complete(rejects, batch))
            dropped.num_filtered += prepared.num_filtered
            num_bytes = prepared.columns.nbytes
            count(Counted(len(prepared.ids), len(rejects), num_bytes))
        # Before the run is put in place: its contents must match its name.
        refuse_undeclared(self._functions, self._held.paths, folder=self._config.folder)
        self._held.check()


def _without(batch: RawBatch, excluded: Set[str], dropped: Dropped) -> RawBatch:
    """A batch, as read, without the records that the recipe excludes, which are counted."""
    rows = [row for row, record_id in enumerate(batch.ids) if record_id not in excluded]
    rejects = tuple(reject for reject in batch.rejects if reject.record_id not in excluded)
    num_excluded = len(batch.ids) - len(rows) + len(batch.rejects) - len(rejects)
    if not num_excluded:
        return batch
    dropped.num_excluded += num_excluded
    return dataclasses.replace(
        batch,
        ids=[batch.ids[row] for row in rows],
        columns=batch.columns.take(pa.array(rows, pa.int64())),
        rejects=rejects,
    )


class SourceReader:
    """Reads blocks of the source."""

    def __init__(self, recipe: Recipe, config: PrepareConfig) -> None:
        """Opens the source."""
        self._recipe = recipe
        self._raw = config.features.inputs
        opened = open_files(recipe.files, config.folder, recipe.limits)
        self.opened = opened.expecting(config.sides)

    def read(self, block: WorkUnit) -> Iterator[RawBatch]:
        """The block's records.

        If each file is one record, files are read in the order of their keys, which are known in
        advance: no sorting is needed, and memory is bounded regardless of their size.

        Raises:
            SourceChangedError: if a file differs from the inventory, when it is read or after the
                last record. Nothing that was read may be kept then.
        """
        assert isinstance(block, Block)
        ordered = list(range(len(block.ranges)))
        if not self._recipe.files.numbered:
            keys = record_keys([part.record_id for part in block.ranges], self._recipe.seed)
            ordered.sort(key=lambda i: (int(keys[i]), block.ranges[i].record_id))
        opened = self.opened.proving(block.ranges)
        yield from self._recipe.files.read(
            block, features=self._raw, opened=opened, ordered=ordered
        )
        opened.check()


class RangeReader:
    """Reads the records of a range, and passes them through a step across records."""

    def __init__(
        self,
        recipe: Recipe,
        cross: CrossStep,
        *,
        workspace: Workspace,
        summary_name: str,
        features: Features,
        ends: SplitEnds | None,
    ) -> None:
        """Finds the runs of the stage before.

        Args:
            recipe: The recipe, with its splits and seed.
            cross: The step across records.
            workspace: The runs' workspace.
            summary_name: Name of the runs' summary.
            features: Features of their records.
            ends: Ends of splits that depend on all records.
        """
        self._recipe = recipe
        self._cross = cross
        self._features = features
        self._ends = ends
        self._names = wire_schema(features).names
        entries = read_runs(workspace, summary_name)
        self._runs = run_readers(entries, workspace, features)

    def read(self, span: WorkUnit) -> Iterator[RawBatch]:
        """The step's output for the records of a range; records without a split become rejects."""
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
            unassigned = splits == NO_PARTITION
            if unassigned.any():
                rejects += reject_unassigned(
                    ids, unassigned, recipe=self._recipe, message=why, columns=columns
                )
                kept = np.flatnonzero(~unassigned)
                ids, splits = [ids[row] for row in kept], splits[kept]
                columns, prefixes = columns.take(pa.array(kept)), prefixes.take(pa.array(kept))
            yield SortedRecords(
                ids=ids,
                prefixes=prefixes,
                splits=splits,
                columns=columns,
                numbered=self._recipe.files.numbered,
            )


class RejectPayloads:
    """Adds the records' contents to the rejects of one unit of work, if they are missing.

    Every reject gets bytes or values, or else the bytes' range in the source and their sha256. The
    only exception is a file that could not be opened.
    """

    def __init__(
        self, unit: WorkUnit, *, features: Features, numbered: bool, opened: OpenSource | None
    ) -> None:
        """Stores where the records come from.

        Args:
            unit: A block, or a range of the stage before.
            features: Features of the records before the stage's steps.
            numbered: Whether ids are ``path#position``.
            opened: The source; None in a later stage, which reads runs.
        """
        self._features, self._numbered, self._opened = features, numbered, opened
        ranges = unit.ranges if isinstance(unit, Block) else ()
        self._files = {part.path: part for part in ranges}

    def complete(self, rejects: Iterable[Reject], batch: RawBatch) -> Iterator[Reject]:
        """The rejects with the contents of their records.

        Args:
            rejects: Rejects of the batch, from any point of the stage.
            batch: The records as read, before the steps.
        """
        rows: dict[str, int] | None = None
        for reject in rejects:
            if reject.payload is None and reject.place is None:
                if rows is None:
                    rows = {record_id: row for row, record_id in enumerate(batch.ids)}
                yield self._filled(reject, batch, rows.get(reject.record_id))
            elif reject.place is not None and reject.payload_kind == "bytes":
                yield self._placed(reject, reject.place)
            else:
                yield reject

    def _filled(self, reject: Reject, batch: RawBatch, row: int | None) -> Reject:
        if row is not None:
            filled = with_record(
                reject,
                batch.columns,
                row,
                features=self._features,
                numbered=self._numbered,
            )
            place = filled.place
            return filled if place is None else self._placed(filled, place)
        part = self._files.get(reject.source)
        if part is None or not part.sha256:
            return reject
        # The damaged part and its length are unknown: report the file.
        place = PayloadPlace(sha256=part.sha256, start=0)
        return dataclasses.replace(reject, place=place)

    def _placed(self, reject: Reject, place: PayloadPlace) -> Reject:
        """Adds the bytes' range in the file, if they occur there verbatim at the reject's position.

        They do not in compressed or transcoded text.
        """
        part = self._files.get(reject.source)
        if place.start is not None or place.num_bytes is None or part is None:
            return reject
        start = reject.position or 0
        stop = start + place.num_bytes
        if self._opened is not None and not part.problem:
            try:
                content = self._opened.read(reject.source, start, stop)
            except StorageError:
                return reject
            if hashlib.sha256(content).hexdigest() == place.sha256:
                return dataclasses.replace(
                    reject, place=dataclasses.replace(place, start=start, stop=stop)
                )
        return reject
