from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.blocks import SourceFile
from snapshard.schemas.errors import DataError, RecipeError, SchemaError
from snapshard.schemas.features import (
    BoundingBoxes,
    ClassLabel,
    Feature,
    Features,
    Scalar,
    Sequence,
    Text,
    Timestamp,
)
from snapshard.transforms.sources.folders.labels import FileLabels, looks_like_splits
from snapshard.transforms.sources.folders.side_tables import UnlabelledError
from snapshard.transforms.storage.opened_source import open_source


@dataclasses.dataclass(frozen=True)
class Opened:
    """Side files by URL, and nothing else."""

    sides: dict[str, bytes]

    filesystem: Any = None

    def full_path(self, path: str) -> str:
        return path

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        raise AssertionError("labels need no content")

    def read_side(self, url: str) -> bytes:
        return self.sides[url]

    def side_digest(self, url: str) -> str:
        return hashlib.sha256(self.sides[url]).hexdigest()


def files(*paths: str) -> list[SourceFile]:
    return [SourceFile(path=path, num_bytes=1, stamp="") for path in paths]


def labels(**arguments: Any) -> FileLabels:
    made = FileLabels(source="ImageFolder", content="image", **arguments)
    made.check()
    return made


def infer(made: FileLabels, *paths: str, **sides: bytes) -> dict[str, Feature]:
    return made.infer(files(*paths), _opened(made, **sides))


def _opened(made: FileLabels, **sides: bytes) -> Opened:
    names = {url: url.partition(".")[0] for url in made.side_urls}
    return Opened({url: sides[name if name in sides else "table"] for url, name in names.items()})


def read(made: FileLabels, features: Features, *paths: str, **sides: bytes) -> list[dict[str, Any]]:
    """Rows of wire values; {"reason": …, "message": …} for a file that is rejected."""
    reader = made.reader(features, _opened(made, **sides))
    rows: list[dict[str, Any]] = []
    for path in paths:
        try:
            found = reader.find(path)
        except UnlabelledError as error:
            rows.append({"reason": error.reason, "message": str(error)})
            continue
        columns = reader.columns([found])
        rows.append({name: column[0].as_py() for name, column in columns.items()})
    return rows


def test_class_folders() -> None:
    made = labels()
    features = infer(made, "b/1.jpg", "a/deep/2.jpg", "3.jpg")
    assert features == {"label": ClassLabel(("a", "b"))}
    found = read(made, features, "b/1.jpg", "a/deep/2.jpg", "3.jpg", "c/4.jpg")
    assert found[:2] == [{"label": 1}, {"label": 0}]
    assert [row["reason"] for row in found[2:]] == ["not in a class folder", "class not declared"]
    assert made.side_urls == ()
    assert read(made, {}, "anything.jpg") == [{}]


@pytest.mark.parametrize("arguments", [{}, {"pattern": "{label}/*"}])
def test_names_of_classes_are_texts_or_numbers(arguments: dict[str, Any]) -> None:
    """Equal texts are one class in whichever form they are written; numbers sort as such."""
    texts = ["caf\u00e9/1.jpg", "cafe\u0301/2.jpg", "bar/3.jpg"]
    made = labels(**arguments)
    features = infer(made, *texts)
    assert features == {"label": ClassLabel(("bar", "caf\u00e9"))}
    assert [row["label"] for row in read(made, features, *texts)] == [1, 1, 0]
    numbers = [f"{number}/1.jpg" for number in (10, 9, 100, 0)]
    assert infer(made, *numbers) == {"label": ClassLabel(("0", "9", "10", "100"))}
    assert infer(made, *numbers, "x/1.jpg") == {"label": ClassLabel(("0", "10", "100", "9", "x"))}


def test_without_a_label_folders_are_no_classes() -> None:
    made = labels(label=None, by_folder=False)
    assert infer(made, "a/1.jpg", "2.jpg") == {}
    assert read(made, {}, "a/1.jpg", "2.jpg") == [{}, {}]


