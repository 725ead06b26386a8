"""Steps on records: what is kept, dropped, renamed, made; and what it costs the others."""

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import (
    BoundingBoxes,
    ClassLabel,
    Image,
    Scalar,
    Sequence,
    Tensor,
    Text,
)
from snapshard.schemas.recipe import StepTraits
from snapshard.transforms.code.digest import CodeHashes
from snapshard.transforms.prepare.engine.program import StepRunner

FEATURES = {
    "age": Scalar("float64", optional=True),
    "kind": ClassLabel(("x", "y", "z")),
    "list": Sequence(Scalar("float32"), optional=True),
    "raw": Scalar("string"),
    "text": Text(optional=True),
    "vector": Tensor("int16", (3,)),
    "wide": Tensor("float32", (None, None)),
}
ROWS = [
    {
        "age": 1.5,
        "kind": 1,
        "list": [1.0, 2.0],
        "raw": b"\xff",
        "text": "é1",
        "vector": [1, 2, 3],
        "wide": [[1, 2]],
    },
    {"kind": 0, "raw": b"", "vector": [-5, 0, 700], "wide": [[1, 2], [3, 4]]},
    {"age": 2.5, "kind": 2, "list": [], "raw": b"k", "vector": [0, 0, 0], "wide": [[1], [3]]},
]


