"""Preparing one block: read, prepare, key, sort, and write one run.

A run is named by the hash of its inputs, of the prepare code and its settings and of the
libraries' versions: a run that exists is reported, not computed again, which is resume, the
cache and the incremental build in one rule.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ..schemas.blocks import BatchInfo, Block, ImageFacts, RawBatch, RunInfo
from ..schemas.errors import Reject
from ..schemas.features import Features, Image
from ..schemas.naming import Workspace
from ..schemas.recipe import Recipe
from ..schemas.splits import Splits
from ..transforms import storage
from ..transforms.encode import example_sizes
from ..transforms.key_histogram import KeyHistogram
from ..transforms.keys import NO_PARTITION, assign_partitions, record_keys
from ..transforms.opened_source import open_source, path_bytes
from ..transforms.prepare.compile import StepRunner
from ..transforms.rejects import reject_wrong_sizes, rejects_to_bytes
from ..transforms.runs import (
    KEY,
    MERGE_BYTES,
    NUM_BYTES,
    PARTITION,
    STRATUM,
    KeyRange,
    RunReader,
    RunWriter,
    keys_schema,
    merge_range,
    run_schema,
    sort_records,
    wire_schema,
)
from ..transforms.strata import label_texts
from ..transforms.summary import RunEntry, Summary, batches_from_json
from .staging import StagedRecipe

SORT_BYTES = 64 << 20
"""So many bytes of prepared records are sorted in memory; more is spilled and merged."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Everything that preparing a block needs, as plain data that reaches every worker."""

    staged: StagedRecipe
    folder: str
    """The recipe's folder, which a relative source counts from."""
    workspace: Workspace
    raw: Features
    prepared: Features
    prepare_digest: str
    """Hash of what turns a block into a run, the block itself apart."""

    def run_id(self, block: Block) -> str:
        """The name of a block's run."""
        return hashlib.sha256(f"{self.prepare_digest}/{block.block_id}".encode()).hexdigest()[:32]


def keys_suffix(splits: Splits) -> str:
    """Names the key files that serve these splits: with or without strata."""
    if splits.stratify_by is None:
        return "plain"
    return "by-" + hashlib.sha256(splits.stratify_by.encode()).hexdigest()[:12]


