"""Steps on time series: windows of rows that are consecutive in time, or in their file.

Rows are sorted by group and time on disk, regardless of their file or block. The sort key holds 24
bits of the group's hash and 40 bits that preserve the order of times, so the rows of a group are
adjacent, and even a single long series is merged piece by piece. The prefix of the id holds the
complete group hash and the exact time. Without a time, it is the row's position in its file, and
the file is part of what is hashed as the group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pydantic

from ...schemas.blocks import RawBatch
from ...schemas.config import config_class
from ...schemas.errors import RecipeError, Reject
from ...schemas.features import (
    Feature,
    Features,
    Scalar,
    Tensor,
    TensorForm,
    is_time,
    tensor_form,
    time_advice,
    written,
)
from ...schemas.recipe import SortedRecords
from ...schemas.splits import Splits
from ...schemas.wire import FLOATS
from ..examples.dtypes import dense_column, dense_values
from ..examples.encode import binary_array
from ..rejects import reject_rows
from ..runs.files import wire_schema
from ..runs.keys import value_texts
from ..runs.partitions import is_countable, label_texts
from .values import BuiltIn, call_text, changed

TARGET = "target"
"""Name of the feature that holds the target."""

_GROUP_BYTES = 16
_BATCH_BYTES = 8 << 20
_Positive = Annotated[int, pydantic.Field(ge=1)]


@config_class
class Windows(BuiltIn):
    """See :func:`windows`."""

    names: tuple[str, ...]
    size: _Positive
    time: str | None = None
    group: str | None = None
    target: str | None = None
    horizon: Annotated[int, pydantic.Field(ge=0)] = 0
    shift: _Positive = 1
    stride: _Positive = 1
    max_gap: _Positive | None = None

    kind = "series.windows"
    prefix_bytes = _GROUP_BYTES + 8

    def __post_init__(self) -> None:
        """Checks names, sizes, that a horizon has a target, and a gap a time."""
        if not self.names or len(set(self.names)) != len(self.names):
            raise ValueError("expected at least one feature, each only once")
        if self.max_gap is not None and self.time is None:
            raise ValueError("max_gap= needs time=: what it measures")
        if self.horizon and self.target is None:
            raise ValueError("horizon= needs target=: what to predict")
        if self.size + self._num_ahead < 2:
            raise ValueError("size=1 without a target: a window of one row is the row itself")

    def __repr__(self) -> str:
        """The step as written in a recipe."""
        return call_text("ss.series.windows", *self.names, size=self.size, **changed(self))

    @property
    def label(self) -> str | None:
        """The feature to predict."""
        return TARGET if self.target is not None else None

    @property
    def span(self) -> int:
        """Rows from the first to the last of a window, including the target."""
        return (self.size + self._num_ahead - 1) * self.stride + 1

    @property
    def _num_ahead(self) -> int:
        """Rows of the target: one, as a single value, if there is no horizon."""
        return self.horizon or int(self.target is not None)

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if a named feature does not exist, or cannot be windowed.
        """
        after: dict[str, Feature] = {}
        for name in dict.fromkeys((*self.names, *((self.target,) if self.target else ()))):
            form = self._form(name, features)
            if name in self.names:
                after[name] = Tensor(form.dtype, (self.size, *form.shape))
            if name == self.target:
                after[TARGET] = self._target(form)
        if self.target is not None and TARGET in self.names:
            raise RecipeError(
                f"prepare: {self!r}: {TARGET!r} is reserved for the target. Rename the feature."
            )
        if self.time is not None:
            kept = self._feature(self.time, features)
            if not is_time(kept):
                raise RecipeError(
                    f"prepare: {self!r}: time={self.time!r} is {written(kept)}, expected a time "
                    f"or an integer that int64 holds. {time_advice(self.time, kept)}"
                )
            after.setdefault(self.time, _required(kept))
        if self.group is not None:
            group = self._feature(self.group, features)
            if not is_countable(group):
                raise RecipeError(
                    f"prepare: {self!r}: group={self.group!r} is {written(group)}, expected a "
                    "class, a string or an integer. Declare it in types= of the source: "
                    f'{{{written(self.group)}: "string"}}.'
                )
            after.setdefault(self.group, group)
        return after

    def check(self, splits: Splits) -> None:
        """Refuses splits by a hash of each row: overlapping windows would share rows across splits.

        Raises:
            RecipeError: naming the splits that can be used.
        """
        by_key = not splits.partitioned and len(splits.names) > 1
        if by_key or splits.train_is_divided_by_key:
            raise RecipeError(
                "series.windows: windows overlap, so drawing a split for each window would put the "
                "same rows into several splits. Split by time (ss.Splits.by_time), or by group "
                "(ss.Splits(…, group_by=…))."
            )

    def order(
        self, ids: Sequence[str], columns: Any, *, features: Features, seed: int
    ) -> tuple[Any, Any]:
        """Sorts by group, then time; without one, by file and group, then position in the file."""
        del seed
        groups = self._group_hashes(columns, features)
        if self.time is None:
            groups, times = self._in_files(ids, groups)
        else:
            times = columns.column(self.time).fill_null(0).to_numpy()
        head = groups[:, :3].astype(np.uint64)
        keys = (head[:, 0] << 56) | (head[:, 1] << 48) | (head[:, 2] << 40) | _ordered_bits(times)
        exact = (times.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)).astype(">u8")
        prefixes = np.concatenate([groups, exact.view(np.uint8).reshape(-1, 8)], axis=1)
        offsets = np.arange(len(ids) + 1, dtype=np.int64) * self.prefix_bytes
        return keys, binary_array(offsets, pa.py_buffer(np.ascontiguousarray(prefixes)))

    def merge(self, records: Iterator[SortedRecords], *, features: Features) -> Iterator[RawBatch]:
        """Cuts windows from sorted rows, in batches of about 8 MiB."""
        after = self.features(features)
        held: _SeriesRows | None = None
        for part in records:
            rejects: list[Reject] = []
            rows = self._rows(part, features, rejects)
            rows = rows if held is None else held + rows
            rows = self._in_order(rows, rejects, numbered=part.numbered)
            starts = self._starts(rows)
            per_window = max(1, rows.columns.nbytes // max(1, len(rows.ids))) * self.span
            step = max(1, _BATCH_BYTES // per_window)
            for first in range(0, max(1, len(starts)), step):
                chosen = starts[first : first + step]
                yield RawBatch(
                    ids=[rows.ids[row] for row in chosen],
                    columns=self._windows(rows, chosen, features=features, after=after),
                    rejects=tuple(rejects) if first == 0 else (),
                )
            held = self._tail(rows)

    def _windows(
        self,
        rows: _SeriesRows,
        starts: npt.NDArray[np.intp],
        *,
        features: Features,
        after: Features,
    ) -> pa.RecordBatch:
        """The wire columns of the windows that start at some rows."""
        arrays: dict[str, pa.Array] = {}
        inputs = starts[:, None] + np.arange(self.size) * self.stride
        ahead = starts[:, None] + np.arange(self.size, self.size + self._num_ahead) * self.stride
        last = pa.array(inputs[:, -1] if len(starts) else starts)
        for name, feature in after.items():
            source = self.target if name == TARGET and self.target is not None else name
            if name in (self.time, self.group) and name not in self.names and name != TARGET:
                arrays[name] = rows.columns.column(name).take(last)
                continue
            form, made = self._form(source, features), tensor_form(feature)
            assert made is not None
            picked = inputs if name in self.names else ahead
            column = rows.columns.column(source).take(pa.array(picked.reshape(-1)))
            values = dense_values(column, form).reshape(len(starts), *made.shape)
            (wire,) = made.wire_columns(name)
            arrays[name] = dense_column(values, wire)
        schema = wire_schema(after)
        return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)

    def _rows(self, part: SortedRecords, features: Features, rejects: list[Reject]) -> _SeriesRows:
        """The rows of a part; those without a time are rejected."""
        prefixes = np.frombuffer(b"".join(part.prefixes.to_pylist()), np.uint8).reshape(
            -1, self.prefix_bytes
        )
        exact = np.ascontiguousarray(prefixes[:, _GROUP_BYTES:]).view(">u8").reshape(-1)
        times = (exact.astype(np.uint64) ^ np.uint64(1 << 63)).view(np.int64)
        missing = np.zeros(len(times), bool)
        if self.time is not None:
            missing = part.columns.column(self.time).is_null().to_numpy(zero_copy_only=False)
        rejects += reject_rows(
            part.ids,
            np.flatnonzero(missing),
            stage="across",
            reason="no time",
            message=f"feature {self.time!r} is missing; windows need it",
            numbered=part.numbered,
            columns=part.columns,
        )
        used = set(self.names) | ({self.target} if self.target else set())
        complete = np.ones(len(part.ids), bool)
        for name in used:
            column = part.columns.column(name)
            complete &= column.is_valid().to_numpy(zero_copy_only=False)
            given = column.filter(pa.array(complete))
            complete[complete] = ~_has_nan(given, self._form(name, features))
        rows = _SeriesRows(
            ids=list(part.ids),
            groups=np.ascontiguousarray(prefixes[:, :_GROUP_BYTES]).view("S16").reshape(-1),
            times=times,
            splits=part.splits,
            complete=complete,
            positions=np.full(len(part.ids), -1, np.int64),
            columns=part.columns,
        )
        return rows if not missing.any() else rows.take(np.flatnonzero(~missing))

    def _in_order(self, rows: _SeriesRows, rejects: list[Reject], *, numbered: bool) -> _SeriesRows:
        """Sorts the rows by group and time; a second row of the same time is rejected."""
        # Groups may share the 24 bits of the key: then their rows are interleaved.
        order = np.argsort(_ranks(rows.groups), kind="stable")
        if not np.array_equal(order, np.arange(len(order))):
            rows = rows.take(order)
        same = (rows.groups[1:] == rows.groups[:-1]) & (rows.times[1:] == rows.times[:-1])
        if not same.any():
            return rows
        again = np.flatnonzero(same) + 1
        rejects += reject_rows(
            rows.ids,
            again,
            stage="across",
            reason="second row of one time",
            message=f"another row of its group has the same {self.time!r}; a series has one row at "
            "a time. Name the feature that tells them apart as group=.",
            numbered=numbered,
            columns=rows.columns,
        )
        kept = np.ones(len(rows.ids), bool)
        kept[again] = False
        return rows.take(np.flatnonzero(kept))

    def _starts(self, rows: _SeriesRows) -> npt.NDArray[np.intp]:
        """The rows at which windows start; sets each row's position in its unbroken stretch."""
        num_rows = len(rows.ids)
        if not num_rows:
            return np.zeros(0, np.intp)
        breaks = np.ones(num_rows, bool)
        breaks[1:] = (
            (rows.groups[1:] != rows.groups[:-1])
            | (rows.splits[1:] != rows.splits[:-1])
            | ~rows.complete[1:]
            | ~rows.complete[:-1]
        )
        if self.max_gap is not None:
            breaks[1:] |= np.diff(rows.times) > self.max_gap
        firsts = np.flatnonzero(breaks)
        stretch = np.cumsum(breaks) - 1
        base = np.maximum(rows.positions[firsts], 0)
        rows.positions[:] = np.arange(num_rows) - firsts[stretch] + base[stretch]
        starts = np.flatnonzero(
            rows.positions[: max(0, num_rows - self.span + 1)] % self.shift == 0
        )
        fits = stretch[starts] == stretch[starts + self.span - 1]
        fits &= rows.complete[starts]
        first_rows: npt.NDArray[np.intp] = starts[fits]
        return first_rows

    def _tail(self, rows: _SeriesRows) -> _SeriesRows | None:
        """The rows at which windows that reach into the next part may start."""
        if not len(rows.ids):
            return None
        # Sorted by hash: only groups that share the last one's 24 bits may continue.
        heads = rows.groups.astype("S3")
        last = max(heads.tolist())
        _, sizes = np.unique(_ranks(rows.groups), return_counts=True)
        ends = np.repeat(np.cumsum(sizes), sizes)
        kept = (heads == last) & (ends - np.arange(len(rows.ids)) < self.span)
        return rows.take(np.flatnonzero(kept))

    def _in_files(
        self, ids: Sequence[str], groups: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """The groups, each divided by file, and the records' positions in their files.

        Raises:
            RecipeError: if a record has no position.
        """
        hashes: dict[tuple[str, bytes], bytes] = {}
        divided, positions = [], []
        for record_id, group in zip(ids, groups, strict=True):
            path, _, position = record_id.rpartition("#")
            if not path or not position.isdecimal():
                raise RecipeError(
                    f"prepare: {self!r}: record {record_id!r} is a file of its own, in no order. "
                    "Name the feature that orders the records: time=."
                )
            key = path, group.tobytes()
            if key not in hashes:
                content = path.encode("utf-8", "surrogateescape") + b"\0" + key[1]
                hashes[key] = blake2b(content, digest_size=_GROUP_BYTES).digest()
            divided.append(hashes[key])
            positions.append(int(position))
        table = np.frombuffer(b"".join(divided), np.uint8).reshape(-1, _GROUP_BYTES)
        return table, np.array(positions, np.int64)

    def _target(self, form: TensorForm) -> Feature:
        if self.horizon:
            return Tensor(form.dtype, (self.horizon, *form.shape))
        return Tensor(form.dtype, form.shape) if form.shape else Scalar(form.dtype)

    def _group_hashes(self, columns: Any, features: Features) -> npt.NDArray[np.uint8]:
        """uint8[n, 16]: a hash of each record's group, of the empty string if it is missing."""
        num_records = columns.num_rows
        if self.group is None:
            digest = np.frombuffer(blake2b(b"", digest_size=_GROUP_BYTES).digest(), np.uint8)
            return np.broadcast_to(digest, (num_records, _GROUP_BYTES))
        texts = value_texts(label_texts(columns.column(self.group), features[self.group]))
        digests = [
            blake2b(text or b"", digest_size=_GROUP_BYTES).digest()
            for text in [*texts.dictionary.to_pylist(), b""]
        ]
        table = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _GROUP_BYTES)
        hashes: npt.NDArray[np.uint8] = table[texts.indices.fill_null(-1).to_numpy()]
        return hashes

    def _feature(self, name: str, features: Features) -> Feature:
        feature = features.get(name)
        if feature is None:
            raise RecipeError(
                f"prepare: {self!r}: there is no feature {name!r}, expected one of "
                f"{', '.join(map(repr, features))}."
            )
        return feature

    def _form(self, name: str, features: Features) -> TensorForm:
        feature = self._feature(name, features)
        form = tensor_form(feature)
        if form is None or None in form.shape:
            raise RecipeError(
                f"prepare: {self!r}: {name!r} is {feature}, expected values of a fixed shape."
            )
        return form


def windows(
    *names: str,
    size: int,
    time: str | None = None,
    group: str | None = None,
    target: str | None = None,
    horizon: int = 0,
    shift: int = 1,
    stride: int = 1,
    max_gap: int | None = None,
) -> Windows:
    """Cuts windows of rows that are consecutive in time, each within one group and one split.

    The rows of each group are sorted by time, across all files and blocks, or without ``time`` by
    their position, within each file. Windows of ``size`` rows (and those of the target) are cut
    from unbroken stretches. A stretch ends at a gap, and at a row in which a used feature is
    missing or NaN. A window's record id is that of its first row.

    Args:
        names: Features of the window, each with one number, string or tensor of fixed shape per
            row: each becomes ``dtype[size, …]``.
        size: Rows per window.
        time: A Timestamp or an integer that orders the rows; the window keeps that of its last
            row. If two rows of a group have the same time, the second is rejected. The reader's
            ``as_supervised=True`` does not count it among the inputs, unless ``names`` has it.
            None: the rows of each file are a series, in the order in which the file has them.
        group: The feature that identifies the series; the window keeps it.
        target: The feature to predict; it becomes ``target``: its value in the row directly after
            the window, or with ``horizon`` those of several rows.
        horizon: Rows of the target, directly after the window: ``dtype[horizon, …]``.
        shift: Rows from the start of one window to the start of the next.
        stride: Rows from one element to the next, within a window and its target.
        max_gap: A longer time than this between two rows is a gap, in the unit of ``time``; None
            means that there are no gaps.

    Raises:
        RecipeError: if an argument is invalid.
    """
    return Windows(
        names=names,
        size=size,
        time=time,
        group=group,
        target=target,
        horizon=horizon,
        shift=shift,
        stride=stride,
        max_gap=max_gap,
    )


def _required(feature: Feature) -> Feature:
    return dataclasses.replace(feature, optional=False)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class _SeriesRows:
    """Rows of series, in order."""

    ids: list[str]
    groups: npt.NDArray[np.bytes_]
    times: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int16]
    complete: npt.NDArray[np.bool_]
    """Whether no value of the row is missing."""
    positions: npt.NDArray[np.int64]
    """The position of each row in its unbroken stretch; -1 until known."""
    columns: pa.RecordBatch

    def take(self, rows: npt.NDArray[np.intp]) -> _SeriesRows:
        """Selects rows by their indices."""
        return _SeriesRows(
            ids=[self.ids[row] for row in rows],
            groups=self.groups[rows],
            times=self.times[rows],
            splits=self.splits[rows],
            complete=self.complete[rows],
            positions=self.positions[rows],
            columns=self.columns.take(pa.array(rows)),
        )

    def __add__(self, after: _SeriesRows) -> _SeriesRows:
        """These rows, followed by others."""
        return _SeriesRows(
            ids=[*self.ids, *after.ids],
            groups=np.concatenate([self.groups, after.groups]),
            times=np.concatenate([self.times, after.times]),
            splits=np.concatenate([self.splits, after.splits]),
            complete=np.concatenate([self.complete, after.complete]),
            positions=np.concatenate([self.positions, after.positions]),
            columns=pa.concat_batches([self.columns, after.columns]),
        )


def _ranks(groups: npt.NDArray[np.bytes_]) -> npt.NDArray[np.intp]:
    """The rank of each row's group, in the order of the hashes."""
    # NumPy's byte strings drop trailing zeros, which is harmless for hashes: padded to 16 bytes,
    # they compare as before.
    _, ranks = np.unique(groups, return_inverse=True)
    ranks_by_row: npt.NDArray[np.intp] = ranks.reshape(-1)
    return ranks_by_row


def _ordered_bits(times: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """40 bits that never decrease with time: the top bits of the nearest float64."""
    bits = times.astype(np.float64).view(np.uint64)
    negative = (bits >> np.uint64(63)).astype(bool)
    ordered = np.where(negative, ~bits, bits | np.uint64(1 << 63))
    top_bits: npt.NDArray[np.uint64] = ordered >> np.uint64(24)
    return top_bits


def _has_nan(column: pa.Array, form: TensorForm) -> npt.NDArray[np.bool_]:
    """Whether the value of a row, or one of its values, is NaN: bool[n]."""
    if form.dtype not in FLOATS:
        return np.zeros(len(column), bool)
    values = dense_values(column, form).astype(np.float64)
    return np.atleast_1d(np.isnan(values).any(axis=tuple(range(1, values.ndim))))