def test_split_folders_are_no_part_of_the_path() -> None:
    made = labels(split_folders=True)
    features = infer(made, "Train/b/1.jpg", "TEST/a/2.jpg")
    assert features == {"label": ClassLabel(("a", "b"))}
    assert read(made, features, "Train/b/1.jpg", "TEST/a/2.jpg") == [{"label": 1}, {"label": 0}]
    assert read(made, features, "train/1.jpg")[0]["reason"] == "not in a class folder"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["train/a/1", "test/b/2"], True),
        (["TRAINING/1", "Val/2", "dev/3"], True),
        (["train/1"], False),
        (["train/1", "test/2", "cat/3"], False),
        (["train", "test"], False),
        ([], False),
    ],
)
def test_folders_that_look_like_splits(paths: list[str], expected: bool) -> None:
    assert looks_like_splits(paths) == expected


def test_class_folders_named_like_splits_are_refused_unless_they_are_meant() -> None:
    paths = ["train/cat/1.jpg", "val/cat/2.jpg"]
    with pytest.raises(RecipeError, match=r"split_folders=True.*Splits\.by_folder"):
        infer(labels(), *paths)
    assert infer(labels(split_folders=False), *paths) == {"label": ClassLabel(("train", "val"))}


def test_no_class_folders() -> None:
    with pytest.raises(DataError, match=r"none of the 1 files.*pattern="):
        infer(labels(), "1.jpg")
    unread = [dataclasses.replace(file, problem="no permission") for file in files("a/1", "b/2")]
    with pytest.raises(DataError, match=r"none of the 2 files can be read.*a/1: no permission"):
        labels().infer(unread, Opened({}))


def test_a_pattern_of_the_file_name() -> None:
    made = labels(pattern="{label}_{speaker}_{n}.wav")
    paths = ["x/0_george_7.wav", "1_jackson_12.wav", "odd.wav"]
    features = infer(made, *paths)
    assert features == {
        "label": ClassLabel(("0", "1")),
        "speaker": Scalar("string"),
        "n": Scalar("int64"),
    }
    good, other, odd = read(made, features, *paths)
    assert good == {"label": 0, "speaker": b"george", "n": 7}
    assert other == {"label": 1, "speaker": b"jackson", "n": 12}
    assert odd["reason"] == "file name does not match the pattern"
    assert "'odd.wav'" in odd["message"]
    assert "{speaker}" in odd["message"]


def test_a_field_of_digits_alone() -> None:
    made = labels(pattern="{label}_{n:d}.*")
    paths = ["american_bulldog_203.jpg", "Sphynx_9.png", "Sphynx_b.png"]
    features = infer(made, *paths)
    assert features == {"label": ClassLabel(("Sphynx", "american_bulldog")), "n": Scalar("int64")}
    *rows, other = read(made, features, *paths)
    assert rows == [{"label": 1, "n": 203}, {"label": 0, "n": 9}]
    assert other["reason"] == "file name does not match the pattern"


def test_a_field_of_numbers_with_leading_zeros_is_a_string() -> None:
    made = labels(pattern="{label}_{n}.jpg")
    assert infer(made, "a_08.jpg", "a_10.jpg")["n"] == Scalar("string")
    assert infer(made, "a_0.jpg", "a_10.jpg")["n"] == Scalar("int64")


def test_a_pattern_of_the_path_and_one_with_a_star() -> None:
    made = labels(pattern="{who}/{label}-*.jpg")
    paths = ["ann/cat-1.jpg", "bob/dog-.jpg"]
    features = infer(made, *paths)
    assert read(made, features, *paths) == [
        {"who": b"ann", "label": 0},
        {"who": b"bob", "label": 1},
    ]
    split = labels(pattern="{who}/{label}-*.jpg", split_folders=True)
    assert read(split, features, "train/ann/dog-1.jpg") == [{"who": b"ann", "label": 1}]


