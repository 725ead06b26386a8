"""Steps on table values: fill, missing, cast, clip, stack, hash, one_hot, multi_hot; ``times``.

All are exact and elementwise, so they run on batches. A missing value stays missing until
``fill`` makes the feature required. Casts never change a value silently: one that is out of
range, or not an integer, is an error. What needs a pass over all data (means, vocabularies,
quantiles) belongs in a ``preprocessing_fn``.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import re
from collections.abc import Iterable
from collections.abc import Sequence as Many
from typing import Annotated, Any

import pydantic

from ...schemas.config import as_tuple, config_class
from ...schemas.errors import RecipeError
from ...schemas.features import (
    ClassLabel,
    Features,
    Scalar,
    Sequence,
    Tensor,
    is_optional,
    presence_name,
    tensor_form,
    written,
)
from ...schemas.values import DtypeField
from ...schemas.values import Value as Plain
from ...schemas.wire import FLOATS
from .times import ParseTime, parse_time
from .values import (
    NO_FEATURES,
    BuiltIn,
    Value,
    call_text,
    changed,
    check_vocabulary,
    checked,
    compute,
    each,
    find,
    find_single,
    of_dtype,
    read_vocabulary,
    token_table,
    without_presence,
)

__all__ = [
    "Hash",
    "MultiHot",
    "OneHot",
    "ParseTime",
    "Stack",
    "cast",
    "clip",
    "fill",
    "hash",
    "missing",
    "multi_hot",
    "one_hot",
    "parse_time",
    "stack",
]

INTEGERS = {
    "int8": (-(2**7), 2**7),
    "int16": (-(2**15), 2**15),
    "int32": (-(2**31), 2**31),
    "int64": (-(2**63), 2**63),
    "uint8": (0, 2**8),
    "uint16": (0, 2**16),
    "uint32": (0, 2**32),
    "uint64": (0, 2**64),
}
"""dtype -> range [start, stop) of its values."""

_NUMBERS = {*INTEGERS, *FLOATS}
_ALL = {*_NUMBERS, "bool", "string"}
_Half = Annotated[int, pydantic.Field(ge=0, lt=2**63)]


@config_class
class Fill(BuiltIn):
    """Replaces missing values by a constant; the feature becomes required.

    Args:
        name: A feature with one value per record.
        value: A value of its dtype; for a class, its name or index; for a time, its integer.
        nan: Whether to replace NaN, too; only for floats.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    value: Plain
    _: dataclasses.KW_ONLY
    nan: bool = False
    kind = "tables.fill"
    batched = True
    sees_features = True

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        return {**super().settings(), "value": _plain(self.value)}

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no such feature, or the value is not valid for it.
        """
        feature = self._found(features)
        _as_stored(self, feature, self.value)
        if self.nan and feature.form.dtype not in FLOATS:
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is {written(feature)}, which cannot be NaN. "
                "Remove nan=True."
            )
        return {**features, self.name: dataclasses.replace(feature, optional=False, default=None)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces missing values."""
        import tensorflow as tf

        given, present = record[self.name], record.get(presence_name(self.name))
        value = tf.constant(_as_stored(self, self._found(features), self.value), given.dtype)
        if present is not None:
            given = tf.where(present, given, value)
        if self.nan:
            given = tf.where(tf.math.is_nan(given), value, given)
        return {**without_presence(record, self.name), self.name: given}

    def _found(self, features: Features) -> Value:
        return find_single(self, self.name, features, dtypes=_ALL, what="one value per record")


fill = Fill


