"""Names of files: what they say of labels, and which records belong together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ...transforms.sources.folders.labels import LABEL
from .readings import quoted

_SEPARATORS = ("_", "-", " ", ".")
_MAX_PARTS = 3
_MAX_FIELDS = 6
_SIDES = frozenset(("left", "right", "l", "r", "od", "os"))
"""What the last part of names tells apart, besides numbers: the eyes of a person."""
_MIN_GROUPS = 3
"""So many groups for each class: one group is the class, two are its origins."""
_MIN_TOGETHER = 1.5


def name_pattern(names: Sequence[str]) -> str | None:
    """The pattern of file names that all have the same number of fields; None if they do not.

    The first field is the label: it has several values, each of them repeated. The last one is a
    number if it consists of digits.

    If they do not, everything before a number at the end is the label, if each occurs twice.

    >>> name_pattern(["yes_ann_1.wav", "no_ann_2.wav", "yes_bob_3.wav", "no_bob_4.wav"])
    '{label}_{field2}_{n}.wav'
    >>> name_pattern(["beagle_1.jpg", "american_bulldog_1.jpg"] * 2)
    '{label}_{n:d}.jpg'
    """
    parts = [name.rpartition(".") for name in names]
    ends = {end for _, _, end in parts}
    end = next(iter(ends)) if len(ends) == 1 else "*"
    for separator in _SEPARATORS:
        num = parts[0][0].count(separator) + 1
        if not 2 <= num <= _MAX_FIELDS or any(p[0].count(separator) + 1 != num for p in parts):
            continue
        rows = [stem.split(separator) for stem, _, _ in parts]
        columns = [set(column) for column in zip(*rows, strict=True)]
        if not 1 < len(columns[0]) <= len(names) // 2 or "" in set().union(*columns):
            continue
        fields = [LABEL, *(f"field{number}" for number in range(2, len(columns) + 1))]
        if all(re.fullmatch(r"[0-9]+", text) for text in columns[-1]):
            fields[-1] = "n"
        return f"{separator.join(f'{{{field}}}' for field in fields)}.{end}"
    patterns = (pattern_before_number(names, separator) for separator in _SEPARATORS)
    return next(filter(None, patterns), None)


def parts_that_may_be_labels(pattern: str, names: Sequence[str]) -> tuple[str, ...]:
    """What is said of other parts of names that may be the label.

    >>> names = ["yes_ann_1.wav", "no_ann_2.wav", "no_bob_3.wav"] * 2
    >>> parts_that_may_be_labels("{label}_{field2}_{n}.wav", names)
    ("The label may be another part of the names: {field2} ('ann', 'bob').",)
    """
    parts = re.split(r"\{(\w+(?::d)?)\}", pattern.rpartition("/")[2])
    texts = (re.escape(part).replace(r"\*", ".*") for part in parts[::2])
    fields = ["([0-9]+)" if field.endswith(":d") else "(.+?)" for field in parts[1::2]]
    expression = re.compile("".join(map(str.__add__, texts, [*fields, ""])))
    rows = [found.groups() for name in names if (found := expression.fullmatch(name))]
    others = []
    for field, values in zip(parts[1::2], map(set, zip(*rows, strict=True)), strict=False):
        if field == LABEL and any(len(re.split(r"[-_ ]", value)) > _MAX_PARTS for value in values):
            others.append(f"one of those in {sorted(values)[0]!r}")
        elif field not in (LABEL, "n", "n:d") and 1 < len(values) <= len(names) // 2:
            others.append(f"{{{field}}} ({quoted(sorted(values))})")
    return (f"The label may be another part of the names: {'; '.join(others)}.",) if others else ()


def pattern_before_number(names: Sequence[str], separator: str) -> str | None:
    """The pattern of names that end in a number, with what is before it as the label.

    None if not all do, or a label occurs once.
    """
    parts = [name.rpartition(".") for name in names]
    ends = {end for _, _, end in parts}
    expression = re.compile(rf"(.+?){re.escape(separator)}[0-9]+")
    labels: Counter[str] = Counter()
    for stem, _, _ in parts:
        match = expression.fullmatch(stem)
        if match is None:
            return None
        labels[match[1]] += 1
    if len(labels) < 2 or min(labels.values()) < 2:
        return None
    return f"{{{LABEL}}}{separator}{{n:d}}.{ends.pop() if len(ends) == 1 else '*'}"


def words_of_names(names: Iterable[str]) -> list[str]:
    """What tells file names apart if their numbers do not count, if it groups them; [] if not.

    >>> words_of_names(["a_b_1.jpg", "c_1.jpg", "a_b_2.jpg", "c_2.jpg"])
    ['a_b', 'c']
    """
    words = Counter(re.sub(r"\d+", "", stem_of(name)).strip("_- .()") for name in names)
    is_grouped = len(words) > 1 and all(words) and min(words.values()) > 1
    return sorted(words) if is_grouped else []


def groups_in_names(paths: Sequence[str]) -> tuple[str, ...]:
    """What is said of names in class folders that end in a number or a side: ``tom_left.jpg``.

    Empty unless there are three names before it for each class: a class has one, or two origins.
    """
    folders, names = zip(*(path.rsplit("/", 1) for path in paths), strict=True)
    ends = {name.rpartition(".")[2] for name in names}
    for separator in _SEPARATORS:
        last = stem_of(names[0]).rpartition(separator)[2]
        if not last.isdecimal() and last.lower() not in _SIDES:
            continue
        parts = [stem_of(name).rpartition(separator) for name in names]
        is_number = all(part[2].isdecimal() for part in parts)
        groups = {part[0] for part in parts}
        if not is_number and not _SIDES.issuperset(part[2].lower() for part in parts):
            continue
        if not is_number and any(separator in group for group in groups):
            continue  # a pattern would cut at the first one
        is_grouped = "" not in groups and _MIN_TOGETHER * len(groups) <= len(names)
        if is_grouped and len(groups) >= _MIN_GROUPS * len(set(folders)):
            field = "{n:d}" if is_number else "{side}"
            end = ends.pop() if len(ends) == 1 else "*"
            pattern = f"{{{LABEL}}}/{{group}}{separator}{field}.{end}"
            return (
                f"Names such as {paths[0]!r} may say which records belong together, as frames of a "
                f"video do. To keep them in one split: pattern={pattern!r}, and "
                'splits=ss.Splits(train=0.8, validation=0.1, test=0.1, group_by="group").',
            )
    return ()


def stem_of(name: str) -> str:
    """A file name without its suffix."""
    return name.rpartition(".")[0] or name
