"""Recognizes lists of the files of splits: ``train.txt`` and ``val.txt``, in one folder.

A text is such a list by its name, if at least half of its lines name files of the source. Lists
that name each file once are the splits; without one of train, train has all other files. What is
incomplete or contradictory is no reading of its own: it has a sentence against it.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from ...schemas.blocks import SourceFile
from ...schemas.errors import SchemaError
from ...schemas.splits import FOLDERS, Splits, split_of
from ...transforms.sources.folders.files import LabelledFolder
from ...transforms.sources.folders.split_lists import SPLIT, read_list
from ...transforms.storage.opened_source import (
    OpenedSource,
    matches,
    path_below,
    split_glob,
    url_below,
)
from .readings import Reading
from .view import View

_MIN_SHARE = 0.99
"""The smallest share of files in lists, and of lines that name files, that is clear."""
_MIN_EVIDENCE = 0.5
"""A text is a list of files if it names at least this share of its lines, or of the files."""
_MAX_BYTES = 64 << 20
_MAX_LISTS = 32
_TRAIN = "train"
_WORDS = re.compile(
    r"[\W_]*(list|lists|files|filenames|names|ids|images|paths)[\W_]*\d*$", re.IGNORECASE
)
_USUAL_FOLDER = "Main"
"""Pascal VOC's folder of lists for boxes, beside those for other tasks."""


@dataclasses.dataclass(frozen=True)
class _List:
    """A text that lists files of a split."""

    path: str
    split: str
    named: Set[str]
    """The files that it names."""
    num_unknown: int
    """How many of its names are no files."""
    first_unknown: str


def with_lists(
    reading: Reading, view: View, *, said: Mapping[str, str] | None = None
) -> list[Reading]:
    """The reading with the splits that lists of files declare, or the same if there are none.

    Args:
        reading: A source of files, and splits if they are known.
        view: All files.
        said: The split of texts, by path, if another file says it.

    Returns:
        One reading, or several with what speaks against each.
    """
    source: Any = reading.source
    if reading.splits is not None or not isinstance(source, LabelledFolder):
        return [reading]
    if not view.has_urls:
        return [reading]
    below = path_below(source.url, view.url)
    if below is None:
        return [reading]
    below, pattern = split_glob(below)
    if why := _unread_lists(view.ending(".mat")):
        return [dataclasses.replace(reading, against=(*reading.against, why))]
    texts = [file for file in view.ending(".txt") if 0 < file.num_bytes <= _MAX_BYTES]
    of_split = {f.path: split for f in texts if (split := split_of_list(f.path, said or {}))}
    if not of_split:
        return [reading]
    start = len(below) + bool(below)
    inside = [
        file
        for file in view.listed
        if (not below or file.path.startswith(f"{below}/"))
        and (not pattern or matches(tuple(file.path[start:].split("/")), pattern))
    ]
    files = [dataclasses.replace(file, path=file.path[start:]) for file in inside]
    records = {file.record_id for file in source.select(files).files}
    found = [
        one
        for file in texts[:_MAX_LISTS]
        if file.path in of_split and file.path[start:] not in records
        if (one := _read(file.path, of_split[file.path], records, view.opened)) is not None
    ]
    if found:
        return _readings(reading, view.url, _of_one_folder(found), records)
    by_folder: dict[str, dict[str, str]] = {}
    for path, split in sorted(of_split.items()):
        if path[start:] not in records:
            by_folder.setdefault(path.rpartition("/")[0], {}).setdefault(split, path)
    unnamed = next((list(lists.values()) for lists in by_folder.values() if len(lists) > 1), [])
    if not unnamed:
        return [reading]
    against = (
        f"{' and '.join(unnamed)} are called like lists of splits, but their lines do not name one "
        "of the files each:"
    )
    return [dataclasses.replace(reading, against=(*reading.against, against))]


def _unread_lists(files: Sequence[SourceFile]) -> str:
    """What speaks against splits by chance: lists of the files of splits in MATLAB's format."""
    paths = sorted((file.path for file in files), reverse=True)
    lists = {split: path for path in paths if (split := split_of_list(path))}
    if len(lists) < 2:
        return ""
    return (
        f"{' and '.join(sorted(lists.values()))} may list the files of splits, and no source reads "
        "MATLAB files. Write the names as texts, a file on each line (docs/sources.md, 'Labels in "
        "files of other formats'); this splits by chance:"
    )


