"""``serve``: a tf.data service for ``dataset(service=…)``, on loopback unless a host is given."""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import socket
import stat
import sys
import threading
from typing import Any

from .console import Output, RefusedError, reason
from .timing import load_tensorflow

_EXPOSED = (
    "the service cannot be restricted to loopback ({}). With --host and this machine's name, it "
    "listens on all interfaces, where anyone who can reach it can run any TensorFlow graph."
)


def serve(arguments: argparse.Namespace, out: Output) -> int:
    """Runs a tf.data service, on loopback unless --host names this machine, until interrupted."""
    target, is_private = arguments.join, _is_loopback(arguments.host)
    least = 0 if target is None else 1
    if arguments.workers < least:
        raise RefusedError(f"--workers {arguments.workers} must be {least} or more.")
    joined = "" if target is None else target.rpartition("://")[2].rpartition(":")[0]
    if joined and is_private and not _is_loopback(joined):
        raise RefusedError(
            f"--join {target} is another machine, which cannot reach a worker at "
            f"{arguments.host}: give --host, this machine's name as others see it."
        )
    tf = load_tensorflow()
    service = tf.data.experimental.service
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler waits for blocking calls
    listening: list[int] = []
    servers: list[Any] = []

    def started(server: Any) -> None:
        servers.append(server)
        listening[:] = _listening_ports(keep_to_loopback=is_private)

    # A worker restarted at its old address takes its old place.
    num = arguments.workers + (target is None)
    ports = [arguments.port + i if arguments.port else 0 for i in range(num)]
    for port in ports:
        _free(port)
    try:
        if target is None:
            dispatcher = service.DispatchServer(service.DispatcherConfig(port=ports[0]))
            started(dispatcher)
            target = dispatcher.target.replace("localhost", arguments.host)
        address = target.rpartition("://")[2]
        _reach(address)
        for port in ports[num - arguments.workers :]:
            config = service.WorkerConfig(
                dispatcher_address=address,
                worker_address=f"{arguments.host}:%port%",
                port=port,
            )
            started(service.WorkerServer(config))
    except tf.errors.OpError as error:
        raise RefusedError(f"the service cannot be started: {reason(error)}") from None
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    interface = "loopback" if is_private else "all interfaces"
    listed = ", ".join(map(str, listening))
    out.facts |= {"address": target, "workers": arguments.workers}
    out.facts |= {"interface": interface, "ports": listening}
    out.say(f"{target}, workers: {arguments.workers}; press Ctrl-C to stop")
    if is_private:
        out.say(f"listening on loopback only, ports {listed}")
    else:
        out.say(
            f"listening on all interfaces (0.0.0.0), ports {listed}, without authentication: "
            "anyone who can reach one of them can run any TensorFlow graph as this user"
        )
    out.end()
    sys.stdout.flush()
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
        with socket.socket(fileno=copy) as found:
            if found.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            ports.append(int(found.getsockname()[1]))
            if keep_to_loopback:
                _bind_to_loopback(found)
    if keep_to_loopback and not ports:
        raise RefusedError(_EXPOSED.format("its sockets were not found"))
    return sorted(set(ports))


def _bind_to_loopback(found: socket.socket) -> None:
    device = getattr(socket, "SO_BINDTODEVICE", None)
    if device is None:
        raise RefusedError(_EXPOSED.format("this system has no SO_BINDTODEVICE"))
    try:
        found.setsockopt(socket.SOL_SOCKET, device, b"lo\0")
    except OSError as error:
        raise RefusedError(_EXPOSED.format(error)) from None


def _free(port: int) -> None:
    """Refuses a port in use: gRPC would share it with the process that has it."""
    try:
        with socket.socket() as found:
            # Connections of a killed server keep its port in use for a minute.
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(("", port))
    except (OSError, OverflowError) as error:
        raise RefusedError(f"--port {port} cannot be used ({error}): give another, or 0.") from None


def _reach(address: str) -> None:
    """Refuses a dispatcher that does not answer: a worker would wait for it forever."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise RefusedError(
            f"no dispatcher answers at {address} ({error}): start one with serve, and pass the "
            "grpc:// address that it prints as --join."
        ) from None
