"""Recognizes a column of a table that divides its rows into splits: ``split``, ``is_train``.

It is called like one of splits, and its values are names of splits, with train among them. A build
refuses rows with other values, if there are two of splits; else it is no such column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...schemas.blocks import SourceFile
from ...schemas.errors import SnapshardError
from ...schemas.features import Scalar
from ...schemas.splits import FOLDERS, USUAL_WORDS, Splits, split_of
from ...transforms.sources.csv.source import Csv
from ...transforms.sources.json.source import JsonLines
from ...transforms.sources.text_stream import open_text
from ...transforms.storage.decompress import DamagedError
from ...transforms.storage.opened_source import OpenedSource
from ..survey.texts import read_texts
from .table_folders import SPLIT_COLUMNS, columns_in

_PARTS = {"publictest": "validation", "privatetest": "test"}
"""Names of competitions."""
_FLAGS = {
    "is_train": ("train", "test"),
    "is_test": ("test", "train"),
    **dict.fromkeys(("is_valid", "is_val", "is_validation"), ("validation", "train")),
}
"""Columns of 0 and 1, or False and True: the split of 1, and of 0."""
_HEAD_BYTES = 1 << 16


def splits_in_column(
    source: Any, files: Sequence[SourceFile], opened: OpenedSource
) -> Splits | None:
    """The splits that a column of a table says; None if there is no such column.

    Args:
        source: A source of tables.
        files: Its files.
        opened: Its root.
    """
    if not files or not _may_have_column(source, files[0], opened):
        return None
    for name in sorted(columns_in(source, files[:1], opened)):
        folded = name.strip().casefold()
        if name == source.label or folded not in {*SPLIT_COLUMNS, *_FLAGS}:
            continue
        try:
            column = read_texts(source, files, opened, {name: Scalar("string")})[name]
        except SnapshardError:
            continue
        values = _values(folded, [*(column.texts or {})])
        # What was not read may be of other splits: a build refuses names that are none.
        if "train" in values and (len(values) > 1 or not column.complete):
            texts = [text for of_split in values.values() for text in of_split]
            if USUAL_WORDS.keys() >= {*texts}:
                return Splits.by_column(name)
            named: Mapping[str, Any] = values
            return Splits.by_column(name, **named)
    return None


def _may_have_column(source: Any, file: SourceFile, opened: OpenedSource) -> bool:
    """Whether the head of a text has such a name: looking for columns reads whole files."""
    if not isinstance(source, Csv | JsonLines):
        return not source.media
    try:
        text = open_text(opened, file.path, num_bytes=file.num_bytes, encoding="utf-8")
        head = text.read(0, _HEAD_BYTES).lower()
    except DamagedError:
        return False
    return any(name.encode() in head for name in (*SPLIT_COLUMNS, *_FLAGS))


def _values(column: str, texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The values of each split; {} if one is no name of a split, and not two are."""
    said: dict[str, str | None]
    if column in _FLAGS:
        folded = sorted(text.lower() for text in texts)
        is_flag = folded in (["0", "1"], ["false", "true"])
        said = dict(zip(folded, reversed(_FLAGS[column]), strict=True)) if is_flag else {}
    else:
        said = {text: _PARTS.get(text.casefold()) or split_of(text) for text in texts}
    values = {
        split: tuple(sorted(text for text, of in said.items() if of == split)) for split in FOLDERS
    }
    found = {split: of_split for split, of_split in values.items() if of_split}
    return {} if None in said.values() and len(found) < 2 else found
