"""The content hash of a user's function: its code, and everything that the code refers to.

Starting from the live function, it hashes the source of its definition and, for each name in it,
the object that the name refers to now. The user's own functions and classes count by their source
and what that refers to in turn; values and objects by their content, including a vocabulary read
from a file; what installed libraries define, by name and version; a path to a file by the file's
content. Everything else is refused, unless the recipe's ``depends_on`` names what it is made from.
What nothing refers to does not count, nor do caches of functions and properties: the walk empties
those that it meets.

``CodeHashes.parts`` names and digests each function, class and variable by itself, to report which
one differs. Only digests, no values: a constant may be confidential.

For example, ``def scale(record): return {"x": record["x"] * FACTOR}`` beside ``FACTOR = 2`` is two
parts: the syntax of ``scale``, without comments and layout, and the variable ``FACTOR`` with the
hash of 2. With ``FACTOR = 3`` the digest is another, and ``FACTOR`` is the part that differs.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import inspect
import os
import sys
import time
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any

from ...schemas.errors import RecipeError
from ...schemas.fingerprint import digest
from ...schemas.recipe import CrossStep, ExtractedSource, PrepareStep, Recipe, Source, StepTraits
from .user_code import (
    NormalForm,
    Sources,
    as_built_in,
    attribute_chains,
    attributes_of,
    called_imports,
    code_json,
    empty_cache,
    global_names,
    hides_state,
    import_targets,
    import_users,
    imported_names,
    is_cached_function,
    is_covered,
    is_followed,
    is_library_module,
    is_named,
    is_user_module,
    is_users_class,
    is_users_function,
    library_name,
    moves,
    own_functions,
    shared_generator_used,
    texts_in,
    unseen_read,
    versioned,
)
from .values import Json, OpaqueError, Values

_MODULE_NAMES = frozenset(
    {"__name__", "__file__", "__path__", "__package__", "__spec__", "__loader__", "__doc__"}
    | {"__builtins__", "__cached__", "__annotations__"}
)
_SEES_ALL = frozenset({"globals", "eval", "exec"})
_OF_C = (
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
"""Functions and attributes defined in C: the name identifies them."""

_COMPUTED_IMPORT = (
    "{name} imports a module with a computed name: which one is unknown before it runs, and "
    "a change to it would go unnoticed. Write an import statement, or a literal name."
)

_UNSEEN = (
    "{name} reads {attribute}, which is not part of the hash of its code: a change to it would go "
    "unnoticed. Put what it reads into a variable of the module, and use that."
)
_RANDOM = (
    "{name} draws from {generator}, which gives other numbers each time, but the result for a "
    "record must always be the same. Augment in the trainer, or draw from a generator with a fixed "
    "seed that the function makes, such as random.Random(0)."
)

_KNOWN = frozenset({"builtins", "abc", "enum", "typing"})
"""Metaclasses that keep nothing beside a class's attributes are defined in these modules."""

MAX_PARTS = 2_000
"""For a function that refers to more than this, no parts are reported."""

_DIGITS = 16
_NAMES = frozenset({"globals", "names"})
"""Fields of a record that map names to what they refer to: variables are separate parts."""


