"""Steps from a sound to what models hear: frames, log-mel spectrograms, MFCCs.

A decoded sound of one channel becomes a tensor ``float32[frames, …]`` of the same name.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import pydantic

from ...schemas.config import config_class
from ...schemas.features import Features, Tensor, side_columns
from .mel import MelBands, framed, log_mel_spectrogram, num_frames
from .sounds import sound_of
from .values import NO_FEATURES, call_text, changed

_Count = Annotated[int, pydantic.Field(ge=1)]
_Seconds = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
_Hertz = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
_Offset = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]


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
