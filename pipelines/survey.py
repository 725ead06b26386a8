"""Survey: everything that is known of a build before any record is prepared.

Inventory, features, fingerprint. A build starts with it; a dry run ends with it.
"""

from __future__ import annotations

import dataclasses
import hashlib

from ..schemas.features import features_to_json
from ..schemas.fingerprint import FingerprintParts, digest, fingerprint, library_versions
from ..schemas.manifest import FORMAT_VERSION
from ..schemas.naming import Workspace
from ..schemas.progress import Progress
from ..schemas.recipe import Recipe
from ..transforms.code_digest import code_digest, step_digest
from ..transforms.opened_source import OpenedSource, open_source
from .analyze import ANALYSIS
from .findings import Findings
from .inventory import Inventory, take_inventory
from .resolve import ResolvedFeatures, resolve_features

RUN_FORMAT = 1
"""Rises when the same input and code would give other runs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """What a build of a recipe will read, make, and be called."""

    recipe: Recipe
    opened: OpenedSource
    inventory: Inventory
    features: ResolvedFeatures
    parts: FingerprintParts
    fingerprint: str
    prepare_digest: str


def survey(
    recipe: Recipe, *, workspace: Workspace, progress: Progress, write: bool = True
) -> Survey:
    """Lists and hashes the source, infers its features, and computes the fingerprint.

    Raises:
        RecipeError: if the recipe does not fit the source.
        DataError: if the source is empty or its features cannot be told.
    """
    opened = open_source(recipe.source.url, recipe.folder)
    inventory = take_inventory(
        recipe.source, opened, workspace=workspace, progress=progress, write=write
    )
    findings = Findings(workspace.findings, recipe.source)
    remembering = findings.opened(opened)
    features = resolve_features(recipe, files=inventory.files, opened=remembering)
    if write:
        findings.write(remembering)
    versions = library_versions()
    prepare = {
        "format": RUN_FORMAT,
        "group": recipe.splits.to_json() if recipe.splits.group_by is not None else None,
        "prepared": features_to_json(features.prepared),
        "raw": features_to_json(features.raw),
        "seed": recipe.seed,
        "source": {"type": type(recipe.source).__name__, **recipe.source.settings()},
        "sides": [
            hashlib.sha256(opened.read_side(url)).hexdigest() for url in recipe.source.side_urls
        ],
        "steps": [step_digest(step, folder=recipe.folder) for step in recipe.prepare],
        "versions": versions,
    }
    preprocessing = None
    if recipe.preprocessing_fn is not None:
        preprocessing = code_digest(recipe.preprocessing_fn, folder=recipe.folder)
    parts = FingerprintParts(
        name=recipe.name,
        inputs=inventory.input_digest,
        prepare=prepare,
        preprocessing=preprocessing,
        analysis=ANALYSIS if preprocessing is not None else None,
        splits=recipe.splits.to_json(),
        shards=recipe.shards.to_json(),
        versions=versions,
        format_version=FORMAT_VERSION,
    )
    return Survey(
        recipe=recipe,
        opened=opened,
        inventory=inventory,
        features=features,
        parts=parts,
        fingerprint=fingerprint(parts),
        prepare_digest=digest(prepare),
    )
