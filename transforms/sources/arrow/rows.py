"""Converts Arrow tables to the wire columns of features, with a reject for each invalid row.

The conversion is vectorized. A row with a value that does not fit its feature becomes a reject
that names the column, the found and the expected value; other rows keep their order. Features match
columns by name, ``a.b`` the field ``b`` of a struct ``a``. Other columns are ignored.

A feature with a shape accepts nested lists, one level for each dimension, or a flat list
(row-major) if at most one dimension varies. A row with a null inside a list is rejected, because an
Example cannot store it. An encoded image or sound accepts the bytes of a file whose header can be
read, or structs with these bytes, as in Hugging Face datasets. A raw image accepts an array of its
pixels, flat if its size is fixed, or their bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....schemas.blocks import RawBatch
from ....schemas.errors import Reject, SchemaError
from ....schemas.features import (
    Audio,
    ClassLabel,
    Feature,
    Features,
    Image,
    Scalar,
    Tensor,
    TensorForm,
    frames_of,
    is_encoded,
    tensor_form,
)
from ....schemas.wire import ITEM_BYTES, WireColumn
from ...examples.dtypes import packed_bytes, widened
from ...examples.encode import offsets_of
from ...media.audio_header import UnreadableSoundError
from ...media.audio_header import read_header as read_sound
from ...media.image_header import ImageHeader, UnreadableImageError, rotated_frame
from ...media.tiff import readable_image
from ...rejects import (
    MISSING_ITEM,
    MISSING_VALUE,
    RAGGED,
    UNKNOWN_CLASS,
    WRONG_LENGTH,
    reject_at,
    with_bytes,
    with_row,
)
from ...runs.files import wire_schema
from .types import Cells, Leaf, extract, leaves_of, nulls
from .values import (
    Values,
    convert,
    expected,
    item_of,
    kind_of,
    mapped_classes,
    takes,
)

_SHOWN_CHARS = 60
_NO_CLASSES: Mapping[str, tuple[str, ...]] = {}
_INTEGER = re.compile(r"is '?-?[0-9]+'?")
_NO_NAME = "\0"
"""No class has it."""

_Bools = npt.NDArray[np.bool_]
_Ints = npt.NDArray[np.int64]
Payload = Callable[[int], bytes]
"""The raw bytes of a row of a batch."""

BYTES = "bytes"
"""The struct field with the content of a file."""


class MediaCells:
    """The cells of one column of a batch, as the bytes of media files with a readable header."""

    def __init__(self, name: str, feature: Image | Audio, values: pa.Array) -> None:
        """Reads the headers; each of ``values`` is the content of a file, as large_binary."""
        self._name, self._feature = name, feature
        self._values = values.cast(pa.large_binary())
        self._headers: list[ImageHeader] = []
        self._why: dict[int, tuple[str, str]] = {}
        self.bad = nulls(values)
        for row in np.flatnonzero(self.bad).tolist():
            self._why[row] = (MISSING_VALUE, "has no value, expected the bytes of a file")
        converted: dict[int, bytes] = {}
        for row in np.flatnonzero(~self.bad).tolist():
            content = self._values[row].as_buffer().to_pybytes()
            try:
                readable = self._read(content)
            except (UnreadableImageError, UnreadableSoundError) as error:
                self._why[row] = (error.reason, f"holds {len(content):,} bytes: {error}")
                self.bad[row] = True
            else:
                if readable is not content:
                    converted[row] = readable
        self._values = with_converted(self._values, converted)

    def _read(self, content: bytes) -> bytes:
        """Notes an image's header; returns the bytes to store."""
        if isinstance(self._feature, Audio):
            read_sound(content)
            return content
        readable, header = readable_image(content)
        self._headers.append(header)
        return readable

    def describe(self, row: int) -> tuple[str, str]:
        """The reason and the message for a bad row."""
        reason, message = self._why[row]
        return reason, f"column {self._name!r} {message}. Fix or remove it"

    def drop(self, rows: _Bools) -> None:
        """Drops rows: all that are bad in this column or another."""
        kept = ~rows
        if self._headers:
            # Bad rows of this column have no header.
            with_header = kept[~self.bad]
            self._headers = [
                header for header, keep in zip(self._headers, with_header, strict=True) if keep
            ]
        self._values = self._values.filter(pa.array(kept))
        self.bad = self.bad[kept]

    def wire(self) -> Iterator[tuple[str, pa.Array]]:
        """The wire columns, by name, after all bad rows are dropped."""
        yield self._name, self._values
        if isinstance(self._feature, Image):
            for part in ("height", "width", "orientation"):
                sizes = [getattr(header, part) for header in self._headers]
                yield f"{self._name}/{part}", pa.array(sizes, pa.int64())


