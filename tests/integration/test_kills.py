"""Builds that are killed: what dies with them, what is left, and that the next one goes on.

After each kill nothing half-published lies there; a build that is started again goes on, does
nothing twice that was done, and gives the snapshot of a build that nothing disturbed, byte for
byte. ``test_replay.py`` has every moment at which a build may be killed, without a process;
``make torture`` kills more often: see ``torture.py``.
"""

import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from .faults import look
from .kill_projects import Projects
from .killed_builds import Stop, step_of

NUM_MOMENTS = 4
_COMMITS = re.compile(r"(runs|shards)/.*\.json|summaries/.*\.arrow|plans/.*|graphs/.*/graph\.json")


@pytest.mark.slow  # two builds for each kill
def test_random_moments(projects: Projects, tmp_path: Path) -> None:
    project = projects["table"]
    rng = random.Random(6)
    longest, num_struck, number = project.seconds, 0, 0
    while num_struck < NUM_MOMENTS:
        out = tmp_path / str(number)
        ended = project.kill_after(out, rng.uniform(0, longest))
        if not ended.killed:
            # The machine has less to do now than it had for the undisturbed build.
            longest = ended.seconds
        num_struck, number = num_struck + ended.killed, number + 1
        project.go_on(out)
    assert number < 10 * NUM_MOMENTS


@pytest.mark.slow  # worker processes, each of which loads Beam, of four builds
def test_kills_with_two_workers(projects: Projects, tmp_path: Path) -> None:
    """The workers of a killed driver are at work for a second yet when the next build begins."""
    project = projects["table"]
    kinds = (
        (r"runs/.*(?<!keys)\.json", "before"),
        (r"shards/.*", "after"),
        (r"SNAPSHOT/manifest\.json", "before"),
    )
    for kind, when in kinds:
        name = [name for name in project.names if re.fullmatch(kind, name)][-1]
        project.kill(tmp_path, Stop(name, when), workers=2)
    project.go_on(tmp_path, workers=2)


@pytest.mark.slow  # worker processes, each of which loads Beam
@pytest.mark.parametrize("kind", [r"runs/.*(?<!keys)\.json", r"shards/.*"])
def test_one_worker_killed(projects: Projects, tmp_path: Path, kind: str) -> None:
    """The build ends soon and says so; the next goes on."""
    project = projects["table"]
    name = [name for name in project.names if re.fullmatch(kind, name)][1]
    stop = Stop(name, "before", whole_group=False)
    ended = project.builds.build(project.recipe, tmp_path, stop=stop, workers=2)
    assert ended.code == 1, ended
    # Beam itself waits for ever for a worker that was killed; a loaded machine takes its time.
    assert ended.seconds_after < 50
    assert "was killed (signal 9)" in ended.stderr
    assert "to resume" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert look(tmp_path / "table") == {}
    done = {name for name in ended.done if _COMMITS.fullmatch(name)}
    assert not done.intersection(project.go_on(tmp_path).begun)


@pytest.mark.slow  # a build that is interrupted, and one that goes on
def test_interrupted(projects: Projects, tmp_path: Path) -> None:
    """Ctrl-C ends a build soon, says that it can go on, and shows no traceback."""
    project = projects["table"]
    name = next(name for name in project.names if re.fullmatch(r"runs/.*(?<!keys)\.json", name))
    stop = Stop(name, "after", signal=signal.SIGINT)
    ended = project.builds.build(project.recipe, tmp_path, stop=stop)
    assert ended.code == 130
    assert ended.seconds_after < 50
    assert "to resume" in ended.stderr
    assert "Traceback" not in ended.stderr
    project.check(tmp_path)
    assert name not in project.go_on(tmp_path).begun


def test_steps_are_told_by_names() -> None:
    names: dict[str, Any] = {
        "memo.json": "inventory",
        "runs/ab/abc.json": "prepare",
        "scratch/records.pickle": "analyze",
        "graphs/abc/graph.json": "analyze",
        "SNAPSHOT/index/train-00000-of-00001.tfrecord.idx": "write",
        "SNAPSHOT/train-00000-of-00001.tfrecord.gz": "write",
        "SNAPSHOT/reader/facts.py": "publish",
        "latest.json": "pointer",
        "reader.py": "pointer",
    }
    assert {name: step_of(name) for name in names} == names
