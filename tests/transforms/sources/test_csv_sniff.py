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
        (b"A11 6 A34 x\nA12 48 A32 y\n" * 6, "whitespace"),
        (b"".join(b"Part %d of it\n" % n for n in range(20)), ","),
        (b"".join(b"%dth word said %d\n" % (n, n) for n in range(20)), ","),
        (
            b'18.0   8   307.0  1\t"chevrolet malibu"\n9.5    4   90.0   2\t"vw 1131"\n',
            "whitespace",
        ),
        (b'1.5  x\t"a b"\n2    y\t"c"\n', "\t"),
        (b"10  20\t1\n30  40\t2\n", "whitespace"),
        (b"1.5\t2.5\t\t1\n2.5\t\t3.5\t2\n4.5\t5.5\t6\n1\t2\t3\n", "whitespace"),
        (b"a\tb\tc\n1\t\t3\n4\t5\n", "\t"),
        (b"10 20\t1\n30 40\t2\n", "\t"),
        (b"id\tpair\n1\t10  20\n2\t30  40\n", "\t"),
        (b"0;50,34;8,08\n1;50,73;8,11\n", ";"),
        (b"50,20;8,66\n51,3;9,1\n", ";"),
        (b"Zeit, s;Weg, m\n0,1;2,5\n0,2;3,5\n", ";"),
        (b"0,0\t8,47\t8,12\n0,1\t8,4\t8,1\n", "\t"),
        (b"0,0 8,47 8,12\n0,1 8,4 8,1\n", "whitespace"),
        (b"1,2,3\n4,5,6\n", ","),
        (b"2024-01-01 10:00,5\n2024-01-02 11:30,6\n", ","),
        (b"1;2,x;3\n4;5,y;6\n", ";"),
        (b"sep=|\r\na;b|c\r\n1;2|3\r\n", "|"),
        (b"sep=x;y\n1;2\n", ";"),
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
        (
            "Jos\u00e9,M\u00e1laga\nK\u00f6ln,5 \u20ac \u2013 \u201cx\u201d\n".encode("cp1252"),
            "cp1252",
        ),
        ("l\u2019\u00e9t\u00e9,20 \u00b0C\n".encode("cp1252"), "cp1252"),
        ("a,\u00e9\n".encode("utf-16-le"), "utf-16-le"),
        ("a,\u00e9\n".encode("utf-16-be"), "utf-16-be"),
    ],
)
def test_encoding(head: bytes, encoding: str) -> None:
    sniffed = sniff(head)
    assert sniffed.encoding == encoding
    assert len(sniffed.readings) == 1


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        (
            "cp1251",
            "\u0438\u043c\u044f,\u0433\u043e\u0440\u043e\u0434\n\u0410\u043d\u043d\u0430,\u041c\u043e\u0441\u043a\u0432\u0430\n",
        ),
        ("cp932", "\u540d\u524d,\u90fd\u5e02\n\u592a\u90ce,\u6771\u4eac\n"),
        ("gb18030", "\u59d3\u540d,\u57ce\u5e02\n\u5f20\u4f1f,\u5317\u4eac\n"),
        ("euc_kr", "\uc774\ub984,\ub3c4\uc2dc\n\ucca0\uc218,\uc11c\uc6b8\n"),
        ("cp1250", "imi\u0119,miasto\n\u0141ukasz,\u0141\xf3d\u017a\nPawe\u0142,Krak\xf3w\n"),
        ("cp1254", "isim,\u015fehir\nAy\u015fe,\u0130stanbul\nI\u015f\u0131k,Eski\u015fehir\n"),
        ("cp1253", "\u03cc\u03bd\u03bf\u03bc\u03b1,\u03c0\u03cc\u03bb\u03b7\n"),
    ],
)
def test_other_encodings_are_for_a_person_to_choose(encoding: str, text: str) -> None:
    found = {reading.encoding: reading.sample for reading in sniff(text.encode(encoding)).readings}
    assert len(found) > 1
    assert found[encoding] in text.replace("\n", " ")


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
        # values that are like all others of their column
        (b"Go.\tVa !\nHi.\tSalut !\nRun!\tCours !\nWho?\tQui ?\n", False),
        (b"question,is it?\nWho?,yes\nWhat?,no\nWhy?,yes\nHow?,no\n", True),
        (b"a1.jpg,x\na2.jpg,y\na3.jpg,z\nb4.jpg,v\n", False),
        (b',"a","http...x.html"\n"1","b","x.html"\n"2","c","y.html"\n"3","d","z.html"\n', True),
        (b"img_001,a\nimg_002,b\nimg_003,c\nimg_004,d\n", False),
        (b"user_id,a\nuser_1,b\nuser_2,c\nuser_3,d\n", True),
        (b"file.name,a\nx.jpg,b\ny.jpg,c\nz.jpg,d\n", True),
        (b"No.,text\na.,b\nc.,d\ne.,f\ng.,h\n", True),
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


