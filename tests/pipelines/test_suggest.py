"""What raw data suggests, and that the text of it is a recipe file that makes the same."""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.inspect.suggest import (
    describe_suggestion,
    recipe_text,
    suggest,
    suggest_recipe,
)
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.pipelines.survey.survey import take_survey
from snapshard.schemas.errors import DataError, RecipeError
from snapshard.schemas.naming import Workspace
from snapshard.schemas.progress import Silent

TABLE = "id,name,weight,seen\n1,ann,2.5,true\n2,bob,,false\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[..., str]:
    """Writes images of these sizes in turn, into class folders."""

    def write(
        sizes: Sequence[tuple[int, int]], classes: Sequence[str] = ("cat", "dog"), num: int = 6
    ) -> str:
        for name in classes:
            for index in range(num):
                height, width = sizes[index % len(sizes)]
                path = tmp_path / "pets" / name / f"{index}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                PillowImage.fromarray(np.zeros((height, width, 3), np.uint8)).save(path)
        return "pets"

    return write


def _fingerprint(recipe: ss.Recipe, tmp_path: Path) -> Any:
    workspace = Workspace(str(tmp_path / "workspace"))
    survey = take_survey(recipe, workspace=workspace, progress=Silent(), write=False)
    return survey.fingerprint, survey.stage_digests


def _suggested(source: str, like: ss.Recipe) -> ss.Recipe:
    """The suggestion, with the splits of the text: a handful of records gets one split there."""
    recipe = suggest_recipe(source)
    object.__setattr__(recipe, "splits", like.splits)
    return recipe


def _written(source: str, tmp_path: Path) -> ss.Recipe:
    """The recipe that is read from the suggestion's text, saved as a file beside the source."""
    (tmp_path / "made.py").write_text(describe_suggestion(source))
    return load_recipe_file(tmp_path / "made.py")


def test_images_of_one_size_are_copied(pictures: Any) -> None:
    recipe = suggest_recipe(pictures([(4, 6)]))
    assert (recipe.name, recipe.source, recipe.prepare) == ("pets", ss.ImageFolder("pets"), ())


def test_empty_folders_are_named(pictures: Any, tmp_path: Path) -> None:
    pictures([(8, 6)])
    assert suggest("pets")[1] == ("A record is an image, labelled by its folder, <class>/.",)
    for name in ("rose", "fox/more", ".cache", *(f"a{number}" for number in range(3))):
        (tmp_path / "pets" / name).mkdir(parents=True)
    (tmp_path / "pets" / "rose" / ".DS_Store").write_bytes(b"")
    note = "Empty folders, which are no classes: 'a0', 'a1', 'a2', 'fox/more' … (5)."
    assert suggest("pets")[1][-1] == note
    assert f"# {note}" in describe_suggestion("pets")
    (tmp_path / "pets" / "a1" / "1.txt").write_text("")
    assert (
        suggest("pets")[1][-1]
        == "Empty folders, which are no classes: 'a0', 'a2', 'fox/more', 'rose'."
    )


