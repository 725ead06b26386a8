"""Typed tables among raw files: found by name and content, and told in a recipe's text."""

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.pipelines.inspect.suggest import describe_suggestion, suggest, suggest_recipe
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.pipelines.recognize.readings import UnclearError, source_text
from snapshard.schemas.errors import DataError
from snapshard.schemas.progress import Silent

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


@pytest.mark.parametrize(
    ("files", "sources"),
    [
        ({"train.csv": "a,b\n1,2\n", "test.jsonl": '{"a": 1}\n' * 2}, (ss.Csv, ss.JsonLines)),
        (
            {"a.csv": "a\n1\n", "b.csv": "a\n2\n", "c.jsonl": '{"a": 1}\n' * 2},
            (ss.Csv, ss.JsonLines),
        ),
        ({"a.csv": "a\n1\n", "c.json": '[{"a": 1}, {"a": 2}]'}, (ss.Csv, ss.JsonLines)),
        ({"a.parquet": "", "labels.csv": "id,label\n1,2\n"}, (ss.Csv, ss.Parquet)),
        ({"a.parquet": "", "b.jsonl": "", "c.jsonl": ""}, (ss.Parquet, ss.JsonLines)),
    ],
)
def test_tables_of_several_kinds_are_not_left_out_without_a_word(
    files: dict[str, str], sources: tuple[Any, ...]
) -> None:
    for name, text in files.items():
        if text:
            Path("d").mkdir(exist_ok=True)
            Path("d", name).write_text(text)
        elif not name.endswith(".csv"):
            write(f"d/{name}")
    with pytest.raises(UnclearError, match="tables of 2 kinds") as refused:
        suggest_recipe("d")
    assert {type(reading.source) for reading in refused.value.readings} == {*sources}


@pytest.mark.parametrize("text", ['{"license": "CC0"}', '[{"name": "a"}, {"name": "b"}]'])
def test_small_json_beside_tables_describes_them(text: str) -> None:
    Path("d").mkdir()
    Path("d/t.csv").write_text("a,b\n" + "1,2\n" * 40)
    Path("d/columns.json").write_text(text)
    recipe, notes = suggest("d")
    assert recipe.source == ss.Csv("d")
    assert "Not read, as it may describe the tables: 'columns.json'." in notes


