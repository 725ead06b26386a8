"""Integers read as floats: each is the same number, or a reject. Of every source, by one rule."""

import contextlib
import csv
import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import SchemaError
from snapshard.transforms.examples.dtypes import PRECISION, holds_exactly, numpy_dtype
from snapshard.transforms.sources.custom import Files

from ...file_bytes import ipc
from . import test_file_labels as side_tables
from .test_tfrecord_files import example, framed
from .test_web_dataset import npy, tar_of

FLOATS = tuple(PRECISION)


def integers(dtype: str) -> tuple[list[int], list[int]]:
    """Integers that a dtype of floats holds, and such that it does not."""
    limit = 2 ** PRECISION[dtype]
    exact = [0, 1, -limit, limit, limit + 2]
    inexact = [limit + 1, -limit - 1, 2 * limit + 1]
    if dtype != "float16":
        exact += [4 * limit + 8, -(2**60)]
        inexact += [4 * limit + 1, 2**62 + 1, 2**63 - 1]
    return exact, inexact


Make = Callable[[Any, list[int], str], Any]
"""Gives a source of integers in a column that is declared as floats; or it and its features."""


def _parquet(reading: Any, values: list[int], dtype: str) -> Any:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), sink)
    return ss.Parquet(reading.write("a.parquet", sink.getvalue()), types={"x": dtype})


def _decimals(reading: Any, values: list[int], dtype: str) -> Any:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array(values, pa.decimal128(30, 0))}), sink)
    return ss.Parquet(reading.write("a.parquet", sink.getvalue()), types={"x": dtype})


def _lists(reading: Any, values: list[int], dtype: str) -> Any:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [[value] for value in values]}), sink)
    return ss.Parquet(reading.write("a.parquet", sink.getvalue()), types={"x": dtype})


def _arrow(reading: Any, values: list[int], dtype: str) -> Any:
    return ss.Arrow(
        reading.write("a.arrow", ipc(pa.table({"x": values}), stream=True)), types={"x": dtype}
    )


def _hugging_face(reading: Any, values: list[int], dtype: str) -> Any:
    return ss.HuggingFace(
        reading.write("a.arrow", ipc(pa.table({"x": values}), stream=True)), types={"x": dtype}
    )


def _extracted(reading: Any, source: Any) -> Any:
    return source.extract(str(reading.folder / "work/extracted"), base=str(reading.folder))


def _table_of(make: Callable[[list[int]], Any]) -> Make:
    return lambda reading, values, dtype: _extracted(
        reading, ss.Table(make(values), types={"x": dtype})
    )


def _numpy(reading: Any, values: list[int], dtype: str) -> Any:
    return ss.Numpy(reading.write("x.npy", npy(np.array(values))), name="x", types={"x": dtype})


def _archive(reading: Any, values: list[int], dtype: str) -> Any:
    sink = io.BytesIO()
    np.savez(sink, x=np.array(values))
    return ss.Numpy(reading.write("x.npz", sink.getvalue()), types={"x": dtype})


def _sqlite(mixed: bool) -> Make:
    def make(reading: Any, values: list[int], dtype: str) -> Any:
        path = reading.folder / "t.db"
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE t (id INTEGER, x)")
            rows: list[tuple[int, Any]] = list(enumerate(values))
            rows += [(len(values), 0.5)] if mixed else []
            database.executemany("INSERT INTO t VALUES (?, ?)", rows)
            database.commit()
        query = "SELECT id, x FROM t"
        return _extracted(reading, ss.Sql(str(path), query, key="id", types={"x": dtype}))

    return make


def _csv(reading: Any, values: list[int], dtype: str) -> Any:
    sink = io.StringIO()
    csv.writer(sink).writerows([["y", "x"], *([0, value] for value in values)])
    return ss.Csv(reading.write("a.csv", sink.getvalue().encode()), types={"x": dtype})


def _json_lines(nested: bool) -> Make:
    def make(reading: Any, values: list[int], dtype: str) -> Any:
        lines = [json.dumps({"x": [value] if nested else value}) for value in values]
        path = reading.write("a.jsonl", "\n".join(lines).encode())
        return ss.JsonLines(path, types={"x": dtype})

    return make


