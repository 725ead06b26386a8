"""A machine of a Flink cluster dies: the job goes on, and its bytes are those of any other run.

Elements run twice then: whatever a worker leaves behind has to be idempotent.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from .flink_cluster import FlinkCluster
from .installed import flink_libraries

pytestmark = [pytest.mark.engine, pytest.mark.slow]  # a cluster, and jobs that begin anew

NUM_FILES, NUM_SHARDS = 24, 300
# Workers begin half of the files and hold the others until they are told to go on.
RECIPE = f"""
import os
import pathlib
import time

import snapshard as ss


def read(file):
    begun = pathlib.Path("BEGUN")
    if "IS_DRIVER" not in os.environ:
        begun.joinpath(file.path).touch()
    while len(list(begun.iterdir())) > {NUM_FILES // 2} and not begun.with_name("go on").exists():
        time.sleep(0.05)
    text = file.read().decode()
    for number in range(40):
        yield {{"text": f"{{text}} {{number}}", "number": number}}


recipe = ss.Recipe(
    name="slow",
    source=ss.Files("files", read, types={{"number": "int64"}}),
    splits=ss.Splits(train=1.0),
    shards=ss.Shards(num_shards={NUM_SHARDS}),
)
"""
# The command line, with a block for each file.
SMALL_BLOCKS = """
import functools
import os
import sys

os.environ["IS_DRIVER"] = "it reads the files, too, to infer their features"

from snapshard import cli
from snapshard.pipelines.inventory.step import Sizes, take_inventory
from snapshard.pipelines.survey import survey

survey.take_inventory = functools.partial(take_inventory, sizes=Sizes(block_bytes=1))
cli.main(sys.argv[1:])
"""
RUNS = ("runs/*/*.arrow", 4)
SHARDS = ("shards/*/*.json", 15)


@pytest.fixture(scope="module")
def slow_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "files").mkdir()
    for number in range(NUM_FILES):
        (folder / "files" / f"{number:02}.txt").write_text(f"file {number}")
    (folder / "begun").mkdir()
    (folder / "go on").touch()
    (folder / "recipe.py").write_text(RECIPE.replace("BEGUN", str(folder / "begun")))
    (folder / "small_blocks.py").write_text(SMALL_BLOCKS)
    return folder / "recipe.py"


@pytest.fixture(scope="module")
def undisturbed(
    lab: Any, slow_recipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The hashes of a build on the embedded engine."""
    found: dict[str, str] = lab.hashes(lab.build(slow_recipe, tmp_path_factory.mktemp("direct")))
    return found


@pytest.fixture(scope="module")
def cluster_to_damage(
    flink_jar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FlinkCluster]:
    """A cluster; a test may leave it damaged."""
    with FlinkCluster(flink_libraries(), tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_to_damage: FlinkCluster) -> FlinkCluster:
    """A cluster of two machines, that one may be killed of."""
    while cluster_to_damage.num_running < 2:
        cluster_to_damage.start_task_manager()
    cluster_to_damage.wait_for_slots(4)
    return cluster_to_damage


def kill_working_machine(cluster: FlinkCluster) -> None:
    cluster.kill_task_manager(cluster.busy_task_manager())


def kill_python_worker(cluster: FlinkCluster) -> None:
    # Those of the job before may be there, with nothing to do.
    os.kill(cluster.workers()[-1].pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("first", "second", "way"),
    [
        (kill_working_machine, kill_python_worker, "ranges"),
        (kill_python_worker, kill_working_machine, "shuffle"),
    ],
    ids=["machine in prepare, worker in write", "worker in prepare, machine in shuffle"],
)
def test_job_goes_on(
    lab: Any,
    slow_recipe: Path,
    undisturbed: dict[str, str],
    cluster: FlinkCluster,
    flink_jar: Path,
    tmp_path: Path,
    first: Callable[[FlinkCluster], None],
    second: Callable[[FlinkCluster], None],
    way: str,
) -> None:
    script = slow_recipe.with_name("small_blocks.py")
    go_on = slow_recipe.with_name("go on")
    go_on.unlink()
    for path in slow_recipe.with_name("begun").iterdir():
        path.unlink()
    process = subprocess.Popen(
        [
            *(sys.executable, script, "build", slow_recipe, "--out", tmp_path, "--workers", "2"),
            *("--json", "--write-by", way, "--runner", "flink", "--flink-master", cluster.master),
            *("--flink-jar", flink_jar, "--", *cluster.beam_options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    struck = []
    try:
        for (pattern, number), kill in ((RUNS, first), (SHARDS, second)):
            wait_for(tmp_path / "slow" / ".work", pattern, number, process=process)
            struck.append(cluster.running_job())
            kill(cluster)
            go_on.touch()
        stdout, stderr = process.communicate(timeout=240)
    finally:
        go_on.touch()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    done = subprocess.CompletedProcess([], process.returncode, stdout, stderr)
    path = Path(lab.last_json(done)["path"])
    assert len(set(struck)) == 2
    assert all(cluster.failures(job) for job in struck), "what was killed was not at work"
    assert lab.hashes(str(path)) == undisturbed
    found = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    assert found == {*undisturbed, "build.json", "croissant.json"}


def wait_for(folder: Path, pattern: str, number: int, *, process: Any) -> None:
    deadline = time.monotonic() + 200
    while (found := len(list(folder.glob(pattern)))) < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{pattern}: {found}"
        time.sleep(0.01)
    assert psutil.pid_exists(process.pid)
