"""The CSV source: each row of a CSV or TSV file is a typed record, with missing values.

A record's id is ``relative/path#offset``, the byte offset of its row in the file. For files that
are compressed or not UTF-8, the offset counts bytes of the decompressed text as UTF-8. ``cells``
documents the valid texts of a cell, ``types`` how column types are inferred. The columns and types
of each file are cached between builds.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from ....schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ....schemas.config import config_class
from ....schemas.errors import SchemaError
from ....schemas.features import Dtype, Features, Tensor, written
from ....schemas.features import Sequence as Sequence_
from ....schemas.limits import too_many_columns
from ....schemas.manifest import MAX_LABELS
from ....schemas.recipe import OpenSource
from ...storage.decompress import DamagedError
from ..arrow.hive import infer_with_folders, read_with_folders
from ..blocks import cut_spacing
from ..bundles import bundles, content_of, read_bundle, remembered, small_windows
from ..table_files import (
    COPY_AGAIN,
    INFER_ALL_BYTES,
    READ_UNION,
    UNION,
    check_columns,
    damaged_text,
    empty_file,
    first_damage,
    no_rows,
    other_columns,
    read_ranges,
    select_files,
    types_to_json,
    utf8_texts,
    with_class,
    with_types,
)
from ..text_stream import Rows, Text, codec_name, undamaged
from .cells import CellFeature, CellReader, read_together
from .dialect import NULL_VALUES, SUFFIXES, Dialect, Header, parsed_rows, split_row
from .rows import (
    WHITESPACE,
    SmallTable,
    Table,
    cut_offsets,
    find_rows,
    join_tables,
    without_comments,
)
from .types import ColumnTypes, cell_texts, integers, span_of

_DELIMITER = re.compile(r"[\t !#-/:-@\[-`{-~]")
_COMMENT = re.compile(r"[!#-/:-@\[-`{-~]")
_DTYPES: tuple[str, ...] = get_args(Dtype)

MAX_SAMPLES = 64
"""Maximum number of windows in a sample, each of about 4 MiB."""

_MIN_WORDS = 5
"""A name of a column with so many words may be a record's text."""
_MAX_LOOKED_AT = 8
_SUM = re.compile(
    r"(?i)(grand[ -]|sub-?)?total(s|es)?|sum|summe|gesamt|insgesamt|totale?|somme|suma"
)
"""What a row of sums begins with."""
_LAST_BYTES = 1 << 12
_MIN_ABOVE_SUM, _MAX_ABOVE_SUM = 4, 1000
_COUNTS = "it counts the rows"
_EMPTY = "it is empty"

# Windows read of a file that can only be read from its start.
_STREAM_WINDOWS = 16
# Text of small files that is kept while features are inferred.
_HELD_BYTES = 8 << 20


