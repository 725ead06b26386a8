"""Checks the contents of a snapshot's files, and locates the damage of those that differ.

A shard is compared record by record, an index with its shard, a file of the reader by whether it
is still usable. Memory holds a chunk of a shard, or the index of one shard.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...schemas.errors import SnapshardError, StorageError
from ...schemas.features import ClassLabel, Feature
from ...schemas.manifest import (
    MAX_LABELS,
    FileEntry,
    Manifest,
    ShardEntry,
)
from ...schemas.naming import READER_FACTS, REJECTS, ShardName, is_reader_file, join
from ...transforms.examples.decode import example_features, int64_values
from ...transforms.examples.index import class_codes_from_bytes, index_from_bytes
from ...transforms.examples.tfrecord import (
    FRAME_BYTES,
    Frames,
    Scan,
    scan_tfrecord,
    stored_examples,
)
from ...transforms.rejects import printable
from ...transforms.storage.opened_source import path_bytes
from ..inventory.exclusions import IdList
from ..snapshot import FoundFile, SnapshotFiles, reader_file_of
from .verify_report import Absence, Finding, Findings, Kind

_SLACK_BYTES = 1 << 20
_MAX_CODE_BYTES = 4 << 20
"""About 100 times the size of a reader's file: anything longer is not one, however edited."""
_MAX_RECORD_BYTES = 1 << 48
"""No record is this long: an index that states such a length is invalid."""
_TABLE_COLUMNS = ["id", "source", "position"]


