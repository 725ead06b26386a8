"""The CSV source: rows and their offsets, types, rejects, cuts."""

import csv
import io
import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snapshard.schemas.blocks import Block, FileRange, RawBatch
from snapshard.schemas.errors import RecipeError, SchemaError
from snapshard.schemas.features import ClassLabel, Features, Image, Scalar, Tensor
from snapshard.transforms.rejects import INEXACT, OUT_OF_RANGE
from snapshard.transforms.sources.csv import source as csv_source
from snapshard.transforms.sources.csv.cells import MAX_BATCH_ROWS
from snapshard.transforms.sources.csv.rows import Form, Table, cut_offsets, find_rows
from snapshard.transforms.sources.csv.source import Csv
from snapshard.transforms.storage.opened_source import open_source

from .memory_files import Memory, PlainText, joined

FORM = Form(delimiter=",")


def in_memory(**files: bytes) -> Memory:
    """Files ``a.csv`` … by names ``a_csv`` …."""
    return Memory({name.replace("_csv", ".csv"): data for name, data in files.items()})


def read_all(
    source: Csv, opened: Memory, features: Features, *, cuts: tuple[int, ...] = ()
) -> RawBatch:
    """Reads all files; the first one in ranges that end at ``cuts``."""
    batches: list[RawBatch] = []
    for file in opened.files():
        bounds = [0, *cuts, file.num_bytes] if file.path == "a.csv" else [0, file.num_bytes]
        for start, stop in itertools.pairwise(bounds):
            part = FileRange(path=file.path, sha256="", start=start, stop=stop)
            read = source.read(Block((part,)), features=features, opened=opened, ordered=[0])
            batches.extend(read)
    return joined(batches, features)


def infer(source: Csv, opened: Memory) -> dict[str, object]:
    return dict(source.infer(opened.files(), opened))


def rows_of(
    data: bytes, *, max_row_bytes: int | None = None, **kwargs: object
) -> list[tuple[int, bytes, str]]:
    text = PlainText(data, max_row_bytes=max_row_bytes)
    found = find_rows(text, 0, len(data), FORM, **kwargs)
    return [
        (rows.offset + int(start), rows.text(i), rows.problem)
        for rows in found
        for i, start in enumerate(rows.starts)
    ]


# Rows


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n\r\n\r\n", []),
        (b"a,b\n1,2\n", [(0, b"a,b"), (4, b"1,2")]),
        (b"a\r\nb\rc", [(0, b"a"), (3, b"b"), (5, b"c")]),
        (b'"x\ny",1\n\n2,3\n', [(0, b'"x\ny",1'), (9, b"2,3")]),
        (b'"say ""hi\n""",1\n2,3', [(0, b'"say ""hi\n""",1'), (16, b"2,3")]),
        (b'6" pipe,1\n7" pipe,"a\nb"\n', [(0, b'6" pipe,1'), (10, b'7" pipe,"a\nb"')]),
        (b'"a"b"c,1\n2,3\n', [(0, b'"a"b"c,1'), (9, b"2,3")]),
    ],
    ids=["empty", "blank", "plain", "line ends", "quoted", "doubled", "inches", "after a quote"],
)
def test_rows(data: bytes, expected: list[tuple[int, bytes]]) -> None:
    assert rows_of(data) == [(*row, "") for row in expected]


def test_a_quote_that_never_closes_costs_one_line() -> None:
    data = b'a,b\n1,"x\n2,y\n3,z\n'
    assert rows_of(data) == [
        (0, b"a,b", ""),
        (4, b'1,"x', "quote not closed"),
        (9, b"2,y", ""),
        (13, b"3,z", ""),
    ]


def test_bad_rows_do_not_depend_on_the_window() -> None:
    data = b'a\n"' + b"x" * 30 + b'\ny"\nb\n' + b"z" * 50 + b"\r\nc\n"
    expected = rows_of(data, max_row_bytes=20)
    assert [problem for _, _, problem in expected] == [
        "",
        "quote not closed",
        "",
        "",
        "row too long",
        "",
    ]
    for window_bytes in range(1, 60):
        assert rows_of(data, window_bytes=window_bytes, max_row_bytes=20) == [
            (offset, text, problem) for offset, text, problem in expected
        ]


