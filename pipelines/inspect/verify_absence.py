"""Proves that records are absent from a snapshot: no index and no reject has one of their ids."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...schemas.errors import StorageError
from ...schemas.manifest import Manifest
from ...schemas.naming import REJECTS, ShardName
from ...transforms.rejects import printable
from ...transforms.storage.opened_source import path_bytes
from ..inventory.exclusions import IdList
from ..snapshot_files import SnapshotFiles
from .verify_report import Absence, Finding, Findings


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
