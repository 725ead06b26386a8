"""Odd and damaged JSON Lines: rejects that name file and byte, and every good line kept."""

import gzip
import json
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from snapshard.schemas.errors import SchemaError
from snapshard.schemas.features import Feature, Scalar
from snapshard.schemas.limits import Limits
from snapshard.transforms.sources.json import rows as json_rows
from snapshard.transforms.sources.json.source import JsonLines

GOOD = b'{"a": 1, "s": "x"}\n'
FEATURES: dict[str, Feature] = {"a": Scalar("int64"), "s": Scalar("string")}

BAD_LINES: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"a,b,c", "is not valid JSON"),
    "cut off": (b'{"a": 1, "s": "x', "is not valid JSON"),
    "a comma too many": (b'{"a": 1, "s": "x",}', "is not valid JSON"),
    "single quotes": (b"{'a': 1, 's': 'x'}", "is not valid JSON"),
    "a comment": (b'{"a": 1, "s": "x"} // no', "Extra data"),
    "two objects": (b'{"a": 1, "s": "x"}{"a": 2, "s": "y"}', "Extra data"),
    "a list": (b'[1, "x"]', "not a JSON object"),
    "a number": (b"12", "not a JSON object"),
    "null": (b"null", "not a JSON object"),
    "a duplicate key": (b'{"a": 1, "a": 2, "s": "x"}', "'a' has its key 'a' twice"),
    "a string for a number": (b'{"a": "one", "s": "x"}', "'a' is 'one', expected int64"),
    "a fraction for an integer": (b'{"a": 1.5, "s": "x"}', "'a' is 1.5, expected int64"),
    "a bool for a number": (b'{"a": true, "s": "x"}', "'a' is true, expected int64"),
    "a list for a number": (b'{"a": [1], "s": "x"}', "'a' is [1], expected int64"),
    "an object for a number": (b'{"a": {"b": 1}, "s": "x"}', "'a' is {\"b\":1}, expected int64"),
    "a number too large": (b'{"a": 9223372036854775808, "s": "x"}', "out of range for int64"),
    "a number of 5,000 digits": (b'{"a": ' + b"9" * 5000 + b', "s": "x"}', "is not valid JSON"),
    "a float too large": (b'{"a": 1e999, "s": "x"}', "too large for a float"),
    "a missing key": (b'{"s": "x"}', "column 'a' has no value"),
    "a null": (b'{"a": null, "s": "x"}', "column 'a' has no value"),
    "nothing in it": (b"{}", "column 'a' has no value"),
    "text that is not UTF-8": (b'{"a": 1, "s": "caf\xe9"}', "UTF-8"),
    "a lone surrogate": (b'{"a": 1, "s": "\\ud800"}', "not UTF-8"),
    "a tab in a string": (b'{"a": 1, "s": "x\ty"}', "Invalid control character"),
    "zero bytes": (bytes(20), "is not valid JSON"),
    "nested too deeply": (b'{"a": ' + b"[" * 100_000 + b"1", "nested too deeply"),
    "deep and closed": (b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}", "expected int64"),
    "a bad escape": (b'{"a": 1, "s": "\\x"}', "is not valid JSON"),
    "an unknown word": (b'{"a": nan, "s": "x"}', "is not valid JSON"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_one_reject_and_its_neighbours_stay(reading: Any, name: str) -> None:
    line, words = BAD_LINES[name]
    content = GOOD * 3 + line + b"\n" + GOOD * 2
    source = JsonLines(reading.write("t.jsonl", content))
    got = reading.read(source, features=FEATURES)
    assert got.column("a") == [1] * 5
    (reject,) = got.rejects
    assert reject.record_id == f"t.jsonl#{3 * len(GOOD)}"
    assert f"t.jsonl byte {3 * len(GOOD)}: " in reject.message
    assert words in reject.message
    assert "raise max_rejects" in reject.message
    assert reject.payload == (line if len(line) < 65_536 else None)


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_does_not_stop_types_from_being_told(reading: Any, name: str) -> None:
    line, _ = BAD_LINES[name]
    source = JsonLines(reading.write("t.jsonl", GOOD * 3 + line + b"\n" + GOOD))
    if name == "deep and closed":
        with pytest.raises(SchemaError, match=r"t\.jsonl byte 57: .* more than 32 levels deep"):
            reading.read(source)
        return
    got = reading.read(source)
    assert {"a", "s"} <= got.features.keys()
    assert len(got.rows) + len(got.rejects) == 5
    assert len(got.rows) >= 4


@pytest.mark.parametrize(
    ("content", "num_rows"),
    [
        (b"\xef\xbb\xbf" + GOOD * 2, 2),
        (GOOD.replace(b"\n", b"\r\n") * 2, 2),
        (b"\n\n  \n" + GOOD + b"\r\n\t\n" + GOOD, 2),
        (GOOD + GOOD.strip(), 2),
        (b"  " + GOOD.strip() + b" \t\r\n" + GOOD, 2),
        (b'{"a": 1, "s": "\xe2\x80\xa8"}\n', 1),
        (b'{"a": 1, "s": "x", "z": {"y": [1, "2"]}}\n{"a": 1, "s": "x", "z": 3}\n', 2),
        (b'{"z": 1, "z": 2, "a": 1, "s": "x"}\n', 1),
        (b'{ "a" :\t1 , "s":"x"}\n', 1),
        (b'{"\\u0061": 1, "s": "x"}\n', 1),
    ],
)
def test_what_is_odd_and_right(reading: Any, content: bytes, num_rows: int) -> None:
    got = reading.read(JsonLines(reading.write("t.jsonl", content)), features=FEATURES)
    assert (len(got.rows), got.rejects) == (num_rows, [])
    for record_id in got.rows:
        offset = int(record_id.rpartition("#")[2])
        assert content[offset : offset + 1] == b"{"
    assert got.column("a") == [1] * num_rows


def test_an_object_over_several_lines_among_lines_is_so_many_rejects(reading: Any) -> None:
    content = GOOD + b'{"a":\n1, "s":\n"x"}\n'
    got = reading.read(JsonLines(reading.write("t.jsonl", content)), features=FEATURES)
    assert list(got.rows) == ["t.jsonl#0"]
    assert len(got.rejects) == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no readable object"),
        (b"\n \n", "holds no JSON object"),
        (b"hello\n", r"t\.jsonl holds no JSON object.*byte 0: the line 'hello' is not valid JSON"),
        (b"[1,\n2]", "holds no JSON object .byte 1: the value '1' is not a JSON object"),
        (b"{}\n{}\n", "objects without keys"),
        (b'{"": 1}\n', "empty"),
        (b'{"a": {"": 1}}\n', "empty"),
    ],
)
def test_a_file_that_no_features_can_be_told_of(reading: Any, content: bytes, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        reading.read(JsonLines(reading.write("t.jsonl", content)))


def test_a_line_without_end(reading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "WINDOW_BYTES", 64)
    long = b'{"a": 1, "s": "' + b"x" * 1000 + b'"}\n'
    content = GOOD + long + GOOD + long + long.strip()
    source = JsonLines(reading.write("t.jsonl", content))
    got = reading.read(source, features=FEATURES, limits=Limits(max_row_bytes=200))
    assert list(got.rows) == ["t.jsonl#0", f"t.jsonl#{len(GOOD) + len(long)}"]
    assert [reject.reason for reject in got.rejects] == ["line too long"] * 3
    assert got.rejects[1].position == 2 * len(GOOD) + len(long)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress], ids=["gz", "zst"])
