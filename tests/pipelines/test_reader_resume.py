"""An interrupted epoch is resumed: each record once, whatever stands between, at little cost."""

import contextlib
import itertools
import math
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from snapshard.schemas.features import ClassLabel, Features, Scalar, Tensor

from .conftest import part
from .made_snapshots import put_index

WriteSnapshot = Callable[..., types.ModuleType]

LISTS: Features = {
    "label": ClassLabel(names=("a", "b")),
    "id": Scalar(dtype="int64"),
    "tokens": Tensor(dtype="int64", shape=(None,)),
}
NUM = 300
SHARDS = ((0, 70), (70, 150), (150, 220), (220, NUM))


def write(folder: Path, write_snapshot: WriteSnapshot, compression: str) -> types.ModuleType:
    rows = [{"id": i, "label": i % 2, "tokens": [i] * (i % 9)} for i in range(NUM)]
    shards = [rows[first:last] for first, last in SHARDS]
    return write_snapshot(folder, LISTS, {"train": shards}, compression=compression)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory, write_snapshot: WriteSnapshot) -> Any:
    folder = tmp_path_factory.mktemp("indexed")
    reader = write(folder, write_snapshot, "none")
    put_index(folder, "none", [i % 2 for i in range(NUM)])
    return reader


def ids(dataset: Any) -> list[int]:
    return [int(i) for batch in dataset for i in batch["id"].numpy()]


# (each (steps, batch size, workers) before, workers after)
STAGES: list[Any] = [([(3, 10, 1)], 1), ([(2, 6, 2)], 3), ([(2, 6, 2), (1, 9, 1)], 2)]
# Compression says how shards are opened, which no option changes: both of them, with few options.
RESUMED: list[Any] = [
    ("none", {}, STAGES[2]),
    ("gzip", {}, STAGES[1]),
    ("none", {"cache": "memory"}, STAGES[1]),
    ("none", {"augment": True}, STAGES[2]),
    ("none", {"bucket": True}, STAGES[0]),
    ("gzip", {"bucket": True, "augment": True}, STAGES[2]),
]


@pytest.mark.parametrize(
    ("compression", "options", "divided"),
    [
        pytest.param(name, options, divided, id=f"{name}-{'+'.join(options)}")
        for name, options, divided in RESUMED
    ],
)
@pytest.mark.slow  # several datasets for each of many options
def test_every_record_comes_once(
    readers: Any, compression: str, options: Any, divided: Any
) -> None:
    reader, (stages, workers) = readers[compression], divided
    options = {"seed": 3, **options}
    if "augment" in options:
        options["augment"] = lambda example, seed: example
    before: list[int] = []
    for number, (steps, size, count) in enumerate(stages):
        for index in range(count):
            given = {"shard": (index, count), "start_step": stages[:number], **options}
            before += ids(reader.dataset("train", size, **given).take(steps))
    assert len(before) == sum(math.prod(stage) for stage in stages)
    after: list[int] = []
    for index in range(workers):
        given = {"shard": (index, workers), "start_step": stages, **options}
        after += ids(reader.dataset("train", 8, **given))
    assert sorted(before + after) == list(range(NUM))


