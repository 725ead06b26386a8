"""A source's root, opened: lists and reads its files, on this machine or any store.

A local tree is walked in one pass that follows links within the tree; what cannot be read as a
file (a dangling link, a link loop, a named pipe, an empty folder named like a file …) is listed
with its problem, so it becomes a reject and does not vanish. What builds put into the tree is left
out: otherwise the next build would read its own records as raw ones.

Globs have ``*``, ``?`` and ``[…]`` within a part of a path, and ``**`` for any depth.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fnmatch
import functools
import hashlib
import io
import os
import re
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from fsspec.archive import AbstractArchiveFileSystem

from ...schemas.blocks import FileRange, SourceFile, packed
from ...schemas.errors import DataError, RecipeError, SourceChangedError
from ...schemas.limits import DEFAULT_LIMITS, Limits
from ...schemas.naming import WORKSPACE, Workspace, join
from .. import storage
from ..activity import reading, working_on
from . import git_lfs
from .decompress import Ranges, Read
from .local import Staged
from .tar import LEADS_OUT, TarArchive, archive_scheme
from .unchanged import Look, SourceProof, look_at_local, look_at_remote, stamp_of, stamp_of_local
from .zip_members import FOLDER_WITH_BYTES, ZipArchive

_ARCHIVES: weakref.WeakValueDictionary[tuple[str, str, int, str, int], TarArchive | ZipArchive]
_ARCHIVES = weakref.WeakValueDictionary()
"""Archives open in this process: finding members and decompressing take long."""
_STORE_AHEAD_BYTES = 4 << 20
_Opened = TypeVar("_Opened", bound="OpenedSource")
_MARKS = (Workspace(WORKSPACE).hash_cache, Workspace(WORKSPACE).elsewhere)
"""Files in the folder of a recipe's snapshots: one of them exists from the first inventory on."""
_PAGES = ("", ".html", ".htm", ".xhtml")
"""Suffixes of the names of web pages."""
_PAGE_HEAD_BYTES = 512
_LIKE_A_FILE = re.compile(r".+\.[A-Za-z][A-Za-z0-9]{1,4}")

_EFFECTIVE_IDS = os.access in os.supports_effective_ids
_ALL_READ = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
NO_PERMISSION = "no permission to read"
LINK_LOOP = "symbolic link loop"
LINK_OUT = (
    "symbolic link that leads out of the source's folder; limits=ss.Limits(follow_links=True) in "
    "the recipe allows it"
)
NO_SIZE = "the store does not state its size (download the file first)"
HTML_PAGE = "the server sent an HTML page, as for signing in or of an error"
_KINDS = (
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISBLK, "block device"),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISDIR, "folder"),
    (stat.S_ISREG, "file"),
    (lambda mode: True, "special file"),
)

_MAGIC = re.compile(r"[*?\[]")


