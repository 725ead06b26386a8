"""Checks values of single features and converts them to arrays and stored lists, and back."""

import contextlib
import datetime
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schemas.errors import SchemaError
from ...schemas.features import (
    Audio,
    ClassLabel,
    Feature,
    Image,
    Mask,
    Scalar,
    Sequence,
    Tensor,
    TensorForm,
    Text,
    Timestamp,
    tensor_form,
)
from ...schemas.wire import FLOATS
from ..rejects import (
    INEXACT,
    MISSING_ITEM,
    NOT_UTF8,
    OUT_OF_RANGE,
    RAGGED,
    UNKNOWN_CLASS,
    WRONG_LENGTH,
    WRONG_TYPE,
)
from .dtypes import PRECISION, holds_exactly, narrowed, numpy_dtype, packed_bytes, unpacked, widened

Array = npt.NDArray[Any]
Flat = Any
"""The values of one stored list: list[bytes], int64[n] or float32[n]; None if it is absent."""

PCM = 32_768
"""Scale from samples in [-1, 1] to 16-bit samples."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NANOSECONDS = {
    "W": 604_800 * 10**9,
    "D": 86_400 * 10**9,
    "h": 3_600 * 10**9,
    "m": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 10**3,
    "ns": 1,
}
_QUIET = np.errstate(over="ignore", invalid="ignore")
"""Overflow is checked explicitly, and some NaNs warn in any operation."""
_OTHERS = "Parse it with the features of its own snapshot."


class UnfitError(SchemaError):
    """A value does not fit its feature."""

    def __init__(self, message: str, reason: str = WRONG_TYPE, *, stage: str = "validate") -> None:
        """Stores the reason and the stage of a reject."""
        super().__init__(message)
        self.reason, self.stage = reason, stage


@_QUIET
def to_array(name: str, feature: Feature, value: object) -> Array:
    """Converts a value to an array of the dtype and shape in which its feature is stored.

    Strings become an array of bytes objects.

    Raises:
        UnfitError: if the value does not have the feature's type, shape and range.
    """
    form = tensor_form(feature)
    assert form is not None
    item = feature.of if isinstance(feature, Sequence) else feature
    if isinstance(item, ClassLabel):
        value = _each(value, lambda one: _class_index(name, feature, item, one))
    elif isinstance(item, Timestamp):
        value = _each(value, lambda one: _time(name, feature, item, one))
    elif isinstance(feature, Audio) and feature.dtype == "int16":
        value = _pcm(name, feature, value)
    array = _with_shape(name, feature, _array(name, feature, value, form), form)
    if form.dtype != "string":
        return _cast(name, feature, array, form.dtype)
    is_text = isinstance(item, Text)
    return _mapped(array, lambda text: _encoded(name, feature, text, is_text=is_text))


def to_lists(name: str, form: TensorForm, array: Array) -> dict[str, Flat]:
    """The stored lists of a feature's array, by column name."""
    column, *sides = form.wire_columns(name)
    lists: dict[str, Flat] = {side.name: np.array(array.shape, np.int64) for side in sides}
    if column.packed is not None:
        lists[name] = [packed_bytes(array)]
    elif form.dtype == "string":
        lists[name] = array.ravel().tolist()
    else:
        lists[name] = widened(array.ravel())
    return lists


@_QUIET
def from_lists(name: str, feature: Feature, lists: Mapping[str, Flat]) -> Any:
    """The value of a feature, from its stored lists.

    Raises:
        SchemaError: if they do not hold such a value.
    """
    form = tensor_form(feature)
    assert form is not None
    array = _stored_array(name, feature, form, lists)
    item = feature.of if isinstance(feature, Sequence) else feature
    if isinstance(item, ClassLabel):
        outside = array[(array < 0) | (array >= len(item.names))]
        if outside.size:
            raise unfit(name, feature, f"{outside[0]}", _OTHERS)
    if isinstance(item, Text):
        array = _mapped(array, lambda text: _decoded(name, feature, text))
    if isinstance(feature, Audio) and feature.dtype == "int16":
        array = array.astype(np.float32) / np.float32(PCM)
    return array if form.shape else array.item()


def holds_bool(value: Any) -> bool:
    """Whether nested lists contain a bool, which NumPy would convert to 0 or 1 among numbers."""
    if isinstance(value, list | tuple):
        return any(map(holds_bool, value))
    return isinstance(value, bool | np.bool_) or getattr(value, "dtype", None) == np.bool_


def unfit(
    name: str, feature: Feature, found: str, fix: str, reason: str = WRONG_TYPE
) -> UnfitError:
    """The error for a value that does not match its feature."""
    return UnfitError(f"Feature {name!r} is {found}, expected {describe(feature)}. {fix}", reason)


