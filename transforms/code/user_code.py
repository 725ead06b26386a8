"""The user's code: which modules are theirs, the source of functions, what names in it refer to.

The source of live functions and classes is found, checked against the code, and normalised: in the
normal form only what has an effect counts, names and constants, but not comments, docstrings,
formatting or annotations that nothing reads.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dis
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import linecache
import os
import site
import struct
import symtable
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

PACKAGE = __name__.partition(".")[0]
"""This package's own name."""

_PACKAGE_FOLDER = os.path.dirname(os.path.realpath(sys.modules[PACKAGE].__file__ or ""))
_INSTALLED_PARTS = frozenset({"site-packages", "dist-packages"})

_SUBPACKAGES = frozenset({"schemas", "transforms", "pipelines", "runners"})

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_GLOBAL_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})

_VERSIONED = frozenset(
    {"apache_beam", "numpy", "PIL", "pyarrow", "tensorflow", "tensorflow_transform", "tfx_bsl"}
    | {PACKAGE}
)
"""Libraries whose versions are already part of every fingerprint."""

_GENERATOR = ("getstate", "get_state", "bit_generator")
"""Attributes of random generators."""
_MOVING = ("__next__", "fileno", *_GENERATOR)
"""Attributes of iterators, files and random generators."""
_IMPORTERS = frozenset({"__import__", "import_module"})
_BUILT_IN: tuple[Any, ...] = (dict, list, tuple, set, frozenset, bytes, float, str, int)
"""Classes whose content can be read from an instance of a subclass."""
_CACHED_FUNCTION = type(functools.cache(len))
_POINTER = struct.calcsize("P")