class ContentChecker:
    """Checks the contents of one snapshot's files."""

    def __init__(self, files: SnapshotFiles, manifest: Manifest, findings: Findings) -> None:
        """Reads nothing yet."""
        self._files = files
        self._manifest = manifest
        self._findings = findings
        shards = [shard for split in manifest.splits.values() for shard in split.shards]
        self._shards = {shard.file: shard for shard in shards}
        label = manifest.features.get(manifest.label) if manifest.label is not None else None
        self._label = label
        self._index: dict[str, tuple[ShardEntry, Callable[[bytes], object]]] = {}
        for shard in shards:
            name = ShardName.parse(shard.file)
            if name is None:
                continue
            offsets, table = name.index_files
            size = shard.num_bytes if name.compression == "none" else None
            self._index |= {
                offsets: (shard, partial(_check_offsets, shard=shard, num_bytes=size)),
                table: (shard, partial(_check_table, shard=shard)),
                name.labels_file: (shard, partial(_check_labels, shard=shard, label=label)),
            }
        self._damaged: set[str] = set()
        """Files that differ, and are not far too long: their damage is located."""

    def check(self, name: str, there: FoundFile) -> None:
        """Checks a file against its hash; an intact index file also against its shard's entry."""
        entry = self._manifest.files[name]
        try:
            if is_reader_file(name) or (name in self._index and not _is_far_longer(there, entry)):
                self._check_small(name, entry, there)
                return
            sha256 = self._files.sha256(name, there.num_bytes)
        except StorageError as error:
            self._findings.unchecked(name, str(error))
            return
        if (sha256, there.num_bytes) != (entry.sha256, entry.bytes):
            self._differs(name, entry, there.num_bytes)

    def _check_small(self, name: str, entry: FileEntry, there: FoundFile) -> None:
        """Reads a file of an index or of the reader into memory."""
        if is_reader_file(name) and there.num_bytes > _MAX_CODE_BYTES:
            self._findings.damage(name, "length", length_text(there.num_bytes, entry))
            return
        content = self._files.read(name)
        sha256 = hashlib.sha256(content).hexdigest()
        same = (sha256, len(content)) == (entry.sha256, entry.bytes)
        if not same and not is_reader_file(name):
            self._differs(name, entry, len(content))
        elif not same:
            _check_code(name, content, self._manifest, self._findings)
        elif name in self._index:
            try:
                self._index[name][1](content)
            except _StaleIndexError as error:
                self._note_stale(name, error)

    def _differs(self, name: str, entry: FileEntry, num_bytes: int) -> None:
        """Notes that a file is not what was written."""
        what = "its content is not what was written (sha256 differs)"
        kind: Kind = "content"
        if num_bytes != entry.bytes:
            kind, what = "length", length_text(num_bytes, entry)
        self._findings.damage(name, kind, what)
        if num_bytes <= _most_bytes(entry) or name in self._shards:
            self._damaged.add(name)

    def locate_damage(self, present: set[str]) -> None:
        """Names the damaged records of shards, and the wrong entries of index files."""
        for shard in self._shards.values():
            name = ShardName.parse(shard.file)
            if name is None:
                continue
            files = {*name.index_files, name.labels_file}
            if shard.file in self._damaged or files & self._damaged:
                try:
                    self._locate_in_shard(shard, name, present)
                except SnapshardError as error:
                    self._findings.unchecked(shard.file, str(error))

    def _locate_in_shard(self, shard: ShardEntry, name: ShardName, present: set[str]) -> None:
        offsets, table = name.index_files
        ids = self._ids(table, present)
        known: Frames | None = None
        if offsets in present and offsets not in self._damaged:
            with contextlib.suppress(_StaleIndexError):
                known = _check_offsets(self._files.read(offsets), shard, num_bytes=None)
        scan: Scan | None = None
        intact = shard.file in present and shard.file not in self._damaged
        if shard.file in self._damaged or (intact and offsets in self._damaged):
            scan = scan_tfrecord(
                join(self._files.folder, shard.file), name.compression, known=known
            )
        if scan is not None and not intact:
            self._note_records(shard, scan, known, ids=ids)
        for file in (offsets, table, name.labels_file):
            if file not in self._damaged:
                continue
            content = self._files.read(file)
            try:
                if file == offsets and scan is not None:
                    _check_against_frames(content, scan.frames, shard)
                self._index[file][1](content)
                if file == name.labels_file and intact and isinstance(self._label, ClassLabel):
                    examples = stored_examples(
                        join(self._files.folder, shard.file), name.compression
                    )
                    _check_against_examples(
                        content, examples, name=str(self._manifest.label), label=self._label
                    )
            except _StaleIndexError as error:
                record_id = None if error.record is None else ids(error.record)
                self._note_stale(file, error, record_id=record_id)

    def _note_records(
        self,
        shard: ShardEntry,
        scan: Scan,
        known: Frames | None,
        *,
        ids: Callable[[int], str | None],
    ) -> None:
        """Names the damaged records of a shard, or says that it holds other records."""
        note = self._findings.damage
        for broken in scan.broken:
            note(
                shard.file,
                "record",
                broken.what,
                record=broken.number,
                offset=broken.offset,
                record_id=ids(broken.number),
            )
        if scan.num_broken > len(scan.broken):
            more = scan.num_broken - len(scan.broken)
            note(shard.file, "record", f"{more:,} more records are broken, all after those")
        if scan.ending is not None:
            note(shard.file, "record", f"after record {scan.num_records - 1:,}: {scan.ending}")
        if scan.num_records != shard.num_examples:
            what = f"it holds {scan.num_intact:,} intact records, expected {shard.num_examples:,}"
            odd = None if known is None else _first_differing(scan.frames, known)
            if odd is not None and not scan.num_broken:
                what += f"; from record {odd:,} on, they are not those that were written"
            elif scan.num_records < shard.num_examples:
                first = ids(scan.num_records)
                shown = "" if first is None else f" (id {first!r})"
                what += f"; record {scan.num_records:,}{shown} is the first missing one"
            note(shard.file, "record", what)
        elif not scan.num_broken and scan.ending is None:
            odd = _first_differing(scan.frames, known) if known is not None else None
            if odd is None:
                what = "all its records are intact, but are not those that were written"
                if shard.file.endswith(".gz"):
                    what += ", or only the header of the GZIP file was changed"
                note(shard.file, "record", what)
                return
            what = (
                f"is not what was written: it has {int(scan.frames[1][odd]):,} bytes, but the "
                f"index states {int(known[1][odd]):,}"  # type: ignore[index]
            )
            offset = int(scan.frames[0][odd])
            note(shard.file, "record", what, record=odd, offset=offset, record_id=ids(odd))

    def _note_stale(
        self, file: str, error: _StaleIndexError, *, record_id: str | None = None
    ) -> None:
        self._findings.damage(
            file,
            "index",
            f"does not match its shard: it {error}",
            record=error.record,
            offset=error.offset,
            record_id=record_id,
        )

    def _ids(self, table: str, present: set[str]) -> Callable[[int], str | None]:
        """A function that finds the id of a record; it returns None if the table is unusable."""
        if table not in present or table in self._damaged:
            return lambda record: None
        content: list[bytes] = []

        def find(record: int) -> str | None:
            if not content:
                content.append(self._files.read(table))
            return read_id(content[0], record)

        return find


