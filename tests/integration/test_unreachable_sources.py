"""What cannot be reached is not reported as missing: what happened is said, and whether to retry.

One server on loopback answers every protocol that runs over HTTP with one status; closed ports,
names that nothing resolves and certificates that nobody trusts stand for the network.
"""

import asyncio
import contextlib
import datetime
import gc
import gzip
import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from snapshard import cli, startup_noise
from snapshard.runners.job_server import free_port
from snapshard.schemas.errors import (
    MissingFileError,
    PlaceError,
    SourceChangedError,
    StorageError,
)
from snapshard.transforms import storage
from snapshard.transforms.storage.artifacts import is_lost
from snapshard.transforms.storage.opened_source import open_source

# gcsfs leaves sessions to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

URLS = {
    "http": "http://{}/a.csv",
    "http, a zip": "http://{}/a.zip",
    "http, a tar": "http://{}/a.tar.gz",
    "a zip by a chain": "zip://*.csv::http://{}/a.zip",
    "a cache": "simplecache::http://{}/a.csv",
    "s3": "s3://bucket/a.csv",
    "s3, a glob": "s3://bucket/d/*.csv",
    "gs": "gs://bucket/a.csv",
    "gs, a glob": "gs://bucket/d/*.csv",
    "webhdfs": "webhdfs://{}/a.csv",
}
ANSWERS = {
    401: (2, "the store refused the request (401"),
    403: (2, "the store refused the request (403"),
    404: (2, "does not exist. Correct the URL"),
    429: (1, "the store failed to answer the request (429"),
    451: (2, "the store answered 451"),
    500: (1, "the store failed to answer the request (500"),
    503: (1, "the store failed to answer the request (503"),
}
Call = Callable[..., tuple[int, str]]


class _Answer(http.server.BaseHTTPRequestHandler):
    status = 200

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class _QuickAsyncio:
    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 1000)


@contextlib.contextmanager
def _serving(
    context: ssl.SSLContext | None = None,
    handler: type[http.server.BaseHTTPRequestHandler] = _Answer,
) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        serving.handle_error = lambda *_: None  # type: ignore[method-assign]
        if context is not None:
            serving.socket = context.wrap_socket(serving.socket, server_side=True)
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{serving.server_port}"
        serving.shutdown()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with _serving() as address:
        yield address


@pytest.fixture
def stores_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Has S3 and GCS be at an address, with clients that try again once, and at once."""
    import gcsfs.retry
    import s3fs

    def forget() -> None:
        for protocol in ("s3", "gcs"):
            fsspec.get_filesystem_class(protocol).clear_instance_cache()

    def set_address(address: str) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{address}")
        forget()

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setattr(gcsfs.retry, "asyncio", _QuickAsyncio())
    yield set_address
    forget()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the command line in this process: its code, and its errors."""
    monkeypatch.setattr(startup_noise, "tame_libraries", lambda: None)

    def run(*arguments: str | Path) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


@pytest.mark.parametrize("status", ANSWERS)
@pytest.mark.parametrize("kind", URLS)
def test_answers(
    kind: str,
    status: int,
    server: str,
    stores_at: Callable[[str], None],
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_Answer, "status", status)
    stores_at(server)
    url = URLS[kind].format(server)
    code, text = call("plan", url)
    expected_code, expected = ANSWERS[status]
    assert expected in text
    assert url in text
    assert code == expected_code
    assert ("does not exist" in text) is (status == 404)
    if status in (401, 403):
        assert "Check the credentials" in text


ROWS = b"a,b\n" + b"".join(b"%d,%d\n" % (n, n) for n in range(3_000))
PAGE = b"\n<!DOCTYPE html>\n<html>\n" + b"<p>Sign in, please</p>\n" * 30 + b"</html>\n"
ODD = {
    "cut.csv": (1, "the connection was lost (Not enough data to satisfy content length header"),
    "cut.tar": (1, "the connection was lost (Not enough data to satisfy content length header"),
    "garbled.csv": (1, "the server's answer is not valid HTTP"),
    "loop.csv": (1, "the server redirects in a circle. Check the URL"),
    "page.csv": (3, "the server sent an HTML page"),
    "page.zip": (3, "the server sent an HTML page"),
    "chunked.csv": (3, "the store does not state its size"),
    "chunked.tar": (3, "the store does not state its size"),
    "packed.csv": (3, "the store does not state its size"),
    "short-head.csv": (3, "states 100 bytes, and reading it gave"),
    "long-head.csv": (1, "the store sent nothing of bytes"),
}


