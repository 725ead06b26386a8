"""What rejects keep of their records: bytes, values as JSON, or where they lie."""

import base64
import hashlib
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.errors import Reject
from snapshard.transforms.rejects import (
    MAX_PAYLOAD_BYTES,
    with_bytes,
    with_row,
    with_values,
)

REJECT = Reject(record_id="a#1", stage="read", reason="r", message="m", source="a", position=1)


@pytest.mark.parametrize("size", [0, 1, MAX_PAYLOAD_BYTES])
def test_short_bytes_are_kept(size: int) -> None:
    kept = with_bytes(REJECT, b"x" * size, start=5)
    assert (kept.payload, kept.place, kept.payload_kind) == (b"x" * size, None, "bytes")


def test_of_longer_bytes_length_place_and_hash_are_kept() -> None:
    content = bytes(MAX_PAYLOAD_BYTES + 1)
    place = with_bytes(REJECT, content, start=5).place
    assert place is not None
    assert (place.start, place.stop) == (5, 5 + len(content))
    assert (place.num_bytes, place.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    unknown = with_bytes(REJECT, content).place
    assert unknown is not None
    assert (unknown.start, unknown.stop) == (None, None)


def held(columns: dict[str, pa.Array], row: int = 0) -> dict[str, Any]:
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    kept = with_row(REJECT, batch, row)
    assert kept.payload is not None
    assert kept.payload_kind == "values"
    found: dict[str, Any] = json.loads(kept.payload)
    return found


def test_a_row_of_every_type() -> None:
    not_text = pa.array([b"caf\xe9"])
    strings = pa.Array.from_buffers(pa.string(), 1, not_text.buffers())
    assert held(
        {
            "i": pa.array([1]),
            "none": pa.array([None], pa.int64()),
            "nan": pa.array([float("nan")]),
            "text": pa.array(["é\x00"]),
            "bytes": pa.array([b"\xff\x00"]),
            "utf8": pa.array([b"abc"]),
            "list": pa.array([[1, None], [2]])[:1],
            "struct": pa.array([{"a": [b"\xff"]}]),
            "late": pa.array([2**62]).view(pa.timestamp("s")),
            "not text": strings,
            "not texts": pa.ListArray.from_arrays([0, 1], strings),
            "code": pa.array(["x"]).dictionary_encode(),
        }
    ) == {
        "i": 1,
        "none": None,
        "nan": "nan",
        "text": "é\x00",
        "bytes": {"base64": "/wA="},
        "utf8": "abc",
        "list": [1, None],
        "struct": {"a": [{"base64": "/w=="}]},
        "late": 2**62,
        "not text": {"base64": "Y2Fm6Q=="},
        "not texts": [{"base64": "Y2Fm6Q=="}],
        "code": "x",
    }


def test_long_cells_are_cut_to_length_and_hash_and_the_others_stay() -> None:
    image = bytes(range(256)) * 1000
    numbers = np.arange(50_000)
    found = held({"id": pa.array([7]), "image": pa.array([image]), "n": pa.array([numbers])})
    assert found == {
        "id": 7,
        "image": {"cut": len(image), "sha256": hashlib.sha256(image).hexdigest()},
        "n": {"cut": numbers.nbytes, "sha256": hashlib.sha256(numbers.tobytes()).hexdigest()},
    }


def test_of_several_cells_the_longest_are_cut_first() -> None:
    cells = {f"c{size}": pa.array(["x" * size]) for size in (100, 20_000, 30_000, 40_000)}
    found = held(cells)
    assert found["c100"] == "x" * 100
    assert found["c20000"] == "x" * 20_000
    text = json.dumps("x" * 40_000).encode()
    assert found["c40000"] == {
        "cut": len(text),
        "of": "json",
        "sha256": hashlib.sha256(text).hexdigest(),
    }


def test_values_that_cannot_be_cut_are_told_by_their_hash() -> None:
    wide = {f"column {i}": pa.array([i]) for i in range(9000)}
    batch = pa.RecordBatch.from_arrays(list(wide.values()), names=list(wide))
    kept = with_row(REJECT, batch, 0)
    assert kept.payload is None
    assert kept.place is not None
    assert kept.place.start is None
    assert (kept.place.num_bytes or 0) > MAX_PAYLOAD_BYTES


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_python_values_of_any_kind() -> None:
    deep: list[Any] = []
    for _ in range(1000):
        deep = [deep]
    kept = with_values(
        REJECT,
        {
            "object": object(),
            "odd": Odd(),
            "set": {"b", "a"},
            "array": np.array([[1, 2]]),
            "scalar": np.float32("inf"),
            "keys": {1: b"\xff", None: "\ud800", object(): 2},
            "deep": deep,
            "memory": memoryview(b"abc"),
        },
    )
    assert kept.payload is not None
    found = json.loads(kept.payload)
    assert found.pop("deep")
    assert found == {
        # No address in memory, which would differ from run to run.
        "object": {"python": "object", "text": "<object object>"},
        "odd": {"python": "Odd", "text": "its text cannot be shown: RuntimeError"},
        "set": ["a", "b"],
        "array": [[1, 2]],
        "scalar": "inf",
        "keys": {"1": {"base64": "/w=="}, "None": "?", "<object object>": 2},
        "memory": "abc",
    }


@given(st.dictionaries(st.text(max_size=5), st.binary(max_size=100_000), max_size=4))
def test_bytes_come_back_or_are_told_by_their_hash(values: dict[str, bytes]) -> None:
    kept = with_values(REJECT, values)
    assert kept.payload is not None
    assert len(kept.payload) <= MAX_PAYLOAD_BYTES
    found = json.loads(kept.payload)
    assert found.keys() == values.keys()
    for name, content in values.items():
        one = found[name]
        if isinstance(one, str):
            assert one.encode() == content
        elif "base64" in one:
            assert base64.b64decode(one["base64"]) == content
        elif "of" not in one:
            assert one == {"cut": len(content), "sha256": hashlib.sha256(content).hexdigest()}