def split_of_list(path: str, said: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """The split whose files a text may list, by its name; ``trainval`` is that of train.

    Args:
        path: The text's path.
        said: The split of texts, by path, if another file says it.
    """
    stem = path.rpartition("/")[2].rpartition(".")[0]
    plain = _WORDS.sub("", stem) or stem
    return said.get(path) or (_TRAIN if plain.lower() == "trainval" else split_of(plain))


def _read(path: str, split: str, records: Set[str], opened: OpenedSource) -> _List | None:
    """The files that a text lists; None if it is about something else."""
    try:
        rows = read_list(path, opened.read(path))
    except SchemaError:
        return None
    keys = {record: key for record in records if (key := rows.key((record,))) is not None}
    twice = Counter(keys.values())
    named = {record for record, key in keys.items() if twice[key] == 1}
    unknown = [name for name in rows.keys if name not in twice]
    if len(named) < _MIN_EVIDENCE * min(len(rows.keys), len(records)) or not named:
        return None
    return _List(path, split, named, len(unknown), unknown[0] if unknown else "")


def _of_one_folder(found: Sequence[_List]) -> list[_List]:
    """The lists of the folder that name most files, in the order of splits."""
    by_folder: dict[str, list[_List]] = {}
    for one in found:
        by_folder.setdefault(one.path.rpartition("/")[0], []).append(one)
    kept = {folder: _without_unions(lists) for folder, lists in by_folder.items()}

    def rank(folder: str) -> tuple[int, bool]:
        named = set().union(*(one.named for one in kept[folder]))
        return len(named), folder.endswith(_USUAL_FOLDER)

    return sorted(
        kept[max(kept, key=rank)], key=lambda one: (list(FOLDERS).index(one.split), one.path)
    )


def _without_unions(lists: Sequence[_List]) -> list[_List]:
    """The lists without those that have all files of several others, such as ``trainval``."""
    return [
        one
        for one in lists
        if sum(other.named < one.named for other in lists) < 2
        and not (_is_of_both(one) and any(other.named < one.named for other in lists))
    ]


def _is_of_both(one: _List) -> bool:
    return "trainval" in one.path.rpartition("/")[2].lower()


def _readings(
    reading: Reading, root: str, lists: Sequence[_List], records: Set[str]
) -> list[Reading]:
    named = Counter(record for one in lists for record in one.named)
    splits = [one.split for one in lists]
    is_rest = _TRAIN not in splits
    names = " and ".join(one.path for one in lists)
    if len(lists) == 1 and len(named) >= _MIN_SHARE * len(records):
        return [reading]  # of all files, as annotation tools write it
    against: list[str] = []
    several = [record for record, num in named.items() if num > 1]
    if several:
        first = f"the first of them {min(several)!r}"
        against.append(f"{names} have {len(several):,} files in common, {first}.")
    elif len(set(splits)) < len(splits):
        against.append(f"{names} may be several lists of one split.")
    elif not is_rest and len(named) < _MIN_SHARE * len(records):
        missing = min(records - named.keys())
        verb = "list" if len(lists) > 1 else "lists"
        against.append(
            f"{names} {verb} {len(named):,} of {len(records):,} files, and not {missing!r}:"
        )
    for one in lists:
        if one.num_unknown > (1 - _MIN_SHARE) * (one.num_unknown + len(one.named)):
            against.append(
                f"{one.path} lists {one.num_unknown:,} files that are not there, the first of them "
                f"{one.first_unknown!r}."
            )
    listing = _listing(reading, root, lists, is_rest=is_rest or len(lists) == 1)
    if not against:
        return [listing]
    ignoring = f"This ignores {names}, and splits by chance:"
    plain = dataclasses.replace(reading, against=(*reading.against, ignoring))
    if several or len(set(splits)) < len(splits):
        return [dataclasses.replace(plain, against=(*against, *plain.against))]
    return [dataclasses.replace(listing, against=(*reading.against, *against)), plain]


def _listing(reading: Reading, root: str, lists: Sequence[_List], *, is_rest: bool) -> Reading:
    """The reading with these lists, and the split of all other files."""
    urls: dict[str, str | None] = {one.split: url_below(root, one.path) for one in lists}
    if is_rest:
        urls = {_TRAIN: None, **urls} if _TRAIN not in urls else {**urls, "test": None}
    source: Any = dataclasses.replace(reading.source, lists=urls)  # type: ignore[type-var]
    values: dict[str, Any] = {split: split for split in urls}
    named = " and ".join(one.path for one in lists)
    means = f"{reading.means}; splits by {named}"
    return dataclasses.replace(
        reading, source=source, splits=Splits.by_column(SPLIT, **values), means=means
    )
