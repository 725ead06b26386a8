"""How long lists are, from columns of every form; and where a sample of lengths is parted."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.features import (
    Audio,
    BoundingBoxes,
    ClassLabel,
    Feature,
    Features,
    Image,
    Scalar,
    Sequence,
    Tensor,
    Text,
)
from snapshard.transforms.examples.sizing import length_boundaries, list_lengths, varying_lists

# Feature; its column of three records, of 2, 0 and 3 along the first dimension.
COLUMNS: dict[str, tuple[Feature, Any]] = {
    "numbers": (Tensor("int64", (None,)), pa.array([[1, 2], [], [3, 4, 5]])),
    "strings": (Sequence(Text()), pa.array([["a", ""], [], ["b"] * 3])),
    "missing": (Tensor("int64", (None,), optional=True), pa.array([[1, 2], None, [3, 4, 5]])),
    "rows": (Tensor("float32", (None, 2)), pa.array([[0.5] * 4, [], [0.5] * 6])),
    "boxes": (BoundingBoxes(), pa.array([[0.5] * 8, [], [0.5] * 12])),
    "packed": (Tensor("uint16", (None,)), pa.array([bytes(4), b"", bytes(6)])),
    "packed rows": (Tensor("float64", (None, 3)), pa.array([bytes(48), b"", bytes(72)])),
    "packed and missing": (
        Tensor("uint8", (None,), optional=True),
        pa.array([bytes(2), None, bytes(3)]),
    ),
    "pcm": (Audio(rate=8000), pa.array([bytes(4), b"", bytes(6)])),
    "stereo": (
        Audio(rate=8000, channels=2, dtype="float32"),
        pa.array([[0.5] * 4, [], [0.5] * 6]),
    ),
    "two that vary": (Tensor("int8", (None, 2, None)), pa.array([bytes(8), b"", bytes(30)])),
}
LARGE = {pa.string(): pa.large_binary(), pa.binary(): pa.large_binary()}


@pytest.mark.parametrize("kind", COLUMNS)
def test_lengths_of_every_form(kind: str) -> None:
    feature, column = COLUMNS[kind]
    if pa.types.is_list(column.type):
        column = column.cast(pa.large_list(column.type.value_type))
    shapes = pa.array([[2, 2, 2], [0, 2, 7], [3, 2, 5]], pa.list_(pa.int64(), 3))
    records = pa.record_batch(
        {"x": column.cast(LARGE.get(column.type, column.type)), "x/shape": shapes}
    )
    assert varying_lists({"x": feature}) == ["x"]
    assert list_lengths(records, "x", feature).tolist() == [2, 0, 3]
    assert list_lengths(records.slice(1), "x", feature).tolist() == [0, 3]
    assert list_lengths(records.slice(0, 0), "x", feature).tolist() == []


def test_what_does_not_vary_is_not_measured() -> None:
    features: Features = {
        "é": Tensor("int8", (None,)),
        "z": Tensor("int8", (None,)),
        "text": Text(),
        "number": Scalar("float64", optional=True),
        "label": ClassLabel(names=("a",)),
        "image": Image(),
        "file": Image(storage="encoded"),
        "sound": Audio(samples=80),
        "wide": Tensor("int8", (2, None)),
    }
    assert varying_lists(features) == ["z", "é"]


@given(st.lists(st.integers(0, 50), min_size=1))
def test_boundaries(lengths: list[int]) -> None:
    found = length_boundaries(lengths)
    assert found == sorted(set(found))
    assert found[-1] == max(lengths)
    assert set(found) <= set(lengths)
    assert found == length_boundaries(lengths[::-1])
    assert len(found) <= 8
    for eighths in range(1, 9):
        # As NumPy has it, from first principles: the smallest that so many do not exceed.
        share = np.quantile(lengths, eighths / 8, method="inverted_cdf")
        assert share in found


def test_boundaries_of_nothing() -> None:
    assert length_boundaries([]) == []
