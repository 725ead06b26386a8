"""What recipes are written with refuses values of wrong types as settings, with the name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import snapshard as ss
from snapshard.schemas.errors import RecipeError

WRONG: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**70, 1.5, float("nan"), float("inf"), "", "a", b"a", b"\xff", 1j),
    *([], [[]], ["a", 1], [None], [[1], "a"], (), ((),), {}, {"a": []}, {1: 2}, {"a": {"b": [1]}}),
    *({None: "a"}, {"a": None}, set(), {"a"}, range(3), object(), int, len, Ellipsis),
    *(ss.Scalar("int64"), ss.Csv("t.csv")),
)
SURROGATES: tuple[Any, ...] = (
    *("\udc80", "a\udc80", "\ud800"),
    *(["a", "\udc80"], ("\udc80", "\udc80"), {"\udc80": "a"}, {"a": "\udc80"}),
    *({"a": ["\udc80"]}, {"\udc80": ss.Scalar("int64")}),
)
PATHS = {"url", "uri", "table", "pattern", "beside", "shards", "vocabulary", "tokenizer"} | {
    *("binary", "jar", "transform_from", "depends_on", "folders"),
}
"""Arguments that may be paths or globs of files whose names are not UTF-8."""
NO_SETTINGS = {"Snapshot", "SnapshardError", "build", "load", "plan", "run_step"} | {
    *("encode_example", "parse_example"),
}
BASES: dict[str, dict[str, Any]] = {
    "*": {"name": "a", "url": "t.csv", "names": ["a"], "length": 2, "size": 2, "data": {"a": [1]}},
    "Sql": {"uri": "a.db", "query": "select a from t", "key": "a"},
    "Files": {"read": lambda path, file: iter(())},
    "Iterable": {"records": lambda: iter(())},
    "Recipe": {"source": ss.Csv("t.csv")},
    "Scalar": {"dtype": "int64"},
    "Sequence": {"of": ss.Text()},
    "Struct": {"fields": {"a": ss.Text()}},
    "Tensor": {"dtype": "int64", "shape": (2,)},
    "WebDataset": {"shards": "a.tar"},
    "ClassLabel": {"names": ("a", "b")},
    "Sources": {"train": ss.Csv("t.csv")},
    "Splits": {"train": 1.0},
    "Splits.by_column": {"feature": "a", "train": "x"},
    "Splits.by_folder": {"train": "x"},
    "Splits.k_fold": {"num": 3},
    "Splits.by_time": {"feature": "a", "train": 1.0},
    "audio.frame": {"step": 1},
    "audio.resample": {"rate": 8000},
    "audio.trim_or_pad": {"samples": 8},
    "images.center_crop": {"size": (2, 2)},
    "images.convert": {"to": "rgb"},
    "images.pad_or_crop": {"size": (2, 2)},
    "images.resize": {"size": (2, 2)},
    "records.filter": {"function": lambda record: record["a"]},
    "records.map": {"function": lambda record: record},
    "records.map_python": {
        "function": lambda record: record,
        "features": {"a": ss.Scalar("int64")},
    },
    "records.rename": {"names": {"a": "b"}},
    "series.windows": {"time": "t"},
    "tables.cast": {"dtype": "int32"},
    "tables.fill": {"value": 1},
    "tables.clip": {"min": 1},
    "tables.hash": {"num_buckets": 3},
    "tables.missing": {"to": "b"},
    "tables.stack": {"to": "x"},
    "text.tokenize": {"vocabulary": ["a"]},
}


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Classes and functions that recipes are written with, by name."""
    for name in sorted(set(ss.__all__) - NO_SETTINGS):
        found = getattr(ss, name)
        if inspect.ismodule(found):
            names = getattr(found, "__all__", ["windows"])
            for inner, function in inspect.getmembers(found, callable):
                if inner in names and inner.islower():
                    yield f"{name}.{inner}", function
        elif callable(found):
            yield name, found
            for inner, method in inspect.getmembers(found, inspect.ismethod):
                if not inner.startswith("_"):
                    yield f"{name}.{inner}", method


def arguments(name: str, function: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each argument, and the call with another value for it."""
    parameters = inspect.signature(function).parameters
    several = next((p.name for p in parameters.values() if p.kind is p.VAR_POSITIONAL), None)
    known = {k: v for k, v in BASES["*"].items() if k in parameters and k != several}
    needed = {k for k, p in parameters.items() if p.default is p.empty and p.kind <= p.KEYWORD_ONLY}
    base = {k: v for k, v in known.items() if k in needed} | BASES.get(name, {})
    given = ("a",) if several else ()
    function(*given, **base)  # without a wrong value it is taken

    def calling(argument: str) -> Callable[[Any], Any]:
        if argument == several:
            return lambda value: function(value, **base)
        return lambda value: function(*given, **(base | {argument: value}))

    for argument, parameter in parameters.items():
        split = parameter.kind is parameter.VAR_KEYWORD
        yield argument, calling("train" if split else argument)


EACH = [
    pytest.param(argument, call, id=f"{name}-{argument}")
    for name, function in public()
    for argument, call in arguments(name, function)
]


@pytest.mark.parametrize(("argument", "call"), EACH)
def test_a_wrong_type_is_refused_as_a_setting(argument: str, call: Callable[[Any], Any]) -> None:
    odd = []
    for value in WRONG:
        try:
            call(value)
        except RecipeError as error:
            if not {argument, "train"} & set(re.findall(r"\w+", str(error))):
                odd.append((value, error))
        except Exception as error:
            odd.append((value, error))
    assert not odd


@pytest.mark.parametrize(("argument", "call"), EACH)
def test_what_is_not_utf8_is_refused_as_a_setting(
    argument: str, call: Callable[[Any], Any]
) -> None:
    odd = []
    for value in SURROGATES:
        try:
            made = call(value)
            if "udc80" in ascii(made) and argument not in PATHS:
                odd.append((value, made))
        except RecipeError as error:
            str(error).encode()
        except Exception as error:
            odd.append((value, error))
    assert not odd


SETS: dict[str, Callable[[Any], Any]] = {
    "records.select": ss.records.select,
    "records.drop": ss.records.drop,
    "tables.stack": lambda names: ss.tables.stack(names, to="x"),
    "text.tokenize": lambda names: ss.text.tokenize("t", vocabulary=names),
    "Csv(columns=)": lambda names: ss.Csv("t.csv", columns=names),
    "ClassLabel": lambda names: ss.ClassLabel(names=names),
}


@pytest.mark.parametrize("name", SETS)
def test_sets_are_refused_for_their_order_would_be_in_the_fingerprint(name: str) -> None:
    call = SETS[name]
    call(["a", "c"])
    call({"a": 0, "c": 1}.keys())
    for names in ({"a", "c"}, frozenset({"a", "c"}), [{"a", "c"}]):
        with pytest.raises(RecipeError):
            call(names)
    with pytest.raises(RecipeError, match=r"a set has no order\. Give a list or a tuple"):
        call({"a", "c"})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ss.audio.log_mel("a", 40), r"LogMel: 2 arguments without a name, .* most 1 \(na"),
        (lambda: ss.images.resize("a", (8, 8), True), r"Resize: 3 .* Name the others: keep_ratio="),
        (lambda: ss.text.truncate("a", 4, "last"), "Truncate: 3 .* Name the others: keep="),
    ],
    ids=["log_mel", "resize", "truncate"],
)
def test_options_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
