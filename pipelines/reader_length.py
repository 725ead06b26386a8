"""Keeps ``reader.py`` short: functions that few snapshots need go into a file beside it.

Most readers are short enough as they are. Where they are not, first what serves rows goes, then
what decodes images of mixed formats, then what makes tensors of packed or ragged lists; and many
features share lines.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterator

MAX_LINES = 399
"""Of ``reader.py``."""

_LAST = (
    (),
    ("_decode",),
    ("_parse",),
    ("_each_image",),
    ("_decode", "_parse"),
    ("_each_image", "_parse"),
    ("_each_image", "_parse", "_pixels"),
    ("_each_image", "_parse", "_pixels", "_nest"),
)
_MOVES = tuple((*first, *last) for last in _LAST for first in ((), ("_served",)))
"""What may move: the first that makes the reader short enough does."""
_WITH = {
    "_parse": ("_lists_present", "_tensor", "_ragged"),
    "_each_image": ("_decode", "_upright"),
    "_served": ("_input", "_is_missing", "_nothing"),
}
"""Functions that are called by one alone, and move with it."""
_COPIED = {
    "_parse": ("SIDES",),
    "_each_image": ("_resize",),
    "_pixels": ("_resize",),
    "_nest": ("STRUCTS",),
}
"""What it uses and others do, too."""
_FEATURE_LINES = 24
"""Lines that are left for the features, if they need as many, before functions move."""

_FEATURES = "FEATURES: dict[str, dict[str, Any]] = {}"

_HEADER = '''\
"""What ``reader.py`` beside it does with values that few snapshots hold.

It belongs to the snapshot {fingerprint} alone. It needs TensorFlow and nothing else.
"""

from __future__ import annotations

{imports}from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

# fmt: off
FINGERPRINT = "{fingerprint}"
'''

Write = Callable[[bool], str]
"""Whether functions lie in a file beside it -> the reader with all its functions."""


@dataclasses.dataclass(frozen=True)
class _Part:
    """Where a function or a constant stands in a text: lines, numbered from 0."""

    first: int
    end: int


def shortened(
    write: Write, features: Callable[[int], list[str]], *, module: str, fingerprint: str
) -> tuple[str, str]:
    """The reader, and the file beside it of this name; that is empty where none is needed.

    Args:
        write: Gives the whole reader; its constant ``FEATURES`` is replaced.
        features: That constant, on so many lines (and two more) or fewer.
        module: Name of the module that functions move to.
        fingerprint: Of the snapshot.
    """
    natural = features(2**31)
    for moves in _MOVES:
        text = write(bool(moves))
        parts = _parts(text)
        if not {*moves} <= {*parts}:
            continue
        lines, beside = _split(text.splitlines(), parts, moves, module)
        at = next(number for number, line in enumerate(lines) if line == _FEATURES)
        room = MAX_LINES - len(lines) + 1
        if room >= min(len(natural), _FEATURE_LINES):
            break
    # Two lines are the brackets.
    lines[at : at + 1] = natural if len(natural) <= room else features(max(1, room - 2))
    if beside:
        text = "\n".join(beside)
        used = [name for name in ("functools", "itertools", "json") if f"{name}." in text]
        imports = "".join(f"import {name}\n" for name in used)
        header = _HEADER.format(fingerprint=fingerprint, imports=imports)
        beside = [*header.splitlines(), *beside]
    return _text(lines), _text(beside)


def _text(lines: list[str]) -> str:
    return "\n".join(lines).rstrip("\n") + "\n" if lines else ""


def _split(
    lines: list[str], parts: dict[str, _Part], moves: tuple[str, ...], module: str
) -> tuple[list[str], list[str]]:
    """The lines of the reader without what moves, and the lines of that."""
    if not moves:
        return lines, []
    kept = dict(enumerate(lines))
    code = lines.index("# fmt: on")  # what stands before may hold any text

    def take(name: str) -> list[str]:
        part = parts[name]
        for number in range(part.first, _next(lines, part.end)):
            kept.pop(number, None)
        return lines[part.first : part.end]

    constants, functions = [], []
    for caller in moves:
        for name in (caller, *_WITH.get(caller, ())):
            functions += ["", "", *take(name)] if name in parts else []
    for name in dict.fromkeys(name for caller in moves for name in _COPIED.get(caller, ())):
        if name not in parts:
            continue
        before = dict(kept)
        copied = take(name)
        if name.isupper():
            constants += copied
        else:
            functions += ["", "", *copied]
        if any(name in line for number, line in kept.items() if number > code):
            kept = dict(before)
    calls = re.compile(rf"(?<![\w.])(?=(?:{'|'.join(moves)})\()")
    reader = [
        calls.sub(f'_beside("{module}").', line) if number > code else line
        for number, line in kept.items()
    ]
    return reader, [*constants, "# fmt: on", *functions]


def _next(lines: list[str], number: int) -> int:
    """The first line from this one on that is not empty."""
    while number < len(lines) and not lines[number]:
        number += 1
    return number


def _parts(text: str) -> dict[str, _Part]:
    """The module's own functions and annotated constants by name."""
    return dict(_found(ast.parse(text)))


def _found(tree: ast.Module) -> Iterator[tuple[str, _Part]]:
    for node in tree.body:
        part = _Part(node.lineno - 1, node.end_lineno or node.lineno)
        if isinstance(node, ast.FunctionDef):
            yield node.name, part
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, part
