"""Writes shards: merges a key range of all runs, encodes, verifies, puts them in place.

Consecutive small shards are written as a group: their records are merged together, once, and cut
at the shards' ends; and their files are put in place together, since a disk makes many files
durable at once. For example, 1,000 shards of 100 records in 50 runs become groups of 15: each run
is read 67 times, not 1,000 times.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.blocks import ShardInfo, ShardPlan, SplitPlan
from ...schemas.errors import DamagedWorkError, StorageError
from ...schemas.features import RESERVED_PREFIX, ClassLabel, Features, is_optional
from ...schemas.naming import ShardName, Workspace, join
from ...schemas.progress import Counted
from ...schemas.shards import Compression
from .. import storage
from ..activity import count, working_on
from ..runs.files import (
    ID,
    KEY,
    MERGE_BYTES,
    NUM_BYTES,
    PARTITION,
    KeyRange,
    RunReader,
    merge_range,
    records_within,
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
from ..storage.artifacts import is_lost, read_artifact, write_artifact
from .encode import encode_examples
from .index import class_codes, index_bytes, labels_bytes, write_index_table
from .sizing import LENGTH_RECORDS, ApplyGraph, list_lengths, varying_lists
from .statistics import ExampleMeasures, ShardStatistics
from .tfrecord import scan_tfrecord, stored_chunks, write_tfrecord

_EXAMPLE = RESERVED_PREFIX + "example"
"""A column of the records of several shards: they are encoded together."""
_GRAPH_BYTES = 24 << 20
"""Bytes of records to which a graph is applied at once."""
_INFOS_AT_ONCE = 256
_MIN_GROUPS = 64
"""Shards are written in at least this many groups, if there are so many."""

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
    select = functools.partial(
        rows_of_shard, split=split, shard=shard, prepared=prepared, stratify_by=stratify_by
    )
    return filter(len, map(select, merge_range(readers, _keys_of([shard]))))


def _keys_of(shards: Sequence[ShardPlan]) -> KeyRange:
    """The key range of consecutive shards of a split."""
    return KeyRange(shards[0].partition, shards[0].start_key, shards[-1].stop_key)


def group_shards(numbers: Sequence[int], shards: Sequence[ShardPlan]) -> list[tuple[int, int]]:
    """Groups shards that are written together: consecutive ones of a split, and small together.

    A group has at most a 64th of the shards, so that all workers have work, and as many bytes as
    are merged at once.

    Args:
        numbers: Numbers of the shards to write, ascending.
        shards: All planned shards, by number.

    Returns:
        [first, stop) of each group's numbers.
    """
    most = math.ceil(len(numbers) / _MIN_GROUPS)
    groups: list[tuple[int, int]] = []
    num_bytes = 0
    for number in numbers:
        shard = shards[number]
        num_bytes += shard.num_bytes
        if (
            groups
            and groups[-1][1] == number
            and number - groups[-1][0] < most
            and shards[groups[-1][0]].split == shard.split
            and num_bytes <= MERGE_BYTES
        ):
            groups[-1] = (groups[-1][0], number + 1)
        else:
            groups.append((number, number + 1))
            num_bytes = shard.num_bytes
    return groups


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

    statistics: ShardStatistics
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
    """Writes shards of one snapshot, group by group; reuses what is expensive to set up."""

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
        self._measures = ExampleMeasures(settings.final)

    def write(
        self,
        split: SplitPlan,
        shards: Sequence[ShardPlan],
        *,
        records: ReadRecords | None = None,
    ) -> None:
        """Writes shards and their index files into the snapshot's folder, unless they exist.

        Idempotent: a shard whose files exist with the lengths they were written with is left as it
        is. What describes the shards is put in place after all of their files; on a store, at any
        time. Whoever reads it compares the lengths of the files.

        Args:
            split: The shards' split.
            shards: A shard, or several consecutive ones that are small together.
            records: The records of a single shard; by default they are read from the runs, range by
                range. The bytes do not depend on how they are batched.

        Raises:
            DamagedWorkError: if a file does not read back with the planned examples.
            StorageError: if a file cannot be written.
        """
        settings = self._settings
        names = [shard_name(shard, settings) for shard in shards]
        missing = [
            (name, shard)
            for name, shard in zip(names, shards, strict=True)
            if read_shard_info(settings, name) is None
        ]
        if not missing:
            return
        what = f"writing shard {names[0]}" + (f" to {names[-1]}" if len(names) > 1 else "")
        with working_on(what), storage.scratch_folder(settings.workspace.root) as scratch:
            if records is None:
                read = self._reading(split, [shard for _, shard in missing])
            else:
                read = functools.partial(_given, records(scratch))
            written = [self._write(name, shard, read(shard), scratch) for name, shard in missing]
            files = itertools.chain.from_iterable(files for files, _ in written)
            # After a loss of power an info may be there without its shard: what an earlier build
            # left is checked.
            storage.put_files([*files, *(info for _, info in written)])

    def _reading(
        self, split: SplitPlan, shards: Sequence[ShardPlan]
    ) -> Callable[[ShardPlan], Iterator[pa.RecordBatch]]:
        """Returns what reads the records of each of the shards."""
        settings = self._settings
        # How records are batched may change last bits of what a graph computes.
        if len(shards) == 1 or self._apply_graph is not None:
            return lambda shard: records_of(
                self._readers,
                split=split,
                shard=shard,
                prepared=settings.prepared,
                stratify_by=settings.stratify_by,
            )
        merged = [
            records.append_column(_EXAMPLE, encode_examples(records.select(self._columns)))
            for records in merge_range(self._readers, _keys_of(shards))
        ]

        def read(shard: ShardPlan) -> Iterator[pa.RecordBatch]:
            for records in merged:
                inside = records_within(records, _keys_of([shard]))
                if inside.num_rows:
                    yield rows_of_shard(
                        inside,
                        split=split,
                        shard=shard,
                        prepared=settings.prepared,
                        stratify_by=settings.stratify_by,
                    )

        return read

    def _write(
        self, name: ShardName, shard: ShardPlan, batches: Iterator[pa.RecordBatch], scratch: str
    ) -> tuple[list[tuple[str, str]], tuple[str, str]]:
        """Writes the files of a shard to a scratch folder.

        Returns:
            Each file with its URL: the shard after its index; and the file that describes it.
        """
        settings = self._settings
        path = os.path.join(scratch, str(name))
        noted = _Noted(ShardStatistics(self._measures, num_shards=shard.num_shards))
        if self._apply_graph is not None:
            batches = _batches_for_graph(batches)
        written = write_tfrecord(
            path,
            map(functools.partial(self._examples, shard=shard, noted=noted), batches),
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
        table = pa.BufferOutputStream()
        write_index_table(table, noted.ids, numbered=settings.numbered)
        contents = {
            offsets_file: index_bytes(written.offsets, written.lengths),
            table_file: table.getvalue().to_pybytes(),
        }
        if settings.has_classes:
            contents[name.labels_file] = labels_bytes(noted.classes)
        info = ShardInfo(
            file=str(name),
            num_examples=written.num_examples,
            num_bytes=written.num_bytes,
            sha256=hasher.hexdigest(),
            # The manifest keeps at most MAX_LABELS of them; class names are a bounded list.
            label_counts=(
                dict(sorted(noted.labels.items()))
                if settings.has_classes
                else most_frequent(noted.labels)
            ),
            lengths=noted.lengths,
            num_missing=dict(sorted(noted.num_missing.items())),
            statistics=noted.statistics.to_json(),
            start_key=shard.start_key,
            stop_key=shard.stop_key,
            index_files={
                file: (len(content), hashlib.sha256(content).hexdigest())
                for file, content in contents.items()
            },
            checksum=written.checksum,
        )
        files = []
        for file, content in contents.items():
            local = os.path.join(scratch, os.path.basename(file))
            with open(local, "xb") as index_file:
                index_file.write(content)
            files.append((local, join(settings.snapshot, file)))
        files.append((path, join(settings.snapshot, str(name))))
        content = json.dumps(info.to_json(), sort_keys=True).encode()
        info_path = f"{path}.json"
        write_artifact(info_path, content, what=_what(settings, name))
        return files, (info_path, _info_url(settings, name))

    def _examples(
        self, records: pa.RecordBatch, *, shard: ShardPlan, noted: _Noted
    ) -> pa.LargeBinaryArray:
        """Serializes records of a shard; collects what the index needs on the way."""
        settings = self._settings
        label = settings.final.get(settings.label) if settings.label else None
        count(Counted(records.num_rows, num_bytes=pc.sum(records.column(NUM_BYTES)).as_py() or 0))
        noted.ids.append(bytes_texts(records.column(ID)))
        columns = records.select(self._columns)
        if self._apply_graph is not None:
            columns = self._apply_graph(columns)
        if label is not None and is_countable(label):
            noted.labels.update(count_labels(columns.column(settings.label), label))
        if settings.has_classes:
            noted.classes.append(class_codes(columns.column(settings.label)))
        noted.statistics.add(columns)
        noted.count_missing(columns, settings.final)
        noted.measure(columns, settings.final, up_to=math.ceil(LENGTH_RECORDS / shard.num_shards))
        is_encoded = _EXAMPLE in records.schema.names
        return records.column(_EXAMPLE) if is_encoded else encode_examples(columns)


def _batches_for_graph(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same records, batched by nothing but themselves, from the start of their shard on.

    How records are batched may change last bits of what a graph computes, and range reads and the
    engine's shuffle batch them differently.
    """
    held: list[pa.RecordBatch] = []
    num_bytes = 0
    for batch in batches:
        held.append(batch)
        num_bytes += pc.sum(batch.column(NUM_BYTES)).as_py()
        if num_bytes < _GRAPH_BYTES:
            continue
        records = pa.concat_batches(held)
        ends = np.cumsum(records.column(NUM_BYTES).to_numpy(), dtype=np.int64)
        start = before = 0
        while (stop := 1 + int(np.searchsorted(ends, before + _GRAPH_BYTES))) <= len(ends):
            yield records.slice(start, stop - start)
            start, before = stop, int(ends[stop - 1])
        held, num_bytes = [records.slice(start)], int(ends[-1]) - before
    if any(batch.num_rows for batch in held):
        yield pa.concat_batches(held)


