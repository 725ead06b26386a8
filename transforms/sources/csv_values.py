"""What a cell may hold, by the feature it is of, and how it is stored.

Blanks at the ends of numbers and times are left out.

=========== =======================================================================================
feature     texts
=========== =======================================================================================
int8 … 64,  decimal digits with a ``-``, or ``0x`` and hexadecimal ones, within the dtype's range;
uint8 … 64  ``1.0``, ``+1`` and ``1e3`` are no integers
floats      a decimal number, rounded to the nearest of the dtype, but what is written as an integer
            must be exact in it: ``16777217`` is no float32, ``16777217.0`` is rounded to one;
            ``inf`` and ``nan`` in any case
            (but what stands in ``null_values``, as ``NaN`` does by default, is missing). A number
            too large for the dtype is rejected, and not made an infinity
bool        ``true``, ``True``, ``TRUE``, ``1``; ``false``, ``False``, ``FALSE``, ``0``
string,     any text of the file's encoding, blanks included
Text
class       one of the class's names, to the letter
Timestamp   ISO 8601: ``2026-11-21``, with a time ``T09:30`` or ``09:30`` (seconds and a fraction
            of up to nine digits may follow), with ``Z`` or an offset ``+02:00``; without one it is
            UTC. A fraction that is finer than the unit is rejected, and not rounded
=========== =======================================================================================
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.features import ClassLabel, Scalar, Text, Timestamp
from ...schemas.wire import FLOATS
from ..prepare.engine.validate_values import is_utf8

CellFeature = ClassLabel | Scalar | Text | Timestamp
Mask = npt.NDArray[np.bool_]

_BOOLS = (b"true", b"True", b"TRUE", b"1", b"false", b"False", b"FALSE", b"0")
_INTEGER = r"^[ \t]*-?[0-9]+[ \t]*$"
_HEXADECIMAL = r"^[ \t]*0[xX][0-9a-fA-F]+[ \t]*$"
_FLOAT = (
    r"^[ \t]*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*$"
    r"|^[ \t]*[-+]?((?i)inf|infinity|nan|nan\([a-z0-9_]*\))[ \t]*$"
)
_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?"
_ZONE = r"(Z|[-+]([01][0-9]|2[0-3]):?[0-5][0-9])"
_TIMESTAMP = rf"^{_DATE}([T ]{_TIME}{_ZONE}?)?$"
_ZONED = rf"{_ZONE}$"
_DAYS = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
# Of which every day can be told in ns.
_NS_YEARS = (1678, 2261)


def parse_type(feature: CellFeature) -> pa.DataType:
    """The type that pyarrow parses a cell into: as near to what is stored as it goes."""
    if not isinstance(feature, Scalar) or feature.dtype == "string":
        return pa.large_string()
    if feature.dtype == "bfloat16":
        return pa.float32()
    if feature.dtype == "float16":
        return pa.float64()
    return getattr(pa, "bool_" if feature.dtype == "bool" else feature.dtype)()


def expected(feature: CellFeature) -> str:
    """What a cell should hold, for messages."""
    if isinstance(feature, Scalar):
        return feature.dtype
    if isinstance(feature, ClassLabel):
        shown = ", ".join(map(repr, feature.names[:5])) + (", …" if feature.names[5:] else "")
        return f"one of the {len(feature.names)} classes {shown}"
    if isinstance(feature, Timestamp):
        return f"a time such as 2026-11-21T09:30:00Z, no finer than {feature.unit}"
    return "text"


def to_wire(values: pa.Array, feature: CellFeature, kind: pa.DataType) -> pa.Array:
    """Parsed cells as they are stored; null where a value is none of the feature's.

    Args:
        values: Of :func:`parse_type`.
        feature: What they are of.
        kind: Type of the stored column.
    """
    if isinstance(feature, ClassLabel):
        return pc.index_in(values, pa.array(feature.names, pa.large_string())).cast(kind)
    if isinstance(feature, Timestamp):
        return _timestamps(values, feature.unit).cast(kind)
    if isinstance(feature, Text):
        return values.cast(kind)
    if feature.dtype == "float64":
        return _packed(values, kind)
    if feature.dtype == "uint64":
        return values.view(pa.int64())
    if feature.dtype in ("float16", "bfloat16"):
        return _narrowed(values, feature.dtype)
    return values.cast(kind)


def infinite(values: pa.Array, feature: CellFeature) -> list[int]:
    """Rows whose stored number is an infinity."""
    if not isinstance(feature, Scalar) or feature.dtype not in FLOATS:
        return []
    if feature.dtype in ("float16", "bfloat16"):
        values = _narrowed(values, feature.dtype)
    found: list[int] = pc.indices_nonzero(pc.is_inf(values)).to_pylist()
    return found


def unfit_texts(texts: pa.Array, kind: pa.DataType) -> Mask:
    """Which of large_binary[n] are no text that pyarrow parses into a type: told in one pass."""
    if pa.types.is_boolean(kind):
        fits = pc.is_in(texts, pa.array(_BOOLS, texts.type))
        return ~_mask(fits)
    if pa.types.is_floating(kind):
        return ~_mask(pc.match_substring_regex(texts, _FLOAT))
    if not pa.types.is_integer(kind):
        return np.array([not is_utf8(text) for text in texts.to_pylist()], bool)
    decimal = _mask(pc.match_substring_regex(texts, _INTEGER))
    fits_mask = decimal | _mask(pc.match_substring_regex(texts, _HEXADECIMAL))
    for row in np.flatnonzero(fits_mask):
        fits_mask[row] = _in_range(texts[int(row)].as_py(), kind)
    return ~fits_mask


def _in_range(text: bytes, kind: pa.DataType) -> bool:
    digits, bits = text.strip(b" \t"), int(kind.bit_width)
    if digits[1:2] in (b"x", b"X"):
        return len(digits) - 2 <= bits // 4
    negative = digits.startswith(b"-")
    digits = digits.lstrip(b"-").lstrip(b"0")
    if pa.types.is_unsigned_integer(kind):
        return not negative and len(digits) <= 20 and int(digits or b"0") >> bits == 0
    return len(digits) <= 20 and int(digits or b"0") < (1 << bits - 1) + negative


def _mask(found: pa.Array) -> Mask:
    mask: Mask = found.to_numpy(zero_copy_only=False).astype(bool)
    return mask


def _packed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """float64[n] as the 8 little-endian bytes of each."""
    present = values.is_valid().to_numpy(zero_copy_only=False)
    filled = values.fill_null(0.0).to_numpy(zero_copy_only=False).astype("<f8")
    offsets = np.arange(len(filled) + 1, dtype=np.int64) * 8
    packed = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(filled), [None, pa.py_buffer(offsets), pa.py_buffer(filled)]
    )
    if not present.all():
        packed = pc.if_else(pa.array(present), packed, pa.scalar(None, pa.large_binary()))
    return packed.cast(kind)


def _narrowed(values: pa.Array, dtype: str) -> pa.Array:
    """Numbers rounded to the nearest of a 16-bit dtype, ties to even, as float32[n]."""
    missing = values.is_null().to_numpy(zero_copy_only=False)
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            rounded = numbers.astype(np.float16).astype(np.float32)
    else:
        bits = numbers.astype(np.float32).view(np.uint32)
        even = (bits >> 16) & 1
        upper = (bits + 0x7FFF + even) & np.uint32(0xFFFF0000)
        rounded = np.where(np.isnan(numbers), np.float32(np.nan), upper.view(np.float32))
    return pa.array(rounded.astype(np.float32), mask=missing)


def _timestamps(texts: pa.Array, unit: str) -> pa.Array:
    """ISO 8601 texts as int64[n] since 1970; null where a text is no time of the unit."""
    trimmed = pc.ascii_trim(texts, " \t")
    fits = _mask(pc.match_substring_regex(trimmed, _TIMESTAMP).fill_null(False))
    years, months, days = (
        _numbers(pc.if_else(pa.array(fits), trimmed, "0000-00-00"), start, stop)
        for start, stop in ((0, 4), (5, 7), (8, 10))
    )
    leap = (years % 4 == 0) & ((years % 100 != 0) | (years % 400 == 0))
    fits &= (days <= _DAYS[months]) & ((months != 2) | (days < 29) | leap)
    if unit == "ns":
        fits &= (years >= _NS_YEARS[0]) & (years <= _NS_YEARS[1])
    # Zeros at the end of a fraction say nothing; as few digits as there are remain.
    short = pc.replace_substring_regex(trimmed, r"(\.[0-9]*?)0+(Z|[-+][0-9:]+)?$", r"\1\2")
    short = pc.replace_substring_regex(short, r"\.(Z|[-+][0-9:]+)?$", r"\1")
    finer = pc.match_substring_regex(short, rf"\.[0-9]{{{_DIGITS[unit] + 1},}}")
    fits &= ~_mask(finer.fill_null(False))
    zoned = _mask(pc.match_substring_regex(short, _ZONED).fill_null(False))
    none = pa.scalar(None, pa.large_string())
    found = []
    for mask, kind in (
        (fits & ~zoned, pa.timestamp(unit)),
        (fits & zoned, pa.timestamp(unit, "UTC")),
    ):
        found.append(pc.if_else(pa.array(mask), short, none).cast(kind).cast(pa.int64()))
    return pc.coalesce(*found)


def _numbers(texts: pa.Array, start: int, stop: int) -> npt.NDArray[np.int64]:
    """The numbers that stand in the same place of each text."""
    cut = pc.utf8_slice_codeunits(texts, start, stop)
    numbers: npt.NDArray[np.int64] = cut.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers
