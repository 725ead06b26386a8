"""TFRecord, NumPy, text, tables in memory, and parts of WebDatasets, read back equal."""

import gzip
import io
import tarfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import snapshard as ss

from .built import build_all

NUM = 20


def put(folder: Path, name: str, content: bytes) -> str:
    """Writes a file; gives its url."""
    (folder / name).write_bytes(content)
    return str(folder / name)


def numbered(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in the order of their ids' numbers."""
    return [rows[name] for name in sorted(rows, key=lambda name: int(name.partition("#")[2]))]


@pytest.mark.slow
def test_examples_come_back_equal(lab: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    def feature(value: Any) -> Any:
        if isinstance(value[0] if value else 0.0, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
        if all(isinstance(item, int) for item in value) and value:
            return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))

    path = str(tmp_path / "made")
    grids = np.random.default_rng(0).normal(size=(NUM, 2, 3)).astype(np.float16)
    with tf.io.TFRecordWriter(path, "GZIP") as writer:
        for i in range(NUM):
            features = {
                "n": feature([i]),
                "x": feature([i / 4]),
                "name": feature([f"é{i}".encode()]),
                "triple": feature([i, -i, 2**40]),
                "some": feature([k / 2 for k in range(i % 4)]),
                "kind": feature([b"ab"[i % 2 :][:1]]),
                "grid": feature([tf.io.serialize_tensor(grids[i]).numpy()]),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    url = put(tmp_path, "t.tfrecord.gz", Path(path).read_bytes())
    snapshot = build_all(tmp_path, ss.TFRecords(url, label="kind"))
    assert snapshot.manifest.features["triple"] == ss.Tensor("int64", (3,))
    rows = numbered(lab.rows_back(snapshot))
    assert rows == [
        {
            "n": i,
            "x": i / 4,
            "name": f"é{i}".encode(),
            "triple": [i, -i, 2**40],
            "some": [k / 2 for k in range(i % 4)],
            "kind": i % 2,
            "grid": grids[i].tolist(),
        }
        for i in range(NUM)
    ]


def test_frames_of_sequence_examples_come_back_equal(lab: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(tmp_path / "t.tfrecord")) as writer:
        for i in range(NUM):
            example = tf.train.SequenceExample()
            example.context.feature["n"].int64_list.value.append(i)
            for k in range(1 + i % 3):
                frame = example.feature_lists.feature_list["frames"].feature.add()
                frame.float_list.value.extend([i, k / 2])
            writer.write(example.SerializeToString())
    snapshot = build_all(tmp_path, ss.TFRecords(str(tmp_path / "t.tfrecord")))
    assert numbered(lab.rows_back(snapshot)) == [
        {"n": i, "frames": [[i, k / 2] for k in range(1 + i % 3)]} for i in range(NUM)
    ]


@pytest.mark.slow
def test_arrays_come_back_equal(lab: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        f"{dtype}_grid": (100 * rng.normal(size=(NUM, 2, 3))).astype(dtype)
        for dtype in ("int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")
    }
    arrays |= {
        "n": np.arange(NUM, dtype=np.uint64) + 2**63,
        "x": rng.normal(size=NUM),
        "yes": np.arange(NUM) % 2 == 0,
        "at": np.datetime64("2020-01-01", "s") + np.arange(NUM),
        "kind": np.array(["ab"[i % 2] for i in range(NUM)]),
    }
    sink = io.BytesIO()
    np.savez_compressed(sink, **arrays)
    url = put(tmp_path, "t.npz", sink.getvalue())
    snapshot = build_all(tmp_path, ss.Numpy(url, label="kind"))
    assert snapshot.manifest.features["at"] == ss.Timestamp("s")
    rows = numbered(lab.rows_back(snapshot))
    arrays["at"] = arrays["at"].astype(np.int64)
    arrays["kind"] = np.arange(NUM) % 2
    assert rows == [{name: a[i].tolist() for name, a in arrays.items()} for i in range(NUM)]


def test_arrays_beside_each_other_come_back_equal(lab: Any, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (NUM, 4, 5), np.uint8)
    np.save(tmp_path / "x.npy", pixels)
    np.save(tmp_path / "y.npy", np.arange(NUM))
    source = ss.Numpy(str(tmp_path / "x.npy"), beside={"y": str(tmp_path / "y.npy")}, label="y")
    rows = numbered(lab.rows_back(build_all(tmp_path, source)))
    assert rows == [{"data": pixels[i].tolist(), "y": i} for i in range(NUM)]


@pytest.mark.slow
@pytest.mark.parametrize("per", ["line", "paragraph", "file"])
def test_texts_come_back_equal(lab: Any, tmp_path: Path, per: Any) -> None:
    texts = [f"first é{i}\nsecond" for i in range(NUM)]
    content = "\n\n".join(texts) + "\n"
    wanted = {"line": content.split("\n"), "paragraph": texts, "file": [content]}[per]
    packed = gzip.compress(content.encode()) if per == "paragraph" else content.encode()
    snapshot = build_all(tmp_path, ss.TextFiles(put(tmp_path, "t.txt", packed), per=per))
    rows = lab.rows_back(snapshot)
    assert snapshot.manifest.features == {"text": ss.Text()}
    found = list(rows.values()) if per == "file" else numbered(rows)
    assert [row["text"].decode() for row in found] == [text for text in wanted if text]


@pytest.mark.slow
def test_folders_of_texts_and_arrays_come_back_equal(lab: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"{'ab'[i % 2]}/{i}.npy": rng.normal(size=(1 + i % 3, 2)) for i in range(NUM)}
    files: dict[str, bytes] = {f"{'ab'[i % 2]}/{i}.txt": f"é {i}\n".encode() for i in range(NUM)}
    for name, array in arrays.items():
        sink = io.BytesIO()
        np.save(sink, array.astype(np.float32))
        files[name] = sink.getvalue()
    for name, content in files.items():
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_bytes(content)
    texts = lab.rows_back(build_all(tmp_path / "t", ss.TextFolder(f"{tmp_path}/d")))
    assert texts == {
        name: {"text": content, "label": "ab".index(name[0])}
        for name, content in files.items()
        if name.endswith(".txt")
    }
    snapshot = build_all(tmp_path / "a", ss.ArrayFolder(f"{tmp_path}/d"))
    assert snapshot.manifest.features["array"] == ss.Tensor("float32", (None, 2))
    assert lab.rows_back(snapshot) == {
        name: {"array": array.astype(np.float32).tolist(), "label": "ab".index(name[0])}
        for name, array in arrays.items()
    }


def test_tables_in_memory_come_back_equal(lab: Any, tmp_path: Path) -> None:
    expected = [
        {
            "n": i,
            "x": i / 7,
            "kind": i % 2,
            "at": 1_000_000 * i,
            "some": list(range(i % 3)),
            "pair": [i / 2, 1.0],
            "who.age": i,
            "who.city": f"c{i}".encode(),
        }
        for i in range(NUM)
    ]
    table = pa.table(
        {
            "n": pa.array(range(NUM), pa.int16()),
            "x": [row["x"] for row in expected],
            "kind": ["ab"[i % 2] for i in range(NUM)],
            "at": pa.array([row["at"] for row in expected], pa.timestamp("us")),
            "some": pa.array([row["some"] for row in expected], pa.list_(pa.int8())),
            "pair": pa.array([row["pair"] for row in expected], pa.list_(pa.float32(), 2)),
            "who": [{"age": i, "city": f"c{i}"} for i in range(NUM)],
        }
    )
    snapshot = build_all(tmp_path, ss.Table(table, label="kind"))
    assert numbered(lab.rows_back(snapshot)) == expected


@pytest.mark.slow
def test_sounds_and_arrays_of_samples_come_back_equal(lab: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sounds = [rng.integers(-(2**15), 2**15, 30 + i, np.int16) for i in range(NUM)]
    grids = [rng.normal(size=(2, 1 + i % 3)).astype(np.float32) for i in range(NUM)]
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        for i in range(NUM):
            sound, array = io.BytesIO(), io.BytesIO()
            with wave.open(sound, "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(8000)
                file.writeframes(sounds[i].tobytes())
            np.save(array, grids[i])
            lists = f'{{"ids": {list(range(i % 3))}}}'.encode()
            for part, content in (
                ("wav", sound.getvalue()),
                ("npy", array.getvalue()),
                ("json", lists),
                ("cls", str(i).encode()),
            ):
                member = tarfile.TarInfo(f"{i:03}.{part}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    rows = lab.rows_back(build_all(tmp_path, ss.WebDataset(str(tmp_path / "t.tar"))))
    assert sorted(row["label"] for row in rows.values()) == list(range(NUM))
    for row in rows.values():
        i = row["label"]
        np.testing.assert_array_equal(np.array(row["audio"]) * 2**15, sounds[i])
        assert (row["array"], row["json.ids"]) == (grids[i].tolist(), list(range(i % 3)))
