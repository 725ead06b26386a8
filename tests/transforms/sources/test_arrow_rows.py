"""Arrow tables of any types become wire columns: each value held against plain Python."""

import datetime
import decimal
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.schemas.errors import SchemaError
from snapshard.schemas.features import (
    ClassLabel,
    Feature,
    Features,
    Scalar,
    Sequence,
    Struct,
    Tensor,
    Text,
    Timestamp,
    flatten,
)
from snapshard.transforms.sources.arrow.rows import RowReader
from snapshard.transforms.sources.arrow.types import (
    leaf_feature,
    leaves_of,
    missing_leaves,
    nest,
)
from snapshard.transforms.sources.arrow.values import parse_times, texts
from snapshard.transforms.sources.python_values import wire_lists


def read(values: pa.Array, feature: Feature) -> tuple[list[Any], dict[int, str]]:
    """The wire values of a column ``x``, and row -> message of the rejected ones."""
    batch = pa.record_batch({"x": values})
    got = RowReader(batch.schema, {"x": feature}, path="t").read(batch, range(len(values)))
    got.columns.validate(full=True)
    assert got.ids + [r.record_id for r in got.rejects] == sorted(
        {*got.ids, *(r.record_id for r in got.rejects)},
        key=lambda name: (name not in got.ids, int(name[2:])),
    )
    return got.columns.column("x").to_pylist(), {
        int(reject.position or 0): reject.message for reject in got.rejects
    }


def infer_schema(schema: pa.Schema, missing: set[str]) -> dict[str, Feature | Struct]:
    leaves = leaves_of(schema, path="t")
    features = {name: leaf_feature(leaf, missing=name in missing) for name, leaf in leaves.items()}
    return nest(schema, features, path="t")


def infer_table(table: pa.Table) -> dict[str, Feature | Struct]:
    missing = set().union(*(missing_leaves(batch, path="t") for batch in table.to_batches()))
    return infer_schema(table.schema, missing)


def read_all(table: pa.Table) -> tuple[Features, dict[str, list[Any]]]:
    features = flatten(infer_table(table))[0]
    batch = table.combine_chunks().to_batches()[0]
    got = RowReader(table.schema, features, path="t").read(batch, range(len(table)))
    got.columns.validate(full=True)
    assert not got.rejects
    return features, {
        name: got.columns.column(name).to_pylist() for name in got.columns.schema.names
    }


INTS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
# Arrow type -> (values, the feature to infer without its `optional`)
SINGLES: dict[pa.DataType, tuple[st.SearchStrategy[Any], Callable[[bool], Feature]]] = {
    getattr(pa, name)(): (
        st.integers(int(np.iinfo(name).min), int(np.iinfo(name).max)),
        lambda o, name=name: Scalar(name, optional=o),
    )
    for name in INTS
}
SINGLES |= {
    pa.bool_(): (st.booleans(), lambda o: Scalar("bool", optional=o)),
    pa.float16(): (st.floats(width=16).map(np.float16), lambda o: Scalar("float16", optional=o)),
    pa.float32(): (st.floats(width=32), lambda o: Scalar("float32", optional=o)),
    pa.float64(): (st.floats(), lambda o: Scalar("float64", optional=o)),
    pa.string(): (st.text(max_size=5), lambda o: Scalar("string", optional=o)),
    pa.large_string(): (st.text(max_size=5), lambda o: Scalar("string", optional=o)),
    pa.string_view(): (st.text(max_size=20), lambda o: Scalar("string", optional=o)),
    pa.binary(): (st.binary(max_size=5), lambda o: Scalar("string", optional=o)),
    pa.binary_view(): (st.binary(max_size=20), lambda o: Scalar("string", optional=o)),
    pa.binary(3): (st.binary(min_size=3, max_size=3), lambda o: Scalar("string", optional=o)),
    pa.dictionary(pa.int8(), pa.string()): (
        st.sampled_from(["a", "b", "ü"]),
        lambda o: Scalar("string", optional=o),
    ),
    pa.date32(): (
        st.dates(),
        lambda o: Timestamp("s", optional=o),
    ),
    pa.timestamp("us"): (st.datetimes(), lambda o: Timestamp("us", optional=o)),
    pa.timestamp("ms", "Asia/Tokyo"): (
        st.integers(-(2**50), 2**50),
        lambda o: Timestamp("ms", optional=o),
    ),
    pa.duration("ns"): (
        st.integers(-(2**62), 2**62),
        lambda o: Scalar("int64", optional=o, unit="ns"),
    ),
    pa.decimal128(12, 3): (
        st.decimals(-(10**8), 10**8, places=3),
        lambda o: Scalar("float64", optional=o),
    ),
    pa.decimal256(60, 20): (
        st.decimals(-(10**30), 10**30, places=20),
        lambda o: Scalar("float64", optional=o),
    ),
}
EPOCH = datetime.datetime(1970, 1, 1)


