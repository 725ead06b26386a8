"""A workspace that was damaged between two builds: what is reused is checked, and made anew."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .kill_projects import Project, Projects
from .killed_builds import Stop


def flip(path: Path) -> None:
    """Changes one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def truncate(path: Path) -> None:
    """Takes the last byte away."""
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def damages_of(number: int) -> tuple[Callable[[Path], None], ...]:
    """Two kinds of damage for a kind of file; the second differs from one number to the next.

    All kinds of damage of all that is checksummed: ``tests/transforms/test_artifacts.py``.
    """
    return flip, (truncate, empty, remove)[number % 3]


# Kinds of files that a build reuses when it goes on after the last run …
BEFORE_SHARDS = (
    "memo.json",
    "findings.json",
    "staged/*.zip",
    "blocks/*.jsonl",
    "runs/*/*.arrow",
    "runs/*/*.rejects",
    "runs/*/????????????????????????????????.json",
    "runs/*/*.keys",
    "runs/*/*.keys.json",
    "summaries/*.arrow",
    "summaries/*.runs",
    "summaries/*.batches",
    "plans/*.json",
)
# Of these the large ones are not read before they are used.
LARGE = {"runs/*/*.arrow", "runs/*/*.keys", "runs/*/*.rejects", "summaries/*.batches"}
# … and after the last shard.
AFTER_SHARDS = (
    ".work/shards/*/*.json",
    "*/train*.tfrecord",
    "*/index/*.idx",
    "*/index/*.parquet",
    "*/index/*.labels",
)


def killed(project: Project, out: Path, pattern: str, when: str) -> Path:
    """An output in which a build was killed at the first transition of such a name."""
    name = next(name for name in project.names if re.match(pattern, name))
    project.kill(out, Stop(name, when))
    return out


def damage_and_go_on(
    project: Project, left: Path, out: Path, pattern: str, damage: Callable[[Path], None]
) -> dict[str, object]:
    """Damages a file of a copy of what a build left, goes on; gives what ``build.json`` says."""
    shutil.copytree(left, out, symlinks=True)
    folder = out / project.recipe.stem
    path = next(iter(sorted(folder.glob(pattern))))
    damage(path)
    ended = project.go_on(out)
    assert "Traceback" not in ended.stderr
    (found,) = folder.glob("*/build.json")
    facts: dict[str, object] = json.loads(found.read_text())
    shutil.rmtree(out)
    return facts


@pytest.mark.slow  # two builds for each kind of file
def test_files_before_the_shards(projects: Projects, tmp_path: Path) -> None:
    project = projects["table"]
    left = killed(project, tmp_path / "left", r"SNAPSHOT/index", "before")
    for number, pattern in enumerate(BEFORE_SHARDS):
        for damage in damages_of(number):
            facts = damage_and_go_on(project, left, tmp_path / "out", f".work/{pattern}", damage)
            met = facts["damage_met"]
            assert isinstance(met, list)
            # What is missing is seen at once.
            large = pattern in LARGE
            assert len(met) <= large, (pattern, damage)


@pytest.mark.slow  # two builds for each kind of file
def test_shards_of_a_killed_build(projects: Projects, tmp_path: Path) -> None:
    """Each byte of a shard and its index is read before a manifest lists it."""
    project = projects["table"]
    left = killed(project, tmp_path / "left", r"SNAPSHOT/manifest", "before")
    for number, pattern in enumerate(AFTER_SHARDS):
        for damage in damages_of(number):
            facts = damage_and_go_on(project, left, tmp_path / "out", pattern, damage)
            assert facts["shards"] == {"by": "ranges", "total": 2, "written": 1}, (pattern, damage)
            assert facts["blocks"] == {"total": 4, "prepared": 0}


@pytest.mark.slow  # builds of their own
def test_many_damaged_runs_are_found_at_once(projects: Projects, tmp_path: Path) -> None:
    project = projects["table"]
    killed(project, tmp_path, r"SNAPSHOT/index", "before")
    for path in tmp_path.glob("*/.work/runs/*/*.arrow"):
        flip(path)
    ended = project.go_on(tmp_path)
    assert "Work of an earlier build is damaged" in ended.stderr
    (found,) = tmp_path.glob("*/*/build.json")
    facts = json.loads(found.read_text())
    assert facts["blocks"] == {"total": 4, "prepared": 4}
    assert len(facts["damage_met"]) == 1
    assert re.search(r"runs/../\w{32}\.arrow is damaged", facts["damage_met"][0])


@pytest.mark.slow  # worker processes
def test_damage_that_a_worker_meets(projects: Projects, tmp_path: Path) -> None:
    """Its error comes back as itself, and the build goes through its steps again."""
    project = projects["table"]
    killed(project, tmp_path, r"SNAPSHOT/index", "before")
    flip(next(iter(tmp_path.glob("*/.work/runs/*/*.arrow"))))
    ended = project.go_on(tmp_path, workers=2)
    assert "Traceback" not in ended.stderr


@pytest.mark.slow  # builds of their own
def test_extracted_records_and_an_earlier_stage(projects: Projects, tmp_path: Path) -> None:
    project = projects["query"]
    names = [name for name in project.names if re.fullmatch(r"runs/.*(?<!keys)\.json", name)]
    assert len(names) == 2
    left = killed(project, tmp_path / "left", re.escape(names[1]), "before")
    patterns = (".work/extracted/*.arrow", f".work/{names[0].removesuffix('json')}arrow")
    for number, pattern in enumerate(patterns, 1):
        for damage in damages_of(number):
            damage_and_go_on(project, left, tmp_path / "out", pattern, damage)


@pytest.mark.slow  # processes that analyse, each of which loads TensorFlow
def test_damage_that_the_analysis_meets_and_a_damaged_graph(
    projects: Projects, tmp_path: Path
) -> None:
    project, left = projects["graph"], tmp_path / "left"
    killed(project, left, "scratch/", "before")
    # In a process of its own, within a pipeline.
    flip(next(iter(left.glob("*/.work/runs/*/*.arrow"))))
    project.go_on(left)
    (found,) = left.glob("*/*/build.json")
    assert len(json.loads(found.read_text())["damage_met"]) == 1
    # As a build leaves it that is killed before its plan.
    shutil.rmtree(found.parent)
    for path in (*left.glob("*/latest.json"), *left.glob("*/.work/plans/*")):
        path.unlink()
    damaged = []
    for number, pattern in enumerate(("graph.json", "*/assets/words", "*/saved_model.pb")):
        out = tmp_path / f"{number}"
        shutil.copytree(left, out, symlinks=True)
        (path,) = out.glob(f"*/.work/graphs/*/{pattern}")
        flip(path)
        damaged.append(path.relative_to(out))
        # It is noticed: the analysis begins once more …
        killed(project, out, "scratch/", "before")
    # … and puts all of them anew.
    for name in damaged[:-1]:
        flip(out / name)
    project.go_on(out)
