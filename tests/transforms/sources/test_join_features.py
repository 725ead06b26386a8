"""Features of several sources joined: what differs, and what cannot."""

from typing import Any

import pytest

import snapshard as ss
from snapshard.schemas.errors import SchemaError
from snapshard.transforms.sources.combined import join_features

INT = ss.Scalar("int64")
OPTIONAL_INT = ss.Scalar("int64", optional=True)
AB, BC, ABC = (ss.ClassLabel(tuple(names)) for names in ("ab", "bc", "abc"))
DECLARED = ss.ClassLabel(("no", "maybe"))
NUMBERED = ss.ClassLabel({1: "a", 2: "b"})


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (INT, INT, INT),
        (INT, OPTIONAL_INT, OPTIONAL_INT),
        (INT, None, OPTIONAL_INT),
        (INT, ss.Scalar("float32"), ss.Scalar("float64")),
        (OPTIONAL_INT, ss.Scalar("int8"), OPTIONAL_INT),
        (ss.Scalar("float32"), ss.Scalar("float64"), ss.Scalar("float64")),
        (
            ss.Sequence(INT),
            ss.Sequence(ss.Scalar("float64")),
            ss.Sequence(ss.Scalar("float64")),
        ),
        (ss.Tensor("int8", (2,)), ss.Tensor("float32", (2,)), ss.Tensor("float32", (2,))),
        (AB, BC, ABC),
        (AB, ss.ClassLabel(("b", "c"), optional=True), ss.ClassLabel(tuple("abc"), optional=True)),
        (AB, None, ss.ClassLabel(("a", "b"), optional=True)),
        (
            ss.ClassLabel({2: "2", 10: "10"}),
            ss.ClassLabel({3: "3"}, optional=True),
            ss.ClassLabel({2: "2", 3: "3", 10: "10"}, optional=True),
        ),
        (DECLARED, DECLARED, DECLARED),
        (ss.Sequence(AB), ss.Sequence(BC), ss.Sequence(ABC)),
        (ss.Sequence(INT), None, ss.Sequence(INT, optional=True)),
        (ss.Tensor("int8", (None, 2)), None, ss.Tensor("int8", (None, 2), optional=True)),
        (ss.Image(storage="encoded"), ss.Image(storage="encoded"), ss.Image(storage="encoded")),
    ],
)
def test_features_that_fit(one: Any, other: Any, both: Any) -> None:
    for first, second in ((one, other), (other, one)):
        found = {
            name: {"x": INT} | ({} if feature is None else {"f": feature})
            for name, feature in (("p", first), ("q", second))
        }
        joined = join_features(found)
        assert joined.features == {"x": INT, "f": both}
        lacking = [name for name in found if "f" not in found[name]]
        assert joined.missing == {name: ("f",) for name in lacking}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (INT, ss.Scalar("string")),
        (INT, ss.Scalar("bool")),
        (ss.Scalar("float32"), ss.Scalar("bfloat16")),
        (INT, ss.Tensor("int64", (1,))),
        (ss.Tensor("int8", (2,)), ss.Tensor("float32", (3,))),
        (INT, AB),
        (INT, ss.Sequence(INT)),
        (AB, DECLARED),
        (NUMBERED, AB),
        (ss.Sequence(AB), ss.Sequence(INT)),
        (ss.Timestamp("s"), ss.Timestamp("ms")),
        (ss.Image(28, 28, 1), ss.Image(32, 32, 1)),
    ],
)
def test_features_that_do_not_fit_name_both_sources(one: Any, other: Any) -> None:
    with pytest.raises(SchemaError, match=r"'f' is .* in 'p', and .* in 'q'"):
        join_features({"p": {"f": one}, "q": {"f": other}})


@pytest.mark.parametrize(
    "feature", [ss.Image(28, 28, 1), ss.Tensor("int8", (2, 2)), ss.BoundingBoxes()]
)
def test_features_that_cannot_be_missing_must_be_in_all_sources(feature: Any) -> None:
    with pytest.raises(SchemaError, match=r"'q' has no feature 'f', .* in 'p' and cannot be"):
        join_features({"p": {"x": INT, "f": feature}, "q": {"x": INT}})
