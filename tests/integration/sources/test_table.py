"""Tables in memory: pandas, Arrow, NumPy, and anything with an Arrow stream; read back equal."""

import contextlib
import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.schemas.errors import DataError, RecipeError, SchemaError, SnapshardError
from snapshard.schemas.progress import Silent
from snapshard.transforms.sources import extracted

from .built import build as build_source
from .built import rows_of

NUM = 40


def build(tmp_path: Path, data: Any, *, workers: int = 1, **settings: Any) -> ss.Snapshot:
    return build_source(tmp_path, ss.Table(data, **settings), workers=workers)


def frame() -> pd.DataFrame:
    n = np.arange(NUM)
    data = pd.DataFrame(
        {
            "n": n,
            "x": n / 7,
            "small": n.astype(np.int8),
            "s": [f"é{i}" for i in range(NUM)],
            "kind": pd.Categorical(np.array(["b", "a"])[n % 2], categories=["b", "c", "a"]),
            "maybe": pd.array([None if i % 4 == 1 else i for i in range(NUM)], dtype="Int64"),
            "yes": pd.array([i % 3 == 0 for i in range(NUM)], dtype="boolean"),
            "at": pd.date_range("2020-01-01", periods=NUM, freq="h"),
            "zoned": pd.date_range("2020-01-01", periods=NUM, freq="h", tz="Europe/Berlin"),
        }
    )
    return data.set_index(data.index + 100)


def test_pandas_comes_back_equal(lab: Any, tmp_path: Path) -> None:
    data = frame()
    snapshot = build(tmp_path, data, label="kind")
    assert snapshot.manifest.features["kind"] == ss.ClassLabel(("b", "c", "a"))
    expected = {
        f"table#{i}": {
            "n": i,
            "x": i / 7,
            "small": i,
            "s": f"é{i}".encode(),
            "kind": (0, 2)[i % 2],
            "maybe": 0 if i % 4 == 1 else i,
            "maybe_present": i % 4 != 1,
            "yes": i % 3 == 0,
            "at": round(data["at"].iloc[i].timestamp()) * 10**6,
            "zoned": round(data["zoned"].iloc[i].timestamp()) * 10**6,
        }
        for i in range(NUM)
    }
    assert rows_of(lab, snapshot) == expected
    assert build(tmp_path, frame(), label="kind").cached
    data.loc[100, "n"] = 77
    assert not build(tmp_path, data, label="kind").cached


@pytest.mark.slow  # worker processes
def test_worker_processes_read_what_was_extracted(lab: Any, tmp_path: Path) -> None:
    data = {"n": np.arange(NUM), "v": np.arange(3 * NUM, dtype=np.float32).reshape(NUM, 3)}
    rows = rows_of(lab, build(tmp_path, data, workers=2))
    assert {i: (r["n"], r["v"].tolist()) for i, r in rows.items()} == {
        f"table#{i}": (i, [3 * i, 3 * i + 1, 3 * i + 2]) for i in range(NUM)
    }


