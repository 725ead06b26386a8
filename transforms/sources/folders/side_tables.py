"""Side tables: features of files, from a CSV, TSV or JSON Lines file, or COCO's JSON (``coco``).

The first existing column of ``file``, ``file_name``, ``filename``, ``path`` and ``image`` names the
file of a row. In CSV and TSV without such a column, it is the first one whose first text ends like
a file (``.jpg``), else the first that is called like one (``image_id``), else the first column. The
name is the file's path below the source's root, its end, or a path that ends with it, such as an
absolute one of another computer: as it is written, else without its suffix, in any case and in any
Unicode form. If it is an end of several, the longest common end counts.

Every other column is a feature; without one, the table is a list of files. The delimiter, the
encoding and the header of CSV, TSV and TXT are guessed, and an index without a name is left out.
Lines of a TXT that are an id and different numbers of words, as transcripts are, have two columns.
They are typed like ``ss.Csv``, JSON Lines as follows:

================================ ===============================================================
value                            feature
================================ ===============================================================
true, false                      bool
integers                         int64
other numbers                    float64
strings                          string; a column ``label`` becomes a ClassLabel
list of one of these             Sequence; null or missing: none
object                           its fields, such as ``camera.iso``
``boxes`` of an image            BoundingBoxes: a list of [ymin, xmin, ymax, xmax], or of objects
                                 ``{"bbox": [ymin, xmin, ymax, xmax], "label": "cat"}``, whose
                                 labels become ``box_labels``, a Sequence of a ClassLabel; with
                                 ``"crowd": true``, also ``box_crowd``, a Sequence of bools
================================ ===============================================================

Boxes are fractions of the image's height and width, 0 to 1. Pixel coordinates would depend on
whether the image was annotated with or without its EXIF orientation applied.
"""

from __future__ import annotations

import codecs
import collections
import csv
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import re
import reprlib
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....schemas.blocks import Block, FileRange, SourceFile
from ....schemas.errors import DataError, ReasonedError, RecipeError, SchemaError
from ....schemas.features import (
    BoundingBoxes,
    ClassLabel,
    Feature,
    Features,
    Scalar,
    Sequence,
    features_from_json,
    features_to_json,
    flatten,
    wire_columns,
    written,
)
from ....schemas.limits import Limits
from ....schemas.recipe import OpenSource
from ...media.audio_header import SUFFIXES as SOUNDS
from ...media.image_header import SUFFIXES as IMAGES
from ...runs.files import wire_schema
from ..csv.dialect import sniff
from ..csv.rows import WHITESPACE
from ..csv.source import Csv
from ..json.values import object_without_doubles
from ..python_values import Lists, flat_record, value_feature, wire_batch, wire_lists
from .annotations.coco import holds_captions, read_captions, read_instances
from .annotations.model import BOX_CROWD, BOX_LABELS, BOXES, Annotations, BadBoxes, box_features
from .annotations.rows import read_rows

LABEL = "label"
"""The feature of class folders, or of a field or column of this name."""
RowsOf = Literal["one", "list"]
"""What a file has of its rows: the values of one, or lists of the values of all."""

KEY_COLUMNS = ("file", "file_name", "filename", "path", "image")
"""Names of the column that names the file."""

SEVERAL = -1
"""In place of a row, for a name that several rows have."""

_FILE_COLUMN = re.compile(
    r"((image|img|picture|photo|audio|sound|wav|clip)s?_?)(files?|file_?names?|file_?paths?|paths?"
    r"|names?|ids?)|file_?names?|file_?paths?|files?|paths?|images?|imgs?|fname"
)
"""Names of columns that name files, in lower case with '_' for blanks."""
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,4}")
_INDEX = "column_0"
"""The name of a first column that has none."""
_SNIFFED_BYTES = 1 << 20
_TEXT = ".txt"
_NAME_AND_WORDS = re.compile(rb"(?m)^(\S+)[ \t]+(\S[^\r\n]*)")
_MAX_LINES = 100
_DELIMITERS = {".csv": ",", ".tsv": "\t", _TEXT: ","}
_JSON_LINES = ".jsonl"
_COCO = ".json"
_SHOWN = 3

_BOX_KEYS = frozenset({"bbox", "label", "crowd"})
_ROUNDING = 1e-6
_FORM = (
    "expected [ymin, xmin, ymax, xmax] as fractions of the image's height and width, 0 to 1. "
    "Divide pixels by the image's size"
)


class UnlabelledError(ReasonedError):
    """A file has no features besides its content."""


