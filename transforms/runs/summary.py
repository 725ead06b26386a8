"""Summaries of runs for planning: key histogram, batch offsets, and facts shared by all images.

Summaries of single runs are combined on the runner by :class:`CombineSummaries`. Merging is exact
and order-independent, so the result depends only on the runs. A summary of more than
:data:`PART_RUNS` runs is combined and stored in parts, so that data of all runs is never gathered
in one place: a part has a range of the key bins, and the runs chosen by their ids.

Runs are stored as columns (:class:`RunTable`). A million runs have about sixteen million batches,
which would take gigabytes as objects. As columns, a run takes about 150 bytes, and its batches
are read when they are needed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.blocks import BatchInfo, ImageFacts, RunInfo
from ...schemas.errors import DamagedWorkError
from ...schemas.features import Features
from ...schemas.naming import Workspace
from .. import storage
from ..storage.artifacts import artifact_digest, put_artifact, read_artifact
from .files import Batches, RunReader, run_schema, table_of_batches
from .key_histogram import BIN_BITS, KeyHistogram

PART_RUNS = 4096
"""A summary of up to this many runs has one part. Larger ones have about as many per part."""
_PLAIN_DIGITS = 32
_KEYS, _RUNS, _BATCHES = "arrow", "runs", "batches"

_FACTS = pa.dictionary(pa.int32(), pa.large_string())
_RUN_COLUMNS = pa.schema(
    [
        ("run_id", pa.string()),
        ("num_records", pa.int64()),
        ("num_bytes", pa.int64()),
        ("num_rejects", pa.int64()),
        ("num_filtered", pa.int64()),
        ("num_excluded", pa.int64()),
        ("rejects_sha256", pa.string()),
        # JSON; most runs have the same.
        ("rejects_by_stage", _FACTS),
        ("image_facts", _FACTS),
        # Of the run's first record; undefined for an empty run.
        ("first_partition", pa.int64()),
        ("first_key", pa.uint64()),
        ("num_batches", pa.int64()),
        ("num_key_batches", pa.int64()),
    ]
)
_PLAIN = _RUN_COLUMNS.names[: _RUN_COLUMNS.names.index("rejects_by_stage")]
"""The columns that are fields of a ``RunInfo`` as they are."""


def batches_from_json(value: Iterable[Sequence[Any]]) -> tuple[BatchInfo, ...]:
    """Reads batches from JSON, each a list of its fields in order."""
    names = [field.name for field in dataclasses.fields(BatchInfo)]
    return tuple(BatchInfo(**dict(zip(names, batch, strict=True))) for batch in value)


def name_summary(digest: str, num_runs: int) -> str:
    """The name of a summary: a digest of 32 hex digits, and, if there are several, its parts.

    >>> name_summary("0" * 32, 4096) == "0" * 32
    True
    >>> num_parts(name_summary("0" * 32, 1_000_000))
    256
    """
    doublings = (-(-num_runs // PART_RUNS) - 1).bit_length() if num_runs else 0
    return digest if doublings == 0 else f"{digest}{min(doublings, BIN_BITS):02x}"


def num_parts(name: str) -> int:
    """The number of parts of the summary of this name: a power of two."""
    return 1 << int(name[_PLAIN_DIGITS:] or "0", 16)


@dataclasses.dataclass(frozen=True)
class Summary:
    """Facts of a set of runs, sorted by run id."""

    histogram: KeyHistogram
    entries: Sequence[RunEntry]
    contents: str = ""
    """Digest of the runs' contents, if the summary was read from the workspace."""

    @property
    def table(self) -> RunTable:
        """The runs of a summary that was read from the workspace."""
        if not isinstance(self.entries, RunTable):
            raise TypeError("only a summary read from the workspace has a table")
        return self.entries

    @property
    def num_records(self) -> int:
        """The number of records in all runs."""
        return int(self.histogram.num_records.sum())

    def image_facts(self) -> dict[str, ImageFacts]:
        """Facts shared by all images, by feature."""
        merged: dict[str, ImageFacts] = {}
        if isinstance(self.entries, RunTable):
            facts_of_runs = self.entries.image_facts()
        else:
            facts_of_runs = [dict(entry.run.image_facts) for entry in self.entries]
        for of_run in facts_of_runs:
            for name, facts in of_run.items():
                merged[name] = merged[name].merge(facts) if name in merged else facts
        return merged

    @classmethod
    def merge(cls, summaries: Iterable[Summary]) -> Summary:
        """Merges the summaries of disjoint sets of runs."""
        parts = list(summaries)
        entries = [entry for part in parts for entry in part.entries]
        return cls(
            KeyHistogram.merge(part.histogram for part in parts),
            tuple(sorted(entries, key=lambda entry: entry.run.run_id)),
        )

    def parts(self, number: int) -> Iterator[tuple[int, Summary]]:
        """Cuts a summary into (number of the part, its summary); empty parts are left out."""
        of_run: dict[int, list[RunEntry]] = {}
        for entry in self.entries:
            of_run.setdefault(int(entry.run.run_id[:8], 16) % number, []).append(entry)
        for part, histogram in enumerate(self.histogram.parts(number)):
            if part in of_run or len(histogram.bin):
                yield part, Summary(histogram, tuple(of_run.get(part, ())))