@pytest.mark.parametrize(
    ("paths", "line"),
    [
        (["train.csv", "more.csv"], 'ss.Csv("d/train.csv")'),
        (["training.csv", "holdout.csv"], 'ss.Csv("d/training.csv")'),
        (["dftrain.csv", "dfdev.csv"], 'ss.Csv("d/dfdev.csv")'),
        (["datatraining.txt", "datatest.txt", "datatest2.txt"], 'ss.Csv("d/datatraining.txt")'),
        (["train/0.csv", "test/0.csv", "sample/0.csv"], 'test=ss.Csv("d/test/0.csv")'),
        (["all.csv", "train/0.csv", "test/0.csv"], 'train=ss.Csv("d/train/0.csv")'),
        (["walk/train/0.csv", "walk/test/0.csv", "run/train/0.csv"], 'ss.Csv("d")'),
    ],
)
def test_names_that_may_say_a_split_are_not_passed_over(paths: list[str], line: str) -> None:
    for number, path in enumerate(paths):
        place = Path("d", path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("x,y\n" + f"{number},2\n" * 20)
    with pytest.raises(UnclearError, match="those of a split") as refused:
        suggest_recipe("d")
    assert any(line in reading.line() for reading in refused.value.readings), refused.value


@pytest.mark.parametrize(
    "paths", [["latest.csv", "oldest.csv"], ["part-1.csv", "part-2.csv"], ["jan.csv", "feb.csv"]]
)
def test_other_names_are_read_together(paths: list[str]) -> None:
    Path("d").mkdir()
    for path in paths:
        Path("d", path).write_text("x,y\n1,2\n3,4\n")
    assert suggest_recipe("d").source == ss.Csv("d")


@pytest.mark.parametrize(
    "paths",
    [
        ["data.csv", "data.csv.gz"],
        ["data.csv", "data (1).csv"],
        ["data.csv", "data_backup.csv"],
        ["train.csv", "train_clean.csv"],
        ["raw/a.csv", "processed/a.csv"],
    ],
)
def test_copies_are_not_read_twice(paths: list[str]) -> None:
    for path in paths:
        text, place = b"x,y\n1,2\n3,4\n", Path("d", path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(gzip.compress(text) if path.endswith(".gz") else text)
    with pytest.raises(UnclearError, match="read twice"):
        suggest_recipe("d")


def test_files_that_may_be_folds_are_said() -> None:
    Path("d").mkdir()
    for name in ("train1", "train2", "test1", "test2"):
        Path(f"d/{name}.csv").write_text("x,y\n1,2\n3,4\n")
    assert any("folds of a cross-validation" in note for note in suggest("d")[1])


@pytest.mark.parametrize(
    ("column", "values", "splits"),
    [
        ("split", ("train", "test", "extra"), None),
        ("ml_use", ("TRAINING", "TEST"), {"train": "TRAINING", "test": "TEST"}),
        ("phase", ("train", "val"), None),
        ("dataset", ("train", "test"), None),
    ],
)
def test_columns_that_say_the_split(
    column: str, values: tuple[str, ...], splits: dict[str, Any] | None
) -> None:
    Path("d").mkdir()
    rows = "".join(f"{number},{values[number % len(values)]}\n" for number in range(30))
    Path("d/t.csv").write_text(f"x,{column}\n{rows}")
    found = suggest_recipe("d").splits
    assert found == ss.Splits.by_column(column, **(splits or {}))


def test_a_column_of_other_words_says_no_split() -> None:
    Path("d").mkdir()
    Path("d/t.csv").write_text("x,phase\n" + "1,train\n2,solid\n3,liquid\n" * 9)
    assert suggest_recipe("d").splits == ss.Splits(train=0.8, validation=0.1, test=0.1)


def test_the_class_in_tables_of_splits_without_a_header_is_not_stacked() -> None:
    Path("d").mkdir()
    rows = "".join(f"{number % 2 + 1}.0000000e+00  {'0.5 ' * 20}\n" for number in range(40))
    for name in ("Gun_TRAIN.txt", "Gun_TEST.txt"):
        Path("d", name).write_text(rows)
    text = describe_suggestion("d")
    assert "header=False" in text
    assert "stack" not in text.partition("prepare=")[2].partition("splits=")[0]


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
    made = [eval(f"dict({line})", {"ss": ss})["source"] for line in lines]
    assert made == [ss.JsonLines("d", records=records) for records in sources]
    for number, source in enumerate(made, 1):
        assert f"source={source_text(source)}," in describe_suggestion("d", reading=number)


def test_json_without_objects_is_no_table() -> None:
    Path("d").mkdir()
    Path("d/config.json").write_text("[1, 2]")
    with pytest.raises(DataError, match="neither tables"):
        suggest_recipe("d")


def test_an_encoding_that_is_not_clear_is_for_a_person_to_choose() -> None:
    text = "имя,n\nАнна,1\nБорис,2\n"  # noqa: RUF001
    Path("t.csv").write_text(text, encoding="cp1251")
    with pytest.raises(DataError, match="its encoding is not clear") as refusal:
        suggest_recipe("t.csv")
    lines = [line.strip() for line in str(refusal.value).splitlines()]
    (line,) = [line for line in lines if line.startswith("source=") and "cp1251" in line]
    assert lines[lines.index(line) - 1] == "with 'имя,n' in it:"
    recipe = f"ss.Recipe(name='t', {line})"
    Path("recipe.py").write_text(f"import snapshard as ss\nrecipe = {recipe}", encoding="utf-8")
    snapshot = ss.build(load_recipe_file("recipe.py"), "out")
    assert "имя" in snapshot.reader().FEATURES


def test_a_guessed_encoding_is_called_a_guess() -> None:
    Path("t.csv").write_text("name,n\nJosé,1\nNoël,2\n" * 9, encoding="cp1252")
    text = describe_suggestion("t.csv")
    assert "# The text is not UTF-8; its encoding is a guess." in text
    assert "encoding='cp1252'" in text.replace('"', "'")


def test_utf_16_without_a_mark(tmp_path: Path) -> None:
    Path("t.csv").write_text("name,n\nAnn,1\n", encoding="utf-16-le")
    assert suggest_recipe("t.csv").source == ss.Csv("t.csv", encoding="utf-16-le")
    path = str(tmp_path / "t.csv")
    with pytest.raises(DataError, match="looks like UTF-16, and would be read as UTF-8"):
        ss.build(ss.Recipe(name="t", source=ss.Csv(path)), "out")


ROWS = "".join(f"{i / 2},{i},{'ab'[i % 2]}\n" for i in range(20))


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"iris.data": ROWS, "iris.names": "Title: flowers,\nof 1936\n" * 9}, "iris.data"),
        ({"t.tab": "x\ty\n" + ROWS.replace(",", "\t")}, "t.tab"),
        ({"sms": "".join(f"ham\tYes, {'no' * i}\n" for i in range(20))}, "sms"),
        (
            {
                "a.txt": f"x;y;z\n{ROWS}".replace(",", ";"),
                "b.txt": f"x;y;z\n{ROWS}".replace(",", ";"),
            },
            "*.txt",
        ),
        ({"points.xyz": ROWS.replace(",", "  ")}, "points.xyz"),
    ],
)
def test_tables_by_their_content(files: dict[str, str], source: str) -> None:
    for name, text in files.items():
        Path("data", name).parent.mkdir(exist_ok=True)
        Path("data", name).write_text(text)
    found = suggest_recipe("data").source
    assert isinstance(found, ss.Csv)
    assert found.url == f"data/{source}"
    if len(files) == 1:
        alone = suggest_recipe(found.url).source
        assert alone == found


