"""The snapshot's reader gives back every value of every feature type, as it was encoded."""

import math
import tempfile
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.features import (
    Dtype,
    Feature,
    Features,
    flatten,
    mask_name,
    tensor_form,
)
from snapshard.transforms.examples.tfrecord import write_tfrecord
from snapshard.transforms.prepare.engine.rows import encode_example

from .conftest import part

WriteSnapshot = Callable[..., types.ModuleType]
Record = dict[str, Any]
DTYPES = get_args(Dtype)
CLASSES = ss.ClassLabel(("a", "b", "c"))


def every_type() -> dict[str, Any]:
    """Each dtype in each form, and each type."""
    made: dict[str, Any] = {}
    for dtype in DTYPES:
        made[f"{dtype} one"] = ss.Scalar(dtype)
        made[f"{dtype} maybe"] = ss.Scalar(dtype, optional=True)
        made[f"{dtype} list"] = ss.Sequence(ss.Scalar(dtype), optional=True)
        for shape in ((2, 2), (None, 2), (2, None), (None, None), (None, 2, None, 2)):
            made[f"{dtype} {shape}"] = ss.Tensor(dtype, shape)
    return made | {
        "boxes": ss.BoundingBoxes(),
        "class": CLASSES,
        "class maybe": ss.ClassLabel(("a", "b"), optional=True),
        "classes": ss.Sequence(CLASSES),
        "image": ss.Image(2, 3),
        "mask": ss.Mask(2, 3, ignore=255),
        "depth": ss.Image(2, 3, 1, dtype="uint16"),
        "mono": ss.Audio(8000),
        "stereo": ss.Audio(channels=2),
        "short": ss.Audio(8000, samples=5),
        "exact": ss.Audio(samples=3, channels=2, dtype="float32"),
        "at": ss.Timestamp("ns"),
        "at maybe": ss.Timestamp(optional=True),
        "text": ss.Text(),
        "text maybe": ss.Text(optional=True),
        "texts": ss.Sequence(ss.Text(), optional=True),
        "vectors": ss.Sequence(ss.Tensor("int16", (3,)), optional=True),
        "vectors maybe": ss.Tensor("float32", (None, 3), optional=True),
        "given": ss.Scalar("float64", optional=True, default=-1.5),
        "most": ss.Scalar("uint64", optional=True, default=2**64 - 1),
        "class given": ss.ClassLabel(("a", "b"), optional=True, default="b"),
        "no class": ss.ClassLabel(("a", "b"), optional=True, default=-1),
        "text given": ss.Text(optional=True, default="none"),
        "at given": ss.Timestamp(optional=True, default=0),
        "ints given": ss.Sequence(ss.Scalar("int64"), optional=True, default=()),
        "bytes given": ss.Tensor("uint8", (None, 2), optional=True, default=()),
    }


EVERY = every_type()


