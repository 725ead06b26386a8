"""The columns of a side table in JSON Lines, and the boxes of images in it.

================================ ===============================================================
value                            feature
================================ ===============================================================
true, false                      bool
whole numbers                    int64
numbers                          float64
strings                          string; a column ``label`` becomes a ClassLabel
list of one of these             a Sequence of it; null or missing: none
object                           its fields: ``camera.iso``
``boxes`` of an image            BoundingBoxes: a list of [ymin, xmin, ymax, xmax], or of objects
                                 ``{"bbox": [ymin, xmin, ymax, xmax], "label": "cat"}``, whose
                                 labels become ``box_labels``, a Sequence of a ClassLabel
================================ ===============================================================

Boxes are shares of the image's height and width, 0 to 1. Pixels would depend on whether their
maker saw the image turned by its EXIF orientation or not.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any

import pyarrow as pa

from ...schemas.errors import RecipeError, SchemaError
from ...schemas.features import (
    BoundingBoxes,
    ClassLabel,
    Feature,
    Features,
    Scalar,
    Sequence,
    flatten,
    wire_columns,
)
from .json.values import object_without_doubles
from .python_values import Lists, flat_record, wire_batch, wire_lists

BOXES = "boxes"
BOX_LABELS = "box_labels"

_BOX_KEYS = frozenset({"bbox", "label"})
_ROUNDING = 1e-6
_FORM = (
    "expected [ymin, xmin, ymax, xmax] as shares of the image's height and width, 0 to 1. Divide "
    "pixels by the image's size"
)


def parse_lines(name: str, data: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a table, nested objects flattened, and why other lines are none."""
    rows, lost = [], []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = object_without_doubles(line)
            fields = flat_record(row) if isinstance(row, dict) else {}
        except (ValueError, RecursionError) as error:
            lost.append(f"{name} line {number}: no JSON ({error})")
            continue
        if not isinstance(row, dict) or not row:
            lost.append(f"{name} line {number}: {reprlib.repr(row)}, expected an object")
            continue
        rows.append(fields)
    return rows, lost


def key_of(row: Mapping[str, Any], columns: Many[str]) -> str:
    """What a row calls its file."""
    column = next((column for column in columns if column in row), next(iter(row)))
    return str(row[column])


def infer_columns(
    name: str, data: bytes, *, image: str | None, keys: Many[str]
) -> dict[str, Feature]:
    """The features of a table's columns but the one that names the file.

    Raises:
        SchemaError: if there is no row, or a column holds values that are no one type.
    """
    rows, lost = parse_lines(name, data)
    if not rows:
        why = f" ({lost[0]})" if lost else ""
        raise SchemaError(f"The table {name} has no row{why}.")
    values: dict[str, list[Any]] = {}
    for row in rows:
        key = next((column for column in keys if column in row), next(iter(row)))
        for column, value in row.items():
            if column != key:
                values.setdefault(column, []).append(value)
    features: dict[str, Feature] = {}
    for column, found in values.items():
        if column == BOXES and image is not None:
            features.update(_box_features(name, found, image))
            continue
        present = [value for value in found if value is not None]
        if present:
            features[column] = value_feature(
                f"The table {name}", column, present, optional=len(present) < len(rows)
            )
    if not features:
        raise SchemaError(f"The table {name} has no column but the files' names.")
    try:
        wire_columns(flatten(features)[0])
    except (RecipeError, SchemaError) as error:
        raise SchemaError(f"The table {name}: {error}") from None
    return features


