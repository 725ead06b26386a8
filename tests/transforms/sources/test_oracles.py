"""Random data read by snapshard and by the libraries of each format: the same values.

Parquet against pyarrow, records against protobuf's own parser, arrays against NumPy. What a source
reads goes through the encoder and comes back by protobuf, as a shard's records do. Set
SNAPSHARD_ORACLE_EXAMPLES to try more than the few examples of the quick tests.
"""

import decimal
import io
import math
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.features import Feature
from snapshard.transforms.examples.decode import NotAnExampleError, read_lists
from snapshard.transforms.examples.encode import encode_examples
from snapshard.transforms.sources.tfrecord.columns import decode, read_tensor

from .conftest import Reading
from .test_tfrecord_files import framed

NUM = int(os.environ.get("SNAPSHARD_ORACLE_EXAMPLES", "40"))
quick = settings(max_examples=NUM, deadline=None, suppress_health_check=list(HealthCheck))

# ---- Values, as every oracle writes them down: ints, floats by their bits, bytes, None, lists.


def bits(value: float, dtype: str = "float64") -> Any:
    """A float as what tells it from others: all NaN are alike, -0.0 is not 0.0."""
    value = float(value)
    return "nan" if math.isnan(value) else (math.copysign(1, value), value)


def stored_values(feature: Feature, name: str, example: Any) -> Any:
    """The value of a feature in an Example, flat, by its wire form."""
    (column, *_) = feature.wire_columns(name)  # type: ignore[union-attr]
    if name not in example.features.feature:
        return None
    found = example.features.feature[name]
    values = list(getattr(found, found.WhichOneof("kind") or "int64_list").value)
    form = feature.form  # type: ignore[union-attr]
    if column.packed is not None:
        dtype = np.dtype(ml_dtypes.bfloat16 if column.packed == "bfloat16" else column.packed)
        (content,) = values
        values = np.frombuffer(content, dtype).tolist()
    if form.dtype == "uint64":
        values = [value % 2**64 for value in values]
    if "float" in form.dtype:
        values = [bits(value) for value in values]
    return values if form.shape else values[0]


def flat(value: Any) -> Any:
    """Nested lists without their structure."""
    if not isinstance(value, list):
        return value
    return [item for one in map(flat, value) for item in (one if isinstance(one, list) else [one])]


def dims(value: Any, depth: int) -> list[set[int]]:
    """The lengths of the lists of each level."""
    level, found = [value], []
    for _ in range(depth):
        found.append({len(one) for one in level})
        level = [item for one in level for item in one]
    return found


def lacks(value: Any) -> bool:
    """Whether something inside of lists is missing."""
    return isinstance(value, list) and any(item is None or lacks(item) for item in value)


def check_rows(got: Any, expected: dict[str, dict[str, Any]]) -> None:
    """Every row is there with the values that are expected, or rejected with a reason."""
    assert got.rows.keys() | got.rejected.keys() >= expected.keys(), got.rejected
    assert not got.rows.keys() & got.rejected.keys()
    if not got.rows:
        return
    ids = list(got.rows)
    examples = [tf.train.Example.FromString(one) for one in encoded(got)]
    for id_, made in zip(ids, examples, strict=True):
        for name, feature in got.features.items():
            found = stored_values(feature, name, made)
            wanted = expected[id_][name]
            if wanted is None and not feature.form.optional:
                raise AssertionError(f"{name} is missing in {id_}, and {feature} has {found}")
            assert found == flat(wanted), (id_, name, feature)
    for id_, message in got.rejected.items():
        row = expected[id_]
        assert any(unfit(got.features[n], value) for n, value in row.items()), (message, row)


def encoded(got: Any) -> list[bytes]:
    """The Examples of what was read."""
    return encode_examples(got.columns).to_pylist()  # type: ignore[no-any-return]


