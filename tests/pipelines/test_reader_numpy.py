"""The emitted reader without TensorFlow: values, by number and in a stream, parts, damage."""

import ast
import contextlib
import functools
import importlib.util
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.pipelines import reader_frames_template as frames_module
from snapshard.pipelines import reader_numpy_examples as examples_module
from snapshard.pipelines.reader_facts import describe, sides_of
from snapshard.pipelines.readers import check_readers, emit_numpy_reader
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import Features, flatten, tensor_form
from snapshard.transforms.rows import encode_example

from .made_snapshots import num_open
from .numpy_snapshots import load, numpy_snapshot
from .test_emit import KINDS, facts_of, run
from .test_reader_every_type import (
    CLASSES,
    EVERY,
    any_record,
    assert_same,
    expected,
    masks_of,
    types_of_features,
)

NUMBERS: Features = {"n": ss.Scalar("int64"), "x": ss.Tensor("float32", (3,))}


def numbered(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"n": n, "x": np.full(3, n, np.float32)} for n in range(start, stop)]


def numbers_of(records: Any) -> list[int]:
    return [int(record["n"]) for record in records]


@pytest.fixture(params=["none", "gzip"])
def made(tmp_path: Path, request: pytest.FixtureRequest) -> types.ModuleType:
    """60 numbered records in three shards, 7 of another split."""
    splits = {
        "train": [numbered(0, 25), numbered(25, 26), numbered(26, 60)],
        "test": [numbered(60, 67)],
        "none": [[]],
    }
    return numpy_snapshot(tmp_path / "made", NUMBERS, splits, compression=request.param)


def assert_came_back(
    found: list[dict[str, Any]], records: list[dict[str, Any]], features: Mapping[str, Any]
) -> None:
    for value, record in zip(found, records, strict=True):
        sides = {key for key in record if key.endswith("/rate")}
        masks = masks_of(features, record)
        assert set(value) == {*features, *sides, *masks}
        assert all(type(value[name]) is np.bool_ for name in masks)
        for name, item in value.items():
            wanted: Any = (record | masks)[name]
            if name in features:
                wanted = expected(features[name], wanted)
                form = tensor_form(features[name])
                dtype = "uint8" if form is None else form.dtype
                if dtype == "bfloat16" or isinstance(features[name], ss.Audio):
                    dtype = "float32"
                if form is None or form.shape:
                    assert item.dtype == np.dtype(object if dtype == "string" else dtype), name
                    assert item.flags.writeable
                    assert item.ndim == (3 if form is None else len(form.shape))
                else:
                    assert type(item) is (bytes if dtype == "string" else np.dtype(dtype).type)
            assert_same(item.tolist() if hasattr(item, "tolist") else item, wanted, name)