def path_bytes(path: str) -> bytes:
    """Sort key of paths: the same on every machine, whatever the locale."""
    return path.encode("utf-8", "surrogateescape")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedSource:
    """Read access to a source's root; plain data that is sent to workers.

    Attributes:
        url: The source's URL, absolute. It may hold credentials: show ``shown`` instead.
        root: Path, within the filesystem, of the folder that files' paths are relative to.
        query: What follows a single file's name in a web address, including '?'.
        pattern: Parts of the glob below the root; () for every file.
        single: Name of the file, if the source is a single file.
        archived: Whether the files are in an archive, such as ``zip://*::photos.zip``.
        folder: What the relative URL of a file next to the source is relative to.
        sides: The expected sha256 of files next to the source, by URL.
        limits: Limits on what its files may request.
        proof: Checks files against what the inventory found; see :meth:`proving`.
    """

    url: str = dataclasses.field(repr=False)
    root: str = dataclasses.field(repr=False)
    query: str = dataclasses.field(default="", repr=False)
    pattern: tuple[str, ...] = ()
    single: str = ""
    archived: bool = False
    folder: str = dataclasses.field(default=".", repr=False)
    sides: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    limits: Limits = DEFAULT_LIMITS
    proof: SourceProof | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def shown(self) -> str:
        """The URL without credentials."""
        return storage.redact(self.url)

    @property
    def location(self) -> str | dict[str, str]:
        """The URL without credentials; those of several sources by name."""
        return self.shown

    @functools.cached_property
    def local(self) -> bool:
        """Whether the files are on this machine, outside archives."""
        return storage.is_local(self.url)

    @property
    def filesystem(self) -> Any:
        """The fsspec filesystem of the root."""
        if self.local:
            return self._local_filesystem
        if not self.archived:
            return storage.filesystem(self.url)[0]
        # fsspec keeps no archive open: each read would read its table of contents again. A forked
        # process must open its own, because a shared one would share the position in the file.
        archive = self.__dict__.get("_archive")
        if archive is None or archive.process != os.getpid():
            archive = self.__dict__["_archive"] = _open_archive(self.url, self.limits)[0]
        return archive.filesystem

    @functools.cached_property
    def _local_filesystem(self) -> Any:
        # Asked for each of many files; fsspec takes the URL apart each time.
        return storage.filesystem(self.url)[0]

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to workers: everything but an open archive."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def full_path(self, path: str) -> str:
        """The path, within the filesystem, of a file relative to the root."""
        return f"{self._prefix}{path}{self.query}" if self.root else path

    @functools.cached_property
    def _prefix(self) -> str:
        # Not stripped: ``d/`` is another folder of a store than ``d``.
        return f"{self.root}/" if self.root.strip("/") else self.root

    @functools.cached_property
    def _copies(self) -> dict[str, Staged]:
        """Copies of files of which a web server sends no parts: each is sent once."""
        return {}

    @functools.cached_property
    def empty_folders(self) -> set[str]:
        """The local folders in which :meth:`list` found nothing but hidden files."""
        return set()

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Reads bytes [start, stop) of a file; to its end if ``stop`` is None.

        Raises:
            SourceChangedError: if the source checks its files and this one has changed.
            StorageError: if it cannot be read.
        """
        reading(path)
        with self._reading(path) as pin:
            full = self.full_path(path)
            if self.local:
                with self.open_local(path) as file:
                    return storage.read_open(file, start, stop)
            return storage.read_remote(
                self.filesystem, full, start, stop, pin=pin, copies=self._copies
            )

    def chunks(self, path: str, *, chunk_bytes: int) -> Iterator[bytes]:
        """Reads a file from start to end in chunks of bounded size.

        Raises:
            SourceChangedError: if the source checks its files and this one has changed.
            StorageError: if it cannot be read.
        """
        with self._reading(path) as pin:
            full = self.full_path(path)
            if self.local:
                opened: Any = self.open_local(path)
            elif pin:
                read = functools.partial(storage.read_remote, self.filesystem, full, pin=pin)
                opened = Ranges(read, int(self.filesystem.size(full) or 0))
            else:
                opened = storage.open_remote(self.filesystem, full, chunk_bytes=chunk_bytes)
            with opened as file:
                while chunk := file.read(chunk_bytes):
                    reading(path)
                    yield chunk

    def proving(self, files: Iterable[SourceFile | FileRange]) -> Self:
        """The same source, which checks its files against what the inventory found.

        Call :meth:`check` after the last read, before anything that was read is kept.
        """
        plain = _replace(self, proof=None)
        return _replace(self, proof=SourceProof(plain, files))

    def check(self) -> None:
        """Compares the files that were read with what the inventory found, if this source does.

        Raises:
            SourceChangedError: if one has changed.
        """
        if self.proof is not None:
            self.proof.check()

    def each(self, change: Callable[[str, OpenedSource], OpenedSource]) -> OpenedSource:
        """The same source, changed by a function of its name, which is empty, and its root."""
        return change("", self)

    def note(self, paths: Iterable[str]) -> None:
        """Registers files of a store that are read by other means, many at a time.

        They are compared with a new listing in :meth:`check`.
        """
        if self.proof is not None:
            self.proof.note(paths)

    def hold(self, path: str) -> None:
        """Checks a file; call it before reading the file by other means than this object.

        Raises:
            SourceChangedError: if the source checks its files and this one has changed.
        """
        reading(path)
        if self.proof is not None:
            self.proof.hold(path)

    def open_local(self, path: str) -> io.FileIO:
        """Opens a local file; call :meth:`hold` first.

        Raises:
            SourceChangedError: if the source checks its files and this one has changed.
            OSError: if it cannot be opened.
        """
        file = open(self.full_path(path), "rb", buffering=0)  # noqa: SIM115
        try:
            if self.proof is not None:
                self.proof.opened(path, file.fileno())
        except BaseException:
            file.close()
            raise
        return file

    def look(self, path: str) -> Look | None:
        """The current state of a file, or of an archive member as opened; None if absent.

        Raises:
            StorageError: if it cannot be accessed.
        """
        with self._failing_to("check", path):
            full = self.full_path(path)
            try:
                if self.local:
                    return look_at_local(full)
                return look_at_remote(self.filesystem.info(full))
            except Exception as error:
                if storage.is_missing(error):
                    return None
                raise

    def archive_changed(self) -> bool:
        """Whether the archive that holds the files has changed since it was opened.

        Raises:
            StorageError: if it cannot be accessed.
        """
        if not self.archived:
            return False
        with storage.failing_as_storage_error("check", self.url):
            self.filesystem  # noqa: B018 - opens it
            try:
                return bool(_look_at_archive(self.url) != self.__dict__["_archive"].identity)
            except Exception as error:
                if storage.is_missing(error):
                    return True
                raise

    @contextlib.contextmanager
    def _reading(self, path: str) -> Iterator[str]:
        """Around a read: checks the file if this source does; yields the tag to read it by."""
        with self._failing_to("read", path):
            if self.proof is None:
                yield ""
                return
            pin = "" if self.local else self.proof.pin(self.filesystem.protocol, path)
            if not pin:
                self.proof.hold(path)
            try:
                yield pin
            except Exception:
                self.proof.explain(path)
                raise

    def read_side(self, url: str) -> bytes:
        """Reads a complete file next to the source; of a glob, the files of a table's parts.

        Raises:
            RecipeError: if there is no such file.
            DataError: if it is too large to be read at once, or a pointer of Git LFS.
            SourceChangedError: if its hash is not the one in ``sides``: its content must not enter
                a snapshot whose fingerprint was computed from another.
            StorageError: if it cannot be read.
        """
        side = open_source(url, self.folder, self.limits)
        files = side.list()
        if not (side.single or side.pattern) or not files:
            raise RecipeError(
                f"{storage.redact(url)} is a folder, or a glob of no file; expected a file, or a "
                "glob of some."
            )
        num_bytes = sum(file.num_bytes for file in files)
        if num_bytes > self.limits.max_record_bytes:
            raise DataError(
                f"{storage.redact(url)} has {num_bytes:,} bytes, more than "
                f"{self.limits.max_record_bytes:,}, and is read at once. limits=ss.Limits("
                "max_record_bytes=…) in the recipe allows more."
            )
        contents = [side.read(file.path) for file in files]
        if any(map(git_lfs.is_pointer, contents)):
            raise git_lfs.refusal(side.shown)
        content = contents[0] if side.single else joined_tables(contents)
        if self.sides.get(url, "") not in ("", hashlib.sha256(content).hexdigest()):
            raise SourceChangedError.of(storage.redact(url))
        return content

    def expecting(self, sides: Mapping[str, str]) -> OpenedSource:
        """The same source, which checks the files next to it against these hashes."""
        return _replace(self, sides=dict(sides))

    def side(self, url: str) -> tuple[OpenedSource, str]:
        """Opens a file next to the source: returns its root, and its path there.

        Raises:
            RecipeError: if there is no such file.
            StorageError: if it cannot be accessed.
        """
        side = open_source(url, self.folder, self.limits)
        if not side.single:
            raise RecipeError(f"{storage.redact(url)} is a folder or a glob, expected one file.")
        return side, side.single

    def side_digest(self, url: str) -> str:
        """The sha256 of a file next to the source, in hex; it is read only if that is unknown.

        Raises:
            RecipeError: if there is no such file.
            StorageError: if it cannot be read.
        """
        if self.sides.get(url):
            return self.sides[url]
        side = open_source(url, self.folder, self.limits)
        if not side.single:
            return hashlib.sha256(self.read_side(url)).hexdigest()
        digest = hashlib.sha256()
        for chunk in side.chunks(side.single, chunk_bytes=4 << 20):
            digest.update(chunk)
        return digest.hexdigest()

    def list(self) -> Sequence[SourceFile]:
        """All files of the source, sorted by the bytes of their paths.

        One that cannot be read has a ``problem``, and becomes a reject, whatever its name.

        Raises:
            DataError: if a folder cannot be listed: it is unknown how many files there are.
            StorageError: if the root itself cannot be listed.
        """
        looking = storage.first_look() if self.local else contextlib.nullcontext()
        with looking, storage.failing_as_storage_error("list", self.url):
            if not self.local:
                found = sorted(self._find(), key=lambda file: path_bytes(file.path))
                return packed(SourceFile, found)
            with working_on(f"listing {self.shown}"):
                return packed(SourceFile, self.walk())

    def place(self, path: str) -> str:
        """A file's name in messages, without credentials."""
        if self.local:
            return self.full_path(path)
        return self.shown if path == self.single else f"{path} of {self.shown}"

    def _failing_to(self, action: str, path: str) -> storage.failing_as_storage_error:
        if self.local:
            return storage.failing_as_storage_error(action, self.full_path(path))
        return storage.failing_as_storage_error(action, self.url, name=path)

    def walk(self) -> Iterator[SourceFile]:
        """The files of a local folder, sorted by the bytes of their paths.

        In memory are only the names in one folder and in those above it.
        """
        if self.single:
            yield inspect_file(self.full_path(self.single), self.single)[0]
            return
        self.empty_folders.clear()
        root = os.stat(self.root)
        opened = [self._walk_folder(_Folder((), frozenset({(root.st_dev, root.st_ino)})))]
        while opened:
            found = next(opened[-1], None)
            if found is None:
                opened.pop()
            elif isinstance(found, _Folder):
                opened.append(self._walk_folder(found))
            else:
                yield found

    def _walk_folder(self, folder: _Folder) -> Iterator[SourceFile | _Folder]:
        """The files and folders in a folder, sorted as the paths below them: as ``name/``."""
        path, full = folder.path, self.full_path(folder.path)
        names: list[str] = []
        known: dict[str, SourceFile | _Folder] = {}  # folders, and what links lead to
        reading(path)
        try:
            with os.scandir(full) as entries:
                for entry in entries:
                    name = entry.name
                    if entry.is_symlink() or entry.is_dir():
                        found = self._look(folder, name, is_link=entry.is_symlink())
                        name += "/" * isinstance(found, _Folder)
                        known[name] = found
                    names.append(name)
        except OSError as error:
            if not path:
                raise
            raise DataError(
                f"The folder {path} cannot be listed ({error.strerror}), so the records in it "
                "are unknown. Allow this user to read it, or choose other files with a glob."
            ) from None
        if path and not is_hidden(path) and all(map(is_hidden, names)):
            self.empty_folders.add(path)
        if path and (WORKSPACE in names or f"{WORKSPACE}/" in names) and _holds_builds(full):
            return
        names.sort(key=path_bytes)
        for name in names:
            parts = (*folder.parts, name.removesuffix("/"))
            if self.pattern and not may_hold(parts, self.pattern):
                continue
            found = known.get(name) or self._look(folder, name)
            if isinstance(found, _Folder) or self._wanted(parts):
                yield found

    @functools.cached_property
    def _real_root(self) -> str:
        return os.path.realpath(self.root)

    def _look(self, folder: _Folder, name: str, *, is_link: bool = False) -> SourceFile | _Folder:
        """A file as listed, perhaps with its problem, or a folder to list, by its name in one."""
        parts = (*folder.parts, name)
        path, full = "/".join(parts), self.full_path("/".join(parts))
        file, identity = inspect_file(full, path)
        may_lead_out = is_link and not (file.problem or self.limits.follow_links)
        if may_lead_out and leads_out(full, self._real_root):
            return unreadable(path, LINK_OUT)
        if identity is None:
            return file
        if identity in folder.held_by:
            return unreadable(path, LINK_LOOP)
        if _LIKE_A_FILE.fullmatch(name) and _is_empty(full):
            return unreadable(path, "empty folder, expected a file")
        return _Folder(parts, folder.held_by | {identity})

    def _wanted(self, parts: tuple[str, ...]) -> bool:
        return not self.pattern or matches(parts, self.pattern)

    def _find(self) -> Iterator[SourceFile]:
        # Kept until the next one is open: for an unchanged tar it is the same object.
        stale = self.__dict__.pop("_archive", None)
        filesystem = self.filesystem
        del stale
        if self.single:
            listed_files = {self.single: filesystem.info(self.full_path(self.single))}
        else:
            listed_files = self._find_below(filesystem)
        builds = tuple(_holders_of_builds(listed_files))
        for path, info in listed_files.items():
            if path.startswith(builds):
                continue
            size = int(info.get("size") or 0)
            is_folder = not path or path.endswith("/")
            if info.get("type") == "directory" or (is_folder and not size):
                continue
            if not self._wanted(tuple(path.split("/"))):
                continue
            problem = info.get("problem", "") or (FOLDER_WITH_BYTES if is_folder else "")
            if self.archived and (".." in path.split("/") or info["name"].startswith("/")):
                problem = LEADS_OUT
            if info.get("size") is None:
                problem = problem or NO_SIZE
            elif info.get("mimetype") == "text/html" and self._is_page(path):
                problem = HTML_PAGE
            if problem:
                yield unreadable(path or "/", problem)
            else:
                yield SourceFile(path=path, num_bytes=size, stamp=stamp_of(info))

    def _is_page(self, path: str) -> bool:
        """Whether a web server sends an HTML page for a file whose name promises another format."""
        if os.path.splitext(path)[1].lower() in _PAGES:
            return False
        head = storage.read_remote(self.filesystem, self.full_path(path), 0, _PAGE_HEAD_BYTES)
        return head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html"))

    def _find_below(self, filesystem: Any) -> dict[str, dict[str, Any]]:
        """What a store or archive says of the files below the root, by their paths there."""
        listed = storage.find_remote(filesystem, self.root)
        prefix = self.full_path("")
        files: dict[str, dict[str, Any]] = {}
        for name in sorted(listed):
            path = name.removeprefix(prefix)
            if prefix.endswith("//") and path == name:
                continue  # stores list ``d`` where ``d/`` is asked for
            if not prefix:
                path = path.lstrip("/")
                if path in files:  # an absolute name sorts first
                    files[f"{path} at the root"] = files[path]
            files[path] = listed[name]
        return files


