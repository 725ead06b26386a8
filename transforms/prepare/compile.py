"""Runs the prepare steps on whole batches of records, compiled into one graph.

All records of a batch go through one loop in the graph, several at a time. Columns that no step
touches never enter the graph. A batch that fails is run again in parts, down to the single
record: those that fail become rejects, and the others get the same bytes as in a batch, since no
step sees more than one record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ...schemas.blocks import RawBatch
from ...schemas.errors import Reject
from ...schemas.features import Feature, Features, is_encoded, wire_columns
from ..runs import wire_schema
from .chain import (
    Step,
    TracedRecord,
    apply_steps,
    columns_of,
    describe,
    output_features,
    trace,
    with_checks,
)
from .image_header import diagnose
from .images import Check, Decode

__all__ = ["MAX_PAYLOAD_BYTES", "StepRunner", "output_features"]

MAX_PAYLOAD_BYTES = 64 << 10
"""A reject keeps its record's raw bytes up to this size."""

_PARALLEL_RECORDS = 8
"""Records in flight: of 1 to 16, the fastest on two cores, within 20 %; more need memory."""
_PARTS = 4
_STEP = re.compile(r"\{\{node (?:[^}]*?/)?step(\d+)(?:_\d+)?/")
_NODE = re.compile(r"\s*\[\[\{\{node ")


