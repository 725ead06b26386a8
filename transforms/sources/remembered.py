"""What a source has found out of a file's content before: kept by the content, so never stale.

A build hands its sources an opened root that remembers between builds
(``pipelines.inventory.inference_cache``); any other computes each time. So inferring features
costs nothing where no content has changed, and where one has, the time of that one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

from ...schemas.recipe import OpenSource

_T = TypeVar("_T")


@runtime_checkable
class Remembers(Protocol):
    """An opened source that keeps what was computed, for the next build."""

    def remembered(self, content: str, what: str, compute: Callable[[], Any]) -> Any:
        """As :func:`remembered` says."""


def remembered(opened: OpenSource, content: str, what: str, compute: Callable[[], _T]) -> _T:
    """What ``compute`` gave before for the same content and source settings, else now.

    Args:
        opened: The source's root.
        content: sha256 of all that is read, hex; empty where it is not known.
        what: Names what is computed, and all it depends on beside the content and what the
            source's ``settings()`` say.
        compute: Gives plain JSON (tuples come back as lists). What it raises is not kept.
    """
    if content and isinstance(opened, Remembers):
        found: _T = opened.remembered(content, what, compute)
        return found
    return compute()
