"""What proves that a file is still the one that was listed, and what does not."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import fsspec
import pytest

from snapshard.schemas.blocks import Block, FileRange, SourceFile
from snapshard.schemas.errors import MissingFileError, SourceChangedError, StorageError
from snapshard.transforms.sources.blocks import group_blocks
from snapshard.transforms.storage.opened_source import OpenedSource, open_source
from snapshard.transforms.storage.unchanged import (
    Look,
    SourceProof,
    settled_ns,
    stamp_of,
    stamp_of_local,
)

from ..file_bytes import zip_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a\n1\n")
    return path


def listed(file: Path) -> tuple[OpenedSource, FileRange]:
    """The source, and its one file as a block has it."""
    opened = open_source(str(file), ".")
    (found,) = opened.list()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return opened, FileRange(
        path=found.path, sha256=digest, start=0, stop=found.num_bytes, stamp=found.stamp
    )


def read(opened: OpenedSource, part: FileRange | SourceFile) -> bytes:
    proving = opened.proving([part])
    content = proving.read(part.path)
    assert proving.proof is not None
    proving.proof.check()
    return content


def test_a_file_that_did_not_change_is_read_once(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, part = listed(file)
    monkeypatch.setattr(OpenedSource, "chunks", None)  # nothing is hashed again
    assert read(opened, part) == b"a\n1\n"


def test_a_touched_file_is_hashed_and_taken(file: Path) -> None:
    opened, part = listed(file)
    os.utime(file)
    assert read(opened, part) == b"a\n1\n"


def test_a_touched_file_of_ranges_that_stand_alone_is_hashed_and_taken(file: Path) -> None:
    opened = open_source(str(file), ".")
    (found,) = opened.list()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    blocks = group_blocks(
        [dataclasses.replace(found, sha256=digest)],
        {found.path: (2,)},
        block_bytes=1,
        parts={found.path: ("ab", "cd")},
    )
    os.utime(file)
    for block in blocks:
        (part,) = Block.from_line(block.to_line()).ranges
        assert part.sha256 != digest
        assert read(opened, part) == b"a\n1\n"


def test_another_file_of_equal_times_and_length_is_another_file() -> None:
    """Clocks tick slowly: what is written within a tick has equal times."""
    found = os.stat(".")
    names = [name for name in dir(found) if name.startswith("st_")]
    one = types.SimpleNamespace(**{name: getattr(found, name) for name in names})
    other = types.SimpleNamespace(**{**vars(one), "st_ino": found.st_ino + 1})
    assert stamp_of_local(cast("os.stat_result", one)) != stamp_of_local(
        cast("os.stat_result", other)
    )


def test_a_single_file_is_named_once() -> None:
    store = fsspec.filesystem("memory")
    store.pipe({"/named_once/t.csv": b"a\n"})
    assert (
        open_source("memory://named_once/t.csv", ".").place("t.csv") == "memory://named_once/t.csv"
    )
    folder = open_source("memory://named_once", ".")
    assert folder.place("t.csv") == "t.csv of memory://named_once"


@pytest.mark.parametrize("stamp", ["listed", ""])
@pytest.mark.parametrize("content", [b"a\n2\n", b"a\n1\n2\n", b""])
def test_another_content_is_an_error(file: Path, stamp: str, content: bytes) -> None:
    opened, part = listed(file)
    if not stamp:
        part = dataclasses.replace(part, stamp="")
    file.write_bytes(content)
    with pytest.raises(SourceChangedError, match=r"t\.csv changed while the build read it"):
        read(opened, part)


def test_a_file_that_is_gone_is_an_error(file: Path) -> None:
    opened, part = listed(file)
    file.unlink()
    proving = opened.proving([part])
    # A worker may not see the disk, so it is not said to have changed where it is read ...
    with pytest.raises(MissingFileError, match="it does not exist"):
        proving.read(part.path)
    # ... but nothing that was made without it is kept.
    assert proving.proof is not None
    with pytest.raises(SourceChangedError):
        proving.proof.check()


def test_without_a_stamp_the_content_is_hashed_before_and_after(file: Path) -> None:
    opened, part = listed(file)
    proving = opened.proving([dataclasses.replace(part, stamp="")])
    assert proving.read(part.path) == b"a\n1\n"
    before = os.stat(file)
    file.write_bytes(b"a\n2\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert proving.proof is not None
    with pytest.raises(SourceChangedError):
        proving.proof.check()


def test_a_replaced_archive_is_an_error_though_its_members_look_the_same(tmp_path: Path) -> None:
    """Members are read and looked at through the archive that was opened."""
    path, other = tmp_path / "z.zip", tmp_path / "other.zip"
    path.write_bytes(zip_of({"a.csv": b"a\n1\n", "b.csv": b"a\n2\n"}))
    opened = open_source(f"zip://::{path}", ".")
    early, late = (opened.proving(opened.list()) for _ in range(2))
    assert late.read("a.csv") == b"a\n1\n"
    late.check()
    other.write_bytes(zip_of({"a.csv": b"a\n1\n", "b.csv": b"a\n3\n"}))
    other.replace(path)
    with pytest.raises(SourceChangedError, match=r"b\.csv of .*z\.zip changed"):
        early.read("b.csv")
    assert late.read("b.csv") == b"a\n2\n"
    with pytest.raises(SourceChangedError, match=r"a\.csv of .*z\.zip changed"):
        late.check()


def test_a_failed_read_of_an_overwritten_archive_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "z.zip"
    path.write_bytes(
        zip_of({"a.csv": b"a\n1\n", "b.csv": bytes(1 << 20)}, method=zipfile.ZIP_STORED)
    )  # more than is buffered
    opened = open_source(f"zip://::{path}", ".")
    proving = opened.proving(opened.list())
    proving.read("a.csv")
    path.write_bytes(b"none of it")
    with pytest.raises(SourceChangedError, match=r"b\.csv of .*z\.zip changed"):
        proving.read("b.csv")


def test_an_error_that_a_source_took_for_bad_data_is_not_lost(file: Path) -> None:
    opened, part = listed(file)
    file.write_bytes(b"a\n2\n")
    proving = opened.proving([part])
    with pytest.raises(SourceChangedError):
        proving.read(part.path)
    assert proving.proof is not None
    with pytest.raises(SourceChangedError):
        proving.proof.check()


def test_other_errors_stay_what_they_are(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, part = listed(file)
    proving = opened.proving([part])
    monkeypatch.setattr("snapshard.transforms.storage.read_open", _fail)
    with pytest.raises(StorageError, match="input/output error") as raised:
        proving.read(part.path)
    assert not isinstance(raised.value, SourceChangedError)


class Store:
    """A store of one file, which reports as little about it as a test wants."""

    def __init__(self, stamp: str) -> None:
        self.stamp, self.content = stamp, b"a\n1\n"

    def look(self, _: str) -> Look | None:
        return Look(self.stamp, self.stamp)

    def chunks(self, _: str, *, chunk_bytes: int) -> Iterator[bytes]:
        assert chunk_bytes > 0
        yield self.content

    def archive_changed(self) -> bool:
        return False

    def list(self) -> tuple[SourceFile, ...]:
        return (self.listed(),)

    def place(self, path: str) -> str:
        return path

    def listed(self) -> SourceFile:
        return SourceFile(
            path="t.csv",
            num_bytes=len(self.content),
            stamp=self.stamp,
            sha256=hashlib.sha256(self.content).hexdigest(),
        )


@pytest.mark.parametrize("changes", [False, True])
def test_a_file_that_its_store_says_nothing_of_is_hashed_after_it_was_read(changes: bool) -> None:
    store = Store("")
    proof = SourceProof(store, [store.listed()])
    proof.hold("t.csv")
    proof.check()
    if changes:
        store.content = b"a\n2\n"
        with pytest.raises(SourceChangedError, match=r"t\.csv changed"):
            proof.check()
    else:
        proof.check()


def test_noted_files_are_compared_with_a_new_listing() -> None:
    store = Store("ETag:1")
    proof, unconcerned = (SourceProof(store, [store.listed()]) for _ in range(2))
    proof.note(["t.csv", "of another source.csv"])
    proof.check()
    store.stamp = "ETag:2"
    with pytest.raises(SourceChangedError, match=r"t\.csv changed"):
        proof.check()
    unconcerned.check()


def test_a_failed_read_by_tag_is_explained_by_a_change_alone() -> None:
    """Such a file is not held before: the store compares the tag."""
    store = Store("ETag:1")
    proof = SourceProof(store, [store.listed()])
    proof.explain("t.csv")
    store.stamp = "ETag:2"
    with pytest.raises(SourceChangedError, match=r"t\.csv changed"):
        proof.explain("t.csv")


def _fail(*_: object) -> bytes:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    ("info", "settled_s"),
    [
        ({"mtime": 1_700_000_000.25}, 1_700_000_000.27),
        ({"mtime": 1_700_000_000}, 1_700_000_002),  # a clock of seconds, or of two
        ({"Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT"}, 1_700_000_002),
        ({"ETag": '"abc"', "LastModified": "2023-11-14"}, 0),
        ({}, 0),
    ],
)
def test_from_when_on_a_change_shows(info: dict[str, object], settled_s: float) -> None:
    assert settled_ns(stamp_of(info)) == pytest.approx(settled_s * 1e9, abs=1000)
