"""A side table for each of several folders, as one: such as COCO's, one document for each split.

A name in a table is that of a file in its folder alone. Classes of the tables are united by name.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from ....schemas.errors import SchemaError
from ....schemas.features import BoundingBoxes, ClassLabel, Feature, Features, item_class
from ....schemas.features import Sequence as SequenceFeature
from .annotations.model import BOX_LABELS, BOXES, FLAGS, NUM_BAD_BOXES, box_features
from .side_tables import LabelTable, TableRows, UnlabelledError


def folder_of(path: str, folders: Iterable[str]) -> str | None:
    """The longest of the folders that a file is in; None if it is in none.

    >>> folder_of("images/train/a.jpg", ["images", "images/train"])
    'images/train'
    """
    return max((f for f in folders if path.startswith(f"{f.rstrip('/')}/")), key=len, default=None)


@dataclasses.dataclass(frozen=True)
class FolderTables:
    """Tables by the folders whose files they name; used like a LabelTable."""

    tables: Mapping[str, LabelTable]

    def infer(self, paths: Sequence[tuple[str, ...]]) -> dict[str, Feature]:
        """The features of all tables; see :meth:`LabelTable.infer`.

        Raises:
            DataError: if a table names none of its folder's files, or matches several.
            SchemaError: if one is not a valid table, or they do not have the same columns.
        """
        below = self._below(paths)
        return _united(
            {
                f"{table.name} of {folder}": table.infer(below[folder])
                for folder, table in self.tables.items()
            }
        )

    def num_unused(self, paths: Sequence[tuple[str, ...]]) -> int:
        """The number of names that match no file; see :meth:`LabelTable.num_unused`."""
        below = self._below(paths)
        return sum(table.num_unused(below[folder]) for folder, table in self.tables.items())

    def names(self) -> FolderRows:
        """The rows for the names of their files; see :meth:`LabelTable.names`."""
        return self.read(self.known_features())

    def known_features(self) -> dict[str, Feature]:
        """The features of all tables; see :meth:`LabelTable.known_features`."""
        return _united({f: table.known_features() for f, table in self.tables.items()})

    def read(self, features: Features) -> FolderRows:
        """The rows of all tables; see :meth:`LabelTable.read`."""
        rows = {folder: table.read(features) for folder, table in self.tables.items()}
        sizes = [part.sizes for part in rows.values()]
        every = [size for size in sizes if size is not None]
        if len({part.in_pixels for part in rows.values()}) > 1 or 0 < len(every) < len(sizes):
            names = " and ".join(table.name for table in self.tables.values())
            raise SchemaError(f"The tables {names}: only some have the sizes of images.")
        return FolderRows(
            name=", ".join(table.name for table in self.tables.values()),
            keys={},
            names=[name for part in rows.values() for name in part.names],
            columns=pa.concat_batches([part.columns for part in rows.values()]),
            unfit={},
            num_lost=sum(part.num_lost for part in rows.values()),
            first_lost=next((part.first_lost for part in rows.values() if part.num_lost), ""),
            sizes=np.concatenate(every) if every else None,
            in_pixels=any(part.in_pixels for part in rows.values()),
            parts=rows,
        )

    def _below(self, paths: Sequence[tuple[str, ...]]) -> Mapping[str, list[tuple[str, ...]]]:
        """The names of each folder's files in its table."""
        found: dict[str, list[tuple[str, ...]]] = collections.defaultdict(list)
        for names in paths:
            folder = folder_of(names[0], self.tables)
            if folder is not None:
                found[folder].append(_names_below(names[0], folder))
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderRows(TableRows):
    """The rows of several tables, one after another."""

    parts: Mapping[str, TableRows]
    """The rows of each table, by its folder."""

    def lists(self, names: Sequence[str]) -> bool:
        """Whether there are rows for a file with these paths."""
        folder = folder_of(names[0], self.parts)
        return folder is not None and self.parts[folder].lists(_names_below(names[0], folder))

    def find(self, names: Sequence[str]) -> int:
        """The row of a file.

        Raises:
            UnlabelledError: if there is none, or it is invalid.
        """
        folder = folder_of(names[0], self.parts)
        if folder is None:
            raise UnlabelledError("no row in the table", f"no table is for {names[0]!r}")
        start = 0
        for other, rows in self.parts.items():
            if other == folder:
                return start + rows.find(_names_below(names[0], folder))
            start += rows.columns.num_rows
        raise AssertionError(folder)


def _names_below(path: str, folder: str) -> tuple[str, ...]:
    return path, path.removeprefix(f"{folder.rstrip('/')}/")


def _united(features: Mapping[str, Features]) -> dict[str, Feature]:
    """The features of several tables, whose classes are united.

    Raises:
        SchemaError: if they do not have the same columns, except for those of boxes.
    """
    first, *_ = features
    names = dict.fromkeys(name for found in features.values() for name in found)
    united = {}
    for name in names:
        given = {table: found[name] for table, found in features.items() if name in found}
        if len(given) < len(features) and name not in (BOX_LABELS, *FLAGS):
            lacking = next(table for table in features if table not in given)
            raise SchemaError(f"The table {lacking} lacks the column {name!r} of {first}.")
        united[name] = _one(name, given)
    if isinstance(boxes := united.get(BOXES), BoundingBoxes):
        per_box = [name for name in (BOX_LABELS, *FLAGS) if name in united]
        items = item_class(united.get(BOX_LABELS))
        classes = () if items is None else items.names
        mends = NUM_BAD_BOXES in united
        united |= box_features(classes, set(per_box), boxes.image or "image", mends=mends)
    return united


def _one(name: str, given: Mapping[str, Feature]) -> Feature:
    """The feature of a column in several tables."""
    (first, feature), *others = given.items()
    for table, other in others:
        of, of_other = _class(feature), _class(other)
        if of is not None and of_other is not None and type(feature) is type(other):
            feature = _with_names(feature, _joined(of.names, of_other.names))
        elif feature != other and name != BOXES:
            raise SchemaError(
                f"The column {name!r} is {feature} in {first} and {other} in {table}. Make them "
                "equal."
            )
    return feature


def _class(feature: Feature) -> ClassLabel | None:
    of = feature.of if isinstance(feature, SequenceFeature) else feature
    return of if isinstance(of, ClassLabel) else None


def _with_names(feature: Feature, names: tuple[str, ...]) -> Feature:
    if isinstance(feature, ClassLabel):
        return dataclasses.replace(feature, names=names)
    assert isinstance(feature, SequenceFeature)
    return dataclasses.replace(feature, of=ClassLabel(names))


def _joined(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Classes of both: sorted if both are, else in the order of the first, then the others."""
    joined = tuple(dict.fromkeys((*names, *others)))
    are_sorted = [*names] == sorted(names) and [*others] == sorted(others)
    return tuple(sorted(joined)) if are_sorted else joined
