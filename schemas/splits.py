"""Splits: how records are divided, as fixed ranges of a 64-bit key.

A hash split is a range of the key that also orders the records. Ranges rather than a modulo make a
split a contiguous part of every run. Fractions are fixed, so a record never moves to another split
when data is added.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal

from .config import check_texts, did_you_mean
from .errors import RecipeError

KEY_SPACE = 1 << 64
"""Keys are integers in [0, KEY_SPACE)."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_FOLD = re.compile(r"fold\d+")
_MAX_FOLDS = 100

Assign = Literal["hash", "balanced"]


FOLDERS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
"""Common folder names of splits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitRule:
    """How records are assigned to splits where a hash does not decide."""

    by: Literal["folder", "column", "time"]
    feature: str | None = None
    """The feature that decides; None for folders."""
    values: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """By folder or column: each split's folder names, or values as text."""
    ends: tuple[int | str | None, ...] = ()
    """By time, if ends are given: each split's exclusive end; the last is None."""


@dataclasses.dataclass(frozen=True, init=False)
class Splits:
    """Names and fractions of the splits: ``Splits(train=0.8, validation=0.1, test=0.1)``.

    ``stratify_by`` names a feature whose values have the same proportions in every split, exact to
    one record (added data may then move records at the boundaries). ``group_by`` names a feature
    whose value determines the split: no group spans two splits. A hash assigns each group: its
    split never changes, but with few groups a split may get none. ``assign="balanced"`` instead
    assigns up to 100,000 groups by size, to match the fractions as closely as possible; records may
    then move between splits when groups are added or change size. For
    cross-validation, see :meth:`k_fold`. If the data itself says which split a record belongs to,
    see :meth:`by_folder`, :meth:`by_column` and :meth:`by_time`.

    A split with a fraction that would get no records is refused, unless ``allow_empty`` is True.
    """

    names: tuple[str, ...]
    """The split names, in the order given."""
    fractions: tuple[tuple[str, float], ...]
    """Name and fraction of each split; () if splits are not made by fractions."""
    stratify_by: str | None
    group_by: str | None
    rule: SplitRule | None
    assign: Assign = "hash"
    """How groups are assigned to splits."""
    allow_empty: bool = dataclasses.field(default=False, compare=False)
    """Whether a split with a fraction may have no records."""

    def __init__(
        self,
        *,
        stratify_by: str | None = None,
        group_by: str | None = None,
        assign: Assign = "hash",
        allow_empty: bool = False,
        **fractions: float,
    ) -> None:
        """Checks the fractions.

        Raises:
            RecipeError: if they do not add up to 1, or a name cannot begin a file name.
        """
        if assign not in ("hash", "balanced"):
            raise RecipeError(f'Splits: assign={assign!r}, expected "hash" or "balanced".')
        if assign == "balanced" and group_by is None:
            raise RecipeError(
                'Splits: assign="balanced" assigns groups. Name the feature that defines them: '
                "group_by=."
            )
        if stratify_by is not None and group_by is not None:
            raise RecipeError(
                "Splits: stratify_by and group_by exclude each other: a group has one split, so "
                "proportions per label cannot be exact. Drop one of them."
            )
        _check_fractions(fractions)
        self._set(
            fractions=tuple((k, float(v)) for k, v in fractions.items()),
            stratify_by=stratify_by,
            group_by=group_by,
            assign=assign,
            allow_empty=allow_empty,
        )

    @classmethod
    def k_fold(
        cls,
        num: int,
        *,
        stratify_by: str | None = None,
        group_by: str | None = None,
        assign: Assign = "hash",
        allow_empty: bool = False,
        **others: float,
    ) -> Splits:
        """Splits for cross-validation: ``Splits.k_fold(5, test=0.1, group_by="patient")``.

        The splits are called fold0, fold1, … and have equal fractions of what the other splits
        leave. ``reader.fold(i)`` gives those to train on and the one to validate on.

        Args:
            num: Number of folds, from 2 to 100.
            stratify_by: As in ``Splits``: the folds have the same proportions of this feature's
                values, exact to one record.
            group_by: As in ``Splits``: all records of a group are in one fold.
            assign: As in ``Splits``: how groups are assigned to folds.
            allow_empty: As in ``Splits``.
            others: Fractions of splits that belong to no fold, such as ``test=0.1``.

        Raises:
            RecipeError: if the number or a fraction is invalid, or another split is called train or
                like a fold.
        """
        is_integer = isinstance(num, int) and not isinstance(num, bool)
        if not is_integer or not 2 <= num <= _MAX_FOLDS:
            raise RecipeError(
                f"Splits.k_fold: num={num!r}, expected an integer from 2 to {_MAX_FOLDS}."
            )
        for name in others:
            if name == "train" or is_fold(name):
                raise RecipeError(
                    f"Splits.k_fold: {name!r} cannot be another split, since each round trains on "
                    "all folds but one. Name it otherwise, for example test."
                )
        if others:
            _check_fractions(others, is_all=False)
        left = 1 - sum(Fraction(repr(float(fraction))) for fraction in others.values())
        fractions = {f"fold{i}": float(left / num) for i in range(num)} | others
        return cls(
            stratify_by=stratify_by,
            group_by=group_by,
            assign=assign,
            allow_empty=allow_empty,
            **fractions,
        )

    @classmethod
    def by_folder(cls, **folders: str | Sequence[str]) -> Splits:
        """Splits by the first folder of a file's path that names a split, ignoring case.

        Both ``train/images/1.jpg`` and ``images/train/1.jpg`` are in train.

        Args:
            folders: One or more folders of each split. By default ``train`` or ``training``;
                ``validation``, ``valid``, ``val`` or ``dev``; ``test`` or ``testing``.

        Raises:
            RecipeError: if a folder belongs to two splits, or a split name is invalid.
        """
        values = {
            name: tuple(sorted(text.casefold() for text in texts))
            for name, texts in _texts(folders or FOLDERS, "by_folder").items()
        }
        _check_disjoint(values)
        return cls._of(SplitRule(by="folder", values=tuple(values.items())))

    @classmethod
    def by_column(cls, feature: str, **values: str | Sequence[str]) -> Splits:
        """Splits by a feature: ``Splits.by_column("part", train="a", test=("b", "c"))``.

        Args:
            feature: Name of a class, string, integer or bool feature of the prepared records.
            values: One or more values of each split, as text: those of a class are its names,
                those of a bool true and false. By default the names that :meth:`by_folder` knows.

        Raises:
            RecipeError: if a value belongs to two splits, or a split name is invalid.
        """
        texts = _texts(values or FOLDERS, "by_column")
        _check_disjoint(texts)
        rule = SplitRule(by="column", feature=feature, values=tuple(texts.items()))
        return cls._of(rule)

    @classmethod
    def by_time(
        cls,
        feature: str,
        *,
        allow_empty: bool = False,
        **splits: float | int | str | datetime.date | None,
    ) -> Splits:
        """Splits in order of time: no model is trained on data from the future.

        Args:
            feature: Name of a Timestamp or integer feature of the prepared records.
            allow_empty: Whether a split with a fraction may have no records.
            splits: In order of time, either each split's fraction of the records
                (``train=0.8, test=0.2``; records of the same time stay together, and added data
                may move records at the boundaries), or each split's exclusive end, with None for
                the last (``train="2020-01-01", test=None``): a date, a time (UTC unless it has an
                offset), or a number for an integer feature.

        Raises:
            RecipeError: if they are neither fractions that add up to 1 nor ascending ends.
        """
        if splits and all(isinstance(value, float) for value in splits.values()):
            _check_fractions(splits)  # type: ignore[arg-type]
            made = cls.__new__(cls)
            made._set(
                fractions=tuple((k, float(v)) for k, v in splits.items()),  # type: ignore[arg-type]
                rule=SplitRule(by="time", feature=feature),
                allow_empty=allow_empty,
            )
            return made
        ends = tuple(_end(name, value) for name, value in splits.items())
        inner = ends[:-1]
        if not ends or ends[-1] is not None or None in inner:
            raise RecipeError(
                "Splits.by_time: expected a fraction for each split, or an end for each and None "
                'for the last: train="2020-01-01", test=None.'
            )
        if len({type(end) for end in inner}) > 1 or list(inner) != sorted(set(inner)):  # type: ignore[type-var]
            raise RecipeError(
                f"Splits.by_time: the ends {inner} are not ascending, or of different types."
            )
        return cls._of(SplitRule(by="time", feature=feature, ends=ends), names=tuple(splits))

    def __repr__(self) -> str:
        call, given = "Splits", [f"{name}={fraction!r}" for name, fraction in self.fractions]
        if (rule := self.rule) is not None:
            call = f"Splits.by_{rule.by}"
            given += [f"{name}={value!r}" for name, value in rule.values]
            given += [f"{name}={end!r}" for name, end in zip(self.names, rule.ends, strict=False)]
            given[:0] = [] if rule.feature is None else [repr(rule.feature)]
        options = {"stratify_by": None, "group_by": None, "assign": "hash", "allow_empty": False}
        given += [f"{k}={getattr(self, k)!r}" for k, v in options.items() if getattr(self, k) != v]
        return f"{call}({', '.join(given)})"

    @classmethod
    def _of(cls, rule: SplitRule, *, names: tuple[str, ...] = ()) -> Splits:
        made = cls.__new__(cls)
        made._set(rule=rule, names=names or tuple(name for name, _ in rule.values))
        return made

    def _set(
        self,
        *,
        names: tuple[str, ...] = (),
        fractions: tuple[tuple[str, float], ...] = (),
        stratify_by: str | None = None,
        group_by: str | None = None,
        rule: SplitRule | None = None,
        assign: Assign = "hash",
        allow_empty: bool = False,
    ) -> None:
        if not isinstance(allow_empty, bool):
            raise RecipeError(f"Splits: allow_empty={allow_empty!r}, expected True or False.")
        names = names or tuple(name for name, _ in fractions)
        if rule is not None and rule.by != "folder":  # whose name may not be Unicode
            texts = {"feature": rule.feature, "values": rule.values}
            check_texts(f"Splits.by_{rule.by}", texts)
        check_texts("Splits", {"stratify_by": stratify_by, "group_by": group_by})
        for what, feature in (("stratify_by", stratify_by), ("group_by", group_by)):
            if feature is not None:
                _check_feature(what, feature)
        if rule is not None and rule.by != "folder":
            _check_feature(f"by_{rule.by}", rule.feature)
        for name in names:
            if not _NAME.fullmatch(name):
                raise RecipeError(
                    f"Splits: {name!r} is not a valid split name. Use ASCII letters, digits and "
                    "'_', starting with a letter."
                )
        values = (names, fractions, stratify_by, group_by, rule, assign, allow_empty)
        for field, value in zip(dataclasses.fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)

    @property
    def partitioned(self) -> bool:
        """Whether something other than a record's key determines its split.

        Then the split's index is the record's partition, and the order is (split, key, id).
        """
        return self.group_by is not None or self.rule is not None

    @property
    def decided_by_all(self) -> bool:
        """Whether all records must be read before the split of any is known."""
        by_time = self.rule is not None and self.rule.by == "time" and not self.rule.ends
        return by_time or self.assign == "balanced"

    @property
    def when_data_is_added(self) -> str:
        """Which records may then move to another split, for people.

        >>> Splits(train=0.9, test=0.1).when_data_is_added
        'when data is added, every record stays in its split'
        """
        if self.assign == "balanced":
            moving = 'groups may move to another split (assign="balanced")'
        elif self.stratify_by is not None or self.decided_by_all:
            moving = "a few records at the ends of splits may move, since shares are kept exact"
        else:
            moving = "every record stays in its split"
        return f"when data is added, {moving}"

    def boundaries(self) -> tuple[Fraction, ...]:
        """Cumulative fractions at the splits' ends, exact as written; the last is 1."""
        total = Fraction(0)
        ends = []
        for _, fraction in self.fractions:
            total += Fraction(repr(fraction))
            ends.append(min(total, Fraction(1)))
        return (*ends[:-1], Fraction(1))

    def key_ranges(self) -> tuple[tuple[str, int, int], ...]:
        """(split, start, stop) of each split: it has the records with start <= key < stop."""
        stops = [int(end * KEY_SPACE) for end in self.boundaries()]
        starts = [0, *stops[:-1]]
        return tuple(zip(self.names, starts, stops, strict=True))

    def to_json(self) -> dict[str, object]:
        """The settings as plain JSON, for the fingerprint and for people."""
        return {
            # In order: it determines each split's range of the key.
            "fractions": [list(pair) for pair in self.fractions],
            "group_by": self.group_by,
            "names": list(self.names),
            "rule": None if self.rule is None else dataclasses.asdict(self.rule),
            "stratify_by": self.stratify_by,
            **({} if self.assign == "hash" else {"assign": self.assign}),
        }