@given(
    st.lists(st.sampled_from([b"a", b",", b'"', b"\n", b"\r", b"\xff", b"1"]), max_size=40),
    st.integers(1, 12),
)
def test_any_bytes_give_the_same_rows_in_any_window(parts: list[bytes], window: int) -> None:
    data = b"".join(parts)
    assert rows_of(data, window_bytes=window) == rows_of(data)


@given(st.lists(st.sampled_from([b"a", b",", b'"', b"\n", b"\r", b"\xff", b"1"]), max_size=40))
def test_any_bytes_are_read_without_an_error_and_no_row_is_lost(parts: list[bytes]) -> None:
    data = b"a,b\n" + b"".join(parts)
    read = read_all(
        Csv("a.csv"), in_memory(a_csv=data), {"a": Scalar("string"), "b": Scalar("bool")}
    )
    found = [*read.ids, *(reject.record_id for reject in read.rejects)]
    assert sorted(found) == sorted(f"a.csv#{offset}" for offset, _, _ in rows_of(data)[1:])


# What Python's csv module writes reads back

CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
TRICKY = st.sampled_from(["", " ", '"', '""', ",", "\n", "\r\n", "\r", 'a"b', "NA?", "é", "1,5\n"])
TABLES = st.lists(st.tuples(CELLS | TRICKY, st.integers(-(2**63), 2**63 - 1) | st.none(), TRICKY))


@st.composite
def written_tables(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, int | None, str]], list[int]]:
    """A table as written by Python, its rows, and where each begins."""
    table = draw(TABLES)
    mark = draw(st.sampled_from(["", "\ufeff"]))
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]))
    if quoting == csv.QUOTE_MINIMAL:
        end = "\r\n"  # before 3.13, Python quotes a line break only if it is of this kind
    blank = draw(st.booleans())
    data, offsets = b"", []
    for row in [("text", "number", "other"), *table]:
        out = io.StringIO(newline="")
        csv.writer(out, quoting=quoting, lineterminator=end).writerow(row)
        offsets.append(len(data))
        data += (mark + out.getvalue() + (end if blank else "")).encode()
        mark = ""
    return data, table, offsets[1:]


NO_NULLS = ("",)
WRITTEN = {
    "text": Scalar("string", optional=True),
    "number": Scalar("int64", optional=True),
    "other": Scalar("string", optional=True),
}


@given(written_tables())
def test_what_python_writes_reads_back_with_its_offsets(
    written: tuple[bytes, list[tuple[str, int | None, str]], list[int]],
) -> None:
    data, table, offsets = written
    read = read_all(Csv("a.csv", null_values=NO_NULLS), in_memory(a_csv=data), WRITTEN)
    assert read.rejects == ()
    assert read.ids == [f"a.csv#{offset}" for offset in offsets]
    assert read.columns.to_pydict() == {
        "number": [row[1] for row in table],
        "other": [row[2].encode() or None for row in table],
        "text": [row[0].encode() or None for row in table],
    }


@given(written_tables(), st.data())
def test_a_file_cut_anywhere_gives_the_same_rows(
    written: tuple[bytes, list[tuple[str, int | None, str]], list[int]], data: st.DataObject
) -> None:
    content, _, offsets = written
    source, opened = Csv("a.csv", null_values=NO_NULLS), in_memory(a_csv=content)
    cuts = cut_offsets(PlainText(content), 0, FORM, every=1)
    assert cuts == offsets
    if not cuts:
        return
    chosen = tuple(sorted(data.draw(st.sets(st.sampled_from(cuts)))))
    whole = read_all(source, opened, WRITTEN)
    parts = read_all(source, opened, WRITTEN, cuts=chosen)
    assert parts.ids == whole.ids
    assert parts.columns.equals(whole.columns)


def test_large_files_are_cut_outside_of_quotes() -> None:
    rows = [b'%d,"%s\n%s"\n' % (i, b"x" * (i % 30), b"y" * (i % 7)) for i in range(60)]
    data = b"n,text\n" + b"".join(rows)
    opened = in_memory(a_csv=data)
    cuts = Csv("a.csv").cuts(opened.files()[0], opened, every=100)
    starts = set(np.cumsum([7, *map(len, rows)]).tolist())
    assert len(cuts) > 3
    assert set(cuts) <= starts
    assert all(b - a >= 100 for a, b in itertools.pairwise(cuts))
    features = infer(Csv("a.csv"), opened)
    assert read_all(Csv("a.csv"), opened, features, cuts=cuts).columns.num_rows == 60


