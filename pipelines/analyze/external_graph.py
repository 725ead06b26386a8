"""Given graphs: what ``transform_from`` names, found, checked, and held against the features.

A graph counts by its content, wherever it was taken from: that is what a fingerprint sees.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os

from ...schemas.errors import DamagedSnapshotError, DamagedWorkError, RecipeError
from ...schemas.features import Features
from ...schemas.naming import Workspace, join, stays_inside
from ...schemas.written import written
from ...transforms import storage
from ...transforms.analysis.graph import PUBLISHED, GraphInfo, copy_graph, read_graph_info
from ..snapshot import Snapshot, lies_at
from ..workspace import find_workspace


@dataclasses.dataclass(frozen=True, kw_only=True)
class GivenGraph:
    """A transform graph of another build."""

    name: str
    """What the recipe calls it, without credentials."""
    url: str
    """The folder that holds its files."""
    info: GraphInfo

    @property
    def digest(self) -> str:
        """Hash of all that it is."""
        return self.info.digest

    def check_fits(self, prepared: Features, *, code: str | None) -> None:
        """Holds the graph against a recipe.

        Args:
            prepared: The features of the prepared records.
            code: Digest of the recipe's ``preprocessing_fn``, if it has one beside.

        Raises:
            RecipeError: if records do not have what the graph takes, or it is of other code.
        """
        for name, wanted in self.info.inputs.items():
            found = prepared.get(name)
            if found != wanted:
                has = "none of that name" if found is None else f"it as {written(found)}"
                raise RecipeError(
                    f"transform_from={self.name!r}: its graph takes the feature {name!r} as "
                    f"{written(wanted)}, and the prepared records have {has}. Correct features= or "
                    "prepare=, or leave transform_from= out to analyse anew."
                )
        if code and self.info.code and code != self.info.code:
            raise RecipeError(
                f"transform_from={self.name!r}: its graph is of another preprocessing_fn than the "
                "recipe's, which would not run. Leave preprocessing_fn= out to take the graph as "
                "it is, or transform_from= to analyse anew."
            )

    def put(self, workspace: Workspace) -> str:
        """Makes sure that a workspace has it, too; gives its folder there.

        Raises:
            DamagedSnapshotError: if a file of it is missing or damaged.
            StorageError: if it cannot be written.
        """
        url = workspace.graph(self.digest)
        try:
            copy_graph(self.url, self.info, url)
        except DamagedWorkError as error:
            # To build again, as this says, makes nothing anew that another build made.
            what = str(error).partition(" Start the build again")[0]
            raise DamagedSnapshotError(
                f"transform_from={self.name!r}: {what} Run snapshard verify on it, or leave "
                "transform_from= out to analyse anew."
            ) from None
        return url


def find_graph(name: str, *, folder: str) -> GivenGraph:
    """Finds the graph that a recipe takes.

    Args:
        name: A snapshot; a folder of snapshots, then the latest one's; a graph's folder in a
            workspace, or the workspace, or the folder that holds it, if there is but one graph.
        folder: What a relative path counts from.

    Raises:
        RecipeError: if there is none, or several.
        DamagedSnapshotError: if the snapshot's description of it was altered.
        StorageError: if something cannot be read.
    """
    url = name
    if storage.is_local(name):
        url = os.path.join(os.path.abspath(folder), storage.local_path(name))
    folders = []
    if not lies_at(url):
        folders = [url]
        for place in (join(url, "graphs"), join(find_workspace(url).root, "graphs")):
            folders += [join(place, one) for one in storage.list_names(place)]
    found = {place: info for place in folders if (info := read_graph_info(place)) is not None}
    if len(found) > 1:
        graphs = ", ".join(storage.redact(place) for place in sorted(found))
        raise RecipeError(
            f"transform_from={storage.redact(name)!r} holds several transform graphs. Name one of "
            f"{graphs}; or a snapshot."
        )
    for place, info in found.items():
        return GivenGraph(name=storage.redact(name), url=place, info=info)
    try:
        return _of_snapshot(name, Snapshot.open(url))
    except RecipeError as error:
        raise RecipeError(f"transform_from={storage.redact(name)!r}: {error}") from None


def _of_snapshot(name: str, snapshot: Snapshot) -> GivenGraph:
    entry = snapshot.manifest.files.get(PUBLISHED)
    if entry is None:
        raise RecipeError(
            f"{storage.redact(snapshot.path)} has no transform graph that another build could "
            "take. Name a snapshot that was built with a preprocessing_fn, by this version of "
            "snapshard."
        )
    where = join(snapshot.path, PUBLISHED)
    content = storage.read_bytes(where)
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise DamagedSnapshotError(
            f"{storage.redact(where)} is not what the manifest lists. Run snapshard verify on it."
        )
    info = GraphInfo.from_bytes(content)
    for file in info.files:
        if not stays_inside(file):
            raise DamagedSnapshotError(f"{storage.redact(where)} names {file!r}, which is no name.")
    return GivenGraph(name=storage.redact(name), url=snapshot.path, info=info)