def is_table(url: str, *, of_images: bool = False) -> bool:
    """Whether a URL has the suffix of a supported table; COCO's are for images."""
    suffixes = (*_DELIMITERS, _JSON_LINES, *([_COCO] if of_images else []))
    return _suffix(url.partition("::")[0].partition("?")[0]) in suffixes


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelTable:
    """A side table, which is parsed once for all blocks of a process.

    Attributes:
        name: The file's name, whose suffix determines the format.
        data: Its bytes, or a function that returns them.
        sha256: Of its bytes, hex; computed if it is not given.
        image: The image feature of a JSON Lines column ``boxes``, if any.
        label: The column whose strings are classes, if any.
        one_hot: Columns of which one is 1 in each row and the others are 0: instead of them there
            is the feature ``label``, whose classes are their names.
        rows: Whether the features of a file are the values of its only row, or lists of those of
            all its rows.
        of_boxes: Whether each row of a CSV or TSV is a box of an image.
        bad_boxes: What becomes of an image with boxes outside of it or without area.
    """

    name: str
    data: bytes | Callable[[], bytes] = dataclasses.field(repr=False, compare=False)
    sha256: str = ""
    image: str | None = None
    label: str | None = LABEL
    one_hot: tuple[str, ...] = ()
    rows: RowsOf = "one"
    of_boxes: bool = False
    bad_boxes: BadBoxes = "reject"

    def __post_init__(self) -> None:
        """Computes the digest."""
        if not self.sha256:
            object.__setattr__(self, "sha256", hashlib.sha256(self.load()).hexdigest())

    @property
    def has_annotations(self) -> bool:
        """Whether it is read as boxes of images, not as rows of columns."""
        return self.of_boxes or (_suffix(self.name) == _COCO and not self.has_captions)

    @property
    def has_captions(self) -> bool:
        """Whether it is a document of COCO's captions, which is read as lines of JSON."""
        return _suffix(self.name) == _COCO and _has_captions(self)

    def load(self) -> bytes:
        """Its bytes."""
        return self.data if isinstance(self.data, bytes) else self.data()

    def infer(self, paths: Many[tuple[str, ...]]) -> dict[str, Feature]:
        """The features of the table's columns.

        Args:
            paths: The possible names of each file: its path, and its path without the split folder.

        Raises:
            DataError: if it names none of the files, or a name matches several files.
            SchemaError: if it is not a valid table.
        """
        features = dict(self.known_features())
        rows = self.read(features)
        rows.check_names(
            paths,
            f"The table {self.name}",
            first="its first row is for",
            advice="Name files by their paths below the source, or by their bare names, in a "
            f"column named {', '.join(KEY_COLUMNS)}, or in the first column.",
        )
        return features

    def read(self, features: Features) -> TableRows:
        """Reads the rows of the table as these features.

        Raises:
            SchemaError: if a feature is not a column of the table, or has an unsupported type.
        """
        return _read(self, json.dumps(features_to_json(features)))

    def names(self) -> TableRows:
        """The rows as the table's own features, for the names of their files.

        Raises:
            SchemaError: if it is not a valid table.
        """
        return self.read(self.known_features())

    def known_features(self) -> Features:
        """As :meth:`features`, which is called once.

        Raises:
            SchemaError: if it is not a valid table.
        """
        return _features_of(self)

    def num_unused(self, paths: Many[tuple[str, ...]]) -> int:
        """The number of names that match none of the files; ``paths`` as in :meth:`infer`.

        Raises:
            SchemaError: if it is not a valid table.
        """
        rows = self.names()
        named = {rows.key(names) for names in paths}
        return len((rows.keys.keys() | rows.unfit.keys()) - named) + rows.num_others

    def features(self) -> dict[str, Feature]:
        """The features of its columns, of which those of ``one_hot`` are the label.

        None if it is a list of names.

        Raises:
            SchemaError: if it is not a valid table.
        """
        features = self._column_features()
        missing = [name for name in self.one_hot if not _is_number(features.get(name))]
        if missing or (self.one_hot and LABEL in features):
            wrong = f"no column {missing[0]!r} of numbers" if missing else f"a column {LABEL!r}"
            raise SchemaError(
                f"The table {self.name} has {wrong}; one_hot= names columns that are 1 for the "
                f"class of a file, else 0, and makes {LABEL!r} of them. It has "
                f"{', '.join(map(repr, features))}."
            )
        kept = {name: feature for name, feature in features.items() if name not in self.one_hot}
        if self.one_hot:
            kept[LABEL] = ClassLabel(tuple(map(str.strip, self.one_hot)))
        if self.rows == "one":
            return kept
        return {name: self._list_of(name, feature) for name, feature in kept.items()}

    def _list_of(self, name: str, feature: Feature) -> Sequence:
        if not isinstance(feature, Scalar | ClassLabel):
            raise SchemaError(
                f'The table {self.name}: {name!r} is {written(feature)}; rows="list" makes lists '
                "of columns with one value in each row."
            )
        return Sequence(dataclasses.replace(feature, optional=False))

    def _column_features(self) -> dict[str, Feature]:
        if self.has_annotations:
            assert self.image is not None
            return _annotations(self).features(self.image)
        data = self.load()
        if self.has_captions:
            return infer_columns(self.name, _captions(self), image=self.image, label=None)
        if _suffix(self.name) == _JSON_LINES:
            return infer_columns(self.name, data, image=self.image, label=self.label)
        table = _parse_csv(self.name, data)
        inferred = table.infer()
        name = self.label
        label = None if name is None else inferred.get(name)
        if name is not None and isinstance(label, Scalar) and label.dtype in ("string", "bool"):
            inferred = table.infer(label=name)
            named = inferred[name]
            if label.optional and isinstance(named, ClassLabel):
                inferred[name] = dataclasses.replace(named, optional=True)
        key = table.key_column(inferred)
        return {
            name: feature
            for name, feature in inferred.items()
            if name != key and not table.is_index(name, feature)
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRows:
    """The rows of a side table, as wire columns of features."""

    name: str
    keys: Mapping[str, int]
    """Name -> row, or ``SEVERAL``."""
    columns: pa.RecordBatch
    names: Many[str]
    """The name of each row."""
    unfit: Mapping[str, str]
    """Name -> why its row is invalid."""
    num_lost: int
    """Number of unreadable rows."""
    first_lost: str
    num_others: int = 0
    """Number of files that it refers to without a row for them."""
    sizes: npt.NDArray[np.int64] | None = None
    """Height and width of each row's image, if the table has them."""
    in_pixels: bool = False
    """Whether the boxes are pixels of images whose size the table does not have."""

    def key(self, names: Many[str]) -> str | None:
        """The name in the table of a file with these paths; None if it has no row, or several."""
        keys = self._keys(names)
        return keys[0] if len(keys) == 1 else None

    def check_names(
        self, paths: Many[tuple[str, ...]], what: str, *, first: str, advice: str
    ) -> None:
        """Refuses names of none of the files, and such as match several; words of the message."""
        keys = (self.key(names) for names in paths)
        named = collections.Counter(key for key in keys if key is not None)
        if not named:
            raise DataError(
                f"{what} names none of the {len(paths):,} files; {first} "
                f"{next(iter(self.keys), '')!r}, the first file is "
                f"{paths[0][0] if paths else ''!r}. {advice}"
            )
        if double := sorted(key for key, count in named.items() if count > 1):
            raise DataError(
                f"{what} names {double[0]!r}, which matches {named[double[0]]:,} files "
                f"({len(double):,} such names). Name files by their paths below the source."
            )

    def lists(self, names: Many[str]) -> bool:
        """Whether there are rows for a file with these paths."""
        return bool(self._keys(names))

    def _keys(self, names: Many[str]) -> list[str]:
        """The names in the table that a file with these paths may have."""
        path = names[-1]
        bare = path.rpartition("/")[2]
        stems = [_stem(name) for name in (*names, bare)]
        for name in (*names, bare, *stems):
            if name in self.keys or name in self.unfit:
                return [name]
        folded = [folded_parts(name) for name in names]
        for end in folded:
            if keys := self._keys_by_end(len(end)).get(end):
                return keys
        whole = folded[0]
        ends = (whole[start:] for start in range(1, len(whole)))
        return next((self._whole_keys[end] for end in ends if end in self._whole_keys), [])

    def _keys_by_end(self, length: int) -> Mapping[tuple[str, ...], list[str]]:
        """The names in the table by their last parts, as many as ``length``."""
        if length not in self._ends:
            self._ends[length] = _grouped(
                (parts[-length:], key)
                for parts, keys in self._whole_keys.items()
                if len(parts) >= length
                for key in keys
            )
        return self._ends[length]

    @functools.cached_property
    def _ends(self) -> dict[int, Mapping[tuple[str, ...], list[str]]]:
        return {}

    @functools.cached_property
    def _whole_keys(self) -> Mapping[tuple[str, ...], list[str]]:
        """The names in the table by all their parts."""
        return _grouped(
            (folded_parts(key), key) for key in dict.fromkeys((*self.keys, *self.unfit))
        )

    def find(self, names: Many[str]) -> int:
        """The row of a file.

        Raises:
            UnlabelledError: if there is none, or it is invalid.
        """
        keys = self._keys(names)
        if not keys:
            lost = ""
            if self.num_lost:
                lost = f" ({self.num_lost:,} of its rows cannot be read: {self.first_lost})"
            raise UnlabelledError(
                "no row in the table", f"{self.name} has no row for {names[-1]!r}{lost}"
            )
        key = keys[0]
        if len(keys) == 1 and key in self.unfit:
            raise UnlabelledError("unfit row in the table", f"{self.name}: {self.unfit[key]}")
        row = self.keys.get(key, SEVERAL)
        if len(keys) > 1 or row == SEVERAL:
            shown = ", ".join(map(repr, keys[:_SHOWN]))
            raise UnlabelledError(
                "several rows in the table", f"{self.name} has several rows for {shown}"
            )
        return row

    def check_size(self, row: int, height: int, width: int) -> None:
        """Checks the size of a row's image, as displayed.

        Raises:
            UnlabelledError: if the table has another.
        """
        if self.sizes is None or (self.sizes[row] == (height, width)).all():
            return
        stated = "×".join(map(str, self.sizes[row].tolist()))
        raise UnlabelledError(
            "not the size in the table",
            f"the image is {height}×{width} (height × width, upright), and {self.name} has "
            f"{stated}: its boxes are for another image, or for one whose EXIF orientation was "
            "ignored. Correct the image or the table",
        )

    def digest(self, files: Many[Many[str]]) -> str:
        """A hash of the rows for these paths, in their order: 64 hex digits."""
        hasher, rows = hashlib.sha256(), []
        for names in files:
            try:
                rows.append(self.find(names))
                said = [names[-1]]
            except UnlabelledError as error:
                said = [names[-1], error.reason, str(error)]
            hasher.update(json.dumps(said).encode("ascii") + b"\n")
        taken = self.columns.take(pa.array(rows, pa.int64()))
        hasher.update(taken.serialize())
        if self.sizes is not None:
            hasher.update(self.sizes[rows].tobytes())
        return hasher.hexdigest()

    def take(self, rows: Many[int]) -> dict[str, pa.Array]:
        """The wire columns of rows."""
        taken = self.columns.take(pa.array(rows, pa.int64()))
        return dict(zip(taken.schema.names, taken.columns, strict=True))


@functools.lru_cache(maxsize=4)
def _features_of(table: LabelTable) -> Mapping[str, Feature]:
    return table.features()


@functools.lru_cache(maxsize=2)
def _annotations(table: LabelTable) -> Annotations:
    read = read_rows if table.of_boxes else read_instances
    return read(table.name, table.load(), table.bad_boxes)


@functools.lru_cache(maxsize=8)
def _has_captions(table: LabelTable) -> bool:
    return holds_captions(table.load())


@functools.lru_cache(maxsize=2)
def _captions(table: LabelTable) -> bytes:
    return read_captions(table.name, table.load())


@functools.lru_cache(maxsize=4)
def _read(table: LabelTable, features_json: str) -> TableRows:
    features = features_from_json(json.loads(features_json))
    if table.has_annotations:
        return _read_annotations(_annotations(table), features)
    if table.has_captions:
        return _read_json(table.name, _captions(table), features)
    read = _read_json if _suffix(table.name) == _JSON_LINES else _read_csv
    columns: dict[str, Feature] = dict(features)
    if table.rows == "list":
        columns = {name: _item_of(table, name, feature) for name, feature in features.items()}
    label = columns.pop(LABEL, None) if table.one_hot else None
    if label is not None:
        columns |= {name: Scalar("float32") for name in table.one_hot}
    rows = read(table.name, table.load(), columns)
    if label is not None:
        rows = _with_label(rows, label, table.one_hot)
    return rows if table.rows == "one" else _as_lists(rows, features)


def _item_of(table: LabelTable, name: str, feature: Feature) -> Feature:
    """The feature of a row that is an item of a list; missing values are found later."""
    if not isinstance(feature, Sequence) or not isinstance(feature.of, Scalar | ClassLabel):
        raise SchemaError(
            f'features= declares {name!r} as {written(feature)}; with rows="list", the columns of '
            f"{table.name} are lists: ss.Sequence(…)."
        )
    return dataclasses.replace(feature.of, optional=True)


def _as_lists(rows: TableRows, features: Features) -> TableRows:
    """The rows of each name as one row of lists, in their order."""
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(rows.names):
        rows_of.setdefault(name, []).append(row)
    taken = rows.columns.take(pa.array(itertools.chain.from_iterable(rows_of.values()), pa.int64()))
    offsets = pa.array([0, *itertools.accumulate(map(len, rows_of.values()))], pa.int64())
    schema = wire_schema(features)
    lists = [
        pa.LargeListArray.from_arrays(offsets, taken.column(field.name)).cast(field.type)
        for field in schema
    ]
    lacking = {
        rows.names[row]: f"a row of {rows.names[row]!r} has no {column!r}"
        for column in schema.names
        for row in np.flatnonzero(rows.columns.column(column).is_null()).tolist()
    }
    return dataclasses.replace(
        rows,
        keys={name: row for row, name in enumerate(rows_of)},
        names=list(rows_of),
        columns=pa.RecordBatch.from_arrays(lists, schema=schema),
        unfit={**rows.unfit, **lacking},
    )


def _with_label(rows: TableRows, label: Feature, one_hot: tuple[str, ...]) -> TableRows:
    """The rows with the name of the column that is 1 as the label; others are invalid."""
    if not isinstance(label, ClassLabel) or not set(map(str.strip, one_hot)) <= set(label.names):
        raise SchemaError(
            f"features= declares {LABEL!r} as {label}; expected a ClassLabel of the columns in "
            f"one_hot=, {', '.join(map(repr, one_hot))}."
        )
    values = np.column_stack([rows.columns.column(name).to_numpy() for name in one_hot])
    is_one = (values == 1).sum(axis=1) == 1
    is_one &= ((values == 0) | (values == 1)).all(axis=1)
    codes = np.array([label.names.index(name.strip()) for name in one_hot])
    kept = [name for name in rows.columns.schema.names if name not in one_hot]
    columns = {name: rows.columns.column(name) for name in kept}
    columns[LABEL] = pa.array(codes[values.argmax(axis=1)], pa.int64())
    schema = pa.schema(
        [*(rows.columns.schema.field(name) for name in kept), wire_schema({LABEL: label}).field(0)]
    )
    unfit = {
        name: f"the row of {name!r} has several 1, or none, in the columns of one_hot="
        for name, fits in zip(rows.names, is_one, strict=True)
        if not fits
    }
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    return dataclasses.replace(rows, columns=batch, unfit={**rows.unfit, **unfit})


def _is_number(feature: Feature | None) -> bool:
    return isinstance(feature, Scalar) and feature.dtype != "string"


def _read_annotations(annotations: Annotations, features: Features) -> TableRows:
    columns, unfit = annotations.columns(features)
    schema = wire_schema(features)
    return TableRows(
        name=annotations.name,
        **_named(annotations.file_names),
        columns=pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema),
        unfit={_normal(annotations.file_names[image]): message for image, message in unfit.items()},
        num_lost=0,
        first_lost="",
        num_others=annotations.num_unknown,
        sizes=annotations.sizes,
        in_pixels=annotations.in_pixels,
    )


