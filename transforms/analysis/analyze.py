"""Full-pass analysis with tensorflow-transform: the same input gives the same bytes.

What tensorflow-transform computes depends in its last bits on the order of the records, on the
number of workers and on where record batches end; what it saves, on the temporary folder's path
and on Python's hash seed. So all of it is fixed here: one worker, batches of so many rows
whatever the input's were, a temporary folder of a relative path, the order of what is saved. The
rest (a process of its own, its hash seed, one thread per operation) is up to the caller:
``pipelines.analyze.process``.

A module about Beam and TensorFlow: import it where it is used.
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
from ..code.user_code import is_user_file
from ..code.user_reads import running
from ..examples.metadata import features_of_outputs, schema_text, tensor_adapter_config
from ..storage.failures import os_error_in
from ..storage.redaction import redact_repeated
from .autograph_files import keep_autograph_files
from .canonical_graph import canonicalize
from .computed import as_lists
from .graph import GraphOutputs

# Its path becomes part of the names of the graph's lookup tables.
_TEMP = "temp"

ReadBatches = Callable[[Sequence[str]], Iterable[pa.RecordBatch]]
"""Given wire columns, reads these of all records to analyse, in a fixed order. It is plain data
for Beam to pickle: a function of a module, or a ``functools.partial`` of one."""

# What TensorFlow and tensorflow-transform put around the words of the operation that failed.
_NOISE = re.compile(
    r"An error occurred while trying to apply the transformation: |Graph execution error:"
    r"|Detected at node .*\n|<stack traces unavailable>|\[\[.*?\]\]|\[Op:.*?\]"
    r"|\s*Batch instances:[\s\S]*|\[while running .*\]"
)

MAX_TOKENS = 1 << 18
"""About so many distinct tokens are held at once."""

_Token = Union[bytes, int]  # noqa: UP007 - Beam's coders know this form


def analyze(
    preprocessing_fn: PreprocessingFn,
    prepared: Features,
    *,
    read_batches: ReadBatches,
    batch_rows: int,
    folder: str,
) -> GraphOutputs:
    """Runs the analyzers of a ``preprocessing_fn`` and saves the transform graph.

    Must run in a working directory of its own, where temporary files lie meanwhile.

    Args:
        preprocessing_fn: From dict of tensors to dict of tensors.
        prepared: The features that it is given.
        read_batches: Gives the records to analyse, in wire form. It may wait for them: what can
            be done without them is done before.
        batch_rows: Rows in each record batch that is analysed, the last one apart. Means and
            variances depend on it in their last bits.
        folder: Where to: a local folder, which must not exist. ``tft.TFTransformOutput`` reads
            it: ``transform_fn/``, ``transformed_metadata/``, ``metadata/``.

    Returns:
        The features of what the function returns, and which of them are inputs.

    Raises:
        RecipeError: if the function fails, or returns what cannot be stored.
        DataError: if there are no records to analyse.
    """
    traced = trace(preprocessing_fn, prepared)
    # An analysis that needs no column still needs an input: any column, and no records.
    columns = traced.analyzed or [wire_columns(prepared)[0].name]
    config = tensor_adapter_config(prepared, columns=columns)
    reading = _ReadFn(
        read_batches if traced.analyzed else _no_batches,
        columns,
        features=prepared,
        batch_rows=batch_rows,
    )
    try:
        options = _Options(
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
    shutil.rmtree(_TEMP)
    return finish_graph(folder, prepared, traced)


def finish_graph(
    folder: str, prepared: Features, traced: "Traced", *, temp: str | None = None
) -> GraphOutputs:
    """Completes what ``WriteTransformFn`` wrote into a local folder, in canonical bytes.

    Args:
        folder: Local.
        prepared: The features that the graph is given.
        traced: What its function tells.
        temp: Where temporary files lay, if the path was a different one each time.
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
    """What to tell of an error that an analysis ended with."""
    # Beam makes a RuntimeError of what TensorFlow raises while it writes.
    if "tensorflow." in str(error) and (full := os_error_in(str(error))) is not None:
        return full
    return RecipeError(_explain(error, "failed on the data"))


