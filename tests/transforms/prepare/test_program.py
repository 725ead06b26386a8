"""Programs of compiled steps: inferred features, carried columns, culprits, the same bytes."""

import functools
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

import snapshard as ss
from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.errors import RecipeError, Reject
from snapshard.schemas.features import ClassLabel, Features, Image, Scalar, Sequence, Tensor, Text
from snapshard.transforms.prepare import images, tables
from snapshard.transforms.prepare.engine.chain import output_features
from snapshard.transforms.prepare.engine.program import StepRunner
from snapshard.transforms.prepare.engine.serving import build_model
from snapshard.transforms.rejects import MAX_PAYLOAD_BYTES
from snapshard.transforms.runs.files import wire_schema

TABLE: Features = {
    "age": Scalar("float32", optional=True),
    "kind": ClassLabel(names=("a", "b", "c")),
    "member": Scalar("bool"),
    "name": Scalar("string", optional=True),
    "scores": Tensor("float32", (2,)),
    "tags": Tensor("string", (None,), optional=True),
    "visits": Scalar("int32", optional=True, default=-1),
}


def table_batch(num_copies: int = 1) -> RawBatch:
    rows = [
        {
            "age": 30.5,
            "kind": 0,
            "member": 1,
            "name": b"Ada",
            "scores": [1.0, 2.0],
            "tags": [b"x", b"y"],
            "visits": 3,
        },
        {
            "age": None,
            "kind": 2,
            "member": 0,
            "name": None,
            "scores": [3.0, 4.0],
            "tags": None,
            "visits": None,
        },
        {
            "age": 7.0,
            "kind": 1,
            "member": 0,
            "name": "Zoë".encode(),
            "scores": [-1.0, 0.0],
            "tags": [],
            "visits": 0,
        },
    ] * num_copies
    columns = pa.RecordBatch.from_pylist(rows, schema=wire_schema(TABLE))
    return RawBatch(ids=[f"t.csv#{10 * i}" for i in range(len(rows))], columns=columns)


def test_without_steps_a_batch_passes_through() -> None:
    earlier = Reject(record_id="t.csv#7", stage="read", reason="r", message="m", source="t.csv")
    batch = table_batch()
    batch = RawBatch(ids=batch.ids, columns=batch.columns, rejects=(earlier,))
    runner = StepRunner([], TABLE)
    assert runner.features == TABLE
    prepared = runner.prepare(batch)
    assert prepared.columns.equals(batch.columns)
    assert prepared.ids == batch.ids
    assert prepared.rejects == (earlier,)


def test_only_declared_features_are_kept() -> None:
    kept = {name: TABLE[name] for name in ("kind", "age")}
    prepared = StepRunner([], TABLE, kept).prepare(table_batch())
    assert prepared.columns.schema.names == ["age", "kind"]


def test_a_batch_of_other_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the wire columns"):
        StepRunner([], TABLE).prepare(
            RawBatch(ids=["a"], columns=pa.RecordBatch.from_pydict({"age": [1.0]}))
        )


def keep_all(record: dict[str, Any]) -> dict[str, Any]:
    return dict(record)


def change_all(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "age_in_days": record["age"] * 365,
        "big": record["scores"] > 1.5,
        "kind": record["kind"] + 1,
        "letters": tf.strings.bytes_split(record["name"]),
        "minor": record["age"] < 18,
        "name": record["name"],
        "num_tags": tf.cast(tf.size(record["tags"]), tf.uint16),
        "scores": tf.cumsum(record["scores"]),
        "square": tf.reshape(tf.range(4), (2, 2)),
        "tags": tf.strings.upper(record["tags"]),
        "visits": record["visits"] * 2,
    }


def test_a_function_that_changes_nothing_keeps_everything() -> None:
    batch = table_batch()
    runner = StepRunner([keep_all], TABLE)
    assert runner.features == TABLE
    assert runner.prepare(batch).columns.equals(batch.columns)


