"""JSON Lines: what is inferred of the objects, and their values."""

import gzip
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import SchemaError
from snapshard.schemas.features import (
    ClassLabel,
    Feature,
    Image,
    Scalar,
    Sequence,
    Tensor,
    Text,
    Timestamp,
)
from snapshard.transforms.sources.folders.side_tables import parse_lines
from snapshard.transforms.sources.json import rows as json_rows
from snapshard.transforms.sources.json import source as json_lines
from snapshard.transforms.sources.json.rows import JsonReader, find_lines
from snapshard.transforms.sources.json.source import JsonLines
from snapshard.transforms.sources.json.values import object_without_doubles
from snapshard.transforms.sources.text_stream import Rows
from snapshard.transforms.storage.opened_source import open_source

from .memory_files import PlainText

ROWS = [
    {
        "n": i,
        "x": i / 4 if i % 2 else i,
        "kind": "ab"[i % 2],
        "at": {"lat": i * 0.5, "deep": {"name": f"é{i}"}},
        "ids": list(range(i % 4)),
        "grid": [[i, 1], [2, 3]],
        "items": [{"price": 1.5 * k, "tags": ["t"]} for k in range(i % 3)],
        **({"rare": True} if i == 3 else {}),
        "none": None,
    }
    for i in range(12)
]


def lines_of(rows: list[Any], end: str = "\n") -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + end.encode() for row in rows)


def infer(reading: Any, *rows: Any, **options: Any) -> dict[str, Feature]:
    features: dict[str, Feature] = reading.read(
        JsonLines(reading.write("t.jsonl", lines_of(list(rows))), **options)
    ).features
    return features


@pytest.mark.parametrize("name", ["t.jsonl", "t.ndjson.gz", "t.json.zst", "utf16.jsonl"])
def test_every_object_with_its_values(reading: Any, name: str) -> None:
    content = lines_of(ROWS)
    stored = content
    if name.endswith("gz"):
        stored = gzip.compress(content)
    elif name.endswith("zst"):
        stored = zstandard.compress(content)
    elif name.startswith("utf16"):
        stored = content.decode().encode("utf-16")
    url = reading.write(f"made/{name}", stored)
    got = reading.read(JsonLines(url, label="kind"))
    assert got.features == {
        "n": Scalar("int64"),
        "x": Scalar("float64"),
        "kind": ClassLabel(("a", "b")),
        "at.lat": Scalar("float64"),
        "at.deep.name": Scalar("string"),
        "ids": Sequence(Scalar("int64")),
        "grid": Tensor("int64", (None, None)),
        "items.price": Sequence(Scalar("float64")),
        "items.tags": Tensor("string", (None, None)),
        "rare": Scalar("bool", optional=True),
        "none": Scalar("string", optional=True),
    }
    assert not got.rejects
    offsets = [int(record_id.rpartition("#")[2]) for record_id in got.rows]
    for row, offset, values in zip(ROWS, offsets, got.rows.values(), strict=True):
        line = content[offset:].split(b"\n", 1)[0]
        assert json.loads(line) == row
        assert values["n"] == row["n"]
        assert values["kind"] == "ab".index(row["kind"])
        assert values["at.deep.name"].decode() == row["at"]["deep"]["name"]
        assert values["ids"] == row["ids"]
        assert values["grid"] == [cell for line in row["grid"] for cell in line]
        assert values["grid/shape"] == [2, 2]
        assert values["items.tags"] == [b"t"] * len(row["items"])
        assert values["rare"] == (1 if row["n"] == 3 else None)
        assert values["none"] is None


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        ([1, 2.5], Scalar("float64")),
        ([1, "a"], Scalar("string")),
        ([True, 1], Scalar("string")),
        ([1, None], Scalar("int64", optional=True)),
        ([2**63, 1], Scalar("uint64")),
        ([2**63, -1], Scalar("string")),
        ([2**64, 1], Scalar("string")),
        ([2**64, 1.5], Scalar("float64")),
        ([-(2**63), 2**63 - 1], Scalar("int64")),
        ([[], [1]], Sequence(Scalar("int64"))),
        ([[], []], Sequence(Scalar("string"))),
        ([[1], None], Sequence(Scalar("int64"), optional=True)),
        ([[1, "a"]], Sequence(Scalar("string"))),
        ([[1, 2.5]], Sequence(Scalar("float64"))),
        ([[[]], [[1.5]]], Tensor("float64", (None, None))),
        ([[], [[1]]], Tensor("int64", (None, None))),
        ([[1], 2], Scalar("string")),
        (["2020-01-01", "2020-01-02"], Scalar("string")),
        ([{"a": 1}, 2], Scalar("string", optional=True)),
        ([{}, {}], None),
    ],
)
def test_the_feature_of_values(reading: Any, values: list[Any], feature: Feature | None) -> None:
    features = infer(reading, *({"v": value, "w": 1} for value in values))
    assert features == ({"v": feature} if feature else {}) | {"w": Scalar("int64")}


