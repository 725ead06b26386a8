"""What the header of a sound file says, and the error for bytes that are none."""

from __future__ import annotations

from typing import Literal, NamedTuple


class SoundHeader(NamedTuple):
    """What the header of one sound says."""

    format: Literal["wav", "flac", "ogg", "mp3"]
    subtype: str
    """As libsndfile names it: ``PCM_16``, ``FLOAT``, ``VORBIS`` …"""
    rate: int
    """Samples a second of each channel, as it is decoded."""
    channels: int
    samples: int | None
    """Of each channel; None where nothing but decoding tells."""
    fits_16_bits: bool
    """Whether every sample is a whole multiple of 1/32768, at most 1."""
    estimate: int = 0
    """Where ``samples`` is None: about how many there are, if that can be told."""


class UnreadableSoundError(ValueError):
    """Bytes that are no sound we can decode, with a reason to group by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
