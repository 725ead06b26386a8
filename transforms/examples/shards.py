"""Writes single shards: merges a key range of all runs, encodes, verifies, puts it in place."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.blocks import ShardInfo, ShardPlan, SplitPlan
from ...schemas.errors import DamagedWorkError, StorageError
from ...schemas.features import ClassLabel, Features, is_optional
from ...schemas.naming import ShardName, Workspace, join
from ...schemas.shards import Compression
from .. import storage
from ..activity import advance, working_on
from ..runs.files import (
    ID,
    KEY,
    PARTITION,
    KeyRange,
    RunReader,
    merge_range,
    wire_schema,
)
from ..runs.partitions import (
    bytes_texts,
    count_labels,
    is_countable,
    most_frequent,
    select_rows,
    strata_of,
)
from ..runs.summary import RunEntry, run_readers
from ..storage.artifacts import is_lost, put_artifact, read_artifact
from .encode import encode_examples
from .index import class_codes, index_bytes, labels_bytes, write_index_table
from .sizing import LENGTH_RECORDS, ApplyGraph, list_lengths, varying_lists
from .tfrecord import scan_tfrecord, stored_chunks, write_tfrecord

ReadRecords = Callable[[str], Iterator[pa.RecordBatch]]
"""Given a local scratch folder, yields a shard's records in their final order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """Settings shared by all shards of a snapshot, as plain data sent to every worker."""

    workspace: Workspace
    snapshot: str
    """The snapshot's folder, where finished shards go."""
    fingerprint: str
    contents: str
    """Digest of the contents of the runs and the graph; shards made of others are not reused."""
    prepared: Features
    """Features of the runs."""
    final: Features
    """Features of the examples."""
    label: str | None
    compression: Compression
    numbered: bool
    """Whether record ids are ``path#position``."""
    stratify_by: str | None
    graph: str | None
    """The transform graph's folder; None without a ``preprocessing_fn``."""

    @property
    def has_classes(self) -> bool:
        """Whether the label is a class."""
        return self.label is not None and isinstance(self.final[self.label], ClassLabel)


def records_of(
    readers: Sequence[RunReader],
    *,
    split: SplitPlan,
    shard: ShardPlan,
    prepared: Features,
    stratify_by: str | None,
) -> Iterator[pa.RecordBatch]:
    """The records of a shard in their final order, in batches of bounded size."""
    for records in merge_range(readers, KeyRange(shard.partition, shard.start_key, shard.stop_key)):
        kept = rows_of_shard(
            records, split=split, shard=shard, prepared=prepared, stratify_by=stratify_by
        )
        if kept.num_rows:
            yield kept


def rows_of_shard(
    records: pa.RecordBatch,
    *,
    split: SplitPlan,
    shard: ShardPlan,
    prepared: Features,
    stratify_by: str | None,
) -> pa.RecordBatch:
    """Selects the records that belong to a shard; keeps their order."""
    strata = strata_of(records, prepared, stratify_by) if split.strata is not None else None
    mask = select_rows(
        split,
        shard,
        partitions=records.column(PARTITION).to_numpy(),
        keys=records.column(KEY).to_numpy(),
        strata=strata,
    )
    return records if mask.all() else records.filter(pa.array(mask))


@dataclasses.dataclass
class _Noted:
    """Facts collected about a shard's records while they are written, in their order."""

    labels: Counter[str] = dataclasses.field(default_factory=Counter)
    ids: list[pa.Array] = dataclasses.field(default_factory=list)
    classes: list[npt.NDArray[np.int32]] = dataclasses.field(default_factory=list)
    """One array per batch; empty if the label is not a class."""
    lengths: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    """Lengths of the lists in the first records, by feature."""
    num_missing: Counter[str] = dataclasses.field(default_factory=Counter)
    """Number of records without a value, by feature."""

    def count_missing(self, columns: pa.RecordBatch, features: Features) -> None:
        """Counts the records without a value of each feature that may be missing."""
        for name, feature in features.items():
            if is_optional(feature):
                self.num_missing[name] += columns.column(name).null_count

    def measure(self, columns: pa.RecordBatch, features: Features, *, up_to: int) -> None:
        """Collects the lengths of lists until ``up_to`` records are measured."""
        for name in varying_lists(features):
            known = self.lengths.setdefault(name, [])
            rows = columns.slice(0, up_to - len(known))
            if rows.num_rows:
                known.extend(list_lengths(rows, name, features[name]).tolist())


