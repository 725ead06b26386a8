"""An interrupt that ends the program for sure, also where Python or a library loses the first.

Python drops an exception that strikes inside a finalizer, and libraries have a bare ``except:``
around imports. A program that then runs on for minutes seems deaf to Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_SECONDS = 0.5


@contextmanager
def insistent_interrupts() -> Iterator[None]:
    """Within it, KeyboardInterrupt is raised again and again until it gets out.

    Not while it does: what cleans up behind it is left alone. Does nothing outside the main thread,
    where no signals arrive, and where another handler than Python's own is in place.
    """
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not own:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)
        raise KeyboardInterrupt

    def insist(number: int, frame: FrameType | None) -> None:
        del number, frame
        if not _on_its_way(sys.exc_info()[1]):
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    before = signal.signal(signal.SIGALRM, insist)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, before)


def _on_its_way(error: BaseException | None) -> bool:
    """Whether what is being handled is an interrupt, or came of one."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
