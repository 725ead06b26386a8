"""Recognizes images with boxes by the files beside them that parse as annotations of these images.

What nearly is such a folder, or can be read in several ways, is refused with what was seen and a
line to copy for each reading.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...schemas.blocks import SourceFile
from ...schemas.errors import DataError, SchemaError
from ...schemas.splits import FOLDERS, USUAL_WORDS, Splits, split_in
from ...transforms.media.image_header import SUFFIXES as IMAGES
from ...transforms.sources.folders.annotations import yolo
from ...transforms.sources.folders.annotations.beside import Format, read_all
from ...transforms.sources.folders.annotations.coco import NoBoxesError
from ...transforms.sources.folders.annotations.model import (
    BOXES,
    CAPTIONS,
    ImageBoxes,
    InvalidAnnotationError,
)
from ...transforms.sources.folders.annotations.rows import columns_of_boxes, read_header
from ...transforms.sources.folders.folder_tables import folder_of
from ...transforms.sources.folders.images import FORMATS, ImageFolder
from ...transforms.sources.folders.side_files import folders_of, key_of
from ...transforms.sources.folders.side_tables import LabelTable, TableRows
from .readings import Reading, UnclearError
from .split_lists import with_lists
from .view import View

_MIN_PAIRED = 0.99
"""The smallest share of images with annotations, and of annotations with images, that is clear."""
_NUM_LOOKED_AT = 64
_MEANS = "with its boxes"
_HEAD_BYTES = 1 << 16
_COCO = re.compile(rb'"(images|annotations|categories|info|licenses)"\s*:\s*[\[{]')
"""Members of COCO's documents."""
_ANY_CLASS = {number: str(number) for number in range(10_000)}


@dataclasses.dataclass(frozen=True)
class _Folder:
    """The files of a source, by what they may be."""

    view: View
    images: Sequence[SourceFile]
    others: Sequence[SourceFile]

    def ending(self, *suffixes: str) -> list[SourceFile]:
        """The files besides images with one of these suffixes, those of upper folders first."""
        files = [file for file in self.others if file.path.lower().endswith(suffixes)]
        return sorted(files, key=lambda file: (file.path.count("/"), file.path))


def find_annotations(view: View) -> Reading | None:
    """How to read a folder of images and files of their boxes; None if there are no boxes.

    Raises:
        DataError: if files are missing, or there are several ways to read it.
    """
    images = [file for file in view.ending(*IMAGES) if not file.problem]
    if not images:
        return None
    others = [file for file in view.without(*IMAGES) if not file.problem]
    folder = _Folder(view, images, others)
    readings = [
        *_find_yolo(folder),
        *_find_voc(folder),
        *_find_labelme(folder),
        *_find_tables(folder),
    ]
    if any(reading.splits is None for reading in readings):
        said = _said_lists(folder)
        readings = [
            listing for reading in readings for listing in with_lists(reading, view, said=said)
        ]
    clear = [reading for reading in readings if not reading.against]
    if len(clear) == 1:
        return clear[0]
    if not readings:
        return None
    what = "boxes" if any(_MEANS in reading.means for reading in readings) else "captions"
    kinds = f"{what} in several forms" if clear else f"{what}, but it is not clear how to read them"
    raise UnclearError(f"{view.shown} holds {len(images):,} images with {kinds}.", readings)