class CodeHashes:
    """The hashes of a recipe's functions: each is walked once, each source file read once.

    What a function refers to may change when it runs, so hashes that must not be older are taken
    by :meth:`again`.
    """

    def __init__(self, folder: str, *, declared: bool = False) -> None:
        """No function is hashed yet.

        Args:
            folder: The recipe's folder: paths inside it count relative to it. Files that paths lead
                to count by content.
            declared: Whether the recipe has a ``depends_on``: if so, an object whose content cannot
                be hashed counts by its type; ``read_dependencies`` adds what it may be made from.
        """
        self._folder = folder
        self._declared = declared
        self._sources = Sources()
        self._hashed: dict[int, tuple[Any, CodeHash]] = {}
        self.seconds = 0.0
        """How long it took."""

    @classmethod
    def of(cls, recipe: Recipe) -> CodeHashes:
        """Those of a recipe's functions."""
        return cls(recipe.folder, declared=bool(recipe.depends_on))

    def again(self) -> CodeHashes:
        """Hashes that are computed anew, of source files that are read already."""
        hashes = CodeHashes(self._folder, declared=self._declared)
        hashes._sources = self._sources
        return hashes

    @property
    def source_files(self) -> list[str]:
        """The files whose code is part of the hashes."""
        return self._sources.paths

    def function(self, function: Any) -> CodeHash:
        """The hash of a user's callable and everything that it refers to.

        Args:
            function: A function, lambda, method, partial, or instance of a class with ``__call__``.

        Returns:
            Comments, formatting, the location and times of files, and what the function does not
            refer to have no effect on it.

        Raises:
            RecipeError: if it refers to something whose content cannot be hashed (an open file, a
                model), because a change to that would go unnoticed.
        """
        if id(function) not in self._hashed:
            started = time.perf_counter()
            walk = CodeWalk(self._folder, declared=self._declared, sources=self._sources)
            hashed = CodeHash(walk.digest(function), walk.files, tuple(walk.opaque))
            self._hashed[id(function)] = function, hashed
            self.seconds += time.perf_counter() - started
        return self._hashed[id(function)][1]

    def step_digest(self, step: Any) -> str:
        """The content hash (sha256, hex) of a prepare step.

        A built-in step counts by its class's name, ``settings()``, and the code of functions that
        it calls; one of the user's own also by its code; a function as in :meth:`function`.

        Raises:
            RecipeError: as :meth:`function` does.
        """
        if isinstance(step, PrepareStep | CrossStep) and not is_users_class(type(step)):
            parts = {"step": library_name(type(step)), "settings": step.settings()}
            code = [self.function(function).digest for function in StepTraits.of(step).functions]
            return digest({**parts, "functions": code} if code else parts)
        return self.function(step).digest

    def source_settings(self, source: Source) -> dict[str, object]:
        """A source as plain JSON: its class's name, its settings, and digests of its functions.

        Raises:
            RecipeError: as :meth:`function` does.
        """
        described = {"type": type(source).__name__, **source.settings()}
        code = [self.function(function).digest for function in functions_of(source)]
        return {**described, "functions": code} if code else described

    def parts(self, function: Any) -> dict[str, str]:
        """Digests of everything that a user's callable refers to, itself included, by name.

        Returns:
            ``"recipe.py: scale" -> 16 hex digits``, sorted by name; empty for more than MAX_PARTS.
            Files are named relative to the recipe's folder. If the hashes of two functions differ,
            so does one of these, unless only the order of their content differs.

        Raises:
            RecipeError: as :meth:`function` does.
        """
        walk = _PartsWalk(self._folder, declared=self._declared, sources=self._sources)
        found = walk.parts(function)
        return found if len(found) <= MAX_PARTS else {}


@dataclasses.dataclass(frozen=True)
class CodeHash:
    """The hash of a user's callable.

    Attributes:
        digest: 64 hex digits.
        files: The files that its paths lead to: absolute path -> sha256, hex.
        opaque: Objects whose content cannot be hashed, as messages name them.
    """

    digest: str
    files: Mapping[str, str]
    opaque: tuple[str, ...]


