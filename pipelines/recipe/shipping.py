"""Staging: how a recipe is read from its file, and how its code reaches every worker.

A recipe from a file is sent as one archive in the workspace: the file and the modules next to it
that it imports, nothing else. A recipe made anywhere else (a script that builds, a notebook, a
function, inferred from data) is sent by value. Either way a job carries only a small handle.
"""

from __future__ import annotations

import codecs
import copy
import dataclasses
import hashlib
import io
import itertools
import locale
import os
import sys
import threading
import uuid
import weakref
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol

from ...schemas.config import check_revision
from ...schemas.errors import DamagedWorkError, RecipeError
from ...schemas.naming import Workspace
from ...schemas.recipe import Recipe
from ...transforms import storage
from ...transforms.code.digest import CodeHashes, functions_of
from ...transforms.code.user_code import user_modules
from ...transforms.prepare.engine.chain import give_files
from ...transforms.storage.artifacts import put_if_changed
from .modules import ArchiveTree, FolderTree, RecipeModules

MAX_ARCHIVE_BYTES = 16_000_000
"""Maximum total size of a recipe's own Python files. Larger content is data, not code."""

_COUNTER = itertools.count(1)
_LOCK = threading.RLock()
_LOADING = threading.local()


class StagedRecipe(Protocol):
    """A handle on a recipe: small, picklable, valid in any process of the job."""

    def load(self) -> Recipe:
        """The recipe: the live object where it was made; elsewhere imported once per process.

        Raises:
            RecipeError: if its code fails here; the message names the file and line.
        """


def load_recipe_file(path: str | os.PathLike[str]) -> Recipe:
    """Reads a recipe from a Python file: its ``recipe``, or the only Recipe in it.

    Modules and packages next to the file are found by plain ``import`` statements; those of two
    recipe files never mix. Each call reads the files again.

    Raises:
        RecipeError: if there is no such file, it fails (the message names the line and the cause),
            or it has no recipe, or several of which none is called ``recipe``.
    """
    shown = os.fspath(path)
    absolute = os.path.abspath(shown)
    if not os.path.isfile(absolute):
        kind = "is a folder" if os.path.isdir(absolute) else "does not exist"
        raise RecipeError(f"{shown} {kind}. Give the Python file that defines the recipe.")
    folder, main = os.path.split(absolute)
    modules = RecipeModules(FolderTree(folder), main=main, name=f"{next(_COUNTER)}")
    attribute, recipe = _import_recipe(modules, shown=shown, folder=folder)
    _ORIGINS.remember(recipe, _Origin(modules, folder=folder, main=main, attribute=attribute))
    return recipe


def stage(
    recipe: Recipe,
    workspace: Workspace,
    code: CodeHashes | None = None,
    *,
    max_bytes: int = MAX_ARCHIVE_BYTES,
) -> StagedRecipe:
    """Makes a recipe available to workers.

    A recipe from :func:`load_recipe_file` is put into the workspace, as an archive named by its
    content; any other is carried by value. ``code`` has the hashes of its functions, if they are
    known.

    Raises:
        RecipeError: if the code next to the recipe is too large to be code.
        StorageError: if the archive cannot be put.
    """
    origin = _ORIGINS.of(recipe)
    if origin is None:
        return carry(recipe)
    archive = pack(origin.modules.sources())
    if len(archive) > max_bytes:
        sizes = {name: len(content) for name, content in origin.modules.sources().items()}
        largest = max(sizes, key=lambda name: sizes[name])
        raise RecipeError(
            f"{os.path.join(origin.folder, origin.main)} and the modules next to it that it "
            f"imports have {len(archive):,} bytes, the largest {largest} with {sizes[largest]:,}; "
            f"{max_bytes:,} are allowed. Keep data in a file that the recipe reads."
        )
    url, digest = _put(archive, workspace)
    names = sorted(recipe.contents)
    files = pack({str(index): recipe.contents[name] for index, name in enumerate(names)})
    staged = _ArchivedRecipe(
        url=url,
        digest=digest,
        files=(*_put(files, workspace), names) if names else None,
        folder=origin.folder,
        main=origin.main,
        attribute=origin.attribute,
        code=_code_of(recipe, code),
    )
    _LIVE[staged.key] = recipe
    return staged


def altered(recipe: Recipe, **changes: object) -> Recipe:
    """A copy of a recipe with other attributes; workers load the file of the original."""
    changed = copy.copy(recipe)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)
    origin = _ORIGINS.of(recipe)
    if origin is not None:
        _ORIGINS.remember(changed, origin)
    return changed


def revised(recipe: Recipe, revision: int | None) -> Recipe:
    """The recipe with another revision; unchanged if that is None.

    Raises:
        RecipeError: if the revision is negative.
    """
    if revision is None or revision == recipe.revision:
        return recipe
    check_revision(revision)
    return altered(recipe, revision=revision)