def is_fold(name: str) -> bool:
    """Whether a split is a fold of a cross-validation by its name: fold0, fold1 and so on."""
    return _FOLD.fullmatch(name) is not None


def _check_feature(what: str, feature: object) -> None:
    if not isinstance(feature, str):
        raise RecipeError(f"Splits: {what} names {feature!r}, expected the name of a feature.")


def _check_fractions(fractions: Mapping[str, float], *, is_all: bool = True) -> None:
    if not fractions:
        raise RecipeError("Splits: no splits given. Write Splits(train=0.9, test=0.1).")
    for name, fraction in fractions.items():
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):
            hint = did_you_mean(name, ("stratify_by=", "group_by=", "assign=", "allow_empty="))
            raise RecipeError(f"Splits: {name}={fraction!r} is not a fraction{hint or '.'}")
        if not 0 < fraction <= 1:
            raise RecipeError(f"Splits: {name}={fraction} must be above 0 and at most 1.")
    total = sum(fractions.values())
    if not is_all:
        if total >= 1:
            raise RecipeError(f"Splits: the fractions add up to {total:g}, expected less than 1.")
        return
    if abs(total - 1) > 1e-6:
        raise RecipeError(f"Splits: the fractions add up to {total:g}, expected 1.")


def _texts(given: Mapping[str, str | Sequence[str]], what: str) -> dict[str, tuple[str, ...]]:
    texts = {
        name: tuple(value) if isinstance(value, list | tuple) else (value,)
        for name, value in given.items()
    }
    for name, values in texts.items():
        if not values or not all(isinstance(value, str) and value for value in values):
            raise RecipeError(
                f"Splits.{what}: {name}={given[name]!r}, expected one or more strings."
            )
    return texts


def _check_disjoint(values: Mapping[str, tuple[str, ...]]) -> None:
    owner: dict[str, str] = {}
    for name, texts in values.items():
        for text in texts:
            if owner.setdefault(text, name) != name:
                raise RecipeError(f"Splits: {text!r} belongs to both {owner[text]} and {name}.")


def _end(name: str, value: object) -> int | str | None:
    """The end of a split by time: a number, or an ISO time in UTC."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    moment = value
    if isinstance(moment, str):
        try:
            moment = datetime.datetime.fromisoformat(moment)
        except ValueError:
            moment = None
    if isinstance(moment, datetime.date) and not isinstance(moment, datetime.datetime):
        moment = datetime.datetime(moment.year, moment.month, moment.day)
    if not isinstance(moment, datetime.datetime):
        raise RecipeError(
            f"Splits.by_time: {name}={value!r}, expected a fraction such as 0.8, a date such as "
            '"2020-01-01", an integer, or None for the last.'
        )
    utc = datetime.UTC
    aware = moment.replace(tzinfo=utc) if moment.tzinfo is None else moment.astimezone(utc)
    return aware.isoformat(timespec="microseconds")
