"""What a line of JSON says: its object, and the value that a feature finds in it.

A feature ``a.b`` is the key ``b`` of an object under ``a``, or the key ``a.b`` itself; of a list
of objects it takes the list of their values. This is what the fast parser must agree with, and
what lines are read with that it refuses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

_SHOWN_CHARS = 60


class UnfitError(Exception):
    """A line, or a value in it, is not what it should be: ``reason`` and message."""

    def __init__(self, reason: str, message: str) -> None:
        """Takes a stable class of failure, and the finding."""
        self.reason = reason
        super().__init__(message)


class _Object(dict[str, Any]):
    """An object, and which of its keys stood there more than once."""

    twice: frozenset[str] = frozenset()


def parse_line(line: bytes) -> dict[str, Any]:
    """The object of a line; bytes in it that are not UTF-8 become lone surrogates.

    Raises:
        UnfitError: if it holds no JSON object, or more.
    """
    try:
        found = _DECODER.decode(line.decode("utf-8", "surrogateescape"))
    except RecursionError:
        raise UnfitError("nested too deeply", "the line is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise UnfitError(
            "not JSON", f"the line {shown(line)} is no JSON: {error.msg} at its byte {error.pos}"
        ) from None
    except ValueError as error:
        raise UnfitError("not JSON", f"the line {shown(line)} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnfitError("not an object", f"the line {shown(line)} is no JSON object")
    return found


def find_value(value: Any, parts: Sequence[str]) -> Any:
    """What stands under the keys; None where nothing does.

    Raises:
        UnfitError: if a key stands there twice, or under something that has no keys.
    """
    if value is None or not parts:
        return value
    if isinstance(value, list):
        return [find_value(item, parts) for item in value]
    if not isinstance(value, dict):
        raise UnfitError("wrong type", f"is inside {shown(value)}, expected an object there")
    for number in range(len(parts), 0, -1):
        key = ".".join(parts[:number])
        if key in value:
            if key in getattr(value, "twice", ()):
                raise UnfitError("duplicate key", f"has its key {key!r} twice")
            return find_value(value[key], parts[number:])
    return None


def routes(value: Any, parts: Sequence[str]) -> tuple[tuple[tuple[str, int], ...], Any] | None:
    """How a value is reached: keys, each with the lists that lie under it; and the value itself.

    None where there is no value that says so.
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
    """The first value inside of lists, and how many of them lie around it."""
    depth = 0
    while isinstance(value, list):
        depth += 1
        value = next((item for item in value if item is not None), None)
    return value, depth


def fitted(value: Any, type_: pa.DataType) -> Any:
    """A value as Arrow takes it for a type.

    Raises:
        UnfitError: if it is none of that type.
    """
    if value is None:
        return None
    if pa.types.is_list(type_):
        if not isinstance(value, list):
            raise UnfitError("wrong type", f"is {shown(value)}, expected a list")
        return [fitted(item, type_.value_type) for item in value]
    if pa.types.is_large_string(type_):
        text = text_of(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UnfitError("not UTF-8", f"is {shown(text)}, which is not UTF-8") from None
        return text
    if pa.types.is_boolean(type_):
        fits = isinstance(value, bool)
    elif pa.types.is_floating(type_):
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if fits and isinstance(value, int) and abs(value) >= 2**1024 - 2**970:
            raise UnfitError("out of range", f"is {shown(value)}, too large for a float")
    else:
        fits = isinstance(value, int) and not isinstance(value, bool)
        fits = fits or (isinstance(value, float) and value == 0 and math.copysign(1, value) < 0)
        low, high = (0, 2**64) if pa.types.is_uint64(type_) else (-(2**63), 2**63)
        if fits and not low <= value < high:
            raise UnfitError("out of range", f"is {shown(value)}, out of range for {type_}")
    if not fits:
        raise UnfitError("wrong type", f"is {shown(value)}, expected {type_}")
    if pa.types.is_floating(type_):
        return float(value)
    return value if isinstance(value, bool) else int(value)


def text_of(value: Any) -> str:
    """A string as it is, any other value as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of an object by their dotted names; objects inside lists are left in them."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}" if name else key)
    else:
        yield name, value


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
        keys = [key for key, _ in pairs]
        found.twice = frozenset(key for key in found if keys.count(key) > 1)
    return found


def _integer(text: str) -> int | float:
    # As a float it keeps its sign; as an integer it has none.
    return -0.0 if text == "-0" else int(text)


def _float(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise ValueError(f"the number {text[:_SHOWN_CHARS]} is too large for a float")
    return found


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, strict=True
)
