"""NumPy files as a source: arrays whose first axis is the record.

One array of a ``.npy`` file, the arrays of an ``.npz`` file, or several ``.npy`` files beside each
other, row by row. Nothing is unpickled: arrays of Python objects are refused.
A record's id is ``relative/path#row``.
"""

from __future__ import annotations

import dataclasses
import io
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.blocks import Block, RawBatch, Selection, SourceFile
from ...schemas.config import config_class
from ...schemas.errors import SchemaError
from ...schemas.features import Features
from ...schemas.recipe import OpenSource
from ..storage.read_files import open_for_arrow
from ..storage.zip_members import truncation
from .arrow.files import BATCH_BYTES, BATCH_ROWS, ArrowFormat, ArrowTables, Unit, offset_between
from .npy_arrays import (
    HEAD_BYTES,
    NpyArray,
    arrow_field,
    check_length,
    read_head,
    to_batch,
    with_declared,
)
from .table_files import check_types, select_files, types_to_json

SUFFIXES = (".npy", ".npz")
"""What NumPy files' names end with."""

_UNIT_BYTES = 8 << 20


@config_class
class Numpy:
    """Rows of NumPy arrays.

    Attributes:
        url: A ``.npy`` or ``.npz`` file, a folder of such (each a table of the same columns), a
            glob, or any fsspec URL.
        label: The feature to predict. Strings and bools become a ClassLabel; numbers stay.
        name: What the array of a ``.npy`` file is called. Arrays of an ``.npz`` have names.
        beside: More ``.npy`` files with as many rows, by the features that they are:
            ``{"label": "y_train.npy"}``. Only where ``url`` is one ``.npy`` file.
        types: Types in place of inferred ones: ``{"x": "float32"}``, or a feature.
    """

    url: str
    label: str | None = None
    name: str = "data"
    beside: Mapping[str, str] = dataclasses.field(default_factory=dict)
    types: Mapping[str, Any] | None = None
    media = False
    numbered = True

    def __post_init__(self) -> None:
        """Checks types and names."""
        check_types(self.types)
        if self.name in self.beside:
            raise ValueError(f"beside= names {self.name!r}, which the array of url is called")

    @property
    def side_urls(self) -> tuple[str, ...]:
        """The files beside the first."""
        return tuple(self.beside.values())

    def settings(self) -> dict[str, object]:
        """What shapes the records, as plain JSON, for the fingerprint."""
        return {
            "beside": list(self.beside),
            "label": self.label,
            "name": self.name,
            "types": types_to_json(self.types),
        }

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Takes NumPy files, those of a glob's own suffix, and a single file as it is."""
        return select_files(self.url, files, suffixes=SUFFIXES, what="a .npy or .npz file")

    def cuts(self, file: SourceFile, opened: OpenSource) -> tuple[int, ...]:
        """Where rows begin, about every 8 MiB of a ``.npy`` file."""
        return self._tables().cuts(file, opened)

    def offset_of(self, file: SourceFile, row: int, opened: OpenSource) -> int | None:
        """About where a row lies, in bytes."""
        return self._tables().offset_of(file, row, opened)

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the rows, from the arrays' dtypes and shapes.

        Raises:
            SchemaError: if no file can be read, or an array cannot be stored.
            RecipeError: if ``label`` or ``types`` name no array.
        """
        return self._tables().infer(files, opened)

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads the rows of a block's ranges; ids are ``path#row``."""
        return self._tables().read(block, features=features, opened=opened, ordered=ordered)

    def _tables(self) -> ArrowTables:
        def open_file(opened: OpenSource, path: str) -> Any:
            if opened.read(path, 0, 4).startswith(b"PK"):
                return _Npz(opened, path, self.types)
            arrays = {self.name: NpyArray.open(opened, path)}
            for name, url in self.beside.items():
                arrays[name] = NpyArray.open(*opened.side(url))
            arrays = {n: a.declared(n, self.types, path=path) for n, a in arrays.items()}
            return _Npy(arrays, path=path)

        numpy_format = ArrowFormat(name="NumPy", unit="part", open=open_file)
        return ArrowTables(format=numpy_format, label=self.label, columns=None, types=self.types)


