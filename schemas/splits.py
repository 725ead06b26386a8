"""Splits: how records are divided, as fixed ranges of a 64-bit key.

A hash split is a range of the key that also orders the records. Ranges rather than a modulo make a
split a contiguous part of every run. Fractions are fixed, so a record never moves to another split
when data is added.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from .config import check_texts, did_you_mean
from .errors import RecipeError
from .features import written

KEY_SPACE = 1 << 64
"""Keys are integers in [0, KEY_SPACE)."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_FOLD = re.compile(r"fold\d+")
_MAX_FOLDS = 100
_TRAIN = "train"

Assign = Literal["hash", "balanced"]


FOLDERS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
"""Common folder names of splits."""
USUAL_WORDS: Mapping[str, str] = {word: split for split, words in FOLDERS.items() for word in words}
"""Those names and what they mean, without case."""
_SPLIT_OF: Mapping[str, str] = {
    **USUAL_WORDS,
    **dict.fromkeys(("tr", "trn"), "train"),
    **dict.fromkeys(("validate", "eval", "evaluation"), "validation"),
    **dict.fromkeys(("te", "ts", "tst"), "test"),
}
"""What words in names mean."""
_FILLERS = frozenset(
    (
        *("data", "dataset", "image", "images", "img", "imgs", "jpeg", "jpg", "png", "seg", "set"),
        *("split", "tif", "wav", "wavs"),
    )
)
"""Words beside that of a split in a name."""
_TEST_DEV = re.compile(r"test[-_ ]?dev", re.IGNORECASE)
"""COCO's name of a set to test on while a model is developed."""
_WORD_END = re.compile(r"(?<=.)(data|set)$")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_]+")


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
    then move between splits when groups are added or change size. With both ``group_by`` and
    ``stratify_by``, groups are assigned so that each class comes close to the fractions, and every
    split has every class if possible: see docs/splits.md for how close. For
    cross-validation, see :meth:`k_fold`. If the data itself says which split a record belongs to,
    see :meth:`by_folder`, :meth:`by_column` and :meth:`by_time`; with a fixed test set, these can
    take a part of train for validation.

    A split with a fraction that would get no records is refused, unless ``allow_empty`` is True.
    """

    names: tuple[str, ...]
    """The split names, in the order given."""
    fractions: tuple[tuple[str, float], ...]
    """Name and fraction of each split; by folder or column, of those that take some of train."""
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
                values, exact to one record; with ``group_by``, as close as whole groups come.
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
    def by_folder(
        cls,
        *,
        stratify_by: str | None = None,
        group_by: str | None = None,
        allow_empty: bool = False,
        **folders: str | Sequence[str] | float,
    ) -> Splits:
        """Splits by the first folder of a file's path that names a split, ignoring case.

        Both ``train/images/1.jpg`` and ``images/train/1.jpg`` are in train.


        With a fraction, a split gets this share of the records in train's folders:
        ``Splits.by_folder(train="train", validation=0.1, test="test", stratify_by="label")``.

        Args:
            stratify_by: With a fraction: as in ``Splits``, of the records in train's folders.
            group_by: With a fraction: as in ``Splits``, of the records in train's folders.
            allow_empty: Whether a split with a fraction may have no records.
            folders: One or more folders of each split, or its fraction of train. By default
                ``train`` or ``training``; ``validation``, ``valid``, ``val`` or ``dev``; ``test``
                or ``testing``; but for those with a fraction.

        Raises:
            RecipeError: if a folder belongs to two splits, a fraction or an option cannot be used,
                or a split name is invalid.
        """
        values, fractions = _named_and_taken(folders, "by_folder")
        values = {
            name: tuple(sorted(text.casefold() for text in texts)) for name, texts in values.items()
        }
        rule = SplitRule(by="folder", values=tuple(values.items()))
        return cls._with_taken(
            rule, fractions, folders, stratify_by=stratify_by, group_by=group_by, empty=allow_empty
        )

    @classmethod
    def by_column(
        cls,
        feature: str,
        *,
        stratify_by: str | None = None,
        group_by: str | None = None,
        allow_empty: bool = False,
        **values: str | Sequence[str] | float,
    ) -> Splits:
        """Splits by a feature: ``Splits.by_column("part", train="a", test=("b", "c"))``.

        With a fraction, a split gets this share of train's records, as in :meth:`by_folder`.

        Args:
            feature: Name of a class, string, integer or bool feature of the prepared records.
            stratify_by: With a fraction: as in ``Splits``, of train's records.
            group_by: With a fraction: as in ``Splits``, of train's records.
            allow_empty: Whether a split with a fraction may have no records.
            values: One or more values of each split, as text: those of a class are its names,
                those of a bool true and false; or its fraction of train. By default the names that
                :meth:`by_folder` knows.

        Raises:
            RecipeError: if a value belongs to two splits, a fraction or an option cannot be used,
                or a split name is invalid.
        """
        texts, fractions = _named_and_taken(values, "by_column")
        rule = SplitRule(by="column", feature=feature, values=tuple(texts.items()))
        return cls._with_taken(
            rule, fractions, values, stratify_by=stratify_by, group_by=group_by, empty=allow_empty
        )

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
        """The call that makes them."""
        called, values = "Splits", dict[str, Any](self.fractions)
        options: dict[str, Any] = {"stratify_by": None, "group_by": None, "assign": "hash"}
        if self.stratify_by is not None and self.group_by is not None:
            options["assign"] = self.assign
        options["allow_empty"] = False
        given: list[str] = []
        if (rule := self.rule) is not None:
            called = f"Splits.by_{rule.by}"
            given = [] if rule.feature is None else [written(rule.feature)]
            values |= dict(zip(self.names, rule.ends, strict=False))
            if not _are_usual(rule.values, besides=values):
                values |= {
                    name: texts[0] if len(texts) == 1 else texts for name, texts in rule.values
                }
        given += [f"{name}={written(values[name])}" for name in self.names if name in values]
        given += [
            f"{name}={written(getattr(self, name))}"
            for name, default in options.items()
            if getattr(self, name) != default
        ]
        return f"{called}({', '.join(given)})"

    @classmethod
    def _of(cls, rule: SplitRule, *, names: tuple[str, ...]) -> Splits:
        made = cls.__new__(cls)
        made._set(rule=rule, names=names)
        return made

    @classmethod
    def _with_taken(
        cls,
        rule: SplitRule,
        fractions: Mapping[str, float],
        given: Iterable[str],
        *,
        stratify_by: str | None,
        group_by: str | None,
        empty: bool,
    ) -> Splits:
        """Splits by names, and those that take fractions of train; in the order given, or usual."""
        options = {"stratify_by": stratify_by, "group_by": group_by}
        option = next((name for name, value in options.items() if value is not None), None)
        if option is not None and not fractions:
            raise RecipeError(
                f"Splits.by_{rule.by}: {option}= is for splits that take a fraction of train, such "
                f"as Splits.by_{rule.by}(…, validation=0.1, {option}={written(options[option])}). "
                f"Add one, or leave {option}= out."
            )
        named = dict(rule.values)
        order = given if named.keys() <= set(given) else (*FOLDERS, *given)
        made = cls.__new__(cls)
        made._set(
            names=tuple(name for name in dict.fromkeys(order) if name in named.keys() | fractions),
            fractions=tuple(fractions.items()),
            stratify_by=stratify_by,
            group_by=group_by,
            rule=rule,
            allow_empty=empty,
        )
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
        if stratify_by is not None and group_by is not None:
            assign = "balanced"  # only all groups together show which classes a split lacks
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

        Then the split's index is the record's partition, and the order is (split, key, id). Splits
        that take a fraction of train by the key have no partition of their own.
        """
        return self.group_by is not None or self.rule is not None

    @property
    def key_strata(self) -> str | None:
        """The feature for each of whose values splits have key ranges of their own; None if none.

        With ``group_by``, groups are assigned instead: ``stratify_by`` then only decides which.
        """
        return self.stratify_by if self.group_by is None else None

    @property
    def of_train(self) -> Splits | None:
        """How train and the splits that take fractions of it divide its records; None if none do.

        >>> Splits.by_folder(train="a", validation=0.1, test="b").of_train
        Splits(train=0.9, validation=0.1, allow_empty=True)
        """
        if self.rule is None or self.rule.by == "time" or not self.fractions:
            return None
        taken = sum(Fraction(repr(fraction)) for _, fraction in self.fractions)
        fractions: dict[str, Any] = {_TRAIN: float(1 - taken), **dict(self.fractions)}
        return Splits(
            **fractions,
            stratify_by=self.stratify_by,
            group_by=self.group_by,
            allow_empty=True,
        )

    @property
    def train_is_divided_by_key(self) -> bool:
        """Whether keys of records decide which of them other splits take of train.

        These splits are then ranges of the key in train's partition.
        """
        return self.of_train is not None and self.group_by is None

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
            why = "since shares are kept" if self.stratify_by else 'assign="balanced"'
            moving = f"groups may move to another split ({why})"
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


