"""What ``local_copy=`` does: which copies are made, when, of how many bytes, and what is read."""

import collections
import contextlib
import errno
import hashlib
import importlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.pipelines.reader.runtime import local_copy
from snapshard.runners.job_server import free_port
from snapshard.schemas.features import Features, Scalar, Text

from .conftest import part, write_snapshot
from .made_snapshots import put_hashes

FEATURES: Features = {"id": Scalar(dtype="int64"), "text": Text()}
NUM_SHARDS, NUM_EACH = 12, 40
TOTAL = NUM_SHARDS * NUM_EACH


def write(folder: Path, compression: str) -> types.ModuleType:
    """Twelve shards of alike length, and a split of two; with sha256, as a build writes them."""

    def shards(num: int) -> list[list[dict[str, Any]]]:
        ids = iter(range(num * NUM_EACH))
        return [
            [{"id": next(ids), "text": os.urandom(200)} for _ in range(NUM_EACH)]
            for _ in range(num)
        ]

    splits = {"train": shards(NUM_SHARDS), "test": shards(2), "none": []}
    reader = write_snapshot(folder, FEATURES, splits, label=None, compression=compression)
    put_hashes(folder)
    return reader


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, types.ModuleType]:
    """Compression -> the reader of a snapshot that no test changes."""
    return {
        compression: write(tmp_path_factory.mktemp(compression), compression)
        for compression in ("none", "gzip")
    }


@pytest.fixture
def compression() -> str:
    return "none"


@pytest.fixture
def reader(made: dict[str, types.ModuleType], compression: str) -> types.ModuleType:
    return made[compression]


@pytest.fixture
def source(reader: types.ModuleType) -> Path:
    """The snapshot's folder."""
    return Path(str(reader.__file__)).parent.parent


@contextlib.contextmanager
def impatient(module: Any) -> Iterator[pytest.MonkeyPatch]:
    """The module that copies waits less, and its threads have ended afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_WAIT_S", 0.002)
        patch.setattr(module, "_BACKOFF_S", 0.002)
        patch.setitem(sys.modules, "_reader_copies", types.SimpleNamespace())
        yield patch
        for copies in vars(sys.modules["_reader_copies"]).values():
            with copies.changed:
                copies.queue.clear()
        for thread in threading.enumerate():
            if thread.name == "local_copy":
                thread.join(10)


@pytest.fixture
def copies(reader: types.ModuleType) -> Iterator[Any]:
    """The module of this reader that copies."""
    module = part(reader, "local_copy")
    with impatient(module):
        yield module


def as_another_process() -> None:
    vars(sys.modules["_reader_copies"]).clear()


def ids(dataset: Any) -> list[int]:
    return [int(i) for batch in dataset for i in batch["id"].numpy()]


class Throttled:
    """Stands in for ``open_url``: a source that takes so long for each read, and counts them."""

    def __init__(self, real: Any, seconds: float) -> None:
        self.real, self.seconds = real, seconds
        self.opened: list[str] = []
        self.failures: dict[str, list[BaseException]] = {}
        self.first_alone: threading.Event | None = None
        """If there is one: what the first shard alone is read before."""
        self.waited_in_vain: list[str] = []

    @contextlib.contextmanager
    def __call__(self, url: str) -> Iterator[Any]:
        if url.endswith(".json"):
            with self.real(url) as source:
                yield source
            return
        name = os.path.basename(url)
        self.opened.append(name)
        with self.real(url) as source:
            outer = self

            class Slow:
                seek = source.seek

                def read(self, num: int) -> bytes:
                    if failures := outer.failures.get(name):
                        raise failures.pop()
                    time.sleep(outer.seconds)
                    gate = None if "-00000-of-" in name else outer.first_alone
                    if gate is not None and not gate.wait(60):
                        outer.waited_in_vain.append(name)
                    return bytes(source.read(num))

            yield Slow()


@pytest.fixture
def slow(copies: Any, monkeypatch: pytest.MonkeyPatch) -> Throttled:
    throttled = Throttled(copies.open_url, 0.02)
    monkeypatch.setattr(copies, "open_url", throttled)
    return throttled


# Copies as another process makes them: of a reader, but without the seconds that TensorFlow takes.
CHILD = """
import json, os, sys, types
sys.modules["tensorflow"] = types.ModuleType("tensorflow")
folder, source = sys.argv[1:]
sys.path.insert(0, source)
import reader.local_copy as module
module.open_url = lambda url: open(url, "rb")
copies = module.copies_in(folder)
names = []
for shard in json.load(open(f"{source}/manifest.json"))["splits"]["train"]["shards"]:
    names.append(f"{source}/{shard['file']}")
    copies.add(names[-1], shard["num_bytes"], shard["sha256"])
