"""No missing value is taken for a real one: of any type, from any source, by either reader."""

import csv
import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from typer.testing import CliRunner

import snapshard as ss
from snapshard.cli import app
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import mask_name, tensor_form

EPOCH = datetime.datetime(1970, 1, 1)
VALUES: dict[str, list[Any]] = {
    # What a missing value could be taken for, and others.
    "int64": [0, -1, -(2**63), 7],
    "uint8": [0, 255, 1, 2],
    "uint64": [0, 2**63 - 1, 1, 2],
    "bool": [False, True, False, True],
    "float32": [0.0, -1.0, 0.5, 2.0],
    "float64": [0.0, 0.1, -1.0, 2.5],
    "string": ["nothing", "é", "0", "b"],
    "text": ["nothing", "é", "0", "b"],
    "sort": ["a", "b", "a", "b"],
    "time": [EPOCH, EPOCH + datetime.timedelta(days=1), EPOCH, EPOCH],
    "ints": [[], [0], [1, 2], []],
    "bytes": [[], [0], [1, 2], []],
    "texts": [[], [""], ["a", "b"], []],
    "vectors": [[], [[0.0, 1.0]], [[1.0, 2.0], [3.0, 4.0]], []],
}
FEATURES: dict[str, Any] = {
    **{name: ss.Scalar(name, optional=True) for name in list(VALUES)[:7]},
    "text": ss.Text(optional=True),
    "sort": ss.ClassLabel(("a", "b"), optional=True),
    "time": ss.Timestamp("s", optional=True),
    "ints": ss.Sequence(ss.Scalar("int64"), optional=True),
    "bytes": ss.Sequence(ss.Scalar("uint8"), optional=True),
    "texts": ss.Sequence(ss.Text(), optional=True),
    "vectors": ss.Sequence(ss.Tensor("float32", (2,)), optional=True),
}
STATED: dict[str, Any] = {
    "int64": (7, 7),
    "bool": (True, True),
    "float32": (-1.5, -1.5),
    "string": ("none", b"none"),
    "text": ("none", b"none"),
    "sort": ("b", 1),
    "time": (5, 5),
    "ints": ((), []),
    "bytes": ((), []),
}
"""What the recipe says to read where a value is missing, and what that is in the reader."""
SINGLE = [name for name in VALUES if not isinstance(VALUES[name][0], list)]
NUM = 40


