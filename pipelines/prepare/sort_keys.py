"""The keys by which prepared records are sorted, and how finely summaries count them.

In the last stage records are sorted by (partition, key, id), their final order; in an earlier one
by the key of the next step across records, whose prefix precedes the id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.blocks import RawBatch
from ...schemas.errors import Reject
from ...schemas.features import Features
from ...schemas.recipe import CrossStep, Recipe
from ...schemas.shards import Shards
from ...schemas.splits import Splits
from ...transforms.examples.encode import example_sizes
from ...transforms.rejects import reject_rows
from ...transforms.runs.files import run_schema, wire_schema
from ...transforms.runs.key_histogram import BIN_BITS, FINE_BITS, KeyBins
from ...transforms.runs.keys import NO_PARTITION, record_keys, split_of_keys
from ...transforms.runs.partitions import SplitEnds, partition_records, with_divided_train
from ...transforms.sources.blocks import BLOCK_BYTES
from ...transforms.storage.opened_source import path_bytes

COARSE_RUNS = 1024
"""Up to this many runs (69 GB) are counted in 4,096 bins and cut at records."""
BINS_PER_SHARD = 200
"""With cuts at bin edges, shards differ by the heaviest bin: with 200 bins, within 1 %."""


class RecordKeys:
    """Adds partition, key, id and encoded size to prepared records."""

    def __init__(
        self,
        recipe: Recipe,
        features: Features,
        *,
        following: CrossStep | None,
        ends: SplitEnds | None,
    ) -> None:
        """Stores what determines the keys.

        Args:
            recipe: The recipe, with its splits, seed and source.
            features: Features of the prepared records.
            following: The next step across records; None in the last stage.
            ends: Ends of splits that depend on all records.
        """
        self._recipe = recipe
        self._features = features
        self._following = following
        self._ends = ends
        self._schema = run_schema(features)
        self._names = wire_schema(features).names

    def add(self, batch: RawBatch, *, rejects: list[Reject]) -> pa.RecordBatch:
        """The records of a batch in the form of a run; those without a split become rejects."""
        columns, seed = batch.columns, self._recipe.seed
        if columns.schema.names != self._names:
            columns = columns.select(self._names)
        ids = pa.array([path_bytes(record_id) for record_id in batch.ids], pa.large_binary())
        sizes = pa.array(example_sizes(columns).astype(np.int64))
        if self._following is not None:
            keys, prefixes = self._following.order(
                batch.ids, columns, features=self._features, seed=seed
            )
            ids = pc.binary_join_element_wise(prefixes, ids, pa.scalar(b"", pa.large_binary()))
            partitions = np.zeros(columns.num_rows, np.int16)
        else:
            keys = record_keys(batch.ids, seed)
            partitions, why = partition_records(
                batch.ids,
                columns,
                splits=self._recipe.splits,
                features=self._features,
                seed=seed,
                ends=self._ends,
            )
        meta = [pa.array(partitions), pa.array(keys), ids, sizes]
        records = pa.RecordBatch.from_arrays([*meta, *columns.columns], schema=self._schema)
        unassigned = partitions == NO_PARTITION
        if not unassigned.any():
            return records
        rejects += reject_unassigned(batch.ids, unassigned, recipe=self._recipe, message=why)
        return records.filter(pa.array(~unassigned))


def reject_unassigned(
    ids: Sequence[str],
    unassigned: npt.NDArray[np.bool_],
    *,
    recipe: Recipe,
    message: str,
    columns: pa.RecordBatch | None = None,
) -> list[Reject]:
    """Rejects records that belong to no split.

    Args:
        ids: Ids of the records.
        unassigned: Which of them have no split: bool[n].
        recipe: The recipe.
        message: Why they have none.
        columns: The records' values, which the rejects keep; None if they keep the raw records.
    """
    return reject_rows(
        ids,
        np.flatnonzero(unassigned),
        stage="split",
        reason="no split" if recipe.splits.group_by is None else "no group",
        message=message,
        numbered=recipe.files.numbered,
        columns=columns,
    )


def split_of_records(
    ids: Sequence[str],
    columns: pa.RecordBatch,
    *,
    recipe: Recipe,
    features: Features,
    ends: SplitEnds | None,
) -> tuple[npt.NDArray[np.int16], str]:
    """The split of each record before the last stage, int16[n], and why a record has none.

    If splits are stratified, only the plan knows them: all are zero, or train's.
    """
    splits = recipe.splits
    if not splits.partitioned:
        if splits.stratify_by is not None:
            return np.zeros(len(ids), np.int16), ""
        return split_of_keys(record_keys(ids, recipe.seed), splits), ""
    partitions, message = partition_records(
        ids, columns, splits=splits, features=features, seed=recipe.seed, ends=ends
    )
    if splits.of_train is not None and splits.train_is_divided_by_key and not splits.stratify_by:
        of_train = split_of_keys(record_keys(ids, recipe.seed), splits.of_train)
        partitions = with_divided_train(partitions, of_train, splits)
    return partitions, message


def bins_for(splits: Splits, shards: Shards, *, num_units: int) -> KeyBins:
    """The bins in which the summary of this many runs counts keys.

    Planning puts cuts between shards at records inside bins. This needs reading keys: from every
    run if there are many cuts, and again for every two million keys. Up to :data:`COARSE_RUNS` runs
    this is fast. With more, bins are so fine that a cut at a bin's edge is accurate enough, and no
    key is read.

    The bins depend on the number of units and on the recipe's splits and shards, as does the
    summary's name. Stratified splits and fractions of train are not cut at bin edges, so they use
    the coarse bins.

    >>> bins_for(Splits(train=0.8, test=0.2), Shards(), num_units=1_024).bits
    12
    >>> bins_for(Splits(train=0.8, test=0.2), Shards(), num_units=10_000).bits
    20
    >>> bins_for(Splits(train=0.8, test=0.2), Shards(), num_units=1_000_000).bits
    24
    """
    at_edges = splits.key_strata is None and not splits.train_is_divided_by_key
    if num_units <= COARSE_RUNS or not at_edges:
        return KeyBins()
    ranges = splits.key_ranges() if not splits.partitioned else ()
    share = {name: (stop - start) / (1 << 64) for name, start, stop in ranges}
    by_size = num_units * BLOCK_BYTES / shards.max_bytes
    numbers = shards.num_shards
    wanted = [by_size if numbers is None else 1.0]
    for name in splits.names:
        number = numbers.get(name) if isinstance(numbers, Mapping) else numbers
        wanted.append((number or shards.min_shards or 1) / max(share.get(name, 1.0), 1e-9))
    bits = math.ceil(math.log2(BINS_PER_SHARD * max(wanted)))
    ends = tuple(stop for _, _, stop in ranges[:-1])
    return KeyBins(min(max(bits, BIN_BITS + 1), FINE_BITS), ends)
