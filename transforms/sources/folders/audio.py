"""Folders of sounds; labels come from folders, file names or a table (``labels``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import pyarrow as pa
import pydantic

from ....schemas.blocks import SourceFile
from ....schemas.config import config_class
from ....schemas.features import Audio, Features
from ....schemas.recipe import OpenSource
from ...media.audio_decode import decoder_version
from ...media.audio_header import MAX_SAMPLES, SoundHeader, UnreadableSoundError, read_header
from ...storage.read_files import read_headers as read_media_headers
from .files import MediaFolder, MediaKind

BATCH_SAMPLES = 16 << 20
"""A raw batch holds no more samples, as far as headers tell: decoded, 64 MiB."""


@config_class
class AudioFolder(MediaFolder):
    """A folder of sounds: feature ``audio``, and what says what is in it.

    WAV, FLAC, Ogg with Vorbis or Opus, and MP3; the content decides, not the name. Without
    ``pattern`` and ``table``, the files lie in class folders, whose names become the feature
    ``label``. Every file is a record, at any depth; what does not decode becomes a reject. Hidden
    files and those that operating systems leave behind are skipped and counted.

    Take ``ss.audio.decode("audio", rate=16000, mono=True)`` as the first step to bring all to one
    rate and one channel; a sound that no step decodes is stored decoded, at its own rate. Where
    files differ in their number of channels, those of the rarer number are rejected unless they
    are mixed.

    Attributes:
        url: The folder: a path or any fsspec URL, or a glob. In a recipe, a relative path counts
            from the recipe's file.
        pattern: The form of the files' names, fields in braces: ``"{label}_{speaker}_{n}.wav"``.
            Held against the path where it has a '/'. ``*`` stands for any characters. Each field
            is a feature: ``label`` a ClassLabel; one of digits alone an int64; else a string.
        table: A ``.csv``, ``.tsv`` or ``.jsonl`` file with a row for each file, named in a column
            ``file``, ``file_name``, ``filename`` or ``path``, else in the first; other columns are
            features: ``label`` a ClassLabel. A file without a row is rejected. A relative path
            counts as ``url`` does.
        split_folders: The first folder is the split (``train/yes/1.wav``); take it with
            ``ss.Splits.by_folder()``. False where class folders are called so.
        max_samples: Sounds of more samples, of all channels together, are rejected before they
            are decoded, which would take as many times 4 bytes of memory. An MP3, whose length
            shows when it is decoded, may have 100 million.
    """

    url: str
    pattern: str | None = None
    table: str | None = None
    split_folders: bool | None = None
    max_samples: Annotated[int, pydantic.Field(gt=0, le=MAX_SAMPLES)] = MAX_SAMPLES

    _content = "audio"

    def settings(self) -> dict[str, object]:
        """What shapes the records, as plain JSON, for the fingerprint."""
        return {
            "source": "audio_folder",
            "max_samples": self.max_samples,
            # Of the decoding at the end, where no step says it.
            "soundfile": decoder_version(),
            **self._labels.settings(),
        }

    def infer(self, files: Sequence[SourceFile], opened: OpenSource) -> Mapping[str, Any]:
        """The sound as the files' headers state it, and the features that ``labels`` finds.

        Its rate and length are None where files differ; ``channels`` is what most have. 16-bit
        integers hold all samples where no file has more bits.

        Raises:
            RecipeError: if class folders are called like splits.
            DataError: if no file has labels, or the table cannot be read.
        """
        beside = self._labels.infer(files, opened)
        return {"audio": _sound_of(read_headers(files, opened)), **beside}

    def _kind(self, features: Features) -> MediaKind[SoundHeader]:
        expected = features.get("audio", Audio(storage="encoded"))
        assert isinstance(expected, Audio)

        def read_checked(data: bytes) -> SoundHeader:
            header = read_header(data, max_samples=self.max_samples)
            _check(header, expected)
            return header

        return MediaKind(
            name=self._content,
            read_header=read_checked,
            unreadable=UnreadableSoundError,
            weigh=_num_samples,
            max_weight=BATCH_SAMPLES,
            sides=_no_columns,
        )


def read_headers(files: Sequence[SourceFile], opened: OpenSource) -> Iterator[SoundHeader]:
    """The headers of those files that have one, from their first bytes where these are enough."""
    return read_media_headers(
        files,
        opened,
        read=lambda file, data: read_header(data, num_bytes=file.num_bytes),
        unreadable=UnreadableSoundError,
        cut_short="truncated sound",
    )


def _sound_of(headers: Iterator[SoundHeader]) -> Audio:
    """What the sounds have in common."""
    rates, channels, lengths = Counter[int](), Counter[int](), Counter[int | None]()
    fits = True
    for header in headers:
        rates[header.rate] += 1
        channels[header.channels] += 1
        # What decoding makes of the end of a lossy stream is the decoder's.
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
    """Holds a file against what is declared of all."""
    if expected.rate is not None and header.rate != expected.rate:
        raise UnreadableSoundError(
            "other rate",
            f"it has {header.rate:,} Hz, expected {expected.rate:,}. Declare no rate, or resample "
            "all to one.",
        )
    if expected.dtype == "int16" and not header.fits_16_bits:
        raise UnreadableSoundError(
            "more than 16 bits",
            f'its samples are {header.subtype}, expected at most 16 bits. Declare dtype="float32".',
        )


def _num_samples(header: SoundHeader) -> int:
    return (header.samples or header.estimate) * header.channels


def _no_columns(headers: Sequence[SoundHeader]) -> Mapping[str, pa.Array]:
    return {}
