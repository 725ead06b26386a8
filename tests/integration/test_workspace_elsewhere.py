"""The workspace lies elsewhere than the output: builds, and all that asks for it, find it there."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.operate.gc import collect_garbage
from snapshard.pipelines.workspace import find_workspace
from snapshard.transforms import storage


@pytest.fixture
def recipe(tmp_path: Path) -> ss.Recipe:
    (tmp_path / "t.csv").write_text("number\n" + "".join(f"{row}\n" for row in range(100)))
    return ss.Recipe(name="t", source=ss.Csv(str(tmp_path / "t.csv")), splits=ss.Splits(train=1.0))


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_builds_find_it(lab: Any, recipe: ss.Recipe, tmp_path: Path) -> None:
    out, fast = tmp_path / "out", tmp_path / "fast"
    plain = ss.build(recipe, tmp_path / "plain")
    snapshot = ss.build(recipe, out, workspace=fast)
    assert lab.hashes(snapshot) == lab.hashes(plain)
    assert names(out / "t" / ".work") == {"lock", "elsewhere.json"}
    (place,) = fast.iterdir()
    assert place.name.startswith("t-")
    assert find_workspace(str(out / "t")).root == str(place)
    # Another plan, told nothing: the runs are found.
    other = ss.build(
        ss.Recipe(
            name="t",
            source=recipe.source,
            splits=recipe.splits,
            shards=ss.Shards(num_shards=2),
        ),
        out,
    )
    assert lab.build_facts(other)["blocks"]["prepared"] == 0
    assert not (out / "t" / ".work" / "runs").exists()
    # Put back: made anew there.
    third = ss.Recipe(
        name="t", source=recipe.source, splits=recipe.splits, shards=ss.Shards(num_shards=3)
    )
    assert lab.build_facts(ss.build(third, out, workspace=out))["blocks"]["prepared"] == 1
    assert find_workspace(str(out / "t")).root == str(out / "t" / ".work")


def test_each_output_has_its_own(lab: Any, recipe: ss.Recipe, tmp_path: Path) -> None:
    for name in ("a", "b"):
        ss.build(recipe, tmp_path / name, workspace=tmp_path / "fast")
    assert len(list((tmp_path / "fast").iterdir())) == 2


def test_garbage(lab: Any, recipe: ss.Recipe, tmp_path: Path) -> None:
    out, fast = tmp_path / "out", tmp_path / "fast"
    snapshot = ss.build(recipe, out, workspace=fast)
    assert not collect_garbage(str(out)).paths
    before = names(fast)
    (Path(snapshot.path) / "manifest.json").unlink()
    dry = collect_garbage(str(out), dry_run=True)
    assert names(fast) == before
    done = collect_garbage(str(out))
    assert done == dry
    assert done.unpublished == (snapshot.path,)
    assert {path for path in done.paths if path.startswith(str(fast))}
    assert not [name for name in names(fast) if "/runs/" in name]
    assert not Path(snapshot.path).exists()
    assert not ss.build(recipe, out).cached


@pytest.mark.slow
@pytest.mark.parametrize("how", ["copied", "moved", "copied over the link", "linked"])
def test_only_the_owner_clears_a_workspace(
    lab: Any, recipe: ss.Recipe, tmp_path: Path, how: str
) -> None:
    out, other, fast = tmp_path / "out", tmp_path / "other", tmp_path / "fast"
    ss.build(recipe, out, workspace=fast)
    (place,) = fast.iterdir()
    storage.put_bytes(f"{place}/staged/{0:064}.zip", b"x")  # what gc would clear
    if how == "moved":
        out.rename(other)
    elif how == "linked":
        other.symlink_to(out)
    else:
        shutil.copytree(out, other)
        shutil.rmtree(next(iter((other / "t").glob("????????????????"))))
    if how == "copied over the link":
        (tmp_path / "third").symlink_to(other)
        other = tmp_path / "third"
    before = names(fast)
    report = collect_garbage(str(other))
    owns = how == "linked"
    assert report.foreign == (() if owns else (str(place),))
    assert (names(fast) == before) is not owns
    assert find_workspace(str(other / "t")).root == str(place if owns else other / "t" / ".work")
    # A build there uses none of it either, and the original keeps what it has.
    changed = dataclasses.replace(recipe, shards=ss.Shards(num_shards=2))
    before = names(fast)
    built = ss.build(changed, other)
    assert lab.build_facts(built)["blocks"]["prepared"] == (0 if owns else 1)
    assert (names(fast) == before) is not owns
    if out.exists():
        assert lab.build_facts(ss.build(changed, out))["blocks"]["prepared"] == 0
        assert not collect_garbage(str(out)).foreign
    # A place of its own takes the note's place.
    ss.build(dataclasses.replace(recipe, shards=ss.Shards(num_shards=3)), other, workspace=fast)
    assert not collect_garbage(str(other)).foreign
    assert len(list(fast.iterdir())) == (1 if owns else 2)


@pytest.mark.slow
def test_command_line(lab: Any, recipe: ss.Recipe, tmp_path: Path) -> None:
    source, out, fast = tmp_path / "t.csv", tmp_path / "out", tmp_path / "fast"
    done = lab.run_cli("build", source, "--out", out, "--workspace", fast, "--json")
    lab.last_json(done)
    assert (fast / next(fast.iterdir()).name / "runs").is_dir()
    done = lab.run_cli("rejects", out)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("place", "words"),
    [("s3://ann:secret@bucket/work", "credentials"), ("SOURCE", "is inside the source")],
)
def test_refused(recipe: ss.Recipe, tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.json").write_text(json.dumps({"number": 1}))
    folder = ss.Recipe(name="t", source=ss.JsonLines(str(tmp_path / "data")))
    place = place.replace("SOURCE", str(tmp_path / "data" / "work"))
    with pytest.raises(ss.SnapshardError, match=words) as raised:
        ss.build(folder, tmp_path / "out", workspace=place)
    assert "secret" not in str(raised.value)
