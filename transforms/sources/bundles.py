"""Reads many small files at once, and caches what sources compute from files.

A call of pyarrow takes about a millisecond, much longer than parsing a file of a few rows. Small
files are therefore parsed together, in bundles, wherever that gives the result of parsing one after
another; everything else is left to the code that reads a single file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from ...schemas.recipe import OpenSource
from ..in_parts import in_parts
from ..storage.decompress import DamagedError
from .text_stream import Rows

SMALL_BYTES = 64 << 10
"""Maximum size of a file, and of its text, that is read together with others."""

_MAX_BYTES = 1 << 20
_MAX_FILES = 512
_FEW_FILES = 16
# A file ends a bundle if its hash begins with a number below this one, of 256.
_ENDS_BELOW = 2

_P = TypeVar("_P")
_T = TypeVar("_T")


class _Content(Protocol):
    @property
    def num_bytes(self) -> int: ...
    @property
    def sha256(self) -> str: ...


_F = TypeVar("_F", bound=_Content)


def bundles(files: Iterable[_F]) -> Iterator[list[_F]]:
    """Groups consecutive small files, about 128 in a bundle; others are bundles of one.

    Some contents end a bundle, so an added, changed or removed file changes its bundle and few
    others.
    """
    held: list[_F] = []
    num_bytes = 0
    for file in files:
        num_bytes += file.num_bytes
        full = num_bytes > _MAX_BYTES or len(held) == _MAX_FILES
        if held and (full or file.num_bytes > SMALL_BYTES):
            yield held
            held, num_bytes = [], file.num_bytes
        held.append(file)
        if file.num_bytes > SMALL_BYTES or _ends_bundle(file.sha256):
            yield held
            held, num_bytes = [], 0
    if held:
        yield held


def _ends_bundle(sha256: str) -> bool:
    return bool(sha256) and int(sha256[:2], 16) < _ENDS_BELOW


def content_of(bundle: Sequence[_Content]) -> str:
    """Hash of the contents of a bundle's files, hex; empty if that of one is unknown."""
    hashes = [file.sha256 for file in bundle]
    if len(hashes) == 1 or not all(hashes):
        return min(hashes)
    return hashlib.sha256("\n".join(hashes).encode("ascii")).hexdigest()


def small_windows(windows: Iterable[Rows]) -> list[Rows] | None:
    """The rows of a text; None if it is not to be read together with others.

    It is too large, damaged, or has a bad row.
    """
    kept: list[Rows] = []
    num_bytes = 0
    try:
        for rows in windows:
            num_bytes += len(rows.data)
            if rows.problem or num_bytes > SMALL_BYTES:
                return None
            kept.append(rows)
    except DamagedError:
        return None
    return kept


def read_bundle(
    bundle: Sequence[_P],
    *,
    small: Callable[[_P], _T | None],
    together: Callable[[list[_T]], Any | None],
    alone: Callable[[_P, _T | None], Iterable[Any]],
) -> Iterator[Any]:
    """What is made of the files of a bundle, in their order.

    Args:
        bundle: The files.
        small: Reads a file; None if it cannot be read together with others.
        together: What is made of several files; None if it might differ from what ``alone`` makes
            of one after another. Halves are tried then.
        alone: What is made of one file, which is not read again if ``small`` has read it.
    """
    read = [small(file) if len(bundle) > 1 else None for file in bundle]

    def make(start: int, stop: int) -> Any | None:
        texts = [text for text in read[start:stop] if text is not None]
        return together(texts) if len(texts) == stop - start else None

    for start, stop, made in in_parts(make, len(bundle), smallest=_FEW_FILES):
        if made is not None:
            yield made
            continue
        for file, text in zip(bundle[start:stop], read[start:stop], strict=True):
            yield from alone(file, text)


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
        value: _T = opened.remembered(content, what, compute)
        return value
    return compute()
