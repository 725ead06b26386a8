"""Damages files of every kind and says what snapshard makes of it: a script without TensorFlow.

    python tests/fuzz/fuzz.py                  10,000 mutations, a table
    python tests/fuzz/fuzz.py --num 100000     more of them
    python tests/fuzz/fuzz.py CSV:12           one again, with its traceback

Prints a table, then a line for each that went wrong with the command that tries it again. Ends with
1 if there is any.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

# The libraries' threads stay few, since children are forked.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import inputs
import snapshots
import workspace
from harness import WRONG, Kind, Tally, run_kind, table

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (*inputs.KINDS, *workspace.KINDS, *snapshots.KINDS)
}


def again(name: str, seed: int, *, keep: str | None) -> int:
    """Tries one mutation in this process."""
    kind = KINDS[name]
    with tempfile.TemporaryDirectory(prefix="snapshard-fuzz-") as folder:
        target = kind.make(Path(folder))
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


def run(names: list[str], num: int, *, first: int, ways: bool) -> int:
    """Tries many."""
    kinds = [KINDS[name] for name in names]
    shares = sum(kind.share for kind in kinds)
    tallies = {kind.name: Tally() for kind in kinds}
    started = time.monotonic()
    for kind in kinds:
        number = -(-num * kind.share // shares)
        run_kind(kind, range(first, first + number), tallies[kind.name])
        if ways:
            tally = tallies[kind.name]
            print(f"{kind.name}: {dict(tally.outcomes)}, {tally.seconds:.1f} s")
            for way, times in tally.ways.most_common():
                print(f"    {times:6,} {way}")
    print(table(tallies))
    print(f"{time.monotonic() - started:.0f} s")
    found = [(name, *one) for name, tally in tallies.items() for one in tally.wrong]
    for name, seed, how in found:
        print(f"wrong: {how}\n    python tests/fuzz/fuzz.py {json.dumps(f'{name}:{seed}')}")
    return int(bool(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("one", nargs="?", help="KIND:SEED, one mutation to try again")
    parser.add_argument("--num", type=int, default=10_000, help="how many mutations")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", action="append", help="only this kind; may be given again")
    parser.add_argument("--ways", action="store_true", help="print how each was told")
    parser.add_argument("--keep", help="write the damaged content of KIND:SEED to this file")
    args = parser.parse_args()
    if args.one:
        name, _, seed = args.one.rpartition(":")
        return again(name, int(seed), keep=args.keep)
    return run(args.kind or list(KINDS), args.num, first=args.first, ways=args.ways)


if __name__ == "__main__":
    sys.exit(main())
