"""Plain data as the text of Python assignments, with line lengths that keep them readable."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

_WIDTH = 100
_VERY_WIDE = 1_000
"""Width of long lines: a list that would need lines wider than this is put on two lines."""
MAX_LINES = 12
"""A list that needs more lines than this gets wider lines instead."""


class Name(str):
    """A name to emit as it is, not as a string literal."""

    __slots__ = ()


def assign(target: str, value: object, *, max_lines: int = MAX_LINES) -> Iterator[str]:
    """Yields the lines of an assignment: one line if short, else several, wider if too many.

    Args:
        target: The text before the equals sign.
        value: None, a bool, number, string or bytes, or a list, tuple or dict of such.
        max_lines: Maximum number of lines for the items of a dict.
    """
    before = f"{target} = "
    lines = list(_literal(value, before=before, after="", indent=""))
    if isinstance(value, dict) and len(lines) > max_lines + 2:
        items = [f"{_one_line(key)}: {_one_line(item)}" for key, item in value.items()]
        lines = [before + "{", *_packed(items, indent="    ", max_lines=max_lines), "}"]
    yield from lines


def _literal(value: object, *, before: str, after: str, indent: str) -> Iterator[str]:
    """Yields the lines of a literal, with ``before`` on the first and ``after`` on the last."""
    line = indent + before + _one_line(value) + after
    if len(line) <= _WIDTH or not isinstance(value, dict | list) or not value:
        yield line
        return
    inner = indent + "    "
    yield indent + before + ("{" if isinstance(value, dict) else "[")
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _literal(item, before=f"{_one_line(key)}: ", after=",", indent=inner)
    else:
        yield from _packed([_one_line(item) for item in value], indent=inner, max_lines=MAX_LINES)
    yield indent + ("}" if isinstance(value, dict) else "]") + after


def _packed(items: list[str], *, indent: str, max_lines: int) -> list[str]:
    """Packs items into lines; widens the lines if there would be more than ``max_lines``."""
    width, room = _WIDTH, sum(len(item) + 2 for item in items)
    if room > max_lines * _VERY_WIDE:
        max_lines = min(max_lines, 2)
    while len(lines := _filled(items, indent, width)) > max_lines:
        width = max(width + width // 16, room // max_lines + len(indent))
    return lines


def _filled(items: list[str], indent: str, width: int) -> list[str]:
    """Joins items by commas, on lines of up to ``width`` characters (more for one long item)."""
    ends = list(itertools.accumulate(len(item) + 2 for item in items))
    lines, first, start = [], 0, 0
    for number, end in enumerate(ends):
        if number > first and len(indent) + end - start - 1 > width:
            lines.append(indent + ", ".join(items[first:number]) + ",")
            first, start = number, ends[number - 1]
    return [*lines, indent + ", ".join(items[first:]) + ","]


def _one_line(value: object) -> str:
    """A literal on one line; NaN and infinities as ``float("nan")`` etc."""
    if isinstance(value, Name):
        return str(value)
    if isinstance(value, float) and repr(value) in {"nan", "inf", "-inf"}:
        return f'float("{value!r}")'
    if isinstance(value, list):
        return "[" + ", ".join(map(_one_line, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_one_line, value)) + ")"
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{_one_line(key)}: {_one_line(item)}" for key, item in value.items())
            + "}"
        )
    text = repr(value)
    if isinstance(value, str | bytes) and '"' not in text and "\\'" not in text:
        return text[:-1].replace("'", '"', 1) + '"'
    return text
