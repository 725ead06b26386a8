"""``augment=`` and ``augment_batch=``: map a function over the parsed examples or batches."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from .options import Options
from .pipeline import Plan

Open = Callable[..., tf.data.Dataset]


def number_records(plan: Plan) -> Plan:
    """Pairs each record with its position in the stored order."""

    def numbered(read: Open) -> Open:
        def open_numbered(*piece: Any) -> tf.data.Dataset:
            place = piece[4]
            return tf.data.Dataset.zip((read(*piece), tf.data.Dataset.range(place, tf.int64.max)))

        return open_numbered

    return dataclasses.replace(
        plan,
        open_records=numbered(plan.open_records),
        open_uncached=None if plan.open_uncached is None else numbered(plan.open_uncached),
        is_numbered=True,
    )


def augment_batches(plan: Plan) -> Plan:
    """Maps ``augment`` or ``augment_batch``, seeded by the epoch's seed and the record's place."""
    read_epoch, parse, options = plan.read_epoch, plan.parse_batch, plan.options
    augment = augment_batch = None
    if options.augment is not None:
        check_form("augment", options.augment)
        augment = _stacked(converted(options.augment))
    if options.augment_batch is not None:
        check_form("augment_batch", options.augment_batch)
        augment_batch = converted(options.augment_batch)

    def read(plan: Plan, seed: Any) -> tf.data.Dataset:
        seeds = tf.data.Dataset.from_tensors(seed).repeat()
        return tf.data.Dataset.zip((read_epoch(plan, seed), seeds))

    def augmented(numbered: Any, epoch_seed: Any) -> Any:
        records, places = numbered
        batch = parse(records)
        seeds = tf.stack([tf.fill(tf.shape(places), epoch_seed), places], axis=1)
        if augment is None:
            assert augment_batch is not None
            with explained("augment_batch", "batch, seeds", options):
                changed = augment_batch(batch, seeds)
            _check_result("augment_batch", changed, batch)
            if any(
                tf.type_spec_from_value(value).shape.rank == 0 for value in tf.nest.flatten(changed)
            ):
                raise ValueError("augment_batch= must return values of a batch, found a scalar.")
            return changed
        with explained("augment", "example, seed", options):
            like = _returned(augment, batch, seeds)
        _check_result("augment", like, batch)
        is_ragged = any(isinstance(value, tf.RaggedTensor) for value in tf.nest.flatten(batch))
        spec = tf.nest.map_structure(functools.partial(_spec, is_ragged), like)
        return map_each(lambda pair: augment(*pair), (batch, seeds), spec)

    return dataclasses.replace(plan, read_epoch=read, parse_batch=augmented)


def map_each(function: Callable[[Any], Any], batch: Any, signature: Any) -> Any:
    """``tf.map_fn``, but a function that fails leaves no device in TensorFlow's variable scope.

    The next ``tf.distribute.Strategy`` of the process would be refused because of it.
    """
    scope = tf.compat.v1.get_variable_scope()
    device = scope.caching_device
    try:
        return tf.map_fn(function, batch, fn_output_signature=signature)
    finally:
        if scope.caching_device is not device:
            scope.set_caching_device(device)


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A user's function, converted by AutoGraph when it is traced.

    The package's own functions are not converted, because that takes 50 ms. In the debug mode of
    tf.data TensorFlow traces the function once, and then runs it eagerly.
    """
    traced = tf.function(function)

    def call(*arguments: Any) -> Any:
        return (function if tf.executing_eagerly() else traced)(*arguments)

    return call


_LABELS = {"label", "labels", "target", "targets", "y"}
"""Second arguments of functions that expect (image, label), as Keras's examples have them."""


def check_form(name: str, function: Callable[..., Any]) -> None:
    """Raises ValueError if ``augment`` or ``augment_batch`` is written for (features, label).

    Called with an example and a seed, it would take the example for the features, and the seed for
    the label.
    """
    try:
        parameters = [*inspect.signature(function).parameters]
    except (TypeError, ValueError):  # a function without a signature
        return
    if parameters[1:2] and parameters[1].lower() in _LABELS:
        raise ValueError(f"{name}= takes {parameters[0]}, {parameters[1]}. {_forms(name)}")


