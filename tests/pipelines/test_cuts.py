"""Cutting a row of weights into parts."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snapshard.pipelines.plan.ranges import (
    balanced_cuts,
    even_targets,
    is_balanced,
    level_cuts,
    nearest_cuts,
)

_weights = st.lists(
    st.one_of(st.integers(1, 20), st.integers(1, 10_000), st.just(1)), min_size=1, max_size=120
)


def _bounds(weights: list[int]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(weights)]).astype(np.int64)


def _parts(weights: list[int], cuts: Any) -> list[int]:
    return [sum(weights[a:b]) for a, b in itertools.pairwise(cuts)]


@given(_weights, st.data())
@example([1, 100, 100, 1, 1, 1], None)
def test_level_parts_differ_by_the_heaviest_atom_at_most(weights: list[int], data: Any) -> None:
    num_parts = data.draw(st.integers(1, len(weights))) if data else 3
    cuts = level_cuts(_bounds(weights), num_parts)
    assert cuts[0] == 0
    assert cuts[-1] == len(weights)
    assert (np.diff(cuts) > 0).all()
    parts = _parts(weights, cuts)
    assert max(parts) - min(parts) <= max(weights)


@given(_weights, st.data())
def test_balanced_parts_keep_the_bound_and_fill_every_part(weights: list[int], data: Any) -> None:
    num_parts = data.draw(st.integers(1, len(weights)))
    cuts = balanced_cuts(_bounds(weights), num_parts, largest=max(weights))
    assert (np.diff(cuts) > 0).all()
    assert is_balanced(np.array(_parts(weights, cuts)), largest=max(weights))


@given(_weights, st.data())
def test_nearest_cuts_are_nearest_unless_parts_would_be_empty(
    weights: list[int], data: Any
) -> None:
    num_parts = data.draw(st.integers(1, len(weights)))
    bounds = _bounds(weights)
    targets = even_targets(int(bounds[-1]), num_parts)
    cuts = nearest_cuts(bounds, targets)
    assert (np.diff(cuts) > 0).all()
    free = [int(np.argmin([abs(int(b) - t) for b in bounds])) for t in targets]
    if all(a < b for a, b in zip([0, *free], [*free, len(weights)], strict=True)):
        assert cuts.tolist() == [0, *free, len(weights)]


def test_nearest_takes_the_lower_of_two_bounds() -> None:
    assert nearest_cuts(_bounds([2, 2]), [Fraction(3)]).tolist() == [0, 1, 2]
    assert nearest_cuts(_bounds([2, 2, 2]), [Fraction(3)]).tolist() == [0, 1, 3]


@pytest.mark.parametrize("cut", [level_cuts, lambda bounds, n: nearest_cuts(bounds, [1] * (n - 1))])
def test_more_parts_than_atoms_are_refused(cut: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="2 atoms cannot fill 3 parts"):
        cut(_bounds([1, 1]), 3)
