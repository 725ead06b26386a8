"""Applying a transform graph: every kind of tensor, any batching, the same bytes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.schemas.errors import StorageError
from snapshard.schemas.features import Features, Scalar, Tensor
from snapshard.transforms.analysis.analyze import analyze
from snapshard.transforms.analysis.graph import (
    GraphInfo,
    TransformGraph,
    put_graph,
    read_graph_info,
)
from snapshard.transforms.examples.encode import encode_examples
from snapshard.transforms.runs.files import wire_schema

PREPARED: Features = {
    "gap": Scalar("int64", optional=True),
    "list": Tensor("string", (None,)),
    "number": Scalar("float32"),
    "pair": Tensor("float32", (2,)),
    "word": Scalar("string"),
    "word_gap": Scalar("string", optional=True),
}


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, Any]:
    gap = inputs["gap"]
    return {
        "dense": tft.scale_to_z_score(inputs["number"]),
        "dense_word": tf.strings.upper(inputs["word"]),
        "gap": tf.SparseTensor(gap.indices, gap.values * 2, gap.dense_shape),
        "word_gap": inputs["word_gap"],
        "one": tf.reshape(inputs["number"], [-1, 1]),
        "fixed": inputs["pair"] * 2,
        "fixed_words": tf.stack([inputs["word"], inputs["word"]], axis=1),
        "ragged": tf.strings.upper(inputs["list"]),
        "sparse": inputs["list"].to_sparse(),
        "unordered": tf.SparseTensor(gap.indices[::-1], gap.values[::-1], gap.dense_shape),
    }


def batch_of(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=wire_schema(PREPARED))


def rows(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "gap": None if rng.random() < 0.3 else int(rng.integers(-5, 5)),
            "list": [b"x%d" % v for v in rng.integers(0, 9, rng.integers(0, 4))],
            "number": float(np.float32(rng.normal())),
            "pair": rng.normal(size=2).astype(np.float32).tolist(),
            "word": b"w\xff%d" % i,
            "word_gap": None if rng.random() < 0.3 else b"%d" % i,
        }
        for i in range(count)
    ]


def read_rows(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    yield batch_of(rows(50)).select(list(columns))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        outputs = analyze(
            preprocessing_fn, PREPARED, read_batches=read_rows, batch_rows=16, folder="made"
        )
    put_graph(str(folder / "made"), str(folder / "graph"), inputs=PREPARED, outputs=outputs)
    return folder / "graph"


@pytest.fixture(scope="module")
def graph(folder: Path) -> TransformGraph:
    return TransformGraph(str(folder))


def test_every_kind_of_output(graph: TransformGraph) -> None:
    given_rows = rows(30, seed=1)
    made = graph.apply(batch_of(given_rows))
    assert made.schema == wire_schema(graph.info.outputs)
    made.validate(full=True)
    for before, after in zip(given_rows, made.to_pylist(), strict=True):
        gap = before["gap"]
        assert after["gap"] == (None if gap is None else 2 * gap)
        assert after["unordered"] == ([] if gap is None else [gap])
        assert after["word_gap"] == before["word_gap"]
        assert after["dense_word"] == before["word"].upper()
        assert after["one"] == before["number"]
        assert after["fixed"] == [2 * value for value in before["pair"]]
        assert after["fixed_words"] == [before["word"]] * 2
        assert after["ragged"] == [word.upper() for word in before["list"]]
        assert after["sparse"] == before["list"]


@settings(max_examples=20)
@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 5))
def test_batching_does_not_matter(graph: TransformGraph, count: int, size: int, skip: int) -> None:
    batch = batch_of(rows(count + skip, seed=2)).slice(skip)
    whole = graph.apply(batch)
    parts = [graph.apply(batch.slice(i, size)) for i in range(0, max(count, 1), size)]
    assert pa.concat_batches(parts).equals(whole)
    assert encode_examples(whole).to_pylist() == [
        example for part in parts for example in encode_examples(part).to_pylist()
    ]


def test_other_columns_are_left_out(graph: TransformGraph) -> None:
    batch = batch_of(rows(3))
    more = batch.append_column("snapshard/key", pa.array([1, 2, 3]))
    assert graph.apply(more).equals(graph.apply(batch))


def test_a_graph_on_a_store_is_fetched(folder: Path, graph: TransformGraph) -> None:
    store = fsspec.filesystem("memory")
    for path in folder.rglob("*"):
        if path.is_file():
            store.pipe_file(f"/graphs/one/{path.relative_to(folder)}", path.read_bytes())
    remote = TransformGraph("memory://graphs/one")
    batch = batch_of(rows(5))
    assert remote.info == graph.info
    assert remote.apply(batch).equals(graph.apply(batch))


def test_without_its_description_there_is_no_graph(folder: Path, tmp_path: Path) -> None:
    assert read_graph_info(str(tmp_path)) is None
    with pytest.raises(StorageError, match="no transform graph"):
        TransformGraph(str(tmp_path))
    info = read_graph_info(str(folder))
    assert info is not None
    assert GraphInfo.from_bytes(info.to_bytes()) == info