def with_converted(contents: pa.Array, converted: Mapping[int, bytes]) -> pa.Array:
    """The contents of files, large_binary[n], some of them converted to another format."""
    if not converted:
        return contents
    rows = enumerate(contents.to_pylist())
    return pa.array([converted.get(row, content) for row, content in rows], pa.large_binary())


class PixelCells:
    """The cells of one column of a batch, as the bytes of pixels, row-major."""

    def __init__(self, name: str, feature: Image, values: pa.Array) -> None:
        """Checks the number of bytes of each of ``values``, for an image of fixed size."""
        self._name, self._feature = name, feature
        self._num_bytes = (feature.height or 0) * (feature.width or 0) * feature.pixel_bytes
        self._sizes = pc.binary_length(values).fill_null(-1).to_numpy(zero_copy_only=False)
        self._values = values.cast(pa.large_binary())
        self.bad = np.asarray(self._sizes != self._num_bytes)

    def describe(self, row: int) -> tuple[str, str]:
        """The reason and the message for a bad row."""
        wanted = f"{_shown_feature(self._feature)} of {self._num_bytes:,} bytes"
        if self._sizes[row] < 0:
            reason, found = MISSING_VALUE, "has no value"
        else:
            reason, found = WRONG_LENGTH, f"has {self._sizes[row]:,} bytes"
        fix = "Fix it, or declare another type"
        return reason, f"column {self._name!r} {found}, expected {wanted}. {fix}"

    def drop(self, rows: _Bools) -> None:
        """Drops rows: all that are bad in this column or another."""
        self._values = self._values.filter(pa.array(~rows))

    def wire(self) -> Iterator[tuple[str, pa.Array]]:
        """The wire column, by name, after all bad rows are dropped."""
        yield self._name, self._values


class RowReader:
    """Converts batches of one Arrow schema to batches of wire columns."""

    def __init__(
        self,
        schema: pa.Schema,
        features: Features,
        *,
        path: str,
        unit: str = "row",
        classes: Mapping[str, tuple[str, ...]] = _NO_CLASSES,
        leaves: Mapping[str, Leaf] | None = None,
        fix: str = "Fix the value, or declare another type",
    ) -> None:
        """Finds the column of each feature, and checks its type.

        Args:
            schema: The schema of the batches.
            features: The features of the rows.
            path: Relative path of the file, or name of the table: ids are ``path#position``.
            unit: The unit of positions, for messages: ``row`` or ``byte``.
            classes: The names that the file itself gives to the numbers of classes. If a feature
                has these and others, numbers are read as the file's names.
            leaves: The leaves of the columns, if their names do not follow from the schema.
            fix: What to do about a value that does not fit, for messages.

        Raises:
            SchemaError: naming the feature whose column is missing or has an incompatible type.
        """
        leaves = leaves_of(schema, path=path) if leaves is None else leaves
        self._path, self._unit = path, unit
        self._wire = wire_schema(features)
        self._columns = [
            _Column(
                name,
                feature,
                _leaf_of(name, feature, leaves, path=path),
                fix,
                _names_to_read(feature, classes.get(name, ())),
            )
            for name, feature in features.items()
        ]
        alike: dict[object, list[int]] = {}
        for index, column in enumerate(self._columns):
            key = (column.feature, column.leaf.type) if column.is_number(schema) else index
            alike.setdefault(key, []).append(index)
        self._alike = list(alike.values())
        """Indices of the columns of numbers of one type and feature, and of each other column."""

    def read(
        self, batch: pa.RecordBatch, positions: npt.ArrayLike, *, payload: Payload | None = None
    ) -> RawBatch:
        """Converts a batch.

        Args:
            batch: A batch of the schema. Several copies of it are held in memory.
            positions: int64[n], the position of each row, a part of its id.
            payload: Returns the source bytes of a rejected row; None to keep its values instead.
        """
        at = np.asarray(positions, np.int64)
        found = {group[0]: self._cells_of(group, batch) for group in self._alike}
        rejects: list[Reject] = []
        bad = np.zeros(batch.num_rows, bool)
        for each in found.values():
            bad |= each.bad
        if bad.any():
            cells: list[_Found | MediaCells | PixelCells] = []
            for index, column in enumerate(self._columns):
                alone = found.get(index)
                if alone is None or isinstance(alone, _FoundAlike):
                    alone = column.cells_of(batch)
                cells.append(alone)
            for row in np.flatnonzero(bad).tolist():
                index = next(index for index, column in enumerate(cells) if column.bad[row])
                reason, message = cells[index].describe(row)
                name = self._columns[index].name
                if payload is not None and reason in (MISSING_ITEM, RAGGED) and "." not in name:
                    message += f". types={{{name!r}: ss.Text()}} reads lists as JSON text, for "
                    message += "json.loads in a step ss.records.map_python"
                is_file = isinstance(cells[index], MediaCells) and reason != MISSING_VALUE
                stage = "read" if is_file else "validate"
                reject = self._reject(int(at[row]), stage, reason, message)
                rejects.append(
                    with_row(reject, batch, row)
                    if payload is None
                    else with_bytes(reject, payload(row))
                )
            at = at[~bad]
            for each in cells:
                each.drop(bad)
            found = dict(enumerate(cells))
        arrays = {name: array for each in found.values() for name, array in each.wire()}
        prefix = f"{self._path}#"
        return RawBatch(
            ids=[prefix + position for position in map(str, at.tolist())],
            columns=pa.RecordBatch.from_arrays(
                [arrays[name] for name in self._wire.names], schema=self._wire
            ),
            rejects=tuple(rejects),
        )

    def _cells_of(
        self, group: list[int], batch: pa.RecordBatch
    ) -> _FoundAlike | _Found | MediaCells | PixelCells:
        columns = [self._columns[index] for index in group]
        return columns[0].cells_of(batch) if len(group) == 1 else _FoundAlike(columns, batch)

    def _reject(self, position: int, stage: str, reason: str, message: str) -> Reject:
        return reject_at(
            self._path,
            position,
            stage=stage,
            reason=reason,
            message=f"{self._path} {self._unit} {position}: {message}, or raise max_rejects to "
            "quarantine such rows.",
        )


