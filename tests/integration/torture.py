"""Kills builds at random moments, again and again: ``make torture``.

``python -m tests.integration.torture [--seeds N] [--kills N] [RECIPE …]`` builds each recipe of
``kill_projects`` once, undisturbed. Then, for each seed, it kills builds, one to three in the same
output, until so many were struck: half of them after a random time, most of which fall into the
longest steps, and half a random moment after a transition that is drawn from all, so that every
step has its share. After each kill, what is visible must be whole, and in the end the snapshot
the same byte for byte. It prints in which steps they struck.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from .kill_projects import LIBRARIES, Project, Projects
from .killed_builds import STEPS, Stop

_BAR = 40
_SOON = 0.05


def torture(project: Project, folder: Path, *, seed: int, num_kills: int) -> Counter[str]:
    """Kills builds until so many were struck; gives how many in each step."""
    rng, longest = random.Random(seed), project.seconds
    struck: Counter[str] = Counter()
    while struck.total() < num_kills:
        out = folder / "out"
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.5:
                ended = project.kill_after(out, rng.uniform(0, longest))
            else:
                stop = Stop(rng.choice(project.names), "before", delay=rng.uniform(1e-6, _SOON))
                ended = project.kill_after(out, stop=stop)
            if not ended.killed:
                longest = min(longest, max(ended.seconds, 0.1))
                break
            struck[ended.step] += 1
        project.go_on(out)
        shutil.rmtree(out)
    return struck


def histogram(struck: Counter[str]) -> str:
    """A line for each step, with a bar."""
    longest = max(struck.values(), default=1)
    return "\n".join(
        f"  {step:<10} {struck[step]:>4} {'█' * -(-struck[step] * _BAR // longest)}"
        for step in STEPS
    )


def main() -> None:
    """Reads the arguments, and kills."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipes", nargs="*", default=list(LIBRARIES), metavar="RECIPE")
    parser.add_argument("--seeds", type=int, default=2, help="how many, from 0 on")
    parser.add_argument("--kills", type=int, default=30, help="for each recipe and seed")
    chosen = parser.parse_args()
    started = time.perf_counter()
    total: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="snapshard-torture-") as name,
        Projects(Path(name, "projects")) as projects,
    ):
        for recipe in chosen.recipes:
            for seed in range(chosen.seeds):
                project = projects[recipe]
                struck = torture(project, Path(name), seed=seed, num_kills=chosen.kills)
                total += struck
                print(f"{recipe}, seed {seed}: {struck.total()} kills struck in")
                print(histogram(struck), flush=True)
    print(f"{total.total()} kills in {time.perf_counter() - started:.0f} s, struck in")
    print(histogram(total))
    print("After each, nothing half-published; each snapshot the same, byte for byte.")


if __name__ == "__main__":
    sys.exit(main())
