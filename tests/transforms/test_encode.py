"""The columnar encoder against protobuf's own Example, for every kind of feature."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snapshard.transforms.examples.encode import encode_examples, example_sizes

Values = list[list[Any] | None]
"""By row: the values of a feature's list; None where the feature is absent."""


@dataclasses.dataclass(frozen=True)
class Column:
    """An Arrow column, and what an Example holds for it."""

    array: pa.Array
    kind: str
    values: Values


def protobuf_examples(columns: dict[str, Column], num_rows: int) -> list[Any]:
    """The same rows as protobuf's own messages."""
    examples = []
    for row in range(num_rows):
        message = tf.train.Example(features=tf.train.Features(feature={}))
        for name, column in columns.items():
            values = column.values[row]
            if values is not None:
                chosen = getattr(message.features.feature[name], f"{column.kind}_list")
                chosen.SetInParent()
                chosen.value.extend(values)
        examples.append(message)
    return examples


def canonical(message: Any) -> bytes:
    """Bytes by which messages compare, NaN included."""
    return bytes(message.SerializeToString(deterministic=True))


def signed(value: int) -> int:
    """An int64 of the same bits as a uint64."""
    return value - 2**64 if value >= 2**63 else value


INT_TYPES = {
    pa.int8(): (-(2**7), 2**7 - 1),
    pa.int16(): (-(2**15), 2**15 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.uint8(): (0, 2**8 - 1),
    pa.uint16(): (0, 2**16 - 1),
    pa.uint32(): (0, 2**32 - 1),
    pa.uint64(): (0, 2**64 - 1),
}
NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(
    ["image", "image/height", "image/width", "label", "é", "a" * 110, "b" * 127, "c" * 300]
)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of value: how to draw one, and what an Example holds for it."""

    arrow_type: pa.DataType
    kind: str
    drawn: st.SearchStrategy[Any]
    stored: Callable[[Any], Any] = lambda value: value


def kinds() -> list[Kind]:
    binary = st.binary(max_size=200) | st.binary(max_size=3)
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    found = [
        Kind(pa.binary(), "bytes", binary),
        Kind(pa.large_binary(), "bytes", binary),
        Kind(pa.binary(3), "bytes", st.binary(min_size=3, max_size=3)),
        Kind(pa.string(), "bytes", text, str.encode),
        Kind(pa.large_string(), "bytes", text, str.encode),
        Kind(pa.bool_(), "int64", st.booleans(), int),
        Kind(pa.float32(), "float", st.floats(width=32)),
        Kind(pa.float16(), "float", st.floats(width=16).map(np.float16), float),
    ]
    for arrow_type, (low, high) in INT_TYPES.items():
        bits = st.integers(0, high.bit_length()).map(lambda n: 2**n - 1)
        drawn = st.integers(low, high) | bits | st.sampled_from([low, high])
        found.append(Kind(arrow_type, "int64", drawn, signed))
    return found


@st.composite
def columns(draw: st.DrawFn, num_rows: int) -> Column:
    """A column of ``num_rows`` of any type of the wire form, nulls and slices included."""
    kind = draw(st.sampled_from(kinds()))
    shape = draw(st.sampled_from(["scalar", "list", "large_list", "fixed_size_list"]))
    margin = draw(st.integers(0, 3))
    nullable = draw(st.booleans())
    value: st.SearchStrategy[Any] = kind.drawn
    arrow_type = kind.arrow_type
    if shape == "fixed_size_list":
        length = draw(st.integers(0, 3))
        arrow_type = pa.list_(arrow_type, length)
        value = st.lists(value, min_size=length, max_size=length)
    elif shape != "scalar":
        arrow_type = pa.list_(arrow_type) if shape == "list" else pa.large_list(arrow_type)
        value = st.lists(value, max_size=5)
    if nullable:
        value = st.none() | value
    size = num_rows + 2 * margin
    drawn = draw(st.lists(value, min_size=size, max_size=size))
    array = pa.array(drawn, arrow_type).slice(margin, num_rows)
    values: Values = []
    for item in drawn[margin : margin + num_rows]:
        items = [item] if shape == "scalar" else item
        values.append(None if item is None else [kind.stored(each) for each in items])
    return Column(array, kind.kind, values)


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Column], int]:
    num_rows = draw(st.integers(0, 6))
    names = draw(st.lists(NAME, unique=True, max_size=5))
    return {name: draw(columns(num_rows)) for name in names}, num_rows


def record_batch(table: dict[str, Column], num_rows: int) -> pa.RecordBatch:
    """Also where there are rows and no columns."""
    fields = [pa.field(name, column.array.type) for name, column in table.items()]
    arrays = [column.array for column in table.values()]
    if not fields:
        return pa.record_batch({"dropped": pa.nulls(num_rows)}).select([])
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


@settings(max_examples=300)
@given(tables())
@example(({}, 3))
def test_parses_equal_to_what_protobuf_gives(drawn: tuple[dict[str, Column], int]) -> None:
    table, num_rows = drawn
    batch = record_batch(table, num_rows)
    encoded = encode_examples(batch)
    assert encoded.type == pa.large_binary()
    assert encoded.null_count == 0
    serialized = encoded.to_pylist()
    expected = [canonical(message) for message in protobuf_examples(table, num_rows)]
    assert [canonical(tf.train.Example.FromString(item)) for item in serialized] == expected
    sizes = example_sizes(batch)
    assert sizes.dtype == np.uint64
    assert sizes.tolist() == [len(item) for item in serialized]
    names = list(table)
    if not any(a != b and a.startswith(b) for a in names for b in names):
        assert serialized == expected


def test_order_is_that_of_the_names_utf8_bytes() -> None:
    names = ["z", "é", "a/b", "a", "\U0001f600", "\uffff", "B", ""]
    batch = pa.record_batch({name: pa.array([1]) for name in names})
    serialized = encode_examples(batch)[0].as_py()
    ordered = sorted(names, key=str.encode)
    assert ordered != sorted(names, key=lambda name: name.encode("utf-16-be"))
    entries = [
        b"\n" + bytes([len(name.encode())]) + name.encode() + b"\x12\x05\x1a\x03\n\x01\x01"
        for name in ordered
    ]
    body = b"".join(b"\n" + bytes([len(entry)]) + entry for entry in entries)
    assert serialized == b"\n" + bytes([len(body)]) + body


def test_the_bytes_of_empty_lists() -> None:
    empty = {
        kind: pa.array([[]], pa.list_(arrow_type))
        for kind, arrow_type in [("b", pa.binary()), ("f", pa.float32()), ("i", pa.int64())]
    }
    serialized = encode_examples(pa.record_batch(empty))[0].as_py()
    assert b"\n\x01b\x12\x02\n\x00" in serialized
    assert b"\n\x01f\x12\x02\x12\x00" in serialized
    assert b"\n\x01i\x12\x02\x1a\x00" in serialized


@pytest.mark.parametrize("length", [0, 1, 108, 110, 127, 128, 16_383, 16_384, 2_097_152])
@pytest.mark.parametrize("name", ["x", "x" * 113, "x" * 128])
def test_lengths_of_any_number_of_bytes(length: int, name: str) -> None:
    payload = bytes(length)
    table = {
        name: Column(pa.array([payload, b""]), "bytes", [[payload], [b""]]),
        name + "i": Column(pa.array([7, 2**40]), "int64", [[7], [2**40]]),
        name + "l": Column(
            pa.array([[payload], [b"", b""]], pa.list_(pa.binary())),
            "bytes",
            [[payload], [b"", b""]],
        ),
    }
    encoded = encode_examples(record_batch(table, 2)).to_pylist()
    parsed = [canonical(tf.train.Example.FromString(item)) for item in encoded]
    assert parsed == [canonical(message) for message in protobuf_examples(table, 2)]


def test_many_rows_are_the_same_as_each_row_alone() -> None:
    rng = np.random.default_rng(0)
    size = 10_000
    absent = rng.random(size) < 0.1
    batch = pa.record_batch(
        {
            "int": pa.array(rng.integers(-5, 10 ** rng.integers(1, 18, size)), mask=absent),
            "float": pa.array(rng.normal(size=size).astype(np.float32)),
            "text": pa.array([str(value) * (value % 50) for value in range(size)]),
            "list": pa.array(
                [list(range(value % 200, value % 200 + value % 9)) for value in range(size)]
            ),
        }
    )
    whole = encode_examples(batch)
    parts = [encode_examples(batch.slice(start, 999)) for start in range(0, size, 999)]
    assert whole.equals(pa.concat_arrays(parts))


def test_values_under_nulls_are_not_read() -> None:
    offsets = pa.array([0, 2, 5, 6], pa.int64()).buffers()[1]
    valid = pa.array([True, False, True]).buffers()[1]
    text = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 3, [valid, offsets, pa.py_buffer(b"abXXXc")]
    )
    flat = pa.array([1, 2, None, None, None, 3])
    lists = pa.LargeListArray.from_buffers(
        pa.large_list(pa.int64()), 3, [valid, offsets], children=[flat]
    )
    batch = pa.record_batch({"text": text, "list": lists})
    parsed = [tf.train.Example.FromString(item) for item in encode_examples(batch).to_pylist()]
    assert [list(item.features.feature["text"].bytes_list.value) for item in parsed[::2]] == [
        [b"ab"],
        [b"c"],
    ]
    assert [list(item.features.feature["list"].int64_list.value) for item in parsed[::2]] == [
        [1, 2],
        [3],
    ]
    assert not parsed[1].features.feature


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([1.5]), "'x' is float64.*Cast it to float32"),
        (pa.array([[1.5]]), "'x' is float64"),
        (pa.array([], pa.float64()), "'x' is float64"),
        (pa.nulls(1), "'x' has values of type null"),
        (pa.array(["a"]).dictionary_encode(), "type dictionary"),
        (pa.array([[[1]]]), "type list"),
        (pa.array([{"a": 1}]), "type struct"),
        (pa.array([0], pa.timestamp("s")), "type timestamp"),
    ],
    ids=["float64", "floats", "no rows", "null", "dictionary", "list of lists", "struct", "time"],
)
def test_types_without_a_place_are_refused(array: pa.Array, message: str) -> None:
    for function in (encode_examples, example_sizes):
        with pytest.raises(TypeError, match=message):
            function(pa.record_batch({"x": array}))


@pytest.mark.parametrize("arrow_type", [pa.list_(pa.int64()), pa.list_(pa.int64(), 2)])
def test_a_null_inside_a_list_is_refused_with_its_row(arrow_type: pa.DataType) -> None:
    lists = pa.array([[9, 9], [1, 2], None, [3, None]], arrow_type).slice(1)
    with pytest.raises(ValueError, match="'x' row 2: the list contains a null"):
        encode_examples(pa.record_batch({"x": lists}))


def test_names_must_be_unique() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(ValueError, match=r"\['x'\] are not unique"):
        encode_examples(batch)


def zeros(lengths: list[int]) -> pa.LargeBinaryArray:
    """Zero bytes whose memory is never touched before it is copied."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    data = pa.py_buffer(np.zeros(offsets[-1], np.uint8))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lengths), [None, pa.py_buffer(offsets), data]
    )