@pytest.fixture(scope="module")
def filters(kitchen: Any) -> Any:
    steps = [
        ss.records.filter(lambda r: r["n"] % 3 > 0, batched=True),
        # Fails on what the filter before it drops.
        ss.records.map(lambda r: {"n": r["n"], "third": 30 // (r["n"] % 3)}),
        ss.records.filter(lambda r: r["third"] > 20),
        ss.tables.clip("n", 0, 100),
    ]
    return kitchen.menu(steps, {"n": Scalar("int64")})


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(numbers=st.lists(st.integers(0, 200), max_size=30))
def test_filters_drop_and_count_and_nothing_later_sees_them(filters: Any, numbers: Any) -> None:
    found, done = filters.run([{"n": n} for n in numbers])
    kept = [n for n in numbers if n % 3 == 1]
    assert [row["n"] for row in found] == [min(n, 100) for n in kept]
    assert done.ids == [f"t#{i}" for i, n in enumerate(numbers) if n % 3 == 1]
    assert done.num_filtered == len(numbers) - len(kept)
    assert not done.rejects


def test_filtered_before_is_added_up() -> None:
    runner = StepRunner([ss.records.filter(lambda r: r["n"] > 0)], {"n": Scalar("int64")})
    batch = RawBatch(ids=[], columns=runner.empty_batch(), num_filtered=5)
    assert runner.prepare(batch).num_filtered == 5


def test_what_fails_in_a_filter_is_a_reject(kitchen: Any) -> None:
    def check(record: dict[str, Any]) -> Any:
        tf.debugging.assert_greater(record["kind"], tf.constant(0, tf.int64), "no zeros")
        return record["kind"] < 2

    found, done, _ = kitchen.cook([ss.records.filter(check)], ROWS, FEATURES)
    assert [row["kind"] for row in found] == [1]
    assert (done.num_filtered, [r.record_id for r in done.rejects]) == (1, ["t#1"])
    assert "ss.records.filter(function test_what_fails" in done.rejects[0].message


@pytest.mark.parametrize(
    ("function", "batched", "message"),
    [
        (lambda r: 5, False, "expected one bool per record"),
        (lambda r: r["vector"] > 0, False, "expected one bool"),
        (lambda r: None, False, "expected one bool per record"),
        (lambda r: r["nothing"], False, "failed with KeyError"),
        (lambda r: tf.constant(True), True, "one for each record"),
    ],
    ids=["number", "vector", "none", "error", "scalar"],
)
def test_a_filter_gives_one_bool(kitchen: Any, function: Any, batched: bool, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        kitchen.cook([ss.records.filter(function, batched=batched)], ROWS, FEATURES)


def test_map_batched_is_map_at_once(kitchen: Any) -> None:
    def change(record: dict[str, Any]) -> dict[str, Any]:
        return {
            "double": record["age"] * 2,
            "list": record["list"],
            "num": tf.strings.length(record["raw"]),
            "shifted": record["vector"] + 1,
        }

    found, _, runner = kitchen.cook([ss.records.map(change, batched=True)], ROWS, FEATURES)
    single, _, same = kitchen.cook([change], ROWS, FEATURES)
    assert runner.features == same.features
    assert found[1]["list"] is None
    assert repr(found) == repr(single)
    assert runner.programs()[0].function is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [lambda r: {"x": tf.constant(1)}, lambda r: {"x": tf.reduce_sum(r["vector"])}],
    ids=["constant", "sum"],
)
def test_map_batched_of_what_works_on_single_records_only(kitchen: Any, function: Any) -> None:
    with pytest.raises(RecipeError, match="Remove batched=True"):
        kitchen.cook([ss.records.map(function, batched=True)], ROWS, FEATURES)


def test_names_are_chosen_and_changed_without_looking_at_a_value(kitchen: Any) -> None:
    steps = [ss.records.select(["age", "list", "wide"]), ss.records.drop("wide")]
    steps.append(ss.records.rename({"age": "list", "list": "age"}))
    found, _, runner = kitchen.cook(steps, ROWS, FEATURES)
    assert runner.features == {"list": FEATURES["age"], "age": FEATURES["list"]}
    assert [row["list"] for row in found] == [1.5, None, 2.5]
    assert [row["age"] is None for row in found] == [False, True, False]
    assert [program.function for program in runner.programs()] == [None]


def test_renamed_images_keep_their_columns_and_boxes(pictures: Any) -> None:
    batch = pictures.raw_batch([pictures.encode(pictures.pixels())])
    runner = StepRunner([ss.records.rename({"image": "photo"})], pictures.features)
    prepared = runner.prepare(batch)
    assert prepared.columns.column("photo")[0] == batch.columns.column("image")[0]
    assert prepared.columns.column("photo/height")[0].as_py() == 24
    boxed = {"image": Image(), "boxes": BoundingBoxes("image")}
    renamed = ss.records.rename({"image": "photo"}).features(boxed)
    assert renamed["boxes"] == BoundingBoxes("photo")


def test_boxes_whose_image_and_labels_are_renamed_are_cut_as_before(pictures: Any) -> None:
    boxed = {
        **pictures.features,
        "boxes": BoundingBoxes("image", labels="kinds"),
        "kinds": ss.Sequence(ss.Scalar("int64")),
    }
    rename = ss.records.rename({"image": "photo", "kinds": "names", "boxes": "frames"})
    renamed = rename.features(boxed)
    assert renamed["frames"] == BoundingBoxes("photo", labels="names")
    several = {**boxed, "boxes": BoundingBoxes("image", labels=("kinds", "scores"))}
    assert rename.features(several)["frames"] == BoundingBoxes("photo", labels=("names", "scores"))
    unlabelled = rename.features({**boxed, "boxes": BoundingBoxes("image")})
    assert unlabelled["frames"] == BoundingBoxes("photo")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (ss.records.select("no"), "there is no feature 'no'"),
        (ss.records.drop(["no", "age"]), "there is no feature 'no'"),
        (ss.records.drop(list(FEATURES)), "leaves no features"),
        (ss.records.rename({"no": "a"}), "there is no feature 'no'"),
        (ss.records.rename({"age": "kind"}), "two features would be called 'kind'"),
    ],
    ids=["select", "drop", "all", "rename", "twice"],
)
def test_names_are_checked(step: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        step.features(FEATURES)


OUTPUTS = {
    "list": Sequence(Scalar("float32"), optional=True),
    "names": Tensor("string", (None,)),
    "num": Scalar("int32", optional=True),
    "pixels": Image(height=1, width=2, channels=3),
    "shout": Text(),
    "halves": Tensor("float64", (3,)),
}


def in_python(record: dict[str, Any]) -> dict[str, Any]:
    if record["kind"] == 2:
        raise KeyError("two is too many")
    return {
        "list": None if record["list"] is None else record["list"] * 2,
        "names": ["a", record["raw"]],
        "num": None if record["text"] is None else len(record["text"]),
        "pixels": np.full((1, 2, 3), record["kind"], np.uint8),
        "shout": "ä" + (record["text"] or "").upper(),
        "halves": record["vector"].astype(np.float64) / 2,
    }


@pytest.mark.parametrize("dropped", [[], ["wide"]], ids=["in the loop", "at once"])
def test_python_on_records(kitchen: Any, dropped: list[str]) -> None:
    steps: list[Any] = [ss.records.drop(dropped)] if dropped else []
    steps.append(ss.records.map_python(in_python, OUTPUTS))
    found, done, runner = kitchen.cook(steps, ROWS, FEATURES)
    assert runner.features == {
        **{name: f for name, f in FEATURES.items() if name not in dropped},
        **OUTPUTS,
    }
    first, second = found
    assert (first["list"].tolist(), second["list"]) == ([2.0, 4.0], None)
    assert (first["num"], second["num"]) == (2, None)
    assert (first["names"].tolist(), first["shout"]) == ([b"a", b"\xff"], "äÉ1")
    assert second["halves"].tolist() == [-2.5, 0.0, 350.0]
    assert first["pixels"].tolist() == [[[1] * 3] * 2]
    (reject,) = done.rejects
    assert (reject.record_id, reject.stage) == ("t#2", "prepare")
    line = in_python.__code__.co_firstlineno + 2
    assert reject.message == (
        f"ss.records.map_python(function in_python): KeyError: 'two is too many' (line {line})"
    )


def test_messages_of_rejects_have_no_addresses(kitchen: Any) -> None:
    def fail(record: dict[str, Any]) -> Any:
        raise ValueError(f"{[object()] * 9} of {io.BytesIO()} by {fail} is bad")

    step = ss.records.map_python(fail, {"n": Scalar("int8")}, inputs=["kind"])
    message = kitchen.cook([step], ROWS[:1], FEATURES)[1].rejects[0].message
    assert "0x" not in message
    assert f"{['<object object>'] * 9} of <_io.BytesIO object>".replace("'", "") in message
    assert "is bad" in message


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "the function returned NoneType, expected ['n']"),
        ({}, "the function returned [], expected ['n']"),
        (
            {"n": 1, "m": 2},
            "the function returned ['m', 'n'], expected ['n']: only those that features= declares; "
            "the record keeps all others",
        ),
        ({"n": 300}, "'n' is 300"),
        ({"n": None}, "'n'"),
        ({"n": [1]}, "'n'"),
        ({"n": "zwölf"}, "'n'"),
    ],
    ids=repr,
)
def test_what_python_gives_is_checked(kitchen: Any, result: Any, message: str) -> None:
    step = ss.records.map_python(lambda r: result, {"n": Scalar("int8")}, inputs=["kind"])
    found, done, _ = kitchen.cook([step], ROWS[:2], FEATURES)
    assert not found
    assert message in done.rejects[0].message


