"""The steps of a build, one method each: from the results of the steps before to its own.

``build`` runs them all in one process, ``single_step`` one of them, with what is in the workspace.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ..schemas.errors import DamagedWorkError
from ..schemas.manifest import FileEntry, ServingEntry
from ..schemas.naming import MANIFEST, OutputPaths, ShardName, Workspace, join
from ..schemas.progress import Progress
from ..schemas.recipe import Recipe
from ..schemas.runner import JobRunner
from ..schemas.visible import human_count
from ..transforms import storage
from ..transforms.analysis.graph import read_graph_info
from ..transforms.examples.shards import ShardSettings, missing_shards, shard_name
from ..transforms.runs.summary import Summary
from .analyze.step import ensure_graph
from .endings import END_ELSEWHERE_S, END_S, ending_within
from .inventory.fingerprint_details import fingerprint_details, list_inputs
from .inventory.resolve import with_image_facts
from .inventory.survey import Survey, take_survey
from .inventory.texts import explaining_strings
from .operate.repair import withdraw_damaged
from .plan.near_duplicates import NearDuplicates, find_near_duplicates
from .plan.ranges import empty_splits, refuse_empty_splits
from .plan.split_leakage import find_leaks
from .plan.step import Layout, lay_out, made_of
from .preflight import refuse_memory_of_one_process, refuse_output_among_data, runs_here
from .prepare.rejects import check_prepared, forget_refused, source_shown
from .prepare.run_files import keys_suffix
from .prepare.stages import label_of
from .prepare.step import Prepared, drop_damaged_runs, prepare_records
from .progress import watched
from .publish.serving import put_serving
from .publish.step import point_latest, publish
from .recipe.shipping import StagedRecipe
from .snapshot import Snapshot
from .steps import Part
from .watchdog import expected_to_advance
from .workspace import choose_workspace, occupied
from .write.strategy import WriteBy, write_job

if TYPE_CHECKING:
    from .analyze.process import AnalysisProcess

Serving = tuple[ServingEntry | None, Mapping[str, FileEntry]]
"""The manifest's entry of the model for serving, and the model's files."""


ATTEMPTS = 3
"""One more than needed, unless concurrent builds meet the same damage."""

T = TypeVar("T")


def shard_names(layout: Layout, settings: ShardSettings) -> Sequence[ShardName]:
    """The names of all planned shards' files, in order."""
    return [shard_name(shard, settings) for plan in layout.splits for shard in plan.shards]


def num_excluded(survey: Survey, prepared: Prepared) -> int:
    """How many records of the source the recipe excludes."""
    return survey.num_files_excluded + prepared.num_excluded


