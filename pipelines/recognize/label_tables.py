"""Recognizes tables that label images or sounds: in their folder, or beside it.

A table that names all files, with one row for each, is theirs. Whatever else is found is refused
with the sources to choose from: a table that names only some of the files, several rows for a file,
two tables, or a table with other labels for files in folders that may be classes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow.compute as pc

from ...schemas.blocks import SourceFile
from ...schemas.errors import SnapshardError
from ...schemas.features import ClassLabel, Features, Scalar
from ...schemas.splits import FOLDERS, USUAL_WORDS, Splits, split_in, split_of
from ...transforms import storage
from ...transforms.media.audio_header import SUFFIXES as SOUNDS
from ...transforms.media.image_header import SUFFIXES as IMAGES
from ...transforms.sources.combined import Sources
from ...transforms.sources.folders.audio import AudioFolder
from ...transforms.sources.folders.bystanders import is_document
from ...transforms.sources.folders.images import ImageFolder
from ...transforms.sources.folders.labels import LABEL, file_name, looks_like_splits
from ...transforms.sources.folders.side_tables import (
    SEVERAL,
    LabelTable,
    TableRows,
    folded_parts,
    is_table,
)
from ...transforms.storage.opened_source import is_hidden, url_below
from .readings import Reading, UnclearError
from .side_texts import find_texts
from .split_lists import split_of_list
from .table_folders import SPLIT_COLUMNS, SUBMISSION
from .view import View

_MIN_NAMED = 0.99
"""A table is that of a folder's labels if it names at least this share of the files."""
_MIN_EVIDENCE = 0.5
"""A table is about files if it names this share of them, or this share of its rows names one."""
_MAX_DIFFERENT = 0.5
"""Texts are classes if at most this share of them is different …"""
_MAX_CLASSES = 20
"""… or, in a column called like a label, if there are at most so many different ones."""
_MIN_OF_IDS = 0.8
"""A table refers to ids if more than this share of its first rows begin with one."""
_HEAD_BYTES = 1 << 16
_MAX_TABLES = 20
_OF_SPLITS = re.compile(r"(^|[^a-z])(partitions?|splits?|subsets?|folds?)([^a-z]|$)")
_MAX_SPLITS = 10
_MAX_TABLE_BYTES = 64 << 20
_SHOWN = 8
_LABELS = (LABEL, "class", "class_name", "classname", "category", "target", "class_id", "classid")
"""Names of columns to predict, in lower case; the first one counts."""


@dataclasses.dataclass(frozen=True)
class _Media:
    """The images or sounds among files: those of which there are more."""

    make: type[ImageFolder | AudioFolder]
    root: str
    folder: str
    """The folder that they have in common, within the root; empty for the root itself."""
    paths: Sequence[str]
    split_folders: bool
    """Whether the folders in it are those of splits."""

    @functools.cached_property
    def stems(self) -> Set[str]:
        """The files' names, as tables may write them."""
        return {folded_parts(path)[-1] for path in self.paths}

    @property
    def what(self) -> str:
        """What they are, for messages."""
        return "images" if self.make is ImageFolder else "sounds"

    @functools.cached_property
    def in_classes(self) -> bool:
        """Whether all are in several folders, which may be classes."""
        places = {path.rpartition("/")[0] for path in self.paths}
        folders = {self.class_of(f"{place}/" if place else "") for place in places}
        has_splits = any(map(split_of, folders))
        return "" not in folders and len(folders) > 1 and not has_splits

    def class_of(self, path: str) -> str:
        """The folder that may be the class of a file; empty if there is none."""
        folders = _below(self.folder, path).split("/")[self.split_folders : -1]
        return folders[0] if folders else ""


@dataclasses.dataclass(frozen=True)
class _NamedFiles:
    """A table, and the files in a folder that it names."""

    name: str
    """The table's path below the root, or its name beside it, for messages."""
    source: ImageFolder | AudioFolder
    splits: Splits | None
    rows: TableRows
    columns: Features
    named: Mapping[str, int]
    """Path below the root -> row, or ``SEVERAL``."""
    missing: str
    """The first file in the folder without a row; empty if all have one."""
    is_evident: bool
    """Whether so many names match that the table must be about the files."""

    @property
    def has_label(self) -> bool:
        """Whether the label is in the table."""
        return self.source.label in self.columns or bool(self.source.one_hot)

    @property
    def has_named_label(self) -> bool:
        """Whether the label is more than the only column."""
        name = self.source.label or ""
        return self.has_label and (len(self.columns) > 1 or name.casefold() in _LABELS)