@pytest.mark.parametrize("end", ["ppm", "xyz"])
@pytest.mark.parametrize("name", ["t.csv", "t.dat", "inner/t.dat"])
def test_tables_among_many_files_that_no_source_reads(end: str, name: str) -> None:
    Path("data/inner").mkdir(parents=True)
    for number in range(4):
        Path("data", f"{number}.{end}").write_bytes(b"P6 1 1 255 abc")
    Path("data", name).write_text(f"x,y,z\n{ROWS}")
    with pytest.raises(DataError, match=f"4 files of kinds that .*'0.{end}'.* 1 tables") as refusal:
        suggest_recipe("data")
    assert str(refusal.value).splitlines()[1].strip().startswith('source=ss.Csv("data')
    Path("data", f"0.{end}").unlink()
    Path("data", f"1.{end}").unlink()
    assert isinstance(suggest_recipe("data").source, ss.Csv)


@pytest.mark.parametrize("separator", [",", ";"])
def test_tables_of_different_columns_are_several(separator: str) -> None:
    Path("data").mkdir()
    for name, header in (("films.csv", "id,title"), ("ratings.csv", "user,id,stars")):
        row = ",".join("7" * len(header.split(",")))
        text = f"{header}\n" + f"{row}\n" * 3
        Path("data", name).write_text(text.replace(",", separator))
    with pytest.raises(DataError, match="2 tables with different columns") as refusal:
        suggest_recipe("data")
    lines = [line.strip() for line in str(refusal.value).splitlines()[1:]]
    assert [line.split('"')[1] for line in lines] == ["data/films.csv", "data/ratings.csv", "data"]
    assert 'columns="union"' in lines[-1]
    Path("data", "ratings.csv").write_text(f"title{separator}id\na{separator}1\n")
    assert suggest_recipe("data").source.url == "data"  # in another order


@pytest.mark.parametrize(
    "files",
    [
        {"iris.data": ROWS, "other.data": ROWS},  # without a header
        {"a.txt": f"x,y,z\n{ROWS}", "b.txt": f"x,y,other\n{ROWS}"},
        {"a.data": ROWS, "b.test": ROWS},
    ],
)
def test_of_several_tables_a_person_chooses(files: dict[str, str]) -> None:
    lines = _refused(files, "holds several tables")
    assert [line.startswith('source=ss.Csv("data/') for line in lines] == [True, True]


