"""Measures samples of records: the size of examples on disk and the lengths of lists.

Sizes are measured on the records with the lowest keys. Keys are hashes, so these are a uniform
sample without random numbers and without a defined order: the same inputs always give the same
ratios.

Lengths are the first dimensions of tensors where these vary: batches of similar length waste
little on padding. The boundaries between them come from a sample that is measured while shards
are written, when the columns are available.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.features import Feature, Features, tensor_form
from ...schemas.wire import ITEM_BYTES
from ..runs.files import NUM_BYTES, KeyRange, RunReader, merge_range, wire_schema
from .dtypes import joined_bytes
from .encode import encode_examples

ApplyGraph = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Turns the columns of prepared records into those of examples: a transform graph."""
SAMPLE_RECORDS = 2_048
SAMPLE_BYTES = 4 << 20
SAMPLE_RUNS = 64
"""At most this many runs are sampled, those with the lowest first keys: a sample of a million runs
would otherwise read a batch from two thousand of them, again and again."""
_GZIP_LEVEL = 6
"""The level of TensorFlow's writer."""

LENGTH_RECORDS = 4096
"""Records per split whose lists are measured; at least one in each shard."""

_NUM_PARTS = 8


@dataclasses.dataclass(frozen=True)
class SampleSizes:
    """Bytes of the sampled records at three stages."""

    prepared: int
    """Prepared records, encoded: what the key histogram counts."""
    stored: int
    """Records as they will be stored, after the transform graph, encoded."""
    packed: int
    """As many of these bytes as were compressed."""
    gzipped: int
    """The same, compressed."""

    @property
    def graph_ratio(self) -> float:
        """Stored bytes divided by prepared bytes."""
        return round(self.stored / self.prepared, 3) if self.prepared else 1.0

    @property
    def gzip_ratio(self) -> float:
        """Bytes after compression divided by those before."""
        return round(self.gzipped / self.packed, 3) if self.packed else 1.0


def measure_sample(
    records: pa.RecordBatch | None,
    *,
    prepared: Features,
    apply_graph: ApplyGraph | None,
    gzip_bytes: int | None = None,
) -> SampleSizes:
    """Encodes and compresses records, such as :func:`lowest_records` returns.

    Args:
        records: The records; None if there are none.
        prepared: Their features.
        apply_graph: Makes examples of them; None if they are stored as they are.
        gzip_bytes: How many bytes to compress at most; all by default.
    """
    if records is None:
        return SampleSizes(0, 0, 0, 0)
    columns = records.select(wire_schema(prepared).names)
    if apply_graph is not None:
        columns = apply_graph(columns)
    num_bytes = pc.sum(records.column(NUM_BYTES)).as_py()
    return sizes_of(columns, prepared=num_bytes, gzip_bytes=gzip_bytes)


def sizes_of(
    columns: pa.RecordBatch, *, prepared: int, gzip_bytes: int | None = None
) -> SampleSizes:
    """Encodes and compresses the columns of examples, which had so many bytes when prepared."""
    content = memoryview(joined_bytes(encode_examples(columns)))
    packed = content[:gzip_bytes]
    return SampleSizes(
        prepared=prepared,
        stored=len(content),
        packed=len(packed),
        gzipped=len(zlib.compress(packed, _GZIP_LEVEL)),
    )


def lowest_records(
    readers: Sequence[RunReader], partitions: Sequence[int]
) -> pa.RecordBatch | None:
    """The records with the lowest keys, partition by partition; None if there are none."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for partition in partitions:
        whole = KeyRange(partition, 0, 1 << 64)
        for records in merge_range(readers, whole, max_bytes=SAMPLE_BYTES):
            # Independent of how the records come: the number of shards follows from the sample.
            ends = size + np.cumsum(records.column(NUM_BYTES).to_numpy(), dtype=np.int64)
            room = min(SAMPLE_RECORDS - rows, 1 + int(np.searchsorted(ends, SAMPLE_BYTES)))
            held.append(records.slice(0, room))
            rows += held[-1].num_rows
            size = int(ends[held[-1].num_rows - 1])
            if rows >= SAMPLE_RECORDS or size >= SAMPLE_BYTES:
                return pa.concat_batches(held)
    return pa.concat_batches(held) if held else None


def varying_lists(features: Features) -> list[str]:
    """Names of the features whose first dimension varies, sorted by their bytes."""
    forms = {name: tensor_form(feature) for name, feature in features.items()}
    varying = [name for name, form in forms.items() if form and form.shape[:1] == (None,)]
    return sorted(varying, key=str.encode)


def list_lengths(columns: pa.RecordBatch, name: str, feature: Feature) -> npt.NDArray[np.int64]:
    """The first dimension of a feature in each record: int64[n], 0 if it is missing.

    Args:
        columns: Wire columns.
        name: A name from :func:`varying_lists`.
        feature: The feature of that name.
    """
    form = tensor_form(feature)
    assert form is not None
    rest = form.shape[1:]
    if None in rest:
        lengths = pc.list_element(columns.column(f"{name}/shape"), 0)
        divisor = 1
    elif form.wire_columns(name)[0].packed:
        lengths = pc.binary_length(columns.column(name))
        divisor = ITEM_BYTES[form.dtype]
    else:
        lengths = pc.list_value_length(columns.column(name))
        divisor = 1
    values: npt.NDArray[np.int64] = lengths.cast(pa.int64()).fill_null(0).to_numpy()
    return values // (divisor * (1 if None in rest else math.prod(dim or 1 for dim in rest)))


def length_boundaries(lengths: Iterable[int]) -> list[int]:
    """Boundaries between eighths of a sample: distinct, ascending, the last one its longest.

    Each is a length that occurs, so lists padded to the next boundary fit.

    >>> length_boundaries([3, 9, 4, 4, 5, 12, 7, 6])
    [3, 4, 5, 6, 7, 9, 12]
    """
    ordered = np.sort(np.fromiter(lengths, np.int64))
    if not len(ordered):
        return []
    # For each number of eighths, the smallest length that so many records do not exceed.
    places = -(-np.arange(1, _NUM_PARTS + 1) * len(ordered) // _NUM_PARTS) - 1
    boundaries: list[int] = np.unique(ordered[places]).tolist()
    return boundaries
