"""A Flink cluster on this machine: a JobManager, TaskManagers and Beam worker pools, as processes.

Flink's own start scripts are not in the package that brings its libraries, so the main classes are
started outright, with the ``--add-opens`` that those scripts pass and the memory that they reckon.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import psutil

from snapshard.runners.job_server import free_port

QUICK_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For what runs for seconds: to compile it well takes longer than it saves."""
_Found = TypeVar("_Found")
_PATIENCE_S = 20.0
_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "java.util.concurrent.locks",
    "sun.nio.ch",
)
_JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
_CONFIG = """
jobmanager.rpc.address: localhost
jobmanager.rpc.port: {rpc}
jobmanager.memory.heap.size: 512m
jobmanager.memory.off-heap.size: 128m
rest.address: localhost
rest.port: {rest}
rest.bind-address: localhost
taskmanager.numberOfTaskSlots: 2
taskmanager.cpu.cores: 2
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
taskmanager.memory.task.heap.size: 512m
taskmanager.memory.task.off-heap.size: 64m
taskmanager.memory.managed.size: 256m
taskmanager.memory.network.min: 384m
taskmanager.memory.network.max: 384m
taskmanager.network.sort-shuffle.min-buffers: 16
heartbeat.interval: 1000
heartbeat.timeout: 8000
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 5
restart-strategy.fixed-delay.delay: 1 s
io.tmp.dirs: {folder}/tmp
web.tmpdir: {folder}/web
blob.storage.directory: {folder}/blob
"""
_LOGGING = """
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.name = console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1} %m%n
"""


class FlinkCluster:
    """A running cluster; a context manager that ends all that it started."""

    def __init__(self, libraries: Path, folder: Path, *, num_task_managers: int = 2) -> None:
        """Starts the processes and waits until all slots are there.

        Args:
            libraries: The folder of Flink's jars.
            folder: A folder of its own, for configuration, logs and temporary files.
            num_task_managers: Each has two slots.
        """
        self._libraries = libraries
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._rest, self._pool_port, rpc = _free_ports(3)
        for name in ("tmp", "web", "blob"):
            (folder / name).mkdir(parents=True)
        config = _CONFIG.format(rpc=rpc, rest=self._rest, folder=folder)
        (folder / "flink-conf.yaml").write_text(config)
        (folder / "log4j.properties").write_text(_LOGGING)
        try:
            self._start_java("jobmanager", _JOB_MANAGER, heap="512m")
            self.task_managers: list[subprocess.Popen[bytes]] = []
            for _ in range(num_task_managers):
                self.start_task_manager()
            self._start_pool()
            self.wait_for_slots(2 * num_task_managers)
        except BaseException:
            self.stop()
            raise

    @property
    def master(self) -> str:
        """``host:port`` of the web address."""
        return f"localhost:{self._rest}"

    @property
    def beam_options(self) -> tuple[str, ...]:
        """What lets its workers run Python: the pool of this machine."""
        return ("--environment_type=EXTERNAL", f"--environment_config=localhost:{self._pool_port}")

    @property
    def num_running(self) -> int:
        """TaskManagers that have not been killed."""
        return sum(process.poll() is None for process in self.task_managers)

    def workers(self) -> list[psutil.Process]:
        """The Python workers that the pool has started and that have not ended, youngest last.

        Each job has its own; those of an earlier one may linger.
        """
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._pool.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    # The pool does not take notice of those that were killed.
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return sorted(found, key=lambda process: process.create_time())

    def running_job(self) -> str:
        """The id of the one job under way."""

        def look() -> list[str]:
            jobs = self.overview("jobs/overview")["jobs"]
            return [str(job["jid"]) for job in jobs if job["state"] == "RUNNING"]

        return _only(look, "job under way")

    def failures(self, job: str) -> list[str]:
        """What parts of a job have failed of, which began anew then."""
        history = self.overview(f"jobs/{job}/exceptions")["exceptionHistory"]
        return [entry["exceptionName"] for entry in history["entries"]]

    def overview(self, path: str = "overview") -> Any:
        """What the web address tells, which may be slow to answer."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._ask(path)
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def busy_task_manager(self) -> int:
        """The number of the one TaskManager whose slots are taken."""

        def look() -> list[int]:
            told = self.overview("taskmanagers")["taskmanagers"]
            return [
                number
                for number, process in enumerate(self.task_managers)
                if any(
                    entry["freeSlots"] < entry["slotsNumber"] and _listens(process.pid, entry)
                    for entry in told
                )
            ]

        return _only(look, "TaskManager at work")

    def start_task_manager(self) -> None:
        """Adds one, with two slots."""
        name = f"taskmanager-{len(self.task_managers)}"
        self.task_managers.append(self._start_java(name, _TASK_MANAGER, heap="640m"))

    def kill_task_manager(self, number: int) -> None:
        """Kills one, as a machine that is switched off."""
        self.task_managers[number].kill()
        self.task_managers[number].wait()
        self._processes.remove(self.task_managers[number])

    def stop(self) -> None:
        """Ends all processes, and the workers of the pool."""
        for worker in self.workers() if hasattr(self, "_pool") else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def logs(self) -> str:
        """The end of what each process wrote."""
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self._folder.glob("*.log"))
        )

    def __enter__(self) -> "FlinkCluster":
        """The cluster."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends it."""
        self.stop()

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.master}/{path}", timeout=5) as answer:
            return json.load(answer)

    def _start_java(self, name: str, main: str, *, heap: str) -> subprocess.Popen[bytes]:
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        return self._start(
            name,
            [
                "java",
                f"-Xmx{heap}",
                *QUICK_JAVA,
                f"-Dlog4j.configurationFile={self._folder}/log4j.properties",
                *opened,
                "-cp",
                f"{self._libraries}/*",
                main,
                "--configDir",
                str(self._folder),
            ],
        )

    def _start_pool(self) -> None:
        self._pool = self._start(
            "pool",
            [
                sys.executable,
                "-m",
                "apache_beam.runners.worker.worker_pool_main",
                f"--service_port={self._pool_port}",
            ],
        )

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # The pool starts workers as a bare `python`.
                env={
                    **os.environ,
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                },
            )
        self._processes.append(process)
        return process

    def wait_for_slots(self, num_slots: int) -> None:
        """Waits until so many are free, and the pool takes workers' calls."""
        deadline = time.monotonic() + 200
        while True:
            with contextlib.suppress(OSError, ValueError):
                if self._ask("overview")["slots-available"] >= num_slots:
                    socket.create_connection(("localhost", self._pool_port), timeout=1).close()
                    return
            ended = [process.args for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"Flink did not start: {ended}\n{self.logs()}")
            time.sleep(0.2)


def _listens(pid: int, entry: dict[str, Any]) -> bool:
    """Whether the process listens on the TaskManager's data port."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(
            connection.status == psutil.CONN_LISTEN and connection.laddr.port == entry["dataPort"]
            for connection in psutil.Process(pid).net_connections(kind="tcp")
        )
    return False


def _only(look: Callable[[], Sequence[_Found]], what: str) -> _Found:
    """The one that is found, once it is one: others may be about to end, or to begin."""
    deadline = time.monotonic() + _PATIENCE_S
    while len(found := look()) != 1:
        assert time.monotonic() < deadline, f"{what}: expected one, found {found}"
        time.sleep(0.2)
    return found[0]


def _free_ports(num: int) -> list[int]:
    """Different ones."""
    found: set[int] = set()
    while len(found) < num:
        found.add(free_port())
    return list(found)
