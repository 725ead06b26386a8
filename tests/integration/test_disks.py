"""Real disks that are full, read-only, apart, or no longer ours in the middle of a build."""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snapshard.pipelines import workspace
from snapshard.transforms import storage

from .faults import Ended, assert_told, look, run_here, write_table

MB = 1 << 20

NOBODY = (
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    # Python itself may lie where nobody else may look.
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
)
"""Runs a command as a user who may read everything and write nothing but his own."""

# The command line; each put into a named place waits for the test, which then changes the disk.
PAUSED = """
import os, sys, time
from snapshard import cli
from snapshard.transforms import storage

place, reached, go_on = sys.argv[1:4]
for name in ("put_bytes", "put_file"):
    def pausing(first, second, put=getattr(storage, name), name=name):
        url = first if name == "put_bytes" else second
        if place in url and not os.path.exists(reached):
            open(reached, "w").close()
            while not os.path.exists(go_on):
                time.sleep(0.01)
        put(first, second)
    setattr(storage, name, pausing)
cli.main(sys.argv[4:])
"""

PHASES = {
    "inventory": "/memo.json",
    "prepare": "/runs/",
    "plan": "/plans/",
    "write": ".tfrecord",
    "publish": "/schema.pbtxt",
    "commit": "/manifest.json",
    "pointer": "/latest.json",
}
"""Where a build is when it puts the first of these."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe and ``quiet``, what an undisturbed build of it gives; readable to everybody."""
    folder = tmp_path_factory.mktemp("disks")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    recipe = write_table(folder, num_rows=2000)
    ended = run(recipe, folder / "quiet")
    assert ended.code == 0, ended.stderr
    return folder


@pytest.fixture
def build(project: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[Path], Ended]:
    """Builds in this process."""
    return lambda out: run_here(capsys, *_arguments(project / "recipe.py", out))


@pytest.fixture
def go_on(project: Path, build: Callable[[Path], Ended]) -> Callable[[Path], None]:
    """Builds where a build has failed, once the cause is gone: what nothing has disturbed."""

    def finish(out: Path) -> None:
        again = build(out)
        assert again.code == 0, again.stderr
        assert look(out / "table") == look(project / "quiet" / "table")
        assert not list(out.rglob(".*.tmp"))

    return finish


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts small memory disks, and unmounts them."""
    places = []

    def mount(name: str, *, num_bytes: int) -> Path:
        place = tmp_path / name
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(place)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip(
                "no disk can be mounted here: a full one is seen as injected ENOSPC alone "
                "(tests/integration/test_faults.py)"
            )
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["mount", "-o", "remount,rw", str(place)], check=False, capture_output=True)
        subprocess.run(["umount", str(place)], check=True)


def run(
    recipe: Path,
    out: Path,
    *,
    workers: int = 1,
    environment: dict[str, str] | None = None,
    prefix: tuple[str, ...] = (),
) -> Ended:
    """Builds through the command line in a process of its own."""
    arguments = _arguments(recipe, out, workers=workers)
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "snapshard", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=recipe.parent,
        env={**os.environ, **(environment or {})},
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _arguments(recipe: Path, out: Path, *, workers: int = 1) -> list[str]:
    return ["build", str(recipe), "--out", str(out), "--workers", str(workers), "--json"]


def run_with(
    act: Callable[[], object],
    *,
    at: str,
    recipe: Path,
    out: Path,
    scratch: Path,
    workers: int = 1,
    environment: dict[str, str] | None = None,
    prefix: tuple[str, ...] = (),
) -> Ended:
    """Builds, and does something when the build is about to put a file of a phase."""
    reached, go_on = scratch / "reached", scratch / "go on"
    for path in (reached, go_on):
        path.unlink(missing_ok=True)
    scratch.chmod(0o777)
    paused = [sys.executable, "-c", PAUSED, PHASES[at], str(reached), str(go_on)]
    process = subprocess.Popen(
        [*prefix, *paused, *_arguments(recipe, out, workers=workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=recipe.parent,
        env={**os.environ, **(environment or {})},
    )
    try:
        deadline = time.monotonic() + 200
        while not reached.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, f"{at} was never reached"
            time.sleep(0.01)
        act()
        go_on.touch()
        stdout, stderr = process.communicate(timeout=200)
    finally:
        process.kill()
        process.communicate()
    return Ended(process.returncode, stdout, stderr)


@contextlib.contextmanager
def acting(act: Callable[[], object], *, at: str) -> Iterator[None]:
    """Does something when a build in this process is about to put a file of a phase."""
    acted: list[object] = []

    def before(put: Callable[..., None], place: int) -> Callable[..., None]:
        def putting(*arguments: str | bytes) -> None:
            if not acted and PHASES[at] in str(arguments[place]):
                acted.append(True)
                act()
            put(*arguments)

        return putting

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(storage, "put_bytes", before(storage.put_bytes, 0))
        patched.setattr(storage, "put_file", before(storage.put_file, 1))
        yield
    assert acted, f"{at} was never reached"


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Fills a disk but for so many bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        free = shutil.disk_usage(disk).free - leave
        while free > 0:
            free -= file.write(bytes(min(free, 1 << 16)))
    return ballast


@pytest.mark.slow  # two builds for each phase
@pytest.mark.usefixtures("real_fsync")
@pytest.mark.parametrize("phase", ["prepare", "write", "publish", "pointer"])
def test_a_full_disk(
    project: Path,
    go_on: Callable[[Path], None],
    build: Callable[[Path], Ended],
    mounted: Callable[..., Path],
    phase: str,
) -> None:
    disk = mounted("disk", num_bytes=4 * MB)
    with acting(functools.partial(fill, disk), at=phase):
        ended = build(disk / "out")
    assert_told(ended)
    assert "no space left. Free some space" in ended.error
    # A pointer that cannot be put leaves what it would have pointed to whole.
    published = look(disk / "out" / "table")
    assert published == (look(project / "quiet" / "table") if phase == "pointer" else {})
    (disk / "ballast").unlink()
    go_on(disk / "out")


@pytest.mark.slow  # many processes, each on a smaller disk
def test_a_disk_that_is_too_small(
    project: Path, go_on: Callable[[Path], None], mounted: Callable[..., Path]
) -> None:
    """Full wherever it happens to be full, in the libraries' own writers too."""
    needed = sum(path.stat().st_size for path in (project / "quiet").rglob("*"))
    disk = mounted("disk", num_bytes=4 * needed)
    for part in (0.1, 0.2, 0.3):
        ballast = fill(disk, leave=int(needed * part))
        ended = run(project / "recipe.py", disk / "out", workers=2 if part == 0.2 else 1)
        assert_told(ended)
        assert "no space left. Free some space" in ended.error
        assert look(disk / "out" / "table") == {}
        ballast.unlink()
    go_on(disk / "out")


