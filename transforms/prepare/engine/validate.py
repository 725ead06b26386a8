"""Validates prepared records in wire form against their features; invalid ones become rejects.

Checks presence, shape, the dtype's range, limits (``min``, ``max``, ``values``, ``finite``,
``max_length``), UTF-8, class indices, boxes and declared image sizes. Only what a feature limits
costs time: an int64, float32 or string without limits is checked just for presence. NaN passes
``min`` and ``max``; only ``finite`` rejects it, and ``values`` that do not list it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....schemas.blocks import RawBatch
from ....schemas.features import (
    BoundingBoxes,
    ClassLabel,
    Feature,
    Features,
    Image,
    Mask,
    Sequence,
    TensorForm,
    Text,
    WireColumn,
    domain_of,
    frames_of,
    tensor_form,
)
from ....schemas.wire import FLOATS, ITEM_BYTES
from ...examples.dtypes import joined_bytes, largest_float, numpy_dtype, unpacked
from ...examples.row_values import describe
from ...media.image_header import read_header
from ...rejects import MISSING_VALUE, NOT_UTF8, OUT_OF_RANGE, UNKNOWN_CLASS, reject_rows

Rows = npt.NDArray[np.bool_]

_NARROW = {"bool": (0, 1)} | {
    f"{kind}{bits}": (int(np.iinfo(f"{kind}{bits}").min), int(np.iinfo(f"{kind}{bits}").max))
    for kind in ("int", "uint")
    for bits in (8, 16, 32)
}
"""The ranges of integer dtypes that are narrower than an Example's int64."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why a row is invalid."""

    row: int
    reason: str
    message: str


class Validator:
    """Checks batches of records of the same features."""

    def __init__(self, features: Features) -> None:
        """Collects the checks for these features."""
        self._checks: list[tuple[str, Check]] = []
        """Each with the column that has a null if it fails; "" if it may always fail."""
        for name, feature in features.items():
            self._checks += _presence_checks(name, feature)
            self._checks += (("", check) for check in _checks(name, feature))
        for name, feature in features.items():
            image = features.get(feature.image) if isinstance(feature, Mask) else None
            if isinstance(feature, Mask) and isinstance(image, Image):
                self._checks += (("", check) for check in _mask_checks(name, feature, image))
            if not isinstance(feature, BoundingBoxes):
                continue
            for labels in feature.per_box:
                form = tensor_form(features[labels]) if labels in features else None
                if form is not None:
                    self._checks.append(("", _label_check(name, feature, labels, form)))

    def problems(self, columns: pa.RecordBatch) -> list[Problem]:
        """The invalid rows, each with its first problem.

        Args:
            columns: Records in wire form.
        """
        problems: list[Problem] = []
        rows = np.arange(columns.num_rows)
        arrays = zip(columns.schema.names, columns.columns, strict=True)
        with_nulls = {"", *(name for name, array in arrays if array.null_count)}
        for column, check in self._checks:
            if column not in with_nulls:
                continue
            if not len(rows):  # all were rejected before
                break
            # Some NaNs warn when they are compared.
            with np.errstate(invalid="ignore"):
                violation = check(columns)
            if violation is None:
                continue
            problems += [
                Problem(int(rows[row]), violation.reason, violation.message(int(row)))
                for row in np.flatnonzero(violation.rows)
            ]
            rows = rows[~violation.rows]
            columns = columns.filter(pa.array(~violation.rows))
        return sorted(problems, key=lambda problem: problem.row)

    def validate(self, batch: RawBatch, *, numbered: bool) -> RawBatch:
        """Moves invalid records to the rejects.

        Args:
            batch: Prepared records in wire form.
            numbered: Whether record ids are ``path#position``.
        """
        problems = self.problems(batch.columns)
        if not problems:
            return batch
        fits = np.ones(batch.columns.num_rows, bool)
        rejects = list(batch.rejects)
        for problem in problems:
            fits[problem.row] = False
            rejects += reject_rows(
                batch.ids,
                np.array([problem.row]),
                reason=problem.reason,
                message=problem.message,
                numbered=numbered,
            )
        return dataclasses.replace(
            batch,
            ids=[batch.ids[row] for row in np.flatnonzero(fits)],
            columns=batch.columns.filter(pa.array(fits)),
            rejects=tuple(rejects),
        )


def _checks(name: str, feature: Feature) -> Iterator[Check]:
    """The checks of what is there of one feature, the cheapest and most basic first."""
    if isinstance(feature, Image):
        yield from _image_checks(name, feature)
    frame = frames_of(feature)
    if frame is not None and (frame.height, frame.width) != (None, None):
        yield _frame_check(name, frame)
    form = tensor_form(feature)
    if form is not None:
        yield from value_checks(name, feature, form)


