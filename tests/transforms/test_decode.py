"""Examples are taken apart as the protocol buffers' own parser does."""

from pathlib import Path

import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snapshard.schemas.errors import DamagedSnapshotError
from snapshard.transforms.examples.decode import (
    NotAnExampleError,
    example_features,
    int64_values,
    read_frames,
)
from snapshard.transforms.examples.encode import encode_examples
from snapshard.transforms.examples.tfrecord import stored_examples, write_tfrecord
from snapshard.transforms.examples.varint import varint

NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)
TEXTS = st.lists(st.binary(max_size=300), max_size=3)


def _example(numbers: list[int], texts: list[bytes], **more: list[float]) -> bytes:
    columns = {
        "n": pa.array([numbers], pa.list_(pa.int64())),
        "t": pa.array([texts], pa.list_(pa.binary())),
        **{name: pa.array([value], pa.list_(pa.float32())) for name, value in more.items()},
    }
    (serialized,) = encode_examples(pa.record_batch(columns)).to_pylist()
    return bytes(serialized)


@given(NUMBERS, TEXTS)
def test_features_are_taken_apart(numbers: list[int], texts: list[bytes]) -> None:
    found = example_features(_example(numbers, texts, f=[0.5]))
    assert set(found) == {"n", "t", "f"}
    assert int64_values(found["n"]) == numbers
    assert int64_values(found["t"]) == int64_values(found["f"]) == []


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.text("abé", max_size=3),
        st.lists(st.binary(max_size=5) | st.binary(min_size=120, max_size=140), max_size=5)
        | st.integers(0, 300).flatmap(lambda size: st.lists(st.just(bytes(size)), max_size=5)),
        max_size=3,
    )
)
# The contents of frames resemble the headers of frames.
@example({"a": [b"\x09" + bytes(9), b"other"]})
@example({"a": [b"x\x0a\x7d" + bytes(125)]})
@example({"a": [b"\x0a\x01x", b"\x0a\x01x", b"\x0a\x02xy"]})
def test_frames_are_taken_apart(frames: dict[str, list[bytes]]) -> None:
    lists = b"".join(
        _field(_field(name.encode()) + _field(b"".join(map(_field, held)), number=2))
        for name, held in frames.items()
    )
    assert read_frames(_field(b"context") + _field(lists, number=2)) == frames


def _field(content: bytes, number: int = 1) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def test_frames_of_a_sequence_example() -> None:
    message = tf.train.SequenceExample()
    for numbers in ([1], [2, 3], []):
        message.feature_lists.feature_list["n"].feature.add().int64_list.value.extend(numbers)
    message.feature_lists.feature_list["none"].SetInParent()
    found = read_frames(message.SerializeToString())
    assert {name: list(map(int64_values, held)) for name, held in found.items()} == {
        "n": [[1], [2, 3], []],
        "none": [],
    }


@given(st.binary(max_size=60))
def test_what_is_no_example(content: bytes) -> None:
    for read in (example_features, int64_values):
        try:
            read(content)
        except ValueError:
            continue


@pytest.mark.parametrize("content", [b"\x0a", b"\x0a\x05a", b"\x0b", b"\x80" * 11, b"\x09\x01"])
def test_what_breaks_off_is_refused(content: bytes) -> None:
    with pytest.raises(NotAnExampleError, match=r"truncated|invalid field header"):
        example_features(content)


def test_examples_of_a_file_in_order(tmp_path: Path) -> None:
    path = tmp_path / "file"
    examples = [b"", b"a" * 9_000_000, *(bytes([n]) * n for n in range(100))]
    chunks = [pa.array(examples, pa.large_binary())]
    write_tfrecord(str(path), chunks, compression="none")
    assert list(stored_examples(str(path), "none")) == examples
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DamagedSnapshotError, match="ends in the middle of a record"):
        list(stored_examples(str(path), "none"))
