"""What one reader costs beside another: the readers of two snapshots of the same records.

Give the folders of two snapshots, such as one of an older version of snapshard and one of this one.
Rounds are interleaved, and each of them reads with both readers, one right after the other, in
turns. What counts is the processor time of an example, of all threads of the process together: it
depends little on what else the machine does. A ratio below 1 says that the second reader is
cheaper.

    python benchmarks/read_against.py OLD NEW --image-size 64 64
"""

import argparse
import functools
import importlib.util
import math
import os
import statistics
import sys
import types
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from read_window import rate

OPTIONS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "shuffled with a seed": {"seed": 1},
    "stored order": {"shuffle": False},
    "shuffled, `as_supervised=True`": {"as_supervised": True},
    "shuffled, batches of 32": {"batch_size": 32},
    "shuffled, batches of 1,024": {"batch_size": 1024},
    "with a seed, batches of 32": {"seed": 1, "batch_size": 32},
    "with a seed, batches of 1,024": {"seed": 1, "batch_size": 1024},
}
_T_975 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Quantiles of Student's distribution for 1, 2, 3 … degrees of freedom; 1.96 lies beyond."""


def load_reader(snapshot: Path) -> types.ModuleType:
    """Imports the snapshot's reader, each time anew; that of an older snapshot is one file."""
    package = snapshot / "reader" / "__init__.py"
    path = package if package.exists() else snapshot / "reader.py"
    name = f"reader_{uuid.uuid4().hex}"
    folders = [str(package.parent)] if path == package else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of some ratios, and its 95 % confidence interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle, num = statistics.fmean(logs), len(logs)
    if num == 1:
        return math.exp(middle), 0.0, math.inf
    quantile = _T_975[num - 2] if num - 2 < len(_T_975) else 2.13
    half = quantile * statistics.stdev(logs) / math.sqrt(num)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def compare(
    one: Callable[[], float], other: Callable[[], float], *, rounds: int
) -> list[tuple[float, float]]:
    """What two measures give in each round; the one that comes first takes turns."""
    found = []
    for number in range(rounds):
        if number % 2:
            second = other()
            found.append((one(), second))
        else:
            found.append((one(), other()))
    return found


def row(name: str, pairs: Sequence[tuple[float, float]]) -> str:
    """One line of the table."""
    middle, low, high = interval([second / first for first, second in pairs])
    costs = (f"{statistics.median(column):.2f}" for column in zip(*pairs, strict=True))
    return f"| {' | '.join([name, *costs, f'{middle:.3f} ({low:.3f} to {high:.3f})'])} |"


def main() -> None:
    """Times both readers and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--image-size", type=int, nargs=2, metavar=("H", "W"))
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each window")
    parser.add_argument("--warm", type=float, default=1.0, help="seconds before each window")
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows with such a name")
    arguments = parser.parse_args()
    readers = [load_reader(folder) for folder in (arguments.old, arguments.new)]
    size = {"image_size": tuple(arguments.image_size)} if arguments.image_size else {}

    def cost(reader: types.ModuleType, options: dict[str, Any]) -> float:
        asked = {"batch_size": arguments.batch_size, "epochs": None} | size | options
        num = reader.NUM_EXAMPLES["train"]
        window = {"warm": arguments.warm, "seconds": arguments.seconds}
        dataset = reader.dataset("train", **asked)
        return rate(dataset, num_examples=num, batch_size=asked["batch_size"], **window)[1]

    print(
        f"{arguments.rounds} rounds, windows of {arguments.seconds} s, {os.cpu_count()} processors"
    )
    print("\n| | µs, first | µs, second | second / first (95 % interval) |")
    print("| --- | --- | --- | --- |")
    for name, options in OPTIONS.items():
        if arguments.rows and not any(text in name for text in arguments.rows):
            continue
        measures = [functools.partial(cost, reader, options) for reader in readers]
        print(row(name, compare(*measures, rounds=arguments.rounds)), flush=True)


if __name__ == "__main__":
    main()
