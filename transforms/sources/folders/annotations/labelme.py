"""LabelMe's annotations: a JSON file for each image, with ``shapes`` in pixels.

Rectangles are boxes, and polygons are read as the boxes around them if that is asked for; other
shapes are invalid. ``imageHeight`` and ``imageWidth`` are the size that the shapes are for; the
copy of the image in ``imageData`` is not read.
"""

from __future__ import annotations

import json
import math
from typing import Any

from .model import ImageBoxes, InvalidAnnotationError


def read_json(data: bytes, *, polygons: bool) -> ImageBoxes:
    """Reads an annotation.

    Args:
        data: Its content.
        polygons: Whether polygons are read, as the boxes around them.

    Raises:
        InvalidAnnotationError: if it is not one.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidAnnotationError(f"it is not valid JSON ({error})") from None
    shapes = content.get("shapes") if isinstance(content, dict) else None
    if not isinstance(shapes, list):
        raise InvalidAnnotationError('it has no list "shapes", as files of LabelMe have')
    size = (content.get("imageHeight"), content.get("imageWidth"))
    stated = all(isinstance(side, int) and side > 0 for side in size)
    boxes = ImageBoxes(
        corners=[], labels=[], places=[], in_pixels=True, size=size if stated else None
    )
    for number, shape in enumerate(shapes):
        where = f"shapes[{number}]"
        label = shape.get("label") if isinstance(shape, dict) else None
        if not isinstance(label, str) or not label:
            raise InvalidAnnotationError(f"{where} has no label")
        boxes.corners.append(_around(shape, where, polygons=polygons))
        boxes.labels.append(label)
        boxes.places.append(where)
    return boxes


def _around(
    shape: dict[str, Any], where: str, *, polygons: bool
) -> tuple[float, float, float, float]:
    """(ymin, xmin, ymax, xmax) of a rectangle, or around another shape."""
    kind, points = shape.get("shape_type", "polygon"), shape.get("points")
    if kind != "rectangle" and not (polygons and kind == "polygon"):
        raise InvalidAnnotationError(
            f"{where} is a {kind}, expected a rectangle"
            + (". polygons=True reads polygons as the boxes around them" * (kind == "polygon"))
        )
    try:
        xs, ys = zip(*((float(x), float(y)) for x, y in points), strict=True)  # type: ignore[union-attr]
    except (TypeError, ValueError, OverflowError):
        xs, ys = (math.nan,), (math.nan,)
    if len(xs) < 2 or not all(map(math.isfinite, (*xs, *ys))):
        raise InvalidAnnotationError(f"{where}: its points are not pairs of numbers")
    return min(ys), min(xs), max(ys), max(xs)