def _leaf_of(name: str, feature: Feature, leaves: Mapping[str, Leaf], *, path: str) -> Leaf:
    leaf = leaves.get(name)
    if leaf is None and is_encoded(feature):
        leaf = leaves.get(f"{name}.{BYTES}")
    if leaf is None:
        raise SchemaError(
            f"{path} has no column {name!r}, expected one. Its columns are "
            f"{', '.join(map(repr, leaves))}. Fix the file, or features= in the recipe."
        )
    form = tensor_form(feature)
    if isinstance(feature, Image) and not is_encoded(feature):
        pixels = _pixels(feature, leaf)
        form = pixels.form
        fits = kind_of(leaf.type) in takes(pixels) and _fits(leaf, form)
        fits |= feature.fixed_size and _holds_pixels(leaf)
    elif is_encoded(feature):
        fits = kind_of(leaf.type) == "binary" and not leaf.shape
    else:
        fits = (
            form is not None
            # A sound of any rate has a second column, which has no leaf.
            and feature.wire_columns(name) == form.wire_columns(name)
            and kind_of(leaf.type) in takes(feature)
            and _fits(leaf, form)
        )
    if not fits:
        lists = "".join(f"[{'' if dim is None else dim}]" for dim in leaf.shape)
        raise SchemaError(
            f"{path}: column {name!r} is {leaf.type}{lists}, which {_shown_feature(feature)} "
            f"cannot store. {_remedy(feature, leaf, form)}"
        )
    return leaf


def _remedy(feature: Feature, leaf: Leaf, form: TensorForm | None) -> str:
    if isinstance(feature, Image) and not is_encoded(feature):
        return (
            "It takes an array of pixels from 0 to 255 (of uint16: 65,535), or their bytes if "
            "height and width are given, as in ss.Image(28, 28, 1). The bytes of image files are "
            'ss.Image(storage="encoded").'
        )
    if form is not None and "int" in form.dtype and kind_of(leaf.type) in ("time", "timestamp"):
        return (
            'Declare the unit of its values, as in ss.Scalar("int64", unit="ms") or '
            'ss.Tensor("int64", (3,), unit="ms").'
        )
    return "Declare another type for it, or leave it out."