def test_missing_keys_are_missing_wherever_they_come(reading: Any) -> None:
    assert infer(reading, {"a": 1}, {"b": 2}) == {
        "a": Scalar("int64", optional=True),
        "b": Scalar("int64", optional=True),
    }
    inner = {"o.x": Scalar("int64", optional=True)}
    assert infer(reading, {"o": {"x": 1}}, {"o": None}) == inner
    assert infer(reading, {"o": None}, {"o": {"x": 1}}) == inner
    assert infer(reading, {"l": []}, {"l": [{"x": 1}]}) == {"l.x": Sequence(Scalar("int64"))}
    assert infer(reading, {"l": None}, {"l": [{"x": 1}]}) == {
        "l.x": Sequence(Scalar("int64"), optional=True)
    }


def test_values_that_differ_in_kind_are_text(reading: Any) -> None:
    rows = [{"v": value} for value in (1, "a", None, [1, {"x": 2}], True, 0.5, {"k": "é"})]
    got = reading.read(JsonLines(reading.write("t.jsonl", lines_of(rows))))
    expected = [b"1", b"a", None, b'[1,{"x":2}]', b"true", b"0.5", '{"k":"é"}'.encode()]
    assert got.column("v") == expected


def test_keys_with_dots_and_objects_inside_each_other_are_one_feature(reading: Any) -> None:
    rows = [{"a.b": 1, "c": 0}, {"a": {"b": 2}, "c": 0}, {"a.b": 3, "c": 0}]
    got = reading.read(JsonLines(reading.write("t.jsonl", lines_of(rows))))
    assert got.column("a.b") == [1, 2, 3]
    rows = [{"user": "x", "user.name": "y"}]
    got = reading.read(JsonLines(reading.write("t.jsonl", lines_of(rows))))
    assert next(iter(got.rows.values())) == {"user": b"x", "user.name": b"y"}


def test_a_key_that_begins_with_a_dot_and_is_absent_elsewhere(reading: Any) -> None:
    reading.write("a.jsonl", lines_of([{"n": 1}, {"n": 2}]))
    reading.write("b.jsonl", lines_of([{"n": 3, ".hidden": 4, "../g": 5}]))
    got = reading.read(JsonLines("."))
    assert got.column("n") == [1, 2, 3]
    assert got.column(".hidden") == [None, None, 4]
    assert got.column("../g") == [None, None, 5]


def test_declared_types(reading: Any) -> None:
    rows = [{"t": "2020-01-01T00:00:00Z", "u": 7, "s": "abc", "c": 1, "f": [1, 2, 3, 4]}]
    types: dict[str, Any] = {
        "t": Timestamp("s"),
        "u": Timestamp("ms"),
        "s": Text(),
        "c": ClassLabel(("no", "yes")),
        "f": Tensor("uint8", (2, 2)),
    }
    got = reading.read(JsonLines(reading.write("t.jsonl", lines_of(rows)), types=types))
    assert got.features == types
    assert next(iter(got.rows.values())) == {
        "t": 1577836800,
        "u": 7,
        "s": b"abc",
        "c": 1,
        "f": b"\x01\x02\x03\x04",
    }


def test_labels(reading: Any) -> None:
    rows: list[Any] = [{"s": "b", "t": True, "n": 1}, {"s": "a", "t": False, "n": 2}]
    assert infer(reading, *rows, label="s")["s"] == ClassLabel(("a", "b"))
    assert infer(reading, *rows, label="t")["t"] == ClassLabel(("false", "true"))
    assert infer(reading, *rows, label="n")["n"] == Scalar("int64")
    url = reading.write("l.jsonl", lines_of([*rows, {"s": None, "t": None, "n": 3}]))
    got = reading.read(JsonLines(url, label="t"))
    assert got.column("t") == [1, 0]
    assert "column 't' has no value" in next(iter(got.rejected.values()))


