"""Why a build does not find a snapshot: which part of the fingerprint differs, and what of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping

from ...schemas.errors import RecipeError
from ...schemas.fingerprint import canonical_json
from ...schemas.naming import MANIFEST, OutputPaths, Workspace, join
from ...schemas.progress import Progress
from ...schemas.recipe import Recipe, Source
from ...transforms import storage
from ..inventory.fingerprint_details import (
    InputFile,
    fingerprint_details,
    listed_inputs,
    surveyed_inputs,
)
from ..inventory.survey import survey
from ..snapshot import Snapshot, lies_at
from ..workspace import find_workspace
from .input_changes import InputChanges, input_changes
from .part_changes import (
    Change,
    Told,
    build_facts,
    only_manifest,
    part_changes,
    told_of,
    told_of_manifest,
)

SHOWN = 10
"""How many files of each kind are named by default."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why two fingerprints differ.

    Attributes:
        old: Fingerprint of the snapshot that was not found.
        new: Of the other snapshot, or of the one that a build would make.
        old_path: Where the first lies.
        new_path: Where the second lies, or would.
        published: Whether the second is there.
        changes: What differs, in the order in which a build uses it.
        inputs: Which files differ; None where none does, or the lists of them are gone.
        inputs_known: Whether the lists of input files of both are there.
        complete: False where a ``build.json`` is gone and only the manifests could be compared.
    """

    old: str
    new: str
    old_path: str
    new_path: str
    published: bool
    changes: tuple[Change, ...]
    inputs: InputChanges | None
    inputs_known: bool
    complete: bool

    @property
    def same(self) -> bool:
        """Whether there is nothing to explain."""
        return self.old == self.new

    def to_json(self) -> dict[str, object]:
        """The explanation as plain JSON."""
        value = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        value["same"] = self.same
        value["changes"] = [change.to_json() for change in self.changes]
        value["inputs"] = None if self.inputs is None else self.inputs.to_json()
        return value


def why(old: Snapshot, new: Snapshot, *, num_shown: int = SHOWN) -> Explanation:
    """Says why two snapshots have different fingerprints.

    Args:
        old: A snapshot.
        new: Another one.
        num_shown: How many input files to name of each kind.

    Raises:
        StorageError: if something that is there cannot be read.
    """
    first, second, complete = told_of(old, new)
    return _explain(
        _Side(old.manifest.fingerprint, old.path, first, _inputs_of(old)),
        _Side(new.manifest.fingerprint, new.path, second, _inputs_of(new)),
        published=True,
        complete=complete,
        num_shown=num_shown,
    )


def why_not_found(
    recipe: Recipe,
    out: str,
    *,
    progress: Progress,
    limit: int | None = None,
    num_shown: int = SHOWN,
) -> Explanation:
    """Says why a build of a recipe would not find the latest snapshot. Writes nothing.

    Args:
        recipe: What would be built.
        out: The build's output root, or a snapshot.
        progress: Told how far the inventory is.
        limit: As the build has it.
        num_shown: How many input files to name of each kind.

    Raises:
        RecipeError: if nothing has been published there, or the recipe cannot work.
        DataError: if the source is empty.
        StorageError: if something cannot be read.
    """
    paths = OutputPaths(storage.absolute(out), recipe.name)
    if lies_at(out):
        latest = Snapshot.open(out)
        folder, _, _ = latest.path.rpartition("/")
    elif lies_at(paths.folder):
        latest, folder = Snapshot.open(paths.folder), paths.folder
    else:
        raise RecipeError(
            f"{paths.folder} holds no published snapshot, so a build has none to find. Give the "
            "--out of a build of this recipe, or the folder of a snapshot."
        )
    with storage.temporary_folder() as scratch:
        # Records that lie in no files are copied into the workspace, and this is to write nothing.
        lasting = isinstance(recipe.source, Source)
        found = survey(
            recipe,
            workspace=find_workspace(folder) if lasting else Workspace(scratch),
            progress=progress,
            write=False,
            limit=limit,
        )
        details = fingerprint_details(found)
    path = join(folder, found.fingerprint)
    published = storage.exists(join(path, MANIFEST))
    if published:
        latest = Snapshot.open(path)
    parts = json.loads(canonical_json(found.parts.to_json()))
    told = Told(parts=parts, details=json.loads(canonical_json(details)))
    facts = build_facts(latest)
    if facts:
        before = Told(
            parts=facts["fingerprint_parts"], details=facts.get("fingerprint_details") or {}
        )
    else:
        whole = told_of_manifest(latest.manifest)
        before, told = (only_manifest(side, latest.manifest) for side in (whole, told))
    return _explain(
        _Side(latest.manifest.fingerprint, latest.path, before, _inputs_of(latest)),
        _Side(found.fingerprint, path, told, surveyed_inputs(found)),
        published=published,
        complete=bool(facts),
        num_shown=num_shown,
    )


@dataclasses.dataclass(frozen=True)
class _Side:
    """One of two fingerprints."""

    fingerprint: str
    path: str
    told: Told
    inputs: Iterator[InputFile] | None


def _explain(
    old: _Side, new: _Side, *, published: bool, complete: bool, num_shown: int
) -> Explanation:
    changes = part_changes(old.told, new.told) if old.fingerprint != new.fingerprint else []
    inputs = None
    inputs_known = old.inputs is not None and new.inputs is not None
    differ = not complete or any(change.part == "inputs" for change in changes)
    if old.inputs is not None and new.inputs is not None and differ and changes:
        inputs = input_changes(old.inputs, new.inputs, num_shown=num_shown)
    return Explanation(
        old=old.fingerprint,
        new=new.fingerprint,
        old_path=old.path,
        new_path=new.path,
        published=published,
        changes=tuple(changes),
        inputs=inputs,
        inputs_known=inputs_known,
        complete=complete,
    )


def _inputs_of(snapshot: Snapshot) -> Iterator[InputFile] | None:
    """The input files of a snapshot, if the workspace beside it still lists them."""
    work = build_facts(snapshot).get("work")
    lists = work.get("blocks") if isinstance(work, Mapping) else None
    if not isinstance(lists, list):
        return None
    folder, _, _ = snapshot.path.rpartition("/")
    return listed_inputs(find_workspace(folder), [str(name) for name in lists])