@config_class
class Missing(BuiltIn):
    """Adds a bool feature ``to``: whether a feature is missing. Put it before ``fill``.

    Args:
        name: The feature.
        to: The name of the new feature, ``bool[]``.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    to: str
    kind = "tables.missing"
    batched = True
    sees_features = True

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no such feature, or already one of the new name.
        """
        find(self, self.name, features, dtypes=_ALL, what="values")
        if self.to in features:
            raise RecipeError(
                f"prepare: {self!r}: there is already a feature {self.to!r}. Choose another name."
            )
        return {**features, self.to: Scalar("bool")}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Adds a bool that says whether the feature is missing."""
        import tensorflow as tf

        present = record.get(presence_name(self.name))
        if present is None:
            # One per record; a batch has one dimension more. The identity marks the feature as
            # read.
            value, form = each(tf.identity, record[self.name]), tensor_form(features[self.name])
            num_dims = len(form.shape) if form is not None else 0
            shape = (
                [value.nrows()]
                if isinstance(value, tf.RaggedTensor)
                else tf.shape(value)[: value.shape.rank - num_dims]
            )
            present = tf.fill(shape, True)
        return {**record, self.to: ~present}


missing = Missing


@config_class
class Cast(BuiltIn):
    """Casts values to another dtype; records with a value that does not fit are rejected.

    Rejected are values out of range, fractions for integers, numbers other than 0 and 1 for bools,
    and text that is not a number. Numbers are rounded to the nearest float (``float64`` to
    ``float32`` loses digits; no other step does that). Integers become decimal strings; floats and
    bools cannot become strings, as they have no canonical text. Missing values stay missing. A
    class or a time becomes its integer.

    Args:
        name: A feature of numbers, bools or strings, including tensors and sequences of them.
        dtype: The new dtype, such as ``"float32"``.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    dtype: DtypeField
    kind = "tables.cast"
    batched = True
    sees_features = True

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no such feature, or it cannot be cast to this dtype.
        """
        what = "numbers, bools, classes, times or strings"
        feature = find(self, self.name, features, dtypes=_ALL, what=what)
        source = feature.form.dtype
        if {source, self.dtype} == {"string", "bool"} or (
            self.dtype == "string" and source in FLOATS
        ):
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is {written(feature)}, and there is no "
                f"canonical conversion from {source} to {self.dtype}. Write a function for it."
            )
        return {**features, self.name: of_dtype(feature, self.dtype)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Casts all values; fails if one cannot be represented."""
        after = self.features(features)[self.name]
        instead = "0" if record[self.name].dtype.name == "string" else 0
        return compute(
            record, self.name, lambda v: cast_values(v, self.dtype), after=after, instead=instead
        )


cast = Cast


