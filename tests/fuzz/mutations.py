"""Damage to files: bytes, blocks, numbers, tokens, and edits of JSON that know its structure.

All of it follows from a ``random.Random``: the same seed damages the same content in the same way.
"""

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (0, 1, 2, 7, 8, 16, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, (1 << 31) - 1, 1 << 31)
NUMBERS += ((1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
TOKENS = (b"\0", b"\n", b"\r\n", b'"', b"'", b",", b"#", b"\\", b"{", b"}", b"[", b"]", b"../")
TOKENS += (b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"%s%n", b"nan")
TOKENS += (
    b"-1",
    b"1e999",
    b"9" * 30,
    b"\x1b[31m",
    b"PK\x05\x06",
    b"snapshard/",
    b"PAR1",
    b"ARROW1",
    b"\x1f\x8b",
)


def damage(
    rng: random.Random, content: bytes, *, others: Sequence[bytes], tokens: Sequence[bytes] = ()
) -> bytes:
    """Content that differs in one to four places."""
    changed = content
    while changed == content:
        for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
            changed = rng.choice(_WAYS)(rng, changed, others, (*TOKENS, *tokens))
    return changed


def _place(rng: random.Random, content: bytes) -> int:
    """A position: anywhere, or near the start or the end, where heads and tables lie."""
    if not content:
        return 0
    near = min(len(content), 64)
    first, last = rng.choice(
        ((0, len(content)), (0, len(content)), (0, near), (len(content) - near, len(content)))
    )
    return rng.randrange(first, last)


def _piece(rng: random.Random, content: bytes) -> tuple[int, int]:
    start = _place(rng, content)
    longest = len(content) - start
    length = rng.choice((1, 2, 4, 8, 16, 64, 512, 1 << 30))
    return start, start + rng.randint(0, min(length, longest))


def _flip(rng: random.Random, content: bytes, *_: Any) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[_place(rng, content)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set(rng: random.Random, content: bytes, *_: Any) -> bytes:
    changed = bytearray(content)
    if changed:
        value = rng.choice((0, 0x20, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        changed[_place(rng, content)] = value
    return bytes(changed)


def _insert(rng: random.Random, content: bytes, *_: Any) -> bytes:
    at = rng.choice((_place(rng, content), len(content)))
    return content[:at] + rng.randbytes(rng.choice((1, 1, 2, 8, 100))) + content[at:]


def _delete(rng: random.Random, content: bytes, *_: Any) -> bytes:
    start, stop = _piece(rng, content)
    return content[:start] + content[stop:]


def _cut(rng: random.Random, content: bytes, *_: Any) -> bytes:
    return content[: rng.choice((_place(rng, content), rng.randint(0, len(content))))]


def _behead(rng: random.Random, content: bytes, *_: Any) -> bytes:
    return content[_place(rng, content) :]


def _zero(rng: random.Random, content: bytes, *_: Any) -> bytes:
    start, stop = _piece(rng, content)
    return content[:start] + bytes(stop - start) + content[stop:]


def _repeat(rng: random.Random, content: bytes, *_: Any) -> bytes:
    start, stop = _piece(rng, content)
    at = rng.choice((stop, _place(rng, content)))
    return content[:at] + content[start:stop] * rng.choice((1, 1, 2, 5)) + content[at:]


def _swap(rng: random.Random, content: bytes, *_: Any) -> bytes:
    a, b, c, d = sorted(rng.randint(0, len(content)) for _ in range(4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def _splice(rng: random.Random, content: bytes, others: Sequence[bytes], _: Any) -> bytes:
    if not others:
        return content
    other = rng.choice(others)
    if rng.random() < 0.2:
        return other
    if rng.random() < 0.5:
        # At the same place of both: heads of the one, data of the other.
        at = rng.randint(0, min(len(content), len(other)))
        return content[:at] + other[at:]
    return content[: rng.randint(0, len(content))] + other[rng.randint(0, len(other)) :]


def _token(rng: random.Random, content: bytes, _: Any, tokens: Sequence[bytes]) -> bytes:
    token, at = rng.choice(tokens), _place(rng, content)
    return content[:at] + token + content[at + rng.choice((0, len(token))) :]


def _number(rng: random.Random, content: bytes, *_: Any) -> bytes:
    """Another binary number in the place of one: a limit, or one that is near what was there."""
    width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    at = min(_place(rng, content), max(0, len(content) - width))
    found = int.from_bytes(content[at : at + width], order)
    number = rng.choice((*NUMBERS, found + 1, found - 1, found * 2, found // 2))
    part = (number % (1 << 8 * width)).to_bytes(width, order)
    return content[:at] + part + content[at + width :]


def _digit(rng: random.Random, content: bytes, *_: Any) -> bytes:
    """Another digit in the place of one: numbers in text."""
    places = [i for i, byte in enumerate(content[: 1 << 14]) if 0x30 <= byte <= 0x39]
    if not places:
        return content
    at = rng.choice(places)
    return content[:at] + rng.choice((b"0", b"1", b"9", b"-", b"99", b"")) + content[at + 1 :]


_WAYS: tuple[Callable[..., bytes], ...] = (_flip, _set, _insert, _delete, _cut, _behead, _zero)
_WAYS += (_flip, _repeat, _swap, _splice, _token, _token, _number, _number, _digit)


_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, 10**400, -(1 << 63), 1 << 64, "", "\0", "x" * 5000, [], {}),
    *([None], [[]], {"": None}, "../../etc/passwd", "\u202etxt", "\ud800", "{}", "nan", "1", "é"),
    *(float("nan"), float("inf"), float("-inf"), 1e308, "\x1b[2J", "__import__('os')", "a\nb"),
)
_NEST = "@nest@"
_DEPTH = 100_000


def edit_json(rng: random.Random, content: bytes) -> bytes:
    """JSON, or JSON Lines, with one to three edits: types, limits, depth, keys twice or missing."""
    lines = content.splitlines(keepends=True)
    one = rng.randrange(len(lines)) if len(lines) > 1 and _is_lines(lines) else None
    text = content if one is None else lines[one]
    changed = text
    while changed == text:
        value = json.loads(text)
        for _ in range(rng.choice((1, 1, 2, 3))):
            value = _edit(rng, value)
        changed = _json_bytes(rng, value)
    if one is None:
        return changed
    return b"".join([*lines[:one], changed, b"\n", *lines[one + 1 :]])


def _is_lines(lines: Sequence[bytes]) -> bool:
    try:
        json.loads(lines[0])
    except ValueError:
        return False
    return True


def _json_bytes(rng: random.Random, value: Any) -> bytes:
    text = json.dumps(value)
    deep = (
        "[" * _DEPTH + "]" * _DEPTH if rng.random() < 0.5 else '{"a":' * _DEPTH + "1" + "}" * _DEPTH
    )
    text = text.replace(f'"{_NEST}"', deep)
    if rng.random() < 0.1:
        # A key that is there twice: the first one, with another value.
        start = text.find('{"')
        if start >= 0:
            key = text[start + 1 : text.find('"', start + 2) + 1]
            text = f"{text[: start + 1]}{key}: 0, {text[start + 1 :]}"
    return text.encode()


def _edit(rng: random.Random, value: Any) -> Any:
    places = list(_places(value))
    if not places or rng.random() < 0.02:
        return copy.deepcopy(rng.choice((*_VALUES, _NEST)))
    holder, key = rng.choice(places)
    way = rng.randrange(8)
    old = holder[key]
    if way == 0:
        del holder[key]
    elif way == 1:
        holder[key] = _NEST
    elif way == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(rng.choice((old, *_VALUES))))
    elif way == 2:
        holder[rng.choice((key + " ", "extra", "", "\ud800", "..", key * 100))] = copy.deepcopy(old)
    elif way == 3:
        other, at = rng.choice(places)
        if at in other if isinstance(other, dict) else at < len(other):
            holder[key], other[at] = other[at], holder[key]
            if _loops(value):
                holder[key], other[at] = other[at], holder[key]
    elif way == 4 and isinstance(old, int):
        holder[key] = old + rng.choice((1, -1, 1 << 20, -(1 << 20)))
    elif way == 5 and isinstance(old, str):
        at = rng.randint(0, len(old))
        holder[key] = old[:at] + rng.choice(("", "0", "/", "\n", "é")) + old[at + 1 :]
    else:
        holder[key] = copy.deepcopy(rng.choice(_VALUES))
    return value


def _places(value: Any) -> Any:
    """Every (container, key) of a value."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in list(pairs):
            yield value, key
            yield from _places(inner)


def _loops(value: Any) -> bool:
    try:
        json.dumps(value)
    except (ValueError, RecursionError):
        return True
    return False
