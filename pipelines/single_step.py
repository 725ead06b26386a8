"""One step of a build, maybe in a process or on a machine of its own, for schedulers.

The inventory step puts an inventory into the workspace and makes the reference name it. Each later
step computes the keys of its inputs from that inventory and the recipe, looks them up in the
workspace, and makes its own output. If an input is missing, it names the step that makes it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ..schemas.blocks import ShardInfo
from ..schemas.errors import DamagedSnapshotError, DamagedWorkError, StepOrderError
from ..schemas.fingerprint import differences
from ..schemas.naming import MANIFEST, ShardName, join
from ..schemas.progress import Silent
from ..transforms import storage
from ..transforms.analysis.graph import checked_graph
from ..transforms.examples.shards import ShardSettings, missing_shards, read_shard_infos
from ..transforms.sources.combined import open_files
from .analyze.step import graph_url
from .build_steps import BuildSteps, shard_names
from .inventory.artifact import (
    Reference,
    StoredInventory,
    changed_files,
    put_inventory,
    put_reference,
    read_inventory,
    read_reference,
    reference_id,
)
from .inventory.survey import Survey, take_survey
from .plan.step import Layout, find_layout, made_of
from .prepare.rejects import check_prepared
from .prepare.step import Prepared, drop_damaged_runs, find_prepared, prepare_part
from .recipe.shipping import stage
from .steps import STEPS, Part, StepReport

FIRST = STEPS[0]


class SingleStep(BuildSteps):
    """A build that runs one of its steps."""

    @functools.cached_property
    def _reference(self) -> str:
        return reference_id({"limit": self._limit})

    def run(self, step: str, *, part: Part | None = None) -> StepReport:
        """Makes sure that a step, or a part of it, is done.

        Raises:
            StepOrderError: if a step before it has to run first.
        """
        self._begun = time.perf_counter()
        with self._occupying(reads_source=step in (FIRST, "prepare")):
            if step == FIRST:
                return self._take_inventory()
            reference, survey = self._stored_survey(step)
            if self._is_published(survey):
                if step == STEPS[-1]:
                    self.published(survey.fingerprint)
                return self._report(step, survey, {}, part=part, reused=True)
            if step == "prepare":
                return self._prepare(survey, part)
            try:
                return self._run_later(step, survey, part, started=reference.started)
            except DamagedWorkError as error:
                drop_damaged_runs(survey, self._workspace)
                raise DamagedWorkError(
                    f"{error}\nRun the steps again from prepare on: damaged work was dropped, and "
                    "is made again."
                ) from None

    def _run_later(
        self, step: str, survey: Survey, part: Part | None, *, started: float
    ) -> StepReport:
        """Looks up the inputs of a step in the order in which they are made."""
        prepared = find_prepared(survey, self._workspace)
        if prepared is None:
            self._refuse(step, "prepare")
        check_prepared(survey, prepared, self._workspace)
        if step == "analyze":
            return self._analyze(survey, prepared)
        graph = graph_url(survey, prepared, self._workspace)
        if graph is not None and checked_graph(graph) is None:
            self._refuse(step, "analyze")
        contents = made_of(prepared.summary, graph)
        layout = find_layout(self._workspace, survey.fingerprint, contents)
        if step == "plan":
            return self._plan(survey, prepared, graph, reused=layout is not None)
        if layout is None:
            self._refuse(step, "plan")
        settings = self.settings(survey, prepared.summary, layout, graph)
        if step == "write":
            return self._write(survey, prepared, layout, settings, part)
        names = shard_names(layout, settings)
        infos = [info for info in read_shard_infos(settings, names) if info is not None]
        if len(infos) < len(names):
            self._refuse(step, "write")
        if step == "verify":
            return self._verify(survey, settings, names, infos)
        return self._publish(survey, prepared, layout, settings, started=started)

    def _take_inventory(self) -> StepReport:
        survey = self.survey()
        sides = [survey.opened.sides[url] for url in survey.recipe.files.side_urls]
        stored = StoredInventory(
            inventory=survey.inventory,
            inferred=survey.inferred,
            sides=sides,
            extracted=survey.extracted,
            parts=survey.parts.to_json(),
            fingerprint=survey.fingerprint,
        )
        name = put_inventory(stored, self._workspace)
        before = read_reference(self._reference, self._workspace)
        reused = before is not None and before.inventory == name
        if not reused:
            current = Reference(inventory=name, fingerprint=survey.fingerprint, started=time.time())
            put_reference(self._reference, current, self._workspace)
        facts = {
            "num_files": len(survey.inventory.files),
            "num_blocks": len(survey.inventory.blocks),
            "input_bytes": survey.inventory.num_bytes,
        }
        return self._report(FIRST, survey, facts, reused=reused)

    def _stored_survey(self, step: str) -> tuple[Reference, Survey]:
        """The reference, and the survey of the inventory that it names.

        Raises:
            StepOrderError: if there is no inventory, or the recipe has changed since.
        """
        reference = read_reference(self._reference, self._workspace)
        stored = None
        if reference is not None:
            stored = read_inventory(reference.inventory, self._workspace)
        if reference is None or stored is None:
            self._refuse(step, FIRST)
        survey = take_survey(
            self._recipe,
            workspace=self._workspace,
            progress=Silent(),
            limit=self._limit,
            stored=stored,
        )
        if survey.fingerprint != stored.fingerprint:
            changed = ", ".join(differences(stored.parts, survey.parts.to_json()))
            raise StepOrderError(
                f"{step} does not fit the inventory: {changed} of the fingerprint changed since. "
                f"Run `snapshard step {FIRST}` again, and the steps after it: they reuse what is "
                "still valid."
            )
        return reference, survey

    def _prepare(self, survey: Survey, part: Part | None) -> StepReport:
        prepared = find_prepared(survey, self._workspace)
        if prepared is None:
            self._refuse_changed(survey)
            staged = stage(survey.recipe, self._workspace)
            if part is not None:
                blocks = part.of(survey.inventory.blocks)
                num_made = prepare_part(
                    survey,
                    staged,
                    self._workspace,
                    blocks=blocks,
                    runner=self._runner,
                    progress=self._progress,
                )
                facts = {"num_blocks": len(blocks), "num_made": num_made}
                return self._report("prepare", survey, facts, part=part, reused=not num_made)
            prepared = self.dropping_damage(survey, lambda: self.prepare(survey, staged))
        else:
            check_prepared(survey, prepared, self._workspace)
        facts = {
            "num_blocks": prepared.num_units,
            "num_made": prepared.num_made,
            "num_records": prepared.summary.num_records,
            "num_rejects": prepared.num_rejects,
        }
        return self._report("prepare", survey, facts, part=part, reused=not prepared.num_made)

    def _analyze(self, survey: Survey, prepared: Prepared) -> StepReport:
        url = graph_url(survey, prepared, self._workspace)
        reused = url is None or checked_graph(url) is not None
        if not reused:
            self.analyze(survey, stage(survey.recipe, self._workspace), prepared)
        return self._report("analyze", survey, {"num_graphs": int(url is not None)}, reused=reused)

    def _plan(
        self, survey: Survey, prepared: Prepared, graph: str | None, *, reused: bool
    ) -> StepReport:
        layout = self.plan(survey, prepared.summary, graph)
        facts = {
            "num_shards": sum(len(plan.shards) for plan in layout.splits),
            "num_examples": sum(s.num_examples for plan in layout.splits for s in plan.shards),
        }
        return self._report("plan", survey, facts, reused=reused)

    def _write(
        self,
        survey: Survey,
        prepared: Prepared,
        layout: Layout,
        settings: ShardSettings,
        part: Part | None,
    ) -> StepReport:
        names = shard_names(layout, settings)
        if None not in read_shard_infos(settings, names):
            num_written = 0
        else:
            num_written = self.write(survey, prepared, layout, settings, part=part)
        num_shards = len(names if part is None else part.of(names))
        facts = {"num_shards": num_shards, "num_written": num_written}
        return self._report("write", survey, facts, part=part, reused=not num_written)

    def _verify(
        self,
        survey: Survey,
        settings: ShardSettings,
        names: Sequence[ShardName],
        infos: Sequence[ShardInfo],
    ) -> StepReport:
        self._progress.start("verify", total=len(names), unit="shards")
        damaged = missing_shards(settings, names)
        if damaged:
            raise DamagedSnapshotError(
                f"{len(damaged):,} of {len(names):,} shards in {settings.snapshot} differ from "
                f"what was written: {damaged[0]}{' …' if len(damaged) > 1 else ''}. Nothing was "
                "published. Run `snapshard step write` again, which writes them again, and then "
                "verify."
            )
        facts = {
            "num_shards": len(names),
            "num_examples": sum(info.num_examples for info in infos),
            "shard_bytes": sum(info.num_bytes for info in infos),
        }
        # Each time, every byte is read.
        self._progress.finish("verify", reused=False)
        return self._report("verify", survey, facts, reused=False)

    def _publish(
        self,
        survey: Survey,
        prepared: Prepared,
        layout: Layout,
        settings: ShardSettings,
        *,
        started: float,
    ) -> StepReport:
        snapshot = self.publish(
            survey,
            settings,
            layout=layout,
            prepared=prepared,
            serving=self.serving(survey, settings),
            shared_contents=self.shared_contents(prepared, layout),
            near_duplicates=self.near_duplicates(survey, prepared, layout),
            started=started,
        )
        facts = {
            "num_examples": sum(s.num_examples for s in snapshot.manifest.splits.values()),
            "num_rejects": snapshot.manifest.num_rejects,
        }
        return self._report("publish", survey, facts, reused=False)

    def _is_published(self, survey: Survey) -> bool:
        return storage.exists(join(self._out.snapshot(survey.fingerprint), MANIFEST))

    def _refuse_changed(self, survey: Survey) -> None:
        """Refuses to prepare files that are no longer those of the inventory."""
        recipe = survey.recipe
        opened = open_files(recipe.files, recipe.folder, recipe.limits)
        if changed := changed_files(survey.inventory, opened):
            others = " and others" if changed[1:] else ""
            raise StepOrderError(
                f"{changed[0]}{others} of {opened.shown} changed since the inventory. Run "
                f"`snapshard step {FIRST}` again, and the steps after it."
            )

    def _refuse(self, step: str, needed: str) -> NoReturn:
        raise StepOrderError(
            f"{step} needs {needed}, which is not done. Run `snapshard step {needed}` first, with "
            "the same recipe, --out and options."
        )

    def _report(
        self,
        step: str,
        survey: Survey,
        facts: Mapping[str, int],
        *,
        part: Part | None = None,
        reused: bool,
    ) -> StepReport:
        return StepReport(
            step=step,
            part=part,
            fingerprint=survey.fingerprint,
            path=self._out.snapshot(survey.fingerprint),
            reused=reused,
            published=self._is_published(survey),
            seconds=time.perf_counter() - self._begun,
            facts=facts,
        )