def unfit(feature: Feature, value: Any) -> bool:
    """Whether a feature cannot hold a value: missing, in part or ragged."""
    form = feature.form  # type: ignore[union-attr]
    if value is None:
        return not form.optional
    if lacks(value):
        return True
    sizes = dims(value, len(form.shape)) if isinstance(value, list) else []
    wrong = any(len(found) > 1 for found in sizes[1:])
    return wrong or any(
        size is not None and found - {size} for size, found in zip(form.shape, sizes, strict=False)
    )


class Columns(Reading):
    """Reads as the tests of sources do, and keeps the columns."""

    def read(self, source: Any, **settings: Any) -> Any:
        got = super().read(source, **settings)
        from snapshard.transforms.runs.files import wire_schema

        schema = wire_schema(got.features)
        rows = [{name: row[name] for name in schema.names} for row in got.rows.values()]
        got.__dict__["columns"] = pa.RecordBatch.from_pylist(rows, schema=schema)
        return got


@pytest.fixture
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Columns]:
    return lambda: Columns(tmp_path_factory.mktemp("in"))


# ---- Parquet and Arrow against pyarrow

_UNITS = ("s", "ms", "us", "ns")
INTS = [getattr(pa, f"{sign}int{n}")() for sign in ("", "u") for n in (8, 16, 32, 64)]
TYPES = [
    *INTS,
    *(pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary()),
    *(pa.binary(3), pa.decimal128(20, 4), pa.date32(), pa.date64()),
    *(pa.timestamp(unit) for unit in ("ms", "us", "ns")),
    pa.timestamp("us", "Asia/Tokyo"),
    *(pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.duration(unit) for unit in _UNITS),
    pa.dictionary(pa.int32(), pa.string()),
]


