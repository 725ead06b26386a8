"""What others see of an output root while builds run, are killed, and finish, and gc clears."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .faults import look, run_here, write_table

HERE = Path(__file__).parent

# Looks at the folder of a name until a file says that it is enough: as a script that follows
# latest.json and reads every listed file, as the library, as the command line, and by the
# snapshot's reader: the manifest with just so much of TensorFlow as that needs, the records without
# it. NumPy is imported first, since it cannot be imported anew after the patch is undone.
LOOKER = """
import collections, contextlib, io, json, sys, numpy
from pathlib import Path
from unittest import mock
sys.path.insert(0, sys.argv[1])
from faults import look
import snapshard as ss
from snapshard import cli
from snapshard.schemas.errors import RecipeError

folder, end = Path(sys.argv[2]), Path(sys.argv[3])
seen, whole, half = collections.Counter(), set(), []
tensorflow = mock.MagicMock()
tensorflow.io.gfile.GFile = open
tensorflow.errors.OpError = tensorflow.errors.UnimplementedError = OSError

def inspected():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(["inspect", str(folder)])
        except SystemExit as ended:
            code = ended.code
    # 2: nothing is published yet.
    assert code in (0, 2) and "Traceback" not in err.getvalue(), err.getvalue()
    return code == 0

def opened():
    try:
        return ss.Snapshot.open(folder)
    except RecipeError:
        return None

def read_by_its_reader(snapshot):
    with mock.patch.dict(sys.modules, {"tensorflow": tensorflow}):
        reader = snapshot.reader()
        for split, number in reader.NUM_EXAMPLES.items():
            assert all(Path(shard).is_file() for shard in reader.files(split))
            assert sum(1 for _ in reader.arrays.Stream(split)) == number

while not end.exists() or seen["looks"] < 3:
    seen["looks"] += 1
    try:
        before = {name for name, _ in whole}
        found = look(folder)
        whole |= set(found.items())
        seen["whole snapshots"] += len(found)
        assert before <= set(found), "what was published is gone"
        assert len({name for name, _ in whole}) == len(whole), "a snapshot has changed"
        snapshot = opened()
        seen["opened"] += snapshot is not None
        if seen["looks"] % 10 == 0:
            seen["inspected"] += inspected()
        if snapshot is not None and seen["looks"] % 10 == 1:
            read_by_its_reader(snapshot)
            seen["read by the reader"] += 1
    except Exception as error:
        half.append(repr(error))
print(json.dumps({**seen, "half": len(half), "first": half[:3]}))
"""

# Builds one recipe after the other in forks of a process that has loaded all libraries: each is
# killed a few times, at random, and then let finish. Garbage collection runs, and is killed, too.
# The process itself builds nothing: what threads of libraries hold, a fork would hold for ever.
BUILDER = """
import contextlib, importlib, io, json, os, random, signal, sys, time
from snapshard import cli

out, number, seed, *recipes = sys.argv[1:]
draw = random.Random(int(seed))
counts = {"finished": 0, "killed": 0, "over before": 0, "gc finished": 0, "gc killed": 0}

def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([*arguments])
        except SystemExit as ended:
            return ended.code, err.getvalue()

def fork(*arguments, kill_within=None):
    child = os.fork()
    if child == 0:
        os.setsid()
        code, told = run(*arguments)
        if code:
            sys.stderr.write(told)
        sys.stderr.flush()
        os._exit(code)
    if kill_within is not None:
        time.sleep(draw.uniform(0, kill_within))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)

names, told = os.pipe()
if os.fork() == 0:
    os.close(names)
    assert run("build", recipes[0], "--out", out + "-warm")[0] == 0
    with open(told, "w") as file:
        file.write("\\n".join(sys.modules))
    os._exit(0)
os.close(told)
with open(names) as file:
    for name in file.read().split():
        if name.partition(".")[0] in ("snapshard", "apache_beam", "grpc", "numpy", "pyarrow"):
            importlib.import_module(name)
os.wait()
started = time.perf_counter()
assert fork("build", recipes[1], "--out", out + "-warm") == 0
usual = time.perf_counter() - started
for recipe in recipes:
    for _ in range(int(number)):
        code = fork("build", recipe, "--out", out, kill_within=0.4 * usual)
        counts["killed" if code == -9 else "over before"] += 1
    if recipe in recipes[::3]:
        code = fork("gc", out, kill_within=0.02)
        counts["gc killed" if code == -9 else "gc finished"] += 1
        assert code in (0, -9)
    assert fork("build", recipe, "--out", out) == 0
    counts["finished"] += 1
    assert fork("gc", out) == 0
    counts["gc finished"] += 1
print(json.dumps(counts))
"""


@contextlib.contextmanager
def looking(folder: Path, scratch: Path) -> Iterator[dict[str, Any]]:
    """A process that looks all the time; what it has seen stands in the dictionary in the end."""
    end = scratch / "enough"
    command = [sys.executable, "-c", LOOKER, str(HERE), str(folder), str(end)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    seen: dict[str, Any] = {}
    try:
        yield seen
        end.touch()
        stdout, _ = process.communicate(timeout=120)
        seen.update(json.loads(stdout))
    finally:
        process.kill()
        process.wait()


def run_builder(out: Path, recipes: list[Path], *, seed: int, kills: int) -> subprocess.Popen[str]:
    """Starts a builder."""
    command = [sys.executable, "-c", BUILDER, str(out), str(kills), str(seed), *map(str, recipes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow  # two dozen builds that are killed, while another process looks
def test_only_complete_snapshots_are_ever_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two builders share one output root and one name: they meet at most recipes."""
    recipes = [write_table(tmp_path / f"r{n}", num_rows=30 + n) for n in range(4)]
    with looking(tmp_path / "out" / "table", tmp_path) as seen:
        orders = (recipes, recipes[2:] + recipes[:2])
        builders = [
            run_builder(tmp_path / "out", order, seed=seed, kills=3)
            for seed, order in enumerate(orders)
        ]
        ended = [builder.communicate(timeout=400) for builder in builders]
    for builder, (_, stderr) in zip(builders, ended, strict=True):
        assert builder.returncode == 0, stderr
        assert stderr == ""
    counts = [json.loads(stdout) for stdout, _ in ended]
    print(seen, *counts)
    assert seen["half"] == 0, seen
    assert seen["looks"] > 100
    assert seen["whole snapshots"] > 100
    assert min(seen[way] for way in ("opened", "inspected", "read by the reader")) > 0, seen
    assert sum(count["killed"] for count in counts) > 5
    published = look(tmp_path / "out" / "table")
    assert len(published) == len(recipes)
    # Alone, each gives the same bytes.
    for recipe in recipes:
        assert run_here(capsys, "build", recipe, "--out", tmp_path / "alone").code == 0
    assert look(tmp_path / "alone" / "table") == published
