"""The footer of a Parquet file, held against what pyarrow says of it."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.transforms.sources.arrow.parquet import read_row_groups

TABLE = pa.table(
    {
        "a": [1, None, 3] * 50,
        "s": pa.array(["x", "yé", None] * 50).dictionary_encode(),
        "l": [[1.5], None, []] * 50,
        "st": [{"p": 1, "q": {"r": True}}, None, {"p": None, "q": None}] * 50,
    }
)


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_statistics": False},
        {"use_dictionary": False, "compression": "zstd"},
        {"version": "1.0", "store_schema": False},
        {"write_page_index": True, "write_page_checksum": True},
    ],
    ids=lambda options: "-".join(options) or "default",
)
def test_as_pyarrow_says(rows: int, options: dict[str, Any]) -> None:
    content = written(TABLE, row_group_size=rows, **options)
    metadata = pq.ParquetFile(io.BytesIO(content)).metadata
    groups = read_row_groups(pa.BufferReader(content))
    assert len(groups) == metadata.num_row_groups
    for index, group in enumerate(groups):
        wanted = metadata.row_group(index)
        chunks = [wanted.column(number) for number in range(wanted.num_columns)]
        places = [c.data_page_offset for c in chunks]
        places += [c.dictionary_page_offset for c in chunks if c.has_dictionary_page]
        assert group.offset == min(places)
        assert (group.num_rows, group.num_bytes) == (wanted.num_rows, wanted.total_byte_size)
        assert group.null_counts == {
            c.path_in_schema: c.statistics.null_count if c.statistics else None for c in chunks
        }


def test_a_file_without_rows() -> None:
    assert sum(g.num_rows for g in read_row_groups(pa.BufferReader(written(TABLE[:0])))) == 0


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_a_footer_or_refused(footer: bytes) -> None:
    content = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    try:
        groups = read_row_groups(pa.BufferReader(content))
    except ValueError:
        return
    assert all(group.num_rows >= 0 for group in groups)
