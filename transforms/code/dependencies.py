"""Files and values that a recipe depends on: named in ``depends_on``, or by paths in its code.

They enter the fingerprint by content. A process that uses them checks, before its result is kept,
that every file is still the one that was hashed.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from ...schemas.errors import RecipeError, StorageError
from ...schemas.fingerprint import digest
from ...schemas.recipe import Recipe
from ...schemas.step_traits import StepTraits
from .. import storage
from ..storage.local_files import file_digest, identity_of
from ..storage.opened_source import open_source
from .digest import CodeWalk, functions_of
from .names import is_users_class
from .user_reads import is_of_machine, name_of

_CHUNK_BYTES = 4 << 20


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


def read_dependencies(recipe: Recipe) -> Dependencies:
    """Hashes what a recipe depends on in addition to its source.

    Raises:
        RecipeError: if a file does not exist or cannot be read, or a value cannot be hashed.
        StorageError: if a store fails.
    """
    entries: list[tuple[str, str]] = []
    files: dict[str, str] = {}
    opaque: list[str] = []
    for index, item in enumerate(recipe.depends_on):
        if isinstance(item, str | os.PathLike):
            name, content, found = _read_entry(os.fspath(item), recipe.folder)
            files |= found
        else:
            walk = CodeWalk(recipe.folder)
            name, content = f"value {index + 1}", walk.digest(item, name=f"depends_on[{index}]")
            files |= walk.files
        entries.append((name, content))
    for function in functions_in(recipe):
        walk = CodeWalk(recipe.folder, declared=bool(recipe.depends_on))
        walk.digest(function)
        files |= walk.files
        opaque += (f"{name_of(function)} uses {found}" for found in walk.opaque)
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
    found = {}
    for path, identity in sorted(recipe.loaded_files.items()):
        if is_of_machine(path) or (identity is None and identity_of(path) is None):
            continue
        if identity is not None and identity_of(path) == identity:
            found[path] = file_digest(path)
        if identity_of(path) != identity:
            raise RecipeError(
                f"{opaque}, which is made while the recipe is loaded, and {path}, which was read "
                "then, has changed since. Start the build again to reload the recipe."
            )
    return found


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
    found = []
    for file in opened.list():
        total = hashlib.sha256()
        for chunk in opened.chunks(file.path, chunk_bytes=_CHUNK_BYTES):
            total.update(chunk)
        found.append([file.path, total.hexdigest()])
    return str(found[0][1]) if opened.single else digest(found)


def _refuse_changed(name: str) -> NoReturn:
    raise StorageError(
        f"{storage.redact(name)}, which the recipe depends on, changed while the build ran, or is "
        "missing on this machine. Nothing was published. Wait until nothing writes there, then "
        "start the build again."
    )
