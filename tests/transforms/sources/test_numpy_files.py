"""NumPy files: values as they were saved; damage and what cannot be read is told."""

import io
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import snapshard as ss
from snapshard.schemas.errors import RecipeError, SchemaError
from snapshard.schemas.features import tensor_form
from snapshard.transforms.sources.numpy import Numpy
from snapshard.transforms.storage.opened_source import open_source

from ...file_bytes import npy, npz


def _numbers(got: Any, name: str) -> np.ndarray[Any, Any]:
    """The values of a feature of fixed shape, in the order of rows."""
    import pyarrow as pa

    from snapshard.transforms.examples.dtypes import dense_values
    from snapshard.transforms.runs.files import wire_schema

    schema = wire_schema(got.features)
    rows = sorted(got.rows, key=lambda key: int(key.partition("#")[2]))
    column = pa.array([got.rows[row][name] for row in rows], schema.field(name).type)
    form = tensor_form(got.features[name])
    assert form is not None
    return dense_values(column, form)


_DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    ">i4",
    ">f8",
]


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_arrays_come_back(reading: Any, dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2 if dtype == "bool" else 100, (50, *shape)).astype(dtype)
    got = reading.read(Numpy(reading.write("x.npy", npy(values))))
    assert not got.rejects
    form = tensor_form(got.features["data"])
    assert form is not None
    assert (form.dtype, form.shape) == (values.dtype.newbyteorder("=").name, shape)
    np.testing.assert_array_equal(_numbers(got, "data"), values)


@settings(max_examples=60, deadline=None)
@given(
    values=hnp.arrays(
        st.sampled_from([np.dtype(d) for d in _DTYPES]),
        hnp.array_shapes(min_dims=1, max_dims=3, max_side=5),
    )
)
def test_any_array_of_numbers(
    tmp_path_factory: pytest.TempPathFactory, values: np.ndarray[Any, Any]
) -> None:
    folder = tmp_path_factory.mktemp("npy")
    (folder / "x.npz").write_bytes(npz(np.savez_compressed, x=values))
    source = Numpy(str(folder / "x.npz"))
    opened = open_source(source.url, "")
    files = source.select(opened.list()).files
    features = source.infer(files, opened)
    form = tensor_form(features["x"])
    assert form is not None
    assert form.shape == values.shape[1:]


def test_npz_zips_its_arrays(reading: Any) -> None:
    x = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    label = np.array(["cat", "dog", "cat", "dog", "dog", "cat"])
    when = np.array(["2020-01-01", "2020-01-02", "NaT", *["2021-05-05"] * 3], "datetime64[s]")
    for save in (np.savez, np.savez_compressed):
        path = reading.write("a.npz", npz(save, x=x, label=label, when=when))
        got = reading.read(Numpy(path, label="label"))
        assert got.features["label"] == ss.ClassLabel(("cat", "dog"))
        assert got.features["when"] == ss.Timestamp("s", optional=True)
        np.testing.assert_array_equal(_numbers(got, "x"), x)
        assert got.column("label") == [0, 1, 0, 1, 1, 0]
        assert got.column("when")[:3] == [1_577_836_800, 1_577_923_200, None]


def test_arrays_beside_each_other(reading: Any) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40)
    reading.write("y.npy", npy(y))
    path = reading.write("x.npy", npy(x))
    got = reading.read(Numpy(path, name="x", beside={"y": str(reading.folder / "y.npy")}))
    np.testing.assert_array_equal(_numbers(got, "x"), x)
    np.testing.assert_array_equal(_numbers(got, "y"), y)
    reading.write("y.npy", npy(y[:-1]))
    with pytest.raises(SchemaError, match="the same number in each"):
        reading.read(Numpy(path, name="x", beside={"y": str(reading.folder / "y.npy")}))


def test_structured_arrays_are_structs(reading: Any) -> None:
    values = np.array([(1, 2.5, b"ab"), (3, 4.5, b"c")], [("a", "i4"), ("b", "f8"), ("c", "S4")])
    got = reading.read(Numpy(reading.write("x.npy", npy(values))))
    assert set(got.features) == {"data.a", "data.b", "data.c"}
    assert got.column("data.a") == [1, 3]
    assert got.column("data.c") == [b"ab", b"c"]


@pytest.mark.parametrize("name", ["a", "é", "日本"])
@pytest.mark.parametrize("form", ["npy", "npz"])
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_fields_of_any_name(reading: Any, form: str, name: str) -> None:
    values = np.array([(1,), (2,)], [(name, "i4")])
    content = npy(values) if form == "npy" else npz(data=values)
    got = reading.read(Numpy(reading.write(f"x.{form}", content)))
    assert got.column(f"data.{name}") == [1, 2]