def test_what_a_function_gives_tells_the_features() -> None:
    expected = {
        "age_in_days": Scalar("float32"),
        "big": Tensor("bool", (2,)),
        "kind": Scalar("int64"),
        "letters": Tensor("string", (None,)),
        "minor": Scalar("bool"),
        "name": TABLE["name"],
        "num_tags": Scalar("uint16"),
        "scores": Tensor("float32", (2,)),
        "square": Tensor("int32", (2, 2)),
        "tags": Tensor("string", (None,)),
        "visits": Scalar("int32"),
    }
    assert output_features([change_all], TABLE) == expected
    runner = StepRunner([change_all], TABLE)
    assert runner.features == expected
    prepared = runner.prepare(table_batch())
    assert prepared.columns.schema.equals(wire_schema(expected))
    rows = prepared.columns.to_pylist()
    assert rows[0] == {
        "age_in_days": 30.5 * 365,
        "big": [0, 1],
        "kind": 1,
        "letters": [b"A", b"d", b"a"],
        "minor": 0,
        "name": b"Ada",
        "num_tags": 2,
        "scores": [1.0, 3.0],
        "square": [0, 1, 2, 3],
        "tags": [b"X", b"Y"],
        "visits": 6,
    }
    assert np.isnan(rows[1].pop("age_in_days"))
    assert rows[1] == {
        "big": [1, 1],
        "kind": 3,
        "letters": [],
        "minor": 0,
        "name": None,
        "num_tags": 0,
        "scores": [3.0, 7.0],
        "square": [0, 1, 2, 3],
        "tags": [],
        "visits": -2,
    }


def test_a_sliced_batch_gives_its_own_rows() -> None:
    whole = table_batch(3)
    runner = StepRunner([change_all], TABLE)
    part = RawBatch(ids=whole.ids[2:7], columns=whole.columns.slice(2, 5))
    expected = runner.prepare(whole).columns.slice(2, 5)
    found = runner.prepare(part).columns
    assert str(found.to_pylist()) == str(expected.to_pylist())  # NaN is unlike itself


def test_an_empty_batch_has_the_prepared_columns() -> None:
    runner = StepRunner([change_all], TABLE)
    batch = table_batch()
    prepared = runner.prepare(RawBatch(ids=[], columns=batch.columns.slice(0, 0)))
    assert prepared.columns.num_rows == 0
    assert prepared.columns.schema.equals(wire_schema(runner.features))


def test_a_function_may_branch_on_a_tensor() -> None:
    def branch(record: dict[str, Any]) -> dict[str, Any]:
        if record["visits"] > 0:
            return {"group": 1}
        return {"group": 0}

    runner = StepRunner([branch], TABLE)
    assert runner.features == {"group": Scalar("int32")}
    assert runner.prepare(table_batch()).columns.column("group").to_pylist() == [1, 0, 0]


def test_a_function_that_reads_nothing_gives_as_many_records() -> None:
    runner = StepRunner([lambda record: {"one": tf.constant(1)}], TABLE)
    assert runner.prepare(table_batch()).columns.column("one").to_pylist() == [1, 1, 1]


def test_functions_and_steps_alternate_on_images(pictures: Any) -> None:
    def invert(record: dict[str, Any]) -> dict[str, Any]:
        assert record["image"].shape == (8, 10, 3)
        flipped = 255 - record["image"]
        return {**record, "image": flipped, "mean": tf.reduce_mean(tf.cast(flipped, tf.float32))}

    steps = [images.decode("image"), images.resize("image", (8, 10)), invert]
    larger = [*steps, images.resize("image", (16, 20))]
    assert output_features(larger, pictures.features) == {
        "image": Image(height=16, width=20),
        "label": pictures.features["label"],
        "mean": Scalar("float32"),
    }
    batch = pictures.raw_batch([pictures.encode(pictures.pixels(8, 10), "PNG")])
    prepared = StepRunner(steps, pictures.features).prepare(batch)
    (content,) = prepared.columns.column("image").to_pylist()
    expected = 255 - pictures.pixels(8, 10)
    np.testing.assert_array_equal(np.frombuffer(content, np.uint8).reshape(8, 10, 3), expected)
    assert prepared.columns.column("mean")[0].as_py() == pytest.approx(expected.mean())


def test_a_function_before_decoding_sees_the_files_bytes(pictures: Any) -> None:
    def measure(record: dict[str, Any]) -> dict[str, Any]:
        assert set(record) == {"image", "label"}
        return {**record, "num_bytes": tf.strings.length(record["image"])}

    content = pictures.turned(pictures.pixels(24, 40), 6)
    batch = pictures.raw_batch([content, pictures.odd()["cut_jpeg"][0]])
    kept = StepRunner([measure], pictures.features)
    assert kept.features["image"] == Image(storage="encoded")
    prepared = kept.prepare(batch)
    assert prepared.columns.column("num_bytes").to_pylist() == [len(content)]
    assert prepared.columns.column("image/orientation").to_pylist() == [6]
    # It stays encoded, so it is checked all the same.
    assert [reject.reason for reject in prepared.rejects] == ["truncated image"]
    decoded = StepRunner([measure, images.decode("image")], pictures.features).prepare(batch)
    assert decoded.columns.column("image/height").to_pylist() == [40]


