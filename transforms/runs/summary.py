"""What planning knows of a set of runs: key histogram, where batches lie, what images share.

Summaries of single runs are combined on the runner by :class:`CombineSummaries`; merging is
exact and order-independent, so the result depends on nothing but the runs. The summary of more
than :data:`PART_RUNS` runs is combined and kept in parts, so that nothing of each run is ever
gathered in one place: a part has a range of the keys' bins, and the runs whose ids say so.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...schemas.blocks import BatchInfo, ImageFacts
from ...schemas.errors import DamagedWorkError
from ...schemas.naming import Workspace
from .. import storage
from ..storage.sealed import put_sealed, read_sealed
from .key_histogram import BIN_BITS, KeyHistogram
from .run_table import RunEntry as RunEntry
from .run_table import RunPart, RunTable, table_to_bytes

PART_RUNS = 4096
"""Up to so many runs have a summary of one part. Of more, a part has about so many."""
_REQUESTS = 16
"""Parts that are read from a store at once."""
_PLAIN_DIGITS = 32
_KEYS, _RUNS, _BATCHES = "arrow", "runs", "batches"


def batches_from_json(value: Iterable[Sequence[Any]]) -> tuple[BatchInfo, ...]:
    """Reads a list of batches, each a list of its fields in order."""
    names = [field.name for field in dataclasses.fields(BatchInfo)]
    return tuple(BatchInfo(**dict(zip(names, batch, strict=True))) for batch in value)


def name_summary(digest: str, num_runs: int) -> str:
    """The name of a summary of so many runs: a digest of 32 hex digits, and how many parts it has.

    >>> name_summary("0" * 32, 4096) == "0" * 32
    True
    >>> num_parts(name_summary("0" * 32, 1_000_000))
    256
    """
    doublings = (-(-num_runs // PART_RUNS) - 1).bit_length() if num_runs else 0
    return digest if doublings == 0 else f"{digest}{min(doublings, BIN_BITS):02x}"


def num_parts(name: str) -> int:
    """How many parts a summary of this name has: a power of two."""
    return 1 << int(name[_PLAIN_DIGITS:] or "0", 16)


@dataclasses.dataclass(frozen=True)
class Summary:
    """Facts of a set of runs, sorted by run id."""

    histogram: KeyHistogram
    entries: Sequence[RunEntry]

    @property
    def table(self) -> RunTable:
        """The runs of a summary that was read from the workspace."""
        if not isinstance(self.entries, RunTable):
            raise TypeError("only a summary that lies in the workspace has a table")
        return self.entries

    @property
    def num_records(self) -> int:
        """Records in all runs."""
        return int(self.histogram.num_records.sum())

    def image_facts(self) -> dict[str, ImageFacts]:
        """What all images have in common, by feature."""
        merged: dict[str, ImageFacts] = {}
        if isinstance(self.entries, RunTable):
            found = self.entries.image_facts()
        else:
            found = [dict(entry.run.image_facts) for entry in self.entries]
        for of_run in found:
            for name, facts in of_run.items():
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

    def parts(self, number: int) -> Iterator[tuple[int, Summary]]:
        """Cuts a summary: (part, what belongs to it), without those that hold nothing."""
        of_run: dict[int, list[RunEntry]] = {}
        for entry in self.entries:
            of_run.setdefault(int(entry.run.run_id[:8], 16) % number, []).append(entry)
        for part, histogram in enumerate(self.histogram.parts(number)):
            if part in of_run or len(histogram.bin):
                yield part, Summary(histogram, tuple(of_run.get(part, ())))


def write_summary(summary: Summary, workspace: Workspace, name: str, part: int = 0) -> None:
    """Puts a summary, or a part of it, into the workspace; the histogram is last and commits it."""
    runs, batches = table_to_bytes(summary.entries)
    for kind, content in (
        (_BATCHES, batches),
        (_RUNS, runs),
        (_KEYS, summary.histogram.to_bytes()),
    ):
        what = f"summary-3 {name} {part} {kind}"
        put_sealed(_url(workspace, name, part, kind), content, what=what)


def find_summary(workspace: Workspace, name: str) -> Summary | None:
    """Reads a summary from the workspace; None where it is missing or damaged.

    Where the batches of its runs lie is read when someone asks for them.
    """
    try:
        runs = read_runs(workspace, name)
        return Summary(_whole(_histograms(workspace, name), num_parts(name)), runs)
    except DamagedWorkError:
        return None


def read_runs(workspace: Workspace, name: str) -> RunTable:
    """Reads the runs of a summary, and not its histogram: what workers need of it.

    Raises:
        DamagedWorkError: if they are missing or damaged.
    """

    def read(part: int) -> RunPart:
        table = _find(workspace, name, part, _RUNS)
        if table is None or not storage.exists(_url(workspace, name, part, _BATCHES)):
            raise _damaged(workspace, name)
        return RunPart(table, functools.partial(_batches, workspace, name, part))

    # A store answers slowly, and many at once.
    with ThreadPoolExecutor(1 if storage.is_local(workspace.root) else _REQUESTS) as pool:
        return RunTable(list(pool.map(read, range(num_parts(name)))))


def _whole(parts: Iterator[KeyHistogram], number: int) -> KeyHistogram:
    first = next(parts)
    if number == 1:
        return first
    # Of coarse bins there may be strata, which differ from part to part.
    put_together = KeyHistogram.joined if first.bits > BIN_BITS else KeyHistogram.merge
    return put_together(itertools.chain([first], parts))


def _histograms(workspace: Workspace, name: str) -> Iterator[KeyHistogram]:
    """Those of the parts, one at a time."""
    for part in range(num_parts(name)):
        content = _find(workspace, name, part, _KEYS)
        if content is None:
            raise _damaged(workspace, name)
        yield KeyHistogram.from_bytes(content)


def read_summary(workspace: Workspace, name: str) -> Summary:
    """Reads a summary from the workspace.

    Raises:
        DamagedWorkError: if it is missing or damaged.
    """
    found = find_summary(workspace, name)
    if found is None:
        raise _damaged(workspace, name)
    return found


def remove_summary(workspace: Workspace, name: str) -> None:
    """Removes a summary; its commit goes first."""
    for part in range(num_parts(name)):
        for kind in (_KEYS, _RUNS, _BATCHES):
            storage.remove_tree(_url(workspace, name, part, kind))


def _url(workspace: Workspace, name: str, part: int, kind: str) -> str:
    return workspace.summary(name, kind, part if num_parts(name) > 1 else None)


def _find(workspace: Workspace, name: str, part: int, kind: str) -> bytes | None:
    what = f"summary-3 {name} {part} {kind}"
    return read_sealed(_url(workspace, name, part, kind), what=what)


def _batches(workspace: Workspace, name: str, part: int) -> bytes:
    content = _find(workspace, name, part, _BATCHES)
    if content is None:
        # Found late, and no summary from here on: the next attempt makes it anew.
        storage.remove_tree(_url(workspace, name, part, _KEYS))
        raise _damaged(workspace, name)
    return content


def _damaged(workspace: Workspace, name: str) -> DamagedWorkError:
    return DamagedWorkError(
        f"{storage.redact(_url(workspace, name, 0, _KEYS))}, or a file beside it, is missing or "
        "damaged. Start the build again: what is damaged is made again."
    )
