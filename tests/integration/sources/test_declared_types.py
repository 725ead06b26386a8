"""Features that no format can tell by itself, declared: texts, media, masks, boxes, classes."""

import contextlib
import io
import json
import sqlite3
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.inspect.verify import verify
from snapshard.schemas.progress import Silent

pytestmark = pytest.mark.slow  # a build for each source

NUM = 7
SIZE = (6, 9)
RATE = 8000


def _pixels(row: int) -> Any:
    return np.random.default_rng(row).integers(0, 256, (*SIZE, 3), np.uint8)


def _image(row: int) -> bytes:
    sink = io.BytesIO()
    Pillow.fromarray(_pixels(row)).save(sink, "PNG")
    return sink.getvalue()


def _indices(row: int) -> Any:
    return np.random.default_rng(row).integers(0, 256, SIZE, np.uint8)


def _mask(row: int) -> bytes:
    sink = io.BytesIO()
    image = Pillow.fromarray(_indices(row))
    image.putpalette(bytes(np.random.default_rng(row).integers(0, 256, 768, np.uint8)))
    image.save(sink, "PNG")
    return sink.getvalue()


def _samples(row: int) -> Any:
    return np.random.default_rng(row).integers(-(2**15), 2**15, 40 + row, np.int16)


def _sound(row: int) -> bytes:
    sink = io.BytesIO()
    with wave.open(sink, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(_samples(row).tobytes())
    return sink.getvalue()


def _boxes(row: int) -> list[list[float]]:
    return [[0.0, 0.125 * k, 0.5, 1.0] for k in range(row % 3)]


ROWS = [
    {
        "n": row,
        "kind": row % 2,
        "note": f"é{row}",
        "at": 86_400 * row,
        "image": _image(row),
        "mask": _mask(row),
        "sound": _sound(row),
        "boxes": _boxes(row),
    }
    for row in range(NUM)
]
TYPES: dict[str, Any] = {
    "kind": ss.ClassLabel(("cat", "dog")),
    "note": ss.Text(max_length=5),
    "at": ss.Timestamp("s"),
    "image": ss.Image(storage="encoded"),
    "mask": ss.Mask(storage="encoded"),
    "sound": ss.Audio(storage="encoded"),
    "boxes": ss.BoundingBoxes(),
}
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "kind": pa.int64(),
        "note": pa.string(),
        "at": pa.int64(),
        "image": pa.binary(),
        "mask": pa.binary(),
        "sound": pa.binary(),
        "boxes": pa.list_(pa.list_(pa.float32())),
    }
)
TABLE = pa.Table.from_pylist(ROWS, schema=SCHEMA)


def _parquet(folder: Path) -> Any:
    pq.write_table(TABLE, folder / "t.parquet")
    return ss.Parquet(str(folder / "t.parquet"), types=TYPES)


def _arrow(folder: Path) -> Any:
    with pa.ipc.new_file(folder / "t.arrow", SCHEMA) as writer:
        writer.write_table(TABLE)
    return ss.Arrow(str(folder / "t.arrow"), types=TYPES)


def _hugging_face(folder: Path) -> Any:
    (folder / "saved").mkdir()
    with pa.ipc.new_stream(folder / "saved" / "data-00000-of-00001.arrow", SCHEMA) as writer:
        writer.write_table(TABLE)
    return ss.HuggingFace(str(folder / "saved"), types=TYPES)


def _table(folder: Path) -> Any:
    del folder
    return ss.Table(TABLE, types=TYPES)


def _json_lines(folder: Path) -> Any:
    kept = ("n", "kind", "note", "at", "boxes")
    lines = [json.dumps({name: row[name] for name in kept}) + "\n" for row in ROWS]
    (folder / "t.jsonl").write_text("".join(lines))
    types = {name: wanted for name, wanted in TYPES.items() if name in kept}
    return ss.JsonLines(str(folder / "t.jsonl"), types=types)