def test_files_outside_of_the_images_are_named(pictures: Any, tmp_path: Path) -> None:
    pictures([(8, 6)])
    (tmp_path / "data").mkdir()
    (tmp_path / "pets").rename(tmp_path / "data" / "images")
    for name in ("README.md", ".hidden.json", "empty.json"):
        (tmp_path / "data" / name).write_text("" if name == "empty.json" else "{}")
    assert len(suggest("data")[1]) == 1
    for name in ("boxes/1.mat", "boxes/2.mat"):
        (tmp_path / "data" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_text("boxes")
    recipe, notes = suggest("data")
    assert recipe.source.url == "data/images"
    assert notes[1].startswith("Not read: 2 files outside of data/images (first: 'boxes/1.mat').")
    for kind in ("zip", "tar"):
        shutil.make_archive("packed", kind, "data")
        place = f"{kind}://images::packed.{kind}"
        notes = suggest(f"packed.{kind}")[1]
        assert notes[-1].startswith(f"Not read: 2 files outside of {place} (first: 'boxes/1.mat').")


def test_images_of_several_sizes_take_the_commonest(pictures: Any) -> None:
    recipe = suggest_recipe(pictures([(4, 6), (4, 6), (8, 8)]))
    decode, resize = recipe.prepare
    assert decode == ss.images.decode("image")
    assert resize == ss.images.resize("image", (4, 6))


def test_images_without_a_common_size_keep_their_ratio(pictures: Any) -> None:
    recipe = suggest_recipe(pictures([(4, 6), (5, 5), (8, 8)]))
    assert recipe.prepare[1] == ss.images.resize("image", (256, 256), keep_ratio=True)


def test_images_beside_a_table_of_theirs(pictures: Any, tmp_path: Path) -> None:
    source = pictures([(4, 6)])
    (tmp_path / source / "labels.csv").write_text(TABLE)
    assert suggest_recipe(source).source == ss.ImageFolder(source)


def test_images_are_known_by_their_content(pictures: Any, tmp_path: Path) -> None:
    source = pictures([(4, 6)])
    for path in (tmp_path / source).rglob("*.png"):
        path.rename(path.with_suffix(""))
    assert suggest_recipe(source).source == ss.ImageFolder(source)


@pytest.mark.parametrize(
    ("name", "text", "source"),
    [
        ("t.csv", TABLE, ss.Csv("t.csv")),
        ("T.CSV", TABLE, ss.Csv("T.CSV")),
        ("t.csv", TABLE.replace(",", ";"), ss.Csv("t.csv", delimiter=";")),
        ("t.csv", '"a,b";c\n1;2\n', ss.Csv("t.csv", delimiter=";")),
        ("t.csv", "\ufeff\na|b\n1|2\n", ss.Csv("t.csv", delimiter="|")),
        ("t.csv", "only\n1\n", ss.Csv("t.csv")),
        ("t.tsv", TABLE.replace(",", "\t"), ss.Csv("t.tsv")),
        ("t.tsv", TABLE, ss.Csv("t.tsv", delimiter=",")),
        ("t.csv", "5.1,a,2\n4.9,b,3\n", ss.Csv("t.csv", header=False)),
        ("folder/t.csv", TABLE, ss.Csv("folder")),
        ("folder/a/b/t.csv", TABLE, ss.Csv("folder")),
        (
            "folder/t.tsv",
            TABLE.replace(",", "\t"),
            ss.Csv("folder"),
        ),
    ],
)
def test_tables(tmp_path: Path, name: str, text: str, source: ss.Csv) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    given = name.split("/")[0]
    recipe = suggest_recipe(given)
    assert recipe.source == source
    # What is suggested can be read.
    read = _written(given, tmp_path)
    assert set(_fingerprint(_suggested(given, read), tmp_path)) == set(_fingerprint(read, tmp_path))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("pets", "pets"),
        ("pets/", "pets"),
        ("./pets", "pets"),
        ("pets/*", "pets"),
        ("pets/**/*.png", "pets"),
        ("../{here}/pets", "pets"),
    ],
)
def test_name_comes_from_the_place(pictures: Any, tmp_path: Path, given: str, name: str) -> None:
    pictures([(4, 6)])
    shutil.copytree(tmp_path / "pets" / "cat", tmp_path / "pets" / "cat" / "below")
    recipe = suggest_recipe(given.format(here=tmp_path.name))
    assert recipe.name == name


def test_name_is_one_that_a_folder_can_have(tmp_path: Path) -> None:
    (tmp_path / "my täble (1).csv").write_text(TABLE)
    assert suggest_recipe("my täble (1).csv").name == "my_t_ble_1"
    (tmp_path / "(1).csv").write_text(TABLE)
    assert suggest_recipe("(1).csv").name == "1"


def test_what_is_no_known_data(pictures: Any, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="nowhere does not exist"):
        suggest_recipe("nowhere")
    with pytest.raises(RecipeError, match=r"made\.py is already a recipe\. Build it: snapshard bu"):
        suggest_recipe("made.py")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no files"):
        suggest_recipe("empty")
    (tmp_path / "others" / "a").mkdir(parents=True)
    (tmp_path / "others" / "a" / "x.odt").write_bytes(b"words\0\x01")
    with pytest.raises(DataError, match=r"neither tables .* nor class folders .*'a/x\.odt'"):
        suggest_recipe("others")
    snapshot = tmp_path / "out" / "toys" / "0123456789abcdef"
    snapshot.mkdir(parents=True)
    for name in ("manifest.json", "schema.pbtxt", "../latest.json"):
        (snapshot / name).write_text("{}")
    with pytest.raises(RecipeError, match=r"is a snapshot, .* shards: .*/0123.*/\*\.tfrecord"):
        suggest_recipe(str(snapshot))
    with pytest.raises(RecipeError, match=r"is a folder of snapshots, .*/toys/FINGERPRINT/\*\.tf"):
        suggest_recipe("out/toys")


