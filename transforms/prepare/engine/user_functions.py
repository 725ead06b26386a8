"""User functions among the prepare steps: calls them, checks their results, names them in errors.

Most are traced into the graph. ``map_python`` calls a Python function on each record from inside
the graph.
"""

from __future__ import annotations

import collections
import inspect
import itertools
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ....schemas.config import config_class
from ....schemas.errors import RecipeError, SchemaError, SnapshardError
from ....schemas.features import (
    Feature,
    Features,
    Image,
    Text,
    features_to_json,
    is_optional,
    presence_name,
    tensor_form,
)
from ....schemas.recipe import PrepareStep, RecordFn, StepTraits
from ...activity import advance
from ...code.autograph_files import keep_autograph_files
from ...code.dependencies import note_path, note_unseen, running
from ...code.user_code import is_user_file
from ...examples.row_values import to_array
from ...rejects import FAILURE_MARK
from ...storage.redaction import redact_repeated
from ..values import NO_FEATURES, Value, verdicts

_FILE_OPS = {
    "ReadFile": 0,
    "MatchingFiles": 0,
    "InitializeTableFromTextFileV2": 1,
    "TextLineDataset": 0,
    "TFRecordDataset": 0,
    "FixedLengthRecordDatasetV2": 0,
}
"""Operations that read files -> the index of the input that holds the path."""

_Row = dict[str, Any]


def describe(step: PrepareStep | RecordFn) -> str:
    """A readable name of a step."""
    if isinstance(step, PrepareStep):
        return repr(step)
    return f"function {getattr(function_of(step), '__qualname__', None) or repr(step)}"


def function_of(step: PrepareStep | RecordFn) -> Any:
    """The user's function in a step, or the step itself if it is a function."""
    functions = StepTraits.of(step).functions
    return functions[0] if functions else step


def where_of(step: RecordFn) -> str:
    """A readable name of a function, with its line."""
    code = getattr(function_of(step), "__code__", None)
    return describe(step) + (f" (line {code.co_firstlineno})" if code is not None else "")


def result_of(step: RecordFn, record: dict[str, Any], features: Features) -> dict[str, Any]:
    """Calls a user's function on a record's features and checks that it returns a dict."""
    # Side tensors are not passed: they stay with their features.
    given = {name: record[name] for name in features}
    result = call_user(function_of(step), given, where=where_of(step))
    if not isinstance(result, dict) or not all(isinstance(name, str) for name in result):
        raise RecipeError(
            f"prepare: {where_of(step)} returned a {type(result).__name__}, expected a dict of "
            "tensors by name."
        )
    if not result:
        raise RecipeError(
            f"prepare: {where_of(step)} returned an empty dict, expected at least one tensor."
        )
    return result


def names_read(step: PrepareStep | RecordFn, features: Features) -> set[str]:
    """The features whose values a user's function reads.

    Raises:
        RecipeError: if it fails.
    """
    import tensorflow as tf

    from .tensors import record_specs, to_record

    read: set[str] = set()

    def run(wire: dict[str, Any]) -> Any:
        record = to_record(wire, features)
        given = {name: record[name] for name in features}
        before = {name: len(given[name].consumers()) for name in given}
        values = dict(given)
        call_user(function_of(step), values, where=describe(step))
        read.update(name for name in given if len(given[name].consumers()) > before[name])
        return tf.constant(0)

    with tf.device("/CPU:0"):
        tf.function(run, autograph=False).get_concrete_function(record_specs(features))
    return read


def call_user(
    function: Callable[[dict[str, Any]], Any], given: dict[str, Any], *, where: str
) -> Any:
    """Calls a user's function on a record of tensors, with its control flow converted by AutoGraph.

    Raises:
        RecipeError: if it fails; ``where`` names it.
    """
    try:
        # Functions that it calls are converted when it calls them.
        keep_autograph_files()
        with running(function):
            return _with_autograph(function)(dict(given))
    except SnapshardError:
        raise
    except Exception as error:
        shown = ", ".join(
            f"{name!r}: {value.dtype.name}{value.shape}" for name, value in given.items()
        )
        raise RecipeError(
            f"prepare: {where} failed with {type(error).__name__}: "
            f"{redact_repeated(str(error)).rstrip('.')}. It was called with a record "
            f"of tensors: {shown}. Use TensorFlow operations, and return a dict of tensors."
        ) from error


