"""Output roots and workspaces that cannot be: refused before anything is read or written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import snapshard as ss
from snapshard.pipelines.workspace import check_place
from snapshard.schemas.errors import PlaceError, RecipeError


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
