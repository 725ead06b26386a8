"""Shows on standard error how far a build is, and warnings: as bars, lines, or lines of JSON."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from collections.abc import Iterator

from rich.console import Console
from rich.errors import LiveError
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.text import Text

from ..schemas.progress import Counted
from ..schemas.visible import human_count, visible

# Neither markup nor emoji: the output contains names from the data.
err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
_RECENT_S = 60.0
"""The rate of a step is that of these last seconds."""
_LINE_S = 10.0
"""Where no bars are drawn, each step prints a line so often."""
_STYLES = {"error": "bold red", "warning": "yellow"}
_as_json = False


def log_as_json(wanted: bool) -> None:
    """Sets whether everything on standard error is a line of JSON."""
    global _as_json
    _as_json = wanted


def logs_json() -> bool:
    """Whether everything on standard error is a line of JSON."""
    return _as_json


def log(kind: str, message: str, **facts: object) -> None:
    """Prints a message on standard error: for people, or as a JSON object with more facts.

    Args:
        kind: "error", "warning", "note", "traceback", "progress" or "step" (at the end of one).
        message: A printable text.
        **facts: What else the JSON object holds.
    """
    if _as_json:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        print(json.dumps({"time": now, "kind": kind, "message": message, **facts}), file=err.file)
    elif kind in _STYLES:
        err.print(Text.assemble((f"{kind}:", _STYLES[kind]), " ", message))
    else:
        err.print(message, style="dim" if kind == "note" else None)


def printable(text: str) -> str:
    r"""Text with control and invisible characters, except line breaks and tabs, as escapes.

    Secrets known to this process are hidden.

    >>> printable("a \x1b[31mred\x1b[0m name")
    'a \\x1b[31mred\\x1b[0m name'
    >>> printable("gpj.\u202eexe")
    'gpj.\\u202eexe'
    """
    from ..transforms.storage.redaction import hide_known

    return visible(hide_known(text), keep="\n\t")


def show_warning(message: str) -> None:
    """Prints a warning on standard error."""
    log("warning", printable(message))


def human_seconds(seconds: float) -> str:
    """A duration, for people.

    >>> human_seconds(9.7), human_seconds(125), human_seconds(7260)
    ('9 s', '2:05 min', '2:01 h')
    """
    total = int(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60}:{total % 60:02} min"
    return f"{total // 3600}:{total // 60 % 60:02} h"


class Bars:
    """Progress of each step: bars on a terminal, otherwise lines.

    There is a line when a step ends, and every 10 seconds before.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        """Prepares the bars; draws nothing yet. ``quiet`` shows only warnings."""
        self._quiet = quiet
        self._ended = threading.Event()
        self._steps: dict[str, _Step] = {}
        self._drawn: Progress | None = None
        # A dumb terminal cannot redraw; files and pipes keep every line.
        if err.is_interactive and err.file.isatty() and not quiet and not logs_json():
            self._drawn = Progress(
                SpinnerColumn(finished_text="[green]✓[/]"),
                TextColumn("{task.description:<9}"),
                BarColumn(bar_width=24),
                _Facts(),
                console=err,
            )

    def __enter__(self) -> Bars:
        if self._drawn is not None:
            try:
                self._drawn.start()
            except LiveError:  # another build of this process draws bars
                self._drawn = None
        if self._drawn is None and not self._quiet:
            threading.Thread(target=self._print_lines, name="progress", daemon=True).start()
        return self

    def _print_lines(self) -> None:
        while not self._ended.wait(1):
            self.print_due_lines()

    def print_due_lines(self) -> None:
        """Prints a line for each unfinished step that has had none for a while."""
        for step, begun in [*self._steps.items()]:
            if begun.is_line_due():
                log("progress", f"{step}: {begun.facts()}", step=step, **begun.counts())

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._drawn is not None:
            self._drawn.stop()

    def start(self, step: str, *, total: int | None, unit: str) -> None:
        """A step begins."""
        begun = self._steps[step] = _Step(total=total, unit=unit)
        if self._drawn is not None:
            begun.task = self._drawn.add_task(step, total=total, step=begun)

    def advance(self, step: str, *, done: int) -> None:
        """``done`` units of the step are done."""
        begun = self._steps[step]
        begun.advance(done)
        if self._drawn is not None and begun.task is not None:
            self._drawn.update(begun.task, completed=done)

    def count(self, step: str, counted: Counted) -> None:
        """What the step has worked on so far."""
        self._steps[step].count(counted)

    def finish(self, step: str, *, reused: bool, note: str = "") -> None:
        """The step ended."""
        begun = self._steps[step]
        begun.finish(reused=reused, note=note)
        if self._drawn is None and not self._quiet:
            log("step", f"{step}: {begun.facts()}", step=step, **begun.counts())
        elif self._drawn is not None and begun.task is not None:
            total = begun.total if begun.total is not None else 1
            self._drawn.update(begun.task, total=total, completed=total)

    def warn(self, message: str) -> None:
        """Prints a warning above the bars."""
        show_warning(message)


