"""A list of records to leave out that cannot be read is refused: it would prove nothing."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from snapshard.pipelines.inventory.exclusions import IdList, read_ids
from snapshard.schemas.errors import RecipeError

LINES = "3/a.jpg\n3/b.jpg\n"
OTHERS = {
    "UTF-16": LINES.encode("utf-16"),
    "UTF-16, big-endian": b"\xfe\xff" + LINES.encode("utf-16-be"),
    "UTF-16 without a mark": LINES.encode("utf-16-le"),
    "UTF-32": LINES.encode("utf-32"),
    "gzip": gzip.compress(LINES.encode()),
    "zip": b"PK\3\4 and so on",
    "xz": lzma.compress(LINES.encode()),
    "lz4": b"\x04\x22\x4d\x18 and so on",
    "CR": LINES.replace("\n", "\r").encode(),
    "CR, and LF at the end": b"3/a.jpg\r3/b.jpg\n",
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_other_formats_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ids.txt").write_bytes(content)
    with pytest.raises(RecipeError, match=r"--absent: .*ids\.txt cannot be read as a list of ids"):
        read_ids("ids.txt", str(tmp_path), argument="--absent")


@pytest.mark.parametrize(
    "content",
    [
        LINES.encode(),
        LINES.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + LINES.encode(),
        LINES.strip().encode(),
        b'"3/a.jpg"\n"3/b.jpg"\r\n',
        b"./3/a.jpg\n./3/b.jpg\n3/b.jpg\n",
    ],
)
def test_text_is_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ids.txt").write_bytes(content)
    ids = read_ids("ids.txt", str(tmp_path), argument="exclude=").ids
    assert ids == ("3/a.jpg", "3/b.jpg")


def test_one_line_that_ends_with_cr_is_one_id(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_bytes(b"3/a.jpg\r")
    assert read_ids("ids.txt", str(tmp_path), argument="exclude=").ids == ("3/a.jpg",)


@pytest.mark.parametrize(
    "name", ["# a.txt", "a\nb.txt", "a\rb.txt", '"a"', "./a", "caf\udce9\n", "\\"]
)
def test_any_name_can_be_written(name: str) -> None:
    line = json.dumps(name, ensure_ascii=False)
    assert IdList.of(line.encode("utf-8", "surrogateescape")).ids == (name,)
    assert IdList.of(json.dumps(name).encode()).ids == (name,)


def test_what_only_looks_quoted_is_an_id() -> None:
    assert IdList.of(b'"a.txt\n"\n"a" "b"\n').ids == ('"', '"a" "b"', '"a.txt')
