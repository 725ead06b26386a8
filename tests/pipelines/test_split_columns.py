"""A column that says the split divides a table; one that only looks so does not."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import suggest_recipe
from snapshard.pipelines.survey import texts

BY_SPLIT = ss.Splits.by_column("split")


def write_csv(frame: pd.DataFrame, folder: Path) -> None:
    frame.to_csv(folder / "t.csv", index=False)


def write_parquet(frame: pd.DataFrame, folder: Path) -> None:
    frame.to_parquet(folder / "t.parquet", index=False)


def write_json(frame: pd.DataFrame, folder: Path) -> None:
    frame.to_json(folder / "t.jsonl", orient="records", lines=True)


def suggested(folder: Path, **columns: list[object]) -> ss.Splits:
    write_csv(pd.DataFrame({"x": range(60), **columns}), folder)
    return suggest_recipe(str(folder)).splits


@pytest.mark.parametrize("write", [write_csv, write_parquet, write_json])
def test_of_each_format(write: Callable[[pd.DataFrame, Path], None], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(pd.DataFrame({"x": range(60), "split": ["train", "val", "test"] * 20}), tmp_path / "data")
    recipe = suggest_recipe(str(tmp_path / "data"))
    assert recipe.splits == BY_SPLIT
    built = ss.build(recipe, tmp_path / "out")
    sizes = {name: split.num_examples for name, split in built.manifest.splits.items()}
    assert sizes == {"train": 20, "validation": 20, "test": 20}


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("Split", ["Train", "Test"], ss.Splits.by_column("Split", train="Train", test="Test")),
        (
            "Usage",
            ["Training", "PublicTest", "PrivateTest"],
            ss.Splits.by_column(
                "Usage", train="Training", validation="PublicTest", test="PrivateTest"
            ),
        ),
        ("set", ["tr", "ts"], ss.Splits.by_column("set", train="tr", test="ts")),
        ("is_train", [1, 0], ss.Splits.by_column("is_train", train="1", test="0")),
        (
            "is_valid",
            [False, True],
            ss.Splits.by_column("is_valid", train="false", validation="true"),
        ),
    ],
)
def test_names_and_values(
    name: str, values: list[object], expected: ss.Splits, tmp_path: Path
) -> None:
    assert suggested(tmp_path, **{name: (values * 60)[:60]}) == expected
    built = ss.build(suggest_recipe(str(tmp_path / "t.csv")), tmp_path / "out")
    assert sum(split.num_examples for split in built.manifest.splits.values()) == 60


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("split", ["train", "holdback"]),
        ("split", ["train"]),
        ("split", ["val", "test"]),
        ("set", ["Alpha", "Beta"]),
        ("usage", [12, 30]),
        ("mode", ["train", "bus"]),
        ("is_train", [0, 1, 2]),
    ],
)
def test_other_columns(name: str, values: list[object], tmp_path: Path) -> None:
    assert suggested(tmp_path, **{name: (values * 60)[:60]}).rule is None


def test_sorted_rows(tmp_path: Path) -> None:
    rows = "".join(f"{'train' if k < 50_000 else 'test'},{k}\n" for k in range(60_000))
    (tmp_path / "t.csv").write_text(f"split,x\n{rows}")
    assert suggest_recipe(str(tmp_path / "t.csv")).splits == BY_SPLIT


def test_rows_beyond_those_that_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build refuses names that are no splits; taking the usual splits would mix them."""
    monkeypatch.setattr(texts, "MAX_BYTES", 1000)
    for name, split in (("a", "train"), ("b", "test")):
        rows = "".join(f"{split},{k}\n" for k in range(2000))
        (tmp_path / f"{name}.csv").write_text(f"split,x\n{rows}")
    assert suggest_recipe(str(tmp_path)).splits == BY_SPLIT
