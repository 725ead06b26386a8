"""Folders of images; labels come from folders, file names or a table (``file_labels``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pyarrow as pa
import pydantic

from ...schemas.blocks import SourceFile
from ...schemas.config import config_class
from ...schemas.features import Features, Image
from ...schemas.recipe import OpenSource
from ..media.image_header import MAX_PIXELS, ImageHeader, UnreadableImageError, read_header
from .media_files import MediaFolder, MediaKind

BATCH_PIXELS = 48 << 20
"""A raw batch holds no more pixels: decoded, about 144 MiB, whatever the cameras were."""


@config_class
class ImageFolder(MediaFolder):
    """A folder of images: feature ``image``, and what says what is on it.

    Without ``pattern`` and ``table``, the images lie in class folders, whose names become the
    feature ``label``. Every file is a record, at any depth and whatever it is called; what does not
    decode becomes a reject. Hidden files and those that operating systems leave behind
    (``Thumbs.db``, ``__MACOSX`` …) are skipped and counted.

    Raw batches are in the wire form of the raw features: the file's bytes in ``image``, and in
    ``image/height``, ``image/width`` and ``image/orientation`` what its header states, the size
    being that of the picture as shown. Whether the pixels decode is for the steps to find out.

    Attributes:
        url: The folder that holds the class folders: a path or any fsspec URL, or a glob whose
            root holds them. In a recipe, a relative path counts from the recipe's file.
        pattern: The form of the files' names, fields in braces: ``"{label}_{camera}_{n}.jpg"``.
            Held against the path where it has a '/'. ``*`` stands for any characters. Each field
            is a feature: ``label`` a ClassLabel; one of digits alone an int64; else a string.
        table: A ``.csv``, ``.tsv`` or ``.jsonl`` file with a row for each image, named in a column
            ``file``, ``file_name``, ``filename``, ``path`` or ``image``, else in the first; other
            columns are features: ``label`` a ClassLabel, ``boxes`` of JSON Lines bounding boxes.
            An image without a row is rejected. A relative path counts as ``url`` does.
        split_folders: The first folder is the split (``train/cat/1.jpg``); take it with
            ``ss.Splits.by_folder()``. False where class folders are called so.
        max_pixels: Images of more pixels are rejected before they are decoded, which would take
            as many times 3 bytes of memory.
    """

    url: str
    max_pixels: Annotated[int, pydantic.Field(gt=0)] = MAX_PIXELS
    pattern: str | None = None
    table: str | None = None
    split_folders: bool | None = None

    _content = "image"

    def settings(self) -> dict[str, object]:
        """What shapes the records, as plain JSON, for the fingerprint."""
        labels = self._labels.settings()
        return {"source": "image_folder", "max_pixels": self.max_pixels, **labels}

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The image as it is stored, and the features that ``file_labels`` finds.

        Raises:
            RecipeError: if class folders are called like splits.
            DataError: if no file has labels, or the table cannot be read.
        """
        return {"image": Image(storage="encoded"), **self._labels.infer(files, opened)}

    def _kind(self, features: Features) -> MediaKind[ImageHeader]:
        return MediaKind(
            name=self._content,
            read_header=self._read_header,
            unreadable=UnreadableImageError,
            weigh=_num_pixels,
            max_weight=BATCH_PIXELS,
            sides=_side_columns,
        )

    def _read_header(self, data: bytes) -> ImageHeader:
        return read_header(data, max_pixels=self.max_pixels)


def _num_pixels(header: ImageHeader) -> int:
    return header.height * header.width + header.more_pixels // 3


def _side_columns(headers: Sequence[ImageHeader]) -> Mapping[str, pa.Array]:
    return {
        f"image/{part}": pa.array([getattr(header, part) for header in headers], pa.int64())
        for part in ("height", "width", "orientation")
    }
