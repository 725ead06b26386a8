"""The NumPy source: arrays whose first axis is the record.

Reads the array of a ``.npy`` file, the arrays of an ``.npz`` file, or several parallel ``.npy``
files, row by row. Nothing is unpickled: arrays of Python objects are refused. A record's id is
``relative/path#row``.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.lib import format as npy_format

from ...schemas.blocks import Selection, SourceFile
from ...schemas.config import config_class
from ...schemas.errors import SchemaError
from ...schemas.features import Feature, is_encoded, tensor_form
from ...schemas.recipe import OpenSource
from ...schemas.splits import USUAL_WORDS
from ..examples.dtypes import numpy_dtype, widened
from ..storage.read_files import open_for_arrow
from ..storage.zip_members import truncation
from .arrow.files import BATCH_BYTES, BATCH_ROWS, ArrowFormat, ArrowSource, Unit, offset_between
from .table_files import select_files, types_to_json

HEAD_BYTES = 1 << 16
"""Maximum length of a header."""

_FORTRAN_BYTES = 256 << 20

SUFFIXES = (".npy", ".npz")
"""Suffixes of NumPy files."""

_UNIT_BYTES = 8 << 20
"""Approximate size of the units of a ``.npy`` file, between which it may be cut."""


@dataclasses.dataclass(frozen=True)
class NpyArray:
    """An array in a file: its header, and how to read its rows."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    """The offset of the values."""
    num_bytes: int
    """The size of the file."""
    read_bytes: Callable[[int, int], bytes]

    @classmethod
    def open(cls, opened: OpenSource, path: str) -> NpyArray:
        """Reads the header of a ``.npy`` file.

        Raises:
            ValueError: if it is not a valid ``.npy`` file.
            SchemaError: if its values cannot be read without unpickling.
        """
        head = opened.read(path, 0, HEAD_BYTES)
        dtype, shape, fortran, offset = read_head(head, path)
        num_bytes = max(len(head), _length(opened, path))
        check_length(dtype, shape, num_bytes - offset)

        def read(start: int, stop: int) -> bytes:
            return opened.read(path, start, stop)

        if fortran and len(shape) > 1:
            values = _by_rows(read(offset, num_bytes), dtype, shape, path=path)
            content = values.tobytes()
            return cls(dtype, shape, 0, len(content), lambda a, b: content[a:b])
        return cls(dtype, shape, offset, num_bytes, read)

    def declared(self, name: str, types: Mapping[str, Any] | None, *, path: str) -> NpyArray:
        """The array with the dtype from :func:`with_declared`.

        Raises:
            SchemaError: if it has raw bytes of undeclared type.
        """
        return dataclasses.replace(self, dtype=with_declared(self.dtype, name, types, path=path))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return max(1, self.dtype.itemsize * math.prod(self.shape[1:]))

    @property
    def num_whole_rows(self) -> int:
        """The number of complete rows in the file."""
        return min(self.shape[0], max(0, self.num_bytes - self.offset) // self.row_bytes)

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows [start, stop), fewer if the file ends."""
        content = self.read_bytes(
            self.offset + start * self.row_bytes, self.offset + stop * self.row_bytes
        )
        num_rows = len(content) // self.row_bytes if self.dtype.itemsize else stop - start
        values = np.frombuffer(content[: num_rows * self.row_bytes], self.dtype)
        return values.reshape(num_rows, *self.shape[1:])


