"""What the bytes in TFRecords are: image files, or pixels; and whether they have boxes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa

from ...schemas.blocks import SourceFile
from ...schemas.errors import SnapshardError
from ...schemas.features import Image
from ...transforms.sources.folders.annotations.model import BOX_FEATURES
from ...transforms.sources.tfrecord.boxes import ENCODED, IMAGE, SIDES, is_of_boxes
from ...transforms.sources.tfrecord.source import TFRecords, decoded_records
from ...transforms.storage.opened_source import OpenedSource

_NUM_RECORDS = 64
_IMAGE_FILES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_MIN_PIXELS = 16
_CHANNELS: tuple[Literal[1, 3, 4], ...] = (1, 3, 4)


def with_images(source: TFRecords, files: Sequence[SourceFile], opened: OpenedSource) -> TFRecords:
    """The source, with the types of features that hold JPEG or PNG files, and with boxes."""
    records = _first_records(files, opened)
    names = {name for _, batch in records for name in batch.schema.names}
    if names >= {ENCODED, *SIDES} and names.isdisjoint((IMAGE, *BOX_FEATURES)):
        source = dataclasses.replace(source, boxes="object_detection")
    images = {
        name: Image(storage="encoded")
        for name, values in _bytes_of(records).items()
        if all(value.startswith(_IMAGE_FILES) for value in values)
        and not (source.boxes and is_of_boxes(name))
    }
    return dataclasses.replace(source, types={**images, **(source.types or {})} or None)


def pixel_sizes(files: Sequence[SourceFile], opened: OpenedSource) -> Mapping[str, int]:
    """By feature, the length of values that all have it, and are neither texts nor image files."""
    sizes = {}
    for name, values in _bytes_of(_first_records(files, opened)).items():
        lengths = {len(value) for value in values}
        if len(lengths) == 1 and min(lengths) >= _MIN_PIXELS and any(map(_is_binary, values)):
            sizes[name] = lengths.pop()
    return sizes


def square_image(num_bytes: int) -> Image | None:
    """The pixels of a square image, if so many bytes can be one.

    >>> images = [square_image(num_bytes) for num_bytes in (784, 3072, 100_001)]
    >>> [image and (image.height, image.channels) for image in images]
    [(28, 1), (32, 3), None]
    """
    for channels in _CHANNELS:
        side = math.isqrt(num_bytes // channels)
        if side * side * channels == num_bytes:
            return Image(side, side, channels)
    return None


def _first_records(
    files: Sequence[SourceFile], opened: OpenedSource
) -> list[tuple[int, pa.RecordBatch]]:
    """The first records of a file, decoded, with their number; none if it cannot be read."""
    first = next((file for file in files if not file.problem and file.num_bytes), None)
    if first is None:
        return []
    try:
        return list(decoded_records(opened, first, _NUM_RECORDS))
    except SnapshardError:
        return []  # a build will report the error


def _bytes_of(records: Sequence[tuple[int, pa.RecordBatch]]) -> dict[str, list[bytes]]:
    """The values of features that have one of bytes in each of the records."""
    columns: dict[str, list[bytes]] = {}
    for _, batch in records:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
                values = column.flatten()
                if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
                    columns.setdefault(name, []).extend(values.to_pylist())
    num_records = sum(num for num, _ in records)
    return {name: values for name, values in columns.items() if len(values) == num_records > 0}


def _is_binary(value: bytes) -> bool:
    try:
        return not value.decode().isprintable()
    except UnicodeDecodeError:
        return True