def _first_differing(found: Frames, known: Frames) -> int | None:
    both = min(len(found[1]), len(known[1]))
    wrong = np.flatnonzero(found[1][:both] != known[1][:both])
    return int(wrong[0]) if len(wrong) else None


def _most_bytes(entry: FileEntry) -> int:
    """The greatest length of an index file that is read into memory."""
    return 2 * entry.bytes + _SLACK_BYTES


def _is_far_longer(there: FoundFile, entry: FileEntry) -> bool:
    return there.num_bytes > _most_bytes(entry)


def length_text(num_bytes: int, entry: FileEntry) -> str:
    """How the length of a file differs from the manifest."""
    return f"has {num_bytes:,} bytes, expected {entry.bytes:,}"


def _check_code(name: str, content: bytes, manifest: Manifest, findings: Findings) -> None:
    """Notes of a changed file of the reader whether it is still usable."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
    except SyntaxError as error:
        where = "" if error.lineno is None else f" (line {error.lineno}: {error.msg})"
        findings.damage(name, "content", f"it is no longer Python{where}")
        return
    except (ValueError, RecursionError, MemoryError) as error:
        findings.damage(name, "content", f"it is no longer Python ({error})")
        return
    fingerprint = _constant(tree, "FINGERPRINT")
    states_it = fingerprint is not None or name == reader_file_of(manifest.files)
    if states_it and fingerprint != manifest.fingerprint:
        read = "no snapshot" if fingerprint is None else f"the snapshot {fingerprint}"
        what = f"it reads {read}, but this one is {manifest.fingerprint}"
        findings.damage(name, "foreign", what)
        return
    if name == READER_FACTS:
        what = "its constants, such as class names, are not what was written (sha256 differs)"
        findings.damage(name, "content", what)
        return
    what = "was edited after it was written; all other files are checked as usual"
    findings.warn(name, "edited", what)


def _constant(tree: ast.Module, name: str) -> object:
    """The constant that a module assigns to a name at its top level; None if there is none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    return node.value.value
    return None


class _StaleIndexError(Exception):
    """A wrong entry of an index file; ``record`` and ``offset`` say of which record, if known."""

    def __init__(self, what: str, *, record: int | None = None, offset: int | None = None) -> None:
        """``what`` continues a sentence that begins with "it"."""
        super().__init__(what)
        self.record = record
        self.offset = offset


