"""Functions of the user's own as a source: values of all kinds, and all that may go wrong."""

import datetime
import itertools
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import RecipeError, SchemaError, StorageError
from snapshard.transforms.sources import custom

from .conftest import Reading

UTC = datetime.UTC
IMAGE = ss.Image(storage="encoded")


def numbers(file: Any) -> Iterator[dict[str, Any]]:
    """Little-endian int32s; a file that ends within one raises struct.error."""
    content = file.read()
    for at in range(0, len(content), 4):
        yield {"n": struct.unpack_from("<i", content, at)[0]}


def yielding(*records: Any) -> Callable[[Any], Iterator[Any]]:
    def read(file: Any) -> Iterator[Any]:
        del file
        yield from records

    return read


def test_values_of_every_kind_have_their_feature(reading: Reading) -> None:
    at = datetime.datetime(2020, 1, 2, tzinfo=UTC)
    first = {
        "a": 1,
        "b": 2**64 - 1,
        "c": 1,
        "d": True,
        "e": "é",
        "f": b"\xff",
        "g": np.float16(0.5),
        "h": np.zeros((2, 3), np.uint8),
        "i": np.zeros((1, 3), np.float32),
        "j": at,
        "k": np.datetime64("2020-01-02T00:00:00", "s"),
        "l": [1, 2],
        "m": [[1.5], [2.5]],
        "n": {"x": 1, "y": {"z": "s"}},
        "o": None,
        "p": ("u", "v"),
        "q": np.array(["a", "b"]),
    }
    second = {**first, "c": 1.5, "i": np.zeros((2, 3), np.float32), "o": None, "r": 5}
    reading.write("x.bin", b"")
    got = reading.read(ss.Files(str(reading.folder / "x.bin"), yielding(first, second)))
    assert got.features == {
        "a": ss.Scalar("int64"),
        "b": ss.Scalar("uint64"),
        "c": ss.Scalar("float64"),
        "d": ss.Scalar("bool"),
        "e": ss.Scalar("string"),
        "f": ss.Scalar("string"),
        "g": ss.Scalar("float16"),
        "h": ss.Tensor("uint8", (2, 3)),
        "i": ss.Tensor("float32", (None, 3)),
        "j": ss.Timestamp("us"),
        "k": ss.Timestamp("s"),
        "l": ss.Sequence(ss.Scalar("int64")),
        "m": ss.Tensor("float64", (None, None)),
        "n.x": ss.Scalar("int64"),
        "n.y.z": ss.Scalar("string"),
        "o": ss.Scalar("string", optional=True),
        "p": ss.Sequence(ss.Scalar("string")),
        "q": ss.Tensor("string", (2,)),
        "r": ss.Scalar("int64", optional=True),
    }
    assert not got.rejects
    assert got.column("e") == ["é".encode()] * 2
    assert got.column("j") == [int(at.timestamp()) * 10**6] * 2
    assert got.column("r") == [None, 5]


def test_record_batches_and_dicts_may_be_mixed(reading: Reading) -> None:
    batch = pa.RecordBatch.from_pylist([{"n": 1, "s": "x"}, {"n": 2, "s": None}])
    table = pa.Table.from_pylist([{"n": 4, "s": "z"}])
    reading.write("x.bin", b"")
    function = yielding(batch, {"n": 3, "s": "y"}, table)
    got = reading.read(ss.Files(str(reading.folder), function))
    assert list(got.rows) == [f"x.bin#{n}" for n in range(4)]
    assert got.column("n") == [1, 2, 3, 4]
    assert got.column("s") == [b"x", None, b"y", b"z"]


def test_files_of_images_and_sounds(reading: Reading) -> None:
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (5, 4)).save(out, "PNG")
    good, bad = out.getvalue(), b"no image"
    reading.write("x.bin", b"")
    source = ss.Files(
        str(reading.folder),
        yielding(
            {"image": good, "n": 1},
            {"image": bad, "n": 2},
            {"n": 3},
            pa.RecordBatch.from_pylist([{"image": good, "n": 4}, {"image": bad, "n": 5}]),
        ),
        types={"image": IMAGE},
    )
    got = reading.read(source, features={"image": IMAGE, "n": ss.Scalar("int64")})
    assert list(got.rows) == ["x.bin#0", "x.bin#3"]
    assert got.rows["x.bin#3"]["image/height"] == 4
    assert list(got.rejected) == ["x.bin#1", "x.bin#2", "x.bin#4"]


