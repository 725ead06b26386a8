"""The inventory: known contents are not read again, changed ones never missed."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
import random
import tempfile
import time
import zipfile
import zlib
from collections.abc import Sequence

import pytest

import snapshard as ss
from snapshard.pipelines.inventory.hash_cache import Known, read_hash_cache
from snapshard.pipelines.inventory.step import (
    Inventory,
    Sizes,
    read_descriptors,
    take_inventory,
    write_descriptors,
)
from snapshard.schemas.blocks import Block, FileRange, Selection, SourceFile
from snapshard.schemas.errors import DataError, StorageError
from snapshard.schemas.limits import Limits
from snapshard.schemas.naming import Workspace
from snapshard.schemas.progress import Silent
from snapshard.schemas.recipe import OpenSource
from snapshard.transforms import storage
from snapshard.transforms.sources.blocks import block_size
from snapshard.transforms.sources.combined import open_files
from snapshard.transforms.storage.opened_source import OpenedSource, open_source
from snapshard.transforms.storage.unchanged import COARSE_NS

from ..file_bytes import tar_of, zip_of

OLD_NS = 1_600_000_000_000_000_000


@dataclasses.dataclass(frozen=True)
class Everything:
    """A source whose records' files are all but those that end in .skip."""

    cut_bytes: int = 0
    asked: list[str] = dataclasses.field(default_factory=list)

    def settings(self) -> dict[str, object]:
        return {"cut_bytes": self.cut_bytes}

    def select(self, files: Sequence[SourceFile]) -> Selection:
        kept = tuple(file for file in files if not file.path.endswith(".skip"))
        skipped = len(files) - len(kept)
        return Selection(files=kept, num_skipped={"not wanted": skipped} if skipped else {})

    def cuts(self, file: SourceFile, opened: OpenSource, *, every: int) -> tuple[int, ...]:
        self.asked.append(file.path)
        assert opened.read(file.path, 0, 1)
        return (
            tuple(range(self.cut_bytes, file.num_bytes, self.cut_bytes)) if self.cut_bytes else ()
        )


class Recorded(Silent):
    """Progress that is kept."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def start(self, step: str, *, total: int | None, unit: str) -> None:
        self.told.append(("start", step, total, unit))

    def advance(self, step: str, *, done: int) -> None:
        self.told.append(("advance", done))

    def finish(self, step: str, *, reused: bool, note: str = "") -> None:
        self.told.append(("finish", reused))


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder of raw files, old enough to be trusted, and a workspace."""

    folder: pathlib.Path

    @property
    def raw(self) -> pathlib.Path:
        return self.folder / "raw"

    @property
    def memo(self) -> pathlib.Path:
        return self.folder / "work" / "memo.json"

    def put(self, path: str, content: bytes) -> None:
        storage.put_bytes(f"{self.raw}/{path}", content)

    def take(self, source: Everything | None = None, *, write: bool = True) -> Inventory:
        return take_inventory(
            source or Everything(),
            open_source("raw", str(self.folder)),
            workspace=Workspace(f"{self.folder}/work"),
            progress=Silent(),
            write=write,
        )


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    made = Place(tmp_path)
    for path in ("a/1.jpg", "a/2.jpg", "b/3.jpg", "notes.skip"):
        made.put(path, path.encode())
    return made


