"""Steps on audio: decode, resample, mono, trim or pad; and those of ``spectra``.

They run in TensorFlow on single records. Decoded audio is ``float32[samples]``, or ``[samples,
channels]`` if there are several channels. If the rate differs from record to record,
``<name>/rate`` holds it.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import pydantic

from ...schemas.config import config_class
from ...schemas.features import Features
from ..media.audio_decode import (
    check_installed,
    decode_plain_wav,
    decode_tensors,
    decoder_version,
    misfit,
)
from ..media.audio_header import MAX_RATE, MIN_RATE
from .sounds import at_rate, by_channel, mixed, resample_samples, sound_of, with_sound
from .spectra import Frame, LogMel, Mfcc, frame, log_mel, mfcc
from .values import NO_FEATURES, BuiltIn

__all__ = [
    "Decode",
    "Frame",
    "LogMel",
    "Mfcc",
    "Mono",
    "Resample",
    "TrimOrPad",
    "decode",
    "frame",
    "log_mel",
    "mfcc",
    "mono",
    "resample",
    "trim_or_pad",
]

_Rate = Annotated[int, pydantic.Field(ge=MIN_RATE, le=MAX_RATE)]


@config_class
class Decode(BuiltIn):
    """Decodes an audio file to ``float32[samples]``, or ``[samples, channels]`` if not mono.

    Supports WAV (PCM, float, A-law, µ-law), FLAC, Ogg with Vorbis or Opus, and MP3; the format is
    detected by content, not by file name. Samples are exactly those of the file, in [-1, 1]. Files
    that are truncated, fail their own checksums, contain NaN or no samples, or have a different
    number of channels than most are rejected. Audio that no step decodes is decoded like this after
    the last step.

    Args:
        name: The audio feature.
        rate: Rate in Hz to resample to, as ``resample`` does; None keeps each file's own.
        mono: Whether to mix all channels to one, as ``mono`` does.
        dtype: How samples are stored: ``int16`` rounds them to 16 bits, ``float32`` keeps them.
            None means ``int16`` if every file has at most 16 bits, else ``float32``.
        plain_wav: Accept only 16-bit WAV files whose samples follow a header of 44 bytes, and
            reject others. This uses TensorFlow only, so the step can be exported for serving,
            and the package soundfile is not needed.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    rate: _Rate | None = None
    mono: bool = False
    _: dataclasses.KW_ONLY
    dtype: Literal["int16", "float32"] | None = None
    plain_wav: bool = False
    kind = "audio.decode"
    sees_features = True

    @property
    def export_obstacle(self) -> str:
        """Why the step cannot be exported; empty if it can."""
        if self.plain_wav:
            return ""
        return (
            "it decodes FLAC, Ogg, MP3 and unusual WAV files in Python; where all files are plain "
            f"16-bit WAV, {dataclasses.replace(self, plain_wav=True)!r} can be exported"
        )

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        version = None if self.plain_wav else decoder_version()
        return {**super().settings(), "soundfile": version}

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no encoded audio of this name, or no decoder installed.
        """
        sound = sound_of(self, self.name, features, storage="encoded")
        if not self.plain_wav:
            check_installed(where=repr(self))
        decoded = dataclasses.replace(
            sound,
            storage="raw",
            channels=1 if self.mono else sound.channels,
            dtype=self.dtype or sound.dtype,
        )
        return {**features, self.name: at_rate(decoded, self.rate or decoded.rate)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces the encoded bytes by ``float32[samples]`` or ``[samples, channels]``."""
        import tensorflow as tf

        given = sound_of(self, self.name, features, storage="encoded")
        decode = decode_plain_wav if self.plain_wav else decode_tensors
        samples, rate, failure = decode(record[self.name])
        misfits = misfit(samples, rate, given, mono=self.mono)
        failure = tf.where(failure == b"", misfits, failure)
        # TensorFlow would log an exception with its complete traceback.
        verdict = tf.debugging.Assert(failure == b"", [failure])
        with tf.control_dependencies([verdict]):
            samples, rate = tf.identity(samples), tf.identity(rate)
        samples = mixed(samples) if self.mono else samples
        samples = tf.ensure_shape(samples, (None, 1 if self.mono else given.channels))
        if self.rate is not None:
            samples = resample_samples(samples, given.rate or rate, self.rate)
        return with_sound(record, self.name, samples, self.features(features), rate=rate)


decode = Decode


@config_class
class Resample(BuiltIn):
    """Resamples decoded audio to another rate by windowed-sinc interpolation.

    Source: J. O. Smith, "Digital Audio Resampling", https://ccrma.stanford.edu/~jos/resample/.
    Frequencies up to 0.9 of the lower rate's band are preserved to 0.1 %; those above the band are
    removed. Audio that already has this rate is unchanged. If samples are stored as 16 bits, they
    are rounded and clipped at full scale.

    Args:
        name: The audio feature, ``float32[samples]`` or ``[samples, channels]``.
        rate: Samples per second, 100 to 1,000,000.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    rate: _Rate
    kind = "audio.resample"
    sees_features = True

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded audio of this name.
        """
        sound = sound_of(self, self.name, features)
        return {**features, self.name: at_rate(sound, self.rate)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces the samples by those at the new rate."""
        sound = sound_of(self, self.name, features)
        if sound.rate == self.rate:
            return record
        rate = sound.rate or record[f"{self.name}/rate"]
        samples = resample_samples(by_channel(record[self.name]), rate, self.rate)
        return with_sound(record, self.name, samples, self.features(features))


resample = Resample


@config_class
class Mono(BuiltIn):
    """Mixes the channels of decoded audio to one, their mean: ``float32[samples]``.

    Raises:
        RecipeError: if the argument is invalid.
    """

    name: str
    kind = "audio.mono"
    sees_features = True

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded audio of this name.
        """
        sound = sound_of(self, self.name, features)
        return {**features, self.name: dataclasses.replace(sound, channels=1)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces ``float32[samples, channels]`` by ``float32[samples]``."""
        if sound_of(self, self.name, features).channels == 1:
            return record
        return {**record, self.name: mixed(record[self.name])[:, 0]}


mono = Mono


@config_class
class TrimOrPad(BuiltIn):
    """Gives all decoded audio the same length: cuts off the end, or appends silence.

    Args:
        name: The audio feature.
        samples: The number of samples of each channel.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    samples: Annotated[int, pydantic.Field(ge=1)]
    kind = "audio.trim_or_pad"
    sees_features = True

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded audio of this name.
        """
        sound = sound_of(self, self.name, features)
        return {**features, self.name: dataclasses.replace(sound, samples=self.samples)}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Keeps the first ``samples`` samples, and appends silence to shorter audio."""
        import tensorflow as tf

        samples = by_channel(record[self.name])[: self.samples]
        missing = self.samples - tf.shape(samples)[0]
        samples = tf.pad(samples, [[0, missing], [0, 0]])
        return with_sound(record, self.name, samples, self.features(features))


trim_or_pad = TrimOrPad
