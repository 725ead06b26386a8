"""Text from data as shown to people: invisible characters are written as escapes.

Names that differ must not look equal, and none may control a terminal. ``str.isprintable`` rejects
control, format and unassigned characters and separators (Unicode's categories C and Z, except the
plain space). Characters that are invisible although their category is that of letters or marks
are listed here: the rest of Unicode's Default_Ignorable_Code_Point, and blank Braille.
"""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u2800\\u3164\\ufe00-\\ufe0f\\uffa0"
    "\\U000e0100-\\U000e01ef]"
)


def visible(text: str, *, keep: str = "") -> str:
    r"""The text with invisible characters written as Python escapes.

    Args:
        text: Any text.
        keep: Invisible characters to leave unchanged, such as line breaks.

    >>> print(visible("a\u200bb \x1b[31m\n"))
    a\u200bb \x1b[31m\n
    """
    if _is_seen(text.translate(dict.fromkeys(map(ord, keep)))):
        return text
    return "".join(c if _is_seen(c) or c in keep else ascii(c)[1:-1] for c in text)


def visible_json(text: str) -> str:
    r"""An equivalent JSON text whose invisible characters are escaped.

    >>> print(visible_json('{"a\u200b": "\U000e0041"}'))
    {"a\u200b": "\udb40\udc41"}
    """
    if _is_seen(text):
        return text
    return "".join(c if _is_seen(c) else _escape_json(c) for c in text)


def human_count(number: int, unit: str) -> str:
    """A count with its unit, which is given in the plural.

    >>> human_count(1, "shards"), human_count(1200, "files")
    ('1 shard', '1,200 files')
    """
    return f"{number:,} {unit.removesuffix('s') if number == 1 else unit}"


def human_number(number: float, *, digits: int = 4) -> str:
    """A number for people: its significant digits, and all digits before the point.

    >>> human_number(45000.25), human_number(0.12345), human_number(2e20)
    ('45,000', '0.1235', '2e+20')
    >>> human_number(2019.5, digits=5)
    '2,019.5'
    """
    is_long = 10 ** (digits - 1) <= abs(number) < 1e15
    return f"{number:,.0f}" if is_long else f"{number:,.{digits}g}"


def human_bytes(size: float) -> str:
    """A size in decimal units, for people.

    >>> human_bytes(150_000_000)
    '150 MB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def shorten(text: str, limit: int) -> str:
    """A text, truncated if it is longer than the limit."""
    return text if len(text) <= limit else f"{text[:limit]} …"


def _is_seen(text: str) -> bool:
    return text.isprintable() and not _UNSEEN.search(text)


def _escape_json(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
