"""Given graphs: finds the graph that ``transform_from`` names, and checks it against the features.

Only a graph's content is part of the fingerprint, not its location.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os

from ...schemas.errors import DamagedSnapshotError, RecipeError
from ...schemas.features import Features, written
from ...schemas.naming import Workspace, join, stays_inside
from ...transforms import storage
from ...transforms.analysis.graph import PUBLISHED, GraphInfo, copy_graph, read_graph_info
from ..snapshot import Snapshot, is_snapshot
from ..workspace import find_workspace


@dataclasses.dataclass(frozen=True, kw_only=True)
class GivenGraph:
    """A transform graph of another build."""

    name: str
    """Its name in the recipe, without credentials."""
    url: str
    """The folder of its files."""
    info: GraphInfo

    @property
    def digest(self) -> str:
        """Hash of the complete graph."""
        return self.info.digest

    def check_fits(self, prepared: Features, *, code: str | None) -> None:
        """Checks the graph against a recipe.

        Args:
            prepared: The features of the prepared records.
            code: Digest of the recipe's ``preprocessing_fn``, if it also has one.

        Raises:
            RecipeError: if records lack an input of the graph, or its code differs.
        """
        for name, wanted in self.info.inputs.items():
            given = prepared.get(name)
            if given != wanted:
                has = "no such feature" if given is None else written(given)
                raise RecipeError(
                    f"transform_from={self.name!r}: its graph expects the feature {name!r} as "
                    f"{written(wanted)}, but the prepared records have {has}. Correct features= or "
                    "prepare=, or remove transform_from= to analyze again."
                )
        if code and self.info.code and code != self.info.code:
            raise RecipeError(
                f"transform_from={self.name!r}: its graph was made from another preprocessing_fn "
                "than the recipe's, which would not run. Remove preprocessing_fn= to use the graph "
                "unchanged, or transform_from= to analyze again."
            )

    def put(self, workspace: Workspace) -> str:
        """Ensures that a workspace also has the graph; returns its folder there.

        Raises:
            DamagedSnapshotError: if one of its files is missing or damaged.
            StorageError: if it cannot be written.
        """
        url = workspace.graph(self.digest)
        damaged = copy_graph(self.url, self.info, url)
        if damaged is not None:
            raise DamagedSnapshotError(
                f"transform_from={self.name!r}: {storage.redact(damaged)} is missing or damaged. "
                "Run snapshard verify on it, or remove transform_from= to analyze again."
            )
        return url


def find_graph(name: str, *, folder: str) -> GivenGraph:
    """Finds the graph that a recipe names.

    Args:
        name: A snapshot; a folder of snapshots, of which the latest is used; a graph's folder in a
            workspace; or a workspace or its parent folder, if it has only one graph.
        folder: The folder to which a relative path is relative.

    Raises:
        RecipeError: if there is no graph, or several.
        DamagedSnapshotError: if the snapshot's description of the graph was altered.
        StorageError: if something cannot be read.
    """
    url = name
    if storage.is_local(name):
        url = os.path.join(os.path.abspath(folder), storage.local_path(name))
    folders = []
    if not is_snapshot(url):
        folders = [url]
        for place in (join(url, "graphs"), join(find_workspace(url).root, "graphs")):
            folders += [join(place, digest) for digest in storage.list_names(place)]
    by_place = {place: info for place in folders if (info := read_graph_info(place)) is not None}
    if len(by_place) > 1:
        graphs = ", ".join(storage.redact(place) for place in sorted(by_place))
        raise RecipeError(
            f"transform_from={storage.redact(name)!r} contains several transform graphs. Name one "
            f"of {graphs}; or a snapshot."
        )
    for place, info in by_place.items():
        return GivenGraph(name=storage.redact(name), url=place, info=info)
    try:
        return _of_snapshot(name, Snapshot.open(url))
    except RecipeError as error:
        raise RecipeError(f"transform_from={storage.redact(name)!r}: {error}") from None


def _of_snapshot(name: str, snapshot: Snapshot) -> GivenGraph:
    entry = snapshot.manifest.files.get(PUBLISHED)
    if entry is None:
        raise RecipeError(
            f"{storage.redact(snapshot.path)} has no transform graph that another build can use. "
            "Name a snapshot that was built with a preprocessing_fn, by this version of snapshard."
        )
    where = join(snapshot.path, PUBLISHED)
    content = storage.read_bytes(where)
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise DamagedSnapshotError(
            f"{storage.redact(where)} differs from the manifest. Run snapshard verify on it."
        )
    info = GraphInfo.from_bytes(content)
    for file in info.files:
        if not stays_inside(file):
            raise DamagedSnapshotError(f"{storage.redact(where)}: invalid file name {file!r}.")
    return GivenGraph(name=storage.redact(name), url=snapshot.path, info=info)
