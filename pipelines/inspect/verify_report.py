"""What verify has found: damages and warnings, as lines for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from ...schemas.naming import MANIFEST, join
from ...schemas.visible import visible
from ...transforms import storage

MAX_LINES = 50
"""So many lines are shown where nobody asks for another number."""

Kind = Literal[
    "missing",  # a file that the manifest lists
    "extra",  # one that it does not list
    "not a file",  # a folder, a pipe, a link to one
    "length",  # a file of another length
    "content",  # of the right length, and another sha256
    "swapped",  # what belongs into another file of the snapshot
    "foreign",  # what belongs to another snapshot
    "record",  # one record of a shard
    "index",  # what an index file tells, and the shard has not
    "manifest",  # the manifest itself
    "unreadable",  # what could not be looked at
    "edited",  # emitted code, or build.json, which nothing else depends on
    "link",  # a link that leaves the snapshot
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is not as the manifest says."""

    file: str
    """Relative to the snapshot's folder."""
    kind: Kind
    what: str
    record: int | None = None
    """Its number in the shard, from 0."""
    offset: int | None = None
    """Where its frame begins, in uncompressed bytes."""
    record_id: str | None = None
    """Where the index tells it."""

    def __str__(self) -> str:
        """One line."""
        place = ""
        if self.record is not None:
            known = [] if self.offset is None else [f"byte {self.offset:,}"]
            known += [] if self.record_id is None else [f"id {self.record_id!r}"]
            place = f"record {self.record:,}{' (' + ', '.join(known) + ')' if known else ''}: "
        # Names on disk may hold anything, line breaks too.
        file = self.file if visible(self.file) == self.file else f"'{visible(self.file)}'"
        return f"{file}: {place}{self.what}"

    def to_json(self) -> dict[str, object]:
        """As plain JSON, without what is not known."""
        value = dataclasses.asdict(self)
        return {name: item for name, item in value.items() if item is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled:
    """How much of a snapshot was looked at."""

    num_records: int
    total_records: int
    num_bytes_read: int
    total_bytes: int
    num_hashed: int
    """Files whose whole content was held against its hash."""
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What was checked, and what is not as it was written."""

    path: str
    """The snapshot's folder."""
    fingerprint: str | None
    num_files: int = 0
    num_bytes: int = 0
    num_examples: int = 0
    damages: Sequence[Finding] = ()
    """All of them; of a shard's records at most 1,000, the others counted in one more."""
    warnings: Sequence[Finding] = ()
    """What differs, and does no harm to the data."""
    unreadable: Sequence[Finding] = ()
    """What could not be looked at, so that nothing is known of it."""
    options: str = ""
    """Of the command that builds it, as far as the snapshot tells them."""
    sampled: Sampled | None = None
    """None where everything was checked."""

    @property
    def shown_path(self) -> str:
        """The path without credentials."""
        return storage.redact(self.path)

    @property
    def exit_code(self) -> int:
        """4 where anything is damaged, 1 where something could not be looked at, else 0."""
        return 4 if self.damages else 1 if self.unreadable else 0

    def lines(self, limit: int = MAX_LINES) -> list[str]:
        """What is wrong and how to mend it, one finding a line; at most so many, 0 for all.

        [] where nothing is.
        """
        found = [*self.damages, *self.unreadable]
        if not found:
            return []
        shown = found[:limit] if limit else found
        files = {finding.file for finding in self.damages}
        head = f"{self.shown_path} could not be checked:"
        if self.damages:
            counted = _counted(len(self.damages), "damages"), _counted(len(files), "files")
            head = f"{self.shown_path} is damaged: {counted[0]} in {counted[1]}"
        rest = len(found) - len(shown)
        more = [f"  … and {rest:,} more (--lines 0 shows all, --json too)"] if rest else []
        return [head, *(f"  {finding}" for finding in shown), *more, *self.repair_hints()]

    def summary(self) -> str:
        """What was checked, where that needs to be said: of what is whole, and of a sample."""
        sampled = self.sampled
        if sampled is not None:
            return (
                f"looked at {sampled.num_records:,} of "
                f"{_counted(sampled.total_records, 'records')} (seed {sampled.seed}), at the whole "
                f"of {_counted(sampled.num_hashed, 'files')}, and at the names and lengths of all "
                f"{self.num_files:,}; read {sampled.num_bytes_read:,} of {sampled.total_bytes:,} "
                f"bytes in {self.shown_path}\nnot looked at: the other records, and whether each "
                "index is whole. Without --sample all is."
            )
        if self.exit_code:
            return ""
        return (
            f"whole: {_counted(self.num_files, 'files')}, {self.num_bytes:,} bytes, "
            f"{_counted(self.num_examples, 'examples')} in {self.shown_path}"
        )

    def repair_hints(self) -> list[str]:
        """What to do, by what was found: one line each."""
        kinds = Counter(finding.kind for finding in self.damages)
        told = []
        lost = sorted(kinds.keys() - {"extra"})
        if lost:
            out = shlex.quote(_output_root(self.shown_path))
            told.append(
                f"To mend it: snapshard build SOURCE --out {out}{self.options} --repair, where "
                "SOURCE is the recipe or data that it was built from. It builds again what is "
                "damaged, from the runs in the workspace where they are there. Or restore the "
                "files from a copy."
            )
        obstacles = [f for f in self.damages if f.kind == "not a file"]
        extra = [f for f in self.damages if f.kind == "extra"]
        for finding in (*obstacles[:3], *extra[:3]):
            why = "is in the way" if finding.kind == "not a file" else "belongs to no snapshot"
            path = join(self.shown_path, finding.file)
            command = f"rm -r {shlex.quote(path)}" if storage.is_local(path) else f"remove {path}"
            told.append(f"What {why}: {command}")
        if self.unreadable:
            told.append(
                "What could not be read is perhaps whole: see to it that it can be read (chmod, "
                "credentials, the network), and verify again."
            )
        return told

    def to_json(self) -> dict[str, object]:
        """As plain JSON."""
        return {
            "path": self.shown_path,
            "fingerprint": self.fingerprint,
            "whole": not self.damages and not self.unreadable,
            "exit_code": self.exit_code,
            "num_files": self.num_files,
            "num_bytes": self.num_bytes,
            "num_examples": self.num_examples,
            "num_damages": len(self.damages),
            "damages": [finding.to_json() for finding in self.damages],
            "warnings": [finding.to_json() for finding in self.warnings],
            "unreadable": [finding.to_json() for finding in self.unreadable],
            "mend": self.repair_hints(),
            "sample": None if self.sampled is None else dataclasses.asdict(self.sampled),
        }


class Findings:
    """Collects what is found."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.damages: list[Finding] = []
        self.warnings: list[Finding] = []
        self.unreadable: list[Finding] = []

    def damage(self, file: str, kind: Kind, what: str) -> None:
        """Notes a damage of a whole file."""
        self.damages.append(Finding(file=file, kind=kind, what=what))

    def manifest(self, what: str) -> None:
        """Notes what is wrong with the manifest itself."""
        self.damage(MANIFEST, "manifest", what)

    def warn(self, file: str, kind: Kind, what: str) -> None:
        """Notes what differs and does no harm to the data."""
        self.warnings.append(Finding(file=file, kind=kind, what=what))

    def unchecked(self, file: str, what: str) -> None:
        """Notes what could not be looked at."""
        self.unreadable.append(Finding(file=file, kind="unreadable", what=what))


def _counted(number: int, unit: str) -> str:
    return f"{number:,} {unit.removesuffix('s') if number == 1 else unit}"


def _output_root(path: str) -> str:
    """The folder that was given as --out: the snapshot is ``<out>/<name>/<fingerprint>``."""
    return path.rstrip("/").rpartition("/")[0].rpartition("/")[0] or "/"
