"""What is told of a step that ran by itself: as a line for people, as JSON for schedulers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..schemas.progress import Progress
from .steps import STEPS, Part


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepReport:
    """What became of a step.

    Attributes:
        step: Its name.
        part: Which part of it was asked for; None for all of it.
        fingerprint: Of the snapshot that the chain makes.
        path: Where that snapshot lies, or will.
        reused: Whether there was nothing to do.
        published: Whether the snapshot is published.
        seconds: How long it took.
        facts: Numbers: of what there is, and of what was done.
    """

    step: str
    part: Part | None
    fingerprint: str
    path: str
    reused: bool
    published: bool
    seconds: float
    facts: Mapping[str, int]

    def to_json(self) -> dict[str, object]:
        """All of it as plain JSON, the numbers beside the rest."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        facts = plain.pop("facts")
        part = None if self.part is None else str(self.part)
        return {**facts, **plain, "part": part, "seconds": round(self.seconds, 3)}

    def line(self) -> str:
        """The same in words."""
        name = self.step if self.part is None else f"{self.step} {self.part}"
        if self.published:
            now = self.step == STEPS[-1] and not self.reused
            return f"{name}: {'published' if now else 'already published'}: {self.path}"
        if self.facts.get("num_graphs") == 0:
            return f"{name}: nothing to do, the recipe has no preprocessing_fn"
        numbers = [
            f"{value:,} {_unit(fact, value)}"
            for fact, value in self.facts.items()
            if fact.startswith("num_")
        ]
        done = "done before, nothing to do" if self.reused else f"done in {self.seconds:.1f} s"
        return f"{name}: {done}: {', '.join(numbers)}" if numbers else f"{name}: {done}"


def _unit(fact: str, number: int) -> str:
    unit = fact.removeprefix("num_")
    return unit.removesuffix("s") if number == 1 else unit


class ToldProgress:
    """Progress that remembers whether all that ended had been done before."""

    def __init__(self, progress: Progress) -> None:
        """Takes whom it tells."""
        self._progress = progress
        self.reused = True

    def start(self, step: str, *, total: int | None, unit: str) -> None:
        """A step begins."""
        self._progress.start(step, total=total, unit=unit)

    def advance(self, step: str, *, done: int) -> None:
        """A step goes on."""
        self._progress.advance(step, done=done)

    def finish(self, step: str, *, reused: bool, note: str = "") -> None:
        """A step ended."""
        self.reused = self.reused and reused
        self._progress.finish(step, reused=reused, note=note)

    def warn(self, message: str) -> None:
        """Something may be wrong."""
        self._progress.warn(message)
