"""Decodes sound files inside a graph: plain WAV by TensorFlow, all else by Python.

What goes wrong comes out as a string, ``reason``, tab, message, between the marks that say so:
an exception that went through TensorFlow would be logged with all its frames.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...schemas.features import Audio
from ..prepare.values import FAILURE_MARK
from .audio_decode import decode_sound
from .sound_header import UnreadableSoundError

_HEAD_BYTES = 44
"""Before the samples of a plain WAV file: RIFF, fmt and data, nothing else."""
_PLAIN = (
    (0, b"RIFF"),
    (8, b"WAVEfmt \x10\0\0\0\x01\0"),
    (34, b"\x10\0data"),
)
"""Where, and what: a chunk ``fmt`` of 16 bytes, PCM; 16 bits, then the samples."""


def failure_text(reason: str, message: str) -> str:
    """What went wrong, as an error of TensorFlow's carries it."""
    return f"{FAILURE_MARK}{reason}\t{message}{FAILURE_MARK}"


def decode_tensors(data: Any) -> tuple[Any, Any, Any]:
    """Decodes a sound file, a string scalar.

    Returns:
        float32[samples, channels], the rate as an int64 scalar, and what went wrong: a string
        scalar, empty where nothing did.
    """
    import tensorflow as tf

    samples, rate, failure = tf.cond(
        _is_plain(data), lambda: _by_tensorflow(data), lambda: _by_python(data)
    )
    return samples, rate, failure


def decode_plain_wav(data: Any) -> tuple[Any, Any, Any]:
    """As :func:`decode_tensors`, for plain WAV files alone, without Python."""
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
    """What is wrong with a decoded sound where it is to be like ``sound``: a string scalar."""
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
    """Whether a file begins as a plain WAV file does, all of its samples there."""
    import tensorflow as tf

    def fits() -> Any:
        parts = [tf.strings.substr(data, at, len(text)) == text for at, text in _PLAIN]
        size = _number(data, 40, tf.int32)
        whole = (size > 0) & (size <= tf.strings.length(data) - _HEAD_BYTES)
        frame_bytes = _number(data, 32, tf.uint16)
        channels, rate = _number(data, 22, tf.uint16), _number(data, 24, tf.int32)
        # Where the header contradicts itself, the other decoder says how.
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

    # What stands behind the samples is none of the decoder's concern.
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
    """What TensorFlow calls."""
    try:
        samples, rate = decode_sound(data)
    except UnreadableSoundError as error:
        failure = failure_text(error.reason, str(error)).encode()
        return np.zeros((0, 1), np.float32), np.int64(0), np.array(failure, object)
    return samples, np.int64(rate), np.array(b"", object)
