"""Snapshots keep their bytes: every file but the reader's is as ``golden.json`` records it.

An intended change of bytes is listed in the changelog, and recorded again by ``make golden``.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.schemas import blocks

from ..small_blocks import small_blocks
from .recipes import FLOATS, OPTIONS, RECIPES

RECORDED = Path(__file__).with_name("golden.json")
BLOCK_BYTES = 10_000
"""Of each recipe's input there are several blocks of this size."""


def processor() -> list[str]:
    """The vector instructions of this processor, which decide how sums are rounded."""
    flags = Path("/proc/cpuinfo").read_text().split("flags", 2)[1].splitlines()[0].split()
    return sorted({"avx", "avx2", "fma", "avx512f", "avx512_vnni", "amx_tile"}.intersection(flags))


def hashes(snapshot: ss.Snapshot) -> dict[str, str]:
    """sha256 of each file but the reader's, and of what the manifest says of all the rest."""
    manifest = json.loads((Path(snapshot.path) / "manifest.json").read_text())
    found = {
        name: hashlib.sha256((Path(snapshot.path) / name).read_bytes()).hexdigest()
        for name in manifest["files"]
        if not name.startswith("reader")
    }
    # Names of files' bytes, which are here already; the fingerprint names code and versions.
    rest = {
        key: value
        for key, value in manifest.items()
        if key not in ("files", "checksum", "fingerprint", "snapshard_version", "versions")
    }
    text = json.dumps(rest, sort_keys=True).encode()
    return {**found, "manifest": hashlib.sha256(text).hexdigest()}


@pytest.mark.slow  # all together build for a minute
@pytest.mark.parametrize("name", RECIPES)
def test_a_snapshot_has_the_bytes_that_were_recorded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = json.loads(RECORDED.read_text())
    records = bool(os.environ.get("RECORD_GOLDEN"))
    if name in FLOATS and not records and processor() != recorded["processor"]:
        pytest.skip(f"recorded on a processor with {recorded['processor']}, not {processor()}")
    small_blocks(monkeypatch, BLOCK_BYTES)
    # The files are held as those of large sources are.
    monkeypatch.setattr(blocks, "_PACKED_FROM", 1)
    options: dict[str, Any] = OPTIONS.get(name, {})
    snapshot = ss.build(RECIPES[name](tmp_path), tmp_path / "out", **options)
    found = hashes(snapshot)
    if records:
        recorded |= {name: found, "processor": processor()}
        RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    assert found == recorded[name]
