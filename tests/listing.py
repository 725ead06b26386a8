"""A machine that lists folders in another order."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

_scandir = os.scandir


class _Backwards:
    """``os.scandir``, from the last entry to the first."""

    def __init__(self, path: Any = ".") -> None:
        with _scandir(path) as entries:
            self._entries = reversed(list(entries))

    def __enter__(self) -> "_Backwards":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)


def list_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists local folders in the opposite order."""
    monkeypatch.setattr(os, "scandir", _Backwards)
