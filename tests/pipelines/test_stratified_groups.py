"""Whole groups are assigned so that every split has its fraction of each class."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.pipelines.prepare import stratified_groups
from snapshard.pipelines.prepare.stratified_groups import (
    ClassCounts,
    PairCounter,
    assign_stratified,
)
from snapshard.schemas.splits import Splits
from snapshard.transforms.runs.keys import value_texts

THREE = Splits(train=0.8, validation=0.1, test=0.1, group_by="g", stratify_by="c")
TWO = Splits(train=0.75, test=0.25, group_by="g", stratify_by="c")
FOLDS = Splits.k_fold(5, group_by="g", stratify_by="c")
SPLITS = st.sampled_from([THREE, TWO, FOLDS])


def counts_of(table: list[list[int]]) -> ClassCounts:
    """The counts of groups, rows, and classes, columns; those without records are left out."""
    dense = np.array(table)
    dense = dense[dense.any(axis=1)][:, dense.any(axis=0)]
    groups, classes = np.nonzero(dense)
    return ClassCounts(groups, classes, dense[groups, classes])


def of_one_class(sizes: list[tuple[int, int]]) -> ClassCounts:
    """Groups with a size and a class."""
    num_classes = max(of_class for _, of_class in sizes) + 1
    return counts_of([[size * (c == k) for k in range(num_classes)] for size, c in sizes])


def shares(counts: ClassCounts, assigned: np.ndarray, splits: Splits) -> np.ndarray:
    """The part that each split has of each class: float[splits, classes]."""
    found = np.zeros((len(splits.names), counts.num_classes))
    np.add.at(found, (assigned[counts.groups], counts.classes), counts.num_records)
    return found / found.sum(axis=0)


def fractions(splits: Splits) -> np.ndarray:
    return np.array([fraction for _, fraction in splits.fractions])


def parts(counts: ClassCounts) -> np.ndarray:
    return counts.num_records / np.bincount(counts.classes, counts.num_records)[counts.classes]


def bound(counts: ClassCounts, splits: Splits) -> float:
    return (1 - (fractions(splits) ** 2).sum()) * (parts(counts) ** 2).sum()


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=60), SPLITS)
@settings(max_examples=100)
def test_groups_of_one_class(sizes: list[tuple[int, int]], splits: Splits) -> None:
    counts = of_one_class(sizes)
    assigned = assign_stratified(counts, splits)
    held = counts.in_splits(assigned, len(splits.names))
    found = shares(counts, assigned, splits) - fractions(splits)[:, None]
    for index in range(counts.num_classes):
        num_groups, largest = held[:, index].sum(), parts(counts)[counts.classes == index].max()
        if num_groups < len(splits.names):
            continue
        assert held[:, index].min() > 0
        assert found[:, index].max() <= largest + 1e-6
        if held[:, index].min() > 1:  # no split has its only group
            assert found[:, index].min() >= -largest - 1e-6


@given(
    st.integers(1, 5).flatmap(
        lambda num: st.lists(
            st.lists(st.integers(1, 20), min_size=num, max_size=num), min_size=20, max_size=60
        )
    ),
    st.sampled_from([TWO, FOLDS]),
)
@settings(max_examples=60)
def test_groups_of_several_classes_keep_the_bound(table: list[list[int]], splits: Splits) -> None:
    counts = counts_of(table)
    assigned = assign_stratified(counts, splits)
    assert counts.in_splits(assigned, len(splits.names)).min() > 0
    found = shares(counts, assigned, splits) - fractions(splits)[:, None]
    assert (found**2).sum() <= bound(counts, splits) + 1e-6


def test_many_groups_come_far_closer_than_the_bound() -> None:
    rng = np.random.default_rng(0)
    table = rng.poisson(rng.pareto(1.5, (3_000, 1)) * rng.dirichlet([0.3] * 8, 3_000) * 9)
    counts = counts_of(table.tolist())
    found = shares(counts, assign_stratified(counts, THREE), THREE) - fractions(THREE)[:, None]
    assert (found**2).sum() < bound(counts, THREE) / 100
    assert np.abs(found).max() < 0.005


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=7).filter(
        lambda table: np.any(table)
    )
)
@settings(max_examples=40)
def test_the_search_comes_near_the_best_of_all(table: list[list[int]]) -> None:
    counts = counts_of(table)
    best = assign_stratified(counts, TWO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stratified_groups, "_TRIED", 0)
        found = assign_stratified(counts, TWO)

    def lacking(assigned: np.ndarray) -> int:
        held = counts.in_splits(assigned, 2)
        return int(((held == 0) & (held.sum(axis=0) > 1)).sum())

    assert lacking(best) <= lacking(found) <= lacking(best) + 1
    missed = [
        ((shares(counts, a, TWO) - fractions(TWO)[:, None]) ** 2).sum() for a in (best, found)
    ]
    if lacking(found) == lacking(best) and not (np.bincount(counts.classes) < 2).any():
        assert missed[0] <= missed[1] + 1e-6


def test_a_class_goes_to_each_split_though_another_assignment_has_better_shares() -> None:
    sizes = [(1, 0)] * 97 + [(100, 1), (1, 1), (1, 1)]
    held = (counts := of_one_class(sizes)).in_splits(assign_stratified(counts, THREE), 3)
    assert held[:, 1].tolist() == [1, 1, 1]
    assert held[:, 0].sum() == 97


def test_classes_in_few_groups_count_together() -> None:
    """Each alone would go to train, and train would have all records."""
    sizes = [(1, index // 2) for index in range(2_000)]
    counts = of_one_class(sizes)
    assigned = assign_stratified(counts, THREE)
    assert np.bincount(assigned).tolist() == [1_600, 200, 200]


def test_the_order_of_records_does_not_matter() -> None:
    rows = [(f"g{index % 40}", "abc"[index % 7 % 3]) for index in range(400)]
    found = []
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        counter = PairCounter()
        for start in range(0, len(rows), 90):
            groups, classes = zip(*rows[start : start + 90], strict=True)
            missing = pa.array([*groups, None]), pa.array([*classes, "b"])
            counter.add(*map(value_texts, missing))
        keys, names, counts = counter.result(3)
        assert names == [b"a", b"b", b"c"]
        assert counts.num_records.sum() == 400
        found.append((keys.tolist(), assign_stratified(counts, THREE).tolist()))
    assert found[0] == found[1] == found[2]
