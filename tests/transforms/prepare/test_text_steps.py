"""Steps on text: against Python's own, batched and one by one; vocabularies from files."""

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import RecipeError
from snapshard.schemas.features import Scalar, Sequence, Tensor, Text
from snapshard.schemas.recipe import StepTraits
from snapshard.transforms.code.digest import CodeHashes
from snapshard.transforms.prepare.engine.chain import (
    digest_with_files,
    read_step_files,
    with_files,
)

WORDS = st.text(st.sampled_from("abÄé İßΣ\t\n.,'e\u0301\ufb01"), max_size=30)


@pytest.fixture(scope="module")
def normalizers(kitchen: Any) -> dict[str, Any]:
    return {
        form: kitchen.menu([ss.text.normalize("x", form, lower=False)], {"x": Text(optional=True)})
        for form in ("NFC", "NFD", "NFKC", "NFKD")
    }


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(WORDS | st.none(), max_size=10), form=st.sampled_from(["NFC", "NFKD"]))
def test_normal_forms_are_unicodes(normalizers: Any, texts: Any, form: str) -> None:
    found, done = normalizers[form].run([{"x": text} for text in texts])
    expected = [text if text is None else unicodedata.normalize(form, text) for text in texts]
    assert [row["x"] for row in found] == expected
    assert not done.rejects


def test_lower_case_of_any_alphabet_and_lists(kitchen: Any) -> None:
    features = {"x": Scalar("string"), "y": Sequence(Text(), optional=True)}
    rows = [{"x": "ÄΣÉ x", "y": ["É", "B"]}, {"x": b"\xff"}, {"x": b"ok"}]
    for form in ("NFC", None):
        steps = [ss.text.normalize("x", form), ss.text.normalize("y")]
        found, done, runner = kitchen.cook(steps, rows, features)
        assert runner.features == features
        assert [row["x"].decode() for row in found] == ["äσé x", "ok"]
        assert (found[0]["y"].tolist(), found[1]["y"]) == (["é", "b"], None)
        assert [reject.record_id for reject in done.rejects] == ["t#1"]
    assert StepTraits.of(ss.text.normalize("x")).export_obstacle
    assert not StepTraits.of(ss.text.normalize("x", None)).export_obstacle


IN_A_LOCALE = """
import sys
import tensorflow as tf
if "before" in sys.argv:
    tf.strings.lower(["x"], encoding="utf-8")  # ICU takes the locale on first use
import snapshard as ss
def upper(record):
    return {**record, "upper": tf.strings.upper(record["x"], encoding="utf-8")}
table = ss.Table({"x": ["TITLE title"]}, types={"x": ss.Text()})
steps = [ss.text.normalize("x", None), upper]
recipe = ss.Recipe(name="x", source=table, prepare=steps, splits=ss.Splits(train=1.0))
reader = ss.build(recipe, sys.argv[1], workers=1).reader()
record = next(iter(reader.dataset("train", 1)))
print([record[name].numpy()[0].decode() for name in ("x", "upper")])
"""


@pytest.mark.slow  # processes that load TensorFlow
def test_case_follows_no_locale_or_is_refused(tmp_path: Path) -> None:
    """ICU reads the name alone; the locale need not be installed."""
    script = tmp_path / "script.py"
    script.write_text(IN_A_LOCALE)

    def run(out: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, script, tmp_path / out, *arguments],
            env={**os.environ, "LC_ALL": "tr_TR.UTF-8", "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            check=False,
        )

    done = run("out")
    assert done.stdout == "['title title', 'TITLE TITLE']\n", done.stderr
    refused = run("other", "before")
    assert refused.stdout == ""
    assert "TensorFlow follows the locale of this process" in refused.stderr
    assert "LC_ALL=C.UTF-8" in refused.stderr


@pytest.fixture(scope="module")
def tokenizers(kitchen: Any) -> dict[str, Any]:
    features = {"x": Text(optional=True)}
    return {
        "plain": kitchen.menu([ss.text.tokenize("x")], features),
        "list": kitchen.menu([ss.text.tokenize("x", ["b", "a", "<?>"], unknown="<?>")], features),
        "comma": kitchen.menu([ss.text.tokenize("x", ["b", "a"], split="[,.]+")], features),
    }


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.text("ab ,.\n", max_size=20) | st.none(), max_size=10))
def test_tokens_are_what_python_splits(tokenizers: Any, texts: Any) -> None:
    rows = [{"x": text} for text in texts]
    plain, _ = tokenizers["plain"].run(rows)
    numbers, _ = tokenizers["list"].run(rows)
    by_comma, _ = tokenizers["comma"].run(rows)
    for text, one, two, three in zip(texts, plain, numbers, by_comma, strict=True):
        if text is None:
            assert (one["x"], two["x"], three["x"]) == (None, None, None)
            continue
        tokens = text.split()
        assert one["x"].tolist() == [token.encode() for token in tokens]
        assert two["x"].tolist() == [{"b": 0, "a": 1}.get(token, 2) for token in tokens]
        parts = [part for part in text.replace(".", ",").split(",") if part]
        assert three["x"].tolist() == [{"b": 0, "a": 1}.get(part, 2) for part in parts]


