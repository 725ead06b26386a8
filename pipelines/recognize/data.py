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

from ...schemas.blocks import SourceFile
from ...schemas.errors import DataError, SnapshardError
from ...transforms.sources.csv.dialect import SUFFIXES
from ...transforms.sources.folders import bystanders
from ...transforms.sources.folders.arrays import ArrayFolder
from ...transforms.sources.folders.audio import AudioFolder
from ...transforms.sources.folders.bystanders import IMAGES, SOUNDS
from ...transforms.sources.folders.images import ImageFolder, read_sizes
from ...transforms.sources.folders.texts import TextFolder
from ...transforms.sources.folders.web_dataset import WebDataset, holds_samples
from ...transforms.sources.text import SUFFIXES as TEXTS
from ...transforms.sources.text import TextFiles
from ...transforms.storage.opened_source import OpenedSource, is_hidden, open_source, url_below
from ...transforms.storage.tar import archive_scheme
from .annotations import find_annotations
from .csv_tables import csv_tables, find_other_tables
from .extracted_files import read_extracted
from .label_tables import find_labelled_files
from .media_folders import Media, recognize_folders
from .readings import Reading, UnclearError
from .split_lists import with_lists
from .table_folders import arrange_tables, url_of
from .typed_tables import TypedTables, find_typed_tables, read_typed
from .unread_formats import check_formats

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


def recognize(
    url: str, listed: Sequence[SourceFile], opened: OpenedSource, *, label: str | None
) -> Reading:
    """What the files are, by positive evidence.

    Raises:
        UnclearError: if they may be several things.
        DataError: if they are none that is known.
    """
    name, extracted = check_formats(listed, opened)
    if name:
        return read_extracted(url, name, extracted, opened)
    annotated = find_annotations(url, listed, opened)
    if annotated is not None:
        return annotated
    if holds_samples(url, listed):
        return Reading(WebDataset(url))
    labelled = find_labelled_files(url, listed, opened, label=label)
    if labelled is not None:
        return _with_lists(labelled, url, listed, opened)
    media = _find_media(url, listed, opened)
    if media is not None and (other := _as_many(media, url, listed)) is not None:
        raise _two_kinds(media, other, url, listed, opened)
    tables = [f for f in listed if f.path.lower().endswith(SUFFIXES) and not is_hidden(f.path)]
    typed = find_typed_tables(url, listed, opened)
    num_tables = max(len(tables), typed.num_files if typed is not None else 0)
    if media is None and not opened.archived:
        _refuse_archives(url, listed, opened)
    if media is not None and len(media.files) > num_tables:
        return media.read(url, listed, opened)
    if media is not None and 2 * len(media.files) >= num_tables:
        raise _media_or_tables(media, tables, typed, url, listed, opened)
    if (whole := _find_whole_files(url, listed)) is not None:
        return whole.read(url, listed, opened)
    if num_tables:
        return _read_tables(tables, typed, url, listed, opened)
    if (named_otherwise := find_other_tables(url, listed, opened)) is not None:
        return Reading(named_otherwise)
    if 2 * sum(file.path.lower().endswith(TEXTS) for file in listed) > len(listed):
        return _read_texts(url, listed, opened)
    if (texts := _find_bare_texts(url, listed, opened)) is not None:
        return texts.read(url, listed, opened)
    _refuse_other_texts(url, listed, opened)
    raise DataError(_say_unknown(opened, listed))


def _with_lists(
    reading: Reading, url: str, listed: Sequence[SourceFile], opened: OpenedSource
) -> Reading:
    """The reading, with the splits that lists of files declare.

    Raises:
        UnclearError: if these are incomplete or contradictory.
    """
    readings = with_lists(reading, url, listed, opened)
    if len(readings) > 1 or readings[0].against != reading.against:
        raise UnclearError(f"{opened.shown} holds lists of the files of splits.", readings)
    return readings[0]