def test_small_files_are_not_cut() -> None:
    opened = in_memory(a_csv=b"a\n" + b"1\n" * 1000)
    assert Csv("a.csv").cuts(opened.files()[0], opened, every=1400) == ()


# Cells


def cell(text: bytes, feature: Scalar | ClassLabel, **settings: object) -> object:
    """The value of a cell, or why it is rejected."""
    opened = in_memory(a_csv=b'a,b\n"' + text + b'",1\n')
    read = read_all(Csv("a.csv", **settings), opened, {"a": feature})
    if read.rejects:
        return read.rejects[0].reason
    return read.columns.column("a")[0].as_py()


@pytest.mark.parametrize(
    ("text", "dtype", "expected"),
    [
        (b"12", "int64", 12),
        (b" -7 ", "int64", -7),
        (b"0x1F", "int64", 31),
        (b"0xFFFFFFFFFFFFFFFF", "int64", "out of range"),
        (b" 0X80", "int8", "out of range"),
        (b"9223372036854775807", "int64", 2**63 - 1),
        (b"9223372036854775808", "int64", "out of range"),
        (b"1.0", "int64", "wrong type"),
        (b"+1", "int64", "wrong type"),
        (b"1e3", "int64", "wrong type"),
        (b"", "int64", "missing value"),
        (b"255", "uint8", 255),
        (b"256", "uint8", "out of range"),
        (b"-1", "uint32", "out of range"),
        (b"1.5", "float32", 1.5),
        (b" 1e-3 ", "float32", float(np.float32(1e-3))),
        (b"inf", "float32", float("inf")),
        (b"-Infinity", "float32", float("-inf")),
        (b"1e39", "float32", "out of range"),
        (b"-4e38", "float32", "out of range"),
        (b"NaN", "float32", "missing value"),
        (b"1,5", "float32", "wrong type"),
        (b"true", "bool", 1),
        (b"False", "bool", 0),
        (b"1", "bool", 1),
        (b"ja", "bool", "wrong type"),
        (b" x ", "string", b" x "),
        (b"NA", "string", "missing value"),
        (b"\xc3\xa9", "string", "é".encode()),
        (b"\xe9", "string", "not UTF-8"),
    ],
)
def test_cells(text: bytes, dtype: str, expected: object) -> None:
    assert cell(text, Scalar(dtype)) == expected


@given(
    st.text(st.sampled_from("0123456789+-.eExXabcdefinftyNA() \t_,TRUElsou\xe9"), max_size=8),
    st.sampled_from(["int64", "uint8", "float32", "bool", "string"]),
)
@example("+0", "float32")
@example("1E100", "int64")
@example("-0", "uint8")
@example("300", "uint8")
@example("1E100", "float32")
def test_a_cell_is_parsed_alone_as_among_others(text: str, dtype: str) -> None:
    """What spares the parser never decides: each cell is rejected only if the parser says so."""
    source, data = Csv("a.csv", null_values=("",)), f'a,b\n"{text}",1\nno,1\n1,1\n'.encode()
    read = read_all(source, in_memory(a_csv=data), {"a": Scalar(dtype, optional=True)})
    table = Table(path="a.csv", header=("a", "b"), delimiter=",", null_values=("",))
    (rows,) = find_rows(PlainText(data), 4, len(data) - 9, FORM)
    kind = {"float32": pa.float32(), "bool": pa.bool_(), "string": pa.large_string()}
    try:
        table.parse(rows, types={0: kind.get(dtype) or getattr(pa, dtype)()})
    except pa.ArrowInvalid:
        fits = False
    else:
        fits = True
    # Numbers that the parser accepts are checked later; integers out of range it refuses.
    late = () if "int" in dtype else (OUT_OF_RANGE,)
    rejected = {reject.position for reject in read.rejects if reject.reason not in (INEXACT, *late)}
    assert (4 not in rejected) == fits


def test_nan_is_a_number_where_it_does_not_mean_missing() -> None:
    assert np.isnan(cell(b"nan", Scalar("float32"), null_values=("",)))


def test_classes() -> None:
    classes = ClassLabel(("ant", "bee"))
    assert cell(b"bee", classes) == 1
    assert cell(b"cat", classes) == "unknown class"
    assert cell(b"", classes) == "missing value"
    assert cell(b"\xff", classes) == "not UTF-8"
    assert cell(b"7", ClassLabel(("3", "7"))) == 1


def test_a_missing_value_in_an_optional_column_is_null() -> None:
    assert cell(b"NA", Scalar("float32", optional=True)) is None