@dataclasses.dataclass(frozen=True, slots=True)
class _Folder:
    """A folder that is being listed."""

    parts: tuple[str, ...]
    held_by: frozenset[tuple[int, int]]
    """The identities of it and of the folders above it."""

    @property
    def path(self) -> str:
        return "/".join(self.parts)


def _is_empty(folder: str) -> bool:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return next(entries, None) is None
    return False


def _holds_builds(folder: str) -> bool:
    """Whether a folder holds a recipe's snapshots, which are never raw data."""
    return any(os.path.isfile(os.path.join(folder, mark)) for mark in _MARKS)


def _holders_of_builds(paths: Iterable[str]) -> Iterator[str]:
    """All such folders below the root of a store or archive, each with a trailing '/'."""
    for path in paths:
        for mark in _MARKS:
            if path.endswith(f"/{mark}"):
                yield path.removesuffix(mark)


def joined_tables(contents: Iterable[bytes]) -> bytes:
    r"""The parts of a table as one: a header that they all have comes once.

    Raises:
        DataError: if only some have it, or its columns are in another order.

    >>> joined_tables([b"file,label\na,1", b"file,label\nb,2\n"])
    b'file,label\na,1\nb,2\n'
    """
    filled = [content for content in contents if content.strip()]
    heads = [content.partition(b"\n")[0].rstrip(b"\r") for content in filled]
    different = {*heads}
    if len(different) == 1 and len(heads) > 1:
        filled = [filled[0], *(content.partition(b"\n")[2] for content in filled[1:])]
    # Rows of different files differ, in their cells, too; names of columns do not.
    elif len(different) < len(heads) or len({_cells(head) for head in different}) < len(heads):
        shown = " and ".join(repr(head.decode(errors="replace")) for head in sorted(different)[:2])
        raise DataError(f"Parts of a table begin with {shown}. Give them the same columns.")
    return b"".join(part if part.endswith(b"\n") or not part else part + b"\n" for part in filled)