def _read_csv(name: str, data: bytes, features: Features) -> TableRows:
    table = _parse_csv(name, data)
    key_column = table.key_column(table.infer())
    wanted = {**features, key_column: Scalar("string")}
    block = Block((FileRange(path=name, sha256="", start=0, stop=len(table.data)),))
    content = _Content(table.data)
    try:
        batches = list(table.source.read(block, features=wanted, opened=content, ordered=[0]))
    except RecipeError as error:
        raise SchemaError(f"The table {name}: {error}") from None
    columns = pa.Table.from_batches([batch.columns for batch in batches]).combine_chunks()
    texts = [text.decode("utf-8", "surrogateescape") for text in columns[key_column].to_pylist()]
    lost = [reject for batch in batches for reject in batch.rejects]
    kept = columns.select(wire_schema(features).names).to_batches()
    empty = pa.RecordBatch.from_pylist([], schema=wire_schema(features))
    return TableRows(
        name=name,
        **_named(texts),
        columns=kept[0] if kept else empty,
        unfit={},
        num_lost=len(lost),
        first_lost=lost[0].message if lost else "",
    )


@dataclasses.dataclass(frozen=True)
class _CsvTable:
    """A CSV or TSV table, whose dialect has been guessed."""

    source: Csv
    data: bytes
    first_row: Many[str]
    has_index: bool
    """Whether the first column has no name."""

    def infer(self, *, label: str | None = None) -> dict[str, Feature]:
        """The features of all columns."""
        file = SourceFile(path=self.source.url, num_bytes=len(self.data), stamp="")
        source = dataclasses.replace(self.source, label=label)
        return dict(source.infer([file], _Content(self.data)))

    def is_index(self, name: str, feature: Feature) -> bool:
        """Whether a column only numbers the rows."""
        return self.has_index and name == _INDEX and getattr(feature, "dtype", "") == "int64"

    def key_column(self, columns: Features) -> str:
        """The column that names the files."""
        names = [name for name, feature in columns.items() if not self.is_index(name, feature)]
        texts = dict(zip(columns, self.first_row, strict=False))
        found = itertools.chain(
            (name for name in KEY_COLUMNS if name in columns),
            (name for name in names if _is_file(texts.get(name, ""))),
            (name for name in names if _FILE_COLUMN.fullmatch(_plain(name))),
            names if len(names) > 1 else columns,
        )
        return next(found)