def test_a_reject_says_where_what_expected_found_and_how_to_fix() -> None:
    opened = in_memory(a_csv=b"name,age\nann,31\nbob,n.a.\n")
    read = read_all(Csv("a.csv"), opened, {"age": Scalar("int64")})
    (reject,) = read.rejects
    assert reject.record_id == "a.csv#16"
    assert (reject.stage, reject.source, reject.position) == ("read", "a.csv", 16)
    assert reject.payload == b"bob,n.a."
    assert reject.message == (
        "a.csv byte 16: column 'age' is 'n.a.', expected int64. Fix the cell, list 'n.a.' in "
        "null_values if it means a missing value, declare types={'age': 'string'}, or raise "
        "max_rejects to quarantine such rows."
    )
    assert read.columns.to_pydict() == {"age": [31]}


def test_a_decimal_number_among_integers_suggests_float32() -> None:
    read = read_all(Csv("a.csv"), in_memory(a_csv=b"a\n1.0\n"), {"a": Scalar("int64")})
    assert "types={'a': 'float32'}" in read.rejects[0].message


def test_every_bad_row_is_found_and_every_good_one_is_kept() -> None:
    rng = np.random.default_rng(0)
    lines, good, bad = [b"a,b,c"], [], []
    offset = 6
    for i in range(20_000):
        kind = rng.integers(0, 200)
        line = [b"%d,x%d,1.5" % (i, i), b"%d,y" % i, b"q%d,x,1" % (i % 50), b"1,\xff,z"]
        lines.append(line[kind] if kind < 4 else line[0])
        (bad if 0 < kind < 4 else good).append(offset)
        offset += len(lines[-1]) + 1
    opened = in_memory(a_csv=b"\n".join(lines) + b"\n")
    features = {"a": Scalar("int64"), "b": Scalar("string"), "c": Scalar("float32")}
    read = read_all(Csv("a.csv"), opened, features)
    assert read.ids == [f"a.csv#{offset}" for offset in good]
    assert [reject.position for reject in read.rejects] == bad
    assert len({reject.reason for reject in read.rejects}) == 3


def test_batches_are_bounded() -> None:
    opened = in_memory(a_csv=b"a\n" + b"1\n" * 200_000)
    part = FileRange(path="a.csv", sha256="", start=0, stop=400_002)
    read = Csv("a.csv").read(
        Block((part,)), features={"a": Scalar("int64")}, opened=opened, ordered=[0]
    )
    sizes = [len(batch.ids) for batch in read]
    assert sum(sizes) == 200_000
    assert max(sizes) == MAX_BATCH_ROWS


# Files


def test_extra_columns_are_not_stored_and_their_cells_are_not_looked_at() -> None:
    opened = in_memory(a_csv=b"a,,a,b\n1,\xff,x,2\n")
    read = read_all(Csv("a.csv"), opened, {"b": Scalar("int64")})
    assert read.columns.to_pydict() == {"b": [2]}
    read = read_all(Csv("a.csv"), opened, {"a": Scalar("int64"), "a_2": Scalar("string")})
    assert read.columns.to_pydict() == {"a": [1], "a_2": [b"x"]}


def test_a_declared_column_must_be_there() -> None:
    with pytest.raises(SchemaError, match=r"a\.csv has no columns named 'x'.*'a', 'b'"):
        read_all(Csv("a.csv"), in_memory(a_csv=b"a,b\n1,2\n"), {"x": Scalar("int64")})


@pytest.mark.parametrize("feature", [Image(), Tensor("float32", (2,))])
def test_a_cell_holds_a_scalar_or_a_class(feature: Image | Tensor) -> None:
    with pytest.raises(SchemaError, match=r"Scalar, ClassLabel"):
        read_all(Csv("a.csv"), in_memory(a_csv=b"a\n1\n"), {"a": feature})


def test_files_may_order_their_columns_differently() -> None:
    opened = in_memory(a_csv=b"a,b\n1,x\n", b_csv=b"b,a\ny,2\n")
    features = infer(Csv("folder"), opened)
    read = read_all(Csv("folder"), opened, features)
    assert read.columns.to_pydict() == {"a": [1, 2], "b": [b"x", b"y"]}
    assert read.ids == ["a.csv#4", "b.csv#4"]


