"""The files of one run: sorted records, rejects, facts, and the keys that planning reads.

A run is named by the hash of its inputs, of the prepare code and its settings and of the
libraries' versions: a run that exists is reported, not computed again, which is resume, the
cache and the incremental build in one rule.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from ..schemas.blocks import ImageFacts, RunInfo
from ..schemas.features import Features, Image
from ..schemas.naming import Workspace
from ..schemas.splits import Splits
from ..transforms import storage
from ..transforms.contents import content_hashes
from ..transforms.image_formats import found_formats
from ..transforms.key_histogram import KeyHistogram
from ..transforms.rejects import Dropped, rejects_to_bytes
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

SORT_BYTES = 64 << 20
"""So many bytes of prepared records are sorted in memory; more is spilled and merged."""


def keys_suffix(splits: Splits) -> str:
    """Names the key files that serve these splits: with or without strata."""
    if splits.stratify_by is None:
        return "plain"
    return "by-" + hashlib.sha256(splits.stratify_by.encode()).hexdigest()[:12]


class RunFiles:
    """Writes and looks up the runs of one stage."""

    def __init__(
        self,
        workspace: Workspace,
        features: Features,
        *,
        label: str | None,
        stratify_by: str | None,
        suffix: str,
    ) -> None:
        """Takes where runs lie and what their records hold.

        Args:
            workspace: Where they lie.
            features: Of the prepared records.
            label: The feature to predict: equal contents are those of all others.
            stratify_by: The feature whose values are the strata; None for none.
            suffix: Names the key files: see :func:`keys_suffix`.
        """
        self._workspace = workspace
        self._features = features
        self._stratify_by = stratify_by
        self._suffix = suffix
        self.schema = run_schema(features)
        inputs = {name: feature for name, feature in features.items() if name != label}
        self._compared = wire_schema(inputs or features).names

    def write(
        self,
        run_id: str,
        batches: Iterable[pa.RecordBatch],
        *,
        dropped: Dropped,
        in_order: bool,
    ) -> RunInfo:
        """Sorts keyed records into one run and puts it in place.

        Args:
            run_id: The run's name.
            batches: Records of :attr:`schema`, of bounded size.
            dropped: What is not in the run, complete once ``batches`` is.
            in_order: Whether the batches follow each other in their final order.
        """
        workspace = self._workspace
        facts: dict[str, ImageFacts] = {}
        with storage.scratch_folder(workspace.root) as scratch:
            path = os.path.join(scratch, "run.arrow")
            with RunWriter(path, self.schema) as writer:
                noted = self._noting(batches, facts)
                for batch in noted if in_order else _sorted(noted, self.schema, scratch):
                    writer.write(sort_records(batch))
            info = RunInfo(
                run_id=run_id,
                num_records=writer.num_records,
                num_bytes=writer.num_bytes,
                num_rejects=len(dropped.rejects),
                num_filtered=dropped.num_filtered,
                sha256=writer.sha256(),
                batches=tuple(writer.batches),
                image_facts=facts,
            )
            storage.put_file(path, workspace.run(run_id))
        if dropped.rejects:
            content = rejects_to_bytes(dropped.rejects)
            storage.put_bytes(workspace.run_rejects(run_id), content)
        # The run exists from here on.
        storage.put_bytes(workspace.run_info(run_id), _json_bytes(info.to_json()))
        return info

    def _noting(
        self, batches: Iterable[pa.RecordBatch], facts: dict[str, ImageFacts]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            merge_image_facts(facts, batch, self._features)
            yield batch

    def entry(self, info: RunInfo) -> RunEntry:
        """A run in place with its key file, which is written if it is not there."""
        url = self._workspace.run_keys(info.run_id, self._suffix)
        if storage.exists(url + ".json"):
            return RunEntry(info, batches_from_json(json.loads(storage.read_bytes(url + ".json"))))
        reader = RunReader(self._workspace.run(info.run_id), info.batches, self.schema)
        with storage.scratch_folder(self._workspace.root) as scratch:
            path = os.path.join(scratch, "keys.arrow")
            with RunWriter(path, keys_schema()) as writer:
                for batch in reader.scan():
                    writer.write(self._key_columns(batch))
            storage.put_file(path, url)
        value = [list(dataclasses.astuple(batch)) for batch in writer.batches]
        storage.put_bytes(url + ".json", _json_bytes(value))
        return RunEntry(info, tuple(writer.batches))

    def _key_columns(self, records: pa.RecordBatch) -> pa.RecordBatch:
        name = self._stratify_by
        strata = pa.nulls(records.num_rows, pa.large_string())
        if name is not None:
            strata = label_texts(records.column(name), self._features[name]).fill_null("")
        columns = [records.column(column) for column in (PARTITION, KEY, NUM_BYTES)]
        contents = pa.array(content_hashes(records.select(self._compared)))
        return pa.RecordBatch.from_arrays([*columns, strata, contents], schema=keys_schema())

    def summary(self, entry: RunEntry) -> Summary:
        """The facts of one run, from its key file."""
        url = self._workspace.run_keys(entry.run.run_id, self._suffix)
        parts = (
            KeyHistogram.from_arrays(
                batch.column(PARTITION).to_numpy(),
                batch.column(KEY).to_numpy(),
                num_bytes=batch.column(NUM_BYTES).to_numpy(),
                strata=batch.column(STRATUM) if self._stratify_by else None,
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
            found_formats(records.column(name), channels=feature.channels),
        )
        facts[name] = facts[name].merge(found) if name in facts else found
