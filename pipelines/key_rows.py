"""Reads the keys of a few bins in bounded pieces, and holds them against the histogram."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from ..schemas.errors import StorageError
from ..transforms.key_histogram import (
    NUM_KEY_BINS,
    KeyColumns,
    KeyHistogram,
    key_bins,
    stratum_codes,
)
from ..transforms.keys import Keys

ReadKeys = Callable[[Collection[tuple[int, int]]], KeyColumns]
"""Gives the rows of the named (partition, bin) pairs, and no others, in any order."""

MAX_ROWS = 1 << 21
"""Rows asked for at a time (a bin is never divided): about 300 MB while they are worked on."""

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class KeyRows:
    """Rows of some bins, in any order; columns of one length."""

    partitions: npt.NDArray[np.int16]
    bins: npt.NDArray[np.int16]
    strata: npt.NDArray[np.int32]
    """Indices into the histogram's strata; 0 where the splits are not stratified."""
    keys: Keys
    num_bytes: Ints

    def take(self, rows: npt.NDArray[np.intp]) -> KeyRows:
        """Some of the rows, by their indices, in that order."""
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
    read_keys: ReadKeys
    stratified: bool

    def batches(self, pairs: Iterable[tuple[int, int]]) -> Iterator[KeyRows]:
        """Reads the rows of (partition, bin) pairs; each pair's rows come together.

        Raises:
            StorageError: if the runs hold other records than the histogram counted.
        """
        num_records, num_bytes = self._totals()
        batch: list[tuple[int, int]] = []
        num_rows = 0
        for pair in sorted(pairs):
            rows = int(num_records[pair])
            if batch and num_rows + rows > MAX_ROWS:
                yield self._read(batch, num_records, num_bytes)
                batch, num_rows = [], 0
            batch.append(pair)
            num_rows += rows
        if batch:
            yield self._read(batch, num_records, num_bytes)

    def _totals(self) -> tuple[Ints, Ints]:
        """Records and bytes by [partition, bin]."""
        counted = self.histogram
        num_partitions = int(counted.partition.max(initial=-1)) + 1
        num_records = np.zeros((num_partitions, NUM_KEY_BINS), np.int64)
        num_bytes = np.zeros_like(num_records)
        np.add.at(num_records, (counted.partition, counted.bin), counted.num_records)
        np.add.at(num_bytes, (counted.partition, counted.bin), counted.num_bytes)
        return num_records, num_bytes

    def _read(self, pairs: list[tuple[int, int]], num_records: Ints, num_bytes: Ints) -> KeyRows:
        columns = self.read_keys(pairs)
        if not self.stratified or not len(columns.keys):
            strata = np.zeros(len(columns.keys), np.int32)
        elif columns.strata is None:
            raise ValueError("the splits are stratified, and read_keys gives no strata")
        else:
            strata = stratum_codes(columns.strata, self.histogram.strata)
        rows = KeyRows(
            columns.partitions, key_bins(columns.keys), strata, columns.keys, columns.num_bytes
        )
        cells = rows.partitions.astype(np.int64) * NUM_KEY_BINS + rows.bins
        expected = np.zeros_like(num_records)
        expected_bytes = np.zeros_like(num_records)
        where = tuple(np.array(pairs).T)
        expected[where] = num_records[where]
        expected_bytes[where] = num_bytes[where]
        found = np.bincount(cells, minlength=expected.size)
        # Sums of float64 are exact here: a bin's bytes stay far below 2**53.
        found_bytes = np.bincount(cells, weights=rows.num_bytes, minlength=expected.size)
        if (
            (strata < 0).any()
            or not np.array_equal(found, expected.ravel())
            or not np.array_equal(found_bytes.astype(np.int64), expected_bytes.ravel())
        ):
            raise StorageError(
                f"The runs hold other records than their summaries counted: {len(cells)} records "
                f"of {rows.num_bytes.sum()} bytes in {len(pairs)} key bins, expected "
                f"{expected.sum()} of {expected_bytes.sum()} bytes. The workspace is damaged, or "
                "of two builds: remove it and build again."
            )
        return rows
