"""What a table with thousands of columns costs, with and without ``ss.tables.stack``.

A CSV of decimal numbers and a class, made anew for each run of this script and always the same, is
built as it is and with all of its numbers stacked into one vector. Then each snapshot is read for
some epochs, with the shuffled batches of ``reader.dataset``.

Each build and each reading is a process of its own, as users run them. "Whole process" includes the
imports of snapshard and TensorFlow, which are not in the seconds beside it. Rounds are interleaved.

    python benchmarks/wide.py --tables 2000x2000 300x5000 --rounds 3
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

KINDS = {"columns": "as columns", "stacked": "stacked"}
HEAD = (
    "| | build, s | whole process, s | first batch, s | first epoch, s | "
    "later epochs, s | ms per batch |"
)


def write_table(path: Path, *, rows: int, columns: int) -> None:
    """Writes ``rows`` lines of ``columns`` numbers of three decimals, and one of three classes."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(",".join([*(f"c{number}" for number in range(columns)), "kind"]) + "\n")
        for number in range(rows):
            values = rng.integers(0, 1000, columns)
            cells = [f"{value / 1000:.3f}" for value in values.tolist()]
            file.write(",".join([*cells, "abc"[number % 3]]) + "\n")


def build(table: str, out: str, kind: str) -> dict[str, Any]:
    """Builds the table; gives the seconds after imports, and the snapshot's folder."""
    import apache_beam as beam
    import tensorflow as tf
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    import snapshard as ss
    import snapshard.pipelines.build
    import snapshard.pipelines.prepare.job
    import snapshard.pipelines.write.job

    # What the engine and TensorFlow import on first use is import time too.
    with beam.Pipeline(FnApiRunner()) as pipeline:
        pipeline | beam.Create([0]) | beam.Reshuffle()
    tf.constant(0)
    prepare = [ss.tables.stack("c*", to="x")] if kind == "stacked" else []
    recipe = ss.Recipe(
        name=kind,
        source=ss.Csv(table, label="kind"),
        prepare=prepare,
        splits=ss.Splits(train=1.0),
    )
    started = time.perf_counter()
    snapshot = ss.build(recipe, out, workers=1)
    return {"build": time.perf_counter() - started, "snapshot": snapshot.path}


def read(snapshot: str, batch_size: int, epochs: int) -> dict[str, Any]:
    """Reads epochs after imports: the seconds to the first batch, and of each epoch."""
    import tensorflow as tf

    sys.path.insert(0, snapshot)
    import reader

    tf.constant(0)
    started = time.perf_counter()
    dataset = reader.dataset("train", batch_size, as_supervised=True)
    first, seconds, num_batches = 0.0, [], 0
    for _ in range(epochs):
        num_batches = 0
        for _ in dataset:
            first = first or time.perf_counter() - started
            num_batches += 1
        seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
    # Within one long pass there is no start of an epoch.
    endless = iter(reader.dataset("train", batch_size, as_supervised=True, epochs=None))
    for _ in range(num_batches):
        next(endless)
    started = time.perf_counter()
    for _ in range(2 * num_batches):
        next(endless)
    return {
        "first batch": first,
        "first": seconds[0],
        "later": statistics.median(seconds[1:]),
        "batch": (time.perf_counter() - started) / (2 * num_batches),
    }


def in_process(*arguments: str | int) -> dict[str, Any]:
    """Runs a function of this script in a process of its own; adds the seconds of all of it."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--run", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    whole = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{arguments} failed:\n{done.stderr[-4000:]}")
    return {**json.loads(done.stdout.splitlines()[-1]), "whole": whole}


def measure(rows: int, columns: int, *, rounds: int, batch_size: int, epochs: int) -> None:
    """Builds and reads one table in all ways, and prints what they took."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        scratch = Path(folder).resolve()
        table = scratch / "wide.csv"
        write_table(table, rows=rows, columns=columns)
        size = table.stat().st_size / 1e6
        for number in range(rounds):
            for kind in KINDS:
                built = in_process("build", str(table), str(scratch / f"out-{number}"), kind)
                reading = in_process("read", built["snapshot"], batch_size, epochs)
                found[kind].append({**reading, **built})
    print(f"\n### {rows:,} rows × {columns:,} columns, {size:.0f} MB; batches of {batch_size}\n")
    print(HEAD)
    print("| --- |" + " ---: |" * 6)
    for kind, title in KINDS.items():
        middle = {
            name: statistics.median(one[name] for one in found[kind])
            for name in ("build", "whole", "first batch", "first", "later", "batch")
        }
        *cells, batch = middle.values()
        print(f"| {title} | {' | '.join(f'{one:.2f}' for one in cells)} | {1000 * batch:.1f} |")


def main() -> None:
    """Measures all tables and prints theirs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=["2000x2000", "300x5000"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--smoke", action="store_true", help="little of all, to see that it runs")
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        name, *given = arguments.run
        if name == "build":
            print(json.dumps(build(*given)))
        else:
            snapshot, batch_size, epochs = given
            print(json.dumps(read(snapshot, int(batch_size), int(epochs))))
        return
    if arguments.smoke:
        arguments.tables, arguments.rounds, arguments.epochs = ["60x80"], 1, 2
    for table in arguments.tables:
        rows, columns = map(int, table.split("x"))
        measure(
            rows,
            columns,
            rounds=arguments.rounds,
            batch_size=arguments.batch_size,
            epochs=arguments.epochs,
        )


if __name__ == "__main__":
    main()
