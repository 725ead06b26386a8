"""What ``local_copy=`` does: which copies are made, when, of how many bytes, and what is read."""

import contextlib
import hashlib
import importlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
import time
import types
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from snapshard.runners.job_server import free_port
from snapshard.schemas.features import Features, Scalar, Text

from .conftest import part

WriteSnapshot = Callable[..., types.ModuleType]

FEATURES: Features = {"id": Scalar(dtype="int64"), "text": Text()}
NUM_SHARDS, NUM_EACH = 12, 40
TOTAL = NUM_SHARDS * NUM_EACH


def complete(folder: Path) -> None:
    """Adds the shards' sha256 to the manifest, as a build does."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            content = (folder / shard["file"]).read_bytes()
            shard["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def make(write_snapshot: WriteSnapshot, folder: Path, **options: Any) -> types.ModuleType:
    """Twelve shards of alike length, and a split of two."""

    def shards(num: int) -> list[list[dict[str, Any]]]:
        ids = iter(range(num * NUM_EACH))
        return [
            [{"id": next(ids), "text": os.urandom(200)} for _ in range(NUM_EACH)]
            for _ in range(num)
        ]

    splits = {"train": shards(NUM_SHARDS), "test": shards(2), "none": []}
    reader = write_snapshot(folder, FEATURES, splits, label=None, **options)
    complete(folder)
    return reader


@pytest.fixture
def compression() -> str:
    return "none"


@pytest.fixture
def reader(tmp_path: Path, write_snapshot: WriteSnapshot, compression: str) -> types.ModuleType:
    return make(write_snapshot, tmp_path / "source", compression=compression)


@pytest.fixture
def copies(reader: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that copies, less patient; its threads have ended when the test ends."""
    module = part(reader, "local_copy")
    monkeypatch.setattr(module, "_WAIT_S", 0.005)
    monkeypatch.setattr(module, "_BACKOFF_S", 0.01)
    monkeypatch.setitem(sys.modules, "_reader_copies", types.SimpleNamespace())
    yield module
    for one in vars(sys.modules["_reader_copies"]).values():
        with one.changed:
            one.queue.clear()
    for thread in threading.enumerate():
        if thread.name == "local_copy":
            thread.join(10)


def ids(dataset: Any) -> list[int]:
    return [int(i) for batch in dataset for i in batch["id"].numpy()]


