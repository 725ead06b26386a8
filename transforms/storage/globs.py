"""Path patterns: ``*``, ``?``, ``[…]`` within a part, ``**`` for any depth; and hidden paths."""

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
    """Whether a glob matches a path or one of its parent folders; ``**`` is any depth."""
    # All positions in the pattern at once: a path from an archive may have thousands of parts.
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
    """Whether a path matches a glob, or may be a folder of paths that match."""
    for part, wanted in zip(parts, pattern, strict=False):
        if wanted == "**":
            return True
        if not fnmatch.fnmatchcase(part, wanted):
            return False
    return True


def is_hidden(path: str) -> bool:
    """Whether the name of a file, or of a folder above it, begins with a dot.

    >>> [is_hidden(path) for path in ("a/.git/b.csv", ".a.csv", "../a.csv", "a.csv")]
    [True, True, False, False]
    """
    # A path that leads out of an archive must become a reject, not be skipped silently.
    return any(part.startswith(".") and part != ".." for part in path.split("/"))
