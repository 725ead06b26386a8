"""Chooses the shards' compression from the ratio of a sample and the storage's speed."""

from __future__ import annotations

from typing import Literal

from ...schemas.shards import Compression

GUNZIP_MB_PER_S = 130.0
"""MB/s of uncompressed examples that one core gives from a GZIP shard through TFRecordDataset.

Measured on two cores with TensorFlow 2.21, one thread, shards in the page cache (in brackets
the same without GZIP): rows of 200 B, half of each compressible, 134 (212) at a ratio of 0.61;
rows of 250 B of floats and repeated names 193 (246) at 0.33; raw 64×64 images of 12 kB 209
(1,419) at 0.75; JPEGs 362 (1,510). The slowest stands for all: what unpacking costs is taken
from the trainer's own input pipeline.
"""

MIN_GAIN = 1.1
"""Reading must become so many times as fast: less is within what measuring leaves open."""


def choose_compression(
    setting: Literal["auto", "none", "gzip"], *, ratio: float, read_mb_per_s: float
) -> Compression:
    """Says how shards are compressed.

    Plain shards are read at the storage's speed. GZIP shards are read at the storage's speed
    divided by the ratio, as long as one core unpacks as fast. "auto" takes GZIP where that is
    at least 1.1 times as fast: with storage of up to 118 MB/s, if the ratio is small enough.
    From the default of 200 MB/s (a local SSD, or an object store read in parallel) on, it never
    is. Nothing is timed here and no place is looked at, so the choice is the same everywhere.

    Args:
        setting: ``Shards.compression``.
        ratio: GZIP bytes per uncompressed byte of a sample of the examples, above 0.
        read_mb_per_s: ``Shards.read_mb_per_s``.

    >>> choose_compression("auto", ratio=0.5, read_mb_per_s=200)
    'none'
    >>> choose_compression("auto", ratio=0.5, read_mb_per_s=50)
    'gzip'
    >>> choose_compression("auto", ratio=0.95, read_mb_per_s=50)
    'none'
    """
    if setting != "auto":
        return setting
    unpacked_mb_per_s = min(read_mb_per_s / ratio, GUNZIP_MB_PER_S)
    return "gzip" if unpacked_mb_per_s >= MIN_GAIN * read_mb_per_s else "none"
