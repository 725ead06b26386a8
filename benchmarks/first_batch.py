"""How soon the first batch comes, and what an epoch costs, beside the lines that tutorials teach.

Each measurement is a fresh process that has imported TensorFlow: from ``import reader`` to the
first batch; the whole first epoch; a later one; and in another process the datasets and first
batches of train, validation and test. What counts is the processor time of all threads, which
depends little on what else the machine does. Rounds are interleaved, and ratios are taken within a
round.

    python benchmarks/first_batch.py --images DIR

The tutorial's lines for "train" are ``interleave`` over the shards, ``shuffle(1000)``, ``batch``, a
parallel ``map`` of ``tf.io.parse_example``, ``prefetch``; for other splits the same without
``interleave`` and ``shuffle``. All read batches of 256. DIR holds class folders of JPEGs, for
example the full sign_digits.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from build import spread
from read import build, load_reader, multiply

HERE = Path(__file__).resolve().parent
PARTS = {
    "first": "first batch",
    "epoch": "first epoch",
    "later": "a later epoch",
    "splits": "train, validation and test: one batch of each",
}
CONTENDERS: dict[str, dict[str, Any]] = {
    "tutorial": {},
    "`reader.dataset`": {},
    "`reader.dataset`, `seed=1`": {"seed": 1},
}
Taken = dict[str, tuple[float, float]]
"""Seconds of each part: of processor, and of time."""


def take(number: int, images: Path, target: Path) -> None:
    """Copies some of the photographs, with their folders; all if there are fewer."""
    paths = sorted(images.glob("*/*"))
    for path in random.Random(0).sample(paths, min(number, len(paths))):
        (target / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / path.parent.name / path.name)


def read_once(name: str, snapshot: Path, *, epochs: int) -> Taken:
    """What one contender takes, in two fresh processes."""
    reader, taken = load_reader(snapshot), {}
    for splits in ([], [*reader.NUM_EXAMPLES]):
        facts = {
            "features": reader.FEATURES,
            "options": CONTENDERS[name],
            "splits": splits,
            "epochs": epochs,
        }
        script = str(HERE / "peers" / "read_once.py")
        command = [sys.executable, script, name, str(snapshot), json.dumps(facts)]
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            sys.exit(f"{name} failed:\n{done.stderr[-4000:]}")
        taken |= json.loads(done.stdout.splitlines()[-1])
    return taken


def table(rounds: list[dict[str, Taken]]) -> str:
    """The processor time of each part in Markdown, and its ratio to the tutorial's."""
    names = [*CONTENDERS]
    head = ["", f"{names[0]}, s", *(f"{name}, s | × tutorial" for name in names[1:])]
    lines = [head, ["---"] * (2 * len(names))]
    for part, title in PARTS.items():
        seconds = {name: [taken[name][part][0] for taken in rounds] for name in names}
        base, *others = seconds.values()
        row = [title, spread(base)]
        for own in others:
            row += [spread(own), spread([a / b for a, b in zip(own, base, strict=True)])]
        lines.append(row)
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def main() -> None:
    """Times all contenders on snapshots of each size and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = os.environ.get("SNAPSHARD_DATA")
    default = Path(data) / "sign_digits" if data else None
    parser.add_argument("--images", type=Path, default=default, required=default is None)
    parser.add_argument("--photographs", type=int, default=600)
    parser.add_argument("--rows", type=int, nargs="*", default=[700, 5000, 50_000, 1_000_000])
    parser.add_argument("--snapshots", type=Path, nargs="*", default=[], help="read these, too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1, help="later epochs")
    parser.add_argument("--smoke", action="store_true", help="little of all, to see that it runs")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.rows, arguments.photographs = [], 60
        arguments.rounds = arguments.epochs = 1
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        scratch = Path(folder).resolve()
        images = scratch / "images"
        snapshots = list(arguments.snapshots)
        for number in arguments.rows:
            made = build(["table split"], images, scratch / str(number), num_rows=number)
            snapshots += made.values()
        if arguments.photographs:
            multiply(arguments.images, scratch / "all", copies=1)
            take(arguments.photographs, scratch / "all", images)
            snapshots += build(["jpeg split"], images, scratch, num_rows=0).values()
        print(f"{arguments.rounds} rounds, {os.cpu_count()} processors; of processor")
        for snapshot in snapshots:
            rounds: list[dict[str, Taken]] = []
            # A round before the others compiles modules.
            for number in range(0 if arguments.smoke else -1, arguments.rounds):
                turn = number % len(CONTENDERS)
                names = [*CONTENDERS][turn:] + [*CONTENDERS][:turn]
                taken = {name: read_once(name, snapshot, epochs=arguments.epochs) for name in names}
                rounds += [taken] if number >= 0 else []
            num = load_reader(snapshot).NUM_EXAMPLES
            size = sum(path.stat().st_size for path in snapshot.glob("train-*"))
            print(f"\n### {snapshot.parent.name}: {num}, {size / 1e6:.1f} MB of train\n")
            print(table(rounds), flush=True)


if __name__ == "__main__":
    main()