def _unread(listed: Sequence[SourceFile]) -> list[str]:
    """Files that are neither tables, texts and documents, nor media."""
    paths = [file.path for file in listed if file.num_bytes and not is_hidden(file.path)]
    return [
        path
        for path in paths
        if not path.lower().endswith(SUFFIXES) and not bystanders.why_beside(path, media=())
    ]


@dataclasses.dataclass(frozen=True)
class _Media:
    """The files of a folder that are records of one kind."""

    make: type[Media]
    files: Sequence[SourceFile]

    def read(self, url: str, listed: Sequence[SourceFile], opened: OpenedSource) -> Reading:
        """What their folders mean."""
        paths = [file.path for file in self.files]
        skipped = {file.path for file in listed if not is_hidden(file.path)} - set(paths)
        joins = not (opened.pattern or opened.single)
        try:
            reading = recognize_folders(self.make, url, paths, skipped, joins=joins)
        except UnclearError as error:
            lines = [Reading(TextFiles(url))] if self.make is TextFolder else []
            readings = [
                listing
                for reading in error.readings
                for listing in with_lists(reading, url, listed, opened)
            ]
            raise error.with_readings([*readings, *lines]) from None
        reading = _with_lists(reading, url, listed, opened)
        if reading.splits is not None:
            return reading
        texts = [f for f in listed if f.path in skipped and f.path.lower().endswith(".txt")]
        if reading.source.label is None and (text := self._naming(texts, opened)) is not None:
            raise UnclearError(
                f"{opened.shown} holds {len(paths):,} files in no class folder, and {text.path!r} "
                "names them, but not as a table or with labels that are known.",
                [reading],
            )
        return reading

    def _naming(self, texts: Sequence[SourceFile], opened: OpenedSource) -> SourceFile | None:
        """A text that has the names of several of these files."""
        names = sorted(os.path.basename(file.path).encode() for file in self.files)[:_NUM_PROBED]
        for text in texts[:_NUM_PROBED]:
            head = opened.read(text.path, 0, min(text.num_bytes, _HEAD_BYTES))
            if sum(name in head for name in names) > 1:
                return text
        return None


def _find_media(url: str, listed: Sequence[SourceFile], opened: OpenedSource) -> _Media | None:
    """The images of a folder or its sounds, whichever are more; None if there are none."""
    found = [_media_of(make, url, listed) for make in _MEDIA]
    media = max(found, key=lambda one: len(one.files))
    if media.files:
        return media
    # Images are known by their content, too.
    files = [file for file in ImageFolder(url).select(listed).files if "/" in file.path]
    return _Media(ImageFolder, files) if _show_images(files, opened) else None


def _media_of(
    make: type[ImageFolder | AudioFolder], url: str, listed: Sequence[SourceFile]
) -> _Media:
    files = [file for file in listed if file.path.lower().endswith(_MEDIA[make])]
    return _Media(make, make(url).select(files).files)


def _as_many(media: _Media, url: str, listed: Sequence[SourceFile]) -> _Media | None:
    """The media of the other kind, if they are at least half as many: neither is a bystander."""
    others = [_media_of(make, url, listed) for make in _MEDIA if make is not media.make]
    return next((other for other in others if 2 * len(other.files) >= len(media.files)), None)


def _read_tables(
    tables: Sequence[SourceFile],
    typed: TypedTables | None,
    url: str,
    listed: Sequence[SourceFile],
    opened: OpenedSource,
) -> Reading:
    """What tables are: CSV files, or typed ones if these are not fewer."""
    if typed is not None and typed.num_files >= len(tables):
        return read_typed(typed.source, listed, opened)
    arranged = arrange_tables(csv_tables(url, tables, opened), listed, opened)
    if len(unread := _unread(listed)) > 2 * len(tables):
        raise UnclearError(
            f"{opened.shown} holds {len(unread):,} files of kinds that no source reads (first: "
            f"{unread[0]!r}), and {len(tables):,} tables, which may only describe them.",
            [arranged],
        )
    return arranged


