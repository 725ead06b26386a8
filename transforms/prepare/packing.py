"""Packing: several short sequences in one row of fixed length, so that little of it is padding."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pydantic

from ...schemas.blocks import RawBatch
from ...schemas.config import config_class
from ...schemas.errors import RecipeError
from ...schemas.features import Features, Tensor, TensorForm, tensor_form
from ...schemas.recipe import SortedRecords
from ...schemas.splits import Splits
from ..examples.dtypes import dense_column, joined_bytes, narrowed, unpacked
from ..runs.files import wire_schema
from ..runs.keys import record_keys

_OPEN_ROWS = 32
"""Rows of each split that are still being filled: on lengths that vary, 97 % and more are used."""
_BATCH_BYTES = 8 << 20


@config_class
class Pack:
    """See :func:`pack`."""

    name: str
    length: Annotated[int, pydantic.Field(ge=1)]

    prefix_bytes = 0

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        return f"ss.text.pack({json.dumps(self.name, ensure_ascii=False)}, {self.length})"

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {"step": "text.pack", "name": self.name, "length": self.length}

    def features(self, features: Features) -> Features:
        """The features after this step: the packed sequence, its segments and positions.

        Raises:
            RecipeError: if there is no sequence of numbers of this name.
        """
        dtype = self._form(features).dtype
        return {
            self.name: Tensor(dtype, (self.length,)),
            f"{self.name}_positions": Tensor("int32", (self.length,)),
            f"{self.name}_segments": Tensor("int32", (self.length,)),
        }

    def check(self, splits: Splits) -> None:
        """Refuses strata: which split a record has is known too late.

        Raises:
            RecipeError: saying what to do.
        """
        if splits.stratify_by is not None:
            raise RecipeError(
                "text.pack: with stratify_by a record's split is known only when all have been "
                "counted, and a row must not mix splits. Split by a hash, a group, a column or "
                "time."
            )

    def order(
        self, ids: Sequence[str], columns: Any, *, features: Features, seed: int
    ) -> tuple[Any, Any]:
        """By the records' own keys: a shuffle."""
        del columns, features
        return record_keys(ids, seed), pa.array([b""] * len(ids), pa.large_binary())

    def merge(self, records: Iterator[SortedRecords], *, features: Features) -> Iterator[RawBatch]:
        """Rows of several sequences each, in batches of about 8 MiB."""
        form = self._form(features)
        open_rows: dict[int, list[_Row]] = {}
        done: list[_Row] = []
        num_empty = 0
        for part in records:
            for record_id, split, values in zip(
                part.ids, part.splits.tolist(), self._sequences(part, form), strict=True
            ):
                if not len(values):
                    num_empty += 1
                    continue
                done += self._place(open_rows.setdefault(split, []), record_id, values)
                if len(done) * self.length * 16 > _BATCH_BYTES:
                    yield self._batch(done, features)
                    done = []
        for rows in open_rows.values():
            done += rows
        yield dataclasses.replace(self._batch(done, features), num_filtered=num_empty)

    def _place(self, rows: list[_Row], record_id: str, values: npt.NDArray[Any]) -> list[_Row]:
        """Puts a sequence into the first row with room; gives the rows that are full by then."""
        values = values[: self.length]
        for row in rows:
            if row.used + len(values) <= self.length:
                row.add(values)
                break
        else:
            rows.append(_Row(record_id))
            rows[-1].add(values)
        closed = [row for row in rows if row.used == self.length]
        if not closed and len(rows) > _OPEN_ROWS:
            closed = [max(rows, key=lambda row: row.used)]
        for row in closed:
            rows.remove(row)
        return closed

    def _sequences(self, part: SortedRecords, form: TensorForm) -> Iterator[npt.NDArray[Any]]:
        """Each record's values; none where they are missing."""
        column = part.columns.column(self.name)
        (wire,) = form.wire_columns(self.name)
        if wire.packed is not None:
            column = column.fill_null(b"")
            sizes = np.array([len(value.as_buffer()) for value in column], np.int64)
            flat = unpacked(joined_bytes(column), wire.packed)
            sizes //= max(1, flat.itemsize)
        else:
            sizes = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            flat = narrowed(column.flatten().to_numpy(), form.dtype)
        ends = np.cumsum(sizes)
        for size, end in zip(sizes.tolist(), ends.tolist(), strict=True):
            yield flat[end - size : end]

    def _batch(self, rows: Sequence[_Row], features: Features) -> RawBatch:
        after = self.features(features)
        form = tensor_form(after[self.name])
        assert form is not None
        shape = (len(rows), self.length)
        dtype = rows[0].parts[0].dtype if rows else np.dtype(np.int64)
        values = np.zeros(shape, dtype)
        segments, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for index, row in enumerate(rows):
            start = 0
            for number, part in enumerate(row.parts, start=1):
                stop = start + len(part)
                values[index, start:stop] = part
                segments[index, start:stop] = number
                positions[index, start:stop] = np.arange(len(part))
                start = stop
        content = {
            self.name: values,
            f"{self.name}_positions": positions,
            f"{self.name}_segments": segments,
        }
        arrays = {
            name: dense_column(content[name], *feature.wire_columns(name))
            for name, feature in after.items()
        }
        schema = wire_schema(after)
        columns = [arrays[name] for name in schema.names]
        return RawBatch(
            ids=[row.record_id for row in rows],
            columns=pa.RecordBatch.from_arrays(columns, schema=schema),
        )

    def _form(self, features: Features) -> TensorForm:
        feature = features.get(self.name)
        form = tensor_form(feature) if feature is not None else None
        if form is None or form.shape != (None,) or form.dtype == "string":
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is {feature or 'no feature'}; expected a "
                "sequence of numbers, as ss.text.tokenize gives."
            )
        return form


class _Row:
    """A row that is being filled."""

    def __init__(self, record_id: str) -> None:
        self.record_id = record_id
        self.parts: list[npt.NDArray[Any]] = []
        self.used = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        self.parts.append(values)
        self.used += len(values)


def pack(name: str, length: int) -> Pack:
    """Packs sequences of numbers into rows of one length; each row holds one split's alone.

    Gives ``name`` ``dtype[length]``, zero where nothing is left; ``<name>_segments``
    ``int32[length]``, 1 for the first sequence of a row, 2 for the next …, 0 for padding; and
    ``<name>_positions`` ``int32[length]``, counting within each sequence: what attention masks
    and position embeddings need (as in Raffel et al., "Exploring the limits of transfer
    learning", 2020). Other features are dropped: a row is of several records. Sequences longer
    than ``length`` are cut; empty ones are left out and counted. In the order of the records'
    keys, each goes into the first of 32 open rows that has room.

    Args:
        name: The sequence, such as token ids.
        length: Of each row.

    Raises:
        RecipeError: if an argument is unfit.
    """
    return Pack(name=name, length=length)