def _check_offsets(content: bytes, shard: ShardEntry, *, num_bytes: int | None) -> Frames:
    """Reads ``<shard>.idx``, and checks that frames are contiguous and fill the shard.

    Args:
        content: The content of the file.
        shard: The shard's entry in the manifest.
        num_bytes: Uncompressed size of the shard; None if unknown.

    Raises:
        _StaleIndexError: if they are not.
    """
    try:
        offsets, lengths = index_from_bytes(content)
    except ValueError as error:
        raise _StaleIndexError(str(error)) from None
    _check_count(len(offsets), shard)
    if not len(offsets):
        return offsets, lengths
    odd = np.flatnonzero((lengths < FRAME_BYTES) | (lengths >= _MAX_RECORD_BYTES))
    if len(odd):
        n = int(odd[0])
        raise _StaleIndexError(f"states a length of {int(lengths[n]):,} bytes", record=n)
    ends = np.cumsum(lengths)
    wrong = np.flatnonzero(offsets != ends - lengths)
    if len(wrong):
        n = int(wrong[0])
        raise _StaleIndexError(
            f"states the offset {int(offsets[n]):,}, but the records before it end at "
            f"{int(ends[n] - lengths[n]):,}",
            record=n,
        )
    if num_bytes is not None and int(ends[-1]) != num_bytes:
        raise _StaleIndexError(
            f"states that the records end at byte {int(ends[-1]):,}, but the shard has "
            f"{num_bytes:,} bytes"
        )
    return offsets, lengths


def _check_against_frames(content: bytes, found: Frames, shard: ShardEntry) -> None:
    """Checks ``<shard>.idx`` against the actual frames of the shard.

    Raises:
        _StaleIndexError: naming the first record with a wrong entry.
    """
    try:
        offsets, lengths = index_from_bytes(content)
    except ValueError as error:
        raise _StaleIndexError(str(error)) from None
    both = min(len(offsets), len(found[0]))
    wrong = np.flatnonzero(
        (offsets[:both] != found[0][:both]) | (lengths[:both] != found[1][:both])
    )
    if len(wrong):
        n = int(wrong[0])
        what = (
            f"states {int(lengths[n]):,} bytes from byte {int(offsets[n]):,}, where no record "
            f"begins: the shard has it at byte {int(found[0][n]):,}, {int(found[1][n]):,} bytes "
            "long"
        )
        if offsets[n] == found[0][n]:
            what = f"states {int(lengths[n]):,} bytes, but the record has {int(found[1][n]):,}"
        if len(wrong) > 1:
            what += f"; {len(wrong):,} records are affected"
        raise _StaleIndexError(what, record=n, offset=int(found[0][n]))
    _check_count(len(offsets), shard)


def _check_table(content: bytes, shard: ShardEntry) -> None:
    """Checks that ``<shard>.parquet`` is a table of ids, one for each record.

    Raises:
        _StaleIndexError: if it is not.
    """
    try:
        metadata = pq.read_metadata(io.BytesIO(content))
        names = metadata.schema.to_arrow_schema().names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _StaleIndexError(f"is not a Parquet file: {_first_line(error)}") from None
    if names != _TABLE_COLUMNS:
        raise _StaleIndexError(
            f"has the columns {', '.join(names)}, expected {', '.join(_TABLE_COLUMNS)}"
        )
    _check_count(metadata.num_rows, shard)


def _check_labels(content: bytes, shard: ShardEntry, *, label: Feature | None) -> None:
    """Checks that ``<shard>.labels`` has the counts of classes that the manifest states.

    Raises:
        _StaleIndexError: if it does not.
    """
    try:
        codes = class_codes_from_bytes(content)
    except ValueError as error:
        raise _StaleIndexError(str(error)) from None
    _check_count(len(codes), shard)
    if not isinstance(label, ClassLabel):
        return
    odd = np.flatnonzero((codes < -1) | (codes >= len(label.names)))
    if len(odd):
        n = int(odd[0])
        raise _StaleIndexError(
            f"states the class {int(codes[n])}, but there are {len(label.names):,}", record=n
        )
    unknown = sorted(shard.label_counts.keys() - set(label.names))
    if unknown:
        raise _StaleIndexError(
            f"has no records of {unknown[0][:100]!r}, which manifest.json counts but is not a class"
        )
    if len(shard.label_counts) >= MAX_LABELS:
        return
    counts = np.bincount(codes[codes >= 0], minlength=len(label.names))
    for name, count in zip(label.names, counts.tolist(), strict=True):
        expected = shard.label_counts.get(name, 0)
        if count != expected:
            raise _StaleIndexError(
                f"has {count:,} records of {name!r}, but manifest.json states {expected:,}"
            )


