"""Rejects: lists, groups and exports those of a snapshot, or of a build that failed for them.

Rejects are read row by row, in bounded memory. The names of exported files are numbers with one of
a few fixed suffixes: nothing from the data reaches a path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.errors import DamagedSnapshotError, RecipeError, SnapshardError, StorageError
from ...schemas.naming import BUILD, MANIFEST, REJECTS, WORKSPACE, Workspace, join
from ...schemas.reject_budgets import STAGES
from ...schemas.visible import visible_json
from ...transforms import storage
from ...transforms.rejects import SCHEMA, RejectTally, iterate_rows, on_a_line, tally_rows
from ...transforms.storage.opened_source import OpenedSource, leads_out, open_source
from ..snapshot import Snapshot, names_inside
from ..workspace import find_workspace

GROUPINGS = ("reason", "stage", "exception", "source")
INDEX = "index.jsonl"
MAX_FETCHED_BYTES = 1 << 30
"""A longer payload is not fetched from the source: the index only says where it is."""
_SUFFIXES = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"\x1f\x8b", "gz"),
    (b"PAR1", "parquet"),
)
_LISTED_COLUMNS = (
    "id",
    "stage",
    "reason",
    "exception",
    "message",
    "source",
    "position",
    "payload_kind",
    "payload_bytes",
    "payload_sha256",
    "payload_start",
    "payload_stop",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RejectFilter:
    """Which rejects to read.

    Attributes:
        stage: Only those of this stage; None for all.
        reason: Only those with this reason; None for all.
    """

    stage: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        """Checks the stage.

        Raises:
            RecipeError: if there is no such stage.
        """
        if self.stage is not None and self.stage not in STAGES:
            raise RecipeError(f"Invalid stage {self.stage!r}: expected one of {', '.join(STAGES)}.")

    def holds(self, row: dict[str, Any]) -> bool:
        """Whether a reject passes the filter."""
        return self.stage in (None, row["stage"]) and self.reason in (None, row["reason"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class RejectsFile:
    """A ``rejects.parquet``, of a snapshot or of a build that failed.

    Attributes:
        url: Its location.
        refused: Whether its build failed because of the rejects.
        source: Location of the source, without credentials, or the locations of several by name;
            None if unknown.
        sha256: Hash of the file in the manifest of its snapshot; empty if there is none.
    """

    url: str
    refused: bool
    source: str | Mapping[str, str] | None
    sha256: str = ""

    @classmethod
    def find(cls, path: str) -> RejectsFile:
        """The rejects at a path.

        Args:
            path: A snapshot's folder; a ``rejects.parquet``; or the folder of one name, or an
                output root with one name: then those of the last build, published or failed.

        Raises:
            RecipeError: if there are none at this path.
            DamagedSnapshotError: if the snapshot is damaged.
        """
        if not path:
            raise RecipeError("The path of the rejects is empty.")
        found = storage.absolute(path)
        if found.endswith(".parquet"):
            if not storage.exists(found):
                raise RecipeError(f"{storage.redact(found)} does not exist.")
            folder, _, name = found.rpartition("/")
            refused = folder.rpartition("/")[2] == WORKSPACE and name == REJECTS
            return cls(url=found, refused=refused, source=_source_near(folder))
        for workspace in _workspaces(found):
            if storage.exists(workspace.refused_rejects):
                source = _source_near(workspace.root)
                return cls(url=workspace.refused_rejects, refused=True, source=source)
        snapshot = Snapshot.open(found)
        entry = snapshot.manifest.files.get(REJECTS)
        return cls(
            url=join(snapshot.path, REJECTS),
            refused=False,
            source=_source_near(snapshot.path),
            sha256="" if entry is None else entry.sha256,
        )

    def rows(
        self, wanted: RejectFilter, columns: list[str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """The rejects that pass a filter, in the order of the file.

        Raises:
            DamagedSnapshotError: if the file is damaged.
            StorageError: if it cannot be read.
        """
        if columns is not None:
            columns = list(dict.fromkeys([*columns, "stage", "reason"]))
        with self._opened() as file:
            for row in iterate_rows(file, columns):
                if wanted.holds(row):
                    yield row

    def tally(self, wanted: RejectFilter) -> RejectTally:
        """Counts per stage and reason, with the first three rejects of each."""
        return tally_rows(self.rows(wanted, ["id", "message"]))

    def count_by(self, column: str, wanted: RejectFilter) -> dict[str, int]:
        """Number of rejects of each value of a column, most frequent first."""
        counts = Counter(str(row[column]) for row in self.rows(wanted, [column]))
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        lost = storage.losses_as_damage() if self.sha256 else contextlib.nullcontext()
        with lost, storage.failing_as_storage_error("read", self.url):
            filesystem, path = storage.filesystem(self.url)
            content = filesystem.open(path, "rb")
        with content:
            if self.sha256 and storage.is_local(self.url):
                with storage.failing_as_storage_error("read", self.url):
                    sha256 = hashlib.file_digest(content, "sha256").hexdigest()
                    content.seek(0)
                if sha256 != self.sha256:
                    raise self._damaged("its sha256 is not the one in the manifest")
            try:
                with pq.ParquetFile(content, page_checksum_verification=True) as file:
                    self._check(file)
                    # Errors while rows are read concern the file, too.
                    yield file
            except (pa.ArrowException, ValueError) as error:
                raise self._damaged(str(error)) from None
            except OSError as error:
                # Arrow raises this without an errno for content that it cannot parse.
                if error.errno is None:
                    raise self._damaged(str(error)) from None
                with storage.failing_as_storage_error("read", self.url):
                    raise

    def _check(self, file: Any) -> None:
        if file.schema_arrow.names != SCHEMA.names:
            raise self._damaged(
                f"its columns are {', '.join(file.schema_arrow.names)}, expected "
                f"{', '.join(SCHEMA.names)}"
            )

    def _damaged(self, found: str) -> DamagedSnapshotError:
        words = found.strip().partition("\n")[0][:200]
        return DamagedSnapshotError(
            f"{storage.redact(self.url)} is not a valid file of rejects ({words}). If it is in "
            "a snapshot, run `snapshard verify`; build again to replace it."
        )


def _workspaces(path: str) -> Iterator[Workspace]:
    """The workspace of the name at a path; none if the path is a snapshot's folder."""
    names = names_inside(path)
    if MANIFEST in names:
        return
    if path.rstrip("/").rpartition("/")[2] == WORKSPACE:
        yield Workspace(path)
    elif WORKSPACE in names:
        yield find_workspace(path)
    else:
        inside = [join(path, name) for name in names]
        below = [folder for folder in inside if WORKSPACE in names_inside(folder)]
        if len(below) == 1:
            yield find_workspace(below[0])


