"""The boxes of images and their classes, whatever format they come from.

========================= ====================================================================
feature                   of each image
========================= ====================================================================
``boxes``                 BoundingBoxes: (ymin, xmin, ymax, xmax) as fractions of its height and
                          width, as displayed
``box_labels``            a Sequence of a ClassLabel
``box_crowd``             a Sequence of bools: whether a box encloses a group of objects
``box_difficult``         a Sequence of bools: whether an object is difficult to recognize
``image_id``              int64: its number in COCO's files
``num_bad_boxes``         int64: how many of its boxes were dropped or clipped, where that is asked
                          for
========================= ====================================================================

The bools are features only if one of them is true.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .....schemas.errors import SchemaError
from .....schemas.features import (
    BoundingBoxes,
    ClassLabel,
    Feature,
    Features,
    Scalar,
    Sequence,
    item_class,
)

BOXES = "boxes"
BOX_LABELS = "box_labels"
BOX_CROWD = "box_crowd"
BOX_DIFFICULT = "box_difficult"
IMAGE_ID = "image_id"
CAPTIONS = "captions"
"""Of COCO's captions: a Sequence of strings."""
NUM_BAD_BOXES = "num_bad_boxes"

BadBoxes = Literal["reject", "drop", "clip"]
"""What becomes of an image with boxes that have no area, or are outside of it: it is a reject, the
boxes are dropped, or they are clipped to the image and those without an area in it are dropped."""

ROUNDING = 1.0
"""Pixels by which a box may exceed its image, as roundings do; it is clipped."""
NOT_A_BOX, NO_AREA, OUTSIDE, NO_CATEGORY = 1, 2, 3, 4
"""Faults of boxes."""

UNSTATED_SIZE = (
    "the image has an EXIF orientation, and its annotations, in pixels, do not state the size that "
    "they are for: save the image upright"
)

FLAGS = (BOX_CROWD, BOX_DIFFICULT)
"""Features of one bool per box."""
BOX_FEATURES = frozenset([BOXES, BOX_LABELS, NUM_BAD_BOXES, *FLAGS])
"""The features of images' boxes."""
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Annotations:
    """The boxes of many images, in the order of the images."""

    name: str
    """The file's name, for messages."""
    file_names: list[str]
    image_ids: Ints | None = None
    sizes: Ints | None = None
    """Height and width of each image, if they are given."""
    ends: Ints
    """Where the boxes of each image begin, and the last ones end."""
    boxes: npt.NDArray[np.float32]
    """float32[num_boxes, 4]: ymin, xmin, ymax, xmax, as fractions."""
    labels: Ints
    """Index into ``class_names`` of each box."""
    flags: Mapping[str, Bools] = dataclasses.field(default_factory=dict)
    """``box_crowd`` and ``box_difficult`` of each box, if the format has them."""
    class_names: tuple[str, ...]
    unfit: dict[int, str]
    """Image -> why it is invalid."""
    num_bad: Ints | None = None
    """How many boxes of each image were dropped or clipped, unless that rejects it."""
    in_pixels: bool = False
    """Whether the boxes are still pixels, since the sizes of the images are not given."""
    num_unknown: int = 0
    """Number of images that have boxes and are not listed."""

    def features(self, image: str) -> dict[str, Feature]:
        """The features of each image, whose own feature is ``image``."""
        flags = {name for name, values in self.flags.items() if values.any()}
        ids: dict[str, Feature] = {} if self.image_ids is None else {IMAGE_ID: Scalar("int64")}
        mends = self.num_bad is not None
        return ids | box_features(self.class_names, flags, image, mends=mends)

    def columns(self, features: Features) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """The wire columns of all images, and why some are invalid.

        Raises:
            SchemaError: if it has no such features, or they are declared as another type.
        """
        unfit = dict(self.unfit)
        columns = {
            BOXES: _lists(4 * self.ends, pa.array(self.boxes.reshape(-1))),
            BOX_LABELS: _lists(self.ends, pa.array(self.labels)),
        }
        if self.image_ids is not None:
            columns[IMAGE_ID] = pa.array(self.image_ids)
        if self.num_bad is not None:
            columns[NUM_BAD_BOXES] = pa.array(self.num_bad)
        for flag in FLAGS:
            values = self.flags.get(flag, np.zeros(len(self.labels), np.bool_))
            columns[flag] = _lists(self.ends, pa.array(values.astype(np.int64)))
        check_declared(features, self.features("image"), of=f"the images of {self.name}")
        if (items := item_class(features.get(BOX_LABELS))) is not None:
            columns[BOX_LABELS] = _lists(self.ends, pa.array(self._as_declared(items, unfit)))
        return {name: columns[name] for name in features}, unfit

    def _as_declared(self, label: ClassLabel, unfit: dict[int, str]) -> Ints:
        """The boxes' classes as indices of the declared names; notes images with others."""
        codes = {name: code for code, name in enumerate(label.names)}
        mapped = np.array([codes.get(name, -1) for name in self.class_names] or [0], np.int64)
        labels: Ints = mapped[self.labels]
        for box in np.flatnonzero(labels < 0).tolist():
            image = int(np.searchsorted(self.ends, box, side="right")) - 1
            unfit.setdefault(image, not_declared(self.class_names[self.labels[box]]))
        return labels


