"""``service=``: a tf.data service shares the work of reading.

Its workers read, shuffle, parse and augment; the trainer cuts batches of the asked size. TensorFlow
waits for a worker that is gone, and for records that are lost with it, for an hour. So the trainer
looks now and then whether the dispatcher and all workers can be reached.
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
from .local_copy import slowed
from .order import ByShard
from .pipeline import Plan, shuffle
from .shards import Piece, as_columns

_ORDERS = 8
"""Orders of the shards, of which each epoch takes one."""
_RANGES = 8
"""Pieces that all workers together can share out for each one that a worker has open."""
_WAIT_S = 30.0
"""How long the first worker may take to join."""
_TICK_S = 0.2
"""How often something comes of a service from which nothing comes …"""
_LOOK_S = 2.0
"""… how often a trainer then looks whether it can be reached …"""
_LOST_S = 60.0
"""… and how long it may be unreachable, since it may be restarted."""
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
    given = options.service
    asked: dict[str, Any] = {"service": given} if isinstance(given, str) else dict(given or {})
    asked.setdefault("processing_mode", "distributed_epoch")
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
    num_batches = plan.num_batches
    if asked["processing_mode"] not in _EXACT or asked.get("job_name"):
        num_batches = None  # every worker's all, or what other trainers leave

    def read_epoch(plan: Plan, seed: Any) -> tf.data.Dataset:
        one = tf.data.experimental.from_variant(tf.gather(variants, seed % len(found)), spec)
        batches = _watched(one, service)
        batches = batches.rebatch(options.batch_size, drop_remainder=options.drop_remainder)
        if plan.num_batches is None:
            return batches
        # A worker that is restarted has lost what it was given before.
        return batches.apply(tf.data.experimental.assert_cardinality(plan.num_batches))

    return dataclasses.replace(
        plan, read_epoch=read_epoch, parse_batch=as_is, num_batches=num_batches
    )


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


def _watched(batches: tf.data.Dataset, service: _Service) -> tf.data.Dataset:
    """The same batches, and an error where the service cannot be reached any more.

    Of two streams, what comes first is taken: batches and an end, or ticks, which look at the
    service. Ticks are left out only afterwards: TensorFlow cannot cancel a stream that gives
    nothing.
    """
    optional, spec = tf.experimental.Optional, batches.element_spec
    batch, end, tick = 0, 1, 2

    def look(_: Any) -> Any:
        fault = tf.numpy_function(service.fault, [], tf.string, stateful=False)
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(fault, b""), [fault])]):
            return tf.constant(tick), optional.empty(spec)

    nothing = tf.data.Dataset.from_tensors(0)
    found = batches.map(lambda *one: (tf.constant(batch), optional.from_value(as_is(*one))))
    found = found.concatenate(nothing.map(lambda _: (tf.constant(end), optional.empty(spec))))
    looks = slowed(nothing.repeat(), _TICK_S).map(look)
    variants = tf.stack([tf.data.experimental.to_variant(one) for one in (found, looks)])
    both = tf.data.Dataset.range(2).interleave(
        lambda i: tf.data.experimental.from_variant(tf.gather(variants, i), found.element_spec),
        cycle_length=2,
        block_length=1,
        num_parallel_calls=2,
        deterministic=False,
    )
    both = both.take_while(lambda kind, _: kind != end).filter(lambda kind, _: kind == batch)
    return both.map(lambda _, one: one.get_value())


class _Service:
    """Whether a dispatcher and its workers can be reached."""

    def __init__(self, url: str) -> None:
        self._url, self._dispatcher = url, url.rpartition("://")[2]
        self._workers: list[str] = []
        self._lost: dict[str, float] = {}  # addresses, and since when, by time.monotonic()
        self._looked = 0.0  # when, last

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
        while (workers := _workers_of(self._dispatcher)) == []:
            if time.monotonic() > end:
                raise ValueError(
                    f"service={self._url!r}: no worker joined its dispatcher within {_WAIT_S:g} s. "
                    f"Start one by `{_SERVE} --join grpc://{self._dispatcher}`."
                )
            time.sleep(0.2)
        self._workers = workers or []

    def fault(self) -> bytes:
        """What could not be reached for so long that it is taken for lost, if anything.

        A dispatcher never forgets a worker, and gives it work that nobody does.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return b""
        self._looked = now
        self._workers = _workers_of(self._dispatcher) or self._workers
        errors = {one: _error_of(one) for one in (self._dispatcher, *self._workers)}
        self._lost = {one: self._lost.get(one, now) for one, error in errors.items() if error}
        lost = [one for one, since in self._lost.items() if now - since >= _LOST_S]
        if not lost:
            return b""
        return (
            f"service={self._url}: {', '.join(lost)} cannot be reached for {_LOST_S:g} s "
            f"({errors[lost[0]]}), and records that were read there are lost. Start the whole "
            f"service again by `{_SERVE}`, and resume from the last checkpoint of the model."
        ).encode()


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
