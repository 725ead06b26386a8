"""Steps on records: filter, map, map_python, select, rename, drop, drop_duplicates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.blocks import RawBatch
from ...schemas.config import as_tuple, check_texts, config_class
from ...schemas.errors import RecipeError
from ...schemas.features import BoundingBoxes, Feature, Features, Mask, Struct, flatten, side_names
from ...schemas.recipe import SortedRecords
from ...schemas.splits import Splits
from ..examples.contents import DIGEST_BYTES, content_digests
from ..examples.encode import binary_array
from .engine.chain import KEEP
from .engine.user_functions import MapPython, call_user, describe
from .values import NO_FEATURES, BuiltIn, call_text

__all__ = [
    "DropDuplicates",
    "MapPython",
    "drop",
    "drop_duplicates",
    "filter",
    "map",
    "map_python",
    "rename",
    "select",
]

_Function = Callable[[dict[str, Any]], Any]


@config_class
class Filter(BuiltIn):
    """Keeps the records for which a function returns True; the others are counted as filtered.

    Filtered records are not rejects, and no later step sees them.

    Args:
        function: From a dict of tensors, a record's features by name, to a bool scalar, in
            TensorFlow operations. A missing value is the feature's fill value: to detect it, put
            ``ss.tables.missing`` before.
        batched: Whether the function also works on tensors with a leading batch dimension
            (``lambda r: r["age"] > 18`` does), which is a hundred times as fast on tables.

    Raises:
        RecipeError: if an argument is invalid.
    """

    function: _Function
    _: dataclasses.KW_ONLY
    batched: bool = False
    kind = "records.filter"
    filters = True
    sees_features = True

    @property
    def functions(self) -> tuple[_Function, ...]:
        """The user's function."""
        return (self.function,)

    def __repr__(self) -> str:
        """As shown in errors."""
        return f"ss.records.filter({describe(self.function)})"

    def settings(self) -> dict[str, object]:
        """Everything but the function that affects the output, as JSON, for the fingerprint."""
        return {"step": self.kind, "batched": self.batched}

    def features(self, features: Features) -> Features:
        """The features, unchanged."""
        return features

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Adds a bool that says whether to keep the record."""
        import tensorflow as tf

        given = {name: record[name] for name in features}
        keep = call_user(self.function, given, where=repr(self))
        try:
            keep = tf.convert_to_tensor(keep)
        except (ValueError, TypeError):
            keep = None
        if keep is None or keep.dtype != tf.bool or keep.shape.rank not in (0, 1):
            raise RecipeError(
                f"prepare: {self!r} returned {keep!r}, expected one bool per record. Compare with "
                "TensorFlow operations, and combine with tf.reduce_all or tf.reduce_any."
            )
        return {**record, KEEP: record[KEEP] & keep if KEEP in record else keep}


filter = Filter


@config_class
class Map:
    """Applies a function in TensorFlow operations to each record.

    The same as the function itself in ``prepare=[…]``, except for ``batched``.

    Args:
        function: From a dict of tensors, a record's features by name, to a dict of the new
            record's features. Those that it does not return are dropped: return
            ``{**record, "length": …}`` to add one.
        batched: Whether the function also works on tensors with a leading batch dimension
            (``tf.RaggedTensor`` if lists vary in length), elementwise over records, which is a
            hundred times as fast on tables. Beware of functions like ``tf.exp``: the last bit of
            a vectorised result may depend on the position in the batch.

    Raises:
        RecipeError: if an argument is invalid.
    """

    function: _Function
    _: dataclasses.KW_ONLY
    batched: bool = False

    @property
    def functions(self) -> tuple[_Function, ...]:
        """The user's function."""
        return (self.function,)

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """Calls the function."""
        result: dict[str, Any] = self.function(record)
        return result


map = Map


