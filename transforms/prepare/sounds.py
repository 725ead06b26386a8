"""What steps on sounds share: finding the feature, the layout of its samples, its rate."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from ...schemas.errors import RecipeError
from ...schemas.features import Audio, Features, side_columns
from .resampling import resampled_length
from .values import find_media


def sound_of(
    step: object,
    name: str,
    features: Features,
    *,
    storage: Literal["raw", "encoded"] = "raw",
    mono: bool = False,
) -> Audio:
    """The sound that a step works on.

    Args:
        step: Names itself in the error.
        name: The feature's name.
        features: Those there are.
        storage: What it has to be: decoded, or a file's bytes.
        mono: Whether it has to have one channel.

    Raises:
        RecipeError: if there is none of this name, or it is another one.
    """
    sound = find_media(step, name, features, Audio, what="Sounds")
    if sound.storage != storage:
        raise RecipeError(
            f"prepare: {step!r}: {name!r} is still encoded. Put ss.audio.decode({name!r}) before "
            "it."
            if storage == "raw"
            else f"prepare: {step!r}: {name!r} is decoded already. Leave it out."
        )
    if mono and sound.channels != 1:
        raise RecipeError(
            f"prepare: {step!r}: {name!r} has {sound.channels} channels, expected one. Put "
            f"ss.audio.mono({name!r}) before it."
        )
    return sound


def at_rate(sound: Audio, rate: int | None) -> Audio:
    """The sound resampled, its number of samples with it."""
    if sound.rate is None or rate is None:
        samples = None
    else:
        samples = sound.samples and resampled_length(sound.samples, sound.rate, rate)
    return dataclasses.replace(sound, rate=rate, samples=samples)


def by_channel(samples: Any) -> Any:
    """``float32[samples, channels]`` of what a record holds."""
    return samples[:, None] if samples.shape.rank == 1 else samples


def mixed(samples: Any) -> Any:
    """``float32[samples, 1]``: the mean of the channels."""
    import tensorflow as tf

    return tf.reduce_mean(samples, axis=1, keepdims=True)


def with_sound(
    record: dict[str, Any], name: str, samples: Any, after: Features, *, rate: Any = None
) -> dict[str, Any]:
    """The record with other samples.

    Args:
        record: Before the step.
        name: The audio feature.
        samples: float32[samples, channels].
        after: The features after the step.
        rate: int64 scalar, where the rate differs from record to record; None leaves what stands
            in the record.
    """
    import tensorflow as tf

    sound = after[name]
    assert isinstance(sound, Audio)
    rest = {part: value for part, value in record.items() if part != f"{name}/rate"}
    for side in side_columns(name, sound):
        rest[side] = record[side] if rate is None else rate
    samples = samples[:, 0] if sound.channels == 1 else samples
    return {**rest, name: tf.ensure_shape(samples, sound.form.shape)}
