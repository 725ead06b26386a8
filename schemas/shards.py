"""Shard settings, and the rule that turns a split's size into a number of shards."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal

from .config import config_class
from .errors import RecipeError

Compression = Literal["none", "gzip"]

TARGET_BYTES = "150MB"
MIN_SHARDS = 16
"""Minimum number of shards below the target size: 8 readers interleave two each …"""
MIN_SHARD_BYTES = 8_000_000
"""… provided that shards are at least this large."""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(value: str | int) -> int:
    """Reads a size in bytes: 1000, "150MB", "1.5 GiB".

    Raises:
        ValueError: if it is invalid.

    >>> parse_size("150MB")
    150000000
    >>> parse_size("1 KiB")
    1024
    """
    match = _SIZE.fullmatch(str(value))
    unit = (_UNITS | {"GIB": 2**30}).get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{value!r} is not a size; write a number of bytes or '150MB'")
    size = float(match[1]) * unit
    if not 0.5 < size < 2**63:
        raise ValueError(f"{value!r} is not a size of 1 byte to 8 EiB")
    return round(size)


@config_class
class Shards:
    """How each split is divided into shards; the defaults suit most data.

    ``target_bytes`` is the target size of a shard (100 to 200 MB reads well from disk and from
    object stores). Unless it is given, shards have up to 150 MB, and there are at least 16 while
    each has 8 MB. ``num_shards`` sets the number (for every split, or per split), ``min_shards``
    its minimum, ``num_examples`` the number of examples in each shard. ``compression="auto"`` uses
    GZIP if it would make reading at ``read_mb_per_s`` (the throughput, in MB/s, of the storage that
    training reads from) faster, given the ratio measured on a sample.
    """

    target_bytes: str | int | None = None
    compression: Literal["auto", "none", "gzip"] = "auto"
    min_shards: int | None = None
    num_shards: int | Mapping[str, int] | None = None
    num_examples: int | None = None
    read_mb_per_s: float = 200.0

    def __post_init__(self) -> None:
        """Checks that the settings are positive and compatible."""
        try:
            _ = self.max_bytes
        except ValueError as error:
            raise ValueError(f"target_bytes: {error}") from None
        if not 0 < self.read_mb_per_s < math.inf:
            raise ValueError("read_mb_per_s must be positive and finite")
        for name in ("num_shards", "min_shards", "num_examples"):
            value = getattr(self, name)
            counts = list(value.values()) if isinstance(value, Mapping) else [value]
            if any(count is not None and count < 1 for count in counts):
                raise ValueError(f"{name}={value!r}, expected at least 1")
        given = [
            name
            for name in ("min_shards", "num_shards", "num_examples")
            if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other; keep one")

    @property
    def max_bytes(self) -> int:
        """The target size of a shard."""
        return parse_size(TARGET_BYTES if self.target_bytes is None else self.target_bytes)

    def num_shards_of(self, split: str, *, num_examples: int, num_bytes: int) -> int:
        """Number of shards of a split with this many examples and encoded bytes.

        Never more than there are examples, so no shard is empty; 0 for an empty split.

        Raises:
            RecipeError: if ``num_shards`` has no number for this split.
        """
        if num_examples == 0:
            return 0
        if isinstance(self.num_shards, Mapping):
            if split not in self.num_shards:
                raise RecipeError(
                    f"Shards: num_shards has no number for split {split!r}. Add {split!r}: N."
                )
            wanted = self.num_shards[split]
        elif self.num_shards is not None:
            wanted = self.num_shards
        elif self.num_examples is not None:
            wanted = math.ceil(num_examples / self.num_examples)
        else:
            wanted = max(math.ceil(num_bytes / self.max_bytes), self.min_shards or 1)
            if self.target_bytes is None:
                wanted = max(wanted, min(MIN_SHARDS, num_bytes // MIN_SHARD_BYTES))
        return max(1, min(wanted, num_examples))

    def to_json(self) -> dict[str, object]:
        """The settings as plain JSON, for the fingerprint and for people."""
        numbers = self.num_shards
        # A size that is given has no floor of 16 shards.
        given = {} if self.target_bytes is None else {"floor": False}
        return given | {
            "compression": self.compression,
            "min_shards": self.min_shards,
            "num_examples": self.num_examples,
            "num_shards": dict(numbers) if isinstance(numbers, Mapping) else numbers,
            "read_mb_per_s": self.read_mb_per_s,
            "target_bytes": self.max_bytes,
        }
