"""How the command line ends when it is told to: in order where that works, and soon in any case.

SIGTERM and SIGHUP do what Ctrl-C does: they raise KeyboardInterrupt in the main thread, once that
runs Python again. A thread of its own sees to the rest: it ends the process where the main thread
does not within ``END_S``. Where not even that thread runs, because code in C keeps Python's lock,
the guard of a build sees that the signal came, and kills the process a little later.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator

END_S = 6.0
"""What a process has to end in order, once it was told to."""
END_ELSEWHERE_S = 60.0
"""The same of a build whose job has to be cancelled on other machines."""
INTERRUPTED = 130
"""The shell's code for a program that SIGINT ended."""
MESSAGE = "interrupted. What is done is kept: the same command goes on."

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_reader = -1
_seconds = END_S
_failing = threading.Event()
_forking = threading.local()


def take_endings_for_interrupts() -> None:
    """Has SIGTERM and SIGHUP, of schedulers and lost terminals, do what Ctrl-C does.

    What somebody else handles or ignores (``nohup``) stays as it is.
    """
    global _reader
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    # Not a pipe: what arrived must stay where the guard sees it, and be looked at all the same.
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    os.register_at_fork(
        before=_hold_endings, after_in_parent=_release_endings, after_in_child=_forget_endings
    )
    _reader = reader.fileno()
    threading.Thread(target=_end_in_time, args=(reader,), name="end_in_time", daemon=True).start()


def signals_fd() -> int:
    """A descriptor that has nothing to read until this process is told to end; -1 for none."""
    return _reader


@contextlib.contextmanager
def ending_within(seconds: float) -> Iterator[None]:
    """Gives the process so long to end, if it is told to while the body runs."""
    global _seconds
    before, _seconds = _seconds, seconds
    try:
        yield
    finally:
        _seconds = before


def fail() -> None:
    """Interrupts the main thread as Ctrl-C does, for a failure that the caller sees to."""
    _failing.set()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def end_now(message: str, *, code: int) -> None:
    """Ends this process, whatever its threads are at."""
    with contextlib.suppress(OSError):
        os.write(2, f"error: {message}\n".encode("utf-8", "backslashreplace"))
    os._exit(code)


def seconds_to_end() -> float:
    """What this process has to end in order, if it is told to now."""
    return _seconds


def _hold_endings() -> None:
    """Lets signals to this thread wait while it forks: the fork begins with its handlers."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _release_endings() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _forget_endings() -> None:
    """Lets a fork, such as a process of a pool that a user's function makes, end by itself alone.

    A signal that came to it would else arrive at the socket that it shares with its parent.
    """
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.default_int_handler:
                signal.signal(number, signal.SIG_DFL)
    _release_endings()


def _end_in_time(reader: socket.socket) -> None:
    """Waits for a signal, and ends the process where it is still there some time later."""
    while True:
        select.select([reader], [], [])
        arrived = reader.recv(64, socket.MSG_PEEK)
        if not _failing.is_set() and set(arrived) & set(_SIGNALS):
            break
        reader.recv(len(arrived))
    time.sleep(_seconds)
    end_now(MESSAGE, code=INTERRUPTED)
