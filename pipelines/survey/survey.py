"""The survey: inventory, features and fingerprint, all that is known before records are prepared.

A build starts with it; a dry run ends with it.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...schemas.blocks import SourceFile
from ...schemas.features import Features, features_to_json
from ...schemas.fingerprint import FingerprintParts, digest, fingerprint, library_versions
from ...schemas.manifest import FORMAT_VERSION
from ...schemas.naming import Workspace
from ...schemas.progress import Progress
from ...schemas.recipe import NamesNumbers, Recipe, Source, reads_files
from ...transforms.analysis.graph import ANALYSIS, ON_RUNNER
from ...transforms.code.dependencies import (
    Dependencies,
    HeldFiles,
    functions_in,
    read_dependencies,
    refuse_undeclared,
)
from ...transforms.code.digest import CodeHashes
from ...transforms.prepare.engine.chain import digest_with_files, read_step_files
from ...transforms.sources.combined import (
    blocks_have_sides,
    open_files,
    parts_of,
    settings_of_all,
    tables_of,
    with_tables,
    without_prefix,
)
from ...transforms.sources.extracted import ExtractedTable
from ...transforms.storage.opened_source import OpenedSource
from ..inventory.exclusions import IdList, read_ids
from ..inventory.sample import Limit
from ..inventory.step import EXCLUDED, Inventory, count_unused_rows, take_inventory, with_rows
from ..recipe.lock import Lock, read_lock
from ..recipe.shipping import altered, refuse_written_secrets
from ..watchdog import expected_to_advance
from .artifact import StoredInventory
from .external_graph import GivenGraph, find_graph
from .inference_cache import Findings, Inferred, infer_features
from .resolve import ResolvedFeatures, resolve_features
from .stages import (
    StageFeatures,
    StageSteps,
    changes_records,
    check_label,
    check_stages,
    stage_features,
    stages_of,
)
from .telltales import relevant
from .texts import explaining_strings

RUN_FORMAT = 6
"""Increased when the same input and code would give other runs."""

_SLOW_S = 1.0
"""If hashing the recipe's code takes longer, a warning says what is hashed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """What a build of a recipe reads and makes, and its fingerprint."""

    recipe: Recipe
    """With a source of files: those of other sources have been extracted."""
    extracted: Mapping[str, ExtractedTable]
    """What workers, which load the recipe again, must read instead of its sources, by name."""
    opened: OpenedSource
    """The source; with a stored inventory, it was not accessed."""
    inventory: Inventory
    inferred: Inferred
    """The features of the source's records."""
    features: ResolvedFeatures
    parts: FingerprintParts
    fingerprint: str
    limit: Limit | None
    graph: GivenGraph | None
    """The transform graph of another build, if the recipe takes one."""
    stages: tuple[StageFeatures, ...]
    """The input and output features of each stage of prepare."""
    dependencies: Dependencies
    """What the recipe depends on in addition to its source."""
    held: HeldFiles
    """Their files, which must not change until the build has ended."""
    stage_digests: tuple[str, ...]
    """For each stage, a hash of what turns a unit of work into a run, apart from the unit."""
    excluded: IdList | None
    """The records that the recipe excludes; None if it excludes none."""
    code: CodeHashes
    """The hashes of the recipe's functions."""
    lock: Lock | None
    """What the recipe's data is held to."""

    @property
    def num_files_excluded(self) -> int:
        """How many of the excluded records are files of the source, each of them one record."""
        return self.inventory.num_skipped.get(EXCLUDED, 0)

    def to_store(self) -> StoredInventory:
        """What later steps need of it, so that none reads the source again."""
        return StoredInventory(
            inventory=self.inventory,
            inferred=self.inferred,
            sides=[self.opened.sides[url] for url in self.recipe.files.side_urls],
            extracted=self.extracted,
            parts=self.parts.to_json(),
            fingerprint=self.fingerprint,
        )