def _pixels(feature: Image, leaf: Leaf) -> Tensor:
    """A raw image as an array; one of a single channel may lack the last dimension."""
    sides = (feature.height, feature.width)
    is_flat = len(leaf.shape) == len(sides) and feature.channels == 1
    return Tensor(feature.dtype, sides if is_flat else (*sides, feature.channels))


def _holds_pixels(leaf: Leaf) -> bool:
    return kind_of(leaf.type) == "binary" and not leaf.shape


def _fits(leaf: Leaf, form: TensorForm) -> bool:
    if len(leaf.shape) == len(form.shape):
        pairs = zip(leaf.shape, form.shape, strict=True)
        return all(found == wanted or None in (found, wanted) for found, wanted in pairs)
    return len(leaf.shape) == 1 and len(form.shape) > 1 and form.shape.count(None) <= 1


def _shown_feature(feature: Feature) -> str:
    kind = type(feature).__name__
    if isinstance(feature, Image) and not is_encoded(feature):
        sides = (feature.height or "height", feature.width or "width", feature.channels)
        return f"{kind} of {feature.dtype}[{', '.join(map(str, sides))}]"
    form = tensor_form(feature)
    if form is None or isinstance(feature, ClassLabel):
        return kind
    return f"{kind} of {form.dtype}" + (f" {list(form.shape)}" if form.shape else "")


