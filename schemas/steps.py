"""The steps of a build by name: their order, their parts, and what each reports.

Each leaves artifacts in the workspace, so a scheduler may run each as a task of its own, on any
machine that reaches the output: see ``pipelines.build.run_step``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from .errors import RecipeError
from .visible import human_count

STEPS = ("inventory", "prepare", "analyze", "plan", "write", "verify", "publish")
"""In order. Each needs those before it; ``verify`` alone may be left out."""

IN_PARTS = frozenset({"prepare", "write"})
"""Steps that consist of many equal pieces, blocks or shards, and may run in parts."""

RUN_JOBS = frozenset({"prepare", "analyze", "write"})
"""Steps that may run jobs on the runner."""

_PART = re.compile(r"(\d{1,6})/(\d{1,6})")

T = TypeVar("T")


def check_step(name: str) -> str:
    """The name of a step.

    Raises:
        RecipeError: if there is no such step.
    """
    if name not in STEPS:
        raise RecipeError(f"There is no step {name!r}, expected one of {', '.join(STEPS)}.")
    return name


@dataclasses.dataclass(frozen=True)
class Part:
    """One of several equal parts of a step: every ``total``-th piece from ``number`` on."""

    number: int
    """From 1."""
    total: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Reads ``3/8``, the third part of eight.

        >>> Part.parse("3/8")
        Part(number=3, total=8)

        Raises:
            RecipeError: if it is not of that form.
        """
        match = _PART.fullmatch(text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise RecipeError(f"Invalid part {text!r}: expected a value from 1/8 to 8/8.")
        return cls(int(match[1]), int(match[2]))

    def of(self, pieces: Sequence[T]) -> Sequence[T]:
        """The pieces of this part; all parts together have each once.

        >>> [list(Part(n, 2).of("abc")) for n in (1, 2)]
        [['a', 'c'], ['b']]
        """
        return pieces[self.number - 1 :: self.total]

    def __str__(self) -> str:
        """As :meth:`parse` reads it."""
        return f"{self.number}/{self.total}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepReport:
    """The result of a step that ran on its own.

    Attributes:
        step: Its name.
        part: The part that was requested; None for all of it.
        fingerprint: Of the snapshot that is built.
        path: That snapshot's folder.
        reused: Whether there was nothing to do.
        published: Whether the snapshot is published.
        seconds: How long the step took.
        facts: Numbers of what there is and of what was done.
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
        """All of it as plain JSON, the numbers at the top level."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        facts = plain.pop("facts")
        part = None if self.part is None else str(self.part)
        return {**facts, **plain, "part": part, "seconds": round(self.seconds, 3)}

    def line(self) -> str:
        """One line for people."""
        name = self.step if self.part is None else f"{self.step} {self.part}"
        if self.published:
            now = self.step == STEPS[-1] and not self.reused
            return f"{name}: {'published' if now else 'already published'}: {self.path}"
        if self.facts.get("num_graphs") == 0:
            return f"{name}: nothing to do, the recipe has no preprocessing_fn"
        numbers = [
            human_count(value, fact.removeprefix("num_"))
            for fact, value in self.facts.items()
            if fact.startswith("num_")
        ]
        done = "nothing to do" if self.reused else f"done in {self.seconds:.1f} s"
        return f"{name}: {done}: {', '.join(numbers)}" if numbers else f"{name}: {done}"
