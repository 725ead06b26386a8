"""Archives given as sources: listed and read as folders, whatever was done to them."""

import bz2
import gzip
import io
import lzma
import os
import pathlib
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshard.schemas.errors import DataError, StorageError
from snapshard.transforms.storage.opened_source import OpenedSource, open_source
from snapshard.transforms.storage.tar import LEADS_OUT, REPLACED, TarArchive

from ..file_bytes import tar_of, zip_of

CONTENTS = {"cat/1.jpg": b"one" * 400, "cat/2.jpg": b"", "dog/deep/3.jpg": bytes(range(256)) * 9}


def opened(data: bytes, name: str = "a.tar") -> TarArchive:
    return TarArchive(
        lambda start, stop: data[start:stop], num_bytes=len(data), stamp="s", name=name
    )


def read_all(source: OpenedSource) -> dict[str, bytes]:
    files = source.list()
    assert [file.problem for file in files] == [""] * len(files)
    for file in files:
        assert len(source.read(file.path)) == file.num_bytes
        assert b"".join(source.chunks(file.path, chunk_bytes=100)) == source.read(file.path)
    return {file.path: source.read(file.path) for file in files}


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "a.tar": bytes,
    "a.tar.gz": gzip.compress,
    "a.TGZ": gzip.compress,
    "a.tar.bz2": bz2.compress,
    "a.tar.xz": lzma.compress,
    "content-decides.tar": gzip.compress,
}


@pytest.mark.parametrize("name", PACKERS)
def test_a_tar_is_a_folder(tmp_path: pathlib.Path, name: str) -> None:
    (tmp_path / name).write_bytes(PACKERS[name](tar_of(CONTENTS)))
    source = open_source(name, str(tmp_path))
    assert read_all(source) == CONTENTS
    assert source.read("cat/1.jpg", 2, 5) == b"eon"
    assert source.read("cat/1.jpg", 1199, 5000) == b"e"
    with pytest.raises(StorageError):
        source.read("cat/9.jpg")
    below = open_source(f"tar://dog::{name}", str(tmp_path))
    assert read_all(below) == {"deep/3.jpg": CONTENTS["dog/deep/3.jpg"]}
    some = open_source(f"tar://c*/*::{name}", str(tmp_path))
    assert [file.path for file in some.list()] == ["cat/1.jpg", "cat/2.jpg"]
    one = open_source(f"tar://cat/1.jpg::{name}", str(tmp_path))
    assert read_all(one) == {"1.jpg": CONTENTS["cat/1.jpg"]}


def test_a_zip_is_a_folder_and_archives_may_lie_anywhere(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.zip").write_bytes(zip_of({**CONTENTS, "inner.tar": tar_of(CONTENTS)}))
    source = open_source("a.zip", str(tmp_path))
    assert read_all(source).keys() == {*CONTENTS, "inner.tar"}
    inner = open_source("zip://inner.tar::a.zip", str(tmp_path))
    assert read_all(inner) == CONTENTS
    memory = fsspec.filesystem("memory")
    memory.pipe("/test_tar_archive/a.tar", tar_of(CONTENTS))
    assert read_all(open_source("memory://test_tar_archive/a.tar", "/")) == CONTENTS
    memory.rm("/test_tar_archive", recursive=True)


def test_a_change_of_the_archive_changes_every_stamp(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of(CONTENTS))
    before = {file.stamp for file in open_source("a.tar", str(tmp_path)).list()}
    os.utime(path, (5, 5))
    after = {file.stamp for file in open_source("a.tar", str(tmp_path)).list()}
    assert len(before) == len(after) == 3
    assert not before & after


def test_a_compressed_tar_is_decompressed_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from snapshard.transforms.storage import tar as tar_archive

    calls = []
    decompressed = tar_archive.decompressed

    def counted(*args: Any, **more: Any) -> Any:
        calls.append(args)
        return decompressed(*args, **more)

    monkeypatch.setattr(tar_archive, "decompressed", counted)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar_of(CONTENTS)))
    source = open_source("a.tar.gz", str(tmp_path))
    assert read_all(source) == read_all(open_source("a.tar.gz", str(tmp_path))) == CONTENTS
    assert len(calls) == 1
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar_of({"x": b"1"})))
    assert read_all(source) == {"x": b"1"}
    assert len(calls) == 2


