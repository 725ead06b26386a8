"""Single records to Examples and back, held against protobuf."""

import io
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage

import snapshard as ss
from snapshard.schemas.errors import SchemaError
from snapshard.schemas.features import Feature
from snapshard.transforms.examples.decode import NotAnExampleError, read_lists
from snapshard.transforms.examples.varint import (
    packed_varints,
    unpack_varints,
    varint,
    varint_sizes,
)

FEATURES: dict[str, Feature] = {
    "image": ss.Image(2, 3),
    "any": ss.Image(channels=1),
    "label": ss.ClassLabel(("cat", "dog")),
    "flag": ss.Scalar("bool"),
    "small": ss.Scalar("int8"),
    "large": ss.Scalar("uint32"),
    "ratio": ss.Scalar("float32"),
    "name": ss.Scalar("string"),
    "maybe": ss.Scalar("int64", optional=True),
    "matrix": ss.Tensor("float32", (2, 2)),
    "words": ss.Tensor("string", (None,)),
    "tokens": ss.Tensor("uint16", (None,), optional=True),
}
RECORD: dict[str, Any] = {
    "image": np.arange(18, dtype=np.uint8).reshape(2, 3, 3),
    "any": np.zeros((4, 1, 1), np.uint8),
    "label": "dog",
    "flag": True,
    "small": -128,
    "large": 2**32 - 1,
    "ratio": 0.5,
    "name": "Zoë",
    "maybe": None,
    "matrix": [[1, 2], [3, 4.5]],
    "words": ["a", b"\xff", ""],
    "tokens": [1, 2, 65535],
}


def jpeg(height: int, width: int, orientation: int = 1) -> bytes:
    exif = PillowImage.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    PillowImage.new("RGB", (width, height)).save(file, "JPEG", exif=exif)
    return file.getvalue()


def test_a_record_comes_back() -> None:
    serialized = ss.encode_example(RECORD, FEATURES)
    assert serialized == ss.encode_example(dict(reversed(RECORD.items())), FEATURES)
    found = ss.parse_example(serialized, FEATURES)
    assert list(found) == list(FEATURES)
    np.testing.assert_array_equal(found.pop("image"), RECORD["image"])
    np.testing.assert_array_equal(found.pop("any"), RECORD["any"])
    matrix = found.pop("matrix")
    assert matrix.dtype == np.float32
    assert matrix.tolist() == [[1, 2], [3, 4.5]]
    assert found.pop("words").tolist() == [b"a", b"\xff", b""]
    tokens = found.pop("tokens")
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [1, 2, 65535]
    assert found == {
        "label": 1,
        "flag": True,
        "small": -128,
        "large": 2**32 - 1,
        "ratio": 0.5,
        "name": "Zoë".encode(),
        "maybe": None,
    }
    assert isinstance(found["flag"], bool)
    assert ss.encode_example(ss.parse_example(serialized, FEATURES), FEATURES) == serialized


def test_tensorflow_reads_the_same() -> None:
    message = tf.train.Example.FromString(ss.encode_example(RECORD, FEATURES))
    feature = message.features.feature
    assert list(feature["image"].bytes_list.value) == [RECORD["image"].tobytes()]
    assert list(feature["any/height"].int64_list.value) == [4]
    assert list(feature["matrix"].float_list.value) == [1, 2, 3, 4.5]
    assert list(feature["tokens"].bytes_list.value) == [b"\x01\x00\x02\x00\xff\xff"]
    assert set(feature) == {*FEATURES, "any/height", "any/width"} - {"maybe"}


def test_an_encoded_image_brings_its_size_and_orientation() -> None:
    features: dict[str, Feature] = {"image": ss.Image(storage="encoded")}
    data = jpeg(4, 6, orientation=6)
    serialized = ss.encode_example({"image": data}, features)
    stored = tf.train.Example.FromString(serialized).features.feature
    values = {name: list(stored[name].int64_list.value) for name in stored if name != "image"}
    assert values == {"image/height": [6], "image/width": [4], "image/orientation": [6]}
    assert ss.parse_example(serialized, features) == {"image": data}