def _presence_checks(name: str, feature: Feature) -> Iterator[tuple[str, Check]]:
    """The checks that a feature is there, each with the column that has a null if it fails."""
    for column in feature.wire_columns(name):
        if column.length != 1:
            yield "", _presence(name, feature, column)
        elif not column.optional:
            yield column.name, _presence(name, feature, column)


def _presence(name: str, feature: Feature, column: WireColumn) -> Check:
    """Required values are present, and lists have no gaps."""

    def check(columns: pa.RecordBatch) -> Violation | None:
        array = columns.column(column.name)
        missing: Rows = np.zeros(0, bool)
        if array.null_count and not column.optional:
            missing = array.is_null().to_numpy(zero_copy_only=False)
        if column.length != 1 and array.flatten().null_count:
            gaps = [row is not None and None in row for row in array.to_pylist()]
            missing = np.array(gaps) | (missing if len(missing) else False)
        if not missing.any():
            return None
        return Violation(
            missing,
            MISSING_VALUE,
            lambda row: (
                f"feature {name!r} {'holds a gap' if array[row].is_valid else 'is missing'}, "
                f"expected {describe(feature)}. Fill it in prepare=, or declare it optional."
            ),
        )

    return check


def _image_checks(name: str, feature: Image) -> Iterator[Check]:
    """Sizes are as declared, and the number of bytes of pixels matches the size."""
    present = {column.name for column in feature.wire_columns(name)}
    for axis in ("height", "width"):
        expected = getattr(feature, axis)
        if expected is not None and f"{name}/{axis}" in present:
            yield _size_check(name, axis, expected)
    if feature.storage == "raw":
        yield _pixel_check(name, feature)
        if isinstance(feature, Mask) and feature.names is not None:
            yield _index_check(name, feature, feature.names)


def _size_check(name: str, axis: str, expected: int) -> Check:
    def check(columns: pa.RecordBatch) -> Violation | None:
        sizes = columns.column(f"{name}/{axis}").to_numpy()
        if (sizes == expected).all():
            return None
        return Violation(
            sizes != expected,
            "wrong size",
            lambda row: (
                f"feature {name!r} has {axis} {sizes[row]}, expected {expected}. "
                "Resize it in prepare=, or do not declare the size."
            ),
        )

    return check


def _frame_check(name: str, frame: Image) -> Check:
    """The frames of clips, which have one size in each clip, have the declared one."""

    def check(columns: pa.RecordBatch) -> Violation | None:
        sizes: dict[int, tuple[int, int]] = {}
        for row, clip in enumerate(columns.column(name)):
            if clip.is_valid and len(clip):
                header = read_header(clip[0].as_py())
                sizes[row] = header.height, header.width
        wrong = np.zeros(columns.num_rows, bool)
        for row, (height, width) in sizes.items():
            wrong[row] = (frame.height or height, frame.width or width) != (height, width)
        if not wrong.any():
            return None
        return Violation(
            wrong,
            "wrong size",
            lambda row: (
                f"the frames of {name!r} have height × width {sizes[row][0]}×{sizes[row][1]}, "
                f"expected {frame.height or 'any'}×{frame.width or 'any'}. Resize them in "
                "prepare=, or do not declare the size."
            ),
        )

    return check


def _side(columns: pa.RecordBatch, name: str, feature: Image, axis: str) -> npt.NDArray[np.int64]:
    """The heights or widths of images: a scalar if all are the same."""
    fixed = getattr(feature, axis) if feature.fixed_size else None
    return np.asarray(columns.column(f"{name}/{axis}") if fixed is None else fixed)


def _mask_checks(name: str, mask: Mask, image: Image) -> Iterator[Check]:
    """A mask has the size of its image, unless steps gave each a size of its own."""
    if mask.fixed_size and image.fixed_size:
        return

    def check(columns: pa.RecordBatch, axis: str) -> Violation | None:
        sizes = _side(columns, name, mask, axis)
        expected = _side(columns, mask.image, image, axis)
        wrong = np.broadcast_to(sizes != expected, columns.num_rows)
        if not wrong.any():
            return None
        return Violation(
            wrong,
            "wrong size",
            lambda row: (
                f"the mask {name!r} has {axis} {np.broadcast_to(sizes, wrong.shape)[row]}, its "
                f"image {mask.image!r} {np.broadcast_to(expected, wrong.shape)[row]}. Correct the "
                "files, or resize both in prepare=."
            ),
        )

    for axis in ("height", "width"):
        yield functools.partial(check, axis=axis)


