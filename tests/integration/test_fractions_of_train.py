"""A fixed test set, and splits that take a fraction of train: by folder, column and source."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.progress import Silent

from .documented import run_examples
from .sources.built import build

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "splits.md"


def write_table(path: Path, part: str, num: int, *, first: int = 0) -> None:
    """Rows of two classes and of groups of four."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = range(first, first + num)
    lines = [f"{part},{n},{'cat' if n % 2 else 'dog'},{n // 4}" for n in numbers]
    path.write_text("\n".join(["part,n,label,group", *lines]) + "\n")


def contents(lab: Any, snapshot: ss.Snapshot) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in snapshot.manifest.splits}
    for _, split, values in lab.read_back(snapshot).rows():
        found[split].append(values)
    return found


def write_parts(folder: Path, where: str) -> Any:
    """80 rows of train and 20 of test, in two folders, files or sources."""
    write_table(folder / "data" / "train" / "t.csv", "train", 80)
    write_table(folder / "data" / "test" / "t.csv", "test", 20, first=80)
    if where == "source":
        return ss.Sources(
            train=ss.Csv(str(folder / "data/train/t.csv"), label="label"),
            test=ss.Csv(str(folder / "data/test/t.csv"), label="label"),
        )
    return ss.Csv(str(folder / "data"), label="label")


def splits_of(where: str, **options: Any) -> ss.Splits:
    if where == "column":
        return ss.Splits.by_column("part", validation=0.1, **options)
    return ss.Splits.by_folder(train="train", validation=0.1, test="test", **options)


@pytest.mark.parametrize("where", ["folder", "column", "source"])
def test_a_stratified_part_of_train(lab: Any, tmp_path: Path, where: str) -> None:
    source = write_parts(tmp_path, where)
    snapshot = build(tmp_path, source, splits=splits_of(where, stratify_by="label"))
    parts = contents(lab, snapshot)
    assert list(parts) == ["train", "validation", "test"]
    classes = {name: Counter(row["label"] for row in rows) for name, rows in parts.items()}
    assert classes == {
        "train": {0: 36, 1: 36},
        "validation": {0: 4, 1: 4},
        "test": {0: 10, 1: 10},
    }
    assert sorted(row["n"] for row in parts["test"]) == list(range(80, 100))


@pytest.mark.parametrize("where", ["folder", "column"])
@pytest.mark.parametrize("stratify_by", [None, "label"])
def test_groups_of_train_stay_together(
    lab: Any, tmp_path: Path, where: str, stratify_by: str | None
) -> None:
    source = write_parts(tmp_path, where)
    splits = splits_of(where, group_by="group", stratify_by=stratify_by)
    snapshot = build(tmp_path, source, splits=splits)
    counts = {name: split.num_examples for name, split in snapshot.manifest.splits.items()}
    planned = forecast(ss.Recipe(name="x", source=source, splits=splits), progress=Silent())
    assert {split.name: split.num_examples for split in planned.splits} == counts
    if stratify_by is not None:
        assert counts == {"train": 72, "validation": 8, "test": 20}
    parts = contents(lab, snapshot)
    groups = {name: {row["group"] for row in rows} for name, rows in parts.items()}
    assert not groups["train"] & groups["validation"]
    assert len(parts["validation"]) == 4 * len(groups["validation"]) > 0
    assert sorted(row["n"] for row in parts["test"]) == list(range(80, 100))


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"p{n // 4},{n},{'healthy' if n // 4 % 6 else 'ill'}" for n in range(240)]
    (tmp_path / "scans.csv").write_text("\n".join(["patient,scan,found", *rows]) + "\n")
    assert run_examples(PAGE, tmp_path) == 3


class Warned(Silent):
    """Collects warnings."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)


def test_a_class_in_fewer_groups_than_splits_is_named(tmp_path: Path) -> None:
    rows = [f"g{n // 2},{n},{'rare' if n in (8, 40) else 'usual'}" for n in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["group,n,label", *rows]) + "\n")
    splits = ss.Splits(train=0.5, validation=0.25, test=0.25, group_by="group", stratify_by="label")
    recipe = ss.Recipe(name="x", source=ss.Csv(str(tmp_path / "t.csv")), splits=splits)
    warned = Warned()
    built = ss.build(recipe, tmp_path / "out", progress=warned).manifest.splits
    counts = {name: split.num_examples for name, split in built.items()}
    assert counts == {"train": 40, "validation": 20, "test": 20}
    expected = r"groups of 'group' stay whole.* 'rare' \(2 groups\) is not in (validation|test)$"
    (message,) = (text for text in warned.messages if re.search(expected, text))
    planned = forecast(recipe, progress=Silent())
    assert message in planned.warnings
    assert {split.name: split.num_examples for split in planned.splits} == counts


def test_a_part_of_train_by_its_keys(lab: Any, tmp_path: Path) -> None:
    splits = ss.Splits.by_column("part", train="train", test="test", validation=0.2, dev=0.1)
    before = contents(lab, build(tmp_path, write_parts(tmp_path, "column"), splits=splits))
    num = {name: len(rows) for name, rows in before.items()}
    assert list(num) == ["train", "test", "validation", "dev"]
    assert num["train"] + num["validation"] + num["dev"] == 80
    assert abs(num["validation"] - 16) < 9
    assert abs(num["dev"] - 8) < 7
    # More data moves no record to another split.
    write_table(tmp_path / "data" / "more.csv", "train", 60, first=100)
    after = contents(lab, build(tmp_path, ss.Csv(str(tmp_path / "data")), splits=splits))
    for name, rows in before.items():
        assert {row["n"] for row in rows} == {row["n"] for row in after[name] if row["n"] < 100}


def test_an_empty_part_of_train_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "data" / "t.csv", "train", 4)
    splits = ss.Splits.by_column("part", validation=0.01, stratify_by="label")
    with pytest.raises(RecipeError, match=r"'validation' \(0\.01\) would be empty"):
        build(tmp_path, ss.Csv(str(tmp_path / "data")), splits=splits)


def test_windows_do_not_take_a_part_of_train_by_keys(tmp_path: Path) -> None:
    write_table(tmp_path / "data" / "t.csv", "train", 40)
    step = ss.series.windows("n", size=4, time="n", group="part")
    with pytest.raises(RecipeError, match="windows overlap"):
        build(
            tmp_path,
            ss.Csv(str(tmp_path / "data")),
            prepare=[step],
            splits=ss.Splits.by_column("part", validation=0.1),
        )
