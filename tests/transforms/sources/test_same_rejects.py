"""The same mistake has the same reason in every source whose format can hold it."""

import contextlib
import csv
import io
import json
import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.schemas.features import Feature

from ...file_bytes import workbook
from .conftest import Reading
from .subjects import png, wav


class Mistake(NamedTuple):
    feature: Feature
    good: Any
    bad: Any
    reason: str
    not_in: tuple[str, ...] = ()
    """Sources that cannot hold it."""


_LISTS = ("csv", "sql", "excel")
"""Their cells are no lists."""
_COLUMNS = ("parquet", "arrow", "numpy", "table", "iterable")
"""Their columns have one type, so that the source as a whole is refused."""
_TEXTS = ("csv", "json", "excel")
"""Their cells are no bytes."""
_TIMES = ("files",)
"""Their times are no texts."""
CLASSES = ss.ClassLabel(("cat", "dog"))
MISTAKES = {
    "missing": Mistake(ss.Scalar("int64"), 1, None, "missing value"),
    "missing class": Mistake(CLASSES, "cat", None, "missing value"),
    "text": Mistake(ss.Scalar("int64"), 1, "x", "wrong type", _COLUMNS),
    "text among bools": Mistake(ss.Scalar("bool"), True, "x", "wrong type", (*_COLUMNS, "sql")),
    "fraction": Mistake(ss.Scalar("int64"), 1.0, 1.5, "wrong type", ("csv", "json", "files")),
    "fraction among integers": Mistake(
        ss.Scalar("int64"), 1, 1.5, "wrong type", (*_COLUMNS, "sql", "excel")
    ),
    "too large": Mistake(ss.Scalar("uint8"), 255, 256, "out of range"),
    "negative": Mistake(ss.Scalar("uint64"), 1, -1, "out of range"),
    "too large for a float": Mistake(ss.Scalar("float32"), 1.5, 1e39, "out of range"),
    "too large for a half": Mistake(ss.Scalar("float16"), 1.5, 65520.0, "out of range"),
    "inexact": Mistake(ss.Scalar("float32"), 1, 2**24 + 1, "inexact integer", ("excel",)),
    "class": Mistake(CLASSES, "cat", "owl", "unknown class"),
    "class among lists": Mistake(
        ss.Sequence(CLASSES), ["cat"], ["cat", "owl"], "unknown class", _LISTS
    ),
    "number of a class": Mistake(ss.ClassLabel({3: "a", 7: "b"}), 3, 4, "unknown class"),
    "not a time": Mistake(ss.Timestamp("s"), "2026-11-21", "yesterday", "wrong type", _TIMES),
    "no such day": Mistake(ss.Timestamp("s"), "2026-11-21", "2026-02-30", "wrong type", _TIMES),
    "too precise": Mistake(
        ss.Timestamp("s"), "2026-11-21T00:00:00", "2026-11-21T00:00:00.5", "finer than s", _TIMES
    ),
    "length": Mistake(ss.Tensor("int64", (2,)), [1, 2], [1, 2, 3], "wrong length", _LISTS),
    "item": Mistake(ss.Tensor("int64", (2,)), [1, 2], [1, None], "missing item", _LISTS),
    "number in a list": Mistake(
        ss.Sequence(ss.Scalar("uint8")), [1], [1, 256], "out of range", _LISTS
    ),
    "not UTF-8": Mistake(ss.Text(), b"a", b"\xff", "not UTF-8", ("excel", "table")),
}
MISTAKES |= {
    "not an image": Mistake(
        ss.Image(storage="encoded"), png(1), b"a text, no image", "text, not an image", _TEXTS
    ),
    "not a sound": Mistake(
        ss.Audio(storage="encoded"), wav(1), b"a text, no sound", "text, not a sound", _TEXTS
    ),
    "no image": Mistake(ss.Image(storage="encoded"), png(1), None, "missing value", _TEXTS),
}
Types = dict[str, Any]


def _csv(reading: Reading, values: list[Any], types: Types) -> Any:
    cells = [v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v for v in values]
    sink = io.StringIO()
    csv.writer(sink).writerows([["n", "x"], *([n, cell] for n, cell in enumerate(cells))])
    content = sink.getvalue().encode("utf-8", "surrogateescape")
    return ss.Csv(reading.write("t.csv", content), types=types)


def _json_lines(reading: Reading, values: list[Any], types: Types) -> Any:
    cells = [v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v for v in values]
    lines = [json.dumps({"n": n, "x": x}, ensure_ascii=False) for n, x in enumerate(cells)]
    content = "\n".join(lines).encode("utf-8", "surrogateescape")
    return ss.JsonLines(reading.write("t.jsonl", content), types=types)


def _table_of(values: list[Any]) -> pa.Table:
    return pa.table({"n": list(range(len(values))), "x": values})


def _parquet(reading: Reading, values: list[Any], types: Types) -> Any:
    pq.write_table(_table_of(values), reading.folder / "t.parquet")
    return ss.Parquet(str(reading.folder / "t.parquet"), types=types)


def _arrow(reading: Reading, values: list[Any], types: Types) -> Any:
    table = _table_of(values)
    with pa.ipc.new_file(reading.folder / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    return ss.Arrow(str(reading.folder / "t.arrow"), types=types)


def _extracted(reading: Reading, source: Any) -> Any:
    return source.extract(str(reading.folder / "extracted"), base=str(reading.folder))


def _table(reading: Reading, values: list[Any], types: Types) -> Any:
    return _extracted(reading, ss.Table(_table_of(values), types=types))


def _iterable(reading: Reading, values: list[Any], types: Types) -> Any:
    records = [{"n": n, "x": x} for n, x in enumerate(values)]
    return _extracted(reading, ss.Iterable(records, types=types))


def _sql(reading: Reading, values: list[Any], types: Types) -> Any:
    with contextlib.closing(sqlite3.connect(reading.folder / "t.db")) as database:
        database.execute("CREATE TABLE t (n, x)")
        database.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate(values)))
        database.commit()
    query = ss.Sql(f"sqlite:///{reading.folder}/t.db", "SELECT * FROM t", key="n", types=types)
    return _extracted(reading, query)


def _excel(reading: Reading, values: list[Any], types: Types) -> Any:
    reading.write("t.xlsx", workbook({"t": [["n", "x"], *map(list, enumerate(values))]}))
    return _extracted(reading, ss.Excel(str(reading.folder / "t.xlsx"), types=types))


def _files(reading: Reading, values: list[Any], types: Types) -> Any:
    def read(file: Any) -> Any:
        del file
        return ({"n": n, "x": x} for n, x in enumerate(values))

    return ss.Files(reading.write("t.bin", b"x"), read, types=types)


SOURCES: dict[str, Callable[[Reading, list[Any], Types], Any]] = {
    "csv": _csv,
    "json": _json_lines,
    "parquet": _parquet,
    "arrow": _arrow,
    "table": _table,
    "iterable": _iterable,
    "sql": _sql,
    "excel": _excel,
    "files": _files,
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("name", SOURCES)
def test_a_mistake_has_one_reason(reading: Reading, name: str, mistake: Mistake) -> None:
    if name in mistake.not_in:
        return
    values = [mistake.good, mistake.good, mistake.bad]
    features = {"n": ss.Scalar("int64"), "x": mistake.feature}
    source = SOURCES[name](reading, values, {"x": mistake.feature})
    got = reading.read(source, features=features)
    assert [reject.reason for reject in got.rejects] == [mistake.reason]
    assert "'x'" in got.rejects[0].message
    assert len(got.rows) == 2
