"""What the options of a snapshot's reader do: which records come, in which order, how often."""

import io
import math
import os
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from snapshard.schemas.features import ClassLabel, Features, Image, Scalar, Text

from .conftest import part

WriteSnapshot = Callable[..., types.ModuleType]

NUMBERED: Features = {
    "label": ClassLabel(names=("even", "odd")),
    "id": Scalar(dtype="int64"),
    "name": Text(),
}
LENGTHS = (40, 37, 41, 38, 40, 44, 39)
TOTAL = sum(LENGTHS)


def numbered(lengths: Sequence[int]) -> list[list[Mapping[str, Any]]]:
    ids = iter(range(sum(lengths)))
    return [
        [{"id": (i := next(ids)), "label": i % 2, "name": f"n{i}".encode()} for _ in range(n)]
        for n in lengths
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("options")


@pytest.fixture(scope="module")
def reader(folder: Path, write_snapshot: WriteSnapshot) -> types.ModuleType:
    return write_snapshot(folder, NUMBERED, {"train": numbered(LENGTHS), "test": numbered([9])})


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, write_snapshot: WriteSnapshot) -> Any:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), np.uint8)
    features = {"image": Image(height=8, width=8), "label": ClassLabel(names=("a", "b"))}
    records = [{"image": one.tobytes(), "label": i % 2} for i, one in enumerate(pixels)]
    folder = tmp_path_factory.mktemp("images")
    return write_snapshot(folder, features, {"train": [records[:15], records[15:]]}), pixels


def ids(dataset: Any) -> list[int]:
    return [int(i) for batch in dataset for i in batch["id"].numpy()]


class TestColumns:
    def test_no_others_are_parsed(self, reader: types.ModuleType) -> None:
        (batch,) = reader.dataset("test", 9, columns=["name"])
        assert set(batch) == {"name"}
        assert batch["name"].numpy().tolist() == [f"n{i}".encode() for i in range(9)]

    def test_the_label_comes_where_it_is_needed(self, reader: types.ModuleType) -> None:
        ((value, label),) = reader.dataset("test", 9, columns=["id"], as_supervised=True)
        assert value.numpy().tolist() == list(range(9))
        assert label.numpy().tolist() == [i % 2 for i in range(9)]

    def test_of_a_layout(self, images: Any) -> None:
        reader, _ = images
        labels = [
            int(i)
            for b in reader.dataset("train", 8, columns=["label"])
            for i in b["label"].numpy()
        ]
        assert len(labels) == 30
        assert sum(labels) == 15

    def test_an_unknown_one(self, reader: types.ModuleType) -> None:
        with pytest.raises(ValueError, match=r"columns=\['nme'\] must be a list of some of id"):
            reader.dataset("test", 9, columns=["nme"])


class TestImages:
    def test_cast_and_scaled(self, images: Any) -> None:
        reader, pixels = images
        found = reader.dataset("train", 30, shuffle=False, scale=1 / 255)
        (batch,) = found
        assert batch["image"].dtype == tf.float32
        np.testing.assert_allclose(batch["image"], pixels / np.float32(255), rtol=1e-6)
        (batch,) = reader.dataset("train", 30, shuffle=False, dtype="float16")
        assert batch["image"].dtype == tf.float16
        np.testing.assert_array_equal(batch["image"], pixels)
        (batch,) = reader.dataset("train", 30, shuffle=False)
        assert batch["image"].dtype == tf.uint8


