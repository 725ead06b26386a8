"""What ``split`` names: a split, a part of one, or several. Imports no TensorFlow.

    "train"                     all records of a split
    "train[:10%]"               its first tenth, in stored order
    "train[1000:2000]"          its second thousand
    ["train", "validation"]     several splits, or parts of them; as text "train+validation"

The records of a split are stored in random order, so each part is a random sample of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from . import facts

Split = str | Sequence[str]
"""A split, a part of one, or a list of these."""

_FORMS = (
    'Accepted are the name of a split, a part of one such as "train[:10%]", "train[10%:]", '
    '"train[:1000]" or "train[-500:]", and a list of these.'
)
_PART = re.compile(r"\s*([^\s\[\]]+?)\s*(?:\[([^\[\]:]*):([^\[\]:]*)\])?\s*")
_BOUND = re.compile(r"[+-]?\d[\d_]*(\.\d+)?%|[+-]?\d[\d_]*")
_FOLD = re.compile(r"fold\d+")


class Part(NamedTuple):
    """The records ``start`` to ``stop`` of a split, in stored order."""

    split: str
    start: int
    stop: int


class Section(NamedTuple):
    """Consecutive records of one shard."""

    entry: Mapping[str, Any]
    """The shard in the manifest."""
    checksum: int | None
    """The shard's checksum in ``SHARD_CHECKSUMS``."""
    first: int
    """Number of the first record within the shard."""
    num: int
    """Number of records."""


@dataclasses.dataclass(frozen=True)
class Selection:
    """The records that a split specification names, in this order."""

    parts: tuple[Part, ...]
    is_training: bool
    """Whether it is shuffled by default: "train" or parts of it, or a list of folds."""

    @property
    def num_examples(self) -> int:
        """Number of records."""
        return sum(part.stop - part.start for part in self.parts)

    def sections(self, manifest: Mapping[str, Any]) -> Iterator[Section]:
        """The shards that hold these records, and which of their records these are."""
        for name, start, stop in self.parts:
            entries = manifest["splits"][name]["shards"]
            checksums = facts.SHARD_CHECKSUMS.get(name) or [None] * len(entries)
            is_whole = (start, stop) == (0, facts.NUM_EXAMPLES[name])
            end = 0
            for entry, checksum in zip(entries, checksums, strict=True):
                begin, end = end, end + entry["num_examples"]
                first, last = max(start, begin), min(stop, end)
                if first < last or is_whole:
                    yield Section(entry, checksum, first - begin, last - first)


def select(split: Split) -> Selection:
    """The records that ``split`` names.

    A percentage p of a split of n records is record floor(n * p / 100), exactly, so that
    "train[:p%]" and "train[p%:]" together are "train", for any p. A negative bound counts from the
    end: "train[-10%:]" is "train[90%:]".

    Raises:
        ValueError: if ``split`` is invalid, names an unknown split, records that do not exist or a
            record twice, or has no records although it is only part of a split.
    """
    if isinstance(split, str):
        texts = split.split("+")
    elif isinstance(split, list | tuple) and all(isinstance(name, str) for name in split):
        texts = [text for name in split for text in name.split("+")]
    else:
        texts = []
    if not texts:
        raise ValueError(f"split={split!r} is not a split. {_FORMS}")
    parts: list[Part] = []
    for part in map(_part, texts):
        last = parts[-1] if parts else None
        if last is not None and (last.split, last.stop) == (part.split, part.start):
            parts[-1] = Part(part.split, last.start, part.stop)  # one contiguous part
        else:
            parts.append(part)
    for one, other in itertools.pairwise(sorted(parts)):
        if one.split == other.split and other.start < one.stop:
            raise ValueError(
                f"split={split!r} names record {other.start:,} of {one.split!r} twice: the parts "
                "of a list must not overlap."
            )
    names = {part.split for part in parts}
    are_folds = not isinstance(split, str) and names <= {*fold_names()}
    return Selection(tuple(parts), is_training="train" in names or are_folds)