def csv_source(url: str, head: bytes) -> Csv:
    """The source of a CSV or TSV table, with the dialect that its beginning has."""
    return _parse_csv(url, head).source


def _parse_csv(name: str, data: bytes) -> _CsvTable:
    dialect = sniff(data[:_SNIFFED_BYTES], default=_DELIMITERS[_suffix(name)])
    delimiter, skip = dialect.delimiter, 0
    if _suffix(name) == _TEXT and not dialect.is_table and _are_names_and_words(data):
        encoding = dialect.encoding
        source = Csv(name, delimiter="\t", encoding=encoding, header=False, quote=None, label=None)
        data = _NAME_AND_WORDS.sub(rb"\1\t\2", data.removeprefix(codecs.BOM_UTF8))
        return _CsvTable(source, data, first_row=[], has_index=False)
    if delimiter == WHITESPACE:
        skip = dialect.skip
    elif _suffix(name) == _TEXT and delimiter.encode() not in data.partition(b"\n")[0]:
        delimiter = " "
    data, has_index = _with_named_index(data, delimiter)
    text = data[:_SNIFFED_BYTES].decode(dialect.encoding, "replace").removeprefix("\ufeff")
    lines = itertools.islice(io.StringIO(text, newline=""), skip, None)
    in_blanks = delimiter == WHITESPACE
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE
    split = (
        map(str.split, lines)
        if in_blanks
        else csv.reader(lines, delimiter=delimiter, quoting=quoting)
    )
    try:
        rows = list(itertools.islice(filter(None, split), 2))
    except csv.Error:
        rows = []
    header = has_index or (dialect.header and not _names_a_file(rows))
    source = Csv(
        name,
        delimiter=delimiter,
        encoding=dialect.encoding,
        header=header,
        quote='"' if dialect.quoted else None,
        skip=skip,
        label=None,
    )
    first_row = rows[header] if len(rows) > header else []
    return _CsvTable(source, data, first_row=first_row, has_index=has_index)