class ShardWriter:
    """Writes shards of one snapshot, one at a time; reuses what is expensive to set up."""

    def __init__(
        self,
        settings: ShardSettings,
        entries: Sequence[RunEntry],
        *,
        apply_graph: ApplyGraph | None = None,
    ) -> None:
        """Opens readers for the runs.

        Args:
            settings: Of the snapshot.
            entries: The runs; none if records are passed to :meth:`write`.
            apply_graph: Applies the transform graph of the settings, if there is one.
        """
        assert (apply_graph is None) == (settings.graph is None), "a graph must be applied"
        self._settings = settings
        self._readers = run_readers(entries, settings.workspace, settings.prepared)
        self._apply_graph = apply_graph
        self._columns = wire_schema(settings.prepared).names

    def write(
        self, split: SplitPlan, shard: ShardPlan, *, records: ReadRecords | None = None
    ) -> ShardInfo:
        """Writes a shard and its index files into the snapshot's folder, unless they exist.

        Idempotent: if the shard's files exist with the lengths they were written with, returns
        what is stored about them.

        Args:
            split: The shard's split.
            shard: The shard to write.
            records: Its records; by default they are read from the runs, range by range. The
                bytes do not depend on how they are batched.

        Raises:
            DamagedWorkError: if the file does not read back with the planned examples.
            StorageError: if a file cannot be written.
        """
        settings = self._settings
        name = shard_name(shard, settings)
        done = read_shard_info(settings, name)
        if done is not None:
            return done
        if records is None:
            records = functools.partial(self._read, split, shard)
        with (
            working_on(f"writing shard {name}"),
            storage.scratch_folder(settings.workspace.root) as scratch,
        ):
            return self._write(name, shard, records(scratch), scratch)

    def _read(self, split: SplitPlan, shard: ShardPlan, _: str) -> Iterator[pa.RecordBatch]:
        return records_of(
            self._readers,
            split=split,
            shard=shard,
            prepared=self._settings.prepared,
            stratify_by=self._settings.stratify_by,
        )

    def _write(
        self, name: ShardName, shard: ShardPlan, batches: Iterator[pa.RecordBatch], scratch: str
    ) -> ShardInfo:
        settings = self._settings
        path = os.path.join(scratch, str(name))
        noted = _Noted()
        written = write_tfrecord(
            path,
            self._examples(batches, shard, noted=noted),
            compression=settings.compression,
        )
        hasher = hashlib.sha256()
        scan = scan_tfrecord(path, settings.compression, hasher=hasher)
        scan.check(path)
        if not scan.num_records == written.num_examples == shard.num_examples:
            raise DamagedWorkError(
                f"{name}: planned {shard.num_examples:,} examples, wrote "
                f"{written.num_examples:,}, read back {scan.num_records:,}. The workspace "
                f"{settings.workspace.root} may be damaged: remove it and build again."
            )
        offsets_file, table_file = name.index_files
        offsets = index_bytes(written.offsets, written.lengths)
        table_path = os.path.join(scratch, "index.parquet")
        write_index_table(table_path, noted.ids, numbered=settings.numbered)
        contents = {offsets_file: offsets}
        if settings.has_classes:
            contents[name.labels_file] = labels_bytes(noted.classes)
        info = ShardInfo(
            file=str(name),
            num_examples=written.num_examples,
            num_bytes=os.path.getsize(path),
            sha256=hasher.hexdigest(),
            # The manifest keeps at most MAX_LABELS of them; class names are a bounded list.
            label_counts=(
                dict(sorted(noted.labels.items()))
                if settings.has_classes
                else most_frequent(noted.labels)
            ),
            lengths=noted.lengths,
            num_missing=dict(sorted(noted.num_missing.items())),
            start_key=shard.start_key,
            stop_key=shard.stop_key,
            index_files={
                table_file: (os.path.getsize(table_path), storage.sha256_of(table_path)),
                **{
                    file: (len(content), hashlib.sha256(content).hexdigest())
                    for file, content in contents.items()
                },
            },
            checksum=written.checksum,
        )
        for file, content in contents.items():
            storage.put_bytes(join(settings.snapshot, file), content)
        storage.put_file(table_path, join(settings.snapshot, table_file))
        storage.put_file(path, join(settings.snapshot, str(name)))
        # This commits the shard.
        url = settings.workspace.shard_info(settings.fingerprint, str(name))
        content = json.dumps(info.to_json(), sort_keys=True).encode()
        put_artifact(url, content, what=_what(settings, name))
        return info

    def _examples(
        self, batches: Iterator[pa.RecordBatch], shard: ShardPlan, *, noted: _Noted
    ) -> Iterator[pa.LargeBinaryArray]:
        """Yields the shard's serialized examples; collects what the index needs on the way."""
        settings = self._settings
        label = settings.final.get(settings.label) if settings.label else None
        for records in batches:
            advance()
            noted.ids.append(bytes_texts(records.column(ID)))
            columns = records.select(self._columns)
            if self._apply_graph is not None:
                columns = self._apply_graph(columns)
            if label is not None and is_countable(label):
                noted.labels.update(count_labels(columns.column(settings.label), label))
            if settings.has_classes:
                noted.classes.append(class_codes(columns.column(settings.label)))
            noted.count_missing(columns, settings.final)
            noted.measure(
                columns, settings.final, up_to=math.ceil(LENGTH_RECORDS / shard.num_shards)
            )
            yield encode_examples(columns)


