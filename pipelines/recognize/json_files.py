"""What JSON files suggest: which are tables, and which could be read in two ways."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ...schemas.blocks import SourceFile
from ...schemas.errors import DataError
from ...transforms.sources.arrow.hive import keys_of
from ...transforms.sources.json.documents import (
    find_form,
    find_records,
    is_object,
    lists_of_objects,
)
from ...transforms.sources.json.rows import TOO_LONG
from ...transforms.sources.json.source import JsonLines
from ...transforms.sources.text_stream import Rows, Text, open_text, undamaged
from ...transforms.storage.decompress import DamagedError
from ...transforms.storage.opened_source import OpenedSource
from .readings import Reading, UnclearError

_NUM_CHECKED = 5
"""So many first lines or items may be damaged."""
_NUM_PROBED = 16
_MAX_LINES = 5


def holds_objects(file: SourceFile, opened: OpenedSource) -> bool:
    """Whether one of the first lines, or items of its list, is a JSON object."""
    rows = next(_windows(_text(file, opened)), None)
    if rows is None:
        return False
    return (rows.problem == TOO_LONG and rows.data.startswith(b'{"')) or any(
        is_object(rows.text(row)) for row in range(min(len(rows), _NUM_CHECKED))
    )


def check_readings(source: JsonLines, files: Sequence[SourceFile], opened: OpenedSource) -> None:
    """Checks that it is clear what a record is: an object per file may hold a list of records.

    Raises:
        UnclearError: with a line to copy for each reading, if not.
        DataError: if no reading of an object is known.
    """
    readable = [file for file in files if not file.problem and file.num_bytes]
    step = 1 + len(readable) // _NUM_PROBED
    texts = [_text(file, opened) for file in readable[::step]]
    if not texts or not all(map(_is_one_object, texts)):
        return
    try:
        of_first, *of_others = map(lists_of_objects, texts)
    except DamagedError:
        return  # a build will report the damage
    lists = [keys for keys in of_first if all(keys in others for others in of_others)]
    readings = [JsonLines(source.url, records=keys) for keys in lists[:_MAX_LINES]]
    folders = sorted({file.path.rpartition("/")[0] for file in readable})
    if not readings and len(folders) > 1 and not keys_of(file.path for file in readable):
        raise UnclearError(
            f"{opened.shown} holds {len(readable):,} files with one JSON object each, in "
            f"{len(folders):,} folders (first: {folders[0]!r}) that may be classes. JSON is read "
            "without its folders, unless they are named KEY=VALUE, such as label=dog: then add "
            "hive=True.",
            [Reading(source)],
        )
    if len(readable) == 1:
        what = f"{opened.shown} is one JSON object, which would be one record."
        if not readings:
            raise DataError(
                f"{what} Expected JSON Lines, a list of objects, or an object with such a list. A "
                "table that is stored by columns, as pandas' to_json does, is written by rows "
                'with orient="records".'
            )
        what += " Its records are in a list? Name it."
    elif readings:
        readings.insert(0, source)
        what = (
            f"{opened.shown} holds {len(readable):,} files with one JSON object each, which may be "
            "the records, or hold them in a list."
        )
    else:
        return
    raise UnclearError(what, list(map(Reading, readings)))


def _text(file: SourceFile, opened: OpenedSource) -> Text:
    return open_text(opened, file.path, num_bytes=file.num_bytes, encoding="utf-8")


def _windows(text: Text) -> Iterator[Rows]:
    return undamaged(find_records(text, 0, text.stop, find_form(text)))


def _is_one_object(text: Text) -> bool:
    if find_form(text).kind == "list":
        return False
    first = [
        rows.text(row)
        for rows in itertools.islice(_windows(text), 2)
        for row in range(min(len(rows), 2))
    ]
    return len(first) == 1 and first[0].startswith(b"{")