def _tfrecords(folder: Path) -> Any:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(folder / "t.tfrecord")) as writer:
        for row in ROWS:
            features = {}
            for name, value in row.items():
                flat = np.ravel(value).tolist() if name == "boxes" else [value]
                if name == "boxes":
                    made = tf.train.Feature(float_list=tf.train.FloatList(value=flat))
                elif isinstance(value, int):
                    made = tf.train.Feature(int64_list=tf.train.Int64List(value=flat))
                else:
                    content = value.encode() if isinstance(value, str) else value
                    made = tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))
                features[name] = made
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    return ss.TFRecords(str(folder / "t.tfrecord"), types=TYPES)


def _numpy(folder: Path) -> Any:
    kept = ("n", "kind", "note", "at")
    arrays = {name: np.array([row[name] for row in ROWS]) for name in kept}
    np.savez(folder / "t.npz", **arrays)
    types = {name: wanted for name, wanted in TYPES.items() if name in kept}
    return ss.Numpy(str(folder / "t.npz"), types=types)


def _sql(folder: Path) -> Any:
    kept = [name for name in ROWS[0] if name != "boxes"]
    with contextlib.closing(sqlite3.connect(folder / "t.db")) as database:
        database.execute(f"CREATE TABLE t ({', '.join(kept)})")
        marks = ", ".join("?" * len(kept))
        rows = [[row[name] for name in kept] for row in ROWS]
        database.executemany(f"INSERT INTO t VALUES ({marks})", rows)
        database.commit()
    types = {name: wanted for name, wanted in TYPES.items() if name in kept}
    return ss.Sql(f"sqlite:///{folder}/t.db", "SELECT * FROM t", key="n", types=types)


def _read(file: Any) -> Iterator[dict[str, Any]]:
    for line in file.read().splitlines():
        yield ROWS[int(line)]


def _files(folder: Path) -> Any:
    (folder / "t.txt").write_text("".join(f"{row}\n" for row in range(NUM)))
    return ss.Files(str(folder / "t.txt"), _read, types=TYPES)


def _iterable(folder: Path) -> Any:
    del folder
    return ss.Iterable(ROWS, key="n", types=TYPES)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "Parquet": _parquet,
    "Arrow": _arrow,
    "HuggingFace": _hugging_face,
    "Table": _table,
    "JsonLines": _json_lines,
    "TFRecords": _tfrecords,
    "Numpy": _numpy,
    "Sql": _sql,
    "Files": _files,
    "Iterable": _iterable,
}


@pytest.mark.parametrize("name", SOURCES)
def test_declared_features_come_back_equal(lab: Any, tmp_path: Path, name: str) -> None:
    source = SOURCES[name](tmp_path)
    recipe = ss.Recipe(name="made", source=source, splits=ss.Splits(train=1.0), max_rejects=0)
    snapshot = ss.build(recipe, tmp_path / "out", workers=1)
    verify(snapshot, progress=Silent())
    features = snapshot.manifest.features
    assert {n: type(f) for n, f in features.items() if n != "n"} == {
        n: type(f) for n, f in source.types.items()
    }
    rows = sorted(lab.rows_back(snapshot).values(), key=lambda row: int(row["n"]))
    assert [row["n"] for row in rows] == list(range(NUM))
    for row, wanted in zip(rows, ROWS, strict=True):
        assert (row["kind"], row["at"]) == (wanted["kind"], wanted["at"])
        assert row["note"] == str(wanted["note"]).encode()
        if "boxes" in row:
            assert row["boxes"] == wanted["boxes"]
        if "image" in row:
            np.testing.assert_array_equal(row["image"], _pixels(row["n"]))
            np.testing.assert_array_equal(np.array(row["mask"])[..., 0], _indices(row["n"]))
        if "sound" in row:
            found = np.array(row["sound"]) * 2**15
            np.testing.assert_array_equal(found, _samples(row["n"]))
            assert row["sound/rate"] == RATE
