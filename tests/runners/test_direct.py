"""The direct runner: in this process and with worker processes; errors, deaths, interruptions."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import psutil
import pytest

import snapshard as ss
from snapshard.pipelines.engines import runner_config
from snapshard.runners import direct, make_runner, worker_processes
from snapshard.runners.direct import DirectRunner
from snapshard.schemas.errors import DataError, RecipeError, RunnerError
from snapshard.schemas.runner import JobSize

LARGE = JobSize(100, 10 << 30)


class _Touch(beam.DoFn):
    """Writes a file for each element; fails, dies or sleeps on request."""

    def __init__(self, folder: Path, *, on_seven: str = "", on_eight: str = "") -> None:
        self.folder, self.on = folder, {7: on_seven, 8: on_eight}

    def process(self, element: int) -> Any:
        action = self.on.get(element, "")
        if action == "refuse":
            raise DataError("table.csv row 7: refused\nsecond line: {'a': 1}")
        if action == "bug":
            raise KeyError("a bug")
        if action == "fork and die":
            forked = os.fork()
            if not forked:
                time.sleep(600)
                os._exit(0)
            (self.folder / "forked").write_text(f"{forked}")
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "sleep":
            time.sleep(120)
        (self.folder / f"{element}").write_text(f"{os.getpid()}")
        yield element


def _job(folder: Path, **actions: str) -> Callable[[Any], object]:
    def sum_up(pair: tuple[int, Any]) -> None:
        (folder / f"sum-{pair[0]}").write_text(str(sum(pair[1])))

    return lambda pipeline: (
        pipeline
        | beam.Create(range(20))
        | beam.Reshuffle()
        | beam.ParDo(_Touch(folder, **actions))
        | "Pair" >> beam.Map(lambda element: (element % 2, element))
        | beam.GroupByKey()
        | "Sum" >> beam.Map(sum_up)
    )


def _children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.ZombieProcess):  # of another test
            if "worker_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


def _processes_used(folder: Path) -> set[int]:
    return {int((folder / f"{element}").read_text()) for element in range(20)}


def test_one_worker_is_this_process(tmp_path: Path) -> None:
    DirectRunner().run(_job(tmp_path), job_name="test")
    assert _processes_used(tmp_path) == {os.getpid()}
    assert (tmp_path / "sum-0").read_text() == "90"
    assert (tmp_path / "sum-1").read_text() == "100"


def test_two_workers_are_two_processes_that_end_with_the_job(tmp_path: Path) -> None:
    DirectRunner(num_workers=2).run(_job(tmp_path), job_name="test")
    used = _processes_used(tmp_path)
    assert len(used) == 2
    assert os.getpid() not in used
    assert (tmp_path / "sum-0").read_text() == "90"
    assert not _children()


def test_a_job_has_no_more_workers_than_items(tmp_path: Path) -> None:
    DirectRunner(num_workers=2).run(_job(tmp_path), job_name="test", size=JobSize(1, 1))
    used = _processes_used(tmp_path)
    assert len(used) == 1
    assert os.getpid() not in used


def test_there_are_no_more_workers_than_cores() -> None:
    most = max(2, os.cpu_count() or 1)
    assert DirectRunner(num_workers=most + 1).num_processes() == most
    assert DirectRunner(num_workers=2).num_processes() == 2
    with pytest.raises(RecipeError, match=r"workers=100,000, expected at most 1,024"):
        DirectRunner(num_workers=100_000)


@pytest.mark.parametrize(
    ("cores", "memory", "size", "processes", "threads"),
    [
        (2, 64 << 30, LARGE, 1, 2),
        (4, 64 << 30, LARGE, 1, 4),
        (7, 64 << 30, LARGE, 1, 4),
        (16, 64 << 30, LARGE, 4, 4),
        (16, 64 << 30, JobSize(3, 10 << 30), 3, 4),
        (16, 64 << 30, JobSize(100, 1 << 30), 2, 4),
        (16, 64 << 30, JobSize(100, 1 << 20), 1, 4),
        (16, 64 << 30, None, 1, 4),
        (64, 5 << 30, LARGE, 2, 4),
        (16, 2 << 30, LARGE, 1, 4),
        (16, 1 << 30, LARGE, 1, 2),
        (16, 768 << 20, LARGE, 1, 1),
        (16, 0, LARGE, 1, 1),
    ],
)
def test_processes_follow_from_cores_memory_and_the_size_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    memory: int,
    size: JobSize | None,
    processes: int,
    threads: int,
) -> None:
    monkeypatch.setattr(direct, "num_cores", lambda: cores)
    monkeypatch.setattr(direct, "free_memory", lambda: memory)
    runner = DirectRunner()
    assert runner.num_processes(size) == processes
    assert runner.threads_per_worker(size) == threads
    monkeypatch.setattr(direct, "free_memory", lambda: 64 << 30)
    given = DirectRunner(memory=memory)
    assert given.num_processes(size) == processes
    assert given.threads_per_worker(size) == threads


def test_memory_that_is_given_reduces_the_workers_that_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct, "num_cores", lambda: 16)
    assert DirectRunner(num_workers=8, memory=6 << 30).num_processes(LARGE) == 3
    monkeypatch.setattr(direct, "free_memory", lambda: 1 << 30)
    assert DirectRunner(num_workers=8).num_processes(LARGE) == 8


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ("700MB", r"memory='700MB' is too small, expected at least 768MiB"),
        (1, r"memory=1 is too small, expected at least 768MiB"),
        ("much", r"memory: 'much' is not a size"),
    ],
)
def test_too_little_memory_is_refused(memory: str | int, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        ss.Direct(memory=memory)
    assert ss.Direct(memory="768MiB").memory_bytes == 768 << 20


def test_large_jobs_have_processes_which_start_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "num_cores", lambda: 8)
    monkeypatch.setattr(direct, "free_memory", lambda: 64 << 30)
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    with DirectRunner() as runner:
        runner.start_workers(JobSize(100, 1 << 20))
        runner.run(_job(small), job_name="test", size=JobSize(100, 1 << 20))
        assert not _children()
        runner.start_workers(LARGE)
        started = {child.pid for child in _children()}
        assert len(started) == 2
        runner.run(_job(large), job_name="test", size=LARGE)
    assert _processes_used(small) == {os.getpid()}
    assert _processes_used(large) == started


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({}, 64),
    ],
)
def test_a_containers_limit_of_cores_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    _limit(tmp_path, monkeypatch, files)
    assert direct.num_cores() == cores


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "max\n"}, None),
        ({"memory.max": "1048576\n"}, 1 << 20),
        ({"memory/memory.limit_in_bytes": "1048576\n"}, 1 << 20),
        ({"memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n"}, None),
        ({}, None),
    ],
)
def test_a_containers_limit_of_memory_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], limit: int | None
) -> None:
    _limit(tmp_path, monkeypatch, files)
    if limit is None:
        assert 1 << 20 < direct.free_memory() <= psutil.virtual_memory().total
    else:
        assert direct.free_memory() == limit


def _limit(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Makes the runner find these files of a container's limits, and no others."""
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(direct, "_LIMITS", str(folder))