def test_a_feature_of_media_is_refused(reading: Any) -> None:
    source = JsonLines(reading.write("t.jsonl", b'{"a": "x"}\n'))
    with pytest.raises(SchemaError, match="'a' as Image"):
        reading.read(source, features={"a": Image(storage="encoded")})


@pytest.mark.slow
def test_windows_and_cuts_change_nothing(reading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"i": i, "s": "x" * (i % 50), "l": [i] * (i % 3)} for i in range(500)]
    rows[100]["i"] = "odd"
    rows[300]["l"] = None
    source = JsonLines(reading.write("t.jsonl", lines_of(rows)), types={"i": "int64"})
    whole = reading.read(source)
    for window, cut in ((100, 700), (1000, 333), (64, 100_000)):
        monkeypatch.setattr(json_rows, "WINDOW_BYTES", window)
        opened = open_source(source.url, ".")
        assert len(source.cuts(opened.list()[0], opened, every=cut)) > 5 or cut > 20_000
        again = reading.read(source, every=cut)
        assert (again.features, again.rows) == (whole.features, whole.rows)
        assert again.rejected == whole.rejected
    assert len(whole.rejected) == 1
    assert len(whole.rows) == 499


def test_types_of_a_large_source_are_told_from_a_sample(
    reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "INFER_ALL_BYTES", 1000)
    monkeypatch.setattr(json_lines, "cut_spacing", lambda _: 2000)
    rows = [{"i": i, "x": [float(i)]} for i in range(1000)]
    got = reading.read(JsonLines(reading.write("t.jsonl", lines_of(rows))))
    assert got.column("i") == list(range(1000))


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=4)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "a.b"]), inner, max_size=3)
    ),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c", "a.b", "a.b.c"]), VALUES, max_size=4)


def _windows(content: bytes) -> list[Rows]:
    return list(find_lines(PlainText(content), 0, len(content)))


def _outcome(reader: JsonReader, windows: list[Rows]) -> tuple[dict[str, str], list[Any]]:
    rows: dict[str, str] = {}
    rejects: list[Any] = []
    for window in windows:
        batch = reader.read(window)
        batch.columns.validate(full=True)
        rows.update(zip(batch.ids, map(repr, batch.columns.to_pylist()), strict=True))
        rejects += [(reject.record_id, reject.reason) for reject in batch.rejects]
    return rows, rejects


@pytest.mark.slow
@settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck))
@example([{"a": []}, {"a.b": {"a": False}}])
@given(st.lists(OBJECTS, min_size=1, max_size=8))
def test_any_objects_are_rows_and_read_alike_together_and_one_by_one(rows: list[Any]) -> None:
    content = lines_of(rows)
    seen = json_lines.JsonTypes("t")
    for window in _windows(content):
        seen.add(window)
    features = seen.features()
    if not features:
        return
    assert seen.num_rows == len(rows)
    together = _outcome(JsonReader("t", features), _windows(content))
    single: tuple[dict[str, str], list[Any]] = ({}, [])
    for line in range(len(rows)):
        # Behind the others' first look at the lines, which may find other types.
        reader = JsonReader("t", features)
        (window,) = _windows(content)
        reader.find_routes(window)
        reader.fast = None
        got = _outcome(reader, [window.part(line, line + 1)])
        single[0].update(got[0])
        single[1].extend(got[1])
    assert together == single
    # Only what an Example has no place for is rejected.
    allowed = {"missing item", "ragged list", "missing value", "wrong type", "not UTF-8"}
    # So is {"a": {"b": 1}, "a.b": 2}, of which it could hold but one value.
    assert {reason for _, reason in together[1]} <= allowed | {"duplicate key"}


test_any_objects_are_rows_and_read_alike_together_and_one_by_one_many = pytest.mark.slow(
    settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))(
        given(st.lists(OBJECTS, min_size=1, max_size=8))(
            test_any_objects_are_rows_and_read_alike_together_and_one_by_one.hypothesis.inner_test
        )
    )
)


