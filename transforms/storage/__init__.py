"""Files anywhere by URL: local paths, stores and archives, read by range and put atomically.

In: a local path or any fsspec URL, including chained ones. Out: bytes, open files, listings with
stamps and hashes. A put is one atomic, durable step: a reader finds the complete file or none.
Every failure is a StorageError (``failures``) without credentials.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from ...schemas.errors import RecipeError, StorageError
from ..activity import advance
from .failures import failing_as_storage_error as failing_as_storage_error
from .failures import first_look as first_look
from .failures import is_missing as is_missing
from .failures import losses_as_damage as losses_as_damage
from .failures import os_errors_as_storage_errors
from .local import SCRATCH as SCRATCH
from .local import TEMPORARY as TEMPORARY
from .local import abandoned_folders as abandoned_folders
from .local import (
    fsync_file,
    naming_durably,
    put_bytes_locally,
    remove_unfinished,
    sizes_locally,
    sync_tree,
)
from .local import held_folder as held_folder
from .local import make_folders as make_folders
from .local import remove_abandoned_folders as remove_abandoned_folders
from .redaction import hide_known as hide_known
from .redaction import learn as learn
from .redaction import redact as redact
from .redaction import redact_repeated as redact_repeated
from .remote import find_remote as find_remote
from .remote import names_remote, put_bytes_remotely, put_file_remotely
from .remote import open_remote as open_remote
from .remote import read_remote as read_remote
from .unchanged import stamp_of_local

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOCAL_SCHEME = re.compile(r"(?:file|local)://")
_STORE_REQUESTS = 32
_SYNCED_AT_ONCE = 8


def is_chained(url: str) -> bool:
    """Whether the URL goes through another filesystem: ``zip://*::s3://bucket/a.zip``."""
    head, separator, _ = url.partition("::")
    return bool(separator) and (_SCHEME.match(head) is not None or head in known_implementations)


def is_local(url: str) -> bool:
    """Whether the URL is a path on this machine.

    >>> is_local("data/train"), is_local("file:///data"), is_local("gs://bucket/data")
    (True, True, False)
    """
    if is_chained(url):
        return False
    return _SCHEME.match(url) is None or _LOCAL_SCHEME.match(url) is not None


def is_in_memory(url: str) -> bool:
    """Whether the URL points into the memory of a process, which no other process can see.

    >>> [is_in_memory(url) for url in ("memory://data", "zip://*::memory://a.zip", "memory")]
    [True, True, False]
    """
    return any(part.startswith("memory:/") for part in url.split("::"))


def num_requests(url: str, *, local: int = 1) -> int:
    """How many requests to make concurrently: a store is slow per request, but serves many.

    Args:
        url: Where the requests go.
        local: The number for local files.
    """
    return local if is_local(url) else _STORE_REQUESTS


def local_path(url: str) -> str:
    """The path that a local URL refers to.

    Raises:
        ValueError: if the URL is not local.
    """
    if not is_local(url):
        raise ValueError(f"{redact(url)} is not a local path")
    return os.path.expanduser(_LOCAL_SCHEME.sub("", url, count=1))


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec filesystem of a URL, and the path within that filesystem.

    Raises:
        RecipeError: if the protocol is unknown or its filesystem is not installed.
    """
    learn(url)
    try:
        # A cached listing would miss what other workers have written since.
        client, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise RecipeError(
            f"{redact(url)} cannot be opened: {redact_repeated(str(error), url).rstrip('.')}. "
            f"Run: pip install {_package_of(url)}"
        ) from None
    except ValueError as error:
        raise RecipeError(
            f"{redact(url)} cannot be opened: {redact_repeated(str(error), url)}. Give a local "
            "path, or a URL of a protocol that fsspec knows, such as gs://, s3://, https://."
        ) from None
    return client, path


def _package_of(url: str) -> str:
    """What to install for a protocol, as written in a shell.

    >>> _package_of("s3://bucket/a"), _package_of("zip://*::gs://bucket/a.zip")
    ('"snapshard[s3]"', 'gcsfs')
    >>> _package_of("https://host/a"), _package_of("sftp://host/a")
    ('"fsspec[http]"', '"fsspec[sftp]"')
    """
    protocol = url.rpartition("::")[2].partition("://")[0]
    package: str = known_implementations[protocol]["class"].partition(".")[0]
    if package == "s3fs":
        return '"snapshard[s3]"'
    if package == "fsspec":
        return f'"fsspec[{protocol.replace("https", "http")}]"'
    return package.replace("_", "-")


def read_bytes(url: str, start: int = 0, stop: int | None = None) -> bytes:
    """Reads bytes [start, stop) of a file, to its end if ``stop`` is None: one request remotely.

    Raises:
        StorageError: if it cannot be read.
    """
    advance()
    with failing_as_storage_error("read", url):
        if is_local(url):
            return read_local(local_path(url), start, stop)
        return read_remote(*filesystem(url), start, stop)


def read_local(path: str, start: int = 0, stop: int | None = None) -> bytes:
    """Reads bytes [start, stop) of a local file.

    Raises:
        OSError: if it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        return read_open(file, start, stop)


