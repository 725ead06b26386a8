"""Wide tables: columns stacked into a vector, from every source of columns, up to serving."""

import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.features import presence_name, wire_columns
from snapshard.schemas.wire import FLOATS
from snapshard.transforms.examples.dtypes import dense_column, dense_values, numpy_dtype
from snapshard.transforms.prepare.tables import INTEGERS
from snapshard.transforms.runs.files import wire_schema

from .documented import run_examples

PAGE = Path(__file__).parents[2] / "docs" / "wide-tables.md"
NAMES = [f"c{number}" for number in range(12)]
SHUFFLED = ["c7", "y", "c10", "c2", "c0", "c11", "c1", "c9", "c3", "c8", "c5", "c4", "c6"]
NUM_ROWS = 40
TRAIN = ss.Splits(train=1.0)


def column(name: str) -> list[float]:
    """Values that say which row and column they are of; exact in every float."""
    if name == "y":
        return [float(row) for row in range(NUM_ROWS)]
    return [row + int(name[1:]) / 16 + 1 / 64 for row in range(NUM_ROWS)]


def table(dtype: pa.DataType | None = None) -> pa.Table:
    dtype = dtype or pa.float32()
    return pa.table({name: pa.array(column(name), dtype) for name in SHUFFLED})


def rows() -> list[dict[str, float]]:
    made: list[dict[str, float]] = table().to_pylist()
    return made


def csv(folder: Path, **options: Any) -> ss.Csv:
    lines = [",".join(SHUFFLED), *(",".join(map(str, row.values())) for row in rows())]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return ss.Csv(str(folder / "t.csv"), **options)


def json_lines(folder: Path) -> Any:
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return ss.JsonLines(str(folder / "t.jsonl"), types=dict.fromkeys(SHUFFLED, "float32"))


def parquet(folder: Path) -> Any:
    pq.write_table(table(), folder / "t.parquet")
    return ss.Parquet(str(folder / "t.parquet"))


def arrow(folder: Path) -> Any:
    with pa.ipc.new_file(folder / "t.arrow", table().schema) as writer:
        writer.write_table(table())
    return ss.Arrow(str(folder / "t.arrow"))


def arrays(folder: Path) -> Any:
    np.savez(folder / "t.npz", **{name: np.float32(column(name)) for name in SHUFFLED})
    return ss.Numpy(str(folder / "t.npz"))


def in_memory(folder: Path) -> Any:
    del folder
    return ss.Table(table())


def make_rows() -> Iterator[dict[str, np.float32]]:
    for row in range(NUM_ROWS):
        yield {name: np.float32(column(name)[row]) for name in SHUFFLED}


def iterable(folder: Path) -> Any:
    del folder
    return ss.Iterable(make_rows)


def sql(folder: Path) -> Any:
    with sqlite3.connect(folder / "t.db") as database:
        database.execute(f"CREATE TABLE t (id INTEGER, {', '.join(f'{n} REAL' for n in SHUFFLED)})")
        marks = ", ".join("?" * (len(SHUFFLED) + 1))
        values = [(number, *row.values()) for number, row in enumerate(rows())]
        database.executemany(f"INSERT INTO t VALUES ({marks})", values)
    database.close()
    query = f"SELECT id, {', '.join(SHUFFLED)} FROM t"
    types = dict.fromkeys(SHUFFLED, "float32")
    return ss.Sql(str(folder / "t.db"), query, key="id", types=types)


def examples(folder: Path) -> Any:
    before = ss.Recipe(name="before", source=parquet(folder), splits=TRAIN)
    return ss.TFRecords(f"{ss.build(before, folder / 'before', workers=1).path}/*.tfrecord")


SOURCES = [csv, json_lines, parquet, arrow, arrays, in_memory, iterable, sql, examples]


def read(snapshot: Any, **options: Any) -> dict[str, Any]:
    """All records of a snapshot, in the order of y."""
    data = snapshot.reader().dataset("train", NUM_ROWS, shuffle=False, **options)
    (batch,) = data.as_numpy_iterator()
    order = np.argsort(batch["y"])
    return {name: value[order] for name, value in batch.items()}


