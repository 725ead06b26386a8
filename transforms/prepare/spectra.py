"""Steps from a sound to what models hear: frames, log-mel spectrograms, MFCCs.

A decoded sound of one channel becomes a tensor ``float32[frames, …]`` of the same name, with the
same bytes on any number of threads. A matrix product adds in an order that depends on how it is
shared out; a mel band is a few neighbouring bins of the spectrum, so they are gathered and added
along the last axis instead.
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
from .values import NO_FEATURES, call_text, changed

_Count = Annotated[int, pydantic.Field(ge=1)]
_Seconds = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
_Hertz = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
_Offset = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]

_BREAK_HZ = 700.0
_MELS = 1127.0
"""HTK's mel scale: mel = 1127 ln(1 + f / 700)."""


@config_class
class Frame:
    """See :func:`frame`."""

    name: str
    length: _Count
    step: _Count
    sees_features = True

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        return call_text("ss.audio.frame", self.name, self.length, self.step)

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {
            "step": "audio.frame",
            "name": self.name,
            "length": self.length,
            "frame_step": self.step,
        }

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded sound of one channel of this name.
        """
        sound = sound_of(self, self.name, features, mono=True)
        frames = num_frames(sound.samples, self.length, self.step)
        return {**features, self.name: Tensor("float32", (frames, self.length))}

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces ``float32[samples]`` by ``float32[frames, length]``."""
        frames = framed(record[self.name], self.length, self.step)
        return _with_tensor(record, self.name, frames, self.features(features), features)


@config_class
class LogMel:
    """See :func:`log_mel`."""

    name: str
    num_mels: _Count = 80
    window: _Seconds = 0.025
    hop: _Seconds = 0.010
    low: _Hertz = 20.0
    high: _Hertz | None = None
    offset: _Offset = 1e-6
    sees_features = True

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        return call_text("ss.audio.log_mel", self.name, **changed(self))

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {"step": "audio.log_mel", **_all(self)}

    def features(self, features: Features) -> Features:
        """The features after this step.

        Raises:
            RecipeError: if there is no decoded sound of one channel and a known rate of this
                name, or the parameters do not go with its rate.
        """
        return _spectral_features(self, features, self.num_mels)

    def apply(self, record: dict[str, Any], features: Features = NO_FEATURES) -> dict[str, Any]:
        """Replaces ``float32[samples]`` by ``float32[frames, num_mels]``."""
        spectrogram = log_mel_spectrogram(
            record[self.name], MelBands.of(self, features), self.offset
        )
        return _with_tensor(record, self.name, spectrogram, self.features(features), features)


@config_class
class Mfcc:
    """See :func:`mfcc`."""

    name: str
    num_coefficients: _Count = 13
    num_mels: _Count = 80
    window: _Seconds = 0.025
    hop: _Seconds = 0.010
    low: _Hertz = 20.0
    high: _Hertz | None = None
    offset: _Offset = 1e-6
    sees_features = True

    def __post_init__(self) -> None:
        """Checks that there are so many coefficients."""
        if self.num_coefficients > self.num_mels:
            raise ValueError(
                f"num_coefficients={self.num_coefficients} is more than num_mels={self.num_mels}"
            )

    def __repr__(self) -> str:
        """As it is written in a recipe."""
        return call_text("ss.audio.mfcc", self.name, **changed(self))

    def settings(self) -> dict[str, object]:
        """What shapes the output, as plain JSON, for the fingerprint."""
        return {"step": "audio.mfcc", **_all(self)}

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


def frame(name: str, length: int, step: int) -> Frame:
    """Cuts a decoded sound into frames that may overlap: ``float32[frames, length]``.

    What is left behind the last whole frame is dropped; a sound shorter than one frame becomes
    one, with silence behind it.

    Args:
        name: The audio feature, of one channel.
        length: Samples of a frame.
        step: Samples from one frame's begin to the next one's.

    Raises:
        RecipeError: if an argument is unfit.
    """
    return Frame(name=name, length=length, step=step)


def log_mel(
    name: str,
    *,
    num_mels: int = 80,
    window: float = 0.025,
    hop: float = 0.010,
    low: float = 20.0,
    high: float | None = None,
    offset: float = 1e-6,
) -> LogMel:
    """Makes a log-mel spectrogram of a decoded sound: ``float32[frames, num_mels]``.

    The natural logarithm of ``offset`` + the energy in mel bands: of each frame under a periodic
    Hann window, the squared magnitudes of the Fourier transform (``tf.signal.stft``, the next
    power of two long), weighted by triangles that are even on HTK's mel scale (``mel = 1127 ln(1 +
    f/700)``; the weights of ``tf.signal.linear_to_mel_weight_matrix``). Frames begin at the first
    sample and are whole, as in :func:`frame`.

    Args:
        name: The audio feature: one channel, one rate, for speech most often 16 kHz.
        num_mels: Number of bands, usually 64 or 80.
        window: Length of a frame in seconds.
        hop: From one frame to the next, in seconds.
        low: Lower end of the first band in Hz.
        high: Upper end of the last band in Hz; None is half the rate.
        offset: What silence is taken for, as energy.

    Raises:
        RecipeError: if an argument is unfit.
    """
    return LogMel(
        name=name, num_mels=num_mels, window=window, hop=hop, low=low, high=high, offset=offset
    )


