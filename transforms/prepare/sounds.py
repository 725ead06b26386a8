"""Helpers for steps on audio: find the feature, lay out its samples, resample.

Resampling is windowed-sinc interpolation: see J. O. Smith, "Digital Audio Resampling",
https://ccrma.stanford.edu/~jos/resample/. A sample at time t is the sum of the samples around it,
weighted by a sinc of the lower rate's band under a Kaiser window with 64 zero crossings on each
side. Times are fractions of integers, so nothing drifts. Sums are computed as many small matrix
products, each by one thread, so the bytes do not depend on the number of threads.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, NamedTuple

from ...schemas.errors import RecipeError
from ...schemas.features import Audio, Features, side_columns
from .values import find_media

NUM_ZEROS = 64
"""Zero crossings of the sinc on each side of a sample."""
_BETA = 10.0
"""Shape of the Kaiser window: frequencies beyond the band are attenuated by 100 dB or more."""
_ROLLOFF = 0.9475
"""Cutoff as a fraction of half the lower rate: the gain is 1/2 there, and 0 at half the rate."""

_MAX_DENSE = 1024
"""Largest term of a ratio of rates that uses matrices; for common rates it is at most 640."""
_MAX_PRODUCT = 1 << 21
"""Multiplications per matrix product: far below what TensorFlow splits among threads."""


def sound_of(
    step: object,
    name: str,
    features: Features,
    *,
    storage: Literal["raw", "encoded"] = "raw",
    mono: bool = False,
) -> Audio:
    """The audio feature that a step works on.

    Args:
        step: The step, for the error.
        name: The feature's name.
        features: All features.
        storage: The required storage: decoded (raw), or a file's bytes (encoded).
        mono: Whether it must have one channel.

    Raises:
        RecipeError: if it does not exist, or does not meet these requirements.
    """
    sound = find_media(step, name, features, Audio, what="Sounds")
    if sound.storage != storage:
        raise RecipeError(
            f"prepare: {step!r}: {name!r} is still encoded. Put ss.audio.decode({name!r}) before "
            "this step."
            if storage == "raw"
            else f"prepare: {step!r}: {name!r} is already decoded. Remove this step."
        )
    if mono and sound.channels != 1:
        raise RecipeError(
            f"prepare: {step!r}: {name!r} has {sound.channels} channels, expected one. Put "
            f"ss.audio.mono({name!r}) before this step."
        )
    return sound


def at_rate(sound: Audio, rate: int | None) -> Audio:
    """The feature at another rate, with the number of samples adjusted."""
    if sound.rate is None or rate is None:
        samples = None
    else:
        samples = sound.samples and resampled_length(sound.samples, sound.rate, rate)
    return dataclasses.replace(sound, rate=rate, samples=samples)


def by_channel(samples: Any) -> Any:
    """The samples of a record as ``float32[samples, channels]``."""
    return samples[:, None] if samples.shape.rank == 1 else samples


def mixed(samples: Any) -> Any:
    """The mean of the channels, ``float32[samples, 1]``."""
    import tensorflow as tf

    return tf.reduce_mean(samples, axis=1, keepdims=True)


def with_sound(
    record: dict[str, Any], name: str, samples: Any, after: Features, *, rate: Any = None
) -> dict[str, Any]:
    """The record with new samples.

    Args:
        record: The record before the step.
        name: The audio feature.
        samples: float32[samples, channels].
        after: The features after the step.
        rate: int64 scalar, the record's rate if rates differ from record to record; None keeps
            the rate in the record.
    """
    import tensorflow as tf

    sound = after[name]
    assert isinstance(sound, Audio)
    rest = {part: value for part, value in record.items() if part != f"{name}/rate"}
    for side in side_columns(name, sound):
        rest[side] = record[side] if rate is None else rate
    samples = samples[:, 0] if sound.channels == 1 else samples
    return {**rest, name: tf.ensure_shape(samples, sound.form.shape)}


def resampled_length(samples: int, rate_in: int, rate_out: int) -> int:
    """The number of samples at another rate.

    >>> resampled_length(16_000, 16_000, 8_000), resampled_length(3, 2, 3)
    (8000, 5)
    """
    return -(-samples * rate_out // rate_in)


def resample_samples(sound: Any, rate_in: Any, rate_out: int) -> Any:
    """Resamples ``float32[samples, channels]``; returns it unchanged if the rates are equal.

    Args:
        sound: float32[samples, channels].
        rate_in: An int, or an int64 scalar if it differs from record to record: then weights are
            computed for each record, which takes most of the time for short audio.
        rate_out: Samples per second of the result.

    Returns:
        float32[ceil(samples · rate_out / rate_in), channels]; its first sample has the same time
        as the first one of ``sound``, which is surrounded by silence.
    """
    import tensorflow as tf

    if isinstance(rate_in, int):
        if rate_in == rate_out:
            return sound
        divisor = math.gcd(rate_in, rate_out)
        up, down = rate_out // divisor, rate_in // divisor
        if max(up, down) > _MAX_DENSE:
            return _by_taps(sound, tf.constant(up, tf.int64), tf.constant(down, tf.int64))
        # Computed eagerly, once, with the same operations as in a graph.
        with tf.init_scope():
            scale = _scale_of(tf.constant(up, tf.int64), tf.constant(down, tf.int64))
            known = _Blocks(*(value.numpy() for value in _blocks(scale)))
        return _by_blocks(sound, scale.fixed(), _Blocks(*map(tf.constant, known)))
    rate = tf.constant(rate_out, tf.int64)
    divisor = _greatest_divisor(rate_in, rate)
    up, down = rate // divisor, rate_in // divisor

    def blocks() -> Any:
        scale = _scale_of(up, down)
        return _by_blocks(sound, scale, _blocks(scale))

    def resampled() -> Any:
        dense = tf.maximum(up, down) <= _MAX_DENSE
        return tf.cond(dense, blocks, lambda: _by_taps(sound, up, down))

    return tf.cond(rate_in == rate, lambda: sound, resampled)


class _Scale(NamedTuple):
    """The ratio of rates: ``up`` output samples for ``down`` input samples, int64 scalars."""

    up: Any
    down: Any
    shrink: Any
    """The lower rate divided by the input rate, float64."""
    reach: Any
    """The number of samples at or before a time that contribute, and of those after it."""

    def fixed(self) -> _Scale:
        """The same values as constants of a graph."""
        import tensorflow as tf

        return _Scale(*(tf.constant(value.numpy()) for value in self))


def _scale_of(up: Any, down: Any) -> _Scale:
    import tensorflow as tf

    shrink = tf.minimum(tf.cast(up / down, tf.float64), 1.0)
    return _Scale(up, down, shrink, tf.cast(tf.math.ceil(NUM_ZEROS / shrink), tf.int64))


def _kernel(distance: Any, scale: _Scale) -> Any:
    """Unscaled weights of samples by their distance from a time: float64, shaped as ``distance``.

    Distances are in input samples.
    """
    import tensorflow as tf

    inside = tf.maximum(1.0 - tf.square(distance * (scale.shrink / NUM_ZEROS)), 0.0)
    root = tf.sqrt(inside)
    window = tf.math.bessel_i0e(_BETA * root) * tf.exp(_BETA * (root - 1.0))
    angle = math.pi * _ROLLOFF * scale.shrink * distance
    safe = tf.where(angle == 0, tf.ones_like(angle), angle)
    sinc = tf.where(angle == 0, tf.ones_like(angle), tf.sin(safe) / safe)
    return tf.where(inside > 0, sinc * window, tf.zeros_like(sinc))


class _Blocks(NamedTuple):
    """Resampling as products with one matrix."""

    block_in: Any
    """Input samples of a block, int64 scalar: at least as many as the weights reach."""
    block_out: Any
    """Output samples computed from a block and the next one, int64 scalar."""
    matrix: Any
    """float64[2 · block_in, block_out]."""


def _blocks(scale: _Scale) -> _Blocks:
    import tensorflow as tf

    times = -(-2 * scale.reach // scale.down)
    block_in, block_out = scale.down * times, scale.up * times
    time = tf.range(block_out, dtype=tf.int64) * scale.down
    whole, fraction = time // scale.up, (time % scale.up) / scale.up
    place = tf.range(2 * block_in, dtype=tf.int64)[:, tf.newaxis] - whole - (scale.reach - 1)
    weights = _kernel(tf.cast(place, tf.float64) - fraction, scale)
    # Normalised: constant input gives constant output.
    return _Blocks(block_in, block_out, weights / tf.reduce_sum(weights, axis=0, keepdims=True))


def _by_blocks(sound: Any, scale: _Scale, blocks: _Blocks) -> Any:
    import tensorflow as tf

    num_in, channels = (tf.shape(sound, tf.int64)[axis] for axis in (0, 1))
    num_out = -(-num_in * scale.up // scale.down)
    block_in, block_out, matrix = blocks
    num_rows = tf.maximum(_MAX_PRODUCT // (2 * block_in * block_out), 1)
    # A single product would be split among threads.
    num_products = tf.maximum(-(-num_out // (block_out * num_rows)), 2)
    num_blocks = num_products * num_rows
    length = (num_blocks + 1) * block_in
    before = scale.reach - 1
    behind = tf.maximum(length - before - num_in, 0)
    samples = tf.pad(tf.cast(sound, tf.float64), [[before, behind], [0, 0]])
    samples = tf.transpose(samples[:length])
    parts = tf.reshape(samples, tf.stack([channels, num_blocks + 1, block_in]))
    rows = tf.concat([parts[:, :-1], parts[:, 1:]], axis=2)
    rows = tf.reshape(rows, tf.stack([channels * num_products, num_rows, 2 * block_in]))
    resampled = tf.reshape(tf.matmul(rows, matrix), tf.stack([channels, num_blocks * block_out]))
    resampled = tf.transpose(tf.cast(resampled[:, :num_out], tf.float32))
    return tf.ensure_shape(resampled, (None, sound.shape[1]))


def _by_taps(sound: Any, up: Any, down: Any) -> Any:
    """Adds one weight after another, for rates whose ratio would need a large matrix."""
    import tensorflow as tf

    scale = _scale_of(up, down)
    num_out = -(-tf.shape(sound, tf.int64)[0] * up // down)
    time = tf.range(num_out, dtype=tf.int64) * down
    first, phase = time // up, time % up
    place = tf.range(1 - scale.reach, scale.reach + 1, dtype=tf.int64)
    fraction = tf.range(up, dtype=tf.int64) / up
    weights = _kernel(tf.cast(place, tf.float64)[:, tf.newaxis] - fraction, scale)
    weights /= tf.reduce_sum(weights, axis=0, keepdims=True)
    padded = tf.pad(tf.cast(sound, tf.float64), [[scale.reach - 1, scale.reach], [0, 0]])

    def add(tap: Any, total: Any) -> tuple[Any, Any]:
        weight = tf.gather(weights[tap], phase)
        return tap + 1, total + weight[:, tf.newaxis] * tf.gather(padded, first + tap)

    zeros = tf.zeros(tf.stack([num_out, tf.shape(sound, tf.int64)[1]]), tf.float64)
    shape = tf.TensorShape([None, sound.shape[1]])
    _, resampled = tf.while_loop(
        lambda tap, _: tap < 2 * scale.reach,
        add,
        (tf.constant(0, tf.int64), tf.ensure_shape(zeros, shape)),
        shape_invariants=(tf.TensorShape([]), shape),
    )
    return tf.cast(resampled, tf.float32)


def _greatest_divisor(a: Any, b: Any) -> Any:
    import tensorflow as tf

    divisor, _ = tf.while_loop(lambda _, b: b > 0, lambda a, b: (b, a % b), (a, b))
    return divisor
