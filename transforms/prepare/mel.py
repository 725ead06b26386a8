"""Mel spectrograms in TensorFlow operations, of the same bytes on any number of threads.

A matrix product adds in an order that depends on how it is shared out; a band is a few neighbouring
bins of the spectrum, so they are gathered and added along the last axis instead.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...schemas.errors import RecipeError
from ...schemas.features import Features
from .sounds import sound_of

_BREAK_HZ = 700.0
_MELS = 1127.0
"""HTK's mel scale: mel = 1127 ln(1 + f / 700)."""


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