def _cells(line: bytes) -> tuple[bytes, ...]:
    """The cells of a line in any order, whatever separates them."""
    return tuple(sorted(cell.strip() for cell in re.split(rb"[,;|\t]", line)))


def open_source(url: str, folder: str, limits: Limits = DEFAULT_LIMITS) -> OpenedSource:
    """Opens a source: finds its root, and checks that it exists.

    The root of a glob is the last folder before its first wildcard; a pattern that matches a
    folder selects everything in it. The root of a single file is the folder that holds it; a
    single ``.zip`` or ``.tar`` (``.tar.gz``, ``.tgz`` …) is itself a root, the short form of
    ``zip://::photos.zip``.

    Args:
        url: A path, a glob, or any fsspec URL.
        folder: What a relative local path is relative to.
        limits: Limits on what its files may request.

    Raises:
        RecipeError: if there is no such source, or it is a named pipe, a socket or a device.
        DataError: if an archive is invalid or damaged.
        PlaceError: if access to it is refused.
        StorageError: if it cannot be accessed for another reason.
    """
    absolute = _absolute(url, folder)
    _refuse_http_folder(absolute)
    with storage.first_look(), storage.failing_as_storage_error("open", absolute):
        opened = _open(absolute, limits)
        scheme = archive_scheme(opened.single) if opened is not None else None
        if scheme is not None:
            opened = _open(f"{scheme}://::{absolute}", limits)
    if opened is not None:
        return _replace(opened, folder=folder)
    looked_for = "" if absolute == url else f" (looked for {storage.redact(absolute)})"
    how = "Correct the URL."
    if storage.is_local(url) and "://" not in url:
        how = "Correct the path; in a recipe, a relative path is relative to the recipe's folder."
    elif storage.is_local(url) and "%" in url:
        how = "Correct the path: of a file:// URL it is taken as it is, %20 is no space."
    raise RecipeError(f"The source {storage.redact(url)} does not exist{looked_for}. {how}")