@config_class
class Clip(BuiltIn):
    """Clips values to [``min``, ``max``]; NaN and missing values are unchanged.

    Args:
        name: A feature of numbers, including tensors and sequences of them.
        min: The lower limit; an integer for integer dtypes. None means no limit.
        max: The upper limit, likewise.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    min: int | float | None = None
    max: int | float | None = None
    kind = "tables.clip"
    batched = True
    sees_features = True

    def __post_init__(self) -> None:
        """Checks the limits."""
        limits = [limit for limit in (self.min, self.max) if limit is not None]
        if not limits or any(math.isnan(limit) for limit in limits):
            raise ValueError("expected min, max or both, as numbers")
        if limits != sorted(limits):
            raise ValueError(f"min={self.min} is above max={self.max}")

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        limits = [_plain(limit) for limit in (self.min, self.max)]
        return {"step": self.kind, "name": self.name, "limits": limits}

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there are no such numbers, or a limit is not valid for their dtype.
        """
        feature = find(self, self.name, features, dtypes=_NUMBERS, what="numbers")
        dtype = feature.form.dtype
        for limit in (self.min, self.max):
            start, stop = INTEGERS.get(dtype, (-math.inf, math.inf))
            if (
                limit is not None
                and dtype in INTEGERS
                and not (isinstance(limit, int) and start <= limit < stop)
            ):
                raise RecipeError(f"prepare: {self!r}: {limit!r} is not a valid {dtype}.")
        return features

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Clips values to the limits; NaN stays."""
        import tensorflow as tf

        def clip(value: Any) -> Any:
            for limit, is_beyond in ((self.min, tf.less), (self.max, tf.greater)):
                if limit is not None:
                    bound = tf.constant(limit, value.dtype)
                    value = tf.where(is_beyond(value, bound), bound, value)
            return value

        return compute(record, self.name, clip, after=features[self.name])


clip = Clip


@config_class
class Stack(BuiltIn):
    """See :func:`stack`."""

    names: str | tuple[str, ...]
    to: str
    fill: int | float | None = None
    kind = "tables.stack"
    batched = True
    sees_features = True

    def __post_init__(self) -> None:
        """Checks the names."""
        if not self.names:
            raise ValueError("names: expected a pattern, or at least one name")
        if isinstance(self.names, tuple) and len({*self.names}) < len(self.names):
            raise ValueError("names: expected different names")

    def __repr__(self) -> str:
        """The step as written in a recipe."""
        names = self.names if isinstance(self.names, str) else list(self.names)
        return call_text("ss.tables.stack", names, to=self.to, **changed(self))

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        return {**super().settings(), "fill": _plain(self.fill)}

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there are no such columns, they are not numbers of one dtype, they may
                be missing and there is no ``fill``, or ``to`` is the name of another feature.
        """
        names = self._names(features)
        dtype = self._dtype(names, features)
        optional = [name for name in names if is_optional(features[name])]
        if optional and self.fill is None:
            raise RecipeError(
                f"prepare: {self!r}: {_some(optional)} of {len(names):,} columns may be missing. "
                f"Give fill= a number that stands for a missing value, such as fill="
                + ('float("nan").' if dtype in FLOATS else "0.")
            )
        if self.fill is not None and not _is_value(self.fill, dtype):
            raise RecipeError(f"prepare: {self!r}: fill={self.fill!r} is not a valid {dtype}.")
        stacked = {*names}
        others = {name: feature for name, feature in features.items() if name not in stacked}
        if self.to in others:
            raise RecipeError(
                f"prepare: {self!r}: there is already a feature {self.to!r}. Choose another name."
            )
        return {**others, self.to: Tensor(dtype, (len(names),), names=names)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Stacks the columns along a new last dimension."""
        import tensorflow as tf

        names = self._names(features)
        stacked = tf.stack([record[name] for name in names], axis=-1)
        masks = [presence_name(name) for name in names]
        if any(mask in record for mask in masks):
            assert self.fill is not None
            every = tf.ones_like(record[names[0]], tf.bool)
            present = tf.stack([record.get(mask, every) for mask in masks], axis=-1)
            stacked = tf.where(present, stacked, tf.constant(self.fill, stacked.dtype))
        gone = {*names, *masks}
        return {part: v for part, v in record.items() if part not in gone} | {self.to: stacked}

    def on_columns(self, columns: Any, features: Features) -> dict[str, Any]:
        """The wire column of the vector: what ``apply`` gives, without a graph."""
        import numpy as np
        import pyarrow as pa

        from ..examples.dtypes import dense_column, dense_values, numpy_dtype, packed_bytes, widened

        names = self._names(features)
        form = Scalar(self._dtype(names, features)).form
        (wire,) = form.wire_columns("")
        values = []
        for name in names:
            column = columns.column(name)
            if column.null_count:
                fill = np.array([self.fill]).astype(numpy_dtype(form.dtype))
                stored = packed_bytes(fill) if wire.packed is not None else widened(fill)[0]
                column = column.fill_null(pa.scalar(stored, column.type))
            values.append(dense_values(column, form))
        vector = Tensor(form.dtype, (len(names),)).form.wire_columns("")[0]
        return {self.to: dense_column(np.stack(values, axis=-1), vector)}

    def takes(self, name: str | None) -> bool:
        """Whether a feature of this name would be stacked."""
        if isinstance(self.names, tuple):
            return name in self.names
        return name is not None and fnmatch.fnmatchcase(name, self.names)

    def _names(self, features: Features) -> tuple[str, ...]:
        """The columns in the order of the vector."""
        if isinstance(self.names, tuple):
            names, known = self.names, {*features}
            absent = [name for name in names if name not in known]
            what = f"{_some(absent)} of {len(names):,} names are not features"
        else:
            names = tuple(sorted(filter(self.takes, features), key=natural_order))
            absent = [] if names else [self.names]
            what = f"no feature matches {self.names!r}"
        if absent:
            raise RecipeError(f"prepare: {self!r}: {what}, expected some of {_some([*features])}.")
        return names

    def _dtype(self, names: Many[str], features: Features) -> Any:
        """The dtype of all columns."""
        by_dtype: dict[str, list[str]] = {}
        for name in names:
            feature = features[name]
            dtype = written(feature)
            if isinstance(feature, Scalar) and feature.unit is None:
                dtype = feature.dtype
            by_dtype.setdefault(dtype, []).append(name)
        dtypes = sorted(by_dtype, key=lambda dtype: -len(by_dtype[dtype]))
        if len(dtypes) == 1 and dtypes[0] in _NUMBERS:
            return dtypes[0]
        shown = ", ".join(f"{dtype}: {_some(by_dtype[dtype])}" for dtype in dtypes[:4])
        raise RecipeError(
            f"prepare: {self!r}: expected numbers of one dtype, found {shown}. Name only such "
            "columns, give the others this dtype by types= of the source or ss.tables.cast, or "
            "stack each dtype on its own."
        )


_DIGITS = re.compile(r"(\d+)")


def natural_order(name: str) -> tuple[list[Any], str]:
    """A sort key that compares digits as numbers.

    >>> sorted(["c10", "c9", "c01", "c1", "c", "b"], key=natural_order)
    ['b', 'c', 'c01', 'c1', 'c9', 'c10']
    """
    parts = _DIGITS.split(name)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], name


def _some(names: Many[str]) -> str:
    """A few names, and how many there are."""
    shown = ", ".join(map(repr, names[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3:,} more"


def stack(names: str | Iterable[str], to: str, *, fill: int | float | None = None) -> Stack:
    """Joins columns of numbers into one vector, ``dtype[num_columns]``; the columns are removed.

    Thousands of columns then cost as little as one: shards have one feature, and a batch is
    ``dtype[batch, num_columns]``. The columns' names are the ``names`` of the new feature.

    Args:
        names: A pattern with ``*``, ``?`` and ``[…]``, such as ``"pixel*"``; case matters. The
            columns that match are in the order of their names, in which digits count as numbers
            (``c2`` before ``c10``), whatever their order in the files. Or the names, in the order
            of the vector.
        to: The name of the vector.
        fill: The number that stands for a missing value. None means that the columns must be
            required.

    Raises:
        RecipeError: if an argument is invalid.
    """
    return Stack(names=as_tuple(names), to=to, fill=fill)


def _plain(value: object) -> object:
    """A value as JSON that distinguishes 1, 1.0 and True, and can hold NaN."""
    shown = value.hex() if isinstance(value, float) else value
    return None if value is None else [type(value).__name__, shown]


def _as_stored(step: Fill, feature: Value, value: Plain) -> Plain:
    """Converts a fill value to the form in which the feature stores it.

    Raises:
        RecipeError: if it is not valid for the feature.
    """
    if isinstance(feature, ClassLabel) and isinstance(value, str) and value in feature.names:
        return feature.names.index(value)
    dtype = feature.form.dtype
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if dtype == "string":
        fits = isinstance(value, str)
    elif dtype == "bool":
        fits = isinstance(value, bool)
    elif isinstance(feature, ClassLabel):
        fits = number and isinstance(value, int) and 0 <= value < len(feature.names)
    else:
        fits = number and _is_value(value, dtype)
    if not fits:
        raise RecipeError(
            f"prepare: {step!r}: {value!r} is not a valid value of {step.name!r}, which is "
            f"{written(feature)}."
        )
    return value


def _is_value(number: object, dtype: str) -> bool:
    start, stop = INTEGERS.get(dtype, (-math.inf, math.inf))
    return dtype in FLOATS or (isinstance(number, int) and start <= number < stop)


@config_class
class Hash(BuiltIn):
    """Hashes strings or integers to buckets, int64 in [0, num_buckets).

    A value has the same bucket on every machine. The hash is FarmHash's fingerprint
    (``tf.strings.to_hash_bucket_fast``), or, with a ``key``, SipHash
    (``tf.strings.to_hash_bucket_strong``), against inputs chosen to collide. Integers are hashed
    as decimal text. Missing values stay missing.

    Args:
        name: The feature, which may be a tensor or sequence.
        num_buckets: The number of buckets, at least 1.
        key: Two integers in [0, 2**63).

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    num_buckets: Annotated[int, pydantic.Field(ge=1, lt=2**63)]
    _: dataclasses.KW_ONLY
    key: tuple[_Half, _Half] | None = None
    kind = "tables.hash"
    batched = True
    sees_features = True

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no such feature, or its dtype is a float.
        """
        dtypes = {*INTEGERS, "bool", "string"}
        feature = find(self, self.name, features, dtypes=dtypes, what="strings or integers")
        return {**features, self.name: of_dtype(feature, "int64")}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces values by their buckets."""
        import tensorflow as tf

        def bucket(value: Any) -> Any:
            text = value if value.dtype == tf.string else tf.strings.as_string(value)
            if self.key is None:
                return tf.strings.to_hash_bucket_fast(text, self.num_buckets)
            return tf.strings.to_hash_bucket_strong(text, self.num_buckets, list(self.key))

        return compute(record, self.name, bucket, after=self.features(features)[self.name])


hash = Hash


@config_class
class OneHot(BuiltIn):
    """Replaces a class or an integer by a one-hot vector, ``dtype[depth]``.

    A missing value becomes all zeros; a value outside [0, depth) is rejected.

    Args:
        name: The feature.
        depth: Length of the vector; None means the number of class names.
        dtype: The dtype of the vector.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    depth: Annotated[int, pydantic.Field(ge=1, le=2**20)] | None = None
    _: dataclasses.KW_ONLY
    dtype: DtypeField = "float32"
    kind = "tables.one_hot"
    batched = True
    sees_features = True

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no such class or integer, or its depth is unknown.
        """
        what = "a class or an integer"
        feature = find_single(self, self.name, features, dtypes={*INTEGERS}, what=what)
        if self.dtype == "string":
            raise RecipeError(
                f"prepare: {self!r}: invalid dtype 'string', expected a number or bool dtype."
            )
        depth = self.depth
        if depth is None and isinstance(feature, ClassLabel):
            depth = len(feature.names)
        if depth is None:
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is {written(feature)}, which does not define "
                "the number of values. Give depth=."
            )
        return {**features, self.name: Tensor(self.dtype, (depth,))}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces indices by their one-hot vectors."""
        import tensorflow as tf

        feature = self.features(features)[self.name]
        form = tensor_form(feature)
        depth = form.shape[0] if form is not None else None
        index = cast_values(record[self.name], "int64")
        present = record.get(presence_name(self.name), tf.ones_like(index, tf.bool))
        fits = ~present | ((index >= 0) & (index < depth))
        index = checked(
            tf.where(present, index, -1), fits, expected=f"0 to {(depth or 0) - 1}", found=index
        )
        value = tf.one_hot(index, depth, on_value=True, off_value=False, dtype=tf.bool)
        return {**without_presence(record, self.name), self.name: tf.cast(value, self.dtype)}


one_hot = OneHot


@config_class
class MultiHot(BuiltIn):
    """See :func:`multi_hot`."""

    name: str
    classes: tuple[str, ...] | str | None = None
    separator: Annotated[str, pydantic.Field(min_length=1)] = "|"
    dtype: DtypeField = "float32"
    file_classes: tuple[str, ...] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )
    """The content of the file of classes, set in the step that runs."""
    kind = "tables.multi_hot"
    batched = True
    sees_features = True

    def __post_init__(self) -> None:
        """Checks classes given as a list, and the dtype."""
        if self.dtype == "string":
            raise ValueError("dtype: expected a number or bool dtype, found 'string'")
        if isinstance(self.classes, tuple):
            self._check(check_vocabulary(self.classes, where=repr(self)))

    @property
    def files(self) -> tuple[str, ...]:
        """The file of classes, if there is one."""
        return (self.classes,) if isinstance(self.classes, str) else ()

    def with_files(self, contents: Many[bytes]) -> MultiHot:
        """The step with the content of its file.

        Raises:
            RecipeError: if it is not a valid list of classes.
        """
        (content,) = contents
        classes = read_vocabulary(content, where=f"prepare: {self!r}: {self.classes}")
        return dataclasses.replace(self, file_classes=self._check(classes))

    def _check(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        for name in classes:
            if name != name.strip(" ") or not name or self.separator in name:
                raise RecipeError(
                    f"prepare: {self!r}: class {name!r} is empty, contains {self.separator!r}, or "
                    "begins or ends with a space, which no value does after splitting."
                )
        return classes

    def settings(self) -> dict[str, object]:
        """Everything but a file's content that affects the output, as plain JSON."""
        settings = super().settings()
        return {**settings, "classes": "file"} if isinstance(self.classes, str) else settings

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no such text, class or list of them, or the classes are
                unknown.
        """
        names = self._classes(features)
        return {**features, self.name: Tensor(self.dtype, (len(names),), names=names)}

    def _classes(self, features: Features) -> tuple[str, ...]:
        what = "text, a class, or a list of one of them"
        feature = find(self, self.name, features, dtypes={"string", "int64"}, what=what)
        item = feature.of if isinstance(feature, Sequence) else feature
        is_list = feature.form.shape == (None,)
        if not isinstance(item, ClassLabel) and (feature.form.dtype != "string"):
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is {written(feature)}, expected {what}."
            )
        if feature.form.shape and not is_list:
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is {written(feature)}, expected one list per "
                "record."
            )
        if isinstance(self.classes, tuple):
            return self.classes
        if self.file_classes is not None:
            return self.file_classes
        if not isinstance(item, ClassLabel):
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is {written(feature)}, which does not name its "
                "classes. Give classes=, or make it the label of its source, which finds them in "
                "the data if there are at most 1,000 different values."
            )
        return tuple(sorted({part for name in item.names for part in self._parts(name, is_list)}))

    def _parts(self, name: str, is_list: bool) -> list[str]:
        """The classes in the name of a combination of them."""
        if is_list:
            return [name]
        return [part for text in name.split(self.separator) if (part := text.strip(" "))]

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces classes by the vector of those that are present."""
        import tensorflow as tf

        classes, feature = self._classes(features), features[self.name]
        item = feature.of if isinstance(feature, Sequence) else feature
        value = record[self.name]
        if isinstance(item, ClassLabel):
            hot = self._of_indices(item.names, classes, value, is_list=_is_list(feature))
        else:
            hot = self._of_texts(classes, value, is_list=_is_list(feature))
        hot = tf.ensure_shape(hot, [*hot.shape[:-1], len(classes)])
        return {**without_presence(record, self.name), self.name: tf.cast(hot, self.dtype)}

    def _of_texts(self, classes: tuple[str, ...], value: Any, *, is_list: bool) -> Any:
        import tensorflow as tf

        if not is_list:
            value = tf.strings.split(value, sep=self.separator)
        value = each(lambda text: tf.strings.regex_replace(text, "^ +| +$", ""), value)
        table = token_table(classes, unknown=-1)

        def look_up(parts: Any) -> Any:
            index = table.lookup(parts)
            fits = (index >= 0) | (parts == "")
            return checked(index, fits, expected=f"some of the {len(classes)} classes", found=parts)

        return _any_of(each(look_up, value), len(classes))

    def _of_indices(
        self, names: tuple[str, ...], classes: tuple[str, ...], value: Any, *, is_list: bool
    ) -> Any:
        import tensorflow as tf

        places = {name: index for index, name in enumerate(classes)}
        parts = [self._parts(name, is_list) for name in names]
        known = tf.constant([all(part in places for part in some) for some in parts] or [True])
        rows = [
            [index in {places.get(part) for part in some} for index in range(len(classes))]
            for some in parts
        ]
        matrix = tf.constant(rows or [[False] * len(classes)], tf.bool)

        def look_up(index: Any) -> Any:
            known_index = tf.maximum(index, 0)
            fits = tf.gather(known, known_index) | (index < 0)
            shown = tf.gather(tf.constant(names or ("",)), known_index)
            return checked(index, fits, expected=f"some of {len(classes)} classes", found=shown)

        index = each(look_up, value)
        if is_list:
            padded = index.to_tensor(-1) if isinstance(index, tf.RaggedTensor) else index
            return tf.reduce_any(
                tf.gather(matrix, tf.maximum(padded, 0)) & (padded >= 0)[..., None], -2
            )
        return tf.gather(matrix, tf.maximum(index, 0)) & (index >= 0)[..., None]


