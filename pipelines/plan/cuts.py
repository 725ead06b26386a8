"""Cuts a row of atoms (records, or records that must stay together) into consecutive parts.

Positions are given as ``bounds``: int64[n + 1], ascending, the total weight in front of each
atom, 0 first and all of it last. Cuts are indices into it: int64[parts + 1], 0 first, n last.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def even_targets(total: int, num_parts: int) -> list[Fraction]:
    """The weights at which parts would end if all were equal; without the last."""
    return [Fraction(total * part, num_parts) for part in range(1, num_parts)]


def nearest_cuts(bounds: Ints, targets: Sequence[Fraction]) -> Ints:
    """Cuts at the bound nearest to each target (the lower of two as near), no part empty.

    Needs at least one atom more than there are targets.
    """
    num_atoms, num_parts = len(bounds) - 1, len(targets) + 1
    if num_atoms < num_parts:
        raise ValueError(f"{num_atoms} atoms cannot fill {num_parts} parts")
    cuts = np.zeros(num_parts + 1, np.int64)
    cuts[-1] = num_atoms
    floors = np.array([int(target) for target in targets], np.int64)
    below = np.searchsorted(bounds, floors, side="right") - 1
    for part, (target, low) in enumerate(zip(targets, below, strict=True), start=1):
        high = min(int(low) + 1, num_atoms)
        nearer_high = int(bounds[high]) - target < target - int(bounds[low])
        cuts[part] = high if nearer_high else low
    # Where a heavy atom draws several cuts to it, they make way for each other: first to the
    # right, then, from the end, to the left.
    steps = np.arange(num_parts + 1)
    cuts = np.maximum.accumulate(cuts - steps) + steps
    return np.minimum(cuts, num_atoms - num_parts + steps)


def level_cuts(bounds: Ints, num_parts: int) -> Ints:
    """Cuts so that no two parts differ by more than the heaviest atom. No part is empty.

    Such cuts always exist (Barany and Grinberg, "Block partitions of sequences", 2015), and
    are found so: let `low` be the largest number such that there are cuts whose parts all
    weigh at least `low`. Then there are some whose parts weigh at least `low` and at most
    `high = low + heaviest`: parts that reach as far as `high` allows each weigh more than
    `low`, so if they left something over, `low` would not be the largest. The ends that parts
    within [low, high] can have after each step are all bounds between the nearest and the
    farthest, as no two bounds lie further apart than the heaviest atom; so going back from
    the end there is always a bound to take.

    Needs positive weights, and at least as many atoms as parts.
    """
    # Not an array: bisect on this takes a tenth of the time of NumPy's search for one number; and
    # no list, which would be five times as large.
    contiguous: Any = np.ascontiguousarray(bounds)
    positions: Sequence[int] = memoryview(contiguous)
    num_atoms, total = len(positions) - 1, positions[-1]
    if num_atoms < num_parts:
        raise ValueError(f"{num_atoms} atoms cannot fill {num_parts} parts")
    near = 2 * num_atoms // num_parts + 2

    def first_from(start: int, position: int) -> int:
        """The first bound behind ``start`` that is at ``position`` or above."""
        stop = min(start + near, num_atoms + 1)
        if positions[stop - 1] < position:
            start, stop = stop, num_atoms + 1
        return bisect.bisect_left(positions, position, start, stop)

    def nearest_ends(least: int) -> list[int] | None:
        ends = [0]
        for _ in range(num_parts):
            ends.append(first_from(ends[-1], positions[ends[-1]] + least))
            if ends[-1] > num_atoms:
                return None
        return ends

    heaviest = int(np.diff(bounds).max())
    # Parts of at most `low + heaviest` hold all, so `low` is no less than this.
    low, too_much = max(1, -(-total // num_parts) - heaviest), total // num_parts + 1
    while too_much - low > 1:
        middle = (low + too_much) // 2
        if nearest_ends(middle) is None:
            too_much = middle
        else:
            low = middle
    high = low + heaviest
    nearest = nearest_ends(low)
    if nearest is None:
        raise ValueError("weights must be positive")
    farthest = [0]
    for _ in range(num_parts):
        farthest.append(bisect.bisect_right(positions, positions[farthest[-1]] + high) - 1)

    cuts = np.zeros(num_parts + 1, np.int64)
    end = num_atoms
    for part in range(num_parts, 0, -1):
        cuts[part] = end
        first = max(nearest[part - 1], bisect.bisect_left(positions, positions[end] - high))
        last = min(farthest[part - 1], bisect.bisect_right(positions, positions[end] - low) - 1)
        wanted = bisect.bisect_left(positions, total * (part - 1) // num_parts)
        end = min(max(wanted, first), last)
    return cuts


def balanced_cuts(bounds: Ints, num_parts: int, *, largest: int) -> Ints:
    """Cuts into parts of nearly equal weight: nearest to even, or level where that is too coarse.

    Parts differ by at most 1 % of the smallest or by ``largest`` (the heaviest record, or the
    heaviest atom where that is more).
    """
    cuts = nearest_cuts(bounds, even_targets(int(bounds[-1]), num_parts))
    if is_balanced(np.diff(bounds[cuts]), largest=largest):
        return cuts
    level = level_cuts(bounds, num_parts)
    return min(cuts, level, key=lambda found: float(np.ptp(np.diff(bounds[found]))))


def is_balanced(weights: Ints, *, largest: int) -> bool:
    """Whether parts differ by at most 1 % of the smallest, or by the largest record."""
    smallest, heaviest = int(weights.min()), int(weights.max())
    return (heaviest - smallest) * 100 <= max(smallest, largest * 100)
