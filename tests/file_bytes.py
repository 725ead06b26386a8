"""The bytes of small archives, tables and arrays, and files of given bytes."""

import datetime
import io
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
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


def workbook(sheets: Mapping[str, Sequence[Sequence[Any]]], *, hidden: Sequence[str] = ()) -> bytes:
    """An Excel workbook: numbers, bools, texts, dates, times and durations; None is no cell."""
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    main = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    package = "http://schemas.openxmlformats.org/package/2006"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"
    formats = ("yyyy\\-mm\\-dd", "yyyy\\-mm\\-dd hh:mm:ss", "hh:mm:ss", "[h]:mm:ss")
    links = [f'<Relationship Id="r0" Type="{office}/styles" Target="styles.xml"/>']
    named = []
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Override '
        f'PartName="/xl/workbook.xml" ContentType="{kind}"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/styles.xml": f"<styleSheet {main}><numFmts>"
        + "".join(f'<numFmt numFmtId="{i}" formatCode="{f}"/>' for i, f in enumerate(formats, 164))
        + '</numFmts><cellXfs><xf numFmtId="0"/>'
        + "".join(f'<xf numFmtId="{i}"/>' for i in range(164, 168))
        + "</cellXfs></styleSheet>",
    }
    for number, (name, rows) in enumerate(sheets.items(), 1):
        state = ' state="hidden"' if name in hidden else ""
        named.append(f'<sheet name="{name}" sheetId="{number}" r:id="r{number}"{state}/>')
        links.append(
            f'<Relationship Id="r{number}" Type="{office}/worksheet" '
            f'Target="worksheets/{number}.xml"/>'
        )
        lines = (f"<row>{''.join(map(_cell, row))}</row>" for row in rows)
        parts[f"xl/worksheets/{number}.xml"] = (
            f"<worksheet {main}><sheetData>{''.join(lines)}</sheetData></worksheet>"
        )
    parts["xl/workbook.xml"] = (
        f'<workbook {main} xmlns:r="{office}"><sheets>{"".join(named)}</sheets></workbook>'
    )
    parts["xl/_rels/workbook.xml.rels"] = (
        f'<Relationships xmlns="{package}/relationships">{"".join(links)}</Relationships>'
    )
    return zip_of({name: text.encode() for name, text in parts.items()})


class Clock(float):
    """Days, shown as a time of day."""


def _cell(value: Any) -> str:
    day = datetime.timedelta(days=1)
    if value is None:
        return "<c/>"
    if isinstance(value, str):
        if value.startswith("#"):
            return f'<c t="e"><v>{value}</v></c>'
        return f'<c t="inlineStr"><is><t>{value}</t></is></c>'
    if isinstance(value, bool):
        return f'<c t="b"><v>{value:d}</v></c>'
    if isinstance(value, datetime.datetime):
        return f'<c s="2"><v>{(value - datetime.datetime(1899, 12, 30)) / day!r}</v></c>'
    if isinstance(value, datetime.date):
        return f'<c s="1"><v>{(value - datetime.date(1899, 12, 30)).days}</v></c>'
    if isinstance(value, datetime.timedelta):
        return f'<c s="4"><v>{value / day!r}</v></c>'
    if isinstance(value, Clock):
        return f'<c s="3"><v>{float(value)!r}</v></c>'
    return f"<c><v>{value!r}</v></c>"


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
