"""Ends with a build what the build has started: runs as a separate process beside it.

Run as ``python -I -S reaper.py BUILD MARK FOLDER`` by ``watchdog``, where BUILD is its process. Its
standard input ends with the build, whatever ended that. It then kills every remaining process that
the build started, stopped or not, and removes the build's folder for temporary files.

The processes of a build are recognized by MARK, an environment variable with its value.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time

_LOOK_S = 0.5
_LEFT_S = 10.0
"""Seconds in which processes that start others meanwhile are killed."""


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger; False if unknown."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    return False


def processes_of(mark: str) -> list[int]:
    """The processes with this mark in their initial environment, except this one."""
    wanted = mark.encode("utf-8", "surrogateescape")
    pids = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(name)
                with open(f"/proc/{name}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0") and pid != os.getpid():
                        pids.append(pid)
    return pids


def _forks() -> list[int]:
    """Forks of the build: they have its initial environment, and the pipe to this process.

    The build's own process, which may continue with other work, has closed that pipe.
    """
    pids = []
    with contextlib.suppress(OSError):
        pipe = os.readlink("/proc/self/fd/0")
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                pid, folder = int(name), f"/proc/{name}/fd"
                if pid not in (os.getpid(), os.getppid()) and any(
                    os.readlink(f"{folder}/{number}") == pipe for number in os.listdir(folder)
                ):
                    pids.append(pid)
    return pids


def _kill_all(mark: str) -> None:
    """Kills processes with a mark, forks of the build, and those that they start meanwhile."""
    deadline = time.monotonic() + _LEFT_S
    while (left := {*processes_of(mark), *_forks()}) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def main() -> None:
    """Waits for the end of the build that the arguments name, and cleans up."""
    build, mark, folder = int(sys.argv[1]), *sys.argv[2:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # A fork of the build may keep the pipe open after the build.
    while os.getppid() == build and not select.select([0], [], [], _LOOK_S)[0]:
        pass
    _kill_all(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
