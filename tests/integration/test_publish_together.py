"""Builds that share an output root, with each other and with garbage collection."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from snapshard.pipelines.operate import gc
from snapshard.pipelines.operate.gc import collect_garbage
from snapshard.transforms import storage

from .faults import look, paused, run_here, write_table
from .killed_builds import around_puts

Build = subprocess.Popen[str]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_table(tmp_path / "one")


def start(recipe: Path, out: Path) -> Build:
    arguments = ["build", str(recipe), "--out", str(out), "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "snapshard", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow  # processes
def test_many_builds_at_once(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One recipe twice, variants of it in its workspace, another of its name, one of another."""
    text = recipe.read_text()
    seed, shards = (recipe.with_name(f"{name}.py") for name in ("seed", "shards"))
    seed.write_text(text.replace("ss.Recipe(", "ss.Recipe(seed=7, ", 1))
    shards.write_text(text.replace("num_shards=1", "num_shards=2"))
    same_name = write_table(tmp_path / "two", num_rows=50)
    other = write_table(tmp_path / "three", num_rows=60)
    other.write_text(other.read_text().replace('"table"', '"other"'))
    recipes = (recipe, recipe, seed, shards, same_name, other)
    builds = [start(path, tmp_path / "out") for path in recipes]
    ended = [build.communicate(timeout=300) for build in builds]
    assert [build.returncode for build in builds] == [0] * 6, ended
    paths = [Path(json.loads(stdout.splitlines()[-1])["path"]) for stdout, _ in ended]
    assert paths[0] == paths[1]
    fingerprints = {path.name for path in paths}
    assert len(fingerprints) == 5
    latest = json.loads((tmp_path / "out" / "table" / "latest.json").read_text())
    assert latest["fingerprint"] in fingerprints - {paths[-1].name}
    for path in recipes[1:]:
        assert run_here(capsys, "build", path, "--out", tmp_path / "alone").code == 0
    found, alone = (
        look(tmp_path / root / "table") | look(tmp_path / root / "other")
        for root in ("out", "alone")
    )
    assert found == alone
    assert found.keys() == fingerprints
    for path in set(paths):
        assert run_here(capsys, "verify", path).code == 0


@pytest.mark.slow  # processes
@pytest.mark.parametrize("at", ["write", "commit", "pointer"])
def test_a_build_while_another_one_publishes(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], at: str
) -> None:
    out = tmp_path / "out"
    same_name = write_table(tmp_path / "two", num_rows=50)
    with paused(recipe, out, at=at, scratch=tmp_path) as end:
        for path in (recipe, same_name):
            assert run_here(capsys, "build", path, "--out", out).code == 0
        before = look(out / "table")
        assert len(before) == 2
        # Nor does garbage collection come between them.
        report = collect_garbage(str(out))
        assert report.busy == (str(out / "table"),)
        ended = end()
    assert ended.code == 0, ended.stderr
    assert look(out / "table") == before
    latest = json.loads((out / "table" / "latest.json").read_text())["fingerprint"]
    assert ended.stdout.splitlines()[-1].find(latest) > 0


@pytest.mark.slow  # processes
def test_a_killed_build_locks_nothing(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with paused(recipe, out, at="write", scratch=tmp_path):
        pass  # killed with SIGKILL, its group with it
    assert (out / "table" / ".work" / "lock").exists()
    assert look(out / "table") == {}
    assert collect_garbage(str(out), dry_run=True).busy == ()
    assert run_here(capsys, "build", recipe, "--out", out).code == 0
    assert len(look(out / "table")) == 1
    report = collect_garbage(str(out))
    assert report.busy == ()
    assert len(look(out / "table")) == 1


@pytest.mark.slow  # a process
def test_a_build_that_starts_in_the_middle_of_garbage_collection(
    recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits: what it counts as done is not taken away from under it."""
    out = tmp_path / "out"
    assert run_here(capsys, "build", recipe, "--out", out).code == 0
    wanted = look(out / "table")
    # All of the work is garbage now.
    shutil.rmtree(out / "table" / next(iter(wanted)))
    remove = gc.remove_garbage
    builds: list[Build] = []

    def removing(*arguments: object, **options: object) -> None:
        builds.append(start(recipe, out))
        # It has begun, and holds the lock's file open.
        deadline = time.monotonic() + 100
        while not _waits_for_lock(builds[0].pid):
            assert builds[0].poll() is None, builds[0].communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        remove(*arguments, **options)
        assert builds[0].poll() is None

    monkeypatch.setattr(gc, "remove_garbage", removing)
    report = collect_garbage(str(out))
    assert any("/runs/" in path for path in report.paths)
    _, stderr = builds[0].communicate(timeout=200)
    assert builds[0].returncode == 0, stderr
    assert look(out / "table") == wanted


def _waits_for_lock(pid: int) -> bool:
    with open("/proc/locks") as file:
        return any("->" in line and f" {pid} " in line for line in file)


@pytest.mark.slow  # processes
def test_garbage_collection_that_is_killed(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After each file that it removes: the next build gives the same, the next one clears all."""
    out, alone = tmp_path / "out", tmp_path / "alone"
    assert run_here(capsys, "build", recipe, "--out", alone).code == 0
    wanted = look(alone / "table")
    (fingerprint,) = wanted
    # As a build leaves it that is killed before its manifest, beside a published snapshot.
    older = write_table(tmp_path / "older", num_rows=30)
    assert run_here(capsys, "build", older, "--out", tmp_path / "base").code == 0
    table = tmp_path / "base" / "table"
    published = look(table)
    pointer = (table / "latest.json").read_bytes()
    assert run_here(capsys, "build", recipe, "--out", tmp_path / "base").code == 0
    (table / fingerprint / "manifest.json").unlink()
    (table / "latest.json").write_bytes(pointer)
    shutil.copytree(tmp_path / "base", out)
    removed: list[str] = []
    with around_puts(lambda url: contextlib.nullcontext(removed.append(url))):
        num_files = collect_garbage(str(out)).num_files
    assert len(removed) == num_files > 20
    for number in range(0, num_files, 4):
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "base", out)
        for url in removed[:number]:
            storage.remove_tree(url)
        assert look(out / "table") == published
        if number % 8:
            rest = collect_garbage(str(out))
            assert rest.num_files == num_files - number
        ended = run_here(capsys, "build", recipe, "--out", out)
        assert ended.code == 0, ended.stderr
        assert look(out / "table") == published | wanted
