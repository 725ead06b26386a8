"""The files of a CSV source: their dialect, how they are opened, and cached facts about them.

The columns and types of each file are cached between builds. ``sniff`` guesses the dialect of an
unknown file from its first rows, for ``snapshard init``.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ....schemas.blocks import SourceFile
from ....schemas.errors import SchemaError
from ....schemas.recipe import OpenSource
from ...storage.decompress import SUFFIXES as COMPRESSED_SUFFIXES
from ...storage.decompress import DamagedError
from ..blocks import cut_spacing
from ..remembered import remembered
from ..table_files import COPY_AGAIN, READ_UNION, first_damage, other_columns
from ..text_stream import Text, open_text
from .rows import Rows, Table, cut_offsets, find_rows
from .types import ColumnTypes, Header, check_names, class_texts, read_header

MAX_SAMPLES = 64
"""Maximum number of windows in a sample, each of about 4 MiB."""

SUFFIXES = tuple(name + end for name in (".csv", ".tsv") for end in ("", *COMPRESSED_SUFFIXES))
"""Suffixes of CSV and TSV files, compressed or not."""
# Windows read of a file that can only be read from its start.
_STREAM_WINDOWS = 16

_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_YEARS = range(1800, 2200)


def default_delimiter(path: str) -> str:
    r"""The delimiter implied by a file's name.

    >>> default_delimiter("b.tsv.gz"), default_delimiter("b.csv")
    ('\t', ',')
    """
    return "\t" if _plain_name(path).endswith(".tsv") else ","


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """How the files of a source are formatted; see ``Csv``."""

    delimiter: str | None
    null_values: tuple[str, ...]
    encoding: str
    header: bool
    columns: tuple[str, ...]
    union: bool = False
    """Whether files may lack columns that others have."""

    def delimiter_of(self, path: str) -> str:
        """The delimiter of a file."""
        return default_delimiter(path) if self.delimiter is None else self.delimiter

    def read_header(self, text: Text, path: str) -> Header | None:
        """The columns of a file; None if it has no row.

        Raises:
            SchemaError: if its first row cannot be read.
            DamagedError: if the file is compressed and damaged before the end of that row.
        """
        return read_header(
            text,
            path=path,
            delimiter=self.delimiter_of(path),
            encoding=self.encoding,
            names=() if self.header else self.columns or None,
        )

    def table(self, path: str, names: tuple[str, ...], *, plain: bool = True) -> Table:
        """How to parse the rows of a file."""
        return Table(
            path=path,
            header=names,
            delimiter=self.delimiter_of(path),
            null_values=self.null_values,
            encoding=self.encoding,
            plain=plain,
        )


@dataclasses.dataclass(frozen=True)
class FoundTable:
    """A file that has rows, or at least a header."""

    file: SourceFile
    table: Table
    start: int
    """Where its rows begin, in bytes of its text."""


class CsvFiles:
    """Inspects the files of one source, and caches the results by content."""

    def __init__(self, dialect: Dialect, opened: OpenSource) -> None:
        """Keeps the dialect and the source's root."""
        self._dialect = dialect
        self._opened = opened

    def open(self, path: str, num_bytes: int) -> Text:
        """The text of a file, or of its first ``num_bytes`` bytes if it is plain UTF-8."""
        encoding = self._dialect.encoding
        return open_text(self._opened, path, num_bytes=num_bytes, encoding=encoding)

    def tables(self, files: Sequence[SourceFile]) -> list[FoundTable]:
        """The files that have a row. All have the same columns, in any order, unless joined.

        Raises:
            SchemaError: if columns differ, or no file has a row.
        """
        found: list[FoundTable] = []
        for file in files:
            header = None if file.problem else self._header(file)
            if header is None:
                continue
            max_columns = self._opened.limits.max_columns
            check_names(header.names, path=file.path, max_columns=max_columns)
            differs = found and set(header.names) != set(found[0].table.header)
            if differs and not self._dialect.union:
                first = found[0].table
                other = other_columns(header.names, first.header, paths=(file.path, first.path))
                raise SchemaError(f"{other}. {READ_UNION}")
            table = self._dialect.table(file.path, header.names)
            found.append(FoundTable(file, table, header.stop))
        if not found:
            what = f"{files[0].path} has" if len(files) == 1 else f"{len(files):,} files have"
            wanted = "a header line" if self._dialect.header else "rows"
            if damage := first_damage(files, self._damage):
                raise SchemaError(f"{damage}, so {wanted} cannot be read. {COPY_AGAIN}")
            raise SchemaError(
                f"{what} no readable line of text, expected {wanted}. Put the data there, or "
                "correct the source in the recipe."
            )
        return found

    def cuts(self, file: SourceFile) -> list[int]:
        """Offsets of rows at which to cut; none if a file is small or cannot be cut."""
        every = cut_spacing(file.num_bytes)
        if file.problem or file.num_bytes <= every + every // 2:
            return []
        text = self.open(file.path, file.num_bytes)
        header = self._dialect.read_header(text, file.path) if text.plain else None
        if header is None:
            return []
        delimiter = self._dialect.delimiter_of(file.path)
        return cut_offsets(
            text.read,
            header.stop,
            text.stop,
            delimiter=delimiter,
            every=every,
            max_row_bytes=text.max_row_bytes,
        )

    def header_bytes(self, file: SourceFile) -> int:
        """The offset at which a file's rows begin."""
        header = self._header(file)
        return 0 if header is None else header.stop

    def types(self, tables: Sequence[FoundTable], *, sample: bool) -> Iterator[dict[str, Any]]:
        """The column types of each file, for ``ColumnTypes.merge``.

        Args:
            tables: The files.
            sample: Whether to read only evenly spaced windows of rows, including the heads of
                files, instead of all rows.
        """
        if not sample:
            for found in tables:
                yield self._types(found, found.start, num_windows=None)
            return
        places = [
            (found, start)
            for found in tables
            for start in (found.start, *self._known_cuts(found.file))
        ]
        for found, start in places[:: -(-len(places) // MAX_SAMPLES)]:
            yield self._types(found, start, num_windows=1)

    def class_texts(self, tables: Sequence[FoundTable], name: str) -> list[str] | None:
        """The distinct texts of a column in all rows, sorted; None if too many for a class."""
        texts: set[str] = set()
        for found in tables:
            if name not in found.table.header:
                continue
            some = self._class_texts(found, name)
            if some is None:
                return None
            texts.update(some)
        return sorted(texts)

    def _damage(self, file: SourceFile) -> str:
        """Why the header of a compressed file cannot be read."""
        try:
            self._dialect.read_header(self.open(file.path, file.num_bytes), file.path)
        except DamagedError as error:
            return str(error)
        return ""

    def _header(self, file: SourceFile) -> Header | None:
        def look() -> list[Any] | None:
            text = self.open(file.path, file.num_bytes)
            try:
                header = self._dialect.read_header(text, file.path)
            except DamagedError:
                return None
            return None if header is None else [list(header.names), header.stop]

        what = f"header {self._dialect.delimiter_of(file.path)}"
        found = remembered(self._opened, file.sha256, what, look)
        return None if found is None else Header(tuple(found[0]), found[1])

    def _types(self, found: FoundTable, start: int, *, num_windows: int | None) -> dict[str, Any]:
        def look() -> dict[str, Any]:
            text = self.open(found.file.path, found.file.num_bytes)
            num = num_windows if text.plain or num_windows is None else _STREAM_WINDOWS
            seen = ColumnTypes.of(found.table.header)
            for rows in itertools.islice(_rows(text, found.table, start), num):
                seen.add(found.table, rows)
            return seen.to_json()

        what = f"types {found.table.delimiter} {start} {num_windows}"
        return remembered(self._opened, found.file.sha256, what, look)

    def _known_cuts(self, file: SourceFile) -> list[int]:
        what = f"cuts {self._dialect.delimiter_of(file.path)}"
        return remembered(self._opened, file.sha256, what, lambda: self.cuts(file))

    def _class_texts(self, found: FoundTable, name: str) -> list[str] | None:
        def look() -> list[str] | None:
            text = self.open(found.file.path, found.file.num_bytes)
            return class_texts(_rows(text, found.table, found.start), found.table, name)

        what = f"texts {found.table.delimiter} {name}"
        return remembered(self._opened, found.file.sha256, what, look)


def _rows(text: Text, table: Table, start: int) -> Iterator[Rows]:
    """The rows from an offset on; in a damaged file, those before the damage."""
    try:
        yield from find_rows(
            text.read,
            start,
            text.stop,
            delimiter=table.delimiter,
            max_row_bytes=text.max_row_bytes,
        )
    except DamagedError:
        return


def _plain_name(path: str) -> str:
    """A path in lower case, without the suffix of its compression."""
    lower = path.lower()
    ending = next((suffix for suffix in COMPRESSED_SUFFIXES if lower.endswith(suffix)), "")
    return lower.removesuffix(ending)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sniffed:
    """The dialect that a file seems to have."""

    delimiter: str
    encoding: str
    header: bool


def sniff(head: bytes, *, default: str = ",") -> Sniffed:
    """Guesses the dialect from the beginning of a file's text.

    The delimiter is the most frequent candidate in the first line, outside quotes. Text that is not
    UTF-8 is taken as cp1252 if it can be, else as latin-1, which decodes any bytes.

    Args:
        head: Bytes of the text; the last line may be incomplete.
        default: The delimiter if the first line has none.
    """
    encoding = _encoding(head)
    text = head.removeprefix(b"\xef\xbb\xbf").decode(encoding, "replace").lstrip("\r\n")
    line = re.split(r"[\r\n]", text, maxsplit=1)[0]
    bare = re.sub(r'"[^"]*"', "", line)
    marks = [default, *_DELIMITERS]
    delimiter = max(marks, key=lambda mark: (bare.count(mark), -marks.index(mark)))
    return Sniffed(delimiter=delimiter, encoding=encoding, header=_is_header(text, delimiter))


def _encoding(head: bytes) -> str:
    whole = head[: max(head.rfind(b"\n"), head.rfind(b"\r")) + 1] or head
    for encoding in ("utf-8", "cp1252"):
        try:
            whole.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return "latin-1"


def _is_header(text: str, delimiter: str) -> bool:
    """Whether the first row names columns: it has no numbers, or only years or positions."""
    try:
        first = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
    except csv.Error:
        return True
    numbers = [cell.strip() for cell in first if _NUMBER.fullmatch(cell)]
    if not numbers:
        return True
    if not all(cell.isdecimal() for cell in numbers):
        return False
    values = [int(cell) for cell in numbers]
    consecutive = values == list(range(values[0], values[0] + len(values)))
    labels = consecutive and (len(values) > 1 or len(first) == 1 or values[0] in _YEARS)
    return labels or (len(set(values)) == len(values) and all(year in _YEARS for year in values))