def read_open(file: io.FileIO, start: int = 0, stop: int | None = None) -> bytes:
    """Reads bytes [start, stop) of an open file.

    Raises:
        OSError: if it cannot be read.
    """
    if start:
        file.seek(start)
    if stop is None:
        return file.read()
    parts = []
    missing = stop - start
    while missing > 0 and (part := file.read(missing)):
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_expected(path: str, num_bytes: int, stamp: str = "") -> bytes | None:
    """The content of a local file if it has this length; None if not, or if it cannot be read.

    With ``stamp``, also None if the file no longer has the stamp it was listed with.

    Makes only three system calls, fewer than a file object would: this halves the time to read a
    folder of small files.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        # Reading one byte more than expected reveals that the file has grown.
        content = os.read(descriptor, num_bytes + 1)
        if stamp and stamp_of_local(os.fstat(descriptor)) != stamp:
            return None
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return content if len(content) == num_bytes else None


def sha256_of(path: str) -> str:
    """SHA-256 of a local file, as hexadecimal digits.

    Raises:
        OSError: if it cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def exists(url: str) -> bool:
    """Whether a file or folder exists there.

    Raises:
        StorageError: if this cannot be determined.
    """
    with failing_as_storage_error("look for", url):
        if is_local(url):
            try:
                os.stat(local_path(url))
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True
        found, path = filesystem(url)
        try:
            # Not `found.exists`, which mistakes a refused request for a missing file.
            found.info(path)
        except Exception as error:
            if is_missing(error):
                return False
            raise
        return True


def num_bytes(url: str) -> int:
    """Length of a file.

    Raises:
        StorageError: if it does not exist or cannot be accessed.
    """
    with failing_as_storage_error("read", url):
        if is_local(url):
            return os.stat(local_path(url)).st_size
        found, path = filesystem(url)
        return int(found.info(path)["size"])


def size_of(url: str) -> int | None:
    """Length of a file; None if it does not exist. Queries the file, not a listing.

    Listings of some stores lag behind puts.

    Raises:
        StorageError: if it cannot be accessed.
    """
    try:
        return num_bytes(url)
    except StorageError as error:
        if error.__context__ is not None and is_missing(error.__context__):
            return None
        raise


def list_names(url: str) -> list[str]:
    """Names directly in a folder, sorted; [] if there is no such folder.

    Raises:
        StorageError: if it cannot be listed.
    """
    with failing_as_storage_error("list", url):
        try:
            if is_local(url):
                return sorted(os.listdir(local_path(url)))
            return sorted(names_remote(*filesystem(url)))
        except Exception as error:
            if is_missing(error) and not isinstance(error, NotADirectoryError):
                return []
            raise


def absolute(url: str) -> str:
    """The URL with a relative local path made absolute; other URLs unchanged."""
    return os.path.abspath(local_path(url)) if is_local(url) else url


def walk(url: str) -> list[str]:
    """Names of all files below a folder, relative to it, sorted; [] if it does not exist.

    Raises:
        StorageError: if it cannot be listed.
    """
    with failing_as_storage_error("list", url):
        try:
            if is_local(url):
                root = local_path(url)
                return sorted(
                    os.path.relpath(os.path.join(folder, name), root)
                    for folder, _, names in os.walk(root)
                    for name in names
                )
            found, path = filesystem(url)
            inside = path.rstrip("/") + "/"
            return sorted(name.removeprefix(inside) for name in find_remote(found, path))
        except Exception as error:
            if is_missing(error) and not isinstance(error, NotADirectoryError):
                return []
            raise


def sizes(url: str) -> dict[str, int]:
    """Lengths of all files below a folder, by name relative to it; {} if it does not exist.

    Raises:
        StorageError: if it cannot be listed.
    """
    with failing_as_storage_error("list", url):
        if is_local(url):
            return dict(sizes_locally(local_path(url)))
        found, path = filesystem(url)
        listed = find_remote(found, path)
        inside = path.rstrip("/") + "/"
        return {
            name.removeprefix(inside): _listed_bytes(found, name, info)
            for name, info in listed.items()
        }


def _listed_bytes(found: Any, name: str, info: Mapping[str, Any]) -> int:
    """The length of a file in a listing; that of a web server states none, so the file is asked."""
    size = info.get("size")
    if size is None and not name.endswith("/"):
        size = found.info(name).get("size")
        if size is None:
            raise OSError(f"the store does not state how long {name} is")
    return int(size or 0)


