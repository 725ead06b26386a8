"""Which record comes at which place of a balanced epoch: arithmetic, without TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio."""
_RANKED = 64
"""Permutations of up to this many numbers are drawn by ranking random numbers …"""
_ROUNDS = 6
"""… and larger ones by this many rounds of a Feistel network."""


# How an epoch is divided among workers


class Sharing(Protocol):
    """The options that decide which records of an epoch the workers skip."""

    @property
    def drop_remainder(self) -> bool:
        """Whether the short batch is dropped."""

    @property
    def equal_steps(self) -> bool:
        """Whether all workers have the same number of batches."""


def share(options: Sharing, left: int, size: int, part: tuple[int, int]) -> tuple[int, int, int]:
    """Divides the rest of an epoch among the workers.

    In each step the workers take adjacent batches. Records that are too few for another step are
    divided evenly.

    Args:
        options: Decide which records are skipped.
        left: Remaining records of the epoch.
        size: Batch size of a worker.
        part: (index, count) of the worker.

    Returns:
        The number of full batches of this worker; the start of its short batch, counted from the
        first remaining record; the size of that batch.
    """
    index, count = part
    full, rest = divmod(left, size * count)
    if options.drop_remainder:
        return full + (not options.equal_steps and rest >= (index + 1) * size), 0, 0
    if options.equal_steps and rest < count:
        return full, 0, 0
    first, last = rest * index // count, rest * (index + 1) // count
    return full, full * size * count + first, last - first


def num_batches(options: Sharing, left: int, size: int, part: tuple[int, int]) -> int:
    """Batches that a worker has in the rest of an epoch."""
    full, _, rest = share(options, left, size, part)
    return full + (rest > 0)


def went(
    options: Sharing, num: int, read_so_far: Sequence[tuple[int, int, int]]
) -> tuple[int, int]:
    """How far these (steps, batch size, workers) came: (complete epochs, examples)."""
    over = first = 0
    for steps, size, count in read_so_far:
        left = steps
        while left >= (
            most := max(num_batches(options, num - first, size, (i, count)) for i in range(count))
        ):
            if not first and not most:
                left = 0  # epochs have no batches
                break
            # All epochs after this one have the same number of steps.
            more = 1 if first else left // most
            over, left, first = over + more, left - more * most, 0
        first += left * size * count
    return over, first


# Which record comes where in an epoch


class Draw(NamedTuple):
    """Maps (seed of the epoch, places) to the records at these places of the epoch.

    Computed by arithmetic: no list of an epoch is kept.
    """

    num: int
    """Examples per epoch, the same number as the split has."""
    codes: npt.NDArray[Any]
    """int64[classes]: codes of the classes that occur in an epoch."""
    counts: npt.NDArray[Any]
    """int64[classes]: records of each class."""
    ends: npt.NDArray[Any]
    """int64[classes]: cumulative number of examples per epoch."""
    order: npt.NDArray[Any]
    """int[records]: positions of the records in the split, sorted by class."""
    firsts: npt.NDArray[Any]
    """int64[classes]: where each class starts in ``order``."""

    @classmethod
    def of(cls, codes: npt.NDArray[Any], weights: Mapping[int, float]) -> Draw:
        """From the class of each record of a split (-1 for none) and the weights of classes.

        Shares are rounded by the largest-remainder method.
        """
        shares = {
            code: Fraction(float(weight)) for code, weight in sorted(weights.items()) if weight > 0
        }
        total, num = sum(shares.values()), len(codes)
        parts = {code: share / total * num for code, share in shares.items()}
        examples = {code: math.floor(part) for code, part in parts.items()}
        largest = sorted(parts, key=lambda code: (examples[code] - parts[code], code))
        for code in largest[: num - sum(examples.values())]:
            examples[code] += 1
        kept = np.array([code for code, number in examples.items() if number], np.int64)
        small = np.int32 if num < 1 << 31 else np.int64
        order = np.argsort(codes, kind="stable").astype(small)
        ordered = codes[order]
        firsts = np.searchsorted(ordered, kept)
        return cls(
            num=num,
            codes=kept,
            counts=np.searchsorted(ordered, kept, side="right") - firsts,
            ends=np.cumsum([examples[code] for code in kept.tolist()]),
            order=order,
            firsts=firsts,
        )

    def __call__(self, epoch_seed: Any, places: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """int64[n]: for each place, its record's position in the split + its turn × ``num``."""
        seed = mixed(np.asarray(epoch_seed, np.int64).astype(np.uint64)[np.newaxis])
        all_ = np.full(len(places), self.num, np.uint64)
        slots = permuted(places, np.broadcast_to(seed, len(places)), all_).astype(np.int64)
        kinds = np.searchsorted(self.ends, slots, side="right")
        counts = self.counts[kinds]
        turns, numbers = np.divmod(slots - np.concatenate([[0], self.ends])[kinds], counts)
        keys = mixed(
            mixed(seed + (self.codes[kinds] + 1).astype(np.uint64)) + turns.astype(np.uint64)
        )
        rows = permuted(numbers, keys, counts.astype(np.uint64)).astype(np.int64)
        rows_drawn: npt.NDArray[np.int64] = self.order[self.firsts[kinds] + rows] + turns * self.num
        return rows_drawn


def permuted(
    numbers: npt.NDArray[Any], keys: npt.NDArray[Any], sizes: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Applies to each number the permutation of 0 … size - 1 that its key selects.

    Small sizes are permuted by ranking random numbers, so that all permutations are equally likely.
    Larger ones go through a Feistel network, repeated until the result is below the size ("cycle
    walking"; Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). TensorFlow's
    ``index_shuffle`` does the same, but its orders hardly depend on seeds of few bits, and it takes
    about 65,536 / size rounds for each number.

    Args:
        numbers: integers[n], each below its size.
        keys: uint64[n].
        sizes: uint64[n].

    Returns:
        uint64[n].
    """
    mapped = numbers.astype(np.uint64)
    few = np.flatnonzero(sizes <= _RANKED)
    if len(few):
        width = int(sizes[few].max())
        others = np.arange(width, dtype=np.uint64)
        drawn = mixed(keys[few, np.newaxis] + others * np.uint64(GOLDEN))
        own = np.take_along_axis(drawn, mapped[few, np.newaxis].astype(np.int64), axis=1)
        mapped[few] = ((drawn < own) & (others < sizes[few, np.newaxis])).sum(axis=1)
    todo = np.flatnonzero(sizes > _RANKED)
    bits = (np.frexp((sizes - np.uint64(1)).astype(np.float64))[1].astype(np.uint64) + 1) // 2
    while len(todo):
        half, key = bits[todo], keys[todo]
        left, right = mapped[todo] >> half, mapped[todo] & ((np.uint64(1) << half) - np.uint64(1))
        for turn in range(_ROUNDS):
            drawn = mixed((right + np.uint64(turn << 40)) * np.uint64(GOLDEN) + key)
            left, right = right, left ^ drawn >> np.uint64(64) - half
        mapped[todo] = left << half | right
        todo = todo[mapped[todo] >= sizes[todo]]
    return mapped


def mixed(numbers: Any) -> Any:
    """Mixes uint64 numbers: each output bit depends on all input bits (finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        numbers = numbers + np.uint64(GOLDEN)
        numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return numbers ^ numbers >> np.uint64(31)
