"""Sources that change between the inventory and the end of prepare are never taken for themselves.

Each kind of source is surveyed and read, as a build and its workers do, while its file is replaced:
before a block is read, between the look at the file and its read, and with the old file put back
before anybody looks again. It may stop and name the file, or read what its fingerprint says;
nothing else. One build shows that nothing is published then.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import http.server
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import snapshard as ss
from snapshard.pipelines.inspect.verify import verify
from snapshard.pipelines.prepare.block_worker import SourceReader
from snapshard.schemas.errors import SourceChangedError
from snapshard.schemas.progress import Silent
from snapshard.transforms import storage
from snapshard.transforms.storage.opened_source import OpenedSource
from snapshard.transforms.storage.unchanged import SourceProof

from ..file_bytes import tar_of, zip_of
from ..pipelines.read_records import ReadRecords, read_records
from ..transforms.sources.subjects import IN_FILES, read_objects

NUM_ROWS = 40


def _content(name: str) -> Callable[[int], bytes]:
    """Two files of a source, which differ in every record, by version."""

    def content(version: int) -> bytes:
        files = IN_FILES[name].files
        assert files is not None
        return next(iter(files([range(100 * version, 100 * version + NUM_ROWS)]).values()))

    return content


_csv = _content("Csv")


def _reads_by_path(folder: str) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """A function that opens the file itself, as libraries in C do."""

    def rows(file: Any) -> Iterator[dict[str, Any]]:
        with open(os.path.join(folder, file.path), "rb") as opened:
            for line in opened:
                yield json.loads(line)

    return rows


CASES: dict[str, tuple[str, Callable[[int], bytes], Callable[[str], Any]]] = {
    "csv": ("t.csv", _csv, ss.Csv),
    "csv.gz": ("t.csv.gz", _content("Csv gzip"), ss.Csv),
    "csv in zip": ("t.zip", lambda n: zip_of({"t.csv": _csv(n)}), ss.Csv),
    "csv in tar": ("t.tar", lambda n: tar_of({"t.csv": _csv(n)}), ss.Csv),
    "csv in tar.gz": (
        "t.tar.gz",
        lambda n: gzip.compress(tar_of({"t.csv": _csv(n)}), mtime=0),
        ss.Csv,
    ),
    "json lines": ("t.jsonl", _content("JsonLines"), ss.JsonLines),
    "parquet": ("t.parquet", _content("Parquet"), ss.Parquet),
    "arrow": ("t.arrow", _content("Arrow"), ss.Arrow),
    "npy": ("t.npy", _content("Numpy"), ss.Numpy),
    "tfrecord": ("t.tfrecord", _content("TFRecords"), ss.TFRecords),
    "text": ("t.txt", _content("TextFiles"), ss.TextFiles),
    "web dataset": ("t.tar", _content("WebDataset"), ss.WebDataset),
    "own files": ("t.txt", _content("Files"), lambda url: ss.Files(url, read_objects)),
    "own files by path": (
        "t.txt",
        _content("Files"),
        lambda url: ss.Files(url, _reads_by_path(os.path.dirname(url))),
    ),
    "images": (
        "c/i.png",
        _content("ImageFolder"),
        lambda url: ss.ImageFolder(os.path.dirname(os.path.dirname(url))),
    ),
}


class Project:
    """A source of one file, that can become another."""

    def __init__(self, folder: Path, case: str) -> None:
        name, self._content, source = CASES[case]
        self.file = folder / "raw" / name
        self.file.parent.mkdir(parents=True)
        self.folder = folder
        self.write(1)
        self.recipe = recipe_of(source(str(self.file)))

    def write(self, version: int) -> None:
        """Puts another file in place, as a downloader does."""
        new = self.file.with_name("new")
        new.write_bytes(self._content(version))
        os.replace(new, self.file)

    def overwrite(self, version: int) -> None:
        """Writes into the same file, and gives it its old time back."""
        before = os.stat(self.file)
        with open(self.file, "r+b") as opened:
            opened.write(self._content(version))
            opened.truncate()
        os.utime(self.file, ns=(before.st_atime_ns, before.st_mtime_ns))

    def set_aside(self) -> Callable[[], None]:
        """Puts version 2 in place; what it gives puts the first file back, its times included."""
        aside = self.file.parent.parent / "aside"
        os.rename(self.file, aside)
        self.write(2)
        return lambda: os.replace(aside, self.file)

    @contextlib.contextmanager
    def in_another_folder(self) -> Iterator[None]:
        """Puts a folder with version 2 in the place of the file's, and the old one back."""
        folder, aside = self.file.parent, self.file.parent.with_name("folder aside")
        other = self.file.parent.with_name("other")
        other.mkdir()
        (other / self.file.name).write_bytes(self._content(2))
        os.rename(folder, aside)
        os.rename(other, folder)
        try:
            yield
        finally:
            os.rename(folder, other)
            os.rename(aside, folder)
            shutil.rmtree(other)

    def read(self) -> ReadRecords:
        return read_records(self.recipe, self.folder)

    def try_to_read(self) -> tuple[ReadRecords | None, str]:
        """What is read, or what is said of the change."""
        try:
            return self.read(), ""
        except SourceChangedError as error:
            return None, str(error)


