"""Caches what sources compute from a file's content. Keyed by content, so entries are never stale.

A build passes its sources an opened root that caches between builds
(``pipelines.inventory.inference_cache``); other roots compute each time. Feature inference thus
only reads files whose content has changed, and small files near them (``bundles``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

from ...schemas.recipe import OpenSource

_T = TypeVar("_T")


@runtime_checkable
class Remembers(Protocol):
    """An opened source that keeps computed values for the next build."""

    def remembered(self, content: str, what: str, compute: Callable[[], Any]) -> Any:
        """See :func:`remembered`."""


def remembered(opened: OpenSource, content: str, what: str, compute: Callable[[], _T]) -> _T:
    """The cached result of ``compute`` for the same content and source settings, if any.

    Args:
        opened: The source's root.
        content: SHA-256 of everything that is read, hex; empty if unknown.
        what: Identifies the computation, and everything it depends on besides the content and the
            source's ``settings()``.
        compute: Returns plain JSON (tuples come back as lists). Exceptions are not cached.
    """
    if content and isinstance(opened, Remembers):
        found: _T = opened.remembered(content, what, compute)
        return found
    return compute()
