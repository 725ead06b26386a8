"""Decodes sound files to samples: plain WAV with TensorFlow in a graph, all others with libsndfile.

Decoders accept much damage silently: they fill gaps with silence and end early. So what a file's
header states is compared with the result: the number of samples, FLAC's MD5 of them, whether
floats are finite. In a graph, a failure is returned as a string, ``reason``, tab, message, between
marks: an exception raised through TensorFlow would be logged with all its frames.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schemas.errors import RecipeError
from ...schemas.features import Audio
from ..rejects import FAILURE_MARK
from .audio_header import (
    MAX_SAMPLES,
    SoundHeader,
    UnreadableSoundError,
    mp3_start,
    read_header,
    with_length,
)

Samples = npt.NDArray[np.float32]

_FLAC_INFO = 8
"""Distance from the mark ``fLaC`` to the STREAMINFO."""

_HEAD_BYTES = 44
"""Length of the header of a plain WAV file: RIFF, fmt and data, nothing else."""
_PLAIN = (
    (0, b"RIFF"),
    (8, b"WAVEfmt \x10\0\0\0\x01\0"),
    (34, b"\x10\0data"),
)
"""Positions and contents: a chunk ``fmt`` of 16 bytes, PCM; 16 bits, then the samples."""

_NOISE = re.compile(rb"\[src/libmpg123/|Note: |Warning: |\s*$")
_DAMAGE = re.compile(r"error: |Skipped \d+ bytes")
_DESCRIPTOR_LOCK = threading.Lock()


def decode_sound(data: bytes, *, max_samples: int = MAX_SAMPLES) -> tuple[Samples, int]:
    """Decodes a sound file: WAV, FLAC, Ogg Vorbis or Opus, MP3; the content decides which.

    Integers are converted to floats exactly, divided by their type's range: one step of 16 bits is
    1/32768. Of 32-bit integers and float64, float32 keeps 24 bits.

    Args:
        data: The file's bytes.
        max_samples: Maximum number of samples of all channels together.

    Returns:
        float32[samples, channels], and the rate in Hz.

    Raises:
        UnreadableSoundError: if it is none of these formats, or not intact.
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
    """Checks that the decoding library is installed.

    Raises:
        RecipeError: if it is not; ``where`` names the step that needs it.
    """
    if importlib.util.find_spec("soundfile") is None:
        raise RecipeError(
            f"prepare: {where} needs the package soundfile, which is not installed. Run: pip "
            'install "snapshard[audio]". If all files are plain 16-bit WAV, write instead: '
            'ss.audio.decode("…", plain_wav=True).'
        )


def decoder_version() -> str:
    """The version of soundfile, which includes libsndfile; ``absent`` without it."""
    try:
        return importlib.metadata.version("soundfile")
    except importlib.metadata.PackageNotFoundError:
        return "absent"


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
    """Samples as input of FLAC's MD5: little-endian, in as few bytes as hold their bits."""
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


def failure_text(reason: str, message: str) -> str:
    """A failure, in the form in which a TensorFlow error carries it."""
    return f"{FAILURE_MARK}{reason}\t{message}{FAILURE_MARK}"


def decode_tensors(data: Any) -> tuple[Any, Any, Any]:
    """Decodes a sound file, a string scalar.

    Returns:
        float32[samples, channels], the rate as an int64 scalar, and the failure: a string scalar,
        empty if there is none.
    """
    import tensorflow as tf

    samples, rate, failure = tf.cond(
        _is_plain(data), lambda: _by_tensorflow(data), lambda: _by_python(data)
    )
    return samples, rate, failure


def decode_plain_wav(data: Any) -> tuple[Any, Any, Any]:
    """Like :func:`decode_tensors`, but for plain WAV files only, and without Python."""
    import tensorflow as tf

    failed = failure_text(
        "not a plain WAV file",
        "expected a 16-bit WAV file whose samples follow a header of 44 bytes (plain_wav=True)",
    )
    samples, rate, failure = tf.cond(
        _is_plain(data),
        lambda: _by_tensorflow(data),
        lambda: (tf.zeros([0, 1]), tf.constant(0, tf.int64), tf.constant(failed)),
    )
    return samples, rate, failure


