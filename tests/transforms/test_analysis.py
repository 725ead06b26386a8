"""Analysis with tensorflow-transform, in this process: what it learns, keeps, refuses."""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.errors import DataError, RecipeError
from snapshard.schemas.features import ClassLabel, Features, Image, Scalar, Tensor
from snapshard.transforms.analysis.analyze import analyze, rebatch, trace
from snapshard.transforms.analysis.graph import TransformGraph, put_graph
from snapshard.transforms.runs.files import wire_schema

PREPARED: Features = {
    "label": ClassLabel(("no", "yes")),
    "mass": Scalar("float32", optional=True),
    "name": Scalar("string"),
    "sex": Scalar("string", optional=True),
    "size": Scalar("int64"),
    "flag": Scalar("bool"),
    "visits": Tensor("float32", (None,)),
    "photo": Image(2, 2),
}
NUM_ROWS = 100


def records() -> pa.RecordBatch:
    """Names tie in pairs; every fifth mass and every seventh sex is missing."""
    rows = [
        {
            "label": i % 2,
            "mass": None if i % 5 == 0 else float(i),
            "name": b"name%02d" % (i % 10),
            "sex": None if i % 7 == 0 else (b"f" if i % 3 else b"m"),
            "size": i,
            "flag": i % 2,
            "visits": [float(i)] * (i % 3),
            "photo": bytes(range(12)),
        }
        for i in range(NUM_ROWS)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=wire_schema(PREPARED))


def read_records(columns: Sequence[str], *, num_rows: int = NUM_ROWS) -> Iterator[pa.RecordBatch]:
    for start in range(0, num_rows, 7):
        yield records().select(list(columns)).slice(start, min(7, num_rows - start))


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        "label": inputs["label"],
        "mass": tft.scale_to_z_score(inputs["mass"]),
        "name": tft.compute_and_apply_vocabulary(inputs["name"], vocab_filename="names"),
        "size_bucket": tft.bucketize(inputs["size"], num_buckets=4),
        "size": tft.scale_to_0_1(inputs["size"]),
        "sex": inputs["sex"],
        "same_flag": inputs["flag"],
        "copied_flag": tf.identity(inputs["flag"]),
        "visits": inputs["visits"] * 2,
        "pair": tf.stack([inputs["size"], inputs["label"]], axis=1),
        "photo": inputs["photo"],
        "words": tf.strings.split(tf.strings.join([inputs["name"], " x"])),
    }


def graph_of(
    function: Callable[[dict[str, Any]], Any], *, folder: Path, num_rows: int = NUM_ROWS
) -> TransformGraph:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        outputs = analyze(
            function,
            PREPARED,
            read_batches=functools.partial(read_records, num_rows=num_rows),
            batch_rows=16,
            folder="made",
        )
    put_graph(str(folder / "made"), str(folder / "graph"), inputs=PREPARED, outputs=outputs)
    return TransformGraph(str(folder / "graph"))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> TransformGraph:
    return graph_of(preprocessing_fn, folder=tmp_path_factory.mktemp("analysis"))


@pytest.fixture(scope="module")
def transformed(graph: TransformGraph) -> dict[str, list[Any]]:
    result: dict[str, list[Any]] = graph.apply(records()).to_pydict()
    return result


@pytest.mark.slow
def test_features_of_the_outputs(graph: TransformGraph) -> None:
    assert graph.info.outputs == {
        "label": ClassLabel(("no", "yes")),  # returned as it came
        "mass": Scalar("float32", optional=True),  # missing where the input is
        "name": Scalar("int64"),
        "size_bucket": Scalar("int64"),
        "size": Scalar("float32"),
        "sex": Scalar("string", optional=True),
        "same_flag": Scalar("bool"),
        "copied_flag": Scalar("int64"),  # another tensor: nothing is known of it
        "visits": Tensor("float32", (None,)),
        "pair": Tensor("int64", (2,)),
        "photo": Image(2, 2),
        "words": Tensor("string", (None,)),
    }


@pytest.mark.slow
def test_z_scores(transformed: dict[str, list[Any]]) -> None:
    masses = np.array([i for i in range(NUM_ROWS) if i % 5], np.float64)
    expected = (masses - masses.mean()) / masses.std()
    found = transformed["mass"]
    assert [i for i, value in enumerate(found) if value is None] == list(range(0, NUM_ROWS, 5))
    np.testing.assert_allclose([v for v in found if v is not None], expected, rtol=1e-5)


@pytest.mark.slow
def test_a_vocabulary_with_ties(graph: TransformGraph, transformed: dict[str, list[Any]]) -> None:
    path = Path(graph.url) / "transform_fn" / "assets" / "names"
    words = path.read_bytes().split()
    assert sorted(words) == [b"name%02d" % i for i in range(10)]
    names = [b"name%02d" % (i % 10) for i in range(NUM_ROWS)]
    assert transformed["name"] == [words.index(name) for name in names]


def test_scales_and_buckets(transformed: dict[str, list[Any]]) -> None:
    np.testing.assert_allclose(transformed["size"], np.arange(NUM_ROWS) / 99, rtol=1e-6)
    counts = np.bincount(transformed["size_bucket"])
    assert len(counts) == 4
    assert counts.min() >= 22


def test_what_passes_through(transformed: dict[str, list[Any]]) -> None:
    before = records().to_pydict()
    for name in ("label", "sex", "photo"):
        assert transformed[name] == before[name]
    assert transformed["same_flag"] == transformed["copied_flag"] == before["flag"]
    assert transformed["visits"] == [[2 * v for v in row] for row in before["visits"]]
    assert transformed["pair"] == [[i, i % 2] for i in range(NUM_ROWS)]
    assert transformed["words"] == [[name, b"x"] for name in before["name"]]


