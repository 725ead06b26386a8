"""Holds the contents of files against their hashes, and looks closer where they differ.

Memory holds a chunk of a shard, or one shard's index.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable
from functools import partial

import numpy as np

from ...schemas.errors import SnapshardError, StorageError
from ...schemas.features import ClassLabel
from ...schemas.manifest import FileEntry, Manifest, ShardEntry, read_manifest
from ...schemas.naming import MANIFEST, ShardName, join
from ...transforms import storage
from ...transforms.examples.tfrecord import Frames, Scan, scan_damage, stored_examples
from ..snapshot_files import FoundFile, SnapshotFiles
from .verify_code import MAX_CODE_BYTES, check_code, is_code
from .verify_index import (
    StaleIndexError,
    check_against_examples,
    check_against_frames,
    check_labels,
    check_offsets,
    check_table,
    read_id,
)
from .verify_report import Finding, Findings, Kind

_MAX_SIBLINGS = 50
_SLACK_BYTES = 1 << 20
_FINGERPRINT = re.compile("[0-9a-f]{16}")


class ContentChecker:
    """Checks the contents of one snapshot's files."""

    def __init__(self, files: SnapshotFiles, manifest: Manifest, findings: Findings) -> None:
        """Reads nothing yet."""
        self._files = files
        self._manifest = manifest
        self._findings = findings
        self._others: dict[str, str] | None = None
        self._by_hash = {entry.sha256: name for name, entry in manifest.files.items()}
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
                offsets: (shard, partial(check_offsets, shard=shard, num_bytes=size)),
                table: (shard, partial(check_table, shard=shard)),
                name.labels_file: (shard, partial(check_labels, shard=shard, label=label)),
            }
        self._wrong: dict[str, str] = {}
        """What is wrong with files whose content is no other file's: to be looked at closer."""

    def check(self, name: str, there: FoundFile) -> None:
        """Holds one file against its hash; an index file against what it must tell, too."""
        entry = self._manifest.files[name]
        try:
            if is_code(name) or (name in self._index and not _is_far_longer(there, entry)):
                self._check_small(name, entry, there)
                return
            sha256 = self._files.sha256(name, there.num_bytes)
        except StorageError as error:
            self._findings.cannot(name, str(error))
            return
        if (sha256, there.num_bytes) != (entry.sha256, entry.bytes):
            self._differs(name, entry, sha256, there.num_bytes)

    def _check_small(self, name: str, entry: FileEntry, there: FoundFile) -> None:
        """Reads a file of an index, or an emitted one, whole."""
        if is_code(name) and there.num_bytes > MAX_CODE_BYTES:
            self._findings.damage(name, "length", _length(there.num_bytes, entry))
            return
        content = self._files.read(name)
        sha256 = hashlib.sha256(content).hexdigest()
        same = (sha256, len(content)) == (entry.sha256, entry.bytes)
        if not same and (self._is_anothers(name, sha256) or not is_code(name)):
            self._differs(name, entry, sha256, len(content))
        elif not same:
            check_code(name, content, self._manifest, self._findings)
        elif name in self._index:
            try:
                self._index[name][1](content)
            except StaleIndexError as error:
                self._note_stale(name, error)

    def _is_anothers(self, name: str, sha256: str) -> bool:
        return self._by_hash.get(sha256, name) != name or sha256 in self._elsewhere()

    def _differs(self, name: str, entry: FileEntry, sha256: str, num_bytes: int) -> None:
        """Notes that a file is not what was written, and what it is, if it is another's."""
        note = self._findings.damage
        other = self._by_hash.get(sha256, name)
        if other != name:
            note(name, "swapped", f"holds what belongs into {other}; were they swapped?")
        elif sha256 in self._elsewhere():
            where = storage.redact(self._elsewhere()[sha256])
            what = f"holds what belongs to another snapshot and not what {MANIFEST} says: {where}"
            note(name, "foreign", what)
        else:
            what = "its content is not what was written (sha256 differs)"
            kind: Kind = "content"
            if num_bytes != entry.bytes:
                kind, what = "length", _length(num_bytes, entry)
            note(name, kind, what)
            if num_bytes <= _most_bytes(entry) or name in self._shards:
                self._wrong[name] = what

    def look_closer(self, present: set[str]) -> None:
        """Names the records of damaged shards, and what stale index files tell wrongly."""
        for shard in self._shards.values():
            name = ShardName.parse(shard.file)
            if name is None:
                continue
            files = {*name.index_files, name.labels_file}
            if shard.file in self._wrong or files & self._wrong.keys():
                try:
                    self._look_at(shard, name, present)
                except SnapshardError as error:
                    self._findings.cannot(shard.file, str(error))

    def _look_at(self, shard: ShardEntry, name: ShardName, present: set[str]) -> None:
        offsets, table = name.index_files
        ids = self._ids(table, present)
        known: Frames | None = None
        if offsets in present and offsets not in self._wrong:
            with contextlib.suppress(StaleIndexError):
                known = check_offsets(self._files.read(offsets), shard, num_bytes=None)
        scan: Scan | None = None
        whole = shard.file in present and shard.file not in self._wrong
        if shard.file in self._wrong or (whole and offsets in self._wrong):
            scan = scan_damage(join(self._files.folder, shard.file), name.compression, known=known)
        if scan is not None and not whole:
            self._note_records(shard, scan, known, ids=ids)
        for file in (offsets, table, name.labels_file):
            if file not in self._wrong:
                continue
            content = self._files.read(file)
            try:
                if file == offsets and scan is not None:
                    check_against_frames(content, scan.frames, shard)
                self._index[file][1](content)
                if file == name.labels_file and whole and isinstance(self._label, ClassLabel):
                    examples = stored_examples(
                        join(self._files.folder, shard.file), name.compression
                    )
                    check_against_examples(
                        content, examples, name=str(self._manifest.label), label=self._label
                    )
            except StaleIndexError as error:
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
        """Names what is damaged of a shard's records, or says that they are others."""
        for broken in scan.broken:
            self._findings.damages.append(
                Finding(
                    file=shard.file,
                    kind="record",
                    what=broken.what,
                    record=broken.number,
                    offset=broken.offset,
                    record_id=ids(broken.number),
                )
            )
        note = self._findings.damage
        if scan.num_broken > len(scan.broken):
            more = scan.num_broken - len(scan.broken)
            note(shard.file, "record", f"{more:,} more records are broken, all after those")
        if scan.ending is not None:
            note(shard.file, "record", f"after record {scan.num_records - 1:,}: {scan.ending}")
        if scan.num_records != shard.num_examples:
            what = f"it holds {scan.num_whole:,} whole records, expected {shard.num_examples:,}"
            odd = None if known is None else _first_differing(scan.frames, known)
            if odd is not None and not scan.num_broken:
                what += f"; from record {odd:,} on they are others than were written"
            elif scan.num_records < shard.num_examples:
                first = ids(scan.num_records)
                told = "" if first is None else f" (id {first!r})"
                what += f"; record {scan.num_records:,}{told} is the first that is not there"
            note(shard.file, "record", what)
        elif not scan.num_broken and scan.ending is None:
            odd = _first_differing(scan.frames, known) if known is not None else None
            if odd is None:
                what = "all its records are whole, but they are not the ones that were written"
                if shard.file.endswith(".gz"):
                    what += ", or nothing but the head of the GZIP file was changed"
                note(shard.file, "record", what)
                return
            what = (
                f"is another than was written: it has {int(scan.frames[1][odd]):,} bytes, and the "
                f"index tells {int(known[1][odd]):,}"  # type: ignore[index]
            )
            self._findings.damages.append(
                Finding(
                    file=shard.file,
                    kind="record",
                    what=what,
                    record=odd,
                    offset=int(scan.frames[0][odd]),
                    record_id=ids(odd),
                )
            )

    def _note_stale(
        self, file: str, error: StaleIndexError, *, record_id: str | None = None
    ) -> None:
        self._findings.damages.append(
            Finding(
                file=file,
                kind="index",
                what=f"does not fit its shard: it {error}",
                record=error.record,
                offset=error.offset,
                record_id=record_id,
            )
        )

    def _ids(self, table: str, present: set[str]) -> Callable[[int], str | None]:
        """What tells the ids of a shard's records; None of each where its table is no help."""
        if table not in present or table in self._wrong:
            return lambda record: None
        content: list[bytes] = []

        def find(record: int) -> str | None:
            if not content:
                content.append(self._files.read(table))
            return read_id(content[0], record)

        return find

    def _elsewhere(self) -> dict[str, str]:
        """Hashes of the files of the snapshots beside this one, and where they belong."""
        if self._others is None:
            self._others = _hashes_beside(self._files.folder)
        return self._others


