"""The source of live functions and classes: found, checked against the code, and normalised.

In the normal form only what has an effect counts: names and constants, but not comments,
docstrings, formatting or annotations that nothing reads.
"""

from __future__ import annotations

import ast
import copy
import dis
import linecache
import symtable
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from .user_code import is_user_file

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_GLOBAL_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


class Sources:
    """Parsed source files, each read once."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module | None] = {}
        self._codes: dict[str, list[CodeType]] = {}

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
        tree = self._tree(code.co_filename, function.__globals__)
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
        found = list(_find_classes(tree, cls.__qualname__.split(".")))
        lines = [method.__code__.co_firstlineno for method in methods]
        precise = [
            node
            for node in found
            if lines and all(node.lineno <= line <= (node.end_lineno or 0) for line in lines)
        ]
        return precise or found

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
    found = {}
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
            found[name] = function
    return found


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


def texts_in(code: ast.AST | CodeType) -> set[str]:
    """The strings in some code; of a source text, without docstrings."""
    if isinstance(code, CodeType):
        constants = [constant for inner in _nested(code) for constant in inner.co_consts]
    else:
        nodes = ast.walk(stripped(code))
        constants = [part.value for part in nodes if isinstance(part, ast.Constant)]
    return {constant for constant in constants if isinstance(constant, str)}


def free_names(node: ast.AST) -> set[str]:
    """Names that a definition or statement reads from its surroundings."""
    module: Any = ast.Module(body=[stripped(node)], type_ignores=[])  # type: ignore[list-item]
    table = symtable.symtable(ast.unparse(ast.fix_missing_locations(module)), "<node>", "exec")
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    waiting = list(table.get_children())
    while waiting:
        inner = waiting.pop()
        names.update(s.get_name() for s in inner.get_symbols() if s.is_global())
        waiting += inner.get_children()
    return names


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


def normalised(node: ast.AST) -> str:
    """A text that is the same for equivalent code, however it is written."""
    return ast.dump(stripped(node))


def stripped(node: ast.AST) -> ast.AST:
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