def split_of(name: str) -> str | None:
    """The split that a folder, a file or a value is named after; None if it is no such name.

    >>> split_of("training_set"), split_of("imagesTr"), split_of("val2017"), split_of("train_hr")
    ('train', 'train', 'validation', None)
    >>> split_of("test-jpg"), split_of("test-dev2017")
    ('test', 'test')
    """
    said = [word for word in _words(name) if word not in _FILLERS]
    return _SPLIT_OF.get(said[0]) if len(said) == 1 else None


def split_in(name: str) -> str | None:
    """The split that a name says, maybe beside other words; None if it says several, or none.

    >>> [split_in(name) for name in ("DIV2K_valid_HR", "testdata-0-of-2", "trains", "train_test")]
    ['validation', 'test', None, None]
    """
    said = splits_said(name)
    return next(iter(said)) if len(said) == 1 else None


def splits_said(name: str) -> frozenset[str]:
    """The splits whose words a name has, of three letters or more.

    >>> splits_said("KDDTrain"), splits_said("my_eval_set"), splits_said("holdout")
    (frozenset({'train'}), frozenset({'validation'}), frozenset())
    """
    words = (word for word in _words(name) if len(word) > 2)
    return frozenset(_SPLIT_OF[word] for word in words if word in _SPLIT_OF)