def _index_check(name: str, mask: Mask, names: tuple[str, ...]) -> Check:
    """All indices are those of classes, or ignored."""
    unknown = np.arange(256) >= len(names)
    if mask.ignore is not None:
        unknown[mask.ignore] = False

    def check(columns: pa.RecordBatch) -> Violation | None:
        array = columns.column(name)
        wrong = np.array(
            [unknown[np.frombuffer(pixels, np.uint8)].any() for pixels in array.to_pylist()], bool
        )
        if not wrong.any():
            return None

        def message(row: int) -> str:
            indices = np.unique(np.frombuffer(array[row].as_py(), np.uint8))
            return (
                f"feature {name!r} has the index {indices[unknown[indices]][0]}, expected one of "
                f"its {len(names)} classes. Map it in prepare=, name its class, or declare ignore=."
            )

        return Violation(wrong, "class not declared", message)

    return check


def _pixel_check(name: str, feature: Image) -> Check:
    def check(columns: pa.RecordBatch) -> Violation | None:
        array = columns.column(name)
        lengths = byte_lengths(array)
        height, width = (_side(columns, name, feature, axis) for axis in ("height", "width"))
        expected = height * width * feature.pixel_bytes
        wrong = np.asarray(lengths != expected)
        if not wrong.any():
            return None
        return Violation(
            wrong,
            "wrong shape",
            lambda row: (
                f"feature {name!r} has {lengths[row]:,} bytes of pixels, expected "
                f"{np.broadcast_to(expected, lengths.shape)[row]:,} for {describe(feature)}. Fix "
                "the function or source that made it."
            ),
        )

    return check


def _label_check(name: str, boxes: BoundingBoxes, labels: str, form: TensorForm) -> Check:
    """Each box has exactly one label."""
    column, stored = boxes.wire_columns(name)[0], form.wire_columns(labels)[0]
    size = math.prod(dim or 1 for dim in form.shape[1:])

    def check(columns: pa.RecordBatch) -> Violation | None:
        num_boxes = num_values(columns.column(name), column) // 4
        num_labels = num_values(columns.column(labels), stored) // size
        if (num_boxes == num_labels).all():
            return None
        return Violation(
            num_boxes != num_labels,
            "wrong shape",
            lambda row: (
                f"feature {labels!r} has {num_labels[row]:,} values for {num_boxes[row]:,} boxes "
                f"in {name!r}, expected one for each. Fix the record."
            ),
        )

    return check


@dataclasses.dataclass(frozen=True)
class Violation:
    """The result of a check that failed on a batch."""

    rows: Rows
    """bool[rows]: which rows failed."""
    reason: str
    message: Callable[[int], str]
    """The message for a failed row: what was found, what is expected, how to fix it."""


Check = Callable[[pa.RecordBatch], Violation | None]


@dataclasses.dataclass(frozen=True)
class _Test:
    """A test of each single value."""

    bad: Callable[[Any], Rows | None]
    """Marks invalid values in a flat array; None if all are valid."""
    reason: str
    expected: str
    fix: str


def byte_lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of each value of a ``large_binary`` column; 0 if it is missing."""
    lengths = pc.binary_length(array).fill_null(0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def value_checks(name: str, feature: Feature, form: TensorForm) -> Iterator[Check]:
    """The checks of one feature's values; none if every value is allowed."""
    column = form.wire_columns(name)[0]
    if column.packed is not None or (None in form.shape and len(form.shape) > 1):
        yield _shape_check(name, feature, form)
    item = feature.of if isinstance(feature, Sequence) else feature
    for test in _tests(item, form, feature):
        yield _each_value(name, column, form, test)


