"""Readers that share a cache's folder: each gets all records of its own snapshot."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshard.schemas.features import Scalar

NUM_SHARDS, NUM_RECORDS, EPOCHS = 3, 200, 2
READ = """
import json, sys, time
from pathlib import Path

snapshot, cache, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
sys.path.insert(0, snapshot)
import reader
Path(options.pop("ready")).touch()
while not Path(cache, "go").exists():
    time.sleep(0.005)
found = reader.dataset("train", as_supervised=False, cache=cache, **options)
print(json.dumps([int(n) for batch in found for n in batch["n"].numpy()]))
"""
READERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("first", {"batch_size": 7, "seed": 1, "epochs": EPOCHS}),
    ("first", {"batch_size": 32, "shuffle": False, "epochs": EPOCHS}),
    ("second", {"batch_size": 7, "seed": 1, "epochs": EPOCHS}),
)


@pytest.mark.slow  # three processes that load TensorFlow, at once
def test_processes_and_snapshots_share_a_folder(
    tmp_path: Path, write_snapshot: Callable[..., Any]
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    numbers, readers = {}, {}
    for index, name in enumerate(("first", "second")):
        numbers[name] = range(index * 10**6, index * 10**6 + NUM_RECORDS)
        shards = [[{"n": n} for n in numbers[name][i::NUM_SHARDS]] for i in range(NUM_SHARDS)]
        # Their shards have equal names, and equal numbers of records.
        readers[name] = write_snapshot(
            tmp_path / name,
            {"n": Scalar("int64")},
            {"train": shards},
            fingerprint=f"{index}" * 16,
            label=None,
        )
    started = []
    for number, (name, options) in enumerate(READERS):
        ready = tmp_path / f"ready {number}"
        told = json.dumps({**options, "ready": str(ready)})
        process = subprocess.Popen(
            [sys.executable, "-c", READ, str(tmp_path / name), str(cache), told],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append((name, ready, process))
    while not all(ready.exists() or process.poll() is not None for _, ready, process in started):
        time.sleep(0.01)
    (cache / "go").touch()
    for name, _, process in started:
        stdout, stderr = process.communicate(timeout=300)
        assert process.returncode == 0, stderr
        assert Counter(json.loads(stdout)) == Counter({n: EPOCHS for n in numbers[name]})
    # Those that come later find complete files of their own snapshot, and write none.
    before = sorted(path.name for path in cache.iterdir())
    for name, reader in readers.items():
        options = {"seed": 3, "epochs": 1, "as_supervised": False}
        found = reader.dataset("train", 16, cache=str(cache), **options)
        assert sorted(int(n) for batch in found for n in batch["n"].numpy()) == list(numbers[name])
    assert sorted(path.name for path in cache.iterdir()) == before
