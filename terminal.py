"""What the command line shows: progress bars, tables, and errors as messages.

Progress and notes go to standard error, results to standard output, so that a pipe gets
results alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from .schemas.manifest import Manifest

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def show_error(message: str) -> None:
    """Prints an error, without markup of its own."""
    err.print("[bold red]error:[/]", end=" ")
    err.print(message, markup=False)


def show_note(message: str) -> None:
    """Prints a note on standard error."""
    err.print(message, style="dim", markup=False)


def human_bytes(size: float) -> str:
    """A size for people, in decimal units.

    >>> human_bytes(150_000_000)
    '150 MB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


class Bars:
    """Progress of each step as a bar on a terminal, as one line a step elsewhere."""

    def __init__(self) -> None:
        """Draws nothing yet."""
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._done: dict[str, int] = {}
        self._units: dict[str, str] = {}
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TextColumn("[dim]{task.fields[rate]}[/]"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("[dim]{task.fields[note]}[/]"),
            console=err,
        )

    def __enter__(self) -> Bars:
        if err.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if err.is_terminal:
            self._progress.stop()

    def start(self, step: str, *, total: int | None, unit: str) -> None:
        """A step begins."""
        self._started[step] = time.monotonic()
        self._done[step] = 0
        self._units[step] = unit
        self._tasks[step] = self._progress.add_task(step, total=total, unit=unit, rate="", note="")

    def advance(self, step: str, *, done: int) -> None:
        """``done`` units of the step are done."""
        seconds = time.monotonic() - self._started[step]
        rate = f"{done / seconds:,.1f}/s" if seconds > 1 and done else ""
        self._done[step] = done
        self._progress.update(self._tasks[step], completed=done, rate=rate)

    def finish(self, step: str, *, reused: bool, note: str = "") -> None:
        """The step ended."""
        words = ", ".join(filter(None, (note, "reused" if reused else "")))
        task = self._progress.tasks[self._tasks[step]]
        total = task.total if task.total is not None else 1
        self._progress.update(self._tasks[step], total=total, completed=total, note=words)
        if not err.is_terminal:
            seconds = time.monotonic() - self._started[step]
            amount = f"{total:,.0f} {self._units[step]}, " if task.total is not None else ""
            err.print(f"{step}: {amount}{seconds:.1f} s {words}".rstrip(), markup=False)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table on standard output; numbers stand on the right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    kept = [list(row) for row in rows]
    for index, column in enumerate(columns):
        numeric = bool(kept) and all(isinstance(row[index], int | float) for row in kept)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in kept:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row))
    out.print(table, markup=False)


def show_features(features: Mapping[str, object], title: str = "features") -> None:
    """Prints features, one a line."""
    show_table(title, ("feature", "type"), [(name, shorten(f)) for name, f in features.items()])


def shorten(value: object, limit: int = 160) -> str:
    """A value's text, cut where it is long."""
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]} …"


def show_splits(manifest: Manifest) -> None:
    """Prints the splits of a snapshot."""
    rows = []
    for name, split in manifest.splits.items():
        sizes = [shard.num_bytes for shard in split.shards]
        span = f"{human_bytes(min(sizes))} to {human_bytes(max(sizes))}" if sizes else "none"
        rows.append(
            (name, split.num_examples, len(split.shards), human_bytes(split.num_bytes), span)
        )
    show_table("splits", ("split", "examples", "shards", "size", "each shard"), rows)


def flush() -> None:
    """Makes sure that what was printed is out before a process ends."""
    sys.stdout.flush()
    sys.stderr.flush()
