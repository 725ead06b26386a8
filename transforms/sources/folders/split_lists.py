"""Lists of the files of each split: ``lists={"train": "train.txt", "test": "test.txt"}``.

A list is a text that names a file on each line, as tables do: by its path, the end of it, or
without suffix. What follows a name, after a blank or comma, is not read. The split whose list is
None has all files that are in no other list.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from ....schemas.errors import SchemaError
from ....schemas.features import ClassLabel
from ...media.audio_header import SUFFIXES as SOUNDS
from ...media.image_header import SUFFIXES as IMAGES
from .side_tables import TableRows, UnlabelledError, rows_of_names

SPLIT = "split"
"""The feature of the split whose list names a file."""
Lists = Mapping[str, str | None]
"""The list of each split; None for that of all other files."""

_ENDS = (*IMAGES, *SOUNDS, ".npy", ".txt")
_SEPARATOR = re.compile(r"[\s,;]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileList:
    """A list of files, which is read once for all blocks of a process."""

    name: str
    sha256: str
    data: Callable[[], bytes] = dataclasses.field(repr=False, compare=False)

    def read(self) -> TableRows:
        """The names on its lines.

        Raises:
            SchemaError: if it is not a UTF-8 text.
        """
        return _read(self)


@functools.lru_cache(maxsize=8)
def _read(of: FileList) -> TableRows:
    return read_list(of.name, of.data())


def read_list(name: str, data: bytes) -> TableRows:
    """The names on the lines of a list.

    Raises:
        SchemaError: if it is not a UTF-8 text.
    """
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise SchemaError(f"The list {name} is not a UTF-8 text ({error}).") from None
    return rows_of_names(name, [_name_of(line.strip()) for line in lines if line.strip()])


def _name_of(line: str) -> str:
    """The name at the beginning of a line: all of it, if it ends like a file.

    >>> _name_of("my data/1.jpg"), _name_of("Abyssinian_100 1 1 1"), _name_of("a.jpg,3")
    ('my data/1.jpg', 'Abyssinian_100', 'a.jpg')
    """
    return line if line.lower().endswith(_ENDS) else _SEPARATOR.split(line, maxsplit=1)[0]


@dataclasses.dataclass(frozen=True)
class SplitLists:
    """The lists of some splits, and the split of all other files, if there is one."""

    splits: ClassLabel
    """All splits."""
    lists: Mapping[str, FileList]

    @property
    def rest(self) -> str | None:
        """The split of files that no list has."""
        return next((split for split in self.splits.names if split not in self.lists), None)

    def split_of(self, names: Sequence[str]) -> str:
        """The split of a file with these paths.

        Raises:
            UnlabelledError: if it is in several lists, or in none.
        """
        splits = [split for split, of in self.lists.items() if of.read().lists(names)]
        if len(splits) > 1:
            shown = " and ".join(self.lists[split].name for split in splits)
            raise UnlabelledError("in several lists", f"{shown} both list {names[-1]!r}")
        if not splits and self.rest is None:
            raise UnlabelledError("in no list", f"no list has {names[-1]!r}")
        return splits[0] if splits else str(self.rest)

    def has(self, names: Sequence[str]) -> bool:
        """Whether a file with these paths is in a split."""
        return self.rest is not None or any(of.read().lists(names) for of in self.lists.values())

    def check(self, paths: Sequence[tuple[str, ...]]) -> None:
        """Checks that each list names files.

        Raises:
            DataError: if one names none of them, or a name in it matches several.
        """
        for of in self.lists.values():
            of.read().check_names(
                paths,
                f"The list {of.name}",
                first="its first line is",
                advice="Name a file on each line, by its path below the source or its bare name.",
            )

    def num_unused(self, paths: Sequence[tuple[str, ...]]) -> int:
        """The number of names that match none of the files."""
        num = 0
        for of in self.lists.values():
            rows = of.read()
            num += len(rows.keys.keys() - {rows.key(names) for names in paths})
        return num


def codes_of(declared: object, splits: ClassLabel) -> dict[str, int]:
    """The number of each split in the declared feature.

    Raises:
        SchemaError: if it is not a ClassLabel of the splits.
    """
    if not isinstance(declared, ClassLabel) or not set(splits.names) <= set(declared.names):
        raise SchemaError(
            f"features= declares {SPLIT!r} as {declared}; lists= makes it a ClassLabel of the "
            f"splits, {', '.join(map(repr, splits.names))}."
        )
    return {name: code for code, name in enumerate(declared.names)}


def split_column(codes: Sequence[int]) -> pa.Array:
    """The wire column of splits."""
    return pa.array(codes, pa.int64())
