"""Rejects: records that could not be used, kept with their reason, never lost.

A reject's payload is the bytes of its record in the source, or its values as JSON. Up to 64 KiB are
kept. For longer bytes the reject has their length, their sha256 and, if known, their range in the
source file. In values, cells that are too long are cut: each is replaced by its length and the
sha256 of its values, end to end.

Rejects are held, written and read in bounded memory, whatever their number: those of a unit of work
are spilled in sorted parts and merged, and files are read in row groups of about 4 MiB.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import heapq
import io
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..schemas.errors import RECORD_ERROR, PayloadPlace, Reject, without_addresses
from ..schemas.visible import visible
from .in_parts import in_batches
from .storage.redaction import hide_known, known_secrets

# Reasons: one for the same mistake, whatever the source.
MISSING_VALUE, MISSING_ITEM, WRONG_TYPE = "missing value", "missing item", "wrong type"
OUT_OF_RANGE, UNKNOWN_CLASS, NOT_UTF8 = "out of range", "unknown class", "not UTF-8"
WRONG_LENGTH, RAGGED = "wrong length", "ragged list"
INEXACT = "inexact integer"
"""An integer that a float dtype cannot represent."""

MAX_PAYLOAD_BYTES = 64 << 10
"""Maximum length of a payload that a reject keeps."""

_MAX_CELL_BYTES = 63 << 10
_MAX_BASE64_BYTES = 47 << 10
_MAX_DEPTH = 32

SCHEMA = pa.schema(
    [
        pa.field("id", pa.large_string(), nullable=False),
        pa.field("stage", pa.large_string(), nullable=False),
        pa.field("reason", pa.large_string(), nullable=False),
        pa.field("exception", pa.large_string(), nullable=False),
        pa.field("message", pa.large_string(), nullable=False),
        pa.field("source", pa.large_string(), nullable=False),
        pa.field("position", pa.int64()),
        pa.field("payload", pa.large_binary()),
        pa.field("payload_kind", pa.large_string()),
        pa.field("payload_bytes", pa.int64()),
        pa.field("payload_sha256", pa.large_string()),
        pa.field("payload_start", pa.int64()),
        pa.field("payload_stop", pa.int64()),
    ]
)
"""The columns of ``rejects.parquet``; docs/rejects.md describes them."""

GROUP_BYTES = 4 << 20
"""Approximate size of a row group."""

FAILURE_MARK = "\x1e"
"""Encloses a reject's message from Python inside a TensorFlow error."""

_PART_GROUP_BYTES = 1 << 20
_ROW_BYTES = 700
_BATCH_ROWS = 32


def reject_at(
    path: str,
    position: int | None,
    *,
    stage: str,
    reason: str,
    message: str,
    exception: str = RECORD_ERROR,
) -> Reject:
    """The reject of the record at a position of a source file; None if it is the whole file."""
    return Reject(
        record_id=path if position is None else f"{path}#{position}",
        stage=stage,
        reason=reason,
        message=message,
        source=path,
        position=position,
        exception=exception,
    )


def with_bytes(reject: Reject, content: bytes, *, start: int | None = None) -> Reject:
    """The reject with the bytes of its record in the source.

    Args:
        reject: A reject without a payload.
        content: The record's bytes.
        start: Where they begin in the source file; None if unknown, or not in one place.
    """
    if len(content) <= MAX_PAYLOAD_BYTES:
        return dataclasses.replace(reject, payload=content)
    place = PayloadPlace(
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        start=start,
        stop=None if start is None else start + len(content),
    )
    return dataclasses.replace(reject, place=place)


def with_values(reject: Reject, values: Mapping[str, Any]) -> Reject:
    """The reject with the values of its record, as JSON."""
    return _with_json(reject, {name: _plain(value, 0) for name, value in values.items()})