_FORMS = """\
It is called as f({arguments}). Without as_supervised, {one} is a dict; with it, the pair
(features, label):
    def {name}({arguments}):
        image = {one}["image"]
        return {{**{one}, "image": image}}
    def {name}({arguments}):  # as_supervised=True
        image, label = {one}
        return image, label"""


def _forms(name: str) -> str:
    """How a function is called without and with ``as_supervised``."""
    is_batch = name == "augment_batch"
    one, arguments = ("batch", "batch, seeds") if is_batch else ("example", "example, seed")
    return _FORMS.format(name=name, one=one, arguments=arguments)


@contextlib.contextmanager
def explained(name: str, arguments: str, options: Options) -> Iterator[None]:
    """Says how a user's function is called, if calling it fails."""
    try:
        yield
    except (AttributeError, IndexError, LookupError, TypeError, ValueError) as error:
        form = "the pair (features, label)" if options.as_supervised else "a dict by feature name"
        raise ValueError(
            f"{name}= failed when called with {arguments}, as_supervised={options.as_supervised} "
            f"({form}): {type(error).__name__}: {error}\n{_forms(name)}"
        ) from error


def _returned(augment: Callable[[Any, Any], Any], batch: Any, seeds: Any) -> Any:
    """The types that a function returns for the examples of a batch; it is traced, not run."""

    def of_first(batch: Any, seeds: Any) -> Any:
        return augment(tf.nest.map_structure(lambda value: value[0], batch), seeds[0])

    specs = tf.nest.map_structure(tf.type_spec_from_value, (batch, seeds))
    traced = tf.function(of_first, autograph=False).get_concrete_function(*specs)
    return traced.structured_outputs


def _stacked(augment: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The same function; lists that it returns become tensors, as in ``Dataset.map``.

    ``tf.map_fn`` would make a batch of each element, and ``Dataset.map`` then stack the batches.
    """

    def stack(result: Any) -> Any:
        if isinstance(result, list):
            return tf.convert_to_tensor(result)
        if isinstance(result, Mapping):
            return {key: stack(value) for key, value in result.items()}
        if isinstance(result, tuple):
            return tuple(map(stack, result))
        return result

    return lambda example, seed: stack(augment(example, seed))


def _check_result(name: str, result: Any, batch: Any) -> None:
    """Raises ValueError if a function does not return an example, or returns its seed as a label.

    Args:
        name: "augment" or "augment_batch".
        result: The result.
        batch: A batch, a dict or a pair.
    """
    if result is None or any(value is None for value in tf.nest.flatten(result)):
        raise ValueError(f"{name}= must return the changed example, found {result!r}.")
    if isinstance(result, tuple):
        is_example = len(result) in (2, 3) and not _holds_seed(result, batch)
    else:
        is_example = isinstance(result, Mapping) and isinstance(batch, Mapping)
    if not is_example:
        form = "(features, label) or (features, label, sample_weight)"
        if isinstance(batch, Mapping):
            form = f"a dict, {form}"
        kinds = tf.nest.map_structure(lambda value: tf.as_dtype(value.dtype).name, result)
        raise ValueError(f"{name}= must return {form}, found {kinds}. {_forms(name)}")


def _holds_seed(result: tuple[Any, ...], batch: Any) -> bool:
    """Whether a result ends with a seed, as that of a function written for (features, label)."""
    *examples, last = result
    shape = tf.TensorShape(getattr(last, "shape", None))
    if not shape.rank or shape[-1] != 2 or not tf.as_dtype(last.dtype).is_integer:
        return False
    for example in (examples[0], tuple(examples)):
        with contextlib.suppress(TypeError, ValueError):
            tf.nest.assert_same_structure(example, batch)
            return True
    return False


def _spec(is_ragged: bool, value: Any) -> Any:
    """The spec of one example's result, such that lists become ragged batches again."""
    spec = value if isinstance(value, tf.TypeSpec) else tf.type_spec_from_value(value)
    if not is_ragged or not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        return spec
    if spec.shape[0] is not None or not spec.shape[1:].is_fully_defined():
        return spec
    return tf.RaggedTensorSpec(spec.shape, spec.dtype, 0, tf.int64)