def test_declared_features_of_a_pattern() -> None:
    made = labels(pattern="{a}_{b}")
    features = {"a": Scalar("float64"), "b": Text()}
    (row,) = read(made, features, "1.5_x")
    assert row == {"a": b"\0\0\0\0\0\0\xf8?", "b": b"x"}
    assert read(made, {"a": Scalar("uint8")}, "256_x", "7_x", "1_0_x") == [
        {
            "reason": "field of the file name does not fit",
            "message": "field 'a' of '256_x' is '256', expected uint8",
        },
        {"a": 7},
        {"a": 1},
    ]
    with pytest.raises(SchemaError, match="no such field"):
        read(made, {"c": Text()}, "1_x")
    with pytest.raises(SchemaError, match="ClassLabel"):
        read(made, {"a": Timestamp()}, "1_x")
    (row,) = read(made, {"a": ClassLabel(("yes",))}, "no_x")
    assert row["message"].endswith("expected one of the 1 classes 'yes'")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"pattern": "{a}_{a}"}, "twice"),
        ({"pattern": "plain.jpg"}, "fields in braces"),
        ({"pattern": "{a b}"}, "fields in braces"),
        ({"pattern": "{a"}, "fields in braces"),
        ({"pattern": "{image}.jpg"}, "content"),
        ({"pattern": "{a}", "table": "b.csv"}, "mutually exclusive"),
        ({"table": "labels.xlsx"}, r"\.csv"),
        ({"unlisted": "skip"}, "give a table"),
        ({"one_hot": ("a", "b")}, "give a table"),
        ({"lists": {"train": "a.txt"}}, "the list of files of each split"),
        ({"lists": {"train": None, "test": None}}, "the list of files of each split"),
        ({"one_hot": ("a", "b"), "table": "t.csv", "label": "c"}, "no other label="),
    ],
)
def test_arguments_that_cannot_be_meant(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        labels(**arguments)


def test_a_pattern_that_matches_nothing() -> None:
    with pytest.raises(DataError, match=r"matches none of the 1 files \(first: 'b-1.jpg'\)"):
        infer(labels(pattern="{label}_{n}.jpg"), "a/b-1.jpg")


@given(st.text("ab_{}*./1", max_size=12), st.text("ab_./1", max_size=8))
def test_any_pattern_is_refused_or_gives_what_the_name_holds(pattern: str, path: str) -> None:
    try:
        made = labels(pattern=pattern)
    except ValueError:
        return
    try:
        features = infer(made, path)
    except DataError:
        return
    (row,) = read(made, features, path)
    assert row.keys() == features.keys()


CSV = b"file,label,age\na.jpg,cat,1\nsub/b.jpg,dog,\n./c.jpg,cat,3\n"


def test_a_csv_table() -> None:
    made = labels(table="labels.csv")
    paths = ["a.jpg", "sub/b.jpg", "c.jpg", "d.jpg"]
    features = infer(made, *paths, table=CSV)
    assert features == {
        "label": ClassLabel(("cat", "dog")),
        "age": Scalar("int64", optional=True),
    }
    found = read(made, features, *paths, table=CSV)
    assert found[:3] == [
        {"label": 0, "age": 1},
        {"label": 1, "age": None},
        {"label": 0, "age": 3},
    ]
    assert found[3] == {
        "reason": "no row in the table",
        "message": "labels.csv has no row for 'd.jpg'",
    }
    assert made.why_beside("labels.csv") == "label table"
    assert made.why_beside("a.jpg") == ""
    assert made.side_urls == ("labels.csv",)


def test_rows_without_a_file_are_counted() -> None:
    made = labels(table="labels.csv")
    opened_table = _opened(made, table=CSV)
    assert made.num_unused_rows(files("a.jpg", "z.jpg"), opened_table) == 2
    assert made.num_unused_rows(files("a.jpg", "sub/b.jpg", "x/c.jpg"), opened_table) == 0
    assert labels().num_unused_rows(files("a.jpg"), opened_table) == 0


def test_names_in_a_table_may_lack_folder_and_suffix() -> None:
    table = b"image\tlabel\na\tcat\nb.jpg\tdog\n"
    made = labels(table="far/labels.tsv")
    paths = ["deep/a.jpg", "deep/er/b.jpg"]
    features = infer(made, *paths, table=table)
    assert read(made, features, *paths, table=table) == [{"label": 0}, {"label": 1}]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("3.png", "/mnt/disk/data/images/3.png"),
        ("deep/3.png", "/mnt/disk/deep/3.png"),
        ("3.png", r"C:\Users\me\images\3.png"),
        ("3.png", "gs://bucket/images/3.png"),
        ("3.png", "3.jpg"),
        ("deep/3.png", " DEEP/3 "),
        ("3.PNG", "3.png"),
        ("cafe\u0301.jpg", "caf\u00e9.jpg"),
        ("img.0001.png", "/far/img.0001"),
        ("deep/3.png", "../deep/3.png"),
    ],
)
def test_names_match_as_people_write_them(path: str, name: str) -> None:
    table = f"file,label\n{name},cat\n/far/4.png,dog\n".encode()
    made = labels(table="labels.csv")
    features = infer(made, path, table=table)
    assert read(made, features, path, table=table) == [{"label": 0}]
    assert made.num_unused_rows(files(path), _opened(made, table=table)) == 1


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/3.png", "b/3.png"),
        ("a/3.png", "/far/b/3.png"),
        ("3.png", "13.png"),
        ("img.0001.png", "img.0002"),
    ],
)
def test_names_that_contradict_do_not_match(path: str, name: str) -> None:
    table = f"file,label\n{name},cat\n4.png,dog\n".encode()
    made = labels(table="labels.csv")
    features = infer(made, "4.png", table=table)
    (row,) = read(made, features, path, table=table)
    assert row["reason"] == "no row in the table"