def write_summary(summary: Summary, workspace: Workspace, name: str, part: int = 0) -> None:
    """Stores a summary, or a part of it, in the workspace; the histogram, last, commits it."""
    runs, batches = table_to_bytes(summary.entries)
    for kind, content in (
        (_BATCHES, batches),
        (_RUNS, runs),
        (_KEYS, summary.histogram.to_bytes()),
    ):
        put_artifact(_url(workspace, name, part, kind), content, what=_what(name, part, kind))


def find_summary(workspace: Workspace, name: str) -> Summary | None:
    """Reads a summary from the workspace; None if it is missing or damaged.

    The batches of its runs are read when they are first accessed.
    """
    try:
        runs = read_runs(workspace, name)
        histogram = _whole(_histograms(workspace, name), num_parts(name))
        return Summary(histogram, runs, _contents(workspace, name))
    except DamagedWorkError:
        return None


def _contents(workspace: Workspace, name: str) -> str:
    """Digest of a summary's files, which hold the checksum of each batch of each run."""
    files = [(part, kind) for part in range(num_parts(name)) for kind in (_KEYS, _RUNS, _BATCHES)]

    def read(file: tuple[int, str]) -> str:
        url, what = _url(workspace, name, *file), _what(name, *file)
        digest = artifact_digest(url, what=what)
        if digest is None:
            raise _damaged(workspace, name)
        return digest

    with ThreadPoolExecutor(storage.num_requests(workspace.root)) as pool:
        return hashlib.sha256("\n".join(pool.map(read, files)).encode()).hexdigest()


def run_readers(
    entries: Sequence[RunEntry], workspace: Workspace, prepared: Features
) -> list[RunReader]:
    """A reader for each run of a summary."""
    schema = run_schema(prepared)
    return [RunReader(workspace.run(e.run.run_id), e.run.batches, schema) for e in entries]


def read_runs(workspace: Workspace, name: str) -> RunTable:
    """Reads the runs of a summary without its histogram, for workers.

    Raises:
        DamagedWorkError: if they are missing or damaged.
    """

    def read(part: int) -> RunPart:
        table = _find(workspace, name, part, _RUNS)
        if table is None or not storage.exists(_url(workspace, name, part, _BATCHES)):
            raise _damaged(workspace, name)
        return RunPart(table, functools.partial(_batches, workspace, name, part))

    with ThreadPoolExecutor(storage.num_requests(workspace.root)) as pool:
        return RunTable(list(pool.map(read, range(num_parts(name)))))


def _whole(parts: Iterator[KeyHistogram], number: int) -> KeyHistogram:
    first = next(parts)
    if number == 1:
        return first
    # With coarse bins there may be strata, which differ from part to part.
    put_together = KeyHistogram.joined if first.bits > BIN_BITS else KeyHistogram.merge
    return put_together(itertools.chain([first], parts))


