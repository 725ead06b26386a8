"""Folders that cannot be used are refused; where the workspace is, if another build moves it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import snapshard as ss
from snapshard.pipelines import build as builds
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.pipelines.workspace import (
    check_place,
    choose_workspace,
    find_workspace,
    needs_this_process,
    occupied,
)
from snapshard.schemas.errors import PlaceError, RecipeError
from snapshard.schemas.naming import OutputPaths


def _told(out: Path, place: Path) -> OutputPaths:
    """A build that was told a place has begun, and ended."""
    paths = choose_workspace(OutputPaths(str(out), "t"), place)
    with occupied(paths, named=True):
        pass
    return paths


def test_the_note_of_another_build_stands(tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = choose_workspace(OutputPaths(str(out), "t"), None)
    told = _told(out, tmp_path / "fast")
    with occupied(before, named=False) as found:
        assert found == told
        assert find_workspace(found.folder).root == told.workspace
    # And the other way: it is put back meanwhile.
    before = choose_workspace(OutputPaths(str(out), "t"), None)
    told = _told(out, out)
    with occupied(before, named=False) as found:
        assert found == told
        assert find_workspace(found.folder).root == str(out / "t" / ".work")


@pytest.mark.parametrize("step", [None, "inventory"])
def test_a_build_works_where_it_is_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str | None
) -> None:
    (tmp_path / "t.csv").write_text("number\n1\n2\n")
    recipe = ss.Recipe(
        name="t", source=ss.Csv(str(tmp_path / "t.csv")), splits=ss.Splits(train=1.0)
    )
    out = tmp_path / "out"
    checked: list[str] = []

    def check(_: object, paths: OutputPaths, __: object) -> None:
        if not checked:
            _told(out, tmp_path / "fast")
        checked.append(paths.workspace)

    monkeypatch.setattr(builds, "refuse_memory_of_one_process", check)
    if step is None:
        ss.build(recipe, out)
    else:
        ss.run_step(recipe, out, step)
    (place,) = (tmp_path / "fast").iterdir()
    # Where it is by now is checked too.
    assert checked == [str(out / "t" / ".work"), str(place)]
    assert {path.name for path in place.iterdir()} > {"lock"}
    assert {path.name for path in (out / "t" / ".work").iterdir()} == {"lock", "elsewhere.json"}


@pytest.fixture
def recipe(tmp_path: Path) -> ss.Recipe:
    (tmp_path / "t.csv").write_text("a\n1\n2\n")
    source = ss.Csv(str(tmp_path / "t.csv"))
    return ss.Recipe(name="r", source=source, splits=ss.Splits(train=1.0))


@pytest.mark.parametrize("argument", ["out", "workspace"])
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("s3://", "is only a protocol, expected a folder or URL, such as s3://bucket/folder"),
        ("gs:///", "is only a protocol"),
        (
            "s3:/bucket/out",
            "s3:/bucket/out is missing a slash: write s3://bucket/out, or ./s3:/bucket",
        ),
        ("gs:/", "is missing a slash"),
        ("file:/data", "is missing slashes: write /data"),
        ("", "is empty, expected a folder or URL"),
        (b"out", "expected a folder or URL"),
        (5, "expected a folder or URL"),
        ("a\0b", "is not valid UTF-8 text"),
        ("caf\udce9", "is not valid UTF-8 text"),
    ],
)
def test_what_cannot_be_a_place_is_refused(
    recipe: ss.Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argument: str,
    place: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"out": "o", argument: place}
    for call in (ss.build, lambda *args, **rest: ss.run_step(*args, step="inventory", **rest)):
        with pytest.raises(RecipeError, match=f"{argument}.*{words}"):
            call(recipe, **places)  # type: ignore[operator]
    assert os.listdir(tmp_path) == ["t.csv"]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file", "out: .*/file is a file, expected a folder. Choose another place"),
        ("file/below", "a part of the path is a file, expected a folder"),
        ("/proc/snapshots", "the filesystem does not support this. Choose another place"),
        ("file:///proc/snapshots", "the filesystem does not support this"),
        ("/dev/null", "is a file, expected a folder"),
    ],
)
def test_a_place_that_takes_no_files_is_not_worth_another_try(
    recipe: ss.Recipe, tmp_path: Path, place: str, words: str
) -> None:
    (tmp_path / "file").touch()
    root = place if place.startswith(("/", "file:")) else str(tmp_path / place)
    with pytest.raises(PlaceError, match=words) as raised:
        ss.build(recipe, root)
    assert raised.value.exit_code == 2


def test_places_that_may_not_exist_yet_are_taken(tmp_path: Path) -> None:
    for place in (tmp_path / "new", "s3://bucket", "file:///", "memory://a", "caf\u00e9"):
        check_place(place, "out")


def _same(records: dict[str, object]) -> dict[str, object]:
    return records


def test_what_only_this_process_can_run_stays_in_it(tmp_path: Path) -> None:
    """By default, large jobs have worker processes; they must not break what works in one."""
    (tmp_path / "t.csv").write_text("a\n1\n")
    plain = ss.Recipe(name="t", source=ss.Csv(str(tmp_path / "t.csv")))
    assert not needs_this_process(plain, tmp_path, None)
    assert needs_this_process(plain, "memory://out", None)
    assert needs_this_process(plain, tmp_path, "memory://workspace")
    assert needs_this_process(
        ss.Recipe(name="t", source=ss.Csv("memory://data/t.csv")), tmp_path, None
    )
    with_function = ss.Recipe(name="t", source=plain.source, prepare=[_same])
    assert needs_this_process(with_function, tmp_path, None)
    (tmp_path / "recipe.py").write_text(
        "import snapshard as ss\n\n"
        "def same(records):\n    return records\n\n"
        'recipe = ss.Recipe(name="t", source=ss.Csv("t.csv"), prepare=[same])\n'
    )
    assert not needs_this_process(load_recipe_file(str(tmp_path / "recipe.py")), tmp_path, None)
