"""Runs mutations in forked children, so that a crash, a hang or a full memory is counted too.

A child tries one mutation after the other and tells of each. Where it falls silent the parent ends
it, writes the mutation down as wrong, and goes on behind it in a new child.
"""

import collections
import dataclasses
import importlib
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

DETECTED, HARMLESS, WRONG = "detected", "harmless", "wrong"
LIMIT_S = 20.0
"""A mutation that takes longer hangs."""
MEMORY_BYTES = 2 << 30
"""A child may take so much more address space than it has when it starts …"""
RESIDENT_BYTES = 384 << 20
"""… and one mutation may take so much memory."""
_BATCH = 250
_EXIT_S = 5.0
START_S = 10.0
"""To make a target, which comes before the first mutation."""
_BROKEN = "broken"


class Target(Protocol):
    """Something that is damaged and then used as snapshard uses it."""

    def mutate(self, rng: random.Random) -> bytes:
        """The damaged content."""

    def try_out(self, content: bytes) -> tuple[str, str]:
        """Uses it: DETECTED, HARMLESS or WRONG, and in what way."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of file."""

    name: str
    make: Callable[[Path], Target]
    """Given an empty folder."""
    share: int = 1
    """Of all mutations."""
    loads: str = ""
    """A large library that reading may load: the parent loads it, once, so that it counts for none.

    The parent never uses it: only what has no threads yet can be forked.
    """


@dataclasses.dataclass
class Tally:
    """What came of the mutations of one kind."""

    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    ways: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """Detected and harmless ones by the first words of how."""
    wrong: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0

    def add(self, seed: int, outcome: str, how: str, seconds: float) -> None:
        self.outcomes[outcome] += 1
        self.seconds += seconds
        self.slowest = max(self.slowest, seconds)
        if outcome == WRONG:
            self.wrong.append((seed, how))
        else:
            self.ways[f"{outcome}: {how[:60]}"] += 1


def attempt(target: Target, kind: str, seed: int) -> tuple[str, str]:
    """Tries one mutation; whatever escapes is wrong."""
    content = target.mutate(random.Random(f"{kind}/{seed}"))
    try:
        return target.try_out(content)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = next((f for f in reversed(frames) if "/fuzz/" not in f.filename), frames[-1])
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        return WRONG, f"{type(error).__name__} at {where}: {str(error)[:200]}"


def run_kind(kind: Kind, seeds: Sequence[int], tally: Tally) -> None:
    """Tries mutations in children that are forked from here, one after the other."""
    if kind.loads not in ("", *sys.modules):
        _load(kind.loads)
    done = 0
    while done < len(seeds):
        done += _run_batch(kind, seeds[done : done + _BATCH], tally)


def _load(name: str) -> None:
    """Imports a library; what its C++ code says meanwhile, which no setting silences, is lost."""
    errors, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        importlib.import_module(name)
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        os.close(nowhere)


def _run_batch(kind: Kind, seeds: Sequence[int], tally: Tally) -> int:
    """Tries a batch in one child; gives how many of it are done, a silent one included."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            _child(kind, seeds, writing)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    num_done = 0
    for line in _lines(reading, first_s=LIMIT_S + START_S):
        seconds, outcome, how = line.split("\t", 2)
        if outcome == _BROKEN:
            os.waitpid(child, 0)
            raise RuntimeError(f"{kind.name}: {how}")
        tally.add(seeds[num_done], outcome, how, float(seconds))
        num_done += 1
    os.close(reading)
    status = _ended(child)
    if num_done == len(seeds):
        return num_done
    if status is None:
        how = f"takes more than {LIMIT_S:.0f} s"
    elif os.WIFSIGNALED(status):
        how = f"ends the process by {signal.Signals(os.WTERMSIG(status)).name}"
    else:
        how = f"ends the process with code {os.waitstatus_to_exitcode(status)}"
    tally.add(seeds[num_done], WRONG, how, LIMIT_S if status is None else 0.0)
    return num_done + 1


def _ended(child: int) -> int | None:
    """How a child ended that says nothing any more; None where it had to be killed."""
    started = time.monotonic()
    while time.monotonic() - started < _EXIT_S:
        waited, status = os.waitpid(child, os.WNOHANG)
        if waited:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _lines(reading: int, *, first_s: float) -> Iterator[str]:
    """Lines until the other end closes, or says nothing for too long."""
    held, wait_s = b"", first_s
    while True:
        ready, _, _ = select.select([reading], [], [], wait_s)
        part = os.read(reading, 1 << 16) if ready else b""
        if not part:
            return
        *lines, held = (held + part).split(b"\n")
        for line in lines:
            yield line.decode()
        wait_s = LIMIT_S


def _child(kind: Kind, seeds: Sequence[int], writing: int) -> None:
    with tempfile.TemporaryDirectory(prefix="snapshard-fuzz-") as folder:
        # What libraries in C print about damage is no matter here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            target = kind.make(Path(folder))
        except Exception:
            how = " | ".join(traceback.format_exc().split("\n"))
            os.write(writing, f"0\t{_BROKEN}\t{how}\n".encode())
            return
        limit = _status_bytes("VmSize") + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        highest = _status_bytes("VmHWM")
        for seed in seeds:
            started = time.monotonic()
            outcome, how = attempt(target, kind.name, seed)
            seconds = time.monotonic() - started
            now = _status_bytes("VmHWM")
            if now - highest > RESIDENT_BYTES:
                outcome, how = WRONG, f"takes {(now - highest) >> 20} MiB of memory ({how})"
            highest = now
            line = f"{seconds:.4f}\t{outcome}\t{' '.join(how.split())}\n"
            os.write(writing, line.encode("utf-8", "backslashreplace"))


def _status_bytes(name: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
    return 0


def table(tallies: dict[str, Tally]) -> str:
    """What came of all mutations, a line for each kind of file."""
    lines = ["| kind of file | mutations | detected | harmless | wrong | seconds | slowest, ms |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    total: collections.Counter[str] = collections.Counter()
    seconds, slowest = 0.0, 0.0
    for name, tally in tallies.items():
        lines.append(_row(name, tally.outcomes, tally.seconds, tally.slowest))
        total.update(tally.outcomes)
        seconds, slowest = seconds + tally.seconds, max(slowest, tally.slowest)
    lines.append(_row("**all**", total, seconds, slowest))
    return "\n".join(lines)


def _row(name: str, outcomes: Any, seconds: float, slowest: float) -> str:
    counts = [sum(outcomes.values()), *(outcomes[one] for one in (DETECTED, HARMLESS, WRONG))]
    cells = [f"{count:,}" for count in counts] + [f"{seconds:.1f}", f"{slowest * 1000:,.0f}"]
    return f"| {name} | {' | '.join(cells)} |"
