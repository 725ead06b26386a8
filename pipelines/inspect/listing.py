"""List: the snapshots below an output root, from their manifests and ``build.json``."""

from __future__ import annotations

import dataclasses

from ...schemas.errors import DamagedSnapshotError, StorageError
from ...schemas.naming import FINGERPRINT, LATEST, MANIFEST, join
from ...transforms import storage
from ..snapshot import Snapshot, build_facts, is_link, name_folders, read_latest


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedSnapshot:
    """A published snapshot.

    Attributes:
        name: The recipe's name.
        fingerprint: The name of its folder.
        path: Its folder, a local path or URL.
        version: The recipe's ``version``; empty if it has none.
        started: When its build began, in UTC, such as "2026-11-28T10:49:16Z"; empty if its
            ``build.json`` is missing or damaged.
        num_examples: Number of examples by split.
        num_bytes: Size of all files that the manifest lists.
        limit: The number of records of a sample; None otherwise.
        is_latest: Whether ``latest.json`` names it, which trainers follow.
        problem: Why it cannot be opened; then only its name, fingerprint and path are known.
    """

    name: str
    fingerprint: str
    path: str
    version: str = ""
    started: str = ""
    num_examples: dict[str, int] = dataclasses.field(default_factory=dict)
    num_bytes: int = 0
    limit: int | None = None
    is_latest: bool = False
    problem: str = ""


def list_snapshots(folder: str) -> list[ListedSnapshot]:
    """The published snapshots of an output root or of one name: by name, the newest first.

    Args:
        folder: A local path or URL.

    Raises:
        RecipeError: if the folder is neither.
        StorageError: if it cannot be read.
    """
    folder = storage.absolute(folder)
    listed = [snapshot for name in name_folders(folder) for snapshot in _of_name(name)]
    # A stable sort: by date from the newest, then by name.
    return sorted(sorted(listed, key=lambda s: s.started, reverse=True), key=lambda s: s.name)


def _of_name(folder: str) -> list[ListedSnapshot]:
    names = set(storage.list_names(folder))
    latest = ""
    if LATEST in names:
        try:
            latest = read_latest(join(folder, LATEST))
        except DamagedSnapshotError:
            latest = ""
    paths = {name: join(folder, name) for name in sorted(names) if FINGERPRINT.fullmatch(name)}
    return [
        _listed(folder, name, path, is_latest=name == latest)
        for name, path in paths.items()
        if not is_link(path) and storage.exists(join(path, MANIFEST))
    ]


def _listed(folder: str, fingerprint: str, path: str, *, is_latest: bool) -> ListedSnapshot:
    name = folder.rstrip("/").rsplit("/", 1)[-1]
    try:
        snapshot = Snapshot.open(path)
    except (DamagedSnapshotError, StorageError) as error:
        return ListedSnapshot(
            name=name,
            fingerprint=fingerprint,
            path=path,
            is_latest=is_latest,
            problem=str(error),
        )
    manifest, facts = snapshot.manifest, build_facts(path)
    return ListedSnapshot(
        name=name,
        fingerprint=fingerprint,
        path=path,
        version=facts.get("metadata", {}).get("version", ""),
        started=facts.get("started", ""),
        num_examples={split: entry.num_examples for split, entry in manifest.splits.items()},
        num_bytes=sum(entry.bytes for entry in manifest.files.values()),
        limit=manifest.limit,
        is_latest=is_latest,
    )
