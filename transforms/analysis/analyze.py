"""Full-pass analysis with tensorflow-transform: the same input gives the same bytes.

The last bits of tensorflow-transform's results depend on the order of the records, the number of
workers and where record batches end. The files it saves depend on the path of the temporary
folder and on Python's hash seed. This module fixes all of these: one worker, batches of a fixed
number of rows, a relative temporary folder, and a canonical order in what is saved. The caller,
``pipelines.analyze.process``, fixes the rest: a separate process, its hash seed, and one thread per
operation.

Imports Beam and TensorFlow: import it only where it is used.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Union

import apache_beam as beam
import numpy as np
import pyarrow as pa
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import KV, Tuple
from apache_beam.utils.windowed_value import WindowedValue
from tensorflow_transform import analyzer_nodes
from tensorflow_transform.beam import analyzer_impls, common
from tfx_bsl.tfxio import tensor_adapter

from ...schemas.errors import DataError, RecipeError, SnapshardError
from ...schemas.features import Features, wire_columns
from ...schemas.recipe import PreprocessingFn
from .. import beam_hooks  # noqa: F401 - reports what Beam does; makes it set up faster
from ..case_mapping import refuse_other_case
from ..code.autograph_files import keep_autograph_files
from ..code.dependencies import running
from ..code.graph_operations import refuse_python, refuse_random
from ..code.user_code import is_user_file
from ..examples.metadata import as_lists, features_of_outputs, schema_text, tensor_adapter_config
from ..storage.failures import os_error_in
from ..storage.redaction import redact_repeated
from .canonical_graph import canonicalize
from .graph import GraphOutputs

# This path becomes part of the names of the graph's lookup tables.
_TEMP = "temp"

ReadBatches = Callable[[Sequence[str]], Iterable[pa.RecordBatch]]
"""Reads the given wire columns of all records to analyse, in a fixed order. Beam pickles it: it
must be a module-level function or a ``functools.partial`` of one."""

_MAX_INPUTS = 20
"""Maximum number of inputs that an error lists."""

# What TensorFlow and tensorflow-transform add around the message of the operation that failed.
_NOISE = re.compile(
    r"An error occurred while trying to apply the transformation: |Graph execution error:"
    r"|Detected at node .*\n|<stack traces unavailable>|\[\[.*?\]\]|\[Op:.*?\]"
    r"|\s*Batch instances:[\s\S]*|\[while running .*\]"
)

MAX_TOKENS = 1 << 18
"""Approximate limit on the distinct tokens held in memory at once."""

_Token = Union[bytes, int]  # noqa: UP007 - Beam's coders need this form


def analyze(
    preprocessing_fn: PreprocessingFn,
    prepared: Features,
    *,
    read_batches: ReadBatches,
    batch_rows: int,
    folder: str,
) -> GraphOutputs:
    """Runs the analyzers of a ``preprocessing_fn`` and saves the transform graph.

    Must run in its own working directory, which holds temporary files during the analysis.

    Args:
        preprocessing_fn: From dict of tensors to dict of tensors.
        prepared: Its input features.
        read_batches: Reads the records to analyse, in wire form. It may block until they exist:
            everything that does not need them is done first.
        batch_rows: Rows in each analysed record batch, except the last. The last bits of means
            and variances depend on it.
        folder: The destination: a local folder that must not exist. It gets the layout that
            ``tft.TFTransformOutput`` reads: ``transform_fn/``, ``transformed_metadata/``,
            ``metadata/``.

    Returns:
        The features that the function returns, and which of them are inputs.

    Raises:
        RecipeError: if the function fails, or returns something that cannot be stored.
        DataError: if there are no records to analyse.
    """
    traced = trace(preprocessing_fn, prepared)
    # An analysis that reads no column still needs an input: any column, with no records.
    columns = traced.analyzed or [wire_columns(prepared)[0].name]
    config = tensor_adapter_config(prepared, columns=columns)
    reading = _ReadFn(
        read_batches if traced.analyzed else _no_batches,
        columns,
        features=prepared,
        batch_rows=batch_rows,
    )
    try:
        options = PipelineOptions(
            ["--direct_num_workers=1", "--direct_running_mode=in_memory"], save_main_session=False
        )
        with (
            beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline,
            tft_beam.Context(temp_dir=_TEMP),
        ):
            batches = (
                pipeline
                | "Start" >> beam.Create([None])
                | "ReadRecords" >> beam.ParDo(reading)  # pa.RecordBatch
            )
            graph = (batches, config) | "Analyze" >> tft_beam.AnalyzeDataset(preprocessing_fn)
            graph | "Write" >> tft_beam.WriteTransformFn(folder)
    except Exception as error:
        if traced.analyzed:
            _check_any(read_batches(traced.analyzed))
        if isinstance(error, SnapshardError | OSError | MemoryError):
            raise
        raise analysis_error(error) from None
    refuse_other_case()  # at the end: operations that run before change names in the graph
    shutil.rmtree(_TEMP)
    return finish_graph(folder, prepared, traced)


def finish_graph(
    folder: str, prepared: Features, traced: "Traced", *, temp: str | None = None
) -> GraphOutputs:
    """Completes the output of ``WriteTransformFn`` and rewrites it in canonical bytes.

    Args:
        folder: A local folder.
        prepared: The graph's input features.
        traced: The trace of its function.
        temp: The folder of temporary files, if its path differs from run to run.
    """
    canonicalize(Path(folder), temp=temp)
    raw = Path(folder) / "metadata" / "schema.pbtxt"
    raw.parent.mkdir()
    raw.write_bytes(schema_text(prepared, computed=True))
    output = tft.TFTransformOutput(folder)
    features = features_of_outputs(
        output.transformed_metadata.schema,
        kept={name: prepared[source] for name, source in traced.kept.items()},
        like_input=traced.like_input,
    )
    return GraphOutputs(features=features, kept=traced.kept)


def analysis_error(error: Exception) -> Exception:
    """The error to report for an exception that ended an analysis."""
    # Beam turns TensorFlow's write errors into a RuntimeError.
    if "tensorflow." in str(error) and (full := os_error_in(str(error))) is not None:
        return full
    return RecipeError(_explain(error, "failed on the data"))


class Traced:
    """What one symbolic call of a ``preprocessing_fn`` reveals, without any data."""

    def __init__(self, prepared: Features) -> None:
        """Starts empty; ``note`` fills it."""
        self._prepared = prepared
        self.analyzed: list[str] = []
        """Names of the wire columns that its analyzers read."""
        self.kept: dict[str, str] = {}
        """Outputs that are an unchanged input with all columns of its feature -> input's name."""
        self.like_input: set[str] = set()
        """Sparse outputs that share the indices of an optional single value."""
        self.read: set[str] = set()
        """Inputs that it computes with, rather than just returns."""
        self.outputs: list[str] = []
        """Names of the features that it returns."""

    def note(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Records the input and output tensors of one call."""
        given = {id(tensor): name for name, tensor in inputs.items()}
        same = {name: given.get(id(tensor)) for name, tensor in outputs.items()}
        self.kept = {}
        for name, feature in self._prepared.items():
            columns = [column.name for column in feature.wire_columns(name)]
            if all(same.get(column) == column for column in columns):
                self.kept[name] = name
            elif len(columns) == 1:
                renamed = [output for output, source in same.items() if source == name]
                self.kept.update(dict.fromkeys(renamed, name))
        sides = {
            column.name
            for name, source in self.kept.items()
            for column in self._prepared[source].wire_columns(name)
            if column.name != name
        }
        self.outputs = [name for name in outputs if name not in sides]
        optional = {
            id(tensor.indices) for tensor in inputs.values() if isinstance(tensor, tf.SparseTensor)
        }
        self.like_input = {
            name
            for name, tensor in outputs.items()
            if isinstance(tensor, tf.SparseTensor) and id(tensor.indices) in optional
        }


def trace(preprocessing_fn: PreprocessingFn, prepared: Features) -> Traced:
    """Calls a ``preprocessing_fn`` on symbolic tensors to find what it reads and returns.

    Raises:
        RecipeError: if it fails, or does not return a dict of tensors.
    """
    traced = Traced(prepared)

    def noted(inputs: dict[str, Any]) -> dict[str, Any]:
        given = dict(inputs)
        before = {name: _num_consumers(tensor) for name, tensor in given.items()}
        keep_autograph_files()
        with running(preprocessing_fn):
            outputs = preprocessing_fn(inputs)
        graph = tf.compat.v1.get_default_graph()
        refuse_random(graph, "preprocessing_fn")
        refuse_python(graph, "preprocessing_fn", instead="Use ss.records.map_python in prepare=.")
        _check_outputs(outputs)
        traced.read = {name for name in given if _num_consumers(given[name]) > before[name]}
        traced.note(given, outputs)
        return outputs

    specs = tensor_adapter.TensorAdapter(tensor_adapter_config(prepared)).TypeSpecs()
    try:
        traced.analyzed = sorted(tft.get_analyze_input_columns(noted, specs))
    except RecipeError:
        raise
    except Exception as error:
        message = _explain(error, "failed").rstrip(".")
        raise RecipeError(f"{message}. {_describe_inputs(specs)}") from None
    return traced


def _describe_inputs(specs: Mapping[str, Any]) -> str:
    """What a ``preprocessing_fn`` is called with, and how sparse tensors become dense."""
    kinds = {tf.SparseTensorSpec: "sparse ", tf.RaggedTensorSpec: "ragged "}
    shown = [
        f"{name!r}: {kinds.get(type(spec), '')}{spec.dtype.name}{list(spec.shape)[1:] or ''}"
        for name, spec in specs.items()
    ]
    if len(shown) > _MAX_INPUTS:
        shown = [*shown[:_MAX_INPUTS], f"and {len(shown) - _MAX_INPUTS} more"]
    text = f"Its inputs, for a batch of records: {', '.join(shown)}."
    if any(isinstance(spec, tf.SparseTensorSpec) for spec in specs.values()):
        text += " Sparse ones may lack values: ss.tables.fill in prepare= makes them dense."
    return text


def _num_consumers(tensor: Any) -> int:
    parts = tf.nest.flatten(tensor, expand_composites=True)
    return sum(len(part.consumers()) for part in parts)


def rebatch(batches: Iterable[pa.RecordBatch], num_rows: int) -> Iterator[pa.RecordBatch]:
    """Rebatches a stream of record batches to ``num_rows`` rows each; the last may be smaller."""
    held: list[pa.RecordBatch] = []
    num_held = 0
    for batch in batches:
        start = 0
        while batch.num_rows - start >= num_rows - num_held:
            held.append(batch.slice(start, num_rows - num_held))
            start += num_rows - num_held
            yield pa.concat_batches(held)
            held, num_held = [], 0
        if start < batch.num_rows:
            held.append(batch.slice(start))
            num_held += batch.num_rows - start
    if held:
        yield pa.concat_batches(held)


class _NoRecordsError(Exception):
    """There are no records to analyse."""


class _ReadFn(beam.DoFn):
    """Reads all records in batches of equal length, in the form that tfx_bsl expects."""

    def __init__(
        self,
        read_batches: ReadBatches,
        columns: Sequence[str],
        *,
        features: Features,
        batch_rows: int,
    ) -> None:
        self._read_batches = read_batches
        self._features = features
        self._batch_rows = batch_rows
        self._columns = list(columns)

    def process(self, element: None) -> Iterator[pa.RecordBatch]:
        del element
        num_rows = 0
        for batch in rebatch(self._read_batches(self._columns), self._batch_rows):
            num_rows += batch.num_rows
            yield as_lists(batch.select(self._columns), self._features)
        if self._read_batches is not _no_batches and not num_rows:
            # Analyzers fail on no records with an obscure error; the caller raises a clear one.
            raise _NoRecordsError


def _check_any(batches: Iterable[pa.RecordBatch]) -> None:
    if not any(batch.num_rows for batch in batches):
        refuse_no_records()


def refuse_no_records() -> NoReturn:
    """Raises the error for an analysis without records.

    Raises:
        DataError: always.
    """
    raise DataError(
        "No record fell into the split 'train', on which preprocessing_fn is analysed. Give "
        "the split a larger fraction, or add more data."
    )


def _no_batches(columns: Sequence[str]) -> Iterable[pa.RecordBatch]:
    del columns
    return ()


def _check_outputs(outputs: Any) -> None:
    """Checks that each output can be stored."""
    if not isinstance(outputs, dict) or not outputs:
        given = "an empty dict" if isinstance(outputs, dict) else f"a {type(outputs).__name__}"
        raise RecipeError(
            f"preprocessing_fn returned {given}, expected a dict of tensors by name. Return at "
            "least one."
        )
    for name, tensor in outputs.items():
        if not isinstance(tensor, tf.Tensor | tf.SparseTensor | tf.RaggedTensor):
            raise RecipeError(
                f"preprocessing_fn returned {name!r} as {tensor!r}, expected a tensor with one "
                "value or row for each record."
            )
        if tensor.dtype not in (tf.int64, tf.float32, tf.string):
            raise RecipeError(
                f"preprocessing_fn returned {name!r} as {tensor.dtype.name}, expected int64, "
                "float32 or string. Cast it: tf.cast(x, tf.int64)."
            )
        rank, sizes = tensor.shape.rank, list(tensor.shape or ())
        if isinstance(tensor, tf.Tensor):
            # The number of records is unknown while tracing: a known first size is not a batch.
            fits = bool(rank) and sizes[0] is None and None not in sizes[1:]
            expected = "[records, …] with all other sizes known: give each record a value or row"
        elif isinstance(tensor, tf.RaggedTensor):
            fits = tensor.ragged_rank == 1 and None not in sizes[2:]
            expected = "one ragged dimension, the second: flatten it, or return its parts"
        else:
            fits = rank == 2
            expected = "two dimensions: flatten it, or return its parts"
        if not fits:
            raise RecipeError(
                f"preprocessing_fn returned {name!r} of shape {tensor.shape}, expected {expected}."
            )


def _explain(error: BaseException, what: str) -> str:
    """One sentence: the place in the user's code, the exception's class and its message."""
    place = ""
    frame = error.__traceback__
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        # Compiled modules give relative paths for their sources.
        if (os.path.isabs(path) or path.startswith("<")) and is_user_file(path):
            place = f" in {os.path.basename(path)} line {frame.tb_lineno}"
        frame = frame.tb_next
    if "'untracked' resource" in str(error):
        return (
            "preprocessing_fn uses a lookup table or variable of TensorFlow from outside, which "
            "its graph cannot hold: make the table inside the function, and use numbers or arrays "
            "in place of variables"
        )
    words = " ".join(_NOISE.sub("", redact_repeated(str(error))).split()).strip('". ')
    return f"preprocessing_fn {what}{place}: {type(error).__name__}: {words}"


@common.register_ptransform(analyzer_nodes.VocabularyAccumulate)
@beam.typehints.with_input_types(Tuple[np.ndarray, ...])
@beam.typehints.with_output_types(KV[_Token, Any])
class CountTokens(analyzer_impls._VocabularyAccumulateImpl):
    """Counts tokens batch by batch if they are ordered by frequency; otherwise as its base does.

    Replaces tensorflow-transform's own count, which sends every single token through the engine
    and takes most of the time of a vocabulary analysis. Counts are integers, so their sums do not
    depend on how they are grouped.

    Input: tuples of one array of tokens. Output: (token, count); a token may occur several times.
    """

    def expand(self, inputs: Any) -> Any:
        """Builds the transform."""
        if self._vocab_ordering_type != analyzer_impls._VocabOrderingType.FREQUENCY:
            return super().expand(inputs)
        (batches,) = inputs
        count = beam.ParDo(_CountTokensFn()).with_output_types(KV[_Token, int])
        return batches | "CountTokens" >> count  # (token, count)


class _CountTokensFn(beam.DoFn):
    """Counts tokens in arrays; emits counts when a bundle ends or too many tokens are held."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens

    def start_bundle(self) -> None:
        self._counts: Counter[Any] = Counter()

    def process(self, batch: Any) -> Iterator[tuple[Any, int]]:
        (tokens,) = batch
        self._counts.update(tokens.tolist())
        if len(self._counts) > self._max_tokens:
            yield from self._counts.items()
            self._counts.clear()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        window = GlobalWindow()
        for pair in self._counts.items():
            yield WindowedValue(pair, window.max_timestamp(), [window])