def box_features(
    class_names: tuple[str, ...], flags: set[str], image: str, *, mends: bool = False
) -> dict[str, Feature]:
    """The features of an image's boxes.

    Args:
        class_names: The classes, if there are any.
        flags: The bools of each box that there are.
        image: The feature of the image.
        mends: Whether bad boxes are dropped or clipped.
    """
    per_box: dict[str, Feature] = {}
    if class_names:
        per_box[BOX_LABELS] = Sequence(ClassLabel(class_names))
    per_box |= {flag: Sequence(Scalar("bool")) for flag in FLAGS if flag in flags}
    labels = next(iter(per_box), None) if len(per_box) < 2 else tuple(per_box)
    counts: dict[str, Feature] = {NUM_BAD_BOXES: Scalar("int64")} if mends else {}
    return {BOXES: BoundingBoxes(image=image, labels=labels), **per_box, **counts}


def check_declared(features: Features, known: Features, *, of: str) -> None:
    """Checks that declared features are those that annotations have.

    Raises:
        SchemaError: if one is unknown, or declared as another type.
    """
    bools = {flag: Sequence(Scalar("bool")) for flag in FLAGS}
    classes = {BOX_LABELS: Sequence(ClassLabel(()))}
    for name, wanted in features.items():
        feature = {**bools, **classes, **known}.get(name)
        if feature is None:
            raise SchemaError(
                f"features= declares {name!r}, and {of} have only {', '.join(map(repr, known))}."
            )
        if _kind(wanted) != _kind(feature):
            raise SchemaError(
                f"features= declares {name!r} as {wanted}, and {of} have {feature}. Declare that."
            )


def not_declared(name: str) -> str:
    """Why an image is invalid that has a box of another class."""
    return f"a box has the class {name!r}, which is not declared"


def fit_boxes(corners: Any, sizes: Any, rounding: Any) -> tuple[Any, Any]:
    """Boxes as fractions of images, clipped to them, and a fault of each, 0 for none.

    Args:
        corners: float64[boxes, 4]: ymin, xmin, ymax, xmax.
        sizes: The height and width of their images in the same unit: [boxes, 2], or 1 if these are
            fractions.
        rounding: A pixel in that unit.
    """
    first, last = corners[:, :2], corners[:, 2:]
    outside = ((first < -rounding) | (last > sizes + rounding)).any(axis=1)
    boxes = np.clip(np.concatenate([first / sizes, last / sizes], axis=1), 0.0, 1.0)
    empty = (last <= first).any(axis=1) | (boxes[:, :2] >= boxes[:, 2:]).any(axis=1)
    faults = np.where(outside, OUTSIDE, np.where(empty, NO_AREA, 0))
    return boxes.astype(np.float32), faults


