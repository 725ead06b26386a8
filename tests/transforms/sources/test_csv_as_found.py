"""CSV files as programs write them: nameless columns, blanks, leading zeros, quotes as text."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.blocks import Block, FileRange, RawBatch
from snapshard.schemas.errors import RecipeError, SchemaError
from snapshard.schemas.features import Scalar
from snapshard.transforms.sources.csv import source as csv_source
from snapshard.transforms.sources.csv.source import Csv

from .memory_files import Memory, joined


def infer(contents: dict[str, bytes], source: Csv | None = None) -> dict[str, str]:
    """The dtype of each column."""
    opened = Memory(contents)
    features = (source or Csv("folder")).infer(opened.files(), opened)
    return {name: getattr(feature, "dtype", "class") for name, feature in features.items()}


def remarks(contents: dict[str, bytes]) -> list[str]:
    opened = Memory(contents)
    return Csv("folder").remarks(opened.files(), opened)


def read(source: Csv, data: bytes, **features: str) -> RawBatch:
    wanted = {name: Scalar(dtype) for name, dtype in features.items()}
    part = FileRange(path="a.csv", sha256="", start=0, stop=len(data))
    opened = Memory({"a.csv": data})
    return joined(
        list(source.read(Block((part,)), features=wanted, opened=opened, ordered=[0])), wanted
    )


def windowed(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> Iterator[int]:
    """Reads files in windows of each of these sizes, in turn."""
    find_rows = csv_source.find_rows
    for size in sizes:
        in_windows = functools.partial(find_rows, window_bytes=size)
        monkeypatch.setattr(csv_source, "find_rows", in_windows)
        yield size


def counted(numbers: range, *, name: str = "", end: bytes = b"\n") -> bytes:
    rows = b"".join(b"%d,x%d%s" % (number, number, end) for number in numbers)
    return f"{name},text".encode() + end + rows


@pytest.mark.parametrize(
    "files",
    [
        [counted(range(40))],
        [counted(range(1, 40), end=b"\r\n")],
        [b'"","text"\n"1","a"\n"2","b"\n'],
        [counted(range(30)), counted(range(30)), counted(range(1, 9))],
        [counted(range(30)), counted(range(30, 70))],
        [counted(range(9)), b",text\n", counted(range(9, 12))],
        [b",text\n0,a\n1,a,b\n1,b\n"],  # its ragged row is a reject
        [b"text,\nx,0\ny,1\n"],
        [b"text,\nx,\ny,\n"],
    ],
)
def test_a_nameless_column_that_counts_the_rows_or_is_empty_is_left_out(files: list[bytes]) -> None:
    contents = {f"{number}.csv": data for number, data in enumerate(files)}
    assert infer(contents) == {"text": "string"}
    (remark,) = remarks(contents)
    assert remark.startswith("0.csv, column ")
    assert "without a name is left out: it " in remark


@pytest.mark.parametrize(
    ("files", "dtype"),
    [
        ([b",text\nann,x\nbob,y\n"], "string"),
        ([counted(range(5, 20))], "int64"),
        ([b",text\n1,x\n2,y\n4,z\n"], "int64"),
        ([b",text\n1,x\n2,y\n1,z\n2,z\n"], "int64"),  # a panel of two
        ([b",text\n0,x\n,y\n2,z\n"], "int64"),
        ([b",text\n0.0,x\n1.0,y\n"], "float32"),
        ([counted(range(30)), counted(range(31, 40))], "int64"),
        ([counted(range(30)), counted(range(2, 40))], "int64"),
    ],
)
def test_a_nameless_column_that_says_something_is_kept(files: list[bytes], dtype: str) -> None:
    contents = {f"{number}.csv": data for number, data in enumerate(files)}
    assert infer(contents) == {"column_0": dtype, "text": "string"}
    assert remarks(contents) == ["0.csv, column 1: a column without a name is read as 'column_0'."]


def test_whether_a_column_counts_does_not_depend_on_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jump = counted(range(50)).replace(b"\n31,", b"\n32,")
    for _ in windowed(monkeypatch, 1, 7, 40, 1 << 20):
        assert infer({"a.csv": counted(range(50))}) == {"text": "string"}
        assert infer({"a.csv": jump}) == {"column_0": "int64", "text": "string"}


def test_a_sample_does_not_show_that_a_column_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_source, "INFER_ALL_BYTES", 100)
    assert infer({"a.csv": counted(range(50))}) == {"column_0": "int64", "text": "string"}


def test_a_declared_column_is_not_left_out() -> None:
    source = Csv("folder", types={"column_0": "int32"})
    assert infer({"a.csv": counted(range(9))}, source) == {"column_0": "int32", "text": "string"}
    assert read(source, b",text\n0,x\n", column_0="int64").columns.to_pydict() == {"column_0": [0]}


@pytest.mark.parametrize("data", [b",\n1,\n2,\n", b'""\n"1"\n"2"\n'])
def test_a_header_that_names_nothing_is_refused(data: bytes) -> None:
    with pytest.raises(SchemaError, match=r"its first row names 0 of \d columns: none"):
        infer({"a.csv": data})


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        # R's write.table
        (b'"x" "y"\n"1" 5.1 a\n"2" 4 b\n', {"x": "float32", "y": "string"}),
        (
            b'"x" "y"\n"ann" 5.1 a\n"bob" 4 b\n',
            {"column_0": "string", "x": "float32", "y": "string"},
        ),
        # Each row, or the header alone, ends with a delimiter.
        (b"x y\n1 2 \n3 4 \n", {"x": "int64", "y": "int64"}),
        (b"x y \n1 2 \n3 4 \n", {"x": "int64", "y": "int64"}),
        (b"x y  \n1 2\n3 4\n", {"x": "int64", "y": "int64"}),
        (b"x  y\n1 2 3\n", {"x": "int64", "column_1": "int64", "y": "int64"}),
        (b"x x x_2\n1 2 3\n", {"x": "int64", "x_3": "int64", "x_2": "int64"}),
    ],
)
def test_headers_that_name_not_each_column(data: bytes, columns: dict[str, str]) -> None:
    for delimiter in (" ", "\t"):
        text = data.replace(b" ", delimiter.encode())
        assert infer({"a.csv": text}, Csv("folder", delimiter=delimiter)) == columns


@pytest.mark.parametrize(
    "data",
    [
        b"name,price\nann,1,5\nbob,2,5\n",  # decimal commas
        b"x,y\n1,2,3\n4,5,6\n",
        b'x,y\n"a",2,3\n"a",5,6\n',
    ],
)
def test_a_cell_too_many_is_no_row_name_without_evidence(data: bytes) -> None:
    with pytest.raises(SchemaError, match="names 2 columns, and its first row has 3 cells"):
        infer({"a.csv": data})


def test_a_doubled_name_is_read_but_not_declared() -> None:
    data = b"x,x,y\n1,a,2\n"
    assert infer({"a.csv": data}) == {"x": "int64", "x_2": "string", "y": "int64"}
    (remark,) = remarks({"a.csv": data})
    assert "named 'x'. Those after the first are read as 'x_2'" in remark
    with pytest.raises(SchemaError, match="'x' more than once, so label= or types= could mean any"):
        infer({"a.csv": data}, Csv("folder", label="x"))


def test_ranges_of_a_file_have_the_same_columns() -> None:
    data = b'"x"\t"y"\n' + b"".join(b'"r%d"\t%d\t%d\n' % (i, i, 2 * i) for i in range(300))
    source = Csv("folder", delimiter="\t")
    features = source.infer(Memory({"a.csv": data}).files(), Memory({"a.csv": data}))
    assert list(features) == ["column_0", "x", "y"]
    (file,) = Memory({"a.csv": data}).files()
    cuts = [0, data.index(b'"r150"'), data.index(b'"r200"'), len(data)]
    parts = tuple(
        FileRange(path="a.csv", sha256="", start=start, stop=stop)
        for start, stop in itertools.pairwise(cuts)
    )
    batches = source.read(
        Block(parts), features=features, opened=Memory({"a.csv": data}), ordered=[0, 1, 2]
    )
    assert joined(list(batches), features).columns["y"].to_pylist() == [2 * i for i in range(300)]
    head = data[: source.head_bytes(file, Memory({"a.csv": data}))]
    assert head.endswith(b'"r99"\t99\t198')  # as far as names depend on the rows


@pytest.mark.parametrize(
    ("cells", "dtype"),
    [
        (["02134", "10001"], "string"),
        (["1", "  007 "], "string"),
        (["1", "0x10"], "string"),
        (["-1", " 0Xff"], "string"),
        (['"007"', "1"], "string"),
        (["-01", "1"], "string"),
        (["038.9", "250"], "string"),  # codes of diagnoses
        (["", "00"], "string"),
        (["0", "10", "100"], "int64"),
        (["0.5", "-0.25", "1e05", "100.00"], "float32"),
        (["1", "2020-01-05"], "string"),
    ],
)
def test_numbers_with_leading_zeros_are_strings(cells: list[str], dtype: str) -> None:
    rows = [f'{cell},a"02' for cell in cells]
    for end in ("\n", "\r\n"):
        assert infer({"a.csv": end.join(["x,y", *rows, ""]).encode()})["x"] == dtype
        assert infer({"a.csv": end.join(["y,x", *rows]).encode()})["y"] == dtype


def test_leading_zeros_are_found_in_any_window(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"x,y\n" + b"".join(b"%d,z\n" % i for i in range(99)) + b"0%d,z\n" % 5
    for size in windowed(monkeypatch, 1, 9, 1 << 20):
        assert infer({"a.csv": data}) == {"x": "string", "y": "string"}, size


BLANKS = st.sampled_from([" ", "  ", "\t", " \t "])
BLANK_CELLS = st.one_of(
    st.text("ab1.-é,", min_size=1, max_size=4), st.just('"a  b"'), st.just('"\n x"'), st.just('""')
)


@given(
    st.lists(st.tuples(BLANK_CELLS, BLANKS, BLANK_CELLS, BLANKS, st.sampled_from(["", " "]))),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_blank_separated_cells_and_their_offsets(
    rows: list[tuple[str, str, str, str, str]], end: str
) -> None:
    lines = [f"{before}{a}{between}{b}{after}{end}" for a, between, b, before, after in rows]
    data = "".join([f"a\tb{end}", *lines, f" \t{end}"]).encode()
    found = read(Csv("a.csv", delimiter="whitespace", null_values=()), data, a="string", b="string")
    assert not found.rejects
    plain = [(a.strip('"').encode(), b.strip('"').encode()) for a, _, b, _, _ in rows]
    assert list(zip(*(found.columns[name].to_pylist() for name in "ab"), strict=True)) == plain
    starts = itertools.accumulate((len(line.encode()) for line in lines), initial=3 + len(end))
    assert found.ids == [f"a.csv#{start}" for _, start in zip(rows, starts, strict=False)]


@pytest.mark.parametrize("row", [b"1", b"1 2 3", b'"1 2'])
def test_a_blank_separated_row_of_other_length_is_a_reject(row: bytes) -> None:
    data = b"a b\n" + row + b"\n4   5\n"
    found = read(Csv("a.csv", delimiter="whitespace"), data, a="int64", b="int64")
    assert found.columns["b"].to_pylist() == [5]
    (reject,) = found.rejects
    assert reject.record_id == "a.csv#4"


def test_aligned_columns_are_inferred() -> None:
    data = b"     x    name\n   1.5  'a'\n 10.25   NA\n"
    source = Csv("folder", delimiter="whitespace")
    assert infer({"a.csv": data}, source) == {"x": "float32", "name": "string"}
    with pytest.raises(RecipeError, match="or 'whitespace'"):
        Csv("folder", delimiter="blanks")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'1\t"a"b', "text after a closing quote"),
        (b'"1"2\ta', "text after a closing quote"),
        (b'1\t"a""b" c', "text after a closing quote"),
        (b'1\t"a\n2\tb"', "quoted cell over complete lines"),
        (b'1\t"a\n2\tb\n\n3\t"', "quoted cell over complete lines"),
        (b'1\t"a\n2\tb "c" d', "text after a closing quote"),
        (b'1\t"a"', ""),
        (b'1\t"a" ', ""),
        (b'1\ta "b" c', ""),
        (b'1\t"a\nb"', ""),
        (b'1\t"a\n\tb\tc"', ""),
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_quotes_that_cannot_be_meant_are_rejects(row: bytes, reason: str, end: bytes) -> None:
    data = (b"n\ttext\n0\tx\n" + row + b'\n9\t"y"\n').replace(b"\n", end)
    source = Csv("a.csv", delimiter="\t")
    found = read(source, data, n="int64", text="string")
    assert [reject.reason for reject in found.rejects] == ([reason] if reason else [])
    numbers = found.columns["n"].to_pylist()
    assert numbers == ([0, 9] if reason else [0, 1, 9])
    if reason:
        assert "quote=None" in found.rejects[0].message
        assert infer({"a.csv": data}, source) == {"n": "int64", "text": "string"}


def test_between_commas_lines_are_complete_if_numbers_agree() -> None:
    numbered = b'n,text\n1,"a\n2,b"\n'
    (reject,) = read(Csv("a.csv"), numbered, n="int64", text="string").rejects
    assert "one row of 2 lines that each look complete" in reject.message
    texts = b'n,text\n1,"Dear Ann,\nyes, no"\n'  # two lines with a comma each
    assert not read(Csv("a.csv"), texts, n="int64", text="string").rejects


def test_quotes_as_text() -> None:
    lines = [f'{i}\t"{i} said, "no".' if i % 3 else f'{i}\t"a' for i in range(100)]
    data = "\n".join(["n\ttext", *lines]).encode()
    source = Csv("a.csv", delimiter="\t", quote=None)
    found = read(source, data, n="int64", text="string")
    assert found.columns["text"].to_pylist() == [line.partition("\t")[2].encode() for line in lines]
    assert infer({"a.csv": data}, source) == {"n": "int64", "text": "string"}
    assert source.settings() == Csv("b", delimiter="\t").settings() | {"quote": None}
    plain = read(Csv("a.csv", delimiter="\t"), data, n="int64", text="string")
    assert sum(reject.reason.startswith(("text", "quoted")) for reject in plain.rejects) > 0
    assert len(plain.ids) < 100


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_titles_are_skipped(end: str) -> None:
    data = end.join(["Sales, 2020", "", "x,y", "1,a", "2,b", ""]).encode()
    source = Csv("a.csv", skip=2)
    assert infer({"a.csv": data}, source) == {"x": "int64", "y": "string"}
    found = read(source, data, x="int64")
    assert found.columns["x"].to_pylist() == [1, 2]
    assert found.ids[0] == f"a.csv#{data.index(b'1,a')}"
    bare = Csv("a.csv", skip=3, header=False)
    assert infer({"a.csv": data}, bare) == {"column_0": "int64", "column_1": "string"}
    assert read(bare, data, column_0="int64").columns["column_0"].to_pylist() == [1, 2]
    with pytest.raises(SchemaError, match="no readable line"):
        infer({"a.csv": data}, Csv("a.csv", skip=9))


def test_comments_are_no_rows() -> None:
    data = b'# a, "b\n#\nx,y\n1,a\n# 2,b\n3,"c\n# d"\n#,"open\n4,d\n'
    source = Csv("a.csv", comment="#")
    assert infer({"a.csv": data}, source) == {"x": "int64", "y": "string"}
    found = read(source, data, x="int64", y="string")
    assert found.columns["x"].to_pylist() == [1, 3, 4]
    assert found.columns["y"].to_pylist() == [b"a", b"c\n# d", b"d"]
    assert not found.rejects
    assert found.ids[-1] == f"a.csv#{data.index(b'4,d')}"


@pytest.mark.parametrize("settings", [{"skip": -1}, {"comment": "##"}, {"comment": "a"}])
def test_settings_of_lines_that_cannot_be_meant(settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(settings))):
        Csv("a.csv", **settings)


def test_decimal_commas() -> None:
    data = b"x;n;s\n1,5;1;a,b\n-0,25;2;c\n16777217;3;d\n1.5;4;e\n"
    source = Csv("a.csv", delimiter=";", decimal=",")
    good = data.replace(b"1.5;4;e\n", b"")
    assert infer({"a.csv": good}, source) == {"x": "float64", "n": "int64", "s": "string"}
    found = read(source, data, x="float32", s="string")
    assert found.columns["x"].to_pylist() == [1.5, -0.25]
    assert [reject.reason for reject in found.rejects] == ["inexact integer", "wrong type"]
    assert source.settings() == Csv("b", delimiter=";").settings() | {"decimal": ","}
    with pytest.raises(RecipeError, match="is the delimiter, too"):
        Csv("a.csv", delimiter=",", decimal=",")