def _find_yolo(folder: _Folder) -> list[Reading]:
    boxes = FORMATS["yolo"]
    pairs = _pairs(folder, boxes, names=_ANY_CLASS, polygons=True)
    if pairs is None:
        return []
    labels = pairs.annotations
    seen = _look_at(folder, boxes, labels, names=_ANY_CLASS, polygons=False)
    polygons = any(isinstance(found, InvalidAnnotationError) for found in seen)
    against = _incomplete(folder, pairs, boxes)
    if polygons:
        against += ("The labels of YOLO are polygons; this reads the boxes around them:",)
    named = _yolo_names(folder)
    if len(named) > 1:
        against += (f"The classes are named differently in {' and '.join(named)}.",)
    if not named:
        every = _look_at(folder, boxes, labels, names=_ANY_CLASS, polygons=True, every=True)
        numbers = [int(n) for found in every if isinstance(found, ImageBoxes) for n in found.labels]
        named = {"": {number: str(number) for number in range(max(numbers, default=0) + 1)}}
        against += ("No data.yaml, classes.txt or obj.names names the classes; in their order:",)
    readings = []
    for path, names in named.items():
        splits, unclear = _splits(folder, pairs.images, _yolo_folders(folder, path))
        if unnamed := sorted(_numbers_in(seen) - names.keys()):
            unclear += (f"The labels have the class {unnamed[0]}, which {path} does not name.",)
        by_url = folder.view.has_urls and path
        source = ImageFolder(
            folder.view.url,
            boxes="yolo",
            names=folder.view.url_below(path) if by_url else tuple(names.values()),
            polygons=polygons,
        )
        num_rejects = pairs.num_rejects(folder, boxes)
        readings.append(Reading(source, splits, _MEANS, against + unclear, num_rejects))
    return readings


def _numbers_in(seen: Sequence[ImageBoxes | InvalidAnnotationError]) -> set[int]:
    return {int(n) for found in seen if isinstance(found, ImageBoxes) for n in found.labels}


def _yolo_names(folder: _Folder) -> dict[str, Mapping[int, str]]:
    """Files that name classes, with the names; of files with the same names the uppermost."""
    texts = [file for file in folder.ending(".txt") if file.path.lower().endswith("classes.txt")]
    for files in (folder.ending(".yaml", ".yml"), [*folder.ending(".names"), *texts]):
        named: dict[str, Mapping[int, str]] = {}
        for file in files[:_NUM_LOOKED_AT]:
            try:
                names = yolo.read_names(file.path, _read_small(folder, file))
            except DataError:
                continue
            if names not in named.values():
                named[file.path] = names
        if named:
            return named
    return {}


def _yolo_folders(folder: _Folder, path: str) -> dict[str, str]:
    """The folder of each split, as ``data.yaml`` names it."""
    if not path.lower().endswith((".yaml", ".yml")):
        return {}
    folders = {}
    for word, place in yolo.read_places(path, folder.view.opened.read(path)).items():
        if (key := key_of(f"{place}/.")).strip("./"):
            folders[USUAL_WORDS[word]] = key.removesuffix("/.").rpartition("/")[2]
    return folders


def _said_lists(folder: _Folder) -> dict[str, str]:
    """The split of each text that ``data.yaml`` or darknet's ``obj.data`` names, by its path."""
    texts = [file.path for file in folder.ending(".txt")]
    said = {}
    for file in folder.ending(".yaml", ".yml", ".data")[:_NUM_LOOKED_AT]:
        with contextlib.suppress(DataError):
            for word, place in yolo.read_places(file.path, _read_small(folder, file)).items():
                ends = [t for t in texts if f"/{place}".endswith(f"/{t}") or _is_end(place, t)]
                if ends:
                    said[max(ends, key=len)] = USUAL_WORDS[word]
    return said


def _is_end(place: str, path: str) -> bool:
    return f"/{path}".endswith(f"/{place.removeprefix('./')}")


def _read_small(folder: _Folder, file: SourceFile) -> bytes:
    return folder.view.head(file, yolo.MAX_NAMES_BYTES + 1)


def _find_voc(folder: _Folder) -> list[Reading]:
    boxes = FORMATS["voc"]
    pairs = _pairs(folder, boxes)
    if pairs is None:
        return []
    splits, unclear = _splits(folder, pairs.images)
    against = _incomplete(folder, pairs, boxes)
    source = ImageFolder(folder.view.url, boxes="voc")
    return [Reading(source, splits, _MEANS, against + unclear, pairs.num_rejects(folder, boxes))]


