"""Runs the prepare steps on batches of records.

A batch that fails is run again in parts, down to single records: those that fail become rejects,
and the others get the same bytes as in a batch, since a record's result does not depend on other
records.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ....schemas.blocks import RawBatch
from ....schemas.errors import Reject
from ....schemas.features import Feature, Features, frames_of, is_encoded, is_optional
from ...media.image_codecs import NO_ALPHA, NOT_16_BITS, NOT_A_MASK, decoding_error
from ...media.image_header import diagnose
from ...media.tiff import is_converted
from ...payloads import MAX_PAYLOAD_BYTES, with_bytes, with_row
from ...runs.files import wire_schema
from ..audio import Decode as DecodeSound
from ..images import FRAME_TURNED, FRAMES_DIFFER, Check, Decode, Resize
from ..values import FAILURE_MARK
from .chain import Step, closing_steps, describe, output_features
from .program import Program, compile_programs, run_apart

if TYPE_CHECKING:
    from ...media.image_codecs import JpegCheck

__all__ = ["StepRunner", "output_features"]

_STEP = re.compile(r"\{\{node (?:[^}]*?/)?step(\d+)(?:_\d+)?/")
_RAISED = re.compile(r"([A-Za-z_]\w*(?:Error|Exception|Warning|Interrupt|Exit|Iteration)): ")
_NODE = re.compile(r"\s*\[\[\{\{node ")


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
        found = output_features(steps, features)
        closing = closing_steps(found, prepared)
        self._steps = (*steps, *closing)
        found = output_features(closing, found)
        self.features = found if prepared is None else _with_gaps(prepared, found)
        """The features of prepared batches."""
        self._input_schema = wire_schema(features)
        self._schema = wire_schema(self.features)
        self._programs: list[Program] | None = None
        self._compiling = threading.Lock()
        self._quick = self._quick_check()
        if self._quick is None:
            self.programs()

    def programs(self) -> list[Program]:
        """The steps' programs; if there is a quick check, compiled only when it fails."""
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
        if columns.schema.names != self._input_schema.names or (
            columns.schema.types != self._input_schema.types
        ):
            raise ValueError(
                f"expected the wire columns {self._input_schema.to_string()}, found "
                f"{columns.schema.to_string()}"
            )
        if not self._steps or (self._quick is not None and self._quick.passes(columns)):
            return dataclasses.replace(batch, columns=columns.select(self._schema.names))
        rejects = list(batch.rejects)
        num_filtered = batch.num_filtered
        rows = np.arange(columns.num_rows)
        for program in self.programs():
            kept, good = [rows[:0]], []
            for found, outcome in run_apart(program, columns):
                if isinstance(outcome, Exception):
                    row = int(rows[found[0]])
                    single = batch.columns.slice(row, 1)
                    rejects.append(self._reject(batch.ids[row], single, outcome))
                    continue
                part, keep, part_rows = outcome.columns, outcome.keep, rows[found]
                if keep is not None:
                    part, part_rows = part.filter(keep), part_rows[keep.to_numpy(False)]
                    num_filtered += len(keep) - len(part_rows)
                kept.append(part_rows)
                good.append(part)
            rows = np.concatenate(kept)
            if not len(rows):
                break
            columns = good[0] if len(good) == 1 else pa.concat_batches(good)
        return RawBatch(
            ids=[batch.ids[row] for row in rows],
            columns=columns if len(rows) else self.empty_batch(),
            rejects=tuple(rejects),
            num_filtered=num_filtered,
        )

    def _quick_check(self) -> JpegCheck | None:
        """A check that can replace the graph if all steps are checks, which change nothing."""
        checked = [step.name for step in self._steps if isinstance(step, Check)]
        if not checked or len(checked) < len(self._steps):
            return None
        if not set(self._schema) <= set(self._input_schema):
            return None
        if any(getattr(self._features[name], "dtype", "") == "uint16" for name in checked):
            return None
        for name, feature in self.features.items():
            # The graph must enforce a declaration that differs from the inferred feature.
            if not is_encoded(feature) and feature != self._features.get(name):
                return None
        from ...media.image_codecs import JpegCheck

        clips = [name for name in checked if frames_of(self._features[name]) is not None]
        return JpegCheck(checked, clips)

    def empty_batch(self) -> pa.RecordBatch:
        """A prepared batch without records."""
        return pa.RecordBatch.from_pylist([], schema=self._schema)

    def _reject(self, record_id: str, single: pa.RecordBatch, error: Exception) -> Reject:
        trouble = str(getattr(error, "message", error))
        found = _STEP.search(trouble)
        step = self._steps[int(found[1])] if found else None
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
        text = " ".join(text.split())[:300]
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


def _with_gaps(prepared: Features, found: Features) -> dict[str, Feature]:
    """Declared features, made optional if they are optional after the steps.

    So missing values stay missing for the validation to reject, instead of becoming fill values.
    """
    return {
        name: dataclasses.replace(feature, optional=True)  # type: ignore[arg-type]
        if name in found and is_optional(found[name]) and not is_optional(feature)
        else feature
        for name, feature in prepared.items()
    }


def _unescaped(text: str) -> str:
    """Undoes the C escapes of strings in an assertion's message."""
    content = text.encode("latin-1", "backslashreplace").decode("unicode_escape")
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
    found = _RAISED.match(text)
    return found[1] if found else type(error).__name__