def test_the_longest_end_of_a_name_counts_and_must_be_unique() -> None:
    table = b"file,label\n/x/a/1.png,cat\n/x/b/1.png,dog\n"
    made = labels(table="labels.csv")
    features = infer(made, "a/1.png", "b/1.png", table=table)
    paths = ["a/1.png", "b/1.png", "1.png"]
    a, b, bare = read(made, features, *paths, table=table)
    assert (a, b) == ({"label": 0}, {"label": 1})
    assert bare["reason"] == "several rows in the table"
    assert "'x/a/1.png', 'x/b/1.png'" in bare["message"]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("file;label\na.jpg;cat\nb.jpg;dog\n", "label"),
        ("\ufefffile\tlabel\r\na.jpg\tcat\r\nb.jpg\tdog\r\n", "label"),
        (",file,label\n7,a.jpg,cat\n3,b.jpg,dog\n", "label"),
        ('"","picture","label"\n"1","a.jpg","cat"\n"2","b.jpg","dog"\n', "label"),
        (",label\na.jpg,cat\nb.jpg,dog\n", "label"),
        ("label,Image Path\ncat,a.jpg\ndog,b.jpg\n", "label"),
        ("label,image_id\ncat,a\ndog,b\n", "label"),
        ("a.jpg,cat\nb.jpg,dog\n", "column_1"),
        ("cat|a.jpg\ndog|b.jpg\n", "column_0"),
        ("a.jpg cat\nb.jpg dog\n", "column_1"),
    ],
)
def test_the_form_of_a_table_is_found(table: str, column: str) -> None:
    made = labels(table="labels.csv" if "a.jpg " not in table else "labels.txt", label=column)
    features = infer(made, "a.jpg", "b.jpg", table=table.encode())
    assert features == {column: ClassLabel(("cat", "dog"))}
    rows = read(made, features, "a.jpg", "b.jpg", table=table.encode())
    assert rows == [{column: 0}, {column: 1}]


