"""What names in a user's code refer to: own modules and classes, or a library's by name."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import struct
import sys
import types
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from .source import own_functions
from .user_code import PACKAGE, is_user_file, is_user_module

_VERSIONED = frozenset(
    {"apache_beam", "numpy", "PIL", "pyarrow", "tensorflow", "tensorflow_transform", "tfx_bsl"}
    | {PACKAGE}
)
"""Libraries whose versions are already part of every fingerprint."""


_MOVING = ("__next__", "fileno", "getstate", "get_state", "bit_generator")
"""Attributes of iterators, files and random generators."""
_IMPORTERS = frozenset({"__import__", "import_module"})
_BUILT_IN: tuple[Any, ...] = (dict, list, tuple, set, frozenset, bytes, float, str, int)
"""Classes whose content can be read from an instance of a subclass."""
_CACHED_FUNCTION = type(functools.cache(len))
_POINTER = struct.calcsize("P")


_MADE_BY_PYTHON = 1 << 9
"""The flag of classes defined in Python code (Py_TPFLAGS_HEAPTYPE)."""


def is_users_class(cls: type) -> bool:
    """Whether a class is the user's own."""
    module = sys.modules.get(cls.__module__)
    if is_user_module(module):
        return True
    functions = own_functions(cls).values()
    if module is None or (functions and not is_named(cls)):
        return any(is_users_function(function) for function in functions)
    # It may have the name of a library's module, as classes made by ``types.new_class`` do, or
    # where ``__module__`` was set. Then it is not found in that module.
    return bool(cls.__flags__ & _MADE_BY_PYTHON) and not is_named(cls)


def is_users_function(function: FunctionType) -> bool:
    """Whether a function is the user's own, or one that a library made in the user's module."""
    path = function.__code__.co_filename
    if path.startswith("<") and not path.endswith(".py"):
        # Typed in or generated: its namespace decides.
        module = sys.modules.get(str(function.__globals__.get("__name__")))
        return module is None or is_user_module(module)
    return is_user_file(path)


def library_name(value: Any) -> str:
    """The name of a library's function or class: ``module:name``, with a version if needed."""
    module = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return f"{versioned(str(module))}:{name}"


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


@functools.cache
def versioned(module: str) -> str:
    """A library module's name, with the version unless every fingerprint already has it."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in _VERSIONED or not top:
        return module
    names = sorted(set(_distributions().get(top, ())))
    versions = [f"{name}={importlib.metadata.version(name)}" for name in names]
    return " ".join([module, *versions])


def import_users(name: str, scope: Mapping[str, Any], *, level: int = 0) -> ModuleType | None:
    """Imports a module as code in this scope would, if it is the user's own."""
    own = scope.get("__builtins__")
    own = own if isinstance(own, dict) else vars(own or builtins)
    find = getattr(own.get("__import__"), "sibling", None)
    try:
        if level:
            package = str(scope.get("__package__") or "")
            full = importlib.util.resolve_name("." * level + name, package)
        else:
            full = (find(name) if find is not None else None) or name
        if full == name and full not in sys.modules:
            spec = importlib.util.find_spec(name.partition(".")[0])
            if spec is None or spec.origin is None or not is_user_file(spec.origin):
                return None
        module = sys.modules.get(full) or importlib.import_module(full)
    except (ImportError, ValueError):
        return None
    return module if is_user_module(module) else None


def import_targets(
    node: ast.AST, scope: Mapping[str, Any]
) -> Iterator[tuple[ModuleType | None, str, str | None]]:
    """What the import statements in some code import: (module, name, local name).

    A user's module has the name that the code gives it; a variable of one, its name there and
    None; a library is None with its name.
    """
    for statement in ast.walk(node):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                module = import_users(alias.name, scope)
                if module is not None and alias.asname is None:
                    top = alias.name.partition(".")[0]
                    yield import_users(top, scope) or module, alias.name, top
                else:
                    yield module, alias.name, alias.asname
        elif isinstance(statement, ast.ImportFrom):
            base = import_users(statement.module or "", scope, level=statement.level)
            if base is None:
                yield None, statement.module or "", None
                continue
            for alias in statement.names:
                value = _member(base, alias.name)
                if is_user_module(value):
                    yield value, alias.name, alias.asname or alias.name
                else:
                    yield base, alias.name, None


