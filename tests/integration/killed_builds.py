"""Builds that are killed where a test wants it: forks of one process that has the libraries.

``python killed_builds.py LIBRARIES`` reads jobs, a JSON line each, and answers each with a line.
A build here notes each of its durable operations before and after, and kills its process group at
the one that the job names.
"""

import contextlib
import dataclasses
import functools
import gc
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil

BLOCK_BYTES = 40_000
"""Blocks are this small, so that few files are several."""
_STOP = "KILLED_BUILDS_STOP"
_HEX_FOLDER = re.compile(r"^[0-9a-f]{16}/")

STEPS = ("inventory", "prepare", "analyze", "plan", "write", "publish", "pointer")
_STEP_OF = (
    (r"(memo|findings)\.json|extracted/", "inventory"),
    (r"(staged|blocks|runs|summaries)/", "prepare"),
    (r"(graphs|scratch)/", "analyze"),
    (r"plans/", "plan"),
    (r"shards/|SNAPSHOT/(index/|serving/|.*\.tfrecord)", "write"),
    (r"SNAPSHOT/", "publish"),
    (r"(latest\.json|reader\.py)$", "pointer"),
)


def step_of(name: str) -> str:
    """The step of the build that puts a file."""
    return next(step for pattern, step in _STEP_OF if re.match(pattern, name))