def called(function: Any, record: dict[str, Any]) -> Any:
    return tf.ensure_shape(function(lambda age: age * 2, [record["age"]], tf.float32), [])


def table_of_two() -> Any:
    numbers = tf.constant([0, 1], tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], numbers), -1)


COUNTER, UNBUILT = tf.Variable(0.0), keras.layers.Dense(1)
cached_table = functools.cache(table_of_two)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda record: {"x": record["nothing"]}, "failed with KeyError: 'nothing'.*'age'"),
        (lambda record: None, "returned a NoneType, expected a dict"),
        (lambda record: {}, "empty dict"),
        (lambda record: {"x": tf.cast(record["age"], tf.complex64)}, "complex64.*two features"),
        (
            lambda record: (
                {"x": tf.zeros(tf.cast(record["words"], tf.int32))}
                if "words" in record
                else {"x": tf.reshape(record["age"], tf.zeros(record["visits"], tf.int32))}
            ),
            "with shape.*ensure_shape",
        ),
        (lambda record: {"x": tf.sparse.from_dense([1])}, "SparseTensor"),
        (lambda record: {"x": tf.random.uniform(())}, "random numbers"),
        (lambda record: {"x": tf.where(record["member"], tf.random.normal(()), 0.0)}, "random"),
        (
            lambda record: {"x": table_of_two().lookup(tf.constant("a"))},
            "makes a lookup table or variable",
        ),
        (lambda record: {"x": cached_table().lookup(tf.constant("a"))}, "when it is called"),
        (lambda record: {"x": tf.Variable(1.0) + 1.0}, "makes a .*variable of TensorFlow"),
        (lambda record: {"x": UNBUILT(tf.zeros((1, 1)))}, "build.* for a layer with weights"),
        (lambda record: {"x": COUNTER.assign_add(1.0)}, "changes a variable.*AssignAdd"),
        (lambda record: {"x": called(tf.py_function, record)}, "py_function.*map_python"),
        (lambda record: {"x": called(tf.numpy_function, record)}, "numpy_function.*map_python"),
        (
            lambda record: {"x": tf.function(lambda: called(tf.numpy_function, record))()},
            "<lambda> calls Python from the graph",
        ),
        (
            lambda record: {
                "x": tf.data.Dataset.range(3)
                .map(lambda x: tf.ensure_shape(tf.py_function(float, [x], tf.float32), []))
                .reduce(0.0, lambda a, b: a + b)
            },
            "EagerPyFunc",
        ),
    ],
)
def test_a_function_that_cannot_be_stored_is_refused(function: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        output_features([function], TABLE)


class Scaled(tf.Module):
    """Holds a variable in a list in a module."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [tf.Variable(3.0)]

    def __call__(self, record: Any) -> Any:
        return {"x": tf.cast(record["age"], tf.float32) * self.parts[0]}


LOOKED_UP, SCALED = table_of_two(), Scaled()
VOCABULARY = tf.lookup.StaticVocabularyTable(
    tf.lookup.KeyValueTensorInitializer(["a"], tf.constant([0], tf.int64)), num_oov_buckets=2
)
MUTABLE = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
MUTABLE.insert(["a"], tf.constant([7], tf.int64))
LAYER = keras.layers.StringLookup(vocabulary=["b", "a"])
DENSE = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "relu", False, "ones")])


@tf.function
def counted(number: Any) -> Any:
    return number + COUNTER


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda record: {"x": LOOKED_UP.lookup(tf.constant("b"))}, 1),
        (lambda record: {"x": VOCABULARY.lookup(tf.constant("a"))}, 0),
        (lambda record: {"x": tf.ensure_shape(MUTABLE.lookup(tf.constant("a")), [])}, 7),
        (lambda record: {"x": LAYER(tf.constant("a"))}, 2),
        (lambda record: {"x": DENSE(tf.fill((1, 1), 4.0))[0, 0]}, 4.0),
        (lambda record: {"x": counted(1.0)}, 1.0),
        (ss.records.map(lambda record: {"x": LOOKED_UP.lookup(tf.constant("b"))}), 1),
        (
            functools.partial(
                lambda table, record: {"x": table.lookup(tf.constant("b"))}, LOOKED_UP
            ),
            1,
        ),
        (SCALED, 6.0),
    ],
    ids=[
        "table",
        "vocabulary",
        "mutable",
        "layer",
        "model",
        "variable",
        "map",
        "partial",
        "module",
    ],
)
def test_tables_and_variables_from_outside_are_served(
    function: Any, expected: float, tmp_path: Path
) -> None:
    steps, given = [function], {"age": Scalar("int64")}
    features = output_features(steps, given)
    model, _ = build_model(
        steps, given, features, label=None, final=features, kept={}, transform=None
    )
    tf.saved_model.save(model, str(tmp_path), signatures={"serving_default": model.signature})
    served = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    assert served(age=tf.constant([2, 2], tf.int64))["x"].numpy().tolist() == [expected] * 2


@pytest.mark.slow
def test_a_model_of_keras_2_is_served(tmp_path: Path) -> None:
    """Importing tensorflow_transform before TensorFlow's Keras makes ``tf.keras`` Keras 2."""
    import tf_keras  # type: ignore[import-untyped, unused-ignore]

    layers = [tf_keras.Input((1,)), tf_keras.layers.Dense(1, "relu", False, "ones")]
    model = tf_keras.Sequential(layers)
    test_tables_and_variables_from_outside_are_served(
        lambda record: {"x": model(tf.fill((1, 1), 4.0))[0, 0]}, 4.0, tmp_path
    )


@pytest.mark.slow
def test_culprits_are_found_and_the_others_keep_their_bytes(pictures: Any) -> None:
    good = [pictures.encode(pictures.pixels(30 + i, 50, i)) for i in range(12)]
    bad = ("empty file", "zero-filled file", "truncated image", "damaged image")
    odd = [content for content, reason in pictures.odd().values() if reason in bad]
    cut = good[0][:-50]
    contents = [*good[:5], cut, *good[5:], *odd]
    for steps in (
        [images.decode("image"), images.resize("image", (16, 16))],
        [images.decode("image")],
        [],
    ):
        runner = StepRunner(steps, pictures.features)
        clean = runner.prepare(pictures.raw_batch(good))
        assert clean.rejects == ()
        mixed = runner.prepare(pictures.raw_batch(contents))
        assert mixed.columns.drop_columns(["label"]).equals(clean.columns.drop_columns(["label"]))
        assert mixed.ids == [f"cat/{i}.jpg" for i in range(13) if i != 5]
        assert len(mixed.rejects) == 1 + len(odd)


def test_a_failing_function_rejects_the_record_with_its_row() -> None:
    def grown_up(record: dict[str, Any]) -> dict[str, Any]:
        tf.debugging.assert_greater(record["age"], 18.0, message="a child")
        return record

    runner = StepRunner([keep_all, grown_up], {"age": Scalar("float32")}, numbered=True)
    columns = pa.RecordBatch.from_pydict(
        {"age": pa.array([30, 7], pa.float32())}, schema=wire_schema({"age": Scalar("float32")})
    )
    prepared = runner.prepare(RawBatch(ids=["t#1.csv#0", "t#1.csv#10"], columns=columns))
    assert prepared.ids == ["t#1.csv#0"]
    (reject,) = prepared.rejects
    assert (reject.source, reject.position) == ("t#1.csv", 10)
    assert (reject.stage, reject.reason) == ("prepare", "prepare step failed")
    assert "grown_up" in reject.message
    assert "a child" in reject.message
    # The message is the same wherever the code lies.
    assert ".py" not in reject.message
    assert json.loads(reject.payload or b"") == {"age": 7.0}


def test_a_declared_size_is_held_to_where_pixels_are_stored(pictures: Any) -> None:
    declared = {**pictures.features, "image": Image(height=24, width=40)}
    runner = StepRunner([images.decode("image")], pictures.features, declared)
    contents = [pictures.encode(pictures.pixels(*size), "PNG") for size in ((24, 40), (24, 39))]
    prepared = runner.prepare(pictures.raw_batch(contents))
    assert prepared.columns.schema.names == ["image", "label"]
    assert prepared.columns.column("image").to_pylist() == [pictures.pixels(24, 40).tobytes()]
    (reject,) = prepared.rejects
    assert (reject.stage, reject.reason) == ("validate", "another shape than declared")


def test_a_large_payload_is_not_kept(pictures: Any) -> None:
    content = pictures.encode(pictures.noise(200, 200), "PNG")[:-20]
    assert len(content) > MAX_PAYLOAD_BYTES
    (reject,) = StepRunner([], pictures.features).prepare(pictures.raw_batch([content])).rejects
    assert reject.payload is None


def test_threads_share_a_runner(pictures: Any) -> None:
    steps = [images.decode("image"), images.resize("image", (16, 16))]
    runner = StepRunner(steps, pictures.features)
    batches = [
        pictures.raw_batch([pictures.encode(pictures.pixels(40, 50, seed)) for _ in range(8)])
        for seed in range(6)
    ]
    batches[3] = pictures.raw_batch([content for content, _ in pictures.odd().values()])
    expected = [runner.prepare(batch) for batch in batches]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(runner.prepare, batches)) == expected