DUPLICATES: dict[str, str] = {
    "in an object": '{"o": {"p": 1, "p": 2}}',
    "deeper": '{"o": {"q": {"r": 1, "r": 1}}}',
    "of objects": '{"o": {"p": 1}, "o": {"q": {"r": 1}}}',
    "in a list": '{"l": [{"k": 1}, {"k": 2, "k": 3}]}',
    "in an object in a list": '{"l": [{"m": {"n": 1, "n": 2}}]}',
    "null first": '{"o": {"p": null, "p": 2}}',
    "null last": '{"o": {"p": 1, "p": null}}',
    "escaped": '{"o": {"p": 1, "\\u0070": 2}}',
    "in an object kept as text": '{"t": {"a": 1, "a": 2}}',
    "in a list kept as text": '{"t": [{"a": {"b": 1, "b": 1}}]}',
    "two ways": '{"o": {"p": 3}, "o.p": 4}',
    "two ways, the other first": '{"o.p": 4, "o": {"p": 3}}',
    "two ways, escaped": '{"o": {"p": 3}, "o\\u002Ep": 4}',
    "two ways, deeper": '{"o": {"q": {"r": 3}, "q.r": 4}}',
    "two ways above": '{"o": {"q": {"r": 3}}, "o.q": {"r": 4}}',
    "two ways, lists": '{"l": [{"k": 1}], "l.k": [2]}',
    "two ways, not ASCII": '{"ö": {"é": 3}, "ö.é": 4}',
    "two ways, partly escaped": '{"ö": {"é": 3}, "ö.\\u00E9": 4}',
}


@pytest.mark.parametrize("name", DUPLICATES)
@pytest.mark.parametrize("inferred", [False, True])
def test_no_value_of_two_is_dropped(reading: Any, name: str, inferred: bool) -> None:
    good = (
        '{"o": {"p": 1, "q": {"r": 2}}, "l": [{"k": 1, "m": {"n": 2}}], "t": "x", '
        '"\\u00f6": {"\\u00e9": 1}}'
    )
    content = "".join(f"{line}\n" for line in (good, good, DUPLICATES[name], good)).encode()
    number = ss.Scalar("int64", optional=True)
    numbers = ss.Sequence(ss.Scalar("int64"), optional=True)
    features = {"o.p": number, "o.q.r": number, "ö.é": number, "l.k": numbers, "l.m.n": numbers}
    features["t"] = ss.Scalar("string", optional=True)
    source = JsonLines(reading.write("t.jsonl", content))
    got = reading.read(source, features=None if inferred else features)
    assert len(got.rows) == 3
    (reject,) = got.rejects
    assert reject.reason == "duplicate key"
    assert "twice" in reject.message or "has two values" in reject.message


@pytest.mark.parametrize(
    ("line", "num_rejects"),
    [
        (b'{"a": 1, "caf\xe9": 2}', 1),
        (b'{"a": 1, "o": {"\xff": 2}}', 1),
        (b'{"a": 1, "o": [{"\xff": 2}]}', 1),
        (b'{"a": 1, "\\ud800": 2}', 1),
        (b'{"a": 1, "o": [{"\\uDC00x": 2}]}', 1),
        (b'{"a": 1, "o": [{"\\uD83D\\ude00": "\\ud800"}]}', 0),
        (b'{"a": 1, "z": "caf\xe9"}', 0),
        (b'{"a": 1, "caf\xc3\xa9": 2}', 0),
    ],
)
def test_a_key_that_is_not_utf8_is_a_reject(reading: Any, line: bytes, num_rejects: int) -> None:
    content = '{"a": 1, "café": 2}\n'.encode() * 3 + line + b"\n"
    features = {"a": ss.Scalar("int64"), "café": ss.Scalar("int64", optional=True)}
    source = JsonLines(reading.write("t.jsonl", content))
    # A name that is inferred of a value that is not UTF-8 would reject it for itself.
    for declared in (features, None) if num_rejects else (features,):
        got = reading.read(source, features=declared)
        assert len(got.rows) == 4 - num_rejects
        assert [reject.reason for reject in got.rejects] == ["not UTF-8"] * num_rejects


class _Pairs(list[tuple[str, Any]]):
    """An object with all that its text holds."""


NAMES = ["a", "a.b", "a.b.c", "c"]
KEYS = st.sampled_from(["a", "b", "c", "a.b", "b.c", "a.b.c", "z", "z\udcff"])
PAIRS = st.recursive(
    st.none() | st.integers(-5, 5) | st.text("xyé", max_size=2),
    lambda inner: st.lists(st.tuples(KEYS, inner), max_size=3).map(_Pairs),
    max_leaves=6,
)


