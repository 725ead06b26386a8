"""Reading without TensorFlow: values, by number and in a stream, parts, resuming, damage."""

import ast
import atexit
import contextlib
import functools
import importlib
import itertools
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.pipelines.reader.emit import describe, sides_of
from snapshard.pipelines.reader.runtime import examples as examples_module
from snapshard.pipelines.reader.runtime import frames as frames_module
from snapshard.schemas.features import Features, flatten
from snapshard.transforms.prepare.engine.rows import encode_example

from .made_snapshots import num_open
from .numpy_snapshots import arrays_of, numpy_snapshot
from .test_reader_every_type import (
    CLASSES,
    EVERY,
    any_record,
    assert_same,
    batches_of,
    types_of_features,
)
from .test_reader_every_type import plain as plain_python

NUMBERS: Features = {"n": ss.Scalar("int64"), "x": ss.Tensor("float32", (3,))}


def numbered(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"n": n, "x": np.full(3, n, np.float32)} for n in range(start, stop)]


@functools.cache
def shared(compression: str) -> types.ModuleType:
    """60 numbered records in three shards, 7 and none of other splits; no test changes it."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    splits = {
        "train": [numbered(0, 25), numbered(25, 26), numbered(26, 60)],
        "test": [numbered(60, 67)],
        "none": [[]],
    }
    return numpy_snapshot(folder / "made", NUMBERS, splits, compression=compression)


def part_of(made: types.ModuleType, name: str) -> Any:
    """Another module of its package."""
    return importlib.import_module(f"..{name}", made.__name__)


def folder_of(made: types.ModuleType) -> Path:
    """The snapshot's."""
    return Path(str(made.__file__)).parent.parent


def numbers_of(records: Any) -> list[int]:
    return [int(record["n"]) for record in records]


def dataset_of(made: types.ModuleType) -> types.ModuleType:
    """The package that has ``dataset``."""
    return sys.modules[str(made.__package__)]


@pytest.fixture(params=["none", "gzip"])
def made(request: pytest.FixtureRequest) -> types.ModuleType:
    return shared(request.param)


@pytest.fixture
def plain() -> types.ModuleType:
    """Where what is tested does not depend on the compression."""
    return shared("none")


def assert_as_dataset(made: types.ModuleType) -> None:
    """Each value by number and in a stream is what ``dataset`` gives, in type, form and content."""
    records = list(made.Records("train"))
    streamed = list(made.Stream("train", shuffle=False))
    (batch,) = batches_of(dataset_of(made), folder_of(made), len(records))
    assert all(set(record) == set(batch) for record in (*records, *streamed))
    for name, tensor in batch.items():
        dtype = tensor.dtype.as_numpy_dtype
        kind = np.dtype(np.float32 if tensor.dtype == tf.bfloat16 else dtype)
        wanted = plain_python(tensor)
        for given_records in (records, streamed):
            for record, value in zip(given_records, wanted, strict=True):
                found = record[name]
                if tensor.shape.rank > 1:
                    assert found.dtype == kind, name
                    assert found.flags.writeable
                    assert found.ndim == tensor.shape.rank - 1
                else:
                    assert type(found) is (bytes if kind.hasobject else kind.type), name
                assert_same(found.tolist() if hasattr(found, "tolist") else found, value, name)


