"""Decodes sound files to samples in Python, with libsndfile: what TensorFlow has no operation for.

Decoders take much that is damaged for good: they fill gaps with silence and end early. So what a
file says of itself is held against what comes out: the number of samples, FLAC's MD5 of them,
whether floats are numbers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schemas.errors import RecipeError
from .audio_header import (
    MAX_SAMPLES,
    SoundHeader,
    UnreadableSoundError,
    mp3_start,
    read_header,
    with_length,
)
from .decoder_noise import caught_noise

Samples = npt.NDArray[np.float32]

_FLAC_INFO = 8
"""A STREAMINFO begins so far behind the mark ``fLaC``."""


def decode_sound(data: bytes, *, max_samples: int = MAX_SAMPLES) -> tuple[Samples, int]:
    """Decodes a sound file: WAV, FLAC, Ogg Vorbis or Opus, MP3; the content decides.

    Integers become floats exactly: divided by their type's range, 1/32768 a step of 16 bits. Of 32
    bits and of float64, float32 keeps 24.

    Args:
        data: The file's bytes.
        max_samples: Of all channels together.

    Returns:
        float32[samples, channels], and the rate in Hz.

    Raises:
        UnreadableSoundError: if it is none of these, or not whole.
    """
    header = read_header(data, max_samples=max_samples)
    decode = {"wav": _wav, "flac": _flac, "mp3": _mp3}.get(header.format, _other)
    samples = decode(data, header, max_samples)
    if not len(samples):
        raise UnreadableSoundError("no samples", "the file decodes to no samples")
    if header.format == "wav" and not np.isfinite(samples).all():
        row = int(np.flatnonzero(~np.isfinite(samples).all(axis=1))[0])
        raise UnreadableSoundError(
            "not finite", f"sample {row:,} is {samples[row].tolist()}, expected finite numbers"
        )
    return samples, header.rate


def check_installed(*, where: str) -> None:
    """Checks that the library that decodes is there.

    Raises:
        RecipeError: if it is not; ``where`` names the step that needs it.
    """
    if importlib.util.find_spec("soundfile") is None:
        raise RecipeError(
            f"prepare: {where} needs the package soundfile, which is not installed. Run: pip "
            'install "snapshard[audio]". Where all files are plain 16-bit WAV, write instead: '
            'ss.audio.decode("…", plain_wav=True).'
        )


def decoder_version() -> str:
    """The version of soundfile, which brings its own libsndfile; ``absent`` without it."""
    try:
        return importlib.metadata.version("soundfile")
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def diagnose(data: bytes) -> UnreadableSoundError | None:
    """Why a sound does not decode; None if it does."""
    try:
        decode_sound(data)
    except UnreadableSoundError as error:
        return error
    return None


def _other(data: bytes, header: SoundHeader, max_samples: int) -> Samples:
    samples, rate = _read(data, "float32", max_samples // header.channels + 1)
    _limit(samples, header, max_samples)
    _compare(samples, rate, header)
    return np.asarray(samples, np.float32)


def _wav(data: bytes, header: SoundHeader, max_samples: int) -> Samples:
    return _other(with_length(data), header, max_samples)


def _mp3(data: bytes, header: SoundHeader, max_samples: int) -> Samples:
    with caught_noise() as damage:
        samples = _other(data[mp3_start(data) :], header, max_samples)
    if damage:
        raise UnreadableSoundError("damaged sound", f"libmpg123: {damage[0]}")
    return samples


def _flac(data: bytes, header: SoundHeader, max_samples: int) -> Samples:
    samples, rate = _read(data, "int32", (header.samples or max_samples // header.channels) + 1)
    _limit(samples, header, max_samples)
    _compare(samples, rate, header)
    start = data.index(b"fLaC") + _FLAC_INFO
    stated = data[start + 18 : start + 34]
    bits = int(header.subtype.removeprefix("PCM_"))
    if stated.strip(b"\0") and hashlib.md5(_packed(samples, bits)).digest() != stated:
        raise UnreadableSoundError(
            "damaged sound", "the samples do not match the MD5 that the FLAC file states of them"
        )
    return samples.astype(np.float32) / np.float32(1 << 31)


def _packed(samples: npt.NDArray[np.int32], bits: int) -> bytes:
    """Samples as FLAC's MD5 takes them: little-endian, in as few bytes as hold their bits."""
    values = np.ascontiguousarray(samples >> (32 - bits), "<i4")
    return values.view(np.uint8).reshape(-1, 4)[:, : -(-bits // 8)].tobytes()


def _read(data: bytes, dtype: str, frames: int) -> tuple[npt.NDArray[Any], int]:
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            return file.read(frames, dtype=dtype, always_2d=True), file.samplerate
    except (soundfile.SoundFileError, RuntimeError, ValueError, OSError) as error:
        text = str(getattr(error, "error_string", error))
        raise UnreadableSoundError("damaged sound", f"libsndfile cannot read it: {text}") from None


def _limit(samples: npt.NDArray[Any], header: SoundHeader, max_samples: int) -> None:
    if samples.size > max_samples:
        raise UnreadableSoundError(
            "too many samples",
            f"the sound has more than {max_samples:,} samples of {header.channels} channels",
        )


def _compare(samples: npt.NDArray[Any], rate: int, header: SoundHeader) -> None:
    if header.samples is not None and header.format != "ogg" and len(samples) != header.samples:
        raise UnreadableSoundError(
            "truncated sound" if len(samples) < header.samples else "damaged sound",
            f"the header states {header.samples:,} samples, and {len(samples):,} decode",
        )
    if (rate, samples.shape[1]) != (header.rate, header.channels):
        raise UnreadableSoundError(
            "damaged sound",
            f"the header states {header.rate:,} Hz of {header.channels} channels, and "
            f"{rate:,} Hz of {samples.shape[1]} decode",
        )
