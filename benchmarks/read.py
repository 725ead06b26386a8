"""How fast the emitted reader is, beside the patterns that tutorials teach.

All give batches of the same images, 64×64 pixels. Rounds are interleaved, so that the machine's
moods fall on all alike; ratios are taken within a round. The files lie in the page cache: this
measures the pipelines, not the disk.

    python benchmarks/read.py --images DIR
    python benchmarks/read.py --images DIR --snapshot SNAPSHOT

DIR holds class folders of JPEGs, for example the full sign_digits. Without --snapshot one is built
of so many copies of each image as --copies says.

The contenders:

files      image files listed, shuffled, decoded and resized in every epoch
one by one shards interleaved, 1,000 records shuffled, each parsed alone, batched
batched    the same, but batched first and then parsed with `tf.io.parse_example`
unparsed   `TFRecordDataset(shards).batch()`: nothing parsed, nothing shuffled
reader     the snapshot's reader as it comes: shuffled, batches from many shards, unseeded
… seeded   with a seed: the same order every time
… stored   in stored order, unshuffled
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from build import multiply, spread

RECIPE = """\
import snapshard as ss

recipe = ss.Recipe(
    name="bench",
    source=ss.ImageFolder({images!r}),
    prepare=[ss.images.decode("image"), ss.images.resize("image", (64, 64))],
    splits=ss.Splits(train=1.0),
)
"""
SIZE = 64
EPOCHS = {"files": 1, "one by one": 3}
"""Epochs of one measurement; the fast contenders read ``MANY``, so that starting weighs little."""
MANY = 20


def build(images: Path, scratch: Path) -> Path:
    """Builds a snapshot with the command line; gives its folder."""
    recipe = scratch / "recipe.py"
    recipe.write_text(RECIPE.format(images=str(images)))
    command = [sys.executable, "-m", "snapshard", "build", str(recipe)]
    done = subprocess.run(
        [*command, "--out", str(scratch / "out"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"the build failed:\n{done.stderr[-4000:]}")
    return Path(json.loads(done.stdout.splitlines()[-1])["path"])


def load_reader(snapshot: Path) -> types.ModuleType:
    """Imports the snapshot's reader, each time anew."""
    module = types.ModuleType("reader")
    module.__file__ = str(snapshot / "reader.py")
    exec(compile(Path(module.__file__).read_text(), module.__file__, "exec"), module.__dict__)
    return module


def contenders(snapshot: Path, images: Path, batch_size: int) -> dict[str, Any]:
    """Name -> a dataset of as many epochs as it is measured by."""
    auto = tf.data.AUTOTUNE
    shards = sorted(map(str, snapshot.glob("train-*.tfrecord")))
    columns = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse_one(content: Any) -> tuple[Any, Any]:
        found = tf.io.parse_single_example(content, columns)
        pixels = tf.io.decode_raw(found["image"], tf.uint8)
        return tf.reshape(pixels, [SIZE, SIZE, 3]), found["label"]

    def parse_many(content: Any) -> tuple[Any, Any]:
        found = tf.io.parse_example(content, columns)
        pixels = tf.io.decode_raw(found["image"], tf.uint8)
        return tf.reshape(pixels, [-1, SIZE, SIZE, 3]), found["label"]

    def decode(path: Any) -> tuple[Any, Any]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), 3)
        return tf.image.resize(image, [SIZE, SIZE]), tf.strings.split(path, "/")[-2]

    def files() -> Any:
        listed = tf.data.Dataset.list_files(f"{images}/*/*", shuffle=True)
        return listed.map(decode, num_parallel_calls=auto).batch(batch_size).prefetch(auto)

    def records() -> Any:
        names = tf.data.Dataset.from_tensor_slices(shards).shuffle(len(shards))
        return names.interleave(
            tf.data.TFRecordDataset, num_parallel_calls=auto, deterministic=False
        ).shuffle(1000)

    def one_by_one() -> Any:
        return records().map(parse_one, num_parallel_calls=auto).batch(batch_size).prefetch(auto)

    def batched() -> Any:
        return records().batch(batch_size).map(parse_many, num_parallel_calls=auto).prefetch(auto)

    def reader(**options: Any) -> Any:
        return load_reader(snapshot).dataset(
            "train", batch_size, as_supervised=True, epochs=MANY, **options
        )

    return {
        "files": files().repeat(EPOCHS["files"]),
        "one by one": one_by_one().repeat(EPOCHS["one by one"]),
        "batched": batched().repeat(MANY),
        "unparsed": tf.data.TFRecordDataset(shards).batch(batch_size).repeat(MANY),
        "reader": reader(),
        "… seeded": reader(seed=1),
        "… stored": reader(shuffle=False),
    }


