"""Preparing one unit of work: read a block, or merge a range; prepare, key, and write one run."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.blocks import Block, KeySpan, RawBatch, WorkUnit
from ...schemas.errors import DamagedWorkError, PayloadPlace, Reject, StorageError
from ...schemas.features import Features
from ...schemas.naming import Workspace
from ...schemas.recipe import CrossStep, OpenSource, Recipe, SortedRecords, Source
from ...schemas.splits import Splits
from ...transforms.activity import advance, working_on
from ...transforms.code.dependencies import Dependencies, functions_in
from ...transforms.code.user_reads import refuse_undeclared
from ...transforms.examples.shards import run_readers
from ...transforms.media.image_codecs import parts_by_pixels
from ...transforms.prepare.engine.compile import StepRunner, with_record
from ...transforms.prepare.engine.validate import Validator
from ...transforms.rejects import Dropped, reject_rows
from ...transforms.runs.files import ID, KeyRange, merge_range, wire_schema
from ...transforms.runs.key_histogram import KeyBins
from ...transforms.runs.keys import NO_PARTITION, record_keys
from ...transforms.runs.partitions import SplitEnds
from ...transforms.runs.summary import Summary, name_summary, read_runs
from ...transforms.storage.opened_source import open_source
from ..inventory.extraction import reading
from ..recipe.shipping import StagedRecipe
from .run_files import RunFiles, keys_suffix, run_in_place
from .sort_keys import RecordKeys, split_of_records
from .stages import StageFeatures, label_of, stages_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Everything that a stage's runs are made with, as plain data that reaches every worker."""

    staged: StagedRecipe
    folder: str
    """The recipe's folder, which a relative source counts from."""
    workspace: Workspace
    features: StageFeatures
    digest: str
    """Hash of what turns a unit of work into a run, the unit itself apart."""
    stage: int = 0
    previous: str = ""
    """The name of the summary of the stage before; empty in the first."""
    previous_contents: str = ""
    """Digest of what that stage's runs contain."""
    given: Features = dataclasses.field(default_factory=dict)
    """The features of the stage before."""
    ends: SplitEnds | None = None
    """Of splits by time and of balanced groups, once they are known."""
    source: Source | None = None
    """What the recipe's source was extracted to; None where its own files are read."""
    sides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The sha256 of each file beside the source, by URL."""
    dependencies: Dependencies = dataclasses.field(default_factory=Dependencies)
    """What the recipe depends on beside its source."""
    revision: int = 0
    """The recipe's: units whose run of revision 0 holds rejects get a run of this one."""
    bins: KeyBins = KeyBins()  # noqa: RUF009
    """What the runs' summaries count by."""

    @property
    def revisions(self) -> tuple[int, ...]:
        """The revisions that a unit may have runs of: one counts where all before hold rejects."""
        return (0, self.revision) if self.revision else (0,)

    def run_id(self, unit: WorkUnit, revision: int = 0) -> str:
        """The name of a unit's run of a revision."""
        text = f"{self.digest}/{self.previous_contents}/{unit.block_id}"
        if revision:
            text = f"{text}/{revision}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class RunMaker:
    """Turns units of work into runs, one after the other; holds what is costly to set up."""

    def __init__(self, config: PrepareConfig) -> None:
        """Loads the recipe and compiles the stage's steps."""
        self._config = config
        recipe = reading(config.staged.load(), config.source)
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
                summary_digest=config.previous,
                features=config.given,
                ends=config.ends,
            )
        self._steps = StepRunner(
            self._stage.steps,
            config.features.inputs,
            config.features.outputs,
            numbered=recipe.files.numbered,
        )
        self._validator = Validator(config.features.outputs)
        self._numbered = recipe.files.numbered
        self._keys = RecordKeys(
            recipe, config.features.outputs, following=following, ends=config.ends
        )
        self._in_order = (
            config.stage == 0 and last and not recipe.files.numbered and not splits.partitioned
        )
        self._files = run_files(config, recipe)

    def make(self, unit: WorkUnit) -> Summary:
        """Makes sure that the unit's run and its key file are in the workspace, and whole."""
        with working_on(f"preparing {unit.describe()}"):
            return self._make(unit)

    def _make(self, unit: WorkUnit) -> Summary:
        for revision in self._config.revisions:
            made = self._make_run(unit, self._config.run_id(unit, revision))
            if not made.entries[0].run.num_rejects:
                break
        return made

    def _make_run(self, unit: WorkUnit, run_id: str) -> Summary:
        info = run_in_place(self._config.workspace, run_id)
        if info is not None:
            with contextlib.suppress(DamagedWorkError):
                return self._files.summarize(info)
        dropped = Dropped()
        records = self.records(unit, dropped)
        info = self._files.write(run_id, records, dropped=dropped, in_order=self._in_order)
        return self._files.summarize(info)

    def records(self, unit: WorkUnit, dropped: Dropped) -> Iterator[pa.RecordBatch]:
        """The unit's prepared records with their keys, batch by batch."""
        reader = self._reader
        payloads = RejectPayloads(
            unit,
            features=self._config.features.inputs,
            numbered=self._numbered,
            opened=reader.opened if isinstance(reader, SourceReader) else None,
        )
        inputs = self._config.features.inputs
        for batch in (part for read in reader.read(unit) for part in parts_by_pixels(read, inputs)):
            advance()
            prepared = self._validator.validate(self._steps.prepare(batch), numbered=self._numbered)
            rejects = list(prepared.rejects)
            if len(prepared.ids):
                yield self._keys.add(prepared, rejects=rejects)
            dropped.add(payloads.complete(rejects, batch))
            dropped.num_filtered += prepared.num_filtered
        # Before the run is put in place: what is in it must be what its name says.
        refuse_undeclared(self._functions, self._held.paths, folder=self._config.folder)
        self._held.check()