class BlockPreparer:
    """Turns blocks into runs, one after the other; holds what is costly to set up."""

    def __init__(self, config: PrepareConfig) -> None:
        """Loads the recipe and compiles its steps."""
        self._config = config
        self._recipe: Recipe = config.staged.load()
        self._opened = open_source(self._recipe.source.url, config.folder)
        self._steps = StepRunner(
            self._recipe.prepare,
            config.raw,
            config.prepared,
            numbered=self._recipe.source.numbered,
        )
        self._schema = run_schema(config.prepared)

    def prepare(self, block: Block) -> RunEntry:
        """Makes sure that the block's run and its key file are in the workspace."""
        workspace, run_id = self._config.workspace, self._config.run_id(block)
        info = run_in_place(workspace, run_id)
        if info is None:
            with storage.scratch_folder(self._config.workspace.root) as scratch:
                info = self._write_run(block, run_id=run_id, scratch=scratch)
        return RunEntry(info, self._key_batches(info))

    def _write_run(self, block: Block, *, run_id: str, scratch: str) -> RunInfo:
        splits, workspace = self._recipe.splits, self._config.workspace
        rejects: list[Reject] = []
        facts: dict[str, ImageFacts] = {}
        # A file that is one record has its id, so its key, before it is read: read in key order,
        # records need no sorting, and memory stays flat however large they grow.
        in_order = not self._recipe.source.numbered and splits.group_by is None
        path = os.path.join(scratch, "run.arrow")
        with RunWriter(path, self._schema) as writer:
            batches = self.records(block, rejects=rejects, facts=facts)
            for batch in batches if in_order else _sorted(batches, self._schema, scratch):
                writer.write(sort_records(batch))
        info = RunInfo(
            run_id=run_id,
            num_records=writer.num_records,
            num_bytes=writer.num_bytes,
            num_rejects=len(rejects),
            sha256=writer.sha256(),
            batches=tuple(writer.batches),
            image_facts=facts,
        )
        storage.put_file(path, workspace.run(run_id))
        if rejects:
            storage.put_bytes(workspace.run_rejects(run_id), rejects_to_bytes(rejects))
        # The run exists from here on.
        storage.put_bytes(workspace.run_info(run_id), _json_bytes(info.to_json()))
        return info

    def records(
        self, block: Block, *, rejects: list[Reject], facts: dict[str, ImageFacts]
    ) -> Iterator[pa.RecordBatch]:
        """The block's prepared records with their keys, batch by batch."""
        source, seed = self._recipe.source, self._recipe.seed
        ordered = list(range(len(block.ranges)))
        if not source.numbered:
            keys = record_keys([part.path for part in block.ranges], seed)
            ordered.sort(key=lambda i: (int(keys[i]), block.ranges[i].path))
        raw = source.read(block, features=self._config.raw, opened=self._opened, ordered=ordered)
        for batch in raw:
            prepared = reject_wrong_sizes(self._steps.prepare(batch), self._config.prepared)
            if len(prepared.ids):
                records = self._with_keys(prepared, rejects)
                merge_image_facts(facts, records, self._config.prepared)
                yield records
            rejects.extend(prepared.rejects)

    def _with_keys(self, batch: RawBatch, rejects: list[Reject]) -> pa.RecordBatch:
        splits, seed = self._recipe.splits, self._recipe.seed
        columns = batch.columns.select(wire_schema(self._config.prepared).names)
        partitions = np.zeros(columns.num_rows, np.int16)
        if splits.group_by is not None:
            groups = columns.column(splits.group_by)
            # As text: a new class must not move the groups of others by shifting their indices.
            texts = label_texts(groups, self._config.prepared[splits.group_by])
            partitions = assign_partitions(texts, splits, seed=seed)
        meta = [
            pa.array(partitions),
            pa.array(record_keys(batch.ids, seed)),
            pa.array([path_bytes(record_id) for record_id in batch.ids], pa.large_binary()),
            pa.array(example_sizes(columns).astype(np.int64)),
        ]
        records = pa.RecordBatch.from_arrays([*meta, *columns.columns], schema=self._schema)
        ungrouped = partitions == NO_PARTITION
        if not ungrouped.any():
            return records
        for row in np.flatnonzero(ungrouped):
            path, _, position = batch.ids[row].rpartition("#")
            rejects.append(
                Reject(
                    record_id=batch.ids[row],
                    stage="validate",
                    reason="no group",
                    message=f"feature {splits.group_by!r} is missing; group_by needs it",
                    source=path if self._recipe.source.numbered else batch.ids[row],
                    position=int(position) if self._recipe.source.numbered else None,
                )
            )
        return records.filter(pa.array(~ungrouped))

    def _key_batches(self, info: RunInfo) -> tuple[BatchInfo, ...]:
        """Where the batches of the run's key file lie; writes the file if it is not there."""
        splits, workspace = self._recipe.splits, self._config.workspace
        url = workspace.run_keys(info.run_id, keys_suffix(splits))
        if storage.exists(url + ".json"):
            return batches_from_json(json.loads(storage.read_bytes(url + ".json")))
        reader = RunReader(workspace.run(info.run_id), info.batches, self._schema)
        with storage.scratch_folder(self._config.workspace.root) as scratch:
            path = os.path.join(scratch, "keys.arrow")
            with RunWriter(path, keys_schema()) as writer:
                for batch in reader.scan():
                    writer.write(self._key_columns(batch))
            storage.put_file(path, url)
        value = [list(dataclasses.astuple(batch)) for batch in writer.batches]
        storage.put_bytes(url + ".json", _json_bytes(value))
        return tuple(writer.batches)

    def _key_columns(self, records: pa.RecordBatch) -> pa.RecordBatch:
        name = self._recipe.splits.stratify_by
        strata = pa.nulls(records.num_rows, pa.large_string())
        if name is not None:
            texts = label_texts(records.column(name), self._config.prepared[name])
            strata = texts.fill_null("")
        columns = [records.column(column) for column in (PARTITION, KEY, NUM_BYTES)]
        return pa.RecordBatch.from_arrays([*columns, strata], schema=keys_schema())

    def summary(self, entry: RunEntry) -> Summary:
        """The facts of one run, from its key file."""
        url = self._config.workspace.run_keys(entry.run.run_id, keys_suffix(self._recipe.splits))
        parts = (
            KeyHistogram.from_arrays(
                batch.column(PARTITION).to_numpy(),
                batch.column(KEY).to_numpy(),
                num_bytes=batch.column(NUM_BYTES).to_numpy(),
                strata=batch.column(STRATUM) if self._recipe.splits.stratify_by else None,
            )
            for batch in RunReader(url, entry.keys, keys_schema()).scan()
        )
        return Summary(KeyHistogram.merge(parts), (entry,))


