"""Builds: all steps in order, or one of them, for schedulers.

    inventory → prepare → analyze → plan → write → publish

Each step is a function from the results of the steps before to a durable one of its own, in the
workspace or the snapshot's folder, under a key that is computed from what went into it: a step
whose result exists does nothing, so a build resumes. ``_all_steps`` makes one result after the
other. ``_one_step``, maybe in a process or on a machine of its own, looks up those of the steps
before, names the step that is missing, and makes its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NoReturn, TypeVar

from ..schemas.errors import DamagedWorkError, RecipeError, StepOrderError
from ..schemas.fingerprint import differences
from ..schemas.naming import OutputPaths, Workspace
from ..schemas.progress import Progress, Silent
from ..schemas.recipe import Recipe
from ..schemas.runner import Direct, JobRunner, RunnerConfig
from ..schemas.steps import IN_PARTS, RUN_JOBS, Part, StepReport, check_step
from ..transforms import storage
from ..transforms.analysis.graph import checked_graph
from ..transforms.examples.shards import read_shard_infos
from ..transforms.sources.combined import open_files
from ..transforms.storage.failures import os_errors_as_storage_errors
from ..transforms.storage.redaction import hiding_known_in_errors
from .analyze.process import AnalysisProcess, AnalysisTask, start_process
from .analyze.step import check_function, failing_early, graph_url, make_graph
from .endings import END_ELSEWHERE_S, END_S, ending_within
from .engines import make_runner, runner_config, runs_here
from .inspect.pin import refuse_schema
from .plan.step import contents_digest, find_plan, make_plan
from .prepare.rejects import check_prepared, warn_of_unknown_ids
from .prepare.step import (
    Prepared,
    drop_damaged_runs,
    find_prepared,
    prepare_part,
    prepare_records,
)
from .publish.step import (
    History,
    find_published,
    is_published,
    make_extras,
    publish,
    withdraw_damaged,
)
from .recipe.shipping import StagedRecipe, refuse_unfit_python, refuse_while_loading, stage
from .snapshot import Snapshot
from .survey.artifact import (
    Reference,
    changed_files,
    put_inventory,
    put_reference,
    read_inventory,
    read_reference,
    reference_id,
)
from .survey.notices import survey_notices
from .survey.survey import Survey, take_survey
from .watchdog import expected_to_advance, stall_timeout_of, watched_build
from .workspace import (
    check_place,
    choose_workspace,
    needs_this_process,
    occupied,
    refuse_memory_of_one_process,
    refuse_output_among_data,
)
from .write.step import Written, shard_names, shard_settings, verify_shards, write_shards
from .write.strategy import WriteBy, checked_write_by

if TYPE_CHECKING:
    from .inspect.forecast import Forecast

ATTEMPTS = 3
"""One more than needed, unless concurrent builds meet the same damage."""
_REPORT_S, _REPORT_SHARE = 0.3, 0.05
"""A build makes its report if that takes less than this, or than this part of its time."""

T = TypeVar("T")

_NEW_OBJECTS = 100_000
"""Python's collector looks for garbage after so many."""


