"""Splits and columns in the names of tables and their folders."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshard as ss
from snapshard.pipelines.build import build
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import DataError

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
        (["y=1/train.csv", "y=2/trains.csv"], ss.Csv("d", hive=True), None),
        (["train.csv", "more.csv"], ss.Csv("d"), None),
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


@pytest.mark.parametrize("ending", ["jsonl", "txt"])
def test_other_kinds(ending: str) -> None:
    write(f"d/x_train.{ending}", f"d/x_test.{ending}", text='{"n": 1}\n{"n": 2}\n')
    kind: Any = ss.JsonLines if ending == "jsonl" else ss.TextFiles
    assert suggest_recipe("d").source == ss.Sources(
        train=kind(f"d/x_train.{ending}"), test=kind(f"d/x_test.{ending}")
    )


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
            "in several folders",
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


def test_arrays_of_splits_are_refused() -> None:
    Path("d").mkdir()
    for name in ("x_train", "x_test"):
        np.save(f"d/{name}.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"numpy.savez.*x_test=numpy.load"):
        suggest_recipe("d")