def _words(name: str) -> list[str]:
    words = (word.lower() for word in _WORD.findall(_TEST_DEV.sub("test", name)))
    return [_WORD_END.sub("", word) for word in words]


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


def _named_and_taken(
    given: Mapping[str, str | Sequence[str] | float], what: str
) -> tuple[dict[str, tuple[str, ...]], dict[str, float]]:
    """The texts of splits that have some, and the fractions that others take of train.

    Raises:
        RecipeError: if a text belongs to two splits, or a value is neither.
    """
    if "assign" in given:
        raise RecipeError(f"Splits.{what}: assign= is not an option here. Leave it out.")
    fractions = {name: value for name, value in given.items() if isinstance(value, float)}
    named: dict[str, Any] = {name: text for name, text in given.items() if name not in fractions}
    usual = {name: texts for name, texts in FOLDERS.items() if name not in fractions}
    texts = _texts(named or usual, what)
    _check_disjoint(texts)
    if fractions and _TRAIN not in texts:
        written_fractions = ", ".join(f"{name}={value}" for name, value in given.items())
        raise RecipeError(
            f"Splits.{what}({written_fractions}): a fraction is a part of {_TRAIN}, which is not "
            f'named here. Name it, such as {_TRAIN}="{_TRAIN}", validation=0.1; or write '
            "Splits(train=0.9, test=0.1) for fractions of all records."
        )
    if fractions:
        _check_fractions(fractions, is_all=False)
    return texts, fractions


def _are_usual(values: Sequence[tuple[str, tuple[str, ...]]], *, besides: Iterable[str]) -> bool:
    """Whether each split has the texts that it has by default."""
    usual = {name: set(texts) for name, texts in FOLDERS.items() if name not in besides}
    return {name: set(texts) for name, texts in values} == usual


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
