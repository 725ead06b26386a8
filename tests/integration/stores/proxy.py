"""A proxy in front of a store's stand-in: counts requests and bytes, and breaks some of them."""

import contextlib
import dataclasses
import http.client
import http.server
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType

from .listings import asked_to_put, hidden_from, named_by_put

_HOP = {"connection", "transfer-encoding", "content-length", "host", "keep-alive"}


@dataclasses.dataclass(frozen=True)
class Request:
    """One request as it passed.

    Attributes:
        method: GET, PUT …
        path: Of the object, with its query.
        num_sent: Bytes that went to the store.
        num_received: Bytes that came back.
        ranged: Whether it asked for a range.
    """

    method: str
    path: str
    num_sent: int
    num_received: int
    ranged: bool


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the proxy answers in the place of the store.

    Attributes:
        status: Of HTTP.
        code: As S3 names its errors.
        headers: Further ones.
    """

    status: int
    code: str = "SlowDown"
    headers: tuple[tuple[str, str], ...] = ()


CUT = -1
"""Cuts the connection after the store has got half of the request."""

Breaking = Callable[[str, str], int | Answer]
"""Given method and path: 0 passes the request on, a status or an answer answers it, :data:`CUT`."""

AtPut = Callable[[str, str], int | Answer]
"""Given ``bucket/name`` of an object that is put, and ``"begun"``: gives what a breaking does; and
``"done"``: the store has answered, and who puts has not heard it yet."""


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Keeps quiet of clients that have gone."""


class Proxy:
    """Passes requests on to ``target``; a context manager."""

    def __init__(self, target: str) -> None:
        """Takes ``host:port`` of the stand-in."""
        self.requests: list[Request] = []
        self.breaking: Breaking = lambda method, path: 0
        self.at_put: AtPut = lambda name, moment: 0
        self.num_broken = 0
        self.listing_lag_s = 0.0
        """For so long after its put an object is in no listing."""
        self._put_at: dict[str, float] = {}
        self._target = target
        self._lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                proxy._handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_PATCH = _pass

            def log_message(self, format: str, *args: object) -> None:
                """Keeps quiet."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def list_from_now(self, folder: str) -> None:
        """Shows the objects that lie in ``bucket/folder`` in listings, whatever the lag."""
        for name in self._put_at:
            if name.startswith(f"{folder}/"):
                self._put_at[name] = float("-inf")

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Proxy":
        """Starts it."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handle(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = _body(handler)
        answer = self.breaking(handler.command, handler.path)
        name = asked_to_put(handler.command, handler.path, body)
        if name is not None:
            answer = answer or self.at_put(name, "begun")
        if answer:
            with self._lock:
                self.num_broken += 1
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in _HOP}
        if answer == CUT:
            self._pass_half(handler, headers, body)
            return
        if answer:
            _tell(handler, Answer(answer) if isinstance(answer, int) else answer)
            return
        connection = http.client.HTTPConnection(self._target, timeout=60)
        with contextlib.closing(connection):
            connection.request(handler.command, handler.path, body=body, headers=headers)
            got = connection.getresponse()
            content = got.read()
        if name is not None:
            self.at_put(name, "done")
        with self._lock:
            content = self._kept_back(handler, got.status, content)
            self.requests.append(
                Request(
                    handler.command,
                    handler.path,
                    len(body),
                    len(content),
                    handler.headers.get("Range") is not None,
                )
            )
        handler.send_response(got.status)
        for name, value in got.getheaders():
            if name.lower() not in _HOP:
                handler.send_header(name, value.replace(f"http://{self._target}", self.url))
        length = got.getheader("Content-Length") if handler.command == "HEAD" else None
        handler.send_header("Content-Length", length or str(len(content)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)

    def _pass_half(
        self, handler: http.server.BaseHTTPRequestHandler, headers: dict[str, str], body: bytes
    ) -> None:
        host, _, port = self._target.partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as store:
            lines = [f"{handler.command} {handler.path} HTTP/1.1", f"Host: {self._target}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            lines += [f"Content-Length: {len(body)}", "", ""]
            store.sendall("\r\n".join(lines).encode("latin-1") + body[: len(body) // 2])
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    def _kept_back(
        self, handler: http.server.BaseHTTPRequestHandler, status: int, content: bytes
    ) -> bytes:
        """An answer of the store, without what was put too lately to be listed."""
        name = named_by_put(handler.command, handler.path, content)
        if name is not None and status < 300:
            self._put_at[name] = time.monotonic()
        if handler.command != "GET" or not self.listing_lag_s:
            return content
        seen = time.monotonic() - self.listing_lag_s
        hidden = {name for name, at in self._put_at.items() if at > seen}
        return hidden_from(content, hidden, self._put_at.keys() - hidden, path=handler.path)


def _tell(handler: http.server.BaseHTTPRequestHandler, answer: Answer) -> None:
    text = f"<Error><Code>{answer.code}</Code><Message>{answer.code}</Message></Error>".encode()
    handler.send_response(answer.status)
    headers = {"Content-Type": "application/xml", "Content-Length": str(len(text))}
    for name, value in (headers | dict(answer.headers)).items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(text)


def _body(handler: http.server.BaseHTTPRequestHandler) -> bytes:
    if "chunked" in handler.headers.get("Transfer-Encoding", ""):
        parts = []
        while size := int(handler.rfile.readline().split(b";")[0], 16):
            parts.append(handler.rfile.read(size))
            handler.rfile.readline()
        handler.rfile.readline()
        return b"".join(parts)
    return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
