"""A published snapshot: its folder, its manifest, its reader, and its files.

Only regular files are opened: reading a pipe in place of a shard would never end.
"""

from __future__ import annotations

import atexit
import dataclasses
import errno
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import logging
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import types
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..schemas.errors import DamagedSnapshotError, RecipeError, StorageError
from ..schemas.features import features_to_json
from ..schemas.fingerprint import canonical_json
from ..schemas.manifest import Manifest, json_checksum
from ..schemas.naming import (
    BUILD,
    FINGERPRINT,
    LATEST,
    MANIFEST,
    READER,
    READER_FACTS,
    STATISTICS,
    WORKSPACE,
    ShardName,
    is_reader_file,
    join,
)
from ..transforms import storage

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    from .display import Shown
    from .frame import Statistics
    from .records import Record

_is_fingerprint = FINGERPRINT.fullmatch
_OLD_FILE = "reader.py"
_ALIAS = "snapshard_reader_"
"""Prefix of the names of imported readers."""
_VERIFY = "Run `snapshard verify` to find all damage."
CHUNK_BYTES = 16 << 20
_BYTECODE = "__pycache__"
"""Python creates it when a trainer imports the reader from the snapshot."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A directory with a manifest.

    Attributes:
        path: Its folder, a local path or URL.
        manifest: What it holds.
        cached: Whether the build that returned it found it published already.
    """

    path: str
    manifest: Manifest
    cached: bool = False

    def __repr__(self) -> str:
        sample = [] if self.manifest.limit is None else ["SAMPLE"]
        counts = [f"{name}={split.num_examples}" for name, split in self.manifest.splits.items()]
        return f"Snapshot({', '.join([repr(storage.redact(self.path)), *sample, *counts])})"

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Snapshot:
        """Opens a snapshot, or the latest one where ``path`` is a folder of snapshots.

        Args:
            path: A snapshot's folder, the folder of one name, or an output root that holds one
                name; a local path or URL.

        Raises:
            RecipeError: if there is none at this place, or several names.
            DamagedSnapshotError: if its manifest is missing or cannot be read.
        """
        folder = locate(path)
        where = storage.redact(join(folder, MANIFEST))
        return cls(folder, Manifest.from_bytes(manifest_bytes(folder), where=where))

    def to_pandas(self, split: str | None = None, num: int = 1000) -> pd.DataFrame:
        """The first records of a split as a table to look at; loads no TensorFlow.

        Records are stored in random order, so the first are a random sample. The index is the id
        of each record. Classes are a categorical of their names, times in UTC; a missing value is
        missing. Lists, tensors, sounds and pixels are arrays (strings in them are bytes), encoded
        images the bytes of a file.

        Args:
            split: A split or a part of one, such as "train[:10%]"; by default
                :attr:`main_split`.
            num: The maximum number of records.

        Raises:
            RecipeError: if there is no such split, or pandas is not installed.
        """
        from .frame import to_pandas

        return to_pandas(self.records(split, num=num), self.manifest.features)

    def show(
        self,
        split: str | None = None,
        num: int = 10,
        *,
        ids: Collection[str] = (),
        label: str | None = None,
    ) -> Shown:
        """Records to look at: in a notebook a table with pictures, otherwise text.

        Args:
            split: As in :meth:`records`, like the next three.
            num: The maximum number.
            ids: Only these, if any are given.
            label: Only those of this class.

        Raises:
            RecipeError: if there is no such split or class, or one of the ids is not in the split.
        """
        from .display import Shown

        found = self.records(split, num=len(ids) or num, ids=ids, label=label)
        return Shown([*found], self.manifest.features)

    def _repr_html_(self) -> str:
        from .display import snapshot_html

        return snapshot_html(storage.redact(self.path), self.manifest)

    def records(
        self,
        split: str | None = None,
        *,
        num: int | None = None,
        ids: Collection[str] = (),
        label: str | None = None,
    ) -> Iterator[Record]:
        """Reads records in stored order, one by one, without TensorFlow: to look at them.

        Args:
            split: A split or a part of one, such as "train[-10:]"; by default
                :attr:`main_split`.
            num: The maximum number; None for all. The first ones are a random sample.
            ids: Only these, if any are given.
            label: Only those of this class.

        Raises:
            RecipeError: if there is no such split or class, or one of the ids is not in the split.
            DamagedSnapshotError: if a shard or its index is damaged.
            StorageError: if a file cannot be read.
        """
        from .records import read_records

        if num is not None and (isinstance(num, bool) or not isinstance(num, int) or num < 0):
            raise RecipeError(f"num={num!r}, expected a number of records such as 1000.")
        asked = self.main_split if split is None else split
        return read_records(
            self.path, self.manifest, self.reader(), asked, num=num, ids=ids, label=label
        )

    @functools.cached_property
    def statistics(self) -> Statistics | None:
        """Figures of each feature by split; None if the snapshot is of an older version.

        Raises:
            DamagedSnapshotError: if they are not such as the build wrote.
            StorageError: if they cannot be read.
        """
        entry = self.manifest.files.get(STATISTICS)
        if entry is None:
            return None
        from .frame import Statistics, damaged_statistics

        with storage.losses_as_damage():
            content = storage.read_bytes(join(self.path, STATISTICS))
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise damaged_statistics("its SHA-256 is not that of the manifest")
        return Statistics(json.loads(content))

    def to_json(self) -> dict[str, Any]:
        """What it holds and how it was made, as plain JSON: without the lists of its files."""
        manifest = self.manifest.model_dump(mode="json", exclude={"files", "checksum"})
        facts = build_facts(self.path)
        known = ("metadata", "near_duplicates", "started", "runner", "seconds", "input", "not_tfds")
        splits = {
            name: {
                "num_examples": split.num_examples,
                "num_bytes": split.num_bytes,
                "num_shards": len(split.shards),
                "label_counts": split.label_counts,
            }
            for name, split in self.manifest.splits.items()
        }
        return {
            "path": self.path,
            **manifest,
            "features": features_to_json(self.manifest.features),
            "splits": splits,
            "num_files": len(self.manifest.files),
            "num_bytes": sum(entry.bytes for entry in self.manifest.files.values()),
            "build": {name: facts[name] for name in known if name in facts},
        }

    @property
    def main_split(self) -> str:
        """The split that tools read by default: "train" if it has examples, else the largest."""
        sizes = {name: split.num_examples for name, split in self.manifest.splits.items()}
        return "train" if sizes.get("train") else max(sizes, key=sizes.__getitem__)

    def reader(self) -> types.ModuleType:
        """Imports the snapshot's reader, as a module of its own each time.

        Its functions read this snapshot, wherever it is.

        Raises:
            DamagedSnapshotError: if one of its files is missing or damaged.
            StorageError: if it cannot be read.
        """
        if storage.is_local(self.path):
            return _imported(storage.local_path(self.path), self.manifest)
        folder = tempfile.mkdtemp(prefix="snapshard-reader-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        fetch_reader(self, folder)
        module = _imported(folder, self.manifest)
        for name in ("dataset", "steps", "files", "preprocess"):
            if (function := getattr(module, name, None)) is not None:
                setattr(module, name, _reading(function, self.path))
        return module


def load(path: str | os.PathLike[str]) -> Snapshot:
    """Opens a snapshot, or the latest one of a name, and logs its fingerprint at level INFO.

    ``snapshard.load("out/name").reader()`` follows each new build. A trainer without snapshard
    imports ``out/name/reader.py`` to the same effect.

    Args:
        path: See :meth:`Snapshot.open`, which this calls.

    Raises:
        RecipeError: if there is none at this place, or several names.
        DamagedSnapshotError: if its manifest is missing or cannot be read.
    """
    snapshot = Snapshot.open(path)
    logging.getLogger(__name__).info("loaded %r", snapshot)
    return snapshot


def build_facts(folder: str) -> dict[str, Any]:
    """The content of a snapshot's ``build.json``; empty if it is missing or damaged."""
    try:
        facts = json.loads(storage.read_bytes(join(folder, BUILD)))
        canonical_json(facts)
    except (StorageError, ValueError, TypeError, RecursionError):
        return {}
    known = isinstance(facts, dict) and isinstance(facts.get("fingerprint_parts"), dict)
    # An edited file may have any form.
    return facts if known and facts.get("checksum") == json_checksum(facts) else {}


def fetch_reader(snapshot: Snapshot, folder: str) -> None:
    """Copies the files of a snapshot's reader into a local folder, under their names.

    Raises:
        StorageError: if one cannot be read.
    """
    for name in snapshot.manifest.files:
        if is_reader_file(name) or name == STATISTICS:
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file, storage.losses_as_damage():
                file.write(storage.read_bytes(join(snapshot.path, name)))


def reader_file_of(files: Iterable[str]) -> str:
    """The file by which a snapshot's reader is known: an older snapshot has ``reader.py``."""
    return _OLD_FILE if _OLD_FILE in files and READER_FACTS not in files else READER_FACTS


def _reading(function: Callable[..., Any], root: str) -> Callable[..., Any]:
    """A function of a reader, which takes another default for ``root``."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def reads(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind_partial(*args, **kwargs)
        if given.arguments.get("root") is None:
            given.arguments["root"] = root
        return function(*given.args, **given.kwargs)

    return reads


class _Uncached(importlib.machinery.SourceFileLoader):
    """Loads modules of a snapshot, and writes no ``__pycache__`` into it."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Keeps no bytecode."""


class _ReaderFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of readers that ``Snapshot.reader`` imported."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module of such a package; None for all other modules."""
        if not fullname.startswith(_ALIAS) or path is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Uncached(fullname, spec.origin)
        return spec


def _imported(folder: str, manifest: Manifest) -> types.ModuleType:
    """The reader that is in a local folder, under a name that no other has."""
    path, locations = os.path.join(folder, _OLD_FILE), None
    if reader_file_of(manifest.files) == READER_FACTS:
        locations = [os.path.join(folder, READER)]
        path = os.path.join(folder, READER, "__init__.py")
    names = [name for name in manifest.files if is_reader_file(name)]
    files = {os.path.join(folder, name): manifest.files[name].sha256 for name in names}
    for file in (path, *files):
        if not os.path.exists(file):
            raise DamagedSnapshotError(f"{file} is missing. {_VERIFY}")
    alias = f"{_ALIAS}{manifest.fingerprint}_{uuid.uuid4().hex}"
    spec = importlib.util.spec_from_file_location(
        alias, path, loader=_Uncached(alias, path), submodule_search_locations=locations
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if not any(isinstance(finder, _ReaderFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ReaderFinder())
    if locations is not None:
        sys.modules[alias] = module  # its modules import each other
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(alias, None)
        for file, sha256 in files.items() if isinstance(error, Exception) else ():
            if hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest() != sha256:
                raise DamagedSnapshotError(
                    f"{file} is not what was written, and the reader cannot be imported: {error}. "
                    f"{_VERIFY}"
                ) from None
        raise
    return module


def manifest_bytes(folder: str) -> bytes:
    """The content of a snapshot's manifest.

    Raises:
        DamagedSnapshotError: if its path is occupied by something that is not a file.
        StorageError: if it cannot be read.
    """
    where = join(folder, MANIFEST)
    if storage.is_local(where):
        there = look_local(storage.local_path(where), os.path.realpath(storage.local_path(folder)))
        if there is not None and there.other is not None:
            raise DamagedSnapshotError(
                f"{where} is {there.other}, expected a file. Remove it and build again."
            )
    return storage.read_bytes(where)


def is_snapshot(path: str) -> bool:
    """Whether a path is a snapshot, or a folder with a pointer to the latest one."""
    if not path or "::" in path or "*" in path:
        return False
    return any(storage.exists(join(path, name)) for name in (MANIFEST, LATEST))


def read_latest(url: str) -> str:
    """The fingerprint that a ``latest.json`` names.

    Raises:
        DamagedSnapshotError: if it names none.
    """
    try:
        fingerprint = json.loads(storage.read_bytes(url))["fingerprint"]
    except (ValueError, KeyError, TypeError, RecursionError):
        fingerprint = None
    if not isinstance(fingerprint, str) or not _is_fingerprint(fingerprint):
        error = DamagedSnapshotError(
            f"{storage.redact(url)} names no fingerprint. A build replaces it."
        )
        error.file = storage.redact(url)
        raise error
    return fingerprint


def name_folders(folder: str) -> list[str]:
    """The folders of names at a place: itself, or those in it.

    Raises:
        RecipeError: if it is neither an output root nor the folder of a name.
        StorageError: if it cannot be listed.
    """
    if storage.is_local(folder) and not os.path.isdir(storage.local_path(folder)):
        names = []
    elif _is_name_folder(folder):
        names = [folder]
    else:
        inside = [join(folder, name) for name in storage.list_names(folder) if name != WORKSPACE]
        names = [path for path in inside if not is_link(path) and _is_name_folder(path)]
    if not names:
        raise RecipeError(
            f"{storage.redact(folder)} is neither an output root nor a folder of snapshots. Name "
            "the folder that was the --out of a build."
        )
    return names


def _is_name_folder(folder: str) -> bool:
    try:
        names = storage.list_names(folder)
    except StorageError:
        # A file beside the folders of names.
        return False
    return WORKSPACE in names or LATEST in names


def is_link(path: str) -> bool:
    """Whether this is a symbolic link on this machine."""
    return storage.is_local(path) and os.path.islink(storage.local_path(path))


def locate(path: str | os.PathLike[str]) -> str:
    """The folder of the snapshot at a path: see :meth:`Snapshot.open`.

    Raises:
        RecipeError: if there is none at this place, or several names.
        DamagedSnapshotError: if there is one without a manifest.
    """
    if not os.fspath(path):
        raise RecipeError("The path of the snapshot is empty.")
    return _find(storage.absolute(os.fspath(path)))


def _find(path: str) -> str:
    """The folder of the snapshot at a path."""
    shown = storage.redact(path)
    names = _names_in(path)
    if MANIFEST in names:
        return path
    if LATEST in names:
        return _latest_in(path)
    # What a build puts into a snapshot before its manifest, which is the commit.
    begun = BUILD in names or any(map(ShardName.parse, names))
    if not begun and READER in names:  # a recipe may have this name
        begun = storage.exists(join(path, READER_FACTS))
    if begun:
        raise DamagedSnapshotError(
            f"{shown} has no {MANIFEST}: either its build did not finish, or the file was removed. "
            "Run the same build again: it resumes."
        )
    inside = {name: set(names_inside(join(path, name))) for name in names if name != WORKSPACE}
    snapshots = sorted(name for name, below in inside.items() if MANIFEST in below)
    recipes = sorted(name for name, below in inside.items() if LATEST in below)
    sampled = sorted(name for name, below in inside.items() if any(map(_is_fingerprint, below)))
    candidates = snapshots or recipes or sampled
    if not candidates and (
        WORKSPACE in names or any(WORKSPACE in below for below in inside.values())
    ):
        raise RecipeError(
            f"{shown} holds no published snapshot: its build did not finish. Run the same build "
            "again: it resumes."
        )
    if not candidates:
        raise RecipeError(
            f"{shown} is not a snapshot: there is no {MANIFEST} in it. Give the folder that "
            "`snapshard build` printed, or the output root."
        )
    if len(candidates) > 1:
        listed = ", ".join(candidates[:20]) + (" …" if len(candidates) > 20 else "")
        raise RecipeError(
            f"{shown} holds several snapshots: {listed}. Name one of them: "
            f"{join(shown, candidates[0])}"
        )
    return join(path, candidates[0]) if snapshots else _find(join(path, candidates[0]))


def _latest_in(folder: str) -> str:
    fingerprint = read_latest(join(folder, LATEST))
    latest, pointer = join(folder, fingerprint), storage.redact(join(folder, LATEST))
    if not storage.exists(join(latest, MANIFEST)):
        raise DamagedSnapshotError(
            f"{pointer} names {fingerprint}, and no snapshot of that name is there. "
            "Build again, or give the folder of another snapshot."
        )
    return latest


def _names_in(path: str) -> list[str]:
    shown = storage.redact(path)
    try:
        names = storage.list_names(path)
    except StorageError as error:
        if not isinstance(error.__context__, NotADirectoryError):
            raise
        raise RecipeError(
            f"{shown} is a file, expected the folder of a snapshot. Give the folder that "
            "`snapshard build` printed."
        ) from None
    if not storage.is_local(path):
        # A store's listing may lag behind what was put.
        wanted = (name for name in (MANIFEST, LATEST) if name not in names)
        names += [name for name in wanted if storage.exists(join(path, name))]
    if not names and not storage.exists(path):
        raise RecipeError(
            f"{shown} does not exist. Give the folder that `snapshard build` printed."
        )
    return names


def names_inside(path: str) -> list[str]:
    """The names in a folder; none of a file, or of a folder of somebody else's."""
    try:
        return storage.list_names(path)
    except StorageError:
        return []


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundFile:
    """What a name refers to."""

    num_bytes: int = 0
    other: str | None = None
    """Its kind, if it is not a regular file: "a folder", "a link to /x (nothing is there)"."""
    outside: str | None = None
    """Its target, if a link leads out of the snapshot."""
    trouble: str | None = None
    """Why it cannot be examined."""


class SnapshotFiles:
    """The files of one snapshot. Counts the bytes that are read."""

    def __init__(self, folder: str) -> None:
        """``folder`` is a local path or URL; nothing is read yet."""
        self.folder = folder
        self.num_bytes_read = 0

    def look(self, names: Iterable[str]) -> tuple[dict[str, FoundFile], list[str], list[str]]:
        """Looks for files.

        Args:
            names: Those that should be there, relative to the folder.

        Returns:
            The files of these names that exist; the names of other files; and
            the folders that cannot be listed.

        Raises:
            StorageError: if a store cannot be listed.
        """
        if not storage.is_local(self.folder):
            return self._look_remote(list(names))
        root = storage.local_path(self.folder)
        real = os.path.realpath(root)
        wanted = list(names)
        present = {}
        for name in wanted:
            there = look_local(os.path.join(root, name), real)
            if there is not None:
                present[name] = there
        parents = {name[:end] for name in wanted for end in _slashes(name)}
        others: list[str] = []
        refused: list[str] = []
        for name in _walk(root, refused):
            if name not in present and name not in parents and _matters(name):
                others.append(name)
        return present, sorted(others), sorted(refused)

    def _look_remote(self, names: list[str]) -> tuple[dict[str, FoundFile], list[str], list[str]]:
        listed = storage.sizes(self.folder)
        sizes = {name: size for name, size in listed.items() if not name.endswith("/")}
        for name in names:
            # A listing may lag behind what was put.
            if name not in sizes and (size := storage.size_of(join(self.folder, name))) is not None:
                sizes[name] = size
        files = {name: FoundFile(num_bytes=sizes[name]) for name in names if name in sizes}
        folders = {name[:end] for name in sizes for end in _slashes(name)}
        files |= {name: FoundFile(other="a folder") for name in names if name in folders}
        return files, sorted(name for name in sizes if name not in files and _matters(name)), []

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Reads bytes [start, stop) of a file, to its end without a stop.

        Raises:
            StorageError: if it cannot be read.
        """
        content = storage.read_bytes(join(self.folder, name), start, stop)
        self.num_bytes_read += len(content)
        return content

    def sha256(self, name: str, num_bytes: int) -> str:
        """The hash, in hex, of a file of so many bytes; memory stays flat.

        Raises:
            StorageError: if it cannot be read.
        """
        hasher = hashlib.sha256()
        for start in range(0, num_bytes, CHUNK_BYTES):
            hasher.update(self.read(name, start, min(num_bytes, start + CHUNK_BYTES)))
        return hasher.hexdigest()


def _slashes(name: str) -> list[int]:
    return [at for at, letter in enumerate(name) if letter == "/"]


def _matters(name: str) -> bool:
    parts = name.split("/")
    return _BYTECODE not in parts[:-1] and not storage.TEMPORARY.fullmatch(parts[-1])


def look_local(path: str, root: str) -> FoundFile | None:
    """The file at a local path in a snapshot's folder, links resolved; None if there is none.

    Args:
        path: The path.
        root: The folder, links resolved.
    """
    try:
        there = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):
            return FoundFile(other=f"a link to {os.readlink(path)} (nothing is there)")
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # nothing can have such a name
            return None
        return FoundFile(trouble=str(error.strerror))
    except ValueError:
        # The filesystem cannot have such a name.
        return None
    real = os.path.realpath(path)
    outside = None if os.path.commonpath([real, root]) == root else real
    other = None
    if not stat.S_ISREG(there.st_mode):
        other = _KINDS.get(stat.S_IFMT(there.st_mode), "no file")
    return FoundFile(num_bytes=there.st_size, other=other, outside=outside)


def _walk(root: str, refused: list[str]) -> Iterable[str]:
    """The names of everything below a folder except folders; links are not followed."""

    def note(error: OSError) -> None:
        refused.append(os.path.relpath(str(error.filename), root))

    for folder, below, names in os.walk(root, onerror=note):
        links = [name for name in below if os.path.islink(os.path.join(folder, name))]
        for name in (*names, *links):
            yield os.path.relpath(os.path.join(folder, name), root)
