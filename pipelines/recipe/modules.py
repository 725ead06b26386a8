"""A recipe's modules, imported separately from all others.

The recipe file and the modules next to it become submodules of a package made only for this
recipe: the `helpers.py` of two recipes in one process are two modules. `import helpers` in recipe
code, even late and inside functions, finds the right one, and `sys.path` is unchanged. The same
machinery reads a folder, in the process that starts a build, and a staged archive, in workers.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import linecache
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any, Protocol

from ...schemas.config import did_you_mean
from ...schemas.errors import RecipeError
from ...transforms.code.dependencies import running
from ...transforms.code.user_code import PACKAGE
from ...transforms.storage.unchanged import Identity

_PREFIX = "_snapshard_recipe_"
_STEPS = ("audio", "images", "records", "series", "tables", "text")
"""The modules of steps in `ss`."""


class SourceTree(Protocol):
    """The Python files of one folder, by relative path with '/'."""

    def read(self, path: str) -> bytes | None:
        """A file's bytes; None if there is no file."""

    def is_folder(self, path: str) -> bool:
        """Whether modules may be in a folder of this path."""

    def files_in(self, path: str) -> Sequence[str]:
        """Names of the Python files in a folder."""

    def origin(self, path: str) -> tuple[str, str]:
        """A file's ``__file__``, and the file name of its code."""


class FolderTree:
    """Files on disk. The content first read is kept, because a file may be edited meanwhile."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._read: dict[str, bytes | None] = {}

    def read(self, path: str) -> bytes | None:
        """A file's bytes; None if there is no file."""
        if path not in self._read:
            try:
                with open(os.path.join(self._folder, *path.split("/")), "rb") as file:
                    self._read[path] = file.read()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._read[path] = None
            except OSError as error:
                raise RecipeError(
                    f"{os.path.join(self._folder, path)} cannot be read: {error.strerror}."
                ) from None
        return self._read[path]

    def is_folder(self, path: str) -> bool:
        """Whether it is a folder whose name no installed module has."""
        if not os.path.isdir(os.path.join(self._folder, *path.split("/"))):
            return False
        try:
            return "/" in path or importlib.util.find_spec(path) is None
        except (ValueError, ImportError):
            return False

    def files_in(self, path: str) -> Sequence[str]:
        """Names of the Python files in a folder."""
        names = os.listdir(os.path.join(self._folder, *path.split("/")))
        return sorted(name for name in names if name.endswith(".py"))

    def origin(self, path: str) -> tuple[str, str]:
        """The path of the file, twice."""
        name = os.path.join(self._folder, *path.split("/"))
        return name, name


class ArchiveTree:
    """Files of a staged archive, which were in ``folder``."""

    def __init__(self, files: Mapping[str, bytes], *, folder: str, name: str) -> None:
        self._files = dict(files)
        self._folder = folder
        self._name = name

    def read(self, path: str) -> bytes | None:
        """A file's bytes; None if there is no file."""
        return self._files.get(path)

    def is_folder(self, path: str) -> bool:
        """Whether it contains files."""
        return any(name.startswith(f"{path}/") for name in self._files)

    def files_in(self, path: str) -> Sequence[str]:
        """Names of the Python files in a folder."""
        heads = (name.rpartition("/") for name in self._files)
        return sorted(name for folder, _, name in heads if folder == path)

    def origin(self, path: str) -> tuple[str, str]:
        """The original path, and a name of no existing file: the original may be edited."""
        return os.path.join(self._folder, *path.split("/")), f"<staged {self._name}>/{path}"


