"""Reports what this process is working on, and that it advances, to the build.

Each process of a build maps a small file into memory. A thread that starts an element (a block, a
shard) writes its name into a slot there and increments a counter while it advances; the build reads
these files once a second (``pipelines.watchdog``). So it notices a process that is stopped, blocked
or in an endless loop. Counting costs a tenth of a microsecond. Processes on other machines have no
such folder, and report nothing.

Calls to disks, stores and databases are registered here too (``storage.failures``): one that ends
counts as progress, and the build names those that do not end.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from ..schemas.progress import BUILD_FOLDER, Counted

SUFFIX = ".activity"
"""A process reports in the file <pid><SUFFIX> in the build's folder."""
SLOT_BYTES = 512
NUM_SLOTS = 128
"""The first is for threads without an element, such as those that read ahead."""
HEAD = struct.Struct("<QQQ")
"""Head of a slot: a counter, the number of the element in the process, and its kind; 0 for none."""
COUNTER, NUMBER, KIND = range(3)
ELEMENT, JOB, ELSEWHERE = 1, 2, 3
"""Kinds of slots: an element must advance itself; for a job, any progress of the build counts.
A wait for other machines need not advance at all."""
TOTALS = struct.Struct("<QQQ")
"""What the process has worked on, in the first slot after its head: see ``Counted``."""
TEXT = (HEAD.size, 288)
"""Position of the element's name in a slot ..."""
DETAIL = (288, SLOT_BYTES)
"""... and of the name of the file that was opened last."""

_WORDS = SLOT_BYTES // 8

_SHARED = 0
"""The slot of threads without one, such as those that read ahead."""
_UNNOTICED = -1


class Activity(NamedTuple):
    """An element in progress."""

    pid: int
    slot: int
    number: int
    """Distinguishes the successive elements of a slot."""
    kind: int
    what: str
    detail: str
    """The file that was opened last; empty if there is none."""
    counter: int

    def describe(self) -> str:
        """The element's name in messages."""
        return f"{self.what} (last file read: {self.detail})" if self.detail else self.what


def read_activities(folder: str, pid: int) -> tuple[list[Activity], int]:
    """A process's elements in progress, and the counter of its other threads."""
    with open(os.path.join(folder, f"{pid}{SUFFIX}"), "rb") as file:
        content = file.read(SLOT_BYTES * NUM_SLOTS)
    if len(content) < SLOT_BYTES * NUM_SLOTS:
        return [], 0  # it is still being created
    activities = []
    for slot in range(1, NUM_SLOTS):
        start = slot * SLOT_BYTES
        counter, number, kind = HEAD.unpack_from(content, start)
        if kind:
            what, detail = (
                content[start + first : start + stop].rstrip(b"\0").decode("utf-8", "replace")
                for first, stop in (TEXT, DETAIL)
            )
            activities.append(Activity(pid, slot, number, kind, what, detail, counter))
    return activities, HEAD.unpack_from(content)[COUNTER]


def read_counted(folder: str) -> Counted:
    """What all processes of a build have worked on, including those that ended."""
    total = Counted()
    for entry in os.scandir(folder):
        if entry.name.endswith(SUFFIX):
            head = b""
            with contextlib.suppress(FileNotFoundError), open(entry.path, "rb") as file:
                head = file.read(HEAD.size + TOTALS.size)
            if len(head) == HEAD.size + TOTALS.size:
                added = TOTALS.unpack_from(head, HEAD.size)
                total = Counted(*(old + new for old, new in zip(total, added, strict=True)))
    return total