def test_arrow_and_anything_that_gives_a_stream(lab: Any, tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": range(NUM),
            # Polars' categories are such.
            "code": pa.DictionaryArray.from_arrays(
                pa.array([0, 1] * (NUM // 2), pa.uint32()), pa.array(["x", "y"], pa.string_view())
            ),
            "who": [{"age": i} for i in range(NUM)],
            "view": pa.array([f"v{i}" for i in range(NUM)], pa.string_view()),
        }
    )

    class Frame:
        """As Polars' frames are."""

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return table.__arrow_c_stream__(requested_schema)

    first = build(tmp_path, table)
    assert lab.stored_rows(first) == {
        f"table#{i}": {"n": i, "code": b"xy"[i % 2 : i % 2 + 1], "who.age": i, "view": b"v%d" % i}
        for i in range(NUM)
    }
    assert first.manifest.structs == ["who"]
    assert build(tmp_path, Frame()).cached
    assert build(tmp_path, table.to_batches(max_chunksize=7)[0]).path != first.path
    # However its rows are divided, a table is the same.
    chunks = pa.Table.from_batches(table.combine_chunks().to_batches(max_chunksize=7))
    assert build(tmp_path, chunks).cached


def test_large_tables_go_to_several_files(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extracted, "FILE_BYTES", 1 << 12)
    monkeypatch.setattr(extracted, "BATCH_BYTES", 1 << 10)
    data = {"n": np.arange(2000), "s": np.array([f"text {i}" for i in range(2000)])}
    source: Any = ss.Table(data).extract(str(tmp_path / "extracted"), base=".")
    assert len(source.files) > 5
    rows = rows_of(lab, build(tmp_path, data))
    assert {i: r["n"] for i, r in rows.items()} == {f"table#{i}": i for i in range(2000)}


def test_a_dry_run_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = ss.Recipe(name="made", source=ss.Table({"n": np.arange(NUM)}))
    assert forecast(recipe, progress=Silent()).num_examples == NUM
    recipe = ss.Recipe(name="made", source=ss.Table({"n": np.arange(30_000)}))
    assert forecast(recipe, progress=Silent()).num_examples == 30_000
    assert not list(tmp_path.iterdir())


BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("a list", [1, 2], RecipeError, "list is not a table"),
    ("None", None, RecipeError, "NoneType is not a table"),
    ("an array", np.zeros(3), RecipeError, "ndarray is not a table"),
    ("a series", pd.Series([1]), SchemaError, "cannot be converted to an Arrow table"),
    ("an empty dict", {}, RecipeError, "dict is not a table"),
    ("names of numbers", {1: np.zeros(2)}, RecipeError, "dict is not a table"),
    ("arrays of other lengths", {"a": [1], "b": [1, 2]}, RecipeError, "{'a': 1, 'b': 2} rows"),
    ("a single value", {"a": np.float32(1)}, RecipeError, "'a' is a single value"),
    ("objects", {"a": np.array([object()])}, SchemaError, "cannot be converted to an Arrow table"),
    ("mixed objects", {"a": np.array([1, "x"], object)}, SchemaError, "cannot be converted"),
    ("complex numbers", {"a": np.zeros(2, np.complex64)}, SchemaError, "complex64"),
    ("no rows", {"a": np.zeros(0)}, DataError, "the table has no rows"),
    ("no rows of pandas", pd.DataFrame({"a": []}), DataError, "has no rows"),
    (
        "mixed cells",
        pd.DataFrame({"a": [1, "x"]}, dtype=object),
        SchemaError,
        "cannot be converted",
    ),
    ("columns twice", pd.DataFrame([[1, 2]], columns=["a", "a"]), SchemaError, "'a'"),
    ("no columns", pd.DataFrame(index=[1, 2]), DataError, "has no rows"),
    ("an empty name", {"": np.zeros(2)}, SchemaError, "name that is empty"),
    ("our own name", {"snapshard.position": np.zeros(2)}, SchemaError, "Rename it"),
    ("a ragged list", {"a": [[1], [2, 3]]}, SchemaError, "cannot be converted"),
    ("intervals", pa.table({"a": pa.array([], pa.month_day_nano_interval())}), SchemaError, "'a'"),
]