def recipe_of(source: Any) -> ss.Recipe:
    return ss.Recipe(name="made", source=source, splits=ss.Splits(train=1.0))


def _as_prepare_begins(change: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    read = SourceReader.read

    def changed(self: SourceReader, block: Any) -> Iterator[Any]:
        change(2)
        yield from read(self, block)

    monkeypatch.setattr(SourceReader, "read", changed)


def _before(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced as prepare begins."""
    _as_prepare_begins(project.write, monkeypatch)


def _in_place(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, in the same inode and with the same time of modification."""
    _as_prepare_begins(project.overwrite, monkeypatch)


def _after_the_look(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced when it has been looked at, and before it is read."""
    hold = SourceProof.hold

    def changed(self: SourceProof, path: str) -> None:
        hold(self, path)
        project.write(2)

    monkeypatch.setattr(SourceProof, "hold", changed)


def _put_back(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, and the old file is put back before it is looked at again."""
    hold, check = SourceProof.hold, SourceProof.check
    back: list[Callable[[], None]] = []

    def changed(self: SourceProof, path: str) -> None:
        hold(self, path)
        if not back:
            back.append(project.set_aside())

    def restored(self: SourceProof) -> None:
        if back:
            back.pop()()
        check(self)

    monkeypatch.setattr(SourceProof, "hold", changed)
    monkeypatch.setattr(SourceProof, "check", restored)


def _while_inferred(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced between the listing and the first read of it."""
    listing = OpenedSource.list

    def changed(self: OpenedSource) -> Any:
        listed = listing(self)
        project.write(2)
        return listed

    monkeypatch.setattr(OpenedSource, "list", changed)


def _another_folder(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's folder is another one while it is opened: none of its own times tell."""
    opening = OpenedSource.open_local

    def elsewhere(self: OpenedSource, path: str) -> Any:
        if self.proof is None:
            return opening(self, path)
        self.hold(path)
        with project.in_another_folder():
            return opening(self, path)

    monkeypatch.setattr(OpenedSource, "open_local", elsewhere)


def _while_hashed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same while the inventory hashes the file."""
    hashing = storage.read_expected

    def elsewhere(*given: Any, **options: Any) -> bytes | None:
        with project.in_another_folder():
            return hashing(*given, **options)

    monkeypatch.setattr(storage, "read_expected", elsewhere)


MOMENTS = (
    _before,
    _in_place,
    _after_the_look,
    _put_back,
    _another_folder,
    _while_hashed,
    _while_inferred,
)


QUICK = ("csv", "csv in zip", "parquet", "own files")


@pytest.mark.parametrize(
    "case",
    # The others share the mechanism.
    [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
def test_a_changed_file_is_never_taken_for_the_listed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    project = Project(tmp_path, case)
    expected = {}
    for version in (2, 1):
        project.write(version)
        first = project.read()
        expected[first.fingerprint] = first
    other, _ = expected.values()
    assert first.records != other.records
    stopped = []
    for moment in MOMENTS:
        project.write(1)
        with monkeypatch.context() as patched:
            moment(project, patched)
            found, message = project.try_to_read()
        if found is None:
            stopped.append(moment)
            assert project.file.name in message
        else:
            assert found == expected[found.fingerprint], moment.__name__
    # What is one record is hashed as it is read, without a look; a function's own reads are not
    # seen, and the file is compared before and after.
    must_stop = MOMENTS[: {"images": 1, "own files by path": 4}.get(case, 5)]
    assert [moment for moment in must_stop if moment not in stopped] == []
    # The workspace is not poisoned: the old content is not taken for the new one.
    project.write(1)
    assert project.read() == first


def test_a_build_of_a_changed_file_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path, "csv")
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        _before(project, patched)
        with pytest.raises(SourceChangedError, match=r"t\.csv changed while the build read it"):
            ss.build(project.recipe, out)
    assert not list(out.glob("made/*/manifest.json"))
    project.write(1)
    again = ss.build(project.recipe, out)
    assert Path(again.path).name == project.read().fingerprint
    verify(again, progress=Silent())


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server without ETags, whose clock counts seconds: its URL, and its folder."""
    folder = tmp_path / "web"
    folder.mkdir()
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    thread.join()
    server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("moment", [_before, _after_the_look])
def test_a_file_of_a_web_server_is_never_taken_for_the_listed_one(
    tmp_path: Path,
    web: tuple[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    moment: Callable[[Any, pytest.MonkeyPatch], None],
) -> None:
    url, folder = web
    project = Project(tmp_path, "csv")
    project.file = folder / "t.csv"
    project.write(1)
    project.recipe = recipe_of(ss.Csv(f"{url}/t.csv"))
    with monkeypatch.context() as patched:
        moment(project, patched)
        found, message = project.try_to_read()
    assert found is None
    assert "t.csv changed while the build read it" in message
    new = project.read()
    project.write(1)
    assert project.read().fingerprint != new.fingerprint
