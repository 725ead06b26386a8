"""Folders of images; labels come from folders, file names or a table (``file_labels``)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pydantic

from ...schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ...schemas.config import config_class
from ...schemas.errors import Reject
from ...schemas.features import Features, Image
from ...schemas.recipe import OpenSource
from ..prepare.compile import MAX_PAYLOAD_BYTES
from ..prepare.image_header import MAX_PIXELS, ImageHeader, UnreadableImageError, read_header
from ..runs import wire_schema
from .file_labels import FileLabels, LabelReader
from .label_table import UnlabelledError
from .read_files import read_ahead

BATCH_FILES = 256
BATCH_BYTES = 8 << 20
"""A raw batch holds at most so many files and encoded bytes, but one file at least …"""
BATCH_PIXELS = 48 << 20
"""… and no more pixels: decoded, about 144 MiB, whatever the cameras were."""

_SYSTEM_FILES = {
    name.lower(): name for name in ("Thumbs.db", "ehthumbs.db", "desktop.ini", "Icon\r")
}
_SYSTEM_FOLDERS = frozenset({"__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information"})


@config_class
class ImageFolder:
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

    media = True
    numbered = False

    def __post_init__(self) -> None:
        """Checks where labels come from."""
        self._labels.check()

    @property
    def label(self) -> str | None:
        """``label``, unless the file names have no such field, or a table may have none."""
        return self._labels.label

    @property
    def side_urls(self) -> tuple[str, ...]:
        """The table, if there is one."""
        return self._labels.side_urls

    @property
    def _labels(self) -> FileLabels:
        return FileLabels(
            source="ImageFolder",
            content="image",
            pattern=self.pattern,
            table=self.table,
            split_folders=self.split_folders,
        )

    def settings(self) -> dict[str, object]:
        """What shapes the records, as plain JSON, for the fingerprint."""
        labels = self._labels.settings()
        return {"source": "image_folder", "max_pixels": self.max_pixels, **labels}

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Takes all files but those that people do not mean when they speak of the folder's."""
        labels = self._labels
        reasons = [
            "label table" if labels.is_side_file(file.path) else skip_reason(file.path)
            for file in files
        ]
        kept = tuple(file for file, reason in zip(files, reasons, strict=True) if reason is None)
        counts = Counter(reason for reason in reasons if reason is not None)
        return Selection(files=kept, num_skipped={key: counts[key] for key in sorted(counts)})

    def cuts(self, file: SourceFile, opened: OpenSource) -> tuple[int, ...]:
        """None: an image is read whole."""
        return ()

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The image as it is stored, and the features that ``file_labels`` finds.

        Raises:
            RecipeError: if class folders are called like splits.
            DataError: if no file has labels, or the table cannot be read.
        """
        return {"image": Image(storage="encoded"), **self._labels.infer(files, opened)}

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads a block's images in the order of ``ordered``, many at a time.

        What the inventory could not read, what has no labels and what has no image's header
        becomes a reject of the batch in which it would have been.

        Raises:
            StorageError: if a file is no longer what the inventory found. Its bytes must not slip
                into a snapshot whose fingerprint speaks of others, and it is no bad record
                either: the next build sees it as it is.
        """
        labels = self._labels.reader(features, opened)
        chunks = _chunks([block.ranges[i] for i in ordered])
        with contextlib.closing(read_ahead(opened, chunks)) as contents:
            for chunk in contents:
                yield from self._read_chunk(chunk, features=features, labels=labels)

    def _read_chunk(
        self,
        chunk: Sequence[tuple[FileRange, bytes]],
        *,
        features: Features,
        labels: LabelReader,
    ) -> Iterator[RawBatch]:
        pending = _Pending(features, labels)
        for part, data in chunk:
            path = part.path
            if part.problem:
                pending.reject(path, stage="inventory", reason=part.problem, message=part.problem)
                continue
            try:
                label = labels.find(path)
            except UnlabelledError as error:
                pending.reject(
                    path, stage="validate", reason=error.reason, message=str(error), data=data
                )
                continue
            try:
                header = read_header(data, max_pixels=self.max_pixels)
            except UnreadableImageError as error:
                pending.reject(
                    path, stage="read", reason=error.reason, message=str(error), data=data
                )
                continue
            if pending.num_pixels and pending.num_pixels + _num_pixels(header) > BATCH_PIXELS:
                yield pending.batch()
                pending = _Pending(features, labels)
            pending.add(path, data=data, header=header, label=label)
        if pending.ids or pending.rejects:
            yield pending.batch()


@dataclasses.dataclass
class _Pending:
    """Rows and rejects of a raw batch, before it is full."""

    features: Features
    reader: LabelReader
    ids: list[str] = dataclasses.field(default_factory=list)
    contents: list[bytes] = dataclasses.field(default_factory=list)
    headers: list[ImageHeader] = dataclasses.field(default_factory=list)
    labels: list[Any] = dataclasses.field(default_factory=list)
    rejects: list[Reject] = dataclasses.field(default_factory=list)
    num_pixels: int = 0

    def add(self, path: str, *, data: bytes, header: ImageHeader, label: Any) -> None:
        self.ids.append(path)
        self.contents.append(data)
        self.headers.append(header)
        self.labels.append(label)
        self.num_pixels += _num_pixels(header)

    def reject(
        self, path: str, *, stage: str, reason: str, message: str, data: bytes | None = None
    ) -> None:
        if data is not None and len(data) > MAX_PAYLOAD_BYTES:
            data = None
        self.rejects.append(
            Reject(
                record_id=path,
                stage=stage,
                reason=reason,
                message=message,
                source=path,
                payload=data,
            )
        )

    def batch(self) -> RawBatch:
        columns = {
            "image": _binary_array(self.contents),
            "image/height": pa.array([header.height for header in self.headers], pa.int64()),
            "image/width": pa.array([header.width for header in self.headers], pa.int64()),
            "image/orientation": pa.array(
                [header.orientation for header in self.headers], pa.int64()
            ),
            **self.reader.columns(self.labels),
        }
        schema = wire_schema(self.features)
        arrays = [columns[name] for name in schema.names]
        return RawBatch(
            ids=self.ids,
            columns=pa.RecordBatch.from_arrays(arrays, schema=schema),
            rejects=tuple(self.rejects),
        )


def _binary_array(contents: Sequence[bytes]) -> pa.LargeBinaryArray:
    """``pa.array(contents, pa.large_binary())`` with one copy of the bytes and not two."""
    ends = np.cumsum([0, *map(len, contents)], dtype=np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(contents))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(contents), buffers)


def _chunks(parts: Sequence[FileRange]) -> Iterator[list[FileRange]]:
    """Files to read together."""
    chunk: list[FileRange] = []
    num_bytes = 0
    for part in parts:
        size = part.stop - part.start
        if chunk and (len(chunk) == BATCH_FILES or num_bytes + size > BATCH_BYTES):
            yield chunk
            chunk, num_bytes = [], 0
        chunk.append(part)
        num_bytes += size
    if chunk:
        yield chunk


def _num_pixels(header: ImageHeader) -> int:
    return header.height * header.width


def skip_reason(path: str) -> str | None:
    """Why a file is none that people mean when they speak of a folder's files."""
    *folders, name = path.split("/")
    for folder in folders:
        if folder in _SYSTEM_FOLDERS:
            return folder
        if folder.startswith("."):
            return "in a hidden folder"
    if name in _SYSTEM_FOLDERS:
        return name
    if name == ".DS_Store":
        return name
    if name.startswith("."):
        return "hidden file"
    return _SYSTEM_FILES.get(name.lower())
