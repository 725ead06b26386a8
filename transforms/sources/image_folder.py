"""Images in class folders: the first folder level below the root names the class."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pydantic

from ...schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ...schemas.config import config_class
from ...schemas.errors import DataError, Reject, StorageError
from ...schemas.features import ClassLabel, Features, Image
from ...schemas.recipe import OpenSource
from ..prepare.compile import MAX_PAYLOAD_BYTES
from ..prepare.image_header import MAX_PIXELS, ImageHeader, UnreadableImageError, read_header
from ..runs import wire_schema
from .read_files import read_files

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
    """A folder of class folders of images: features ``image`` and ``label``.

    Every file is a record, at any depth below its class folder and whatever it is called; what
    does not decode becomes a reject. Hidden files and those that operating systems leave behind
    (``Thumbs.db``, ``__MACOSX`` …) are skipped and counted.

    Raw batches are in the wire form of the raw features: the file's bytes in ``image``, and in
    ``image/height``, ``image/width`` and ``image/orientation`` what its header states, the size
    being that of the picture as shown. Whether the pixels decode is for the steps to find out.

    Attributes:
        url: The folder that holds the class folders: a path or any fsspec URL, or a glob whose
            root holds them. In a recipe, a relative path counts from the recipe's file.
        max_pixels: Images of more pixels are rejected before they are decoded, which would take
            as many times 3 bytes of memory.
    """

    url: str
    max_pixels: Annotated[int, pydantic.Field(gt=0)] = MAX_PIXELS

    label = "label"
    media = True
    numbered = False
    side_urls: ClassVar[tuple[str, ...]] = ()

    def settings(self) -> dict[str, object]:
        """What shapes the records, as plain JSON, for the fingerprint."""
        return {"source": "image_folder", "max_pixels": self.max_pixels}

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Takes all files but those that people do not mean when they speak of the folder's."""
        reasons = [_skip_reason(file.path) for file in files]
        kept = tuple(file for file, reason in zip(files, reasons, strict=True) if reason is None)
        counts = Counter(reason for reason in reasons if reason is not None)
        return Selection(files=kept, num_skipped={key: counts[key] for key in sorted(counts)})

    def cuts(self, file: SourceFile, opened: OpenSource) -> tuple[int, ...]:
        """None: an image is read whole."""
        return ()

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The image as it is stored, and the classes: all folders with a record's file, sorted.

        Raises:
            DataError: if no file lies in a class folder, or a class name is no valid UTF-8.
        """
        names = {file.path.split("/", 1)[0] for file in files if "/" in file.path}
        if not names:
            raise DataError(
                f"ImageFolder: none of the {len(files):,} files lies in a class folder. Expected "
                "<root>/<class>/<image>: put the images into one folder for each class."
            )
        for name in sorted(names):
            if not _is_utf8(name):
                shown = name.encode("utf-8", "surrogateescape")
                raise DataError(
                    f"ImageFolder: the name of the class folder {shown!r} is not valid UTF-8. "
                    "Rename it."
                )
        labels = ClassLabel(names=tuple(sorted(names)))
        return {"image": Image(storage="encoded"), "label": labels}

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads a block's images in the order of ``ordered``, many at a time.

        What the inventory could not read, what lies in no class folder and what has no image's
        header becomes a reject of the batch in which it would have been.

        Raises:
            StorageError: if a file is no longer what the inventory found. Its bytes must not slip
                into a snapshot whose fingerprint speaks of others, and it is no bad record
                either: the next build sees it as it is.
        """
        classes = features.get("label")
        codes = {name: i for i, name in enumerate(getattr(classes, "names", ()))}
        for chunk in _chunks([block.ranges[i] for i in ordered]):
            yield from self._read_chunk(chunk, features=features, codes=codes, opened=opened)

    def _read_chunk(
        self,
        chunk: Sequence[FileRange],
        *,
        features: Features,
        codes: Mapping[str, int],
        opened: OpenSource,
    ) -> Iterator[RawBatch]:
        pending = _Pending(features)
        contents = iter(_verified(opened, [part for part in chunk if not part.problem]))
        for part in chunk:
            path = part.path
            if part.problem:
                pending.reject(path, stage="inventory", reason=part.problem, message=part.problem)
                continue
            data = next(contents)
            folder, _, below = path.partition("/")
            if "label" in features and not (below and folder in codes):
                reason = "class not declared" if below else "not in a class folder"
                message = (
                    f"the folder {folder!r} is none of the declared classes"
                    if below
                    else "the file lies beside the class folders, expected inside one"
                )
                pending.reject(path, stage="validate", reason=reason, message=message, data=data)
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
                pending = _Pending(features)
            pending.add(path, data=data, header=header, label=codes.get(folder, 0))
        if pending.ids or pending.rejects:
            yield pending.batch()


@dataclasses.dataclass
class _Pending:
    """Rows and rejects of a raw batch, before it is full."""

    features: Features
    ids: list[str] = dataclasses.field(default_factory=list)
    contents: list[bytes] = dataclasses.field(default_factory=list)
    headers: list[ImageHeader] = dataclasses.field(default_factory=list)
    labels: list[int] = dataclasses.field(default_factory=list)
    rejects: list[Reject] = dataclasses.field(default_factory=list)
    num_pixels: int = 0

    def add(self, path: str, *, data: bytes, header: ImageHeader, label: int) -> None:
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
            "label": pa.array(self.labels, pa.int64()),
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


def _verified(opened: OpenSource, parts: Sequence[FileRange]) -> Iterator[bytes]:
    contents = read_files(opened, [part.path for part in parts])
    for part, data in zip(parts, contents, strict=True):
        cause: Exception | None = None
        if not isinstance(data, bytes):
            found, cause = f"cannot be read any more ({data})", data
        elif hashlib.sha256(data).hexdigest() != part.sha256:
            found = f"has other content ({len(data):,} bytes) than when it was listed"
        else:
            yield data
            continue
        raise StorageError(
            f"{opened.full_path(part.path)} {found}: the source changed while the build read it. "
            "Wait until nothing writes there, then start again: it goes on from what is done."
        ) from cause


def _num_pixels(header: ImageHeader) -> int:
    return header.height * header.width


def _skip_reason(path: str) -> str | None:
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


def _is_utf8(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
