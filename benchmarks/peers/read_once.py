"""Reads a snapshot once in a fresh process, with its reader or with a tutorial's lines.

Usage: read_once.py CONTENDER SNAPSHOT FACTS, where FACTS is JSON: what the tutorial knows of the
snapshot, and how many later epochs to read. Prints [processor, wall] seconds of each part as JSON.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from read_patterns import Records, batched_once

BATCH = 256
contender, snapshot, facts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
found: dict[str, tuple[float, float]] = {}


def clock() -> tuple[float, float]:
    """Processor time of all threads, and the time."""
    return time.process_time(), time.perf_counter()


def note(part: str, begin: tuple[float, float]) -> None:
    """Keeps what a part took since ``begin``."""
    processor, time_now = clock()
    found[part] = (processor - begin[0], time_now - begin[1])


def dataset(split: str) -> Any:
    """One epoch of a split, shuffled if it is "train"."""
    if contender == "tutorial":
        shards = sorted(map(str, Path(snapshot).glob(f"{split}-*.tfrecord")))
        records = Records(shards, facts["features"], "none", BATCH)
        return batched_once(records, shuffles=split == "train")
    import reader  # type: ignore[import-not-found, unused-ignore]

    return reader.dataset(split, BATCH, **facts["options"])


sys.path.insert(0, snapshot)
begin = clock()
if facts["splits"]:
    for made in [dataset(split) for split in facts["splits"]]:
        next(iter(made))
    note("splits", begin)
else:
    train = dataset("train")
    batches = iter(train)
    next(batches)
    note("first", begin)
    for _ in batches:
        pass
    note("epoch", begin)
    for _ in range(facts["epochs"]):
        begin = clock()
        for _ in train:
            pass
        note("later", begin)
print(json.dumps(found))