def test_what_tokens_become(tokenizers: Any) -> None:
    assert tokenizers["plain"].runner.features == {"x": Tensor("string", (None,), optional=True)}
    assert tokenizers["list"].runner.features == {"x": Tensor("int64", (None,), optional=True)}


def recipe(folder: Path, *steps: Any) -> ss.Recipe:
    made = ss.Recipe(name="r", source=ss.Csv("t.csv"), prepare=list(steps))
    object.__setattr__(made, "folder", str(folder))
    return made


def test_a_vocabulary_file_counts_by_content(kitchen: Any, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder, words in zip(folders, (b"cat\ndog\n", b"cat\ndog\n", b"cat\ncow\n"), strict=True):
        folder.mkdir()
        (folder / "words.txt").write_bytes(words)
    step = ss.text.tokenize("x", "words.txt")
    elsewhere = ss.text.tokenize("x", str(folders[0] / "words.txt"))
    recipes = [recipe(folder, step) for folder in folders] + [recipe(folders[2], elsewhere)]
    for made in recipes:
        read_step_files(made)
    one, two, three, four = (
        digest_with_files(made.prepare[0], made, CodeHashes.of(made)) for made in recipes
    )
    assert one == two == four
    assert one != three
    (bound,) = with_files(recipes[0].prepare, recipes[0])
    found, _, _ = kitchen.cook([bound], [{"x": "dog owl cat"}], {"x": Text()})
    assert found[0]["x"].tolist() == [1, 2, 0]
    # An edited file is read again.
    (folders[0] / "words.txt").write_bytes(b"dog\n")
    read_step_files(recipes[0])
    assert digest_with_files(recipes[0].prepare[0], recipes[0], CodeHashes.of(recipes[0])) != one


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "contains no tokens"),
        (b"a\nb\na\n", "'a' occurs twice, at 0 and 2"),
        (b"a\n\xff\n", r"not UTF-8 text \(byte 2\)"),
        (b"a\nb\n", "unknown='c' is not one of the 2 tokens"),
    ],
    ids=["empty", "twice", "binary", "unknown"],
)
def test_unfit_vocabularies_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "v.txt").write_bytes(content)
    step = ss.text.tokenize("x", "v.txt", unknown="c" if content.startswith(b"a\nb\n") else None)
    step = ss.text.tokenize("x", "v.txt") if b"b\na" in content else step
    with pytest.raises(RecipeError, match=message):
        with_files([step], recipe(tmp_path, step))


def test_windows_line_ends_and_a_mark_in_front() -> None:
    step = ss.text.tokenize("x", "v.txt").with_files([b"\xef\xbb\xbfa\r\nb c\r\n"])
    assert step.tokens == ("a", "b c")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    step = ss.text.tokenize("x", "none.txt")
    with pytest.raises(RecipeError, match=r"tokenize.*none\.txt does not exist"):
        read_step_files(recipe(tmp_path, step))
    step = ss.text.tokenize("x", ".")
    with pytest.raises(RecipeError, match="expected one file"):
        read_step_files(recipe(tmp_path, step))


@pytest.fixture(scope="module")
def tokenizer_json() -> dict[str, Any]:
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}},
        },
        "decoder": None,
        "padding": {
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[UNK]",
        },
        "truncation": None,
        "model": {
            "type": "WordLevel",
            "vocab": {"[UNK]": 0, "[CLS]": 1, "the": 2, "cat": 3, ".": 4},
            "unk_token": "[UNK]",
        },
    }


