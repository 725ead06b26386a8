"""Assigns prepared records to partitions, strata and shards.

If something other than the record's key decides its split, the partition is the split. There are
four such rules: the hash of a group, a folder, a column's value, a time. A record to which no split
applies is rejected, never dropped silently. A stratum is a label as text; reports count the same
labels.

For example, with ``Splits(train=0.8, test=0.2, group_by="patient")`` a record's key is the hash of
its id, but the hash of its patient decides between train, partition 0, and test, partition 1. All
runs are sorted by (partition, key): the records of a split lie together, and a shard of test is the
range of keys of partition 1 between two cuts.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.blocks import ShardPlan, SplitPlan
from ...schemas.errors import PlaceError, RecipeError
from ...schemas.features import (
    ClassLabel,
    Feature,
    Features,
    Timestamp,
    is_time,
    tensor_form,
    time_advice,
    written,
)
from ...schemas.manifest import MAX_LABELS
from ...schemas.splits import SplitRule, Splits
from ...schemas.visible import visible
from ...schemas.wire import FLOATS
from .key_histogram import stratum_codes
from .keys import NO_PARTITION, Keys, assign_partitions

_SHOWN = 5
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
Partitions = npt.NDArray[np.int16]


@dataclasses.dataclass(frozen=True)
class GroupSplits:
    """The split of each group, if it depends on all groups; small, and sent to workers."""

    keys: bytes
    """uint64[groups], ascending."""
    splits: bytes
    """int16[groups]."""

    @classmethod
    def of(cls, keys: npt.NDArray[np.uint64], splits: Sequence[int]) -> GroupSplits:
        """From the groups' keys, ascending, and the index of each group's split."""
        return cls(keys.astype("<u8").tobytes(), np.array(splits, "<i2").tobytes())

    def find(self, keys: npt.NDArray[np.uint64]) -> Partitions:
        """The splits of groups; NO_PARTITION for unknown ones."""
        known = np.frombuffer(self.keys, "<u8")
        at = np.minimum(np.searchsorted(known, keys), max(len(known) - 1, 0))
        if not len(known):
            return np.full(len(keys), NO_PARTITION, np.int16)
        splits = np.frombuffer(self.splits, "<i2")[at].astype(np.int16)
        return np.where(known[at] == keys, splits, np.int16(NO_PARTITION))


SplitEnds = tuple[int, ...] | GroupSplits
"""Computed from all records together: the ends of splits by time, or the split of each group."""


def time_ends(splits: Splits, features: Features) -> tuple[int, ...] | None:
    """The ends of all splits by time but the last, in the feature's unit; None if not given.

    Raises:
        RecipeError: if they do not match the feature's type.
    """
    rule = splits.rule
    if rule is None or rule.by != "time" or not rule.ends:
        return None
    feature = features.get(rule.feature or "")
    return tuple(_in_unit(end, feature, rule) for end in rule.ends[:-1])


def check_rule(splits: Splits, features: Features) -> None:
    """Checks that the feature of a split rule exists and has a suitable type.

    Raises:
        RecipeError: if not.
    """
    rule = splits.rule
    if rule is None or rule.feature is None:
        return
    feature = features.get(rule.feature)
    if feature is None:
        raise RecipeError(
            f"Splits.by_{rule.by}: there is no feature {rule.feature!r}, expected one of "
            f"{', '.join(map(repr, features))}."
        )
    if rule.by == "column" and not is_countable(feature):
        raise RecipeError(
            f"Splits.by_column: {rule.feature!r} is {feature}, expected a class, an integer, a "
            "bool, a time or a string."
        )
    if rule.by == "column" and _is_bool(feature):
        _check_bools(rule)
    if rule.by == "time" and not is_time(feature):
        raise RecipeError(
            f"Splits.by_time: {rule.feature!r} is {written(feature)}, expected a time or an "
            f"integer that int64 holds. {time_advice(rule.feature, feature)}"
        )
    time_ends(splits, features)


def partition_records(
    ids: Sequence[str],
    columns: pa.RecordBatch,
    *,
    splits: Splits,
    features: Features,
    seed: int,
    ends: SplitEnds | None = None,
) -> tuple[Partitions, str]:
    """Computes the partition of each record.

    Args:
        ids: The ids of n records.
        columns: Their wire columns.
        splits: How records are divided.
        features: The features of the columns.
        seed: The recipe's seed.
        ends: The ends of all splits by time but the last, or the splits of balanced groups. None
            if they are not known yet: all records are then in partition 0.

    Returns:
        int16[n], NO_PARTITION for records without one, and the reason for these as a message.
    """
    rule = splits.rule
    if splits.decided_by_all and ends is None:
        return np.zeros(columns.num_rows, np.int16), ""
    if rule is not None and rule.by != "time":
        named, message = named_partitions(ids, columns, splits=splits, features=features)
        if splits.of_train is None or splits.group_by is None:
            return named, message
        by_group, missing = _by_group(columns, splits.of_train, features, seed=seed, ends=ends)
        return with_divided_train(named, by_group, splits), f"{message}; or its {missing}"
    if splits.group_by is not None:
        return _by_group(columns, splits, features, seed=seed, ends=ends)
    if rule is None:
        return np.zeros(columns.num_rows, np.int16), ""
    assert rule.feature is not None
    column = columns.column(rule.feature)
    values = column.fill_null(0).to_numpy()
    assert isinstance(ends, tuple)
    numbers = np.searchsorted(np.array(ends, np.int64), values, side="right").astype(np.int16)
    numbers[column.is_null().to_numpy(zero_copy_only=False)] = NO_PARTITION
    return numbers, f"feature {rule.feature!r} is missing; splits by time need it"


def with_divided_train(partitions: Partitions, of_train: Partitions, splits: Splits) -> Partitions:
    """The splits of records, of which those in train may be in one that takes a fraction of it.

    Args:
        partitions: int16[n].
        of_train: int16[n], indices into the names of ``splits.of_train``.
        splits: Splits of which some take fractions of train.
    """
    assert splits.of_train is not None
    index = [splits.names.index(name) for name in splits.of_train.names]
    # The last entry is for NO_PARTITION.
    divided = np.array([*index, NO_PARTITION], np.int16)[of_train]
    return np.where(partitions == index[0], divided, partitions)


def _by_group(
    columns: pa.RecordBatch,
    splits: Splits,
    features: Features,
    *,
    seed: int,
    ends: SplitEnds | None = None,
) -> tuple[Partitions, str]:
    assert splits.group_by is not None
    groups = columns.column(splits.group_by)
    # As text: a new class must not move the groups of others by shifting their indices.
    texts = label_texts(groups, features[splits.group_by])
    missing = f"feature {splits.group_by!r} is missing; group_by needs it"
    known = ends if isinstance(ends, GroupSplits) else None
    return assign_partitions(texts, splits, seed=seed, known=known), missing


def _split_folder(path: str, words: frozenset[str]) -> str | None:
    """The first folder of a path that names a split, as it is in the rule; None if none does."""
    folders = path.casefold().split("/")[:-1]
    return next((folder for folder in folders if folder in words), None)


def named_partitions(
    ids: Sequence[str], columns: pa.RecordBatch, *, splits: Splits, features: Features
) -> tuple[Partitions, str]:
    """The splits that folders or a column name: int16[n]; and why records have none."""
    rule = splits.rule
    assert rule is not None
    if rule.by == "folder":
        words = frozenset(text for _, texts in rule.values for text in texts)
        folders = [_split_folder(path, words) for path in ids]
        message = f"none of its folders names a split: {_words(rule)}"
        return _named(folders, splits, rule), message
    assert rule.feature is not None
    column, feature = columns.column(rule.feature), features[rule.feature]
    texts = label_texts(column, feature).dictionary_encode(null_encoding="encode")
    stored = _stored_bool if _is_bool(feature) else str
    of_text = _named(texts.dictionary.to_pylist(), splits, rule, stored)
    message = f"feature {rule.feature!r} names none of the splits: {_words(rule)}"
    return of_text[texts.indices.to_numpy()], message


_BOOLS = {"true": "1", "false": "0"}
"""The texts of a bool in a recipe, and those of what is stored."""


def _is_bool(feature: Feature) -> bool:
    form = tensor_form(feature)
    return form is not None and form.dtype == "bool"


def _check_bools(rule: SplitRule) -> None:
    owner: dict[str, str] = {}
    for name, text in ((name, text) for name, values in rule.values for text in values):
        stored = _stored_bool(text)
        if stored not in _BOOLS.values():
            raise RecipeError(
                f"Splits.by_column: {rule.feature!r} is a bool, but {name}={text!r} is "
                'neither "true" nor "false".'
            )
        if owner.setdefault(stored, name) != name:
            raise RecipeError(
                f"Splits.by_column: {text!r} belongs to both {owner[stored]} and {name}."
            )


def _stored_bool(text: str) -> str:
    return _BOOLS.get(text.casefold(), text)


def _named(
    texts: Sequence[str | None],
    splits: Splits,
    rule: SplitRule,
    stored: Callable[[str], str] = str,
) -> Partitions:
    """The split that each text names; names of folders may be other than UTF-8."""
    codes: dict[str | None, int] = {
        stored(text): splits.names.index(name) for name, values in rule.values for text in values
    }
    return np.array([codes.get(text, NO_PARTITION) for text in texts], np.int16)


def _words(rule: SplitRule) -> str:
    return "; ".join(f"{name}: {', '.join(values)}" for name, values in rule.values)


def _in_unit(end: int | str | None, feature: Feature | None, rule: SplitRule) -> int:
    if isinstance(feature, Timestamp):
        if not isinstance(end, str):
            raise RecipeError(
                f"Splits.by_time: {rule.feature!r} is a Timestamp, but {end!r} "
                f"is not a date. Write "
                'it as "2020-01-01".'
            )
        since = datetime.datetime.fromisoformat(end) - datetime.datetime(
            1970, 1, 1, tzinfo=datetime.UTC
        )
        micros = since // datetime.timedelta(microseconds=1)
        return -(-micros * _PER_SECOND[feature.unit] // 1_000_000)
    if not isinstance(end, int):
        raise RecipeError(
            f"Splits.by_time: {rule.feature!r} is not a Timestamp: expected integer ends, "
            f"found {end!r}."
        )
    return end


def select_rows(
    split: SplitPlan,
    shard: ShardPlan,
    *,
    partitions: npt.NDArray[np.int16],
    keys: Keys,
    strata: pa.Array | None = None,
) -> npt.NDArray[np.bool_]:
    """Computes which rows belong to a shard: bool[n].

    These are in the shard's partition and key range and, in a stratified split, in the key range
    of their own stratum.

    Args:
        split: The shard's split.
        shard: The shard.
        partitions: int16[n].
        keys: uint64[n].
        strata: string or binary[n], or a dictionary of them; required for a stratified split.

    Raises:
        PlaceError: if a row's stratum is not in the plan.
    """
    if split.strata is not None and strata is None:
        raise ValueError(f"split {split.name!r} is stratified: strata are required")
    selected = in_key_range(keys, shard.start_key, shard.stop_key)
    selected &= partitions == shard.partition
    if split.strata is None or strata is None:
        return selected
    codes = stratum_codes(strata, tuple(split.strata))
    ranges = split.strata.values()
    # A limit may leave out all records of a stratum: the keys of these are above all ranges.
    unknown = (codes < 0) & in_key_range(keys, 0, max((stop for _, stop in ranges), default=0))
    if unknown.any():
        row = int(np.argmax(unknown))
        raise PlaceError(
            f"The plan of split {split.name!r} has no stratum {strata[row].as_py()!r}, but a run "
            "does: they are of different builds. Remove the workspace and build again."
        )
    # Uses the last key, not the stop, which may be 2**64; an empty range becomes [1, 0].
    starts = np.array([start if start < stop else 1 for start, stop in ranges], np.uint64)
    lasts = np.array([stop - 1 if start < stop else 0 for start, stop in ranges], np.uint64)
    selected &= (codes >= 0) & (starts[codes] <= keys) & (keys <= lasts[codes])
    return selected


def in_key_range(keys: Keys, start: int, stop: int) -> npt.NDArray[np.bool_]:
    """Computes which keys are in [start, stop), stop up to 2**64: bool[n] for uint64[n]."""
    if start >= stop:
        return np.zeros(len(keys), np.bool_)
    inside: npt.NDArray[np.bool_] = (np.uint64(start) <= keys) & (keys <= np.uint64(stop - 1))
    return inside


def is_countable(feature: Feature | None) -> bool:
    """Whether a feature has labels: one class, integer, bool, time or string per record."""
    form = tensor_form(feature) if feature is not None else None
    return form is not None and form.shape == () and form.dtype not in FLOATS


def bytes_texts(column: pa.Array) -> pa.Array:
    r"""Converts bytes to text; bytes that are not UTF-8 become ``\xNN``."""
    try:
        return column.cast(pa.large_string())
    except pa.ArrowInvalid:
        values = column.to_pylist()
        texts = [v if v is None else v.decode(errors="backslashreplace") for v in values]
        return pa.array(texts, pa.large_string())


def label_texts(column: pa.Array, feature: Feature) -> pa.Array:
    """The values of a wire column as text: class names, numbers, strings; null if missing."""
    if isinstance(feature, ClassLabel):
        return pa.array(feature.names, pa.large_string()).take(column)
    form = tensor_form(feature)
    assert form is not None
    if form.dtype == "string":
        return bytes_texts(column)
    if form.dtype == "uint64":
        column = column.view(pa.uint64())
    return column.cast(pa.large_string())


def strata_of(
    records: pa.RecordBatch, features: Features, stratify_by: str | None
) -> pa.Array | None:
    """The stratum of each record: a value as text, empty if it is missing; None without strata."""
    if stratify_by is None:
        return None
    return label_texts(records.column(stratify_by), features[stratify_by]).fill_null("")


def count_labels(column: pa.Array, feature: Feature) -> Counter[str]:
    """Counts the labels of a wire column; missing ones are ignored."""
    if len(column) == 0:
        return Counter()
    counts = pc.value_counts(column.drop_null())
    texts = label_texts(counts.field("values"), feature)
    return Counter(dict(zip(texts.to_pylist(), counts.field("counts").to_pylist(), strict=True)))


def describe_lacking(
    labels: Mapping[str, Mapping[str, int]], feature: Feature | None, name: str
) -> str:
    """Which classes have no record, or none in some split, for people; empty if all have.

    Args:
        labels: Records of each label, by split.
        feature: The label's feature: of numbers and texts, not all need to be everywhere.
        name: Its name.

    >>> feature = ClassLabel(names=("cat", "dog", "emu"))
    >>> describe_lacking({"train": {"cat": 2, "dog": 1}, "test": {"cat": 1}}, feature, "label")
    "no 'dog' in test; no record has the label 'emu'"
    """
    if not isinstance(feature, ClassLabel) or not labels:
        return ""
    used = {split: counts for split, counts in labels.items() if any(counts.values())}
    parts = []
    for label in feature.names:
        empty = [split for split, counts in used.items() if not counts.get(label)]
        if len(empty) == len(used):
            parts.append(f"no record has the {name} {visible(label)!r}")
        elif empty:
            parts.append(f"no {visible(label)!r} in {' and '.join(empty)}")
    more = len(parts) - _SHOWN
    return "; ".join(parts[:_SHOWN]) + (f"; and {more:,} more" if more > 0 else "")


def most_frequent(counts: Mapping[str, int]) -> dict[str, int]:
    """The 1,000 most frequent labels, sorted by name; ties are broken by name."""
    kept = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_LABELS]
    return dict(sorted(kept))
