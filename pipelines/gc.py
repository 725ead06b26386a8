"""Garbage collection: clears the work that no published snapshot refers to.

Kept are published snapshots, and in the workspace all that their ``build.json`` names: the runs,
the summary and the transform graph that the next build of changed data or another plan reuses.
Cleared are the rest of the workspace, what killed builds left (their unpublished directories and
runs too: a build that was killed starts anew after it), and temporary files. What is not known
to be snapshard's is never touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import time
from collections.abc import Iterator, Sequence, Set
from typing import Any

from ..schemas.errors import RecipeError, StorageError
from ..schemas.naming import BUILD, LATEST, MANIFEST, WORKSPACE, Workspace, join
from ..transforms import storage
from ..transforms.opened_source import modified_ns
from .occupancy import alone

SAFE_AGE_S = 24 * 3600
"""Where no lock tells whether a build is at work (on object stores), what is younger stays."""

_ID = re.compile(r"[0-9a-f]{16,64}")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_BY_WORK = {"runs": "runs", "summaries": "summary", "graphs": "graph", "blocks": "blocks"}
_BY_SNAPSHOT = ("plans", "shards")
_COMMITS = {("runs", "json"), ("summaries", "arrow"), ("graphs", "json")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GcReport:
    """What was cleared, or would be.

    Attributes:
        num_files: How many files.
        num_bytes: Of all of them.
        unpublished: Folders of snapshots that were never published, all cleared.
        busy: Folders of names that were left alone, since a build is at work there.
    """

    num_files: int
    num_bytes: int
    unpublished: tuple[str, ...]
    busy: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file below the folder of a name.

    Attributes:
        path: Relative to that folder.
        num_bytes: Its length.
        modified_ns: When it was last written, in ns since 1970; None where the store is silent.
    """

    path: str
    num_bytes: int
    modified_ns: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class References:
    """What published snapshots refer to.

    Attributes:
        published: Fingerprints of the published snapshots.
        work: Folder of the workspace -> ids of what is kept in it; None keeps all, where a
            snapshot does not tell what it was made of.
    """

    published: frozenset[str]
    work: dict[str, frozenset[str]] | None


def collect_garbage(folder: str, *, dry_run: bool = False) -> GcReport:
    """Clears what no published snapshot refers to.

    Args:
        folder: An output root, or the folder of one name in it; a local path or URL.
        dry_run: Only finds out what would go; writes nothing.

    Raises:
        RecipeError: if neither lies there.
        StorageError: if something cannot be listed or removed.
    """
    names = _name_folders(folder)
    if not names:
        raise RecipeError(
            f"{storage.redact(folder)} is no output root and no folder of snapshots. Give the "
            "folder that was the --out of a build."
        )
    reports = [_collect(name, dry_run=dry_run) for name in names]
    return GcReport(
        num_files=sum(report.num_files for report in reports),
        num_bytes=sum(report.num_bytes for report in reports),
        unpublished=tuple(path for report in reports for path in report.unpublished),
        busy=tuple(path for report in reports for path in report.busy),
    )


def choose_garbage(files: Sequence[StoredFile], references: References) -> list[StoredFile]:
    """The files that nothing refers to. Pure.

    Args:
        files: All files below the folder of a name.
        references: What published snapshots refer to.
    """
    return [file for file in files if _is_garbage(file.path.split("/"), references)]


def _is_garbage(parts: list[str], references: References) -> bool:
    if storage.TEMPORARY.fullmatch(parts[-1]):
        return len(parts) == 1 or parts[0] == WORKSPACE or bool(_FINGERPRINT.fullmatch(parts[0]))
    if parts[0] != WORKSPACE:
        unpublished = _FINGERPRINT.fullmatch(parts[0]) and parts[0] not in references.published
        return len(parts) > 1 and bool(unpublished)
    if len(parts) < 3:
        return False
    room, rest = parts[1], parts[2:]
    # runs/<two digits>/<run id>.…; elsewhere the id comes first.
    name = rest[1] if room == "runs" and len(rest) > 1 else rest[0]
    name = name.split(".")[0]
    if room == "scratch":
        return name.startswith(storage.SCRATCH)
    if not _ID.fullmatch(name):
        return False
    if room in _BY_SNAPSHOT:
        return name not in references.published
    if room in _BY_WORK:
        return references.work is not None and name not in references.work[room]
    # A build extracts anew, and puts in place what is missing.
    return room in ("staged", "extracted")


