"""A tf.data service that is lost: the trainer gets an error, never waits forever, never skips.

Dispatcher, worker and trainer are processes of their own, which are killed or stopped in mid-epoch.
"""

import contextlib
import dataclasses
import json
import signal
import time
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.runners.job_server import free_port

from ..pipelines.conftest import write_snapshot
from ..preloaded import Preloaded, Process

# Three or four processes that use TensorFlow, and wait for each other.
pytestmark = pytest.mark.slow

SHARDS, SIZE, BATCH = 16, 503, 8
TOTAL = SHARDS * SIZE
STEPS = TOTAL // BATCH
LOST_S = 4
"""How long a trainer of these tests waits for what is silent."""
ANSWER_S = 5
"""How long it waits for one answer."""
ENDS_S = 60
"""How long it may take then to look, raise and end, on a busy machine."""

TRAINER = """
import importlib, json, sys, time
import tensorflow as tf

folder, address, way, waits, at, num_workers, slow_s, service, epochs = json.loads(sys.argv[1])
sys.path.insert(0, folder)
import reader

vars(importlib.import_module("reader.relay")).update(waits)
ids, seen, error = [], set(), None

def who(batch, seeds):
    process = tf.strings.split(tf.io.read_file("/proc/self/stat"))[0]
    return {**batch, "process": tf.fill(tf.shape(seeds)[:1], process)}

def dataset(**options):
    # A small buffer, or the first worker would read everything at once.
    options |= {"shuffle": 64, "augment_batch": who}
    # Without AutoGraph, which takes 3 s of the processor for a new process.
    make = tf.autograph.experimental.do_not_convert(reader.dataset)
    return make("train", 8, service={"service": address, **service}, **options)

is_paused = False

def pause_at(step):
    global is_paused
    if is_paused:
        time.sleep(slow_s)
    elif step >= at and len(seen) >= num_workers:
        is_paused = True
        print("paused", flush=True)
        sys.stdin.readline()
    elif step >= at:
        time.sleep(0.02)  # until each worker has given something

def loop():
    batches = dataset(epochs=epochs)
    if at == 0:
        pause_at(0)
    for step, batch in enumerate(batches, 1):
        ids.extend(batch["id"].numpy().tolist())
        if step >= at:
            seen.update(batch["process"].numpy().tolist())
        pause_at(step)

def fit():
    class Pause(tf.keras.callbacks.Callback):
        step = 0
        def on_train_batch_end(self, batch, logs=None):
            self.step += 1
            pause_at(self.step)
        def on_epoch_begin(self, epoch, logs=None):
            seen.clear()
        def on_epoch_end(self, epoch, logs=None):
            ids.append(self.step)

    def see(processes):
        seen.update(processes.tolist())

    def as_pair(batch):
        tf.numpy_function(see, [batch["process"]], [])
        return tf.cast(batch["id"], tf.float32)[:, None], batch["id"]

    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(dataset().map(as_pair), epochs=epochs, verbose=0, callbacks=[Pause()])

try:
    {"loop": loop, "fit": fit}[way]()
except Exception as failed:
    error = f"{type(failed).__name__}: {failed}"
print(json.dumps([ids, error]), flush=True)
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> types.ModuleType:
    shards = [[{"id": SIZE * i + j} for j in range(SIZE)] for i in range(SHARDS)]
    folder = tmp_path_factory.mktemp("lost")
    return write_snapshot(folder, {"id": ss.Scalar("int64")}, {"train": shards}, label=None)


class Started(contextlib.ExitStack):
    """Ends all processes of a test."""

    def __init__(self, preloaded: Preloaded) -> None:
        super().__init__()
        self.preloaded = preloaded


@pytest.fixture(scope="module")
def preloaded() -> Iterator[Preloaded]:
    with Preloaded() as made:
        yield made


@pytest.fixture
def started(preloaded: Preloaded) -> Iterator[Started]:
    with Started(preloaded) as stack:
        yield stack


def run(stack: Started, *command: Any) -> Process:
    process = stack.preloaded.start(*command)

    def end() -> None:
        process.kill()  # also what is stopped
        process.communicate()

    stack.callback(end)
    return process


@dataclasses.dataclass
class Server:
    """A process of ``serve``."""

    process: Process
    address: str
    ports: list[int]


def serve(stack: Started, reader: types.ModuleType, *arguments: Any) -> Server:
    process = run(stack, Path(str(reader.__file__)).parent, "serve", "--json", *map(str, arguments))
    facts = json.loads(process.stdout.readline())
    return Server(process, facts["address"], facts["ports"])


class Trainer:
    """A process that reads through a service, and waits once until it is told to go on."""

    def __init__(
        self,
        stack: Started,
        reader: types.ModuleType,
        address: str,
        way: str = "loop",
        *,
        at: int,
        epochs: int,
        workers: int = 2,
        lost_s: float = LOST_S,
        slow_s: float = 0,
        service: dict[str, str] | None = None,
    ) -> None:
        """Starts it.

        Args:
            stack: Ends it.
            reader: Of the snapshot.
            address: Of the dispatcher.
            way: "loop" or "fit".
            at: After how many steps it waits, once it has seen ``workers`` processes; 0 is before
                the first one.
            epochs: How many it reads.
            workers: Processes that must have given it something in this epoch.
            lost_s: How long it bears silence.
            slow_s: How long each step takes afterwards.
            service: More arguments of ``distribute``.
        """
        folder = str(Path(str(reader.__file__)).parent.parent)
        workers = workers if at else 0
        waits = {"_LOST_S": lost_s, "_LOOK_S": 0.5, "_ANSWER_S": ANSWER_S}
        arguments = [folder, address, way, waits, at, workers, slow_s, service or {}, epochs]
        self.process = run(stack, "-c", TRAINER, json.dumps(arguments))
        assert self.process.stdout.readline() == "paused\n"

    def go_on(self, timeout: float = LOST_S + ENDS_S) -> tuple[list[int], str | None]:
        """(what it read, its error); the process must end, too."""
        printed, _ = self.process.communicate("\n", timeout=timeout)
        assert self.process.returncode == 0
        ids, error = json.loads(printed)
        return ids, error


def assert_none_twice(ids: list[int], epochs: int = 1) -> None:
    assert all(len(set(epoch)) == len(epoch) for epoch in cut(ids))
    assert len(ids) < epochs * TOTAL


def cut(ids: list[int]) -> list[list[int]]:
    return [ids[start : start + TOTAL] for start in range(0, len(ids), TOTAL)]


class TestLostWorker:
    """Killed it refuses, stopped it is silent: each in some of the places of a loop."""

    @pytest.mark.parametrize(
        ("at", "ending"),
        [
            pytest.param(20, signal.SIGKILL, id="epoch 1-killed"),
            pytest.param(20, signal.SIGSTOP, id="epoch 1-stopped"),
            pytest.param(STEPS + 20, signal.SIGSTOP, id="epoch 2-stopped"),
            pytest.param(0, signal.SIGSTOP, id="before-stopped"),
        ],
    )
    def test_ends_a_loop(
        self,
        reader: types.ModuleType,
        started: Started,
        ending: signal.Signals,
        at: int,
    ) -> None:
        first = serve(started, reader)
        second = serve(started, reader, "--join", first.address)
        slow_s = 0.0 if at else 0.02  # or the others may give all of an epoch meanwhile
        trainer = Trainer(started, reader, first.address, epochs=3, at=at, slow_s=slow_s)
        second.process.send_signal(ending)
        ids, error = trainer.go_on()
        assert error is not None
        assert f"the worker localhost:{second.ports[0]} does not answer" in error
        assert f"serve --join {first.address} --port {second.ports[0]}`" in error
        assert_none_twice(ids, epochs=3)

    def test_ends_fit(self, reader: types.ModuleType, started: Started) -> None:
        first = serve(started, reader)
        second = serve(started, reader, "--join", first.address)
        trainer = Trainer(started, reader, first.address, "fit", epochs=3, at=STEPS + 20)
        second.process.kill()
        epochs, error = trainer.go_on()
        assert error is not None
        assert f"the worker localhost:{second.ports[0]} does not answer" in error
        assert epochs == [STEPS], "the first epoch was complete, the second one did not end"


class TestRestartedWorker:
    """What it had read is lost, and the records that it had not read come."""

    def test_is_an_error_at_the_end_of_the_epoch(
        self, reader: types.ModuleType, started: Started
    ) -> None:
        first = serve(started, reader)
        second = serve(started, reader, "--join", first.address)
        trainer = Trainer(started, reader, first.address, epochs=1, at=20, lost_s=300)
        second.process.kill()
        second.process.wait()
        serve(started, reader, "--join", first.address, "--port", second.ports[0])
        ids, error = trainer.go_on(timeout=120)
        assert error is not None
        assert "records of this epoch are lost with a worker that was restarted" in error
        assert_none_twice(ids)

    def test_is_an_error_at_once_where_nobody_counts(
        self, reader: types.ModuleType, started: Started
    ) -> None:
        first = serve(started, reader)
        second = serve(started, reader, "--join", first.address)
        service = {"processing_mode": "parallel_epochs"}
        trainer = Trainer(
            started, reader, first.address, epochs=1, at=20, lost_s=300, service=service
        )
        second.process.kill()
        ids, error = trainer.go_on(timeout=120)
        assert error is not None
        assert f"the worker localhost:{second.ports[0]} does not answer" in error
        assert len(ids) < 2 * TOTAL

    def test_that_was_stopped_for_a_while_loses_nothing(
        self, reader: types.ModuleType, started: Started
    ) -> None:
        first = serve(started, reader)
        second = serve(started, reader, "--join", first.address)
        trainer = Trainer(started, reader, first.address, epochs=2, at=20, lost_s=300)
        second.process.send_signal(signal.SIGSTOP)
        time.sleep(2 * ANSWER_S)  # longer than an answer may take
        second.process.send_signal(signal.SIGCONT)
        ids, error = trainer.go_on(timeout=120)
        assert error is None
        assert Counter(ids) == Counter([*range(TOTAL)] * 2)


class TestDispatcher:
    @pytest.mark.parametrize("at", [20, STEPS + 20], ids=["epoch 1", "epoch 2"])
    def test_killed_and_restarted_with_its_state_loses_nothing(
        self, reader: types.ModuleType, started: Started, tmp_path: Path, at: int
    ) -> None:
        place = ("--port", free_port(), "--work-dir", tmp_path / "state")
        first = serve(started, reader, "--workers", 0, *place)
        serve(started, reader, "--workers", 2, "--join", first.address)
        trainer = Trainer(started, reader, first.address, epochs=3, at=at, workers=1, lost_s=300)
        first.process.kill()
        first.process.wait()
        again = serve(started, reader, "--workers", 0, *place)
        assert again.address == first.address
        ids, error = trainer.go_on(timeout=180)
        assert error is None
        assert [sorted(epoch) for epoch in cut(ids)] == [[*range(TOTAL)]] * 3

    def test_restarted_without_its_state_is_an_error(
        self, reader: types.ModuleType, started: Started
    ) -> None:
        port = free_port()
        first = serve(started, reader, "--workers", 0, "--port", port)
        serve(started, reader, "--join", first.address)
        trainer = Trainer(started, reader, first.address, epochs=2, at=20, workers=1, lost_s=300)
        first.process.kill()
        first.process.wait()
        serve(started, reader, "--workers", 0, "--port", port)
        ids, error = trainer.go_on(timeout=120)
        assert error is not None
        # The relay says so, or a worker that asked for its next shard, whoever was first.
        assert "restarted without its state" in error or "Failed to get split" in error
        assert "not found" in error
        assert_none_twice(ids, epochs=2)

    @pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
    @pytest.mark.parametrize("at", [20, 0], ids=["in mid-epoch", "before"])
    def test_lost_is_an_error(
        self,
        reader: types.ModuleType,
        started: Started,
        ending: signal.Signals,
        at: int,
    ) -> None:
        first = serve(started, reader, "--workers", 0)
        serve(started, reader, "--join", first.address)
        trainer = Trainer(started, reader, first.address, epochs=3, at=at, workers=1)
        first.process.send_signal(ending)
        ids, error = trainer.go_on()
        assert error is not None
        assert f"service={first.address}: the dispatcher has not answered for {LOST_S} s" in error
        assert_none_twice(ids, epochs=3)


LEAVES = """
import sys
sys.path.insert(0, sys.argv[1])
import reader

endless = reader.dataset("train", 8, service=sys.argv[2], epochs=None)
for batch in endless:
    break
for batch in endless.take(3):
    pass
iterator = iter(endless)  # still there when the process ends
next(iterator)
other = iter(reader.dataset("train", 8, service=sys.argv[2]))
next(other)
del other
print("ends", flush=True)
"""


def test_leaving_a_loop_early_lets_the_process_end(
    reader: types.ModuleType, started: Started
) -> None:
    first = serve(started, reader)
    folder = Path(str(reader.__file__)).parent.parent
    process = run(started, "-c", LEAVES, folder, first.address)
    printed, _ = process.communicate(timeout=120)
    assert (process.returncode, printed) == (0, "ends\n")
