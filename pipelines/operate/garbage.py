"""Chooses what garbage collection clears: snapshard's files that nothing refers to. Pure.

A file is snapshard's if its place and name are. All others stay, wherever they are.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from ...schemas.naming import (
    BUILD,
    REJECTS,
    SCHEMA,
    SERVING,
    WORKSPACE,
    ShardName,
    is_reader_file,
)
from ...transforms import storage
from ..locks import MARKERS

FINGERPRINT = re.compile(r"[0-9a-f]{16}")
"""Names of snapshots' folders."""

WORK = {"runs": "runs", "summaries": "summary", "graphs": "graph", "blocks": "blocks"}
"""Folders of the workspace -> the keys in ``build.json`` that name what a snapshot was made of."""

_REFERRED_TO = frozenset({*WORK, "inventories", "references"})
"""Folders of the workspace of which :class:`References` names what is kept."""

_OLD_ROOMS = frozenset({"amended", "chains"})
"""Folders that earlier versions left."""

ROOMS = _REFERRED_TO | {"plans", "shards", "staged", "extracted", "scratch", MARKERS} | _OLD_ROOMS
"""Folders of the workspace in which something may be cleared."""

_ID = re.compile(r"[0-9a-f]{16,64}")
_BY_SNAPSHOT = ("plans", "shards")
_TRANSFORM = ("transform_fn", "transformed_metadata", "metadata")
_FOLDERS = frozenset({"index", SERVING, *_TRANSFORM})
_FILES = re.compile(rf"{BUILD}|{SCHEMA}|{REJECTS}|statistics\.pb|report\.html")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file below the folder of a name.

    Attributes:
        path: Relative to that folder.
        num_bytes: Its length.
        modified_ns: When it was last written, in ns since 1970; None if the store does not say.
        is_link: Whether it is a symbolic link, or anything else but a file.
        elsewhere: Its workspace, if that is not in the folder of the name; ``path`` is what it
            would be there.
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
        work: Folder of the workspace -> ids of what is kept in it; None keeps all, where a
            snapshot does not tell what it was made of.
    """

    published: frozenset[str]
    work: dict[str, frozenset[str]] | None


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
    """Whether a build may have put this file, relative to a snapshot's folder, before a manifest.

    >>> paths = ("reader/facts.py", "reader.py", "index/a.idx", "reader/notes.txt", "notes.txt")
    >>> [is_snapshot_file(path) for path in paths]
    [True, True, True, False, False]
    """
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
    if room in _OLD_ROOMS:
        return True
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
