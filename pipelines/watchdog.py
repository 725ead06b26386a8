"""Watches a build from outside its work: ends it if it stalls, and counts what a job has made.

Once a second a thread reads the activities that the build's processes report
(``transforms.activity``): elements such as blocks and shards, and the current step of the build,
for which any progress of these processes counts. A warning names an activity without progress for
a minute. After the build's ``stall_timeout`` the process at fault is killed (or the build
interrupted, if it is the build's own process), and the build fails with an error that names the
activity and the pending calls of disks and stores. A second process (``reaper``) kills what a build
leaves behind, however it ends.

A hang in C code that holds Python's lock is noticed in every process except the build's own.

Time in which the build was stopped (Ctrl-Z) or the machine slept does not count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..schemas.errors import RunnerError, SnapshardError
from ..schemas.progress import BUILD_FOLDER, BUILD_HERE, Counted, Progress, build_folder
from ..schemas.runner import Dataflow, JobRunner, RunnerConfig
from ..transforms import reaper, storage
from ..transforms.activity import (
    ELEMENT,
    ELSEWHERE,
    JOB,
    SUFFIX,
    Activity,
    calls_under_way,
    read_activities,
    read_counted,
    reported_in,
    unnoticed,
    working_on,
)
from ..transforms.reaper import is_stopped, processes_of
from ..transforms.storage.failures import os_errors_as_storage_errors
from .endings import END_S, end_now, fail, is_interruptible
from .engines import runs_here

WARN_S = 60.0
"""Seconds without progress before a warning; fewer if the timeout is shorter than two minutes."""
MIN_JOB_S = 60.0
"""Minimum seconds for a job to start: processes load their libraries and report nothing yet."""
_MAX_CALLS = 3
_ADVICE = (
    "Check what it may be waiting for: a disk, network mount, store or database that hangs, a "
    "function that does not return, a process that was stopped. If it only needs more time, set "
    "--stall-timeout (stall_timeout= of the runner)."
)
_RESUME = "Finished work is kept. Run the same command to resume."
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_REMOTE_LOOKS = 10.0


def stall_timeout_of(config: RunnerConfig) -> float:
    """Seconds without progress after which a build fails; 0 for no limit."""
    # A service watches its own machines; this process only waits for it.
    return 0.0 if isinstance(config, Dataflow) else config.stall_timeout


@contextlib.contextmanager
def watched_build(stall_timeout: float, *, progress: Progress) -> Iterator[None]:
    """Watches the build that the body runs; nested calls belong to the same build.

    Args:
        stall_timeout: Seconds without progress after which it fails; 0 for no limit.
        progress: Receives warnings.

    Raises:
        RunnerError: if it stalled.
        StorageError: if the folder for temporary files cannot be written to.
    """
    if BUILD_HERE.get() is not None:
        yield
        return
    storage.remove_abandoned_folders(tempfile.gettempdir())
    with storage.temporary_folder() as folder, contextlib.ExitStack() as stack:
        with os_errors_as_storage_errors("write", folder):
            stack.enter_context(reported_in(folder))
        watchdog = _Watchdog(folder, stall_timeout, progress)
        with _in_environment(folder), _reaped(folder):
            try:
                with watchdog.watching(), expected_to_advance("the build"):
                    yield
            except BaseException:
                if watchdog.failure is not None:
                    raise watchdog.failure from None
                raise


@contextlib.contextmanager
def expected_to_advance(what: str, runner: JobRunner | None = None) -> Iterator[None]:
    """Makes the build fail if nothing at all makes progress while the body runs.

    Args:
        what: What the body does or waits for, for messages.
        runner: The engine that it waits for, if any. No progress is expected of an engine on other
            machines, unless a process that the build started here is stopped.
    """
    elsewhere = runner is not None and not runs_here(runner)
    with working_on(what, kind=ELSEWHERE if elsewhere else JOB):
        yield


@contextmanager
def counting_outputs(
    progress: Progress, step: str, *, outputs: Iterable[str], unit: str
) -> Iterator[None]:
    """Reports how many of a job's durable outputs exist, until the body ends.

    This works the same on every engine, with any number of workers, and includes reused outputs.

    Errors of the body are raised unchanged; errors of the polling are ignored, since only the
    progress bar depends on it.
    """
    polled = _Outputs(outputs)
    progress.start(step, total=polled.total, unit=unit)
    polled.look()
    # Outputs that already exist: the rate is computed from here.
    progress.advance(step, done=polled.num_found)
    folder = build_folder()
    before = read_counted(folder) if folder else Counted()
    ended = threading.Event()

    @unnoticed()
    def count() -> None:
        while not ended.wait(polled.seconds):
            polled.look()
            if not ended.is_set():
                progress.advance(step, done=polled.num_found)
                if folder:
                    progress.count(step, read_counted(folder).since(before))

    thread = threading.Thread(target=count, name=f"count_{step}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    progress.advance(step, done=polled.total)
    if folder:
        progress.count(step, read_counted(folder).since(before))


@contextlib.contextmanager
def _in_environment(folder: str) -> Iterator[None]:
    """Passes the build's folder to the processes that it starts, which also identifies them.

    In the main thread this includes all processes, even those started by user functions. A build in
    another thread is part of an application, whose processes are not the build's.
    """
    token = BUILD_HERE.set(folder)
    in_main = threading.current_thread() is threading.main_thread()
    before = os.environ.get(BUILD_FOLDER)
    if in_main:
        os.environ[BUILD_FOLDER] = folder
    try:
        yield
    finally:
        BUILD_HERE.reset(token)
        if in_main and before is None:
            os.environ.pop(BUILD_FOLDER, None)
        elif in_main and before is not None:
            os.environ[BUILD_FOLDER] = before


@contextlib.contextmanager
def _reaped(folder: str) -> Iterator[None]:
    """Makes a separate process kill what is left when the body, or this process, ends."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", reaper.__file__, str(os.getpid()), _mark(folder), folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != BUILD_FOLDER},
        # The build handles Ctrl-C on the terminal, and a closed terminal.
        start_new_session=True,
    )
    pipe = process.stdin
    assert pipe is not None
    try:
        yield
    finally:
        # Written explicitly, since a fork of this process may keep the pipe open.
        with contextlib.suppress(OSError):
            os.write(pipe.fileno(), b"\n")
        with contextlib.suppress(OSError):
            pipe.close()
        # If no process is left, this takes a few milliseconds.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2 * END_S)


