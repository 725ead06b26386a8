"""Disks and stores that fail at any call of a build: what is told, what is left, what follows."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapshard.pipelines.operate.gc import collect_garbage
from snapshard.schemas.errors import StorageError
from snapshard.transforms import storage

from .faults import (
    FAULTS,
    Ended,
    FailingStore,
    Injector,
    RemoteDisk,
    UnavailableError,
    assert_told,
    failing_disk,
    look,
    registered,
    run_here,
    write_table,
)

LASTING = ("permission denied", "the filesystem is read-only")
"""Faults that another try would meet again."""

EVERY = 1 if "SNAPSHARD_ALL_FAULTS" in os.environ else 3
"""One call of three is enough for each day; with the variable set no call is left out."""


class Bench:
    """A recipe, a published older snapshot of the same name, and what a quiet build gives."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self.recipe = write_table(folder / "old", num_rows=30)
        assert self.build(folder / "before").code == 0
        self.older = look(folder / "before" / "table")
        self.recipe = write_table(folder / "new")
        assert self.build(folder / "quiet").code == 0
        self.wanted = look(folder / "quiet" / "table")
        assert self.wanted.keys().isdisjoint(self.older)

    def build(self, out: object) -> Ended:
        return run_here(self._capsys, "build", self.recipe, "--out", out, "--json")

    def fresh(self) -> Path:
        """An output root that holds the older snapshot, and no work."""
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(self.folder / "before", out, ignore=shutil.ignore_patterns(".work"))
        return out

    def check(self, ended: Ended, table: Path, *, where: str) -> bool:
        """What a build that met a fault has left and told; whether it told anything."""
        if ended.code:
            assert_told(ended, code=2 if any(why in ended.error for why in LASTING) else 1)
        found = look(table)
        assert found in (self.older, self.older | self.wanted), where
        return ended.code != 0


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(tmp_path, capsys)


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
def test_a_disk_that_fails_at_any_call(bench: Bench) -> None:
    counted = Injector()
    with failing_disk(bench.fresh(), counted):
        assert bench.build(bench.folder / "out").code == 0
    num_told = 0
    chosen = distinct(counted.calls)[::EVERY]
    for at, (name, make) in zip(chosen, itertools.cycle(FAULTS.items()), strict=False):
        out = bench.fresh()
        injector = Injector(make, at=at)
        with failing_disk(out, injector):
            ended = bench.build(out)
        where = f"{name} at call {at}, {injector.calls[at : at + 1]}: {ended.stderr}"
        num_told += bench.check(ended, out / "table", where=where)
        again = bench.build(out)
        assert again.code == 0, f"{where}\n{again.stderr}"
        assert look(out / "table") == bench.older | bench.wanted, where
    assert num_told > len(chosen) // 2


@pytest.mark.slow  # two builds for each put
@pytest.mark.parametrize("mode", ["before", "after"])
def test_a_store_that_fails_at_any_put(bench: Bench, filesystems: None, mode: str) -> None:
    _fail_at_every_call(bench, FailingStore, "oss://out", mode=mode)


@pytest.mark.slow  # two builds for each put
def test_a_remote_disk_that_fails_halfway_through_any_put(bench: Bench, filesystems: None) -> None:
    out = bench.folder / "out"
    _fail_at_every_call(bench, RemoteDisk, f"remotedisk://{out}", mode="half")


def _fail_at_every_call(
    bench: Bench, kind: type[FailingStore] | type[RemoteDisk], url: str, *, mode: str
) -> None:
    """Lets one call after the other fail; what a build has done, the next one finds done."""

    def start() -> Path:
        out = bench.fresh()
        if kind is FailingStore:
            FailingStore.store.clear()
            FailingStore("").put(f"{out}/", "/out/", recursive=True)
        return out / "table"

    def seen() -> dict[str, str]:
        if kind is RemoteDisk:
            return look(bench.folder / "out" / "table")
        copy = bench.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        FailingStore("").get("/out/", f"{copy}/", recursive=True)
        return look(copy / "table")

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
def test_the_clock_is_set_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files from the future are read each time; nothing that is told is negative."""
    out, table = bench.folder / "out", bench.recipe.parent / "table.csv"
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
