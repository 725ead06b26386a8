"""Side tables: features of files, from a CSV, TSV or JSON Lines file, or COCO's JSON (``coco``).

The first existing column of ``file``, ``file_name``, ``filename``, ``path`` and ``image``, else the
first column, names the file of a row: by its path below the source's root or by its bare name, with
or without the suffix. Every other column is a feature. CSV and TSV are typed like ``ss.Csv``, JSON
Lines as follows:

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

import collections
import dataclasses
import functools
import hashlib
import io
import json
import reprlib
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....schemas.blocks import Block, FileRange, SourceFile
from ....schemas.errors import DataError, RecipeError, SchemaError
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
)
from ....schemas.limits import Limits
from ....schemas.recipe import OpenSource
from ...runs.files import wire_schema
from ..csv.source import Csv
from ..json.values import object_without_doubles
from ..python_values import Lists, flat_record, value_feature, wire_batch, wire_lists
from .annotations.coco import read_instances
from .annotations.model import BOX_CROWD, BOX_LABELS, BOXES, Annotations, BadBoxes, box_features
from .annotations.rows import read_rows

KEY_COLUMNS = ("file", "file_name", "filename", "path", "image")
"""Names of the column that names the file."""

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON_LINES = ".jsonl"
_COCO = ".json"

_BOX_KEYS = frozenset({"bbox", "label", "crowd"})
_ROUNDING = 1e-6
_FORM = (
    "expected [ymin, xmin, ymax, xmax] as fractions of the image's height and width, 0 to 1. "
    "Divide pixels by the image's size"
)


class UnlabelledError(ValueError):
    """A file has no features besides its content, with a reason to group by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


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
        of_boxes: Whether each row of a CSV or TSV is a box of an image.
        bad_boxes: What becomes of an image with boxes outside of it or without area.
    """

    name: str
    data: bytes | Callable[[], bytes] = dataclasses.field(repr=False, compare=False)
    sha256: str = ""
    image: str | None = None
    label: str | None = "label"
    of_boxes: bool = False
    bad_boxes: BadBoxes = "reject"

    def __post_init__(self) -> None:
        """Computes the digest."""
        if not self.sha256:
            object.__setattr__(self, "sha256", hashlib.sha256(self.load()).hexdigest())

    @property
    def has_annotations(self) -> bool:
        """Whether it is read as annotations of images, not as rows of columns."""
        return self.of_boxes or _suffix(self.name) == _COCO

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
        features = dict(_features_of(self))
        rows = self.read(features)
        named: collections.Counter[str] = collections.Counter()
        for names in paths:
            key = rows.key(names)
            if key is not None:
                named[key] += 1
        if not named:
            first = next(iter(rows.keys), "")
            raise DataError(
                f"The table {self.name} names none of the {len(paths):,} files; its first row is "
                f"for {first!r}, the first file is {paths[0][0] if paths else ''!r}. Name files by "
                "their paths below the source, or by their bare names, in a column named "
                f"{', '.join(KEY_COLUMNS)}, or in the first column."
            )
        double = sorted(key for key, count in named.items() if count > 1)
        if double:
            raise DataError(
                f"The table {self.name} names {double[0]!r}, which matches {named[double[0]]:,} "
                f"files ({len(double):,} such names). Name files by their paths below the source."
            )
        return features

    def read(self, features: Features) -> TableRows:
        """Reads the rows of the table as these features.

        Raises:
            SchemaError: if a feature is not a column of the table, or has an unsupported type.
        """
        return _read(self, json.dumps(features_to_json(features)))

    def num_unused(self, paths: Many[tuple[str, ...]]) -> int:
        """The number of names that match none of the files; ``paths`` as in :meth:`infer`.

        Raises:
            SchemaError: if it is not a valid table.
        """
        rows = self.read(_features_of(self))
        named = {rows.key(names) for names in paths}
        return len((rows.keys.keys() | rows.unfit.keys()) - named) + rows.num_others

    def features(self) -> dict[str, Feature]:
        """The features of its columns.

        Raises:
            SchemaError: if it is not a valid table.
        """
        if self.has_annotations:
            assert self.image is not None
            return _annotations(self).features(self.image)
        data = self.load()
        if _suffix(self.name) == _JSON_LINES:
            return infer_columns(self.name, data, image=self.image, label=self.label)
        source = _csv_source(self.name)
        inferred = self._infer_csv(source, data)
        name = self.label
        label = None if name is None else inferred.get(name)
        if name is not None and isinstance(label, Scalar) and label.dtype in ("string", "bool"):
            inferred = self._infer_csv(dataclasses.replace(source, label=name), data)
            named = inferred[name]
            if label.optional and isinstance(named, ClassLabel):
                inferred[name] = dataclasses.replace(named, optional=True)
        del inferred[_key_column(list(inferred))]
        if not inferred:
            raise SchemaError(f"The table {self.name} has no columns besides the file names.")
        return inferred

    def _infer_csv(self, source: Csv, data: bytes) -> dict[str, Feature]:
        file = SourceFile(path=self.name, num_bytes=len(data), stamp="")
        return dict(source.infer([file], _Content(data)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRows:
    """The rows of a side table, as wire columns of features."""

    name: str
    keys: Mapping[str, int]
    """Name -> row; -1 if several rows have the name."""
    columns: pa.RecordBatch
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
        """The name in the table of a file with these paths; None if it has no row."""
        path = names[-1]
        bare = path.rpartition("/")[2]
        stems = [_stem(name) for name in (*names, bare)]
        for name in (*names, bare, *stems):
            if name in self.keys or name in self.unfit:
                return name
        return None

    def find(self, names: Many[str]) -> int:
        """The row of a file.

        Raises:
            UnlabelledError: if there is none, or it is invalid.
        """
        key = self.key(names)
        if key is None:
            lost = ""
            if self.num_lost:
                lost = f" ({self.num_lost:,} of its rows cannot be read: {self.first_lost})"
            raise UnlabelledError(
                "no row in the table", f"{self.name} has no row for {names[-1]!r}{lost}"
            )
        if key in self.unfit:
            raise UnlabelledError("unfit row in the table", f"{self.name}: {self.unfit[key]}")
        row = self.keys[key]
        if row < 0:
            raise UnlabelledError(
                "several rows in the table", f"{self.name} has several rows for {key!r}"
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


@functools.lru_cache(maxsize=4)
def _read(table: LabelTable, features_json: str) -> TableRows:
    features = features_from_json(json.loads(features_json))
    if table.has_annotations:
        return _read_annotations(_annotations(table), features)
    read = _read_json if _suffix(table.name) == _JSON_LINES else _read_csv
    return read(table.name, table.load(), features)


def _read_annotations(annotations: Annotations, features: Features) -> TableRows:
    columns, unfit = annotations.columns(features)
    schema = wire_schema(features)
    return TableRows(
        name=annotations.name,
        keys=_rows_by_name(annotations.file_names),
        columns=pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema),
        unfit={_normal(annotations.file_names[image]): message for image, message in unfit.items()},
        num_lost=0,
        first_lost="",
        num_others=annotations.num_unknown,
        sizes=annotations.sizes,
        in_pixels=annotations.in_pixels,
    )


def _read_csv(name: str, data: bytes, features: Features) -> TableRows:
    source = _csv_source(name)
    file = SourceFile(path=name, num_bytes=len(data), stamp="")
    header = list(source.infer([file], _Content(data)))
    key_column = _key_column(header)
    wanted = {**features, key_column: Scalar("string")}
    block = Block((FileRange(path=name, sha256="", start=0, stop=len(data)),))
    try:
        batches = list(source.read(block, features=wanted, opened=_Content(data), ordered=[0]))
    except RecipeError as error:
        raise SchemaError(f"The table {name}: {error}") from None
    columns = pa.Table.from_batches([batch.columns for batch in batches]).combine_chunks()
    texts = [text.decode("utf-8", "surrogateescape") for text in columns[key_column].to_pylist()]
    lost = [reject for batch in batches for reject in batch.rejects]
    kept = columns.select(wire_schema(features).names).to_batches()
    empty = pa.RecordBatch.from_pylist([], schema=wire_schema(features))
    return TableRows(
        name=name,
        keys=_rows_by_name(texts),
        columns=kept[0] if kept else empty,
        unfit={},
        num_lost=len(lost),
        first_lost=lost[0].message if lost else "",
    )


def _csv_source(name: str) -> Csv:
    return Csv(name, delimiter=_DELIMITERS[_suffix(name)])


def _read_json(name: str, data: bytes, features: Features) -> TableRows:
    rows, lost = parse_lines(name, data)
    keys = [str(row[_key_column(list(row))]) for row in rows]
    columns, unfit = read_columns(rows, features)
    good = [number for number in range(len(rows)) if number not in unfit]
    return TableRows(
        name=name,
        keys=_rows_by_name([keys[number] for number in good]),
        columns=columns,
        unfit={_normal(keys[number]): message for number, message in unfit.items()},
        num_lost=len(lost),
        first_lost=lost[0] if lost else "",
    )


def _rows_by_name(names: Many[str]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for row, name in enumerate(names):
        key = _normal(name)
        rows[key] = -1 if key in rows else row
    return rows


def _normal(name: str) -> str:
    """A name as a path relative to a root."""
    return name.strip().replace("\\", "/").removeprefix("./").lstrip("/")


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
    if not features:
        raise SchemaError(f"The table {name} has no columns besides the file names.")
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
