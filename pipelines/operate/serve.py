"""Serve: a tf.data service for ``dataset(service=…)``, on loopback unless a host is given."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ...schemas.errors import RecipeError

_EXPOSED = (
    "The service cannot be restricted to loopback ({}). With --host and this machine's name, it "
    "listens on all interfaces, where anyone who can reach it can run any TensorFlow graph."
)


@dataclasses.dataclass(frozen=True)
class Service:
    """A running service."""

    address: str
    """Of the dispatcher, to be passed as ``service=``."""
    workers: int
    ports: Sequence[int]
    """All ports that this process listens on."""
    interface: str
    """"loopback" or "all interfaces"."""


def serve(
    *,
    workers: int,
    host: str,
    port: int,
    join: str | None,
    started: Callable[[Service], None],
) -> None:
    """Runs a tf.data service until this process is interrupted; does not return.

    Args:
        workers: Number of workers; 0 starts only a dispatcher.
        host: This machine's name, as other machines see it. Unless it is loopback, the service
            listens on all interfaces, without authentication.
        port: Of the dispatcher, or with ``join`` of the first worker; workers use the next ports.
            0 means any free ports.
        join: Address of a dispatcher, to start only workers for it.
        started: Called once the service runs.

    Raises:
        RecipeError: if it cannot be started as asked.
    """
    target, is_private = join, _is_loopback(host)
    least = 0 if target is None else 1
    if workers < least:
        raise RecipeError(f"--workers {workers} must be {least} or more.")
    joined = "" if target is None else target.rpartition("://")[2].rpartition(":")[0]
    if joined and is_private and not _is_loopback(joined):
        raise RecipeError(
            f"--join {target} is another machine, which cannot reach a worker at {host}: give "
            "--host, this machine's name as others see it."
        )
    import tensorflow as tf  # takes seconds

    service = tf.data.experimental.service
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler waits for blocking calls
    servers: list[Any] = []
    listening: list[int] = []

    def keep(server: Any) -> None:
        servers.append(server)
        listening[:] = _listening_ports(keep_to_loopback=is_private)

    # A worker restarted at its old address takes its old place.
    num = workers + (target is None)
    ports = [port + i if port else 0 for i in range(num)]
    for number in ports:
        _check_free(number)
    try:
        if target is None:
            dispatcher = service.DispatchServer(service.DispatcherConfig(port=ports[0]))
            keep(dispatcher)
            target = dispatcher.target.replace("localhost", host)
        address = target.rpartition("://")[2]
        _reach(address)
        for number in ports[num - workers :]:
            config = service.WorkerConfig(
                dispatcher_address=address, worker_address=f"{host}:%port%", port=number
            )
            keep(service.WorkerServer(config))
    except tf.errors.OpError as error:
        raise RecipeError(f"The service cannot be started: {error.message}") from None
    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    interface = "loopback" if is_private else "all interfaces"
    started(Service(target, workers, listening, interface))
    while not ended.wait(3600):
        pass
    os._exit(0)  # stop() of the servers would wait for pending client calls, and block Python


def _is_loopback(host: str) -> bool:
    """Whether a host is written as loopback; a name that merely resolves to it does not count."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _listening_ports(*, keep_to_loopback: bool) -> list[int]:
    """The TCP ports that this process listens on, optionally restricted to this machine.

    TensorFlow's servers cannot bind to an address and always listen on 0.0.0.0. A socket that is
    bound to the loopback device receives nothing from any other.
    """
    ports = []
    for name in os.listdir("/dev/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            copy = os.dup(int(name))
        except OSError:  # closed meanwhile, e.g. the descriptor of this listing
            continue
        with socket.socket(fileno=copy) as listener:
            if listener.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            ports.append(int(listener.getsockname()[1]))
            if keep_to_loopback:
                _bind_to_loopback(listener)
    if keep_to_loopback and not ports:
        raise RecipeError(_EXPOSED.format("its sockets were not found"))
    return sorted(set(ports))


def _bind_to_loopback(listener: socket.socket) -> None:
    device = getattr(socket, "SO_BINDTODEVICE", None)
    if device is None:
        raise RecipeError(_EXPOSED.format("this system has no SO_BINDTODEVICE"))
    try:
        listener.setsockopt(socket.SOL_SOCKET, device, b"lo\0")
    except OSError as error:
        raise RecipeError(_EXPOSED.format(error)) from None


def _check_free(port: int) -> None:
    """Refuses a port in use: gRPC would share it with the process that has it."""
    try:
        with socket.socket() as listener:
            # Connections of a killed server keep its port in use for a minute.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", port))
    except (OSError, OverflowError) as error:
        raise RecipeError(f"--port {port} cannot be used ({error}): give another, or 0.") from None


def _reach(address: str) -> None:
    """Refuses a dispatcher that does not answer: a worker would wait for it forever."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"No dispatcher answers at {address} ({error}): start one with snapshard serve, and "
            "pass the grpc:// address that it prints as --join."
        ) from None
