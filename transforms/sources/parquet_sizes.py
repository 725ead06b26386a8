"""How many rows of a Parquet row group may be decoded at once.

A column of texts may hold one long text in its dictionary and name it in every row: a file of a
kilobyte can stand for a terabyte, and neither its footer nor its pages' lengths show it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...schemas.limits import FREE_BYTES
from ..storage.decompress import grows_beyond
from .parquet_footer import RowGroup

_VALUE_BYTES = 8
_SMALL_BYTES = 16 << 10
"""Of a column chunk: no text in it is longer."""


def check_lists(
    group: RowGroup, columns: Iterable[str], *, num_bytes: int, max_expansion: int
) -> None:
    """Refuses lists of far more values than a file of so many bytes should hold.

    Raises:
        ValueError: saying which limit they break.
    """
    wanted = set(columns)
    allowed = max(FREE_BYTES, num_bytes * max_expansion)
    for path, chunk in group.chunks.items():
        name, nested, _ = path.partition(".")
        if nested and name in wanted and chunk.num_values * _VALUE_BYTES > allowed:
            raise ValueError(f"it {grows_beyond(max_expansion)}")


def rows_at_once(
    source: Any, unit: int, group: RowGroup, columns: Iterable[str], *, num_rows: int
) -> int:
    """So many rows, or as many as can be decoded whatever texts of the dictionaries they name."""
    wanted = set(columns)
    for path, chunk in group.chunks.items():
        if not (chunk.has_dictionary and chunk.is_bytes and path.partition(".")[0] in wanted):
            continue
        each = -(-chunk.num_values // max(1, group.num_rows))
        longest = min(chunk.num_bytes, _SMALL_BYTES)
        if chunk.num_bytes > _SMALL_BYTES:
            longest = _longest(source, unit, path)
        num_rows = min(num_rows, max(1, FREE_BYTES // max(1, longest * each)))
    return num_rows


def _longest(source: Any, unit: int, path: str) -> int:
    """The longest text in a column chunk's dictionary, in bytes."""
    file = pq.ParquetFile(
        source, read_dictionary=[path], pre_buffer=False, page_checksum_verification=True
    )
    batches = file.iter_batches(batch_size=1, row_groups=[unit], columns=[path], use_threads=False)
    batch = next(batches, None)
    if batch is None:
        return 0
    batch.validate()
    return max((_longest_of(column) for column in batch.columns), default=0)


def _longest_of(array: Any) -> int:
    kind = array.type
    if pa.types.is_dictionary(kind):
        if pa.types.is_fixed_size_binary(kind.value_type):
            return int(kind.value_type.byte_width)
        if not (pa.types.is_binary(kind.value_type) or pa.types.is_string(kind.value_type)):
            return 0
        return int(pc.max(pc.binary_length(array.dictionary)).as_py() or 0)
    if pa.types.is_struct(kind):
        return max((_longest_of(array.field(i)) for i in range(kind.num_fields)), default=0)
    return _longest_of(array.values) if hasattr(array, "values") else 0