def time_once(dataset: Any) -> tuple[float, float]:
    """Reads a dataset to its end; gives seconds on the clock and of the processors.

    Up to the last batch: where anything is autotuned, TensorFlow may then wait for its tuner's
    clock, by up to as much time as reading took.
    """
    started, worked = time.perf_counter(), time.process_time()
    iterator = iter(dataset)
    for _ in iterator:
        pass
    taken = time.perf_counter() - started, time.process_time() - worked
    del iterator
    return taken


def mixing(snapshot: Path, batch_size: int) -> tuple[float, float]:
    """How well the reader's shuffling mixes.

    Returns:
        Shards in a batch, on average; and how often two records of a batch are together again in
        the next epoch, as a multiple of how often they would be by chance.
    """
    reader = load_reader(snapshot)
    read = reader._records

    def named(path: Any, skip: Any, take: Any, first: Any, **_: Any) -> Any:
        paths = tf.data.Dataset.from_tensors(path).repeat()
        places = tf.data.Dataset.range(skip, skip + take)
        return tf.data.Dataset.zip(read(path, skip, take, first), paths, places)

    def name(_: Any, path: Any, place: Any) -> Any:
        return tf.strings.join([path, tf.strings.as_string(place)], "|")

    reader._records = named  # type: ignore[attr-defined]
    reader._parser = lambda **_: name  # type: ignore[attr-defined]
    dataset = reader.dataset("train", batch_size, epochs=2, drop_remainder=True)
    batches = [[name.decode() for name in batch.numpy()] for batch in dataset]
    shards = [len({name.partition("|")[0] for name in batch}) for batch in batches]
    half = len(batches) // 2
    again = {name: number for number, batch in enumerate(batches[half:]) for name in batch}
    together = 0
    for batch in batches[:half]:
        found = [again[name] for name in batch if name in again]
        together += sum(found.count(number) - 1 for number in found)
    chance = half * batch_size * (batch_size - 1) / half
    return statistics.mean(shards), together / chance


def main() -> None:
    """Times all contenders and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = os.environ.get("SNAPSHARD_DATA")
    default = Path(data) / "sign_digits" if data else None
    parser.add_argument("--images", type=Path, default=default, required=default is None)
    parser.add_argument("--snapshot", type=Path, help="of 64×64 images; default: one is built")
    parser.add_argument("--copies", type=int, default=10, help="of each image")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        scratch = Path(folder).resolve()
        images = scratch / "images"
        num_files = multiply(arguments.images, images, copies=arguments.copies)
        snapshot = arguments.snapshot or build(images, scratch)
        num_examples = load_reader(snapshot).NUM_EXAMPLES["train"]
        rates: dict[str, list[float]] = {}
        costs: dict[str, list[float]] = {}
        datasets = contenders(snapshot, images, arguments.batch_size)
        for number in range(arguments.rounds + 1):
            for name, dataset in datasets.items():
                seconds, worked = time_once(dataset)
                count = EPOCHS.get(name, MANY) * (num_files if name == "files" else num_examples)
                if number:  # the first round warms the page cache
                    rates.setdefault(name, []).append(count / seconds)
                    costs.setdefault(name, []).append(worked / count * 1e6)
        shards, together = mixing(snapshot, arguments.batch_size)

    print(
        f"{num_examples:,} examples, batches of {arguments.batch_size}, "
        f"{arguments.rounds} rounds, {os.cpu_count()} processors"
    )
    print(f"{'':12}{'examples/s':>32}{'× one by one':>24}{'× unparsed':>24}{'µs of CPU':>12}")
    for name, values in rates.items():
        cells = [f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"]
        for base in ("one by one", "unparsed"):
            cells.append(spread([a / b for a, b in zip(values, rates[base], strict=True)]))
        cost = f"{statistics.median(costs[name]):.1f}"
        print(f"{name:12}{cells[0]:>32}{cells[1]:>24}{cells[2]:>24}{cost:>12}")
    print(
        f"reader: {shards:.1f} shards in a batch; two records of a batch meet again in the next "
        f"epoch {together:.2f} times as often as by chance"
    )


if __name__ == "__main__":
    main()
