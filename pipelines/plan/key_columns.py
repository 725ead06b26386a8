"""Reads the keys of a few bins from the runs' key files, to place a cut inside a bin.

Rows are read in pieces of bounded size and checked against the histogram.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.errors import PlaceError
from ...schemas.naming import Workspace
from ...transforms import storage
from ...transforms.runs.files import (
    KEY,
    NUM_BYTES,
    PARTITION,
    STRATUM,
    KeyRange,
    KeyRanges,
    RunReader,
    keys_schema,
)
from ...transforms.runs.key_histogram import (
    BIN_BITS,
    KeyColumns,
    KeyHistogram,
    key_bins,
    stratum_codes,
)
from ...transforms.runs.keys import Keys
from ...transforms.runs.summary import RunEntry

Ints = npt.NDArray[np.int64]
ReadKeys = Callable[[Collection[tuple[int, int]]], KeyColumns]
"""Returns exactly the rows of the given (partition, bin) pairs, in any order."""
MAX_ROWS = 1 << 21
"""Rows requested at a time (a bin is never divided): about 300 MB while in use."""


def key_columns_reader(
    entries: Sequence[RunEntry], *, workspace: Workspace, suffix: str, bits: int = BIN_BITS
) -> Callable[[Collection[tuple[int, int]]], KeyColumns]:
    """Returns a function that reads the rows of some (partition, bin) pairs from all key files.

    Args:
        entries: The runs.
        workspace: Their workspace.
        suffix: Suffix of their key files.
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
        ranges = KeyRanges(
            [
                KeyRange(partition, start * width, (stop + 1) * width)
                for partition, start, stop in _stretches(bins)
            ]
        )
        with ThreadPoolExecutor(storage.num_requests(workspace.root)) as pool:
            batches_of_runs = pool.map(lambda reader: list(reader.read_all(ranges)), readers)
            batches = [batch for of_run in batches_of_runs for batch in of_run]
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
    """Joins adjacent bins into (partition, first bin, last bin): fewer, larger reads."""
    stretches: list[tuple[int, int, int]] = []
    for partition, index in sorted(set(bins)):
        if stretches and stretches[-1][0] == partition and stretches[-1][2] == index - 1:
            stretches[-1] = (partition, stretches[-1][1], index)
        else:
            stretches.append((partition, index, index))
    return stretches


@dataclasses.dataclass(frozen=True, eq=False)
class KeyRows:
    """Rows of some bins, in any order; all columns have the same length."""

    partitions: npt.NDArray[np.int16]
    bins: npt.NDArray[np.int32]
    strata: npt.NDArray[np.int32]
    """Indices into the histogram's strata; 0 if the splits are not stratified."""
    keys: Keys
    num_bytes: Ints

    def take(self, rows: npt.NDArray[np.intp]) -> KeyRows:
        """The rows with these indices, in that order."""
        return KeyRows(
            self.partitions[rows],
            self.bins[rows],
            self.strata[rows],
            self.keys[rows],
            self.num_bytes[rows],
        )


@dataclasses.dataclass(frozen=True, eq=False)
class KeyRowsReader:
    """Reads rows of bins through ``read_keys``."""

    histogram: KeyHistogram
    """Its partitions must be those of the records."""
    read_keys: ReadKeys
    stratified: bool
    max_rows: int

    def batches(self, pairs: Iterable[tuple[int, int]]) -> Iterator[KeyRows]:
        """Reads the rows of (partition, bin) pairs; the rows of a pair are in one batch.

        Raises:
            PlaceError: if the runs contain other records than the histogram counted.
        """
        wanted = np.array(sorted(pairs), np.int64).reshape(-1, 2)
        if not len(wanted):
            return
        cells = self._cells(wanted[:, 0], wanted[:, 1])
        num_records, num_bytes = self._totals(cells)
        before = np.cumsum(num_records) - num_records
        start = 0
        while start < len(cells):
            rows = before - before[start] + num_records
            stop = max(start + 1, int(np.searchsorted(rows, self.max_rows, side="right")))
            some = slice(start, stop)
            yield self._read(wanted[some], cells[some], num_records[some], num_bytes[some])
            start = stop

    def _cells(self, partitions: npt.NDArray[Any], bins: npt.NDArray[Any]) -> Ints:
        """A number for each (partition, bin) pair, in the order of the pairs."""
        cells: Ints = (partitions.astype(np.int64) << self.histogram.bits) + bins
        return cells

    def _totals(self, cells: Ints) -> tuple[Ints, Ints]:
        """Records and bytes in each of these cells, which must be ascending."""
        counted = self.histogram
        of_entry = self._cells(counted.partition, counted.bin)
        place = np.minimum(np.searchsorted(cells, of_entry), len(cells) - 1)
        inside = np.flatnonzero(cells[place] == of_entry)
        num_records, num_bytes = np.zeros_like(cells), np.zeros_like(cells)
        np.add.at(num_records, place[inside], counted.num_records[inside])
        np.add.at(num_bytes, place[inside], counted.num_bytes[inside])
        return num_records, num_bytes

    def _read(self, pairs: Ints, cells: Ints, num_records: Ints, num_bytes: Ints) -> KeyRows:
        columns = self.read_keys([(partition, bin_) for partition, bin_ in pairs.tolist()])
        if not self.stratified or not len(columns.keys):
            strata = np.zeros(len(columns.keys), np.int32)
        elif columns.strata is None:
            raise ValueError("the splits are stratified, but read_keys returned no strata")
        else:
            strata = stratum_codes(columns.strata, self.histogram.strata)
        bins = key_bins(columns.keys, self.histogram.bits)
        rows = KeyRows(columns.partitions, bins, strata, columns.keys, columns.num_bytes)
        of_row = self._cells(rows.partitions, rows.bins)
        place = np.minimum(np.searchsorted(cells, of_row), len(cells) - 1)
        counts = np.bincount(place, minlength=len(cells))
        # Sums of float64 are exact here: a bin's bytes are far below 2**53.
        found_bytes = np.bincount(place, weights=rows.num_bytes, minlength=len(cells))
        if (
            (strata < 0).any()
            or not np.array_equal(cells[place], of_row)
            or not np.array_equal(counts, num_records)
            or not np.array_equal(found_bytes.astype(np.int64), num_bytes)
        ):
            raise PlaceError(
                "The runs contain other records than their summaries counted: "
                f"{len(of_row)} records of {rows.num_bytes.sum()} bytes in {len(pairs)} key bins, "
                f"expected {num_records.sum()} of {num_bytes.sum()} bytes. The workspace is "
                "damaged or mixes two builds: remove it and build again."
            )
        return rows