def _refuse_http_folder(url: str) -> None:
    """Refuses what has to be listed: over HTTP, a folder is at most a page about its files."""
    scheme, _, path = url.rpartition("::")[2].partition("://")
    path = path.partition("?")[0]
    if scheme in ("http", "https") and ("*" in path or path.endswith("/")):
        raise RecipeError(
            f"The source {storage.redact(url)} cannot be listed: HTTP has no folders. Name one "
            "file or archive (https://…/data.tar.gz), or copy the folder first, for example with "
            "`wget --recursive --no-parent`."
        )


def url_below(url: str, path: str) -> str:
    """The URL of a file or folder below that of a folder, or in an archive.

    >>> url_below("d/", "a/1.jpg"), url_below("d.zip", "a"), url_below("tar://a::s3://b/d.tgz", "c")
    ('d/a/1.jpg', 'zip://a::d.zip', 'tar://a/c::s3://b/d.tgz')
    """
    if not path:
        return url
    inner, outer = _inside(url)
    if outer:
        scheme, _, folder = inner.partition("://")
        return f"{scheme}://{f'{folder}/{path}'.strip('/')}::{outer}"
    return join(url, path)


def path_below(url: str, root: str) -> str | None:
    """What :func:`url_below` added to the URL of a root; empty for the root, None for another."""
    (inner, outer), (inner_root, outer_root) = _inside(url), _inside(root)
    place, top = inner.rstrip("/"), inner_root.rstrip("/")
    if outer != outer_root:
        return None
    if place == top:
        return ""
    start = f"{top}//" if outer and top.endswith(":") else f"{top}/"
    return place.removeprefix(start) if place.startswith(start) else None