def _histograms(workspace: Workspace, name: str) -> Iterator[KeyHistogram]:
    """The histograms of the parts, one at a time."""
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
    summary = find_summary(workspace, name)
    if summary is None:
        raise _damaged(workspace, name)
    return summary


def remove_summary(workspace: Workspace, name: str) -> None:
    """Removes a summary; the histogram, which commits it, goes first."""
    for part in range(num_parts(name)):
        for kind in (_KEYS, _RUNS, _BATCHES):
            storage.remove_tree(_url(workspace, name, part, kind))


def _url(workspace: Workspace, name: str, part: int, kind: str) -> str:
    return workspace.summary(name, kind, part if num_parts(name) > 1 else None)


def _find(workspace: Workspace, name: str, part: int, kind: str) -> bytes | None:
    return read_artifact(_url(workspace, name, part, kind), what=_what(name, part, kind))


def _what(name: str, part: int, kind: str) -> str:
    return f"summary-4 {name} {part} {kind}"


def _batches(workspace: Workspace, name: str, part: int) -> bytes:
    content = _find(workspace, name, part, _BATCHES)
    if content is None:
        # Found late: removing the histogram makes the next attempt recreate the summary.
        storage.remove_tree(_url(workspace, name, part, _KEYS))
        raise _damaged(workspace, name)
    return content


def _damaged(workspace: Workspace, name: str) -> DamagedWorkError:
    return DamagedWorkError(
        f"{storage.redact(_url(workspace, name, 0, _KEYS))}, or a file next to it, is missing or "
        "damaged. Start the build again to recreate it."
    )


@dataclasses.dataclass(frozen=True)
class RunEntry:
    """One run and its key file."""

    run: RunInfo
    keys: Sequence[BatchInfo]
    """The batches of the run's key file."""


def table_to_bytes(entries: Iterable[RunEntry]) -> tuple[bytes, bytes]:
    """Serializes runs, and their batches (the run's, then its key file's), as Arrow IPC streams."""
    runs, batches = [], []
    for entry in entries:
        info = entry.run
        batches += [*info.batches, *entry.keys]
        first = info.batches[0] if info.batches else None
        runs.append(
            {
                "run_id": info.run_id,
                "num_records": info.num_records,
                "num_bytes": info.num_bytes,
                "num_rejects": info.num_rejects,
                "num_filtered": info.num_filtered,
                "num_excluded": info.num_excluded,
                "rejects_sha256": info.rejects_sha256,
                "rejects_by_stage": json.dumps(dict(info.rejects_by_stage), sort_keys=True),
                "image_facts": _facts_text(info.image_facts),
                "first_partition": first.partition if first else 0,
                "first_key": first.key if first else 0,
                "num_batches": len(info.batches),
                "num_key_batches": len(entry.keys),
            }
        )
    return (
        _stream(pa.RecordBatch.from_pylist(runs, _RUN_COLUMNS)),
        _stream(table_of_batches(batches)),
    )


class RunPart:
    """The runs of one file, sorted by id; their batches are read when needed."""

    def __init__(self, content: bytes, load: Callable[[], bytes]) -> None:
        """Reads runs that :func:`table_to_bytes` wrote.

        Args:
            content: The serialized runs.
            load: Returns their serialized batches; called once for each pass over the runs.
        """
        self.runs = _read(content)
        self._load = load
        sizes = [self.runs.column(f"num_{of}batches").to_numpy() for of in ("", "key_")]
        self._middle = np.cumsum(sizes[0] + sizes[1]) - sizes[1]
        self._stop = self._middle + sizes[1]
        # Runs with equal facts share the parsed objects.
        stages, images = (
            [json.loads(text) for text in self.runs.column(name).dictionary.to_pylist()]
            for name in ("rejects_by_stage", "image_facts")
        )
        self._facts: dict[str, list[Any]] = {
            "rejects_by_stage": stages,
            "image_facts": [_facts_of(value) for value in images],
        }

    def entries(self, rows: Sequence[int]) -> Iterator[RunEntry]:
        """Some of the runs; their batches are read when the first of them is accessed."""
        held: list[pa.RecordBatch] = []

        def batches() -> pa.RecordBatch:
            if not held:
                held.append(_read(self._load()))
            return held[0]

        taken = self.runs.take(pa.array(rows, pa.int64()))
        plain = [taken.column(name).to_pylist() for name in _PLAIN]
        facts = [taken.column(name).indices.to_pylist() for name in self._facts]
        starts = np.concatenate([np.zeros(1, np.int64), self._stop])
        for index, row in enumerate(rows):
            middle = int(self._middle[row])
            indexed = zip(self._facts.values(), facts, strict=True)
            stages, images = (known[places[index]] for known, places in indexed)
            info = RunInfo(
                **{n: column[index] for n, column in zip(_PLAIN, plain, strict=True)},
                batches=Batches(batches, int(starts[row]), middle),
                rejects_by_stage=stages,
                image_facts=images,
            )
            yield RunEntry(info, Batches(batches, middle, int(self._stop[row])))


