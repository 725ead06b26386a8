"""Builds that wait, disks and stores that fail on demand, and a look at an output as a reader."""

import builtins
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from snapshard import cli

RECIPE = """
import snapshard as ss

recipe = ss.Recipe(
    name="table",
    source=ss.Csv("table.csv"),
    splits=ss.Splits({splits}),
    shards=ss.Shards(num_shards={num_shards}),
)
"""


def write_table(folder: Path, *, num_rows: int = 40, splits: str = "", num_shards: int = 1) -> Path:
    """A table and its recipe, which needs no TensorFlow; gives the recipe's file."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{n},{n * n},word {n % 3}\n" for n in range(num_rows))
    (folder / "table.csv").write_text("a,b,c\n" + rows)
    recipe = folder / "recipe.py"
    recipe.write_text(RECIPE.format(splits=splits or "train=1.0", num_shards=num_shards))
    return recipe


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """What is told after ``error:``, its lines joined."""
        return " ".join(self.stderr.partition("error:")[2].split())


def run_here(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ended:
    """Runs the command line in this process."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return Ended(ended.value.code, captured.out, captured.err)


# The command line; each put into a named place waits for the test, which then changes the disk.
PAUSED = """
import os, sys, time
from snapshard import cli
from snapshard.transforms import storage

place, reached, go_on = sys.argv[1:4]
for name in ("put_bytes", "put_files"):
    def pausing(first, *rest, put=getattr(storage, name), name=name):
        urls = [first] if name == "put_bytes" else [url for _, url in first]
        if any(place in url for url in urls) and not os.path.exists(reached):
            open(reached, "w").close()
            while not os.path.exists(go_on):
                time.sleep(0.01)
        put(first, *rest)
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


@contextlib.contextmanager
def paused(
    recipe: Path, out: Path, *, at: str, scratch: Path, prefix: tuple[str, ...] = ()
) -> Iterator[Callable[[], Ended]]:
    """A build that waits where it is about to put a file; what is given lets it end.

    Args:
        recipe: What to build.
        out: The output root.
        at: The phase that it is about to begin.
        scratch: A folder that the build may write to.
        prefix: A command that runs the build's.
    """
    reached, go_on = scratch / "reached", scratch / "go on"
    script = [*prefix, sys.executable, "-c", PAUSED, PHASES[at], str(reached), str(go_on)]
    process = subprocess.Popen(
        [*script, "build", str(recipe), "--out", str(out), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def end() -> Ended:
        go_on.touch()
        stdout, stderr = process.communicate(timeout=200)
        return Ended(process.returncode, stdout, stderr)

    try:
        deadline = time.monotonic() + 200
        while not reached.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, f"{at} was never reached"
            time.sleep(0.01)
        yield end
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def assert_told(ended: Ended, *, code: int = 1) -> None:
    """What went wrong is told: what, where, how to mend it; and as no defect."""
    assert ended.code == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout or json.loads(ended.stdout)["error"]["exit_code"] == code
    # What and where: why. How to mend it.
    assert re.search(r"\S+ \S.*: \S.*\. [A-Z].*\.", ended.error), ended.stderr


def look(folder: Path) -> dict[str, str]:
    """What a reader finds in the folder of a name: published fingerprint -> hash of all files.

    Follows ``latest.json`` to a manifest, and every manifest to every file that it lists.
    """
    found = {}
    names = os.listdir(folder) if folder.is_dir() else []
    with contextlib.suppress(FileNotFoundError):
        latest = json.loads((folder / "latest.json").read_bytes())["fingerprint"]
        # What latest.json names is there, whatever a listing of the moment before has shown.
        assert (folder / latest / "manifest.json").is_file(), "latest.json leads nowhere"
        names.append(latest)
    for name in sorted(set(names)):
        try:
            content = (folder / name / "manifest.json").read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        manifest = json.loads(content)
        assert manifest["fingerprint"] == name
        whole = hashlib.sha256(content)
        for file, entry in manifest["files"].items():
            content = (folder / name / file).read_bytes()
            assert len(content) == entry["bytes"], f"{name}/{file} is cut short"
            assert hashlib.sha256(content).hexdigest() == entry["sha256"], f"{name}/{file} differs"
            whole.update(content)
        for split in manifest["splits"].values():
            assert {shard["file"] for shard in split["shards"]} <= set(manifest["files"])
        found[name] = whole.hexdigest()
    return found


class Injector:
    """Counts calls, and lets the one that is wanted fail."""

    def __init__(self, make: Callable[[], Exception] | None = None, *, at: int = -1) -> None:
        """Takes what to raise, and at the call of which number."""
        self._make = make
        self._at = at
        self._lock = threading.Lock()
        self.calls: list[str] = []

    def next(self, what: str) -> Exception | None:
        """Notes a call; what it is to raise, or None."""
        with self._lock:
            self.calls.append(what)
            is_meant = self._make is not None and len(self.calls) == self._at + 1
        return self._make() if is_meant and self._make else None


class _FailingFile:
    """A file whose writes may break off in the middle."""

    def __init__(self, file: Any, name: str, injector: Injector) -> None:
        self._file, self._name, self._injector = file, name, injector

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_FailingFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, content: Any) -> int:
        error = self._injector.next(f"write {self._name}")
        if error is not None:
            self._file.write(memoryview(content)[: len(content) // 2])
            self._file.flush()
            raise error
        return int(self._file.write(content))


_CALLS = ("stat", "lstat", "open", "mkdir", "replace", "listdir", "unlink", "rmdir")


@contextlib.contextmanager
def failing_disk(root: Path, injector: Injector) -> Iterator[None]:
    """Every call of the system on something below a folder goes through the injector."""

    def name_of(path: Any) -> str | None:
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        return os.path.relpath(text, root) if str(text).startswith(f"{root}/") else None

    def wrapped(call: str, function: Any) -> Any:
        def faulty(path: Any, *arguments: Any, **options: Any) -> Any:
            name = name_of(path)
            if name is not None and (error := injector.next(f"{call} {name}")):
                raise error
            return function(path, *arguments, **options)

        return faulty

    def fsync(descriptor: int) -> None:
        name = name_of(os.readlink(f"/proc/self/fd/{descriptor}"))
        if name is not None and (error := injector.next(f"fsync {name}")):
            raise error
        functions["fsync"](descriptor)

    def open_file(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        name = name_of(path)
        if name is not None and (error := injector.next(f"open {name}")):
            raise error
        file = opened(path, mode, *arguments, **options)
        return file if name is None or "r" in mode else _FailingFile(file, name, injector)

    functions = {call: getattr(os, call) for call in (*_CALLS, "fsync")}
    opened = builtins.open
    with pytest.MonkeyPatch.context() as patched:
        for call in _CALLS:
            patched.setattr(os, call, wrapped(call, functions[call]))
        patched.setattr(os, "fsync", fsync)
        patched.setattr(builtins, "open", open_file)
        yield


class _Failing:
    """What both filesystems have in common: calls from outside go through the injector."""

    injector: Injector | None = None
    mode = "before"
    """When the call fails: before it has done anything, half way, or after it has done all."""

    _depth = threading.local()

    @classmethod
    def wrap(cls, *names: str) -> None:
        for name in names:
            setattr(cls, name, cls._wrapped(name, getattr(cls, name)))

    @staticmethod
    def _wrapped(name: str, function: Any) -> Any:
        def faulty(self: Any, path: Any, *arguments: Any, **options: Any) -> Any:
            injector, depth = self.injector, _Failing._depth
            if injector is None or getattr(depth, "inside", False):
                return function(self, path, *arguments, **options)
            error = injector.next(f"{name} {path}")
            if error is not None and self.mode == "before":
                raise error
            depth.inside = True
            try:
                if error is not None and self.mode == "half" and name in ("pipe_file", "put_file"):
                    self.put_half(name, path, *arguments)
                    raise error
                result = function(self, path, *arguments, **options)
            finally:
                depth.inside = False
            if error is not None:
                raise error
            return result

        return faulty


_FS_CALLS = ("pipe_file", "put_file", "cat_file", "info", "ls", "find", "makedirs", "mv", "rm_file")


class FailingStore(_Failing, MemoryFileSystem):
    """An object store in this process: a put shows whole or not at all."""

    protocol = "oss"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.removeprefix("oss://")))


class RemoteDisk(_Failing, LocalFileSystem):
    """A folder over the network: files grow under their names, and may stay half."""

    protocol = "remotedisk"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(str(path).removeprefix("remotedisk://")))

    def put_half(self, name: str, path: str, *arguments: Any) -> None:
        """Writes the first half of what was to be put."""
        content = arguments[0] if name == "pipe_file" else Path(path).read_bytes()
        target = path if name == "pipe_file" else arguments[0]
        Path(target).write_bytes(content[: len(content) // 2])


for kind in (FailingStore, RemoteDisk):
    kind.wrap(*_FS_CALLS)


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """Makes the failing filesystems known to fsspec."""
    for kind in (FailingStore, RemoteDisk):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
    try:
        yield
    finally:
        for kind in (FailingStore, RemoteDisk):
            _registry.pop(kind.protocol, None)
            kind.injector, kind.mode = None, "before"
        FailingStore.store.clear()


class UnavailableError(Exception):
    """What a store raises that is overloaded."""

    def __init__(self) -> None:
        super().__init__("503 Service Unavailable: reduce your request rate")


FAULTS: dict[str, Callable[[], Exception]] = {
    "EIO": lambda: OSError(errno.EIO, os.strerror(errno.EIO)),
    "ENOSPC": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "EDQUOT": lambda: OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    "ESTALE": lambda: OSError(errno.ESTALE, os.strerror(errno.ESTALE)),
    "EACCES": lambda: OSError(errno.EACCES, os.strerror(errno.EACCES)),
    "EROFS": lambda: OSError(errno.EROFS, os.strerror(errno.EROFS)),
    "EINTR": lambda: OSError(errno.EINTR, os.strerror(errno.EINTR)),
}
