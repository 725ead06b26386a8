"""The files of one run: sorted records, rejects, facts, and the keys for planning.

A run is named by the hash of its inputs, the prepare code, its settings and the library versions.
A run that exists is reused, never computed again: this one rule gives resume, the cache and
incremental builds. Reused files are checked: facts are artifacts; records and keys have a checksum
for each batch, which is verified when the batch is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.blocks import BatchInfo, ImageFacts, RunInfo
from ...schemas.errors import DamagedWorkError, StorageError
from ...schemas.features import Features, Image, frames_of
from ...schemas.naming import Workspace
from ...schemas.recipe import Recipe
from ...transforms import storage
from ...transforms.examples.contents import content_hashes
from ...transforms.examples.statistics import RawStatistics
from ...transforms.media.image_header import found_formats, read_header
from ...transforms.rejects import Dropped
from ...transforms.runs.files import (
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
    slices_of,
    sort_records,
    wire_schema,
)
from ...transforms.runs.key_histogram import KeyBins, KeyHistogram
from ...transforms.runs.partitions import strata_of
from ...transforms.runs.summary import RunEntry, Summary, batches_from_json
from ...transforms.storage.artifacts import is_lost, put_artifact, read_artifact, write_artifact
from ..survey.stages import label_of, stages_of

SORT_BYTES = 64 << 20
"""Bytes of prepared records that are sorted in memory; more are spilled and merged."""
_HASH_BYTES = 1 << 20
"""Bytes of records whose contents are hashed together."""
_RAW = "raw"
"""Where a run's facts have what was measured of its records as they were read."""


def keys_suffix(recipe: Recipe) -> str:
    """The suffix of a recipe's key files, which contain strata and hashes of contents.

    The label is not part of the contents. One that a source or step names is among the settings
    that name the run.
    """
    stratum, label = recipe.splits.key_strata, recipe.label
    suffix = "plain" if stratum is None else f"by-{_short_digest(stratum)}"
    return suffix if label is None else f"{suffix}-label-{_short_digest(label)}"


def _short_digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]


