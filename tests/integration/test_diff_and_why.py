"""``snapshard diff`` and ``snapshard why`` on the command line: what they say, and that is all."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss

Call = Callable[..., tuple[int, str, str]]

RECIPE = """
import snapshard as ss

recipe = ss.Recipe(name="words", source=ss.Csv("data"), shards=ss.Shards(num_shards=2))
"""


def rows(count: int, start: int = 0) -> str:
    return "n,word\n" + "".join(f"{n},{'x' * (n % 7)}\n" for n in range(start, start + count))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "data").mkdir()
    for number in range(3):
        (folder / "data" / f"{number}.csv").write_text(rows(100, 1000 * number))
    (folder / "recipe.py").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def old(lab: Any, project: Path) -> ss.Snapshot:
    snapshot: ss.Snapshot = lab.build(project / "recipe.py", project / "out")
    return snapshot


@pytest.fixture(scope="module")
def new(lab: Any, project: Path, old: ss.Snapshot) -> ss.Snapshot:
    """After a line was put in, a file removed, a file added, and a fraction changed."""
    del old
    data = project / "data"
    lines = (data / "1.csv").read_text().splitlines(keepends=True)
    (data / "1.csv").write_text("".join([*lines[:51], "7,new\n", *lines[51:]]))
    (data / "2.csv").unlink()
    (data / "3.csv").write_text(rows(10, 5000))
    recipe = RECIPE.replace(" shards=", " splits=ss.Splits(train=0.7, test=0.3), shards=")
    (project / "recipe.py").write_text(recipe)
    snapshot: ss.Snapshot = lab.build(project / "recipe.py", project / "out")
    return snapshot


def test_diff_for_people(call: Call, old: ss.Snapshot, new: ss.Snapshot) -> None:
    code, out, _ = call("diff", old.path, new.path, "--ids", 3)
    assert code == 0
    assert out.split("\n  all ")[1].split()[:2] == ["300", "211"]
    assert "splits: train: 0.8 → 0.7" in out
    assert "splits: validation removed: 0.1" in out
    assert "moved from train to test: " in out
    added = next(line for line in out.splitlines() if line.startswith("added: "))
    assert len(added.split(" … ")[0].split(", ")) == 3


def test_diff_for_programs(call: Call, lab: Any, old: ss.Snapshot, new: ss.Snapshot) -> None:
    code, out, _ = call("diff", old.path, new.path, "--json", "--ids", 10**6)
    told = json.loads(out)
    records = told["records"]
    assert code == 0
    before, after = (
        {i for s in n.manifest.splits.values() for e in s.shards for i in lab.index_ids(n, e.file)}
        for n in (old, new)
    )
    assert set(records["first_ids"]["added"]) == after - before
    assert set(records["first_ids"]["removed"]) == before - after
    assert (records["old"], records["new"]) == (300, 211)
    assert {"part": "splits", "thing": "train", "kind": "changed", "old": 0.8, "new": 0.7} in [
        {key: change[key] for key in ("part", "thing", "kind", "old", "new")}
        for change in told["settings"]
    ]
    assert len(told["records"]["moves"]) >= 1


def test_diff_of_ids_alone(call: Call, old: ss.Snapshot, new: ss.Snapshot) -> None:
    code, out, _ = call("diff", old.path, new.path, "--only-ids")
    assert code == 0
    assert "contents of records were not compared (--only-ids)" in out
    told = json.loads(call("diff", old.path, new.path, "--only-ids", "--json")[1])
    assert (told["contents"], told["records"]["changed"]) == (False, 0)


def test_diff_of_the_same(call: Call, new: ss.Snapshot, project: Path) -> None:
    assert call("diff", new.path, project / "out")[1].endswith("the same snapshot\n")


def test_why_of_two_snapshots(call: Call, old: ss.Snapshot, new: ss.Snapshot) -> None:
    code, out, _ = call("why", old.path, new.path)
    assert code == 0
    assert "input files: 1 added, 1 removed, 1 changed, 1 unchanged" in out
    assert "\nadded: 3.csv\nremoved: 2.csv\nchanged: 1.csv" in out
    assert "splits: train: 0.8 → 0.7" in out
    told = json.loads(call("why", old.path, new.path, "--json", "--files", 0)[1])
    assert (told["same"], told["inputs"]["num_changed"], told["inputs"]["changed"]) == (
        False,
        1,
        [],
    )
    assert "no difference" in call("why", new.path, new.path)[1]


def test_why_a_build_would_miss(
    call: Call, lab: Any, old: ss.Snapshot, new: ss.Snapshot, project: Path
) -> None:
    out = project / "out"
    before = lab.listing(out)
    code, said, _ = call("why", project / "recipe.py", out)
    assert (code, "no difference: a build reuses this snapshot" in said) == (0, True)
    recipe = project / "another.py"
    recipe.write_text((project / "recipe.py").read_text().replace("train=0.7", "x-y=0.7"))
    assert call("why", recipe, out)[0] == 2  # no split may be called so
    recipe.write_text((project / "recipe.py").read_text().replace("num_shards=2", "num_shards=3"))
    code, said, _ = call("why", recipe, out)
    assert code == 0
    assert "shards: num_shards: 2 → 3" in said
    assert "which a build would make" in said
    # An older snapshot that a build would find counts, and not the latest alone.
    code, said, _ = call("why", recipe, new.path, "--limit", 5)
    assert "splits: limit added: 5" in said
    assert lab.listing(out) == before


def test_why_nothing_is_there(call: Call, new: ss.Snapshot, project: Path, tmp_path: Path) -> None:
    code, _, err = call("why", project / "recipe.py", tmp_path)
    assert (code, "contains no published snapshot" in err) == (2, True)
    assert call("why", tmp_path, new.path)[0] in (2, 3)
    assert call("diff", tmp_path, new.path)[0] == 2


def test_without_the_workspace_or_the_facts_of_the_build(
    call: Call, old: ss.Snapshot, new: ss.Snapshot, tmp_path: Path
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    shutil.copytree(old.path, first)
    shutil.copytree(new.path, second)
    said = call("why", first, second)[1]
    assert "Which input files differ is unknown" in said
    assert "splits: train: 0.8 → 0.7" in said
    text = (first / "build.json").read_text()
    assert '"train"' in text
    (first / "build.json").write_text(text.replace('"train"', "3", 1))  # of another form
    said = call("why", first, second)[1]
    assert "only the manifests were compared" in said
    assert "splits: names" in said
    said = call("diff", first, second)[1]
    assert "note: A build.json is missing or damaged" in said


@pytest.mark.slow  # two builds
def test_names_that_steer_a_terminal(call: Call, lab: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text(rows(3))
    recipe = RECIPE.replace("shards=ss", "splits=ss.Splits(train=1.0), shards=ss")
    (tmp_path / "recipe.py").write_text(recipe)
    first = lab.build(tmp_path / "recipe.py", tmp_path / "out")
    (tmp_path / "data" / "b\x1b[31m\n.csv").write_text(rows(3))
    second = lab.build(tmp_path / "recipe.py", tmp_path / "out")
    for command in ("diff", "why"):
        said = call(command, first.path, second.path)[1]
        assert "b\\x1b[31m\\n.csv" in said
        assert "\x1b" not in said


def test_diff_of_rejects_alone(call: Call, lab: Any, tmp_path: Path) -> None:
    text = RECIPE.replace('ss.Csv("data")', 'ss.Csv("data", types={"n": "int64"})')
    text = text.replace(" shards=", " max_rejects=9, shards=")
    snapshots = []
    for number, bad in enumerate((["a"], ["a", "b"], ["a", "c"])):
        (tmp_path / "data").mkdir(exist_ok=True)
        lines = "".join(f"{cell},word\n" for cell in bad)
        (tmp_path / "data" / "0.csv").write_text(rows(100) + lines)
        (tmp_path / "recipe.py").write_text(text)
        snapshots.append(lab.build(tmp_path / "recipe.py", tmp_path / f"out{number}"))
    one, two, three = (snapshot.path for snapshot in snapshots)
    assert "\nrejects: 1 before, 2 now\n" in call("diff", one, two)[1]
    assert "\nrejects: 2 before, 2 now, others\n" in call("diff", two, three)[1]
    told = json.loads(call("diff", two, three, "--json")[1])
    assert told["rejects"] == {"old": 2, "new": 2, "same": False}
    assert "rejects:" not in call("diff", two, two)[1]
