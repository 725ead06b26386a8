"""Checks that the files of a source hold the inventoried content while they are read.

Also hashes local files that are not part of a source, and identifies them (:data:`Identity`).

A run is named by the content of its block, as the inventory hashed it, so what a block reads must
be that content. Files that are one record each are hashed as they are read (``read_files``). For
all others the file's identity is compared before the first read and after the last one: the stamp
from the inventory, then device, inode, size, times and any tag of the store. A file opened on this
machine is compared too, because a link or a folder may briefly lead elsewhere, which the file's
own times do not show. Reads from S3 and GCS carry the tag as a precondition, so each response is
checked on its own.

If the stamp differs, the file is hashed again, before and after: it may only have been touched. The
same is done if the stamp proves nothing, because the file changed so shortly before it was hashed
that another change could leave the same stamp.
"""

from __future__ import annotations

import dataclasses
import datetime
import email.utils
import functools
import hashlib
import os
import re
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from ...schemas.blocks import FileRange, Packed, SourceFile
from ...schemas.errors import RecipeError, SourceChangedError

COARSE_NS = 2_000_000_000
"""Resolution of the coarsest filesystem clock (FAT: 2 s)."""
_FINE_NS = 20_000_000
"""For clocks finer than a second: twice the longest tick of a kernel."""
_SECOND_NS = 1_000_000_000
_PINS = {"s3": re.compile(r"(?:^| )ETag:(\S+)"), "gs": re.compile(r"(?:^| )generation:(\d+)")}

_TAGS = ("md5Hash", "content_md5", "ETag", "etag", "generation", "crc32c", "md5", "checksum")
_TIMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")
_STAMPED = re.compile(r"\btime:([0-9]+(?:,[0-9]+)*)")

Identity = tuple[int, int, int, int, int]
"""Device, inode, size, times of the last change of content and of inode in ns."""
_DIGESTS: dict[str, tuple[Identity, str]] = {}
_LOCK = threading.Lock()


def settled_ns(stamp: str) -> int:
    """When, in ns since 1970, every later change shows in a stamp; 0 for stamps that are tags.

    The clocks of some filesystems count seconds, or units of two: two changes within one tick
    give the same stamp.

    >>> settled_ns("time:1700000000000000000,1700000000123456789")
    1700000000143456789
    >>> settled_ns("time:1700000000000000000")
    1700000002000000000
    >>> settled_ns('ETag:"5d41402a"')
    0
    """
    times = times_in(stamp)
    if not times:
        return 0
    coarse = all(time % _SECOND_NS == 0 for time in times)
    # The last is the time of the inode's change, if there is one: it cannot be set.
    return times[-1] + (COARSE_NS if coarse else _FINE_NS)


def pin_of(protocol: str | tuple[str, ...], stamp: str) -> str:
    """The tag in a stamp that a store accepts as a precondition of reads; '' if there is none.

    >>> pin_of(("s3", "s3a"), 'ETag:"5d41402a"'), pin_of("sftp", 'ETag:"5d41402a"')
    ('"5d41402a"', '')
    """
    for name in (protocol,) if isinstance(protocol, str) else protocol:
        if name in _PINS and (tag := _PINS[name].search(stamp)):
            return tag[1]
    return ""


@dataclasses.dataclass(frozen=True)
class Look:
    """The state of a file at one moment."""

    stamp: str
    """Comparable with the stamp of a listing."""
    identity: str
    """All that is known: if equal at two moments, the file did not change between them."""
    num_bytes: int | None = None
    """Its size; None if the store does not state it."""


class Looks(Protocol):
    """The interface of a source that the proof needs."""

    def look(self, path: str) -> Look | None:
        """The current state of a file; None if it is gone."""

    def chunks(self, path: str, *, chunk_bytes: int) -> Iterator[bytes]:
        """Reads a file from start to end."""

    def archive_changed(self) -> bool:
        """Whether the archive of the files, if any, has changed since it was opened."""

    def list(self) -> Sequence[SourceFile]:
        """All files at present."""

    def place(self, path: str) -> str:
        """The file's name in messages."""


