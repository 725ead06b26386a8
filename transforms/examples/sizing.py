"""How large examples will be on disk, measured on the records with the lowest keys.

Keys are hashes, so the lowest ones are a uniform sample that needs no random number and no
order: the same inputs give the same ratios everywhere.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.features import Features
from ..runs.files import NUM_BYTES, KeyRange, RunReader, merge_range, wire_schema
from .encode import encode_examples

if TYPE_CHECKING:
    from ..analysis.graph import TransformGraph

SAMPLE_RECORDS = 2_048
SAMPLE_BYTES = 4 << 20
SAMPLE_RUNS = 64
"""Of more runs, those whose first keys are the lowest are looked at: a sample of a million runs
would otherwise ask two thousand of them for a batch each, over and over."""
_GZIP_LEVEL = 6
"""What TensorFlow's writer uses."""


@dataclasses.dataclass(frozen=True)
class SampleSizes:
    """Bytes of the sampled records at three stages."""

    prepared: int
    """Encoded as they lie in the runs: what the key histogram counts."""
    stored: int
    """Encoded as they will be stored, after the transform graph."""
    gzipped: int
    """The same, compressed."""

    @property
    def graph_ratio(self) -> float:
        """Stored by prepared bytes."""
        return round(self.stored / self.prepared, 3) if self.prepared else 1.0

    @property
    def gzip_ratio(self) -> float:
        """Compressed by stored bytes."""
        return round(self.gzipped / self.stored, 3) if self.stored else 1.0


def measure_sample(
    readers: Sequence[RunReader],
    *,
    partitions: Sequence[int],
    prepared: Features,
    graph: TransformGraph | None,
) -> SampleSizes:
    """Encodes and compresses the records with the lowest keys of the first partition with any."""
    records = _lowest(readers, partitions)
    if records is None:
        return SampleSizes(0, 0, 0)
    columns = records.select(wire_schema(prepared).names)
    if graph is not None:
        columns = graph.apply(columns)
    content = b"".join(encode_examples(columns).to_pylist())
    num_bytes = pc.sum(records.column(NUM_BYTES)).as_py()
    return SampleSizes(
        prepared=num_bytes,
        stored=len(content),
        gzipped=len(zlib.compress(content, _GZIP_LEVEL)),
    )


def _lowest(readers: Sequence[RunReader], partitions: Sequence[int]) -> pa.RecordBatch | None:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for partition in partitions:
        whole = KeyRange(partition, 0, 1 << 64)
        for records in merge_range(readers, whole, max_bytes=SAMPLE_BYTES):
            row_bytes = max(1, records.nbytes // records.num_rows)
            room = min(SAMPLE_RECORDS - rows, max(1, (SAMPLE_BYTES - size) // row_bytes))
            held.append(records.slice(0, room))
            rows += held[-1].num_rows
            size += held[-1].nbytes
            if rows >= SAMPLE_RECORDS or size >= SAMPLE_BYTES:
                return pa.concat_batches(held)
    return pa.concat_batches(held) if held else None