@pytest.mark.parametrize("suffixes", [("data", "test"), ("tra", "tes"), ("train", "test")])
def test_suffixes_may_say_the_split(suffixes: tuple[str, str]) -> None:
    train, test = suffixes
    files = {f"adult.{train}": f"{ROWS}", f"adult.{test}": f"|a title\n{ROWS}"}
    both, *alone = _refused(files, "holds several tables")
    assert f'train=ss.Csv("data/adult.{train}", header=False)' in both
    assert f'test=ss.Csv("data/adult.{test}", header=False, skip=1)' in both
    assert both.endswith("splits=ss.Splits.by_folder()")
    assert len(alone) == 2


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("bank", "bank-full"), "'bank-full.csv', 'bank.csv'"),
        (("ratings", "ratings_small", "ratings_2"), "'ratings.csv', 'ratings_small.csv'"),
        (("sample", "all"), "'all.csv', 'sample.csv'"),
        (("kdd", "kdd_10_percent"), "'kdd.csv', 'kdd_10_percent.csv'"),
    ],
)
def test_a_table_that_may_be_a_part_of_another_is_not_read_twice(
    names: tuple[str, ...], shown: str
) -> None:
    files = {f"{name}.csv": f"x,y,z\n{ROWS}" for name in names}
    lines = _refused(files, re.escape(f"one of which may be a part of the other ({shown})"))
    assert lines[-2:] == ["This reads both:", 'source=ss.Csv("data")']
    assert len(lines) == len(names) + 2


def test_tables_of_a_full_moon_are_read() -> None:
    Path("data").mkdir()
    for name in ("full_moon", "new_moon"):
        Path("data", f"{name}.csv").write_text(f"x,y,z\n{ROWS}")
    assert suggest_recipe("data").source == ss.Csv("data")


def test_the_class_in_a_table_without_a_header_is_not_stacked() -> None:
    rows = (",".join(str(row * column % 7) for column in range(60)) for row in range(30))
    Path("t.csv").write_text("\n".join(rows))
    assert "stack" not in describe_suggestion("t.csv")
    assert "stack" not in describe_suggestion("t.csv", label="column_59")
    text = describe_suggestion("t.csv", label="column_0")
    assert 'ss.tables.stack("column_[1-9]*", to="x")' in text
    assert "(59,)" in text


def _refused(files: dict[str, str], why: str) -> list[str]:
    """The lines that a refusal of files in the folder ``data`` offers."""
    Path("data").mkdir()
    for name, text in files.items():
        Path("data", name).write_text(text)
    with pytest.raises(DataError, match=why) as refusal:
        suggest_recipe("data")
    return [line.strip() for line in str(refusal.value).splitlines()[1:]]


BLANKS = " 1.5   2.25  3\n-4.0  -5.5   6\n" * 5
IN_TABS = "2\t0.5\t1.5\n1\t-2.5\t3.5\n" * 5


@pytest.mark.parametrize(
    ("files", "source"),
    [
        (
            {"Protocol/subject1.dat": BLANKS, "Protocol/subject12.dat": BLANKS, "about.pdf": "%P"},
            ss.Csv("data/**/*.dat", delimiter="whitespace", header=False),
        ),
        ({"1.dat": IN_TABS, "2.dat": IN_TABS}, ss.Csv("data/*.dat", delimiter="\t", header=False)),
        (
            {"Gun/Gun_TRAIN.txt": BLANKS, "Gun/Gun_TEST.txt": BLANKS},
            ss.Sources(
                train=ss.Csv("data/Gun/Gun_TRAIN.txt", delimiter="whitespace", header=False),
                test=ss.Csv("data/Gun/Gun_TEST.txt", delimiter="whitespace", header=False),
            ),
        ),
        (
            {"x/train/a.data": f"x,y,z\n{ROWS}", "x/test/b.data": f"x,y,z\n{ROWS}"},
            ss.Csv("data/x/**/*.data"),
        ),
        ({"x/a.txt": f"x,y,z\n{ROWS}"}, ss.Csv("data/x/a.txt")),
    ],
)
def test_tables_of_other_suffixes_in_folders(files: dict[str, str], source: Any) -> None:
    for name, text in files.items():
        Path("data", name).parent.mkdir(parents=True, exist_ok=True)
        Path("data", name).write_text(text)
    recipe = suggest_recipe("data")
    assert recipe.source == source
    is_split = any("train" in name.lower() for name in files)
    assert (recipe.splits == ss.Splits.by_folder()) == is_split


def test_what_is_beside_a_table_of_another_suffix_is_said() -> None:
    Path("data").mkdir()
    Path("data", "numbers.data-numeric").write_text(BLANKS)
    Path("data", "mixed.data").write_text("A11 6 A34\nA12 48\n" * 9)
    Path("data", "README").write_text("about")
    text = describe_suggestion("data")
    assert "numbers.data-numeric" in text
    assert "# Not read, as no part of this table: 'mixed.data'." in text