def test_tokenizer_of_hugging_face(kitchen: Any, tokenizer_json: Any) -> None:
    pytest.importorskip("tokenizers", reason="pip install snapshard[text]")
    content = json.dumps(tokenizer_json).encode()
    step = ss.text.tokenize("x", tokenizer="t.json")
    bare = ss.text.tokenize("y", tokenizer="t.json", special_tokens=False)
    rows = [{"x": "The CAT.", "y": "the dog"}, {"x": None, "y": b""}, {"x": "", "y": b"\xff"}]
    found, done, runner = kitchen.cook(
        [step.with_files([content]), bare.with_files([content])],
        rows,
        {"x": Text(optional=True), "y": Scalar("string")},
    )
    assert runner.features["x"] == Tensor("int64", (None,), optional=True)
    assert found[0]["x"].tolist() == [1, 2, 3, 4]
    assert found[0]["y"].tolist() == [2, 0]
    assert (found[1]["x"], found[1]["y"].tolist()) == (None, [])
    assert "expected UTF-8" in done.rejects[0].message
    assert StepTraits.of(step).export_obstacle
    assert StepTraits.of(step).files == ("t.json",)


def test_tokenizers_that_are_none_or_random_are_refused(tokenizer_json: Any) -> None:
    pytest.importorskip("tokenizers", reason="pip install snapshard[text]")
    step = ss.text.tokenize("x", tokenizer="t.json")
    for content in (b"", b"{}", b"\xff", b'{"model": 5}'):
        with pytest.raises(RecipeError, match=r"t\.json is not a tokenizer\.json"):
            step.with_files([content])
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}
    content = json.dumps({**tokenizer_json, "model": model, "post_processor": None}).encode()
    with pytest.raises(RecipeError, match="at random"):
        step.with_files([content])


@pytest.fixture(scope="module")
def truncators(kitchen: Any) -> dict[str, Any]:
    features = {"t": Text(optional=True), "n": Tensor("int32", (None, 2))}
    return {
        keep: kitchen.menu(
            [ss.text.truncate("t", 3, keep=keep), ss.text.truncate("n", 2, keep=keep)], features
        )
        for keep in ("first", "last")
    }


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(WORDS | st.none(), st.lists(st.tuples(*[st.integers(0, 9)] * 2), max_size=5)),
        max_size=8,
    ),
    keep=st.sampled_from(["first", "last"]),
)
def test_truncated_lists_and_text(truncators: Any, rows: Any, keep: str) -> None:
    import numpy as np

    given_rows = [{"t": text, "n": np.array(n, np.int32).reshape(-1, 2)} for text, n in rows]
    found, _ = truncators[keep].run(given_rows)
    for (text, numbers), row in zip(rows, found, strict=True):
        part = slice(None, 3) if keep == "first" else slice(-3, None)
        assert row["t"] == (text if text is None else text[part])
        part = slice(None, 2) if keep == "first" else slice(-2, None)
        assert [tuple(pair) for pair in row["n"].tolist()] == numbers[part]


def test_nothing_may_be_left(kitchen: Any) -> None:
    features = {"t": Text(), "n": Sequence(Scalar("string"))}
    for keep in ("first", "last"):
        steps = [ss.text.truncate("t", 0, keep=keep), ss.text.truncate("n", 0, keep=keep)]
        found, _, _ = kitchen.cook(steps, [{"t": "abc", "n": ["a"]}], features)
        assert (found[0]["t"], found[0]["n"].tolist()) == ("", [])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (ss.text.normalize("n"), "expected text"),
        (ss.text.tokenize("n"), "expected text"),
        (ss.text.tokenize("l"), "expected one value per record"),
        (ss.text.truncate("n", 3), "expected text or a varying list"),
        (ss.text.truncate("none", 3), "there is no feature 'none'"),
    ],
    ids=repr,
)
def test_what_a_step_cannot_work_on_is_refused(step: Any, message: str) -> None:
    features = {"n": Scalar("int64"), "l": Sequence(Text())}
    with pytest.raises(RecipeError, match=message):
        step.features(features)


@pytest.mark.parametrize(
    "settings_",
    [
        {"vocabulary": ["a", "a"]},
        {"vocabulary": []},
        {"vocabulary": ["a"], "unknown": "b"},
        {"unknown": "b"},
        {"vocabulary": ["a"], "tokenizer": "t.json"},
        {"special_tokens": False},
    ],
    ids=repr,
)
def test_arguments_are_checked(settings_: Any) -> None:
    with pytest.raises(RecipeError):
        ss.text.tokenize("x", **settings_)
    with pytest.raises(RecipeError):
        ss.text.normalize("x", None, lower=False)


STEPS = [
    ss.text.normalize("x", "NFKC", lower=False),
    ss.text.normalize("x", None),
    ss.text.tokenize("x", "v.txt", unknown="?", split=r"\W+"),
    ss.text.tokenize("x", tokenizer="t.json", special_tokens=False),
    ss.text.truncate("x", 5, keep="last"),
]


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_a_step_shows_itself_as_it_is_written(step: Any) -> None:
    assert eval(repr(step), {"ss": ss}) == step
