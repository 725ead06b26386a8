"""Reads image and sound files that are values of records, and Arrow rows that contain them.

A column of files is a column of bytes, or of structs with a field ``bytes``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....schemas.blocks import RawBatch
from ....schemas.errors import Reject, SchemaError
from ....schemas.features import Audio, Features, Image, is_encoded
from ...media.audio_header import UnreadableSoundError
from ...media.audio_header import read_header as read_sound
from ...media.image_header import MAX_PIXELS, UnreadableImageError
from ...media.tiff import readable_image
from ...rejects import reject_at, with_row
from ...runs.files import wire_schema
from ..python_values import Lists, wire_arrays
from .rows import RowReader

BYTES = "bytes"
"""The struct field with the content of a file."""


class UnfitPartError(ValueError):
    """An unusable part of a record, with a reason to group by."""

    def __init__(self, stage: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.stage, self.reason = stage, reason


def media_lists(
    name: str, feature: Image | Audio, value: Any, *, max_pixels: int = MAX_PIXELS
) -> Lists:
    """The stored lists of an image or sound file: its bytes, and the facts in its header.

    Raises:
        UnfitPartError: if the file is missing or unreadable.
    """
    if value is None:
        raise UnfitPartError("validate", "missing part", f"the sample has no {name!r}")
    if not isinstance(value, bytes | bytearray | memoryview):
        raise UnfitPartError(
            "validate",
            "unfit part",
            f"{name!r} is a {type(value).__name__}, expected the bytes of a file.",
        )
    value = bytes(value)
    try:
        if isinstance(feature, Audio):
            read_sound(value)
            return {name: [value]}
        value, header = readable_image(value, max_pixels=max_pixels)
    except (UnreadableImageError, UnreadableSoundError) as error:
        raise UnfitPartError("read", error.reason, f"{name}: {error}") from None
    return {
        name: [value],
        f"{name}/height": [header.height],
        f"{name}/width": [header.width],
        f"{name}/orientation": [header.orientation],
    }


class MediaRowReader:
    """Converts batches of one Arrow schema, including images and sounds, to wire columns."""

    def __init__(
        self, schema: pa.Schema, features: Features, *, path: str, unit: str = "row"
    ) -> None:
        """Finds the column of each feature, as :class:`RowReader` does.

        Raises:
            SchemaError: naming the feature whose column is missing or has an incompatible type.
        """
        self._media: Mapping[str, Any] = {
            name: feature for name, feature in features.items() if is_encoded(feature)
        }
        self._path, self._unit = path, unit
        self._wire = wire_schema(features)
        for name in self._media:
            if name not in schema.names or not _holds_bytes(schema.field(name).type):
                raise SchemaError(
                    f"{path}: {name!r} is not a column of bytes or of structs with a field "
                    f"{BYTES!r}; expected a column of files. The columns are "
                    f"{', '.join(map(repr, schema.names))}."
                )
        others = {name: f for name, f in features.items() if name not in self._media}
        self._rows = None
        if others:
            self._rows = RowReader(_others(schema, self._media), others, path=path, unit=unit)

    def read(self, batch: pa.RecordBatch, positions: npt.ArrayLike) -> RawBatch:
        """Converts a batch; ``positions``, int64[n], are part of the rows' ids."""
        if not self._media and self._rows is not None:
            return self._rows.read(batch, positions)
        at = np.asarray(positions, np.int64)
        bad = np.zeros(len(batch), bool)
        rejects: list[Reject] = []
        found: dict[str, list[Lists]] = {name: [] for name in self._media}
        contents = {name: _contents(batch.column(name)) for name in self._media}
        for row in range(len(batch)):
            try:
                lists = {
                    name: media_lists(name, feature, contents[name][row].as_py())
                    for name, feature in self._media.items()
                }
            except UnfitPartError as error:
                bad[row] = True
                rejects.append(with_row(self._reject(int(at[row]), error), batch, row))
                continue
            for name, one in lists.items():
                found[name].append(one)
        at = at[~bad]
        if self._rows is not None:
            read = self._rows.read(_others(batch, self._media).filter(pa.array(~bad)), at)
        else:
            ids = [f"{self._path}#{position}" for position in at.tolist()]
            read = RawBatch(ids=ids, columns=pa.RecordBatch.from_arrays([], names=[]))
        return self._joined(read, at, found, rejects)

    def _joined(
        self,
        read: RawBatch,
        at: npt.NDArray[np.int64],
        found: Mapping[str, list[Lists]],
        rejects: list[Reject],
    ) -> RawBatch:
        """The other columns, and the media columns of the rows that those kept."""
        if read.rejects:
            left = np.isin(at, [int(one.rpartition("#")[2]) for one in read.ids])
            found = {
                name: [one for one, keep in zip(lists, left, strict=True) if keep]
                for name, lists in found.items()
            }
        arrays = dict(zip(read.columns.schema.names, read.columns.columns, strict=True))
        for name, feature in self._media.items():
            arrays.update(wire_arrays(name, feature, found[name]))
        columns = [arrays[name] for name in self._wire.names]
        return dataclasses.replace(
            read,
            columns=pa.RecordBatch.from_arrays(columns, schema=self._wire),
            rejects=(*rejects, *read.rejects),
        )

    def _reject(self, position: int, error: UnfitPartError) -> Reject:
        return reject_at(
            self._path,
            position,
            stage=error.stage,
            reason=error.reason,
            message=f"{self._path} {self._unit} {position}: {error}. Fix the file, or raise "
            "max_rejects to do without it.",
            exception=type(error).__name__,
        )


def _others(columns: Any, media: Mapping[str, Any]) -> Any:
    """A schema or batch without the media columns."""
    if isinstance(columns, pa.Schema):
        return pa.schema([field for field in columns if field.name not in media])
    return columns.select([name for name in columns.schema.names if name not in media])


def _holds_bytes(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        index = type_.get_field_index(BYTES)
        return index >= 0 and _holds_bytes(type_.field(index).type)
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))


def _contents(column: pa.Array) -> pa.Array:
    return pc.struct_field(column, BYTES) if pa.types.is_struct(column.type) else column
