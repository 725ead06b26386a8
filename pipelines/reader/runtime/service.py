"""``service=``: a tf.data service shares the work of reading.

Its workers read, shuffle, parse and augment; the trainer cuts batches of the asked size.
"""

from __future__ import annotations

import dataclasses
import os
import random
import socket
import time
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from .cache import as_is
from .order import ByShard
from .pipeline import Plan, shuffle
from .shards import Piece, as_columns

_ORDERS = 8  # orders of the shards, of which each epoch takes one
_RANGES = 8  # what all workers together can share out for each range that one has open
_WAIT = 30  # seconds for the first worker to join
_GET_WORKERS = "/tensorflow.data.DispatcherService/GetWorkers"  # empty, where there is none
_EXACT = {"distributed_epoch", "dynamic", tf.data.experimental.service.ShardingPolicy.DYNAMIC}


def share_work(plan: Plan) -> Plan:
    """Epochs of parsed batches that the workers of a service made.

    Raises:
        ValueError: if no dispatcher answers, or no worker has joined it.
    """
    options = plan.options
    given = options.service
    asked: dict[str, Any] = {"service": given} if isinstance(given, str) else dict(given or {})
    asked.setdefault("processing_mode", "distributed_epoch")
    _reach(asked["service"])
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
    found = [_work(plan, order).apply(_distribute(**asked)) for order in orders]
    spec = found[0].element_spec
    variants = tf.stack([tf.data.experimental.to_variant(one) for one in found])
    num_batches = plan.num_batches
    if asked["processing_mode"] not in _EXACT or asked.get("job_name"):
        num_batches = None  # every worker's all, or what other trainers leave

    def read_epoch(plan: Plan, seed: Any) -> tf.data.Dataset:
        one = tf.data.experimental.from_variant(tf.gather(variants, seed % len(found)), spec)
        batches = one.rebatch(options.batch_size, drop_remainder=options.drop_remainder)
        # With the number known, the end need not wait for the service to report it, for seconds.
        return batches.take(-1 if plan.num_batches is None else plan.num_batches)

    return dataclasses.replace(
        plan, read_epoch=read_epoch, parse_batch=as_is, num_batches=num_batches
    )


def _distribute(**asked: Any) -> Any:
    return tf.data.experimental.service.distribute(**asked)


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


def _reach(address: str) -> None:
    """Raises where no dispatcher answers, or one without a worker; ``distribute`` would wait."""
    _, _, where = address.rpartition("://")
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"service={address!r}: no dispatcher answers ({error}). Start one by "
            "`python reader_tools.py serve`, and give the grpc:// address that it prints."
        ) from None
    end = time.monotonic() + _WAIT
    while not _has_worker(where):
        if time.monotonic() > end:
            raise ValueError(
                f"service={address!r}: no worker joined its dispatcher within {_WAIT} s. Start one "
                f"by `python reader_tools.py serve --join grpc://{where}`."
            )
        time.sleep(0.2)


def _has_worker(where: str) -> bool:
    """Whether a dispatcher knows a worker; true where it does not tell."""
    try:
        import grpc  # type: ignore[import-untyped, unused-ignore]  # TensorFlow needs it itself
    except ImportError:
        return True
    try:
        with grpc.insecure_channel(where, options=[("grpc.enable_http_proxy", 0)]) as channel:
            return bool(channel.unary_unary(_GET_WORKERS)(b"", timeout=10))
    except grpc.RpcError:
        return True
