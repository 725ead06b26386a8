"""Pointers of Git LFS are named, and refused, wherever they are in place of files."""

from pathlib import Path

import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.build import build
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import DataError
from snapshard.transforms.storage.opened_source import open_source

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
REFUSED = "Git LFS pointer.*: git lfs pull"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(*paths: str, content: bytes = POINTER) -> None:
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)


@pytest.mark.parametrize(
    "paths",
    [
        ["d/t.csv"],
        ["d/t.parquet", "d/README.md"],
        ["d/t.txt"],
        ["d/model.bin"],
        [f"d/{c}/{i}.jpg" for c in "ab" for i in range(3)],
        [f"d/{c}/{i}.wav" for c in "ab" for i in range(3)],
    ],
)
def test_no_recipe_is_suggested(paths: list[str]) -> None:
    write(*paths)
    for suggest in (suggest_recipe, describe_suggestion):
        with pytest.raises(DataError, match=REFUSED):
            suggest("d")
    if len(paths) == 1:
        with pytest.raises(DataError, match=REFUSED):
            suggest_recipe(paths[0])


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "zip://::a.zip"])
def test_an_archive(name: str) -> None:
    write(name.rpartition(":")[2])
    with pytest.raises(DataError, match=REFUSED):
        open_source(name, ".")


@pytest.mark.parametrize(
    "source",
    [
        'ss.Csv("t")',
        'ss.JsonLines("t/b.jsonl")',
        'ss.ImageFolder("i")',
        'ss.ImageFolder("j", table="t/a.csv")',
        'ss.TextFiles("t")',
        'ss.Sql("t/c.db", "SELECT 1", key="id")',
    ],
)
def test_a_build_of_a_recipe(source: str) -> None:
    write("t/0.csv", "t/1.txt", content=b"x\n" + b"1\n" * 400)
    write("t/a.csv", "t/b.jsonl", "t/2.txt", "t/c.db", "i/a/3.jpg")
    for path in ("i/a/0.jpg", "i/b/1.jpg", "j/0.jpg", "j/1.jpg"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Pillow.new("RGB", (8, 8)).save(path)
    text = (
        f"import snapshard as ss\nrecipe = ss.Recipe(name='t', source={source}, max_rejects=0.9)\n"
    )
    write("recipe.py", content=text.encode())
    with pytest.raises(DataError, match=REFUSED):
        build(load_recipe_file("recipe.py"), "out")


def test_a_text_about_pointers_is_none() -> None:
    write("d/t.csv", content=b"n,s\n" + b"1,version https://git-lfs.github.com/spec/v1\n" * 3)
    assert isinstance(suggest_recipe("d").source, ss.Csv)