@pytest.mark.slow
@pytest.mark.parametrize("make", SOURCES, ids=[make.__name__ for make in SOURCES])
def test_columns_of_every_source_are_stacked(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    steps = [ss.tables.stack("c*", to="x")]
    recipe = ss.Recipe(name="t", source=make(tmp_path), prepare=steps, splits=TRAIN)
    snapshot = ss.build(recipe, tmp_path / "out", workers=1)
    batch = read(snapshot)
    assert batch["x"].dtype == np.float32
    assert batch["x"].tolist() == np.transpose([column(name) for name in NAMES]).tolist()
    assert snapshot.reader().FEATURES["x"]["names"] == NAMES
    assert {"x", "y"} <= batch.keys() <= {"x", "y", "id"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (pa.int32(), "int32"),
        (pa.uint64(), "uint64"),
        (pa.float64(), "float64"),
        (pa.int8(), "int8"),
    ],
)
def test_the_vector_has_the_dtype_of_its_columns(
    tmp_path: Path, dtype: pa.DataType, kind: str
) -> None:
    data = {name: pa.array(range(NUM_ROWS), dtype) for name in SHUFFLED}
    steps = [ss.tables.stack(["c3", "c0"], to="c3"), ss.records.select(["c3", "y"])]
    recipe = ss.Recipe(name="t", source=ss.Table(pa.table(data)), prepare=steps, splits=TRAIN)
    batch = read(ss.build(recipe, tmp_path / "out", workers=1))
    assert batch["c3"].dtype == kind
    assert batch["c3"].tolist() == [[row, row] for row in range(NUM_ROWS)]


@pytest.mark.slow
@pytest.mark.parametrize("fill", [0.5, math.nan, None])
def test_missing_values_need_a_number_that_stands_for_them(
    tmp_path: Path, fill: float | None
) -> None:
    data = pa.table({"a1": [1.0, None], "a2": [None, 2.0], "a3": [3.0, 4.0], "y": [0.0, 1.0]})
    steps = [ss.tables.stack("a*", to="x", fill=fill)]
    recipe = ss.Recipe(name="t", source=ss.Table(data), prepare=steps, splits=TRAIN)
    if fill is None:
        with pytest.raises(
            ss.SnapshardError, match=r"'a1', 'a2' of 3 columns may be missing.*fill="
        ):
            ss.build(recipe, tmp_path / "out", workers=1)
        return
    batch = read(ss.build(recipe, tmp_path / "out", workers=1))
    np.testing.assert_array_equal(batch["x"], [[1.0, fill, 3.0], [fill, 2.0, 4.0]])


@pytest.mark.parametrize("fill", [None, 3])
@pytest.mark.parametrize("dtype", sorted({*INTEGERS, *FLOATS}))
def test_columns_and_tensors_are_stacked_alike(dtype: Any, fill: int | None) -> None:
    import tensorflow as tf

    feature = ss.Scalar(dtype, optional=fill is not None)
    features = {"a10": feature, "a9": feature, "b": feature}
    step = ss.tables.stack("a*", to="x", fill=fill)
    values = {"a10": np.arange(4), "a9": np.arange(4, 8), "b": np.arange(4)}
    present = {
        name: np.array([True, not fill, not fill or name == "a9", True]) for name in features
    }
    arrays, record = [], {}
    for name, column in wire_columns_by_name(features).items():
        typed = values[name].astype(numpy_dtype(dtype))
        dense = dense_column(typed, column)
        arrays.append(pc.if_else(pa.array(present[name]), dense, pa.scalar(None, dense.type)))
        record[name] = tf.constant(typed)
        if fill is not None:
            record[presence_name(name)] = tf.constant(present[name])
    columns = pa.RecordBatch.from_arrays(arrays, schema=wire_schema(features))
    (made,) = step.on_columns(columns.slice(1), features).values()
    found = dense_values(made, step.features(features)["x"].form)
    expected = step.apply(record, features)["x"].numpy()
    assert found.dtype == expected.dtype
    assert found.tolist() == expected[1:].tolist()


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["c10", "c2", "c", "c1"], ["c", "c1", "c2", "c10"]),
        (["c1x", "c1", "c1_2", "c"], ["c", "c1", "c1_2", "c1x"]),
        (["1", "c", "", "2c"], ["", "1", "2c", "c"]),
        (["c1", "c01", "c001"], ["c001", "c01", "c1"]),
    ],
)
def test_names_with_and_without_numbers_are_ordered(names: list[str], order: list[str]) -> None:
    features = dict.fromkeys(names, ss.Scalar("float32"))
    assert ss.tables.stack("*", to="x").features(features)["x"].names == tuple(order)


def wire_columns_by_name(features: Any) -> dict[str, Any]:
    return {column.name: column for column in wire_columns(features)}


NUMBERS = {
    "a1": ss.Scalar("float32"),
    "a2": ss.Scalar("int64"),
    "b1": ss.Scalar("float32"),
    "s1": ss.Scalar("string"),
    "k1": ss.ClassLabel(("no", "yes")),
    "i1": ss.Scalar("int8", optional=True),
    "t1": ss.Scalar("int64", unit="s"),
}


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ("a*", {}, "expected numbers of one dtype, found float32: 'a1', int64: 'a2'. Name only"),
        ("z*", {}, "no feature matches 'z*', expected some of 'a1', 'a2', 'b1' and 4 more."),
        (["a1", "z1"], {}, "'z1' of 2 names are not features, expected some of 'a1'"),
        ("s*", {}, "expected numbers of one dtype, found string: 's1'"),
        ("k*", {}, 'expected numbers of one dtype, found ss.ClassLabel(("no", "yes")): \'k1\''),
        ("t*", {}, 'expected numbers of one dtype, found ss.Scalar("int64", unit="s"): \'t1\''),
        ("a1", {"to": "b1"}, "there is already a feature 'b1'. Choose another name."),
        ("i1", {"fill": 128}, "fill=128 is not a valid int8."),
        ("i1", {"fill": 0.5}, "fill=0.5 is not a valid int8."),
        ("i1", {}, "'i1' of 1 columns may be missing. Give fill= "),
        ([], {}, "expected a pattern, or at least one name"),
        (["a1", "a1"], {}, "expected different names"),
    ],
)
def test_what_cannot_be_stacked(names: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ss.SnapshardError) as caught:
        ss.tables.stack(names, **{"to": "x", **options}).features(NUMBERS)
    assert message in str(caught.value)


