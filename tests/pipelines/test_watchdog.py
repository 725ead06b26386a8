"""Builds that do not advance fail and name the element; nothing that they started outlives them."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from snapshard.pipelines.watchdog import (
    Looks,
    stall_timeout_of,
    watched_build,
)
from snapshard.schemas.errors import DataError
from snapshard.schemas.progress import BUILD_FOLDER, Silent, child_environment
from snapshard.schemas.runner import STALL_TIMEOUT, Dataflow, Direct
from snapshard.transforms import storage
from snapshard.transforms.activity import (
    ELEMENT,
    ELSEWHERE,
    JOB,
    Activity,
    advance,
    read_activities,
    reading,
    reported_in,
    unnoticed,
    working_on,
)
from snapshard.transforms.reaper import processes_of

LINUX = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")
_PATIENCE_S = 60.0


class Warned(Silent):
    """Progress that keeps its warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


SCRIPT = """
import os, re, signal, subprocess, sys, threading, time, warnings
signal.signal(signal.SIGINT, signal.default_int_handler)  # of what runs in the background, ignored
# From 3.12 on, Python warns of a fork in a process with threads.
warnings.filterwarnings("ignore", ".* multi-threaded, use of fork", DeprecationWarning)
from snapshard.pipelines import endings
from snapshard.pipelines.watchdog import watched_build
from snapshard.schemas.errors import RunnerError
from snapshard.schemas.progress import Silent
from snapshard.transforms.activity import advance, working_on

class Told(Silent):
    def warn(self, message):
        print("warned:", message, flush=True)

def hang(cause):
    if cause == "python":
        while True:
            pass
    if cause == "c":
        re.match(r"(a+)+$", "a" * 64 + "b")
    if cause == "read":
        with open({fifo!r}) as file:
            file.read()

def begin(cause):
    with working_on("the element"):
        advance()
        print("begun", flush=True)
        hang(cause)
"""