def _inside(url: str) -> tuple[str, str]:
    """The place in an archive and the archive's URL; for others the URL, and an empty text."""
    inner, chained, outer = url.partition("::")
    if chained:
        return inner, outer
    scheme = archive_scheme(url)
    if scheme is None or (storage.is_local(url) and os.path.isdir(storage.local_path(url))):
        return url, ""
    return f"{scheme}://", url


def unopened_source(url: str, folder: str, limits: Limits = DEFAULT_LIMITS) -> OpenedSource:
    """A source as it is named, which is not looked at: none of its files can be read."""
    return OpenedSource(url=_absolute(url, folder), root="", folder=folder, limits=limits)


def _open(url: str, limits: Limits) -> OpenedSource | None:
    """Opens an absolute URL; None if nothing is there."""
    archive, filesystem, path = None, None, ""
    if storage.is_local(url):
        path = os.path.normpath(storage.local_path(url))
    else:
        try:
            archive, path = _open_archive(url, limits)
        except Exception as error:
            if storage.is_missing(error):
                return None
            raise
        filesystem = archive.filesystem
        path = path.rstrip("/")
    opened = OpenedSource(
        url=url,
        root=path,
        archived=isinstance(filesystem, AbstractArchiveFileSystem),
        limits=limits,
    )
    if opened.archived:
        opened.__dict__["_archive"] = archive
    kind = _kind(filesystem, path)
    if kind == "folder":
        return opened
    if kind not in ("file", "absent"):
        raise RecipeError(
            f"The source {storage.redact(url)} is a {kind}, expected a file or folder. Correct "
            "the path, or write its content to a file first."
        )
    if kind == "file":
        # A signature in a web address must not become part of the file's name.
        named = re.split(r"[?#]", path, maxsplit=1)[0] if "://" in path else path
        path, query = named, path[len(named) :]
        root, _, name = path.rpartition("/")
        root = root or path[: -len(name)]
        return _replace(opened, root=root, query=query, single=name)
    root, pattern = split_glob(path)
    if pattern and _kind(filesystem, root) == "folder":
        return _replace(opened, root=root, pattern=pattern)
    return None


