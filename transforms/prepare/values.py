"""Helpers for steps on values: find a feature, apply a function to its values, check them.

They work on single records and on batches. At the end are vocabularies, and the tables that look up
tokens inside a graph.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from ...schemas.errors import RecipeError
from ...schemas.features import (
    Audio,
    ClassLabel,
    Feature,
    Features,
    Image,
    Scalar,
    Tensor,
    Text,
    Timestamp,
    presence_name,
    tensor_form,
    written,
)
from ...schemas.features import Sequence as SequenceOf

_FLAGS: ContextVar[list[Flag] | None] = ContextVar("flags", default=None)
NO_FEATURES: Features = types.MappingProxyType({})
_Media = TypeVar("_Media", Audio, Image)
MAX_FOUND = 8
"""Maximum number of values that an error shows."""
_MAX_SHOWN = 8
"""Maximum number of tokens or classes in the text of a step."""
Value = Scalar | ClassLabel | Text | Timestamp | Tensor | SequenceOf

Tables = dict[tuple[tuple[str, ...], int], Any]
"""(tokens, index of unknown tokens) -> lookup table."""

_HELD: ContextVar[Tables | None] = ContextVar("tables", default=None)


class Flag(NamedTuple):
    """A check of all records of a batch, in a graph."""

    scope: Any
    """The name scope of the check, which identifies its step: a string scalar."""
    fits: Any
    """bool[num_records]: which records pass."""
    found: list[Any]
    """What the message shows of records that fail: string scalars, and tensors with a row for each
    record of the batch."""


def call_text(name: str, *arguments: object, **settings: object) -> str:
    """The source code of a step in a recipe; tuples longer than 8, such as vocabularies, are cut.

    >>> call_text("ss.tables.clip", "age", min=0)
    'ss.tables.clip("age", min=0)'
    """

    def shown(value: object) -> str:
        is_long = isinstance(value, tuple) and len(value) > _MAX_SHOWN
        return written((*value[:_MAX_SHOWN], "…") if is_long else value)  # type: ignore[index]

    texts = [shown(argument) for argument in arguments]
    texts += [f"{key}={shown(value)}" for key, value in settings.items()]
    return f"{name}({', '.join(texts)})"


def changed(step: Any) -> dict[str, Any]:
    """The settings of a step that have a default and differ from it, except contents of files."""
    return {
        field.name: getattr(step, field.name)
        for field in dataclasses.fields(step)
        if field.repr and field.default not in (dataclasses.MISSING, getattr(step, field.name))
    }


class BuiltIn:
    """Base of snapshard's own steps: dataclasses whose fields are their settings.

    A step's lower-case alias is its name in recipes. A step whose settings differ from its fields,
    or whose call takes other arguments, overrides the method.
    """

    kind: ClassVar[str]
    """Identifies the step in the fingerprint; also its name below ``ss`` in a recipe."""

    def __repr__(self) -> str:
        """The step as written in a recipe: required arguments by position, others by name."""
        fields = dataclasses.fields(cast("Any", self))
        required = [getattr(self, f.name) for f in fields if f.default is dataclasses.MISSING]
        return call_text(f"ss.{self.kind}", *required, **changed(self))

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        settings: dict[str, object] = {"step": self.kind}
        for field in dataclasses.fields(cast("Any", self)):
            if field.compare:  # otherwise it holds the content of a file
                value = getattr(self, field.name)
                settings[field.name] = list(value) if isinstance(value, tuple) else value
        return settings


def find_media(
    step: object, name: str, features: Features, kind: type[_Media], *, what: str
) -> _Media:
    """The image or sound of this name; ``what`` names its kind in errors, such as ``Images``.

    Raises:
        RecipeError: if it does not exist.
    """
    feature = features.get(name)
    if not isinstance(feature, kind):
        there = sorted(key for key, value in features.items() if isinstance(value, kind))
        problem = f"is a {type(feature).__name__}" if feature is not None else "does not exist"
        raise RecipeError(
            f"prepare: {step!r}: feature {name!r} {problem}. {what} here: "
            f"{', '.join(map(repr, there)) or 'none'}."
        )
    return feature


def find(step: object, name: str, features: Features, *, dtypes: set[str], what: str) -> Value:
    """The feature that a step works on.

    Args:
        step: The step, for the error.
        name: The feature's name.
        features: All features.
        dtypes: The allowed dtypes.
        what: A description of these for the error, such as ``numbers``.

    Raises:
        RecipeError: if it does not exist, or has another dtype.
    """
    feature = features.get(name)
    if feature is None:
        raise RecipeError(
            f"prepare: {step!r}: there is no feature {name!r}, expected one of "
            f"{', '.join(map(repr, sorted(features)))}."
        )
    form = tensor_form(feature)
    if not isinstance(feature, Value) or form is None or form.dtype not in dtypes:
        raise RecipeError(f"prepare: {step!r}: {name!r} is {written(feature)}, expected {what}.")
    return feature


def find_single(
    step: object, name: str, features: Features, *, dtypes: set[str], what: str
) -> Value:
    """The feature that a step works on, with one value per record.

    Raises:
        RecipeError: as :func:`find`, and for tensors and sequences.
    """
    feature = find(step, name, features, dtypes=dtypes, what=what)
    if isinstance(feature, Tensor | SequenceOf):
        raise RecipeError(
            f"prepare: {step!r}: {name!r} is {written(feature)}, expected one value per record."
        )
    return feature


def of_dtype(feature: Value, dtype: Any) -> Feature:
    """A feature of plain values of a dtype, with the same shape and optionality."""
    if isinstance(feature, SequenceOf):
        return dataclasses.replace(feature, of=of_dtype(feature.of, dtype))  # type: ignore[arg-type]
    if isinstance(feature, Tensor):
        return dataclasses.replace(
            Tensor(dtype, feature.shape), optional=feature.optional, default=feature.default
        )
    return Scalar(dtype, optional=feature.optional)


def each(function: Callable[[Any], Any], value: Any) -> Any:
    """Applies an elementwise function to a tensor, which may be ragged."""
    import tensorflow as tf

    if not isinstance(value, tf.RaggedTensor):
        return function(value)
    flags = _FLAGS.get()
    if flags is None:
        return value.with_flat_values(function(value.flat_values))
    with flagging() as inner:
        made = value.with_flat_values(function(value.flat_values))
    for flag in inner:
        found = [value.with_flat_values(part) if part.shape.rank else part for part in flag.found]
        # A record with one invalid value is invalid.
        fits = tf.reduce_all(value.with_flat_values(flag.fits), axis=1)
        flags.append(Flag(flag.scope, fits, found))
    return made


@contextmanager
def flagging() -> Iterator[list[Flag]]:
    """Makes checks of batches collect which records pass, and what was found, instead of failing.

    A failure would affect all records of a batch, and tell the reason of one.
    """
    flags: list[Flag] = []
    token = _FLAGS.set(flags)
    try:
        yield flags
    finally:
        _FLAGS.reset(token)


def checked(value: Any, fits: Any, *, expected: str, found: Any) -> Any:
    """Returns ``value`` if all of ``fits`` is true; otherwise the record fails with ``found``.

    In a batch, the values of invalid records are undefined; other records are not affected.
    """
    import tensorflow as tf

    with tf.control_dependencies(verdicts(fits, [f"expected {expected}, found", found])):
        return tf.identity(value)


def verdicts(fits: Any, found: list[Any]) -> list[Any]:
    """Asserts that all of ``fits`` is true; in a batch, records it as a flag instead."""
    import tensorflow as tf

    flags = _FLAGS.get()
    if flags is None or not fits.shape.rank:
        return [tf.debugging.Assert(tf.reduce_all(fits), found, summarize=MAX_FOUND)]
    scope = tf.constant(tf.get_current_name_scope())
    fits = tf.reduce_all(fits, axis=list(range(1, fits.shape.rank)))
    flags.append(Flag(scope, fits, [tf.convert_to_tensor(part) for part in found]))
    return []


def compute(
    record: dict[str, Any],
    name: str,
    function: Callable[[Any], Any],
    *,
    after: Feature,
    instead: Any = None,
) -> dict[str, Any]:
    """Applies a function to all values of a feature; missing ones stay missing.

    Args:
        record: One record, or a batch of them.
        name: The feature's name.
        function: Elementwise, from a tensor to one of the same shape.
        after: The feature after the step.
        instead: The function's input where a single value is missing; None for its fill value.
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
    """The record without the presence of a feature, which is never missing."""
    return {part: value for part, value in record.items() if part != presence_name(name)}


