"""A source's root, opened: lists its files and reads them, on this machine or any store.

A local tree is walked in one pass that follows links; what cannot be a readable file (a dangling
link, a link loop, a named pipe, an empty folder named like a file …) is listed with its problem,
so that it becomes a reject and does not vanish.
"""

from __future__ import annotations

import calendar
import dataclasses
import datetime
import errno
import fnmatch
import functools
import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from fsspec.archive import AbstractArchiveFileSystem

from ..schemas.blocks import SourceFile
from ..schemas.errors import RecipeError
from . import storage

_MAGIC = re.compile(r"[*?\[]")
_LIKE_A_FILE = re.compile(r".+\.[A-Za-z][A-Za-z0-9]{1,4}")
_EFFECTIVE_IDS = os.access in os.supports_effective_ids
_ALL_READ = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
NO_PERMISSION = "no permission to read"

_LOOP = "symbolic link loop"
_SPECIAL = (
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISBLK, "block device"),
    (stat.S_ISCHR, "character device"),
    (lambda mode: True, "special file"),
)
_TAGS = ("md5Hash", "content_md5", "ETag", "etag", "generation", "crc32c", "CRC", "md5", "checksum")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "date_time", "created")


def path_bytes(path: str) -> bytes:
    """What paths are ordered by: the same on every machine, whatever the locale."""
    return path.encode("utf-8", "surrogateescape")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedSource:
    """Read access to a source's root; plain data, so that it travels to workers.

    Attributes:
        url: The source's URL, absolute. It may hold credentials: show ``shown`` instead.
        root: The filesystem's own path of the folder that files' paths are relative to.
        query: What follows a single file's name in a web address, '?' included.
        pattern: Parts of the glob below the root; () for every file.
        single: Name of the one file, where the source is a file.
        archived: Whether the files lie in an archive, such as ``zip://*::photos.zip``.
        folder: What the relative URL of a file beside the source counts from.
    """

    url: str = dataclasses.field(repr=False)
    root: str = dataclasses.field(repr=False)
    query: str = dataclasses.field(default="", repr=False)
    pattern: tuple[str, ...] = ()
    single: str = ""
    archived: bool = False
    folder: str = dataclasses.field(default=".", repr=False)

    @property
    def shown(self) -> str:
        """The URL without credentials."""
        return storage.redact(self.url)

    @functools.cached_property
    def local(self) -> bool:
        """Whether the files lie on this machine, not in an archive."""
        return storage.is_local(self.url)

    @property
    def filesystem(self) -> Any:
        """The fsspec filesystem that the root lies on."""
        if not self.archived:
            return storage.filesystem(self.url)[0]
        # fsspec keeps no archive open: each would read its table of contents once more. A forked
        # process must open its own: a shared one would share the position in the file.
        process, filesystem = self.__dict__.get("_archive", (0, None))
        if process != os.getpid():
            filesystem = storage.filesystem(self.url)[0]
            self.__dict__["_archive"] = (os.getpid(), filesystem)
        return filesystem

    def __getstate__(self) -> dict[str, Any]:
        """What travels to workers: an open archive does not."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def full_path(self, path: str) -> str:
        """The filesystem's own path of a file relative to the root."""
        return f"{self._prefix}{path}{self.query}" if self.root else path

    @functools.cached_property
    def _prefix(self) -> str:
        return self.root.rstrip("/") + "/"

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Reads bytes [start, stop) of a file; to its end without a stop.

        Raises:
            StorageError: if it cannot be read.
        """
        with storage.failing_as_storage_error("read", self._place(path)):
            full = self.full_path(path)
            if self.local:
                return storage.read_local(full, start, stop)
            return storage.read_remote(self.filesystem, full, start, stop)

    def chunks(self, path: str, *, chunk_bytes: int) -> Iterator[bytes]:
        """Reads a file from start to end in chunks of bounded size.

        Raises:
            StorageError: if it cannot be read.
        """
        with storage.failing_as_storage_error("read", self._place(path)):
            full = self.full_path(path)
            if self.local:
                opened: Any = open(full, "rb", buffering=0)  # noqa: SIM115
            else:
                opened = storage.open_remote(self.filesystem, full, chunk_bytes=chunk_bytes)
            with opened as file:
                while chunk := file.read(chunk_bytes):
                    yield chunk

    def read_side(self, url: str) -> bytes:
        """Reads a file beside the source, whole.

        Raises:
            RecipeError: if there is no such file.
            StorageError: if it cannot be read.
        """
        side = open_source(url, self.folder)
        if not side.single:
            raise RecipeError(f"{storage.redact(url)} is a folder or a glob, expected one file.")
        return side.read(side.single)

    def list(self) -> tuple[SourceFile, ...]:
        """All files of the source, by the bytes of their paths.

        Raises:
            StorageError: if the root itself cannot be listed.
        """
        with storage.failing_as_storage_error("list", self.url):
            files = self._walk() if self.local else self._find()
            return tuple(sorted(files, key=lambda file: path_bytes(file.path)))

    def _place(self, path: str) -> str:
        return self.full_path(path) if self.local else f"{path} of {self.url}"

    def _walk(self) -> Iterator[SourceFile]:
        if self.single:
            yield _inspect(self.full_path(self.single), self.single)[0]
            return
        # (folder's parts, and the identities of the folders that hold it and its own)
        pending: list[tuple[tuple[str, ...], frozenset[tuple[int, int]]]]
        root = os.stat(self.root)
        pending = [((), frozenset({(root.st_dev, root.st_ino)}))]
        while pending:
            parts, held_by = pending.pop()
            path = "/".join(parts)
            prefix = f"{path}/" if parts else ""
            folder = self.full_path(path)
            try:
                with os.scandir(folder) as scanned:
                    entries = list(scanned)
            except OSError as error:
                if not parts:
                    raise
                yield _unreadable(path, f"folder that cannot be listed: {error.strerror}")
                continue
            if not entries and parts and _LIKE_A_FILE.fullmatch(parts[-1]) and self._wanted(parts):
                yield _unreadable(path, "empty folder, expected a file")
            for entry in entries:
                below = (*parts, entry.name)
                if self.pattern and not _may_hold(below, self.pattern):
                    continue
                file, identity = _inspect(entry.path, prefix + entry.name)
                if identity is not None and identity not in held_by:
                    pending.append((below, held_by | {identity}))
                elif self._wanted(below):
                    yield file if identity is None else _unreadable(file.path, _LOOP)

    def _wanted(self, parts: tuple[str, ...]) -> bool:
        return not self.pattern or _matches(parts, self.pattern)

    def _find(self) -> Iterator[SourceFile]:
        self.__dict__.pop("_archive", None)
        filesystem = self.filesystem
        if self.single:
            found = {self.single: filesystem.info(self.full_path(self.single))}
        else:
            prefix = self.full_path("")
            listed = filesystem.find(self.root, detail=True)
            found = {name.removeprefix(prefix).lstrip("/"): listed[name] for name in listed}
        for path, info in found.items():
            if not path or path.endswith("/") or info.get("type") == "directory":
                continue
            if self._wanted(tuple(path.split("/"))):
                size = int(info.get("size") or 0)
                yield SourceFile(path=path, num_bytes=size, stamp=_stamp(info))


def open_source(url: str, folder: str) -> OpenedSource:
    """Opens a source: finds its root, and that it exists.

    The root of a glob is the last folder before its first wildcard; a pattern that matches a
    folder takes all that lies in it. The root of a single file is the folder that holds it.

    Args:
        url: A path, a glob, or any fsspec URL.
        folder: What a relative local path counts from.

    Raises:
        RecipeError: if there is no such source.
        StorageError: if it cannot be looked at.
    """
    absolute = _absolute(url, folder)
    with storage.failing_as_storage_error("open", absolute):
        opened = _open(absolute)
    if opened is not None:
        return dataclasses.replace(opened, folder=folder)
    looked_for = "" if absolute == url else f" (looked for {storage.redact(absolute)})"
    raise RecipeError(
        f"The source {storage.redact(url)} does not exist{looked_for}. Correct the path; in a "
        "recipe a relative one counts from the recipe's folder."
    )


def _open(url: str) -> OpenedSource | None:
    """Opens an absolute URL; None where nothing lies there."""
    filesystem, path = None, ""
    if storage.is_local(url):
        path = os.path.normpath(storage.local_path(url))
    else:
        try:
            filesystem, path = storage.filesystem(url)
        except FileNotFoundError:
            return None
        path = path.rstrip("/")
    opened = OpenedSource(
        url=url, root=path, archived=isinstance(filesystem, AbstractArchiveFileSystem)
    )
    kind = _kind(filesystem, path)
    if kind == "folder":
        return opened
    if kind == "file":
        # A signature in a web address must not become part of the file's name.
        path, mark, query = path.partition("?") if "://" in path else (path, "", "")
        root, _, name = path.rpartition("/")
        root = root or path[: -len(name)]
        return dataclasses.replace(opened, root=root, query=mark + query, single=name)
    root, pattern = _split_glob(path)
    if pattern and _kind(filesystem, root) == "folder":
        return dataclasses.replace(opened, root=root, pattern=pattern)
    return None


def _absolute(url: str, folder: str) -> str:
    """The URL with the local path at the end of its chain made absolute."""
    *through, last = url.split("::") if storage.is_chained(url) else [url]
    if storage.is_local(last):
        last = os.path.join(os.path.abspath(folder), storage.local_path(last))
    return "::".join([*through, last])


def _kind(filesystem: Any, path: str) -> str:
    """``file``, ``folder`` or ``absent``; the filesystem is None for this machine's own."""
    try:
        if filesystem is None:
            return "folder" if stat.S_ISDIR(os.stat(path).st_mode) else "file"
        if not path.strip("/"):
            return "folder"
        return "folder" if filesystem.info(path)["type"] == "directory" else "file"
    except (FileNotFoundError, NotADirectoryError):
        return "absent"