class TestWorkers:
    @pytest.mark.slow  # many divisions
    @pytest.mark.parametrize(
        ("count", "drop"), [(1, False), (3, True), (4, False), (4, True), (11, False)]
    )
    def test_as_many_steps_for_each(self, reader: types.ModuleType, count: int, drop: bool) -> None:
        parts = [
            reader.dataset(
                "train", 8, shard=(i, count), equal_steps=True, drop_remainder=drop, seed=1
            )
            for i in range(count)
        ]
        (num,) = {int(part.cardinality()) for part in parts}
        found = [list(part) for part in parts]
        assert {len(part) for part in found} == {num}
        together = [i for part in found for i in ids(part)]
        assert len(together) == len(set(together))
        assert TOTAL - len(together) < 8 * count, "less than a batch of each worker is left out"
        options = {"drop_remainder": drop, "shard": (0, count), "equal_steps": True}
        assert reader.steps("train", 8, **options) == num

    def test_steps_are_the_cardinality(self, reader: types.ModuleType) -> None:
        for options in ({}, {"drop_remainder": True}, {"shard": (1, 3)}):
            expected = int(reader.dataset("train", 8, **options).cardinality())
            assert reader.steps("train", 8, **options) == expected

    @pytest.mark.parametrize("name", ["dataset", "steps"])
    def test_an_option_that_is_not_there(self, reader: types.ModuleType, name: str) -> None:
        message = rf"^{name}\(\).* got an unexpected keyword argument 'buffer'"
        with pytest.raises(TypeError, match=message):
            getattr(reader, name)("train", 8, buffer=3)

    def test_an_input_context(self, reader: types.ModuleType) -> None:
        found = []
        for index in range(2):
            context = tf.distribute.InputContext(
                num_input_pipelines=2, input_pipeline_id=index, num_replicas_in_sync=2
            )
            found += ids(reader.dataset("train", 8, input_context=context))
        assert sorted(found) == list(range(TOTAL))


