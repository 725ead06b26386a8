"""Disks and stores that fail under a build: what is told, what is left, what follows.

At any call, injected; and real ones that are full, read-only, apart, or another user's.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines import workspace
from snapshard.pipelines.operate.gc import collect_garbage
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import StorageError
from snapshard.transforms import storage

from .faults import (
    FAULTS,
    PHASES,
    Ended,
    FailingStore,
    Injector,
    RemoteDisk,
    UnavailableError,
    assert_told,
    failing_disk,
    look,
    paused,
    registered,
    run_here,
    write_table,
)
from .killed_builds import around_puts

LASTING = ("permission denied", "the filesystem is read-only")
"""Faults that another try would meet again."""

EVERY = 1 if "SNAPSHARD_ALL_FAULTS" in os.environ else 5
"""One call of five is enough for each day; with the variable set no call is left out."""


@dataclasses.dataclass(frozen=True)
class Bench:
    """A recipe, a published older snapshot of its name, and what a quiet build of it gives."""

    recipe: Path
    before: Path
    """An output root that holds the older snapshot, and no work."""
    older: dict[str, str]
    wanted: dict[str, str]
    """What a reader finds of the older snapshot, and of the recipe's."""
    num_bytes: int
    """Of the older snapshot's output root and a quiet build in it."""
    capsys: pytest.CaptureFixture[str]

    def build(self, out: object, *, workers: int = 1) -> Ended:
        arguments = ("--out", out, "--workers", workers, "--json")
        return run_here(self.capsys, "build", self.recipe, *arguments)

    def fresh(self, out: Path) -> Path:
        """Makes an output root as it was before."""
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(self.before, out)
        return out

    def check(self, ended: Ended, table: Path, *, where: str) -> bool:
        """What a build that met a fault has left and told; whether it told anything."""
        if ended.code:
            assert_told(ended, code=2 if any(why in ended.error for why in LASTING) else 1)
        assert look(table) in (self.older, self.older | self.wanted), where
        return ended.code != 0

    def go_on(self, out: Path, *, where: str = "") -> None:
        """Builds once the cause is gone: the snapshot of a build that nothing has disturbed."""
        again = self.build(out)
        assert again.code == 0, f"{where}\n{again.stderr}"
        assert look(out / "table") == self.older | self.wanted, where
        assert not list(out.rglob(".*.tmp"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a bench is made of, readable to everybody."""
    folder = tmp_path_factory.mktemp("bench")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    older = write_table(folder / "old", num_rows=30)
    recipe = write_table(folder / "new", num_rows=2000)
    before, quiet = folder / "before", folder / "quiet"
    ss.build(load_recipe_file(older), before)
    shutil.rmtree(before / "table" / ".work")
    shutil.copytree(before, quiet)
    ss.build(load_recipe_file(recipe), quiet)
    found = look(before / "table")
    wanted = {name: whole for name, whole in look(quiet / "table").items() if name not in found}
    assert len(wanted) == 1
    num_bytes = sum(path.stat().st_size for path in quiet.rglob("*"))
    names = {"recipe": recipe, "before": before, "older": found, "wanted": wanted}
    return {**names, "num_bytes": num_bytes}


@pytest.fixture
def bench(built: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(**built, capsys=capsys)


@pytest.fixture
def filesystems() -> Iterator[None]:
    with registered():
        yield


def distinct(calls: list[str]) -> list[int]:
    """One of the calls of each kind on each kind of file: the names that vary are left out."""
    found: dict[str, int] = {}
    for at, call in enumerate(calls):
        named = re.sub(r"\.[0-9a-f]{32}\.tmp|snapshard-\w+|[0-9a-f]{16,}", "*", call)
        found.setdefault(re.sub(r"reader/\w+", "reader/*", named), at)
    return sorted(found.values())


@pytest.mark.slow  # two builds for each of some hundred calls
def test_a_disk_that_fails_at_any_call(bench: Bench, tmp_path: Path) -> None:
    out = bench.fresh(tmp_path / "out")
    counted = Injector()
    with failing_disk(out, counted):
        assert bench.build(out).code == 0
    num_told = 0
    chosen = distinct(counted.calls)[::EVERY]
    for at, (name, make) in zip(chosen, itertools.cycle(FAULTS.items()), strict=False):
        bench.fresh(out)
        injector = Injector(make, at=at)
        with failing_disk(out, injector):
            ended = bench.build(out)
        where = f"{name} at call {at}, {injector.calls[at : at + 1]}: {ended.stderr}"
        num_told += bench.check(ended, out / "table", where=where)
        bench.go_on(out, where=where)
    assert num_told > len(chosen) // 2


@pytest.mark.slow  # two builds for each put
@pytest.mark.parametrize(
    ("kind", "mode"), [(FailingStore, "before"), (FailingStore, "after"), (RemoteDisk, "half")]
)
def test_a_store_or_remote_disk_that_fails_at_any_put(
    bench: Bench,
    filesystems: None,
    tmp_path: Path,
    kind: type[FailingStore] | type[RemoteDisk],
    mode: str,
) -> None:
    """Lets one call after the other fail; what a build has done, the next one finds done."""
    out = tmp_path / "out"
    url = "oss://out" if kind is FailingStore else f"remotedisk://{out}"

    def start() -> None:
        bench.fresh(out)
        if kind is FailingStore:
            FailingStore.store.clear()
            FailingStore("").put(f"{out}/", "/out/", recursive=True)

    def seen() -> dict[str, str]:
        if kind is FailingStore:
            shutil.rmtree(out)
            FailingStore("").get("/out/", f"{out}/", recursive=True)
        return look(out / "table")

    start()
    kind.mode, kind.injector = mode, Injector()
    assert bench.build(url).code == 0
    calls = kind.injector.calls
    puts = ("pipe_file", "put_file", "mv")
    chosen = [at for at in distinct(calls) if mode == "before" or calls[at].startswith(puts)]
    for at in chosen[::EVERY]:
        start()
        kind.injector = Injector(UnavailableError, at=at)
        ended = bench.build(url)
        where = f"{mode} call {at}, {kind.injector.calls[at : at + 1]}: {ended.stderr}"
        kind.injector = None
        if ended.code:
            assert_told(ended, code=2 if any(why in ended.error for why in LASTING) else 1)
            assert "503" in ended.error, where
        assert seen() in (bench.older, bench.older | bench.wanted), where
        again = bench.build(url)
        assert again.code == 0, f"{where}\n{again.stderr}"
        assert seen() == bench.older | bench.wanted, where


def test_a_half_put_never_shows(tmp_path: Path, filesystems: None) -> None:
    """Where files grow under their names: the old one stays, the half one is gone."""
    url = f"remotedisk://{tmp_path}/folder/a"
    storage.put_bytes(url, b"before")
    RemoteDisk.mode = "half"
    (tmp_path / "local").write_bytes(b"what comes after")
    for at, put in enumerate(
        (
            lambda: storage.put_bytes(url, b"what comes after"),
            lambda: storage.put_file(str(tmp_path / "local"), url),
        )
    ):
        # makedirs comes first.
        RemoteDisk.injector = Injector(UnavailableError, at=1)
        with pytest.raises(StorageError, match="503"):
            put()
        assert storage.read_bytes(url) == b"before", at
        assert storage.list_names(f"remotedisk://{tmp_path}/folder") == ["a"]
    RemoteDisk.injector = None
    storage.put_file(str(tmp_path / "local"), url)
    assert storage.read_bytes(url) == b"what comes after"
    assert not (tmp_path / "local").exists()


@pytest.mark.parametrize("silent", [True, False])
def test_a_filesystem_that_replaces_nothing(
    tmp_path: Path, filesystems: None, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    def move(self: RemoteDisk, source: str, target: str) -> None:
        if not os.path.exists(target):
            os.rename(source, target)
        elif not silent:
            raise FileExistsError(target)

    monkeypatch.setattr(RemoteDisk, "mv", move)
    for content in (b"first", b"second"):
        storage.put_bytes(f"remotedisk://{tmp_path}/a", content)
        assert (tmp_path / "a").read_bytes() == content
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("put", ["bytes", "file"])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_could_not_be_synced_does_not_pass_for_done(
    tmp_path: Path, put: str, what: str
) -> None:
    """After a failed fsync the kernel forgets: a second one would succeed, and say nothing."""
    target, local = tmp_path / "out" / "a", tmp_path / "local"
    target.parent.mkdir()
    local.write_bytes(b"content")

    def fail() -> None:
        if put == "bytes":
            storage.put_bytes(str(target), b"content")
        else:
            storage.put_file(str(local), str(target))

    counted = Injector()
    with failing_disk(tmp_path, counted):
        fail()
    target.unlink()
    local.write_bytes(b"content")
    syncs = [at for at, call in enumerate(counted.calls) if call.startswith("fsync")]
    assert len(syncs) == 2
    at = syncs[0 if what == "file" else 1]
    with (
        failing_disk(tmp_path, Injector(FAULTS["EIO"], at=at)),
        pytest.raises(StorageError, match="input/output error"),
    ):
        fail()
    assert list(target.parent.iterdir()) == []


@pytest.mark.slow  # a process
def test_short_writes_are_continued_and_told(tmp_path: Path) -> None:
    """A limit on the length of files: real short writes, then EFBIG, in every library's writer."""
    recipe = write_table(tmp_path, num_rows=3000)
    limit = "import resource, sys; from snapshard import cli; "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)); cli.main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", limit, "build", str(recipe), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "error: Cannot write" in done.stderr
    assert "File too large" in done.stderr
    assert look(tmp_path / "out" / "table") == {}