def any_value(feature: Any, rng: np.random.Generator) -> Any:
    """A random value of a feature, of any bits, as a person gives it to ``encode_example``."""
    form = tensor_form(feature)
    if form is None:
        shape = (feature.height, feature.width, feature.channels)
        return rng.integers(0, np.iinfo(feature.dtype).max, shape, feature.dtype, endpoint=True)
    if form.optional and rng.random() < 0.4:
        return None
    shape = tuple(int(rng.integers(0, 4)) if dim is None else dim for dim in form.shape)
    size = math.prod(shape)
    item = feature.of if isinstance(feature, ss.Sequence) else feature
    flat: Any
    if isinstance(item, ss.ClassLabel):
        flat = rng.integers(0, len(item.names), size)
    elif isinstance(feature, ss.BoundingBoxes):
        low, high = np.sort(rng.random((2, size // 4, 2), np.float32), axis=0)
        flat = np.concatenate([low, high], axis=1)
    elif isinstance(feature, ss.Audio):
        flat = rng.integers(-(2**15), 2**15, size).astype(np.int16)
        flat = flat if feature.dtype == "int16" else flat.astype(np.float32) / 2**15
    elif form.dtype == "string":
        words = ["", "é", "a b", "\n"]
        flat = np.empty(size, object)
        flat[:] = [words[i].encode() for i in rng.integers(0, 4, size)]
        if isinstance(item, ss.Text):
            flat[:] = [word.decode() for word in flat]
    elif form.dtype == "bool":
        flat = rng.random(size) < 0.5
    else:
        kind = tf.as_dtype(form.dtype).as_numpy_dtype
        flat = np.frombuffer(rng.bytes(size * np.dtype(kind).itemsize), kind)
        if form.dtype in ("float16", "bfloat16", "float32", "float64"):
            # Which NaN it is gets lost on the way through Python, not in the Example.
            with np.errstate(invalid="ignore"):
                flat = np.where(np.isfinite(flat), flat, np.zeros_like(flat))
    array = flat.reshape(shape)
    return array if form.shape else array[()]


def any_record(features: Features, rng: np.random.Generator) -> Record:
    record = {name: any_value(feature, rng) for name, feature in features.items()}
    for name, feature in features.items():
        if isinstance(feature, ss.Audio) and feature.rate is None:
            record[f"{name}/rate"] = int(rng.integers(1, 48_000))
    return record


def snapshot_of(
    folder: Path,
    declared: Mapping[str, Any],
    shards: list[list[Record]],
    *,
    write_snapshot: WriteSnapshot,
    label: str | None = None,
) -> types.ModuleType:
    """Shards by the product's own encoder and writer, below a manifest and a reader."""
    features, structs = flatten(declared)
    encoded = [[encode_example(record, features) for record in records] for records in shards]
    made = write_snapshot(folder, features, {"train": encoded}, label=label, structs=structs)
    names = sorted(path.name for path in folder.glob("*tfrecord*"))
    assert len(names) == len(shards)
    for name, examples in zip(names, encoded, strict=True):
        (folder / name).unlink()
        write_tfrecord(
            str(folder / name), [pa.array(examples, pa.large_binary())], compression="none"
        )
    return made


def plain(value: Any) -> Any:
    """A batch's value as one of plain Python for each record."""
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()


def expected(feature: Feature, value: Any) -> Any:
    """What the reader is to give for a record's value."""
    form = tensor_form(feature)
    if form is None:
        return value.tolist()
    if value is None:
        value = [] if form.shape else form.fill
    if isinstance(feature, ss.Audio) and feature.dtype == "int16":
        value = value.astype(np.float32) / 2**15
    found = value.tolist() if hasattr(value, "tolist") else value
    return encoded(found) if form.dtype == "string" else found


def masks_of(features: Features, record: Record) -> dict[str, bool]:
    """The masks that the reader is to give of a record."""
    masks = {mask_name(name, feature): name for name, feature in features.items()}
    return {mask: record[name] is not None for mask, name in masks.items() if mask is not None}


def encoded(value: Any) -> Any:
    if isinstance(value, list):
        return [encoded(item) for item in value]
    return value.encode() if isinstance(value, str) else value


def assert_same(found: Any, wanted: Any, where: str) -> None:
    """Equal, NaN to NaN."""
    np.testing.assert_equal(found, wanted, err_msg=where)


def batches_of(reader: types.ModuleType, folder: Path, batch_size: int) -> list[dict[str, Any]]:
    """The stored batches, parsed eagerly: to trace a pipeline takes TensorFlow a second or more."""
    records = tf.data.TFRecordDataset(reader.files("train", folder))
    return list(map(reader.parse, records.batch(batch_size)))


def assert_each_came_back(
    batches: list[dict[str, Any]], records: list[Record], features: Features
) -> None:
    sides = {key for record in records for key in record if key.endswith("/rate")}
    masks = [masks_of(features, record) for record in records]
    assert set(batches[0]) == {*features, *sides, *masks[0]}
    records = [record | mask for record, mask in zip(records, masks, strict=True)]
    for name in batches[0]:
        found = [value for batch in batches for value in plain(batch[name])]
        wanted = [record[name] for record in records]
        if name in features:
            wanted = [expected(features[name], value) for value in wanted]
        assert_same(found, wanted, name)


@pytest.mark.slow
def test_each_value_of_each_type_is_what_was_encoded(
    tmp_path: Path, write_snapshot: WriteSnapshot
) -> None:
    rng = np.random.default_rng(4)
    records = [any_record(EVERY, rng) for _ in range(17)]
    shards = [records[:9], records[9:]]
    reader = snapshot_of(tmp_path, EVERY, shards, write_snapshot=write_snapshot, label="class")
    assert_each_came_back(batches_of(reader, tmp_path, 12), records, EVERY)


def test_a_ragged_tensor_has_no_dimensions_behind_a_length_of_zero(
    tmp_path: Path, write_snapshot: WriteSnapshot
) -> None:
    features = {"x": ss.Tensor("float32", (None, None)), "n": ss.Scalar("int64")}
    shapes = [(0, 5), (5, 0), (0, 0), (2, 3)]
    records = [{"x": np.ones(shape, np.float32), "n": n} for n, shape in enumerate(shapes)]
    reader = snapshot_of(tmp_path, features, [records], write_snapshot=write_snapshot)
    (batch,) = batches_of(reader, tmp_path, 4)
    assert plain(batch["x"]) == [[], [[]] * 5, [], [[1.0] * 3] * 2]


class TestPipeline:
    FEATURES: ClassVar[Features] = {
        name: EVERY[name]
        for name in (
            *("class", "boxes", "image", "stereo", "texts", "int64 one", "float64 maybe"),
            *("uint64 (2, None)", "bfloat16 (2, 2)", "uint8 (None, 2, None, 2)"),
        )
    }

    def test_dtypes_and_shapes_are_known(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        reader = snapshot_of(
            tmp_path, self.FEATURES, [[]], write_snapshot=write_snapshot, label="class"
        )
        spec = reader.dataset("train", 4, drop_remainder=True).element_spec
        for name, feature in self.FEATURES.items():
            form = tensor_form(feature)
            dtype = "uint8" if form is None else form.dtype
            shape = (2, 3, 3) if form is None else form.shape
            if isinstance(feature, ss.Audio):
                dtype = "float32"
            assert spec[name].dtype.name == dtype
            assert isinstance(spec[name], tf.RaggedTensorSpec) == (None in shape), name
            assert spec[name].shape.as_list() == [4, *shape], name

    @pytest.mark.slow
    def test_shuffled_and_supervised(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        rng = np.random.default_rng(5)
        records = [any_record(self.FEATURES, rng) for _ in range(17)]
        shards = [records[:9], records[9:]]
        reader = snapshot_of(
            tmp_path, self.FEATURES, shards, write_snapshot=write_snapshot, label="class"
        )
        batches = []
        inputs = [name for name in reader.dataset("train", 5).element_spec if name != "class"]
        assert {"texts_present", "stereo/rate"} < {*inputs}
        for features, label in reader.dataset("train", 5, seed=3, as_supervised=(inputs, "class")):
            assert "class" not in features
            batches.append({**features, "class": label})
        order = [key for batch in batches for key in plain(batch["int64 one"])]
        by_key = {int(record["int64 one"]): record for record in records}
        assert sorted(order) == sorted(by_key)
        assert_each_came_back(batches, [by_key[key] for key in order], self.FEATURES)


def test_structs_are_dicts(tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
    declared = {
        "a.b": ss.Scalar("int8"),
        "s": ss.Struct(
            {
                "boxes": ss.BoundingBoxes(),
                "kind": CLASSES,
                "in": ss.Struct({"sound": ss.Audio(), "text": ss.Text(optional=True)}),
            }
        ),
    }
    features, _ = flatten(declared)
    rng = np.random.default_rng(1)
    records = [any_record(features, rng) for _ in range(3)]
    reader = snapshot_of(
        tmp_path, declared, [records], write_snapshot=write_snapshot, label="s.kind"
    )
    assert part(reader, "facts").STRUCTS == ["s", "s.in"]
    batch = next(iter(reader.dataset("train", 3, shuffle=False)))
    assert set(batch) == {"a.b", "s"}
    assert set(batch["s"]) == {"boxes", "kind", "in"}
    assert set(batch["s"]["in"]) == {"sound", "sound/rate", "text", "text_present"}
    there = [record["s.in.text"] is not None for record in records]
    assert plain(batch["s"]["in"]["text_present"]) == there
    assert plain(batch["s"]["boxes"]) == [record["s.boxes"].tolist() for record in records]
    assert plain(batch["s"]["in"]["sound/rate"]) == [r["s.in.sound/rate"] for r in records]
    given_features, label = next(
        iter(reader.dataset("train", 3, shuffle=False, as_supervised=True))
    )
    assert set(given_features["s"]) == {"boxes", "in"}
    assert plain(label) == plain(batch["s"]["kind"])


def test_cut_columns_are_what_parsing_gives(tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
    features: Features = {
        "class": CLASSES,
        "double": ss.Scalar("float64"),
        "flags": ss.Tensor("bool", (2, 2)),
        "image": ss.Image(2, 2),
        "real": ss.Scalar("float32"),
        "reals": ss.Tensor("float32", (3, 2)),
        "signed": ss.Tensor("int8", (2, 3)),
        "sound": ss.Audio(8000, samples=4, channels=2),
    }
    rng = np.random.default_rng(2)
    records = [any_record(features, rng) for _ in range(9)]
    reader = snapshot_of(tmp_path, features, [records], write_snapshot=write_snapshot)
    assert [name for name, _, _ in part(reader, "facts").LAYOUT] == sorted(features)
    examples = [encode_example(record, features) for record in records]
    cut = reader.parse(tf.constant(examples))
    for name, feature in features.items():
        wanted = [expected(feature, record[name]) for record in records]
        assert_same(plain(cut[name]), wanted, name)
    # Bytes before the record that mean nothing to protobuf, so that the layout does not hold.
    odd = tf.constant([b"\x10\x00" + example for example in examples])
    with pytest.raises(tf.errors.InvalidArgumentError, match="an example does not belong to"):
        reader.parse(odd)


dims = st.one_of(st.none(), st.integers(1, 3))


@st.composite
def tensors(draw: st.DrawFn) -> ss.Tensor:
    shape = tuple(draw(st.lists(dims, max_size=4)))
    optional = shape[:1] == (None,) and None not in shape[1:] and draw(st.booleans())
    default = draw(st.sampled_from([None, ()]))
    return ss.Tensor(draw(st.sampled_from(DTYPES)), shape, optional=optional, default=default)


types_of_features = st.one_of(tensors(), st.sampled_from(list(EVERY.values())))


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    declared=st.lists(types_of_features, min_size=1, max_size=3),
    num_records=st.integers(1, 6),
    batch_size=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_any_features_come_back(
    declared: list[Any],
    num_records: int,
    batch_size: int,
    seed: int,
    write_snapshot: WriteSnapshot,
) -> None:
    features = {f"x{index}": feature for index, feature in enumerate(declared)}
    rng = np.random.default_rng(seed)
    records = [any_record(features, rng) for _ in range(num_records)]
    with tempfile.TemporaryDirectory() as folder:
        reader = snapshot_of(Path(folder), features, [records], write_snapshot=write_snapshot)
        assert_each_came_back(batches_of(reader, Path(folder), batch_size), records, features)
