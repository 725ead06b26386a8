"""Steps from audio to features for models: frames, log-mel spectrograms, MFCCs.

Decoded audio of one channel becomes a tensor ``float32[frames, …]`` of the same name, with the same
bytes on any number of threads. The order of additions in a matrix product depends on how it is
split among threads. A mel band is a few adjacent bins of the spectrum, so these are gathered and
summed along the last axis instead.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Protocol

import numpy as np
import numpy.typing as npt
import pydantic

from ...schemas.config import config_class
from ...schemas.errors import RecipeError
from ...schemas.features import Features, Tensor, side_columns
from .sounds import sound_of
from .values import NO_FEATURES, BuiltIn

_Count = Annotated[int, pydantic.Field(ge=1)]
_Seconds = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
_Hertz = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
_Offset = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]

_BREAK_HZ = 700.0
_MELS = 1127.0
"""HTK's mel scale: mel = 1127 ln(1 + f / 700)."""


@config_class
class Frame(BuiltIn):
    """Cuts decoded audio into frames that may overlap: ``float32[frames, length]``.

    Samples after the last complete frame are dropped. Audio shorter than one frame becomes one
    frame, padded with silence.

    Args:
        name: The audio feature, with one channel.
        length: Samples per frame.
        step: Samples from the start of one frame to the start of the next.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    length: _Count
    step: _Count
    kind = "audio.frame"
    sees_features = True

    def settings(self) -> dict[str, object]:
        """Everything that affects the output, as plain JSON, for the fingerprint."""
        # Its field ``step`` would replace the kind of step.
        return {**super().settings(), "step": self.kind, "frame_step": self.step}

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded audio of one channel of this name.
        """
        sound = sound_of(self, self.name, features, mono=True)
        frames = num_frames(sound.samples, self.length, self.step)
        return {**features, self.name: Tensor("float32", (frames, self.length))}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces ``float32[samples]`` by ``float32[frames, length]``."""
        frames = framed(record[self.name], self.length, self.step)
        return _with_tensor(record, self.name, frames, self.features(features), features)


frame = Frame


@config_class
class LogMel(BuiltIn):
    """Computes a log-mel spectrogram of decoded audio: ``float32[frames, num_mels]``.

    The natural logarithm of ``offset`` + the energy in mel bands. The energy is the squared
    magnitude of the Fourier transform of each frame under a periodic Hann window
    (``tf.signal.stft``, padded to the next power of two), weighted by triangles of equal width on
    HTK's mel scale (``mel = 1127 ln(1 + f/700)``; the weights of
    ``tf.signal.linear_to_mel_weight_matrix``). Frames start at the first sample and are complete,
    as in ``frame``.

    Args:
        name: The audio feature, with one channel and a fixed rate, for speech usually 16 kHz.
        num_mels: Number of bands, usually 64 or 80.
        window: Length of a frame in seconds.
        hop: Distance between the starts of frames in seconds.
        low: Lower end of the first band in Hz.
        high: Upper end of the last band in Hz; None means half the rate.
        offset: Energy added before the logarithm: the value of silence.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    _: dataclasses.KW_ONLY
    num_mels: _Count = 80
    window: _Seconds = 0.025
    hop: _Seconds = 0.010
    low: _Hertz = 20.0
    high: _Hertz | None = None
    offset: _Offset = 1e-6
    kind = "audio.log_mel"
    sees_features = True

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded audio of one channel and a fixed rate of this
                name, or the parameters do not match its rate.
        """
        return _spectral_features(self, features, self.num_mels)

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces ``float32[samples]`` by ``float32[frames, num_mels]``."""
        spectrogram = log_mel_spectrogram(
            record[self.name], MelBands.of(self, features), self.offset
        )
        return _with_tensor(record, self.name, spectrogram, self.features(features), features)


log_mel = LogMel


@config_class
class Mfcc(BuiltIn):
    """Computes mel-frequency cepstral coefficients: ``float32[frames, num_coefficients]``.

    The first coefficients of the cosine transform of ``log_mel``, scaled as in HTK
    (``tf.signal.mfccs_from_log_mel_spectrograms``); the first one is the frame's loudness. The
    other arguments are those of ``log_mel``.

    Raises:
        RecipeError: if an argument is invalid.
    """

    name: str
    num_coefficients: _Count = 13
    _: dataclasses.KW_ONLY
    num_mels: _Count = 80
    window: _Seconds = 0.025
    hop: _Seconds = 0.010
    low: _Hertz = 20.0
    high: _Hertz | None = None
    offset: _Offset = 1e-6
    kind = "audio.mfcc"
    sees_features = True

    def __post_init__(self) -> None:
        """Checks the number of coefficients."""
        if self.num_coefficients > self.num_mels:
            raise ValueError(
                f"num_coefficients={self.num_coefficients} is more than num_mels={self.num_mels}"
            )

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: as for :class:`LogMel`.
        """
        return _spectral_features(self, features, self.num_coefficients)

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces ``float32[samples]`` by ``float32[frames, num_coefficients]``."""
        import tensorflow as tf

        spectrogram = log_mel_spectrogram(
            record[self.name], MelBands.of(self, features), self.offset
        )
        coefficients = tf.signal.mfccs_from_log_mel_spectrograms(spectrogram)
        kept = coefficients[:, : self.num_coefficients]
        return _with_tensor(record, self.name, kept, self.features(features), features)


mfcc = Mfcc


def _spectral_features(step: LogMel | Mfcc, features: Features, width: int) -> Features:
    bands = MelBands.of(step, features)
    samples = sound_of(step, step.name, features).samples
    frames = num_frames(samples, bands.length, bands.hop)
    return {**features, step.name: Tensor("float32", (frames, width))}


