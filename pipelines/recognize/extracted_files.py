"""Recognizes Excel workbooks and HDF5 files, of which one sheet or one set of arrays is a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...schemas.blocks import SourceFile
from ...schemas.errors import DataError
from ...transforms import storage
from ...transforms.sources.excel import Excel
from ...transforms.sources.hdf5 import Hdf5
from ...transforms.storage.opened_source import OpenedSource
from .readings import Reading, UnclearError
from .table_folders import url_of
from .unread_formats import format_of

_SOURCES: Mapping[str, type[Excel | Hdf5]] = {"Excel": Excel, "HDF5": Hdf5}
_MAX_READINGS = 20


def find_extracted(
    url: str, listed: Sequence[SourceFile], opened: OpenedSource
) -> Reading | None:
    """The only table of the only workbook or HDF5 file; None if most files are others.

    Raises:
        UnclearError: if there are several files or tables, with a line for each.
        DataError: if the file is damaged, or has no table.
        RecipeError: if the package that reads it is not installed.
    """
    name, files = format_of(listed, opened)
    if name not in _SOURCES:
        return None
    urls = [url if opened.single else url_of(url, file.path, opened) for file in files]
    sources = [_SOURCES[name](found) for found in urls if found is not None]
    if not sources:
        raise DataError(
            f"{opened.shown} holds {len(files):,} {name} files. ss.{_SOURCES[name].__name__} reads "
            "one: name it."
        )
    if len(files) > 1:
        raise UnclearError(
            f"{opened.shown} holds {len(files):,} {name} files (first: {files[0].path!r}), each of "
            "which may be the records.",
            [Reading(source) for source in sources[:_MAX_READINGS]],
        )
    with storage.temporary_folder() as scratch:
        readings = sources[0].readings(f"{scratch}/files", base=".", limits=opened.limits)
    if len(readings) != 1:
        raise UnclearError(
            f"{opened.shown} holds {sources[0].say_readings(readings)}",
            [Reading(source) for source in readings[:_MAX_READINGS]],
        )
    return Reading(readings[0])
