"""Steps on values: against NumPy and Python, batched and one by one, missing values kept."""

import datetime
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import ClassLabel, Scalar, Sequence, Tensor, Text, Timestamp
from snapshard.schemas.recipe import StepTraits
from snapshard.schemas.wire import FLOATS
from snapshard.transforms.prepare.tables import INTEGERS
from snapshard.transforms.prepare.times import compile_format

FEATURES = {
    "age": Scalar("float64", optional=True),
    "count": Scalar("int32", optional=True),
    "kind": ClassLabel(("x", "y", "z"), optional=True),
    "list": Sequence(Scalar("float32"), optional=True),
    "name": Scalar("string", optional=True),
    "ok": Scalar("bool", optional=True),
    "size": Scalar("uint64"),
    "vector": Tensor("int16", (3,)),
    "when": Timestamp("ms", optional=True),
}
FULL = {
    "age": 1.5,
    "count": 300,
    "kind": 1,
    "list": [1.0, math.nan, -3.0],
    "name": "Ada",
    "ok": True,
    "size": 2**64 - 1,
    "vector": [1, 2, 3],
    "when": 1_000,
}
BARE = {"size": 0, "vector": [-5, 0, 700]}
EMPTY = {"size": 7, "vector": [0, 0, 0], "list": [], "age": math.nan}


def test_a_step_that_touches_one_feature_leaves_what_is_missing_missing(kitchen: Any) -> None:
    values, _, _ = kitchen.cook([ss.tables.clip("size", 1, 9)], [FULL, BARE], FEATURES)
    assert values[1] == {
        **dict.fromkeys(FEATURES),
        **BARE,
        "size": 1,
        "vector": pytest.approx(BARE["vector"]),
    }


def test_fill_puts_values_where_there_are_none(kitchen: Any) -> None:
    steps = [
        ss.tables.fill("age", -1.0, nan=True),
        ss.tables.fill("count", 7),
        ss.tables.fill("kind", "z"),
        ss.tables.fill("name", "nobody"),
        ss.tables.fill("ok", False),
        ss.tables.fill("when", 5),
    ]
    values, _, runner = kitchen.cook(steps, [FULL, BARE, EMPTY], FEATURES)
    names = ("age", "count", "kind", "name", "ok", "when")
    assert [tuple(value[name] for name in names) for value in values] == [
        (1.5, 300, 1, b"Ada", True, 1_000),
        (-1.0, 7, 2, b"nobody", False, 5),
        (-1.0, 7, 2, b"nobody", False, 5),
    ]
    assert runner.features["kind"] == ClassLabel(("x", "y", "z"))
    assert runner.features["age"] == Scalar("float64")
    assert not any(runner.features[name].optional for name in names)


def test_missing_values_are_told_before_they_are_filled(kitchen: Any) -> None:
    steps = [
        ss.tables.missing("age", "no_age"),
        ss.tables.fill("age", 0.0),
        ss.tables.missing("list", "no_list"),
        ss.tables.missing("vector", "no_vector"),
    ]
    values, _, _ = kitchen.cook(steps, [FULL, BARE, EMPTY], FEATURES)
    assert [value["no_age"] for value in values] == [False, True, False]
    assert [value["no_list"] for value in values] == [False, True, False]
    assert not any(value["no_vector"] for value in values)


NUMBERS = {*INTEGERS, *FLOATS}


def of_dtype(dtype: str) -> st.SearchStrategy[Any]:
    if dtype in INTEGERS:
        start, stop = INTEGERS[dtype]
        ends = st.sampled_from([start, stop - 1, 0, 1])
        return ends | st.integers(start, stop - 1) | st.integers(max(start, -300), 300 % stop)
    if dtype in ("float16", "bfloat16"):
        return st.integers(-255, 255).map(lambda n: n / 4)
    # TensorFlow takes subnormal numbers for zero.
    return st.floats(width=32, allow_subnormal=False) | st.integers(-(2**40), 2**40).map(float)


def fits(value: Any, dtype: str) -> bool:
    """Whether a number has an equal of an integer dtype."""
    if not math.isfinite(value) or value != int(value):
        return False
    start, stop = INTEGERS[dtype]
    return start <= int(value) < stop