def take_survey(
    recipe: Recipe,
    *,
    workspace: Workspace,
    progress: Progress,
    write: bool = True,
    limit: int | None = None,
    stored: StoredInventory | None = None,
) -> Survey:
    """Lists and hashes the source, infers its features, and computes the fingerprint.

    With a ``stored`` inventory, the source is not accessed.

    Raises:
        RecipeError: if the recipe does not fit the source.
        DataError: if the source is empty or its features cannot be inferred.
    """
    read_step_files(recipe)
    excluded = None
    if recipe.exclude is not None:
        excluded = read_ids(str(recipe.exclude), recipe.folder, argument="Recipe: exclude=")
    code = CodeHashes.of(recipe)
    dependencies = read_dependencies(recipe, code)
    if code.seconds > _SLOW_S:
        progress.warn(_what_is_hashed(code, recipe.folder))
    held = dependencies.hold()
    findings = None
    if stored is None:
        recipe = _extract(recipe, workspace, progress=progress)
        opened, inventory = _list_source(
            recipe,
            workspace=workspace,
            progress=progress,
            write=write,
            limit=limit,
            excluded=excluded,
        )
        described = _described_source(recipe, code)
        findings = _findings(workspace, described, dependencies)
        inventory, inferred = _infer(recipe.files, inventory, opened, findings=findings)
        remarks = inferred.remarks if recipe.features is None else ()
        for remark in relevant(remarks, recipe.splits):
            progress.warn(remark)
    else:
        recipe = altered(recipe, source=with_tables(recipe.source, stored.extracted))
        # The recipe may have changed, and with it what is extracted.
        recipe = _extract(recipe, workspace, progress=progress)
        opened = open_files(recipe.files, recipe.folder, recipe.limits, look=False)
        # The recipe may have changed, and with it their number: the fingerprint will differ.
        opened = opened.expecting(dict(zip(recipe.files.side_urls, stored.sides, strict=False)))
        described = _described_source(recipe, code)
        inventory, inferred = stored.inventory, stored.inferred
    source, lock = recipe.files, read_lock(recipe)
    if lock is not None and stored is None:
        inferred = _in_order_of(lock, inferred, recipe, inventory.selected, opened)
    with explaining_strings(source, inventory.selected, opened, inferred.features):
        features = resolve_features(recipe, inferred)
    if stored is None:
        missing = inferred.missing
        inventory = with_rows(inventory, source, opened, features=features.raw, missing=missing)
    refuse_undeclared(functions_in(recipe), held.paths, folder=recipe.folder)
    held.check()
    if findings is not None and write:
        findings.write()
    # Functions have run on a sample: an object that changed then would differ in workers, too.
    code = code.again()
    stages = stages_of(recipe)
    between = stage_features(stages, features.raw, prepared=features.prepared)
    check_stages(recipe, stages, between)
    versions = library_versions()
    prepare = _prepare_part(
        recipe,
        features,
        described=described,
        sides=list(opened.sides.values()),
        dependencies=dependencies,
        versions=versions,
        code=code,
    )
    graph, preprocessing, analysis = _analysis_part(recipe, features.prepared, code)
    if recipe.label is not None:
        check_label(recipe, _final_names(recipe, features.prepared, graph))
    parts = FingerprintParts(
        name=recipe.name,
        inputs=inventory.input_digest,
        prepare=prepare,
        preprocessing=preprocessing,
        analysis=analysis,
        splits=recipe.splits.to_json() | ({} if limit is None else {"limit": limit}),
        shards=recipe.shards.to_json(),
        label=recipe.label,
        revision=recipe.revision,
        excluded=None if excluded is None else excluded.to_json(),
        lock=None if lock is None else lock.digest,
        versions=versions,
        format_version=FORMAT_VERSION,
    )
    return Survey(
        recipe=recipe,
        extracted=tables_of(source),
        opened=opened,
        inventory=inventory,
        inferred=inferred,
        features=features,
        parts=parts,
        fingerprint=fingerprint(parts),
        limit=None if limit is None else Limit(limit, inventory.stop_key),
        graph=graph,
        stages=between,
        dependencies=dependencies,
        held=held,
        excluded=excluded,
        stage_digests=_stage_digests(recipe, stages, between, base=prepare, code=code),
        code=code,
        lock=lock,
    )


