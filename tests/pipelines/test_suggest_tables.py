"""Typed tables among raw files: found by name and content, and told in a recipe's text."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest_recipe
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.schemas.errors import DataError

TABLE = pa.table({"n": [1, 2], "s": ["a", None], "at": [{"x": [1.5]}, {"x": []}]})
LINES = b'{"n": 1, "at": {"x": [1.5]}}\n{"n": null}\n'


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    if "parquet" in name:
        pq.write_table(TABLE, name)
    elif "feather" in name:
        pa.feather.write_feather(TABLE, name)
    elif "arrow" in name:
        with pa.ipc.new_stream(name, TABLE.schema) as writer:
            writer.write_table(TABLE)
    else:
        Path(name).write_bytes(gzip.compress(LINES) if name.endswith(".gz") else LINES)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("t.parquet", ss.Parquet),
        ("t.feather", ss.Arrow),
        ("t.arrows", ss.Arrow),
        ("t.jsonl", ss.JsonLines),
        ("t.ndjson.gz", ss.JsonLines),
    ],
)
def test_a_file_and_a_folder_of_them(name: str, source: Any) -> None:
    for path in (f"d/a.{name}", f"d/sub/b.{name}", "d/README.txt", f"d/.hidden.{name}"):
        write(path)
    for url in ("d", f"d/a.{name}", f"d/**/*.{name.partition('.')[2]}"):
        recipe = suggest_recipe(url)
        assert recipe.source == source(url)
        Path("made.py").write_text(describe_suggestion(url))
        made = load_recipe_file("made.py")
        assert made.source == recipe.source
        assert made.features is not None
        assert made.features["at.x"] == ss.Sequence(
            ss.Scalar("float64"), optional=source is ss.JsonLines
        )
        assert made.structs == (() if source is ss.JsonLines else ("at",))


@pytest.mark.parametrize(
    ("name", "source"),
    [("parquet", ss.Parquet), ("feather", ss.Arrow), ("arrow", ss.Arrow), ("json", ss.JsonLines)],
)
def test_the_content_of_a_single_file_decides(name: str, source: Any) -> None:
    write(name)
    shutil.move(name, "data.bin")
    assert suggest_recipe("data.bin").source == source("data.bin")


def test_most_files_decide() -> None:
    write("d/a.parquet")
    write("d/b.jsonl")
    write("d/c.jsonl")
    assert suggest_recipe("d").source == ss.JsonLines("d")
    Path("d/x.csv").write_text("a\n1\n")
    Path("d/y.csv").write_text("a\n1\n")
    Path("d/z.csv").write_text("a\n1\n")
    assert suggest_recipe("d").source == ss.Csv("d")


RECORDS = [{"n": i, "at": {"x": i / 2}} for i in range(9)]


@pytest.mark.parametrize(
    "texts",
    [
        {"t.json": json.dumps(RECORDS)},
        {"t.json": json.dumps(RECORDS, indent=2), "u.json": json.dumps(RECORDS)},
        {f"{i}.json": json.dumps(row, indent=2) for i, row in enumerate(RECORDS)},
        {f"{i}.json": json.dumps(row) for i, row in enumerate(RECORDS)},
        {"t.json": json.dumps({"l": RECORDS}) + "\n" + json.dumps({"l": RECORDS})},
    ],
)
def test_json_of_every_form(texts: dict[str, str]) -> None:
    Path("d").mkdir()
    for name, text in texts.items():
        Path("d", name).write_text(text)
    assert suggest_recipe("d").source == ss.JsonLines("d")


@pytest.mark.parametrize(
    ("objects", "sources"),
    [
        ([{"made": 1, "data": RECORDS, "more": {"of": RECORDS}}], ["data", "more.of"]),
        ([{"page": i, "items": RECORDS, "n": RECORDS[:i]} for i in (1, 0)], [None, "items"]),
        ([{"a": 1}], []),
        ([{"x": {"0": 1, "1": 2}, "y": {"0": 3, "1": 4}}], []),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_an_object_that_may_hold_the_records(
    objects: list[Any], sources: list[str | None], indent: int | None
) -> None:
    Path("d").mkdir()
    for i, value in enumerate(objects):
        Path(f"d/{i}.json").write_text(json.dumps(value, indent=indent))
    with pytest.raises(DataError, match="JSON object") as refused:
        suggest_recipe("d")
    lines = [line.strip(" ,") for line in str(refused.value).splitlines() if "source=" in line]
    made = [eval(line.removeprefix("source="), {"ss": ss}) for line in lines]
    assert made == [ss.JsonLines("d", records=records) for records in sources]


def test_json_without_objects_is_no_table() -> None:
    Path("d").mkdir()
    Path("d/config.json").write_text("[1, 2]")
    with pytest.raises(DataError, match="neither tables"):
        suggest_recipe("d")