@pytest.fixture(scope="module")
def casts(kitchen: Any) -> dict[tuple[str, str], Any]:
    pairs = [
        ("float64", "int8"),
        ("float64", "uint64"),
        ("float64", "int64"),
        ("float32", "uint16"),
        ("int64", "uint8"),
        ("int64", "uint64"),
        ("uint64", "int64"),
        ("uint64", "int16"),
        ("int8", "uint32"),
        ("uint8", "int8"),
        ("bfloat16", "int32"),
    ]
    return {
        (source, target): kitchen.menu(
            [ss.tables.cast("x", target)], {"x": Scalar(source, optional=True)}
        )
        for source, target in pairs
    }


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_cast_to_integers_keeps_the_number_or_rejects_it(casts: Any, data: Any) -> None:
    source, target = data.draw(st.sampled_from(sorted(casts)))
    values = data.draw(st.lists(of_dtype(source) | st.none(), max_size=12))
    menu = casts[source, target]
    found, done = menu.run([{"x": value} for value in values])
    kept = [value for value in values if value is None or fits(value, target)]
    assert [row["x"] for row in found] == kept
    assert len(done.rejects) == len(values) - len(kept)


def test_a_cast_to_float_rounds_and_never_overflows(kitchen: Any) -> None:
    rows = [{"x": value} for value in (0.1, 1e39, -1e39, math.inf, math.nan, None)]
    found, done, runner = kitchen.cook(
        [ss.tables.cast("x", "float32")], rows, {"x": Scalar("float64", optional=True)}
    )
    assert runner.features == {"x": Scalar("float32", optional=True)}
    assert found[0]["x"] == float(np.float32(0.1))
    assert (found[1]["x"], found[3]["x"]) == (math.inf, None)
    assert math.isnan(found[2]["x"])
    assert [reject.record_id for reject in done.rejects] == ["t#1", "t#2"]
    assert "expected a value of float32, found] [1e+39]" in done.rejects[0].message
    small = [{"x": n} for n in (2049, 65504, 65520, -(2**63))]
    found, done, _ = kitchen.cook([ss.tables.cast("x", "float16")], small, {"x": Scalar("int64")})
    assert [row["x"] for row in found] == [2048.0, 65504.0]
    assert len(done.rejects) == 2


def test_casts_of_text_bools_classes_and_lists(kitchen: Any) -> None:
    features = {
        "a": Scalar("string", optional=True),
        "b": Scalar("int8"),
        "c": ClassLabel(("p", "q")),
        "d": Sequence(Scalar("float64")),
        "e": Tensor("bool", (2,)),
    }
    steps = [
        ss.tables.cast("a", "int16"),
        ss.tables.cast("b", "bool"),
        ss.tables.cast("c", "string"),
        ss.tables.cast("d", "int32"),
        ss.tables.cast("e", "float32"),
    ]
    good = {"a": " -12 ", "b": 1, "c": 1, "d": [1.0, -2.0], "e": [True, False]}
    bad = [{**good, "a": text} for text in ("", "1.5", "40000", "x", "1e3", "99999999999999999999")]
    rows = [good, {**good, "a": None, "d": []}, *bad, {**good, "b": 2}, {**good, "d": [0.5]}]
    found, done, runner = kitchen.cook(steps, rows, features)
    assert runner.features == {
        "a": Scalar("int16", optional=True),
        "b": Scalar("bool"),
        "c": Scalar("string"),
        "d": Sequence(Scalar("int32")),
        "e": Tensor("float32", (2,)),
    }
    assert [row["a"] for row in found] == [-12, None]
    assert (found[0]["b"], found[0]["c"]) == (True, b"1")
    assert (found[0]["d"].tolist(), found[0]["e"].tolist()) == ([1, -2], [1.0, 0.0])
    assert len(done.rejects) == len(bad) + 2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sorted(NUMBERS))
def test_clip_of_every_dtype(kitchen: Any, dtype: str) -> None:
    features = {"x": Scalar(dtype, optional=True), "y": Tensor(dtype, (2, None))}
    rows = [{"x": n, "y": [[n, 1], [2, n]]} for n in (0, 3, 7, 100)] + [{"y": [[], []]}]
    found, _, runner = kitchen.cook(
        [ss.tables.clip("x", 2, 50), ss.tables.clip("y", max=2)], rows, features
    )
    assert runner.features == features
    assert [row["x"] for row in found] == [2, 3, 7, 50, None]
    assert [row["y"].astype(float).tolist() for row in found[:2]] == [
        [[0, 1], [2, 0]],
        [[2, 1], [2, 2]],
    ]


