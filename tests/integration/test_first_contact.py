"""First contact: what ``init`` suggests for raw data, and what ``build`` prints, as documented."""

import csv
import json
import re
import subprocess
import sys
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_transform as tft
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.pipelines.inspect.suggest import describe_suggestion, recipe_text, write_suggestion
from snapshard.pipelines.recipe.shipping import load_recipe_file
from snapshard.pipelines.survey import texts
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.progress import Silent

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "init.md"
NUM = 1000


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_passengers() -> None:
    """``passengers.csv``, as the page describes it."""
    lines = ["passenger,survived,age,sex,town,boarded,cabin"]
    for n in range(1, NUM + 1):
        age = "" if n % 5 == 0 else 20 + n % 50
        cabin = "n.a." if n == 17 else n % 300
        sex = "female" if n % 3 else "male"
        lines.append(f"{n},{n % 2},{age},{sex},town {n % 30},1912-04-{10 + n % 5},{cabin}")
    Path("passengers.csv").write_text("\n".join(lines) + "\n")


def write_images(folder: str, num: int = 60, places: tuple[str, ...] = ("",)) -> list[str]:
    """Images in these folders, in turn; returns their bare names."""
    names = [f"{n:03}.png" for n in range(num)]
    for n, name in enumerate(names):
        path = Path(folder) / places[n % len(places)] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        PillowImage.fromarray(np.full((4, 6, 3), n, np.uint8)).save(path)
    return names


def write_table(path: str, names: list[str], header: str = "file,label,taken") -> None:
    rows = [f"{name},{'cat' if n % 3 else 'dog'},2026-01-{n % 28 + 1:02}"
            for n, name in enumerate(names)]  # fmt: skip
    Path(path).write_text("\n".join([header, *rows]) + "\n")


@pytest.mark.slow
def test_the_examples_of_the_page_run(call: Any) -> None:
    write_passengers()
    write_table("labels.csv", write_images("photos"))
    Path("recipes").mkdir()
    Path("clipped.py").write_text(
        "import snapshard as ss\n"
        'source, step = ss.Csv("passengers.csv"), ss.tables.clip("cabin", 0, 300)\n'
        'recipe = ss.Recipe(name="clipped", source=source, prepare=[step])\n'
    )
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    num_commands = 0
    for block in blocks:
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            program, *arguments = command.split()
            if program == "cat":
                printed = Path(arguments[0]).read_text()
            else:
                code, printed, told = call(*arguments)
                assert (program, bool(code)) == ("snapshard", "error: " in expected), told
                if code:  # after the lines of progress
                    printed = " ".join(told[told.index("error: ") :].split())
                    expected = " ".join(expected.split())
            pattern = re.escape(expected).replace("…", ".*?")
            assert re.fullmatch(pattern, printed, re.DOTALL), f"{command}\n{printed}"
            # Comments and tables fit a terminal of 80 columns.
            mark = r" *#" if program == "cat" else "  "
            long = [t for t in printed.splitlines() if len(t) > 79 and re.match(mark, t)]
            assert not [line for line in long if "sys.path" not in line]
            num_commands += 1
    assert num_commands > 8


def suggested(source: str, *, label: str | None = None) -> tuple[ss.Recipe, str]:
    """The suggested recipe, loaded from its file, and its text."""
    write_suggestion(source, "suggested.py", label=label, replace=True)
    return load_recipe_file("suggested.py"), Path("suggested.py").read_text()


def num_rejects(recipe: ss.Recipe) -> int:
    """The rejects that a build of a small source would have."""
    warnings = "".join(forecast(recipe, progress=Silent()).warnings)
    found = re.search(r"([0-9]+) of [0-9,]+ sampled records would be rejected", warnings)
    return int(found[1]) if found else 0


