"""Splits and columns in the names of tables and their folders."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow

import snapshard as ss
from snapshard.pipelines.build import build
from snapshard.pipelines.inspect.suggest import (
    describe_inferred,
    describe_suggestion,
    suggest,
    suggest_recipe,
)
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import DataError
from snapshard.transforms.storage.opened_source import open_source

ROWS = "n,label\n" + "1,a\n2,b\n" * 9
BY_FOLDER = ss.Splits.by_folder()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(*paths: str, text: str = ROWS) -> None:
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)


def parts(**urls: str) -> ss.Sources:
    return ss.Sources(**{split: ss.Csv(url) for split, url in urls.items()})


@pytest.mark.parametrize(
    ("paths", "source", "splits"),
    [
        (["train.csv", "test.csv"], parts(train="d/train.csv", test="d/test.csv"), BY_FOLDER),
        (
            ["x/train-0.csv", "x/train-1.csv", "x/dev_0.csv", "x/README.md"],
            parts(train="d/x/train-*.csv", validation="d/x/dev_0.csv"),
            BY_FOLDER,
        ),
        (
            ["a_1.0_train.csv", "a_1.0_test.csv"],
            parts(train="d/a_1.0_train.csv", test="d/a_1.0_test.csv"),
            BY_FOLDER,
        ),
        (
            ["a.train.csv", "a.test.csv"],
            parts(train="d/a.train.csv", test="d/a.test.csv"),
            BY_FOLDER,
        ),
        (
            ["KDDTrain.csv", "KDDTest.csv"],
            parts(train="d/KDDTrain.csv", test="d/KDDTest.csv"),
            BY_FOLDER,
        ),
        (
            ["titanic_train.csv", "titanic_eval.csv"],
            parts(train="d/titanic_train.csv", validation="d/titanic_eval.csv"),
            BY_FOLDER,
        ),
        (["Trn.csv", "Tst.csv"], parts(train="d/Trn.csv", test="d/Tst.csv"), BY_FOLDER),
        (["Train/1.csv", "test/a/2.csv"], ss.Csv("d"), BY_FOLDER),
        (["in/train/1.csv", "in/val/2.csv"], ss.Csv("d/in"), BY_FOLDER),
        (
            ["Split-train/1.csv", "Split-test/2.csv"],
            ss.Csv("d"),
            ss.Splits.by_folder(train="Split-train", test="Split-test"),
        ),
        (
            ["split=train/x=1/a.csv", "split=test/x=1/a.csv"],
            ss.Csv("d", hive=True),
            ss.Splits.by_column("split"),
        ),
        (["y=1/a.csv", "y=2/a.csv"], ss.Csv("d", hive=True), None),
        (["n=1/a.csv", "n=2/a.csv"], ss.Csv("d"), None),
        (["y=1/train.csv", "y=2/trains.csv"], ss.Csv("d", hive=True), None),
        (["more.csv", "rest.csv"], ss.Csv("d"), None),
    ],
)
def test_names_of_all_files_say_it(paths: list[str], source: Any, splits: Any) -> None:
    write(*(f"d/{path}" for path in paths))
    recipe = suggest_recipe("d")
    assert recipe.source == source
    assert recipe.splits == splits or (splits is None and recipe.splits.fractions)
    Path("recipes").mkdir()
    Path("recipes/made.py").write_text(describe_suggestion("d", folder="recipes", label="label"))
    made = load_recipe_file("recipes/made.py")
    assert made.source.label == "label"
    assert made.splits == splits or splits is None
    assert made.features is not None
    assert made.features["label"] == ss.ClassLabel(("a", "b"))


def test_folders_that_are_no_columns_are_said() -> None:
    write("d/run/1.csv", "d/walk/1.csv", "d/walk/2.csv")
    text = describe_suggestion("d")
    assert "# The names of the 2 folders (run, walk) are in no column." in text
    write("one/1.csv", "one/2.csv", "keys/k=1/1.csv", "keys/k=2/1.csv")
    assert "in no column" not in describe_suggestion("one") + describe_suggestion("keys")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["Fake", "True"], "Fake, True"),
        (["fold_1", "fold_2"], "fold_1, fold_2"),
        (["part-0001", "part-0002"], None),
        (["2024", "2025"], None),
    ],
)
def test_files_that_are_no_columns_are_said(names: list[str], shown: str | None) -> None:
    write(*(f"d/{name}.csv" for name in names))
    text = describe_suggestion("d")
    if shown is None:
        assert "in no column" not in text
    else:
        assert f"# The names of the 2 files ({shown}) are in no column." in text


def test_tables_with_another_suffix_whose_names_say_it() -> None:
    rows = "id\ttext\n" + "".join(f"{k}\ta text {k}\n" for k in range(9))
    write("d/news_train.txt", "d/news_test.txt", text=rows)
    recipe = suggest_recipe("d")
    parts = {split: ss.Csv(f"d/news_{split}.txt", delimiter="\t") for split in ("train", "test")}
    assert (recipe.source, recipe.splits) == (ss.Sources(**parts), ss.Splits.by_folder())
    write("d/other.txt", text=rows)
    with pytest.raises(DataError, match=r"and others that are not \('other.txt'\)"):
        suggest_recipe("d")


@pytest.mark.parametrize("begin", ["x_", "x_1.0_", "x."])
@pytest.mark.parametrize("ending", ["jsonl", "txt"])
def test_other_kinds(begin: str, ending: str) -> None:
    train, test = (f"d/{begin}{split}.{ending}" for split in ("train", "test"))
    write(train, test, text='{"n": 1}\n{"n": 2}\n')
    kind: Any = ss.JsonLines if ending == "jsonl" else ss.TextFiles
    assert suggest_recipe("d").source == ss.Sources(train=kind(train), test=kind(test))


def test_parquet_files_of_the_hugging_face_hub() -> None:
    stored = io.BytesIO()
    Pillow.new("RGB", (4, 2)).save(stored, "PNG")
    picture = {"bytes": stored.getvalue(), "path": "a.png"}
    specs = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["z", "b"]}}
    metadata = {"huggingface": json.dumps({"info": {"features": specs}})}
    table = pa.table({"image": [picture] * 12, "label": [0, 1] * 6, "n": range(12)})
    Path("d/data").mkdir(parents=True)
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        pq.write_table(table.replace_schema_metadata(metadata), f"d/data/{name}.parquet")
    recipe = suggest_recipe("d")
    assert recipe.source == ss.Sources(
        train=ss.Parquet("d/data/train-0000*-of-00002.parquet"),
        test=ss.Parquet("d/data/test-00000-of-00001.parquet"),
    )
    assert recipe.splits == BY_FOLDER
    snapshot = build(ss.Recipe(name="t", source=ss.Parquet(str(Path("d").absolute()))), "out")
    reader = snapshot.reader()
    assert sum(reader.NUM_EXAMPLES.values()) == 36
    assert reader.CLASS_NAMES is None
    assert reader.FEATURES["label"]["names"] == ["z", "b"]
    assert reader.FEATURES["image"]["kind"] == "image"


def test_the_metadata_of_the_hub_may_be_declared_otherwise() -> None:
    specs = {"label": {"_type": "ClassLabel", "names": ["z", "b"]}}
    metadata = {"huggingface": json.dumps({"info": {"features": specs}})}
    pq.write_table(pa.table({"label": [0, 1]}).replace_schema_metadata(metadata), "t.parquet")
    opened = open_source("t.parquet", ".")
    for types, feature in (
        (None, ss.ClassLabel(("z", "b"))),
        ({"label": "int32"}, ss.Scalar("int32")),
    ):
        source = ss.Parquet("t.parquet", types=types)
        assert source.infer(opened.list(), opened) == {"label": feature}


def test_a_build_of_an_archive() -> None:
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr("in/train.csv", ROWS)
        archive.writestr("in/test.csv", ROWS)
    recipe = suggest_recipe("a.zip")
    assert recipe.source == parts(
        train="zip://in/train.csv::a.zip", test="zip://in/test.csv::a.zip"
    )


def test_a_build_has_the_splits(tmp_path: Path) -> None:
    write("d/train.csv", "d/test.csv")
    write("e/y=1/a.csv", "e/y=2/a.csv", text="n,label\n" + "1,a\n" * 200)
    reader = build(suggest_recipe(str(tmp_path / "d")), "out").reader()
    assert reader.NUM_EXAMPLES == {"train": 18, "validation": 0, "test": 18}
    reader = build(suggest_recipe(str(tmp_path / "e")), "out").reader()
    assert set(reader.FEATURES) == {"n", "label", "y"}


@pytest.mark.parametrize(
    ("texts", "words", "lines"),
    [
        (
            {"train.csv": ROWS, "test.csv": "n\n1\n", "sample.csv": "n,label\n"},
            "others that are not .'sample.csv'",
            ['ss.Csv("d/train.csv")', 'train=ss.Csv("d/train.csv"), test=ss.Csv("d/test.csv")'],
        ),
        (
            {"train.csv": ROWS, "test.csv": "n\n1\n"},
            "different columns .test.csv .*lacks 'label'",
            ['ss.Csv("d/train.csv")', 'train=ss.Csv("d/train.csv"), test=ss.Csv("d/test.csv")'],
        ),
        (
            {"a/train_1.csv": ROWS, "b/train_2.csv": ROWS, "b/test.csv": ROWS},
            "no pattern of names",
            ['ss.Csv("d")'],
        ),
        ({"test.csv": ROWS, "val.csv": ROWS}, "none like train", ['ss.Csv("d")']),
        (
            {"train.csv": ROWS, "test.csv": ROWS, "extra.csv": ROWS},
            "others that are not",
            ['ss.Csv("d/train.csv")', "ss.Sources(", 'ss.Csv("d")'],
        ),
    ],
)
def test_unclear_names_are_refused(texts: dict[str, str], words: str, lines: list[str]) -> None:
    for path, text in texts.items():
        write(f"d/{path}", text=text)
    with pytest.raises(DataError, match=words) as refused:
        suggest_recipe("d")
    found = [line.strip() for line in str(refused.value).splitlines() if "source=" in line]
    assert len(found) == len(lines)
    for line, expected in zip(found, lines, strict=True):
        assert line.startswith("source=")
        assert expected in line
        assert eval(f"ss.Recipe(name='t', {line})", {"ss": ss})


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["y=1/a.csv", "b.csv"], "not with the same keys for all files"),
        (["y=1/a.csv", "y=1/z=2/b.csv"], "not with the same keys for all files"),
        (["y=1/n=2/a.csv", "y=1/n=3/a.csv"], "of which n is a column"),
    ],
)
def test_keys_that_not_all_files_have_are_refused(paths: list[str], words: str) -> None:
    write(*(f"d/{path}" for path in paths))
    with pytest.raises(DataError, match=words) as refused:
        suggest_recipe("d")
    assert '\n    source=ss.Csv("d")' in str(refused.value)


def write_competition(**texts: str) -> None:
    usual = {
        "train": "id,age,label\n" + "".join(f"{i},{i % 9},{'ab'[i % 2]}\n" for i in range(40)),
        "test": "id,age\n" + "".join(f"{i},{i % 9}\n" for i in range(40, 60)),
        "sample_submission": "id,label\n" + "".join(f"{i},a\n" for i in range(40, 60)),
    }
    Path("d").mkdir()
    for name, text in (usual | texts).items():
        Path(f"d/{name}.csv").write_text(text)


@pytest.mark.parametrize("suffix", ["", "er"])
def test_of_a_competition_the_training_data_is_read(suffix: str) -> None:
    write_competition()
    Path("d/sample_submission.csv").rename(f"d/gender_submission{suffix}.csv")
    recipe, notes = suggest("d")
    assert recipe.source == ss.Csv("d/train.csv", label="label")
    assert recipe.splits.fractions
    (note,) = notes
    assert note == (
        "Not read: 'test.csv', which lacks the label ('label'), and "
        f"'gender_submission{suffix}.csv', the form of its answers ('id' and the label)."
    )
    text = describe_suggestion("d")
    assert "# Not read: 'test.csv', which lacks the label" in text
    assert "# Not read: 'test.csv', which lacks the label" in describe_inferred(recipe, notes, "d")
    Path("made.py").write_text(text)
    assert sum(build(load_recipe_file("made.py"), "out").reader().NUM_EXAMPLES.values()) == 40


def test_a_competition_with_several_labels_has_none_in_its_recipe() -> None:
    rows = "".join(f"{i},{i % 9},a,1.5\n" for i in range(40))
    write_competition(
        train="id,age,label,other\n" + rows, sample_submission="id,label,other\n1,a,2\n"
    )
    recipe, (note,) = suggest("d")
    assert recipe.source == ss.Csv("d/train.csv")
    assert "lacks the label ('label', 'other')" in note


@pytest.mark.parametrize(
    "texts",
    [
        {"sample_submission": "id,target\n1,a\n"},
        {"sample_submission": "id,age,label\n1,2,a\n"},
        {"sample_submission": "label\na\n"},
        {"test": "id,age,label\n1,2,a\n"},
        {"test": "id,age,other\n1,2,a\n"},
        {"other": "id,label\n1,a\n"},
        {"test_labels": "id,label\n1,a\n"},
    ],
    ids=str,
)
def test_other_folders_with_a_submission_are_refused(texts: dict[str, str]) -> None:
    write_competition(**texts)
    with pytest.raises(DataError, match=r"files that are named like splits") as refused:
        suggest_recipe("d")
    assert '  source=ss.Csv("d/train.csv")' in str(refused.value)


@pytest.mark.parametrize("names", ["{}_{}", "{1}-{0}"])
def test_arrays_of_splits(names: str) -> None:
    Path("d").mkdir()
    for split, num in (("train", 8), ("test", 4)):
        np.save(f"d/{names.format('x', split)}.npy", np.zeros((num, 3)))
        np.save(f"d/{names.format('y', split)}.npy", np.arange(num) % 2)

    def part(split: str) -> ss.Numpy:
        beside = {"y": f"d/{names.format('y', split)}.npy"}
        return ss.Numpy(f"d/{names.format('x', split)}.npy", name="x", beside=beside, label="y")

    recipe = suggest_recipe("d")
    assert recipe.source == ss.Sources(train=part("train"), test=part("test"))
    Path("recipes").mkdir()
    Path("recipes/made.py").write_text(describe_suggestion("d", folder="recipes"))
    made = load_recipe_file("recipes/made.py")
    assert build(made, "out").reader().NUM_EXAMPLES == {"train": 8, "validation": 0, "test": 4}


def test_arrays_of_splits_that_are_incomplete_are_refused() -> None:
    Path("d").mkdir()
    for name in ("x_train", "y_train", "x_test"):
        np.save(f"d/{name}.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"x_test.npy .*lacks 'y'"):
        suggest_recipe("d")


@pytest.mark.parametrize("damaged", [b"", b"\x93NUMPY\x01\x00v\x00{'descr': (<f4'", b"text"])
def test_an_array_that_cannot_be_read_beside_others(damaged: bytes) -> None:
    Path("d").mkdir()
    np.save("d/x.npy", np.zeros((3, 2)))
    Path("d/y.npy").write_bytes(damaged)
    with pytest.raises(DataError, match=r"y\.npy cannot be read"):
        suggest_recipe("d")