class RecipeModules:
    """The modules of one recipe, in a package of their own."""

    def __init__(self, tree: SourceTree, *, main: str, name: str) -> None:
        """``main`` is the recipe's file, relative to the tree; the package is named by ``name``."""
        self._tree = tree
        self._main = main
        stem = main.removesuffix(".py")
        if not stem.isidentifier():
            stem = "_file_" + re.sub(r"\W", "_", stem)
        self._main_name = stem
        self.package = f"{_PREFIX}{name}"
        self.loaded_files: dict[str, Identity | None] = {}
        """Files that the modules opened when loaded: absolute path -> its identity then."""
        self._builtins = {**vars(builtins), "__import__": SiblingImport(self)}

    def import_main(self) -> ModuleType:
        """Imports the recipe's file, once.

        Raises:
            RecipeError: if anything fails in it; the message names the file and line.
        """
        _FINDER.add(self)
        try:
            return importlib.import_module(f"{self.package}.{self._main_name}")
        except Exception as error:
            self.forget()
            raise RecipeError(self._describe(error)) from None
        except SystemExit as error:
            self.forget()
            raise RecipeError(
                f"{self._tree.origin(self._main)[0]} ended the program while it was loaded "
                f"(sys.exit, code {error.code}). Put the script's own actions under "
                'if __name__ == "__main__":.'
            ) from None

    def forget(self) -> None:
        """Removes the modules from this process's table of modules."""
        _FINDER.remove(self)
        for name in [n for n in sys.modules if n.partition(".")[0] == self.package]:
            del sys.modules[name]

    def sources(self) -> dict[str, bytes]:
        """The recipe's file and all modules next to it that it imports, directly or indirectly.

        Found in the source text, so modules that a function imports late are included.
        """
        contents: dict[str, bytes] = {}
        waiting = [self._main]
        while waiting:
            path = waiting.pop()
            content = self._tree.read(path)
            if path in contents or content is None:
                continue
            contents[path] = content
            waiting += self._imported_by(path, content)
        return dict(sorted(contents.items()))

    def sibling(self, name: str) -> str | None:
        """The full name of a module that recipe code calls ``name``; None if it is not here."""
        top = name.partition(".")[0]
        if top == PACKAGE or not top.isidentifier():
            return None
        return f"{self.package}.{name}" if self._locate((top,)) is not None else None

    def find(self, fullname: str) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module, for the import machinery; None if it is not here."""
        parts = tuple(fullname.split(".")[1:])
        located: tuple[str, bool] | None
        if not parts:
            located = ("", True)
        elif parts == (self._main_name,):
            located = (self._main, False)
        else:
            located = self._locate(parts)
        if located is None:
            return None
        path, is_package = located
        loader = _Loader(self, path)
        file_name, _ = self._tree.origin(path or self._main)
        spec = importlib.machinery.ModuleSpec(
            fullname,
            loader,
            origin=file_name if path.endswith(".py") else None,
            is_package=is_package,
        )
        if is_package:
            head = path.removesuffix("__init__.py").rstrip("/")
            spec.submodule_search_locations = [
                self._tree.origin(head)[0] if head else os.path.dirname(file_name)
            ]
        return spec

    def execute(self, module: ModuleType, path: str) -> None:
        """Runs a file's code as a module; a folder without code is an empty package."""
        module.__dict__["__builtins__"] = self._builtins
        content = self._content(path)
        if content is None:
            return
        file_name, code_name = self._tree.origin(path)
        module.__file__ = file_name
        code: CodeType = compile(content, code_name, "exec", dont_inherit=True)
        lines = importlib.util.decode_source(content).splitlines(keepends=True)
        # Without a time: a later reader of the source gets what ran, not an edited file.
        linecache.cache[code_name] = (len(content), None, lines, code_name)
        with running.loading(self.loaded_files):
            exec(code, module.__dict__)

    def source(self, path: str) -> str | None:
        """A file's text; None for a folder without code."""
        content = self._content(path)
        return None if content is None else importlib.util.decode_source(content)

    def _content(self, path: str) -> bytes | None:
        return self._tree.read(path) if path.endswith(".py") else None

    def _locate(self, parts: tuple[str, ...]) -> tuple[str, bool] | None:
        """The file of a module, and whether it is a package; a bare folder has no file."""
        path = "/".join(parts)
        if self._tree.read(f"{path}/__init__.py") is not None:
            return f"{path}/__init__.py", True
        if self._tree.read(f"{path}.py") is not None:
            return f"{path}.py", False
        return (path, True) if self._tree.is_folder(path) else None

    def _imported_by(self, path: str, content: bytes) -> Iterator[str]:
        try:
            tree = ast.parse(content, path)
        except (SyntaxError, ValueError):
            # The file may never be imported; if it is, the import reports the error.
            return
        package = tuple(path.split("/")[:-1])
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._files_of(tuple(alias.name.split(".")))
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else ()
                if node.level > len(package) + 1:
                    continue
                base += tuple(node.module.split(".")) if node.module else ()
                yield from self._files_of(base)
                for alias in node.names:
                    if alias.name == "*":
                        yield from self._modules_in(base)
                    else:
                        yield from self._files_of((*base, alias.name))

    def _files_of(self, parts: tuple[str, ...]) -> Iterator[str]:
        """The files that importing ``a.b.c`` runs: those of a, a.b and a.b.c."""
        if parts[:1] == (PACKAGE,):
            return
        for length in range(1, len(parts) + 1):
            located = self._locate(parts[:length])
            if located is None:
                return
            if located[0].endswith(".py"):
                yield located[0]

    def _modules_in(self, parts: tuple[str, ...]) -> Iterator[str]:
        path = "/".join(parts)
        located = self._locate(parts) if parts else None
        if located is not None and located[1]:
            yield from (f"{path}/{name}" for name in self._tree.files_in(path))

    def _describe(self, error: Exception) -> str:
        """File, line and message of an error in recipe code."""
        main = self._tree.origin(self._main)[0]
        if isinstance(error, SyntaxError):
            where = self._shown(error.filename) or main
            line = f" line {error.lineno}" if error.lineno else ""
            text = f": {error.text.strip()}" if error.text else ""
            return f"{where}{line}: {error.msg}{text}"
        place = main
        traceback = error.__traceback__
        while traceback is not None:
            shown = self._shown(traceback.tb_frame.f_code.co_filename)
            if shown is not None:
                place = f"{shown} line {traceback.tb_lineno}"
            traceback = traceback.tb_next
        if isinstance(error, RecipeError):
            return f"{place}: {error}"
        words = str(error).replace(f"{self.package}.", "").replace(self.package, "the folder")
        message = f"{place}: {type(error).__name__}: {words}"
        if isinstance(error, ModuleNotFoundError) and error.name:
            return f"{message}. {self._advise(error.name)}"
        return _with_hint(message, error)

    def _advise(self, name: str) -> str:
        name = name.removeprefix(f"{self.package}.")
        if self._locate(tuple(name.split("."))) is not None:
            return f"It is next to the recipe: write `import {name}`, which finds it there."
        folder = os.path.dirname(self._tree.origin(self._main)[0])
        return f"Install it, or put {name.partition('.')[0]}.py into {folder}."

    def _shown(self, code_name: str | None) -> str | None:
        """The file behind the file name of some code, if it belongs to this recipe."""
        if code_name is None:
            return None
        root = os.path.dirname(self._tree.origin(self._main)[1])
        if not code_name.startswith(root + "/"):
            return None
        return self._tree.origin(code_name[len(root) + 1 :])[0]