class RunFiles:
    """Writes and finds the runs of one stage."""

    def __init__(
        self,
        workspace: Workspace,
        features: Features,
        *,
        label: str | None,
        stratify_by: str | None,
        suffix: str,
        bins: KeyBins = KeyBins(),  # noqa: B008
    ) -> None:
        """Stores the runs' location and the features of their records.

        Args:
            workspace: The runs' workspace.
            features: Features of the prepared records.
            label: The feature to predict, which is ignored when contents are compared.
            stratify_by: The feature whose values are the strata; None for none.
            suffix: Suffix of the key files: see :func:`keys_suffix`.
            bins: The bins of summaries.
        """
        self._workspace = workspace
        self._features = features
        self._stratify_by = stratify_by
        self._suffix = suffix
        self._bins = bins
        self.schema = run_schema(features)
        inputs = {name: feature for name, feature in features.items() if name != label}
        self._compared = wire_schema(inputs or features).names

    @classmethod
    def of_stage(
        cls, workspace: Workspace, recipe: Recipe, *, outputs: Features, stage: int, bins: KeyBins
    ) -> RunFiles:
        """The runs of a stage of a recipe.

        Args:
            workspace: The runs' workspace.
            recipe: What is built.
            outputs: Features of the stage's records.
            stage: Its number, from 0.
            bins: The bins of summaries.
        """
        last = stage + 1 == len(stages_of(recipe))
        return cls(
            workspace,
            outputs,
            label=label_of(recipe, outputs) if last else None,
            stratify_by=recipe.splits.key_strata if last else None,
            suffix=keys_suffix(recipe) if last else "plain",
            bins=bins,
        )

    def write(
        self,
        run_id: str,
        batches: Iterable[pa.RecordBatch],
        *,
        dropped: Dropped,
        in_order: bool,
        raw: RawStatistics | None = None,
    ) -> Summary:
        """Sorts keyed records into one run, puts it in place with its key file, and summarizes it.

        Args:
            run_id: The run's name.
            batches: Records of :attr:`schema`, of bounded size.
            dropped: The records that are not in the run, complete once ``batches`` is consumed.
            in_order: Whether the batches are in their final order.
            raw: What is measured of the records as they are read, complete likewise.
        """
        workspace = self._workspace
        facts: dict[str, ImageFacts] = {}
        with storage.scratch_folder(workspace.root) as scratch:
            path, keys_path = os.path.join(scratch, "run.arrow"), os.path.join(scratch, "keys")
            dropped.folder = scratch
            with (
                RunWriter(path, self.schema) as writer,
                RunWriter(keys_path, keys_schema()) as keys,
            ):
                noted = self._noting(batches, facts)
                ordered = noted if in_order else _sorted(noted, self.schema, scratch)
                histogram = KeyHistogram.merge(self._written(ordered, writer, keys))
            files = [(path, workspace.run(run_id))]
            rejects_sha256 = ""
            if dropped.num_rejects:
                rejects = os.path.join(scratch, "rejects.parquet")
                dropped.write(rejects)
                rejects_sha256 = storage.sha256_of(rejects)
                files.append((rejects, workspace.run_rejects(run_id)))
            info = RunInfo(
                run_id=run_id,
                num_records=writer.num_records,
                num_bytes=writer.num_bytes,
                num_rejects=dropped.num_rejects.total(),
                rejects_by_stage=dict(sorted(dropped.num_rejects.items())),
                num_filtered=dropped.num_filtered,
                num_excluded=dropped.num_excluded,
                rejects_sha256=rejects_sha256,
                batches=tuple(writer.batches),
                image_facts=facts,
            )
            info_path, keys_info_path = f"{path}.json", f"{keys_path}.json"
            facts_of_run = info.to_json() | ({} if raw is None else {_RAW: raw.to_json()})
            write_artifact(info_path, _json_bytes(facts_of_run), what=_what_info(run_id))
            keys_info = _json_of_batches(keys.batches)
            write_artifact(keys_info_path, keys_info, what=self._what_keys(info))
            # The run exists once its info and all of it do, and its key file likewise: on a store,
            # they may come in any order.
            files.append((info_path, workspace.run_info(run_id)))
            files.append((keys_path, workspace.run_keys(run_id, self._suffix)))
            files.append((keys_info_path, self._keys_info(info)))
            storage.put_files(files)
        return Summary(histogram, (RunEntry(info, tuple(keys.batches)),))

    def _written(
        self, batches: Iterable[pa.RecordBatch], writer: RunWriter, keys: RunWriter
    ) -> Iterator[KeyHistogram]:
        """Writes records and their keys, and yields the histograms of the keys."""
        for batch in batches:
            for records in slices_of(sort_records(batch), _HASH_BYTES):
                writer.write(records)
                columns = self._key_columns(records)
                keys.write(columns)
                yield self._histogram(columns)

    def _noting(
        self, batches: Iterable[pa.RecordBatch], facts: dict[str, ImageFacts]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            merge_image_facts(facts, batch, self._features)
            yield batch

    def summarize(self, info: RunInfo) -> Summary:
        """The summary of an existing run, from its key file, which is written again if incomplete.

        Raises:
            DamagedWorkError: if the run itself is needed for that, but damaged.
        """
        entry = self._entry_in_place(info)
        if entry is not None:
            with contextlib.suppress(DamagedWorkError):
                return self._summary(entry)
        return self._summary(self._write_keys(info))

    def drop_damage(self, entry: RunEntry) -> bool:
        """Reads all files of a run in a summary, and invalidates damaged ones.

        Returns:
            Whether files are damaged or missing and must be made again.
        """
        info = entry.run
        if run_in_place(self._workspace, info.run_id) is None:
            return True
        try:
            run_rejects(self._workspace, info)
            for _ in self._reader(info).scan():
                pass
        except DamagedWorkError:
            storage.remove_tree(self._workspace.run_info(info.run_id))
            return True
        try:
            self._summary(entry)
        except DamagedWorkError:
            storage.remove_tree(self._keys_info(info))
            return True
        return False

    def _reader(self, info: RunInfo) -> RunReader:
        return RunReader(self._workspace.run(info.run_id), info.batches, self.schema)

    def _keys_info(self, info: RunInfo) -> str:
        return self._workspace.run_keys(info.run_id, self._suffix) + ".json"

    def _entry_in_place(self, info: RunInfo) -> RunEntry | None:
        """An existing run with its key file; None if the key file does not exist."""
        content = read_artifact(self._keys_info(info), what=self._what_keys(info))
        if content is None:
            return None
        return RunEntry(info, batches_from_json(json.loads(content)))

    def _write_keys(self, info: RunInfo) -> RunEntry:
        """A run with its key file, which this writes."""
        url = self._workspace.run_keys(info.run_id, self._suffix)
        with storage.scratch_folder(self._workspace.root) as scratch:
            path = os.path.join(scratch, "keys.arrow")
            with RunWriter(path, keys_schema()) as writer:
                for batch in self._reader(info).scan():
                    writer.write(self._key_columns(batch))
            storage.put_file(path, url)
        content = _json_of_batches(writer.batches)
        put_artifact(self._keys_info(info), content, what=self._what_keys(info))
        return RunEntry(info, tuple(writer.batches))

    def _what_keys(self, info: RunInfo) -> str:
        return f"keys-2 {info.run_id} {self._suffix}"

    def _key_columns(self, records: pa.RecordBatch) -> pa.RecordBatch:
        strata = strata_of(records, self._features, self._stratify_by)
        if strata is None:
            strata = pa.nulls(records.num_rows, pa.large_string())
        columns = [records.column(column) for column in (PARTITION, KEY, NUM_BYTES)]
        contents = pa.array(content_hashes(records.select(self._compared)))
        return pa.RecordBatch.from_arrays([*columns, strata, contents], schema=keys_schema())

    def _summary(self, entry: RunEntry) -> Summary:
        """The facts of one run, from its key file."""
        url = self._workspace.run_keys(entry.run.run_id, self._suffix)
        parts = map(self._histogram, RunReader(url, entry.keys, keys_schema()).scan())
        return Summary(KeyHistogram.merge(parts), (entry,))

    def _histogram(self, columns: pa.RecordBatch) -> KeyHistogram:
        """The histogram of some records of a key file."""
        keys = columns.column(KEY).to_numpy()
        return KeyHistogram.from_arrays(
            self._bins.partitions(columns.column(PARTITION).to_numpy(), keys),
            keys,
            num_bytes=columns.column(NUM_BYTES).to_numpy(),
            strata=columns.column(STRATUM) if self._stratify_by else None,
            bits=self._bins.bits,
        )


def run_in_place(workspace: Workspace, run_id: str) -> RunInfo | None:
    """The facts of an existing run; None if it or one of its files is missing."""
    content = read_artifact(workspace.run_info(run_id), what=_what_info(run_id))
    if content is None:
        return None
    facts = json.loads(content)
    facts.pop(_RAW, None)
    info = RunInfo.from_json(facts)
    if storage.size_of(workspace.run(run_id)) != info.num_bytes:
        return None
    if info.num_rejects and not storage.exists(workspace.run_rejects(run_id)):
        return None
    return info


def raw_statistics(workspace: Workspace, run_id: str) -> dict[str, Any]:
    """What was measured of a run's records as they were read: see ``RawTotals``.

    Raises:
        DamagedWorkError: if the run's facts are missing or damaged.
    """
    url = workspace.run_info(run_id)
    content = read_artifact(url, what=_what_info(run_id))
    if content is None:
        raise DamagedWorkError(
            f"{storage.redact(url)} is missing or damaged. Start the build again to recreate it."
        )
    measured: dict[str, Any] = json.loads(content)[_RAW]
    return measured


def run_rejects(workspace: Workspace, info: RunInfo) -> str | io.BytesIO | None:
    """The file of a run's rejects, checked; None if it has no rejects.

    Raises:
        DamagedWorkError: if it is missing or damaged.
    """
    if not info.num_rejects:
        return None
    url = workspace.run_rejects(info.run_id)
    rejects: str | io.BytesIO
    try:
        if storage.is_local(url):
            rejects = storage.local_path(url)
            with storage.failing_as_storage_error("read", url):
                sha256 = storage.sha256_of(rejects)
        else:
            content = storage.read_bytes(url)
            sha256, rejects = hashlib.sha256(content).hexdigest(), io.BytesIO(content)
    except StorageError as error:
        if not is_lost(error):
            raise
        sha256 = ""
    if sha256 != info.rejects_sha256:
        raise DamagedWorkError(
            f"{storage.redact(url)} is missing or damaged. Start the build again to recreate it."
        )
    return rejects


def _what_info(run_id: str) -> str:
    return f"run-2 {run_id}"


def _json_of_batches(batches: Iterable[BatchInfo]) -> bytes:
    return _json_bytes([list(dataclasses.astuple(batch)) for batch in batches])


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
    """Merges the common properties of the records' encoded images into ``facts``."""
    for name, feature in features.items():
        frame = frames_of(feature)
        if frame is not None and len(records):
            merged = _frame_facts(records.column(name), frame)
            facts[name] = facts[name].merge(merged) if name in facts else merged
        if not isinstance(feature, Image) or feature.storage != "encoded":
            continue
        heights = np.unique(records.column(f"{name}/height").to_numpy())
        widths = np.unique(records.column(f"{name}/width").to_numpy())
        orientations = records.column(f"{name}/orientation").to_numpy()
        merged = ImageFacts(
            int(heights[0]) if len(heights) == 1 else None,
            int(widths[0]) if len(widths) == 1 else None,
            bool((orientations != 1).any()),
            found_formats(records.column(name), channels=feature.channels),
        )
        facts[name] = facts[name].merge(merged) if name in facts else merged


def _frame_facts(clips: pa.LargeListArray, frame: Image) -> ImageFacts:
    """The common properties of the frames of clips, of which each has frames of one size."""
    firsts = (clip[0].as_py() for clip in clips if len(clip))
    sizes = {(header.height, header.width) for header in map(read_header, firsts)}
    heights, widths = ({size[side] for size in sizes} for side in (0, 1))
    return ImageFacts(
        heights.pop() if len(heights) == 1 else None,
        widths.pop() if len(widths) == 1 else None,
        False,
        found_formats(clips.flatten(), channels=frame.channels),
    )
