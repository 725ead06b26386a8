"""Builds killed by SIGKILL, halfway through and just after durable transitions, and at random.

After each kill nothing half-published lies there; a build that is started again goes on, does
nothing twice that was done, and gives the snapshot of a build that nothing disturbed, byte for
byte. ``make torture`` kills more often: see ``torture.py``.
"""

import random
import re
from pathlib import Path
from typing import Any

import pytest

from snapshard.pipelines.operate.gc import collect_garbage

from .kill_projects import Project, Projects
from .killed_builds import Stop, ends_of_kinds, step_of
from .snapshots_left import check_visible

NUM_MOMENTS = 4
_COMMITS = re.compile(r"(runs|shards)/.*\.json|summaries/.*\.arrow|plans/.*|graphs/.*/graph\.json")


def chain(project: Project, out: Path, stops: list[Stop]) -> None:
    """Kills builds of one output one after the other, each at a later transition."""
    whole: set[str] = set()
    for stop in stops:
        ended = project.kill(out, stop)
        assert not whole.intersection(ended.begun), "what was done is done again"
        whole.update(name for name in ended.done if _COMMITS.fullmatch(name))
    ended = project.go_on(out)
    assert not whole.intersection(ended.begun)
    # What killed builds left on its way, garbage collection clears; all else is listed.
    collect_garbage(str(out))
    (manifest,) = out.glob("*/*/manifest.json")
    found = {str(p.relative_to(manifest.parent)) for p in manifest.parent.rglob("*") if p.is_file()}
    assert found == {*project.hashes, "build.json"}
    assert not list(out.glob("*/.work/scratch/*"))


@pytest.mark.slow  # a kill and a build for each of some thirty transitions, twice
def test_every_transition(projects: Projects, tmp_path: Path) -> None:
    project = projects["table"]
    steps = {step_of(name) for name in project.names}
    assert steps == {"inventory", "prepare", "plan", "write", "publish", "pointer"}
    names = ends_of_kinds(project.names)
    assert {step_of(name) for name in names} == steps
    # Before one is what was after the one before, or its halfway without a temporary file.
    stops = [Stop(name, when) for name in names for when in ("halfway", "after")]
    chain(project, tmp_path, [Stop(names[0], "before"), *stops])


@pytest.mark.slow  # as above, of a query and two stages
def test_every_transition_of_stages(projects: Projects, tmp_path: Path) -> None:
    """Extracted records, and runs that are made of runs."""
    project = projects["query"]
    names = [name for name in project.names if step_of(name) in ("inventory", "prepare", "plan")]
    assert any(name.startswith("extracted/") for name in names)
    assert sum(name.startswith("summaries/") for name in names) == 6
    chain(project, tmp_path, [Stop(names[0], "before"), *(Stop(name, "after") for name in names)])


@pytest.mark.slow  # builds that use TensorFlow
def test_every_transition_of_images(projects: Projects, tmp_path: Path) -> None:
    """What is exported for serving; and the shards of images."""
    project = projects["images"]
    # The model is exported while shards are written, until it is published.
    pattern = r"SNAPSHOT/train|shards/.*/train|SNAPSHOT/serving/"
    names = [name for name in project.names if re.match(pattern, name)]
    assert len(names) > 4
    manifest = [Stop("SNAPSHOT/manifest.json", when) for when in ("before", "after")]
    chain(project, tmp_path, [*(Stop(name, "after") for name in names), *manifest])


@pytest.mark.slow  # processes that analyse, each of which loads TensorFlow
def test_transitions_of_a_graph(projects: Projects, tmp_path: Path) -> None:
    project = projects["graph"]
    names = [name for name in project.names if step_of(name) == "analyze"]
    graph = [name for name in names if name.endswith("graph.json")]
    assert len(graph) == 1
    assert len(names) > 5
    chain(
        project,
        tmp_path,
        # The first is while the analysis runs, in a process of the killed group.
        [
            Stop("scratch/records.pickle", "after"),
            # All other files of the graph are there; what commits it has its content, not its name.
            Stop(graph[0], "halfway"),
            Stop("SNAPSHOT/manifest.json", "before"),
        ],
    )


@pytest.mark.slow  # two builds for each kill
@pytest.mark.parametrize("when", ["before", "after"])
def test_one_kill(projects: Projects, tmp_path: Path, when: str) -> None:
    """The first commit of each kind, in an output that no other build has touched."""
    project = projects["table"]
    kinds = (r"runs/.*(?<!keys)\.json", r"summaries/.*", r"shards/.*", r"SNAPSHOT/manifest\.json")
    for number, kind in enumerate(kinds):
        name = next(name for name in project.names if re.fullmatch(kind, name))
        project.kill(tmp_path / str(number), Stop(name, when))
        project.go_on(tmp_path / str(number))


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


@pytest.mark.slow  # worker processes, each of which loads Beam, of seven builds
def test_kills_with_two_workers(projects: Projects, tmp_path: Path) -> None:
    """The workers of a killed driver are at work for a second yet when the next build begins."""
    project = projects["table"]
    kinds = (
        (r"runs/.*(?<!keys)\.json", "before"),
        (r"summaries/.*", "before"),
        (r"plans/.*", "halfway"),
        (r"shards/.*", "after"),
        (r"SNAPSHOT/manifest\.json", "before"),
        (r"latest\.json", "halfway"),
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
    assert check_visible(tmp_path, project.hashes) == 0
    done = {name for name in ended.done if _COMMITS.fullmatch(name)}
    assert not done.intersection(project.go_on(tmp_path).begun)


@pytest.mark.slow  # builds of its own
def test_a_dead_build_holds_no_lock(projects: Projects, tmp_path: Path) -> None:
    """The file stays, which says nothing: the kernel keeps the lock, and only for the living."""
    project = projects["table"]
    name = next(name for name in project.names if name.startswith("plans/"))
    project.kill(tmp_path, Stop(name, "before"))
    assert (tmp_path / "table" / ".work" / "lock").exists()
    assert not collect_garbage(str(tmp_path), dry_run=True).busy
    project.go_on(tmp_path)


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
