"""Splits: how records are divided, as fixed ranges of a 64-bit key.

A hash split is a range of the key that also orders the records (a range and not a modulo, so
that a split is a contiguous part of every run). Fractions are fixed, so a record never moves
to another split when data is added.
"""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction

from .errors import RecipeError

KEY_SPACE = 1 << 64
"""Keys are integers in [0, KEY_SPACE)."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True, init=False)
class Splits:
    """Names and fractions of the splits: ``Splits(train=0.8, validation=0.1, test=0.1)``.

    ``stratify_by`` names a feature whose values get the same shares in every split, exact to
    one record (added data may then move records at the ends). ``group_by`` names a feature
    whose value decides the split, so that no group spans two.
    """

    fractions: tuple[tuple[str, float], ...]
    stratify_by: str | None
    group_by: str | None

    def __init__(
        self, *, stratify_by: str | None = None, group_by: str | None = None, **fractions: float
    ) -> None:
        """Checks the fractions.

        Raises:
            RecipeError: if they do not add up to 1, or a name cannot be a file name's start.
        """
        if not fractions:
            raise RecipeError("Splits: no split named. Write Splits(train=0.9, test=0.1).")
        for name, fraction in fractions.items():
            if not _NAME.fullmatch(name):
                raise RecipeError(
                    f"Splits: {name!r} cannot name a split. Use ASCII letters, digits and '_'."
                )
            if isinstance(fraction, bool) or not isinstance(fraction, int | float):
                raise RecipeError(f"Splits: {name}={fraction!r} is not a number.")
            if not 0 < fraction <= 1:
                raise RecipeError(f"Splits: {name}={fraction} must be above 0 and at most 1.")
        total = sum(fractions.values())
        if abs(total - 1) > 1e-6:
            raise RecipeError(f"Splits: the fractions add up to {total:g}, expected 1.")
        if stratify_by is not None and group_by is not None:
            raise RecipeError(
                "Splits: stratify_by and group_by exclude each other: a group has one split, so "
                "shares per label cannot be exact. Drop one of them."
            )
        object.__setattr__(self, "fractions", tuple((k, float(v)) for k, v in fractions.items()))
        object.__setattr__(self, "stratify_by", stratify_by)
        object.__setattr__(self, "group_by", group_by)

    @property
    def names(self) -> tuple[str, ...]:
        """The split names, in the order given."""
        return tuple(name for name, _ in self.fractions)

    def boundaries(self) -> tuple[Fraction, ...]:
        """Cumulative fractions at the splits' ends, exact as written; the last is 1."""
        total = Fraction(0)
        ends = []
        for _, fraction in self.fractions:
            total += Fraction(repr(fraction))
            ends.append(min(total, Fraction(1)))
        return (*ends[:-1], Fraction(1))

    def key_ranges(self) -> tuple[tuple[str, int, int], ...]:
        """(split, start, stop) of each split: keys with start <= key < stop are its records."""
        stops = [int(end * KEY_SPACE) for end in self.boundaries()]
        starts = [0, *stops[:-1]]
        return tuple(zip(self.names, starts, stops, strict=True))

    def of_key(self, key: int) -> int:
        """Index of the split that a key belongs to."""
        for index, (_, _, stop) in enumerate(self.key_ranges()):
            if key < stop:
                return index
        raise RecipeError(f"{key} is not a 64-bit key.")

    def to_json(self) -> dict[str, object]:
        """The settings as plain JSON, for the fingerprint and for people."""
        return {
            # In their order: it decides which range of the key each split is.
            "fractions": [list(pair) for pair in self.fractions],
            "group_by": self.group_by,
            "stratify_by": self.stratify_by,
        }