@pytest.mark.parametrize(
    ("source", "file", "written"),
    [
        ("d/t.csv", "r.py", "d/t.csv"),
        ("d/t.csv", "d/r.py", "t.csv"),
        ("d/t.csv", "other/r.py", "../d/t.csv"),
        ("d/t.csv", "other/below/r.py", "../../d/t.csv"),
        ("./d/../d/t.csv", "other/r.py", "../d/t.csv"),
        ("d", "other/r.py", "../d"),
        ("d/", "d/r.py", "."),
        ("d/*.csv", "other/r.py", "../d/*.csv"),
        ("zip://*.csv::d/t.zip", "other/r.py", "zip://*.csv::../d/t.zip"),
        ("{here}/d/t.csv", "r.py", "{here}/d/t.csv"),
        ("{here}/d/t.csv", "d/r.py", "t.csv"),
        ("{here}/d/t.csv", "other/r.py", "{here}/d/t.csv"),
        ("d/t.csv", "linked/r.py", "{here}/d/t.csv"),
        ("d/t.csv", "{here}/other/r.py", "../d/t.csv"),
    ],
)
def test_paths_are_relative_to_the_file(
    tmp_path: Path, source: str, file: str, written: str
) -> None:
    for folder in ("d", "other/below", "far/away"):
        Path(folder).mkdir(parents=True)
    Path("linked").symlink_to("far/away")
    Path("d/t.csv").write_text("a,b\n" + "1,2\n" * 50)
    with zipfile.ZipFile("d/t.zip", "w") as archive:
        archive.write("d/t.csv", "t.csv")
    source, file, written = (text.format(here=tmp_path) for text in (source, file, written))
    write_suggestion(source, file)
    recipe = load_recipe_file(file)
    assert recipe.files.url == written
    assert forecast(recipe, progress=Silent()).num_examples == 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "there.py"], "there.py exists. Give another name, or replace it: --force."),
        (["-o", "r.txt"], "r.txt does not end in .py, as recipe files do."),
        (["-o", "nowhere/r.py"], "the folder nowhere does not exist."),
        (["--force"], "--force: requires --output"),
        (["--label", "z"], "Csv: label names 'z', which is not a column."),
    ],
)
def test_what_init_refuses(call: Any, arguments: list[str], message: str) -> None:
    Path("t.csv").write_text("a,b\n" + "1,2\n" * 50)
    Path("there.py").write_text("# mine\n")
    code, printed, told = call("init", "t.csv", *arguments)
    assert (code, printed) == (2, "")
    assert message in told
    assert Path("there.py").read_text() == "# mine\n"
    code, printed, _ = call("init", "t.csv", "-o", "there.py", "--force")
    assert (code, printed) == (0, "wrote there.py; build it: snapshard build there.py --out DIR\n")
    assert load_recipe_file("there.py").source == ss.Csv("t.csv")