def test_files_with_other_columns_are_refused() -> None:
    opened = in_memory(a_csv=b"a,b\n1,x\n", b_csv=b"a,c\n1,2\n")
    with pytest.raises(SchemaError, match=r"b\.csv has different columns.*lacks 'b'.*'c'"):
        infer(Csv("folder"), opened)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a.csv has no readable line .*expected a header"),
        (b"\n\n", "a.csv has no readable line .*expected a header"),
        (b"a,b\n", "no complete row"),
        (b"a,b\n1\n", "names 2 columns, and its first row has 1 cells"),
        (b",,\n1,x,3\n", "names 0 of 3 columns"),
        (b"Sales 2020,,\nname,town,sold\nann,Rome,3\n", "names 1 of 3 columns: 'Sales 2020'"),
        (bytes(100), "begins with zero bytes"),
        (b"caf\xe9,b\n1,2\n", r"not UTF-8 \(byte 3: '\\xe9,b'\)"),
        (b'"a,b\n1,2\n', "quote not closed"),
    ],
)
def test_headers_that_cannot_be_used(data: bytes, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        infer(Csv("a.csv"), in_memory(a_csv=data))


def test_a_byte_order_mark_is_no_part_of_the_first_name() -> None:
    opened = in_memory(a_csv=b"\xef\xbb\xbfa,b\n1,2\n")
    assert list(infer(Csv("a.csv"), opened)) == ["a", "b"]
    assert read_all(Csv("a.csv"), opened, {"a": Scalar("int64")}).ids == ["a.csv#7"]


# Types


def test_types_are_told_from_the_data() -> None:
    data = (
        b"int,float,mixed,flag,digit,day,text,none,gap\n"
        b"1,1.5,1,true,0,2020-01-01,x,,1\n"
        b"-2,2,2.5,FALSE,1,2020-01-02,y,NA,\n"
    )
    assert infer(Csv("a.csv"), in_memory(a_csv=data)) == {
        "int": Scalar("int64"),
        "float": Scalar("float32"),
        "mixed": Scalar("float32"),
        "flag": Scalar("bool"),
        "digit": Scalar("int64"),
        "day": Scalar("string"),
        "text": Scalar("string"),
        "none": Scalar("string", optional=True),
        "gap": Scalar("int64", optional=True),
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"ant", b"cow", b"bee", b"ant"], ClassLabel(("ant", "bee", "cow"))),
        ([b"True", b"False", b"True"], ClassLabel(("False", "True"))),
        ([b"3", b"1", b"2"], Scalar("int64")),
        ([b"3.5", b"1", b"2"], Scalar("float32")),
        ([b"ant", b"", b"bee"], ClassLabel(("ant", "bee"))),
        ([b"name%d" % i for i in range(1001)], Scalar("string")),
    ],
    ids=["strings", "bools", "integers", "floats", "missing", "too many"],
)
def test_labels(values: list[bytes], expected: object) -> None:
    data = b"x,y\n" + b"".join(b"1,%s\n" % value for value in values)
    assert infer(Csv("a.csv", label="y"), in_memory(a_csv=data))["y"] == expected


def test_types_overrule() -> None:
    types = {"a": "float32", "b": "string", "c": Scalar("int64", optional=True, default=-1)}
    source = Csv("a.csv", label="b", types=types)
    found = infer(source, in_memory(a_csv=b"a,b,c\n1,2,3\n,1,4\n"))
    assert found == {
        "a": Scalar("float32", optional=True),
        "b": ClassLabel(("1", "2")),
        "c": Scalar("int64", optional=True, default=-1),
    }


@pytest.mark.parametrize("window_bytes", [5, 8, 16, 64, 1000])
def test_types_do_not_depend_on_windows(window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(*args: object, **kwargs: object) -> object:
        return find_rows(*args, **{**kwargs, "window_bytes": window_bytes})

    monkeypatch.setattr(csv_source, "find_rows", small)
    data = b"a,b,c,d,e\n" + b"1,1,true,,1\n" * 5 + b"2,1.5,0,x,\n" * 3 + b"2,nan,true,2,3\n"
    assert infer(Csv("a.csv"), in_memory(a_csv=data)) == {
        "a": Scalar("int64"),
        "b": Scalar("float32", optional=True),
        "c": Scalar("string"),
        "d": Scalar("string", optional=True),
        "e": Scalar("int64", optional=True),
    }


def test_large_data_is_sampled_but_for_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_source, "INFER_ALL_BYTES", 100)
    monkeypatch.setattr(csv_source, "cut_spacing", lambda _: 1 << 20)
    monkeypatch.setattr(csv_source, "MAX_SAMPLES", 3)
    rows = b"".join(b"%d,common\n" % i for i in range(800_000))
    opened = in_memory(a_csv=b"n,y\n" + rows + b"7,rare\n")
    assert infer(Csv("a.csv", label="y"), opened) == {
        "n": Scalar("int64"),
        "y": ClassLabel(("common", "rare")),
    }


