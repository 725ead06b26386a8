"""Groups are assigned whole, so that splits come as close to their fractions as groups allow."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.pipelines.prepare.split_ends import assign_groups
from snapshard.schemas.splits import Splits
from snapshard.transforms.runs.keys import NO_PARTITION
from snapshard.transforms.runs.partitions import GroupSplits

THREE = Splits(train=0.7, validation=0.15, test=0.15, group_by="g", assign="balanced")
TWO = Splits(train=0.8, test=0.2, group_by="g", assign="balanced")


def loads(sizes: list[int], found: list[int], splits: Splits) -> list[int]:
    return np.bincount(found, sizes, minlength=len(splits.names)).astype(int).tolist()


def missed(sizes: list[int], found: list[int], splits: Splits) -> float:
    wanted = [share * sum(sizes) for _, share in splits.fractions]
    return sum((a - b) ** 2 for a, b in zip(loads(sizes, found, splits), wanted, strict=True))


@pytest.mark.parametrize(
    ("sizes", "splits", "expected"),
    [
        ([100] * 6, THREE, [400, 100, 100]),
        ([1, 1, 1], THREE, [1, 1, 1]),
        ([10_000, 1, 1], THREE, [10_000, 1, 1]),
        ([5, 5], TWO, [5, 5]),
        ([7], TWO, [7, 0]),
        ([80, 20], TWO, [80, 20]),
        ([20, 80], TWO, [80, 20]),
        ([70, 15, 15], THREE, [70, 15, 15]),
        ([10_000, *[1] * 99], THREE, None),
        ([3] * 1000, THREE, [2100, 450, 450]),
    ],
)
def test_splits_come_close(sizes: list[int], splits: Splits, expected: list[int] | None) -> None:
    found = loads(sizes, assign_groups(sizes, splits), splits)
    assert sum(found) == sum(sizes)
    if expected is not None:
        assert found == expected
    if len(sizes) >= len(splits.names):
        assert min(found) > 0


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
@settings(max_examples=60)
def test_of_few_groups_nothing_comes_closer(sizes: list[int]) -> None:
    found = assign_groups(sizes, THREE)
    others = [list(one) for one in itertools.product(range(3), repeat=len(sizes))]
    used = max(len(set(one)) for one in others)
    best = min(missed(sizes, one, THREE) for one in others if len(set(one)) == used)
    assert len(set(found)) == used
    assert missed(sizes, found, THREE) == pytest.approx(best)


@given(st.lists(st.integers(1, 1000), min_size=12, max_size=60))
@settings(max_examples=60)
def test_of_more_groups_no_single_change_helps(sizes: list[int]) -> None:
    found = assign_groups(sizes, THREE)
    assert set(found) == {0, 1, 2}
    least = missed(sizes, found, THREE)
    for group in range(len(sizes)):
        for split in range(3):
            other = [*found[:group], split, *found[group + 1 :]]
            if set(other) == {0, 1, 2}:
                assert missed(sizes, other, THREE) >= least - 1e-6


@given(st.lists(st.integers(1, 100), min_size=2, max_size=40), st.randoms())
@settings(max_examples=60)
def test_loads_do_not_depend_on_the_order_of_groups(sizes: list[int], random: object) -> None:
    again = list(sizes)
    random.shuffle(again)  # type: ignore[attr-defined]
    one = loads(sizes, assign_groups(sizes, TWO), TWO)
    assert loads(again, assign_groups(again, TWO), TWO) == one


def test_many_groups_of_any_size() -> None:
    rng = np.random.default_rng(0)
    sizes = (rng.pareto(1.5, 20_000) * 10 + 1).astype(int).tolist()
    total = sum(sizes)
    found = loads(sizes, assign_groups(sizes, THREE), THREE)
    for load, (_, share) in zip(found, THREE.fractions, strict=True):
        assert math.isclose(load, share * total, abs_tol=2)


def test_groups_are_found_by_their_keys() -> None:
    table = GroupSplits.of(np.array([3, 7, 2**64 - 1], np.uint64), [0, 2, 1])
    keys = np.array([7, 2**64 - 1, 3, 4, 0], np.uint64)
    assert table.find(keys).tolist() == [2, 1, 0, NO_PARTITION, NO_PARTITION]
