"""Rows of time series in order, as windows are cut from them, and the key that sorts them so."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.features import TensorForm


@dataclasses.dataclass(frozen=True)
class SeriesRows:
    """Rows of series, in order."""

    ids: list[str]
    groups: npt.NDArray[np.bytes_]
    times: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int16]
    whole: npt.NDArray[np.bool_]
    """Whether no value is missing."""
    positions: npt.NDArray[np.int64]
    """Of each row in its unbroken stretch; -1 until known."""
    columns: pa.RecordBatch

    def take(self, rows: npt.NDArray[np.intp]) -> SeriesRows:
        """Some of the rows."""
        return SeriesRows(
            ids=[self.ids[row] for row in rows],
            groups=self.groups[rows],
            times=self.times[rows],
            splits=self.splits[rows],
            whole=self.whole[rows],
            positions=self.positions[rows],
            columns=self.columns.take(pa.array(rows)),
        )

    def __add__(self, after: SeriesRows) -> SeriesRows:
        """These rows, and others after them."""
        return SeriesRows(
            ids=[*self.ids, *after.ids],
            groups=np.concatenate([self.groups, after.groups]),
            times=np.concatenate([self.times, after.times]),
            splits=np.concatenate([self.splits, after.splits]),
            whole=np.concatenate([self.whole, after.whole]),
            positions=np.concatenate([self.positions, after.positions]),
            columns=pa.concat_batches([self.columns, after.columns]),
        )


def ranks(groups: npt.NDArray[np.bytes_]) -> npt.NDArray[np.intp]:
    """A number for each row's group, in the order of their hashes."""
    # NumPy's byte strings end at their last byte that is not zero, which the hashes survive:
    # two that differ in trailing zeros alone are one in 2**128.
    _, ranks = np.unique(groups, return_inverse=True)
    found: npt.NDArray[np.intp] = ranks.reshape(-1)
    return found


def ordered_bits(times: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """40 bits that never fall where times rise: of the float64 that is nearest."""
    bits = times.astype(np.float64).view(np.uint64)
    negative = (bits >> np.uint64(63)).astype(bool)
    ordered = np.where(negative, ~bits, bits | np.uint64(1 << 63))
    found: npt.NDArray[np.uint64] = ordered >> np.uint64(24)
    return found


def filled(column: pa.Array, form: TensorForm) -> pa.Array:
    """A column of one number a row, zero where it is missing."""
    if not column.null_count:
        return column
    (wire,) = form.wire_columns("")
    return column.fill_null(bytes(8) if wire.packed is not None else 0.0)