def _find_labelme(folder: _Folder) -> list[Reading]:
    boxes = FORMATS["labelme"]
    pairs = _pairs(folder, boxes, polygons=True)
    if pairs is None:
        return []
    seen = _look_at(folder, boxes, pairs.annotations, polygons=False)
    polygons = any(isinstance(found, InvalidAnnotationError) for found in seen)
    splits, against = _splits(folder, pairs.images)
    against += _incomplete(folder, pairs, boxes)
    if polygons:
        against += ("The shapes of LabelMe are polygons; this reads the boxes around them:",)
    source = ImageFolder(folder.view.url, boxes="labelme", polygons=polygons)
    return [Reading(source, splits, _MEANS, against, pairs.num_rejects(folder, boxes))]


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """Annotations, and all images of the folders in which images have one."""

    images: Sequence[str]
    annotations: Sequence[SourceFile]

    @property
    def bare(self) -> list[str]:
        """Images without an annotation."""
        keys = {key_of(file.path) for file in self.annotations}
        return [path for path in self.images if key_of(path) not in keys]

    def lost(self, folder: _Folder, of: Format) -> list[str]:
        """Annotations without an image, beside others that have one."""
        folders = folders_of(file.path for file in self.annotations)
        paths = {file.path for file in self.annotations}
        return [
            file.path
            for file in folder.ending(of.suffix)
            if file.path not in paths
            and file.path.rpartition("/")[0] in folders
            and not of.is_list(file.path)
        ]

    def num_rejects(self, folder: _Folder, of: Format) -> int:
        """Number of files that are rejects for lack of a partner."""
        return len(self.lost(folder, of)) + (0 if of.empty else len(self.bare))


def _pairs(folder: _Folder, of: Format, **settings: Any) -> _Pairs | None:
    """The pairs of a format, if most annotations that have an image of their name are valid."""
    candidates = folder.ending(of.suffix)
    if not candidates:
        return None
    images = [file.path for file in folder.images]
    keys = set(map(key_of, images))
    paired = [file for file in candidates if key_of(file.path) in keys]
    seen = _look_at(folder, of, paired, **settings)
    valid = [found for found in seen if isinstance(found, ImageBoxes)]
    if 2 * len(valid) <= len(seen) or not any(found.labels for found in valid):
        return None
    annotated = {key_of(file.path) for file in paired}
    folders = folders_of(path for path in images if key_of(path) in annotated)
    return _Pairs([path for path in images if path.rpartition("/")[0] in folders], paired)


