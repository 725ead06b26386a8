"""How fast a build of a table is, beside the standard recipe of tensorflow-transform.

Two tables, made anew for each run of this script and always the same: ``taxi``, in the style of
the Chicago taxi trips (18 columns, mixed types, missing values), and ``plain`` (seven columns of
decimal numbers, three of words). The same ``preprocessing_fn`` (z-scores, vocabularies, buckets)
runs in both contenders:

- snapshard: ``ss.build`` of ``ss.Csv``, which also hashes the input, types it, shuffles globally,
  verifies what it wrote and makes it durable;
- tft: ``ReadFromText``, the CSV decoder of tfx_bsl, ``AnalyzeAndTransformDataset``,
  ``RecordBatchToExamplesEncoder``, ``WriteToTFRecord``, as its documentation puts them together.

Rounds are interleaved, and ratios are taken within a round. Processor time (of child processes too,
and so the imports of snapshard's analysis) says more than seconds do where other jobs run. Memory
is the proportional set size of the whole process tree, sampled.

    python benchmarks/tables.py --rows 1000000 --rounds 3
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from build import spread
from memory import tree_memory

PEERS = Path(__file__).resolve().parent / "peers"
TITLES = {
    "work": "seconds after imports",
    "whole": "seconds of the whole process",
    "processor": "processor seconds after imports",
}
CONTENDERS = {"snapshard": "snapshard_tables.py", "tft": "tft_tables.py"}


def taxi_table(num_rows: int) -> pa.Table:
    """Trips with the columns, types, ranges and shares of missing values of the real ones."""
    rng = np.random.default_rng(0)

    def among(num: int, skew: float) -> np.ndarray:
        weights = 1 / np.arange(1, num + 1) ** skew
        return rng.choice(num, num_rows, p=weights / weights.sum())

    def with_missing(values: np.ndarray, share: float, kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind, mask=rng.random(num_rows) < share)

    areas, companies = among(77, 1.2), among(61, 1.5)
    latitudes = np.round(41.65 + 0.36 * rng.random(300), 9)
    longitudes = np.round(-87.91 + 0.38 * rng.random(300), 9)
    pickups, dropoffs = among(237, 0.9), among(292, 0.9)
    miles = np.round(rng.exponential(2.5, num_rows), 1) * (rng.random(num_rows) > 0.27)
    seconds = 60 * rng.integers(0, 60, num_rows)
    fares = np.round(3.25 + 1.8 * miles + seconds / 400, 2)
    tips = np.where(rng.random(num_rows) < 0.32, np.round(fares * 0.2, 2), 0.0)
    starts = 1_356_998_400 + 900 * rng.integers(0, 120_000, num_rows)
    payments = np.array(["Cash", "Credit Card", "No Charge", "Unknown", "Dispute", "Prcard"])
    names = np.array([f"{i * 37 % 91} Taxi Affiliation Services" for i in range(61)])
    return pa.table(
        {
            "pickup_community_area": with_missing(areas + 1, 0.0002, pa.int64()),
            "fare": pa.array(fares),
            "trip_start_month": pa.array(rng.integers(1, 13, num_rows)),
            "trip_start_hour": pa.array(rng.integers(0, 24, num_rows)),
            "trip_start_day": pa.array(rng.integers(1, 8, num_rows)),
            "trip_start_timestamp": pa.array(starts),
            "pickup_latitude": with_missing(latitudes[pickups], 0.0002, pa.float64()),
            "pickup_longitude": with_missing(longitudes[pickups], 0.0002, pa.float64()),
            "dropoff_latitude": with_missing(latitudes[dropoffs], 0.032, pa.float64()),
            "dropoff_longitude": with_missing(longitudes[dropoffs], 0.032, pa.float64()),
            "trip_miles": pa.array(miles),
            "pickup_census_tract": with_missing(17_031_000_000 + pickups, 0.999, pa.int64()),
            "dropoff_census_tract": with_missing(17_031_000_000 + dropoffs, 0.28, pa.int64()),
            "payment_type": pa.array(payments[among(6, 1.6)]),
            "company": with_missing(names[companies], 0.34, pa.string()),
            "trip_seconds": with_missing(seconds, 0.0004, pa.int64()),
            "dropoff_community_area": with_missing(among(69, 1.2) + 1, 0.034, pa.int64()),
            "tips": pa.array(tips),
        }
    )


def plain_table(num_rows: int) -> pa.Table:
    """Seven columns of decimal numbers of six digits, three of words; nothing is missing."""
    rng = np.random.default_rng(1)
    columns = {
        f"x{i}": pa.array(np.round(rng.normal(i, 1 + i, num_rows), 5 - len(str(3 * i))))
        for i in range(7)
    }
    for i in range(3):
        words = np.array([f"word {number}" for number in range(10 ** (i + 1))])
        columns[f"w{i}"] = pa.array(rng.choice(words, num_rows))
    return pa.table(columns)


TABLES = {"taxi": taxi_table, "plain": plain_table}


def write_table(kind: str, path: Path, *, num_rows: int) -> None:
    """Writes a table as CSV with a header, missing values as nothing."""
    options = pyarrow.csv.WriteOptions(quoting_style="none", quoting_header="none")
    pyarrow.csv.write_csv(TABLES[kind](num_rows), path, options)


def run_once(command: list[str], *, num_rows: int) -> dict[str, float]:
    """Runs one contender: seconds after its imports and as a whole, and its peak memory in MB."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    started = time.perf_counter()
    peak = 0
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as failed:
        process = subprocess.Popen(command, stdout=said, stderr=failed, env=environment)
        ended = threading.Event()

        def sample() -> None:
            nonlocal peak
            while not ended.wait(0.1):
                peak = max(peak, tree_memory(process.pid)[2])

        thread = threading.Thread(target=sample)
        thread.start()
        process.wait()
        ended.set()
        thread.join()
        whole = time.perf_counter() - started
        said.seek(0)
        failed.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{failed.read()[-4000:]}")
        facts = json.loads(said.read().splitlines()[-1])
    if facts["num_examples"] != num_rows:
        sys.exit(f"{' '.join(command)} made {facts['num_examples']} of {num_rows} examples")
    return {
        "work": facts["seconds"],
        "whole": whole,
        "processor": facts["processor_seconds"],
        "memory": peak / 1e6,
    }


