"""Prepare, all of it: a Beam job for each stage, from the source's blocks to the final runs."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...schemas.blocks import WorkUnit
from ...schemas.naming import Workspace
from ...schemas.progress import Progress
from ...schemas.recipe import Recipe
from ...schemas.runner import JobRunner
from ...transforms import storage
from ...transforms.runs.partitions import SplitEnds, time_ends
from ...transforms.runs.summary import RunTable, Summary, find_summary, read_summary, remove_summary
from ..inventory.step import write_descriptors
from ..inventory.survey import Survey
from ..plan.splits import find_split_ends
from ..progress import watched
from ..recipe.shipping import StagedRecipe
from ..watchdog import expected_to_advance
from .block_worker import PrepareConfig, run_files, summary_digest
from .run_files import run_in_place
from .sort_keys import bins_for
from .stages import plan_spans

STEP = "prepare"
_LOOKED_FOR = 10_000
"""So many runs are looked for at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """The prepared records of a build."""

    summary: Summary
    """Of the final runs."""
    digest: str
    """Names that summary."""
    summaries: tuple[str, ...]
    """The digests of all stages' summaries, the final one last."""
    entries: RunTable
    """The runs of all stages: each may hold rejects."""
    num_units: int
    """Blocks, and ranges of later stages …"""
    num_made: int
    """… and how many of them had no run yet."""
    replaced: tuple[str, ...] = ()
    """Runs of revision 0 that hold rejects, and that the recipe's revision replaced."""

    def to_json(self) -> dict[str, object]:
        """What :func:`find_prepared` finds them by, as plain JSON."""
        return {
            "counts": {name: getattr(self, name) for name in ("num_units", "num_made")},
            "replaced": list(self.replaced),
            "summaries": list(self.summaries),
        }

    @property
    def num_rejects(self) -> int:
        """Rejects of all stages."""
        return self.entries.total("num_rejects")

    @property
    def num_filtered(self) -> int:
        """Records that steps of all stages dropped on purpose."""
        return self.entries.total("num_filtered")


def first_config(found: Survey, staged: StagedRecipe, workspace: Workspace) -> PrepareConfig:
    """What the runs of the first stage are made with."""
    return PrepareConfig(
        staged=staged,
        folder=found.recipe.folder,
        workspace=workspace,
        features=found.stages[0],
        digest=found.stage_digests[0],
        ends=time_ends(found.recipe.splits, found.features.prepared),
        source=found.extracted,
        sides=found.opened.sides,
        dependencies=found.dependencies,
        revision=found.recipe.revision,
    )


def next_config(
    found: Survey, config: PrepareConfig, *, digest: str, contents: str, ends: SplitEnds | None
) -> PrepareConfig:
    """What the runs of the next stage are made with.

    Args:
        found: The survey.
        config: Of the stage before.
        digest: Names the summary of its runs.
        contents: Digest of what these contain.
        ends: Of splits that all records decide, where they are known by now.
    """
    stage = config.stage + 1
    return dataclasses.replace(
        config,
        features=found.stages[stage],
        digest=found.stage_digests[stage],
        stage=stage,
        previous=digest,
        previous_contents=contents,
        given=config.features.outputs,
        ends=ends,
    )


def prepare_records(
    found: Survey,
    staged: StagedRecipe,
    workspace: Workspace,
    *,
    runner: JobRunner,
    progress: Progress,
    thorough: bool = False,
) -> Prepared:
    """Makes sure that every unit of every stage has its run.

    Args:
        found: The survey.
        staged: Its recipe.
        workspace: Where runs lie.
        runner: What runs the jobs.
        progress: Told how far they are.
        thorough: Reads every run that there is already, all of it, and makes damaged ones anew.

    Raises:
        DamagedWorkError: if a run of an earlier stage turns out to be damaged.
    """
    config = first_config(found, staged, workspace)
    units: Sequence[WorkUnit] = found.inventory.blocks
    tables: list[RunTable] = []
    digests: list[str] = []
    replaced: list[str] = []
    num_units = num_made = 0
    while True:
        if config.stage + 1 == len(found.stages):
            recipe = found.recipe
            bins = bins_for(recipe.splits, recipe.shards, num_units=len(units))
            config = dataclasses.replace(config, bins=bins)
        digest = summary_digest(config, units, found.recipe.splits)
        label = f"{STEP} {config.stage + 1}" if len(found.stages) > 1 else STEP
        missing = _missing_runs(config, units, found.recipe, thorough=thorough)
        made = len(missing)
        summary = None if missing else find_summary(workspace, digest)
        if summary is None:
            _run_stage(
                config, units, missing, digest, label=label, runner=runner, progress=progress
            )
            summary = read_summary(workspace, digest)
        else:
            progress.start(label, total=len(units), unit="blocks")
        note = f"{summary.num_records:,} records"
        if thorough and made:
            note += "; what was damaged is made anew"
        progress.finish(label, reused=not made, note=note)
        tables.append(summary.table)
        replaced += _replaced(config, units, summary)
        digests.append(digest)
        num_units, num_made = num_units + len(units), num_made + made
        if config.stage + 1 == len(found.stages):
            break
        ends = config.ends
        if ends is None:
            ends = find_split_ends(
                summary.entries,
                recipe=found.recipe,
                features=config.features.outputs,
                workspace=workspace,
            )
        config = next_config(found, config, digest=digest, contents=summary.contents, ends=ends)
        units = plan_spans(summary.histogram)
    return Prepared(
        summary=summary,
        digest=digest,
        summaries=tuple(digests),
        entries=RunTable.joined(tables),
        num_units=num_units,
        num_made=num_made,
        replaced=tuple(replaced),
    )


