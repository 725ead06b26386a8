"""Garbage collection: what is referred to stays, what is not known stays, builds are not hurt."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from snapshard import cli, startup_noise
from snapshard.pipelines.operate.gc import (
    WORK,
    References,
    StoredFile,
    choose_garbage,
    collect_garbage,
)
from snapshard.pipelines.survey.artifact import Reference, put_reference
from snapshard.pipelines.workspace import alone, building, choose_workspace, occupied
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.naming import OutputPaths, Workspace
from snapshard.transforms import storage
from snapshard.transforms.storage.artifacts import put_large_artifact, read_artifact

PUBLISHED, UNPUBLISHED = "1" * 16, "2" * 16
KEPT, LOOSE = "a" * 32, "b" * 32

STAYS = (
    "latest.json",
    "notes.txt",
    "my folder/a.txt",
    f"{PUBLISHED}/manifest.json",
    f"{PUBLISHED}/build.json",
    f"{PUBLISHED}/train-00000-of-00001.tfrecord",
    ".work/memo.json",
    ".work/lock",
    ".work/notes.txt",
    ".work/runs/mine.txt",
    ".work/scratch/mine.txt",
    ".work/other/file",
    f".work/runs/aa/{KEPT}.arrow",
    f".work/runs/aa/{KEPT}.json",
    f".work/runs/aa/{KEPT}.plain.keys",
    f".work/runs/aa/{KEPT}.plain.keys.json",
    f".work/summaries/{KEPT}.arrow",
    f".work/summaries/{KEPT}.jsonl",
    f".work/graphs/{KEPT}/saved_model.pb",
    f".work/references/{KEPT}.json",
    f".work/inventories/{KEPT}.jsonl",
    f".work/plans/{PUBLISHED}.json",
    f".work/shards/{PUBLISHED}/train-00000-of-00001.tfrecord.json",
)
GOES = (
    f".{'0' * 32}.tmp",
    f"{PUBLISHED}/index/.{'0' * 32}.tmp",
    f"{UNPUBLISHED}/train-00000-of-00001.tfrecord",
    f"{UNPUBLISHED}/index/train-00000-of-00001.tfrecord.idx",
    f".work/.{'0' * 32}.tmp",
    f".work/runs/bb/{LOOSE}.arrow",
    f".work/runs/bb/{LOOSE}.json",
    f".work/runs/bb/{LOOSE}.by-0123456789ab.keys",
    f".work/runs/aa/.{'0' * 32}.tmp",
    f".work/summaries/{LOOSE}.arrow",
    f".work/references/{LOOSE}.json",
    f".work/inventories/{LOOSE}.jsonl",
    f".work/graphs/{LOOSE}/variables/variables.index",
    f".work/blocks/{LOOSE}.jsonl",
    f".work/plans/{UNPUBLISHED}.json",
    f".work/shards/{UNPUBLISHED}/train-00000-of-00001.tfrecord.json",
    f".work/staged/{LOOSE}.zip",
    ".work/scratch/snapshard-abc/run.arrow",
)


def _put_all(root: str) -> None:
    for path in (*STAYS, *GOES):
        storage.put_bytes(f"{root}/{path}", b"x" * 10)
    work = {"runs": [KEPT], "summary": KEPT, "graph": f"{root}/.work/graphs/{KEPT}"}
    storage.put_bytes(f"{root}/{PUBLISHED}/build.json", json.dumps({"work": work}).encode())
    reference = Reference(inventory=KEPT, fingerprint=PUBLISHED, started=0.0)
    put_reference(KEPT, reference, Workspace(f"{root}/.work"))


@pytest.fixture
def name(tmp_path: pathlib.Path) -> pathlib.Path:
    """The folder of a name, with all that may lie in one."""
    _put_all(str(tmp_path / "out" / "name"))
    return tmp_path / "out" / "name"


def test_chooses_what_nothing_refers_to() -> None:
    files = [StoredFile(path=path, num_bytes=1, modified_ns=0) for path in (*STAYS, *GOES)]
    kept = frozenset([KEPT])
    references = References(
        published=frozenset([PUBLISHED]),
        work={room: kept for room in (*WORK, "inventories", "references")},
    )
    assert [file.path for file in choose_garbage(files, references)] == list(GOES)


@pytest.mark.parametrize("of", ["name", "root"])
def test_clears_what_nothing_refers_to(name: pathlib.Path, of: str) -> None:
    folder = str(name if of == "name" else name.parent)
    told = collect_garbage(folder, dry_run=True)
    assert set(storage.walk(str(name))) == {*STAYS, *GOES}
    assert collect_garbage(folder) == told
    assert set(storage.walk(str(name))) == set(STAYS)
    assert (told.num_files, told.num_bytes) == (len(GOES), 10 * len(GOES))
    assert told.unpublished == (f"{name}/{UNPUBLISHED}",)
    assert told.busy == ()
    assert sorted(os.listdir(name / ".work" / "runs")) == ["aa", "mine.txt"]
    assert not (name / UNPUBLISHED).exists()
    again = collect_garbage(folder)
    assert (again.num_files, again.unpublished) == (0, ())


def test_an_empty_unpublished_folder_goes(name: pathlib.Path) -> None:
    (name / ("3" * 16)).mkdir()
    assert f"{name}/{'3' * 16}" in collect_garbage(str(name)).unpublished
    assert not (name / ("3" * 16)).exists()


@pytest.mark.parametrize("content", [None, b"{", b"{}", b'{"work": 3}', b'{"work": {"runs": 3}}'])
def test_a_snapshot_that_does_not_tell_what_it_was_made_of_keeps_all_work(
    name: pathlib.Path,
    content: bytes | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(startup_noise, "tame_libraries", lambda: None)
    assert not collect_garbage(str(name), dry_run=True).unexplained
    if content is None:
        (name / PUBLISHED / "build.json").unlink()
    else:
        (name / PUBLISHED / "build.json").write_bytes(content)
    assert collect_garbage(str(name)).unexplained == (f"{name}/{PUBLISHED}",)
    with pytest.raises(SystemExit):
        cli.main(["gc", str(name)])
    warning = " ".join(capsys.readouterr().err.split())
    assert f"warning: All work beside {name}/{PUBLISHED} was kept" in warning
    assert (name / ".work" / "runs" / "bb" / f"{LOOSE}.arrow").exists()
    assert (name / ".work" / "summaries" / f"{LOOSE}.arrow").exists()
    assert not (name / UNPUBLISHED).exists()


def test_without_a_snapshot_all_work_goes(name: pathlib.Path) -> None:
    storage.remove_tree(str(name / PUBLISHED))
    collect_garbage(str(name))
    assert not storage.list_names(str(name / ".work" / "graphs"))
    assert not (name / ".work" / "runs" / "aa").exists()


def test_links_are_not_followed_and_stay(name: pathlib.Path, tmp_path: pathlib.Path) -> None:
    outside = tmp_path / "outside"
    storage.put_bytes(f"{outside}/{LOOSE}.arrow", b"x")
    storage.put_bytes(f"{outside}/reader.py", b"x")
    (name / ".work" / "runs" / "cc").symlink_to(outside)
    (name / ".work" / "runs" / "bb" / f"{LOOSE}.link").symlink_to(outside / f"{LOOSE}.arrow")
    (name / ".work" / "graphs" / ("e" * 32)).symlink_to(outside)
    (name / ("4" * 16)).symlink_to(outside)
    (name / UNPUBLISHED / "index" / "link").symlink_to(outside)
    told = collect_garbage(str(name), dry_run=True)
    assert collect_garbage(str(name)) == told
    assert told.links == (f"{name}/{'4' * 16}",)
    assert storage.list_names(str(outside)) == [f"{LOOSE}.arrow", "reader.py"]
    # A folder that holds a link is no leftover of a build alone.
    assert told.unpublished == ()
    assert storage.walk(str(name / UNPUBLISHED)) == []
    assert (name / UNPUBLISHED / "index" / "link").is_symlink()


def test_names_and_workspaces_behind_links_are_left_alone(
    name: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    work = (name / ".work").rename(tmp_path / "elsewhere" / "work")
    (name / ".work").symlink_to(work)
    (work / "runs" / "ee").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "linked").symlink_to(name)
    before = storage.walk(str(work))
    with pytest.raises(RecipeError, match="nor a folder of snapshots"):
        collect_garbage(str(tmp_path / "root"))
    report = collect_garbage(str(name.parent))
    assert report.links == (f"{name}/.work",)
    assert storage.walk(str(work)) == before
    assert (work / "runs" / "ee").is_dir()
    assert report.unpublished == (f"{name}/{UNPUBLISHED}",)


def test_what_somebody_has_put_among_our_files_stays(name: pathlib.Path) -> None:
    mine = (f"{UNPUBLISHED}/my model.keras", f"{'6' * 16}/cache.bin", ".work/runs/bb/x.txt")
    for path in mine:
        storage.put_bytes(f"{name}/{path}", b"x")
    (name / ".work" / "mine").mkdir()
    report = collect_garbage(str(name))
    assert report.unpublished == ()
    assert set(storage.walk(str(name))) == {*STAYS, *mine}
    assert (name / ".work" / "mine").is_dir()


def test_a_dry_run_tells_each_file_and_writes_nothing(name: pathlib.Path) -> None:
    (name / ".work" / "lock").unlink()

    def look() -> dict[str, tuple[int, int]]:
        found = (name, *name.rglob("*"))
        return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in found}

    before = look()
    told = collect_garbage(str(name), dry_run=True)
    assert look() == before
    assert set(told.paths) == {f"{name}/{path}" for path in GOES}
    assert told.to_json()["num_files"] == len(GOES)
    assert collect_garbage(str(name)) == told
    assert {path for path in before if not os.path.lexists(path)} >= set(told.paths)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_name_at_work_is_left_alone(name: pathlib.Path, dry_run: bool) -> None:
    with building(Workspace(f"{name}/.work")):
        report = collect_garbage(str(name.parent), dry_run=dry_run)
    assert report.busy == (str(name),)
    assert report.num_files == 0
    assert set(storage.walk(str(name))) == {*STAYS, *GOES}


def test_a_killed_build_is_not_at_work(name: pathlib.Path) -> None:
    code = (
        "import os, signal\n"
        "from snapshard.pipelines.workspace import building\n"
        "from snapshard.schemas.naming import Workspace\n"
        f"with building(Workspace({str(name / '.work')!r})):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -9
    assert collect_garbage(str(name)).busy == ()


def test_builds_share_a_workspace_and_wait_for_garbage_collection(tmp_path: pathlib.Path) -> None:
    workspace = Workspace(str(tmp_path / ".work"))
    with building(workspace), building(workspace), alone(workspace) as held:
        assert held is False
    begun = threading.Event()

    def build() -> None:
        with building(workspace):
            begun.set()

    with alone(workspace) as held:
        assert held is True
        waiting = threading.Thread(target=build)
        waiting.start()
        assert not begun.wait(0.2)
    assert begun.wait(10)
    waiting.join()


def test_a_second_build_changes_nothing_by_its_lock(tmp_path: pathlib.Path) -> None:
    workspace = Workspace(str(tmp_path))
    with building(workspace):
        pass
    before = (os.stat(tmp_path), os.stat(tmp_path / "lock"))
    with building(workspace):
        pass
    after = (os.stat(tmp_path), os.stat(tmp_path / "lock"))
    assert [s.st_mtime_ns for s in before] == [s.st_mtime_ns for s in after]


@pytest.fixture
def unlockable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem without locks, as some over the network are."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)


def _age(folder: pathlib.Path, *, hours: float) -> None:
    then = time.time() - 3600 * hours
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (then, then), follow_symlinks=False)


def test_without_locks_what_is_young_stays(name: pathlib.Path, unlockable: None) -> None:
    (name / ".work" / "lock").unlink()
    assert collect_garbage(str(name), dry_run=True).num_files == 0
    assert collect_garbage(str(name)).num_files == 0
    _age(name, hours=25)
    (name / UNPUBLISHED / "reader.py").write_bytes(b"young")
    report = collect_garbage(str(name))
    # The folder of a snapshot is spared as a whole, where a build may be at work.
    assert report.unpublished == ()
    spared = {path for path in GOES if path.startswith(UNPUBLISHED)}
    assert set(storage.walk(str(name))) == {*STAYS, *spared, f"{UNPUBLISHED}/reader.py"}


def test_without_locks_a_build_leaves_a_marker(name: pathlib.Path, unlockable: None) -> None:
    _age(name, hours=25)
    workspace = Workspace(f"{name}/.work")
    with building(workspace), building(workspace):
        assert len(os.listdir(name / ".work" / "building")) == 2
        for dry_run in (True, False):
            assert collect_garbage(str(name), dry_run=dry_run).busy == (str(name),)
    assert os.listdir(name / ".work" / "building") == []
    # What a killed build has left counts for a day, and stops no other build.
    storage.put_bytes(f"{name}/.work/building/{'7' * 32}", b"")
    with building(workspace):
        pass
    assert collect_garbage(str(name)).busy == (str(name),)
    _age(name / ".work" / "building", hours=25)
    assert collect_garbage(str(name)).num_files == len(GOES) + 1
    assert not (name / ".work" / "building").exists()


def test_a_marker_is_renewed(
    name: pathlib.Path, unlockable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapshard.pipelines.workspace._RENEWAL_S", 0.01)
    with building(Workspace(f"{name}/.work")):
        (marker,) = (name / ".work" / "building").iterdir()
        os.utime(marker, (0, 0))
        deadline = time.monotonic() + 30
        while marker.stat().st_mtime < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("shift_h", [-48, 0])
def test_the_clock_set_back(
    name: pathlib.Path, unlockable: None, monkeypatch: pytest.MonkeyPatch, shift_h: int
) -> None:
    """What was written in the future, as it seems, is young: it stays until it is not."""
    _age(name, hours=25)
    shifted = time.time_ns() + shift_h * 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: shifted)
    assert collect_garbage(str(name)).num_files == (0 if shift_h else len(GOES))


def test_what_is_published_meanwhile_stays(
    name: pathlib.Path, unlockable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without locks a build may go on from old files: they stay once its manifest is there."""
    _age(name, hours=25)
    remove = storage.remove_tree

    def publish_first(url: str) -> None:
        (name / UNPUBLISHED / "manifest.json").write_bytes(b"{}")
        remove(url)

    monkeypatch.setattr(storage, "remove_tree", publish_first)
    collect_garbage(str(name))
    kept = {path for path in GOES if path.startswith(UNPUBLISHED)}
    assert kept < set(storage.walk(str(name)))