def run_in_place(workspace: Workspace, run_id: str) -> RunInfo | None:
    """What is known of a run; None where it or a part of it is missing."""
    if not storage.exists(workspace.run_info(run_id)):
        return None
    info = RunInfo.from_json(json.loads(storage.read_bytes(workspace.run_info(run_id))))
    url = workspace.run(run_id)
    if not storage.exists(url) or storage.num_bytes(url) != info.num_bytes:
        return None
    if info.num_rejects and not storage.exists(workspace.run_rejects(run_id)):
        return None
    return info


def _json_bytes(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _sorted(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, scratch: str
) -> Iterator[pa.RecordBatch]:
    """Sorts records in bounded memory: sorted pieces are spilled and merged."""
    spilled: list[RunReader] = []
    held: list[pa.RecordBatch] = []
    partitions: set[int] = set()

    def spill() -> None:
        path = os.path.join(scratch, f"part-{len(spilled)}.arrow")
        with RunWriter(path, schema) as writer:
            writer.write(sort_records(pa.concat_batches(held)))
        spilled.append(RunReader(path, writer.batches, schema))
        held.clear()

    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        partitions.update(np.unique(batch.column(PARTITION).to_numpy()).tolist())
        if size > SORT_BYTES:
            spill()
            size = 0
    if not spilled:
        if held:
            yield sort_records(pa.concat_batches(held))
        return
    if held:
        spill()
    for partition in sorted(partitions):
        whole = KeyRange(partition, 0, 1 << 64)
        yield from merge_range(spilled, whole, max_bytes=MERGE_BYTES)


def merge_image_facts(
    facts: dict[str, ImageFacts], records: pa.RecordBatch, features: Features
) -> None:
    """Adds what the encoded images of some records have in common to ``facts``."""
    for name, feature in features.items():
        if not isinstance(feature, Image) or feature.storage != "encoded":
            continue
        heights = np.unique(records.column(f"{name}/height").to_numpy())
        widths = np.unique(records.column(f"{name}/width").to_numpy())
        orientations = records.column(f"{name}/orientation").to_numpy()
        found = ImageFacts(
            int(heights[0]) if len(heights) == 1 else None,
            int(widths[0]) if len(widths) == 1 else None,
            bool((orientations != 1).any()),
        )
        facts[name] = facts[name].merge(found) if name in facts else found


def summary_digest(config: PrepareConfig, blocks: Sequence[Block], splits: Splits) -> str:
    """Names the summary of these blocks' runs."""
    run_ids = sorted(config.run_id(block) for block in blocks)
    text = "\n".join([keys_suffix(splits), *run_ids])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
