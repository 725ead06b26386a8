"""Classes that are written as integers or bools, also among others, are not taken for indexes.

Which names there are follows from all files; what a value means must not depend on its file's type.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapshard as ss


def _parquet(folder: Path, *parts: list[Any]) -> Any:
    for number, values in enumerate(parts):
        pq.write_table(pa.table({"y": values}), folder / f"{number}.parquet")
    types = {"y": "string"} if len({type(part[0]) for part in parts}) > 1 else None
    return ss.Parquet(str(folder), label="y", types=types)


def _jsonl(folder: Path, *parts: list[Any]) -> Any:
    for number, values in enumerate(parts):
        lines = [json.dumps({"y": value}) for value in values]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    return ss.JsonLines(str(folder), label="y")


def _sources(folder: Path, *parts: list[Any]) -> Any:
    tables = {f"s{n}": ss.Table({"y": values}, label="y") for n, values in enumerate(parts)}
    return ss.Sources(**tables)


def _read(file: Any) -> Iterator[dict[str, Any]]:
    for value in json.loads(file.read()):
        yield {"y": value}


def _files(folder: Path, *parts: list[Any]) -> Any:
    for number, values in enumerate(parts):
        (folder / f"{number}.json").write_text(json.dumps(values))
    return ss.Files(str(folder), read=_read, label="y", types={"y": "string"})


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (_parquet, [[1, 2, 1], ["k", "1", "2"]]),
        (_parquet, [["k", "1", "2"], [1, 2, 1]]),
        (_parquet, [[True, False], ["a", "z"]]),
        (_jsonl, [[1, 2, 1], ["k", "1"]]),
        (_jsonl, [[1, "a", 2, 2.5, True, "k"]]),
        (_jsonl, [["a", 1, 2]]),
        (_jsonl, [[True, False], ["maybe", "no"]]),
        (_sources, [[True, False], ["maybe", "no"]]),
        (_files, [[*range(12)]]),
        (_files, [[3, "k", True, 2.5]]),
    ],
    ids=lambda value: value.__name__[1:] if callable(value) else None,
)
def test_each_value_is_its_class(
    tmp_path: Path, make: Callable[..., Any], parts: list[list[Any]]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    source = make(folder, *parts)
    recipe = ss.Recipe(name="c", source=source, splits=ss.Splits(train=1.0))
    found = ss.build(recipe, str(tmp_path / "out")).to_pandas("train")["y"]
    written = [json.dumps(v) if not isinstance(v, str) else v for part in parts for v in part]
    assert sorted(found) == sorted(written)
    assert found.cat.categories.tolist() == sorted({*written})


def test_bools_are_classes_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[true, false, true]")
    source = ss.Files(str(tmp_path / "a.json"), read=_read, label="y")
    recipe = ss.Recipe(name="c", source=source, splits=ss.Splits(train=1.0))
    found = ss.build(recipe, str(tmp_path / "out")).to_pandas("train")["y"]
    assert sorted(found) == ["false", "true", "true"]


def test_integers_of_a_declared_class_are_what_they_stand_for(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2, 1]")
    label = ss.ClassLabel({1: "a", 2: "b"})
    source = ss.Files(str(tmp_path / "a.json"), read=_read, label="y", types={"y": label})
    recipe = ss.Recipe(name="c", source=source, splits=ss.Splits(train=1.0))
    found = ss.build(recipe, str(tmp_path / "out")).to_pandas("train")["y"]
    assert sorted(found) == ["a", "a", "b"]


def test_values_of_several_types_are_shown_by_type(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[1, 2, "k"]')
    recipe = ss.Recipe(name="c", source=ss.Files(str(tmp_path / "a.json"), read=_read))
    with pytest.raises(ss.SnapshardError, match=r"'y' is 1 \(int\), 'k' \(str\); expected values"):
        ss.build(recipe, str(tmp_path / "out"))
