"""Source code in a form in which only what has an effect counts.

Comments, docstrings, formatting and annotations that nothing reads leave no trace; names and
constants do.
"""

from __future__ import annotations

import ast
import copy
from types import CodeType
from typing import Any


def normalised(node: ast.AST) -> str:
    """A text that is the same for code that means the same, however it is written down."""
    return ast.dump(stripped(node))


def stripped(node: ast.AST) -> ast.AST:
    """A copy of a definition or statement without what has no effect."""
    stripped: ast.AST = _Normaliser().visit(copy.deepcopy(node))
    return stripped


class _Normaliser(ast.NodeTransformer):
    """Removes what has no effect."""

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
        # In a class they may be the fields of a dataclass.
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
    """Compiled code, where there is no source: without line numbers, file name, docstring."""
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