@contextlib.contextmanager
def started(tmp_path: Path, script: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A process with a folder of its own for temporary files, and the mark of all that it starts.

    In the end everything that has the mark must be gone, and the folder be empty.
    """
    temporary, fifo, mark = tmp_path / "tmp", tmp_path / "fifo", uuid.uuid4().hex
    temporary.mkdir()
    os.mkfifo(fifo)
    environment = {**os.environ, "TMPDIR": str(temporary), "TEST_MARK": mark}
    environment.pop(BUILD_FOLDER, None)
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(fifo=str(fifo)) + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            yield process, mark
            process.wait(_PATIENCE_S)
            ended = time.monotonic()
            wait_for(lambda: not processes_of(f"TEST_MARK={mark}"), "all processes to end")
            wait_for(lambda: not list(temporary.iterdir()), "temporary files to go")
            assert time.monotonic() - ended < 10
        finally:
            for pid in processes_of(f"TEST_MARK={mark}"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


IN_MAIN = """
try:
    with watched_build(2.0, progress=Told()):
        begin({cause!r})
except RunnerError as error:
    print("failed:", error)
    sys.exit(error.exit_code)
"""
IN_THREAD = """
try:
    with watched_build(2.0, progress=Told()):
        thread = threading.Thread(target=begin, args=({cause!r},), daemon=True)
        thread.start()
        while True:
            thread.join(1)
except RunnerError as error:
    print("failed:", error, flush=True)
    os._exit(error.exit_code)
"""


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize(
    ("script", "cause"), [(IN_MAIN, "read"), (IN_THREAD, "python")], ids=["main", "thread"]
)
def test_what_hangs_in_the_process_of_the_build_fails_it(
    tmp_path: Path, script: str, cause: str
) -> None:
    with started(tmp_path, script.format(cause=cause)) as (process, _):
        out, err = process.communicate(timeout=_PATIENCE_S)
    assert "Traceback" not in err
    assert process.returncode == 1, err
    assert out.count("warned: No progress for ") == 1
    assert "failed: No progress for 2 s on the element, in the build's own process" in out


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("cause", ["c", "stop"])
def test_what_hangs_in_another_process_fails_the_build(tmp_path: Path, cause: str) -> None:
    """As worker processes and the one that analyses: the build hears that the process ended."""
    worker = (
        "sys.exit(begin({cause!r}))"
        if cause != "stop"
        else (
            "\nwith working_on('the element'):\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
            "    time.sleep(600)\n"
        )
    )
    script = SCRIPT.format(fifo=str(tmp_path / "fifo")) + worker.format(cause=cause)
    build = f"""
try:
    with watched_build(2.0, progress=Told()):
        code = subprocess.Popen([sys.executable, "-c", {script!r}], start_new_session=True).wait()
        raise RunnerError(f"the process ended with {{code}}")
except RunnerError as error:
    print("failed:", error)
    sys.exit(error.exit_code)
"""
    with started(tmp_path, build) as (process, _):
        out, err = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 1, err
    assert err == ""
    assert out.count("warned: No progress for ") == 1
    assert "failed: No progress for 2 s on the element, in process" in out
    assert (", which is stopped" in out) == (cause == "stop")


ENDINGS = {
    "success": "",
    "error": "raise SystemExit(3)",
    "hard": "os._exit(4)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
}


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_that_a_build_started_outlives_it(tmp_path: Path, ending: str) -> None:
    """Also what is stopped, leads a session of its own, or lost its parent."""
    script = f"""
orphan = "import subprocess as s; s.Popen(['sleep', '300'], start_new_session=True)"
with watched_build(0, progress=Told()):
    stopped = subprocess.Popen(["sleep", "300"], start_new_session=True)
    os.kill(stopped.pid, signal.SIGSTOP)
    subprocess.run([sys.executable, "-c", orphan])
    {ENDINGS[ending]}
"""
    with started(tmp_path, script) as (process, _):
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    codes = {"success": 0, "error": 3, "hard": 4, "SIGKILL": -9, "SIGTERM": -15}
    assert process.returncode == codes[ending]


@LINUX
@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (signal.SIGTERM, "python"),
        (signal.SIGTERM, "read"),
        pytest.param(signal.SIGHUP, "read", marks=pytest.mark.slow),  # as SIGTERM
    ],
)
def test_a_signal_ends_what_hangs(tmp_path: Path, cause: str, number: signal.Signals) -> None:
    """In order where the main thread hears of it, by force where a thread blocks that end."""
    script = f"""
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
endings.END_S = 1.0
kept = endings.ending_within(endings.END_S)
kept.__enter__()
endings.treat_signals_as_interrupts()
try:
    with watched_build(600, progress=Told()):
        thread = threading.Thread(target=begin, args=({cause!r},))
        thread.start()
        try:
            threading.Event().wait()
        finally:
            threading.Event().wait()  # for the thread, as some libraries do
except KeyboardInterrupt:
    sys.exit(130)
"""
    with started(tmp_path, script) as (process, _):
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        process.wait(_PATIENCE_S)
        told = process.stderr.read()
    assert process.returncode == 130
    assert "error: interrupted" in told
    assert "Traceback" not in told


@pytest.mark.slow
@LINUX
def test_a_failure_that_takes_long_to_end_is_no_interruption(tmp_path: Path) -> None:
    script = """
kept = endings.ending_within(0.5)
kept.__enter__()
endings.treat_signals_as_interrupts()
threading.Timer(0.2, endings.fail).start()
try:
    time.sleep(30)
except KeyboardInterrupt:
    time.sleep(2)
    sys.exit(1)
"""
    with started(tmp_path, script) as (process, _):
        _, err = process.communicate(timeout=_PATIENCE_S)
    assert (process.returncode, err) == (1, "")


@pytest.mark.slow
@LINUX
def test_time_in_which_the_build_was_stopped_does_not_count(tmp_path: Path) -> None:
    script = """
with watched_build(2.0, progress=Told()), working_on("the element"):
    print("begun", flush=True)
    time.sleep(0.2)
print("done")
"""
    with started(tmp_path, script) as (process, _):
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(4)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=_PATIENCE_S)
    assert (process.returncode, out, err) == (0, "done\n", "")


def activity(pid: int = 1, *, kind: int = ELEMENT, counter: int = 0, number: int = 1) -> Activity:
    return Activity(pid, kind, number, kind, f"activity {kind}", "", counter)


class TestLooks:
    """With a clock that the test advances: 10 s from one look to the next, and limits of 60 s."""

    def look(
        self, looks: Looks, *activities: Activity, others: int = 0, is_stopped: bool = False
    ) -> tuple[str, list[str]]:
        """What has stalled, and what is warned of; ``others`` counts the other threads' work."""
        counters = {one.pid: others for one in activities}
        stalled, warned = looks.look(activities, counters, 10.0, is_stopped=is_stopped)
        return stalled.what if stalled else "", [f"{one.what}: {quiet:g}" for one, quiet in warned]

    def test_an_element_without_progress_is_warned_of_once_and_then_fails(self) -> None:
        looks, told = Looks(60.0), []
        for _ in range(7):
            told.append(self.look(looks, activity()))
        assert told[:3] == [("", [])] * 3
        assert told[3] == ("", ["activity 1: 30"])
        assert told[4:] == [("", []), ("", []), ("activity 1", [])]

    @pytest.mark.parametrize("change", ["itself", "others", "another element"])
    def test_an_element_that_advances_may_take_long(self, change: str) -> None:
        """Threads that read ahead, and those of TensorFlow, work for the elements of a process."""
        looks = Looks(60.0)
        for i in range(20):
            one = activity(
                counter=i if change == "itself" else 0,
                number=i if change == "another element" else 1,
            )
            assert self.look(looks, one, others=i if change == "others" else 0) == ("", [])

    def test_a_job_advances_with_anything_else(self) -> None:
        looks = Looks(60.0)
        for i in range(20):
            busy = activity(pid=2, counter=i)
            assert self.look(looks, activity(kind=JOB), busy) == ("", [])

    def test_a_job_in_which_nothing_advances_fails(self) -> None:
        """A process that was stopped before it began an element, or an engine's server."""
        looks = Looks(20.0, job_timeout=60.0)
        told = [self.look(looks, activity(kind=JOB)) for _ in range(7)]
        assert told[3] == ("", ["activity 2: 30"])
        assert told[6] == ("activity 2", [])

    def test_an_element_is_named_rather_than_the_job_that_waits_for_it(self) -> None:
        looks = Looks(60.0)
        told = [self.look(looks, activity(kind=JOB), activity()) for _ in range(7)]
        assert told[3] == ("", ["activity 1: 30"])
        assert told[6] == ("activity 1", [])

    def test_other_machines_need_not_advance_unless_a_process_here_is_stopped(self) -> None:
        looks = Looks(60.0)
        elsewhere = activity(kind=ELSEWHERE)
        assert {self.look(looks, elsewhere)[0] for _ in range(20)} == {""}
        told = [self.look(looks, elsewhere, is_stopped=True) for _ in range(7)]
        assert told[6] == ("activity 3", [])

    def test_jobs_have_a_minute_to_load_libraries(self) -> None:
        assert Looks(2.0).limits == {ELEMENT: 2.0, JOB: 60.0, ELSEWHERE: 60.0}
        assert Looks(90.0).limits[JOB] == 90.0


def test_a_failure_of_another_kind_comes_out_as_itself() -> None:
    with pytest.raises(DataError, match="refused"), watched_build(600, progress=Silent()):
        raise DataError("refused")
    assert BUILD_FOLDER not in os.environ


def test_no_limit() -> None:
    warned = Warned()
    with watched_build(0, progress=warned), working_on("an element"):
        time.sleep(0.3)
    assert not warned.warnings
    assert stall_timeout_of(Direct()) == STALL_TIMEOUT == 600
    assert stall_timeout_of(Dataflow()) == 0


def test_what_a_process_reports(tmp_path: Path) -> None:
    with reported_in(str(tmp_path)), working_on("the shard"):
        advance()
        with working_on("a block of " + "ü" * 300):
            reading("folder/a.txt")
            found, _ = read_activities(str(tmp_path), os.getpid())
            counters = [activity.counter for activity in found]
            advance()
            again, _ = read_activities(str(tmp_path), os.getpid())
    by_text = {activity.what[:9]: activity for activity in found}
    assert len(found) == 2
    assert by_text["the shard"].detail == ""
    (block,) = (activity for activity in found if activity.what != "the shard")
    # Cut in front: the end of a path says more.
    assert block.what.startswith("...")
    assert block.what.endswith("ü" * 100)
    assert block.detail == "folder/a.txt"
    assert {activity.kind for activity in found} == {ELEMENT}
    assert sum(activity.counter for activity in again) == sum(counters) + 1
    assert read_activities(str(tmp_path), os.getpid())[0] == []


@pytest.mark.slow
@LINUX
def test_forks_end_alone_and_with_the_build(tmp_path: Path) -> None:
    """One that is told to end does not end the build; one that goes on does not hold it up."""
    script = """
endings.END_S = 0.5
kept = endings.ending_within(endings.END_S)
kept.__enter__()
endings.treat_signals_as_interrupts()
with watched_build(600, progress=Told()):
    forks = [os.fork() or time.sleep(300) for _ in range(2)]
    time.sleep(0.5)  # until they have begun
    os.kill(forks[0], signal.SIGTERM)
    _, status = os.waitpid(forks[0], 0)
    time.sleep(1)
    started = time.monotonic()
assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
assert time.monotonic() - started < 5
_, status = os.waitpid(forks[1], 0)
assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
"""
    with started(tmp_path, script) as (process, _):
        _, err = process.communicate(timeout=_PATIENCE_S)
    assert (process.returncode, err) == (0, "")


@pytest.mark.slow
@LINUX
def test_a_signal_to_a_fork_that_begins_does_not_end_the_build(tmp_path: Path) -> None:
    """It has the build's handlers, and writes where the build reads, until Python has told it."""
    script = """
early = lambda: os.kill(os.getpid(), signal.SIGTERM)
os.register_at_fork(after_in_child=early)
endings.END_S = 0.5
kept = endings.ending_within(endings.END_S)
kept.__enter__()
endings.treat_signals_as_interrupts()
fork = os.fork() or time.sleep(300)
_, status = os.waitpid(fork, 0)
time.sleep(1)
print(os.waitstatus_to_exitcode(status), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    with started(tmp_path, script) as (process, _):
        out, err = process.communicate(timeout=_PATIENCE_S)
    assert (process.returncode, out, err) == (0, f"{-signal.SIGTERM} set()\n", "")


def test_a_build_in_a_thread_leaves_the_processes_of_its_application_alone() -> None:
    started: list[subprocess.Popen[bytes]] = []
    marked: list[subprocess.Popen[bytes]] = []

    def build() -> None:
        with watched_build(600, progress=Silent()):
            application = threading.Thread(target=lambda: started.append(_sleeping()))
            application.start()
            application.join()
            marked.append(_sleeping(env=child_environment()))

    thread = threading.Thread(target=build)
    thread.start()
    thread.join()
    try:
        assert marked[0].wait(timeout=20) == -signal.SIGKILL
        assert started[0].poll() is None
    finally:
        for process in (*started, *marked):
            process.kill()
            process.wait()


def _sleeping(**settings: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **settings)


PHASES = {
    "extract": (
        "Sql('sqlite:///d.db', FOREVER)",
        "",
        "the extraction of Sql (waiting to query the database)",
    ),
    "list": (
        "Csv('memory://raw/*.csv')",
        "opened_source.OpenedSource._find = hang",
        "step 'inventory' (waiting to list memory://raw/*.csv)",
    ),
    "publish": (
        "Csv('t.csv')",
        "publish.storage.put_bytes = hang_on_the_manifest",
        "step 'publish' (waiting to write {folder}/out/table/",
    ),
}
PHASE_SCRIPT = """
import fsspec, snapshard as ss
from snapshard.pipelines import build as builds, watchdog
from snapshard.pipelines.publish import step as publish
from snapshard.transforms import storage
from snapshard.transforms.storage import opened_source

os.chdir({folder!r})

class Hurried(watchdog._Watchdog):
    def __init__(self, *args):
        super().__init__(*args)
        global hurry
        # Not from the start: libraries are loaded in silence.
        hurry = lambda: self._looks.limits.update({{watchdog.JOB: 2.0}})

watchdog._Watchdog = Hurried
Told.start = lambda self, step, **_: hurry() if step == "extract" else None
FOREVER = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) "
FOREVER += "SELECT MAX(x) AS x FROM t ORDER BY x"
fsspec.filesystem("memory").pipe_file("/raw/t.csv", b"x\\n1\\n")
put_bytes = storage.put_bytes