class SourceReader:
    """Reads blocks of the source."""

    def __init__(self, recipe: Recipe, config: PrepareConfig) -> None:
        """Opens the source."""
        self._recipe = recipe
        self._raw = config.features.inputs
        self.opened = open_source(recipe.files.url, config.folder, recipe.limits).expecting(
            config.sides
        )

    def read(self, block: WorkUnit) -> Iterator[RawBatch]:
        """The block's records.

        Files that are one record each come in the order of their keys, which are known before
        they are read: they need no sorting then, and memory stays flat however large they grow.

        Raises:
            SourceChangedError: if a file is not, or after the last record no longer, what the
                inventory found. Nothing of what was read must be kept then.
        """
        assert isinstance(block, Block)
        ordered = list(range(len(block.ranges)))
        if not self._recipe.files.numbered:
            keys = record_keys([part.path for part in block.ranges], self._recipe.seed)
            ordered.sort(key=lambda i: (int(keys[i]), block.ranges[i].path))
        opened = self.opened.proving(block.ranges)
        yield from self._recipe.files.read(
            block, features=self._raw, opened=opened, ordered=ordered
        )
        if opened.proof is not None:
            opened.proof.check()


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


class RejectPayloads:
    """Completes the rejects of one unit of work."""

    def __init__(
        self, unit: WorkUnit, *, features: Features, numbered: bool, opened: OpenSource | None
    ) -> None:
        """Takes where the records come from.

        Args:
            unit: A block, or a range of the stage before.
            features: Of the records before the stage's steps.
            numbered: Whether ids are ``path#position``.
            opened: The source; None in a later stage, which reads runs.
        """
        self._features, self._numbered, self._opened = features, numbered, opened
        ranges = unit.ranges if isinstance(unit, Block) else ()
        self._files = {part.path: part for part in ranges}

    def complete(self, rejects: Iterable[Reject], batch: RawBatch) -> Iterator[Reject]:
        """The rejects with what their records held.

        Args:
            rejects: Of the batch, at any point of the stage.
            batch: The records as they came, before the steps.
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
        # What was damaged, and how much of it there is, is not known: the file is told.
        place = PayloadPlace(sha256=part.sha256, start=0)
        return dataclasses.replace(reject, place=place)

    def _placed(self, reject: Reject, place: PayloadPlace) -> Reject:
        """Finds out whether long bytes stand in the file as they are, at the reject's position.

        In compressed or recoded text they do not.
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


def run_files(config: PrepareConfig, recipe: Recipe) -> RunFiles:
    """The files of a stage's runs."""
    last = config.stage + 1 == len(stages_of(recipe))
    return RunFiles(
        config.workspace,
        config.features.outputs,
        label=label_of(recipe, config.features.outputs),
        stratify_by=recipe.splits.stratify_by if last else None,
        suffix=keys_suffix(recipe.splits) if last else "plain",
        bins=config.bins,
    )


def summary_digest(config: PrepareConfig, units: Sequence[WorkUnit], splits: Splits) -> str:
    """Names the summary of these units' runs."""
    run_ids = sorted(config.run_id(unit) for unit in units)
    counted_by = [] if config.bins == KeyBins() else [repr(config.bins)]
    revision = [f"revision {config.revision}"] if config.revision else []
    text = "\n".join([keys_suffix(splits), *counted_by, *revision, *run_ids])
    return name_summary(hashlib.sha256(text.encode()).hexdigest()[:32], len(units))