@pytest.mark.parametrize(
    ("declared", "shape"),
    [
        ((None, None), (0, 5)),
        ((None, None), (5, 0)),
        ((None, 5), (0, 5)),
        ((5, None), (5, 0)),
        ((None, None, 2), (3, 0, 2)),
        ((None, 5, None), (0, 5, 3)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "uint8", "string"])
def test_dimensions_beside_a_length_of_zero_are_kept(
    dtype: Any, declared: tuple[int | None, ...], shape: tuple[int, ...]
) -> None:
    features = {"x": ss.Tensor(dtype, declared)}
    empty = np.zeros(shape, object if dtype == "string" else dtype)
    found = ss.parse_example(ss.encode_example({"x": empty}, features), features)["x"]
    assert found.shape == shape


@pytest.mark.parametrize(
    ("feature", "value", "message"),
    [
        (ss.Scalar("int64"), None, "'x' is missing, expected int64. Give it a value"),
        (ss.Scalar("int64"), "n/a", r"'x' is 'n/a' \(<U3\), expected int64"),
        (ss.Scalar("int64"), 1.0, r"'x' is 1.0 \(float64\), expected int64"),
        (ss.Scalar("int64"), 2**63, "out of range"),
        (ss.Scalar("uint8"), 256, "'x' is 256, expected uint8. It is out of range"),
        (ss.Scalar("uint8"), -1, "out of range"),
        (ss.Scalar("float32"), 1e39, "out of range"),
        (ss.Scalar("bool"), 1, r"'x' is 1 \(int64\), expected bool"),
        (ss.Scalar("string"), 1, "'x' is 1, expected string. Give str or bytes"),
        (ss.Scalar("string"), "\ud800", "not valid UTF-8"),
        (ss.Scalar("int64"), [1], r"'x' is of shape \[1\], expected int64"),
        (ss.Tensor("int64", (2,)), [1], r"of shape \[1\], expected int64\[2\]"),
        (ss.Tensor("int64", (None,)), [[1]], r"of shape \[1, 1\]"),
        (ss.Tensor("int64", (None,)), [[1], [2, 3]], "'x' is ragged"),
        (ss.ClassLabel(("a", "b")), "c", "'x' is 'c', expected one of 2 class names"),
        (ss.ClassLabel(("a", "b")), 2, "'x' is 2, expected one of 2 class names"),
        (ss.ClassLabel(("a", "b")), True, "'x' is True"),
        (ss.Image(2, 2), np.zeros((2, 2, 1), np.uint8), r"uint8\[2, 2, 1\], expected uint8\[2, 2"),
        (ss.Image(2, 2), np.zeros((3, 2, 3), np.uint8), "'x' is an image of 3×2, expected"),
        (ss.Image(2, 2), np.zeros((2, 2, 3)), r"'x' is float64\[2, 2, 3\]"),
        (ss.Image(storage="encoded"), b"hello", "'x' is not a valid image .begins with 'hello'"),
        (ss.Image(storage="encoded"), "a.jpg", "'x' is a str, expected the bytes"),
        (ss.Image(9, 9, storage="encoded"), jpeg(4, 6), "an image of 4×6, expected .* of 9×9"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(feature: Feature, value: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        ss.encode_example({"x": value}, {"x": feature})


def test_a_value_that_no_feature_describes_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"The record has \['y'\].*expected \['x'\]"):
        ss.encode_example({"x": 1, "y": 2}, {"x": ss.Scalar("int64")})


@pytest.mark.parametrize(
    ("feature", "written", "value", "message"),
    [
        (ss.Scalar("int64"), "y", 1, r"no feature 'x', which is not optional; it has \['y'\]"),
        (ss.Scalar("float32"), "x", 1, "holds 1 values of kind int64, expected 1 of float32"),
        (ss.Tensor("int64", (2,)), "x", 1, "holds 1 values of kind int64, expected 2 of int64"),
        (ss.Scalar("uint8"), "x", 256, r"256.*expected uint8"),
        (ss.Scalar("bool"), "x", 2, "expected bool"),
        (ss.ClassLabel(("a",)), "x", 1, "'x' is 1, expected one of 1 class names"),
    ],
)
def test_an_example_of_other_features_is_refused(
    feature: Feature, written: str, value: int, message: str
) -> None:
    serialized = ss.encode_example({written: value}, {written: ss.Scalar("int64")})
    with pytest.raises(SchemaError, match=message):
        ss.parse_example(serialized, {"x": feature})


def test_an_image_of_another_size_is_refused() -> None:
    serialized = ss.encode_example({"x": b"abc"}, {"x": ss.Scalar("string")})
    with pytest.raises(SchemaError, match=r"'x' is 3 bytes for \[2, 2, 3\]"):
        ss.parse_example(serialized, {"x": ss.Image(2, 2)})


def test_what_is_no_example_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"5 bytes are not a serialized tf\.train\.Example"):
        ss.parse_example(b"\x0a\x99abc", {})


def test_what_the_features_do_not_name_is_ignored() -> None:
    serialized = ss.encode_example(RECORD, FEATURES)
    assert ss.parse_example(serialized, {"small": ss.Scalar("int8")}) == {"small": -128}
    assert ss.parse_example(b"", {"x": ss.Tensor("int64", (None,), optional=True)}) == {"x": None}


@given(st.sampled_from(["float32", "int64", "string"]), st.data())
def test_any_list_comes_back(dtype: Any, data: st.DataObject) -> None:
    item: st.SearchStrategy[Any] = {
        "float32": st.floats(width=32),
        "int64": st.integers(-(2**63), 2**63 - 1),
        "string": st.binary(max_size=20),
    }[dtype]
    values = data.draw(st.lists(item, max_size=20))
    features: dict[str, Feature] = {"x": ss.Tensor(dtype, (None,))}
    found = ss.parse_example(ss.encode_example({"x": values}, features), features)["x"]
    assert len(found) == len(values)
    for ours, given_value in zip(found.tolist(), values, strict=True):
        assert ours == given_value or (math.isnan(ours) and math.isnan(given_value))


@given(st.lists(st.integers(0, 70).flatmap(lambda bits: st.integers(0, 2**bits - 1)), max_size=9))
def test_varints_come_back(drawn: list[int]) -> None:
    values = np.array([value % 2**64 for value in drawn], np.uint64)
    offsets = np.concatenate([[0], np.cumsum(varint_sizes(values), dtype=np.int64)])
    packed = packed_varints(values, offsets).tobytes()
    assert unpack_varints(packed).view(np.uint64).tolist() == values.tolist()
    assert b"".join(map(varint, values.tolist())) == packed


def field(number: int, wire_type: int, content: bytes) -> bytes:
    size = bytes([len(content)]) if wire_type == 2 else b""
    return bytes([number << 3 | wire_type]) + size + content


def feature_entry(name: bytes, *lists: bytes) -> bytes:
    return field(1, 2, field(1, 2, name) + b"".join(field(2, 2, part) for part in lists))


PACKED = field(1, 2, b"\x01\x96\x01")
UNUSUAL = {
    "unpacked": feature_entry(b"a", field(3, 2, field(1, 0, b"\x96\x01") + PACKED)),
    "unpacked floats": feature_entry(
        b"a", field(2, 2, field(1, 5, b"abcd") + field(1, 2, b"efgh"))
    ),
    "name twice": feature_entry(b"a", field(3, 2, PACKED)) + feature_entry(b"a", field(3, 2, b"")),
    "name twice, then nothing": feature_entry(b"a", field(3, 2, PACKED)) + feature_entry(b"a", b""),
    "value before key": field(1, 2, field(2, 2, field(3, 2, PACKED)) + field(1, 2, b"a")),
    "no key": field(1, 2, field(2, 2, field(3, 2, PACKED))),
    "list in parts": feature_entry(b"a", field(3, 2, PACKED) + field(3, 2, PACKED)),
    "feature in parts": feature_entry(b"a", field(3, 2, PACKED), field(3, 2, PACKED)),
    "two kinds": feature_entry(b"a", field(3, 2, PACKED) + field(1, 2, field(1, 2, b"x"))),
    "there and back": feature_entry(
        b"a", field(3, 2, PACKED) + field(1, 2, b"") + field(3, 2, field(1, 0, b"\x07"))
    ),
    "no list": feature_entry(b"a"),
    "unknown field in an entry": field(1, 2, field(3, 2, b"a") + field(2, 2, field(3, 2, PACKED))),
    "unknown fields": feature_entry(
        b"a",
        field(3, 2, field(2, 1, bytes(8)) + PACKED + field(9, 5, bytes(4)) + field(1, 1, bytes(8))),
    ),
    "long varints": feature_entry(
        b"a", field(3, 2, field(1, 2, b"\x81\x80\x00" + b"\xff" * 9 + b"\x7f"))
    ),
}


@pytest.mark.parametrize("body", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_unusual_examples_are_read_as_protobuf_reads_them(body: bytes) -> None:
    serialized = field(1, 2, body)
    assert found_lists(serialized) == protobuf_lists(serialized)
    parts = field(1, 2, feature_entry(b"b", b"")) + serialized
    assert found_lists(parts) == protobuf_lists(parts)


def found_lists(serialized: bytes) -> dict[str, tuple[str, list[Any]]]:
    lists = read_lists(serialized)
    return {
        name: (kind, values if isinstance(values, list) else values.tolist())
        for name, (kind, values) in lists.items()
    }


def protobuf_lists(serialized: bytes) -> dict[str, tuple[str, list[Any]]]:
    names = {"bytes_list": "bytes", "float_list": "float32", "int64_list": "int64"}
    features = tf.train.Example.FromString(serialized).features.feature
    return {
        name: (names[kind], list(getattr(feature, kind).value))
        for name, feature in features.items()
        if (kind := feature.WhichOneof("kind")) is not None
    }


@settings(max_examples=300)
@given(st.data())
def test_damaged_examples_are_refused_or_read_as_protobuf_reads_them(data: st.DataObject) -> None:
    content = bytearray(ss.encode_example(RECORD, FEATURES))
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, min(len(content), start + 4)))
    content[start:stop] = data.draw(st.binary(max_size=4))
    try:
        expected = protobuf_lists(bytes(content))
        found = found_lists(bytes(content))
    except (DecodeError, NotAnExampleError):
        return
    # As text, in which NaN equals itself.
    assert {name: repr(values) for name, values in found.items()} == {
        name: repr(values) for name, values in expected.items()
    }
