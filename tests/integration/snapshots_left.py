"""What a killed build leaves: published snapshots are whole, and those of an undisturbed build."""

import hashlib
import json
from pathlib import Path

from snapshard.pipelines.inspect.verify import verify
from snapshard.pipelines.snapshot import Snapshot
from snapshard.schemas.progress import Silent


def file_hashes(folder: Path) -> dict[str, str]:
    """sha256 of every file that a manifest lists, computed anew, and of the manifest."""
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in [*listed, "manifest.json"]
    }


def check_visible(out: Path, hashes: dict[str, str]) -> int:
    """Holds what a reader can see in an output root against a snapshot's hashes.

    Returns:
        How many snapshots it sees: none, or that one.
    """
    manifests = list(out.glob("*/*/manifest.json"))
    for manifest in manifests:
        verify(Snapshot.open(manifest.parent), progress=Silent())
        found = file_hashes(manifest.parent)
        names = found.keys() | hashes.keys()
        assert not [name for name in sorted(names) if found.get(name) != hashes.get(name)]
    for pointer in out.glob("*/latest.json"):
        fingerprint = json.loads(pointer.read_text())["fingerprint"]
        assert pointer.parent / fingerprint / "manifest.json" in manifests
    return len(manifests)
