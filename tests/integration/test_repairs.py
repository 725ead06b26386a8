"""The command that verify suggests repairs a snapshot; one shard is built again and compared."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.verify import check_snapshot
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.pipelines.snapshot import Snapshot
from snapshard.schemas.errors import DamagedSnapshotError, StorageError
from snapshard.schemas.progress import Silent
from snapshard.transforms import storage

pytestmark = pytest.mark.slow  # builds, and builds again, a dozen times

RECIPE = """
import snapshard as ss

recipe = ss.Recipe(
    name="rows",
    source=ss.Csv("data", label="label"),
    splits=ss.Splits(train=0.8, test=0.2),
    shards=ss.Shards(num_shards={"train": 3, "test": 1}, compression="none"),
)
"""
TRAIN = tuple(f"train-{n:05d}-of-00003.tfrecord" for n in range(3))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "data").mkdir()
    for part in range(3):
        rows = [f"{n:04d},{'yes' if n % 3 else 'no'}\n" for n in range(part, 300, 3)]
        (folder / "data" / f"{part}.csv").write_text("n,label\n" + "".join(rows))
    (folder / "recipe.py").write_text(RECIPE)
    _build(folder)
    return folder


@pytest.fixture
def copy(project: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(project, tmp_path / "project"))


def _build(folder: Path, **options: Any) -> Snapshot:
    return ss.build(load_recipe_file(folder / "recipe.py"), folder / "out", **options)


def _snapshot(folder: Path) -> Path:
    (manifest,) = (folder / "out").glob("rows/*/manifest.json")
    return manifest.parent


def _contents(folder: Path) -> dict[str, bytes]:
    varying = ("build.json", "report.html")
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in varying)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _edit(path: Path) -> None:
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit, a missing index, an edited reader": lambda s: (
        _flip(s / TRAIN[1]),
        (s / f"index/{TRAIN[0]}.idx").unlink(),
        (s / "reader/pipeline.py").write_text("x = 1\n"),
    ),
    "swapped shards": lambda s: (
        (s / TRAIN[0]).rename(s / "kept"),
        (s / TRAIN[1]).rename(s / TRAIN[0]),
        (s / "kept").rename(s / TRAIN[1]),
    ),
    "an edited manifest and a shard that is gone": lambda s: (
        _edit(s / "manifest.json"),
        (s / TRAIN[2]).unlink(),
    ),
    "no manifest to speak of": lambda s: (s / "manifest.json").write_text("{"),
    "a reader that is no Python, a stale index": lambda s: (
        (s / "reader/facts.py").write_text("def"),
        shutil.copy(s / f"index/{TRAIN[0]}.labels", s / f"index/{TRAIN[1]}.labels"),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_build_with_repair_mends(project: Path, copy: Path, damage: str) -> None:
    snapshot = _snapshot(copy)
    DAMAGES[damage](snapshot)
    report = check_snapshot(snapshot, progress=Silent())
    assert report.exit_code == 4
    assert f"--out {copy / 'out'} --repair" in report.repair_hints()[0]
    mended = _build(copy, repair=True)
    assert not mended.cached
    assert check_snapshot(snapshot, progress=Silent()).exit_code == 0
    assert _contents(snapshot) == _contents(_snapshot(project))
    facts = json.loads((snapshot / "build.json").read_text())
    assert facts["blocks"]["prepared"] == 0, "the runs were reused"
    assert _build(copy, repair=True).cached


def test_a_repair_never_leaves_a_name_without_a_file(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = _snapshot(copy)
    names = sorted(json.loads((snapshot / "manifest.json").read_text())["files"])
    reader = _build(copy).reader()
    shown = reader.dataset("train", 8, shuffle=False, epochs=None).as_numpy_iterator()
    for name in names:
        if not name.endswith(".py") and name != TRAIN[0]:
            _flip(snapshot / name)
    next(shown)  # what it reads first is intact
    lost: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            lost.extend(name for name in names if not (snapshot / name).exists())

    removed: list[str] = []
    remove = storage.remove_tree
    monkeypatch.setattr(storage, "remove_tree", lambda url: (removed.append(url), remove(url)))
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        assert not _build(copy, repair=True).cached
    finally:
        ended.set()
        watching.join()
    assert not lost
    assert [Path(url).name for url in removed if url.startswith(str(snapshot))] == ["manifest.json"]
    assert check_snapshot(snapshot, progress=Silent()).exit_code == 0


def test_a_snapshot_in_a_store_is_mended(project: Path) -> None:
    store = fsspec.filesystem("memory")
    recipe = load_recipe_file(project / "recipe.py")
    out = "memory://repairs/out"
    try:
        path = ss.build(recipe, out).path
        whole = store.cat_file(f"{path}/{TRAIN[0]}")
        store.pipe_file(f"{path}/{TRAIN[0]}", whole[:-9] + b"x" + whole[-8:])
        store.rm(f"{path}/reader/api.py")
        report = check_snapshot(out, progress=Silent())
        assert sorted({finding.file for finding in report.damages}) == ["reader/api.py", TRAIN[0]]
        assert f"snapshard build SOURCE --out {out} --repair" in report.repair_hints()[0]
        assert not ss.build(recipe, out, repair=True).cached
        assert store.cat_file(f"{path}/{TRAIN[0]}") == whole
        assert check_snapshot(out, progress=Silent()).exit_code == 0
    finally:
        store.rm("memory://repairs", recursive=True)


def test_what_is_not_ours_is_left(copy: Path) -> None:
    snapshot = _snapshot(copy)
    (snapshot / "notes.txt").write_text("mine")
    (snapshot / "reader/pipeline.py").write_text("x = 'mine'\n")
    assert _build(copy, repair=True).cached, "nothing of the data is damaged"
    assert (snapshot / "reader/pipeline.py").read_text() == "x = 'mine'\n"
    _flip(snapshot / TRAIN[0])
    _build(copy, repair=True)
    assert (snapshot / "notes.txt").read_text() == "mine"
    (snapshot / TRAIN[0]).unlink()
    (snapshot / TRAIN[0]).mkdir()
    (snapshot / TRAIN[0] / "more").write_text("mine")
    with pytest.raises(StorageError, match=f"is not a file:\n.*{TRAIN[0]}\nRemove"):
        _build(copy, repair=True)
    assert (snapshot / "manifest.json").exists()
    assert (snapshot / TRAIN[0] / "more").exists()


def test_an_edited_manifest_is_not_taken_for_built(copy: Path) -> None:
    _edit(_snapshot(copy) / "manifest.json")
    with pytest.raises(DamagedSnapshotError, match="building it again with --repair repairs it"):
        _build(copy)


def test_limits_are_taken_from_the_snapshot(copy: Path, tmp_path: Path) -> None:
    shutil.rmtree(copy / "out")
    _build(copy, limit=50)
    report = check_snapshot(copy / "out", progress=Silent())
    os.unlink(Path(report.path) / "schema.pbtxt")
    (told,) = check_snapshot(copy / "out", progress=Silent()).repair_hints()
    assert " --limit 50 --repair" in told
