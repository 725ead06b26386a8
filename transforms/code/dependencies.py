"""Files and values that a recipe depends on: named in ``depends_on``, or by paths in its code.

They enter the fingerprint by content. A process that uses them checks, before its result is kept,
that every file is still the one that was hashed.

Other files that the user's functions open are refused. A Python audit hook sees each file that
Python code opens while a user's function runs or the user's modules are loaded. It cannot see what
C code opens itself (``cv2.imread``), what other processes read, sizes and times of files, or
environment variables. TensorFlow operations that read files are found in the traced graph.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import importlib.util
import linecache
import os
import sys
import sysconfig
import threading
import urllib.parse
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, NoReturn

from ...schemas.errors import RecipeError, StorageError
from ...schemas.fingerprint import digest
from ...schemas.recipe import Recipe, StepTraits
from .. import storage
from ..storage.opened_source import open_source
from ..storage.unchanged import Identity, file_digest, identity_of
from .digest import CodeHashes, CodeWalk, functions_of
from .user_code import PACKAGE, is_user_file, is_users_class

_CHUNK_BYTES = 4 << 20

_SYSTEM = ("/bin/", "/dev/", "/etc/", "/lib", "/proc/", "/sbin/", "/sys/", "/usr/")
_IN_MEMORY = "/dev/shm/"
_LIBRARIES = tuple(
    sorted(
        {
            os.path.realpath(path) + os.sep
            for path in (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values())
        }
    )
)
_MAX_WRITTEN = 10_000
_SCRATCH = ("tempfile.mkdtemp", "tempfile.mkstemp")
_EVENTS = frozenset({"open", "sqlite3.connect", *_SCRATCH})
_STANDARD = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_OUR_THREADS = frozenset({PACKAGE, "apache_beam", "grpc", "tensorflow"})
"""Packages that run threads of their own, not those of a user's function."""