def _are_names_and_words(data: bytes) -> bool:
    """Whether lines are an id and words, as transcripts are: ``84-0001 GO``, ``84-0002 DO YOU``.

    All ids are alike up to their digits, and lines have different numbers of words.
    """
    lines = [line for line in data[:_SNIFFED_BYTES].splitlines()[:_MAX_LINES] if line.strip()]
    found = [match for line in lines if (match := _NAME_AND_WORDS.fullmatch(line))]
    if not 2 < len(found) == len(lines) == len({match[1] for match in found}):
        return False
    shapes = {re.sub(rb"[0-9]+", b"0", match[1]) for match in found}
    num_with_letters = sum(bool(re.search(rb"[A-Za-z\x80-\xff]", match[2])) for match in found)
    widths = {len(match[2].split()) for match in found}
    is_of_words = 2 * num_with_letters > len(found) and len(widths) > 1
    return is_of_words and len(shapes) == 1 and b"0" in shapes.pop()


def _with_named_index(data: bytes, delimiter: str) -> tuple[bytes, bool]:
    """The table with a name for its first column, if pandas or R left it without one."""
    mark = b"\xef\xbb\xbf"
    content = data.removeprefix(mark)
    for empty in (b"", b'""'):
        if content.startswith(empty + delimiter.encode()):
            return _INDEX.encode() + content.removeprefix(empty), True
    return data, False


