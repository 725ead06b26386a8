"""Boxes in Examples of the TensorFlow Object Detection API.

An Example has an image file, ``image/encoded``, and lists with an item for each box: its sides as
fractions (``image/object/bbox/ymin`` …), the text and number of its class, and flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ....schemas.errors import SchemaError
from ....schemas.features import ClassLabel, Feature, Features, Tensor
from ....schemas.features import Sequence as SequenceFeature
from ....schemas.manifest import MAX_LABELS
from ..folders.annotations.model import (
    BOX_CROWD,
    BOX_DIFFICULT,
    BOX_FEATURES,
    BOX_LABELS,
    BadBoxes,
    BoxFitter,
    FittedBoxes,
    ImageBoxes,
    InvalidAnnotationError,
    box_features,
)
from ..table_files import utf8_texts
from .columns import adapted, kinds_of, shown

IMAGE = "image"
"""The feature of the image."""
ENCODED = "image/encoded"
SIDES = tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
OF_OBJECTS = "image/object/"
"""The features of objects begin so."""
_TEXT, _NUMBER = f"{OF_OBJECTS}class/text", f"{OF_OBJECTS}class/label"
_FLAGS = {
    f"{OF_OBJECTS}is_crowd": BOX_CROWD,
    f"{OF_OBJECTS}group_of": BOX_CROWD,
    f"{OF_OBJECTS}difficult": BOX_DIFFICULT,
}
_SIZE = ("image/height", "image/width")
_FORMAT = 'boxes="object_detection"'

_LISTS: dict[str, Feature] = {
    **dict.fromkeys(SIDES, Tensor("float32", (None,))),
    _TEXT: Tensor("string", (None,)),
    **dict.fromkeys((_NUMBER, *_FLAGS, *_SIZE), Tensor("int64", (None,))),
}
KINDS: Mapping[str, tuple[str, ...]] = {name: kinds_of(feature) for name, feature in _LISTS.items()}
"""The lists of which boxes are made, each with its possible kinds of values."""


class Objects:
    """The classes and flags of the boxes in some records."""

    def __init__(self) -> None:
        self._texts: set[bytes] = set()
        self._numbers: set[int] = set()
        self._flags: set[str] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds decoded records. Values of other types are ignored here, and rejects later."""
        for name in (_TEXT, _NUMBER, *_FLAGS):
            if name not in batch.schema.names:
                continue
            values = set(_flat(batch.column(name)).unique().to_pylist())
            if name == _TEXT:
                self._texts |= {value for value in values if isinstance(value, bytes)}
            elif name == _NUMBER:
                self._numbers |= {value for value in values if isinstance(value, int)}
            elif values - {None}:
                self._flags.add(_FLAGS[name])

    def to_json(self) -> list[list[Any]]:
        """Plain JSON, which :meth:`add_json` reads."""
        return [utf8_texts(self._texts), sorted(self._numbers), sorted(self._flags)]

    def add_json(self, value: Sequence[Sequence[Any]]) -> None:
        """Adds the output of :meth:`to_json`."""
        texts, numbers, flags = value
        self._texts.update(text.encode() for text in texts)
        self._numbers.update(numbers)
        self._flags.update(flags)

    def features(self, *, mends: bool) -> dict[str, Feature]:
        """The features of boxes. Classes are the texts, or numbers if no record has a text.

        Raises:
            SchemaError: if there are too many classes.
        """
        names = utf8_texts(self._texts) or list(map(str, sorted(self._numbers)))
        by_number = not self._texts and len(names) > 0
        if len(names) > MAX_LABELS:
            raise SchemaError(
                f"TFRecords: boxes have {len(names):,} different classes (one is {names[0]!r}), "
                f"expected at most {MAX_LABELS:,}. Read the records without {_FORMAT}."
            )
        features = box_features(tuple(names), self._flags, IMAGE, mends=mends)
        if by_number:
            numbered = dict(zip(sorted(self._numbers), names, strict=True))
            features[BOX_LABELS] = SequenceFeature(ClassLabel(numbered))
        return features


def _flat(column: pa.Array) -> pa.Array:
    """All values of lists, or of lists of lists."""
    while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        column = column.flatten()
    return column


def is_of_boxes(name: str) -> bool:
    """Whether boxes, or their image, are made of what has this name in a record."""
    return name in (ENCODED, *_SIZE) or name.startswith(OF_OBJECTS)


