"""Job servers: they end with whoever started them, and their death is told as such."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import grpc  # type: ignore[import-untyped]
import psutil
import pytest

from snapshard.runners import job_server
from snapshard.runners.flink import FlinkRunner
from snapshard.runners.job_server import JobServer, free_port
from snapshard.runners.portable import PortableRunner, quiet_threads
from snapshard.schemas.errors import RunnerError
from snapshard.schemas.runner import Flink

_SERVER = (
    "import http.server, sys; "
    "http.server.HTTPServer(('localhost', int(sys.argv[1])), None).serve_forever()"
)
_DRIVER = """
import signal, sys, time
# What nohup starts ignores it, and so do its children.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from snapshard.runners.job_server import JobServer
server = JobServer(lambda port, folder: [sys.executable, "-c", {server!r}, str(port)], engine="x")
print(server._scratch.name, flush=True)
time.sleep(300)
"""


def _command(port: int, folder: str) -> list[str]:
    del folder
    return [sys.executable, "-c", _SERVER, str(port)]


def _below(pid: int) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return found


def test_it_ends_when_told(tmp_path: Path) -> None:
    server = JobServer(_command, engine="x")
    started = _below(os.getpid())
    assert server.exit_code is None
    server.stop()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not [process for process in alive if _SERVER in process.cmdline()]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_it_ends_with_the_process_that_started_it(ending: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER.format(server=_SERVER)], stdout=subprocess.PIPE
    ) as driver:
        assert driver.stdout is not None
        folder = Path(driver.stdout.readline().decode().strip())
        assert folder.is_dir()
        started = _below(driver.pid)
        assert any(_SERVER in process.cmdline() for process in started)
        driver.send_signal(ending)
        driver.wait()
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive
    assert not folder.exists()


def test_one_that_does_not_end_when_told_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_server, "_END_SECONDS", 0.2)
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_SERVER}"
    server = JobServer(lambda port, folder: [sys.executable, "-c", deaf, str(port)], engine="x")
    started = [process for process in _below(os.getpid()) if deaf in process.cmdline()]
    assert len(started) == 2
    server.stop()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive


@pytest.mark.parametrize(
    ("program", "code"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + 9)],
    ids=["exit", "signal"],
)
def test_one_that_ends_before_it_listens_is_told(program: str, code: int) -> None:
    words = f"print('words', flush=True); {program}"
    with pytest.raises(RunnerError, match=rf"(?s)of x ended with code {code} before.*words"):
        JobServer(lambda port, folder: [sys.executable, "-c", words], engine="x")


def test_ports_are_of_those_that_are_given_to_nobody() -> None:
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40
    assert max(ports) < 32_768


class _Lost(grpc.RpcError):  # type: ignore[misc]
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE


class _Runner(PortableRunner):
    name = "x"

    def server_command(self, port: int, folder: str) -> list[str]:
        return _command(port, folder)

    def engine_options(self) -> list[str]:
        return []


class _Pipeline:
    """Stands in the place of Beam's: its job ends as the test wants it."""

    def __init__(self, ending: Any) -> None:
        self.ending = ending
        self.cancelled = False

    def __call__(self, options: Any) -> "_Pipeline":
        return self

    def run(self) -> "_Pipeline":
        return self

    def wait_until_finish(self) -> None:
        self.ending()

    def cancel(self) -> None:
        self.cancelled = True


def test_a_death_is_told_where_its_connection_broke_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends a while after its connections."""
    with _Runner(num_workers=1, beam_options=()) as runner:

        def die() -> None:
            assert runner._server is not None
            # Not the guard of it.
            (process,) = [p for p in _below(os.getpid()) if p.cmdline()[1:3] == ["-c", _SERVER]]
            threading.Timer(0.5, process.kill).start()
            raise _Lost

        monkeypatch.setattr("apache_beam.Pipeline", _Pipeline(die))
        with pytest.raises(RunnerError, match="The job server of x ended with code 137 in the job"):
            runner.run(lambda pipeline: None, job_name="write")


def test_an_interrupted_job_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    pipeline = _Pipeline(interrupt)
    monkeypatch.setattr("apache_beam.Pipeline", pipeline)
    with _Runner(num_workers=1, beam_options=()) as runner, pytest.raises(KeyboardInterrupt):
        runner.run(lambda pipeline: None, job_name="write")
    assert pipeline.cancelled


def test_jobs_in_two_threads_are_quiet_together() -> None:
    first, second = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def job() -> None:
        try:
            with quiet_threads():
                first.set()
                second.wait(30)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=job)
    thread.start()
    assert first.wait(30)
    with quiet_threads():
        pass
    second.set()
    thread.join()
    assert not failed


def test_the_command_line_ends_as_interrupted_on_sigterm(tmp_path: Path) -> None:
    """What schedulers send: engines, workers and folders of work in progress end in order."""
    (tmp_path / "recipe.py").write_text(
        "import time\nprint('begun', flush=True)\ntime.sleep(300)\nrecipe = None\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "snapshard", "build", "recipe.py", "--out", "out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in told
    assert "Traceback" not in told


class _Jobs(http.server.BaseHTTPRequestHandler):
    """The web address of a cluster: two jobs, of which one ends some looks after it is told to."""

    told: ClassVar[list[str]] = []
    looks: ClassVar[int] = 0

    def do_GET(self) -> None:
        _Jobs.looks += bool(self.told)
        states = {"mine": "CANCELED" if _Jobs.looks > 2 else "RUNNING", "other": "RUNNING"}
        jobs = [{"jid": f"id-{name}", "name": name, "state": states[name]} for name in states]
        self._answer({"jobs": jobs})

    def do_PATCH(self) -> None:
        self.told.append(self.path)
        self._answer({})

    def _answer(self, content: object) -> None:
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        """Keeps quiet."""


@pytest.mark.slow
def test_a_job_of_a_cluster_is_ended_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with http.server.HTTPServer(("localhost", 0), _Jobs) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        runner = FlinkRunner(Flink(master=f"localhost:{server.server_port}"))
        try:
            runner.end_job("mine")
        finally:
            server.shutdown()
            thread.join()
    assert set(_Jobs.told) == {"/jobs/id-mine?mode=cancel"}
    assert capsys.readouterr().err == ""
    runner.end_job("mine")
    assert "may still run at http://localhost:" in capsys.readouterr().err
    assert runner.engine_job_name("write") != runner.engine_job_name("write")
