"""A store that answers a range with less of it is asked for the rest: nothing is lost."""

import contextlib
import gzip
import http.server
import io
import random
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import snapshard as ss
from snapshard.schemas.errors import StorageError
from snapshard.transforms.sources.text_stream import open_text
from snapshard.transforms.storage.opened_source import open_source
from snapshard.transforms.storage.remote import read_remote

CONTENT = bytes(range(256)) * 40


class Short(MemoryFileSystem):  # type: ignore[misc, unused-ignore]
    """Sends at most so many bytes of a range."""

    protocol = "short"
    store: ClassVar[dict[str, Any]] = {}
    most = 1_000
    states_sizes = True

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.removeprefix("short://"))
        return stripped

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        content: bytes = super().cat_file(path, start=start, end=end, **options)
        return content if start is None else content[: self.most]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = super().info(path, **options)
        return found if self.states_sizes else {**found, "size": None}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Short:
    fsspec.register_implementation("short", Short, clobber=True)
    filesystem = Short()
    monkeypatch.setattr(Short, "store", {})
    filesystem.pipe_file("/a.bin", CONTENT)
    return filesystem


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 10), (0, 1_000), (0, 1_001), (5, 5_000), (0, len(CONTENT)), (9_000, None), (7, 10**9)],
)
def test_the_rest_is_asked_for(short: Short, start: int, stop: int | None) -> None:
    assert read_remote(short, "/a.bin", start, stop) == CONTENT[start:stop]


def test_beyond_the_end_there_is_nothing(short: Short) -> None:
    assert read_remote(short, "/a.bin", len(CONTENT), len(CONTENT) + 9) == b""
    assert read_remote(short, "/a.bin", len(CONTENT) + 5, len(CONTENT) + 9) == b""


def test_a_store_that_sends_no_more_is_an_error(
    short: Short, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Short, "most", 0)
    with pytest.raises(OSError, match="the store sent nothing of bytes 0 to 10,240 of 10,240"):
        read_remote(short, "/a.bin", 0, len(CONTENT))


@pytest.mark.parametrize("most", [1_000, 10**9])
@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (5, None), (0, 2_500), (9_000, 10**9), (10_240, 10_241)]
)
def test_a_store_that_states_no_size_is_asked_until_it_sends_nothing(
    short: Short, monkeypatch: pytest.MonkeyPatch, start: int, stop: int | None, most: int
) -> None:
    monkeypatch.setattr(Short, "states_sizes", False)
    monkeypatch.setattr(Short, "most", most)
    assert read_remote(short, "/a.bin", start, stop) == CONTENT[start:stop]


def test_a_file_of_unknown_size_is_not_taken_for_an_empty_one(
    short: Short, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Short, "states_sizes", False)
    short.pipe_file("/raw/t.csv", b"a,b\n" + _rows())
    (file,) = open_source("short://raw/t.csv", "/").list()
    assert file.problem.startswith("the store does not state its size")


def _rows() -> bytes:
    return b"".join(b"%d,%d\n" % (i, i) for i in range(3_000))


