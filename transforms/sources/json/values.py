"""Parses a line of JSON, and finds the value of a feature in its object.

A feature ``a.b`` is the key ``b`` of an object under ``a``, or the key ``a.b`` itself; in a list of
objects it is the list of their values. The fast parser must agree with this reference, which also
reads the lines that the fast parser refuses.

No value is dropped silently: a line is rejected if a feature has two values, if an object stored as
text would lose one, or if a key is invalid.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ...examples.dtypes import is_exact
from ...examples.row_values import UnfitError
from ...rejects import INEXACT, NOT_UTF8, OUT_OF_RANGE

_SHOWN_CHARS = 60
_DUPLICATE = "duplicate key"
_NOT_UTF8 = re.compile("[\ud800-\udfff]")
"""Lone surrogates: bytes that are not UTF-8, or escapes such as ``\\ud800``."""
_MAY_ESCAPE = (b"\\ud", b"\\uD")


class _Object(dict[str, Any]):
    """An object, and its duplicate keys."""

    twice: frozenset[str] = frozenset()


def parse_line(line: bytes, *, what: str = "line") -> dict[str, Any]:
    """The object of a line. Invalid UTF-8 in its values becomes lone surrogates.

    Args:
        line: The JSON text of one object.
        what: What the text is, for the message.

    Raises:
        UnfitError: if the line is not exactly one JSON object, or a key is not UTF-8.
    """
    try:
        try:
            text = line.decode()
            escaped = any(escape in line for escape in _MAY_ESCAPE)
            record = (_STRICT_KEYS_DECODER if escaped else _DECODER).decode(text)
        except UnicodeDecodeError:
            record = _STRICT_KEYS_DECODER.decode(line.decode("utf-8", "surrogateescape"))
    except RecursionError:
        raise UnfitError(f"the {what} is nested too deeply", "nested too deeply") from None
    except json.JSONDecodeError as error:
        raise UnfitError(
            f"the {what} {shown(line)} is not valid JSON: {error.msg} at its byte {error.pos}",
            "not JSON",
        ) from None
    except ValueError as error:
        raise UnfitError(
            f"the {what} {shown(line)} is not valid JSON: {error}", "not JSON"
        ) from None
    if not isinstance(record, dict):
        raise UnfitError(f"the {what} {shown(line)} is not a JSON object", "not an object")
    return record


def find_value(value: Any, parts: Sequence[str]) -> Any:
    """The value under the keys; None if there is none.

    Raises:
        UnfitError: if a key is duplicated, if two paths lead to a value, as in
            ``{"a": {"b": 1}, "a.b": 2}``, or if the keys are under something other than an object.
    """
    if value is None or not parts:
        return value
    if isinstance(value, list):
        return [find_value(item, parts) for item in value]
    if not isinstance(value, dict):
        raise UnfitError(f"is inside {shown(value)}, expected an object there")
    by_key: dict[str, Any] = {}
    problem: UnfitError | None = None
    for number in range(len(parts), 0, -1):
        key = ".".join(parts[:number])
        if key not in value:
            continue
        if key in getattr(value, "twice", ()):
            raise UnfitError(f"has its key {key!r} twice", _DUPLICATE)
        try:
            by_key[key] = find_value(value[key], parts[number:])
        except UnfitError as error:
            if error.reason == _DUPLICATE:
                raise
            problem = problem or error
    given = [key for key, child in by_key.items() if _holds_any(child)]
    if len(given) > 1:
        raise UnfitError(f"has two values, under {given[0]!r} and under {given[1]!r}", _DUPLICATE)
    if not given and problem is not None:
        raise problem
    return by_key[given[0]] if given else next(iter(by_key.values()), None)


def _holds_any(value: Any) -> bool:
    """Whether there is a value: neither null nor a list of objects that all lack the key."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, list) and item:
            pending += item
        elif item is not None:
            return True
    return False


def routes(value: Any, parts: Sequence[str]) -> tuple[tuple[tuple[str, int], ...], Any] | None:
    """The path to a value: keys, each with the depth of lists under it, and the value itself.

    None if the value does not exist.
    """
    if not parts:
        return (), value
    if isinstance(value, dict):
        for number in range(len(parts), 0, -1):
            key = ".".join(parts[:number])
            if key in value:
                inner, depth = _first(value[key])
                if number < len(parts) and not isinstance(inner, dict):
                    return None
                below = routes(inner, parts[number:])
                return None if below is None else (((key, depth), *below[0]), below[1])
    return None