def _two_kinds(
    media: _Media, other: _Media, url: str, listed: Sequence[SourceFile], opened: OpenedSource
) -> UnclearError:
    readings = [
        reading
        for one in (media, other)
        for reading in _readings(partial(one.read, url, listed, opened))
    ]
    (images, sounds) = sorted((media, other), key=lambda one: one.make is not ImageFolder)
    return UnclearError(
        f"{opened.shown} holds {len(images.files):,} images (first: {images.files[0].path!r}) and "
        f"{len(sounds.files):,} sounds (first: {sounds.files[0].path!r}), and either can be the "
        "records.",
        readings,
    )


def _media_or_tables(
    media: _Media,
    tables: Sequence[SourceFile],
    typed: TypedTables | None,
    url: str,
    listed: Sequence[SourceFile],
    opened: OpenedSource,
) -> UnclearError:
    """The refusal of about as many tables as images or sounds: a file for each of them, often."""
    if typed is not None and typed.num_files >= len(tables):
        first, num = typed.source.select(listed).files[0], typed.num_files
    else:
        first, num = tables[0], len(tables)
    what = "images" if media.make is ImageFolder else "sounds"
    return UnclearError(
        f"{opened.shown} holds {len(media.files):,} {what} (first: {media.files[0].path!r}) and "
        f"{num:,} tables (first: {first.path!r}), and either can be the records. If each table "
        f"describes one of the {what}, write one table with a row for each: file, label.",
        [
            *_readings(partial(media.read, url, listed, opened)),
            *_readings(partial(_read_tables, tables, typed, url, listed, opened)),
        ],
    )


def _readings(read: Callable[[], Reading]) -> list[Reading]:
    """What is read, or what it may be if that is unclear."""
    try:
        return [read()]
    except UnclearError as error:
        return list(error.readings)


def _refuse_archives(url: str, listed: Sequence[SourceFile], opened: OpenedSource) -> None:
    """Refuses archives in a folder, whose members would be ignored, unless they are unpacked there.

    Raises:
        UnclearError: with the readings of the first archives, and of the other files.
    """
    archives = [f for f in listed if archive_scheme(f.path) and not is_hidden(f.path)]
    if not archives or opened.pattern or opened.single:
        return
    paths = {file.path for file in archives}
    others = [file for file in listed if file.path not in paths]
    there = {os.path.basename(file.path) for file in others}
    readings: list[Reading] = []
    if sum(file.num_bytes for file in archives) <= _READ_ARCHIVE_BYTES:
        for file in archives[:_MAX_READINGS]:
            inside = open_source(place := url_below(url, file.path), ".")
            with contextlib.suppress(SnapshardError):
                members = inside.list()
                if there.issuperset(os.path.basename(member.path) for member in members):
                    continue
                readings += _readings(partial(recognize, place, members, inside, label=None))
        if not readings and len(archives) <= _MAX_READINGS:
            return
    if others:
        with contextlib.suppress(SnapshardError):
            readings += _readings(partial(recognize, url, others, opened, label=None))
    names = ", ".join(file.path for file in archives[:_MAX_READINGS])
    raise UnclearError(
        f"{opened.shown} holds archives ({names}). Each is data of its own, and files beside it "
        "are not joined with its members. Name it, or the other files.",
        readings,
    )