@pytest.mark.slow  # worker processes
def test_a_full_temporary_folder(
    project: Path, go_on: Callable[[Path], None], tmp_path: Path, mounted: Callable[..., Path]
) -> None:
    """What worker processes write down of their failures lies there too."""
    disk = mounted("tmp", num_bytes=1 << 16)
    fill(disk)
    for workers in (1, 2):
        ended = run(
            project / "recipe.py",
            tmp_path / "out",
            workers=workers,
            environment={"TMPDIR": str(disk)},
        )
        if ended.code:
            assert_told(ended)
    go_on(tmp_path / "out")


@pytest.mark.slow  # worker processes
def test_output_and_temporary_folder_on_one_full_disk(
    project: Path, go_on: Callable[[Path], None], tmp_path: Path, mounted: Callable[..., Path]
) -> None:
    """Workers have no room left to say so: the build ends, and says that."""
    disk = mounted("disk", num_bytes=4 * MB)
    (disk / "tmp").mkdir()
    ended = run_with(
        # The plan finds room, the shards do not.
        functools.partial(fill, disk, leave=1 << 14),
        at="plan",
        recipe=project / "recipe.py",
        out=disk / "out",
        scratch=tmp_path,
        workers=2,
        environment={"TMPDIR": str(disk / "tmp")},
    )
    assert_told(ended)
    assert "no space" in ended.error
    (disk / "ballast").unlink()
    go_on(disk / "out")


