"""What may be wrong with the data, each with its remedy. Every function looks for one thing.

Counts are those of the manifest; distributions come from the statistics; what concerns several
columns of a record (leaks, equal columns, images that stand out) from the sampled records.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ....schemas.features import (
    ClassLabel,
    Feature,
    Scalar,
    Text,
    Timestamp,
)
from ....schemas.visible import human_count, human_number
from ..drift import split_differences
from .charts import percentage
from .evidence import Evidence
from .odd_images import MAX_IMAGES, OddImage, edge_vectors, find_odd
from .pictures import class_of, first_looked_at, is_heard

_SMALL_SPLIT = 100
_MANY_MISSING = 0.2
_FEW_SHARED = 0.001
_FEW_OF_CLASS = 5
_RARE = 0.1
"""A class is rare if it has less than this part of an equal share."""
_NEARLY_UNIQUE = 0.98
_LEAK = 0.97
"""A column leaks the label if it alone predicts so many records …"""
_LEAK_GAIN = 0.8
"""… and avoids so much of the error of always predicting the most frequent class."""
_MIN_RECORDS = 40
"""Fewer sampled records are no evidence of a leak or of equal columns."""
_BINS = 20
_EXTREME = 10
"""A value is extreme beyond so many times the distance from the first to the ninth decile."""
_MAX_LISTED = 40

Rows = Sequence[tuple[str, ...]]
_SINGLE = Scalar | ClassLabel | Text | Timestamp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that may be wrong.

    Attributes:
        title: What it is, in a few words.
        text: What was found.
        remedy: What to do about it.
        columns: Titles of the table.
        rows: Details, the worst first.
        num_more: Rows that were left out.
        images: Images to look at.
        is_note: Whether it is worth knowing rather than a likely fault.
    """

    title: str
    text: str
    remedy: str
    columns: tuple[str, ...] = ()
    rows: Rows = ()
    num_more: int = 0
    images: Sequence[OddImage] = ()
    is_note: bool = False

    @property
    def ids(self) -> list[str]:
        """The records that it lists, where it shows them."""
        return [row[0] for row in self.rows]


def find_all(evidence: Evidence) -> list[Finding]:
    """All findings, likely faults first."""
    found = [finding for look in LOOKS for finding in look(evidence)]
    return sorted(found, key=lambda finding: finding.is_note)


def _listed(rows: Rows) -> dict[str, Any]:
    return {"rows": rows[:_MAX_LISTED], "num_more": max(0, len(rows) - _MAX_LISTED)}


def shared_contents(evidence: Evidence) -> Iterator[Finding]:
    """Equal contents in several splits."""
    shared = evidence.snapshot.manifest.shared_contents
    if not shared:
        return
    rows = [(splits, f"{num:,}") for splits, num in sorted(shared.items(), key=lambda i: -i[1])]
    yield Finding(
        title="Equal contents in several splits",
        text=f"{sum(shared.values()):,} contents are in more than one split: a model would be "
        "tested on data that it was trained on.",
        remedy="Drop them: prepare=[…, ss.records.drop_duplicates()]. Or keep what belongs "
        "together in one split: ss.Splits(…, group_by=…).",
        columns=("splits", "equal contents"),
        is_note=sum(shared.values()) < _FEW_SHARED * evidence.total,
        **_listed(rows),
    )


def near_duplicates(evidence: Evidence) -> Iterator[Finding]:
    """Similar contents in several splits."""
    facts = evidence.build.get("near_duplicates", {})
    counts = facts.get("counts", {})
    if not counts:
        return
    rows = [
        (
            " and ".join(pair["splits"]),
            pair["feature"],
            f"{pair['likeness']:.3f}",
            pair["ids"][0],
            pair["ids"][1],
        )
        for pair in facts.get("pairs", [])
    ]
    listed = "; ".join(
        f"{human_count(num, 'records')} of {later} like some of {earlier}"
        for splits, num in counts.items()
        for earlier, _, later in [splits.partition(", ")]
    )
    yield Finding(
        title="Similar contents in several splits",
        text=f"{listed}: copies with small changes?",
        remedy="Keep copies in one split: ss.Splits(…, group_by=…) with what they have in common. "
        "Leave single ones out: ss.Recipe(exclude=…).",
        columns=("splits", "feature", "likeness", "record", "resembles"),
        **_listed(rows),
    )


