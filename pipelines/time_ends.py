"""Where splits by time end: the times that cut the records into the wanted fractions, exactly."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..schemas.errors import DataError
from ..schemas.features import Features
from ..schemas.naming import Workspace
from ..schemas.splits import Splits
from ..transforms import storage
from ..transforms.shards import run_readers
from ..transforms.summary import RunEntry

_CHUNK = 1 << 20
_BINS = 1 << 16

Times = npt.NDArray[np.int64]


def find_time_ends(
    entries: Sequence[RunEntry], *, splits: Splits, features: Features, workspace: Workspace
) -> tuple[int, ...]:
    """The ends of all splits but the last, in the unit of the feature.

    The records are read once; their times, 8 bytes each, lie in a scratch file meanwhile, so
    memory is bounded. Records without a time do not count.

    Raises:
        DataError: if no record has a time.
    """
    assert splits.rule is not None
    assert splits.rule.feature is not None
    with storage.scratch_folder(workspace.root) as scratch:
        path = os.path.join(scratch, "times")
        with open(path, "wb") as file:
            for reader in run_readers(entries, workspace, features):
                for batch in reader.scan():
                    values = batch.column(splits.rule.feature).drop_null()
                    file.write(values.to_numpy().astype(np.int64).tobytes())
        if not os.path.getsize(path):
            raise DataError(
                f"Splits.by_time: no record has a value of {splits.rule.feature!r}, so no time "
                "divides them. Is it the right feature?"
            )
        times = np.memmap(path, np.int64, "r")
        ranks = [int(end * len(times)) for end in splits.boundaries()[:-1]]
        return tuple(end_before(times, rank) for rank in ranks)


def end_before(times: Times, rank: int) -> int:
    """The time that about ``rank`` of some times lie before: those of one time stay together.

    Of the two such times next to the rank-th, the one that is nearer to it, the earlier where
    both are as near. Finds it by counting in ever narrower ranges, a chunk at a time.

    >>> end_before(np.array([1, 2, 2, 3]), 2)
    2
    """
    if rank >= len(times):
        return int(_over(times, np.max).max()) + 1
    value = _value_of_rank(times, rank)
    before = int(_over(times, lambda part: np.sum(part < value)).sum())
    upto = int(_over(times, lambda part: np.sum(part <= value)).sum())
    return value if rank - before <= upto - rank else value + 1


def _value_of_rank(times: Times, rank: int) -> int:
    low, high = int(_over(times, np.min).min()), int(_over(times, np.max).max())
    while low < high:
        width = (high - low) // _BINS + 1
        counts = np.zeros(_BINS + 1, np.int64)
        for start in range(0, len(times), _CHUNK):
            part = np.asarray(times[start : start + _CHUNK])
            part = part[(part >= low) & (part <= high)]
            # Unsigned: the width of a range may be more than an int64 holds.
            offsets = part.astype(np.uint64) - np.uint64(low % (1 << 64))
            counts += np.bincount(
                (offsets // np.uint64(width)).astype(np.int64), minlength=_BINS + 1
            )
        ends = np.cumsum(counts)
        chosen = int(np.searchsorted(ends, rank, side="right"))
        rank -= int(ends[chosen - 1]) if chosen else 0
        low, high = low + chosen * width, min(high, low + (chosen + 1) * width - 1)
    return low


def _over(times: Times, function: object) -> npt.NDArray[np.int64]:
    """A function of each chunk of the times."""
    assert callable(function)
    starts = range(0, len(times), _CHUNK)
    return np.array([function(times[start : start + _CHUNK]) for start in starts], np.int64)