@pytest.mark.slow  # starts worker processes several times
def test_workers_are_kept_between_the_jobs_of_a_with_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "_GRACE_SECONDS", 120.0)
    folders = [tmp_path / name for name in ("first", "second", "third", "fourth", "fifth")]
    for folder in folders:
        folder.mkdir()
    with DirectRunner(num_workers=2) as runner:
        runner.run(_job(folders[0]), job_name="test")
        runner.run(_job(folders[1]), job_name="test")
        assert len(_children()) == 2
        # One that died between jobs is replaced.
        killed = _children()[0]
        killed.kill()
        psutil.wait_procs([killed], timeout=10)
        runner.run(_job(folders[4]), job_name="test")
        replaced = _processes_used(folders[4])
        assert len(replaced) == 2
        assert killed.pid not in replaced
        with pytest.raises(DataError):
            runner.run(_job(folders[2], on_seven="refuse"), job_name="test")
        assert not _children()
        runner.run(_job(folders[3]), job_name="test")
    assert not _children()
    used = [_processes_used(folder) for folder in (folders[0], folders[1], folders[3])]
    assert used[0] == used[1]
    assert not used[0] & used[2]
    assert (folders[3] / "sum-1").read_text() == "100"


def test_an_error_of_ours_comes_back_as_itself(tmp_path: Path) -> None:
    """With two workers: the next test."""
    with pytest.raises(DataError) as caught:
        DirectRunner().run(_job(tmp_path, on_seven="refuse"), job_name="test")
    assert str(caught.value) == "table.csv row 7: refused\nsecond line: {'a': 1}"
    assert type(caught.value) is DataError
    assert not _children()


@pytest.mark.slow
def test_an_error_of_one_worker_does_not_wait_for_the_others(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        DirectRunner(num_workers=2).run(
            _job(tmp_path, on_seven="refuse", on_eight="sleep"), job_name="test"
        )
    assert str(caught.value) == "table.csv row 7: refused\nsecond line: {'a': 1}"
    assert type(caught.value) is DataError
    assert not (tmp_path / "8").exists()
    assert not _children()


@pytest.mark.slow
def test_a_defect_keeps_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="a bug"):
        DirectRunner().run(_job(tmp_path, on_seven="bug"), job_name="test")
    with pytest.raises(Exception, match=r"(?s)Traceback.*in process.*KeyError: 'a bug'"):
        DirectRunner(num_workers=2).run(_job(tmp_path, on_seven="bug"), job_name="test")


@pytest.mark.slow  # starts worker processes
def test_a_worker_killed_from_outside_ends_the_job(tmp_path: Path) -> None:
    killed = []

    def kill_one() -> None:
        while not (tmp_path / "0").exists():
            time.sleep(0.05)
        killed.append(_children()[0].pid)
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(RunnerError, match="killed"):
        DirectRunner(num_workers=2).run(
            _job(tmp_path, on_seven="sleep", on_eight="sleep"), job_name="test"
        )
    killer.join()
    assert killed
    assert not _children()