def test_threads_read_side_by_side(tmp_path: pathlib.Path) -> None:
    contents = {f"x/{i}": bytes([i]) * (1000 + i) for i in range(50)}
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar_of(contents)))
    source = open_source("a.tar.gz", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(source.read, list(contents) * 4)
        assert list(found) == list(contents.values()) * 4


def problems(archive: TarArchive) -> dict[str, str]:
    found = archive.find("", detail=True)
    return {name: info["problem"] for name, info in found.items() if info["problem"]}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_long_and_odd_names(form: int) -> None:
    contents = {f"{'d' * 60}/{'e' * 80}.jpg": b"1", "ä b/'\".jpg": b"2"}
    archive = opened(tar_of(contents, form=form))
    assert {name: archive.cat_file(name) for name in archive.find("")} == contents
    assert not problems(archive)


def test_odd_members() -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, kind, link in [
            ("./a/1", tarfile.REGTYPE, ""),
            ("/abs/2", tarfile.REGTYPE, ""),
            ("../../3", tarfile.REGTYPE, ""),
            ("a/dir", tarfile.DIRTYPE, ""),
            ("a/sym", tarfile.SYMTYPE, "1"),
            ("b/hard", tarfile.LNKTYPE, "a/1"),
            ("b/up", tarfile.SYMTYPE, "../a/1"),
            ("b/gone", tarfile.SYMTYPE, "nothing"),
            ("b/out", tarfile.SYMTYPE, "/etc/passwd"),
            ("b/pipe", tarfile.FIFOTYPE, ""),
        ]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            member.size = 1 if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"x"))
    found = opened(sink.getvalue())
    assert problems(found) == {
        "../../3": "path that leads out of its archive",
        "abs/2": "path that leads out of its archive",
        "b/gone": "link to what its archive does not hold",
        "b/out": "link to what its archive does not hold",
        "b/pipe": "special file, expected a file",
    }
    assert {name for name in found.find("") if found.cat_file(name)} == {
        "a/1",
        "a/sym",
        "b/hard",
        "b/up",
    }
    assert found.info("a")["type"] == "directory"
    with pytest.raises(FileNotFoundError):
        found.info("a/nothing")


def test_the_later_member_of_a_name_counts() -> None:
    first = tar_of({"a": b"old", "b": b"1"})
    end = len(first.rstrip(b"\0")) // 512 * 512 + 512
    archive = opened(first[:end] + tar_of({"a": b"newer"}))
    assert archive.cat_file("a") == b"newer"
    assert problems(archive) == {f"a before byte {end}": REPLACED}


