"""Build: the steps in their order, each with durable output, so a build goes on where it was.

inventory → prepare → analyze → plan → write → publish. A step that finds its output done does
nothing. This module alone picks a runner.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Sequence
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
from .build_steps import BuildNotes, BuildSteps
from .chain import Chain
from .engines import runner_config
from .inventory.survey import Survey
from .preflight import check_place
from .recipe.shipping import refuse_optimized_python, refuse_while_loading, stage
from .recovery import redoing_damage
from .snapshot import Snapshot
from .step_report import StepReport
from .steps import IN_PARTS, RUN_JOBS, Part, check_step
from .watchdog import stall_timeout_of, watched_build
from .write.strategy import WriteBy, check_way

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
    """Builds the snapshot of a recipe, or finds it built.

    Args:
        recipe: What to build.
        out: The output root, a folder or URL: the snapshot lies in
            ``<out>/<recipe.name>/<fingerprint>``.
        workers: Worker processes of the embedded engine, one by default; of another engine,
            how many elements it works on at once.
        limit: Takes so many records, those with the lowest keys: a uniform sample, the same each
            time, into a snapshot of its own. Of images and other files that are a record each
            no others are read; of tables all rows are prepared, once. Filtered and rejected
            files count, rows do not. The splits divide the sample in their fractions.
        runner: Where the jobs run, which changes no byte: "direct" (Beam's embedded engine),
            "prism", "flink", an engine with its settings, as ``ss.Flink(master="host:8081")``,
            or the path of a TOML file that holds them.
        repair: Checks a snapshot that is built already, and builds again what is damaged.
        write_by: How records come to their shard, which changes no byte: "ranges" (each shard
            reads its slice of every run), "shuffle" (the engine's own), or "auto": the shuffle
            where slices are too small to be worth a store's request each, about from 40 GB on.
        workspace: Where work of unfinished and past builds is kept, for those to come: a folder
            or URL that every worker reaches. By default where earlier builds of this output have
            it; at first in ``<out>/<recipe.name>/.work``, for which ``out`` itself stands.
        progress: Told how far each step is.

    Returns:
        The published snapshot; ``cached`` where it had been published before.

    Raises:
        RecipeError: if the recipe cannot work.
        DataError: if the data is refused; nothing is published.
        StorageError: if a file or store fails; building again goes on.
        RunnerError: if a worker dies, or nothing advances for the runner's ``stall_timeout``;
            building again goes on. A thread that cannot be ended stays behind then, or, where
            the build cannot end otherwise, this process ends.
    """
    _check_call("ss.build", recipe, out, limit=limit, runner=runner, workspace=workspace)
    write_by = check_way(write_by)
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
    """Runs one step of a build, for schedulers: what the steps before it made is in the workspace.

    Args:
        recipe: What to build.
        out: The output root, as :func:`build` has it.
        step: ``inventory``, ``prepare``, ``analyze``, ``plan``, ``write``, ``verify`` or
            ``publish``; each needs those before it, with the same recipe, ``out`` and
            ``limit``. One that is done does nothing.
        part: Of ``prepare`` and ``write`` a part alone: "1/8" to "8/8", in any order or at once.
            Then ``prepare`` itself still has to run, which finds it done; after all parts of
            ``write`` nothing has.
        workers: As :func:`build` has it.
        limit: As :func:`build` has it.
        runner: Where the jobs of this step run; another one for each step changes no byte.
        write_by: As :func:`build` has it.
        workspace: As :func:`build` has it; the first step leaves it to the others.
        progress: Told how far the step is.

    Returns:
        What became of it.

    Raises:
        StepOrderError: if a step before it has to run first, since it is not done, or what it did
            was of other inputs.
        DamagedSnapshotError: if ``verify`` finds a shard damaged; ``write`` makes it anew.
        SnapshardError: as :func:`build`.
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
        return Chain(
            recipe,
            os.fspath(out),
            runner=engine,
            progress=progress,
            limit=limit,
            write_by=check_way(write_by),
            workspace=workspace,
        ).run(step, part=wanted)


def _check_call(
    name: str, recipe: object, out: object, *, limit: object, runner: object, workspace: object
) -> None:
    """Refuses arguments that cannot be, where this Python cannot build at all included."""
    refuse_while_loading(name)
    refuse_optimized_python()
    if isinstance(recipe, str | os.PathLike):
        shown = os.fspath(recipe)
        if shown.endswith(".py"):
            module = os.path.basename(shown).removesuffix(".py")
            raise RecipeError(
                f"{name}: recipe={shown!r} is a path, expected an ss.Recipe. A script beside the "
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
    """One build under way: all steps in this process."""

    def run(self, *, repair: bool = False) -> Snapshot:
        """Runs what is not done yet."""
        with self._occupying():
            return self._run(repair=repair)

    def _run(self, *, repair: bool) -> Snapshot:
        started = time.time()
        with contextlib.ExitStack() as stack:
            # What has never been built will need it: it need not wait for the inventory.
            process = None if storage.exists(self._out.latest) else self._start_analysis(stack)
            found = self.survey()
            published = self.published(found.fingerprint, repair=repair)
            if published is not None:
                return published
            if process is None and found.inventory.num_hashed:
                process = self._start_analysis(stack)

            def build_all(met: Sequence[str]) -> Snapshot:
                # A process for the analysis serves once.
                ready = None if met else process
                return self._build(found, ready, met, started=started)

            return redoing_damage(build_all)

    def _start_analysis(self, stack: contextlib.ExitStack) -> AnalysisProcess | None:
        """Lets the process of the analysis load its libraries ahead."""
        recipe = self._recipe
        if recipe.preprocessing_fn is None or recipe.analyze_on_runner or recipe.transform_from:
            return None
        from .analyze.process import start_process

        scratch = stack.enter_context(storage.scratch_folder(self._workspace.root))
        return stack.enter_context(start_process(scratch))

    def _build(
        self,
        found: Survey,
        process: AnalysisProcess | None,
        met: Sequence[str],
        *,
        started: float,
    ) -> Snapshot:
        staged = stage(found.recipe, self._workspace)
        if process is not None:
            from .analyze.process import AnalysisTask

            process.begin(
                AnalysisTask(
                    staged=staged,
                    prepared=found.features.prepared,
                    dependencies=found.dependencies,
                )
            )
        prepared = self.prepare(found, staged, thorough=bool(met))
        graph = self.analyze(found, staged, prepared, process=process)
        layout = self.plan(found, prepared.summary, graph)
        settings = self.settings(found, prepared.summary, layout, graph)
        stop, meanwhile = threading.Event(), ThreadPoolExecutor(1)
        try:
            # What needs no shards is done meanwhile.
            leaks = meanwhile.submit(self.shared_contents, prepared, layout, stop=stop)
            exported = meanwhile.submit(self.serving, found, settings)
            num_written = self.write(found, prepared, layout, settings)
            shared_contents, serving = leaks.result(), exported.result()
        finally:
            # After an error, what has begun ends soon, while the workspace is occupied, and
            # nothing more begins.
            stop.set()
            meanwhile.shutdown(cancel_futures=True)
        return self.publish(
            found,
            settings,
            layout=layout,
            prepared=prepared,
            serving=serving,
            shared_contents=shared_contents,
            notes=BuildNotes(
                started=started,
                seconds=self._seconds,
                num_written=num_written,
                written_by=self._written_by,
                runner=self._runner.name,
                damage_met=met,
            ),
        )