@pytest.mark.parametrize(
    ("data", "error", "words"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
def test_what_is_no_table_is_refused(
    tmp_path: Path, data: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        build(tmp_path, data)
    assert words in str(caught.value)


DAY, TIME = datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 2, 5, 6, 7)
FINE = pd.Timestamp("2020-01-01 00:00:00.123456789")


@pytest.mark.parametrize(
    "column",
    [
        [DAY, TIME],
        [DAY, pd.Timestamp(TIME)],
        [[DAY, TIME]],
        [{"a": DAY}, {"a": TIME}],
        [[FINE]],
        [{"a": pd.Timedelta("1ns")}],
    ],
    ids=["day", "pandas", "list", "dict", "nanoseconds", "duration"],
)
@pytest.mark.parametrize(
    "source",
    [
        lambda data: ss.Table(data),
        lambda data: ss.Table(pd.DataFrame(data)),
        lambda data: ss.Iterable(lambda: [pd.DataFrame(data)]),
    ],
    ids=["of a dict", "of a frame", "of an iterable"],
)
def test_no_part_of_a_time_is_lost(tmp_path: Path, column: Any, source: Any) -> None:
    """Arrow takes the type of the first value, and cuts what others have more."""
    with pytest.raises(SnapshardError, match=r"'y' (mixes dates|has nanoseconds in lists)"):
        build_source(tmp_path, source({"y": pd.Series(column, dtype=object)}))


@pytest.mark.parametrize("source", [ss.Table, lambda data: ss.Iterable([{"y": data["y"][0]}])])
def test_times_of_day_with_a_zone_are_refused(tmp_path: Path, source: Any) -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    with pytest.raises(SnapshardError, match=r"'y' has times of day with|time of day without a zo"):
        build_source(tmp_path, source({"y": [datetime.time(1, tzinfo=zone)]}))


def test_missing_times_are_no_times_of_day(tmp_path: Path) -> None:
    lists = [[pd.Timestamp(TIME), pd.NaT], [pd.Timestamp(TIME)]]
    data = {"y": pd.Series([DAY, pd.NaT], dtype=object), "z": pd.Series(lists, dtype=object)}
    with pytest.raises(SnapshardError, match="1 × validate: missing item"):
        build(tmp_path, data)


def test_nanoseconds_of_durations(lab: Any, tmp_path: Path) -> None:
    rows = [{"z": pd.Timedelta("1ns")}, {"z": pd.Timedelta("1500ns")}]
    snapshot = build_source(tmp_path, ss.Iterable(lambda: rows))
    assert sorted(row["z"] for row in rows_of(lab, snapshot).values()) == [1, 1500]


@pytest.mark.parametrize(
    "source", [ss.Table, lambda data: ss.Iterable(lambda: [data])], ids=["Table", "Iterable"]
)
@pytest.mark.parametrize(
    "data",
    [
        pd.DataFrame([[1, 2], [3, 4]]),
        pd.DataFrame({0: [1], "y": [2]}),
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        pd.DataFrame({"a": [1, "b"]}),
    ],
    ids=["numbers", "one number", "twice", "mixed"],
)
def test_frames_that_are_no_table(tmp_path: Path, data: pd.DataFrame, source: Any) -> None:
    with pytest.raises((RecipeError, DataError), match=r"has a name that is no text|Arrow table"):
        build_source(tmp_path, source(data))


def test_cells_that_do_not_fit_are_rejects(tmp_path: Path) -> None:
    with pytest.raises(ss.SnapshardError, match="table row 3: column 'n' is 300, expected int8"):
        build(tmp_path, {"n": np.array([1, 2, 3, 300])}, types={"n": "int8"})


_CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.integers(-3, 3), max_size=2),
    st.dictionaries(st.text(max_size=1), st.integers(), max_size=2),
    st.dates(),
    st.decimals(allow_nan=False, allow_infinity=False),
)
_COLUMNS = st.dictionaries(
    st.text(max_size=4), st.lists(_CELLS, min_size=2, max_size=2), min_size=1, max_size=3
)


@settings(max_examples=40, deadline=None)
@given(columns=_COLUMNS, label=st.text(max_size=2) | st.none(), as_objects=st.booleans())
def test_any_cells_are_read_or_refused(
    columns: dict[str, list[Any]], label: str | None, as_objects: bool
) -> None:
    data: Any = pd.DataFrame(columns)
    if as_objects:
        data = {name: np.array([*cells, None], object)[:-1] for name, cells in columns.items()}
    with contextlib.suppress(ss.SnapshardError):
        recipe = ss.Recipe(
            name="x", source=ss.Table(data, label=label), splits=ss.Splits(train=1.0)
        )
        found = forecast(recipe, progress=Silent())
        assert found.num_examples <= 2


test_any_cells_are_read_or_refused_many = pytest.mark.slow(
    settings(max_examples=150, deadline=None)(
        given(columns=_COLUMNS, label=st.text(max_size=2) | st.none(), as_objects=st.booleans())(
            test_any_cells_are_read_or_refused.hypothesis.inner_test
        )
    )
)