def test_names_of_several_files_of_a_split_are_said() -> None:
    Path("data").mkdir()
    for name in ("train", "dev_matched", "dev_mismatched"):
        Path("data", f"{name}.csv").write_text(f"x,y,z\n{ROWS}")
    assert "The names of the 2 files (dev_matched, dev_mismatched) are in no column" in " ".join(
        describe_suggestion("data").replace("\n    # ", " ").split()
    )


@pytest.mark.parametrize(
    ("files", "lines"),
    [
        (["X_train", "y_train"], ['source=ss.Csv("data/X_train.csv")']),
        (["features", "labels", "other"], ['source=ss.Csv("data/features.csv")']),
        (
            ["X_train", "y_train", "X-test", "y-test"],
            [
                'source=ss.Sources(train=ss.Csv("data/X_train.csv"), test=ss.Csv('
                '"data/X-test.csv")), splits=ss.Splits.by_folder()'
            ],
        ),
        (
            ["x_a", "y_a", "x_b", "y_b"],
            ['source=ss.Csv("data/x_a.csv")', 'source=ss.Csv("data/x_b.csv")'],
        ),
    ],
)
def test_columns_of_the_same_records_in_two_tables(files: list[str], lines: list[str]) -> None:
    Path("data").mkdir()
    for name in files:
        is_label = name[0] in "yl"
        Path("data", f"{name}.csv").write_text(
            "label\n" + "a\nb\n" * 30 if is_label else "x,z\n" + "1,2\n3,4\n" * 30
        )
    with pytest.raises(DataError, match="columns of the same records in two tables") as refusal:
        suggest_recipe("data")
    said = [line.strip() for line in str(refusal.value).splitlines() if "  source=" in line]
    assert said == lines


@pytest.mark.parametrize("paths", [["x_1", "x_2"], ["label_1", "x_1", "a", "b", "c"]])
def test_names_like_inputs_alone_are_parts(paths: list[str]) -> None:
    Path("data").mkdir()
    for name in paths:
        Path("data", f"{name}.csv").write_text(ROWS)
    assert suggest_recipe("data").source == ss.Csv("data", header=False)


@pytest.mark.parametrize(
    ("name", "delimiter"), [("t.dat", "::"), ("t.csv", "::"), ("t.txt", "||"), ("t", "::")]
)
def test_delimiters_of_two_characters_are_named(name: str, delimiter: str) -> None:
    Path(name).write_text("".join(f"{n}{delimiter}Big {n}{delimiter}5\n" for n in range(9)))
    with pytest.raises(
        DataError, match=f"{name} is a table .* separated by '{re.escape(delimiter)}'"
    ):
        suggest_recipe(name)


def test_double_signs_in_other_tables_are_no_delimiters() -> None:
    Path("t.csv").write_text("address,n\n" + "::1,5\n" * 9)
    assert suggest_recipe("t.csv").source == ss.Csv("t.csv")
    Path("t.data").write_text("fe80::1 5 6\n" * 9)
    assert suggest_recipe("t.data").source == ss.Csv("t.data", delimiter="whitespace")
    Path("t.txt").write_text("A ## sentence.\n" * 3 + "Another.\n")
    assert suggest_recipe("t.txt").source == ss.TextFiles("t.txt")


@pytest.mark.parametrize(
    ("paths", "url"),
    [
        (["a.log", "b.log"], "data/*.log"),
        (["a.py", "x/b.py", "c.h", "README.md", "Makefile"], "data/**/*.py"),
        (["x/y/a.cpp"], "data/**/*.cpp"),
    ],
)
def test_texts_with_other_suffixes(paths: list[str], url: str) -> None:
    for path in paths:
        Path("data", path).parent.mkdir(parents=True, exist_ok=True)
        Path("data", path).write_text("int main() {\n  return 0;\n}\n")
    with pytest.raises(DataError, match="that no source reads by") as refusal:
        suggest_recipe("data")
    said = [line.strip() for line in str(refusal.value).splitlines() if "  source=" in line]
    assert [line.partition("), splits")[0].rstrip(")") for line in said] == [
        f'source=ss.TextFiles("{url}"',
        f'source=ss.TextFiles("{url}", per="file"',
    ]
    Path("data", "c.bin").write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match="holds neither tables"):
        suggest_recipe("data")