def refuse_written_secrets(recipe: Recipe) -> None:
    """Refuses a recipe whose file contains its source's password: files go to the workspace.

    Raises:
        RecipeError: if it does; the message names the file.
    """
    origin = _ORIGINS.of(recipe)
    secrets: tuple[str, ...] = getattr(recipe.source, "secrets", ())
    for name, content in ({} if origin is None else origin.modules.sources()).items():
        if any(secret.encode() in content for secret in secrets):
            raise RecipeError(
                f"{name} contains the password of the recipe's source, and a build copies that "
                "file into its workspace. Take it from the environment, as in "
                'ss.Sql("postgresql://ann:$DB_PASSWORD@host/db", …), or leave it out and use '
                "PGPASSWORD or a .pgpass file."
            )


def _put(archive: bytes, workspace: Workspace) -> tuple[str, str]:
    """Puts an archive, named by its content, unless it is there intact: its place and its hash."""
    digest = hashlib.sha256(archive).hexdigest()
    url = workspace.staged(digest)
    put_if_changed(url, archive)
    return url, digest


def carry(recipe: Recipe) -> StagedRecipe:
    """A handle that carries the recipe by value, without a workspace."""
    return _CarriedRecipe(recipe)


def refuse_while_loading(what: str) -> None:
    """Refuses ``what`` while a recipe's file is being loaded: it would recurse in workers.

    Raises:
        RecipeError: if this thread is loading one.
    """
    if getattr(_LOADING, "depth", 0):
        raise RecipeError(
            f"{what} is called while the recipe is being loaded, as in every worker. Put the "
            'call under if __name__ == "__main__":.'
        )


def refuse_unfit_python() -> None:
    """Refuses to run if Python was started such that the same recipe gives other results.

    Without asserts a recipe would accept what it rejects elsewhere, and Apache Beam cannot be
    imported without docstrings. With another encoding than UTF-8, names of files and texts that
    the recipe opens would be others.

    Raises:
        RecipeError: if Python was started that way.
    """
    if sys.flags.optimize:
        raise RecipeError(
            "Python was started with -O or PYTHONOPTIMIZE, which removes asserts from the recipe's "
            "functions, and docstrings that Apache Beam needs. Unset PYTHONOPTIMIZE, here and on "
            "all workers, and start Python without -O."
        )
    for kind, encoding in (
        ("names of files", sys.getfilesystemencoding()),
        ("text files", locale.getpreferredencoding(False)),
    ):
        if codecs.lookup(encoding).name != "utf-8":
            raise RecipeError(
                f"Python reads {kind} as {encoding}, expected utf-8: names and texts beyond ASCII "
                "would be others than on other machines. Set PYTHONUTF8=1, here and on all workers."
            )


def pack(files: dict[str, bytes]) -> bytes:
    """Packs files into a zip archive: the same files always give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, bytes]:
    """Unpacks the output of :func:`pack`."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _get(url: str, digest: str) -> bytes:
    content = storage.read_bytes(url)
    if hashlib.sha256(content).hexdigest() != digest:
        raise DamagedWorkError(f"{storage.redact(url)} is damaged. Start the build again.")
    return content


@dataclasses.dataclass
class _Origin:
    """The origin of a recipe that was read from a file."""

    modules: RecipeModules
    folder: str
    main: str
    attribute: str


class _Origins:
    """The origins of this process's recipes, by identity: equal recipes may differ in origin."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[weakref.ref[Recipe], _Origin]] = {}

    def remember(self, recipe: Recipe, origin: _Origin) -> None:
        key = id(recipe)
        gone = weakref.ref(recipe, lambda _: self._by_id.pop(key, None))
        self._by_id[key] = (gone, origin)

    def of(self, recipe: Recipe) -> _Origin | None:
        reference, origin = self._by_id.get(id(recipe), (None, None))
        return origin if reference is not None and reference() is recipe else None


_ORIGINS = _Origins()
_LIVE: dict[str, Recipe] = {}
"""The recipes of this process, by the keys of their handles."""


@dataclasses.dataclass(eq=False)
class _ArchivedRecipe:
    """A recipe in an archive in the workspace."""

    url: str
    digest: str
    folder: str
    main: str
    attribute: str
    code: dict[str, str]
    files: tuple[str, str, list[str]] | None

    @property
    def key(self) -> str:
        """Identifies the recipe: its files, its name in them, the folder, the code's digests."""
        files = self.files[1] if self.files is not None else ""
        parts = (self.digest, self.main, self.attribute, self.folder, files, str(self.code))
        return "\0".join(parts)

    def load(self) -> Recipe:
        """The recipe, imported from the archive unless this process already has it."""
        with _LOCK:
            if self.key not in _LIVE:
                _LIVE[self.key] = self._import()
            return _LIVE[self.key]

    def _import(self) -> Recipe:
        content = _get(self.url, self.digest)
        # One package per key: the same code from two folders has two values of __file__.
        name = hashlib.sha256(self.key.encode()).hexdigest()[:16]
        tree = ArchiveTree(unpack(content), folder=self.folder, name=name)
        modules = RecipeModules(tree, main=self.main, name=name)
        shown = os.path.join(self.folder, self.main)
        _, recipe = _import_recipe(
            modules, shown=shown, folder=self.folder, attribute=self.attribute
        )
        if self.files is not None:
            url, digest, names = self.files
            files = unpack(_get(url, digest))
            give_files(recipe, {name: files[str(index)] for index, name in enumerate(names)})
        here = _code_of(recipe)
        other = sorted(name for name in here | self.code if here.get(name) != self.code.get(name))
        if other:
            raise RecipeError(
                f"{shown}: {', '.join(other)} is not the same in a worker process as where the "
                "build started. It depends on something that changes (a file that was edited "
                "meanwhile or is missing, the time, random numbers, the environment): let the "
                "recipe read fixed values only, and start the build again. If an object fills an "
                "attribute on first use, such as a model that it loads, give its class a "
                "__getstate__ that leaves the attribute out."
            )
        return recipe


