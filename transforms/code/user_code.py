"""Whether a module's code is the user's own or an installed library's."""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
from collections.abc import Callable
from types import ModuleType
from typing import TypeGuard

PACKAGE = __name__.partition(".")[0]
"""This package's own name."""

_PACKAGE_FOLDER = os.path.dirname(os.path.realpath(sys.modules[PACKAGE].__file__ or ""))
_INSTALLED_PARTS = frozenset({"site-packages", "dist-packages"})


def _installed_roots() -> tuple[str, ...]:
    roots = {os.path.dirname(os.path.realpath(os.__file__))}
    for key in ("stdlib", "platstdlib", "purelib", "platlib"):
        path = sysconfig.get_paths().get(key)
        if path:
            roots.add(os.path.realpath(path))
    roots.update(os.path.realpath(path) for path in site.getsitepackages())
    return tuple(sorted(roots))


_INSTALLED_ROOTS = _installed_roots()


def is_user_file(path: str) -> bool:
    """Whether a source file is the user's own: not installed, not part of this package.

    What only looks like a path (``<string>``) does not count as a file.
    """
    if path.startswith("<") and not path.endswith(".py"):
        return False
    folder, name = os.path.split(path)
    real = os.path.join(_real_folder(folder), name)
    if os.path.islink(real):
        real = os.path.realpath(real)
    if _INSTALLED_PARTS.intersection(real.split(os.sep)):
        return False
    if real.startswith(_PACKAGE_FOLDER + os.sep):
        # Tests and examples of a checkout are in the package's folder, but in no subpackage.
        top = os.path.relpath(real, _PACKAGE_FOLDER).split(os.sep)[0]
        return not (top.endswith(".py") or top in _SUBPACKAGES)
    return not any(real.startswith(root + os.sep) for root in _INSTALLED_ROOTS)


@functools.lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    # Thousands of modules are in a few folders: checking every part of every path takes long.
    return os.path.realpath(folder)


_SUBPACKAGES = frozenset({"schemas", "transforms", "pipelines", "runners"})


def is_user_module(
    module: object, *, is_user: Callable[[str], bool] = is_user_file
) -> TypeGuard[ModuleType]:
    """Whether this is the user's own module: a file, a script, or typed-in code."""
    if not isinstance(module, ModuleType):
        return False
    if module.__name__ == "__main__":
        path = getattr(module, "__file__", None)
        return path is None or is_user(path)
    path = getattr(module, "__file__", None)
    if path is None:
        # A folder without __init__.py has no file; a built-in module has no path either.
        folders = [str(folder) for folder in getattr(module, "__path__", ())]
        return bool(folders) and all(is_user(os.path.join(f, "_.py")) for f in folders)
    return path.endswith(".py") and is_user(path)


_is_loaded_user_file = functools.lru_cache(maxsize=16384)(is_user_file)
"""For the files of loaded modules: there are thousands, and they stay where they are."""


def user_modules() -> list[ModuleType]:
    """The user's modules that are loaded."""
    return [
        module
        for module in list(sys.modules.values())
        if is_user_module(module, is_user=_is_loaded_user_file)
    ]
