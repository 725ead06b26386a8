"""TFRecord files of others: features told from the records, values as TensorFlow wrote them."""

import gzip
import io
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.schemas.errors import DataError, SchemaError
from snapshard.schemas.features import tensor_form
from snapshard.transforms.sources.tfrecord import source as tfrecord_files
from snapshard.transforms.sources.tfrecord.source import TFRecords

from ...file_bytes import frame


def framed(records: Sequence[bytes]) -> bytes:
    return b"".join(map(frame, records))


def _feature(value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    if not values:
        return tf.train.Feature(int64_list=tf.train.Int64List())
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _features(values: dict[str, Any]) -> Any:
    return tf.train.Features(feature={name: _feature(v) for name, v in values.items()})


def example(**values: Any) -> bytes:
    return bytes(tf.train.Example(features=_features(values)).SerializeToString())


def sequence(context: dict[str, Any], **frames: list[Any]) -> bytes:
    lists = {
        name: tf.train.FeatureList(feature=[_feature(frame) for frame in rows])
        for name, rows in frames.items()
    }
    made = tf.train.SequenceExample(
        context=_features(context), feature_lists=tf.train.FeatureLists(feature_list=lists)
    )
    return bytes(made.SerializeToString())


RECORDS = [
    example(id=i, x=[0.5 * i, 1.0], tags=[b"a"] * (i % 3), name=b"n%d" % i) for i in range(40)
]


@pytest.mark.parametrize(
    "pack",
    [
        lambda content: content,
        lambda content: gzip.compress(content, mtime=0),
        zlib.compress,
        lambda content: zlib.compress(content, 1),
    ],
    ids=["none", "gzip", "zlib", "zlib, fast"],
)
def test_content_tells_the_compression(reading: Any, pack: Callable[[bytes], bytes]) -> None:
    path = reading.write("a.tfrecord", pack(framed(RECORDS)))
    got = reading.read(TFRecords(path))
    assert got.features == {
        "id": ss.Scalar("int64"),
        "name": ss.Scalar("string"),
        "tags": ss.Tensor("string", (None,)),
        "x": ss.Tensor("float32", (2,)),
    }
    assert not got.rejects
    assert got.column("id") == list(range(40))
    assert got.column("x") == [[0.5 * i, 1.0] for i in range(40)]
    assert got.column("tags") == [[b"a"] * (i % 3) for i in range(40)]
    assert list(got.rows)[1] == f"a.tfrecord#{len(RECORDS[0]) + 16}"


def test_as_tensorflow_writes_them(reading: Any, tmp_path: Path) -> None:
    for kind in ("", "GZIP", "ZLIB"):
        path = str(tmp_path / f"a{kind}.tfrecord")
        with tf.io.TFRecordWriter(path, kind) as writer:
            for record in RECORDS:
                writer.write(record)
        assert reading.read(TFRecords(path)).column("id") == list(range(40))


def test_missing_features_are_optional(reading: Any) -> None:
    records = [example(a=1, b=[1, 2]), example(a=2), example(b=[]), example(b=[3])]
    got = reading.read(TFRecords(reading.write("a.tfrecord", framed(records))))
    assert got.features == {
        "a": ss.Scalar("int64", optional=True),
        "b": ss.Tensor("int64", (None,), optional=True),
    }
    assert got.column("a") == [1, 2, None, None]
    assert got.column("b") == [[1, 2], None, [], [3]]


def test_sequence_examples(reading: Any) -> None:
    records = [
        sequence({"label": 1}, token=[5, 6, 7], box=[[0.0, 1.0], [2.0, 3.0]], odd=[[1], [2]]),
        sequence({"label": 0}, token=[], box=[], odd=[[4, 5, 6]]),
    ]
    got = reading.read(TFRecords(reading.write("a.tfrecord", framed(records))))
    assert not got.rejects
    assert got.features["token"] == ss.Tensor("int64", (None,))
    assert got.features["box"] == ss.Tensor("float32", (None, 2))
    assert got.features["odd"] == ss.Tensor("int64", (None, None))
    assert got.column("token") == [[5, 6, 7], []]
    assert got.column("box") == [[0.0, 1.0, 2.0, 3.0], []]
    assert got.column("odd") == [[1, 2], [4, 5, 6]]
    records.append(sequence({"label": 1}, token=[1], box=[[0.0, 1.0]], odd=[[1], [2, 3]]))
    got = reading.read(TFRecords(reading.write("a.tfrecord", framed(records))))
    assert [reject.reason for reject in got.rejects] == ["ragged list"]


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int32", "uint8", "bool", "string", "int64", "float16"]
)
def test_serialized_tensors(reading: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    if dtype == "string":
        values: Any = np.array([[b"a", b"bc"], [b"", b"d"]], object)[None].repeat(5, 0)
    else:
        values = rng.integers(0, 2, (5, 2, 2)).astype(dtype)
    tensors = [tf.io.serialize_tensor(tf.constant(v, dtype)).numpy() for v in values]
    whole = reading.read(TFRecords(reading.write("a.tfrecord", framed(tensors))))
    inside = reading.read(
        TFRecords(
            reading.write("b.tfrecord", framed([example(x=t, id=i) for i, t in enumerate(tensors)]))
        )
    )
    for got, name in ((whole, "tensor"), (inside, "x")):
        assert not got.rejects
        assert got.features[name] == ss.Tensor(dtype, (2, 2))  # type: ignore[arg-type]
        form = tensor_form(got.features[name])
        assert form is not None
        (wire,) = form.wire_columns(name)
        found = got.column(name)
        if wire.packed:
            found = [np.frombuffer(row, dtype).tolist() for row in found]
        assert found == [v.reshape(-1).tolist() for v in values]


def test_tensors_of_several_shapes(reading: Any) -> None:
    shapes = [(2, 3), (4, 3), (0, 3)]
    tensors = [tf.io.serialize_tensor(tf.zeros(shape)).numpy() for shape in shapes]
    got = reading.read(TFRecords(reading.write("a.tfrecord", framed(tensors))))
    assert got.features == {"tensor": ss.Tensor("float32", (None, 3))}
    assert [len(row) for row in got.column("tensor")] == [6, 12, 0]
    declared = {"tensor": ss.Tensor("float32", (2, 3))}
    got = reading.read(TFRecords(str(reading.folder / "a.tfrecord")), features=declared)
    assert (len(got.rows), len(got.rejects)) == (1, 2)


def test_images_and_classes_by_declaration(reading: Any) -> None:
    buffer = io.BytesIO()
    PillowImage.new("RGB", (7, 5)).save(buffer, "PNG")
    records = [
        example(**{"image/encoded": buffer.getvalue(), "label": 1}),
        example(**{"image/encoded": b"no image", "label": 0}),
        example(**{"image/encoded": buffer.getvalue(), "label": 9}),
        example(label=0),
    ]
    types = {
        "image/encoded": ss.Image(storage="encoded"),
        "label": ss.ClassLabel(("cat", "dog")),
    }
    source = TFRecords(reading.write("a.tfrecord", framed(records)), types=types)
    got = reading.read(source)
    assert source.media
    assert [
        (row["image/encoded/height"], row["image/encoded/width"], row["label"])
        for row in got.rows.values()
    ] == [(5, 7, 1)]
    assert len(got.rejects) == 3


def test_a_label_of_text_is_a_class(reading: Any) -> None:
    path = reading.write("a.tfrecord", framed([example(y=t) for t in (b"b", b"a", b"b")]))
    got = reading.read(TFRecords(path, label="y"))
    assert got.features == {"y": ss.ClassLabel(("a", "b"))}
    assert got.column("y") == [1, 0, 1]


def test_selection(reading: Any) -> None:
    content = framed(RECORDS)
    for name in (
        "a.tfrecord", "b.tfrec", "c.TFRECORDS", "d.tfrecord-00000-of-00002", "e.tfrecord.gz",
        ".hidden.tfrecord", "readme.txt",
    ):  # fmt: skip
        reading.write(f"in/{name}", content)
    got = reading.read(TFRecords(str(reading.folder / "in")))
    assert len(got.rows) == 5 * len(RECORDS)


def test_a_file_cut_at_every_byte_keeps_what_is_whole(reading: Any) -> None:
    records = RECORDS[:4]
    content = framed(records)
    features = {"id": ss.Scalar("int64")}
    ends = np.cumsum([len(record) + 16 for record in records]).tolist()
    for size in range(1, len(content)):
        path = reading.write("a.tfrecord", content[:size])
        got = reading.read(TFRecords(path), features=features)
        assert got.column("id") == list(range(sum(end <= size for end in ends)))
        assert len(got.rejects) == (size not in ends)


def test_a_byte_changed_anywhere_costs_its_record_at_the_most(reading: Any) -> None:
    records = RECORDS[:3]
    content = framed(records)
    features = {"id": ss.Scalar("int64")}
    for position in range(len(content)):
        broken = bytearray(content)
        broken[position] ^= 0x41
        path = reading.write("a.tfrecord", bytes(broken))
        got = reading.read(TFRecords(path), features=features)
        assert got.rejects
        found = got.column("id")
        assert set(found) < {0, 1, 2}
        in_head = any(
            start <= position < start + 12
            for start in np.cumsum([0, *(len(r) + 16 for r in records)])[:-1].tolist()
        )
        assert len(found) == 2 or in_head


@pytest.mark.parametrize("step", [211, pytest.param(41, marks=pytest.mark.slow)])
def test_compressed_files_keep_their_good_prefix(reading: Any, step: int) -> None:
    for pack in (lambda content: gzip.compress(content, mtime=0), zlib.compress):
        content = pack(framed(RECORDS * 20))
        features = {"id": ss.Scalar("int64")}
        for size in range(20, len(content), step):
            path = reading.write("a.tfrecord", content[:size])
            got = reading.read(TFRecords(path), features=features)
            found = got.column("id")
            assert found == (list(range(40)) * 20)[: len(found)]
            assert [reject.reason for reject in got.rejects] == ["damaged file"]


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_a_small_compressed_file_cut_at_every_byte(reading: Any, pack: Any) -> None:
    content = pack(framed(RECORDS[:3]))
    features = {"id": ss.Scalar("int64")}
    for size in range(1, len(content)):
        path = reading.write("a.tfrecord", content[:size])
        got = reading.read(TFRecords(path), features=features)
        assert got.column("id") == list(range(len(got.rows)))
        (reject,) = got.rejects
        assert reject.record_id.startswith("a.tfrecord")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("read_bytes", [7, 1 << 20])
def test_a_record_beyond_the_limit_costs_no_other(
    reading: Any, monkeypatch: pytest.MonkeyPatch, pack: Any, read_bytes: int
) -> None:
    monkeypatch.setattr(tfrecord_files, "_READ_BYTES", read_bytes)
    large = example(id=7, name=b"x" * 300)
    content = framed([large, RECORDS[0], large, large, RECORDS[1], large])
    path = reading.write("a.tfrecord", pack(content))
    features = {"id": ss.Scalar("int64")}
    got = reading.read(TFRecords(path), features=features, limits=ss.Limits(max_record_bytes=200))
    assert got.column("id") == [0, 1]
    assert [reject.reason for reject in got.rejects] == ["damaged record"] * 4
    path = reading.write("a.tfrecord", pack(content[:-1]))
    got = reading.read(TFRecords(path), features=features, limits=ss.Limits(max_record_bytes=200))
    assert [reject.reason for reject in got.rejects] == [*["damaged record"] * 3, "damaged file"]


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_bytes_after_a_compressed_stream_are_a_reject(reading: Any, pack: Any) -> None:
    path = reading.write("a.tfrecord", pack(framed(RECORDS[:3])) + b"junk")
    got = reading.read(TFRecords(path), features={"id": ss.Scalar("int64")})
    assert got.column("id") == [0, 1, 2]
    assert [reject.reason for reject in got.rejects] == ["damaged file"]


_GOOD = example(x=1)


@pytest.mark.parametrize(
    "bad",
    [
        b"junk", b"\x0a", b"\x0a\xff\xff\xff\xff\x0f", example(x=b"text"), example(x=1.5) + b"\x0a",
        example(x=[1, 2]), example(x=[]), example(), b"", b"\x08\x01", b"\x12\x05", b"\x00",
        tf.io.serialize_tensor(tf.constant(1)).numpy(), b"\x0a\x05\x0a\x03\x0a\x01", b"\xff" * 20,
        example(x=b"\x08\x01\x12\x00"), b"{}",
    ],
)  # fmt: skip
def test_what_is_no_such_record_is_a_reject_and_loses_nothing_else(
    reading: Any, bad: bytes
) -> None:
    path = reading.write("a.tfrecord", framed([_GOOD, bad, _GOOD]))
    got = reading.read(TFRecords(path), features={"x": ss.Scalar("int64")})
    assert got.column("x") == [1, 1]
    (reject,) = got.rejects
    assert reject.position == len(_GOOD) + 16
    assert f"a.tfrecord byte {len(_GOOD) + 16}" in reject.message


@pytest.mark.parametrize("content", [b"no TFRecord at all", b"\x1f\x8b\x08 no gzip", b"x"])
def test_files_that_are_none(reading: Any, content: bytes) -> None:
    reading.write("in/a.tfrecord", framed(RECORDS))
    reading.write("in/b.tfrecord", content)
    got = reading.read(TFRecords(str(reading.folder / "in")))
    assert len(got.rows) == len(RECORDS)
    assert [reject.source for reject in got.rejects] == ["b.tfrecord"]
    with pytest.raises(SchemaError, match="has an intact record"):
        reading.read(TFRecords(str(reading.folder / "in" / "b.tfrecord")))


def test_kinds_that_differ(reading: Any) -> None:
    reading.write("in/a.tfrecord", framed([example(x=1)]))
    reading.write("in/b.tfrecord", framed([example(x=b"text")]))
    with pytest.raises(
        SchemaError,
        match=r"'x' has int64 values in records of a\.tfrecord and string values in .* b\.tfrecord",
    ):
        reading.read(TFRecords(str(reading.folder / "in")))


@pytest.mark.parametrize("name", ["", "snapshard/x"])
def test_a_feature_that_cannot_be_named_tells_its_file(reading: Any, name: str) -> None:
    reading.write("d/a.tfrecord", framed(RECORDS))
    reading.write("d/b.tfrecord", framed([example(**{name: 1})]))
    with pytest.raises(SchemaError, match=r"^b\.tfrecord: a record has a feature"):
        reading.read(TFRecords(f"{reading.folder}/d"))


def test_features_of_several_kinds_tell_the_file(reading: Any) -> None:
    reading.write("d/a.tfrecord", framed([example(x=1)]))
    reading.write("d/b.tfrecord", framed([example(x=1.5)]))
    with pytest.raises(
        SchemaError,
        match=r"'x' has int64 values in .* a\.tfrecord and float32 values in .* b\.tfrecord",
    ):
        reading.read(TFRecords(f"{reading.folder}/d"))


# float32 of shape (2, 3) without values; int32 without a shape; a field that is unknown to tensors.
LIKE_TENSORS = [
    b"\x08\x01\x12\x08\x12\x02\x08\x02\x12\x02\x08\x03",
    b"\x08\x03\x12\x00",
    b"\x08\x09\x12\x04\x12\x02\x08\x04",
    b"\x08\x01\x12\x02\x12\x00",
    b"\x08\x07\x12\x00",
    b"\x08\x03\x12\x00\xa2\x06\x01x",
]


@pytest.mark.parametrize("content", LIKE_TENSORS)
def test_bytes_that_parse_as_tensors_by_chance_stay_bytes(reading: Any, content: bytes) -> None:
    records = [example(x=content, n=i) for i in range(3)]
    got = reading.read(TFRecords(reading.write("a.tfrecord", framed(records))))
    assert got.features["x"] == ss.Scalar("string")
    assert got.column("x") == [content] * 3
    declared = TFRecords(reading.write("a.tfrecord", framed(records)), types={"x": "int32"})
    assert len(reading.read(declared).rejects) == 3


def test_strings_are_tensors_record_by_record(reading: Any) -> None:
    packed = tf.io.serialize_tensor(tf.constant([b"a", b"b"])).numpy()
    records = [example(x=packed), example(x=[b"c", packed]), example(x=[b"\x08\x07\x12"])]
    features = {"x": ss.Tensor("string", (None,))}
    source = TFRecords(reading.write("a.tfrecord", framed(records)))
    assert reading.read(source, features=features).column("x") == [
        [b"a", b"b"],
        [b"c", packed],
        [b"\x08\x07\x12"],
    ]


@pytest.mark.parametrize("frame", [b"x", 1, 0.5])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (1, 3)])
def test_frames_that_a_batch_lacks(
    reading: Any, monkeypatch: pytest.MonkeyPatch, frame: Any, sizes: tuple[int, int]
) -> None:
    monkeypatch.setattr(tfrecord_files, "_BATCH_RECORDS", 2)
    there = [sequence({"n": 1}, x=[[frame] * size] * 2) for size in sizes]
    records = [*there, *(sequence({"n": 2}) for _ in range(3))]
    got = reading.read(TFRecords(reading.write("a.tfrecord", framed(records))))
    if sizes == (1, 3):  # where an Example cannot tell a missing tensor from an empty one
        assert [reject.reason for reject in got.rejects] == ["missing value"] * 3
        return
    assert not got.rejects
    assert [value is None for value in got.column("x")] == [False, False, True, True, True]


