"""Proof that the files of a source hold the inventoried content while they are read.

A run is named by the content of its block, as the inventory hashed it, so what a block reads must
be that content. Files that are one record each are hashed as they are read (``read_files``). For
all others the file's identity is compared before the first read and after the last one: the stamp
that the inventory saw, then device, inode, size, times and whatever tag a store gives. What is
opened on this machine is compared as well, since a link or a folder may lead elsewhere for a
moment, which none of the file's own times show. Reads from S3 and GCS carry the tag as a
precondition, so that each answer is proven by itself.

Where the stamp is another one, the file is hashed again, before and after: it may only have been
touched. The same holds where the stamp proves nothing, because the file changed so shortly before
it was hashed that another change could leave the same stamp.
"""

from __future__ import annotations

import dataclasses
import datetime
import email.utils
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

from ...schemas.blocks import FileRange, SourceFile
from ...schemas.errors import SourceChangedError

COARSE_NS = 2_000_000_000
"""Of the coarsest clock that file systems stamp files by (FAT: 2 s)."""
_FINE_NS = 20_000_000
"""Of clocks that count less than seconds: twice the longest tick of a kernel."""
_SECOND_NS = 1_000_000_000
_PINS = {"s3": re.compile(r"(?:^| )ETag:(\S+)"), "gs": re.compile(r"(?:^| )generation:(\d+)")}

_TAGS = ("md5Hash", "content_md5", "ETag", "etag", "generation", "crc32c", "md5", "checksum")
_TIMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")
_STAMPED = re.compile(r"\btime:([0-9]+(?:,[0-9]+)*)")


def settled_ns(stamp: str) -> int:
    """From when on, in ns since 1970, every change shows in a stamp; 0 for stamps that are tags.

    The clocks of some file systems count seconds, or two of them: two changes within one tick
    give one stamp.

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
    # The last is that of the inode's change where there is one: nobody can set it.
    return times[-1] + (COARSE_NS if coarse else _FINE_NS)


def pin_of(protocol: str | tuple[str, ...], stamp: str) -> str:
    """The tag of a stamp that a store takes as the precondition of a read; '' where none does.

    >>> pin_of(("s3", "s3a"), 'ETag:"5d41402a"'), pin_of("sftp", 'ETag:"5d41402a"')
    ('"5d41402a"', '')
    """
    for name in (protocol,) if isinstance(protocol, str) else protocol:
        if name in _PINS and (tag := _PINS[name].search(stamp)):
            return tag[1]
    return ""


@dataclasses.dataclass(frozen=True)
class Look:
    """What a file looks like at one moment."""

    stamp: str
    """Comparable with the stamp of a listing."""
    identity: str
    """All that is known: equal at two moments, the file did not change between them."""


class Looks(Protocol):
    """What the proof needs of a source."""

    def look(self, path: str) -> Look | None:
        """What a file looks like now; None where it is gone."""

    def chunks(self, path: str, *, chunk_bytes: int) -> Iterator[bytes]:
        """Reads a file from start to end."""

    def archive_changed(self) -> bool:
        """Whether the files' archive, if any, is no longer the one that was opened."""

    def list(self) -> tuple[SourceFile, ...]:
        """All files as they are now."""

    def place(self, path: str) -> str:
        """The file as messages name it."""