@config_class
class Select(BuiltIn):
    """See :func:`select` and :func:`drop`."""

    names: tuple[str, ...]
    dropped: bool = False
    kind = "records.select"
    batched = True
    moves_only = True
    sees_features = True

    def __post_init__(self) -> None:
        """Checks that there is at least one name."""
        if not self.names:
            raise ValueError("names: expected at least one")

    def __repr__(self) -> str:
        """The step as written in a recipe."""
        return call_text(f"ss.records.{'drop' if self.dropped else 'select'}", list(self.names))

    def features(self, features: Features) -> Features:
        """The features that are kept.

        Raises:
            RecipeError: if a name is not a feature's, or none is kept.
        """
        _check_known(self, self.names, features)
        kept = {n: f for n, f in features.items() if (n in self.names) != self.dropped}
        if not kept:
            raise RecipeError(f"prepare: {self!r} leaves no features.")
        return kept

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Removes the other features."""
        return _parts(record, {name: name for name in self.features(features)}, features)


@config_class
class Rename(BuiltIn):
    """Renames features: old name -> new name.

    Raises:
        RecipeError: if an argument is invalid.
    """

    names: Mapping[str, str]
    kind = "records.rename"
    batched = True
    moves_only = True
    sees_features = True

    def features(self, features: Features) -> Features:
        """The features under their new names.

        Raises:
            RecipeError: if a name is not a feature's, or two features would have the same name.
        """
        _check_known(self, self.names, features)
        renamed: dict[str, Feature] = {}
        for name, feature in features.items():
            new = self.names.get(name, name)
            if new in renamed:
                raise RecipeError(f"prepare: {self!r}: two features would be called {new!r}.")
            if isinstance(feature, BoundingBoxes):
                feature = self._following(feature)
            if isinstance(feature, Mask):
                image = self.names.get(feature.image, feature.image)
                feature = dataclasses.replace(feature, image=image)
            renamed[new] = feature
        return renamed

    def _following(self, boxes: BoundingBoxes) -> BoundingBoxes:
        """Boxes that refer to their image and labels by the new names."""
        labels = boxes.labels
        if labels is not None:
            renamed = tuple(self.names.get(name, name) for name in boxes.per_box)
            labels = renamed[0] if isinstance(labels, str) else renamed
        image = self.names.get(boxes.image, boxes.image)
        return dataclasses.replace(boxes, image=image, labels=labels)

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Renames tensors."""
        return _parts(record, {name: self.names.get(name, name) for name in features}, features)


rename = Rename


def map_python(
    function: Callable[[dict[str, Any]], Mapping[str, Any]],
    features: Mapping[str, Feature | Struct],
    *,
    inputs: Iterable[str] | None = None,
) -> MapPython:
    """Adds or replaces features of each record with a plain Python function.

    The function returns the new features only, and the record keeps all others. This differs from
    :class:`map`, whose function returns the complete new record.

    Slower than TensorFlow, and not exported for serving. An exception rejects the record, with
    its message. The fingerprint covers everything that the function refers to; the function must
    be deterministic.

    Args:
        function: From a dict of NumPy values by name (``str`` for Text, ``bytes`` for other
            strings and files, None for a missing value) to a dict of exactly the values that
            ``features`` declares, None for a missing optional one.
        features: The features that the function returns, new ones or in place of old ones.
        inputs: Names of the features that it reads; None for all of them, which is slow if there
            are images.

    Raises:
        RecipeError: if an argument is invalid.
    """
    if not isinstance(features, Mapping) or not all(isinstance(name, str) for name in features):
        raise RecipeError(
            f"ss.records.map_python: features={features!r}, expected a dict of features by name, "
            'such as {"length": ss.Scalar("int64")}.'
        )
    check_texts("ss.records.map_python", {"features": list(features)})
    outputs, _ = flatten(features)
    return MapPython(function=function, outputs=outputs, inputs=as_tuple(inputs))