BODY = b"a,b,c\n1,2,3\n4,5,6\n7,8,9\n1,2,3\n"


@pytest.mark.parametrize(
    ("head", "skip", "comment"),
    [
        (b"Sales of 2020\n" + BODY, 1, None),
        (b"\nSales, by year\nin EUR\n\n" + BODY, 4, None),
        (b"Id: 7\n\na,b,c,\n" + BODY.partition(b"\n")[2] + b"1,2,3\n", 2, None),
        (b"# made by x\n# on Monday\n" + BODY, 2, None),
        (b"% made by x\n\n" + BODY, 1, None),
        (b"# x y\n1.5 2\n3 4\n", 1, None),
        (b"# made by x\n" + BODY + b"# the end\n" + BODY, 0, "#"),
        (b"text\nHello, Ann\nYes, Bob\nNo, Bob\nSo, no\nAh, yes\n", 0, None),
        (b"#a,b,c\n1,2,3\n4,5,6\n", 0, None),  # a header
        (BODY, 0, None),
        (b"\n\n" + BODY, 0, None),
        (b"b,c\n" + BODY.partition(b"\n")[2] + b"1,2,3\n", 0, None),  # R's, one name short
        (b'a,b,c\n1,2,"x\ny"\n' + BODY.partition(b"\n")[2] + b"1,2,3\n", 0, None),
        (b'T,"x\n\ny"\n' + BODY + BODY, 0, None),  # a title over lines: not clear
        # Rows that became wider, and a table above another, are no titles.
        (b"t,a,b\n" + b"1,2,3\n" * 30 + b"1,2,3,4,5\n" * 40, 0, None),
        (b"Account,Balance\nx,1\ny,2\nz,3\n\nDate,Payee,Amount,C\n" + b"1,b,2,c\n" * 9, 0, None),
        (b"Device,Logger3\nSerial,a17\nOwner,bob\n\nt,x,y,z\n" + b"1,2,3,4\n" * 9, 4, None),
        (b"a text\nof lines\nand words\nwithout\ncommas\nat all\n", 0, None),
        (b"sep=;\nx;y\n" + b"1;2,5\n" * 9, 1, None),
    ],
)
def test_titles_and_comments(head: bytes, skip: int, comment: str | None) -> None:
    found = sniff(head)
    assert (found.skip, found.comment) == (skip, comment)
    if BODY in head and skip:
        assert found.header
        assert found.delimiter == ","


