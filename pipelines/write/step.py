"""The write step: makes sure that every planned shard is in the snapshot's folder, and verified."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...schemas.errors import DamagedSnapshotError
from ...schemas.naming import OutputPaths, ShardName, Workspace
from ...schemas.progress import Progress
from ...schemas.runner import JobRunner
from ...schemas.steps import Part
from ...transforms.analysis.graph import graph_info
from ...transforms.examples.shards import ShardSettings, missing_shards, shard_name
from ...transforms.runs.summary import Summary
from ..plan.step import Plan, contents_digest
from ..prepare.step import Prepared
from ..survey.resolve import with_image_facts
from ..survey.stages import label_of
from ..survey.survey import Survey
from ..watchdog import counting_outputs, expected_to_advance
from .strategy import WriteBy, write_job


@dataclasses.dataclass(frozen=True)
class Written:
    """What a build wrote."""

    num_shards: int = 0
    """How many shards were missing."""
    by: WriteBy | None = None
    """How their records reached them; None if no shard was missing."""


def shard_settings(
    survey: Survey, summary: Summary, plan: Plan, graph: str | None, *, out: OutputPaths
) -> ShardSettings:
    """What the shards of a snapshot have in common."""
    prepared = survey.features.prepared
    outputs = prepared if graph is None else dict(graph_info(graph).outputs)
    final = with_image_facts(outputs, summary.image_facts())
    return ShardSettings(
        workspace=Workspace(out.workspace),
        snapshot=out.snapshot(survey.fingerprint),
        fingerprint=survey.fingerprint,
        contents=contents_digest(summary, graph),
        prepared=prepared,
        final=final,
        label=label_of(survey.recipe, final),
        compression=plan.compression,
        numbered=survey.recipe.files.numbered,
        stratify_by=survey.recipe.splits.key_strata,
        graph=graph,
    )


def shard_names(plan: Plan, settings: ShardSettings) -> Sequence[ShardName]:
    """The names of all planned shards' files, in order."""
    return [shard_name(shard, settings) for split in plan.splits for shard in split.shards]


def write_shards(
    prepared: Prepared,
    plan: Plan,
    settings: ShardSettings,
    *,
    runner: JobRunner,
    progress: Progress,
    write_by: WriteBy,
    part: Part | None = None,
) -> Written:
    """Makes sure that all shards, or a part of them, exist.

    Shards that earlier builds left are checked against their hashes; this build's own were verified
    as they were written.

    Args:
        prepared: The records.
        plan: The planned shards.
        settings: What the shards have in common.
        runner: What runs the job.
        progress: Receives how far it is.
        write_by: The requested strategy.
        part: The part of the shards; None for all of them.

    Raises:
        RecipeError: if a shard is too large for the requested strategy.
        DamagedWorkError: if a run turns out to be damaged.
    """
    names = shard_names(plan, settings)
    if part is not None:
        names = part.of(names)
        # The shuffle of each part would read all records.
        write_by = "ranges" if write_by == "auto" else write_by
    missing = missing_shards(settings, names)
    if not missing:
        progress.start("write", total=len(names), unit="shards")
        progress.finish("write", reused=True)
        return Written()
    outputs = [settings.workspace.shard_info(settings.fingerprint, str(name)) for name in names]
    with counting_outputs(progress, "write", outputs=outputs, unit="shards"):
        job, by, size = write_job(
            prepared.summary,
            prepared.summary_name,
            plan.splits,
            settings=settings,
            missing=set(missing),
            runner=runner,
            write_by=write_by,
        )
        with expected_to_advance(f"the job 'write' on {runner.name}", runner):
            runner.run(lambda pipeline: pipeline | job, job_name="write", size=size)
    note = "by the engine's shuffle" if by == "shuffle" else ""
    progress.finish("write", reused=False, note=note)
    return Written(len(missing), by)


def verify_shards(
    settings: ShardSettings, names: Sequence[ShardName], *, progress: Progress
) -> None:
    """Reads every byte of the shards; damaged ones count as not written from then on.

    Raises:
        DamagedSnapshotError: if one differs from what was written.
    """
    progress.start("verify", total=len(names), unit="shards")
    damaged = missing_shards(settings, names)
    if damaged:
        raise DamagedSnapshotError(
            f"{len(damaged):,} of {len(names):,} shards in {settings.snapshot} differ from "
            f"what was written: {damaged[0]}{' …' if len(damaged) > 1 else ''}. Nothing was "
            "published. Run `snapshard step write` again, which writes them again, and then "
            "verify."
        )
    progress.finish("verify", reused=False)
