"""Recognizes the pointers of Git LFS: small texts that stand for files that were not downloaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from ...schemas.errors import DataError

PROBLEM = "Git LFS pointer"
"""The problem of a file that is one."""
MAX_BYTES = 1024
"""The specification's limit on the size of a pointer."""
_BEGINNING = b"version https://git-lfs"


class _File(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def num_bytes(self) -> int: ...


_F = TypeVar("_F", bound=_File)


def is_pointer(content: bytes) -> bool:
    """Whether the content of a file, or its beginning, is that of a pointer."""
    return content.startswith(_BEGINNING)


def may_be_pointers(files: Iterable[_F]) -> Iterator[_F]:
    """The files of the size of pointers."""
    return (file for file in files if len(_BEGINNING) < file.num_bytes <= MAX_BYTES)


def refusal(shown: str, *, num: int = 1, first: str = "") -> DataError:
    """The error for a file or folder that holds pointers.

    Args:
        shown: The file or folder.
        num: How many pointers a folder holds.
        first: One of them.
    """
    among = f"{num:,} of the files in {shown} are Git LFS pointers (first: {first!r})"
    what = among if first else f"{shown} is a Git LFS pointer"
    return DataError(
        f"{what}: a text that stands for the data, which was not downloaded. Run this in the "
        "repository: git lfs pull"
    )