def leaks(evidence: Evidence) -> Iterator[Finding]:
    """Columns that alone predict the label."""
    label, values = evidence.label or "", evidence.sample.values
    kind = evidence.features.get(label)
    if not isinstance(kind, _SINGLE) or len(evidence.sample) < _MIN_RECORDS:
        return
    truth = _categories(values[label])
    columns = {
        name: feature
        for name, feature in evidence.features.items()
        if name != label and isinstance(feature, _SINGLE)
    }
    rows: list[tuple[float, str]] = []
    if truth is not None and len(np.unique(truth)) <= len(truth) // 4:
        base = float(np.bincount(truth).max() / len(truth))
        for name, feature in columns.items():
            right = max(one_rule(codes, truth) for codes in _codings(values[name], feature))
            if right >= _LEAK and 1 - right <= (1 - _LEAK_GAIN) * (1 - base):
                rows.append((right, name))
        basis = f"always predicting the most frequent class: {percentage(base)}"
    elif isinstance(kind, Scalar) and _is_number(kind):
        target = _numbers(values[label])
        for name, feature in columns.items():
            if _is_number(feature):
                likeness = _rank_correlation(_numbers(values[name]), target)
                if likeness >= 0.999:
                    rows.append((likeness, name))
        basis = "rank correlation with the label"
    if not rows:
        return
    shown = [(name, percentage(share)) for share, name in sorted(rows, reverse=True)]
    yield Finding(
        title="A column alone predicts the label",
        text=f"Each of these columns alone predicts {label!r} almost without error, in records "
        f"that the rule was not made from ({basis}; {len(evidence.sample):,} sampled records). "
        "It may be known only after the label, or be the label in other words.",
        remedy="If it is not known when the model predicts, leave it out: prepare=[…, "
        f"ss.records.drop([{shown[0][0]!r}])], or name the columns to read: columns=[…].",
        columns=("column", "predicts the label"),
        **_listed(shown),
    )


def one_rule(codes: npt.NDArray[np.int64], truth: npt.NDArray[np.int64]) -> float:
    """How many labels one column predicts: of each value the most frequent class with it.

    The rule is made from one half of the records and tested on the other, and the reverse, so that
    a column of unique values predicts nothing: values without a rule count as the most frequent
    class.
    """
    num_codes, num_classes = int(codes.max()) + 1, int(truth.max()) + 1
    halves = np.arange(len(codes)) % 2
    right = 0
    for half in (0, 1):
        seen = halves == half
        pairs = codes[seen] * num_classes + truth[seen]
        table = np.bincount(pairs, minlength=num_codes * num_classes)
        table = table.reshape(num_codes, num_classes)
        rule = table.argmax(axis=1)
        rule[table.sum(axis=1) == 0] = table.sum(axis=0).argmax()
        right += int((rule[codes[~seen]] == truth[~seen]).sum())
    return right / len(codes)


def _codings(values: Sequence[Any], feature: Feature) -> Iterator[npt.NDArray[np.int64]]:
    """The values as small integers, each in several ways.

    Presence, categories if there are few, and numbers in bins of equally many records; 0 where a
    value is missing.
    """
    yield np.array([_plain(value) is not None for value in values], np.int64)
    if (categories := _categories(values)) is not None:
        yield categories
    if not _is_number(feature):
        return
    numbers = _numbers(values)
    known = np.isfinite(numbers)
    if known.any():
        edges = np.unique(np.quantile(numbers[known], np.linspace(0, 1, _BINS + 1)[1:-1]))
        codes = np.searchsorted(edges, np.where(known, numbers, 0), side="right") + 1
        yield np.where(known, codes, 0).astype(np.int64)


