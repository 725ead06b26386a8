"""How well each way of reading mixes, and what it costs.

Of each way the orders of four epochs are compared, over several seeds (without a seed: runs):

- how a record's positions in two epochs correlate, as root mean square of the six pairs of epochs;
- how often two records of a batch are batched together again in the next epoch, as a multiple of
  chance;
- how many shards a batch draws on;
- what an example takes of the processor, with all its features.

The snapshots have uncompressed shards, unless "GZIP" is said: rows of 23 features, the last of
which is a row's number, or records of 12 kB, as images of 64×64 are.

    python benchmarks/read_mixing.py --runs 10
"""

import argparse
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from read_against import load_reader
from read_window import correlation, mixing, rate, some_epochs

HERE = Path(__file__).resolve().parent
EPOCHS = 4
NUMBER = "number"
"""The feature that holds a record's number. A build shuffles records, so it is no place."""
HEAD = """\
| | correlation | together again, × chance | shards in a batch | µs |
| --- | --- | --- | --- | --- |"""
"""Of each: the mean of all runs, and the worst."""
Make = Callable[..., Any]


def build(out: Path, *, rows: int, shards: int, images: bool, gzip: bool) -> Path:
    """Builds a snapshot of numbered records; gives its folder."""
    script = str(HERE / "peers" / "numbered_snapshot.py")
    command = [sys.executable, script, str(out), str(rows), str(shards), str(images), str(gzip)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the build failed:\n{done.stderr[-4000:]}")
    return Path(json.loads(done.stdout.splitlines()[-1]))


def stored_places(reader: Any) -> tuple[Any, list[int]]:
    """Of each number the place in stored order; and the places behind the shards."""
    dataset = reader.dataset("train", 1024, shuffle=False, columns=[NUMBER])
    numbers = tf.concat([batch[NUMBER] for batch in dataset], 0).numpy()
    entries = json.loads((Path(reader.__file__).parent.parent / "manifest.json").read_text())
    sizes = [shard["num_examples"] for shard in entries["splits"]["train"]["shards"]]
    return numbers.argsort(), [*itertools.accumulate(sizes)]


def ways(reader: Any, scratch: Path) -> dict[str, Make]:
    """Name -> an endless dataset of a batch size, some features and a seed."""

    def read(batch_size: int, columns: Any, seed: int, **options: Any) -> Any:
        if options.pop("seeded", False):
            options["seed"] = seed
        return reader.dataset("train", batch_size, epochs=None, columns=columns, **options)

    total = reader.NUM_EXAMPLES["train"]
    stored = [path.stat().st_size for path in Path(reader.__file__).parent.parent.glob("train-*")]
    window = max(sum(stored) // 2, 2 * max(stored))
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "`seed=1`": {"seeded": True},
        "`shuffle=2_000`": {"shuffle": 2_000},
        "`shuffle=50_000`": {"shuffle": 50_000},
        '`cache="memory"`': {"cache": "memory"},
        '`cache="decoded"`': {"cache": "decoded"},
        "`local_copy=` of half the split": {"local_copy": (scratch / "copy", window)},
        "`shuffle=False`": {"shuffle": False},
    }
    if reader.CLASS_NAMES:
        counts = [round(share * total) for share in reader.CLASS_SHARES]
        weights = dict(zip(reader.CLASS_NAMES, counts, strict=True))  # so each record comes once
        options["`balance=…`"] = {"balance": weights, "seeded": True}
    return {name: functools.partial(read, **given) for name, given in options.items()}


def tutorial(snapshot: Path, reader: Any, *, buffer: int) -> Make:
    """What tutorials teach: interleaved shards, a shuffle buffer, a batch, parsed."""

    def read(batch_size: int, columns: Any, seed: int) -> Any:
        del seed
        names = tf.data.Dataset.list_files(str(snapshot / "train-*.tfrecord"))
        found = names.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
        found = found.shuffle(buffer).batch(batch_size).repeat()
        parse = functools.partial(reader.parse, columns=columns)
        return found.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    return read


def measure(
    make: Make, places: Any, ends: Sequence[int], *, batch_size: int, seed: int
) -> tuple[float, float, float]:
    """Correlation, together again, shards in a batch."""
    dataset = make(batch_size, [NUMBER], seed)
    orders = some_epochs(dataset, NUMBER, num_examples=ends[-1], num=EPOCHS)
    epochs = [[places[batch] for batch in epoch] for epoch in orders]
    pairs = [mixing(pair, ends) for pair in itertools.pairwise(epochs)]
    together = statistics.fmean(again for _, again in pairs)
    return correlation(epochs), together, statistics.fmean(shards for shards, _ in pairs)


def row(name: str, found: Sequence[tuple[float, float, float]], costs: Sequence[float]) -> str:
    """One line of the table: the mean of all runs, and the worst."""
    alike, together, shards = zip(*found, strict=True)
    cells = [
        f"{statistics.fmean(alike):.2f} ({max(alike):.2f})",
        f"{statistics.fmean(together):.1f} ({max(together):.1f})",
        f"{statistics.fmean(shards):.1f} ({min(shards):.1f})",
        f"{statistics.median(costs):.1f}",
    ]
    return f"| {' | '.join([name, *cells])} |"


def main() -> None:
    """Measures all ways and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=192_000)
    parser.add_argument("--large", type=int, default=20_000, help="how many records of 12 kB")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--runs", type=int, default=10, help="of plain and seeded reading")
    parser.add_argument("--others", type=int, default=2, help="runs of all other ways")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only tables with such a name")
    parser.add_argument("--ways", nargs="+", metavar="TEXT", help="only ways with such a name")
    parser.add_argument("--smoke", action="store_true", help="little of all, to see that it runs")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.rows, arguments.large, arguments.runs, arguments.others = 2_000, 200, 1, 1
    tries = 1 if arguments.smoke else 3
    time = {"warm": 0.02, "seconds": 0.02} if arguments.smoke else {"warm": 0.5, "seconds": 1.0}
    rows, images, size = arguments.rows, arguments.large, arguments.batch_size
    kinds: dict[str, dict[str, Any]] = {
        f"{rows:,} rows in 16 shards": {"rows": rows, "shards": 16, "images": False},
        f"{rows:,} rows in 4 shards": {"rows": rows, "shards": 4, "images": False},
        f"{images:,} records of 12 kB in 16 shards": {"rows": images, "shards": 16, "images": True},
        f"{rows:,} rows in 16 shards, GZIP": {"rows": rows, "shards": 16, "images": False},
    }
    for title, given in kinds.items():
        if arguments.only and not any(text in title for text in arguments.only):
            continue
        with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
            scratch = Path(folder).resolve()
            snapshot = build(scratch / "out", **given, gzip="GZIP" in title)
            reader = load_reader(snapshot)
            places, ends = stored_places(reader)
            found = ways(reader, scratch)
            if "GZIP" not in title:
                for name, buffer in (
                    ("tutorials' `shuffle(10_000)`", 10_000),
                    ("full shuffle", rows),
                ):
                    found[name] = tutorial(snapshot, reader, buffer=buffer)
            print(f"\n### {title}\n")
            print(HEAD)
            for number, (name, make) in enumerate(found.items()):
                if arguments.ways and not any(text in name for text in arguments.ways):
                    continue
                runs = range(arguments.runs if number < 2 else arguments.others)
                measured = [
                    measure(make, places, ends, batch_size=size, seed=seed) for seed in runs
                ]
                window = {"num_examples": ends[-1], "batch_size": size} | time
                costs = [rate(make(size, None, 1), **window)[1] for _ in range(tries)]
                print(row(name, measured, costs), flush=True)


if __name__ == "__main__":
    main()