def test_a_table_without_a_header_may_name_files_without_suffix() -> None:
    table = "LJ01-01|first\nLJ01-02|second\n".encode("cp1252")
    made = labels(table="metadata.csv", label=None)
    features = infer(made, "LJ01-01.wav", "LJ01-02.wav", table=table)
    assert read(made, features, "LJ01-01.wav", table=table) == [{"column_1": b"first"}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.txt", "cat/1.jpg\ndog/2.jpg\n"),
        ("train.txt", "cat/1\r\ndog/2\r\n"),
        ("train.csv", "file\ncat/1.jpg\n/far/dog/2.jpg\n"),
        ("train.jsonl", '{"file": "cat/1.jpg"}\n{"file": "dog/2.jpg"}\n'),
    ],
)
def test_a_list_of_files_in_class_folders(name: str, text: str) -> None:
    made = labels(table=name)
    paths = ["cat/1.jpg", "dog/2.jpg", "cow/3.jpg"]
    features = infer(made, *paths, table=text.encode())
    assert features == {"label": ClassLabel(("cat", "dog"))}
    *listed, other = read(made, features, *paths, table=text.encode())
    assert listed == [{"label": 0}, {"label": 1}]
    assert other["reason"] == "no row in the table"
    opened = _opened(made, table=text.encode())
    skipping = dataclasses.replace(made, unlisted="skip")
    assert skipping.why_unlisted(paths, opened) == {paths[2]: "file without a row in the table"}
    assert made.rows_digest(paths, features, opened) != made.rows_digest(
        paths[:2], features, opened
    )
    assert infer(labels(table=name, label=None), *paths, table=text.encode()) == {}


@pytest.mark.parametrize("end", ["csv", "jsonl"])
def test_several_rows_of_a_file_are_lists(end: str) -> None:
    made = labels(table=f"t.{end}", rows="list")
    rows = [
        ("a", "x", 1, "cat"),
        ("b", "y", 2, "dog"),
        ("/far/a", "z", 3, "dog"),
        ("a", "w", 4, "dog"),
    ]
    fields = ("file", "text", "n", "label")
    table = jsonl(*(dict(zip(fields, row, strict=True)) for row in rows))
    if end == "csv":
        lines = [",".join(map(str, row)) for row in (fields, *rows)]
        table = "\n".join(lines).encode() + b"\nc,,5,cat\n"
    features = infer(made, "a.jpg", "b.jpg", table=table)
    assert features == {
        "text": Sequence(Scalar("string")),
        "n": Sequence(Scalar("int64")),
        "label": Sequence(ClassLabel(("cat", "dog"))),
    }
    a, b, c = read(made, features, "a.jpg", "b.jpg", "c.jpg", table=table)
    assert a == {"text": [b"x", b"w"], "n": [1, 4], "label": [0, 1]}
    assert b == {"text": [b"y"], "n": [2], "label": [1]}
    assert c["reason"] == ("unfit" if end == "csv" else "no") + " row in the table"
    assert made.num_unused_rows(files("a.jpg", "b.jpg"), _opened(made, table=table)) >= 1


@pytest.mark.parametrize("end", ["csv", "jsonl"])
def test_one_hot_columns_are_the_label(end: str) -> None:
    made = labels(table=f"labels.{end}", one_hot=("nv", "mel"))
    table = b"image,age,nv,mel\na,5,0.0,1.0\nb,6,1,0\nc,7,1,1\nd,8,0,0\ne,9,0,0.5\n"
    if end == "jsonl":
        rows = [("a", 5, 0, 1), ("b", 6, 1, 0), ("c", 7, 1, 1), ("d", 8, 0, 0), ("e", 9, 0, 0.5)]
        table = jsonl(*(dict(zip(("image", "age", "nv", "mel"), row, strict=True)) for row in rows))
    paths = [f"{letter}.jpg" for letter in "abcde"]
    features = infer(made, *paths, table=table)
    assert features == {"age": Scalar("int64"), "label": ClassLabel(("nv", "mel"))}
    a, b, *others = read(made, features, *paths, table=table)
    assert (a, b) == ({"age": 5, "label": 1}, {"age": 6, "label": 0})
    assert {row["reason"] for row in others} == {"unfit row in the table"}
    assert "several 1, or none" in others[0]["message"]