_OF_CLASS = frozenset(
    {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__", "__hash__"}
    | {"__annotations__", "__abstractmethods__", "__orig_bases__", "__parameters__"}
    | {"__match_args__", "__dataclass_params__"}
)
"""Attributes that Python itself gives to classes."""
_UNSEEN = frozenset(
    {"__globals__", "__doc__", "__annotations__", "sys.modules"}
    | {"getcomments", "getdoc", "getsource", "getsourcelines"}
)
"""Attributes, and functions of ``inspect``, that lead to what a hash of code leaves out."""

_MADE_BY_PYTHON = 1 << 9
"""The flag of classes defined in Python code (Py_TPFLAGS_HEAPTYPE)."""


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


def is_library_module(module: ModuleType) -> bool:
    """Whether a module is Python's or an installed library's: its version says what it holds."""
    name = module.__name__
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return sys.modules.get(name) is module
    top = sys.modules.get(name.partition(".")[0])  # parts of libraries may have no file
    path = getattr(module, "__file__", None) or getattr(top, "__file__", None)
    if path is not None:
        return not is_user_file(path)
    return not is_user_module(module) and bool(list(getattr(top, "__path__", ())))


_is_loaded_user_file = functools.lru_cache(maxsize=16384)(is_user_file)
"""For the files of loaded modules: there are thousands, and they stay where they are."""


def user_modules() -> list[ModuleType]:
    """The user's modules that are loaded."""
    return [
        module
        for module in list(sys.modules.values())
        if is_user_module(module, is_user=_is_loaded_user_file)
    ]


class Sources:
    """Parsed source files, each read once, and the definitions found in them."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module | None] = {}
        self._codes: dict[str, list[CodeType]] = {}
        self._found: dict[int, tuple[CodeType, ast.AST | None]] = {}
        self._forms: dict[int, NormalForm] = {}

    @property
    def paths(self) -> list[str]:
        """The files that were read, in order."""
        return [path for path, tree in self._trees.items() if tree is not None]

    def form(self, node: ast.AST) -> NormalForm:
        """The normal form of a definition in these sources."""
        return self._forms.setdefault(id(node), NormalForm(node))

    def module(self, names: Mapping[str, Any]) -> ast.Module | None:
        """The source of the module with this namespace; None if there is none."""
        path, loader = names.get("__file__"), names.get("__loader__")
        if not isinstance(path, str):
            return None
        try:
            text = loader.get_source(names["__name__"]) if loader is not None else None
        except (AttributeError, ImportError, OSError):
            text = None
        return self._tree(path, names) if text is None else self._parse(path, text)

    def function(self, function: FunctionType) -> ast.AST | None:
        """The definition of a function.

        For a lambda that cannot be distinguished from another on its line, it is the statement
        that holds both. None if there is no source, or if the code was not made from it: the file
        was edited since, or the text of a notebook is gone.
        """
        code = function.__code__
        if id(code) not in self._found:
            self._found[id(code)] = code, self._find_function(code, function.__globals__)
        return self._found[id(code)][1]

    def _find_function(self, code: CodeType, names: Mapping[str, Any]) -> ast.AST | None:
        tree = self._tree(code.co_filename, names)
        if tree is None or not any(_same_code(code, c) for c in self._codes[code.co_filename]):
            return None
        if code.co_name == "<lambda>":
            return _find_lambda(tree, code)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name == code.co_name
                and _first_line(node) == code.co_firstlineno
            ):
                return node
        return None

    def classes(self, cls: type) -> list[ast.ClassDef]:
        """The definitions of a class: one, or all of that name if they cannot be distinguished.

        Empty if no source matches its methods.
        """
        module = sys.modules.get(cls.__module__)
        names = vars(module) if module is not None else {}
        methods = list(own_functions(cls).values())
        if methods:
            names = methods[0].__globals__
            path = methods[0].__code__.co_filename
            tree = self._tree(path, names)
        else:
            path = names.get("__file__", "")
            tree = self.module(names)
        if tree is None:
            return []
        if not all(
            any(_same_code(method.__code__, code) for code in self._codes[path])
            for method in methods
        ):
            return []
        definitions = list(_find_classes(tree, cls.__qualname__.split(".")))
        lines = [method.__code__.co_firstlineno for method in methods]
        precise = [
            node
            for node in definitions
            if lines and all(node.lineno <= line <= (node.end_lineno or 0) for line in lines)
        ]
        return precise or definitions

    def _tree(self, path: str, names: Mapping[str, Any]) -> ast.Module | None:
        if path not in self._trees:
            linecache.checkcache(path)
            self._parse(path, "".join(linecache.getlines(path, dict(names))))
        return self._trees[path]

    def _parse(self, path: str, text: str) -> ast.Module | None:
        if path not in self._trees:
            self._trees[path], self._codes[path] = None, []
            try:
                tree = ast.parse(text) if text else None
                if tree is not None:
                    code = compile(text, path, "exec", dont_inherit=True)
                    self._trees[path], self._codes[path] = tree, list(_nested(code))
            except (SyntaxError, ValueError, RecursionError):
                pass
        return self._trees[path]


def own_functions(cls: type) -> dict[str, FunctionType]:
    """The functions written in a class's body, by name: not what a decorator generated."""
    functions = {}
    for name, value in vars(cls).items():
        function = value
        if isinstance(value, staticmethod | classmethod):
            function = value.__func__
        elif isinstance(value, property):
            function = value.fget
        if (
            isinstance(function, FunctionType)
            and function.__qualname__ == f"{cls.__qualname__}.{function.__name__}"
            and function.__module__ == cls.__module__
            and not _is_generated(function)
        ):
            functions[name] = function
    return functions


def _is_generated(function: FunctionType) -> bool:
    """Whether a function in a class was written elsewhere, by a decorator or a library."""
    path = function.__code__.co_filename
    if path.startswith("<") and not path.endswith(".py"):
        return "__file__" in function.__globals__
    return not is_user_file(path)


def global_names(code: CodeType) -> set[str]:
    """Names that a function reads from its module or the builtins, inner functions included."""
    return {
        instruction.argval
        for inner in _nested(code)
        for instruction in dis.get_instructions(inner)
        if instruction.opname in _GLOBAL_READS
    }


def imported_names(code: CodeType) -> set[str]:
    """Modules that a function imports when it runs."""
    return {
        instruction.argval
        for inner in _nested(code)
        for instruction in dis.get_instructions(inner)
        if instruction.opname == "IMPORT_NAME"
    }


def texts_in(code: CodeType) -> set[str]:
    """The strings in some compiled code."""
    constants = [constant for inner in _nested(code) for constant in inner.co_consts]
    return {constant for constant in constants if isinstance(constant, str)}


def attribute_chains(node: ast.AST, name: str) -> set[tuple[str, ...]]:
    """How code uses a name: ("a", "b") for each longest ``name.a.b``, () where it is bare."""
    chains: set[tuple[str, ...]] = set()

    def visit(current: ast.AST) -> None:
        attributes: list[str] = []
        inner = current
        while isinstance(inner, ast.Attribute):
            attributes.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id == name:
            chains.add(tuple(reversed(attributes)))
            return
        for child in ast.iter_child_nodes(current):
            visit(child)

    visit(node)
    return chains


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _find_lambda(tree: ast.Module, code: CodeType) -> ast.AST | None:
    lambdas = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno
    ]
    inside = {
        (line, column)
        for line, _, column, _ in code.co_positions()
        if line is not None and column is not None
    }
    fitting = [
        node
        for node in lambdas
        if (node.body.lineno, node.body.col_offset) in inside
        # Column 0 holds what the compiler put before the first instruction.
        and all(_covers(node, line, column) for line, column in inside if column)
    ]
    if len(fitting) == 1:
        return fitting[0]
    if len(lambdas) == 1:
        return lambdas[0]
    for statement in ast.walk(tree):
        if (
            isinstance(statement, ast.stmt)
            and not any(isinstance(inner, ast.stmt) for inner in _below(statement))
            and any(node is inner for node in lambdas for inner in ast.walk(statement))
        ):
            return statement
    return None


