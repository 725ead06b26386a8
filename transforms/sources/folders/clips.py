"""The source of folders of frames: each folder is one clip, a sequence of encoded images."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pydantic

from ....schemas.blocks import Block, FileRange, RawBatch, Selection, SourceFile
from ....schemas.config import config_class
from ....schemas.errors import DataError, Reject
from ....schemas.features import Feature, Features, Image, frames_of
from ....schemas.features import Sequence as SequenceFeature
from ....schemas.recipe import OpenSource
from ...media.image_header import MAX_PIXELS, SUFFIXES, UnreadableImageError, rotated_frame
from ...media.tiff import readable_image
from ...rejects import with_bytes
from ...runs.files import wire_schema
from ...storage.opened_source import path_bytes
from ...storage.read_files import read_ahead
from .files import LabelledFolder, contents_array, grouped, may_be_image
from .images import BATCH_PIXELS
from .labels import FileLabels, LabelReader
from .side_tables import UnlabelledError

FRAMES = "frames"
"""The feature of the clips."""

_NUMBER = re.compile(r"([0-9]+)")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})\.[A-Za-z]+")
_MIN_FRAMES = 3
"""Folders with fewer images are not taken for clips without being asked."""
_SUCH_AS = ", such as "
_Content = tuple[FileRange, bytes]
_FrameKey = tuple[tuple[bytes, int], ...]


@config_class
class ClipFolder(LabelledFolder):
    """A folder of clips, each a folder of frames: feature ``frames``, and the clips' labels.

    ``clips/run/jogging_3/0001.jpg``, ``0002.jpg`` … are one record with the id ``run/jogging_3``
    and the label ``run``. Its feature ``frames`` is ``ss.Sequence(ss.Image(storage="encoded"))``:
    the bytes of the files, which the reader decodes, in the order of the numbers in their names:
    ``2.jpg`` before ``10.jpg``. Every folder that directly contains images is a clip, at any depth.
    Hidden files, files left by operating systems, and files whose suffix is not that of an image
    are skipped and counted.

    A frame that cannot be decoded rejects its clip, and so do frames of several sizes, frames with
    an EXIF orientation, and two files of one number.

    Attributes:
        url: The folder of the class folders: a path, any fsspec URL, or a glob whose root contains
            them. In a recipe, a relative path is relative to the recipe's file.
        pattern: Pattern of the clips' names, with fields in braces: ``"{label}_{n}"``. Matched with
            the entire path of the clip's folder if it has a '/'. ``*`` matches any characters. Each
            field is a feature: the label a ClassLabel, a field of digits only an int64, others
            strings.
        table: A ``.csv``, ``.tsv``, ``.txt`` or ``.jsonl`` file with a row for each clip, named by
            the path or name of its folder in a column ``file``, ``file_name``, ``filename``,
            ``path`` or ``image``, else in the first column. Other columns are features, the label a
            ClassLabel. A clip without a row is rejected (see ``unlisted``). Relative paths are
            resolved like ``url``.
        split_folders: Whether the first folder is the split (``train/run/jogging_3``), for use with
            ``ss.Splits.by_folder()``. False if class folders have such names.
        label: The column of ``table`` or field of ``pattern`` to predict; its strings become a
            ClassLabel. None for none; there are no class folders then.
        max_pixels: A frame with more pixels rejects its clip.
        unlisted: Whether clips without a row in ``table`` are rejected, or skipped and counted:
            ``"skip"`` reads only the labelled part of a folder.
        one_hot: Columns of ``table``, one of which is 1 in each row, and the others 0: instead of
            them there is the feature ``label``, whose classes are their names.
        rows: ``"list"``: a file may have several rows in ``table``; its features are lists of their
            values, in the order of the rows.
        lists: Texts that name the files of each split, a file on each line: ``{"train":
            "train.txt", "test": "test.txt"}``, for use with ``ss.Splits.by_column("split")``. None
            for the split of all other files: ``{"train": None, "test": "test.txt"}``; else files in
            no list are skipped and counted. Feature ``split``.
    """

    table: str | None = None
    max_pixels: Annotated[int, pydantic.Field(gt=0)] = MAX_PIXELS

    _content = FRAMES

    @property
    def _labels(self) -> FileLabels:
        return dataclasses.replace(super()._labels, record="clip")

    def settings(self) -> dict[str, object]:
        """The settings that determine the records, as plain JSON, for the fingerprint."""
        labels = self._labels.settings()
        return {"source": "clip_folder", "max_pixels": self.max_pixels, **labels}

    def select(self, files: Sequence[SourceFile]) -> Selection:
        """Selects the frames, and marks those of a clip as parts of one record."""
        selection = super().select(files)
        clips: dict[str, list[SourceFile]] = {}
        for file in selection.files:
            clips.setdefault(_clip_of(file.path), []).append(file)
        marked: dict[str, SourceFile] = {}
        for folder, frames in clips.items():
            for file in _as_clip(folder, frames) if folder else map(_outside, frames):
                marked[file.path] = file
        return dataclasses.replace(
            selection, files=tuple(marked[file.path] for file in selection.files)
        )

    def _why_unfit(self, path: str) -> str:
        return "" if may_be_image(path) else "not an image, by its suffix"

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The encoded frames, and the features found by ``labels``.

        Raises:
            RecipeError: if class folders are named like splits, or the table has no such label.
            DataError: if there are no clips, no clip has labels, or the table is not valid.
        """
        labels = self.infer_labels(files, opened)
        return {FRAMES: SequenceFeature(Image(storage="encoded")), **labels}

    def infer_labels(self, files: Sequence[SourceFile], opened: OpenSource) -> dict[str, Feature]:
        """The features besides the frames. Reads at most a table.

        Raises:
            RecipeError: if class folders are named like splits, or the table has no such label.
            DataError: if there are no clips, no clip has labels, or the table is not valid.
        """
        if files and not self._records(files):
            raise DataError(
                f"ClipFolder: none of the {len(files):,} images is in a folder of its clip (first: "
                f"{files[0].path!r}). Expected <root>/<class>/<clip>/<frame>, or <root>/<clip>/"
                "<frame> with label=None, pattern= or table=: give the folder that contains those "
                "of the clips."
            )
        return super().infer_labels(files, opened)

    def _records(self, files: Sequence[SourceFile]) -> list[SourceFile]:
        """A file for each clip, which has the path of its folder."""
        firsts: dict[str, SourceFile] = {}
        for file in files:
            firsts.setdefault(_clip_of(file.path), file)
        return [
            dataclasses.replace(file, path=folder, of="", record="")
            for folder, file in sorted(firsts.items(), key=lambda item: path_bytes(item[0]))
            if folder
        ]

    def read(
        self, block: Block, *, features: Features, opened: OpenSource, ordered: Sequence[int]
    ) -> Iterator[RawBatch]:
        """Reads a block's clips in the order of ``ordered``, as many at a time as are small.

        A clip becomes a reject of its batch if one of its files cannot be read or is not such a
        frame, or if its labels are missing or do not match ``features``.

        Raises:
            StorageError: if a file has changed since the inventory.
        """
        parts: dict[str, list[FileRange]] = {}
        for part in block.ranges:
            parts.setdefault(part.record_id, []).append(part)
        max_bytes = opened.limits.max_record_bytes
        firsts = (block.ranges[index] for index in ordered)
        clips = [
            _within(sorted(parts[first.record_id], key=_position), max_bytes)
            for first in firsts
            if not first.of
        ]
        reader = _ClipReader(self.max_pixels, features, self._labels.reader(features, opened))
        with contextlib.closing(read_ahead(opened, grouped(clips))) as contents:
            for chunk in contents:
                for _, frames in itertools.groupby(chunk, key=lambda frame: frame[0].record_id):
                    if reader.is_full:
                        yield reader.batch()
                    reader.add(list(frames))
                yield reader.batch()