@pytest.mark.parametrize("other", [b"x", 0.5, [1, 2], [[1], [2]]])
def test_lists_of_another_depth_are_rejects(reading: Any, other: Any) -> None:
    made = [sequence({"n": 1}, x=other)] if isinstance(other, list) else [example(n=1, x=other)]
    path = reading.write("a.tfrecord", framed(made))
    shapes: list[tuple[int | None, ...]] = [(), (3,), (None, None), (None, 7), (None, None, None)]
    for shape in shapes:
        feature = ss.Tensor("int64", shape) if shape else ss.Scalar("int64")
        got = reading.read(TFRecords(path), features={"x": feature})
        assert len(got.rejects) + len(got.rows) == 1


def _image_file(kind: str) -> bytes:
    stored = io.BytesIO()
    PillowImage.new("RGB", (4, 2)).save(stored, kind)
    return stored.getvalue()


def test_bytes_that_are_images_are_suggested(reading: Any) -> None:
    files = [_image_file("PNG"), _image_file("JPEG")]
    records = [
        example(
            image=files[i % 2],
            mixed=files[0] if i else b"none",
            many=[files[0], files[1]],
            raw=bytes([i]) * 48,
            word=f"text number {i:010}".encode(),
            label=i % 2,
        )
        for i in range(30)
    ]
    url = reading.write("t.tfrecord", framed(records))
    image = ss.Image(storage="encoded")
    assert suggest_recipe(url).source == TFRecords(url, types={"image": image})
    text = describe_suggestion(url)
    assert '"image": ss.Image(storage="encoded"),' in text
    assert '"label": ss.ClassLabel({0: "0", 1: "1"})' in text
    assert '# "raw": ss.Image(height=4, width=4),\n        "raw": ss.Scalar("string")' in text
    assert '"mixed": ss.Scalar("string")' in text
    assert text.count("ss.Image(") == 4