def _names_a_file(rows: Many[Many[str]]) -> bool:
    """Whether the first of two rows names a file, or an id like that of the second."""
    if rows and any(map(_is_file, rows[0])):
        return True
    names = [row[0].strip() for row in rows]
    shapes = [re.sub(r"[0-9]+", "0", name.rpartition("/")[2]) for name in names]
    if len(shapes) < 2 or shapes[0] != shapes[1] or "0" not in shapes[0]:
        return False
    return "/" in names[0] or any(map(str.isalpha, shapes[0]))


def _is_file(text: str) -> bool:
    return text.strip().lower().endswith((*IMAGES, *SOUNDS))


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _read_json(name: str, data: bytes, features: Features) -> TableRows:
    rows, lost = parse_lines(name, data)
    keys = [str(row[_key_column(list(row))]) for row in rows]
    columns, unfit = read_columns(rows, features)
    good = [number for number in range(len(rows)) if number not in unfit]
    return TableRows(
        name=name,
        **_named([keys[number] for number in good]),
        columns=columns,
        unfit={_normal(keys[number]): message for number, message in unfit.items()},
        num_lost=len(lost),
        first_lost=lost[0] if lost else "",
    )


def rows_of_names(name: str, texts: Many[str]) -> TableRows:
    """Rows that only name files, such as those of a list."""
    return TableRows(
        name=name,
        **_named(texts),
        columns=pa.RecordBatch.from_pylist([], schema=pa.schema([])),
        unfit={},
        num_lost=0,
        first_lost="",
    )