def test_clip_keeps_nan_and_the_largest_numbers(kitchen: Any) -> None:
    features = {"x": Scalar("float32"), "u": Scalar("uint64")}
    rows = [{"x": math.nan, "u": 2**64 - 1}, {"x": -math.inf, "u": 2**63}]
    steps = [ss.tables.clip("x", -1), ss.tables.clip("u", 2**63 + 1)]
    found, _, _ = kitchen.cook(steps, rows, features)
    assert math.isnan(found[0]["x"])
    assert found[1] == {"x": -1.0, "u": 2**63 + 1}
    assert found[0]["u"] == 2**64 - 1


def test_hashes_are_the_same_for_ever(kitchen: Any) -> None:
    features = {
        "s": Scalar("string", optional=True),
        "n": Scalar("int64"),
        "l": Sequence(Text()),
        "k": Scalar("string"),
    }
    rows = [{"s": "cat", "n": -5, "l": ["a", "cat"], "k": "cat"}, {"n": 5, "l": [], "k": ""}]
    steps = [
        ss.tables.hash("s", 1000),
        ss.tables.hash("n", 1000),
        ss.tables.hash("l", 1000),
        ss.tables.hash("k", 1000, key=(1, 2)),
    ]
    found, _, runner = kitchen.cook(steps, rows, features)
    assert runner.features["s"] == Scalar("int64", optional=True)
    assert runner.features["l"] == Sequence(Scalar("int64"))
    assert found[0]["l"].tolist()[1] == found[0]["s"]
    assert (found[0]["s"], found[0]["n"], found[0]["k"]) == HASHES
    assert found[1]["s"] is None


HASHES = (96, 816, 378)


def test_one_hot(kitchen: Any) -> None:
    features = {"c": ClassLabel(("x", "y", "z"), optional=True), "n": Scalar("uint8")}
    rows = [{"c": 1, "n": 0}, {"n": 3}, {"c": 0, "n": 4}]
    steps = [ss.tables.one_hot("c"), ss.tables.one_hot("n", 4, dtype="int8")]
    found, done, runner = kitchen.cook(steps, rows, features)
    assert runner.features == {"c": Tensor("float32", (3,)), "n": Tensor("int8", (4,))}
    assert [row["c"].tolist() for row in found] == [[0, 1, 0], [0, 0, 0]]
    assert [row["n"].tolist() for row in found] == [[1, 0, 0, 0], [0, 0, 0, 1]]
    (reject,) = done.rejects
    assert reject.record_id == "t#2"
    assert "expected 0 to 3, found] [4]" in reject.message


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_multi_hot(kitchen: Any, together: bool) -> None:
    features = {
        "c": ClassLabel(("", "a", "a|b", "b | z"), optional=True),
        "cs": Sequence(ClassLabel(("b", "a"))),
        "s": Scalar("string", optional=True),
        "t": Tensor("string", (None,)),
    }
    plain = {"cs": [0, 1, 1], "t": [b"b", b" a "]}
    rows = [
        {**plain, "c": 2, "s": b"b|a| c"},
        {**plain, "c": 1, "s": b"", "cs": [], "t": []},
        {**plain, "c": 0, "s": b"||c|"},
        plain,
        {**plain, "s": b"a|d"},
        {**plain, "t": [b"x"]},
    ]
    steps = [
        ss.tables.multi_hot("c", ["b", "a", "z"], dtype="bool"),
        ss.tables.multi_hot("cs"),
        ss.tables.multi_hot("s", ["a", "b", "c"], dtype="int8"),
        ss.tables.multi_hot("t", ["b", "a"], separator=";"),
    ]
    if not together:  # record by record
        rows = [rows[0], *rows[4:]]
    found, done, runner = kitchen.cook(steps, rows, features)
    assert runner.features == {
        "c": Tensor("bool", (3,), names=("b", "a", "z")),
        "cs": Tensor("float32", (2,), names=("a", "b")),
        "s": Tensor("int8", (3,), names=("a", "b", "c")),
        "t": Tensor("float32", (2,), names=("b", "a")),
    }
    shown = [{name: np.array(row[name]).astype(int).tolist() for name in features} for row in found]
    assert shown[0] == {"c": [1, 1, 0], "cs": [1, 1], "s": [1, 1, 1], "t": [1, 1]}
    if together:
        assert shown[1] == {"c": [0, 1, 0], "cs": [0, 0], "s": [0, 0, 0], "t": [0, 0]}
        assert shown[2] == {"c": [0, 0, 0], "cs": [1, 1], "s": [0, 0, 1], "t": [1, 1]}
        assert shown[3] == {"c": [0, 0, 0], "cs": [1, 1], "s": [0, 0, 0], "t": [1, 1]}
    assert len(shown) == (4 if together else 1)
    assert [reject.record_id for reject in done.rejects] == [
        f"t#{len(shown)}",
        f"t#{len(shown) + 1}",
    ]
    assert "some of the 3 classes" in done.rejects[0].message
    assert "d" in done.rejects[0].message.partition("found")[2]


