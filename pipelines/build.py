"""Build: the steps in their order, each with durable output, so a build goes on where it was.

inventory → prepare → analyze → plan → write → publish. A step that finds its output done does
nothing. This module alone picks a runner.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..runners.choose import make_runner as make_runner
from ..schemas.errors import RecipeError
from ..schemas.fingerprint import digest
from ..schemas.naming import MANIFEST, OutputPaths, Workspace, join
from ..schemas.progress import Progress, Silent
from ..schemas.recipe import Recipe
from ..schemas.runner import JobRunner, RunnerConfig
from ..transforms import storage
from ..transforms.graph import checked_graph, read_graph_info
from ..transforms.shards import ShardSettings, missing_shards, shard_name
from ..transforms.storage_failures import telling_os_errors
from ..transforms.summary import Summary
from .damage import redoing_damage
from .engines import runner_config
from .fingerprint_details import fingerprint_details, list_inputs
from .layout import Layout, lay_out, plan_with, train_split
from .leaks import find_leaks
from .occupancy import building
from .preparing import Prepared, prepare_records
from .publish import point_latest, publish
from .readers import READERS, check_readers
from .refusals import refuse_memory_of_one_process, refuse_output_among_data
from .rejects import check_prepared, forget_refused, told_source
from .repair import withdraw_damaged
from .resolve import with_image_facts
from .retries import (
    amended_survey,
    latest_amended,
    read_amended,
    record_amended,
    record_build,
)
from .run_files import keys_suffix
from .serving import put_serving
from .snapshot import Snapshot
from .stages import label_of
from .staging import StagedRecipe, refuse_while_loading, stage
from .survey import Survey, survey
from .train_records import train_records
from .watch import watched

if TYPE_CHECKING:
    from .analyze import AnalysisProcess


def build(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    limit: int | None = None,
    readers: Sequence[str] = READERS[:1],
    runner: str | RunnerConfig = "direct",
    retry_rejects: bool = False,
    repair: bool = False,
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
        readers: What the snapshot is to be read by: "tf" (``reader.py``, always), and "numpy"
            (``reader_numpy.py``, for PyTorch, Grain and JAX) where TensorFlow is not wanted.
        runner: Where the jobs run, which changes no byte: "direct" (Beam's embedded engine),
            "prism", "flink", an engine with its settings, as ``ss.Flink(master="host:8081")``,
            or the path of a TOML file that holds them.
        retry_rejects: Prepares blocks that hold rejects again, and reuses all else: for causes
            that the fingerprint does not see, such as a library mended in place. What is mended
            in the source itself is prepared again anyway. Where a block comes out otherwise,
            another snapshot is published beside the one that there may be.
        repair: Checks a snapshot that is built already, and builds again what is damaged.
        progress: Told how far each step is.

    Returns:
        The published snapshot; ``cached`` where it had been published before.

    Raises:
        RecipeError: if the recipe cannot work.
        DataError: if the data is refused; nothing is published.
        StorageError: if a file or store fails; building again goes on.
        RunnerError: if a worker dies; building again goes on.
    """
    refuse_while_loading("ss.build")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise RecipeError(f"ss.build: limit={limit!r}, expected a number of records, 1 or more.")
    readers = check_readers(readers)
    config = runner_config(runner, workers=workers) if isinstance(runner, str) else runner
    if not isinstance(runner, str) and workers is not None:
        config = dataclasses.replace(config, workers=workers)
    with telling_os_errors("use", os.fspath(out)), make_runner(config) as engine:
        engine.check()
        return Build(
            recipe,
            os.fspath(out),
            runner=engine,
            progress=progress or Silent(),
            limit=limit,
            readers=readers,
            repair=repair,
            retry_rejects=retry_rejects,
        ).run()


