"""Recognizes what raw data is, by positive evidence: the reading of a folder, file or archive.

The more a reading says of the records, the earlier it is asked for: annotations, samples in tars,
tables of labels, folders, then tables and texts. What fits nothing is refused, and so is what has
several readings.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...schemas.blocks import SourceFile
from ...schemas.errors import DataError, SnapshardError
from ...schemas.splits import split_in
from ...transforms.sources.csv.dialect import SUFFIXES
from ...transforms.sources.csv.source import Csv
from ...transforms.sources.folders import bystanders
from ...transforms.sources.folders.arrays import ArrayFolder
from ...transforms.sources.folders.audio import AudioFolder
from ...transforms.sources.folders.bystanders import IMAGES, SOUNDS
from ...transforms.sources.folders.images import ImageFolder, read_sizes
from ...transforms.sources.folders.texts import TextFolder
from ...transforms.sources.folders.web_dataset import WebDataset, holds_samples, split_name
from ...transforms.sources.text import SUFFIXES as TEXTS
from ...transforms.sources.text import TextFiles
from ...transforms.storage.opened_source import OpenedSource, open_source
from ...transforms.storage.read_files import read_files
from ...transforms.storage.tar import archive_scheme
from .annotations import find_annotations
from .csv_tables import csv_tables, find_other_tables, sniff_table
from .extracted_files import find_extracted
from .label_tables import find_labelled_files
from .media_folders import Media, recognize_folders
from .readings import Reading, UnclearError, quoted
from .side_texts import HEAD_BYTES, MAX_LOOKED_AT, SideTexts, find_texts, why_no_captions
from .split_lists import with_lists
from .table_folders import arrange_tables, pairs_apart, refuse_columns_apart
from .typed_tables import TypedTables, find_typed_tables, read_typed
from .view import View

_SQLITE = b"SQLite format 3\0"
_READ_ARCHIVE_BYTES = 1 << 30
"""Finding the members of larger archives takes long."""
_MAX_READINGS = 4
_NUM_PROBED = 64
_HEAD_BYTES = 1 << 16
_MEDIA: Mapping[type[ImageFolder | AudioFolder], tuple[str, ...]] = {
    ImageFolder: IMAGES,
    AudioFolder: SOUNDS,
}
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x7f]")


def recognize(view: View) -> Reading:
    """What raw data is, by positive evidence: the first kind that finds some.

    Raises:
        UnclearError: if it may be several things.
        DataError: if it is none that is known.
    """
    for find in _KINDS:
        if (reading := find(view)) is not None:
            return reading
    raise DataError(_say_unknown(view))


def _find_samples(view: View) -> Reading | None:
    if not holds_samples(view.url, view.listed):
        return None
    source = WebDataset(view.url)
    tars = source.select(view.listed).files if view.has_urls else ()
    if not tars:
        return Reading(source)
    if _holds_folders(view.url_below(tars[0].path), tars[0]):
        return None
    return arrange_tables(source, view)


def _holds_folders(place: str, tar: SourceFile) -> bool:
    """Whether a tar holds several folders of single files, such as classes, and no samples."""
    if tar.num_bytes > _READ_ARCHIVE_BYTES:
        return False
    with contextlib.suppress(SnapshardError):
        named = [split_name(member.path) for member in open_source(place, ".").list()]
        keys = [key for key, _ in filter(None, named)]
        folders = {key.partition("/")[0] for key in keys if "/" in key}
        return len(folders) > 1 and all("/" in key for key in keys) and len({*keys}) == len(keys)
    return False


def _find_labelled(view: View) -> Reading | None:
    labelled = find_labelled_files(view)
    if labelled is None:
        return None
    media = {file.path for file in view.ending(*IMAGES, *SOUNDS)}
    texts = find_texts(sorted(media), [f.path for f in view.visible if f.path not in media])
    return _noting_texts(_with_lists(labelled, view), texts, view)


def _find_media_or_tables(view: View) -> Reading | None:
    """Images or sounds, or tables: those of which there are clearly more."""
    media = _find_media(view)
    if media is not None and (other := _as_many(media, view)) is not None:
        raise _two_kinds(media, other, view)
    tables = view.ending(*SUFFIXES)
    typed = find_typed_tables(view)
    num_tables = max(len(tables), typed.num_files if typed is not None else 0)
    if media is None and not view.opened.archived:
        _refuse_archives(view)
    if media is not None and len(media.files) > num_tables:
        return media.read(view)
    if media is not None and 2 * len(media.files) >= num_tables:
        raise _media_or_tables(media, tables, typed, view)
    if (whole := _find_whole_files(view)) is not None:
        _refuse_columns_of_texts(view)
        return whole.read(view)
    return _read_tables(tables, typed, view) if num_tables else None


def _find_other_tables(view: View) -> Reading | None:
    found = find_other_tables(view)
    if found is None:
        return None
    table, files = found
    reading, read = _among_unread(table, files, view), {file.path for file in files}
    others = [
        file.path
        for file in view.visible
        if file.num_bytes and file.path not in read and not bystanders.is_document(file.path)
    ]
    said = f"Not read, as no part of this table: {quoted(others)}."
    return dataclasses.replace(reading, notes=(*reading.notes, said)) if others else reading


def _find_texts(view: View) -> Reading | None:
    if 2 * len(view.ending(*TEXTS)) > len(view.listed):
        return _read_texts(view)
    texts = _find_bare_texts(view)
    return None if texts is None else texts.read(view)


def _noting_texts(reading: Reading, texts: SideTexts | None, view: View) -> Reading:
    """The reading, with a line on texts beside labelled images or sounds, which it leaves out."""
    source: Any = reading.source
    if texts is None or not texts.is_complete or not isinstance(source, ImageFolder | AudioFolder):
        return reading
    if source.texts or (isinstance(source, ImageFolder) and len(source.parts) > 1):
        return reading
    place = f"{source.url.rstrip('/')}/"
    are_inside = view.has_urls and all(view.url_below(p).startswith(place) for p in texts.paths)
    where = "the source" if are_inside else "a source of the folder of both"
    note = f"Each has a text, too, such as {texts.paths[0]!r}: texts={texts.suffix!r} in {where}."
    return dataclasses.replace(reading, notes=(*reading.notes, note))


def _why_no_captions(texts: SideTexts, view: View) -> str:
    found = read_files(view.opened, texts.paths[:MAX_LOOKED_AT], stop=HEAD_BYTES)
    return why_no_captions([head for head in found if isinstance(head, bytes)])


def _refuse_no_captions(reading: Reading, texts: SideTexts, view: View) -> None:
    """Refuses texts that are read with images or sounds, and are not what people write of them.

    Raises:
        UnclearError: if they are boxes, classes or of another format.
    """
    if why := _why_no_captions(texts, view):
        source: Any = reading.source
        plain = dataclasses.replace(source, texts=None)
        raise UnclearError(
            f"{view.shown} holds files with texts of their names (first: {texts.paths[0]!r}), "
            f"which {why}.",
            [Reading(plain, reading.splits), Reading(source, reading.splits)],
        )


def _with_lists(reading: Reading, view: View) -> Reading:
    """The reading, with the splits that lists of files declare.

    Raises:
        UnclearError: if these are incomplete or contradictory.
    """
    readings = with_lists(reading, view)
    if len(readings) > 1 or readings[0].against != reading.against:
        raise UnclearError(f"{view.shown} holds lists of the files of splits.", readings)
    return readings[0]


def _unread(view: View) -> list[str]:
    """Files that are neither tables, texts and documents, nor media."""
    return [
        file.path
        for file in view.visible
        if file.num_bytes
        and not file.path.lower().endswith(SUFFIXES)
        and not bystanders.why_beside(file.path, media=())
    ]


@dataclasses.dataclass(frozen=True)
class _Media:
    """The files of a folder that are records of one kind."""

    make: type[Media]
    files: Sequence[SourceFile]

    def read(self, view: View) -> Reading:
        """What their folders mean."""
        paths = [file.path for file in self.files]
        skipped = {file.path for file in view.visible} - set(paths)
        of_media = find_texts(paths, skipped)
        try:
            reading = recognize_folders(self.make, view.url, paths, skipped, joins=view.has_urls)
        except UnclearError as error:
            lines = [Reading(TextFiles(view.url))] if self.make is TextFolder else []
            with_texts = [r for r in error.readings if getattr(r.source, "texts", None)]
            if not (with_texts and of_media and _why_no_captions(of_media, view)):
                with_texts = []
            readings = [
                listing
                for reading in error.readings
                for listing in with_lists(reading, view)
                if reading not in with_texts
            ]
            raise error.with_readings([*readings, *lines]) from None
        reading = _noting_texts(_with_lists(reading, view), of_media, view)
        if of_media is not None and getattr(reading.source, "texts", None):
            _refuse_no_captions(reading, of_media, view)
            return reading
        if reading.splits is not None:
            return reading
        texts = [file for file in view.ending(".txt") if file.path in skipped]
        if reading.source.label is None and (text := self._naming(texts, view)) is not None:
            raise UnclearError(
                f"{view.shown} holds {len(paths):,} files in no class folder, and {text.path!r} "
                "names them, but not as a table or with labels that are known.",
                [reading],
            )
        return reading

    def _naming(self, texts: Sequence[SourceFile], view: View) -> SourceFile | None:
        """A text that has the names of several of these files."""
        names = sorted(os.path.basename(file.path).encode() for file in self.files)[:_NUM_PROBED]
        for text in texts[:_NUM_PROBED]:
            head = view.head(text, _HEAD_BYTES)
            if sum(name in head for name in names) > 1:
                return text
        return None


def _find_media(view: View) -> _Media | None:
    """The images of a folder or its sounds, whichever are more; None if there are none."""
    media = max((_media_of(make, view) for make in _MEDIA), key=lambda one: len(one.files))
    if media.files:
        return media
    # Images are known by their content, too.
    files = [f for f in ImageFolder(view.url).select(view.listed).files if "/" in f.path]
    return _Media(ImageFolder, files) if _show_images(files, view.opened) else None


def _media_of(make: type[ImageFolder | AudioFolder], view: View) -> _Media:
    return _Media(make, view.ending(*_MEDIA[make]))


def _as_many(media: _Media, view: View) -> _Media | None:
    """The media of the other kind, if they are at least half as many: neither is a bystander."""
    others = [_media_of(make, view) for make in _MEDIA if make is not media.make]
    return next((other for other in others if 2 * len(other.files) >= len(media.files)), None)


def _read_tables(tables: Sequence[SourceFile], typed: TypedTables | None, view: View) -> Reading:
    """What tables are: those of the one kind that is there.

    JSON files that are smaller than tables of another kind describe these.

    Raises:
        UnclearError: if those of several kinds may be the records.
    """
    kinds = [(tables, partial(_read_csv, tables, view))] if tables else []
    for source in (typed.source, *typed.others) if typed is not None else ():
        kinds.append((source.select(view.listed).files, partial(read_typed, source, view)))
    most = max(_size(files) for files, _ in kinds)
    beside = [files for files, _ in kinds if _size(files) < most and _are_documents(files)]
    kinds = [(files, read) for files, read in kinds if files not in beside]
    if len(kinds) == 1:
        reading = kinds[0][1]()
        names = [file.path for files in beside for file in files]
        said = (f"Not read, as it may describe the tables: {quoted(names)}.",) if names else ()
        return dataclasses.replace(reading, notes=(*reading.notes, *said))
    readings = []
    for _, read in kinds:
        with contextlib.suppress(DataError):  # one of them may be broken
            readings += _readings(read)
    firsts = ", ".join(repr(files[0].path) for files, _ in kinds)
    raise UnclearError(
        f"{view.shown} holds tables of {len(kinds)} kinds (first: {firsts}), and either can be the "
        "records. If they describe the same records, write one table.",
        readings,
    )


def _are_documents(files: Sequence[SourceFile]) -> bool:
    return all(file.path.lower().endswith(".json") for file in files)


def _read_csv(tables: Sequence[SourceFile], view: View) -> Reading:
    source = csv_tables(view.url, tables, view.opened)
    return _among_unread(source, source.select(view.listed).files, view)


def _size(files: Sequence[SourceFile]) -> int:
    return sum(file.num_bytes for file in files)


def _among_unread(table: Csv, files: Sequence[SourceFile], view: View) -> Reading:
    """What tables of text are.

    Raises:
        UnclearError: if most files are of other kinds, which no source reads.
    """
    arranged = arrange_tables(table, view, files=files)
    paths = {file.path for file in files}
    if len(unread := [path for path in _unread(view) if path not in paths]) > 2 * len(files):
        raise UnclearError(
            f"{view.shown} holds {len(unread):,} files of kinds that no source reads (first: "
            f"{unread[0]!r}), and {len(files):,} tables, which may only describe them.",
            [arranged],
        )
    return arranged


def _two_kinds(media: _Media, other: _Media, view: View) -> UnclearError:
    readings = [reading for one in (media, other) for reading in _readings(partial(one.read, view))]
    (images, sounds) = sorted((media, other), key=lambda one: one.make is not ImageFolder)
    return UnclearError(
        f"{view.shown} holds {len(images.files):,} images (first: {images.files[0].path!r}) and "
        f"{len(sounds.files):,} sounds (first: {sounds.files[0].path!r}), and either can be the "
        "records.",
        readings,
    )


def _media_or_tables(
    media: _Media,
    tables: Sequence[SourceFile],
    typed: TypedTables | None,
    view: View,
) -> UnclearError:
    """The refusal of about as many tables as images or sounds: a file for each of them, often."""
    if typed is not None and typed.num_files >= len(tables):
        first, num = typed.source.select(view.listed).files[0], typed.num_files
    else:
        first, num = tables[0], len(tables)
    what = "images" if media.make is ImageFolder else "sounds"
    return UnclearError(
        f"{view.shown} holds {len(media.files):,} {what} (first: {media.files[0].path!r}) and "
        f"{num:,} tables (first: {first.path!r}), and either can be the records. If each table "
        f"describes one of the {what}, write one table with a row for each: file, label.",
        [
            *_readings(partial(media.read, view)),
            *_readings(partial(_read_tables, tables, typed, view)),
        ],
    )


def _readings(read: Callable[[], Reading]) -> list[Reading]:
    """What is read, or what it may be if that is unclear."""
    try:
        return [read()]
    except UnclearError as error:
        return list(error.readings)


def _refuse_archives(view: View) -> None:
    """Refuses archives in a folder, whose members would be ignored, unless they are unpacked there.

    Raises:
        UnclearError: with the readings of the first archives, and of the other files.
    """
    archives = [file for file in view.visible if archive_scheme(file.path)]
    if not archives or not view.has_urls:
        return
    paths = {file.path for file in archives}
    others = [file for file in view.listed if file.path not in paths]
    there = {os.path.basename(file.path) for file in others}
    readings: list[Reading] = []
    if sum(file.num_bytes for file in archives) <= _READ_ARCHIVE_BYTES:
        for file in archives[:_MAX_READINGS]:
            inside = open_source(place := view.url_below(file.path), ".")
            with contextlib.suppress(SnapshardError):
                members = inside.list()
                if there.issuperset(os.path.basename(member.path) for member in members):
                    continue
                found = _readings(partial(recognize, View(place, members, inside)))
                if not readings and any(isinstance(each.source, WebDataset) for each in found):
                    found[:0] = _readings(partial(arrange_tables, WebDataset(view.url), view))
                readings += found
        if not readings and len(archives) <= _MAX_READINGS:
            return
    if others:
        with contextlib.suppress(SnapshardError):
            readings += _readings(partial(recognize, View(view.url, others, view.opened)))
    names = ", ".join(file.path for file in archives[:_MAX_READINGS])
    raise UnclearError(
        f"{view.shown} holds archives ({names}). Each is data of its own, and files beside it "
        "are not joined with its members. Name it, or the other files.",
        readings,
    )


def _show_images(files: Sequence[SourceFile], opened: OpenedSource) -> bool:
    return bool(read_sizes(files[:: 1 + len(files) // _NUM_PROBED], opened))


def _refuse_columns_of_texts(view: View) -> None:
    """Refuses texts of numbers that are columns of the same records.

    Raises:
        UnclearError: with the reading of the inputs alone.
    """
    texts = view.ending(*TEXTS)
    for inputs, _ in pairs_apart(texts)[:1]:
        if (table := sniff_table(view.url, inputs, view.opened)) is not None:
            refuse_columns_apart(table, texts, view)


def _find_whole_files(view: View) -> _Media | None:
    """Texts or arrays in several folders, each file a record; None if most files are others."""
    for make, ends in ((TextFolder, bystanders.TEXTS), (ArrayFolder, (".npy",))):
        files = make(view.url).select(view.ending(*ends)).files
        if 2 * len(files) > len(view.listed) and len({os.path.dirname(f.path) for f in files}) > 1:
            return _Media(make, files)
    return None


def _find_bare_texts(view: View) -> _Media | None:
    """Texts without a suffix in several folders, each file a record; None if most are others."""
    files = TextFolder(view.url).select(view.ending("")).files
    if 2 * len(files) <= len(view.listed) or len({os.path.dirname(f.path) for f in files}) < 2:
        return None
    return _Media(TextFolder, files) if _are_texts(files, view) else None


def _refuse_other_texts(view: View) -> None:
    """Refuses texts with other suffixes, such as logs and code.

    Raises:
        UnclearError: with the readings of those of the most frequent suffix, if all are texts; or
            of each language, if their names are splits and languages.
    """
    files = [file for file in view.visible if file.num_bytes]
    if not files or not _are_texts(files, view):
        return
    if all(split_in(os.path.basename(file.path)) for file in files):
        arrange_tables(TextFiles(view.url), view, files=files)
    suffixes = Counter(os.path.splitext(file.path)[1] for file in files)
    suffix, num = suffixes.most_common(1)[0]
    if not suffix or suffix.lower() in bystanders.TABLES:
        return
    deep = "**/" * any("/" in f.path for f in files if f.path.endswith(suffix))
    place = view.inner_url(f"{deep}*{suffix}") or view.url
    what = f"{files[0].path!r}, a text that no source reads by its suffix"
    if len(files) > 1:
        what = f"{len(files):,} texts that no source reads by their suffix, most of them {suffix} "
        what += f"({num:,})"
    raise UnclearError(
        f"{view.shown} holds {what}: each line may be a record, or each file.",
        [Reading(TextFiles(place)), Reading(TextFiles(place, per="file"))],
    )


def _are_texts(files: Sequence[SourceFile], view: View) -> bool:
    probed = files[:: 1 + len(files) // _NUM_PROBED]
    return all(_is_text(view.head(file, _HEAD_BYTES)) for file in probed)


def _is_text(head: bytes) -> bool:
    """Whether bytes begin a text: UTF-8 without control characters."""
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
    return bool(text.strip()) and "\ufffd" not in text and not _CONTROLS.search(text)


def _read_texts(view: View) -> Reading:
    """The lines of a text. Of several texts, a file may be the record, too."""
    _refuse_columns_of_texts(view)
    files = TextFiles(view.url).select(view.listed).files
    lines = arrange_tables(TextFiles(view.url), view)
    if len(files) <= 1 or lines.splits is not None:
        return lines
    raise UnclearError(
        f"{view.shown} holds {len(files):,} texts (first: {files[0].path!r}), of which each line "
        "may be a record, or each file.",
        [lines, Reading(TextFolder(view.url, label=None))],
    )


def _say_unknown(view: View) -> str:
    if flat := view.ending(*IMAGES):
        return (
            f"{view.shown} holds {len(flat):,} images in one folder (first: "
            f"{flat[0].path!r}), expected class folders: <root>/<class>/<image>. Put the images "
            "into one folder per class, give the parent folder, or put a table beside them with a "
            "row for each image: labels.csv with the columns file and label."
        )
    first = next((file.path for file in view.listed if not file.problem and file.num_bytes), None)
    if first is not None and view.opened.read(first, 0, len(_SQLITE)) == _SQLITE:
        return (
            f"{view.shown} holds an SQLite database ({first!r}): only a query can say "
            'what a record is. Write a recipe file with source=ss.Sql("path of the database", '
            '"SELECT …", key="id").'
        )
    return (
        f"{view.shown} holds neither tables (CSV, Parquet, Arrow, JSON, NumPy, TFRecord), "
        "nor texts, nor class folders of images or sounds (first of "
        f"{len(view.listed):,} files: {view.listed[0].path!r}). Correct the path, or write a "
        "recipe file that describes it."
    )


_KINDS: tuple[Callable[[View], Reading | None], ...] = (
    find_extracted,
    find_annotations,
    _find_samples,
    _find_labelled,
    _find_media_or_tables,
    _find_other_tables,
    _find_texts,
    _refuse_other_texts,
)
"""Each finds evidence of its kind, or none; the more its reading says of records, the earlier."""
