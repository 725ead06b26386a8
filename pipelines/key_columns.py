"""Reading the key columns of named bins, by which the planner refines a cut."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import pyarrow as pa

from ..schemas.naming import Workspace
from ..transforms.key_histogram import NUM_KEY_BINS, KeyColumns
from ..transforms.runs import KEY, NUM_BYTES, PARTITION, STRATUM, KeyRange, RunReader, keys_schema
from ..transforms.summary import RunEntry

_BIN_WIDTH = (1 << 64) // NUM_KEY_BINS


def key_columns_reader(
    entries: Sequence[RunEntry], *, workspace: Workspace, suffix: str
) -> Callable[[Collection[tuple[int, int]]], KeyColumns]:
    """Gives a function that reads the rows of some (partition, bin) pairs from all key files."""
    readers = [
        RunReader(workspace.run_keys(entry.run.run_id, suffix), entry.keys, keys_schema())
        for entry in entries
    ]

    def read(bins: Collection[tuple[int, int]]) -> KeyColumns:
        found = [
            batch
            for partition, start, stop in _stretches(bins)
            for reader in readers
            for batch in reader.read(
                KeyRange(partition, start * _BIN_WIDTH, (stop + 1) * _BIN_WIDTH)
            )
        ]
        records = pa.Table.from_batches(found, keys_schema()).combine_chunks()

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