def find_labelled_files(view: View) -> Reading | None:
    """Images or sounds, and a table in or beside the folder that has them; None without a table.

    A table is used if it has a row for 99 % of the files: more than 1 % of rejects would fail a
    build. Its label is ``label``, or a column called like one, or else the only column.

    Raises:
        UnclearError: if a table names only some of the files, several rows name one, or several
            tables or folders may have the labels. It has the sources to choose from.
    """
    if not view.has_urls:
        return None
    media, label = _find_media(view), view.label
    found = [
        named
        for table, path in _find_tables(media, view)
        if (named := _named_files(table, path, media, view)) is not None
    ]
    lists = [named for named in found if not named.columns and named.is_evident]
    for named in found:
        if joined := _tables_by_id(named, view):
            raise _of_ids(named, joined, media, view.shown)
    if of_splits := [named for named in found if named.columns and _says_splits(named)]:
        raise _of_splits(of_splits[0], found, media, view.shown)
    found = [named for named in found if named.columns and not _may_be_list(named)]
    complete = [named for named in found if len(named.named) >= _MIN_NAMED * len(media.paths)]
    labelled = [named for named in complete if named.has_named_label]
    if media.in_classes and label is None and complete:
        labelled = [named for named in complete if _has_labels_of_folders(named, media)]
        if not labelled:
            raise _folders_or_tables(complete, media, view.shown)
    complete = labelled if media.in_classes else labelled or complete
    partial = sorted((named for named in found if named.is_evident), key=_rank)
    by_split = _by_split([named for named in partial if named not in complete])
    if len(complete) > 1 or (complete and by_split):
        names = " and ".join(named.name for named in complete)
        raise UnclearError(
            f"{view.shown} holds {len(media.paths):,} {media.what}, and {names} "
            f"{'each have' if len(complete) > 1 else 'has'} a row for them"
            f"{', as have tables of splits together' if by_split else ''}.",
            [*by_split, *map(_reading, complete)],
        )
    if complete:
        return _checked(complete[0], media)
    if media.in_classes and by_split and not _all_say_folders(partial, media):
        raise _folders_or_tables(partial, media, view.shown, by_split)
    if partial and not media.in_classes:
        raise _partial(partial, lists, media, view.shown)
    return None


def _find_media(view: View) -> _Media:
    kinds: dict[type[ImageFolder | AudioFolder], list[SourceFile]] = {
        ImageFolder: view.ending(*IMAGES),
        AudioFolder: view.ending(*SOUNDS),
    }
    make, files = max(kinds.items(), key=lambda kind: len(kind[1]))
    paths = [file.path for file in files]
    folder = _common_folder(paths)
    split_folders = looks_like_splits(_below(folder, path) for path in paths)
    return _Media(make, view.url.rstrip("/") or view.url, folder, paths, split_folders)


def _find_tables(media: _Media, view: View) -> list[tuple[str, str]]:
    """The URL of each table in or beside the root, and its path below; none if most files are.

    The form of a competition's answers holds no labels.
    """
    of_images = media.make is ImageFolder
    others = view.without(*IMAGES, *SOUNDS)
    texts = find_texts(media.paths, [file.path for file in others])
    of_media = set(() if texts is None else texts.paths)
    tables = [
        file
        for file in others
        if is_table(file.path, of_images=of_images)
        and file.path not in of_media
        and SUBMISSION not in file.path.lower()
        and not is_document(file.path)
    ]
    if len(media.paths) <= len(tables):
        return []
    top = _common_folder([*media.paths, *(file.path for file in tables)])
    near = sorted((file.path for file in tables if _is_near(file, top)), key=_is_text)
    parts = "" if of_images else _glob_of_parts([file.path for file in tables])
    if parts:
        near = [path for path in near if not path.endswith(parts.rpartition("*")[2])]
    return [
        *([(url_below(media.root, parts), "")] if parts else []),
        *((url_below(media.root, path), path) for path in near[:_MAX_TABLES]),
        *((table, "") for table in _tables_beside(media.root, of_images=of_images)),
    ]


