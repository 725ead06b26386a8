"""Looks into rejects: those of a snapshot, or of the last build where it was refused for them.

Listed, grouped and exported row by row, in bounded memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.errors import DamagedSnapshotError, RecipeError, StorageError
from ...schemas.naming import BUILD, MANIFEST, REJECTS, WORKSPACE, Workspace, join
from ...schemas.reject_budgets import STAGES
from ...transforms import storage
from ...transforms.rejects import SCHEMA, RejectTally, iterate_rows, tally_rows
from ..snapshot import Snapshot
from ..workspace import find_workspace

GROUPINGS = ("reason", "stage", "exception", "source")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RejectFilter:
    """Which rejects to look at.

    Attributes:
        stage: Those of one stage; None for all.
        reason: Those of one reason; None for all.
    """

    stage: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        """Checks the stage.

        Raises:
            RecipeError: if there is none of this name.
        """
        if self.stage is not None and self.stage not in STAGES:
            raise RecipeError(
                f"There is no stage {self.stage!r}; rejects come from {', '.join(STAGES)}."
            )

    def holds(self, row: dict[str, Any]) -> bool:
        """Whether a reject is one of them."""
        return self.stage in (None, row["stage"]) and self.reason in (None, row["reason"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class RejectsFile:
    """A ``rejects.parquet``, of a snapshot or of a refused build.

    Attributes:
        url: Where it lies.
        refused: Whether it is that of a build that was refused.
        source: Where the records came from, without credentials; None where that is not known.
        sha256: Of the file, as its snapshot's manifest says; empty where none does.
    """

    url: str
    refused: bool
    source: str | None
    sha256: str = ""

    @classmethod
    def find(cls, path: str) -> RejectsFile:
        """The rejects that a path means.

        Args:
            path: A snapshot's folder; a ``rejects.parquet``; the folder of one name, or an output
                root that holds one name: then the rejects of the last build, published or refused.

        Raises:
            RecipeError: if there are none at this place.
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
        """The rejects that a filter holds, in the file's order.

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
        """Counts per stage and reason, with the first three of each."""
        return tally_rows(self.rows(wanted, ["id", "message"]))

    def count_by(self, column: str, wanted: RejectFilter) -> dict[str, int]:
        """How many rejects there are of each value of a column, most frequent first."""
        counts = Counter(str(row[column]) for row in self.rows(wanted, [column]))
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        with storage.failing_as_storage_error("read", self.url):
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
                    # An error that comes while rows are read is one of the file, too.
                    yield file
            except (pa.ArrowException, ValueError) as error:
                raise self._damaged(str(error)) from None
            except OSError as error:
                # Arrow says so of what it cannot make out, without a number of the system's.
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
            f"{storage.redact(self.url)} is no file of rejects ({words}). If it lies in a "
            "snapshot, run `snapshard verify`; build again to replace it."
        )


def _workspaces(path: str) -> Iterator[Workspace]:
    """The workspace of the name that a path means; none where that is a snapshot's folder."""
    names = _names(path)
    if MANIFEST in names:
        return
    if path.rstrip("/").rpartition("/")[2] == WORKSPACE:
        yield Workspace(path)
    elif WORKSPACE in names:
        yield find_workspace(path)
    else:
        inside = [join(path, name) for name in names]
        below = [folder for folder in inside if WORKSPACE in _names(folder)]
        if len(below) == 1:
            yield find_workspace(below[0])


def _names(path: str) -> list[str]:
    try:
        return storage.list_names(path)
    except StorageError:
        return []


def _source_near(folder: str) -> str | None:
    """Where the source lies, as what stands beside the rejects says."""
    for name, keys in ((BUILD, ("input", "source")), ("refused.json", ("source",))):
        try:
            told: Any = json.loads(storage.read_bytes(join(folder, name)))
            for key in keys:
                told = told[key]
        except (StorageError, ValueError, KeyError, TypeError, RecursionError):
            continue
        return told if isinstance(told, str) else None
    return None
