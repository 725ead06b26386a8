"""Garbage collection: clears the work that no published snapshot refers to.

Published snapshots are kept, and in the workspace everything that their ``build.json`` names: the
runs, summaries and transform graphs that the next build of changed data or another plan reuses. The
rest of the workspace is cleared, with everything that killed builds left (unpublished folders and
runs: such a build starts from the beginning), and temporary files, also those in this machine's
folder for them. A file counts as snapshard's by its place and name; all others are never touched.
"""

from __future__ import annotations

import calendar
import contextlib
import dataclasses
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set

from ...schemas.errors import DamagedSnapshotError, RecipeError, StorageError
from ...schemas.manifest import STARTED_FORMAT
from ...schemas.naming import (
    BUILD,
    CROISSANT,
    FINGERPRINT,
    LATEST,
    MANIFEST,
    REJECTS,
    REPORT,
    SCHEMA,
    SERVING,
    STATISTICS,
    STATISTICS_PB,
    TFDS_FEATURES,
    TFDS_INFO,
    WORKSPACE,
    ShardName,
    Workspace,
    is_reader_file,
    join,
)
from ...transforms import storage
from ...transforms.storage.unchanged import modified_ns
from ..snapshot import Snapshot, build_facts, is_link, name_folders, read_latest
from ..survey.artifact import Reference, references
from ..workspace import MARKERS, SAFE_AGE_S, alone, find_workspace, foreign_workspace

