"""Tables as the bytes of files, in small row groups and record batches."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **({"row_group_size": 4} | options))
    return sink.getvalue()


def ipc(table: pa.Table, *, stream: bool = False, rows: int = 4) -> bytes:
    sink = io.BytesIO()
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)
    return sink.getvalue()