def _look_at(
    folder: _Folder,
    of: Format,
    files: Sequence[SourceFile],
    *,
    every: bool = False,
    **settings: Any,
) -> list[ImageBoxes | InvalidAnnotationError]:
    """What some of the files hold, or all of them."""
    of = dataclasses.replace(of, parse=functools.partial(of.parse, **settings))
    looked_at = files if every else files[:: 1 + len(files) // _NUM_LOOKED_AT]
    return [found for _, found in read_all(looked_at, folder.view.opened, of=of)]


@dataclasses.dataclass(frozen=True)
class _Document:
    """A file that has the boxes of many images."""

    path: str
    table: LabelTable
    rows: TableRows

    @property
    def what(self) -> str:
        """What it has of images."""
        return "captions" if self.table.has_captions else "boxes"

    @property
    def means(self) -> str:
        """What a record is."""
        return f"with its {self.what}"

    @property
    def split(self) -> str | None:
        """The split that its name says."""
        return split_in(self.path.rpartition("/")[2])

    def unnamed(self, paths: Sequence[str], below: str = "") -> list[str]:
        """The images for which it has no row of their own, as paths below a folder."""
        start = len(below) + bool(below)
        keys = {path: self.rows.key((path, path[start:])) for path in paths}
        num_of = Counter(keys.values())
        return [path for path, key in keys.items() if key is None or num_of[key] > 1]

    def says(self, place: str) -> bool:
        """Whether its name is that of a folder, or of the same split."""
        name = self.path.rpartition("/")[2].casefold()
        parts = place.split("/")
        splits = [split_in(part) for part in parts]
        return parts[-1].casefold() in name or (self.split is not None and self.split in splits)


def _find_tables(folder: _Folder) -> list[Reading]:
    """Readings of COCO's documents, and of tables with a row for each box."""
    if not folder.view.has_urls:
        return []
    paths = [file.path for file in folder.images]
    readings = []
    for of_boxes in (False, True):
        documents = [
            document
            for document in _documents(folder, of_boxes=of_boxes)
            if any(document.rows.key((path,)) is not None for path in paths)
        ]
        whole = _preferred([d for d in documents if _is_few(d.unnamed(paths), paths)])
        if not whole and len(documents) > 1:
            placed = _placed(documents, paths)
            if placed:
                readings.append(_read_placed(folder, placed))
                continue
        readings += [_read_alone(folder, document) for document in whole or documents]
    return readings


def _documents(folder: _Folder, *, of_boxes: bool) -> Iterator[_Document]:
    files = folder.ending(*((".csv", ".tsv") if of_boxes else (".json",)))
    keys = {key_of(file.path) for file in folder.images} if files else set()
    alone = [file for file in files if key_of(file.path) not in keys]
    for file in alone[:_NUM_LOOKED_AT]:
        head = folder.view.head(file, _HEAD_BYTES)
        if of_boxes and not columns_of_boxes(read_header(file.path, head)[0]):
            continue
        members = set(_COCO.findall(head))
        if not of_boxes and not members:
            continue
        name = file.path.rpartition("/")[2]
        data = functools.partial(folder.view.opened.read, file.path)
        table = LabelTable(name=name, data=data, image="image", of_boxes=of_boxes)
        try:
            features = table.features()
            rows = table.read(features)
        except NoBoxesError:
            continue
        except SchemaError as error:
            if not of_boxes and (len(members) < 2 or members <= {b"info", b"licenses"}):
                continue  # another kind of JSON
            raise DataError(f"{folder.view.shown} has images and {file.path}. {error}") from None
        column = CAPTIONS if table.has_captions else BOXES
        if any(values for values in rows.columns[column].to_pylist()):
            yield _Document(file.path, table, rows)


def _preferred(documents: list[_Document]) -> list[_Document]:
    """Of several documents for the same images, those of boxes, and of these that of instances."""
    documents = [one for one in documents if not one.table.has_captions] or documents
    instances = [document for document in documents if "instances" in document.path]
    return instances if len(instances) == 1 else documents


def _is_few(paths: Sequence[str], of: Sequence[str]) -> bool:
    return len(paths) <= (1 - _MIN_PAIRED) * len(of)


def _placed(documents: Sequence[_Document], paths: Sequence[str]) -> dict[str, list[_Document]]:
    """The documents of each folder, by their names, or where only one folder is possible."""
    within: dict[str, list[str]] = {}
    for path in paths:
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            within.setdefault("/".join(parts[:depth]), []).append(path)
    found: dict[str, list[_Document]] = {}
    for document in documents:
        possible = [
            place for place, own in within.items() if _is_few(document.unnamed(own, place), own)
        ]
        home = document.path.rpartition("/")[0]
        for chosen in (
            [place for place in possible if document.says(place)],
            [place for place in possible if place == home],
            possible if len(possible) == 1 else [],
        ):
            if chosen:
                found.setdefault(min(chosen, key=len), []).append(document)
                break
    return {place: _preferred(several) for place, several in found.items()}


def _read_placed(folder: _Folder, found: Mapping[str, list[_Document]]) -> Reading:
    """Several documents, each for the images of a folder."""
    placed = {place: several[0] for place, several in found.items()}
    within = [f.path for f in folder.images if folder_of(f.path, placed) is not None]
    others = sorted({file.path for file in folder.images} - set(within))
    against: tuple[str, ...] = tuple(
        f"{several[0].path} and {several[1].path} have boxes of the images in {place}."
        for place, several in found.items()
        if len(several) > 1
    )
    if others:
        against += (
            f"{len(others):,} images are in no folder that has a file of boxes, and are skipped, "
            f"the first of them {others[0]!r}.",
        )
    named = {d.split: place.rpartition("/")[2] for place, d in placed.items() if d.split}
    splits, unclear = _splits(folder, within, named)
    tables = {place: folder.view.url_below(document.path) for place, document in placed.items()}
    of_boxes = any(document.table.of_boxes for document in placed.values())
    source = ImageFolder(folder.view.url, table=tables, boxes="rows" if of_boxes else None)
    means = next(document.means for document in placed.values())
    return Reading(source, splits, means, against + unclear)


def _read_alone(folder: _Folder, document: _Document) -> Reading:
    """One document, for all images."""
    paths = [file.path for file in folder.images]
    unnamed = document.unnamed(paths)
    against: tuple[str, ...] = ()
    if not _is_few(unnamed, paths):
        against = (
            f"{document.path} has {document.what} of {len(paths) - len(unnamed):,} of "
            f"{len(paths):,} images; the others are rejects, the first of them {unnamed[0]!r}.",
        )
    splits, unclear = _splits(folder, paths)
    inner = os.path.commonpath([os.path.dirname(path) for path in paths])
    below = [path.removeprefix(f"{inner}/") for path in paths]
    descend = inner and splits is None and len(document.unnamed(below)) == len(unnamed)
    source = ImageFolder(
        folder.view.url_below(inner) if descend else folder.view.url,
        table=folder.view.url_below(document.path),
        boxes="rows" if document.table.of_boxes else None,
    )
    return Reading(source, splits, document.means, against + unclear, len(unnamed))


def _incomplete(folder: _Folder, pairs: _Pairs, of: Format) -> tuple[str, ...]:
    """What speaks against annotations: images without one, and others without an image."""
    against: tuple[str, ...] = ()
    bare, num = pairs.bare, len(pairs.images)
    if len(bare) > (1 - _MIN_PAIRED) * num:
        without = "have no boxes" if of.empty else "are rejects"
        against += (
            f"{num - len(bare):,} of {num:,} images have a {of.suffix} file of their name; the "
            f"others {without}, the first of them {bare[0]!r}.",
        )
    keys = {key_of(file.path) for file in pairs.annotations}
    names = {key.rpartition("/")[2] for key in keys}
    read = set(pairs.images)
    others = [file.path for file in folder.images if file.path not in read]
    unknown = [path for path in others if key_of(path).rpartition("/")[2] not in names]
    if unknown:  # others are masks and the like of the same images
        against += (
            f"{len(unknown):,} images are in folders without {of.suffix} files, and are skipped, "
            f"the first of them {unknown[0]!r}.",
        )
    lost = pairs.lost(folder, of)
    num = len(lost) + len(pairs.annotations)
    if len(lost) > (1 - _MIN_PAIRED) * num:
        against += (
            f"{len(lost):,} of {num:,} {of.suffix} files have no image of their name, the first of "
            f"them {lost[0]!r}.",
        )
    return against


def _splits(
    folder: _Folder, paths: Sequence[str], named: Mapping[str, str] | None = None
) -> tuple[Splits | None, tuple[str, ...]]:
    """The splits that folders name, if there are several, and what is unclear about them.

    Args:
        folder: All files.
        paths: The images.
        named: The folder of each split, if a file says so.
    """
    words = {word.casefold(): split for split, word in (named or {}).items()}
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    found: dict[str, set[str]] = {split: set() for split in FOLDERS}
    bare = []
    for path in paths:
        folders = path.removeprefix(f"{common}/").split("/")[:-1]
        said = ((words.get(f.casefold()) or split_in(f), f.casefold()) for f in folders)
        split = next(((s, folder) for s, folder in said if s), None)
        if split is None:
            bare.append(path)
        else:
            found[split[0]].add(split[1])
    used: dict[str, Any] = {split: tuple(sorted(t)) for split, t in found.items() if t}
    if len(used) < 2:
        return None, ()
    if bare:
        return None, (f"{len(bare):,} images are in no folder of a split, the first {bare[0]!r}.",)
    if all(set(texts) <= set(FOLDERS[split]) for split, texts in used.items()):
        return Splits.by_folder(), ()
    return Splits.by_folder(**used), ()
