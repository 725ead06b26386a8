"""``service=``: a tf.data service shares the work of reading.

Its workers read, shuffle, parse and augment; the trainer cuts batches of the requested size. Losing
records with a worker that was restarted is an error. TensorFlow waits for a dispatcher or worker
that does not come back.
"""

from __future__ import annotations

import dataclasses
import os
import random
import socket
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from .cache import as_is
from .options import Options
from .order import ByShard
from .pipeline import Plan, shuffle, unconverted
from .shards import Piece, as_columns

_ORDERS = 8
"""Number of shard orders to choose from; each epoch uses one."""
_RANGES = 8
"""Pieces for all workers together to share, for each piece that a worker has open."""
_CONNECT_S = 5.0
_EXACT = {"distributed_epoch", "dynamic", tf.data.experimental.service.ShardingPolicy.DYNAMIC}


def share_work(plan: Plan) -> Plan:
    """Reads epochs of parsed batches from the workers of a service.

    Raises:
        ValueError: if no dispatcher answers, or an argument is unknown.
    """
    options = plan.options
    asked = asked_of(options)
    url = asked["service"]
    if error := _error_of(url.removeprefix("grpc://")):
        raise ValueError(
            f"service={url!r}: no dispatcher answers ({error}). Start one with `snapshard serve`, "
            "and pass the grpc:// address that it prints."
        )
    exact = is_exact(options)
    pieces = [
        piece if "://" in piece.path else piece._replace(path=os.path.abspath(piece.path))
        for piece in plan.order.pieces
    ]
    orders = [pieces]
    # A named job counts epochs for each dataset: it would consider the first of another one over.
    if options.shuffles and len(pieces) > 1 and not asked.get("job_name"):
        orders = [random.sample(pieces, len(pieces)) for _ in range(_ORDERS)]
    # Registered once, since each registration takes 0.1 s and freezes captured values: a captured
    # seed would be the same in every epoch.
    try:
        distribute = tf.data.experimental.service.distribute(**asked)
    except TypeError as error:
        raise ValueError(f"service={options.service!r}: {error}.") from None
    datasets = [unconverted(_work)(plan, order).apply(distribute) for order in orders]
    spec = datasets[0].element_spec
    variants = tf.stack([tf.data.experimental.to_variant(dataset) for dataset in datasets])

    def read_epoch(plan: Plan, seed: Any) -> tf.data.Dataset:
        epoch = tf.data.experimental.from_variant(tf.gather(variants, seed % len(datasets)), spec)
        if not exact:
            return epoch.rebatch(options.batch_size, drop_remainder=options.drop_remainder)
        return _cut_batches(plan, epoch, url)

    return dataclasses.replace(
        plan,
        read_epoch=read_epoch,
        parse_batch=as_is,
        num_batches=plan.num_batches if exact else None,
    )


def asked_of(options: Options) -> dict[str, Any]:
    """The arguments for ``tf.data.experimental.service.distribute``."""
    given = options.service
    asked: dict[str, Any] = {"service": given} if isinstance(given, str) else dict(given or {})
    return {"processing_mode": "distributed_epoch", **asked}


def is_exact(options: Options) -> bool:
    """Whether an epoch has each record once: not if workers read everything, or share a job."""
    asked = asked_of(options)
    return asked["processing_mode"] in _EXACT and not asked.get("job_name")


def _cut_batches(plan: Plan, batches: tf.data.Dataset, url: str) -> tf.data.Dataset:
    """An epoch's batches of the requested size; raises an error if records are missing.

    A restarted worker has lost what it had read. All sizes are known, so the last batch does not
    have to wait for the service to report the end, which takes a second.
    """
    size, num = plan.options.batch_size, plan.num_batches
    num_full = plan.order.num_records // size
    sizes: Any = size
    if num != num_full:  # the last batch is short
        sizes = tf.concat([tf.fill([num_full], size), [plan.order.num_records % size]], 0)
    cut = batches.rebatch(tf.cast(sizes, tf.int64), drop_remainder=True)

    def fail(_: Any) -> tf.data.Dataset:
        text = (
            f"service={url}: records of this epoch are lost with a worker that was restarted. "
            "Resume from the model's last checkpoint."
        )
        with tf.control_dependencies([tf.debugging.Assert(False, [text])]):
            variant = tf.identity(tf.data.experimental.to_variant(cut))
        return tf.data.experimental.from_variant(variant, cut.element_spec)

    lost = tf.data.Dataset.from_tensors(0).flat_map(fail)
    cut = cut.concatenate(lost).take(num)
    return cut.apply(tf.data.experimental.assert_cardinality(num))


def _work(plan: Plan, pieces: list[Piece]) -> tf.data.Dataset:
    """What each worker does with the pieces assigned to it, one after another.

    The pieces must be its first and only source, since that is what the service divides: behind a
    ``flat_map`` over epochs, every worker would read everything.
    """
    # Interleave immediately takes a piece for each slot, and in parallel as many again, no matter
    # who waits: with as many slots as shards, one worker of many would read them all.
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
        zero = tf.constant(0, tf.int64)  # two zeros: a different order each time
        batches = shuffle(batches, order.buffer // order.chunk, zero, 0)
        batches = batches.rebatch(options.batch_size)
    else:
        batches = streams.flat_map(plan.open_records).batch(options.batch_size)
    batches = batches.map(parse, num_parallel_calls=options.num_parallel_calls)
    return batches.prefetch(tf.data.AUTOTUNE)


def _drawn() -> Any:
    """A seed drawn by the worker."""
    return tf.random.uniform([], 1, tf.int64.max, tf.int64)


def _error_of(address: str) -> str:
    """Why nothing answers at ``host:port``; "" if something does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""
