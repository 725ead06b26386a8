"""Text files: every record once, at its offset, whatever the blocks; damage is told."""

import gzip
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.blocks import Block, FileRange
from snapshard.schemas.errors import RecipeError, SchemaError
from snapshard.schemas.limits import Limits
from snapshard.transforms.sources import text as text_files
from snapshard.transforms.sources.text import TextFiles
from snapshard.transforms.storage.opened_source import open_source

_PIECES = st.lists(
    st.sampled_from(
        [b"one", b"two words", "smørrebrød".encode(), b"\n", b"\r\n", b" ", b"\t", b"\n\n"]
    ),
    max_size=30,
).map(b"".join)


def _expected(content: bytes, per: str) -> dict[int, bytes]:
    """Offset -> record, by a plain reading."""
    end = rb"\n" if per == "line" else rb"\n[ \t\r]*\n"
    found, start = {}, 0
    for match in [*re.finditer(end, content), None]:
        stop = match.start() if match else len(content)
        text = content[start:stop]
        if text.strip():
            lead = len(text) - len(text.lstrip(b"\r\n"))
            found[start + lead] = text.strip(b"\r\n")
        start = match.end() if match else stop
    return found


@settings(max_examples=150, deadline=None)
@given(content=_PIECES, per=st.sampled_from(["line", "paragraph"]), window=st.integers(1, 9))
def test_records_are_those_of_a_plain_reading(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, per: Any, window: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(content)
    source = TextFiles(str(path), per=per)
    opened = open_source(source.url, "")
    part = FileRange(path="a.txt", sha256="", start=0, stop=len(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_WINDOW_BYTES", window)
        found = {}
        for batch in source.read(
            Block((part,)), features={"text": ss.Text()}, opened=opened, ordered=[0]
        ):
            texts = batch.columns.column("text").to_pylist()
            found.update(zip(batch.ids, texts, strict=True))
    assert found == {f"a.txt#{k}": v for k, v in _expected(content, per).items()}


def test_a_file_is_one_record(reading: Any) -> None:
    reading.write("in/a.txt", b"\xef\xbb\xbfall of it\n\nhere\n")
    reading.write("in/b.md", b"")
    reading.write("in/c.bin", b"no text")
    got = reading.read(TextFiles(str(reading.folder / "in"), per="file"))
    assert got.rows == {"a.txt": {"text": b"all of it\n\nhere\n"}, "b.md": {"text": b""}}


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252", "shift_jis", "utf-8-sig"])
def test_encodings(reading: Any, encoding: str) -> None:
    lines = ["plain", "æøå"] if encoding != "shift_jis" else ["plain", "日本語"]
    path = reading.write("a.txt", "\n".join(lines).encode(encoding))
    got = reading.read(TextFiles(path, encoding=encoding))
    assert got.column("text") == [line.encode() for line in lines]


def test_compressed_text_keeps_its_good_prefix(reading: Any) -> None:
    lines = [b"line %d" % i for i in range(2000)]
    content = gzip.compress(b"\n".join(lines), mtime=0)
    assert reading.read(TextFiles(reading.write("a.txt.gz", content))).column("text") == lines
    for size in range(20, len(content), 97):
        got = reading.read(TextFiles(reading.write("a.txt.gz", content[:size])))
        found = got.column("text")
        assert found == lines[: len(found)]
        assert [reject.reason for reject in got.rejects] == ["damaged file"]


def test_a_small_compressed_file_cut_at_every_byte(reading: Any) -> None:
    lines = [b"one", b"two", "drei ☃".encode()]
    content = gzip.compress(b"\n".join(lines), mtime=0)
    # A single byte of it is a text of its own.
    for size in range(2, len(content)):
        got = reading.read(TextFiles(reading.write("a.txt.gz", content[:size])))
        assert got.column("text") == lines[: len(got.rows)]
        assert all(name.startswith("a.txt.gz") for name in got.rejected)
        assert got.rejects


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.binary(min_size=1, max_size=60), per=st.sampled_from(["line", "paragraph"]))
def test_any_bytes_are_records_or_rejects(reading: Any, content: bytes, per: Any) -> None:
    got = reading.read(TextFiles(reading.write("a.txt", content), per=per))
    for row in got.rows.values():
        assert row["text"] in content
        row["text"].decode()
    assert all(re.fullmatch(r"a\.txt(#\d+)?", name) for name in (*got.rows, *got.rejected))


def test_a_file_cut_at_every_byte(reading: Any) -> None:
    content = "ein Wort\nzwei Wörter\n\ndrei, und ☃\n".encode()
    for size in range(1, len(content)):
        got = reading.read(TextFiles(reading.write("a.txt", content[:size])))
        whole = content[:size].decode(errors="ignore").encode() == content[:size]
        assert len(got.rejects) == (not whole)
        kept = [line for line in content[:size].split(b"\n") if line.strip()]
        assert got.column("text") == (kept if whole else kept[:-1])


@pytest.mark.parametrize(
    "bad",
    [b"\xff", b"\xc3", b"\xc3(", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"ok \x80 here",
     b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\xaf", b"\xfe\xfe\xff\xff", b"a\xffb\xffc",
     b"\xf4\x90\x80\x80", b"caf\xe9", b"\xbf", b"x\xc2"],
)  # fmt: skip
def test_what_is_no_text_is_a_reject_and_loses_nothing_else(reading: Any, bad: bytes) -> None:
    path = reading.write("a.txt", b"first\n" + bad + b"\nlast\n")
    got = reading.read(TextFiles(path))
    assert got.column("text") == [b"first", b"last"]
    (reject,) = got.rejects
    assert (reject.record_id, reject.position, reject.payload) == ("a.txt#6", 6, bad)
    assert "a.txt byte 6" in reject.message


def test_a_line_that_is_too_long(reading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "_WINDOW_BYTES", 100)
    path = reading.write("a.txt", b"first\n" + b"x" * 5000 + b"\nlast\n")
    got = reading.read(TextFiles(path), limits=Limits(max_row_bytes=1000))
    assert got.column("text") == [b"first", b"last"]
    assert list(got.rejected) == ["a.txt#6"]


def test_what_does_not_fit() -> None:
    with pytest.raises(RecipeError, match="encoding"):
        TextFiles("a.txt", encoding="klingon")
    with pytest.raises(RecipeError, match="per"):
        TextFiles("a.txt", per="word")  # type: ignore[arg-type]
    part = FileRange(path="a.txt", sha256="", start=0, stop=0)
    with pytest.raises(SchemaError, match="Text"):
        list(
            TextFiles("a.txt").read(
                Block((part,)),
                features={"other": ss.Text()},
                opened=open_source("/", ""),
                ordered=[0],
            )
        )