class _Page:
    """The file of this process in one folder."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, f"{os.getpid()}{SUFFIX}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # On a full disk, the first write to a page through the map kills the process.
            os.posix_fallocate(descriptor, 0, SLOT_BYTES * NUM_SLOTS)
            self._map = mmap.mmap(descriptor, SLOT_BYTES * NUM_SLOTS)
        finally:
            os.close(descriptor)
        self.folder = folder
        self._words = memoryview(self._map).cast("Q")

    def advance(self, slot: int) -> None:
        self._words[slot * _WORDS + COUNTER] += 1

    def count(self, added: Counted) -> None:
        first = HEAD.size // 8
        for place, number in enumerate(added, first):
            self._words[place] += number

    def begin(self, slot: int, number: int, kind: int, what: str) -> None:
        self._write(slot, TEXT, what)
        self._write(slot, DETAIL, "")
        self._words[slot * _WORDS + NUMBER] = number
        self._words[slot * _WORDS + KIND] = kind
        self.advance(slot)

    def end(self, slot: int) -> None:
        self._words[slot * _WORDS + KIND] = 0

    def resume(self, slot: int, kind: int) -> None:
        if self._words[slot * _WORDS + NUMBER]:  # it began in this page
            self._words[slot * _WORDS + KIND] = kind

    def detail(self, slot: int, text: str) -> None:
        self._write(slot, DETAIL, text)

    def _write(self, slot: int, place: tuple[int, int], text: str) -> None:
        start, stop = (slot * SLOT_BYTES + at for at in place)
        content = text.encode("utf-8", "surrogateescape")
        if len(content) > stop - start:
            content = b"..." + content[start - stop + 3 :]
        self._map[start:stop] = content.ljust(stop - start, b"\0")


class Call(Protocol):
    """A call to a disk, store or database."""

    def describe(self) -> str:
        """Its action, as in "waiting to <list s3://bucket>"."""


class _Here(threading.local):
    slot = _SHARED
    kind = 0


_here = _Here()
_lock = threading.Lock()
_pages: tuple[_Page, ...] | None = None
"""None until first used."""
_free = list(range(NUM_SLOTS - 1, 0, -1))
_num_begun = 0
_calls: dict[int, Call] = {}
"""Calls that have not ended, the oldest first."""


def _open() -> tuple[_Page, ...]:
    """The pages of this process: in a worker, the one that its environment names."""
    global _pages
    with _lock:
        if _pages is None:
            folder = os.environ.get(BUILD_FOLDER, "")
            _pages = (_Page(folder),) if os.path.isdir(folder) else ()
        return _pages


@contextlib.contextmanager
def reported_in(folder: str) -> Iterator[None]:
    """Also reports what this process does in this folder, while the body runs.

    Raises:
        OSError: if the folder is not writable.
    """
    global _pages
    page = _Page(folder)
    with _lock:
        _pages = (*(_pages or ()), page)
    try:
        yield
    finally:
        with _lock:
            _pages = tuple(other for other in _pages or () if other is not page)


@contextlib.contextmanager
def working_on(what: str, *, kind: int = ELEMENT) -> Iterator[None]:
    """Reports that this thread is working on an element, until the body ends.

    The body, or what it calls, must call :func:`advance` as it progresses. Within a job, the
    element replaces the job.

    Args:
        what: The element's name in messages.
        kind: ``JOB`` for what need not advance while anything else does: a step of the build, or a
            wait for other threads. ``ELSEWHERE`` for a wait for other machines.
    """
    global _num_begun
    pages = _pages if _pages is not None else _open()
    with _lock:
        slot = _free.pop() if pages and _free else _SHARED
        _num_begun += 1
        number = _num_begun
    before, kind_before = _here.slot, _here.kind
    replaces_job = slot != _SHARED and kind_before == JOB
    _here.slot, _here.kind = slot, kind if slot != _SHARED else 0
    if slot != _SHARED:
        for page in pages:
            page.begin(slot, number, kind, what)
            if replaces_job:
                page.end(before)
    try:
        yield
    finally:
        _here.slot, _here.kind = before, kind_before
        if slot != _SHARED:
            for page in pages:
                if replaces_job:
                    page.resume(before, kind_before)
                page.end(slot)
            with _lock:
                _free.append(slot)
        if before != _SHARED:
            advance()


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """Reports nothing that this thread does, because it only polls what others do."""
    before, _here.slot = _here.slot, _UNNOTICED
    try:
        yield
    finally:
        _here.slot = before


def take_up(call: Call) -> None:
    """Registers a call by this thread that may not end."""
    if _here.slot != _UNNOTICED:
        _calls[id(call)] = call


def put_down(call: Call) -> None:
    """Reports that a call has ended."""
    if _calls.pop(id(call), None) is not None:
        advance()


class waiting_to:
    """Context of a call that may not end, other than to a disk or store."""

    def __init__(self, what: str) -> None:
        """Stores the call's action, as in "waiting to <query the database>"."""
        self._what = what

    def __enter__(self) -> None:
        """Registers the call."""
        take_up(self)

    def __exit__(self, *_: object) -> None:
        """Reports that the call has ended."""
        put_down(self)

    def describe(self) -> str:
        """The call's action."""
        return self._what


def calls_under_way() -> list[str]:
    """The calls of this process that have not ended, the oldest first."""
    return list(dict.fromkeys(call.describe() for call in list(_calls.values())))


def advance() -> None:
    """Reports that this thread advances; without an element, that the process does."""
    slot = _here.slot
    if slot == _UNNOTICED:
        return
    for page in _pages if _pages is not None else _open():
        page.advance(slot)


def count(added: Counted) -> None:
    """Reports records that this thread has worked on, and that it advances."""
    if _here.slot == _UNNOTICED:
        return
    for page in _pages if _pages is not None else _open():
        page.advance(_here.slot)
        with _lock:
            page.count(added)


def reading(path: str) -> None:
    """Reports which file this thread's element reads, and that it advances."""
    slot = _here.slot
    if slot == _UNNOTICED:
        return
    for page in _pages if _pages is not None else _open():
        page.advance(slot)
        if slot != _SHARED:
            page.detail(slot, path)