@dataclasses.dataclass
class _Seen:
    """The last observed state of an element, and for how long it has not changed."""

    count: tuple[object, ...]
    quiet: float = 0.0
    has_warned: bool = False


class Looks:
    """Successive looks at the activities of a build: which of them make no progress."""

    def __init__(self, timeout: float, *, job_timeout: float | None = None) -> None:
        """Stores the limits, in seconds; that of jobs is at least ``MIN_JOB_S`` by default."""
        job_timeout = max(timeout, MIN_JOB_S) if job_timeout is None else job_timeout
        self.limits = {ELEMENT: timeout, JOB: job_timeout, ELSEWHERE: job_timeout}
        self._seen: dict[tuple[int, int, int], _Seen] = {}

    def look(
        self,
        activities: Sequence[Activity],
        counters: Mapping[int, int],
        passed: float,
        *,
        is_stopped: bool = False,
    ) -> tuple[Activity | None, list[tuple[Activity, float]]]:
        """Compares the activities with those of the last look.

        Args:
            activities: All current ones.
            counters: For each process, the counter of its threads without an element.
            passed: Seconds since the last look.
            is_stopped: Whether a process that the build started is stopped.

        Returns:
            An activity that exceeded its limit, or None; those to warn of, with the seconds without
            progress.
        """
        everything = (
            *sorted(counters.items()),
            *((a.pid, a.slot, a.number, a.counter) for a in activities),
        )
        if not is_stopped:  # nothing is expected of other machines
            activities = [a for a in activities if a.kind != ELSEWHERE]
        seen: dict[tuple[int, int, int], _Seen] = {}
        stalled, warned = None, []
        # Elements first: they are more specific than the job that waits for them.
        for activity in sorted(activities, key=lambda a: a.kind):
            is_element = activity.kind == ELEMENT
            count = (activity.counter, counters[activity.pid]) if is_element else everything
            key = (activity.pid, activity.slot, activity.number)
            last = self._seen.get(key)
            if last is None or last.count != count:
                seen[key] = _Seen(count)
                continue
            seen[key] = last
            last.quiet += passed
            limit = self.limits[activity.kind]
            if last.quiet >= limit:
                stalled = stalled or activity
            elif last.quiet >= min(WARN_S, limit / 2) and not last.has_warned:
                last.has_warned = True
                if is_element or not self._has_warned_of_element(activities):
                    warned.append((activity, last.quiet))
        self._seen = seen
        return stalled, warned

    def _has_warned_of_element(self, activities: Sequence[Activity]) -> bool:
        keys = [(a.pid, a.slot, a.number) for a in activities if a.kind == ELEMENT]
        return any(key in self._seen and self._seen[key].has_warned for key in keys)


