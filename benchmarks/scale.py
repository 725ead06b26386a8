"""Planning at scale: 10^10 records in 10^6 blocks, cut into 10^5 shards.

Writes the summary that the prepare job would leave of so many runs, through the functions that
write it there, then plans in a process of its own: ``find_summary`` and ``make_plan``, which the
plan step of a build calls, reading, checking and decoding the files, choosing the compression,
planning the splits, and writing the plan. Simulated are the counts (multinomial, of uniform keys;
bytes by the normal law of their number) and what the entries of runs say. The runs that the plan
step samples are real files; others, and all key files, do not exist, so that reading one would
fail. A plan that takes over 2 GB of memory or 60 s ends it with exit code 1.

    python benchmarks/scale.py
    python benchmarks/scale.py --records 1e8 --blocks 1e4
"""

import argparse
import dataclasses
import hashlib
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import snapshard as ss
from snapshard.pipelines.plan.step import contents_digest, find_plan, make_plan
from snapshard.pipelines.prepare.run_files import RunFiles
from snapshard.pipelines.prepare.sort_keys import bins_for
from snapshard.pipelines.survey.resolve import ResolvedFeatures
from snapshard.schemas.blocks import BatchInfo, RunInfo
from snapshard.schemas.naming import Workspace
from snapshard.schemas.progress import Silent
from snapshard.transforms.examples.sizing import SAMPLE_RUNS
from snapshard.transforms.examples.tfrecord import FRAME_BYTES
from snapshard.transforms.rejects import Dropped
from snapshard.transforms.runs.files import BATCH_BYTES
from snapshard.transforms.runs.key_histogram import KeyBins, KeyHistogram
from snapshard.transforms.runs.summary import (
    RunEntry,
    Summary,
    find_summary,
    name_summary,
    num_parts,
    write_summary,
)

RECIPE = ss.Recipe(
    name="scale",
    source=ss.Csv("none.csv"),
    splits=ss.Splits(train=0.8, validation=0.1, test=0.1),
)
FEATURES = {"text": ss.Text()}
FINGERPRINT = "0" * 16
RECORD_BYTES = 1_500
KEY_BYTES = 34
"""Of a record in a run's key file, as Arrow lays it out."""

MAX_SECONDS = 60
MAX_BYTES = 2 * 10**9
"""The limits of a plan, imports included: beyond them the benchmark fails."""