def _covers(node: ast.Lambda, line: int, column: int) -> bool:
    start = (node.lineno, node.col_offset)
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return start <= (line, column) <= end


def _below(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield from ast.walk(child)


def _find_classes(tree: ast.AST, path: list[str]) -> Iterator[ast.ClassDef]:
    """Class definitions by qualified name; ``<locals>`` leads into a function's body."""
    path = [part for part in path if part != "<locals>"]

    def search(node: ast.AST, rest: list[str]) -> Iterator[ast.ClassDef]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _Definition):
                if getattr(child, "name", None) == rest[0]:
                    if len(rest) > 1:
                        yield from search(child, rest[1:])
                    elif isinstance(child, ast.ClassDef):
                        yield child
            else:
                yield from search(child, rest)

    yield from search(tree, path)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _same_code(a: CodeType, b: CodeType) -> bool:
    return (
        a.co_name == b.co_name
        and a.co_code == b.co_code
        and a.co_names == b.co_names
        and a.co_varnames == b.co_varnames
        and a.co_freevars == b.co_freevars
        and len(a.co_consts) == len(b.co_consts)
        and all(map(_same_constant, a.co_consts, b.co_consts))
    )


def _same_constant(a: object, b: object) -> bool:
    if isinstance(a, CodeType) and isinstance(b, CodeType):
        return _same_code(a, b)
    # By repr: 1, 1.0 and True are equal, and so are 0.0 and -0.0.
    return (
        type(a) is type(b)
        and (a == b or a != a)
        and (isinstance(a, frozenset) or repr(a) == repr(b))
    )


class NormalForm:
    """What has an effect in a definition or statement; each part is computed once."""

    def __init__(self, node: ast.AST) -> None:
        self._node = node

    @functools.cached_property
    def _stripped(self) -> ast.AST:
        return _stripped(self._node)

    @functools.cached_property
    def text(self) -> str:
        """A text that is the same for equivalent code, however it is written."""
        return ast.dump(self._stripped)

    @functools.cached_property
    def strings(self) -> set[str]:
        """The strings in it, without docstrings."""
        constants = (n.value for n in ast.walk(self._stripped) if isinstance(n, ast.Constant))
        return {constant for constant in constants if isinstance(constant, str)}

    @functools.cached_property
    def free_names(self) -> set[str]:
        """Names that it reads from its surroundings."""
        module: Any = ast.Module(body=[self._stripped], type_ignores=[])  # type: ignore[list-item]
        table = symtable.symtable(ast.unparse(ast.fix_missing_locations(module)), "<node>", "exec")
        names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
        waiting = list(table.get_children())
        while waiting:
            inner = waiting.pop()
            names.update(s.get_name() for s in inner.get_symbols() if s.is_global())
            waiting += inner.get_children()
        return names

    @functools.cached_property
    def unseen(self) -> str | None:
        """An attribute by which it reads what its hash leaves out, as ``__doc__``."""
        names = {
            part.id if isinstance(part, ast.Name) else part.attr
            for part in ast.walk(self._node)
            if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Load)
        }
        names |= {
            f"{part.value.id}.{part.attr}"
            for part in ast.walk(self._node)
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
        }
        return min(_UNSEEN & (names | self.strings), default=None)


def _stripped(node: ast.AST) -> ast.AST:
    """A copy of a definition or statement without the parts that have no effect."""
    stripped: ast.AST = _Normaliser().visit(copy.deepcopy(node))
    return stripped