class StepRunner:
    """The prepare steps of a recipe, compiled; thread-safe, and costly enough to keep.

    Images that stay encoded are checked by decoding them. Where there are neither steps nor
    such images, batches pass through and TensorFlow is not loaded.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        features: Features,
        prepared: Features | None = None,
        *,
        numbered: bool = False,
    ) -> None:
        """Compiles the steps.

        Args:
            steps: Built-in steps, and functions of a record.
            features: The features of raw batches.
            prepared: What is kept of the outcome, declared sizes of images held to; None keeps
                everything as ``output_features`` says.
            numbered: Whether record ids are ``path#position``.

        Raises:
            RecipeError: if a step cannot work on what it gets, or gives what cannot be stored.
        """
        self._features = dict(features)
        self._steps = with_checks(steps, features)
        self._numbered = numbered
        self.features = dict(output_features(steps, features) if prepared is None else prepared)
        """The features of prepared batches."""
        self._input_schema = wire_schema(features)
        self._schema = wire_schema(self.features)
        self._program = (
            _Program(self._steps, self._features, self.features) if self._steps else None
        )

    def prepare(self, batch: RawBatch) -> RawBatch:
        """Runs the steps on a batch, in its wire columns; the rows keep their order.

        Rejects of the batch are passed on, those of this step after them.

        Raises:
            ValueError: if the batch does not have the wire columns of the raw features.
        """
        columns = batch.columns
        if columns.schema.names != self._input_schema.names or (
            columns.schema.types != self._input_schema.types
        ):
            raise ValueError(
                f"expected the wire columns {self._input_schema.to_string()}, found "
                f"{columns.schema.to_string()}"
            )
        if self._program is None:
            return RawBatch(
                ids=batch.ids, columns=columns.select(self._schema.names), rejects=batch.rejects
            )
        ids: list[str] = []
        good = [self._empty()]
        rejects = list(batch.rejects)
        for start, part in _run_apart(self._program, columns):
            if isinstance(part, pa.RecordBatch):
                ids.extend(batch.ids[start : start + part.num_rows])
                good.append(part)
            else:
                rejects.append(self._reject(batch.ids[start], columns.slice(start, 1), part))
        prepared = good[-1] if len(good) <= 2 else pa.concat_batches(good)
        return RawBatch(ids=ids, columns=prepared, rejects=tuple(rejects))

    def _empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self._schema)

    def _reject(self, record_id: str, single: pa.RecordBatch, error: Exception) -> Reject:
        trouble = str(getattr(error, "message", error))
        found = _STEP.search(trouble)
        step = self._steps[int(found[1])] if found else None
        # What comes before is a stack of paths: it would make the rejects differ by place.
        text = _NODE.split(trouble)[0].strip().rpartition("\n\n")[2]
        text = " ".join(text.split())[:300]
        stage, reason = "prepare", "prepare step failed"
        if isinstance(step, Decode | Check):
            reason = diagnose(single.column(step.name)[0].as_py())
        elif step is None:
            stage, reason = "validate", "another shape than declared"
        path, _, position = record_id.rpartition("#") if self._numbered else (record_id, "", "")
        return Reject(
            record_id=record_id,
            stage=stage,
            reason=reason,
            message=f"{describe(step)}: {text}" if step is not None else text,
            source=path,
            position=int(position) if position else None,
            payload=_payload(single, self._features),
        )


class _Program:
    """The compiled graph: wire columns of a batch in, wire columns out."""

    def __init__(self, steps: Sequence[Step], features: Features, prepared: Features) -> None:
        import tensorflow as tf

        from . import tensors

        with tf.device("/CPU:0"):
            traced = trace(steps, features)
        self._tf, self._tensors = tf, tensors
        columns = {column.name: column for column in wire_columns(prepared)}
        computed = set().union(*(_computed_columns(*item, traced) for item in prepared.items()))
        self._computed = {name: columns[name] for name in columns if name in computed}
        # What is computed from a feature that no step reads: its shape is held to the declared.
        self._read = traced.read | {
            column
            for name in features.keys() & prepared.keys()
            if name in computed and name in traced.copied
            for column in columns_of(name, features[name])
        }
        self._features, self._schema = features, wire_schema(prepared)
        specs = {
            part: spec
            for name, feature in prepared.items()
            for part, spec in tensors.wire_specs(name, feature).items()
            if part in self._computed
        }

        def run_record(wire: dict[str, Any]) -> dict[str, Any]:
            wire = {**wire, **tensors.empty_wire(features, self._read)}
            record, _ = apply_steps(steps, tensors.to_record(wire, features), features)
            out: dict[str, Any] = {}
            for name, feature in prepared.items():
                out.update(tensors.to_wire(name, feature, record))
            return {name: out[name] for name in specs}

        def run_batch(num_records: Any, wire: dict[str, Any]) -> dict[str, Any]:
            return tensors.map_records(
                run_record, wire, num_records, specs, parallel_records=_PARALLEL_RECORDS
            )

        with tf.device("/CPU:0"):
            self._function = tf.function(run_batch, autograph=False).get_concrete_function(
                tf.TensorSpec([], tf.int32), tensors.batch_specs(features, self._read)
            )
        errors = tf.errors
        self._data_errors = (
            errors.InvalidArgumentError,
            errors.OutOfRangeError,
            errors.NotFoundError,
            errors.FailedPreconditionError,
            errors.DataLossError,
            errors.UnimplementedError,
            errors.UnknownError,
        )

    def run(self, columns: pa.RecordBatch) -> pa.RecordBatch | Exception:
        """The prepared columns; or why at least one record failed."""
        with self._tf.device("/CPU:0"):
            wire = self._tensors.to_batch(columns, self._features, self._read)
            num_records = self._tf.constant(columns.num_rows)
            try:
                computed = self._function(num_records, wire)
            except self._data_errors as error:
                return error
        arrays = [
            columns.column(name)
            if name not in self._computed
            else self._tensors.from_batch(computed[name], self._computed[name])
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _run_apart(
    program: _Program, columns: pa.RecordBatch, start: int = 0
) -> Iterator[tuple[int, pa.RecordBatch | Exception]]:
    """Runs a batch, and again in parts where it fails: (first row, prepared rows or an error)."""
    if columns.num_rows == 0:
        return
    outcome = program.run(columns)
    if isinstance(outcome, pa.RecordBatch) or columns.num_rows == 1:
        yield start, outcome
        return
    # Single records cost five times what they cost in a batch; most parts have no culprit.
    rows = -(-columns.num_rows // _PARTS)
    for first in range(0, columns.num_rows, rows):
        yield from _run_apart(program, columns.slice(first, rows), start + first)


def _computed_columns(name: str, feature: Feature, traced: TracedRecord) -> set[str]:
    """Which stored columns of a prepared feature are not simply the raw batch's own."""
    if is_encoded(feature):
        return columns_of(name, feature) - traced.copied
    # A declared size has to be held to even where no step touches the pixels.
    whole = name in traced.copied and feature == traced.features[name]
    return set() if whole else columns_of(name, feature)


def _payload(single: pa.RecordBatch, features: Features) -> bytes | None:
    """The raw bytes of a record: of its encoded image, else of its columns as JSON."""
    encoded = sorted(name for name, feature in features.items() if is_encoded(feature))
    if encoded:
        content: bytes = single.column(encoded[0])[0].as_py()
    else:
        row = single.to_pylist()[0]
        content = json.dumps(row, default=lambda value: value.decode("utf-8", "replace")).encode()
    return content if len(content) <= MAX_PAYLOAD_BYTES else None
