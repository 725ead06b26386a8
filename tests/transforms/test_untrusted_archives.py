"""Archives made to mislead become rejects, in time and memory that their bytes justify."""

import bz2
import contextlib
import io
import itertools
import lzma
import os
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import snapshard as ss
from snapshard.schemas.errors import DataError, SchemaError, StorageError
from snapshard.transforms.sources.folders.web_dataset import Sample, read_samples
from snapshard.transforms.storage.decompress import decompressed
from snapshard.transforms.storage.opened_source import matches, open_source
from snapshard.transforms.storage.tar import TarArchive, TarHeaders
from snapshard.transforms.storage.zip_members import OUTSIDE

MIB = 1 << 20
LEADS_OUT = "path that leads out of its archive"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Each takes milliseconds; before these attacks were met, hours or for ever."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 30


# --- tars


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    """One block; a size below zero is written as GNU tar writes numbers in base 256."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    block = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = (
        b"%011o\0" % size
        if 0 <= size < 8**11
        else (b"\xff" if size < 0 else b"\x80") + size.to_bytes(11, "big", signed=True)
    )
    return summed(block)


def summed(block: bytearray) -> bytes:
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def file(name: str, content: bytes) -> bytes:
    return header(name, len(content)) + padded(content)


def pax(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return header("pax", len(records), kind) + padded(records)


def record(key: str, value: str) -> bytes:
    body = f" {key}={value}\n".encode()
    length = next(n for n in range(len(body), len(body) + 9) if n == len(body) + len(str(n)))
    return str(length).encode() + body


def extended(first: int) -> bytes:
    """A sparse member whose headers go on."""
    block = bytearray(header("a/2.txt", first, tarfile.GNUTYPE_SPARSE))
    block[482] = 1
    return summed(block)


FIRST = file("a/1.txt", b"good")
DAMAGES: dict[str, bytes] = {
    "a size of -1": header("a/2.txt", -1),
    "a size that leads back to its own header": header("a/2.txt", -512),
    "a size that leads back to the member before": header("a/2.txt", -1536),
    "a size far below zero": header("a/2.txt", -(2**80)),
    "PAX records that lead back": pax(record("size", "-1536")) + header("a/2.txt", 0),
    "PAX records that lead back to themselves": pax(record("size", "-512")) + header("a/2.txt", 0),
    "a PAX size of 5,000 digits": pax(record("size", "9" * 5000)) + header("a/2.txt", 0),
    "a PAX size that is not a number": pax(record("size", "1e9")) + header("a/2.txt", 0),
    "PAX records of a size below zero": header("pax", -1024, tarfile.XHDTYPE),
    "a long name of a size below zero": header("long", -512, tarfile.GNUTYPE_LONGNAME),
    "a size for all members": pax(record("size", "-512"), tarfile.XGLTYPE) + header("a/2.txt", 0),
    "a name for all members": pax(record("path", "x"), tarfile.XGLTYPE) + header("a/2.txt", 0),
    "a link for all members": pax(record("linkpath", "x" * MIB)[:MIB], tarfile.XGLTYPE),
    "records that begin within one another": pax(b"2 " * (MIB // 2 - 1) + b"a=") + FIRST,
    "a record of digits alone": pax(b"1" * MIB) + FIRST,
    "a record of no bytes": pax(b"0 a=b\n") + FIRST,
    "a record longer than the header": pax(b"99 a=b\n") + FIRST,
    "PAX records without a member": pax(record("path", "x")) + bytes(1024),
    "sparse headers without end": extended(0),
    "a size beyond all files": header("a/2.txt", 2**86) + FIRST,
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_member_that_leads_nowhere_is_refused(tmp_path: Path, name: str, packed: bool) -> None:
    data = FIRST + DAMAGES[name]
    data += (
        b"" if name == "sparse headers without end" else file("a/3.txt", b"behind") + bytes(1024)
    )
    path = tmp_path / ("a.tar.gz" if packed else "a.tar")
    path.write_bytes(zlib_gzip(data) if packed else data)
    with pytest.raises(DataError, match=r"after 'a/.\.txt': damaged from byte [\d,]+ on"):
        open_source(str(path), "/")
    # The same tar as samples.
    folder = open_source(str(tmp_path), "/")
    with pytest.raises(DataError, match=r"the tar cannot be read from byte [\d,]+ on"):
        list(read_samples(folder, path.name, 0, len(data)))
    if not packed:
        with pytest.raises(DataError, match=r"the tar cannot be read from byte [\d,]+ on"):
            ss.WebDataset(str(path)).cuts(folder.list()[0], folder, every=1)


def zlib_gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


def opened(data: bytes, **more: Any) -> TarArchive:
    return TarArchive(
        lambda start, stop: data[start:stop], num_bytes=len(data), stamp="s", name="a.tar", **more
    )


def problems(archive: Any) -> dict[str, str]:
    found = archive.find("", detail=True)
    return {name: info["problem"] for name, info in found.items() if info["problem"]}


def test_a_tar_whose_first_member_leads_nowhere_is_refused() -> None:
    with pytest.raises(DataError, match=r"cannot be read: damaged from byte 0 on"):
        opened(header("a/1.txt", -512) + file("a/2.txt", b"x") + bytes(1024))


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("name", ["/abs.txt", "//a/b.txt", "../up.txt", "a/../../b.txt"])
def test_names_that_lead_out_are_treated_as_in_zips(tmp_path: Path, kind: bytes, name: str) -> None:
    data = FIRST + header(name, 0, kind, "1.txt") + bytes(1024)
    (tmp_path / "a.tar").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a/1.txt", b"good")
        archive.writestr(name, b"x")
    listed = {
        suffix: {
            file.path: file.problem for file in open_source(f"a.{suffix}", str(tmp_path)).list()
        }
        for suffix in ("tar", "zip")
    }
    assert sorted(listed["tar"].values()) == ["", LEADS_OUT]
    assert listed["tar"] == {p.replace("//", "/"): found for p, found in listed["zip"].items()}


def test_links_to_absolute_targets_hold_nothing() -> None:
    etc = file("etc/passwd", b"of the archive")
    link = header("a/link", 0, tarfile.SYMTYPE, "/etc/passwd")
    archive = opened(etc + link + bytes(1024))
    assert problems(archive) == {"a/link": "link to what its archive does not hold"}


def test_links_multiply_content_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    from snapshard.transforms.storage import tar as tar_archive

    monkeypatch.setattr(tar_archive, "FREE_BYTES", MIB)
    links = b"".join(header(f"l{i}", 0, tarfile.LNKTYPE, "big") for i in range(500))
    data = file("big", bytes(256 << 10)) + links + bytes(1024)
    found = opened(data, max_expansion=10)
    bad = problems(found)
    total = sum(info["size"] for info in found.find("", detail=True).values())
    assert len(found.find("")) == 501
    assert 0 < total <= 10 * len(data)
    assert set(bad.values()) == {"link of an archive whose files repeat its content too often"}


def test_names_of_a_million_bytes() -> None:
    """Of each folder above a member nothing is kept: a path may name half a million of them."""
    deep = "a/" * (MIB // 2 - 100) + "b.txt"
    data = b"".join(pax(record("path", f"{i}/{deep}")) + header("x", 0) for i in range(5))
    allowed = "d/" * 2000 + "c.txt"
    data += pax(record("path", allowed)) + file("x", b"y") + bytes(1024)
    found = opened(data)
    assert set(problems(found).values()) == {
        f"path of {len(deep) + 2:,} bytes, of which 4,096 are allowed"
    }
    assert len(problems(found)) == 5
    assert found.cat_file(allowed) == b"y"
    assert found.info("d/d")["type"] == "directory"
    assert matches(tuple(allowed.split("/")), ("**", "d", "**", "d", "**", "c.txt"))
    assert not matches(tuple(allowed.split("/")), ("**", "d", "**", "d", "**", "e.txt"))


@pytest.mark.slow
def test_members_without_content_take_linear_time(tmp_path: Path) -> None:
    taken = []
    for number in (5_000, 20_000):
        data = b"".join(header(f"a.{i:06}", 0) for i in range(number)) + bytes(1024)
        (tmp_path / "a.tar").write_bytes(data)
        start = time.process_time()
        assert len(opened(data).find("")) == number
        folder = open_source(str(tmp_path), "/")
        (sample,) = read_samples(folder, "a.tar", 0, len(data))
        taken.append(time.process_time() - start)
        assert isinstance(sample, Sample)
        assert len(sample.parts) == min(number, 10_000)
        assert sample.problem == ("" if number < 10_000 else "it has more than 10,000 parts")
    assert taken[1] < 12 * taken[0]


@pytest.mark.slow
def test_parts_of_more_kinds_than_a_table_may_have_columns(tmp_path: Path) -> None:
    """No sample has too many of them; together they would be features without number."""
    data = b"".join(header(f"{i // 6_000}.{i:06}", 0) for i in range(12_000)) + bytes(1024)
    (tmp_path / "a.tar").write_bytes(data)
    source, folder = ss.WebDataset(str(tmp_path / "a.tar")), open_source(str(tmp_path), "/")
    with pytest.raises(SchemaError, match="has 12,000 columns or names, more than 10,000"):
        source.infer(folder.list(), folder)


@given(
    names=st.lists(
        st.tuples(
            # Of slashes alone a name is an absolute path here, and may be empty for tarfile.
            st.text(
                st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=300
            ).filter(lambda name: name.strip("/")),
            st.binary(max_size=1500),
            st.sampled_from([tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE]),
        ),
        max_size=8,
    ),
    form=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_headers_are_read_as_tarfile_reads_them(
    names: list[tuple[str, bytes, bytes]], form: int
) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=form, encoding="utf-8") as archive:
        for name, content, kind in names:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, name[::-1]
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            try:
                archive.addfile(member, io.BytesIO(content))
            except ValueError:  # too long for the format
                continue
    data = sink.getvalue()
    headers = TarHeaders(lambda start, stop: data[start:stop])
    found = [(m.name, m.link, m.offset, m.start, m.num_bytes, m.kind) for m in headers]
    kinds = {b"0": "file", b"1": "hardlink", b"2": "symlink", b"5": "folder"}
    with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8") as archive:
        assert found == [
            (m.name.rstrip("/"), m.linkname, m.offset, m.offset_data, m.size, kinds[m.type])
            for m in archive
        ]


@given(st.data())
def test_a_damaged_tar_ends_and_never_goes_back(data: st.DataObject) -> None:
    whole = FIRST + pax(record("path", "a/long.txt")) + file("x", b"z" * 700)
    content = bytearray(whole + file("a/2.txt", b"2") + bytes(1024))
    for _ in range(data.draw(st.integers(1, 12))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.sampled_from([0, 0x80, 0xFF, *b"0159xgLS \n="]))
    for start in range(0, len(content), 512):
        # With its sum corrected, so that more than the sum is looked at.
        if content[start + 257 : start + 262] == b"ustar":
            content[start : start + 512] = summed(content[start : start + 512])
    before = -1
    headers = TarHeaders(lambda start, stop: bytes(content[start:stop]))
    try:
        for member in headers:
            assert member.offset > before
            assert member.num_bytes >= 0
            before = member.offset
    except ValueError:
        pass
    try:
        archive = opened(bytes(content))
    except DataError:
        return
    for name, info in archive.find("", detail=True).items():
        assert len(archive.cat_file(name)) == info["size"]


# --- zips

Entry = tuple[str, bytes, int]


def zipped(*entries: Entry) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, content, method in entries:
            archive.writestr(name, content, compress_type=method)
    return sink.getvalue()


def restated(data: bytes, index: int, **fields: int) -> bytes:
    """A zip whose table of contents and header state something else of a member."""
    places = {"flags": (8, "H"), "method": (10, "H"), "crc": (16, "I"), "packed": (20, "I")}
    places |= {"size": (24, "I"), "offset": (42, "I")}
    position = int.from_bytes(data[-6:-2], "little") - 1
    for _ in range(index + 1):
        position = data.index(b"PK\1\2", position + 1)
    changed = bytearray(data)
    for name, value in fields.items():
        place, form = places[name]
        struct.pack_into("<" + form, changed, position + place, value)
    return bytes(changed)


def zip_problems(folder: Path, data: bytes) -> dict[str, str]:
    """Of each member its problem, as it is listed or read; members without one are read."""
    (folder / "a.zip").write_bytes(data)
    source = open_source("a.zip", str(folder))
    found = {}
    for one in source.list():
        found[one.path] = one.problem
        if not one.problem:
            try:
                assert len(source.read(one.path)) == one.num_bytes
                parts = source.chunks(one.path, chunk_bytes=100)
                assert sum(map(len, parts)) == one.num_bytes
            except StorageError as error:
                found[one.path] = str(error)
    return found


STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
METHODS = (STORED, DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
CONTENT = b"some content " * 40


@pytest.mark.parametrize("method", METHODS)
def test_sizes_and_sums_that_lie(tmp_path: Path, method: int) -> None:
    data = zipped(("a", CONTENT, method), ("b", b"good", STORED))
    assert zip_problems(tmp_path, data) == {"a": "", "b": ""}
    short = zlib.crc32(CONTENT[:10])
    for changes in (
        {"size": 10, "crc": short},
        {"size": 0, "crc": 0},
        {"size": len(CONTENT) + 5},
        {"size": 200 * MIB},
        {"crc": 7},
        {"packed": 5},
        {"packed": 2**31},
        {"offset": 2**31},
        {"offset": 1},
        {"flags": 1},
        {"flags": 0x40},
        {"method": 99},
        {"method": STORED if method else DEFLATED},
    ):
        found = zip_problems(tmp_path, restated(data, 0, **changes))
        assert found.pop("b") == "", changes
        assert found["a"], changes


@pytest.mark.parametrize("method", METHODS)
def test_a_member_that_decompresses_to_more_than_it_states(
    tmp_path: Path, method: int, max_rss: Callable[[], int]
) -> None:
    """bzip2 makes 6 GB of 4 KiB if it is let to, and zipfile lets it."""
    data = zipped(("a", bytes(1000), method))
    packed = bz2.compress(bytes(46 * MIB))
    if method == zipfile.ZIP_BZIP2:
        data = zipped(("a", packed, STORED))
        data = restated(data, 0, method=method, size=1000, crc=zlib.crc32(bytes(1000)))
        at = data.index(b"PK\3\4")
        data = data[: at + 8] + struct.pack("<H", method) + data[at + 10 :]
    else:
        data = restated(data, 0, size=10, crc=zlib.crc32(bytes(10)))
    before = max_rss()
    assert "not as long as" in zip_problems(tmp_path, data)["a"]
    assert max_rss() - before < 40 * MIB


@pytest.fixture
def max_rss() -> Callable[[], int]:
    import resource

    return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_members_that_overlap_are_rejects(tmp_path: Path) -> None:
    """As in zip bombs that share one kernel of zeros among a thousand names."""
    inner = zipped(("inner", CONTENT, STORED))
    data = zipped(("outer", inner, STORED), ("inner", CONTENT, STORED), ("b", b"good", STORED))
    within = restated(data, 1, offset=data.index(inner))
    found = zip_problems(tmp_path, within)
    assert found == {
        "outer": "shares bytes with another member of its archive",
        "inner": "",
        "b": "",
    }
    twice = restated(data, 1, offset=0)
    found = zip_problems(tmp_path, twice)
    assert found == {
        "outer": "",
        "inner": "shares bytes with another member of its archive",
        "b": "",
    }


def test_members_that_are_each_within_limits_and_too_much_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapshard.transforms.storage.zip_members.FREE_BYTES", MIB)
    data = zipped(*((f"{i:03}", bytes(MIB - 1), zipfile.ZIP_BZIP2) for i in range(40)))
    found = zip_problems(tmp_path, data)
    assert len(found) == 40
    refused = [name for name, problem in found.items() if problem]
    assert {found[name] for name in refused} == {
        "its archive would decompress to over 250 times its size"
    }
    assert (40 - len(refused)) * (MIB - 1) <= max(MIB, 250 * len(data))


def test_names_of_zips_as_long_as_they_can_be(tmp_path: Path) -> None:
    deep = "a/" * 32_000 + "b"
    data = zipped((deep, b"x", STORED), ("d/" * 1500 + "c", b"y", STORED), ("b", b"z", STORED))
    found = zip_problems(tmp_path, data)
    assert sorted(found.values()) == ["", "", "path of 64,001 bytes, of which 4,096 are allowed"]


def test_places_and_sizes_outside_the_archive(tmp_path: Path) -> None:
    """Of the table of contents itself, and in a zip64 record that is too short."""
    data = zipped(("a.csv", b"a,b\n1,2\n", STORED))
    end = data.rfind(b"PK\5\6")
    far = data[: end + 16] + (0xFFFFFFF0).to_bytes(4, "little") + data[end + 20 :]
    assert zip_problems(tmp_path, far) == {"a.csv": OUTSIDE}
    damaged = data[: end + 16] + b"\1\0\0\0" + data[end + 20 :]
    damaged = damaged.replace(b"PK\1\2", b"PK\7\7")
    with pytest.raises(DataError, match="is not a zip archive"):
        zip_problems(tmp_path, damaged)


def test_links_in_loops_hold_nothing() -> None:
    links = [header(f"l{i}.csv", 0, tarfile.SYMTYPE, f"l{(i + 1) % 3}.csv") for i in range(3)]
    own = header("own.csv", 0, tarfile.LNKTYPE, "own.csv")
    archive = opened(file("a.csv", b"a\n1\n") + b"".join(links) + own + b"\0" * 1024)
    held = "link to what its archive does not hold"
    assert problems(archive) == dict.fromkeys(["l0.csv", "l1.csv", "l2.csv", "own.csv"], held)


def test_zip64_sizes_beyond_all_files(tmp_path: Path) -> None:
    entry = zipfile.ZipInfo("a")
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr(entry, CONTENT)
        archive.writestr("b", b"good")
        entry.file_size = entry.compress_size = 2**62
        entry.header_offset = 0
    found = zip_problems(tmp_path, sink.getvalue())
    assert found.pop("b") == ""
    assert found["a"]


@pytest.mark.slow
@given(st.data())
def test_a_damaged_zip_is_rejects_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    entries = [(f"{method}/ä", CONTENT, method) for method in METHODS]
    content = bytearray(zipped(*entries))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.getbasetemp() / "damaged zip"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(DataError):
        zip_problems(folder, bytes(content))


# --- streams


def bombs() -> dict[str, tuple[str, bytes]]:
    zeros = bytes(46 * MIB)
    packer = bz2.BZ2Compressor()
    return {
        "bzip2 of zeros": ("bzip2", packer.compress(zeros) + packer.flush()),
        "xz of zeros": ("xz", lzma.compress(zeros, preset=1)),
        "Zstandard of zeros": ("zstd", zstandard.compress(zeros)),
    }


@pytest.mark.slow
def test_what_a_piece_becomes_is_given_in_parts() -> None:
    for name, (compression, data) in bombs().items():
        sizes = [len(piece) for piece in decompressed(lambda a, b, d=data: d[a:b], compression)]
        assert sum(sizes) == 46 * MIB, name
        assert max(sizes) <= (4 * MIB if compression != "zstd" else 46 * MIB), name


@pytest.mark.parametrize(
    ("compression", "stream"),
    [
        ("gzip", zlib_gzip(b"")),
        ("bzip2", bz2.compress(b"")),
        ("xz", lzma.compress(b"")),
        ("zstd", zstandard.compress(b"")),
        ("zstd", b"\x50*M\x18" + bytes(4)),
    ],
    ids=["gzip", "bzip2", "xz", "zstd", "zstd, skipped"],
)
def test_thousands_of_streams_without_content(compression: str, stream: bytes) -> None:
    data = stream * (MIB // len(stream))
    assert b"".join(decompressed(lambda a, b: data[a:b], compression)) == b""


# --- patterns


def test_globs_mean_what_they_meant() -> None:
    def recursive(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
        if not pattern or not parts:
            return not pattern
        if pattern[0] == "**":
            return recursive(parts, pattern[1:]) or recursive(parts[1:], pattern)
        return pattern[0] in ("*", parts[0]) and recursive(parts[1:], pattern[1:])

    for sizes in itertools.product(range(4), range(4)):
        for parts in itertools.product("ab", repeat=sizes[0]):
            for pattern in itertools.product(("a", "b", "*", "**"), repeat=sizes[1]):
                assert matches(parts, pattern) == recursive(parts, pattern), (parts, pattern)


def test_zips_within_archives_are_read_in_any_order(tmp_path: Path) -> None:
    """Members of the inner archive in the wrong order would decompress the outer one each time."""
    names = [f"{i:03}" for i in range(200)]
    inner = zipped(*((name, os.urandom(2000), STORED) for name in reversed(names)))
    (tmp_path / "a.zip").write_bytes(zipped(("inner.zip", inner, DEFLATED)))
    source = open_source("zip://::zip://inner.zip::a.zip", str(tmp_path))
    with zipfile.ZipFile(io.BytesIO(inner)) as archive:
        assert [file.path for file in source.list()] == names
        assert [source.read(name) for name in names] == [archive.read(name) for name in names]


@pytest.mark.parametrize("name", ["../up.csv", "x/../y.csv", "/abs.csv"])
@pytest.mark.parametrize(
    "make", [ss.Csv, ss.JsonLines, ss.Parquet, ss.TextFiles, ss.ImageFolder, ss.TFRecords]
)
@pytest.mark.parametrize("packing", ["tar", "zip"])
def test_what_leads_out_is_not_left_out_as_hidden(
    tmp_path: Path, make: Any, name: str, packing: str
) -> None:
    """``..`` begins with a dot, and must be a reject all the same."""
    suffix = {
        ss.JsonLines: "jsonl",
        ss.Parquet: "parquet",
        ss.TextFiles: "txt",
        ss.ImageFolder: "png",
        ss.TFRecords: "tfrecord",
    }.get(make, "csv")
    path = tmp_path / f"a.{packing}"
    names = [name.replace("csv", suffix), f"a.{suffix}"]
    if packing == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for member in names:
                archive.writestr(member, b"x")
    else:
        path.write_bytes(b"".join(file(member, b"x") for member in names) + bytes(1024))
    source = make(str(path))
    found = source.select(open_source(source.url, str(tmp_path)).list())
    assert [bool(one.problem) for one in found.files].count(True) == 1
    assert not found.num_skipped


def test_a_link_in_a_zip_is_not_read_as_a_record(tmp_path: Path) -> None:
    """Its bytes are a path."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text")
        link = zipfile.ZipInfo("b.txt")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "a.txt")
    found = open_source(str(path), str(tmp_path)).list()
    assert [(one.path, bool(one.problem)) for one in found] == [("a.txt", False), ("b.txt", True)]


@pytest.mark.parametrize("name", ["/", "//", "/" * 120])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_name_of_slashes_alone_is_not_lost(name: str, form: int) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=form) as archive:
        member = tarfile.TarInfo("x")
        member.name, member.size = name, 1
        try:
            archive.addfile(member, io.BytesIO(b"1"))
        except ValueError:
            pytest.skip("too long for the format")
    data = sink.getvalue()
    (found,) = TarHeaders(lambda start, stop: data[start:stop])
    assert found.name.startswith("/")
