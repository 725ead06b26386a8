"""How finely the summary of a build's runs counts keys.

Planning puts the cuts between shards inside of bins, at a record, for which it reads keys: of every
run, where there are many cuts, and again for every two million of them. Of up to
:data:`COARSE_RUNS` runs that is soon done. Of more, bins are so fine that a cut at the edge of one
is near enough, and no key is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...schemas.shards import Shards, parse_size
from ...schemas.splits import Splits
from ...transforms.runs.key_histogram import BIN_BITS, FINE_BITS, KeyBins
from ...transforms.sources.blocks import BLOCK_BYTES

COARSE_RUNS = 1024
"""Up to so many runs (69 GB) are counted in 4,096 bins, and cut at records."""
BINS_PER_SHARD = 200
"""Cuts at the edges of bins leave shards that differ by the heaviest bin: of 200, within 1 %."""


def bins_for(splits: Splits, shards: Shards, *, num_units: int) -> KeyBins:
    """What the summary of so many runs counts by.

    It depends on the number of units and on what the recipe says of splits and shards, as the
    summary's name does. A stratified split is not cut at bins' edges, so it has the coarse ones.

    >>> bins_for(Splits(train=0.8, test=0.2), Shards(), num_units=1_024).bits
    12
    >>> bins_for(Splits(train=0.8, test=0.2), Shards(), num_units=10_000).bits
    20
    >>> bins_for(Splits(train=0.8, test=0.2), Shards(), num_units=1_000_000).bits
    24
    """
    if num_units <= COARSE_RUNS or splits.stratify_by is not None:
        return KeyBins()
    ranges = splits.key_ranges() if not splits.partitioned else ()
    share = {name: (stop - start) / (1 << 64) for name, start, stop in ranges}
    by_size = num_units * BLOCK_BYTES / parse_size(shards.target_bytes)
    numbers = shards.num_shards
    wanted = [by_size if numbers is None else 1.0]
    for name in splits.names:
        number = numbers.get(name) if isinstance(numbers, Mapping) else numbers
        wanted.append((number or shards.min_shards or 1) / max(share.get(name, 1.0), 1e-9))
    bits = math.ceil(math.log2(BINS_PER_SHARD * max(wanted)))
    ends = tuple(stop for _, _, stop in ranges[:-1])
    return KeyBins(min(max(bits, BIN_BITS + 1), FINE_BITS), ends)