def check_lists(names: Sequence[str]) -> None:
    """Checks that records have an image and boxes.

    Raises:
        SchemaError: naming what is missing.
    """
    if missing := [name for name in (ENCODED, *SIDES) if name not in names]:
        raise SchemaError(
            f"TFRecords: {_FORMAT} reads {ENCODED!r} and {', '.join(map(repr, SIDES))}, and no "
            f"record has {missing[0]!r}. Leave boxes= out, or write the records again."
        )
    if taken := sorted(name for name in names if name == IMAGE or name in BOX_FEATURES):
        raise SchemaError(
            f"TFRecords: with {_FORMAT}, {taken[0]!r} is a feature of its own, and the records "
            "have one of that name. Rename it in the records, or read them without boxes=."
        )


class ObjectReader:
    """Makes features of boxes from decoded records."""

    def __init__(self, features: Features, *, bad_boxes: BadBoxes) -> None:
        """Prepares to make these features.

        Raises:
            SchemaError: if one has another type than boxes have.
        """
        self.features = {name: f for name, f in features.items() if name in BOX_FEATURES}
        self._fitter = BoxFitter(
            self.features,
            of=_FORMAT,
            flags=dict.fromkeys(_FLAGS.values()),
            image=IMAGE,
            bad_boxes=bad_boxes,
        )
        self._named: Mapping[int, str] | None = None
        """Number -> name of each class, if classes are not texts."""
        item = getattr(self.features.get(BOX_LABELS), "of", None)
        if isinstance(item, ClassLabel) and item.values is not None:
            self._named = dict(zip(item.values, item.names, strict=True))

    def read(
        self, batch: pa.RecordBatch, sizes: Sequence[tuple[int, int, int]]
    ) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """The wire columns of boxes, and why those of some records are invalid.

        Args:
            batch: The decoded records.
            sizes: The height, width and EXIF orientation of each image; zeros if it is unreadable.
        """
        lists, unfit = {}, dict[int, str]()
        for name, feature in _LISTS.items():
            column, bad = adapted(batch.column(name), feature, kinds=KINDS[name])
            for row in np.flatnonzero(bad).tolist():
                value = shown(batch.column(name)[row].as_py())
                unfit.setdefault(row, f"feature {name!r} is {value}, expected {feature}")
            lists[name] = column.to_pylist()
        fitted = []
        for row, (height, width, orientation) in enumerate(sizes):
            given = {name: values[row] or [] for name, values in lists.items()}
            try:
                if not height or row in unfit:
                    fitted.append(_NONE)
                    continue
                boxes = self._boxes(given)
                fitted.append(self._fitter.fit(boxes, height, width, is_rotated=orientation != 1))
            except InvalidAnnotationError as error:
                unfit[row] = str(error)
                fitted.append(_NONE)
        return self._fitter.columns(fitted), unfit

    def _boxes(self, given: Mapping[str, list[Any]]) -> ImageBoxes:
        """The boxes of a record.

        Raises:
            InvalidAnnotationError: if its lists are not of one length, or a value is none of a box.
        """
        num = len(given[SIDES[0]])
        classes = _TEXT if self._named is None else _NUMBER
        has_classes = BOX_LABELS in self.features
        needed = [*SIDES, *([classes] if has_classes else [])]
        for name in (*needed, *(flag for flag in _FLAGS if given[flag])):
            if len(given[name]) != num:
                raise InvalidAnnotationError(
                    f"{SIDES[0]!r} has {num:,} values and {name!r} has {len(given[name]):,}, "
                    "expected one for each box in both"
                )
        corners = list(zip(*(given[side] for side in SIDES), strict=True))
        if len(bad := np.flatnonzero(~np.isfinite(corners).all(axis=-1))):
            raise InvalidAnnotationError(f"box {bad[0]} is {corners[bad[0]]}, expected numbers")
        labels = list(map(self._class_name, given[classes])) if has_classes else [""] * num
        height, width = (given[side][0] if len(given[side]) == 1 else 0 for side in _SIZE)
        flags: dict[str, list[bool]] = {flag: [False] * num for flag in _FLAGS.values()}
        for name, flag in _FLAGS.items():
            if given[name]:
                flags[flag] = [bool(value) for value in given[name]]
        return ImageBoxes(
            corners=corners,
            labels=labels,
            places=[f"box {number}" for number in range(num)],
            in_pixels=False,
            size=(height, width) if height and width else None,
            flags=flags,
        )

    def _class_name(self, value: bytes | int) -> str:
        if isinstance(value, int):
            return (self._named or {}).get(value, str(value))
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InvalidAnnotationError(f"a class is {value!r}, expected UTF-8") from None


_NONE = FittedBoxes(
    boxes=np.zeros((0, 4), np.float32),
    labels=[],
    flags={flag: [] for flag in _FLAGS.values()},
    num_bad=0,
)
