"""Recognizes files of typed records by their content: Parquet, Arrow, JSON, NumPy, TFRecord."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ...schemas.blocks import SourceFile
from ...schemas.recipe import Source
from ...schemas.splits import FOLDERS, Splits
from ...transforms.sources.arrow.hugging_face import HuggingFace
from ...transforms.sources.arrow.ipc import Arrow
from ...transforms.sources.arrow.parquet import Parquet
from ...transforms.sources.folders.bystanders import IMAGES, SOUNDS
from ...transforms.sources.json.source import JsonLines
from ...transforms.sources.numpy import Numpy, array_names, split_names
from ...transforms.sources.tfrecord.source import TFRecords, holds_frame, is_named
from ...transforms.storage.opened_source import OpenedSource
from .json_files import check_readings, holds_objects
from .readings import Reading
from .record_bytes import with_images
from .table_folders import arrange_tables
from .view import View

_LABELS = ("y", "label", "labels")
"""Arrays to predict, of two."""


@dataclasses.dataclass(frozen=True)
class TypedTables:
    """A source of tables, the number of files it would read, and sources of other kinds."""

    source: Source
    num_files: int
    others: tuple[Source, ...] = ()


def find_typed_tables(view: View) -> TypedTables | None:
    """The kind of typed table that most files are, by name and content; None if there is none.

    For a single file, only the content decides.
    """
    listed = view.without(*IMAGES, *SOUNDS)
    dataset = _find_dataset(view.url, listed)
    if dataset is not None:
        return dataset
    found = []
    for make in (Parquet, Arrow, JsonLines, Numpy, TFRecords):
        source = make(view.url)
        files = [file for file in source.select(listed).files if not file.problem]
        # The first file decides: another file with such a name but other content is rejected.
        first = next((file for file in files if file.num_bytes), None)
        if first is not None and _table_kind(first, view.opened) is make:
            found.append(TypedTables(source, len(files)))
    if not found:
        return None
    most = max(found, key=lambda tables: tables.num_files)
    others = tuple(tables.source for tables in found if tables is not most)
    return dataclasses.replace(most, others=others)


def _find_dataset(url: str, listed: Sequence[SourceFile]) -> TypedTables | None:
    """A Hugging Face dataset: Arrow files next to a ``state.json``."""
    source = HuggingFace(url)
    paths = [file.path.rpartition("/") for file in listed]
    folders = {folder for folder, _, name in paths if name == "state.json"}
    files = [f for f in source.select(listed).files if f.path.rpartition("/")[0] in folders]
    return TypedTables(source, len(files)) if files else None


def _table_kind(file: SourceFile, opened: OpenedSource) -> type[Source] | None:
    head = opened.read(file.path, 0, 8)
    if head.startswith((b"PAR1", b"PARE")):
        return Parquet
    # A stream begins with the marker of a message.
    if head.startswith((b"ARROW1", b"FEA1", b"\xff\xff\xff\xff")):
        return Arrow
    if head.startswith(b"\x93NUMPY") or (head.startswith(b"PK") and file.path.endswith(".npz")):
        return Numpy
    if TFRecords(".").select([file]).files and (is_named(file.path) or holds_frame(file, opened)):
        return TFRecords
    return JsonLines if holds_objects(file, opened) else None


def read_typed(source: Source, view: View) -> Reading:
    """What typed tables are, by their content."""
    files, opened = source.select(view.listed).files, view.opened
    if isinstance(source, Numpy) and (arrays := _split_arrays(source, files, opened)) is not None:
        return arrays
    if isinstance(source, JsonLines):
        check_readings(source, files, opened)
    elif isinstance(source, TFRecords):
        source = with_images(source, files, opened)
    return arrange_tables(source, view)


def _split_arrays(
    source: Numpy, files: Sequence[SourceFile], opened: OpenedSource
) -> Reading | None:
    """The source of arrays such as ``x_train`` and ``x_test``, and its splits; None for others.

    Of ``x`` and ``y``, the label is ``y``; of ``images`` and ``labels``, it is ``labels``.
    """
    every: set[str] = set()
    there: set[str] = set()
    for file in files:
        names = array_names(opened, file.path)
        found = split_names(names)
        if len(found) < 2:
            return None
        every.update(name for arrays in found.values() for name in arrays)
        there.update(found)
    label = next((name for name in _LABELS if name in every and len(every) == 2), None)
    named: dict[str, Any] = {
        split: tuple(text for text in texts if text in there) for split, texts in FOLDERS.items()
    }
    splits = Splits.by_folder(**{split: texts for split, texts in named.items() if texts})
    return Reading(dataclasses.replace(source, split_arrays=True, label=label), splits)