def _with_autograph(function: RecordFn) -> Callable[[dict[str, Any]], Any]:
    """Converts the function's ``if`` and ``for`` over tensors to graph operations."""
    import tensorflow as tf

    if not inspect.isfunction(function):
        return function
    try:
        converted: Callable[[dict[str, Any]], Any] = tf.autograph.to_graph(function)
    except Exception:
        # Without its source it runs unconverted, and fails on its own if it cannot be traced.
        return function
    return converted


def note_file_reads(graph: Any, steps: Sequence[PrepareStep | RecordFn]) -> None:
    """Records the files that operations of a traced graph read, for ``refuse_undeclared``."""
    import tensorflow as tf

    named: set[str] = set()
    seen = collections.Counter(_operation_types(graph))
    for operation in graph.get_operations():
        if operation.type in _FILE_OPS:
            path = tf.get_static_value(operation.inputs[_FILE_OPS[operation.type]])
            if path is not None and path.ndim == 0:
                named.add(os.fsdecode(path.item()))
                seen[operation.type] -= 1
    unseen = sorted(f"the operation {kind}" for kind in _FILE_OPS if seen[kind])
    for step in steps:
        for path in named:
            note_path(function_of(step), path)
        if unseen:
            note_unseen(function_of(step), unseen[0])


def _operation_types(graph: Any) -> list[str]:
    definition = graph.as_graph_def()
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes.extend(function.node_def)
    return [node.op for node in nodes]


@config_class
class MapPython:
    """See :func:`.records.map_python`."""

    function: Callable[[dict[str, Any]], Any]
    outputs: Mapping[str, Any]
    inputs: tuple[str, ...] | None = None
    batched = True
    sees_features = True
    export_obstacle = "it runs Python"

    def __post_init__(self) -> None:
        """Checks the declared outputs."""
        if not self.outputs:
            raise ValueError("features: expected at least one feature that the function returns")
        for name, feature in self.outputs.items():
            pixels = isinstance(feature, Image) and feature.storage == "raw"
            if not pixels and not isinstance(feature, Value):
                raise ValueError(
                    f"features: {name!r} is {feature!r}, expected pixels or plain values: declare "
                    "a feature such as ss.Scalar(…), ss.Tensor(…), ss.Text() or ss.Image(…)"
                )

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's function."""
        return (self.function,)

    def __repr__(self) -> str:
        """As shown in errors."""
        return f"ss.records.map_python({describe(self.function)})"

    def settings(self) -> dict[str, object]:
        """Everything but the function that affects the output, as JSON, for the fingerprint."""
        return {
            "step": "records.map_python",
            "outputs": features_to_json(self.outputs),
            "inputs": None if self.inputs is None else list(self.inputs),
        }

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if an input is not a feature.
        """
        unknown = sorted(set(self.inputs or ()) - set(features))
        if unknown:
            raise RecipeError(
                f"prepare: {self!r}: there is no feature {', '.join(repr(n) for n in unknown)}, "
                f"expected some of {', '.join(repr(n) for n in sorted(features))}."
            )
        return {**features, **self.outputs}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Calls the function on the record, or on each record of a batch."""
        import tensorflow as tf

        names = [name for name in features if self.inputs is None or name in self.inputs]
        # Without inputs, one feature is needed to detect a batch.
        shown = names or list(features)[:1]
        is_batch = any(_is_batch(record[name], features[name]) for name in shown)
        parts: list[Any] = []
        for name in shown:
            value, present = record[name], record.get(presence_name(name))
            if present is None:
                present = tf.constant(True)
            ragged = isinstance(value, tf.RaggedTensor)
            parts += [value.flat_values if ragged else tf.identity(value), present]
            parts.append(value.row_splits if ragged else tf.constant([], tf.int64))
        caller = _Caller(self, {name: features[name] for name in shown}, names, is_batch=is_batch)
        dtypes: list[Any] = []
        for feature in self.outputs.values():
            dtypes += [_tf_dtype(feature), tf.int64, tf.bool]
        *results, failures = tf.numpy_function(caller, parts, [*dtypes, tf.string])
        # TensorFlow would log an exception with its complete traceback.
        failures = tf.ensure_shape(failures, [None] if is_batch else [])
        with tf.control_dependencies(verdicts(failures == b"", [failures])):
            made = iter([tf.identity(result) for result in results])
        kept = {part: value for part, value in record.items() if part not in self._replaced()}
        for name, feature in self.outputs.items():
            kept |= _shaped(name, feature, [next(made) for _ in range(3)], is_batch=is_batch)
        return kept

    def _replaced(self) -> set[str]:
        return {part for name in self.outputs for part in (name, presence_name(name))}


