"""The folders that a build uses: checks, finds and occupies them.

The workspace of a name is in the name's folder, or where a build put it. A note in the name's
folder names the place: builds without ``workspace=``, and other commands, find it by that. The
workspace's own name contains a hash of its owner's folder. Both must agree: the note of an output
root that was copied or moved names a workspace that another root may use.

Builds share a workspace, garbage collection needs it exclusively. Locks are advisory and held by
the kernel: a killed process holds none. Where there are no locks, on object stores and some network
filesystems, a build leaves a marker and renews it. A marker counts while it is recent: that of a
killed build stops garbage collection for a day, and never a build.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator

from fsspec.registry import known_implementations

from ..schemas.blocks import SourceFile
from ..schemas.config import is_unicode
from ..schemas.errors import PlaceError, RecipeError, StorageError
from ..schemas.naming import MANIFEST, WORKSPACE, OutputPaths, Workspace, join
from ..schemas.recipe import Recipe, Source
from ..schemas.runner import JobRunner
from ..transforms import storage
from ..transforms.activity import unnoticed, waiting_to
from ..transforms.code.dependencies import functions_in
from ..transforms.sources.combined import sources_of
from ..transforms.storage.artifacts import put_artifact, read_artifact
from ..transforms.storage.opened_source import OpenedSource, open_source
from ..transforms.storage.unchanged import modified_ns
from .engines import runs_here

_WHAT = "workspace-1"
LOCK = "lock"
"""The file in the workspace that locks are held on; it stays empty and is never removed."""
MARKERS = "building"
"""The folder in the workspace for markers of builds that hold no lock."""
SAFE_AGE_S = 24 * 3600
"""Without locks, files younger than this are kept, and markers count."""
_RENEWAL_S = 3600.0


def check_place(place: object, argument: str) -> None:
    """Checks that a place can be a folder to write to, before anything is read.

    Args:
        place: A path or URL.
        argument: Name of the argument in messages.

    Raises:
        RecipeError: if it is not a path or URL, is empty, not valid UTF-8, or only a protocol.
        PlaceError: if it is a file.
    """
    if not isinstance(place, str | os.PathLike) or not isinstance(os.fspath(place), str):
        raise RecipeError(f"{argument}={place!r}, expected a folder or URL.")
    url = os.fspath(place)
    if not url:
        raise RecipeError(f"{argument} is empty, expected a folder or URL.")
    if "\0" in url or not is_unicode(url):
        # The snapshot's files contain its folder's name, and they are UTF-8.
        raise RecipeError(f"{argument}={url!r} is not valid UTF-8 text. Choose another place.")
    if not storage.is_local(url):
        if not url.partition("://")[2].strip("/"):
            raise RecipeError(
                f"{argument}: {url} is only a protocol, expected a folder or URL, such as "
                f"{url.rstrip('/')}//bucket/folder."
            )
        return
    protocol, mistyped, rest = url.partition(":/")
    if mistyped and not rest.startswith("/") and protocol in known_implementations:
        is_file = protocol in ("file", "local")
        missing = "slashes: write /" if is_file else f"a slash: write {protocol}://"
        raise RecipeError(
            f"{argument}: {url} is missing {missing}{rest}, or ./{url} for a folder of that name."
        )
    path = storage.local_path(url)
    if os.path.exists(path) and not os.path.isdir(path):
        raise PlaceError(f"{argument}: {path} is a file, expected a folder. Choose another place.")


def refuse_memory_of_one_process(recipe: Recipe, out: OutputPaths, runner: JobRunner) -> None:
    """Refuses ``memory://``, and local disks, if workers cannot access them.

    Raises:
        RecipeError: if the source or the output is there, or an analysis on the engine could not
            keep its temporary files in the workspace.
    """
    if runner.shares_memory:
        return
    urls = _data_of(recipe)
    for url in (*urls, out.out, out.workspace):
        if not runner.sees_local_files and storage.is_local(url.rpartition("::")[2]):
            raise RecipeError(
                f"{storage.redact(url)} is on this machine, where no worker of {runner.name} can "
                f"{'read' if url in urls else 'write'} it. Put it on an object store that they "
                "can access, and give its URL, such as gs://bucket/folder."
            )
        if storage.is_in_memory(url):
            raise RecipeError(
                f"{storage.redact(url)} is in the memory of this process, where no worker "
                "process can read or write it. Build with workers=1, or put it into files."
            )
    if recipe.analyze_on_runner and not (
        runs_here(runner) or is_reached_by_tensorflow(out.workspace)
    ):
        raise RecipeError(
            "analyze_on_runner keeps TensorFlow's temporary files in the workspace, and "
            f"TensorFlow cannot write to {storage.redact(out.workspace)}. Put the output, or only "
            "the workspace, on gs://, hdfs:// or a disk that all workers share; or leave "
            "analyze_on_runner= out of the recipe: the analysis then runs in one process on this "
            "machine."
        )


def needs_this_process(recipe: Recipe, *places: str | os.PathLike[str] | None) -> bool:
    """Whether a recipe might not work in another process of this machine.

    Its data or a place of the build may be in this process's memory, and functions that were not
    read from a recipe file may use objects that cannot be sent.
    """
    urls = (*_data_of(recipe), *(os.fspath(place) for place in places if place is not None))
    if any(map(storage.is_in_memory, urls)):
        return True
    return recipe.loaded_files is None and any(functions_in(recipe))


def _data_of(recipe: Recipe) -> list[str]:
    """The URLs of the data that a recipe reads."""
    return [url for source in sources_of(recipe.source) for url in (source.url, *source.side_urls)]


def is_reached_by_tensorflow(url: str) -> bool:
    """Whether TensorFlow and Beam can write there directly."""
    return storage.is_local(url) or url.startswith(("gs://", "hdfs://"))


def refuse_output_among_data(recipe: Recipe, out: OutputPaths) -> None:
    """Refuses an output that the next build would read as records.

    Raises:
        RecipeError: if the output's folder is inside the source, and the source would read it.
    """
    for source in sources_of(recipe.source):
        _refuse_output_in(source, open_source(source.url, recipe.folder), out)


def _refuse_output_in(source: Source, opened: OpenedSource, out: OutputPaths) -> None:
    if not opened.local or opened.single or opened.pattern:
        return
    root = os.path.realpath(storage.local_path(opened.root))
    for what, folder in (("output", out.folder), ("workspace", out.workspace)):
        if not storage.is_local(folder):
            continue
        inside = os.path.relpath(os.path.realpath(storage.local_path(folder)), root)
        # A manifest, and one of the files whose names have no usual suffix.
        paths = (f"{inside}/{MANIFEST}", f"{inside}/run")
        written = [SourceFile(path=path, num_bytes=1, stamp="") for path in paths]
        if inside.split(os.sep)[0] != os.pardir and source.select(written).files:
            raise RecipeError(
                f"The {what} {folder} is inside the source {opened.shown}: the next build would "
                "read it as data. Choose a folder outside the source."
            )


def choose_workspace(out: OutputPaths, place: str | os.PathLike[str] | None) -> OutputPaths:
    """The paths of a build, with the workspace where ``workspace=`` puts it.

    Each output root has a workspace of its own at the place: garbage collection of one root must
    not clear what another's builds reuse.

    Args:
        out: The paths, with the workspace in the name's folder.
        place: A folder or URL; the output root itself for the name's folder; None for where it is.

    Raises:
        RecipeError: if the place carries credentials.
        StorageError: if the workspace cannot be looked for.
    """
    if place is None:
        return OutputPaths(out.out, out.name, elsewhere=_elsewhere(out, find_workspace(out.folder)))
    url = storage.absolute(os.fspath(place))
    if storage.redact(url) != url:
        raise RecipeError(
            f"The workspace {storage.redact(url)} carries credentials, and a note beside the "
            "snapshots names it. Name them in the environment."
        )
    if url.rstrip("/") == out.out.rstrip("/"):
        return OutputPaths(out.out, out.name)
    return OutputPaths(out.out, out.name, elsewhere=join(url, _name_elsewhere(out.folder)))


def find_workspace(folder: str) -> Workspace:
    """The workspace of the name whose folder this is; never one of another folder.

    Raises:
        StorageError: if it cannot be looked for.
    """
    noted = _noted(folder)
    if noted is None or not _belongs(noted, folder):
        return Workspace(join(folder, WORKSPACE))
    return Workspace(noted)


def foreign_workspace(folder: str) -> str | None:
    """The place that the note in a name's folder names, if it is another folder's workspace.

    Raises:
        StorageError: if the note cannot be read.
    """
    noted = _noted(folder)
    return None if noted is None or _belongs(noted, folder) else noted


def _noted(folder: str) -> str | None:
    content = read_artifact(Workspace(join(folder, WORKSPACE)).elsewhere, what=_WHAT)
    return None if content is None else str(json.loads(content))


def _belongs(workspace: str, folder: str) -> bool:
    return workspace.rstrip("/").rsplit("/", 1)[-1] == _name_elsewhere(folder)


def _name_elsewhere(folder: str) -> str:
    """The name of a workspace that is not in the folder of its name."""
    path = storage.absolute(folder).rstrip("/")
    if storage.is_local(path):
        # Another way to the same folder, by a link, is the same owner.
        path = os.path.realpath(path)
    owner = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{path.rsplit('/', 1)[-1]}-{owner}"


def _elsewhere(out: OutputPaths, workspace: Workspace) -> str:
    return "" if workspace.root == join(out.folder, WORKSPACE) else workspace.root


@contextlib.contextmanager
def occupied(out: OutputPaths, *, named: bool) -> Iterator[OutputPaths]:
    """Keeps garbage collection out of a name's folder and its workspace while a build runs.

    Args:
        out: The paths, as :func:`choose_workspace` gave them.
        named: Whether the user named the place: then the note leads there from now on. Else it
            stays as it is, since another build may have named a place meanwhile.

    Yields:
        The paths, with the workspace where it is by now.

    Raises:
        StorageError: if the workspace cannot be made.
    """
    inside = Workspace(join(out.folder, WORKSPACE))
    with building(inside), contextlib.ExitStack() as stack:
        if not named:
            out = choose_workspace(out, None)
        if out.elsewhere:
            stack.enter_context(building(Workspace(out.workspace)))
        noted = _noted(out.folder)
        if named and out.elsewhere and noted != out.elsewhere:
            put_artifact(inside.elsewhere, json.dumps(out.elsewhere).encode(), what=_WHAT)
        elif named and not out.elsewhere and noted is not None:
            storage.remove_tree(inside.elsewhere)
        yield out


@contextlib.contextmanager
def building(workspace: Workspace) -> Iterator[None]:
    """Keeps garbage collection out while a build runs; waits while one is running.

    Builds do not keep each other out. Where no lock can be held, on object stores and on
    filesystems without locks, a marker says so; where nothing may be written, nothing does.

    Raises:
        StorageError: if the workspace cannot be made.
    """
    with contextlib.ExitStack() as closing:
        if not storage.is_local(workspace.root):
            closing.enter_context(_marking(workspace))
        elif (descriptor := _open_lock(workspace)) is not None:
            closing.callback(os.close, descriptor)
            lock = join(workspace.root, LOCK)
            try:
                with waiting_to(f"lock {lock}, which `snapshard gc` may hold"):
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
            except OSError:
                closing.enter_context(_marking(workspace))
        yield


@contextlib.contextmanager
def alone(workspace: Workspace, *, write: bool = True) -> Iterator[bool | None]:
    """Keeps builds out, without waiting.

    Args:
        workspace: The workspace to have alone.
        write: False makes nothing: where no build ever was, one may begin meanwhile.

    Yields:
        True where no build is at work and none will begin; False where one is; None where that
        is unknown.

    Raises:
        StorageError: if the workspace cannot be made.
    """
    if not storage.is_local(workspace.root):
        yield False if _is_marked(workspace) else None
        return
    with contextlib.ExitStack() as closing:
        makes = write or storage.exists(join(workspace.root, LOCK))
        # A folder shows as well whether locks work there, so that a dry run tells what a real one
        # would do.
        descriptor = _open_lock(workspace) if makes else _open_folder(workspace)
        held: bool | None = None
        if descriptor is not None:
            closing.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except OSError as error:
                held = False if error.errno == errno.EWOULDBLOCK else None
        yield False if held is None and _is_marked(workspace) else held


@contextlib.contextmanager
def _marking(workspace: Workspace) -> Iterator[None]:
    """Leaves a marker, renews it while the body runs, and removes it at the end."""
    marker = join(workspace.root, MARKERS, uuid.uuid4().hex)
    ended = threading.Event()

    def mark() -> None:
        # Who may not write here builds nothing, and one marker that is late is no harm.
        with contextlib.suppress(StorageError):
            storage.put_bytes(marker, b"")

    @unnoticed()
    def renew() -> None:
        while not ended.wait(_RENEWAL_S):
            mark()

    mark()
    thread = threading.Thread(target=renew, name="mark_building", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(StorageError):
            storage.remove_tree(marker)


def _is_marked(workspace: Workspace) -> bool:
    """Whether there is a recent marker of a build."""
    folder = join(workspace.root, MARKERS)
    limit = time.time_ns() - SAFE_AGE_S * 10**9
    times = [_modified_ns(join(folder, name)) for name in storage.list_names(folder)]
    return any(modified is None or modified > limit for modified in times)


def _modified_ns(url: str) -> int | None:
    """When a file was last written; 0 if it is missing, None if the store does not say."""
    with storage.failing_as_storage_error("read", url):
        try:
            if storage.is_local(url):
                return os.lstat(storage.local_path(url)).st_mtime_ns
            filesystem, path = storage.filesystem(url)
            return modified_ns(filesystem.info(path))
        except FileNotFoundError as error:
            if not storage.is_missing(error):
                raise
            return 0


def _open_folder(workspace: Workspace) -> int | None:
    root = storage.local_path(workspace.root)
    for folder in (root, os.path.dirname(root)):
        with contextlib.suppress(OSError):
            return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    return None


def _open_lock(workspace: Workspace) -> int | None:
    """Opens the file that locks are held on; None if that is not permitted."""
    root = storage.local_path(workspace.root)
    path = join(root, LOCK)
    with storage.failing_as_storage_error("write", workspace.root):
        try:
            storage.make_folders(root)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        try:
            return os.open(path, os.O_RDONLY)
        except OSError:
            return None