def test_compressed_and_cut_at_every_byte(reading: Any, compress: Any) -> None:
    rows = [{"a": i, "s": str(i * i)} for i in range(20)]
    content = compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    for length in range(1, len(content)):
        source = JsonLines(reading.write("t.jsonl", content[:length]))
        got = reading.read(source, features=FEATURES)
        assert got.column("a") == list(range(len(got.rows)))
        assert got.rejects


def test_cut_at_every_byte(reading: Any) -> None:
    rows = [{"a": i, "s": f"ü{i}"} for i in range(8)]
    content = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    ends = {0, *(i + 1 for i, byte in enumerate(content) if byte == 10)}
    for length in range(1, len(content)):
        source = JsonLines(reading.write("t.jsonl", content[:length]))
        got = reading.read(source, features=FEATURES)
        whole = length in ends or length + 1 in ends
        assert got.column("a") == list(range(content[:length].count(b"\n") + (length + 1 in ends)))
        assert len(got.rejects) == (not whole)


@pytest.mark.slow
def test_any_damage_gives_rows_or_rejects(reading: Any) -> None:
    content = b'{"a": 1, "s": "x", "l": [{"k": [1.5]}], "o": {"p": null}}\n' * 4

    @given(st.data())
    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    def damaged(data: st.DataObject) -> None:
        broken = bytearray(content)
        for _ in range(data.draw(st.integers(1, 4))):
            place, value = (
                data.draw(st.integers(0, len(broken) - 1)),
                data.draw(st.integers(0, 255)),
            )
            # A first object on several lines says that all objects may be.
            assume(value != ord("\n") or b"\n" in broken[:place])
            broken[place] = value
        source = JsonLines(reading.write("t.jsonl", bytes(broken)))
        lines = [line for line in bytes(broken).split(b"\n") if line.strip(b" \t\r")]
        try:
            got = reading.read(source)
        except SchemaError:  # a key may be damaged into none
            got = reading.read(source, features=FEATURES)
        assert len(got.rows) + len(got.rejects) == len(lines)

    damaged()
