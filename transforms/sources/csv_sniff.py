"""Guesses how a CSV file is written, from its first rows, for ``snapshard init`` to write down."""

from __future__ import annotations

import csv
import dataclasses
import io
import re

_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_YEARS = range(1800, 2200)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sniffed:
    """How a file seems to be written."""

    delimiter: str
    encoding: str
    header: bool


def sniff(head: bytes, *, default: str = ",") -> Sniffed:
    """Guesses from the beginning of a file's text.

    The delimiter is what stands most often in the first line, outside of quotes. Text that is not
    UTF-8 is cp1252 where it can be, else latin-1, which any bytes are.

    Args:
        head: Bytes of the text; the last line may be cut short.
        default: The delimiter where the first line has none.
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
    """Whether the first row names columns: it holds no number, or only years or positions."""
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
