"""Annotation files beside images: pairs the files, infers classes, and reads them with images.

A file belongs to the image whose path is the same but for the suffix and for folders that are
called after what is in them: ``train/labels/a.txt`` to ``train/images/a.jpg``,
``Annotations/a.xml`` to ``JPEGImages/a.jpg``, ``a.json`` to ``a.jpg``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from .....schemas.blocks import SourceFile
from .....schemas.errors import DataError
from .....schemas.features import Feature, Features
from .....schemas.recipe import OpenSource
from ....media.image_header import ImageHeader
from ....storage.read_files import read_files
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

_FOLDERS = frozenset(
    [
        *("image", "images", "img", "imgs", "jpegimages"),
        *("ann", "annotation", "annotations", "label", "labels", "txt", "xml", "xmls", "json"),
    ]
)
"""Folders that are called after what is in them, in lower case."""
_BATCH_FILES = 256
_BATCH_BYTES = 32 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A format of annotations with a file for each image."""

    name: str
    suffix: str
    parse: Callable[[bytes], ImageBoxes]
    """Raises InvalidAnnotationError."""
    lists: frozenset[str] = frozenset()
    """Names, without the suffix, of files of the format's suffix that are no annotations."""
    flags: tuple[str, ...] = ()
    """Features of one bool per box that the format has."""
    empty: bool = False
    """Whether an image without a file has no boxes; else it is invalid."""

    def is_list(self, path: str) -> bool:
        """Whether a file is no annotation by its name, unless there is an image of that name."""
        return path.rpartition("/")[2].lower().removesuffix(self.suffix) in self.lists

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


def pair(
    images: Sequence[SourceFile], annotations: Sequence[SourceFile], of: Format
) -> tuple[dict[str, SourceFile], Counter[str]]:
    """Marks annotations as parts of their images' records; returns files by path, and skipped ones.

    Files without a partner are marked as unpaired if others in their folder have one; else they are
    skipped, as are texts that are not annotations and images of another kind, such as masks. An
    image whose format allows none is not unpaired.
    """
    by_key: dict[str, list[SourceFile]] = {}
    for file in annotations:
        by_key.setdefault(key_of(file.path), []).append(file)
    images_of = Counter(key_of(file.path) for file in images)
    annotated = folders_of(file.path for file in images if key_of(file.path) in by_key)
    annotating = folders_of(file.path for file in annotations if images_of[key_of(file.path)])
    marked: dict[str, SourceFile] = {}
    skipped: Counter[str] = Counter()
    for file in images:
        own = by_key.get(key_of(file.path), [])
        unpaired = ""
        if len(own) > 1:
            unpaired = f"several {of.suffix} files for one image"
        elif own and images_of[key_of(file.path)] > 1:
            unpaired = f"several images for one {of.suffix} file"
        elif own:
            marked[own[0].path] = dataclasses.replace(own[0], of=file.path)
        elif file.path.rpartition("/")[0] not in annotated:
            skipped[f"image in a folder without {of.suffix} files"] += 1
            continue
        elif not of.empty:
            unpaired = f"image without a {of.suffix} file of its name"
        marked[file.path] = dataclasses.replace(file, unpaired=unpaired) if unpaired else file
    for file in annotations:
        if images_of[key_of(file.path)]:
            continue
        if file.path.rpartition("/")[0] in annotating and not of.is_list(file.path):
            unpaired = f"{of.suffix} file without an image of its name"
            marked[file.path] = dataclasses.replace(file, unpaired=unpaired)
        else:
            skipped[f"{of.suffix} file without an image"] += 1
    return marked, skipped


def folders_of(paths: Iterable[str]) -> set[str]:
    """The folders of files."""
    return {path.rpartition("/")[0] for path in paths}


def key_of(path: str) -> str:
    """What the paths of an image and of its annotations have in common.

    >>> key_of("train/images/a.jpg"), key_of("train/labels/a.txt"), key_of("Annotations/a.xml")
    ('train/a', 'train/a', 'a')
    """
    *folders, name = path.split("/")
    kept = [folder for folder in folders if folder.lower() not in _FOLDERS]
    return "/".join([*kept, name.rpartition(".")[0] or name])


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
    for batch in _batches(files):
        contents = read_files(opened, [file.path for file in batch])
        for file, data in zip(batch, contents, strict=True):
            try:
                yield file, of.read(data if isinstance(data, bytes) else b"")
            except InvalidAnnotationError as error:
                yield file, error


def _batches(files: Iterable[SourceFile]) -> Iterator[list[SourceFile]]:
    """Files to read together: as many as are small."""
    batch: list[SourceFile] = []
    num_bytes = 0
    for file in files:
        if batch and (len(batch) == _BATCH_FILES or num_bytes + file.num_bytes > _BATCH_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(file)
        num_bytes += file.num_bytes
    if batch:
        yield batch


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
