"""Exports the payloads of rejects into files, with an index that tells which is which.

Names of files are numbers and a suffix of a fixed few: nothing of the data reaches a path.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from typing import Any

from ...schemas.errors import RecipeError, SnapshardError
from ...schemas.visible import visible_json
from ...transforms import storage
from ...transforms.storage.local_files import leads_out
from ...transforms.storage.opened_source import OpenedSource, open_source
from .reject_queries import RejectFilter, RejectsFile

INDEX = "index.jsonl"

MAX_FETCHED_BYTES = 1 << 30
"""A longer payload is not fetched from the source: the index tells where it lies."""

_SUFFIXES = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"\x1f\x8b", "gz"),
    (b"PAR1", "parquet"),
)


@dataclasses.dataclass
class ExportReport:
    """What an export wrote.

    Attributes:
        num_rejects: Rejects in the index.
        num_files: Payloads written.
        num_fetched: How many of them were read from the source.
        num_missing: Payloads that are not there; the index says of each why.
        num_bytes: Of the payloads.
    """

    num_rejects: int = 0
    num_files: int = 0
    num_fetched: int = 0
    num_missing: int = 0
    num_bytes: int = 0


def export_payloads(
    rejects: RejectsFile, wanted: RejectFilter, folder: str, *, source: str | None = None
) -> ExportReport:
    """Writes each payload to a file of its own, and ``index.jsonl``, a line for each reject.

    What was too long to keep is read from the source and held against its sha256.

    Args:
        rejects: Where they lie.
        wanted: Which of them.
        folder: A local folder, new or empty.
        source: Where the source lies by now; None for where it lay when it was built.

    Raises:
        RecipeError: if the folder is not local, or holds something.
        DamagedSnapshotError: if the rejects are damaged.
        StorageError: if something cannot be read or written.
    """
    if not storage.is_local(folder):
        raise RecipeError(f"{storage.redact(folder)} is no local folder; payloads go to one.")
    path = storage.local_path(folder)
    if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise RecipeError(f"{path} is not empty. Name a new folder for the payloads.")
    fetcher = _Fetcher(source or rejects.source)
    report = ExportReport()
    with storage.failing_as_storage_error("write", path):
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, INDEX), "x", encoding="utf-8") as index:
            for number, row in enumerate(rejects.rows(wanted)):
                entry = _export(row, number, path, fetcher, report)
                index.write(visible_json(json.dumps(entry, ensure_ascii=False)) + "\n")
    return report


def _export(
    row: dict[str, Any], number: int, path: str, fetcher: _Fetcher, report: ExportReport
) -> dict[str, Any]:
    content: bytes | None = row.pop("payload")
    missing = None
    report.num_rejects += 1
    if content is None:
        content, missing = fetcher.fetch(row)
        report.num_fetched += content is not None
    name = None
    if content is None:
        report.num_missing += 1
    else:
        name = f"{number:06d}.{_suffix(content, row['payload_kind'])}"
        with open(os.path.join(path, name), "xb") as file:
            file.write(content)
        report.num_files += 1
        report.num_bytes += len(content)
    return {"file": name, **row, **({} if missing is None else {"missing": missing})}


class _Fetcher:
    """Reads from the source what was too long to keep."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._opened: OpenedSource | None = None

    def fetch(self, row: dict[str, Any]) -> tuple[bytes | None, str | None]:
        """The payload, or else why it is not there."""
        if row["payload_sha256"] is None:
            return None, "nothing of the record could be read"
        if row["payload_start"] is None:
            place = "" if row["position"] is None else f" at {row['position']}"
            return None, f"too long to keep; the record lies in {row['source']}{place}"
        if self._url is None:
            return None, "too long to keep, and it is not known where the source lies"
        if (row["payload_bytes"] or 0) > MAX_FETCHED_BYTES:
            return None, f"longer than {MAX_FETCHED_BYTES:,} bytes"
        if row["source"].startswith("/") or ".." in row["source"].split("/"):
            return None, "its name leads out of the source"
        try:
            if self._opened is None:
                self._opened = open_source(self._url, os.getcwd())
            if not _may_read(self._opened, row["source"]):
                return None, f"there is no such file in {self._opened.shown}"
            content = _read(self._opened, row)
        except (SnapshardError, OSError) as error:
            return None, f"the source cannot be read: {storage.redact(str(error))}"
        if content is None:
            return None, f"longer than {MAX_FETCHED_BYTES:,} bytes"
        if hashlib.sha256(content).hexdigest() != row["payload_sha256"]:
            return None, f"{row['source']} has changed since: its sha256 is another"
        return content, None


def _may_read(opened: OpenedSource, path: str) -> bool:
    """Whether a name is that of a file in the source: no link out of it, no pipe."""
    if not opened.local:
        return True
    full = opened.full_path(path)
    return os.path.isfile(full) and not leads_out(full, os.path.realpath(opened.root))


def _read(opened: OpenedSource, row: dict[str, Any]) -> bytes | None:
    """The bytes of a payload; None where they are more than may be."""
    path = row["source"]
    if row["payload_stop"] is not None:
        return opened.read(path, row["payload_start"], row["payload_stop"])
    parts, size = [], 0
    for part in opened.chunks(path, chunk_bytes=4 << 20):
        parts.append(part)
        size += len(part)
        if size > MAX_FETCHED_BYTES:
            return None
    return b"".join(parts)


def _suffix(content: bytes, kind: str | None) -> str:
    if kind == "values":
        return "json"
    for magic, suffix in _SUFFIXES:
        if content.startswith(magic):
            return suffix
    if content[:4] == b"RIFF":
        return {b"WAVE": "wav", b"WEBP": "webp"}.get(content[8:12], "bin")
    try:
        content.decode()
    except UnicodeDecodeError:
        return "bin"
    return "bin" if b"\0" in content else "txt"