def _is_list(feature: Any) -> bool:
    form = tensor_form(feature)
    return form is not None and bool(form.shape)


def _any_of(index: Any, depth: int) -> Any:
    """bool[…, depth]: which indices occur in each list; negative ones do not count."""
    import tensorflow as tf

    padded = index.to_tensor(-1) if isinstance(index, tf.RaggedTensor) else index
    return tf.reduce_any(tf.one_hot(padded, depth, True, False, dtype=tf.bool), axis=-2)


def multi_hot(
    name: str,
    classes: str | Iterable[str] | None = None,
    *,
    separator: str = "|",
    dtype: str = "float32",
) -> MultiHot:
    """Replaces several classes by a vector with a one for each of them, ``dtype[num_classes]``.

    Text such as ``"cyst|mass"`` is split; a list of texts or classes is taken as it is. Spaces
    around a class do not count. A missing value, an empty text and an empty list become all zeros.
    A record with another class is rejected. The classes are the ``names`` of the new feature.

    Args:
        name: The feature: text, a class whose names are combinations, or a list.
        classes: The classes in their order, or the path or URL of a UTF-8 file with one per line;
            the file's content enters the fingerprint. None takes those of a feature that is a
            class, sorted: sources find these in the data of their label.
        separator: What separates the classes in a text.
        dtype: The dtype of the vector.

    Raises:
        RecipeError: if an argument is invalid.
    """
    return MultiHot(
        name=name,
        classes=as_tuple(classes),
        separator=separator,
        dtype=dtype,  # type: ignore[arg-type]
    )


