"""The protocol by which steps report progress; ``terminal`` displays it, tests record it."""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import NamedTuple, Protocol

BUILD_FOLDER = "SNAPSHARD_BUILD"
"""The environment variable that passes the build's folder to each process that a build starts."""

BUILD_HERE: ContextVar[str | None] = ContextVar("build_folder", default=None)
"""The folder of the build that this thread runs."""


def build_folder() -> str | None:
    """The folder of the build that this thread or process works for; None outside a build."""
    return BUILD_HERE.get() or os.environ.get(BUILD_FOLDER)


def child_environment() -> dict[str, str]:
    """The environment for a process that a build starts and that must end with it."""
    folder = build_folder()
    return {**os.environ, **({} if folder is None else {BUILD_FOLDER: folder})}


class Counted(NamedTuple):
    """What the processes of a build on this machine have worked on."""

    records: int = 0
    rejects: int = 0
    num_bytes: int = 0
    """Size of the records in memory or as examples, uncompressed."""

    def since(self, before: Counted) -> Counted:
        """What was added to ``before``."""
        return Counted(*(now - then for now, then in zip(self, before, strict=True)))


class Progress(Protocol):
    """Receives each step's start, progress and end, from one thread at a time."""

    def start(self, step: str, *, total: int | None, unit: str) -> None:
        """A step begins: ``total`` units of work (None: unknown), for example blocks."""

    def advance(self, step: str, *, done: int) -> None:
        """``done`` units of the step are done so far, including reused ones."""

    def count(self, step: str, counted: Counted) -> None:
        """What the step has worked on so far, also of unfinished units; without reused ones."""

    def finish(self, step: str, *, reused: bool, note: str = "") -> None:
        """The step ended; ``reused`` if its output already existed."""

    def warn(self, message: str) -> None:
        """Something may be wrong; the build continues."""


class Silent:
    """Ignores all progress."""

    def start(self, step: str, *, total: int | None, unit: str) -> None:
        """Does nothing."""

    def advance(self, step: str, *, done: int) -> None:
        """Does nothing."""

    def count(self, step: str, counted: Counted) -> None:
        """Does nothing."""

    def finish(self, step: str, *, reused: bool, note: str = "") -> None:
        """Does nothing."""

    def warn(self, message: str) -> None:
        """Does nothing."""