class _Caller:
    """The callable that TensorFlow invokes; calls the function on NumPy values."""

    def __init__(
        self, step: MapPython, features: Features, names: list[str], *, is_batch: bool
    ) -> None:
        self._step = step
        self._features = features
        self._names = frozenset(names)
        self._is_batch = is_batch

    def __call__(self, *parts: Any) -> list[Any]:
        failures: list[bytes] = []
        with running(self._step.function):
            results = [self._call(row, failures) for row in self._rows(parts)]
        messages = np.array(failures, object)
        arrays: list[Any] = []
        for name, feature in self._step.outputs.items():
            arrays += _together([row[name] for row in results], feature, is_batch=self._is_batch)
        return [*arrays, messages if self._is_batch else messages.reshape(())]

    def _rows(self, parts: tuple[Any, ...]) -> Iterator[_Row]:
        columns = [
            (name, feature, *parts[3 * i : 3 * i + 3])
            for i, (name, feature) in enumerate(self._features.items())
        ]
        if not self._is_batch:
            yield {n: _python(v, f, bool(p)) for n, f, v, p, _ in columns if n in self._names}
            return
        num_rows = min(len(s) - 1 if len(s) else len(v) for _, _, v, _, s in columns)
        for row in range(num_rows):
            record = {}
            for name, feature, value, present, splits in columns:
                part = value[splits[row] : splits[row + 1]] if len(splits) else value[row]
                is_there = bool(present[row]) if present.ndim else True
                if name in self._names:
                    record[name] = _python(part, feature, is_there)
            yield record

    def _call(self, row: _Row, failures: list[bytes]) -> _Row:
        """Calls the function on a record; if it fails, returns Nones and adds a message."""
        advance()
        try:
            result = self._checked(self._step.function(row))
        except SchemaError as error:
            text = str(error)
        except Exception as error:
            text = f"{type(error).__name__}: {redact_repeated(str(error))}{_where(error)}"
        else:
            failures.append(b"")
            return result
        failures.append(f"{FAILURE_MARK}{text}{FAILURE_MARK}".encode("utf-8", "replace"))
        return dict.fromkeys(self._step.outputs)

    def _checked(self, result: Any) -> _Row:
        outputs = self._step.outputs
        if not isinstance(result, Mapping) or set(result) != set(outputs):
            shown = (
                sorted(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
            )
            text = f"the function returned {shown}, expected {sorted(outputs)}"
            if isinstance(result, Mapping) and set(result) > set(outputs):
                text += ": only those that features= declares; the record keeps all others"
            raise SchemaError(text)
        return {name: _array(name, feature, result[name]) for name, feature in outputs.items()}


def call_on_strings(
    function: Callable[[list[bytes]], list[Any]], value: Any, dtype: Any, *, instead: list[Any]
) -> tuple[Any, Any]:
    """Calls a function on all strings of a tensor: (concatenated values, number for each string).

    Args:
        function: From the strings to a sequence of values for each; it raises a ValueError if a
            string is invalid.
        value: A string tensor of any shape.
        dtype: TensorFlow dtype of the values.
        instead: Values for a string on which the function fails.

    Returns:
        ``dtype[any]`` and ``int64[shape of value]``.
    """
    import tensorflow as tf

    def call(strings: Any) -> list[Any]:
        flat = [strings] if isinstance(strings, bytes) else strings.ravel().tolist()
        failures = [b""] * len(flat)
        try:
            values_of = function(flat)
        except ValueError:
            values_of = [_one(function, text, failures, row) for row, text in enumerate(flat)]
            values_of = [instead if values is None else values for values in values_of]
        lengths = np.array([len(values) for values in values_of], np.int64)
        values = np.array(list(itertools.chain.from_iterable(values_of)), dtype.as_numpy_dtype)
        shape = np.shape(strings)
        return [values, lengths.reshape(shape), np.array(failures, object).reshape(shape)]

    values, lengths, failures = tf.numpy_function(call, [value], [dtype, tf.int64, tf.string])
    failures = tf.ensure_shape(failures, value.shape)
    with tf.control_dependencies(verdicts(failures == b"", [failures])):
        return tf.ensure_shape(values, [None]), tf.ensure_shape(lengths, value.shape)


def _one(
    function: Callable[[list[bytes]], list[Any]], text: bytes, failures: list[bytes], row: int
) -> Any:
    """Calls a function on one string; None, with the message in ``failures``, if it fails."""
    try:
        return function([text])[0]
    except ValueError as error:
        failures[row] = f"{FAILURE_MARK}{error}{FAILURE_MARK}".encode()
        return None


def _is_batch(value: Any, feature: Feature) -> bool:
    import tensorflow as tf

    if isinstance(value, tf.RaggedTensor):
        return True
    form = tensor_form(feature)
    if form is not None:
        num_dims = len(form.shape)
    else:
        num_dims = 3 if isinstance(feature, Image) and feature.storage == "raw" else 0
    return bool(value.shape.rank > num_dims)


def _tf_dtype(feature: Feature) -> Any:
    import tensorflow as tf

    form = tensor_form(feature)
    return tf.as_dtype(_pixel_dtype(feature) if form is None else form.dtype)


def _pixel_dtype(feature: Feature) -> str:
    return feature.dtype if isinstance(feature, Image) else "uint8"


def _shape(feature: Feature) -> tuple[int | None, ...]:
    form = tensor_form(feature)
    if form is not None:
        return form.shape
    assert isinstance(feature, Image)
    return (feature.height, feature.width, feature.channels)


def _python(value: Any, feature: Feature, is_there: bool) -> Any:
    """Converts a value to the form in which the function receives it."""
    if not is_there:
        return None
    form = tensor_form(feature)
    if form is not None and form.dtype == "string" and not form.shape:
        content = bytes(value) if isinstance(value, bytes) else value.item()
        return content.decode("utf-8", "replace") if isinstance(feature, Text) else content
    if form is None and not (isinstance(feature, Image) and feature.storage == "raw"):
        return value if isinstance(value, bytes) else value.item()
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


def _array(name: str, feature: Feature, value: Any) -> Any:
    """Converts a returned value to an array of its feature's dtype and shape; None if missing."""
    if value is None and is_optional(feature):
        return None
    if isinstance(feature, Image):
        pixels = np.asarray(value)
        wanted = _shape(feature)
        fits = pixels.dtype == feature.dtype and pixels.ndim == 3
        if not fits or any(w not in (None, s) for s, w in zip(pixels.shape, wanted, strict=True)):
            found = f"{pixels.dtype}{list(pixels.shape)}"
            raise SchemaError(
                f"{name!r} is {found}, expected {feature.dtype} of the shape {wanted}"
            )
        return pixels
    return to_array(name, feature, value)


def _together(values: list[Any], feature: Feature, *, is_batch: bool) -> list[Any]:
    """Arrays of all records: values, int64 lengths where they vary, bool presence."""
    form, shape = tensor_form(feature), _shape(feature)
    dtype = np.dtype(_tf_dtype(feature).as_numpy_dtype)
    present = np.array([value is not None for value in values])
    fill: object = form.fill if form is not None else 0
    fill = fill.encode() if isinstance(fill, str) else fill
    inner = tuple(dim or 0 for dim in shape)
    filled = [np.full(inner, fill, dtype) if value is None else value for value in values]
    if not is_batch:
        return [_typed(filled[0], dtype), np.zeros(0, np.int64), present[0]]
    if shape[:1] == (None,):
        lengths = np.array([len(value) for value in filled], np.int64)
        empty = [np.zeros((0, *inner[1:]), dtype)]
        return [_typed(np.concatenate(empty + filled), dtype), lengths, present]
    stacked = np.stack(filled) if filled else np.zeros((0, *inner), dtype)
    return [_typed(stacked, dtype), np.zeros(0, np.int64), present]


def _typed(array: Any, dtype: Any) -> Any:
    return np.asarray(array, dtype)


def _shaped(name: str, feature: Feature, made: list[Any], *, is_batch: bool) -> dict[str, Any]:
    """Builds a feature's tensor, and its presence, from the values that came back."""
    import tensorflow as tf

    value, lengths, present = made
    shape = _shape(feature)
    if is_batch and shape[:1] == (None,):
        flat = tf.ensure_shape(value, shape)
        lengths = tf.ensure_shape(lengths, [None])
        value = tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)
    else:
        value = tf.ensure_shape(value, [None, *shape] if is_batch else shape)
    tensors = {name: value}
    if is_optional(feature):
        tensors[presence_name(name)] = tf.ensure_shape(present, [None] if is_batch else [])
    return tensors


def _where(error: Exception) -> str:
    """The line of the user's code that failed."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if is_user_file(frame.filename)
    ]
    return f" (line {lines[-1]})" if lines else ""