def plain(value: Any) -> Any:
    """A value as the feature means it."""
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date):
        return (value - EPOCH.date()).days * 86_400
    return float(value) if isinstance(value, decimal.Decimal) else value


def same(found: Any, expected: Any) -> bool:
    if isinstance(found, list) and isinstance(expected, list | np.ndarray):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, float) and math.isnan(found):
        return math.isnan(expected)
    return bool(found == expected)


def test_times_with_a_zone_as_text() -> None:
    """They are of one length and end in Z, whatever the zone."""
    array = pa.array([0, None, 1_500], pa.timestamp("ms", "Asia/Tokyo"))
    expected = ["1970-01-01 00:00:00.000Z", None, "1970-01-01 00:00:01.500Z"]
    assert texts(array).to_pylist() == expected


def check(array: pa.Array, values: list[Any], feature: Feature) -> None:
    inferred = infer_table(pa.table({"x": array}))
    assert inferred == {"x": feature}
    columns = read_all(pa.table({"x": array}))[1]
    for row, value in enumerate(values):
        expected = wire_lists("x", feature, value)
        for column in feature.wire_columns("x"):
            found = columns[column.name][row]
            if value is None:
                assert found is None
                continue
            lists = expected[column.name]
            assert same([found] if column.length == 1 else found, list(lists)), (found, lists)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_single_values_of_every_type(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(list(SINGLES)))
    strategy, feature = SINGLES[type_]
    values = data.draw(st.lists(st.none() | strategy, min_size=1, max_size=12))
    array = pa.array(values, type_)
    cut = data.draw(st.integers(0, len(values) - 1))  # a slice begins inside of its buffers
    kept = [None if v is None else plain(v) for v in values[cut:]]
    check(array[cut:], kept, feature(None in kept))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_lists_of_every_type(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(list(SINGLES)))
    strategy, single = SINGLES[type_]
    optional = data.draw(st.booleans())
    item = single(False)
    kind = data.draw(st.sampled_from([pa.list_, pa.large_list, pa.list_view]))
    rows = st.lists(strategy, max_size=4)
    values = data.draw(st.lists(st.none() | rows if optional else rows, min_size=1, max_size=6))
    lists = [None if row is None else [plain(v) for v in row] for row in values]
    check(pa.array(values, kind(type_)), lists, Sequence(item, optional=None in values))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_tensors_of_fixed_and_varying_dimensions(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from([t for t in SINGLES if not pa.types.is_temporal(t)]))
    strategy, single = SINGLES[type_]
    dtype = single(False).dtype  # type: ignore[union-attr]
    shape = data.draw(st.lists(st.none() | st.integers(1, 3), min_size=1, max_size=3))

    def draw(dims: list[int]) -> Any:
        return [draw(dims[1:]) for _ in range(dims[0])] if dims else data.draw(strategy)

    values = []
    for _ in range(data.draw(st.integers(1, 4))):
        # Of an empty tensor lists do not say the inner dimensions.
        values.append(draw([data.draw(st.integers(1, 3)) if d is None else d for d in shape]))
    nested = type_
    for dim in reversed(shape):
        nested = pa.list_(nested, -1 if dim is None else dim)

    def flat(value: Any) -> Any:
        return [flat(v) for v in value] if isinstance(value, list) else plain(value)

    feature: Feature = Tensor(dtype, tuple(shape))
    if shape[0] is None and None not in shape[1:]:
        inner = Tensor(dtype, tuple(shape[1:])) if shape[1:] else Scalar(dtype)
        feature = Sequence(inner)
    check(pa.array(values, nested), [flat(v) for v in values], feature)


