"""The protocol by which steps tell how far they are; ``terminal`` draws it, tests record it."""

from __future__ import annotations

from typing import Protocol

BUILD_FOLDER = "SNAPSHARD_BUILD"
"""The environment variable that names, to each process that a build starts, the build's folder."""


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
