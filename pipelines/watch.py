"""Progress of a Beam job, seen from outside: by the durable outputs that have arrived.

It works alike on every engine, with any number of workers, and counts what was reused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ..schemas.progress import Progress
from ..transforms import storage

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_REMOTE_LOOKS = 10.0


@contextmanager
def watched(progress: Progress, step: str, *, outputs: Iterable[str], unit: str) -> Iterator[None]:
    """Reports how many of a step's output files exist, until the body ends."""
    waiting = set(outputs)
    total = len(waiting)
    remote = any(not storage.is_local(url) for url in waiting)
    seconds = _SECONDS_BETWEEN_REMOTE_LOOKS if remote else _SECONDS_BETWEEN_LOOKS
    ended = threading.Event()
    progress.start(step, total=total, unit=unit)

    def look(report: Callable[[int], None]) -> None:
        while not ended.wait(seconds):
            by_folder: dict[str, set[str]] = {}
            for url in waiting:
                folder, _, name = url.rpartition("/")
                by_folder.setdefault(folder, set()).add(name)
            for folder, names in by_folder.items():
                found = names.intersection(storage.list_names(folder))
                waiting.difference_update(f"{folder}/{name}" for name in found)
            report(total - len(waiting))

    thread = threading.Thread(
        target=look, args=(lambda done: progress.advance(step, done=done),), daemon=True
    )
    thread.start()
    try:
        yield
        progress_done = total
    except BaseException:
        progress_done = total - len(waiting)
        raise
    finally:
        ended.set()
        thread.join()
        progress.advance(step, done=progress_done)
