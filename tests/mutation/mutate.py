"""Small faults in source text, one at a time, and a choice of them that a move does not change.

A mutant is known by its function's name, its statement, what is changed, and which of the equal
ones in that function it is: neither by its file nor by its line. So the same mutants are chosen
after a function went to another module. What is reformatted, or made public or private, stays the
same too.
"""

import ast
import copy
import dataclasses
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
_TOLD = re.compile(r"(?i:_?log(ger|ging)?|warnings)\.\w+|(.*\.)?\w*(Error|Warning|Exception)")
"""What is called with a message."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault: bytes [start, stop) of the module at ``path`` are replaced."""

    path: str
    line: int
    function: str
    """Its name alone; that of the class outside methods, empty at a module's top."""
    statement: str
    """In one form, whatever its layout; without the statements that it holds."""
    mutation: str
    occurrence: int
    """Which of the equal ones of this function, from 0."""
    start: int
    stop: int
    replacement: str

    @functools.cached_property
    def rank(self) -> str:
        """Where it comes in the order of choice: a hash of what it is known by."""
        public = [re.sub(r"\b_+(?=[A-Za-z])", "", text) for text in (self.function, self.statement)]
        known = "\0".join([*public, self.mutation, str(self.occurrence)])
        return hashlib.blake2b(known.encode(), digest_size=8).hexdigest()

    def apply(self, source: bytes) -> bytes:
        """The module's source with the fault; every line keeps its number."""
        return source[: self.start] + self.replacement.encode() + source[self.stop :]


def find_mutants(source: bytes, path: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text.

    Left alone are annotations, decorators, ``__all__``, ``TYPE_CHECKING`` blocks, f-strings, and
    what is said by exceptions, warnings and logging.
    """
    return list(_Finder(source, path).mutants(ast.parse(source)))


def choose(mutants: Iterable[Mutant], num: int) -> list[Mutant]:
    """Those of the lowest ranks: ``num`` of them, and what has the rank of the last."""
    ordered = sorted(mutants, key=lambda mutant: (mutant.rank, mutant.path, mutant.start))
    return [one for one in ordered if one.rank <= ordered[min(num, len(ordered)) - 1].rank]


@dataclasses.dataclass
class _Scope:
    """A module, class or function."""

    name: str = ""
    gives_value: bool = False
    """Whether it is annotated to return something else than None."""
    seen: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)


class _Finder:
    """Walks one module."""

    def __init__(self, source: bytes, path: str) -> None:
        self._source, self._path = source, path
        lines = source.splitlines(keepends=True)
        self._offsets = [0]
        for line in lines:
            self._offsets.append(self._offsets[-1] + len(line))

    def mutants(
        self, node: ast.AST, scope: _Scope | None = None, statement: str = ""
    ) -> Iterator[Mutant]:
        scope = scope or _Scope()
        if isinstance(node, ast.stmt):
            statement = _header(node)
        for target, mutation, text in _mutations(node, scope):
            yield self._mutant(target, mutation, text, scope, statement)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = _Scope(node.name, gives_value=_gives_value(node))
        for child in _children(node):
            yield from self.mutants(child, scope, statement)

    def _mutant(
        self, target: Any, mutation: str, text: str, scope: _Scope, statement: str
    ) -> Mutant:
        start = self._offsets[target.lineno - 1] + target.col_offset
        stop = self._offsets[target.end_lineno - 1] + target.end_col_offset
        text += "\n" * self._source[start:stop].count(b"\n")
        occurrence = scope.seen[statement, mutation]
        scope.seen[statement, mutation] += 1
        return Mutant(
            path=self._path,
            line=target.lineno,
            function=scope.name,
            statement=statement,
            mutation=mutation,
            occurrence=occurrence,
            start=start,
            stop=stop,
            replacement=text if isinstance(target, ast.stmt) else f"({text})",
        )


def _header(statement: ast.stmt) -> str:
    """A statement in one form, without those that it holds."""
    alone = copy.copy(statement)
    for block in _BLOCKS:
        if hasattr(alone, block):
            setattr(alone, block, [])
    return ast.unparse(alone)


def _gives_value(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    returns = None if isinstance(node, ast.ClassDef) else node.returns
    return returns is not None and ast.unparse(returns) not in ("None", "Any")


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """What of a node may be mutated."""
    left_out: tuple[str, ...] = ()
    match node:
        case ast.Raise() | ast.JoinedStr():
            return
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return
        case ast.Subscript(value=ast.Name(id="Literal")):
            return
        case ast.Call(func=func) if _TOLD.fullmatch(ast.unparse(func)):
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            left_out = ("body",)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            left_out = ("decorator_list", "returns")
        case ast.AnnAssign() | ast.arg():
            left_out = ("annotation",)
    for name, value in ast.iter_fields(node):
        if name not in left_out:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield child


def _mutations(node: ast.AST, scope: _Scope) -> Iterator[tuple[ast.AST, str, str]]:
    """What is replaced, how the mutation is called, and the new text."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, "condition → True", "True"
            yield test, "condition → False", "False"
        case ast.While(test=test):
            yield test, "condition → False", "False"
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield test, "filter → True", "True"
        case ast.Return(value=ast.expr() as value) if scope.gives_value:
            if ast.unparse(value) != "None":
                yield value, "returns None", "None"
        case ast.Expr(value=ast.Call(func=func)):
            if not _TOLD.fullmatch(ast.unparse(func)):
                yield node, "call deleted", "pass"
        case ast.Raise():
            yield node, "raise deleted", "pass"
        case ast.Slice(lower=lower, upper=upper):
            for name, bound in (("lower", lower), ("upper", upper)):
                # A number is mutated as such.
                if bound is not None and not re.fullmatch(r"-?\d+", ast.unparse(bound)):
                    yield bound, f"slice's {name} + 1", f"({ast.unparse(bound)}) + 1"
        case _:
            yield from _operators(node)


def _operators(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    match node:
        case ast.Compare(ops=ops):
            for number, old in enumerate(ops):
                new = _COMPARISONS[type(old)]()
                changed = _with(node, ops=[*ops[:number], new, *ops[number + 1 :]])
                yield node, f"{_name(old)} → {_name(new)}", changed
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            if not (_is_text(left) or _is_text(right)):
                new_op = _ARITHMETIC[type(op)]()
                yield node, f"{_name(op)} → {_name(new_op)}", _with(node, op=new_op)
        case ast.AugAssign(op=op, value=value) if type(op) in _ARITHMETIC and not _is_text(value):
            new_op = _ARITHMETIC[type(op)]()
            yield node, f"{_name(op)} → {_name(new_op)}", _with(node, op=new_op)
        case ast.BoolOp(op=ast.And()):
            yield node, "and → or", _with(node, op=ast.Or())
        case ast.BoolOp():
            yield node, "or → and", _with(node, op=ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, "not x → x", ast.unparse(operand)
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield node, f"{value} → {value + 1}", str(value + 1)


def _with(node: ast.AST, **changes: Any) -> str:
    """The text of a node with other fields."""
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return ast.unparse(changed)


def _name(operator: ast.AST) -> str:
    return type(operator).__name__


def _is_text(node: ast.AST) -> bool:
    """Whether ``+``, ``*`` or ``%`` would join, repeat or format it."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
