"""What ``local_copy=`` does: which copies are made, when, of how many bytes, and what is read."""

import contextlib
import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from snapshard.pipelines.emit_tools import emit_tools
from snapshard.schemas.features import Features, Scalar, Text

WriteSnapshot = Callable[..., types.ModuleType]

FEATURES: Features = {"id": Scalar(dtype="int64"), "text": Text()}
NUM_SHARDS, NUM_EACH = 12, 40
TOTAL = NUM_SHARDS * NUM_EACH


def complete(folder: Path) -> None:
    """Adds what stands beside the reader, and the shards' sha256 to the manifest, as a build."""
    for name, text in emit_tools().items():
        (folder / name).write_text(text, encoding="utf-8")
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
def reader(tmp_path: Path, write_snapshot: WriteSnapshot) -> types.ModuleType:
    return make(write_snapshot, tmp_path / "source")


@pytest.fixture
def copies(reader: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that copies, less patient; its threads have ended when the test ends."""
    real, module = reader._beside, reader._beside("reader_copies")
    monkeypatch.setattr(
        reader, "_beside", lambda name: module if name == "reader_copies" else real(name)
    )
    monkeypatch.setattr(module, "_AWAITED_S", 0.1)
    monkeypatch.setattr(module, "_WAIT_S", 0.005)
    monkeypatch.setattr(module, "_BACKOFF_S", 0.01)
    monkeypatch.setitem(sys.modules, "_reader_copies", types.SimpleNamespace())
    yield module
    for one in vars(sys.modules["_reader_copies"]).values():
        one.queue.clear()
    for thread in threading.enumerate():
        if thread.name == "local_copy":
            thread.join(10)


def ids(dataset: Any) -> list[int]:
    return [int(i) for batch in dataset for i in batch["id"]]


def shard_bytes(reader: types.ModuleType) -> int:
    folder = Path(str(reader.__file__)).parent
    return max(path.stat().st_size for path in folder.glob("train-*.tfrecord*"))


class Throttled:
    """Stands in for ``_open``: a source that takes so long for each read, and counts them."""

    def __init__(self, real: Callable[[str], Any], seconds: float) -> None:
        self.real, self.seconds = real, seconds
        self.opened: list[tuple[float, str]] = []
        self.failures: dict[str, list[BaseException]] = {}

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
                    return bytes(source.read(num))

            yield Slow()


@pytest.fixture
def slow(copies: Any, monkeypatch: pytest.MonkeyPatch) -> Throttled:
    throttled = Throttled(copies._open, 0.02)
    monkeypatch.setattr(copies, "_open", throttled)
    return throttled


# Copies as another process makes them: of a reader, but without the seconds that TensorFlow takes.
CHILD = """
import importlib.util, json, os, sys, types
sys.modules["tensorflow"] = types.ModuleType("tensorflow")
folder, limit, source = sys.argv[1:]
spec = importlib.util.spec_from_file_location("reader_copies", f"{source}/reader_copies.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module._open = lambda url: open(url, "rb")
reader = types.SimpleNamespace(NAME="made", FINGERPRINT="0123456789abcdef")
copies = module._copies(folder, reader, int(limit) or None)
names = []
for shard in json.load(open(f"{source}/manifest.json"))["splits"]["train"]["shards"]:
    names.append(f"{source}/{shard['file']}")
    copies.add(names[-1], shard["num_bytes"], shard["sha256"])
"""


def child(code: str, *arguments: str) -> Any:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], **pipes)


class TestWithoutALimit:
    @pytest.mark.parametrize("shuffle", [True, False])
    @pytest.mark.parametrize("compression", ["none", "gzip"])
    def test_every_record_once_and_every_shard_copied_once(
        self, tmp_path: Path, write_snapshot: WriteSnapshot, shuffle: bool, compression: str
    ) -> None:
        reader = make(write_snapshot, tmp_path / "source", compression=compression)
        source = tmp_path / "source"
        options = {"shuffle": shuffle, "epochs": 2, "local_copy": tmp_path / "fast"}
        assert sorted(ids(reader.dataset("train", 32, **options))) == sorted([*range(TOTAL)] * 2)
        (folder,) = (tmp_path / "fast").iterdir()
        assert folder.name == f"made-{reader.FINGERPRINT}"
        names = sorted(path.name for path in source.glob("train-*"))
        assert sorted(path.name for path in folder.iterdir()) == names
        for name in names:
            assert (folder / name).read_bytes() == (source / name).read_bytes()

    @pytest.mark.parametrize("shuffle", [True, False])
    def test_order_is_as_without(
        self, reader: types.ModuleType, copies: Any, tmp_path: Path, shuffle: bool
    ) -> None:
        options: dict[str, Any] = {"shuffle": shuffle, "epochs": 2, "seed": 5}
        plain = ids(reader.dataset("train", 32, **options))
        assert ids(reader.dataset("train", 32, local_copy=tmp_path, **options)) == plain
        part = {"shard": (1, 3), "start_step": 3, **options}
        plain = ids(reader.dataset("train", 16, **part))
        assert ids(reader.dataset("train", 16, local_copy=tmp_path, **part)) == plain


class TestWindow:
    @pytest.mark.parametrize("shuffle", [True, False])
    @pytest.mark.parametrize("num", [2, 3, 5])
    def test_every_record_once_an_epoch_and_never_more_than_the_limit(
        self, reader: types.ModuleType, copies: Any, tmp_path: Path, shuffle: bool, num: int
    ) -> None:
        limit = num * shard_bytes(reader)
        most, over = 0, threading.Event()

        def watch() -> None:
            nonlocal most
            while not over.is_set():
                sizes = []
                for path in tmp_path.glob("fast/*/*.tfrecord*"):
                    with contextlib.suppress(FileNotFoundError):
                        sizes.append(path.stat().st_size)
                most = max(most, sum(sizes))
                time.sleep(0.001)

        watcher = threading.Thread(target=watch)
        watcher.start()
        dataset = reader.dataset(
            "train", 32, shuffle=shuffle, epochs=3, local_copy=(tmp_path / "fast", limit)
        )
        found = ids(dataset)
        over.set()
        watcher.join()
        assert sorted(found) == sorted([*range(TOTAL)] * 3)
        if not shuffle:
            assert found == [*range(TOTAL)] * 3
        assert 0 < most <= limit

    def test_a_limit_that_holds_all_removes_nothing(
        self, reader: types.ModuleType, copies: Any, slow: Throttled, tmp_path: Path
    ) -> None:
        limit = NUM_SHARDS * shard_bytes(reader)
        options: dict[str, Any] = {"seed": 3, "epochs": 2}
        plain = ids(reader.dataset("train", 32, **options))
        assert ids(reader.dataset("train", 32, local_copy=(tmp_path, limit), **options)) == plain
        assert len(slow.opened) == NUM_SHARDS

    def test_iterators_that_are_abandoned_leave_the_room_to_others(
        self, reader: types.ModuleType, copies: Any, tmp_path: Path
    ) -> None:
        window = (tmp_path, 3 * shard_bytes(reader))
        for shuffle in (True, False, True):
            dataset = reader.dataset("train", 8, shuffle=shuffle, epochs=None, local_copy=window)
            for _ in range(3):
                iterator = iter(dataset)
                for _ in range(2):
                    next(iterator)
                del iterator
        kept = [iter(reader.dataset("train", 8, local_copy=window)) for _ in range(3)]
        for iterator in kept:
            next(iterator)  # and goes no further
        assert sorted(ids(reader.dataset("train", 32, local_copy=window))) == [*range(TOTAL)]
        (folder,) = tmp_path.glob("made-*")  # one, for all of this process
        rest = [int(i) for iterator in kept for batch in iterator for i in batch["id"]]
        assert len(rest) == 3 * (TOTAL - 8)

    def test_two_splits_in_turn_share_one_window(
        self, reader: types.ModuleType, copies: Any, tmp_path: Path
    ) -> None:
        window = (tmp_path, 3 * shard_bytes(reader))
        train = reader.dataset("train", 16, epochs=2, local_copy=window)
        test = reader.dataset("test", 16, local_copy=window)
        found = []
        for step, batch in enumerate(train):
            found += batch["id"].numpy().tolist()
            if step % 10 == 0:
                assert ids(test) == [*range(2 * NUM_EACH)]
        assert sorted(found) == sorted([*range(TOTAL)] * 2)

    def test_what_comes_next_is_copied_before_it_is_needed(
        self, reader: types.ModuleType, copies: Any, slow: Throttled, tmp_path: Path
    ) -> None:
        window = (tmp_path, 4 * shard_bytes(reader))
        iterator = iter(reader.dataset("train", NUM_EACH, shuffle=False, local_copy=window))
        next(iterator)
        time.sleep(1)
        assert 2 <= len(slow.opened) <= 8
        names = [name for _, name in slow.opened]
        assert names == sorted(names)

    def test_a_window_too_small_says_the_least_that_works(
        self, reader: types.ModuleType, tmp_path: Path
    ) -> None:
        least = 2 * shard_bytes(reader)
        with pytest.raises(ValueError, match=rf"must hold two shards.*'train'.*give {least} or mo"):
            reader.dataset("train", 32, local_copy=(tmp_path, least - 1))
        reader.dataset("train", 32, local_copy=(tmp_path, least))

    def test_leftovers_of_dead_processes_are_removed_and_no_others(
        self, reader: types.ModuleType, copies: Any, tmp_path: Path
    ) -> None:
        limit = 3 * shard_bytes(reader)
        arguments = [str(tmp_path), str(limit), str(Path(str(reader.__file__)).parent)]

        def start(how: str) -> Any:
            code = CHILD + f"copies.localize(f'{{source}}/train-00000-of-00012.tfrecord')\n{how}"
            process = child(code, *arguments)
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            return process

        with start("print('there', flush=True); input(); os._exit(0)") as dies:
            (left,) = tmp_path.glob("made-*")
            dies.communicate("\n")
        assert [*left.glob("*.tfrecord")]
        with start("print('there', flush=True); input()") as lives:
            assert not left.exists()
            (here,) = tmp_path.glob("made-*")
            reader.dataset("train", 8, local_copy=(tmp_path, limit))
            assert len([*tmp_path.glob("made-*")]) == 2
            assert [*here.glob("*.tfrecord")]
            lives.communicate("\n")
        assert lives.returncode == 0
        assert not here.exists()
