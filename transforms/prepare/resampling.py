"""Resampling by windowed-sinc interpolation, in TensorFlow operations.

See J. O. Smith, "Digital Audio Resampling", https://ccrma.stanford.edu/~jos/resample/. A sample at
time t is the sum of the samples around it, weighted by a sinc of the lower rate's band, under a
Kaiser window 64 zero crossings wide on each side. Times are fractions of whole numbers, so nothing
drifts; sums are made tap by tap, in one order, so bytes do not depend on threads.
"""

from __future__ import annotations

import math
from typing import Any

NUM_ZEROS = 64
"""Zero crossings of the sinc on each side of a sample."""
_BETA = 10.0
"""Of the Kaiser window: what lies beyond the band comes out at -100 dB and less."""
_ROLLOFF = 0.9475
"""Where the band ends, as a share of half the lower rate: so far it is halved, there it is gone."""


def resampled_length(samples: int, rate_in: int, rate_out: int) -> int:
    """How many samples there are at another rate.

    >>> resampled_length(16_000, 16_000, 8_000), resampled_length(3, 2, 3)
    (8000, 5)
    """
    return -(-samples * rate_out // rate_in)


def resample_samples(sound: Any, rate_in: Any, rate_out: int) -> Any:
    """Resamples ``float32[samples, channels]``; at the same rate, gives the very samples.

    Args:
        sound: float32[samples, channels].
        rate_in: An int, or an int64 scalar where it is known with the record only.
        rate_out: Samples a second to come out.

    Returns:
        float32[ceil(samples · rate_out / rate_in), channels]; its first sample is of the time of
        the first one of ``sound``, beside which is silence.
    """
    import tensorflow as tf

    if isinstance(rate_in, int):
        if rate_in == rate_out:
            return sound
        divisor = math.gcd(rate_in, rate_out)
        up, down = (tf.constant(rate // divisor, tf.int64) for rate in (rate_out, rate_in))
        return _resample(sound, up, down)
    rate = tf.constant(rate_out, tf.int64)
    divisor = _greatest_divisor(rate_in, rate)
    return tf.cond(
        rate_in == rate,
        lambda: sound,
        lambda: _resample(sound, rate // divisor, rate_in // divisor),
    )


def _resample(sound: Any, up: Any, down: Any) -> Any:
    """``up`` samples come out for ``down`` that go in."""
    import tensorflow as tf

    num_in = tf.shape(sound, tf.int64)[0]
    num_out = -(-num_in * up // down)
    weights, reach = _weights(up, down)
    position = tf.range(num_out, dtype=tf.int64) * down
    # The samples at and before each time, and which of `up` fractions of a sample it is later.
    first, phase = position // up, position % up
    padded = tf.pad(sound, [[reach, reach], [0, 0]])

    def add(tap: Any, total: Any) -> tuple[Any, Any]:
        weight = tf.gather(weights[tap], phase)
        return tap + 1, total + weight[:, tf.newaxis] * tf.gather(padded, first + tap + 1)

    zeros = tf.zeros(tf.stack([num_out, tf.shape(sound, tf.int64)[1]]), tf.float32)
    zeros = tf.ensure_shape(zeros, (None, sound.shape[1]))
    _, resampled = tf.while_loop(
        lambda tap, _: tap < 2 * reach,
        add,
        (tf.constant(0, tf.int64), zeros),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, sound.shape[1]])),
        # In flight at once they would not be added in order.
        parallel_iterations=1,
    )
    return resampled


def _weights(up: Any, down: Any) -> tuple[Any, Any]:
    """float32[taps, up]: what each sample around a time counts, by the time's fraction."""
    import tensorflow as tf

    # The band is that of the lower rate: as a share of the rate that goes in.
    shrink = tf.minimum(tf.cast(up / down, tf.float64), 1.0)
    band = shrink * _ROLLOFF
    width = NUM_ZEROS / shrink
    reach = tf.cast(tf.math.ceil(width), tf.int64)
    fraction = tf.range(up, dtype=tf.int64) / up
    tap = tf.range(1 - reach, reach + 1, dtype=tf.int64)
    distance = tf.cast(tap, tf.float64)[:, tf.newaxis] - fraction[tf.newaxis, :]
    inside = tf.maximum(1.0 - tf.square(distance / width), 0.0)
    window = tf.math.bessel_i0e(_BETA * tf.sqrt(inside))
    window *= tf.exp(_BETA * (tf.sqrt(inside) - 1.0))
    angle = math.pi * band * distance
    safe = tf.where(angle == 0, tf.ones_like(angle), angle)
    sinc = tf.where(angle == 0, tf.ones_like(angle), tf.sin(safe) / safe)
    weights = tf.where(tf.abs(distance) < width, sinc * window, tf.zeros_like(sinc))
    # A constant stays what it is.
    weights /= tf.reduce_sum(weights, axis=0, keepdims=True)
    return tf.cast(weights, tf.float32), reach


def _greatest_divisor(a: Any, b: Any) -> Any:
    import tensorflow as tf

    found, _ = tf.while_loop(lambda _, b: b > 0, lambda a, b: (b, a % b), (a, b))
    return found