def _source_near(folder: str) -> str | Mapping[str, str] | None:
    """The location of the source, from the files next to the rejects."""
    for name, keys in ((BUILD, ("input", "source")), ("refused.json", ("source",))):
        try:
            value: Any = json.loads(storage.read_bytes(join(folder, name)))
            for key in keys:
                value = value[key]
        except (StorageError, ValueError, KeyError, TypeError, RecursionError):
            continue
        return value if isinstance(value, str | dict) else None
    return None


def group_lines(
    rejects: RejectsFile, wanted: RejectFilter, *, by: str | None, as_json: bool
) -> Iterator[str]:
    """Rejects by stage and reason with the first three of each, or their counts by one column.

    Args:
        rejects: The file of rejects.
        wanted: Which rejects of it.
        by: One of ``GROUPINGS``; None for stage and reason.
        as_json: Yields one JSON object.
    """
    _check_grouping(by)
    facts: dict[str, Any] = {
        "path": storage.redact(rejects.url),
        "refused": rejects.refused,
        "source": rejects.source,
    }
    if by is None or by == "reason":
        tally = rejects.tally(wanted)
        groups: list[dict[str, Any]] = [
            {
                "stage": stage,
                "reason": reason,
                "num_rejects": group.num_rejects,
                "first": [{"id": one, "message": message} for one, message in group.first],
            }
            for stage, reason, group in tally.groups()
        ]
        text = tally.describe(max_groups=1000)
    else:
        counts = rejects.count_by(by, wanted)
        groups = [{by: name, "num_rejects": number} for name, number in counts.items()]
        text = "\n".join(f"  {number:,} × {on_a_line(name)}" for name, number in counts.items())
    number = sum(group["num_rejects"] for group in groups)
    if as_json:
        yield json.dumps({**facts, "num_rejects": number, "groups": groups})
        return
    of = f" with the reason {wanted.reason!r}" if wanted.reason is not None else ""
    yield f"{number:,} reject{'' if number == 1 else 's'}{of} in {facts['path']}"
    if of and not number:
        there = rejects.count_by("reason", dataclasses.replace(wanted, reason=None))
        text = f"other reasons: {', '.join(there)}" if there else ""
    if rejects.refused:
        yield "of the last build, which failed because of them and published nothing"
    if text:
        yield text


