"""What a loss of power may take: every file and every name is synced before the manifest is put."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .replay import Recorded


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[list[object]]:
    """What names files and folders here, and what syncs them, in order.

    ``["sync", inode]``, ``["rename", inode, path]``, ``["mkdir", inode, path]``.
    """
    noted: list[list[object]] = []
    fsync, rename, mkdir = os.fsync, os.replace, os.mkdir

    def noted_fsync(file: Any) -> None:
        fsync(file)
        noted.append(["sync", os.fstat(file).st_ino])

    def noted_rename(source: Any, target: Any, **options: Any) -> None:
        rename(source, target, **options)
        noted.append(["rename", _inode(target), os.path.abspath(target)])

    def noted_mkdir(path: Any, *arguments: Any, **options: Any) -> None:
        mkdir(path, *arguments, **options)
        if "dir_fd" not in options:
            noted.append(["mkdir", _inode(path), os.path.abspath(path)])

    for name, noting in (("fsync", noted_fsync), ("replace", noted_rename), ("mkdir", noted_mkdir)):
        monkeypatch.setattr(os, name, noting)
    return noted


@pytest.mark.slow  # a build of its own
def test_all_is_synced_before_the_manifest(
    recorded: Callable[[str], Recorded], tmp_path: Path, events: list[list[object]]
) -> None:
    """A file after its last write, a folder after the last name that was put into it."""
    out = tmp_path / "new" / "out"
    recorded("table").go_on(out)
    (manifest,) = out.glob("*/*/manifest.json")
    snapshot = manifest.parent
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