"""


def child(code: str, *arguments: str) -> Any:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], **pipes)


class Store:
    """Stands in for ``open_url``: shards in memory that fail to be read, or are read wrong."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.shards: dict[str, bytes] = {}
        self.garbled: dict[str, list[bytes]] = collections.defaultdict(list)
        """What is read instead, in as many tries."""
        self.failures: dict[str, list[tuple[int, Exception]]] = collections.defaultdict(list)
        """The bytes before which reading fails, and how."""

    @contextlib.contextmanager
    def __call__(self, url: str) -> Iterator[Any]:
        self.opened.append(url)
        yield StoredFile(self, url)


class StoredFile:
    def __init__(self, store: Store, url: str) -> None:
        self.store, self.url, self.place = store, url, 0

    def seek(self, place: int) -> None:
        self.place = place

    def read(self, num: int) -> bytes:
        failures, garbled = self.store.failures[self.url], self.store.garbled[self.url]
        if failures and self.place >= failures[0][0]:
            raise failures.pop(0)[1]
        content = self.store.shards[self.url]
        chunk = (garbled[0] if garbled else content)[self.place : self.place + num]
        self.place += len(chunk)
        if garbled and (not chunk or self.place > len(content)):
            garbled.pop(0)
        return chunk


CHUNK = 8
FAILURES = (OSError("no route\nto host"), tf.errors.UnavailableError(None, None, "busy"))