def mend(boxes: Any, faults: Any, bad_boxes: BadBoxes) -> tuple[Bools, Bools, Any]:
    """Which boxes are kept, which are bad, and the faults that remain.

    Args:
        boxes: float32[boxes, 4], clipped to their images.
        faults: The fault of each box, 0 for none.
        bad_boxes: What becomes of bad boxes.
    """
    if bad_boxes == "reject" or not faults.any():
        return np.ones(len(faults), np.bool_), np.zeros(len(faults), np.bool_), faults
    is_bad = (faults == NO_AREA) | (faults == OUTSIDE)
    is_inside = (boxes[:, :2] < boxes[:, 2:]).all(axis=1) & (bad_boxes == "clip")
    return ~is_bad | is_inside, is_bad, np.where(is_bad, 0, faults)


def _lists(ends: Ints, values: pa.Array) -> pa.LargeListArray:
    return pa.LargeListArray.from_arrays(pa.array(ends), values)


def _kind(feature: Feature) -> object:
    """What must agree between a declared feature and a file's: its type and dtype."""
    item = feature.of if isinstance(feature, Sequence) else feature
    return type(feature), type(item), item.dtype if isinstance(item, Scalar) else None


class InvalidAnnotationError(ValueError):
    """An annotation file does not give the boxes of its image."""

    reason = "invalid annotation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageBoxes:
    """The boxes of one image, as its annotation file has them."""

    corners: list[tuple[float, float, float, float]]
    """ymin, xmin, ymax, xmax of each box."""
    labels: list[str]
    """The class of each box."""
    places: list[str]
    """Where each box is in the file, such as ``line 3``."""
    in_pixels: bool
    """Whether corners are pixels; else they are fractions."""
    size: tuple[int, int] | None = None
    """The image's height and width, if the file has them."""
    flags: Mapping[str, list[bool]] = dataclasses.field(default_factory=dict)

    def fitted(
        self, height: int, width: int, *, is_rotated: bool, bad_boxes: BadBoxes = "reject"
    ) -> FittedBoxes:
        """The boxes as fractions of an image of this size.

        Args:
            height: Of the image as displayed.
            width: Of the image as displayed.
            is_rotated: Whether it is displayed otherwise than it is stored.
            bad_boxes: What becomes of boxes that have no area, or are outside.

        Raises:
            InvalidAnnotationError: if a box has no area or is outside, or the file is for an image
                of another size.
        """
        size = (height, width)
        if self.size is not None and self.size != size:
            raise InvalidAnnotationError(
                f"the image is {height}×{width} (height × width, upright), and its annotations are "
                f"for {self.size[0]}×{self.size[1]}: correct the image or the annotations"
            )
        if self.size is None and self.in_pixels and is_rotated:
            raise InvalidAnnotationError(UNSTATED_SIZE)
        corners = np.array(self.corners, np.float64).reshape(-1, 4)
        pixels = np.array(size, np.float64)
        unit, rounding = (pixels, ROUNDING) if self.in_pixels else (1.0, ROUNDING / pixels)
        boxes, faults = fit_boxes(corners, unit, rounding)
        kept, is_bad, faults = mend(boxes, faults, bad_boxes)
        for box in np.flatnonzero(faults).tolist():
            kind = "pixels" if self.in_pixels else "fractions"
            fault = _say_fault(corners[box], faults[box], kind, size)
            raise InvalidAnnotationError(f"{self.places[box]}: {fault}")
        return FittedBoxes(
            boxes=boxes[kept],
            labels=list(itertools.compress(self.labels, kept)),
            flags={n: list(itertools.compress(flag, kept)) for n, flag in self.flags.items()},
            num_bad=int(is_bad.sum()),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FittedBoxes:
    """The valid boxes of one image, as fractions of it."""

    boxes: npt.NDArray[np.float32]
    labels: list[str]
    flags: Mapping[str, list[bool]]
    num_bad: int
    """How many boxes were dropped or clipped."""


class BoxFitter:
    """Makes features of the boxes of images, one image at a time."""

    def __init__(
        self,
        features: Features,
        *,
        of: str,
        flags: Collection[str],
        image: str,
        bad_boxes: BadBoxes,
    ) -> None:
        """Prepares to make these features.

        Args:
            features: The features of boxes.
            of: What the boxes are of, for messages.
            flags: The features of one bool per box that the format has.
            image: The feature of the images.
            bad_boxes: What becomes of boxes that have no area, or are outside.

        Raises:
            SchemaError: if one is not a feature of boxes, or has another type.
        """
        known = box_features(("",), set(), image, mends=bad_boxes != "reject")
        check_declared(features, known, of=of)
        self._features, self._flags, self._bad_boxes = features, flags, bad_boxes
        items = item_class(features.get(BOX_LABELS))
        self._names = None if items is None else items.names

    def fit(self, boxes: ImageBoxes, height: int, width: int, *, is_rotated: bool) -> FittedBoxes:
        """The boxes as fractions of an image of this size; see ``ImageBoxes.fitted``.

        Raises:
            InvalidAnnotationError: if they are not valid, or not for this image.
        """
        if self._names is not None:
            for label in boxes.labels:
                if label not in self._names:
                    raise InvalidAnnotationError(not_declared(label))
        return boxes.fitted(height, width, is_rotated=is_rotated, bad_boxes=self._bad_boxes)

    def columns(self, values: Collection[FittedBoxes]) -> dict[str, pa.Array]:
        """The wire columns of images, from the results of :meth:`fit`."""
        labels = [label for value in values for label in value.labels]
        names = self._names or tuple(sorted(set(labels)))
        codes = {name: code for code, name in enumerate(names)}
        columns, _ = Annotations(
            name="",
            file_names=[""] * len(values),
            ends=np.cumsum([0, *(len(value.labels) for value in values)], dtype=np.int64),
            boxes=np.concatenate([np.zeros((0, 4), np.float32), *(v.boxes for v in values)]),
            labels=np.array([codes[label] for label in labels], np.int64),
            flags={
                flag: np.array([is_set for v in values for is_set in v.flags[flag]], np.bool_)
                for flag in self._flags
            },
            class_names=names,
            unfit={},
            num_bad=np.array([value.num_bad for value in values], np.int64),
        ).columns(self._features)
        return columns


def as_fractions(boxes: pa.LargeListArray, sizes: list[tuple[int, int]]) -> pa.LargeListArray:
    """Boxes of images in pixels as fractions of their heights and widths.

    Raises:
        InvalidAnnotationError: if one is outside its image, or has no area there.
    """
    counts = boxes.value_lengths().to_numpy() // 4
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    corners = boxes.flatten().to_numpy().reshape(-1, 4).astype(np.float64)
    sides = np.repeat(np.array(sizes, np.int64).reshape(-1, 2), counts, axis=0)
    fractions, faults = fit_boxes(corners, sides, ROUNDING)
    for box in np.flatnonzero(faults).tolist():
        size = (int(sides[box][0]), int(sides[box][1]))
        raise InvalidAnnotationError(_say_fault(corners[box], faults[box], "pixels", size))
    return _lists(4 * ends, pa.array(fractions.reshape(-1)))


def _say_fault(corners: Any, fault: int, kind: str, size: tuple[int, int]) -> str:
    said = {NO_AREA: "has no area", OUTSIDE: "is outside the image"}[int(fault)]
    shown = ", ".join(f"{side:g}" for side in corners)
    return (
        f"the box ({shown}) of ymin, xmin, ymax, xmax in {kind} {said}, whose height × width is "
        f"{size[0]}×{size[1]}"
    )