def test_classes_of_one_hot_columns_have_no_blanks_around_them() -> None:
    """As Roboflow's ``_classes.csv`` has them."""
    made = labels(table="t.csv", one_hot=(" cat", " dog"))
    table = b"filename, cat, dog\n1.png,0,1\n2.png,1,0\n"
    features = infer(made, "1.png", "2.png", table=table)
    assert features == {"label": ClassLabel(("cat", "dog"))}
    rows = read(made, features, "1.png", "2.png", table=table)
    assert [row["label"] for row in rows] == [1, 0]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("image,nv,x", "no column 'mel' of numbers"),
        ("image,nv,mel,label", "has a column 'label'"),
    ],
)
def test_one_hot_columns_must_be_there(header: str, expected: str) -> None:
    made = labels(table="labels.csv", one_hot=("nv", "mel"))
    with pytest.raises(SchemaError, match=expected):
        infer(made, "a.jpg", table=f"{header}\na{',1' * header.count(',')}\n".encode())


def of_lists(**lists: str | None) -> FileLabels:
    return labels(lists={split: name and f"{name}.txt" for split, name in lists.items()})


def test_lists_of_the_files_of_splits() -> None:
    made = of_lists(test="a", train="b")
    paths = ["x/1.jpg", "x/2.jpg", "y/3.jpg", "y/4.jpg", "y/5.jpg"]
    sides = {"a": b"x/1.jpg\ny/3\n", "b": b"\xef\xbb\xbf2 0 1\r\n3\n/far/y/5.jpg\nnone.jpg\n"}
    features = infer(made, *paths, **sides)
    assert features == {"label": ClassLabel(("x", "y")), "split": ClassLabel(("test", "train"))}
    first, second, both, neither, far = read(made, features, *paths, **sides)
    assert (first, second) == ({"label": 0, "split": 0}, {"label": 0, "split": 1})
    assert far == {"label": 1, "split": 1}
    assert (both["reason"], neither["reason"]) == ("in several lists", "in no list")
    assert "a.txt and b.txt both list 'y/3.jpg'" in both["message"]
    opened = _opened(made, **sides)
    assert made.why_unlisted(paths, opened) == {"y/4.jpg": "file in no list"}
    assert made.num_unused_rows(files(*paths), opened) == 1
    assert made.why_beside("lists/a.txt") == "list of a split"
    digests = {made.rows_digest([path], features, opened) for path in paths[:3]}
    assert len(digests) == 3


def test_the_split_of_all_other_files() -> None:
    made = of_lists(train=None, test="a")
    features = infer(made, "x/1.jpg", "y/2.jpg", a=b"2.jpg")
    read_back = read(made, features, "x/1.jpg", "y/2.jpg", a=b"2.jpg")
    assert [row["split"] for row in read_back] == [0, 1]
    assert made.why_unlisted(["x/1.jpg"], _opened(made, a=b"2.jpg")) == {}
    assert made.settings() == {"lists": [["train", None], ["test", "a.txt"]]}


@pytest.mark.parametrize(
    ("names", "expected"),
    [(b"9.jpg", "names none of the 2 files"), (b"1.jpg", "matches 2 files"), (b"\xff", "UTF-8")],
)
def test_lists_that_cannot_be_meant(names: bytes, expected: str) -> None:
    with pytest.raises((DataError, SchemaError), match=expected):
        infer(of_lists(train=None, test="a"), "x/1.jpg", "y/1.jpg", a=names)