def with_row(reject: Reject, columns: pa.RecordBatch, row: int) -> Reject:
    """The reject with the values of one row of Arrow columns, as JSON."""
    cells = {
        name: _cell(column.slice(row, 1))
        for name, column in zip(columns.schema.names, columns.columns, strict=True)
    }
    return _with_json(reject, cells)


def _with_json(reject: Reject, cells: dict[str, Any]) -> Reject:
    texts = {name: json.dumps(value, allow_nan=False) for name, value in cells.items()}
    total = sum(len(json.dumps(name)) + len(text) + 4 for name, text in texts.items())
    for name in sorted(texts, key=lambda key: (-len(texts[key]), key)):
        if total <= MAX_PAYLOAD_BYTES or len(texts[name]) <= 200:
            break
        total -= len(texts[name])
        texts[name] = json.dumps({**_cut(texts[name].encode()), "of": "json"})
        total += len(texts[name])
    inside = ", ".join(f"{json.dumps(name)}: {text}" for name, text in texts.items())
    content = f"{{{inside}}}".encode()
    kind = "values"
    if len(content) <= MAX_PAYLOAD_BYTES:
        return dataclasses.replace(reject, payload=content, payload_kind=kind)
    place = PayloadPlace(sha256=hashlib.sha256(content).hexdigest(), num_bytes=len(content))
    return dataclasses.replace(reject, place=place, payload_kind=kind)


