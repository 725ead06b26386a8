"""Declarations that data does not fit by itself: read, or refused with what reads them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion
from snapshard.schemas.blocks import Block, FileRange, RawBatch
from snapshard.schemas.errors import RecipeError, SchemaError
from snapshard.transforms.storage.opened_source import open_source


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(source: Any, features: Mapping[str, Any] | None = None) -> RawBatch:
    """A file as one batch, of inferred features if none are given."""
    opened = open_source(source.url, ".")
    (file,) = source.select(opened.list()).files
    features = features or dict(source.infer([file], opened))
    part = FileRange(path=file.path, sha256="", start=0, stop=file.num_bytes)
    (batch,) = source.read(Block((part,)), features=features, opened=opened, ordered=[0])
    assert isinstance(batch, RawBatch)
    return batch


def write(values: list[Any]) -> list[Any]:
    """The same column in files of three formats."""
    pq.write_table(pa.table({"y": values}), "t.parquet")
    Path("t.csv").write_text("y\n" + "".join(f"{value}\n" for value in values))
    Path("t.jsonl").write_text("".join(f'{{"y": {json.dumps(value)}}}\n' for value in values))
    return [ss.Parquet, ss.Csv, ss.JsonLines]


@pytest.mark.parametrize("label", [("3", "7"), {3: "3", 7: "7"}, {3: "three", 7: "seven"}], ids=str)
def test_integers_are_classes_by_their_text_or_as_mapped(label: Any) -> None:
    for make, end in zip(write([3, 7, 3]), ("parquet", "csv", "jsonl"), strict=True):
        batch = read(make(f"t.{end}", types={"y": ss.ClassLabel(label)}))
        assert batch.columns["y"].to_pylist() == [0, 1, 0]


def test_integers_that_are_no_names_are_rejects_that_say_how_to_map_them() -> None:
    for make, end in zip(write([3, 7]), ("parquet", "csv", "jsonl"), strict=True):
        source = make(f"t.{end}", types={"y": ss.ClassLabel(("three", "seven"))})
        reject, _ = read(source).rejects
        assert reject.reason == "unknown class"
        assert "map integers to names: ss.ClassLabel({INTEGER: 'three', …})" in reject.message


@pytest.mark.parametrize("pair", [("yes", "no"), ("Y", "N"), ("T", "F"), ("On", "Off"), ("1", "0")])
def test_usual_pairs_are_bools_where_declared(pair: tuple[str, str]) -> None:
    Path("t.csv").write_text("y\n{}\n{}\ntrue\n".format(*pair))
    inferred = read(ss.Csv("t.csv"))
    assert inferred.columns["y"].to_pylist() == [*map(str.encode, pair), b"true"]
    declared = read(ss.Csv("t.csv", types={"y": "bool"}))
    assert declared.columns["y"].to_pylist() == [True, False, True]
    Path("t.csv").write_text("y\n{}\n{}\nperhaps\n".format(*pair))
    assert len(read(ss.Csv("t.csv", types={"y": "bool"})).rejects) == 1


def test_a_text_of_json_is_no_bool_but_a_class() -> None:
    write(["yes", "no"])
    reject, _ = read(ss.JsonLines("t.jsonl", types={"y": "bool"})).rejects
    assert "declare ss.ClassLabel(('no', 'yes'))" in reject.message
    batch = read(ss.JsonLines("t.jsonl", types={"y": ss.ClassLabel(("no", "yes"))}))
    assert batch.columns["y"].to_pylist() == [1, 0]


LISTS = 'x,y\n1,"[1, 2]"\n2,[3]\n'


def test_lists_in_cells_are_refused_with_the_step_that_reads_them(tmp_path: Path) -> None:
    Path("t.csv").write_text(LISTS)
    wanted = ss.Sequence(ss.Scalar("int64"))
    with pytest.raises(RecipeError, match=r"For lists such as \[1, 2\] in cells") as refused:
        ss.Csv("t.csv", types={"y": wanted})
    with pytest.raises(SchemaError) as unread:
        read(ss.Csv("t.csv"), {"y": wanted})
    steps = [re.search(r"ss\.records\.map_python.*\)", str(e.value)) for e in (refused, unread)]
    assert steps[0] is not None
    assert steps[1] is not None
    assert steps[0][0] == steps[1][0]
    step = eval(steps[0][0], {"ss": ss, "json": json})  # what a person copies
    recipe = ss.Recipe(
        name="t",
        source=ss.Csv(str(tmp_path / "t.csv")),
        prepare=[step],
        splits=ss.Splits(train=1.0),
    )
    snapshot = ss.build(recipe, str(tmp_path / "out"))
    assert snapshot.manifest.features["y"] == wanted
    records = snapshot.reader().dataset("train", batch_size=None).as_numpy_iterator()
    assert sorted(record["y"].tolist() for record in records) == [[1, 2], [3]]


def test_a_column_of_lists_is_pointed_out() -> None:
    Path("t.csv").write_text(LISTS)
    text = " ".join(describe_suggestion("t.csv").replace("#", " ").split())
    assert "Lists as JSON: json.loads in a step ss.records.map_python reads them." in text


@pytest.mark.parametrize(
    ("value", "reason"),
    [([1, None, 2], "missing item"), ([[1, 2], [3]], "ragged list"), ([[1, None]], "missing item")],
)
def test_lists_of_json_with_nulls_or_of_several_lengths_can_be_read_as_text(
    value: Any, reason: str
) -> None:
    write([value])
    (reject,) = read(ss.JsonLines("t.jsonl")).rejects
    assert reject.reason == reason
    assert "types={'y': ss.Text()} reads lists as JSON text" in reject.message
    batch = read(ss.JsonLines("t.jsonl", types={"y": ss.Text()}))
    assert json.loads(batch.columns["y"][0].as_py()) == value
    (reject,) = read(ss.Parquet("t.parquet")).rejects
    assert "ss.Text()" not in reject.message  # Parquet has no text of a list
