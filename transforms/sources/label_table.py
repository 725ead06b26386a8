"""Side tables: the features of files in a CSV, TSV or JSON Lines file beside them.

A row belongs to the file that its column ``file``, ``file_name``, ``filename``, ``path`` or
``image`` names, the first of these that there is, else its first column: by the path below the
source's root, or by the bare name; without the suffix, too. Every other column is a feature, typed
as ``ss.Csv`` types it, and in JSON Lines as ``label_json`` does.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import json
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from typing import Any

import pyarrow as pa

from ...schemas.blocks import Block, FileRange, SourceFile
from ...schemas.errors import DataError, RecipeError, SchemaError
from ...schemas.features import (
    ClassLabel,
    Feature,
    Features,
    Scalar,
    features_from_json,
    features_to_json,
)
from ...schemas.limits import Limits
from ...schemas.recipe import OpenSource
from ..runs.files import wire_schema
from .csv.source import Csv
from .label_json import infer_columns, key_of, parse_lines, read_columns

KEY_COLUMNS = ("file", "file_name", "filename", "path", "image")
"""What the column that names the file is called."""

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON_LINES = ".jsonl"


class UnlabelledError(ValueError):
    """A file has no features beside its content, with a reason to group by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def is_table(url: str) -> bool:
    """Whether a URL's name says that it is a table which can be read."""
    return _suffix(url.partition("::")[0].partition("?")[0]) in (*_DELIMITERS, _JSON_LINES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelTable:
    """A side table's content.

    Attributes:
        name: The file's name, which tells its format.
        data: Its bytes.
        image: The image feature that a column ``boxes`` of JSON Lines belongs to, if any.
    """

    name: str
    data: bytes = dataclasses.field(repr=False)
    image: str | None = None

    def infer(self, paths: Many[tuple[str, ...]]) -> dict[str, Feature]:
        """The features of the table's columns.

        Args:
            paths: For each file what it may be named by: its path, that without its split.

        Raises:
            DataError: if it names no file, or some of its names stand for several files.
            SchemaError: if it cannot be read as a table.
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
                f"their paths below the source, or by their bare names, in a column called "
                f"{', '.join(KEY_COLUMNS)}, or the first one."
            )
        double = sorted(key for key, count in named.items() if count > 1)
        if double:
            raise DataError(
                f"The table {self.name} names {double[0]!r}, and {named[double[0]]:,} files are "
                f"called so ({len(double):,} such names). Name them by their paths below the "
                "source."
            )
        return features

    def read(self, features: Features) -> TableRows:
        """Reads the table's rows as these features.

        Raises:
            SchemaError: if a feature is none of its columns, or none that a cell can become.
        """
        return _read(self.name, self.data, json.dumps(features_to_json(features)))

    def num_unused(self, paths: Many[tuple[str, ...]]) -> int:
        """How many names in the table stand for none of the files; ``paths`` as in :meth:`infer`.

        Raises:
            SchemaError: if it cannot be read as a table.
        """
        rows = self.read(_features_of(self))
        return len((rows.keys.keys() | rows.unfit.keys()) - {rows.key(names) for names in paths})

    def features(self) -> dict[str, Feature]:
        """The features of its columns.

        Raises:
            SchemaError: if it cannot be read as a table.
        """
        if _suffix(self.name) == _JSON_LINES:
            return infer_columns(self.name, self.data, image=self.image, keys=KEY_COLUMNS)
        found = self._infer_csv(Csv(self.name, delimiter=_DELIMITERS[_suffix(self.name)]))
        label = found.get("label")
        if isinstance(label, Scalar) and label.dtype in ("string", "bool"):
            delimiter = _DELIMITERS[_suffix(self.name)]
            found = self._infer_csv(Csv(self.name, delimiter=delimiter, label="label"))
            if label.optional and isinstance(found["label"], ClassLabel):
                found["label"] = dataclasses.replace(found["label"], optional=True)
        del found[_key_column(list(found))]
        if not found:
            raise SchemaError(f"The table {self.name} has no column but the files' names.")
        return found

    def _infer_csv(self, source: Csv) -> dict[str, Feature]:
        file = SourceFile(path=self.name, num_bytes=len(self.data), stamp="")
        return dict(source.infer([file], _Content(self.data)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRows:
    """The rows of a side table, in the wire columns of features."""

    name: str
    keys: Mapping[str, int]
    """Row of each name; -1 where several rows have it."""
    columns: pa.RecordBatch
    unfit: Mapping[str, str]
    """Why the row of a name cannot be used."""
    num_lost: int
    """Rows that cannot be read at all."""
    first_lost: str

    def key(self, names: Many[str]) -> str | None:
        """What the table calls a file of these paths; None where it has no row."""
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
            UnlabelledError: if there is none, or it cannot be used.
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

    def take(self, rows: Many[int]) -> dict[str, pa.Array]:
        """The wire columns of rows."""
        taken = self.columns.take(pa.array(rows, pa.int64()))
        return dict(zip(taken.schema.names, taken.columns, strict=True))


@functools.lru_cache(maxsize=4)
def _features_of(table: LabelTable) -> Mapping[str, Feature]:
    return table.features()


@functools.lru_cache(maxsize=4)
def _read(name: str, data: bytes, features_json: str) -> TableRows:
    """Reads a table once for all blocks that a process prepares."""
    features = features_from_json(json.loads(features_json))
    read = _read_json if _suffix(name) == _JSON_LINES else _read_csv
    return read(name, data, features)


def _read_csv(name: str, data: bytes, features: Features) -> TableRows:
    source = Csv(name, delimiter=_DELIMITERS[_suffix(name)])
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


def _read_json(name: str, data: bytes, features: Features) -> TableRows:
    rows, lost = parse_lines(name, data)
    keys = [key_of(row, KEY_COLUMNS) for row in rows]
    columns, unfit = read_columns(rows, features)
    good = [number for number in range(len(rows)) if number not in unfit]
    by_name = _rows_by_name([keys[number] for number in good])
    return TableRows(
        name=name,
        keys=by_name,
        columns=columns,
        unfit={_normal(keys[number]): message for number, message in unfit.items()},
        num_lost=len(lost),
        first_lost=lost[0] if lost else "",
    )


def _rows_by_name(names: Many[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row, name in enumerate(names):
        key = _normal(name)
        found[key] = -1 if key in found else row
    return found


def _normal(name: str) -> str:
    """A name as paths are written below a root."""
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
    """The bytes of one file as the source that a table is read from."""

    data: bytes
    limits: Limits = dataclasses.field(default_factory=Limits)

    @property
    def filesystem(self) -> Any:
        """None: there is nothing but the bytes."""
        return None

    def full_path(self, path: str) -> str:
        """The name itself."""
        return path

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop)."""
        return self.data[start:stop]

    def hold(self, path: str) -> None:
        """Bytes do not change."""

    def open_local(self, path: str) -> io.FileIO:
        """There is no such file.

        Raises:
            FileNotFoundError: always.
        """
        raise FileNotFoundError(path)

    def note(self, paths: Iterable[str]) -> None:
        """Nor do several."""

    def read_side(self, url: str) -> bytes:
        """A table has no table."""
        raise FileNotFoundError(url)

    def side(self, url: str) -> tuple[OpenSource, str]:
        """Nor anything else beside it."""
        raise FileNotFoundError(url)
