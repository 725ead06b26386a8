"""The process of an engine's job server: starts it, waits for it, ends it, logs it to a file.

Beam can start such processes too, but it logs all their output, sets its own signal handlers and
ends them only when Python ends. A build needs one server for its few jobs, and its last output if
it dies. An intermediate program (``server_guard``) ends the server if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from ..schemas.errors import RunnerError
from ..schemas.progress import build_folder, child_environment

START_SECONDS = 120.0
_END_SECONDS = 5.0
_GUARD = os.path.join(os.path.dirname(__file__), "server_guard.py")
_LAST_CHARACTERS = 2000
_PORTS = (20_000, 32_000)
_TRIES = 100


class JobServer:
    """One job server on this machine."""

    def __init__(self, command: Callable[[int, str], Sequence[str]], *, engine: str) -> None:
        """Starts it, and waits until it listens.

        Args:
            command: Returns the command line, given the port to listen on and the server's folder.
            engine: The engine's name, as users write it.

        Raises:
            RunnerError: if it ends, or does not listen in time.
        """
        self._engine = engine
        # In the build's folder, which is removed however the build ends.
        inside = build_folder()
        self._scratch = tempfile.TemporaryDirectory(prefix="snapshard-engine-", dir=inside)
        self._log_path = os.path.join(self._scratch.name, "log.txt")
        port, folder = free_port(), self._scratch.name
        self.endpoint = f"localhost:{port}"
        with open(self._log_path, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _GUARD, folder, *command(port, folder)],
                env=child_environment(),
                # Closed when this process ends; nothing is ever written.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # This process handles Ctrl-C on the terminal.
                start_new_session=True,
            )
        try:
            self._wait(port)
        except BaseException:
            self.stop()
            raise

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 or more for a signal."""
        return self._process.poll()

    def wait_until_ended(self, seconds: float) -> None:
        """Waits until it has ended, at most this long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)

    def stop(self) -> None:
        """Ends it and all processes that it started."""
        if self._process.poll() is None:
            self._process.terminate()
            self.wait_until_ended(_END_SECONDS)
        if self._process.stdin is not None:
            self._process.stdin.close()  # kills the remaining processes
        self.wait_until_ended(_END_SECONDS)
        # A stopped guard does not react; the reaper of the build ends the server instead.
        self._process.kill()
        self._process.wait()
        self._scratch.cleanup()

    def last_words(self) -> str:
        """The end of its output."""
        with open(self._log_path, errors="replace") as log:
            return log.read()[-_LAST_CHARACTERS:].strip()

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None:
                raise RunnerError(
                    f"The job server of {self._engine} ended with code {self._process.returncode} "
                    f"before it accepted a job. Its last output:\n{self.last_words()}"
                )
            try:
                socket.create_connection(("localhost", port), timeout=1).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise RunnerError(
                        f"The job server of {self._engine} did not listen within "
                        f"{START_SECONDS:.0f} s. Its last output:\n{self.last_words()}"
                    ) from None
                time.sleep(0.05)
            else:
                return


def free_port() -> int:
    """A port that is free, and outside the range that the system assigns to programs.

    Systems assign ports from 32,768 upwards. Other programs may start servers, too, in the seconds
    until ours listens.

    Raises:
        RunnerError: if none is found.
    """
    draw = random.SystemRandom()
    for _ in range(_TRIES):
        port = draw.randrange(*_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("localhost", port))
            return port
    raise RunnerError(
        f"No free port for an engine's job server: tried {_TRIES} between {_PORTS[0]:,} and "
        f"{_PORTS[1]:,}. Check that programs may listen on ports of this machine."
    )
