"""Recognizes Excel workbooks and HDF5 files: a table is a sheet, or datasets of one length.

One table is read. Several that are named like splits (sheets ``train`` and ``test``, datasets
``x_train`` and ``x_test``) are the splits. Others are refused, with a line for each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...schemas.blocks import SourceFile
from ...schemas.errors import DataError
from ...schemas.splits import FOLDERS, Splits, split_in
from ...transforms import storage
from ...transforms.sources.combined import Sources
from ...transforms.sources.excel import Excel
from ...transforms.sources.hdf5 import Hdf5
from .readings import Reading, UnclearError
from .unread_formats import check_formats
from .view import View

_Source = Excel | Hdf5
_SOURCES: Mapping[str, type[_Source]] = {"Excel": Excel, "HDF5": Hdf5}
_MIXED = "mixed"
"""The split of datasets whose names say several."""
_MAX_FILES = 20
_MAX_READINGS = 20


def find_extracted(view: View) -> Reading | None:
    """The only table of workbooks or HDF5 files, or one for each split; None for other files.

    Raises:
        UnclearError: if there are several tables, with a line for each.
        DataError: if a file is damaged, or has no table, or there are too many; or if most files
            are of a format that no source reads.
        RecipeError: if the package that reads them is not installed.
    """
    name, files = check_formats(view)
    return _read(name, files, view) if name else None


def _read(name: str, files: Sequence[SourceFile], view: View) -> Reading:
    opened = view.opened
    urls = [view.url if opened.single else view.inner_url(file.path) for file in files]
    sources = [_SOURCES[name](found) for found in urls if found is not None]
    if len(sources) < len(files) or len(files) > _MAX_FILES:
        raise DataError(
            f"{opened.shown} holds {len(files):,} {name} files (first: {files[0].path!r}), of "
            f"which ss.{_SOURCES[name].__name__} reads one. Name it, several by "
            "ss.Sources(a=…, b=…), or read them by a function: ss.Files."
        )
    with storage.temporary_folder() as scratch:
        folder = f"{scratch}/files"
        tables = [
            table
            for source in sources
            for table in source.readings(folder, base=".", limits=opened.limits)
        ]
        if len(tables) == 1:
            return Reading(tables[0])
        splits = _splits(tables)
        columns = {split: _columns(table, folder) for split, table in splits.items()}
    readings = [Reading(table) for table in tables]
    why = "each of which may be the records"
    if splits:
        joined = Reading(Sources(**splits), Splits.by_folder())
        if len(set(columns.values())) == 1:
            return joined
        readings = [joined, *readings]
        why = "named like splits, with different columns"
    elif len(sources) == len(tables) and (all_files := _joined(tables)) is not None:
        readings = [Reading(all_files), *readings]
    what = "sheets" if name == "Excel" else "sets of datasets of one length"
    where = f"in {len(files):,} files, " if len(files) > 1 else ""
    raise UnclearError(
        f"{opened.shown} holds {len(tables) or 'no'} {what}, {where}{why}.",
        readings[:_MAX_READINGS],
    )


def _splits(tables: Sequence[_Source]) -> dict[str, _Source]:
    """The tables by the splits that all their names say; {} if they do not."""
    found: dict[str, _Source] = {}
    for table in tables:
        split = _split_of(table)
        if split == _MIXED:
            continue  # all groups of a file together
        if split is None or split in found:
            return {}
        found[split] = table
    return {split: found[split] for split in FOLDERS if split in found} if "train" in found else {}


def _split_of(table: _Source) -> str | None:
    """The split in the name of a sheet, of all datasets, or of the file; None without one."""
    inner = [table.sheet or ""] if isinstance(table, Excel) else (table.datasets or {}).values()
    splits = {split_in(path) for path in inner if path}
    if len(splits) > 1:
        return None if None in splits else _MIXED
    return splits.pop() if splits else split_in(_stem(table))


def _columns(table: _Source, folder: str) -> frozenset[str]:
    """The names of a table's columns."""
    if isinstance(table, Hdf5) and table.datasets:
        return frozenset(table.datasets)
    extracted: Any = table.extract(folder, base=".")
    return frozenset(extracted.columns)


def _joined(tables: Sequence[_Source]) -> Sources | None:
    """The tables of several files under the files' names; None if two have one name."""
    names = [re.sub(r"\W+", "_", _stem(table), flags=re.ASCII).strip("_") for table in tables]
    named = dict(zip(names, tables, strict=True))
    fit = all(name.isidentifier() and name.isascii() for name in named)
    return Sources(**named) if fit and len(named) == len(tables) else None


def _stem(table: _Source) -> str:
    return os.path.basename(table.url.partition("::")[0]).partition(".")[0]