def test_a_database_asks_for_a_query(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        database.commit()
    with pytest.raises(DataError, match=r"an SQLite database \('shop\.db'\).*source=ss\.Sql\("):
        suggest_recipe(str(tmp_path / "shop.db"))


@pytest.mark.parametrize("sizes", [[(4, 6)], [(4, 6), (4, 6), (8, 8)], [(4, 6), (5, 5), (8, 8)]])
def test_text_of_images_makes_the_same_snapshot(pictures: Any, tmp_path: Path, sizes: Any) -> None:
    source = pictures(sizes, classes=("cat", "d\"o'g", "emu\nbird", "ünï", "[red]"))
    read = _written(source, tmp_path)
    assert read.features is not None
    assert read.features["label"] == ss.ClassLabel(("[red]", "cat", "d\"o'g", "emu\nbird", "ünï"))
    assert _fingerprint(read, tmp_path) == _fingerprint(_suggested(source, read), tmp_path)


def test_text_of_a_table_makes_the_same_snapshot(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    read = _written("t.csv", tmp_path)
    assert read.features == {
        "id": ss.Scalar("int64"),
        "name": ss.Scalar("string"),
        "weight": ss.Scalar("float32", optional=True),
        "seen": ss.Scalar("bool"),
    }
    assert _fingerprint(read, tmp_path) == _fingerprint(_suggested("t.csv", read), tmp_path)


def test_text_counts_from_where_it_is_saved(pictures: Any, tmp_path: Path) -> None:
    text = describe_suggestion(pictures([(4, 6)]))
    (tmp_path / "elsewhere").mkdir()
    os.rename(tmp_path / "pets", tmp_path / "elsewhere" / "pets")
    (tmp_path / "elsewhere" / "made.py").write_text(text)
    read = load_recipe_file("elsewhere/made.py")
    assert _fingerprint(read, tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30),
        min_size=1,
        max_size=40,
        unique=True,
    ),
    column=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20),
)
def test_any_names_survive_the_text(tmp_path: Path, names: list[str], column: str) -> None:
    recipe = ss.Recipe(name="x", source=ss.Csv("t.csv", label=column))
    features = {
        f"f{column}": ss.ClassLabel(tuple(names)),
        "image": ss.Image(height=3, storage="encoded"),
        "t": ss.Tensor("string", (None,), optional=True),
        "s": ss.Scalar("float32", optional=True, default=-1.5),
    }
    text = recipe_text(recipe, features)
    (tmp_path / "made.py").write_text(text, encoding="utf-8")
    read = load_recipe_file(tmp_path / "made.py")
    assert (read.source, read.features) == (recipe.source, features)


def test_every_type_is_declared_in_the_text(tmp_path: Path) -> None:
    features: dict[str, Any] = {
        "at": ss.Struct({"x": ss.Scalar("float64", min=0), "of": ss.Struct({"y": ss.Text()})}),
        "dotted.name": ss.Timestamp("ms", optional=True),
        "labels": ss.Sequence(ss.ClassLabel(tuple(f"class {i}" for i in range(40)))),
        "kind": ss.ClassLabel(tuple(f"class {i}" for i in range(40)), optional=True),
        "grid": ss.Tensor("bfloat16", (None, 2), finite=True),
        "sound": ss.Audio(16000, samples=9),
        "boxes": ss.BoundingBoxes("photo", labels="labels"),
        "word": ss.Scalar("string", values=('say "it\'s"', "\n"), max_length=9),
    }
    recipe = ss.Recipe(name="x", source=ss.Csv("t.csv"), features=features)
    assert recipe.features is not None
    (tmp_path / "made.py").write_text(recipe_text(recipe, recipe.features, recipe.structs))
    made = load_recipe_file(tmp_path / "made.py")
    assert made.features == recipe.features
    assert made.structs == recipe.structs == ("at", "at.of")


def _lines(source: str) -> tuple[str, list[str]]:
    with pytest.raises(DataError) as caught:
        suggest_recipe(source)
    message = str(caught.value)
    lines = [line.strip() for line in message.splitlines()[1:]]
    return message, [line.removesuffix(", splits=ss.Splits(train=1.0)") for line in lines]


def test_images_and_as_many_sounds_are_refused(pictures: Any, tmp_path: Path) -> None:
    pictures([(4, 4)])
    for name in ("cat", "dog"):
        for index in range(6):
            path = tmp_path / "pets" / "sounds" / name / f"{index}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"RIFF")
    for name in ("cat", "dog"):
        os.renames(tmp_path / "pets" / name, tmp_path / "pets" / "pictures" / name)
    message, lines = _lines("pets")
    assert "12 images (first: 'pictures/cat/0.png') and 12 sounds" in message
    assert lines == [
        'source=ss.ImageFolder("pets/pictures")',
        'source=ss.AudioFolder("pets/sounds")',
    ]
    shutil.rmtree(tmp_path / "pets" / "sounds" / "dog")
    (tmp_path / "pets" / "sounds" / "cat" / "0.wav").unlink()
    assert suggest_recipe("pets").source == ss.ImageFolder("pets/pictures")


def test_a_text_that_names_images_is_not_left_out(pictures: Any, tmp_path: Path) -> None:
    pictures([(4, 4)], classes=["all"])
    rows = "".join(f"<{index}.png>: Male, Young\n" for index in range(6))
    (tmp_path / "pets" / "attributes.txt").write_text(rows)
    message, lines = _lines("pets")
    assert "'attributes.txt' names them" in message
    assert lines == ['source=ss.ImageFolder("pets/all", label=None)']
    (tmp_path / "pets" / "attributes.txt").write_text("See 0.png.")
    assert suggest_recipe("pets").source == ss.ImageFolder("pets/all", label=None)


def test_texts_without_a_suffix_in_class_folders(tmp_path: Path) -> None:
    for split in ("news-train", "news-test"):
        for name in ("alt.atheism", "sci.space"):
            for number in range(100, 104):
                path = tmp_path / "news" / split / name / str(number)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"From: a@b.c\nSubject: {name}\n\nText {number}.\n")
    recipe = suggest_recipe("news")
    assert recipe.source == ss.TextFolder("news", split_folders=True)
    assert recipe.splits == ss.Splits.by_folder(train="news-train", test="news-test")
    path.write_bytes(b"\x00\x01\x02")
    with pytest.raises(DataError, match="neither tables"):
        suggest_recipe("news")
