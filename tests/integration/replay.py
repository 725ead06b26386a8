"""Builds whose durable operations are recorded, and outputs as they are after some of them.

A build that is killed leaves what it has put by then, the file that it was about to put under a
temporary name, and a scratch folder. Here such an output is made of the log of a whole build, and
the next build runs in this process: an output for every operation costs less than one real kill.
What only a real one shows, locks and processes that are left, is in ``test_kills.py``.
"""

import contextlib
import dataclasses
import functools
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from snapshard.pipelines.build import build
from snapshard.pipelines.recipe.shipping import load_recipe_file

from ..small_blocks import small_blocks
from .faults import look
from .killed_builds import BLOCK_BYTES, around_puts


@dataclasses.dataclass(frozen=True)
class Operation:
    """A file that was put, or something that was removed."""

    path: str
    """Relative to the output root."""
    content: bytes | None
    """None for what was removed."""

    @property
    def kind(self) -> str:
        """The path without what names one of many."""
        return functools.reduce(lambda path, name: re.sub(*name, path), _NAMES, self.path)


_NAMES = (
    (r"^\w+/", ""),
    (r"[0-9a-f]{16,}|(?<=runs/)[0-9a-f]{2}|train|validation|test", "*"),
    (r"\.(plain|by-\w+)\.keys", ".keys"),
    (r"(?<=/)(reader|serving|metadata|transform\w+)/.*", "*"),
)
"""What names one file of many in a path, and what stands for it."""

Log = tuple[Operation, ...]


def record(recipe: Path, out: Path, **options: Any) -> Log:
    """Builds a recipe's file in this process, in small blocks; gives its operations in order."""
    operations: list[Operation] = []
    scratch = out / recipe.stem / ".work" / "scratch"
    # One at a time, so that each lies there when the next begins, as in the log.
    lock = threading.RLock()

    @contextlib.contextmanager
    def noted(url: str) -> Iterator[None]:
        with lock:
            yield
            path = Path(url)
            content = path.read_bytes() if path.exists() else None
            if not path.is_relative_to(scratch):
                operations.append(Operation(str(path.relative_to(out)), content))

    with pytest.MonkeyPatch.context() as patched, around_puts(noted):
        small_blocks(patched, BLOCK_BYTES)
        build(load_recipe_file(recipe), out, **{"workers": 1, **options})
    return tuple(operations)


def replay(operations: Iterable[Operation], out: Path) -> None:
    """Makes an output root what it is after these operations."""
    for operation in operations:
        path = out / operation.path
        if operation.content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(operation.content)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def leave_unfinished(operation: Operation, out: Path) -> None:
    """What a process leaves that is killed halfway through an operation."""
    path = out / operation.path
    half = (operation.content or b"")[: len(operation.content or b"") // 2]
    scratch = out / operation.path.partition("/")[0] / ".work/scratch/snapshard-killed.held/file"
    for left in (path.with_name(f".{0:032x}.tmp"), scratch):
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_bytes(half)


def files_of(out: Path) -> dict[str, bytes]:
    """The files of an output root that builds put there."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and path.name not in ("lock", "report.html")
    }


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A recipe, and the log of its build."""

    recipe: Path
    log: Log
    published: dict[str, str]
    """What a reader finds in the end, as :func:`look` gives it."""

    @classmethod
    def of(cls, recipe: Path, out: Path) -> "Recorded":
        """Builds a recipe's file, whose name is the recipe's."""
        log = record(recipe, out)
        return cls(recipe, log, look(out / recipe.stem))

    def index(self, pattern: str) -> int:
        """The number of the first operation on a path in the name's folder that matches."""
        prefix = f"{self.recipe.stem}/"
        return next(
            at
            for at, operation in enumerate(self.log)
            if re.match(pattern, operation.path.removeprefix(prefix))
        )

    def go_on(self, out: Path, **options: Any) -> Log:
        """Builds to the end; gives what that took, once the result is that of the log."""
        log = record(self.recipe, out, **options)
        assert look(out / self.recipe.stem) == self.published
        return log


def ends_of_kinds(log: Log, *, known: Log = ()) -> list[int]:
    """The numbers of the first and last operation of each kind that is not in another log."""
    kinds = [operation.kind for operation in log]
    new = set(kinds) - {operation.kind for operation in known}
    first = {kinds.index(kind) for kind in new}
    return sorted(first | {len(kinds) - 1 - kinds[::-1].index(kind) for kind in new})