def _replace(opened: _Opened, **changes: Any) -> _Opened:
    """A changed copy, which shares the archive that is already open."""
    changed = dataclasses.replace(opened, **changes)
    if "_archive" in opened.__dict__:
        changed.__dict__["_archive"] = opened.__dict__["_archive"]
    return changed


def _filesystem(url: str, limits: Limits) -> tuple[Any, str]:
    """Like ``storage.filesystem``, but archives are read by position.

    Raises:
        DataError: if an archive is invalid or damaged.
        FileNotFoundError: if the archive does not exist.
    """
    scheme, _, rest = url.partition("://")
    inner, chained, outer = rest.partition("::")
    if scheme not in ("tar", "zip") or not chained:
        return storage.filesystem(url)
    holder = _open(outer, limits)
    if holder is None or not holder.single:
        raise FileNotFoundError(outer)
    (file,) = holder.list()
    if file.problem:
        raise DataError(f"{holder.place(file.path)} cannot be read: {file.problem}.")
    if file.num_bytes <= git_lfs.MAX_BYTES and git_lfs.is_pointer(holder.read(file.path)):
        raise git_lfs.refusal(holder.shown)
    holder = holder.proving([file])
    # A store's tag may cover only the first bytes, or be missing: the length is reliable.
    stamp = file.stamp and f"{file.num_bytes} {file.stamp}"
    key = (scheme, outer, file.num_bytes, stamp, limits.max_expansion)
    archive = _ARCHIVES.get(key) if stamp else None
    if archive is None:
        # Reads from a store carry the archive's tag: all of them are of one archive.
        holder = holder.proving([file])
        read: Read = functools.partial(holder.read, file.path)
        ahead_bytes = {}
        if holder.archived and holder.filesystem.protocol == "zip":
            # A member compressed as one stream does not allow seeking.
            staged = Staged()
            for chunk in holder.chunks(file.path, chunk_bytes=1 << 20):
                staged.append(chunk)
            read = staged.read
        elif not holder.local and scheme == "zip":
            ahead_bytes = {"ahead_bytes": _STORE_AHEAD_BYTES}
        kind: Any = TarArchive if scheme == "tar" else ZipArchive
        archive = kind(
            read,
            num_bytes=file.num_bytes,
            stamp=stamp,
            name=file.path,
            max_expansion=limits.max_expansion,
            **ahead_bytes,
        )
        _ARCHIVES[key] = archive
    return archive, inner.strip("/")


@dataclasses.dataclass(frozen=True)
class _Archive:
    """A filesystem open in a process; for an archive, with its identity when it was opened."""

    filesystem: Any
    process: int
    identity: str = ""


def _open_archive(url: str, limits: Limits) -> tuple[_Archive, str]:
    identity = _look_at_archive(url) if storage.is_chained(url) else ""
    filesystem, path = _filesystem(url, limits)
    return _Archive(filesystem, os.getpid(), identity), path


def _look_at_archive(url: str) -> str:
    """The current identity of the file at the end of a chain of archives.

    Raises:
        FileNotFoundError: if it is gone.
    """
    base = url.rpartition("::")[2]
    if storage.is_local(base):
        return look_at_local(storage.local_path(base)).identity
    filesystem, path = storage.filesystem(base)
    return look_at_remote(filesystem.info(path)).identity