def _with_tensor(
    record: dict[str, Any], name: str, value: Any, after: Features, before: Features
) -> dict[str, Any]:
    """The record with a tensor in place of audio, without its rate."""
    import tensorflow as tf

    sides = side_columns(name, before[name])
    rest = {part: given for part, given in record.items() if part not in sides}
    feature = after[name]
    assert isinstance(feature, Tensor)
    return {**rest, name: tf.ensure_shape(value, feature.shape)}


class _MelStep(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def num_mels(self) -> int: ...
    @property
    def window(self) -> float: ...
    @property
    def hop(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float | None: ...


@dataclasses.dataclass(frozen=True)
class MelBands:
    """The parameters of a mel spectrogram at a fixed rate."""

    rate: int
    length: int
    """Samples per frame."""
    hop: int
    low: float
    high: float
    num_mels: int

    @classmethod
    def of(cls, step: _MelStep, features: Features) -> MelBands:
        """The bands of a step.

        Raises:
            RecipeError: if there is no audio with one channel and a fixed rate, or one of the
                step's parameters does not match the rate.
        """
        sound = sound_of(step, step.name, features, mono=True)
        if sound.rate is None:
            raise RecipeError(
                f"prepare: {step!r}: the rate of {step.name!r} differs from record to record. Put "
                f"ss.audio.resample({step.name!r}, 16000) before this step."
            )
        high = sound.rate / 2 if step.high is None else step.high
        length, hop = (round(seconds * sound.rate) for seconds in (step.window, step.hop))
        bands = cls(sound.rate, length, hop, step.low, high, step.num_mels)
        if not step.low < high <= sound.rate / 2:
            raise RecipeError(
                f"prepare: {step!r}: invalid range of bands, low={step.low:g} to high={high:g} Hz: "
                f"expected low < high, and high at most {sound.rate / 2:g}, half the rate."
            )
        if length < 2 or hop < 1:
            raise RecipeError(
                f"prepare: {step!r}: at {sound.rate:,} Hz a window has {length} samples and a hop "
                f"{hop}, expected at least 2 and 1."
            )
        empty = np.flatnonzero(bands.weights().sum(axis=0) == 0)
        if len(empty):
            raise RecipeError(
                f"prepare: {step!r}: at {sound.rate:,} Hz, {len(empty)} of {step.num_mels} bands "
                f"are narrower than the {sound.rate / bands.fft_length:g} Hz between two bins of a "
                f"spectrum of {bands.fft_length}, and would be empty (the first: {empty[0]}). "
                "Use fewer bands, or a longer window."
            )
        return bands

    @property
    def fft_length(self) -> int:
        """The smallest power of two that is at least a window's length."""
        return 1 << (self.length - 1).bit_length()

    def weights(self) -> npt.NDArray[np.float64]:
        """The weight of each bin in each band: float64[bins, num_mels]."""
        bins = np.linspace(0.0, self.rate / 2, self.fft_length // 2 + 1)
        edges = np.linspace(_to_mel(self.low), _to_mel(self.high), self.num_mels + 2)
        low, centre, high = edges[:-2], edges[1:-1], edges[2:]
        mels = _to_mel(bins)[:, np.newaxis]
        rising, falling = (mels - low) / (centre - low), (high - mels) / (high - centre)
        weights: npt.NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
        # The mean of the signal (0 Hz) is not a pitch.
        weights[0] = 0.0
        return weights


def _to_mel(hertz: Any) -> Any:
    return _MELS * np.log1p(np.asarray(hertz) / _BREAK_HZ)


def num_frames(samples: int | None, length: int, hop: int) -> int | None:
    """The number of frames; None if the number of samples varies.

    >>> num_frames(10, 4, 2), num_frames(3, 4, 2), num_frames(None, 4, 2)
    (4, 1, None)
    """
    return None if samples is None else 1 + max(samples - length, 0) // hop


def framed(samples: Any, length: int, hop: int) -> Any:
    """Frames of ``float32[samples]``: ``float32[frames, length]``, at least one."""
    import tensorflow as tf

    samples = tf.pad(samples, [[0, tf.maximum(length - tf.shape(samples)[0], 0)]])
    return tf.signal.frame(samples, length, hop)


def log_mel_spectrogram(samples: Any, bands: MelBands, offset: float) -> Any:
    """The logarithm of the energy in bands: ``float32[frames, num_mels]``."""
    import tensorflow as tf

    frames = framed(samples, bands.length, bands.hop) * tf.signal.hann_window(bands.length)
    spectrum = tf.signal.rfft(frames, [bands.fft_length])
    energy = tf.square(tf.math.real(spectrum)) + tf.square(tf.math.imag(spectrum))
    bins, weights = _by_band(bands.weights())
    mel = tf.reduce_sum(tf.gather(energy, bins, axis=1) * weights, axis=2)
    return tf.math.log(mel + offset)


def _by_band(
    weights: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The bins of each band, and their weights: int32 and float32[num_mels, widest]."""
    num_bins, num_mels = weights.shape
    first = (weights > 0).argmax(axis=0)
    widest = int((weights > 0).sum(axis=0).max())
    bins = np.minimum(first[:, np.newaxis] + np.arange(widest), num_bins - 1)
    counted = weights[bins, np.arange(num_mels)[:, np.newaxis]]
    # Bands at the end repeat the last bin if they have fewer, with a weight of zero.
    again = first[:, np.newaxis] + np.arange(widest) >= num_bins
    return bins.astype(np.int32), np.where(again, 0.0, counted).astype(np.float32)
