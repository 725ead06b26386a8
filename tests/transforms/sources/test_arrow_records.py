"""Python records as Arrow batches: however they are divided, the types and values are the same."""

import datetime
import decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.transforms.sources.arrow_records import (
    UnfitValueError,
    join_columns,
    records_to_batch,
    to_columns,
)

_ZONED = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
CASES: list[tuple[Any, pa.DataType]] = [
    ([1, None, 2], pa.int64()),
    ([1, 2**63], pa.uint64()),
    ([1, 2.5], pa.float64()),
    ([np.float32(1), 2], pa.float64()),
    ([np.float32(1), np.int8(2)], pa.float32()),
    ([np.int8(1), np.int32(2)], pa.int32()),
    ([np.float16(1), np.float64(2)], pa.float64()),
    ([True, np.bool_(False)], pa.bool_()),
    (["a", b"\xff"], pa.binary()),
    ([bytearray(b"a")], pa.binary()),
    ([_ZONED, pd.Timestamp("2020-01-01", tz="Europe/Berlin")], pa.timestamp("us", "UTC")),
    ([_ZONED, pd.Timestamp(7, tz="UTC")], pa.timestamp("ns", "UTC")),
    ([np.datetime64("2020", "Y"), np.datetime64(3, "ms")], pa.timestamp("ms")),
    ([datetime.date(2020, 1, 1)], pa.date32()),
    ([datetime.timedelta(1)], pa.duration("us")),
    ([datetime.time(1)], pa.time64("us")),
    ([decimal.Decimal("1.25")], pa.decimal128(3, 2)),
    ([pd.NA, pd.NaT, None, 3], pa.int64()),
    ([None], pa.null()),
    ([[1, 2], [], None, (0.5,)], pa.list_(pa.float64())),
    ([[], None], pa.list_(pa.null())),
    ([[[1]], [[], [2, 3]]], pa.list_(pa.list_(pa.int64()))),
    ([{"a": 1}, {"b": "x"}, None, {}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ([{}], pa.struct([])),
    ([[{"a": 1}], []], pa.list_(pa.struct([("a", pa.int64())]))),
    ([np.zeros((2, 3), np.int8)] * 2, pa.list_(pa.list_(pa.int8(), 3), 2)),
    ([np.zeros((n, 3), np.int8) for n in (0, 2)], pa.list_(pa.list_(pa.int8(), 3))),
    ([np.zeros((2, n), np.int8) for n in (1, 2)], pa.list_(pa.list_(pa.int8()), 2)),
    ([np.zeros(2, np.int8), [0.5]], pa.list_(pa.float64())),
    ([np.array(["a", "bc"]), np.array(["d"])], pa.list_(pa.string())),
    ([np.array(5), np.int64(3)], pa.int64()),
]


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@pytest.mark.parametrize(
    ("values", "type_"), CASES, ids=[f"{n} {case[1]}" for n, case in enumerate(CASES)]
)
def test_values_have_one_type_however_they_are_divided(values: Any, type_: pa.DataType) -> None:
    together = records_to_batch([{"x": value} for value in values])
    assert together.schema.field("x").type == type_
    batches = [records_to_batch([{"x": value}]) for value in values]
    schema = batches[0].schema
    for batch in batches[1:]:
        schema = join_columns(schema, batch.schema)
    assert schema.field("x").type == type_
    one_by_one = pa.concat_batches([to_columns(batch, schema) for batch in batches])
    assert one_by_one.equals(together)
    one_by_one.validate(full=True)
    together.validate(full=True)


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**65)
    | st.floats(allow_nan=False)
    | st.text(max_size=2)
    | st.binary(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2)
    ),
    max_leaves=5,
)


def same(found: Any, value: Any) -> bool:
    """Whether a value is stored, with the nulls that a common type adds."""
    if isinstance(value, dict):
        return isinstance(found, dict) and all(
            same(found.get(name), value.get(name)) for name in {*found, *value}
        )
    if isinstance(value, list):
        return isinstance(found, list) and len(found) == len(value) and all(map(same, found, value))
    if isinstance(value, str) and isinstance(found, bytes):
        return found == value.encode()
    return bool(found == value) and (found is None) == (value is None)


@settings(max_examples=300, deadline=None)
@given(values=st.lists(_VALUES, min_size=1, max_size=4), cut=st.integers(0, 4))
def test_any_values_are_kept_or_refused(values: list[Any], cut: int) -> None:
    rows = [{"x": value} for value in values]
    try:
        together: Any = records_to_batch(rows)
    except UnfitValueError:
        together = None
    else:
        together.validate(full=True)
        assert all(map(same, together.column("x").to_pylist(), values))
    try:
        parts = [records_to_batch(part) for part in (rows[:cut], rows[cut:]) if part]
        schema = parts[0].schema
        for part in parts[1:]:
            schema = join_columns(schema, part.schema)
        divided: Any = pa.concat_batches([to_columns(part, schema) for part in parts])
    except UnfitValueError:
        divided = None
    assert (together is None) == (divided is None)
    assert together is None or divided.equals(together)