def test_the_graph_serves(graph: TransformGraph) -> None:
    output = tft.TFTransformOutput(graph.url)
    assert output.vocabulary_size_by_name("names") == 10
    assert set(output.raw_feature_spec()) == set(wire_schema(PREPARED).names)
    assert set(output.transformed_feature_spec()) == set(graph.info.outputs)


def test_no_temporary_path_and_no_random_identifier_is_left(graph: TransformGraph) -> None:
    folder = Path(graph.url)
    assert not list(folder.rglob("fingerprint.pb"))
    assert str(folder.parent).encode() not in (folder / "transform_fn/saved_model.pb").read_bytes()
    assert sorted(graph.info.files) == sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != "graph.json"
    )


def test_a_function_without_analyzers_reads_nothing(tmp_path: Path) -> None:
    graph = graph_of(lambda x: {"double": x["size"] * 2}, folder=tmp_path, num_rows=0)
    assert graph.apply(records()).to_pydict() == {"double": [2 * i for i in range(NUM_ROWS)]}


def test_nothing_to_analyse_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No record fell into the split 'train'"):
        graph_of(preprocessing_fn, folder=tmp_path, num_rows=0)


def test_only_analysed_columns_are_asked_for() -> None:
    assert trace(preprocessing_fn, PREPARED).analyzed == ["mass", "name", "size"]


def test_the_first_input_may_be_a_list() -> None:
    prepared = {"a": Tensor("float32", (None,)), **PREPARED}
    assert trace(lambda inputs: {"a": inputs["a"]}, prepared).kept == {"a": "a"}


# What a user can do wrong


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: {"a": tf.random.shuffle(x["size"])}, "draws random"),
        (lambda x: {"a": tf.numpy_function(abs, [x["size"]], tf.int64)}, "numpy_function.*map_py"),
        (lambda x: {"a": tf.py_function(abs, [x["size"]], tf.int64)}, "py_function.*map_python"),
    ],
)
def test_random_numbers_and_python_are_refused(function: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=f"preprocessing_fn .*{message}"):
        trace(function, PREPARED)


def unknown_input(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"a": _add_one(inputs["nope"])}


def _add_one(tensor: Any) -> Any:
    return tensor + 1


def wrong_types(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"a": _add_one(inputs["name"])}


def own_words(inputs: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError("not on a Monday")


FAILURES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown": (unknown_input, r"failed in test_analysis\.py line \d+: KeyError: 'nope'"),
    "types": (wrong_types, r"failed in test_analysis\.py line \d+: TypeError"),
    "own": (own_words, r"failed in test_analysis\.py line \d+: RuntimeError: not on a Monday"),
    "tensor": (lambda x: x["size"], "returned a .*Tensor, expected a dict"),
    "none": (lambda x: None, "returned a NoneType, expected a dict"),
    "empty": (lambda x: {}, "returned an empty dict"),
    "number": (lambda x: {"a": 3}, "returned 'a' as 3, expected a tensor"),
    "dtype": (lambda x: {"a": tf.cast(x["size"], tf.int32)}, "'a' as int32, expected int64"),
    "scalar": (lambda x: {"a": tf.reduce_sum(x["size"])}, r"'a' of shape \(\)"),
    "statistic": (
        lambda x: {"a": tf.stack([tft.mean(x["size"])])},
        r"'a' of shape \(1,\), expected \[records",
    ),
    "unknown size": (
        lambda x: {"a": tf.reshape(x["size"], [tf.size(x["size"]), -1])},
        r"'a' of shape \(None, None\)",
    ),
    "three dimensions": (
        lambda x: {"a": tf.sparse.reshape(x["mass"], [-1, 1, 1])},
        "two dimensions: flatten it",
    ),
}


@pytest.mark.parametrize(("function", "message"), FAILURES.values(), ids=FAILURES.keys())
def test_failures_are_told_in_plain_words(
    function: Callable[[dict[str, Any]], Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        trace(function, PREPARED)


def test_a_failure_lists_the_inputs() -> None:
    with pytest.raises(RecipeError) as caught:
        trace(unknown_input, PREPARED)
    said = str(caught.value)
    assert "KeyError: 'nope'. Its inputs, for a batch of records: 'flag': int64, 'label'" in said
    assert "'mass': sparse float32" in said
    assert "'visits': ragged float32" in said
    assert said.endswith(" may lack values: ss.tables.fill in prepare= makes them dense.")
    with pytest.raises(RecipeError, match=r": int64, and 5 more\.$"):
        trace(unknown_input, {f"x{number}": Scalar("int64") for number in range(25)})


@pytest.mark.slow
def test_a_failure_on_the_data_names_the_operation(tmp_path: Path) -> None:
    def numbers(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"a": tft.scale_to_z_score(tf.strings.to_number(inputs["name"]))}

    with pytest.raises(RecipeError) as caught:
        graph_of(numbers, folder=tmp_path)
    assert str(caught.value) == (
        "preprocessing_fn failed on the data: ValueError: StringToNumberOp could not correctly "
        "convert string: name00"
    )


# Batches


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 12))
def test_rebatch(sizes: list[int], num_rows: int) -> None:
    ends = np.cumsum([0, *sizes])
    batches = [
        pa.record_batch({"a": pa.array(range(start, start + size))})
        for start, size in zip(ends, sizes, strict=False)
    ]
    made = list(rebatch(batches, num_rows))
    assert [v for batch in made for v in batch.column("a").to_pylist()] == list(range(ends[-1]))
    assert all(batch.num_rows == num_rows for batch in made[:-1])
    assert all(0 < batch.num_rows <= num_rows for batch in made)