class _CarriedRecipe:
    """A recipe by value: pickled with the user's code in it when a job is sent."""

    def __init__(self, recipe: Recipe) -> None:
        self._state: dict[str, Any] = {"key": uuid.uuid4().hex}
        _LIVE[self._state["key"]] = recipe
        weakref.finalize(self, _LIVE.pop, self._state["key"], None)

    def load(self) -> Recipe:
        """The live object where the handle was made; elsewhere unpickled once per process."""
        with _LOCK:
            key = self._state["key"]
            if key not in _LIVE:
                if "failure" in self._state:
                    raise RecipeError(self._state["failure"])
                import pickle

                _LIVE[key] = pickle.loads(self._state["pickled"])
            return _LIVE[key]

    def __getstate__(self) -> dict[str, Any]:
        with _LOCK:
            if len(self._state) == 1 and self._state["key"] in _LIVE:
                try:
                    self._state["pickled"] = _pickled_by_value(_LIVE[self._state["key"]])
                except Exception as error:
                    # A job in this process needs no copy: only another process must refuse.
                    self._state["failure"] = (
                        f"The recipe cannot be sent to a worker process: {error}. Functions of a "
                        "recipe may use plain values of the script that defines them; make other "
                        "objects inside the function. Or move the recipe into a file of its own, "
                        "and read it with load_recipe_file, or build with one worker."
                    )
            return self._state

    def __setstate__(self, state: dict[str, Any]) -> None:
        refuse_unfit_python()
        self._state = state


def _pickled_by_value(recipe: Recipe) -> bytes:
    """Pickles a recipe with all of the user's code that it refers to.

    Functions of importable modules are normally pickled by name; but what the driver can import,
    for example next to a script, another process often cannot.
    """
    from apache_beam.internal import cloudpickle

    with _by_value(user_modules(), cloudpickle):
        return bytes(cloudpickle.dumps(recipe))


@contextmanager
def _by_value(modules: list[ModuleType], cloudpickle: Any) -> Iterator[None]:
    known = cloudpickle.list_registry_pickle_by_value()
    mine = [m for m in modules if m.__name__ not in known and m.__name__ != "__main__"]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in mine:
            cloudpickle.unregister_pickle_by_value(module)


def _import_recipe(
    modules: RecipeModules, *, shown: str, folder: str, attribute: str | None = None
) -> tuple[str, Recipe]:
    """Runs a recipe's file and finds the recipe in it."""
    refuse_unfit_python()
    _LOADING.depth = getattr(_LOADING, "depth", 0) + 1
    try:
        module = modules.import_main()
    finally:
        _LOADING.depth -= 1
    names = vars(module)
    attribute = attribute or _only_recipe(names, shown=shown)
    recipe = names.get(attribute)
    if not isinstance(recipe, Recipe):
        raise RecipeError(
            f"{shown}: {attribute} is {type(recipe).__name__!r}, expected an ss.Recipe(…)."
        )
    object.__setattr__(recipe, "folder", folder)
    object.__setattr__(recipe, "file", os.path.join(folder, os.path.basename(shown)))
    object.__setattr__(recipe, "loaded_files", modules.loaded_files)
    return attribute, recipe


def _code_of(recipe: Recipe, code: CodeHashes | None = None) -> dict[str, str]:
    """Digests of a recipe's functions and steps, including the values they refer to, by name."""
    code = CodeHashes.of(recipe) if code is None else code
    digests = {
        f"prepare[{index}]": code.step_digest(step) for index, step in enumerate(recipe.prepare)
    }
    functions = {f"source.functions[{i}]": f for i, f in enumerate(functions_of(recipe.source))}
    if recipe.preprocessing_fn is not None:
        functions["preprocessing_fn"] = recipe.preprocessing_fn
    return digests | {name: code.function(f).digest for name, f in functions.items()}


def _only_recipe(names: dict[str, Any], *, shown: str) -> str:
    if "recipe" in names:
        return "recipe"
    recipes: dict[int, str] = {}
    for name, value in names.items():
        if isinstance(value, Recipe):
            recipes.setdefault(id(value), name)
    if not recipes:
        raise RecipeError(f"{shown} has no recipe. Write recipe = ss.Recipe(…) at its top level.")
    if len(recipes) > 1:
        raise RecipeError(
            f"{shown} has several recipes: {', '.join(sorted(recipes.values()))}. Name the one to "
            "build recipe."
        )
    return next(iter(recipes.values()))
