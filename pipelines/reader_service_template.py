"""What ``reader.py`` beside it does to share the work of reading by a tf.data service.

Workers read, shuffle, parse and augment; batches of the asked size are cut by the trainer. It
needs TensorFlow and nothing else.
"""

from __future__ import annotations

import os
import random
import socket
import time
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

_ORDERS = 8  # orders of the shards, of which each epoch takes one
_RANGES = 8  # what all workers together can share out for each range that one has open
_WAIT = 30  # seconds for the first worker to join
_GET_WORKERS = "/tensorflow.data.DispatcherService/GetWorkers"  # empty, where there is none
_EXACT = {"distributed_epoch", "dynamic", tf.data.experimental.service.ShardingPolicy.DYNAMIC}


def served(job: Any) -> None:
    """Makes ``job.epoch`` give finished batches that the workers of a service made.

    Raises:
        ValueError: if no dispatcher answers, or no worker has joined it.
    """
    asked = {"service": job.service} if isinstance(job.service, str) else dict(job.service)
    asked.setdefault("processing_mode", "distributed_epoch")
    _reach(asked["service"])
    ranges = [
        (path if "://" in path else os.path.abspath(path), *rest) for path, *rest in job.ranges
    ]
    orders = [ranges]
    # A job by a name counts epochs for each dataset: another one would find the first over.
    if job.buffer and len(ranges) > 1 and not asked.get("job_name"):
        orders = [random.sample(ranges, len(ranges)) for _ in range(_ORDERS)]
    # Registered now, as each costs 0.1 s and holds what it captures: a seed would be the same in
    # every epoch.
    found = [_work(job, order).apply(_distribute(**asked)) for order in orders]
    spec = found[0].element_spec
    variants = tf.stack([tf.data.experimental.to_variant(one) for one in found])
    if asked["processing_mode"] not in _EXACT or asked.get("job_name"):
        job.num_batches = None  # every worker's all, or what other trainers leave

    def epoch(seed: Any) -> tf.data.Dataset:
        one = tf.data.experimental.from_variant(variants[seed % len(found)], spec)
        batches = one.rebatch(job.batch_size, drop_remainder=job.drop_remainder)
        # With the number known, the end need not wait for the service to tell it, a second or two.
        return batches.take(-1 if job.num_batches is None else job.num_batches)

    job.epoch, job.finish = epoch, job.reader._beside("reader_options").as_it_is


def _distribute(**asked: Any) -> Any:
    return tf.data.experimental.service.distribute(**asked)


def _work(job: Any, ranges: list[Any]) -> tf.data.Dataset:
    """What each worker does with the ranges that it is given, one after the other.

    The ranges are its first and only source, since that is what the service shares out: behind a
    ``flat_map`` over epochs every worker would read everything.
    """
    # Interleave takes a range for each slot at once, and in parallel as many again, whoever waits:
    # with as many slots as shards, one worker of many would read them all.
    num_open = max(1, min(job.num_open, len(ranges) // _RANGES))
    window = max(1, min(job.reader._WINDOWS, job.buffer // 2) // num_open)
    chunk = max(1, min(job.reader._CHUNK, job.batch_size // 8, window))
    streams, shuffle, read, finish = (
        job.reader._streams(ranges),
        job.reader._shuffle,
        job.read,
        job.finish,
    )

    def chunks(*stream: Any) -> tf.data.Dataset:
        return shuffle(read(*stream), window, _drawn(), 1 + stream[-1]).batch(chunk)

    def augment(*numbered: Any) -> Any:
        return finish(numbered, _drawn())

    if job.buffer:
        batches = streams.interleave(chunks, cycle_length=num_open, block_length=1)
        zero = tf.constant(0, tf.int64)  # two zeros: another order each time
        batches = shuffle(batches, (job.buffer - window * num_open) // chunk, zero, 0)
        batches = batches.rebatch(job.batch_size)
    else:
        batches = streams.flat_map(read).batch(job.batch_size)
    batches = batches.map(augment if job.numbered else finish, num_parallel_calls=tf.data.AUTOTUNE)
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