def _written(value: Any, escaped: bool) -> str:
    if not isinstance(value, _Pairs):
        return json.dumps(value, ensure_ascii=escaped)
    keys = ["".join(f"\\u{ord(c):04X}" for c in key) if escaped else key for key, _ in value]
    keys = [
        key if "\udcff" in old else quoted
        for (old, _), quoted, key in zip(value, keys, [k for k, _ in value], strict=True)
    ]
    inner = [
        f'"{key}": {_written(one, escaped)}' for key, (_, one) in zip(keys, value, strict=True)
    ]
    return "{" + ", ".join(inner) + "}"


def _keys(value: Any) -> list[str]:
    return [k for key, one in value for k in (key, *_keys(one))] if type(value) is _Pairs else []


def _has_twice(value: Any) -> bool:
    if type(value) is not _Pairs:
        return False
    keys = [key for key, _ in value]
    return len(set(keys)) < len(keys) or any(_has_twice(one) for _, one in value)


def _reached(pairs: Any, parts: list[str]) -> Iterator[Any]:
    """Every value that stands under a name, over all ways to it."""
    if not parts:
        yield pairs
    elif type(pairs) is _Pairs:
        for key, value in pairs:
            used = key.split(".")
            if used == parts[: len(used)]:
                yield from _reached(value, parts[len(used) :])


@settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(st.tuples(KEYS, PAIRS), max_size=4).map(_Pairs), max_size=6), st.data())
def test_each_value_of_a_line_is_in_its_row_or_the_line_is_a_reject(
    rows: list[_Pairs], data: st.DataObject
) -> None:
    texts = [_written(row, data.draw(st.booleans())) for row in rows]
    lines = [text.encode("utf-8", "surrogateescape") for text in texts]
    features = {name: ss.Scalar("string", optional=True) for name in NAMES}
    reader = JsonReader("t", features)
    found = {}
    rejected = {}
    for window in _windows(b"".join(line + b"\n" for line in lines)):
        batch = reader.read(window)
        found.update(zip(batch.ids, batch.columns.to_pylist(), strict=True))
        rejected |= {reject.record_id: reject.reason for reject in batch.rejects}
    start = 0
    for line in lines:
        # As Python's own parser reads it, with no pair lost.
        pairs = json.loads(line.decode("utf-8", "surrogateescape"), object_pairs_hook=_Pairs)
        record_id, start = f"t#{start}", start + len(line) + 1
        assert (record_id in found) != (record_id in rejected)
        if any("\udcff" in key for key in _keys(pairs)):
            assert rejected[record_id] == "not UTF-8"
            continue
        for name in NAMES:
            values = [one for one in _reached(pairs, name.split(".")) if one is not None]
            if len(values) > 1 or any(map(_has_twice, values)):
                assert record_id in rejected
            elif record_id in found:
                (value,) = values or [None]
                stored = found[record_id][name]
                if type(value) is _Pairs:
                    assert json.loads(stored, object_pairs_hook=_Pairs) == value
                else:
                    text = value if isinstance(value, str | None) else json.dumps(value)
                    assert stored == (None if text is None else text.encode())


test_each_value_of_a_line_is_in_its_row_or_the_line_is_a_reject_many = pytest.mark.slow(
    settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))(
        given(
            st.lists(st.lists(st.tuples(KEYS, PAIRS), max_size=4).map(_Pairs), max_size=6),
            st.data(),
        )(test_each_value_of_a_line_is_in_its_row_or_the_line_is_a_reject.hypothesis.inner_test)
    )
)


def test_floats_that_are_none(reading: Any) -> None:
    url = reading.write("t.jsonl", b'{"x": NaN}\n{"x": Infinity}\n{"x": -0}\n{"x": 1e-400}\n')
    nan, *others = reading.read(JsonLines(url, types={"x": "float32"})).column("x")
    assert math.isnan(nan)
    assert others == [math.inf, 0.0, 0.0]
    assert math.copysign(1, others[1]) == -1


@pytest.mark.parametrize("number", [b"1e400", b"-1e400"])
def test_a_number_too_large_for_a_float_is_refused_by_every_decoder(
    reading: Any, number: bytes
) -> None:
    line = b'{"x": %s}' % number
    url = reading.write("t.jsonl", b'{"x": 1.5}\n' + line + b"\n")
    assert reading.read(JsonLines(url, types={"x": "float32"})).column("x") == [1.5]
    with pytest.raises(ValueError, match="too large for a float"):
        object_without_doubles(line)  # tables beside images, parts of samples in a tar
    assert parse_lines("labels.jsonl", line)[0] == []