class TestValues:
    def test_each_type_is_what_was_encoded(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(4)
        records = [any_record(EVERY, rng) for _ in range(17)]
        reader = numpy_snapshot(tmp_path / "s", EVERY, {"train": [records[:9], records[9:]]})
        by_number = reader.Records("train")
        assert_came_back([by_number[i] for i in range(17)], records, EVERY)
        assert_came_back(list(reader.Stream("train", shuffle=False)), records, EVERY)

    @settings(max_examples=40)
    @given(
        declared=st.lists(types_of_features, min_size=1, max_size=4),
        seed=st.integers(0, 2**32),
    )
    def test_any_features_come_back(self, declared: list[Any], seed: int) -> None:
        features = {f"x{index}": feature for index, feature in enumerate(declared)}
        rng = np.random.default_rng(seed)
        records = [any_record(features, rng) for _ in range(3)]
        with tempfile.TemporaryDirectory() as folder:
            reader = numpy_snapshot(Path(folder) / "s", features, {"train": [records]})
            assert_came_back(list(reader.Records("train")), records, features)

    def test_structs_are_dicts(self, tmp_path: Path) -> None:
        declared = {
            "a.b": ss.Scalar("int8"),
            "s": ss.Struct({"kind": CLASSES, "in": ss.Struct({"sound": ss.Audio()})}),
        }
        records = [any_record(flatten(declared)[0], np.random.default_rng(1)) for _ in range(2)]
        reader = numpy_snapshot(tmp_path / "s", declared, {"train": [records]})
        found = reader.Records("train")[1]
        assert set(found) == {"a.b", "s"}
        assert set(found["s"]) == {"kind", "in"}
        assert set(found["s"]["in"]) == {"sound", "sound/rate"}
        assert found["s"]["in"]["sound/rate"] == records[1]["s.in.sound/rate"]
        assert set(reader.Records("train", columns=["s"])[0]) == {"s"}
        assert set(reader.Records("train", columns=["s.kind", "a.b"])[0]["s"]) == {"kind"}
        with pytest.raises(ValueError, match=r"no 's\.kinds', only s, s\.in, a\.b, s\.in\.sound"):
            reader.Records("train", columns=["s.kinds"])

    def test_images_of_any_size(self, tmp_path: Path) -> None:
        pixels = [np.full((h, w, 3), h, np.uint8) for h, w in ((2, 3), (5, 1))]
        records = [{"i": array} for array in pixels]
        reader = numpy_snapshot(tmp_path / "s", {"i": ss.Image()}, {"train": [records]})
        for found, array in zip(reader.Records("train"), pixels, strict=True):
            assert set(found) == {"i"}
            assert (found["i"] == array).all()

    @pytest.mark.parametrize("channels", [1, 3, 4])
    def test_encoded_images(self, tmp_path: Path, channels: Any) -> None:
        shape = (4, 6, channels)
        array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        content = bytes(tf.io.encode_png(array).numpy())
        feature = ss.Image(storage="encoded", channels=channels)
        reader = numpy_snapshot(tmp_path / "s", {"i": feature}, {"train": [[{"i": content}]]})
        assert reader.Records("train")[0] == {"i": content}
        (found,) = reader.Stream("train", decode=reader.decode_image)
        assert (found["i"] == array).all()
        own = reader.Records("train", decode=lambda content, channels: (len(content), channels))
        assert own[0]["i"] == (len(content), channels)


@st.composite
def lists(draw: st.DrawFn) -> tuple[str, list[Any]]:
    kind = draw(st.sampled_from(["bytes", "float", "int64"]))
    item: Any = {
        "bytes": st.binary(max_size=200),
        "float": st.floats(width=32),
        "int64": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300),
    }[kind]
    return kind, draw(st.lists(item, max_size=20))


def feature_of(kind: str, values: list[Any]) -> tf.train.Feature:
    if kind == "bytes":
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if kind == "float":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def parser_of(*names: str) -> Any:
    features = {name: {"kind": "tensor", "dtype": "string", "shape": [None]} for name in names}
    return examples_module.Parser(features, sides={}, structs=[], columns=None, decode=None)