def called_imports(node: ast.AST, scope: Mapping[str, Any]) -> Iterator[tuple[str, int] | None]:
    """What ``__import__("name")`` and ``import_module("name")`` in some code import.

    Each with its level, the number of dots before the name; None for a computed name.
    """
    locally = {
        alias.asname or alias.name
        for statement in ast.walk(node)
        if isinstance(statement, ast.ImportFrom) and statement.module == "importlib"
        for alias in statement.names
        if alias.name in _IMPORTERS
    }

    def imports(callee: ast.AST) -> bool:
        if isinstance(callee, ast.Attribute):
            return callee.attr in _IMPORTERS
        if not isinstance(callee, ast.Name):
            return False
        if callee.id == "__import__" or callee.id in locally:
            return True
        return scope.get(callee.id) is importlib.import_module

    called = set()
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or not imports(call.func):
            continue
        called.add(id(call.func))
        given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "name")]
        text = given[0].value if given and isinstance(given[0], ast.Constant) else None
        if not isinstance(text, str):
            yield None
            continue
        name = text.lstrip(".")
        yield name, len(text) - len(name)
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute) and id(part) not in called and imports(part):
            yield None


def _member(module: ModuleType, name: str) -> Any:
    """What ``from module import name`` yields: a variable, or a module inside the package."""
    if name not in vars(module) and hasattr(module, "__path__"):
        try:
            return importlib.import_module(f"{module.__name__}.{name}")
        except ImportError:
            return None
    return vars(module).get(name)


def moves(value: Any) -> bool:
    """Whether an object changes by being used: a file, an iterator, a random generator."""
    return isinstance(value, io.IOBase) or any(hasattr(value, name) for name in _MOVING)


def hides_state(value: Any) -> bool:
    """Whether an object holds more than its attributes and its built-in value show.

    C code keeps hidden state in memory after that of a plain object: this is the comparison by
    which ``object.__reduce_ex__`` refuses to pickle such an object.
    """
    cls = type(value)
    base = next(kind for kind in cls.__mro__ if kind in _BUILT_IN or kind is object)
    seen = base.__basicsize__
    for offset in (cls.__dictoffset__, cls.__weakrefoffset__):
        seen += _POINTER if offset > 0 else 0
    seen += _POINTER * sum(1 for _ in _slots(cls))
    return cls.__basicsize__ > seen or cls.__itemsize__ != base.__itemsize__


def is_named(value: Any) -> bool:
    """Whether a library's object is found there by its own name, so the version identifies it."""
    found: Any = sys.modules.get(str(getattr(value, "__module__", None)))
    for part in str(getattr(value, "__qualname__", None)).split("."):
        found = getattr(found, part, None)
    return found is value


def _slots(cls: type) -> Iterator[str]:
    """The names of the slots of a class and its bases, as used for attribute lookup."""
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot in ("__dict__", "__weakref__"):
                continue
            private = slot.startswith("__") and not slot.endswith("__")
            yield f"_{base.__name__.lstrip('_')}{slot}" if private else slot


def empty_cache(value: Any) -> None:
    """Empties an object's cached properties, and the results of a cached function.

    They may come from a file that was opened unobserved, or has been edited since.
    """
    if isinstance(value, _CACHED_FUNCTION):
        value.cache_clear()
        return
    held = getattr(value, "__dict__", None)
    if not isinstance(held, dict):
        return
    for name in list(held):
        if isinstance(inspect.getattr_static(type(value), name, None), functools.cached_property):
            held.pop(name, None)


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """An object's own attributes, sorted, including slots, without cached properties."""
    cls = type(value)
    state = {}
    for slot in _slots(cls):
        if hasattr(value, slot):
            state[slot] = getattr(value, slot)
    state.update(getattr(value, "__dict__", {}))
    return [
        (name, item)
        for name, item in sorted(state.items())
        if not isinstance(getattr(cls, name, None), functools.cached_property)
    ]


def as_built_in(value: Any) -> Any:
    """The plain value of an instance of a subclass of ``dict``, ``str`` and so on; or None."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return next((kind(value) for kind in _BUILT_IN if isinstance(value, kind)), None)


def is_covered(name: str, value: Any, *, by_source: bool, methods: Mapping[str, Any]) -> bool:
    """Whether a class's attribute is covered by its source, or only internal to Python."""
    if name in methods:
        return by_source
    if name.startswith("__") and name.endswith("__"):
        return True
    slots = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return isinstance(value, slots) or type(value).__module__ in ("_abc", "_collections")


def is_followed(value: Any) -> bool:
    """Whether a module's variable is to be followed when the complete module counts."""
    return not isinstance(value, ModuleType) or is_user_module(value)
