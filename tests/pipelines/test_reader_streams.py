"""The order of a seeded epoch: the same for any number of workers, and to be continued anywhere."""

import hashlib
import itertools
import json
import logging
import re
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapshard.schemas.features import ClassLabel, Features, Scalar
from snapshard.transforms.examples.index import index_bytes

from .conftest import load, part

WriteSnapshot = Callable[..., types.ModuleType]

NUMBERED: Features = {"label": ClassLabel(names=("even", "odd")), "id": Scalar(dtype="int64")}
LENGTHS = (700, 650, 720, 610)  # several blocks a stream, as the fixture sets their size; a tail
TOTAL = sum(LENGTHS)
WORKERS = (1, 2, 3, 4, 8)


def numbered(lengths: Sequence[int]) -> list[list[Mapping[str, int]]]:
    ids = iter(range(sum(lengths)))
    return [[{"id": (i := next(ids)), "label": i % 2} for _ in range(n)] for n in lengths]


def put_index(folder: Path) -> None:
    """The index of each shard, as a build writes it."""
    (folder / "index").mkdir(exist_ok=True)
    for shard in folder.glob("*.tfrecord"):
        sizes = [len(one) + 16 for one in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator()]
        ends = list(itertools.accumulate(sizes, initial=0))
        pair = (np.array(part, np.uint64) for part in (ends[:-1], sizes))
        (folder / "index" / f"{shard.name}.idx").write_bytes(index_bytes(*pair))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


@pytest.fixture(scope="module")
def reader(folder: Path, write_snapshot: WriteSnapshot) -> types.ModuleType:
    write_snapshot(folder, NUMBERED, {"train": numbered(LENGTHS)})
    put_index(folder)
    return short_pieces(folder)


def short_pieces(folder: Path) -> types.ModuleType:
    """A snapshot's reader whose streams of 111 records have three pieces and small windows."""
    order = folder / "reader" / "order.py"
    text = order.read_text()
    for old, new in (
        ("_PIECE = 640", "_PIECE = 32"),
        ("_SHORT = 1_280", "_SHORT = 0"),
        ("_MAX_WINDOW = 256", "_MAX_WINDOW = 12"),
        ("_UNDEALT = 65_536", "_UNDEALT = 0"),
    ):
        assert text.count(f"\n{old}\n") == 1
        text = text.replace(f"\n{old}\n", f"\n{new}\n")
    order.write_text(text)
    return load(folder)


def ids(dataset: Any) -> list[list[int]]:
    return [batch["id"].numpy().tolist() for batch in dataset]