def scalars(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, those at its ends too."""
    types = pa.types
    if types.is_dictionary(type_):
        return st.sampled_from(["a", "ü", ""])
    if types.is_integer(type_):
        info = np.iinfo(str(type_))
        return st.integers(int(info.min), int(info.max)) | st.sampled_from(
            [info.min, info.max]
        ).map(int)
    if types.is_boolean(type_):
        return st.booleans()
    if types.is_floating(type_):
        return st.floats(width=type_.bit_width)
    if types.is_string(type_) or types.is_large_string(type_):
        return st.text(max_size=4)
    if types.is_fixed_size_binary(type_) and not types.is_decimal(type_):
        return st.binary(min_size=3, max_size=3)
    if types.is_decimal(type_):
        return st.decimals(-(10**11), 10**11, places=4)
    if types.is_date32(type_):
        return st.integers(-(2**30), 2**30)
    if types.is_date64(type_):
        return st.integers(-(2**20), 2**20).map(lambda days: days * 86_400_000)
    if types.is_time32(type_):
        return st.integers(0, 86_399_999)
    if types.is_time64(type_):
        return st.integers(0, 86_399_999_999)
    if types.is_temporal(type_):
        return st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-5, 5)
    return st.binary(max_size=4)


@st.composite
def types_and_rows(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    """A type, and rows of plain values of it: times as integers."""
    leaf = draw(st.sampled_from(TYPES))
    value = scalars(leaf)
    type_, depth = leaf, draw(st.integers(0, 3))
    for _ in range(depth):
        size = draw(st.none() | st.integers(1, 3))
        if size is None:
            type_, value = pa.list_(type_), st.lists(value, max_size=3)
        else:
            type_, value = pa.list_(type_, size), st.lists(value, min_size=size, max_size=size)
        if draw(st.integers(0, 3)) == 0:
            value = st.none() | value
    if draw(st.booleans()):
        value = st.none() | value
    return type_, draw(st.lists(value, min_size=1, max_size=6))


def array_of(type_: pa.DataType, rows: list[Any]) -> pa.Array:
    """An array of such rows, built from the values up."""
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        size = type_.list_size if pa.types.is_fixed_size_list(type_) else None
        items = [
            item for row in rows for item in (row if row is not None else [None] * (size or 0))
        ]
        inner = array_of(type_.value_type, items)
        missing = pa.array([row is None for row in rows], pa.bool_())
        if size is not None:
            return pa.FixedSizeListArray.from_arrays(inner, size, mask=missing)
        ends = np.cumsum([0, *(len(row or ()) for row in rows)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), inner, mask=missing)
    if pa.types.is_temporal(type_):
        return pa.array(rows, pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)
    if pa.types.is_dictionary(type_):
        return pa.array(rows, type_.value_type).dictionary_encode()
    return pa.array(rows, type_)


def plain(array: pa.Array) -> list[Any]:
    """What pyarrow reads, as :func:`stored_values` writes it: times as numbers of their unit."""
    type_ = array.type
    if pa.types.is_dictionary(type_):
        return plain(array.dictionary_decode())
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        return [None if not row.is_valid else plain(row.values) for row in array]
    if pa.types.is_temporal(type_):
        found = array.cast(pa.int32() if type_.bit_width == 32 else pa.int64()).to_pylist()
        days = 86_400 if pa.types.is_date32(type_) else 1
        return [None if value is None else value * days for value in found]

    def one(value: Any) -> Any:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, float | decimal.Decimal):
            return bits(float(value))
        return int(value) if isinstance(value, bool) else value

    return [one(value) for value in array.to_pylist()]


@pytest.mark.slow
@given(columns=st.lists(types_and_rows(), min_size=1, max_size=4), groups=st.integers(1, 3))
@quick
def test_parquet_and_arrow_as_pyarrow_reads_them(
    folders: Callable[[], Columns], columns: list[tuple[pa.DataType, list[Any]]], groups: int
) -> None:
    num_rows = min(len(rows) for _, rows in columns)
    table = pa.table({f"c{i}": array_of(t, rows[:num_rows]) for i, (t, rows) in enumerate(columns)})
    for source, suffix in ((ss.Parquet, "parquet"), (ss.Arrow, "arrow")):
        reading = folders()
        sink = io.BytesIO()
        if suffix == "parquet":
            pq.write_table(table, sink, row_group_size=groups)
            try:
                read = pq.read_table(io.BytesIO(sink.getvalue()))
            except pa.ArrowInvalid:  # it does not read missing lists of fixed size
                continue
        else:
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table.unify_dictionaries(), max_chunksize=groups)
            read = table
        got = reading.read(source(reading.write(f"a.{suffix}", sink.getvalue())))
        values = {n: plain(read.column(n).combine_chunks()) for n in read.column_names}
        expected = {
            f"a.{suffix}#{row}": {name: column[row] for name, column in values.items()}
            for row in range(num_rows)
        }
        check_rows(got, expected)
        for name, field in zip(read.column_names, read.schema, strict=True):
            leaf = field.type
            while pa.types.is_list(leaf) or pa.types.is_fixed_size_list(leaf):
                leaf = leaf.value_type
            if pa.types.is_temporal(leaf):
                feature = got.features[name]
                item = feature.of if isinstance(feature, ss.Sequence) else feature
                dates = {pa.date32(): "s", pa.date64(): "ms"}
                assert item.unit == (dates.get(leaf) or leaf.unit)


# ---- Records against protobuf's own parser


def varint(value: int) -> bytes:
    value %= 1 << 64
    made = b""
    while value > 127:
        made, value = made + bytes([value & 127 | 128]), value >> 7
    return made + bytes([value])


def part(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


int64s = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 2**32, 2**53 + 1])
float32s = st.integers(0, 2**32 - 1).map(lambda n: struct.pack("<I", n))  # NaN, denormals and all
unknown = st.sampled_from([b"", part(9, b"what"), varint(15 << 3) + varint(7), b"\x45" + bytes(4)])


@st.composite
def lists_of(draw: st.DrawFn, kind: int) -> bytes:
    """A BytesList, FloatList or Int64List, written in one of the ways that parsers must take."""
    made = b""
    for _ in range(draw(st.integers(0, 3))):
        packed = kind != 1 and draw(st.booleans())
        if kind == 1:
            made += b"".join(part(1, value) for value in draw(st.lists(st.binary(max_size=3))))
        elif packed:
            one = float32s if kind == 2 else int64s.map(varint)
            made += part(1, b"".join(draw(st.lists(one, max_size=4))))
        else:
            tag, one = (b"\x0d", float32s) if kind == 2 else (b"\x08", int64s.map(varint))
            made += b"".join(tag + value for value in draw(st.lists(one, max_size=3)))
        made += draw(unknown)
    return made


@st.composite
def features_of(draw: st.DrawFn, kinds: Sequence[int] = (1, 2, 3)) -> bytes:
    """A Feature; with several lists, those of one kind are one, and the last kind stands."""
    made = draw(unknown)
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 1, 2]))):
        kind = draw(st.sampled_from(kinds))
        made += part(kind, draw(lists_of(kind))) + draw(unknown)
    return made


@st.composite
def maps_of(draw: st.DrawFn, value: Callable[[str], st.SearchStrategy[bytes]]) -> bytes:
    """A map's entries, in any order, some keys twice."""
    made = b""
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(["a", "b", "é"]))
        key, content = part(1, name.encode()), part(2, draw(value(name)))
        made += part(1, draw(st.sampled_from([key + content, content + key])))
        made += draw(unknown)
    return made


