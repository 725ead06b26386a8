"""The bytes of small archives, tables and arrays, and files of given bytes."""

import io
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Members = Mapping[str, bytes] | Iterable[tuple[str, bytes]]
"""Contents by name, or pairs of both: a name may be there twice."""


def tar_of(members: Members, *, mode: str = "w:", form: int = tarfile.PAX_FORMAT) -> bytes:
    sink = io.BytesIO()
    archive: tarfile.TarFile
    with tarfile.open(fileobj=sink, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        for name, content in _pairs(members):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return sink.getvalue()


def zip_of(members: Members, *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, content in _pairs(members):
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return sink.getvalue()


def _pairs(members: Members) -> Iterable[tuple[str, bytes]]:
    return members.items() if isinstance(members, Mapping) else members


def parquet(table: pa.Table, **options: Any) -> bytes:
    """In small row groups, unless the options say otherwise."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **({"row_group_size": 4} | options))
    return sink.getvalue()


def ipc(table: pa.Table, *, stream: bool = False, rows: int = 4) -> bytes:
    """In small record batches."""
    sink = io.BytesIO()
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)
    return sink.getvalue()


def npy(values: Any, **options: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, values, **options)
    return sink.getvalue()


def npz(save: Any = np.savez, **arrays: Any) -> bytes:
    sink = io.BytesIO()
    save(sink, **arrays)
    return sink.getvalue()


def frame(record: bytes) -> bytes:
    """A record as a TFRecord file holds it."""
    head = struct.pack("<Q", len(record))
    return head + masked_crc(head) + record + masked_crc(record)


def masked_crc(content: bytes) -> bytes:
    """The checksum of a TFRecord's length or content."""
    crc = int(google_crc32c.value(content))
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def write(folder: Path, files: Mapping[str, bytes]) -> str:
    """Writes files, by path below a folder; gives the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(folder)
