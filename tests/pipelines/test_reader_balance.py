"""``balance=`` and ``mix`` of a snapshot's reader: which records come, how often, whence."""

import collections
import gc
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from snapshard.schemas.features import ClassLabel, Features, Image, Scalar, Tensor, Text

from .conftest import part
from .made_snapshots import list_files, num_open, put_index

WriteSnapshot = Callable[..., types.ModuleType]

NAMES = ("common", "some", "rare", "none")
TABLE: Features = {
    "label": ClassLabel(names=NAMES, optional=True),
    "id": Scalar(dtype="int64"),
    "name": Text(),
}
CODES = np.array(([0] * 17 + [1] * 4 + [0, 1, 0, -1]) * 11 + [2] * 3 + [0] * 22)
NUM = len(CODES)
UNIFORM = {0: NUM // 3, 1: NUM // 3, 2: NUM // 3}


def table(codes: Sequence[int], *, num_shards: int = 5) -> list[list[Any]]:
    records = [
        {"id": i, "label": None if code < 0 else int(code), "name": b"n" * (i % 40)}
        for i, code in enumerate(codes)
    ]
    return [list(part) for part in np.array_split(np.array(records), num_shards)]


@pytest.fixture(scope="module")
def reader(
    tmp_path_factory: pytest.TempPathFactory, write_snapshot: WriteSnapshot
) -> types.ModuleType:
    folder = tmp_path_factory.mktemp("plain")
    found = write_snapshot(folder, TABLE, {"train": table(CODES)})
    put_index(folder, "none", CODES)
    return found


@pytest.fixture
def own(tmp_path: Path, write_snapshot: WriteSnapshot) -> types.ModuleType:
    """A snapshot that a test may damage."""
    found = write_snapshot(tmp_path, TABLE, {"train": table(CODES)})
    put_index(tmp_path, "none", CODES)
    return found


def ids(dataset: Any) -> list[int]:
    return [int(i) for batch in dataset for i in batch["id"].numpy()]


def mix_of(found: Sequence[int]) -> dict[int, int]:
    return dict(sorted(collections.Counter(CODES[found].tolist()).items()))


def wait_until_closed(reader: types.ModuleType) -> None:
    deadline = time.monotonic() + 60
    while num_open(reader, "train") and time.monotonic() < deadline:
        gc.collect()  # calls that are under way hold the files until they return
        time.sleep(0.01)
    assert num_open(reader, "train") == 0


class TestBalance:
    def test_classes_are_alike_and_records_take_turns(self, reader: types.ModuleType) -> None:
        found = ids(reader.dataset("train", 16, balance="uniform", seed=1))
        assert len(found) == NUM == 300
        assert mix_of(found) == UNIFORM
        times = collections.Counter(found)
        for code in range(3):
            each = [times[i] for i in np.flatnonzero(code == CODES).tolist()]
            assert max(each) - min(each) <= 1
            assert sum(each) == 100

    def test_a_mix_by_names(self, reader: types.ModuleType) -> None:
        balance = {"rare": 0.5, "some": np.float32(1.5), "none": 0}
        dataset = reader.dataset("train", 16, balance=balance, seed=1)
        assert mix_of(ids(dataset)) == {1: 225, 2: 75}

    @pytest.mark.parametrize("key", [1, np.int64(1), "1"], ids=repr)
    def test_an_integer_is_the_name_of_a_class(
        self, tmp_path: Path, write_snapshot: WriteSnapshot, key: Any
    ) -> None:
        """Not its index: labels of years or digits need not be stored in their order."""
        features = TABLE | {"label": ClassLabel(names=("2", "0", "3", "1"), optional=True)}
        codes = [0, 1, 2, 3] * 5
        reader = write_snapshot(tmp_path, features, {"train": table(codes)})
        put_index(tmp_path, "none", codes)
        (batch,) = reader.dataset("train", 20, balance={key: 1})
        assert set(batch["label"].numpy().tolist()) == {3}

    def test_values_are_those_of_the_record(self, reader: types.ModuleType) -> None:
        for batch in reader.dataset("train", 16, balance="uniform", seed=1):
            numbers = batch["id"].numpy()
            np.testing.assert_array_equal(batch["label"], CODES[numbers])
            assert [len(name) for name in batch["name"].numpy()] == (numbers % 40).tolist()

    def test_of_gzip(
        self, reader: types.ModuleType, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        gzip = write_snapshot(tmp_path, TABLE, {"train": table(CODES)}, compression="gzip")
        put_index(tmp_path, "gzip", CODES)
        options = {"balance": "uniform", "seed": 1, "epochs": 2}
        assert ids(gzip.dataset("train", 16, **options)) == ids(
            reader.dataset("train", 16, **options)
        )

    def test_an_order_for_each_epoch_and_pass(self, reader: types.ModuleType) -> None:
        dataset = reader.dataset("train", 50, balance="uniform", seed=4, epochs=2)
        first, second, third = *np.split(np.array(ids(dataset)), 2), np.array(ids(dataset))[:NUM]
        for one, other in ((first, second), (second, third), (first, third)):
            assert (one != other).mean() > 0.8
        for one in (first, second, third):
            assert mix_of(one.tolist()) == UNIFORM
        again = reader.dataset("train", 50, balance="uniform", seed=4, epochs=2)
        assert ids(again) == [*first, *second]
        unseeded = reader.dataset("train", 50, balance="uniform")
        assert ids(unseeded) != ids(unseeded)

    def test_classes_are_spread_over_an_epoch(self, reader: types.ModuleType) -> None:
        found = CODES[ids(reader.dataset("train", 50, balance="uniform", seed=4))]
        for third in np.split(found, 3):
            assert all(18 <= (third == code).sum() <= 50 for code in range(3))

    @pytest.mark.parametrize("drop", [False, True])
    def test_batches_are_counted(self, reader: types.ModuleType, drop: bool) -> None:
        dataset = reader.dataset("train", 16, balance="uniform", epochs=3, drop_remainder=drop)
        sizes = [len(batch["id"]) for batch in dataset]
        assert sizes == 3 * ([16] * 18 if drop else [16] * 18 + [12])
        assert dataset.cardinality() == len(sizes)
        assert dataset.element_spec["id"].shape[0] == (16 if drop else None)
        assert reader.steps("train", 16, balance="uniform", drop_remainder=drop) == len(sizes) // 3

    def test_forever(self, reader: types.ModuleType) -> None:
        dataset = reader.dataset("train", 150, balance="uniform", epochs=None, seed=1)
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        assert mix_of(ids(dataset.take(6))) == {code: 3 * num for code, num in UNIFORM.items()}

    def test_images_of_a_fixed_layout(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), np.uint8)
        codes = [0] * 25 + [1] * 5
        features = {"image": Image(height=8, width=8), "label": ClassLabel(names=("a", "b"))}
        records = [{"image": one.tobytes(), "label": codes[i]} for i, one in enumerate(pixels)]
        reader = write_snapshot(tmp_path, features, {"train": [records[:11], records[11:]]})
        put_index(tmp_path, "none", codes)
        (batch,) = reader.dataset("train", 30, balance="uniform", seed=1)
        for image, label in zip(batch["image"].numpy(), batch["label"].numpy(), strict=True):
            assert codes[int((pixels == image).all((1, 2, 3)).argmax())] == label
        assert batch["label"].numpy().sum() == 15

    def test_each_turn_of_a_record_is_augmented_anew(self, reader: types.ModuleType) -> None:
        def seeds(batch: Any, seeds: Any) -> Any:
            return {"id": batch["id"], "seed": seeds[:, 1]}

        dataset = reader.dataset("train", 64, balance="uniform", seed=1, augment_batch=seeds)
        found = [
            pair
            for batch in dataset
            for pair in zip(batch["id"].numpy(), batch["seed"].numpy(), strict=True)
        ]
        assert len(set(found)) == len(found) == NUM
        assert all(place % NUM == number for number, place in found)

    def test_windows_of_all_records(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        """Only a short batch of windows is left out, not a short batch of records."""
        features = {"label": ClassLabel(names=("a", "b")), "list": Tensor("int64", shape=(None,))}
        codes = [0] * 9 + [1] * 2
        records = [{"label": code, "list": [i] * 4} for i, code in enumerate(codes)]
        reader = write_snapshot(tmp_path, features, {"train": [records]})
        put_index(tmp_path, "none", codes)
        options = {"windows": (2, 1), "balance": "uniform", "seed": 1}
        found = list(reader.dataset("train", 8, drop_remainder=True, **options))
        assert [len(batch["list"]) for batch in found] == [8] * (11 * 3 // 8)

    @pytest.mark.slow  # a process that loads TensorFlow
    def test_another_process_gives_the_same(self, reader: types.ModuleType) -> None:
        folder = Path(str(reader.__file__)).parent.parent
        code = (
            "import reader; d = reader.dataset('train', 16, balance='uniform', seed=3);"
            "print([int(i) for b in d for i in b['id']])"
        )
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
        )
        found = ids(reader.dataset("train", 16, balance="uniform", seed=3))
        assert result.stdout.strip() == str(found)


class TestWorkers:
    @pytest.mark.slow
    @pytest.mark.parametrize("count", [2, 3, 7])
    def test_share_one_epoch(self, reader: types.ModuleType, count: int) -> None:
        whole = ids(reader.dataset("train", 300, balance="uniform", seed=1))
        parts = [
            [
                batch["id"].numpy().tolist()
                for batch in reader.dataset("train", 8, shard=(i, count), balance="uniform", seed=1)
            ]
            for i in range(count)
        ]
        together: list[int] = []
        for step in range(max(map(len, parts))):
            together += [i for part in parts if step < len(part) for i in part[step]]
        assert together == whole, "one order, whatever the number of workers"

    @pytest.mark.slow
    @pytest.mark.parametrize("drop", [False, True])
    def test_as_many_steps_for_each(self, reader: types.ModuleType, drop: bool) -> None:
        options = {"equal_steps": True, "drop_remainder": drop, "balance": "uniform", "seed": 1}
        parts = [reader.dataset("train", 8, shard=(i, 7), **options) for i in range(7)]
        (num,) = {int(part.cardinality()) for part in parts}
        found = [ids(part) for part in parts]
        assert {len(list(part)) for part in parts} == {num}
        assert NUM - 7 * 8 < sum(map(len, found)) <= NUM


class TestGoingOn:
    @pytest.mark.slow
    def test_in_the_same_order(self, reader: types.ModuleType) -> None:
        options = {"balance": "uniform", "seed": 5, "epochs": 3}
        whole = ids(reader.dataset("train", 16, **options))
        for steps in (0, 1, 7, 19, 25, 40):
            rest = ids(reader.dataset("train", 16, start_step=steps, **options))
            epochs, more = divmod(steps, 19)
            assert rest == whole[NUM * epochs + 16 * more :]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "options",
        [
            {"augment_batch": lambda batch, seeds: batch | {"drawn": seeds[:, 1]}},
            {"augment": lambda one, seed: one | {"drawn": seed[1]}, "drop_remainder": True},
            {"equal_steps": True, "shard": (1, 7)},
            {"equal_steps": True, "shard": (6, 7), "drop_remainder": True},
            {"columns": ["id", "name"], "pad": True},
        ],
        ids=lambda options: "-".join(options),
    )
    def test_with_every_stage(self, reader: types.ModuleType, options: dict[str, Any]) -> None:
        """The rest of an epoch passes through the same stages as other epochs."""
        options = {"balance": "uniform", "seed": 5, "epochs": 2} | options

        def read(start: int) -> list[Any]:
            data = reader.dataset("train", 16, start_step=start, **options)
            return [{k: v.numpy().tolist() for k, v in batch.items()} for batch in data]

        whole, per_epoch = read(0), reader.steps("train", 16, **options)
        assert len(whole) == 2 * per_epoch
        for steps in (per_epoch - 1, per_epoch + 1):
            assert read(steps) == whole[steps:]

    def test_not_with_buckets(self, reader: types.ModuleType) -> None:
        """Which records were read depends on lengths that are not read again."""
        with pytest.raises(ValueError, match="balance=, bucket= and start_step= cannot be"):
            reader.dataset("train", 8, balance="uniform", bucket=True, seed=1, start_step=1)

    @pytest.mark.slow
    def test_with_other_workers(self, reader: types.ModuleType) -> None:
        options = {"balance": "uniform", "seed": 5}
        whole = ids(reader.dataset("train", 16, **options))
        read = [
            i
            for worker in range(3)
            for i in ids(reader.dataset("train", 10, shard=(worker, 3), **options).take(4))
        ]
        read += ids(reader.dataset("train", 16, start_step=[(4, 10, 3)], **options).take(2))
        stages = [(4, 10, 3), (2, 16, 1)]
        for worker in range(2):
            read += ids(
                reader.dataset("train", 25, shard=(worker, 2), start_step=stages, **options)
            )
        assert collections.Counter(read) == collections.Counter(whole)

    def test_a_checkpoint(self, own: types.ModuleType, tmp_path: Path) -> None:
        iterator = iter(own.dataset("train", 16, balance="uniform", seed=5))
        for _ in range(5):
            next(iterator)
        path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "checkpoint"))
        expected = [int(i) for batch in iterator for i in batch["id"].numpy()]
        other = iter(own.dataset("train", 16, balance="uniform", seed=5))
        tf.train.Checkpoint(iterator=other).read(path)
        assert [int(i) for batch in other for i in batch["id"].numpy()] == expected