@contextmanager
def holding_tables(tables: Tables) -> Iterator[None]:
    """Caches in ``tables`` the lookup tables of steps that are traced inside.

    A traced function only works as long as its tables exist: its owner must keep them, and must
    make them trackable to export it. TensorFlow may trace a function again while exporting it.
    """
    token = _HELD.set(tables)
    try:
        yield
    finally:
        _HELD.reset(token)


def token_table(tokens: Sequence[str], *, unknown: int) -> Any:
    """A table from tokens to their indices, with ``unknown`` for all other strings."""
    import tensorflow as tf

    held, key = _HELD.get(), (tuple(tokens), unknown)
    if held is not None and key in held:
        return held[key]
    with tf.init_scope():
        keys = tf.constant([token.encode() for token in tokens], tf.string)
        numbers = tf.range(len(tokens), dtype=tf.int64)
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, numbers), unknown
        )
    if held is not None:
        held[key] = table
    return table


def read_vocabulary(content: bytes, *, where: str) -> tuple[str, ...]:
    """The tokens of a vocabulary file, one per line; a token's index is its line, from 0.

    Raises:
        RecipeError: if it is not a valid vocabulary; ``where`` names it.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{where} is not UTF-8 text (byte {error.start:,}).") from None
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    return check_vocabulary(lines, where=where)


def check_vocabulary(tokens: Sequence[str], *, where: str) -> tuple[str, ...]:
    """Checks that tokens are distinct, and returns them as a tuple.

    Raises:
        RecipeError: if there are none, or one occurs twice.
    """
    places: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if token in places:
            raise RecipeError(
                f"{where}: the token {token!r} occurs twice, at {places[token]:,} and "
                f"{number:,}. Remove one."
            )
        places[token] = number
    if not any(tokens):
        raise RecipeError(f"{where} contains no tokens.")
    return tuple(tokens)