@pytest.mark.parametrize("line", ["A sentence, and 1 more\n", "one word\n", "1 2 3\n1 2\n"])
def test_texts_are_no_tables(line: str) -> None:
    Path("t.txt").write_text("A first line.\n" + 20 * line)
    assert suggest_recipe("t.txt").source == ss.TextFiles("t.txt")


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    warnings: list[str] = []

    class Recorded(Silent):
        def warn(self, message: str) -> None:
            warnings.append(message)

    rows = "".join(f"{i},{i / 2},{'ab'[i % 2]}\n" for i in range(60))
    Path("t.csv").write_text(f",x,label\n{rows}")
    recipe = suggest_recipe(str(tmp_path / "t.csv"))
    for _ in range(2):  # also from the cache
        ss.build(recipe, "out", progress=Recorded())
    said = "t.csv, column 1: a column without a name is left out: it counts the rows."
    assert [warning.startswith(said) for warning in warnings] == [True, True]
    text = describe_suggestion("t.csv")
    assert "# t.csv, column 1: a column without a name is left out: it counts the rows.\n" in text
    Path("recipe.py").write_text(text)
    warnings.clear()
    ss.build(load_recipe_file("recipe.py"), "out", progress=Recorded())
    assert not [
        warning for warning in warnings if said in warning
    ]  # the recipe declares the columns


@pytest.mark.parametrize(
    ("text", "source", "comment"),
    [
        (
            "x, n\n" + "".join(f'a{i}, "{i * 234_567:,}"\n' for i in range(9)),
            "thousands=',', strip=True",
            "",
        ),
        (
            "x,n\n" + "".join(f'a{i},"{1_000 + i:,}"\n' for i in range(9)),
            "",
            "thousands=',' in the source reads '1,000' as thousands, decimal=',' as a fraction.",
        ),
        (
            "x, n\n" + "".join(f"a{i},{i}\n" for i in range(9)),
            "",
            "t.csv: the column ' n' has blanks around its name. strip=True in the source leaves",
        ),
    ],
)
def test_blanks_and_thousands_are_found_where_clear_and_named_elsewhere(
    text: str, source: str, comment: str
) -> None:
    Path("t.csv").write_text(text)
    made = " ".join(describe_suggestion("t.csv").replace("#", " ").split())
    assert f"ss.Csv('t.csv'{source and f', {source}'})".replace("'", '"') in made.replace("'", '"')
    assert comment in made


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["$6,669.00", "$12.50"], "such as '$6,669.00':"),
        (["36%", "9 %"], "such as '36%':"),
        (["(54)", "12"], "such as '(54)':"),
        (["29.47-", "3.50"], "such as '29.47-':"),
        (["94,63 €", "1 €"], "such as '94,63 €':"),
        (["12kg", "9 kg"], "such as '12kg':"),
        (["39,28", "1,5"], "such as '39,28':"),
        (["10am", "5pm"], ""),
        (["02134", "12345"], ""),
        (["12.05.2024", "13.05.2024"], ""),
        (["12:30", "13:30"], ""),
        (["1A", "2B"], ""),
        (["0155061224", "034545104X"], ""),
        (["+1 (54)", "x"], ""),
    ],
)
def test_numbers_with_signs_and_units_are_named(cells: list[str], said: str) -> None:
    rows = "".join(f'"{cell}",{i}\n' for i in range(30) for cell in cells)
    Path("t.csv").write_text("x,y\n" + rows)
    made = " ".join(describe_suggestion("t.csv").replace("#", " ").split())
    told = f"Numbers with other characters, {said} a step ss.records.map_python can make"
    assert (told in made) if said else ("Numbers with" not in made)


def test_lines_are_skipped_only_if_all_files_have_them() -> None:
    Path("data").mkdir()
    for name, title in (("a", "Sales of 2020\n"), ("b", "Sales of 2021\n")):
        Path(f"data/{name}.csv").write_text(f"{title}x,y,z\n{ROWS}")
    assert suggest_recipe("data").source == ss.Csv("data", skip=1)
    Path("data/c.csv").write_text(f"x,y,z\n{ROWS}")
    assert suggest_recipe("data").source == ss.Csv("data", delimiter=None)
