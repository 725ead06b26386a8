"""Files of strangers that grow: limits turn them into rejects before they take memory or time.

What a bomb would take is stated by its header or made by its compression: all are small here.
"""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import snapshard as ss
from snapshard.schemas import limits
from snapshard.schemas.errors import DataError, RecipeError, SchemaError
from snapshard.schemas.features import Scalar
from snapshard.transforms.media.image_header import UnreadableImageError, read_header
from snapshard.transforms.sources.arrow import files as arrow_files
from snapshard.transforms.sources.arrow import ipc as arrow_ipc
from snapshard.transforms.sources.arrow import parquet
from snapshard.transforms.sources.arrow.parquet import read_row_groups
from snapshard.transforms.storage import decompress
from snapshard.transforms.storage.opened_source import open_source

from ...file_bytes import frame, masked_crc

MIB = 1 << 20
TOO_MUCH = "grows to over 250 times its size"
PACKERS: dict[str, Any] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.compress,
}


@pytest.fixture(autouse=True)
def little_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb counts from 1 MiB on, so that tests need not make large ones."""
    for module in (arrow_files, arrow_ipc, decompress, parquet):
        monkeypatch.setattr(module, "FREE_BYTES", MIB)


def limited(reading: Any, source: Any, **settings: Any) -> list[Any]:
    """The rejects of a source of one file that is read within limits."""
    opened = open_source(source.url, str(reading.folder), ss.Limits(**settings))
    block = blocks_of(source, opened)
    features = {"n": Scalar(dtype="int64")} if isinstance(source, ss.Csv | ss.JsonLines) else None
    found = features or source.infer(source.select(opened.list()).files, opened)
    batches = source.read(block, features=found, opened=opened, ordered=[0])
    return [reject for batch in batches for reject in batch.rejects]


def blocks_of(source: Any, opened: Any) -> Any:
    from snapshard.schemas.blocks import Block, FileRange

    (file,) = source.select(opened.list()).files
    return Block((FileRange(path=file.path, sha256="", start=0, stop=file.num_bytes),))


@pytest.mark.parametrize("packer", PACKERS)
def test_what_comes_before_a_bomb_is_given(packer: str) -> None:
    plain = b"n\n1\n2\n" + b"3" * (16 * MIB) + b"\n4\n"
    content = PACKERS[packer](plain)
    pieces = decompress.decompressed(lambda a, b: content[a:b], packer, max_expansion=50)
    found: list[bytes] = []
    with pytest.raises(decompress.DamagedError, match="grows to over 50 times its size"):
        found.extend(pieces)
    assert plain.startswith(b"".join(found))
    whole = decompress.decompressed(lambda a, b: content[a:b], packer, max_expansion=1 << 30)
    assert b"".join(whole) == plain


def test_a_compressed_table_that_is_a_bomb(reading: Any) -> None:
    content = gzip.compress(b"n\n1\n2\n" + b"3" * (8 * MIB) + b"\n4\n")
    source = ss.Csv(reading.write("t.csv.gz", content))
    (reject,) = limited(reading, source, max_expansion=50)
    assert reject.reason == "damaged compression"
    assert "grows to over 50 times its size" in reject.message
    (too_long,) = limited(reading, source, max_expansion=2000, max_row_bytes=MIB)
    assert too_long.reason != "damaged compression"


@pytest.mark.parametrize("quote", ["", '"'], ids=["bare", "quoted"])
def test_the_limit_of_a_row_is_named(reading: Any, quote: str) -> None:
    """A quoted cell that is too long may be closed as well."""
    text = f"n,t\n1,a\n2,{quote}{'x' * 200}{quote}\n3,b\n"
    source = ss.Csv(reading.write("t.csv", text.encode()))
    (reject,) = limited(reading, source, max_row_bytes=100)
    assert "within 100 bytes" in reject.message
    assert "limits=ss.Limits(max_row_bytes=…)" in reject.message


def test_json_of_100_000_levels(reading: Any) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    lines = [b'{"n":1}', b'{"n":' + deep + b"}", b'{"n":' * 100_000 + b"1" + b"}" * 100_000]
    source = ss.JsonLines(reading.write("t.jsonl", b"\n".join([*lines, b'{"n":2}'])))
    got = reading.read(source, features={"n": Scalar(dtype="int64")})
    assert got.column("n") == [1, 2]
    assert len(got.rejects) == 2


def test_a_member_of_a_zip_that_is_a_bomb(reading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapshard.transforms.storage.zip_members.FREE_BYTES", MIB)
    with zipfile.ZipFile(reading.folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/bomb.png", bytes(4 * MIB))
        archive.writestr("a/good.png", b"x")
        for name in ("/abs/olute.png", "../../slip.png", "a/../../b.png"):
            archive.writestr(name, b"x")
    listed = open_source("a.zip", str(reading.folder)).list()
    problems = {file.path: file.problem for file in listed}
    assert problems.pop("a/good.png") == ""
    assert "over 250 times its own size" in problems.pop("a/bomb.png")
    assert set(problems.values()) == {"path that leads out of its archive"}
    assert len(problems) == 3
    allowed = open_source("a.zip", str(reading.folder), ss.Limits(max_expansion=5000)).list()
    assert {file.path: file.problem for file in allowed}["a/bomb.png"] == ""


def test_a_tar_that_is_a_bomb_is_not_staged_whole(reading: Any) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, size in (("a/first.png", 10), ("a/bomb.png", 64 * MIB)):
            entry = tarfile.TarInfo(name)
            entry.size = size
            archive.addfile(entry, io.BytesIO(bytes(size)))
    reading.write("a.tar.gz", gzip.compress(buffer.getvalue()))
    with pytest.raises(DataError, match=r"grows to over 250 times its size \(limits="):
        open_source("a.tar.gz", str(reading.folder))


@pytest.mark.parametrize("kind", [b"x", b"L"])
def test_a_tar_whose_header_states_gigabytes(reading: Any, kind: bytes) -> None:
    entry = tarfile.TarInfo("header")
    entry.type, entry.size = kind, 3 << 30
    reading.write("a.tar", entry.tobuf(tarfile.USTAR_FORMAT) + bytes(4 * MIB))
    with pytest.raises(DataError, match="a header states 3,221,225,472 bytes"):
        open_source("a.tar", str(reading.folder))
    with pytest.raises(DataError):
        reading.read(ss.WebDataset(str(reading.folder / "a.tar")))


def test_records_that_claim_more_than_the_limit(reading: Any) -> None:
    example = b"\n\x0c\n\n\n\x01a\x12\x05\x1a\x03\n\x01\x05"
    for length in (2**63 - 1, 2**40, (1 << 30) + 1):
        huge = struct.pack("<Q", length)
        source = ss.TFRecords(
            reading.write("a.tfrecord", frame(example) * 2 + huge + masked_crc(huge))
        )
        (reject,) = reading.read(source).rejects
        assert f"a record claims {length:,} bytes, more than 1,073,741,824" in reject.message


def test_a_text_that_a_dictionary_repeats(reading: Any) -> None:
    rows = 3000
    indices = pa.array(np.zeros(rows, np.int32))
    table = pa.table({"s": pa.DictionaryArray.from_arrays(indices, ["x" * MIB])})
    path = reading.folder / "a.parquet"
    pq.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 2000
    got = reading.read(ss.Parquet(str(path)))
    (reject,) = got.rejects
    assert TOO_MUCH in reject.message
    assert len(got.rows) < 10
    (group,) = read_row_groups(pa.memory_map(str(path)))
    with pa.memory_map(str(path)) as source:
        each = parquet.rows_at_once(source, 0, group, ["s"], num_rows=1 << 16)
    assert each == 1


def test_texts_that_are_no_bomb_are_read_at_once(tmp_path: Path) -> None:
    texts = [f"text {i % 999}" for i in range(50_000)]
    pq.write_table(pa.table({"s": texts, "l": [[text] for text in texts]}), tmp_path / "a.parquet")
    with pa.memory_map(str(tmp_path / "a.parquet")) as source:
        (group,) = read_row_groups(source)
        found = parquet.rows_at_once(source, 0, group, ["s", "l"], num_rows=1 << 16)
    assert found == 1 << 16


def test_lists_of_more_values_than_a_file_may_hold(reading: Any) -> None:
    values = pa.ListArray.from_arrays([0, MIB], pa.array(np.zeros(MIB, np.int8)))
    path = reading.folder / "a.parquet"
    pq.write_table(pa.table({"l": values}), path, compression="zstd")
    got = reading.read(ss.Parquet(str(path)))
    assert not got.rows
    assert TOO_MUCH in got.rejects[0].message


@pytest.mark.parametrize("form", ["file", "stream"])
@pytest.mark.parametrize("claimed", [None, 1 << 40])
def test_arrow_buffers_that_grow(reading: Any, form: str, claimed: int | None) -> None:
    num_rows = 2 * MIB if claimed is None else 1000
    batch = pa.record_batch({"a": pa.array(np.zeros(num_rows, np.int64))})
    sink = io.BytesIO()
    make: Any = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with make(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    content = sink.getvalue()
    if claimed is not None:
        # The length of the buffer's values, before their Zstandard frame.
        true, false = (struct.pack("<q", size) + b"\x28\xb5\x2f\xfd" for size in (8000, claimed))
        assert content.count(true) == 1
        content = content.replace(true, false)
    path = reading.write("a.arrow", content)
    got = reading.read(ss.Arrow(path), features={"a": Scalar(dtype="int64")})
    assert not got.rows
    assert TOO_MUCH in got.rejects[0].message


def test_arrow_dictionaries_that_grow(reading: Any) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 0]), ["x" * (8 * MIB)])
    batch = pa.record_batch({"a": texts})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    got = reading.read(
        ss.Arrow(reading.write("a.arrow", sink.getvalue())), features={"a": Scalar(dtype="string")}
    )
    assert not got.rows
    assert TOO_MUCH in got.rejects[0].message


def png(width: int, height: int, *, extra: bytes = b"") -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    texts = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1000))) if extra else b""
    return b"\x89PNG\r\n\x1a\n" + head + texts * 101 + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def gif(width: int, height: int, *, frames: int) -> bytes:
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x01\x00\x00"
    return b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + frame * frames + b";"


SOF = b"\xff\xd8\xff\xc2\0\x11\x08\0\x40\0\x40\x03\x01\x22\0\x02\x11\1\x03\x11\1"
BMP = b"BM" + struct.pack("<IHHI", 54, 0, 0, 54)
IMAGES = {
    "a png of 60,000²": (png(60_000, 60_000), "too many pixels"),
    "a png of 2³¹²": (png(2**31 - 1, 2**31 - 1), "too many pixels"),
    "a jpeg": (SOF.replace(b"\0\x40\0\x40", b"\xff\xff\xff\xff"), "too many pixels"),
    "a bmp": (
        BMP + struct.pack("<IiiHHIIiiII", 40, 2**31 - 1, -(2**31), 1, 24, 0, 0, 0, 0, 0, 0),
        "too many pixels",
    ),
    "a webp": (
        b"RIFF\x1e\0\0\0WEBPVP8 \x12\0\0\0\0\0\0\x9d\x01\x2a\xff\x3f\xff\x3f" + bytes(8),
        "too many pixels",
    ),
    "a tiff": (b"II*\0" + bytes(100), "unsupported image format"),
    "a gif's frame beyond its canvas": (gif(60_000, 60_000, frames=1), "too many pixels"),
    "3,000 frames": (gif(2000, 2000, frames=3000), "too many pixels"),
    "an animated webp": (
        b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0" + bytes(30),
        "unsupported image format",
    ),
    "scans without end": (SOF + b"\xff\xda\0\x08\x01\x01\0\0\0\0" * 201, "too costly to decode"),
    "texts in a png": (png(4, 4, extra=b"x"), "too costly to decode"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_refused_by_their_headers(name: str) -> None:
    content, reason = IMAGES[name]
    with pytest.raises(UnreadableImageError) as caught:
        read_header(content)
    assert caught.value.reason == reason


def test_frames_that_are_no_bomb() -> None:
    header = read_header(gif(200, 100, frames=100))
    assert (header.height, header.width, header.more_pixels) == (100, 200, 2_000_000)


def test_links_out_of_the_source(tmp_path: Path) -> None:
    source, outside = tmp_path / "source", tmp_path / "outside"
    (source / "a").mkdir(parents=True)
    outside.mkdir()
    for path in (source / "a" / "1.png", outside / "secret.png"):
        path.write_bytes(b"x")
    (source / "file.png").symlink_to(outside / "secret.png")
    (source / "folder").symlink_to(outside)
    (source / "a" / "inside.png").symlink_to("1.png")
    (source / "a" / "around").symlink_to(source)
    (tmp_path / "linked").symlink_to(source)
    for root in ("source", "linked"):
        found = {f.path: f.problem for f in open_source(root, str(tmp_path)).list()}
        assert not found["a/1.png"] + found["a/inside.png"]
        assert found.pop("a/around") == "symbolic link loop"
        assert "leads out of the source's folder" in found["file.png"]
        assert "ss.Limits(follow_links=True)" in found["folder"]
        assert "folder/secret.png" not in found
    followed = open_source("source", str(tmp_path), ss.Limits(follow_links=True)).list()
    assert {"file.png", "folder/secret.png"} <= {f.path for f in followed if not f.problem}


def test_a_table_beside_that_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes(b"file,label\n" + b"x" * 100)
    opened = open_source(str(tmp_path), str(tmp_path), ss.Limits(max_record_bytes=50))
    with pytest.raises(DataError, match=r"labels\.csv has 111 bytes, more than 50"):
        opened.read_side("labels.csv")


@pytest.mark.slow
def test_tables_of_too_many_columns(reading: Any) -> None:
    names = [f"c{i}" for i in range(10_100)]
    line = ",".join(names)
    keys = ",".join(f'"{name}":1' for name in names)
    for source in (
        ss.Csv(reading.write("t.csv", f"{line}\n{line}\n".encode())),
        ss.JsonLines(reading.write("t.jsonl", f'{{"c0":1}}\n{{{keys}}}\n'.encode())),
    ):
        with pytest.raises(SchemaError, match="has 10,100 columns or names, more than 10,000"):
            reading.read(source)
    got = reading.read(
        ss.JsonLines(str(reading.folder / "t.jsonl")), features={"c0": Scalar(dtype="int64")}
    )
    assert got.column("c0") == [1, 1]


def test_limits_are_checked_and_enter_the_fingerprint_where_they_are_changed() -> None:
    assert ss.Limits().changed() == {}
    assert ss.Limits(max_expansion=9, follow_links=True).changed() == {
        "max_expansion": 9,
        "follow_links": True,
    }
    for wrong in ({"max_expansion": 0}, {"max_row_bytes": "1"}, {"follow_links": 1}, {"x": 1}):
        with pytest.raises(RecipeError, match="Limits: "):
            ss.Limits(**wrong)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r"limits=\{\}, expected ss\.Limits"):
        ss.Recipe(name="a", source=ss.Csv("a.csv"), limits={})  # type: ignore[arg-type]
    assert limits.FREE_BYTES == 256 << 20
