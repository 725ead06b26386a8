"""Records in a runner's shuffle: cut by shard before it, sorted after it. Does no network I/O.

The unit of the shuffle is a chunk: consecutive records of one shard as one Arrow IPC message, so
Python never processes single records. Chunks may arrive in any order: records carry their keys.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ...schemas.blocks import SplitPlan
from ...schemas.features import Features
from ..runs.files import (
    KEY,
    MERGE_BYTES,
    KeyRange,
    RunReader,
    RunWriter,
    merge_range,
    records_within,
    run_schema,
    slices_of,
    sort_records,
)
from .shards import number_shards, rows_of_shard

CHUNK_BYTES = 256 << 10
"""Approximate size of a chunk; a single record may be larger."""
SORT_BYTES = 64 << 20
"""Bytes of a shard that are sorted in memory; larger shards are spilled to local files."""


class ShardCutter:
    """Cuts sorted records by shard."""

    def __init__(
        self,
        splits: Sequence[SplitPlan],
        *,
        wanted: Sequence[int],
        prepared: Features,
        stratify_by: str | None,
    ) -> None:
        """Collects the start keys of the wanted shards.

        Args:
            splits: The splits with all their shards.
            wanted: Numbers of the shards to cut out, ascending; others are left out.
            prepared: Features of the records.
            stratify_by: The feature that splits are stratified by, if any.
        """
        self._prepared = prepared
        self._stratify_by = stratify_by
        planned = number_shards(splits)
        # The shards of one split: one search finds the shard of each key.
        self._groups: dict[str, list[int]] = {}
        for number in wanted:
            self._groups.setdefault(planned[number][0].name, []).append(number)
        self._planned = {number: planned[number] for number in wanted}
        self._starts = {
            name: np.array([self._planned[n][1].start_key for n in numbers], np.uint64)
            for name, numbers in self._groups.items()
        }

    def ranges(self) -> list[KeyRange]:
        """The key ranges, one per partition, that cover all wanted shards."""
        ends_of: dict[int, tuple[int, int]] = {}
        for _, shard in self._planned.values():
            start, stop = ends_of.get(shard.partition, (shard.start_key, shard.stop_key))
            ends_of[shard.partition] = min(start, shard.start_key), max(stop, shard.stop_key)
        return [KeyRange(partition, *ends) for partition, ends in sorted(ends_of.items())]

    def cut(self, records: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The records of each wanted shard, by its number.

        Args:
            records: Sorted records of a run, or of several merged.
        """
        for name, numbers in self._groups.items():
            first, last = self._planned[numbers[0]][1], self._planned[numbers[-1]][1]
            keys = KeyRange(first.partition, first.start_key, last.stop_key)
            inside = records_within(records, keys)
            if not inside.num_rows:
                continue
            of_row = np.searchsorted(self._starts[name], inside.column(KEY).to_numpy(), "right") - 1
            cuts = [0, *(np.flatnonzero(np.diff(of_row)) + 1).tolist(), len(of_row)]
            for start, stop in itertools.pairwise(cuts):
                number = numbers[int(of_row[start])]
                split, shard = self._planned[number]
                # Not all belong to it: next to a shard that is not wanted, and with strata.
                kept = rows_of_shard(
                    inside.slice(start, stop - start),
                    split=split,
                    shard=shard,
                    prepared=self._prepared,
                    stratify_by=self._stratify_by,
                )
                if kept.num_rows:
                    yield number, kept


def chunks_of(records: pa.RecordBatch, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Serializes records as chunks of about ``chunk_bytes``, in order."""
    for chunk in slices_of(records, chunk_bytes):
        yield chunk.serialize().to_pybytes()


def sort_chunks(
    chunks: Iterable[bytes],
    keys: KeyRange,
    *,
    prepared: Features,
    scratch: str,
    sort_bytes: int = SORT_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records of a shard's chunks in their final order, in batches of bounded size.

    Needs about three times ``sort_bytes`` of memory: larger shards are sorted part by part into
    local runs, which are merged like any other runs.

    Args:
        chunks: All chunks of the shard, in any order.
        keys: The shard's key range.
        prepared: Features of the records.
        scratch: A local folder.
        sort_bytes: Bytes that may be sorted at once.
    """
    schema = run_schema(prepared)
    runs: list[RunReader] = []
    held: list[bytes] = []
    num_held = 0
    for chunk in chunks:
        held.append(chunk)
        num_held += len(chunk)
        if num_held >= sort_bytes:
            path = os.path.join(scratch, f"part-{len(runs)}.arrow")
            runs.append(_sorted_run(path, held, schema))
            held.clear()
            num_held = 0
    if runs:
        if held:
            runs.append(_sorted_run(os.path.join(scratch, "last.arrow"), held, schema))
            held.clear()
        yield from merge_range(runs, keys)
    elif held:
        records = _sorted(held, schema)
        held.clear()
        yield from slices_of(records, MERGE_BYTES)


def _sorted_run(path: str, chunks: Sequence[bytes], schema: pa.Schema) -> RunReader:
    with RunWriter(path, schema) as writer:
        writer.write(_sorted(chunks, schema))
    return RunReader(path, writer.batches, schema)


def _sorted(chunks: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    batches = [pa.ipc.read_record_batch(pa.py_buffer(chunk), schema) for chunk in chunks]
    return sort_records(pa.concat_batches(batches))
