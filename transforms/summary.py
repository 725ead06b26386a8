"""What planning knows of a set of runs: key histogram, where batches lie, what images share.

Summaries of single runs are combined on the runner by :class:`CombineSummaries`; merging is
exact and order-independent, so the result depends on nothing but the runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..schemas.blocks import BatchInfo, ImageFacts, RunInfo
from ..schemas.errors import DamagedWorkError
from ..schemas.naming import Workspace
from . import storage
from .key_histogram import KeyHistogram
from .sealed import put_sealed, read_sealed


@dataclasses.dataclass(frozen=True)
class RunEntry:
    """One run and its key file."""

    run: RunInfo
    keys: tuple[BatchInfo, ...]
    """Where the batches of the run's key file lie."""

    def to_line(self) -> str:
        """One JSON line; :meth:`from_line` is its dual."""
        keys = [list(dataclasses.astuple(batch)) for batch in self.keys]
        return json.dumps({"run": self.run.to_json(), "keys": keys}, sort_keys=True)

    @classmethod
    def from_line(cls, line: str | bytes) -> RunEntry:
        """Reads what :meth:`to_line` wrote."""
        value = json.loads(line)
        return cls(RunInfo.from_json(value["run"]), batches_from_json(value["keys"]))


def batches_from_json(value: Iterable[Sequence[Any]]) -> tuple[BatchInfo, ...]:
    """Reads a list of batches, each a list of its fields in order."""
    names = [field.name for field in dataclasses.fields(BatchInfo)]
    return tuple(BatchInfo(**dict(zip(names, batch, strict=True))) for batch in value)


@dataclasses.dataclass(frozen=True)
class Summary:
    """Facts of a set of runs, sorted by run id."""

    histogram: KeyHistogram
    entries: tuple[RunEntry, ...]

    @property
    def num_records(self) -> int:
        """Records in all runs."""
        return sum(entry.run.num_records for entry in self.entries)

    @property
    def num_rejects(self) -> int:
        """Rejects of all runs' blocks."""
        return sum(entry.run.num_rejects for entry in self.entries)

    def image_facts(self) -> dict[str, ImageFacts]:
        """What all images have in common, by feature."""
        merged: dict[str, ImageFacts] = {}
        for entry in self.entries:
            for name, facts in entry.run.image_facts.items():
                merged[name] = merged[name].merge(facts) if name in merged else facts
        return merged

    @classmethod
    def merge(cls, summaries: Iterable[Summary]) -> Summary:
        """Adds up the summaries of disjoint sets of runs."""
        parts = list(summaries)
        entries = [entry for part in parts for entry in part.entries]
        return cls(
            KeyHistogram.merge(part.histogram for part in parts),
            tuple(sorted(entries, key=lambda entry: entry.run.run_id)),
        )


def write_summary(summary: Summary, workspace: Workspace, digest: str) -> None:
    """Puts a summary into the workspace; the histogram is last and commits it."""
    lines = "".join(entry.to_line() + "\n" for entry in summary.entries)
    url = workspace.summary_runs(digest)
    put_sealed(url, lines.encode(), what=f"summary-runs-2 {digest}")
    url = workspace.summary(digest)
    put_sealed(url, summary.histogram.to_bytes(), what=f"summary-2 {digest}")


def find_summary(workspace: Workspace, digest: str) -> Summary | None:
    """Reads a summary from the workspace; None where it is missing or damaged."""
    content = read_sealed(workspace.summary(digest), what=f"summary-2 {digest}")
    lines = read_sealed(workspace.summary_runs(digest), what=f"summary-runs-2 {digest}")
    if content is None or lines is None:
        return None
    entries = tuple(RunEntry.from_line(line) for line in lines.splitlines())
    return Summary(KeyHistogram.from_bytes(content), entries)


def read_summary(workspace: Workspace, digest: str) -> Summary:
    """Reads a summary from the workspace.

    Raises:
        DamagedWorkError: if it is missing or damaged.
    """
    found = find_summary(workspace, digest)
    if found is None:
        raise DamagedWorkError(
            f"{storage.redact(workspace.summary(digest))}, or the .jsonl beside it, is missing or "
            "damaged. Start the build again: it makes it anew."
        )
    return found