def test_without_an_index_and_from_a_store_that_tensorflow_does_not_know(
    readers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places that the index does not tell are passed over to; nothing is refused."""
    reader = readers["none"]
    shards = part(reader, "shards")
    root = str(Path(str(reader.__file__)).parent.parent)
    listed = shards.list_shards("train", root)
    pieces = shards.cut(listed, shards.ends_of(listed), 10, 200)
    assert shards.locate(pieces, listed, root) == pieces

    def unknown(path: str, mode: str) -> Any:
        raise tf.errors.UnimplementedError(None, None, f"no file system for {path}")

    monkeypatch.setattr(tf.io.gfile, "GFile", unknown)
    far = [one._replace(path=one.path.replace(root, "odd://bucket")) for one in pieces]
    of_store = [one._replace(path=one.path.replace(root, "odd://bucket")) for one in listed]
    # Without copies, such a root is refused before its shards are looked at.
    assert shards.locate(far, of_store, "odd://bucket", may_be_missing=True) == far


def test_another_batch_costs_little(tmp_path: Path, write_snapshot: WriteSnapshot) -> None:
    """The places of what was read are found without reading: 107 to 144 µs a record before."""
    reader = write(tmp_path, write_snapshot, "none")
    total = 200_000
    shards = part(reader, "shards")
    rows = [shards.Shard(f"{tmp_path}/{i}", total // 4, 1) for i in range(4)]
    part(reader, "facts").NUM_EXAMPLES["train"] = total
    resume, options = part(reader, "resume"), part(reader, "options").Options("train", 96, seed=1)
    plan = part(reader, "pipeline").Plan(
        options=options,
        order=part(reader, "order").deal_records(options, rows),
        num_batches=1,
        open_records=lambda *piece: None,
        parse_batch=lambda batch: batch,
        read_epoch=part(reader, "pipeline").read_epoch,
        read_epochs=part(reader, "pipeline").read_epochs,
        shards=rows,
    )
    delivered = total // 96 // 2 * 96
    at = resume._Progress(delivered=delivered, options=options)
    spent = []
    for _ in range(2):  # other programs on the machine slow one down
        started = time.process_time()
        done = resume.mark_of(plan, at, total)
        spent.append(time.process_time() - started)
        assert done.sum() == delivered
    assert min(spent) < 40e-6 * delivered


def test_the_folder_may_be_copied_next_to_the_model(readers: Any, tmp_path: Path) -> None:
    folder = Path(str(readers["none"].__file__)).parent
    shutil.copytree(folder, tmp_path / "reader")
    from .conftest import load

    copied = load(tmp_path)
    assert sorted(ids(copied.dataset("train", 32, root=folder.parent))) == list(range(NUM))


# (epochs of a pass, passes before, steps of the next one)
PLACES = [(1, 0, 1), (1, 1, 0), (2, 1, 3)]
LATER: list[dict[str, Any]] = [
    {"seed": 3},
    {"seed": 3, "balance": "uniform"},
    {"seed": 3, "bucket": True},
    {"shuffle": False},
    {"seed": 3, "cache": "memory"},
    {"seed": 3, "shard": (0, 3), "equal_steps": True},
    {"seed": 3, "augment": lambda example, seed: example},
    {"seed": 3, "drop_remainder": True},
]


@pytest.mark.slow  # several datasets for each of many options
@pytest.mark.parametrize(
    ("size", "options", "place"),
    [  # each place with several of them; with examples instead of batches, each place once
        *(
            pytest.param(16, options, PLACES[i % 3], id=f"16-{'+'.join(options)}")
            for i, options in enumerate(LATER)
        ),
        *(
            pytest.param(None, LATER[i], PLACES[j], id=f"None-{'+'.join(LATER[i])}")
            for j, i in enumerate((1, 3, 6))
        ),
    ],
)
def test_only_the_first_pass_begins_later(
    indexed: Any, size: int | None, options: dict[str, Any], place: tuple[int, int, int]
) -> None:
    """The cardinality is that of all other passes: Keras asks for it once."""
    epochs, done, first = place
    given = {"epochs": epochs, **options}
    plain, each = indexed.dataset("train", size, **given), indexed.steps("train", size, **options)
    of_pass = epochs * each
    start = done * of_pass + first
    passes = [numbers_of(plain) for _ in range(done + 2)]
    rest = indexed.dataset("train", size, start_step=start, **given)
    found, expected = numbers_of(rest), passes[done][first:]
    if "bucket" in options:  # the rest of an epoch is bucketed again
        found, expected = (sorted(itertools.chain(*one)) for one in (found, expected))
    assert found == expected
    assert numbers_of(rest) == passes[done + 1]
    assert rest.cardinality() == of_pass
    assert indexed.steps("train", size, start_step=start, **given) == each


def numbers_of(dataset: Any) -> list[Any]:
    """The numbers in each batch, or of each example."""
    return [one["id"].numpy().tolist() for one in dataset]


@pytest.mark.parametrize(("start", "num"), [(6_442, 4), (6_443, 3), (6_444, 2)])
def test_epochs_are_not_told_apart_by_their_seeds(indexed: Any, start: int, num: int) -> None:
    """Seeds have 32 bits: with seed=233, epoch 6,443 has that of epoch 5,024."""
    rest = indexed.dataset("train", NUM, seed=233, epochs=6_446, start_step=start)
    assert len(numbers_of(rest)) == num


class CountingModel(keras.Model):  # type: ignore[misc, unused-ignore]
    """Counts in its state how often it was trained on each record."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.dropout = keras.layers.Dense(1), keras.layers.Dropout(0.5)
        self.seen = self.add_weight(
            shape=(NUM,), dtype="int64", initializer="zeros", trainable=False, name="seen"
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.dropout(self.dense(tf.cast(inputs[:, None], tf.float32)), training=training)

    def train_step(self, data: Any) -> Any:
        places = data[0][:, None]
        self.seen.assign(tf.tensor_scatter_nd_add(self.seen.value, places, tf.ones_like(data[0])))
        return super().train_step(data)


class Epochs(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Notes how many records each epoch trained on, how often, and its loss; and interrupts."""

    def __init__(self, steps: int = 0, interrupt: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.ended: dict[int, tuple[int, set[int], float]] = {}
        self.left, self.interrupt = steps, interrupt

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if not self.left:
            self.interrupt()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        seen = self.model.seen.numpy()
        self.ended[epoch] = int(seen.sum()), {*seen.tolist()}, logs["loss"]


class Interrupt(Exception):
    pass


def stop() -> None:
    raise Interrupt


def fit(
    reader: Any,
    notes: Epochs,
    *callbacks: Any,
    size: int | None = 32,
    validate: bool = True,
    **options: Any,
) -> Any:
    """The model after three epochs, or fewer."""
    keras.utils.set_random_seed(1)
    model = CountingModel()
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=options.pop("at_once", 1))
    given = {"epochs": 3, "class_weight": None, "steps_per_epoch": None}
    given |= {name: options.pop(name) for name in {*given} & {*options}}
    if given["steps_per_epoch"]:
        options["epochs"] = None
    train = reader.dataset("train", size, as_supervised=("id", "label"), **options)
    for callback in callbacks:
        if isinstance(callback, reader.InputWait):
            train = callback.watch(train)
    validation = reader.dataset("train[:9]", 9, as_supervised=("id", "label"), shuffle=False)
    with contextlib.suppress(Interrupt):
        model.fit(
            train if size else train.batch(32),
            callbacks=[*callbacks, notes],
            validation_data=validation if validate else None,
            shuffle=False,
            verbose=0,
            **given,
        )
    return model


COMPLETE = [(NUM * (i + 1), {i + 1}) for i in range(3)]


@pytest.fixture(scope="module")
def interrupted(indexed: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the state of a training in its second epoch."""
    folder = tmp_path_factory.mktemp("run")
    fit(indexed, Epochs(12, stop), indexed.Resume(folder, seconds=0))
    return folder


class TestFit:
    """``Resume`` continues Keras's ``fit`` in the middle of an epoch."""

    @pytest.mark.slow  # four to six times fit
    @pytest.mark.parametrize(
        "options",
        [
            {"seed": 1, "steps_per_epoch": 10},
            {"shuffle": False, "class_weight": {0: 1.0, 1: 2.0}, "at_once": 4},
            {"seed": 1, "bucket": "tokens"},
            {"seed": 1, "balance": {"a": 1, "b": 1}},
            {"seed": 1, "size": None, "augment": lambda example, seed: example},
            {"seed": 1, "cache": "memory"},
            {"seed": 1, "cache": "decoded"},
            {"seed": 1, "watched": True},
        ],
        ids=lambda options: "-".join(f"{name}={value}"[:14] for name, value in options.items()),
    )
    def test_the_interrupted_epoch_continues(
        self, indexed: Any, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        """To the bit, as do all others if their order is fixed; a last start changes nothing."""
        options = dict(options)
        watched, plain = options.pop("watched", False), Epochs()
        is_exact = "steps_per_epoch" in options or options.get("shuffle") is False
        options["validate"] = is_exact
        expected = fit(indexed, plain, **options)
        ended: dict[int, Any] = {}
        for steps in (3, 12, 8, 0, 0) if is_exact else (3, 12, 0):
            epochs = Epochs(-(-steps // options.get("at_once", 1)), stop)
            callbacks = [indexed.InputWait()] * watched
            callbacks += [indexed.Resume(tmp_path / "run", seconds=0)]
            before, model = ended.copy(), fit(indexed, epochs, *callbacks, **options)
            ended |= epochs.ended
        assert not is_exact or ended == before
        assert ended[0] == plain.ended[0]
        assert [one[:2] for one in ended.values()] == [one[:2] for one in plain.ended.values()]
        if is_exact:
            assert ended == plain.ended
            for one, other in zip(model.variables, expected.variables, strict=True):
                assert np.array_equal(one.numpy(), other.numpy()), one.path

    @pytest.mark.slow  # two processes
    def test_a_killed_process(self, indexed: Any, tmp_path: Path) -> None:
        """Without a seed: each epoch has every record once, with the state of the last process."""
        folder = Path(str(indexed.__file__)).parent.parent
        code = (
            "import os, signal, sys\n"
            f"sys.path[:0] = [{str(folder)!r}, {str(Path(__file__).parents[2])!r}]\n"
            "import reader\n"
            "from tests.pipelines.test_reader_resume import Epochs, fit\n"
            "epochs = Epochs(int(sys.argv[1]), lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
            f"model = fit(reader, epochs, reader.Resume({str(tmp_path / 'run')!r}, seconds=0))\n"
            "print([found[:2] for found in epochs.ended.values()], int(model.optimizer.iterations))"
        )
        for steps in (14, 0):
            ran = subprocess.run(
                [sys.executable, "-c", code, str(steps)], capture_output=True, text=True
            )
            assert ran.returncode == (-signal.SIGKILL if steps else 0), ran.stderr
        assert ran.stdout.strip() == f"{COMPLETE[1:]} 30"

    @pytest.mark.slow  # four times fit
    def test_more_epochs_and_another_model(self, indexed: Any, tmp_path: Path) -> None:
        """A finished training continues; a callback may be used again, with another folder."""
        resume, notes = indexed.Resume(tmp_path / "a"), Epochs()
        fit(indexed, Epochs(), resume, epochs=1)
        fit(indexed, notes, resume)
        assert [found[:2] for found in notes.ended.values()] == COMPLETE
        resume.folder = str(tmp_path / "b")
        model = fit(indexed, Epochs(), resume)
        again = fit(indexed, Epochs(), indexed.Resume(tmp_path / "b"))
        assert np.array_equal(model.dense.kernel.numpy(), again.dense.kernel.numpy())

    def test_start_step_shortens_one_epoch(self, indexed: Any) -> None:
        epochs = Epochs()
        with pytest.warns(UserWarning, match="ran out of data"):  # of Keras, after the first epoch
            fit(indexed, epochs, seed=1, start_step=7)
        nums = [num for num, *_ in epochs.ended.values()]
        assert nums == [NUM - 7 * 32, 2 * NUM - 7 * 32, 3 * NUM - 7 * 32]

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (
                {"epochs": 1},
                "has come to epoch 2 with 10 steps in each; this one has 1 epochs with",
            ),
            ({"size": 64}, "this one has 3 epochs with 5 steps. Pass the same arguments"),
            ({"steps_per_epoch": 4}, "this one has 3 epochs with 4 steps"),
        ],
    )
    def test_another_training_in_its_folder(
        self, indexed: Any, interrupted: Path, options: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ValueError, match=words):
            fit(indexed, Epochs(), indexed.Resume(interrupted), **options)

    def test_another_model(self, indexed: Any, interrupted: Path) -> None:
        model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        train = indexed.dataset("train", 32, as_supervised=("id", "label"))
        train = train.map(lambda x, y: (tf.cast(x[:, None], tf.float32), y))
        with pytest.raises(ValueError, match="holds the state of another model or dataset"):
            model.fit(
                train, epochs=3, callbacks=[indexed.Resume(interrupted)], shuffle=False, verbose=0
            )

    def test_a_model_of_keras_2(self, indexed: Any, tmp_path: Path) -> None:
        """Importing tensorflow_transform before TensorFlow's Keras makes ``tf.keras`` Keras 2."""
        import tf_keras  # type: ignore[import-untyped, unused-ignore]

        resume = indexed.Resume(tmp_path)
        resume.set_model(tf_keras.Sequential([tf_keras.layers.Dense(1)]))
        with pytest.raises(ValueError, match="Resume needs Keras 3, and this model is of Keras 2"):
            resume.on_train_begin()

    def test_other_checkpoints(self, indexed: Any, tmp_path: Path) -> None:
        other = tf.train.Checkpoint(a=tf.Variable(1))
        tf.train.CheckpointManager(other, str(tmp_path), max_to_keep=1).save()
        with pytest.raises(ValueError, match="was not written by Resume"):
            fit(indexed, Epochs(), indexed.Resume(tmp_path))

    def test_a_position_that_cannot_be_saved(self, indexed: Any, tmp_path: Path) -> None:
        def augment(example: Any, seed: Any) -> Any:
            return example[0] + tf.random.uniform([], 0, 1, tf.int64), example[1]

        with pytest.raises(ValueError, match=r"is stateful.*\n.*the seed of augment="):
            fit(indexed, Epochs(), indexed.Resume(tmp_path), augment=augment)