def read_head(head: bytes, path: str) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Dtype, shape, whether in Fortran order, and offset of the values, from a ``.npy`` header.

    Raises:
        ValueError: if the header is invalid.
        SchemaError: if the values are Python objects, or there is no first axis.
    """
    if not head.startswith(npy_format.MAGIC_PREFIX):
        raise ValueError("it does not begin like a NumPy file")
    try:
        dtype, shape, fortran, offset = _parsed_head(head)
    except Exception:
        # NumPy raises what its parser of literals does: SyntaxError, TokenError, MemoryError …
        raise ValueError("its header is invalid") from None
    if dtype.hasobject:
        raise SchemaError(
            f"{path} has Python objects, which can only be read by unpickling, and that runs code. "
            "Save an array of numbers or fixed-length strings (dtype 'U10' or 'S10')."
        )
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize >= 1 << 62:
        raise ValueError(f"its header has the invalid shape {shape!r}")
    if not shape:
        raise SchemaError(
            f"{path} has a single value, expected an array whose first axis is records."
        )
    return dtype, shape, fortran, offset


def _parsed_head(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    file = io.BytesIO(head)
    version = npy_format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = npy_format.read_array_header_1_0(file, HEAD_BYTES)
        return dtype, shape, fortran, file.tell()
    if version not in ((2, 0), (3, 0)):
        raise ValueError(version)
    end = 12 + int.from_bytes(head[8:12], "little")
    # NumPy has no public function for 3.0, which is 2.0 with the text in UTF-8 instead of Latin-1.
    # In ASCII with escapes both are equal.
    text = head[12:end].decode("latin-1" if version == (2, 0) else "utf-8")
    escaped = text.encode("ascii", "backslashreplace")
    file = io.BytesIO(len(escaped).to_bytes(4, "little") + escaped)
    shape, fortran, dtype = npy_format.read_array_header_2_0(file, HEAD_BYTES)
    return dtype, shape, fortran, end


def check_length(dtype: np.dtype[Any], shape: tuple[int, ...], num_bytes: int) -> None:
    """Refuses extra data after an array: rows beyond the header's shape, or another array.

    Raises:
        ValueError: if there are more bytes than the shape needs.
    """
    expected = math.prod(shape) * dtype.itemsize
    if num_bytes > expected:
        raise ValueError(
            f"its header has the shape {shape!r} of {expected:,} bytes, but {num_bytes:,} follow"
        )


def arrow_field(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], path: str) -> pa.Field:
    """The column of an array: a list level for each axis after the first."""
    kind = _arrow_type(dtype, f"{path}: array {name!r}")
    return pa.field(name, _lists_of(kind, shape[1:]))


def with_declared(
    dtype: np.dtype[Any], name: str, types: Mapping[str, Any] | None, *, path: str
) -> np.dtype[Any]:
    """The dtype of an array in a file, with declared dtypes for raw bytes (``V2``).

    NumPy writes dtypes that it does not support, such as bfloat16, as raw bytes.

    Raises:
        SchemaError: if there are raw bytes of undeclared type.
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((with_declared(base, name, types, path=path), shape))
    if dtype.names is not None:
        fields = [
            (field, with_declared(dtype[field], f"{name}.{field}", types, path=path))
            for field in dtype.names
        ]
        places = [dtype.fields[field][1] for field in dtype.names]  # type: ignore[index]
        return np.dtype(
            {
                "names": [field for field, _ in fields],
                "formats": [kind for _, kind in fields],
                "offsets": places,
                "itemsize": dtype.itemsize,
            }
        )
    if dtype.kind != "V":
        return dtype
    wanted = (types or {}).get(name)
    form = tensor_form(wanted) if isinstance(wanted, Feature) else None
    declared = form.dtype if form is not None else wanted
    if declared == "bfloat16" and dtype.itemsize == 2:
        return numpy_dtype("bfloat16")
    if declared == "string" or (isinstance(wanted, Feature) and is_encoded(wanted)):
        return dtype
    remedy = ', or "bfloat16", which NumPy stores this way' if dtype.itemsize == 2 else ""
    raise SchemaError(
        f"{path}: array {name!r} has raw bytes, {dtype.itemsize} each ({dtype}), of unknown "
        f'type. Declare it: types={{{name!r}: "string"}} for the bytes'
        f'{remedy}. For other dtypes, save a copy: values.astype("float32").'
    )