class CodeWalk:
    """One walk over everything that a function refers to.

    Functions, classes, instances and modules are records, numbered in the order in which they
    are met. A reference is a number, so circular references are no problem and module names,
    which differ from process to process, do not matter.
    """

    def __init__(
        self, folder: str, *, declared: bool = False, sources: Sources | None = None
    ) -> None:
        self._values = Values(folder, alone=self._alone)
        self._declared = declared
        self._hashes_alone: dict[int, Json] = {}
        self._sources = Sources() if sources is None else sources
        self._records: list[Json] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        self._open: set[int] = set()
        self._num_named = 0
        """Depth inside functions that a library defines by name."""
        self.opaque: list[str] = []
        """Objects whose content cannot be hashed, as messages name them: ``DB, a sqlite3.…``."""

    @property
    def files(self) -> dict[str, str]:
        """The files that the walk met through paths: absolute path -> sha256, hex."""
        return self._values.files

    def digest(self, root: Any, *, name: str = "") -> str:
        """Hash of an object and everything it refers to, hex; ``name`` is for errors."""
        name = name or getattr(root, "__qualname__", None) or type(root).__qualname__
        try:
            return digest([self._refer(root, name), self._records])
        except OpaqueError as error:
            raise RecipeError(error.explain(name, moves=moves(error.value))) from None
        except RecursionError:
            raise RecipeError(
                f"{name} uses values that are nested too deeply to be hashed. Flatten them."
            ) from None

    def _refer(self, value: Any, where: str) -> Json:
        """The JSON by which a record refers to a value."""
        if id(value) in self._numbers:
            return ["record", self._numbers[id(value)]]
        if id(value) in self._open:
            return ["itself"]
        self._open.add(id(value))
        try:
            plain = self._values.plain(value, self._refer, where)
        except OpaqueError as error:
            if error.value is not value:
                raise
            return self._opaque(value, where)
        finally:
            self._open.discard(id(value))
        if plain is not None:
            return plain
        if isinstance(value, FunctionType):
            return self._function(value, where)
        if isinstance(value, type):
            if is_users_class(value):
                return self._class(value, where)
            return ["library", library_name(value)]
        if isinstance(value, ModuleType):
            return self._module(value, where)
        if isinstance(value, types.MethodType):
            return ["method", *(self._refer(v, where) for v in (value.__func__, value.__self__))]
        if isinstance(value, types.BuiltinFunctionType) and value.__self__ is not None:
            if not isinstance(value.__self__, ModuleType):
                return ["method", value.__name__, self._refer(value.__self__, where)]
            return ["library", library_name(value)]
        if isinstance(value, types.MethodWrapperType):
            return ["method", value.__name__, self._refer(value.__self__, where)]
        if isinstance(value, staticmethod | classmethod):
            return [type(value).__name__, self._refer(value.__func__, where)]
        if isinstance(value, functools.cached_property):
            return ["cached_property", self._refer(value.func, where)]
        if isinstance(value, property):
            accessors = (value.fget, value.fset, value.fdel)
            return ["property", *(self._refer(accessor, where) for accessor in accessors)]
        of_typing = type(value).__module__ in ("typing", "types") and is_named(type(value))
        if isinstance(value, typing.TypeVar) or of_typing:
            if isinstance(value, Iterable) and not hasattr(value, "__origin__"):
                return self._opaque(value, where)
            return ["type", repr(value)]
        if hasattr(value, "__wrapped__") and callable(value):
            empty_cache(value)
            wrapped = self._refer(value.__wrapped__, where)
            return self._with_added(["wrapped", library_name(type(value)), wrapped], value, where)
        if is_users_class(type(value)):
            return self._instance(value, where)
        if isinstance(value, _OF_C) or (callable(value) and is_named(value)):
            return ["library", library_name(value)]
        return self._of_library(value, where)

    def _alone(self, value: Any, where: str) -> Json:
        """The hash of a value in a walk of its own, in which no other has a number yet."""
        if id(value) not in self._hashes_alone:
            self._kept.append(value)
            self._hashes_alone[id(value)] = None
            outer = self._records, self._numbers, self._open
            self._records, self._numbers, self._open = [], {}, set()
            try:
                made = digest([self._refer(value, where), self._records])
            finally:
                self._records, self._numbers, self._open = outer
            self._hashes_alone[id(value)] = ["alone", made]
        if self._hashes_alone[id(value)] is None:  # it leads back to the set
            raise OpaqueError(where, value)
        return self._hashes_alone[id(value)]

    def _opaque(self, value: Any, where: str) -> Json:
        """An object whose content cannot be hashed: only a recipe's ``depends_on`` covers it."""
        if moves(value) or not self._declared:
            raise OpaqueError(where, value)
        if not self._num_named:
            kind = type(value)
            self.opaque.append(f"{where}, a {kind.__module__}.{kind.__qualname__}")
        return ["depends_on", library_name(type(value))]

    def _with_added(self, found: Json, value: Any, where: str) -> Json:
        """A library's function, with the attributes that were set on it."""
        private = "__" if is_cached_function(value) else "_"
        held = {
            name: item
            for name, item in vars(value).items()
            if not name.startswith(private) and name != "cache_parameters"
        }
        return [*found, self._refer(held, where)] if held else found

    def _start(self, value: Any) -> int:
        number = len(self._records)
        self._records.append(None)
        self._numbers[id(value)] = number
        self._kept.append(value)
        return number

    def _finish(self, number: int, record: Json) -> Json:
        self._records[number] = record
        return ["record", number]

    # Functions.

    def _function(self, function: FunctionType, where: str) -> Json:
        if not is_users_function(function):
            return self._library_function(function, where)
        number = self._start(function)
        node = self._sources.function(function)
        code = function.__code__
        name = function.__qualname__
        names = global_names(code)
        record: dict[str, Json] = {"kind": "function"}
        form = None if node is None else self._sources.form(node)
        if attribute := unseen_read(code) if form is None else form.unseen:
            raise RecipeError(_UNSEEN.format(name=name, attribute=attribute))
        if node is None or form is None:
            record["code"] = code_json(code, function.__doc__)
            record["imports"] = [
                self._module_named(imported, function.__globals__)
                for imported in sorted(imported_names(code))
            ]
            if {"__import__", "import_module"} & {*code.co_names, *names}:
                raise RecipeError(_COMPUTED_IMPORT.format(name=name))
        else:
            _refuse_random(node, function.__globals__, name)
            record["code"] = form.text
            record["imports"] = self._imports_in(node, function)
            if called := self._called_imports(node, function.__globals__, name):
                record["called imports"] = called
            decorators = getattr(node, "decorator_list", [])
            expressions = (NormalForm(ast.Expr(decorator)) for decorator in decorators)
            names = names.union(*(expression.free_names for expression in expressions))
        if files := self._values.files_named(texts_in(code) if form is None else form.strings):
            record["files"] = files
        record["globals"] = self._names(names, function.__globals__, node)
        record["closure"] = self._closure(function, name)
        record["defaults"] = self._refer(function.__defaults__, f"a default of {name}")
        record["kwdefaults"] = self._refer(function.__kwdefaults__, f"a default of {name}")
        record["attributes"] = self._refer(
            {k: v for k, v in vars(function).items() if k != "__wrapped__"}, name
        )
        record["wrapped"] = self._refer(getattr(function, "__wrapped__", None), name)
        return self._finish(number, record)

    def _library_function(self, function: FunctionType, where: str) -> Json:
        """A library's function by name; one that wraps a user's own, by the wrapped function."""
        wrapped = getattr(function, "__wrapped__", None)
        # Not by __module__ and __qualname__: a wrapper has those of what it wraps.
        module = versioned(str(function.__globals__.get("__name__")))
        name = f"{module}:{function.__code__.co_qualname}"
        if "<locals>" not in name and wrapped is None:
            return self._with_added(["library", name], function, where)
        number = self._start(function)
        # The internals of what a library itself defines count by the library's version.
        named = is_named(function) or _wraps_named(function)
        self._num_named += named
        try:
            parts: list[Json] = ["library", name, self._refer(wrapped, where)]
            for cell in function.__closure__ or ():
                try:
                    parts.append(self._refer(cell.cell_contents, where))
                except ValueError:
                    parts.append(None)
                except OpaqueError as error:
                    if not self._num_named:
                        raise
                    parts.append(["library", library_name(type(error.value))])
            if not self._num_named and (function.__defaults__ or function.__kwdefaults__):
                parts.append(self._refer(function.__defaults__, where))
                parts.append(self._refer(function.__kwdefaults__, where))
        finally:
            self._num_named -= named
        return self._finish(number, parts)

    def _closure(self, function: FunctionType, where: str) -> Json:
        captured = []
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                value = cell.cell_contents
            except ValueError:
                captured.append([name, None])
                continue
            captured.append([name, self._refer(value, f"{name} (captured by {where})")])
        return captured

    # Names.

    def _names(self, names: Iterable[str], scope: Mapping[str, Any], node: ast.AST | None) -> Json:
        return [[name, self._name(name, scope, node)] for name in sorted(names)]

    def _name(self, name: str, scope: Mapping[str, Any], node: ast.AST | None) -> Json:
        """The object that a name in some code refers to."""
        if name in _MODULE_NAMES:
            return ["module's own"]
        if name not in scope:
            if not hasattr(builtins, name):
                return ["unbound"]
            if name in _SEES_ALL:
                return ["builtin", self._scope(scope)]
            built_in = getattr(builtins, name)
            if getattr(built_in, "__module__", "builtins") == "builtins" and callable(built_in):
                return ["builtin"]
            return self._refer(built_in, name)
        value = scope[name]
        if isinstance(value, ModuleType) and is_user_module(value):
            return self._used_of_module(value, attribute_chains(node, name) if node else {()})
        return self._variable(name, scope)

    def _variable(self, name: str, scope: Mapping[str, Any]) -> Json:
        """A module's variable."""
        return self._refer(scope[name], name)

    def _used_of_module(self, module: ModuleType, chains: Iterable[tuple[str, ...]]) -> Json:
        """What ``module.a.b`` refers to, for each such chain of attributes."""
        uses = []
        for chain in sorted(chains):
            owner, depth = module, 0
            while depth < len(chain) and is_user_module(vars(owner).get(chain[depth])):
                owner, depth = vars(owner)[chain[depth]], depth + 1
            if depth == len(chain):
                uses.append([chain, self._module(owner, owner.__name__)])
            elif chain[depth] in vars(owner):
                uses.append([chain, self._variable(chain[depth], vars(owner))])
            elif "__getattr__" in vars(owner):
                uses.append([chain, self._module(owner, owner.__name__)])
            else:
                uses.append([chain, ["unbound"]])
        return ["module", uses]

    def _imports_in(self, node: ast.AST, function: FunctionType) -> Json:
        """What import statements inside a function import."""
        imported: list[Json] = []
        for module, name, local in import_targets(node, function.__globals__):
            if module is None:
                imported.append(self._library(name))
            elif local is not None:
                imported.append(self._used_of_module(module, attribute_chains(node, local)))
            elif name in vars(module):
                imported.append(self._variable(name, vars(module)))
            else:
                imported.append(["unbound"])
        return imported

    def _called_imports(self, node: ast.AST, scope: Mapping[str, Any], where: str) -> list[Json]:
        """The modules that calls such as ``__import__("helper")`` import, each complete."""
        modules = []
        for called in called_imports(node, scope):
            if called is None:
                raise RecipeError(_COMPUTED_IMPORT.format(name=where))
            name, level = called
            modules.append(self._module_named(name, scope, level=level))
        return modules

    def _module_named(self, name: str, scope: Mapping[str, Any], *, level: int = 0) -> Json:
        module = import_users(name, scope, level=level)
        return self._library(name) if module is None else self._module(module, name)

    def _library(self, name: str) -> Json:
        """A module that an import names and that is not the user's."""
        module = sys.modules.get(name)
        return ["library", versioned(name)] if module is None else self._module(module, name)

    def _module(self, module: ModuleType, where: str) -> Json:
        """A complete module: everything that it defines."""
        if not is_user_module(module):
            if not is_library_module(module):
                return self._opaque(module, where)
            return ["library", versioned(module.__name__)]
        if id(module) in self._numbers:
            return ["record", self._numbers[id(module)]]
        number = self._start(module)
        return self._finish(number, {"kind": "module", "names": self._scope(vars(module))})

    def _scope(self, scope: Mapping[str, Any]) -> Json:
        if id(scope) in self._numbers:
            return ["record", self._numbers[id(scope)]]
        number = self._start(scope)
        names = [name for name in scope if name not in _MODULE_NAMES and is_followed(scope[name])]
        return self._finish(number, [[n, self._variable(n, scope)] for n in sorted(names)])

    # Classes and instances.

    def _class(self, cls: type, where: str) -> Json:
        nodes = self._sources.classes(cls)
        if not nodes and type(cls).__module__ not in _KNOWN and not is_users_class(type(cls)):
            return self._opaque(cls, where)
        number = self._start(cls)
        methods = own_functions(cls)
        module = sys.modules.get(cls.__module__)
        scope: Mapping[str, Any] = vars(module) if module is not None else {}
        for method in methods.values():
            scope = method.__globals__
        record: dict[str, Json] = {
            "kind": "class",
            "bases": [self._refer(b, cls.__qualname__) for b in cls.__bases__ if b is not object],
            "meta": self._refer(type(cls), cls.__qualname__),
        }
        for node in nodes:
            _refuse_random(node, scope, cls.__qualname__)
        if nodes:
            forms = [self._sources.form(node) for node in nodes]
            record["code"] = [form.text for form in forms]
            called = [i for n in nodes for i in self._called_imports(n, scope, cls.__qualname__)]
            if called:
                record["called imports"] = called
            if files := self._values.files_named({text for form in forms for text in form.strings}):
                record["files"] = files
            record["globals"] = [
                self._names(form.free_names, scope, node)
                for form, node in zip(forms, nodes, strict=True)
            ]
            record["closures"] = [
                [name, self._closure(method, f"{cls.__qualname__}.{name}")]
                for name, method in sorted(methods.items())
            ]
            # Defaults are evaluated when the class is loaded: its source does not show the values.
            record["defaults"] = [
                [
                    name,
                    *(
                        self._refer(part, f"a default of {cls.__qualname__}.{name}")
                        for part in made
                    ),
                ]
                for name, method in sorted(methods.items())
                if any(made := (method.__defaults__, method.__kwdefaults__))
            ]
        record["attributes"] = [
            [name, self._refer(vars(cls)[name], f"{cls.__qualname__}.{name}")]
            for name in sorted(vars(cls))
            if not is_covered(name, cls, by_source=bool(nodes), methods=methods)
        ]
        return self._finish(number, record)

    def _instance(self, value: Any, where: str) -> Json:
        number = self._start(value)
        cls = type(value)
        record: dict[str, Json] = {"kind": "instance", "class": self._refer(cls, where)}
        if hasattr(cls, "settings") and isinstance(value, PrepareStep | CrossStep):
            record["settings"] = self._refer(value.settings(), f"{where}.settings()")
        record["state"] = self._state(value, where)
        return self._finish(number, record)

    def _state(self, value: Any, where: str) -> Json:
        """An object's state: as it would be pickled if its class defines that."""
        empty_cache(value)
        own = getattr(type(value), "__getstate__", None)
        if own is not None and own is not getattr(object, "__getstate__", None):
            return self._refer(value.__getstate__(), where)
        state = [
            [name, self._refer(item, f"{where}.{name}")] for name, item in attributes_of(value)
        ]
        base = as_built_in(value)
        if base is not None:
            return [*state, self._values.plain(base, self._refer, where)]
        return [*state, self._opaque(value, where)] if hides_state(value) else state

    def _of_library(self, value: Any, where: str) -> Json:
        """An instance of a library's class: by everything that it holds."""
        fields = getattr(type(value), "__dataclass_fields__", None)
        if fields is not None:
            items = [[n, self._refer(getattr(value, n, None), f"{where}.{n}")] for n in fields]
            return ["dataclass", library_name(type(value)), items]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            items = [self._refer(item, where) for item in value]
            return ["tuple", library_name(type(value)), items]
        if moves(value) or (hides_state(value) and as_built_in(value) is None):
            return self._opaque(value, where)
        empty_cache(value)
        number = self._start(value)
        record: dict[str, Json] = {"kind": "instance", "class": library_name(type(value))}
        record["state"] = [
            [name, self._refer(item, f"{where}.{name}")] for name, item in attributes_of(value)
        ]
        base = as_built_in(value)
        if base is not None:
            record["value"] = self._values.plain(base, self._refer, where)
        return self._finish(number, record)