def test_the_classes_of_multi_hot(kitchen: Any) -> None:
    several = {"c": ClassLabel(("", "b| a", "c", "c|a"))}
    assert ss.tables.multi_hot("c").features(several)["c"] == Tensor(
        "float32", (3,), names=("a", "b", "c")
    )
    (reject,) = kitchen.cook([ss.tables.multi_hot("c", ["a", "b"])], [{"c": 3}], several)[1].rejects
    assert "c|a" in reject.message
    step = ss.tables.multi_hot("c", "classes.txt").with_files([b"x\ny\n"])
    assert step.features({"c": Scalar("string")})["c"] == Tensor("float32", (2,), names=("x", "y"))
    assert step.settings()["classes"] == "file"


@pytest.fixture(scope="module")
def iso(kitchen: Any) -> Any:
    steps = [ss.tables.parse_time("x", unit="us")]
    return kitchen.menu(steps, {"x": Scalar("string", optional=True)})


EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ZONES = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(
    lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes))
)
TIMES = st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 12, 30), timezones=ZONES)


@settings(max_examples=40, deadline=None)
@given(times=st.lists(TIMES, min_size=1, max_size=20))
def test_iso_times_are_read_as_python_reads_them(iso: Any, times: Any) -> None:
    found, done = iso.run([{"x": time.isoformat()} for time in times])
    step = datetime.timedelta(microseconds=1)
    assert not done.rejects
    assert [row["x"] for row in found] == [(time - EPOCH) // step for time in times]


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.from_regex(r"\d{4}-[01]\d-[0-3]\d([T ][0-2]\d:[0-6]\d)?Z?", fullmatch=True))
)
def test_what_is_no_time_is_rejected(iso: Any, texts: Any) -> None:
    def is_time(text: str) -> bool:
        try:
            datetime.datetime.fromisoformat(text)
        except ValueError:
            return False
        return not text.isascii() or len(text) != 11

    ascii_texts = [text for text in texts if text.isascii()]
    found, done = iso.run([{"x": text} for text in ascii_texts])
    kept = [text for text in ascii_texts if is_time(text)]
    assert (len(found), len(done.rejects)) == (len(kept), len(ascii_texts) - len(kept))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026",
        "2026-13-01",
        "2026-02-29",
        "2026-04-31",
        "0000-01-01",
        "2026-01-01T24:00",
        "2026-01-01T10:60",
        "2026-01-01T10:00:60",
        "2026-01-01T10:00+24:00",
        "2026-01-01T10:00:00.0000001",
        "2026-01-01 10:00 Europe/Berlin",
        "x2026-01-01",
        "\uff12\uff10\uff12\uff16-01-01",
    ],
)
def test_each_of_these_is_no_time(iso: Any, text: str) -> None:
    found, done = iso.run([{"x": text}, {"x": "2024-02-29"}, {"x": None}])
    assert [row["x"] for row in found] == [1_709_164_800_000_000, None]
    assert [reject.record_id for reject in done.rejects] == ["t#0"]


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("%d.%m.%Y %H:%M", "21.11.2026 09:30", "2026-11-21T09:30:00"),
        ("%m/%d/%y %I:%M:%S %p", "1/2/69 12:05:06 AM", "1969-01-02T00:05:06"),
        ("%m/%d/%y %I %p", "1/2/68 12 pm", "2068-01-02T12:00:00"),
        ("%d %b %Y", "3 SEP 1752", "1752-09-03T00:00:00"),
        ("%B %d, %Y %H:%M:%S.%f", "March 1, 2000 23:59:59.5", "2000-03-01T23:59:59.5"),
        ("%Y-%j", "2024-366", "2024-12-31T00:00:00"),
        ("%Y%m%dT%H%M%S%z", "20260101T120000-0330", "2026-01-01T15:30:00"),
        ("%s", "-86400", "1969-12-31T00:00:00"),
        ("100%% %Y", "100% 2000", "2000-01-01T00:00:00"),
    ],
)
def test_formats(kitchen: Any, form: str, text: str, expected: str) -> None:
    rows = [{"x": text}, {"x": text + "!"}]
    found, done, runner = kitchen.cook(
        [ss.tables.parse_time("x", form, unit="ms")], rows, {"x": Text()}
    )
    when = datetime.datetime.fromisoformat(expected).replace(tzinfo=datetime.UTC)
    assert [row["x"] for row in found] == [round(1000 * when.timestamp())]
    assert len(done.rejects) == 1
    assert runner.features == {"x": Timestamp("ms")}