def test_an_example_longer_than_protobuf_reads_is_refused() -> None:
    batch = pa.record_batch({"x": zeros([1, 2**31 - 20])})
    with pytest.raises(ValueError, match=r"Row 1: its Example would have 2,147,483,6.. bytes"):
        example_sizes(batch)


@pytest.mark.slow  # writes 2.2 GB of memory
def test_more_than_2_gib_do_not_overflow() -> None:
    batch = pa.record_batch({"image": zeros([1_100_000_000] * 2), "label": pa.array([1, 2])})
    encoded = encode_examples(batch)
    assert encoded.nbytes > 2**31
    assert pc.binary_length(encoded).to_pylist() == example_sizes(batch).tolist()
    assert (
        memoryview(encoded[1].as_buffer())[-20:]
        .tobytes()
        .endswith(b"label\x12\x05\x1a\x03\n\x01\x02")
    )


def test_many_columns_of_floats_are_laid_out_side_by_side() -> None:
    """More than fit one item, interrupted by other columns, and more rows than a tile."""
    num_rows, skipped = 4_100, 3
    rng = np.random.default_rng(0)
    batch = pa.record_batch(
        {
            f"c{number:02}" + "x" * (number % 3): pa.array(
                rng.random(num_rows + skipped).astype(np.float32),
                mask=rng.random(num_rows + skipped) < 0.5 if number % 31 == 7 else None,
            )
            if number % 20
            else pa.array(rng.integers(0, 300, num_rows + skipped))
            for number in range(100)
        }
    ).slice(skipped)
    encoded = encode_examples(batch)
    alone = [encode_examples(batch.select([name])) for name in sorted(batch.schema.names)]
    assert example_sizes(batch).tolist() == [len(value) for value in encoded.to_pylist()]
    for row in (0, 1, 4_095, 4_096, num_rows - 1):
        parsed = tf.train.Example.FromString(encoded[row].as_py())
        merged = tf.train.Example()
        for column in alone:
            merged.MergeFromString(column[row].as_py())
        assert canonical(parsed) == canonical(merged) == encoded[row].as_py()
