"""Preparing one unit of work: read a block, or merge a range; prepare, key, and write one run."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from ...schemas.blocks import Block, RawBatch, WorkUnit
from ...schemas.errors import DamagedWorkError
from ...schemas.features import Features
from ...schemas.naming import Workspace
from ...schemas.recipe import Recipe, Source
from ...schemas.splits import Splits
from ...transforms.activity import advance, working_on
from ...transforms.code.dependencies import Dependencies, functions_in
from ...transforms.code.user_reads import refuse_undeclared
from ...transforms.media.image_codecs import parts_by_pixels
from ...transforms.prepare.engine.compile import StepRunner
from ...transforms.prepare.engine.validate import Validator
from ...transforms.rejects import Dropped
from ...transforms.runs.key_histogram import KeyBins
from ...transforms.runs.keys import record_keys
from ...transforms.runs.partitions import SplitEnds
from ...transforms.runs.summary import Summary, name_summary
from ...transforms.storage.opened_source import open_source
from ..inventory.extraction import reading
from ..recipe.shipping import StagedRecipe
from .merging import RangeReader
from .reject_payloads import RejectPayloads
from .run_files import RunFiles, keys_suffix, run_in_place
from .sort_keys import RecordKeys
from .stages import StageFeatures, label_of, stages_of


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

    def summary_name(self, units: Sequence[WorkUnit], *, splits: Splits, bins: KeyBins) -> str:
        """The name of the summary of these units' runs."""
        run_ids = sorted(self.run_id(unit) for unit in units)
        counted_by = [] if bins == KeyBins() else [repr(bins)]
        revision = [f"revision {self.revision}"] if self.revision else []
        text = "\n".join([keys_suffix(splits), *counted_by, *revision, *run_ids])
        return name_summary(hashlib.sha256(text.encode()).hexdigest()[:32], len(units))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Everything that a stage's runs are made with, as plain data that reaches every worker."""

    staged: StagedRecipe
    folder: str
    """The recipe's folder, which a relative source counts from."""
    workspace: Workspace
    features: StageFeatures
    key: StageKey
    stage: int = 0
    previous: str = ""
    """The name of the summary of the stage before; empty for the first stage."""
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
    bins: KeyBins = KeyBins()  # noqa: RUF009
    """What the runs' summaries count by."""


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
        self._files = run_files(
            config.workspace,
            recipe,
            outputs=config.features.outputs,
            stage=config.stage,
            bins=config.bins,
        )

    def make(self, unit: WorkUnit) -> Summary:
        """Makes sure that the unit's run and its key file are in the workspace, and whole."""
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


def run_files(
    workspace: Workspace, recipe: Recipe, *, outputs: Features, stage: int, bins: KeyBins
) -> RunFiles:
    """The files of a stage's runs.

    Args:
        workspace: Where they are.
        recipe: What is built.
        outputs: The features that the stage's runs hold.
        stage: Its number, from 0.
        bins: What the runs' summaries count by.
    """
    last = stage + 1 == len(stages_of(recipe))
    return RunFiles(
        workspace,
        outputs,
        label=label_of(recipe, outputs),
        stratify_by=recipe.splits.stratify_by if last else None,
        suffix=keys_suffix(recipe.splits) if last else "plain",
        bins=bins,
    )


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