def _glob_of_parts(paths: Sequence[str]) -> str:
    """A glob of tables with a suffix of their own, one in each folder: ``*/*.trans.txt``."""
    folders: dict[tuple[int, str], list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if "." in (suffix := name.partition(".")[2]):
            folders.setdefault((path.count("/"), suffix), []).append(folder)
    for (depth, suffix), found in folders.items():
        if len(set(found)) == len(found) > 1:
            return "*/" * depth + f"*.{suffix}"
    return ""


def _named_files(table: str, table_path: str, media: _Media, view: View) -> _NamedFiles | None:
    """The files that a table names, in the folder where it names most; None if it names none.

    Args:
        table: The table's URL.
        table_path: Its path below the root; empty if it is not there.
        media: All files.
        view: The source, and the column to predict, if it is given.
    """
    content = "image" if media.make is ImageFolder else None
    try:
        data = view.opened.read_side(table)
        read = LabelTable(name=file_name(table), data=data, image=content, label=None)
        columns = read.features()
        rows = read.read(columns)
    except SnapshardError:
        return None
    if not any(folded_parts(name)[-1] in media.stems for name in rows.names):
        return None
    if _is_text(table) and all(map(_is_number, itertools.islice(rows.keys, 99))):
        return None  # numbers, such as classes of boxes, name files only by chance
    place = _find_place(media, rows, os.path.dirname(table_path), narrow=bool(columns))
    if not place.keys:
        return None
    split_column = None if place.split_folders else _find_split_column(columns, rows)
    found = _find_label(columns, rows)
    one_hot = () if view.label or found else _find_one_hot(columns, rows)
    splits = Splits.by_folder() if place.split_folders else None
    if split_column is not None:
        splits = Splits.by_column(split_column, **_values_of_splits(split_column, rows))
    return _NamedFiles(
        name=table_path or rows.name,
        source=media.make(
            url_below(media.root, place.folder),
            table=table,
            label=view.label or found or (LABEL if one_hot or not columns else None),
            one_hot=one_hot,
            split_folders=True if place.split_folders else None,
            unlisted="reject" if len(place.keys) >= _MIN_NAMED * len(place.paths) else "skip",
        ),
        splits=splits,
        rows=rows,
        columns=columns,
        named={path: rows.keys.get(key, SEVERAL) for path, key in place.keys.items()},
        missing=next((path for path in place.paths if path not in place.keys), ""),
        is_evident=len(place.keys) >= _MIN_EVIDENCE * min(len(rows.keys), len(place.paths)),
    )


class _Place:
    """The files in a folder, and their names in a table."""

    def __init__(self, folder: str, media: _Media, rows: TableRows) -> None:
        self.folder = folder
        self.paths = [path for path in media.paths if path.startswith(f"{folder}/" * bool(folder))]
        below = [_below(folder, path) for path in self.paths]
        self.split_folders = looks_like_splits(below)
        names = [
            (path, path.partition("/")[2]) if self.split_folders else (path,) for path in below
        ]
        keys = dict(zip(self.paths, map(rows.key, names), strict=True))
        # One that is named in full is not the file of the same name in another split.
        in_full = {key for path, key in zip(below, keys.values(), strict=True) if path == key}
        keys = {
            file: None if key in in_full and path != key else key
            for (file, key), path in zip(keys.items(), below, strict=True)
        }
        # A name that stands for several files says nothing of any.
        num = Counter(keys.values())
        self.keys = {path: key for path, key in keys.items() if key is not None and num[key] == 1}


def _find_place(media: _Media, rows: TableRows, beside: str, *, narrow: bool) -> _Place:
    """The folder in which a table names most files: that of all, the root, or the table's own.

    Args:
        media: All files.
        rows: The table's.
        beside: The folder of the table.
        narrow: Whether to choose the innermost folder that has the named files, also if it may be
            that of a class.
    """
    place = _Place(media.folder, media, rows)
    for folder in sorted({"", beside} - {media.folder}):
        if len(place.keys) < len(media.paths):
            place = max(place, _Place(folder, media, rows), key=lambda place: len(place.keys))
    inner = _common_folder(list(place.keys))
    if inner == place.folder or (media.in_classes and not narrow):
        return place
    narrowed = _Place(inner, media, rows)
    return narrowed if len(narrowed.keys) == len(place.keys) else place


def _is_number(name: str) -> bool:
    return name.replace(".", "").isdecimal()


def _rank(named: _NamedFiles) -> tuple[bool, int]:
    return not named.has_label, -len(named.named)


def _below(folder: str, path: str) -> str:
    return path.removeprefix(f"{folder}/") if folder else path


def _common_folder(paths: Sequence[str]) -> str:
    folders = {path.rpartition("/")[0] for path in paths}
    return os.path.commonpath(folders) if folders else ""


def _find_label(columns: Features, rows: TableRows) -> str | None:
    """The column called like a label, or else the only one, if its texts do not mostly differ."""
    others = [name for name in columns if name.strip().casefold() not in SPLIT_COLUMNS]
    called = (name for label in _LABELS for name in others if name.strip().casefold() == label)
    name = next(called, others[0] if len(others) == 1 else None)
    if name is None:
        return None
    feature, is_named = columns[name], name.casefold() in _LABELS
    if not isinstance(feature, Scalar | ClassLabel):
        return name if is_named else None
    num_rows = rows.columns.num_rows
    num_different = pc.count_distinct(rows.columns.column(name)).as_py()
    is_text = feature in (Scalar("string"), Scalar("string", optional=True))
    if is_text and num_different > _MAX_DIFFERENT * num_rows:
        return name if is_named and num_different <= _MAX_CLASSES else None
    is_id = feature == Scalar("int64") and num_different == num_rows
    return name if is_named or not is_id else None


def _find_one_hot(columns: Features, rows: TableRows) -> tuple[str, ...]:
    """The columns of 0 and 1, if exactly one of them is 1 in each row."""
    values = {
        name: rows.columns.column(name).to_numpy()
        for name, feature in columns.items()
        if feature in (Scalar("float32"), Scalar("int64"), Scalar("bool"))
    }
    binary = {name: column for name, column in values.items() if np.isin(column, (0, 1)).all()}
    is_one_hot = len(binary) > 1 and (np.sum(list(binary.values()), axis=0) == 1).all()
    return tuple(binary) if is_one_hot else ()


def _find_split_column(columns: Features, rows: TableRows) -> str | None:
    """The column that is called like one of splits, and has only words of splits."""
    for name, feature in columns.items():
        if name.strip().casefold() in SPLIT_COLUMNS and feature == Scalar("string"):
            words = {text.casefold() for text in _texts(name, rows)}
            if len(words) > 1 and words <= USUAL_WORDS.keys():
                return name
    return None


def _values_of_splits(column: str, rows: TableRows) -> dict[str, Any]:
    """The texts of a column for each split, in the usual order of splits."""
    texts = _texts(column, rows)
    values = {
        split: [text for text in texts if USUAL_WORDS[text.casefold()] == split]
        for split in FOLDERS
    }
    return {split: of_split for split, of_split in values.items() if of_split}


def _texts(column: str, rows: TableRows) -> list[str]:
    """The different texts of a column, sorted."""
    texts = pc.unique(rows.columns.column(column)).to_pylist()
    return sorted(text.decode("utf-8", "replace") for text in texts)


def _checked(named: _NamedFiles, media: _Media) -> Reading:
    """The files of a table that names all of them; several captions of a file are a list.

    Raises:
        UnclearError: if it has several rows for more files than may be rejected, and they may mean
            something else.
    """
    several = [path for path, row in named.named.items() if row == SEVERAL]
    means = _means(named)
    if len(several) <= (1 - _MIN_NAMED) * len(media.paths):
        return Reading(named.source, named.splits, means)
    lists = dataclasses.replace(named.source, rows="list")
    if list(named.columns.values()) == [Scalar("string")] and not named.has_label:
        return Reading(lists, named.splits, means)
    one = media.what.removesuffix("s")
    raise UnclearError(
        f"{named.name} has several rows for {len(several):,} of {len(media.paths):,} "
        f"{media.what} (first: {several[0]!r}), expected one for each {one}, which is one record. "
        f"Keep one row for each {one}, or read lists of their values. A function can make a record "
        "of each row: docs/sources.md, 'A record for each row'.",
        [Reading(lists, None, means)],
    )


def _has_labels_of_folders(named: _NamedFiles, media: _Media) -> bool:
    """Whether the labels of a table are the names of the files' class folders."""
    column = named.source.label
    if column is None or column not in named.columns or named.columns[column] != Scalar("string"):
        return False
    texts = named.rows.columns.column(column).to_pylist()
    return all(
        row == SEVERAL or texts[row].decode("utf-8", "replace") == media.class_of(path)
        for path, row in named.named.items()
    )


def _all_say_folders(named_files: Sequence[_NamedFiles], media: _Media) -> bool:
    return all(_has_labels_of_folders(named, media) for named in named_files)


def _folders_or_tables(
    named_files: Sequence[_NamedFiles],
    media: _Media,
    shown: str,
    by_split: Sequence[Reading] = (),
) -> UnclearError:
    tables = " and ".join(
        f"{named.name} (columns {_some(list(named.columns))})" for named in named_files
    )
    readings = [_by_folders(media), *map(_reading, named_files)]
    if by_split:
        readings = [*by_split, _by_folders(media)]
    return UnclearError(
        f"{shown} holds {len(media.paths):,} {media.what} in folders that may be classes "
        f"({_some(sorted(set(map(media.class_of, media.paths))))}), and other labels may be in "
        f"{tables}, which {'have rows for them' if by_split else 'has a row for each'}.",
        readings,
    )


def _tables_by_id(named: _NamedFiles, view: View) -> list[str]:
    """The tables beside one that gives files ids, and no more, whose rows begin with such ids."""
    if not named.is_evident or list(named.columns.values()) != [Scalar("int64")]:
        return []
    (column,) = named.columns
    values = named.rows.columns.column(column).to_pylist()
    ids = set(map(str, values))
    if len(ids) < len(values):
        return []
    folder = os.path.dirname(named.name)
    beside = [
        file
        for file in view.without(*IMAGES, *SOUNDS)
        if os.path.dirname(file.path) == folder and file.path != named.name and is_table(file.path)
    ]
    found = []
    for file in beside[:_MAX_TABLES]:
        head = view.head(file, _HEAD_BYTES)
        *lines, _ = head.decode("utf-8", "replace").splitlines() or [""]
        words = [words[0] for line in lines if len(words := re.split(r"[\s,;]+", line)) > 1]
        if sum(word in ids for word in words) > _MIN_OF_IDS * max(len(words), 1):
            found.append(file.path)
    return found


def _of_ids(named: _NamedFiles, joined: Sequence[str], media: _Media, shown: str) -> UnclearError:
    if media.in_classes:
        plain, of_label = _by_folders(media), "the labels are the folders"
    else:
        plain = Reading(media.make(url_below(media.root, media.folder), label=None))
        of_label = "there are no labels"
    against = f"This ignores the tables: {of_label}, and splits are by chance."
    return UnclearError(
        f"{shown} holds {len(media.paths):,} {media.what}. {named.name} gives them ids, by which "
        f"{_some(joined)} may say their labels or splits. No source joins tables by ids: write one "
        "table, or lists of the files of splits (docs/sources.md, 'Tables joined by ids').",
        [dataclasses.replace(plain, against=(against,))],
    )


def _says_splits(named: _NamedFiles) -> bool:
    """Whether a table is called like one of splits, and its only column has few numbers."""
    stem = os.path.splitext(os.path.basename(named.name))[0].lower()
    if not _OF_SPLITS.search(stem) or list(named.columns.values()) != [Scalar("int64")]:
        return False
    (column,) = named.columns
    return named.is_evident and 1 < len(pc.unique(named.rows.columns.column(column))) <= _MAX_SPLITS


def _of_splits(
    named: _NamedFiles, found: Sequence[_NamedFiles], media: _Media, shown: str
) -> UnclearError:
    """The refusal of a table that may say splits by numbers, beside others or alone."""
    ((column, _),) = named.columns.items()
    values = sorted(map(str, pc.unique(named.rows.columns.column(column)).to_pylist()))
    source = dataclasses.replace(named.source, label=None)
    others = [one for one in found if one.columns and one is not named]
    seen = (
        f"{shown} holds {len(media.paths):,} {media.what}, and the numbers in {named.name} "
        f"({_some(values)}) may be their splits."
    )
    readings = [*([_by_folders(media)] if media.in_classes else []), *map(_reading, others)]
    if readings:
        by_chance = ("This divides them by chance:",)
        label = f"the labels in {others[0].name}" if others else "the folders, which may be classes"
        return UnclearError(
            f"{seen} No source joins them with {label}. Write one table, or lists of the files of "
            "splits (docs/sources.md, 'Tables joined by ids').",
            [dataclasses.replace(reading, against=by_chance) for reading in readings],
        )
    if values != ["0", "1", "2"]:
        return UnclearError(seen, [Reading(source)])
    splits = Splits.by_column(column, train="0", validation="1", test="2")
    said = "If 0 is train, 1 is validation and 2 is test:"
    return UnclearError(seen, [Reading(source, splits, against=(said,))])


def _some(names: Sequence[str]) -> str:
    more = ", …" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _partial(
    partial: Sequence[_NamedFiles], lists: Sequence[_NamedFiles], media: _Media, shown: str
) -> UnclearError:
    tables = "; ".join(
        [
            *(
                f"{named.name} names {len(named.named):,} of them"
                + (f", and not {named.missing!r}" if named.missing else "")
                for named in partial
            ),
            *(f"{named.name} lists {len(named.named):,} without a label" for named in lists),
        ]
    )
    return UnclearError(
        f"{shown} holds {len(media.paths):,} {media.what}, and no table has a row for each: "
        f"{tables}. Add the missing rows, or read only the {media.what} that have one.",
        [*_by_split(partial), *map(_reading, partial)],
    )


def _by_split(partial: Sequence[_NamedFiles]) -> list[Reading]:
    """The source of the tables called like splits, if there is one for each, of other files."""
    by_split = {
        split: of_split
        for split in FOLDERS
        if (of_split := [named for named in partial if _split_of(named) == split])
    }
    tables = [named for of_split in by_split.values() for named in of_split]
    num_named = len({path for named in tables for path in named.named})
    is_disjoint = num_named == sum(len(named.named) for named in tables)
    labels = {named.source.label for named in tables}
    if not len(tables) == len(by_split) > 1 or not is_disjoint or len(labels) > 1:
        return []
    parts: dict[str, Any] = {split: named.source for split, (named,) in by_split.items()}
    return [Reading(Sources(**parts), Splits.by_folder(), "labelled by a table for each split")]


def _split_of(named: _NamedFiles) -> str | None:
    """The split that a table is called by, or else its folder."""
    folder, name = os.path.split(str(named.source.table).partition("::")[0])
    return split_in(name) or split_in(os.path.basename(folder))


def _may_be_list(named: _NamedFiles) -> bool:
    """Whether a text is called like a split and has no label: a list, with other columns.

    Where its files are in a folder of that split, no list is needed: the columns are of the files.
    """
    split = split_of_list(named.name) if _is_text(named.name) else None
    folder = os.path.basename(named.source.url)
    return split is not None and split_in(folder) != split and not named.has_label


def _by_folders(media: _Media) -> Reading:
    url = url_below(media.root, media.folder)
    source = media.make(url, split_folders=True if media.split_folders else None)
    splits = Splits.by_folder() if media.split_folders else None
    return Reading(source, splits, "labelled by its folder")


def _reading(named: _NamedFiles) -> Reading:
    no_label = named.source.label is None and bool(named.columns)
    against = ("With the column to predict instead of label=None:",) if no_label else ()
    return Reading(named.source, named.splits, _means(named), against)


def _means(named: _NamedFiles) -> str:
    return f"labelled by the table {named.name}"


def _is_text(path: str) -> bool:
    return path.lower().endswith(".txt")


def _is_near(file: SourceFile, top: str) -> bool:
    """Whether a table is small enough to look at, and in the top folder or one below it."""
    return _below(top, file.path).count("/") <= 1 and file.num_bytes <= _MAX_TABLE_BYTES


def _tables_beside(root: str, *, of_images: bool) -> list[str]:
    """The tables of moderate size next to a local folder."""
    if not storage.is_local(root) or "://" in root:
        return []
    plain = os.path.normpath(root)
    last = os.path.basename(plain)
    outer = os.path.join(plain, os.pardir) if last in ("", ".", "..") else os.path.dirname(plain)
    try:
        names = sorted(entry.name for entry in os.scandir(outer or ".") if entry.is_file())
    except OSError:
        return []
    found = [
        os.path.normpath(os.path.join(outer, name))
        for name in names
        if is_table(name, of_images=of_images) and not is_hidden(name) and not _is_text(name)
    ]
    return [path for path in found if os.path.getsize(path) <= _MAX_TABLE_BYTES][:_MAX_TABLES]