def select(names: Iterable[str]) -> Select:
    """Keeps only these features.

    Raises:
        RecipeError: if an argument is invalid.
    """
    return Select(names=_names(names))


def drop(names: Iterable[str]) -> Select:
    """Removes these features.

    Raises:
        RecipeError: if an argument is invalid.
    """
    return Select(names=_names(names), dropped=True)


def _names(names: Iterable[str]) -> tuple[str, ...]:
    listed: tuple[str, ...] = as_tuple([names] if isinstance(names, str) else names)
    return listed


def _check_known(step: object, names: Iterable[str], features: Features) -> None:
    unknown = sorted(set(names) - set(features))
    if unknown:
        raise RecipeError(
            f"prepare: {step!r}: there is no feature {', '.join(_quoted(unknown))}, expected some "
            f"of {', '.join(_quoted(sorted(features)))}."
        )


def _quoted(names: Iterable[str]) -> list[str]:
    return [repr(name) for name in names]


def _parts(record: dict[str, Any], names: Mapping[str, str], features: Features) -> dict[str, Any]:
    """The tensors of features, with their side tensors, under new names."""
    kept = {part: value for part, value in record.items() if part == KEEP}
    for old, new in names.items():
        kept[new] = record[old]
        feature = features[old]
        sides = zip(side_names(old, feature), side_names(new, feature), strict=True)
        kept |= {after: record[before] for before, after in sides if before in record}
    return kept


@config_class
class DropDuplicates(BuiltIn):
    """See :func:`drop_duplicates`."""

    names: tuple[str, ...] = ()

    kind = "records.drop_duplicates"
    prefix_bytes = DIGEST_BYTES

    def __repr__(self) -> str:
        """The step as written in a recipe."""
        return call_text(f"ss.{self.kind}", *self.names)

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        return {"step": self.kind, "names": sorted(self.names)}

    def features(self, features: Features) -> Features:
        """The features, unchanged.

        Raises:
            RecipeError: if a feature to compare does not exist.
        """
        missing = sorted(set(self.names) - set(features))
        if missing:
            raise RecipeError(
                f"prepare: {self!r}: there is no feature {', '.join(repr(n) for n in missing)}, "
                f"expected some of {', '.join(repr(n) for n in features)}."
            )
        return features

    def check(self, splits: Splits) -> None:
        """Accepts any splits."""

    def order(
        self, ids: Sequence[str], columns: Any, *, features: Features, seed: int
    ) -> tuple[Any, Any]:
        """Sorts by a 128-bit hash of the content; records with equal hashes count as equal."""
        del ids, seed
        digests = content_digests(columns, features, names=self.names or tuple(features))
        keys = digests[:, :8].copy().view(">u8").reshape(-1).astype(np.uint64)
        offsets = np.arange(len(digests) + 1, dtype=np.int64) * DIGEST_BYTES
        return keys, binary_array(offsets, pa.py_buffer(digests))

    def merge(self, records: Iterator[SortedRecords], *, features: Features) -> Iterator[RawBatch]:
        """Keeps the first record, by id, of each content."""
        del features
        last = b""
        for part in records:
            prefixes = part.prefixes.to_pylist()
            before = [last, *prefixes][: len(prefixes)]
            last = prefixes[-1] if prefixes else last
            first = np.array([a != b for a, b in zip(prefixes, before, strict=True)], bool)
            yield RawBatch(
                ids=[text for text, kept in zip(part.ids, first, strict=True) if kept],
                columns=part.columns.filter(pa.array(first)),
                num_filtered=int(len(first) - first.sum()),
            )


def drop_duplicates(*names: str) -> DropDuplicates:
    """Keeps one of all records with equal content: the one with the lowest id.

    Compares a 128-bit content hash across the complete source; dropped records are counted.

    Args:
        names: The features to compare; all by default. Leave the label out to also find inputs
            that occur with two labels.

    Raises:
        RecipeError: if a name is not a feature.
    """
    return DropDuplicates(names=names)