def hang(*args, **settings):
    hurry()
    os.read(os.pipe()[0], 1)

def hang_on_the_manifest(url, content):
    if url.endswith("manifest.json"):
        with storage.failing_as_storage_error("write", url):
            hang()
    put_bytes(url, content)

{patch}
recipe = ss.Recipe(name="table", source=ss.{source}, splits=ss.Splits(train=1.0))
try:
    ss.build(recipe, "out", runner=ss.Direct(stall_timeout=2.0), progress=Told())
except RunnerError as error:
    print("failed:", error)
    sys.exit(error.exit_code)
"""


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_of_a_build_is_watched(tmp_path: Path, phase: str) -> None:
    """Also what the build's own process does alone: it names the phase, and what it waits for."""
    (tmp_path / "t.csv").write_text("x\n1\n2\n")
    sqlite3.connect(tmp_path / "d.db").execute("CREATE TABLE t (x)").connection.close()
    source, patch, named = PHASES[phase]
    script = PHASE_SCRIPT.format(folder=str(tmp_path), patch=patch, source=source)
    with started(tmp_path, script) as (process, _):
        out, err = process.communicate(timeout=_PATIENCE_S)
    named = named.format(folder=tmp_path)
    assert process.returncode == 1, err
    assert "Traceback" not in err
    assert f"No progress for 2 s on {named}" in out + err
    assert f"warned: No progress for 1 s on {named}" in out
    assert "If it only needs more time, set --stall-timeout" in out + err


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("command", ["build", "step inventory"])
def test_a_recipe_that_does_not_load_fails_the_build(tmp_path: Path, command: str) -> None:
    (tmp_path / "recipe.py").write_text("import os\nos.read(os.pipe()[0], 1)\n")
    script = f"""
from snapshard import cli
from snapshard.pipelines import watchdog
watchdog.MIN_JOB_S = 2.0
os.chdir({str(tmp_path)!r})
sys.argv = ["snapshard", *"{command} recipe.py --out out --stall-timeout 2".split()]
cli.main()
"""
    with started(tmp_path, script) as (process, _):
        _, err = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 1, err
    assert "error: No progress for 2 s on the recipe recipe.py" in err
    assert err.count("warning: No progress") == 1
    assert "Traceback" not in err


@pytest.mark.slow
def test_looking_at_others_is_no_advance() -> None:
    """Such as a look, every few seconds, for what workers have put in place."""
    warned = Warned()
    ended = threading.Event()

    @unnoticed()
    def look() -> None:
        while not ended.wait(0.01):
            storage.exists(os.curdir)
            advance()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        with watched_build(3.0, progress=warned), working_on("a block"):
            wait_for(lambda: warned.warnings, "the warning")
    finally:
        ended.set()
        thread.join()
    assert "on a block" in warned.warnings[0]