_LOCK = threading.Lock()
_INSTALLED = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dependencies:
    """What a recipe depends on in addition to its source; plain data that reaches every worker.

    Attributes:
        entries: Name and digest of each entry of ``depends_on``, in order.
        files: The sha256 or digest of each file, by absolute path or by URL.
    """

    entries: tuple[tuple[str, str], ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def hold(self) -> HeldFiles:
        """Checks the files against their hashes, in this process, from now on.

        Raises:
            StorageError: if one is missing or its content differs.
        """
        return HeldFiles(self.files)


class HeldFiles:
    """Files that must not change after they were hashed."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """Compares each file's content with its hash.

        Raises:
            StorageError: if one is missing or its content differs.
        """
        self._identities: dict[str, object] = {}
        for name, expected in files.items():
            before = _identity(name)
            if before is None or _digest_of(name) != expected or _identity(name) != before:
                _refuse_changed(name)
            self._identities[name] = before
        self.paths = frozenset(os.path.realpath(name) for name in files if not _is_remote(name))
        """The local files, with links resolved."""

    def check(self) -> None:
        """Compares device, inode, size and times of each file with the recorded ones.

        Raises:
            StorageError: naming the file that changed.
        """
        for name, identity in self._identities.items():
            if _identity(name) != identity:
                _refuse_changed(name)


def read_dependencies(recipe: Recipe, code: CodeHashes) -> Dependencies:
    """Hashes what a recipe depends on in addition to its source.

    Args:
        recipe: The recipe.
        code: The hashes of its functions.

    Raises:
        RecipeError: if a file does not exist or cannot be read, or a value cannot be hashed.
        StorageError: if a store fails.
    """
    entries: list[tuple[str, str]] = []
    files: dict[str, str] = {}
    opaque: list[str] = []
    for index, item in enumerate(recipe.depends_on):
        if isinstance(item, str | os.PathLike):
            name, content, digests = _read_entry(os.fspath(item), recipe.folder)
            files |= digests
        else:
            walk = CodeWalk(recipe.folder)
            name, content = f"value {index + 1}", walk.digest(item, name=f"depends_on[{index}]")
            files |= walk.files
        entries.append((name, content))
    for function in functions_in(recipe):
        hashed = code.function(function)
        files |= hashed.files
        opaque += (f"{name_of(function)} uses {use}" for use in hashed.opaque)
    if opaque:
        loaded = _read_loaded(recipe, opaque[0])
        added = ((sha, _named(path, recipe)) for path, sha in loaded.items() if path not in files)
        # By content: the location of a project does not count.
        entries += ((name, sha256) for sha256, name in sorted(added))
        files |= loaded
    return Dependencies(entries=tuple(entries), files=files)


def _read_loaded(recipe: Recipe, opaque: str) -> dict[str, str]:
    """The files that the recipe's code opened while it was loaded, and their hashes.

    An object that cannot be inspected may have been made from any of them.

    Args:
        recipe: A recipe with such an object.
        opaque: Names the function and the object.

    Raises:
        RecipeError: if its loading was not observed, or a file has changed since.
    """
    if recipe.loaded_files is None:
        raise RecipeError(
            f"{opaque}: its content cannot be hashed, and the files it is made from are known only "
            "if a recipe is loaded from a file. Make it inside the function, decorated with "
            "functools.cache, and name its files in ss.Recipe(depends_on=[…]); or put the recipe "
            "into a file of its own and run snapshard build recipe.py."
        )
    digests = {}
    for path, identity in sorted(recipe.loaded_files.items()):
        if is_of_machine(path) or (identity is None and identity_of(path) is None):
            continue
        if identity is not None and identity_of(path) == identity:
            digests[path] = file_digest(path)
        if identity_of(path) != identity:
            raise RecipeError(
                f"{opaque}, which is made while the recipe is loaded, and {path}, which was read "
                "then, has changed since. Start the build again to reload the recipe."
            )
    return digests


def _named(path: str, recipe: Recipe) -> str:
    """A file's name for a person: relative to the recipe's folder if it is inside."""
    inside = os.path.relpath(path, os.path.abspath(recipe.folder))
    return path if inside.startswith("..") else inside.replace(os.sep, "/")


def functions_in(recipe: Recipe) -> Iterator[Any]:
    """The user's functions and steps in a recipe."""
    for step in recipe.prepare:
        yield from StepTraits.of(step).functions
        if callable(step) or is_users_class(type(step)):
            yield step
    yield from functions_of(recipe.source)
    if recipe.preprocessing_fn is not None:
        yield recipe.preprocessing_fn


def _read_entry(text: str, folder: str) -> tuple[str, str, dict[str, str]]:
    """The name and digest of a file, folder or glob, and the files in it."""
    if not storage.is_local(text):
        return storage.redact(text), _remote_digest(text), {text: _remote_digest(text)}
    path = os.path.join(os.path.abspath(folder), os.path.expanduser(storage.local_path(text)))
    path = os.path.normpath(path)
    inside = os.path.relpath(path, os.path.abspath(folder))
    name = text if inside.startswith("..") else inside.replace(os.sep, "/")
    if os.path.isfile(path):
        content = file_digest(path)
        return name, content, {path: content}
    if os.path.isdir(path):
        root, below = path, [os.path.join(top, n) for top, _, ns in os.walk(path) for n in ns]
    else:
        root, below = os.path.abspath(folder), glob.glob(path, recursive=True)
    files = {file: file_digest(file) for file in sorted(below) if os.path.isfile(file)}
    if not files:
        kind = "holds no file" if os.path.isdir(path) else "does not exist"
        raise RecipeError(
            f"Recipe: depends_on names {text!r}, which {kind} (looked for {path}). Correct the "
            "path; a relative path is relative to the recipe's folder. Write a text value "
            'as ("text",).'
        )
    listed = [[os.path.relpath(file, root), sha256] for file, sha256 in files.items()]
    return name, digest(listed), files


def _is_remote(name: str) -> bool:
    return not storage.is_local(name)


def _digest_of(name: str) -> str:
    return _remote_digest(name) if _is_remote(name) else file_digest(name)


def _identity(name: str) -> object:
    """Changes with a file's content; None if there is no file."""
    if not _is_remote(name):
        return identity_of(name)
    try:
        listed = open_source(name, ".").list()
    except RecipeError:
        return None
    stamps = [(file.path, file.num_bytes, file.stamp) for file in listed]
    # If a store reports no version of a file, the file must be read.
    return stamps if all(file.stamp for file in listed) else _remote_digest(name)


def _remote_digest(url: str) -> str:
    """The digest of the files of a URL: of one its sha256, of several also their names."""
    try:
        opened = open_source(url, ".")
    except RecipeError:
        raise RecipeError(
            f"Recipe: depends_on names {storage.redact(url)}, which does not exist. Correct the "
            "URL."
        ) from None
    hashes = []
    for file in opened.list():
        total = hashlib.sha256()
        for chunk in opened.chunks(file.path, chunk_bytes=_CHUNK_BYTES):
            total.update(chunk)
        hashes.append([file.path, total.hexdigest()])
    return str(hashes[0][1]) if opened.single else digest(hashes)


def _refuse_changed(name: str) -> NoReturn:
    raise StorageError(
        f"{storage.redact(name)}, which the recipe depends on, changed while the build ran, or is "
        "missing on this machine. Nothing was published. Wait until nothing writes there, then "
        "start the build again."
    )


class _Reads:
    """What one function has opened, in any thread."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        """Files read since the last check."""
        self.unseen = ""
        """What reads files that are known only at run time and that the hook cannot see."""
        self.written: dict[str, None] = {}
        """Its own files and folders, the oldest first."""

    def is_own(self, path: str) -> bool:
        """Whether the function wrote a file, or made a folder above it."""
        while path not in self.written:
            above = os.path.dirname(path)
            if above == path:
                return False
            path = above
        return True

    def note_read(self, path: str, frame: FrameType | None) -> None:
        """Notes a file that the function opens, unless that is part of an import."""
        if path not in self.paths and not _is_for_code(path, frame):
            self.paths.add(path)

    def note_written(self, path: str) -> None:
        """Notes a file or folder that the function makes; only the last ones of very many."""
        self.written[path] = None
        while len(self.written) > _MAX_WRITTEN:
            del self.written[next(iter(self.written))]


class _Loading(_Reads):
    """What the user's code opens while the user's modules are loaded."""

    def __init__(self, found: dict[str, Identity | None]) -> None:
        super().__init__()
        self.found = found

    def note_read(self, path: str, frame: FrameType | None) -> None:
        """Notes a file and its identity if the user's code opens it, not a library's import."""
        if path not in self.found and _is_opened_by_user(path, frame):
            self.found[path] = identity_of(path)


_READS: dict[int, tuple[Any, _Reads]] = {}
"""Keyed by the identity of the function; with the function, or a weak reference to it."""
_NOW: dict[int, tuple[_Reads | None, str]] = {}
"""By thread: whose opened files are noted, and the file of the current record."""


class running:
    """Context in which this thread runs a user's function, and the files that it opens are noted.

    Files opened by threads that the function started are noted too. ``None`` as the function means
    that this package's own code runs in between.
    """

    def __init__(self, function: Any, *, own: str = "") -> None:
        """``own`` is the path of the current record's file, which the function may open."""
        self._reads = None if function is None else _reads_of(function)
        self._own = own

    @classmethod
    def loading(cls, found: dict[str, Identity | None]) -> running:
        """Context in which this thread loads the user's modules.

        Files that their code opens are added to ``found``, with their identity at that time.
        """
        _install()
        made = cls(None)
        made._reads = _Loading(found)
        return made

    def __enter__(self) -> None:
        thread = threading.get_ident()
        self._before = _NOW.get(thread)
        _NOW[thread] = self._reads, self._own

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del _NOW[threading.get_ident()]
        else:
            _NOW[threading.get_ident()] = self._before
        if isinstance(self._reads, _Loading):
            # Cached lines of these files would not be read again when a function needs them. Those
            # of a module that ran have no time and stay.
            for name, entry in list(linecache.cache.items()):
                if os.path.abspath(name) in self._reads.found and entry[1:2] != (None,):
                    linecache.cache.pop(name, None)


def note_path(function: Any, path: str) -> None:
    """Notes a file that a function will open where the hook cannot see it."""
    _reads_of(function).paths.add(os.path.abspath(path))


def note_unseen(function: Any, what: str) -> None:
    """Notes that a function opens files that are known only at run time and cannot be seen."""
    _reads_of(function).unseen = what


def refuse_undeclared(
    functions: Iterable[Any], declared: Collection[str], *, folder: str = ""
) -> None:
    """Refuses functions that opened files which the fingerprint does not cover.

    Args:
        functions: The functions of a recipe.
        declared: Paths, with links resolved, of the files that it covers.
        folder: The recipe's folder: messages name files relative to it.

    Raises:
        RecipeError: naming the function and the file.
    """
    for function in functions:
        _, reads = _READS.get(id(function), (None, None))
        if reads is None:
            continue
        if reads.unseen and not declared:
            raise RecipeError(
                f"{name_of(function)} reads files in {reads.unseen}: which ones is unknown "
                "before it runs, and a change to one would go unnoticed. Name them, or their "
                'folders, in the recipe: ss.Recipe(depends_on=["masks/", …]).'
            )
        paths, reads.paths = reads.paths, set()
        for path in sorted(paths):
            if _is_covered(path, declared):
                continue
            raise RecipeError(
                f"{name_of(function)} opened {path}, which the fingerprint does not cover: a "
                "change to that file would go unnoticed, and old results would be reused. "
                "Name it, or its folder, in the recipe: "
                f"ss.Recipe(depends_on=[{_named_from(path, folder)!r}, …]). Paths are relative to "
                "the recipe's folder."
            )


def _named_from(path: str, folder: str) -> str:
    """How ``depends_on`` names a file's folder; in the recipe's own folder, the file itself."""
    if not folder:
        return path
    relative = os.path.relpath(path, os.path.abspath(folder))
    above = os.path.dirname(relative)
    return relative if above in ("", ".", "..") or above.endswith("..") else above + "/"


def name_of(function: Any) -> str:
    """The name of a function or step, for messages."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _is_covered(path: str, declared: Collection[str]) -> bool:
    return os.path.realpath(path) in declared or is_of_machine(path) or not os.path.isfile(path)


def is_of_machine(path: str) -> bool:
    """Whether a file belongs to the system or to installed libraries."""
    real = os.path.realpath(path)
    if real.startswith(_LIBRARIES):
        return True
    return real.startswith(_SYSTEM) and not real.startswith(_IN_MEMORY)


def _install() -> None:
    global _INSTALLED
    with _LOCK:
        if not _INSTALLED:
            sys.addaudithook(audit_hook)
            _INSTALLED = True


def _reads_of(function: Any) -> _Reads:
    key = id(function)
    known = _READS.get(key)
    if known is not None:
        return known[1]
    _install()
    with _LOCK:
        try:
            held: Any = weakref.ref(function, lambda _: _READS.pop(key, None))
        except TypeError:
            held = function
        return _READS.setdefault(key, (held, _Reads()))[1]


def audit_hook(event: str, args: tuple[Any, ...]) -> None:
    """Notes a file that is opened while a function of the recipe runs."""
    # Called for every event of the process: irrelevant events must cost nothing. At exit, Python
    # replaces this module's names with None.
    if not _NOW or event not in _EVENTS:
        return
    now = _NOW.get(threading.get_ident())
    if now is not None:
        if now[0] is not None:
            _note(now[0], now[1], event, args)
    elif threading.get_ident() != threading.main_thread().ident and _is_users_thread(
        sys._getframe(1)
    ):
        for reads, own in list(_NOW.values()):
            if reads is not None:
                _note(reads, own, event, args)


def _is_users_thread(frame: FrameType | None) -> bool:
    """Whether a thread that runs no function itself was started by one, for example by a pool.

    A thread in which this package is at work belongs to another build, or reads a record's file.
    """
    lowest = ""
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_STANDARD) or "-packages" + os.sep in path:
            lowest = str(frame.f_globals.get("__name__")).partition(".")[0]
            if lowest == PACKAGE and not is_user_file(path):
                return False
        frame = frame.f_back
    return lowest not in _OUR_THREADS


def _note(reads: _Reads, own: str, event: str, args: tuple[Any, ...]) -> None:
    given, flags = args[0], args[2] if event == "open" else 0
    if not isinstance(given, str | bytes | os.PathLike):
        return
    name = os.fsdecode(given)
    if event == "sqlite3.connect" and name.startswith("file:"):
        name = urllib.parse.unquote(urllib.parse.urlsplit(name).path)
    path = _source_of(os.path.abspath(name))
    if event == "open" and args[1] is None and not os.path.isabs(name):
        path = _below_open_folder(name) or path
    if event in _SCRATCH:
        reads.note_written(path)
        return
    if flags & (os.O_TRUNC | os.O_EXCL) or flags & os.O_ACCMODE == os.O_WRONLY:
        # NamedTemporaryFile "opens" its folder, with an opener that makes the file.
        if not os.path.isdir(path):
            reads.note_written(path)
        return
    if not (own and _is_same(path, own)) and not reads.is_own(path):
        reads.note_read(path, sys._getframe(2))


def _below_open_folder(name: str) -> str:
    """The file with a relative name in a folder that this process has open, or an empty string.

    ``os.open(name, flags, dir_fd=…)`` does not report which folder it means.
    """
    try:
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    except OSError:
        return ""
    # Sorted: of several, the same one is reported each time.
    folders = sorted(os.path.realpath(link) for link in links if os.path.isdir(link))
    found = (os.path.join(folder, name) for folder in folders)
    return next((os.path.normpath(path) for path in found if os.path.isfile(path)), "")


def _source_of(path: str) -> str:
    """The module that bytecode was compiled from; other paths unchanged."""
    if not path.endswith(".pyc"):
        return path
    try:
        source = importlib.util.source_from_cache(path)
    except ValueError:
        return path
    return source if os.path.isfile(source) else path


def _is_same(path: str, own: str) -> bool:
    if path == own:
        return True
    try:
        return os.path.samefile(path, own)
    except OSError:
        return False


def _is_for_code(path: str, frame: FrameType | None) -> bool:
    """Whether a file is opened by an import statement, or to read a module's source.

    Only the names that a recipe uses from a module are hashed; files that it reads while it is
    imported count by the values made of them. A module that a function loads from a path
    (``spec_from_file_location``) is a file it opens.
    """
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] == PACKAGE and not is_user_file(frame.f_code.co_filename):
            return False
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") and code.co_name == "_find_and_load":
            return True
        if _is_source_shown(path, frame):
            return True
        frame = frame.f_back
    return False


def _is_opened_by_user(path: str, frame: FrameType | None) -> bool:
    """Whether the user's own code opens a file, directly or through a library."""
    while frame is not None:
        code = frame.f_code
        if is_user_file(code.co_filename):
            return True
        if code.co_filename.startswith("<frozen importlib") and code.co_name == "_find_and_load":
            return False
        if str(frame.f_globals.get("__name__")).partition(".")[0] == PACKAGE:
            return False
        if _is_source_shown(path, frame):
            return False
        frame = frame.f_back
    return True


def _is_source_shown(path: str, frame: FrameType) -> bool:
    """Whether a library reads a module's source, for example for a traceback."""
    if frame.f_globals.get("__name__") != "linecache" or not path.endswith(".py"):
        return False
    asks: FrameType | None = frame
    while asks is not None and asks.f_globals.get("__name__") == "linecache":
        asks = asks.f_back
    return asks is None or not is_user_file(asks.f_code.co_filename)
