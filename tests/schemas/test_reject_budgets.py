"""Budgets of rejects: by stage and in total, counts and fractions."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.reject_budgets import (
    STAGES,
    Exceeded,
    allowed_rejects,
    check_budget,
    exceeded_budgets,
)

NUMBERS = st.one_of(st.integers(0, 100), st.floats(0, 1))


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({}, "max_rejects={} is empty"),
        ({"reading": 1}, "names an unknown stage 'reading', expected inventory, read"),
        ({5: 1}, "names an unknown stage 5"),
        (
            {"read": -1},
            "max_rejects['read']=-1, expected a fraction of all records",
        ),
        (1.5, "max_rejects=1.5, expected a fraction of all records"),
        (5.0, "or a count, an int such as 5"),
        ({"read": "1%"}, "max_rejects['read']='1%'"),
        ({"read": True}, "max_rejects['read']=True"),
        ({"total": float("nan")}, "max_rejects['total']=nan"),
        (float("inf"), "max_rejects=inf"),
        ([("read", 1)], "max_rejects=[('read', 1)]"),
    ],
)
def test_what_is_no_budget_is_refused(budget: Any, words: str) -> None:
    with pytest.raises(RecipeError) as raised:
        ss.Recipe(name="r", source=ss.Csv("t.csv"), max_rejects=budget)
    assert words in str(raised.value)
    assert raised.value.exit_code == 2


def test_a_recipe_keeps_its_own_copy() -> None:
    budget = {"read": 1}
    recipe = ss.Recipe(name="r", source=ss.ImageFolder("images"), max_rejects=budget)
    budget["read"] = 50
    assert recipe.max_rejects == {"read": 1}
    # What is not named has the default of media, 1 %.
    assert recipe.reject_budgets(1000) == {**dict.fromkeys(STAGES, 10), "read": 1}


@pytest.mark.parametrize(
    ("budget", "allowed"),
    [
        (None, {"total": 0}),
        (7, {"total": 7}),
        (0.5, {"total": 5}),
        (1.0, {"total": 10}),
        (1, {"total": 1}),
        (0.0, {"total": 0}),
        ({"total": 3}, {"total": 3}),
        ({"read": 0.25, "total": 100}, {"read": 2, "total": 100}),
        ({"read": 4}, {**dict.fromkeys(STAGES, 0), "read": 4}),
    ],
)
def test_what_is_allowed_of_ten_records(budget: Any, allowed: dict[str, int]) -> None:
    assert allowed_rejects(budget, 10, default=0) == allowed


@given(
    st.dictionaries(st.sampled_from((*STAGES, "total")), NUMBERS, min_size=1),
    st.dictionaries(st.sampled_from(STAGES), st.integers(0, 50)),
    st.integers(0, 1000),
)
def test_a_budget_is_exceeded_by_one_more_and_not_by_less(
    budget: Mapping[str, float], counts: dict[str, int], num_records: int
) -> None:
    assert check_budget(budget) == budget
    allowed = allowed_rejects(budget, num_records, default=0)
    exceeded = {one.stage: one for one in exceeded_budgets(counts, allowed)}
    for stage, limit in allowed.items():
        number = sum(counts.values()) if stage == "total" else counts.get(stage, 0)
        assert (stage in exceeded) == (number > limit)
        if stage in exceeded:
            assert exceeded[stage] == Exceeded(stage, number, limit)
    assert not exceeded_budgets({}, allowed)
