"""Ends that others ask for, by SIGTERM or SIGHUP, taken for Ctrl-C: what runs ends in order.

A handler that somebody else has set, and what is ignored (``nohup``), stay as they are.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


def take_endings_for_interrupts() -> None:
    """Has what schedulers and lost terminals send raise KeyboardInterrupt, from now on.

    To be called by a program's main thread.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """Has SIGTERM, by which schedulers end a task, raise KeyboardInterrupt for a while.

    Elsewhere than in the main thread nothing can be set, and nothing is.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