def varint(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content


@st.composite
def examples_of_few_lengths(draw: st.DrawFn) -> bytes:
    """Examples many of which are of one length, but not of one layout; numbers packed or not."""
    features = b""
    for name in draw(st.lists(st.sampled_from([b"a", b"b"]), max_size=3)):
        kind = draw(st.sampled_from([0x0A, 0x1A, 0x18]))
        if kind == 0x0A:
            texts = draw(st.lists(st.sampled_from([b"", b"x", b"\n", b"\n\0", b"yz"]), max_size=2))
            content = field(0x0A, b"".join(field(0x0A, text) for text in texts))
        else:
            numbers = draw(st.lists(st.sampled_from([0, 8, 10, 150, 1032]), max_size=3))
            items = [varint(number) for number in numbers]
            if kind == 0x1A:
                content = field(0x1A, field(0x0A, b"".join(items)))
            else:
                content = field(0x1A, b"".join(b"\x08" + item for item in items))
        features += field(0x0A, field(0x0A, name) + field(0x12, content))
    return field(0x0A, features)


@functools.cache
def every_example() -> bytes:
    return encode_example(any_record(EVERY, np.random.default_rng(6)), EVERY)


class TestParser:
    @given(st.dictionaries(st.text(max_size=200), lists(), max_size=6))
    def test_lists_are_what_protobuf_wrote(self, content: dict[str, tuple[str, list[Any]]]) -> None:
        features = {name: feature_of(*values) for name, values in content.items()}
        example = tf.train.Example(features=tf.train.Features(feature=features))
        found = parser_of(*content)._lists(example.SerializeToString())
        assert set(found) == {name for name, (_, values) in content.items() if values} | set(found)
        for name, (kind, values) in content.items():
            if name not in found:
                assert values == []
            elif kind == "bytes":
                assert found[name] == values
            else:
                wanted = np.array(values, np.float32 if kind == "float" else np.int64)
                assert found[name].dtype == wanted.dtype
                assert_same(found[name], wanted, name)

    @given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.lists(st.floats(width=32)))
    def test_unpacked_lists_and_unknown_fields(self, ints: list[int], floats: list[float]) -> None:
        unknown = field(0x7A, b"?") + b"\x78\x01" + b"\x79" + bytes(8) + b"\x7d" + bytes(4)
        of_ints = unknown + b"".join(b"\x08" + varint(value % 2**64) for value in ints)
        of_floats = b"".join(b"\x0d" + np.float32(value).tobytes() for value in floats)
        features = b""
        for name, content in ((b"i", field(0x1A, of_ints)), (b"f", field(0x12, of_floats))):
            # The value before the key, as protobuf allows.
            # (Unknown fields in a map's entry hide it from protobuf's own parsers.)
            entry = field(0x12, content + unknown) + field(0x0A, name)
            features += unknown + field(0x0A, entry)
        serialized = unknown + field(0x0A, features)
        assert (
            tf.train.Example.FromString(serialized).features.feature["i"].int64_list.value == ints
        )
        found = parser_of("i", "f")._lists(serialized)
        assert found["i"].tolist() == ints
        assert_same(found["f"], np.array(floats, np.float32), "f")

    @given(
        st.binary(max_size=60)
        | st.builds(
            lambda a, b: field(10, field(10, a)) + b, st.binary(max_size=40), st.binary(max_size=5)
        )
    )
    def test_garbage_is_refused_or_parsed_never_worse(self, serialized: bytes) -> None:
        with contextlib.suppress(ValueError, IndexError):
            parser_of("x")(serialized)

    @given(st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=9))
    def test_any_changed_bytes_of_every_type(self, changes: list[tuple[int, int]]) -> None:
        serialized = bytearray(every_example())
        for place, value in changes:
            serialized[place % len(serialized)] = value
        parser = examples_module.Parser(
            describe(EVERY),
            sides=sides_of(EVERY, frozenset()),
            structs=[],
            columns=None,
            decode=None,
        )
        assert set(parser(every_example())) > set(EVERY)
        # NumPy warns of a float32 that is no float16.
        with contextlib.suppress(ValueError, IndexError, RuntimeWarning):
            parser(bytes(serialized))

    def test_every_cut_is_refused_or_lacks_values(self) -> None:
        features = {"a": feature_of("int64", [300, -1]), "b": feature_of("bytes", [b"x" * 200])}
        example = tf.train.Example(features=tf.train.Features(feature=features))
        serialized = example.SerializeToString()
        for end in range(1, len(serialized)):
            with pytest.raises((ValueError, IndexError)):
                parser_of("a", "b")._lists(serialized[:end])

    @given(st.lists(examples_of_few_lengths(), min_size=2, max_size=12), st.booleans())
    def test_layouts_that_are_remembered_change_no_value(
        self, examples: list[bytes], some: bool
    ) -> None:
        names = ("a",) if some else ("a", "b")
        parser = parser_of(*names)
        for serialized in examples:
            found = parser._lists(serialized)
            wanted = parser_of(*names)._lists(serialized)
            assert {name: list(values) for name, values in found.items()} == {
                name: list(values) for name, values in wanted.items()
            }
        assert len(parser._layouts) == len(set(map(len, examples)))

    @given(st.binary(max_size=1500))
    def test_checksums_by_tables(self, content: bytes) -> None:
        import google_crc32c

        assert frames_module._crc32c_by_tables(content) == google_crc32c.value(content)


