"""How the command line ends when it gets a signal: cleanly if possible, and soon in any case.

SIGTERM and SIGHUP act like Ctrl-C: they raise KeyboardInterrupt in the main thread, once that runs
Python again. A separate thread ends the process if the main thread does not do so within
``END_S``, unless C code holds Python's lock for ever: such a process ends only by SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

END_S = 6.0
"""Seconds that a process has to end cleanly after a signal."""
END_ELSEWHERE_S = 60.0
"""The same for a build whose job must be cancelled on other machines."""
INTERRUPTED = 130
"""The shell's exit code for a program ended by SIGINT."""
MESSAGE = "interrupted. Finished work is kept. Run the same command to resume."

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_seconds = END_S
_failing = threading.Event()
_forking = threading.local()


def treat_signals_as_interrupts() -> None:
    """Makes SIGTERM and SIGHUP, from schedulers and lost terminals, act like Ctrl-C.

    Ctrl-C too, which ends a process at once while its modules load. Signals that are already
    handled or ignored (``nohup``) are unchanged.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    os.register_at_fork(
        before=_hold_endings, after_in_parent=_release_endings, after_in_child=_forget_endings
    )
    threading.Thread(target=_end_in_time, args=(reader,), name="end_in_time", daemon=True).start()


@contextlib.contextmanager
def ending_within(seconds: float) -> Iterator[None]:
    """Gives the process this long to end if it gets a signal while the body runs."""
    global _seconds
    before, _seconds = _seconds, seconds
    try:
        yield
    finally:
        _seconds = before


def is_interruptible() -> bool:
    """Whether :func:`fail` interrupts the code that calls this."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def fail() -> None:
    """Interrupts the main thread like Ctrl-C, for a failure that the caller handles."""
    _failing.set()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def end_now(message: str, *, code: int) -> None:
    """Ends this process, whatever its threads are doing."""
    with contextlib.suppress(OSError):
        os.write(2, f"error: {message}\n".encode("utf-8", "backslashreplace"))
    os._exit(code)


def _hold_endings() -> None:
    """Blocks signals to this thread while it forks: the fork starts with its handlers."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _release_endings() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _forget_endings() -> None:
    """Makes signals end only the fork, such as a process of a pool that a user's function makes.

    Otherwise its signals would arrive at the socket that it shares with its parent.
    """
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.default_int_handler:
                signal.signal(number, signal.SIG_DFL)
    _release_endings()


def _end_in_time(reader: socket.socket) -> None:
    """Waits for a signal, and ends the process if it still runs some time later."""
    # Read before asked: the signal of `fail` has come by then, and is none of a user's.
    while not set(reader.recv(64)) & set(_SIGNALS) or _failing.is_set():
        pass
    time.sleep(_seconds)
    end_now(MESSAGE, code=INTERRUPTED)
