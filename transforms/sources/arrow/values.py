"""Converts Arrow arrays to the values of a feature.

=================== ===============================================================================
feature of          accepted Arrow values
=================== ===============================================================================
bool                bool, and integers 0 and 1
int8 … uint64       bool (0, 1), integers, and floats and decimals without a fraction, all within
                    the dtype's range. With a ``unit``: values of Timestamp except strings, and time
                    of day and duration
float16 … float64   bool, integers, floats, decimals. Floats, and decimals with a scale above 0, are
                    rounded to the nearest value, and rejected if that is infinite. Integers, and
                    decimals of scale 0, must be exact in the dtype
string              string (must be UTF-8), binary; bool, numbers, dates and times as text
Text                string, binary; all must be UTF-8
ClassLabel          string, binary: the name of a class. bool, integers: its number, or its name if
                    all names are such values written out (``"0"``, ``"true"``). With ``values``:
                    these integers, also as bools, as floats without a fraction, and as text
Timestamp           timestamp and date (if the unit is coarser, only exact values), integers
                    (a number of units), strings in ISO 8601: ``2026-11-21``, with a time ``T09``,
                    ``T09:30`` or ``09:30`` (seconds and a fraction of up to nine digits may
                    follow), with ``Z`` or an offset ``+02:00`` (else UTC). Outer blanks are ignored
=================== ===============================================================================

Columns of other types are refused before a value is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....schemas.features import (
    ClassLabel,
    Feature,
    Scalar,
    Sequence,
    Tensor,
    Text,
    Timestamp,
    frames_of,
    tensor_form,
)
from ....schemas.wire import FLOATS
from ...examples.dtypes import PRECISION, holds_exactly, numpy_dtype
from ...in_parts import in_parts
from ...rejects import INEXACT, NOT_UTF8, OUT_OF_RANGE, UNKNOWN_CLASS, WRONG_TYPE
from .types import nulls

EXACT = 1 << 53
"""A float64 represents all integers up to this one."""

_Bools = npt.NDArray[np.bool_]
Misfits = tuple[tuple[_Bools, str], ...]
"""Which values do not fit a feature, and why. A null always fits."""
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_ZONED = r"(Z|[+-]\d\d(:?\d\d)?)$"
_LIKE_TIME = r"^\d{{4}}-\d\d-\d\d([T ][\d:]+{}(Z|[+-][\d:]+)?)?$"
"""All texts that Arrow accepts as times are like this, for the pattern of a fraction."""
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_LAST_ZEROS = r"(?:(\.\d*[1-9])0+|\.0+)(Z|[+-][\d:]+)?$"
"""Of the fraction of a second: they make it no finer."""


@dataclasses.dataclass(frozen=True)
class Values:
    """Values of a feature: numbers in its dtype, strings as large_binary. Nulls are undefined."""

    values: npt.NDArray[Any] | pa.Array
    misfits: Misfits = ()


def kind_of(type_: pa.DataType) -> str:
    """The kind of a non-nested type, for :func:`takes`."""
    types = pa.types
    tests: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("null", types.is_null),
        ("bool", types.is_boolean),
        ("int", types.is_integer),
        ("float", types.is_floating),
        ("decimal", types.is_decimal),
        ("string", lambda t: types.is_string(t) or types.is_large_string(t)),
        ("string", types.is_string_view),
        ("time", lambda t: types.is_time(t) or types.is_duration(t)),
        ("timestamp", lambda t: types.is_timestamp(t) or types.is_date(t)),
    )
    return next((kind for kind, test in tests if test(type_)), "binary")


def item_of(feature: Feature) -> Feature:
    """The item feature of a sequence, strings for the frames of a clip; others themselves."""
    if frames_of(feature) is not None:
        return Scalar("string")
    return feature.of if isinstance(feature, Sequence) else feature


def takes(feature: Feature) -> tuple[str, ...]:
    """The kinds of Arrow types that a feature accepts."""
    item = item_of(feature)
    form = tensor_form(item)
    if form is None:
        return ()
    if isinstance(item, ClassLabel):
        kinds = ("null", "string", "binary", "bool", "int")
        return kinds if item.values is None else (*kinds, "float", "decimal")
    if isinstance(item, Timestamp):
        return ("null", "timestamp", "int", "string")
    if isinstance(item, Text):
        return ("null", "string", "binary")
    if form.dtype == "string":
        return (
            *("null", "string", "binary", "bool", "int", "float", "decimal"),
            *("timestamp", "time"),
        )
    if form.dtype == "bool":
        return ("null", "bool", "int")
    if form.dtype in FLOATS:
        return ("null", "bool", "int", "float", "decimal")
    if getattr(item, "unit", None) is not None:
        return ("null", "timestamp", "time", "int")
    return ("null", "bool", "int", "float", "decimal")


def convert(array: pa.Array, feature: Feature) -> Values:
    """Converts values of an accepted kind to values of the feature.

    Args:
        array: Neither nested nor encoded.
        feature: The feature; of a sequence or tensor, the values are its items.
    """
    values, misfits = _converted(array, item_of(feature))
    present = ~nulls(array)
    return Values(values, tuple((bad & present, why) for bad, why in misfits if bad.any()))


def _converted(array: pa.Array, item: Feature) -> tuple[Any, Misfits]:
    """The values, and which do not fit; a null may be among them."""
    form = tensor_form(item)
    assert form is not None
    if isinstance(item, ClassLabel):
        return _to_class(array, item)
    if isinstance(item, Timestamp):
        return _to_time(array, item.unit)
    if isinstance(item, Scalar | Tensor) and item.unit is not None:
        times, misfits = _to_time(array, item.unit)
        values, others = _to_number(pa.array(times), form.dtype)
        return values, (*misfits, *others)
    if form.dtype == "string":
        return _to_string(array, utf8=isinstance(item, Text))
    return _to_number(array, form.dtype)


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """The values of an array of bools, numbers or times; 0 for nulls."""
    type_ = array.type
    if pa.types.is_null(type_):
        return np.zeros(len(array), np.int8)
    if pa.types.is_temporal(type_):
        array = array.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    if array.null_count:
        array = array.fill_null(False if pa.types.is_boolean(type_) else 0)
    found: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def cast_or_find(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, _Bools]:
    """Casts an array. Returns it with null for values that cannot be cast, and their mask."""
    unfit = culprits(lambda start, stop: _casts(array[start:stop], type_), len(array))
    bad = np.zeros(len(array), bool)
    if unfit:
        bad[unfit] = True
        array = pc.if_else(pa.array(bad), pa.scalar(None, array.type), array)
    return array.cast(type_), bad


def _casts(array: pa.Array, type_: pa.DataType) -> bool:
    try:
        array.cast(type_)
    except pa.ArrowInvalid:
        return False
    return True


def culprits(fits: Callable[[int, int], bool], num_items: int) -> list[int]:
    """The items that do not fit; a range fits if all its items do."""
    found = in_parts(lambda start, stop: fits(start, stop) or None, num_items)
    return [start for start, _, good in found if good is None]


def _to_number(array: pa.Array, dtype: str) -> tuple[npt.NDArray[Any], Misfits]:
    kind, target = kind_of(array.type), numpy_dtype(dtype)
    misfits: Misfits = ()
    inexact = _inexact(array, kind, dtype) if dtype in FLOATS else None
    if kind == "decimal" and dtype in FLOATS:
        # Via text: the nearest float, which Arrow's own cast does not guarantee.
        array = array.cast(pa.string()).cast(pa.float64())
    elif kind == "decimal":
        array, misfits = _whole_decimals(array, dtype)
    values = numbers(array)
    if values.dtype == target and inexact is None:
        return values, misfits
    with np.errstate(over="ignore", invalid="ignore"):
        if inexact is not None:
            return values.astype(target), ((inexact, INEXACT),)
        if dtype in FLOATS:
            made = values.astype(target)
            return made, ((np.isinf(made) & np.isfinite(values), OUT_OF_RANGE),)
        if dtype == "bool":
            return values.astype(bool), (((values != 0) & (values != 1), WRONG_TYPE),)
        limits = np.iinfo(target)
        if values.dtype.kind == "f":
            wide = values.astype(np.float64)
            whole = wide == np.floor(wide)
            # The float of the largest value + 1 is exact; that of the value may not be.
            inside = (wide >= limits.min) & (wide < float(limits.max + 1))
            made = np.where(whole & inside, wide, 0).astype(target)
            return made, ((~whole, WRONG_TYPE), (~inside, OUT_OF_RANGE))
        if values.dtype.kind in "iu":
            outside = (values < limits.min) | (values > limits.max)
            misfits = (*misfits, (outside, OUT_OF_RANGE))
        return values.astype(target), misfits


def _inexact(array: pa.Array, kind: str, dtype: str) -> _Bools | None:
    """Which integers a float dtype cannot represent; None if the values are not integers."""
    if kind == "int":
        return ~holds_exactly(numbers(array), dtype)
    if kind != "decimal" or array.type.scale > 0:
        return None
    inexact = np.zeros(len(array), bool)
    large = np.flatnonzero(
        np.abs(array.cast(pa.string()).cast(pa.float64()).to_numpy(zero_copy_only=False))
        >= 1 << PRECISION[dtype]
    )
    values = np.array([int(value) for value in array.take(pa.array(large)).to_pylist()], object)
    inexact[large] = ~holds_exactly(values, dtype)
    return inexact


def _whole_decimals(array: pa.Array, dtype: str) -> tuple[pa.Array, Misfits]:
    """Decimals without a fraction as 64-bit integers."""
    whole, bad = cast_or_find(array, pa.decimal256(76, 0))
    wide, too_large = cast_or_find(whole, pa.uint64() if dtype == "uint64" else pa.int64())
    return wide, ((bad, WRONG_TYPE), (too_large, OUT_OF_RANGE))


def _to_class(array: pa.Array, feature: ClassLabel) -> tuple[npt.NDArray[np.int64], Misfits]:
    kind = kind_of(array.type)
    if feature.values is not None and kind not in ("string", "binary"):
        found, misfits = _to_number(array, "int64")
        codes = np.searchsorted(feature.values, found).clip(max=len(feature.values) - 1)
        unknown = np.array(feature.values)[codes] != found
        bad = np.logical_or.reduce([unknown, *(mask for mask, _ in misfits)])
    elif feature.values is None and kind in ("bool", "int") and not feature.num_written(kind):
        codes = numbers(array)
        bad = (codes < 0) | (codes >= len(feature.names))
        codes = np.where(bad, 0, codes)
    else:
        cells = texts(array).cast(pa.large_binary())
        if feature.values is not None:
            known = class_codes(cells, feature.values)
        else:
            names = [name.encode() for name in feature.names]
            known = pc.index_in(cells, pa.array(names, cells.type))
        codes, bad = known.fill_null(0).to_numpy(), nulls(known)
    return codes.astype(np.int64), ((bad, UNKNOWN_CLASS),)


def class_codes(cells: pa.Array, values: tuple[int, ...]) -> pa.Array:
    """The classes of integers written out, int32[n]; null for others. ``1.0`` is an integer."""
    plain = pc.replace_substring_regex(cells, rb"^\s*\+?(-?[0-9]+)(\.0*)?\s*$", rb"\1")
    return pc.index_in(plain, pa.array([str(value) for value in values]).cast(cells.type))


def expected(feature: Feature) -> str:
    """The expected value of a feature, or each of its items, for messages."""
    item = item_of(feature)
    if isinstance(item, ClassLabel):
        names = item.values or item.names
        more = ", …" if len(names) > 5 else ""
        return f"one of the {len(names)} classes {', '.join(map(repr, names[:5]))}{more}"
    if isinstance(item, Timestamp):
        return f"a time such as 2026-11-21T09:30:00Z, no finer than {item.unit}"
    if isinstance(item, Text):
        return "text"
    form = tensor_form(item)
    return form.dtype if form is not None else type(item).__name__


def mapped_classes(label: ClassLabel) -> str:
    """How a class of integers is declared, for messages.

    >>> mapped_classes(ClassLabel(("a", "b", "c")))
    "ss.ClassLabel({INTEGER: 'a', …})"
    """
    return f"ss.ClassLabel({{INTEGER: {label.names[0]!r}, …}})"


def texts(array: pa.Array) -> pa.Array:
    """Values as text; strings and bytes unchanged."""
    type_ = array.type
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        # Local times would need a time zone database, which differs between machines.
        texts = array.cast(pa.timestamp(type_.unit)).cast(pa.large_string())
        return pc.binary_join_element_wise(
            texts, pa.scalar("Z", texts.type), pa.scalar("", texts.type)
        )
    if pa.types.is_duration(type_):
        array = array.cast(pa.int64())
    return array if kind_of(type_) == "binary" else array.cast(pa.large_string())


def _to_string(array: pa.Array, *, utf8: bool) -> tuple[pa.Array, Misfits]:
    kind = kind_of(array.type)
    if kind not in ("string", "binary"):
        return texts(array).cast(pa.large_binary()), ()
    array = array.cast(pa.large_binary())
    if not utf8 and kind == "binary":
        return array, ()
    # Reading a file does not validate UTF-8, but a cast to a string does.
    return array, ((cast_or_find(array, pa.large_string())[1], NOT_UTF8),)


def _to_time(array: pa.Array, unit: str) -> tuple[npt.NDArray[Any], Misfits]:
    kind, wanted, finer = kind_of(array.type), _UNITS[unit], f"finer than {unit}"
    if kind in ("null", "int"):
        return _to_number(array, "int64")
    if kind == "string":
        times, bad = parse_times(array, unit)
        precise = bad.copy()
        if bad.any():  # perhaps only because of digits after those of the unit
            precise[bad] = ~parse_times(array.filter(pa.array(bad)), "ns")[1]
        return numbers(times), ((precise, finer), (bad, WRONG_TYPE))
    if pa.types.is_date32(array.type):
        per_second, values = 1, numbers(array).astype(np.int64) * 86_400
    else:
        found = "ms" if pa.types.is_date(array.type) else array.type.unit
        per_second, values = _UNITS[found], numbers(array).astype(np.int64)
    if wanted >= per_second:
        factor = wanted // per_second
        limit = (2**63 - 1) // factor
        bad = (values > limit) | (values < -limit)
        return np.where(bad, 0, values) * factor, ((bad, OUT_OF_RANGE),)
    made, rest = np.divmod(values, per_second // wanted)
    return made, ((rest != 0, finer),)


def parse_times(array: pa.Array, unit: str) -> tuple[pa.Array, _Bools]:
    """Parses ISO 8601 as times of a unit. Times without a zone are UTC.

    Returns:
        The times, null where a text is not one, and which are not.
    """
    bad = np.zeros(len(array), bool)
    with contextlib.suppress(pa.ArrowInvalid):
        return _cast_times(array, unit), bad
    texts = pc.replace_substring_regex(pc.ascii_trim(array, " \t"), _LAST_ZEROS, r"\1\2")
    fraction = rf"(\.\d{{1,{_DIGITS[unit]}}})?" if _DIGITS[unit] else ""
    alike = pc.match_substring_regex(texts, _LIKE_TIME.format(fraction)).fill_null(True)
    bad = ~alike.to_numpy(zero_copy_only=False)
    none = pa.scalar(None, array.type)
    texts = pc.if_else(alike, texts, none)

    def fits(start: int, stop: int) -> bool:
        with contextlib.suppress(pa.ArrowInvalid):
            return _cast_times(texts[start:stop], unit) is not None
        return False

    bad[culprits(fits, len(texts))] = True
    return _cast_times(pc.if_else(pa.array(bad), none, texts), unit), bad


def _cast_times(array: pa.Array, unit: str) -> pa.Array:
    zoned = pc.match_substring_regex(array, _ZONED).fill_null(False)
    # The "-05" of a date is not a zone.
    zoned = pc.and_(zoned, pc.match_substring(array, ":").fill_null(False))
    none = pa.scalar(None, array.type)
    with_zone = pc.if_else(zoned, array, none).cast(pa.timestamp(unit, "UTC"))
    without = pc.if_else(zoned, none, array).cast(pa.timestamp(unit))
    return pc.coalesce(with_zone.cast(pa.timestamp(unit)), without)