def _what_is_hashed(code: CodeHashes, folder: str) -> str:
    """Says what took long to hash, and how to avoid it."""
    files = code.source_files
    took = f"Hashing the recipe's code took {code.seconds:.0f} s: {len(files):,} Python files"
    own = os.path.abspath(folder) + os.sep
    elsewhere = [path for path in files if os.path.isabs(path) and not path.startswith(own)]
    if not elsewhere:
        return (
            f"{took}, and the values that they use. Values load faster inside a function, from a "
            "file that depends_on names."
        )
    (library, num_files), *_ = collections.Counter(map(_library_of, elsewhere)).most_common(1)
    return (
        f"{took}, {num_files:,} of them in {library}. A library outside site-packages counts as "
        "your own code. Install it by pip install, without -e: then its version counts instead."
    )


def _library_of(path: str) -> str:
    """The folder of a module's package, below an entry of ``sys.path``."""
    entries = (entry for entry in sys.path if path.startswith(entry.rstrip(os.sep) + os.sep))
    entry = max(entries, key=len, default=os.path.dirname(path))
    return os.path.join(entry, os.path.relpath(path, entry).split(os.sep)[0])


def _list_source(
    recipe: Recipe,
    *,
    workspace: Workspace,
    progress: Progress,
    write: bool,
    limit: int | None,
    excluded: IdList | None,
) -> tuple[OpenedSource, Inventory]:
    """Opens, lists and hashes the source; its side files must not change from now on."""
    source = recipe.files
    opened = open_files(source, recipe.folder, recipe.limits)
    opened = opened.expecting({url: opened.side_digest(url) for url in source.side_urls})
    inventory = take_inventory(
        source,
        opened,
        workspace=workspace,
        progress=progress,
        write=write,
        limit=None if source.numbered else limit,
        seed=recipe.seed,
        excluded=excluded,
    )
    return opened, inventory


def _described_source(recipe: Recipe, code: CodeHashes) -> Mapping[str, Any]:
    """The settings of the source, and the limits that the recipe changes."""
    described = code.source_settings(recipe.files)
    changed = recipe.limits.changed()
    return {**described, "limits": changed} if changed else described


def _findings(
    workspace: Workspace, described: Mapping[str, Any], dependencies: Dependencies
) -> Findings:
    """The cache of what is inferred: a user's function may use the declared files for it."""
    depends_on = [content for _, content in dependencies.entries]
    shaped_by = {**described, "depends_on": depends_on} if depends_on else described
    return Findings(workspace.findings, shaped_by)


def _infer(
    source: Source, inventory: Inventory, opened: OpenedSource, *, findings: Findings
) -> tuple[Inventory, Inferred]:
    """The features of the source's records, and the inventory with the rows that it cannot use."""
    remembering = findings.opened(opened).proving(inventory.selected)
    inferred = infer_features(source, inventory.selected, remembering)
    remembering.check()
    return count_unused_rows(inventory, source, opened), inferred


def _in_order_of(
    lock: Lock,
    inferred: Inferred,
    recipe: Recipe,
    files: Sequence[SourceFile],
    opened: OpenedSource,
) -> Inferred:
    """The features with inferred classes in the order of a lock.

    Others stay: those that the recipe declares, and those of numbers that the files name.
    """
    kept = {*(recipe.features or {})}
    for part in parts_of(recipe.files, opened):
        kept |= {*(getattr(part.source, "types", None) or {})}
        if isinstance(part.source, NamesNumbers):
            own = without_prefix(files, part.prefix)
            kept |= part.source.named_numbers(own, part.opened)
    return inferred._replace(features=lock.in_order(inferred.features, kept=kept))


def _prepare_part(
    recipe: Recipe,
    features: ResolvedFeatures,
    *,
    described: Mapping[str, Any],
    sides: Sequence[str],
    dependencies: Dependencies,
    versions: Mapping[str, str],
    code: CodeHashes,
) -> dict[str, object]:
    """The part of the fingerprint that says how records are prepared."""
    part: dict[str, object] = {
        "format": RUN_FORMAT,
        "group": recipe.splits.to_json() if recipe.splits.partitioned else None,
        "prepared": features_to_json(features.prepared),
        "raw": features_to_json(features.raw),
        "seed": recipe.seed,
        "source": described,
        "sides": sides,
        "steps": [digest_with_files(step, recipe, code) for step in recipe.prepare],
        "versions": versions,
    }
    if dependencies.entries:
        part["depends_on"] = [content for _, content in dependencies.entries]
    if features.structs:
        part["structs"] = list(features.structs)
    return part


