"""Blanks around cells, escapes, and marks between thousands."""

import csv
import functools
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.blocks import Block, FileRange, RawBatch
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import ClassLabel, Features, Scalar
from snapshard.transforms.sources.csv import source as csv_source
from snapshard.transforms.sources.csv.source import Csv

from .memory_files import Memory, joined


def read(source: Csv, contents: dict[str, bytes], features: Features) -> RawBatch:
    """Reads all files as one block."""
    parts = tuple(
        FileRange(path=path, sha256="", start=0, stop=len(data)) for path, data in contents.items()
    )
    opened = Memory(contents)
    batches = list(
        source.read(Block(parts), features=features, opened=opened, ordered=range(len(parts)))
    )
    return joined(batches, features)


def infer(source: Csv, *files: bytes) -> dict[str, str]:
    """The dtype of each column."""
    opened = Memory({f"{number}.csv": data for number, data in enumerate(files)})
    features = source.infer(opened.files(), opened)
    return {name: getattr(feature, "dtype", "class") for name, feature in features.items()}


def texts(source: Csv, data: bytes, *names: str) -> list[list[str]]:
    """The cells of columns as texts, row by row."""
    features = {name: Scalar("string") for name in names}
    found = read(source, {"a.csv": data}, features)
    assert found.rejects == ()
    return texts_of(found, *names)


def texts_of(found: RawBatch, *names: str) -> list[list[str]]:
    rows = zip(*(found.columns[name].to_pylist() for name in names), strict=True)
    return [[cell.decode() for cell in row] for row in rows]


RAW = functools.partial(Csv, "a.csv", null_values=("-",))


# Blanks


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        (b"x, y", ["x", "y"]),
        (b" x y\t,\ty z  ", ["x y", "y z"]),
        (b'  "x, y" ,"  y "', ["x, y", "  y "]),
        (b'"x""y", "\n y"', ['x"y', "\n y"]),
        (b'x "y", 5" z', ['x "y"', '5" z']),
        (b"  ,\t", ["", ""]),
        (" é , ü ".encode(), ["é", "ü"]),
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_blanks_around_cells_are_left_out(row: bytes, cells: list[str], delimiter: str) -> None:
    def swapped(text: str) -> str:
        return text.replace(",", delimiter)

    mark = delimiter.encode()
    data = (b" a , b\n1,2\n" + row + b"\r\n  \n3,4").replace(b",", mark)
    found = texts(RAW(delimiter=delimiter, strip=True), data, "a", "b")
    assert found == [["1", "2"], [*map(swapped, cells)], ["3", "4"]]


def test_only_blanks_are_left_out_between_tabs() -> None:
    data = b"a\tb\n x \t\n\t y\n"
    assert texts(RAW(delimiter="\t", strip=True), data, "a", "b") == [["x", ""], ["", "y"]]


def test_missing_values_and_classes_have_no_blanks_around() -> None:
    data = b"x, y, z\n1, NA, yes\n2, 5, no\n"
    assert infer(Csv("a.csv", strip=True), data) == {"x": "int64", "y": "int64", "z": "string"}
    opened = Memory({"a.csv": data})
    features = Csv("a.csv", strip=True, label="z").infer(opened.files(), opened)
    assert features["z"] == ClassLabel(("no", "yes"))


CELL = st.text(st.sampled_from('ab \t",\n1'), max_size=6)


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=5), st.integers(1, 30), st.data())
def test_quoted_cells_keep_all_that_is_in_them(
    rows: list[tuple[str, str]], window_bytes: int, data: st.DataObject
) -> None:
    blanks = st.text(" \t", max_size=3)

    def written(cell: str) -> str:
        quoted = '"' + cell.replace('"', '""') + '"'
        return data.draw(blanks) + quoted + data.draw(blanks)

    lines = (",".join(map(written, row)) + "\n" for row in rows)
    content = ("a,b\n" + "".join(lines)).encode()
    with pytest.MonkeyPatch.context() as patch:
        small = functools.partial(csv_source.find_rows, window_bytes=window_bytes)
        patch.setattr(csv_source, "find_rows", small)
        features = {"a": Scalar("string"), "b": Scalar("string")}
        found = read(RAW(strip=True), {"a.csv": content}, features)
    # A cell over lines that each look complete is refused.
    expected = [list(row) for row in rows]
    kept = texts_of(found, *features)
    assert len(kept) + len(found.rejects) == len(rows)
    assert kept == [row for row in expected if row in kept]


# Escapes


def python_rows(text: str, **settings: Any) -> list[list[str]]:
    lines = io.StringIO(text, newline="")
    return [row for row in csv.reader(lines, escapechar="\\", **settings) if row]


