"""The prepare step: a Beam job for each stage, from the source's blocks to the final runs.

A run or a summary that the workspace holds under its key is not made again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ...schemas.blocks import WorkUnit
from ...schemas.naming import Workspace
from ...schemas.progress import Progress
from ...schemas.runner import JobRunner, JobSize
from ...schemas.visible import human_count
from ...transforms import storage
from ...transforms.examples.statistics import RawTotals
from ...transforms.runs.key_histogram import KeyBins
from ...transforms.runs.partitions import SplitEnds, time_ends
from ...transforms.runs.summary import (
    RunTable,
    Summary,
    find_summary,
    read_summary,
    remove_summary,
)
from ..inventory.step import write_descriptors
from ..recipe.shipping import StagedRecipe
from ..survey.stages import changes_records, plan_spans
from ..survey.survey import Survey
from ..watchdog import counting_outputs, expected_to_advance
from .block_worker import PrepareConfig, StageKey
from .run_files import RunFiles, raw_statistics, run_in_place
from .sort_keys import bins_for
from .split_ends import find_split_ends

STEP = "prepare"
_LOOKED_UP = 10_000
"""Number of runs looked up at a time."""
_MEASURED = 256
"""Number of runs whose figures are read at a time: up to 60 KB each of a table of 20 columns."""

T = TypeVar("T")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedStage:
    """The runs of one stage."""

    key: StageKey
    units: Sequence[WorkUnit]
    summary_name: str
    summary: Summary

    @property
    def replaced(self) -> set[str]:
        """Revision-0 runs superseded by the recipe's revision."""
        if not self.key.revision:
            return set()
        runs = {self.key.run_id(unit) for unit in self.units}
        return runs - {entry.run.run_id for entry in self.summary.entries}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """The prepared records of a build."""

    stages: tuple[PreparedStage, ...]
    num_made: int = 0
    """How many units had no run yet."""

    @property
    def summary(self) -> Summary:
        """Of the final runs."""
        return self.stages[-1].summary

    @property
    def summary_name(self) -> str:
        """The name of that summary."""
        return self.stages[-1].summary_name

    @property
    def summary_names(self) -> tuple[str, ...]:
        """The names of all stages' summaries, the final one last."""
        return tuple(stage.summary_name for stage in self.stages)

    @functools.cached_property
    def entries(self) -> RunTable:
        """The runs of all stages: each may hold rejects."""
        return RunTable.joined([stage.summary.table for stage in self.stages])

    @property
    def num_units(self) -> int:
        """Blocks, and ranges of later stages."""
        return sum(len(stage.units) for stage in self.stages)

    @property
    def replaced(self) -> tuple[str, ...]:
        """Revision-0 runs with rejects that are superseded by the recipe's revision."""
        return tuple(run_id for stage in self.stages for run_id in stage.replaced)

    @property
    def num_rejects(self) -> int:
        """Rejects of all stages."""
        return self.entries.total("num_rejects")

    @property
    def num_filtered(self) -> int:
        """Records that steps of all stages dropped on purpose."""
        return self.entries.total("num_filtered")

    @property
    def num_excluded(self) -> int:
        """Records that the recipe excludes, in files of many records."""
        return self.entries.total("num_excluded")


def first_config(survey: Survey, staged: StagedRecipe, workspace: Workspace) -> PrepareConfig:
    """What the runs of the first stage are made with."""
    return PrepareConfig(
        staged=staged,
        folder=survey.recipe.folder,
        workspace=workspace,
        features=survey.stages[0],
        key=_stage_key(survey, 0, ""),
        ends=time_ends(survey.recipe.splits, survey.features.prepared),
        tables=survey.extracted,
        sides=survey.opened.sides,
        dependencies=survey.dependencies,
    )


def next_config(
    survey: Survey,
    config: PrepareConfig,
    *,
    previous_summary: str,
    contents: str,
    ends: SplitEnds | None,
) -> PrepareConfig:
    """What the runs of the next stage are made with.

    Args:
        survey: The survey.
        config: Of the stage before.
        previous_summary: The name of the summary of its runs.
        contents: Digest of what these contain.
        ends: Of splits that all records decide, where they are known by now.
    """
    stage = config.stage + 1
    return dataclasses.replace(
        config,
        features=survey.stages[stage],
        key=_stage_key(survey, stage, contents),
        stage=stage,
        previous_summary=previous_summary,
        given=config.features.outputs,
        ends=ends,
    )