@pytest.mark.slow  # three builds for each phase
@pytest.mark.usefixtures("real_fsync")
@pytest.mark.parametrize("phase", ["prepare", "commit"])
def test_a_disk_that_turns_read_only(
    monkeypatch: pytest.MonkeyPatch,
    go_on: Callable[[Path], None],
    build: Callable[[Path], Ended],
    mounted: Callable[..., Path],
    phase: str,
) -> None:
    """As kernels do after an error of the disk."""
    disk = mounted("disk", num_bytes=8 * MB)
    remount = ["mount", "-o", "remount,{}", str(disk)]

    def turn() -> None:
        subprocess.run([part.format("ro") for part in remount], check=True)

    with monkeypatch.context() as patched, acting(turn, at=phase):
        # It cannot be made so by hand while a file is open to be written.
        patched.setattr(workspace, "_open_lock", lambda _: None)
        ended = build(disk / "out")
    assert_told(ended, code=2)
    assert "the filesystem is read-only. Choose another place" in ended.error
    assert look(disk / "out" / "table") == {}
    # Nor does a build begin there.
    ended = build(disk / "out")
    assert_told(ended, code=2)
    subprocess.run([part.format("rw") for part in remount], check=True)
    go_on(disk / "out")


@pytest.mark.slow  # builds
def test_what_is_published_on_a_read_only_disk_is_found(
    build: Callable[[Path], Ended], mounted: Callable[..., Path]
) -> None:
    disk = mounted("disk", num_bytes=8 * MB)
    assert build(disk / "out").code == 0
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    ended = build(disk / "out")
    assert ended.code == 0, ended.stderr
    assert '"cached": true' in ended.stdout


@pytest.mark.slow  # builds
@pytest.mark.usefixtures("real_fsync")
def test_output_on_another_disk_than_the_work(
    project: Path,
    go_on: Callable[[Path], None],
    build: Callable[[Path], Ended],
    mounted: Callable[..., Path],
) -> None:
    """Files are copied there, then named: nothing is half, nothing is left behind."""
    disk = mounted("disk", num_bytes=8 * MB)
    work = mounted("work", num_bytes=8 * MB)
    (disk / "out" / "table").mkdir(parents=True)
    (disk / "out" / "table" / ".work").symlink_to(work)
    ended = build(disk / "out")
    assert ended.code == 0, ended.stderr
    assert look(disk / "out" / "table") == look(project / "quiet" / "table")
    assert list(work.glob("runs/*/*.arrow"))
    assert not list(work.glob("scratch/*"))
    assert not list(disk.rglob(".*.tmp"))
    # Full in the middle of a copy.
    (project_again := disk / "out" / "table").joinpath("latest.json").unlink()
    shutil.rmtree(next(path for path in project_again.iterdir() if len(path.name) == 16))
    shutil.rmtree(work / "shards")
    ballast = fill(disk, leave=1 << 14)
    ended = build(disk / "out")
    assert_told(ended)
    assert "no space left" in ended.error
    assert look(disk / "out" / "table") == {}
    assert not list(disk.rglob(".*.tmp"))
    ballast.unlink()
    go_on(disk / "out")


@pytest.fixture
def nobody() -> tuple[str, ...]:
    """What runs a command as a user who may not write everywhere."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv (util-linux), can run a build as somebody else")
    return NOBODY


@pytest.mark.slow  # two processes for each phase
@pytest.mark.parametrize("phase", ["prepare", "write"])
def test_permission_lost_midway(
    project: Path,
    go_on: Callable[[Path], None],
    tmp_path: Path,
    nobody: tuple[str, ...],
    phase: str,
) -> None:
    out = tmp_path / "out"
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    out.mkdir()
    os.chown(out, 65534, 65534)

    def forbid() -> None:
        for folder in (out, *(path for path in out.rglob("*") if path.is_dir())):
            folder.chmod(0o555)

    ended = run_with(
        forbid,
        at=phase,
        recipe=project / "recipe.py",
        out=out,
        scratch=tmp_path,
        prefix=nobody,
    )
    assert_told(ended, code=2)
    assert "permission denied. Check its read and write permissions" in ended.error
    assert look(out / "table") == {}
    for folder in (out, *(path for path in out.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    go_on(out)


@pytest.mark.slow  # processes
def test_an_output_that_may_not_be_written(
    project: Path, tmp_path: Path, nobody: tuple[str, ...], build: Callable[[Path], Ended]
) -> None:
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    ended = run(project / "recipe.py", tmp_path / "out", prefix=nobody)
    assert_told(ended, code=2)
    assert "permission denied" in ended.error
    assert not (tmp_path / "out").exists()
    # What lies there is found by who may only read it.
    assert build(tmp_path / "out").code == 0
    ended = run(project / "recipe.py", tmp_path / "out", prefix=nobody)
    assert ended.code == 0, ended.stderr
    assert '"cached": true' in ended.stdout
