"""Builds on the command line whose steps hang: in every place, in every way; and what they leave.

A user's function hangs in Python, in C with Python's lock, in a read that blocks for ever, or stops
its process.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snapshard.schemas.progress import BUILD_FOLDER
from snapshard.transforms.reaper import processes_of

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")

_PATIENCE_S = 120.0

RECIPE = """
import os
import re
import signal
import threading
import time

import snapshard as ss


def hang(place):
    if os.environ.get("PLACE") != place:
        return
    os.makedirs(os.environ["BEGUN"], exist_ok=True)
    cause = os.environ["CAUSE"]
    if cause == "python":
        while True:
            pass
    if cause == "c":
        re.match(r"(a+)+$", "a" * 64 + "b")
    if cause == "read":
        os.read(os.pipe()[0], 1)
    if cause == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)  # another thread may take the signal, and this one go on for a moment


def read(file):
    infers = threading.current_thread() is threading.main_thread()
    if file.path == "b.txt":
        hang("infer" if infers else "prepare")
    yield {"x": float(file.read())}


def analysed(inputs):
    hang("analyze")
    return {"x": inputs["x"]}


if os.environ.get("PLACE") == "write":
    from snapshard.transforms.examples import shards

    shards.encode_examples = lambda columns: hang("write")

recipe = ss.Recipe(
    name="slow",
    source=ss.Files("files", read),
    preprocessing_fn=analysed if os.environ.get("PLACE") == "analyze" else None,
    splits=ss.Splits(train=1.0),
    shards=ss.Shards(num_shards=1),
)
"""
NAMED = {
    "infer": "inferring features from b.txt",
    "prepare": "preparing 3 files from a.txt to c.txt (last file read: b.txt)",
    "analyze": "the analysis (preprocessing_fn)",
    "write": "writing shard train-00000-of-00001",
}


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


@dataclasses.dataclass(frozen=True)
class Slow:
    """A recipe that hangs where it is told to."""

    folder: Path

    @contextlib.contextmanager
    def building(
        self, *options: str, place: str = "", cause: str = ""
    ) -> Iterator["subprocess.Popen[str]"]:
        """A build; in the end nothing that it started may be there, nor a temporary file."""
        temporary, mark = self.folder / "tmp", uuid.uuid4().hex
        environment = {**os.environ, "BEGUN": str(self.begun), "TMPDIR": str(temporary)}
        environment |= {"PLACE": place, "CAUSE": cause, "TEST_MARK": mark}
        environment.pop(BUILD_FOLDER, None)
        command = ["build", str(self.folder / "recipe.py"), "--out", str(self.folder / "out")]
        with subprocess.Popen(
            [sys.executable, "-m", "snapshard", *command, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            try:
                yield process
                process.wait(_PATIENCE_S)
                ended = time.monotonic()
                wait_for(lambda: not processes_of(f"TEST_MARK={mark}"), "all processes to end")
                wait_for(lambda: not list(temporary.iterdir()), "temporary files to go")
                assert time.monotonic() - ended < 10
            finally:
                for pid in processes_of(f"TEST_MARK={mark}"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    @property
    def begun(self) -> Path:
        """A folder that is made where something is about to hang."""
        return self.folder / "begun"

    def finish(self) -> None:
        """Builds to the end, in a process that starts late enough: the locks of others are gone."""
        with self.building() as process:
            _, err = process.communicate(timeout=_PATIENCE_S)
        assert process.returncode == 0, err
        # What killed builds left among the scratch folders went, too.
        assert not list(self.folder.glob("out/*/.work/scratch/*"))


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    (tmp_path / "files").mkdir()
    (tmp_path / "tmp").mkdir()
    for name in "abc":
        (tmp_path / "files" / f"{name}.txt").write_text("1.5")
    (tmp_path / "recipe.py").write_text(RECIPE)
    return Slow(tmp_path)


_CASES = [
    # Each is a build, two with worker processes that load Beam. All ways to hang are tried in
    # one process and in another in tests/pipelines/test_watchdog.py.
    ("infer", "python", 1),
    ("prepare", "c", 2),
    ("analyze", "stop", 1),
    ("write", "read", 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "cause", "workers"), _CASES)
def test_a_build_that_hangs_fails_and_names_the_element(
    slow: Slow, place: str, cause: str, workers: int
) -> None:
    options = ("--stall-timeout", "3", "--workers", str(workers))
    with slow.building(*options, place=place, cause=cause) as process:
        _, err = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 1, err  # another try may help
    assert f"error: No progress for 3 s on {NAMED[place]}" in err, err
    assert err.count("warning: No progress") == 1
    assert ("which is stopped" in err) == (cause == "stop")
    assert "Traceback" not in err
    if place == "write":
        slow.finish()


@pytest.mark.slow  # builds with worker processes, each of which loads Beam
@pytest.mark.parametrize("ending", ["SIGTERM", "SIGKILL"])
def test_a_stopped_worker_ends_with_its_build(slow: Slow, ending: str) -> None:
    with slow.building("--workers", "2", place="prepare", cause="stop") as process:
        wait_for(slow.begun.exists, "the worker to stop")
        process.send_signal(signal.Signals[ending])
        _, err = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == (-signal.SIGKILL if ending == "SIGKILL" else 130), err
    slow.finish()


@pytest.mark.slow  # builds
def test_a_signal_ends_a_build_that_hangs(slow: Slow) -> None:
    with slow.building(place="prepare", cause="python") as process:
        wait_for(slow.begun.exists, "the function to hang")
        process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        _, err = process.communicate(timeout=_PATIENCE_S)
        assert time.monotonic() - started < 30  # 6, on a machine that has time for it
    assert process.returncode == 130
    assert err.count("error: interrupted") == 1
    slow.finish()
