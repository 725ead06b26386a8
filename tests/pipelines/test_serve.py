"""``serve``: a tf.data service that only this machine can reach, unless a host is given."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

import pytest
import tensorflow as tf

from snapshard.pipelines.operate import serve
from snapshard.schemas.errors import RecipeError


def child(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "snapshard", "serve", "--json", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def listening_on(pid: int) -> dict[int, str]:
    """The TCP ports that a process listens on, with the device that each is bound to, or ""."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[os.readlink(f"/proc/{pid}/fd/{name}")] = None
    ports = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        # Linux's sock_diag(7): struct inet_diag_req_v2 for what listens, inet_diag_msg for each.
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as asked:
            body = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 0, 1 << 10)
            asked.send(struct.pack("=IHHII", 16 + len(body), 20, 0x301, 1, 0) + body)
            kind = 20
            while kind == 20:
                answer = asked.recv(1 << 16)
                while answer:
                    length, kind = struct.unpack_from("=IH", answer)
                    if kind != 20:
                        break
                    (port,) = struct.unpack_from("!H", answer, 20)
                    (device,) = struct.unpack_from("=I", answer, 56)
                    (inode,) = struct.unpack_from("=I", answer, 84)
                    if f"socket:[{inode}]" in found:
                        ports[port] = socket.if_indextoname(device) if device else ""
                    answer = answer[(length + 3) & ~3 :]
    return ports


def start(**given: Any) -> None:
    """Fails, before the service runs."""
    arguments: dict[str, Any] = {"workers": 1, "host": "localhost", "port": 0, "join": None}
    serve.serve(**{**arguments, **given}, started=lambda service: pytest.fail("it runs"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": -1}, "--workers -1 must be 0 or more"),
        ({"workers": 0, "join": "x"}, "--workers 0 must be 1 or more"),
        ({"join": "grpc://localhost:1"}, "No dispatcher answers at localhost:1"),
        ({"port": 99999}, "--port 99999 cannot be used"),
        ({"join": "nix"}, "No dispatcher answers at nix"),
        ({"join": "grpc://far:1"}, "give --host, this machine's name"),
    ],
    ids=str,
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(RecipeError, match=message):
            start(**given)
    finally:
        signal.signal(signal.SIGINT, handler)


class TestServe:
    @pytest.mark.slow  # a process that loads TensorFlow
    @pytest.mark.parametrize(
        ("arguments", "interface", "device", "ending"),
        [
            ((), "loopback", "lo", signal.SIGINT),
            (("--host", socket.gethostname()), "all interfaces", "", signal.SIGTERM),
        ],
        ids=["loopback", "host"],
    )
    def test_every_record_once_through_two_workers(
        self,
        arguments: tuple[str, ...],
        interface: str,
        device: str,
        ending: signal.Signals,
    ) -> None:
        """They listen on loopback unless a host is given."""
        started = child("--workers", "2", *arguments)
        try:
            assert started.stdout is not None
            facts = json.loads(started.stdout.readline())
            assert (facts["workers"], facts["interface"]) == (2, interface)
            assert listening_on(started.pid) == dict.fromkeys(facts["ports"], device)
            assert len(facts["ports"]) == 3
            host, _, port = facts["address"].removeprefix("grpc://").rpartition(":")
            assert host == (arguments[1] if arguments else "localhost")
            assert int(port) in facts["ports"]
            records = tf.data.Dataset.range(100)
            served = records.apply(
                tf.data.experimental.service.distribute(
                    processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
                    service=facts["address"],
                )
            )
            with pytest.raises(RecipeError, match="cannot be used"):
                start(port=int(port))
            assert sorted(int(value) for value in served) == list(range(100))
            started.send_signal(ending)
            _, errors = started.communicate(timeout=30)
            assert (started.returncode, errors) == (0, "")
        finally:
            with contextlib.suppress(ProcessLookupError):
                started.kill()
            started.wait()

    def test_without_a_way_to_loopback_it_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("", 0)) as listener:
            assert listener.getsockname()[1] in serve._listening_ports(keep_to_loopback=False)
            monkeypatch.delattr(socket, "SO_BINDTODEVICE")
            with pytest.raises(RecipeError, match="--host"):
                serve._bind_to_loopback(listener)

    @pytest.mark.slow  # two processes that load TensorFlow
    def test_ends_while_a_client_waits(self) -> None:
        """TensorFlow's own stop waits for the answer, which never comes."""
        started = child()
        asks = (
            "import sys, tensorflow as tf\n"
            "none = tf.data.Dataset.counter().filter(lambda number: number < 0)\n"
            "service = tf.data.experimental.service\n"
            "none = none.apply(service.distribute('parallel_epochs', sys.argv[1]))\n"
            "iterator = iter(none)\n"
            "print('asks', flush=True)\n"
            "next(iterator)\n"
        )
        client: subprocess.Popen[str] | None = None
        try:
            assert started.stdout is not None
            address = json.loads(started.stdout.readline())["address"]
            client = subprocess.Popen(
                [sys.executable, "-c", asks, address],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert client.stdout is not None
            assert client.stdout.readline() == "asks\n"
            time.sleep(1)
            started.terminate()
            _, errors = started.communicate(timeout=30)
            assert (started.returncode, errors) == (0, "")
            assert client.poll() is None, "it still waited"
        finally:
            for process in (started, client):
                if process is not None:
                    process.kill()
                    process.communicate()
