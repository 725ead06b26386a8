"""Verify: holds a snapshot's files against its manifest, without TensorFlow or Beam.

Every file is read and held against its hash; what then is wrong is looked at closer, to name the
record. Everything that is wrong is told, not only the first.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator

from ...schemas.errors import DamagedSnapshotError, StorageError
from ...schemas.features import ClassLabel
from ...schemas.manifest import Manifest, ShardEntry, read_manifest
from ...schemas.naming import (
    BUILD,
    MANIFEST,
    READER_FACTS,
    SCHEMA,
    UNLISTED,
    ShardName,
    is_reader_file,
    join,
)
from ...schemas.progress import Progress
from ...transforms import storage
from ...transforms.examples.index import index_sizes
from ..snapshot import Snapshot, locate, manifest_bytes, reader_file_of
from ..snapshot_files import FoundFile, SnapshotFiles
from .verify_code import check_build_facts
from .verify_contents import ContentChecker
from .verify_report import Finding, Findings, Report
from .verify_sample import SampleSize, check_sample

STEP = "verify"
_FINGERPRINT = re.compile("[0-9a-f]{16}")


@dataclasses.dataclass(frozen=True)
class Verified:
    """What was checked."""

    num_files: int
    num_bytes: int
    num_examples: int


def verify(snapshot: Snapshot, *, progress: Progress) -> Verified:
    """Checks every file: there, of its length and hash; shards record by record; none extra.

    Raises:
        DamagedSnapshotError: naming every file that is not as the manifest says and, in a
            shard, the records that are not.
        StorageError: if a file that is there cannot be read.
    """
    report = check_snapshot(snapshot.path, progress=progress)
    raise_findings(report)
    return Verified(report.num_files, report.num_bytes, report.num_examples)


def raise_findings(report: Report, *, lines: int = 0) -> None:
    """Raises what was found, if anything was.

    Args:
        report: Of :func:`check_snapshot`.
        lines: So many findings at most stand in the message; 0 for all.

    Raises:
        DamagedSnapshotError: if anything is damaged.
        StorageError: if nothing is, and something could not be looked at.
    """
    message = "\n".join(report.lines(lines))
    if report.damages:
        raise DamagedSnapshotError(message)
    if report.unreadable:
        raise StorageError(message)


def check_snapshot(
    path: str | os.PathLike[str], *, progress: Progress, sample: SampleSize | None = None
) -> Report:
    """Finds everything in a snapshot that is not as it was written.

    Args:
        path: A snapshot's folder, or one that holds snapshots: then the latest.
        progress: Told how many files have been checked.
        sample: Looks at so many records only, and at no more than the lengths of large files.

    Raises:
        RecipeError: if there is no snapshot at this place, or several.
        StorageError: if the folder cannot be listed.
    """
    try:
        folder = locate(path)
    except DamagedSnapshotError as error:
        findings = Findings()
        findings.damage(MANIFEST, "missing", str(error))
        return _report(storage.absolute(os.fspath(path)), None, findings)
    findings = Findings()
    manifest = _read(folder, findings)
    if manifest is None:
        return _report(folder, None, findings)
    _check_manifest(manifest, folder, findings)
    files = SnapshotFiles(folder)
    found, extra, refused = files.look([*sorted(manifest.files), BUILD, MANIFEST])
    for name in refused:
        findings.cannot(name, "the folder cannot be listed")
    present = {name for name in sorted(manifest.files) if _is_there(name, found, findings)}
    for name, there in found.items():
        if there.outside is not None:
            what = f"what it shows lies at {there.outside}, and may change or go without it"
            findings.warn(name, "link", f"is a link that leaves the snapshot: {what}")
    for name in extra:
        if is_reader_file(name) and "/" not in name and READER_FACTS in manifest.files:
            what = "is of the reader before it was a package, which a repair replaced: it can go"
            findings.warn(name, "extra", what)
        elif name not in UNLISTED:
            findings.damage(name, "extra", "is not in the manifest")
    limit = _check_build(files, found, manifest, findings)
    if sample is not None:
        sampled = check_sample(
            files, found, manifest, present, findings=findings, size=sample, progress=progress
        )
        report = _report(folder, manifest, findings, limit=limit)
        return dataclasses.replace(report, sampled=sampled)
    progress.start(STEP, total=len(manifest.files), unit="files")
    progress.advance(STEP, done=0)
    checker = ContentChecker(files, manifest, findings)
    for done, name in enumerate(sorted(manifest.files), start=1):
        if name in present:
            checker.check(name, found[name])
        progress.advance(STEP, done=done)
    checker.look_closer(present)
    progress.finish(STEP, reused=False)
    return _report(folder, manifest, findings, limit=limit)


def _report(
    folder: str, manifest: Manifest | None, findings: Findings, *, limit: int | None = None
) -> Report:
    report = Report(
        path=folder,
        fingerprint=None if manifest is None else manifest.fingerprint,
        damages=_in_order(findings.damages),
        warnings=_in_order(findings.warnings),
        unreadable=_in_order(findings.unreadable),
    )
    if manifest is None:
        return report
    return dataclasses.replace(
        report,
        options=f" --limit {limit}" if limit is not None else "",
        num_files=len(manifest.files),
        num_bytes=sum(entry.bytes for entry in manifest.files.values()),
        num_examples=sum(split.num_examples for split in manifest.splits.values()),
    )


def _in_order(found: list[Finding]) -> list[Finding]:
    """The manifest's first, then file by file."""
    return sorted(found, key=lambda finding: (finding.file != MANIFEST, finding.file))