@pytest.mark.parametrize(
    "text",
    [
        '"a \\"b\\" c",d\n',
        "a\\,b,c\nd,e\n",
        '"x\\\\",y\n"x\\\\\\"",y\n',
        "a\\\nb,c\nd,e\n",
        '"a""b\\"",c\n',
        '\\"a,b\n',
        'a,"b\\\n"\n',
        "\\é,\\a\n",
        "a\\\r\nb,c\n",
        "007,\\007\n",
    ],
)
def test_escapes_mean_what_they_mean_to_python(text: str) -> None:
    data = ("n,m\n" + text + "1,2\n").encode()
    source = RAW(escape="\\")
    expected = python_rows(text + "1,2\n")
    if any(len(row) != 2 for row in expected):
        features = {"n": Scalar("string"), "m": Scalar("string")}
        found = read(source, {"a.csv": data}, features)
        whole = [row for row in expected if len(row) == 2]
        assert len(found.rejects) == len(expected) - len(whole)
        return
    assert texts(source, data, "n", "m") == expected


CHARS = st.sampled_from(["a", "\\", '"', ",", "\n", " ", "é"])


@given(
    st.lists(st.lists(st.text(CHARS, max_size=5), min_size=2, max_size=2), min_size=1), st.data()
)
def test_what_python_escapes_is_read(rows: list[list[str]], data: st.DataObject) -> None:
    quoted = data.draw(st.booleans())
    held = io.StringIO(newline="")
    settings: dict[str, Any] = {"doublequote": False, "quoting": csv.QUOTE_ALL}
    if not quoted:
        settings = {"quoting": csv.QUOTE_NONE, "quotechar": None}
    writer = csv.writer(held, escapechar="\\", lineterminator="\n", **settings)
    writer.writerows(rows)
    content = ("n,m\n" + held.getvalue()).encode()
    source = RAW(escape="\\", quote='"' if quoted else None)
    with pytest.MonkeyPatch.context() as patch:
        size = data.draw(st.integers(1, 40))
        small = functools.partial(csv_source.find_rows, window_bytes=size)
        patch.setattr(csv_source, "find_rows", small)
        features = {"n": Scalar("string"), "m": Scalar("string")}
        found = read(source, {"a.csv": content}, features)
    kept = texts_of(found, *features)
    assert len(kept) + len(found.rejects) == len(rows)
    assert kept == [row for row in rows if row in kept]
    if not any("\n" in cell for row in rows for cell in row):
        assert kept == rows


def test_an_escape_at_the_end_is_a_reject() -> None:
    contents = {"a.csv": b"n,m\n1,x\n2,y\\", "b.csv": b"n,m\n3,z\n"}
    features = {"n": Scalar("int64"), "m": Scalar("string")}
    found = read(Csv("folder", escape="\\"), contents, features)
    assert found.columns.to_pydict() == {"n": [1, 3], "m": [b"x", b"z"]}
    (reject,) = found.rejects
    assert reject.reason == "nothing after the escape"
    assert infer(Csv("folder", escape="\\"), *contents.values()) == {"n": "int64", "m": "string"}


def test_a_quote_after_a_backslash_is_a_reject_that_names_the_setting() -> None:
    data = {"a.csv": b'n,m\n1,"a \\"b\\" c"\n2,x\n'}
    found = read(Csv("a.csv"), data, {"n": Scalar("int64"), "m": Scalar("string")})
    assert "set escape='\\\\' in the source" in found.rejects[0].message


def test_blanks_may_be_escaped() -> None:
    assert texts(RAW(escape="\\", strip=True), b"a, b\n\\ x , y\\ \n", "a", "b") == [[" x", "y "]]


# Thousands


@pytest.mark.parametrize(
    ("source", "data", "columns"),
    [
        (
            Csv("a.csv", thousands=","),
            b'n,x,t\n"1,234,567","1,234.5","1,234"\n-12, 0.25 ,a\n"1,000",NA,b\n',
            {"n": [1234567, -12, 1000], "x": [1234.5, 0.25, None], "t": [b"1,234", b"a", b"b"]},
        ),
        (
            Csv("a.csv", delimiter=";", thousands=".", decimal=","),
            b"n;x;t\n1.234.567;1.234,5;1.23\n-12;0,25;1\n1.000;;2\n",
            {"n": [1234567, -12, 1000], "x": [1234.5, 0.25, None], "t": [b"1.23", b"1", b"2"]},
        ),
        (
            Csv("a.csv", thousands=" "),
            b"n,x,t\n1 234 567, 1 234.5,0 123\n-12,.25,1\n1 000,,2\n",
            {"n": [1234567, -12, 1000], "x": [1234.5, 0.25, None], "t": [b"0 123", b"1", b"2"]},
        ),
        (
            Csv("a.csv", thousands="'"),
            b"n,x,t\n1'234'567,1'234.5,007\n-12,.25,1'000\n1'000,,2\n",
            {
                "n": [1234567, -12, 1000],
                "x": [1234.5, 0.25, None],
                "t": [b"007", b"1'000", b"2"],
            },
        ),
    ],
)
def test_marks_between_thousands(source: Csv, data: bytes, columns: dict[str, list[Any]]) -> None:
    opened = Memory({"a.csv": data})
    features = dict(source.infer(opened.files(), opened))
    assert features == {
        "n": Scalar("int64"),
        "x": Scalar("float32", optional=True),
        "t": Scalar("string"),
    }
    found = read(source, {"a.csv": data}, features)
    assert found.rejects == ()
    assert found.columns.to_pydict() == columns


