"""The features of a file besides its content: from its folder, its name, or a side table.

Shared by all sources whose records are files. One of:

=================== ============================================================================
class folders       the first folder of the path is the class: feature ``label``
``pattern=``        fields of the file's name (of its path if the pattern has a '/'):
                    ``"{label}_{speaker}_{n}.wav"`` gives ``label``, ``speaker`` and ``n``
``table=``          the columns of a CSV, TSV or JSON Lines file: see ``side_tables``; of a list
                    of files, class folders
=================== ============================================================================

With split folders, the first folder of the path is the split, and is ignored by the rules above.
With ``lists=``, lists of files say the split of each: feature ``split``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from ....schemas.blocks import SourceFile
from ....schemas.errors import DataError, RecipeError, SchemaError
from ....schemas.features import ClassLabel, Feature, Features, Scalar, Text, list_kind
from ....schemas.recipe import OpenSource
from ....schemas.splits import USUAL_WORDS
from ..arrow.values import expected
from ..python_values import Lists, wire_arrays, wire_lists
from .annotations.model import (
    BOXES,
    UNSTATED_SIZE,
    BadBoxes,
    InvalidAnnotationError,
    as_fractions,
)
from .folder_tables import FolderTables, folder_of
from .side_tables import LABEL as LABEL
from .side_tables import LabelTable, RowsOf, TableRows, UnlabelledError, is_table
from .split_lists import SPLIT, FileList, SplitLists, codes_of, split_column
from .split_lists import Lists as ListsOf

Unlisted = Literal["reject", "skip"]
"""What becomes of a file without a row in the table."""

WITHOUT_ROW = "file without a row in the table"
"""Why files are skipped with ``unlisted="skip"``."""
IN_NO_LIST = "file in no list"
"""Why files are skipped with ``lists=``, if no split has the rest."""

_NO_NAMES = frozenset(["", ".", ".."])
"""Of folders in a store's keys, which are no classes."""
_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(:d)?\}|(\*)")
_INTEGER = re.compile(r"-?[0-9]+")
_DIGITS = re.compile(r"[0-9]{1,18}")
_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
"""An integer that its digits are the only text of: not ``007``."""


