"""``parse_time``: parses text to a Timestamp exactly, in TensorFlow operations.

A format becomes one regular expression. Its groups become integers, and these a number of seconds
in the proleptic Gregorian calendar (days from civil, Howard Hinnant,
https://howardhinnant.github.io/date_algorithms.html).
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal

from ...schemas.config import config_class
from ...schemas.features import Features, Timestamp, presence_name
from .values import NO_FEATURES, BuiltIn, checked, compute, find_single

ISO_8601 = "iso8601"
Unit = Literal["s", "ms", "us", "ns"]
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_OFFSET = r"[Zz]|[+-]\d\d:?\d\d|[+-]\d\d"
_PARTS = {
    "Y": ("year", r"\d{4}"),
    "y": ("short_year", r"\d{2}"),
    "m": ("month", r"\d{1,2}"),
    "d": ("day", r"\d{1,2}"),
    "j": ("day_of_year", r"\d{1,3}"),
    "H": ("hour", r"\d{1,2}"),
    "I": ("hour12", r"\d{1,2}"),
    "p": ("half", r"[AaPp][Mm]"),
    "M": ("minute", r"\d{1,2}"),
    "S": ("second", r"\d{1,2}"),
    "f": ("fraction", r"\d{1,9}"),
    "z": ("offset", _OFFSET),
    "s": ("epoch", r"[+-]?\d{1,12}"),
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_FULL_MONTHS = (
    "january|february|march|april|may|june|july|august|september|october|november|december"
)
_PARTS |= {"b": ("month_name", "|".join(_MONTHS)), "B": ("month_name", _FULL_MONTHS)}
_ISO_PATTERN = (
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(?: ?(" + _OFFSET + r"))?)?"
)
_ISO_PARTS = ("year", "month", "day", "hour", "minute", "second", "fraction", "offset")


@dataclasses.dataclass(frozen=True)
class _Pattern:
    """A format: a case-insensitive RE2 pattern, and the meaning of its groups."""

    text: str
    parts: tuple[str, ...]


def compile_format(text: str) -> _Pattern:
    """Compiles a format of ``strptime`` directives to a pattern.

    Raises:
        ValueError: if a directive is unknown, repeated or missing.

    >>> compile_format("%d.%m.%Y").parts
    ('day', 'month', 'year')
    """
    if text == ISO_8601:
        return _Pattern(_ISO_PATTERN, _ISO_PARTS)
    pattern, parts = "", []
    for literal, directive in re.findall(r"([^%]+)|%(.?)", text):
        if literal or directive == "%":
            pattern += re.escape(literal or "%")
        elif directive in _PARTS:
            part, digits = _PARTS[directive]
            parts.append(part)
            pattern += f"({digits})"
        else:
            raise ValueError(
                f"format: invalid directive %{directive}, expected one of "
                f"{', '.join('%' + key for key in _PARTS)}, %%"
            )
    twice = {part for part in parts if parts.count(part) > 1}
    if twice:
        raise ValueError(f"format: {', '.join(sorted(twice))} occurs twice")
    dated = {"year", "short_year"} & set(parts) or "epoch" in parts
    if not dated:
        raise ValueError("format: expected a year (%Y, %y) or seconds since 1970 (%s)")
    if ("hour12" in parts) != ("half" in parts):
        raise ValueError("format: %I and %p require each other")
    return _Pattern(pattern, tuple(parts))


@config_class
class ParseTime(BuiltIn):
    """Parses text as a point in time: a ``Timestamp``, int64. Invalid text is rejected.

    Times without an offset are UTC. A fraction too fine for the unit is rejected, not rounded.
    Missing values stay missing.

    Args:
        name: The string feature.
        format: ``"iso8601"``: ``2026-11-21``, ``2026-11-21T09:30``, ``2026-11-21 09:30:00.5+01:00``
            and the like. Or directives of Python's ``strptime``: %Y %y %m %d %j %b %B %H %I %p
            %M %S %f (1 to 9 digits) %z (Z, +hh, +hhmm, +hh:mm) %s (seconds since 1970), %%.
            Month names are English; case does not matter; %y means 1969 to 2068.
        unit: The unit of the Timestamp.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    format: str = ISO_8601
    _: dataclasses.KW_ONLY
    unit: Unit = "us"
    kind = "tables.parse_time"
    batched = True
    sees_features = True

    def __post_init__(self) -> None:
        """Checks the format."""
        compile_format(self.format)

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no string feature of this name.
        """
        feature = find_single(self, self.name, features, dtypes={"string"}, what="a string")
        parsed = Timestamp(unit=self.unit, optional=feature.optional)
        return {**features, self.name: parsed}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces the text by its time; fails if it is not a valid time."""
        import tensorflow as tf

        pattern = compile_format(self.format)
        after = self.features(features)[self.name]
        anything = tf.constant(True)

        def parse(text: Any) -> Any:
            present = record.get(presence_name(self.name), anything)
            return _parse(text, pattern, self.unit, present)

        return compute(record, self.name, parse, after=after)


parse_time = ParseTime


