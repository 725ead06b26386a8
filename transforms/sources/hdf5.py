"""The source of HDF5 files: datasets whose first axis is the record, read by h5py in slices.

A slice is whole chunks of the datasets if these are not too large: each is decompressed once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.config import config_class
from ...schemas.errors import DataError, RecipeError, SchemaError
from ...schemas.features import Feature, call, is_encoded
from ...schemas.limits import DEFAULT_LIMITS, FREE_BYTES, Limits
from ...schemas.recipe import Source
from ..storage.decompress import grows_beyond
from .extracted import (
    BATCH_BYTES,
    ExtractedTable,
    extract_batches,
    import_extra,
    local_file,
    numbered_rows,
    plain_schema,
)
from .numpy import arrow_field, split_names, to_batch
from .table_files import check_types

SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")
"""Suffixes of HDF5 files."""
SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""The first bytes of an HDF5 file."""

_NAME = "hdf5"
_MAX_SLICE_BYTES = 64 << 20
_MAX_SLICE_ROWS = 1 << 16
_VARYING_ROWS = 1024
"""Rows of a slice if values vary in length: their size is unknown before they are read."""
_MAX_READINGS = 20


@config_class
class Hdf5:
    """Rows of datasets of an HDF5 file (``pip install "snapshard[hdf5]"``).

    The first axis of the datasets is the record; all have the same length. Each build reads them in
    slices, in the process that starts it, and copies the rows to the workspace. A record's id is
    ``hdf5#<row>``.

    Attributes:
        url: An HDF5 file: a path or any fsspec URL.
        datasets: Feature -> path of its dataset in the file: ``{"image": "x_train", "label":
            "y_train"}``. None for all datasets, if they are in one group and have one length.
        label: The feature to predict. Strings and bools become a ClassLabel; numbers are kept.
        types: Overrides inferred types: ``{"label": "int32"}``, or a feature such as
            ``ss.Image(28, 28, 1)`` for an array of pixels.
    """

    url: str
    datasets: Mapping[str, str] | None = None
    label: str | None = None
    types: Mapping[str, Any] | None = None

    media = False

    def __post_init__(self) -> None:
        """Checks the types and the datasets."""
        check_types(self.types)
        if self.datasets is not None and not self.datasets:
            raise ValueError('datasets={} names none, expected for example {"image": "x_train"}')

    def readings(
        self, folder: str, *, base: str, limits: Limits = DEFAULT_LIMITS
    ) -> tuple[Hdf5, ...]:
        """This source with each set of datasets that may be the records.

        Args:
            folder: As for :meth:`extract`.
            base: The recipe's folder.
            limits: Limits on what the file may request.

        Raises:
            SnapshardError: as :meth:`extract` does.
        """
        with self._opened(folder, base, limits) as (file, shown):
            tables = _tables(file, shown)
        if len(tables) == 1 and self._is_plain(tables[0]):
            return (self,)
        return tuple(dataclasses.replace(self, datasets=table) for table in tables)

    def say_readings(self, readings: Sequence[Hdf5]) -> str:
        """What there is, in the words of a refusal."""
        return (
            f"{len(readings)} sets of datasets that may be the records: of other groups, of other "
            "splits or of other length."
        )

    def extract(self, folder: str, *, base: str, limits: Limits = DEFAULT_LIMITS) -> Source:
        """Copies the rows of the datasets to files in the folder.

        Raises:
            RecipeError: if the file or a dataset does not exist, or h5py is not installed.
            DataError: if several sets of datasets may be meant, their lengths differ, they have no
                rows, or the file is damaged or would fill the disk.
            SchemaError: if the values of a dataset cannot be stored.
            SourceChangedError: if the file changes while it is read.
        """
        with self._opened(folder, base, limits) as (file, shown):
            columns = self._columns(file, shown)
            num_rows = _check_lengths({c.name: c.num_rows for c in columns}, shown)
            held = sum(column.row_bytes for column in columns) * num_rows
            if held > max(FREE_BYTES, limits.max_expansion * file.id.get_filesize()):
                raise DataError(f"Hdf5: {shown} {grows_beyond(limits.max_expansion)}.")
            schema = plain_schema(pa.schema([column.field for column in columns]), path=shown)
            rows = numbered_rows(_slices(columns, num_rows, schema))
            files = extract_batches(rows, schema, folder)
        return ExtractedTable(
            folder,
            files=files,
            name=_NAME,
            of="Hdf5",
            columns=tuple(column.name for column in columns),
            label=self.label,
            types=self.types,
        )

    @contextlib.contextmanager
    def _opened(self, folder: str, base: str, limits: Limits) -> Iterator[tuple[Any, str]]:
        """The file, and its name for messages."""
        h5py = import_extra("h5py", of="ss.Hdf5", extra="hdf5")
        near = folder.rpartition("/")[0] or "."
        with local_file(self.url, of="Hdf5", base=base, limits=limits, near=near) as (path, shown):
            try:
                with h5py.File(path, "r", locking="best-effort") as file:
                    yield file, shown
            except (OSError, RuntimeError, KeyError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                why = " ".join(str(error).split()) or type(error).__name__
                raise DataError(
                    f"Hdf5: {shown} cannot be read ({why}). If it is intact, it may need a filter "
                    "that is not installed, such as those of hdf5plugin."
                ) from None

    def _is_plain(self, table: Mapping[str, str]) -> bool:
        """Whether the datasets are named as their features are."""
        return all(path.rpartition("/")[2] == name for name, path in table.items())

    def _columns(self, file: Any, shown: str) -> list[_Column]:
        chosen = self.datasets
        if chosen is None:
            tables = _tables(file, shown)
            if len(tables) > 1:
                readings = [dataclasses.replace(self, datasets=table) for table in tables]
                lines = [call(source, "ss.Hdf5") for source in readings[:_MAX_READINGS]]
                raise DataError(
                    f"Hdf5: {shown} holds {self.say_readings(readings)} Name one:"
                    + "".join(f"\n  source={line}" for line in lines)
                )
            (chosen,) = tables
        h5py = import_extra("h5py", of="ss.Hdf5", extra="hdf5")
        columns = []
        for name, path in chosen.items():
            dataset = file.get(path)
            if not isinstance(dataset, h5py.Dataset):
                found = ", ".join(map(repr, _paths(file))) or "none"
                raise RecipeError(
                    f"Hdf5: datasets= names {path!r}, which is not a dataset of {shown}. Its "
                    f"datasets are {found}."
                )
            is_elsewhere = dataset.file.filename != file.filename or dataset.external
            if is_elsewhere or dataset.is_virtual:
                raise SchemaError(
                    f"Hdf5: {shown}: the values of {path!r} are in another file. Copy them into "
                    "this one: h5repack, or file[…] = dataset[:] of h5py."
                )
            columns.append(_Column(h5py, dataset, name, (self.types or {}).get(name), shown))
        return columns


def _paths(file: Any) -> dict[str, Any]:
    """The datasets with a first axis, by path. Links are not followed.

    Raises:
        DataError: if only pandas can read them.
    """
    found: dict[str, Any] = {}

    def visit(path: str, item: Any) -> None:
        if getattr(item, "shape", None):
            found[path] = item
        elif "pandas_type" in item.attrs:
            raise DataError(
                f"Hdf5: {path!r} was written by pandas' to_hdf, which only pandas reads. Convert "
                'it: pd.read_hdf(…).to_parquet("table.parquet").'
            )

    file.visititems(visit)
    return found


def _tables(file: Any, shown: str) -> list[dict[str, str]]:
    """The sets of datasets that may be records: feature -> path.

    Those of a group belong together if they have one length, and their names do not say splits
    (``x_train``, ``x_test``).

    Raises:
        DataError: if there are none.
    """
    datasets = _paths(file)
    if not datasets:
        raise DataError(f"Hdf5: {shown} has no datasets with a first axis.")
    groups: dict[str, list[str]] = {}
    for path in datasets:
        group, _, name = path.rpartition("/")
        groups.setdefault(group, []).append(name)
    tables: list[dict[str, str]] = []
    for group, names in groups.items():
        prefix = group and f"{group}/"
        splits = split_names(names)
        sets = list(splits.values()) if len(splits) > 1 else [{name: name for name in names}]
        for features in sets:
            by_length: dict[int, dict[str, str]] = {}
            for feature, name in features.items():
                path = prefix + name
                by_length.setdefault(datasets[path].shape[0], {})[feature] = path
            tables += by_length.values()
    lengths = {dataset.shape[0] for dataset in datasets.values()}
    if len(tables) == len(groups) > 1 and len(lengths) == 1:
        tables.insert(0, {path.replace("/", "_"): path for path in datasets})
    return tables


def _check_lengths(lengths: Mapping[str, int], shown: str) -> int:
    """The number of rows of all datasets.

    Raises:
        DataError: if they differ, or there are none.
    """
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name!r} {length:,}" for name, length in lengths.items())
        raise DataError(
            f"Hdf5: {shown}: the datasets differ in length ({found} rows), expected the same "
            "first dimension. Name those of the same records in datasets=."
        )
    num_rows = next(iter(lengths.values()))
    if not num_rows:
        raise DataError(f"Hdf5: {shown}: the datasets have no rows.")
    return num_rows