class TestRecords:
    def test_by_number(self, made: types.ModuleType) -> None:
        records = made.Records("train")
        assert len(records) == 60
        assert numbers_of(records) == list(range(60))
        assert numbers_of(records[i] for i in (59, 0, 25, 26, -1, -60, np.int64(24))) == [
            *(59, 0, 25, 26, 59, 0, 24)
        ]
        for index in (60, -61):
            with pytest.raises(IndexError, match=f"60 records, none of number {index}"):
                records[index]
        with pytest.raises(TypeError):
            records[0:2]
        assert len(made.Records("none")) == 0
        assert list(made.Records("none")) == list(made.Stream("none")) == []

    def test_threads_read_at_once(self, made: types.ModuleType) -> None:
        from concurrent.futures import ThreadPoolExecutor

        records = made.Records("train")
        order = np.random.default_rng(0).integers(0, 60, 600).tolist()
        with ThreadPoolExecutor(8) as pool:
            assert numbers_of(pool.map(records.__getitem__, order)) == order

    def test_few_files_are_open(self, made: types.ModuleType, monkeypatch: Any) -> None:
        monkeypatch.setattr(made, "_OPEN_SHARDS", 1)
        records = made.Records("train")
        order = np.random.default_rng(0).integers(0, 60, 100).tolist()
        assert numbers_of(records[i] for i in order) == order
        assert num_open(made, "train") == int(
            made.COMPRESSION == "none"
        )  # GZIP is inflated at once
        del records
        assert num_open(made, "train") == 0

    def test_travels_by_its_arguments(self, made: types.ModuleType) -> None:
        records = made.Records("train", columns=["n"], check=False)
        _ = records[3]
        content = pickle.dumps(records)
        assert len(content) < 1000
        again = pickle.loads(content)
        assert again[59] == {"n": 59}
        assert repr(again) == repr(records)
        assert repr(records) == "Records('made', 0123456789abcdef, 'train', columns=['n'])"
        stream = made.Stream("train", shuffle=7, seed=3, epoch=2, shard=(1, 2))
        assert numbers_of(pickle.loads(pickle.dumps(stream))) == numbers_of(stream)


