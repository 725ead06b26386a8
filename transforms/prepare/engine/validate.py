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
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....schemas.blocks import RawBatch
from ....schemas.features import (
    BoundingBoxes,
    Feature,
    Features,
    Image,
    Mask,
    TensorForm,
    WireColumn,
    frames_of,
    tensor_form,
)
from ...examples.row_values import describe
from ...media.image_header import read_header
from ...rejects import reject_rows
from .validate_values import Check, Rows, Violation, byte_lengths, num_values, value_checks


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
        self._checks = [
            check for name, feature in features.items() for check in _checks(name, feature)
        ]
        for name, feature in features.items():
            image = features.get(feature.image) if isinstance(feature, Mask) else None
            if isinstance(feature, Mask) and isinstance(image, Image):
                self._checks += _mask_checks(name, feature, image)
            if not isinstance(feature, BoundingBoxes):
                continue
            for labels in feature.per_box:
                form = tensor_form(features[labels]) if labels in features else None
                if form is not None:
                    self._checks.append(_label_check(name, feature, labels, form))

    def problems(self, columns: pa.RecordBatch) -> list[Problem]:
        """The invalid rows, each with its first problem.

        Args:
            columns: Records in wire form.
        """
        found: list[Problem] = []
        rows = np.arange(columns.num_rows)
        for check in self._checks:
            if not len(rows):  # all were rejected before
                break
            # Some NaNs warn when they are compared.
            with np.errstate(invalid="ignore"):
                violation = check(columns)
            if violation is None:
                continue
            found += [
                Problem(int(rows[row]), violation.reason, violation.message(int(row)))
                for row in np.flatnonzero(violation.rows)
            ]
            rows = rows[~violation.rows]
            columns = columns.filter(pa.array(~violation.rows))
        return sorted(found, key=lambda problem: problem.row)

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
        for found in problems:
            fits[found.row] = False
            rejects += reject_rows(
                batch.ids,
                np.array([found.row]),
                reason=found.reason,
                message=found.message,
                numbered=numbered,
            )
        return dataclasses.replace(
            batch,
            ids=[batch.ids[row] for row in np.flatnonzero(fits)],
            columns=batch.columns.filter(pa.array(fits)),
            rejects=tuple(rejects),
        )


def _checks(name: str, feature: Feature) -> Iterator[Check]:
    """The checks of one feature, the cheapest and most basic first."""
    for column in feature.wire_columns(name):
        yield _presence(name, feature, column)
    if isinstance(feature, Image):
        yield from _image_checks(name, feature)
    frame = frames_of(feature)
    if frame is not None and (frame.height, frame.width) != (None, None):
        yield _frame_check(name, frame)
    form = tensor_form(feature)
    if form is not None:
        yield from value_checks(name, feature, form)


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
            "missing value",
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
        found = columns.column(f"{name}/{axis}").to_numpy()
        if (found == expected).all():
            return None
        return Violation(
            found != expected,
            "wrong size",
            lambda row: (
                f"feature {name!r} has {axis} {found[row]}, expected {expected}. "
                "Resize it in prepare=, or do not declare the size."
            ),
        )

    return check


def _frame_check(name: str, frame: Image) -> Check:
    """The frames of clips, which have one size in each clip, have the declared one."""

    def check(columns: pa.RecordBatch) -> Violation | None:
        found: dict[int, tuple[int, int]] = {}
        for row, clip in enumerate(columns.column(name)):
            if clip.is_valid and len(clip):
                header = read_header(clip[0].as_py())
                found[row] = header.height, header.width
        wrong = np.zeros(columns.num_rows, bool)
        for row, (height, width) in found.items():
            wrong[row] = (frame.height or height, frame.width or width) != (height, width)
        if not wrong.any():
            return None
        return Violation(
            wrong,
            "wrong size",
            lambda row: (
                f"the frames of {name!r} have height × width {found[row][0]}×{found[row][1]}, "
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
        found = _side(columns, name, mask, axis)
        expected = _side(columns, mask.image, image, axis)
        wrong = np.broadcast_to(found != expected, columns.num_rows)
        if not wrong.any():
            return None
        return Violation(
            wrong,
            "wrong size",
            lambda row: (
                f"the mask {name!r} has {axis} {np.broadcast_to(found, wrong.shape)[row]}, its "
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
            found = np.unique(np.frombuffer(array[row].as_py(), np.uint8))
            return (
                f"feature {name!r} has the index {found[unknown[found]][0]}, expected one of its "
                f"{len(names)} classes. Map it in prepare=, name its class, or declare ignore=."
            )

        return Violation(wrong, "class not declared", message)

    return check


def _pixel_check(name: str, feature: Image) -> Check:
    def check(columns: pa.RecordBatch) -> Violation | None:
        array = columns.column(name)
        found = byte_lengths(array)
        height, width = (_side(columns, name, feature, axis) for axis in ("height", "width"))
        expected = height * width * feature.pixel_bytes
        wrong = np.asarray(found != expected)
        if not wrong.any():
            return None
        return Violation(
            wrong,
            "wrong shape",
            lambda row: (
                f"feature {name!r} has {found[row]:,} bytes of pixels, expected "
                f"{np.broadcast_to(expected, found.shape)[row]:,} for {describe(feature)}. Fix "
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
