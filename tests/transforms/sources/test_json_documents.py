"""JSON files that are lists, objects that span lines, or objects that hold a list of records."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshard.schemas.errors import SchemaError
from snapshard.transforms.sources.json import documents
from snapshard.transforms.sources.json.documents import find_cuts, find_form, find_records
from snapshard.transforms.sources.json.source import JsonLines

from .memory_files import PlainText

ROWS: list[Any] = [
    {
        "n": i,
        "s": ["a,]}", 'b"[{', "c\\", "\\\\d\n", "é"][i % 5],
        "at": {"x": -i},
        "ids": [1] * (i % 3),
    }
    for i in range(40)
]
COMPACT = json.dumps(ROWS, ensure_ascii=False).encode()
INDENTED = json.dumps(ROWS, indent=2).encode()
ONE_PER_LINE = b"[\n" + b",\n".join(json.dumps(row).encode() for row in ROWS) + b"\n]\n"
OBJECTS = b"\n".join(json.dumps(row, indent=1).encode() for row in ROWS)
INSIDE = json.dumps({"made": {"data": [0]}, "data": ROWS, "more": [[]]}, indent=1).encode()


@pytest.mark.parametrize(
    ("name", "content", "records"),
    [
        ("t.json", COMPACT, None),
        ("t.json", b"\xef\xbb\xbf\n " + INDENTED, None),
        ("t.json.gz", gzip.compress(INDENTED), None),
        ("t.json", ONE_PER_LINE, None),
        ("t.json", OBJECTS, None),
        ("t.json", INSIDE, "data"),
        ("t.json", b'{"a": ' + INSIDE + b"}", "a.data"),
        ("t.json", b'{"b": [], "a": {"b.data": ' + COMPACT + b"}}", "a.b.data"),
        ("t.json", INDENTED.decode().encode("utf-16"), None),
    ],
)
def test_each_object_is_a_record(
    reading: Any, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, records: str | None
) -> None:
    source = JsonLines(reading.write(name, content), label="s", records=records)
    whole = reading.read(source)
    assert not whole.rejects
    assert whole.column("n") == [row["n"] for row in ROWS]
    assert whole.column("at.x") == [row["at"]["x"] for row in ROWS]
    assert whole.column("ids") == [row["ids"] for row in ROWS]
    names = whole.features["s"].names
    assert [names[index] for index in whole.column("s")] == [row["s"] for row in ROWS]
    for window, every in ((64, 700), (7, 300)):
        monkeypatch.setattr(documents, "WINDOW_BYTES", window)
        again = reading.read(source, every=every)
        assert (again.features, again.rows, again.rejects) == (whole.features, whole.rows, [])


def test_ids_are_the_offsets_of_the_objects(reading: Any) -> None:
    got = reading.read(JsonLines(reading.write("t.json", INDENTED)))
    text = INDENTED.decode()
    for record_id, row in zip(got.rows, ROWS, strict=True):
        offset = int(record_id.rpartition("#")[2])
        assert json.JSONDecoder().raw_decode(text, offset)[0] == row


def test_an_object_per_file(reading: Any) -> None:
    for i in range(30):
        reading.write(f"d/{i:02}.json", json.dumps({"n": i, "l": [{"k": i}]}, indent=1).encode())
    got = reading.read(JsonLines(str(reading.folder / "d")))
    assert got.rows == {f"{i:02}.json#0": {"n": i, "l.k": [i]} for i in range(30)}


@pytest.mark.parametrize(
    ("content", "records", "kept", "rejects"),
    [
        (b'[{"n": 1}, {"n": 2]', None, [1], ["not JSON", "truncated"]),
        (b'[{"n": 1}, {"n": 2}', None, [1, 2], ["truncated"]),
        (b'[{"n": 1}, {"n": 2},', None, [1, 2], ["truncated"]),
        (b'[{"n": 1}, {"n": "2]', None, [1], ["not JSON", "truncated"]),
        (b'[{"n": 1},, 7, {"n": 2}]', None, [1, 2], ["not JSON", "not an object"]),
        (b'[\n{"n": 1}\n]\n[{"n": 2}]', None, [1], ["content after the end"]),
        (b'[\n{"n": 1}}, {"n": 2}]', None, [1], ["not JSON", "content after the end"]),
        (b'{\n"n": 1}\n}\n{"n": 2}', None, [1], ["not JSON", "content after the end"]),
        (b'{\n"n": 1}\n{"n": 2', None, [1], ["not JSON"]),
        (b'{"d": [{"n": 1}, {"n": 2}', "d", [1, 2], ["truncated"]),
        (b'[{"n": 1}, {"n": 1, "n": 2}]', None, [1], ["duplicate key"]),
        (b'[{"n": 1}, {"s": "\n"}]', None, [1], ["not JSON"]),
        # The first line of JSON Lines may be damaged, or a list.
        (b'[3]\n{"n": 1}\n', None, [1], ["not an object"]),
        (b'{"n": 0,\n{"n": 1}\n{"n": 2}\n', None, [1, 2], ["not JSON"]),
        (b'{\n{"n": 1}\n{"n": 2}\n', None, [1, 2], ["not JSON"]),
        (b'{"n":\n' + b"9" * 5000 + b'}\n{"n": 1}', None, [1], ["not JSON"] * 2),
    ],
)
def test_what_cannot_be_read_is_a_reject(
    reading: Any, content: bytes, records: str | None, kept: list[int], rejects: list[str]
) -> None:
    got = reading.read(JsonLines(reading.write("t.json", content), records=records))
    assert got.column("n") == kept
    assert [reject.reason for reject in got.rejects] == rejects


@pytest.mark.parametrize(
    ("content", "records", "message"),
    [
        (b'{"a": {"b": 1}, "c": 2}', "data", "nothing under records='data'. .* 'a', 'c'"),
        (b'{"a": {"b": 1}}', "a.c", "nothing under records='a.c'"),
        (b'{"a": {"b": 1}}', "a.b", "something other than a list under records='a.b'"),
        (b'[{"a": 1}]', "data", "is a list itself: leave out records='data'"),
        (b'{"\\x": 1, "data": [{"n": 1}]}', "data", "nothing under records='data'"),
        (b"[1, 2]", None, "holds no JSON object .*the value '1'"),
        (b"[]", None, "holds no JSON object"),
    ],
)
def test_files_without_records_are_refused(
    reading: Any, content: bytes, records: str | None, message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        reading.read(JsonLines(reading.write("t.json", content), records=records))


def test_a_file_of_another_form_is_one_reject(reading: Any) -> None:
    reading.write("d/a.json", b'{"data": [{"n": 1}]}')
    reading.write("d/b.json", b'{"error": "not found"}')
    got = reading.read(JsonLines(str(reading.folder / "d"), records="data"))
    assert got.column("n") == [1]
    assert "b.json" in got.rejects[0].message
    assert "'error'" in got.rejects[0].message


@pytest.mark.parametrize("separator", [b",", b"\n"], ids=["list", "objects"])
@pytest.mark.parametrize("window", [1, 7, 64, 1000])
@given(lengths=st.lists(st.sampled_from([0, 3, 30, 90]), min_size=2, max_size=7))
@settings(max_examples=25, deadline=None)
def test_a_record_that_is_too_long_costs_no_other(
    separator: bytes, window: int, lengths: list[int]
) -> None:
    """Whether it comes first or last, several in a row, wherever the windows of reading end."""
    records = [json.dumps({"n": i, "s": "x" * n}).encode() for i, n in enumerate(lengths)]
    form = documents.Form("list", start=1) if separator == b"," else documents.Form("objects")
    content = separator.join(records)
    text = PlainText(b"[" + content + b"]" if separator == b"," else content, max_row_bytes=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "WINDOW_BYTES", window)
        found = list(find_records(text, form.start, text.stop, form))
    kept = [rows.text(row) for rows in found if not rows.problem for row in range(len(rows))]
    num_bad = sum(bool(rows.problem) for rows in found)
    assert len(kept) + num_bad == len(records)
    # What ends within a window has been read, and is kept.
    assert [one for one in kept if len(one) <= 50] == [one for one in records if len(one) <= 50]


VALUES = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('a"\\[]{},\n é'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3), max_size=8),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
    st.integers(1, 40),
)
def test_any_list_is_found_in_pieces(
    rows: list[Any], indent: int | None, is_ascii: bool, window: int
) -> None:
    text = PlainText(json.dumps(rows, indent=indent, ensure_ascii=is_ascii).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "WINDOW_BYTES", window)
        form = find_form(text)
        cuts = find_cuts(text, form, every=window)
        parts = []
        for start, stop in zip((0, *cuts), (*cuts, text.stop), strict=True):
            windows = find_records(text, start, stop, form, is_cut=lambda s=stop: s < text.stop)
            parts += [rows.text(row) for rows in windows for row in range(len(rows))]
    assert [json.loads(part) for part in parts] == rows
