"""The parts of a user's function, to report which one differs and not only that one does.

The walk is that of ``code_digest``; here each function, class and variable that it meets gets a
name and a digest of its own, without what it refers to in turn. Only digests, no values: a
constant may be confidential.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any

from ...schemas.fingerprint import digest
from .digest import CodeWalk
from .values import Json

MAX_PARTS = 2_000
"""For a function that refers to more than this, no parts are reported."""

_DIGITS = 16
_NAMES = frozenset({"globals", "names"})
"""Fields of a record that map names to what they refer to: variables are separate parts."""


def code_parts(function: Any, *, folder: str, declared: bool = False) -> dict[str, str]:
    """Digests of everything that a user's callable refers to, itself included, by name.

    Args:
        function: As for ``code_digest``.
        folder: The recipe's folder: files are named relative to it.
        declared: Whether the recipe has a ``depends_on``.

    Returns:
        ``"recipe.py: scale" -> 16 hex digits``, sorted by name; empty for more than MAX_PARTS.
        If the ``code_digest`` of two functions differs, so does one of these, unless only the
        order of their content differs.

    Raises:
        RecipeError: as ``code_digest`` does.
    """
    found = _PartsWalk(folder, declared=declared).parts(function)
    return found if len(found) <= MAX_PARTS else {}


class _PartsWalk(CodeWalk):
    """A walk that keeps the name of each record, and the value of each variable."""

    def __init__(self, folder: str, *, declared: bool = False) -> None:
        super().__init__(folder, declared=declared)
        self._roots = [os.path.abspath(folder), os.path.realpath(folder)] if folder else []
        self._labels: dict[int, str] = {}
        self._objects: dict[int, str] = {}
        self._variables: dict[str, tuple[Json, int | None]] = {}

    def parts(self, root: Any) -> dict[str, str]:
        self.digest(root)
        name = getattr(root, "__qualname__", None) or type(root).__qualname__
        reference = self._refer(root, name)
        parts: dict[str, list[Json]] = {}
        if reference[0] != "record":
            # For example a partial: what it adds to the function inside.
            parts[name] = [self._named(reference)]
        for number, label in self._labels.items():
            parts.setdefault(label, []).append(self._own(self._records[number]))
        for label, (value, of_object) in self._variables.items():
            # A function or class is a part under its own name, whatever name refers to it.
            if of_object is None:
                parts.setdefault(label, []).append(self._named(value))
            elif of_object not in self._labels:
                parts.setdefault(label, []).append(self._own(self._records[of_object]))
        return {label: digest(values)[:_DIGITS] for label, values in sorted(parts.items())}

    def _start(self, value: Any) -> int:
        number = super()._start(value)
        label = self._label(value)
        if label is not None:
            self._labels[number] = label
        else:
            self._objects[number] = f"{self._label(type(value))} object"
        return number

    def _refer(self, value: Any, where: str) -> Json:
        # By name at once, because a container hashes what it refers to.
        return self._named(super()._refer(value, where))

    def _variable(self, name: str, scope: Mapping[str, Any]) -> Json:
        found = super()._variable(name, scope)
        number = self._numbers.get(id(scope[name])) if found[0] == "record" else None
        self._variables[f"{self._file(scope)}: {name}"] = found, number
        return found

    def _label(self, value: Any) -> str | None:
        if isinstance(value, FunctionType):
            return f"{self._file(value.__globals__)}: {value.__qualname__}"
        if isinstance(value, ModuleType):
            return self._file(vars(value))
        if isinstance(value, type):
            module = sys.modules.get(value.__module__)
            where = value.__module__ if module is None else self._file(vars(module))
            return f"{where}: {value.__qualname__}"
        return None

    def _file(self, scope: Mapping[str, Any]) -> str:
        """A module by its file, relative to the recipe's; by its name if it is elsewhere."""
        path = scope.get("__file__")
        for root in self._roots if isinstance(path, str) else ():
            if str(path).startswith(root + os.sep):
                return os.path.relpath(str(path), root).replace(os.sep, "/")
        return str(scope.get("__name__", "?"))

    def _own(self, record: Json) -> Json:
        """A record without what the names in it refer to."""
        if not isinstance(record, dict):
            return self._named(record)
        return {
            key: self._kinds(value) if key in _NAMES else self._named(value)
            for key, value in record.items()
        }

    def _kinds(self, value: Json) -> Json:
        """Names, with the kind of what each refers to."""
        if not isinstance(value, list):
            return value
        if len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], list):
            return [value[0], self._kind(value[1])]
        return [self._kinds(item) for item in value]

    def _kind(self, value: list[Json]) -> Json:
        if value[:1] == ["record"]:
            return self._named(value)
        if value[:1] == ["module"]:
            return [
                [chain, self._kind(found) if isinstance(found, list) else found]
                for chain, found in _pairs(value[1:])
            ]
        return value[:1]

    def _named(self, value: Json) -> Json:
        """The same with names of records in place of their numbers, which any change shifts."""
        if isinstance(value, list | tuple):
            if len(value) == 2 and value[0] == "record" and isinstance(value[1], int):
                return ["record", self._labels.get(value[1]) or self._objects[value[1]]]
            return [self._named(item) for item in value]
        return value


def _pairs(value: list[Json]) -> Iterable[tuple[Json, Json]]:
    """The attributes of a module that are used, and the value of each."""
    return [(pair[0], pair[1]) for pair in (value[0] if value else [])]
