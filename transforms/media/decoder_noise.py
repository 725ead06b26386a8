"""Catches what libmpg123 writes to file descriptor 2: it is how that library tells of damage.

libsndfile gives no way to silence it or to ask it. So while an MP3 is decoded, the descriptor leads
to a file; what others have written there meanwhile is passed on.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LINE = re.compile(rb"\[src/libmpg123/|Note: |Warning: |\s*$")
_DAMAGE = re.compile(r"error: |Skipped \d+ bytes")
_LOCK = threading.Lock()


@contextmanager
def caught_noise() -> Iterator[list[str]]:
    """Catches what is written to descriptor 2 in this block; one block of a process at a time.

    Yields:
        A list that holds, after the block, what libmpg123 said of damage.
    """
    found: list[str] = []
    with _LOCK, tempfile.TemporaryFile() as caught:
        if sys.stderr is not None:
            sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(caught.fileno(), 2)
        try:
            yield found
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            caught.seek(0)
            for line in caught:
                if not _LINE.match(line):
                    os.write(2, line)
                elif _DAMAGE.search(text := line.decode("utf-8", "replace")):
                    found.append(text.rpartition("error: ")[2].removeprefix("Note: ").strip())
