"""Progress of a Beam job, measured from outside: counts the durable outputs that exist.

Works the same on every engine, with any number of workers, and includes reused outputs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ..schemas.errors import SnapshardError
from ..schemas.progress import Progress
from ..transforms import storage
from ..transforms.activity import unnoticed

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_REMOTE_LOOKS = 10.0


@contextmanager
def watched(progress: Progress, step: str, *, outputs: Iterable[str], unit: str) -> Iterator[None]:
    """Reports how many of a step's output files exist, until the body ends.

    Errors of the body are raised unchanged; errors of the polling are ignored, since only the
    progress bar depends on it.
    """
    watching = _Watch(outputs)
    progress.start(step, total=watching.total, unit=unit)
    watching.look()
    # Outputs that already exist: the rate is computed from here.
    progress.advance(step, done=watching.num_found)
    ended = threading.Event()

    @unnoticed()
    def watch() -> None:
        while not ended.wait(watching.seconds):
            watching.look()
            if not ended.is_set():
                progress.advance(step, done=watching.num_found)

    thread = threading.Thread(target=watch, name=f"watch_{step}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    progress.advance(step, done=watching.total)


class _Watch:
    """Polls for files; files once found are not polled again."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._missing: dict[str, set[str]] = {}
        for url in urls:
            folder, _, name = url.rpartition("/")
            self._missing.setdefault(folder, set()).add(name)
        self.total = sum(map(len, self._missing.values()))
        self.num_found = 0
        remote = any(not storage.is_local(folder) for folder in self._missing)
        self.seconds = SECONDS_BETWEEN_REMOTE_LOOKS if remote else SECONDS_BETWEEN_LOOKS

    def look(self) -> None:
        """Counts the files that exist by now."""
        for folder, names in list(self._missing.items()):
            try:
                found = names.intersection(storage.list_names(folder))
            except SnapshardError:
                # The job will report the same error, or it is temporary.
                continue
            self.num_found += len(found)
            names -= found
            if not names:
                del self._missing[folder]