KINDS = {"a": 3, "b": 2, "é": 1, "c": 3, "d": 2, "è": 1}


@st.composite
def sequences(draw: st.DrawFn, *, mixed: bool = False) -> bytes:
    """A SequenceExample, or an Example where it has no frames; each name of one kind, or not."""

    def kinds(name: str) -> Sequence[int]:
        return (1, 2, 3) if mixed else (KINDS[name],)

    made = part(1, draw(maps_of(lambda name: features_of(kinds(name)))))
    if draw(st.booleans()):
        frames = {"a": "c", "b": "d", "é": "è"}

        def frame_lists(name: str) -> st.SearchStrategy[bytes]:
            one = features_of((KINDS[frames[name]],)).map(lambda frame: part(1, frame))
            return st.lists(one, max_size=4).map(b"".join)

        entries = draw(maps_of(frame_lists))
        for name, other in frames.items():
            entries = entries.replace(part(1, name.encode()), part(1, other.encode()))
        made += draw(unknown) + part(2, entries)
    return made + draw(unknown)


def of_feature(feature: Any) -> list[Any] | None:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = list(getattr(feature, kind).value)
    return [bits(value) for value in values] if kind == "float_list" else values


def of_column(values: Any) -> Any:
    if isinstance(values, list):
        return [of_column(value) for value in values]
    return bits(values) if isinstance(values, float) else values


@given(records=st.lists(sequences(), min_size=1, max_size=4))
@example(
    records=[part(2, part(1, part(1, b"c") + part(2, part(1, part(3, part(1, varint(2**33)))))))]
)
@example(
    records=[part(2, part(1, part(1, b"c") + part(2, part(1, b"") * num))) for num in (1, 2, 5)]
)
@quick
def test_records_as_protobuf_parses_them(records: list[bytes]) -> None:
    parsed = [tf.train.SequenceExample.FromString(record) for record in records]
    batch = decode(records)
    rows = batch.to_pylist() or [{} for _ in records]  # where there are no columns
    for row, message in zip(rows, parsed, strict=True):
        found = {name: of_column(value) for name, value in row.items() if value is not None}
        context = {n: of_feature(f) for n, f in message.context.feature.items()}
        expected = {name: values for name, values in context.items() if values is not None}
        for name, frames in message.feature_lists.feature_list.items():
            expected[name] = [of_feature(frame) for frame in frames.feature]
        assert found == expected


