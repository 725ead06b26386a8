"""Converts batches in wire form to the input of tensorflow-transform: int64, float32 and bytes.

tensorflow-transform computes only in these types, so packed columns are unpacked: integers to
int64 (a uint64 keeps its bits), floats to float32 (a float64 is rounded), audio samples to float32
in [-1, 1].
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.features import Audio, Feature, Features, ListKind, WireColumn, tensor_form
from ...schemas.wire import FLOATS, ITEM_BYTES, Dtype
from ..examples.dtypes import joined_bytes, unpacked
from ..examples.row_values import PCM

ARROW_VALUES = {"bytes": pa.large_binary(), "int64": pa.int64(), "float32": pa.float32()}


def computed_column(column: WireColumn, feature: Feature) -> WireColumn:
    """The column that tensorflow-transform sees in place of a feature's stored column."""
    form = tensor_form(feature)
    if column.packed is None or form is None:
        return column
    length = None if None in form.shape else math.prod(dim or 1 for dim in form.shape)
    kind: ListKind = "float32" if isinstance(feature, Audio) or column.packed in FLOATS else "int64"
    return dataclasses.replace(column, kind=kind, length=length, packed=None)


def as_lists(batch: pa.RecordBatch, features: Features) -> pa.RecordBatch:
    """Converts a batch in wire form for tfx_bsl: every column becomes a ``large_list``.

    A missing value becomes an empty list.

    Args:
        batch: Some wire columns of the features.
        features: The features.
    """
    stored = {
        column.name: (column, feature)
        for name, feature in features.items()
        for column in feature.wire_columns(name)
    }
    columns = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        column, feature = stored[name]
        packed = column.packed
        columns.append(_as_list(array) if packed is None else _unpacked(array, packed, feature))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _unpacked(array: pa.Array, dtype: Dtype, feature: Feature) -> pa.Array:
    lengths = pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    stored = unpacked(joined_bytes(array.drop_null()), dtype)
    if isinstance(feature, Audio):
        values = stored.astype(np.float32) / np.float32(PCM)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            values = stored.astype(np.float32 if dtype in FLOATS else np.int64)
    return _list(lengths // ITEM_BYTES[dtype], pa.array(values))


def _as_list(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_large_list(kind):
        # Copied: tfx_bsl does not accept a slice of a longer column here.
        values = array.flatten()
        if values.offset:
            values = pa.concat_arrays([values, values.slice(0, 0)])
        lengths = pc.list_value_length(array).fill_null(0)
        return _list(lengths.to_numpy(zero_copy_only=False), values)
    if pa.types.is_fixed_size_list(kind):
        return _list(np.full(len(array), kind.list_size), array.flatten())
    if array.null_count == 0:
        return _list(np.ones(len(array), np.int64), array)
    return _list(array.is_valid().to_numpy(zero_copy_only=False), array.drop_null())


def _list(lengths: npt.NDArray[np.integer], values: pa.Array) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.LargeListArray.from_arrays(pa.array(offsets), values)