def test_on_stores_what_is_young_stays(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"memory://test_gc/{tmp_path.name}"
    _put_all(root)
    assert collect_garbage(root).num_files == 0
    with building(Workspace(f"{root}/.work")):
        assert collect_garbage(root).busy == (root,)
    assert collect_garbage(root).busy == ()
    monkeypatch.setattr("snapshard.pipelines.operate.gc.SAFE_AGE_S", -60)
    report = collect_garbage(f"memory://test_gc/{tmp_path.name}")
    assert report.num_files == len(GOES)
    assert set(storage.walk(root)) == set(STAYS)
    storage.remove_tree(root)


def test_a_folder_of_something_else_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_bytes(b"")
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RecipeError, match="nor a folder of snapshots"):
            collect_garbage(str(folder))


_KILLED = """
import os
from snapshard.transforms.storage import held_folder
held = held_folder()
folder = held.__enter__()
open(folder + "/left", "w").write("1234")
print(folder, flush=True)
os.kill(os.getpid(), 9)
"""


def test_temporary_files_of_killed_builds_go(
    name: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    done = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True)
    left = pathlib.Path(done.stdout.strip())
    assert left.parent == temporary
    before = collect_garbage(str(name), dry_run=True)
    assert f"{left}/left" in before.paths
    with storage.temporary_folder() as used:
        report = collect_garbage(str(name))
        assert os.path.isdir(used)
    assert report == before
    assert list(temporary.iterdir()) == []


def test_empty_folders_of_a_workspace_elsewhere_go(tmp_path: pathlib.Path) -> None:
    out = choose_workspace(OutputPaths(str(tmp_path / "out"), "name"), str(tmp_path / "work"))
    with occupied(out, named=True):
        scratch = pathlib.Path(out.workspace, "scratch", "snapshard-left")
        scratch.mkdir(parents=True)
    collect_garbage(str(tmp_path / "out"))
    assert not scratch.exists()


def test_a_large_artifact_is_written_where_a_later_build_removes_what_is_left(
    tmp_path: pathlib.Path,
) -> None:
    scratch: list[pathlib.Path] = []

    def parts() -> Iterator[bytes]:
        scratch.extend(tmp_path.rglob("scratch"))
        yield b"content"

    url = f"{tmp_path}/inventories/a"
    put_large_artifact(url, parts(), what="test 1", near=str(tmp_path))
    assert scratch == [tmp_path / "scratch"]
    assert read_artifact(url, what="test 1") == b"content"