class _Column:
    """A dataset as a column."""

    def __init__(self, h5py: Any, dataset: Any, name: str, declared: Any, shown: str) -> None:
        self.name = name
        self._dataset = dataset
        where = f"{shown}: {dataset.name!r}"
        if not dataset.shape:
            raise SchemaError(f"Hdf5: {where} is a single value, expected a first axis of records.")
        self.num_rows: int = dataset.shape[0]
        num_values = math.prod(dataset.shape[1:])
        self.row_bytes = max(1, dataset.dtype.itemsize * num_values)
        self.chunk_rows: int = (dataset.chunks or (1,))[0]
        self._value_type: pa.DataType | None = None
        of = h5py.check_vlen_dtype(dataset.dtype)
        if h5py.check_string_dtype(dataset.dtype) is not None:
            self._value_type = pa.large_binary()
        elif of is not None:
            is_bytes = declared == "string" or (
                isinstance(declared, Feature) and is_encoded(declared)
            )
            is_bytes &= np.dtype(of).itemsize == 1
            inner = pa.large_binary() if is_bytes else pa.list_(pa.from_numpy_dtype(of))
            self._value_type = inner
        elif dataset.dtype.hasobject:
            raise SchemaError(
                f"Hdf5: {where} is {dataset.dtype}, which cannot be stored. Leave it out: name the "
                "others in datasets=."
            )
        self.varies = dataset.dtype.hasobject
        if self._value_type is None:
            self.field = arrow_field(name, dataset.dtype, dataset.shape, shown)
        else:
            kind = self._value_type
            for size in reversed(dataset.shape[1:]):
                kind = pa.list_(kind, size)
            self.field = pa.field(name, kind)

    def rows(self, start: int, stop: int, schema: pa.Schema) -> pa.Array:
        """Rows [start, stop)."""
        values: npt.NDArray[Any] = self._dataset[start:stop]
        if self._value_type is None:
            return to_batch({self.name: values}, schema).column(0)
        items = values.reshape(-1).tolist()
        if pa.types.is_large_binary(self._value_type):
            items = [bytes(item) for item in items]
        array = pa.array(items, self._value_type)
        for size in reversed(values.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        return array


def _slices(columns: list[_Column], num_rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows in slices of bounded size, of whole chunks where these are not too large."""
    row_bytes = sum(column.row_bytes for column in columns)
    step = min(_MAX_SLICE_ROWS, max(1, BATCH_BYTES // row_bytes))
    if any(column.varies for column in columns):
        step = min(step, _VARYING_ROWS)
    chunk_rows = max(column.chunk_rows for column in columns)
    if chunk_rows * row_bytes <= _MAX_SLICE_BYTES:
        step = max(1, step // chunk_rows) * chunk_rows
    for start in range(0, num_rows, step):
        stop = min(num_rows, start + step)
        arrays = [column.rows(start, stop, schema) for column in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
