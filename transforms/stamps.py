"""What a store says of a file that changes with its content: tags, or when it was written."""

from __future__ import annotations

import calendar
import datetime
import email.utils
from collections.abc import Mapping
from typing import Any

_TAGS = ("md5Hash", "content_md5", "ETag", "etag", "generation", "crc32c", "CRC", "md5", "checksum")
_TIMES = (
    "mtime",
    "LastModified",
    "last_modified",
    "Last-Modified",
    "updated",
    "date_time",
    "created",
)


def stamp_of(info: Mapping[str, Any]) -> str:
    """What a store says that changes with a file's content; empty where it says nothing."""
    tags = [f"{name}:{info[name]}" for name in _TAGS if info.get(name)]
    if tags:
        return " ".join(tags)
    modified = modified_ns(info)
    return "" if modified is None else f"time:{modified}"


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
    if isinstance(found, tuple):
        found = calendar.timegm((*found[:6], 0, 0, 0))
    if isinstance(found, datetime.datetime):
        found = found.timestamp()
    return int(found * 1e9) if isinstance(found, int | float) else None