def test_labels_are_gathered_from_all_records(reading: Reading) -> None:
    for name in "ab":
        reading.write(f"{name}.txt", name.encode() * 150)

    def read(file: Any) -> Iterator[dict[str, Any]]:
        with file.open() as opened:
            for at, _ in enumerate(opened.read()):
                yield {"kind": file.path[0] if at < 120 else f"late {file.path[0]}"}

    got = reading.read(ss.Files(str(reading.folder), read, label="kind"))
    assert got.features == {"kind": ss.ClassLabel(("a", "b", "late a", "late b"))}
    assert got.column("kind") == [0] * 120 + [2] * 30 + [1] * 120 + [3] * 30


def test_batches_are_bounded(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom, "_BATCH_RECORDS", 3)
    reading.write("a", b"".join(struct.pack("<i", n) for n in range(10)))
    got = reading.read(ss.Files(str(reading.folder), numbers))
    assert got.column("n") == list(range(10))


def test_what_was_yielded_before_is_kept(reading: Reading) -> None:
    whole = b"".join(struct.pack("<i", n) for n in range(5))
    for stop in range(1, len(whole) + 1):
        reading.write("a.bin", whole[:stop])
        source = ss.Files(str(reading.folder), numbers)
        got = reading.read(source, features={"n": ss.Scalar("int64")})
        assert got.column("n") == list(range(stop // 4))
        if stop % 4:
            (message,) = got.rejected.values()
            assert list(got.rejected) == [f"a.bin#{stop // 4}"]
            assert message.startswith(
                f"a.bin record {stop // 4}: numbers raised error: unpack_from"
            )


def closes(file: Any) -> Iterator[dict[str, Any]]:
    with file.open() as opened:
        yield {"n": opened.read(1)[0]}
        raise StopIteration("inside")


RAISING: list[tuple[str, Callable[[Any], Any], str]] = [
    ("raises at once", lambda file: 1 / 0, "raised ZeroDivisionError: division by zero"),
    ("gives None", lambda file: None, "raised TypeError: 'NoneType' object is not iterable"),
    ("gives a number", lambda file: 5, "raised TypeError"),
    ("yields None", yielding(None), "yields NoneType, expected a dict or a pa.RecordBatch"),
    ("yields a list", yielding([1]), "yields list, expected"),
    ("yields a string", lambda file: "text", "yields str, expected"),
    ("not JSON", lambda file: [json.loads(file.read())], "raised JSONDecodeError: Expecting value"),
    ("not UTF-8", lambda file: [{"n": file.read().decode()}], "raised UnicodeDecodeError"),
    ("a key that is not there", lambda file: [{"n": {}["k"]}], "raised KeyError: 'k'"),
    ("an assertion", lambda file: (_ for _ in ()).throw(AssertionError), "raised AssertionError"),
    ("StopIteration within", closes, "raised RuntimeError: generator raised StopIteration"),
    ("needs more arguments", lambda file, more: [], "missing 1 required positional argument"),
    ("writes to the file", lambda file: [file.open().write(b"")], "raised"),
    ("recurses", lambda file: recurse(file), "raised RecursionError"),
    ("a long message", lambda file: exec("raise ValueError('x' * 9999)"), "raised ValueError: xxx"),
]


def recurse(value: Any) -> Any:
    return recurse(value)


@pytest.mark.parametrize(
    ("function", "words"), [case[1:] for case in RAISING], ids=[case[0] for case in RAISING]
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_a_function_raises_is_one_reject(
    reading: Reading, function: Callable[[Any], Any], words: str
) -> None:
    reading.write("d/a.bin", b"\xff\x00")
    reading.write("d/b.bin", b"\xff\x01")
    source = ss.Files(str(reading.folder), function)
    got = reading.read(source, features={"n": ss.Scalar("int64")})
    assert len(got.rejects) == 2
    first = got.rejects[0]
    assert first.source == "d/a.bin"
    assert f"d/a.bin record {len(got.rows) // 2}: " in first.message
    assert words in first.message
    assert len(first.message) < 900


UNFIT: list[tuple[str, Any, Any, str]] = [
    ("text for a number", ss.Scalar("int64"), "7", "expected int64"),
    ("a float for an integer", ss.Scalar("int64"), 1.5, "expected int64"),
    ("out of range", ss.Scalar("int8"), 200, "out of range"),
    ("too large", ss.Scalar("int64"), 2**63, "out of range"),
    ("missing", ss.Scalar("int64"), None, "expected int64"),
    ("an unknown class", ss.ClassLabel(("a", "b")), "c", "one of 2 class names"),
    ("a class beyond", ss.ClassLabel(("a", "b")), 2, "one of 2 class names"),
    ("another shape", ss.Tensor("uint8", (2,)), np.zeros(3, np.uint8), "of shape [3]"),
    ("another rank", ss.Tensor("uint8", (2,)), np.zeros((2, 1), np.uint8), "of shape [2, 1]"),
    ("ragged", ss.Tensor("int64", (None, None)), [[1], [2, 3]], "ragged"),
    ("a time without a zone", ss.Timestamp("s"), datetime.datetime(2020, 1, 1), "zone"),
    ("a time too fine", ss.Timestamp("s"), datetime.datetime(2020, 1, 1, 0, 0, 0, 5, UTC), "finer"),
    ("no text", ss.Text(), b"\xff", "UTF-8"),
    ("a lone surrogate", ss.Scalar("string"), "\udcff", "UTF-8"),
    ("an object", ss.Scalar("string"), object(), "str or bytes"),
    ("a set", ss.Sequence(ss.Scalar("int64")), {1, 2}, "n'"),
    ("a bool for a number", ss.Scalar("float32"), True, "float32"),
]


@pytest.mark.parametrize(
    ("feature", "value", "words"), [case[1:] for case in UNFIT], ids=[case[0] for case in UNFIT]
)
def test_records_that_do_not_fit_are_rejects(
    reading: Reading, feature: Any, value: Any, words: str
) -> None:
    reading.write("a.bin", b"")
    fit: Any = {
        ss.ClassLabel: "a",
        ss.Text: "t",
        ss.Timestamp: 5,
        ss.Sequence: [1],
    }.get(type(feature), 1)
    if isinstance(feature, ss.Tensor):
        fit = [[1]] if len(feature.shape) == 2 else [1, 2]
    if feature == ss.Scalar("string"):
        fit = "t"
    function = yielding({"n": fit}, {"n": value}, {"n": fit})
    got = reading.read(ss.Files(str(reading.folder), function), features={"n": feature})
    assert list(got.rows) == ["a.bin#0", "a.bin#2"]
    ((record_id, message),) = got.rejected.items()
    assert record_id == "a.bin#1"
    assert message.startswith("a.bin record 1: ")
    assert words in message


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (({"a": 1}, {"a": "x"}), "'a' is 1 (int), 'x' (str)"),
        (({"a": object},), "'a' is"),
        (({"a": datetime.datetime(2020, 1, 1)},), "times with a zone"),
        (({"a": []},), "'a' is an empty list in all"),
        (({"a": np.zeros(2)}, {"a": np.zeros((2, 2))}), "1, 2 dimensions"),
        (({"a": np.zeros(2, np.complex64)},), "complex64"),
        ((), "none of 1 files has a record (it yields nothing)"),
        ((5,), "yields int"),
        (({"a": [1, "x"]},), "'a' is"),
    ],
)
def test_types_that_cannot_be_told(reading: Reading, records: Any, words: str) -> None:
    reading.write("a.bin", b"")
    with pytest.raises(SchemaError) as caught:
        reading.read(ss.Files(str(reading.folder), yielding(*records)))
    assert words in str(caught.value)


def test_arguments_are_checked() -> None:
    for arguments, words in (
        (("", numbers), "url=''"),
        ((5, numbers), "url=5"),
        (("a", None), "read=None is not a function"),
        (("a", numbers, 5), "label=5 is not a valid name"),
        (("a", numbers, None, {"x": "int65"}), "'x' is 'int65', expected a dtype"),
        (("a", numbers, None, {"x": ss.Image()}), "'x' is declared as decoded"),
    ):
        with pytest.raises(RecipeError) as caught:
            ss.Files(*arguments)  # type: ignore[arg-type]
        assert words in str(caught.value)


def test_a_store_that_fails_stops_the_build(reading: Reading) -> None:
    def read(file: Any) -> Iterator[dict[str, Any]]:
        (reading.folder / "a.bin").unlink(missing_ok=True)
        yield {"n": len(file.read())}

    reading.write("a.bin", b"x")
    with pytest.raises(StorageError, match=r"a\.bin"):
        reading.read(ss.Files(str(reading.folder), read), features={"n": ss.Scalar("int64")})


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters()),
    st.binary(),
    st.lists(st.integers(0, 9)),
    st.dictionaries(st.text(), st.integers()),
    st.datetimes(),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(values=st.lists(VALUES, max_size=8))
def test_whatever_is_yielded_each_record_is_kept_or_rejected(
    reading: Reading, values: list[Any]
) -> None:
    reading.write("a.bin", b"")
    source = ss.Files(str(reading.folder), yielding(*({"n": value} for value in values)))
    for feature in (ss.Scalar("int64"), ss.Scalar("string"), ss.Sequence(ss.Scalar("float32"))):
        got = reading.read(source, features={"n": feature})
        numbers_found = [int(i.partition("#")[2]) for i in itertools.chain(got.rows, got.rejected)]
        assert sorted(numbers_found) == list(range(len(values)))
