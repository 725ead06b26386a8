"""Processes that have TensorFlow at once: forks of one that has loaded it and used nothing of it.

``python preloaded.py FD`` forks for each request on that socket. For tests of what processes do to
each other: how a program starts and loads its libraries, a fork does not show.
"""

import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

_MAX_BYTES = 1 << 20


class Process:
    """One of them: as much of ``subprocess.Popen`` as tests use, with text and pipes."""

    stdin: IO[str]
    stdout: IO[str]

    def __init__(self, zygote: socket.socket, command: Sequence[str]) -> None:
        """Starts it: what follows ``python`` in a command, "-c" and code or a path."""
        given, self_in = os.pipe()
        self_out, printed = os.pipe()
        self._status, status = socket.socketpair()
        with status, open(os.devnull, "wb") as errors:
            request = {"command": command, "cwd": os.getcwd(), "env": dict(os.environ)}
            fds = [given, printed, errors.fileno(), status.fileno()]
            socket.send_fds(zygote, [json.dumps(request).encode()], fds)
        os.close(given)
        os.close(printed)
        self.stdin, self.stdout = os.fdopen(self_in, "w"), os.fdopen(self_out)
        self.returncode: int | None = None
        self._command = command
        self.pid = int.from_bytes(self._status.recv(8), "little")

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                said = self._status.recv(8)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self._command, timeout or 0) from None
            self.returncode = int.from_bytes(said, "little", signed=True)
            self._status.close()
        return self.returncode

    def communicate(self, text: str = "", timeout: float | None = None) -> tuple[str, None]:
        """Sends the text, reads all that it prints, waits until it ends."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.stdin.write(text)
            self.stdin.close()
        parts: list[str] = []
        reading = threading.Thread(target=lambda: parts.append(self.stdout.read()), daemon=True)
        if not self.stdout.closed:
            reading.start()
            reading.join(timeout)
            if reading.is_alive():
                raise subprocess.TimeoutExpired(self._command, timeout or 0)
            self.stdout.close()
        self.wait(timeout)
        return "".join(parts), None


class Preloaded:
    """The process that has loaded TensorFlow."""

    def __enter__(self) -> Self:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, kind, 2 * _MAX_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        self._process.wait(timeout=60)

    def start(self, *command: Any) -> Process:
        """Starts a process: what follows ``python`` in a command."""
        return Process(self._socket, list(map(str, command)))


def _serve(requests: socket.socket) -> list[str] | None:
    """Forks for each request; returns a command in each fork, and None where there are no more."""
    statuses: dict[int, int] = {}

    def reap(*_: object) -> None:
        for pid in list(statuses):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                fd = statuses.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(BrokenPipeError):
                    os.write(fd, code.to_bytes(8, "little", signed=True))
                os.close(fd)

    signal.signal(signal.SIGCHLD, reap)
    while True:
        said, fds, *_ = socket.recv_fds(requests, _MAX_BYTES, 4)
        if not said:
            return None
        request = json.loads(said)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            requests.close()
            for number, fd in enumerate(fds[:3]):
                os.dup2(fd, number)
            for fd in [*fds, *statuses.values()]:
                os.close(fd)
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["env"])
            command: list[str] = request["command"]
            return command
        os.write(fds[3], pid.to_bytes(8, "little"))
        statuses[pid] = fds[3]
        for fd in fds[:3]:
            os.close(fd)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _main() -> None:
    import tensorflow  # noqa: F401 - for the forks

    command = _serve(socket.socket(fileno=int(sys.argv[1])))
    if command is None:
        return
    sys.path.pop(0)  # this script's folder
    if command[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *command[2:]]
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        if Path(command[0]).is_file():
            sys.path.insert(0, str(Path(command[0]).parent))
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    _main()