def _hashes_beside(folder: str) -> dict[str, str]:
    parent, _, own = folder.rstrip("/").rpartition("/")
    found: dict[str, str] = {}
    try:
        names = [name for name in storage.list_names(parent) if _FINGERPRINT.fullmatch(name)]
        for name in names[:_MAX_SIBLINGS]:
            where = join(parent, name, MANIFEST)
            if name != own and storage.exists(where):
                manifest, _ = read_manifest(storage.read_bytes(where), where=where)
                found |= {e.sha256: join(parent, name, f) for f, e in manifest.files.items()}
    except SnapshardError:
        # It is a help, and no more: what lies beside the snapshot is not what is asked for.
        pass
    return found


def _first_differing(found: Frames, known: Frames) -> int | None:
    both = min(len(found[1]), len(known[1]))
    wrong = np.flatnonzero(found[1][:both] != known[1][:both])
    return int(wrong[0]) if len(wrong) else None


def _most_bytes(entry: FileEntry) -> int:
    """How long an index file may be to be read whole, which memory must hold."""
    return 2 * entry.bytes + _SLACK_BYTES


def _is_far_longer(there: FoundFile, entry: FileEntry) -> bool:
    return there.num_bytes > _most_bytes(entry)


def _length(num_bytes: int, entry: FileEntry) -> str:
    return f"has {num_bytes:,} bytes, expected {entry.bytes:,}"