def _cut(content: bytes) -> dict[str, Any]:
    return {"cut": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _cell(array: pa.Array) -> Any:
    """The single value of an array, or its length and hash if it is long."""
    if array.nbytes <= _MAX_CELL_BYTES:
        return _scalar(array[0])
    digest, num_bytes = hashlib.sha256(), 0
    for piece in _leaves(array):
        digest.update(piece)
        num_bytes += len(piece)
    if num_bytes <= _MAX_CELL_BYTES:
        return _scalar(array[0])
    return {"cut": num_bytes, "sha256": digest.hexdigest()}


def _leaves(array: pa.Array) -> list[bytes]:
    """The values in an array's lists and structs, end to end."""
    if isinstance(array, pa.StructArray):
        return [piece for field in array.flatten() for piece in _leaves(field)]
    if hasattr(array, "flatten") and pa.types.is_nested(array.type):
        return _leaves(array.flatten())
    kind = array.type
    if pa.types.is_primitive(kind) and not pa.types.is_boolean(kind) and not array.null_count:
        return [np.ascontiguousarray(array.to_numpy(zero_copy_only=False)).tobytes()]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        array = array.cast(pa.large_binary())
    values = array.to_pylist()
    return [
        value if isinstance(value, bytes) else str(value).encode(errors="replace")
        for value in values
    ]


def _scalar(scalar: Any) -> Any:
    """An Arrow value as plain JSON, even if Python cannot represent it."""
    if not scalar.is_valid:
        return None
    try:
        return _plain(scalar.as_py(), 0)
    except (ValueError, OverflowError):
        # Text that is not UTF-8, or a time beyond Python's range; perhaps inside a list.
        pass
    if isinstance(scalar, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return [_scalar(item) for item in scalar.values]
    if isinstance(scalar, pa.StructScalar):
        return {name: _scalar(item) for name, item in scalar.items()}
    if hasattr(scalar, "as_buffer"):
        return _plain_bytes(scalar.as_buffer().to_pybytes())
    number = getattr(scalar, "value", None)
    return number if isinstance(number, int) else {"arrow": str(scalar.type)}


def _plain(value: Any, depth: int) -> Any:
    """A value as plain JSON: bytes as text if they are UTF-8, else base64."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return (
            value.encode(errors="replace").decode()
            if len(value) <= _MAX_CELL_BYTES
            else _cut(value.encode(errors="replace"))
        )
    if isinstance(value, bytes | bytearray | memoryview):
        return _plain_bytes(bytes(value))
    if depth >= _MAX_DEPTH:
        return {"python": type(value).__name__}
    if isinstance(value, np.ndarray | np.generic):
        if value.nbytes > _MAX_CELL_BYTES and value.dtype != object:
            return _cut(np.ascontiguousarray(value).tobytes())
        return _plain(value.tolist(), depth + 1)
    if isinstance(value, Mapping):
        names = (key if isinstance(key, str) else _shown(key) for key in value)
        return {
            name: _plain(item, depth + 1) for name, item in zip(names, value.values(), strict=True)
        }
    if isinstance(value, set | frozenset):
        return sorted((_plain(item, depth + 1) for item in value), key=json.dumps)
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    return {"python": type(value).__name__, "text": _shown(value)}


def _plain_bytes(content: bytes) -> Any:
    if len(content) > _MAX_CELL_BYTES:
        return _cut(content)
    try:
        return content.decode()
    except UnicodeDecodeError:
        if len(content) > _MAX_BASE64_BYTES:
            return _cut(content)
        return {"base64": base64.b64encode(content).decode()}


def _shown(value: object) -> str:
    """The text of a user's object."""
    try:
        return without_addresses(str(value))[:1000].encode(errors="replace").decode()
    except Exception as error:
        # User code may raise anything.
        return f"its text cannot be shown: {type(error).__name__}"


@dataclasses.dataclass
class Dropped:
    """Records of a unit of work that enter no run, collected as they are found."""

    rejects: list[Reject] = dataclasses.field(default_factory=list)
    """Rejects held in memory: all of them if :attr:`folder` is None."""
    num_filtered: int = 0
    num_excluded: int = 0
    """Records that the recipe excludes."""
    folder: str | None = None
    """Folder for rejects beyond what memory should hold."""
    max_held_bytes: int = 16 << 20
    """Bytes of rejects that are held in memory before they are spilled."""
    num_rejects: Counter[str] = dataclasses.field(default_factory=Counter)
    """Number of all records that are lost, by stage."""
    _parts: list[str] = dataclasses.field(default_factory=list)
    _held_bytes: int = 0

    def add(self, rejects: Iterable[Reject]) -> None:
        """Adds rejects."""
        for reject in rejects:
            self.rejects.append(reject)
            self.num_rejects[reject.stage] += reject.num_records
            self._held_bytes += _num_bytes(reject)
        if self.folder is not None and self._held_bytes > self.max_held_bytes:
            path = os.path.join(self.folder, f"rejects-{len(self._parts)}.parquet")
            # Many parts are merged at once, with a row group of each in memory.
            write_rejects(sorted(self.rejects, key=_order), path, group_bytes=_PART_GROUP_BYTES)
            self._parts.append(path)
            self.rejects.clear()
            self._held_bytes = 0

    def write(self, path: str) -> None:
        """Writes all rejects to a local file, sorted by source file and position."""
        parts = [iterate_rejects(part) for part in self._parts]
        write_rejects(heapq.merge(*parts, sorted(self.rejects, key=_order), key=_order), path)


def _num_bytes(reject: Reject) -> int:
    return _ROW_BYTES + len(reject.message) + len(reject.payload or b"")


def _order(reject: Reject) -> tuple[str, int, str, str, str]:
    position = -1 if reject.position is None else reject.position
    source, record_id = printable(reject.source), printable(reject.record_id)
    return source, position, record_id, reject.stage, reject.reason


def printable(text: str) -> str:
    r"""Text as valid UTF-8: other bytes of a name are written as ``\xNN``.

    >>> printable("caf\udce9.jpg")
    'caf\\xe9.jpg'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def write_rejects(
    rejects: Iterable[Reject], path: str | io.BytesIO, *, group_bytes: int = GROUP_BYTES
) -> None:
    """Writes rejects as a Parquet file in this order; the same rejects give the same bytes."""
    with RejectWriter(path, group_bytes=group_bytes) as writer:
        for group in in_batches(rejects, _num_bytes, max_size=group_bytes):
            writer.write(_table(group))


class RejectWriter:
    """Writes tables of rejects to a local Parquet file, in row groups of bounded size."""

    def __init__(self, path: str | io.BytesIO, *, group_bytes: int = GROUP_BYTES) -> None:
        """Opens the file; ``group_bytes`` is the approximate size of a row group."""
        self._group_bytes = group_bytes
        with contextlib.ExitStack() as opened:
            sink = opened.enter_context(pa.OSFile(path, "wb")) if isinstance(path, str) else path
            self._writer = opened.enter_context(
                pq.ParquetWriter(sink, SCHEMA, compression="zstd", write_page_checksum=True)
            )
            self._opened = opened.pop_all()
        self._held: list[pa.Table] = []
        self._num_bytes = 0

    def __enter__(self) -> RejectWriter:
        """The file is closed on exit."""
        return self

    def __exit__(self, *_: object) -> None:
        """Writes what is held, and the footer; closes the file also where a disk is full."""
        with self._opened:
            self._flush()

    def write(self, table: pa.Table) -> None:
        """Adds rows; only the rows determine where row groups end."""
        self._held.append(table)
        self._num_bytes += table.nbytes
        if self._num_bytes >= self._group_bytes:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.concat_tables(self._held).combine_chunks())
        self._held, self._num_bytes = [], 0


def rejects_to_bytes(rejects: Iterable[Reject]) -> bytes:
    """A few rejects as the content of a Parquet file, sorted by source file and position."""
    sink = io.BytesIO()
    write_rejects(sorted(rejects, key=_order), sink)
    return sink.getvalue()


def _table(rejects: Sequence[Reject]) -> pa.Table:
    known = known_secrets()
    return pa.Table.from_pylist([_row(reject, known) for reject in rejects], schema=SCHEMA)


def _row(reject: Reject, known: Sequence[str]) -> dict[str, Any]:
    payload, place = reject.payload, reject.place
    if payload is not None:
        place = PayloadPlace(sha256=hashlib.sha256(payload).hexdigest(), num_bytes=len(payload))
    return {
        "id": printable(reject.record_id),
        "stage": reject.stage,
        "reason": printable(reject.reason),
        "exception": printable(reject.exception),
        "message": printable(hide_known(reject.message, known)),
        "source": printable(reject.source),
        "position": reject.position,
        "payload": payload,
        "payload_kind": None if place is None else reject.payload_kind,
        "payload_bytes": None if place is None else place.num_bytes,
        "payload_sha256": None if place is None else place.sha256,
        "payload_start": None if place is None else place.start,
        "payload_stop": None if place is None else place.stop,
    }


def iterate_rows(file: Any, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a file of rejects, with a bounded number in memory.

    Args:
        file: A local path, a file object, or a ``pq.ParquetFile``.
        columns: The columns to read; None for all.

    Raises:
        pa.ArrowException: if the file is damaged.
        OSError: if it cannot be read.
    """
    opened = file
    if not isinstance(file, pq.ParquetFile):
        opened = pq.ParquetFile(file, page_checksum_verification=True)
    for group in range(opened.num_row_groups):
        # Not by batches, which would span groups.
        table = opened.read_row_group(group, columns, use_threads=False)
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            yield from batch.to_pylist()


def iterate_rejects(file: Any) -> Iterator[Reject]:
    """The rejects of a file, read by :func:`iterate_rows`."""
    for row in iterate_rows(file):
        kept = row["payload"] is not None
        place = None
        if row["payload_sha256"] is not None and not kept:
            place = PayloadPlace(
                sha256=row["payload_sha256"],
                num_bytes=row["payload_bytes"],
                start=row["payload_start"],
                stop=row["payload_stop"],
            )
        yield Reject(
            record_id=row["id"],
            stage=row["stage"],
            reason=row["reason"],
            exception=row["exception"],
            message=row["message"],
            source=row["source"],
            position=row["position"],
            payload=row["payload"],
            payload_kind=row["payload_kind"] or "bytes",
            place=place,
        )


@dataclasses.dataclass
class RejectGroup:
    """The rejects of one stage and reason: how many, and the first three."""

    num_rejects: int = 0
    first: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """(record id, message)."""


class RejectTally:
    """Counts rejects by stage and reason."""

    def __init__(self) -> None:
        """Starts with no rejects."""
        self._groups: dict[tuple[str, str], RejectGroup] = {}

    def add(self, *, stage: str, reason: str, record_id: str, message: str) -> None:
        """Counts one reject."""
        group = self._groups.setdefault((stage, reason), RejectGroup())
        group.num_rejects += 1
        if len(group.first) < 3:
            group.first.append((record_id, message))

    def groups(self) -> list[tuple[str, str, RejectGroup]]:
        """(stage, reason, group), most frequent first."""
        found = [(stage, reason, group) for (stage, reason), group in self._groups.items()]
        return sorted(found, key=lambda item: (-item[2].num_rejects, item[0], item[1]))

    def describe(self, *, max_groups: int = 20) -> str:
        """Counts per stage and reason, most frequent first, with the first three of each."""
        lines = []
        groups = self.groups()
        for stage, reason, group in groups[:max_groups]:
            lines.append(f"  {group.num_rejects:,} × {stage}: {on_a_line(reason)}")
            lines += [f"      {on_a_line(f'{name}: {message}')}" for name, message in group.first]
            if group.num_rejects > len(group.first):
                lines.append(f"      … and {group.num_rejects - len(group.first):,} more")
        if len(groups) > max_groups:
            lines.append(f"  … and {len(groups) - max_groups:,} more reasons")
        return "\n".join(lines)


def on_a_line(text: str) -> str:
    """Text on one line: line breaks, as in a file's name, cannot fake lines of ours."""
    return visible(text)


def tally(rejects: Iterable[Reject]) -> RejectTally:
    """Counts rejects."""
    counted = RejectTally()
    for reject in rejects:
        counted.add(
            stage=reject.stage,
            reason=reject.reason,
            record_id=printable(reject.record_id),
            message=printable(reject.message),
        )
    return counted


def tally_file(file: Any) -> RejectTally:
    """Counts the rejects of a file, read by :func:`iterate_rows` without their payloads."""
    return tally_rows(iterate_rows(file, ["id", "stage", "reason", "message"]))


def tally_rows(rows: Iterable[Mapping[str, Any]]) -> RejectTally:
    """Counts rejects given as rows of a file."""
    counted = RejectTally()
    for row in rows:
        counted.add(
            stage=row["stage"], reason=row["reason"], record_id=row["id"], message=row["message"]
        )
    return counted


def describe_rejects(rejects: Iterable[Reject]) -> str:
    """Counts per reason, most frequent first, with the first three records of each."""
    return tally(rejects).describe()


def reject_rows(
    ids: Sequence[str],
    rows: npt.NDArray[np.intp],
    *,
    reason: str,
    message: str,
    numbered: bool,
    stage: str = "validate",
    columns: pa.RecordBatch | None = None,
) -> list[Reject]:
    """Rejects of some rows of a batch, all for one reason.

    Args:
        ids: The ids of all rows.
        rows: Indices of the rejected rows.
        reason: The class of failure to group by.
        message: What was expected and found.
        numbered: Whether ids are ``path#position``.
        stage: Where they failed.
        columns: The values of the rows, to keep; if None, the caller adds them.
    """
    rejects = []
    for row in rows:
        path, _, position = ids[row].rpartition("#") if numbered else (ids[row], "", "")
        reject = Reject(
            record_id=ids[row],
            stage=stage,
            reason=reason,
            message=message,
            source=path,
            position=int(position) if position else None,
        )
        rejects.append(reject if columns is None else with_row(reject, columns, int(row)))
    return rejects
