"""Casts that lose nothing unasked: out of range, or not whole, is an error and no other number."""

from __future__ import annotations

from typing import Any

from ...schemas.wire import FLOATS
from .values import checked

INTEGERS = {
    "int8": (-(2**7), 2**7),
    "int16": (-(2**15), 2**15),
    "int32": (-(2**31), 2**31),
    "int64": (-(2**63), 2**63),
    "uint8": (0, 2**8),
    "uint16": (0, 2**16),
    "uint32": (0, 2**32),
    "uint64": (0, 2**64),
}
"""dtype -> [start, stop) of its values."""


def cast_values(value: Any, dtype: str) -> Any:
    """A tensor as another dtype; fails where a value has no equal there.

    Numbers become floats by rounding to the nearest: that is what is asked for. Strings are read
    as decimal numbers.
    """
    import tensorflow as tf

    source, target = value.dtype.name, tf.as_dtype(dtype)
    if source == dtype:
        return value
    if source == "string":
        return _from_text(value, dtype)
    if dtype == "string":
        return tf.strings.as_string(value)
    if dtype == "bool":
        fits = (value == tf.cast(0, value.dtype)) | (value == tf.cast(1, value.dtype))
        return checked(tf.cast(value, target), fits, expected="0 or 1", found=value)
    if source == "bool":
        return tf.cast(value, target)
    if dtype in FLOATS:
        made = tf.cast(value, target)
        if source in FLOATS:
            fits = ~tf.math.is_finite(value) | tf.math.is_finite(made)
        else:
            fits = tf.math.is_finite(made)
        return checked(made, fits, expected=f"a value of {dtype}", found=value)
    if source in FLOATS:
        wide = tf.cast(value, tf.float64)
        start, stop = (tf.constant(float(end), tf.float64) for end in INTEGERS[dtype])
        fits = (wide >= start) & (wide < stop) & (tf.floor(wide) == wide)
        # What does not fit is undefined behaviour in a cast.
        made = tf.cast(tf.where(fits, wide, tf.zeros_like(wide)), target)
        return checked(made, fits, expected=f"a whole number of {dtype}", found=value)
    made = tf.cast(value, target)
    fits = (tf.cast(made, value.dtype) == value) & (_negative(made) == _negative(value))
    return checked(made, fits, expected=f"a value of {dtype}", found=value)


def _negative(value: Any) -> Any:
    import tensorflow as tf

    if value.dtype.is_unsigned:
        return tf.zeros_like(value, tf.bool)
    return value < tf.cast(0, value.dtype)


def _from_text(value: Any, dtype: str) -> Any:
    import tensorflow as tf

    text = tf.strings.strip(value)
    if dtype in FLOATS:
        number = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)"
        fits = tf.strings.regex_full_match(tf.strings.lower(text), number)
        text = tf.where(fits, checked(text, fits, expected="a number", found=value), "0")
        return cast_values(tf.strings.to_number(text, tf.float64), dtype)
    fits = tf.strings.regex_full_match(text, r"[+-]?\d+")
    text = tf.where(fits, checked(text, fits, expected="a whole number", found=value), "0")
    # Fails by itself beyond an int64.
    return cast_values(tf.strings.to_number(text, tf.int64), dtype)
