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
        (b"1.5 2\n3 4\n", "whitespace"),
        (b"x   y z\n 1  2 3\n10 20 3\n", "whitespace"),
        (b'"x" "n"\n"a b" 1\n"c" 2\n', "whitespace"),
        (b'"x" "n"\n"1" "a b" 1\n"2" "c" 2\n', "whitespace"),
        (b"full name\nItem 1\nItem 2\n", ","),
        (b"text\na 1\nb 2\n", ","),
        (b"a text of words\nand as many again\n", ","),
        (b"1 2\n3 4 5\n", ","),
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
        # held against the rows below
        (b"150,3,ant,bee,cow\n5.1,3.5,1.4,0,1\n4.9,3.0,1.2,0,2\n", True),  # scikit-learn's
        (b'"","1.5","1.7"\n"3.2",0,1\n"3.3",0,0\n', True),  # R's, of a table by numbers
        (b'"x","1.5"\n"y","1.7"\n', False),
        (b"?,3.5,x\n1,2.5,y\n", False),
        (b"p,x,s\ne,x,y\n", False),
        (b"cap,color\nx,red\ny,red\n", True),
        (b"2020-01-02,x\n2020-01-03,y\n", False),
        (b"day,2020-01-02\nx,1\n", True),
        (b"a,b\nx,y\na,b\n", True),  # repeated, as in files that were joined
    ],
)
def test_header(head: bytes, header: bool) -> None:
    assert sniff(head).header == header


@pytest.mark.parametrize(
    ("head", "quoted"),
    [
        (b'1\t"Yes, he said.\n2\tNo, "she" said.\n3\tSo?\n4\t"Ah."\n5\tx\n6\ty\n', False),
        (b'id\ttext\n1\t"a" b\n2\tc\n3\td\n', False),
        (b'id\ttext\n1\t"a\tb"\n2\t"c" d\n', True),  # quotes hold a tab together
        (b'id,text\n1,"5" disc"\n2,"6"\n3,"7"\n', True),  # one cell is wrong, not the form
        (b'id\ttext\n1\t6" pipe\n2\tb\n', True),  # means the same in both
        (b'id\ttext\n1\t"a\nb"\n2\tb\n', True),
        (b"id\ttext\n1\ta\n", True),
    ],
)
def test_quotes_that_are_text(head: bytes, quoted: bool) -> None:
    assert sniff(head).quoted == quoted
