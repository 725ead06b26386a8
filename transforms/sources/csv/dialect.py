"""The dialect of CSV files: their delimiter, encoding and header, declared or guessed."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections import Counter
from collections.abc import Sequence

from ....schemas.errors import SchemaError
from ....schemas.limits import too_many_columns
from ....schemas.recipe import OpenSource
from ...storage.decompress import SUFFIXES as COMPRESSED_SUFFIXES
from ..text_stream import Text, open_text, shown_text, text_start
from .rows import Table, find_rows

SUFFIXES = tuple(name + end for name in (".csv", ".tsv") for end in ("", *COMPRESSED_SUFFIXES))
"""Suffixes of CSV and TSV files, compressed or not."""

_HEADER_WINDOW_BYTES = 1 << 16
_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_YEARS = range(1800, 2200)


@dataclasses.dataclass(frozen=True)
class Header:
    """The column names of a file."""

    names: tuple[str, ...]
    stop: int
    """The byte offset in the text at which the rows begin."""


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

    def open(self, opened: OpenSource, path: str, num_bytes: int) -> Text:
        """The text of a file, or of its first ``num_bytes`` bytes if it is plain UTF-8."""
        return open_text(opened, path, num_bytes=num_bytes, encoding=self.encoding)

    def read_header(self, text: Text, path: str) -> Header | None:
        """The columns of a file; None if it has no row.

        They are named by the first row, declared, or ``column_0`` and so on, one for each cell of
        the first row.

        Raises:
            SchemaError: if its first row cannot be read.
            DamagedError: if the file is compressed and damaged before the end of that row.
        """
        delimiter = self.delimiter_of(path)
        start = text_start(text)
        windows = find_rows(
            text, start, text.stop, delimiter=delimiter, window_bytes=_HEADER_WINDOW_BYTES
        )
        rows = next((rows for rows in windows if len(rows)), None)
        if rows is None:
            return None
        if not self.header and self.columns:
            return Header(self.columns, start)
        what = "the header" if self.header else "the first row"
        if rows.problem:
            raise SchemaError(f"{path}: {what}: {rows.problem}. Fix the file's first line.")
        line = rows.text(0)
        if self.header and not line.strip(b"\0"):
            raise SchemaError(
                f"{path} begins with zero bytes, as an incompletely written file does; expected "
                f"{what}. Copy or create it again."
            )
        try:
            decoded = line.decode(errors="strict" if self.header else "replace")
        except UnicodeDecodeError as error:
            position, bytes_there = rows.offset + error.start, line[error.start :]
            raise SchemaError(
                f"{path}: the header is not {self.encoding.upper()} (byte {position}: "
                f"'{shown_text(bytes_there)[:20]}'). "
                'Name the file\'s encoding in the source, for example encoding="latin-1".'
            ) from None
        try:
            (cells,) = csv.reader(io.StringIO(decoded, newline=""), delimiter=delimiter)
        except csv.Error as error:
            raise SchemaError(f"{path}: {what}: {error}. Fix the file's first line.") from None
        if not self.header:
            return Header(tuple(f"column_{position}" for position in range(len(cells))), start)
        following = rows.starts[1] if len(rows) > 1 else len(rows.data)
        return Header(tuple(cells), rows.offset + int(following))


def check_names(names: Sequence[str], *, path: str, max_columns: int) -> None:
    """Checks that every column has a unique name, and that there are not too many columns.

    Raises:
        SchemaError: naming the columns at fault.
    """
    if len(names) > max_columns:
        raise SchemaError(too_many_columns(path, len(names), max_columns))
    for position, name in enumerate(names, start=1):
        if not name.strip():
            raise SchemaError(
                f"{path}: column {position} of {len(names)} has no name in the header. Name it, or "
                "declare the columns to read with features=."
            )
    if len(set(names)) < len(names):
        double = sorted(name for name, num in Counter(names).items() if num > 1)
        raise SchemaError(
            f"{path}: the header names {', '.join(map(repr, double))} more than once. Rename the "
            "columns."
        )


def default_delimiter(path: str) -> str:
    r"""The delimiter implied by a file's name.

    >>> default_delimiter("b.tsv.gz"), default_delimiter("b.csv")
    ('\t', ',')
    """
    lower = path.lower()
    compression = next((end for end in COMPRESSED_SUFFIXES if lower.endswith(end)), "")
    return "\t" if lower.removesuffix(compression).endswith(".tsv") else ","


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