@pytest.mark.slow
def test_the_label_stays_and_a_stacked_label_is_refused(tmp_path: Path) -> None:
    steps = [ss.tables.stack("c*", to="x")]
    recipe = ss.Recipe(name="t", source=csv(tmp_path, label="y"), prepare=steps, splits=TRAIN)
    assert ss.build(recipe, tmp_path / "out", workers=1).reader().LABEL == "y"
    recipe = ss.Recipe(name="t", source=csv(tmp_path, label="c3"), prepare=steps, splits=TRAIN)
    with pytest.raises(ss.SnapshardError, match="would stack the label, 'c3'"):
        ss.build(recipe, tmp_path / "out", workers=1)
    recipe = ss.Recipe(name="t", source=csv(tmp_path), prepare=steps, splits=TRAIN, label="x")
    assert ss.build(recipe, tmp_path / "out", workers=1).reader().LABEL == "x"


def test_a_request_passes_the_vector(tmp_path: Path) -> None:
    steps = [ss.tables.stack("c*", to="x"), ss.tables.clip("x", 2, 5)]
    recipe = ss.Recipe(name="t", source=csv(tmp_path, label="y"), prepare=steps, splits=TRAIN)
    snapshot = ss.build(recipe, tmp_path / "out", workers=1)
    import tensorflow as tf

    model = tf.saved_model.load(f"{snapshot.path}/serving")
    serve = model.signatures["serving_default"]
    raw = np.transpose([column(name) for name in NAMES]).astype(np.float32)
    assert serve.structured_input_signature[1].keys() == {"x"}
    served = serve(x=tf.constant(raw))
    np.testing.assert_array_equal(served["x"], read(snapshot)["x"])


@pytest.mark.slow
def test_columns_after_another_step_are_inputs_of_a_request(tmp_path: Path) -> None:
    steps = [ss.tables.clip("c0", 2, 5), ss.tables.stack("c*", to="x")]
    recipe = ss.Recipe(name="t", source=csv(tmp_path, label="y"), prepare=steps, splits=TRAIN)
    snapshot = ss.build(recipe, tmp_path / "out", workers=1)
    import tensorflow as tf

    serve = tf.saved_model.load(f"{snapshot.path}/serving").signatures["serving_default"]
    given = {name: tf.constant(column(name), tf.float32) for name in NAMES}
    np.testing.assert_array_equal(serve(**given)["x"], read(snapshot)["x"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num", "missing", "dtype", "shown"),
    [
        (50, False, "float", 'prepare=[ss.tables.stack("c[0-9]*", to="x")],'),
        (50, True, "float", 'prepare=[ss.tables.stack("c[0-9]*", to="x", fill=float("nan"))],'),
        (50, False, "int", 'prepare=[ss.tables.stack("c[0-9]*", to="x")],'),
        (50, True, "int", "prepare=[],"),
        (49, False, "float", "prepare=[],"),
    ],
)
def test_init_suggests_to_stack_many_columns(
    tmp_path: Path, num: int, missing: bool, dtype: str, shown: str
) -> None:
    names = [f"c{number}" for number in range(num)]
    cells = ["1.5" if dtype == "float" else "1"] * num
    lines = [[*names, "c_class"]] + [[*cells, "a"], [*cells, "b"]] * 30
    lines += [[*cells[:-1], "" if missing else cells[0], "a"]]
    (tmp_path / "t.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    text = describe_suggestion(str(tmp_path / "t.csv"))
    assert shown in text
    (tmp_path / "recipe.py").write_text(text)
    recipe = load_recipe_file(str(tmp_path / "recipe.py"))
    assert ss.build(recipe, tmp_path / "out", workers=1).reader().NUM_EXAMPLES["train"]


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"band{number}" for number in range(200)]
    rng = np.random.default_rng(0)
    lines = [[*names, "mineral"]]
    for number in range(200):
        values = np.round(rng.random(200), 3)
        lines.append([*map(str, values), ("quartz", "calcite")[number % 2]])
    Path("spectra.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    assert run_examples(PAGE, tmp_path) == 2