def _stage_key(survey: Survey, stage: int, contents_before: str) -> StageKey:
    return StageKey(
        digest=survey.stage_digests[stage],
        contents_before=contents_before,
        revision=survey.recipe.revision,
    )


def _bins(survey: Survey, stage: int, *, num_units: int) -> KeyBins:
    """What the summaries of a stage count by: the last one's are what shards are planned from."""
    if stage + 1 < len(survey.stages):
        return KeyBins()
    return bins_for(survey.recipe.splits, survey.recipe.shards, num_units=num_units)


def find_prepared(survey: Survey, workspace: Workspace) -> Prepared | None:
    """The prepared records of a build, if the workspace has all of them.

    None if a summary is missing or damaged.
    """
    stages = list(_stages_in_place(survey, workspace))
    return Prepared(stages=tuple(stages)) if len(stages) == len(survey.stages) else None


def raw_totals(survey: Survey, prepared: Prepared, workspace: Workspace) -> RawTotals | None:
    """Figures of the records as they were read; None if no step changes them.

    Raises:
        DamagedWorkError: if the facts of a run are missing or damaged.
    """
    if not changes_records(survey.recipe):
        return None
    totals = RawTotals(survey.features.raw)
    run_ids = [entry.run.run_id for entry in prepared.stages[0].summary.entries]
    with ThreadPoolExecutor(storage.num_requests(workspace.root)) as pool:
        for start in range(0, len(run_ids), _MEASURED):
            some = run_ids[start : start + _MEASURED]
            for measured in pool.map(functools.partial(raw_statistics, workspace), some):
                totals.add(measured)
    return totals


def _stages_in_place(survey: Survey, workspace: Workspace) -> Iterator[PreparedStage]:
    """The stages whose summaries the workspace has, from the first on, up to one that it lacks."""
    units: Sequence[WorkUnit] = survey.inventory.blocks
    contents = ""
    for number in range(len(survey.stages)):
        key = _stage_key(survey, number, contents)
        bins = _bins(survey, number, num_units=len(units))
        name = key.summary_name(units, recipe=survey.recipe, bins=bins)
        summary = find_summary(workspace, name)
        if summary is None:
            return
        yield PreparedStage(key=key, units=units, summary_name=name, summary=summary)
        units, contents = plan_spans(summary.histogram), summary.contents


def drop_damaged_runs(survey: Survey, workspace: Workspace) -> None:
    """Reads every run of a build, and drops those that are damaged: prepare makes them again."""
    for number, stage in enumerate(_stages_in_place(survey, workspace)):
        files = RunFiles.of_stage(
            workspace,
            survey.recipe,
            outputs=survey.stages[number].outputs,
            stage=number,
            bins=_bins(survey, number, num_units=len(stage.units)),
        )
        if True in list(_each(files.drop_damage, stage.summary.entries, workspace)):
            remove_summary(workspace, stage.summary_name)