_PREPARE = """
import hashlib, pathlib, sys
import snapshard as ss
from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.features import Image
from snapshard.transforms.prepare.engine.program import StepRunner
from snapshard.transforms.runs.files import wire_schema
import pyarrow as pa
import tensorflow as tf

threads = int(sys.argv[2])
tf.config.threading.set_inter_op_parallelism_threads(threads)
tf.config.threading.set_intra_op_parallelism_threads(threads)
features = {"image": Image(storage="encoded")}
contents = [path.read_bytes() for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.JPG"))[:64]]
ones = pa.array([1] * len(contents), pa.int64())
columns = pa.RecordBatch.from_arrays(
    [pa.array(contents, pa.large_binary()), ones, ones, ones], schema=wire_schema(features)
)
steps = [ss.images.decode("image"), ss.images.resize("image", (64, 48))]
batch = StepRunner(steps, features).prepare(RawBatch(ids=["x"] * len(contents), columns=columns))
assert not batch.rejects
print(hashlib.sha256(b"".join(batch.columns.column("image").to_pylist())).hexdigest())
"""


@pytest.mark.slow  # two processes load TensorFlow: its thread pools are set once a process
def test_one_thread_gives_the_same_bytes_as_four(examples: Any) -> None:
    folder = examples / "data" / "sign_digits"
    found = {
        subprocess.run(
            [sys.executable, "-c", _PREPARE, str(folder), threads],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        ).stdout
        for threads in ("1", "4")
    }
    assert len(found) == 1


