"""Splits for cross-validation: their names and fractions, and what is refused."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import snapshard as ss
from snapshard.schemas.errors import RecipeError


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        (ss.Splits(a=0.5, b=0.5), "every record stays in its split"),
        (ss.Splits(a=0.5, b=0.5, group_by="g"), "every record stays in its split"),
        (ss.Splits.by_column("g"), "every record stays in its split"),
        (ss.Splits.by_time("t", a=1, b=None), "every record stays in its split"),
        (ss.Splits.by_time("t", a=0.5, b=0.5), "a few records at the ends"),
        (ss.Splits(a=0.5, b=0.5, stratify_by="label"), "a few records at the ends"),
        (ss.Splits(a=0.5, b=0.5, group_by="g", assign="balanced"), "groups may move"),
        (ss.Splits(a=0.5, b=0.5, group_by="g", stratify_by="c"), "groups may .* shares are kept"),
    ],
)
def test_what_moves_when_data_is_added(splits: ss.Splits, said: str) -> None:
    assert re.search(said, splits.when_data_is_added)


def test_folds_are_splits_of_equal_fractions() -> None:
    splits = ss.Splits.k_fold(5, test=0.1)
    assert splits == ss.Splits(fold0=0.18, fold1=0.18, fold2=0.18, fold3=0.18, fold4=0.18, test=0.1)
    assert splits.boundaries()[-2:] == (Fraction(9, 10), 1)
    for num in (2, 3, 7, 100):
        ends = ss.Splits.k_fold(num).boundaries()
        assert len(ends) == num
        for i, end in enumerate(ends, start=1):
            assert abs(end - Fraction(i, num)) < 1e-12
    options: dict[str, Any] = {"group_by": "g", "assign": "balanced", "allow_empty": True}
    found = ss.Splits.k_fold(2, **options)
    assert found == ss.Splits(fold0=0.5, fold1=0.5, **options)
    assert found.allow_empty
    assert ss.Splits.k_fold(2, stratify_by="label").stratify_by == "label"


@pytest.mark.parametrize(
    ("arguments", "others", "message"),
    [
        (1, {}, "k_fold: num=1, expected an integer from 2 to 100"),
        (101, {}, "num=101, expected"),
        (True, {}, "num=True, expected"),
        (2.0, {}, "num=2.0, expected"),
        (3, {"train": 0.5}, "'train' cannot be another split"),
        (3, {"fold7": 0.5}, "'fold7' cannot be another split"),
        (3, {"test": 1.0}, "add up to 1, expected less than 1"),
        (3, {"test": 0.6, "dev": 0.5}, "add up to 1.1, expected less than 1"),
        (3, {"test": 0}, "must be above 0"),
        (3, {"test": "0.1"}, "is not a fraction"),
        (3, {"te-st": 0.1}, "not a valid split name"),
        (3, {"assign": "balanced"}, "assigns groups"),
    ],
)
def test_what_is_refused(arguments: Any, others: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        ss.Splits.k_fold(arguments, **others)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: ss.Splits.by_folder(stratify_by="label"),
            r"stratify_by= .* validation=0\.1, strat",
        ),
        (lambda: ss.Splits.by_column("a", group_by="b"), "by_column: group_by= is for splits"),
        (lambda: ss.Splits.by_folder(assign="balanced"), "assign= is not an option"),
        (
            lambda: ss.Splits.by_folder(train=0.8, test=0.2),
            r"write Splits\(train=0\.9, test=0\.1\)",
        ),
        (lambda: ss.Splits.by_folder(test="b", validation=0.1), "train, which is not named"),
        (lambda: ss.Splits.by_folder(validation=1.5), "above 0 and at most 1"),
        (lambda: ss.Splits.by_folder(a=0.5, b=0.5), "less than 1"),
    ],
)
def test_options_of_named_splits(make: Callable[[], ss.Splits], expected: str) -> None:
    with pytest.raises(RecipeError, match=expected):
        make()


@pytest.mark.parametrize(
    "text",
    [
        "Splits.by_folder(validation=0.1)",
        'Splits.by_folder(train="a", validation=0.1, test="b", stratify_by="label")',
        'Splits.by_column("part", validation=0.1, dev=0.25, group_by="patient", allow_empty=True)',
        'Splits.by_folder(validation=0.1, stratify_by="label", group_by="patient")',
        'Splits(train=0.8, validation=0.2, stratify_by="label", group_by="patient")',
    ],
)
def test_fractions_of_train_are_written_as_given(text: str) -> None:
    splits = eval(text, {"Splits": ss.Splits})
    assert repr(splits) == text
    assert splits.names[:2] == ("train", "validation")
