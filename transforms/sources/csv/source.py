"""The CSV source: each row of a CSV or TSV file is a typed record, with missing values.

A record's id is ``relative/path#offset``, the byte offset of its row in the file. For files that
are compressed or not UTF-8, the offset counts bytes of the decompressed text as UTF-8. ``cells``
documents the valid texts of a cell, ``types`` how column types are inferred.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

from ....schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ....schemas.config import config_class
from ....schemas.errors import SchemaError
from ....schemas.features import Dtype, Features
from ....schemas.recipe import OpenSource
from ...storage.decompress import DamagedError
from ..table_files import (
    INFER_ALL_BYTES,
    UNION,
    check_columns,
    class_of,
    damaged_text,
    empty_file,
    may_be_class,
    no_rows,
    read_ranges,
    select_files,
    types_to_json,
    with_types,
)
from ..text_stream import codec_name
from .cells import CellFeature, CellReader, read_together
from .files import SUFFIXES, CsvFiles, Dialect
from .rows import SmallTable, Table, find_rows
from .types import ColumnTypes

NULL_VALUES = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")

_DELIMITER = re.compile(r"[\t !#-/:-@\[-`{-~]")
_DTYPES: tuple[str, ...] = get_args(Dtype)


@config_class
class Csv:
    """Rows of CSV and TSV files: RFC 4180 quoting, any line ending.

    Files may be compressed with GZIP, Zstandard, bzip2 or xz, which is detected from their content.
    A file that is compressed or not UTF-8 is one block, whatever its size; others are cut into
    ranges.

    Attributes:
        url: A file, a folder (its ``.csv`` and ``.tsv`` files at any depth, including compressed
            ones), a glob, or any fsspec URL.
        label: The column to predict. Strings and bools become a ClassLabel; numbers are kept.
        types: Overrides inferred types: ``{"age": "float32"}``, or a feature such as
            ``ss.Scalar("float32", optional=True)``, ``ss.ClassLabel(("no", "yes"))``,
            ``ss.Text()`` or ``ss.Timestamp("s")``, which reads ISO 8601.
        delimiter: One ASCII character. None: a tab in ``.tsv`` files, a comma in others.
        null_values: Texts that stand for a missing value in every column, quoted or not.
        encoding: Python's name of the files' encoding: ``latin-1``, ``cp1252``, ``shift_jis`` ….
            Not needed for files that begin with the byte order mark of UTF-16 or UTF-32.
        header: Whether the first row of each file names the columns. If not, they are named
            ``column_0``, ``column_1`` ….
        columns: Column names, for files without a header. Or ``"union"``, for files with different
            columns: all of them; one that a file lacks is a missing value in its rows.
    """

    url: str
    label: str | None = None
    types: Mapping[str, Any] | None = None
    delimiter: str | None = None
    null_values: tuple[str, ...] = NULL_VALUES
    encoding: str = "utf-8"
    header: bool = True
    columns: tuple[str, ...] | Literal["union"] = ()
    media = False
    numbered = True
    side_urls: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Checks types, delimiter, encoding and columns."""
        if self.delimiter is not None and not _DELIMITER.fullmatch(self.delimiter):
            raise ValueError(
                f"delimiter={self.delimiter!r}, expected one ASCII character other than a quote, a "
                "letter or a digit"
            )
        codec_name(self.encoding)
        names = () if self.columns == UNION else self.columns
        if len(set(names)) < len(names) or not all(map(str.strip, names)):
            raise ValueError(f"columns={names!r}, expected unique, non-empty names")
        for name, wanted in (self.types or {}).items():
            if not isinstance(wanted, CellFeature) and wanted not in _DTYPES:
                raise ValueError(
                    f"types: {name!r} is {wanted!r}, expected one of {', '.join(_DTYPES)}, "
                    "or ss.Scalar(…), ss.ClassLabel(…), ss.Text(…) or ss.Timestamp(…)"
                )

    def settings(self) -> dict[str, object]:
        """The settings that determine the records and their inferred features, as plain JSON."""
        dialect = self._dialect()
        return {
            "columns": UNION if dialect.union else list(dialect.columns),
            "delimiter": dialect.delimiter,
            "encoding": dialect.encoding,
            "header": dialect.header,
            "label": self.label,
            "null_values": sorted(dialect.null_values),
            "types": types_to_json(self.types),
        }

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects CSV and TSV files, files with a glob's suffix, or a single file of any name."""
        return select_files(
            self.url, files, suffixes=SUFFIXES, what="a .csv or .tsv file", underscores=True
        )

    def cuts(self, file: SourceFile, opened: OpenSource) -> tuple[int, ...]:
        """Offsets of rows at which to cut a large file, never in quotes.

        A compressed file, or one that is not UTF-8, cannot be cut.
        """
        return tuple(CsvFiles(self._dialect(), opened).cuts(file))

    def head_bytes(self, file: SourceFile, opened: OpenSource) -> int:
        """Size of the header: its names, and their order, determine every row."""
        return CsvFiles(self._dialect(), opened).header_bytes(file)

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the rows, inferred from all rows up to 256 MiB, else from a sample.

        Raises:
            SchemaError: if a header is missing, differs, or has a duplicate or empty name.
            RecipeError: if ``label`` or ``types`` name a column that does not exist.
        """
        found = CsvFiles(self._dialect(), opened)
        tables = found.tables(files)
        first = tables[0].table
        hint = f" Is delimiter={first.delimiter!r} right?" if len(first.header) == 1 else ""
        names = dict.fromkeys(name for each in tables for name in each.table.header)
        check_columns("Csv", names, label=self.label, types=self.types, hint=hint)
        seen = ColumnTypes.of(names)
        num_tables = Counter(name for each in tables for name in each.table.header)
        seen.optional = [num_tables[name] < len(tables) for name in names]
        num_bytes = sum(each.file.num_bytes for each in tables)
        for types in found.types(tables, sample=num_bytes > INFER_ALL_BYTES):
            seen.merge(types)
        if not seen.num_rows:
            what = "a header and no complete row" if self._dialect().header else "no complete row"
            raise SchemaError(
                f"{first.path} has {what}, so column types cannot be inferred. Is it the right "
                "file?"
            )
        features = with_types(seen.features(), self.types)
        label = self.label
        if label is not None and may_be_class(features[label], (self.types or {}).get(label)):
            # A class missing from a sample would be rejected later, so this reads every row.
            features[label] = class_of(found.class_texts(tables, label)) or features[label]
        return features

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads the rows of a block's ranges; ids are ``path#offset``.

        Raises:
            SchemaError: if a file lacks the column of a feature.
        """
        found = CsvFiles(self._dialect(), opened)

        def together(files: Sequence[SmallTable]) -> RawBatch | None:
            self._check_features(files[0].table, features)
            return read_together(files, features)

        def read_small(file: SmallTable) -> Iterator[RawBatch]:
            self._check_features(file.table, features)
            cells = CellReader(file.table, features)
            for rows in file.windows:
                yield from cells.read(rows)

        return read_ranges(
            block,
            ordered,
            features=features,
            read=lambda part: self._read_part(part, features, opened),
            small=found.small,
            together=together,
            read_small=read_small,
            may_be_empty=True,  # _read_part finds out: a file of blank lines is empty too
        )

    def _read_part(
        self, part: FileRange, features: Features, opened: OpenSource
    ) -> Iterator[RawBatch]:
        dialect = self._dialect()
        text = CsvFiles(dialect, opened).open(part.path, part.stop)
        done = 0
        try:
            header = dialect.read_header(text, part.path)
            if header is None:
                yield no_rows(features, empty_file(part))
                return
            done = header.stop
            table = dialect.table(part.path, header.names, plain=text.plain)
            self._check_features(table, features)
            cells = CellReader(table, features)
            start = max(part.start, header.stop)
            for rows in find_rows(
                text.read,
                start,
                text.stop,
                delimiter=table.delimiter,
                max_row_bytes=text.max_row_bytes,
            ):
                yield from cells.read(rows)
                done = rows.offset + len(rows.data)
        except DamagedError as error:
            yield no_rows(features, damaged_text(part, error, done, records="rows"))

    def _dialect(self) -> Dialect:
        return Dialect(
            delimiter=self.delimiter,
            null_values=self.null_values,
            encoding=codec_name(self.encoding),
            header=self.header and self.columns in ((), UNION),
            columns=() if isinstance(self.columns, str) else self.columns,
            union=isinstance(self.columns, str),
        )

    def _check_features(self, table: Table, features: Features) -> None:
        num_columns = Counter(table.header)
        for name, feature in features.items():
            if not isinstance(feature, CellFeature):
                raise SchemaError(
                    f"features= declares {name!r} as {feature}; a CSV column can be a Scalar, "
                    "ClassLabel, Text or Timestamp."
                )
            found = num_columns[name]
            if found != 1 and not (found == 0 and self.columns == UNION):
                raise SchemaError(
                    f"{table.path} has {found or 'no'} columns named {name!r}, expected one. Its "
                    f"columns are {', '.join(map(repr, table.header))}."
                )