STEPS_AGE_S = 7 * 24 * 3600
"""How long after its inventory a step-by-step build may resume."""
_COMMITS = {("runs", "json"), ("summaries", "arrow"), ("graphs", "json")}
WORK = {"runs": "runs", "summaries": "summary", "graphs": "graph", "blocks": "blocks"}
"""Folders of the workspace -> the keys in ``build.json`` that name what a snapshot was made of."""
_REFERRED_TO = frozenset({*WORK, "inventories", "references"})
"""Folders of the workspace of which :class:`References` names what is kept."""
ROOMS = _REFERRED_TO | {"plans", "shards", "staged", "extracted", "scratch", MARKERS}
"""Folders of the workspace in which something may be cleared."""
_ID = re.compile(r"[0-9a-f]{16,64}")
_BY_SNAPSHOT = ("plans", "shards")
_TRANSFORM = ("transform_fn", "transformed_metadata", "metadata")
_FOLDERS = frozenset({"index", SERVING, *_TRANSFORM})
_BYTECODE = re.compile(r"(?<=^reader/)__pycache__/([^/.]+)\.[^/]+\.pyc$")
_FILES = re.compile(
    rf"{BUILD}|{CROISSANT}|{SCHEMA}|{REJECTS}|{STATISTICS}|{STATISTICS_PB}|{TFDS_INFO}"
    rf"|{TFDS_FEATURES}|{REPORT}"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GcReport:
    """What was cleared, or would be.

    Attributes:
        paths: The files, each with its folder.
        num_bytes: Their total size.
        expired: Folders of published snapshots that were cleared: those that are not to be kept.
        unpublished: Folders of snapshots that were never published, all cleared.
        busy: Folders that were left alone because a build is running there, or a step-by-step build
            began within the last 7 days and has not published yet.
        links: Symbolic links where snapshots or workspaces should be; they are not followed.
        foreign: Workspaces of another output root, from which this one was copied or moved; they
            are not touched.
        unexplained: Snapshots without a valid ``build.json``: all work beside them is kept, since
            it is unknown what they are made of.
    """

    paths: tuple[str, ...] = ()
    num_bytes: int = 0
    expired: tuple[str, ...] = ()
    unpublished: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()

    @property
    def num_files(self) -> int:
        """Number of files."""
        return len(self.paths)

    def to_json(self) -> dict[str, object]:
        """As plain JSON."""
        return {"num_files": self.num_files, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file below the folder of a name.

    Attributes:
        path: Relative to that folder.
        num_bytes: Its length.
        modified_ns: When it was last written, in ns since 1970; None if the store does not say.
        is_link: Whether it is a symbolic link, or anything else but a file.
        elsewhere: Its workspace, if that is outside the name's folder; ``path`` is then as if it
            were inside.
    """

    path: str
    num_bytes: int
    modified_ns: int | None
    is_link: bool = False
    elsewhere: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class References:
    """What published snapshots refer to.

    Attributes:
        published: Fingerprints of the published snapshots.
        work: Folder of the workspace -> ids of what is kept in it; None keeps everything,
            since a snapshot does not say what it was made of.
        unexplained: The snapshots that do not say it.
    """

    published: frozenset[str]
    work: dict[str, frozenset[str]] | None
    unexplained: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention:
    """Which published snapshots of each name are kept; by default all of them.

    The one that ``latest.json`` names is always kept, and those whose ``build.json`` does not say
    when they were built. Others are cleared if every limit that is given allows it.

    Attributes:
        num: The number of newest snapshots to keep, and of newest samples.
        seconds: Snapshots whose build began within this time are kept.
    """

    num: int | None = None
    seconds: float | None = None

    def expired(self, started: Mapping[str, float], *, latest: str) -> frozenset[str]:
        """The snapshots to clear.

        Args:
            started: When the builds began, in seconds since 1970, by fingerprint.
            latest: The fingerprint that ``latest.json`` names; empty if there is none.
        """
        if self.num is None and self.seconds is None:
            return frozenset()
        newest_first = sorted(started, key=lambda name: (-started[name], name))
        limit = time.time() - (self.seconds or 0)
        old = {name for name in newest_first[self.num or 0 :] if started[name] <= limit}
        return frozenset(old - {latest})


def collect_garbage(
    folder: str, *, dry_run: bool = False, retention: Retention | None = None
) -> GcReport:
    """Clears what no published snapshot refers to, and snapshots that are not to be kept.

    Args:
        folder: An output root, or the folder of one name in it; a local path or URL.
        dry_run: Only reports what would be removed; writes nothing.
        retention: Which published snapshots to keep; None for all.

    Raises:
        RecipeError: if it is neither.
        StorageError: if something cannot be listed or removed.
    """
    reports = []
    for name in name_folders(folder):
        foreign = foreign_workspace(name)
        report = _collect(name, retention or Retention(), dry_run=dry_run)
        reports.append(dataclasses.replace(report, foreign=(foreign,) if foreign else ()))
    reports.append(_collect_temporary(dry_run=dry_run))
    return GcReport(
        paths=tuple(path for report in reports for path in report.paths),
        num_bytes=sum(report.num_bytes for report in reports),
        expired=tuple(path for report in reports for path in report.expired),
        unpublished=tuple(path for report in reports for path in report.unpublished),
        busy=tuple(path for report in reports for path in report.busy),
        links=tuple(path for report in reports for path in report.links),
        foreign=tuple(path for report in reports for path in report.foreign),
        unexplained=tuple(path for report in reports for path in report.unexplained),
    )


def _collect(folder: str, retention: Retention, *, dry_run: bool) -> GcReport:
    workspace = find_workspace(folder)
    with _alone(folder, workspace, write=not dry_run) as held:
        if held is False or _under_way(folder, workspace):
            return GcReport(busy=(folder,))
        files = [*_stored_files(folder), *_files_elsewhere(folder, workspace)]
        # Listings may lag: a name that is in either of the two exists.
        names = {*storage.list_names(folder), *(file.path.split("/")[0] for file in files)}
        found = {name for name in names if FINGERPRINT.fullmatch(name)}
        links = [name for name in sorted({*found, WORKSPACE}) if is_link(join(folder, name))]
        young: set[StoredFile] = set()
        if not held:
            limit = time.time_ns() - SAFE_AGE_S * 10**9
            young = {file for file in files if file.modified_ns is None or file.modified_ns > limit}
        expired = _expired(folder, found - set(links), retention)
        expired -= {file.path.split("/")[0] for file in young}
        kept = _references(folder, found - expired, references(workspace))
        unpublished = found - kept.published - expired - set(links)
        garbage = choose_garbage(files, kept)
        manifests = {f"{name}/{MANIFEST}" for name in expired}
        garbage += [file for file in files if file.path in manifests and not file.is_link]
        if not held:
            spared = unpublished & {file.path.split("/")[0] for file in young}
            unpublished -= spared
            garbage = [
                file
                for file in garbage
                if file not in young and file.path.split("/")[0] not in spared
            ]
        going = set(garbage)
        # A folder that holds anything else stays.
        unpublished -= {file.path.split("/")[0] for file in files if file not in going}
        if not dry_run:
            places = {join(folder, WORKSPACE), workspace.root}
            remove_garbage(
                folder, garbage, unpublished, expired=expired, places=places, alone=bool(held)
            )
        return GcReport(
            paths=tuple(_url(folder, file) for file in garbage),
            num_bytes=sum(file.num_bytes for file in garbage),
            expired=tuple(join(folder, name) for name in sorted(expired)),
            unpublished=tuple(join(folder, name) for name in sorted(unpublished)),
            links=tuple(join(folder, name) for name in links),
            unexplained=tuple(join(folder, name) for name in kept.unexplained),
        )


def _collect_temporary(*, dry_run: bool) -> GcReport:
    """Clears what killed builds left among this machine's temporary files."""
    with storage.abandoned_folders(tempfile.gettempdir()) as folders:
        files = [
            dataclasses.replace(file, path=os.path.join(folder, file.path))
            for folder in folders
            for file in _stored_files(folder)
        ]
        if not dry_run:
            for folder in folders:
                storage.remove_tree(folder)
    return GcReport(
        paths=tuple(file.path for file in files),
        num_bytes=sum(file.num_bytes for file in files),
    )


@contextlib.contextmanager
def _alone(folder: str, workspace: Workspace, *, write: bool) -> Iterator[bool | None]:
    """Keeps builds out of a name's folder and its workspace, as :func:`alone` does for one."""
    inside = Workspace(join(folder, WORKSPACE))
    places = [inside] if workspace == inside else [inside, workspace]
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(alone(place, write=write)) for place in places]
        yield False if False in held else None if None in held else True


def _url(folder: str, file: StoredFile) -> str:
    if not file.elsewhere:
        return join(folder, file.path)
    return join(file.elsewhere, file.path.removeprefix(f"{WORKSPACE}/"))


def _files_elsewhere(folder: str, workspace: Workspace) -> Iterator[StoredFile]:
    """The files of a workspace that does not lie in the folder of its name."""
    if workspace.root != join(folder, WORKSPACE):
        for file in _stored_files(workspace.root):
            path = f"{WORKSPACE}/{file.path}"
            yield dataclasses.replace(file, path=path, elsewhere=workspace.root)


def _under_way(folder: str, workspace: Workspace) -> bool:
    """Whether a step-by-step build has not published yet: until then nothing refers to its work."""
    return any(
        reference.started > time.time() - STEPS_AGE_S
        and not _is_published(folder, reference.fingerprint)
        for reference in references(workspace).values()
    )


def _is_published(folder: str, fingerprint: str) -> bool:
    return storage.exists(join(folder, fingerprint, MANIFEST))


def remove_garbage(
    folder: str,
    garbage: Sequence[StoredFile],
    unpublished: Set[str],
    *,
    expired: Set[str],
    places: Set[str],
    alone: bool,
) -> None:
    """Removes garbage, unless a build has published its snapshot in the meantime."""
    # Commits go first, manifests before others: if this is killed, nothing half removed looks
    # finished.
    published: dict[str, bool] = {}
    spared: set[str] = set()
    for file in sorted(garbage, key=lambda file: (_commit_rank(file.path), file.path)):
        top = file.path.split("/")[0]
        if not alone and top in unpublished:
            # A build that resumed may have published it meanwhile.
            if top not in published:
                published[top] = storage.exists(join(folder, top, MANIFEST))
            if published[top]:
                continue
        if not alone and top in expired and file.path == f"{top}/{MANIFEST}":
            # A build may have found it meanwhile, and made it the latest.
            spared |= {top} & {_latest(folder)}
        if top in spared:
            continue
        storage.remove_tree(_url(folder, file))
    rooms = [join(place, room) for place in sorted(places) for room in sorted(ROOMS)]
    for top in (*rooms, *(join(folder, name) for name in sorted({*unpublished, *expired}))):
        if storage.is_local(top):
            _remove_empty(storage.local_path(top))


def _remove_empty(top: str) -> None:
    """Removes a local folder and its subfolders if they are empty; follows no link."""
    if any(os.path.islink(path) for path in (top, os.path.dirname(top))):
        return
    for parent, _, _ in os.walk(top, topdown=False):
        # It holds what is kept, or a build has just begun to use it.
        with contextlib.suppress(OSError):
            os.rmdir(parent)


def _commit_rank(path: str) -> int:
    """0 for a manifest, which commits its snapshot; 1 for files that commit work; 2 for others."""
    parts = path.split("/")
    if parts[1:] == [MANIFEST]:
        return 0
    is_commit = parts[0] == WORKSPACE and (parts[1], path.rsplit(".")[-1]) in _COMMITS
    return 1 if is_commit else 2


def _latest(folder: str) -> str:
    """The fingerprint that ``latest.json`` names; empty if there is none."""
    pointer = join(folder, LATEST)
    return read_latest(pointer) if storage.exists(pointer) else ""


def _expired(folder: str, found: Set[str], retention: Retention) -> frozenset[str]:
    """The published snapshots among these that are not to be kept."""
    if retention == Retention():
        return frozenset()
    complete: dict[str, float] = {}
    samples: dict[str, float] = {}
    for name in found:
        path = join(folder, name)
        with contextlib.suppress(DamagedSnapshotError, RecipeError, ValueError):  # these are kept
            manifest = Snapshot.open(path).manifest
            when = time.strptime(str(build_facts(path).get("started")), STARTED_FORMAT)
            of_kind = complete if manifest.limit is None else samples
            of_kind[name] = float(calendar.timegm(when))
    latest = _latest(folder)
    return frozenset().union(*(retention.expired(d, latest=latest) for d in (complete, samples)))


def _references(folder: str, found: Set[str], known: Mapping[str, Reference]) -> References:
    """Reads what the published snapshots among these were made of."""
    published = {name for name in found if storage.exists(join(folder, name, MANIFEST))}
    work: dict[str, set[str]] = {room: set() for room in WORK}
    unexplained = []
    for name in sorted(published):
        try:
            work_of = json.loads(storage.read_bytes(join(folder, name, BUILD)))["work"]
            for room, key in WORK.items():
                value = work_of.get(key) or []
                ids = [value] if isinstance(value, str) else value
                # A graph is named by its folder.
                work[room].update(str(one).rstrip("/").rsplit("/", 1)[-1] for one in ids)
        except (StorageError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            unexplained.append(name)
    if unexplained:
        return References(published=frozenset(published), work=None, unexplained=tuple(unexplained))
    current = {name: one for name, one in known.items() if one.fingerprint in published}
    work["references"] = set(current)
    work["inventories"] = {one.inventory for one in current.values()}
    kept = {room: frozenset(ids) for room, ids in work.items()}
    return References(published=frozenset(published), work=kept)


def _stored_files(folder: str) -> Iterator[StoredFile]:
    """All files below a folder; links are not followed."""
    if storage.is_local(folder):
        root = storage.local_path(folder)
        for parent, folders, names in os.walk(root):
            # Links to folders are listed among these.
            for name in (*names, *(n for n in folders if os.path.islink(os.path.join(parent, n)))):
                path = os.path.join(parent, name)
                try:
                    status = os.lstat(path)
                except FileNotFoundError:
                    continue
                yield StoredFile(
                    path=os.path.relpath(path, root),
                    num_bytes=status.st_size,
                    modified_ns=status.st_mtime_ns,
                    is_link=not stat.S_ISREG(status.st_mode),
                )
        return
    with storage.failing_as_storage_error("list", folder):
        filesystem, root = storage.filesystem(folder)
        listed = storage.find_remote(filesystem, root)
    for path, info in listed.items():
        yield StoredFile(
            path=path.removeprefix(root.rstrip("/") + "/"),
            num_bytes=int(info.get("size") or 0),
            modified_ns=modified_ns(info),
        )


def choose_garbage(files: Sequence[StoredFile], references: References) -> list[StoredFile]:
    """The files that nothing refers to, in their order.

    Args:
        files: All files below the folder of a name.
        references: What published snapshots refer to.
    """
    return [
        file for file in files if not file.is_link and _is_garbage(file.path.split("/"), references)
    ]


def is_snapshot_file(path: str) -> bool:
    """Whether a build may have written this file of a snapshot's folder before the manifest.

    >>> paths = ("reader/facts.py", "reader.py", "index/a.idx", "reader/notes.txt", "notes.txt")
    >>> [is_snapshot_file(path) for path in paths]
    [True, True, True, False, False]

    Likewise what Python made of its reader for trainers that imported it.

    >>> is_snapshot_file("reader/__pycache__/facts.cpython-311.pyc")
    True
    """
    path = _BYTECODE.sub(r"\1.py", path)
    first, *rest = path.split("/")
    if rest:
        return first in _FOLDERS or is_reader_file(path)
    return (
        _FILES.fullmatch(first) is not None
        or is_reader_file(first)
        or ShardName.parse(first) is not None
    )


def _is_garbage(parts: list[str], references: References) -> bool:
    in_snapshot = FINGERPRINT.fullmatch(parts[0]) is not None
    if storage.TEMPORARY.fullmatch(parts[-1]):
        return len(parts) == 1 or parts[0] == WORKSPACE or in_snapshot
    if parts[0] != WORKSPACE:
        if not in_snapshot or parts[0] in references.published or len(parts) < 2:
            return False
        return is_snapshot_file("/".join(parts[1:]))
    return len(parts) > 2 and _is_garbage_work(parts[1], parts[2:], references)


def _is_garbage_work(room: str, rest: list[str], references: References) -> bool:
    # runs/<two digits>/<run id>.…; elsewhere the id comes first.
    name = rest[1] if room == "runs" and len(rest) > 1 else rest[0]
    name = name.split(".")[0]
    if room == "scratch":
        return name.startswith(storage.SCRATCH)
    if room not in ROOMS or not _ID.fullmatch(name):
        return False
    if room in _BY_SNAPSHOT:
        return name not in references.published
    if room in _REFERRED_TO:
        return references.work is not None and name not in references.work[room]
    # A build stages and extracts again, and adds what is missing.
    return True