class LabelReader(Protocol):
    """Reads a set of features of files besides their content."""

    def find(self, path: str) -> Any:
        """The data of a file's features, for :meth:`columns`.

        Raises:
            UnlabelledError: if the file must be rejected.
        """

    def check(self, found: Any, header: Any) -> Any:
        """Compares the result of :meth:`find` with the file's header, and completes it.

        Raises:
            UnlabelledError: if the file must be rejected.
        """
        del header
        return found

    def columns(self, found: Sequence[Any]) -> Mapping[str, pa.Array]:
        """The wire columns of files' features, from the results of :meth:`check`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileLabels:
    """The origin of labels, as declared by a source.

    Attributes:
        source: The source's name, for messages.
        content: The feature of the files' content.
        pattern: Pattern of file names, with fields in braces; ``*`` matches any characters.
        table: URL of a side table, relative ones are resolved like the source's; or a table for
            the files of each of these folders.
        split_folders: Whether the first folder is the split. None means no, and refuses class
            folders named like splits.
        label: The field or column to predict, whose texts are classes; None for none.
        unlisted: Whether files without a row in the table are rejected or skipped.
        one_hot: Columns of the table, one of which is 1 in each row and names its class.
        rows: Whether a file has one row in the table, or lists of the values of several.
        by_folder: Whether class folders have labels, without ``pattern`` and ``table``.
        record: What a record is, for messages: a file, or a clip.
        of_boxes: Whether each row of the table is a box of an image.
        bad_boxes: What becomes of an image with boxes outside of it or without area.
        lists: URL of the list of files of each split; None for the split of all other files.
    """

    source: str
    content: str
    pattern: str | None = None
    table: str | Mapping[str, str] | None = None
    split_folders: bool | None = None
    label: str | None = LABEL
    unlisted: Unlisted = "reject"
    one_hot: tuple[str, ...] = ()
    rows: RowsOf = "one"
    by_folder: bool = True
    record: str = "file"
    of_boxes: bool = False
    bad_boxes: BadBoxes = "reject"
    lists: ListsOf | None = None

    def check(self) -> None:
        """Checks the arguments, without reading files.

        Raises:
            ValueError: if ``pattern`` or ``table`` is invalid.
        """
        if self.pattern is not None and self.table is not None:
            raise ValueError("pattern and table are mutually exclusive: give one of them")
        if self.pattern is not None:
            fields = compile_pattern(self.pattern).groupindex
            if self.content in fields:
                raise ValueError(
                    f"pattern={self.pattern!r} has a field {self.content!r}, which is the name of "
                    "the file's content. Rename the field"
                )
        if self.unlisted == "skip" and self.table is None:
            raise ValueError('unlisted="skip" is for files without a row in table=: give a table')
        if self.rows == "list" and not all(
            file_name(url).lower().endswith((".csv", ".tsv", ".txt", ".jsonl"))
            for url in self.tables or ("",)
        ):
            raise ValueError('rows="list" is for files with several rows in table=: give a table')
        if self.one_hot and (self.table is None or self.label != LABEL):
            raise ValueError(
                f"one_hot={self.one_hot!r} names columns of table=, which become the feature "
                f"{LABEL!r}: give a table, and no other label="
            )
        if self.label not in (None, LABEL):
            self._check_label(self.label)
        of_images = self.content == "image"
        if self.table is not None and not self.tables:
            raise ValueError(f"table={self.table!r}, expected a table for each folder")
        if self.lists is not None and (
            len(self.lists) < 2 or list(self.lists.values()).count(None) > 1
        ):
            raise ValueError(
                f"lists={dict(self.lists)!r}, expected the list of files of each split, and None "
                'for the split of all other files: {"train": None, "test": "test.txt"}'
            )
        for url in self.tables:
            if not is_table(url, of_images=of_images):
                coco = ", or COCO's .json" if of_images else ""
                raise ValueError(
                    f"table={url!r}, expected a file with the suffix .csv, .tsv, .txt or "
                    f".jsonl{coco}"
                )

    def _check_label(self, name: str | None) -> None:
        if self.pattern is not None and name not in compile_pattern(self.pattern).groupindex:
            fields = ", ".join(map(repr, compile_pattern(self.pattern).groupindex))
            raise ValueError(f"label={name!r} is not a field of pattern=, which has {fields}")
        if self.pattern is None and self.table is None and name != LABEL:
            raise ValueError(
                f"label={name!r} names a column of table= or a field of pattern=, and there is "
                f"neither: the feature of class folders is called {LABEL!r}"
            )

    def settings(self) -> dict[str, object]:
        """The settings that determine the labels, as plain JSON. The table is hashed separately."""
        settings: dict[str, object] = {"pattern": self.pattern} if self.pattern is not None else {}
        if self.table is not None:
            settings["table"] = (
                file_name(self.table)
                if isinstance(self.table, str)
                else {folder: file_name(url) for folder, url in self.table.items()}
            )
        if self.label != LABEL:
            settings["label"] = self.label
        if self.unlisted != "reject":
            settings["unlisted"] = self.unlisted
        if self.one_hot:
            settings["one_hot"] = list(self.one_hot)
        if self.rows != "one":
            settings["rows"] = self.rows
        if self.lists is not None:
            lists = self.lists.items()
            settings["lists"] = [[split, url and file_name(url)] for split, url in lists]
        return settings | ({"split_folders": True} if self.split_folders else {})

    @property
    def side_urls(self) -> tuple[str, ...]:
        """URLs of the files outside the source that contain labels or splits."""
        lists = (url for url in (self.lists or {}).values() if url is not None)
        return tuple(dict.fromkeys((*self.tables, *lists)))

    @property
    def tables(self) -> tuple[str, ...]:
        """URLs of the tables of labels."""
        if self.table is None or isinstance(self.table, str):
            return () if self.table is None else (self.table,)
        return tuple(dict.fromkeys(self.table.values()))

    def why_beside(self, path: str) -> str:
        """Why a file of the source is no record: it is the table, or a list; else empty."""
        return self._beside.get(path.rpartition("/")[2], "")

    @functools.cached_property
    def _beside(self) -> Mapping[str, str]:
        """By the name of a file."""
        lists = dict.fromkeys(map(file_name, self.side_urls), "list of a split")
        return lists | dict.fromkeys(map(file_name, self.tables), "label table")

    def is_outside(self, path: str) -> bool:
        """Whether a file is in none of the folders that have a table."""
        if self.table is None or isinstance(self.table, str):
            return False
        return folder_of(path, self.table) is None

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> dict[str, Feature]:
        """The features besides the content.

        Raises:
            RecipeError: if class folders are named like splits, or the table has no such label.
            DataError: if no file has labels, or the table is not valid.
        """
        features = self._infer(files, opened)
        if self.lists is None:
            return features
        if SPLIT in features:
            raise DataError(
                f"{self.source}: a field or column is called {SPLIT!r}, as is the feature of "
                "lists=. Rename it."
            )
        lists = self._open_lists(opened)
        lists.check([self._names(file.path) for file in files])
        return {**features, SPLIT: lists.splits}

    def _infer(self, files: Sequence[SourceFile], opened: OpenSource) -> dict[str, Feature]:
        """The features besides the content and the split."""
        paths = [file.path for file in files]
        if files and all(file.problem for file in files):
            raise DataError(
                f"{self.source}: none of the {len(files):,} files can be read. The first one, "
                f"{files[0].path}: {files[0].problem}."
            )
        if self.table is not None:
            features = self._table(opened).infer(list(map(self._names, paths)))
            if not features and self.label is not None:
                listed = sorted(self._with_rows(paths, opened))
                if not any("/" in self._below(path) for path in listed):
                    raise DataError(
                        f"{self.source}: the table {self._shown_table} has no columns besides the "
                        "file names, and the files are in no class folders. Add a column, or "
                        "write label=None."
                    )
                return {LABEL: self._infer_classes(listed)}
            if self.content in features:
                raise DataError(
                    f"{self.source}: the table {self._shown_table} has a column "
                    f"{self.content!r}, which is the name of the file's content. Rename the column."
                )
            if self.label not in (None, LABEL, *features):
                raise RecipeError(
                    f"{self.source}: label={self.label!r} is not a column of the table "
                    f"{self._shown_table}, which has {', '.join(map(repr, features))}."
                )
            return features
        if self.pattern is not None:
            return self._infer_fields(paths)
        if not self.by_folder:
            return {}
        return {LABEL: self._infer_classes(paths)}

    def num_unused_rows(self, files: Sequence[SourceFile], opened: OpenSource) -> int:
        """The number of rows of the table and lines of lists without a file; 0 without any.

        Raises:
            SchemaError: if the table or a list is not valid.
        """
        num = 0
        if self.table is None and self.lists is None:
            return num
        names = [self._names(file.path) for file in files]
        if self.table is not None:
            num += self._table(opened).num_unused(names)
        if self.lists is not None:
            num += self._open_lists(opened).num_unused(names)
        return num

    def why_unlisted(self, paths: Iterable[str], opened: OpenSource) -> dict[str, str]:
        """Which of the paths are skipped, since they have no row in the table or are in no list.

        Raises:
            SchemaError: if the table or a list is not valid.
        """
        paths, unlisted = list(paths), dict[str, str]()
        if self.lists is not None:
            lists = self._open_lists(opened)
            unlisted = {path: IN_NO_LIST for path in paths if not lists.has(self._names(path))}
        if self.unlisted == "skip":
            with_rows = self._with_rows(paths, opened)
            unlisted |= {path: WITHOUT_ROW for path in paths if path not in with_rows}
        return unlisted

    def _with_rows(self, paths: Iterable[str], opened: OpenSource) -> set[str]:
        """Those of the paths that the table has a row for."""
        rows = self._table(opened).names()
        return {path for path in paths if rows.lists(self._names(path))}

    def rows_digest(self, paths: Sequence[str], features: Features, opened: OpenSource) -> str:
        """Hash of what the table and lists say of files, read as these features; else empty.

        Raises:
            SchemaError: if a declared feature is missing, or has an unsupported type.
            StorageError: if a table or list cannot be read, or has changed.
        """
        digest = ""
        names = list(map(self._names, paths))
        if self.table is not None:
            rows = self._rows(self._table(opened), self._wanted(features))
            digest = rows.digest(names)
        if self.lists is None:
            return digest
        lists = self._open_lists(opened)
        said = json.dumps([digest, [_said(lists, of_file) for of_file in names]])
        return hashlib.sha256(said.encode("ascii")).hexdigest()

    def reader(self, features: Features, opened: OpenSource) -> LabelReader:
        """A reader of these features, except the content.

        Raises:
            SchemaError: if a declared feature is missing, or has an unsupported type.
            StorageError: if the table cannot be read, or has changed.
        """
        reader = self._reader(self._wanted(features), opened)
        if self.lists is None:
            return reader
        return _ListsReader(reader, self._open_lists(opened), self._names, features.get(SPLIT))

    def _wanted(self, features: Features) -> dict[str, Feature]:
        """The features besides the content and the split that lists say."""
        besides = (self.content,) if self.lists is None else (self.content, SPLIT)
        return {name: feature for name, feature in features.items() if name not in besides}

    def _reader(self, wanted: Features, opened: OpenSource) -> LabelReader:
        if self.pattern is not None:
            return _PatternReader(self._below, self.pattern, wanted)
        if self.table is not None:
            table = self._table(opened)
            rows = self._rows(table, wanted)
            if table.known_features() or not wanted:
                return _TableReader(self._names, rows)
            return _ListReader(self._names, rows, self._folder_reader(wanted))
        if wanted and not self.by_folder:
            raise SchemaError(
                f"features= declares {next(iter(wanted))!r}, and {self.source} has none: give "
                "pattern= or table=."
            )
        return self._folder_reader(wanted)

    def _folder_reader(self, features: Features) -> _FolderReader:
        return _FolderReader(
            self._below, features, split_folders=bool(self.split_folders), record=self.record
        )

    def _rows(self, table: LabelTable | FolderTables, features: Features) -> TableRows:
        """The rows of a table as these features, or without, if it is a list of files."""
        return table.read(features if table.known_features() else {})

    @property
    def _shown_table(self) -> str:
        return " and ".join(map(file_name, self.tables))

    def _open_lists(self, opened: OpenSource) -> SplitLists:
        assert self.lists is not None
        return SplitLists(
            ClassLabel(tuple(self.lists)),
            {
                split: FileList(
                    name=file_name(url),
                    sha256=opened.side_digest(url),
                    data=functools.partial(opened.read_side, url),
                )
                for split, url in self.lists.items()
                if url is not None
            },
        )

    def _table(self, opened: OpenSource) -> LabelTable | FolderTables:
        assert self.table is not None
        if isinstance(self.table, str):
            return self._open_table(self.table, opened)
        return FolderTables(
            {folder: self._open_table(url, opened) for folder, url in self.table.items()}
        )

    def _open_table(self, url: str, opened: OpenSource) -> LabelTable:
        return LabelTable(
            name=file_name(url),
            data=functools.partial(opened.read_side, url),
            sha256=opened.side_digest(url),
            image=self.content if self.content == "image" else None,
            label=self.label,
            one_hot=self.one_hot,
            rows=self.rows,
            of_boxes=self.of_boxes,
            bad_boxes=self.bad_boxes,
        )

    def _names(self, path: str) -> tuple[str, ...]:
        """The names that a table may use for a file."""
        below = self._below(path)
        return (path,) if below == path else (path, below)

    def _below(self, path: str) -> str:
        """The path without its split folder."""
        return path.partition("/")[2] if self.split_folders and "/" in path else path

    def _infer_classes(self, paths: Sequence[str]) -> ClassLabel:
        folders = (self._below(path).partition("/") for path in paths)
        names = {_text_of(folder) for folder, slash, _ in folders if slash} - _NO_NAMES
        if not names:
            raise DataError(
                f"{self.source}: none of the {len(paths):,} {self.record}s is in a class folder "
                f"(first: {paths[0] if paths else None!r}). Expected "
                f"<root>/{'<split>/' if self.split_folders else ''}<class>/<{self.record}>: put "
                f"the {self.record}s into a folder for each class, or specify where labels come "
                f'from: pattern="{{label}}_{{n}}{".*" if self.record == "file" else ""}" for '
                f'{self.record} names, table="labels.csv" for a table.'
                + " label=None if there are none."
            )
        if self.split_folders is None and looks_like_splits(paths):
            shown = ", ".join(sorted(names))
            raise RecipeError(
                f"{self.source}: the class folders are named like splits: {shown}. If they are "
                f"splits, write {self.source}(…, split_folders=True), and "
                "splits=ss.Splits.by_folder() to use them; if they are classes, write "
                "split_folders=False."
            )
        return _class_label(names, where=f"{self.source}: the name of the class folder")

    def _infer_fields(self, paths: Sequence[str]) -> dict[str, Feature]:
        assert self.pattern is not None
        expression = compile_pattern(self.pattern)
        seen: dict[str, set[str]] = {name: set() for name in expression.groupindex}
        for path in paths:
            match = expression.fullmatch(_subject(self.pattern, self._below(path)))
            if match is not None:
                for name, text in match.groupdict().items():
                    seen[name].add(text)
        if not any(seen.values()) and seen:
            first = _subject(self.pattern, self._below(paths[0])) if paths else ""
            raise DataError(
                f"{self.source}: pattern={self.pattern!r} matches none of the {len(paths):,} "
                f"{self.record}s (first: {first!r}). Fields match as few characters as possible, "
                "'*' matches any; a pattern with a '/' is matched with the entire path."
            )
        return {name: self._field(name, texts) for name, texts in seen.items()}

    def _field(self, name: str, texts: set[str]) -> Feature:
        if name == self.label:
            names = set(map(_text_of, texts))
            return _class_label(names, where=f"{self.source}: the label")
        return Scalar("int64" if all(map(_WHOLE.fullmatch, texts)) else "string")


def looks_like_splits(paths: Iterable[str]) -> bool:
    """Whether the first folders of paths are all named like splits.

    >>> looks_like_splits(["Train/cat/1.jpg", "val/cat/2.jpg"]), looks_like_splits(["train/1.jpg"])
    (True, False)
    """
    folders = {folder.casefold() for folder, slash, _ in (p.partition("/") for p in paths) if slash}
    return len(folders) > 1 and folders <= USUAL_WORDS.keys()


class _FolderReader(LabelReader):
    def __init__(
        self,
        below: Callable[[str], str],
        features: Features,
        *,
        split_folders: bool,
        record: str,
    ) -> None:
        label = features.get(LABEL, ClassLabel(()))
        unknown = sorted(features.keys() - {LABEL})
        if unknown or not isinstance(label, ClassLabel):
            name = unknown[0] if unknown else LABEL
            raise SchemaError(
                f"features= declares {name!r} as {features[name]}; class folders have one feature, "
                f"{LABEL!r}, a ClassLabel."
            )
        self._below, self._features = below, features
        self._codes = {_text_of(name): code for code, name in enumerate(label.names)}
        self._where = "a class folder of its split" if split_folders else "one"
        self._record = record

    def find(self, path: str) -> int:
        folder, _, inside = self._below(path).partition("/")
        if not self._features:
            return 0
        if inside and (code := self._codes.get(_text_of(folder))) is not None:
            return code
        if inside:
            message = f"the folder {folder!r} is not one of the declared classes"
            raise UnlabelledError("class not declared", message)
        message = f"the {self._record} is next to the class folders, expected inside {self._where}"
        raise UnlabelledError("not in a class folder", message)

    def columns(self, found: Sequence[int]) -> Mapping[str, pa.Array]:
        return {LABEL: pa.array(found, pa.int64())} if self._features else {}


class _PatternReader(LabelReader):
    def __init__(self, below: Callable[[str], str], pattern: str, features: Features) -> None:
        self._below, self._pattern, self._features = below, pattern, features
        self._expression = compile_pattern(pattern)
        fields = self._expression.groupindex
        self._converters = {
            name: _converter(name, feature, fields=fields) for name, feature in features.items()
        }

    def find(self, path: str) -> dict[str, Lists]:
        subject = _subject(self._pattern, self._below(path))
        match = self._expression.fullmatch(subject)
        if match is None:
            message = f"{subject!r} does not match {self._pattern!r}"
            raise UnlabelledError("file name does not match the pattern", message)
        values = {}
        for name, convert in self._converters.items():
            try:
                value = convert(match[name])
                values[name] = wire_lists(name, self._features[name], value)
            except (ValueError, SchemaError):
                wanted = expected(self._features[name])
                raise UnlabelledError(
                    "field of the file name does not fit",
                    f"field {name!r} of {subject!r} is {match[name]!r}, expected {wanted}",
                ) from None
        return values

    def columns(self, found: Sequence[dict[str, Lists]]) -> Mapping[str, pa.Array]:
        columns: dict[str, pa.Array] = {}
        for name, feature in self._features.items():
            columns.update(wire_arrays(name, feature, [row[name] for row in found]))
        return columns


class _FoundRow(NamedTuple):
    """A file's row in a table."""

    row: int
    size: tuple[int, int] | None = None
    """The image's height and width, where boxes are pixels."""


