"""Folders named key=value are columns of the tables in them."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.schemas.errors import SchemaError
from snapshard.schemas.features import ClassLabel, Scalar, Timestamp

CITIES = ("São Paulo", "a=b", "x/y")
MISSING = "__HIVE_DEFAULT_PARTITION__"
KINDS = {"csv": ss.Csv, "jsonl": ss.JsonLines, "parquet": ss.Parquet, "feather": ss.Arrow}


def write(reading: Any, kind: str, folders: str, *, start: int = 0) -> None:
    rows = pa.table({"n": [start, start + 1], "s": ["a", "b"]})
    path = reading.folder / "d" / folders / f"part-0.{kind}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "csv":
        path.write_text("n,s\n" + "".join(f"{row['n']},{row['s']}\n" for row in rows.to_pylist()))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    elif kind == "parquet":
        pq.write_table(rows, path)
    else:
        pa.feather.write_feather(rows, path)


def write_all(reading: Any, kind: str) -> Iterator[tuple[str, str]]:
    for number, (city, month) in enumerate((c, m) for c in CITIES for m in ("01", MISSING)):
        write(reading, kind, f"city={quote(city, safe='')}/month={month}", start=10 * number)
        yield city, month


@pytest.mark.parametrize("kind", KINDS)
def test_folders_are_columns_as_in_pyarrow(reading: Any, kind: str) -> None:
    folders = list(write_all(reading, kind))
    got = reading.read(KINDS[kind](str(reading.folder / "d"), hive=True, label="city"))
    assert got.features == {
        "n": Scalar("int64"),
        "s": Scalar("string"),
        "city": ClassLabel(tuple(sorted(CITIES))),
        "month": Scalar("int64", optional=True),
    }
    found = [(row["n"], sorted(CITIES)[row["city"]], row["month"]) for row in got.rows.values()]
    expected = [
        (10 * number + i, city, None if month == MISSING else 1)
        for number, (city, month) in enumerate(folders)
        for i in range(2)
    ]
    assert sorted(found) == expected
    if kind == "parquet":
        table = pa.dataset.dataset(reading.folder / "d", partitioning="hive").to_table()
        rows = table.select(["n", "city", "month"]).to_pylist()
        assert sorted(tuple(row.values()) for row in rows) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_are_declared(reading: Any, kind: str) -> None:
    for day in ("2024-01-01", "2024-01-02"):
        write(reading, kind, f"day={day}/hour=07/ok=true/x=1.5")
    types: dict[str, Any] = {"day": Timestamp("s"), "hour": "string", "ok": "bool", "x": "float32"}
    got = reading.read(KINDS[kind](str(reading.folder / "d"), hive=True, types=types))
    *_, last = got.rows.values()
    assert (last["day"], last["hour"], last["ok"]) == (1704153600, b"07", 1)
    assert got.features["x"] == Scalar("float32")
    only = reading.read(
        KINDS[kind](str(reading.folder / "d"), hive=True), features={"hour": Scalar("int64")}
    )
    assert only.column("hour") == [7] * 4


def test_what_is_refused(reading: Any) -> None:
    source = ss.Csv(str(reading.folder / "d"), hive=True)
    write(reading, "csv", "year=2024")
    write(reading, "csv", "other")
    with pytest.raises(SchemaError, match=r"folders of the same keys.*found other.* and year=2024"):
        reading.read(source)
    (reading.folder / "d/other/part-0.csv").unlink()
    with pytest.raises(SchemaError, match="year=2024, but 'year' is declared as Scalar"):
        reading.read(source, features={"n": Scalar("int64"), "year": Scalar("bool")})
    write(reading, "csv", "n=1/year=2024")
    (reading.folder / "d/year=2024/part-0.csv").unlink()
    with pytest.raises(SchemaError, match="'n' is both a column"):
        reading.read(source)