class BuildSteps:
    """The steps of one build."""

    def __init__(
        self,
        recipe: Recipe,
        out: str,
        *,
        runner: JobRunner,
        progress: Progress,
        limit: int | None = None,
        write_by: WriteBy = "auto",
        workspace: str | os.PathLike[str] | None = None,
    ) -> None:
        """See :func:`~snapshard.pipelines.build.build`; finds the workspace."""
        self._recipe = recipe
        with storage.first_look():
            self._out = choose_workspace(OutputPaths(storage.absolute(out), recipe.name), workspace)
        self._named = workspace is not None
        self._workspace = Workspace(self._out.workspace)
        self._runner = runner
        self._limit = limit
        self._progress = progress
        self._write_by = write_by
        self._written_by: WriteBy | None = None
        self._seconds: dict[str, float] = {}
        self._damage_met: list[str] = []

    def survey(self) -> Survey:
        """Takes the inventory, infers the features, computes the fingerprint."""
        with self._timed("inventory"):
            return take_survey(
                self._recipe,
                workspace=self._workspace,
                progress=self._progress,
                limit=self._limit,
            )

    def published(self, fingerprint: str, *, repair: bool = False) -> Snapshot | None:
        """The snapshot of this fingerprint if it is published; makes it the latest."""
        folder = self._out.snapshot(fingerprint)
        if repair:
            withdraw_damaged(folder, progress=self._progress)
        if not storage.exists(join(folder, MANIFEST)):
            return None
        snapshot = Snapshot.open(folder)
        if self._limit is None:
            counts = {name: one.num_examples for name, one in snapshot.manifest.splits.items()}
            refuse_empty_splits(self._recipe.splits, counts)
        point_latest(self._out, fingerprint)
        forget_refused(self._workspace)
        return dataclasses.replace(snapshot, cached=True)

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
                self._damage_met.append(str(error))
                if len(self._damage_met) == ATTEMPTS:
                    raise
                self._progress.warn("Work of an earlier build is damaged: it is made again.")
                drop_damaged_runs(survey, self._workspace)

    def prepare(self, survey: Survey, staged: StagedRecipe) -> Prepared:
        """Makes sure that all records are prepared.

        Raises:
            RejectsError: if there are more rejects than the recipe allows.
        """
        with self._timed("prepare"):
            prepared = prepare_records(
                survey,
                staged,
                self._workspace,
                runner=self._runner,
                progress=self._progress,
            )
        check_prepared(survey, prepared, self._workspace)
        self._report_excluded(survey, prepared)
        return prepared

    def _report_excluded(self, survey: Survey, prepared: Prepared) -> None:
        """Warns of ids to exclude that name no record: mistyped ones, or records that are gone."""
        if survey.excluded is None:
            return
        num_ids, num_records = len(survey.excluded.ids), num_excluded(survey, prepared)
        if num_records < num_ids:
            self._progress.warn(
                f"{num_ids - num_records:,} of {human_count(num_ids, 'ids')} in "
                f"{storage.redact(str(self._recipe.exclude))} (exclude=) name no record of the "
                "source. The records may be gone already, or their ids may have changed: rows that "
                "are inserted into a file change the ids of all rows that follow."
            )

    def analyze(
        self,
        survey: Survey,
        staged: StagedRecipe,
        prepared: Prepared,
        *,
        process: AnalysisProcess | None = None,
    ) -> str | None:
        """Makes sure that the transform graph is in the workspace; returns its folder."""
        if survey.graph is None and self._recipe.preprocessing_fn is None:
            return None
        self._progress.start("analyze", total=None, unit="graph")
        explaining = explaining_strings(
            survey.recipe.files, survey.inventory.selected, survey.opened, survey.inferred.features
        )
        with self._timed("analyze"), explaining:
            url, reused = ensure_graph(
                survey,
                staged,
                prepared,
                workspace=self._workspace,
                runner=self._runner,
                process=process,
            )
        self._progress.finish("analyze", reused=reused)
        return url

    def plan(self, survey: Survey, summary: Summary, graph: str | None) -> Layout:
        """Makes sure that splits and shards are planned."""
        self._progress.start("plan", total=None, unit="shards")
        with self._timed("plan"):
            layout, reused = lay_out(survey, summary, workspace=self._workspace, graph=graph)
        num_shards = sum(len(plan.shards) for plan in layout.splits)
        note = f"{num_shards:,} shard" + ("" if num_shards == 1 else "s")
        counts = {plan.name: len(plan.shards) for plan in layout.splits}
        if empty := empty_splits(survey.recipe.splits, counts):
            note += f", no record in {' and '.join(empty)}"
        self._progress.finish("plan", reused=reused, note=note)
        return layout

    def settings(
        self, survey: Survey, summary: Summary, layout: Layout, graph: str | None
    ) -> ShardSettings:
        """What the shards have in common."""
        info = read_graph_info(graph) if graph is not None else None
        prepared = survey.features.prepared if info is None else dict(info.outputs)
        final = with_image_facts(prepared, summary.image_facts())
        return ShardSettings(
            workspace=self._workspace,
            snapshot=self._out.snapshot(survey.fingerprint),
            fingerprint=survey.fingerprint,
            made_of=made_of(summary, graph),
            prepared=survey.features.prepared,
            final=final,
            label=label_of(survey.recipe, final),
            compression=layout.compression,
            numbered=survey.recipe.files.numbered,
            stratify_by=self._recipe.splits.stratify_by,
            graph=graph,
        )

    def write(
        self,
        survey: Survey,
        prepared: Prepared,
        layout: Layout,
        settings: ShardSettings,
        *,
        part: Part | None = None,
    ) -> int:
        """Makes sure that all shards, or a part of them, exist; returns how many it wrote."""
        names, write_by = shard_names(layout, settings), self._write_by
        if part is not None:
            names = part.of(names)
            # The shuffle of each part would read all records.
            write_by = "ranges" if write_by == "auto" else write_by
        outputs = [self._workspace.shard_info(survey.fingerprint, str(name)) for name in names]
        with self._timed("write"):
            missing = missing_shards(settings, names)
            if missing:
                with watched(self._progress, "write", outputs=outputs, unit="shards"):
                    job, self._written_by = write_job(
                        prepared.summary,
                        prepared.digest,
                        layout.splits,
                        settings=settings,
                        missing=set(missing),
                        runner=self._runner,
                        write_by=write_by,
                    )
                    waited_for = f"the job 'write' on {self._runner.name}"
                    with expected_to_advance(waited_for, self._runner):
                        self._runner.run(lambda pipeline: pipeline | job, job_name="write")
            else:
                self._progress.start("write", total=len(outputs), unit="shards")
        by_shuffle = "by the engine's shuffle" if self._written_by == "shuffle" else ""
        self._progress.finish("write", reused=not missing, note=by_shuffle)
        return len(missing)

    def shared_contents(
        self, prepared: Prepared, layout: Layout, *, stop: threading.Event | None = None
    ) -> Mapping[str, int]:
        """How many contents are in several splits.

        Raises:
            CancelledError: soon after ``stop`` is set.
        """
        return find_leaks(
            prepared.summary.entries,
            layout.splits,
            workspace=self._workspace,
            suffix=keys_suffix(self._recipe),
            stop=stop,
        )

    def near_duplicates(
        self,
        survey: Survey,
        prepared: Prepared,
        layout: Layout,
        *,
        stop: threading.Event | None = None,
    ) -> NearDuplicates:
        """What resembles something in another split.

        Raises:
            CancelledError: soon after ``stop`` is set.
        """
        features = survey.features.prepared
        return find_near_duplicates(
            prepared.summary.table,
            layout.splits,
            features=features,
            label=label_of(survey.recipe, features),
            stratify_by=self._recipe.splits.stratify_by,
            workspace=self._workspace,
            wanted=self._recipe.near_duplicates,
            stop=stop,
        )

    def serving(self, survey: Survey, settings: ShardSettings) -> Serving:
        """Puts the model for serving into the snapshot's folder."""
        return put_serving(survey, settings)

    def publish(
        self,
        survey: Survey,
        settings: ShardSettings,
        *,
        layout: Layout,
        prepared: Prepared,
        serving: Serving,
        shared_contents: Mapping[str, int],
        near_duplicates: NearDuplicates,
        started: float,
        num_written: int | None = None,
    ) -> Snapshot:
        """Completes the snapshot, whose shards exist, and makes it the latest.

        Args:
            survey: The survey.
            settings: What the shards have in common.
            layout: The splits and shards.
            prepared: What they were made from.
            serving: The model for serving, whose files are in place.
            shared_contents: How many contents are in several splits.
            near_duplicates: What resembles something in another split.
            started: When the build began, in seconds since 1970.
            num_written: How many shards this process wrote; None if other processes ran the steps
                before, whose work is not reported here.

        Raises:
            StorageError: if a file that the recipe depends on changed since the survey.
        """
        blocks: dict[str, object] = {"total": prepared.num_units}
        shards: dict[str, object] = {"total": sum(len(plan.shards) for plan in layout.splits)}
        if num_written is not None:
            blocks |= {"prepared": prepared.num_made}
            shards |= {"by": self._written_by, "written": num_written}
        facts: dict[str, object] = {
            "blocks": blocks,
            "damage_met": self._damage_met,
            "fingerprint_details": fingerprint_details(survey),
            "fingerprint_parts": survey.parts.to_json(),
            "host": platform.node(),
            # Not in the manifest: what is skipped is no input, and may vary under one fingerprint.
            "input": {
                "bytes": survey.inventory.num_bytes,
                "files": len(survey.inventory.files),
                "skipped": dict(survey.inventory.num_skipped),
                "source": source_shown(survey),
            },
            "near_duplicates": near_duplicates.to_json(),
            "runner": self._runner.name,
            "seconds": {name: round(value, 3) for name, value in self._seconds.items()},
            "shards": shards,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "work": {
                "blocks": list_inputs(survey, self._workspace),
                "graph": settings.graph,
                "runs": [*(entry.run.run_id for entry in prepared.entries), *prepared.replaced],
                "summary": list(prepared.summaries),
            },
        }
        if survey.excluded is not None:
            num_ids, num_records = len(survey.excluded.ids), num_excluded(survey, prepared)
            facts["excluded"] = {"ids": num_ids, "records": num_records}
        with expected_to_advance("step 'publish'"):
            survey.held.check()
            snapshot = publish(
                survey,
                settings,
                plans=layout.splits,
                prepared=prepared,
                serving=serving,
                shared_contents=shared_contents,
                build_facts=facts,
            )
            point_latest(self._out, survey.fingerprint)
            forget_refused(self._workspace)
        return snapshot

    @contextmanager
    def _occupying(self, *, reads_source: bool = True) -> Iterator[None]:
        """Keeps garbage collection out of its folders; refuses folders that cannot serve."""
        self._refuse_places(reads_source=reads_source)
        with occupied(self._out, named=self._named) as out:
            if out != self._out:
                # Another build has named another place meanwhile.
                self._out, self._workspace = out, Workspace(out.workspace)
                self._refuse_places(reads_source=reads_source)
            storage.remove_abandoned_scratch(self._workspace.root)
            with ending_within(END_S if runs_here(self._runner) else END_ELSEWHERE_S):
                yield

    def _refuse_places(self, *, reads_source: bool) -> None:
        refuse_memory_of_one_process(self._recipe, self._out, self._runner)
        if reads_source:
            refuse_output_among_data(self._recipe, self._out)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started = time.perf_counter()
        with expected_to_advance(f"step {step!r}"):
            yield
        self._seconds[step] = time.perf_counter() - started