def _analysis_part(
    recipe: Recipe, prepared: Features, code: CodeHashes
) -> tuple[GivenGraph | None, str | None, Mapping[str, object] | None]:
    """The graph of another build, if any; the digest of the ``preprocessing_fn``; how it is run.

    Raises:
        RecipeError: if the graph does not fit the recipe.
    """
    preprocessing, analysis = None, None
    if recipe.preprocessing_fn is not None:
        preprocessing = code.function(recipe.preprocessing_fn).digest
        analysis = ON_RUNNER if recipe.analyze_on_runner else ANALYSIS
    if recipe.transform_from is None:
        return None, preprocessing, analysis
    graph = find_graph(recipe.transform_from, folder=recipe.folder)
    graph.check_fits(prepared, code=preprocessing)
    return graph, graph.info.code or None, {"transform_from": graph.digest}


def _final_names(recipe: Recipe, prepared: Features, graph: GivenGraph | None) -> Iterable[str]:
    """The names of the examples' features, before any record is prepared.

    Raises:
        RecipeError: if the ``preprocessing_fn`` fails.
    """
    if graph is not None:
        return graph.info.outputs
    if recipe.preprocessing_fn is None:
        return prepared
    # tensorflow-transform: seconds, and only for this
    from ...transforms.analysis.analyze import trace

    return trace(recipe.preprocessing_fn, prepared).outputs


def _extract(recipe: Recipe, workspace: Workspace, *, progress: Progress) -> Recipe:
    """The recipe with a source of files.

    The records of a query or a table in memory are copied to files in the workspace. From there on
    they are like any other files: hashed, cut into blocks, read by every worker, and kept after an
    interruption.

    Raises:
        RecipeError: if the source cannot be read as the recipe says, or a password is in it.
        DataError: if there are no records.
        StorageError: if reading or writing fails.
    """
    source: Any = recipe.source
    if reads_files(source):
        return recipe
    refuse_written_secrets(recipe)
    progress.start("extract", total=None, unit="records")
    with expected_to_advance(f"the extraction of {type(source).__name__}"):
        extracted = source.extract(workspace.extracted, base=recipe.folder, limits=recipe.limits)
    progress.finish("extract", reused=False)
    return altered(recipe, source=extracted)


def _stage_digests(
    recipe: Recipe,
    stages: Sequence[StageSteps],
    features: Sequence[StageFeatures],
    *,
    base: Mapping[str, object],
    code: CodeHashes,
) -> tuple[str, ...]:
    """For each stage, a hash of all that shapes its runs: nothing that only later stages use."""
    names = ["depends_on", "format", "raw", "seed", "source", "versions"]
    if not blocks_have_sides(recipe.files):
        names.append("sides")
    shared = {name: base[name] for name in names if name in base}
    shared["source"] = settings_of_all(recipe.files, base["source"])
    if changes_records(recipe):  # runs hold what was measured before steps
        shared["measured"] = True
    before = digest(shared)
    digests = []
    for index, (stage, made) in enumerate(zip(stages, features, strict=True)):
        last = index + 1 == len(stages)
        following = None if last else stages[index + 1].cross
        # A step across records may use the splits; the last stage sorts by them.
        splits = base["group"] if last else None
        if stage.cross is not None:
            splits = recipe.splits.to_json()
        before = digest(
            {
                "before": before,
                "cross": None if stage.cross is None else code.step_digest(stage.cross),
                "following": None if following is None else code.step_digest(following),
                "outputs": features_to_json(made.outputs),
                "splits": splits,
                "steps": [digest_with_files(step, recipe, code) for step in stage.steps],
            }
        )
        digests.append(before)
    return tuple(digests)
