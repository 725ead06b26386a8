"""Functions of the user's own among the prepare steps: called, checked, named in errors."""

from __future__ import annotations

import collections
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

from ....schemas.errors import RecipeError, SnapshardError
from ....schemas.features import Features
from ....schemas.recipe import PrepareStep, RecordFn
from ....schemas.step_traits import StepTraits
from ...analysis.autograph_files import keep_autograph_files
from ...code.user_reads import note_path, note_unseen, running
from ...storage.redaction import redact_repeated

_FILE_OPS = {
    "ReadFile": 0,
    "MatchingFiles": 0,
    "InitializeTableFromTextFileV2": 1,
    "TextLineDataset": 0,
    "TFRecordDataset": 0,
    "FixedLengthRecordDatasetV2": 0,
}
"""Operations that read files, and which of their inputs holds the path."""
_RANDOM_OPS = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")


def describe(step: PrepareStep | RecordFn) -> str:
    """Names a step for a person."""
    if isinstance(step, PrepareStep):
        return repr(step)
    return f"function {getattr(function_of(step), '__qualname__', None) or repr(step)}"


def function_of(step: PrepareStep | RecordFn) -> Any:
    """The user's function that a step which states no features of its own is or holds."""
    functions = StepTraits.of(step).functions
    return functions[0] if functions else step


def where_of(step: RecordFn) -> str:
    """Names a function and its line."""
    code = getattr(function_of(step), "__code__", None)
    return describe(step) + (f" (line {code.co_firstlineno})" if code is not None else "")


def result_of(step: RecordFn, record: dict[str, Any], features: Features) -> dict[str, Any]:
    """What a function of the user's gives for a record's features."""
    # What goes with a feature belongs to it: what keeps the one keeps the other.
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
    """The features whose values a function of the user's looks at.

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
    """Calls a function of the user's on a record of tensors, control flow made graph operations.

    Raises:
        RecipeError: if it fails; ``where`` names it.
    """
    try:
        # Functions that it calls are converted when they are called.
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
            f"{redact_repeated(str(error))}. It was given a record "
            f"of tensors, {shown}; it works in TensorFlow operations and returns such a dict."
        ) from error


def _with_autograph(function: RecordFn) -> Callable[[dict[str, Any]], Any]:
    """The function with its ``if`` and ``for`` over tensors made graph operations."""
    import tensorflow as tf

    if not inspect.isfunction(function):
        return function
    try:
        converted: Callable[[dict[str, Any]], Any] = tf.autograph.to_graph(function)
    except Exception:
        # Without its source it runs as it is, and says itself what it cannot do.
        return function
    return converted


def refuse_random(graph: Any) -> None:
    """Refuses a graph that draws random numbers.

    Raises:
        RecipeError: naming the operation.
    """
    for operation in _operations(graph):
        if operation.startswith(_RANDOM_OPS):
            raise RecipeError(
                f"prepare: the steps draw random numbers (operation {operation}), and a record "
                "must come out the same each time. Augment in the trainer, or take "
                "tf.random.stateless_* with a fixed seed."
            )


def note_file_reads(graph: Any, steps: Sequence[PrepareStep | RecordFn]) -> None:
    """Notes the files that operations of a traced graph read, for ``refuse_undeclared``."""
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


def _operations(graph: Any) -> set[str]:
    return set(_operation_types(graph))


def _operation_types(graph: Any) -> list[str]:
    definition = graph.as_graph_def()
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes.extend(function.node_def)
    return [node.op for node in nodes]