@st.composite
def shards_to_copy(draw: st.DrawFn) -> dict[str, Any]:
    """A shard, what its folder holds of it, and how often its source fails or is garbled."""
    content = draw(st.binary(min_size=1, max_size=40))
    wrong = {
        "changed": content[:-1] + bytes([content[-1] ^ 1]),
        "short": content[:-1],
        "long": content + b"x",
    }
    garbled = draw(st.lists(st.sampled_from([*wrong.values()]), max_size=3))
    place = draw(st.integers(0, (len(content) - 1) // CHUNK)) * CHUNK
    failures = draw(st.lists(st.sampled_from(FAILURES), max_size=3))
    return {
        "content": content,
        "garbled": garbled,
        "failures": [(place, failure) for failure in failures],
        "before": draw(st.sampled_from([None, content, *wrong.values()])),
        "rest": draw(st.booleans()),
    }


def errors_of(shard: dict[str, Any]) -> list[str]:
    """What is told until the copy is there: three failures or two garbled tries are an error."""
    if shard["before"] == shard["content"]:
        return []
    fails = ["cannot be read in 3 tries: "] if len(shard["failures"]) == 3 else []
    return fails + ["is damaged: expected "] * (len(shard["garbled"]) // 2)


class TestCopies:
    """Without a dataset: of any shards, every copy is whole or an error tells why it is not."""

    @settings(max_examples=60)
    @given(st.lists(shards_to_copy(), min_size=1, max_size=6), st.randoms())
    def test_each_is_copied_once_and_whole(self, shards: list[dict[str, Any]], rng: Any) -> None:
        with tempfile.TemporaryDirectory() as folder, impatient(local_copy) as patch:
            store = Store()
            patch.setattr(local_copy, "open_url", store)
            patch.setattr(local_copy, "_CHUNK_BYTES", CHUNK)
            wanted = {f"store://s/train-{i}": shard for i, shard in enumerate(shards)}
            copies = self.copies_of(wanted, folder)
            for url, shard in wanted.items():
                store.shards[url] = shard["content"]
                store.failures[url] += shard["failures"]
                store.garbled[url] += shard["garbled"]
                local = Path(copies.folder, os.path.basename(url))
                if shard["before"] is not None:
                    local.write_bytes(shard["before"])
                if shard["rest"]:  # of a process that died while it copied
                    local.with_name(f"{local.name}.part").write_bytes(b"half of it")
            urls = rng.sample([*wanted], len(wanted))
            for url in urls:
                copies.announce(url.encode())
            for url in rng.sample(urls, len(urls)):
                for error in errors_of(wanted[url]):
                    with pytest.raises(ValueError, match=rf"^{url} {error}[^\n]*$"):
                        copies.localize(url)
                assert Path(copies.localize(url)).read_bytes() == wanted[url]["content"]
            there = {url for url in urls if wanted[url]["before"] == wanted[url]["content"]}
            rests = {f"{os.path.basename(url)}.part" for url in there if wanted[url]["rest"]}
            names = {*map(os.path.basename, urls)}
            assert {*os.listdir(copies.folder)} == names | rests
            assert collections.Counter(store.opened) == {
                url: 1 + len(wanted[url]["failures"]) + len(wanted[url]["garbled"])
                for url in {*urls} - there
            }
            store.failures.clear()
            store.garbled.clear()
            # Later, and in another process, only what was removed meanwhile is copied again.
            for again in (copies, None):
                store.opened.clear()
                if again is None:
                    as_another_process()
                    again = self.copies_of(wanted, folder)
                lost = rng.choice(urls)
                Path(again.folder, os.path.basename(lost)).unlink()
                for url in urls:
                    assert Path(again.localize(url)).read_bytes() == wanted[url]["content"]
                assert store.opened == [lost]

    def copies_of(self, wanted: dict[str, dict[str, Any]], folder: str) -> Any:
        copies = local_copy.copies_in(folder)
        for url, shard in wanted.items():
            copies.add(url, len(shard["content"]), sha256_of(shard["content"]))
        return copies

    @pytest.fixture
    def shard(self, tmp_path: Path) -> Iterator[tuple[Any, str, bytes]]:
        """The copies in a folder, a shard's path and content."""
        content = os.urandom(1000)
        path = tmp_path / "train-00003-of-00012.tfrecord"
        path.write_bytes(content)
        with impatient(local_copy):
            wanted = {str(path): {"content": content}}
            yield self.copies_of(wanted, str(tmp_path / "fast")), str(path), content

    def test_a_damaged_shard_is_told_with_what_was_found(
        self, shard: tuple[Any, str, bytes]
    ) -> None:
        copies, url, content = shard
        Path(url).write_bytes(content[:-1])
        message = (
            f"{url} is damaged: expected 1000 bytes with sha256 {sha256_of(content)}, "
            f"found 999 with {sha256_of(content[:-1])}, in two attempts. Copy or build"
        )
        with pytest.raises(ValueError, match=message):
            copies.localize(url)
        Path(url).unlink()
        with pytest.raises(ValueError, match=r"cannot be read in 3 tries: NotFoundError.*No such"):
            copies.localize(url)
        assert os.listdir(copies.folder) == []

    def test_what_was_copied_is_logged(
        self, shard: tuple[Any, str, bytes], caplog: pytest.LogCaptureFixture
    ) -> None:
        copies, url, content = shard
        caplog.set_level(logging.INFO, logger=local_copy.facts.NAME)
        for copied in (1, 0):
            caplog.clear()
            copies.localize(url)
            deadline = time.monotonic() + 60
            while not caplog.records and time.monotonic() < deadline:
                time.sleep(0.01)
            (record,) = caplog.records
            message = record.getMessage()
            num_bytes = copied * len(content)
            assert f"{copied} shards copied to {copies.folder}, {num_bytes} bytes in" in message
            assert message.endswith(f"MB/s); {1 - copied} were there.")
            as_another_process()
            copies = self.copies_of({url: {"content": content}}, os.path.dirname(copies.folder))

    def test_a_disk_that_is_too_small(
        self, shard: tuple[Any, str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What counts is what will be read, and is still missing."""
        copies, url, _ = shard
        other = f"{url}.gz"
        copies.add(other, 500, "")
        usage = types.SimpleNamespace(free=1499)
        monkeypatch.setattr(local_copy.shutil, "disk_usage", lambda path: usage)
        message = "1,500 bytes are still to be copied there, but only 1,499 are free"
        with pytest.raises(ValueError, match=message):
            copies.check_room([url, url, other])
        copies.check_room([url, url])
        copies.localize(url)
        usage.free = 500
        copies.check_room([url, other])

    def test_a_disk_that_fills_up(
        self, shard: tuple[Any, str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copies, url, _ = shard
        fetch = local_copy.fetch

        class Full:
            name = "/fast/disk/file.part"

            def truncate(self, size: int) -> None:
                del size

            def write(self, chunk: bytes) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(local_copy, "fetch", lambda file, target: fetch(file, Full()))
        message = "file.part cannot be written: OSError:.*No space left.*use a larger"
        with pytest.raises(ValueError, match=message):
            copies.localize(url)
        assert os.listdir(copies.folder) == []

    @pytest.mark.parametrize("where", ["start", "copy"])
    def test_a_failure_that_no_disk_or_store_told(
        self, shard: tuple[Any, str, bytes], monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        copies, url, content = shard
        owner: Any
        owner, name = (threading.Thread, "start") if where == "start" else (local_copy, "fetch")
        real = getattr(owner, name)
        failures = [RuntimeError("can't start new thread")] if where == "start" else [MemoryError()]

        def fails_once(*arguments: Any) -> None:
            if failures:
                raise failures.pop()
            real(*arguments)

        monkeypatch.setattr(owner, name, fails_once)
        with pytest.raises(ValueError, match=rf"{url}.*: (RuntimeError: can't|MemoryError)"):
            copies.localize(url)
        assert Path(copies.localize(url)).read_bytes() == content
        for thread in threading.enumerate():
            if thread.name == "local_copy":
                thread.join(60)
        assert copies.num_threads == 0


class TestReading:
    @pytest.mark.slow
    @pytest.mark.parametrize("compression", ["none", "gzip"])
    def test_order_is_as_without_and_every_shard_is_copied(
        self, reader: types.ModuleType, source: Path, copies: Any, tmp_path: Path, compression: str
    ) -> None:
        options: dict[str, Any] = {"epochs": 2, "seed": 5}
        parts: dict[str, Any] = options | {"shard": (1, 3), "start_step": 3}
        for batch_size, given_options in (
            (32, options | {"shuffle": compression == "none"}),
            (16, parts | {"shuffle": False}),
            (16, parts | {"shuffle": True}),
        ):
            # Where records are dealt, what comes last is the same in every epoch, as with a cache.
            is_dealt = given_options["shuffle"] and compression == "none"
            other = {"cache": "memory"} if is_dealt else {}
            plain = ids(reader.dataset("train", batch_size, **given_options, **other))
            copied = reader.dataset("train", batch_size, local_copy=tmp_path, **given_options)
            assert ids(copied) == plain
            if batch_size == 32:
                assert sorted(plain) == sorted([*range(TOTAL)] * 2)
        (folder,) = tmp_path.iterdir()
        assert folder.name == f"made-{reader.FINGERPRINT}"
        names = sorted(path.name for path in source.glob("train-*"))
        assert sorted(path.name for path in folder.iterdir()) == names
        for name in names:
            assert (folder / name).read_bytes() == (source / name).read_bytes()

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", [None, 1])
    def test_a_worker_copies_its_share_in_however_many_epochs(
        self, reader: types.ModuleType, source: Path, copies: Any, tmp_path: Path, seed: int | None
    ) -> None:
        num_bytes = max(path.stat().st_size for path in source.glob("train-*"))
        for worker in (0, 3):
            options: dict[str, Any] = {"seed": seed, "shard": (worker, 4)}
            dataset = reader.dataset("train", 16, local_copy=tmp_path / str(worker), **options)
            copied = []
            for _ in range(4):
                list(dataset)
                (folder,) = (tmp_path / str(worker)).iterdir()
                copied.append(sum(path.stat().st_size for path in folder.iterdir()))
            assert len({*copied}) == 1, "later epochs read the same shards"
            # 96 records of its own and the last 96, which all workers share: 40 are in a shard.
            assert copied[0] <= (4 + 3) * num_bytes


class TestCopying:
    def test_it_overlaps_reading(
        self, reader: types.ModuleType, copies: Any, slow: Throttled, tmp_path: Path
    ) -> None:
        slow.first_alone = threading.Event()
        dataset = reader.dataset("train", NUM_EACH, shuffle=False, local_copy=tmp_path)
        for i, _ in enumerate(dataset):
            slow.first_alone.set()  # reading begins before others are there …
            deadline = time.monotonic() + 60
            # … and they come before they are asked for.
            while len(slow.opened) < min(i + copies._AHEAD, NUM_SHARDS):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert not slow.waited_in_vain

    @pytest.mark.slow
    @pytest.mark.parametrize("compression", ["gzip"])  # of others parts of all shards come first
    def test_in_the_order_in_which_a_seed_reads_them(
        self, reader: types.ModuleType, copies: Any, slow: Throttled, tmp_path: Path
    ) -> None:
        copies._AT_ONCE = 1
        two_threads = tf.data.Options()  # more processors read further ahead
        two_threads.threading.private_threadpool_size = 2
        for seed in (1, 2):
            slow.opened.clear()
            options = {"local_copy": tmp_path / str(seed), "options": two_threads}
            found = ids(reader.dataset("train", 8, shuffle=2, seed=seed, **options))
            first = list(dict.fromkeys(i // NUM_EACH for i in found))
            opened = [int(name[6:11]) for name in slow.opened]
            # Of neighbours, the one that a stream waits for is copied first.
            assert all(abs(first.index(shard) - i) <= 2 for i, shard in enumerate(opened))
            assert sorted(opened) == sorted(first) != first

    def test_an_error_that_stays(
        self, reader: types.ModuleType, copies: Any, slow: Throttled, tmp_path: Path
    ) -> None:
        name = "train-00003-of-00012.tfrecord"
        slow.failures[name] = [OSError("no route\nto host")] * 3
        dataset = reader.dataset("train", NUM_EACH, shuffle=False, local_copy=tmp_path)
        iterator = iter(dataset)
        assert ids(next(iterator) for _ in range(3)) == [*range(3 * NUM_EACH)]
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=rf"{name} cannot be read in 3 tries: OSError: no route to host. Run again when",
        ) as error:
            next(iterator)
        assert "Traceback" not in str(error.value)
        assert ids(dataset) == [*range(TOTAL)]  # and another try is another try

    @pytest.mark.parametrize("how", ["short", "long"])
    def test_a_length_that_differs_is_found_before_the_first_batch(
        self, reader: types.ModuleType, source: Path, tmp_path: Path, how: str
    ) -> None:
        shutil.copytree(source, tmp_path / "source")
        shard = tmp_path / "source" / "train-00003-of-00012.tfrecord"
        content = shard.read_bytes()
        shard.write_bytes(content[:-1] if how == "short" else content + b"x")
        options = {"root": tmp_path / "source", "local_copy": tmp_path / "fast"}
        with pytest.raises(ValueError, match=rf"{shard} has [0-9,]+ bytes, expected"):
            reader.dataset("train", NUM_EACH, **options)
        assert not [*tmp_path.glob("fast/*/*")]

    def test_two_processes_copy_each_shard_once(self, source: Path, tmp_path: Path) -> None:
        code = CHILD + (
            "made = []\n"
            "fetch = module.fetch\n"
            "module.fetch = lambda file, target: (made.append(file.url), fetch(file, target))\n"
            "import time; write = module._write\n"
            "module._write = lambda *args: (time.sleep(0.05), write(*args))\n"
            "print('ready', flush=True); input()\n"
            "for name in names: copies.announce(name.encode())\n"
            "found = [open(copies.localize(name), 'rb').read() for name in names]\n"
            "assert found == [open(name, 'rb').read() for name in names]\n"
            "print(len(made))\n"
        )
        arguments = [str(tmp_path), str(source)]
        processes = [child(code, *arguments) for _ in range(3)]
        for process in processes:
            process.stdout.readline()
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        numbers = [int(process.communicate()[0]) for process in processes]
        assert sum(numbers) == NUM_SHARDS
        assert sorted(path.suffix for path in tmp_path.glob("made-*/*")) == [".tfrecord"] * 12


class TestRoom:
    def test_a_limit_refuses_a_larger_split_and_changes_nothing_else(
        self, reader: types.ModuleType, source: Path, tmp_path: Path
    ) -> None:
        num_bytes = sum(path.stat().st_size for path in source.glob("train-*"))
        with pytest.raises(ValueError, match=f"'train' has {num_bytes:,} bytes. Allow as many"):
            reader.dataset("train", 32, local_copy=(tmp_path, num_bytes - 1))
        assert not [*tmp_path.glob("made-*")]
        found, all_of_it = (
            ids(reader.dataset("train", 32, seed=1, local_copy=given))
            for given in ((tmp_path, num_bytes), tmp_path)
        )
        assert found == all_of_it

    def test_a_disk_that_is_too_small(
        self,
        reader: types.ModuleType,
        copies: Any,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        usage = types.SimpleNamespace(free=5 * NUM_EACH * 300)
        monkeypatch.setattr(copies.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(ValueError, match=r"bytes are still to be copied there, but only"):
            reader.dataset("train", 32, local_copy=tmp_path)
        # What a worker reads may be less.
        reader.dataset("train", 32, shard=(1, 3), local_copy=tmp_path, shuffle=False)

    def test_a_folder_that_is_none(self, reader: types.ModuleType, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match=r"file' cannot be written .*NotADirectory.*local"):
            reader.dataset("train", 32, local_copy=tmp_path / "file")
        with pytest.raises(ValueError, match="'gs://bucket/folder' must be a folder on a local"):
            reader.dataset("train", 32, local_copy="gs://bucket/folder")


class TestEnds:
    def test_an_iterator_that_waits_can_be_dropped(
        self, reader: types.ModuleType, slow: Throttled, tmp_path: Path
    ) -> None:
        slow.first_alone = threading.Event()
        iterator = iter(reader.dataset("train", NUM_EACH, shuffle=False, local_copy=tmp_path))
        next(iterator)
        time.sleep(0.2)
        begin = time.monotonic()
        del iterator
        assert time.monotonic() - begin < 30  # not the minute that the store takes
        slow.first_alone.set()
        assert not slow.waited_in_vain

    @pytest.mark.slow
    def test_the_program_may_end_while_files_are_copied(self, source: Path, tmp_path: Path) -> None:
        code = CHILD + (
            "import time\n"
            "module._CHUNK_BYTES, write = 100, module._write\n"
            "module._write = lambda *args: (time.sleep(0.6), write(*args))\n"
            "copies.announce(names[0].encode())\n"
            "time.sleep(0.2)\n"
        )
        begin = time.monotonic()
        process = child(code, str(tmp_path / "fast"), str(source))
        process.communicate()
        assert process.returncode == 0
        assert time.monotonic() - begin < 30  # not the minute of the copy
        (folder,) = (tmp_path / "fast").iterdir()
        assert folder.name == "made-0123456789abcdef"
        assert not [*folder.iterdir()]

    def test_a_checkpoint_goes_on_in_another_process(
        self, reader: types.ModuleType, copies: Any, tmp_path: Path
    ) -> None:
        def start() -> Any:
            as_another_process()
            return iter(reader.dataset("train", 8, shuffle=32, seed=1, local_copy=tmp_path))

        iterator = start()
        found = ids(next(iterator) for _ in range(20))
        path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "checkpoint"))
        rest = ids(iterator)
        assert sorted(found + rest) == [*range(TOTAL)]
        again = start()
        tf.train.Checkpoint(iterator=again).read(path)
        assert ids(again) == rest


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty bucket, in a server of its own process."""
    for name in ("s3fs", "moto", "flask", "flask_cors"):
        reason = f"needs {name}: pip install s3fs 'moto[s3]' flask flask-cors"
        if importlib.util.find_spec(name) is None:
            pytest.skip(reason)
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    try:
        deadline = time.monotonic() + 200
        while True:
            assert server.poll() is None
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
                break
            time.sleep(0.1)
        yield "made-bucket"
    finally:
        server.terminate()
        server.wait()


class TestUrls:
    @pytest.mark.slow
    def test_a_root_that_only_fsspec_knows(
        self, reader: types.ModuleType, source: Path, tmp_path: Path
    ) -> None:
        fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")
        memory = fsspec.filesystem("memory")
        memory.put(str(source), "/bucket/of data/snapshot", recursive=True)
        try:
            options: dict[str, Any] = {
                "root": "memory://bucket/of data/snapshot",
                "local_copy": tmp_path / "fast",
            }
            found = ids(reader.dataset("train", 32, epochs=2, **options))
            assert sorted(found) == sorted([*range(TOTAL)] * 2)
            found = ids(reader.dataset("train", 32, shuffle=False, **options))
            assert found == [*range(TOTAL)]
            assert reader.steps("train", 32, **options) == TOTAL // 32
            del options["local_copy"]
            for more in ({}, {"shuffle": False}, {"balance": "uniform"}, {"cache": "memory"}):
                with pytest.raises(
                    ValueError, match=r"cannot read memory://bucket/.* Pass local_copy=FOLDER"
                ):
                    reader.dataset("train", 32, **options, **more)
        finally:
            memory.rm("/bucket", recursive=True)

    @pytest.mark.engine
    @pytest.mark.filterwarnings("ignore")
    def test_a_root_on_s3(
        self, reader: types.ModuleType, source: Path, tmp_path: Path, bucket: str
    ) -> None:
        s3 = importlib.import_module("s3fs").S3FileSystem(skip_instance_cache=True)
        s3.mkdir(bucket)
        s3.put(str(source), f"{bucket}/snapshot", recursive=True)
        options: dict[str, Any] = {"root": f"s3://{bucket}/snapshot", "epochs": 2}
        found = ids(reader.dataset("train", 32, local_copy=tmp_path / "fast", **options))
        assert sorted(found) == sorted([*range(TOTAL)] * 2)
        with pytest.raises(ValueError, match=r"There is no s3://made-bucket/other/manifest.json"):
            reader.dataset("train", 32, root=f"s3://{bucket}/other", local_copy=tmp_path)

    def test_a_protocol_that_nothing_knows(self, copies: Any) -> None:
        with pytest.raises(ValueError, match=r"^nosuch://a/b cannot be read: ValueError: Protocol"):
            copies.read_bytes("nosuch://a/b")

    def test_nothing_there(self, copies: Any, tmp_path: Path) -> None:
        for url in (f"{tmp_path}/none", f"file://{tmp_path}/none", "memory://none/at/all"):
            with pytest.raises(ValueError, match=rf"^There is no {url}\.$"):
                copies.read_bytes(url)

    @pytest.mark.parametrize("missing", ["fsspec", "s3fs"])
    def test_what_to_install(
        self, copies: Any, monkeypatch: pytest.MonkeyPatch, missing: str
    ) -> None:
        monkeypatch.setitem(sys.modules, missing, None)
        if missing == "s3fs":
            registry = pytest.importorskip("fsspec.registry", reason="needs fsspec")
            monkeypatch.delitem(registry._registry, "s3", raising=False)
        with pytest.raises(
            ValueError,
            match=r"TensorFlow does not support s3://.*Error: .*: pip install fsspec s3fs$",
        ):
            copies.read_bytes("s3://bucket/key")