class _ClipReader:
    """Collects the clips and rejects of a raw batch."""

    def __init__(self, max_pixels: int, features: Features, labels: LabelReader) -> None:
        declared = features.get(FRAMES)
        self._frame = (None if declared is None else frames_of(declared)) or Image(
            storage="encoded"
        )
        self._max_pixels, self._features, self._labels = max_pixels, features, labels
        self._clear()

    def _clear(self) -> None:
        self._ids: list[str] = []
        self._clips: list[list[bytes]] = []
        self._found: list[Any] = []
        self._rejects: list[Reject] = []
        self._num_pixels = 0

    @property
    def is_full(self) -> bool:
        """Whether the batch has as many pixels as should be decoded at a time."""
        return self._num_pixels >= BATCH_PIXELS

    def add(self, frames: Sequence[_Content]) -> None:
        """Adds a clip, or its reject."""
        first = frames[0][0]
        for bad in frames:
            if problem := bad[0].problem:
                self._reject(bad, problem, stage="inventory", reason=problem)
                return
        bad = frames[0]
        if first.unpaired:
            reason = first.unpaired.partition(_SUCH_AS)[0]
            unpaired = UnlabelledError(reason, first.unpaired)
            self._reject(bad, unpaired, stage="validate", reason=reason)
            return
        contents, num_pixels = [], 0
        size: tuple[int, int] | None = None
        try:
            class_name = self._labels.find(first.record_id)
            for bad in frames:
                content, size = self._read(bad[1], size, first.path)
                contents.append(content)
                num_pixels += size[0] * size[1]
        except UnlabelledError as error:
            self._reject(bad, error, stage="validate", reason=error.reason)
        except UnreadableImageError as error:
            self._reject(bad, error, stage="read", reason=error.reason)
        else:
            self._ids.append(first.record_id)
            self._clips.append(contents)
            self._found.append(class_name)
            self._num_pixels += num_pixels

    def _read(
        self, data: bytes, size: tuple[int, int] | None, first: str
    ) -> tuple[bytes, tuple[int, int]]:
        """A frame's bytes and its height and width, which must be those of the first frame.

        Raises:
            UnreadableImageError: if it is not an image, or has another size or an orientation.
        """
        content, header = readable_image(data, max_pixels=self._max_pixels)
        sides = header.height, header.width
        if header.orientation != 1:
            raise rotated_frame(header)
        if size is not None and sides != size:
            raise UnreadableImageError(
                "frames differ in size",
                f"its height × width is {sides[0]}×{sides[1]}, that of {first} {size[0]}×{size[1]}."
                " Resize all frames of a clip to one size",
            )
        declared = self._frame.height, self._frame.width
        if any(want not in (None, side) for want, side in zip(declared, sides, strict=True)):
            raise UnreadableImageError(
                "wrong size",
                f"its height × width is {sides[0]}×{sides[1]}, declared are "
                f"{declared[0] or 'any'}×{declared[1] or 'any'}. Resize the frames, or do not "
                "declare the size",
            )
        return content, sides

    def _reject(self, frame: _Content, error: Exception | str, *, stage: str, reason: str) -> None:
        part, data = frame
        reject = Reject(
            record_id=part.record_id,
            stage=stage,
            reason=reason,
            message=f"{part.path}: {error}",
            source=part.path,
            exception="OSError" if isinstance(error, str) else type(error).__name__,
        )
        self._rejects.append(reject if part.problem else with_bytes(reject, data, start=0))

    def batch(self) -> RawBatch:
        """The clips and rejects since the last call."""
        ends = np.cumsum([0, *map(len, self._clips)], dtype=np.int64)
        frames = contents_array([content for clip in self._clips for content in clip])
        columns = {
            FRAMES: pa.LargeListArray.from_arrays(pa.array(ends), frames),
            **self._labels.columns(self._found),
        }
        schema = wire_schema(self._features)
        batch = RawBatch(
            ids=self._ids,
            columns=pa.RecordBatch.from_arrays(
                [columns[name] for name in schema.names], schema=schema
            ),
            rejects=tuple(self._rejects),
        )
        self._clear()
        return batch