class TestStream:
    def test_stored_order(self, made: types.ModuleType) -> None:
        assert numbers_of(made.Stream("train", shuffle=False)) == list(range(60))
        assert numbers_of(made.Stream("test")) == list(range(60, 67))
        assert len(made.Stream("train")) == 60

    @pytest.mark.parametrize("buffer", [1, 2, 7, 60, 1000, True])
    def test_shuffled(self, made: types.ModuleType, buffer: Any) -> None:
        stream = made.Stream("train", shuffle=buffer, seed=1)
        first = numbers_of(stream)
        assert sorted(first) == list(range(60))
        assert numbers_of(stream) == first
        stream.set_epoch(1)
        assert sorted(numbers_of(stream)) == list(range(60))
        if buffer > 2 or buffer is True:
            assert numbers_of(stream) != first
        fresh = made.Stream("train", shuffle=buffer)
        assert sorted(numbers_of(fresh)) == list(range(60))

    def test_order_is_the_same_in_every_process(self, made: types.ModuleType) -> None:
        code = "import reader_numpy as r; print([int(x['n']) for x in r.Stream('train', seed=5)])"
        found = subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(str(made.__file__)).parent,
            env=os.environ | {"PYTHONHASHSEED": "7"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ast.literal_eval(found.stdout) == numbers_of(made.Stream("train", seed=5))

    @pytest.mark.parametrize("count", [1, 2, 3, 7, 61])
    @pytest.mark.parametrize("shuffle", [False, 5])
    def test_parts_hold_every_record_once(
        self, made: types.ModuleType, count: int, shuffle: Any
    ) -> None:
        parts = [
            made.Stream("train", shuffle=shuffle, seed=2, shard=(index, count))
            for index in range(count)
        ]
        found = [numbers_of(part) for part in parts]
        assert sorted(itertools.chain(*found)) == list(range(60))
        assert [len(part) for part in parts] == list(map(len, found))
        assert max(map(len, found)) - min(map(len, found)) <= 1

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"shuffle": -1}, "shuffle=-1 must be True, False or a number"),
            ({"shard": (2, 2)}, r"shard=\(2, 2\) must be \(index, count\)"),
            ({"columns": ["m"]}, "there is no 'm', only n, x"),
        ],
    )
    def test_wrong_arguments(self, made: types.ModuleType, options: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            made.Stream("train", **options)

    def test_wrong_split_or_root(self, made: types.ModuleType, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no split 'dev', only train, test, none"):
            made.Records("dev")
        with pytest.raises(ValueError, match=r"no file .*manifest\.json.* as root="):
            made.Records("train", root=tmp_path)
        with pytest.raises(ValueError, match=r"no file gs://bucket/s/manifest\.json"):
            made.Stream("train", root="gs://bucket/s")
        (tmp_path / "manifest.json").write_text("{}")
        with pytest.raises(ValueError, match="is no manifest"):
            made.Stream("train", root=tmp_path)
        (tmp_path / "manifest.json").write_text('{"fingerprint": "f", "format_version": 1}')
        with pytest.raises(ValueError, match="is of fingerprint f"):
            made.Stream("train", root=tmp_path)


class TestDamage:
    """Three records of 60 bytes in one shard; each way to read them names what is wrong."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        numpy_snapshot(tmp_path / "s", NUMBERS, {"train": [numbered(0, 3)]})
        return tmp_path / "s"

    def faults(self, folder: Path, **options: Any) -> set[str]:
        reader = load(folder / "reader_numpy.py")
        found = set()
        for records in (reader.Records("train", **options), reader.Stream("train", **options)):
            with pytest.raises(reader.DamagedShardError) as caught:
                numbers_of(records)
            found.add(str(caught.value))
        return found

    def test_each_flipped_byte_is_told(self, folder: Path) -> None:
        (shard,) = folder.glob("*.tfrecord")
        whole = shard.read_bytes()
        size = len(whole) // 3
        for place in range(len(whole)):
            shard.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            (fault,) = self.faults(folder)
            record = place // size
            assert f"{shard}, record {record} at byte {record * size}, " in fault
            assert "fails its checksum" in fault or "says that it has" in fault

    def test_without_checks_values_may_be_wrong_but_frames_are_not(self, folder: Path) -> None:
        (shard,) = folder.glob("*.tfrecord")
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-5] + b"\0" + whole[-4:])  # the last float's last byte
        reader = load(folder / "reader_numpy.py")
        assert len(list(reader.Records("train", check=False))) == 3
        shard.write_bytes(b"\1" + whole[1:])
        (fault,) = self.faults(folder, check=False)
        assert "record 0 at byte 0, says that it has 1 bytes, where the index has" in fault

    def test_cut_or_missing_files(self, folder: Path) -> None:
        (shard,) = folder.glob("*.tfrecord")
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-1])
        (fault,) = self.faults(folder)
        assert f"{shard} has {len(whole) - 1} bytes, expected {len(whole)}: from byte" in fault
        shard.unlink()
        (fault,) = self.faults(folder)
        assert "has 0 bytes" in fault
        shard.write_bytes(whole)
        (index,) = folder.glob("index/*.idx")
        index.write_bytes(index.read_bytes()[:-1])
        (fault,) = self.faults(folder)
        assert f"{index} has 47 bytes, expected 16 for each of 3 records" in fault
        index.unlink()
        (fault,) = self.faults(folder)
        assert f"{index} has 0 bytes" in fault

    def test_example_that_is_none(self, tmp_path: Path) -> None:
        numpy_snapshot(tmp_path / "s", NUMBERS, {"train": [[*numbered(0, 1), b"\x0a\x05ab"]]})
        (fault,) = self.faults(tmp_path / "s", columns=["n"])
        assert "record 1 at byte" in fault
        assert "is no example: a field at byte 2 ends at 7, its message at 4." in fault

    def test_values_that_are_missing(self, tmp_path: Path) -> None:
        numpy_snapshot(tmp_path / "s", NUMBERS, {"train": [[b""]]})
        (fault,) = self.faults(tmp_path / "s")
        assert "is no example: feature 'n': has no value" in fault

    def test_gzip_with_any_byte_flipped(self, tmp_path: Path) -> None:
        folder = tmp_path / "s"
        numpy_snapshot(folder, NUMBERS, {"train": [numbered(0, 3)]}, compression="gzip")
        (shard,) = folder.glob("*.tfrecord.gz")
        whole = shard.read_bytes()
        for place in range(10, len(whole) - 8):
            shard.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
            reader = load(folder / "reader_numpy.py")
            for records in (reader.Records("train"), reader.Stream("train", shuffle=False)):
                try:
                    assert numbers_of(records) == [0, 1, 2]
                    found = ""
                except reader.DamagedShardError as error:
                    found = str(error)
                if found or place < len(whole) - 12:  # the bits at the end mean nothing
                    assert f"{shard}, record " in found
                    assert " at byte " in found


class TestLoaders:
    """Every record once through the loaders that the datasets are made for."""

    def load(self, made: types.ModuleType, *arguments: str) -> None:
        script = Path(__file__).with_name("data_loader.py")
        folder = Path(str(made.__file__)).parent
        done = subprocess.run(
            [sys.executable, str(script), str(folder), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        numbers = json.loads(done.stdout.splitlines()[-1])
        assert sorted(numbers) == list(range(60))
        assert numbers != sorted(numbers)

    @pytest.mark.parametrize("dataset", ["Records", "Stream"])
    @pytest.mark.parametrize(("method", "workers"), [("fork", 0), ("fork", 3), ("spawn", 2)])
    def test_protocol_of_torch(
        self, made: types.ModuleType, dataset: str, method: str, workers: int
    ) -> None:
        self.load(made, "protocol", dataset, method, str(workers))

    @pytest.mark.engine
    @pytest.mark.slow  # torch takes seconds to load, in every worker
    @pytest.mark.parametrize("dataset", ["Records", "Stream"])
    @pytest.mark.parametrize(("method", "workers"), [("fork", 0), ("fork", 2), ("spawn", 2)])
    def test_torch(self, made: types.ModuleType, dataset: str, method: str, workers: int) -> None:
        if importlib.util.find_spec("torch") is None:
            pytest.skip("needs PyTorch: pip install torch")
        self.load(made, "torch", dataset, method, str(workers))

    @pytest.mark.engine
    @pytest.mark.parametrize("workers", [0, 2])
    def test_grain(self, made: types.ModuleType, workers: int) -> None:
        if importlib.util.find_spec("grain") is None:
            pytest.skip("needs Grain: pip install grain")
        self.load(made, "grain", "Records", "", str(workers))


@pytest.mark.parametrize("features", KINDS.values(), ids=KINDS)
class TestEmitted:
    def test_same_each_time_and_without_marks(self, features: Features) -> None:
        text = emitted(features)
        assert text == emitted(dict(reversed(features.items())))
        assert "# [" not in text
        tree = ast.parse(text)
        imported = {
            (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        optional = {"google_crc32c", "PIL"}
        tops = {name.partition(".")[0] for name in imported} - optional
        assert tops <= {*sys.stdlib_module_names, "numpy"}


def emitted(features: Features, compression: str = "none") -> str:
    return emit_numpy_reader(facts_of(features, compression=compression))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    for index, features in enumerate(KINDS.values()):
        text = emitted(features, "gzip" if index % 2 else "none")
        (tmp_path / f"reader_{index}.py").write_text(text, encoding="utf-8")
    return tmp_path


def test_ruff_finds_nothing(written: Path) -> None:
    pytest.importorskip("ruff", reason="needs ruff: pip install ruff")
    own = ["--config", str(Path(__file__).parents[2] / "pyproject.toml")]
    for chosen in (own, ["--isolated"]):
        run("ruff", "check", *chosen, ".", folder=written)
    run("ruff", "format", "--check", "--line-length=100", "--isolated", ".", folder=written)


@pytest.mark.slow  # mypy starts with an empty cache: about 10 s
def test_mypy_finds_nothing_in_strict_mode(written: Path) -> None:
    pytest.importorskip("mypy", reason="needs mypy: pip install mypy")
    run("mypy", "--strict", "--config-file=", "--cache-dir=.cache", ".", folder=written)
    shutil.rmtree(written / ".cache")


class TestNames:
    def test_in_one_order_each_once(self) -> None:
        assert check_readers(("numpy", "tf", "tf")) == ("tf", "numpy")
        assert check_readers(["tf"]) == check_readers("tf") == ("tf",)

    @pytest.mark.parametrize(
        ("readers", "message"),
        [
            (("tf", "torch"), "no reader 'torch', only 'tf', 'numpy'"),
            (("numpy",), "'tf' must be among them"),
            ((), "'tf' must be among them"),
            ("numpy", "'tf' must be among them"),
        ],
    )
    def test_wrong_names(self, readers: Any, message: str) -> None:
        with pytest.raises(RecipeError, match=message):
            check_readers(readers)