@contextlib.contextmanager
def scratch_folder(near: str) -> Iterator[str]:
    """A local folder for work in progress, removed at the end.

    It is inside ``near`` if that is local: a finished file is then renamed, not copied, and a
    large one does not fill a memory-backed temporary folder.

    Raises:
        StorageError: if it cannot be made, or if the body raises an OSError.
    """
    parent = None
    if is_local(near):
        parent = os.path.join(local_path(near), "scratch")
        with failing_as_storage_error("write", near):
            make_folders(parent)
    with contextlib.ExitStack() as closing:
        with failing_as_storage_error("write", parent or tempfile.gettempdir()):
            folder = closing.enter_context(held_folder(parent))
        with os_errors_as_storage_errors("write", folder):
            yield folder


def remove_abandoned_scratch(near: str) -> None:
    """Removes the scratch folders near a place whose processes are gone; a no-op on a store."""
    if is_local(near):
        remove_abandoned_folders(os.path.join(local_path(near), "scratch"))


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder in the system's temporary folder, removed at the end; see ``held_folder``.

    Raises:
        StorageError: if it cannot be made.
    """
    with contextlib.ExitStack() as closing:
        with failing_as_storage_error("write", "the folder for temporary files"):
            folder = closing.enter_context(held_folder())
        yield folder


def put_bytes(url: str, content: bytes) -> None:
    """Puts a file in place, replacing any existing one, in one atomic, durable step.

    Raises:
        StorageError: if it cannot be written; an existing file is then untouched.
    """
    with failing_as_storage_error("write", url):
        if is_local(url):
            put_bytes_locally(local_path(url), content)
        else:
            put_bytes_remotely(*filesystem(url), content)


def put_file(local: str, url: str) -> None:
    """Moves a finished local file to its place, in one atomic, durable step.

    On the same filesystem it is renamed; otherwise it is copied and the local file removed.

    Raises:
        StorageError: if it cannot be written; an existing file is then untouched.
    """
    put_files([(local, url)])


def put_files(files: Sequence[tuple[str, str]]) -> None:
    """Moves finished local files to their places, each in one atomic step; then all are durable.

    All are synced before the first is named, at once: a disk makes many files durable together, in
    about the time of one. Stores receive them at once.

    Args:
        files: Pairs of a local file and its URL. Local files are named in this order; those of a
            store come in any order, but after local files before them, and before those after them.

    Raises:
        StorageError: if one cannot be written; existing files are then untouched.
    """
    for are_local, group in itertools.groupby(files, key=lambda file: is_local(file[1])):
        if are_local:
            _put_locally([*group])
        else:
            _at_once(_put_remotely, [*group], number=_STORE_REQUESTS)


def _put_locally(files: Sequence[tuple[str, str]]) -> None:
    # For a few files, the threads would cost more than they save.
    _at_once(_sync, files, number=_SYNCED_AT_ONCE if len(files) > _SYNCED_AT_ONCE else 1)
    with failing_as_storage_error("write", files[0][1]), naming_durably() as names:
        for local, url in files:
            with failing_as_storage_error("write", url):
                names.put(local, local_path(url))


def _at_once(
    act: Callable[[tuple[str, str]], None], files: Sequence[tuple[str, str]], *, number: int
) -> None:
    if number == 1 or len(files) == 1:
        for file in files:
            act(file)
        return
    with ThreadPoolExecutor(number) as pool:
        for _ in pool.map(act, files):
            pass


def _sync(file: tuple[str, str]) -> None:
    local, url = file
    with failing_as_storage_error("write", url):
        fsync_file(local)


def _put_remotely(file: tuple[str, str]) -> None:
    local, url = file
    with failing_as_storage_error("write", url):
        put_file_remotely(local, *filesystem(url))
        os.unlink(local)


def settle(url: str) -> None:
    """Removes unfinished files from a local folder and makes its names durable; a no-op on stores.

    A killed process may have named files without making the names durable, and may have left an
    unfinished file.

    Raises:
        StorageError: if that fails; the folder's content must then not be relied on.
    """
    if is_local(url):
        with failing_as_storage_error("write", url):
            remove_unfinished(local_path(url))
            sync_tree(local_path(url))


def remove_tree(url: str) -> None:
    """Removes a file, or a folder and everything in it; does nothing if it does not exist.

    Raises:
        StorageError: if it cannot be removed.
    """
    with failing_as_storage_error("remove", url):
        try:
            if not is_local(url):
                found, path = filesystem(url)
                found.rm(path, recursive=True)
                return
            path = local_path(url)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except FileNotFoundError as error:
            if not is_missing(error):
                raise
