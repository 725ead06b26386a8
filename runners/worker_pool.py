"""Worker processes kept between jobs: each imports TensorFlow and Beam once, not once per job.

Independent of Beam: a worker process reads one job after another as lines of JSON from its
standard input, and reports when it is idle.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import IO

from ..schemas.progress import build_folder, child_environment

DRIVER = "SNAPSHARD_DRIVER"
"""Environment variable of a worker process: the id of the driver process, with which it ends."""
FOLDER = "SNAPSHARD_WORKERS_FOLDER"
"""Environment variable of a worker process: the pool's folder, which it then removes."""
_LAST_BYTES = 4000
_READER_SECONDS = 1.0
_NOISE = re.compile(
    r"[IW]\d{4} \d\d:|E\d{4} .*cuda|WARNING: All log messages before absl|To enable "
)


def without_startup_noise(text: str) -> str:
    r"""A process's output without the lines that TensorFlow always writes when it starts.

    >>> without_startup_noise("I0000 00:00:17.4 cudart_stub.cc:31] Could not find cuda\nKilled")
    'Killed'
    """
    return "\n".join(line for line in text.splitlines() if not _NOISE.match(line)).strip()


class WorkerProcess:
    """One worker process: a direct child in a separate session, its output in a file.

    Because of the separate session, Ctrl-C on the terminal reaches only the driver, which then
    ends its workers.
    """

    def __init__(self, *, folder: str, number: int, environment: Mapping[str, str]) -> None:
        """Starts the process, with this one's module search path."""
        self._log_path = os.path.join(folder, f"worker-{number}.log")
        with open(self._log_path, "wb") as log:
            self._process = subprocess.Popen(
                # -P: modules in the current folder must not shadow installed ones.
                [sys.executable, "-P", "-m", f"{__package__}.worker_main"],
                env={
                    **environment,
                    DRIVER: str(os.getpid()),
                    FOLDER: folder,
                    "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._ended = False
        self._idle: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name="read_worker", daemon=True
        )
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; otherwise as in subprocess: negative for a signal."""
        return self._process.poll()

    def assign(self, environment: Mapping[str, str], *, failures: str) -> None:
        """Gives the process a job: where to connect, and the folder to record failures in.

        A process that has died is noticed later, by its exit code.
        """
        job = {"environment": dict(environment), "failures": failures}
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def wait_until_idle(self, seconds: float) -> bool:
        """Waits at most this long; returns whether the process has finished its job."""
        try:
            return self._idle.get(timeout=seconds)
        except queue.Empty:
            return False

    def wait_until_ended(self, seconds: float) -> None:
        """Waits until the process has ended, at most this long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)

    def end(self) -> None:
        """Kills the process and all processes that it started, and waits for its end.

        Forks of a dead process survive in its group, and may keep its output open.
        """
        if not self._ended:
            self._ended = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(timeout=_READER_SECONDS)
        # A process that left the group may keep the output open: its reader thread still runs.
        streams = [self._process.stdin]
        if not self._reader.is_alive():
            streams.append(self._process.stdout)
        for stream in streams:
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def last_words(self) -> str:
        """The end of the process's output, without startup noise."""
        with contextlib.suppress(OSError), open(self._log_path, "rb") as log:
            log.seek(max(0, os.path.getsize(self._log_path) - _LAST_BYTES))
            return without_startup_noise(log.read().decode(errors="replace"))
        return ""

    def _read(self, stream: IO[bytes]) -> None:
        for _ in stream:
            self._idle.put(True)
        self._idle.put(False)


class WorkerPool:
    """Idle worker processes that jobs take and give back; a context manager."""

    def __init__(self) -> None:
        # In the build's folder, which is removed however the build ends.
        inside = build_folder()
        self._environment = child_environment()
        self._scratch = tempfile.TemporaryDirectory(prefix="snapshard-workers-", dir=inside)
        self._idle: list[WorkerProcess] = []
        self._taken: list[WorkerProcess] = []
        self._num_started = 0

    @property
    def folder(self) -> str:
        """A folder for the workers' files; removed with the pool."""
        return self._scratch.name

    def start(self, number: int) -> None:
        """Starts processes until so many are idle."""
        while len(self._idle) < number:
            self._idle.append(self._started())

    def take(self) -> WorkerProcess:
        """Returns an idle process, or starts one."""
        while self._idle:
            process = self._idle.pop()
            if process.exit_code is None:
                break
            process.end()
        else:
            process = self._started()
        self._taken.append(process)
        return process

    def _started(self) -> WorkerProcess:
        number = self._num_started
        self._num_started += 1
        return WorkerProcess(folder=self.folder, number=number, environment=self._environment)

    def give_back(self, process: WorkerProcess) -> None:
        """Keeps an idle process for the next job; call it once."""
        self._taken.remove(process)
        self._idle.append(process)

    def end_taken(self) -> None:
        """Kills the processes that were not given back."""
        while self._taken:
            self._taken.pop().end()

    def __enter__(self) -> WorkerPool:
        """Returns the pool."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all processes."""
        self.end_taken()
        while self._idle:
            self._idle.pop().end()
        self._scratch.cleanup()
