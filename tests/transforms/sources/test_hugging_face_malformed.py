"""Datasets of Hugging Face that are damaged, or whose metadata say what is not so."""

import contextlib
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import SchemaError, SnapshardError

from .conftest import Reading

VALUE = {"dtype": "int64", "_type": "Value"}
NAMES = {"names": ["no", "yes"], "_type": "ClassLabel"}


def stream(columns: dict[str, Any], specs: Any = None, *, rows_at_once: int = 2) -> bytes:
    table = pa.table(columns)
    if specs is not None:
        text = specs if isinstance(specs, bytes) else json.dumps({"info": {"features": specs}})
        table = table.replace_schema_metadata({"huggingface": text})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=rows_at_once):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


NAME = "data-00000-of-00001.arrow"


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        (None, ss.Scalar("int64")),
        (b"", ss.Scalar("int64")),
        (b"{", ss.Scalar("int64")),
        (b"[]", ss.Scalar("int64")),
        (b'{"info": 5}', ss.Scalar("int64")),
        (b'{"info": {"features": [1]}}', ss.Scalar("int64")),
        (b"\xff", ss.Scalar("int64")),
        (b"[" * 100_000, ss.Scalar("int64")),
        ({}, ss.Scalar("int64")),
        ({"y": None}, ss.Scalar("int64")),
        ({"y": "ClassLabel"}, ss.Scalar("int64")),
        ({"y": {}}, ss.Scalar("int64")),
        ({"y": {"_type": 5}}, ss.Scalar("int64")),
        ({"y": {"_type": "ClassLabel"}}, ss.Scalar("int64")),
        ({"y": {"_type": "ClassLabel", "names": []}}, ss.Scalar("int64")),
        ({"y": {"_type": "ClassLabel", "names": [1, 2]}}, ss.Scalar("int64")),
        ({"y": {"_type": "ClassLabel", "names": "no"}}, ss.Scalar("int64")),
        ({"y": {"_type": "Array2D", "shape": [2, 2], "dtype": "int8"}}, ss.Scalar("int64")),
        ({"y": {"_type": "List", "feature": NAMES}}, ss.Scalar("int64")),
        ({"y": [NAMES]}, ss.Scalar("int64")),
        ({"z": NAMES}, ss.Scalar("int64")),
        ({"y": NAMES}, ss.ClassLabel(("no", "yes"))),
    ],
)
def test_metadata_that_say_nothing_leave_what_arrow_says(
    reading: Reading, specs: Any, expected: Any
) -> None:
    reading.write(NAME, stream({"y": [0, 1, 1]}, specs))
    got = reading.read(ss.HuggingFace(str(reading.folder)))
    assert got.features == {"y": expected}
    assert got.column("y") == [0, 1, 1]


def test_classes_that_are_none_are_rejects(reading: Reading) -> None:
    reading.write(NAME, stream({"y": [0, -1, 1, 2]}, {"y": NAMES}))
    got = reading.read(ss.HuggingFace(str(reading.folder), label="y"))
    assert got.column("y") == [0, 1]
    assert list(got.rejected) == [f"{NAME}#1", f"{NAME}#3"]
    kept = reading.read(ss.HuggingFace(str(reading.folder), label="y", types={"y": "int64"}))
    assert kept.column("y") == [0, -1, 1, 2]


def test_images_that_are_none_are_rejects(reading: Reading) -> None:
    images = [
        {"bytes": b"no image", "path": None},
        {"bytes": None, "path": "somewhere.png"},
        {"bytes": b"", "path": None},
        None,
    ]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {"i": pa.array(images, kind), "n": [0, 1, 2, 3]}
    reading.write(NAME, stream(columns, {"i": {"_type": "Image"}, "n": VALUE}))
    got = reading.read(ss.HuggingFace(str(reading.folder)))
    assert got.features == {"i": ss.Image(storage="encoded"), "n": ss.Scalar("int64")}
    assert not got.rows
    assert list(got.rejected) == [f"{NAME}#{n}" for n in range(4)]


def test_an_image_that_is_no_file_is_refused(reading: Reading) -> None:
    reading.write(NAME, stream({"i": [1, 2]}, {"i": {"_type": "Image"}}))
    with pytest.raises(SnapshardError, match="'i' is int64, which Image cannot store"):
        reading.read(ss.HuggingFace(str(reading.folder)))


def test_caches_and_hidden_files_are_skipped(reading: Reading) -> None:
    reading.write(NAME, stream({"y": [0]}))
    for name in ("cache-1.arrow", "tmpabc.arrow", ".x.arrow", "state.json"):
        reading.write(name, b"x")
    assert len(reading.read(ss.HuggingFace(str(reading.folder))).rows) == 1


@pytest.mark.slow
def test_cut_at_every_byte_the_good_batches_are_kept(reading: Reading) -> None:
    content = stream({"y": [0, 1, 1, 0, 1]}, {"y": NAMES})
    features: Any = {"y": ss.ClassLabel(("no", "yes"))}
    most = 0
    for stop in range(1, len(content)):
        reading.write(NAME, content[:stop])
        source = ss.HuggingFace(str(reading.folder))
        got = reading.read(source, features=features)
        assert list(got.rows) == [f"{NAME}#{n}" for n in range(len(got.rows))]
        assert len(got.rows) >= most
        assert all(name.startswith(NAME) for name in got.rejected)
        most = len(got.rows)
    assert most == 5


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_damage_gives_rejects_or_rows(reading: Reading, data: st.DataObject) -> None:
    broken = bytearray(stream({"y": [0, 1, 1, 0, 1], "n": range(5)}, {"y": NAMES, "n": VALUE}))
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    reading.write(NAME, bytes(broken))
    features: Any = {"y": ss.ClassLabel(("no", "yes")), "n": ss.Scalar("int64")}
    with contextlib.suppress(SchemaError):  # a damaged name or type is another schema
        got = reading.read(ss.HuggingFace(str(reading.folder)), features=features)
        assert all(name.startswith(NAME) for name in (*got.rows, *got.rejected))