def _read(folder: str, findings: Findings) -> Manifest | None:
    """The manifest, edited or not; None where it is none."""
    where = storage.redact(join(folder, MANIFEST))
    try:
        content = manifest_bytes(folder)
    except DamagedSnapshotError as error:
        findings.damage(MANIFEST, "not a file", str(error).removeprefix(f"{where} "))
        return None
    except StorageError as error:
        findings.cannot(MANIFEST, f"{error} Nothing else can be checked without it.")
        return None
    try:
        manifest, checksum = read_manifest(content, where=where)
    except DamagedSnapshotError as error:
        what = str(error).removeprefix(f"{where} ").removesuffix(" Build again with --repair.")
        findings.manifest(f"{what} Nothing else can be checked without it.")
        return None
    if checksum == "wrong":
        findings.manifest("was edited or is damaged: its checksum is not that of its content")
    if checksum == "missing":
        findings.manifest(
            "has no checksum: the snapshot is from before there were any, or it was edited"
        )
    return manifest


def _is_there(name: str, found: dict[str, FoundFile], findings: Findings) -> bool:
    """Whether a file can be opened; notes why not."""
    there = found.get(name)
    if there is None:
        findings.damage(name, "missing", "is missing")
        return False
    if there.trouble is not None:
        findings.cannot(name, f"cannot be looked at: {there.trouble}")
        return False
    if there.other is not None:
        findings.damage(name, "not a file", f"is missing: {there.other} lies in its place")
        return False
    return True


def _check_build(
    files: SnapshotFiles, found: dict[str, FoundFile], manifest: Manifest, findings: Findings
) -> int | None:
    """Notes what is odd about ``build.json``; the limit that it tells, if any."""
    there = found.get(BUILD)
    if there is None:
        what = "is missing: what the snapshot was built of, and when, is not known any more"
        findings.warn(BUILD, "edited", what)
    elif there.other is not None or there.trouble is not None:
        findings.warn(BUILD, "edited", f"cannot be read: it is {there.other or there.trouble}")
    else:
        try:
            return check_build_facts(files.read(BUILD), manifest, findings)
        except StorageError as error:
            findings.warn(BUILD, "unreadable", str(error))
    return None


def _check_manifest(manifest: Manifest, folder: str, findings: Findings) -> None:
    """Notes where the manifest does not agree with itself, or with where it lies."""
    last = folder.rstrip("/").rsplit("/", 1)[-1]
    if _FINGERPRINT.fullmatch(last) and last != manifest.fingerprint:
        findings.manifest(f"is that of {manifest.fingerprint}, and lies in the folder of {last}")
    for name in (reader_file_of(manifest.files), SCHEMA):
        if name not in manifest.files:
            findings.manifest(f"does not list {name}, which every snapshot has")
    for name, split in manifest.splits.items():
        for number, shard in enumerate(split.shards):
            parsed = ShardName.parse(shard.file)
            expected = (name, number, len(split.shards), manifest.compression)
            if parsed is None or dataclasses.astuple(parsed) != expected:
                findings.manifest(
                    f"calls shard {number:,} of {len(split.shards):,} of split {name!r} "
                    f"{shard.file!r}"
                )
            for what in _odd_entries(shard, manifest):
                findings.manifest(what)
        for total in ("num_examples", "num_bytes"):
            told, summed = getattr(split, total), sum(getattr(s, total) for s in split.shards)
            if told != summed:
                findings.manifest(
                    f"{total} of split {name!r} is {told:,}, its shards' sum {summed:,}"
                )
    listed = {shard.file for split in manifest.splits.values() for shard in split.shards}
    for name in sorted(manifest.files):
        if ShardName.parse(name) is not None and name not in listed:
            findings.manifest(f"lists {name}, and no split has it")


def _odd_entries(shard: ShardEntry, manifest: Manifest) -> Iterator[str]:
    """How a shard differs from what the list of files says of it and of its index files."""
    entry = manifest.files.get(shard.file)
    if entry is None or (entry.bytes, entry.sha256) != (shard.num_bytes, shard.sha256):
        yield f"shard {shard.file} differs from its entry in files"
    name = ShardName.parse(shard.file)
    if name is None:
        return
    label = manifest.features.get(manifest.label) if manifest.label is not None else None
    wanted = [*name.index_files, *([name.labels_file] if isinstance(label, ClassLabel) else [])]
    for file in wanted:
        if file not in manifest.files:
            yield f"does not list {file}, the index of a shard that it lists"
    for file, expected in index_sizes(name, shard.num_examples).items():
        entry = manifest.files.get(file)
        if entry is not None and entry.bytes != expected:
            yield (
                f"{file} has {entry.bytes:,} bytes, expected {expected:,} for "
                f"{shard.num_examples:,} examples"
            )