def _split_glob(path: str) -> tuple[str, tuple[str, ...]]:
    """The last folder before the first wildcard, and the parts after it."""
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    root = "/".join(parts[:first])
    return root or ("/" if path.startswith("/") else ""), tuple(parts[first:])


def _matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a glob matches a path, or a folder that holds it; ``**`` is any depth."""
    if not pattern:
        return True
    if not parts:
        return False
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _may_hold(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a path matches a glob, or may be a folder of paths that do."""
    for part, wanted in zip(parts, pattern, strict=False):
        if wanted == "**":
            return True
        if not fnmatch.fnmatchcase(part, wanted):
            return False
    return True


def _unreadable(path: str, problem: str) -> SourceFile:
    return SourceFile(path=path, num_bytes=0, stamp="", problem=problem)


def _inspect(full: str, path: str) -> tuple[SourceFile, tuple[int, int] | None]:
    """A local file as listed, or a folder with its identity: (device, inode)."""
    # A problem is part of what a block is named by: it never says where the source lies.
    try:
        found = os.stat(full)
    except OSError as error:
        problem = f"cannot be looked at: {error.strerror}"
        if error.errno == errno.ELOOP:
            problem = _LOOP
        elif isinstance(error, FileNotFoundError | NotADirectoryError):
            problem = "dangling symbolic link" if os.path.islink(full) else "vanished while listed"
        return _unreadable(path, problem), None
    if stat.S_ISDIR(found.st_mode):
        return _unreadable(path, ""), (found.st_dev, found.st_ino)
    if not stat.S_ISREG(found.st_mode):
        kind = next(name for test, name in _SPECIAL if test(found.st_mode))
        return _unreadable(path, f"{kind}, expected a file"), None
    # Where all may read, only an access list could say otherwise, and reading finds out.
    readable = found.st_mode & _ALL_READ == _ALL_READ
    if not readable and not os.access(full, os.R_OK, effective_ids=_EFFECTIVE_IDS):
        return _unreadable(path, NO_PERMISSION), None
    # The time of the last change to the inode tells a file put in place with its old mtime.
    stamp = f"time:{found.st_mtime_ns},{found.st_ctime_ns}"
    return SourceFile(path=path, num_bytes=found.st_size, stamp=stamp), None


def _stamp(info: Mapping[str, Any]) -> str:
    """What a store says that changes with a file's content; empty where it says nothing."""
    tags = [f"{name}:{info[name]}" for name in _TAGS if info.get(name)]
    if tags:
        return " ".join(tags)
    modified = modified_ns(info)
    return "" if modified is None else f"time:{modified}"


def modified_ns(info: Mapping[str, Any]) -> int | None:
    """When a file was last written, in ns since 1970, as fsspec's ``info`` of it tells."""
    found = next((info[name] for name in _TIMES if info.get(name)), None)
    if isinstance(found, str):
        try:
            found = datetime.datetime.fromisoformat(found)
        except ValueError:
            return None
    if isinstance(found, tuple):
        found = calendar.timegm((*found[:6], 0, 0, 0))
    if isinstance(found, datetime.datetime):
        found = found.timestamp()
    return int(found * 1e9) if isinstance(found, int | float) else None
