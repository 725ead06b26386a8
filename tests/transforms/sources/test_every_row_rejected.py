"""Batches in which no row fits: each row is a reject, for every kind of feature and source."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import snapshard as ss
from snapshard.schemas.blocks import RawBatch
from snapshard.schemas.features import Feature, tensor_form
from snapshard.transforms.prepare.engine.program import StepRunner
from snapshard.transforms.prepare.engine.validate import Validator
from snapshard.transforms.runs.files import wire_schema

from .conftest import Reading

NUM_ROWS = 5
FEATURES: dict[str, Feature] = {
    "int": ss.Scalar("int64"),
    "uint8": ss.Scalar("uint8"),
    "bool": ss.Scalar("bool"),
    "float": ss.Scalar("float32"),
    "bfloat16": ss.Scalar("bfloat16"),
    "limited": ss.Scalar("float64", min=0, max=1, values=(0.5,), finite=True),
    "string": ss.Scalar("string", max_length=3, values=("a",)),
    "text": ss.Text(max_length=3),
    "class": ss.ClassLabel(("x", "y")),
    "time": ss.Timestamp("s"),
    "vector": ss.Tensor("int64", (3,)),
    "matrix": ss.Tensor("float32", (2, 2)),
    "packed": ss.Tensor("uint8", (2, 2)),
    "list": ss.Tensor("int64", (None,), max=5),
    "rows": ss.Tensor("int64", (None, 2)),
    "columns": ss.Tensor("float64", (2, None)),
    "ragged": ss.Tensor("int64", (None, None)),
    "packed ragged": ss.Tensor("uint8", (None, None)),
    "deep": ss.Tensor("float32", (None, None, None), min=0),
    "strings": ss.Tensor("string", (None, None)),
    "sequence": ss.Sequence(ss.Scalar("int64", max=5)),
    "classes": ss.Sequence(ss.ClassLabel(("x", "y"))),
    "vectors": ss.Sequence(ss.Tensor("float32", (2,))),
    "boxes": ss.BoundingBoxes(),
    "sound": ss.Audio(8000, channels=2),
    "sound of any rate": ss.Audio(),
    "sound file": ss.Audio(storage="encoded"),
    "image": ss.Image(),
    "image of a size": ss.Image(2, 2),
    "image file": ss.Image(storage="encoded"),
}
RAGGED = [[1], [2, 3]]


def _json(value: Any) -> Callable[[Reading, Feature], Any]:
    def source(reading: Reading, feature: Feature) -> Any:
        del feature
        lines = [json.dumps({"a": i, "b": value}) + "\n" for i in range(NUM_ROWS)]
        return ss.JsonLines(reading.write("x.jsonl", "".join(lines).encode()))

    return source


def _parquet(reading: Reading, feature: Feature) -> Any:
    form = tensor_form(feature)
    kind = pa.large_binary()
    if form is not None and form.dtype != "string":
        kind = pa.int64()
    for dim in reversed(form.shape if form is not None else ()):
        kind = pa.large_list(kind) if dim is None else pa.list_(kind, dim)
    table = pa.table({"a": range(NUM_ROWS), "b": pa.nulls(NUM_ROWS, kind)})
    pq.write_table(table, reading.folder / "x.parquet")
    return ss.Parquet(str(reading.folder / "x.parquet"))


def _csv(reading: Reading, feature: Feature) -> Any:
    lines = ["a,b\n", *(f'{i},"[[1],[2,3]]"\n' for i in range(NUM_ROWS))]
    return ss.Csv(reading.write("x.csv", "".join(lines).encode()), types={"b": feature})


def _tfrecords(value: list[int] | None) -> Callable[[Reading, Feature], Any]:
    def source(reading: Reading, feature: Feature) -> Any:
        with tf.io.TFRecordWriter(str(reading.folder / "x.tfrecord")) as writer:
            for i in range(NUM_ROWS):
                made = tf.train.Example()
                made.features.feature["a"].int64_list.value.append(i)
                if value is not None:
                    made.features.feature["b"].int64_list.value.extend(value)
                writer.write(made.SerializeToString())
        types = {"b": feature} if tensor_form(feature) is not None else {}
        return ss.TFRecords(str(reading.folder / "x.tfrecord"), types=types)

    return source


def _own(value: Any) -> Callable[[Reading, Feature], Any]:
    def read(file: Any) -> Iterator[dict[str, Any]]:
        del file
        for i in range(NUM_ROWS):
            yield {"a": i, "b": value}

    def source(reading: Reading, feature: Feature) -> Any:
        return ss.Files(reading.write("x.bin", b"x"), read, types={"b": feature})

    return source


SOURCES: dict[str, Callable[[Reading, Feature], Any]] = {
    "json, ragged": _json(RAGGED),
    "json, missing": _json(None),
    "parquet": _parquet,
    "csv": _csv,
    "tfrecords, missing": _tfrecords(None),
    "tfrecords, seven": _tfrecords([7] * 7),
    "own, ragged": _own(RAGGED),
    "own, missing": _own(None),
    "own, object": _own({"c": object()}),
}


@pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_each_row_is_a_reject(
    reading: Reading, source: Callable[[Reading, Feature], Any], feature: Feature
) -> None:
    features = {"a": ss.Scalar("int64"), "b": feature}
    try:
        got = reading.read(source(reading, feature), features=features)
    except ss.SnapshardError as error:  # the type alone says that it cannot hold the feature
        told = str(error)
        assert "'b'" in told
        return
    # Text and lists take some of the values: what they hold is for the validation to reject.
    rows = pa.RecordBatch.from_pylist(list(got.rows.values()), schema=wire_schema(features))
    problems = Validator(features).problems(rows)
    num_read = 1 if [r.reason for r in got.rejects] == ["damaged row group"] else NUM_ROWS
    assert len(got.rejects) + len(problems) == num_read


@pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)
def test_a_batch_without_rows_passes_every_stage(feature: Feature) -> None:
    features = {"b": feature}
    batch = RawBatch(ids=[], columns=pa.RecordBatch.from_pylist([], schema=wire_schema(features)))
    runner = StepRunner([], features)
    prepared = Validator(runner.features).validate(runner.prepare(batch), numbered=True)
    assert prepared.columns.schema == wire_schema(runner.features)
    assert (prepared.columns.num_rows, prepared.rejects) == (0, ())