class TestCache:
    def test_in_memory_no_shard_is_read_again(
        self, folder: Path, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        reader = write_snapshot(tmp_path, NUMBERED, {"train": numbered(LENGTHS)})
        dataset = reader.dataset("train", 16, seed=3, cache="memory")
        first = ids(dataset)
        for shard in tmp_path.glob("*.tfrecord"):
            shard.unlink()
        second = ids(dataset)
        assert sorted(first) == sorted(second) == list(range(TOTAL))
        assert first != second, "batches differ in every epoch"

    def test_a_warning_where_it_cannot_fit(
        self, reader: types.ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(part(reader, "facts"), "RECORD_BYTES", 1 << 50)
        with pytest.warns(ResourceWarning, match="cache='memory' needs .* bytes, but .* are free"):
            reader.dataset("test", 3, cache="memory", shuffle=False)

    @pytest.mark.slow
    @pytest.mark.parametrize("times", [1, 3])
    def test_decoding_takes_it_twice(
        self,
        images: Any,
        monkeypatch: pytest.MonkeyPatch,
        recwarn: pytest.WarningsRecorder,
        times: int,
    ) -> None:
        reader, pixels = images
        free = times * (pixels.nbytes + 8 * len(pixels))
        monkeypatch.setattr(part(reader, "cache"), "free_memory", lambda: free)
        reader.dataset("train", 8, cache="decoded")
        told = [one for one in recwarn if "cache='decoded' needs" in str(one.message)]
        assert len(told) == (times == 1)

    def test_what_is_free(self, reader: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        """No more than a container is limited to."""
        free = part(reader, "cache").free_memory
        assert 1 << 20 < free() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limits = {"memory.max": "max", "memory/memory.limit_in_bytes": "77"}

        def opened(path: str) -> io.StringIO:
            return io.StringIO(limits.get(path.removeprefix("/sys/fs/cgroup/"), ""))

        monkeypatch.setitem(free.__globals__, "open", opened)
        assert free() == 77

    @pytest.mark.parametrize("cache", ["memory", "decoded"])
    def test_its_pieces_are_not_traced_one_by_one(
        self,
        reader: types.ModuleType,
        monkeypatch: pytest.MonkeyPatch,
        cache: str,
    ) -> None:
        """Each takes 10 ms: 300 pieces would take 3 s when the dataset is made."""
        plan, num = part(reader, "plan"), 0
        open_records = plan.open_records

        def counted(*piece: Any, **options: Any) -> tf.data.Dataset:
            nonlocal num
            num += 1
            return open_records(*piece, **options)

        monkeypatch.setattr(plan, "open_records", counted)
        reader.dataset("train", 16, cache=cache, seed=1)
        assert 1 <= num <= 2


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["memory", "decoded"])
@pytest.mark.parametrize("seed", [None, 3])
def test_a_piece_that_failed_to_open_is_not_kept_as_an_empty_one(
    tmp_path: Path,
    write_snapshot: WriteSnapshot,
    monkeypatch: pytest.MonkeyPatch,
    cache: str,
    seed: int | None,
) -> None:
    """As happens where an iterator is dropped in mid-epoch: calls that are under way are cancelled.

    What asks a ``flat_map`` again after an error gets its end.
    """
    reader = write_snapshot(tmp_path / "s", NUMBERED, {"train": numbered(LENGTHS)})
    plan, failures = part(reader, "plan"), iter([True] * 3)
    open_records = plan.open_records

    def fails_at_first(path: Any, *piece: Any, **options: Any) -> tf.data.Dataset:
        def check(path: bytes) -> bytes:
            if next(failures, False):
                raise RuntimeError("cancelled")
            return path

        path = tf.numpy_function(check, [path], tf.string, stateful=True)
        return open_records(tf.ensure_shape(path, []), *piece, **options)

    monkeypatch.setattr(plan, "open_records", fails_at_first)
    dataset = reader.dataset("train", 16, cache=cache, seed=seed, epochs=None)
    iterator, num_errors = iter(dataset), 0
    for _ in range(30):
        try:
            next(iterator)
        except tf.errors.OpError:
            num_errors += 1
    assert num_errors
    del iterator
    assert len(list(failures)) < 3, "the rest is not tried: a single piece fails once"
    steps = reader.steps("train", 16, cache=cache, seed=seed)
    assert sorted(ids(dataset.take(steps))) == list(range(TOTAL))
    again = reader.dataset("train", 16, cache=cache, seed=seed)
    assert sorted(ids(again)) == list(range(TOTAL))


class TestDecoded:
    def test_every_epoch_is_a_permutation(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        reader = write_snapshot(tmp_path, NUMBERED, {"train": numbered(LENGTHS)})
        dataset = reader.dataset("train", 16, seed=3, cache="decoded", epochs=2)
        assert int(dataset.cardinality()) == 2 * -(-TOTAL // 16)
        first = ids(dataset)
        for shard in tmp_path.glob("*.tfrecord"):
            shard.unlink()
        second = ids(dataset)
        epochs = [first[:TOTAL], first[TOTAL:], second[:TOTAL], second[TOTAL:]]
        assert all(sorted(epoch) == list(range(TOTAL)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 4
        far = np.abs(np.array(epochs[0]) - np.arange(TOTAL)).mean()
        assert far > 0.25 * TOTAL, "as far as in a full shuffle (a third)"

    @pytest.mark.parametrize("drop", [False, True])
    def test_batches_are_counted(self, reader: types.ModuleType, drop: bool) -> None:
        options = {"cache": "decoded", "drop_remainder": drop}
        dataset = reader.dataset("train", 16, epochs=20, **options)
        sizes = [len(batch["id"]) for batch in dataset]
        assert sizes == 20 * ([16] * 17 if drop else [16] * 17 + [7])
        assert dataset.cardinality() == len(sizes)
        assert dataset.element_spec["id"].shape[0] == (16 if drop else None)
        assert reader.steps("train", 16, **options) == len(sizes) // 20

    def test_one_order_for_a_seed_and_none(self, reader: types.ModuleType) -> None:
        one, other = (ids(reader.dataset("train", 16, seed=3, cache="decoded")) for _ in range(2))
        assert one == other
        stored = ids(reader.dataset("train", 16, shuffle=False, cache="decoded"))
        assert stored == list(range(TOTAL))

    @pytest.mark.slow
    @pytest.mark.parametrize("options", [{}, {"drop_remainder": True}, {"as_supervised": True}])
    def test_values_as_without_it(self, images: Any, options: dict[str, Any]) -> None:
        reader, _ = images
        options = {"shuffle": False, "scale": 0.5, **options}
        plain = reader.dataset("train", 8, **options)
        found = reader.dataset("train", 8, cache="decoded", **options)
        assert found.element_spec == plain.element_spec
        for one, other in zip(found, plain, strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, one, other)

    @pytest.mark.slow
    def test_workers_and_augmentation(self, reader: types.ModuleType) -> None:
        augmented = TestAugment().augmented
        whole = augmented(reader, seed=4)
        parts = [augmented(reader, seed=4, shard=(i, 3), cache="decoded") for i in range(3)]
        assert parts[0] | parts[1] | parts[2] == whole
        options = {"equal_steps": True, "cache": "decoded", "seed": 1}
        sizes = {len(list(reader.dataset("train", 8, shard=(i, 4), **options))) for i in range(4)}
        assert len(sizes) == 1

    def test_an_empty_split(self, tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
        reader = write_snapshot(tmp_path, NUMBERED, {"train": []})
        assert ids(reader.dataset("train", 8, cache="decoded")) == []

    def test_what_makes_no_sense_with_it(self, reader: types.ModuleType) -> None:
        with pytest.raises(ValueError, match="cache= and start_step= cannot be combined"):
            reader.dataset("train", 8, cache="decoded", start_step=1, seed=1)


class TestAugment:
    def augmented(self, reader: types.ModuleType, **options: Any) -> dict[int, list[int]]:
        def augment(example: dict[str, Any], seed: Any) -> dict[str, Any]:
            noise = tf.random.stateless_uniform([], seed, 0, 1 << 30, tf.int32)
            return {"id": example["id"], "noise": noise}

        found: dict[int, list[int]] = {}
        for batch in reader.dataset("train", 16, augment=augment, **options):
            for i, noise in zip(batch["id"].numpy(), batch["noise"].numpy(), strict=True):
                found.setdefault(int(i), []).append(int(noise))
        return found

    @pytest.mark.slow
    def test_by_seed_epoch_and_record(self, reader: types.ModuleType) -> None:
        first = self.augmented(reader, seed=4, epochs=2)
        assert sorted(first) == list(range(TOTAL))
        assert len({noise for noises in first.values() for noise in noises}) > 2 * TOTAL - 5
        assert self.augmented(reader, seed=4, epochs=2) == first
        assert self.augmented(reader, seed=5, epochs=2) != first

    @pytest.mark.slow
    def test_after_the_cache(self, reader: types.ModuleType) -> None:
        first = self.augmented(reader, seed=4, epochs=2)
        assert self.augmented(reader, seed=4, epochs=2, cache="memory") == first

    @pytest.mark.slow
    def test_whoever_reads_a_record_augments_it_alike(self, reader: types.ModuleType) -> None:
        whole = self.augmented(reader, seed=4)
        parts = [self.augmented(reader, seed=4, shard=(i, 3)) for i in range(3)]
        assert parts[0] | parts[1] | parts[2] == whole

    def test_a_batch_at_a_time_by_the_same_seeds(self, reader: types.ModuleType) -> None:
        def augment_batch(batch: dict[str, Any], seeds: Any) -> dict[str, Any]:
            def one(seed: Any) -> Any:
                return tf.random.stateless_uniform([], seed, 0, 1 << 30, tf.int32)

            return {"id": batch["id"], "noise": tf.map_fn(one, seeds, fn_output_signature=tf.int32)}

        found = {}
        for batch in reader.dataset("train", 16, augment_batch=augment_batch, seed=4):
            found |= dict(zip(batch["id"].numpy().tolist(), batch["noise"].numpy(), strict=True))
        expected = {i: noise for i, (noise,) in self.augmented(reader, seed=4).items()}
        assert found == expected

    def test_pairs_for_keras(self, images: Any) -> None:
        reader, _ = images

        def augment(example: Any, seed: Any) -> Any:
            image, label = example
            return tf.image.stateless_random_flip_left_right(image, seed), label

        (batch, labels) = next(
            iter(reader.dataset("train", 8, as_supervised=True, augment=augment, seed=1))
        )
        assert batch.shape == (8, 8, 8, 3)
        assert labels.shape == (8,)


class TestGoingOn:
    @settings(
        max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @pytest.mark.slow  # many epochs of many divisions
    @given(
        stages=st.lists(
            st.tuples(st.integers(0, 6), st.integers(3, 11), st.integers(1, 4)),
            min_size=1,
            max_size=3,
        ),
        seed=st.integers(0, 9),
        even=st.booleans(),
        buffer=st.sampled_from([0, 20, True]),
    )
    def test_before_and_after_are_one_epoch(
        self,
        reader: types.ModuleType,
        stages: list[tuple[int, int, int]],
        seed: int,
        even: bool,
        buffer: Any,
    ) -> None:
        # Within one epoch: behind its end, going on begins the next pass.
        read = sum(math.prod(stage) for stage in stages)
        assume(read + max(size * workers for _, size, workers in stages) < TOTAL)
        options = {"seed": seed, "shuffle": buffer}
        before: list[int] = []
        for number, (steps, size, workers) in enumerate(stages):
            for worker in range(workers):
                part = reader.dataset(
                    "train",
                    size,
                    shard=(worker, workers),
                    start_step=stages[:number],
                    equal_steps=even,
                    **options,
                ).take(steps)
                before += ids(part)
        assert len(before) == len(set(before)), "nothing twice so far"
        after: list[int] = []
        _, size, workers = stages[-1]
        for worker in range(workers):
            part = reader.dataset(
                "train", size, shard=(worker, workers), start_step=stages, **options
            )
            after += ids(part)
        if len(before) < TOTAL - size * workers:
            assert sorted(before + after) == list(range(TOTAL))

    @pytest.mark.slow
    def test_a_number_counts_over_epochs(self, reader: types.ModuleType) -> None:
        steps = reader.steps("train", 16)
        whole = [b["id"].numpy().tolist() for b in reader.dataset("train", 16, seed=2, epochs=3)]
        for start in (5, steps, steps + 3):
            rest = reader.dataset("train", 16, seed=2, epochs=3, start_step=start)
            found = [b["id"].numpy().tolist() for b in rest]
            epoch, step = divmod(start, steps)
            expected = sorted(i for b in whole[start : (epoch + 1) * steps] for i in b)
            assert sorted(i for b in found[: steps - step] for i in b) == expected
            assert found[steps - step :] == whole[(epoch + 1) * steps :], "as if never broken off"

    @pytest.mark.slow
    def test_what_is_left_may_give_no_batch(self, reader: types.ModuleType) -> None:
        options = {"seed": 2, "epochs": 2, "drop_remainder": True}
        rest = reader.dataset("train", 64, start_step=[(16, 16, 1)], **options)
        second_epoch = [batch["id"].numpy().tolist() for batch in rest]
        assert len(second_epoch) == TOTAL // 64, "23 records of the first make no batch of 64"
        going_on = reader.dataset("train", 64, start_step=[(16, 16, 1), (1, 64, 1)], **options)
        found = ids(going_on)
        assert len(found) == (TOTAL // 64 - 1) * 64
        assert not set(found) & set(second_epoch[0])

    @pytest.mark.slow
    def test_passes_of_one_epoch_as_fit_makes_them(self, reader: types.ModuleType) -> None:
        steps = reader.steps("train", 16)
        dataset = reader.dataset("train", 16, seed=2)
        passes = [ids(dataset) for _ in range(3)]
        going_on = reader.dataset("train", 16, seed=2, start_step=steps + 4)
        first, second = ids(going_on), ids(going_on)
        assert sorted(first) == sorted(passes[1][4 * 16 :])
        assert second == passes[2]

    @pytest.mark.slow
    def test_forever(self, reader: types.ModuleType) -> None:
        steps = reader.steps("train", 16)
        dataset = reader.dataset("train", 16, seed=2, epochs=None, start_step=2 * steps + 1)
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        whole = ids(reader.dataset("train", 16, seed=2, epochs=3))[2 * TOTAL :]
        assert sorted(ids(dataset.take(steps - 1))) == sorted(whole[16:])

    def test_shards_that_are_done_are_not_opened(
        self, tmp_path: Path, write_snapshot: WriteSnapshot
    ) -> None:
        reader = write_snapshot(tmp_path, NUMBERED, {"train": numbered(LENGTHS)})
        (tmp_path / "train-00000-of-00007.tfrecord").unlink()
        rest = reader.dataset("train", 8, shuffle=False, start_step=5)
        assert ids(rest) == list(range(40, TOTAL))

    def test_it_needs_the_seed(self, reader: types.ModuleType) -> None:
        with pytest.raises(ValueError, match="pass the same seed= as before"):
            reader.dataset("train", 8, start_step=3)


class TestTheEnd:
    def test_options_of_the_user_win(self, reader: types.ModuleType) -> None:
        options = tf.data.Options()
        options.deterministic = True
        options.threading.private_threadpool_size = 1
        dataset = reader.dataset("train", 16, options=options)
        assert dataset.options().deterministic
        assert dataset.options().threading.private_threadpool_size == 1
        off = tf.data.experimental.AutoShardPolicy.OFF
        assert dataset.options().experimental_distribute.auto_shard_policy == off
        assert not reader.dataset("train", 16).options().deterministic
        assert sorted(ids(dataset)) == list(range(TOTAL))

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"cache": "memory", "local_copy": "x"}, "cache= and local_copy= cannot be combined"),
            ({"cache": "memory", "balance": "uniform"}, "cache= and balance= cannot be combined"),
            (
                {"augment": id, "augment_batch": id},
                "augment= and augment_batch= cannot be combined",
            ),
            (
                {"shard": (0, 2), "input_context": tf.distribute.InputContext()},
                "shard= and input_context= cannot be combined",
            ),
            (
                {"service": "grpc://x:1", "seed": 0},
                "service= and seed= cannot be combined .not deterministic",
            ),
            ({"service": "grpc://x:1", "shard": (0, 2)}, "service= and shard= cannot be combined"),
            (
                {"service": "grpc://x:1", "cache": "memory"},
                "service= and cache= cannot be combined",
            ),
            (
                {"service": "grpc://x:1", "start_step": 1},
                "service= and start_step= cannot be combined",
            ),
        ],
    )
    def test_what_makes_no_sense_together(
        self, reader: types.ModuleType, options: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ValueError, match=words.replace(" .", " .*")):
            reader.dataset("train", 16, **options)


def test_the_order_may_be_left_open(reader: types.ModuleType) -> None:
    for deterministic in (True, False):
        dataset = reader.dataset("train", 8, seed=1, deterministic=deterministic)
        assert dataset.options().deterministic == deterministic
        assert sorted(ids(dataset)) == list(range(TOTAL))


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [True, False])
def test_who_is_late_is_waited_for_or_overtaken(
    tmp_path: Path,
    write_snapshot: WriteSnapshot,
    monkeypatch: pytest.MonkeyPatch,
    deterministic: bool,
) -> None:
    """The first record of the first stream is late: after 121 others, if they may overtake it."""
    total = 24 * 12  # streams of one length
    reader = write_snapshot(tmp_path, NUMBERED, {"train": numbered([40] * 7 + [8])})
    plan = part(reader, "plan")
    read, gate = plan.open_records, threading.Event()
    overtaken: list[bool] = []
    found: list[int] = []

    def wait_for_others(is_late: Any) -> list[Any]:
        if is_late:
            overtaken.append(gate.wait(1 if deterministic else 100))
        return []

    def late(path: Any, *piece: Any, **options: Any) -> tf.data.Dataset:
        place = piece[3]

        def wait(number: Any, record: Any) -> Any:
            tf.numpy_function(wait_for_others, [place + number == 0], [])
            return record

        return read(path, *piece, **options).enumerate().map(wait)

    monkeypatch.setattr(plan, "open_records", late)
    for batch in reader.dataset("train", 8, shuffle=16, deterministic=deterministic):
        found += [int(i) for i in batch["id"].numpy()]
        if len(found) > 120:
            gate.set()
    assert overtaken == [not deterministic]
    assert sorted(found) == list(range(total))
    assert found.index(0) < 40 if deterministic else found.index(0) > 120
