"""Records that Python code makes: generators, lists, tf.data and frames; read back equal."""

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import snapshard as ss
from snapshard.schemas.errors import DataError, RecipeError, SchemaError
from snapshard.transforms.sources import extracted, iterable

from .built import build as build_source
from .built import plain_rows, rows_of

NUM = 40


def build(tmp_path: Path, records: Any, *, workers: int = 1, **settings: Any) -> ss.Snapshot:
    return build_source(tmp_path, ss.Iterable(records, **settings), workers=workers)


def records() -> Iterator[dict[str, Any]]:
    for i in range(NUM):
        record = {
            "n": i,
            "x": i if i % 2 else i / 2,
            "big": 2**63 + i,
            "small": np.int8(i),
            "s": f"é{i}",
            "b": b"\xff%d" % i,
            "yes": i % 3 == 0,
            "kind": "ab"[i % 2],
            "at": datetime.datetime(2020, 1, 1, i % 24, tzinfo=datetime.UTC),
            "day": np.datetime64("2020-01-01") + i,
            "pixels": np.full((2, 3), i, np.uint8),
            "frames": np.full((i % 3, 2), i, np.float32),
            "ids": list(range(i % 4)),
            "who": {"age": i, "name": None if i % 2 else "x"},
            "boxes": [{"left": i, "top": 0.5}] * (i % 2),
        }
        if i >= 30:
            record["late"] = i
        yield record


def test_records_come_back_equal(lab: Any, tmp_path: Path) -> None:
    snapshot = build(tmp_path, records, label="kind")
    features = snapshot.manifest.features
    assert features["kind"] == ss.ClassLabel(("a", "b"))
    assert features["x"] == ss.Scalar("float64")
    assert features["big"] == ss.Scalar("uint64")
    assert features["pixels"] == ss.Tensor("uint8", (2, 3))
    assert features["frames"] == ss.Sequence(ss.Tensor("float32", (2,)))
    assert features["late"] == ss.Scalar("int64", optional=True)
    assert snapshot.manifest.structs == ["boxes", "who"]
    rows = lab.rows_back(snapshot)
    assert len(rows) == NUM
    for i, record in enumerate(records()):
        row = rows[f"iterable#{i}"]
        for name in ("n", "x", "big", "small", "b", "yes", "ids"):
            assert np.array_equal(row[name], record[name]), name
        assert (row["s"], row["kind"]) == (record["s"].encode(), i % 2)
        assert row["at"] == record["at"].timestamp() * 10**6
        assert row["day"] == (record["day"] - np.datetime64(0, "s")).astype(int)
        np.testing.assert_array_equal(row["pixels"], record["pixels"])
        np.testing.assert_array_equal(np.reshape(row["frames"], (-1, 2)), record["frames"])
        assert (row["who.age"], row["who.name"]) == (i, b"" if i % 2 else b"x")
        assert (row["boxes.left"], row["boxes.top"]) == ([i] * (i % 2), [0.5] * (i % 2))
        assert row["late"] == (i if i >= 30 else 0)


def test_an_unchanged_build_is_found_whatever_the_code(tmp_path: Path) -> None:
    first = build(tmp_path, records)
    assert build(tmp_path, lambda: list(records())).cached
    assert build(tmp_path, list(records())).cached
    assert not build(tmp_path, lambda: list(records())[1:]).cached
    assert build(tmp_path, records).path == first.path


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_are_invisible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    first = build(tmp_path, records)
    monkeypatch.setattr(iterable, "_CHUNK_RECORDS", chunk)
    assert build(tmp_path, records).cached
    assert sum(split.num_examples for split in first.manifest.splits.values()) == NUM


def table() -> pa.Table:
    return pa.table({"n": pa.array(range(NUM)), "s": [f"t{i}" for i in range(NUM)]})