def _records(reading: Any, values: list[int], dtype: str) -> Any:
    content = framed([example(x=value) for value in values])
    return ss.TFRecords(reading.write("a.tfrecord", content), types={"x": dtype})


def _samples(part: str, write: Callable[[int], bytes], name: str) -> Make:
    def make(reading: Any, values: list[int], dtype: str) -> Any:
        members = [(f"{i:04}.{part}", write(value)) for i, value in enumerate(values)]
        of = ss.Tensor(dtype, (1,)) if part == "npy" else ss.Scalar(dtype)  # type: ignore[arg-type]
        return ss.WebDataset(reading.write("a.tar", tar_of(members))), {name: of}

    return make


def _function(record: Callable[[int], Any]) -> Make:
    def make(reading: Any, values: list[int], dtype: str) -> Any:
        for i, value in enumerate(values):
            reading.write(f"in/{i:04}.txt", str(value).encode())

        def read(file: Any) -> Iterator[Any]:
            yield record(int(file.read()))

        return Files(str(reading.folder / "in"), read=read, types={"x": dtype})

    return make


SOURCES: dict[str, Make] = {
    "Parquet": _parquet,
    "Parquet, decimals": _decimals,
    "Parquet, lists": _lists,
    "Arrow": _arrow,
    "HuggingFace": _hugging_face,
    "Table of an array": _table_of(lambda values: {"x": np.array(values)}),
    "Table of objects": _table_of(lambda values: {"x": np.array(values, object)}),
    "Table of a list": _table_of(lambda values: {"x": values}),
    "Table of pandas": _table_of(lambda values: pd.DataFrame({"x": values})),
    "Numpy, npy": _numpy,
    "Numpy, npz": _archive,
    "Sql": _sqlite(mixed=False),
    "Sql, reals among them": _sqlite(mixed=True),
    "Csv": _csv,
    "JsonLines": _json_lines(nested=False),
    "JsonLines, lists": _json_lines(nested=True),
    "TFRecords": _records,
    "WebDataset, cls": _samples("cls", lambda value: b"%d" % value, "label"),
    "WebDataset, json": _samples("json", lambda value: b'{"x": %d}' % value, "json.x"),
    "WebDataset, npy": _samples("npy", lambda value: npy(np.array([value])), "array"),
    "Files, dicts": _function(lambda value: {"x": value}),
    "Files, lists": _function(lambda value: {"x": [value, 0.5]}),
    "Files, batches": _function(lambda value: pa.record_batch({"x": pa.array([value])})),
}


def floats(feature: Any, wire: Any) -> list[float]:
    """The numbers of one record's wire value."""
    if isinstance(wire, bytes):
        (column,) = feature.wire_columns("x")
        return np.frombuffer(wire, numpy_dtype(column.packed)).astype(np.float64).tolist()
    return wire if isinstance(wire, list) else [wire]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", SOURCES)
def test_integers_as_floats_are_exact_or_rejected(reading: Any, kind: str, dtype: str) -> None:
    exact, inexact = integers(dtype)
    if kind == "WebDataset, cls":  # of 18 digits at most
        exact, inexact = ([v for v in some if abs(v) < 10**18] for some in (exact, inexact))
    made = SOURCES[kind](reading, exact + inexact, dtype)
    source, features = made if isinstance(made, tuple) else (made, None)
    got = reading.read(source, features=features)
    (name,) = got.features.keys() - {"id", "y", "__key__"}
    form = got.features[name].form
    assert form.dtype == dtype
    found = [floats(got.features[name], row[name])[0] for row in got.rows.values()]
    others = [0.5] if kind == "Sql, reals among them" else []
    assert sorted(found) == sorted([*map(float, exact), *others])
    assert len(got.rejects) == len(inexact), got.rejected
    messages = "\n".join(got.rejected.values())
    for value in inexact:
        assert str(value) in messages
    assert dtype in messages


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["Csv", "JsonLines", "Files, dicts"])
def test_what_is_outside_of_the_inferred_sample(reading: Any, kind: str, dtype: str) -> None:
    """A column that was inferred as floats meets integers later."""
    exact, inexact = integers(dtype)
    got = reading.read(
        SOURCES[kind](reading, exact + inexact, dtype), features={"x": ss.Scalar(dtype)}
    )
    assert len(got.rows) == len(exact)
    assert {reject.reason for reject in got.rejects} <= {"inexact integer"}
    assert len(got.rejects) == len(inexact)


def test_numbers_that_are_no_integers_are_rounded(reading: Any) -> None:
    texts = ["0.1", "16777217.0", "1.6777217e7", "9007199254740993.0", "123456789.5"]
    rows = "".join(f"{text},0\n" for text in texts)
    got = reading.read(
        ss.Csv(reading.write("a.csv", f"x,y\n{rows}".encode()), types={"x": "float32"})
    )
    assert not got.rejects
    expected = [float(np.float32(text)) for text in texts]
    assert got.column("x") == expected
    lines = "".join(f'{{"x": {text}}}\n' for text in texts)
    path = reading.write("a.jsonl", lines.encode())
    assert reading.read(ss.JsonLines(path, types={"x": "float32"})).column("x") == expected
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": list(map(float, texts))}), sink)
    path = reading.write("a.parquet", sink.getvalue())
    assert reading.read(ss.Parquet(path, types={"x": "float32"})).column("x") == expected


@pytest.mark.parametrize("value", [123456790, 16777217, 2**30 + 64, 2**53 + 1])
def test_csv_infers_a_type_that_holds_its_integers(reading: Any, value: int) -> None:
    """The shortest text of float32(123456790) is that number, and it is 123456792."""
    got = reading.read(ss.Csv(reading.write("a.csv", f"x,y\n{value},0\n0.5,1\n".encode())))
    assert not got.rejects
    first = got.column("x")[0]
    if isinstance(first, bytes) and got.features["x"] == ss.Scalar("string"):
        assert int(first) == value
    else:
        assert floats(got.features["x"], first) == [value]


def test_fields_of_file_names() -> None:
    labels = side_tables.labels(pattern="{x}_{label}.jpg")
    names = ["16777216_a.jpg", "16777217_a.jpg", "0.1_a.jpg", "1.6777217e7_a.jpg"]
    found = side_tables.read(labels, {"x": ss.Scalar("float32")}, *names)
    assert "float32" in found[1]["message"]
    assert [row["x"] for row in found if "x" in row] == [2.0**24, float(np.float32(0.1)), 2.0**24]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_side_tables(suffix: str) -> None:
    rows = [("a.jpg", 2**24), ("b.jpg", 2**24 + 1), ("c.jpg", 0.1)]
    if suffix == "csv":
        table = "file,x\n" + "".join(f"{name},{x}\n" for name, x in rows)
    else:
        table = "".join(json.dumps({"file": name, "x": x}) + "\n" for name, x in rows)
    labels = side_tables.labels(table=f"t.{suffix}")
    found = side_tables.read(
        labels, {"x": ss.Scalar("float32")}, "a.jpg", "b.jpg", "c.jpg", table=table.encode()
    )
    assert [row.get("x") for row in found] == [2.0**24, None, float(np.float32(0.1))]


@pytest.mark.parametrize("dtype", FLOATS)
def test_encode_example(dtype: str) -> None:
    exact, inexact = integers(dtype)
    features = {"x": ss.Tensor(dtype, (2,))}  # type: ignore[arg-type]
    for value in exact:
        for given_ in ([value, 0.5], [value, 0], np.array([value, 0]), (np.int64(value), 0.5)):
            ss.encode_example({"x": given_}, features)
    for value in inexact:
        for given_ in ([value, 0.5], [value, 0], np.array([value, 0]), (np.int64(value), 0.5)):
            with pytest.raises(SchemaError, match=f"{dtype}"):
                ss.encode_example({"x": given_}, features)


@pytest.mark.slow
@given(
    value=st.integers(-(2**63), 2**64 - 1)
    | st.builds(lambda a, b, s: s * (a << b), st.integers(0, 2**12), st.integers(0, 50),
                st.sampled_from([1, -1])),
    dtype=st.sampled_from(FLOATS),
)  # fmt: skip
@settings(max_examples=500)
def test_holds_exactly_is_what_numpy_gives(value: int, dtype: str) -> None:
    kind = np.uint64 if value >= 2**63 else np.int64
    with np.errstate(over="ignore"):
        made = float(np.array([value], kind).astype(numpy_dtype(dtype))[0])
    expected = np.isfinite(made) and int(made) == value
    assert holds_exactly(np.array([value], kind), dtype).tolist() == [expected]
    assert holds_exactly(np.array([value], object), dtype).tolist() == [expected]


# ---- Bools beside numbers

MIXED: dict[str, Any] = {
    "bool and int": [True, 2, 0],
    "int and bool": [2, True],
    "bool and 1": [1, True],
    "bool and float": [True, 0.5],
    "float and bool": [0.5, False],
    "None": [None, True, 0.5],
    "lists": [[True, 2], [0, 1]],
    "lists of floats": [[0.5, True]],
    "NumPy's": [np.True_, np.float64(0.5)],
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize(
    "make",
    [
        lambda values: {"x": values},
        lambda values: {"x": tuple(values)},
        lambda values: {"x": _objects(values)},
        lambda values: {"x": pd.Series(values, dtype=object)},
        lambda values: pd.DataFrame({"x": pd.Series(values, dtype=object)}),
    ],
    ids=["list", "tuple", "objects", "Series", "DataFrame"],
)
def test_a_table_of_bools_and_numbers_is_refused(
    reading: Any, name: str, make: Callable[[Any], Any]
) -> None:
    with pytest.raises(SchemaError, match=r"Table.*(bool|types?\b)"):
        _extracted(reading, ss.Table(make(MIXED[name])))


def _objects(values: list[Any]) -> Any:
    made = np.empty(len(values), object)
    made[:] = values
    return made


@pytest.mark.parametrize("name", MIXED)
def test_a_function_that_yields_bools_and_numbers_is_refused(reading: Any, name: str) -> None:
    for i in range(len(MIXED[name])):
        reading.write(f"in/{i}.txt", b"")
    source = Files(
        str(reading.folder / "in"), read=lambda file: [{"x": MIXED[name][int(file.path[0])]}]
    )
    with pytest.raises(SchemaError, match="bool"):
        reading.read(source)


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64", "bool"])
@pytest.mark.parametrize("value", [[True, 2], [2, True], [True, 0.5], [0.5, True], (1, np.True_)])
def test_bools_among_numbers_are_no_numbers(dtype: str, value: Any) -> None:
    with pytest.raises(SchemaError, match="bool"):
        ss.encode_example({"x": value}, {"x": ss.Tensor(dtype, (2,))})  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [[True, 2, 0], [2, True], [True, 0.5], [[True, 2], [0, 1]]])
def test_texts_of_bools_and_numbers_stay_texts(reading: Any, values: list[Any]) -> None:
    lines = "".join(f'{{"x": {json.dumps(value)}}}\n' for value in values)
    got = reading.read(ss.JsonLines(reading.write("a.jsonl", lines.encode())))
    assert not got.rejects
    expected = [
        [json.dumps(one).encode() for one in value]
        if isinstance(value, list)
        else json.dumps(value).encode()
        for value in values
    ]
    assert got.column("x") == expected
    if not isinstance(values[0], list):
        rows = "".join(f"{json.dumps(value)},0\n" for value in values)
        got = reading.read(ss.Csv(reading.write("a.csv", f"x,y\n{rows}".encode())))
        assert not got.rejects
        assert got.column("x") == expected


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64", "bool"])
def test_a_declared_type_rejects_what_is_of_another(reading: Any, dtype: str) -> None:
    path = reading.write("a.jsonl", b'{"x": true}\n{"x": 2}\n{"x": [true, 2]}\n')
    got = reading.read(ss.JsonLines(path), features={"x": ss.Scalar(dtype)})
    assert len(got.rows) == 1
    assert got.column("x") in ([1], [2.0], [np.float64(2).tobytes()], [2])
    path = reading.write("a.csv", b"x,y\ntrue,0\n2,0\n")
    got = reading.read(ss.Csv(path), features={"x": ss.Scalar(dtype)})
    assert len(got.rows) == len(got.rejects) == 1
