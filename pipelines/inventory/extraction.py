"""Extraction: records of a query or a table in memory are copied to files in the workspace.

From there on they are like any other files: hashed, cut into blocks, read by every worker, and
kept after an interruption.
"""

from __future__ import annotations

import copy

from ...schemas.naming import Workspace
from ...schemas.progress import Progress
from ...schemas.recipe import Recipe, Source
from ..recipe.shipping import keep_origin, refuse_written_secrets
from ..watchdog import expected_to_advance

STEP = "extract"


def extract(recipe: Recipe, workspace: Workspace, *, progress: Progress) -> Recipe:
    """The recipe with a source of files: its own, or the files that were just extracted.

    Raises:
        RecipeError: if the source cannot be read as the recipe says, or a password is in it.
        DataError: if there are no records.
        StorageError: if reading or writing fails.
    """
    source = recipe.source
    if isinstance(source, Source):
        return recipe
    refuse_written_secrets(recipe)
    progress.start(STEP, total=None, unit="records")
    with expected_to_advance(f"the extraction of {type(source).__name__}"):
        found = source.extract(workspace.extracted, base=recipe.folder)
    progress.finish(STEP, reused=False)
    changed = reading(recipe, found)
    keep_origin(changed, recipe)
    return changed


def reading(recipe: Recipe, source: Source | None) -> Recipe:
    """The recipe with another source; None leaves it as it is."""
    if source is None:
        return recipe
    changed = copy.copy(recipe)
    object.__setattr__(changed, "source", source)
    return changed
