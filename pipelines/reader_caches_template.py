"""What ``reader.py`` beside it does for ``cache=``. It needs TensorFlow and nothing else."""

from __future__ import annotations

import math
import os
import re
import shutil
import uuid
import warnings
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

_AT_ONCE = 1_024  # records that are decoded together
_COMPLETE = re.compile(r"((.+)\.[0-9a-f]{32})\.index")


def cached(job: Any) -> None:
    """Keeps the records of each range, in memory or in a folder; or the examples, decoded.

    A file that this process writes has a name of its own, and others take it for complete once
    its index is there: no two processes meet in one, and what breaks off leaves the rest as it is.
    (A checkpoint in mid-epoch completes ``<name>_0.index``, the index of a part: that is not it.)
    """
    where = os.fspath(job.cache)
    if where == "decoded":
        _decoded(job)
        return
    if where != "memory":
        if "://" in where:
            raise ValueError(f"cache={where!r} must be a folder on a local disk.")
        try:
            os.makedirs(where, exist_ok=True)
            names = sorted(os.listdir(where), reverse=True)
        except OSError as error:
            raise ValueError(f"cache={where!r} cannot be written ({error}).") from None
        done = {match[2]: match[1] for one in names if (match := _COMPLETE.fullmatch(one))}
    kept: Any = []
    missing = 0
    for path, skip, take, first in job.ranges:
        file = ""
        if where != "memory":
            name = f"{job.reader.FINGERPRINT}-{os.path.basename(path)}-{skip}-{take}"
            missing += name not in done
            file = f"{where}/{done.get(name) or f'{name}.{uuid.uuid4().hex}'}"
        kept.append(job.read(path, skip, take, first).cache(file))
    if missing or where == "memory":
        _warn(job, job.reader.RECORD_BYTES)
    if not kept:
        return
    spec = kept[0].element_spec
    variants = tf.stack([tf.data.experimental.to_variant(records) for records in kept])
    firsts = tf.constant([first for _, _, _, first in job.ranges], tf.int64)

    def open_(variant: Any, first: Any) -> tf.data.Dataset:
        del first
        return tf.data.experimental.from_variant(variant, spec)

    job.slices, job.read = (variants, firsts), open_
    job.streams = tf.data.Dataset.from_tensor_slices(job.slices)


def _decoded(job: Any) -> None:
    """Keeps the finished examples as whole tensors; an epoch gathers a permutation of them.

    They are decoded when the first batch is asked for, and take twice their room until all are.
    """
    num, size = sum(take for _, _, take, _ in job.ranges), job.batch_size
    if not num:
        return
    found = job.streams.flat_map(job.read).batch(_AT_ONCE)
    found = found.map(job.finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    spec = tf.nest.flatten(found.element_spec)
    fixed = all(isinstance(one, tf.TensorSpec) and None not in one.shape[1:] for one in spec)
    sizes = [math.prod(one.shape[1:]) * one.dtype.size for one in spec] if fixed else []
    _warn(job, 2 * (sum(sizes) or job.reader.RECORD_BYTES))  # twice while it is filled
    whole = found.rebatch(num).cache()
    variant, spec = tf.data.experimental.to_variant(whole), whole.element_spec
    first, numbered = job.ranges[0][-1], job.numbered

    def epoch(seed: Any) -> tf.data.Dataset:
        def batches(*columns: Any) -> tf.data.Dataset:
            order = tf.range(num, dtype=tf.int64)
            if job.buffer:
                order = tf.random.experimental.stateless_shuffle(order, [seed, 0])

            def batch(start: Any) -> Any:
                rows = order[start : start + size]
                if job.drop_remainder:
                    rows = tf.ensure_shape(rows, [size])
                values = tf.nest.map_structure(lambda column: tf.gather(column, rows), columns)
                values = values[0] if len(values) == 1 else values
                return (values, first + rows) if numbered else values

            starts = tf.data.Dataset.range(0, num - (size - 1) * job.drop_remainder, size)
            # In order also without a seed: the one short batch stays the last.
            return starts.map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

        return tf.data.experimental.from_variant(variant, spec).flat_map(batches)

    job.epoch, job.finish = epoch, job.reader._beside("reader_options").as_it_is


def _warn(job: Any, each: int) -> None:
    """Warns where there is no room for so many bytes of each record."""
    num_bytes = each * sum(take for _, _, take, _ in job.ranges)
    if job.cache in ("memory", "decoded"):
        room = job.reader._beside("reader_options").free_memory()
    else:
        room = shutil.disk_usage(job.cache).free
    if num_bytes > room:
        text = f"cache={job.cache!r}: it takes {num_bytes:,} bytes, and there are {room:,}."
        warnings.warn(text, ResourceWarning, stacklevel=5)
