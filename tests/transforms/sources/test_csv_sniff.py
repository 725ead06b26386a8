"""How a CSV file seems to be written."""

import pytest

from snapshard.transforms.sources.csv.dialect import sniff


@pytest.mark.parametrize(
    ("head", "delimiter"),
    [
        (b"a,b\n", ","),
        (b'"a,b";c\n', ";"),
        (b"\xef\xbb\xbf\na|b\n", "|"),
        (b"a\tb,c\td", "\t"),
        (b"only\n1,2,3\n", ","),
        (b"", ","),
    ],
)
def test_delimiter(head: bytes, delimiter: str) -> None:
    assert sniff(head).delimiter == delimiter


def test_a_single_column_has_the_default_delimiter() -> None:
    assert sniff(b"only\n", default="\t").delimiter == "\t"


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ("é,b\n".encode(), "utf-8"),
        ("a\né".encode()[:-1], "utf-8"),  # cut in the middle of a character
        ("é,€\n".encode("cp1252"), "cp1252"),
        (b"\xe9\x81\n", "latin-1"),
    ],
)
def test_encoding(head: bytes, encoding: str) -> None:
    assert sniff(head).encoding == encoding


@pytest.mark.parametrize(
    ("head", "header"),
    [
        (b"name,age\n", True),
        (b"ann,31\n", False),
        (b"5.1,3.5,setosa\n", False),
        (b"0,0,12,0\n", False),
        (b"0,1,2,3\n", True),
        (b",0,1\n", True),
        (b"country,2019,2020,2023\n", True),
        (b"-1,-1\n", False),
        (b"x1,x2\n", True),
        (b"", True),
    ],
)
def test_header(head: bytes, header: bool) -> None:
    assert sniff(head).header == header