@pytest.mark.parametrize(
    ("cells", "decimal"),
    [
        (["1,5", "2", "-3,25", "4"], ","),
        (["0,123", "0,456", "0,789", "1,000"], ","),
        (["1,234", "2,345", "3,456", "4,567"], "."),  # thousands, maybe
        (["1,5", "2,5", "a,5", "3,5"], "."),
        (["1.234,5", "2", "3", "4"], ","),
        (["1,5", "2"], "."),
        (["1.5", "2.5", "3.5", "4.5"], "."),
    ],
)
def test_decimal_commas(cells: list[str], decimal: str) -> None:
    text = "x;y\n" + "".join(f"{cell};1\n" for cell in cells)
    assert sniff(text.encode()).decimal == decimal
    assert sniff((text + "1,5;2.5\n").encode()).decimal == "."


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        (["1,234,567", "12", "-3,000", "4,000"], ","),
        (["1,234.5", "12.25", "3", "4"], ","),
        (["1.234,5", "12,25", "3", "4"], "."),
        (["1.234.567", "12", "3", "4"], "."),
        (["1,234", "12", "3", "4"], None),  # a decimal comma, maybe
        (["1,234,567", "1,234,568", "1,234,569", "1,234,560"], None),
        (["1,234,567", "12,5", "3", "4"], None),
        (["1,234,567", "12", "x", "4"], None),
        (["1,234,567", "12", "3"], None),
        ([f"192.168.100.20{number}" for number in range(4)], None),
        (["1.5", "12", "3", "4"], None),
    ],
)
def test_thousands(cells: list[str], mark: str | None) -> None:
    text = "x;y\n" + "".join(f"{cell};1\n" for cell in cells)
    assert sniff(text.encode()).thousands == mark
    quoted = "x,y\n" + "".join(f'"{cell}",1\n' for cell in cells)
    assert sniff(quoted.encode()).thousands == (mark if mark == "," else None)
    other = f"{text}9;1{mark}5\n"  # the same mark before a fraction
    assert mark is None or sniff(other.encode()).thousands is None


@pytest.mark.parametrize(
    ("cells", "marks"),
    [
        (["1.015;27,3", "1.014;0,8", "1.023;15,8", "1.020;15,0"], (",", ".")),
        (["41.269;0,3352", "964;0,9166", "1.234.567;0,5", "7.000;0,25"], (",", ".")),
        (["50.4312;39,28", "50.2948;93,86", "50.0471;84,66", "50.5;1,5"], (".", None)),
        (["0.123;39,28", "0.345;93,86", "0.456;84,66", "0.567;1,5"], (".", None)),
        (["1.5;27,3", "1.014;0,8", "1.023;15,8", "1.020;15,0"], (".", None)),
        (["1.015;27,345", "1.014;10,823", "1.023;15,834", "1.020;15,011"], (".", None)),
    ],
)
def test_points_beside_decimal_commas(cells: list[str], marks: tuple[str, str | None]) -> None:
    found = sniff(("x;y\n" + "".join(f"{cell}\n" for cell in cells)).encode())
    assert (found.decimal, found.thousands) == marks


@pytest.mark.parametrize(
    ("head", "strip"),
    [
        (b"a, b, c\n1, x, 2\n3, , 4\n5, y, 6\n7, z, 8\n", True),
        (b'"a", "b"\n"x", 1\n"y, z", 2\n"u", 3\n"v", 4\n', True),
        (b"a | b | c\n1 | x | 2\n3 |   | 4\n5 | y | 6\n7 | z | 8\n", True),
        (b"a ,b\n1 ,x\n3 ,y\n5 ,z\n7 ,u\n", True),
        (b"a, b\n1,x\n3, y\n5, z\n7, u\n", False),
        (b"a,b\n1, x\n3, y\n5, z\n7, u\n", False),
        (b"a, b\n1, x\n", False),
        (b"a\n1\n2\n3\n4\n", False),
        (b"a b\nc d\ne f\ng h\n", False),
    ],
)
def test_blanks_around_cells(head: bytes, strip: bool) -> None:
    assert sniff(head).strip == strip


@pytest.mark.parametrize(
    ("rows", "is_table"),
    [
        (["e,x,s,n", "p,x,y,w", "e,b,s,n"], True),
        (["vhigh,2,5more,small,unacc", "low,4,4,big,good"], True),
        (["e,x", "p,x,y"], False),
    ],
)
def test_tables_of_categories(rows: list[str], is_table: bool) -> None:
    assert sniff("".join(f"{row}\n" for row in rows * 6).encode()).is_table == is_table


def test_sentences_with_as_many_commas_are_no_table() -> None:
    text = "".join(f"Number {n}, he said, and went.\n" for n in range(30))
    assert not sniff(text.encode()).is_table
