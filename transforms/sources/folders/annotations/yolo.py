"""YOLO's labels: a text file for each image, with a line for each box.

A line is the number of the class, then the box's centre, width and height as fractions of the
image: ``0 0.5 0.5 0.25 0.5``. With more numbers it is a polygon, ``0 x1 y1 x2 y2 x3 y3 …``. Names
of classes are in ``data.yaml``, as a list or by number, or in a text with a name on each line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .....schemas.errors import DataError
from .model import ImageBoxes, InvalidAnnotationError

TEXTS = frozenset(
    [
        *("classes", "labels", "names", "notes", "obj", "predefined_classes", "_darknet"),
        *("train", "training", "val", "valid", "validation", "test", "trainval", "readme"),
        *("readme.dataset", "readme.roboflow", "license"),
    ]
)
"""Names of texts that lie beside images and are no labels, without their suffix."""

MAX_NAMES_BYTES = 256 << 10
"""Maximum size of a file that names classes; those of 1,203 classes have 30 kB."""
_MAX_DEPTH = 20
_YAML = (".yaml", ".yml")


def read_labels(data: bytes, names: Mapping[int, str], *, polygons: bool) -> ImageBoxes:
    """Reads a file of labels.

    Args:
        data: Its content.
        names: The classes by number.
        polygons: Whether a polygon becomes the box around it.

    Raises:
        InvalidAnnotationError: if it is not one.
    """
    boxes = ImageBoxes(corners=[], labels=[], places=[], in_pixels=False)
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        if not line.strip():
            continue
        where = f"line {number}"
        values = _numbers(line.split(), where)
        if len(values) > 6 and len(values) % 2 and not polygons:
            raise InvalidAnnotationError(
                f"{where} is a polygon of {len(values) // 2} points, expected a box. "
                "polygons=True reads polygons as the boxes around them"
            )
        if len(values) != 5 and (len(values) < 7 or len(values) % 2 == 0):
            raise InvalidAnnotationError(
                f"{where} has {len(values)} numbers, expected 5: the class, and the box's centre, "
                "width and height (x, y, width, height)"
            )
        name = names.get(int(values[0])) if values[0].is_integer() else None
        if name is None:
            raise InvalidAnnotationError(
                f"{where} has the class {values[0]:g}, and there are names for "
                f"{', '.join(map(str, sorted(names)[:20]))}{', …' * (len(names) > 20)}"
            )
        boxes.corners.append(_around(values[1:]))
        boxes.labels.append(name)
        boxes.places.append(where)
    return boxes


def _numbers(texts: list[bytes], where: str) -> list[float]:
    try:
        values = [float(text) for text in texts]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise InvalidAnnotationError(f"{where} is not a line of numbers")
    return values


def _around(values: list[float]) -> tuple[float, float, float, float]:
    """(ymin, xmin, ymax, xmax) of a box, or around the points of a polygon."""
    if len(values) == 4:
        x, y, width, height = values
        return y - height / 2, x - width / 2, y + height / 2, x + width / 2
    xs, ys = values[::2], values[1::2]
    return min(ys), min(xs), max(ys), max(xs)


def read_names(name: str, data: bytes) -> dict[int, str]:
    """The classes by number, from ``data.yaml`` or a text with a name on each line.

    Raises:
        DataError: if there are none, or one occurs twice.
    """
    if len(data) > MAX_NAMES_BYTES:
        raise DataError(f"{name} has {len(data):,} bytes, more than the names of classes need.")
    if name.lower().endswith(_YAML):
        names = _names_of(name, read_settings(name, data))
    else:
        try:
            lines = data.decode("utf-8-sig").rstrip().splitlines()
        except UnicodeDecodeError:
            raise DataError(f"{name} is not a UTF-8 text, expected a class on each line.") from None
        names = {number: line.strip() for number, line in enumerate(lines)}
    texts = list(names.values())
    if not texts or not all(texts):
        raise DataError(f"{name}: a name of a class is missing.")
    if len(set(texts)) < len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise DataError(f"{name} has the class {twice!r} twice. Rename one of them.")
    return names


def _names_of(name: str, settings: Mapping[str, Any]) -> dict[int, str]:
    given = settings.get("names")
    by_number = dict(enumerate(given)) if isinstance(given, list) else given
    try:
        names = {int(number): text for number, text in by_number.items()}  # type: ignore[union-attr]
    except (AttributeError, ValueError):
        names = {}
    if not names or not all(isinstance(text, str) for text in names.values()):
        raise DataError(f"{name} has no names of classes: expected names: [cat, dog].")
    number = settings.get("nc", str(len(names)))
    if number != str(len(names)) and not isinstance(given, dict):
        raise DataError(f"{name} has nc: {number}, and {len(names)} names. Correct one of them.")
    return dict(sorted(names.items()))


def read_places(name: str, data: bytes) -> dict[str, str]:
    """Where the images of ``train``, ``val`` and ``test`` are: folders, or lists of them.

    Args:
        name: Name of ``data.yaml``, or of darknet's ``obj.data`` with a line such as ``train =
            data/train.txt`` for each.
        data: Its content.

    Raises:
        DataError: if it is neither.
    """
    if len(data) > MAX_NAMES_BYTES:
        raise DataError(f"{name} has {len(data):,} bytes, more than the names of classes need.")
    if name.lower().endswith(_YAML):
        settings = read_settings(name, data)
    else:
        lines = data.decode("utf-8", "replace").splitlines()
        pairs = (line.partition("=") for line in lines)
        settings = {word.strip(): place.strip() for word, _, place in pairs}
    places = {word: settings.get(word) for word in ("train", "val", "valid", "test")}
    return {word: place for word, place in places.items() if isinstance(place, str) and place}


def read_settings(name: str, data: bytes) -> dict[str, Any]:
    """The mapping of a YAML file, whose scalars are all texts (``no`` is a name, not False).

    Raises:
        DataError: if it is not one.
    """
    import yaml  # type: ignore[import-untyped, unused-ignore]

    class Loader(yaml.BaseLoader):  # type: ignore[misc, unused-ignore]
        """Reads no aliases, which multiply what a document holds, and limits its depth."""

        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it has an alias")
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                raise yaml.YAMLError(f"it is nested more than {_MAX_DEPTH} levels deep")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        settings = yaml.load(data, Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        why = str(error).splitlines()[0]
        raise DataError(f"{name} is not such a YAML file as YOLO's data.yaml: {why}.") from None
    if not isinstance(settings, dict):
        raise DataError(f"{name} is not a YAML file of settings, such as names: [cat, dog].")
    return settings