class RunTable(Sequence[RunEntry]):
    """The runs of a summary."""

    def __init__(self, parts: Sequence[RunPart]) -> None:
        """Concatenates the runs of several files."""
        self._parts = tuple(parts)
        self._starts = np.cumsum([0, *(part.runs.num_rows for part in parts)])

    @classmethod
    def joined(cls, tables: Sequence[RunTable]) -> RunTable:
        """Concatenates the runs of several summaries."""
        return cls([part for table in tables for part in table._parts])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __iter__(self) -> Iterator[RunEntry]:
        for part in self._parts:
            yield from part.entries(range(part.runs.num_rows))

    @overload
    def __getitem__(self, index: int) -> RunEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RunEntry]: ...
    def __getitem__(self, index: int | slice) -> RunEntry | Sequence[RunEntry]:
        """A run, or several of them."""
        if isinstance(index, slice):
            return self.take(range(*index.indices(len(self))))
        return self.take([range(len(self))[index]])[0]

    def take(self, rows: Iterable[int]) -> list[RunEntry]:
        """Some of the runs, in their order."""
        wanted = np.sort(np.fromiter(rows, np.int64))
        edges = np.searchsorted(wanted, self._starts)
        return [
            entry
            for part, start, low, high in zip(
                self._parts, self._starts[:-1], edges[:-1], edges[1:], strict=True
            )
            if low < high
            for entry in part.entries((wanted[low:high] - start).tolist())
        ]

    def total(self, name: str) -> int:
        """The sum of a numeric column."""
        return sum(int(pc.sum(part.runs.column(name)).as_py() or 0) for part in self._parts)

    def run_ids(self) -> list[str]:
        """The ids of all runs."""
        return [name for part in self._parts for name in part.runs.column("run_id").to_pylist()]

    def image_facts(self) -> list[dict[str, ImageFacts]]:
        """The distinct image facts of all runs."""
        dictionaries = (part.runs.column("image_facts").dictionary for part in self._parts)
        texts = {text for names in dictionaries for text in names.to_pylist()}
        return [_facts_of(json.loads(text)) for text in sorted(texts)]

    def of_lowest_keys(self, number: int) -> list[RunEntry]:
        """The ``number`` runs whose first records come first, by partition and key."""
        held = self._column("num_records") > 0
        keys, partitions = self._column("first_key"), self._column("first_partition")
        rows = np.flatnonzero(held)
        return self.take(rows[np.lexsort((keys[rows], partitions[rows]))[:number]])

    def _column(self, name: str) -> npt.NDArray[Any]:
        columns = [part.runs.column(name).to_numpy() for part in self._parts]
        return np.concatenate(columns) if columns else np.empty(0, np.int64)


def _facts_text(facts: Mapping[str, ImageFacts]) -> str:
    return json.dumps({k: list(dataclasses.astuple(v)) for k, v in facts.items()}, sort_keys=True)


def _facts_of(value: Mapping[str, Sequence[object]]) -> dict[str, ImageFacts]:
    return {
        name: ImageFacts(height, width, rotated, tuple(formats))  # type: ignore[arg-type]
        for name, (height, width, rotated, formats) in value.items()
    }


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _read(content: bytes) -> pa.RecordBatch:
    return pa.ipc.open_stream(content).read_next_batch()