def build(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    limit: int | None = None,
    runner: str | RunnerConfig = "direct",
    repair: bool = False,
    write_by: WriteBy = "auto",
    workspace: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> Snapshot:
    """Builds the snapshot of a recipe, or finds it published.

    Args:
        recipe: What to build.
        out: The output root, a folder or URL: the snapshot is
            ``<out>/<recipe.name>/<fingerprint>``.
        workers: Worker processes of the embedded engine, by default as many as are worth it
            (see :class:`Direct`); of another engine, how many elements it works on at once.
        limit: Takes this many records, those with the lowest keys: a uniform sample, the same each
            time, as a snapshot of its own. If each file is a record, as with images, no others
            are read; of tables all rows are prepared, once. Filtered and rejected files count,
            rows do not. The splits divide the sample by their fractions.
        runner: Where the jobs run, which changes no byte: "direct" (Beam's embedded engine),
            "prism", "flink", an engine with its settings, as ``ss.Flink(master="host:8081")``,
            or the path of a TOML file that holds them.
        repair: Checks a published snapshot, and builds damaged files again.
        write_by: How records reach their shard, which changes no byte: "ranges" (each shard reads
            its slice of every run), "shuffle" (the engine's own), or "auto": the shuffle if
            slices are too small to be worth a request to a store each, from about 40 GB on.
        workspace: Where the work of unfinished and past builds is kept for later ones: a folder or
            URL that every worker can access. By default the one that earlier builds of this
            output used, and at first ``<out>/<recipe.name>/.work``, which ``out`` itself
            selects again.
        progress: True shows on standard error how far each step is: bars on a terminal, elsewhere
            and in notebooks lines; an object receives it. By default nothing is shown.

    Returns:
        The published snapshot; ``cached`` if it had been published before.

    Raises:
        RecipeError: if the recipe is invalid.
        DataError: if the data is refused; nothing is published.
        StorageError: if a file or store fails; building again resumes.
        RunnerError: if a worker dies, or nothing advances for the runner's ``stall_timeout``;
            building again resumes. A thread that cannot be ended is left behind then, or, if
            the build cannot end otherwise, this process ends.
    """
    _check_call("ss.build", recipe, out, limit=limit, runner=runner, workspace=workspace)
    with (
        _shown(progress) as shown,
        _begun(
            recipe,
            out,
            config=_config(runner, workers),
            progress=shown,
            limit=limit,
            write_by=checked_write_by(write_by),
            workspace=workspace,
        ) as started,
    ):
        return _all_steps(started, repair=repair)


def plan(
    recipe: Recipe, *, limit: int | None = None, progress: Progress | bool | None = None
) -> Forecast:
    """Tells what a build would read and write, from a list of files and a sample of records.

    Args:
        recipe: What would be built.
        limit: As for :func:`build`, like ``progress``.
        progress: Receives how far the steps are.

    Returns:
        Features, splits, shards and warnings; a notebook shows them as tables.

    Raises:
        RecipeError: if the recipe is invalid or does not fit the data.
        DataError: if the data is refused.
        StorageError: if a file or store fails.
    """
    from .inspect.forecast import forecast

    _check_recipe("ss.plan", recipe, limit=limit)
    with _shown(progress) as shown:
        return forecast(recipe, progress=shown, limit=limit)


@contextlib.contextmanager
def _shown(progress: Progress | bool | None) -> Iterator[Progress]:
    """What receives the progress of a build that was called with this argument."""
    if progress is True:
        from .progress_bars import Bars

        with Bars() as bars:
            yield bars
    elif progress is None or progress is False:
        yield Silent()
    elif all(hasattr(progress, name) for name in ("start", "advance", "finish", "warn")):
        yield progress
    else:
        raise RecipeError(
            f"ss.build: progress={progress!r}, expected True, False, or an object with the methods "
            "start, advance, finish and warn."
        )


def run_step(
    recipe: Recipe,
    out: str | os.PathLike[str],
    step: str,
    *,
    part: str | None = None,
    workers: int | None = None,
    limit: int | None = None,
    runner: str | RunnerConfig = "direct",
    write_by: WriteBy = "auto",
    workspace: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> StepReport:
    """Runs one step of a build, for schedulers. Its inputs are in the workspace.

    Args:
        recipe: What to build.
        out: The output root, as for :func:`build`.
        step: ``inventory``, ``prepare``, ``analyze``, ``plan``, ``write``, ``verify`` or
            ``publish``. Each needs those before it, with the same recipe, ``out`` and
            ``limit``; only ``verify`` may be left out. A step that is done does nothing.
        part: Only a part of ``prepare`` or ``write``: "1/8" to "8/8", in any order or at once.
            After all parts of ``prepare``, run ``prepare`` itself, which sums them up; after
            all parts of ``write``, nothing else is needed.
        workers: As for :func:`build`.
        limit: As for :func:`build`.
        runner: Where the jobs of this step run; it may differ from step to step.
        write_by: As for :func:`build`.
        workspace: As for :func:`build`; only the first step needs it.
        progress: Receives how far the step is.

    Returns:
        Its report.

    Raises:
        StepOrderError: if an earlier step must run first: its result is missing, or the recipe
            has changed since the inventory.
        DamagedSnapshotError: if ``verify`` finds a damaged shard; ``write`` writes it again.
        SnapshardError: as for :func:`build`.
    """
    _check_call("ss.run_step", recipe, out, limit=limit, runner=runner, workspace=workspace)
    wanted = None if part is None else Part.parse(part)
    if wanted is not None and check_step(step) not in IN_PARTS:
        in_parts = " and ".join(sorted(IN_PARTS))
        raise RecipeError(
            f"part={part!r}: {step} cannot run in parts, only {in_parts} can. Leave part out."
        )
    runs_job = check_step(step) in RUN_JOBS and (step != "analyze" or recipe.analyze_on_runner)
    with _begun(
        recipe,
        out,
        config=_config(runner, workers),
        progress=progress or Silent(),
        limit=limit,
        write_by=checked_write_by(write_by),
        workspace=workspace,
        runs_job=runs_job,
        reads_source=step in ("inventory", "prepare"),
    ) as started:
        return _one_step(started, step, wanted)


def _check_recipe(name: str, recipe: object, *, limit: object) -> None:
    """Refuses invalid arguments, and a Python that cannot build at all."""
    refuse_while_loading(name)
    refuse_unfit_python()
    if isinstance(recipe, str | os.PathLike):
        shown = os.fspath(recipe)
        if shown.endswith(".py"):
            module = os.path.basename(shown).removesuffix(".py")
            raise RecipeError(
                f"{name}: recipe={shown!r} is a path, expected an ss.Recipe. A script next to the "
                f"file imports it (`from {module} import recipe`); on the command line, "
                f"`snapshard build {shown} --out DIR` builds it."
            )
        raise RecipeError(
            f"{name}: recipe={shown!r} is a path, expected an ss.Recipe. Wrap the data in one, as "
            f'in ss.Recipe(name="data", source=ss.Csv({shown!r})). '
            f"On the command line `snapshard build {shown}` takes either, and `snapshard init "
            f"{shown}` prints the recipe that raw data suggests."
        )
    if not isinstance(recipe, Recipe):
        raise RecipeError(f"{name}: recipe={recipe!r}, expected an ss.Recipe.")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise RecipeError(f"{name}: limit={limit!r}, expected a number of records, 1 or more.")


def _check_call(
    name: str, recipe: object, out: object, *, limit: object, runner: object, workspace: object
) -> None:
    """Refuses invalid arguments."""
    _check_recipe(name, recipe, limit=limit)
    for argument, value in (("out", out), ("workspace", workspace)):
        if value is None and argument == "workspace":
            continue
        check_place(value, f"{name}: {argument}")
    if not isinstance(runner, str | RunnerConfig):
        raise RecipeError(
            f'{name}: runner={runner!r}, expected "direct" or another engine\'s name, its settings '
            'such as ss.Flink(master="host:8081"), or the path of a TOML file.'
        )


def _config(runner: str | RunnerConfig, workers: int | None) -> RunnerConfig:
    if isinstance(runner, str):
        return runner_config(runner, workers=workers)
    return runner if workers is None else dataclasses.replace(runner, workers=workers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build:
    """What the steps of a build have in common, and how they went in this process."""

    recipe: Recipe
    out: OutputPaths
    runner: JobRunner
    progress: Progress
    limit: int | None = None
    write_by: WriteBy = "auto"
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """How long each step took."""
    damage_met: list[str] = dataclasses.field(default_factory=list)

    @property
    def workspace(self) -> Workspace:
        """Where the steps' results are."""
        return Workspace(self.out.workspace)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Takes the time of a step, which is expected to advance."""
        started = time.perf_counter()
        with expected_to_advance(f"step {step!r}"):
            yield
        self.seconds[step] = time.perf_counter() - started

    def dropping_damage(self, survey: Survey, run: Callable[[], T]) -> T:
        """Runs steps. If one meets a damaged run, drops all that are damaged and starts again.

        A run is too large to check before it is used: its checksums fail while a step reads it.

        Raises:
            DamagedWorkError: if the last of three attempts meets damage too.
        """
        while True:
            try:
                return run()
            except DamagedWorkError as error:
                self.damage_met.append(str(error))
                if len(self.damage_met) == ATTEMPTS:
                    raise
                self.progress.warn("Work of an earlier build is damaged and is being recreated.")
                drop_damaged_runs(survey, self.workspace)

    def history(self, *, started: float, written: Written | None) -> History:
        """For ``build.json``."""
        return History(
            started=started,
            runner=self.runner.name,
            seconds=self.seconds,
            damage_met=self.damage_met,
            written=written,
        )


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Collects garbage after 100,000 new objects instead of 700 while the body runs.

    Beam and TensorFlow make a million objects that stay, and the inventory some for each file: to
    look through them again and again takes a tenth of a small build's time.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < _NEW_OBJECTS:  # off, or set by another build
        yield
        return
    gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def _begun(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    config: RunnerConfig,
    progress: Progress,
    limit: int | None,
    write_by: WriteBy,
    workspace: str | os.PathLike[str] | None,
    runs_job: bool = True,
    reads_source: bool = True,
) -> Iterator[Build]:
    """A build while it is watched, its engine runs, and its folders are occupied.

    `snapshard gc` is kept out of them, and folders that cannot serve are refused.
    """
    is_free = isinstance(config, Direct) and config.workers is None
    if is_free and needs_this_process(recipe, out, workspace):
        config = dataclasses.replace(config, workers=1)
    with (
        collecting_rarely(),
        hiding_known_in_errors(),
        os_errors_as_storage_errors("use", os.fspath(out)),
        watched_build(stall_timeout_of(config), progress=progress),
        make_runner(config if runs_job else Direct()) as runner,
    ):
        runner.check()

        def refuse_places(paths: OutputPaths) -> None:
            refuse_memory_of_one_process(recipe, paths, runner)
            if reads_source:
                refuse_output_among_data(recipe, paths)

        with storage.first_look():
            paths = OutputPaths(storage.absolute(os.fspath(out)), recipe.name)
            paths = choose_workspace(paths, workspace)
        refuse_places(paths)
        with occupied(paths, named=workspace is not None) as current:
            if current != paths:
                # Another build has named another place meanwhile.
                refuse_places(current)
            storage.remove_abandoned_scratch(current.workspace)
            with ending_within(END_S if runs_here(runner) else END_ELSEWHERE_S):
                yield Build(
                    recipe=recipe,
                    out=current,
                    runner=runner,
                    progress=progress,
                    limit=limit,
                    write_by=write_by,
                )


def _all_steps(build: Build, *, repair: bool) -> Snapshot:
    """Makes every result that does not exist, one after the other."""
    started = time.time()
    with contextlib.ExitStack() as stack:
        # A first build needs the process of the analysis: start it before the inventory.
        process = None if storage.exists(build.out.latest) else _start_analysis(build, stack)
        with build.timed("inventory"):
            survey = take_survey(
                build.recipe,
                workspace=build.workspace,
                progress=build.progress,
                limit=build.limit,
            )
        if repair:
            withdraw_damaged(build.out.snapshot(survey.fingerprint), progress=build.progress)
        published = find_published(survey, build.out, build.progress)
        if published is not None:
            return published
        refuse_schema(survey)
        for notice in survey_notices(survey):
            build.progress.warn(notice)
        if process is None and survey.inventory.num_hashed:
            process = _start_analysis(build, stack)
        snapshot = build.dropping_damage(
            survey, lambda: _from_prepare_on(build, survey, process, started=started)
        )
    _put_report(build, snapshot, seconds=time.time() - started)
    return snapshot


def _put_report(build: Build, snapshot: Snapshot, *, seconds: float) -> None:
    """Puts the report beside the manifest, unless that takes long for a build of this duration."""
    from .inspect.report.evidence import expected_seconds

    is_quick = expected_seconds(snapshot) < max(_REPORT_S, _REPORT_SHARE * seconds)
    if not (is_quick and storage.is_local(snapshot.path)):
        return
    try:
        from .inspect.report.page import write_report

        write_report([snapshot], None)
    except Exception as error:  # the snapshot is published, whatever its data does to the page
        build.progress.warn(f"The report was not written: {storage.redact(str(error))}")


def _from_prepare_on(
    build: Build, survey: Survey, process: AnalysisProcess | None, *, started: float
) -> Snapshot:
    runner, progress, workspace = build.runner, build.progress, build.workspace
    staged = stage(survey.recipe, workspace, survey.code)
    if build.damage_met:
        process = None  # one process runs only one analysis
    if process is not None:
        # It loads and traces what needs no records while prepare runs.
        process.begin(
            AnalysisTask(
                staged=staged,
                prepared=survey.features.prepared,
                dependencies=survey.dependencies,
            )
        )
    elif survey.recipe.analyze_on_runner:
        check_function(survey)
    with failing_early(survey, process):
        prepared = _prepare(build, survey, staged)
    with build.timed("analyze"):
        graph = make_graph(
            survey,
            staged,
            prepared,
            workspace=workspace,
            runner=runner,
            progress=progress,
            process=process,
        )
    with build.timed("plan"):
        plan = make_plan(survey, prepared.summary, graph, workspace=workspace, progress=progress)
    settings = shard_settings(survey, prepared.summary, plan, graph, out=build.out)
    with _meanwhile(make_extras, survey, prepared, plan, settings) as extras:
        with build.timed("write"):
            written = write_shards(
                prepared,
                plan,
                settings,
                runner=runner,
                progress=progress,
                write_by=build.write_by,
            )
        history = build.history(started=started, written=written)
        with build.timed("publish"):
            return publish(
                survey,
                prepared,
                plan,
                settings,
                extras.result(),
                out=build.out,
                history=history,
                progress=progress,
            )


def _prepare(build: Build, survey: Survey, staged: StagedRecipe) -> Prepared:
    with build.timed("prepare"):
        prepared = prepare_records(
            survey, staged, build.workspace, runner=build.runner, progress=build.progress
        )
    check_prepared(survey, prepared, build.workspace)
    warn_of_unknown_ids(survey, prepared, build.progress)
    return prepared


def _start_analysis(build: Build, stack: contextlib.ExitStack) -> AnalysisProcess | None:
    """Starts the process of the analysis, which loads its libraries in advance."""
    recipe = build.recipe
    if recipe.preprocessing_fn is None or recipe.analyze_on_runner or recipe.transform_from:
        return None
    scratch = stack.enter_context(storage.scratch_folder(build.workspace.root))
    return stack.enter_context(start_process(scratch))


@contextlib.contextmanager
def _meanwhile(work: Callable[..., T], *arguments: object) -> Iterator[Future[T]]:
    """Works in a thread while the body runs; if the body fails, stops the work and waits for it."""
    stop, pool = threading.Event(), ThreadPoolExecutor(1)
    try:
        yield pool.submit(work, *arguments, stop=stop)
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


@dataclasses.dataclass(frozen=True)
class _Done:
    """What a single step reports."""

    facts: Mapping[str, int]
    reused: bool


def _one_step(build: Build, step: str, part: Part | None) -> StepReport:
    """Looks up the results of the steps before one, and makes its own.

    Raises:
        StepOrderError: if a step before it must run first.
    """
    begun = time.perf_counter()
    if step == "inventory":
        survey, done = _inventory_step(build)
    else:
        reference, survey = _current_survey(build, step)
        if is_published(build.out, survey.fingerprint):
            if step == "publish":
                find_published(survey, build.out, build.progress)
            done = _Done({}, reused=True)
        elif step == "prepare":
            done = _prepare_step(build, survey, part)
        else:
            done = _later_step(build, step, survey, part, started=reference.started)
    return StepReport(
        step=step,
        part=part,
        fingerprint=survey.fingerprint,
        path=build.out.snapshot(survey.fingerprint),
        reused=done.reused,
        published=is_published(build.out, survey.fingerprint),
        seconds=time.perf_counter() - begun,
        facts=done.facts,
    )


def _inventory_step(build: Build) -> tuple[Survey, _Done]:
    """Puts the inventory into the workspace, and makes the reference name it."""
    with build.timed("inventory"):
        survey = take_survey(
            build.recipe,
            workspace=build.workspace,
            progress=build.progress,
            limit=build.limit,
        )
    refuse_schema(survey)
    reference, name = _reference_id(build), put_inventory(survey.to_store(), build.workspace)
    before = read_reference(reference, build.workspace)
    reused = before is not None and before.inventory == name
    if not reused:
        current = Reference(inventory=name, fingerprint=survey.fingerprint, started=time.time())
        put_reference(reference, current, build.workspace)
    facts = {
        "num_files": len(survey.inventory.files),
        "num_blocks": len(survey.inventory.blocks),
        "input_bytes": survey.inventory.num_bytes,
    }
    return survey, _Done(facts, reused)


def _current_survey(build: Build, step: str) -> tuple[Reference, Survey]:
    """The reference, and the survey of the inventory that it names.

    Raises:
        StepOrderError: if there is no inventory, or the recipe has changed since.
    """
    reference = read_reference(_reference_id(build), build.workspace)
    stored = None if reference is None else read_inventory(reference.inventory, build.workspace)
    if reference is None or stored is None:
        _refuse(step, "inventory", place=build.out.workspace)
    survey = take_survey(
        build.recipe,
        workspace=build.workspace,
        progress=Silent(),
        limit=build.limit,
        stored=stored,
    )
    if survey.fingerprint != stored.fingerprint:
        changed = ", ".join(differences(stored.parts, survey.parts.to_json()))
        raise StepOrderError(
            f"{step}: the recipe or its libraries have changed since the inventory. Parts of the "
            f"fingerprint that differ: {changed}. Run `snapshard step inventory` again, and the "
            "steps after it: they reuse what is still valid."
        )
    return reference, survey


def _reference_id(build: Build) -> str:
    return reference_id({"limit": build.limit})


def _prepare_step(build: Build, survey: Survey, part: Part | None) -> _Done:
    prepared = find_prepared(survey, build.workspace)
    if prepared is not None:
        check_prepared(survey, prepared, build.workspace)
    else:
        _refuse_changed(survey)
        staged = stage(survey.recipe, build.workspace, survey.code)
        if part is not None:
            blocks = part.of(survey.inventory.blocks)
            num_made = prepare_part(
                survey,
                staged,
                build.workspace,
                blocks=blocks,
                runner=build.runner,
                progress=build.progress,
            )
            return _Done({"num_blocks": len(blocks), "num_made": num_made}, reused=not num_made)
        prepared = build.dropping_damage(survey, lambda: _prepare(build, survey, staged))
    facts = {
        "num_blocks": prepared.num_units,
        "num_made": prepared.num_made,
        "num_records": prepared.summary.num_records,
        "num_rejects": prepared.num_rejects,
    }
    return _Done(facts, reused=not prepared.num_made)


def _later_step(
    build: Build, step: str, survey: Survey, part: Part | None, *, started: float
) -> _Done:
    """A step after prepare.

    Raises:
        DamagedWorkError: if it meets damaged work, which is dropped.
    """
    try:
        return _from_analyze_on(build, step, survey, part, started=started)
    except DamagedWorkError as error:
        drop_damaged_runs(survey, build.workspace)
        raise DamagedWorkError(
            f"{error}\nDamaged work was removed. Run the steps again, starting with prepare, to "
            "recreate it."
        ) from None


def _from_analyze_on(
    build: Build, step: str, survey: Survey, part: Part | None, *, started: float
) -> _Done:
    runner, progress, workspace = build.runner, build.progress, build.workspace
    prepared = find_prepared(survey, workspace)
    if prepared is None:
        _refuse(step, "prepare", place=build.out.workspace)
    check_prepared(survey, prepared, workspace)

    graph = graph_url(survey, prepared, workspace)
    is_analyzed = graph is None or checked_graph(graph) is not None
    if step == "analyze":
        if not is_analyzed:
            staged = stage(survey.recipe, workspace, survey.code)
            with build.timed(step):
                make_graph(
                    survey,
                    staged,
                    prepared,
                    workspace=workspace,
                    runner=runner,
                    progress=progress,
                )
        return _Done({"num_graphs": int(graph is not None)}, reused=is_analyzed)
    if not is_analyzed:
        _refuse(step, "analyze", place=build.out.workspace)

    plan = find_plan(workspace, survey.fingerprint, contents_digest(prepared.summary, graph))
    if step == "plan":
        reused, summary = plan is not None, prepared.summary
        with build.timed(step):
            plan = make_plan(survey, summary, graph, workspace=workspace, progress=progress)
        shards = [shard for split in plan.splits for shard in split.shards]
        num_examples = sum(shard.num_examples for shard in shards)
        return _Done({"num_shards": len(shards), "num_examples": num_examples}, reused)
    if plan is None:
        _refuse(step, "plan", place=build.out.workspace)

    settings = shard_settings(survey, prepared.summary, plan, graph, out=build.out)
    names = shard_names(plan, settings)
    found = read_shard_infos(settings, names)
    sizes = [(info.num_examples, info.num_bytes) for info in found if info is not None]
    if step == "write":
        written = Written()
        if len(sizes) < len(names):
            with build.timed(step):
                written = write_shards(
                    prepared,
                    plan,
                    settings,
                    runner=runner,
                    progress=progress,
                    write_by=build.write_by,
                    part=part,
                )
        num_shards = len(names if part is None else part.of(names))
        facts = {"num_shards": num_shards, "num_written": written.num_shards}
        return _Done(facts, reused=not written.num_shards)
    if len(sizes) < len(names):
        note = f" ({len(sizes):,} of {len(names):,} shards are)"
        _refuse(step, "write", place=settings.snapshot, note=note)

    num_examples = sum(num for num, _ in sizes)
    if step == "verify":
        with build.timed(step):
            verify_shards(settings, names, progress=progress)
        shard_bytes = sum(num_bytes for _, num_bytes in sizes)
        facts = {
            "num_shards": len(names),
            "num_examples": num_examples,
            "shard_bytes": shard_bytes,
        }
        return _Done(facts, reused=False)  # each time, every byte is read

    extras = make_extras(survey, prepared, plan, settings)
    history = build.history(started=started, written=None)
    with build.timed(step):
        publish(
            survey,
            prepared,
            plan,
            settings,
            extras,
            out=build.out,
            history=history,
            progress=progress,
        )
    return _Done({"num_examples": num_examples, "num_rejects": prepared.num_rejects}, reused=False)


def _refuse_changed(survey: Survey) -> None:
    """Refuses to prepare files that are no longer those of the inventory."""
    recipe = survey.recipe
    opened = open_files(recipe.files, recipe.folder, recipe.limits)
    if changed := changed_files(survey.inventory, opened):
        others = " and others" if changed[1:] else ""
        raise StepOrderError(
            f"{changed[0]}{others} of {opened.shown} changed since the inventory. Run "
            "`snapshard step inventory` again, and the steps after it."
        )


def _refuse(step: str, needed: str, *, place: str, note: str = "") -> NoReturn:
    raise StepOrderError(
        f"{step} needs the result of {needed}, which is not in {storage.redact(place)}{note}. Run "
        f"`snapshard step {needed}` first, with the same recipe, --out and options."
    )
