"""Progress of a Beam job, seen from outside: by the durable outputs that have arrived.

It works alike on every engine, with any number of workers, and counts what was reused.
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

    What the body raises goes on as it is; whatever fails in looking is not told, since it
    concerns nobody but the bar.
    """
    watching = _Watch(outputs)
    progress.start(step, total=watching.total, unit=unit)
    watching.look()
    # What is there already: a rate is reckoned from here on.
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
    """Looks for files; those that were found are not looked for again."""

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
        """Counts what has arrived."""
        for folder, names in list(self._missing.items()):
            try:
                found = names.intersection(storage.list_names(folder))
            except SnapshardError:
                # The job will meet the same trouble, and say so; or it passes.
                continue
            self.num_found += len(found)
            names -= found
            if not names:
                del self._missing[folder]