def describe(feature: Feature) -> str:
    """Describes the values that a feature accepts."""
    if isinstance(feature, Image) and feature.storage == "raw":
        sides = f"{feature.height or 'height'}, {feature.width or 'width'}, {feature.channels}"
        return f"{feature.dtype}[{sides}]"
    if isinstance(feature, Image):
        size = f" of {feature.height}×{feature.width}" if feature.fixed_size else ""
        return f"the bytes of {'a PNG' if isinstance(feature, Mask) else 'an image file'}{size}"
    if isinstance(feature, ClassLabel):
        return f"one of {len(feature.names)} class names, or its index"
    if isinstance(feature, Timestamp):
        return f"a time with its zone, or an int64 of {feature.unit} since 1970"
    if isinstance(feature, Text):
        return "text"
    form = tensor_form(feature)
    if form is None:
        return "the bytes of a sound file"
    if isinstance(feature, Sequence) and not isinstance(feature.of, Tensor | Scalar):
        return f"a list, each {describe(feature.of)}"
    dims = ", ".join("any" if dim is None else str(dim) for dim in form.shape)
    return f"{form.dtype}[{dims}]" if form.shape else form.dtype


def _stored_array(
    name: str, feature: Feature, form: TensorForm, lists: Mapping[str, Flat]
) -> Array:
    column, *sides = form.wire_columns(name)
    flat = lists[name]
    if column.packed is not None:
        try:
            array = unpacked(flat[0], column.packed).astype(numpy_dtype(form.dtype))
        except ValueError:
            raise unfit(name, feature, f"{len(flat[0]):,} packed bytes", _OTHERS) from None
    elif form.dtype == "string":
        array = _objects(flat, (len(flat),))
    else:
        numbers = np.asarray(flat)
        array = narrowed(numbers, form.dtype)
        if not _in_range(numbers, array, form.dtype):
            raise unfit(name, feature, reprlib.repr(flat), _OTHERS)
    shape = tuple(lists[sides[0].name].tolist()) if sides else form.shape
    sizes = [-1 if dim is None else dim for dim in shape]
    if not sides or _fits(tuple(sizes), form.shape):
        with contextlib.suppress(ValueError):
            return array.reshape(sizes)
    raise unfit(name, feature, f"{array.size:,} values for {sizes}", _OTHERS)


def _fits(shape: tuple[int, ...], declared: tuple[int | None, ...]) -> bool:
    return len(shape) == len(declared) and all(
        size == dim or (dim is None and size >= 0)
        for size, dim in zip(shape, declared, strict=True)
    )


def _each(value: Any, convert: Callable[[Any], int]) -> Any:
    """Converts a value, or each item of a list; NumPy integer arrays pass unchanged."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        return value
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        return [convert(item) for item in value]
    return convert(value)


def _class_index(name: str, feature: Feature, label: ClassLabel, value: Any) -> int:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str) and value in label.names:
        return label.names.index(value)
    is_index = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if is_index and 0 <= int(value) < len(label.names):
        return int(value)
    fix = "Give one of its names, or its index."
    raise unfit(name, feature, reprlib.repr(value), fix, UNKNOWN_CLASS)


def _time(name: str, feature: Feature, stamp: Timestamp, value: Any) -> int:
    """A time as a whole number of the feature's unit."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, np.datetime64):
        nanoseconds = _nanoseconds(value)
    elif isinstance(value, datetime.datetime) and value.tzinfo is not None and value == value:
        since = value - _EPOCH
        nanoseconds = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
        # pandas timestamps have nanoseconds.
        nanoseconds += getattr(value, "nanosecond", 0)
    else:
        nanoseconds = None
    if nanoseconds is None:
        raise unfit(name, feature, reprlib.repr(value), "Give a datetime with tzinfo=, or an int.")
    time, rest = divmod(nanoseconds, _NANOSECONDS[stamp.unit])
    if rest:
        fix = "Declare a finer unit: this is more precise."
        raise unfit(name, feature, reprlib.repr(value), fix, f"finer than {stamp.unit}")
    return time


def _nanoseconds(value: np.datetime64) -> int | None:
    """Nanoseconds since 1970; None for NaT and for units finer than that."""
    if np.isnat(value):
        return None
    unit, count = np.datetime_data(value.dtype)
    if unit in ("Y", "M"):
        value, unit, count = value.astype("M8[D]"), "D", 1
    scale = _NANOSECONDS.get(unit)
    return None if scale is None else int(value.astype(np.int64)) * count * scale


def _pcm(name: str, feature: Feature, value: Any) -> Any:
    """Converts samples to 16-bit integers; NumPy int16 arrays pass unchanged."""
    if isinstance(value, np.ndarray) and value.dtype == np.int16:
        return value
    try:
        samples = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise unfit(name, feature, reprlib.repr(value), "Give samples in [-1, 1].") from None
    if not (np.abs(samples) <= 1).all():
        raise unfit(name, feature, reprlib.repr(value), "Give samples in [-1, 1], or as int16.")
    return np.clip(np.round(samples * PCM), -PCM, PCM - 1).astype(np.int16)


