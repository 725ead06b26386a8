"""Steps that turn categories into numbers: hash and one-hot."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic

from ...schemas.config import config_class
from ...schemas.errors import RecipeError
from ...schemas.features import ClassLabel, Features, Tensor, presence_name, tensor_form
from ...schemas.values import DtypeField
from ...schemas.written import written
from .casting import INTEGERS, cast_values
from .values import (
    NO_FEATURES,
    call_text,
    checked,
    compute,
    find,
    find_single,
    of_dtype,
    without_presence,
)

_Half = Annotated[int, pydantic.Field(ge=0, lt=2**63)]


@config_class
class Hash:
    """See :func:`hash`."""

    name: str
    num_buckets: Annotated[int, pydantic.Field(ge=1, lt=2**63)]
    key: tuple[_Half, _Half] | None = None
    batched = True
    sees_features = True

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        return call_text("ss.tables.hash", self.name, self.num_buckets, key=self.key)

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {
            "step": "tables.hash",
            "name": self.name,
            "num_buckets": self.num_buckets,
            "key": list(self.key) if self.key is not None else None,
        }

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no such feature, or it is one of floats.
        """
        dtypes = {*INTEGERS, "bool", "string"}
        feature = find(self, self.name, features, dtypes=dtypes, what="strings or whole numbers")
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


@config_class
class OneHot:
    """See :func:`one_hot`."""

    name: str
    depth: Annotated[int, pydantic.Field(ge=1, le=2**20)] | None = None
    dtype: DtypeField = "float32"
    batched = True
    sees_features = True

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        dtype = None if self.dtype == "float32" else self.dtype
        return call_text("ss.tables.one_hot", self.name, depth=self.depth, dtype=dtype)

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {
            "step": "tables.one_hot",
            "name": self.name,
            "depth": self.depth,
            "dtype": self.dtype,
        }

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no such class or integer, or its number of values is not told.
        """
        what = "a class or an integer"
        feature = find_single(self, self.name, features, dtypes={*INTEGERS}, what=what)
        if self.dtype == "string":
            raise RecipeError(f"prepare: {self!r}: ones and zeros are numbers or bools.")
        depth = self.depth
        if depth is None and isinstance(feature, ClassLabel):
            depth = len(feature.names)
        if depth is None:
            raise RecipeError(
                f"prepare: {self!r}: {self.name!r} is {written(feature)}, which does not say "
                "how many values it has. Give depth=."
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


def hash(name: str, num_buckets: int, *, key: tuple[int, int] | None = None) -> Hash:
    """Replaces strings or whole numbers by buckets, int64 in [0, num_buckets).

    The same value has the same bucket on every machine: FarmHash's fingerprint, or SipHash with a
    ``key``, where somebody might choose values to fall into one bucket. Numbers count as their
    decimals. A missing value stays missing.

    Args:
        name: The feature, tensors and sequences, too.
        num_buckets: At least 1.
        key: Two integers in [0, 2**63).

    Raises:
        RecipeError: if an argument is unfit.
    """
    return Hash(name=name, num_buckets=num_buckets, key=key)


def one_hot(name: str, depth: int | None = None, *, dtype: str = "float32") -> OneHot:
    """Replaces a class or an integer by a vector with a one at its index.

    A missing one becomes all zeros; one that is not in [0, depth) is rejected.

    Args:
        name: The feature.
        depth: Length of the vector; None for the number of a class's names.
        dtype: Of the ones and zeros.

    Raises:
        RecipeError: if an argument is unfit.
    """
    return OneHot(name=name, depth=depth, dtype=dtype)  # type: ignore[arg-type]