def test_structs_maps_and_lists_of_structs_become_dotted_features() -> None:
    table = pa.table(
        {
            "at": pa.array([{"x": 1, "deep": {"y": "a"}}, None, {"x": None, "deep": None}]),
            "all": pa.array(
                [[{"k": 1, "v": [1.0]}, {"k": 2, "v": [2.0]}], [], [{"k": 3, "v": []}]]
            ),
            "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int8())),
        }
    )
    features, columns = read_all(table)
    assert flatten(infer_table(table))[1] == ("at", "at.deep", "all", "map")
    assert features["at.deep.y"] == Scalar("string", optional=True)
    assert features["all.v"] == Tensor("float64", (None, None))
    assert columns["at.x"] == [1, None, None]
    assert columns["at.deep.y"] == [b"a", None, None]
    assert columns["all.k"] == [[1, 2], [], [3]]
    assert columns["all.v"] == [struct.pack("<2d", 1, 2), b"", b""]
    assert columns["all.v/shape"] == [[2, 1], [0, 0], [1, 0]]
    assert columns["map.key"] == [[b"a"], None, []]


@pytest.mark.parametrize(
    ("values", "feature", "expected", "bad"),
    [
        (pa.array([1, 300, -1, 255]), Scalar("uint8"), [1, 255], {1: "is 300", 2: "out of range"}),
        (pa.array([1, None]), Scalar("int64"), [1], {1: "has no value"}),
        (pa.array([2**63], pa.uint64()), Scalar("int64"), [], {0: "out of range"}),
        (pa.array([-1]), Scalar("uint64"), [], {0: "out of range"}),
        (pa.array([2**64 - 1], pa.uint64()), Scalar("uint64"), [-1], {}),
        (pa.array([1.0, 1.5, math.nan, 2.0**63, -(2.0**63)]), Scalar("int64"), [1, -(2**63)],
         {1: "is 1.5", 2: "nan", 3: "out of range"}),
        (pa.array([1e39, math.inf, 0.1]), Scalar("float32"),
         [math.inf, float(np.float32(0.1))], {0: "1e+39"}),
        (pa.array([65519.0, 65520.0]), Scalar("float16"), [65504.0], {1: "out of range"}),
        (pa.array([0, 1, 2]), Scalar("bool"), [0, 1], {2: "is 2"}),
        (pa.array([decimal.Decimal("1.0"), decimal.Decimal("1.5")]), Scalar("int32"), [1],
         {1: "wrong type"}),
        (pa.array([decimal.Decimal(2**63), decimal.Decimal(-1)]), Scalar("uint64"), [-(2**63)],
         {1: "out of range"}),
        (pa.array([decimal.Decimal("0.10")]), Scalar("string"), [b"0.10"], {}),
        (pa.array(["a", "b", None, "c"]), ClassLabel(("a", "c")), [0, 1],
         {1: "one of the 2 classes", 2: "has no value"}),
        (pa.array(["a", None]), ClassLabel(("a",), optional=True), [0, None], {}),
        (pa.array([0, 1, 2, -1]), ClassLabel(("no", "yes")), [0, 1], {2: "is 2", 3: "is -1"}),
        (pa.array([7, 3, 1]), ClassLabel(("3", "7")), [1, 0], {2: "unknown class"}),
        (pa.array([True, False]), ClassLabel(("false", "true")), [1, 0], {}),
        (pa.array([1500, 2000], pa.timestamp("ms")), Timestamp("s"), [2], {0: "finer than s"}),
        (pa.array([2**62], pa.timestamp("s")), Timestamp("ns"), [], {0: "out of range"}),
        (pa.array([-1500], pa.timestamp("us")), Timestamp("us"), [-1500], {}),
        (pa.array([5]), Timestamp("ns"), [5], {}),
        (pa.array(["1970-01-02", "1970-01-01T00:00:01Z", "1970-01-01 01:00:00+01:00", "no", None]),
         Timestamp("s"), [86400, 1, 0], {3: "wrong type", 4: "has no value"}),
        (pa.array(["1970-01-01T00:00:00.5"]), Timestamp("s"), [], {0: "finer than s"}),
        (pa.array([b"\xff", b"ok"]), Scalar("string"), [b"\xff", b"ok"], {}),
        (pa.array([b"\xff", b"ok"]), Text(), [b"ok"], {0: "not UTF-8"}),
        (pa.array([[1, None], [2]]), Sequence(Scalar("int64")), [[2]], {0: "missing item"}),
        (pa.array([[1, 2], [3]]), Tensor("int32", (2,)), [[1, 2]], {1: "wrong length"}),
        (pa.array([[1, 2, 300], [1]]), Sequence(Scalar("uint8")), [b"\x01"], {0: "out of range"}),
        (pa.array([[[1], [2, 3]], [[4], [5]]]), Tensor("int64", (None, None)), [[4, 5]],
         {0: "ragged list"}),
        (pa.array([[[1], None], [[4]]]), Tensor("int64", (None, 1)), [[4]], {0: "missing item"}),
        (pa.array([[1, 2, 3, 4], [1, 2, 3]]), Tensor("int64", (None, 2)), [[1, 2, 3, 4]],
         {1: "wrong length"}),
        (pa.nulls(2), Scalar("float64", optional=True), [None, None], {}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_rejected_alone(
    values: pa.Array, feature: Feature, expected: list[Any], bad: dict[int, str]
) -> None:
    found, messages = read(values, feature)
    assert same(found, expected)
    assert messages.keys() == bad.keys()
    for row, words in bad.items():
        assert words in messages[row]
        assert f"t row {row}: column 'x'" in messages[row]


def test_a_string_that_is_not_utf8_is_rejected() -> None:
    raw = pa.array([b"ok", b"caf\xe9"]).view(pa.string())
    found, messages = read(raw, Scalar("string"))
    assert found == [b"ok"]
    assert "b'caf\\xe9'" in messages[1]


def test_rejects_of_one_column_leave_out_the_row_in_all() -> None:
    batch = pa.record_batch(
        {
            "a": pa.array([1, None, 3, 4]),
            "view": pa.array(["w", "x", "y", "z"], pa.string_view()),
            "list": pa.array([[1.0], [2.0], None, [4.0, 5.0]]),
            "fixed": pa.array([[1, 2]] * 3 + [[3, 4]], pa.list_(pa.int64(), 2)),
        }
    )
    features = {
        "a": Scalar("int64"),
        "view": Scalar("string"),
        "list": Sequence(Scalar("float32")),
        "fixed": Tensor("int64", (2,)),
    }
    got = RowReader(batch.schema, features, path="p").read(
        batch, [10, 20, 30, 40], payload=lambda row: b"%d" % row
    )
    assert got.ids == ["p#10", "p#40"]
    assert [(r.record_id, r.payload) for r in got.rejects] == [("p#20", b"1"), ("p#30", b"2")]
    assert got.columns.to_pydict() == {
        "a": [1, 4],
        "fixed": [[1, 2], [3, 4]],
        "list": [[1.0], [4.0, 5.0]],
        "view": [b"w", b"z"],
    }


@pytest.mark.parametrize(
    ("column", "feature", "words"),
    [
        (pa.array(["a"]), Scalar("int64"), "column 'x' is string"),
        (pa.array([1.0]), Timestamp("s"), "Timestamp of int64 cannot store"),
        (pa.array([[1]]), Scalar("int64"), r"is int64\[\], which Scalar"),
        (pa.array([1]), Sequence(Scalar("int64")), "is int64, which Sequence"),
        (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), Tensor("int8", (3,)), r"is int8\[2\]"),
    ],
)
def test_a_column_that_can_never_hold_its_feature_is_refused(
    column: pa.Array, feature: Feature, words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        read(column, feature)


def test_a_missing_column_is_named_with_those_there_are() -> None:
    with pytest.raises(SchemaError, match=r"t has no column 'y'.*Its columns are 'x'"):
        RowReader(pa.schema([("x", pa.int8())]), {"y": Scalar("int8")}, path="t")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([("a", pa.int8()), ("a", pa.int8())], "two columns are named 'a'"),
        ([("a.b", pa.int8()), ("a", pa.struct([("b", pa.int8())]))], "two columns are named"),
        ([("", pa.int8())], "empty"),
        ([("a", pa.list_(pa.int8(), 0))], "always empty"),
        ([("a", pa.month_day_nano_interval())], "no feature supports"),
        ([("a", pa.dense_union([pa.field("i", pa.int8())]))], "no feature supports"),
        ([("a", pa.struct([]))], "has no columns"),
        ([], "has no columns"),
    ],
)
def test_columns_that_no_feature_can_be_made_of_are_refused(schema: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        infer_schema(pa.schema(schema), missing=set())


def test_extension_types_are_what_they_are_stored_as() -> None:
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8, dtype=np.int16).reshape(4, 2))
    features, columns = read_all(pa.table({"x": tensor}))
    assert features == {"x": Tensor("int16", (2,))}
    assert columns["x"][1] == b"\x02\x00\x03\x00"