@pytest.mark.parametrize(
    ("cells", "label", "feature"),
    [
        (["yes", "no"], "y", ss.ClassLabel(("no", "yes"))),
        (["true", "false"], "y", ss.ClassLabel(("false", "true"))),
        (["0", "1"], "y", ss.ClassLabel({0: "0", 1: "1"})),
        (["-1", "1", "2"], "y", ss.ClassLabel({-1: "-1", 1: "1", 2: "2"})),
        (["0.5", "1"], "y", ss.Scalar("float32")),
        (list(map(str, range(100))), "y", ss.Scalar("int64")),
        (["0", "1", "", "1"], "y", ss.Scalar("int64", optional=True)),
        (["yes", "no"], None, ss.Scalar("string")),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_label_that_is_a_class_stratifies(
    kind: str, cells: list[str], label: str | None, feature: Any
) -> None:
    rows = [(n, cells[n % len(cells)]) for n in range(200)]
    values = [None if cell == "" else cell for _, cell in rows]
    if feature not in (ss.ClassLabel(("no", "yes")), ss.Scalar("string")):
        values = [None if cell is None else json.loads(cell) for cell in values]
    if kind == "csv":
        Path("t.csv").write_text("\n".join(["x,y", *(f"{n},{cell}" for n, cell in rows)]) + "\n")
    elif kind == "jsonl":
        lines = [json.dumps({"x": n, "y": value}) for n, value in enumerate(values)]
        Path("t.jsonl").write_text("\n".join(lines) + "\n")
    else:
        pq.write_table(pa.table({"x": range(len(values)), "y": values}), "t.parquet")
    recipe, _ = suggested(f"t.{kind}", label=label)
    assert recipe.source.label == label
    assert recipe.features is not None
    if feature != ss.Scalar("float32") or kind == "csv":
        assert recipe.features["y"] == feature
    wanted = "y" if isinstance(feature, ss.ClassLabel) else None
    assert recipe.splits.stratify_by == wanted
    found = forecast(recipe, progress=Silent())
    if wanted is not None:
        for split, share in zip(found.splits, (160, 20, 20), strict=True):
            assert abs(split.num_examples - share) <= len(cells)
    assert num_rejects(recipe) == 0


def test_a_column_called_label_is_the_label() -> None:
    Path("t.csv").write_text("x,label\n" + "1,a\n2,b\n" * 100)
    recipe, text = suggested("t.csv")
    assert (recipe.source.label, recipe.splits.stratify_by) == ("label", "label")
    assert "Add label=" not in text


@pytest.mark.parametrize(
    ("num", "stratify_by"), [(60, "label"), (19, None)], ids=["enough", "tiny classes"]
)
def test_class_folders_stratify(call: Any, num: int, stratify_by: str | None) -> None:
    write_images("pets", num, ("cat", "dog"))
    recipe, _ = suggested("pets")
    assert recipe.splits.stratify_by == stratify_by
    if stratify_by is not None:  # what is built without a recipe file is the same
        code, _, told = call("build", "pets", "--out", "out", "--json")
        assert code == 0
        assert 'stratify_by="label"' in told
        assert ss.build(recipe, "out").cached


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cells", "feature"),
    [
        (["2026-01-31", "2024-02-29"], ss.Timestamp("s")),
        (["2026-01-31", ""], ss.Timestamp("s", optional=True)),
        (["2026-01-31", "2026-01-31 09:30"], ss.Timestamp("s")),
        (["2026-01-31T09:30:00Z", "2026-01-31T09:30:00+02:00"], ss.Timestamp("s")),
        (["2026-01-31", "2026-01-31T09:30:00.5"], ss.Timestamp("ms")),
        (["2026-01-31", "2026-01-31T09:30:00.000001"], ss.Timestamp("us")),
        (["2026-01-31", "2026-01-31T09:30:00.000000001"], ss.Timestamp("ns")),
        (["2026-01-31", "2026-02-30"], ss.Scalar("string")),
        (["31.01.2026", "01.02.2026"], ss.Scalar("string")),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "table"])
def test_iso_dates_are_times(kind: str, cells: list[str], feature: Any) -> None:
    rows = [cells[n % len(cells)] for n in range(60)]
    source = f"t.{kind}"
    if kind == "csv":
        text = "".join(f"{n},{cell}\n" for n, cell in enumerate(rows))
        Path(source).write_text(f"x,when\n{text}")
    elif kind == "jsonl":
        lines = [json.dumps({"x": n, "when": cell or None}) for n, cell in enumerate(rows)]
        Path(source).write_text("\n".join(lines) + "\n")
    else:
        source = "photos"
        names = write_images(source)
        lines = [f"{name},{cell},1" for name, cell in zip(names, rows, strict=True)]
        Path("times.csv").write_text("\n".join(["file,when,x", *lines]) + "\n")
    recipe, _ = suggested(source)
    assert recipe.features is not None
    assert recipe.features["when"] == feature
    assert num_rejects(recipe) == 0


NEARLY = [
    (
        ["7", *["?"] * 60, "8"],
        "2 of 62 cells are integers; 60 hold '?' (the first in row 2)",
        "int64",
    ),
    (["1"] * 99 + ["n.a."], "99 of 100 cells are integers; row 100 holds 'n.a.'", "int64"),
    (["n.a.", *["7"] * 99], "99 of 100 cells are integers; row 1 holds 'n.a.'", "int64"),
    (
        ["1", "2"] * 45 + ["-"] * 4,
        "90 of 94 cells are integers; 4 hold '-' (the first in row 91)",
        "int64",
    ),
    (
        ["1"] * 50 + ["?", "-", "?"],
        "50 of 53 cells are integers; 3 hold '?', '-' (the first in row 51)",
        "int64",
    ),
    (
        ["1"] * 90 + list("abcd"),
        "90 of 94 cells are integers; 4 hold 'a', 'b', 'c', … (the first in row 91)",
        "int64",
    ),
    (["1", "", "x y", *["3"] * 20], "21 of 22 cells are integers; row 3 holds 'x y'", "int64"),
    (["1.5"] * 40 + ["0,5"], "40 of 41 cells are numbers; row 41 holds '0,5'", "float32"),
    (["1234567890.5"] * 40 + ["x"], "40 of 41 cells are numbers; row 41 holds 'x'", "float64"),
    (["1"] * 30 + ['say "no"\n'], r"row 31 holds 'say \"no\"\n'", "int64"),
    (
        ["2026-01-31"] * 40 + ["soon"],
        "40 of 41 cells are ISO 8601 times; row 41 holds 'soon'",
        None,
    ),
    (["1"] * 80 + ["x"] * 20, None, None),
    (["7", *["?", "-", "--", "*"] * 9, "words"], None, None),
    (["words", "more words"] * 30, None, None),
]


def comments(text: str) -> str:
    """The comments between the features, in one line."""
    return " ".join(re.findall(r"^ +# (.*)$", text, re.MULTILINE))


@pytest.mark.parametrize(("cells", "explained", "dtype"), NEARLY)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_columns_that_are_nearly_of_one_type(
    kind: str, cells: list[str], explained: str | None, dtype: str | None
) -> None:
    if kind == "csv":
        with Path("t.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("x", "y"), *enumerate(cells)])
    else:
        values = [json.loads(c) if re.fullmatch(r"[\d.]+", c) else c or None for c in cells]
        lines = [json.dumps({"x": n, "y": value}) for n, value in enumerate(values)]
        Path("t.jsonl").write_text("\n".join(lines) + "\n")
        explained = explained and explained.replace("row ", "line ")
    recipe, text = suggested(f"t.{kind}")
    assert recipe.features is not None
    is_optional = "" in cells
    assert recipe.features["y"] == ss.Scalar("string", optional=is_optional)
    if explained is None:
        assert "cells are" not in comments(text)
        return
    assert explained.replace('\\"', '"') in comments(text)
    setting = re.search(r"null_values=\(.*?\)(?= to)", comments(text))
    assert bool(setting) == (kind == "csv" and "'c', …" not in explained)
    # The suggestion, followed: the commented line instead of the one below.
    other = re.search(r'^ +# ("y": ss\..*,)$', text, re.MULTILINE)
    assert other is not None
    followed = re.sub(r'^ +"y": .*$', f"        {other[1].replace(chr(92), chr(92) * 2)}", text,
                      flags=re.MULTILINE)  # fmt: skip
    if setting is not None:
        followed = followed.replace('ss.Csv("t.csv"', f'ss.Csv("t.csv", {setting[0]}')
    Path("followed.py").write_text(followed)
    made = load_recipe_file("followed.py")
    assert made.features is not None
    if dtype is not None:
        optional = setting is not None or is_optional
        assert made.features["y"] == ss.Scalar(dtype, optional=optional)  # type: ignore[arg-type]
    num_odd = 0 if setting is not None else int((re.findall(r"; (\d+) hold", explained) or [1])[0])
    assert num_rejects(made) == num_odd


def test_rows_are_counted_within_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("d").mkdir()
    Path("d/a.csv").write_text("x,y\n" + "1,2\n" * 20)
    Path("d/b.csv").write_text("x,y\n1,2\nragged\n1,n.a.\n" + "1,2\n" * 20)
    assert "41 of 42 cells are integers; row 3 of b.csv holds 'n.a.'" in comments(suggested("d")[1])
    monkeypatch.setattr(texts, "MAX_BYTES", 110)
    Path("d/c.csv").write_text("x,y\n" + "a,a\n" * 20)
    Path("d/a.csv").write_text("x,y\n1,n.a.\n" + "1,2\n" * 20)
    read = "of those read, 20 of 21 cells are integers; row 1 holds 'n.a.'"
    assert read in comments(suggested("d")[1])


def test_json_texts_of_digits_are_no_numbers() -> None:
    lines = [json.dumps({"code": f"{n:05}" if n else "none", "x": n or "none"}) for n in range(50)]
    Path("t.jsonl").write_text("\n".join(lines) + "\n")
    (found,) = re.findall("49 of 50 cells are integers", comments(suggested("t.jsonl")[1]))
    assert found
    assert '# "x": ss.Scalar("int64"),' in suggested("t.jsonl")[1]


@pytest.mark.parametrize(
    ("num_texts", "num_rows", "expected"),
    [
        (2, 10, "2 different texts. To read them as classes:"),
        (20, 100, "20 different texts. To read them as classes:"),
        (20, 99, ""),
        (21, 200, "21 different texts: a vocabulary"),
        (1000, 5000, "1,000 different texts: a vocabulary"),
        (1001, 9000, ""),
        (1, 100, ""),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_few_different_texts(kind: str, num_texts: int, num_rows: int, expected: str) -> None:
    cells = [f"it's {n % num_texts}, [red]" for n in range(num_rows)]
    if kind == "csv":
        Path("t.csv").write_text("\n".join(["x,y", *(f'1,"{cell}"' for cell in cells)]) + "\n")
    elif kind == "jsonl":
        Path("t.jsonl").write_text("".join(json.dumps({"y": cell}) + "\n" for cell in cells))
    else:
        pq.write_table(pa.table({"y": cells}), "t.parquet")
    _, text = suggested(f"t.{kind}")
    assert (expected in comments(text)) if expected else ("different" not in comments(text))
    if "classes" in expected:
        lines = text.splitlines()
        begin = next(i for i, line in enumerate(lines) if "To read them as classes" in line) + 1
        end = next(i for i, line in enumerate(lines) if line.startswith('        "y"'))
        followed = [line.replace("# ", "", 1) for line in lines[begin:end]]
        Path("followed.py").write_text("\n".join(lines[:begin] + followed + lines[end + 1 :]))
        made = load_recipe_file("followed.py")
        assert made.features is not None
        assert made.features["y"] == ss.ClassLabel(tuple(sorted(set(cells))))
        assert num_rejects(made) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "table", "header", "given", "source"),
    [
        (("",), "labels.csv", "file,label,taken", "d/photos", {"table": "../labels.csv"}),
        (("",), "photos/any.csv", "file,label,taken", "d/photos", {"table": "any.csv"}),
        (("",), "train.tsv", "file_name,label,taken", "d/photos", {"table": "../train.tsv"}),
        (("",), "labels.jsonl", "path,label,taken", "d/photos", {"table": "../labels.jsonl"}),
        (("",), "labels.csv", "image,dx,taken", "d/photos", {"label": None}),
        (("a/b",), "labels.csv", "file,label,taken", "d", {"url": "d/photos/a/b"}),
        (("",), "labels.csv", "file,label,taken", "d", {"url": "d/photos"}),
        (("train", "val"), "labels.csv", "file,label,taken", "d/photos", {"split_folders": True}),
    ],
)
def test_tables_of_labels(
    places: tuple[str, ...], table: str, header: str, given: str, source: dict[str, Any]
) -> None:
    names = write_images("d/photos", places=places)
    for other in ("d/prices.csv", "d/broken.csv", "d/empty.jsonl"):
        Path(other).write_text("" if "empty" in other else "a,a\n1,2\n")
    write_table(f"d/{table}", names, header)
    if table.endswith(".tsv"):
        Path(f"d/{table}").write_text(Path(f"d/{table}").read_text().replace(",", "\t"))
    elif table.endswith(".jsonl"):
        head, *rows = (row.split(",") for row in Path(f"d/{table}").read_text().splitlines())
        lines = [json.dumps(dict(zip(head, row, strict=True))) for row in rows]
        Path(f"d/{table}").write_text("\n".join(lines) + "\n")
    if given == "d":  # beside the images there must be fewer tables than images
        assert len(list(Path("d").glob("*.csv"))) < len(names)
    recipe, text = suggested(given)
    assert isinstance(recipe.source, ss.ImageFolder)
    assert recipe.source.table == f"d/{table}"
    found = {name: getattr(recipe.source, name) for name in source if name != "table"}
    assert found == {name: value for name, value in source.items() if name != "table"}
    label = header.split(",")[1]
    assert ("Add label=" in text) == (label == "dx")
    recipe, _ = suggested(given, label=label)
    assert recipe.features is not None
    assert recipe.features[label] == ss.ClassLabel(("cat", "dog"))
    by_folder = "split_folders" in source
    assert recipe.splits.stratify_by == (None if by_folder else label)
    snapshot = ss.build(recipe, "out")
    assert sum(split.num_examples for split in snapshot.manifest.splits.values()) == len(names)


def test_the_only_column_of_a_table_is_the_label() -> None:
    names = write_images("photos")
    lines = [f"{name},{n % 3}" for n, name in enumerate(names)]
    Path("train.csv").write_text("\n".join(["image,diagnosis", *lines]) + "\n")
    recipe, _ = suggested("photos")
    assert recipe.features is not None
    assert recipe.features["diagnosis"] == ss.ClassLabel({0: "0", 1: "1", 2: "2"})
    assert recipe.splits.stratify_by == "diagnosis"
    assert ss.build(recipe, "out").reader().CLASS_NAMES == ["0", "1", "2"]


def test_a_table_of_sounds() -> None:
    Path("sounds").mkdir()
    for n in range(30):
        with wave.open(f"sounds/{n % 3}_{n}.wav", "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(bytes(1600))
    lines = [json.dumps({"file": f"{n % 3}_{n}", "label": f"{n % 2}"}) for n in range(30)]
    Path("sounds/metadata.jsonl").write_text("\n".join(lines) + "\n")
    recipe, _ = suggested("sounds")
    # The table says more than the file names, whose first field would be the label.
    assert recipe.source == ss.AudioFolder("sounds", table="sounds/metadata.jsonl")
    assert num_rejects(recipe) == 0


def test_a_table_beside_the_folder_that_names_no_file_is_not_used() -> None:
    write_images("photos")
    write_table("labels.csv", [f"other{n}.png" for n in range(60)])
    assert suggested("photos")[0].source == ss.ImageFolder("photos", label=None)


@pytest.mark.parametrize("num_named", [30, 59])
def test_a_table_that_names_only_some_files_is_refused(num_named: int) -> None:
    names = write_images("photos")
    write_table("labels.csv", names[:num_named] + [f"other{n}.png" for n in range(60 - num_named)])
    with pytest.raises(ss.SnapshardError, match=f"labels.csv names {num_named} of them"):
        describe_suggestion("photos")


def test_class_folders_and_a_table_with_other_labels_are_refused() -> None:
    names = write_images("pets", places=("cat", "dog"))
    write_table("labels.csv", names)
    with pytest.raises(ss.SnapshardError, match=r"may be classes \('cat', 'dog'\).* labels\.csv"):
        describe_suggestion("pets")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize(
    "steps",
    [
        [ss.tables.clip("y", 0, 1)],
        [ss.tables.fill("y", 0)],
        [ss.tables.one_hot("y", 3)],
        [lambda record: {"z": record["y"] + 1}],
    ],
)
def test_errors_explain_why_a_column_is_a_string(
    tmp_path: Path, kind: str, steps: list[Any]
) -> None:
    if kind == "csv":
        Path("t.csv").write_text("x,y\n" + "1,2\n" * 30 + "3,n.a.\n")
        source: Any = ss.Csv(str(tmp_path / "t.csv"))
    else:
        Path("t.jsonl").write_text('{"x": 1, "y": 2}\n' * 30 + '{"x": 3, "y": "n.a."}\n')
        source = ss.JsonLines(str(tmp_path / "t.jsonl"))
    with pytest.raises(RecipeError) as caught:
        forecast(ss.Recipe(name="t", source=source, prepare=steps), progress=Silent())
    noun = "row" if kind == "csv" else "line"
    explained = f"30 of 31 cells are integers; {noun} 31 holds 'n.a.'."
    assert f" 'y' was inferred as a string: {explained}" in str(caught.value)
    assert ("null_values=(*ss.Csv.null_values, " in str(caught.value)) == (kind == "csv")
    if kind == "csv":
        fixed = ss.Csv(str(tmp_path / "t.csv"), null_values=(*ss.Csv.null_values, "n.a."))
        recipe = ss.Recipe(name="t", source=fixed, prepare=[ss.tables.fill("y", 0)])
        assert num_rejects(recipe) == 0


def scaled(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"y": tft.scale_to_z_score(inputs["y"])}


@pytest.mark.slow
def test_errors_of_a_preprocessing_fn_explain_it_too(tmp_path: Path) -> None:
    Path("t.csv").write_text("x,y,z\n" + "1,2,a b\n" * 60 + "3,n.a.,c d\n")
    source = ss.Csv(str(tmp_path / "t.csv"))
    recipe = ss.Recipe(name="t", source=source, preprocessing_fn=scaled)
    with pytest.raises(RecipeError) as caught:
        ss.build(recipe, "out")
    with pytest.raises(RecipeError) as planned:
        forecast(recipe, progress=Silent())
    assert str(planned.value) == str(caught.value)
    explained = "'y' was inferred as a string: 60 of 61 cells are integers; row 61 holds 'n.a.'."
    assert f". {explained} If that means a missing value, add" in str(caught.value)
    assert "'z' was inferred" not in str(caught.value)
    source = ss.Csv(str(tmp_path / "t.csv"), null_values=(*ss.Csv.null_values, "n.a."))
    fixed = ss.Recipe(
        name="t", source=source, prepare=[ss.tables.fill("y", 0)], preprocessing_fn=scaled
    )
    assert forecast(fixed, progress=Silent()).outputs == ("y",)


def test_no_numbers_are_suggested_where_none_can_be_read() -> None:
    pq.write_table(pa.table({"y": ["1"] * 50 + ["n.a."]}), "t.parquet")
    assert "cells are" not in describe_suggestion("t.parquet")


def test_credentials_are_left_out_of_the_place_of_a_table() -> None:
    source = ss.ImageFolder("ftp://ann:pass9@h/d", table="ftp://ann:pass9@h/d/labels.csv")
    text = recipe_text(ss.Recipe(name="t", source=source))
    assert "pass9" not in text
    assert "labels.csv" in text
    assert "Credentials are left out" in text


def test_a_plan_loads_beam_only_for_a_preprocessing_fn(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x\n" + "1\n" * 60)
    code = """
import sys
import snapshard as ss
from snapshard.pipelines.inspect.forecast import forecast
from snapshard.schemas.progress import Silent
forecast(ss.Recipe(name="t", source=ss.Csv("t.csv")), progress=Silent())
assert not {"apache_beam", "tensorflow_transform"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
