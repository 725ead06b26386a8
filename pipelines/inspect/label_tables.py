"""Recognizes tables that label images or sounds: in their folder, or beside it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from ...schemas.blocks import SourceFile
from ...schemas.errors import SnapshardError
from ...schemas.features import ClassLabel, Features, Scalar
from ...schemas.splits import Splits
from ...transforms import storage
from ...transforms.media.audio_header import SUFFIXES as SOUNDS
from ...transforms.media.image_header import SUFFIXES as IMAGES
from ...transforms.sources.folders.audio import AudioFolder
from ...transforms.sources.folders.images import ImageFolder
from ...transforms.sources.folders.labels import LABEL, looks_like_splits
from ...transforms.sources.folders.side_tables import LabelTable, is_table
from ...transforms.storage.opened_source import OpenedSource, is_hidden

_MIN_NAMED = 0.99
"""A table is that of a folder's labels if it names at least this share of the files."""
_MAX_TABLES = 20
_MAX_TABLE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class LabelledFiles:
    """Images or sounds, and a table that names them."""

    source: ImageFolder | AudioFolder
    splits: Splits | None
    """If folders name splits."""


def find_labelled_files(
    url: str, listed: Sequence[SourceFile], opened: OpenedSource, *, label: str | None
) -> LabelledFiles | None:
    """Images or sounds outside class folders, and a table in or beside the folder that has them.

    A table is used only if it has a row for 99 % of the files: more than 1 % of rejects would fail
    a build. Its label is the column ``label``, or the only column, or else ``label``.
    """
    by_kind: dict[type[ImageFolder | AudioFolder], list[str]] = {
        ImageFolder: [f.path for f in listed if _is_file_of(IMAGES, f)],
        AudioFolder: [f.path for f in listed if _is_file_of(SOUNDS, f)],
    }
    make, paths = max(by_kind.items(), key=lambda item: len(item[1]))
    of_images = make is ImageFolder
    tables = [
        file
        for file in listed
        if is_table(file.path, of_images=of_images) and not is_hidden(file.path)
    ]
    if len(paths) <= len(tables) or opened.pattern or opened.single or opened.archived:
        return None
    splits = Splits.by_folder() if looks_like_splits(paths) else None
    num_classes = len({path.split("/")[1 if splits else 0] for path in paths if "/" in path})
    depths = {path.count("/") for path in paths}
    if min(depths) > (splits is not None) and num_classes > 1:
        return None  # class folders
    root = url.rstrip("/") or url
    near = [file.path for file in tables if _is_moderate(file)][:_MAX_TABLES]
    inner = "" if splits else os.path.commonpath([os.path.dirname(path) for path in paths])
    urls = [f"{root}/{path}" for path in near] + _tables_beside(root, of_images=of_images)
    for below in dict.fromkeys((inner, "")):
        place = f"{root}/{below}" if below else url
        names = [path.removeprefix(f"{below}/") for path in paths]
        found = [
            (table, columns)
            for table in urls
            if (columns := _columns_for(table, names, make, splits, opened, label)) is not None
        ]
        if found:
            table, columns = found[0]
            plain = [n for n, f in columns.items() if isinstance(f, Scalar | ClassLabel)]
            only = plain[0] if len(plain) == len(columns) == 1 else None
            chosen = label or (LABEL if LABEL in columns else only)
            split_folders = True if splits else None
            source = make(place, table=table, label=chosen, split_folders=split_folders)
            return LabelledFiles(source, splits)
    return None


def _is_file_of(suffixes: tuple[str, ...], file: SourceFile) -> bool:
    return file.path.lower().endswith(suffixes) and not is_hidden(file.path)


def _is_moderate(file: SourceFile) -> bool:
    """Whether a table is small enough to look at, and in the folder or one below it."""
    return file.path.count("/") <= 1 and file.num_bytes <= _MAX_TABLE_BYTES


def _tables_beside(root: str, *, of_images: bool) -> list[str]:
    """The tables of moderate size next to a local folder."""
    if not storage.is_local(root) or "://" in root:
        return []
    plain = os.path.normpath(root)
    last = os.path.basename(plain)
    outer = os.path.join(plain, os.pardir) if last in ("", ".", "..") else os.path.dirname(plain)
    try:
        names = sorted(entry.name for entry in os.scandir(outer or ".") if entry.is_file())
    except OSError:
        return []
    found = [
        os.path.normpath(os.path.join(outer, name))
        for name in names
        if is_table(name, of_images=of_images) and not is_hidden(name)
    ]
    return [path for path in found if os.path.getsize(path) <= _MAX_TABLE_BYTES][:_MAX_TABLES]


def _columns_for(
    table: str,
    paths: Sequence[str],
    make: type[ImageFolder | AudioFolder],
    splits: Splits | None,
    opened: OpenedSource,
    label: str | None,
) -> Features | None:
    """The columns of a table that names these files; None if it does not."""
    content = "image" if make is ImageFolder else None
    try:
        data = opened.read_side(table)
        read = LabelTable(name=os.path.basename(table), data=data, image=content, label=label)
        columns = read.features()
        rows = read.read(columns)
    except SnapshardError:
        return None
    named = sum(
        rows.key((path, path.partition("/")[2]) if splits else (path,)) is not None
        for path in paths
    )
    return columns if named >= _MIN_NAMED * len(paths) else None