class Traced:
    """What one call of a ``preprocessing_fn`` tells, without any data."""

    def __init__(self, prepared: Features) -> None:
        """Nothing is known yet."""
        self._prepared = prepared
        self.analyzed: list[str] = []
        """Wire columns that its analyzers read, by name."""
        self.kept: dict[str, str] = {}
        """Outputs that are an input, unchanged, all columns of its feature present -> its name."""
        self.like_input: set[str] = set()
        """Sparse outputs with the indices of an optional single value."""
        self.read: set[str] = set()
        """Inputs that it computes with, and does not merely return."""

    def note(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Takes in the tensors of one call."""
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
        optional = {
            id(tensor.indices) for tensor in inputs.values() if isinstance(tensor, tf.SparseTensor)
        }
        self.like_input = {
            name
            for name, tensor in outputs.items()
            if isinstance(tensor, tf.SparseTensor) and id(tensor.indices) in optional
        }


def trace(preprocessing_fn: PreprocessingFn, prepared: Features) -> Traced:
    """Calls a ``preprocessing_fn`` on symbolic tensors, to see what it needs and gives.

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
        raise RecipeError(_explain(error, "failed")) from None
    return traced


def _num_consumers(tensor: Any) -> int:
    parts = tf.nest.flatten(tensor, expand_composites=True)
    return sum(len(part.consumers()) for part in parts)


def rebatch(batches: Iterable[pa.RecordBatch], num_rows: int) -> Iterator[pa.RecordBatch]:
    """Cuts a stream of record batches anew: all of ``num_rows`` rows but the last."""
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


class _Options(PipelineOptions):
    """Options that are parsed once for each view: Beam asks for one at every step of a job."""

    def view_as(self, cls: type[PipelineOptions]) -> Any:
        """The view of that class."""
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]


class _NoRecordsError(Exception):
    """There is nothing to analyse."""


class _ReadFn(beam.DoFn):
    """Reads all records, in batches of equal length, as tfx_bsl wants them."""

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
            # What analyzers make of no records would be a riddle; the caller tells what is wrong.
            raise _NoRecordsError


def _check_any(batches: Iterable[pa.RecordBatch]) -> None:
    if not any(batch.num_rows for batch in batches):
        refuse_no_records()


def refuse_no_records() -> NoReturn:
    """Says that there is nothing to analyse.

    Raises:
        DataError: always.
    """
    raise DataError(
        "No record fell into the split 'train', and preprocessing_fn is analysed on it. Give "
        "it a larger fraction, or more data."
    )


def _no_batches(columns: Sequence[str]) -> Iterable[pa.RecordBatch]:
    del columns
    return ()


def _check_outputs(outputs: Any) -> None:
    """Checks that each output can be stored, and says what to do where not."""
    if not isinstance(outputs, dict) or not outputs:
        found = "an empty dict" if isinstance(outputs, dict) else f"a {type(outputs).__name__}"
        raise RecipeError(
            f"preprocessing_fn returned {found}, expected a dict of tensors by name. Return at "
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
            # The number of records is never known: a first size that is, is of something else.
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
    """One sentence: where in the user's code, the exception's class and its own words."""
    place = ""
    frame = error.__traceback__
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        # Compiled modules name their sources by relative paths.
        if (os.path.isabs(path) or path.startswith("<")) and is_user_file(path):
            place = f" in {os.path.basename(path)} line {frame.tb_lineno}"
        frame = frame.tb_next
    words = " ".join(_NOISE.sub("", redact_repeated(str(error))).split()).strip('". ')
    return f"preprocessing_fn {what}{place}: {type(error).__name__}: {words}"


@common.register_ptransform(analyzer_nodes.VocabularyAccumulate)
@beam.typehints.with_input_types(Tuple[np.ndarray, ...])
@beam.typehints.with_output_types(KV[_Token, Any])
class CountTokens(analyzer_impls._VocabularyAccumulateImpl):
    """Counts tokens by batches, where they are ordered by frequency; else as its base does.

    It is registered in place of tensorflow-transform's own count, which sends every token through
    the engine by itself: most of the time of an analysis of words. Counts are whole numbers, so
    their sums are the same however they are grouped.

    Input: tuples of one array of tokens. Output: (token, count), a token several times.
    """

    def expand(self, inputs: Any) -> Any:
        """Wires the steps."""
        if self._vocab_ordering_type != analyzer_impls._VocabOrderingType.FREQUENCY:
            return super().expand(inputs)
        (batches,) = inputs
        count = beam.ParDo(_CountTokensFn()).with_output_types(KV[_Token, int])
        return batches | "CountTokens" >> count  # (token, count)


class _CountTokensFn(beam.DoFn):
    """Counts tokens in batches of arrays; a count is given when a bundle ends."""

    def start_bundle(self) -> None:
        self._counts: Counter[Any] = Counter()

    def process(self, batch: Any) -> Iterator[tuple[Any, int]]:
        (tokens,) = batch
        self._counts.update(tokens.tolist())
        if len(self._counts) > MAX_TOKENS:
            yield from self._counts.items()
            self._counts.clear()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        window = GlobalWindow()
        for pair in self._counts.items():
            yield WindowedValue(pair, window.max_timestamp(), [window])
