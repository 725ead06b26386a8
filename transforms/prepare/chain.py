"""The prepare steps of a recipe as one function of a record, and the features it leads to.

Built-in steps say what they do to features. A function of the user's own is called once with
symbolic tensors: what it gives tells its features.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ...schemas.errors import RecipeError, SnapshardError
from ...schemas.features import Feature, Features, Image, is_encoded, side_columns
from ...schemas.recipe import PrepareStep, RecordFn
from .images import Check

Step = PrepareStep | RecordFn
_RANDOM_OPS = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TracedRecord:
    """What running the steps on one symbolic record gave."""

    features: dict[str, Feature]
    record: dict[str, Any]
    """Features' tensors, side columns of encoded images beside them."""
    read: frozenset[str]
    """Names of the input's wire columns that any step looks at."""
    copied: frozenset[str]
    """Names of the columns of ``record`` that are the input's own."""


def is_builtin(step: Step) -> bool:
    """Whether a step states its own features, so that TensorFlow need not be asked."""
    return isinstance(step, PrepareStep)


def with_checks(steps: Sequence[Step], features: Features) -> tuple[Step, ...]:
    """The steps, and a check of each image that they leave encoded."""
    prepared = output_features(steps, features)
    encoded = sorted(
        name
        for name, feature in prepared.items()
        if isinstance(feature, Image) and is_encoded(feature)
    )
    return (*steps, *(Check(name) for name in encoded))


def output_features(steps: Sequence[Step], features: Features) -> dict[str, Feature]:
    """The features of records after the steps.

    Loads TensorFlow only where one of the steps is a function of the user's own.

    Raises:
        RecipeError: if a step cannot work on what it gets, or gives what cannot be stored.
    """
    if all(is_builtin(step) for step in steps):
        result: Features = features
        for step in steps:
            result = step.features(result)  # type: ignore[union-attr]
        return dict(result)
    return trace(steps, features).features


def trace(steps: Sequence[Step], features: Features) -> TracedRecord:
    """Runs the steps on one symbolic record.

    Raises:
        RecipeError: as :func:`output_features` does, and if a step draws random numbers.
    """
    import tensorflow as tf

    from .tensors import record_specs, to_record

    traced: list[TracedRecord] = []

    def run(wire: dict[str, Any]) -> Any:
        given = to_record(wire, features)
        record, found = apply_steps(steps, given, features)
        names = {column for name in found for column in columns_of(name, found[name])}
        outputs = {name: value for name, value in record.items() if name in names or name in found}
        read: set[str] = set()
        for name, feature in features.items():
            seen = {part for part in record_names(name, feature) if given[part].consumers()}
            read |= seen if is_encoded(feature) else columns_of(name, feature) if seen else set()
        copied = {name for name, value in outputs.items() if given.get(name) is value}
        traced.append(
            TracedRecord(
                features=found, record=outputs, read=frozenset(read), copied=frozenset(copied)
            )
        )
        return tf.constant(0)

    function = tf.function(run, autograph=False)
    concrete = function.get_concrete_function(record_specs(features))
    _refuse_random(concrete.graph)
    return traced[-1]


def record_names(name: str, feature: Feature) -> set[str]:
    """What stands in a record for a feature: itself and its side columns."""
    return {name, *side_columns(name, feature)}


def columns_of(name: str, feature: Feature) -> set[str]:
    """Names of the wire columns of a feature."""
    return {column.name for column in feature.wire_columns(name)}


def apply_steps(
    steps: Sequence[Step], record: dict[str, Any], features: Features
) -> tuple[dict[str, Any], dict[str, Feature]]:
    """Runs the steps on one record inside a traced function; gives its features, too."""
    import tensorflow as tf

    current = dict(features)
    for number, step in enumerate(steps):
        # Errors at run time name the step by this scope.
        with tf.name_scope(f"step{number}"):
            if isinstance(step, PrepareStep):
                after = dict(step.features(current))
                record = _fix_shapes(step.apply(record), after)
                current = after
            else:
                record, current = _apply_function(step, record, current)
    return record, current


def describe(step: Step) -> str:
    """Names a step for a person."""
    if isinstance(step, PrepareStep):
        return repr(step)
    return f"function {getattr(step, '__qualname__', None) or repr(step)}"


def _fix_shapes(record: dict[str, Any], features: Features) -> dict[str, Any]:
    """Lets the next step see the sizes of images where they are known."""
    import tensorflow as tf

    fixed = {
        name: tf.ensure_shape(record[name], (feature.height, feature.width, feature.channels))
        for name, feature in features.items()
        if isinstance(feature, Image)
        and feature.storage == "raw"
        and not record[name].shape.is_fully_defined()
        and (feature.height is not None or feature.width is not None)
    }
    return {**record, **fixed} if fixed else record


def _apply_function(
    function: RecordFn, record: dict[str, Any], features: dict[str, Feature]
) -> tuple[dict[str, Any], dict[str, Feature]]:
    import tensorflow as tf

    from .tensors import infer_feature

    code = getattr(function, "__code__", None)
    where = describe(function) + (f" (line {code.co_firstlineno})" if code is not None else "")
    # Side columns belong to their image: what keeps the image keeps them.
    given = {name: record[name] for name in features}
    try:
        result = _with_autograph(function)(dict(given))
    except SnapshardError:
        raise
    except Exception as error:
        shown = ", ".join(
            f"{name!r}: {value.dtype.name}{value.shape}" for name, value in given.items()
        )
        raise RecipeError(
            f"prepare: {where} failed with {type(error).__name__}: {error}. It was given a record "
            f"of tensors, {shown}; it works in TensorFlow operations and returns such a dict."
        ) from error
    if not isinstance(result, dict) or not all(isinstance(name, str) for name in result):
        raise RecipeError(
            f"prepare: {where} returned a {type(result).__name__}, expected a dict of tensors by "
            "name."
        )
    if not result:
        raise RecipeError(f"prepare: {where} returned an empty dict, expected at least one tensor.")
    after: dict[str, Feature] = {}
    values: dict[str, Any] = {}
    for name, value in result.items():
        kept = features[name] if name in given and value is given[name] else None
        if kept is None and not isinstance(value, tf.RaggedTensor | tf.SparseTensor):
            value = tf.convert_to_tensor(value)
        after[name] = infer_feature(name, value, given=kept, where=where)
        values[name] = value
        if kept is not None:
            values.update({part: record[part] for part in record_names(name, kept)})
    return values, after


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


def _refuse_random(graph: Any) -> None:
    for operation in _operations(graph):
        if operation.startswith(_RANDOM_OPS):
            raise RecipeError(
                f"prepare: the steps draw random numbers (operation {operation}), and a record "
                "must come out the same each time. Augment in the trainer, or take "
                "tf.random.stateless_* with a fixed seed."
            )


def _operations(graph: Any) -> set[str]:
    definition = graph.as_graph_def()
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes.extend(function.node_def)
    return {node.op for node in nodes}