def test_a_column_without_a_name_that_is_not_an_index_is_kept() -> None:
    made = labels(table="labels.csv")
    table = b",file,label\nx,a.jpg,cat\ny,b.jpg,dog\n"
    features = infer(made, "a.jpg", table=table)
    assert features == {"column_0": Scalar("string"), "label": ClassLabel(("cat", "dog"))}


def test_a_name_that_stands_for_two_files_is_refused() -> None:
    made = labels(table="labels.csv")
    with pytest.raises(DataError, match=r"names 'a.jpg', which matches 2 files"):
        infer(made, "x/a.jpg", "y/a.jpg", table=CSV)
    features = infer(made, "x/a.jpg", table=CSV)
    assert features["label"] == ClassLabel(("cat", "dog"))


def test_two_rows_for_a_file_and_rows_that_cannot_be_read() -> None:
    table = b"file,label\na.jpg,cat\na.jpg,dog\nb.jpg,dog,too many\nc.jpg,cat\n"
    made = labels(table="labels.csv")
    features = infer(made, "a.jpg", "b.jpg", "c.jpg", table=table)
    a, b, c = read(made, features, "a.jpg", "b.jpg", "c.jpg", table=table)
    assert a["reason"] == "several rows in the table"
    assert b["reason"] == "no row in the table"
    assert "1 of its rows cannot be read" in b["message"]
    assert c == {"label": 0}


