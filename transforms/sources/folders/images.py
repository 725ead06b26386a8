"""Folders of images, and the prepare steps that they need by the sizes in their headers.

Labels come from folders, file names or a table (``labels``).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pyarrow as pa
import pydantic

from ....schemas.blocks import SourceFile
from ....schemas.config import config_class
from ....schemas.features import Features, Image
from ....schemas.recipe import OpenSource, PrepareStep
from ...media.image_header import MAX_PIXELS, ImageHeader, UnreadableImageError, read_header
from ...prepare import images
from ...storage.opened_source import path_bytes
from ...storage.read_files import read_headers
from .files import MediaFolder, MediaKind

BATCH_PIXELS = 48 << 20
"""A raw batch holds no more pixels: decoded, about 144 MiB, whatever the cameras were."""

MAX_HEADERS = 20_000
"""Of more files, those with the lowest hashes of their paths are looked at."""
FALLBACK_SIZE = (256, 256)
"""Where no size is the rule."""


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
        """The image as it is stored, and the features that ``labels`` finds.

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


def infer_image_steps(
    files: Sequence[SourceFile], opened: OpenSource, *, name: str = "image"
) -> list[PrepareStep]:
    """Infers the steps for a folder of images; the same files give the same steps.

    Images of one size are copied as they are. Of several sizes, they are resized to the one that
    more than half of them have, or fitted into 256×256 with black beside them where none is the
    rule. Files without a readable header do not count.

    Args:
        files: The records' files. Of more than 20,000, so many are looked at.
        opened: The source's root.
        name: The image feature.
    """
    sizes = Counter(read_sizes(files, opened))
    if len(sizes) <= 1:
        return []
    size, count = max(sizes.items(), key=lambda item: (item[1], item[0]))
    ruled = 2 * count > sizes.total()
    resize = images.resize(name, size if ruled else FALLBACK_SIZE, keep_ratio=not ruled)
    return [images.decode(name), resize]


def read_sizes(files: Sequence[SourceFile], opened: OpenSource) -> list[tuple[int, int]]:
    """Heights and widths, as shown, of the images whose headers can be read."""
    readable = [file for file in files if not file.problem]
    if len(readable) > MAX_HEADERS:
        readable = sorted(readable, key=_path_hash)[:MAX_HEADERS]
    headers = read_headers(
        readable,
        opened,
        read=lambda _, data: read_header(data),
        unreadable=UnreadableImageError,
        cut_short="truncated image",
    )
    return [(header.height, header.width) for header in headers]


def _path_hash(file: SourceFile) -> bytes:
    return hashlib.blake2b(path_bytes(file.path), digest_size=16).digest()
