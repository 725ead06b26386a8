"""HDF5: datasets as columns, in slices, and files with more than one table."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest

import snapshard as ss
from snapshard.schemas.errors import DataError, RecipeError, SchemaError, SourceChangedError
from snapshard.schemas.limits import Limits
from snapshard.transforms.sources import hdf5

DEFAULT = Limits()


def hdf5_of(datasets: Mapping[str, Any], **settings: Any) -> bytes:
    stored = io.BytesIO()
    with h5py.File(stored, "w") as file:
        for name, values in datasets.items():
            file.create_dataset(name, data=values, **settings)
    return stored.getvalue()


def extract(reading: Any, source: ss.Hdf5, *, limits: Limits = DEFAULT) -> Any:
    folder = str(reading.folder / "work/extracted")
    return source.extract(folder, base=str(reading.folder), limits=limits)


def read(reading: Any, datasets: Mapping[str, Any], **settings: Any) -> Any:
    reading.write("t.h5", hdf5_of(datasets))
    return reading.read(extract(reading, ss.Hdf5("t.h5", **settings)))


def test_every_type_is_read_as_from_memory(reading: Any) -> None:
    structured = np.array([(1, 0.5), (2, np.nan), (3, 1)], [("a", "i4"), ("b", "f8")])
    arrays = {
        "big": np.array([1, 2, 3], ">u2"),
        "bool": np.array([True, False, True]),
        "fixed": np.array([b"a", b"bc", b""]),
        "image": np.arange(36, dtype="u1").reshape(3, 2, 2, 3),
        "nan": np.array([np.nan, 1, -0.0], "f4"),
        "record": structured,
    }
    got = read(reading, arrays)
    table = ss.Table(arrays).extract(str(reading.folder / "work/extracted"), base="")
    expected = reading.read(table)
    assert got.features == expected.features
    rows = {key.replace("table", "hdf5"): row for key, row in expected.rows.items()}
    assert repr(got.rows) == repr(rows)


def test_texts_and_lists(reading: Any) -> None:
    lists = np.empty(3, object)
    lists[:] = [np.array(x, "u1") for x in ([1], [], [2, 3])]
    stored = io.BytesIO()
    with h5py.File(stored, "w") as file:
        file["s"] = ["é", "", "b"]
        file["two"] = np.array([["a", "b"]] * 3, h5py.string_dtype())
        for name in ("items", "jpeg"):
            file.create_dataset(name, data=lists, dtype=h5py.vlen_dtype(np.uint8))
    reading.write("t.h5", stored.getvalue())
    source = ss.Hdf5("t.h5", types={"jpeg": "string"}, label="s")
    got = reading.read(extract(reading, source))
    assert got.features == {
        "items": ss.Sequence(ss.Scalar("uint8")),
        "jpeg": ss.Scalar("string"),
        "s": ss.ClassLabel(("", "b", "é")),
        "two": ss.Tensor("string", (2,)),
    }
    assert got.column("jpeg") == [b"\x01", b"", b"\x02\x03"]
    assert got.column("items") == [b"\x01", b"", b"\x02\x03"]


@pytest.mark.parametrize("chunks", [None, (7, 3)])
def test_slices_hold_whole_chunks(
    reading: Any, monkeypatch: pytest.MonkeyPatch, chunks: Any
) -> None:
    monkeypatch.setattr(hdf5, "BATCH_BYTES", 3 * 40)
    plain, taken = hdf5._Column.rows, []

    def rows(column: Any, start: int, stop: int, schema: Any) -> Any:
        taken.append((start, stop))
        return plain(column, start, stop, schema)

    monkeypatch.setattr(hdf5._Column, "rows", rows)
    values = np.arange(100).reshape(20, 5)
    reading.write("t.h5", hdf5_of({"x": values}, chunks=chunks))
    got = reading.read(extract(reading, ss.Hdf5("t.h5")))
    assert got.column("x") == values.tolist()
    step = 7 if chunks else 3
    assert taken == [(at, min(20, at + step)) for at in range(0, 20, step)]


@pytest.mark.parametrize(
    ("datasets", "lines"),
    [
        (
            {"x_train": [1], "y_train": [1], "x_test": [1, 2], "y_test": [1, 2]},
            ['{"x": "x_train", "y": "y_train"}', '{"x": "x_test", "y": "y_test"}'],
        ),
        ({"x": [1, 2], "names": ["a"]}, ['{"names": "names"}', '{"x": "x"}']),
        (
            {"a/x": [1], "b/x": [2], "b/y": [2]},
            [
                '{"a_x": "a/x", "b_x": "b/x", "b_y": "b/y"}',
                '{"x": "a/x"}',
                '{"x": "b/x", "y": "b/y"}',
            ],
        ),
        ({"a/x": [1], "b/x": [2, 3]}, ['{"x": "a/x"}', '{"x": "b/x"}']),
    ],
)
def test_several_tables_are_refused(reading: Any, datasets: Any, lines: list[str]) -> None:
    reading.write("t.h5", hdf5_of(datasets))
    source = ss.Hdf5("t.h5")
    with pytest.raises(DataError, match=f"holds {len(lines)} sets") as caught:
        extract(reading, source)
    found = [line.strip() for line in str(caught.value).split("\n") if "source=" in line]
    assert found == [f'source=ss.Hdf5("t.h5", datasets={line})' for line in lines]
    for each in source.readings("work/x", base=str(reading.folder)):
        assert reading.read(extract(reading, each)).rows


@pytest.mark.parametrize(
    ("chosen", "error", "words"),
    [
        ({"x": "nope"}, RecipeError, "'nope', which is not a dataset of .*'g/x', 'long', 'none'"),
        ({"x": "g"}, RecipeError, "'g', which is not a dataset"),
        ({"x": "one"}, SchemaError, "'/one' is a single value"),
        ({"a": "long", "b": "short"}, DataError, r"differ in length \('a' 3, 'b' 2 rows\)"),
        ({"x": "none"}, DataError, "no rows"),
        ({"x": "complex"}, SchemaError, "complex128, which cannot be stored"),
        ({"x": "reference"}, SchemaError, "which cannot be stored"),
        ({"x": "elsewhere"}, SchemaError, "the values of 'elsewhere' are in another file"),
        ({"x": "virtual"}, SchemaError, "the values of 'virtual' are in another file"),
        ({"x": "raw"}, SchemaError, "the values of 'raw' are in another file"),
    ],
)
def test_refusals(reading: Any, chosen: Any, error: type[Exception], words: str) -> None:
    reading.write("other.h5", hdf5_of({"x": [1, 2]}))
    reading.write("raw.bin", bytes(16))
    with h5py.File(reading.folder / "t.h5", "w") as file:
        file["long"], file["short"], file["one"], file["g/x"] = [1, 2, 3], [1, 2], 1, [1]
        file["none"], file["complex"] = np.zeros((0, 2)), [1j]
        file["reference"] = np.array([file["one"].ref], h5py.ref_dtype)
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/x")
        layout = h5py.VirtualLayout((2,), "i8")
        layout[:] = h5py.VirtualSource("other.h5", "x", (2,))
        file.create_virtual_dataset("virtual", layout)
        raw = str(reading.folder / "raw.bin")
        file.create_dataset("raw", (2,), "i8", external=[(raw, 0, 16)])
    with pytest.raises(error, match=words):
        extract(reading, ss.Hdf5("t.h5", chosen))


def of_pandas() -> bytes:
    stored = io.BytesIO()
    with h5py.File(stored, "w") as file:
        file.create_group("df").attrs["pandas_type"] = "frame"
        file["df/axis0"] = [1]
    return stored.getvalue()


def without_its_end() -> bytes:
    return hdf5_of({"x": np.arange(1000)})[:-100]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda: b"", "is empty"),
        (lambda: b"x,y\n1,2\n", "cannot be read"),
        (without_its_end, "cannot be read .*truncated"),
        (lambda: hdf5_of({}), "no datasets with a first axis"),
        (of_pandas, "'df' was written by pandas' to_hdf"),
    ],
)
def test_damage(reading: Any, content: Callable[[], bytes], words: str) -> None:
    reading.write("t.h5", content())
    with pytest.raises(DataError, match=words):
        extract(reading, ss.Hdf5("t.h5"))


def test_a_file_that_would_fill_the_disk(reading: Any) -> None:
    with h5py.File(reading.folder / "t.h5", "w") as file:
        file.create_dataset("x", (1 << 40,), "f8", chunks=(1 << 20,))
    with pytest.raises(DataError, match="grows to over 250 times its size"):
        extract(reading, ss.Hdf5("t.h5"))


def test_elsewhere(reading: Any) -> None:
    fsspec.filesystem("memory").pipe("/hdf5/t.h5", hdf5_of({"x": [1, 2]}))
    got = reading.read(extract(reading, ss.Hdf5("memory://hdf5/t.h5")))
    assert got.rows == {"hdf5#0": {"x": 1}, "hdf5#1": {"x": 2}}


def test_a_change_while_it_is_read(reading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(reading.write("t.h5", hdf5_of({"x": [1, 2]})))
    plain = hdf5.extract_batches

    def change(*args: Any) -> Any:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
        return plain(*args)

    monkeypatch.setattr(hdf5, "extract_batches", change)
    with pytest.raises(SourceChangedError, match=r"t\.h5"):
        extract(reading, ss.Hdf5("t.h5"))
