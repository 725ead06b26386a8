"""Runs the prepare steps on batches of records, in programs: steps compiled into one graph.

Checks of batched steps mark the records that fail, with what was found, so one run of the batch
gives their errors. Other operations that fail do not tell for which record: then the batch is run
again in parts, down to single records. Records that fail become rejects, and the others get the
same bytes as in a batch, since a record's result does not depend on other records.

A chain of steps is cut after each filter, around each step on columns, and then into batched steps
at the beginning or end of each part and the rest. A step on columns needs no graph. Batched steps
process a batch at once; the rest processes records in a loop in the graph, several in parallel.
Columns that no step reads never enter a graph.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....schemas.blocks import RawBatch
from ....schemas.errors import RecipeError, Reject, without_addresses
from ....schemas.features import (
    RESERVED_PREFIX,
    Feature,
    Features,
    WireColumn,
    can_batch,
    frames_of,
    is_encoded,
    is_optional,
    presence_name,
    side_columns,
    tensor_form,
    wire_columns,
)
from ....schemas.recipe import StepTraits
from ...activity import advance
from ...case_mapping import refuse_other_case
from ...in_parts import in_parts
from ...media.image_codecs import NO_ALPHA, NOT_16_BITS, NOT_A_MASK, decoding_error
from ...media.image_header import diagnose
from ...media.quick_check import confirmed
from ...media.tiff import is_converted
from ...rejects import FAILURE_MARK, MAX_PAYLOAD_BYTES, with_bytes, with_row
from ...runs.files import wire_schema
from ..audio import Decode as DecodeSound
from ..images import FRAME_TURNED, FRAMES_DIFFER, Check, Decode, Resize
from ..values import Tables, flagging, holding_tables
from .chain import (
    KEEP,
    Step,
    TracedRecord,
    apply_batched,
    apply_steps,
    closing_steps,
    columns_of,
    describe,
    output_features,
    trace,
)

_STEP = re.compile(r"\{\{node (?:[^}]*?/)?step(\d+)(?:_\d+)?/")
_RAISED = re.compile(r"([A-Za-z_]\w*(?:Error|Exception|Warning|Interrupt|Exit|Iteration)): ")
_NODE = re.compile(r"\s*\[\[\{\{node ")

_PARALLEL_RECORDS = 8
"""Records in flight: the fastest of 1 to 16 on two cores, within 20 %; more need memory."""
_PARTS = 8
"""With few failures most parts have none; more levels of parts would decode images more often."""
_FLAGS = f"{RESERVED_PREFIX}flags"


class StepRunner:
    """The compiled prepare steps of a recipe; thread-safe, and expensive enough to reuse.

    Images that stay encoded are checked by decoding them; sounds are decoded. If there are
    neither steps nor such media, batches pass through and TensorFlow is not loaded.
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
            prepared: The features to keep, with declared image sizes enforced; None keeps
                everything as ``output_features`` declares it.
            numbered: Whether record ids are ``path#position``.

        Raises:
            RecipeError: if a step does not accept its input, or returns what cannot be stored.
        """
        self._features = dict(features)
        self._numbered = numbered
        after = output_features(steps, features)
        closing = closing_steps(after, prepared)
        self._steps = (*steps, *closing)
        after = output_features(closing, after)
        self.features = after if prepared is None else _with_gaps(prepared, after)
        """The features of prepared batches."""
        self._input_schema = wire_schema(features)
        self._schema = wire_schema(self.features)
        self._programs: list[Program] | None = None
        self._compiling = threading.Lock()
        self._stored = self._only_checked()
        """The images that are checked, if that is all that the steps do."""
        if not self._stored:
            self.programs()

    def programs(self) -> list[Program]:
        """The steps' programs; if they only check images, compiled when one is not confirmed."""
        with self._compiling:
            if self._programs is None:
                self._programs = (
                    compile_programs(self._steps, self._features, self.features)
                    if self._steps
                    else []
                )
            return self._programs

    def prepare(self, batch: RawBatch) -> RawBatch:
        """Runs the steps on a batch of wire columns; the rows keep their order.

        The batch's rejects are passed on, followed by the new ones.

        Raises:
            ValueError: if the batch does not have the wire columns of the raw features.
        """
        columns = batch.columns
        if not columns.schema.equals(self._input_schema) and (
            columns.schema.names != self._input_schema.names
            or columns.schema.types != self._input_schema.types
        ):
            raise ValueError(
                f"expected the wire columns {self._input_schema.to_string()}, found "
                f"{columns.schema.to_string()}"
            )
        sure = self._confirmed(columns)
        if not self._steps or (self._stored and sure.all()):
            if columns.schema.names != self._schema.names:
                columns = columns.select(self._schema.names)
            return dataclasses.replace(batch, columns=columns)
        rejects = list(batch.rejects)
        num_filtered = batch.num_filtered
        rows = np.flatnonzero(~sure)
        if sure.any():
            columns = columns.filter(pa.array(~sure))
        for program in self.programs():
            kept, good = [rows[:0]], []
            for places, outcome in run_apart(program, columns):
                if isinstance(outcome, Exception):
                    row = int(rows[places[0]])
                    single = batch.columns.slice(row, 1)
                    rejects.append(self._reject(batch.ids[row], single, outcome))
                    continue
                part, keep, part_rows = outcome.columns, outcome.keep, rows[places]
                if keep is not None:
                    part, part_rows = part.filter(keep), part_rows[keep.to_numpy(False)]
                    num_filtered += len(keep) - len(part_rows)
                kept.append(part_rows)
                good.append(part)
            rows = np.concatenate(kept)
            if not len(rows):
                break
            columns = good[0] if len(good) == 1 else pa.concat_batches(good)
        columns = columns if len(rows) else self.empty_batch()
        if sure.any():
            others = batch.columns.filter(pa.array(sure)).select(self._schema.names)
            others = pa.RecordBatch.from_arrays(others.columns, schema=columns.schema)
            rows = np.concatenate([rows, np.flatnonzero(sure)])
            order = np.argsort(rows)
            rows, columns = rows[order], pa.concat_batches([columns, others]).take(order)
        return RawBatch(
            ids=[batch.ids[row] for row in rows],
            columns=columns,
            rejects=tuple(rejects),
            num_filtered=num_filtered,
        )

    def _only_checked(self) -> tuple[str, ...]:
        """The images that the steps check, if these are all of them: they change nothing."""
        checked = tuple(step.name for step in self._steps if isinstance(step, Check))
        if len(checked) < len(self._steps) or not set(self._schema) <= set(self._input_schema):
            return ()
        if any(getattr(self._features[name], "dtype", "") == "uint16" for name in checked):
            return ()
        for name, feature in self.features.items():
            # The graph must enforce a declaration that differs from the inferred feature.
            if not is_encoded(feature) and feature != self._features.get(name):
                return ()
        return checked

    def _confirmed(self, columns: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which records stay as they are, as all their images are sure to decode: ``bool[n]``."""
        if not self._stored:
            return np.zeros(columns.num_rows, np.bool_)
        clips = [name for name in self._stored if frames_of(self._features[name]) is not None]
        return confirmed(columns, self._stored, clips)

    def empty_batch(self) -> pa.RecordBatch:
        """A prepared batch without records."""
        return pa.RecordBatch.from_pylist([], schema=self._schema)

    def _reject(self, record_id: str, single: pa.RecordBatch, error: Exception) -> Reject:
        trouble = str(getattr(error, "message", error))
        # The last one is the node that failed: others are in the record's values.
        nodes = _STEP.findall(trouble)
        step = self._steps[int(nodes[-1])] if nodes else None
        # The traceback before it has paths, which would make rejects differ between machines.
        text = _NODE.split(trouble)[0].strip().rpartition("\n\n")[2]
        if text.startswith("assertion failed:"):
            text = _unescaped(text)
        if text.count(FAILURE_MARK) > 1:
            # The message comes from a Python function.
            text = text.split(FAILURE_MARK)[1]
        stage, reason = "prepare", "prepare step failed"
        if isinstance(step, DecodeSound) and "\t" in text:
            reason, _, text = text.partition("\t")
        text = " ".join(without_addresses(text).split())[:300]
        if isinstance(step, Resize) and frames_of(self._features.get(step.name)) is not None:
            reason, text = _of_clip(single.column(step.name)[0].as_py(), text)
        elif isinstance(step, Decode | Check):
            known = "unsupported image format" if NO_ALPHA in text else ""
            known = "not a mask" if NOT_A_MASK[:60] in text else known
            known = "not 16 bits" if NOT_16_BITS[:20] in text else known
            content = single.column(step.name)[0].as_py()
            if isinstance(content, list):
                reason, text = _of_clip(content, text)
            else:
                reason = known or diagnose(content)
        elif step is None:
            stage, reason = "validate", "another shape than declared"
        path, _, position = record_id.rpartition("#") if self._numbered else (record_id, "", "")
        reject = Reject(
            record_id=record_id,
            stage=stage,
            reason=reason,
            exception=_exception(text, error),
            message=f"{describe(step)}: {text}" if step is not None else text,
            source=path,
            position=int(position) if position else None,
        )
        return with_record(reject, single, 0, features=self._features, numbered=self._numbered)


def _of_clip(frames: Sequence[bytes], text: str) -> tuple[str, str]:
    """The reason and the message of a clip's failure, with the number of the frame."""
    if FRAMES_DIFFER in text:
        return "frames differ in size", text
    for number, frame in enumerate(frames):
        message = decoding_error(frame)
        if message:
            message = f"frame {number} of {len(frames):,}: {_NODE.split(message)[0].strip()}"
            return diagnose(frame), " ".join(message.split())[:300]
    return ("rotated frame" if FRAME_TURNED in text else "damaged image"), text


def _with_gaps(prepared: Features, made: Features) -> dict[str, Feature]:
    """Declared features, made optional if they are optional after the steps.

    So missing values stay missing for the validation to reject, instead of becoming fill values.
    """
    return {
        name: dataclasses.replace(feature, optional=True)  # type: ignore[arg-type]
        if name in made and is_optional(made[name]) and not is_optional(feature)
        else feature
        for name, feature in prepared.items()
    }


def _unescaped(text: str) -> str:
    """Undoes the C escapes of strings in an assertion's message."""
    content = text.encode().decode("unicode_escape")
    return content.encode("latin-1", "backslashreplace").decode("utf-8", "replace")


def with_record(
    reject: Reject, columns: pa.RecordBatch, row: int, *, features: Features, numbered: bool
) -> Reject:
    """Adds the record's content to a reject: its encoded image or sound, else its values as JSON.

    Args:
        reject: A reject without a payload.
        columns: Raw records, in wire form.
        row: Index of the rejected record.
        features: The features of the columns.
        numbered: Whether a file holds several records.
    """
    encoded = sorted(name for name, feature in features.items() if is_encoded(feature))
    if encoded:
        content = columns.column(encoded[0])[row].as_py()
        if content is not None and (len(content) <= MAX_PAYLOAD_BYTES or not numbered):
            in_file = not (numbered or is_converted(content))
            return with_bytes(reject, content, start=0 if in_file else None)
    return with_row(reject, columns, row)


def _exception(text: str, error: Exception) -> str:
    """The exception's class; for a user's function, the one named at the start of the message."""
    match = _RAISED.match(text)
    return match[1] if match else type(error).__name__


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Stretch:
    """Steps that run as one program."""

    first: int
    """The number of the first step in the recipe."""
    steps: tuple[Step, ...]
    batched: bool
    features: Features
    traced: TracedRecord


def compile_programs(
    steps: Sequence[Step], features: Features, prepared: Features
) -> list[Program]:
    """Compiles the steps into programs, which run one after the other.

    Args:
        steps: All steps, with their files loaded.
        features: The features of the raw records.
        prepared: The features to keep.

    Raises:
        RecipeError: if a step does not accept its input, or returns what cannot be stored.
    """
    stretches: list[_Stretch] = []
    current = features
    for first, stop, batched in _cuts(steps):
        part = tuple(steps[first:stop])
        traced = trace(part, current, first=first)
        stretches.append(
            _Stretch(
                first=first,
                steps=part,
                batched=batched and _can_batch(traced, current),
                features=current,
                traced=traced,
            )
        )
        current = traced.features
    programs: list[Program] = []
    wanted = prepared
    for stretch in reversed(stretches):
        programs.append(Program(stretch, wanted))
        wanted = {
            name: feature
            for name, feature in stretch.features.items()
            if columns_of(name, feature) & programs[-1].needed
        }
    return programs[::-1]


def _cuts(steps: Sequence[Step]) -> Iterator[tuple[int, int, bool]]:
    """Cuts a chain into stretches: (first, stop, whether all steps are batched)."""
    traits = [StepTraits.of(step) for step in steps]
    batched = [trait.batched for trait in traits]
    start = 0
    ends = [number for number, trait in enumerate(traits, 1) if trait.filters]
    for end in [*ends, len(steps)]:
        part = batched[start:end]
        lead = part.index(False) if False in part else len(part)
        trail = part[::-1].index(False) if False in part else 0
        edges = {start, start + lead, end - trail, end}
        for number in range(start, end):
            edges |= {number, number + 1} if traits[number].on_columns else set()
        for first, stop in itertools.pairwise(sorted(edges)):
            yield first, stop, all(batched[first:stop])
        start = end


def _can_batch(traced: TracedRecord, features: Features) -> bool:
    """Whether everything a stretch reads and produces can have a batch dimension."""
    read = [f for name, f in features.items() if columns_of(name, f) & traced.read]
    made = [f for name, f in traced.features.items() if name not in traced.copied]
    return all(map(can_batch, [*read, *made]))


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """The result of running a program on a batch."""

    columns: pa.RecordBatch
    keep: pa.Array | None = None
    """bool[n]: which rows a filter keeps; None without a filter."""
    errors: Mapping[int, Exception] = dataclasses.field(default_factory=dict)
    """The errors of rows that failed a check of a batched step; their columns are undefined."""

    def filter(self, rows: npt.NDArray[np.bool_]) -> Outcome:
        """Selects rows."""
        chosen = pa.array(rows)
        keep = None if self.keep is None else self.keep.filter(chosen)
        return Outcome(self.columns.filter(chosen), keep)


class Program:
    """One compiled stretch, from wire columns of a batch to wire columns; thread-safe.

    ``needed`` names the input columns that it reads or passes on.
    """

    def __init__(self, stretch: _Stretch, prepared: Features) -> None:
        """Compiles the stretch; ``prepared`` are the features to keep."""
        traced, features = stretch.traced, stretch.features
        self._features, self._schema = features, wire_schema(prepared)
        columns = {column.name: column for column in wire_columns(prepared)}
        computed = set().union(*(_computed_columns(*item, traced) for item in prepared.items()))
        self._computed = {name: columns[name] for name in columns if name in computed}
        self._carried = _carried_columns(prepared, traced, features)
        self._presences = {
            name: presence_name(name)
            for name, feature in prepared.items()
            if is_optional(feature) and name in computed
        }
        # Includes computed copies of features that no step reads: their shape is enforced.
        self._read = traced.read | {
            column
            for name in prepared
            if name in computed and name in traced.copied
            for column in columns_of(traced.copied[name], features[traced.copied[name]])
        }
        kept = {old for new, old in self._carried.items() if new not in computed}
        self.needed = self._read | kept
        self._filters = traced.filters
        self._on_columns = _on_columns(stretch, prepared)
        self.function: Any = None
        self._tables: Tables = {}
        if self._on_columns is None and (self._computed or self._read or self._filters):
            self._compile(stretch, prepared)

    def _compile(self, stretch: _Stretch, prepared: Features) -> None:
        import tensorflow as tf

        from . import tensors as batches

        self._tf: Any = tf
        self._batches: Any = batches
        computed, copied = self._computed.keys(), stretch.traced.copied
        held = [f for name, f in prepared.items() if name in computed and name in copied]
        batched = stretch.batched and all(map(can_batch, held))
        run = (self._batched if batched else self._looped)(stretch, prepared)
        self.function = self._traced(run)
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

    def _traced(self, run: Any) -> Any:
        """Traces a function of a batch into a graph; keeps the lookup tables of its steps."""
        refuse_other_case()
        tf = self._tf
        with tf.device("/CPU:0"), holding_tables(self._tables):
            specs = self._batches.batch_specs(self._features, self._read)
            return tf.function(run, autograph=False).get_concrete_function(
                tf.TensorSpec([], tf.int32), specs
            )

    def _looped(self, stretch: _Stretch, prepared: Features) -> Any:
        tf, features = self._tf, stretch.features
        from . import tensors

        specs = {
            part: spec
            for name, feature in prepared.items()
            for part, spec in tensors.wire_specs(name, feature).items()
            if part in self._computed or part == self._presences.get(name)
        }
        if self._filters:
            specs[KEEP] = tf.TensorSpec([], tf.bool)

        def run_record(wire: dict[str, Any]) -> dict[str, Any]:
            wire = {**tensors.empty_wire(features, wire.keys()), **wire}
            given = tensors.to_record(wire, features)
            record, _ = apply_steps(stretch.steps, given, features, first=stretch.first)
            out: dict[str, Any] = {name: record[name] for name in record if name == KEEP}
            for name, feature in prepared.items():
                out.update(tensors.to_wire(name, feature, record))
            return {name: out[name] for name in specs}

        def run_batch(num_records: Any, wire: dict[str, Any]) -> dict[str, Any]:
            mapped: dict[str, Any] = self._batches.map_records(
                run_record, wire, num_records, specs, parallel_records=_PARALLEL_RECORDS
            )
            return mapped

        return run_batch

    def _batched(self, stretch: _Stretch, prepared: Features) -> Any:
        tf, features = self._tf, stretch.features

        def run_batch(num_records: Any, wire: dict[str, Any]) -> dict[str, Any]:
            given = self._batches.to_records(wire, features)
            with flagging() as flags:
                records = apply_batched(
                    stretch.steps,
                    given,
                    features,
                    after=stretch.traced.after,
                    first=stretch.first,
                )
            like = tf.fill([num_records], True)
            out: dict[str, Any] = {name: records[name] for name in records if name == KEEP}
            if KEEP in out and out[KEEP].shape.rank != 1:
                raise RecipeError(
                    f"prepare: {describe(stretch.steps[-1])} returned one bool for a batch, "
                    "expected one for each record. Remove batched=True."
                )
            for name, feature in prepared.items():
                if not self._computed.keys().isdisjoint(columns_of(name, feature)):
                    out |= self._batches.from_records(name, feature, records, like)
            wanted = {*self._computed, *self._presences.values(), KEEP}
            out = {name: value for name, value in out.items() if name in wanted}
            return {**out, _FLAGS: [self._batches.of_failed(flag) for flag in flags]}

        return run_batch

    def run(self, columns: pa.RecordBatch) -> Outcome | Exception:
        """Runs a batch; returns the error if an operation fails."""
        computed: dict[str, Any] = {}
        made: dict[str, pa.Array] = {}
        if self._on_columns is not None:
            made = self._on_columns(columns, self._features)
        if self.function is not None:
            with self._tf.device("/CPU:0"):
                wire = self._batches.to_batch(columns, self._features, self._read)
                num_records = self._tf.constant(columns.num_rows)
                try:
                    computed = self.function(num_records, wire)
                except self._data_errors as error:
                    failure: Exception = error
                    return failure
        arrays = [
            columns.column(self._carried[name])
            if name not in self._computed
            else made[name]
            if name in made
            else self._batches.from_batch(
                computed[name],
                self._computed[name],
                computed[self._presences[name]] if name in self._presences else None,
            )
            for name in self._schema.names
        ]
        keep = pa.array(computed[KEEP].numpy()) if self._filters else None
        for name, array in zip((*self._schema.names, "of a filter"), (*arrays, keep), strict=True):
            if array is not None and len(array) != columns.num_rows:
                raise RecipeError(
                    f"prepare: a batched step returned {len(array):,} values {name!r} for "
                    f"{columns.num_rows:,} records. Remove batched=True from functions that work "
                    "on single records only."
                )
        errors: dict[int, Exception] = {}
        if computed.get(_FLAGS):
            with self._tf.device("/CPU:0"):
                errors = self._batches.errors_of(computed[_FLAGS])
        return Outcome(_record_batch(arrays, self._schema, columns.num_rows), keep, errors)


def _on_columns(stretch: _Stretch, prepared: Features) -> Callable[..., Any] | None:
    """The function of a step on columns, if what is kept is stored as the step makes it."""
    made = stretch.traced.features
    alike = all(n in made and _stored_alike(f, made[n]) for n, f in prepared.items())
    return StepTraits.of(stretch.steps[0]).on_columns if alike else None


def run_apart(
    program: Program, columns: pa.RecordBatch
) -> Iterator[tuple[npt.NDArray[np.intp], Outcome | Exception]]:
    """Runs a batch, and again in parts if it fails: (rows, their outcome or an error)."""

    def run(start: int, stop: int) -> Outcome | Exception:
        advance()
        return program.run(columns.slice(start, stop - start))

    for start, stop, outcome in in_parts(run, columns.num_rows, parts=_PARTS):
        rows = np.arange(start, stop)
        if isinstance(outcome, Exception) or not outcome.errors:
            yield rows, outcome
            continue
        fits = np.ones(len(rows), bool)
        fits[list(outcome.errors)] = False
        yield rows[fits], outcome.filter(fits)
        for row, error in outcome.errors.items():
            yield rows[row : row + 1], error


def _record_batch(arrays: list[pa.Array], schema: pa.Schema, num_rows: int) -> pa.RecordBatch:
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    # Without columns, the number of rows needs a struct array.
    return pa.RecordBatch.from_struct_array(pa.array([{}] * num_rows, pa.struct([])))


def _computed_columns(name: str, feature: Feature, traced: TracedRecord) -> set[str]:
    """Which stored columns of a prepared feature are not copied from the raw batch."""
    if is_encoded(feature):
        return columns_of(name, feature) - traced.copied.keys()
    whole = name in traced.copied and _stored_alike(feature, traced.features[name])
    return set() if whole else columns_of(name, feature)


def _stored_alike(feature: Feature, made: Feature) -> bool:
    """Whether two features have the same columns; limits and gaps are checked after the steps.

    A declared size of pixels must be enforced even if no step reads them.
    """
    forms = [tensor_form(feature), tensor_form(made)]
    if None in forms:
        return feature == made
    bare = [dataclasses.replace(form, optional=False, fill=0) for form in forms if form is not None]
    return bare[0] == bare[1] and side_columns("", feature) == side_columns("", made)


def _carried_columns(
    prepared: Features, traced: TracedRecord, features: Features
) -> dict[str, str]:
    """The columns of copied features: new name -> old name."""
    carried: dict[str, str] = {}
    for name, feature in prepared.items():
        if is_encoded(feature):
            parts = columns_of(name, feature) & traced.copied.keys()
            carried |= {part: traced.copied[part] for part in parts}
        elif name in traced.copied:
            origin = traced.copied[name]
            old: tuple[WireColumn, ...] = features[origin].wire_columns(origin)
            new = feature.wire_columns(name)
            carried |= {a.name: b.name for a, b in zip(new, old, strict=False)}
    return carried