@given(record=sequences(mixed=True))
@quick
def test_single_examples_as_protobuf_parses_them(record: bytes) -> None:
    message = tf.train.Example.FromString(record)
    expected = {n: of_feature(f) for n, f in message.features.feature.items()}
    found = {name: of_column(list(one.values)) for name, one in read_lists(record).items()}
    found = {n: [bits(v) for v in vs] if n and read_lists(record)[n].kind == "float32" else vs
             for n, vs in found.items()}  # fmt: skip
    assert found == {name: values for name, values in expected.items() if values is not None}


@given(record=sequences(), cut=st.integers(1, 20), junk=st.binary(max_size=3))
@quick
def test_damaged_records_fail_where_protobuf_does(record: bytes, cut: int, junk: bytes) -> None:
    damaged = record[:-cut] + junk
    try:
        tf.train.Example.FromString(damaged)
        fails = False
    except Exception:
        fails = True
    for decoder in (read_lists, lambda content: decode([content])):
        try:
            decoder(damaged)
        except (NotAnExampleError, RuntimeError):
            continue
        assert not fails or damaged[:1] == b"\x08"


@given(record=sequences())
@quick
def test_tensorflow_parses_examples_as_protobuf_does(record: bytes) -> None:
    dtypes = {1: tf.string, 2: tf.float32, 3: tf.int64}
    kinds = {1: "bytes_list", 2: "float_list", 3: "int64_list"}
    message = tf.train.Example.FromString(record)
    message.DiscardUnknownFields()
    specs = {name: tf.io.RaggedFeature(dtypes[KINDS[name]]) for name in ("a", "b", "é")}
    # As everyone's protobuf writes them: of numbers that are packed in part it loses some.
    found = tf.io.parse_example([message.SerializeToString()], specs)
    for name in specs:
        feature = message.features.feature.get(name)
        expected = list(getattr(feature, kinds[KINDS[name]]).value) if feature else []
        assert of_column(found[name].to_list()[0]) == of_column(expected)


@given(
    dtype=st.sampled_from(
        [
            *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"),
            *("float16", "bfloat16", "float32", "float64", "string"),
        ]
    ),
    shape=st.lists(st.integers(0, 3), max_size=3),
    content=st.binary(min_size=8 * 27, max_size=8 * 27),
)
@quick
def test_tensors_as_tensorflow_parses_them(dtype: str, shape: list[int], content: bytes) -> None:
    size = math.prod(shape)
    if dtype == "string":
        values: Any = np.array([content[i : i + i % 3] for i in range(size)], object).reshape(shape)
    else:
        kind = tf.as_dtype(dtype).as_numpy_dtype
        source = np.frombuffer(content, np.uint8) & 1 if dtype == "bool" else content
        values = np.frombuffer(bytes(source), kind)[:size].reshape(shape)
    written = tf.io.serialize_tensor(tf.constant(values, dtype, shape)).numpy()
    found = read_tensor(written)
    parsed = np.asarray(tf.io.parse_tensor(written, dtype).numpy())
    assert found.shape == parsed.shape == tuple(shape)
    assert found.tolist() == parsed.tolist() or found.tobytes() == parsed.tobytes()


messages_like_tensors = st.builds(
    lambda dtype, shape, rest: b"\x08" + varint(dtype) + part(2, shape) + rest,
    st.integers(0, 30),
    st.binary(max_size=4),
    st.binary(max_size=6),
)