class _TableReader(LabelReader):
    def __init__(self, names: Callable[[str], tuple[str, ...]], rows: TableRows) -> None:
        self._names, self._rows = names, rows

    def find(self, path: str) -> _FoundRow:
        return _FoundRow(self._rows.find(self._names(path)))

    def check(self, found: _FoundRow, header: Any) -> _FoundRow:
        if self._rows.sizes is not None:
            self._rows.check_size(found.row, header.height, header.width)
        if not self._rows.in_pixels:
            return found
        if header.orientation != 1:
            raise UnlabelledError(InvalidAnnotationError.reason, UNSTATED_SIZE)
        found = _FoundRow(found.row, (header.height, header.width))
        try:
            self.columns([found])
        except InvalidAnnotationError as error:
            raise UnlabelledError(error.reason, f"{self._rows.name}: {error}") from None
        return found

    def columns(self, found: Sequence[_FoundRow]) -> Mapping[str, pa.Array]:
        columns = self._rows.take([one.row for one in found])
        if not self._rows.in_pixels or BOXES not in columns:
            return columns
        sizes = [one.size for one in found if one.size is not None]
        return {**columns, BOXES: as_fractions(columns[BOXES], sizes)}


class _ListReader(LabelReader):
    """Reads the classes of folders, of the files that a list names."""

    def __init__(
        self, names: Callable[[str], tuple[str, ...]], rows: TableRows, folders: _FolderReader
    ) -> None:
        self._names, self._rows, self._folders = names, rows, folders

    def find(self, path: str) -> int:
        self._rows.find(self._names(path))
        return self._folders.find(path)

    def columns(self, found: Sequence[int]) -> Mapping[str, pa.Array]:
        return self._folders.columns(found)


