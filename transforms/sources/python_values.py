"""Infers features of Python records (dicts), and converts their values to wire columns.

Values may be the bytes of image and sound files (`media_lists`).

=============================== ==================================================================
values                          feature
=============================== ==================================================================
bool, int, float, str, bytes    Scalar: bool, int64 (uint64 if too large), float64, string;
                                integers among floats are floats
NumPy scalars and arrays        Scalar or Tensor of their dtype; a dimension that varies is None
datetime with a zone            Timestamp("us")
numpy.datetime64                Timestamp in its unit
a list or tuple                 Sequence of its items' feature; a Tensor with unknown dimensions if
                                they are lists
a dict                          its fields, named ``<name>.<field>``
None, or a missing key          optional
=============================== ==================================================================
"""

from __future__ import annotations

import contextlib
import datetime
import reprlib
from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from ...schemas.blocks import RawBatch
from ...schemas.errors import Reject, SchemaError
from ...schemas.features import (
    Audio,
    ClassLabel,
    Dtype,
    Feature,
    Features,
    Image,
    Scalar,
    Sequence,
    Tensor,
    Timestamp,
    WireColumn,
    tensor_form,
)
from ..examples.row_values import UnfitError, to_array, to_lists, unfit
from ..media.audio_header import UnreadableSoundError
from ..media.audio_header import read_header as read_sound
from ..media.image_header import MAX_PIXELS, UnreadableImageError
from ..media.tiff import readable_image
from ..rejects import MISSING_ITEM, MISSING_VALUE, UNKNOWN_CLASS
from ..runs.files import arrow_type, wire_schema

_DTYPES = frozenset(get_args(Dtype))
_UNITS = ("s", "ms", "us", "ns")

BATCH_BYTES = 8 << 20
"""About the bytes of a batch of records."""

Lists = Mapping[str, Any]
"""The stored lists of a value, by wire column; empty if the value is missing."""