def raw_rows(names: list[str]) -> list[dict[str, Any]]:
    """Rows of which every third or so lacks a value, another one in each column."""
    rows: list[dict[str, Any]] = [{"id": number} for number in range(NUM)]
    for place, name in enumerate(names):
        for number, row in enumerate(rows):
            lacks = (number + place) % 3 == 0
            row[name] = None if lacks else VALUES[name.split(" ")[0]][number % 4]
    return rows


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Any:
    with open(path / "t.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return ss.Csv(str(path / "t.csv"))


def write_json(path: Path, rows: list[dict[str, Any]]) -> Any:
    with open(path / "t.jsonl", "w") as file:
        for number, row in enumerate(rows):
            # Without the key, or null.
            kept = {key: value for key, value in row.items() if number % 2 or value is not None}
            file.write(json.dumps(kept, default=datetime.datetime.isoformat) + "\n")
    return ss.JsonLines(str(path / "t.jsonl"))


def arrow_table(rows: list[dict[str, Any]]) -> pa.Table:
    kinds = {
        "uint8": pa.uint8(),
        "uint64": pa.uint64(),
        "float32": pa.float32(),
        "time": pa.timestamp("s"),
        "bytes": pa.list_(pa.uint8()),
        "vectors": pa.list_(pa.list_(pa.float32(), 2)),
    }
    columns = {}
    for name in rows[0]:
        kind = kinds.get(name.split(" ")[0])
        columns[name] = pa.array([row[name] for row in rows], kind)
    return pa.table(columns)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Any:
    pq.write_table(arrow_table(rows), path / "t.parquet")
    return ss.Parquet(str(path / "t.parquet"))


def make_table(path: Path, rows: list[dict[str, Any]]) -> Any:
    del path
    return ss.Table(arrow_table(rows))


def write_examples(path: Path, rows: list[dict[str, Any]]) -> Any:
    def listed(name: str, value: Any) -> tf.train.Feature:
        items = value if isinstance(value, list) else [value]
        if isinstance(items[:1], list) and items and isinstance(items[0], list):
            items = [item for one in items for item in one]
        kind = name.split(" ")[0]
        if kind == "sort":
            items = ["ab".index(item) for item in items]
        if kind == "time":
            items = [int((item - EPOCH).total_seconds()) for item in items]
        made = tf.train.Feature()
        if kind in ("string", "text", "texts"):
            made.bytes_list.value.extend(item.encode() for item in items)
            made.bytes_list.SetInParent()
        elif kind in ("float32", "float64", "vectors"):
            made.float_list.value.extend(items)
            made.float_list.SetInParent()
        else:
            made.int64_list.value.extend((int(i) + 2**63) % 2**64 - 2**63 for i in items)
            made.int64_list.SetInParent()
        return made

    with tf.io.TFRecordWriter(str(path / "t.tfrecord")) as writer:
        for row in rows:
            feature = {k: listed(k, v) for k, v in row.items() if v is not None}
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    return ss.TFRecords(str(path / "t.tfrecord"))


SOURCES: dict[str, tuple[Callable[[Path, list[dict[str, Any]]], Any], list[str]]] = {
    "csv": (write_csv, SINGLE),
    "json": (write_json, list(VALUES)),
    "parquet": (write_parquet, list(VALUES)),
    "table": (make_table, list(VALUES)),
    "tfrecord": (write_examples, [n for n in VALUES if n not in ("float64", "vectors")]),
}


def plain(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    return value.tolist() if hasattr(value, "tolist") else value


def as_read(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [as_read("", item) for item in value]
    if isinstance(value, str):
        return "ab".index(value) if name.startswith("sort") else value.encode()
    if isinstance(value, datetime.datetime):
        return int((value - EPOCH).total_seconds())
    return value


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_no_missing_value_is_taken_for_a_real_one(tmp_path: Path, source: str) -> None:
    write, names = SOURCES[source]
    stated = {f"{name} stated": name for name in STATED if name in names}
    rows = raw_rows([*names, *stated])
    features = {"id": ss.Scalar("int64")} | {name: FEATURES[name] for name in names}
    for name, plain_name in stated.items():
        default = STATED[plain_name][0]
        features[name] = type(FEATURES[plain_name])(
            **vars(FEATURES[plain_name]) | {"default": default}
        )
    recipe = ss.Recipe(
        name="x",
        source=write(tmp_path, rows),
        features=features,
        splits=ss.Splits(train=1.0),
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    assert sum(split.num_examples for split in snapshot.manifest.splits.values()) == NUM
    lacking = {name: sum(row[name] is None for row in rows) for name in (*names, *stated)}
    assert snapshot.manifest.num_missing == dict(sorted(lacking.items()))
    reader = snapshot.reader()
    (batch,) = reader.dataset("train", NUM, shuffle=False)
    columns = {name: plain(v if hasattr(v, "to_list") else v.numpy()) for name, v in batch.items()}
    by_tf = [{name: column[i] for name, column in columns.items()} for i in range(NUM)]
    by_numpy = [
        {name: plain(value) for name, value in record.items()}
        for record in reader.arrays.Records("train")
    ]
    masks = {name: mask_name(name, feature) for name, feature in features.items()}
    expected = {*features, *(mask for mask in masks.values() if mask is not None)}
    for records in (by_tf, by_numpy):
        for record in records:
            assert set(record) == expected
            row = rows[record["id"]]
            for name, mask in masks.items():
                value, raw = record[name], row[name]
                if mask is not None:
                    assert record[mask] == (raw is not None), (name, row["id"])
                if raw is not None:
                    assert value == as_read(name, raw), (name, row["id"])
                elif name in stated:
                    assert value == STATED[stated[name]][1]
                elif mask is None:
                    form = tensor_form(features[name])
                    assert form is not None
                    assert form.dtype in ("float32", "float64")
                    assert np.isnan(value)


def served_table(path: Path, **more: Any) -> tuple[ss.Snapshot, dict[str, list[Any]]]:
    """A snapshot with a model for serving, and its raw rows as columns."""
    names = ["int64", "uint8", "bool", "float32", "float64", "string", "sort", "time", "ints"]
    rows = raw_rows(names)
    for row in rows:  # a float64 tells whole numbers up to here
        row["int64"] = None if row["int64"] is None else max(row["int64"], 1 - 2**53)
    features = {"id": ss.Scalar("int64")} | {name: FEATURES[name] for name in names}
    recipe = ss.Recipe(
        name="x",
        source=make_table(path, rows),
        features=features,
        splits=ss.Splits(train=1.0),
        **{"prepare": [ss.tables.clip("uint8", max=200)], **more},
    )
    return ss.build(recipe, path / "out"), {name: [r[name] for r in rows] for name in rows[0]}


def request(columns: dict[str, list[Any]], rows: list[int]) -> dict[str, Any]:
    """Some rows as a client gives them: NaN and NaT where a value is missing."""
    given: dict[str, Any] = {"id": [columns["id"][i] for i in rows]}
    for name in ("int64", "uint8", "bool", "float32", "float64", "sort"):
        values = [as_read(name, columns[name][i]) for i in rows]
        kind = np.float32 if name == "float32" else np.float64
        given[name] = np.array([np.nan if v is None else v for v in values], kind)
    times = np.array([columns["time"][i] for i in rows], "datetime64[s]")
    given["time"] = times.astype(np.int64)
    return given


def assert_served(served: dict[str, Any], snapshot: ss.Snapshot, rows: list[int]) -> None:
    """Equal to what the reader gives of the same rows."""
    (batch,) = snapshot.reader().dataset("train", NUM, shuffle=False)
    order = batch["id"].numpy().tolist()
    assert set(served) == set(batch)
    for name, value in batch.items():
        wanted = tf.gather(value, [order.index(i) for i in rows])
        if isinstance(wanted, tf.RaggedTensor):
            assert served[name].to_list() == wanted.to_list(), name
        else:
            np.testing.assert_array_equal(served[name].numpy(), wanted.numpy(), err_msg=name)


@pytest.mark.slow  # exports a model
def test_served_rows_are_read_rows(tmp_path: Path) -> None:
    """NaN in some rows, keys left out of others; with no input that says what is there."""
    snapshot, columns = served_table(tmp_path)
    serve = snapshot.reader().preprocess()
    served_keys = set(columns)
    whole = [i for i in range(NUM) if columns["string"][i] and columns["ints"][i] == [1, 2]]
    assert len(whole) > 2
    given = request(columns, whole) | {
        "string": [columns["string"][i] for i in whole],
        "ints": tf.constant([[1, 2]] * len(whole), tf.int64),
    }
    assert_served(serve(**given), snapshot, whole)
    bare = [i for i in range(NUM) if columns["string"][i] is columns["ints"][i] is None]
    assert len(bare) > 2
    assert_served(serve(**request(columns, bare)), snapshot, bare)
    for row in range(6):
        # One by one: without the keys of what is missing.
        given = request(columns, [row]) | {"string": [columns["string"][row]]}
        given["ints"] = tf.constant([columns["ints"][row] or []], tf.int64)
        kept = {k: v for k, v in given.items() if columns[k][row] is not None}
        assert_served(serve(**kept), snapshot, [row])
    mixed = list(range(6))
    given = request(columns, mixed)
    given["string"] = [columns["string"][i] or "" for i in mixed]
    given["string_present"] = [columns["string"][i] is not None for i in mixed]
    given["ints"] = tf.ragged.constant(
        [columns["ints"][i] or [] for i in mixed], dtype=tf.int64
    ).to_tensor(shape=[None, 2])
    given["ints_present"] = [columns["ints"][i] is not None for i in mixed]
    found = serve(**given)
    assert found["ints_present"].numpy().tolist() == given["ints_present"]
    assert found["string_present"].numpy().tolist() == given["string_present"]
    entry = snapshot.manifest.serving
    assert entry is not None
    assert set(entry.optional_inputs) == {*served_keys - {"id"}, "string_present", "ints_present"}
    # Servers fill in what is left out.
    model = saved_model_pb2.SavedModel.FromString(
        (Path(snapshot.path) / "serving" / "saved_model.pb").read_bytes()
    )
    signature = model.meta_graphs[0].signature_def["serving_default"]
    assert set(signature.defaults) == set(entry.optional_inputs)
    for name, default in signature.defaults.items():
        assert tf.make_ndarray(default).shape[0] == 0, name
    # The SavedModel itself.
    raw = tf.saved_model.load(str(Path(snapshot.path) / "serving")).signatures["serving_default"]
    specs = raw.structured_input_signature[1]
    blank = {name: tf.zeros([0] * len(spec.shape), spec.dtype) for name, spec in specs.items()}
    one = {k: tf.constant(v, specs[k].dtype) for k, v in request(columns, bare).items()}
    assert_served(raw(**blank | one), snapshot, bare)


SERVED = ["int64", "uint8", "bool", "float32", "float64", "string", "text", "sort", "time", "ints"]
SERVED += ["bytes", "texts", "vectors"]


@pytest.mark.slow  # exports a model
def test_rows_without_keys_are_read_rows(tmp_path: Path) -> None:
    """A list of rows needs no input that says what is there: of any type, in any row."""
    rows = raw_rows(SERVED)
    for row in rows:
        row["int64"] = None if row["int64"] is None else max(row["int64"], 1 - 2**53)
    rows[3] = {name: None for name in rows[3]}
    features = {"id": ss.Scalar("int64", optional=True)} | {name: FEATURES[name] for name in SERVED}
    steps = [ss.tables.clip("uint8", max=200)]
    recipe = ss.Recipe(
        name="x",
        source=make_table(tmp_path, rows),
        features=features,
        splits=ss.Splits(train=1.0),
        prepare=steps,
    )
    snapshot = ss.build(recipe, tmp_path / "out")
    (batch,) = snapshot.reader().dataset("train", NUM, shuffle=False)
    there = batch["id_present"].numpy().tolist()
    order = [i if there[at] else 3 for at, i in enumerate(batch["id"].numpy().tolist())]
    serve = snapshot.reader().preprocess()

    def raw(name: str, value: Any) -> Any:
        return (
            as_read("", value) if name == "time" else "ab".index(value) if name == "sort" else value
        )

    left_out = [
        {name: raw(name, value) for name, value in rows[i].items() if value is not None}
        for i in order
    ]
    lacking: list[tuple[Any, Callable[[str], bool]]] = [
        (None, lambda name: True),
        (float("nan"), lambda name: True),
        (np.nan, lambda name: name in ("int64", "bool", "float32")),
    ]
    requests = [left_out]
    for mark, wanted in lacking:
        marked = {name: mark for name in rows[0] if wanted(name)}
        requests.append([marked | row for row in left_out])
    for given in requests:
        assert not any(name.endswith("_present") for row in given for name in row)
        served = serve(given)
        assert set(served) == set(batch)
        for name, value in batch.items():
            if isinstance(value, tf.RaggedTensor):
                assert served[name].to_list() == value.to_list(), name
            else:
                np.testing.assert_array_equal(served[name].numpy(), value.numpy(), err_msg=name)
    with pytest.raises(ValueError, match="There is no input 'other', only"):
        serve([{"other": 1}])


INEXACT: list[tuple[str, str, list[Any]]] = [
    ("n", "int64", [1.5, np.float64(1.5), "3", 2**63]),
    ("small", "uint8", [300, -1, 1.5, np.int64(300), np.float32(2.5)]),
    ("sure", "bool", [2, np.int64(2), np.float64(0.5), "yes"]),
    ("single", "float32", [2**24 + 1, np.int64(2**24 + 1), 1e39, np.float64(-1e39), "1.5"]),
    ("double", "float64", [2**53 + 1, np.int64(2**53 + 1), np.uint64(2**63 + 1), b"x"]),
    ("half", "float16", [2049, np.int32(2049), 65_536.0, np.float32(65_536)]),
    ("kind", "int64", [0.5, np.float64(0.5)]),
    ("text", "string", [3, 1.5]),
]


@pytest.mark.slow  # exports a model
def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    rows = [
        {
            "n": i,
            "small": i,
            "sure": i % 2 > 0,
            "single": i / 2,
            "double": i / 3,
            "half": i / 4,
            "kind": "ab"[i % 2],
            "text": f"t{i}",
        }
        for i in range(8)
    ]
    features = {
        "n": ss.Scalar("int64"),
        "small": ss.Scalar("uint8"),
        "sure": ss.Scalar("bool"),
        "single": ss.Scalar("float32"),
        "double": ss.Scalar("float64"),
        "half": ss.Scalar("float16"),
        "kind": ss.ClassLabel(("a", "b")),
        "text": ss.Text(),
    }
    recipe = ss.Recipe(
        name="x",
        source=ss.Table(pa.table({name: [row[name] for row in rows] for name in rows[0]})),
        features=features,
        splits=ss.Splits(train=1.0),
        prepare=[ss.tables.clip("n", max=200)],
    )
    serve = ss.build(recipe, tmp_path / "out").reader().preprocess()
    rows = [row | {"kind": i % 2} for i, row in enumerate(rows)]
    held = serve(rows)
    assert held["small"].numpy().tolist() == list(range(8))
    assert held["double"].numpy().tolist() == [i / 3 for i in range(8)]
    assert held["half"].numpy().tolist() == [i / 4 for i in range(8)]
    assert serve([])["small"].numpy().tolist() == []
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for name, dtype, values in INEXACT:
        for found in values:
            batch = [found] * 8
            for given in (
                [[rows[0] | {name: found}]],
                columns | {name: batch},
                columns | {name: np.array(batch)},
            ):
                with pytest.raises(ValueError, match=rf"(?s)^{name}=.* is not {dtype}\("):
                    serve(*given) if isinstance(given, list) else serve(**given)
    with pytest.raises(ValueError, match=r"^kind='b' is not int64\(\)\. A class is passed as its"):
        serve([rows[0] | {"kind": "b"}])
    exact = {
        "sure": np.int64(1),
        "single": 2**24,
        "double": np.int64(2**53),
        "half": np.inf,
        "small": np.float64(255),
    }
    served = serve([rows[0] | exact | {"n": np.float64(7.0)}])
    assert {name: served[name].numpy().item() for name in exact} == exact
    for row in ({}, {"n": None, "small": None}):
        with pytest.raises(ValueError, match="Missing inputs in row 1: 'double', 'half', "):
            serve([rows[0], row])
    for lacking in (None, float("nan")):
        with pytest.raises(ValueError, match=r"^Missing inputs in row 1: 'text'\."):
            serve([rows[0], rows[1] | {"text": lacking}])


@pytest.mark.slow  # exports a model
def test_requests_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    serve = served_table(tmp_path)[0].reader().preprocess()
    with pytest.raises(ValueError, match=r"^Missing inputs: 'id'\."):
        serve(int64=[1.0, 2.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="input int64 must have as many rows"):
        serve(id=[1, 2, 3], int64=[1.0, 2.0])
    for name, value in (("int64", 0.5), ("uint8", 256.0), ("bool", 2.0), ("int64", 2**53)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"input {name} must be"):
            serve(id=[1], **{name: [value]})


@pytest.mark.slow
@pytest.mark.full_data
@pytest.mark.parametrize(
    ("table", "masked"),
    [
        ("penguins", {"body_mass_g": 2, "flipper_length_mm": 2, "sex": 11}),
        ("chicago_taxi", {"trip_seconds": 6, "company": 5140, "dropoff_community_area": 507}),
    ],
)
def test_zero_config_masks_what_is_missing(
    tmp_path: Path, full_data: Path, table: str, masked: dict[str, int]
) -> None:
    recipe = suggest_recipe(str(full_data / "tabular" / f"{table}.csv"))
    snapshot = ss.build(recipe, tmp_path / "out")
    counts = snapshot.manifest.num_missing
    assert {name: counts[name] for name in masked} == masked
    lacking = dict.fromkeys(masked, 0)
    for split in snapshot.manifest.splits:
        for batch in snapshot.reader().dataset(split, 64, shuffle=False):
            for name in masked:
                there = batch[f"{name}_present"].numpy()
                lacking[name] += int((~there).sum())
                if name == "body_mass_g":
                    assert (batch[name].numpy()[there] > 2000).all()
    assert lacking == masked


def test_a_build_and_a_plan_say_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n,x,y\n" + "".join(f"{i % 3 or ''},,{i}\n" for i in range(30)))
    recipe = tmp_path / "r.py"
    recipe.write_text(
        "import snapshard as ss\n"
        'recipe = ss.Recipe(name="r", source=ss.Csv("t.csv", label="n", types={"x": "float32"}))\n'
    )
    for command, where in (
        (["plan", str(recipe)], "30 sampled records"),
        (["build", str(recipe), "--out", str(tmp_path / "out")], "30 examples"),
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert f"missing values in {where}" in result.output
        assert re.search(r"n +10 +mask: n_present is False", result.output)
        assert re.search(r"x +30 +NaN", result.output)
        assert "10 examples have no label 'n'" in result.output


def test_a_feature_called_as_a_mask_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n,n_present\n1,1\n,2\n3,3\n")
    source = ss.Csv(str(tmp_path / "t.csv"))
    with pytest.raises(RecipeError, match="'n' may be missing, so the reader adds a mask 'n_pre"):
        ss.build(ss.Recipe(name="x", source=source), tmp_path / "out")
    one = ss.Splits(train=1.0)
    filled = ss.Recipe(name="x", source=source, prepare=[ss.tables.fill("n", 0)], splits=one)
    assert ss.build(filled, tmp_path / "out").manifest.num_missing == {}
    with pytest.raises(RecipeError, match="default='c' is not one of the names"):
        ss.ClassLabel(("a", "b"), optional=True, default="c")


@pytest.mark.slow
def test_what_a_preprocessing_fn_gets_of_missing_values(tmp_path: Path) -> None:
    rows = [{"n": i % 3 or None, "l": None if i % 5 == 0 else [i] * (i % 2)} for i in range(40)]
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    recipe = tmp_path / "r.py"

    def write(steps: str) -> list[str]:
        recipe.write_text(
            "import tensorflow as tf\n"
            "import snapshard as ss\n"
            "def made(inputs):\n"
            "    n = inputs['n']\n"
            "    return {'double': tf.SparseTensor(n.indices, 2 * n.values, n.dense_shape),\n"
            "            'length': tf.cast(inputs['l'].row_lengths(), tf.int64)}\n"
            "recipe = ss.Recipe(name='r', source=ss.JsonLines('t.jsonl'), preprocessing_fn=made,\n"
            f"    prepare=[{steps}])\n"
        )
        return [str(recipe), "--out", str(tmp_path / "out")]

    for command in (["plan", *write("")[:1]], ["build", *write("")]):
        result = CliRunner().invoke(app, command)
        assert isinstance(result.exception, RecipeError)
        assert "preprocessing_fn reads 'l', which may be missing" in str(result.exception)
    result = CliRunner().invoke(app, ["plan", *write("ss.tables.missing('l', 'gone')")[:1]])
    assert result.exit_code == 0, result.output
    assert "in preprocessing_fn" in result.output
    assert re.search(r"n +14 +no value", result.output)
    assert re.search(r"l +8 +an empty list", result.output)
    assert "mask" not in result.output
    assert (
        CliRunner().invoke(app, ["build", *write("ss.tables.missing('l', 'gone')")]).exit_code == 0
    )
