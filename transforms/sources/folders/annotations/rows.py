"""Tables with a row for each box, as CSV or TSV.

Columns are known by their names, in any case: a file's name or id (``filename``, ``ImageID`` …),
the sides ``xmin``, ``ymin``, ``xmax`` and ``ymax`` (or ``x1`` …), and, if they are there, the class
(``class``, ``LabelName`` …), the ``width`` and ``height`` of the image, and ``IsGroupOf``. Others
are not read. Sides are pixels, or fractions if none is above 1 and some are below; an image without
boxes has a row in which they are empty.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from .....schemas.errors import SchemaError
from ...csv.dialect import sniff
from ...csv.rows import WHITESPACE
from .model import (
    BOX_CROWD,
    NO_AREA,
    NO_CATEGORY,
    NOT_A_BOX,
    OUTSIDE,
    ROUNDING,
    Annotations,
    BadBoxes,
    Bools,
    Ints,
    fit_boxes,
    mend,
)

_FILE, _CLASS, _CROWD = "file", "class", "crowd"
_SIDES = ("ymin", "xmin", "ymax", "xmax")
_SIZE = ("height", "width")
_NAMES: Mapping[str, tuple[str, ...]] = {
    _FILE: (
        *("filename", "file", "imageid", "image", "imagename", "imagepath", "imagefile", "path"),
        *("filepath", "imgpath", "imgname", "imgid", "img", "name"),
    ),
    _CLASS: ("class", "label", "labelname", "classname", "category", "categoryname", "object"),
    _CROWD: ("isgroupof", "iscrowd"),
    "ymin": ("ymin", "y1", "top"),
    "xmin": ("xmin", "x1", "left"),
    "ymax": ("ymax", "y2", "bottom"),
    "xmax": ("xmax", "x2", "right"),
    "height": ("height", "imageheight", "imgheight"),
    "width": ("width", "imagewidth", "imgwidth"),
}
"""Names of columns, in lower case and without '_', '-' and blanks; the first one found counts."""
_NUMBER = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$"
_SNIFFED_BYTES = 1 << 20
_FAULTS = {
    NOT_A_BOX: "must be four numbers",
    NO_AREA: "has no area",
    OUTSIDE: "is outside the image",
    NO_CATEGORY: "has no class",
}
_ROUNDING = 0.01
"""By how much fractions may exceed an image of unknown size."""
_SHOWN = 12
_Floats = npt.NDArray[np.float64]


def columns_of_boxes(header: Iterable[str]) -> dict[str, str]:
    """The columns that are read, by what they are; empty if they are not those of boxes.

    >>> columns_of_boxes(["ImageID", "XMin", "XMax", "YMin", "YMax"])["ymin"]
    'YMin'
    >>> columns_of_boxes(["file", "label"]), columns_of_boxes("file x1 y1 x2 y2 x3 y3".split())
    ({}, {})
    """
    given: dict[str, str] = {}
    for name in header:
        given.setdefault(re.sub(r"[\s_-]", "", name).lower(), name)
    columns = {
        what: given[next(name for name in names if name in given)]
        for what, names in _NAMES.items()
        if not given.keys().isdisjoint(names)
    }
    are_points = given.keys() >= {"x3", "y3"} or given.keys() >= {"x0", "y0"}
    return columns if columns.keys() >= {_FILE, *_SIDES} and not are_points else {}


def read_rows(name: str, data: bytes, bad_boxes: BadBoxes = "reject") -> Annotations:
    """Reads a table of boxes.

    Raises:
        SchemaError: if it is not one.
    """
    rows = _parse(name, data)
    files, file_names = _encoded(rows[_FILE])
    corners, is_number = _numbers([rows[side] for side in _SIDES])
    is_blank = np.all([_lengths(rows[side]) == 0 for side in _SIDES], axis=0)
    order = np.argsort(files, kind="stable")
    order = order[~is_blank[order]]
    places, corners, is_number = files[order], corners[order], is_number[order].all(axis=1)
    sizes, unfit = _sizes(rows, files, len(file_names))
    in_pixels = _in_pixels(corners[is_number], has_sizes=sizes is not None)
    boxes, faults = _fit(corners, None if sizes is None else sizes[places], in_pixels=in_pixels)
    labels, class_names = _classes(rows.get(_CLASS), order)
    faults = np.where((faults == 0) & (labels < 0), NO_CATEGORY, faults)
    faults = np.where(is_number, faults, NOT_A_BOX)
    if in_pixels and sizes is None and bad_boxes != "reject":
        raise SchemaError(
            f"The table {name} has boxes in pixels, and no columns width and height: add them, or "
            f"leave out bad_boxes={bad_boxes!r}."
        )
    kept, is_bad, faults = mend(boxes, faults, bad_boxes)
    num_bad = np.bincount(places[is_bad], minlength=len(file_names))
    boxes, faults, labels = boxes[kept], faults[kept], labels[kept]
    places, order = places[kept], order[kept]
    for box in np.flatnonzero(faults).tolist():
        row = int(order[box])
        shown = ", ".join(rows[side][row].as_py() for side in _SIDES)
        unfit.setdefault(
            int(places[box]),
            f"row {row + 1}: the box ({shown}) of ymin, xmin, ymax, xmax {_FAULTS[faults[box]]}",
        )
    counts = np.bincount(places, minlength=len(file_names))
    crowd = rows.get(_CROWD)
    return Annotations(
        name=name,
        file_names=file_names,
        sizes=sizes,
        in_pixels=in_pixels and sizes is None,
        ends=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        boxes=boxes,
        labels=np.maximum(labels, 0),
        flags={} if crowd is None else {BOX_CROWD: _are_true(crowd)[order]},
        class_names=class_names,
        unfit=unfit,
        num_bad=None if bad_boxes == "reject" else num_bad,
    )


def read_header(name: str, data: bytes) -> tuple[list[str], str, str]:
    """The names of the columns of a table, its delimiter and its encoding."""
    found = sniff(data[:_SNIFFED_BYTES], default="\t" if name.lower().endswith(".tsv") else ",")
    text = data[:_SNIFFED_BYTES].decode(found.encoding, "replace").removeprefix("\ufeff")
    delimiter = " " if found.delimiter == WHITESPACE else found.delimiter
    rows = csv.reader(text.splitlines()[:1], delimiter=delimiter)
    try:
        return next(rows, []), delimiter, found.encoding
    except csv.Error:
        return [], delimiter, found.encoding


def _parse(name: str, data: bytes) -> dict[str, pa.Array]:
    """The columns that are read, as texts without blanks around them, by what they are."""
    header, delimiter, encoding = read_header(name, data)
    columns = columns_of_boxes(header)
    if not columns:
        raise SchemaError(
            f"The table {name} does not have a box in each row: expected the columns filename, "
            "xmin, ymin, xmax and ymax, and class, width and height if there are any, found "
            f"{', '.join(map(repr, header[:_SHOWN]))}."
        )
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(use_threads=False, encoding=encoding),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                include_columns=list(columns.values()),
                column_types=dict.fromkeys(columns.values(), pa.large_string()),
                strings_can_be_null=False,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise SchemaError(f"The table {name}: {error}") from None
    return {
        what: pc.utf8_trim_whitespace(table.column(column).combine_chunks())
        for what, column in columns.items()
    }


def _encoded(texts: pa.Array) -> tuple[Ints, list[str]]:
    """Each text as an index of the distinct ones."""
    found = texts.dictionary_encode()
    return found.indices.to_numpy().astype(np.int64), found.dictionary.to_pylist()


def _lengths(texts: pa.Array) -> Ints:
    return pc.binary_length(texts).to_numpy()  # type: ignore[no-any-return]


def _numbers(columns: Iterable[pa.Array]) -> tuple[_Floats, Bools]:
    """[rows, columns]: the numbers, 0 for other texts, and which are numbers."""
    values, valid = [], []
    for texts in columns:
        is_number = pc.match_substring_regex(texts, _NUMBER)
        numbers = pc.if_else(is_number, texts, "0").cast(pa.float64())
        values.append(numbers.to_numpy())
        valid.append(is_number.to_numpy(zero_copy_only=False) & np.isfinite(values[-1]))
    return np.stack(values, axis=1), np.stack(valid, axis=1)


def _sizes(
    rows: Mapping[str, pa.Array], files: Ints, num: int
) -> tuple[Ints | None, dict[int, str]]:
    """Height and width of each image, if there are columns for both, and images without."""
    if not all(side in rows for side in _SIZE):
        return None, {}
    numbers, _ = _numbers([rows[side] for side in _SIZE])
    given = np.clip(numbers, 0, 2**31).astype(np.int64)
    sizes = np.zeros((num, 2), np.int64)
    sizes[files[::-1]] = given[::-1]  # the first row counts
    differ = np.zeros(num, np.bool_)
    differ[files[(given != sizes[files]).any(axis=1)]] = True
    unfit = {
        int(image): "its width or height is missing, or differs between its rows"
        for image in np.flatnonzero(differ | (sizes < 1).any(axis=1))
    }
    return np.maximum(sizes, 1), unfit


def _in_pixels(corners: _Floats, *, has_sizes: bool) -> bool:
    """Whether sides are pixels: not if none is above 1 and some are between 0 and 1."""
    if not len(corners) or corners.max() > 1:
        return True
    is_between = ((corners > 0) & (corners < 1)).any()
    return has_sizes and not is_between


def _fit(corners: _Floats, sizes: Ints | None, *, in_pixels: bool) -> tuple[Any, Any]:
    """Boxes and their faults; pixels remain pixels if sizes are not known."""
    if not in_pixels:
        return fit_boxes(corners, 1.0, _ROUNDING if sizes is None else ROUNDING / sizes)
    if sizes is not None:
        return fit_boxes(corners, sizes, ROUNDING)
    empty = (corners[:, :2] >= corners[:, 2:]).any(axis=1)
    return corners.astype(np.float32), np.where(empty, NO_AREA, 0)


def _classes(texts: pa.Array | None, order: Ints) -> tuple[Ints, tuple[str, ...]]:
    """The class of each box, -1 if it is missing, and the names: sorted, as numbers if all are."""
    if texts is None:
        return np.zeros(len(order), np.int64), ()
    codes, found = _encoded(texts.take(pa.array(order)))
    are_numbers = all(name.isascii() and name.isdigit() for name in found if name)
    names = sorted(filter(None, found), key=(lambda n: (int(n), n)) if are_numbers else None)
    place = {name: code for code, name in enumerate(names)}
    mapped = np.array([place.get(name, -1) for name in found] or [0], np.int64)
    return mapped[codes], tuple(names)


def _are_true(texts: pa.Array) -> Bools:
    lower = pc.utf8_lower(texts)
    return pc.is_in(lower, pa.array(["1", "true"], texts.type)).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
