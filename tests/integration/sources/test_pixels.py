"""Arrays and bytes of pixels, declared as images: the reader returns uint8[height, width, c]."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.schemas.errors import SchemaError

from .built import build_all

NUM = 20
PIXELS = np.random.default_rng(0).integers(0, 256, (NUM, 4, 6, 1), np.uint8)
COLOURS = np.random.default_rng(1).integers(0, 256, (NUM, 4, 6, 3), np.uint8)
GREY = {"x": ss.Image(4, 6, 1)}


def _tfrecords(folder: Path, values: Callable[[int], Any]) -> Any:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(folder / "t.tfrecord")) as writer:
        for row in range(NUM):
            value = values(row)
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=value))
            if isinstance(value, bytes):
                feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
            n = tf.train.Feature(int64_list=tf.train.Int64List(value=[row]))
            example = tf.train.Example(features=tf.train.Features(feature={"x": feature, "n": n}))
            writer.write(example.SerializeToString())
    return ss.TFRecords(str(folder / "t.tfrecord"), types=GREY)


def _serialized(row: int) -> bytes:
    import tensorflow as tf

    return bytes(tf.io.serialize_tensor(PIXELS[row]).numpy())


def _npz(folder: Path, values: Any) -> Any:
    np.savez(folder / "t.npz", x=values, n=np.arange(NUM))
    return ss.Numpy(str(folder / "t.npz"), types=GREY)


def _npy(folder: Path) -> Any:
    np.save(folder / "x.npy", PIXELS)
    np.save(folder / "n.npy", np.arange(NUM))
    beside = {"n": str(folder / "n.npy")}
    return ss.Numpy(str(folder / "x.npy"), name="x", beside=beside, types=GREY)


def _parquet(folder: Path, values: list[Any]) -> Any:
    pq.write_table(pa.table({"x": values, "n": range(NUM)}), folder / "t.parquet")
    return ss.Parquet(str(folder / "t.parquet"), types=GREY)


FLAT = PIXELS.reshape(NUM, -1)
SOURCES: dict[str, Callable[[Path], Any]] = {
    "npy": _npy,
    "npz": lambda folder: _npz(folder, PIXELS),
    "npz without channels": lambda folder: _npz(folder, PIXELS[..., 0]),
    "flat npz": lambda folder: _npz(folder, FLAT),
    "npz of int64": lambda folder: _npz(folder, PIXELS.astype(np.int64)),
    "Table": lambda _: ss.Table({"x": PIXELS, "n": np.arange(NUM)}, types=GREY),
    "flat Table": lambda _: ss.Table({"x": FLAT, "n": np.arange(NUM)}, types=GREY),
    "Table of bytes": lambda _: ss.Table(
        pa.table({"x": [one.tobytes() for one in PIXELS], "n": np.arange(NUM)}), types=GREY
    ),
    "Iterable": lambda _: ss.Iterable(
        [{"x": PIXELS[n, ..., 0], "n": n} for n in range(NUM)], types=GREY
    ),
    "lists in Parquet": lambda folder: _parquet(folder, FLAT.tolist()),
    "nested lists in Parquet": lambda folder: _parquet(folder, PIXELS.tolist()),
    "bytes in Parquet": lambda folder: _parquet(folder, [one.tobytes() for one in PIXELS]),
    "bytes in TFRecord": lambda folder: _tfrecords(folder, lambda n: PIXELS[n].tobytes()),
    "tensors in TFRecord": lambda folder: _tfrecords(folder, _serialized),
    "lists in TFRecord": lambda folder: _tfrecords(folder, lambda n: FLAT[n].tolist()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_pixels_come_back_as_images(lab: Any, tmp_path: Path, name: str) -> None:
    snapshot = build_all(tmp_path, SOURCES[name](tmp_path), max_rejects=0)
    assert snapshot.manifest.features["x"] == ss.Image(4, 6, 1)
    found = 0
    for batch in snapshot.reader().dataset("train", 8, shuffle=False, drop_remainder=False):
        assert batch["x"].dtype == np.uint8
        for x, n in zip(batch["x"].numpy(), batch["n"].numpy(), strict=True):
            np.testing.assert_array_equal(x, PIXELS[n])
            found += 1
    assert found == NUM


@pytest.mark.parametrize("kind", ["npz", "Table"])
def test_arrays_of_indices_come_back_as_masks(lab: Any, tmp_path: Path, kind: str) -> None:
    np.savez(tmp_path / "t.npz", x=PIXELS[..., 0], n=np.arange(NUM))
    types = {"x": ss.Mask(4, 6)}
    source: Any = ss.Table({"x": PIXELS, "n": np.arange(NUM)}, types=types)
    if kind == "npz":
        source = ss.Numpy(str(tmp_path / "t.npz"), types=types)
    snapshot = build_all(tmp_path, source, prepare=[ss.images.resize("x", (2, 3))])
    assert snapshot.manifest.features["x"] == ss.Mask(2, 3)
    for row in lab.stored_rows(snapshot).values():
        np.testing.assert_array_equal(row["x"], PIXELS[row["n"], 1::2, 1::2])


def test_steps_on_images_apply(tmp_path: Path) -> None:
    source = ss.Table({"x": COLOURS, "n": np.arange(NUM)}, types={"x": ss.Image(4, 6, 3)})
    snapshot = build_all(tmp_path, source, prepare=[ss.images.resize("x", (2, 3))])
    assert snapshot.manifest.features["x"] == ss.Image(2, 3, 3)


def test_images_of_several_sizes_keep_them(lab: Any, tmp_path: Path) -> None:
    def function() -> Any:
        for n in range(NUM):
            yield {"x": COLOURS[n, : 1 + n % 4, : 2 + n % 3], "n": n}

    snapshot = build_all(tmp_path, ss.Iterable(function, types={"x": ss.Image()}))
    assert snapshot.manifest.features["x"] == ss.Image()
    for row in lab.stored_rows(snapshot).values():
        n = row["n"]
        np.testing.assert_array_equal(row["x"], COLOURS[n, : 1 + n % 4, : 2 + n % 3])


BAD: list[tuple[Any, ss.Image, str]] = [
    (PIXELS[:, :3], ss.Image(4, 6, 1), r"column 'x' is uint8\[3\]\[6\]\[1\], which Image of uint8"),
    (
        PIXELS.astype(np.int64) + 1,
        ss.Image(4, 6, 1),
        r"expected Image of uint8\[4, 6, 1\] \(out of",
    ),
    (PIXELS / np.float32(300), ss.Image(4, 6, 1), "wrong type"),
    ([b"ab"] * NUM, ss.Image(4, 6, 1), "has 2 bytes, expected Image of .* of 24 bytes"),
    ([b"ab"] * NUM, ss.Image(), r"as in ss\.Image\(28, 28, 1\)"),
    (["ab"] * NUM, ss.Image(4, 6, 1), "which Image of uint8"),
    (COLOURS, ss.Image(4, 6, 1), "which Image of uint8"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("values", "image", "words"), BAD)
def test_what_are_no_pixels_is_refused(
    tmp_path: Path, values: Any, image: ss.Image, words: str
) -> None:
    with pytest.raises((SchemaError, ss.SnapshardError), match=words):
        build_all(tmp_path, ss.Table({"x": values}, types={"x": image}))


def test_bytes_of_another_length_are_rejects(tmp_path: Path) -> None:
    source = _tfrecords(tmp_path, lambda n: b"short" if n == 3 else PIXELS[n].tobytes())
    snapshot = build_all(tmp_path, source, max_rejects=1)
    assert snapshot.manifest.num_rejects == 1