class SourceProof:
    """Holds the files that are read through one source to what the inventory found of them."""

    def __init__(self, source: Looks, files: Iterable[SourceFile | FileRange]) -> None:
        """Takes the source, and what its files were. Other files are held to their first look."""
        self._source = source
        self._files = {file.path: file for file in files if not file.problem}
        self._by_content: list[SourceFile | FileRange] = []
        self._seen: dict[str, Look] = {}
        self._noted: set[str] = set()
        self._missing: list[str] = []
        self._changed: SourceChangedError | None = None

    def pin(self, protocol: Any, path: str) -> str:
        """The precondition of reads of a file; '' where :meth:`hold` has to look at it instead."""
        file = self._files.get(path)
        return "" if file is None else pin_of(protocol, file.stamp)

    def hold(self, path: str) -> None:
        """Compares a file with what the inventory found; call it before the first read.

        Raises:
            SourceChangedError: if it is another one.
        """
        if path in self._seen:
            return
        if not self._seen and self._source.archive_changed():
            self.fail(path)
        look = self._source.look(path)
        file = self._files.get(path)
        if look is None:
            self._missing.append(path)
            return  # reading it says so
        if file is not None and not (file.stamp and file.stamp == look.stamp):
            self._compare_content(file)
            self._by_content.append(file)
        self._seen[path] = look

    def opened(self, path: str, descriptor: int) -> None:
        """Compares a file that has been opened with the one that :meth:`hold` looked at.

        The path may have led elsewhere for a moment: a link, or a folder that was replaced.

        Raises:
            SourceChangedError: if it is another one.
        """
        if path in self._seen and look_at_open(descriptor) != self._seen[path]:
            self.fail(path)

    def note(self, paths: Iterable[str]) -> None:
        """Leaves it to :meth:`check` to compare files with a new listing of the source."""
        self._noted.update(paths)

    def check(self) -> None:
        """Compares all files that were read with what they were; call it after the last read.

        Raises:
            SourceChangedError: if one changed, or if :meth:`hold` found that one had.
        """
        if self._changed is not None:  # whoever read it may have taken the error for bad data
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
                if path in self._files and now.get(path) != self._files[path].stamp:
                    self.fail(path)

    def explain(self, path: str) -> None:
        """Tells a change from other reasons why a read failed.

        Raises:
            SourceChangedError: if the file is no longer what it was.
        """
        look = self._source.look(path)
        if look is None:
            return  # the error says so, and may come of a worker that does not see the disk
        if path in self._seen:
            same = look == self._seen[path]
        else:  # it was read by its tag
            same = path in self._files and look.stamp == self._files[path].stamp
        if not same or self._source.archive_changed():
            self.fail(path)

    def fail(self, path: str) -> NoReturn:
        """Raises the error that a file changed."""
        self._changed = self._changed or SourceChangedError.of(self._source.place(path))
        raise self._changed

    def _compare_content(self, file: SourceFile | FileRange) -> None:
        if not file.sha256:  # what is read from now on makes it
            if file.stamp:
                self.fail(file.path)
            return
        digest = hashlib.sha256()
        for chunk in self._source.chunks(file.path, chunk_bytes=4 << 20):
            digest.update(chunk)
        if digest.hexdigest() != (getattr(file, "whole_sha256", "") or file.sha256):
            self.fail(file.path)


def look_at_local(path: str) -> Look:
    """What a file of this machine looks like.

    It is opened for that: network file systems ask their server then, and not before.

    Raises:
        OSError: if it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return look_at_open(descriptor)
    finally:
        os.close(descriptor)


def look_at_open(descriptor: int) -> Look:
    """What an open file of this machine looks like."""
    found = os.fstat(descriptor)
    stamp = stamp_of_local(found)
    return Look(stamp, f"{found.st_dev} {found.st_size} {stamp}")


def look_at_remote(info: Mapping[str, Any]) -> Look:
    """What a file of a store looks like, from fsspec's ``info`` of it."""
    stamp = stamp_of(info)
    return Look(stamp, f"{info.get('size')} {stamp} {modified_ns(info)}")


def stamp_of(info: Mapping[str, Any]) -> str:
    """What a store says that changes with a file's content; empty where it says nothing."""
    tags = [f"{name}:{info[name]}" for name in _TAGS if info.get(name)]
    if tags:
        return " ".join(tags)
    modified = modified_ns(info)
    return "" if modified is None else f"time:{modified}"


def stamp_of_local(found: os.stat_result) -> str:
    """What changes when a file of this machine is written to, replaced, or another takes its place.

    The time of the inode's last change tells a file put in place with its old time; the inode's
    number, one of two that were written within one tick of the clock.
    """
    return f"time:{found.st_mtime_ns},{found.st_ctime_ns} inode:{found.st_ino}"


def times_in(stamp: str) -> list[int]:
    """The times in ns since 1970 that a stamp consists of; [] where it consists of tags.

    Of two the second is that of the inode's last change. Members of archives have their archive's.

    >>> times_in("time:1700000000000000000,1700000000123456789"), times_in('ETag:"5d41402a"')
    ([1700000000000000000, 1700000000123456789], [])
    """
    found = _STAMPED.search(stamp)
    return [] if found is None else [int(time) for time in found[1].split(",")]


def modified_ns(info: Mapping[str, Any]) -> int | None:
    """When a file was last written, in ns since 1970, as fsspec's ``info`` of it tells."""
    found = next((info[name] for name in _TIMES if info.get(name)), None)
    if isinstance(found, str):
        try:
            found = datetime.datetime.fromisoformat(found)
        except ValueError:
            try:
                found = email.utils.parsedate_to_datetime(str(found))  # of HTTP
            except ValueError:
                return None
    if isinstance(found, datetime.datetime):
        found = found.timestamp()
    return int(found * 1e9) if isinstance(found, int | float) else None