class _Watchdog:
    def __init__(self, folder: str, timeout: float, progress: Progress) -> None:
        self.failure: RunnerError | None = None
        self._folder = folder
        self._timeout = timeout
        self._looks = Looks(timeout)
        self._interval = min(1.0, timeout / 20) if timeout else 1.0
        self._progress = progress
        self._ended = threading.Event()
        self._interruptible = is_interruptible()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Checks the reports of the processes while the body runs, if there is a limit."""
        thread = threading.Thread(target=self._watch, name="watch_build", daemon=True)
        if self._timeout:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            if self._timeout:
                thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(self._interval):
            now = time.monotonic()
            # While the build was stopped or the machine slept, no time counts.
            passed, before = min(now - before, 3 * self._interval), now
            activities, counters = self._read()
            waits = any(activity.kind == ELSEWHERE for activity in activities)
            stalled, warned = self._looks.look(
                activities, counters, passed, is_stopped=waits and bool(_stopped(self._folder))
            )
            for activity, quiet in warned:
                limit = duration(self._looks.limits[activity.kind])
                # A user's Progress that raises must not end this thread.
                with contextlib.suppress(Exception):
                    self._progress.warn(
                        f"No progress for {duration(quiet)} on {_named(activity, self._folder)}. "
                        f"The build fails after {limit} without progress."
                    )
            if stalled is not None:
                self._end(stalled)
                return

    def _read(self) -> tuple[list[Activity], dict[int, int]]:
        """All current activities, and for each process the counter of its other threads."""
        activities: list[Activity] = []
        counters: dict[int, int] = {}
        # Unreadable reports count as no progress: raising here would end the watch.
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                if not name.endswith(SUFFIX):
                    continue
                pid = int(name.removesuffix(SUFFIX))
                if _is_alive(pid):
                    own, counters[pid] = read_activities(self._folder, pid)
                    activities += own
        return activities, counters

    def _end(self, stalled: Activity) -> None:
        """Ends the build: cleanly if possible, otherwise immediately."""
        named = _named(stalled, self._folder)
        limit = duration(self._looks.limits[stalled.kind])
        self.failure = RunnerError(f"No progress for {limit} on {named}. {_ADVICE} {_RESUME}")
        if stalled.pid != os.getpid():
            _kill(stalled.pid)
            if self._ended.wait(END_S):
                return
        if self._interruptible:
            fail()
        if not self._ended.wait(END_S):
            end_now(str(self.failure), code=self.failure.exit_code)


def duration(seconds: float) -> str:
    """A duration, for messages.

    >>> [duration(seconds) for seconds in (3.2, 60, 600)]
    ['3 s', '60 s', '10 min']
    """
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _kill(pid: int) -> None:
    """Kills a process, and its group if it leads one."""
    with contextlib.suppress(OSError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except ProcessLookupError:
        return False
    except OSError:
        return True  # there is no /proc


def _mark(folder: str) -> str:
    """The entry that the processes of a build have in their environment."""
    return f"{BUILD_FOLDER}={folder}"


def _stopped(folder: str) -> list[int]:
    """The stopped processes of a build, except this one."""
    return [pid for pid in processes_of(_mark(folder)) if is_stopped(pid)]


def _named(activity: Activity, folder: str) -> str:
    if activity.kind != ELEMENT:
        # The calls started last: earlier ones wait for them.
        calls = " or to ".join(calls_under_way()[-_MAX_CALLS:])
        named = f"{activity.what} (waiting to {calls})" if calls else activity.describe()
        stopped = ", ".join(map(str, _stopped(folder)))
        return f"{named}; stopped processes: {stopped}" if stopped else named
    if activity.pid == os.getpid():
        return f"{activity.describe()}, in the build's own process {activity.pid}"
    state = ", which is stopped" if is_stopped(activity.pid) else ""
    return f"{activity.describe()}, in process {activity.pid}{state}"


class _Outputs:
    """Polls for files; files once found are not polled again."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._missing: dict[str, set[str]] = {}
        for url in urls:
            folder, _, name = url.rpartition("/")
            self._missing.setdefault(folder, set()).add(name)
        self.total = sum(map(len, self._missing.values()))
        self.num_found = 0
        remote = any(not storage.is_local(folder) for folder in self._missing)
        self._least = SECONDS_BETWEEN_REMOTE_LOOKS if remote else SECONDS_BETWEEN_LOOKS
        self.seconds = self._least
        """To wait after a look: at least 20 times as long as it took."""

    def look(self) -> None:
        """Counts the files that exist by now."""
        started = time.monotonic()
        for folder, names in list(self._missing.items()):
            try:
                seen = names.intersection(storage.list_names(folder))
            except SnapshardError:
                # The job will report the same error, or it is temporary.
                continue
            self.num_found += len(seen)
            names -= seen
            if not names:
                del self._missing[folder]
        self.seconds = max(self._least, 20 * (time.monotonic() - started))
