"""How many records may be rejected: in total, and at each stage of preparation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .errors import RecipeError

STAGES = ("inventory", "read", "validate", "prepare", "across", "split")
"""Where a record can fail, in order: its file cannot be opened; it cannot be read; it does not
match its features; a step on single records fails; a step across records fails; it belongs to no
split."""

TOTAL = "total"

Budget = float | int | Mapping[str, float | int] | None
"""A fraction of all records (a float, 1.0 for all of them) or a count (an int); for all stages
together, or by stage."""


@dataclasses.dataclass(frozen=True)
class Exceeded:
    """A budget that was exceeded."""

    stage: str
    """One of :data:`STAGES`, or ``total``."""
    num_rejects: int
    allowed: int


def check_budget(budget: object) -> Budget:
    """Checks a recipe's ``max_rejects`` and returns it.

    Raises:
        RecipeError: if it is invalid; the message says what is expected.
    """
    if isinstance(budget, Mapping):
        for stage, allowed in budget.items():
            if stage != TOTAL and stage not in STAGES:
                raise RecipeError(
                    f"Recipe: max_rejects names an unknown stage {stage!r}, expected "
                    f"{', '.join(STAGES)} or {TOTAL}."
                )
            _check_number(allowed, f"max_rejects[{stage!r}]")
        if not budget:
            raise RecipeError(
                'Recipe: max_rejects={} is empty. Name stages, such as {"read": 0.01}, or '
                "leave it out."
            )
        return dict(budget)
    if budget is None:
        return None
    return _check_number(budget, "max_rejects")


def _check_number(allowed: object, argument: str) -> float | int:
    number = isinstance(allowed, int | float) and not isinstance(allowed, bool)
    most = 1.0 if isinstance(allowed, float) else float("inf")
    if not number or not 0 <= allowed <= most:  # type: ignore[operator]
        raise RecipeError(
            f"Recipe: {argument}={allowed!r}, expected a fraction of all records, a float from 0.0 "
            "to 1.0, or a count, an int such as 5."
        )
    return allowed  # type: ignore[return-value]


def allowed_rejects(budget: Budget, num_records: int, *, default: float) -> dict[str, int]:
    """How many rejects each budget allows, by stage and ``total``; absent keys have no limit.

    Args:
        budget: A recipe's ``max_rejects``.
        num_records: All records found, including rejected and filtered ones.
        default: The budget where the recipe sets none: for the total or, if it names stages but no
            total, for each stage that it does not name.

    >>> allowed_rejects({"read": 0.01, "total": 5}, 1000, default=0)
    {'read': 10, 'total': 5}
    >>> allowed_rejects({"read": 0.01}, 1000, default=0)["validate"]
    0
    """
    if not isinstance(budget, Mapping):
        budget = {TOTAL: default if budget is None else budget}
    elif TOTAL not in budget:
        budget = dict.fromkeys(STAGES, default) | dict(budget)
    return {
        stage: int(allowed * num_records) if isinstance(allowed, float) else allowed
        for stage, allowed in budget.items()
    }


def exceeded_budgets(
    num_rejects: Mapping[str, int], allowed: Mapping[str, int]
) -> tuple[Exceeded, ...]:
    """The budgets that these rejects exceed: stages in order, the total last.

    Args:
        num_rejects: Rejects by stage.
        allowed: As returned by :func:`allowed_rejects`.

    >>> exceeded_budgets({"read": 3, "validate": 1}, {"read": 2, "total": 4})
    (Exceeded(stage='read', num_rejects=3, allowed=2),)
    """
    counts = {**num_rejects, TOTAL: sum(num_rejects.values())}
    return tuple(
        Exceeded(stage, counts.get(stage, 0), allowed[stage])
        for stage in (*STAGES, TOTAL)
        if stage in allowed and counts.get(stage, 0) > allowed[stage]
    )
