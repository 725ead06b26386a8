"""Annotation files beside images (``side_files``): infers classes, and reads them with images."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from .....schemas.blocks import SourceFile
from .....schemas.errors import DataError
from .....schemas.features import Feature, Features
from .....schemas.recipe import OpenSource
from ....in_parts import in_batches
from ....media.image_header import ImageHeader
from ....storage.read_files import read_files
from ..side_files import SideFiles
from .model import (
    BadBoxes,
    BoxFitter,
    FittedBoxes,
    ImageBoxes,
    InvalidAnnotationError,
    box_features,
)

MAX_BYTES = 64 << 20
"""Maximum size of an annotation file."""

_BATCH_FILES = 256
_BATCH_BYTES = 32 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format(SideFiles):
    """A format of annotations with a file for each image; without one, it has no boxes."""

    name: str
    parse: Callable[[bytes], ImageBoxes]
    """Raises InvalidAnnotationError."""
    flags: tuple[str, ...] = ()
    """Features of one bool per box that the format has."""

    def read(self, data: bytes | None) -> ImageBoxes:
        """The boxes of an image, from its file's content, None if there is none.

        Raises:
            InvalidAnnotationError: if it is invalid.
        """
        if data is None:
            flags: dict[str, list[bool]] = {flag: [] for flag in self.flags}
            return ImageBoxes(corners=[], labels=[], places=[], in_pixels=False, flags=flags)
        if len(data) > MAX_BYTES:
            raise InvalidAnnotationError(f"{len(data):,} bytes, expected at most {MAX_BYTES:,}")
        return self.parse(data)


def infer_boxes(
    files: Iterable[SourceFile],
    opened: OpenSource,
    *,
    of: Format,
    image: str,
    class_names: tuple[str, ...] | None,
    mends: bool,
) -> dict[str, Feature]:
    """The features of boxes, from all valid annotation files.

    Args:
        files: The records' files.
        opened: Their root.
        of: The format.
        image: The feature of the images.
        class_names: The classes, if they are known; else those that occur, sorted.
        mends: Whether bad boxes are dropped or clipped.

    Raises:
        DataError: if no file is valid.
    """
    annotations = [
        file for file in files if file.of and not file.problem and file.num_bytes <= MAX_BYTES
    ]
    seen: set[str] = set()
    flags: set[str] = set()
    num_valid, why = 0, "there are none"
    for file, boxes in read_all(annotations, opened, of=of):
        if isinstance(boxes, InvalidAnnotationError):
            why = f"{file.path}: {boxes}" if why == "there are none" else why
            continue
        num_valid += 1
        seen.update(boxes.labels)
        flags |= {flag for flag, values in boxes.flags.items() if any(values)}
        if class_names is not None and not of.flags:
            break  # other files say no more
    if not num_valid:
        raise DataError(
            f"ImageFolder: none of the {len(annotations):,} {of.suffix} files beside the images is "
            f"valid for boxes={of.name!r}: {why}. Expected such a file of the name of each image, "
            "beside it or in a folder of its own: images/a.jpg and labels/a.txt."
        )
    names = tuple(sorted(seen)) if class_names is None else class_names
    return box_features(names, flags, image, mends=mends)


def read_all(
    files: Sequence[SourceFile], opened: OpenSource, *, of: Format
) -> Iterable[tuple[SourceFile, ImageBoxes | InvalidAnnotationError]]:
    """The boxes in each of these files, or why it is invalid."""
    for batch in in_batches(
        files, lambda file: file.num_bytes, max_size=_BATCH_BYTES, max_items=_BATCH_FILES
    ):
        contents = read_files(opened, [file.path for file in batch])
        for file, data in zip(batch, contents, strict=True):
            try:
                yield file, of.read(data if isinstance(data, bytes) else b"")
            except InvalidAnnotationError as error:
                yield file, error


class BoxReader(BoxFitter):
    """Reads features of boxes from the annotation files of images."""

    def __init__(self, of: Format, features: Features, *, image: str, bad_boxes: BadBoxes) -> None:
        """Prepares to read these features.

        Raises:
            SchemaError: if one is not a feature of boxes, or has another type.
        """
        super().__init__(
            features,
            of=f"boxes={of.name!r}",
            flags=of.flags,
            image=image,
            bad_boxes=bad_boxes,
        )
        self._format = of

    def read(self, data: bytes | None, header: ImageHeader) -> FittedBoxes:
        """The boxes of an image, from the content of its annotation file.

        Raises:
            InvalidAnnotationError: if the file is invalid, or not for this image.
        """
        is_rotated = header.orientation != 1
        boxes = self._format.read(data)
        return self.fit(boxes, header.height, header.width, is_rotated=is_rotated)