def _check_against_examples(
    content: bytes, examples: Iterable[bytes], *, name: str, label: ClassLabel
) -> None:
    """Checks ``<shard>.labels`` against the classes of the shard's examples.

    Raises:
        _StaleIndexError: naming the first record with a wrong class.
    """
    try:
        codes = class_codes_from_bytes(content).tolist()
        for n, (code, example) in enumerate(zip(codes, examples, strict=False)):
            values = int64_values(example_features(example).get(name, b"")) or [-1]
            if code != values[0]:
                stated, actual = (_class_name(value, label) for value in (code, values[0]))
                raise _StaleIndexError(f"states {stated}, but the example has {actual}", record=n)
    except ValueError:
        # An invalid example, or an invalid list of classes, has no class to compare.
        return


def _class_name(code: int, label: ClassLabel) -> str:
    known = 0 <= code < len(label.names)
    return f"the class {label.names[code]!r}" if known else "no class"


def read_id(content: bytes, record: int) -> str | None:
    """The id of one record, from ``<shard>.parquet``; None if it cannot be read."""
    try:
        table = pq.ParquetFile(io.BytesIO(content))
        before = 0
        for group in range(table.metadata.num_row_groups):
            num_rows = table.metadata.row_group(group).num_rows
            if record < before + num_rows:
                ids = table.read_row_group(group, columns=["id"]).column(0)
                found: str = ids[record - before].as_py()
                return found
            before += num_rows
    except (pa.ArrowException, OSError, ValueError, KeyError):
        pass
    return None


def _check_count(number: int, shard: ShardEntry) -> None:
    if number != shard.num_examples:
        raise _StaleIndexError(
            f"has entries for {number:,} records, but the shard has {shard.num_examples:,}"
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def find_present(
    files: SnapshotFiles,
    manifest: Manifest,
    present: set[str],
    *,
    absent: IdList,
    findings: Findings,
) -> Absence:
    """Looks for the ids in the index of every shard and among the rejects.

    Memory holds the list and the index of one shard. An index that is missing, damaged or does not
    fit its shard is among the other findings, so nothing is proved by it.

    Args:
        files: Those of the snapshot.
        manifest: What they should be.
        present: Names of the files that can be opened.
        absent: The ids.
        findings: Receives the files that cannot be read.
    """
    # Names that are not UTF-8 are stored as they are, or in a printable form.
    texts = {form for one in absent.ids for form in (path_bytes(one), path_bytes(printable(one)))}
    wanted = pa.array(sorted(texts), pa.large_binary())
    found: list[Finding] = []
    for name in _files_with_ids(manifest):
        if name not in present:
            continue
        try:
            for record, text in _rows_of(files.read(name), wanted):
                what = "is in the list of ids that must be absent"
                one = Finding(file=name, kind="present", what=what, record=record, record_id=text)
                found.append(one)
        except (StorageError, pa.ArrowException, OSError) as error:
            findings.unchecked(name, f"its ids cannot be read: {error}")
    stated = manifest.excluded
    return Absence(
        num_ids=len(absent.ids),
        found=tuple(found),
        excluded=stated is not None and stated.sha256 == absent.sha256,
    )


def _files_with_ids(manifest: Manifest) -> Iterator[str]:
    for split in manifest.splits.values():
        for shard in split.shards:
            name = ShardName.parse(shard.file)
            if name is not None:
                yield name.index_files[1]
    yield REJECTS


def _rows_of(content: bytes, wanted: pa.Array) -> Iterator[tuple[int, str]]:
    """The rows of a table whose id is wanted, with their ids."""
    first = 0
    with pq.ParquetFile(io.BytesIO(content)) as file:
        for batch in file.iter_batches(columns=["id"], batch_size=1 << 16):
            ids = batch.column(0).cast(pa.large_binary())
            for row in pc.indices_nonzero(pc.is_in(ids, wanted)).to_pylist():
                yield first + row, ids[row].as_py().decode("utf-8", "backslashreplace")
            first += len(ids)