class SourceProof:
    """Checks files that are read through one source against what the inventory found."""

    def __init__(self, source: Looks, files: Iterable[SourceFile | FileRange]) -> None:
        """Stores the source and the inventoried files. Others must keep their first state."""
        self._source = source
        self._given = files if isinstance(files, Packed) else None
        self._files: dict[str, SourceFile | FileRange | None] = {}
        if self._given is None:
            self._files = {file.path: file for file in files if not file.problem}
        self._by_content: list[SourceFile | FileRange] = []
        self._seen: dict[str, Look] = {}
        self._noted: set[str] = set()
        self._missing: list[str] = []
        self._changed: SourceChangedError | None = None

    def pin(self, protocol: Any, path: str) -> str:
        """The precondition of reads of a file; '' if :meth:`hold` must check it instead."""
        file = self._file(path)
        return "" if file is None else pin_of(protocol, file.stamp)

    def _file(self, path: str) -> SourceFile | FileRange | None:
        """What the inventory found of a file; None if it found none, or a problem."""
        if path not in self._files and self._given is not None:
            hashes, places = self._places
            first = np.searchsorted(hashes, hash(path), "left")
            stop = np.searchsorted(hashes, hash(path), "right")
            files = (self._given[place] for place in places[first:stop].tolist())
            fit = (file for file in files if file.path == path and not file.problem)
            self._files[path] = next(fit, None)
        return self._files.get(path)

    @functools.cached_property
    def _places(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The hashes of the paths of files, ascending, and their places."""
        paths = (file.path for file in self._given or ())
        hashes = np.fromiter(map(hash, paths), np.int64)
        places = np.argsort(hashes)
        return hashes[places], places

    def hold(self, path: str) -> None:
        """Compares a file with what the inventory found; call it before the first read.

        Raises:
            SourceChangedError: if it has changed.
        """
        if path in self._seen:
            return
        if not self._seen and self._source.archive_changed():
            self.fail(path)
        look = self._source.look(path)
        file = self._file(path)
        if look is None:
            self._missing.append(path)
            return  # reading it will fail
        if file is not None and not (file.stamp and file.stamp == look.stamp):
            self._compare_content(file)
            self._by_content.append(file)
        self._seen[path] = look

    def opened(self, path: str, descriptor: int) -> None:
        """Compares an opened file with the one that :meth:`hold` checked.

        The path may briefly have led elsewhere, through a link or a replaced folder.

        Raises:
            SourceChangedError: if it has changed.
        """
        if path in self._seen and look_at_open(descriptor) != self._seen[path]:
            self.fail(path)

    def note(self, paths: Iterable[str]) -> None:
        """Makes :meth:`check` compare these files with a new listing of the source."""
        self._noted.update(paths)

    def check(self) -> None:
        """Compares all files that were read with what they were; call it after the last read.

        Raises:
            SourceChangedError: if one changed, or if :meth:`hold` found that one had.
        """
        if self._changed is not None:  # the reader may have mistaken the error for bad data
            raise self._changed
        if self._missing:
            self.fail(self._missing[0])
        if self._seen and self._source.archive_changed():
            self.fail(next(iter(self._seen)))
        for path, look in self._seen.items():
            if self._source.look(path) != look:
                self.fail(path)
        for file in self._by_content:
            self._compare_content(file)
        if self._noted:
            now = {file.path: file.stamp for file in self._source.list()}
            for path in self._noted:
                noted = self._file(path)
                if noted is not None and now.get(path) != noted.stamp:
                    self.fail(path)

    def explain(self, path: str) -> None:
        """Distinguishes a changed file from other causes of a failed read.

        Raises:
            SourceChangedError: if the file has changed.
        """
        look = self._source.look(path)
        if look is None:
            return  # the error says so; it may come from a worker that cannot see the disk
        if path in self._seen:
            same = look == self._seen[path]
        else:  # read by its tag
            file = self._file(path)
            same = file is not None and look.stamp == file.stamp
        if not same or self._source.archive_changed():
            self.fail(path)

    def fail(self, path: str) -> NoReturn:
        """Raises the error that a file changed."""
        self._changed = self._changed or SourceChangedError.of(self._source.place(path))
        raise self._changed

    def _compare_content(self, file: SourceFile | FileRange) -> None:
        if not file.sha256:  # what is read from now on determines it
            if file.stamp:
                self.fail(file.path)
            return
        digest = hashlib.sha256()
        for chunk in self._source.chunks(file.path, chunk_bytes=4 << 20):
            digest.update(chunk)
        if digest.hexdigest() != (getattr(file, "whole_sha256", "") or file.sha256):
            self.fail(file.path)


def look_at_local(path: str) -> Look:
    """The current state of a local file.

    The file is opened for this: only then do network filesystems ask their server.

    Raises:
        OSError: if it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return look_at_open(descriptor)
    finally:
        os.close(descriptor)


def look_at_open(descriptor: int) -> Look:
    """The current state of an open local file."""
    found = os.fstat(descriptor)
    stamp = stamp_of_local(found)
    return Look(stamp, f"{found.st_dev} {found.st_size} {stamp}", found.st_size)


def look_at_remote(info: Mapping[str, Any]) -> Look:
    """The current state of a file of a store, from fsspec's ``info``."""
    stamp = stamp_of(info)
    return Look(stamp, f"{info.get('size')} {stamp} {modified_ns(info)}", info.get("size"))


def stamp_of(info: Mapping[str, Any]) -> str:
    """What a store reports that changes with a file's content; empty if it reports nothing."""
    tags = [f"{name}:{info[name]}" for name in _TAGS if info.get(name)]
    if tags:
        return " ".join(tags)
    modified = modified_ns(info)
    return "" if modified is None else f"time:{modified}"


def stamp_of_local(found: os.stat_result) -> str:
    """Changes when a local file is written to or replaced.

    The inode's change time reveals a file put in place with its old time; the inode's number
    distinguishes two files written within one tick of the clock.
    """
    return f"time:{found.st_mtime_ns},{found.st_ctime_ns} inode:{found.st_ino}"


def times_in(stamp: str) -> list[int]:
    """The times in ns since 1970 in a stamp; [] if it consists of tags.

    The second of two is the inode's change time. Members of archives have the archive's times.

    >>> times_in("time:1700000000000000000,1700000000123456789"), times_in('ETag:"5d41402a"')
    ([1700000000000000000, 1700000000123456789], [])
    """
    found = _STAMPED.search(stamp)
    return [] if found is None else [int(time) for time in found[1].split(",")]


def modified_ns(info: Mapping[str, Any]) -> int | None:
    """When a file was last written, in ns since 1970, from fsspec's ``info``."""
    modified = next((info[name] for name in _TIMES if info.get(name)), None)
    if isinstance(modified, str):
        try:
            modified = datetime.datetime.fromisoformat(modified)
        except ValueError:
            try:
                modified = email.utils.parsedate_to_datetime(str(modified))  # of HTTP
            except ValueError:
                return None
    if isinstance(modified, datetime.datetime):
        modified = modified.timestamp()
    return int(modified * 1e9) if isinstance(modified, int | float) else None


def identity_of(path: str) -> Identity | None:
    """Changes when a file is replaced or written; None if there is no file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def file_digest(path: str) -> str:
    """The sha256 of a local file, in hex; cached while the file's identity is unchanged.

    Raises:
        RecipeError: if it cannot be read.
    """
    identity = identity_of(path)
    with _LOCK:
        known = _DIGESTS.get(path)
    if identity is not None and known is not None and known[0] == identity:
        return known[1]
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RecipeError(
            f"The recipe depends on {path}, which cannot be read: {error.strerror}. Make it "
            "readable, or correct the path."
        ) from None
    settled = identity is not None and max(identity[3:]) < time.time_ns() - COARSE_NS
    if identity is not None and settled and identity_of(path) == identity:
        with _LOCK:
            _DIGESTS[path] = identity, digest
    return digest