def check_not_empty(
    split: Split,
    num: int | None,
    *,
    shard: tuple[int, int],
    batch_size: int | None = None,
    drop_remainder: bool = False,
    equal_steps: bool = False,
    is_endless: bool = False,
) -> None:
    """Raises ValueError if options leave out every record, which ``fit`` would not notice.

    Without such options, a split without records is empty, and so are some of many parts.

    Args:
        split: What is read.
        num: Number of batches, or of records without ``batch_size``; None if unknown.
        shard: (index, count) of this worker.
        batch_size: As in ``dataset``, like the next two.
        drop_remainder: An option that leaves out records.
        equal_steps: Another one.
        is_endless: Whether the split is repeated forever: waiting for its first record.
    """
    total, (index, count) = select(split).num_examples, shard
    if num != 0 or not (is_endless or (total and (drop_remainder or equal_steps))):
        return
    remedies = {
        "a smaller batch_size": drop_remainder,
        "fewer workers": count > 1,
        "drop_remainder=False": drop_remainder,
        "equal_steps=False": equal_steps,
    }
    uses = " or ".join(name for name, helps in remedies.items() if helps) if total else ""
    what = "record" if batch_size is None else f"batch of {batch_size}"
    raise ValueError(
        f"{'epochs=None would wait forever: ' if is_endless else ''}split={split!r} has {total:,} "
        f"records, and shard=({index}, {count}) gets no {what}. Use {uses or 'another split'}."
    )


class Fold(NamedTuple):
    """The splits of one round of a cross-validation, for ``dataset``."""

    train: list[str]
    """All other folds."""
    validation: str
    """The fold itself."""


def fold(index: int) -> Fold:
    """One round of a cross-validation: the splits to train on, and the one to validate on.

        train, validation = reader.fold(0)

    The folds are the splits named fold0, fold1 and so on, as ``Splits.k_fold`` makes them. Each
    record of them is in the validation split of exactly one round. Other splits, such as "test",
    belong to none.

    Args:
        index: Number of the fold to validate on.

    Raises:
        ValueError: if there is no such fold.
    """
    names = fold_names()
    name = f"fold{index}"
    if len(names) < 2:
        raise ValueError(
            f"{facts.NAME} has no folds, only {', '.join(facts.NUM_EXAMPLES)}. Build it with "
            "splits=ss.Splits.k_fold(5)."
        )
    if isinstance(index, bool) or name not in names:
        raise ValueError(f"fold({index!r}): the folds are {', '.join(names)}.")
    return Fold([other for other in names if other != name], name)


def fold_names() -> list[str]:
    """Names of the splits that are folds of a cross-validation: fold0, fold1 and so on."""
    names = [name for name in facts.NUM_EXAMPLES if _FOLD.fullmatch(name)]
    return sorted(names, key=lambda name: int(name.removeprefix("fold")))


def _part(text: str) -> Part:
    """One split or part of a split."""
    match = _PART.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a split. {_FORMS}")
    name, *bounds = match.groups()
    if name not in facts.NUM_EXAMPLES:
        names = ", ".join(facts.NUM_EXAMPLES)
        raise ValueError(f"{facts.NAME} has no split {name!r}, only {names}. {_FORMS}")
    num = facts.NUM_EXAMPLES[name]
    if bounds[0] is None:
        return Part(name, 0, num)
    start, stop = (
        default if not bound.strip() else _position(bound.strip(), num, text)
        for bound, default in zip(bounds, (0, num), strict=True)
    )
    if start >= stop:
        raise ValueError(
            f"{text!r} is empty: it begins at record {start:,} and ends before record {stop:,} of "
            f"{num:,}. {_FORMS}"
        )
    return Part(name, start, stop)


def _position(bound: str, num: int, text: str) -> int:
    """The record at which a part begins or ends."""
    if _BOUND.fullmatch(bound) is None:
        raise ValueError(
            f"{text!r} is not a part of a split: {bound!r} is neither a number of records nor a "
            f"percentage. {_FORMS}"
        )
    is_share = bound.endswith("%")
    value, whole = Fraction(bound.rstrip("%").replace("_", "")), 100 if is_share else num
    if abs(value) > whole:
        most = "100 %" if is_share else f"{num:,} records"
        raise ValueError(f"{text!r} is out of range: {bound} is beyond {most}. {_FORMS}")
    value += whole if value < 0 else 0
    return int(num * value // 100) if is_share else int(value)
