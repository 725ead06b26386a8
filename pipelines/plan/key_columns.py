"""Reading the key columns of named bins, by which the planner refines a cut."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from ...schemas.naming import Workspace
from ...transforms import storage
from ...transforms.runs.files import (
    KEY,
    NUM_BYTES,
    PARTITION,
    STRATUM,
    KeyRange,
    RunReader,
    keys_schema,
)
from ...transforms.runs.key_histogram import BIN_BITS, KeyColumns
from ...transforms.runs.summary import RunEntry

_REQUESTS = 32
"""Runs that are read at once from a store."""


def key_columns_reader(
    entries: Sequence[RunEntry], *, workspace: Workspace, suffix: str, bits: int = BIN_BITS
) -> Callable[[Collection[tuple[int, int]]], KeyColumns]:
    """Gives a function that reads the rows of some (partition, bin) pairs from all key files.

    Args:
        entries: The runs.
        workspace: Where they lie.
        suffix: Names their key files.
        bits: There are 2**bits bins.
    """
    readers: list[RunReader] = []

    def read(bins: Collection[tuple[int, int]]) -> KeyColumns:
        if not readers:
            readers.extend(
                RunReader(workspace.run_keys(entry.run.run_id, suffix), entry.keys, keys_schema())
                for entry in entries
            )
        width = 1 << (64 - bits)
        ranges = [
            KeyRange(partition, start * width, (stop + 1) * width)
            for partition, start, stop in _stretches(bins)
        ]
        # A store answers slowly, and many at once.
        with ThreadPoolExecutor(1 if storage.is_local(workspace.root) else _REQUESTS) as pool:
            found = pool.map(lambda reader: list(reader.read_all(ranges)), readers)
            batches = [batch for of_run in found for batch in of_run]
        records = pa.Table.from_batches(batches, keys_schema()).combine_chunks()

        def values(name: str) -> np.ndarray:
            return np.asarray(records.column(name))

        strata = records.column(STRATUM)
        return KeyColumns(
            partitions=values(PARTITION),
            keys=values(KEY),
            num_bytes=values(NUM_BYTES),
            strata=None if strata.null_count == len(strata) else strata.combine_chunks(),
        )

    return read


def _stretches(bins: Collection[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Joins neighbouring bins into (partition, first bin, last bin): fewer, larger reads."""
    stretches: list[tuple[int, int, int]] = []
    for partition, index in sorted(set(bins)):
        if stretches and stretches[-1][0] == partition and stretches[-1][2] == index - 1:
            stretches[-1] = (partition, stretches[-1][1], index)
        else:
            stretches.append((partition, index, index))
    return stretches
