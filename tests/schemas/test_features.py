"""Features: what a default may be."""

import math

import pytest

from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import Scalar, features_from_json, features_to_json
from snapshard.schemas.fingerprint import canonical_json


@pytest.mark.parametrize(
    ("dtype", "default", "fill"),
    [
        ("float32", 1.5, 1.5),
        ("float32", -1, -1),
        ("int64", -1, -1),
        ("uint8", 7, 7),
        ("bool", True, True),
        ("string", "unknown", "unknown"),
        ("int64", None, 0),
        ("bool", None, False),
        ("string", None, ""),
    ],
)
def test_default_fills(dtype: str, default: object, fill: object) -> None:
    feature = Scalar(dtype, optional=True, default=default)  # type: ignore[arg-type]
    assert feature.fill == fill
    assert type(feature.fill) is type(fill)
    assert features_from_json(features_to_json({"a": feature})) == {"a": feature}


def test_nan_is_float32s_own_default() -> None:
    feature = Scalar("float32", optional=True, default=math.nan)
    assert feature == Scalar("float32", optional=True)
    assert math.isnan(feature.fill)
    canonical_json(features_to_json({"a": feature}))


@pytest.mark.parametrize(
    ("dtype", "default"),
    [
        ("float32", math.inf),
        ("float32", -math.inf),
        ("float32", "none"),
        ("float32", True),
        ("int64", math.nan),
        ("int64", 1.5),
        ("int64", "n/a"),
        ("int64", False),
        ("bool", 1),
        ("string", 3),
    ],
)
def test_what_cannot_be_a_default(dtype: str, default: object) -> None:
    with pytest.raises(RecipeError, match="default="):
        Scalar(dtype, optional=True, default=default)  # type: ignore[arg-type]