class TestBytes:
    def test_read_are_those_of_the_examples(
        self, own: types.ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[int] = []
        pread = os.pread

        def counted(number: int, size: int, offset: int) -> bytes:
            read.append(size)
            return pread(number, size, offset)

        monkeypatch.setattr(os, "pread", counted)
        folder = Path(str(own.__file__)).parent.parent
        pairs = [
            np.frombuffer(p.read_bytes(), "<u8") for p in sorted((folder / "index").glob("*.idx"))
        ]
        lengths = np.concatenate(pairs).reshape(-1, 2)[:, 1]
        options = tf.data.Options()
        # One: threads that come to a record at the same time each read it for the first time.
        options.threading.private_threadpool_size = 1
        found = ids(own.dataset("train", 16, balance="uniform", seed=1, options=options))
        # Of each shard, the head of the first frame and the checksum of its record come first.
        assert len(read) == NUM + 2 * len(pairs)
        # A frame has 16 bytes about the record, which are read with it the first time.
        expected = lengths[found].sum() - 16 * (NUM - len(set(found)))
        assert sum(read) == expected + 16 * len(pairs)

    @pytest.mark.slow
    def test_files_are_closed_with_the_dataset(
        self, own: types.ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where the iterator's threads read once more while it is destroyed."""
        made: list[object] = []
        stored = part(own, "balance")._stored
        monkeypatch.setattr(
            part(own, "balance"), "_stored", lambda *given: made.append(given) or stored(*given)
        )
        for number in range(3):
            dataset = own.dataset("train", 16, balance="uniform", epochs=None).unbatch().batch(9)
            iterator = iter(dataset)
            del dataset
            gc.collect()
            for _ in range(2 * NUM // 9):
                next(iterator)
            assert num_open(own, "train") >= 5
            del iterator
            assert len(made) == number + 1
        wait_until_closed(own)

    @pytest.mark.slow
    def test_are_found_once_more_where_only_tensorflow_is_left(
        self, own: types.ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(part(own, "balance"), "_AGAIN_S", 0.5)
        dataset = own.dataset("train", 16, balance="uniform", seed=1)
        spec = dataset.element_spec
        variant = tf.data.experimental.to_variant(dataset)
        del dataset
        gc.collect()
        for _ in range(2):
            wait_until_closed(own)
            dataset = tf.data.experimental.from_variant(variant, spec)
            assert mix_of(ids(dataset)) == UNIFORM
            assert num_open(own, "train") == 5
        del dataset, variant
        wait_until_closed(own)

    def test_few_files_are_open_at_a_time(
        self, own: types.ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(part(own, "balance"), "_OPEN_SHARDS", 2)
        found = ids(own.dataset("train", 16, balance="uniform", seed=1))
        monkeypatch.undo()
        assert found == ids(own.dataset("train", 16, balance="uniform", seed=1))

    def test_without_google_crc32c(
        self, own: types.ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = part(own, "frames")
        monkeypatch.setitem(sys.modules, "google_crc32c", None)
        module._crc32c.cache_clear()
        assert mix_of(ids(own.dataset("train", 16, balance="uniform", seed=1))) == UNIFORM
        assert module._crc32c() is module._crc32c_by_tables
        module._crc32c.cache_clear()

    def test_at_a_url(self, reader: types.ModuleType) -> None:
        folder = Path(str(reader.__file__)).parent.parent
        for path in [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in str(p)]:
            target = f"ram://{folder.name}/{path.relative_to(folder)}"
            tf.io.gfile.makedirs(os.path.dirname(target))
            tf.io.gfile.copy(str(path), target, overwrite=True)
        options = {"balance": "uniform", "seed": 1}
        found = ids(reader.dataset("train", 16, root=f"ram://{folder.name}", **options))
        assert found == ids(reader.dataset("train", 16, **options))

    def test_a_local_copy(self, own: types.ModuleType, tmp_path: Path) -> None:
        options = {"balance": "uniform", "seed": 1}
        expected = ids(own.dataset("train", 16, **options))
        manifest = json.loads((tmp_path / "manifest.json").read_bytes())
        for entry in manifest["splits"]["train"]["shards"]:
            entry["sha256"] = hashlib.sha256((tmp_path / entry["file"]).read_bytes()).hexdigest()
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        fast = tmp_path / "fast"
        assert ids(own.dataset("train", 16, local_copy=str(fast), **options)) == expected
        assert len(list(fast.rglob("train-*"))) == 5


VERIFY = r"Verify the snapshot: snapshard verify \S+"


def swap(content: bytes, each: int, first: int, second: int) -> bytes:
    """Exchanges two entries of a file."""
    entries = [content[i : i + each] for i in range(0, len(content), each)]
    entries[first], entries[second] = entries[second], entries[first]
    return b"".join(entries)


class TestDamage:
    def test_of_a_record(self, own: types.ModuleType) -> None:
        folder = Path(str(own.__file__)).parent.parent
        path = folder / "train-00002-of-00005.tfrecord"
        content = bytearray(path.read_bytes())
        (size,) = struct.unpack_from("<Q", content)
        content[size + 16 + 20] ^= 1
        path.write_bytes(content)
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=rf"{path}, record 1 at byte {size + 16}, fails its checksum.*{VERIFY}",
        ):
            ids(own.dataset("train", 16, balance={"common": 1}))  # fewer than an epoch has places

    def test_of_a_shard_that_is_truncated_later(self, own: types.ModuleType) -> None:
        folder = Path(str(own.__file__)).parent.parent
        dataset = own.dataset("train", 16, balance="uniform", epochs=30)
        iterator = iter(dataset)
        next(iterator)
        for path in folder.glob("train-*"):
            os.truncate(path, 10)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"truncated|ends after|has 10 b"):
            list(iterator)

    def test_of_a_shard_that_is_gone(self, own: types.ModuleType) -> None:
        folder = Path(str(own.__file__)).parent.parent
        (folder / "train-00001-of-00005.tfrecord").unlink()
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"00001-of.* cannot be read"):
            ids(own.dataset("train", 16, balance="uniform"))

    def test_of_gzip(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        reader = write_snapshot(tmp_path, TABLE, {"train": table(CODES)}, compression="gzip")
        put_index(tmp_path, "gzip", CODES)
        path = tmp_path / "train-00003-of-00005.tfrecord.gz"
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=rf"{path}, record .* it has [0-9,]+ bytes, expected [0-9,]+\. .*{VERIFY}",
        ):
            ids(reader.dataset("train", 16, balance="uniform"))

    def test_of_the_index(self, own: types.ModuleType) -> None:
        folder = Path(str(own.__file__)).parent.parent
        path = folder / "index" / "train-00001-of-00005.tfrecord.labels"
        path.write_bytes(path.read_bytes()[:-4])
        match = rf"labels has 236 bytes, expected 240: copy it again\. {VERIFY}"
        with pytest.raises(ValueError, match=match):
            own.dataset("train", 16, balance="uniform")
        shutil.rmtree(folder / "index")
        with pytest.raises(ValueError, match=r"There is no .*\.labels, which balance= needs"):
            own.dataset("train", 16, balance="uniform")

    @pytest.mark.parametrize(
        ("kind", "damage", "match"),
        [
            (".idx", lambda c: swap(c, 16, 7, 20), r"record 7 at byte .* must be contiguous"),
            (".idx", lambda c: c[:-16] + c[-32:-16], r"record 59 at byte .* must be contiguous"),
            (".idx", lambda c: c[:16] + c[:-16], r"record 1 at byte 0 .* must be contiguous"),
            (".idx", lambda c: bytes(len(c)), r"record 0 at byte 0 with 0 bytes"),
            (".idx", lambda c: c[:-8] + (99).to_bytes(8, "little"), "expected 4,998"),
            (
                ".labels",
                lambda c: b"\4\0\0\0" + c[4:],
                "has class 4 for record 0, expected -1 to 3",
            ),
            (".labels", lambda c: c[:-4] + b"\xfe\xff\xff\xff", "has class -2 for record 59"),
        ],
    )
    def test_of_the_entries_of_the_index(
        self, own: types.ModuleType, kind: str, damage: Callable[[bytes], bytes], match: str
    ) -> None:
        """None is lost, repeated or taken for another class."""
        folder = Path(str(own.__file__)).parent.parent
        shard = folder / "train-00001-of-00005.tfrecord"
        path = folder / "index" / f"{shard.name}{kind}"
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(ValueError, match=rf"{path}.*{match}.*, of {shard}\. {VERIFY}"):
            own.dataset("train", 16, balance="uniform")

    @pytest.mark.parametrize("compression", ["none", "gzip"])
    def test_of_classes_in_another_order(
        self, tmp_path: Path, write_snapshot: WriteSnapshot, compression: str
    ) -> None:
        reader = write_snapshot(tmp_path, TABLE, {"train": table(CODES)}, compression=compression)
        put_index(tmp_path, compression, CODES)
        (path,) = tmp_path.glob("index/train-00002-*.labels")
        codes = np.frombuffer(path.read_bytes(), "<i4")
        assert (codes != codes[::-1]).any()
        path.write_bytes(codes[::-1].tobytes())
        match = rf"train-00002-.*, record \d+ at .*, is not of class (some|common), as .*{VERIFY}"
        with pytest.raises(tf.errors.InvalidArgumentError, match=match):
            ids(reader.dataset("train", 16, balance="uniform"))

    @pytest.mark.parametrize("kind", [".idx", ".labels"])
    def test_of_an_index_that_the_manifest_lists(self, own: types.ModuleType, kind: str) -> None:
        """Even where it is consistent, as where a record of a rare class lost its class."""
        folder = Path(str(own.__file__)).parent.parent
        list_files(folder)
        assert mix_of(ids(own.dataset("train", 16, balance="uniform"))) == UNIFORM
        path = folder / "index" / f"train-00001-of-00005.tfrecord{kind}"
        each = 4 if kind == ".labels" else 16
        path.write_bytes(swap(path.read_bytes(), each, 0, 9))
        with pytest.raises(ValueError, match=rf"{path} is not the file that the manifest lists.*"):
            own.dataset("train", 16, balance="uniform")

    @pytest.mark.parametrize("how", ["short", "without its first record", "other"])
    def test_of_a_shard_that_is_another(
        self, own: types.ModuleType, tmp_path: Path, write_snapshot: WriteSnapshot, how: str
    ) -> None:
        folder = Path(str(own.__file__)).parent.parent
        path = folder / "train-00001-of-00005.tfrecord"
        content = path.read_bytes()
        (size,) = struct.unpack_from("<Q", content)
        if how == "other":  # of the same records in another order, and of the same size
            records = [list(part)[::-1] for part in table(CODES)]
            write_snapshot(tmp_path / "other", TABLE, {"train": records})
            changed = (tmp_path / "other" / path.name).read_bytes()
            assert len(changed) == len(content)
        else:
            changed = content[:-5] if how == "short" else content[size + 16 :]
        path.write_bytes(changed)
        match = (
            "it is a different shard"
            if how == "other"
            else r"it has [0-9,]+ bytes, expected 4,998\."
        )
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=rf"{path}, record .*{match}.*{VERIFY}"
        ):
            ids(own.dataset("train", 16, balance={"some": 1}))

    def test_of_a_shard_of_another_snapshot_of_images(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        """All records of which are of one size, so that its index fits it.

        Its checksum is not known, as that of a shard that an earlier build wrote.
        """
        codes = [*np.random.default_rng(0).integers(0, 2, 60).tolist()]
        features = {"image": Image(height=8, width=8), "label": ClassLabel(names=("a", "b"))}
        records = [{"image": bytes([i] * 192), "label": code} for i, code in enumerate(codes)]
        shards = [records[:30], records[30:]]
        reader = write_snapshot(tmp_path, features, {"train": shards}, shard_checksums={})
        put_index(tmp_path, "none", codes)
        assert len(list(reader.dataset("train", 30, balance="uniform"))) == 2
        first, second = sorted(tmp_path.glob("train-*"))
        second.write_bytes(first.read_bytes())
        match = rf"{second}, record \d+ at byte .*, is not of class [ab], as the index"
        with pytest.raises(tf.errors.InvalidArgumentError, match=match):
            list(reader.dataset("train", 30, balance="uniform"))


class TestRefused:
    @pytest.mark.parametrize(
        ("balance", "match"),
        [
            ({"rare": 1, "none": 1}, "'train' has no records of 'none': leave them out"),
            ({"rar": 1}, "there is no class 'rar', only 'common', 'some', 'rare', 'none'"),
            ({4: 1}, "there is no class '4', only 'common', .* 'none'\\.$"),
            ({-1: 1}, "there is no class '-1', only 'common', .* 'none'\\.$"),
            ({1: 1}, "there is no class '1', only .* \\(class 1 is 'some': give its name\\)"),
            ({1.0: 1}, "1.0 must be the name of a class"),
            ({True: 1}, "True must be the name of a class"),
            ({b"rare": 1}, "b'rare' must be the name of a class"),
            ({None: 1}, "None must be the name of a class"),
            ({"rare": -1}, "the weight of 'rare' is -1, expected 0 or more"),
            ({"rare": "1"}, "the weight of 'rare' is '1', expected 0 or more"),
            ({"rare": None}, "the weight of 'rare' is None, expected 0 or more"),
            ({"rare": float("nan")}, "the weight of 'rare' is nan"),
            ({"rare": 0}, "no class has a weight above 0"),
            ("even", 'must be "uniform" or {class: weight}'),
            (["rare"], 'must be "uniform" or {class: weight}'),
            (True, 'must be "uniform" or {class: weight}'),
        ],
    )
    def test_weights(self, reader: types.ModuleType, balance: Any, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            reader.dataset("train", 16, balance=balance)

    def test_a_class_that_is_named_twice(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        features = TABLE | {"label": ClassLabel(names=("0", "1"), optional=True)}
        reader = write_snapshot(tmp_path, features, {"train": table([0, 1])})
        put_index(tmp_path, "none", [0, 1])
        with pytest.raises(ValueError, match="balance names class '1' twice"):
            reader.dataset("train", 2, balance={"1": 1, 1: 2})

    def test_the_stored_order(self, reader: types.ModuleType) -> None:
        with pytest.raises(ValueError, match="balance= always shuffles: leave out shuffle=False"):
            reader.dataset("train", 16, balance="uniform", shuffle=False)

    def test_a_split_without_classes(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        reader = write_snapshot(tmp_path, TABLE, {"train": table([-1] * 5)})
        put_index(tmp_path, "none", [-1] * 5)
        with pytest.raises(ValueError, match="no record of 'train' has a class"):
            reader.dataset("train", 16, balance="uniform")

    def test_gzip_that_memory_cannot_hold(
        self, tmp_path: Path, write_snapshot: WriteSnapshot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reader = write_snapshot(tmp_path, TABLE, {"train": table(CODES)}, compression="gzip")
        put_index(tmp_path, "gzip", CODES)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader.dataset("train", 16, balance="uniform")
        monkeypatch.setattr(os, "sysconf", lambda name: 64)
        with pytest.warns(
            ResourceWarning, match=r"its shards are GZIP: .* but only 4,096 are free"
        ):
            reader.dataset("train", 16, balance="uniform")
