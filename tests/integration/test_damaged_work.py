"""A workspace that was damaged between two builds: what is reused is checked, and made anew."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshard.schemas.progress import Silent

from .replay import Recorded, replay


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


def damage_of(number: int) -> Callable[[Path], None]:
    """A kind of damage for a kind of file: every other one has a flipped bit.

    All kinds of damage of all that is checksummed: ``tests/transforms/test_artifacts.py``. Each
    file, cut: ``test_replay.py``.
    """
    return flip if number % 2 else (truncate, empty, remove)[number // 2 % 3]


SHARDS = r"\w{16}/index"
"""What a build puts first of a shard."""

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


def killed(recorded: Recorded, out: Path, pattern: str) -> Path:
    """An output in which a build was killed before it put the first file of such a name."""
    replay(recorded.log[: recorded.index(pattern)], out)
    return out


def go_on(recorded: Recorded, out: Path, **options: Any) -> dict[str, Any]:
    """Builds to the end; gives what ``build.json`` says."""
    recorded.go_on(out, **options)
    (found,) = out.glob("*/*/build.json")
    facts: dict[str, Any] = json.loads(found.read_text())
    return facts


def damage_and_go_on(
    recorded: Recorded, out: Path, before: str, pattern: str, damage: Callable[[Path], None]
) -> dict[str, Any]:
    """Damages a file that a killed build left, and goes on; gives what ``build.json`` says."""
    folder = killed(recorded, out, before) / recorded.recipe.stem
    damage(next(iter(sorted(folder.glob(pattern)))))
    facts = go_on(recorded, out)
    shutil.rmtree(out)
    return facts


@pytest.mark.slow  # a build for each kind of file and of damage
def test_files_before_the_shards(recorded: Callable[[str], Recorded], tmp_path: Path) -> None:
    table = recorded("table")
    for number, pattern in enumerate(BEFORE_SHARDS):
        damage = damage_of(number)
        facts = damage_and_go_on(table, tmp_path / f"{number}", SHARDS, f".work/{pattern}", damage)
        # What is missing is seen at once.
        assert len(facts["damage_met"]) <= (pattern in LARGE), (pattern, damage)


@pytest.mark.slow  # a build for each kind of file and of damage
def test_shards_of_a_killed_build(recorded: Callable[[str], Recorded], tmp_path: Path) -> None:
    """Each byte of a shard and its index is read before a manifest lists it."""
    table = recorded("table")
    for number, pattern in enumerate(AFTER_SHARDS):
        damage = damage_of(number)
        facts = damage_and_go_on(table, tmp_path / f"{number}", r"\w+/manifest", pattern, damage)
        assert facts["shards"] == {"by": "ranges", "total": 2, "written": 1}, (pattern, damage)
        assert facts["blocks"] == {"total": 4, "prepared": 0}


class _Warnings(Silent):
    """Keeps what a build warns of."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)


@pytest.mark.slow  # a build that goes on
def test_many_damaged_runs_are_found_at_once(
    recorded: Callable[[str], Recorded], tmp_path: Path
) -> None:
    for path in killed(recorded("table"), tmp_path, SHARDS).glob("*/.work/runs/*/*.arrow"):
        flip(path)
    progress = _Warnings()
    facts = go_on(recorded("table"), tmp_path, progress=progress)
    assert "Work of an earlier build is damaged" in progress.messages[0]
    assert facts["blocks"] == {"total": 4, "prepared": 4}
    assert len(facts["damage_met"]) == 1
    assert re.search(r"runs/../\w{32}\.arrow is damaged", facts["damage_met"][0])


@pytest.mark.slow  # worker processes
def test_damage_that_a_worker_meets(recorded: Callable[[str], Recorded], tmp_path: Path) -> None:
    """Its error comes back as itself, and the build goes through its steps again."""
    killed(recorded("table"), tmp_path, SHARDS)
    flip(next(iter(tmp_path.glob("*/.work/runs/*/*.arrow"))))
    assert len(go_on(recorded("table"), tmp_path, workers=2)["damage_met"]) == 1


@pytest.mark.slow  # builds of their own
def test_extracted_records_and_an_earlier_stage(
    recorded: Callable[[str], Recorded], tmp_path: Path
) -> None:
    query = recorded("query")
    paths = [operation.path.removeprefix("query/") for operation in query.log]
    first, second = (p for p in paths if re.fullmatch(r"\.work/runs/.*(?<!keys)\.json", p))
    patterns = (".work/extracted/*.arrow", f"{first.removesuffix('json')}arrow")
    for number, pattern in enumerate(patterns):
        out = tmp_path / f"{number}"
        damage_and_go_on(query, out, re.escape(second), pattern, damage_of(number))


@pytest.mark.slow  # a process that analyzes, and the same once more
def test_damage_that_the_analysis_meets(
    recorded: Callable[[str], Recorded], tmp_path: Path
) -> None:
    """In a process of its own, within a pipeline."""
    left = killed(recorded("graph"), tmp_path, r"\.work/graphs/")
    flip(next(iter(left.glob("*/.work/runs/*/*.arrow"))))
    assert len(go_on(recorded("graph"), tmp_path)["damage_met"]) == 1


@pytest.mark.slow  # a process that analyzes
def test_a_damaged_graph(recorded: Callable[[str], Recorded], tmp_path: Path) -> None:
    """It is made anew, all of it. Each file alone: ``tests/transforms/test_graph_files.py``."""
    graph = recorded("graph")
    killed(graph, tmp_path, r"\.work/plans/")
    for pattern in ("graph.json", "*/assets/words", "*/saved_model.pb"):
        (path,) = tmp_path.glob(f"*/.work/graphs/*/{pattern}")
        flip(path)
    again = {operation.path for operation in graph.go_on(tmp_path)}
    assert again >= {o.path for o in graph.log if "/.work/graphs/" in o.path}
