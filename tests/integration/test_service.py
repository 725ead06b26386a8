"""Reading through a tf.data service, whose dispatcher and workers are processes of their own."""

import contextlib
import itertools
import json
import subprocess
import sys
import time
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

import snapshard as ss

from ..pipelines.conftest import part, write_snapshot

# Two processes that load TensorFlow, and a second at the end of each epoch.
pytestmark = pytest.mark.slow

FEATURES = {
    "id": ss.Scalar("int64"),
    "label": ss.ClassLabel(("even", "odd")),
    "words": ss.Sequence(ss.Text()),
}
SIZES = [30 + index % 5 for index in range(16)]
TOTAL = sum(SIZES)
BATCH = 32
STEPS = -(-TOTAL // BATCH)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> types.ModuleType:
    numbers = itertools.count()
    shards = [
        [
            {"id": i, "label": i % 2, "words": [f"{i}".encode()] * (i % 3)}
            for i in itertools.islice(numbers, size)
        ]
        for size in SIZES
    ]
    return write_snapshot(tmp_path_factory.mktemp("served"), FEATURES, {"train": shards})


def start(*arguments: str) -> tuple[Any, str]:
    """A process of ``serve``, and the address that it prints."""
    started = subprocess.Popen(
        [sys.executable, "-m", "snapshard", "serve", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert started.stdout is not None
    return started, json.loads(started.stdout.readline())["address"]


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """``serve`` in a process of its own; gives the address that it prints."""
    started, address = start(*arguments)
    try:
        yield address
        started.terminate()
        assert started.wait(60) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        started.communicate()


@pytest.fixture(scope="module")
def one_worker() -> Iterator[str]:
    """The address of a dispatcher that has one worker, in the same process."""
    with serving("--workers", "1") as address:
        yield address


@pytest.fixture(scope="module")
def two_workers(one_worker: str) -> Iterator[str]:
    """The same one, joined by a worker in another process."""
    with serving("--join", one_worker):
        yield one_worker


def who(batch: Any, seeds: Any) -> Any:
    """Adds the number of the process that makes the batch."""
    process = tf.strings.split(tf.io.read_file("/proc/self/stat"))[0]
    return {**batch, "process": tf.fill(tf.shape(seeds)[:1], process)}


def ids(batches: list[Any]) -> list[int]:
    return [int(one) for batch in batches for one in batch["id"]]


# Tests of one worker stand before those that let another one join.
def test_one_worker_gives_every_record_once(reader: types.ModuleType, one_worker: str) -> None:
    dataset = reader.dataset("train", BATCH, service=one_worker)
    assert len(dataset) == STEPS
    assert sorted(ids(list(dataset))) == list(range(TOTAL))


class TestTwoWorkers:
    def test_share_every_epoch(self, reader: types.ModuleType, two_workers: str) -> None:
        dataset = reader.dataset("train", BATCH, service=two_workers, augment_batch=who)
        assert len(dataset) == STEPS
        passes, processes, deadline = [], set(), time.monotonic() + 120
        while len(passes) < 3 or len(processes) < 2:
            assert time.monotonic() < deadline, "one worker may be first for a while, not so long"
            batches = list(dataset)
            assert [len(batch["id"]) for batch in batches[:-1]] == [BATCH] * (STEPS - 1)
            assert sorted(ids(batches)) == list(range(TOTAL))
            assert all(batch["words"].to_list() == words_of(batch) for batch in batches)
            processes |= {one for batch in batches for one in batch["process"].numpy()}
            passes.append(ids(batches))
        for one, other in itertools.combinations(passes, 2):
            assert set(one[:BATCH]) != set(other[:BATCH]), "another order, other batches"

    def test_many_epochs(self, reader: types.ModuleType, two_workers: str) -> None:
        dataset = reader.dataset("train", BATCH, service=two_workers, epochs=2)
        assert len(dataset) == 2 * STEPS
        found = ids(list(dataset))
        for epoch in (found[:TOTAL], found[TOTAL:]):
            assert sorted(epoch) == list(range(TOTAL))
        endless = reader.dataset("train", BATCH, service=two_workers, epochs=None)
        assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
        assert sorted(ids(list(endless.take(STEPS)))) == list(range(TOTAL))

    def test_static_shapes_for_keras(self, reader: types.ModuleType, two_workers: str) -> None:
        options = {"drop_remainder": True, "as_supervised": True, "columns": ["id"]}
        dataset = reader.dataset("train", BATCH, service=two_workers, **options)
        assert len(dataset) == reader.steps("train", BATCH, drop_remainder=True) == TOTAL // BATCH
        found = []
        for batch_ids, labels in dataset:
            assert batch_ids.shape == labels.shape == (BATCH,)
            assert (batch_ids % 2 == labels).numpy().all()
            found += batch_ids.numpy().tolist()
        assert len(set(found)) == len(found) == TOTAL // BATCH * BATCH
        assert dataset.element_spec[0].shape == (BATCH,)

    def test_stored_order_is_not_promised(self, reader: types.ModuleType, two_workers: str) -> None:
        dataset = reader.dataset("train", BATCH, shuffle=False, service=two_workers)
        assert sorted(ids(list(dataset))) == list(range(TOTAL))

    def test_padded_behind_the_workers(self, reader: types.ModuleType, two_workers: str) -> None:
        """Their batches are cut anew, and padded to the longest of these."""
        for batch in reader.dataset("train", BATCH, service=two_workers, pad=True):
            assert batch["words"].shape == (len(batch["id"]), 2)
            for number, words in zip(batch["id"].numpy(), batch["words"].numpy(), strict=True):
                wanted = [str(number).encode()] * (number % 3)
                assert words.tolist() == wanted + [b""] * (2 - len(wanted))

    def test_each_gives_everything(self, reader: types.ModuleType, two_workers: str) -> None:
        service = {"service": two_workers, "processing_mode": "parallel_epochs"}
        dataset = reader.dataset("train", BATCH, service=service, augment_batch=who)
        assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
        by_process: dict[bytes, list[int]] = {}
        for batch in dataset:
            for process, number in zip(batch["process"].numpy(), batch["id"].numpy(), strict=True):
                by_process.setdefault(process, []).append(int(number))
        assert [sorted(found) for found in by_process.values()] == [list(range(TOTAL))] * 2

    def test_workers_parse_as_many_batches_at_a_time_as_asked(
        self, reader: types.ModuleType, two_workers: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service, works = part(reader, "service"), []
        work_of = service._work
        monkeypatch.setattr(
            service, "_work", lambda *args: works.append(work_of(*args)) or works[-1]
        )
        reader.dataset("train", BATCH, shuffle=False, service=two_workers, parallelism=3)
        (work,) = map(tf.data.experimental.to_variant, works)
        content = tf.raw_ops.DatasetToGraphV2(input_dataset=work).numpy()
        nodes = {node.name: node for node in tf.compat.v1.GraphDef.FromString(content).node}
        (parse,) = (node for node in nodes.values() if node.op.startswith("ParallelMap"))
        assert nodes[parse.input[-1]].attr["value"].tensor.int64_val == [3]

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_two_trainers_share_a_job(
        self, reader: types.ModuleType, two_workers: str, shuffle: bool
    ) -> None:
        """Each gets what the other leaves."""
        service = {"service": two_workers, "job_name": f"shared {shuffle}"}
        datasets = [
            reader.dataset("train", BATCH, shuffle=shuffle, service=service) for _ in range(2)
        ]
        assert datasets[0].cardinality() == tf.data.UNKNOWN_CARDINALITY
        trainers = [iter(dataset) for dataset in datasets]
        shares: list[list[Any]] = [[], []]
        while trainers[0] is not None or trainers[1] is not None:
            for index, trainer in enumerate(trainers):
                batch = next(trainer, None) if trainer is not None else None
                if batch is None:
                    trainers[index] = None  # type: ignore[assignment, unused-ignore]
                else:
                    shares[index].append(batch)
        assert Counter(ids(shares[0] + shares[1])) == Counter(range(TOTAL))

    def test_a_job_by_a_name_has_many_epochs(
        self, reader: types.ModuleType, two_workers: str
    ) -> None:
        service = {"service": two_workers, "job_name": "many"}
        found = ids(list(reader.dataset("train", BATCH, epochs=3, service=service)))
        assert Counter(found) == Counter([*range(TOTAL)] * 3)


def words_of(batch: Any) -> list[list[bytes]]:
    return [[str(number).encode()] * (number % 3) for number in batch["id"].numpy().tolist()]


class TestRefused:
    def test_no_dispatcher(self, reader: types.ModuleType) -> None:
        with pytest.raises(ValueError, match=r"no dispatcher answers .*`snapshard serve`"):
            reader.dataset("train", BATCH, service="grpc://localhost:1")

    def test_an_unknown_argument(self, reader: types.ModuleType, two_workers: str) -> None:
        service = {"service": two_workers, "procesing_mode": "dynamic"}
        with pytest.raises(ValueError, match="procesing_mode"):
            reader.dataset("train", BATCH, service=service)

    @pytest.mark.parametrize(
        "options",
        [
            {"seed": 1},
            {"shard": (0, 2)},
            {"equal_steps": True},
            {"start_step": 3, "seed": 1},
            {"cache": "memory"},
            {"local_copy": "copies"},
            {"balance": "uniform"},
        ],
        ids=str,
    )
    def test_what_a_service_cannot_do(
        self, reader: types.ModuleType, options: dict[str, Any]
    ) -> None:
        with pytest.raises(ValueError, match="cannot be combined"):
            reader.dataset("train", BATCH, service="grpc://localhost:1", **options)