def _collect(folder: str, *, dry_run: bool) -> GcReport:
    with alone(Workspace(join(folder, WORKSPACE)), write=not dry_run) as held:
        if held is False:
            return GcReport(num_files=0, num_bytes=0, unpublished=(), busy=(folder,))
        files = list(_stored_files(folder))
        found = {name for name in storage.list_names(folder) if _FINGERPRINT.fullmatch(name)}
        references = _references(folder, found)
        unpublished = found - references.published
        garbage = choose_garbage(files, references)
        if not held:
            limit = time.time_ns() - SAFE_AGE_S * 10**9
            young = {file for file in files if file.modified_ns is None or file.modified_ns > limit}
            spared = unpublished & {file.path.split("/")[0] for file in young}
            unpublished -= spared
            garbage = [
                file
                for file in garbage
                if file not in young and file.path.split("/")[0] not in spared
            ]
        if not dry_run:
            _remove(folder, garbage, unpublished)
        return GcReport(
            num_files=len(garbage),
            num_bytes=sum(file.num_bytes for file in garbage),
            unpublished=tuple(join(folder, name) for name in sorted(unpublished)),
            busy=(),
        )


def _remove(folder: str, garbage: Sequence[StoredFile], unpublished: Set[str]) -> None:
    # Commits go first: killed in between, nothing half removed passes for done.
    for file in sorted(garbage, key=lambda file: (not _is_commit(file.path), file.path)):
        storage.remove_tree(join(folder, file.path))
    for name in unpublished:
        storage.remove_tree(join(folder, name))
    workspace = join(folder, WORKSPACE)
    if storage.is_local(workspace):
        for parent, _, _ in os.walk(storage.local_path(workspace), topdown=False):
            # It holds what is kept, or a build has just begun to use it.
            with contextlib.suppress(OSError):
                os.rmdir(parent)


def _is_commit(path: str) -> bool:
    """Whether the arrival of this file says that others beside it are whole."""
    parts = path.split("/")
    return parts[0] == WORKSPACE and (parts[1], path.rsplit(".")[-1]) in _COMMITS


def _references(folder: str, found: Set[str]) -> References:
    """Reads what the published snapshots among these were made of."""
    published = {name for name in found if storage.exists(join(folder, name, MANIFEST))}
    work: dict[str, set[str]] = {room: set() for room in _BY_WORK}
    for name in published:
        try:
            told = json.loads(storage.read_bytes(join(folder, name, BUILD)))["work"]
            for room, key in _BY_WORK.items():
                value = told.get(key) or []
                ids = [value] if isinstance(value, str) else value
                # A graph is told by its folder.
                work[room].update(str(one).rstrip("/").rsplit("/", 1)[-1] for one in ids)
        except (StorageError, ValueError, KeyError, TypeError, AttributeError):
            return References(published=frozenset(published), work=None)
    kept = {room: frozenset(ids) for room, ids in work.items()}
    return References(published=frozenset(published), work=kept)


def _name_folders(folder: str) -> list[str]:
    """The folders of names at a place: itself, or those in it."""
    if storage.is_local(folder) and not os.path.isdir(storage.local_path(folder)):
        return []
    if _is_name_folder(folder):
        return [folder]
    inside = [join(folder, name) for name in storage.list_names(folder) if name != WORKSPACE]
    return [path for path in inside if _is_name_folder(path)]


def _is_name_folder(folder: str) -> bool:
    try:
        names = storage.list_names(folder)
    except StorageError:
        # A file beside the folders of names.
        return False
    return WORKSPACE in names or LATEST in names


def _stored_files(folder: str) -> Iterator[StoredFile]:
    """All files below a folder; links are not followed."""
    if storage.is_local(folder):
        root = storage.local_path(folder)
        for parent, _, names in os.walk(root):
            for name in names:
                path = os.path.join(parent, name)
                try:
                    found = os.lstat(path)
                except FileNotFoundError:
                    continue
                yield StoredFile(
                    path=os.path.relpath(path, root),
                    num_bytes=found.st_size,
                    modified_ns=found.st_mtime_ns,
                )
        return
    with storage.failing_as_storage_error("list", folder):
        filesystem, root = storage.filesystem(folder)
        listed: dict[str, Any] = filesystem.find(root, detail=True)
    for path, info in listed.items():
        yield StoredFile(
            path=path.removeprefix(root.rstrip("/") + "/"),
            num_bytes=int(info.get("size") or 0),
            modified_ns=modified_ns(info),
        )
