"""A proxy in front of a store's stand-in: counts requests and bytes, and breaks some of them."""

import dataclasses
import http.client
import http.server
import threading
from collections.abc import Callable
from types import TracebackType

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


Breaking = Callable[[str, str], int]
"""Given method and path: 0 passes the request on, a status answers it, -1 cuts the connection
after the store has got half of it."""


class Proxy:
    """Passes requests on to ``target``; a context manager."""

    def __init__(self, target: str) -> None:
        """Takes ``host:port`` of the stand-in."""
        self.requests: list[Request] = []
        self.breaking: Breaking = lambda method, path: 0
        self.num_broken = 0
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

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

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
        if answer:
            with self._lock:
                self.num_broken += 1
        if answer < 0:
            handler.close_connection = True
            handler.connection.close()
            return
        if answer:
            text = b"<Error><Code>SlowDown</Code><Message>Slow down</Message></Error>"
            handler.send_response(answer)
            handler.send_header("Content-Type", "application/xml")
            handler.send_header("Content-Length", str(len(text)))
            handler.end_headers()
            handler.wfile.write(text)
            return
        connection = http.client.HTTPConnection(self._target, timeout=60)
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in _HOP}
        connection.request(handler.command, handler.path, body=body, headers=headers)
        got = connection.getresponse()
        content = got.read()
        with self._lock:
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
        connection.close()


def _body(handler: http.server.BaseHTTPRequestHandler) -> bytes:
    if "chunked" in handler.headers.get("Transfer-Encoding", ""):
        parts = []
        while size := int(handler.rfile.readline().split(b";")[0], 16):
            parts.append(handler.rfile.read(size))
            handler.rfile.readline()
        handler.rfile.readline()
        return b"".join(parts)
    return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