def _named(texts: Many[str]) -> dict[str, Any]:
    """The names of rows, and the row of each name."""
    names = [_normal(text) for text in texts]
    rows: dict[str, int] = {}
    for row, name in enumerate(names):
        rows[name] = SEVERAL if name in rows else row
    return {"names": names, "keys": rows}


def _normal(name: str) -> str:
    """A name as a path relative to a root."""
    return name.strip().replace("\\", "/").removeprefix("./").lstrip("/")


def folded_parts(name: str) -> tuple[str, ...]:
    """The parts of a name, without what people write in several ways.

    >>> folded_parts("Images/CAT 1.JPG")
    ('images', 'cat 1')
    """
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    *folders, bare = [part for part in text.split("/") if part not in ("", ".", "..")] or [text]
    stem, dot, end = bare.rpartition(".")
    return (*folders, stem if stem and _SUFFIX.fullmatch(dot + end) else bare)


def _grouped(
    keys: Iterable[tuple[tuple[str, ...], str]],
) -> dict[tuple[str, ...], list[str]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for parts, key in keys:
        groups.setdefault(parts, []).append(key)
    return groups


def _key_column(header: Many[str]) -> str:
    return next((name for name in KEY_COLUMNS if name in header), header[0])


def _suffix(name: str) -> str:
    return "." + name.lower().rpartition(".")[2]


def _stem(name: str) -> str:
    folder, slash, bare = name.rpartition("/")
    return folder + slash + (bare.rpartition(".")[0] or bare)


@dataclasses.dataclass(frozen=True)
class _Content:
    """An OpenSource of a single file in memory."""

    data: bytes
    limits: Limits = dataclasses.field(default_factory=Limits)

    @property
    def filesystem(self) -> Any:
        """None: there are only the bytes."""
        return None

    def full_path(self, path: str) -> str:
        """The path itself."""
        return path

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop)."""
        return self.data[start:stop]

    def hold(self, path: str) -> None:
        """Does nothing: bytes do not change."""

    def open_local(self, path: str) -> io.FileIO:
        """There is no local file.

        Raises:
            FileNotFoundError: always.
        """
        raise FileNotFoundError(path)

    def note(self, paths: Iterable[str]) -> None:
        """Does nothing."""

    def read_side(self, url: str) -> bytes:
        """Raises FileNotFoundError: a table has no side files."""
        raise FileNotFoundError(url)

    def side(self, url: str) -> tuple[OpenSource, str]:
        """Raises FileNotFoundError: a table has no side files."""
        raise FileNotFoundError(url)

    def side_digest(self, url: str) -> str:
        """Raises FileNotFoundError: a table has no side files."""
        raise FileNotFoundError(url)


def parse_lines(name: str, data: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a table, with nested objects flattened, and why other lines are invalid."""
    rows, lost = [], []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = object_without_doubles(line)
            fields = flat_record(row) if isinstance(row, dict) else {}
        except (ValueError, RecursionError) as error:
            lost.append(f"{name} line {number}: not valid JSON ({error})")
            continue
        if not isinstance(row, dict) or not row:
            lost.append(f"{name} line {number}: {reprlib.repr(row)}, expected an object")
            continue
        rows.append(fields)
    return rows, lost


def infer_columns(
    name: str, data: bytes, *, image: str | None, label: str | None
) -> dict[str, Feature]:
    """The features of a table's columns, except the one that names the file.

    Raises:
        SchemaError: if there are no rows, or the values of a column have no common type.
    """
    rows, lost = parse_lines(name, data)
    if not rows:
        why = f" ({lost[0]})" if lost else ""
        raise SchemaError(f"The table {name} has no rows{why}.")
    values: dict[str, list[Any]] = {}
    for row in rows:
        key = _key_column(list(row))
        for column, value in row.items():
            if column != key:
                values.setdefault(column, []).append(value)
    features: dict[str, Feature] = {}
    for column, given in values.items():
        if column == BOXES and image is not None:
            features.update(_box_features(name, given, image))
            continue
        present = [value for value in given if value is not None]
        if present:
            features[column] = _column_feature(
                name,
                column,
                present,
                optional=len(present) < len(rows),
                is_label=column == label,
            )
    try:
        wire_columns(flatten(features)[0])
    except (RecipeError, SchemaError) as error:
        raise SchemaError(f"The table {name}: {error}") from None
    return features