def _with_hint(message: str, error: Exception) -> str:
    """The message of an error, with the name in snapshard that was probably meant."""
    groups = {"ss": sys.modules.get(PACKAGE)}
    groups |= {f"ss.{name}": getattr(groups["ss"], name, None) for name in _STEPS}
    if isinstance(error, AttributeError):
        for shown, group in groups.items():
            if group is not None and error.obj is group:
                message = message.replace(f"'{group.__name__}'", f"'{shown}'")
                names = getattr(group, "__all__", ()) or _defined_in(group)
                hint = did_you_mean(error.name or "", (f"{shown}.{name}" for name in names))
                return message + hint
    match = re.search(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'", message)
    if isinstance(error, TypeError) and match is not None:
        name = match[1].removesuffix(".__init__")
        called = (getattr(group, name, None) for group in groups.values())
        parameters = (
            inspect.signature(function).parameters for function in called if callable(function)
        )
        message += did_you_mean(match[2], (f"{name}=" for names in parameters for name in names))
    return message


def _defined_in(module: ModuleType) -> list[str]:
    """The public names that a module defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


class SiblingImport:
    """The ``__import__`` of recipe code: modules next to the recipe take precedence."""

    def __init__(self, modules: RecipeModules) -> None:
        self._modules = modules

    def sibling(self, name: str) -> str | None:
        """The full name of a module next to the recipe; None if ``name`` is not one."""
        return self._modules.sibling(name)

    def __call__(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """Imports a module, like ``builtins.__import__``."""
        full = self._modules.sibling(name) if level == 0 else None
        if full is None:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if fromlist:
            return builtins.__import__(full, globals, locals, fromlist, 0)
        importlib.import_module(full)
        top = name.partition(".")[0]
        return sys.modules[f"{self._modules.package}.{top}"]


class _Loader(importlib.abc.InspectLoader):
    """Runs one file of a recipe."""

    def __init__(self, modules: RecipeModules, path: str) -> None:
        self._modules = modules
        self._path = path

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # A module pickled by value is sent without the machinery that imported it.
        return type(None), ()

    def get_source(self, fullname: str) -> str | None:
        return self._modules.source(self._path)

    def exec_module(self, module: ModuleType) -> None:
        self._modules.execute(module, self._path)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules in the packages of recipes, and no others."""

    def __init__(self) -> None:
        self._packages: dict[str, RecipeModules] = {}

    def add(self, modules: RecipeModules) -> None:
        self._packages[modules.package] = modules
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self, modules: RecipeModules) -> None:
        self._packages.pop(modules.package, None)

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        modules = self._packages.get(fullname.partition(".")[0])
        spec = modules.find(fullname) if modules is not None else None
        if spec is None:
            short = fullname.partition(".")[2]
            raise ModuleNotFoundError(
                f"No module named {short!r} next to the recipe", name=fullname
            )
        return spec


_FINDER = _Finder()