def linked(*members: tuple[str, bytes, str, bytes]) -> TarArchive:
    """An archive of (name, type, link, content)."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, kind, link, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, link, len(content)
            archive.addfile(member, io.BytesIO(content))
    return opened(sink.getvalue())


def test_links_give_what_unpacking_gives() -> None:
    """A hard link keeps its content; a symbolic one follows what is there in the end."""
    archive = linked(
        ("early", tarfile.SYMTYPE, "later", b""),
        ("a", tarfile.REGTYPE, "", b"old"),
        ("hard", tarfile.LNKTYPE, "a", b""),
        ("soft", tarfile.SYMTYPE, "a", b""),
        ("a", tarfile.REGTYPE, "", b"new"),
        ("later", tarfile.SYMTYPE, "soft", b""),
        ("round", tarfile.SYMTYPE, "about", b""),
        ("about", tarfile.SYMTYPE, "round", b""),
    )
    contents = {name: archive.cat_file(name) for name in ("hard", "soft", "early", "later")}
    assert contents == {"hard": b"old", "soft": b"new", "early": b"new", "later": b"new"}
    dead = "link to what its archive does not hold"
    found = {name: why for name, why in problems(archive).items() if why != REPLACED}
    assert found == {"about": dead, "round": dead}
    assert len(problems(archive)) == 3


def test_a_tar_cut_at_every_byte_is_refused() -> None:
    data = tar_of({"a": b"1" * 600, "b": b"2" * 100})
    end = 512 + 1024 + 512 + 512  # of the last member; behind it, one block of zeros suffices
    for stop in range(len(data)):
        if stop >= end + 512 and stop % 512 == 0:
            assert set(opened(data[:stop]).find("")) == {"a", "b"}
            continue
        with pytest.raises(DataError, match=r"a\.tar"):
            opened(data[:stop])


def test_a_compressed_tar_cut_at_every_byte(tmp_path: pathlib.Path) -> None:
    data = gzip.compress(tar_of({"x/a": os.urandom(300), "x/b": os.urandom(300)}))
    path = tmp_path / "a.tar.gz"
    for stop in range(0, len(data), 3):
        path.write_bytes(data[:stop])
        with pytest.raises(DataError, match=r"a\.tar\.gz"):
            open_source("a.tar.gz", str(tmp_path)).list()
    path.write_bytes(data)
    assert [file.path for file in open_source("a.tar.gz", str(tmp_path)).list()] == ["x/a", "x/b"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "not a tar archive"),
        (b"not a tar" * 100, "not a tar archive"),
        (bytes(100), "not a tar archive"),
        (gzip.compress(b"", mtime=0), "not a tar archive"),
        (gzip.compress(b"text, and not a tar" * 99, mtime=0), "not a tar archive"),
        (b"\x1f\x8b\x08 no gzip", "not a tar archive"),
        (b"PK\3\4" + bytes(600), "not a tar archive"),
    ],
)
def test_what_is_no_archive_says_so(data: bytes, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        opened(data)


def test_damage_inside_and_behind_is_refused() -> None:
    good = tar_of({"a": b"1", "b": b"2", "c": b"3"})
    end = len(good.rstrip(b"\0")) // 512 * 512 + 512
    damaged = {
        "read after 'a': damaged from byte 1,024 on": good[:1024] + b"garbage!" * 64 + good[1536:],
        "read after 'c': its end is marked at .*more follows": good[:end] + bytes(1024) + good,
        "read after 'c': it ends at .*without the mark": good[:end],
    }
    for message, data in damaged.items():
        with pytest.raises(DataError, match=message):
            opened(data)
    assert not problems(opened(good[:end] + bytes(512)))
    assert not problems(opened(bytes(1024)))


def test_damage_is_told_where_a_glob_chooses(tmp_path: pathlib.Path) -> None:
    data = tar_of(CONTENTS)
    (tmp_path / "a.tar").write_bytes(data[: len(data) // 2 // 512 * 512])
    with pytest.raises(DataError, match="the archive cannot be read after"):
        open_source("tar://dog/**::a.tar", str(tmp_path)).list()


def test_a_zip_that_leads_out_is_told(tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("../evil", b"x")
        archive.writestr("good/1", b"x")
    found = {f.path: f.problem for f in open_source("a.zip", str(tmp_path)).list()}
    assert found == {"../evil": "path that leads out of its archive", "good/1": ""}


def test_no_member_of_a_zip_is_lost(tmp_path: pathlib.Path) -> None:
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name in ("a.txt", "a.txt", "b.txt", "b.txt/", "/c.txt", "c.txt", "d/", "d/e.txt"):
            archive.writestr(name, b"" if name.endswith("/") else name.encode())
    source = open_source("a.zip", str(tmp_path))
    found = {file.path: file.problem for file in source.list()}
    good = {path for path, problem in found.items() if not problem}
    assert good == {"a.txt", "b.txt", "c.txt", "d/e.txt"}
    assert sorted(problem for problem in found.values() if problem) == [LEADS_OUT, REPLACED]
    assert source.read("b.txt") == b"b.txt"
    assert source.read("c.txt") == b"c.txt"


def test_two_zips_in_one_file_are_refused(tmp_path: pathlib.Path) -> None:
    def zipped(name: str) -> bytes:
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w") as archive:
            archive.writestr(name, b"x")
        return sink.getvalue()

    (tmp_path / "a.zip").write_bytes(zipped("a.txt") + zipped("b.txt"))
    with pytest.raises(DataError, match="as two archives in one file have"):
        open_source("a.zip", str(tmp_path))
    # A program before it, as in an archive that unpacks itself, is none.
    (tmp_path / "b.zip").write_bytes(b"MZ" + bytes(100) + zipped("b.txt"))
    assert [file.path for file in open_source("b.zip", str(tmp_path)).list()] == ["b.txt"]


def test_a_zip_cut_at_every_byte_is_told(tmp_path: pathlib.Path) -> None:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("good/1", b"x")
    data = sink.getvalue()
    for stop in range(len(data)):
        (tmp_path / "a.zip").write_bytes(data[:stop])
        with pytest.raises(DataError, match=r"a\.zip is (not a|a truncated) zip archive"):
            open_source("a.zip", str(tmp_path))


@given(st.data())
def test_any_damage_is_told_or_harmless(data: st.DataObject) -> None:
    content = bytearray(tar_of({"a": b"1" * 30, "b": b"2" * 40}))
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, 2100))
        content[place] = data.draw(st.integers(0, 255))
    try:
        archive = opened(bytes(content))
    except DataError:
        return
    for name, info in archive.find("", detail=True).items():
        assert len(archive.cat_file(name)) == info["size"]