def cast_values(value: Any, dtype: str) -> Any:
    """Casts a tensor to another dtype; fails if a value cannot be represented.

    Numbers are rounded to the nearest float. Strings are parsed as decimal numbers.
    """
    import tensorflow as tf

    source, target = value.dtype.name, tf.as_dtype(dtype)
    if source == dtype:
        return value
    if source == "string":
        return _from_text(value, dtype)
    if dtype == "string":
        return tf.strings.as_string(value)
    if dtype == "bool":
        fits = (value == tf.cast(0, value.dtype)) | (value == tf.cast(1, value.dtype))
        return checked(tf.cast(value, target), fits, expected="0 or 1", found=value)
    if source == "bool":
        return tf.cast(value, target)
    if dtype in FLOATS:
        made = tf.cast(value, target)
        if source in FLOATS:
            fits = ~tf.math.is_finite(value) | tf.math.is_finite(made)
        else:
            fits = tf.math.is_finite(made)
        return checked(made, fits, expected=f"a value of {dtype}", found=value)
    if source in FLOATS:
        wide = tf.cast(value, tf.float64)
        start, stop = (tf.constant(float(end), tf.float64) for end in INTEGERS[dtype])
        fits = (wide >= start) & (wide < stop) & (tf.floor(wide) == wide)
        # Casting an out-of-range value is undefined behaviour.
        made = tf.cast(tf.where(fits, wide, tf.zeros_like(wide)), target)
        return checked(made, fits, expected=f"a whole number of {dtype}", found=value)
    made = tf.cast(value, target)
    fits = (tf.cast(made, value.dtype) == value) & (_negative(made) == _negative(value))
    return checked(made, fits, expected=f"a value of {dtype}", found=value)


def _negative(value: Any) -> Any:
    import tensorflow as tf

    if value.dtype.is_unsigned:
        return tf.zeros_like(value, tf.bool)
    return value < tf.cast(0, value.dtype)


def _from_text(value: Any, dtype: str) -> Any:
    import tensorflow as tf

    text = tf.strings.strip(value)
    if dtype in FLOATS:
        number = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)"
        fits = tf.strings.regex_full_match(tf.strings.lower(text), number)
        text = tf.where(fits, checked(text, fits, expected="a number", found=value), "0")
        return cast_values(tf.strings.to_number(text, tf.float64), dtype)
    fits = tf.strings.regex_full_match(text, r"[+-]?\d+")
    text = tf.where(fits, checked(text, fits, expected="a whole number", found=value), "0")
    # Fails on its own beyond int64.
    return cast_values(tf.strings.to_number(text, tf.int64), dtype)
