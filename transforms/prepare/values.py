"""What steps on values share: finding a feature, working on all its values, checking them.

All of it works on one record and on a whole batch alike.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from ...schemas.errors import RecipeError
from ...schemas.features import (
    Audio,
    ClassLabel,
    Feature,
    Features,
    Image,
    Scalar,
    Sequence,
    Tensor,
    Text,
    Timestamp,
    presence_name,
    tensor_form,
)
from ...schemas.written import written

FAILURE_MARK = "\x1e"
"""Stands before and after a message from Python in an error of TensorFlow's."""
_FLAGS: ContextVar[list[Any] | None] = ContextVar("flags", default=None)
NO_FEATURES: Features = types.MappingProxyType({})
_Media = TypeVar("_Media", Audio, Image)
Value = Scalar | ClassLabel | Text | Timestamp | Tensor | Sequence


def call_text(name: str, *arguments: object, **settings: object) -> str:
    """A step as it is written in a recipe; a setting of None is left out.

    >>> call_text("ss.tables.clip", "age", min=0, max=None)
    'ss.tables.clip("age", min=0)'
    """
    shown = [written(argument) for argument in arguments]
    shown += [f"{key}={written(value)}" for key, value in settings.items() if value is not None]
    return f"{name}({', '.join(shown)})"


def changed(step: Any) -> dict[str, Any]:
    """The settings of a step, but for the first, that are not the defaults: what to show."""
    return {
        field.name: value
        for field in dataclasses.fields(step)[1:]
        if (value := getattr(step, field.name)) != field.default
    }


def find_media(
    step: object, name: str, features: Features, kind: type[_Media], *, what: str
) -> _Media:
    """The image or the sound of this name; ``what`` names its kind in errors: ``Images``.

    Raises:
        RecipeError: if there is none.
    """
    feature = features.get(name)
    if not isinstance(feature, kind):
        there = sorted(key for key, value in features.items() if isinstance(value, kind))
        found = f"is a {type(feature).__name__}" if feature is not None else "does not exist"
        raise RecipeError(
            f"prepare: {step!r}: feature {name!r} {found}. {what} here: "
            f"{', '.join(map(repr, there)) or 'none'}."
        )
    return feature


def find(step: object, name: str, features: Features, *, dtypes: set[str], what: str) -> Value:
    """The feature that a step works on.

    Args:
        step: Names itself in the error.
        name: The feature's name.
        features: Those there are.
        dtypes: What its values may be.
        what: The same for a person: ``numbers``.

    Raises:
        RecipeError: if there is none of this name, or it is another one.
    """
    feature = features.get(name)
    if feature is None:
        raise RecipeError(
            f"prepare: {step!r}: there is no feature {name!r}; there are "
            f"{', '.join(map(repr, sorted(features)))}."
        )
    form = tensor_form(feature)
    if not isinstance(feature, Value) or form is None or form.dtype not in dtypes:
        raise RecipeError(f"prepare: {step!r}: {name!r} is {written(feature)}, expected {what}.")
    return feature


def find_single(
    step: object, name: str, features: Features, *, dtypes: set[str], what: str
) -> Value:
    """The feature that a step works on, which has one value a record.

    Raises:
        RecipeError: as :func:`find` does, and for tensors and sequences.
    """
    feature = find(step, name, features, dtypes=dtypes, what=what)
    if isinstance(feature, Tensor | Sequence):
        raise RecipeError(
            f"prepare: {step!r}: {name!r} is {written(feature)}, expected one value a record."
        )
    return feature


def of_dtype(feature: Value, dtype: Any) -> Feature:
    """A feature of the same shape, missing where it was, of plain values of a dtype."""
    if isinstance(feature, Sequence):
        return dataclasses.replace(feature, of=of_dtype(feature.of, dtype))  # type: ignore[arg-type]
    if isinstance(feature, Tensor):
        return dataclasses.replace(
            Tensor(dtype, feature.shape), optional=feature.optional, default=feature.default
        )
    return Scalar(dtype, optional=feature.optional)


def each(function: Callable[[Any], Any], value: Any) -> Any:
    """Applies a function of a tensor to all values, ragged ones too."""
    import tensorflow as tf

    if not isinstance(value, tf.RaggedTensor):
        return function(value)
    flags = _FLAGS.get()
    if flags is None:
        return value.with_flat_values(function(value.flat_values))
    with flagging() as inner:
        made = value.with_flat_values(function(value.flat_values))
    # A record of which one value is unfit is unfit.
    flags += [tf.reduce_all(value.with_flat_values(fits), axis=1) for fits in inner]
    return made


@contextmanager
def flagging() -> Iterator[list[Any]]:
    """Lets checks of whole batches note which records fit, bool[num_records], and not fail.

    One failure would take all records of a batch with it; so only the unfit are run again, alone
    and outside of this, for the reason.
    """
    flags: list[Any] = []
    token = _FLAGS.set(flags)
    try:
        yield flags
    finally:
        _FLAGS.reset(token)


def checked(value: Any, fits: Any, *, expected: str, found: Any) -> Any:
    """A tensor, once all of ``fits`` is true; else the record fails with what was found.

    In a batch the values of other records are good, and those of unfit ones anything.
    """
    import tensorflow as tf

    with tf.control_dependencies(verdicts(fits, [f"expected {expected}, found", found])):
        return tf.identity(value)


def verdicts(fits: Any, data: list[Any]) -> list[Any]:
    """The assertion that all of ``fits`` is true; in a batch a note of it, and no assertion."""
    import tensorflow as tf

    flags = _FLAGS.get()
    if flags is None or not fits.shape.rank:
        return [tf.debugging.Assert(tf.reduce_all(fits), data, summarize=8)]
    flags.append(tf.reduce_all(fits, axis=list(range(1, fits.shape.rank))))
    return []


def compute(
    record: dict[str, Any],
    name: str,
    function: Callable[[Any], Any],
    *,
    after: Feature,
    instead: Any = None,
) -> dict[str, Any]:
    """The record with all values of a feature computed; missing ones stay missing.

    Args:
        record: One record, or a batch of them.
        name: The feature.
        function: From a tensor to one of the same shape, elementwise.
        after: What the feature becomes.
        instead: What the function gets where a single value is missing; None for its fill.
    """
    import tensorflow as tf

    form = tensor_form(after)
    present = record.get(presence_name(name))
    value = record[name]
    # A missing list has no values.
    may_miss = present is not None and form is not None and not form.shape
    if may_miss and instead is not None:
        value = tf.where(present, value, tf.constant(instead, value.dtype))
    value = each(function, value)
    if may_miss and form is not None:
        value = tf.where(present, value, tf.constant(form.fill, value.dtype))
    return {**record, name: value}


def without_presence(record: dict[str, Any], name: str) -> dict[str, Any]:
    """The record of a feature that is never missing."""
    return {part: value for part, value in record.items() if part != presence_name(name)}