def _parse(text: Any, pattern: _Pattern, unit: str, present: Any) -> Any:
    """Parses text to int64 since 1970-01-01T00:00:00 UTC; fails if it is not a valid time."""
    import tensorflow as tf

    stripped = tf.strings.strip(text)
    whole = f"(?i){pattern.text}"
    matches = tf.strings.regex_full_match(stripped, whole)

    def group(part: str) -> Any:
        number = pattern.parts.index(part) + 1
        digits = tf.strings.regex_replace(stripped, f"^{whole}$", rf"\{number}")
        return tf.where(matches, digits, "")

    def number(part: str, default: int) -> Any:
        if part not in pattern.parts:
            return tf.fill(tf.shape(text), tf.constant(default, tf.int64))
        digits = group(part)
        digits = tf.where(digits == "", str(default), digits)
        return tf.strings.to_number(digits, tf.int64)

    fits = matches
    seconds = number("epoch", 0)
    if "epoch" not in pattern.parts:
        year, month, day, valid = _date(number, group, pattern.parts)
        fits &= valid
        seconds = _days(year, month, day) * 86_400
        if "day_of_year" in pattern.parts:
            seconds += (number("day_of_year", 1) - 1) * 86_400
    hour = number("hour", 0)
    if "hour12" in pattern.parts:
        hour12 = number("hour12", 12)
        fits &= (hour12 >= 1) & (hour12 <= 12)
        late = tf.strings.regex_full_match(group("half"), "(?i)pm")
        hour = hour12 % 12 + tf.where(late, tf.constant(12, tf.int64), tf.constant(0, tf.int64))
    minute, second = number("minute", 0), number("second", 0)
    fits &= (hour <= 23) & (minute <= 59) & (second <= 59)
    seconds += hour * 3_600 + minute * 60 + second
    if "offset" in pattern.parts:
        shift, valid = _offset(group("offset"))
        seconds, fits = seconds - shift, fits & valid
    per_second = _PER_SECOND[unit]
    nanoseconds = tf.zeros_like(seconds)
    if "fraction" in pattern.parts:
        digits = tf.strings.join([group("fraction"), tf.fill(tf.shape(text), "000000000")])
        nanoseconds = tf.strings.to_number(tf.strings.substr(digits, 0, 9), tf.int64)
    step = 10**9 // per_second
    limit = (2**63 - 1) // per_second - 1
    in_range = (seconds >= -limit) & (seconds <= limit)
    even = nanoseconds % step == 0
    value = tf.where(in_range, seconds, tf.zeros_like(seconds)) * per_second + nanoseconds // step
    return checked(
        value,
        ~present | (fits & in_range & even),
        expected=f"a time that a number of {unit} since 1970 can say",
        found=text,
    )


def _date(number: Any, group: Any, parts: tuple[str, ...]) -> tuple[Any, Any, Any, Any]:
    import tensorflow as tf

    year = number("year", 1970)
    if "short_year" in parts:
        short = number("short_year", 70)
        year = short + tf.where(short < 69, tf.constant(2000, tf.int64), 1900)
    month = number("month", 1)
    if "month_name" in parts:
        short_name = tf.strings.substr(tf.strings.lower(group("month_name")), 0, 3)
        same = tf.cast(short_name[..., None] == tf.constant(_MONTHS), tf.int64)
        month = tf.reduce_sum(same * tf.range(1, 13, dtype=tf.int64), axis=-1)
    day = number("day", 1)
    leap = ((year % 4 == 0) & (year % 100 != 0)) | (year % 400 == 0)
    lengths = tf.constant([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], tf.int64)
    valid = (month >= 1) & (month <= 12) & (year >= 1)
    month = tf.clip_by_value(month, 1, 12)
    last = tf.gather(lengths, month) + tf.cast(leap & (month == 2), tf.int64)
    valid &= (day >= 1) & (day <= last)
    if "day_of_year" in parts:
        of_year = number("day_of_year", 1)
        valid &= (of_year >= 1) & (of_year <= 365 + tf.cast(leap, tf.int64))
    return year, month, day, valid


def _days(year: Any, month: Any, day: Any) -> Any:
    """Days since 1970-01-01. Years start in March, so the leap day is the last day."""
    import tensorflow as tf

    year = year - tf.cast(month <= 2, tf.int64)
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _offset(text: Any) -> tuple[Any, Any]:
    """Seconds east of UTC, and whether the offset is valid."""
    import tensorflow as tf

    digits = tf.strings.regex_replace(text, r"[^\d]", "")
    digits = tf.strings.substr(tf.strings.join([digits, tf.fill(tf.shape(text), "0000")]), 0, 4)
    hours = tf.strings.to_number(tf.strings.substr(digits, 0, 2), tf.int64)
    minutes = tf.strings.to_number(tf.strings.substr(digits, 2, 2), tf.int64)
    west = tf.strings.substr(text, 0, 1) == "-"
    shift = hours * 3_600 + minutes * 60
    return tf.where(west, -shift, shift), (hours <= 23) & (minutes <= 59)
