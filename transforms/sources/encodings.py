"""Guesses the encoding of text from its beginning, or names those that it may have.

UTF-8 proves itself. Any bytes are text in most other encodings, so only what looks like Western
text is taken as cp1252: single letters beyond ASCII within words, and the usual signs. Of all else,
the encodings in which it reads best are named, for a person to choose.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections import Counter
from itertools import pairwise

_SIGNS = frozenset(
    b"\x80\x84\x85\x91\x92\x93\x94\x95\x96\x97\x99\xa0\xa1\xa3\xa7\xa9\xaa\xab\xad\xae\xb0\xb1\xb2"
    b"\xb3\xb4\xb5\xb7\xba\xbb\xbc\xbd\xbe\xbf\xd7".decode("cp1252")
)
"""Currency, quotes, dashes, fractions and the like."""
_WITHIN_WORDS = b"\x91\x92\x96\xad\xb7".decode("cp1252")
"""Apostrophes, hyphens and the Catalan dot."""
_IN_WORD = re.compile(
    rf"[^\W\d_](?![{_WITHIN_WORDS}])[{''.join(sorted(_SIGNS))}][^\W\d_]"
    "|[\u20ac\xa3][^\\W\\d_]{2}|[^\\W\\d_]{3}[\xb2\xb3]"
)
"""Signs where Polish and others have letters: cubes after three letters, pounds before two."""
_ELSEWHERE = frozenset(b"\x83\x9f\xd0\xdd\xde\xf0\xfd\xfe".decode("cp1252"))
"""Rare in Western text; in other encodings letters of Turkish and Czech."""
_OTHERS = (
    *("cp1251", "cp932", "gb18030", "euc_jp", "euc_kr", "big5", "cp1250", "cp1253", "cp1254"),
    *("cp1255", "cp1256", "koi8_r", "cp1252"),
)
_NOT_TEXT = bytes([*range(9), *range(14, 32), *range(127, 256)])
_MIN_BYTES = 8
_MAX_SHOWN = 5
_MAX_CHARS = 20_000
_WORD = re.compile(r"\S*[^\x00-\x7f]\S*")


@dataclasses.dataclass(frozen=True)
class Reading:
    """An encoding that text may have, and how some of it reads then."""

    encoding: str
    sample: str = ""


def readings(head: bytes) -> list[Reading]:
    """The encodings that text may have; one if its bytes show it.

    Args:
        head: The first bytes of a file's text; the last line may be incomplete.
    """
    if wide := unmarked_utf16(head):
        return [Reading(wide)]
    whole = head[: max(head.rfind(b"\n"), head.rfind(b"\r")) + 1] or head
    if _decoded(whole, "utf-8") is not None:
        return [Reading("utf-8")]
    western = _decoded(whole, "cp1252")
    if western is not None and _is_western(western):
        return [Reading("cp1252", _sample(western))]
    lines = b"\n".join(line for line in whole.splitlines() if not line.isascii())
    texts = {name: _decoded(lines, name) for name in _OTHERS}
    found = {name: text for name, text in texts.items() if text is not None}
    best = sorted(found, key=lambda name: -_plausibility(found[name]))[:_MAX_SHOWN]
    return [Reading(name, _sample(found[name])) for name in best] or [Reading("latin-1")]


def unmarked_utf16(head: bytes) -> str:
    """``utf-16-le`` or ``utf-16-be`` if text is that without a byte order mark; else empty.

    Of ASCII characters in it, every other byte is zero.
    """
    head = head[: len(head) // 2 * 2]
    low, high = head[::2], head[1::2]
    for zeros, others, name in ((high, low, "utf-16-le"), (low, high, "utf-16-be")):
        num_ascii = len(others.translate(None, _NOT_TEXT))
        if len(head) >= _MIN_BYTES and min(zeros.count(0), num_ascii) > len(zeros) / 2:
            return name
    return ""


def not_marked(path: str, encoding: str) -> str:
    """The error about a file that is UTF-16 and read as UTF-8."""
    return (
        f"{path} looks like UTF-16, and would be read as UTF-8. Name its encoding in the source: "
        f"encoding={encoding!r}."
    )


def _decoded(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None


def _is_western(text: str) -> bool:
    """Whether characters beyond ASCII are single letters, or signs that are not within words."""
    beyond = [char for char in text if not char.isascii()]
    if not all((char.isalpha() and char not in _ELSEWHERE) or char in _SIGNS for char in beyond):
        return False
    pairs = [pair for pair in pairwise(text) if not pair[0].isascii() and not pair[1].isascii()]
    num_pairs = sum(first.isalpha() and second.isalpha() for first, second in pairs)
    return 4 * num_pairs <= len(beyond) and not _IN_WORD.search(text)


def _plausibility(text: str) -> float:
    """The share of characters beyond ASCII that are letters of one script, as words have them.

    Of two scripts that are as frequent either counts, and a script before what is no letter.

    >>> _plausibility("é€"), _plausibility("я€é€")
    (0.5, 0.0)
    """
    text = text[:_MAX_CHARS]
    beyond = [char for char in text if not char.isascii()]
    scripts = Counter(map(_script, beyond))
    most = max(scripts, key=lambda script: (scripts[script], script), default="")
    odd = sum(_is_odd(*pair) for pair in pairwise(text) if not "".join(pair).isascii())
    return ((scripts[most] if most else 0) - odd) / max(len(beyond), 1)


def _is_odd(first: str, second: str) -> bool:
    """Whether words rarely have two letters in this order: ``aB``, or letters of two scripts."""
    mixed = first.isalpha() and second.isalpha() and (first.isascii() or second.isascii())
    other = second if first.isascii() else first
    return (first.islower() and second.isupper()) or (mixed and _script(other) != "LATIN")


def _script(char: str) -> str:
    if not char.isalpha() or "HALFWIDTH" in (name := unicodedata.name(char, "")):
        return ""
    script = name.partition(" ")[0]
    return "CJK" if script in ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA") else script


def _sample(text: str) -> str:
    found = _WORD.search(text)
    return found[0][:30] if found else ""
