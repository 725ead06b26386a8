"""Pairs media with the file of annotations, or the text, that each of them has.

A file belongs to the image or sound whose path is the same but for the suffix and for folders that
are called after what is in them: ``train/labels/a.txt`` to ``train/images/a.jpg``,
``Annotations/a.xml`` to ``JPEGImages/a.jpg``, ``a.json`` to ``a.jpg``, ``txt/a.txt`` to
``wav/a.wav``.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from ....schemas.blocks import SourceFile
from .bystanders import is_document

_FOLDERS = frozenset(
    [
        *("image", "images", "img", "imgs", "jpegimages"),
        *("audio", "sounds", "wav", "wav48", "wavs"),
        *("ann", "annotation", "annotations", "label", "labels", "txt", "xml", "xmls", "json"),
        *("caption", "captions", "text", "texts", "transcript", "transcripts"),
    ]
)
"""Folders that are called after what is in them, in lower case."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SideFiles:
    """Files of which each belongs to an image or sound."""

    suffix: str
    """In lower case."""
    lists: frozenset[str] = frozenset()
    """Names, without the suffix, of files of the suffix that belong to none."""
    empty: bool = False
    """Whether an image without a file is complete; else it is invalid."""
    required: bool = False
    """Whether each image must have one. Then the file beside it is its own, whatever the folders
    are called, and a file of no image is skipped."""

    def is_list(self, path: str) -> bool:
        """Whether a file belongs to none by its name, unless there is an image of that name."""
        stem = path.rpartition("/")[2].lower().removesuffix(self.suffix)
        return stem in self.lists or is_document(path)


def pair(
    media: Sequence[SourceFile], sides: Sequence[SourceFile], of: SideFiles, *, what: str
) -> tuple[dict[str, SourceFile], Counter[str]]:
    """Marks side files as parts of the records of media; returns files by path, and skipped ones.

    Files without a partner are marked as unpaired if others in their folder have one; else they are
    skipped, as are lists and images of another kind, such as masks.

    Args:
        media: Images, or sounds.
        sides: Their side files.
        of: What these are.
        what: What the media are called: ``image``.
    """
    own_stems = {stem_of(file.path, of.suffix) for file in sides if of.required}
    own_stems &= {stem_of(file.path, of.suffix) for file in media}

    def key(file: SourceFile) -> tuple[bool, str]:
        stem = stem_of(file.path, of.suffix)
        is_beside = stem in own_stems
        return is_beside, stem if is_beside else key_of(file.path, of.suffix)

    a = "an" if what[0] in "aeiou" else "a"
    by_key: dict[tuple[bool, str], list[SourceFile]] = {}
    for file in sides:
        by_key.setdefault(key(file), []).append(file)
    media_of = Counter(key(file) for file in media)
    annotated = folders_of(file.path for file in media if key(file) in by_key)
    annotating = folders_of(file.path for file in sides if media_of[key(file)])
    marked: dict[str, SourceFile] = {}
    skipped: Counter[str] = Counter()
    for file in media:
        own = by_key.get(key(file), [])
        unpaired = ""
        if len(own) > 1:
            unpaired = f"several {of.suffix} files for one {what}"
        elif own and media_of[key(file)] > 1:
            unpaired = f"several {what}s for one {of.suffix} file"
        elif own:
            marked[own[0].path] = dataclasses.replace(own[0], of=file.path)
        elif file.path.rpartition("/")[0] not in annotated and not of.required:
            skipped[f"{what} in a folder without {of.suffix} files"] += 1
            continue
        elif not of.empty:
            unpaired = f"{what} without a {of.suffix} file of its name"
        marked[file.path] = dataclasses.replace(file, unpaired=unpaired) if unpaired else file
    for file in sides:
        if media_of[key(file)]:
            continue
        in_use = file.path.rpartition("/")[0] in annotating and not of.required
        if in_use and not of.is_list(file.path):
            unpaired = f"{of.suffix} file without {a} {what} of its name"
            marked[file.path] = dataclasses.replace(file, unpaired=unpaired)
        else:
            skipped[f"{of.suffix} file without {a} {what}"] += 1
    return marked, skipped


def folders_of(paths: Iterable[str]) -> set[str]:
    """The folders of files."""
    return {path.rpartition("/")[0] for path in paths}


def key_of(path: str, suffix: str = "") -> str:
    """What the paths of an image and of its side file have in common.

    Args:
        path: One of them.
        suffix: That of the side files, in lower case; else what follows the last point is left out.

    >>> key_of("train/images/a.jpg"), key_of("train/labels/a.txt"), key_of("Annotations/a.xml")
    ('train/a', 'train/a', 'a')
    """
    *folders, name = unicodedata.normalize("NFC", stem_of(path, suffix)).split("/")
    return "/".join([*(f for f in folders if f.lower() not in _FOLDERS), name])


def stem_of(path: str, suffix: str = "") -> str:
    """A path without the suffix of side files, else without what follows the last point."""
    if suffix and path.lower().endswith(suffix):
        return path[: -len(suffix)]
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{name.rpartition('.')[0] or name}"
