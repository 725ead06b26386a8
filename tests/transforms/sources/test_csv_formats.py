"""CSV in its many forms: delimiters, encodings, compression, no header, every dtype; damaged."""

import bz2
import gzip
import itertools
import lzma
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.blocks import Block, FileRange, RawBatch, SourceFile
from snapshard.schemas.errors import RecipeError, SchemaError, SnapshardError
from snapshard.schemas.features import ClassLabel, Features, Scalar, Text, Timestamp
from snapshard.transforms.sources import text_stream
from snapshard.transforms.sources.csv import source as csv_source
from snapshard.transforms.sources.csv.source import Csv

from .memory_files import Memory, joined

CODECS: dict[str, Callable[[bytes], bytes]] = {
    "csv": bytes,
    "csv.gz": lambda data: gzip.compress(data, mtime=0),
    "csv.zst": zstandard.compress,
    "csv.bz2": bz2.compress,
    "csv.xz": lzma.compress,
}


def read(source: Csv, contents: dict[str, bytes], features: Features) -> RawBatch:
    """Reads all files, each as one block."""
    batches: list[RawBatch] = []
    for path, data in contents.items():
        part = FileRange(path=path, sha256="", start=0, stop=len(data))
        opened = Memory(contents)
        batches += source.read(Block((part,)), features=features, opened=opened, ordered=[0])
    return joined(batches, features)


def infer(source: Csv, contents: dict[str, bytes]) -> dict[str, Any]:
    opened = Memory(contents)
    return dict(source.infer(opened.files(), opened))


# Forms