def mfcc(
    name: str,
    num_coefficients: int = 13,
    *,
    num_mels: int = 80,
    window: float = 0.025,
    hop: float = 0.010,
    low: float = 20.0,
    high: float | None = None,
    offset: float = 1e-6,
) -> Mfcc:
    """Makes mel-frequency cepstral coefficients: ``float32[frames, num_coefficients]``.

    The first coefficients of the cosine transform of :func:`log_mel`, scaled as HTK does
    (``tf.signal.mfccs_from_log_mel_spectrograms``); the very first is the frame's loudness.

    Raises:
        RecipeError: if an argument is unfit.
    """
    return Mfcc(
        name=name,
        num_coefficients=num_coefficients,
        num_mels=num_mels,
        window=window,
        hop=hop,
        low=low,
        high=high,
        offset=offset,
    )


def _all(step: LogMel | Mfcc) -> dict[str, object]:
    return {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}


def _spectral_features(step: LogMel | Mfcc, features: Features, width: int) -> Features:
    bands = MelBands.of(step, features)
    samples = sound_of(step, step.name, features).samples
    frames = num_frames(samples, bands.length, bands.hop)
    return {**features, step.name: Tensor("float32", (frames, width))}


def _with_tensor(
    record: dict[str, Any], name: str, value: Any, after: Features, before: Features
) -> dict[str, Any]:
    """The record with a tensor in place of a sound, whose rate goes."""
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
    """What a mel spectrogram of a known rate is made with."""

    rate: int
    length: int
    """Samples of a frame."""
    hop: int
    low: float
    high: float
    num_mels: int

    @classmethod
    def of(cls, step: _MelStep, features: Features) -> MelBands:
        """The bands that a step asks for.

        Raises:
            RecipeError: if there is no sound of one channel and a known rate, or one of the
                step's parameters does not go with the rate.
        """
        sound = sound_of(step, step.name, features, mono=True)
        if sound.rate is None:
            raise RecipeError(
                f"prepare: {step!r}: the rate of {step.name!r} differs from record to record. Put "
                f"ss.audio.resample({step.name!r}, 16000) before it."
            )
        high = sound.rate / 2 if step.high is None else step.high
        length, hop = (round(seconds * sound.rate) for seconds in (step.window, step.hop))
        bands = cls(sound.rate, length, hop, step.low, high, step.num_mels)
        if not step.low < high <= sound.rate / 2:
            raise RecipeError(
                f"prepare: {step!r}: bands from low={step.low:g} to high={high:g} Hz; expected low "
                f"< high, and high at most {sound.rate / 2:g}, half the rate."
            )
        if length < 2 or hop < 1:
            raise RecipeError(
                f"prepare: {step!r}: at {sound.rate:,} Hz a window has {length} samples and a hop "
                f"{hop}; expected 2 and 1 at least."
            )
        empty = np.flatnonzero(bands.weights().sum(axis=0) == 0)
        if len(empty):
            raise RecipeError(
                f"prepare: {step!r}: at {sound.rate:,} Hz, {len(empty)} of {step.num_mels} bands "
                f"are narrower than the {sound.rate / bands.fft_length:g} Hz between two bins of a "
                f"spectrum of {bands.fft_length}, and would hold nothing (the first: {empty[0]}). "
                "Take fewer bands, or a longer window."
            )
        return bands

    @property
    def fft_length(self) -> int:
        """The next power of two that holds a window."""
        return 1 << (self.length - 1).bit_length()

    def weights(self) -> npt.NDArray[np.float64]:
        """What each bin counts in each band: float64[bins, num_mels]."""
        bins = np.linspace(0.0, self.rate / 2, self.fft_length // 2 + 1)
        edges = np.linspace(_to_mel(self.low), _to_mel(self.high), self.num_mels + 2)
        low, centre, high = edges[:-2], edges[1:-1], edges[2:]
        mels = _to_mel(bins)[:, np.newaxis]
        rising, falling = (mels - low) / (centre - low), (high - mels) / (high - centre)
        weights: npt.NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
        # The mean of the signal is none of its pitches.
        weights[0] = 0.0
        return weights


def _to_mel(hertz: Any) -> Any:
    return _MELS * np.log1p(np.asarray(hertz) / _BREAK_HZ)


def num_frames(samples: int | None, length: int, hop: int) -> int | None:
    """How many frames there are; None where the number of samples differs.

    >>> num_frames(10, 4, 2), num_frames(3, 4, 2), num_frames(None, 4, 2)
    (4, 1, None)
    """
    return None if samples is None else 1 + max(samples - length, 0) // hop


def framed(samples: Any, length: int, hop: int) -> Any:
    """Frames of ``float32[samples]``: ``float32[frames, length]``, one at least."""
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
    """Of each band the bins that count, and what: int32 and float32[num_mels, widest]."""
    num_bins, num_mels = weights.shape
    first = (weights > 0).argmax(axis=0)
    widest = int((weights > 0).sum(axis=0).max())
    bins = np.minimum(first[:, np.newaxis] + np.arange(widest), num_bins - 1)
    counted = weights[bins, np.arange(num_mels)[:, np.newaxis]]
    # The last bin stands again where a band at the end has fewer.
    again = first[:, np.newaxis] + np.arange(widest) >= num_bins
    return bins.astype(np.int32), np.where(again, 0.0, counted).astype(np.float32)
