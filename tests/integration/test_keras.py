"""Training from a snapshot's reader: fit, tf.distribute, checkpoints, the profiled example."""

import itertools
import json
import os
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss

# Importing Keras takes 4 s, tracing a training step 1 to 2 s each, processes of their own 8 s.
pytestmark = pytest.mark.slow

NUM_ROWS = 500


@pytest.fixture(scope="module")
def rows(shared: Callable[[str], Path]) -> ss.Snapshot:
    """A table of (id, x, kind) in several shards; two kinds of unlike number, told by x alone."""
    folder = shared("keras")
    lines = ["id,x,kind"]
    for number in range(NUM_ROWS):
        rare = number % 5 == 0
        lines.append(
            f"{number},{(1 if rare else -1) * (1 + number % 7 / 7)},{'b' if rare else 'a'}"
        )
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    features = {
        "id": ss.Scalar("int64"),
        "x": ss.Scalar("float32"),
        "kind": ss.ClassLabel(("a", "b")),
    }
    recipe = ss.Recipe(
        name="rows",
        source=ss.Csv(str(folder / "rows.csv"), label="kind"),
        features=features,
        splits=ss.Splits(train=0.8, validation=0.1, test=0.1),
        shards=ss.Shards(num_shards={"train": 5, "validation": 2, "test": 1}),
    )
    return ss.build(recipe, folder / "out")


@pytest.fixture(scope="module")
def reader(rows: ss.Snapshot) -> types.ModuleType:
    return rows.reader()


@pytest.fixture(scope="module")
def ids(reader: types.ModuleType) -> dict[str, list[int]]:
    """The ids of each split, in stored order."""
    return {split: drawn(reader.dataset(split, 64, shuffle=False)) for split in reader.NUM_EXAMPLES}


def drawn(dataset: Any) -> list[int]:
    """The ids that a dataset gives, in its order."""
    features = (batch[0] if isinstance(batch, tuple) else batch for batch in dataset)
    return [int(one) for batch in features for one in batch["id"].numpy()]