def test_tensorflow_is_loaded_only_where_it_works() -> None:
    code = """
import sys
import snapshard as ss
from snapshard.schemas.features import Image, Scalar
from snapshard.transforms.prepare.engine.chain import output_features
from snapshard.transforms.prepare.engine.program import StepRunner
steps = [ss.images.decode("image"), ss.images.resize("image", (4, 4))]
output_features(steps, {"image": Image(storage="encoded")})
StepRunner([], {"x": Scalar("int64")})
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_builds_without_steps_load_no_tensorflow(pictures: Any, tmp_path: Path) -> None:
    for number, form in enumerate(("JPEG", "PNG", "WEBP")):
        path = tmp_path / "images" / f"{number % 2}" / f"{number}.{form.lower()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pictures.encode(pictures.pixels(), form))
    (tmp_path / "table.csv").write_text("a,b\n" + "1,x\n2,y\n" * 50)
    (tmp_path / "table.jsonl").write_text('{"a": 1, "b": "x"}\n' * 100)
    code = """
import sys
import snapshard as ss
for source in (ss.ImageFolder("images"), ss.Csv("table.csv"), ss.JsonLines("table.jsonl")):
    recipe = ss.Recipe(name=type(source).__name__, source=source, splits=ss.Splits(train=1.0))
    ss.build(recipe, "out")
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def too_large(record: dict[str, Any]) -> dict[str, Any]:
    if record["x"] >= 100:
        raise ValueError(f"{record['x']} is too large")
    return {"y": record["x"]}


def assert_small(record: dict[str, Any]) -> dict[str, Any]:
    tf.debugging.assert_less(record["x"], np.int64(100), message="too large")
    return {"y": record["x"] + 1}


