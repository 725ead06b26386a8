"""Columns that are pointed out: ids, the label again, values that are not what they seem."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion
from snapshard.pipelines.survey.inference_cache import infer_features
from snapshard.schemas.progress import Silent
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


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([-999 if i % 7 == 0 else i for i in ROWS], "-999"),
        ([-999.9 if i % 7 == 0 else i / 7 for i in ROWS], "-999.9"),
        ([99999 if i % 7 == 0 else i for i in ROWS], "99999"),
        ([None if i % 5 else -99 if i % 2 else 1 + i / 100 for i in ROWS], "-99"),
        ([-999 if i == 7 else i for i in ROWS], None),  # once
        ([99 if i % 7 == 0 else i for i in ROWS], None),  # near others
        ([-1 if i % 7 == 0 else i for i in ROWS], None),  # a code, maybe
        ([-999 if i % 7 == 0 else 5 for i in ROWS], None),  # one of two codes
        ([float("inf") if i % 7 == 0 else 1 / (i + 1) for i in ROWS], None),
    ],
)
def test_numbers_that_stand_for_missing_values(values: list[Any], told: str | None) -> None:
    for source in write({"temp": values, "x": [i % 7 for i in ROWS]}):
        lines = remarks(source)
        assert len(lines) == (told is not None)
        if told is not None:
            assert lines[0].startswith(f"'temp' has {told} several times in the 60 rows looked at")


@pytest.mark.parametrize(
    ("name", "values", "num"),
    [
        ("patient_id", [f"p{i // 6}" for i in ROWS], 10),
        ("Subject", [i // 3 for i in ROWS], 20),
        ("fold", [i % 5 for i in ROWS], 5),
        ("speaker_name", ["ann" if i < 30 else "bob" for i in ROWS], 2),
        ("subject", [f"about {i}" for i in ROWS], None),  # of messages
        ("video_views", [i // 6 for i in ROWS], None),
        ("session", [1 for _ in ROWS], None),
    ],
)
def test_columns_that_say_which_records_belong_together(
    name: str, values: list[Any], num: int | None
) -> None:
    for source in write({name: values, "x": [i % 7 for i in ROWS]}):
        lines = remarks(source)
        assert len(lines) == (num is not None)
        if num is not None:
            assert lines[0].startswith(f"{name!r} has {num} values in the 60 rows looked at.")
            assert f"group_by={name!r})" in lines[0]


@pytest.mark.parametrize(
    ("splits", "told"),
    [
        (ss.Splits(train=0.8, test=0.2), True),
        (ss.Splits(train=0.8, test=0.2, group_by="patient"), False),
        (ss.Splits.by_column("fold", train=["0", "1"], test=["2"]), False),
    ],
)
def test_groups_are_not_named_to_whoever_says_the_splits(splits: Any, told: bool) -> None:
    write({"patient": [i // 6 for i in ROWS], "fold": [i % 3 for i in ROWS], "x": [7, 8, 9] * 20})
    warnings: list[str] = []

    class Recorded(Silent):
        def warn(self, message: str) -> None:
            warnings.append(message)

    source = ss.Csv(str(Path.cwd() / "t.csv"))
    ss.build(ss.Recipe(name="t", source=source, splits=splits), "out", progress=Recorded())
    assert any("'patient' has 10 values" in warning for warning in warnings) == told
    assert any("group_by=" in warning for warning in warnings) == told


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["no", "No", "yes"], "'label' has the classes 'No' and 'no', which differ in blanks"),
        (["no", "yes", "yes "], "'label' has the classes 'yes' and 'yes ', which differ in blanks"),
        (["no", "none", "yes"], None),
    ],
)
def test_classes_that_differ_in_blanks_or_case(names: list[str], told: str | None) -> None:
    for source in write({"x": [i % 7 for i in ROWS], "label": [names[i % 3] for i in ROWS]}):
        lines = remarks(type(source)(source.url, label="label"))
        assert len(lines) == (told is not None)
        if told is not None:
            assert lines[0].startswith(told)


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ([f"{20 + i}.{101 + 7 * i}" for i in ROWS], True),
        ([f"-{1 + i}.{101 + 7 * i}" for i in ROWS], True),
        ([f"0.{101 + 7 * i}" for i in ROWS], False),
        ([f"{20 + i}.{101 + 7 * i}5" for i in ROWS], False),
        ([f"{20 + i}.{i % 10}" for i in ROWS], False),
    ],
)
@pytest.mark.parametrize("delimiter", [";", ","])
def test_points_that_may_mark_thousands(cells: list[str], delimiter: str, told: bool) -> None:
    rows = [f"{i}{delimiter}{cell}\n" for i, cell in enumerate(cells)]
    Path("t.csv").write_text("".join([f"n{delimiter}people\n", *rows]))
    lines = remarks(ss.Csv("t.csv", delimiter=delimiter))
    assert len(lines) == (told and delimiter == ";")
    if lines:
        assert lines[0].startswith(f"'people' is read as decimal numbers, such as {cells[0]}.")


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["250.0", "250.00", "250.01"], "'x' is read as numbers, '250.0' and '250.00' as 250."),
        (["1.1", "1.10", "1.9", "1.2"], "'x' is read as numbers, '1.1' and '1.10' as 1.1."),
        (["1E5", "12", "7"], "'x' is read as numbers, '1E5' as 100000."),
        (["1.0", "2.5", "10.0", "100.0"], None),
        (["1e+20", "1.5e5", "2E-7"], None),
        (["5", "5.0", "2.50"], None),
        (["1.10", "v2"], None),  # texts
        (['"1,234.50"', '"1,234.5"', "7.25"], None),
    ],
)
@pytest.mark.parametrize("num", [30, 3000])
def test_codes_that_are_read_as_numbers(cells: list[str], told: str | None, num: int) -> None:
    rows = [f"{cells[i % len(cells)]},{i / 7}" for i in range(num)]
    Path("t.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    lines = remarks(ss.Csv("t.csv"))
    assert len(lines) == (told is not None)
    if told is not None:
        assert lines[0].startswith(told)
        for said in ("string", "float64"):
            assert remarks(ss.Csv("t.csv", types={"x": said})) == []


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ("Total,780,1950", True),
        ("grand total,780,", True),
        (",780,1950\n", False),
        (",,", False),
        ("Totalled,7,1", False),
        ('"Total",780,1950\r\n', True),
        ("north,7,1\nTotal units: 780", False),  # a reject
        ('"the\nsum, it, was",1,2', False),
        ("sum,3,4\nnorth,3,4\nsum,1,2", False),  # a word as any other
    ],
)
def test_a_last_row_of_sums(tmp_path: Path, last: str, told: bool) -> None:
    rows = [f"{['north', 'south'][i % 2]},{i},{i / 2}" for i in ROWS]
    Path("t.csv").write_text("\n".join(["region,units,revenue", *rows, last]))
    lines = remarks(ss.Csv("t.csv"))
    assert len(lines) == told
    if told:
        assert lines[0].startswith("t.csv: the last row, in which 'region' is ")
        found = lines[0].partition("in prepare: ")[2].removesuffix(".")
        prepare = [eval(found, {"ss": ss})]
        source = ss.Csv(str(tmp_path / "t.csv"))
        recipe = ss.Recipe(name="t", source=source, prepare=prepare, splits=ss.Splits(train=1.0))
        snapshot = ss.build(recipe, tmp_path / "out", workers=1)
        assert snapshot.manifest.splits["train"].num_examples == len(ROWS)


@pytest.mark.parametrize("rows", [["a,x,1"], ["a,x,y", "b,y,x"]])
def test_headers_among_the_rows(rows: list[str]) -> None:
    head = ["name,city,grade"]
    for num, told in ((1, False), (2, True)):
        Path("t.csv").write_text("\n".join((head + rows * 30) * num) + "\n")
        lines = [line for line in remarks(ss.Csv("t.csv")) if "their own names" in line]
        assert len(lines) == told
    # One that is like its name is a text like any other.
    Path("t.csv").write_text("\n".join([*head, *(["name,x,y"] * 30)]) + "\n")
    assert remarks(ss.Csv("t.csv")) == []


def test_a_record_as_names_of_columns() -> None:
    told = "t.csv: the first row is read as the names of columns, such as 'a film of much music'."
    rows = ["a film of much music,fine", *(["a film,bad"] * 30)]
    Path("t.csv").write_text("\n".join(rows) + "\n")
    assert [line.startswith(told) for line in remarks(ss.Csv("t.csv"))] == [True]
    assert remarks(ss.Csv("t.csv", header=False)) == []


def test_a_last_row_of_sums_among_classes() -> None:
    Path("t.csv").write_text("a,b\n" + "".join(f"{'xy'[i % 2]},{i}\n" for i in ROWS) + "Total,9\n")
    (line,) = remarks(ss.Csv("t.csv", label="a"))
    assert line.endswith("and is a record. To leave it out, take the line out of the file.")
    Path("t.csv").write_text("a,b\nTotal,3\n")
    assert remarks(ss.Csv("t.csv")) == []


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
