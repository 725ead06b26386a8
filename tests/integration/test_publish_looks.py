"""What others see of an output root while builds run, are killed, and finish, and gc clears."""

import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .faults import look, run_here, write_table
from .killed_builds import Builds

HERE = Path(__file__).parent
NUM_KILLS = 3

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


def build_and_kill(folder: Path, out: Path, recipes: Sequence[Path], seed: int) -> int:
    """Builds recipes, each killed a few times at random, as is garbage collection, then let finish.

    Returns:
        How many builds were killed.
    """
    draw, builds, num_killed = random.Random(seed), Builds(folder), 0
    try:
        usual = builds.build(recipes[1], folder / "warm").seconds
        for recipe in recipes:
            for _ in range(NUM_KILLS):
                ended = builds.build(recipe, out, seconds=draw.uniform(0, 0.4 * usual))
                assert ended.killed or ended.code == 0, ended.stderr
                num_killed += ended.killed
            if recipe in recipes[::3]:
                ended = builds.collect_garbage(out, seconds=draw.uniform(0, 0.02))
                assert ended.killed or ended.code == 0, ended.stderr
            for ended in (builds.build(recipe, out), builds.collect_garbage(out)):
                assert ended.code == 0, ended.stderr
    finally:
        builds.close()
    return num_killed


@pytest.mark.slow  # two dozen builds that are killed, while another process looks
def test_only_complete_snapshots_are_ever_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two builders share one output root and one name: they meet at most recipes."""
    recipes = [write_table(tmp_path / f"r{n}", num_rows=30 + n) for n in range(4)]
    out, orders = tmp_path / "out", (recipes, recipes[2:] + recipes[:2])
    with looking(out / "table", tmp_path) as seen, ThreadPoolExecutor() as pool:
        builders = []
        for seed, order in enumerate(orders):
            (folder := tmp_path / f"builder {seed}").mkdir()
            builders.append(pool.submit(build_and_kill, folder, out, order, seed))
        num_killed = sum(builder.result() for builder in builders)
    print(seen, num_killed)
    assert seen["half"] == 0, seen
    assert seen["looks"] > 100
    assert seen["whole snapshots"] > 100
    assert min(seen[way] for way in ("opened", "inspected", "read by the reader")) > 0, seen
    assert num_killed > 5
    published = look(out / "table")
    assert len(published) == len(recipes)
    # Alone, each gives the same bytes.
    for recipe in recipes:
        assert run_here(capsys, "build", recipe, "--out", tmp_path / "alone").code == 0
    assert look(tmp_path / "alone" / "table") == published