def two_threads() -> tf.data.Options:
    """More processors read further ahead."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    return options


def shard_bytes(reader: types.ModuleType) -> int:
    folder = Path(str(reader.__file__)).parent.parent
    return max(path.stat().st_size for path in folder.glob("train-*.tfrecord*"))


class Throttled:
    """Stands in for ``_open``: a source that takes so long for each read, and counts them."""

    def __init__(self, real: Callable[[str], Any], seconds: float) -> None:
        self.real, self.seconds = real, seconds
        self.opened: list[tuple[float, str]] = []
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
        self.opened.append((time.monotonic(), name))
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


class TestReading:
    @pytest.mark.slow
    @pytest.mark.parametrize("shuffle", [True, False])
    @pytest.mark.parametrize("compression", ["none", "gzip"])
    def test_every_record_once_and_every_shard_copied_once(
        self, reader: types.ModuleType, tmp_path: Path, shuffle: bool
    ) -> None:
        source = tmp_path / "source"
        options = {"shuffle": shuffle, "epochs": 2, "local_copy": tmp_path / "fast"}
        assert sorted(ids(reader.dataset("train", 32, **options))) == sorted([*range(TOTAL)] * 2)
        (folder,) = (tmp_path / "fast").iterdir()
        assert folder.name == f"made-{reader.FINGERPRINT}"
        names = sorted(path.name for path in source.glob("train-*"))
        assert sorted(path.name for path in folder.iterdir()) == names
        for name in names:
            assert (folder / name).read_bytes() == (source / name).read_bytes()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "compression",
        ["none", "gzip"],  # six datasets to trace
    )
    def test_order_is_as_without(
        self, reader: types.ModuleType, copies: Any, tmp_path: Path, compression: str
    ) -> None:
        options: dict[str, Any] = {"epochs": 2, "seed": 5}
        parts: dict[str, Any] = options | {"shard": (1, 3), "start_step": 3}
        for batch_size, given in (
            (32, options | {"shuffle": compression == "none"}),
            (16, parts | {"shuffle": False}),
            (16, parts | {"shuffle": True}),
        ):
            # Where records are dealt, what comes last is the same in every epoch, as with a cache.
            is_dealt = given["shuffle"] and compression == "none"
            other = {"cache": "memory"} if is_dealt else {}
            plain = ids(reader.dataset("train", batch_size, **given, **other))
            assert ids(reader.dataset("train", batch_size, local_copy=tmp_path, **given)) == plain

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "seed",
        # Two datasets to trace, each of four epochs.
        [pytest.param(None, id="no seed", marks=pytest.mark.slow), pytest.param(1, id="a seed")],
    )
    def test_a_worker_copies_its_share_in_however_many_epochs(
        self, reader: types.ModuleType, copies: Any, tmp_path: Path, seed: int | None
    ) -> None:
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
            assert copied[0] <= (4 + 3) * shard_bytes(reader)


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
        for seed in (1, 2):
            slow.opened.clear()
            options = {"local_copy": tmp_path / str(seed), "options": two_threads()}
            found = ids(reader.dataset("train", 8, shuffle=2, seed=seed, **options))
            first = list(dict.fromkeys(i // NUM_EACH for i in found))
            opened = [int(name[6:11]) for _, name in slow.opened]
            # Of neighbours, the one that a stream waits for is copied first.
            assert all(abs(first.index(shard) - i) <= 2 for i, shard in enumerate(opened))
            assert sorted(opened) == sorted(first) != first

    def test_reading_goes_on_where_it_failed(
        self, reader: types.ModuleType, copies: Any, slow: Throttled, tmp_path: Path
    ) -> None:
        copies._CHUNK_BYTES = 1_000
        name = "train-00003-of-00012.tfrecord"
        failures = slow.failures[name] = [
            OSError("reset"),
            tf.errors.UnavailableError(0, 0, "busy"),
        ]
        slow.seconds = 0
        assert ids(reader.dataset("train", 32, shuffle=False, local_copy=tmp_path)) == [
            *range(TOTAL)
        ]
        assert not failures
        assert [opened for _, opened in slow.opened].count(name) == 3

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

    @pytest.mark.slow
    @pytest.mark.parametrize("where", ["local", "remote"])
    @pytest.mark.parametrize("how", ["changed", "short", "long", "missing"])
    def test_a_shard_that_is_damaged_at_its_source(
        self, reader: types.ModuleType, copies: Any, tmp_path: Path, how: str, where: str
    ) -> None:
        shard = tmp_path / "source" / "train-00003-of-00012.tfrecord"
        content = shard.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        if how == "missing":
            shard.unlink()
        changed = content[:-1] + bytes([content[-1] ^ 1])
        if how != "missing":
            found = {"changed": changed, "short": content[:-1], "long": content + b"x"}[how]
            shard.write_bytes(found)
        options: dict[str, Any] = {"local_copy": tmp_path / "fast"}
        if where == "remote":
            options["root"] = f"file://{tmp_path}/source"
        message = rf"{shard} cannot be read in 3 tries: NotFoundError.*No such file"
        if how != "missing":
            other = hashlib.sha256(found).hexdigest()
            message = (
                rf"{shard} is damaged: expected {len(content)} bytes with sha256 {sha256}, "
                rf"found {len(found)} with {other}, in two attempts"
            )
        error: type[Exception] = tf.errors.InvalidArgumentError
        if where == "local" and how in ("short", "long"):  # found before the first batch
            error, message = ValueError, rf"{shard} has [0-9,]+ bytes, expected"
        with pytest.raises(error, match=message):
            ids(reader.dataset("train", NUM_EACH, **options))
        assert not (tmp_path / "fast" / "made-0123456789abcdef" / shard.name).exists()

    def test_one_retry_where_the_sha256_differs(
        self,
        reader: types.ModuleType,
        copies: Any,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        found, stream = [], copies.copy_stream

        def garbled(file: Any, target: Any) -> tuple[int, str]:
            found.append(file.url)
            return (1, "") if found.count(file.url) == 1 else stream(file, target)

        monkeypatch.setattr(copies, "copy_stream", garbled)
        assert len(ids(reader.dataset("train", 32, local_copy=tmp_path))) == TOTAL
        assert len(found) == 2 * NUM_SHARDS

    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["changed", "short", "gone"])
    def test_a_copy_that_is_damaged_is_made_again(
        self, reader: types.ModuleType, copies: Any, slow: Throttled, tmp_path: Path, how: str
    ) -> None:
        options: dict[str, Any] = {"shuffle": False, "local_copy": tmp_path}
        ids(reader.dataset("train", 32, **options))
        copy = tmp_path / f"made-{reader.FINGERPRINT}" / "train-00003-of-00012.tfrecord"
        content = copy.read_bytes()
        if how != "gone":
            copy.write_bytes(content[:-9] if how == "short" else b"x" + content[1:])
        else:
            copy.unlink()
        sys.modules["_reader_copies"].__dict__.clear()  # as in another process
        slow.opened.clear()
        assert ids(reader.dataset("train", 32, **options)) == [*range(TOTAL)]
        assert [name for _, name in slow.opened] == [copy.name]
        assert copy.read_bytes() == content

    @pytest.mark.slow
    def test_a_copy_that_vanishes_between_two_epochs(
        self, reader: types.ModuleType, copies: Any, tmp_path: Path
    ) -> None:
        dataset = reader.dataset("train", 32, local_copy=tmp_path)
        for _ in range(2):
            assert len(ids(dataset)) == TOTAL
            for copy in tmp_path.glob("made-*/train-0000[3-7]*"):
                copy.unlink()

    def test_two_processes_copy_each_shard_once(
        self, reader: types.ModuleType, tmp_path: Path
    ) -> None:
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
        arguments = [str(tmp_path), str(tmp_path / "source")]
        processes = [child(code, *arguments) for _ in range(3)]
        for process in processes:
            process.stdout.readline()
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        numbers = [int(process.communicate()[0]) for process in processes]
        assert sum(numbers) == NUM_SHARDS
        assert sorted(path.suffix for path in tmp_path.glob("made-*/*")) == [".tfrecord"] * 12

    def test_a_process_that_died_while_it_copied_is_in_no_ones_way(
        self, reader: types.ModuleType, copies: Any, tmp_path: Path
    ) -> None:
        folder = tmp_path / "made-0123456789abcdef"
        folder.mkdir()
        rest = folder / "train-00003-of-00012.tfrecord.part"
        rest.write_bytes(b"half of it")
        assert len(ids(reader.dataset("train", 32, local_copy=tmp_path))) == TOTAL
        assert not rest.exists()

    @pytest.mark.slow
    def test_what_was_copied_is_logged(
        self,
        reader: types.ModuleType,
        copies: Any,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.INFO, logger="made")
        for _ in range(2):
            ids(reader.dataset("train", 32, local_copy=tmp_path))
            sys.modules["_reader_copies"].__dict__.clear()
        for name, num in (("copied", NUM_SHARDS), ("there", NUM_SHARDS)):
            place = {"copied": 0, "there": -1}[name]
            told = [r.args[place] for r in caplog.records if "local_copy" in r.msg and r.args]
            assert sum(told) == num
        assert "MB/s" in caplog.text


class TestRoom:
    def test_a_limit_refuses_a_larger_split_and_changes_nothing_else(
        self, reader: types.ModuleType, tmp_path: Path
    ) -> None:
        num_bytes = sum(path.stat().st_size for path in (tmp_path / "source").glob("train-*"))
        with pytest.raises(ValueError, match=f"'train' has {num_bytes:,} bytes. Allow as many"):
            reader.dataset("train", 32, local_copy=(tmp_path, num_bytes - 1))
        assert not [*tmp_path.glob("made-*")]
        found, all_of_it = (
            ids(reader.dataset("train", 32, seed=1, local_copy=given))
            for given in ((tmp_path, num_bytes), tmp_path)
        )
        assert found == all_of_it

    @pytest.mark.slow
    def test_a_disk_that_is_too_small(
        self,
        reader: types.ModuleType,
        copies: Any,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        each, source = shard_bytes(reader), tmp_path / "source"
        sizes = [path.stat().st_size for path in source.glob("train-*")]
        free = 5 * each
        usage = types.SimpleNamespace(free=free)
        monkeypatch.setattr(copies.shutil, "disk_usage", lambda path: usage)
        message = rf"{sum(sizes):,} bytes are still to be copied there, but only {free:,} are free"
        with pytest.raises(ValueError, match=message):
            reader.dataset("train", 32, local_copy=tmp_path)
        # What a worker reads, and what is still missing, may be less.
        for index in range(3):
            options = {"shard": (index, 3), "local_copy": tmp_path, "shuffle": False}
            assert len(ids(reader.dataset("train", 32, **options))) == TOTAL // 3
        usage.free = 0
        assert len(ids(reader.dataset("train", 32, local_copy=tmp_path))) == TOTAL

    def test_a_disk_that_fills_up(
        self,
        reader: types.ModuleType,
        copies: Any,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        fetch = copies.fetch

        class Full:
            name = "/fast/disk/file.part"

            def truncate(self, size: int) -> None:
                del size

            def write(self, chunk: bytes) -> None:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(copies, "fetch", lambda file, target: fetch(file, Full()))
        dataset = reader.dataset("train", 32, local_copy=tmp_path)
        message = "file.part cannot be written: OSError:.*No space left.*use a larger"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            ids(dataset)
        assert not [*tmp_path.glob("made-*/train-*.tfrecord")]

    def test_a_folder_that_is_none(self, reader: types.ModuleType, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match=r"file' cannot be written .*NotADirectory.*local"):
            reader.dataset("train", 32, local_copy=tmp_path / "file")
        with pytest.raises(ValueError, match="'gs://bucket/folder' must be a folder on a local"):
            reader.dataset("train", 32, local_copy="gs://bucket/folder")


class TestEnds:
    @pytest.mark.slow
    def test_an_iterator_that_waits_can_be_dropped(
        self, reader: types.ModuleType, copies: Any, slow: Throttled, tmp_path: Path
    ) -> None:
        iterator = iter(reader.dataset("train", NUM_EACH, shuffle=False, local_copy=tmp_path))
        next(iterator)
        slow.seconds = 4
        time.sleep(0.2)
        begin = time.monotonic()
        del iterator
        assert time.monotonic() - begin < 3

    @pytest.mark.slow
    def test_the_program_may_end_while_files_are_copied(
        self, reader: types.ModuleType, tmp_path: Path
    ) -> None:
        code = CHILD + (
            "import time\n"
            "module._CHUNK_BYTES, write = 100, module._write\n"
            "module._write = lambda *args: (time.sleep(0.6), write(*args))\n"
            "copies.announce(names[0].encode())\n"
            "time.sleep(0.2)\n"
        )
        begin = time.monotonic()
        process = child(code, str(tmp_path / "fast"), str(tmp_path / "source"))
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
            sys.modules["_reader_copies"].__dict__.clear()
            return iter(reader.dataset("train", 8, shuffle=32, seed=1, local_copy=tmp_path))

        iterator = start()
        found = ids(next(iterator) for _ in range(20))
        path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "checkpoint"))
        rest = ids(iterator)
        assert sorted(found + rest) == [*range(TOTAL)]
        again = start()
        tf.train.Checkpoint(iterator=again).read(path)
        assert ids(again) == rest


class TestLocalize:
    def test_a_path_once_it_is_there(
        self, reader: types.ModuleType, copies: Any, slow: Throttled, tmp_path: Path
    ) -> None:
        shards = sorted((tmp_path / "source").glob("test-*"))
        options = part(reader, "options").Options("test", 8, local_copy=tmp_path / "fast")
        localize = part(reader, "plan").plan_reading(options).localize
        for shard in shards:
            local = localize(str(shard))
            assert local.startswith(str(tmp_path / "fast"))
            assert Path(local).read_bytes() == shard.read_bytes()
        name = shards[0].name
        slow.failures[name] = [OSError("gone")] * 3
        Path(local).parent.joinpath(name).unlink()
        with pytest.raises(ValueError, match=f"{name} cannot be read in 3 tries: OSError: gone"):
            localize(str(shards[0]))

    @pytest.mark.parametrize("where", ["start", "copy"])
    def test_a_failure_that_no_disk_or_store_told(
        self,
        reader: types.ModuleType,
        copies: Any,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        where: str,
    ) -> None:
        shard = tmp_path / "source" / "test-00000-of-00002.tfrecord"
        content = shard.read_bytes()
        made = copies.copies_in(str(tmp_path / "fast"))
        made.add(str(shard), len(content), hashlib.sha256(content).hexdigest())
        owner, name = (threading.Thread, "start") if where == "start" else (copies, "fetch")
        real = getattr(owner, name)
        failures = [RuntimeError("can't start new thread")] if where == "start" else [MemoryError()]

        def fails_once(*arguments: Any) -> None:
            if failures:
                raise failures.pop()
            real(*arguments)

        monkeypatch.setattr(owner, name, fails_once)
        with pytest.raises(ValueError, match=rf"{shard}.*: (RuntimeError: can't|MemoryError)"):
            made.localize(str(shard))
        assert Path(made.localize(str(shard))).read_bytes() == content
        for thread in threading.enumerate():
            if thread.name == "local_copy":
                thread.join(60)
        assert made.num_threads == 0


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
        self, reader: types.ModuleType, copies: Any, tmp_path: Path
    ) -> None:
        fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")
        memory = fsspec.filesystem("memory")
        memory.put(str(tmp_path / "source"), "/bucket/of data/snapshot", recursive=True)
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
        finally:
            memory.rm("/bucket", recursive=True)

    @pytest.mark.engine
    @pytest.mark.filterwarnings("ignore")
    def test_a_root_on_s3(
        self, reader: types.ModuleType, copies: Any, tmp_path: Path, bucket: str
    ) -> None:
        s3 = importlib.import_module("s3fs").S3FileSystem(skip_instance_cache=True)
        s3.mkdir(bucket)
        s3.put(str(tmp_path / "source"), f"{bucket}/snapshot", recursive=True)
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
