"""What a store says of a file that changes with its content: tags, or when it was written."""

from __future__ import annotations

import datetime
import email.utils
import os
import re
from collections.abc import Mapping
from typing import Any

_TAGS = ("md5Hash", "content_md5", "ETag", "etag", "generation", "crc32c", "md5", "checksum")
_TIMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")
_STAMPED = re.compile(r"\btime:([0-9]+(?:,[0-9]+)*)")


def stamp_of(info: Mapping[str, Any]) -> str:
    """What a store says that changes with a file's content; empty where it says nothing."""
    tags = [f"{name}:{info[name]}" for name in _TAGS if info.get(name)]
    if tags:
        return " ".join(tags)
    modified = modified_ns(info)
    return "" if modified is None else f"time:{modified}"


def stamp_of_local(found: os.stat_result) -> str:
    """What changes when a file of this machine is written to, replaced, or another takes its place.

    The time of the inode's last change tells a file put in place with its old time; the inode's
    number, one of two that were written within one tick of the clock.
    """
    return f"time:{found.st_mtime_ns},{found.st_ctime_ns} inode:{found.st_ino}"


def times_in(stamp: str) -> list[int]:
    """The times in ns since 1970 that a stamp consists of; [] where it consists of tags.

    Of two the second is that of the inode's last change. Members of archives have their archive's.

    >>> times_in("time:1700000000000000000,1700000000123456789"), times_in('ETag:"5d41402a"')
    ([1700000000000000000, 1700000000123456789], [])
    """
    found = _STAMPED.search(stamp)
    return [] if found is None else [int(time) for time in found[1].split(",")]


def modified_ns(info: Mapping[str, Any]) -> int | None:
    """When a file was last written, in ns since 1970, as fsspec's ``info`` of it tells."""
    found = next((info[name] for name in _TIMES if info.get(name)), None)
    if isinstance(found, str):
        try:
            found = datetime.datetime.fromisoformat(found)
        except ValueError:
            try:
                found = email.utils.parsedate_to_datetime(str(found))  # of HTTP
            except ValueError:
                return None
    if isinstance(found, datetime.datetime):
        found = found.timestamp()
    return int(found * 1e9) if isinstance(found, int | float) else None
