"""Builds: all steps in order, or one of them. Each has a durable result, so a build resumes.

inventory → prepare → analyze → plan → write → publish. A step whose result exists does nothing.
This module alone chooses the runner.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..runners.choose import make_runner as make_runner
from ..schemas.errors import RecipeError
from ..schemas.progress import Progress, Silent
from ..schemas.recipe import Recipe
from ..schemas.runner import Direct, RunnerConfig
from ..transforms import storage
from ..transforms.storage.failures import telling_os_errors
from ..transforms.storage.redaction import hiding_known_in_errors
from .build_steps import BuildSteps
from .engines import runner_config
from .inventory.survey import Survey
from .preflight import check_place
from .recipe.shipping import refuse_optimized_python, refuse_while_loading, stage
from .single_step import SingleStep
from .snapshot import Snapshot
from .steps import IN_PARTS, RUN_JOBS, Part, StepReport, check_step
from .watchdog import stall_timeout_of, watched_build
from .write.strategy import WriteBy, checked_write_by

if TYPE_CHECKING:
    from .analyze.process import AnalysisProcess


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
    progress: Progress | None = None,
) -> Snapshot:
    """Builds the snapshot of a recipe, or finds it published.

    Args:
        recipe: What to build.
        out: The output root, a folder or URL: the snapshot is
            ``<out>/<recipe.name>/<fingerprint>``.
        workers: Worker processes of the embedded engine, one by default; of another engine,
            how many elements it works on at once.
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
        progress: Receives how far each step is.

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
    write_by = checked_write_by(write_by)
    config = _config(runner, workers)
    progress = progress or Silent()
    with (
        hiding_known_in_errors(),
        telling_os_errors("use", os.fspath(out)),
        watched_build(stall_timeout_of(config), progress=progress),
        make_runner(config) as engine,
    ):
        engine.check()
        return Build(
            recipe,
            os.fspath(out),
            runner=engine,
            progress=progress,
            limit=limit,
            write_by=write_by,
            workspace=workspace,
        ).run(repair=repair)


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
        raise RecipeError(f"{step} has no parts; {' and '.join(sorted(IN_PARTS))} have.")
    config = _config(runner, workers)
    stall_timeout, progress = stall_timeout_of(config), progress or Silent()
    if check_step(step) not in RUN_JOBS or (step == "analyze" and not recipe.analyze_on_runner):
        config = Direct()
    with (
        hiding_known_in_errors(),
        telling_os_errors("use", os.fspath(out)),
        watched_build(stall_timeout, progress=progress),
        make_runner(config) as engine,
    ):
        engine.check()
        return SingleStep(
            recipe,
            os.fspath(out),
            runner=engine,
            progress=progress,
            limit=limit,
            write_by=checked_write_by(write_by),
            workspace=workspace,
        ).run(step, part=wanted)


def _check_call(
    name: str, recipe: object, out: object, *, limit: object, runner: object, workspace: object
) -> None:
    """Refuses invalid arguments, and a Python that cannot build at all."""
    refuse_while_loading(name)
    refuse_optimized_python()
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
    for argument, value in (("out", out), ("workspace", workspace)):
        if value is None and argument == "workspace":
            continue
        check_place(value, f"{name}: {argument}")
    if not isinstance(runner, str | RunnerConfig):
        raise RecipeError(
            f'{name}: runner={runner!r}, expected "direct" or another engine\'s name, its settings '
            'such as ss.Flink(master="host:8081"), or the path of a TOML file.'
        )
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise RecipeError(f"{name}: limit={limit!r}, expected a number of records, 1 or more.")


def _config(runner: str | RunnerConfig, workers: int | None) -> RunnerConfig:
    if isinstance(runner, str):
        return runner_config(runner, workers=workers)
    return runner if workers is None else dataclasses.replace(runner, workers=workers)


class Build(BuildSteps):
    """A build that runs all steps in this process."""

    def run(self, *, repair: bool = False) -> Snapshot:
        """Runs the steps that are not done."""
        with self._occupying():
            return self._run(repair=repair)

    def _run(self, *, repair: bool) -> Snapshot:
        started = time.time()
        with contextlib.ExitStack() as stack:
            # A first build needs it: it need not wait for the inventory.
            process = None if storage.exists(self._out.latest) else self._start_analysis(stack)
            survey = self.survey()
            published = self.published(survey.fingerprint, repair=repair)
            if published is not None:
                return published
            if process is None and survey.inventory.num_hashed:
                process = self._start_analysis(stack)

            def build_all() -> Snapshot:
                # A process for the analysis serves once.
                ready = None if self._damage_met else process
                return self._build(survey, ready, started=started)

            return self.dropping_damage(survey, build_all)

    def _start_analysis(self, stack: contextlib.ExitStack) -> AnalysisProcess | None:
        """Starts the process of the analysis, which loads its libraries in advance."""
        recipe = self._recipe
        if recipe.preprocessing_fn is None or recipe.analyze_on_runner or recipe.transform_from:
            return None
        from .analyze.process import start_process

        scratch = stack.enter_context(storage.scratch_folder(self._workspace.root))
        return stack.enter_context(start_process(scratch))

    def _build(
        self,
        survey: Survey,
        process: AnalysisProcess | None,
        *,
        started: float,
    ) -> Snapshot:
        staged = stage(survey.recipe, self._workspace)
        if process is not None:
            from .analyze.process import AnalysisTask

            process.begin(
                AnalysisTask(
                    staged=staged,
                    prepared=survey.features.prepared,
                    dependencies=survey.dependencies,
                )
            )
        prepared = self.prepare(survey, staged)
        graph = self.analyze(survey, staged, prepared, process=process)
        layout = self.plan(survey, prepared.summary, graph)
        settings = self.settings(survey, prepared.summary, layout, graph)
        stop, meanwhile = threading.Event(), ThreadPoolExecutor(1)
        try:
            # Meanwhile, work that needs no shards.
            leaks = meanwhile.submit(self.shared_contents, prepared, layout, stop=stop)
            near = meanwhile.submit(self.near_duplicates, survey, prepared, layout, stop=stop)
            exported = meanwhile.submit(self.serving, survey, settings)
            num_written = self.write(survey, prepared, layout, settings)
            shared_contents, serving = leaks.result(), exported.result()
            near_duplicates = near.result()
        finally:
            # After an error, work that has begun ends soon, while the workspace is occupied, and no
            # more begins.
            stop.set()
            meanwhile.shutdown(cancel_futures=True)
        return self.publish(
            survey,
            settings,
            layout=layout,
            prepared=prepared,
            serving=serving,
            shared_contents=shared_contents,
            near_duplicates=near_duplicates,
            started=started,
            num_written=num_written,
        )
