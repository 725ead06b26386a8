"""Finding records of typed values among raw files.

Parquet, Arrow, Feather, JSON Lines, NumPy, TFRecord, and datasets of Hugging Face.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...schemas.blocks import SourceFile
from ...schemas.recipe import Source
from ...transforms.sources.arrow.hugging_face import HuggingFace
from ...transforms.sources.arrow.ipc import Arrow
from ...transforms.sources.arrow.parquet import Parquet
from ...transforms.sources.json.rows import find_lines
from ...transforms.sources.json.source import JsonLines
from ...transforms.sources.json.values import UnfitError, parse_line
from ...transforms.sources.numpy import Numpy
from ...transforms.sources.text_stream import open_text
from ...transforms.sources.tfrecord.source import TFRecords
from ...transforms.storage.decompress import DamagedError
from ...transforms.storage.opened_source import OpenedSource

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
    dataset = _dataset(url, listed)
    if dataset is not None:
        return dataset
    found = []
    for make in (Parquet, Arrow, JsonLines, Numpy, TFRecords):
        source = make(url)
        files = [file for file in source.select(listed).files if not file.problem]
        # The first file speaks for all: another one of its name that is none will be rejected.
        first = next((file for file in files if file.num_bytes), None)
        if first is not None and _kind(first, opened) is make:
            found.append(TypedTables(source, len(files)))
    return max(found, key=lambda tables: tables.num_files, default=None)


def _dataset(url: str, listed: Sequence[SourceFile]) -> TypedTables | None:
    """A dataset of Hugging Face: Arrow files with a ``state.json`` beside them."""
    source = HuggingFace(url)
    paths = [file.path.rpartition("/") for file in listed]
    folders = {folder for folder, _, name in paths if name == "state.json"}
    files = [f for f in source.select(listed).files if f.path.rpartition("/")[0] in folders]
    return TypedTables(source, len(files)) if files else None


def _kind(file: SourceFile, opened: OpenedSource) -> type[Source] | None:
    head = opened.read(file.path, 0, 8)
    if head.startswith((b"PAR1", b"PARE")):
        return Parquet
    # A stream begins with the mark of a message.
    if head.startswith((b"ARROW1", b"FEA1", b"\xff\xff\xff\xff")):
        return Arrow
    if head.startswith(b"\x93NUMPY") or (head.startswith(b"PK") and file.path.endswith(".npz")):
        return Numpy
    if TFRecords(".").select([file]).files:
        return TFRecords
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