class Frame:
    """As Polars' frames are, with strings as they have them."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows.set_column(1, "s", rows["s"].cast(pa.string_view()))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._rows.__arrow_c_stream__(requested_schema)


BATCHES: dict[str, Callable[[], Iterator[Any]]] = {
    "dicts": lambda: iter(table().to_pylist()),
    "batches": lambda: iter(table().to_batches(max_chunksize=7)),
    "tables": lambda: iter([table().slice(0, 9), table().slice(9)]),
    "pandas": lambda: iter([table().slice(0, 9).to_pandas(), table().slice(9).to_pandas()]),
    "Polars": lambda: iter([Frame(table().slice(0, 9)), Frame(table().slice(9))]),
    "dicts and Polars": lambda: iter([*table().to_pylist()[:9], Frame(table().slice(9))]),
    "dicts and batches": lambda: iter(
        [table().to_pylist()[0], table().slice(1, 20), *table().slice(21).to_pylist()]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BATCHES)
def test_rows_are_the_same_however_they_are_yielded(lab: Any, tmp_path: Path, kind: str) -> None:
    found = lab.stored_rows(build(tmp_path, BATCHES[kind]))
    assert found == {f"iterable#{i}": {"n": i, "s": b"t%d" % i} for i in range(NUM)}


def test_a_frame_may_be_returned_at_once(lab: Any, tmp_path: Path) -> None:
    snapshot = build(tmp_path, lambda: pd.DataFrame({"n": range(3), "late": [None, None, 1.5]}))
    assert lab.stored_rows(snapshot)["iterable#2"] == {"n": 2, "late": 1.5}


def test_a_tf_data_pipeline_comes_back_equal(lab: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    x = np.arange(NUM * 6, dtype=np.float32).reshape(NUM, 2, 3)
    y = np.arange(NUM) % 3
    pairs = tf.data.Dataset.from_tensor_slices((x, y))
    found = plain_rows(lab, build(tmp_path, pairs, names=("x", "y")))
    assert found == {f"iterable#{i}": {"x": x[i].tolist(), "y": int(y[i])} for i in range(NUM)}
    dicts = tf.data.Dataset.from_tensor_slices({"x": x, "y": y})
    assert build(tmp_path, dicts).cached
    assert build(tmp_path, lambda: pairs.map(lambda x, y: {"x": x, "y": y})).cached
    tensors = [{"x": tf.constant(a), "y": tf.constant(b)} for a, b in zip(x, y, strict=True)]
    assert build(tmp_path, tensors).cached
    texts = tf.data.Dataset.from_tensor_slices(["a", "é"]).map(
        lambda s: {"s": s, "l": tf.strings.bytes_split(s), "r": tf.ragged.constant([[1]])}
    )
    rows = rows_of(lab, build(tmp_path, texts))
    assert rows["iterable#1"]["s"] == "é".encode()
    assert list(rows["iterable#1"]["l"]) == [b"\xc3", b"\xa9"]


@pytest.mark.slow
@pytest.mark.parametrize("text", [False, True], ids=["integers", "texts"])
def test_keys_identify_records(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bool
) -> None:
    """In any order, sorted in little memory; added records do not move others."""
    for name, size in (("_SORT_BYTES", 1 << 12), ("_RUN_BATCH_BYTES", 1 << 9)):
        monkeypatch.setattr(iterable, name, size)
    monkeypatch.setattr(iterable, "_MERGED_RUNS", 3)
    monkeypatch.setattr(iterable, "_CHUNK_RECORDS", 50)
    order = np.random.default_rng(0).permutation(2000).tolist()

    def rows(numbers: Any) -> list[dict[str, Any]]:
        return [{"id": f"k#{n}" if text else n - 9, "v": f"value {n}"} for n in numbers]

    def id_of(n: int) -> str:
        return f"iterable/k#{n}#0" if text else f"iterable#{n - 9}"

    first = build(tmp_path, rows(order), key="id")
    assert build(tmp_path, lambda: rows(range(2000)), key="id").cached
    found = lab.stored_rows(first)
    assert {i: row["v"] for i, row in found.items()} == {
        id_of(n): b"value %d" % n for n in range(2000)
    }
    more = build(tmp_path, rows([*range(1999, 0, -1), *range(2000, 2100)]), key="id")
    assert lab.stored_rows(more).keys() == {id_of(n) for n in range(1, 2100)}


@pytest.mark.parametrize("text", [False, True], ids=["integers", "texts"])
def test_added_keys_change_only_their_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bool
) -> None:
    monkeypatch.setattr(extracted, "RANGE_ROWS", 128)

    def files(numbers: Any) -> set[str]:
        made = [{"id": f"{n:05}" if text else n} for n in numbers]
        source: Any = ss.Iterable(made, key="id").extract(str(tmp_path / "files"), base=".")
        return set(source.files)

    before, after = files(range(0, 4000, 2)), files([*range(0, 4000, 2), 777])
    assert len(before) > 8
    assert len(before - after) == len(after - before) == 1


def test_a_value_that_does_not_fit_is_a_reject_that_names_its_key(tmp_path: Path) -> None:
    rows = [{"id": "a", "n": 1}, {"id": "b", "n": 300}]
    for key, words in (("id", "iterable key 'b': column 'n' is 300"), (None, "iterable record 1")):
        with pytest.raises(ss.SnapshardError, match=words):
            build(tmp_path, rows, key=key, types={"n": "int8"})


def after_three(last: Any) -> Callable[[], Iterator[Any]]:
    def function() -> Iterator[Any]:
        yield from ({"x": i} for i in range(3))
        if isinstance(last, Exception):
            raise last
        yield last

    return function


BAD: list[tuple[str, Any, dict[str, Any], type[Exception], str]] = [
    ("nothing", list, {}, DataError, "there are no records"),
    ("an empty record", lambda: [{}, {}], {}, DataError, "the records have no values"),
    ("an empty struct", lambda: [{"a": {}}], {}, DataError, "the records have no values"),
    (
        "a function that raises",
        after_three(ValueError("bad luck")),
        {},
        DataError,
        "raised ValueError: bad luck, at record 3",
    ),
    ("a function of arguments", lambda x: [], {}, DataError, "raised TypeError"),
    ("a text among numbers", after_three({"x": "a"}), {}, SchemaError, "record 3 .*'x' is int64"),
    ("a bool among numbers", after_three({"x": True}), {}, SchemaError, "record 3 .*'x'"),
    (
        "mixed items",
        after_three({"y": {"z": [1, "a"]}}),
        {},
        SchemaError,
        r"record 3 .*'y\.z' is int64 and string.*has \{'z'",
    ),
    ("an object", after_three({"x": object()}), {}, SchemaError, "record 3 .*object"),
    (
        "a time without a zone",
        after_three({"t": datetime.datetime(2020, 1, 1)}),
        {},
        SchemaError,
        "record 3 .*'t'.*expected a time with its zone",
    ),
    ("an integer beyond 64 bits", after_three({"x": 2**64}), {}, SchemaError, "record 3 .*64 bits"),
    (
        "an integer that is no float",
        lambda: [{"x": 0}, {"x": 2**53 + 1}, {"x": 0.5}],
        {},
        SchemaError,
        "'x' is 9007199254740993, which float64",
    ),
    ("half a surrogate", after_three({"s": "\udc80"}), {}, SchemaError, "record 3 .*'s' cannot"),
    ("a name of a number", after_three({1: 2}), {}, SchemaError, "record 3 .*1 is not a string"),
    ("a number", after_three(7), {}, RecipeError, "record 3 is a int, expected a dict"),
    ("a tuple without names", after_three((1, 2)), {}, RecipeError, r"record 3 .*names=\("),
    (
        "a tuple of others",
        lambda: [(1, 2)],
        {"names": ("a",)},
        RecipeError,
        "record 0 has 2 values, but names= has 1",
    ),
    ("a function of no records", lambda: 7, {}, RecipeError, "returns a int, expected an iterable"),
    ("a dict", {"x": [1]}, {}, RecipeError, r"use ss\.Table"),
    ("a frame", pd.DataFrame({"x": [1]}), {}, RecipeError, r"use ss\.Table"),
    ("a frame of Polars", Frame(table()), {}, RecipeError, r"is a Frame, .*use ss\.Table"),
    ("an iterator", iter([{"x": 1}]), {}, RecipeError, "only once"),
    ("a number at once", 7, {}, RecipeError, "expected a function"),
    ("no such key", [{"x": 1}], {"key": "y"}, RecipeError, "key names 'y'.*'x'"),
    ("a key of floats", [{"x": 1.5}], {"key": "x"}, RecipeError, "'x' is double, expected integer"),
    ("no key", [{"x": 1}, {"y": 1}], {"key": "x"}, DataError, "record 1 .*no value for the key"),
    ("a key twice", [{"x": 1}, {"x": 2}, {"x": 1}], {"key": "x"}, DataError, "'x' is 1 in several"),
    ("no such label", [{"x": 1}], {"label": "y"}, RecipeError, "label names 'y'"),
    ("our own name", [{"snapshard.position": 1}], {}, SchemaError, "Rename it"),
]


@pytest.mark.parametrize(
    ("given", "options", "error", "words"), [case[1:] for case in BAD], ids=[c[0] for c in BAD]
)
def test_what_cannot_be_stored_is_refused(
    tmp_path: Path, given: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        build(tmp_path, given, **options)
    assert not list((tmp_path / "out").glob("made/*/manifest.json"))


def test_a_generator_is_closed_when_a_record_is_bad(tmp_path: Path) -> None:
    closed = []

    def function() -> Iterator[Any]:
        try:
            yield from ({"x": 1}, 7, {"x": 2})
        finally:
            closed.append(True)

    with pytest.raises(RecipeError):
        build(tmp_path, function)
    assert closed == [True]


@pytest.mark.slow  # worker processes
def test_worker_processes_read_what_was_extracted(lab: Any, tmp_path: Path) -> None:
    rows = lab.rows_back(build(tmp_path, records, workers=2))
    assert {i: r["n"] for i, r in rows.items()} == {f"iterable#{i}": i for i in range(NUM)}


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are released: never more than a few records of 1 MiB are alive."""
    alive = most = 0

    class Counted(dict[str, Any]):
        def __init__(self, content: bytes) -> None:
            nonlocal alive, most
            super().__init__(x=content)
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def function() -> Iterator[Any]:
        for n in range(100):
            yield Counted(b"%d" % n * (1 << 19))

    source: Any = ss.Iterable(function).extract(str(tmp_path / "files"), base=".")
    assert len(source.files) >= 1
    assert most < 30