def together(reader: types.ModuleType, batch: int, workers: int, **options: Any) -> list[list[int]]:
    """What all workers read in each step, sorted."""
    parts = [
        ids(reader.dataset("train", batch // workers, shard=(i, workers), **options))
        for i in range(workers)
    ]
    steps = itertools.zip_longest(*parts, fillvalue=())
    return [sorted(itertools.chain(*step)) for step in steps]


# The arithmetic


@pytest.fixture(scope="module")
def arithmetic(reader: types.ModuleType) -> Any:
    """``Dealing`` of a reader."""
    return part(reader, "order").Dealing


def dealt(dealing: Any, worker: int, delivered: int) -> list[int]:
    """A worker's records, in the order of reading: their numbers in stored order."""
    streams = range(worker, dealing.num_streams, dealing.workers)
    ahead, begun = dealing.num_delivered(delivered)
    places = {one: dealing.position(one) * dealing.length for one in streams}
    found: list[int] = []
    for first in range(ahead, dealing.length, dealing.chunk):
        for one in streams:
            found += range(places[one] + first, places[one] + first + dealing.chunk)
    found = found[dealing.chunk * len(range(worker, begun, dealing.workers)) :]
    main = dealing.total - dealing.tail
    tail = range(main, dealing.total)[worker :: dealing.workers]
    return found + [one for one in tail if one - main >= delivered - main]


totals = st.integers(0, 3_000) | st.integers(3_140_000, 3_150_000)


class TestDealing:
    @given(total=totals, batch=st.integers(1, 300), workers=st.integers(1, 60), same=st.booleans())
    def test_every_record_is_in_one_place(
        self, arithmetic: Any, total: int, batch: int, workers: int, same: bool
    ) -> None:
        dealing = arithmetic(total, batch, workers, same_for_all=same)
        num = dealing.num_streams
        assert num % workers == 0
        assert sorted(map(dealing.position, range(num))) == list(range(num))
        assert 0 <= dealing.tail < num * dealing.chunk
        assert dealing.length % dealing.chunk == 0
        assert batch % dealing.chunk == 0, "a chunk divides the batch of each worker"
        nums = [dealing.num_records(i) for i in range(workers)]
        assert sum(nums) == total
        assert max(nums) - min(nums) <= 1
        assert nums[-1] == min(nums)

    @pytest.mark.parametrize(("record_bytes", "limit"), [(100, 65_536), (2_000, 33_554)])
    def test_without_a_seed_what_is_soon_read_is_not_dealt(
        self, tmp_path: Path, write_snapshot: WriteSnapshot, record_bytes: int, limit: int
    ) -> None:
        reader = write_snapshot(tmp_path, NUMBERED, {"train": numbered([1])})
        part(reader, "order").facts.RECORD_BYTES = record_bytes
        for total, is_dealt in ((limit, False), (limit + 1, True)):
            dealing = part(reader, "order").Dealing(
                total, 256, 1, same_for_all=False, is_one_by_one=True, is_undealt=True
            )
            assert (dealing.length > 0) == is_dealt
            assert dealing.is_small == (not is_dealt)
            assert dealing.num_streams * dealing.length + dealing.tail == total

    def test_workers_read_neighbouring_streams(self, arithmetic: Any) -> None:
        for count in (2, 4, 8):
            dealing = arithmetic(2_400, 8, count, same_for_all=True)
            for index in range(count):
                streams = range(index, dealing.num_streams, count)
                found = sorted(dealing.position(stream) for stream in streams)
                assert found == list(range(found[0], found[0] + dealing.num_streams // count))

    @given(data=st.data(), total=st.integers(0, 3_000), size=st.integers(1, 9))
    @settings(deadline=None)
    def test_steps_of_all_workers_are_alike(
        self, arithmetic: Any, data: st.DataObject, total: int, size: int
    ) -> None:
        batch = 24 * size
        one = arithmetic(total, batch, 1, same_for_all=True)
        whole = dealt(one, 0, 0)
        assert sorted(whole) == list(range(total))
        count = data.draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]))
        steps = data.draw(st.integers(0, max(0, total // batch)))
        size = batch // count
        dealing = arithmetic(total, size, count, same_for_all=True)
        assert (dealing.chunk, dealing.length) == (one.chunk, one.length)
        parts = [dealt(dealing, i, 0) for i in range(count)]
        rests = [dealt(dealing, i, steps * batch) for i in range(count)]
        for step in range(-(-total // batch)):
            expected = sorted(whole[step * batch : (step + 1) * batch])
            found = [one for part in parts for one in part[step * size : (step + 1) * size]]
            assert sorted(found) == expected
            if step >= steps:
                at = (step - steps) * size
                assert sorted(i for rest in rests for i in rest[at : at + size]) == expected


# What is read


class TestWorkers:
    @pytest.mark.slow
    def test_every_step_has_the_same_records(self, reader: types.ModuleType) -> None:
        whole = together(reader, 96, 1, seed=5)
        assert sorted(itertools.chain(*whole)) == list(range(TOTAL))
        assert together(reader, 96, 2, seed=5) == whole
        assert together(reader, 96, 3, seed=5, start_step=7) == whole[7:]

    @pytest.mark.slow  # datasets for many workers
    @given(
        batch=st.sampled_from([24, 48, 96, 120, 192, 1_200]),
        seed=st.integers(0, 2**40),
        shuffle=st.sampled_from([True, 300, 24, 3_000]),
        drop=st.booleans(),
        even=st.booleans(),
        data=st.data(),
    )
    @settings(
        max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    def test_for_any_numbers(
        self,
        reader: types.ModuleType,
        batch: int,
        seed: int,
        shuffle: Any,
        drop: bool,
        even: bool,
        data: st.DataObject,
    ) -> None:
        options = {"seed": seed, "shuffle": shuffle}
        whole = together(reader, batch, 1, **options)
        assert sorted(itertools.chain(*whole)) == list(range(TOTAL))
        options |= {"drop_remainder": drop, "equal_steps": even}
        full = TOTAL // batch
        for workers in data.draw(st.permutations(WORKERS))[:2]:
            found = together(reader, batch, workers, **options)
            assert found[:full] == whole[:full]
        before, after = (data.draw(st.sampled_from(WORKERS)) for _ in range(2))
        step = data.draw(st.integers(1, max(1, full - 1)))
        stages = [(step, batch // before, before)]
        found = together(reader, batch, after, start_step=stages, **options)
        assert found[: full - step] == whole[step:full]

    @pytest.mark.slow  # three epochs, two workers
    def test_epochs_differ_and_go_on(self, reader: types.ModuleType) -> None:
        steps = -(-TOTAL // 96)
        whole = together(reader, 96, 1, seed=2, epochs=3)
        first, second, third = (whole[i * steps : (i + 1) * steps] for i in range(3))
        assert first != second != third != first
        assert together(reader, 96, 2, seed=2, epochs=3, start_step=steps + 5) == whole[steps + 5 :]

    @pytest.mark.slow  # several datasets
    def test_exactly_the_same_batches_for_the_same_workers(self, reader: types.ModuleType) -> None:
        whole = ids(reader.dataset("train", 64, seed=3))
        for start in (1, 17, TOTAL // 64):
            assert ids(reader.dataset("train", 64, seed=3, start_step=start)) == whole[start:]

    @pytest.mark.slow  # two or three workers
    def test_after_a_change_of_the_batch_of_all(self, reader: types.ModuleType) -> None:
        whole = together(reader, 96, 1, seed=4)
        before = sorted(itertools.chain(*whole[:9]))
        for stages, workers in (([(9, 48, 2)], 3), ([(5, 96, 1), (4, 32, 3)], 2)):
            rest = together(reader, 64 * workers, workers, seed=4, start_step=stages)
            assert sorted([*before, *itertools.chain(*rest)]) == list(range(TOTAL))

    @pytest.mark.slow  # five workers
    def test_another_number_has_an_order_of_its_own(self, reader: types.ModuleType) -> None:
        found = together(reader, 100, 5, seed=4)
        assert sorted(itertools.chain(*found)) == list(range(TOTAL))


class TestReading:
    @pytest.mark.slow  # several datasets
    def test_without_an_index_the_order_is_the_same(
        self, reader: types.ModuleType, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        write_snapshot(tmp_path, NUMBERED, {"train": numbered(LENGTHS)})
        other = short_pieces(tmp_path)
        assert ids(other.dataset("train", 96, seed=6)) == ids(reader.dataset("train", 96, seed=6))

    @pytest.mark.slow  # hundreds of ranges
    def test_many_small_shards(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        lengths = [3, 0, 5, 1, 2] * 15
        reader = write_snapshot(tmp_path, NUMBERED, {"train": numbered(lengths)})
        for indexed in (False, True):
            if indexed:
                put_index(tmp_path)
            found = ids(reader.dataset("train", 64, seed=6))
            assert sorted(itertools.chain(*found)) == list(range(sum(lengths)))

    def test_a_shard_that_lost_records_raises(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        reader = write_snapshot(tmp_path, NUMBERED, {"train": numbered(LENGTHS)})
        put_index(tmp_path)
        shard = tmp_path / "train-00001-of-00004.tfrecord"
        (*_, last) = tf.data.TFRecordDataset(str(shard)).as_numpy_iterator()
        shard.write_bytes(shard.read_bytes()[: -len(last) - 16])
        with pytest.raises(ValueError, match=rf"{shard.name} has .* bytes, expected .* verify"):
            reader.dataset("train", 64, seed=6, epochs=2)

    @pytest.mark.parametrize(
        ("options", "num"), [({}, 2), ({"shuffle": False}, 2), ({"seed": 1}, 3)]
    )
    def test_a_small_split_has_few_functions(
        self,
        tmp_path: Path,
        write_snapshot: WriteSnapshot,
        options: dict[str, Any],
        num: int,
    ) -> None:
        """Every iterator instantiates them: for a small split nothing takes longer."""
        reader = write_snapshot(tmp_path, NUMBERED, {"train": numbered([100])})
        put_index(tmp_path)

        @tf.function(autograph=False)
        def built() -> Any:
            return tf.data.experimental.to_variant(reader.dataset("train", 32, **options))

        graph = built.get_concrete_function().graph.as_graph_def()
        assert len(graph.library.function) == num
        read = ids(reader.dataset("train", 32, epochs=2, **options))
        for epoch in (read[:4], read[4:]):
            assert sorted(itertools.chain(*epoch)) == [*range(100)]
        assert options == {"shuffle": False} or read[:4] != read[4:]

    @pytest.mark.slow  # several workers
    def test_a_cache(self, reader: types.ModuleType) -> None:
        options = {"seed": 1, "epochs": 2, "cache": "memory"}
        found = together(reader, 96, 2, **options)
        assert sorted(itertools.chain(*found)) == sorted([*range(TOTAL)] * 2)
        assert together(reader, 96, 1, **options) == found

    @pytest.mark.slow  # copies come by threads
    def test_copies_give_the_order_of_a_cache(
        self, reader: types.ModuleType, folder: Path, tmp_path: Path
    ) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        for shard in manifest["splits"]["train"]["shards"]:
            content = (folder / shard["file"]).read_bytes()
            shard["sha256"] = hashlib.sha256(content).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(manifest))
        kept = ids(reader.dataset("train", 96, seed=1, cache="memory"))
        found = ids(reader.dataset("train", 96, seed=1, local_copy=str(tmp_path)))
        assert found == kept

    @pytest.mark.slow
    def test_some_features(self, reader: types.ModuleType) -> None:
        for options in ({}, {"shard": (0, 1), "equal_steps": True}):
            dataset = reader.dataset("train", np.int64(96), seed=1, columns=["id"], **options)
            assert set(dataset.element_spec) == {"id"}

    @pytest.mark.slow
    def test_an_iterator_is_saved_and_goes_on(
        self, reader: types.ModuleType, tmp_path: Path
    ) -> None:
        dataset = reader.dataset("train", 96, seed=1)
        iterator = iter(dataset)
        for _ in range(5):
            next(iterator)
        path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "saved"))
        rest = [batch["id"].numpy().tolist() for batch in iterator]
        again = iter(dataset)
        tf.train.Checkpoint(iterator=again).restore(path)
        assert [batch["id"].numpy().tolist() for batch in again] == rest

    @pytest.mark.slow
    def test_what_is_passed_over_is_told(
        self, reader: types.ModuleType, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Of the same workers what was read of begun blocks; of others, what lies between."""
        before = reader.dataset("train", 96, seed=1).take(4)
        done = {int(i) for batch in before for i in batch["id"].numpy()}
        left = [i for i in range(TOTAL // 5) if i not in done]
        between = sum(left[0] < i < left[-1] for i in done)
        assert 0 < between < len(done)
        with caplog.at_level(logging.INFO):
            reader.dataset("train", 96, seed=1, start_step=4)
            reader.dataset("train", 96, seed=1, start_step=[(4, 96, 1)], shard=(0, 5))
        size = part(reader, "facts").RECORD_BYTES
        found = []
        for record in caplog.records:
            text = record.getMessage()
            assert text.startswith(f"384 of {TOTAL} records are done: ")
            (again, num_bytes) = re.findall(r"(\d+) records \(about (\d+) bytes\) in them", text)[0]
            assert int(num_bytes) == int(again) * size
            found.append(int(again))
        same, other = found
        assert 0 < same <= 384, "no piece that is done is opened"
        assert other == between

    @pytest.mark.slow  # another process loads TensorFlow
    def test_another_process_reads_the_same_order(
        self, reader: types.ModuleType, folder: Path
    ) -> None:
        program = (
            "import json, sys\n"
            f"sys.path.insert(0, {str(folder)!r})\n"
            "import reader, tensorflow as tf\n"
            "tf.random.set_seed(77)\n"
            "data = [reader.dataset('train', 32, seed=9, shard=(i, 3)) for i in range(3)]\n"
            "print(json.dumps([[b['id'].numpy().tolist() for b in one] for one in data]))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        parts = json.loads(done.stdout.splitlines()[-1])
        steps = itertools.zip_longest(*parts, fillvalue=[])
        found = [sorted(itertools.chain(*step)) for step in steps]
        assert found == together(reader, 96, 1, seed=9)