class _ListsReader(LabelReader):
    """Reads the split of files, besides what another reader reads."""

    def __init__(
        self,
        reader: LabelReader,
        lists: SplitLists,
        names: Callable[[str], tuple[str, ...]],
        declared: Feature | None,
    ) -> None:
        self._reader, self._lists, self._names = reader, lists, names
        self._codes = None if declared is None else codes_of(declared, lists.splits)

    def find(self, path: str) -> tuple[Any, int]:
        split = self._lists.split_of(self._names(path))
        return self._reader.find(path), 0 if self._codes is None else self._codes[split]

    def check(self, found: tuple[Any, int], header: Any) -> tuple[Any, int]:
        return self._reader.check(found[0], header), found[1]

    def columns(self, found: Sequence[tuple[Any, int]]) -> Mapping[str, pa.Array]:
        columns = self._reader.columns([of_reader for of_reader, _ in found])
        if self._codes is None:
            return columns
        return {**columns, SPLIT: split_column([code for _, code in found])}


def _said(lists: SplitLists, names: tuple[str, ...]) -> list[str]:
    """What lists say of a file."""
    try:
        return [lists.split_of(names)]
    except UnlabelledError as error:
        return [error.reason, str(error)]


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The regular expression of a pattern. Fields match as few characters as possible.

    ``{n:d}`` matches digits alone: ``{label}_{n:d}`` reads the label of ``american_bulldog_3``.

    Raises:
        ValueError: if the pattern is invalid.
    """
    parts, position, names = [], 0, set()
    for field in _FIELD.finditer(pattern):
        parts.append(re.escape(pattern[position : field.start()]))
        name = field[1]
        if name in names:
            raise ValueError(f"pattern={pattern!r} names the field {name!r} twice")
        if name:
            names.add(name)
        of_field = "[0-9]+" if field[2] else "[^/]+?"
        parts.append("[^/]*?" if field[3] else f"(?P<{name}>{of_field})")
        position = field.end()
    parts.append(re.escape(pattern[position:]))
    rest = _FIELD.sub("", pattern)
    if "{" in rest or "}" in rest or not names:
        raise ValueError(
            f"pattern={pattern!r}, expected fields in braces, named by letters, digits and '_', "
            "such as '{label}_{speaker}_{n}.wav'"
        )
    return re.compile("".join(parts), re.DOTALL)


def _subject(pattern: str, path: str) -> str:
    return path if "/" in pattern else path.rpartition("/")[2]


def _converter(name: str, feature: Feature, *, fields: Mapping[str, int]) -> Callable[[str], Any]:
    """Converts the text of a field to a value of the feature. Raises ValueError if invalid."""
    if name not in fields:
        raise SchemaError(
            f"features= declares {name!r}, but pattern has no such field; its fields are "
            f"{', '.join(map(repr, fields))}."
        )
    if isinstance(feature, ClassLabel):
        return lambda text: text if text in feature.names else _text_of(text)
    if isinstance(feature, Text):
        return str
    if isinstance(feature, Scalar) and feature.dtype != "bool":
        if feature.dtype == "string":
            # Keep bytes of a name that are not UTF-8.
            return lambda text: text.encode("utf-8", "surrogateescape")
        return _integer if list_kind(feature.dtype) == "int64" else _number
    raise SchemaError(
        f"features= declares {name!r} as {feature}; a field of a file name can be a ClassLabel, a "
        "Text, or a Scalar of numbers or strings."
    )


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _number(text: str) -> int | float:
    """Keeps integers, which must be exact in a float dtype. -0 is a float."""
    with contextlib.suppress(ValueError):
        if whole := int(text):
            return whole
    return float(text)


def _class_label(names: Collection[str], *, where: str) -> ClassLabel:
    for name in sorted(names):
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            shown = name.encode("utf-8", "surrogateescape")
            raise DataError(f"{where} {shown!r} is not valid UTF-8. Rename it.") from None
    return ClassLabel(names=tuple(sorted(names, key=_order_of(names))))


def _order_of(names: Collection[str]) -> Callable[[str], Any]:
    """The order of classes: that of numbers if all names are."""
    return (lambda name: (int(name), name)) if all(map(_DIGITS.fullmatch, names)) else str


def _text_of(name: str) -> str:
    """A name in the form in which equal texts are equal: NFC. Systems decompose names of files."""
    return unicodedata.normalize("NFC", name)


def file_name(url: str) -> str:
    """The last part of a URL's innermost path: ``zip://a/labels.csv::b.zip`` → ``labels.csv``."""
    return url.partition("::")[0].partition("?")[0].rpartition("/")[2]