@config_class
class Csv:
    r"""Rows of CSV and TSV files: RFC 4180 quoting, any line ending.

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
        delimiter: One ASCII character, or ``"whitespace"`` for runs of blanks and tabs. None: a
            tab in ``.tsv`` files, a comma in others.
        null_values: Texts that stand for a missing value in every column, quoted or not.
        encoding: Python's name of the files' encoding: ``latin-1``, ``cp1252``, ``shift_jis`` ….
            Not needed for files that begin with the byte order mark of UTF-16 or UTF-32.
        header: Whether the first row of each file names the columns. If not, they are named
            ``column_0``, ``column_1`` ….
        columns: Column names, for files without a header. Or ``"union"``, for files with different
            columns: all of them; one that a file lacks is a missing value in its rows.
        hive: Whether folders named ``key=value`` are columns, too, as in ``year=2024/month=01``.
        quote: The quote around cells that contain delimiters or line breaks. None: quotes are
            plain text, as in some ``.tsv`` files, and each line is a row.
        skip: The number of lines before the header, or before the rows if there is none.
        comment: The first character of lines that are not rows, such as ``#``.
        decimal: The mark before the fraction of numbers: ``,`` reads ``1,5`` as 1.5.
        thousands: The mark between groups of three digits: ``,`` reads ``1,234,567`` as 1234567.
            One of ``,``, ``.``, ``'``, ``_`` and a blank.
        strip: Whether blanks and tabs around cells are left out, but not those in quotes.
        escape: The character after which the next one means itself, as ``\`` in
            ``"a \"b\" c"``. A quote in quotes may be doubled, too.
    """

    url: str
    label: str | None = None
    types: Mapping[str, Any] | None = None
    delimiter: str | None = None
    null_values: tuple[str, ...] = NULL_VALUES
    encoding: str = "utf-8"
    header: bool = True
    columns: tuple[str, ...] | Literal["union"] = ()
    hive: bool = False
    quote: Literal['"'] | None = '"'
    skip: int = 0
    comment: str | None = None
    decimal: Literal[".", ","] = "."
    thousands: Literal[",", ".", "'", "_", " "] | None = None
    strip: bool = False
    escape: str | None = None
    media = False
    numbered = True
    side_urls: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Checks types, delimiter, encoding and columns."""
        marks = (None, WHITESPACE)
        if self.delimiter not in marks and not _DELIMITER.fullmatch(str(self.delimiter)):
            raise ValueError(
                f"delimiter={self.delimiter!r}, expected one ASCII character other than a quote, a "
                f"letter or a digit, or {WHITESPACE!r}"
            )
        codec_name(self.encoding)
        if self.skip < 0:
            raise ValueError(f"skip={self.skip}, expected a number of lines, 0 or more")
        if self.comment is not None and not _COMMENT.fullmatch(self.comment):
            raise ValueError(
                f"comment={self.comment!r}, expected one ASCII character other than a quote, a "
                "letter or a digit"
            )
        if self.decimal == self.delimiter:
            raise ValueError(f"decimal={self.decimal!r} is the delimiter, too")
        self._check_marks()
        names = () if self.columns == UNION else self.columns
        if len(set(names)) < len(names) or not all(map(str.strip, names)):
            raise ValueError(f"columns={names!r}, expected unique, non-empty names")
        for name, wanted in (self.types or {}).items():
            if not isinstance(wanted, CellFeature) and wanted not in _DTYPES:
                raise ValueError(
                    f"types: {name!r} is {wanted!r}, expected one of {', '.join(_DTYPES)}, "
                    "or ss.Scalar(…), ss.ClassLabel(…), ss.Text(…) or ss.Timestamp(…)"
                    + (f". {_parse_lists(name, wanted)}" if _is_list(wanted) else "")
                )

    def _check_marks(self) -> None:
        separated = self.delimiter not in (" ", WHITESPACE)
        if self.thousands == self.decimal:
            raise ValueError(f"thousands={self.thousands!r} is the decimal mark, too")
        if self.quote is None and self.thousands == (self.delimiter or ","):
            raise ValueError(f"thousands={self.thousands!r} is the delimiter, and quote=None")
        if self.strip and not separated:
            raise ValueError(f"strip=True, but delimiter={self.delimiter!r} is a blank")
        if self.escape is None:
            return
        if not _COMMENT.fullmatch(self.escape):
            raise ValueError(
                f"escape={self.escape!r}, expected one ASCII character other than a quote, a "
                "letter or a digit"
            )
        if not separated or self.escape in (self.delimiter, self.comment):
            raise ValueError(
                f"escape={self.escape!r} with delimiter={self.delimiter!r} and comment="
                f"{self.comment!r}, expected three different characters, and no blank"
            )
        for text in self.null_values:
            if self.escape in text:
                raise ValueError(
                    f"null_values: {text!r} is never a cell, because escape={self.escape!r} is "
                    "left out of cells; remove one of the two"
                )

    def settings(self) -> dict[str, object]:
        """The settings that determine the records and their inferred features, as plain JSON."""
        dialect = self._dialect()
        changed: dict[str, object] = {"hive": True} if self.hive else {}
        changed |= {} if dialect.quoted else {"quote": None}
        changed |= {"skip": self.skip} if self.skip else {}
        changed |= {} if self.comment is None else {"comment": self.comment}
        changed |= {} if self.decimal == "." else {"decimal": self.decimal}
        changed |= {} if self.thousands is None else {"thousands": self.thousands}
        changed |= {"strip": True} if self.strip else {}
        changed |= {} if self.escape is None else {"escape": self.escape}
        return changed | {
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

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        """Offsets of rows at which to cut a large file, never in quotes.

        A compressed file, or one that is not UTF-8, cannot be cut.
        """
        return tuple(CsvFiles(self._dialect(), opened).cuts(file, every=every))

    def head_bytes(self, file: SourceFile, opened: OpenSource) -> int:
        """Size of the header: its names, and their order, determine every row."""
        return CsvFiles(self._dialect(), opened).header_bytes(file)

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The features of the rows, inferred from all rows up to 256 MiB, else from a sample.

        Raises:
            SchemaError: if a header is missing, differs, or names less than half of the columns.
            RecipeError: if ``label`` or ``types`` name a column that does not exist.
        """
        if self.hive:
            return infer_with_folders(self, files, opened)
        found = self._inspect(files, opened)
        features = found.types.features()
        for name in found.left_out:
            del features[name]
        # A class missing from a sample would be rejected later, so this reads every row.
        return with_class(
            with_types(features, self.types),
            label=self.label,
            types=self.types,
            texts_of=lambda label: found.files.class_texts(found.tables, label),
        )

    def remarks(self, files: Sequence[SourceFile], opened: OpenSource) -> list[str]:
        """How columns are read that have no name, or the name of another."""
        found = self._inspect(files, opened)
        remarks = []
        for name, why in found.left_out.items():
            line = f"{found.place(name)}: a column without a name is left out: {why}."
            if why == _COUNTS:
                line += f" types={{{name!r}: 'int64'}} reads it."
            remarks.append(line)
        kept = [name for name in found.nameless if name not in found.left_out]
        remarks += [
            f"{found.place(name)}: a column without a name is read as {name!r}." for name in kept
        ]
        if not self.strip and (padded := found.padded):
            remarks.append(f"{padded}. strip=True in the source leaves out blanks around cells.")
        names = found.types.columns
        words = next((name for name in names if len(name.split()) >= _MIN_WORDS), None)
        if self.header and words is not None:
            remarks.append(
                f"{found.tables[0].file.path}: the first row is read as the names of columns, such "
                f"as {words!r}. header=False in the source reads it as a record."
            )
        if self.header and found.repeats_names():
            remarks.append(
                "The columns hold their own names, as where files with headers are joined: these "
                "rows are records, and no column is a number. Take the lines out of the files."
            )
        if (sums := found.files.sums(found.tables[0])) is not None:
            name, text = sums
            how = f"in prepare: ss.records.filter(lambda record: record[{name!r}] != {text!r})"
            if name == self.label:  # in prepare, it is the number of a class
                how = "take the line out of the file"
            remarks.append(
                f"{found.tables[0].file.path}: the last row, in which {name!r} is {text!r}, seems "
                f"to sum up others, and is a record. To leave it out, {how}."
            )
        return remarks + [
            f"{each.file.path}: several columns are named {name!r}. Those after the first are read "
            f"as {_numbered(each.header, name)}."
            for each in found.tables[:1]
            for name in each.header.doubled
        ]

    def _inspect(self, files: Sequence[SourceFile], opened: OpenSource) -> _Inspected:
        csv_files = CsvFiles(self._dialect(), opened)
        tables = csv_files.tables(files)
        first = tables[0].table
        hint = f" Is delimiter={first.delimiter!r} right?" if len(first.header) == 1 else ""
        names = dict.fromkeys(name for each in tables for name in each.table.header)
        check_columns("Csv", names, label=self.label, types=self.types, hint=hint)
        declared = {*(self.types or {}), *([] if self.label is None else [self.label])}
        _refuse_doubled(tables, declared)
        seen = ColumnTypes.of(names)
        num_tables = Counter(name for each in tables for name in each.table.header)
        for name, column in seen.columns.items():
            column.optional = num_tables[name] < len(tables)
        sample = sum(each.file.num_bytes for each in tables) > INFER_ALL_BYTES
        for types in csv_files.types(tables, sample=sample):
            seen.merge(types)
        if not seen.num_rows:
            raise SchemaError(csv_files.say_no_rows(tables[0]))
        nameless = dict.fromkeys(name for each in tables for name in each.header.nameless)
        left_out: dict[str, str] = {}
        for name in [] if sample else [name for name in nameless if name not in declared]:
            if seen.columns[name].kind == "null":
                left_out[name] = _EMPTY
            elif seen.columns[name].kind == "int64" and csv_files.counts(tables, name):
                left_out[name] = _COUNTS
        if len(left_out) == len(names):
            left_out = {}
        _refuse_titles(tables, left_out)
        return _Inspected(csv_files, tables, seen, tuple(nameless), left_out)

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads the rows of a block's ranges; ids are ``path#offset``.

        Raises:
            SchemaError: if a file lacks the column of a feature.
        """
        if self.hive:
            yield from read_with_folders(
                self, block, features=features, opened=opened, ordered=ordered
            )
            return

        def together(files: Sequence[SmallTable]) -> RawBatch | None:
            self._check_features(files[0].table, features)
            return read_together(files, features)

        def read_small(file: SmallTable) -> Iterator[RawBatch]:
            self._check_features(file.table, features)
            cells = CellReader(file.table, features)
            for rows in file.windows:
                yield from cells.read(rows)

        yield from read_ranges(
            block,
            ordered,
            features=features,
            read=lambda part: self._read_part(part, features, opened),
            small=lambda part: self._small_part(part, opened),
            together=together,
            read_small=read_small,
            may_be_empty=True,  # _read_part finds out: a file of blank lines is empty too
        )

    def _small_part(self, part: FileRange, opened: OpenSource) -> SmallTable | None:
        """The rows of a small range; None if it is large, damaged, or has a bad row or none."""
        dialect = self._dialect()
        text = dialect.open(opened, part.path, part.stop)
        try:
            header = dialect.read_header(text, part.path)
        except (DamagedError, SchemaError):
            return None
        if header is None:
            return None
        table = dialect.table(part.path, header.names, plain=text.plain)
        return _small_table(text, table, max(part.start, header.stop))

    def _read_part(
        self, part: FileRange, features: Features, opened: OpenSource
    ) -> Iterator[RawBatch]:
        dialect = self._dialect()
        text = dialect.open(opened, part.path, part.stop)
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
            for rows in _find_rows(text, table, start):
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
            quoted=self.quote is not None,
            skip=self.skip,
            comment=self.comment,
            decimal=self.decimal,
            thousands=self.thousands,
            strip=self.strip,
            escape=self.escape,
        )

    def _check_features(self, table: Table, features: Features) -> None:
        num_columns = Counter(table.header)
        for name, feature in features.items():
            if not isinstance(feature, CellFeature):
                raise SchemaError(
                    f"features= declares {name!r} as {feature}; a CSV column can be a Scalar, "
                    "ClassLabel, Text or Timestamp."
                    + (f" {_parse_lists(name, feature)}" if _is_list(feature) else "")
                )
            num = num_columns[name]
            if num != 1 and not (num == 0 and self.columns == UNION):
                raise SchemaError(
                    f"{table.path} has {num or 'no'} columns named {name!r}, expected one. Its "
                    f"columns are {', '.join(map(repr, table.header))}."
                )


def _is_list(feature: object) -> bool:
    """Whether a feature holds several values."""
    return isinstance(feature, Sequence_ | Tensor)


def _parse_lists(name: str, feature: Any) -> str:
    """How lists in the cells of a column are read."""
    return (
        "For lists such as [1, 2] in cells, leave it a string, and add to prepare: "
        f"ss.records.map_python(lambda record: {{{name!r}: json.loads(record[{name!r}])}}, "
        f"{{{name!r}: {written(feature)}}})"
    )


def _refuse_doubled(tables: Sequence[FoundTable], declared: Collection[str]) -> None:
    """Refuses a setting that names a column if the file has several of the name."""
    for each in tables:
        for name in each.header.doubled:
            if name in declared:
                raise SchemaError(
                    f"{each.file.path}: the header names {name!r} more than once, so label= or "
                    "types= could mean any of these columns. Rename them."
                )


def _refuse_titles(tables: Sequence[FoundTable], left_out: Collection[str]) -> None:
    """Refuses a first row that leaves most columns without a name, as a title does.

    Columns before the first name may be those of row names.
    """
    for each in tables:
        header = each.header
        named = sum(map(bool, header.written))
        leading = len(list(itertools.takewhile(lambda name: not name, header.written)))
        nameless = [name for name in header.nameless if name not in left_out]
        inner = [name for name in nameless if name not in header.names[:leading]]
        if header.written and len(inner) >= named:
            raise SchemaError(
                f"{each.file.path}: its first row names {named} of {len(header.names)} columns: "
                f"{', '.join(map(repr, filter(None, header.written))) or 'none'}. If it is a "
                "title, leave it out with skip=1 in the source; else name all columns."
            )


def _numbered(header: Header, name: str) -> str:
    """The names of the columns after the first that are written with a name."""
    pairs = zip(header.names, header.written, strict=True)
    return ", ".join(repr(new) for new, written in pairs if written == name and new != name)


@dataclasses.dataclass(frozen=True)
class FoundTable:
    """A file that has rows, or at least a header."""

    file: SourceFile
    table: Table
    header: Header

    @property
    def start(self) -> int:
        """Where its rows begin, in bytes of its text."""
        return self.header.stop

    @property
    def num_bytes(self) -> int:
        """The file's size."""
        return self.file.num_bytes

    @property
    def sha256(self) -> str:
        """The hash of the file's content."""
        return self.file.sha256


