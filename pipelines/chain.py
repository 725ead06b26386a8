"""Chain: the steps of a build run apart, each maybe in a process or on a machine of its own.

What one step leaves in the workspace, the next finds there: the inventory pins what is built, and
each step notes what it did. A step does not do an earlier one's work: it names the one that has to
run first. What was noted for another fingerprint counts for nothing, so no chain mixes two inputs.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ..schemas.errors import DamagedSnapshotError, DamagedWorkError, StepOrderError
from ..schemas.fingerprint import differences
from ..schemas.naming import MANIFEST, join
from ..schemas.progress import Silent
from ..transforms import storage
from ..transforms.analysis.graph import checked_graph
from ..transforms.examples.shards import ShardSettings, missing_shards, read_shard_info
from .build_steps import BuildNotes, BuildSteps, shard_names
from .chain_notes import DAMAGE, FIRST, ChainNotes, chain_id
from .inventory.pinned import changed_files, put_pinned, read_pinned
from .inventory.survey import Survey, survey
from .plan.step import Layout, find_layout, made_of
from .prepare.step import Prepared, find_prepared, prepare_part
from .recipe.shipping import stage
from .recovery import redoing_damage
from .step_report import StepReport
from .steps import STEPS, Part, steps_before, steps_from


class Chain(BuildSteps):
    """A build whose steps run one by one."""

    @functools.cached_property
    def _notes(self) -> ChainNotes:
        options = {"limit": self._limit}
        return ChainNotes(self._workspace, chain_id(options))

    def run(self, step: str, *, part: Part | None = None) -> StepReport:
        """Makes sure that a step, or a part of it, is done.

        Raises:
            StepOrderError: if a step before it has to run first.
        """
        self._begun = time.perf_counter()
        with self._occupying():
            if step == FIRST:
                return self._do_inventory()
            found = self._pinned(step)
            if self._is_published(found):
                if step == STEPS[-1]:
                    self.published(found.fingerprint)
                return self._report(step, found, {}, part=part, reused=True)
            for before in steps_before(step):
                if self._notes.find(before) is None:
                    self._refuse(step, before)
            try:
                return self._later(step, found, part)
            except DamagedWorkError as error:
                self._forget_damaged(error)

    def _later(self, step: str, found: Survey, part: Part | None) -> StepReport:
        if step == "prepare":
            return self._do_prepare(found, part)
        prepared = self._prepared(step)
        if step == "analyze":
            return self._do_analyze(found, prepared)
        graph = self._graph(step)
        if step == "plan":
            return self._do_plan(found, prepared, graph)
        contents = made_of(prepared.summary, graph)
        layout = find_layout(self._workspace, found.fingerprint, contents)
        if layout is None:
            self._refuse(step, "plan")
        settings = self.settings(found, prepared.summary, layout, graph)
        if step == "write":
            return self._do_write(found, prepared, layout, settings, part)
        if step == "verify":
            return self._do_verify(found, layout, settings)
        return self._do_publish(found, prepared, layout, settings)

    def _do_inventory(self) -> StepReport:
        found = self.survey()
        reused = found.fingerprint == self._notes.fingerprint()
        told = self._notes.find(FIRST) if reused else None
        before = read_pinned(self._notes.pinned, self._workspace) if reused else None
        if before is None or before.inventory.selected != found.inventory.selected:
            put_pinned(
                self._notes.pinned,
                self._workspace,
                inventory=found.inventory,
                extracted=found.extracted,
            )
        if told is None:
            told = {"parts": found.parts.to_json(), "started": time.time(), **self._seconds_of()}
        self._notes.begin(found.fingerprint, told)
        facts = {
            "num_files": len(found.inventory.files),
            "num_blocks": len(found.inventory.blocks),
            "input_bytes": found.inventory.num_bytes,
        }
        return self._report(FIRST, found, facts, reused=reused)

    def _do_prepare(self, found: Survey, part: Part | None) -> StepReport:
        noted = self._notes.find("prepare")
        done = None if noted is None else find_prepared(self._workspace, noted)
        if done is not None:
            return self._report_prepared(found, done, num_made=0, part=part)
        if changed := changed_files(found.inventory, found.opened):
            others = " and others" if changed[1:] else ""
            raise StepOrderError(
                f"{changed[0]}{others} of {found.opened.shown} changed since the inventory. Run "
                f"`snapshard step {FIRST}` again, and the steps after it."
            )
        staged = stage(found.recipe, self._workspace)
        if part is not None:
            blocks = part.of(found.inventory.blocks)
            num_made = prepare_part(
                found,
                staged,
                self._workspace,
                blocks=blocks,
                runner=self._runner,
                progress=self._progress,
            )
            facts = {"num_blocks": len(blocks), "num_made": num_made}
            self._notes.put_part("prepare", part, num_made=num_made)
            return self._report("prepare", found, facts, part=part)
        damage = self._notes.find(DAMAGE)
        thorough = damage is not None and not damage["mended"]
        met: list[str] = []

        def prepare(more: Sequence[str]) -> Prepared:
            met[:] = more
            return self.prepare(found, staged, thorough=thorough or bool(more))

        prepared = redoing_damage(prepare)
        if damage is not None or met:
            told = [*(damage["met"] if damage is not None else []), *met]
            self._notes.put(DAMAGE, {"met": told, "mended": True})
        num_made = prepared.num_made + sum(self._notes.made_in_parts("prepare"))
        counted = dataclasses.replace(prepared, num_made=num_made)
        self._notes.put("prepare", {**counted.to_json(), **self._seconds_of()})
        return self._report_prepared(found, prepared, num_made=prepared.num_made)

    def _report_prepared(
        self, found: Survey, prepared: Prepared, *, num_made: int, part: Part | None = None
    ) -> StepReport:
        facts = {
            "num_blocks": prepared.num_units,
            "num_made": num_made,
            "num_records": prepared.summary.num_records,
            "num_rejects": prepared.num_rejects,
        }
        return self._report("prepare", found, facts, part=part)

    def _do_analyze(self, found: Survey, prepared: Prepared) -> StepReport:
        graph = self.analyze(found, stage(found.recipe, self._workspace), prepared)
        name = None if graph is None else graph.rpartition("/")[2]
        if self._notes.find("analyze") is None or not self._progress.reused:
            self._notes.put("analyze", {"graph": name, **self._seconds_of()})
        return self._report("analyze", found, {"num_graphs": int(graph is not None)})

    def _do_plan(self, found: Survey, prepared: Prepared, graph: str | None) -> StepReport:
        layout = self.plan(found, prepared.summary, graph)
        if self._notes.find("plan") is None or not self._progress.reused:
            self._notes.put("plan", self._seconds_of())
        facts = {
            "num_shards": sum(len(plan.shards) for plan in layout.splits),
            "num_examples": sum(s.num_examples for plan in layout.splits for s in plan.shards),
        }
        return self._report("plan", found, facts)

    def _do_write(
        self,
        found: Survey,
        prepared: Prepared,
        layout: Layout,
        settings: ShardSettings,
        part: Part | None,
    ) -> StepReport:
        names = shard_names(layout, settings)
        facts = {"num_shards": len(names if part is None else part.of(names))}
        noted = self._notes.find("write") is not None
        if noted and all(read_shard_info(settings, name) for name in names):
            return self._report("write", found, {**facts, "num_written": 0}, part=part, reused=True)
        num_written = self.write(found, prepared, layout, settings, part=part)
        facts["num_written"] = num_written
        if part is not None:
            self._notes.put_part("write", part, num_made=num_written)
        parts = [] if part is None else self._notes.made_in_parts("write", total=part.total)
        if part is None or len(parts) == part.total:
            # The last part to end says that all are done.
            self._notes.put(
                "write",
                {
                    "num_written": num_written if part is None else sum(parts),
                    "written_by": self._written_by,
                    "runner": self._runner.name,
                    **self._seconds_of(),
                },
            )
        return self._report("write", found, facts, part=part)

    def _do_verify(self, found: Survey, layout: Layout, settings: ShardSettings) -> StepReport:
        names = shard_names(layout, settings)
        self._progress.start("verify", total=len(names), unit="shards")
        with self._timed("verify"):
            damaged = missing_shards(settings, names)
        if damaged:
            self._notes.forget(steps_from("write"))
            raise DamagedSnapshotError(
                f"{len(damaged):,} of {len(names):,} shards in {settings.snapshot} are not as they "
                f"were written: {damaged[0]}{' …' if len(damaged) > 1 else ''}. Nothing was "
                "published. Run `snapshard step write` again, which makes these anew, and then "
                "verify."
            )
        infos = [read_shard_info(settings, name) for name in names]
        facts = {
            "num_shards": len(names),
            "num_examples": sum(info.num_examples for info in infos if info is not None),
            "shard_bytes": sum(info.num_bytes for info in infos if info is not None),
        }
        self._notes.put("verify", self._seconds_of())
        # Whenever it is asked for, it has read every byte.
        self._progress.finish("verify", reused=False)
        return self._report("verify", found, facts)

    def _do_publish(
        self, found: Survey, prepared: Prepared, layout: Layout, settings: ShardSettings
    ) -> StepReport:
        if not all(read_shard_info(settings, name) for name in shard_names(layout, settings)):
            self._notes.forget(steps_from("write"))
            self._refuse("publish", "write")
        told = {step: self._notes.find(step) or {} for step in (*STEPS, DAMAGE)}
        seconds = {
            name: told[step]["seconds"][name]
            for step in STEPS
            for name in told[step].get("seconds", {})
        }
        snapshot = self.publish(
            found,
            settings,
            layout=layout,
            prepared=prepared,
            serving=self.serving(found, settings),
            shared_contents=self.shared_contents(prepared, layout),
            notes=BuildNotes(
                started=told[FIRST]["started"],
                seconds=seconds,
                num_written=told["write"]["num_written"],
                written_by=told["write"]["written_by"],
                runner=told["write"]["runner"],
                damage_met=told[DAMAGE].get("met", ()),
            ),
        )
        self._progress.reused = False
        facts = {
            "num_examples": sum(s.num_examples for s in snapshot.manifest.splits.values()),
            "num_rejects": snapshot.manifest.num_rejects,
        }
        self._notes.put("publish", {})
        return self._report("publish", found, facts)

    def _pinned(self, step: str) -> Survey:
        """What the inventory found, surveyed once more.

        Raises:
            StepOrderError: if there was no inventory, or the recipe has changed since then.
        """
        told, expected = self._notes.find(FIRST), self._notes.fingerprint()
        pinned = read_pinned(self._notes.pinned, self._workspace)
        if told is None or pinned is None:
            self._refuse(step, FIRST)
        found = survey(
            self._recipe,
            workspace=self._workspace,
            progress=Silent(),
            limit=self._limit,
            pinned=pinned,
        )
        if found.fingerprint != expected:
            changed = ", ".join(differences(told["parts"], found.parts.to_json()))
            raise StepOrderError(
                f"{step} would go on with something else than its chain began with: {changed} of "
                f"the fingerprint changed since the inventory. Run `snapshard step {FIRST}` again, "
                "and the steps after it: they reuse what is still right."
            )
        self._notes.hold_to(found.fingerprint)
        return found

    def _prepared(self, step: str) -> Prepared:
        told = self._notes.find("prepare")
        prepared = None if told is None else find_prepared(self._workspace, told)
        if prepared is None:
            self._notes.forget(steps_from("prepare"))
            self._refuse(step, "prepare")
        return prepared

    def _graph(self, step: str) -> str | None:
        told = self._notes.find("analyze") or {}
        if told.get("graph") is None:
            return None
        graph = self._workspace.graph(told["graph"])
        if checked_graph(graph) is None:
            self._notes.forget(steps_from("analyze"))
            self._refuse(step, "analyze")
        return graph

    def _is_published(self, found: Survey) -> bool:
        return storage.exists(join(self._out.snapshot(found.fingerprint), MANIFEST))

    def _refuse(self, step: str, needed: str) -> NoReturn:
        raise StepOrderError(
            f"{step} needs {needed}, which is not done. Run `snapshard step {needed}` first, with "
            "the same recipe, --out and options."
        )

    def _forget_damaged(self, error: DamagedWorkError) -> NoReturn:
        """Lets prepare look for all damage that there is, as a build would at once."""
        before = self._notes.find(DAMAGE)
        met = [*(before["met"] if before is not None else []), str(error)]
        self._notes.put(DAMAGE, {"met": met, "mended": False})
        self._notes.forget(steps_from("prepare"))
        raise DamagedWorkError(
            f"{error}\nRun the steps again from prepare on: it reads all that it would reuse, and "
            "makes anew what is damaged."
        ) from None

    def _seconds_of(self) -> dict[str, Any]:
        return {"seconds": dict(self._seconds)}

    def _report(
        self,
        step: str,
        found: Survey,
        facts: Mapping[str, int],
        *,
        part: Part | None = None,
        reused: bool | None = None,
    ) -> StepReport:
        return StepReport(
            step=step,
            part=part,
            fingerprint=found.fingerprint,
            path=self._out.snapshot(found.fingerprint),
            reused=self._progress.reused if reused is None else reused,
            published=self._is_published(found),
            seconds=time.perf_counter() - self._begun,
            facts=facts,
        )
