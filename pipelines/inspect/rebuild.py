"""Rebuild: builds one shard of a snapshot again from the source, and compares it byte by byte.

Nothing of earlier builds is used: the source is read and prepared again in a scratch folder, all
shards are planned, and this one is written. Memory is as bounded as in a build.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Sequence

from ...schemas.blocks import ShardInfo, ShardPlan, SplitPlan
from ...schemas.errors import DamagedSnapshotError, RecipeError, SnapshardError
from ...schemas.fingerprint import differences
from ...schemas.manifest import Manifest, ShardEntry
from ...schemas.naming import OutputPaths, ShardName, Workspace, join
from ...schemas.progress import Progress
from ...schemas.recipe import Recipe
from ...schemas.runner import JobRunner
from ...transforms import storage
from ...transforms.analysis.graph import PUBLISHED
from ...transforms.examples.decode import first_difference
from ...transforms.examples.shards import ShardWriter, shard_name
from ...transforms.examples.tfrecord import stored_examples
from ..analyze.external_graph import find_graph
from ..analyze.step import make_graph
from ..engines import make_runner, runner_config
from ..inventory.survey import Survey, take_survey
from ..plan.step import make_plan
from ..prepare.step import prepare_records
from ..recipe.shipping import revised, stage
from ..snapshot import Snapshot, SnapshotFiles
from ..write.step import shard_settings
from .verify_contents import read_id
from .why import build_facts

_WANTED = re.compile(r"(?:(?P<split>[A-Za-z][A-Za-z0-9_]*)-)?(?P<number>\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """How a shard compares with what the source gives now."""

    shard: str
    num_examples: int
    """Examples of the shard that was built again."""
    changed: Sequence[str]
    """Parts of the fingerprint that changed since the snapshot was built."""
    changes_known: bool
    """Whether ``changed`` is known: it is read from ``build.json``."""
    differing: Sequence[str]
    """How the rebuilt shard and its index differ from the manifest, one line each."""
    damaged: Sequence[str]
    """Published files that differ from the manifest."""

    @property
    def equal(self) -> bool:
        """Whether the source gives the bytes that the manifest describes."""
        return not self.differing

    @property
    def exit_code(self) -> int:
        """0 if the source gives what is published, else 4."""
        return 0 if self.equal and not self.damaged else 4

    def lines(self) -> list[str]:
        """The comparison as text."""
        lines = []
        if not self.changes_known:
            lines.append(
                "this source and recipe no longer give the snapshot; what changed is unknown, "
                "since its build.json is missing or damaged"
            )
        elif self.changed:
            lines.append(
                f"changed since the snapshot was built: {', '.join(self.changed)} "
                "(for details, run `snapshard why SOURCE DIR`)"
            )
        lines += self.differing
        if self.equal:
            lines.append(
                f"equal: {self.shard} and its index, built again from the source, "
                f"{self.num_examples:,} examples"
            )
        for name in self.damaged:
            lines.append(
                f"the published {name} is damaged: its bytes are not those that the manifest "
                "describes" + (" and the source gives" if self.equal else "")
            )
        return lines

    def to_json(self) -> dict[str, object]:
        """As plain JSON."""
        return {**dataclasses.asdict(self), "equal": self.equal, "exit_code": self.exit_code}


def find_shard(manifest: Manifest, wanted: str) -> ShardEntry:
    """Finds a shard by its file, by split and number, or by number among all.

    Args:
        manifest: The manifest of the snapshot.
        wanted: ``train-00003-of-00016.tfrecord``, ``train-00003``, ``train-3``; or ``3``, which
            counts the shards of all splits in the order of their names, from 0.

    Raises:
        RecipeError: if there is no such shard.
    """
    shards = [shard for name in sorted(manifest.splits) for shard in manifest.splits[name].shards]
    by_name = {shard.file: shard for shard in shards}
    if wanted in by_name:
        return by_name[wanted]
    found = _WANTED.fullmatch(wanted)
    if found is not None:
        split = manifest.splits.get(found["split"]) if found["split"] else None
        counted = split.shards if split is not None else [] if found["split"] else shards
        if int(found["number"]) < len(counted):
            return counted[int(found["number"])]
    splits = ", ".join(f"{name}: {len(s.shards):,}" for name, s in sorted(manifest.splits.items()))
    raise RecipeError(
        f"There is no shard {wanted!r}. Shards per split: {splits}. Name one as in "
        f"{'train-0' if 'train' in manifest.splits else '0'}, or by its file."
    )


def rebuild_shard(
    path: str | os.PathLike[str], wanted: str, recipe: Recipe, *, progress: Progress
) -> Rebuilt:
    """Builds one shard again from the source and compares it with the manifest.

    All of the source is read and prepared, since the position of each record depends on all
    others. The scratch folder (TMPDIR) needs space for the prepared records. Nothing is written
    elsewhere.

    Args:
        path: The snapshot's folder, or one that holds snapshots: then the latest.
        wanted: The shard: see :func:`find_shard`.
        recipe: What the snapshot was built from.
        progress: Receives the progress of each step.

    Raises:
        RecipeError: if there is no such shard, or the recipe has another name.
        DamagedSnapshotError: if the manifest is damaged.
        DataError: if the source is empty.
    """
    snapshot = Snapshot.open(path)
    manifest = snapshot.manifest
    shard = find_shard(manifest, wanted)
    if recipe.name != manifest.name:
        raise RecipeError(
            f"The snapshot is of recipe {manifest.name!r}, but this recipe is {recipe.name!r}. "
            "Give the recipe or data that it was built from."
        )
    facts = build_facts(snapshot)
    parts = facts.get("fingerprint_parts", {})
    splits, revision = parts.get("splits"), parts.get("revision", 0)
    # The revision decided which runs were made again, but not their content.
    recipe = revised(recipe, revision if isinstance(revision, int) else None)
    limit = splits.get("limit") if isinstance(splits, dict) else None
    with (
        storage.temporary_folder() as scratch,
        make_runner(runner_config("direct")) as runner,
    ):
        out = OutputPaths(scratch, recipe.name)
        survey = take_survey(
            recipe,
            workspace=Workspace(out.workspace),
            progress=progress,
            limit=limit if isinstance(limit, int) else None,
        )
        changed: list[str] = []
        if survey.fingerprint != manifest.fingerprint and facts:
            changed = differences(facts["fingerprint_parts"], survey.parts.to_json())
        if recipe.analyze_on_runner and PUBLISHED in manifest.files:
            # An engine may give other last bits each time: the published graph is used.
            graph = find_graph(storage.absolute(snapshot.path), folder="")
            survey = dataclasses.replace(survey, graph=graph)
        info = _write_one(survey, shard.file, out=out, runner=runner, progress=progress)
        comparing = _Comparison(snapshot, shard, out.snapshot(survey.fingerprint))
        return Rebuilt(
            shard=shard.file,
            num_examples=0 if info is None else info.num_examples,
            changed=changed,
            changes_known=bool(facts) or survey.fingerprint == manifest.fingerprint,
            differing=comparing.differing(info),
            damaged=comparing.damaged(),
        )


def _write_one(
    survey: Survey, file: str, *, out: OutputPaths, runner: JobRunner, progress: Progress
) -> ShardInfo | None:
    """Prepares all records and writes one shard; returns its info, None if it is not planned."""
    workspace = Workspace(out.workspace)
    staged = stage(survey.recipe, workspace)
    prepared = prepare_records(survey, staged, workspace, runner=runner, progress=progress)
    graph = make_graph(
        survey, staged, prepared, workspace=workspace, runner=runner, progress=progress
    )
    plan = make_plan(survey, prepared.summary, graph, workspace=workspace, progress=progress)
    settings = shard_settings(survey, prepared.summary, plan, graph, out=out)
    planned: dict[str, tuple[SplitPlan, ShardPlan]] = {
        str(shard_name(shard, settings)): (split, shard)
        for split in plan.splits
        for shard in split.shards
    }
    if file not in planned:
        return None
    progress.start("write", total=1, unit="shards")
    info = ShardWriter(settings, prepared.summary.entries).write(*planned[file])
    progress.finish("write", reused=False)
    return info


class _Comparison:
    """Compares a shard of a snapshot with the rebuilt one."""

    def __init__(self, snapshot: Snapshot, shard: ShardEntry, rebuilt: str) -> None:
        self._snapshot = snapshot
        self._shard = shard
        self._rebuilt = rebuilt
        name = ShardName.parse(shard.file)
        if name is None:
            raise DamagedSnapshotError(
                f"{shard.file!r} is not the name of a shard. Verify the snapshot."
            )
        self._name = name
        wanted = (shard.file, *name.index_files, name.labels_file)
        self._files = [file for file in wanted if file in snapshot.manifest.files]

    def damaged(self) -> list[str]:
        """Published files that are missing or differ from the manifest."""
        files = SnapshotFiles(self._snapshot.path)
        found, _, _ = files.look(self._files)
        wrong = []
        for file in self._files:
            entry, there = self._snapshot.manifest.files[file], found.get(file)
            readable = there is not None and there.other is None and there.trouble is None
            if not readable or files.sha256(file, found[file].num_bytes) != entry.sha256:
                wrong.append(file)
        return wrong

    def differing(self, info: ShardInfo | None) -> list[str]:
        """How what the source gives differs from the manifest, one line each."""
        if info is None:
            return [f"the source gives no {self._shard.file}: it is divided into other shards"]
        hashes = {info.file: info.sha256} | {n: pair[1] for n, pair in info.index_files.items()}
        listed = self._snapshot.manifest.files
        wrong = [
            file
            for file in sorted({*hashes, *self._files})
            if file not in listed or hashes.get(file) != listed[file].sha256
        ]
        if not wrong:
            return []
        lines = [f"not equal: {', '.join(wrong)}"]
        if info.num_examples != self._shard.num_examples:
            lines.append(
                f"{self._shard.file}: the source gives {info.num_examples:,} examples, but the "
                f"manifest lists {self._shard.num_examples:,}"
            )
        lines.append(f"{self._shard.file}: {self._first_record()}")
        return lines

    def _first_record(self) -> str:
        """The first record that differs, and how."""
        compression = self._name.compression
        mine = stored_examples(join(self._snapshot.path, self._shard.file), compression)
        given = stored_examples(join(self._rebuilt, self._shard.file), compression)
        try:
            pairs = itertools.zip_longest(mine, given)
            for number, (published, rebuilt) in enumerate(pairs):
                if published != rebuilt:
                    return self._difference(number, published, rebuilt)
        except SnapshardError as error:
            return f"the published shard cannot be compared: {error}"
        return "all records are equal; only the framing of the files differs"

    def _difference(self, number: int, published: bytes | None, rebuilt: bytes | None) -> str:
        mine, given = (self._id(folder, number) for folder in (self._snapshot.path, self._rebuilt))
        ids = f"id {mine!r}" if mine == given else f"id {mine!r}, from the source {given!r}"
        if published is None or rebuilt is None:
            where = "the source" if published is None else "the snapshot"
            return f"record {number:,} ({ids}) is in {where} only"
        try:
            what = first_difference(published, rebuilt)
        except ValueError:
            what = "its bytes are not a valid example"
        return f"record {number:,} ({ids}) is the first that differs: {what}"

    def _id(self, folder: str, number: int) -> str | None:
        try:
            return read_id(storage.read_bytes(join(folder, self._name.index_files[1])), number)
        except SnapshardError:
            return None