def prepare_part(
    found: Survey,
    staged: StagedRecipe,
    workspace: Workspace,
    *,
    blocks: Sequence[WorkUnit],
    runner: JobRunner,
    progress: Progress,
) -> int:
    """Makes sure that some blocks have their runs of the first stage; sums up nothing.

    Args:
        found: The survey.
        staged: Its recipe.
        workspace: Where runs lie.
        blocks: Some of the survey's.
        runner: What runs the job.
        progress: Told how far it is.

    Returns:
        How many had no run yet.
    """
    config = first_config(found, staged, workspace)
    missing = _missing_runs(config, blocks, found.recipe, thorough=False)
    if not missing:
        progress.start(STEP, total=len(blocks), unit="blocks")
    else:
        # Of no use to anybody: the summary that counts is that of all blocks.
        name = hashlib.sha256(f"part {sorted(missing.values())}".encode()).hexdigest()[:32]
        units = list(missing)
        _run_stage(config, units, missing, name, label=STEP, runner=runner, progress=progress)
        remove_summary(workspace, name)
    progress.finish(STEP, reused=not missing)
    return len(missing)


def find_prepared(workspace: Workspace, told: Mapping[str, Any]) -> Prepared | None:
    """The prepared records of a build that told of them by :meth:`Prepared.to_json`.

    None where a summary of them is missing or damaged.
    """
    found = [find_summary(workspace, name) for name in told["summaries"]]
    summaries = [summary for summary in found if summary is not None]
    if len(summaries) < len(found):
        return None
    return Prepared(
        summary=summaries[-1],
        digest=told["summaries"][-1],
        summaries=tuple(told["summaries"]),
        entries=RunTable.joined([summary.table for summary in summaries]),
        replaced=tuple(told["replaced"]),
        **told["counts"],
    )


def _replaced(config: PrepareConfig, units: Sequence[WorkUnit], summary: Summary) -> set[str]:
    """The runs of revision 0 in whose place the stage has one of the recipe's revision."""
    if not config.revision:
        return set()
    return {config.run_id(unit) for unit in units} - {entry.run.run_id for entry in summary.entries}


def _missing_runs(
    config: PrepareConfig, units: Sequence[WorkUnit], recipe: Recipe, *, thorough: bool
) -> dict[WorkUnit, str]:
    """The units whose run has to be made, in part or as a whole, each with that run's name."""
    files = run_files(config, recipe)

    def missing_run(unit: WorkUnit) -> str | None:
        for revision in config.revisions:
            run_id = config.run_id(unit, revision)
            info = run_in_place(config.workspace, run_id)
            if info is None or (thorough and files.drop_damage(info)):
                return run_id
            if not info.num_rejects:
                break
        return None

    # Three small requests each: a store answers slowly, and many at once.
    local = storage.is_local(config.workspace.root)
    missing: dict[WorkUnit, str] = {}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1) if local else 64) as pool:
        for start in range(0, len(units), _LOOKED_FOR):
            some = units[start : start + _LOOKED_FOR]
            found = zip(some, pool.map(missing_run, some), strict=True)
            missing |= {unit: run_id for unit, run_id in found if run_id is not None}
    return missing


def _run_stage(
    config: PrepareConfig,
    units: Sequence[WorkUnit],
    missing: Mapping[WorkUnit, str],
    digest: str,
    *,
    label: str,
    runner: JobRunner,
    progress: Progress,
) -> None:
    """Makes sure that each unit has its run, and sums them up."""
    descriptors = write_descriptors(units, config.workspace)
    run_ids = (missing.get(unit) or config.run_id(unit) for unit in units)
    outputs = [config.workspace.run_info(run_id) for run_id in run_ids]
    with watched(progress, label, outputs=outputs, unit="blocks"):
        # Takes seconds: in the step's time, so that its bar shows.
        from .job import PrepareRuns

        job = PrepareRuns(config, descriptors, digest, runner.threads_per_worker)
        with expected_to_advance(f"the job {STEP!r} on {runner.name}", runner):
            runner.run(lambda pipeline: pipeline | job, job_name=STEP)
