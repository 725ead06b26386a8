"""Pascal VOC's annotations: an XML file for each image, with an ``object`` for each box.

Of an ``annotation``, ``size`` (``width`` and ``height``) and each ``object``'s ``name``, ``bndbox``
and ``difficult`` are read. Pixels are divided by the size as they are, as TensorFlow's tools do;
Pascal VOC counts them from 1, so its own boxes may be off by a pixel.
"""

from __future__ import annotations

import dataclasses
import math
from xml.parsers import expat

from .model import BOX_DIFFICULT, ImageBoxes, InvalidAnnotationError

_MAX_DEPTH = 32
_SIDES = ("ymin", "xmin", "ymax", "xmax")
_SIZE = "annotation/size/"
_OBJECT = "annotation/object"
_BOX = f"{_OBJECT}/bndbox/"


def read_xml(data: bytes) -> ImageBoxes:
    """Reads an annotation.

    Raises:
        InvalidAnnotationError: if it is not one, or declares entities.
    """
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.EntityDeclHandler = _refuse_entities
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise InvalidAnnotationError(f"it is not valid XML ({error})") from None
    return reader.boxes()


def _refuse_entities(*_: object) -> None:
    raise InvalidAnnotationError("it declares entities, which are not read")


@dataclasses.dataclass
class _Reader:
    """Collects the texts of the elements that are read."""

    path: list[str] = dataclasses.field(default_factory=list)
    content: list[str] = dataclasses.field(default_factory=list)
    size: dict[str, str] = dataclasses.field(default_factory=dict)
    objects: list[dict[str, str]] = dataclasses.field(default_factory=list)

    def start(self, name: str, _: object) -> None:
        self.path.append(name)
        self.content.clear()
        if len(self.path) > _MAX_DEPTH:
            raise InvalidAnnotationError(f"it is nested more than {_MAX_DEPTH} levels deep")
        if len(self.path) == 1 and name != "annotation":
            raise InvalidAnnotationError(f"its root is <{name}>, expected <annotation>")
        if "/".join(self.path) == _OBJECT:
            self.objects.append({})

    def text(self, text: str) -> None:
        self.content.append(text)

    def end(self, name: str) -> None:
        path, text = "/".join(self.path), "".join(self.content).strip()
        if path.startswith(_SIZE):
            self.size[name] = text
        elif path.startswith(_BOX) or path in (f"{_OBJECT}/name", f"{_OBJECT}/difficult"):
            self.objects[-1][name] = text
        self.path.pop()
        self.content.clear()

    def boxes(self) -> ImageBoxes:
        """What was read."""
        boxes = ImageBoxes(
            corners=[],
            labels=[],
            places=[],
            in_pixels=True,
            size=_stated(self.size),
            flags={BOX_DIFFICULT: []},
        )
        for number, found in enumerate(self.objects, start=1):
            where = f"object {number}"
            if not found.get("name"):
                raise InvalidAnnotationError(f"{where} has no name")
            boxes.corners.append(_corners(found, where))
            boxes.labels.append(found["name"])
            boxes.flags[BOX_DIFFICULT].append(found.get("difficult", "0") not in ("", "0"))
            boxes.places.append(where)
        return boxes


def _stated(size: dict[str, str]) -> tuple[int, int] | None:
    """Height and width; None if they are missing, or 0 as some tools leave them."""
    try:
        height, width = (int(float(size.get(side) or 0)) for side in ("height", "width"))
    except (ValueError, OverflowError):
        raise InvalidAnnotationError(f"its size is {size}, expected numbers") from None
    return (height, width) if height and width else None


def _corners(found: dict[str, str], where: str) -> tuple[float, float, float, float]:
    if missing := [side for side in _SIDES if side not in found]:
        raise InvalidAnnotationError(f"{where} has no {missing[0]} in a <bndbox>")
    try:
        ymin, xmin, ymax, xmax = (float(found[side]) for side in _SIDES)
    except ValueError:
        ymin = xmin = ymax = xmax = math.nan
    if not all(map(math.isfinite, (ymin, xmin, ymax, xmax))):
        shown = {side: found[side] for side in _SIDES}
        raise InvalidAnnotationError(f"{where}: its <bndbox> is {shown}, expected numbers")
    return ymin, xmin, ymax, xmax