def _array(name: str, feature: Feature, value: Any, form: TensorForm) -> Array:
    if np.ma.is_masked(value):
        raise unfit(
            name, feature, "masked in part", "Fill it, or leave the record out.", MISSING_ITEM
        )
    try:
        array: Array = np.asarray(value, object if form.dtype == "string" else None)
        if array.ndim and array.dtype.kind in "iuf" and holds_bool(value):
            fix = "Give values of one type."
            raise unfit(name, feature, f"{reprlib.repr(value)}, a bool among numbers", fix)
        if array.dtype == np.float64 and form.dtype not in FLOATS and array.size:
            # NumPy converts a mix of small and huge integers to floats.
            exact: Array = np.asarray(value, object)
            return exact if all(type(number) is int for number in exact.ravel()) else array
        if array.dtype == np.float64 and form.dtype in FLOATS and not isinstance(value, np.ndarray):
            large = np.abs(array) >= 1 << PRECISION[form.dtype]
            if large.any():
                _check_exact(name, feature, np.asarray(value, object)[large], form.dtype)
    except ValueError:
        raise unfit(name, feature, "ragged", "Make its rows equally long.", RAGGED) from None
    return array


def _with_shape(name: str, feature: Feature, array: Array, form: TensorForm) -> Array:
    if array.size == 0 and array.ndim == 1 and form.shape[:1] == (None,):
        return array.reshape([dim or 0 for dim in form.shape])
    if not _fits(array.shape, form.shape):
        reason = WRONG_LENGTH if array.ndim == len(form.shape) else WRONG_TYPE
        raise unfit(name, feature, f"of shape {list(array.shape)}", "Reshape it.", reason)
    return array


def _cast(name: str, feature: Feature, array: Array, dtype: str) -> Array:
    kinds = "b" if dtype == "bool" else "fiu" if dtype in FLOATS else "iu"
    is_exact = array.dtype == object and all(type(number) is int for number in array.ravel())
    is_number = array.dtype.kind in kinds or (is_exact and dtype != "bool")
    if dtype in FLOATS and array.dtype == numpy_dtype("bfloat16"):
        is_number = True
    if not is_number and not (array.size == 0 and array.dtype == np.float64):
        shown = f"{reprlib.repr(array.tolist())} ({array.dtype})"
        raise unfit(name, feature, shown, "Pass an array of that dtype.")
    if dtype in FLOATS or not array.size:
        try:
            cast = array.astype(numpy_dtype(dtype))
        except OverflowError:
            shown = reprlib.repr(array.tolist())
            raise unfit(name, feature, shown, "Pass a float.", OUT_OF_RANGE) from None
        fits = dtype not in FLOATS or _in_range(array.astype(np.float64), cast, dtype)
    else:
        fits = _in_range(array, array, dtype)
        cast = array.astype(numpy_dtype(dtype)) if fits else array
    if dtype in FLOATS and array.dtype.kind in "iuO":
        _check_exact(name, feature, array, dtype)
    if not fits:
        shown = reprlib.repr(array.tolist())
        fix = "It is out of range: declare a wider type."
        raise unfit(name, feature, shown, fix, OUT_OF_RANGE)
    return cast


def _check_exact(name: str, feature: Feature, given: Array, dtype: str) -> None:
    """Checks that a float dtype represents the integers among some numbers exactly.

    Raises:
        SchemaError: naming the first integer that it does not.
    """
    values = given.ravel()
    if values.dtype == object:
        values = values[[isinstance(number, int | np.integer) for number in values]]
    fits = holds_exactly(values, dtype)
    if not fits.all():
        integer = str(int(values[~fits][0]))
        fix = f"{dtype} does not hold that integer: give a float, or declare a wider type."
        raise unfit(name, feature, integer, fix, INEXACT)


def _in_range(values: Array, cast: Array, dtype: str) -> bool:
    """Whether numbers are in a dtype's range; ``cast`` holds them in the float dtype."""
    if dtype in FLOATS:
        return bool(np.array_equal(np.isinf(values), np.isinf(cast)))
    if dtype == "uint64" and values.dtype == np.int64 and cast.dtype == np.uint64:
        return True
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return not values.size or (int(values.min()) >= low and int(values.max()) <= high)


def _encoded(name: str, feature: Feature, text: object, *, is_text: bool) -> bytes:
    if isinstance(text, bytes) and is_text:
        _decoded(name, feature, text)
    if isinstance(text, bytes):
        return bytes(text)
    if not isinstance(text, str):
        raise unfit(name, feature, reprlib.repr(text), "Give str or bytes.")
    try:
        return text.encode()
    except UnicodeEncodeError:
        fix = "It is not valid UTF-8: give bytes."
        raise unfit(name, feature, reprlib.repr(text), fix, NOT_UTF8) from None


def _decoded(name: str, feature: Feature, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        fix = "It is not valid UTF-8: decode it, or declare a Scalar of strings."
        raise unfit(name, feature, reprlib.repr(text), fix, NOT_UTF8) from None


def _mapped(array: Array, convert: Callable[[Any], object]) -> Array:
    return _objects([convert(value) for value in array.ravel().tolist()], array.shape)


def _objects(values: list[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)
