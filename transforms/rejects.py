"""Rejects: records that could not be used, kept with their reason, never lost."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..schemas.errors import Reject

MAX_PAYLOAD_BYTES = 64 << 10
"""A reject keeps what it was made of up to this length."""

_SCHEMA = pa.schema(
    [
        pa.field("id", pa.large_string(), nullable=False),
        pa.field("stage", pa.large_string(), nullable=False),
        pa.field("reason", pa.large_string(), nullable=False),
        pa.field("message", pa.large_string(), nullable=False),
        pa.field("source", pa.large_string(), nullable=False),
        pa.field("position", pa.int64()),
        pa.field("payload", pa.large_binary()),
    ]
)


@dataclasses.dataclass
class Dropped:
    """Records of a unit of work that come into no run, as they are found."""

    rejects: list[Reject] = dataclasses.field(default_factory=list)
    num_filtered: int = 0


def payload_of(content: bytes) -> bytes | None:
    """What a reject keeps of the content that it was made of: all, or nothing."""
    return content if len(content) <= MAX_PAYLOAD_BYTES else None


def printable(text: str) -> str:
    r"""Text that is valid UTF-8: bytes of a name that are not are written as ``\xNN``.

    >>> printable("caf\udce9.jpg")
    'caf\\xe9.jpg'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def rejects_to_bytes(rejects: Iterable[Reject]) -> bytes:
    """Rejects as a Parquet file, sorted by id: the same rejects give the same bytes.

    Columns: id, stage, reason, message, source (strings), position (int64), payload (bytes).
    """
    ordered = sorted(rejects, key=lambda reject: (printable(reject.record_id), reject.stage))
    rows = [
        {
            "id": printable(reject.record_id),
            "stage": reject.stage,
            "reason": reject.reason,
            "message": printable(reject.message),
            "source": printable(reject.source),
            "position": reject.position,
            "payload": reject.payload,
        }
        for reject in ordered
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), sink, compression="zstd")
    return sink.getvalue()


def rejects_from_bytes(content: bytes) -> list[Reject]:
    """Reads what :func:`rejects_to_bytes` wrote."""
    rows = pq.read_table(io.BytesIO(content)).to_pylist()
    return [Reject(record_id=row.pop("id"), **row) for row in rows]


def describe_rejects(rejects: Sequence[Reject]) -> str:
    """Counts per reason, most frequent first, with the first three records of each."""
    by_reason: dict[str, list[Reject]] = {}
    for reject in rejects:
        by_reason.setdefault(f"{reject.stage}: {reject.reason}", []).append(reject)
    lines = []
    for reason, found in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"  {len(found):,} × {reason}")
        lines.extend(f"      {printable(r.record_id)}: {printable(r.message)}" for r in found[:3])
        if len(found) > 3:
            lines.append(f"      … and {len(found) - 3:,} more")
    return "\n".join(lines)


def reject_rows(
    ids: Sequence[str],
    rows: npt.NDArray[np.intp],
    *,
    reason: str,
    message: str,
    numbered: bool,
) -> list[Reject]:
    """Rejects of some rows of a batch, all for one reason."""
    rejects = []
    for row in rows:
        path, _, position = ids[row].rpartition("#") if numbered else (ids[row], "", "")
        rejects.append(
            Reject(
                record_id=ids[row],
                stage="validate",
                reason=reason,
                message=message,
                source=path,
                position=int(position) if position else None,
            )
        )
    return rejects