@pytest.fixture
def aged(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour has passed since the files were made."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3600 * 10**9)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_tells_what_a_source_holds(place: Place) -> None:
    found = place.take()
    assert [(file.path, file.num_bytes, file.sha256) for file in found.files] == [
        (path, 7, _sha256(path.encode())) for path in ("a/1.jpg", "a/2.jpg", "b/3.jpg")
    ]
    assert found.num_skipped == {"not wanted": 1}
    assert (found.num_bytes, found.num_hashed) == (21, 3)
    (block,) = found.blocks
    assert [(part.path, part.sha256) for part in block.ranges] == [
        (file.path, file.sha256) for file in found.files
    ]


@pytest.mark.usefixtures("aged")
def test_a_second_inventory_reads_and_writes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = place.take()
    written, names = place.memo.stat().st_mtime_ns, sorted(os.listdir(place.memo.parent))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("read or written")

    monkeypatch.setattr(OpenedSource, "chunks", refuse)
    monkeypatch.setattr(OpenedSource, "read", refuse)
    monkeypatch.setattr(storage, "put_bytes", refuse)
    second = place.take()
    assert second == dataclasses.replace(first, num_hashed=0)
    assert place.memo.stat().st_mtime_ns == written
    assert sorted(os.listdir(place.memo.parent)) == names


def test_files_as_young_as_the_memo_are_read_again_and_nothing_is_written(place: Place) -> None:
    first = place.take()
    before = place.memo.stat()
    second = place.take()
    assert second.num_hashed == 3
    assert second == first
    assert place.memo.stat() == before


@pytest.mark.usefixtures("aged")
def test_a_touched_file_is_read_again_and_means_the_same(place: Place) -> None:
    first = place.take()
    os.utime(place.raw / "a" / "1.jpg", ns=(OLD_NS, OLD_NS))
    second = place.take()
    assert second.num_hashed == 1
    assert second.input_digest == first.input_digest
    assert second.blocks == first.blocks
    assert place.take().num_hashed == 0


@pytest.mark.usefixtures("aged")
@pytest.mark.parametrize("keep_time", [True, False])
def test_a_changed_content_of_the_same_length_is_noticed(place: Place, keep_time: bool) -> None:
    os.utime(place.raw / "a" / "1.jpg", ns=(OLD_NS, OLD_NS))
    first = place.take()
    place.put("a/1.jpg", b"a/1.JPG")
    if keep_time:
        os.utime(place.raw / "a" / "1.jpg", ns=(OLD_NS, OLD_NS))
    second = place.take()
    assert second.num_hashed == 1
    assert second.files[0].sha256 == _sha256(b"a/1.JPG")
    assert second.input_digest != first.input_digest


@pytest.mark.usefixtures("aged")
def test_added_and_removed_files_are_noticed(place: Place) -> None:
    first = place.take()
    place.put("a/0.jpg", b"new")
    second = place.take()
    assert second.num_hashed == 1
    assert second.input_digest != first.input_digest
    (place.raw / "a" / "0.jpg").unlink()
    third = place.take()
    assert (third.num_hashed, third.input_digest) == (0, first.input_digest)


def test_a_copy_made_in_another_order_at_another_time_is_the_same(place: Place) -> None:
    first = place.take()
    copy = Place(place.folder / "copy")
    paths = ["a/1.jpg", "a/2.jpg", "b/3.jpg", "other.skip"]
    random.Random(1).shuffle(paths)
    for path in paths:
        copy.put(path, path.encode())
        os.utime(copy.raw / path, ns=(OLD_NS, OLD_NS))
    second = copy.take()
    assert second.input_digest == first.input_digest
    assert second.blocks == first.blocks


def test_a_dry_run_writes_nothing(place: Place) -> None:
    found = place.take(write=False)
    assert found.num_hashed == 3
    assert os.listdir(place.folder) == ["raw"]


@pytest.mark.usefixtures("aged")
def test_a_damaged_memo_is_ignored(place: Place) -> None:
    first = place.take()
    intact = place.memo.read_bytes()
    head, body = intact.split(b"\n", 1)
    flipped = body.replace(first.files[0].sha256[:8].encode(), b"00000000")
    assert flipped != body
    for damaged in (b"", b"{", b"[]", intact[:-9], head, head + b"\n" + flipped, os.urandom(99)):
        place.memo.write_bytes(damaged)
        assert place.take() == first
        assert place.memo.read_bytes().split(b"\n")[0].startswith(b"snapshard memo")
        assert place.take().num_hashed == 0


@pytest.mark.usefixtures("aged")
def test_the_memo_keeps_sources_apart_and_no_credentials(tmp_path: pathlib.Path) -> None:
    url = str(tmp_path / "memo.json")
    file = SourceFile(path="a", num_bytes=1, stamp="etag:1")
    known = Known(num_bytes=1, stamp="etag:1", sha256="f" * 64)
    for number in range(6):
        cache = read_hash_cache(url, source=f"s3://ann:secret{number}@bucket", cuts_by="x")
        assert cache.find(file) is None
        cache.write(
            [dataclasses.replace(file, sha256=known.sha256)],
            cuts={},
            parts={},
            listed_ns=time.time_ns(),
        )
    found = [
        read_hash_cache(url, source=f"s3://ann:secret{number}@bucket", cuts_by="x").find(file)
        for number in range(6)
    ]
    assert found == [None, None, known, known, known, known]
    assert b"secret" not in (tmp_path / "memo.json").read_bytes()


@pytest.mark.parametrize(
    ("stamp", "known_again"),
    [
        (f"time:{OLD_NS - COARSE_NS - 1}", True),
        (f"time:{OLD_NS - COARSE_NS + 1}", False),
        (f"time:{OLD_NS - COARSE_NS - 1},{OLD_NS - 1}", False),
        (f"time:{OLD_NS + 10**12}", False),
        ("ETag:5d41402a", True),
        (f"ETag:900 time:1,{OLD_NS - 10**12} 512", True),
        (f"ETag:900 time:1,{OLD_NS} 512 00000000", False),
        ("", False),
    ],
)
def test_a_stamp_is_trusted_once_the_clock_has_moved_on(
    tmp_path: pathlib.Path, stamp: str, known_again: bool
) -> None:
    url = str(tmp_path / "memo.json")
    known = Known(num_bytes=1, stamp=stamp, sha256="f" * 64)
    file = SourceFile(path="a", num_bytes=1, stamp=stamp)
    read_hash_cache(url, source="s", cuts_by="x").write(
        [dataclasses.replace(file, sha256=known.sha256)], cuts={}, parts={}, listed_ns=OLD_NS
    )
    found = read_hash_cache(url, source="s", cuts_by="x").find(file)
    assert found == (known if known_again else None)


@pytest.mark.usefixtures("aged")
def test_large_files_are_cut_and_the_cuts_remembered(place: Place) -> None:
    num_bytes = 200 * 2**20 + 5
    with open(place.raw / "a" / "big.csv", "wb") as file:
        file.truncate(num_bytes)
    source = Everything(cut_bytes=2**20)
    first = place.take(source)
    assert source.asked == ["a/big.csv"]
    big = [part for block in first.blocks for part in block.ranges if part.path == "a/big.csv"]
    assert [part.start for part in big] == [0, *(part.stop for part in big[:-1])]
    assert big[-1].stop == num_bytes
    assert len(big) == -(-num_bytes // block_size(num_bytes))
    assert all(part.start % 2**20 == 0 for part in big)
    assert place.take(source) == dataclasses.replace(first, num_hashed=0)
    assert source.asked == ["a/big.csv"]
    # Cut otherwise, the large file alone is read once more.
    other = Everything(cut_bytes=2**22)
    assert place.take(other).num_hashed == 1
    assert other.asked == ["a/big.csv"]


def test_files_with_a_problem_stay_in_their_block(place: Place) -> None:
    (place.raw / "a" / "dangling.jpg").symlink_to("nowhere")
    found = place.take()
    assert found.blocks[0].ranges[2] == FileRange(
        path="a/dangling.jpg", sha256="", start=0, stop=0, problem="dangling symbolic link"
    )
    (place.raw / "a" / "dangling.jpg").unlink()
    assert place.take().input_digest != found.input_digest


def test_a_file_that_turns_out_unreadable_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_, **__: True)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        place = Place(pathlib.Path(folder))
        place.put("1.jpg", b"one")
        place.put("2.jpg", b"two")
        os.chmod(place.raw / "1.jpg", 0)
        if root := not os.geteuid():
            os.seteuid(65534)
        try:
            found = place.take(write=False)
        finally:
            if root:
                os.seteuid(0)
    assert [(file.problem, file.num_bytes) for file in found.files] == [
        ("no permission to read", 0),
        ("", 3),
    ]


def test_a_file_that_changes_while_it_is_read_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_list = OpenedSource.list

    def outdated(self: OpenedSource) -> tuple[SourceFile, ...]:
        return tuple(dataclasses.replace(file, num_bytes=9) for file in opened_list(self))

    monkeypatch.setattr(OpenedSource, "list", outdated)
    with pytest.raises(StorageError, match=r"1\.jpg changed while the build read it"):
        place.take()
    assert not place.memo.exists()


def test_a_source_without_files_is_refused(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    place.raw.mkdir()
    with pytest.raises(DataError, match=r"Everything: .*raw holds no files"):
        place.take()


def test_a_source_without_records_is_refused(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    place.put("a.skip", b"")
    place.put("b.skip", b"")
    with pytest.raises(DataError, match=r"none of the 2 files .*a\.skip.* not wanted: 2"):
        place.take()


@pytest.mark.parametrize("kind", ["zip", "memory"])
def test_takes_inventory_of_archives_and_stores(place: Place, kind: str) -> None:
    paths = ["a/1.jpg", "a/2.jpg", "b/3.jpg", "notes.skip"]
    if kind == "zip":
        url = f"zip://*::{place.folder}/raw.zip"
        with zipfile.ZipFile(place.folder / "raw.zip", "w") as archive:
            for path in paths:
                archive.writestr(path, path)
    else:
        url = f"memory://test_inventory/{place.folder.name}"
        for path in paths:
            storage.put_bytes(f"{url}/{path}", path.encode())
    found = take_inventory(
        Everything(),
        open_source(url, "/"),
        workspace=Workspace(f"memory://test_inventory_work/{place.folder.name}"),
        progress=Silent(),
    )
    assert found.input_digest == place.take().input_digest
    storage.remove_tree(f"memory://test_inventory/{place.folder.name}")
    storage.remove_tree(f"memory://test_inventory_work/{place.folder.name}")


def same_crc(content: bytes) -> bytes:
    """Another content of equal length and CRC-32: the generator polynomial added to it."""
    polynomial = sum(1 << 32 - power for power in range(33) if 0x104C11DB7 >> power & 1)
    number = int.from_bytes(content, "little") ^ polynomial
    return number.to_bytes(len(content), "little")


@pytest.mark.usefixtures("aged")
@pytest.mark.parametrize("inner", [False, True], ids=["", "in a zip"])
@pytest.mark.parametrize("store", ["local", "memory"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_member_of_equal_length_and_crc_is_noticed(
    tmp_path: pathlib.Path, kind: str, store: str, inner: bool
) -> None:
    folder = str(tmp_path) if store == "local" else f"memory://test_crc/{tmp_path.name}"
    first = {"a.bin": b"some content", "b.bin": b"the same"}
    second = {"a.bin": same_crc(first["a.bin"]), "b.bin": b"the same"}
    assert zlib.crc32(first["a.bin"]) == zlib.crc32(second["a.bin"])
    pack = tar_of if kind == "tar" else functools.partial(zip_of, method=zipfile.ZIP_STORED)
    taken = []
    for contents in (first, first, second):
        if len(taken) != 1:
            content, url = pack(contents), f"{kind}://::{folder}/a.{kind}"
            if inner:
                content, url = zip_of({f"a.{kind}": content}), f"{kind}://::zip://a.{kind}"
                url = f"{url}::{folder}/outer.zip"
            storage.put_bytes(url.rpartition("::")[2], content)
        taken.append(
            take_inventory(
                Everything(),
                open_source(url, "/"),
                workspace=Workspace(f"{tmp_path}/work"),
                progress=Silent(),
            )
        )
    assert [found.num_hashed for found in taken] == [2, 0, 2]
    assert [file.sha256 for file in taken[2].files] == [_sha256(c) for c in second.values()]
    assert taken[2].input_digest != taken[1].input_digest == taken[0].input_digest
    storage.remove_tree("memory://test_crc")


def test_a_damaged_member_of_an_archive_is_a_problem(place: Place) -> None:
    with zipfile.ZipFile(place.folder / "raw.zip", "w") as archive:
        archive.writestr("a.jpg", b"0123456789")
        archive.writestr("b.jpg", b"0123456789")
    content = (place.folder / "raw.zip").read_bytes()
    (place.folder / "raw.zip").write_bytes(content.replace(b"0123456789", b"01234X6789", 1))
    found = take_inventory(
        Everything(),
        open_source("zip://*::raw.zip", str(place.folder)),
        workspace=Workspace(f"{place.folder}/work"),
        progress=Silent(),
    )
    assert [file.problem for file in found.files] == ["damaged or encrypted in its archive", ""]


def test_progress_is_told_to_the_end(place: Place) -> None:
    (place.raw / "dangling.jpg").symlink_to("nowhere")
    progress = Recorded()
    take_inventory(
        Everything(),
        open_source("raw", str(place.folder)),
        workspace=Workspace(f"{place.folder}/work"),
        progress=progress,
        sizes=Sizes(batch_files=1),
    )
    assert progress.told == [
        ("start", "inventory", 4, "files"),
        *(("advance", done) for done in (1, 2, 3, 4)),
        ("finish", False),
    ]


@pytest.mark.parametrize("root", ["local", "memory"])
def test_descriptors_hold_all_blocks(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    def make(number: int, num_ranges: int) -> Block:
        return Block(
            tuple(
                FileRange(path=f"\udcff{number}/{i}\n", sha256="f" * 64, start=i, stop=9 + i)
                for i in range(num_ranges)
            )
        )

    blocks = [make(number, 25 if number == 4 else 1) for number in range(8)]
    url = str(tmp_path) if root == "local" else f"memory://test_descriptors/{tmp_path.name}"
    workspace = Workspace(url)
    urls = write_descriptors(blocks, workspace, max_blocks=3, max_ranges=20)
    groups = [[Block.from_line(line) for line in read_descriptors(url)] for url in urls]
    assert [block for group in groups for block in group] == blocks
    assert [len(group) for group in groups] == [3, 2, 3]
    monkeypatch.setattr(storage, "put_bytes", None)
    assert write_descriptors(blocks, workspace, max_blocks=3, max_ranges=20) == urls
    assert write_descriptors([], workspace) == []


@pytest.mark.usefixtures("aged")
def test_contents_of_many_sources_are_remembered(tmp_path: pathlib.Path) -> None:
    for number in range(12):
        path = tmp_path / f"in-{number}" / "a.csv"
        path.parent.mkdir()
        path.write_text(f"x\n{number}\n")
    sources = {f"s{number}": ss.Csv(f"in-{number}") for number in range(12)}
    hashed = []
    for names in (list(sources), list(sources), [*sources][6:], list(sources)):
        source = ss.Sources(**{name: sources[name] for name in names})
        found = take_inventory(
            source,
            open_files(source, str(tmp_path), Limits()),
            workspace=Workspace(str(tmp_path / ".work")),
            progress=Silent(),
        )
        assert [file.path for file in found.files] == sorted(f"{name}/a.csv" for name in names)
        hashed.append(found.num_hashed)
    assert hashed == [12, 0, 0, 0]
