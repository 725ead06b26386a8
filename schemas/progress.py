"""The protocol by which steps tell how far they are; ``terminal`` draws it, tests record it."""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import Protocol

BUILD_FOLDER = "SNAPSHARD_BUILD"
"""The environment variable that names, to each process that a build starts, the build's folder."""

BUILD_HERE: ContextVar[str | None] = ContextVar("build_folder", default=None)
"""The folder of the build that this thread runs."""


def build_folder() -> str | None:
    """The folder of the build that this thread runs, or this process works for; None for none."""
    return BUILD_HERE.get() or os.environ.get(BUILD_FOLDER)


def child_environment() -> dict[str, str]:
    """The environment of a process that a build starts, which ends with the build."""
    folder = build_folder()
    return {**os.environ, **({} if folder is None else {BUILD_FOLDER: folder})}


class Progress(Protocol):
    """Told of each step's start, advance and end, from one thread at a time."""

    def start(self, step: str, *, total: int | None, unit: str) -> None:
        """A step begins: ``total`` units to do (None: unknown), for example blocks."""

    def advance(self, step: str, *, done: int) -> None:
        """``done`` units of the step are done by now, the ones reused included."""

    def finish(self, step: str, *, reused: bool, note: str = "") -> None:
        """The step ended; ``reused`` where its output was there already."""

    def warn(self, message: str) -> None:
        """Something may be wrong, and the build goes on."""


class Silent:
    """Progress that nobody watches."""

    def start(self, step: str, *, total: int | None, unit: str) -> None:
        """Does nothing."""

    def advance(self, step: str, *, done: int) -> None:
        """Does nothing."""

    def finish(self, step: str, *, reused: bool, note: str = "") -> None:
        """Does nothing."""

    def warn(self, message: str) -> None:
        """Does nothing."""