def _check_grouping(by: str | None) -> None:
    """Checks a grouping.

    Raises:
        RecipeError: if it is invalid.
    """
    if by is not None and by not in GROUPINGS:
        raise RecipeError(f"Invalid --by {by}: expected one of {', '.join(GROUPINGS)}.")


def list_lines(
    rejects: RejectsFile, wanted: RejectFilter, *, first: int, number: int, as_json: bool
) -> Iterator[str]:
    """Rejects one by one, in the order of their files and positions.

    Args:
        rejects: The file of rejects.
        wanted: Which rejects of it.
        first: How many to skip.
        number: Maximum number of rejects; 0 for all.
        as_json: Yields each as a JSON object.
    """
    rows = islice(rejects.rows(wanted, list(_LISTED_COLUMNS)), first, None)
    at = first
    for row in rows if number == 0 else islice(rows, number):
        at += 1
        if as_json:
            yield json.dumps(row)
        else:
            yield on_a_line(f"{row['id']}  {row['stage']}: {row['reason']} ({row['exception']})")
            yield f"    {on_a_line(row['message'])}"
            yield f"    {on_a_line(_payload_text(row))}"
    if not as_json and number and at == first + number and next(rows, None) is not None:
        yield f"… and more: --offset {at}"


def _payload_text(row: dict[str, Any]) -> str:
    kind, size, start = row["payload_kind"], row["payload_bytes"], row["payload_start"]
    if kind is None:
        return "no payload: nothing of the record could be read"
    text = "the file" if size is None else f"{size:,} bytes"
    if kind == "values":
        text = f"its values, {text} of JSON"
    if start is not None:
        stop = "its end" if row["payload_stop"] is None else f"{row['payload_stop']:,}"
        text += f", in {row['source']} from byte {start:,} to {stop}"
    return f"payload: {text}, sha256 {row['payload_sha256']}"


def export_lines(
    rejects: RejectsFile,
    wanted: RejectFilter,
    folder: str,
    *,
    source: str | None,
    as_json: bool,
) -> Iterator[str]:
    """Exports payloads and yields a summary."""
    report = export_payloads(rejects, wanted, folder, source=source)
    if as_json:
        yield json.dumps({"folder": folder, **vars(report)})
        return
    fetched = f", {report.num_fetched:,} of them read from the source" * bool(report.num_fetched)
    yield (
        f"exported {report.num_files:,} payloads of {report.num_rejects:,} rejects to {folder}"
        f"{fetched}; {INDEX} maps files to rejects"
    )
    if report.num_missing:
        yield f"{report.num_missing:,} have no payload to export; {INDEX} gives the reasons"


@dataclasses.dataclass
class ExportReport:
    """What an export wrote.

    Attributes:
        num_rejects: Rejects in the index.
        num_files: Payloads written.
        num_fetched: How many of them were read from the source.
        num_missing: Missing payloads; the index gives the reason of each.
        num_bytes: Total size of the payloads written.
    """

    num_rejects: int = 0
    num_files: int = 0
    num_fetched: int = 0
    num_missing: int = 0
    num_bytes: int = 0


