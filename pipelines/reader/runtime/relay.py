"""Relays a trainer's calls to its tf.data service, and fails where TensorFlow would wait forever.

TensorFlow's client retries endlessly if a dispatcher or a worker does not answer. Therefore the
client is given the address of a relay in its own process, which forwards each call to the
dispatcher. The client calls about once per second (its heartbeat), and reads batches directly from
the workers: batches cost nothing extra.

If the dispatcher, or a worker of the epoch, is lost, the relay adds one more worker to the
dispatcher's answer: itself. The client requests a batch from it, and gets the error. Answering the
heartbeat with an error would end the epoch, too, but TensorFlow would then forget the pending
calls, could not cancel them, and would wait for them when the iterator is deleted.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import functools
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]  # TensorFlow requires grpcio

SERVE = f"python {os.path.dirname(os.path.abspath(__file__))} serve"
"""The command that starts a service."""
_LOST_S = 60.0
"""A dispatcher or worker that has not answered for this long is lost."""
_LOOK_S = 2.0
"""Interval at which workers are checked."""
_ANSWER_S = 5.0
"""Maximum time to wait for an answer."""
_THREADS = 32
"""Maximum number of calls forwarded concurrently."""
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),  # graphs
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
]
_DISPATCHER = "/tensorflow.data.DispatcherService/"
_HEARTBEAT = f"{_DISPATCHER}ClientHeartbeat"
_RELEASE = f"{_DISPATCHER}ReleaseIterationClient"
_WORKERS = f"{_DISPATCHER}GetWorkers"
_TASKS = "/tensorflow.data.WorkerService/GetWorkerTasks"
_ELEMENT = "/tensorflow.data.WorkerService/GetElement"
_UNREACHED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@functools.cache
def relay_to(dispatcher: str, *, counts_records: bool) -> str:
    """Starts this process's relay to a dispatcher; it runs until the process ends.

    Args:
        dispatcher: Its ``host:port``.
        counts_records: Whether the trainer itself notices lost records. If so, a worker may be
            restarted; otherwise it is lost as soon as it refuses a connection.

    Returns:
        The relay's address, ``grpc://host:port``, on loopback.
    """
    relay = _Relay(dispatcher, _LOST_S if counts_records else 0.0)
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(_THREADS, "service_relay"),
        handlers=[relay],
        options=[*_OPTIONS, ("grpc.so_reuseport", 0)],
    )
    port = server.add_insecure_port("127.0.0.1:0")
    relay.address = f"127.0.0.1:{port}"
    server.start()
    atexit.register(server.stop, None)  # otherwise a client deleted later would wait for an answer
    return f"grpc://{relay.address}"


def workers_of(dispatcher: str) -> list[str]:
    """The addresses of all workers that have ever joined a dispatcher.

    Raises:
        grpc.RpcError: if it does not answer.
    """
    with grpc.insecure_channel(dispatcher, _OPTIONS) as channel:
        return _addresses(channel.unary_unary(_WORKERS)(b"", timeout=_ANSWER_S))


class _Relay(grpc.GenericRpcHandler):  # type: ignore[misc, unused-ignore]
    """Forwards calls to a dispatcher; every request and response is bytes."""

    def __init__(self, dispatcher: str, refused_s: float) -> None:
        self._dispatcher, self._refused_s = dispatcher, refused_s
        self.address = ""
        self._channel = grpc.insecure_channel(dispatcher, _OPTIONS)
        self._silent_since: float | None = None  # of the dispatcher, by time.monotonic()
        self._workers: dict[str, _Worker] = {}
        self._lock = threading.Lock()
        self._answers: dict[bytes, bytes] = {}  # to the last heartbeat of each client
        self._fault = ""

    def service(self, call: Any) -> Any:
        """See ``grpc.GenericRpcHandler``."""
        handlers = {_ELEMENT: self._fail, _HEARTBEAT: self._beat}
        handler = handlers.get(call.method, functools.partial(self._pass_on, call.method))
        return grpc.unary_unary_rpc_method_handler(handler)

    def _pass_on(self, method: str, request: bytes, context: Any) -> bytes:
        """The dispatcher's answer; TensorFlow retries only UNAVAILABLE."""
        # A client that is being deleted waits for its release.
        seconds = min(_ANSWER_S, _LOST_S) if method == _RELEASE else _LOST_S
        if method == _RELEASE:
            self._answers.pop(_client(request), None)
        try:
            return self._ask(method, request, seconds)
        except grpc.RpcError as error:
            context.abort(*self._failure(error))
            raise AssertionError from None  # abort raises

    def _beat(self, request: bytes, context: Any) -> bytes:
        """The workers of an epoch; adds this relay if a worker or the dispatcher is lost."""
        client = _client(request)
        try:
            answer = self._ask(_HEARTBEAT, request, min(_ANSWER_S, _LOST_S))
        except grpc.RpcError as error:
            code, text = self._failure(error)
            if code == grpc.StatusCode.UNAVAILABLE or client not in self._answers:
                context.abort(code, text)
            answer, self._fault = self._answers[client], text
            return answer + self._own_task()
        self._answers[client] = answer
        if lost := self._lost_worker(_addresses(answer)):
            self._fault = lost
            answer += self._own_task()
        return answer

    def _fail(self, request: bytes, context: Any) -> None:
        """Answers a client that requests a batch from this relay: with the error."""
        del request
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, self._fault)

    def _own_task(self) -> bytes:
        """A ``TaskInfo`` for a heartbeat's answer, with this relay as the worker."""
        address = self.address.encode()
        transfer = _field(1, b"grpc") + _field(2, address)
        task_id = b"\x10" + b"\xff" * 8 + b"\x7f"  # field 2: the largest int64
        return _field(1, _field(1, address) + task_id + _field(8, transfer))

    def _ask(self, method: str, request: bytes, seconds: float) -> bytes:
        begun = time.monotonic()
        try:
            answer: bytes = self._channel.unary_unary(method)(request, timeout=seconds)
        except grpc.RpcError as error:
            if error.code() in _UNREACHED:
                self._silent_since = self._silent_since or begun
            raise
        self._silent_since = None
        return answer

    def _failure(self, error: Any) -> tuple[Any, str]:
        """The error for the client if the dispatcher returned an error, or did not answer."""
        code, what = error.code(), f"service=grpc://{self._dispatcher}"
        if code == grpc.StatusCode.NOT_FOUND:
            return grpc.StatusCode.FAILED_PRECONDITION, (
                f"{what}: the dispatcher was restarted without its state ({error.details()}). "
                f"Create the dataset again and resume from the model's last checkpoint. A "
                "dispatcher started with --port and --work-dir keeps its state."
            )
        if code not in _UNREACHED:
            return code, error.details()
        since = self._silent_since
        if since is None or time.monotonic() - since < _LOST_S:
            return grpc.StatusCode.UNAVAILABLE, error.details()
        if lost := self._lost_worker(self._all_workers()):  # the dispatcher is waiting for it
            return grpc.StatusCode.FAILED_PRECONDITION, lost
        return grpc.StatusCode.FAILED_PRECONDITION, (
            f"{what}: the dispatcher has not answered for {_LOST_S:g} s ({_reason(error)}). Start "
            f"the service again with `{SERVE}`, and resume from the model's last checkpoint."
        )

    def _all_workers(self) -> list[str]:
        try:
            return workers_of(self._dispatcher)
        except grpc.RpcError:
            return []

    def _lost_worker(self, addresses: Iterable[str]) -> str:
        """An error message if one of these workers is lost; else ""."""
        with self._lock:
            workers = [
                self._workers.setdefault(address, _Worker(address)) for address in {*addresses}
            ]
            for look in [worker.look() for worker in workers]:  # all of them concurrently
                look()
        for worker in workers:
            if worker.is_lost(self._refused_s):
                return (
                    f"service=grpc://{self._dispatcher}: the worker {worker.address} does not "
                    f"answer ({worker.fault}), and the records that it had read are lost. Start it "
                    f"again with `{SERVE} --join grpc://{self._dispatcher} --port "
                    f"{worker.address.rpartition(':')[2]}`, or start a new service, and resume "
                    "from the model's last checkpoint."
                )
        return ""


