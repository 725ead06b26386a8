"""What a loss of power may take: every file and every name is synced before the manifest is put."""

import json
import os
from pathlib import Path

import pytest

from .kill_projects import Projects


@pytest.mark.slow  # a build of its own
def test_all_is_synced_before_the_manifest(projects: Projects, tmp_path: Path) -> None:
    """A file after its last write, a folder after the last name that was put into it."""
    project = projects["table"]
    out, notes = tmp_path / "new" / "out", tmp_path / "syncs"
    ended = project.builds.build(project.recipe, out, syncs=notes)
    assert ended.code == 0, ended.stderr
    (manifest,) = out.glob("*/*/manifest.json")
    snapshot = manifest.parent
    events = [json.loads(line) for line in notes.read_text().splitlines()]
    at = events.index(["rename", manifest.stat().st_ino, str(manifest)])
    before = events[:at]
    synced = {event[1] for event in before if event[0] == "sync"}
    assert manifest.stat().st_ino in synced
    listed = [snapshot / name for name in json.loads(manifest.read_text())["files"]]
    assert not [path for path in [*listed, snapshot / "build.json"] if _inode(path) not in synced]
    for path in [*listed, snapshot / "build.json"]:
        _assert_named(before, path, kind="rename")
    folders = {parent for path in listed for parent in path.parents if parent != tmp_path}
    for folder in folders - set(tmp_path.parents):
        _assert_named(before, folder, kind="mkdir")
    # The manifest's own name, and the pointer after it.
    pointer = out / "table" / "latest.json"
    at_pointer = events.index(["rename", _inode(pointer), str(pointer)])
    assert ["sync", _inode(snapshot)] in events[at:at_pointer]
    assert ["sync", _inode(pointer.parent)] in events[at_pointer:]


def _inode(path: Path) -> int:
    return os.stat(path).st_ino


def _assert_named(events: list[list[object]], path: Path, *, kind: str) -> None:
    """Asserts that the folder that a name lies in was synced after it was put there."""
    named = [n for n, event in enumerate(events) if event[0] == kind and event[2] == str(path)]
    assert named, f"{path} is not made by what syncs it"
    assert ["sync", _inode(path.parent)] in events[named[-1] :], f"the name {path} is not durable"