def flat_record(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A record's values, with dotted names for values in nested dicts.

    Raises:
        ValueError: if a name is duplicated, as in ``{"a": {"b": 1}, "a.b": 2}``.
    """
    flat: dict[str, Any] = {}
    for name, value in record.items():
        inner = {f"{prefix}{name}": value}
        if isinstance(value, Mapping):
            inner = flat_record(value, f"{prefix}{name}.")
        if twice := sorted(inner.keys() & flat.keys()):
            raise ValueError(f"{twice[0]!r} occurs twice, as a key and inside an object")
        flat |= inner
    return flat


def value_feature(
    name: str,
    values: Many[Any],
    *,
    optional: bool,
    where: str = "",
    remedy: str = "Convert it in the function, or declare it in types=.",
) -> Feature:
    """The feature that stores all the values.

    Args:
        name: The feature's name, for errors.
        values: At least one value, none of which is None.
        optional: Whether some records have no value.
        where: Begins the error, such as ``"The table x: "``.
        remedy: Ends the error.

    Raises:
        SchemaError: if they have no common type.
    """
    if all(isinstance(value, np.ndarray) for value in values):
        return _of_arrays(name, values, optional=optional)
    if all(isinstance(value, list | tuple) for value in values):
        return _of_lists(name, values, optional=optional, where=where, remedy=remedy)
    kinds = {_kind(value) for value in values}
    if kinds <= {"int64", "uint64"}:
        low, high = min(map(int, values)), max(map(int, values))
        dtype = "uint64" if "uint64" in kinds and low >= 0 else "int64"
        if low >= -(2**63) and (high < 2**63 or dtype == "uint64"):
            return Scalar(dtype, optional=optional)  # type: ignore[arg-type]
    if kinds <= {"int64", "uint64", "float64"}:
        return Scalar("float64", optional=optional)
    if len(kinds) == 1:
        (kind,) = kinds
        if kind in _DTYPES:
            return Scalar(kind, optional=optional)  # type: ignore[arg-type]
        if kind.startswith("time "):
            return Timestamp(kind.removeprefix("time "), optional=optional)  # type: ignore[arg-type]
    first = {_kind(value): value for value in reversed(values)}  # one of each kind
    shown = sorted((f"{reprlib.repr(v)} ({type(v).__name__})" for v in first.values()), key=len)
    raise SchemaError(
        f"{where}{name!r} is {', '.join(shown[:2])}; expected values of one type: bools, numbers, "
        "strings, bytes, times with a zone, NumPy arrays, or lists of these. "
        f"{remedy}"
    )


def _of_arrays(name: str, arrays: Many[Any], *, optional: bool) -> Feature:
    kinds = sorted({_array_dtype(array) for array in arrays})
    ranks = sorted({array.ndim for array in arrays})
    if len(kinds) > 1 or len(ranks) > 1 or kinds[0] not in _DTYPES:
        raise SchemaError(
            f"{name!r} has arrays of {', '.join(kinds)} and of {', '.join(map(str, ranks))} "
            "dimensions; expected one dtype that TensorFlow supports, and one number of "
            "dimensions. Convert them in the function."
        )
    dtype: Any = kinds[0]
    return array_feature(dtype, [array.shape for array in arrays], optional=optional)


def array_feature(dtype: Dtype, shapes: Many[tuple[int, ...]], *, optional: bool) -> Feature:
    """The feature of arrays with one number of dimensions; None for those that vary or are 0."""
    sizes = [set(dims) for dims in zip(*shapes, strict=True)]
    if not sizes:
        return Scalar(dtype, optional=optional)
    shape = tuple(min(size) if len(size) == 1 and min(size) else None for size in sizes)
    if optional and None not in shape[1:]:
        of = Tensor(dtype, shape[1:]) if shape[1:] else Scalar(dtype)
        return Sequence(of, optional=True)
    return Tensor(dtype, shape)


def _of_lists(name: str, lists: Many[Any], *, optional: bool, where: str, remedy: str) -> Feature:
    items = [item for values in lists for item in values]
    if not items:
        raise SchemaError(f"{where}{name!r} is an empty list in all records. {remedy}")
    of = value_feature(name, items, optional=False, where=where, remedy=remedy)
    if isinstance(of, Sequence):
        inner: Any = of.of
        return Tensor(inner.dtype, (None, None, *getattr(inner, "shape", ())))
    if isinstance(of, Tensor) and None in of.shape:
        return Tensor(of.dtype, (None, *of.shape))
    return Sequence(of, optional=optional)  # type: ignore[arg-type]


def _array_dtype(array: Any) -> str:
    if array.dtype.kind in "OSU":
        return "string"
    return str(array.dtype.name)


def _kind(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, np.datetime64):
        unit = np.datetime_data(value.dtype)[0]
        return f"time {unit if unit in _UNITS else 's'}"
    if isinstance(value, datetime.datetime):
        return "time us" if value.tzinfo is not None else "datetime without a zone"
    if isinstance(value, np.ndarray):
        return "array"
    if isinstance(value, str | bytes):
        return "string"
    if isinstance(value, np.generic):
        return str(value.dtype.name)
    if isinstance(value, int):
        return "int64" if value < 2**63 else "uint64"
    return "float64" if isinstance(value, float) else type(value).__name__


def wire_lists(name: str, feature: Feature, value: object) -> Lists:
    """The stored lists of a value; None for a missing value.

    Raises:
        UnfitError: if the value does not fit its feature, or a required value is missing.
    """
    form = tensor_form(feature)
    if form is None:
        raise TypeError(f"{name!r} is {feature}, which is not a value")
    if value is None:
        if form.optional:
            return {}
        raise unfit(name, feature, "missing", "Fill it, or make it optional.", MISSING_VALUE)
    item = feature.of if isinstance(feature, Sequence) else feature
    try:
        if isinstance(item, ClassLabel) and item.values is not None:
            value = _codes(name, feature, item.values, value)
        return to_lists(name, form, to_array(name, feature, value))
    except UnfitError as error:
        if isinstance(value, list | tuple) and any(item is None for item in value):
            error.reason = MISSING_ITEM
        raise


def _codes(name: str, feature: Feature, values: tuple[int, ...], value: object) -> Any:
    """The indices of classes that a source has as integers."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_codes(name, feature, values, item) for item in value]
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        number: Any = float(value) if isinstance(value, str) else value
        if int(number) == number:
            return values.index(int(number))
    raise unfit(name, feature, reprlib.repr(value), f"Its values are {values}.", UNKNOWN_CLASS)


def media_lists(
    name: str, feature: Image | Audio, value: Any, *, max_pixels: int = MAX_PIXELS
) -> Lists:
    """The stored lists of an image or sound file: its bytes, and the facts in its header.

    Raises:
        UnfitError: if the file is missing or unreadable.
    """
    if value is None:
        raise UnfitError(f"the record has no {name!r}.", MISSING_VALUE)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise UnfitError(f"{name!r} is a {type(value).__name__}, expected the bytes of a file.")
    value = bytes(value)
    try:
        if isinstance(feature, Audio):
            read_sound(value)
            return {name: [value]}
        value, header = readable_image(value, max_pixels=max_pixels)
    except (UnreadableImageError, UnreadableSoundError) as error:
        raise UnfitError(f"{name!r} {error}.", error.reason, stage="read") from None
    return {
        name: [value],
        f"{name}/height": [header.height],
        f"{name}/width": [header.width],
        f"{name}/orientation": [header.orientation],
    }


def wire_arrays(name: str, feature: Feature, rows: Many[Lists]) -> dict[str, pa.Array]:
    """The wire columns of a feature, from the results of :func:`wire_lists` for each record."""
    return {
        column.name: _array(column, [row.get(column.name) for row in rows])
        for column in feature.wire_columns(name)
    }


def wire_batch(features: Features, rows: Many[Mapping[str, Lists]]) -> pa.RecordBatch:
    """Records in wire form, from the results of :func:`wire_lists` for each, by feature."""
    columns: dict[str, pa.Array] = {}
    for name, feature in features.items():
        columns.update(wire_arrays(name, feature, [row[name] for row in rows]))
    schema = wire_schema(features)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


class PendingRows:
    """Rows and rejects of an unfinished raw batch of one file; ids are ``path#position``."""

    def __init__(self, features: Features, path: str, *, max_rows: int) -> None:
        """Starts empty; full at ``max_rows`` rows and rejects, or at 8 MiB."""
        self._features, self._path, self._max_rows = features, path, max_rows
        self._positions: list[int] = []
        self._rows: list[Mapping[str, Lists]] = []
        self._num_bytes = 0
        self.rejects: list[Reject] = []

    def __len__(self) -> int:
        """The number of rows and rejects."""
        return len(self._rows) + len(self.rejects)

    @property
    def is_full(self) -> bool:
        """Whether to read it before more is added."""
        return len(self) >= self._max_rows or self._num_bytes >= BATCH_BYTES

    def add(self, position: int, row: Mapping[str, Lists], *, num_bytes: int) -> None:
        """Adds a row: the results of :func:`wire_lists`, by feature."""
        self._positions.append(position)
        self._rows.append(row)
        self._num_bytes += num_bytes

    def batch(self) -> RawBatch:
        """All of it."""
        return RawBatch(
            ids=[f"{self._path}#{position}" for position in self._positions],
            columns=wire_batch(self._features, self._rows),
            rejects=tuple(self.rejects),
        )


def _array(column: WireColumn, lists: Many[Any]) -> pa.Array:
    kind = arrow_type(column)
    if column.length == 1:
        return pa.array([None if items is None else _plain(items[0]) for items in lists], kind)
    return pa.array(
        [None if items is None else [_plain(value) for value in items] for items in lists], kind
    )


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