class _Worker:
    """Whether a worker answers."""

    def __init__(self, address: str) -> None:
        self.address, self.fault = address, ""
        self._channel = grpc.insecure_channel(address, _OPTIONS)
        self._looked = self._silent_since = -float("inf")
        self._refuses = False

    def look(self) -> Any:
        """Requests its tasks, if a check is due; returns a function that awaits the answer."""
        begun = time.monotonic()
        if begun - self._looked < _LOOK_S:
            return lambda: None
        answer = self._channel.unary_unary(_TASKS).future(b"", timeout=_ANSWER_S)

        def see() -> None:
            error, self._looked = answer.exception(), time.monotonic()
            if error is None or error.code() not in _UNREACHED:
                self.fault = ""
                return
            if not self.fault:
                self._silent_since = begun
            self.fault = _reason(error)
            self._refuses = error.code() == grpc.StatusCode.UNAVAILABLE

        return see

    def is_lost(self, refused_s: float) -> bool:
        """Whether it has been silent for long, or refused connections for ``refused_s``."""
        silent_s = self._looked - self._silent_since
        return bool(self.fault) and silent_s >= (refused_s if self._refuses else _LOST_S)


def _reason(error: Any) -> str:
    """A gRPC error in a word or two."""
    return str(error.details()).rpartition(": ")[2]


def _client(request: bytes) -> bytes:
    """The client that sent a heartbeat or release: field 1, a varint, which comes first."""
    end = 1
    while request[end : end + 1] >= b"\x80":
        end += 1
    return request[: end + 1]


def _field(number: int, value: bytes) -> bytes:
    """Encodes a field of a protobuf message, of less than 16 KiB."""
    return bytes([number << 3 | 2, len(value) & 127 | 128, len(value) >> 7]) + value


def _addresses(message: bytes) -> list[str]:
    """The addresses in a dispatcher's answer: the first field of each of its first fields."""
    return [next(_first_fields(found), b"").decode() for found in _first_fields(message)]


def _first_fields(message: bytes) -> Iterator[bytes]:
    """The values of field 1, a string or message, at the start of a protobuf message."""
    place = 0
    while message[place : place + 1] == b"\x0a":
        size, shift, place = 0, 0, place + 1
        while True:
            byte = message[place]
            size, shift, place = size | (byte & 127) << shift, shift + 7, place + 1
            if byte < 128:
                break
        yield message[place : place + size]
        place += size