def main() -> None:
    """Times both contenders on each table and prints what they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    arguments = parser.parse_args()
    for kind in arguments.tables:
        times: dict[str, list[dict[str, float]]] = {}
        with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as scratch:
            table = Path(scratch).resolve() / f"{kind}.csv"
            write_table(kind, table, num_rows=arguments.rows)
            print(f"{kind}: {arguments.rows:,} rows, {table.stat().st_size / 1e6:.0f} MB")
            for number in range(arguments.rounds):
                for name, script in CONTENDERS.items():
                    out = Path(scratch).resolve() / f"{name}-{number}"
                    command = [sys.executable, str(PEERS / script), kind, str(table), str(out)]
                    found = run_once(command, num_rows=arguments.rows)
                    times.setdefault(name, []).append(found)
                    print(f"  {name}: {found}", file=sys.stderr, flush=True)
                    shutil.rmtree(out, ignore_errors=True)
        own = times["snapshard"]
        for part in ("work", "whole", "processor"):
            print(f"  {TITLES[part]}")
            for name, rounds in times.items():
                ratios = [a[part] / b[part] for a, b in zip(rounds, own, strict=True)]
                seconds = spread([one[part] for one in rounds], " s")
                print(f"    {name:12}{seconds:>32}   ratio {spread(ratios)}")
        for name, rounds in times.items():
            print(f"  peak memory of {name}: {max(one['memory'] for one in rounds):,.0f} MB")


if __name__ == "__main__":
    main()