def read_columns(
    rows: Many[Mapping[str, Any]], features: Features
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The wire columns of the rows that fit; and of each other row why it does not."""
    has_boxes = isinstance(features.get(BOXES), BoundingBoxes)
    lists: list[dict[str, Lists]] = []
    unfit: dict[int, str] = {}
    for number, row in enumerate(rows):
        try:
            given = {**row, **_boxes(row.get(BOXES), features)} if has_boxes else row
            found = {name: wire_lists(name, f, given.get(name)) for name, f in features.items()}
        except SchemaError as error:
            unfit[number] = str(error)
        else:
            lists.append(found)
    return wire_batch(features, lists), unfit


def value_feature(where: str, column: str, values: list[Any], *, optional: bool) -> Feature:
    """The feature of which all values are.

    Raises:
        SchemaError: if they are of no one type.
    """
    if all(isinstance(value, list) for value in values):
        items = [item for value in values for item in value]
        if not items:
            raise SchemaError(f"{where}: all lists of {column!r} are empty. Leave it out.")
        of = value_feature(where, column, items, optional=False)
        if isinstance(of, Scalar | ClassLabel):
            return Sequence(of, optional=optional)
    kinds = {_kind(value) for value in values}
    if kinds == {"string"} and column == "label":
        return ClassLabel(tuple(sorted(set(values))), optional=optional)
    if kinds <= {"int64", "float64"}:
        dtype = "float64" if "float64" in kinds else "int64"
        return Scalar(dtype, optional=optional)  # type: ignore[arg-type]
    if len(kinds) == 1 and kinds <= {"bool", "string"}:
        return Scalar(kinds.pop(), optional=optional)  # type: ignore[arg-type]
    first = next((value for value in values if _kind(value) != _kind(values[0])), values[0])
    raise SchemaError(
        f"{where}: {column!r} is {reprlib.repr(values[0])} in one row and {reprlib.repr(first)} in "
        "another; expected bools, numbers, strings, or lists of one of them. Fix the table."
    )


def _kind(value: Any) -> str:
    for kind, name in ((bool, "bool"), (int, "int64"), (float, "float64"), (str, "string")):
        if isinstance(value, kind):
            return name
    return type(value).__name__


def _box_features(name: str, values: list[Any], image: str) -> dict[str, Feature]:
    labels: set[str] = set()
    num_labelled = num_boxes = 0
    for value in values:
        for box in value if isinstance(value, list) else ():
            num_boxes += 1
            if isinstance(box, dict):
                unknown = sorted(box.keys() - _BOX_KEYS)
                if unknown:
                    raise SchemaError(
                        f"The table {name}: a box has {unknown[0]!r}; expected {{'bbox': [ymin, "
                        "xmin, ymax, xmax], 'label': 'name'}. Leave it out, or put it into a "
                        "column of its own."
                    )
                if isinstance(box.get("label"), str):
                    num_labelled += 1
                    labels.add(box["label"])
    if not num_labelled:
        return {BOXES: BoundingBoxes(image=image)}
    of = ClassLabel(tuple(sorted(labels)))
    return {BOXES: BoundingBoxes(image=image, labels=BOX_LABELS), BOX_LABELS: Sequence(of)}


def _boxes(value: Any, features: Features) -> dict[str, Any]:
    """The columns that a row's boxes become.

    Raises:
        SchemaError: if they are no boxes.
    """
    boxes, labels = [], []
    if value is not None and not isinstance(value, list):
        raise SchemaError(f"boxes is {reprlib.repr(value)}, {_FORM}.")
    for box in value or ():
        corners = box.get("bbox") if isinstance(box, dict) else box
        boxes.append(_corners(corners))
        labels.append(box.get("label") if isinstance(box, dict) else None)
    if BOX_LABELS not in features:
        return {BOXES: boxes}
    missing = [number for number, label in enumerate(labels) if not isinstance(label, str)]
    if missing:
        raise SchemaError(f"box {missing[0]} has no label, and other boxes have.")
    return {BOXES: boxes, BOX_LABELS: labels}


def _corners(value: Any) -> list[float]:
    numbers = (
        isinstance(value, list)
        and len(value) == 4
        and all(isinstance(one, int | float) and not isinstance(one, bool) for one in value)
    )
    if not numbers or not all(-_ROUNDING <= one <= 1 + _ROUNDING for one in value):
        raise SchemaError(f"a box is {reprlib.repr(value)}, {_FORM}.")
    ymin, xmin, ymax, xmax = (min(max(float(one), 0.0), 1.0) for one in value)
    if ymin > ymax or xmin > xmax:
        raise SchemaError(f"a box is {value!r}, whose ends lie before its beginnings; {_FORM}.")
    return [ymin, xmin, ymax, xmax]