@pytest.mark.parametrize(
    "names",
    [
        ["train-00000-of-00002", "train-00001-of-00002"],
        ["part-r-00000", "_SUCCESS", ".part-r-00000.crc"],
        ["data_tfrecord-00000-of-00001.gz"],
    ],
)
def test_shards_without_a_suffix(reading: Any, names: list[str]) -> None:
    content = framed([example(n=i) for i in range(9)])
    for name in names:
        stored = gzip.compress(content) if name.endswith("gz") else content
        reading.write(f"d/{name}", stored if name[0] not in "_." else b"")
    url = str(reading.folder / "d")
    assert suggest_recipe(url).source == TFRecords(url)
    assert len(reading.read(TFRecords(url)).rows) == 9 * sum(name[0] not in "_." for name in names)


def test_shards_of_texts_are_no_tfrecords(reading: Any) -> None:
    reading.write("d/part-00000", b"some text\n" * 9)
    with pytest.raises(DataError, match="neither tables"):
        suggest_recipe(str(reading.folder / "d"))


def test_folders_of_tfx(reading: Any) -> None:
    for split in ("train", "test"):
        name = f"d/Split-{split}/data_tfrecord-00000-of-00001.gz"
        reading.write(name, gzip.compress(framed([example(n=1)])))
    recipe = suggest_recipe(str(reading.folder / "d"))
    assert recipe.splits == ss.Splits.by_folder(train="Split-train", test="Split-test")