class _Npy:
    """Arrays of ``.npy`` files, row by row."""

    def __init__(self, arrays: Mapping[str, NpyArray], *, path: str) -> None:
        self._arrays = arrays
        lengths = {name: array.shape[0] for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SchemaError(
                f"{path}: the arrays have {lengths} rows, expected as many in each. Which of the "
                "files belong together?"
            )
        self._num_rows = next(iter(lengths.values()))
        fields = [arrow_field(name, a.dtype, a.shape, path) for name, a in arrays.items()]
        self.schema = pa.schema(fields)

    @property
    def units(self) -> Sequence[Unit]:
        first = next(iter(self._arrays.values()))
        whole = min(array.num_whole_rows for array in self._arrays.values())
        step = max(1, _UNIT_BYTES // sum(array.row_bytes for array in self._arrays.values()))
        starts = list(range(0, whole, step)) or [0]
        # What a file that was cut short lacks is told with its last part.
        stops = [*starts[1:], self._num_rows]
        return [
            Unit(0 if start == 0 else first.offset + start * first.row_bytes, start, stop - start)
            for start, stop in zip(starts, stops, strict=True)
        ]

    def read(self, unit: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        part = self.units[unit]
        arrays = {name: self._arrays[name] for name in columns}
        step = _batch_rows([array.row_bytes for array in arrays.values()])
        end = part.first_row + (part.num_rows or 0)
        for start in range(part.first_row, end, step):
            found = {n: a.rows(start, min(end, start + step)) for n, a in arrays.items()}
            batch = to_batch(found, self.schema)
            yield batch
            if len(batch) < min(end, start + step) - start:
                return

    def offset_of(self, row: int) -> int:
        first = next(iter(self._arrays.values()))
        return first.offset + row * first.row_bytes

    def lacking(self) -> tuple[set[str], set[str]]:
        return set(), set(_may_lack(self.schema))


class _Npz:
    """The arrays of an ``.npz`` file; they may be compressed, so they are read from the start."""

    def __init__(self, opened: OpenSource, path: str, types: Mapping[str, Any] | None) -> None:
        try:
            source = open_for_arrow(opened, path)
            self._num_bytes = source.size()
            self._archive = zipfile.ZipFile(source)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            why = truncation(open_for_arrow(opened, path))
            raise ValueError(f"it {why or f'is not a zip archive ({error})'}") from None
        self._heads: dict[str, tuple[np.dtype[Any], tuple[int, ...], int]] = {}
        for entry in self._archive.namelist():
            if not entry.endswith(".npy"):
                continue
            dtype, shape, fortran, offset = read_head(
                _read_exactly(self._member(entry), HEAD_BYTES), path
            )
            check_length(dtype, shape, self._archive.getinfo(entry).file_size - offset)
            if fortran and len(shape) > 1:
                raise SchemaError(
                    f"{path}: {entry} lies column by column (Fortran order). Save it with "
                    "np.ascontiguousarray."
                )
            name = entry.removesuffix(".npy")
            dtype = with_declared(dtype, name, types, path=path)
            self._heads[name] = (dtype, shape, offset)
        if not self._heads:
            raise ValueError("it holds no arrays")
        lengths = {name: shape[0] for name, (_, shape, _) in self._heads.items()}
        if len(set(lengths.values())) > 1:
            raise SchemaError(
                f"{path}: its arrays have {lengths} rows, expected as many in each. Save those "
                "that are records by themselves."
            )
        self._num_rows = next(iter(lengths.values()))
        self.schema = pa.schema(
            [
                arrow_field(name, dtype, shape, path)
                for name, (dtype, shape, _) in self._heads.items()
            ]
        )

    @property
    def units(self) -> Sequence[Unit]:
        return [Unit(0, 0, self._num_rows)]

    def read(self, unit: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        del unit
        heads = {name: self._heads[name] for name in columns}
        members: dict[str, Any] = {}
        for name, (_, _, offset) in heads.items():
            members[name] = self._member(f"{name}.npy")
            _read_exactly(members[name], offset)
        sizes = {n: d.itemsize * math.prod(s[1:]) for n, (d, s, _) in heads.items()}
        step = _batch_rows(list(sizes.values()))
        for start in range(0, self._num_rows, step):
            rows = min(step, self._num_rows - start)
            found = {}
            for name, (dtype, shape, _) in heads.items():
                content = _read_exactly(members[name], rows * sizes[name])
                whole = len(content) // sizes[name] if sizes[name] else rows
                values = np.frombuffer(content[: whole * sizes[name]], dtype)
                found[name] = values.reshape(whole, *shape[1:])
            batch = to_batch(found, self.schema)
            yield batch
            if len(batch) < rows:
                return

    def offset_of(self, row: int) -> int:
        return offset_between(self.units, row, num_bytes=self._num_bytes)

    def lacking(self) -> tuple[set[str], set[str]]:
        return set(), set(_may_lack(self.schema))

    def _member(self, entry: str) -> Any:
        try:
            return self._archive.open(entry)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, KeyError) as error:
            # Damaged, compressed in an unknown way, or encrypted.
            raise ValueError(f"{entry} cannot be unpacked ({error})") from None


def _may_lack(schema: pa.Schema) -> Iterator[str]:
    """Only times have a value for what is missing."""
    for field in schema:
        if pa.types.is_timestamp(field.type) or pa.types.is_duration(field.type):
            yield field.name


def _batch_rows(row_bytes: Sequence[int]) -> int:
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, sum(row_bytes))))


def _read_exactly(member: io.BufferedIOBase, num_bytes: int) -> bytes:
    """As many bytes as there are, up to so many; less where the member is damaged or ends."""
    parts, held = [], 0
    while held < num_bytes:
        try:
            part = member.read(min(1 << 20, num_bytes - held))
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError):
            break
        if not part:
            break
        parts.append(part)
        held += len(part)
    return b"".join(parts)
