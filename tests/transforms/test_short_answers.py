"""A store that answers a range with less of it is asked for the rest: nothing is lost."""

import http.server
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import snapshard as ss
from snapshard.schemas.errors import StorageError
from snapshard.transforms.storage.opened_source import open_source
from snapshard.transforms.storage.remote import read_remote

CONTENT = bytes(range(256)) * 40


class Short(MemoryFileSystem):  # type: ignore[misc, unused-ignore]
    """Sends at most so many bytes of a range."""

    protocol = "short"
    store: ClassVar[dict[str, Any]] = {}
    most = 1_000

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.removeprefix("short://"))
        return stripped

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        content: bytes = super().cat_file(path, start=start, end=end, **options)
        return content if start is None else content[: self.most]


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

    def do_HEAD(self) -> None:
        self.answer(send=False)

    def do_GET(self) -> None:
        self.answer(send=True)

    def answer(self, *, send: bool) -> None:
        if self.path == "/nothing":
            self.send_error(404)
            return
        start, stop, status = 0, len(CONTENT), 200
        given = self.headers.get("Range")
        if given and "ranges" in self.path:
            first, _, last = given.removeprefix("bytes=").partition("-")
            start, stop, status = int(first), min(int(last or stop) + 1, stop), 206
            if start >= len(CONTENT):
                self.send_response(416)
                self.end_headers()
                return
            if "short" in self.path:
                stop = min(stop, start + 1_000)
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if send:
            self.wfile.write(CONTENT[start:stop])

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


def test_a_missing_file_is_told(server: str) -> None:
    with pytest.raises(StorageError):
        open_source(f"{server}/ranges.bin", "/").read("nothing")