def _names_to_read(feature: Feature, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a file's classes, if a feature has these and others: else ()."""
    item = item_of(feature)
    if not isinstance(item, ClassLabel) or item.values is not None:
        return ()
    return names if set(names) < set(item.names) else ()


def _named(numbers: pa.Array, names: tuple[str, ...]) -> pa.Array:
    """The names of numbers; a text that is no name for a number without one."""
    plain = numbers.cast(pa.int64(), safe=False)
    known = pc.and_(pc.greater_equal(plain, 0), pc.less(plain, len(names)))
    texts = pa.array([*names, _NO_NAME], pa.large_string())
    return texts.take(pc.if_else(known, plain, len(names)))


@dataclasses.dataclass(frozen=True)
class _Column:
    """A feature and the leaf that it is read from."""

    name: str
    feature: Feature
    leaf: Leaf
    fix: str
    names: tuple[str, ...] = ()
    """The names of its numbers, if they are not the feature's."""

    def is_number(self, schema: pa.Schema) -> bool:
        """Whether each row has one number or bool, which is stored as one."""
        type_ = self.leaf.type
        is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
        return (
            (is_number or pa.types.is_boolean(type_))
            and isinstance(self.feature, Scalar)
            and schema.field(self.leaf.column).type == type_
        )

    def cells_of(self, batch: pa.RecordBatch) -> _Found | MediaCells | PixelCells:
        form = tensor_form(self.feature)
        array = batch.column(self.leaf.column)
        cells = extract(array, self.leaf)
        if self.names and kind_of(cells.values.type) == "int":
            cells = dataclasses.replace(cells, values=_named(cells.values, self.names))
        if form is not None:
            is_clip = frames_of(self.feature) is not None
            return (_FoundClips if is_clip else _Found)(self, form, array, cells)
        if is_encoded(self.feature):
            assert isinstance(self.feature, Image | Audio)
            return MediaCells(self.name, self.feature, cells.values)
        assert isinstance(self.feature, Image)
        if _holds_pixels(self.leaf):
            return PixelCells(self.name, self.feature, cells.values)
        return _Found(self, _pixels(self.feature, self.leaf).form, array, cells)


class _Found:
    """The cells of one column of a batch, checked against its feature."""

    def __init__(self, column: _Column, form: TensorForm, array: pa.Array, cells: Cells) -> None:
        self._column, self._form = column, form
        self._array, self._cells = array, cells
        feature = column.feature
        if isinstance(feature, Image):
            feature = Tensor(form.dtype, form.shape)
        self._values: Values = convert(cells.values, feature)
        self._missing = cells.missing()
        self._counts = _num_values(cells)
        self.bad = self._missing & (not form.optional)
        self._why: list[tuple[_Bools, str, str]] = [
            (self.bad, MISSING_VALUE, "Fill it, or give the feature optional=True")
        ]
        if cells.levels:
            self._check_items()
        for bad, reason in self._values.misfits:
            self._reject_rows(self._of_values(bad), reason, column.fix)
        self._dims = self._shape() if form.shape else []

    def describe(self, row: int) -> tuple[str, str]:
        """The reason and the message for a bad row."""
        reason, fix = next((reason, fix) for mask, reason, fix in self._why if mask[row])
        feature, found = self._column.feature, "has no value"
        wanted = _shown_feature(feature) if self._form.shape else expected(feature)
        if not self._missing[row]:
            found, wanted = f"is {_shown(self._array, row)}", f"{wanted} ({reason})"
        if reason == UNKNOWN_CLASS:
            fix = "Fix the value, or add it to the names of the class"
            if isinstance(feature, ClassLabel) and _INTEGER.fullmatch(found):
                fix += f", or map integers to names: {mapped_classes(feature)}"
        return reason, f"column {self._column.name!r} {found}, expected {wanted}. {fix}"

    def drop(self, rows: _Bools) -> None:
        """Drops rows: all that are bad in this column or another."""
        kept = ~rows
        inner = kept[self._cells.rows_of_values()]
        values = self._values.values
        self._values = Values(
            values.filter(pa.array(inner)) if isinstance(values, pa.Array) else values[inner]
        )
        self._counts = self._counts[kept]
        self._missing = self._missing[kept]
        self._dims = [dim[kept] for dim in self._dims]

    def wire(self) -> Iterator[tuple[str, pa.Array]]:
        """The wire columns, by name, after all bad rows are dropped."""
        first, *others = self._form.wire_columns(self._column.name)
        yield first.name, self._value_column(first)
        if isinstance(self._column.feature, Image):
            for side, dim in zip(("height", "width"), self._dims, strict=False):
                yield f"{self._column.name}/{side}", pa.array(dim)
            return
        for column in others:
            dims = np.stack(self._dims, axis=1).reshape(-1)
            yield column.name, pa.FixedSizeListArray.from_arrays(pa.array(dims), column.length)

    def _reject_rows(self, mask: _Bools, reason: str, fix: str) -> None:
        self._why.append((mask, reason, fix))
        self.bad = self.bad | mask

    def _of_values(self, mask: _Bools) -> _Bools:
        """The rows that contain these values."""
        if not self._cells.levels:
            return mask
        rows = np.zeros(len(self._missing), bool)
        if mask.any():
            rows[self._cells.rows_of_values()[mask]] = True
        return rows

    def _check_items(self) -> None:
        """Finds nulls inside lists."""
        levels = self._cells.levels
        lacks = self._of_values(nulls(self._cells.values))
        for index in range(1, len(levels)):
            if not levels[index].valid.all():
                rows = Cells(levels[:index], levels[index].lengths).rows_of_values()
                lacks[rows[~levels[index].valid]] = True
        self._reject_rows(lacks, MISSING_ITEM, "Fill it, or leave the column out")

    def _shape(self) -> list[_Ints]:
        """The length of each dimension, int64[n] each. Records rows of the wrong shape."""
        levels, shape = self._cells.levels, self._form.shape
        if len(levels) < len(shape):
            return self._flat_shape()
        dims = [levels[0].lengths]
        for index in range(1, len(levels)):
            lengths = levels[index].lengths
            rows = Cells(levels[:index], lengths).rows_of_values()
            dim = np.full(len(self._missing), shape[index] or 0, np.int64)
            # Backwards, because the first list of a row must win.
            dim[rows[::-1]] = lengths[::-1]
            ragged = np.zeros(len(dim), bool)
            ragged[rows[lengths != dim[rows]]] = True
            self._reject_rows(ragged, RAGGED, "Make lists of one length in a record, or pad them")
            dims.append(dim)
        for dim, wanted in zip(dims, shape, strict=True):
            if wanted is not None:
                self._wrong_length((dim != wanted) & ~self._missing)
        return dims

    def _flat_shape(self) -> list[_Ints]:
        """The same for a flat list of all values."""
        lengths, shape = self._cells.levels[0].lengths, self._form.shape
        known = math.prod(dim for dim in shape if dim is not None)
        varies = None in shape
        wrong = lengths % known != 0 if varies else lengths != known
        self._wrong_length(wrong & ~self._missing)
        return [lengths // known if dim is None else np.full_like(lengths, dim) for dim in shape]

    def _wrong_length(self, mask: _Bools) -> None:
        self._reject_rows(mask, WRONG_LENGTH, "Fix the list, or declare the dimension as None")

    def _value_column(self, column: WireColumn) -> pa.Array:
        values, missing = self._values.values, self._missing
        mask = missing if missing.any() else None
        counts = self._counts
        if not self._cells.levels and mask is not None and not isinstance(values, pa.Array):
            # The value behind a null is undefined, and would differ from run to run.
            values = np.where(mask, np.zeros((), values.dtype), values)
        if column.packed is not None:
            return _packed(packed_bytes(values), counts * ITEM_BYTES[column.packed], mask)
        if not self._cells.levels:
            is_text = isinstance(values, pa.Array)
            return values if is_text else pa.array(widened(values), mask=mask)
        items = values if isinstance(values, pa.Array) else pa.array(widened(values))
        if column.length is None:
            validity = None if mask is None else pa.array(mask)
            return pa.LargeListArray.from_arrays(pa.array(offsets_of(counts)), items, mask=validity)
        if column.length == 1:
            return items
        return pa.FixedSizeListArray.from_arrays(items, column.length)


class _FoundAlike:
    """The cells of columns of one type and feature, as one column of all their values.

    A call of NumPy or Arrow takes about a microsecond, so thousands of columns of a few rows each
    would cost more than their values.
    """

    def __init__(self, columns: Sequence[_Column], batch: pa.RecordBatch) -> None:
        self._columns, self._num_rows = columns, batch.num_rows
        first = columns[0]
        array = pa.concat_arrays([batch.column(column.leaf.column) for column in columns])
        form = tensor_form(first.feature)
        assert form is not None
        self._found = _Found(first, form, array, Cells((), array))
        self.bad = self._found.bad.reshape(len(columns), batch.num_rows).any(axis=0)

    def wire(self) -> Iterator[tuple[str, pa.Array]]:
        """The wire columns, by name."""
        ((_, values),) = self._found.wire()
        for index, column in enumerate(self._columns):
            yield column.name, values.slice(index * self._num_rows, self._num_rows)


def _num_values(cells: Cells) -> _Ints:
    """The number of values of each row, over all lists."""
    counts = np.ones(len(cells.values), np.int64)
    for level in reversed(cells.levels):
        ends, lists = offsets_of(counts), offsets_of(level.lengths)
        counts = ends[lists[1:]] - ends[lists[:-1]]
    return counts


def _shown(array: pa.Array, row: int) -> str:
    """A cell for a message, shortened."""
    text = "what cannot be shown"
    cell = array[row : row + 1]
    for type_ in (None, pa.large_string(), pa.large_binary()):
        # Text may not be UTF-8, and a time may be out of range for Python. No cell is cast to its
        # own type: Arrow 25 aborts the process for a slice of empty lists.
        with contextlib.suppress(ValueError, OverflowError, pa.ArrowException):
            text = repr((cell if type_ is None else cell.cast(type_))[0].as_py())
            break
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _packed(content: bytes, sizes: _Ints, mask: _Bools | None) -> pa.Array:
    """A byte string of the given size for each row, null where masked."""
    validity = None if mask is None else pa.array(~mask).buffers()[1]
    buffers = [validity, pa.py_buffer(offsets_of(sizes)), pa.py_buffer(content)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), buffers)


class _FoundClips(_Found):
    """The frames of clips: each has a readable header and no orientation. TIFFs become PNGs."""

    def __init__(self, column: _Column, form: TensorForm, array: pa.Array, cells: Cells) -> None:
        super().__init__(column, form, array, cells)
        self._unreadable: dict[int, tuple[str, str]] = {}
        rows = cells.rows_of_values()
        converted: dict[int, bytes] = {}
        for index, row in enumerate(rows.tolist()):
            if self.bad[row] or row in self._unreadable:
                continue
            content = self._values.values[index].as_buffer().to_pybytes()
            try:
                readable, header = readable_image(content)
                if header.orientation != 1:
                    raise rotated_frame(header)
            except UnreadableImageError as error:
                first = int(np.searchsorted(rows, row))
                message = f"frame {index - first} of {np.count_nonzero(rows == row):,}: {error}"
                self._unreadable[row] = error.reason, message
                continue
            if readable is not content:
                converted[index] = readable
        self.bad = self.bad.copy()
        self.bad[[*self._unreadable]] = True
        self._values = Values(with_converted(self._values.values, converted))

    def describe(self, row: int) -> tuple[str, str]:
        """The reason and the message for a bad row."""
        if row not in self._unreadable:
            return super().describe(row)
        reason, message = self._unreadable[row]
        return reason, f"column {self._column.name!r}: {message}. Fix or remove it"
