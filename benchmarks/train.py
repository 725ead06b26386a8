"""How long an epoch of training takes from a snapshot, and from the image files themselves.

A small model that waits for its input, on class folders of JPEGs: every contender gives it images
of 64×64 in batches, shuffled. Keras runs 16 steps at a time (``steps_per_execution``), since its
own work between two steps takes longer than the model's. Each contender trains a fresh model with
``fit``, whose functions were traced beforehand; the first epoch, with the making of the dataset,
and the later ones are told apart. Rounds are interleaved, so that the machine's moods fall on
all alike; ratios are taken within a round. The files lie in the page cache.

    python benchmarks/train.py --images DIR

DIR holds class folders of JPEGs, for example the full sign_digits; photographs of another size than
most have are left out (three of sign_digits would take as long to decode as all others together).

The contenders:

- the snapshot, decoded and resized when it was built: ``reader.dataset``, one long pass;
- the same with ``cache="decoded"``;
- ``keras.utils.image_dataset_from_directory`` and ``prefetch``;
- the same with ``cache().shuffle(1000).prefetch()``, as its tutorial has it: that keeps batches, as
  float32, so the same images are together in every later epoch;
- no input at all: one batch over and over, which no input can beat.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from build import spread
from read import build, load_reader, multiply

SIZE = 64
SNAPSHOT = "**the snapshot, `reader.dataset`**"
FILES = "files, `image_dataset_from_directory(…).prefetch()`"
NOTHING = "no input: one batch over and over"
Input = Callable[[], tuple[Any, int | None]]
"""Makes a dataset, and says how many steps an epoch of it has if it has no end."""


class Clock(keras.callbacks.Callback):
    """When each epoch ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the time."""
        del epoch, logs
        self.ends.append(time.perf_counter())


def make_model(num_classes: int) -> Any:
    """A model so small that it waits for its input: means of 8×8 pixels, and one layer."""
    model = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.AveragePooling2D(8),
            keras.layers.Flatten(),
            keras.layers.Dense(num_classes),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, steps_per_execution=16)
    return model


def contenders(snapshot: Path, images: Path, batch_size: int) -> dict[str, Input]:
    """Name -> what makes its dataset."""
    reader = load_reader(snapshot)
    steps = reader.steps("train", batch_size)

    def read(**options: Any) -> Any:
        made = load_reader(snapshot).dataset(
            "train", batch_size, epochs=None, as_supervised=True, **options
        )
        return made, steps

    def files() -> Any:
        return keras.utils.image_dataset_from_directory(
            images, image_size=(SIZE, SIZE), batch_size=batch_size, verbose=False
        )

    first = next(iter(reader.dataset("train", batch_size, as_supervised=True)))
    return {
        SNAPSHOT: read,
        'the snapshot, `cache="decoded"`': lambda: read(cache="decoded"),
        FILES: lambda: (files().prefetch(tf.data.AUTOTUNE), None),
        "files, `….cache().shuffle(1000).prefetch()`": lambda: (
            files().cache().shuffle(1000).prefetch(tf.data.AUTOTUNE),
            None,
        ),
        NOTHING: lambda: (tf.data.Dataset.from_tensors(first).repeat(), steps),
    }


def train(make: Input, *, num_classes: int, sizes: set[int], epochs: int) -> list[float]:
    """Trains a fresh model; gives the seconds of each epoch, the first from making the dataset."""
    model = make_model(num_classes)
    spec = make()[0].element_spec[0]
    for size in sizes:
        blank = tf.zeros([size, *spec.shape[1:]], spec.dtype), tf.zeros([size], tf.int32)
        model.fit(tf.data.Dataset.from_tensors(blank), shuffle=False, verbose=0)
    begin, clock = time.perf_counter(), Clock()
    dataset, steps = make()
    how = {"steps_per_epoch": steps, "epochs": epochs, "callbacks": [clock], "verbose": 0}
    model.fit(dataset, shuffle=False, **how)  # the datasets do
    starts = [begin, *clock.ends[:-1]]
    return [end - start for start, end in zip(starts, clock.ends, strict=True)]


def table(taken: dict[str, list[list[float]]], num_examples: int) -> str:
    """The epochs of all contenders in Markdown."""
    ratio = "× the snapshot's"
    rows = [["", "first epoch", ratio, "later epochs", ratio, "images/s, later"], ["---"] * 6]

    def later(epochs: list[float]) -> float:
        return statistics.median(epochs[1:])

    for name, rounds in taken.items():
        row = [name]
        for part in (lambda epochs: epochs[0], later):
            own = [part(epochs) for epochs in rounds]
            base = [part(epochs) for epochs in taken[SNAPSHOT]]
            row.append(spread(own, " s"))
            ratios = [mine / other for mine, other in zip(own, base, strict=True)]
            row.append("1" if name == SNAPSHOT else spread(ratios))
        row.append(f"{num_examples / statistics.median(map(later, rounds)):,.0f}")
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)


def main() -> None:
    """Trains with all contenders and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = os.environ.get("SNAPSHARD_DATA")
    default = Path(data) / "sign_digits" if data else None
    parser.add_argument("--images", type=Path, default=default, required=default is None)
    parser.add_argument("--copies", type=int, default=10, help="of each image")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=5, help="of each training")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--smoke", action="store_true", help="little of all, to see that it runs")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.copies, arguments.epochs, arguments.rounds = 1, 2, 1
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        scratch = Path(folder).resolve()
        images = scratch / "images"
        multiply(arguments.images, images, copies=arguments.copies)
        snapshot = build(["raw"], images, scratch, num_rows=0)["raw"]
        reader, batch_size = load_reader(snapshot), arguments.batch_size
        num_examples = reader.NUM_EXAMPLES["train"]
        facts = {
            "num_classes": len(reader.CLASS_NAMES),
            "sizes": {min(batch_size, num_examples), num_examples % batch_size or batch_size},
            "epochs": arguments.epochs,
        }
        taken: dict[str, list[list[float]]] = {}
        for _ in range(arguments.rounds):
            for name, make in contenders(snapshot, images, batch_size).items():
                taken.setdefault(name, []).append(train(make, **facts))
    print(
        f"{num_examples:,} images, {arguments.rounds} rounds of {arguments.epochs} epochs, batches "
        f"of {batch_size}, {os.cpu_count()} processors\n"
    )
    print(table(taken, num_examples))


if __name__ == "__main__":
    main()
