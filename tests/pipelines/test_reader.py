"""The snapshot's reader: which records it gives, in which order, how often, and what it refuses."""

import collections
import importlib
import io
import json
import math
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from snapshard.pipelines.reader import latest_reader
from snapshard.schemas.features import ClassLabel, Features, Image, Scalar

from .conftest import part

FINGERPRINT = "0123456789abcdef"
WriteSnapshot = Callable[..., types.ModuleType]


NUMBERED: Features = {"label": ClassLabel(names=("even", "odd")), "id": Scalar(dtype="int64")}


def numbered(lengths: Sequence[int]) -> list[list[Mapping[str, int]]]:
    """Shards of these lengths, whose records are numbered in stored order."""
    ids = iter(range(sum(lengths)))
    return [[{"id": (i := next(ids)), "label": i % 2} for _ in range(n)] for n in lengths]


LENGTHS = (50, 49, 51, 50, 50, 47)
TOTAL = sum(LENGTHS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("numbered")


@pytest.fixture(scope="module")
def reader(folder: Path, write_snapshot: WriteSnapshot) -> types.ModuleType:
    splits = {"train": numbered(LENGTHS), "test": numbered([20]), "none": []}
    return write_snapshot(folder, NUMBERED, splits)


def batches(dataset: Any, key: str = "id") -> list[list[int]]:
    return [batch[key].numpy().tolist() for batch in dataset]


def flat(dataset: Any, key: str = "id") -> list[int]:
    return [i for batch in batches(dataset, key) for i in batch]


def divide(reader: types.ModuleType, shards: Any, place: tuple[int, int]) -> Any:
    found = part(reader, "shards").divide(shards, place)
    return [(one.path, one.skip, one.take, one.place) for one in found]


def listed(reader: types.ModuleType, split: str, root: str | None = None) -> Any:
    folder = root or str(Path(str(reader.__file__)).parent.parent)
    return part(reader, "shards").list_shards(split, folder)


class TestEpoch:
    @pytest.mark.parametrize("drop_remainder", [False, True])
    @pytest.mark.parametrize(
        ("batch_size", "shuffle", "epochs"),
        [
            (1, True, 1),
            (32, False, 3),
            (32, True, 3),
            (32, 1, 1),
            (32, 7, 2),
            (TOTAL, True, 2),
            (TOTAL + 5, False, 2),
            (TOTAL + 5, 40, 2),
        ],
    )
    def test_every_epoch_has_every_record_once(
        self,
        reader: types.ModuleType,
        batch_size: int,
        shuffle: bool | int,
        drop_remainder: bool,
        epochs: int,
    ) -> None:
        def read() -> Any:
            return reader.dataset(
                "train",
                batch_size,
                shuffle=shuffle,
                drop_remainder=drop_remainder,
                epochs=epochs,
                seed=3,
            )

        if drop_remainder and batch_size > TOTAL:
            with pytest.raises(ValueError, match=rf"has {TOTAL} records.* no batch of {TOTAL + 5}"):
                read()
            return
        dataset = read()
        found = batches(dataset)
        assert len(found) == int(dataset.cardinality())
        steps = TOTAL // batch_size if drop_remainder else math.ceil(TOTAL / batch_size)
        assert len(found) == steps * epochs
        for epoch in range(epochs):
            part = found[epoch * steps : (epoch + 1) * steps]
            assert all(len(batch) == batch_size for batch in part[: TOTAL // batch_size])
            ids = sorted(i for batch in part for i in batch)
            if drop_remainder:
                assert len(ids) == len(set(ids)) == steps * batch_size
            else:
                assert ids == list(range(TOTAL))

    def test_without_shuffle_the_order_is_the_stored_one(self, reader: types.ModuleType) -> None:
        assert flat(reader.dataset("train", 32, shuffle=False)) == list(range(TOTAL))
        assert flat(reader.dataset("test", 7)) == list(range(20)), "only train is shuffled unasked"

    def test_only_train_is_shuffled_unless_told(self, reader: types.ModuleType) -> None:
        assert flat(reader.dataset("train", 32)) != list(range(TOTAL))
        assert flat(reader.dataset("test", 7, shuffle=True)) != list(range(20))

    def test_forever_is_infinite(self, reader: types.ModuleType) -> None:
        dataset = reader.dataset("train", 100, epochs=None)
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        ids = collections.Counter(flat(dataset.take(3 * 5)))
        assert ids == dict.fromkeys(range(TOTAL), 5)

    def test_an_empty_split_is_an_empty_dataset(self, reader: types.ModuleType) -> None:
        for shuffle in (True, False):
            dataset = reader.dataset("none", 8, shuffle=shuffle)
            assert dataset.cardinality() == 0
            assert batches(dataset) == []
        with pytest.raises(
            ValueError, match=r"would wait forever: split='none' .* batch of 8\. Use"
        ):
            reader.dataset("none", 8, epochs=None)
        with pytest.raises(ValueError, match=r"would wait forever: split='test' .* batch of 21"):
            reader.dataset("test", 21, epochs=None, drop_remainder=True)

    def test_dropping_the_remainder_makes_shapes_static(self, reader: types.ModuleType) -> None:
        for shuffle in (True, False):
            dataset = reader.dataset("train", 32, drop_remainder=True, shuffle=shuffle)
            assert dataset.element_spec["id"].shape == (32,)


class TestShuffle:
    def test_a_seed_gives_one_order_and_another_in_every_epoch(
        self, reader: types.ModuleType
    ) -> None:
        first = reader.dataset("train", 32, seed=5, epochs=2)
        again = reader.dataset("train", 32, seed=5, epochs=2)
        other = reader.dataset("train", 32, seed=6, epochs=2)
        one, two, three = flat(first), flat(again), flat(other)
        assert one == two
        assert one != three
        assert one[:TOTAL] != one[TOTAL:]
        second_pass = flat(first)
        assert second_pass == flat(again)
        assert len({tuple(part) for part in (one[:TOTAL], one[TOTAL:], second_pass[:TOTAL])}) == 3

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", [0, 5])
    def test_a_global_seed_changes_nothing(self, reader: types.ModuleType, seed: int) -> None:
        orders = []
        try:
            for global_seed in (None, 0, 11):
                tf.random.set_seed(global_seed)
                orders.append(flat(reader.dataset("train", 32, seed=seed)))
        finally:
            tf.random.set_seed(None)
        assert orders[0] == orders[1] == orders[2]
        assert sorted(orders[0]) == list(range(TOTAL))

    def test_batches_change_their_composition(self, reader: types.ModuleType) -> None:
        dataset = reader.dataset("train", 32, seed=1, epochs=4)
        found = batches(dataset)
        compositions = [frozenset(batch) for batch in found]
        # The last of each epoch holds what lies in one of 25 places, which may come again.
        last = len(found) // 4
        full = [one for number, one in enumerate(compositions, 1) if number % last]
        assert len(set(full)) == len(full)
        assert len({*compositions[last - 1 :: last]}) > 1
        # Two records of one batch are seldom together again.
        together = [len(a & b) for a in compositions[:9] for b in compositions[10:19]]
        assert max(together) < 16

    def test_batches_draw_on_several_shards(self, reader: types.ModuleType) -> None:
        ends = np.cumsum(LENGTHS)
        shards = [
            len({int(np.searchsorted(ends, i, "right")) for i in batch})
            for batch in batches(reader.dataset("train", 32, drop_remainder=True, seed=1))
        ]
        assert min(shards) >= 3

    def test_more_shards_than_are_open_at_once(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        reader = write_snapshot(tmp_path, NUMBERED, {"train": numbered([7] * 40)})
        found = batches(reader.dataset("train", 16, seed=1))
        assert sorted(i for batch in found for i in batch) == list(range(280))
        assert all(len(batch) == 16 for batch in found[:-1])


class TestShard:
    @pytest.mark.slow  # many divisions
    @pytest.mark.parametrize(
        ("count", "shuffle"), [(1, True), (2, False), (3, True), (7, False), (7, True), (25, False)]
    )
    def test_the_parts_are_the_split(
        self, reader: types.ModuleType, count: int, shuffle: bool
    ) -> None:
        ids: list[int] = []
        for index in range(count):
            dataset = reader.dataset("train", 8, shard=(index, count), shuffle=shuffle)
            found = flat(dataset)
            assert int(dataset.cardinality()) == math.ceil(len(found) / 8)
            ids += found
        assert sorted(ids) == list(range(TOTAL))
        assert shuffle or ids == list(range(TOTAL)), "parts follow each other in stored order"

    @given(
        lengths=st.lists(st.integers(1, 60), max_size=30),
        count=st.integers(1, 50),
    )
    @example(lengths=[49, 45, 46], count=3)  # exactly 5 % more
    def test_any_number_of_parts_is_the_split(
        self, reader: types.ModuleType, lengths: list[int], count: int
    ) -> None:
        shard = part(reader, "shards").Shard
        shards = [shard(str(i), length, 0) for i, length in enumerate(lengths)]
        parts = [divide(reader, shards, (index, count)) for index in range(count)]
        records = [
            (path, record)
            for one in parts
            for path, skip, take, _ in one
            for record in range(skip, skip + take)
        ]
        assert records == [(path, i) for path, length, *_ in shards for i in range(length)]
        sizes = [sum(take for _, _, take, _ in one) for one in parts]
        total = sum(lengths)
        assert all(abs(size * count - total) <= max(count, 0.05 * total) for size in sizes)

    def test_even_parts_are_whole_shards(self, reader: types.ModuleType) -> None:
        shards = listed(reader, "train")
        for count in (2, 3):
            for index in range(count):
                found = divide(reader, shards, (index, count))
                assert all(skip == 0 and take in LENGTHS for _, skip, take, _ in found)
                assert len(found) == 6 // count

    def test_uneven_parts_are_ranges_of_records(self, reader: types.ModuleType) -> None:
        shards = listed(reader, "train")
        sizes = [sum(take for _, _, take, _ in divide(reader, shards, (i, 4))) for i in range(4)]
        assert max(sizes) - min(sizes) <= 1

    @pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0)])
    def test_parts_that_do_not_exist(
        self, reader: types.ModuleType, shard: tuple[int, int]
    ) -> None:
        with pytest.raises(ValueError, match=r"0 <= index < count"):
            reader.dataset("train", 8, shard=shard)

    def test_nothing_else_divides_the_work(self, reader: types.ModuleType) -> None:
        policy = reader.dataset("train", 8).options().experimental_distribute.auto_shard_policy
        assert policy == tf.data.experimental.AutoShardPolicy.OFF


class TestRoot:
    def test_another_snapshot_is_refused(
        self, reader: types.ModuleType, folder: Path, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        write_snapshot(tmp_path, NUMBERED, {"train": numbered([3])}, fingerprint="f" * 16)
        with pytest.raises(ValueError, match=f"{'f' * 16}.*this reader {FINGERPRINT}") as error:
            reader.dataset("train", 8, root=tmp_path)
        assert "root=" in str(error.value)
        assert str(tmp_path) in str(error.value)

    def test_another_format_is_refused(self, reader: types.ModuleType, tmp_path: Path) -> None:
        content = {"fingerprint": FINGERPRINT, "format_version": 2}
        (tmp_path / "manifest.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"format 2.*format 1"):
            reader.dataset("train", 8, root=tmp_path)

    @pytest.mark.parametrize("content", ["", "{", "[]", "3"])
    def test_what_is_no_manifest_is_refused(
        self, reader: types.ModuleType, tmp_path: Path, content: str
    ) -> None:
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(ValueError, match=r"manifest\.json"):
            reader.dataset("train", 8, root=tmp_path)

    def test_an_empty_folder_is_refused(self, reader: types.ModuleType, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"manifest\.json is missing\. Pass the folder of"):
            reader.dataset("train", 8, root=tmp_path)

    def test_a_slash_at_the_end_is_no_matter(self, reader: types.ModuleType, folder: Path) -> None:
        assert flat(reader.dataset("test", 8, root=f"{folder}/")) == list(range(20))

    def test_the_root_may_be_a_url(self, reader: types.ModuleType, folder: Path) -> None:
        dataset = reader.dataset("train", 8, root=folder.as_uri())
        assert sorted(flat(dataset)) == list(range(TOTAL))

    def test_an_object_store_up_to_the_names(
        self, reader: types.ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """TensorFlow takes no stand-in's address for gs://, so no epoch is read."""
        asked = []

        class Stored(io.FileIO):
            def size(self) -> int:
                return os.path.getsize(str(self.name))

        def opened(url: str, mode: str) -> Any:
            asked.append(url)
            return Stored(str(url).replace("gs://bucket/made/0123", str(folder)), mode)

        monkeypatch.setattr(tf.io.gfile, "GFile", opened)
        dataset = reader.dataset("train", 8, root="gs://bucket/made/0123/", seed=1, shard=(0, 2))
        manifest, *others = asked
        assert manifest == "gs://bucket/made/0123/manifest.json"
        names = [path.name for path in folder.glob("train-*")]
        shards = {f"gs://bucket/made/0123/{name}" for name in names}
        assert len(shards.intersection(others)) >= len(names) // 2, "those of this worker"
        indexes = {f"gs://bucket/made/0123/index/{name}.idx" for name in names}
        assert indexes.intersection(others), "the index says where records begin"
        assert {*others} <= shards | indexes
        assert len({*others}) == len(others)
        assert int(dataset.cardinality()) == reader.steps("train", 8, shard=(0, 2))
        found = listed(reader, "train", "gs://bucket/made/0123")
        assert [path for path, *_ in found] == [
            f"gs://bucket/made/0123/{path.name}" for path in sorted(folder.glob("train-*"))
        ]

    @pytest.mark.slow  # starts Python and TensorFlow anew
    def test_alone_in_another_process(
        self, reader: types.ModuleType, folder: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(folder / "reader", tmp_path / "reader")
        program = (
            "import sys, json\n"
            "sys.modules['snapshard'] = None\n"
            f"sys.path.insert(0, {str(tmp_path)!r})\n"
            "import reader\n"
            f"data = reader.dataset('train', 32, seed=5, root={str(folder)!r})\n"
            "print(json.dumps([int(i) for batch in data for i in batch['id']]))\n"
            "loaded = {name.split('.')[0] for name in sys.modules if sys.modules[name]}\n"
            "assert not loaded & {'snapshard', 'apache_beam'}\n"
        )
        done = subprocess.run(
            [sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True
        )
        order = json.loads(done.stdout.splitlines()[-1])
        assert order == flat(reader.dataset("train", 32, seed=5)), "one order in every process"


@pytest.mark.parametrize("is_latest", [False, True])
def test_a_second_import_says_that_it_is_the_first(
    tmp_path: Path, write_snapshot: WriteSnapshot, monkeypatch: pytest.MonkeyPatch, is_latest: bool
) -> None:
    """Python keeps the module ``reader`` that it imported first, whatever sys.path is now."""
    for name in ("one", "other"):
        write_snapshot(tmp_path / name / FINGERPRINT, NUMBERED, {"train": numbered([8])})
        shutil.copy(latest_reader.__file__, tmp_path / name / "reader.py")
        text = json.dumps({"fingerprint": FINGERPRINT})
        (tmp_path / name / "latest.json").write_text(text)
    places = [tmp_path / name / ("" if is_latest else FINGERPRINT) for name in ("one", "other")]
    monkeypatch.syspath_prepend(places[0])
    try:
        first = importlib.import_module("reader")
        reads = [
            lambda: first.dataset("train", 8),
            lambda: first.steps("train", 8),
            lambda: first.arrays.Records("train"),
        ]
        for read in reads:
            read()
        monkeypatch.syspath_prepend(places[1])
        assert importlib.import_module("reader") is first
        for read in reads:
            with pytest.warns(UserWarning, match=r"was the snapshot in .*/one/.* ss.load\(FOLDER"):
                read()
        first.dataset("train", 8, root=tmp_path / "other" / FINGERPRINT)
    finally:
        for name in [*sys.modules]:
            if name.partition(".")[0] == "reader":
                del sys.modules[name]


class TestDamage:
    @pytest.fixture
    def damaged(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> tuple[types.ModuleType, Path]:
        reader = write_snapshot(tmp_path, NUMBERED, {"train": numbered([30, 30])})
        return reader, tmp_path / "train-00001-of-00002.tfrecord"

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_flipped_bit_raises(
        self, damaged: tuple[types.ModuleType, Path], shuffle: bool
    ) -> None:
        reader, shard = damaged
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 4
        shard.write_bytes(content)
        with pytest.raises(tf.errors.DataLossError):
            batches(reader.dataset("train", 8, shuffle=shuffle))

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("cut", [1, 0])
    def test_a_shard_cut_short_raises(
        self, damaged: tuple[types.ModuleType, Path], shuffle: bool, cut: int
    ) -> None:
        reader, shard = damaged
        before = reader.dataset("train", 100, shuffle=shuffle)
        content = shard.read_bytes()
        record = len(content) // 30
        shard.write_bytes(content[: len(content) - record - cut])
        with pytest.raises(ValueError, match=rf"{shard.name} has .* bytes, expected .* verify"):
            reader.dataset("train", 100, shuffle=shuffle)
        expected = tf.errors.DataLossError if cut else tf.errors.FailedPreconditionError
        with pytest.raises(expected):  # damaged since it was checked
            batches(before)

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_shard_with_more_records_raises(
        self, damaged: tuple[types.ModuleType, Path], shuffle: bool
    ) -> None:
        reader, shard = damaged
        before = reader.dataset("train", 8, shuffle=False)
        first = shard.with_name("train-00000-of-00002.tfrecord")
        shard.write_bytes(shard.read_bytes() + first.read_bytes())
        with pytest.raises(ValueError, match=rf"{shard.name} has .* bytes, expected .* verify"):
            reader.dataset("train", 8, shuffle=shuffle)
        with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 30"):
            batches(before)

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_missing_shard_raises(
        self, damaged: tuple[types.ModuleType, Path], shuffle: bool
    ) -> None:
        reader, shard = damaged
        before = reader.dataset("train", 8, shuffle=shuffle)
        shard.unlink()
        with pytest.raises(ValueError, match=rf"{shard.name} cannot be read .No such file"):
            reader.dataset("train", 8, shuffle=shuffle)
        with pytest.raises(tf.errors.NotFoundError, match=shard.name):
            batches(before)


class TestArguments:
    @pytest.mark.parametrize(
        ("record_bytes", "batch_size", "records"),
        [(100, 128, 16_384), (12_288, 128, 1_365), (110_000, 256, 1_024), (1, 8_192, 16_384)],
    )
    def test_the_default_buffer(
        self,
        reader: types.ModuleType,
        monkeypatch: pytest.MonkeyPatch,
        record_bytes: int,
        batch_size: int,
        records: int,
    ) -> None:
        """16 MiB, four batches where that is more, and never over 16,384 records."""
        facts, options = part(reader, "facts"), part(reader, "options").Options
        monkeypatch.setattr(facts, "RECORD_BYTES", record_bytes)
        monkeypatch.setattr(facts, "NUM_EXAMPLES", {"train": 10**9, "test": 10**9})
        assert options("train", batch_size).buffer == records
        assert options("test", batch_size).buffer == 0
        assert options("test", batch_size, shuffle=True).buffer == records

    def test_an_unknown_split(self, reader: types.ModuleType) -> None:
        with pytest.raises(ValueError, match="no split 'valid', only train, test, none"):
            reader.dataset("valid", 8)

    @pytest.mark.parametrize("arguments", [{"batch_size": 0}, {"epochs": 0}, {"shuffle": -1}])
    def test_numbers_out_of_range(
        self, reader: types.ModuleType, arguments: dict[str, int]
    ) -> None:
        with pytest.raises(ValueError, match="must be"):
            reader.dataset("train", **({"batch_size": 8} | arguments))

    def test_image_size_without_images(self, reader: types.ModuleType) -> None:
        with pytest.raises(ValueError, match=r"image_size=.* apply to images, but .* has none"):
            reader.dataset("train", 8, image_size=(4, 4))

    def test_supervised(
        self, reader: types.ModuleType, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        ids, label = next(iter(reader.dataset("test", 4, as_supervised=True)))
        assert ids.numpy().tolist() == [0, 1, 2, 3]
        assert label.numpy().tolist() == [0, 1, 0, 1]

        features = NUMBERED | {"more": Scalar(dtype="float32")}
        records = [{"id": 1, "label": 0, "more": 0.5}]
        wide = write_snapshot(tmp_path / "wide", features, {"train": [records]})
        rest, label = next(iter(wide.dataset("train", 4, as_supervised=True)))
        assert {name: value.numpy().tolist() for name, value in rest.items()} == {
            "id": [1],
            "more": [0.5],
        }

        bare = write_snapshot(tmp_path / "bare", NUMBERED, {"train": numbered([3])}, label=None)
        assert bare.LABEL is None
        assert bare.CLASS_NAMES is None
        with pytest.raises(ValueError, match="needs a label"):
            bare.dataset("train", 4, as_supervised=True)


@pytest.mark.slow  # importing Keras and tracing a training step take about 10 s
def test_keras_learns_from_it(tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
    features: Features = {
        "image": Image(height=8, width=8, channels=3),
        "label": ClassLabel(names=("dark", "light")),
    }
    records = [{"image": bytes([200 * (i % 2) + i]) * 192, "label": i % 2} for i in range(40)]
    reader = write_snapshot(tmp_path, features, {"train": [records] * 4, "test": [records]})
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Rescaling(1 / 255),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(2),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    history = model.fit(
        reader.dataset("train", 16, as_supervised=True, seed=1),
        validation_data=reader.dataset("test", 16, as_supervised=True),
        epochs=15,
        shuffle=False,  # the dataset is shuffled already, which Keras would warn of
        verbose=0,
    )
    assert history.history["val_accuracy"][-1] == 1.0
    forever = reader.dataset("train", 16, as_supervised=True, epochs=None)
    model.fit(forever, steps_per_epoch=3, epochs=2, shuffle=False, verbose=0)


def test_an_iterator_can_be_saved_and_restored(reader: types.ModuleType, tmp_path: Path) -> None:
    dataset = reader.dataset("train", 32, shuffle=False, epochs=2)
    iterator = iter(dataset)
    checkpoint = tf.train.Checkpoint(iterator=iterator)
    for _ in range(3):
        next(iterator)
    path = checkpoint.write(str(tmp_path / "state"))
    rest = [next(iterator)["id"].numpy().tolist() for _ in range(9)]
    other = iter(dataset)
    tf.train.Checkpoint(iterator=other).restore(path)
    assert [next(other)["id"].numpy().tolist() for _ in range(9)] == rest