def test_run_end_encoded_values() -> None:
    encoded = pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([5, 7], pa.int8()))
    assert read_all(pa.table({"x": encoded}))[1] == {"x": [5, 5, 7]}


@pytest.mark.parametrize(
    "text",
    ["2026-11-21", "2026-11-21T09", " 2026-11-21 09:30\t", "2026-11-21T09:30:00.000+02:00"],
)
def test_a_time_is_read_alone_as_beside_others(text: str) -> None:
    column = pa.array([text, *["no time", "2026-02-30", None] * 200], pa.large_string())
    alone, _ = parse_times(column[:1], "s")
    times, bad = parse_times(column, "s")
    assert times[0] == alone[0]
    assert alone[0].is_valid
    assert bad.tolist() == [False, *[True, True, False] * 200]


@pytest.mark.parametrize("bad", [{}, {"c3": 1}, {"c0": 2, "c7": 2, "s": 0}], ids=len)
def test_columns_of_one_type_are_converted_together(bad: dict[str, int]) -> None:
    """With the values, rejects and messages of each column alone."""
    values: dict[str, list[Any]] = {f"c{i}": [i, i + 0.5, None, 2.0] for i in range(4)}
    values |= {f"c{i}": [i, None, 100 + i, 2] for i in range(4, 8)}
    values |= {f"b{i}": [True, False, None, True] for i in range(3)} | {"s": ["a", "b", "c", "d"]}
    kinds = {"c": Scalar("float32", optional=True), "b": Scalar("bool", optional=True)}
    features: Features = {name: kinds.get(name[0], Text()) for name in values}
    features |= {f"c{i}": Scalar("int8", optional=True) for i in range(4, 8)}
    features |= {name: Text() if name == "s" else Scalar("int8") for name in bad}
    for name, row in bad.items():
        values[name] = [*values[name]]
        values[name][row] = None if name == "s" else 300
    batch = pa.record_batch({name: pa.array(column) for name, column in values.items()})
    sliced = pa.concat_batches([batch, batch]).slice(2, 4)
    together = RowReader(batch.schema, features, path="t").read(sliced, range(4))
    assert together.columns.schema.names == sorted(features)
    together.columns.validate(full=True)
    alone = {
        name: RowReader(batch.schema, {name: feature}, path="t").read(sliced, range(4))
        for name, feature in features.items()
    }
    rejects: dict[str, str] = {}
    for read_alone in alone.values():
        for reject in read_alone.rejects:
            rejects.setdefault(reject.record_id, reject.message)
    assert {reject.record_id: reject.message for reject in together.rejects} == rejects
    for name, read_alone in alone.items():
        kept = [
            value
            for record_id, value in zip(
                read_alone.ids, read_alone.columns.column(name).to_pylist(), strict=True
            )
            if record_id not in rejects
        ]
        assert together.columns.column(name).to_pylist() == kept