def _absolute(url: str, folder: str) -> str:
    """The URL with the local path at the end of its chain made absolute."""
    *through, last = url.split("::") if storage.is_chained(url) else [url]
    if storage.is_local(last):
        last = os.path.join(os.path.abspath(folder), storage.local_path(last))
    return "::".join([*through, last])


def _kind(filesystem: Any, path: str) -> str:
    """``file``, ``folder`` or ``absent``; ``filesystem`` is None for this machine.

    A local path may be of another kind (see ``kind_of``), which cannot be read twice, if it ends.
    """
    try:
        if filesystem is None:
            return kind_of(os.stat(path).st_mode)
        if not path.strip("/"):
            return "folder"
        return "folder" if filesystem.info(path)["type"] == "directory" else "file"
    except Exception as error:
        if storage.is_missing(error):
            return "absent"
        raise


def kind_of(mode: int) -> str:
    """The kind of a local path by its ``st_mode``, for messages: ``named pipe``."""
    return next(name for test, name in _KINDS if test(mode))


def unreadable(path: str, problem: str) -> SourceFile:
    """The listing entry of a file that will become a reject."""
    return SourceFile(path=path, num_bytes=0, stamp="", problem=problem)


def leads_out(full: str, real_root: str) -> bool:
    """Whether a local path, with links resolved, is outside a folder."""
    found = os.path.realpath(full)
    return os.path.commonpath([found, real_root]) != real_root


def inspect_file(full: str, path: str) -> tuple[SourceFile, tuple[int, int] | None]:
    """A local file as listed; for a folder also its identity: (device, inode)."""
    # A problem is part of a block's name: it must never contain the location of the source.
    try:
        status = os.stat(full)
    except OSError as error:
        problem = f"cannot be looked at: {error.strerror}"
        if error.errno == errno.ELOOP:
            problem = LINK_LOOP
        elif isinstance(error, FileNotFoundError | NotADirectoryError):
            problem = "dangling symbolic link" if os.path.islink(full) else "vanished while listed"
        return unreadable(path, problem), None
    if stat.S_ISDIR(status.st_mode):
        return unreadable(path, ""), (status.st_dev, status.st_ino)
    if not stat.S_ISREG(status.st_mode):
        return unreadable(path, f"{kind_of(status.st_mode)}, expected a file"), None
    # If everyone may read, only an access list could forbid it, and reading will show that.
    readable = status.st_mode & _ALL_READ == _ALL_READ
    if not readable and not os.access(full, os.R_OK, effective_ids=_EFFECTIVE_IDS):
        return unreadable(path, NO_PERMISSION), None
    return SourceFile(path=path, num_bytes=status.st_size, stamp=stamp_of_local(status)), None


def split_glob(path: str) -> tuple[str, tuple[str, ...]]:
    """The last folder before the first wildcard, and the parts after it."""
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    root = "/".join(parts[:first])
    return root or ("/" if path.startswith("/") else ""), tuple(parts[first:])


def matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a glob matches a path or one of its parent folders; ``**`` is any depth."""
    # All positions in the pattern at once: a path from an archive may have thousands of parts.
    places = {0}
    for part in parts:
        pending, places = sorted(places), set()
        for place in pending:
            if place == len(pattern):
                return True
            if pattern[place] == "**":
                places.add(place)
                if place + 1 not in pending:
                    pending.append(place + 1)
            elif fnmatch.fnmatchcase(part, pattern[place]):
                places.add(place + 1)
    return len(pattern) in places


def may_hold(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a path matches a glob, or may be a folder of paths that match."""
    for part, wanted in zip(parts, pattern, strict=False):
        if wanted == "**":
            return True
        if not fnmatch.fnmatchcase(part, wanted):
            return False
    return True


def is_hidden(path: str) -> bool:
    """Whether the name of a file, or of a folder above it, begins with a dot.

    >>> [is_hidden(path) for path in ("a/.git/b.csv", ".a.csv", "../a.csv", "./a.csv", "a.csv")]
    [True, True, False, False, False]
    """
    # A path that leads out of an archive must become a reject, not be skipped silently.
    if not path.startswith(".") and "/." not in path:
        return False
    return any(part.startswith(".") and part not in (".", "..") for part in path.split("/"))
