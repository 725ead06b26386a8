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
    # All places of the pattern at once: a path from an archive may have thousands of parts.
    places = {0}
    for part in parts:
        pending, places = sorted(places), set()
        for place in pending:
            if place == len(pattern):
                return True
            if pattern[place] == "**":
                places.add(place)
                if place + 1 not in pending:
                    pending.append(place + 1)
            elif fnmatch.fnmatchcase(part, pattern[place]):
                places.add(place + 1)
    return len(pattern) in places


def may_hold(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a path matches a glob, or may be a folder of paths that do."""
    for part, wanted in zip(parts, pattern, strict=False):
        if wanted == "**":
            return True
        if not fnmatch.fnmatchcase(part, wanted):
            return False
    return True


def is_hidden(path: str) -> bool:
    """Whether a file, or a folder that it lies in, has a name that begins with a dot.

    >>> [is_hidden(path) for path in ("a/.git/b.csv", ".a.csv", "../a.csv", "a.csv")]
    [True, True, False, False]
    """
    # A path out of an archive is a reject, not one to leave out unseen.
    return any(part.startswith(".") and part != ".." for part in path.split("/"))