@pytest.mark.filterwarnings("ignore:Reading `.npy` or `.npz` file required additional")
def test_a_header_of_python_2(reading: Any) -> None:
    content = npy(np.arange(3)).replace(b"(3,), }  ", b"(3L,), } ")
    got = reading.read(Numpy(reading.write("x.npy", content)))
    assert got.column("data") == [0, 1, 2]


def test_fortran_order(reading: Any) -> None:
    values = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    got = reading.read(Numpy(reading.write("x.npy", npy(values))))
    np.testing.assert_array_equal(_numbers(got, "data"), values)


@pytest.mark.slow
def test_a_file_cut_at_every_byte_keeps_its_whole_rows(reading: Any) -> None:
    values = np.arange(60, dtype=np.int64).reshape(20, 3)
    content = npy(values)
    features = {"data": ss.Tensor("int64", (3,))}
    offset = len(content) - values.nbytes
    for size in range(1, len(content)):
        got = reading.read(Numpy(reading.write("x.npy", content[:size])), features=features)
        whole = max(0, size - offset) // 24
        assert [row["data"] for row in got.rows.values()] == values[:whole].tolist()
        assert len(got.rejects) == 1


@pytest.mark.slow
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_cut_or_changed_at_every_byte(reading: Any, save: Any) -> None:
    values = np.arange(20)
    content = npz(save, x=values)
    features = {"x": ss.Scalar("int64")}
    for position in range(len(content)):
        for broken in (
            content[:position],
            content[:position] + bytes([content[position] ^ 255]) + content[position + 1 :],
        ):
            if not broken:
                continue
            source = Numpy(reading.write("x.npz", broken))
            try:
                got = reading.read(source, features=features)
            except SchemaError:
                continue
            found = got.column("x")
            assert found == values[: len(found)].tolist()
            assert len(found) == 20 or got.rejects


@pytest.mark.slow
def test_any_byte_changed_gives_rows_rejects_or_a_message(reading: Any) -> None:
    content = npy(np.arange(20, dtype=np.int32))
    features = {"data": ss.Scalar("int32")}
    for position in range(len(content)):
        for value in (0, 32, content[position] ^ 1, content[position] ^ 255):
            broken = content[:position] + bytes([value]) + content[position + 1 :]
            source = Numpy(reading.write("x.npy", broken))
            told = []
            try:
                got = reading.read(source, features=features)
                told += [*got.rows, *got.rejected.values()]
            except SchemaError as error:
                told.append(str(error))
            assert all("x.npy" in text for text in told)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(np.array([{"a": 1}]), allow_pickle=True), "Python objects"),
        (npy(np.float64(3)), "first axis"),
        (npy(np.zeros(3, np.complex64)), "two arrays"),
        (npy(np.zeros(3, "datetime64[M]")), "units of 1 M"),
        (b"\x93NUMPY\x01\x00v\x00" + b"{'descr': __import__('os')}".ljust(118), "head"),
        (b"\x93NUMPY\x01\x00\x02\x00[]", "head"),
        (b"\x93NUMPY", "head"),
        (b"\x93NUMPY\x09\x00\x02\x00{}", "head"),
        (b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"(" * 9000, "head"),
        (b"no array", "does not begin"),
        (npy(np.zeros((2, 2))).replace(b"(2, 2)", b"(-2,2)"), "shape"),
        (npy(np.zeros((2, 2))).replace(b"(2, 2)", b"(2.,2)"), "header is invalid"),
        (npz(a=np.zeros(3), b=np.zeros(4)), "the same number in each"),
        (npz(), "archive"),
        (npz(a=np.asfortranarray(np.zeros((3, 2)))), "Fortran"),
        (b"PK\x03\x04 no archive", "zip"),
        (b"PK", "zip"),
    ],
)
def test_what_cannot_be_read_is_told(reading: Any, content: bytes, message: str) -> None:
    path = reading.write("x.npy", content)
    with pytest.raises(SchemaError, match=f"(?s)x.npy.*{message}|{message}.*x.npy"):
        reading.read(Numpy(path))
    reading.folder.joinpath("ok").mkdir()
    reading.write("ok/a.npy", npy(np.zeros(3)))


def test_names_that_are_not_there(reading: Any) -> None:
    path = reading.write("x.npy", npy(np.zeros(3)))
    with pytest.raises(RecipeError, match="beside"):
        Numpy(path, beside={"data": "y.npy"})


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_rows_behind_those_that_the_head_tells_of_are_told(reading: Any, form: str) -> None:
    whole = npy(np.arange(12.0))
    more = whole.replace(b"(12,)", b"(11,)") if form == "npy" else whole + whole
    content = more
    if form == "npz":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("x.npy", more)
        content = buffer.getvalue()
    features = {"x" if form == "npz" else "data": ss.Scalar("float64")}
    got = reading.read(Numpy(reading.write(f"a.{form}", content)), features=features)
    assert not got.rows
    (reject,) = got.rejects
    assert "its header has the" in reject.message