@given(messages=st.lists(st.binary(max_size=6) | messages_like_tensors, min_size=1, max_size=3))
@quick
def test_bytes_stay_what_they_are(folders: Callable[[], Columns], messages: list[bytes]) -> None:
    records = []
    for message in messages:
        made = tf.train.Example()
        made.features.feature["x"].bytes_list.value.append(message)
        records.append(made.SerializeToString())
    reading = folders()
    got = reading.read(ss.TFRecords(reading.write("a.tfrecord", framed(records))))
    assert not got.rejects
    found = got.column("x")
    if got.features["x"] == ss.Scalar("string"):
        assert found == messages
    else:
        for message, value in zip(messages, found, strict=True):
            read = read_tensor(message)
            assert tf.io.serialize_tensor(tf.constant(read)).numpy() == message
            assert read.ravel().tolist() in (value, [value])


# ---- Arrays against NumPy

NUMBERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
DTYPES = [f"{order}{kind}" for order in "<>" for kind in NUMBERS]
DTYPES += ["?", "<U3", ">U2", "S3", "<M8[s]", ">M8[ns]", "<m8[ms]", "<m8[us]"]


@st.composite
def arrays(draw: st.DrawFn, *, num_rows: int) -> Any:
    """An array of any bits, of some rows; structured, in Fortran order, or big-endian."""
    fields = draw(st.integers(0, 3))
    if not fields:
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    else:
        sub = [draw(st.sampled_from([(), (2,), (1, 2)])) for _ in range(fields)]
        kinds = [draw(st.sampled_from(DTYPES)) for _ in range(fields)]
        dtype = np.dtype([(f"f{i}", kinds[i], sub[i]) for i in range(fields)])
    shape = (num_rows, *draw(st.lists(st.integers(1, 3), max_size=2)))
    size = math.prod(shape)
    if dtype.kind == "U":
        texts = draw(st.lists(st.text(max_size=2), min_size=size, max_size=size))
        return np.array(texts, dtype).reshape(shape)
    content = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
    values = np.zeros(shape, dtype)
    if dtype.names is None:
        values = np.frombuffer(content, dtype).reshape(shape).copy()
    else:
        for name in dtype.names:
            kind = dtype[name].base
            if kind.kind != "U":
                num = values[name].size
                part_ = (content * (num * kind.itemsize // max(1, len(content)) + 1))[
                    : num * kind.itemsize
                ]
                values[name] = np.frombuffer(part_, kind).reshape(values[name].shape)
            else:
                values[name] = "é1"
    if dtype.kind == "b":
        values = (np.frombuffer(content, np.uint8) & 1).astype(bool).reshape(shape)
    return np.asfortranarray(values) if draw(st.booleans()) else values


def columns_of(name: str, array: Any) -> dict[str, Any]:
    """The columns of an array: a structured one has one for each field."""
    if array.dtype.names is None:
        return {name: array}
    return {f"{name}.{field}": array[field] for field in array.dtype.names}


def numpy_rows(array: Any) -> list[Any]:
    """The rows of an array, as :func:`stored_values` writes them."""
    masked = np.ma.getmaskarray(array)
    array = np.ma.getdata(array)
    if array.dtype.kind in "mM":
        numbers = array.astype(array.dtype.newbyteorder("=")).view(np.int64)
        masked, array = masked | (numbers == -(2**63)), numbers

    def one(value: Any, missing: Any) -> Any:
        if isinstance(value, list):
            made = [one(v, m) for v, m in zip(value, missing, strict=True)]
            return None if all(item is None for item in made) and made else made
        if missing:
            return None
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, float):
            return bits(value)
        return int(value) if isinstance(value, bool) else value

    return [one(array[i].tolist(), masked[i].tolist()) for i in range(len(array))]


def check_arrays(got: Any, named: dict[str, Any], prefix: str) -> None:
    columns: dict[str, Any] = {}
    for name, array in named.items():
        columns |= {n: numpy_rows(a) for n, a in columns_of(name, array).items()}
    num_rows = len(next(iter(named.values())))
    expected = {f"{prefix}#{i}": {n: c[i] for n, c in columns.items()} for i in range(num_rows)}
    check_rows(got, expected)


