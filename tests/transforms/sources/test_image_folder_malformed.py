"""Folders of images and their tables, and what may be wrong in them: no good one is lost."""

import gzip
import io
import json
import os
import pathlib
import struct
import tarfile
import zipfile
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from snapshard.schemas.errors import DataError, SchemaError, SnapshardError
from snapshard.schemas.features import ClassLabel, Feature, Image
from snapshard.transforms.sources.folders.images import ImageFolder
from snapshard.transforms.storage.opened_source import open_source

from .conftest import make_block

FEATURES: dict[str, Feature] = {
    "image": Image(storage="encoded"),
    "label": ClassLabel(("cat", "dog")),
}


def encode(form: str, size: tuple[int, int] = (5, 4), **options: Any) -> bytes:
    rng = np.random.default_rng(0)
    sink = io.BytesIO()
    Pillow.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).save(sink, form, **options)
    return sink.getvalue()


GOOD = {form: encode(form) for form in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")}


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)


def read(
    source: ImageFolder, folder: pathlib.Path, features: dict[str, Feature] | None = None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows with their ids, and the reason of each reject by its id."""
    opened = open_source(source.url, str(folder))
    files = source.select(opened.list()).files
    found = dict(source.infer(files, opened)) if features is None else features
    block = make_block(files, opened)
    rows: list[dict[str, Any]] = []
    rejects: dict[str, str] = {}
    for batch in source.read(block, features=found, opened=opened, ordered=range(len(files))):
        columns = batch.columns.to_pylist()
        rows += [{"id": name, **row} for name, row in zip(batch.ids, columns, strict=True)]
        for reject in batch.rejects:
            assert reject.message
            assert reject.source == reject.record_id
            rejects[reject.record_id] = reject.reason
    assert len(rows) + len(rejects) == len(files)
    return rows, rejects


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty file"),
    "zeros": (bytes(99), "zero-filled file"),
    "text": (b"<html>404 Not Found</html>", "text, not an image"),
    "junk": (bytes(range(200, 256)) * 3, "not an image"),
    "two_bytes": (b"\xff\xd8", "not an image"),
    "bare_start": (b"\xff\xd8\xff", "truncated image"),
    "no_frame": (b"\xff\xd8\xff\xd9", "truncated image"),
    "scan_first": (b"\xff\xd8\xff\xda\0\x04ab", "damaged image"),
    "no_length": (b"\xff\xd8\xff\xe0\0\1", "damaged image"),
    "twelve_bits": (b"\xff\xd8\xff\xc1\0\x11\x0c\0\5\0\4\3", "unsupported image format"),
    "png_of_no_size": (png(0, 5), "damaged image"),
    "png_of_odd_depth": (png(5, 5, depth=7), "damaged image"),
    "png_bomb": (png(60_000, 60_000), "too many pixels"),
    "gif_without_frame": (GOOD["GIF"][:13], "truncated image"),
    "bmp_of_no_size": (GOOD["BMP"][:18] + bytes(8) + GOOD["BMP"][26:], "damaged image"),
    "bmp_16_bits": (GOOD["BMP"][:28] + b"\x10\0" + GOOD["BMP"][30:], "unsupported image format"),
    "webp_of_nothing": (b"RIFF\4\0\0\0WEBP", "truncated image"),
    "webp_of_another_chunk": (b"RIFF\x0c\0\0\0WEBPJUNK\0\0\0\0", "damaged image"),
    "webp_without_code": (GOOD["WEBP"][:23] + b"abc" + GOOD["WEBP"][26:], "damaged image"),
    "big_tiff": (b"II+\0" + bytes(100), "unsupported image format"),
    "tiff_without_directory": (encode("TIFF")[:8], "truncated image"),
    "heic": (b"\0\0\0\x18ftypheic" + bytes(40), "unsupported image format"),
    "pdf": (b"%PDF-1.7" + bytes(40), "unsupported image format"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "text, not an image"),
}


def test_every_bad_file_is_a_reject_and_no_good_one_is_lost(tmp_path: pathlib.Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for form, content in GOOD.items():
            (tmp_path / label / f"{form}.x").write_bytes(content)
    for name, (content, _) in BAD.items():
        (tmp_path / "cat" / name).write_bytes(content)
    os.mkfifo(tmp_path / "cat" / "pipe")
    (tmp_path / "cat" / "gone").symlink_to("nothing")
    (tmp_path / "beside.png").write_bytes(GOOD["PNG"])
    rows, rejects = read(ImageFolder("."), tmp_path)
    assert len(rows) == 2 * len(GOOD)
    assert {(row["image/height"], row["image/width"]) for row in rows} == {(5, 4)}
    expected = {f"cat/{name}": reason for name, (_, reason) in BAD.items()}
    assert rejects == {
        **expected,
        "cat/pipe": "named pipe, expected a file",
        "cat/gone": "dangling symbolic link",
        "beside.png": "not in a class folder",
    }


@pytest.mark.parametrize("form", GOOD)
def test_an_image_cut_at_every_byte_is_a_reject_or_left_to_the_decoder(
    tmp_path: pathlib.Path, form: str
) -> None:
    content = GOOD[form]
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
    for stop in range(len(content)):
        (tmp_path / "cat" / f"{stop:05}").write_bytes(content[:stop])
    (tmp_path / "dog" / "whole").write_bytes(content)
    rows, rejects = read(ImageFolder("."), tmp_path, FEATURES)
    assert rows[-1]["id"] == "dog/whole"
    # Where the header is whole, its size is right, and decoding finds the rest missing.
    assert {(row["image/height"], row["image/width"]) for row in rows} == {(5, 4)}
    reasons = [rejects[f"cat/{stop:05}"] for stop in range(len(rejects))]
    assert reasons[0] == "empty file"
    # Of a BMP, the first bytes tell too little.
    assert set(reasons[12:]) <= {"truncated image", *(["not an image"] if form == "BMP" else [])}


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(sorted(GOOD)), st.data())
def test_any_damage_is_a_reject_or_a_size(
    tmp_path_factory: Any, form: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    (folder / "cat").mkdir(parents=True, exist_ok=True)
    content = bytearray(GOOD[form])
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, min(len(content) - 1, 60)))
        content[place] = data.draw(st.integers(0, 255))
    (folder / "cat" / "1").write_bytes(content)
    rows, _ = read(ImageFolder("."), folder, FEATURES)
    assert all(row["image/height"] > 0 < row["image/width"] for row in rows)


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_bad_files_of_an_archive(tmp_path: pathlib.Path, kind: str) -> None:
    members = {f"dog/{form}": content for form, content in GOOD.items()}
    members |= {f"cat/{name}": content for name, (content, _) in BAD.items()}
    path = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, content in members.items():
                zipped.writestr(name, content)
    else:
        sink = io.BytesIO()
        with tarfile.open(fileobj=sink, mode="w") as archive:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        path.write_bytes(gzip.compress(sink.getvalue()) if kind == "tar.gz" else sink.getvalue())
    rows, rejects = read(ImageFolder(path.name), tmp_path)
    assert {row["id"] for row in rows} == {f"dog/{form}" for form in GOOD}
    assert rejects == {f"cat/{name}": reason for name, (_, reason) in BAD.items()}


# Tables beside them.


def folder_of(tmp_path: pathlib.Path, *names: str) -> pathlib.Path:
    (tmp_path / "images").mkdir()
    for name in names:
        (tmp_path / "images" / name).write_bytes(GOOD["PNG"])
    return tmp_path


BAD_ROWS: dict[str, tuple[str, str]] = {
    # A table whose row for b.png is bad: its text, and the reason of the reject.
    "ragged": ("a.csv|file,label,n\na.png,cat,1\nb.png,dog\nc.png,cat,3\n", "no row in the table"),
    "wide": ("a.csv|file,label,n\na.png,cat,1\nb.png,d,2,3\nc.png,cat,3\n", "no row in the table"),
    "missing": ("a.csv|file,label,n\na.png,cat,1\nc.png,cat,3\n", "no row in the table"),
    "twice": (
        "a.csv|file,label,n\na.png,cat,1\nb.png,cat,1\nb.png,cat,2\nc.png,cat,3\n",
        "several rows in the table",
    ),
    "twice_in_other_words": (
        "a.csv|file,label,n\na.png,cat,1\nb.png,cat,1\n./b.png,cat,2\nc.png,cat,3\n",
        "several rows in the table",
    ),
    "tabs": (
        "a.tsv|file\tlabel\tn\na.png\tcat\t1\nb.png\tdog\nc.png\tcat\t3\n",
        "no row in the table",
    ),
    "no_json": (
        'a.jsonl|{"file":"a.png","label":"cat","n":1}\n{"file":"b.png",\n'
        '{"file":"c.png","label":"cat","n":3}\n',
        "no row in the table",
    ),
    "no_object": (
        'a.jsonl|{"file":"a.png","label":"cat","n":1}\n["b.png"]\n'
        '{"file":"c.png","label":"cat","n":3}\n',
        "no row in the table",
    ),
    "empty_object": (
        'a.jsonl|{"file":"a.png","label":"cat","n":1}\n{}\n{"file":"c.png","label":"cat","n":3}\n',
        "no row in the table",
    ),
    "huge_number": (
        'a.jsonl|{"file":"a.png","label":"cat","n":1}\n{"file":"b.png","label":"cat","n":1e400}\n'
        '{"file":"c.png","label":"cat","n":3}\n',
        "no row in the table",
    ),
    "too_large": (
        'a.jsonl|{"file":"a.png","label":"cat","n":1}\n'
        '{"file":"b.png","label":"cat","n":99999999999999999999}\n'
        '{"file":"c.png","label":"cat","n":3}\n',
        "unfit row in the table",
    ),
    "bad_box": (
        'a.jsonl|{"file":"a.png","boxes":[]}\n{"file":"b.png","boxes":[[0,0,1]]}\n'
        '{"file":"c.png"}\n',
        "unfit row in the table",
    ),
    "box_of_pixels": (
        'a.jsonl|{"file":"a.png","boxes":[]}\n{"file":"b.png","boxes":[[0,0,50,20]]}\n'
        '{"file":"c.png"}\n',
        "unfit row in the table",
    ),
    "box_of_text": (
        'a.jsonl|{"file":"a.png","boxes":[]}\n{"file":"b.png","boxes":[["0","0","1","1"]]}\n'
        '{"file":"c.png"}\n',
        "unfit row in the table",
    ),
    "box_that_is_nan": (
        'a.jsonl|{"file":"a.png","boxes":[]}\n{"file":"b.png","boxes":[[NaN,0,1,1]]}\n'
        '{"file":"c.png"}\n',
        "unfit row in the table",
    ),
    "boxes_that_are_none": (
        'a.jsonl|{"file":"a.png","boxes":[]}\n{"file":"b.png","boxes":7}\n{"file":"c.png"}\n',
        "unfit row in the table",
    ),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_bad_row_costs_its_own_image_alone(tmp_path: pathlib.Path, kind: str) -> None:
    text, reason = BAD_ROWS[kind]
    name, _, table = text.partition("|")
    folder_of(tmp_path, "a.png", "b.png", "c.png")
    (tmp_path / name).write_text(table)
    rows, rejects = read(ImageFolder("images", table=name), tmp_path)
    assert {row["id"] for row in rows} >= {"a.png", "c.png"}
    assert rejects == ({"b.png": reason} if reason else {})


BAD_TABLES: dict[str, tuple[str, bytes, str]] = {
    "empty": ("a.csv", b"", "no readable line of text"),
    "header_alone": ("a.csv", b"file,label\n", "no complete row|names none"),
    "one_column": ("a.csv", b"file\na.png\n", "no columns besides the file names"),
    "nameless_columns": ("a.csv", b"file,,n,\na.png,x,2,y\n", "names 2 of 4 columns"),
    "other_files": ("a.csv", b"file,label\nx.jpg,cat\n", "names none of the 1 files"),
    "content": ("a.csv", b"file,image\na.png,1\n", "column 'image'"),
    "empty_lines": ("a.jsonl", b"\n\n", "no row"),
    "text": ("a.jsonl", b"file,label\na.png,cat\n", "no rows.*line 1: not valid JSON"),
    "two_types": (
        "a.jsonl",
        b'{"file":"a.png","n":1}\n{"file":"b.png","n":"x"}\n',
        r"'n' is 1 \(int\), 'x' \(str\)",
    ),
    "empty_lists": ("a.jsonl", b'{"file":"a.png","n":[]}\n', "'n' is an empty list in all records"),
    "nested_lists": ("a.jsonl", b'{"file":"a.png","n":[[1],2]}\n', "'n'"),
    "score_of_a_box": (
        "a.jsonl",
        b'{"file":"a.png","boxes":[{"bbox":[0,0,1,1],"score":1}]}\n',
        "a box has 'score'",
    ),
    "only_names": ("a.jsonl", b'{"file":"a.png"}\n', "no columns besides the file names"),
    "bytes": ("a.jsonl", b'{"file":"\xff","n":1}\n', "no row"),
}


@pytest.mark.parametrize("kind", BAD_TABLES)
def test_a_table_that_cannot_be_meant_is_told(tmp_path: pathlib.Path, kind: str) -> None:
    name, content, message = BAD_TABLES[kind]
    folder_of(tmp_path, "a.png")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read(ImageFolder("images", table=name), tmp_path)
    assert isinstance(caught.value, SchemaError | DataError)
    assert "a." in str(caught.value)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_table_cut_at_every_byte(tmp_path: pathlib.Path, name: str) -> None:
    rows = [{"file": f"{letter}.png", "label": "cat", "n": 7} for letter in "abc"]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if name == "a.csv":
        text = "file,label,n\n" + "".join(f"{r['file']},{r['label']},{r['n']}\n" for r in rows)
    folder_of(tmp_path, "a.png", "b.png", "c.png")
    seen = set()
    messages = []
    for stop in range(len(text) + 1):
        (tmp_path / name).write_bytes(text.encode()[:stop])
        try:
            found, rejects = read(ImageFolder("images", table=name), tmp_path)
        except SnapshardError as error:
            messages.append(str(error))
            continue
        assert {row["id"] for row in found} | rejects.keys() == {"a.png", "b.png", "c.png"}
        seen.add(len(found))
    assert messages
    assert all(name in message for message in messages)
    assert seen >= {1, 2, 3}
