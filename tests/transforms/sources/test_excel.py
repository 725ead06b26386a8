"""Excel: typed columns of one sheet, and what a sheet may hold beyond a table."""

import datetime
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import snapshard as ss
from snapshard.schemas.errors import DataError, RecipeError, SchemaError, SourceChangedError
from snapshard.schemas.limits import Limits
from snapshard.transforms.sources import excel

from ...file_bytes import Clock, workbook, zip_of

DAY = datetime.date(2024, 2, 29)
NOON = datetime.datetime(2024, 3, 1, 12, 30)
HOURS = datetime.timedelta(hours=30)
DEFAULT = Limits()


def extract(reading: Any, source: ss.Excel, *, limits: Limits = DEFAULT) -> Any:
    folder = str(reading.folder / "work/extracted")
    return source.extract(folder, base=str(reading.folder), limits=limits)


def read(reading: Any, rows: Sequence[Sequence[Any]], **settings: Any) -> Any:
    reading.write("t.xlsx", workbook({"t": rows}))
    return reading.read(extract(reading, ss.Excel("t.xlsx", **settings)))


def test_every_type(reading: Any) -> None:
    rows = [
        ["n", "x", "ok", "text", "day", "time", "took"],
        [1, 0.5, True, "a", DAY, NOON, HOURS],
        [-2, 3, False, "007", DAY, DAY, HOURS],
    ]
    got = read(reading, rows)
    assert got.features == {
        "n": ss.Scalar("int64"),
        "x": ss.Scalar("float64"),
        "ok": ss.Scalar("bool"),
        "text": ss.Scalar("string"),
        "day": ss.Timestamp("us"),
        "time": ss.Timestamp("us"),
        "took": ss.Scalar("int64", unit="us"),
    }
    assert list(got.rows) == ["sheet#2", "sheet#3"]
    first, second = got.rows.values()
    assert [np.frombuffer(row.pop("x"))[0] for row in (first, second)] == [0.5, 3]
    since = [d - datetime.datetime(1970, 1, 1) for d in (NOON, datetime.datetime(2024, 2, 29))]
    micro = datetime.timedelta(microseconds=1)
    assert first == {
        **{"n": 1, "ok": True, "text": b"a"},
        **{"day": since[1] // micro, "time": since[0] // micro, "took": HOURS // micro},
    }
    assert (second["n"], second["text"]) == (-2, b"007")
    assert second["time"] == since[1] // micro


def test_times_below_zero_and_of_nearly_a_day(reading: Any) -> None:
    """python-calamine loses their sign, or the day."""
    days = [0.25, -0.1, -0.25, -1, 0.1, 0.999999999, -2.5]
    rows = [[], [None, "took", "n"]]
    rows += [[None, Clock(one), -number] for number, one in enumerate(days)]
    got = read(reading, rows)
    assert got.features["took"] == ss.Scalar("int64", unit="us")
    micro = datetime.timedelta(microseconds=1)
    expected = [datetime.timedelta(days=one) // micro for one in days]
    assert [row["took"] for row in got.rows.values()] == expected


def test_missing_cells_and_rows(reading: Any) -> None:
    rows = [[], ["a", "b"], [1, None], [], [None, "#N/A"], [None, 2.5]]
    got = read(reading, rows)
    assert got.features == {
        "a": ss.Scalar("int64", optional=True),
        "b": ss.Scalar("float64", optional=True),
    }
    assert got.rows == {
        "sheet#3": {"a": 1, "b": None},
        "sheet#6": {"a": None, "b": np.float64(2.5).tobytes()},
    }


@pytest.mark.parametrize(
    ("cells", "types", "values", "rejected"),
    [
        ([1, 2, "n/a"], None, [1, 2], "column 'x' is 'n/a', expected a number"),
        ([DAY, DAY, 3], None, 2, "column 'x' is '3', expected a date"),
        ([True, False, "maybe"], None, [True, False], "is 'maybe', expected a bool"),
        ([1, 2.5, "n/a"], {"x": "string"}, [b"1", b"2.5", b"n/a"], None),
        (["a", 1, 2.5, True, "b"], None, [b"a", b"1", b"2.5", b"TRUE", b"b"], None),
        (["a", 1], None, [1], "is 'a', expected a number"),
        ([1, 2, 2**53], None, np.array([1, 2, 2**53], float), None),
    ],
)
def test_most_cells_decide(
    reading: Any, cells: list[Any], types: Any, values: Any, rejected: str | None
) -> None:
    got = read(reading, [["x"], *([cell] for cell in cells)], types=types)
    if isinstance(values, np.ndarray):
        values = [value.tobytes() for value in values]
    assert got.column("x") == values or len(got.rows) == values
    assert [rejected in message for message in got.rejected.values()] == [True] * bool(rejected)


@pytest.mark.parametrize(
    ("rows", "columns", "notes"),
    [
        ([[None, "x"], [0, 5], [1, 6]], ["x"], ["'column_0': 'int64'} reads it"]),
        ([[None, "x"], [3, 5], [1, 6]], ["column_0", "x"], ["is read as 'column_0'"]),
        ([["x", None], [1, None], [2, None]], ["x"], []),
        ([["x", "x"], [1, 2]], ["x", "x_2"], ["another column named 'x' is read as 'x_2'"]),
        ([[2020, DAY], [1, 2]], ["2020", "2024-02-29"], []),
    ],
)
def test_names(reading: Any, rows: list[Any], columns: list[str], notes: list[str]) -> None:
    reading.write("t.xlsx", workbook({"t": rows}))
    table = extract(reading, ss.Excel("t.xlsx"))
    assert list(table.columns) == columns
    assert len(table.notes) == len(notes)
    assert all(map(str.__contains__, table.remarks([], None), notes))


def test_an_index_that_is_declared_is_read(reading: Any) -> None:
    got = read(reading, [[None, "x"], [0, 5], [1, 6]], types={"column_0": "int64"})
    assert got.column("column_0") == [0, 1]


@pytest.mark.parametrize(
    ("sheets", "settings", "error", "words"),
    [
        ({"a": [["x"], [1]], "b": [["x"], [1]], "e": []}, {}, DataError, "holds 2 sheets"),
        ({"a": [["x"], [1]]}, {"sheet": "A"}, RecipeError, "no sheet 'A'. Its sheets are 'a'"),
        ({"a": [["x"]]}, {}, DataError, "no rows below its header"),
        ({"a": []}, {}, DataError, "no visible sheet with cells"),
        ({"a": [["Sales of 2024"], ["x", "y", "z"], [1, 2, 3]]}, {}, SchemaError, "names 1 of 3"),
        ({"a": [["x"], [1]]}, {"label": "y"}, RecipeError, "'y'"),
    ],
)
def test_refusals(
    reading: Any, sheets: Any, settings: Any, error: type[Exception], words: str
) -> None:
    reading.write("t.xlsx", workbook(sheets))
    with pytest.raises(error, match=words) as caught:
        reading.read(extract(reading, ss.Excel("t.xlsx", **settings)))
    lines = [line.strip() for line in str(caught.value).split("\n") if "source=" in line]
    if len(sheets) > 1:
        assert lines == [f'source=ss.Excel("t.xlsx", sheet="{name}")' for name in "ab"]


def test_hidden_sheets_are_read_if_named(reading: Any) -> None:
    rows = [["x"], [1]]
    content = workbook({"a": rows, "b": [["y"], [2]]}, hidden=["b"])
    reading.write("t.xlsx", content)
    assert reading.read(extract(reading, ss.Excel("t.xlsx"))).column("x") == [1]
    assert reading.read(extract(reading, ss.Excel("t.xlsx", sheet="b"))).column("y") == [2]


@pytest.mark.parametrize("scheme", ["memory", "zip"])
def test_elsewhere(reading: Any, scheme: str) -> None:
    content = workbook({"t": [["x"], [1]]})
    if scheme == "memory":
        fsspec.filesystem("memory").pipe("/excel/t.xlsx", content)
        url = "memory://excel/t.xlsx"
    else:
        reading.write("a.zip", zip_of({"t.xlsx": content}))
        url = "zip://t.xlsx::a.zip"
    assert reading.read(extract(reading, ss.Excel(url))).column("x") == [1]
    assert not list((reading.folder / "work").glob("scratch/*"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"x,y\n1,2\n", "cannot be read"),
        (workbook({"t": [["x"], [1]]})[:-30], "cannot be read"),
        (zip_of({"content.xml": b"<office/>"}), "Save it as .xlsx"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64, "Git LFS"),
    ],
)
def test_damage(reading: Any, content: bytes, words: str) -> None:
    reading.write("t.xlsx", content)
    with pytest.raises(DataError, match=words):
        extract(reading, ss.Excel("t.xlsx"))


def far(cells: str) -> bytes:
    book = workbook({"t": [["x"], [1]]})
    inner = f"<worksheet><sheetData>{cells}</sheetData></worksheet>".encode()
    reading = zipfile.ZipFile(io.BytesIO(book))
    return zip_of({n: inner if "worksheets" in n else reading.read(n) for n in reading.namelist()})


@pytest.mark.parametrize(
    "cells",
    [
        '<row r="1"><c r="A1"/></row><row r="1048576"><c r="XFD1048576"><v>1</v></c></row>',
        "<row>" + "<c/>" * 16_000 + "<c><v>1</v></c></row><row r='1048000'><c><v>1</v></c></row>",
        "<x:row r='5'/><x:row><x:c r='XFD6'/></x:row><x:row r='1048000'/>",
    ],
)
def test_a_sheet_that_would_fill_the_memory(reading: Any, cells: str) -> None:
    reading.write("t.xlsx", far(cells))
    with pytest.raises(
        DataError, match=r"extends over 1,048,[0-9]{3} rows and 16,[0-9]{3} columns"
    ):
        extract(reading, ss.Excel("t.xlsx"))


def test_a_sheet_that_expands(reading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excel, "FREE_BYTES", 1 << 10)
    reading.write("t.xlsx", far("<row/>" * 10_000 + "<row><c><v>1</v></c></row>" * 2))
    with pytest.raises(DataError, match=r"grows to over 5 times its size .limits="):
        extract(reading, ss.Excel("t.xlsx"), limits=Limits(max_expansion=5))


def test_a_change_while_it_is_read(reading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(reading.write("t.xlsx", workbook({"t": [["x"], [1]]})))
    plain = excel.extract_batches

    def change(*args: Any) -> Any:
        path.write_bytes(workbook({"t": [["x"], [2]]}))
        return plain(*args)

    monkeypatch.setattr(excel, "extract_batches", change)
    with pytest.raises(SourceChangedError, match=r"t\.xlsx"):
        extract(reading, ss.Excel("t.xlsx"))
