"""Columns that are pointed out: ids, counts of the rows, and the label again."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion
from snapshard.pipelines.survey.inference_cache import infer_features
from snapshard.transforms.storage.opened_source import open_source

ROWS = range(60)
SPECIES = ["setosa", "virginica", "versicolor"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(columns: dict[str, list[Any]]) -> list[Any]:
    """A table in three formats."""
    pq.write_table(pa.table(columns), "t.parquet")
    rows = list(zip(*columns.values(), strict=True))
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in rows]
    Path("t.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    objects = (json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
    Path("t.jsonl").write_text("".join(objects))
    return [ss.Csv("t.csv"), ss.Parquet("t.parquet"), ss.JsonLines("t.jsonl")]


def remarks(source: Any) -> list[str]:
    opened = open_source(source.url, ".")
    return list(infer_features(source, source.select(opened.list()).files, opened).remarks)


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("PassengerId", [7 * i for i in ROWS], "'PassengerId' is an id: no value occurs twice"),
        ("user_id", [f"u{i}" for i in ROWS], "'user_id' is an id"),
        ("id", list(ROWS), "'id' is an id"),
        ("uuid", [f"{i:032x}" for i in ROWS], "'uuid' is an id"),
        ("Unnamed: 0", list(ROWS), "'Unnamed: 0' counts the 60 rows looked at, as pandas' index"),
        ("index", [i + 1 for i in ROWS], "'index' counts the 60 rows"),
        ("id", [i // 2 for i in ROWS], None),  # a group
        ("index", [i * i for i in ROWS], None),  # a measurement
        ("x", list(ROWS), None),
        ("humid", [i / 7 for i in ROWS], None),
        ("id", [None, *ROWS[1:]], None),
    ],
)
def test_ids_and_counts(name: str, values: list[Any], found: str | None) -> None:
    for source in write({name: values, "x2": [i % 7 for i in ROWS]}):
        lines = remarks(source)
        assert len(lines) == (found is not None)
        if found is not None:
            assert lines[0].startswith(found)
            assert lines[0].endswith(f"ss.records.drop({name!r}) in prepare.")


@pytest.mark.parametrize(
    ("label", "other", "told"),
    [
        ([SPECIES[i % 3] for i in ROWS], [i % 3 for i in ROWS], True),
        ([i % 2 for i in ROWS], [["no", "yes"][i % 2] for i in ROWS], True),
        ([i / 7 for i in ROWS], [i / 7 for i in ROWS], True),
        ([SPECIES[i % 3] for i in ROWS], [(i + (i == 5)) % 3 for i in ROWS], False),
        ([i / 7 for i in ROWS], [i / 8 for i in ROWS], False),
        ([i % 2 for i in ROWS], [i % 4 for i in ROWS], False),
        ([SPECIES[0] for _ in ROWS], [1 for _ in ROWS], False),
    ],
)
def test_the_label_again(label: list[Any], other: list[Any], told: bool) -> None:
    for source in write({"target": label, "copy": other}):
        assert remarks(source) == []
        lines = remarks(type(source)(source.url, label="target"))
        assert len(lines) == told
        if told:
            assert lines[0].startswith("'copy' tells 'target', the label: their values in the 60 ")


def test_few_rows_show_nothing() -> None:
    for source in write({"id": list(range(19)), "x": [1] * 19}):
        assert remarks(source) == []


def test_what_is_pointed_out_stands_in_a_recipe_and_is_not_dropped() -> None:
    write(
        {
            "id": [3 * i for i in ROWS],
            "label": [i % 2 for i in ROWS],
            "y": [f"c{i % 2}" for i in ROWS],
        }
    )
    text = describe_suggestion("t.csv")
    made = " ".join(text.replace("#", " ").split())
    assert "'id' is an id: no value occurs twice in the 60 rows looked at." in made
    assert "'y' tells 'label', the label" in made
    assert '"id": ss.Scalar("int64")' in text
    assert '"y": ss.Scalar("string")' in text
