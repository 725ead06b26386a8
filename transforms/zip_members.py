"""Members of zip archives, read in parts: a part that follows another is read on from there.

What lies in a zip is compressed as one stream, which allows no jumps: opened anew for each part, a
member would be decompressed from its start as often as it has parts.
"""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Mapping
from typing import Any

from ..schemas.limits import FREE_BYTES

FOLDER_WITH_BYTES = "name of a folder, and bytes as a file has them"
"""The problem of a member whose name is damaged, most likely."""

_MAX_HELD = 4


class _Held(threading.local):
    """What one thread has open, with the archive that it is of.

    By process, archive and path. Archives are told by their identity, since those that were opened
    from one place are equal, whatever lies there now.
    """

    def __init__(self) -> None:
        self.members: collections.OrderedDict[tuple[int, int, str], tuple[Any, Any]]
        self.members = collections.OrderedDict()


_HELD = _Held()


def expansion_problem(info: Mapping[str, Any], max_expansion: int) -> str:
    """Why a listed member is not decompressed; empty where it may be, or is none of a zip.

    >>> expansion_problem({"file_size": 10**12, "compress_size": 10**6}, 250)
    'it would decompress to 1,000,000,000,000 bytes, over 250 times its own size'
    """
    size, packed = int(info.get("file_size") or 0), int(info.get("compress_size") or 0)
    if size <= FREE_BYTES or size <= packed * max_expansion:
        return ""
    return f"it would decompress to {size:,} bytes, over {max_expansion} times its own size"


def read_part(archive: Any, path: str, start: int, stop: int) -> bytes:
    """Reads bytes [start, stop) of a member; fewer at its end.

    Args:
        archive: An fsspec filesystem of a zip.
        path: The member's.
        start: The first byte. One behind what was read last in this thread costs nothing more.
        stop: Behind the last.

    Raises:
        Exception: what fsspec and zipfile raise of members that are not there, or damaged.
    """
    key = (os.getpid(), id(archive), path)
    held = _HELD.members.pop(key, None)
    member = archive.open(path, "rb") if held is None else held[1]
    try:
        member.seek(start)
        content = bytes(member.read(max(0, stop - start)))
        is_read = member.tell() >= member.size
    except BaseException:
        member.close()
        raise
    if is_read:
        member.close()
        return content
    _HELD.members[key] = archive, member
    if len(_HELD.members) > _MAX_HELD:
        _, (_, oldest) = _HELD.members.popitem(last=False)
        oldest.close()
    return content