def _show_images(files: Sequence[SourceFile], opened: OpenedSource) -> bool:
    return bool(read_sizes(files[:: 1 + len(files) // _NUM_PROBED], opened))


def _find_whole_files(url: str, listed: Sequence[SourceFile]) -> _Media | None:
    """Texts or arrays in several folders, each file a record; None if most files are others."""
    for make, ends in ((TextFolder, bystanders.TEXTS), (ArrayFolder, (".npy",))):
        files = [f for f in make(url).select(listed).files if f.path.lower().endswith(ends)]
        if 2 * len(files) > len(listed) and len({os.path.dirname(f.path) for f in files}) > 1:
            return _Media(make, files)
    return None


def _find_bare_texts(url: str, listed: Sequence[SourceFile], opened: OpenedSource) -> _Media | None:
    """Texts without a suffix in several folders, each file a record; None if most are others."""
    selected = TextFolder(url).select(listed).files
    files = [file for file in selected if "." not in os.path.basename(file.path)]
    if 2 * len(files) <= len(listed) or len({os.path.dirname(f.path) for f in files}) < 2:
        return None
    heads = (
        opened.read(file.path, 0, min(file.num_bytes, _HEAD_BYTES))
        for file in files[:: 1 + len(files) // _NUM_PROBED]
    )
    return _Media(TextFolder, files) if all(map(_is_text, heads)) else None


def _refuse_other_texts(url: str, listed: Sequence[SourceFile], opened: OpenedSource) -> None:
    """Refuses texts with other suffixes, such as logs and code.

    Raises:
        UnclearError: with the readings of those of the most frequent suffix, if all are texts.
    """
    files = [file for file in listed if file.num_bytes and not is_hidden(file.path)]
    looked = files[:: 1 + len(files) // _NUM_PROBED]
    heads = (opened.read(file.path, 0, min(file.num_bytes, _HEAD_BYTES)) for file in looked)
    if not all(map(_is_text, heads)):
        return
    suffixes = Counter(os.path.splitext(file.path)[1] for file in files)
    suffix, num = suffixes.most_common(1)[0]
    if not suffix or suffix.lower() in bystanders.TABLES:
        return
    deep = "**/" * any("/" in f.path for f in files if f.path.endswith(suffix))
    place = url_of(url, f"{deep}*{suffix}", opened) or url
    raise UnclearError(
        f"{opened.shown} holds {len(files):,} texts that no source reads by their suffix, most of "
        f"them {suffix} ({num:,}): each line may be a record, or each file.",
        [Reading(TextFiles(place)), Reading(TextFiles(place, per="file"))],
    )


def _is_text(head: bytes) -> bool:
    """Whether bytes begin a text: UTF-8 without control characters."""
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
    return bool(text.strip()) and "\ufffd" not in text and not _CONTROLS.search(text)


def _read_texts(url: str, listed: Sequence[SourceFile], opened: OpenedSource) -> Reading:
    """The lines of a text. Of several texts, a file may be the record, too."""
    files = TextFiles(url).select(listed).files
    lines = arrange_tables(TextFiles(url), listed, opened)
    if len(files) <= 1 or lines.splits is not None:
        return lines
    raise UnclearError(
        f"{opened.shown} holds {len(files):,} texts (first: {files[0].path!r}), of which each line "
        "may be a record, or each file.",
        [lines, Reading(TextFolder(url, label=None))],
    )


def _say_unknown(opened: OpenedSource, listed: Sequence[SourceFile]) -> str:
    flat = [file for file in listed if file.path.lower().endswith(IMAGES)]
    if flat:
        return (
            f"{opened.shown} holds {len(flat):,} images in one folder (first: "
            f"{flat[0].path!r}), expected class folders: <root>/<class>/<image>. Put the images "
            "into one folder per class, give the parent folder, or put a table beside them with a "
            "row for each image: labels.csv with the columns file and label."
        )
    first = next((file.path for file in listed if not file.problem and file.num_bytes), None)
    if first is not None and opened.read(first, 0, len(_SQLITE)) == _SQLITE:
        return (
            f"{opened.shown} holds an SQLite database ({first!r}): only a query can say "
            'what a record is. Write a recipe file with source=ss.Sql("path of the database", '
            '"SELECT …", key="id").'
        )
    return (
        f"{opened.shown} holds neither tables (CSV, Parquet, Arrow, JSON, NumPy, TFRecord), "
        "nor texts, nor class folders of images or sounds (first of "
        f"{len(listed):,} files: {listed[0].path!r}). Correct the path, or write a recipe file "
        "that describes it."
    )