def misfit(samples: Any, rate: Any, sound: Audio, *, mono: bool) -> Any:
    """How a decoded sound differs from what ``sound`` declares: a string scalar."""
    import tensorflow as tf

    def unless(fits: Any, reason: str, *message: Any) -> Any:
        text = tf.strings.join([f"{FAILURE_MARK}{reason}\t", *message, FAILURE_MARK])
        return tf.where(fits, "", text)

    length, channels = tf.unstack(tf.shape(samples))
    problem = tf.constant("")
    if sound.samples is not None:
        problem = unless(
            length == sound.samples,
            "other length",
            "it has ",
            tf.strings.as_string(length),
            f" samples, expected {sound.samples}. Give all the same: ss.audio.trim_or_pad.",
        )
    if sound.rate is not None:
        other = unless(
            rate == sound.rate,
            "other rate",
            "it has ",
            tf.strings.as_string(rate),
            f" Hz, expected {sound.rate}.",
        )
        problem = tf.where(other == b"", problem, other)
    if not mono:
        other = unless(
            channels == sound.channels,
            "other channels",
            "it has ",
            tf.strings.as_string(channels),
            f" channels, expected {sound.channels}. Mix all to one: mono=True.",
        )
        problem = tf.where(other == b"", problem, other)
    return problem


def _is_plain(data: Any) -> Any:
    """Whether a file begins like a plain WAV file and contains all of its samples."""
    import tensorflow as tf

    def fits() -> Any:
        parts = [tf.strings.substr(data, at, len(text)) == text for at, text in _PLAIN]
        size = _number(data, 40, tf.int32)
        whole = (size > 0) & (size <= tf.strings.length(data) - _HEAD_BYTES)
        frame_bytes = _number(data, 32, tf.uint16)
        channels, rate = _number(data, 22, tf.uint16), _number(data, 24, tf.int32)
        # If the header contradicts itself, the other decoder reports how.
        agrees = (channels > 0) & (rate > 0) & (frame_bytes == 2 * channels)
        frame = tf.cast(frame_bytes, tf.int32)
        agrees &= (_number(data, 28, tf.int32) == rate * frame) & (size % tf.maximum(frame, 1) == 0)
        return tf.reduce_all(tf.stack([*parts, whole, agrees]))

    return tf.cond(tf.strings.length(data) > _HEAD_BYTES, fits, lambda: tf.constant(False))


def _number(data: Any, at: int, dtype: Any) -> Any:
    import tensorflow as tf

    return tf.io.decode_raw(tf.strings.substr(data, at, dtype.size), dtype)[0]


def _by_tensorflow(data: Any) -> tuple[Any, Any, Any]:
    import tensorflow as tf

    # What follows the samples must not reach the decoder.
    whole = tf.strings.substr(data, 0, _HEAD_BYTES + _number(data, 40, tf.int32))
    rate = tf.cast(_number(data, 24, tf.int32), tf.int64)
    samples, _ = tf.audio.decode_wav(whole)
    return samples, rate, tf.constant("")


def _by_python(data: Any) -> tuple[Any, Any, Any]:
    import tensorflow as tf

    samples, rate, failure = tf.numpy_function(
        _decode, [data], [tf.float32, tf.int64, tf.string], stateful=False
    )
    return (
        tf.ensure_shape(samples, (None, None)),
        tf.ensure_shape(rate, ()),
        tf.ensure_shape(failure, ()),
    )


def _decode(data: bytes) -> tuple[Any, Any, Any]:
    """Called by TensorFlow."""
    try:
        samples, rate = decode_sound(data)
    except UnreadableSoundError as error:
        failure = failure_text(error.reason, str(error)).encode()
        return np.zeros((0, 1), np.float32), np.int64(0), np.array(failure, object)
    return samples, np.int64(rate), np.array(b"", object)


@contextmanager
def caught_noise() -> Iterator[list[str]]:
    """Catches what libmpg123 writes to file descriptor 2 in this block; one block at a time.

    This is how the library reports damage, and libsndfile offers no way to silence or query it.
    So the descriptor is redirected to a file; what others write there meanwhile is passed on.

    Yields:
        A list that contains, after the block, the damage that libmpg123 reported.
    """
    messages: list[str] = []
    with _DESCRIPTOR_LOCK, tempfile.TemporaryFile() as caught:
        if sys.stderr is not None:
            sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(caught.fileno(), 2)
        try:
            yield messages
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            caught.seek(0)
            for line in caught:
                if not _NOISE.match(line):
                    os.write(2, line)
                elif _DAMAGE.search(text := line.decode("utf-8", "replace")):
                    messages.append(text.rpartition("error: ")[2].removeprefix("Note: ").strip())
