"""``service=``: a tf.data service shares the work of reading.

Its workers read, shuffle, parse and augment; the trainer cuts batches of the asked size.
"""

from __future__ import annotations

import dataclasses
import os
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from .cache import as_is
from .options import Options
from .order import ByShard
from .pipeline import Plan, shuffle
from .shards import Piece, as_columns

_ORDERS = 8
"""Orders of the shards, of which each epoch takes one."""
_RANGES = 8
"""Pieces that all workers together can share out for each one that a worker has open."""
_WAIT_S = 30.0
"""How long the first worker may take to join."""
_CONNECT_S = 5.0
_GET_WORKERS = "/tensorflow.data.DispatcherService/GetWorkers"
_EXACT = {"distributed_epoch", "dynamic", tf.data.experimental.service.ShardingPolicy.DYNAMIC}
_SERVE = f"python {os.path.dirname(os.path.abspath(__file__))} serve"


def share_work(plan: Plan) -> Plan:
    """Epochs of parsed batches that the workers of a service made.

    Raises:
        ValueError: if no dispatcher answers, or no worker has joined it.
    """
    options = plan.options
    asked = asked_of(options)
    service = _Service(str(asked.get("service")))
    service.check()
    pieces = [
        piece if "://" in piece.path else piece._replace(path=os.path.abspath(piece.path))
        for piece in plan.order.pieces
    ]
    orders = [pieces]
    # A job by a name counts epochs for each dataset: another one would find the first over.
    if options.shuffles and len(pieces) > 1 and not asked.get("job_name"):
        orders = [random.sample(pieces, len(pieces)) for _ in range(_ORDERS)]
    # Registered now, as each costs 0.1 s and holds what it captures: a seed would be the same in
    # every epoch.
    distribute = tf.data.experimental.service.distribute(**asked)
    found = [_work(plan, order).apply(distribute) for order in orders]
    spec = found[0].element_spec
    variants = tf.stack([tf.data.experimental.to_variant(one) for one in found])
    num_batches = plan.num_batches if is_exact(options) else None

    def read_epoch(plan: Plan, seed: Any) -> tf.data.Dataset:
        one = tf.data.experimental.from_variant(tf.gather(variants, seed % len(found)), spec)
        batches = one.rebatch(options.batch_size, drop_remainder=options.drop_remainder)
        if plan.num_batches is None:
            return batches
        # With the number known, the end need not wait for the service to report it, for seconds;
        # fewer are an error: a worker that is restarted has lost what it was given before.
        num = plan.num_batches
        return batches.take(num).apply(tf.data.experimental.assert_cardinality(num))

    return dataclasses.replace(
        plan, read_epoch=read_epoch, parse_batch=as_is, num_batches=num_batches
    )


def asked_of(options: Options) -> dict[str, Any]:
    """The arguments of ``tf.data.experimental.service.distribute``."""
    given = options.service
    asked: dict[str, Any] = {"service": given} if isinstance(given, str) else dict(given or {})
    return {"processing_mode": "distributed_epoch", **asked}


def is_exact(options: Options) -> bool:
    """Whether an epoch has each record once: not every worker's all, or what trainers leave."""
    asked = asked_of(options)
    return asked["processing_mode"] in _EXACT and not asked.get("job_name")


def _work(plan: Plan, pieces: list[Piece]) -> tf.data.Dataset:
    """What each worker does with the pieces that it is given, one after the other.

    The pieces are its first and only source, since that is what the service shares out: behind a
    ``flat_map`` over epochs every worker would read everything.
    """
    # Interleave takes a piece for each slot at once, and in parallel as many again, whoever waits:
    # with as many slots as shards, one worker of many would read them all.
    options = plan.options
    order = ByShard(
        pieces,
        buffer=options.buffer,
        batch_size=options.batch_size,
        num_open=max(1, len(pieces) // _RANGES),
    )
    fields = (*as_columns(pieces), tf.range(len(pieces), dtype=tf.int64))
    streams = tf.data.Dataset.from_tensor_slices(fields)

    def chunks(*piece: Any) -> tf.data.Dataset:
        records = plan.open_records(*piece)
        return shuffle(records, order.window, _drawn(), 1 + piece[4]).batch(order.chunk)

    def parse(*batch: Any) -> Any:
        return plan.parse_batch(batch, _drawn()) if plan.is_numbered else plan.parse_batch(*batch)

    if options.shuffles:
        batches = streams.interleave(chunks, cycle_length=order.num_open, block_length=1)
        zero = tf.constant(0, tf.int64)  # two zeros: another order each time
        batches = shuffle(batches, order.buffer // order.chunk, zero, 0)
        batches = batches.rebatch(options.batch_size)
    else:
        batches = streams.flat_map(plan.open_records).batch(options.batch_size)
    batches = batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.prefetch(tf.data.AUTOTUNE)


def _drawn() -> Any:
    """A seed that the worker draws."""
    return tf.random.uniform([], 1, tf.int64.max, tf.int64)


class _Service:
    """Whether a dispatcher and its workers can be reached."""

    def __init__(self, url: str) -> None:
        self._url, self._dispatcher = url, url.rpartition("://")[2]

    def check(self) -> None:
        """Raises ValueError where no dispatcher answers, or one without a worker.

        ``distribute`` would wait for them.
        """
        if error := _error_of(self._dispatcher):
            raise ValueError(
                f"service={self._url!r}: no dispatcher answers ({error}). Start one by "
                f"`{_SERVE}`, and give the grpc:// address that it prints."
            )
        end = time.monotonic() + _WAIT_S
        while _workers_of(self._dispatcher) == []:
            if time.monotonic() > end:
                raise ValueError(
                    f"service={self._url!r}: no worker joined its dispatcher within {_WAIT_S:g} s. "
                    f"Start one by `{_SERVE} --join grpc://{self._dispatcher}`."
                )
            time.sleep(0.2)


def _error_of(address: str) -> str:
    """Why nothing answers at ``host:port``, if nothing does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _workers_of(dispatcher: str) -> list[str] | None:
    """The addresses of the workers that have ever joined a dispatcher; None where it is unknown."""
    try:
        import grpc  # type: ignore[import-untyped, unused-ignore]  # TensorFlow needs it itself
    except ImportError:
        return None
    try:
        with grpc.insecure_channel(dispatcher, [("grpc.enable_http_proxy", 0)]) as channel:
            found: bytes = channel.unary_unary(_GET_WORKERS)(b"", timeout=10)
    except grpc.RpcError:
        return None
    return [field.decode() for worker in _fields(found) for field in _fields(worker)]


def _fields(message: bytes) -> Iterator[bytes]:
    """The values of field 1 of a protobuf message: of these messages, the only field."""
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