_NUMBER: Features = {"x": Scalar("int64")}
_TEXT: Features = {"x": Text()}
_PYTHON = ss.records.map_python(too_large, {"y": Scalar("int64")})
_FOUND = "assertion failed: [expected {}, found] [{}]"


@pytest.mark.parametrize(
    ("features", "steps", "good", "bad", "shown", "num_bad", "max_runs"),
    [
        (_NUMBER, [_PYTHON], 1, 300, "ValueError: 300 is too large", 256, 1),
        (
            _NUMBER,
            [tables.cast("x", "uint8")],
            1,
            -3,
            _FOUND.format("a value of uint8", -3),
            256,
            1,
        ),
        (
            {"x": Tensor("int64", (3,))},
            [tables.cast("x", "int8")],
            [1, 2, 3],
            [4, 5, 300],
            _FOUND.format("a value of int8", "[4 5 300]"),
            256,
            1,
        ),
        (_NUMBER, [tables.one_hot("x", 4)], 1, 7, _FOUND.format("0 to 3", 7), 256, 1),
        (
            _TEXT,
            [tables.multi_hot("x", ("a", "b"))],
            b"a|b",
            "a|Zoë {{node step9/".encode(),
            _FOUND.format("some of the 2 classes", "a Zoë {{node step9/"),
            256,
            1,
        ),
        # To find one of 512: at most 8 runs for each of 3 levels.
        (_NUMBER, [assert_small], 1, 300, "assertion failed: [too large]", 4, 1 + 4 * 3 * 8),
    ],
    ids=["map_python", "cast", "tensor", "one_hot", "multi_hot", "an operation that fails"],
)
def test_rejects_take_few_runs(
    features: Features,
    steps: list[Any],
    good: Any,
    bad: Any,
    shown: str,
    num_bad: int,
    max_runs: int,
) -> None:
    runner = StepRunner(steps, features)
    (program,) = runner.programs()
    runs: list[int] = []
    function = program.function
    program.function = lambda num, wire: runs.append(int(num)) or function(num, wire)  # type: ignore[func-returns-value]
    fails = np.arange(512) % (512 // num_bad) == 1
    columns = pa.RecordBatch.from_pydict(
        {"x": [bad if failing else good for failing in fails]}, schema=wire_schema(features)
    )
    ids = [str(row) for row in range(512)]
    prepared = runner.prepare(RawBatch(ids=ids, columns=columns))
    assert prepared.ids == [ids[row] for row in np.flatnonzero(~fails)]
    assert [reject.record_id for reject in prepared.rejects] == [
        ids[row] for row in np.flatnonzero(fails)
    ]
    assert all(shown in reject.message for reject in prepared.rejects)
    assert {reject.reason for reject in prepared.rejects} == {"prepare step failed"}
    assert len(runs) <= max_runs


def test_many_unfit_rows_of_a_batch_are_found_without_taking_it_apart() -> None:
    features: Features = {"x": Scalar("float64", optional=True), "y": Sequence(Scalar("int64"))}
    steps = [tables.cast("x", "int8"), tables.cast("y", "uint8"), tables.clip("x", 0, 9)]
    runner = StepRunner(steps, features)
    values = [float(i) if i % 3 else i + 0.5 for i in range(300)]
    lists = [[i % 7, -1 if i % 50 == 0 else 1] for i in range(300)]
    schema = wire_schema(features)
    packed = pa.array([np.float64(value).tobytes() for value in values], pa.large_binary())
    arrays = [packed, pa.array(lists, schema.field("y").type)]
    columns = pa.RecordBatch.from_arrays(arrays, schema=schema)
    ids = [f"t.csv#{i}" for i in range(300)]
    (program,) = runner.programs()
    batches = []
    run = program.run
    program.run = lambda part: batches.append(part.num_rows) or run(part)  # type: ignore[method-assign, func-returns-value]
    prepared = runner.prepare(RawBatch(ids=ids, columns=columns))
    good = [i for i in range(128) if i % 3 and i % 50]
    assert prepared.ids == [f"t.csv#{i}" for i in good]
    assert prepared.columns.column("x").to_pylist() == [min(i, 9) for i in good]
    assert [reject.record_id for reject in prepared.rejects] == [
        f"t.csv#{i}" for i in range(300) if i not in good
    ]
    assert "expected a whole number of int8, found] [0.5]" in prepared.rejects[0].message
    assert batches == [300]
