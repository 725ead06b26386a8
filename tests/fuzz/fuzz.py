"""Damages files of every kind and says what snapshard makes of it: a script, without TensorFlow.

    python tests/fuzz/fuzz.py                            10,000 mutations, a table
    python tests/fuzz/fuzz.py --num 100000 --first 7000  more of them, others
    python tests/fuzz/fuzz.py --commands 20              through processes of the command line
    python tests/fuzz/fuzz.py CSV:12                     one again, with its traceback

Prints a table, then a line for each that went wrong with the command that tries it again. Ends with
1 if there is any.
"""

import argparse
import collections
import concurrent.futures
import functools
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

# The libraries' threads stay few, since children are forked.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import commands
import decoding
import inputs
import snapshots
import workspace
from harness import WRONG, Kind, Tally, run_kind, table

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (*inputs.KINDS, *decoding.KINDS, *workspace.KINDS, *snapshots.KINDS)
}


def again(name: str, seed: int, *, keep: str | None) -> int:
    """Tries one mutation in this process."""
    with tempfile.TemporaryDirectory(prefix="snapshard-fuzz-") as folder:
        target = KINDS[name].make(Path(folder))
        content = target.mutate(Random(f"{name}/{seed}"))
        if keep:
            Path(keep).write_bytes(content)
        print(f"{len(content):,} bytes: {content[:600]!r}")
        try:
            outcome, how = target.try_out(content)
        except Exception:
            traceback.print_exc()
            return 1
    print(outcome, how, sep=": ")
    return int(outcome == WRONG)


def _tried(name: str, *, seeds: range) -> Tally:
    tally = Tally()
    run_kind(KINDS[name], seeds, tally)
    return tally


def run(names: list[str], num: int, *, first: int, ways: bool, jobs: int) -> int:
    """Tries many."""
    shares = sum(KINDS[name].share for name in names)
    started = time.monotonic()
    tallies: dict[str, Tally] = {}
    # What there is most of first; last what loads a library, which a process does once.
    order = sorted(names, key=lambda name: (bool(KINDS[name].loads), -KINDS[name].share))
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        pending = {}
        for name in order:
            seeds = range(first, first - (-num * KINDS[name].share // shares))
            pending[name] = pool.submit(functools.partial(_tried, name, seeds=seeds))
        for name in names:
            tallies[name] = pending[name].result()
    for name, tally in tallies.items() if ways else ():
        print(f"{name}: {dict(tally.outcomes)}, {tally.seconds:.1f} s")
        for way, times in tally.ways.most_common():
            print(f"    {times:6,} {way}")
    print(table(tallies))
    print(f"\n{time.monotonic() - started:.0f} s, seeds from {first:,} on")
    return _say_wrong([(name, *one) for name, tally in tallies.items() for one in tally.wrong])


def run_commands(num: int, *, first: int) -> int:
    """Tries some through processes of the command line."""
    names = [kind.name for kind in snapshots.KINDS if kind.name != "rejects, refused"]
    outcomes: collections.Counter[str] = collections.Counter()
    wrong = []
    for number in range(num):
        name, seed = names[number % len(names)], first + number
        with tempfile.TemporaryDirectory(prefix="snapshard-fuzz-") as folder:
            target = KINDS[name].make(Path(folder))
            content = target.mutate(Random(f"{name}/{seed}"))
            outcome, how = commands.try_commands(target, content, number=number)
        outcomes[outcome] += 1
        print(f"{name}:{seed}: {outcome}: {how}")
        if outcome == WRONG:
            wrong.append((name, seed, how))
    print(f"{num} through the command line: {dict(outcomes)}")
    return _say_wrong(wrong)


def _say_wrong(found: list[tuple[str, int, str]]) -> int:
    for name, seed, how in found:
        print(f"wrong: {how}\n    python tests/fuzz/fuzz.py {json.dumps(f'{name}:{seed}')}")
    return int(bool(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("one", nargs="?", help="KIND:SEED, one mutation to try again")
    parser.add_argument("--num", type=int, default=10_000, help="how many mutations")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--kind", action="append", help="only this kind; may be given again")
    parser.add_argument("--ways", action="store_true", help="print how each was told")
    parser.add_argument("--keep", help="write the damaged content of KIND:SEED to this file")
    parser.add_argument("--commands", type=int, help="so many through the command line instead")
    args = parser.parse_args()
    if args.one:
        name, _, seed = args.one.rpartition(":")
        return again(name, int(seed), keep=args.keep)
    if args.commands:
        return run_commands(args.commands, first=args.first)
    names = args.kind or list(KINDS)
    return run(names, args.num, first=args.first, ways=args.ways, jobs=args.jobs)


if __name__ == "__main__":
    sys.exit(main())