def _tests(item: Feature, form: TensorForm, feature: Feature) -> Iterator[_Test]:
    if isinstance(item, ClassLabel):
        last = len(item.names) - 1
        yield _Test(
            lambda values: _outside(values, 0, last),
            UNKNOWN_CLASS,
            f"an index from 0 to {last}",
            "Declare every class in names=, and return its index; integers of a source are mapped "
            "there: ss.ClassLabel({INTEGER: 'name', …}).",
        )
    elif isinstance(item, BoundingBoxes):
        yield _Test(
            _not_boxes,
            "not a box",
            "ymin, xmin, ymax, xmax from 0 to 1, ymin <= ymax and xmin <= xmax",
            "Divide by the image's height and width, or clip, before.",
        )
    elif isinstance(item, Text):
        yield _Test(
            _not_utf8,
            NOT_UTF8,
            "text in UTF-8",
            "Decode it with its own encoding, or declare a Scalar of strings.",
        )
    if form.dtype in ("float16", "bfloat16") and not _is_packed(form):
        largest = largest_float(form.dtype)
        yield _Test(
            lambda values: _beyond(values, largest),
            OUT_OF_RANGE,
            f"{form.dtype}, -{largest} to {largest}",
            "Declare a wider dtype, or clip it in prepare=.",
        )
    elif form.dtype in _NARROW and not _is_packed(form):
        low, high = _NARROW[form.dtype]
        yield _Test(
            lambda values: _outside(values, low, high),
            OUT_OF_RANGE,
            f"{form.dtype}, {low} to {high}",
            "Declare a wider dtype, or clip it in prepare=.",
        )
    yield from _domain_tests(feature, form.dtype, is_text=isinstance(item, Text))


def _domain_tests(feature: Feature, dtype: str, *, is_text: bool) -> Iterator[_Test]:
    """The tests for limits declared by the user."""
    domain = domain_of(feature)
    fix = "Fix the record, clip or filter in prepare=, or relax the limit."
    if domain.finite:
        yield _Test(_not_finite, "not finite", "a finite number (finite=True)", fix)
    if domain.min is not None or domain.max is not None:
        low, high = (_as_stored(limit, dtype) for limit in (domain.min, domain.max))
        limits = [
            f"{side}={limit}" for side, limit in (("min", low), ("max", high)) if limit is not None
        ]
        yield _Test(
            lambda values: _outside(values, low, high), "out of limits", " and ".join(limits), fix
        )
    if domain.values is not None:
        allowed = [_as_stored(value, dtype) for value in domain.values]
        shown = reprlib.repr(list(domain.values))
        yield _Test(
            lambda values: _not_among(values, allowed),
            "not an allowed value",
            f"one of {shown}",
            fix,
        )
    if domain.max_length is not None:
        longest = domain.max_length
        yield _Test(
            lambda values: _longer(values, longest, is_text=is_text),
            "too long",
            f"at most {longest:,} {'characters' if is_text else 'bytes'}",
            "Truncate it in prepare=, or raise max_length=.",
        )


def _is_packed(form: TensorForm) -> bool:
    return form.wire_columns("")[0].packed is not None


def _as_stored(limit: Any, dtype: str) -> Any:
    """A limit in the precision of the values: ``max=0.1`` must accept 0.1."""
    if dtype == "string":
        return limit.encode()
    if limit is None or dtype not in FLOATS:
        return limit
    with np.errstate(over="ignore"):
        return float(np.asarray(limit, np.float64).astype(numpy_dtype(dtype)))


def _outside(values: Any, low: Any, high: Any) -> Rows | None:
    """Marks numbers below ``low`` or above ``high``; None means no limit."""
    if not values.size:
        return None
    # With a NaN, min and max are NaN, so this shortcut does not apply.
    above = low is None or values.min() >= low
    if above and (high is None or values.max() <= high):
        return None
    bad = np.zeros(values.shape, bool)
    if low is not None:
        bad |= values < low
    if high is not None:
        bad |= values > high
    return bad if bad.any() else None


def _beyond(values: Any, largest: float) -> Rows | None:
    """Marks finite numbers that a narrower dtype would round to infinity."""
    bad = _outside(values, -largest, largest)
    bad = None if bad is None else bad & np.isfinite(values)
    return bad if bad is not None and bad.any() else None


def _not_finite(values: Any) -> Rows | None:
    finite = np.isfinite(values)
    return None if finite.all() else ~finite


def _not_among(values: Any, allowed: list[Any]) -> Rows | None:
    if isinstance(values, pa.Array):
        known = pc.is_in(values, value_set=pa.array(allowed, values.type))
        inside = known.to_numpy(zero_copy_only=False)
    else:
        possible = [
            value
            for value in allowed
            if values.dtype.kind == "f"
            or np.iinfo(values.dtype).min <= value <= np.iinfo(values.dtype).max
        ]
        inside = np.isin(values, np.array(possible, values.dtype))
    return None if inside.all() else ~inside


def _not_utf8(values: pa.Array) -> Rows | None:
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        return np.array([not is_utf8(value) for value in values.to_pylist()])
    return None


