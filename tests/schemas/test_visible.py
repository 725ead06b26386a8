"""Names from data are shown as what they are: the rule, and every place that prints them."""

import doctest
import json
import sys
import unicodedata

import pytest

from snapshard import terminal
from snapshard.pipelines.inspect.verify_report import Finding
from snapshard.schemas import visible as module
from snapshard.schemas.visible import visible, visible_json
from snapshard.transforms.rejects import on_a_line

INVISIBLE = (
    "\u200b",  # zero width space
    "\u200d",  # zero width joiner
    "\u00ad",  # soft hyphen
    "\u2060",  # word joiner
    "\ufeff",
    "\u202e",  # right to left
    "\U000e0041",  # a tag
    "\U000e0100",  # a variation selector
    "\ufe0f",
    "\u3164",  # a letter that is blank
    "\u034f",
    "\u2800",
    "\u2028",
    "\u00a0",
    "\u3000",
    "\x1b",
    "\x9b",
    "\x00",
    "\r",
)


def test_the_rule() -> None:
    # From U+40000 on, planes have no letters but those of private use, and tags.
    for code in (*range(0x40000), *range(0x40000, sys.maxunicode + 1, 101)):
        letter = chr(code)
        shown = visible(letter)
        category = unicodedata.category(letter)
        if category[0] in "CZ" and letter != " ":
            assert shown != letter
        if shown != letter:
            assert shown.isascii()
            assert shown.startswith("\\")
    for text in ("a b", "größe", "日本語", "naïve", "שלום", "مرحبا", "หมา", "हिन्दी", "🐈"):
        assert visible(text) == text


@pytest.mark.parametrize("letter", INVISIBLE)
def test_every_place_escapes(letter: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"a{letter}b\nc"
    escaped = f"a{ascii(letter)[1:-1]}b\\nc"
    assert visible(name) == escaped
    assert on_a_line(name) == escaped
    assert str(Finding(file=name, kind="extra", what="is extra")).startswith(f"'{escaped}': ")
    terminal.show_table("title", ("name",), [(name,)])
    terminal.show_counts("title", {name: 1})
    terminal.say(name)
    terminal.show_error(name)
    terminal.show_warning(name)
    terminal.show_note(name)
    printed = capsys.readouterr()
    assert letter not in printed.out.replace("\r\n", "\n")
    assert letter not in printed.err
    assert printed.out.count(escaped) == 2, "a table and counts have a line for each name"


@pytest.mark.parametrize("letter", [*INVISIBLE, "\n", "\udce9"])
def test_json_means_the_same(letter: str) -> None:
    value = {f"a{letter}b": [letter, "größe"]}
    text = visible_json(json.dumps(value, ensure_ascii=False))
    assert letter not in text
    assert "größe" in text
    assert json.loads(text) == value


def test_doctests() -> None:
    assert doctest.testmod(module).failed == 0