@pytest.mark.slow
def test_the_clock_is_set_back(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files from the future are read each time; nothing that is told is negative."""
    out, table = tmp_path / "out", tmp_path / "table.csv"
    shutil.copyfile(bench.recipe.parent / "table.csv", table)
    bench = dataclasses.replace(bench, recipe=shutil.copy(bench.recipe, tmp_path))
    in_a_day = time.time_ns() + 86_400 * 10**9
    os.utime(table, ns=(in_a_day, in_a_day))
    assert bench.build(out).code == 0
    assert look(out / "table") == bench.wanted
    # Other content of the same length, and all clocks two days slow and running backwards.
    ticks = itertools.count()
    two_days_ago = time.time_ns() - 2 * 86_400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: two_days_ago - next(ticks) * 10**9)
    monkeypatch.setattr(time, "time", lambda: two_days_ago / 1e9 - next(ticks))
    text = table.read_text()
    table.write_text(text.replace("word 1", "WORD 1"))
    os.utime(table, ns=(in_a_day, in_a_day))
    changed = bench.build(out)
    assert changed.code == 0, changed.stderr
    (fingerprint,) = set(look(out / "table")) - set(bench.wanted)
    facts = json.loads((out / "table" / fingerprint / "build.json").read_text())
    assert min(facts["seconds"].values()) >= 0
    assert facts["started"].endswith("Z")
    # And back again, to what was there: the bytes of before.
    table.write_text(text)
    again = bench.build(out)
    assert '"cached": true' in again.stdout
    assert next(iter(bench.wanted)) in again.stdout
    assert look(out / "table").items() >= bench.wanted.items()
    assert not any("/runs/" in path for path in collect_garbage(str(out)).paths)


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_is_told_with_its_cure(tmp_path: Path, kind: str) -> None:
    with (
        failing_disk(tmp_path, Injector(FAULTS[kind], at=0)),
        pytest.raises(StorageError) as raised,
    ):
        storage.put_bytes(str(tmp_path / "a"), b"")
    assert re.fullmatch(rf"Cannot write {tmp_path}/a: [^.]+\. [A-Z].*\.", str(raised.value))
    # Another try does not change who may write there.
    assert raised.value.exit_code == (2 if kind in ("EACCES", "EROFS") else 1)
    assert list(tmp_path.iterdir()) == []


# Real disks that are full, read-only or apart, and a real user who may not write.

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


@pytest.fixture
def mounted(tmp_path: Path, real_fsync: None) -> Iterator[Callable[..., Path]]:
    """Mounts small memory disks, and unmounts them."""
    places = []

    def mount(name: str, *, num_bytes: int) -> Path:
        place = tmp_path / name
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(place)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no disk can be mounted here: a full one is seen as injected ENOSPC alone")
        places.append(place)
        return place

    yield mount
    for place in places:
        remount(place, "rw")
        subprocess.run(["umount", str(place)], check=True)


def remount(disk: Path, mode: str) -> None:
    """Makes a disk read-only ("ro") or writable ("rw")."""
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True, capture_output=True)


@contextlib.contextmanager
def acting(act: Callable[[], object], *, at: str) -> Iterator[None]:
    """Does something when a build in this process is about to put a file of a phase."""
    acted = threading.Event()

    def around(url: str) -> AbstractContextManager[None]:
        if PHASES[at] in url and not acted.is_set():
            acted.set()
            act()
        return contextlib.nullcontext()

    with around_puts(around):
        yield
    assert acted.is_set(), f"{at} was never reached"


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Fills a disk but for so many bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        free = shutil.disk_usage(disk).free - leave
        while free > 0:
            free -= file.write(bytes(min(free, 1 << 16)))
    return ballast


def assert_full(ended: Ended) -> None:
    assert_told(ended)
    assert "no space left. Free some space" in ended.error


@pytest.mark.slow  # two builds for each phase
def test_a_full_disk(bench: Bench, mounted: Callable[..., Path]) -> None:
    disk = mounted("disk", num_bytes=4 * bench.num_bytes)
    out, ballast = disk / "out", disk / "ballast"
    for phase in ("prepare", "write", "publish", "pointer"):
        bench.fresh(out)
        with acting(functools.partial(fill, disk), at=phase):
            ended = bench.build(out)
        assert_full(ended)
        # A pointer that cannot be put leaves what it would have pointed to whole.
        found = look(out / "table")
        assert found == (bench.older | bench.wanted if phase == "pointer" else bench.older), phase
        ballast.unlink()
        bench.go_on(out)
    # Full wherever it happens to be full, in the libraries' own writers too.
    bench.fresh(out)
    for part in (0.1, 0.2, 0.3):
        fill(disk, leave=int(bench.num_bytes * part))
        assert_full(bench.build(out))
        assert look(out / "table") == bench.older
        ballast.unlink()
    bench.go_on(out)


@pytest.mark.slow  # worker processes
def test_workers_on_a_full_disk(
    bench: Bench, mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no room left to say so, nor has what they write down of their failures."""
    disk = mounted("disk", num_bytes=4 * bench.num_bytes)
    out = bench.fresh(disk / "out")
    (disk / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(disk / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    # The plan finds room, the shards do not.
    with acting(functools.partial(fill, disk, leave=1 << 14), at="plan"):
        ended = bench.build(out, workers=2)
    assert_told(ended)
    assert "no space" in ended.error
    # Nor does a build begin there.
    ended = bench.build(out, workers=2)
    assert_told(ended)
    assert look(out / "table") == bench.older
    (disk / "ballast").unlink()
    bench.go_on(out)


@pytest.mark.slow  # three builds for each phase
def test_a_disk_that_turns_read_only(
    bench: Bench, mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kernels do after an error of the disk."""
    disk = mounted("disk", num_bytes=4 * bench.num_bytes)
    for phase in ("prepare", "commit"):
        out = bench.fresh(disk / "out")
        with monkeypatch.context() as patched, acting(lambda: remount(disk, "ro"), at=phase):
            # It cannot be made so by hand while a file is open to be written.
            patched.setattr(workspace, "_open_lock", lambda _: None)
            ended = bench.build(out)
        assert_told(ended, code=2)
        assert "the filesystem is read-only. Choose another place" in ended.error
        assert look(out / "table") == bench.older
        # Nor does a build begin there.
        assert_told(bench.build(out), code=2)
        remount(disk, "rw")
        bench.go_on(out)
    # What is published there is found.
    remount(disk, "ro")
    ended = bench.build(out)
    assert ended.code == 0, ended.stderr
    assert '"cached": true' in ended.stdout


@pytest.mark.slow  # builds
def test_output_on_another_disk_than_the_work(
    bench: Bench, mounted: Callable[..., Path], tmp_path: Path
) -> None:
    """Files are copied there, then named: nothing is half, nothing is left behind."""
    disk = mounted("disk", num_bytes=4 * bench.num_bytes)
    out, work = bench.fresh(disk / "out"), tmp_path / "work"
    work.mkdir()
    (out / "table" / ".work").symlink_to(work)
    bench.go_on(out)
    assert list(work.glob("runs/*/*.arrow"))
    assert not list(work.glob("scratch/*"))
    # Full in the middle of a copy.
    bench.fresh(out)
    (out / "table" / ".work").symlink_to(work)
    shutil.rmtree(work / "shards")
    ballast = fill(disk, leave=1 << 14)
    assert_full(bench.build(out))
    assert look(out / "table") == bench.older
    assert not list(disk.rglob(".*.tmp"))
    ballast.unlink()
    bench.go_on(out)


@pytest.mark.slow  # processes
def test_a_user_who_may_not_write(bench: Bench, tmp_path: Path) -> None:
    """From the beginning, and from the middle of a build on; he may read what lies there."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv (util-linux), can run a build as somebody else")
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    scratch, out = tmp_path / "scratch", tmp_path / "out"
    scratch.mkdir()
    scratch.chmod(0o777)

    def permit(mode: int) -> None:
        for folder in (out, *(path for path in out.rglob("*") if path.is_dir())):
            folder.chmod(mode)

    def build_as_nobody() -> Ended:
        command = [*NOBODY, sys.executable, "-m", "snapshard", "build", str(bench.recipe)]
        done = subprocess.run(
            [*command, "--out", str(out), "--json"], capture_output=True, text=True, check=False
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    ended = build_as_nobody()
    assert_told(ended, code=2)
    assert "permission denied" in ended.error
    assert not out.exists()
    bench.fresh(out)
    for path in (out, *out.rglob("*")):
        os.chown(path, 65534, 65534)
    with paused(bench.recipe, out, at="write", scratch=scratch, prefix=NOBODY) as end:
        permit(0o555)
        ended = end()
    assert_told(ended, code=2)
    assert "permission denied. Check its read and write permissions" in ended.error
    assert look(out / "table") == bench.older
    permit(0o755)
    bench.go_on(out)
    permit(0o555)
    ended = build_as_nobody()
    assert ended.code == 0, ended.stderr
    assert '"cached": true' in ended.stdout