def _first(value: Any) -> tuple[Any, int]:
    """The first value inside nested lists, and the depth of these lists."""
    depth = 0
    while isinstance(value, list):
        depth += 1
        value = next((item for item in value if item is not None), None)
    return value, depth


def fitted(value: Any, type_: pa.DataType, dtype: str) -> Any:
    """A value as Arrow accepts it for a type.

    Args:
        value: A JSON value.
        type_: The type to parse it as.
        dtype: The feature's dtype; if a float, integers must be exact in it.

    Raises:
        UnfitError: if the value is not of that type.
    """
    if value is None:
        return None
    if pa.types.is_list(type_):
        if not isinstance(value, list):
            raise UnfitError(f"is {shown(value)}, expected a list")
        return [fitted(item, type_.value_type, dtype) for item in value]
    if pa.types.is_large_string(type_):
        if (twice := _first_twice(value)) is not None:
            raise UnfitError(f"holds the key {twice!r} twice", _DUPLICATE)
        text = text_of(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UnfitError(f"is {shown(text)}, which is not UTF-8", NOT_UTF8) from None
        return text
    if pa.types.is_boolean(type_):
        fits = isinstance(value, bool)
    elif pa.types.is_floating(type_):
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if fits and isinstance(value, int) and abs(value) >= 2**1024 - 2**970:
            raise UnfitError(f"is {shown(value)}, too large for a float", OUT_OF_RANGE)
        if fits and isinstance(value, int) and not is_exact(value, dtype):
            raise UnfitError(
                f"is {shown(value)}, expected {dtype}, which cannot represent it", INEXACT
            )
    else:
        fits = isinstance(value, int) and not isinstance(value, bool)
        fits = fits or (isinstance(value, float) and value == 0 and math.copysign(1, value) < 0)
        low, high = (0, 2**64) if pa.types.is_uint64(type_) else (-(2**63), 2**63)
        if fits and not low <= value < high:
            raise UnfitError(f"is {shown(value)}, out of range for {type_}", OUT_OF_RANGE)
    if not fits:
        how = ""
        if pa.types.is_boolean(type_) and isinstance(value, str):
            how = ": as texts, declare ss.ClassLabel(('no', 'yes')), with the words that occur"
        raise UnfitError(f"is {shown(value)}, expected {type_}{how}")
    if pa.types.is_floating(type_):
        return float(value)
    return value if isinstance(value, bool) else int(value)


def _first_twice(value: Any) -> str | None:
    """A duplicate key of an object in a value."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, _Object):
            if item.twice:
                return min(item.twice)
            pending += item.values()
        elif isinstance(item, list):
            pending += item
    return None


def text_of(value: Any) -> str:
    """A string as it is, any other value as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def object_without_doubles(content: bytes) -> Any:
    """Parses JSON in which no object has a duplicate key.

    Raises:
        ValueError: if it is not JSON, has a duplicate key, or a number too large for a float.
    """
    value = json.loads(content, object_pairs_hook=_object, **_NUMBERS)
    if (twice := _first_twice(value)) is not None:
        raise ValueError(f"the key {twice!r} occurs twice in one object")
    return value


def shown(value: Any) -> str:
    """A value or line for a message, shortened."""
    if isinstance(value, bytes):
        text = repr(value[: 2 * _SHOWN_CHARS].decode(errors="backslashreplace"))
    else:
        try:
            text = text_of(value).encode("utf-8", "backslashreplace").decode()
        except (RecursionError, ValueError):
            text = type(value).__name__
        text = repr(text) if isinstance(value, str) else text
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        found.twice = frozenset(key for key, count in counts.items() if count > 1)
    return found


def _object_of_utf8(pairs: list[tuple[str, Any]]) -> _Object:
    for key, _ in pairs:
        if _NOT_UTF8.search(key):
            raise UnfitError(f"the line has the key {shown(key)}, which is not UTF-8", NOT_UTF8)
    return _object(pairs)


def _integer(text: str) -> int | float:
    # A float keeps the sign; an integer would not.
    return -0.0 if text == "-0" else int(text)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:_SHOWN_CHARS]} is too large for a float")
    return number


_NUMBERS: dict[str, Any] = {"parse_int": _integer, "parse_float": _float}
_DECODER = json.JSONDecoder(object_pairs_hook=_object, **_NUMBERS)
_STRICT_KEYS_DECODER = json.JSONDecoder(object_pairs_hook=_object_of_utf8, **_NUMBERS)
