"""The findings of verify, as lines for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from ...schemas.naming import MANIFEST, join, repair_command
from ...schemas.visible import human_count, visible
from ...transforms import storage

MAX_LINES = 50
"""How many findings are shown by default."""
Kind = Literal[
    "missing",  # a file that the manifest lists
    "extra",  # a file that it does not list
    "not a file",  # a folder or a pipe, or a link to one
    "length",  # a file of the wrong length
    "content",  # the right length, but another sha256
    "foreign",  # the reader or build.json of another snapshot
    "record",  # one record of a shard
    "index",  # an index file that does not match its shard
    "manifest",  # the manifest itself
    "unreadable",  # could not be checked
    "edited",  # code of the reader, or build.json: the data does not depend on them
    "link",  # a link that leaves the snapshot
    "present",  # a record that must be absent
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One difference from the manifest."""

    file: str
    """Relative to the snapshot's folder."""
    kind: Kind
    what: str
    record: int | None = None
    """Number of the record in the shard, from 0."""
    offset: int | None = None
    """Start of its frame, in uncompressed bytes."""
    record_id: str | None = None
    """None if unknown: it is read from the index."""

    def __str__(self) -> str:
        """One line."""
        place = ""
        if self.record is not None:
            known = [] if self.offset is None else [f"byte {self.offset:,}"]
            known += [] if self.record_id is None else [f"id {self.record_id!r}"]
            place = f"record {self.record:,}{' (' + ', '.join(known) + ')' if known else ''}: "
        # Names on disk may contain anything, even line breaks.
        file = self.file if visible(self.file) == self.file else f"'{visible(self.file)}'"
        return f"{file}: {place}{self.what}"

    def to_json(self) -> dict[str, object]:
        """As plain JSON, without unknown fields."""
        value = dataclasses.asdict(self)
        return {name: item for name, item in value.items() if item is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled:
    """How much of a snapshot was checked."""

    num_records: int
    total_records: int
    num_bytes_read: int
    total_bytes: int
    num_hashed: int
    """Files whose entire content was hashed."""
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Absence:
    """Whether the records of a list of ids are absent."""

    num_ids: int
    found: Sequence[Finding] = ()
    """The records that are there."""
    excluded: bool = False
    """Whether the snapshot was built without these records: the recipe excludes this very list."""
    is_seen: bool = True
    """Whether any of the ids names a record of a snapshot there, or one that a build left out."""

    def to_json(self) -> dict[str, object]:
        """As plain JSON."""
        return {
            "num_ids": self.num_ids,
            "excluded": self.excluded,
            "is_seen": self.is_seen,
            "found": [finding.to_json() for finding in self.found],
        }

    def line(self) -> str:
        """What is proved, if no record was found."""
        ids = human_count(self.num_ids, "ids")
        other_list = (
            "The snapshot was not built with this list: where a step combines records (windows, "
            "packing), only one of them names the result, and the others cannot be found"
        )
        if not self.is_seen:
            what = (
                f"not proved: none of {ids} names a record of this snapshot, of another beside it, "
                "or one that a build left out. Check that the list holds ids alone, one per line, "
                "as `snapshard rejects` and index/*.parquet show them"
            )
            return what if self.excluded else f"{what}. {other_list}"
        if self.excluded:
            return f"absent: none of {ids} names a record, and the snapshot was built without them"
        return f"absent: none of {ids} names a record or a reject. {other_list}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What was checked, and what differs from what was written."""

    path: str
    """The snapshot's folder."""
    fingerprint: str | None
    num_files: int = 0
    num_bytes: int = 0
    num_examples: int = 0
    damages: Sequence[Finding] = ()
    """All of them; at most 1,000 records of a shard, and one finding that counts the others."""
    warnings: Sequence[Finding] = ()
    """Differences that do not affect the data."""
    unreadable: Sequence[Finding] = ()
    """What could not be checked: its state is unknown."""
    options: str = ""
    """Options of the command that builds it, as far as the snapshot records them."""
    sampled: Sampled | None = None
    """None if everything was checked."""
    absence: Absence | None = None
    """What was looked for and must not be there; None if nothing was."""

    @property
    def shown_path(self) -> str:
        """The path without credentials."""
        return storage.redact(self.path)

    @property
    def exit_code(self) -> int:
        """4 if anything is damaged; else 3 if a record is there that must be absent.

        Else 1 if something could not be checked, or 0.
        """
        if self.damages:
            return 4
        if self.absence is not None and self.absence.found:
            return 3
        return 1 if self.unreadable else 0

    def lines(self, limit: int = MAX_LINES) -> list[str]:
        """The findings, one per line, and how to repair them; [] if nothing is wrong.

        Args:
            limit: Maximum number of findings; 0 for all.
        """
        found = [*self.damages, *self.unreadable]
        present = self._present_lines(limit)
        if not found:
            return present
        shown = found[:limit] if limit else found
        files = {finding.file for finding in self.damages}
        head = f"{self.shown_path} could not be checked:"
        if self.damages:
            counted = human_count(len(self.damages), "damages"), human_count(len(files), "files")
            head = f"{self.shown_path} is damaged: {counted[0]} in {counted[1]}"
        rest = len(found) - len(shown)
        more = [f"  … and {rest:,} more (--lines 0 shows all, --json too)"] if rest else []
        lines = [head, *(f"  {finding}" for finding in shown), *more, *self.repair_hints()]
        return [*lines, *present]

    def _present_lines(self, limit: int) -> list[str]:
        """The records that must be absent, one per line."""
        if self.absence is None or not self.absence.found:
            return []
        found = self.absence.found
        shown = found[:limit] if limit else found
        rest = len(found) - len(shown)
        more = [f"  … and {rest:,} more (--lines 0 shows all, --json too)"] if rest else []
        return [
            f"{self.shown_path} contains {human_count(len(found), 'records')} of "
            f"{human_count(self.absence.num_ids, 'ids')} that must be absent:",
            *(f"  {finding}" for finding in shown),
            *more,
            "To remove them: name the list in the recipe, exclude=, build, and remove this folder.",
        ]

    def summary(self) -> str:
        """What was checked, if a sample was or nothing is wrong; else empty."""
        sampled = self.sampled
        if sampled is not None:
            total = human_count(sampled.total_records, "records")
            hashed = human_count(sampled.num_hashed, "files")
            return (
                f"checked {sampled.num_records:,} of {total} (seed {sampled.seed}), the entire "
                f"content of {hashed}, and the names and lengths of all {self.num_files:,}; "
                f"read {sampled.num_bytes_read:,} of {sampled.total_bytes:,} bytes in "
                f"{self.shown_path}\nnot checked: the other records, and whether each "
                "index is intact. Omit --sample to check everything."
            )
        if self.damages or self.unreadable:
            return ""
        intact = (
            f"intact: {human_count(self.num_files, 'files')}, {self.num_bytes:,} bytes, "
            f"{human_count(self.num_examples, 'examples')} in {self.shown_path}"
        )
        if self.absence is None or self.absence.found:
            return intact
        if not self.absence.is_seen:
            return f"{self.absence.line()}\n{intact}"
        return f"{intact}\n{self.absence.line()}"

    def repair_hints(self) -> list[str]:
        """How to repair what was found, one hint per line."""
        kinds = Counter(finding.kind for finding in self.damages)
        hints = []
        lost = sorted(kinds.keys() - {"extra"})
        if lost:
            command = repair_command(self.shown_path, self.options)
            hints.append(
                f"To repair it: {command}, where SOURCE is the recipe or data that it was built "
                "from. It rebuilds what is damaged, reusing runs of the workspace if they exist. "
                "Or restore the files from a copy."
            )
        obstacles = [f for f in self.damages if f.kind == "not a file"]
        extra = [f for f in self.damages if f.kind == "extra"]
        for finding in (*obstacles[:3], *extra[:3]):
            what = "what is in the way" if finding.kind == "not a file" else "the extra file"
            path = join(self.shown_path, finding.file)
            command = f"rm -r {shlex.quote(path)}" if storage.is_local(path) else f"remove {path}"
            hints.append(f"To remove {what}: {command}")
        if self.unreadable:
            hints.append(
                "What could not be read may be intact: make it readable (chmod, credentials, "
                "network), then verify again."
            )
        return hints

    def to_json(self) -> dict[str, object]:
        """As plain JSON."""
        return {
            "path": self.shown_path,
            "fingerprint": self.fingerprint,
            "intact": not self.damages and not self.unreadable,
            "exit_code": self.exit_code,
            "num_files": self.num_files,
            "num_bytes": self.num_bytes,
            "num_examples": self.num_examples,
            "num_damages": len(self.damages),
            "damages": [finding.to_json() for finding in self.damages],
            "warnings": [finding.to_json() for finding in self.warnings],
            "unreadable": [finding.to_json() for finding in self.unreadable],
            "repair": self.repair_hints(),
            "sample": None if self.sampled is None else dataclasses.asdict(self.sampled),
            "absence": None if self.absence is None else self.absence.to_json(),
        }


class Findings:
    """Collects findings."""

    def __init__(self) -> None:
        """Starts without findings."""
        self.damages: list[Finding] = []
        self.warnings: list[Finding] = []
        self.unreadable: list[Finding] = []

    def damage(
        self,
        file: str,
        kind: Kind,
        what: str,
        *,
        record: int | None = None,
        offset: int | None = None,
        record_id: str | None = None,
    ) -> None:
        """Notes damage of a file, or of one record in it."""
        self.damages.append(
            Finding(
                file=file,
                kind=kind,
                what=what,
                record=record,
                offset=offset,
                record_id=record_id,
            )
        )

    def manifest(self, what: str) -> None:
        """Notes damage of the manifest itself."""
        self.damage(MANIFEST, "manifest", what)

    def warn(self, file: str, kind: Kind, what: str) -> None:
        """Notes a difference that does not affect the data."""
        self.warnings.append(Finding(file=file, kind=kind, what=what))

    def unchecked(self, file: str, what: str) -> None:
        """Notes a file that could not be checked."""
        self.unreadable.append(Finding(file=file, kind="unreadable", what=what))