class Build:
    """One build under way."""

    def __init__(
        self,
        recipe: Recipe,
        out: str,
        *,
        runner: JobRunner,
        progress: Progress,
        limit: int | None = None,
        readers: Sequence[str] = READERS[:1],
        repair: bool = False,
        retry_rejects: bool = False,
    ) -> None:
        """Takes what to build, where to, on what; does nothing yet."""
        self._recipe = recipe
        self._out = OutputPaths(storage.absolute(out), recipe.name)
        self._workspace = Workspace(self._out.workspace)
        self._runner = runner
        self._limit = limit
        self._readers = readers
        self._repair = repair
        self._retry_rejects = retry_rejects
        self._progress = progress
        self._seconds: dict[str, float] = {}

    def run(self) -> Snapshot:
        """Runs what is not done yet."""
        refuse_memory_of_one_process(self._recipe, self._out, self._runner)
        refuse_output_among_data(self._recipe, self._out)
        with building(self._workspace):
            return self._run()

    def _run(self) -> Snapshot:
        started = time.time()
        with contextlib.ExitStack() as stack:
            # What has never been built will need it: it need not wait for the inventory.
            process = None if storage.exists(self._out.latest) else self._start_analysis(stack)
            with self._timed("inventory"):
                found = survey(
                    self._recipe,
                    workspace=self._workspace,
                    progress=self._progress,
                    limit=self._limit,
                    readers=self._readers,
                )
            if not self._retry_rejects:
                latest = latest_amended(self._workspace, found.fingerprint)
                published = self._published(latest)
                if published is not None:
                    return published
            if process is None and found.inventory.num_hashed:
                process = self._start_analysis(stack)
            return redoing_damage(
                # A process for the analysis serves once.
                lambda met: self._build(found, None if met else process, met, started=started)
            )

    def _published(self, fingerprint: str) -> Snapshot | None:
        """The snapshot of this fingerprint if it is published; it is the latest then."""
        folder = self._out.snapshot(fingerprint)
        if self._repair:
            withdraw_damaged(folder, progress=self._progress)
        if not storage.exists(join(folder, MANIFEST)):
            return None
        point_latest(self._out, fingerprint)
        forget_refused(self._workspace)
        return dataclasses.replace(Snapshot.open(folder), cached=True)

    def _start_analysis(self, stack: contextlib.ExitStack) -> AnalysisProcess | None:
        """Lets the process of the analysis load its libraries ahead."""
        if self._recipe.preprocessing_fn is None:
            return None
        from .analyze import start_process

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
            from .analyze import AnalysisTask

            process.begin(AnalysisTask(staged=staged, prepared=found.features.prepared))
        amended = read_amended(self._workspace)
        with self._timed("prepare"):
            prepared = prepare_records(
                found,
                staged,
                self._workspace,
                runner=self._runner,
                progress=self._progress,
                thorough=bool(met),
                amended=amended,
                retry=self._retry_rejects,
            )
        check_prepared(found, prepared, self._workspace)
        record_amended(self._workspace, prepared.amended, before=amended)
        plain, found = found.fingerprint, amended_survey(found, prepared.outcomes)
        record_build(self._workspace, plain, found.fingerprint)
        if (self._retry_rejects or found.fingerprint != plain) and (
            published := self._published(found.fingerprint)
        ) is not None:
            return published
        with self._timed("analyze"):
            graph = self._analyze(found, staged, prepared, process=process)
        with self._timed("plan"):
            layout = self._plan(found, prepared.summary, graph)
        settings = self._settings(found, prepared.summary, layout, graph)
        # What needs no shards is done meanwhile.
        with self._timed("write"), ThreadPoolExecutor(1) as meanwhile:
            leaks = meanwhile.submit(
                find_leaks,
                prepared.summary.entries,
                layout.splits,
                workspace=self._workspace,
                suffix=keys_suffix(self._recipe.splits),
            )
            serving = meanwhile.submit(put_serving, found, settings)
            num_written = self._write(found, prepared.digest, layout, settings)
        facts = {
            "blocks": {
                "total": prepared.num_units,
                "prepared": prepared.num_made + prepared.num_retried,
            },
            "damage_met": list(met),
            "fingerprint_details": fingerprint_details(found),
            "fingerprint_parts": found.parts.to_json(),
            "host": platform.node(),
            # Not in the manifest: what is skipped is no input, and may vary under one fingerprint.
            "input": {
                "bytes": found.inventory.num_bytes,
                "files": len(found.inventory.files),
                "skipped": dict(found.inventory.num_skipped),
                "source": told_source(found),
            },
            "retried": {"blocks": prepared.num_retried, "amended": prepared.num_amended},
            "runner": self._runner.name,
            "seconds": {name: round(value, 3) for name, value in self._seconds.items()},
            "shards": {
                "total": sum(len(plan.shards) for plan in layout.splits),
                "written": num_written,
            },
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "work": {
                "blocks": list_inputs(found, self._workspace),
                "graph": graph,
                "runs": [entry.run.run_id for entry in prepared.entries],
                "summary": list(prepared.summaries),
            },
        }
        snapshot = publish(
            found,
            settings,
            plans=layout.splits,
            prepared=prepared,
            serving=serving.result(),
            shared_contents=leaks.result(),
            build_facts=facts,
        )
        point_latest(self._out, found.fingerprint)
        forget_refused(self._workspace)
        return snapshot

    def _analyze(
        self,
        found: Survey,
        staged: StagedRecipe,
        prepared: Prepared,
        *,
        process: AnalysisProcess | None,
    ) -> str | None:
        """Makes sure that the transform graph is in the workspace; gives its folder."""
        if self._recipe.preprocessing_fn is None:
            return None
        from .analyze import AnalysisSpec, analyze

        self._progress.start("analyze", total=None, unit="graph")
        plans = plan_with(
            self._recipe,
            prepared.summary,
            workspace=self._workspace,
            size_ratio=1.0,
            limit=found.limit,
        )
        name = prepared.digest
        spec = AnalysisSpec(
            staged=staged,
            prepared=found.features.prepared,
            read_batches=train_records(
                train_split(plans),
                workspace=self._workspace,
                summary_digest=name,
                prepared=found.features.prepared,
                stratify_by=self._recipe.splits.stratify_by,
            ),
        )
        parts = found.parts
        url = self._workspace.graph(
            digest([name, parts.analysis, parts.preprocessing, parts.splits, dict(parts.versions)])
        )
        reused = checked_graph(url) is not None
        with storage.scratch_folder(self._workspace.root) as scratch:
            analyze(spec, url, scratch=scratch, process=process)
        self._progress.finish("analyze", reused=reused)
        return url

    def _plan(self, found: Survey, summary: Summary, graph: str | None) -> Layout:
        self._progress.start("plan", total=None, unit="shards")
        layout, reused = lay_out(found, summary, workspace=self._workspace, graph=graph)
        num_shards = sum(len(plan.shards) for plan in layout.splits)
        self._progress.finish("plan", reused=reused, note=f"{num_shards:,} shards")
        return layout

    def _settings(
        self, found: Survey, summary: Summary, layout: Layout, graph: str | None
    ) -> ShardSettings:
        info = read_graph_info(graph) if graph is not None else None
        prepared = found.features.prepared if info is None else dict(info.outputs)
        final = with_image_facts(prepared, summary.image_facts())
        return ShardSettings(
            workspace=self._workspace,
            snapshot=self._out.snapshot(found.fingerprint),
            fingerprint=found.fingerprint,
            prepared=found.features.prepared,
            final=final,
            label=label_of(found.recipe, final),
            compression=layout.compression,
            numbered=found.recipe.files.numbered,
            stratify_by=self._recipe.splits.stratify_by,
            graph=graph,
        )

    def _write(
        self, found: Survey, summary_digest: str, layout: Layout, settings: ShardSettings
    ) -> int:
        """Makes sure that all shards are in place; gives how many were written."""
        names = [shard_name(shard, settings) for plan in layout.splits for shard in plan.shards]
        outputs = [self._workspace.shard_info(found.fingerprint, str(name)) for name in names]
        missing = missing_shards(settings, names)
        if missing:
            with watched(self._progress, "write", outputs=outputs, unit="shards"):
                from .write import WriteShards

                job = WriteShards(
                    settings,
                    layout.splits,
                    summary_digest,
                    self._runner.threads_per_worker,
                )
                self._runner.run(lambda pipeline: pipeline | job, job_name="write")
        else:
            self._progress.start("write", total=len(outputs), unit="shards")
        self._progress.finish("write", reused=not missing)
        return len(missing)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[step] = time.perf_counter() - started