class _Odd(http.server.BaseHTTPRequestHandler):
    """A web server, or what is in front of it, that does not send the file."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(b"", is_head=True)

    def do_GET(self) -> None:
        self._answer(PAGE if "page" in self.path else ROWS, is_head=False)

    def _answer(self, body: bytes, *, is_head: bool) -> None:
        kind, headers = self.path.strip("/").partition(".")[0], {}
        num_bytes = len(PAGE if kind == "page" else ROWS)
        if kind == "garbled" and not is_head:
            self.wfile.write(b"what is this?\r\n\r\n")
            self.close_connection = True
            return
        if is_head and kind.endswith("-head"):
            num_bytes = 100 if kind == "short-head" else num_bytes + 100
        if kind == "page":
            headers["Content-Type"] = "text/html; charset=utf-8"
        if kind == "packed":
            body = gzip.compress(body) if body else body
            num_bytes, headers["Content-Encoding"] = len(gzip.compress(ROWS)), "gzip"
        if kind == "chunked":
            headers["Transfer-Encoding"] = "chunked"
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else body
        else:
            headers["Content-Length"] = str(0 if kind == "loop" else num_bytes)
        if kind == "loop":
            headers["Location"], body = self.path, b""
        self.send_response(302 if kind == "loop" else 200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:1_000] if kind == "cut" else body)
        self.close_connection = kind == "cut"

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.mark.parametrize("name", ODD)
def test_what_a_web_server_does_instead_is_told(name: str, call: Call) -> None:
    with _serving(handler=_Odd) as address:
        url = f"http://{address}/{name}"
        code, text = call("plan", url)
    expected_code, expected = ODD[name]
    text = text.partition("error: ")[2]
    assert expected in text
    assert name in text
    assert "\n" not in text.strip()
    assert code == expected_code


def test_a_web_page_is_a_text_if_its_name_says_so(call: Call) -> None:
    with _serving(handler=_Odd) as address:
        (file,) = open_source(f"http://{address}/page.html", "/").list()
    assert (file.problem, file.num_bytes) == ("", len(PAGE))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*URLS, "ftp"])
def test_refused_connections(kind: str, stores_at: Callable[[str], None], call: Call) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    stores_at(nobody)
    url = URLS.get(kind, "ftp://{}/a.csv").format(nobody)
    code, text = call("plan", url)
    assert "the connection was refused" in text
    assert url in text
    assert code == 1


@pytest.mark.parametrize("kind", [kind for kind in URLS if "http" in kind or kind == "webhdfs"])
def test_names_that_nothing_resolves(
    kind: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(host: object, *_: object, **__: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    code, text = call("plan", URLS[kind].format("nowhere.invalid:80"))
    assert "the host's name cannot be resolved" in text
    assert "nowhere.invalid" in text
    assert code == 1


def test_servers_without_tls(server: str, call: Call) -> None:
    code, text = call("plan", f"https://{server}/a.csv")
    assert "no TLS connection can be made" in text
    assert code == 1


def test_certificates_that_nobody_trusts(call: Call, tmp_path: Path) -> None:
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (tmp_path / "both.pem").write_bytes(
        certificate.public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    with _serving(context) as address:
        code, text = call("plan", f"https://{address}/a.csv")
    assert "the server's TLS certificate is not valid" in text
    assert code == 2


@pytest.mark.parametrize("kind", ["http", "http, a tar", "s3", "gs", "webhdfs"])
@pytest.mark.parametrize("status", [403, 503])
def test_nothing_passes_for_absent(
    kind: str,
    status: int,
    server: str,
    stores_at: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asks whether a file is there is not told that it is not."""
    monkeypatch.setattr(_Answer, "status", status)
    stores_at(server)
    url = URLS[kind].format(server)
    for look in (storage.exists, storage.size_of, storage.read_bytes, storage.num_bytes):
        with pytest.raises(StorageError, match=f"{status}") as raised:
            look(url)
        assert not isinstance(raised.value, MissingFileError)
        assert not is_lost(raised.value)
    monkeypatch.setattr(_Answer, "status", 404)
    assert not storage.exists(url)
    assert storage.size_of(url) is None


@pytest.mark.parametrize("status", [403, 503])
def test_outputs(
    status: int,
    server: str,
    stores_at: Callable[[str], None],
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(_Answer, "status", status)
    stores_at(server)
    (tmp_path / "t.csv").write_text("a\n1\n")
    code, text = call("build", tmp_path / "t.csv", "--out", "s3://bucket/out")
    assert "s3://bucket/out" in text
    assert str(status) in text
    assert code == (2 if status == 403 else 1)


def test_a_redirect_to_no_region(
    server: str, stores_at: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Answer, "status", 301)
    stores_at(server)
    with pytest.raises(StorageError, match=r"redirects in a circle\. .*AWS_DEFAULT_REGION"):
        open_source("s3://bucket/a.csv", "/")
    gc.collect()  # connections that the client has left open


def test_a_local_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "a.csv").write_text("a\n1\n")
    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(PlaceError, match="permission denied"):
        open_source(str(tmp_path), ".").list()


class _NamedError(Exception):
    """An error of a library that is not installed here, by the name of its class."""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ReadTimeoutError", "did not answer in time"),
        ("ServerTimeoutError", "did not answer in time"),
        ("ServerDisconnectedError", "the connection was lost"),
        ("EndpointConnectionError", "no connection can be made"),
    ],
)
def test_failures_by_name(name: str, said: str) -> None:
    error = FileNotFoundError("http://host/a")
    error.__cause__ = type(name, (_NamedError,), {})("x")
    assert not storage.is_missing(error)
    with (
        pytest.raises(StorageError, match=said) as raised,
        storage.first_look(),
        storage.failing_as_storage_error("read", "http://host/a"),
    ):
        raise error
    assert raised.value.exit_code == 1


@pytest.mark.parametrize(
    "refusal", [PermissionError(13, "denied"), OSError("Forbidden: https://a")]
)
def test_a_file_that_changed_as_it_was_opened_is_worth_another_try(refusal: OSError) -> None:
    """Such as an archive in a store: reads of the former object are refused."""
    error = SourceChangedError.of("t.zip")
    error.__context__ = refusal
    with (
        pytest.raises(SourceChangedError) as raised,
        storage.first_look(),
        storage.failing_as_storage_error("open", "s3://bucket/t.zip"),
    ):
        raise error
    assert raised.value.exit_code == 1
