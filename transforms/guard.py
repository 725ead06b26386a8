"""Guards a build from a separate process, which survives whatever stops the build.

Run as ``python -I -S guard.py BUILD MARK FOLDER SIGNALS`` by ``watchdog``; SIGNALS is a descriptor
that becomes readable once a signal has arrived, or -1. Its standard input ends with the build. It
then kills every remaining process that the build started, stopped or not, and removes the build's
folder. It kills the build itself if that cannot end: while C code holds Python's lock, none of the
build's threads runs.

The processes of a build are recognized by MARK, an environment variable with its value.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import struct
import sys
import time
from typing import Any, NamedTuple

SUFFIX = ".activity"
"""A process reports in the file <pid><SUFFIX> in the build's folder."""
SLOT_BYTES = 512
NUM_SLOTS = 128
"""The first is for threads without an element, such as those that read ahead."""
HEAD = struct.Struct("<QQQ")
"""Head of a slot: a counter, the number of the element in the process, and its kind; 0 for none."""
COUNTER, NUMBER, KIND = range(3)
ELEMENT, JOB, ELSEWHERE = 1, 2, 3
"""Kinds of slots: an element must advance itself; for a job, any progress of the build counts.
A wait for other machines need not advance at all."""
TEXT = (HEAD.size, 288)
"""Position of the element's name in a slot ..."""
DETAIL = (288, SLOT_BYTES)
"""... and of the name of the file that was opened last."""

INTERVAL_S = 0.5
_LEFT_S = 10.0


class Activity(NamedTuple):
    """An element in progress."""

    pid: int
    slot: int
    number: int
    """Distinguishes the successive elements of a slot."""
    kind: int
    what: str
    detail: str
    """The file that was opened last; empty if there is none."""
    counter: int

    def describe(self) -> str:
        """The element's name in messages."""
        return f"{self.what} (last file read: {self.detail})" if self.detail else self.what


def read_activities(folder: str, pid: int) -> tuple[list[Activity], int]:
    """A process's elements in progress, and the counter of its other threads."""
    with open(os.path.join(folder, f"{pid}{SUFFIX}"), "rb") as file:
        content = file.read(SLOT_BYTES * NUM_SLOTS)
    if len(content) < SLOT_BYTES * NUM_SLOTS:
        return [], 0  # it is still being created
    found = []
    for slot in range(1, NUM_SLOTS):
        start = slot * SLOT_BYTES
        counter, number, kind = HEAD.unpack_from(content, start)
        if kind:
            what, detail = (
                content[start + first : start + stop].rstrip(b"\0").decode("utf-8", "replace")
                for first, stop in (TEXT, DETAIL)
            )
            found.append(Activity(pid, slot, number, kind, what, detail, counter))
    return found, HEAD.unpack_from(content)[COUNTER]


class _Build:
    """The state of the build, as known here."""

    def __init__(self, pid: int, folder: str, signals: int) -> None:
        self.pid = pid
        self._folder = folder
        self._signals = signals
        self._unread = b""
        self._state: dict[str, Any] = {}
        self._quiet = self._ending = 0.0
        self._has_warned = False

    def listen(self) -> bool:
        """Receives the build's messages; False once it has ended, or sends no more."""
        if os.getppid() != self.pid:
            return False
        ready, _, _ = select.select([0], [], [], INTERVAL_S)
        if not ready:
            return True
        read = os.read(0, 1 << 16)
        *lines, self._unread = (self._unread + read).split(b"\n")
        if lines:
            state = json.loads(lines[-1])
            if state is None:
                return False
            self._state = state
            self._quiet, self._has_warned = 0.0, False
        return bool(read)

    def look(self, passed: float) -> None:
        """Warns about the build, or kills it, if it has been silent for too long."""
        if is_stopped(self.pid):
            return  # whoever stopped it may resume it
        signalled = self._signals >= 0 and bool(select.select([self._signals], [], [], 0)[0])
        self._ending = self._ending + passed if signalled else 0.0
        if self._ending >= self._state.get("ends_within", float("inf")):
            self._kill("error: interrupted, and killed because it did not end. ")
        self._quiet += passed
        if not self._state.get("timeout"):
            return
        # Loading a library also holds the lock.
        elements = self._under_way(ELEMENT)
        what = elements or self._under_way(JOB) or "the build"
        limit = self._state["timeout"] if elements else self._state["job_timeout"]
        if self._quiet >= min(self._state["warn_after"], limit / 2) and not self._has_warned:
            self._has_warned = True
            _say(f"warning: No progress for {duration(self._quiet)} on {what}.")
        if self._quiet >= limit:
            self._kill(
                f"error: No progress for {duration(self._quiet)} on {what}, in process "
                f"{self.pid}: C code that holds Python's lock does not return. The build was "
                f"killed. {self._state['advice']} "
            )

    def _under_way(self, kind: int) -> str:
        found: list[Activity] = []
        with contextlib.suppress(OSError):
            found, _ = read_activities(self._folder, self.pid)
        return " or ".join(one.describe() for one in found if one.kind == kind)

    def _kill(self, why: str) -> None:
        _say(f"{why}Finished work is kept. Run the same command to resume.")
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode("utf-8", "backslashreplace"))


def duration(seconds: float) -> str:
    """A duration, for messages.

    >>> [duration(seconds) for seconds in (3.2, 60, 600)]
    ['3 s', '60 s', '10 min']
    """
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger; False if unknown."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    return False


def processes_of(mark: str) -> list[int]:
    """The processes with this mark in their initial environment, except this one."""
    wanted = mark.encode("utf-8", "surrogateescape")
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(name)
                with open(f"/proc/{name}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0") and pid != os.getpid():
                        found.append(pid)
    return found


def _forks() -> list[int]:
    """Forks of the build: they have its initial environment, and the pipe to this process.

    The build's own process, which may continue with other work, has closed that pipe.
    """
    found = []
    with contextlib.suppress(OSError):
        pipe = os.readlink("/proc/self/fd/0")
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                pid, folder = int(name), f"/proc/{name}/fd"
                if pid not in (os.getpid(), os.getppid()) and any(
                    os.readlink(f"{folder}/{number}") == pipe for number in os.listdir(folder)
                ):
                    found.append(pid)
    return found


def _kill_all(mark: str) -> None:
    """Kills processes with a mark, forks of the build, and those that they start meanwhile."""
    deadline = time.monotonic() + _LEFT_S
    while (left := {*processes_of(mark), *_forks()}) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def main() -> None:
    """Guards the build that the arguments name."""
    pid, mark, folder, signals = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    build = _Build(pid, folder, signals)
    before = time.monotonic()
    while build.listen():
        now = time.monotonic()
        # While this machine slept, or this process was stopped, no time counts.
        build.look(min(now - before, 3 * INTERVAL_S))
        before = now
    _kill_all(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