def test_times_beyond_the_unit_are_rejected(kitchen: Any) -> None:
    rows = [{"x": text} for text in ("2262-04-11", "2262-04-12", "1677-09-22", "1677-09-20")]
    found, done, _ = kitchen.cook([ss.tables.parse_time("x", unit="ns")], rows, {"x": Text()})
    assert len(found) == 2
    assert [reject.record_id for reject in done.rejects] == ["t#1", "t#3"]


@pytest.mark.parametrize("form", ["%Q", "%d.%m.", "%Y %Y", "%Y %I", "%Y%"])
def test_formats_that_make_no_sense_are_refused(form: str) -> None:
    with pytest.raises(ValueError, match="format: "):
        compile_format(form)
    with pytest.raises(RecipeError, match="format"):
        ss.tables.parse_time("x", form)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (ss.tables.fill("none", 1), "there is no feature 'none'"),
        (ss.tables.fill("count", 1.5), "1.5 is not a valid value of 'count'"),
        (ss.tables.fill("count", 2**31), "is not a valid value of 'count'"),
        (ss.tables.fill("kind", "w"), "'w' is not a valid value of 'kind'"),
        (ss.tables.fill("kind", 3), "3 is not a valid value of 'kind'"),
        (ss.tables.fill("count", 1, nan=True), "cannot be NaN"),
        (ss.tables.fill("vector", 1), "expected one value per record"),
        (ss.tables.missing("age", "size"), "already a feature 'size'"),
        (ss.tables.cast("age", "string"), "no canonical conversion"),
        (ss.tables.cast("name", "bool"), "no canonical conversion"),
        (ss.tables.clip("name", 1), "expected numbers"),
        (ss.tables.clip("count", 0.5), "0.5 is not a valid int32"),
        (ss.tables.clip("vector", 0, 2**15), "32768 is not a valid int16"),
        (ss.tables.hash("age", 10), "expected strings or integers"),
        (ss.tables.one_hot("count"), "Give depth="),
        (ss.tables.one_hot("age", 3), "expected a class or an integer"),
        (ss.tables.multi_hot("name"), "does not name its classes. Give classes="),
        (ss.tables.multi_hot("age", ["a"]), "expected text, a class, or a list"),
        (ss.tables.multi_hot("count", ["a"]), "expected text, a class, or a list"),
        (ss.tables.parse_time("age"), "expected a string"),
    ],
    ids=repr,
)
def test_what_a_step_cannot_work_on_is_refused(step: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        step.features(FEATURES)
    assert repr(step) in str(caught.value)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (ss.tables.clip, ()),
        (ss.tables.clip, (2, 1)),
        (ss.tables.clip, (math.nan,)),
        (ss.tables.hash, (0,)),
        (ss.tables.one_hot, (0,)),
        (ss.tables.multi_hot, ([],)),
        (ss.tables.multi_hot, (["a", "a"],)),
        (ss.tables.multi_hot, (["a|b"],)),
        (ss.tables.multi_hot, ([" a"],)),
        (ss.tables.multi_hot, (["a", ""],)),
        (ss.tables.cast, ("complex64",)),
        (ss.tables.cast, ("decimal",)),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value),
)
def test_arguments_are_checked(make: Any, arguments: Any) -> None:
    with pytest.raises(RecipeError):
        make("x", *arguments)


STEPS = [
    ss.tables.fill("age", 1.0, nan=True),
    ss.tables.missing("age", "no"),
    ss.tables.cast("age", "float32"),
    ss.tables.clip("age", 0, 2.5),
    ss.tables.hash("name", 9, key=(1, 2)),
    ss.tables.one_hot("count", depth=5, dtype="int8"),
    ss.tables.multi_hot("name", ["a", "b"], separator=";", dtype="int8"),
    ss.tables.parse_time("name", "%Y", unit="s"),
]


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_a_step_shows_itself_as_it_is_written(step: Any) -> None:
    assert eval(repr(step), {"ss": ss}) == step
    assert StepTraits.of(step).batched
    assert StepTraits.of(step).export_obstacle == ""


def test_settings_tell_values_of_different_types_apart() -> None:
    values = [1, 1.0, True, "1", math.nan]
    shown = [str(ss.tables.fill("x", value).settings()) for value in values]
    assert len(set(shown)) == len(values)
