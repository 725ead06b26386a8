"""CSV files as a source: one record a row, typed, with missing values.

A record's id is ``relative/path#offset``: where its row begins in the file, in bytes. Which
texts a cell may hold is told in ``csv_cells``, how columns get their types in ``csv_types``.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import pyarrow as pa

from ...schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ...schemas.config import config_class
from ...schemas.errors import RecipeError, Reject, SchemaError
from ...schemas.features import (
    ClassLabel,
    Dtype,
    Features,
    Image,
    Scalar,
    Tensor,
)
from ...schemas.recipe import OpenSource
from ..runs import wire_schema
from .csv_cells import CellReader
from .csv_rows import Read, Rows, cut_offsets, find_rows
from .csv_table import Table
from .csv_types import ColumnTypes, Header, check_names, class_label, override, read_header

CUT_BYTES = 32 << 20
"""A large file may be cut about every so many bytes."""
INFER_ALL_BYTES = 256 << 20
"""Up to so many bytes in all, types are told from every row; above, from a sample."""
MAX_SAMPLES = 64
"""Windows of rows in a sample, each of about 4 MiB."""

NULL_VALUES = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")

_DELIMITER = re.compile(r"[\t !#-/:-@\[-`{-~]")
# The suffix that a glob ends with: "*.txt", "part-*.tsv".
_GLOB_SUFFIX = re.compile(r"[*?\]](?:.*)(\.[a-z0-9]+)$")
_DTYPES: tuple[str, ...] = get_args(Dtype)


@config_class
class Csv:
    """Rows of CSV files: RFC 4180, UTF-8, a header in each file.

    Attributes:
        url: A file, a folder (its ``.csv`` files, at any depth), a glob, or any fsspec URL.
        label: The column to predict. Strings and bools become a ClassLabel; numbers stay.
        types: Types in place of inferred ones: ``{"age": "float32"}``, or a feature such as
            ``ss.Scalar("float32", optional=True)`` or ``ss.ClassLabel(("no", "yes"))``.
        delimiter: One ASCII character between cells.
        null_values: Texts that mean a missing value, in every column, quoted or not.
    """

    url: str
    label: str | None = None
    types: Mapping[str, Any] | None = None
    delimiter: str = ","
    null_values: tuple[str, ...] = NULL_VALUES

    def __post_init__(self) -> None:
        """Checks the types and the delimiter."""
        if not _DELIMITER.fullmatch(self.delimiter):
            raise ValueError(
                f"delimiter={self.delimiter!r}, expected one ASCII character other than a quote, a "
                "letter or a digit"
            )
        for name, wanted in (self.types or {}).items():
            if isinstance(wanted, Image | Tensor) or not (
                isinstance(wanted, ClassLabel | Scalar) or wanted in _DTYPES
            ):
                raise ValueError(
                    f"types: {name!r} is {wanted!r}, expected one of {', '.join(_DTYPES)}, "
                    "or ss.Scalar(…), or ss.ClassLabel(…)"
                )

    @property
    def media(self) -> bool:
        """Rows are no media: none may be rejected by default."""
        return False

    @property
    def numbered(self) -> bool:
        """A file holds many records."""
        return True

    @property
    def side_urls(self) -> tuple[str, ...]:
        """None: a table is all there is."""
        return ()

    def settings(self) -> dict[str, object]:
        """What shapes the records, as plain JSON."""
        return {
            "delimiter": self.delimiter,
            "label": self.label,
            "null_values": sorted(self.null_values),
        }

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Takes ``.csv`` files, those of a glob's own suffix, and a single file as it is."""
        last = self.url.partition("::")[0].rpartition("/")[2]
        if len(files) == 1 and files[0].path == last.partition("?")[0]:
            return Selection(files=tuple(files), num_skipped={})
        suffixes = (".csv", *_GLOB_SUFFIX.findall(last.lower()))
        selected, skipped = [], Counter[str]()
        for file in files:
            if any(part.startswith(".") for part in file.path.split("/")):
                skipped["dot-file"] += 1
            elif file.path.lower().endswith(suffixes):
                selected.append(file)
            else:
                skipped["not a .csv file"] += 1
        return Selection(files=tuple(selected), num_skipped=dict(sorted(skipped.items())))

    def cuts(self, file: SourceFile, opened: OpenSource) -> tuple[int, ...]:
        """Row starts about every 32 MiB of a file larger than that, never inside quotes."""
        if file.problem or file.num_bytes <= CUT_BYTES + CUT_BYTES // 2:
            return ()
        read = _reader(opened, file.path)
        header = self._header(read, file.path, file.num_bytes)
        start = header.stop if header else 0
        offsets = cut_offsets(
            read, start, file.num_bytes, delimiter=self.delimiter, every=CUT_BYTES
        )
        return tuple(offsets)

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the rows, from all of them up to 256 MiB, else from a sample.

        Raises:
            SchemaError: if a header is missing, differs, or names a column twice or not at all.
            RecipeError: if ``label`` or ``types`` name a column that is not there.
        """
        tables = self._tables(files, opened)
        names = tables[0][1].header
        self._check_columns(names)
        seen = ColumnTypes.of(names)
        if sum(file.num_bytes for file, _, _ in tables) <= INFER_ALL_BYTES:
            windows = self._windows(tables, opened)
        else:
            windows = self._samples(tables, opened)
        for table, rows in windows:
            seen.add(table, rows)
        if not seen.num_rows:
            raise SchemaError(
                f"{self.url} holds a header and no whole row, so its columns have no types. Is it "
                "the right file?"
            )
        features = override(seen.features(), self.types or {})
        label = features.get(self.label) if self.label is not None else None
        declared = isinstance((self.types or {}).get(self.label or ""), ClassLabel | Scalar)
        if isinstance(label, Scalar) and label.dtype in ("string", "bool") and not declared:
            # A class that a sample does not show would be rejected later: this reads every row.
            classes = class_label(self._windows(tables, opened), self.label or "")
            if classes is not None:
                features[self.label or ""] = classes
        return features

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads the rows of a block's ranges; ids are ``path#offset``.

        Raises:
            SchemaError: if a file lacks the column of a feature.
        """
        for index in ordered:
            part = block.ranges[index]
            if part.problem:
                yield _no_rows(features, _unreadable(part))
                continue
            read = _reader(opened, part.path)
            header = self._header(read, part.path, part.stop)
            if header is None:
                yield _no_rows(features, _empty(part))
                continue
            table = self._table(part.path, header)
            self._check_features(table, features)
            cells = CellReader(table, features)
            start = max(part.start, header.stop)
            for rows in find_rows(read, start, part.stop, delimiter=self.delimiter):
                yield from cells.read(rows)

    def _header(self, read: Read, path: str, num_bytes: int) -> Header | None:
        return read_header(read, num_bytes, path=path, delimiter=self.delimiter)

    def _table(self, path: str, header: Header) -> Table:
        return Table(
            path=path,
            header=header.names,
            delimiter=self.delimiter,
            null_values=self.null_values,
        )

    def _tables(
        self, files: Sequence[SourceFile], opened: OpenSource
    ) -> list[tuple[SourceFile, Table, Header]]:
        """The files that have a header, which must be the same in all but for the order."""
        found: list[tuple[SourceFile, Table, Header]] = []
        for file in files:
            if file.problem:
                continue
            header = self._header(_reader(opened, file.path), file.path, file.num_bytes)
            if header is None:
                continue
            check_names(header.names, path=file.path)
            if found and set(header.names) != set(found[0][1].header):
                first = found[0][1]
                lacks = sorted(set(first.header) - set(header.names))
                more = sorted(set(header.names) - set(first.header))
                raise SchemaError(
                    f"{file.path} has other columns than {first.path}: it lacks {lacks}, and has "
                    f"{more} besides. Give all files the same header, or read them as two sources."
                )
            found.append((file, self._table(file.path, header), header))
        if not found:
            raise SchemaError(f"{self.url} has no CSV file with a header line.")
        return found

    def _check_columns(self, names: Sequence[str]) -> None:
        wanted = {name: "types" for name in self.types or {}}
        if self.label is not None:
            wanted[self.label] = "label"
        for name, argument in wanted.items():
            if name not in names:
                hint = ""
                if len(names) == 1:
                    hint = f" Is delimiter={self.delimiter!r} right?"
                raise RecipeError(
                    f"Csv: {argument} names {name!r}, which is no column. The columns are "
                    f"{', '.join(map(repr, names))}.{hint}"
                )

    def _check_features(self, table: Table, features: Features) -> None:
        for name, feature in features.items():
            if not isinstance(feature, ClassLabel | Scalar):
                raise SchemaError(
                    f"features= declares {name!r} as {feature}; a cell of a CSV file holds a "
                    "Scalar or a ClassLabel."
                )
            found = table.header.count(name)
            if found != 1:
                raise SchemaError(
                    f"{table.path} has {found or 'no'} columns {name!r}, expected one. Its columns "
                    f"are {', '.join(map(repr, table.header))}."
                )

    def _windows(
        self, tables: Sequence[tuple[SourceFile, Table, Header]], opened: OpenSource
    ) -> Iterator[tuple[Table, Rows]]:
        """All rows of all files."""
        for file, table, header in tables:
            read = _reader(opened, file.path)
            found = find_rows(read, header.stop, file.num_bytes, delimiter=self.delimiter)
            yield from ((table, rows) for rows in found)

    def _samples(
        self, tables: Sequence[tuple[SourceFile, Table, Header]], opened: OpenSource
    ) -> Iterator[tuple[Table, Rows]]:
        """A window of rows at the head of the first file, and at places at equal distances."""
        places = [
            (file, table, start)
            for file, table, header in tables
            for start in (header.stop, *self.cuts(file, opened))
        ]
        for file, table, start in places[:: -(-len(places) // MAX_SAMPLES)]:
            read = _reader(opened, file.path)
            found = find_rows(read, start, file.num_bytes, delimiter=self.delimiter)
            yield from ((table, rows) for rows in itertools.islice(found, 1))


def _reader(opened: OpenSource, path: str) -> Read:
    return lambda start, stop: opened.read(path, start, stop)


def _no_rows(features: Features, reject: Reject) -> RawBatch:
    empty = pa.RecordBatch.from_pylist([], schema=wire_schema(features))
    return RawBatch(ids=[], columns=empty, rejects=(reject,))


def _unreadable(part: FileRange) -> Reject:
    return Reject(
        record_id=part.path,
        stage="inventory",
        reason=part.problem,
        message=f"{part.path} cannot be read: {part.problem}",
        source=part.path,
    )


def _empty(part: FileRange) -> Reject:
    return Reject(
        record_id=part.path,
        stage="read",
        reason="empty file",
        message=f"{part.path} is empty, expected a header line. Remove it from the source.",
        source=part.path,
    )
