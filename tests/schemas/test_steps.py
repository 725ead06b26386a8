"""The order of steps, and their parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.errors import RecipeError
from snapshard.schemas.steps import IN_PARTS, STEPS, Part, check_step


@pytest.mark.parametrize("step", STEPS)
def test_each_step_is_known_by_name(step: str) -> None:
    assert check_step(step) == step


def test_another_name_is_no_step() -> None:
    with pytest.raises(RecipeError, match="'analyse', expected one of inventory, prepare"):
        check_step("analyse")
    assert set(STEPS) >= IN_PARTS


@given(pieces=st.lists(st.integers()), total=st.integers(1, 20))
def test_parts_have_each_piece_once(pieces: list[int], total: int) -> None:
    parts = [Part(number, total).of(pieces) for number in range(1, total + 1)]
    assert sorted(piece for part in parts for piece in part) == sorted(pieces)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(total=st.integers(1, 999_999), data=st.data())
def test_a_part_is_read_as_it_is_written(total: int, data: st.DataObject) -> None:
    part = Part(data.draw(st.integers(1, total)), total)
    assert Part.parse(str(part)) == part


@pytest.mark.parametrize("text", ["", "3", "0/8", "9/8", "1/0", "-1/8", "a/b", "1/8/2", "1 /8"])
def test_another_text_is_no_part(text: str) -> None:
    with pytest.raises(RecipeError, match="expected a value from 1/8"):
        Part.parse(text)