class _Step:
    """Progress and speed of one step."""

    def __init__(self, *, total: int | None, unit: str) -> None:
        self.total = total
        self.task: TaskID | None = None
        self._unit = unit
        self._begun = self._line = time.monotonic()
        self._done: int | None = None
        self._recent = deque[tuple[int, float]]()
        self._counted = deque[tuple[Counted, float]]()
        self._seconds: float | None = None
        self._note = ""

    def advance(self, done: int) -> None:
        """Notes how much is done.

        Neither work done before nor the first units count towards the rate: those load libraries,
        start workers and compile graphs.
        """
        if self._done is not None and done != self._done:
            now = time.monotonic()
            self._recent.append((done, now))
            while len(self._recent) > 2 and self._recent[0][1] < now - _RECENT_S:
                self._recent.popleft()
        self._done = done

    def count(self, counted: Counted) -> None:
        """Notes what was worked on, and when."""
        self._counted.append((counted, time.monotonic()))
        while self._counted[0][1] < self._counted[-1][1] - _RECENT_S:
            self._counted.popleft()

    def is_line_due(self) -> bool:
        """Whether it goes on and had no line for a while; the next is due after as long again."""
        now = time.monotonic()
        if self._seconds is not None or now - self._line < _LINE_S:
            return False
        self._line = now
        return True

    def counts(self) -> dict[str, object]:
        """How much is done of how much, in which unit, and the seconds until now."""
        seconds = time.monotonic() - self._begun if self._seconds is None else self._seconds
        known = {"done": self._done, "total": self.total, "unit": self._unit}
        worked_on = self._counted[-1][0]._asdict() if self._counted else {}
        return {**known, **worked_on, "seconds": round(seconds, 3)}

    def finish(self, *, reused: bool, note: str) -> None:
        self._seconds = time.monotonic() - self._begun
        # Notes use the plural for all numbers: "1 shards".
        note = re.sub(r"^(1 \w+)s$", r"\1", note)
        self._note = ", ".join(filter(None, (note, "reused" if reused else "")))

    def facts(self) -> str:
        """Counts, rate and time left; after the end, the amount of work and its duration."""
        if self._seconds is not None:
            amount = "" if self.total is None else human_count(self.total, self._unit)
            return ", ".join(filter(None, (amount, self._note, f"{self._seconds:.1f} s")))
        elapsed = time.monotonic() - self._begun
        if self.total is None:
            return human_seconds(elapsed)
        done = self._done or 0
        parts = [f"{done:,}/{human_count(self.total, self._unit)}"]
        if rate := self._rate():
            parts.append(f"{rate:,.1f}/s" if rate >= 1 else f"{1 / rate:,.1f} s each")
            left = (self.total - done) / rate - (time.monotonic() - self._recent[-1][1])
            parts.append(f"{human_seconds(max(0.0, left))} left")
        else:
            parts.append(human_seconds(elapsed))
        return ", ".join([*parts, *self._worked_on()])

    def _worked_on(self) -> Iterator[str]:
        """Records so far, and recently per second; rejects."""
        if not self._counted or not self._counted[-1][0].records:
            return
        (before, since), (now, at) = self._counted[0], self._counted[-1]
        yield human_count(now.records, "records")
        if at - since > 1:
            recent = now.since(before)
            yield f"{recent.records / (at - since):,.0f}/s"
            yield f"{recent.num_bytes / (at - since) / 1e6:,.1f} MB/s"
        if now.rejects:
            yield human_count(now.rejects, "rejects")

    def _rate(self) -> float | None:
        """Units per second, recently; None before the second unit of this process."""
        if len(self._recent) < 2:
            return None
        (before, since), (done, now) = self._recent[0], self._recent[-1]
        return (done - before) / (now - since) if now - since > 0.1 else None


class _Facts(ProgressColumn):
    """The text next to a bar, computed each time it is drawn."""

    max_refresh = 0.2

    def render(self, task: Task) -> Text:
        step: _Step = task.fields["step"]
        return Text(step.facts(), style="dim" if task.finished else "")
