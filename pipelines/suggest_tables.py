"""Finding tables of typed columns among raw files: Parquet, Arrow, Feather and JSON Lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..schemas.blocks import SourceFile
from ..schemas.recipe import Source
from ..transforms.opened_source import OpenedSource
from ..transforms.sources.arrow_ipc import Arrow
from ..transforms.sources.csv_text import open_text
from ..transforms.sources.decompress import DamagedError
from ..transforms.sources.json_lines import JsonLines
from ..transforms.sources.json_text import find_lines
from ..transforms.sources.json_values import UnfitError, parse_line
from ..transforms.sources.parquet import Parquet

_HEAD_BYTES = 1 << 16
_NUM_LINES = 5


@dataclasses.dataclass(frozen=True)
class TypedTables:
    """A source of tables, and how many files it would read."""

    source: Source
    num_files: int


def find_typed_tables(
    url: str, listed: Sequence[SourceFile], opened: OpenedSource
) -> TypedTables | None:
    """The kind of typed table that most files are, by name and content; None where there is none.

    Of a single file the content alone decides.

    Args:
        url: The source's url.
        listed: All files of it.
        opened: Its root.
    """
    found = []
    for make in (Parquet, Arrow, JsonLines):
        source = make(url)
        files = [file for file in source.select(listed).files if not file.problem]
        # The first file speaks for all: another one of its name that is none will be rejected.
        first = next((file for file in files if file.num_bytes), None)
        if first is not None and _kind(first, opened) is make:
            found.append(TypedTables(source, len(files)))
    return max(found, key=lambda tables: tables.num_files, default=None)


def _kind(file: SourceFile, opened: OpenedSource) -> type[Parquet | Arrow | JsonLines] | None:
    head = opened.read(file.path, 0, 8)
    if head.startswith((b"PAR1", b"PARE")):
        return Parquet
    # A stream begins with the mark of a message.
    if head.startswith((b"ARROW1", b"FEA1", b"\xff\xff\xff\xff")):
        return Arrow
    return JsonLines if _holds_objects(file, opened) else None


def _holds_objects(file: SourceFile, opened: OpenedSource) -> bool:
    """Whether one of a file's first lines is a JSON object."""
    text = open_text(opened, file.path, num_bytes=file.num_bytes, encoding="utf-8")
    try:
        lines = next(find_lines(text, 0, min(text.stop, _HEAD_BYTES)), None)
    except DamagedError:
        return False
    if lines is None:
        return False
    for line in range(min(len(lines), _NUM_LINES)):
        try:
            parse_line(lines.text(line))
        except UnfitError:
            continue
        return True
    # A first line longer than what was read.
    return len(lines) == 1 and lines.data.startswith(b'{"') and len(lines.data) == _HEAD_BYTES
