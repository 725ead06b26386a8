"""COCO's files: boxes and classes of images (instances), or captions, from one JSON document.

Of ``images``, the members ``id``, ``file_name``, ``height`` and ``width`` are read, of
``categories`` ``id`` and ``name``, of ``annotations`` ``image_id``, ``category_id``, ``bbox`` and
``iscrowd``. All others are skipped while parsing, so it needs less than twice the memory of the
document, and then keeps about 30 bytes for each box.

The classes are the names of the categories, in the order of their ids. Of captions, ``image_id``
and ``caption`` are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from .....schemas.errors import SchemaError
from .model import (
    BOX_CROWD,
    CAPTIONS,
    IMAGE_ID,
    NO_AREA,
    NO_CATEGORY,
    NOT_A_BOX,
    ROUNDING,
    Annotations,
    BadBoxes,
    Ints,
    fit_boxes,
    mend,
)

_MAX_BYTES = 2**31 - 1024
"""Maximum size of a document: pyarrow parses it as one block."""
_NO_ID = -(2**63)
"""Stands for a missing id."""
_ITEMS = {
    "images": {
        "id": pa.int64(),
        "file_name": pa.large_string(),
        "height": pa.int64(),
        "width": pa.int64(),
    },
    "categories": {"id": pa.int64(), "name": pa.large_string()},
    "annotations": {
        "image_id": pa.int64(),
        "category_id": pa.int64(),
        "bbox": pa.list_(pa.float64()),
        "iscrowd": pa.int64(),
    },
}
_CAPTIONS = {"image_id": pa.int64(), "caption": pa.large_string()}
_BOX, _CAPTION = b'"bbox"', b'"caption"'


class NoBoxesError(SchemaError):
    """A file of COCO has annotations of images, but no boxes."""


def read_instances(name: str, data: bytes, bad_boxes: BadBoxes = "reject") -> Annotations:
    """Reads an instances file.

    Raises:
        SchemaError: if it is not one.
    """
    images, categories, annotations = _parse(name, data, _ITEMS)
    image_ids = _required(name, "images", images, "id")
    file_names = images.field("file_name")
    if file_names.null_count:
        raise _invalid(name, f"images[{_first_null(file_names)}] has no file_name")
    _refuse_repeated(name, "images", "id", image_ids)
    category_ids, names = _categories(name, categories)
    sizes = np.stack([_filled(images.field(side)) for side in ("height", "width")], axis=1)
    unfit = {
        int(image): f"its height × width is {sizes[image, 0]}×{sizes[image, 1]}, or missing"
        for image in np.flatnonzero((sizes < 1).any(axis=1))
    }
    if len(annotations) and annotations.field("bbox").null_count == len(annotations):
        why = 'no annotation has a "bbox" (key points are not read)'
        raise NoBoxesError(str(_invalid(name, why)))
    places, order = _places(image_ids, _filled(annotations.field("image_id"), missing=_NO_ID))
    num_unknown = len(annotations) - len(order)
    unknown = annotations.field("image_id").filter(pa.array(places < 0))
    places = places[order]
    rectangles, wrong = _rectangles(annotations.field("bbox"))
    rectangles, wrong = rectangles[order], wrong[order]
    labels = _find(category_ids, _filled(annotations.field("category_id"), missing=_NO_ID)[order])
    corners = np.concatenate([rectangles[:, 1::-1], rectangles[:, 1::-1] + rectangles[:, :1:-1]], 1)
    boxes, faults = fit_boxes(corners, np.maximum(sizes, 1)[places], ROUNDING)
    faults = np.where(wrong, NOT_A_BOX, faults)
    faults = np.where((faults == 0) & (labels < 0), NO_CATEGORY, faults)
    kept, is_bad, faults = mend(boxes, faults, bad_boxes)
    num_bad = np.bincount(places[is_bad], minlength=len(image_ids))
    boxes, faults, labels = boxes[kept], faults[kept], labels[kept]
    places, order = places[kept], order[kept]
    for box in np.flatnonzero(faults).tolist():
        if int(places[box]) not in unfit:
            at, size = int(order[box]), sizes[places[box]].tolist()
            unfit[int(places[box])] = _say_fault(int(faults[box]), annotations[at], at, size)
    counts = np.bincount(places, minlength=len(image_ids))
    return Annotations(
        name=name,
        file_names=_texts(name, "file_name", file_names),
        image_ids=image_ids,
        sizes=sizes,
        ends=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        boxes=boxes,
        labels=np.maximum(labels, 0),
        flags={BOX_CROWD: _filled(annotations.field("iscrowd"))[order] != 0},
        class_names=names,
        unfit=unfit,
        num_bad=None if bad_boxes == "reject" else num_bad,
        num_unknown=len(unknown.unique()) if num_unknown else 0,
    )


def holds_captions(data: bytes) -> bool:
    """Whether a document of COCO has captions, and no boxes."""
    return _CAPTION in data and _BOX not in data


def read_captions(name: str, data: bytes) -> bytes:
    """The captions of each image, as lines of JSON: ``file_name``, ``image_id`` and ``captions``.

    Raises:
        SchemaError: if it is not a file of captions.
    """
    items = {"images": _ITEMS["images"], "annotations": _CAPTIONS}
    images, annotations = _parse(name, data, items)
    image_ids = _required(name, "images", images, "id")
    _refuse_repeated(name, "images", "id", image_ids)
    for member, of, field in (
        ("images", images, "file_name"),
        ("annotations", annotations, "image_id"),
        ("annotations", annotations, "caption"),
    ):
        if of.field(field).null_count:
            raise _invalid(name, f"{member}[{_first_null(of.field(field))}] has no {field}")
    places = _find(image_ids, _filled(annotations.field("image_id")))
    if (places < 0).any():
        at = int(np.flatnonzero(places < 0)[0])
        image = annotations.field("image_id")[at].as_py()
        raise _invalid(name, f"annotations[{at}]: image_id {image} is not an image")
    captions: list[list[str]] = [[] for _ in image_ids]
    texts = _texts(name, "caption", annotations.field("caption"))
    for place, text in zip(places.tolist(), texts, strict=True):
        captions[place].append(text)
    rows = zip(
        _texts(name, "file_name", images.field("file_name")),
        image_ids.tolist(),
        captions,
        strict=True,
    )
    lines = (dict(zip(("file_name", IMAGE_ID, CAPTIONS), row, strict=True)) for row in rows)
    return b"".join(json.dumps(line).encode("ascii") + b"\n" for line in lines)


def _parse(
    name: str, data: bytes, members: Mapping[str, Mapping[str, pa.DataType]]
) -> Iterator[pa.StructArray]:
    """The images, annotations … of a document."""
    if len(data) > _MAX_BYTES:
        raise _invalid(
            name,
            f"{len(data):,} bytes are more than the {_MAX_BYTES:,} that can be parsed as one "
            "document. Write JSON Lines instead, with a line for each image",
        )
    try:
        table = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema(
                    {n: pa.list_(pa.struct(list(fields.items()))) for n, fields in members.items()}
                ),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
    except pa.ArrowInvalid as error:
        raise _invalid(name, str(error)) from None
    if table.num_rows != 1:
        raise _invalid(name, f"it has {table.num_rows} JSON values. Name JSON Lines .jsonl")
    for member in members:
        column = table.column(member).combine_chunks()
        if member == "images" and not column.is_valid()[0].as_py():
            raise _invalid(name, 'it has no "images"')
        items = column.flatten()
        if items.null_count:
            raise _invalid(name, f"{member}[{_first_null(items)}] is null")
        yield items


def _invalid(name: str, why: str) -> SchemaError:
    return SchemaError(
        f"{name} is not an instances file of COCO, {{'images': …, 'annotations': …, "
        f"'categories': …}}: {why}."
    )


def _required(name: str, member: str, items: pa.StructArray, field: str) -> Any:
    values = items.field(field)
    if values.null_count:
        raise _invalid(name, f"{member}[{_first_null(values)}] has no {field}")
    return _filled(values)


def _first_null(values: pa.Array) -> int:
    return int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])


def _filled(values: pa.Array, missing: int = 0) -> Any:
    """int64[num_values]; missing ones as ``missing``."""
    return values.fill_null(missing).to_numpy(zero_copy_only=False)


def _texts(name: str, field: str, values: pa.Array) -> list[str]:
    try:
        return [str(text) for text in values.to_pylist()]
    except UnicodeDecodeError as error:
        raise _invalid(name, f"a {field} is not valid UTF-8 ({error})") from None


def _refuse_repeated(name: str, member: str, field: str, values: Any) -> None:
    distinct, counts = np.unique(values, return_counts=True)
    if (counts > 1).any():
        value = distinct[counts > 1].tolist()[0]
        raise _invalid(name, f"several {member} have the {field} {json.dumps(value)}")


def _categories(name: str, categories: pa.StructArray) -> tuple[Ints, tuple[str, ...]]:
    """Ids in ascending order, and their names."""
    ids = _required(name, "categories", categories, "id")
    if categories.field("name").null_count:
        where = _first_null(categories.field("name"))
        raise _invalid(name, f"categories[{where}] has no name")
    names = _texts(name, "name", categories.field("name"))
    _refuse_repeated(name, "categories", "id", ids)
    _refuse_repeated(name, "categories", "name", np.array(names, dtype=object))
    order = np.argsort(ids)
    return ids[order], tuple(names[place] for place in order)


def _find(ids: Ints, wanted: Ints) -> Ints:
    """The place of each wanted id, -1 if it is not there."""
    if not len(ids):
        return np.full(len(wanted), -1)
    order = np.argsort(ids, kind="stable")
    at = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return np.where(ids[at] == wanted, at, -1)


def _places(image_ids: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """The image of each annotation, -1 if there is none, and the annotations by image."""
    places = _find(image_ids, wanted)
    order = np.argsort(places, kind="stable")
    return places, order[np.count_nonzero(places < 0) :]


def _rectangles(boxes: pa.ListArray) -> tuple[Any, Any]:
    """float64[annotations, 4], and which annotations do not have four numbers."""
    lengths = boxes.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    values = boxes.flatten()
    numbers = values.to_numpy(zero_copy_only=False)  # a null is NaN
    rectangles = np.zeros((len(boxes), 4))
    starts = np.cumsum(lengths) - lengths
    good = lengths == 4
    rectangles[good] = numbers[starts[good, None] + np.arange(4)] if len(numbers) else 0
    wrong = ~good | ~np.isfinite(rectangles).all(axis=1)
    return np.where(wrong[:, None], 0.0, rectangles), wrong


def _say_fault(fault: int, annotation: pa.StructScalar, at: int, size: list[int]) -> str:
    values = annotation.as_py()
    where = f"annotations[{at}]: the box {values['bbox']}"
    if fault == NO_CATEGORY:
        return f"annotations[{at}]: category_id {values['category_id']} is not a category"
    if fault == NOT_A_BOX:
        return f"{where} must be four numbers, x, y, width and height in pixels"
    if fault == NO_AREA:
        return f"{where} (x, y, width, height) has no area"
    return (
        f"{where} (x, y, width, height) is outside the image, whose height × width is "
        f"{size[0]}×{size[1]}"
    )
