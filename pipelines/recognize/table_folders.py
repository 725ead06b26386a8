"""What the names of tables and their folders suggest: columns, and splits.

Folders named ``key=value`` are columns. Words such as ``train`` and ``test`` in the names of all
folders or files, with ``train`` among them, divide the records. Where only some names have such
words, or the files of splits have different columns, it is unclear which records are meant. Of a
competition's files, the training data is meant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import glob
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from ...schemas.blocks import SourceFile
from ...schemas.config import is_unicode
from ...schemas.errors import SchemaError, SnapshardError
from ...schemas.features import flatten
from ...schemas.splits import FOLDERS, USUAL_WORDS, Splits, split_in, splits_said
from ...transforms.sources.arrow.hive import folder_values, keys_of
from ...transforms.sources.combined import Sources
from ...transforms.sources.csv.source import Csv
from ...transforms.sources.folders.annotations.rows import read_header
from ...transforms.sources.folders.web_dataset import WebDataset
from ...transforms.sources.json.source import JsonLines
from ...transforms.sources.numpy import NpyArray, Numpy
from ...transforms.sources.table_files import other_columns
from ...transforms.sources.text import TextFiles
from ...transforms.sources.text_stream import open_text
from ...transforms.storage.decompress import DamagedError
from ...transforms.storage.opened_source import OpenedSource
from .readings import Reading, UnclearError, quoted
from .view import View

SPLIT_COLUMNS = frozenset(
    (
        *("split", "set", "fold", "subset", "partition", "usage"),
        *("data_split", "dataset", "phase", "ml_use"),
    )
)
"""What columns that say the split are called, without case."""
_FOLD = re.compile(r"(^|[^a-z])fold[_\- .]?[0-9]", re.IGNORECASE)
_WITHIN = re.compile(r"train|test|valid|dev")
"""What names that run words together, such as ``datatraining``, have of those of splits."""
_NUM_PROBED = 64
_HEAD_BYTES = 1 << 16
_PART_WORDS = frozenset(
    ("full", "all", "complete", "whole", "small", "tiny", "mini", "toy", "sample", "subset", "demo")
)
_COPY_WORDS = frozenset(
    ("copy", "backup", "bak", "old", "raw", "original", "clean", "cleaned", "processed")
)
_COPY = re.compile(r" ?\([0-9]+\)|[-_ ]*[0-9]+[-_ ]?(percent|pct|%)", re.IGNORECASE)
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_MAX_TABLES = 20
_NUM_SHOWN = 3
SUBMISSION = "submi"
"""What names such as ``sample_submission.csv`` and ``sampleSubmit.csv`` have in common."""
_LABELS = ("y", "label", "labels")
_WITHOUT = "This is without the label:"
_JOIN = "join them in the recipe: docs/sources.md"
_TARGETS = frozenset((*_LABELS, "target", "targets"))
_INPUTS = frozenset(("x", "data", "features", "inputs"))


def arrange_tables(
    source: Any, view: View, *, files: Sequence[SourceFile] | None = None
) -> Reading:
    """Finds the columns and splits in the names of tables.

    Args:
        source: A source of tables.
        view: The files there.
        files: The source's files; by default those that it selects.

    Raises:
        DataError: with a line to copy for each reading, if it is unclear which files are a split,
            or if not all files have the columns in the names of folders.
    """
    files = source.select(view.listed).files if files is None else files
    paths = [file.path for file in files]
    keys = _keys(source, files, view) if hasattr(source, "hive") else ()
    if keys:
        source = dataclasses.replace(source, hive=True)
        for key in keys:
            values = {str(folder_values(path)[key]).lower() for path in paths}
            if key.lower() in SPLIT_COLUMNS and are_splits({USUAL_WORDS.get(v) for v in values}):
                return Reading(source, Splits.by_column(key))
    reading = (
        _by_folders(source, paths, view)
        or _of_competition(source, files, view)
        or _by_names(source, files, view)
    )
    if (pair := _part_and_whole(paths)) is not None:
        alone = [
            part for file in files[:_MAX_TABLES] if (part := _part(source, [file], files, view))
        ]
        raise UnclearError(
            f"{view.shown} holds tables, one of which may be a part of the other "
            f"({quoted(pair)}): its records would be read twice.",
            [*map(Reading, alone), dataclasses.replace(reading, against=("This reads both:",))],
        )
    return reading


def _part_and_whole(paths: Iterable[str]) -> list[str] | None:
    """The first files whose names say that one may be a part or a copy of the other.

    >>> _part_and_whole(["bank.csv", "bank-full.csv"]), _part_and_whole(["full.csv", "bank.csv"])
    (['bank.csv', 'bank-full.csv'], None)
    >>> _part_and_whole(["data.csv", "data (1).csv"]), _part_and_whole(["a.csv", "a.csv.gz"])
    (['data.csv', 'data (1).csv'], ['a.csv', 'a.csv.gz'])
    >>> _part_and_whole(["kdd.txt", "kdd_10_percent.txt", "kdd_20.txt"])
    ['kdd.txt', 'kdd_10_percent.txt']
    >>> _part_and_whole(["raw/a.csv", "processed/a.csv"]), _part_and_whole(["x/a.csv", "y/a.csv"])
    (['raw/a.csv', 'processed/a.csv'], None)
    """
    named: dict[tuple[str, ...], list[str]] = {}
    for path in paths:
        whole = next((path.removesuffix(end) for end in _COMPRESSED if path.endswith(end)), path)
        words = re.split(r"[-_. ]+", _COPY.sub("", _stem(whole)).lower())
        folders = (name for name in path.split("/")[:-1] if name.lower() not in _COPY_WORDS)
        rest = (word for word in words if word not in _PART_WORDS | _COPY_WORDS)
        named.setdefault(("/".join(folders), *rest), []).append(path)
    return next((alike[:2] for alike in named.values() if len(alike) > 1), None)


def _keys(source: Any, files: Sequence[SourceFile], view: View) -> tuple[str, ...]:
    """The keys in the folders of all files; () if there are none, or the files have them, too."""
    paths = [file.path for file in files]
    keys = keys_of(paths)
    if not keys and not any(map(folder_values, paths)):
        return ()
    both = columns_in(source, files[:1], view.opened) & set(keys)
    if keys and not both:
        return keys
    if keys and both == set(keys):
        return ()
    if both:
        found = f"of which {', '.join(sorted(both))} is a column of the files, too"
    else:
        other = next(p for p in paths if [*folder_values(p)] != [*folder_values(paths[0])])
        found = f"but not with the same keys for all files ({paths[0]!r}, {other!r})"
    raise UnclearError(
        f"{view.shown} holds folders that are named key=value, {found}. Move the files, or read "
        "only the columns in them.",
        [Reading(source)],
    )


def are_splits(found: Set[str | None]) -> bool:
    """Whether these splits, as :func:`split_in` says them, divide records."""
    return len(found) > 1 and "train" in found and None not in found


def are_parts(names: Iterable[str]) -> bool:
    """Whether only numbers tell names apart, as those of the parts of one table."""
    return len({re.sub(r"[0-9]+", "", name) for name in names}) < 2


def _by_folders(source: Any, paths: Sequence[str], view: View) -> Reading | None:
    """Splits by the first folders that differ, if each says one."""
    folders = [path.split("/")[:-1] for path in paths]
    depth = _num_shared(folders)
    if any(len(parts) <= depth for parts in folders):
        return None
    names = sorted({parts[depth] for parts in folders})
    splits = {name: split_in(name) for name in names}
    if not are_splits(set(splits.values())) or not all(map(is_unicode, names)):
        return None
    if depth:
        of_suffix = "" if source.url == view.url else f"/**/*{source.url.rpartition('*')[2]}"
        inner = view.inner_url("/".join(folders[0][:depth]) + of_suffix)
        if inner is None:
            return None
        source = _at(source, inner)
    if all(name.lower() in USUAL_WORDS for name in names):
        return Reading(source, Splits.by_folder())
    by_split: dict[str, Any] = {
        split: tuple(name for name in names if splits[name] == split)
        for split in FOLDERS
        if split in splits.values()
    }
    return Reading(source, Splits.by_folder(**by_split))


def _of_competition(source: Any, files: Sequence[SourceFile], view: View) -> Reading | None:
    """The training data of a competition; None if the files are not clearly those of one.

    There are the file to train on, the same without its label to test on, and one to submit, which
    has the label and one of the other columns, the id.
    """
    if not isinstance(source, Csv):
        return None
    groups: dict[str | None, list[SourceFile]] = {}
    for file in files:
        name = os.path.basename(file.path).lower()
        split = SUBMISSION if SUBMISSION in name else split_in(name.partition(".")[0])
        groups.setdefault(split, []).append(file)
    if set(groups) != {"train", "test", SUBMISSION} or len(files) > len(groups):
        return None
    train, test, submitted = (groups[split][0] for split in ("train", "test", SUBMISSION))
    columns, known, answers = (
        columns_in(source, [f], view.opened) for f in (train, test, submitted)
    )
    labels, ids = columns - known, answers & known
    clear = known < columns and labels < answers and answers == labels | ids and len(ids) == 1
    part = _part(source, [train], files, view) if clear else None
    if part is None:
        return None
    named = sorted(labels)
    if len(named) == 1:
        part = dataclasses.replace(part, label=source.label or named[0])
    shown = ", ".join(map(repr, named))
    note = (
        f"Not read: {test.path!r}, which lacks the label ({shown}), and {submitted.path!r}, the "
        f"form of its answers ({next(iter(ids))!r} and the label)."
    )
    return Reading(part, notes=(note,))


def _by_names(source: Any, files: Sequence[SourceFile], view: View) -> Reading:
    """A source for each split that the names of files say."""
    if hasattr(source, "hive"):
        refuse_columns_apart(source, files, view)
    groups: dict[str | None, list[SourceFile]] = {}
    for file in files:
        groups.setdefault(split_in(os.path.basename(file.path)), []).append(file)
    splits = {split: groups[split] for split in FOLDERS if split in groups}
    if len(splits) < 2:
        if isinstance(source, Numpy):
            return _of_arrays(source, files, view)
        if isinstance(source, Csv) and (differing := _differing_headers(source, files, view)):
            raise UnclearError(
                f"{view.shown} holds {len(files):,} tables with different columns ({differing}).",
                [
                    *(Reading(part) for f in files if (part := _part(source, [f], files, view))),
                    Reading(dataclasses.replace(source, columns="union")),
                ],
            )
        _refuse_unclear_splits(source, files, view)
        return Reading(source, notes=_on_names([file.path for file in files]))
    shown = ", ".join(repr(group[0].path) for group in splits.values())
    what = f"{view.shown} holds files that are named like splits ({shown})"
    if isinstance(source, Numpy) and all(file.path.endswith(".npy") for file in files):
        found = {split: _arrays(source, group, view) for split, group in splits.items()}
        differing = _differing_names({a.url: {a.name, *a.beside} for a in found.values() if a})
    else:
        found = {split: _part(source, group, files, view) for split, group in splits.items()}
        differing = _differing_columns(source, splits, view)
    parts = {split: part for split, part in found.items() if part is not None}
    joined = Sources(**parts) if len(parts) == len(splits) else None
    if None in groups:
        why = f"and others that are not ({groups[None][0].path!r})"
    elif joined is None:
        why = "but no pattern of names tells the files of a split"
    elif "train" not in splits:
        why = "and none like train"
    elif differing:
        why = f"with different columns ({differing})"
    elif isinstance(source, TextFiles) and (sides := _sides(splits)):
        what = f"{view.shown} holds texts side by side ({', '.join(sides)}), whose lines may"
        raise UnclearError(
            f"{what} belong together. Read one, write a table with a column for each, or {_JOIN}, "
            "'Lines of two texts'.",
            [reading for side in sides for reading in _of_side(source, side, splits, view)],
        )
    else:
        of_several = (_on_names([file.path for file in group]) for group in splits.values())
        notes = (*itertools.chain(*of_several), *_on_folds(splits))
        return Reading(joined, Splits.by_folder(), notes=notes)
    readings = [Reading(parts["train"])] if "train" in parts else []
    if joined is not None and "train" in parts:
        readings.append(Reading(joined, Splits.by_folder()))
    if joined is None and None not in groups:
        readings += _in_each_folder(source, files, view)
    if not differing:
        readings.append(Reading(source))
    raise UnclearError(f"{what}, {why}.", readings)


def _refuse_unclear_splits(source: Any, files: Sequence[SourceFile], view: View) -> None:
    """Refuses tables of which only some are named like splits, or not in words of their own.

    Raises:
        UnclearError: with the readings of a table for each split, of each alone, and of all.
    """
    paths = [file.path for file in files]
    said = _splits_said(paths)
    if len(set(said)) < 2 or any(map(folder_values, paths)):
        return
    groups: dict[frozenset[str], list[SourceFile]] = {}
    for file, splits in zip(files, said, strict=True):
        groups.setdefault(splits, []).append(file)
    parts = {
        splits: part
        for splits, group in groups.items()
        if (part := _part(source, group, files, view)) is not None
    }
    named = {split: part for splits, part in parts.items() if len(splits) == 1 for split in splits}
    readings = [Reading(part) for part in parts.values()]
    if len(named) > 1 and "train" in named:
        ordered = {split: named[split] for split in FOLDERS if split in named}
        readings.insert(0, Reading(Sources(**ordered), Splits.by_folder()))
    shown = ", ".join(repr(group[0].path) for group in groups.values())
    raise UnclearError(
        f"{view.shown} holds tables, some of which may be those of a split ({shown}).",
        [*readings, Reading(source, against=("This reads all as one table:",))],
    )


def _splits_said(paths: Sequence[str]) -> list[frozenset[str]]:
    """The splits of which the names of files and their folders speak, by file.

    >>> _splits_said(["walk/train/0.csv", "walk/test/0.csv"]) == [{"train"}, {"test"}]
    True
    >>> _splits_said(["datatraining.txt", "datatest.txt"]) == [{"train"}, {"test"}]
    True
    >>> _splits_said(["contest.csv", "latest.csv"]) == [set(), set()]
    True
    """
    names = [path.rpartition(".")[0] for path in paths]
    said = [splits_said(name) for name in names]
    if not any(said) and all(within := [set(_WITHIN.findall(name.lower())) for name in names]):
        found = [frozenset(USUAL_WORDS[word] for word in words) for words in within]
        if any("train" in splits for splits in found):
            return found
    return said


def pairs_apart(files: Sequence[SourceFile]) -> list[tuple[SourceFile, SourceFile]]:
    """Files that are named like inputs, and those like their targets: ``X_train``, ``y_train``."""
    sides: dict[tuple[str, ...], dict[bool, SourceFile]] = {}
    for file in files:
        folder, name = os.path.split(file.path)
        words = re.split(r"[-_. ]+", _stem(name).lower())
        if len(found := [word for word in words if word in _INPUTS | _TARGETS]) == 1:
            others = (folder, *(word for word in words if word not in found))
            sides.setdefault(others, {})[found[0] in _TARGETS] = file
    return [(pair[False], pair[True]) for pair in sides.values() if len(pair) == 2]


def refuse_columns_apart(source: Any, files: Sequence[SourceFile], view: View) -> None:
    """Refuses tables of inputs beside tables of their targets.

    Raises:
        UnclearError: with the reading of the inputs alone.
    """
    pairs = pairs_apart(files)
    columns = [columns_in(source, [file], view.opened) for file in (pairs[0] if pairs else ())]
    if not all(columns) or len(set(map(frozenset, columns))) < 2:
        return
    parts = {file.path: _part(source, [file], files, view) for file, _ in pairs}
    splits = {split_in(os.path.basename(path)): part for path, part in parts.items()}
    readings = [Reading(part) for part in parts.values() if part is not None]
    if len(splits) == len(readings) == len(pairs) > 1 and are_splits(set(splits)):
        ordered: dict[str, Any] = {name: splits[name] for name in FOLDERS if name in splits}
        readings = [Reading(Sources(**ordered), Splits.by_folder())]
    inputs, targets = pairs[0]
    raise UnclearError(
        f"{view.shown} holds columns of the same records in two tables ({inputs.path!r}, "
        f"{targets.path!r}), which no source joins. Write one table, or {_JOIN}, "
        "'Columns in two tables'.",
        [dataclasses.replace(reading, against=(_WITHOUT,)) for reading in readings],
    )


def _on_names(paths: Sequence[str]) -> tuple[str, ...]:
    """What is said of names that tell files of rows apart: of folders, or else of files.

    >>> _on_names(["x/Fake.csv", "x/True.csv"])[0][:49], _on_names(["part-1.csv", "part-2.csv"])
    ('The names of the 2 files (Fake, True) are in no c', ())
    """
    if any(map(folder_values, paths)):
        return ()
    folders = [path.split("/")[:-1] for path in paths]
    depth = _num_shared(folders)
    names = sorted({parts[depth] for parts in folders if len(parts) > depth})
    kind, how = "folders", "name them"
    if not names:
        names = sorted(map(_stem, paths))
        kind, how = "files", "move them into folders"
        if are_parts(names) and not _FOLD.search(names[0]):
            return ()
    if len(names) < 2:
        return ()
    shown = ", ".join(names[:_NUM_SHOWN]) + (" …" if len(names) > _NUM_SHOWN else "")
    return (
        f"The names of the {len(names):,} {kind} ({shown}) are in no column. To have them as one, "
        f"{how} KEY={names[0]} and so on, and set hive=True.",
    )


def _on_folds(splits: Mapping[str, Sequence[SourceFile]]) -> tuple[str, ...]:
    """What is said of splits whose files are numbered alike: ``train1``, ``train2``, ``test1``."""
    numbers = [
        sorted(tuple(re.findall("[0-9]+", _stem(file.path))) for file in group)
        for group in splits.values()
    ]
    first = numbers[0]
    if len(first) < 2 or any(found != first for found in numbers) or len(first[0]) != 1:
        return ()
    shown = " and ".join(repr(group[0].path) for group in splits.values())
    return (
        f"If numbers count the folds of a cross-validation, of which {shown} would be one, "
        "records are in several splits: read the files of one fold only.",
    )


def _in_each_folder(source: Any, files: Sequence[SourceFile], view: View) -> list[Reading]:
    """The readings of folders that each hold files for all splits."""
    folders: dict[str, list[SourceFile]] = {}
    for file in files:
        folders.setdefault(os.path.dirname(file.path), []).append(file)
    readings = []
    if 1 < len(folders) <= _MAX_TABLES:
        for inside in folders.values():
            with contextlib.suppress(UnclearError):
                readings.append(_by_names(source, inside, view))
    readings = [reading for reading in readings if reading.splits is not None]
    return readings if len(readings) == len(folders) else []


def _sides(splits: Mapping[str, Sequence[SourceFile]]) -> list[str]:
    """What the names of all splits' files have besides the split, if it is no number.

    For ``train.de``, ``train.en``, ``test.de`` and ``test.en``: ``de`` and ``en``.
    """
    found = [sorted(map(_side_of, group)) for group in splits.values()]
    apart = {re.sub(r"[0-9]+", "", side) for side in found[0]}
    return found[0] if all(f == found[0] for f in found) and 1 < len(found[0]) == len(apart) else []


def _side_of(file: SourceFile) -> str:
    return _feature_in(os.path.basename(file.path).removesuffix(".txt"))


def _of_side(
    source: Any, side: str, splits: Mapping[str, Sequence[SourceFile]], view: View
) -> list[Reading]:
    """The reading of one file of each split."""
    parts = {
        split: part
        for split, group in splits.items()
        for file in group
        if _side_of(file) == side
        if (part := _part(source, [file], group, view)) is not None
    }
    return [Reading(Sources(**parts), Splits.by_folder())] if len(parts) == len(splits) else []


def _of_arrays(source: Numpy, files: Sequence[SourceFile], view: View) -> Reading:
    """Several ``.npy`` files: columns, unless numbers tell them apart, as parts of an array."""
    stems = {re.sub(r"[0-9]+", "", _stem(file.path)) for file in files}
    are_npy = all(file.path.endswith(".npy") for file in files)
    if len(files) == 1 or not are_npy or len(stems) < len(files) or len(files) > _MAX_TABLES:
        return Reading(source)
    arrays = [_open_array(view, file.path) for file in files]
    columns = _arrays(source, files, view)
    lengths = {array.shape[:1] for array in arrays}
    alike = len({(array.dtype, array.shape[1:]) for array in arrays}) == 1
    if columns is not None and len(lengths) == 1 and not alike:
        return Reading(columns)
    shapes = ", ".join(f"{f.path}: {a.shape}" for f, a in zip(files, arrays, strict=True))
    raise UnclearError(
        f"{view.shown} holds {len(files):,} arrays ({shapes}), which may be columns of the same "
        "records, or parts of one array.",
        [
            *([Reading(columns)] if columns is not None and len(lengths) == 1 else []),
            *(Reading(part) for f in files if (part := _part(source, [f], files, view))),
            *([Reading(source)] if alike else []),
        ],
    )


def _open_array(view: View, path: str) -> NpyArray:
    try:
        return NpyArray.open(view.opened, path)
    except ValueError as error:
        raise SchemaError(
            f"{view.shown}: {path} cannot be read ({error}), so whether the arrays are columns "
            "of the same records is not known. Copy or create it again, or remove it."
        ) from None


def _part(
    source: Any, group: Sequence[SourceFile], files: Sequence[SourceFile], view: View
) -> Any | None:
    """The source of some of the files; None if no URL names exactly these."""
    paths = [file.path for file in group]
    inner = paths[0]
    if len(paths) > 1:
        folders = {os.path.dirname(path) for path in paths}
        names = [os.path.basename(path) for path in paths]
        prefix = names[0][: _num_shared(names)]
        ends = [name.removeprefix(prefix)[::-1] for name in names]
        suffix = ends[0][: _num_shared(ends)][::-1]
        pattern = f"{glob.escape(prefix)}*{glob.escape(suffix)}"
        folder = folders.pop()
        near = [f.path for f in files if os.path.dirname(f.path) == folder]
        if folders or fnmatch.filter(map(os.path.basename, near), pattern) != names:
            return None
        inner = os.path.join(glob.escape(folder), pattern)
    elif re.search(r"[*?[]", inner):
        inner = glob.escape(inner)
    url = view.inner_url(inner)
    return None if url is None else _at(source, url)


def _at(source: Any, url: str) -> Any:
    """The source of other files."""
    field = "shards" if isinstance(source, WebDataset) else "url"
    return dataclasses.replace(source, **{field: url})


def _arrays(source: Numpy, group: Sequence[SourceFile], view: View) -> Numpy | None:
    """The arrays of a split as features: ``x_train.npy`` is ``x``. None if two have one name."""
    found = {_feature_in(_stem(f.path)): view.inner_url(f.path) for f in group}
    urls = {name: url for name, url in found.items() if url is not None}
    if len(urls) < len(group):
        return None
    first = "x" if "x" in urls else min(urls)
    beside = {name: url for name, url in sorted(urls.items()) if name != first}
    label = next((name for name in _LABELS if name in beside), None)
    return dataclasses.replace(
        source, url=urls[first], name=first, beside=beside, label=source.label or label
    )


def _feature_in(stem: str) -> str:
    """The name of a feature without the word of its split.

    >>> _feature_in("x_train"), _feature_in("train-images"), _feature_in("test")
    ('x', 'images', 'data')
    """
    words = re.split(r"[-_. ]+", stem)
    return "_".join(word for word in words if word.lower() not in USUAL_WORDS) or "data"


def _differing_columns(source: Any, splits: Mapping[str, Sequence[SourceFile]], view: View) -> str:
    """How the columns of the files of splits differ; empty if they do not, or are unknown."""
    # An object may lack a key that the next one has.
    num = _NUM_PROBED if isinstance(source, JsonLines) else 1
    columns = {g[0].path: columns_in(source, g[:num], view.opened) for g in splits.values()}
    return _differing_names(columns) if all(columns.values()) else ""


def _differing_headers(source: Csv, files: Sequence[SourceFile], view: View) -> str:
    """How the first lines of a few tables differ as sets of columns; empty if they do not."""
    if not source.header or source.skip or source.comment or not 1 < len(files) <= _MAX_TABLES:
        return ""
    headers = {}
    for file in files:
        text = open_text(view.opened, file.path, num_bytes=file.num_bytes, encoding="utf-8")
        try:
            columns, *_ = read_header(file.path, text.read(0, _HEAD_BYTES))
        except DamagedError:
            return ""
        if len(columns) < 2:
            return ""  # a title
        headers[file.path] = set(columns)
    return _differing_names(headers)


def _differing_names(columns: Mapping[str, set[str]]) -> str:
    """How the columns of some files, by path, differ from those of the first."""
    if not columns:
        return ""
    (first, names), *others = columns.items()
    return next(
        (
            other_columns(found, names, paths=(path, first))
            for path, found in others
            if found != names
        ),
        "",
    )


def columns_in(source: Any, files: Sequence[SourceFile], opened: OpenedSource) -> set[str]:
    """The columns in files; empty if they are unknown: a build will report why."""
    if any(field.name == "label" for field in dataclasses.fields(source)):
        source = dataclasses.replace(source, label=None)
    try:
        return set(flatten(source.infer(files, opened))[0])
    except SnapshardError:
        return set()


def _num_shared(sequences: Sequence[Sequence[str]]) -> int:
    """How many first items all sequences share."""
    shared = itertools.takewhile(lambda items: len(set(items)) == 1, zip(*sequences, strict=False))
    return sum(1 for _ in shared)


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]