class TestValues:
    @pytest.mark.slow
    def test_each_type_is_as_in_dataset(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(4)
        records = [any_record(EVERY, rng) for _ in range(17)]
        reader = numpy_snapshot(tmp_path / "s", EVERY, {"train": [records[:9], records[9:]]})
        assert_as_dataset(reader)

    @pytest.mark.slow
    @settings(max_examples=20)
    @given(
        declared=st.lists(types_of_features, min_size=1, max_size=4),
        seed=st.integers(0, 2**32),
    )
    def test_any_features_are_as_in_dataset(self, declared: list[Any], seed: int) -> None:
        features = {f"x{index}": feature for index, feature in enumerate(declared)}
        rng = np.random.default_rng(seed)
        records = [any_record(features, rng) for _ in range(3)]
        with tempfile.TemporaryDirectory() as folder:
            reader = numpy_snapshot(Path(folder) / "s", features, {"train": [records]})
            assert_as_dataset(reader)

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
        with pytest.raises(
            ValueError, match=r"\['s\.kinds'\] must be .* of a\.b, s\.in\.sound, .*, s, s\.in"
        ):
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
    return examples_module.Parser(features, sides={}, decode=None)


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
    @pytest.mark.slow
    @given(st.dictionaries(st.text(max_size=200), lists(), max_size=6))
    def test_lists_are_what_protobuf_wrote(self, content: dict[str, tuple[str, list[Any]]]) -> None:
        features = {name: feature_of(*values) for name, values in content.items()}
        example = tf.train.Example(features=tf.train.Features(feature=features))
        found = parser_of(*content).lists_of(example.SerializeToString())
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
        found = parser_of("i", "f").lists_of(serialized)
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

    @pytest.mark.slow
    @given(st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=9))
    def test_any_changed_bytes_of_every_type(self, changes: list[tuple[int, int]]) -> None:
        serialized = bytearray(every_example())
        for place, value in changes:
            serialized[place % len(serialized)] = value
        parser = examples_module.Parser(
            describe(EVERY),
            sides=sides_of(EVERY, frozenset()),
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
                parser_of("a", "b").lists_of(serialized[:end])

    @pytest.mark.slow
    @given(st.lists(examples_of_few_lengths(), min_size=2, max_size=12), st.booleans())
    def test_layouts_that_are_remembered_change_no_value(
        self, examples: list[bytes], some: bool
    ) -> None:
        names = ("a",) if some else ("a", "b")
        parser = parser_of(*names)
        for serialized in examples:
            found = parser.lists_of(serialized)
            wanted = parser_of(*names).lists_of(serialized)
            assert {name: list(values) for name, values in found.items()} == {
                name: list(values) for name, values in wanted.items()
            }
        assert len(parser.layouts) == len(set(map(len, examples)))

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
            with pytest.raises(IndexError, match=f"60 records, no number {index}"):
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
            made.facts.COMPRESSION == "none"
        )  # GZIP is inflated at once
        del records
        assert num_open(made, "train") == 0

    @given(st.lists(st.integers(-60, 59), max_size=40), st.sampled_from(["none", "gzip"]))
    def test_batches_by_number(self, numbers: list[int], compression: str) -> None:
        records = shared(compression).Records("train")
        found = records.__getitems__(numbers)
        assert numbers_of(found) == [number % 60 for number in numbers]
        assert len({id(record["x"]) for record in found}) == len(found)  # each its own

    def test_neighbours_of_a_shard_are_one_read(
        self, made: types.ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reads = []
        frames = part_of(made, "frames")
        for name in ("LocalFile", "Inflated"):
            kind = getattr(frames, name)

            def counted(file: Any, offset: int, size: int, read: Any = kind.read) -> bytes:
                reads.append((offset, size))
                return bytes(read(file, offset, size))

            monkeypatch.setattr(kind, "read", counted)
        records = made.Records("train")
        records.__getitems__([0, 25, 26])  # opens three shards, and compares their checksums
        opening = len(reads)
        records.__getitems__([33, 31, 32, 2, 24, 25, 26, 23])
        # 2; 23 and 24; 25, the whole second shard; 26; 31, 32 and 33. GZIP is in memory by now.
        is_plain = made.facts.COMPRESSION == "none"
        assert opening == 3 * (3 if is_plain else 2)
        assert len(reads) - opening == (5 if is_plain else 0)

    @pytest.mark.parametrize("number", [60, -61])
    def test_batch_with_a_number_that_is_none(self, plain: types.ModuleType, number: int) -> None:
        with pytest.raises(IndexError, match=f"60 records, no number {number}"):
            plain.Records("train").__getitems__([0, number])

    @pytest.mark.parametrize("count", [1, 2, 7, 61])
    def test_numbers_count_within_a_part(self, made: types.ModuleType, count: int) -> None:
        parts = [made.Records("train", shard=(index, count)) for index in range(count)]
        assert list(itertools.chain(*map(numbers_of, parts))) == list(range(60))
        assert_alike_in_length(parts)
        last = parts[-1]
        assert numbers_of(last.__getitems__([-1])) == [59]
        assert numbers_of(pickle.loads(pickle.dumps(last))) == numbers_of(last)

    def test_travels_by_its_arguments(self, plain: types.ModuleType) -> None:
        records = plain.Records("train", columns=["n"], check=False)
        _ = records[3]
        content = pickle.dumps(records)
        assert len(content) < 1000
        again = pickle.loads(content)
        assert again[59] == {"n": 59}
        assert repr(again) == repr(records)
        assert repr(records) == "Records('made', 0123456789abcdef, 'train', columns=['n'])"
        stream = plain.Stream("train", shuffle=7, seed=3, epoch=2, shard=(1, 2))
        assert numbers_of(pickle.loads(pickle.dumps(stream))) == numbers_of(stream)


def assert_alike_in_length(parts: list[Any]) -> None:
    """Their lengths are those that they tell, and differ by one at most."""
    lengths = [len(numbers_of(part)) for part in parts]
    assert [*map(len, parts)] == lengths
    assert max(lengths) - min(lengths) <= 1


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

    def test_order_is_the_same_in_every_process(self, plain: types.ModuleType) -> None:
        code = (
            "from reader.arrays import Stream\n"
            "print([int(record['n']) for record in Stream('train', seed=5)])"
        )
        found = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder_of(plain),
            env=os.environ | {"PYTHONHASHSEED": "7"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ast.literal_eval(found.stdout) == numbers_of(plain.Stream("train", seed=5))

    @pytest.mark.parametrize("count", [1, 2, 3, 7, 13, 61])
    @pytest.mark.parametrize("shuffle", [False, 5])
    def test_parts_hold_every_record_once(
        self, made: types.ModuleType, count: int, shuffle: Any
    ) -> None:
        for equal_steps in (False, True):
            options = {"shuffle": shuffle, "seed": 2, "equal_steps": equal_steps}
            if equal_steps and count > 60:
                with pytest.raises(
                    ValueError, match=r"60 records, .*\(0, 61\) gets no record\. Use"
                ):
                    made.Stream("train", shard=(0, count), **options)
                continue
            parts = [
                made.Stream("train", shard=(index, count), **options) for index in range(count)
            ]
            assert_alike_in_length(parts)
            found = sorted(itertools.chain(*map(numbers_of, parts)))
            if equal_steps:
                assert {*map(len, parts)} == {60 // count}
                assert len({*found}) == len(found)
            else:
                assert found == list(range(60))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"shuffle": -1}, "shuffle=-1 must be True, False or a number"),
            ({"shard": (2, 2)}, r"shard=\(2, 2\) must be \(index, count\)"),
            ({"shard": (0, 1, 2)}, r"shard=\(0, 1, 2\) must be \(index, count\)"),
            ({"shard": 2}, r"shard=2 must be \(index, count\)"),
            ({"shard": (0.5, 2)}, r"shard=\(0.5, 2\) must be \(index, count\)"),
            ({"shard": "01"}, r"shard='01' must be \(index, count\)"),
            ({"shuffle": 0.5}, "shuffle=0.5 must be True, False or a number"),
            ({"seed": "1"}, "seed='1' must be an integer or None"),
            ({"columns": ["m"]}, r"columns=\['m'\] must be a list of some of n, x"),
        ],
    )
    def test_wrong_arguments(self, plain: types.ModuleType, options: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            plain.Stream("train", **options)
        if "shard" in options:
            with pytest.raises(ValueError, match=message):
                plain.Records("train", **options)

    def test_wrong_split_or_root(self, plain: types.ModuleType, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no split 'dev', only train, test, none"):
            plain.Records("dev")
        with pytest.raises(ValueError, match=r"manifest\.json is missing.* as root="):
            plain.Records("train", root=tmp_path)
        with pytest.raises(ValueError, match=r"gs://bucket/s/manifest\.json is missing"):
            plain.Stream("train", root="gs://bucket/s")
        (tmp_path / "manifest.json").write_text("{}")
        with pytest.raises(ValueError, match="is not a manifest"):
            plain.Stream("train", root=tmp_path)
        (tmp_path / "manifest.json").write_text('{"fingerprint": "f", "format_version": 1}')
        with pytest.raises(ValueError, match="has fingerprint f"):
            plain.Stream("train", root=tmp_path)


class TestProcesses:
    """Ranks, each of which takes its part."""

    def test_as_torchrun_or_torch_says(
        self, plain: types.ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("RANK", raising=False)
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        assert plain.process_shard() == (0, 1)
        monkeypatch.setenv("RANK", "2")
        monkeypatch.setenv("WORLD_SIZE", "3")
        assert plain.process_shard() == (2, 3)
        stream = plain.Stream("train", shuffle=False, shard=plain.process_shard())
        assert numbers_of(stream) == list(range(40, 60))
        distributed: Any = types.ModuleType("torch.distributed")
        distributed.is_available = distributed.is_initialized = lambda: True
        distributed.get_rank, distributed.get_world_size = (lambda: 3), (lambda: 5)
        monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
        assert plain.process_shard() == (3, 5)

    def test_each_that_reads_everything_is_warned(
        self, plain: types.ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.warns(UserWarning, match=r"process 0 of 2, .* shard=process_shard\(\)"):
            stream = plain.Stream("train")
        assert len(pickle.loads(pickle.dumps(stream))) == 60  # a worker is not
        plain.Stream("train", shard=(0, 1))
        plain.Records("train")  # torch's DistributedSampler divides it


class TestResuming:
    """A pass that is resumed gives exactly what was left of it."""

    @given(
        st.sampled_from([False, 1, 2, 9, 59, 60, 100]),
        st.integers(0, 60),
        st.sampled_from([(0, 1), (1, 2), (5, 7)]),
        st.sampled_from(["none", "gzip"]),
        st.booleans(),
        st.sampled_from([1, 1000]),
    )
    def test_anywhere(
        self,
        shuffle: Any,
        num: int,
        shard: tuple[int, int],
        compression: str,
        equal_steps: bool,
        block: int,
    ) -> None:
        reader = shared(compression)
        options = {"shuffle": shuffle, "shard": shard, "epoch": 3, "equal_steps": equal_steps}
        stream = reader.Stream("train", **options)
        iterator = iter(stream)
        first = numbers_of(itertools.islice(iterator, num))
        state = json.loads(json.dumps(stream.state_dict()))
        rest = numbers_of(iterator)
        assert len({*first, *rest}) == len(stream)
        again = reader.Stream("train", **(options | {"epoch": 0}))
        again.load_state_dict(state)
        assert again.state_dict() == state
        again = pickle.loads(pickle.dumps(again))  # as a worker gets it
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "_SKIPPED_BLOCK", block)
            patch.setattr(reader, "_BLOCK", 7)
            assert numbers_of(again) == rest
        assert len(numbers_of(again)) == len(stream)  # the next pass is complete

    @pytest.mark.slow
    def test_reads_what_is_left_only(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shards = [numbered(n, n + 150) for n in range(0, 1200, 150)]
        reader = numpy_snapshot(tmp_path / "s", NUMBERS, {"train": shards})
        stream = reader.Stream("train", shuffle=100, seed=1)
        iterator = iter(stream)
        for _ in range(1050):
            next(iterator)
        state, rest = stream.state_dict(), numbers_of(iterator)
        num_bytes = 0
        local = part_of(reader, "frames").LocalFile
        read = local.read

        def counted(file: Any, offset: int, size: int) -> bytes:
            nonlocal num_bytes
            num_bytes += size
            return bytes(read(file, offset, size))

        monkeypatch.setattr(local, "read", counted)
        stream.load_state_dict(state)
        assert numbers_of(stream) == rest
        total = sum(path.stat().st_size for path in (tmp_path / "s").glob("*.tfrecord"))
        assert num_bytes <= total * 152 // 1200

    def test_of_a_pass_that_ended_nothing_is_left(self, plain: types.ModuleType) -> None:
        stream = plain.Stream("train", seed=1)
        wanted = numbers_of(stream)
        state = stream.state_dict()
        stream.load_state_dict(state)
        assert numbers_of(stream) == []
        assert numbers_of(stream) == wanted
        stream.load_state_dict(state)
        stream.set_epoch(1)
        assert len(numbers_of(stream)) == 60

    def test_the_epoch_that_is_resumed_may_be_set_again(self, plain: types.ModuleType) -> None:
        stream = plain.Stream("train", seed=1, epoch=4)
        iterator = iter(stream)
        next(iterator)
        again = plain.Stream("train", seed=1)
        again.load_state_dict(stream.state_dict())
        again.set_epoch(4)
        assert numbers_of(again) == numbers_of(iterator)

    @pytest.mark.parametrize("num_passes", [0, 1])
    def test_state_between_two_passes(self, plain: types.ModuleType, num_passes: int) -> None:
        stream = plain.Stream("train", seed=1)
        for epoch in range(num_passes):
            numbers_of(stream)
            stream.set_epoch(epoch + 1)
        again = plain.Stream("train", seed=1)
        again.load_state_dict(stream.state_dict())
        wanted = numbers_of(stream)
        assert len(wanted) == 60
        assert numbers_of(again) == wanted

    def test_epoch_that_is_set_within_a_pass(self, plain: types.ModuleType) -> None:
        stream = plain.Stream("train", seed=1)
        wanted = numbers_of(stream)
        iterator = iter(stream)
        stream.set_epoch(1)
        assert numbers_of(iterator) == wanted
        assert numbers_of(stream) != wanted

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ({"split": "test"}, "has split='train', but this stream has split='test'"),
            ({"shuffle": 8}, "has shuffle=7, but this stream has shuffle=8"),
            ({"equal_steps": True}, "has equal_steps=False, but this stream has equal_steps=True"),
        ],
    )
    def test_state_of_another_stream(
        self, plain: types.ModuleType, other: dict[str, Any], message: str
    ) -> None:
        options: dict[str, Any] = {"split": "train", "shuffle": 7}
        state = plain.Stream(**options).state_dict()
        with pytest.raises(ValueError, match=message):
            plain.Stream(**(options | other)).load_state_dict(state)
        state["fingerprint"] = "f"
        with pytest.raises(ValueError, match="has fingerprint='f', but this stream has"):
            plain.Stream(**options).load_state_dict(state)

    @pytest.mark.parametrize("name", ["epoch", "part", "seed", "given"])
    def test_state_that_lacks_a_part(self, plain: types.ModuleType, name: str) -> None:
        stream = plain.Stream("train")
        state = stream.state_dict()
        del state[name]
        with pytest.raises(ValueError, match=f"The state has no {name!r}"):
            stream.load_state_dict(state)

    def test_state_of_another_part(self, plain: types.ModuleType) -> None:
        state = plain.Stream("train", shard=(1, 2)).state_dict()
        stream = plain.Stream("train", shard=(0, 4))
        stream.load_state_dict(state)
        with pytest.raises(ValueError, match=r"is for part \(1, 2\), but this is \(0, 4\)"):
            iter(stream)


class TestDamage:
    """Three records of 60 bytes in one shard; each way to read them names what is wrong."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        numpy_snapshot(tmp_path / "s", NUMBERS, {"train": [numbered(0, 3)]})
        return tmp_path / "s"

    def faults(self, folder: Path, **options: Any) -> set[str]:
        reader = arrays_of(folder)
        found = set()
        for records in (reader.Records("train", **options), reader.Stream("train", **options)):
            with pytest.raises(reader.DamagedShardError) as caught:
                numbers_of(records)
            found.add(str(caught.value))
        return found

    @pytest.mark.slow
    def test_each_flipped_byte_is_told(self, folder: Path) -> None:
        (shard,) = folder.glob("*.tfrecord")
        whole = shard.read_bytes()
        size = len(whole) // 3
        assert size % 3, "each place of a record, in one of the three"
        for place in range(0, len(whole), 3):
            shard.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            (fault,) = self.faults(folder)
            record = place // size
            if place < 12:
                assert f"{shard} does not begin with a record" in fault
            elif size - 4 <= place < size:  # the checksum of the first record
                assert f"{shard} is a different shard: its checksum" in fault
            else:
                assert f"{shard}, record {record} at byte {record * size}, " in fault
                assert "fails its checksum" in fault or "bytes according to its header" in fault
            assert f"snapshard verify {folder}" in fault

    def test_without_checks_values_may_be_wrong_but_frames_are_not(self, folder: Path) -> None:
        (shard,) = folder.glob("*.tfrecord")
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-5] + b"\0" + whole[-4:])  # the last float's last byte
        reader = arrays_of(folder)
        assert len(list(reader.Records("train", check=False))) == 3
        shard.write_bytes(whole[:53] + b"\1" + whole[54:])
        (fault,) = self.faults(folder, check=False)
        assert (
            "record 1 at byte 53, has 1 bytes according to its header, 37 according to the index"
            in fault
        )

    def test_cut_or_missing_files(self, folder: Path) -> None:
        (shard,) = folder.glob("*.tfrecord")
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-1])
        (fault,) = self.faults(folder)
        assert (
            f"{shard} has {len(whole) - 1} bytes, expected {len(whole)}: it is damaged from byte"
            in fault
        )
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

    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ([0, 2, 1], "says that record 1 has 53 bytes at byte 106, expected at least 16 bytes"),
            ([0, 0, 1], "says that record 1 has 53 bytes at byte 0, expected"),
            ([1, 1, 2], "says that record 0 has 53 bytes at byte 53, expected"),
        ],
    )
    def test_index_whose_entries_are_swapped_or_duplicated(
        self, folder: Path, entries: list[int], message: str
    ) -> None:
        (index,) = folder.glob("index/*.idx")
        content = np.frombuffer(index.read_bytes(), "<u8").reshape(-1, 2)
        assert content.tolist() == [[0, 53], [53, 53], [106, 53]]
        index.write_bytes(content[entries].tobytes())
        (fault,) = self.faults(folder, check=False)
        assert f"{index} {message}" in fault
        assert f"snapshard verify {folder}" in fault

    @pytest.mark.parametrize(
        ("ends", "message"),
        [
            ([53, 106, 150], "the last record ends at byte 150, expected 159, the size of "),
            ([53, 53, 159], "record 1 has 0 bytes at byte 53, expected at least 16 bytes"),
            ([53, 100, 159], "record 1 at byte 53, has 37 bytes according to its header, 31 "),
        ],
    )
    def test_index_of_other_records(self, folder: Path, ends: list[int], message: str) -> None:
        (index,) = folder.glob("index/*.idx")
        content = np.array([[0, *ends[:-1]], np.diff([0, *ends])], "<u8").T
        index.write_bytes(content.tobytes())
        (fault,) = self.faults(folder, check=False)
        assert re.search(message, fault)
        assert f"snapshard verify {folder}" in fault

    def test_example_that_is_none(self, tmp_path: Path) -> None:
        numpy_snapshot(tmp_path / "s", NUMBERS, {"train": [[*numbered(0, 1), b"\x0a\x05ab"]]})
        (fault,) = self.faults(tmp_path / "s", columns=["n"])
        assert "record 1 at byte" in fault
        assert "is not a valid example: a field at byte 2 ends at 7, its message at 4." in fault

    def test_values_that_are_missing(self, tmp_path: Path) -> None:
        numpy_snapshot(tmp_path / "s", NUMBERS, {"train": [[b""]]})
        (fault,) = self.faults(tmp_path / "s")
        assert "is not a valid example: feature 'n': has no value" in fault

    def test_gzip_with_any_byte_flipped(self, tmp_path: Path) -> None:
        folder = tmp_path / "s"
        numpy_snapshot(folder, NUMBERS, {"train": [numbered(0, 3)]}, compression="gzip")
        (shard,) = folder.glob("*.tfrecord.gz")
        whole = shard.read_bytes()
        for place in range(10, len(whole) - 8):
            shard.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
            reader = arrays_of(folder)
            for records in (reader.Records("train"), reader.Stream("train", shuffle=False)):
                try:
                    assert numbers_of(records) == [0, 1, 2]
                    found = ""
                except reader.DamagedShardError as error:
                    found = str(error)
                if found or place < len(whole) - 12:  # the bits at the end mean nothing
                    assert f"{shard}, record " in found
                    assert " at byte " in found


# What a trainer does in whose environment TensorFlow cannot be imported; prints what it reads.
WITHOUT_TENSORFLOW = """
import sys

for name in ("tensorflow", "snapshard", "google_crc32c", "torch", "grain", "PIL", "pyarrow"):
    sys.modules[name] = None
import reader
from reader import arrays

records = arrays.Records("train")
assert reader.NUM_EXAMPLES["train"] == len(records)
numbers = range(len(records))
print(sum(1 for _ in arrays.Stream("train")), len(records.__getitems__(numbers)))
"""


class TestImport:
    def test_needs_no_tensorflow(self, made: types.ModuleType) -> None:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_TENSORFLOW],
            cwd=folder_of(made),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "60 60\n"

    @pytest.mark.parametrize("name", ["__init__", "arrays", "examples", "facts", "frames"])
    def test_needs_numpy_and_python_3_10(self, name: str) -> None:
        path = Path(str(frames_module.__file__)).with_name(f"{name}.py")
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
        imported = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(str(node.module))
        tops = {name.partition(".")[0] for name in imported}
        assert tops <= {"google_crc32c", "numpy", "PIL", *sys.stdlib_module_names}


PEERS = os.environ.get("SNAPSHARD_PEERS", sys.executable)
"""A Python that has PyTorch, torchdata and Grain."""


@functools.cache
def peers() -> set[str]:
    """Which of them that Python has."""
    code = (
        "from importlib.util import find_spec\n"
        "print([name for name in ('torch', 'torchdata', 'grain') if find_spec(name)])"
    )
    done = subprocess.run([PEERS, "-c", code], capture_output=True, text=True, check=True)
    return {*ast.literal_eval(done.stdout)}


def load(made: types.ModuleType, *arguments: Any, python: str = sys.executable) -> Any:
    """What ``data_loader.py`` prints, with these arguments."""
    script = Path(__file__).with_name("data_loader.py")
    done = subprocess.run(
        [python, str(script), str(folder_of(made)), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def load_by(peer: str, made: types.ModuleType, *arguments: Any) -> Any:
    """The same in the Python that has the loaders; skips where this one is missing there."""
    needed = "torch" if peer == "ranks" else "torchdata" if peer == "stateful" else peer
    if needed not in peers():
        pytest.skip(f"needs {needed}: make peers, or a Python that has it in SNAPSHARD_PEERS")
    return load(made, peer, *arguments, python=PEERS)


WORKERS = pytest.mark.parametrize(("method", "workers"), [("fork", 0), ("fork", 3), ("spawn", 2)])


class TestLoaders:
    """Every record once through the loaders that the datasets are made for."""

    @pytest.mark.parametrize("dataset", ["Records", "Stream"])
    @pytest.mark.parametrize(
        ("compression", "method", "workers"),
        [("gzip", "fork", 0), ("none", "fork", 3), ("gzip", "fork", 3), ("none", "spawn", 2)],
    )
    def test_protocol_of_torch(
        self, compression: str, dataset: str, method: str, workers: int
    ) -> None:
        assert_shuffled(load(shared(compression), "protocol", dataset, method, workers))

    @pytest.mark.peers
    @pytest.mark.parametrize("dataset", ["Records", "Stream"])
    @WORKERS
    def test_torch(self, plain: types.ModuleType, dataset: str, method: str, workers: int) -> None:
        assert_shuffled(load_by("torch", plain, dataset, method, workers))

    @pytest.mark.peers
    @WORKERS
    def test_torch_resumes_a_stream(
        self, plain: types.ModuleType, method: str, workers: int
    ) -> None:
        """After each number of batches, by ``StatefulDataLoader``: what is left, then all."""
        passes = load_by("stateful", plain, "Stream", method, workers)
        wanted, *resumed = passes
        assert_shuffled(list(itertools.chain(*wanted)))
        for num, left, following in resumed:
            assert left == wanted[num:]
            assert following == wanted
        assert len(resumed) == (len(wanted) + 1 if method == "fork" else 1)

    @pytest.mark.peers
    def test_torch_ranks(self, plain: types.ModuleType) -> None:
        """Processes of a group that is initialized: records once, and as many steps if asked."""
        ranks, equal = load_by("ranks", plain, "Stream", "spawn", 1)
        for numbers in (ranks, equal):
            assert_shuffled(list(itertools.chain(*numbers)))
            assert [len(of_rank) for of_rank in numbers] == [30, 30]

    @pytest.mark.peers
    @pytest.mark.parametrize("workers", [0, 2])
    def test_grain_loader(self, plain: types.ModuleType, workers: int) -> None:
        assert_shuffled(load_by("grain", plain, "Records", "loader", workers))

    @pytest.mark.peers
    @pytest.mark.parametrize("workers", [0, 2])
    def test_grain_dataset_and_checkpoint(self, plain: types.ModuleType, workers: int) -> None:
        assert_shuffled(load_by("grain", plain, "Records", "dataset", workers))


def assert_shuffled(numbers: list[int]) -> None:
    assert sorted(numbers) == list(range(60))
    assert numbers != sorted(numbers)