def read_columns(
    rows: Many[Mapping[str, Any]], features: Features
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The wire columns of the valid rows, and why each other row is invalid."""
    has_boxes = isinstance(features.get(BOXES), BoundingBoxes)
    lists: list[dict[str, Lists]] = []
    unfit: dict[int, str] = {}
    for number, row in enumerate(rows):
        try:
            given = {**row, **_boxes(row.get(BOXES), features)} if has_boxes else row
            values = {name: wire_lists(name, f, given.get(name)) for name, f in features.items()}
        except SchemaError as error:
            unfit[number] = str(error)
        else:
            lists.append(values)
    return wire_batch(features, lists), unfit


def _column_feature(
    table: str, column: str, values: list[Any], *, optional: bool, is_label: bool
) -> Feature:
    """The common feature of a column's values; texts of the label are classes.

    Raises:
        SchemaError: if they have no common type.
    """
    remedy = "Fix the table, or leave the column out."
    where = f"The table {table}: "
    feature = value_feature(column, values, optional=optional, where=where, remedy=remedy)
    if not is_label:
        return feature
    if feature == Scalar("string", optional=optional):
        return ClassLabel(tuple(sorted(set(values))), optional=optional)
    if feature == Sequence(Scalar("string"), optional=optional):
        names = {item for value in values for item in value}
        return Sequence(ClassLabel(tuple(sorted(names))), optional=optional)
    return feature


def _box_features(name: str, values: list[Any], image: str) -> dict[str, Feature]:
    labels: set[str] = set()
    num_labelled = num_boxes = 0
    has_crowd = False
    for value in values:
        for box in value if isinstance(value, list) else ():
            num_boxes += 1
            if isinstance(box, dict):
                unknown = sorted(box.keys() - _BOX_KEYS)
                if unknown:
                    raise SchemaError(
                        f"The table {name}: a box has {unknown[0]!r}; expected "
                        f"{{'bbox': [ymin, xmin, ymax, xmax], 'label': 'name', 'crowd': false}}. "
                        "Leave it out, or move it to a separate column."
                    )
                has_crowd = has_crowd or "crowd" in box
                if isinstance(box.get("label"), str):
                    num_labelled += 1
                    labels.add(box["label"])
    class_names = tuple(sorted(labels)) if num_labelled else ()
    return box_features(class_names, {BOX_CROWD} if has_crowd else set(), image)


def _boxes(value: Any, features: Features) -> dict[str, Any]:
    """The columns for the boxes of a row.

    Raises:
        SchemaError: if they are not valid boxes.
    """
    boxes, labels, crowd = [], [], []
    if value is not None and not isinstance(value, list):
        raise SchemaError(f"boxes is {reprlib.repr(value)}, {_FORM}.")
    for box in value or ():
        corners = box.get("bbox") if isinstance(box, dict) else box
        boxes.append(_corners(corners))
        labels.append(box.get("label") if isinstance(box, dict) else None)
        crowd.append(box.get("crowd", False) if isinstance(box, dict) else False)
    if BOX_LABELS not in features:
        return {BOXES: boxes, BOX_CROWD: crowd}
    missing = [number for number, label in enumerate(labels) if not isinstance(label, str)]
    if missing:
        raise SchemaError(f"box {missing[0]} has no label, but other boxes have.")
    return {BOXES: boxes, BOX_LABELS: labels, BOX_CROWD: crowd}


def _corners(value: Any) -> list[float]:
    numbers = (
        isinstance(value, list)
        and len(value) == 4
        and all(isinstance(side, int | float) and not isinstance(side, bool) for side in value)
    )
    if not numbers or not all(-_ROUNDING <= side <= 1 + _ROUNDING for side in value):
        raise SchemaError(f"a box is {reprlib.repr(value)}, {_FORM}.")
    ymin, xmin, ymax, xmax = (min(max(float(side), 0.0), 1.0) for side in value)
    if ymin > ymax or xmin > xmax:
        raise SchemaError(f"a box is {value!r}, whose maximum is less than its minimum; {_FORM}.")
    return [ymin, xmin, ymax, xmax]
