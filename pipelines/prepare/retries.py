"""Retries: blocks that hold rejects are prepared again, though their runs exist.

For causes outside of the fingerprint: a library mended in place, memory that ran out, a service
that did not answer. A run is never replaced, since other builds may read it: where the outcome
differs, a new run stands beside it, and the workspace notes which run it amends. The amended runs
are a part of the fingerprint, so that a published snapshot stays as it is and another one is
published beside it; the workspace notes that, too, so that later builds find it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence

from ...schemas.blocks import RunInfo, WorkUnit
from ...schemas.fingerprint import digest, fingerprint
from ...schemas.naming import MANIFEST, Workspace, join
from ...schemas.progress import Progress
from ...schemas.runner import JobRunner
from ...schemas.splits import Splits
from ...transforms import storage
from ...transforms.runs.summary import remove_summary
from ...transforms.storage.sealed import put_sealed, read_sealed
from ..inspect.part_changes import build_facts
from ..inventory.step import write_descriptors
from ..inventory.survey import Survey
from ..progress import watched
from ..snapshot import Snapshot
from ..watchdog import expected_to_advance
from .block_worker import PrepareConfig, summary_digest
from .run_files import run_in_place

STEP = "retry"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retried:
    """What became of a stage's blocks that held rejects.

    Attributes:
        config: The stage's, with the runs that amend others.
        num_retried: Blocks that were prepared again …
        num_amended: … and how many came out otherwise.
    """

    config: PrepareConfig
    num_retried: int = 0
    num_amended: int = 0


def read_amended(workspace: Workspace) -> dict[str, str]:
    """The runs that stand for others: id -> id."""
    found = {}
    for name in storage.list_names(workspace.amended_runs):
        original = name.removesuffix(".json")
        content = read_sealed(workspace.amended_run(original), what=_what_run(original))
        if content is not None:
            found[original] = str(json.loads(content))
    return found


def record_amended(
    workspace: Workspace, amended: Mapping[str, str], *, before: Mapping[str, str]
) -> None:
    """Notes which runs stand for others from now on.

    Args:
        workspace: Where they lie.
        amended: All of them.
        before: What :func:`read_amended` gave.
    """
    for original, run_id in amended.items():
        if before.get(original) != run_id:
            content = json.dumps(run_id).encode()
            put_sealed(workspace.amended_run(original), content, what=_what_run(original))
    for original in before.keys() - amended.keys():
        storage.remove_tree(workspace.amended_run(original))


def retry_stage(
    config: PrepareConfig,
    units: Sequence[WorkUnit],
    *,
    splits: Splits,
    runner: JobRunner,
    progress: Progress,
) -> Retried:
    """Prepares the units that hold rejects again, beside the runs that there are.

    Args:
        config: Of the stage.
        units: Of the stage.
        splits: The recipe's.
        runner: What runs the job.
        progress: Told how far it is.
    """
    workspace = config.workspace
    plain = dataclasses.replace(config, amended={})
    before = {unit: run_in_place(workspace, config.run_id(unit)) for unit in units}
    redone = {unit: info for unit, info in before.items() if info is not None and info.num_rejects}
    if not redone:
        if config.stage == 0:
            progress.start(STEP, total=None, unit="blocks")
            progress.finish(STEP, reused=False, note="no block of the source holds rejects")
        return Retried(config=config)
    token = uuid.uuid4().hex
    trials = {
        unit: hashlib.sha256(f"{plain.run_id(unit)}/{token}".encode()).hexdigest()[:32]
        for unit in redone
    }
    trial = dataclasses.replace(
        config,
        amended={**config.amended, **{plain.run_id(unit): one for unit, one in trials.items()}},
    )
    name = summary_digest(trial, list(redone), splits)
    outputs = [workspace.run_info(run_id) for run_id in trials.values()]
    with watched(progress, STEP, outputs=outputs, unit="blocks"):
        from .job import PrepareRuns

        descriptors = write_descriptors(list(redone), workspace)
        job = PrepareRuns(trial, descriptors, name, runner.threads_per_worker)
        with expected_to_advance(f"the job {STEP!r} on {runner.name}", runner):
            runner.run(lambda pipeline: pipeline | job, job_name=STEP)
    remove_summary(workspace, name)
    amended = dict(config.amended)
    num_amended = 0
    for unit, info in redone.items():
        original, made = plain.run_id(unit), run_in_place(workspace, trials[unit])
        if made is None or outcome(made) == outcome(info):
            _remove_run(workspace, trials[unit])
            continue
        num_amended += 1
        first = run_in_place(workspace, original)
        if first is not None and outcome(first) == outcome(made):
            _remove_run(workspace, trials[unit])
            amended.pop(original)
        else:
            amended[original] = trials[unit]
    progress.finish(
        STEP,
        reused=False,
        note=f"{num_amended:,} of {len(redone):,} blocks with rejects came out otherwise",
    )
    return Retried(
        config=dataclasses.replace(config, amended=amended),
        num_retried=len(redone),
        num_amended=num_amended,
    )


def outcome(info: RunInfo) -> str:
    """A hash of what a run holds, whatever it is called."""
    facts = {name: value for name, value in info.to_json().items() if name != "run_id"}
    return digest(facts)[:32]


def amended_survey(found: Survey, amended: Mapping[str, str]) -> Survey:
    """The survey of a build some of whose runs stand for others.

    Args:
        found: The survey.
        amended: The outcome of each such run, by the id of the one that it stands for.
    """
    if not amended:
        return found
    parts = dataclasses.replace(found.parts, amended=dict(sorted(amended.items())))
    return dataclasses.replace(found, parts=parts, fingerprint=fingerprint(parts))


def latest_amended(workspace: Workspace, plain: str) -> str:
    """The fingerprint that stands for another one since blocks were retried; else that one."""
    content = read_sealed(workspace.amended_build(plain), what=_what_build(plain))
    return plain if content is None else str(json.loads(content))


def as_retried(found: Survey, workspace: Workspace, folder: str) -> Survey:
    """The survey as a build has it, where blocks were retried before and what came is published.

    Args:
        found: The survey.
        workspace: Of the name.
        folder: Of the name: its snapshots lie there.
    """
    standing = latest_amended(workspace, found.fingerprint)
    if standing == found.fingerprint or not storage.exists(join(folder, standing, MANIFEST)):
        return found
    parts = build_facts(Snapshot.open(join(folder, standing))).get("fingerprint_parts", {})
    made = amended_survey(found, parts.get("amended") or {})
    return made if made.fingerprint == standing else found


def record_build(workspace: Workspace, plain: str, amended: str) -> None:
    """Notes which fingerprint stands for another one."""
    if latest_amended(workspace, plain) == amended:
        return
    url = workspace.amended_build(plain)
    if amended == plain:
        storage.remove_tree(url)
    else:
        put_sealed(url, json.dumps(amended).encode(), what=_what_build(plain))


def _what_run(run_id: str) -> str:
    return f"amended-run-1 {run_id}"


def _what_build(plain: str) -> str:
    return f"amended-build-1 {plain}"


def _remove_run(workspace: Workspace, run_id: str) -> None:
    """Removes the files of a run that nothing refers to, its commit first."""
    storage.remove_tree(workspace.run_info(run_id))
    folder = workspace.run_info(run_id).rpartition("/")[0]
    for name in storage.list_names(folder):
        if name.startswith(run_id):
            storage.remove_tree(f"{folder}/{name}")
