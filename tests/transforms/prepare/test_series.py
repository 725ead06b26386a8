"""Windows of series, held against a plain loop over rows."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import Features
from snapshard.schemas.recipe import SortedRecords
from snapshard.schemas.values import TensorForm
from snapshard.transforms.examples.dtypes import dense_column, dense_values, numpy_dtype
from snapshard.transforms.prepare.series import Windows, windows
from snapshard.transforms.runs.files import wire_schema

FEATURES: Features = {
    "x": ss.Scalar("float32", optional=True),
    "y": ss.Scalar("float64"),
    "t": ss.Timestamp(optional=True),
    "g": ss.Scalar("string"),
}

Row = tuple[float | None, float, int | None, str, int]
"""x, y, t, g, split."""


def _columns(rows: list[Row]) -> pa.RecordBatch:
    schema = wire_schema(FEATURES)
    values = {
        "x": [row[0] for row in rows],
        "y": [np.float64(row[1]).tobytes() for row in rows],
        "t": [row[2] for row in rows],
        "g": [row[3].encode() for row in rows],
    }
    arrays = [pa.array(values[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _expected(step: Windows, rows: list[Row]) -> tuple[dict[str, Any], set[str]]:
    """Windows by id, and the ids of rejects, by a plain loop."""
    groups: dict[str, list[tuple[int, bytes, int]]] = defaultdict(list)
    rejects = set()
    for index, row in enumerate(rows):
        if row[2] is None:
            rejects.add(f"f#{index}")
        else:
            groups[row[3] if step.group else ""].append((row[2], f"f#{index}".encode(), index))
    found = {}
    for members in groups.values():
        series: list[int] = []
        for _, same in itertools.groupby(sorted(members), key=lambda member: member[0]):
            first, *more = [index for _, _, index in same]
            series.append(first)
            rejects |= {f"f#{index}" for index in more}
        stretches: list[list[int]] = []
        for index in series:
            x, _, t, _, split = rows[index]
            broken = x is None or not stretches or not stretches[-1]
            if not broken:
                before = rows[stretches[-1][-1]]
                broken = before[4] != split
                if step.max_gap is not None:
                    assert t is not None
                    assert before[2] is not None
                    broken |= t - before[2] > step.max_gap
            if broken:
                stretches.append([])
            if x is not None:
                stretches[-1].append(index)
        for stretch in stretches:
            for start in range(0, len(stretch) - step.span + 1, step.shift):
                picked = stretch[start : start + step.span : step.stride]
                inputs, ahead = picked[: step.size], picked[step.size :]
                found[f"f#{inputs[0]}"] = (
                    [rows[i][0] for i in inputs],
                    [rows[i][1] for i in ahead] if step.horizon else rows[ahead[0]][1],
                    rows[inputs[-1]][2],
                    rows[inputs[-1]][3],
                )
    return found, rejects


_ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.floats(-100, 100, width=32)),
        st.floats(-1e6, 1e6),
        st.one_of(st.none(), st.integers(-30, 60)),
        st.sampled_from(["a", "b", "c"]),
        st.just(0),
    ).map(lambda row: (*row[:4], int((row[2] or 0) > 20))),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(
    rows=_ROWS,
    cuts=st.lists(st.integers(0, 60), max_size=4),
    size=st.integers(1, 4),
    horizon=st.integers(0, 3),
    shift=st.integers(1, 3),
    stride=st.integers(1, 2),
    max_gap=st.one_of(st.none(), st.integers(1, 4)),
    group=st.sampled_from(["g", None]),
)
def test_windows_are_those_of_a_plain_loop(
    sorted_parts: Callable[..., Iterator[SortedRecords]],
    rows: list[Row],
    cuts: list[int],
    group: str | None,
    **arguments: Any,
) -> None:
    step = windows("x", time="t", group=group, target="y", **arguments)
    after = step.features(FEATURES)
    expected, rejected = _expected(step, rows)
    found: dict[str, Any] = {}
    rejects = set()
    parts = sorted_parts(
        step,
        [f"f#{index}" for index in range(len(rows))],
        _columns(rows),
        features=FEATURES,
        splits=[row[4] for row in rows],
        cuts=cuts,
    )
    for batch in step.merge(parts, features=FEATURES):
        rejects |= {reject.record_id for reject in batch.rejects}
        columns = {
            name: dense_values(batch.columns.column(name), after[name].form)  # type: ignore[union-attr]
            for name in after
        }
        for row, record_id in enumerate(batch.ids):
            assert record_id not in found
            group_text = columns["g"][row].decode() if group else None
            found[record_id] = (
                columns["x"][row].tolist(),
                columns["target"][row].tolist(),
                int(columns["t"][row]),
                group_text,
            )
    assert rejects == rejected
    assert found == {
        key: (*value[:3], value[3] if group else None) for key, value in expected.items()
    }


@pytest.mark.parametrize("group", ["g", None])
def test_without_a_time_the_rows_of_each_file_are_a_series(
    sorted_parts: Callable[..., Iterator[SortedRecords]], group: str | None
) -> None:
    ids = [f"{path}#{position}" for path in ("a#b", "c") for position in range(0, 120, 10)]
    rows: list[Row] = [(float(n), 0.0, None, "gh"[n % 2], 0) for n in range(len(ids))]
    rows[5] = (None, *rows[5][1:])
    shuffled = [n * 7 % len(ids) for n in range(len(ids))]
    step = windows("x", size=3, group=group, target="x")
    parts = sorted_parts(
        step,
        [ids[n] for n in shuffled],
        _columns([rows[n] for n in shuffled]),
        features=FEATURES,
        splits=[0] * len(ids),
        cuts=range(len(ids)),
    )
    assert "t" not in step.features(FEATURES)
    found = {}
    for batch in step.merge(parts, features=FEATURES):
        assert not batch.rejects
        x = dense_values(batch.columns.column("x"), ss.Tensor("float32", (3,)).form)
        y = dense_values(batch.columns.column("target"), ss.Scalar("float32").form)
        found |= dict(zip(batch.ids, np.column_stack([x, y]).tolist(), strict=True))
    wanted = {}
    for file in (range(12), range(12, 24)):
        for series in (file[::2], file[1::2]) if group else (file,):
            for window in (series[n : n + 4] for n in range(len(series) - 3)):
                if 5 not in window:
                    wanted[ids[window[0]]] = [float(n) for n in window]
    assert found == wanted
    with pytest.raises(RecipeError, match=r"record 'a\.jpg' is a file of its own.*time="):
        step.order(["a.jpg"], _columns(rows[:1]), features=FEATURES, seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 2, "time": None, "max_gap": 3}, "max_gap= needs time="),
        ({"size": 0}, "size"),
        ({"size": 1}, "row itself"),
        ({"size": 2, "horizon": 2}, "target"),
    ],
)
def test_unfit_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        windows("x", **{"time": "t", **arguments})


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (windows("z", size=2, time="t"), "no feature 'z'"),
        (windows("x", size=2, time="y"), r"Declare it in types= of the source: .\"y\": ss\.Timest"),
        (windows("x", size=2, time="v"), "expected a time or an integer that int64 holds. Name a"),
        (windows("x", size=2, time="u"), r'Cast it: ss.tables.cast\("u", "int64"\)'),
        (
            windows("x", size=2, time="t", group="y"),
            r"group='y' is .*types= of the source: ..y.: .string",
        ),
    ],
)
def test_features_that_do_not_fit(step: Windows, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        step.features({**FEATURES, "u": ss.Scalar("uint64"), "v": ss.Tensor("int64", (2,))})


def test_the_target_of_one_step_is_a_single_value() -> None:
    features = {**FEATURES, "v": ss.Tensor("float32", (2,))}
    for name, one, several in (
        ("y", ss.Scalar("float64"), ss.Tensor("float64", (1,))),
        ("v", ss.Tensor("float32", (2,)), ss.Tensor("float32", (1, 2))),
    ):
        step = windows("x", size=2, time="t", target=name)
        assert step.features(features)["target"] == one
        step = windows("x", size=2, time="t", target=name, horizon=1)
        assert step.features(features)["target"] == several


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("used", ["x", "target"])
def test_no_window_holds_nan(
    sorted_parts: Callable[..., Iterator[SortedRecords]], used: str, dtype: Any, shape: Any
) -> None:
    feature = ss.Tensor(dtype, shape) if shape else ss.Scalar(dtype, optional=True)
    features: Features = {"n": ss.Scalar("int64"), "t": ss.Scalar("int64"), "v": feature}
    values = np.ones((20, *shape), "float32")
    values.reshape(20, -1)[10, -1] = np.nan
    (wire,) = TensorForm(dtype=dtype, shape=shape).wire_columns("v")
    column = dense_column(values.astype(numpy_dtype(dtype)), wire)
    if not shape:
        column = pa.concat_arrays([column[:15], pa.nulls(1, column.type), column[16:]])
    numbers = pa.array(range(20), pa.int64())
    arrays = {"n": numbers, "t": numbers, "v": column}
    schema = wire_schema(features)
    columns = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
    step = windows(*("v",) if used == "x" else ("n",), size=3, time="t", target="v")
    parts = sorted_parts(
        step, [f"f#{i}" for i in range(20)], columns, features=features, splits=[0] * 20, cuts=[]
    )
    found = [int(one[2:]) for batch in step.merge(parts, features=features) for one in batch.ids]
    assert sorted(found) == [*range(7), *(range(11, 17) if shape else (11, 16))]


def test_splits_that_leak_are_refused() -> None:
    step = windows("x", size=2, time="t")
    with pytest.raises(RecipeError, match="by_time"):
        step.check(ss.Splits(train=0.8, test=0.2))
    step.check(ss.Splits.by_time("t", train=0.8, test=0.2))
    step.check(ss.Splits(train=0.8, test=0.2, group_by="g"))


def test_it_reads_as_it_is_written() -> None:
    step = windows("x", "y", size=3, time="t", group="g", target="y", horizon=2, max_gap=5)
    assert eval(repr(step), {"ss": ss}) == step
    assert repr(windows("x", size=2)) == 'ss.series.windows("x", size=2)'
    assert repr(windows("x", size=2, time="t")) == 'ss.series.windows("x", size=2, time="t")'