def number_shards(splits: Sequence[SplitPlan]) -> list[tuple[SplitPlan, ShardPlan]]:
    """All shards, each with its split, in the plan's order: the index is its number in jobs."""
    return [(split, shard) for split in splits for shard in split.shards]


def shard_name(shard: ShardPlan, settings: ShardSettings) -> ShardName:
    """The file name of a planned shard."""
    return ShardName(
        split=shard.split,
        index=shard.index,
        num_shards=shard.num_shards,
        compression=settings.compression,
    )


def read_shard_info(settings: ShardSettings, name: ShardName) -> ShardInfo | None:
    """Describes a finished shard; None if it has not been written yet."""
    url = settings.workspace.shard_info(settings.fingerprint, str(name))
    content = read_artifact(url, what=_what(settings, name))
    if content is None:
        return None
    info = ShardInfo.from_json(json.loads(content))
    sizes = {info.file: info.num_bytes} | {k: v[0] for k, v in info.index_files.items()}
    for file, num_bytes in sizes.items():
        if storage.size_of(join(settings.snapshot, file)) != num_bytes:
            return None
    return info


def read_shard_infos(settings: ShardSettings, names: Sequence[ShardName]) -> list[ShardInfo | None]:
    """:func:`read_shard_info` for many shards, in order; concurrent on object stores."""
    with ThreadPoolExecutor(storage.num_requests(settings.snapshot)) as pool:
        return list(pool.map(functools.partial(read_shard_info, settings), names))


def checked_shard(settings: ShardSettings, name: ShardName) -> ShardInfo | None:
    """Describes a shard that an earlier build left, after checking its files against their hashes.

    None if it has not been written yet. If it or its index is damaged, removes its description
    and returns None.
    """
    info = read_shard_info(settings, name)
    if info is None:
        return None
    hashes = {info.file: info.sha256} | {k: v[1] for k, v in info.index_files.items()}
    for file, sha256 in hashes.items():
        if _stored_sha256(join(settings.snapshot, file)) != sha256:
            storage.remove_tree(settings.workspace.shard_info(settings.fingerprint, str(name)))
            return None
    return info


def missing_shards(settings: ShardSettings, names: Sequence[ShardName]) -> list[ShardName]:
    """The shards that have not been written yet; reads and checks those that earlier builds left.

    Uses a thread per core, since hashing releases the GIL; more threads on object stores.
    """
    at_once = storage.num_requests(settings.snapshot, local=os.cpu_count() or 1)
    with ThreadPoolExecutor(at_once) as pool:
        infos = list(pool.map(functools.partial(checked_shard, settings), names))
    return [name for name, info in zip(names, infos, strict=True) if info is None]


def _what(settings: ShardSettings, name: ShardName) -> str:
    return f"shard-4 {settings.fingerprint} {settings.contents} {name}"


def _stored_sha256(url: str) -> str | None:
    """Hash of a stored file, hex; None if it is missing or can no longer be read."""
    hasher = hashlib.sha256()
    try:
        for chunk in stored_chunks(url):
            hasher.update(chunk)
    except StorageError as error:
        if is_lost(error):
            return None
        raise
    return hasher.hexdigest()