class _Normaliser(ast.NodeTransformer):
    """Removes parts that have no effect."""

    def __init__(self) -> None:
        self._in_class = False

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                kept = [
                    s
                    for s in body
                    if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
                ]
                if not kept and body and field == "body":
                    kept = [ast.Pass()]
                setattr(node, field, kept)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        outer, self._in_class = self._in_class, False
        # A decorator may read annotations, as functools.singledispatch does.
        if not node.decorator_list:
            node.returns = None
            arguments = node.args
            for argument in (
                *arguments.posonlyargs,
                *arguments.args,
                *arguments.kwonlyargs,
                arguments.vararg,
                arguments.kwarg,
            ):
                if argument is not None:
                    argument.annotation = None
        node.type_comment = None
        self.generic_visit(node)
        self._in_class = outer
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outer, self._in_class = self._in_class, True
        self.generic_visit(node)
        self._in_class = outer
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        # In a class it may be the field of a dataclass.
        if self._in_class:
            return node
        if node.value is None:
            node.annotation = ast.Constant(None)
            return node
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        node.kind = None
        return node


def code_json(code: CodeType, doc: str | None) -> list[Any]:
    """Compiled code, if there is no source: without line numbers, file name, docstring."""
    constants: list[Any] = []
    for position, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            constants.append(code_json(constant, None))
        elif position == 0 and doc is not None and constant == doc:
            constants.append(None)
        elif isinstance(constant, frozenset):
            constants.append(sorted(map(repr, constant)))
        else:
            constants.append(repr(constant))
    return [
        code.co_name,
        code.co_code.hex(),
        constants,
        *(list(names) for names in (code.co_names, code.co_varnames, code.co_freevars)),
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
    ]


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


def shared_generator_used(node: ast.AST, scope: Mapping[str, Any]) -> str | None:
    """How some code draws from a random generator of the process, as ``random.random``, if it does.

    Generators that the code makes itself, such as ``random.Random(0)``, are not shared.
    """
    bound = dict(scope)
    for statement in ast.walk(node):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                top = alias.name.partition(".")[0]
                bound[alias.asname or top] = _loaded_module(alias.name if alias.asname else top)
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            module = _loaded_module(statement.module or "")
            for alias in statement.names:
                bound[alias.asname or alias.name] = _loaded(module, alias.name)
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    for name in sorted(names.intersection(bound)):
        for chain in sorted(attribute_chains(node, name)):
            value = bound[name]
            for attribute in chain:
                value = _loaded(value, attribute)
            owner = getattr(value, "__self__", None)
            if any(hasattr(owner, mark) for mark in _GENERATOR):
                return ".".join([name, *chain])
    return None


def unseen_read(code: CodeType) -> str | None:
    """An attribute by which compiled code reads what its hash leaves out, as ``__doc__``."""
    names = {name for inner in _nested(code) for name in inner.co_names}
    return min(_UNSEEN & (names | texts_in(code)), default=None)


def _loaded_module(name: str) -> Any:
    top, *rest = name.split(".")
    return functools.reduce(_loaded, rest, sys.modules.get(top))


def _loaded(owner: Any, name: str) -> Any:
    """An attribute of a module or class; of a module without loading it, if it loads lazily."""
    if isinstance(owner, ModuleType):
        held = vars(owner).get(name, sys.modules.get(f"{owner.__name__}.{name}"))
        # Of those that load on first use, NumPy's generators must be known.
        return getattr(owner, name, None) if held is None and name == "random" else held
    return vars(owner).get(name) if isinstance(owner, type) else None


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


def is_cached_function(value: Any) -> bool:
    """Whether this is what ``functools.cache`` makes of a function."""
    return isinstance(value, _CACHED_FUNCTION)


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


def is_covered(name: str, cls: type, *, by_source: bool, methods: Mapping[str, Any]) -> bool:
    """Whether a class's attribute is covered by its source, or only internal to Python."""
    if name in methods:
        return by_source
    value = vars(cls)[name]
    if name.startswith("__") and name.endswith("__"):
        if functions := _functions_in(value):
            return all(map(_is_generated, functions))  # as decorators make __init__ and __eq__
        if isinstance(value, functools.partialmethod) or is_users_class(type(value)):
            return False
        return by_source or name in _OF_CLASS or any(name in vars(b) for b in cls.__mro__[1:])
    slots = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return isinstance(value, slots) or type(value).__module__ in ("_abc", "_collections")


def _functions_in(value: Any) -> list[FunctionType]:
    """The functions that an attribute of a class holds: its own, or a property's."""
    if isinstance(value, property):
        held = [value.fget, value.fset, value.fdel]
    else:
        held = [value.__func__ if isinstance(value, staticmethod | classmethod) else value]
    return [function for function in held if isinstance(function, FunctionType)]


def is_followed(value: Any) -> bool:
    """Whether a module's variable is to be followed when the complete module counts."""
    return not isinstance(value, ModuleType) or is_user_module(value)