class CsvFiles:
    """Inspects the files of one source, and caches the results by content."""

    def __init__(self, dialect: Dialect, opened: OpenSource) -> None:
        """Keeps the dialect and the source's root."""
        self._dialect = dialect
        self._opened = opened
        self._held: dict[str, SmallTable] = {}
        """The rows of small files, which are asked for types, classes and counts."""
        self._room = _HELD_BYTES

    def tables(self, files: Sequence[SourceFile]) -> list[FoundTable]:
        """The files that have a row. All have the same columns, in any order, unless joined.

        Raises:
            SchemaError: if columns differ, or no file has a row.
        """
        with_rows: list[FoundTable] = []
        readable = [file for file in files if not file.problem]
        headers = (header for bundle in bundles(readable) for header in self._headers(bundle))
        for file, header in zip(readable, headers, strict=True):
            if header is None:
                continue
            max_columns = self._opened.limits.max_columns
            if len(header.names) > max_columns:
                raise SchemaError(too_many_columns(file.path, len(header.names), max_columns))
            differs = with_rows and set(header.names) != set(with_rows[0].table.header)
            if differs and not self._dialect.union:
                first = with_rows[0].table
                other = other_columns(header.names, first.header, paths=(file.path, first.path))
                raise SchemaError(f"{other}. {READ_UNION}")
            table = self._dialect.table(file.path, header.names)
            with_rows.append(FoundTable(file, table, header))
        if not with_rows:
            what = f"{files[0].path} has" if len(files) == 1 else f"{len(files):,} files have"
            wanted = "a header line" if self._dialect.header else "rows"
            if damage := first_damage(files, self._damage):
                raise SchemaError(f"{damage}, so {wanted} cannot be read. {COPY_AGAIN}")
            raise SchemaError(
                f"{what} no readable line of text, expected {wanted}. Put the data there, or "
                "correct the source in the recipe."
            )
        return with_rows

    def cuts(self, file: SourceFile, *, every: int) -> list[int]:
        """Offsets of rows at which to cut; none if a file is small or cannot be cut."""
        if file.problem or file.num_bytes <= every + every // 2:
            return []
        text = self._dialect.open(self._opened, file.path, file.num_bytes)
        header = self._dialect.read_header(text, file.path) if text.plain else None
        if header is None:
            return []
        table = self._dialect.table(file.path, header.names)
        return cut_offsets(text, header.stop, table, every=every)

    def header_bytes(self, file: SourceFile) -> int:
        """The offset up to which a file's text determines its columns."""
        (header,) = self._headers([file])
        return 0 if header is None else header.looked

    def say_no_rows(self, found: FoundTable) -> str:
        """Why the rows of a file show no types."""
        path, names = found.file.path, found.header.written
        first = next(parsed_rows(self._text(found), found.start, found.table), None)
        if names and first is not None:
            return (
                f"{path}: the header names {len(names)} columns, and its first row has "
                f"{len(first.cells)} cells. No row has as many cells as the header. Is delimiter="
                f"{found.table.delimiter!r} right? Cells that contain it must be quoted."
            )
        what = "a header and no complete row" if names else "no complete row"
        return f"{path} has {what}, so column types cannot be inferred. Is it the right file?"

    def types(self, tables: Sequence[FoundTable], *, sample: bool) -> Iterator[dict[str, Any]]:
        """The column types of each file, for ``ColumnTypes.merge``.

        Args:
            tables: The files.
            sample: Whether to read only evenly spaced windows of rows, including the heads of
                files, instead of all rows.
        """
        if not sample:
            for bundle in bundles(tables):
                yield from self._all_types(bundle)
            return
        places = [
            (found, start)
            for found in tables
            for start in (found.start, *self._known_cuts(found.file))
        ]
        for found, start in places[:: -(-len(places) // MAX_SAMPLES)]:
            yield self._types_at(found, start)

    def sums(self, found: FoundTable) -> tuple[str, str] | None:
        """The first filled column of a file's last row, and its text, if that says a sum.

        No other row that is looked at says one there.
        """
        text = self._text(found)
        if not text.plain:  # it would be decompressed
            return None
        start = max(found.start, text.stop - _LAST_BYTES)
        tail = text.read(start, text.stop)
        if len(tail) < text.stop - start:  # it was cut meanwhile
            return None
        lines = re.split(r"[\r\n]+", tail.decode(errors="replace").strip("\r\n"))
        lines = lines[start > found.start :]
        if len(lines) <= _MIN_ABOVE_SUM or lines[-1].count('"') % 2:  # the end of a long cell
            return None
        try:
            *others, last = (split_row(line, found.table) for line in lines)
        except csv.Error:
            return None
        place = next((place for place, cell in enumerate(last) if cell.strip()), len(last))
        names = found.table.header
        if place >= min(len(names), len(last)) or not _SUM.fullmatch(last[place].strip()):
            return None
        head = itertools.islice(parsed_rows(text, found.start, found.table), _MAX_ABOVE_SUM)
        rows = [row.cells for row in head if row.stop <= text.stop - len(lines[-1])]
        above = (row[place].strip() for row in (*rows, *others) if len(row) > place)
        return None if any(map(_SUM.fullmatch, above)) else (names[place], last[place].strip())

    def class_texts(self, tables: Sequence[FoundTable], name: str) -> Iterator[list[str] | None]:
        """The distinct texts of a column, bundle by bundle; None if too many for a class."""
        for bundle in bundles(found for found in tables if name in found.table.header):
            yield self._class_texts(bundle, name)

    def counts(self, tables: Sequence[FoundTable], name: str) -> bool:
        """Whether a column of integers only counts the rows.

        It begins with 0 or 1 in each file, or continues the file before.
        """
        last = None
        for bundle in bundles(found for found in tables if name in found.table.header):
            for span in self._spans(bundle, name):
                if span is None or (span and span[0] not in (0, 1) and span[0] - 1 != last):
                    return False
                last = span[-1] if span else last
        return True

    def _damage(self, file: SourceFile) -> str:
        """Why the header of a compressed file cannot be read."""
        try:
            self._header(file)
        except DamagedError as error:
            return str(error)
        return ""

    def _headers(self, bundle: Sequence[SourceFile]) -> Iterator[Header | None]:
        """The header of each file."""

        def look() -> list[Any]:
            headers = map(self._readable_header, bundle)
            return [each and [each.names, each.stop, each.looked, each.written] for each in headers]

        what = f"headers {''.join(self._dialect.delimiter_of(file.path) for file in bundle)}"
        try:
            headers = remembered(self._opened, content_of(bundle), what, look)
        except SchemaError:
            # The caller may find another error in a file before this one.
            yield from map(self._readable_header, bundle)
            return
        for header in headers:
            names, stop, looked, written = header or ((), 0, 0, ())
            yield Header(tuple(names), stop, looked, tuple(written)) if header else None

    def _header(self, file: SourceFile) -> Header | None:
        text = self._dialect.open(self._opened, file.path, file.num_bytes)
        return self._dialect.read_header(text, file.path)

    def _readable_header(self, file: SourceFile) -> Header | None:
        try:
            return self._header(file)
        except DamagedError:
            return None

    def _text(self, found: FoundTable) -> Text:
        return self._dialect.open(self._opened, found.file.path, found.file.num_bytes)

    def _small(self, found: FoundTable) -> SmallTable | None:
        path = found.file.path
        if path in self._held:
            return self._held[path]
        small = _small_table(self._text(found), found.table, found.start)
        num_bytes = 0 if small is None else sum(len(rows.data) for rows in small.windows)
        if small is not None and num_bytes <= self._room:
            self._held[path] = small
            self._room -= num_bytes
        return small

    def _all_rows(self, found: FoundTable, read: SmallTable | None) -> Iterable[Rows]:
        """All rows of a file, which may have been read already."""
        if read is not None:
            return read.windows
        return _rows(self._text(found), found.table, found.start)

    def _types_at(self, found: FoundTable, start: int) -> dict[str, Any]:
        """The types in a window of rows, or the first windows of a file that cannot be cut."""
        what = f"column types {found.table.delimiter} at {start}"

        def look() -> dict[str, Any]:
            text = self._text(found)
            num = 1 if text.plain else _STREAM_WINDOWS
            return _types_in(found.table, itertools.islice(_rows(text, found.table, start), num))

        return remembered(self._opened, found.file.sha256, what, look)

    def _all_types(self, bundle: Sequence[FoundTable]) -> list[dict[str, Any]]:
        """The types in all rows of a bundle's files, of all together or of one after another."""

        def together(files: Sequence[SmallTable]) -> dict[str, Any] | None:
            types = ColumnTypes.of_files(files)
            return None if types is None else types.to_json()

        def look() -> list[dict[str, Any]]:
            by_file = read_bundle(
                bundle,
                small=self._small,
                together=together,
                alone=lambda table, read: [_types_in(table.table, self._all_rows(table, read))],
            )
            return list(by_file)

        what = f"column types {''.join(found.table.delimiter for found in bundle)}"
        return remembered(self._opened, content_of(bundle), what, look)

    def _known_cuts(self, file: SourceFile) -> list[int]:
        what = f"cuts {self._dialect.delimiter_of(file.path)}"
        every = cut_spacing(file.num_bytes)
        return remembered(self._opened, file.sha256, what, lambda: self.cuts(file, every=every))

    def _spans(self, bundle: Sequence[FoundTable], name: str) -> list[list[int] | None]:
        """The first and last number of each file's column; None if it does not count rows."""

        def together(files: Sequence[SmallTable]) -> list[list[int] | None] | None:
            rows = join_tables(files)
            numbers = None if rows is None else integers(files[0].table, rows, name)
            if rows is None or numbers is None or len(numbers) != len(rows):
                return None
            ends = np.cumsum([sum(map(len, windows)) for _, windows in files])
            return [span_of([part]) for part in np.split(numbers, ends[:-1])]

        def alone(found: FoundTable, read: SmallTable | None) -> Iterator[list[list[int] | None]]:
            rows = self._all_rows(found, read)
            yield [span_of(integers(found.table, part, name) for part in rows)]

        def look() -> list[list[int] | None]:
            read = read_bundle(bundle, small=self._small, together=together, alone=alone)
            return [span for spans in read for span in spans]

        what = f"spans {''.join(found.table.delimiter for found in bundle)} {name}"
        return remembered(self._opened, content_of(bundle), what, look)

    def _class_texts(self, bundle: Sequence[FoundTable], name: str) -> list[str] | None:
        """The distinct texts of a column; None if there are too many for a class.

        Texts that are not UTF-8 are left out, because their rows will be rejected.
        """

        def together(files: Sequence[SmallTable]) -> set[bytes] | None:
            rows = join_tables(files)
            return None if rows is None else cell_texts(files[0].table, rows, name)

        def alone(found: FoundTable, read: SmallTable | None) -> Iterator[set[bytes]]:
            for rows in self._all_rows(found, read):
                yield cell_texts(found.table, rows, name)

        def look() -> list[str] | None:
            texts = set[bytes]()
            for some in read_bundle(
                bundle,
                small=self._small,
                together=together,
                alone=alone,
            ):
                texts |= some
                if len(texts) > MAX_LABELS:
                    return None
            return utf8_texts(texts)

        what = f"texts {''.join(found.table.delimiter for found in bundle)} {name}"
        return remembered(self._opened, content_of(bundle), what, look)


@dataclasses.dataclass(frozen=True)
class _Inspected:
    """What is known of the columns of a source's files."""

    files: CsvFiles
    tables: Sequence[FoundTable]
    types: ColumnTypes
    nameless: tuple[str, ...]
    left_out: Mapping[str, str]
    """Columns without a name that hold nothing of the data -> why."""

    @property
    def padded(self) -> str:
        """A column whose name has blanks around it, for people; empty if there is none."""
        for each in self.tables:
            for name in each.header.written:
                if name != name.strip(" \t"):
                    return f"{each.file.path}: the column {name!r} has blanks around its name"
        return ""

    def repeats_names(self) -> bool:
        """Whether each column of texts that may be a class holds its own name, too.

        Of more than 256 MiB, nothing is known.
        """
        columns = self.types.columns
        num_bytes = sum(each.file.num_bytes for each in self.tables)
        if num_bytes > INFER_ALL_BYTES or any(c.kind != "string" for c in columns.values()):
            return False
        num = 0
        for name in [*columns][:_MAX_LOOKED_AT]:
            for texts in self.files.class_texts(self.tables, name):
                if texts is None or name in texts:
                    num += texts is not None
                    break
            else:
                return False
        return num > 1

    def place(self, name: str) -> str:
        """The first file with a column, and its position there."""
        first = next(each for each in self.tables if name in each.header.nameless)
        return f"{first.file.path}, column {first.header.names.index(name) + 1}"


def _rows(text: Text, table: Table, start: int) -> Iterator[Rows]:
    """The rows from an offset on; in a damaged file, those before the damage."""
    return undamaged(_find_rows(text, table, start))


def _find_rows(text: Text, table: Table, start: int) -> Iterator[Rows]:
    found = find_rows(text, start, text.stop, table)
    return (without_comments(rows, table.comment) for rows in found)


def _types_in(table: Table, windows: Iterable[Rows]) -> dict[str, Any]:
    seen = ColumnTypes.of(table.header)
    for rows in windows:
        seen.add(table, rows)
    return seen.to_json()


def _small_table(text: Text, table: Table, start: int) -> SmallTable | None:
    rows = _find_rows(text, table, start)
    windows = small_windows(rows)
    return None if windows is None else SmallTable(table, windows)
