"""The place of a name's workspace: in the name's folder, or where a build put it.

A note in the name's folder names the place: builds without ``workspace=``, and other commands, find
it by that. The workspace's own name contains a hash of its owner's folder. Both must agree: the
note of an output root that was copied or moved names a workspace that another root may use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator

from ..schemas.errors import RecipeError
from ..schemas.naming import WORKSPACE, OutputPaths, Workspace, join
from ..transforms import storage
from ..transforms.storage.artifacts import put_artifact, read_artifact
from .locks import building

_WHAT = "workspace-1"


def find_workspace(folder: str) -> Workspace:
    """The workspace of the name whose folder this is; never one of another folder.

    Raises:
        StorageError: if it cannot be looked for.
    """
    noted = _noted(folder)
    if noted is None or not _belongs(noted, folder):
        return Workspace(join(folder, WORKSPACE))
    return Workspace(noted)


def foreign_workspace(folder: str) -> str | None:
    """The place that the note in a name's folder names, if it is another folder's workspace.

    Raises:
        StorageError: if the note cannot be read.
    """
    noted = _noted(folder)
    return None if noted is None or _belongs(noted, folder) else noted


def _noted(folder: str) -> str | None:
    content = read_artifact(Workspace(join(folder, WORKSPACE)).elsewhere, what=_WHAT)
    return None if content is None else str(json.loads(content))


def _belongs(workspace: str, folder: str) -> bool:
    return workspace.rstrip("/").rsplit("/", 1)[-1] == _name_elsewhere(folder)


def _name_elsewhere(folder: str) -> str:
    """The name of a workspace that is not in the folder of its name."""
    path = storage.absolute(folder).rstrip("/")
    if storage.is_local(path):
        # Another way to the same folder, by a link, is the same owner.
        path = os.path.realpath(path)
    owner = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{path.rsplit('/', 1)[-1]}-{owner}"


def choose_workspace(out: OutputPaths, place: str | os.PathLike[str] | None) -> OutputPaths:
    """The paths of a build, with the workspace where ``workspace=`` puts it.

    Each output root has a workspace of its own at the place: garbage collection of one root must
    not clear what another's builds reuse.

    Args:
        out: The paths, with the workspace in the name's folder.
        place: A folder or URL; the output root itself for the name's folder; None for where it is.

    Raises:
        RecipeError: if the place carries credentials.
        StorageError: if the workspace cannot be looked for.
    """
    if place is None:
        return OutputPaths(out.out, out.name, elsewhere=_elsewhere(out, find_workspace(out.folder)))
    url = storage.absolute(os.fspath(place))
    if storage.redact(url) != url:
        raise RecipeError(
            f"The workspace {storage.redact(url)} carries credentials, and a note beside the "
            "snapshots names it. Name them in the environment."
        )
    if url.rstrip("/") == out.out.rstrip("/"):
        return OutputPaths(out.out, out.name)
    return OutputPaths(out.out, out.name, elsewhere=join(url, _name_elsewhere(out.folder)))


@contextlib.contextmanager
def occupied(out: OutputPaths, *, named: bool) -> Iterator[OutputPaths]:
    """Keeps garbage collection out of a name's folder and its workspace while a build runs.

    Args:
        out: The paths, as :func:`choose_workspace` gave them.
        named: Whether the user named the place: then the note leads there from now on. Else it
            stays as it is, since another build may have named a place meanwhile.

    Yields:
        The paths, with the workspace where it is by now.

    Raises:
        StorageError: if the workspace cannot be made.
    """
    inside = Workspace(join(out.folder, WORKSPACE))
    with building(inside), contextlib.ExitStack() as stack:
        if not named:
            out = choose_workspace(out, None)
        if out.elsewhere:
            stack.enter_context(building(Workspace(out.workspace)))
        noted = _noted(out.folder)
        if named and out.elsewhere and noted != out.elsewhere:
            put_artifact(inside.elsewhere, json.dumps(out.elsewhere).encode(), what=_WHAT)
        elif named and not out.elsewhere and noted is not None:
            storage.remove_tree(inside.elsewhere)
        yield out


def _elsewhere(out: OutputPaths, found: Workspace) -> str:
    return "" if found.root == join(out.folder, WORKSPACE) else found.root