def test_python_gets_only_what_it_asks_for(kitchen: Any) -> None:
    seen: list[set[str]] = []

    def note(record: dict[str, Any]) -> dict[str, Any]:
        seen.append(set(record))
        return {"kind": 1}

    step = ss.records.map_python(note, {"kind": Scalar("int8")}, inputs=["kind"])
    found, _, _ = kitchen.cook([step], ROWS, FEATURES)
    assert [row["kind"] for row in found] == [1, 1, 1]
    assert seen == [{"kind"}] * 6
    step = ss.records.map_python(note, {"kind": Scalar("int8")}, inputs=[])
    found, _, _ = kitchen.cook([step], ROWS, FEATURES)
    assert seen[6:] == [set()] * 6


def test_python_on_encoded_images(pictures: Any) -> None:
    content = pictures.encode(pictures.pixels())
    step = ss.records.map_python(
        lambda r: {"size": len(r["image"])}, {"size": Scalar("int64")}, inputs=["image"]
    )
    prepared = StepRunner([step], pictures.features).prepare(pictures.raw_batch([content] * 2))
    assert prepared.columns.column("size").to_pylist() == [len(content)] * 2


@pytest.mark.parametrize(
    "outputs",
    [{}, {"x": Image(storage="encoded")}, {"x": 5}, 7],
    ids=["none", "encoded", "no feature", "no dict"],
)
def test_outputs_of_python_are_features(outputs: Any) -> None:
    with pytest.raises(RecipeError):
        ss.records.map_python(in_python, outputs)


def test_steps_in_python_are_not_exported() -> None:
    assert StepTraits.of(ss.records.map_python(in_python, OUTPUTS)).export_obstacle
    assert not StepTraits.of(ss.records.filter(in_python)).export_obstacle
    assert not StepTraits.of(ss.records.map(in_python)).export_obstacle


CODE = """
import snapshard as ss
LIMIT = {limit}
def chosen(record):
    {comment}
    return record["n"] > LIMIT
def made(record):
    return {{"m": record["n"] + LIMIT}}
steps = [
    ss.records.filter(chosen),
    ss.records.map(made),
    ss.records.map_python(made, {{"m": ss.Scalar("int64")}}),
]
"""


def digests(tmp_path: Any, *, limit: int, comment: str = "pass") -> list[str]:
    path = tmp_path / f"recipe{limit}{len(comment)}.py"
    path.write_text(CODE.format(limit=limit, comment=comment))
    names: dict[str, Any] = {"__file__": str(path), "__name__": "__main__"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return [CodeHashes(str(tmp_path)).step_digest(step) for step in names["steps"]]


def test_functions_in_steps_are_in_the_fingerprint(tmp_path: Any) -> None:
    three, again, four = (digests(tmp_path, limit=n) for n in (3, 3, 4))
    assert three == again
    assert all(a != b for a, b in zip(three, four, strict=True))
    assert digests(tmp_path, limit=3, comment="pass  # for the reader") == three


def test_names_are_changed_without_tensorflow() -> None:
    code = """
import sys
import pyarrow as pa
import snapshard as ss
from snapshard.schemas.blocks import RawBatch
from snapshard.transforms.prepare.engine.program import StepRunner
steps = [ss.records.drop("a"), ss.records.rename({"b": "a"})]
runner = StepRunner(steps, {"a": ss.Scalar("int64"), "b": ss.Text(optional=True)})
columns = pa.RecordBatch.from_arrays(
    [pa.array([1, 2]), pa.array([b"x", None], pa.large_binary())],
    schema=pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.large_binary())]),
)
prepared = runner.prepare(RawBatch(ids=["0", "1"], columns=columns)).columns
assert prepared.to_pydict() == {"a": [b"x", None]}, prepared
print("tensorflow" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr
