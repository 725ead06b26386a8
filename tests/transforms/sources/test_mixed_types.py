"""Files of one source whose columns differ in type: every value exactly, or a refusal."""

import csv
import dataclasses
import io
import itertools
import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapshard as ss
from snapshard.schemas.errors import SchemaError
from snapshard.schemas.features import Feature
from snapshard.transforms.sources.custom import Files, RecordTypes
from snapshard.transforms.sources.folders.side_tables import infer_columns
from snapshard.transforms.sources.folders.web_dataset import PartTypes

from .test_tfrecord_files import example, framed


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.5],
        [2**53 + 1, 0.5],
        [1, None],
        [2**63, 1],
        [2**63, -1],
        [-(2**63) - 1, 1],
        [[2**63]],
        [[1], [2.5]],
        [[], [1]],
        [[[1, 2]], [[3]]],
        [[["a"]], [["b", "c"], []]],
        [True, False],
        ["a", None],
    ],
    ids=str,
)
def test_the_same_values_have_the_same_type_in_all_sources_of_json(values: list[Any]) -> None:
    """Rows of a function, a table of labels, and parts of samples."""
    rows, parts = RecordTypes(), PartTypes()
    for value in values:
        rows.add({"n": value}, path="a.bin")
        parts.add({"json": json.dumps({"n": value}).encode()})
    table = b"\n".join(json.dumps({"file": "x", "n": value}).encode() for value in values)
    expected = rows.features({})["n"]
    assert infer_columns("t.jsonl", table, image=None, label=None) == {"n": expected}
    assert parts.features() == {"json.n": expected}


UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DAY_MS = 86_400_000

COLUMNS: dict[str, pa.Array] = {
    "int8": pa.array([-128, 127], pa.int8()),
    "int16": pa.array([-(2**15), 2**15 - 1], pa.int16()),
    "int32": pa.array([-(2**31), 2**31 - 1], pa.int32()),
    "int64": pa.array([-(2**63), 2**53 + 1, 5], pa.int64()),
    "uint8": pa.array([255], pa.uint8()),
    "uint16": pa.array([2**16 - 1], pa.uint16()),
    "uint32": pa.array([2**32 - 1], pa.uint32()),
    "uint64": pa.array([2**64 - 1, 2**53 + 1, 7], pa.uint64()),
    "float16": pa.array(np.array([0.5, 65504], np.float16)),
    "float32": pa.array([0.25, 16777216.0], pa.float32()),
    "float64": pa.array([0.1, 1e300]),
    "decimal": pa.array([1, 2**40 + 1], pa.decimal128(20, 0)),
    "decimal, scale 2": pa.array(["1.25", "-3.50"]).cast(pa.decimal128(12, 2)),
    "string": pa.array(["a", "é"]),
    "large string": pa.array(["b"], pa.large_string()),
    "binary": pa.array([b"\xff\x00"]),
    "dictionary": pa.array(["a", "z"]).dictionary_encode(),
    "dictionary of ints": pa.array([3, 2**40]).dictionary_encode(),
    "duration[s]": pa.array([5, -7], pa.duration("s")),
    "duration[ms]": pa.array([5000, 1], pa.duration("ms")),
    "duration[ns]": pa.array([5, 2**62], pa.duration("ns")),
    "time32[s]": pa.array([5], pa.time32("s")),
    "time32[ms]": pa.array([5001], pa.time32("ms")),
    "time64[us]": pa.array([5_000_001], pa.time64("us")),
    "time64[ns]": pa.array([5_000_000_001], pa.time64("ns")),
    "timestamp[s]": pa.array([5, 2**40], pa.timestamp("s")),
    "timestamp[ms]": pa.array([5001], pa.timestamp("ms")),
    "timestamp[ns]": pa.array([5], pa.timestamp("ns")),
    "timestamp[us, UTC]": pa.array([5], pa.timestamp("us", "UTC")),
    "date32": pa.array([1, -3], pa.date32()),
    "date64": pa.array([DAY_MS, 5 * DAY_MS], pa.date64()),
}
PAIRS = [(a, b) for a, b in itertools.permutations(COLUMNS, 2)]


def meaning(array: pa.Array) -> list[Any]:
    """What values are, whatever their type: exact numbers, seconds or bytes."""
    type_ = array.type
    if pa.types.is_dictionary(type_):
        return meaning(array.dictionary_decode())
    if pa.types.is_list(type_):
        return [meaning(row.values) for row in array]
    if pa.types.is_temporal(type_):
        if pa.types.is_date32(type_):
            return [Fraction(n * 86_400) for n in array.cast(pa.int32()).to_pylist()]
        per_second = 1000 if pa.types.is_date64(type_) else UNITS[type_.unit]
        bits = pa.int32() if type_.bit_width == 32 else pa.int64()
        return [Fraction(n, per_second) for n in array.cast(bits).to_pylist()]
    values = array.to_pylist()
    if values and isinstance(values[0], str | bytes):
        return [v.encode() if isinstance(v, str) else v for v in values]
    return [Fraction(v) for v in values]


def stored(feature: Feature, wire: Any) -> Any:
    """What a wire value means by its feature: the dual of :func:`meaning`."""
    item = feature.of if isinstance(feature, ss.Sequence) else feature
    (column,) = feature.wire_columns("x")  # type: ignore[union-attr]
    if column.packed is not None:
        values = np.frombuffer(wire, column.packed).tolist()
        exact = [Fraction(value) for value in values]
        return exact if feature.form.shape else exact[0]  # type: ignore[union-attr]
    if isinstance(wire, list):
        return [stored(item, value) for value in wire]
    unit = getattr(item, "unit", None)
    if unit is not None:
        return Fraction(wire, UNITS[unit])
    dtype = item.form.dtype  # type: ignore[union-attr]
    if dtype == "string":
        return wire
    if dtype == "uint64":
        return Fraction(wire % 2**64)
    return Fraction(wire)


def check(reading: Any, source: Any, columns: dict[str, pa.Array], *, name: str = "x") -> str:
    """Reads files of one column; says whether it was refused, rejected in part, or exact."""
    try:
        got = reading.read(source)
    except SchemaError as error:
        text = str(error)
        assert all(path in text for path in columns), text
        return "refused"
    feature = got.features[name]
    for path, array in columns.items():
        expected = meaning(array)
        found = {id_: row for id_, row in got.rows.items() if id_.startswith(f"{path}#")}
        lost = [id_ for id_ in got.rejected if id_.startswith(f"{path}#")]
        assert len(found) + len(lost) == len(expected), got.rejected
        if not lost:
            decoded = [stored(feature, row[name]) for row in found.values()]
            if pa.types.is_decimal(array.type):
                assert [float(v) for v in decoded] == [float(v) for v in expected]
            else:
                assert decoded == expected, (feature, path)
            continue
        for id_, row in found.items():
            assert stored(feature, row[name]) == expected[int(id_.rpartition("#")[2])]
    return "rejected" if got.rejects else "exact"


def _parquet(array: pa.Array, sink: Any) -> None:
    pq.write_table(pa.table({"x": array}), sink)


def _arrow(array: pa.Array, sink: Any) -> None:
    with pa.ipc.new_file(sink, pa.schema([("x", array.type)])) as writer:
        writer.write_batch(pa.record_batch([array], names=["x"]))


def _stream(array: pa.Array, sink: Any) -> None:
    with pa.ipc.new_stream(sink, pa.schema([("x", array.type)])) as writer:
        writer.write_batch(pa.record_batch([array], names=["x"]))


FORMATS: dict[str, tuple[str, Callable[[pa.Array, Any], None], Callable[[str], Any]]] = {
    "Parquet": ("parquet", _parquet, ss.Parquet),
    "Arrow": ("arrow", _arrow, ss.Arrow),
    "HuggingFace": ("arrow", _stream, ss.HuggingFace),
}


_QUICK = {("Parquet", False), ("Arrow", True)}  # 3 s each


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "nested"),
    [
        pytest.param(
            kind,
            nested,
            id=f"{'lists' if nested else 'values'}-{kind}",
            marks=() if (kind, nested) in _QUICK else pytest.mark.slow,
        )
        for nested in (False, True)
        for kind in FORMATS
    ],
)
def test_files_of_other_types_are_read_exactly_or_refused(
    reading: Any, kind: str, nested: bool
) -> None:
    suffix, write, source = FORMATS[kind]
    outcomes: dict[tuple[str, str], str] = {}
    for number, pair in enumerate(PAIRS):
        columns = {}
        for at, name in zip("ab", pair, strict=True):
            array = COLUMNS[name]
            if pa.types.is_float16(array.type) and kind == "Parquet":
                array = array.cast(pa.float32())
            if nested:
                ends = pa.array(range(len(array) + 1), pa.int32())
                if pa.types.is_dictionary(array.type):
                    array = array.dictionary_decode()
                array = pa.ListArray.from_arrays(ends, array)
            sink = io.BytesIO()
            write(array, sink)
            reading.write(f"{number}/{at}.{suffix}", sink.getvalue())
            columns[f"{at}.{suffix}"] = array
        outcomes[pair] = check(reading, source(str(reading.folder / str(number))), columns)
    assert outcomes["duration[s]", "duration[ms]"] == "exact"
    assert outcomes["time32[s]", "time64[us]"] == "exact"
    assert outcomes["timestamp[s]", "timestamp[us, UTC]"] == "refused"
    assert outcomes["timestamp[us, UTC]", "date32"] == outcomes["date64", "timestamp[us, UTC]"]
    assert outcomes["date64", "timestamp[us, UTC]"] == "refused"
    assert outcomes["timestamp[s]", "timestamp[ms]"] == "exact"
    assert outcomes["date32", "date64"] == "exact"
    assert outcomes["int32", "float64"] == outcomes["float32", "float64"] == "exact"
    assert outcomes["decimal", "float16"] == "exact"
    assert outcomes["int64", "float64"] == outcomes["float64", "int64"] == "rejected"
    assert outcomes["string", "dictionary"] == outcomes["binary", "large string"] == "exact"
    assert outcomes["duration[s]", "int64"] == outcomes["string", "int8"] == "refused"


@pytest.mark.parametrize("types", [{"x": "string"}, {"x": ss.Scalar("int64")}])
def test_a_declared_type_without_a_unit_takes_no_durations_of_two(
    reading: Any, types: dict[str, Any]
) -> None:
    for name in ("duration[s]", "duration[ms]"):
        sink = io.BytesIO()
        _parquet(COLUMNS[name], sink)
        reading.write(f"in/{name}.parquet", sink.getvalue())
    with pytest.raises(SchemaError, match=r"unit|duration\[ms\].*duration\[s\]"):
        reading.read(ss.Parquet(str(reading.folder / "in"), types=types))
    source = ss.Parquet(str(reading.folder / "in"), types={"x": ss.Scalar("int64", unit="ms")})
    assert sorted(reading.read(source).column("x")) == [-7000, 1, 5000, 5000]
    kept = reading.read(dataclasses.replace(source, types={"x": "int64"}))
    assert kept.features == {"x": ss.Scalar("int64", unit="ms")}


@pytest.mark.parametrize("kind", FORMATS)
def test_times_with_and_without_a_zone(reading: Any, kind: str) -> None:
    suffix, write, source = FORMATS[kind]
    for name, zone in (("a", "UTC"), ("b", None), ("c", "Asia/Tokyo")):
        sink = io.BytesIO()
        write(pa.array([5], pa.timestamp("us", zone)), sink)
        for folder in ("in", "zoned") if zone else ("in",):
            reading.write(f"{folder}/{name}.{suffix}", sink.getvalue())
    words = (
        rf"'x' is timestamp\[us, tz=UTC\] in a\.{suffix} and timestamp\[us\] in b\.{suffix}.*"
        r'ss\.Timestamp\("us"\)'
    )
    with pytest.raises(SchemaError, match=words):
        reading.read(source(str(reading.folder / "in")))
    declared = source(str(reading.folder / "in"), types={"x": ss.Timestamp("us")})
    assert reading.read(declared).column("x") == [5, 5, 5]
    assert reading.read(source(str(reading.folder / "zoned"))).column("x") == [5, 5]


def test_batches_of_a_function(reading: Any) -> None:
    for number, pair in enumerate(PAIRS):
        columns = {f"{at}.bin": COLUMNS[name] for at, name in zip("ab", pair, strict=True)}
        for path in columns:
            reading.write(f"{number}/{path}", b"x")

        def batches(file: Any, columns: dict[str, pa.Array] = columns) -> Any:
            yield pa.record_batch([columns[file.path]], names=["x"])

        check(reading, Files(str(reading.folder / str(number)), read=batches), columns)


DTYPES = [n for n in COLUMNS if n.startswith(("int", "uint", "float", "duration", "timestamp["))]


@pytest.mark.parametrize("pair", list(itertools.permutations(DTYPES, 2)))
def test_arrays_of_other_dtypes(reading: Any, pair: tuple[str, str]) -> None:
    columns = {}
    for at, name in zip("ab", pair, strict=True):
        columns[f"{at}.npy"] = COLUMNS[name]
        sink = io.BytesIO()
        np.save(sink, COLUMNS[name].to_numpy(zero_copy_only=False))
        reading.write(f"in/{at}.npy", sink.getvalue())
    check(reading, ss.Numpy(str(reading.folder / "in"), name="x"), columns)


TEXTS: dict[str, list[Any]] = {
    "ints": [1, -5],
    "long ints": [3, 2**53 + 1],
    "longer ints": [2**63, -1],
    "floats": [0.5, 1e300],
    "floats of few digits": [0.5, 2.25],
    "ints and floats": [2**53 + 1, 0.5],
    "large floats": [1e16, 9007199254740993.0],
    "bools": [True, False],
    "strings": ["a", "b"],
}


@pytest.mark.parametrize("pair", list(itertools.permutations(TEXTS, 2)))
def test_texts_of_numbers(reading: Any, pair: tuple[str, str]) -> None:
    for at, name in zip("ab", pair, strict=True):
        lines = [json.dumps(value) for value in TEXTS[name]]
        reading.write(f"j/{at}.jsonl", "".join(f'{{"x": {v}}}\n' for v in lines).encode())
        rows = io.StringIO()
        csv.writer(rows).writerows([["x", "y"], *([str(v).lower(), 0] for v in TEXTS[name])])
        reading.write(f"c/{at}.csv", rows.getvalue().encode())
    for folder, source in (("j", ss.JsonLines), ("c", ss.Csv)):
        got = reading.read(source(str(reading.folder / folder)))
        feature = got.features["x"]
        expected = [value for name in pair for value in TEXTS[name]]
        assert len(got.rows) == len(expected), got.rejected
        for row, value in zip(got.rows.values(), expected, strict=True):
            if feature.form.dtype == "string":  # type: ignore[union-attr]
                text = row["x"].decode()
                assert text in (str(value), str(value).lower()) or float(text) == value
                if isinstance(value, int):
                    assert text in (str(value), str(value).lower())
            elif feature.form.dtype == "float32":  # type: ignore[union-attr]
                assert np.float32(row["x"]) == np.float32(value)
            else:
                assert stored(feature, row["x"]) == Fraction(value)


def test_lists_of_two_kinds_in_records(reading: Any) -> None:
    reading.write("in/a.tfrecord", framed([example(x=[2**24 + 1])]))
    reading.write("in/b.tfrecord", framed([example(x=[0.5])]))
    with pytest.raises(
        SchemaError, match=r"int64 values in .*a\.tfrecord.*float32 values in .*b\.tfrecord"
    ):
        reading.read(ss.TFRecords(str(reading.folder / "in")))


def test_classes_of_other_names_are_refused(reading: Any) -> None:
    for at, names in (("a", ["cat", "dog"]), ("b", ["dog", "cat"])):
        spec = {"info": {"features": {"x": {"_type": "ClassLabel", "names": names}}}}
        schema = pa.schema([("x", pa.int64())], {b"huggingface": json.dumps(spec).encode()})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.table({"x": [0, 1]}, schema=schema))
        reading.write(f"in/{at}.arrow", sink.getvalue())
    with pytest.raises(SchemaError, match=r"'cat', 'dog' in a\.arrow and 'dog', 'cat' in b\.arrow"):
        reading.read(ss.HuggingFace(str(reading.folder / "in")))


def test_dates_inside_lists_mean_the_same_from_memory_and_from_files(
    reading: Any, tmp_path: Any
) -> None:
    rows = [[[DAY_MS, 2 * DAY_MS]], [[3 * DAY_MS]]]
    array = pa.array(rows, pa.list_(pa.list_(pa.date64())))
    sink = io.BytesIO()
    _parquet(array, sink)
    got = [reading.read(ss.Parquet(reading.write("a.parquet", sink.getvalue())))]
    got.append(reading.read(ss.Table(pa.table({"x": array})).extract(str(tmp_path), base="")))
    for one in got:
        feature = one.features["x"]
        assert isinstance(feature, ss.Tensor)
        assert feature.unit is not None
        assert [[Fraction(v, UNITS[feature.unit]) for v in row] for row in one.column("x")] == [
            [Fraction(86_400), Fraction(2 * 86_400)],
            [Fraction(3 * 86_400)],
        ]
