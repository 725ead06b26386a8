"""Patterns of paths: ``*``, ``?``, ``[…]`` within a part, ``**`` for any depth; and hidden ones."""

from __future__ import annotations

import fnmatch
import re

_MAGIC = re.compile(r"[*?\[]")


def split_glob(path: str) -> tuple[str, tuple[str, ...]]:
    """The last folder before the first wildcard, and the parts after it."""
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    root = "/".join(parts[:first])
    return root or ("/" if path.startswith("/") else ""), tuple(parts[first:])


def matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a glob matches a path, or a folder that holds it; ``**`` is any depth."""
    if not pattern:
        return True
    if not parts:
        return False
    if pattern[0] == "**":
        return matches(parts, pattern[1:]) or matches(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and matches(parts[1:], pattern[1:])


def may_hold(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a path matches a glob, or may be a folder of paths that do."""
    for part, wanted in zip(parts, pattern, strict=False):
        if wanted == "**":
            return True
        if not fnmatch.fnmatchcase(part, wanted):
            return False
    return True


def is_hidden(path: str) -> bool:
    """Whether a file, or a folder that it lies in, has a name that begins with a dot."""
    return any(part.startswith(".") for part in path.split("/"))