def _categories(values: Sequence[Any]) -> npt.NDArray[np.int64] | None:
    """A number for each different value, 0 for a missing one; None if there are many."""
    numbering: dict[Any, int] = {None: 0}
    codes = np.array(
        [numbering.setdefault(_plain(value), len(numbering)) for value in values], np.int64
    )
    return codes if len(numbering) <= max(2, len(values) // 2) else None


def _is_number(feature: Feature) -> bool:
    return isinstance(feature, Scalar | Timestamp) and feature.form.dtype not in ("string", "bool")


def _plain(value: Any) -> Any:
    """A value that equals itself: NaN is no value."""
    return None if value is None or value != value else value


def _numbers(values: Sequence[Any]) -> npt.NDArray[np.float64]:
    return np.array([np.nan if value is None else float(value) for value in values], np.float64)


def _rank_correlation(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    known = np.isfinite(one) & np.isfinite(other)
    if known.sum() < _MIN_RECORDS:
        return 0.0
    ranks = [
        np.unique(values[known], return_inverse=True)[1].astype(np.float64)
        for values in (one, other)
    ]
    if any(rank.max() == 0 for rank in ranks):
        return 0.0
    return abs(float(np.corrcoef(ranks[0], ranks[1])[0, 1]))


def odd_images(evidence: Evidence) -> Iterator[Finding]:
    """Images or sounds that look like another class: likely labelled wrong."""
    name, sample = first_looked_at(evidence.features), evidence.sample
    if name is None or not evidence.label_counts():
        return
    classes = [class_of(evidence, row) for row in range(len(sample))]
    vectors = edge_vectors(sample.values[name], evidence.features[name])
    odd, accuracy = find_odd(vectors, classes)
    if not odd:
        return
    kind = "sounds" if is_heard(evidence.features[name]) else "images"
    num = min(len(sample), MAX_IMAGES)
    scope = "all" if num == evidence.total else f"a sample of {num:,} of"
    yield Finding(
        title=f"{kind.capitalize()} that may have the wrong label",
        text=f"A simple model, which recognizes {percentage(accuracy)} of the {kind} without "
        f"having seen them, takes these {len(odd)} for another class. It looked at {scope} "
        f"{evidence.total:,} {kind}. The oddest come first; some are only unusual.",
        remedy="Look at each. Correct the label in the source, or leave the record out: "
        "ss.Recipe(exclude=…) takes a list of ids.",
        columns=("record", "split", "labelled", "looks like"),
        images=odd,
        rows=[
            (sample.ids[one.row], sample.splits[one.row], str(classes[one.row]), one.looks_like)
            for one in odd
        ],
    )


def differing_splits(evidence: Evidence) -> Iterator[Finding]:
    """Splits whose values are distributed otherwise than those of the largest split."""
    base = evidence.snapshot.main_split
    others = [name for name in evidence.splits if evidence.num_examples(name) and name != base]
    profile = evidence.profile
    differences = [] if profile.statistics is None else split_differences(profile, base, others)
    if not differences:
        return
    differences.sort(key=lambda one: one.excess, reverse=True)
    yield Finding(
        title="A split has another distribution",
        text=f"Compared with {base!r}, these values are distributed differently, by more than "
        "chance explains: another unit, source or filter? Results on such a split say little about "
        "the others.",
        remedy="Splits by the hash of records (ss.Splits(train=…, …)) are alike, and stratify_by= "
        "makes classes exactly so. If the split is different on purpose (by time, by group, a "
        "test set from elsewhere), expect different results on it.",
        columns=("feature", "split", f"{base} → this split"),
        **_listed([(one.feature, one.splits[-1], one.text) for one in differences]),
    )


def missing_values(evidence: Evidence) -> Iterator[Finding]:
    """Features without a value in some records."""
    counts = {name: num for name in evidence.features if (num := evidence.num_missing(name))}
    if not counts:
        return
    total = evidence.total
    rows = [
        (name, percentage(num / total), f"{num:,} of {total:,}")
        for name, num in sorted(counts.items(), key=lambda item: -item[1])
    ]
    label = evidence.label
    unlabelled = counts.get(label or "")
    text = f"{human_count(len(counts), 'features')} without a value in some records."
    if unlabelled:
        text += f" {human_count(unlabelled, 'records')} have no label."
    yield Finding(
        title="Missing values",
        text=text,
        remedy="The reader returns a mask (<name>_present), NaN, or the default= of the feature's "
        "type. To set a value: ss.tables.fill. To leave such records out: ss.records.filter after "
        "ss.tables.missing.",
        columns=("feature", "missing", "records"),
        is_note=not unlabelled and max(counts.values()) < total * _MANY_MISSING,
        **_listed(rows),
    )


def drifted(evidence: Evidence) -> Iterator[Finding]:
    """What differed from the snapshot that was the latest before this one."""
    lines = evidence.build.get("drift", [])
    if isinstance(lines, list) and lines:
        is_known = not any("is not known: " in str(line) for line in lines)
        yield Finding(
            title="The data differs from the snapshot before"
            if is_known
            else "The data could not be compared with the snapshot before",
            text="Compared with the snapshot that latest.json named when this one was built.",
            remedy="Models that were trained before may not fit. `snapshard drift OLD NEW` "
            "compares two snapshots, `snapshard pin` refuses data that differs.",
            columns=("difference",),
            **_listed([(str(line),) for line in lines]),
        )


def absent_classes(evidence: Evidence) -> Iterator[Finding]:
    """Classes without a record in a split that has records."""
    rows, (unit, by_split) = [], evidence.class_counts()
    for split, counts in by_split.items():
        absent = [name for name, num in counts.items() if not num]
        if absent and evidence.num_examples(split):
            more = f" and {len(absent) - 10} more" if len(absent) > 10 else ""
            rows.append((split, f"{', '.join(absent[:10])}{more}"))
    if rows:
        yield Finding(
            title="Classes that a split lacks",
            text="A model is neither trained on nor measured by classes that a split does not "
            "contain.",
            remedy="ss.Splits(…, stratify_by=…) gives each split its share of each class."
            if unit == "records"
            else "Collect more of them, or leave these classes out.",
            columns=("split", f"classes without {unit}"),
            **_listed(rows),
        )


def small_splits(evidence: Evidence) -> Iterator[Finding]:
    """Splits, or classes in them, of too few records to measure anything."""
    rows = [
        (name, human_count(num, "records"))
        for name in evidence.splits
        if (num := evidence.num_examples(name)) < _SMALL_SPLIT
    ]
    for split, counts in evidence.label_counts().items():
        few = sorted((num, name) for name, num in counts.items() if 0 < num < _FEW_OF_CLASS)
        if few:
            listed = ", ".join(f"class {name} has {num}" for num, name in few[:5])
            more = f" and {len(few) - 5} more classes" if len(few) > 5 else ""
            rows.append((split, f"{listed}{more}"))
    if not rows:
        return
    yield Finding(
        title="Small splits",
        text=f"Splits of fewer than {_SMALL_SPLIT} records, or classes with fewer than "
        f"{_FEW_OF_CLASS} in a split. An accuracy measured on 100 records is uncertain by about "
        "10 percentage points.",
        remedy="Give these splits a larger fraction, or evaluate on every record: "
        "ss.Splits.k_fold. stratify_by= gives each split its share of rare classes.",
        columns=("split", "records"),
        **_listed(rows),
    )


def imbalance(evidence: Evidence) -> Iterator[Finding]:
    """Classes that are far rarer than others."""
    counts: collections.Counter[str] = collections.Counter()
    unit, by_split = evidence.class_counts()
    for one in by_split.values():
        counts.update(one)
    total = sum(counts.values())
    if len(counts) < 2 or not total:
        return
    rare = {name: num for name, num in counts.items() if num < _RARE * total / len(counts)}
    most = max(counts.values())
    if not rare and min(counts.values()) * 10 > most:
        return
    ordered = sorted(counts.items(), key=lambda item: (item[1], item[0]))
    listed = ordered[: max(3, len(rare))]
    remedy = "Collect more of them; judge a model by class."
    if unit == "records":
        remedy = (
            "Weigh classes in training (reader.CLASS_WEIGHTS) or read rare ones more often "
            f'(dataset(…, balance="uniform")). {remedy}'
        )
    yield Finding(
        title="Classes are not balanced",
        text=f"The most frequent class has {most:,} {unit}, the rarest {ordered[0][1]:,}.",
        remedy=remedy,
        columns=("class", unit, "share"),
        **_listed([(name, f"{num:,}", percentage(num / total)) for name, num in listed]),
    )


def useless_columns(evidence: Evidence) -> Iterator[Finding]:
    """Columns that are constant, nearly unique, or equal to another."""
    rows = [*_constant(evidence), *_nearly_unique(evidence), *_equal(evidence)]
    if rows:
        yield Finding(
            title="Columns that add nothing",
            text="A constant column says nothing, one that differs in nearly every record "
            "identifies it (a model may learn records by heart), and of two equal ones one is "
            "enough.",
            remedy=f"Leave them out: prepare=[…, ss.records.drop([{rows[0][0]!r}, …])], or name "
            "the columns to read: reader.dataset(…, columns=[…]).",
            columns=("column", "is"),
            is_note=True,
            **_listed(rows),
        )


def _constant(evidence: Evidence) -> Iterator[tuple[str, str]]:
    for name in evidence.features:
        stats = [s for split in evidence.splits if (s := evidence.stats(split, name))]
        used = [s for s in stats if s.get("distinct", {}).get("count")]
        others = ["missing"] if evidence.num_missing(name) else []
        others += ["NaN or infinite"] if any(s.get("num_non_finite") for s in stats) else []
        if stats and not used and all(s.get("count", 1) == 0 for s in stats):
            yield name, f"always {' or '.join(others or ['missing'])}"
        if not used or any(s["distinct"]["count"] != 1 for s in used):
            continue
        values = {(s.get("top") or [[s.get("min")]])[0][0] for s in used}
        if len(values) == 1:
            yield name, ", or ".join([f"always {values.pop()}", *others])


def _nearly_unique(evidence: Evidence) -> Iterator[tuple[str, str]]:
    for name, feature in evidence.features.items():
        is_code = isinstance(feature, Text) or (
            isinstance(feature, Scalar)
            and (feature.dtype == "string" or "int" in feature.dtype)
            and feature.unit is None
        )
        stats = evidence.stats(evidence.snapshot.main_split, name)
        count = stats.get("count", stats.get("top_of", 0)) or 0
        distinct = stats.get("distinct", {}).get("count", 0)
        length = stats.get("lengths", {}).get("mean") or 0
        if name == evidence.label or not is_code or count < _SMALL_SPLIT or length > 40:
            continue
        # Large numbers of values are estimates; the sampled records tell.
        values = evidence.sample.values.get(name, ())
        if distinct >= 0.9 * count and len({*values}) >= _NEARLY_UNIQUE * len(values):
            yield name, f"nearly unique: about {distinct:,} values in {count:,} records"


def _equal(evidence: Evidence) -> Iterator[tuple[str, str]]:
    if len(evidence.sample) < _MIN_RECORDS:
        return
    first: dict[tuple[Any, ...], str] = {}
    for name, feature in evidence.features.items():
        if not isinstance(feature, _SINGLE):
            continue
        values = tuple(map(_plain, evidence.sample.values[name]))
        if len({*values}) < 2:
            continue
        same = first.setdefault(values, name)
        if same != name and evidence.label not in (name, same):
            yield name, f"equal to {same} in all {len(values):,} sampled records"


def extreme_values(evidence: Evidence) -> Iterator[Finding]:
    """Numbers far from all others, and such as are none."""
    rows = []
    for name, feature in evidence.features.items():
        for split in evidence.splits:
            stats = evidence.stats(split, name)
            if bad := stats.get("num_non_finite"):
                rows.append((name, split, f"{bad:,} values", "NaN or infinite"))
            deciles = stats.get("quantiles") or []
            if isinstance(feature, ClassLabel | Timestamp) or len(deciles) != 11:
                continue
            low, high = deciles[1], deciles[9]
            reach = _EXTREME * (high - low)
            usual = f"80 % between {human_number(low)} and {human_number(high)}"
            for end in ("min", "max"):
                value = stats.get(end)
                if value is not None and reach > 0 and not low - reach <= value <= high + reach:
                    rows.append((name, split, f"{end} {human_number(value, digits=6)}", usual))
    if rows:
        yield Finding(
            title="Extreme values",
            text="Values far from all others: other units, typing errors, codes for missing values "
            "such as -999, or rare events?",
            remedy="Refuse impossible ones: features={…: ss.Scalar(…, min=…, max=…)} makes rejects "
            "of them. Limit others: ss.tables.clip. Codes for missing values: null_values= of "
            "ss.Csv.",
            columns=("feature", "split", "value", "usually"),
            **_listed(rows),
        )


LOOKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    leaks,
    shared_contents,
    near_duplicates,
    odd_images,
    differing_splits,
    drifted,
    absent_classes,
    imbalance,
    missing_values,
    small_splits,
    extreme_values,
    useless_columns,
)