# The recipe's side


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delimiter": ";;"}, "delimiter=';;'"),
        ({"delimiter": '"'}, "delimiter="),
        ({"types": {"a": "double"}}, "'a' is 'double', expected one of bool"),
        ({"types": {"a": Image()}}, "types: 'a'"),
        ({"sep": ";"}, "sep"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Csv("a.csv", **settings)


def test_one_column_only_asks_for_the_delimiter() -> None:
    with pytest.raises(RecipeError, match=r"Is delimiter=',' right"):
        infer(Csv("a.csv", label="b"), in_memory(a_csv=b"a;b\n1;2\n"))
    found = infer(Csv("a.csv", label="b", delimiter=";"), in_memory(a_csv=b"a;b\n1;x\n"))
    assert found["b"] == ClassLabel(("x",))


def test_data_files_are_selected(tmp_path: Path) -> None:
    for name in (
        "a.csv",
        "b.CSV",
        "c.txt",
        "_g.tsv.gz",
        ".hidden.csv",
        "sub/d.csv",
        ".git/e.csv",
        "notes",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a\n1\n")

    def select(url: str) -> tuple[list[str], dict[str, int]]:
        opened = open_source(str(tmp_path / url), str(tmp_path))
        found = Csv(url).select(opened.list())
        return [file.path for file in found.files], dict(found.num_skipped)

    assert select("") == (
        ["_g.tsv.gz", "a.csv", "b.CSV", "sub/d.csv"],
        {"hidden file": 2, "not a .csv or .tsv file": 2},
    )
    assert select("notes") == (["notes"], {})
    assert select(".hidden.csv") == ([".hidden.csv"], {})
    assert select("*.txt") == (["c.txt"], {})
    assert select("**/*.csv")[0] == ["a.csv", "sub/d.csv"]


def test_penguins(examples: Path) -> None:
    path = examples / "data" / "penguins.csv"
    opened = open_source(str(path), ".")
    source = Csv(str(path), label="species")
    files = source.select(opened.list()).files
    features = source.infer(files, opened)
    assert features == {
        "species": ClassLabel(("Adelie", "Chinstrap", "Gentoo")),
        "island": Scalar("string"),
        "bill_length_mm": Scalar("float32", optional=True),
        "bill_depth_mm": Scalar("float32", optional=True),
        "flipper_length_mm": Scalar("int64", optional=True),
        "body_mass_g": Scalar("int64", optional=True),
        "sex": Scalar("string", optional=True),
    }
    part = FileRange(path="penguins.csv", sha256="", start=0, stop=files[0].num_bytes)
    (batch,) = source.read(Block((part,)), features=features, opened=opened, ordered=[0])
    with path.open(newline="") as file:
        expected = list(csv.DictReader(file))
    assert batch.columns.num_rows == len(expected) == 344
    masses = batch.columns.column("body_mass_g").to_pylist()
    assert masses == [int(row["body_mass_g"]) if row["body_mass_g"] else None for row in expected]


@pytest.mark.full_data
@pytest.mark.parametrize(
    ("name", "label", "num_rows"), [("titanic", "class", 891), ("chicago_taxi", None, 15002)]
)
def test_full_tables_read_without_rejects(
    full_data: Path, name: str, label: str | None, num_rows: int
) -> None:
    path = full_data / "tabular" / f"{name}.csv"
    opened = open_source(str(path), ".")
    source = Csv(str(path), label=label)
    (file,) = opened.list()
    features = source.infer([file], opened)
    part = FileRange(path=file.path, sha256="", start=0, stop=file.num_bytes)
    batches = list(source.read(Block((part,)), features=features, opened=opened, ordered=[0]))
    assert [reject for batch in batches for reject in batch.rejects] == []
    assert sum(batch.columns.num_rows for batch in batches) == num_rows
    content = path.read_bytes()
    for batch in batches:
        offsets = [int(name.rpartition("#")[2]) for name in batch.ids]
        assert all(content[offset - 1 : offset] == b"\n" for offset in offsets)