@pytest.mark.slow  # starts worker processes
def test_a_death_is_told_where_the_engine_sees_the_connection_break_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "_WATCH_SECONDS", 600.0)
    with pytest.raises(RunnerError, match="killed"):
        DirectRunner(num_workers=2).run(_job(tmp_path, on_seven="die"), job_name="test")
    assert not _children()


@pytest.mark.slow  # starts worker processes
def test_a_killed_worker_ends_the_job_at_once(tmp_path: Path) -> None:
    """What it forked holds nothing up: it has the worker's output, which does not end with it."""
    with pytest.raises(RunnerError, match=r"killed.*Run the same build again"):
        DirectRunner(num_workers=2).run(
            _job(tmp_path, on_seven="fork and die", on_eight="sleep"), job_name="test"
        )
    assert not (tmp_path / "8").exists()
    assert not _children()
    with contextlib.suppress(psutil.NoSuchProcess):
        forked = psutil.Process(int((tmp_path / "forked").read_text()))
        assert forked.status() == psutil.STATUS_ZOMBIE


_KILLED_AT_ONCE = """
import os
from snapshard.runners.worker_pool import WorkerPool
worker = WorkerPool().take()
worker.assign({"CONTROL_API_SERVICE_DESCRIPTOR": "url: 'localhost:9'"}, failures="/")
print(worker._process.pid, os.path.dirname(worker._log_path), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_worker_whose_driver_is_gone_before_it_looks_ends_as_well() -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED_AT_ONCE], capture_output=True, text=True)
    number, folder = done.stdout.split()
    with contextlib.suppress(psutil.NoSuchProcess):
        worker = psutil.Process(int(number))
        # Beam's harness alone would wait for a minute.
        with contextlib.suppress(psutil.TimeoutExpired):
            worker.wait(timeout=30)
        assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert not Path(folder).exists()


_SCRIPT = """
import signal
import sys
# A shell that runs the tests in the background lets them ignore SIGINT, and so their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from snapshard.runners.direct import DirectRunner
sys.path.insert(0, {tests!r})
import test_direct
try:
    DirectRunner(num_workers={num_workers}).run(
        test_direct._job(Path({folder!r}), on_seven="sleep", on_eight="sleep"), job_name="test"
    )
except KeyboardInterrupt:
    print("interrupted")
"""


def _start_sleeping_job(folder: Path, num_workers: int) -> "subprocess.Popen[str]":
    script = _SCRIPT.format(
        tests=str(Path(__file__).parent), folder=str(folder), num_workers=num_workers
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 300
    while not (folder / "0").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(process.communicate())
        time.sleep(0.05)
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_workers",
    [1, pytest.param(2, marks=pytest.mark.slow)],  # a driver and its workers
)
def test_ctrl_c_ends_the_job_quietly(tmp_path: Path, num_workers: int) -> None:
    process = _start_sleeping_job(tmp_path, num_workers)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == (0 if num_workers == 1 else 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "interrupted\n", "")
    assert not [worker for worker in workers if worker.is_running()]


@pytest.mark.slow  # a driver and its workers
def test_workers_do_not_outlive_a_killed_driver(tmp_path: Path) -> None:
    process = _start_sleeping_job(tmp_path, 2)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


@pytest.mark.parametrize("num_workers", [0, -1, True, "2", 1.5])
def test_a_wrong_number_of_workers_is_a_usage_error(num_workers: Any) -> None:
    with pytest.raises(RecipeError, match="workers="):
        DirectRunner(num_workers=num_workers)


@pytest.mark.parametrize(
    "num_workers",
    [1, pytest.param(2, marks=pytest.mark.slow)],  # worker processes
)
def test_options_reach_beam(tmp_path: Path, num_workers: int) -> None:
    """Beam writes the profile of each bundle, where it is told to."""
    options = ("--profile_cpu", f"--profile_location={tmp_path}/profiles")
    config = runner_config("direct", workers=num_workers, beam_options=options)
    runner = make_runner(config)
    runner.check()
    runner.run(_job(tmp_path), job_name="test")
    assert len(_processes_used(tmp_path)) == num_workers
    assert any(path.is_file() for path in (tmp_path / "profiles").rglob("*"))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--direct_running_mode=multi_processing", "snapshard's own.*--workers"),
        ("--direct_num_workers=2", "snapshard's own.*--workers"),
        ("--num_workers=many", "invalid int value: 'many'"),
        ("--no_such_option=1", r"Beam has no option --no_such_option\. Correct its name"),
        ("--no_such_flag", r"Beam has no option --no_such_flag\."),
        ("--", r"Beam has no option --\."),
        ("--profile-cpu", r"no option --profile-cpu\. Did you mean --profile_cpu\?"),
        ("--profile_cpus", r"no option --profile_cpus\. Did you mean --profile_cpu\?"),
    ],
)
def test_unfit_options_are_usage_errors(option: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        DirectRunner(beam_options=(option,)).check()