def _refuse_random(node: ast.AST, scope: Mapping[str, Any], name: str) -> None:
    """Refuses code that draws from a random generator of the process."""
    if generator := shared_generator_used(node, scope):
        raise RecipeError(_RANDOM.format(name=name, generator=generator))


def _wraps_named(function: FunctionType) -> bool:
    """Whether a library's function decorates one that the library's source defines by name."""
    inner = inspect.unwrap(function)
    return (
        isinstance(inner, FunctionType)
        and not is_users_function(inner)
        and "<locals>" not in inner.__code__.co_qualname
    )


def functions_of(source: Source | ExtractedSource) -> tuple[Any, ...]:
    """The user's functions that a source calls, and the source itself if its class is too."""
    found: tuple[Callable[..., Any], ...] = getattr(source, "functions", ())
    return (*found, source) if is_users_class(type(source)) else found


class _PartsWalk(CodeWalk):
    """A walk that keeps the name of each record, and the value of each variable."""

    def __init__(self, folder: str, *, declared: bool, sources: Sources) -> None:
        super().__init__(folder, declared=declared, sources=sources)
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

    def _alone(self, value: Any, where: str) -> Json:
        # Members of a set are no parts: their hashes are in that of the set.
        outer = self._labels, self._objects, self._variables
        self._labels, self._objects, self._variables = {}, {}, {}
        try:
            return super()._alone(value, where)
        finally:
            self._labels, self._objects, self._variables = outer

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