def to_batch(arrays: Mapping[str, npt.NDArray[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of arrays as Arrow columns, up to the shortest array. Masked values are null."""
    num_rows = min(map(len, arrays.values()), default=0)
    columns = [_to_arrow(a[:num_rows], schema.field(n).type) for n, a in arrays.items()]
    fields = [schema.field(name) for name in arrays]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _to_arrow(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    mask = np.ma.getmask(values)
    missing = None if mask is np.ma.nomask or mask.dtype.names else np.ascontiguousarray(mask)
    if pa.types.is_fixed_size_list(kind):
        inner = _to_arrow(values.reshape(-1, *values.shape[2:]), kind.value_type)
        none = None
        if missing is not None and missing.size:
            none = pa.array(missing.reshape(len(missing), -1).all(axis=1))
        return pa.FixedSizeListArray.from_arrays(inner, kind.list_size, mask=none)
    if pa.types.is_struct(kind):
        parts = [_to_arrow(values[field.name], field.type) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind))
    values = np.ma.getdata(values)
    if values.dtype == numpy_dtype("bfloat16"):
        values = widened(np.ascontiguousarray(values))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        numbers = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("=")).view(np.int64)
        nat = numbers == np.iinfo(np.int64).min
        return pa.array(numbers, mask=nat if missing is None else nat | missing).cast(kind)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return pa.array(values.tolist(), kind, mask=missing)
    native = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))
    return pa.array(native, kind, mask=missing)


def _lists_of(kind: pa.DataType, shape: Sequence[int]) -> pa.DataType:
    for size in reversed(shape):
        kind = pa.list_(kind, size)
    return kind


def _arrow_type(dtype: np.dtype[Any], where: str) -> pa.DataType:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return _lists_of(_arrow_type(base, where), shape)
    if dtype.names is not None:
        return pa.struct([(name, _arrow_type(dtype[name], where)) for name in dtype.names])
    base = dtype
    if base.kind == "U":
        return pa.large_string()
    if base.kind == "S" or base.type is np.void:
        return pa.large_binary()
    if base == numpy_dtype("bfloat16"):
        return pa.float32()
    if base.kind in "Mm":
        unit, count = np.datetime_data(base)
        if unit not in ("s", "ms", "us", "ns") or count != 1:
            raise SchemaError(
                f"{where} has times in units of {count} {unit}, expected s, ms, us or ns. Convert "
                f'them: values.astype("{"datetime" if base.kind == "M" else "timedelta"}64[s]").'
            )
        return pa.timestamp(unit) if base.kind == "M" else pa.duration(unit)
    try:
        return pa.from_numpy_dtype(base.newbyteorder("="))
    except pa.ArrowException:
        raise SchemaError(
            f"{where} is {base}, which cannot be stored. Convert it; split complex numbers into "
            "two arrays of floats."
        ) from None


def _by_rows(
    content: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], *, path: str
) -> npt.NDArray[Any]:
    """Converts an array in Fortran order to rows, in memory."""
    if math.prod(shape) * dtype.itemsize > _FORTRAN_BYTES:
        raise SchemaError(
            f"{path} is stored by column (Fortran order), so its rows cannot be read in sequence. "
            "Save it with np.ascontiguousarray."
        )
    return np.ascontiguousarray(
        np.frombuffer(content, dtype, math.prod(shape)).reshape(shape, order="F")
    )


def _length(opened: OpenSource, path: str) -> int:
    return int(opened.filesystem.size(opened.full_path(path)) or 0)


_CONTENT = re.compile(
    r"(?i)(set_)?(x|y|images?|imgs?|labels?|masks?|data|inputs?|targets?|features?)"
)
"""What arrays are called whose names begin with their split."""


@config_class
class Numpy(ArrowSource):
    """Rows of NumPy arrays.

    Attributes:
        url: A ``.npy`` or ``.npz`` file, a folder of them (each a table with the same columns), a
            glob, or any fsspec URL.
        label: The feature to predict. Strings and bools become a ClassLabel; numbers are kept.
        name: The feature of the array in a ``.npy`` file. Arrays of an ``.npz`` have names.
        beside: Feature -> another ``.npy`` file with the same number of rows:
            ``{"label": "y_train.npy"}``. Only if ``url`` is a single ``.npy`` file.
        split_arrays: Whether the arrays of an ``.npz`` file are named after splits, as those of
            Keras' datasets are: ``x_train``, ``y_train``, ``x_test``, ``y_test``, or ``train_x`` …
            Then the features are ``x`` and ``y``, and a record's id is ``train/path#row``:
            ``splits=ss.Splits.by_folder()``.
        types: Overrides inferred types: ``{"x": "float32"}``, or a feature. An array of pixels can
            be an image: ``ss.Image(28, 28, 1)``.
    """

    url: str
    label: str | None = None
    name: str = "data"
    beside: Mapping[str, str] = dataclasses.field(default_factory=dict)
    types: Mapping[str, Any] | None = None
    split_arrays: bool = False

    _remedy = "Give all files the same columns."

    def __post_init__(self) -> None:
        """Checks types and names."""
        super().__post_init__()
        if self.split_arrays and self.beside:
            raise ValueError("split_arrays= is for .npz files, and beside= for .npy files")
        if self.name in self.beside:
            raise ValueError(f"beside= names {self.name!r}, which is the name of the array of url")

    @property
    def side_urls(self) -> tuple[str, ...]:
        """The files in ``beside``."""
        return tuple(self.beside.values())

    def settings(self) -> dict[str, object]:
        """The settings that determine the records, as plain JSON, for the fingerprint."""
        settings: dict[str, object] = {
            "beside": list(self.beside),
            "label": self.label,
            "name": self.name,
            "types": types_to_json(self.types),
        }
        return settings | ({"split_arrays": True} if self.split_arrays else {})

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects NumPy files, files with a glob's suffix, or a single file of any name."""
        return select_files(self.url, files, suffixes=SUFFIXES, what="a .npy or .npz file")

    @property
    def _format(self) -> ArrowFormat:
        def open_file(opened: OpenSource, path: str) -> Any:
            if opened.read(path, 0, 4).startswith(b"PK"):
                return _Npz(opened, path, self.types, split_arrays=self.split_arrays)
            if self.split_arrays:
                raise SchemaError(
                    f"{path} is not an .npz file, expected one with arrays such as x_train and "
                    "x_test. Leave out split_arrays=."
                )
            arrays = {self.name: NpyArray.open(opened, path)}
            for name, url in self.beside.items():
                arrays[name] = NpyArray.open(*opened.side(url))
            arrays = {n: a.declared(n, self.types, path=path) for n, a in arrays.items()}
            return _Npy(arrays, path=path)

        return ArrowFormat(name="NumPy", unit="part", open=open_file)


class _Npy:
    """Reads arrays of ``.npy`` files, row by row."""

    def __init__(self, arrays: Mapping[str, NpyArray], *, path: str) -> None:
        self._arrays = arrays
        lengths = {name: array.shape[0] for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SchemaError(
                f"{path}: the arrays have {lengths} rows, expected the same number in each. Do the "
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
        # Missing rows of a truncated file are reported with its last part.
        stops = [*starts[1:], self._num_rows]
        return [
            Unit(0 if start == 0 else first.offset + start * first.row_bytes, start, stop - start)
            for start, stop in zip(starts, stops, strict=True)
        ]

    def read(self, unit: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        part = self.units[unit]
        arrays = {name: self._arrays[name] for name in columns}
        end = part.first_row + (part.num_rows or 0)
        return _read_rows(arrays, part.first_row, end, schema=self.schema)

    def offset_of(self, row: int) -> int:
        first = next(iter(self._arrays.values()))
        return first.offset + row * first.row_bytes

    def lacking(self) -> tuple[set[str], set[str]]:
        return set(), set(_may_lack(self.schema))


class _Npz:
    """Reads the arrays of an ``.npz`` file, from the start, because they may be compressed."""

    def __init__(
        self,
        opened: OpenSource,
        path: str,
        types: Mapping[str, Any] | None,
        *,
        split_arrays: bool = False,
    ) -> None:
        try:
            source = open_for_arrow(opened, path)
            self._num_bytes = source.size()
            self._archive = zipfile.ZipFile(source)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            why = truncation(open_for_arrow(opened, path))
            raise ValueError(f"it {why or f'is not a zip archive ({error})'}") from None
        entries = [entry for entry in self._archive.namelist() if entry.endswith(".npy")]
        if not entries:
            raise ValueError("it has no arrays")
        names = [entry.removesuffix(".npy") for entry in entries]
        groups = _by_split(names, path) if split_arrays else {"": {name: name for name in names}}
        self._parts: dict[str, dict[str, NpyArray]] = {
            split: {
                name: self._open_array(f"{array}.npy", name, types, path=path)
                for name, array in arrays.items()
            }
            for split, arrays in groups.items()
        }
        schemas = {split: _schema_of(split, part, path) for split, part in self._parts.items()}
        (first, self.schema), *others = schemas.items()
        for split, schema in others:
            if schema != self.schema:
                raise SchemaError(
                    f"{path}: the arrays of {split!r} differ from those of {first!r} in dtype or "
                    f"shape ({_shown(schema)} and {_shown(self.schema)}). Save them alike."
                )

    def _open_array(
        self, entry: str, name: str, types: Mapping[str, Any] | None, *, path: str
    ) -> NpyArray:
        read_bytes = _Forward(functools.partial(self._member, entry)).read
        dtype, shape, fortran, offset = read_head(read_bytes(0, HEAD_BYTES), path)
        num_bytes = self._archive.getinfo(entry).file_size
        check_length(dtype, shape, num_bytes - offset)
        if fortran and len(shape) > 1:
            raise SchemaError(
                f"{path}: {entry} is stored by column (Fortran order). Save it with "
                "np.ascontiguousarray."
            )
        array = NpyArray(dtype, shape, offset, num_bytes, read_bytes)
        return array.declared(name, types, path=path)

    @property
    def units(self) -> Sequence[Unit]:
        units, row = [], 0
        for split, part in self._parts.items():
            num_rows = next(iter(part.values())).shape[0]
            units.append(Unit(0, row, num_rows, folder=split))
            row += num_rows
        return units

    def read(self, unit: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        part = list(self._parts.values())[unit]
        arrays = {name: part[name] for name in columns}
        return _read_rows(arrays, 0, next(iter(part.values())).shape[0], schema=self.schema)

    def offset_of(self, row: int) -> int:
        return offset_between(self.units, row, num_bytes=self._num_bytes)

    def lacking(self) -> tuple[set[str], set[str]]:
        return set(), set(_may_lack(self.schema))

    def _member(self, entry: str) -> Any:
        try:
            return self._archive.open(entry)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, KeyError) as error:
            # Damaged, encrypted, or compressed by an unsupported method.
            raise ValueError(f"{entry} cannot be unpacked ({error})") from None


class _Forward:
    """Reads a member of an archive forwards. Reading backwards starts over."""

    def __init__(self, open_member: Callable[[], Any]) -> None:
        self._open = open_member
        self._member: Any = None
        self._position = 0

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop), fewer if the member is damaged or ends."""
        if self._member is None or start < self._position:
            self._member, self._position = self._open(), 0
        _read_exactly(self._member, start - self._position)
        self._position = stop
        return _read_exactly(self._member, stop - start)


def array_names(opened: OpenSource, path: str) -> list[str]:
    """The names of the arrays of an ``.npz`` file; [] if it is not one."""
    try:
        with zipfile.ZipFile(open_for_arrow(opened, path)) as archive:
            entries = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return []
    return [entry.removesuffix(".npy") for entry in entries if entry.endswith(".npy")]


def split_names(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Split -> feature -> array, of names such as ``x_train``; {} if others are among them.

    >>> split_names(["x_test", "x_train"])
    {'train': {'x': 'x_train'}, 'test': {'x': 'x_test'}}
    >>> split_names(["val_images", "train_images"])
    {'train': {'images': 'train_images'}, 'val': {'images': 'val_images'}}
    >>> split_names(["x_train", "scale"])
    {}
    """
    splits: dict[str, dict[str, str]] = {}
    for array in names:
        (name, _, split), (first, _, others) = array.rpartition("_"), array.partition("_")
        if split not in USUAL_WORDS and _CONTENT.fullmatch(others):  # not train_loss, val_loss
            name, split = others, first
        if not name or split not in USUAL_WORDS:
            return {}
        splits.setdefault(split, {})[name] = array
    return {split: splits[split] for split in USUAL_WORDS if split in splits}


def _by_split(names: Sequence[str], path: str) -> dict[str, dict[str, str]]:
    groups = split_names(names)
    if not groups:
        raise SchemaError(
            f"{path}: split_arrays=True expects arrays named after splits, such as x_train and "
            f"x_test; it has {', '.join(map(repr, names))}."
        )
    every = dict.fromkeys(name for arrays in groups.values() for name in arrays)
    for split, arrays in groups.items():
        for name in every:
            if name not in arrays:
                raise SchemaError(f"{path} has no array {name!r} of {split!r}, expected one.")
    return {split: {name: arrays[name] for name in every} for split, arrays in groups.items()}


def _schema_of(split: str, part: Mapping[str, NpyArray], path: str) -> pa.Schema:
    lengths = {name: array.shape[0] for name, array in part.items()}
    if len(set(lengths.values())) > 1:
        hint = ""
        if not split and split_names(part):
            hint = (
                " If they are named after splits, set split_arrays=True, and "
                "splits=ss.Splits.by_folder() in the recipe."
            )
        raise SchemaError(
            f"{path}: its arrays have {lengths} rows, expected the same number in each. Save "
            f"the arrays of records separately.{hint}"
        )
    return pa.schema(
        [arrow_field(name, array.dtype, array.shape, path) for name, array in part.items()]
    )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _may_lack(schema: pa.Schema) -> Iterator[str]:
    """Columns of times: only they have a value that means missing."""
    for field in schema:
        if pa.types.is_timestamp(field.type) or pa.types.is_duration(field.type):
            yield field.name


def _read_rows(
    arrays: Mapping[str, NpyArray], start: int, stop: int, *, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rows [start, stop) of arrays in batches of bounded size, fewer if one of them ends."""
    row_bytes = sum(array.row_bytes for array in arrays.values())
    step = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes)))
    for first in range(start, stop, step):
        last = min(stop, first + step)
        batch = to_batch({n: array.rows(first, last) for n, array in arrays.items()}, schema)
        yield batch
        if len(batch) < last - first:
            return


def _read_exactly(member: io.BufferedIOBase, num_bytes: int) -> bytes:
    """Up to ``num_bytes`` bytes, fewer if the member is damaged or ends."""
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