SOURCES: dict[str, tuple[str, bytes, Any]] = {
    "csv": ("t.csv", b"a,b\n" + _rows(), ss.Csv),
    "text": ("t.txt", _rows(), ss.TextFiles),
    "json": ("t.jsonl", b"".join(b'{"a": %d}\n' % i for i in range(3_000)), ss.JsonLines),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_no_row_is_lost(short: Short, kind: str, tmp_path: Any) -> None:
    name, content, source = SOURCES[kind]
    short.pipe_file(f"/raw/{name}", content)
    recipe = ss.Recipe(
        name="rows", source=source(f"short://raw/{name}"), splits=ss.Splits(train=1.0)
    )
    snapshot = ss.build(recipe, tmp_path)
    assert snapshot.manifest.splits["train"].num_examples == 3_000
    assert not snapshot.manifest.num_rejects


class _Server(http.server.BaseHTTPRequestHandler):
    """Answers ranges as the path says."""

    files: ClassVar[dict[str, bytes]] = {}
    """Other contents, by path."""
    num_sent: ClassVar[dict[str, int]] = {}
    """How often a file was sent."""

    def do_HEAD(self) -> None:
        self.answer(send=False)

    def do_GET(self) -> None:
        self.answer(send=True)

    def answer(self, *, send: bool) -> None:
        if self.path == "/nothing":
            self.send_error(404)
            return
        content = self.files.get(self.path, CONTENT)
        start, stop, status = 0, len(content), 200
        given = self.headers.get("Range")
        if given and "ranges" in self.path:
            first, _, last = given.removeprefix("bytes=").partition("-")
            start, stop, status = int(first), min(int(last or stop) + 1, stop), 206
            if start >= len(content):
                self.send_response(416)
                self.end_headers()
                return
            if "short" in self.path:
                stop = min(stop, start + 1_000)
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", f'"{len(content)}"')
        self.end_headers()
        if send:
            self.num_sent[self.path] = self.num_sent.get(self.path, 0) + 1
            with contextlib.suppress(OSError):  # the client has read enough
                self.wfile.write(content[start:stop])

    def log_message(self, *_: Any) -> None:
        """Prints nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("localhost", 0), _Server) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://localhost:{serving.server_port}"
        serving.shutdown()


@pytest.mark.parametrize("kind", ["ranges", "short-ranges", "whole"])
def test_web_servers(server: str, kind: str) -> None:
    """One without ranges sends the complete file again, wherever a range begins."""
    opened = open_source(f"{server}/{kind}.bin", "/")
    (file,) = opened.list()
    assert file.num_bytes == len(CONTENT)
    ranges = [(0, 10), (5, 5_000), (0, len(CONTENT)), (10_000, 99_999), (9_999, 9_999 + 10_240)]
    for start, stop in ranges:
        assert opened.read(file.path, start, stop) == CONTENT[start:stop]
    beyond = len(CONTENT)
    assert opened.read(file.path, beyond, beyond + 10) == b""
    assert opened.read(file.path, beyond, 2 * beyond) == b"", "as long as the file"


def _noise(num_bytes: int = 3_000_000) -> bytes:
    """Lines that no compressor makes much shorter."""
    return random.Random(0).randbytes(num_bytes // 2).hex().encode()


def _tar(mode: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload, unused-ignore]
        for n in range(3):
            member = tarfile.TarInfo(f"{n}.txt")
            member.size = 1_000_000
            archive.addfile(member, io.BytesIO(_noise()[n : n + member.size]))
    return file.getvalue()


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for n in range(3):
            archive.writestr(f"{n}.txt", _noise()[n : n + 1_000_000])
    return file.getvalue()


WHOLE = {
    "t.txt": lambda: _noise(),
    "t.txt.gz": lambda: gzip.compress(_noise(), 0),
    "t.tar": lambda: _tar("w"),
    "t.tar.gz": lambda: _tar("w:gz"),
    "t.zip": _zip,
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_that_is_never_sent_in_part_is_sent_once(server: str, name: str) -> None:
    """To look at its head, to know that ranges are not answered, and to keep a copy."""
    path = f"/whole/{name}"
    _Server.files[path] = WHOLE[name]()
    opened = open_source(f"{server}{path}", "/")
    files = opened.list()
    if len(files) == 1:
        text = open_text(opened, name, num_bytes=files[0].num_bytes, encoding="utf-8")
        content = b"".join(text.read(n, n + 100_000) for n in range(0, 3_000_000, 100_000))
        assert content == _noise()
    else:
        for n, file in enumerate(files):
            pieces = [opened.read(file.path, at, at + 100_000) for at in range(0, 10**6, 100_000)]
            assert b"".join(pieces) == _noise()[n : n + 1_000_000]
    assert _Server.num_sent[path] <= 4


def test_a_missing_file_is_told(server: str) -> None:
    with pytest.raises(StorageError):
        open_source(f"{server}/ranges.bin", "/").read("nothing")