def prepare_records(
    survey: Survey,
    staged: StagedRecipe,
    workspace: Workspace,
    *,
    runner: JobRunner,
    progress: Progress,
) -> Prepared:
    """Makes sure that every unit of every stage has its run.

    Args:
        survey: The survey.
        staged: Its recipe.
        workspace: Where the runs are.
        runner: What runs the jobs.
        progress: Receives how far they are.

    Raises:
        DamagedWorkError: if a run of an earlier stage turns out to be damaged.
    """
    config = first_config(survey, staged, workspace)
    units: Sequence[WorkUnit] = survey.inventory.blocks
    num_bytes = survey.inventory.num_bytes
    stages: list[PreparedStage] = []
    num_made = 0
    while True:
        bins = _bins(survey, config.stage, num_units=len(units))
        config = dataclasses.replace(config, bins=bins)
        name = config.key.summary_name(units, recipe=survey.recipe, bins=bins)
        label = f"{STEP} {config.stage + 1}" if len(survey.stages) > 1 else STEP
        missing = _missing_runs(config, units)
        num_made += len(missing)
        summary = None if missing else find_summary(workspace, name)
        if summary is None:
            size = JobSize(len(missing), num_bytes * len(missing) // max(1, len(units)))
            _run_stage(
                config, units, missing, name, size, label=label, runner=runner, progress=progress
            )
            summary = read_summary(workspace, name)
        else:
            progress.start(label, total=len(units), unit="blocks")
        # If all blocks are reused, progress shows only "reused".
        num_reused = len(units) - len(missing) if missing else 0
        notes = [f"{num_reused:,} reused"] if num_reused else []
        notes.append(human_count(summary.num_records, "records"))
        progress.finish(label, reused=not missing, note=", ".join(notes))
        stages.append(
            PreparedStage(key=config.key, units=units, summary_name=name, summary=summary)
        )
        if len(stages) == len(survey.stages):
            return Prepared(stages=tuple(stages), num_made=num_made)
        ends = config.ends
        if ends is None:
            ends = find_split_ends(
                summary.entries,
                recipe=survey.recipe,
                features=config.features.outputs,
                workspace=workspace,
                warn=progress.warn,
            )
        config = next_config(
            survey, config, previous_summary=name, contents=summary.contents, ends=ends
        )
        units = plan_spans(summary.histogram)
        num_bytes = int(summary.histogram.num_bytes.sum())


def prepare_part(
    survey: Survey,
    staged: StagedRecipe,
    workspace: Workspace,
    *,
    blocks: Sequence[WorkUnit],
    runner: JobRunner,
    progress: Progress,
) -> int:
    """Makes sure that some blocks have their runs of the first stage; sums up nothing.

    Args:
        survey: The survey.
        staged: Its recipe.
        workspace: Where the runs are.
        blocks: Some of the survey's.
        runner: What runs the job.
        progress: Receives how far it is.

    Returns:
        How many had no run yet.
    """
    config = first_config(survey, staged, workspace)
    missing = _missing_runs(config, blocks)
    if not missing:
        progress.start(STEP, total=len(blocks), unit="blocks")
    else:
        # The job writes a summary of these blocks, which nothing reads: it is removed.
        name = hashlib.sha256(f"part {sorted(missing.values())}".encode()).hexdigest()[:32]
        units = list(missing)
        num_bytes = survey.inventory.num_bytes * len(units) // len(survey.inventory.blocks)
        size = JobSize(len(units), num_bytes)
        _run_stage(config, units, missing, name, size, label=STEP, runner=runner, progress=progress)
        remove_summary(workspace, name)
    progress.finish(STEP, reused=not missing)
    return len(missing)


def _missing_runs(config: PrepareConfig, units: Sequence[WorkUnit]) -> dict[WorkUnit, str]:
    """The units whose run is missing, or a part of it, each with that run's name."""

    def missing_run(unit: WorkUnit) -> str | None:
        for revision in config.key.revisions:
            run_id = config.key.run_id(unit, revision)
            info = run_in_place(config.workspace, run_id)
            if info is None:
                return run_id
            if not info.num_rejects:
                break
        return None

    missing = zip(units, _each(missing_run, units, config.workspace), strict=True)
    return {unit: run_id for unit, run_id in missing if run_id is not None}


def _each(function: Callable[[T], R], items: Sequence[T], workspace: Workspace) -> Iterator[R]:
    """Applies the function to many items at once, since stores answer slowly; keeps their order."""
    local = storage.is_local(workspace.root)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1) if local else 64) as pool:
        for start in range(0, len(items), _LOOKED_UP):
            yield from pool.map(function, items[start : start + _LOOKED_UP])


def _run_stage(
    config: PrepareConfig,
    units: Sequence[WorkUnit],
    missing: Mapping[WorkUnit, str],
    name: str,
    size: JobSize,
    *,
    label: str,
    runner: JobRunner,
    progress: Progress,
) -> None:
    """Makes sure that each unit has its run, and sums them up."""
    descriptors = write_descriptors(units, config.workspace)
    run_ids = (missing.get(unit) or config.key.run_id(unit) for unit in units)
    outputs = [config.workspace.run_info(run_id) for run_id in run_ids]
    with counting_outputs(progress, label, outputs=outputs, unit="blocks"):
        runner.start_workers(size)
        # Takes seconds: in the step's time, so that its bar shows.
        from .job import PrepareRuns

        job = PrepareRuns(config, descriptors, name, runner.threads_per_worker(size))
        with expected_to_advance(f"the job {STEP!r} on {runner.name}", runner):
            runner.run(lambda pipeline: pipeline | job, job_name=STEP, size=size)