def _given(batches: Iterator[pa.RecordBatch], _: ShardPlan) -> Iterator[pa.RecordBatch]:
    return batches


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
    content = read_artifact(_info_url(settings, name), what=_what(settings, name))
    if content is None:
        return None
    info = ShardInfo.from_json(json.loads(content))
    sizes = {info.file: info.num_bytes} | {k: v[0] for k, v in info.index_files.items()}
    for file, num_bytes in sizes.items():
        if storage.size_of(join(settings.snapshot, file)) != num_bytes:
            return None
    return info


def read_shard_infos(
    settings: ShardSettings, names: Sequence[ShardName]
) -> Iterator[ShardInfo | None]:
    """:func:`read_shard_info` for many shards, in order; concurrent on object stores."""
    read = functools.partial(read_shard_info, settings)
    with ThreadPoolExecutor(storage.num_requests(settings.snapshot)) as pool:
        # Not all at once: what was measured of ten thousand shards is half a gigabyte.
        for start in range(0, len(names), _INFOS_AT_ONCE):
            yield from pool.map(read, names[start : start + _INFOS_AT_ONCE])


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
            storage.remove_tree(_info_url(settings, name))
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


def _info_url(settings: ShardSettings, name: ShardName) -> str:
    return settings.workspace.shard_info(settings.fingerprint, str(name))


def _what(settings: ShardSettings, name: ShardName) -> str:
    return f"shard-5 {settings.fingerprint} {settings.contents} {name}"


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
