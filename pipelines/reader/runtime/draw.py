"""Which record stands where in a balanced epoch, by arithmetic, without TensorFlow."""

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
"""Orders of so many numbers at most are drawn by comparing random numbers …"""
_ROUNDS = 6
"""… and of more by so many rounds of a Feistel network."""


# How an epoch is shared out


class Sharing(Protocol):
    """The options that decide which records of an epoch workers leave out."""

    @property
    def drop_remainder(self) -> bool:
        """Whether the short batch is left out."""

    @property
    def equal_steps(self) -> bool:
        """Whether all workers have as many batches."""


def share(options: Sharing, left: int, size: int, part: tuple[int, int]) -> tuple[int, int, int]:
    """How many full batches a worker has of what is left; where its short one starts; its size.

    In each step the workers take neighbouring batches. What is too little for another step is
    shared out evenly.

    Args:
        options: What is left out.
        left: Records of the epoch that are left.
        size: Records of a batch.
        part: (index, count) of the worker.
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
    """Batches that a worker has of what is left of an epoch."""
    full, _, rest = share(options, left, size, part)
    return full + (rest > 0)


def went(options: Sharing, num: int, stages: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """How far (steps, batch size, workers) of each stage came: whole epochs, and examples."""
    over = first = 0
    for steps, size, count in stages:
        left = steps
        while left >= (
            most := max(num_batches(options, num - first, size, (i, count)) for i in range(count))
        ):
            if not first and not most:
                left = 0  # no epoch has a batch
                break
            # All epochs after this one are alike.
            more = 1 if first else left // most
            over, left, first = over + more, left - more * most, 0
        first += left * size * count
    return over, first


# Which record is where in an epoch


class Draw(NamedTuple):
    """Which record stands at each place of an epoch: a function of (seed of the epoch, places).

    All by arithmetic: no list of an epoch is held.
    """

    num: int
    """Examples of an epoch, as many as the split has."""
    codes: npt.NDArray[Any]
    """int64[classes]: those that come."""
    counts: npt.NDArray[Any]
    """int64[classes]: records of each."""
    ends: npt.NDArray[Any]
    """int64[classes]: examples of each and of those before it."""
    order: npt.NDArray[Any]
    """int[records]: their places in the split, by class."""
    firsts: npt.NDArray[Any]
    """int64[classes]: where the records of each begin there."""

    @classmethod
    def of(cls, codes: npt.NDArray[Any], weights: Mapping[int, float]) -> Draw:
        """From the class of each record of a split, -1 for none, and weights of classes.

        The largest remainders of the shares are rounded up.
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
        """int64[n]: for each place its record's place in the split + its turn × ``num``."""
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
        found: npt.NDArray[np.int64] = self.order[self.firsts[kinds] + rows] + turns * self.num
        return found


def permuted(
    numbers: npt.NDArray[Any], keys: npt.NDArray[Any], sizes: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Where each number goes in the permutation of 0 … size - 1 that its key stands for.

    Few are ranked by random numbers, so that all their orders are alike likely. More go through a
    Feistel network, again until they are below the size ("cycle walking"; Black and Rogaway,
    "Ciphers with Arbitrary Finite Domains", 2002). TensorFlow's ``index_shuffle`` does the same,
    with orders that seeds of few bits hardly change, and about 65,536 / size rounds for each.

    Args:
        numbers: integers[n], each below its size.
        keys: uint64[n].
        sizes: uint64[n].

    Returns:
        uint64[n].
    """
    found = numbers.astype(np.uint64)
    few = np.flatnonzero(sizes <= _RANKED)
    if len(few):
        width = int(sizes[few].max())
        others = np.arange(width, dtype=np.uint64)
        drawn = mixed(keys[few, np.newaxis] + others * np.uint64(GOLDEN))
        own = np.take_along_axis(drawn, found[few, np.newaxis].astype(np.int64), axis=1)
        found[few] = ((drawn < own) & (others < sizes[few, np.newaxis])).sum(axis=1)
    todo = np.flatnonzero(sizes > _RANKED)
    bits = (np.frexp((sizes - np.uint64(1)).astype(np.float64))[1].astype(np.uint64) + 1) // 2
    while len(todo):
        half, key = bits[todo], keys[todo]
        left, right = found[todo] >> half, found[todo] & ((np.uint64(1) << half) - np.uint64(1))
        for turn in range(_ROUNDS):
            drawn = mixed((right + np.uint64(turn << 40)) * np.uint64(GOLDEN) + key)
            left, right = right, left ^ drawn >> np.uint64(64) - half
        found[todo] = left << half | right
        todo = todo[found[todo] >= sizes[todo]]
    return found


def mixed(numbers: Any) -> Any:
    """uint64, each bit of which depends on all bits of the uint64 given (SplitMix64's finish)."""
    with np.errstate(over="ignore"):
        numbers = numbers + np.uint64(GOLDEN)
        numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return numbers ^ numbers >> np.uint64(31)