def simulate(workspace: Workspace, *, num_records: int, num_blocks: int, record_bytes: int) -> str:
    """Writes the summary of a build's runs; gives its name."""
    bins = bins_for(RECIPE.splits, RECIPE.shards, num_units=num_blocks)
    name = name_summary(hashlib.sha256(b"scale").hexdigest()[:32], num_blocks)
    number, rng = num_parts(name), np.random.default_rng(0)
    runs_of = np.diff(np.linspace(0, num_blocks, number + 1).astype(np.int64))
    records_of = np.diff(np.linspace(0, num_records, number + 1).astype(np.int64))
    for part in range(number):
        entries = real_runs(workspace, part, number=number, record_bytes=record_bytes, rng=rng)
        run = simulated_run(num_records // num_blocks, record_bytes)
        for index in range(len(entries), int(runs_of[part])):
            # The first eight digits of a run's id say which part it belongs to.
            run_id = f"{index * number + part:08x}{int(rng.integers(1 << 62)):024x}"
            entries.append(run(run_id, int(rng.integers(1 << 52, 1 << 56))))
        histogram = simulated_histogram(
            bins,
            part,
            number=number,
            num_records=int(records_of[part]),
            record_bytes=record_bytes,
            rng=rng,
        )
        entries.sort(key=lambda entry: entry.run.run_id)
        write_summary(Summary(histogram, tuple(entries)), workspace, name, part)
    return name


def real_runs(
    workspace: Workspace, part: int, *, number: int, record_bytes: int, rng: np.random.Generator
) -> list[RunEntry]:
    """Those runs of a part that the plan step samples: files with the lowest keys of all."""
    files = RunFiles(workspace, FEATURES, label=None, stratify_by=None, suffix="plain")
    num_records = BATCH_BYTES // record_bytes
    entries = []
    for index in range(part, SAMPLE_RUNS, number):
        keys = rng.integers(1 << 40, 1 << 64, num_records, np.uint64)
        keys[0] = index
        texts = [rng.bytes(record_bytes) for _ in range(num_records)]
        columns = [
            np.zeros(num_records, np.int16),
            np.sort(keys),
            pa.array([b"%d" % row for row in range(num_records)], pa.large_binary()),
            np.full(num_records, record_bytes),
            pa.array(texts, pa.large_binary()),
        ]
        records = pa.RecordBatch.from_arrays([*map(pa.array, columns)], schema=files.schema)
        run_id = f"{index:08x}{0:024x}"
        made = files.write(run_id, [records], dropped=Dropped(), in_order=True)
        entries += [RunEntry(entry.run, ()) for entry in made.entries]
    return entries


def simulated_run(num_records: int, record_bytes: int) -> Callable[[str, int], RunEntry]:
    """Makes what the summary says of a run; its batches are as many as a real run's."""
    rows = max(1, BATCH_BYTES // record_bytes)
    starts = range(0, num_records, rows)
    batches = tuple(
        BatchInfo(
            offset=1_000 + start * record_bytes,
            num_bytes=rows * record_bytes,
            num_records=min(rows, num_records - start),
            partition=0,
            key=(start << 64) // num_records,
            checksum=start,
        )
        for start in starts
    )
    keys = (dataclasses.replace(batches[0], num_bytes=KEY_BYTES * num_records),)

    def make(run_id: str, first_key: int) -> RunEntry:
        info = RunInfo(
            run_id=run_id,
            num_records=num_records,
            num_bytes=num_records * record_bytes,
            num_rejects=0,
            rejects_sha256="",
            batches=(dataclasses.replace(batches[0], key=first_key), *batches[1:]),
        )
        return RunEntry(info, keys)

    return make


def simulated_histogram(
    bins: KeyBins,
    part: int,
    *,
    number: int,
    num_records: int,
    record_bytes: int,
    rng: np.random.Generator,
) -> KeyHistogram:
    """What all runs together hold in a part of the keys."""
    per_part = (1 << bins.bits) // number
    counts = rng.multinomial(num_records, np.full(per_part, 1 / per_part))
    keys = (np.arange(per_part, dtype=np.uint64) + np.uint64(part * per_part)) << np.uint64(
        64 - bins.bits
    )
    for end in bins.ends:
        # A bin with an end of a split inside is two cells.
        inside = int((end >> (64 - bins.bits)) - part * per_part)
        if 0 <= inside < per_part:
            below = int(rng.binomial(counts[inside], 0.5))
            keys = np.insert(keys, inside + 1, np.uint64(end))
            counts = np.insert(counts, inside + 1, counts[inside] - below)
            counts[inside] = below
    held = counts > 0
    keys, counts = keys[held], counts[held]
    spread = 0.5 * record_bytes * np.sqrt(counts) * rng.standard_normal(len(counts))
    sizes = np.maximum(counts * record_bytes + spread, counts).astype(np.int64)
    of_one = KeyHistogram.from_arrays(
        bins.partitions(np.zeros(len(keys), np.int16), keys), keys, num_bytes=sizes, bits=bins.bits
    )
    largest = np.minimum(sizes, 3 * record_bytes)
    return dataclasses.replace(of_one, num_records=counts, max_bytes=largest)


def plan(folder: str, name: str) -> None:
    """Plans, as the plan step of a build; prints what that took and gave."""
    workspace = Workspace(folder)
    started, processor = time.perf_counter(), time.process_time()
    before = peak_bytes()
    summary = find_summary(workspace, name)
    if summary is None:
        sys.exit("the simulated summary is not whole")
    num_records, facts = summary.num_records, summary.image_facts()
    read = time.perf_counter() - started
    survey: Any = types.SimpleNamespace(
        fingerprint=FINGERPRINT,
        recipe=RECIPE,
        features=ResolvedFeatures(raw=dict(FEATURES), prepared=dict(FEATURES)),
        limit=None,
    )
    plan = make_plan(survey, summary, None, workspace=workspace, progress=Silent())
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    if facts or find_plan(workspace, FINGERPRINT, contents_digest(summary, None)) != plan:
        sys.exit("the plan in the workspace is another one")
    print(f"{num_records:,} records in {len(summary.table):,} runs")
    print(f"{len(summary.histogram.bin):,} bins of {1 << summary.histogram.bits:,} hold records")
    for split in plan.splits:
        sizes = [s.num_bytes + FRAME_BYTES * s.num_examples for s in split.shards]
        print(
            f"{split.name}: {len(sizes):,} shards of {min(sizes):,} to {max(sizes):,} bytes, "
            f"{100 * (max(sizes) - min(sizes)) / min(sizes):.2f} % apart"
        )
    num_shards = sum(len(split.shards) for split in plan.splits)
    print(
        f"{num_shards:,} shards planned in {seconds:.1f} s ({read:.1f} s to read the summary; "
        f"{processor:.1f} s of processor), peak {peak_bytes() / 1e6:,.0f} MB "
        f"({before / 1e6:,.0f} MB of it imports)"
    )
    check_limits(seconds, peak_bytes())


def check_limits(seconds: float, num_bytes: int) -> None:
    """Ends with exit code 1 where planning took more than it may."""
    if seconds > MAX_SECONDS or num_bytes > MAX_BYTES:
        sys.exit(
            f"Planning took {seconds:.1f} s and {num_bytes / 1e6:,.0f} MB. Its limits are "
            f"{MAX_SECONDS} s and {MAX_BYTES / 1e6:,.0f} MB: what made it slower or larger has to "
            "be found, on an idle machine first."
        )


def peak_bytes() -> int:
    """The most memory this process has held."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def main() -> None:
    """Simulates, then plans in another process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=float, default=1e10)
    parser.add_argument("--blocks", type=float, default=1e6)
    parser.add_argument(
        "--record-bytes", type=int, default=RECORD_BYTES, help="encoded, on average"
    )
    parser.add_argument("--plan", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plan:
        plan(*arguments.plan)
        return
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as scratch:
        started = time.perf_counter()
        name = simulate(
            Workspace(scratch),
            num_records=int(arguments.records),
            num_blocks=int(arguments.blocks),
            record_bytes=arguments.record_bytes,
        )
        files = [path.stat().st_size for path in Path(scratch, "summaries").iterdir()]
        print(
            f"simulated in {time.perf_counter() - started:.0f} s: a summary of "
            f"{sum(files) / 1e6:,.0f} MB in {len(files):,} files",
            flush=True,
        )
        done = subprocess.run([sys.executable, __file__, "--plan", scratch, name], check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