@pytest.mark.parametrize(
    ("dtype", "cell", "expected"),
    [
        ("int32", b"2,147,483,647", 2147483647),
        ("int32", b"2,147,483,648", "out of range"),
        ("uint64", b"1,000", 1000),
        ("int64", b"1,00", "wrong type"),
        ("int64", b"1,000.5", "wrong type"),
        ("int64", b"x\n1,000", "wrong type"),
        ("int64", b"0x10", 16),
        ("float32", b"16,777,217", "inexact integer"),
        ("float32", b"16,777,217.0", 16777216.0),
        ("float32", b"1e5", 1e5),
        ("float32", b"inf", np.inf),
        ("float32", b"1,000\xff", "wrong type"),
        ("string", b"1,000", b"1,000"),
    ],
)
def test_cells_with_marks(dtype: Any, cell: bytes, expected: object) -> None:
    data = b'a,b\n"' + cell + b'",1\n5,2\n'
    found = read(Csv("a.csv", thousands=","), {"a.csv": data}, {"a": Scalar(dtype)})
    if found.rejects:
        (reject,) = found.rejects
        assert (reject.reason, len(found.ids)) == (expected, 1)
    else:
        assert found.columns["a"][0].as_py() == expected


@given(st.lists(st.integers(-(10**12), 10**12) | st.floats(-1e9, 1e9), min_size=1))
def test_marks_change_no_number(numbers: list[float]) -> None:
    plain = "a,b\n" + "".join(f"{number!r},1\n" for number in numbers)
    marked = "a,b\n" + "".join(
        f'"{number:,}",1\n' if isinstance(number, int) else f"{number!r},1\n" for number in numbers
    )
    source = Csv("a.csv", thousands=",")
    assert infer(source, marked.encode()) == infer(Csv("a.csv"), plain.encode())
    features = {"a": Scalar("float64")}
    one = read(source, {"a.csv": marked.encode()}, features)
    other = read(Csv("a.csv"), {"a.csv": plain.encode()}, features)
    assert one.columns.equals(other.columns)


@pytest.mark.parametrize(
    ("cell", "setting"),
    [
        (b"1,234", "thousands=','"),
        (b"1.234.567", "thousands='.', decimal=','"),
        (b"1 234.5", "thousands=' '"),
    ],
)
def test_a_reject_of_a_number_with_marks_names_the_setting(cell: bytes, setting: str) -> None:
    data = {"a.csv": b'a,b\n"' + cell + b'",1\n'}
    (reject,) = read(Csv("a.csv"), data, {"a": Scalar("int64")}).rejects
    assert f"If it is a number, set {setting} in the source" in reject.message


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"thousands": "x"}, "thousands"),
        ({"thousands": "."}, "is the decimal mark, too"),
        ({"thousands": ",", "quote": None}, "is the delimiter, and quote=None"),
        ({"strip": True, "delimiter": "whitespace"}, "strip=True, but"),
        ({"strip": True, "delimiter": " "}, "strip=True, but"),
        ({"escape": "a"}, "escape='a'"),
        ({"escape": '"'}, "escape="),
        ({"escape": ",", "delimiter": ","}, "expected three different"),
        ({"escape": "\\", "delimiter": "whitespace"}, "expected three different"),
        ({"escape": "#", "comment": "#"}, "expected three different"),
        ({"escape": "\\", "null_values": ("\\N",)}, "is never a cell"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        Csv("t", **settings)


@pytest.mark.parametrize(
    "settings", [{"thousands": ","}, {"strip": True}, {"escape": "\\"}], ids=str
)
def test_settings_shape_records_only_where_given(settings: dict[str, Any]) -> None:
    assert not {"thousands", "strip", "escape"} & Csv("t").settings().keys()
    assert Csv("t", **settings).settings() == Csv("t").settings() | settings
    assert f"{next(iter(settings))}=" in repr(Csv("t", **settings))