def export_payloads(
    rejects: RejectsFile, wanted: RejectFilter, folder: str, *, source: str | None = None
) -> ExportReport:
    """Writes each payload to a separate file, and ``index.jsonl`` with one line per reject.

    Payloads that were too long to keep are read from the source, and their sha256 is checked.

    Args:
        rejects: The file of rejects.
        wanted: Which rejects of it.
        folder: A local folder, new or empty.
        source: Current location of the source; None for its location when it was built. Of several
            sources: a folder that holds each in a folder of its name.

    Raises:
        RecipeError: if the folder is not local, or not empty.
        DamagedSnapshotError: if the rejects are damaged.
        StorageError: if something cannot be read or written.
    """
    if not storage.is_local(folder):
        raise RecipeError(
            f"{storage.redact(folder)} is not local. Export payloads to a local folder."
        )
    path = storage.local_path(folder)
    if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise RecipeError(f"{path} is not empty. Name a new folder for the payloads.")
    fetcher = _Fetcher(source or rejects.source)
    report = ExportReport()
    with storage.failing_as_storage_error("write", path):
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, INDEX), "x", encoding="utf-8") as index:
            for number, row in enumerate(rejects.rows(wanted)):
                entry = _export_one(row, number, path, fetcher, report)
                index.write(visible_json(json.dumps(entry, ensure_ascii=False)) + "\n")
    return report


def _export_one(
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
    """Reads payloads from the source that were too long to keep."""

    def __init__(self, source: str | Mapping[str, str] | None) -> None:
        self._source = source
        self._opened: dict[str, OpenedSource] = {}

    def fetch(self, row: dict[str, Any]) -> tuple[bytes | None, str | None]:
        """The payload, or the reason why it is missing."""
        if row["payload_sha256"] is None:
            return None, "nothing of the record could be read"
        if row["payload_start"] is None:
            place = "" if row["position"] is None else f" at {row['position']}"
            return None, f"too long to keep; the record is in {row['source']}{place}"
        url, path = self._place(row["source"])
        if url is None:
            return None, "too long to keep, and the location of the source is unknown"
        if (row["payload_bytes"] or 0) > MAX_FETCHED_BYTES:
            return None, f"longer than {MAX_FETCHED_BYTES:,} bytes"
        if row["source"].startswith("/") or ".." in row["source"].split("/"):
            return None, "its name leads out of the source"
        try:
            opened = self._opened.get(url)
            if opened is None:
                opened = self._opened[url] = open_source(url, os.getcwd())
            if not _may_read(opened, path):
                return None, f"{opened.shown} has no such file"
            content = _read_payload(opened, path, row)
        except (SnapshardError, OSError) as error:
            return None, f"the source cannot be read: {storage.redact(str(error))}"
        if content is None:
            return None, f"longer than {MAX_FETCHED_BYTES:,} bytes"
        if hashlib.sha256(content).hexdigest() != row["payload_sha256"]:
            return None, f"{row['source']} has changed since: its sha256 differs"
        return content, None

    def _place(self, path: str) -> tuple[str | None, str]:
        """The URL of the source that a file belongs to, and the file's path there."""
        if not isinstance(self._source, Mapping):
            return self._source, path
        name, _, own = path.partition("/")
        url = self._source.get(name)
        return url if isinstance(url, str) else None, own


def _may_read(opened: OpenedSource, path: str) -> bool:
    """Whether a name is that of a file in the source, not of a pipe or a link out of it."""
    if not opened.local:
        return True
    full = opened.full_path(path)
    return os.path.isfile(full) and not leads_out(full, os.path.realpath(opened.root))


def _read_payload(opened: OpenedSource, path: str, row: dict[str, Any]) -> bytes | None:
    """The bytes of a payload; None if they exceed the limit."""
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