def is_utf8(value: bytes) -> bool:
    """Whether bytes are valid UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _longer(values: pa.Array, longest: int, *, is_text: bool) -> Rows | None:
    lengths = byte_lengths(values)
    if not len(lengths) or lengths.max() <= longest:
        return None
    if is_text:
        lengths = pc.utf8_length(values.cast(pa.large_string())).to_numpy()
    return lengths > longest if (lengths > longest).any() else None


def _not_boxes(values: Any) -> Rows | None:
    boxes = values.reshape(-1, 4)
    inside = (boxes >= 0) & (boxes <= 1)
    inside[:, :2] &= boxes[:, :2] <= boxes[:, 2:]
    return None if inside.all() else ~inside.reshape(-1)


def _each_value(name: str, column: WireColumn, form: TensorForm, test: _Test) -> Check:
    """A check of each value of a column."""

    def check(columns: pa.RecordBatch) -> Violation | None:
        array = columns.column(column.name)
        values = _flat(array, column, form.dtype)
        bad = test.bad(values)
        if bad is None:
            return None
        places = np.flatnonzero(bad)
        starts = np.cumsum(num_values(array, column)) - num_values(array, column)
        # Empty rows start where the next row does: the last of these rows owns the value.
        owners = np.searchsorted(starts, places, side="right") - 1
        rows, firsts = np.unique(owners, return_index=True)
        first = dict(zip(rows.tolist(), places[firsts].tolist(), strict=True))

        def message(row: int) -> str:
            value = values[first[row]]
            shown = _shown(value.as_py() if isinstance(value, pa.Scalar) else value.item())
            found = f"is {shown}"
            if form.shape:
                found = f"holds {shown} at {_place(first[row] - int(starts[row]), form)}"
            return f"feature {name!r} {found}, expected {test.expected}. {test.fix}"

        mask = np.zeros(len(array), bool)
        mask[rows] = True
        return Violation(mask, test.reason, message)

    return check


def _flat(array: pa.Array, column: WireColumn, dtype: str) -> Any:
    """All present values as a flat array: NumPy, or Arrow for strings."""
    if column.packed is not None:
        values = unpacked(joined_bytes(array.drop_null()), column.packed)
        # NumPy compares float16 slowly, and does not support bfloat16.
        return values.astype(np.float32) if values.itemsize == 2 and dtype in FLOATS else values
    flat = array.drop_null() if column.length == 1 else array.flatten()
    if column.kind == "bytes":
        return flat
    numbers = flat.to_numpy(zero_copy_only=False)
    return numbers.view(np.uint64) if dtype == "uint64" else numbers


def num_values(array: pa.Array, column: WireColumn) -> npt.NDArray[np.int64]:
    """The number of values in each row of a stored column: int64[rows]."""
    if column.packed is not None:
        return byte_lengths(array) // ITEM_BYTES[column.packed]
    if column.length == 1:
        return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.int64)
    lengths = pc.list_value_length(array).fill_null(0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode() if is_utf8(value) else value
    return reprlib.repr(value)


def _place(index: int, form: TensorForm) -> list[int]:
    """The index of a value in its tensor, as far as the shape is known."""
    if None in form.shape[1:]:
        return [index]
    place: list[int] = []
    for dim in reversed([dim or 1 for dim in form.shape[1:]]):
        index, at = divmod(index, dim)
        place.insert(0, at)
    return [index, *place]


def _shape_check(name: str, feature: Feature, form: TensorForm) -> Check:
    """The number of values matches the shape."""
    column, *sides = form.wire_columns(name)
    known = math.prod(dim for dim in form.shape if dim is not None)

    def check(columns: pa.RecordBatch) -> Violation | None:
        array = columns.column(column.name)
        counts = num_values(array, column)
        if sides:
            shape = columns.column(sides[0].name).flatten().to_numpy().reshape(len(array), -1)
            wrong = (shape < 0).any(axis=1) | (shape.prod(axis=1) != counts)
            for axis, dim in enumerate(form.shape):
                wrong |= (shape[:, axis] != dim) if dim is not None else False
        else:
            wrong = (counts % known != 0) if None in form.shape else counts != known
        if column.packed is not None:
            wrong |= byte_lengths(array) % ITEM_BYTES[column.packed] != 0
        wrong &= array.is_valid().to_numpy(zero_copy_only=False)
        if not wrong.any():
            return None

        def message(row: int) -> str:
            found = f"{counts[row]:,} values"
            if column.packed is not None:
                found = f"{byte_lengths(array)[row]:,} bytes of {column.packed}"
            if sides:
                found += f" of shape {shape[row].tolist()}"
            return (
                f"feature {name!r} has {found}, expected {describe(feature)}. Declare its shape as "
                "it is, or fix the function or source that made it."
            )

        return Violation(wrong, "wrong shape", message)

    return check
