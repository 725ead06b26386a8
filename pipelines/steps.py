"""Steps: a build as a chain, for whoever runs its links apart: their order, parts of them. Pure.

Each leaves durable output in the workspace, so a scheduler may run each as a task of its own, on
any machine that reaches the source and the output: see ``chain``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TypeVar

from ..schemas.errors import RecipeError

STEPS = ("inventory", "prepare", "analyze", "plan", "write", "verify", "publish")
"""In their order; each needs all before it."""

IN_PARTS = frozenset({"prepare", "write"})
"""Steps of many equal pieces, blocks and shards: a part of these may be done by itself."""

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


def steps_before(name: str) -> tuple[str, ...]:
    """What has to be done before a step, in order.

    >>> steps_before("analyze")
    ('inventory', 'prepare')
    """
    return STEPS[: STEPS.index(name)]


def steps_from(name: str) -> tuple[str, ...]:
    """A step and what comes after it, in order.

    >>> steps_from("verify")
    ('verify', 'publish')
    """
    return STEPS[STEPS.index(name) :]


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
            raise RecipeError(f"The part {text!r} is none, expected one such as 1/8 to 8/8.")
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