def jsonl(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_a_json_lines_table() -> None:
    table = jsonl(
        {"file": "a.jpg", "label": "cat", "camera": {"iso": 100, "name": "x"}, "tags": ["p", "q"]},
        {"file": "b.jpg", "label": "dog", "camera": {"iso": 2.5}, "ok": True},
    )
    made = labels(table="labels.jsonl")
    features = infer(made, "a.jpg", "b.jpg", table=table)
    assert features == {
        "label": ClassLabel(("cat", "dog")),
        "camera.iso": Scalar("float64"),
        "camera.name": Scalar("string", optional=True),
        "tags": Sequence(Scalar("string"), optional=True),
        "ok": Scalar("bool", optional=True),
    }
    a, b = read(made, features, "a.jpg", "b.jpg", table=table)
    assert a == {
        "label": 0,
        "camera.iso": b"\0\0\0\0\0\0Y@",
        "camera.name": b"x",
        "tags": [b"p", b"q"],
        "ok": None,
    }
    assert (b["tags"], b["ok"], b["camera.name"]) == (None, 1, None)


def test_lines_of_a_table_that_are_no_rows_are_told() -> None:
    made = labels(table="labels.jsonl")
    for line in ([1], {}, 7):
        table = jsonl({"file": "a.jpg", "label": "cat"}, line)
        features = infer(made, "a.jpg", table=table)
        assert features == {"label": ClassLabel(("cat",))}
        (row,) = read(made, features, "b.jpg", table=table)
        expected = f"labels.jsonl line 2: {line}, expected an object"
        assert f"1 of its rows cannot be read: {expected}" in row["message"]


def test_boxes() -> None:
    table = jsonl(
        {"file": "a.jpg", "boxes": [[0, 0.25, 0.5, 1]]},
        {"file": "b.jpg", "boxes": []},
        {"file": "c.jpg"},
        {"file": "d.jpg", "boxes": [[10, 20, 30, 40]]},
        {"file": "e.jpg", "boxes": [[0.5, 0, 0.25, 1]]},
        {"file": "f.jpg", "boxes": "none"},
    )
    made = labels(table="boxes.jsonl")
    paths = [f"{letter}.jpg" for letter in "abcdef"]
    features = infer(made, *paths, table=table)
    assert features == {"boxes": BoundingBoxes(image="image")}
    a, b, c, d, e, f = read(made, features, *paths, table=table)
    assert (a, b, c) == ({"boxes": [0, 0.25, 0.5, 1]}, {"boxes": []}, {"boxes": []})
    assert {row["reason"] for row in (d, e, f)} == {"unfit row in the table"}
    assert "Divide pixels by the image's size" in d["message"]
    assert "maximum is less than its minimum" in e["message"]


def test_boxes_with_labels() -> None:
    table = jsonl(
        {"file": "a.jpg", "boxes": [{"bbox": [0, 0, 1, 1], "label": "dog"}]},
        {"file": "b.jpg", "boxes": [{"bbox": [0, 0, 1, 0.5], "label": "cat"}, {"bbox": [0] * 4}]},
        {"file": "c.jpg", "boxes": []},
    )
    made = labels(table="boxes.jsonl")
    paths = ["a.jpg", "b.jpg", "c.jpg"]
    features = infer(made, *paths, table=table)
    assert features == {
        "boxes": BoundingBoxes(image="image", labels="box_labels"),
        "box_labels": Sequence(ClassLabel(("cat", "dog"))),
    }
    a, b, c = read(made, features, *paths, table=table)
    assert a == {"boxes": [0, 0, 1, 1], "box_labels": [1]}
    assert "box 1 has no label" in b["message"]
    assert c == {"boxes": [], "box_labels": []}


def test_rows_of_files_have_one_hash_wherever_they_are() -> None:
    made = labels(table="labels.csv")
    features = infer(made, "a.jpg", table=CSV)

    def digest(table: bytes, *paths: str) -> str:
        return made.rows_digest(paths, features, _opened(made, table=table))

    head, *rows = CSV.splitlines(keepends=True)
    assert len(digest(CSV, "a.jpg", "sub/b.jpg")) == 64
    turned = b"".join([head, *reversed(rows)])
    for paths in (["a.jpg"], ["sub/b.jpg", "a.jpg"], ["a.jpg", "none.jpg"], []):
        assert digest(CSV, *paths) == digest(turned, *paths)
    more = CSV + b"other.jpg,cat,9\n"
    assert digest(CSV, "a.jpg") == digest(more, "a.jpg")
    assert digest(CSV, "other.jpg") != digest(more, "other.jpg")
    double = CSV + rows[0]
    assert digest(CSV, "a.jpg") != digest(double, "a.jpg"), "the file is rejected"
    different = {digest(CSV, *paths) for paths in ([], ["a.jpg"], ["b.jpg"], ["a.jpg", "b.jpg"])}
    assert len(different) == 4
    assert labels().rows_digest(["a/b.jpg"], {}, _opened(labels())) == ""


def test_boxes_of_groups() -> None:
    alone = {"bbox": [0, 0, 1, 1], "label": "dog"}
    table = jsonl(
        {"file": "a.jpg", "boxes": [alone, {**alone, "crowd": True}]},
        {"file": "b.jpg", "boxes": [{**alone, "crowd": "yes"}]},
        {"file": "c.jpg", "boxes": []},
    )
    made = labels(table="boxes.jsonl")
    paths = ["a.jpg", "b.jpg", "c.jpg"]
    features = infer(made, *paths, table=table)
    assert features == {
        "boxes": BoundingBoxes(image="image", labels=("box_labels", "box_crowd")),
        "box_labels": Sequence(ClassLabel(("dog",))),
        "box_crowd": Sequence(Scalar("bool")),
    }
    a, b, c = read(made, features, *paths, table=table)
    assert (a["box_labels"], a["box_crowd"]) == ([0, 0], [0, 1])
    assert b["reason"] == "unfit row in the table"
    assert c["box_crowd"] == []


def test_a_table_is_read_from_beside_the_source(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(b"x")
    (tmp_path / "labels.csv").write_bytes(CSV)
    opened = open_source("images", str(tmp_path))
    assert opened.read_side("labels.csv") == CSV
    with pytest.raises(RecipeError, match="does not exist"):
        opened.read_side("other.csv")
    with pytest.raises(RecipeError, match="folder"):
        opened.read_side("images")
