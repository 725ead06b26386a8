"""The source of folders of sounds. Labels come from folders, file names or a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import pydantic

from ....schemas.blocks import SourceFile
from ....schemas.config import config_class
from ....schemas.features import Audio, Features
from ....schemas.recipe import OpenSource
from ...media.audio_decode import decoder_version
from ...media.audio_header import MAX_SAMPLES, SoundHeader, UnreadableSoundError, read_header
from ...storage.read_files import read_headers as read_media_headers
from . import bystanders
from .files import MediaFolder, MediaKind

BATCH_SAMPLES = 16 << 20
"""Maximum samples in a raw batch according to headers: 64 MiB when decoded."""


@config_class
class AudioFolder(MediaFolder):
    """A folder of sounds: feature ``audio``, and its labels.

    WAV, FLAC, Ogg with Vorbis or Opus, and MP3, detected by content, not by name. Without
    ``pattern`` and ``table``, the files are in class folders, whose names become the feature
    ``label``. Every file is a record, at any depth; files that cannot be decoded become rejects.
    Documents, tables and images beside the sounds, hidden files and files left by operating systems
    are skipped and counted.

    Use ``ss.audio.decode("audio", rate=16000, mono=True)`` as the first step to convert all files
    to the same rate and one channel. A sound that no step decodes is stored decoded, at its own
    rate. If files differ in their number of channels, those with the rarer number are rejected
    unless they are mixed.

    Attributes:
        url: The folder: a path or any fsspec URL, or a glob. In a recipe, a relative path is
            relative to the recipe's file.
        pattern: Pattern of the file names, with fields in braces: ``"{label}_{speaker}_{n}.wav"``.
            Matched with the entire path if it has a '/'. ``*`` matches any characters. Each field
            is a feature: the label a ClassLabel, a field of digits only an int64, others strings.
        table: A ``.csv``, ``.tsv``, ``.txt`` or ``.jsonl`` file with a row for each file, named in
            a column ``file``, ``file_name``, ``filename`` or ``path``, else in the first column.
            Other columns are features, the label a ClassLabel. A file without a row is rejected, or
            see ``unlisted``. Relative paths are resolved like ``url``. A glob of the parts of a
            table: ``"dev-clean/*/*/*.trans.txt"``.
        split_folders: Whether the first folder is the split (``train/yes/1.wav``), for use with
            ``ss.Splits.by_folder()``. False if class folders have such names.
        label: The column of ``table`` or field of ``pattern`` to predict. Its strings become a
            ClassLabel; numbers of a table are kept. None for none; folders are no classes then.
        max_samples: Sounds with more samples in all channels are rejected before decoding, which
            would need 4 bytes of memory for each sample. MP3s, whose length is known only after
            decoding, may have 100 million.
        unlisted: Whether files without a row in ``table`` are rejected, or skipped and counted:
            ``"skip"`` reads only the labelled part of a folder.
        one_hot: Columns of ``table``, one of which is 1 in each row, and the others 0: instead of
            them there is the feature ``label``, whose classes are their names.
        rows: ``"list"``: a file may have several rows in ``table``; its features are lists of their
            values, in the order of the rows.
        lists: Texts that name the files of each split, a file on each line: ``{"train":
            "train.txt", "test": "test.txt"}``, for use with ``ss.Splits.by_column("split")``. None
            for the split of all other files: ``{"train": None, "test": "test.txt"}``; else files in
            no list are skipped and counted. Feature ``split``.
        texts: The suffix of the sounds' texts: ``".txt"`` for ``a.txt`` beside ``a.wav``, or in a
            folder of its own, ``txt/a.txt``. Feature ``text``: the file in UTF-8, without line ends
            at its end. A sound without one is rejected.
    """

    table: str | None = None
    max_samples: Annotated[int, pydantic.Field(gt=0, le=MAX_SAMPLES)] = MAX_SAMPLES
    texts: str | None = None

    _content = "audio"
    _suffixes = bystanders.SOUNDS
    _what = "sound"

    def settings(self) -> dict[str, object]:
        """The settings that determine the records, as plain JSON, for the fingerprint."""
        return {
            "source": "audio_folder",
            "max_samples": self.max_samples,
            # For the final decoding, if no step decodes.
            "soundfile": decoder_version(),
            **self._labels.settings(),
            **({} if self.texts is None else {"texts": self.texts}),
        }

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The sound as described by the files' headers, and the features found by ``labels``.

        Its rate and length are None if files differ; ``channels`` is the most frequent number.
        Samples are 16-bit integers if no file has more bits.

        Raises:
            RecipeError: if class folders are named like splits.
            DataError: if no file has labels, or the table is not valid.
        """
        sound = _sound_of(read_headers(self._records(files), opened))
        return self.with_text({"audio": sound, **self.infer_labels(files, opened)})

    def _kind(self, features: Features) -> MediaKind[SoundHeader]:
        expected = features.get("audio", Audio(storage="encoded"))
        assert isinstance(expected, Audio)

        def read_checked(data: bytes) -> tuple[bytes, SoundHeader]:
            header = read_header(data, max_samples=self.max_samples)
            _check(header, expected)
            return data, header

        return MediaKind(
            name=self._content,
            read=read_checked,
            unreadable=UnreadableSoundError,
            weigh=_num_samples,
            max_weight=BATCH_SAMPLES,
        )


def read_headers(files: Sequence[SourceFile], opened: OpenSource) -> Iterator[SoundHeader]:
    """The headers of files that have one, from their first bytes if these suffice."""
    return read_media_headers(
        files,
        opened,
        read=lambda file, data: read_header(data, num_bytes=file.num_bytes),
        unreadable=UnreadableSoundError,
        cut_short="truncated sound",
    )


def _sound_of(headers: Iterator[SoundHeader]) -> Audio:
    """The common properties of the sounds."""
    rates, channels, lengths = Counter[int](), Counter[int](), Counter[int | None]()
    fits = True
    for header in headers:
        rates[header.rate] += 1
        channels[header.channels] += 1
        # The decoded length of a lossy stream depends on the decoder.
        lengths[header.samples if header.format in ("wav", "flac") else None] += 1
        fits = fits and header.fits_16_bits
    if not rates:
        return Audio(storage="encoded")
    return Audio(
        rate=next(iter(rates)) if len(rates) == 1 else None,
        channels=max(channels, key=lambda number: (channels[number], -number)),
        samples=next(iter(lengths)) if len(lengths) == 1 else None,
        dtype="int16" if fits else "float32",
        storage="encoded",
    )


def _check(header: SoundHeader, expected: Audio) -> None:
    """Checks a file against the declared feature."""
    if expected.rate is not None and header.rate != expected.rate:
        raise UnreadableSoundError(
            "other rate",
            f"it has {header.rate:,} Hz, expected {expected.rate:,}. Declare no rate, or resample "
            "all files to one rate.",
        )
    if expected.dtype == "int16" and not header.fits_16_bits:
        raise UnreadableSoundError(
            "more than 16 bits",
            f'its samples are {header.subtype}, expected at most 16 bits. Declare dtype="float32".',
        )


def _num_samples(header: SoundHeader) -> int:
    return (header.samples or header.estimate) * header.channels