@given(data=st.data(), num_rows=st.integers(1, 5))
@quick
def test_arrays_as_numpy_reads_them(
    folders: Callable[[], Columns], data: st.DataObject, num_rows: int
) -> None:
    reading = folders()
    array = data.draw(arrays(num_rows=num_rows))
    sink = io.BytesIO()
    np.save(sink, array)
    got = reading.read(ss.Numpy(reading.write("a.npy", sink.getvalue()), name="x"))
    check_arrays(got, {"x": np.load(io.BytesIO(sink.getvalue()))}, "a.npy")
    others = {"x": array, "y": data.draw(arrays(num_rows=num_rows))}
    if not any(a.flags.f_contiguous and a.ndim > 1 for a in others.values()):
        sink = io.BytesIO()
        np.savez_compressed(sink, **others)
        got = reading.read(ss.Numpy(reading.write("b.npz", sink.getvalue())))
        check_arrays(got, others, "b.npz")


@given(data=st.data(), num_rows=st.integers(1, 5))
@quick
def test_arrays_in_memory_as_numpy_has_them(
    folders: Callable[[], Columns], data: st.DataObject, num_rows: int
) -> None:
    reading = folders()
    array = data.draw(arrays(num_rows=num_rows))
    if data.draw(st.booleans()):
        size = array.size
        holes = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
        if array.dtype.names is None:
            array = np.ma.array(array, mask=np.array(holes, bool).reshape(array.shape))
    folder = str(reading.folder / "work" / "t")
    got = reading.read(ss.Table({"x": array}).extract(folder, base=""))
    check_arrays(got, {"x": array}, "table")


@given(values=st.lists(st.none() | int64s, min_size=1, max_size=6))
@quick
def test_integers_of_array_likes_stay_exact(
    folders: Callable[[], Columns], values: list[int | None]
) -> None:
    import pandas as pd

    holes = [value is None for value in values]
    filled = [value or 0 for value in values]
    whens = [None if value is None else pd.Timestamp(value % 2**62) for value in values]
    data = {
        "arrow": pa.array(values, pa.int64()),
        "chunks": pa.chunked_array(
            [pa.array(values[:2], pa.int64()), pa.array(values[2:], pa.int64())]
        ),
        "series": pd.Series(values, dtype="Int64"),
        "extension": pd.array(values, dtype="Int64"),
        "objects": np.array(values, object),
        "na": np.array([pd.NA if value is None else value for value in values], object),
        "masked": np.ma.array(filled, mask=holes),
        "frame": pd.DataFrame({"x": pd.Series(values, dtype="Int64")})["x"],
    }
    times = {
        "times": np.array(whens, object),
        "series of times": pd.Series(whens, dtype=object),
        "nat": np.array([pd.NaT if when is None else when for when in whens], object),
    }
    for given_data, expected in (
        (data, values),
        (times, [None if value is None else value % 2**62 for value in values]),
    ):
        if all(holes):
            continue
        reading = folders()
        got = reading.read(ss.Table(given_data).extract(str(reading.folder / "w" / "t"), base=""))
        assert not got.rejects
        for name in given_data:
            feature = got.features[name]
            scale = {"s": 10**9, "ms": 10**6, "us": 10**3}.get(
                getattr(feature, "unit", None) or "", 1
            )
            found = [None if v is None else v * scale for v in got.column(name)]
            assert found == expected, name


def test_a_bfloat16_table_is_a_bfloat16_feature(folders: Callable[[], Columns]) -> None:
    reading = folders()
    values = np.array([[1.5, np.nan], [-0.0, 3e38]], ml_dtypes.bfloat16)
    got = reading.read(ss.Table({"x": values}).extract(str(reading.folder / "w" / "t"), base=""))
    assert got.features == {"x": ss.Tensor("bfloat16", (2,))}
    assert [np.frombuffer(v, np.uint16).tolist() for v in got.column("x")] == (
        values.view(np.uint16).tolist()
    )