@pytest.mark.parametrize("suffix", CODECS)
def test_compressed_files_read_as_plain_ones_do(suffix: str) -> None:
    text = b"a,b\n" + b"".join(b'%d,"x\n%d"\n' % (i, i) for i in range(5000))
    plain = {"t.csv": text}
    features = infer(Csv("t.csv"), plain)
    packed = {f"t.{suffix}": CODECS[suffix](text)}
    assert infer(Csv("t"), packed) == features
    expected = read(Csv("t"), plain, features)
    found = read(Csv("t"), packed, features)
    assert found.columns.equals(expected.columns)
    assert [name.partition("#")[2] for name in found.ids] == [
        name.partition("#")[2] for name in expected.ids
    ]
    assert found.rejects == ()


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("latin-1", "é,b\nñ,1\nü,2\n"),
        ("cp1252", "é,b\n€,1\n”,2\n"),
        ("utf-16", "é,b\n日本,1\n𝄞,2\n"),
        ("utf-16-le", "é,b\n日本,1\n𝄞,2\n"),
        ("utf-32", "é,b\n日本,1\n𝄞,2\n"),
        ("shift_jis", "あ,b\n表,1\nソ|,2\n"),
        ("gb18030", "é,b\n日本,1\n𝄞,2\n"),
        ("cp037", "a,b\nx,1\ny,2\n"),
        ("utf-8-sig", "é,b\n日本,1\n𝄞,2\n"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_encodings(encoding: str, text: str, suffix: str) -> None:
    contents = {f"t.{suffix}": CODECS[suffix](text.encode(encoding))}
    source = Csv("t", encoding=encoding)
    first = text[0]
    features = infer(source, contents)
    assert features == {first: Scalar("string"), "b": Scalar("int64")}
    found = read(source, contents, features)
    lines = text.splitlines()[1:]
    assert found.columns.column(first).to_pylist() == [line[:-2].encode() for line in lines]
    assert found.columns.column("b").to_pylist() == [1, 2]
    # Offsets count the text as UTF-8, but for a mark that is part of it.
    offset = len(text.splitlines(keepends=True)[0].encode()) + 3 * (encoding == "utf-8-sig")
    assert found.ids[0] == f"t.{suffix}#{offset}"


def test_a_mark_tells_wide_text_without_a_setting() -> None:
    contents = {"t.csv": "a,b\né,1\n".encode("utf-16"), "u.csv": b"a,b\nx,2\n"}
    assert read(Csv("t"), contents, {"b": Scalar("int64")}).columns["b"].to_pylist() == [1, 2]


@pytest.mark.parametrize(("encoding", "bad"), [("shift_jis", b"\x82"), ("ascii", b"\xe9")])
def test_a_cell_that_cannot_be_decoded_is_a_reject(encoding: str, bad: bytes) -> None:
    contents = {"t.csv": b"a,b\nx,1\n" + bad + b",2\ny,3\n"}
    features = {"a": Scalar("string"), "b": Scalar("int64")}
    found = read(Csv("t", encoding=encoding), contents, features)
    assert found.columns["b"].to_pylist() == [1, 3]
    (reject,) = found.rejects
    assert reject.reason == f"not {encoding.upper()}"
    shown = "".join(f"\\\\x{byte:02x}" for byte in bad)
    assert f"column 'a' is '{shown}" in reject.message
    assert "t.csv decoded byte 8" in reject.message
    # A column that is not read does not matter.
    only = read(Csv("t", encoding=encoding), contents, {"b": Scalar("int64")})
    assert only.columns["b"].to_pylist() == [1, 2, 3]


def test_tsv_needs_no_setting() -> None:
    contents = {"t.tsv": b"a\tb\n1\tx,y\n", "u.csv": b"b,a\nz,2\n", "v.tsv.gz": b""}
    contents["v.tsv.gz"] = gzip.compress(b"a\tb\n3\tw\n")
    features = infer(Csv("folder"), contents)
    assert features == {"a": Scalar("int64"), "b": Scalar("string")}
    assert read(Csv("folder"), contents, features).columns.to_pydict() == {
        "a": [1, 2, 3],
        "b": [b"x,y", b"z", b"w"],
    }
    listed = [*Memory(contents).files(), SourceFile(path="x.gz", num_bytes=1, stamp="")]
    chosen = Csv("folder").select(listed)
    assert [file.path for file in chosen.files] == list(contents)


def test_no_header() -> None:
    contents = {"t.csv": b"\xef\xbb\xbf1,x\n2,y\n", "u.csv": b"3,z\n"}
    features = infer(Csv("t", header=False), contents)
    assert features == {"column_0": Scalar("int64"), "column_1": Scalar("string")}
    found = read(Csv("t", header=False), contents, features)
    assert found.columns["column_0"].to_pylist() == [1, 2, 3]
    assert found.ids == ["t.csv#3", "t.csv#7", "u.csv#0"]
    named = Csv("t", columns=("n", "text"), label="text")
    assert infer(named, contents) == {"n": Scalar("int64"), "text": ClassLabel(("x", "y", "z"))}
    assert read(named, contents, {"n": Scalar("int64")}).columns["n"].to_pylist() == [1, 2, 3]
    with pytest.raises(
        SchemaError, match=r"u\.csv has different columns from t\.csv: it lacks 'column_1'"
    ):
        infer(Csv("t", header=False), {"t.csv": b"1,x\n", "u.csv": b"3\n"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoding": "utf-9"}, "encoding='utf-9' is unknown to Python"),
        ({"encoding": "base64"}, "encoding='base64'"),
        ({"encoding": "unicode_escape2"}, "encoding="),
        ({"columns": ("a", "a")}, "columns="),
        ({"columns": ("a", " ")}, "columns="),
        ({"header": "no way"}, "header"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Csv("t", **settings)


def test_names_of_an_encoding_mean_the_same() -> None:
    assert Csv("t", encoding="latin1").settings() == Csv("t", encoding="iso-8859-1").settings()


def test_large_compressed_files_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapshard.transforms.sources.csv.source.INFER_ALL_BYTES", 10)
    monkeypatch.setattr(csv_source, "cut_spacing", lambda _: 10)
    contents = {"t.csv": gzip.compress(b"a\n" + b"1\n" * 1000), "u.csv": b"a\n" + b"1\n" * 1000}
    opened = Memory(contents)
    assert infer(Csv("t"), contents) == {"a": Scalar("int64")}
    cuts = [Csv("t").cuts(file, opened, every=10) for file in opened.files()]
    assert (cuts[0], len(cuts[1])) == ((), 199)


@given(st.integers(1, 40), st.lists(st.integers(0, 30), max_size=12))
def test_a_stream_reads_at_any_place(piece_bytes: int, steps: list[int]) -> None:
    text = "".join(f"{i},é\n" for i in range(40))
    opened = Memory({"t": text.encode("utf-16")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_stream, "_PIECE_BYTES", piece_bytes)
        size = len(opened.contents["t"])
        found = text_stream.open_text(opened, "t", num_bytes=size, encoding="utf-16")
        for start, length in itertools.pairwise(steps):
            expected = text.encode()[start * 7 : start * 7 + length]
            assert found.read(start * 7, start * 7 + length) == expected


def test_a_mark_inside_the_text_belongs_to_its_cell() -> None:
    contents = {"t.csv": "a,b\n\ufeffx,1\n".encode() + b"\xef,2\n"}
    found = read(Csv("t"), contents, {"a": Scalar("string"), "b": Scalar("int64")})
    assert found.columns.to_pydict() == {"a": ["\ufeffx".encode()], "b": [1]}
    assert [reject.reason for reject in found.rejects] == ["not UTF-8"]


# Values


@pytest.mark.parametrize(
    ("feature", "cell", "expected"),
    [
        (Scalar("uint64"), b"18446744073709551615", -1),
        (Scalar("uint64"), b"18446744073709551616", "out of range"),
        (Scalar("uint64"), b"-1", "out of range"),
        (Scalar("float64"), b"1234567890.123", np.float64(1234567890.123).tobytes()),
        (Scalar("float64", optional=True), b"", None),
        (Scalar("float64"), b"1e309", "out of range"),
        (Scalar("float64"), b"-inf", np.float64("-inf").tobytes()),
        (Scalar("float16"), b"0.1", float(np.float16(0.1))),
        (Scalar("float16"), b"65520", "inexact integer"),
        (Scalar("float16"), b"65520.0", "out of range"),
        (Scalar("bfloat16"), b"1.1", 1.1015625),
        (Scalar("bfloat16"), b"1e39", "out of range"),
        (Text(), " é ".encode(), " é ".encode()),
        (Text(), b"\xe9", "not UTF-8"),
        (Text(), b"", "missing value"),
        (ClassLabel(("a", "b"), optional=True), b"", None),
        (Timestamp("s"), b"1970-01-02", 86400),
        (Timestamp("s"), b" 1970-01-01T00:00:01Z ", 1),
        (Timestamp("s"), b"1970-01-01 01:00:00.000+01:00", 0),
        (Timestamp("s"), b"1970-01-01T00:00:00.5", "finer than s"),
        (Timestamp("ms"), b"1970-01-01T00:00:00.5", 500),
        (Timestamp("ns"), b"2200-01-01", 7258118400 * 10**9),
        (Timestamp("ns"), b"2300-01-01", "wrong type"),
        (Timestamp(), b"2023-02-29", "wrong type"),
        (Timestamp(), b"2024-02-29T23:59", 1709251140 * 10**6),
        (Timestamp(), b"29/02/2024", "wrong type"),
        (Timestamp(), b"2024-02-29T24:00", "wrong type"),
        (Timestamp(optional=True), b"NA", None),
        (Timestamp(), b"", "missing value"),
    ],
)
def test_cells(feature: Any, cell: bytes, expected: object) -> None:
    contents = {"t.csv": b'a,b\n"' + cell + b'",1\n'}
    found = read(Csv("t"), contents, {"a": feature})
    if found.rejects:
        assert found.rejects[0].reason == expected
        return
    assert found.columns["a"][0].as_py() == pytest.approx(expected, nan_ok=True)


@given(st.datetimes(), st.sampled_from(["s", "us"]), st.sampled_from(["", "Z", "+05:30", "-0100"]))
def test_times_are_what_python_makes_of_them(when: Any, unit: str, zone: str) -> None:
    when = when.replace(microsecond=0) if unit == "s" else when
    cell = when.isoformat() + zone
    aware = when.fromisoformat(cell if zone else f"{cell}+00:00")
    epoch = when.fromisoformat("1970-01-01T00:00:00+00:00")
    micros = (aware - epoch) // (aware - aware).resolution
    found = read(Csv("t"), {"t.csv": f"a\n{cell}\n".encode()}, {"a": Timestamp(unit)})
    assert found.columns["a"].to_pylist() == [micros // (10**6 if unit == "s" else 1)]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([b"39.1", b"123456.78", b"1e-3", b"1e30"], "float32"),
        ([b"0.5", b"1234567890.5"], "float64"),
        ([b"41.892042136"], "float64"),
        ([b"0.1000000014901161193847656"], "float32"),
        ([b"1.5", b"16777217"], "float64"),
        ([b"1.5", b"16777216"], "float32"),
        ([b"16777217"], "int64"),
        ([b"9223372036854775808"], "string"),
        ([b"1", b"18446744073709551616"], "string"),
        ([b"1e20", b"1"], "float32"),
        ([b"inf", b"1"], "float32"),
    ],
)
def test_decimal_numbers_are_as_wide_as_they_need(cells: list[bytes], expected: str) -> None:
    contents = {"t.csv": b"a\n" + b"".join(cell + b"\n" for cell in cells)}
    assert infer(Csv("t"), contents) == {"a": Scalar(expected)}


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_every_float32_that_is_written_stays_one(values: list[float]) -> None:
    cells = "".join(f"{np.float32(value)!s}\n{value!r}\n1.5\n" for value in values)
    assert infer(Csv("t"), {"t.csv": b"a\n" + cells.encode()}) == {"a": Scalar("float32")}


# Damage

FEATURES = {"n": Scalar("int64"), "text": Scalar("string"), "x": Scalar("float32", optional=True)}
GOOD = b'n,text,x\n1,one,1.5\n2,"two\nlines",\n3,"th""ree",3\n4,four,4\n'
MALFORMED = {
    "nothing": b"",
    "blank lines": b"\n\r\n\r",
    "zero bytes": bytes(5000),
    "a mark alone": b"\xef\xbb\xbf",
    "half a wide mark": b"\xff\xfe\x00",
    "a header alone": b"n,text,x\n",
    "a header without an end": b"n,text,x",
    "an empty name": b"n,,x\n1,a,2\n",
    "a name twice": b"n,text,text\n1,a,2\n",
    "another header": b"n,txt,x\n1,a,2\n",
    "a short row": b"n,text,x\n1,a\n2,b,3\n",
    "a long row": b"n,text,x\n1,a,2,3\n2,b,3\n",
    "no number": b"n,text,x\none,a,2\n2,b,3\n",
    "a long number": b"n,text,x\n99999999999999999999,a,2\n2,b,3\n",
    "no value": b"n,text,x\n,a,2\n2,b,3\n",
    "an open quote": b'n,text,x\n1,"a,2\n2,b,3\n',
    "an open quote at the end": b'n,text,x\n2,b,3\n1,"',
    "a quote after a quote": b'n,text,x\n1,"a"b,2\n2,b,3\n',
    "zero bytes in a cell": b"n,text,x\n1,a\x00b,2\n2,b,3\n",
    "zero bytes at the end": b"n,text,x\n2,b,3\n" + bytes(100),
    "not UTF-8": b"n,text,x\n1,\xff,2\n2,b,3\n",
    "a header that is not UTF-8": b"n,\xff,x\n1,a,2\n",
    "a lone surrogate": b"n,text,x\n1,\xed\xa0\x80,2\n2,b,3\n",
    "an open quote in the header": b'n,"text,x\n1,a,2\n',
    "another delimiter": b"n;text;x\n1;a;2\n2;b;3\n",
    "a picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)),
    "a line of an archive": b"PK\x03\x04" + bytes(30),
    "GZIP and nothing more": b"\x1f\x8b\x08",
    "GZIP of a picture": gzip.compress(b"\x89PNG\r\n\x1a\n"),
    "GZIP twice": gzip.compress(gzip.compress(GOOD)),
    "GZIP with a wrong sum": gzip.compress(GOOD)[:-8] + bytes(8),
    "GZIP and something else": gzip.compress(GOOD) + b"n,text,x",
}

HARMLESS = {
    "a header alone",
    "a header without an end",
    "zero bytes in a cell",
}


def refusal(call: Callable[[], object]) -> SnapshardError | None:
    """The error on purpose that a call raises."""
    try:
        call()
    except SnapshardError as error:
        return error
    return None


def check(data: bytes, source: Csv | None = None) -> RawBatch | SnapshardError:
    """Infers and reads without another error than those on purpose, which name the file."""
    source = source or Csv("t.csv")
    error = refusal(lambda: infer(source, {"t.csv": data}))
    assert error is None or (error.exit_code in (2, 3) and "t.csv" in str(error)), error
    held: list[RawBatch] = []
    error = refusal(lambda: held.append(read(source, {"t.csv": data}, FEATURES)))
    if error is not None:
        assert error.exit_code in (2, 3)
        assert "t.csv" in str(error)
        return error
    (found,) = held
    for reject in found.rejects:
        assert reject.source == "t.csv"
        assert reject.message.startswith("t.csv")
        assert reject.record_id.partition("#")[2] == (
            "" if reject.position is None else str(reject.position)
        )
    ids = [*found.ids, *(reject.record_id for reject in found.rejects)]
    assert len(set(ids)) == len(ids)
    return found


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_give_rejects_or_a_clear_error(name: str) -> None:
    data = MALFORMED[name]
    found = check(data)
    if isinstance(found, RawBatch):
        assert len(found.rejects) == (name not in HARMLESS)
        if b"2,b,3\n" in data:
            assert 2 in found.columns["n"].to_pylist()


def rows_of(found: RawBatch | SnapshardError) -> list[Any]:
    assert isinstance(found, RawBatch), found
    return found.columns.to_pylist()


@pytest.mark.parametrize("suffix", CODECS)
def test_a_file_cut_at_any_byte_keeps_its_whole_rows(suffix: str) -> None:
    data, whole = CODECS[suffix](GOOD), rows_of(check(GOOD))
    assert len(whole) == 4
    sizes = []
    for length in range(len(data)):
        found = check(data[:length])
        if isinstance(found, SnapshardError):
            assert length < 10, found
            continue
        kept = rows_of(found)
        rows = [row for row in kept if row in whole]
        assert rows == whole[: len(rows)]
        sizes.append(len(rows))
        if suffix != "csv" and length:
            # A row that is cut short is never taken for a whole one.
            assert len(rows) == len(kept)
            assert len(found.rejects) == 1
            assert "the compressed file" in found.rejects[0].message or length < 10
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "shift_jis"])
def test_encoded_text_cut_at_any_byte_keeps_its_whole_rows(encoding: str) -> None:
    data, source = GOOD.decode().encode(encoding), Csv("t.csv", encoding=encoding)
    whole = rows_of(check(data, source))
    assert len(whole) == 4
    for length in range(len(data)):
        found = check(data[:length], source)
        if isinstance(found, RawBatch):
            rows = [row for row in rows_of(found) if row in whole]
            assert rows == whole[: len(rows)]


def test_damage_says_where_and_keeps_what_is_before() -> None:
    text = b"n,text,x\n" + b"".join(b"%d,t%d,1\n" % (i, i * i % 99991) for i in range(20_000))
    data = CODECS["csv.gz"](text)
    found = check(data[: len(data) // 2])
    assert isinstance(found, RawBatch)
    (reject,) = found.rejects
    numbers = found.columns["n"].to_pylist()
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 8_000
    lines = text.split(b"\n")
    done = len(b"\n".join(lines[: 1 + len(numbers)])) + 1
    assert (reject.record_id, reject.reason) == (f"t.csv#{done}", "damaged compression")
    assert reject.message.startswith(
        f"t.csv: gzip data ends too early at byte {len(data) // 2:,} of the compressed file. The "
        f"rows before byte {done:,} of its text are kept"
    )


PARTS = [
    b"n",
    b"text",
    b"x",
    b",",
    b'"',
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b"1",
    b".",
    b"-",
    b" ",
    b"\t",
]


@pytest.mark.slow
@given(st.lists(st.sampled_from(PARTS), max_size=30).map(b"".join) | st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    check(data)
    check(b"n,text,x\n" + data)
    check(b"n,text,x\n1,a,2\n" + data, Csv("t.csv", encoding="shift_jis"))
    check(data, Csv("t.csv", encoding="utf-16", columns=("n", "text", "x")))
    check(data, Csv("t.csv", header=False))


@pytest.mark.slow
@given(st.sampled_from(sorted(CODECS)), st.data())
def test_any_damage_to_a_compressed_file(suffix: str, data: st.DataObject) -> None:
    packed = bytearray(CODECS[suffix](GOOD))
    for place in data.draw(st.lists(st.integers(0, len(packed) - 1), min_size=1, max_size=3)):
        packed[place] = data.draw(st.integers(0, 255))
    check(bytes(packed))
