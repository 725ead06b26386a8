"""Every feature type in a preprocessing_fn: what it is given, what it gives back, byte for byte."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from tfx_bsl.tfxio.tensor_adapter import TensorAdapter

import snapshard as ss
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import Features
from snapshard.transforms.analysis.analyze import analyze, trace
from snapshard.transforms.analysis.graph import TransformGraph, put_graph
from snapshard.transforms.examples.metadata import as_lists, tensor_adapter_config
from snapshard.transforms.runs.files import wire_schema

PREPARED: Features = {
    "double": ss.Scalar("float64"),
    "maybe": ss.Scalar("float64", optional=True),
    "huge": ss.Scalar("uint64"),
    "half": ss.Scalar("float16"),
    "grid": ss.Tensor("uint8", (2, 2)),
    "bytes": ss.Tensor("int8", (None,), optional=True),
    "brain": ss.Tensor("bfloat16", (None, 2)),
    "twice": ss.Tensor("int64", (None, None)),
    "late": ss.Tensor("int16", (2, None)),
    "boxes": ss.BoundingBoxes(),
    "sound": ss.Audio(),
    "vectors": ss.Sequence(ss.Tensor("float32", (3,))),
    "words": ss.Sequence(ss.Text()),
    "text": ss.Text(optional=True),
    "at": ss.Timestamp(optional=True),
    "label": ss.ClassLabel(("a", "b"), optional=True),
}
NUM_ROWS = 6


def batch() -> pa.RecordBatch:
    bits = np.array([0x7FF8_0000_0000_0123, 0x3FF0_0000_0000_0001], np.uint64)
    rows = [
        {
            "double": bits[i % 2 : i % 2 + 1].tobytes(),
            "maybe": None if i % 2 else np.float64(i + 0.1).tobytes(),
            "huge": i - 3,
            "half": i / 2,
            "grid": bytes([i, 255, 0, 1]),
            "bytes": None if i == 1 else bytes([255] * i),
            "brain": np.array([i, i + 0.5] * (i % 3), np.float32).view(np.uint16)[1::2].tobytes(),
            "twice": list(range(2 * i)),
            "twice/shape": [i, 2],
            "late": np.arange(2 * i, dtype=np.int16).tobytes(),
            "boxes": [0, 0, 0.5, i / 8] * (i % 2),
            "sound": np.array([i, -32768], np.int16).tobytes(),
            "sound/rate": 8000 + i,
            "vectors": [1.0, 2.0, i] * (i % 3),
            "words": [b"w"] * i,
            "text": None if i == 2 else b"t%d" % i,
            "at": None if i == 3 else 10**15 + i,
            "label": None if i == 4 else i % 2,
        }
        for i in range(NUM_ROWS)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=wire_schema(PREPARED))


def test_what_a_function_is_given() -> None:
    adapter = TensorAdapter(tensor_adapter_config(PREPARED))
    found = adapter.ToBatchTensors(as_lists(batch().slice(1), PREPARED))
    assert found["double"].dtype == tf.float32
    assert found["double"].numpy().tolist()[0] == 1.0
    assert found["maybe"].values.numpy().tolist() == [np.float32(2.1), np.float32(4.1)]
    assert found["maybe"].indices.numpy().tolist() == [[1, 0], [3, 0]]
    assert found["huge"].numpy().tolist() == [-2, -1, 0, 1, 2]
    assert found["half"].numpy().tolist() == [0.5, 1, 1.5, 2, 2.5]
    assert found["grid"].numpy().tolist()[0] == [[1, 255], [0, 1]]
    assert found["bytes"].to_list()[:2] == [[], [-1, -1]]
    assert found["brain"].shape.as_list() == [5, None, 2]
    assert found["brain"].to_list()[:2] == [[[1, 1.5]], [[2, 2.5]] * 2]
    assert found["twice"].to_list()[1] == [0, 1, 2, 3]
    assert found["twice/shape"].numpy().tolist()[1] == [2, 2]
    assert found["late"].to_list()[0] == [0, 1]
    assert found["boxes"].to_list()[0] == [[0, 0, 0.5, 0.125]]
    assert found["sound"].to_list()[0] == [np.float32(1 / 32768), -1]
    assert found["sound/rate"].numpy().tolist()[0] == 8001
    assert found["vectors"].to_list()[1] == [[1, 2, 2]] * 2
    assert found["words"].to_list()[1] == [b"w", b"w"]
    assert found["text"].values.numpy().tolist() == [b"t1", b"t3", b"t4", b"t5"]
    assert found["at"].values.numpy().tolist() == [10**15 + i for i in (1, 2, 4, 5)]
    assert found["label"].dense_shape.numpy().tolist() == [5, 1]


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, Any]:
    scale = tft.max(inputs["boxes"].flat_values)
    return {
        **{name: value for name, value in inputs.items() if name != "double"},
        "renamed": inputs["double"],
        "larger": inputs["boxes"] * 8 / scale,
        "scaled": tft.scale_by_min_max(inputs["maybe"]),
        "sums": tf.reduce_sum(inputs["grid"], axis=[1, 2]),
        "word_ids": tft.compute_and_apply_vocabulary(inputs["words"]),
    }


def read_rows(columns: Sequence[str]) -> list[pa.RecordBatch]:
    return [batch().select(list(columns))]


@functools.cache
def transformed(
    folder: Path, function: Callable[[dict[str, Any]], dict[str, Any]] = preprocessing_fn
) -> tuple[TransformGraph, pa.RecordBatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        outputs = analyze(function, PREPARED, read_batches=read_rows, batch_rows=4, folder="made")
    put_graph(str(folder / "made"), str(folder / "graph"), inputs=PREPARED, outputs=outputs)
    graph = TransformGraph(str(folder / "graph"))
    return graph, graph.apply(batch())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("computed")


@pytest.mark.slow
def test_what_comes_back_unchanged_keeps_type_and_bytes(folder: Path) -> None:
    graph, made = transformed(folder)
    for name, feature in PREPARED.items():
        stored = "renamed" if name == "double" else name
        assert graph.info.outputs[stored] == feature
        for before, after in zip(
            feature.wire_columns(name), feature.wire_columns(stored), strict=True
        ):
            assert made.column(after.name).equals(batch().column(before.name)), after.name
    # NaN is not equal to itself: the bytes are.
    assert made.column("renamed").to_pylist()[0] == b"\x23\x01\x00\x00\x00\x00\xf8\x7f"


@pytest.mark.slow
def test_what_is_computed_has_the_types_of_tensorflow_transform(folder: Path) -> None:
    graph, made = transformed(folder)
    made.validate(full=True)
    assert graph.info.outputs["larger"] == ss.Tensor("float32", (None, 4))
    assert graph.info.outputs["scaled"] == ss.Scalar("float32", optional=True)
    assert graph.info.outputs["sums"] == ss.Scalar("int64")
    assert graph.info.outputs["word_ids"] == ss.Tensor("int64", (None,))
    assert made.column("larger").to_pylist()[0] == []
    assert made.column("larger").to_pylist()[1] == pytest.approx([0, 0, 6.4, 1.6])
    assert made.column("sums").to_pylist() == [256 + i for i in range(NUM_ROWS)]
    assert made.column("scaled").null_count == 3


def test_a_function_that_changes_nothing_gives_the_very_records(tmp_path: Path) -> None:
    graph, made = transformed(tmp_path, lambda inputs: inputs)
    assert graph.info.outputs == PREPARED
    assert graph.info.kept == {name: name for name in PREPARED}
    assert made.equals(batch())


def test_what_cannot_be_stored_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match=r"'x' of shape .*one ragged dimension, the second"):
        trace(lambda inputs: {"x": tf.expand_dims(inputs["words"], 1)}, PREPARED)
