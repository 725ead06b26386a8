"""TFRecord files of others: built, verified, read back equal to their Examples and tensors."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe

from ...file_bytes import frame
from .built import build, plain_rows

NUM = 24


def example(i: int) -> bytes:
    import tensorflow as tf

    def values(kind: str, *found: Any) -> Any:
        lists = {"int64": tf.train.Int64List, "float": tf.train.FloatList}
        made = lists.get(kind, tf.train.BytesList)(value=found)
        return tf.train.Feature(**{f"{kind}_list": made})

    features = {
        "n": values("int64", i),
        "x": values("float", i / 3, 1.0),
        "name": values("bytes", f"é{i}".encode()),
        "ids": values("int64", *range(i % 4)),
        "label": values("bytes", (b"cat", b"dog")[i % 2]),
    }
    if i % 4 != 1:
        features["maybe"] = values("int64", i * 10)
    made = tf.train.Example(features=tf.train.Features(feature=features))
    return bytes(made.SerializeToString(deterministic=True))


def expected(i: int) -> dict[str, Any]:
    return {
        "n": i,
        "x": np.array([i / 3, 1.0], np.float32).tolist(),
        "name": f"é{i}".encode(),
        "ids": list(range(i % 4)),
        "label": i % 2,
        "maybe": None if i % 4 == 1 else i * 10,
    }


@pytest.mark.slow
@pytest.mark.parametrize("packed", ["plain", "gzip"])
def test_examples_come_back_equal(lab: Any, tmp_path: Path, packed: str) -> None:
    frames = [frame(example(i)) for i in range(NUM)]
    content, name = b"".join(frames), "t.tfrecord"
    (tmp_path / name).write_bytes(gzip.compress(content) if packed == "gzip" else content)
    snapshot = build(tmp_path, ss.TFRecords(str(tmp_path / name), label="label"))
    assert snapshot.manifest.features["label"] == ss.ClassLabel(("cat", "dog"))
    offsets = np.cumsum([0, *map(len, frames)]).tolist()
    rows = plain_rows(lab, snapshot)
    assert rows == {f"{name}#{offsets[i]}": expected(i) for i in range(NUM)}


def test_serialized_tensors_come_back_equal(lab: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    arrays = [np.full((2, 3), i / 7, np.float64) for i in range(NUM)]
    frames = [frame(tf.io.serialize_tensor(array).numpy()) for array in arrays]
    (tmp_path / "t.tfrecord").write_bytes(b"".join(frames))
    rows = plain_rows(lab, build(tmp_path, ss.TFRecords(str(tmp_path / "t.tfrecord"))))
    found = sorted((int(i.partition("#")[2]), next(iter(row.values()))) for i, row in rows.items())
    assert [value for _, value in found] == [array.tolist() for array in arrays]


def test_tfrecord_files_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "t-00000-of-00001.tfrecord").write_bytes(frame(example(0)))
    assert suggest_recipe(str(tmp_path)).source == ss.TFRecords(str(tmp_path))