class Training:
    """A small model that learns ``kind`` from ``x``, and what it was fed in each epoch."""

    def __init__(self) -> None:
        import keras
        import tensorflow as tf

        seen: dict[str, list[list[int]]] = {"train": [[]], "validation": [[]]}

        class Feed(keras.layers.Layer):
            """Gives ``x``, and notes the ids beside it."""

            def call(self, inputs: Any, training: bool = False) -> Any:
                notes = seen["train" if training else "validation"]
                tf.numpy_function(
                    lambda ids: notes[-1].extend(ids.ravel().tolist()), [inputs["id"]], []
                )
                return inputs["x"]

        class Notes(keras.callbacks.Callback):
            """Begins a list with each epoch; notes how many steps Keras counts."""

            steps: Any = None
            num_batches = 0

            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.steps = self.params["steps"]
                if epoch:
                    for notes in seen.values():
                        notes.append([])

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.num_batches += 1

        keras.utils.set_random_seed(0)
        inputs = {
            "id": keras.layers.Input((1,), dtype="int64", name="id"),
            "x": keras.layers.Input((1,), name="x"),
        }
        self.seen, self.notes = seen, Notes()
        self.model = keras.Model(inputs, keras.layers.Dense(2)(Feed()(inputs)))
        self.model.compile(
            keras.optimizers.Adam(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=False,  # XLA has no functions of Python
        )

    def fit(self, dataset: Any, **arguments: Any) -> Any:
        """As users call it; ``shuffle=False``, since Keras warns that it shuffles no dataset."""
        arguments = {"shuffle": False, "verbose": 0, "callbacks": [self.notes]} | arguments
        return self.model.fit(dataset, **arguments).history


class TestFit:
    def test_an_epoch_is_every_record_in_another_order(
        self, reader: types.ModuleType, ids: dict[str, list[int]]
    ) -> None:
        train = reader.dataset("train", 64, as_supervised=True)
        validation = reader.dataset("validation", 64, as_supervised=True)
        assert len(train) == reader.steps("train", 64) == -(-len(ids["train"]) // 64)
        training = Training()
        history = training.fit(train, validation_data=validation, epochs=3)
        assert training.notes.steps == len(train)
        assert training.notes.num_batches == 3 * len(train)
        assert_epochs(training.seen["train"], ids["train"])
        assert training.seen["validation"] == [ids["validation"]] * 3, "in stored order"
        assert history["val_accuracy"][-1] == 1

    def test_with_a_seed_epochs_differ_and_runs_do_not(
        self, reader: types.ModuleType, ids: dict[str, list[int]]
    ) -> None:
        runs = [Training(), Training()]
        for training in runs:
            training.fit(reader.dataset("train", 64, as_supervised=True, seed=3), epochs=2)
            assert_epochs(training.seen["train"], ids["train"])
        assert runs[0].seen == runs[1].seen
        for one, other in zip(*(run.model.get_weights() for run in runs), strict=True):
            np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize("seed", [None, 3])
    def test_one_long_pass_in_steps(
        self, reader: types.ModuleType, ids: dict[str, list[int]], seed: int | None
    ) -> None:
        options = {"as_supervised": True, "epochs": None}
        training = Training()
        training.fit(
            reader.dataset("train", 48, seed=seed, **options),
            steps_per_epoch=reader.steps("train", 48),
            validation_data=reader.dataset("validation", 48, **options),
            validation_steps=reader.steps("validation", 48),
            epochs=3,
        )
        assert training.notes.steps == reader.steps("train", 48)
        assert_epochs(training.seen["train"], ids["train"])
        assert training.seen["validation"] == [ids["validation"]] * 3

    def test_static_shapes(self, reader: types.ModuleType, ids: dict[str, list[int]]) -> None:
        options = {"as_supervised": True, "drop_remainder": True}
        train = reader.dataset("train", 64, **options)
        assert len(train) == reader.steps("train", 64, drop_remainder=True)
        training = Training()
        training.fit(train, epochs=2)
        for epoch in training.seen["train"]:
            assert len(epoch) == len(set(epoch)) == len(train) * 64
            assert set(epoch) <= set(ids["train"])

    def test_class_weights(self, reader: types.ModuleType) -> None:
        """The weights make both classes count as much: so a constant leans to neither."""
        import keras

        weights = dict(enumerate(reader.CLASS_WEIGHTS))
        assert weights[1] > 3 * weights[0], "the rare one"
        keras.utils.set_random_seed(0)

        class Leanings(keras.callbacks.Callback):
            def __init__(self) -> None:
                super().__init__()
                self.each_step: list[float] = []

            def on_train_batch_end(self, batch: int, logs: object = None) -> None:
                bias = self.model.get_weights()[1]
                self.each_step.append(float(bias[1] - bias[0]))

        found = []
        for class_weight in (None, weights):
            # No input that tells anything, so the bias alone learns: the (weighted) shares.
            model = keras.Sequential(
                [keras.layers.Input((1,)), keras.layers.Dense(2, kernel_initializer="zeros")]
            )
            model.layers[0].kernel.trainable = False
            model.compile(
                keras.optimizers.Adam(0.05),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            )
            options = {"columns": ["x"], "as_supervised": True, "seed": 1}
            train = reader.dataset("train", 64, epochs=None, **options)
            leanings = Leanings()
            model.fit(
                train,
                steps_per_epoch=200,
                class_weight=class_weight,
                callbacks=[leanings],
                shuffle=False,
                verbose=0,
            )
            found.append(np.mean(leanings.each_step[-50:]))  # Adam never comes to rest
        assert found[0] < np.log(1 / 3), "the common class is four times as likely"
        assert abs(found[1]) < 0.2


def assert_epochs(epochs: list[list[int]], wanted: list[int]) -> None:
    """Each gives every record once, each in another order and in other batches."""
    for epoch in epochs:
        assert sorted(epoch) == sorted(wanted)
    for one, other in itertools.combinations(epochs, 2):
        assert one != other
        assert set(one[:48]) != set(other[:48])


def run(script: str, *arguments: object, cwd: Path) -> Any:
    """Runs a trainer, which has no snapshard, on a copy of nothing but the snapshot's folder."""
    hide = "import sys\nsys.modules['snapshard'] = None\nsys.path.insert(0, sys.argv[1])\n"
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", hide + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# Under tf.distribute: two logical processors, which have to be declared before anything runs.
MIRRORED = """
import json

import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

import keras
import reader

strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
assert strategy.num_replicas_in_sync == 2
found = {}


def ids_of(distributed):
    found, sizes = [], []
    for batch in distributed:
        parts = strategy.experimental_local_results(batch["id"])
        assert len(parts) == 2
        sizes.append([len(part) for part in parts])
        found += [int(one) for part in parts for one in part]
    return found, sizes


def per_worker(context):
    assert (context.input_pipeline_id, context.num_input_pipelines) == (0, 1)
    size = context.get_per_replica_batch_size(64)
    return reader.dataset("train", size, input_context=context)


distributed = strategy.distribute_datasets_from_function(per_worker)
found["from_function"] = [ids_of(distributed) for _ in range(2)]
found["distribute_dataset"] = [
    ids_of(strategy.experimental_distribute_dataset(reader.dataset("train", 64)))
]
with strategy.scope():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(2)])
    model.compile(
        keras.optimizers.Adam(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def data(split, **options):
    return reader.dataset(split, 64, columns=["x"], as_supervised=True, **options)


history = model.fit(
    data("train"), validation_data=data("validation"), epochs=4, shuffle=False, verbose=0
).history
model.fit(
    data("train", epochs=None),
    steps_per_epoch=reader.steps("train", 64),
    epochs=2,
    shuffle=False,
    verbose=0,
)
found["steps"] = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
found["val_accuracy"] = history["val_accuracy"][-1]
print(json.dumps(found))
"""


class TestDistributed:
    def test_mirrored_over_two_processors(
        self, rows: ss.Snapshot, ids: dict[str, list[int]], tmp_path: Path
    ) -> None:
        found = run(MIRRORED, rows.path, cwd=tmp_path)
        for way, batch in (("from_function", 32), ("distribute_dataset", 32)):
            for drawn_ids, sizes in found[way]:
                assert sorted(drawn_ids) == sorted(ids["train"]), way
                assert all(size == [batch, batch] for size in sizes[:-1]), way
        first, second = found["from_function"]
        assert first[0] != second[0], "another order in each pass"
        steps = -(-len(ids["train"]) // 64)
        assert found["steps"] == 6 * steps
        assert found["val_accuracy"] == 1

    @pytest.mark.parametrize("equal_steps", [False, True])
    def test_workers_by_their_contexts(
        self, reader: types.ModuleType, ids: dict[str, list[int]], equal_steps: bool
    ) -> None:
        """What two workers of a MultiWorkerMirroredStrategy are given, made by hand."""
        import tensorflow as tf

        parts, lengths = [], []
        for index in range(2):
            context = tf.distribute.InputContext(
                num_input_pipelines=2, input_pipeline_id=index, num_replicas_in_sync=2
            )
            part = reader.dataset(
                "train",
                context.get_per_replica_batch_size(32),
                input_context=context,
                equal_steps=equal_steps,
                as_supervised=True,
            )
            parts.append(drawn(part))
            lengths.append(len(part))
        found = Counter(parts[0] + parts[1])
        assert max(found.values()) == 1
        if equal_steps:
            assert lengths[0] == lengths[1]
            assert len(ids["train"]) - len(found) < 2 * 16
        else:
            assert sorted(found) == sorted(ids["train"])


# For each seed, goes on from a checkpoint, to the end; or gives the first of its steps and writes
# one.
RESUMED = """
import json

import tensorflow as tf

import reader

_, kind, folder, seeds, steps = sys.argv[1:]
found = []
for seed in json.loads(seeds):
    path = f"{folder}/{seed}"
    dataset = reader.dataset("train", 32, epochs=3, seed=seed)
    iterator = iter(dataset)
    checkpoint = tf.train.Checkpoint(iterator=iterator, step=tf.Variable(0))
    if kind == "write":
        batches = [next(iterator) for _ in range(int(steps))]
        checkpoint.step.assign(int(steps))
        checkpoint.write(path)
    else:
        checkpoint.read(path).assert_consumed()
        assert int(checkpoint.step) == int(steps)
        batches = list(iterator)
    found.append([[batch[name].numpy().tolist() for name in ("id", "x")] for batch in batches])
print(json.dumps(found))
"""


class TestCheckpoint:
    def test_another_process_goes_on(
        self,
        rows: ss.Snapshot,
        reader: types.ModuleType,
        ids: dict[str, list[int]],
        tmp_path: Path,
    ) -> None:
        steps = reader.steps("train", 32) + 3  # in the midst of the second epoch
        seeds = (None, 5)
        arguments = (tmp_path, json.dumps(seeds), steps)
        parts = [
            run(RESUMED, rows.path, kind, *arguments, cwd=tmp_path) for kind in ("write", "read")
        ]
        for seed, before, after in zip(seeds, *parts, strict=True):
            assert len(before) == steps
            assert len(before) + len(after) == 3 * reader.steps("train", 32)
            found = [one for batch, _ in before + after for one in batch]
            size = len(ids["train"])
            assert_epochs([found[i : i + size] for i in range(0, 3 * size, size)], ids["train"])
            if seed is not None:
                whole = [
                    [batch[name].numpy().tolist() for name in ("id", "x")]
                    for batch in reader.dataset("train", 32, epochs=3, seed=seed)
                ]
                assert before + after == whole, "to the bit"


def test_the_profile_of_the_example(
    sign_digits: ss.Snapshot, examples: Path, tmp_path: Path
) -> None:
    """``examples/train_with_profile.py``: the callback profiles the reader among the steps."""
    pytest.importorskip("tensorboard", reason="needs TensorBoard: pip install tensorboard")
    command = [
        *(sys.executable, examples / "train_with_profile.py", sign_digits.path),
        *("--logs", "logs", "--epochs", "2", "--steps", "16", "20"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("profile: ")]
    profile = (tmp_path / line.removeprefix("profile: ")).read_bytes()
    for event in (b"Iterator::Root::Prefetch", b"Iterator::Prefetch", b"ParallelMap", b"train"):
        assert event in profile, event
    assert os.listdir(tmp_path) == ["logs"]