@dataclasses.dataclass(frozen=True)
class Stop:
    """Where a build gets a signal."""

    name: str
    """Of the file that is put, as :func:`transition_name` gives it."""
    when: str
    """Whether "before" or "after" it is put."""
    signal: int = signal.SIGKILL
    whole_group: bool = True
    """False kills the one process that puts it."""
    delay: float = 0.0
    """So many seconds later, whatever it is at by then; it goes on meanwhile."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """How a build ended."""

    code: int
    """Negative for a signal."""
    seconds: float
    seconds_after: float
    """From the last transition that was seen to its end."""
    stdout: str
    stderr: str
    begun: tuple[str, ...]
    """Names of what was put, in order …"""
    done: tuple[str, ...]
    """… and of what lay there durably."""
    last: str
    """Of the last transition that was seen to begin or end; empty if there was none."""

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def step(self) -> str:
        """The step that it was killed in, by the last transition seen."""
        return step_of(self.last) if self.last else STEPS[0]


class Builds:
    """Runs builds one after the other, each in a fork of a process that has the libraries."""

    def __init__(self, folder: Path, *libraries: str) -> None:
        """Starts that process.

        Args:
            folder: For what builds write to their standard output and error, and for notes.
            libraries: Modules to load beside those of snapshard.
        """
        self._folder = folder
        self._number = 0
        # TensorFlow says much when it is loaded.
        with open(folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *libraries],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def build(
        self,
        recipe: Path,
        out: Path | str,
        *,
        workers: int = 1,
        stop: Stop | None = None,
        seconds: float | None = None,
        one_by_one: bool = False,
    ) -> Ended:
        """Builds a recipe, until it ends, is stopped, or for so many seconds.

        Args:
            recipe: Its file.
            out: The output root, or its URL.
            workers: Worker processes.
            stop: Where to kill it.
            seconds: When to kill it.
            one_by_one: Has a worker make one run or shard at a time, so that all is put in the
                same order each time.
        """
        arguments = ["build", str(recipe), "--out", str(out), "--workers", str(workers), "--json"]
        return self._run(arguments, out, stop=stop, seconds=seconds, one_by_one=one_by_one)

    def collect_garbage(self, out: Path, *, seconds: float | None = None) -> Ended:
        """Collects the garbage of an output root, until it ends or for so many seconds."""
        return self._run(["gc", str(out)], out, seconds=seconds)

    def _run(
        self,
        arguments: Sequence[str],
        out: Path | str,
        *,
        stop: Stop | None = None,
        seconds: float | None = None,
        one_by_one: bool = False,
    ) -> Ended:
        self._number += 1
        notes = self._folder / f"notes-{self._number}"
        outputs = [self._folder / f"output-{self._number}.{name}" for name in ("out", "err")]
        for path in (notes, *outputs):
            path.touch()
        job = {
            "arguments": arguments,
            "out": str(out),
            "stop": None if stop is None else dataclasses.asdict(stop),
            "seconds": seconds,
            "one_by_one": one_by_one,
            "notes": str(notes),
            "outputs": [str(path) for path in outputs],
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, (self._folder / "log").read_text()
        answer = json.loads(line)
        noted = [line.split(" ", 1) for line in notes.read_text().splitlines()]
        return Ended(
            code=answer["code"],
            seconds=answer["seconds"],
            seconds_after=answer["ended"] - notes.stat().st_mtime,
            stdout=outputs[0].read_text(),
            stderr=outputs[1].read_text(),
            begun=tuple(name for what, name in noted if what == "put"),
            done=tuple(name for what, name in noted if what == "did"),
            last=noted[-1][1] if noted else "",
        )

    def kill(self) -> None:
        """Kills the build that runs, from another thread."""
        for child in psutil.Process(self._process.pid).children():
            os.killpg(child.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        if self._process.stdout is not None:
            self._process.stdout.close()


def transition_name(url: str, out: str) -> str:
    """The name of a file that is put, the same in every build of the same."""
    path = os.path.relpath(url, out).partition(os.sep)[2]
    if path.startswith(".work/scratch/"):
        return f"scratch/{os.path.basename(path)}"
    return _HEX_FOLDER.sub("SNAPSHOT/", path.removeprefix(".work/"))


@contextlib.contextmanager
def around_puts(around: Callable[[str], AbstractContextManager[object]]) -> Iterator[None]:
    """Puts a context around each durable operation of this process, made of its URL.

    All of a build go through three functions of ``storage``. Files that are put together are put
    one by one, in the same order.
    """
    from snapshard.transforms import storage

    def wrapped(operate: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(operate)
        def operating(url: str, *rest: Any) -> None:
            with around(url):
                operate(url, *rest)

        return operating

    def one_by_one(files: Sequence[tuple[str, str]]) -> None:
        for local, url in files:
            with around(url):
                originals["put_files"]([(local, url)])

    names = ("put_bytes", "put_files", "remove_tree")
    originals = {name: getattr(storage, name) for name in names}
    for name in names:
        replaced = one_by_one if name == "put_files" else wrapped(originals[name])
        setattr(storage, name, replaced)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(storage, name, original)


@contextlib.contextmanager
def stopping(out: str, notes: str, stop: dict[str, Any] | None, *, group: int) -> Iterator[None]:
    """Notes what this process puts, and sends the signal where it is to stop."""
    descriptor = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def reach(name: str, when: str) -> None:
        if stop is None or (stop["name"], stop["when"]) != (name, when):
            return
        if stop["delay"]:
            timer = threading.Timer(stop["delay"], os.killpg, (group, stop["signal"]))
            timer.daemon = True
            timer.start()
        elif not stop["whole_group"]:
            os.kill(os.getpid(), stop["signal"])
        else:
            os.killpg(group, stop["signal"])
            if stop["signal"] == signal.SIGKILL:
                # A worker process is of another group: it lives until it sees that its driver is
                # gone.
                time.sleep(60)

    @contextlib.contextmanager
    def noted(url: str) -> Iterator[None]:
        name = transition_name(url, out)
        os.write(descriptor, f"put {name}\n".encode())
        reach(name, "before")
        yield
        os.write(descriptor, f"did {name}\n".encode())
        reach(name, "after")

    with around_puts(noted):
        yield


def _command(job: dict[str, Any]) -> None:
    """Runs the command line, in a fork: a process group of its own; never returns."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor, path in zip((1, 2), job["outputs"], strict=True):
        os.dup2(os.open(path, os.O_WRONLY), descriptor)
    from snapshard import cli
    from snapshard.pipelines.inventory.step import Sizes, take_inventory
    from snapshard.pipelines.survey import survey
    from snapshard.runners import direct, worker_pool

    if job["one_by_one"]:
        direct.DirectRunner.threads_per_worker = lambda runner, size: 1

    sizes = Sizes(block_bytes=BLOCK_BYTES)
    survey.take_inventory = functools.partial(take_inventory, sizes=sizes)
    settings = {"out": job["out"], "notes": job["notes"], "stop": job["stop"], "group": os.getpid()}
    os.environ[_STOP] = json.dumps(settings)
    start = worker_pool.subprocess.Popen

    def start_worker(command: Sequence[str], **options: Any) -> Any:
        if command[-1].endswith("worker_main"):
            command = [sys.executable, "-P", __file__, "--worker"]
        return start(command, **options)

    worker_pool.subprocess = _Replaced(worker_pool.subprocess, Popen=start_worker)
    code = 1
    try:
        with stopping(**settings):
            cli.main(job["arguments"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Replaced:
    """A module with some names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _run(job: dict[str, Any]) -> dict[str, Any]:
    """Runs a command in a fork, and waits for its end."""
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        try:
            _command(job)
        finally:
            os._exit(70)
    with contextlib.suppress(PermissionError, ProcessLookupError):
        # Here too: it may be killed before it gets as far.
        os.setpgid(child, child)
    if job["seconds"] is not None:
        while time.perf_counter() - started < job["seconds"]:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            time.sleep(0.0005)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "seconds": time.perf_counter() - started, "ended": time.time()}


def _jobs() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    """Serves jobs; or works as a worker process of one."""
    if sys.argv[1:] == ["--worker"]:
        from snapshard.runners import worker_main

        with stopping(**json.loads(os.environ[_STOP])):
            worker_main.main()
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for library in (
        "snapshard.pipelines.build",
        "snapshard.pipelines.prepare.job",
        "snapshard.pipelines.write.job",
        "snapshard.runners.direct",
        "apache_beam.runners.portability.fn_api_runner",
        # What is loaded late, else each fork loads it anew.
        "apache_beam.typehints.opcodes",
        "rich.progress",
        "snapshard.terminal",
        "tensorflow_metadata.proto.v0.schema_pb2",
        *sys.argv[1:],
    ):
        importlib.import_module(library)
    gc.freeze()  # else the garbage collector of each fork copies all of this process's pages
    for job in _jobs():
        print(json.dumps(_run(job)), file=answers, flush=True)


if __name__ == "__main__":
    main()
