"""The process of an engine's job server: started, waited for, ended by us, its output in a file.

Beam starts such processes too, but logs all that they say, sets signal handlers of its own and
ends them when Python does; a build wants one for its few jobs, and its last words when it dies. A
program between (``server_guard``) ends it where this process could not, because it was killed.
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
_LAST_WORDS = 2000
_PORTS = (20_000, 32_000)
_TRIES = 100


class JobServer:
    """One job server on this machine."""

    def __init__(self, command: Callable[[int, str], Sequence[str]], *, engine: str) -> None:
        """Starts it, and waits until it listens.

        Args:
            command: Given the port to listen on and a folder of its own, the command line.
            engine: What the user calls the engine.

        Raises:
            RunnerError: if it ends, or does not listen in time.
        """
        self._engine = engine
        # In the build's folder, which goes with the build however that ends.
        inside = build_folder()
        self._scratch = tempfile.TemporaryDirectory(prefix="snapshard-engine-", dir=inside)
        self._log_path = os.path.join(self._scratch.name, "log.txt")
        port, folder = free_port(), self._scratch.name
        self.endpoint = f"localhost:{port}"
        with open(self._log_path, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _GUARD, folder, *command(port, folder)],
                env=child_environment(),
                # It comes to an end with this process; nothing is ever written.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C on the terminal is ours to answer.
                start_new_session=True,
            )
        try:
            self._wait(port)
        except BaseException:
            self.stop()
            raise

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 and more for a signal."""
        return self._process.poll()

    def wait_until_ended(self, seconds: float) -> None:
        """Waits until it has ended, or so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)

    def stop(self) -> None:
        """Ends it and all that it started."""
        if self._process.poll() is None:
            self._process.terminate()
            self.wait_until_ended(_END_SECONDS)
        if self._process.stdin is not None:
            self._process.stdin.close()  # kills what is left
        self.wait_until_ended(_END_SECONDS)
        # One that somebody stopped does not hear: what it guards, the guard of the build ends.
        self._process.kill()
        self._process.wait()
        self._scratch.cleanup()

    def last_words(self) -> str:
        """The end of what it wrote."""
        with open(self._log_path, errors="replace") as log:
            return log.read()[-_LAST_WORDS:].strip()

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None:
                raise RunnerError(
                    f"The job server of {self._engine} ended with code {self._process.returncode} "
                    f"before it could take a job. Its last words:\n{self.last_words()}"
                )
            try:
                socket.create_connection(("localhost", port), timeout=1).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise RunnerError(
                        f"The job server of {self._engine} did not listen within "
                        f"{START_SECONDS:.0f} s. Its last words:\n{self.last_words()}"
                    ) from None
                time.sleep(0.05)
            else:
                return


def free_port() -> int:
    """A port that nobody listens on, and that nobody is given who asks for just any.

    Systems give such ports from 32,768 on. Others may start servers, too, in the seconds that ours
    takes until it listens.

    Raises:
        RunnerError: if none is found.
    """
    draw = random.SystemRandom()
    for _ in range(_TRIES):
        port = draw.randrange(*_PORTS)
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("localhost", port))
            return port
    raise RunnerError(
        f"No free port was found among {_TRIES} between {_PORTS[0]:,} and {_PORTS[1]:,}, for an "
        "engine's job server. Does this machine let programs listen?"
    )