def holds_clips(paths: Iterable[str]) -> bool:
    """Whether all folders with images hold numbered frames, and lie in several folders of classes.

    Names of frames end in a number and have all else in common; the numbers have one distance.

    >>> holds_clips(f"{clip}/{n:04}.jpg" for clip in ("run/1", "run/2", "walk/1") for n in range(8))
    True
    >>> holds_clips(f"{label}/{n:04}.jpg" for label in ("cat", "dog") for n in range(8))
    False
    """
    clips: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        clips.setdefault(folder, []).append(name)
    parents = {folder.rpartition("/")[0] for folder in clips}
    if not all(parents) or len(parents) < 2 or len(clips) <= len(parents):
        return False
    return all(map(_are_frames, clips.values()))


def _are_frames(names: Sequence[str]) -> bool:
    matches = [match for match in map(_NUMBERED.fullmatch, names) if match is not None]
    numbers = sorted(int(match[2]) for match in matches)
    if len(matches) < max(len(names), _MIN_FRAMES) or len({match[1] for match in matches}) > 1:
        return False
    return len({after - before for before, after in itertools.pairwise(numbers)} - {0}) == 1


def _clip_of(path: str) -> str:
    return path.rpartition("/")[0]


def _outside(file: SourceFile) -> SourceFile:
    return dataclasses.replace(file, unpaired="not in a folder of a clip")


def _as_clip(folder: str, frames: Sequence[SourceFile]) -> Iterator[SourceFile]:
    """The files of a clip, marked as one record: the others are parts of the first."""
    first, *others = sorted(frames, key=_position)
    again = [
        (one.path, other.path)
        for one, other in itertools.pairwise((first, *others))
        if frame_key(one.path) == frame_key(other.path)
    ]
    unpaired = ""
    if again:
        one, other = (path.rpartition("/")[2] for path in again[0])
        unpaired = f"several files for one frame{_SUCH_AS}{one} and {other}"
    yield dataclasses.replace(first, record=folder, unpaired=unpaired)
    for file in others:
        yield dataclasses.replace(file, of=first.path, record=folder)


def frame_key(path: str) -> _FrameKey:
    """Orders the frames of a clip: by their names without the suffix, and numbers by their value.

    >>> sorted(["c/f10.jpg", "c/f2.jpg", "c/f1.jpg"], key=frame_key)
    ['c/f1.jpg', 'c/f2.jpg', 'c/f10.jpg']
    """
    name = path.rpartition("/")[2]
    if name.lower().endswith(SUFFIXES):
        name = name.rpartition(".")[0]
    texts = _NUMBER.split(name)
    numbers = [int(text) for text in texts[1::2]]
    return tuple(zip(map(path_bytes, texts[::2]), [*numbers, -1], strict=True))


def _position(file: SourceFile | FileRange) -> tuple[_FrameKey, bytes]:
    return frame_key(file.path), path_bytes(file.path)


def _within(clip: list[FileRange], max_bytes: int) -> list[FileRange]:
    """The clip's files, or only the first one with a problem if they are too large together."""
    if sum(part.stop - part.start for part in clip) <= max_bytes:
        return clip
    problem = f"clip of more than {max_bytes:,} bytes"
    return [dataclasses.replace(clip[0], problem=clip[0].problem or problem)]
