"""What ``reader.py`` beside it does with lists of varying length: batches of alike length, padding.

It needs TensorFlow and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

_POOL = 32  # batches of which those of alike length are formed


def bucketed(job: Any, batches: tf.data.Dataset, seed: Any) -> tf.data.Dataset:
    """As many batches of the same records, those of alike length together.

    The records of a pool of batches are sorted by length and cut into batches, whose order is
    shuffled. So lengths differ little within a batch, and no batch is short but the last.
    """
    lengths, size = job.lengths, job.batch_size

    def sort(number: Any, pool: Any) -> Any:
        order = tf.argsort(lengths(pool[0] if job.numbered else pool), stable=True)
        whole = tf.size(order) // size
        groups = tf.reshape(order[: whole * size], [whole, size])
        if job.buffer:
            numbers = tf.random.stateless_uniform([whole], [seed, number])
            groups = tf.gather(groups, tf.argsort(numbers))
        order = tf.concat([tf.reshape(groups, [-1]), order[whole * size :]], axis=0)
        return tf.nest.map_structure(lambda column: tf.gather(column, order), pool)

    pools = batches.rebatch(_POOL * size).enumerate()
    pools = pools.map(sort, num_parallel_calls=tf.data.AUTOTUNE)
    return pools.rebatch(size, drop_remainder=job.drop_remainder)


def lengths_of(job: Any) -> Callable[[Any], Any]:
    """What tells the lengths of a batch of serialized examples.

    Raises:
        ValueError: if there is no such list, or several to choose from.
    """
    features = job.reader.FEATURES
    varying = [name for name in features if features[name].get("shape", [])[:1] == [None]]
    name = varying[0] if job.bucket is True and len(varying) == 1 else job.bucket
    if name not in varying:
        raise ValueError(f"bucket={job.bucket!r} must be one of {', '.join(varying)}.")
    parse = job.reader._parser(columns=[name])

    def lengths(serialized: Any) -> Any:
        return dict(_named(parse(serialized)))[name].row_lengths()

    return lengths


def _named(values: Any, name: str = "") -> list[tuple[str, Any]]:
    """The tensors in nested dicts by the names of their features."""
    if not isinstance(values, dict):
        return [(name, values)]
    dot = f"{name}." if name else ""
    return [leaf for key, value in values.items() for leaf in _named(value, f"{dot}{key}")]


def padded(job: Any) -> Callable[[Any], Any]:
    """Parses a batch and makes dense what is ragged."""
    finish, names = job.finish, {*job.reader.FEATURES} if job.columns is None else {*job.columns}
    alone = "".join([*names - {job.reader.LABEL}][:1])  # what features are where there is one
    ends = vars(job.reader).get("LENGTHS", {}) if job.bucket else {}

    def dense(value: Any, name: str) -> Any:
        if isinstance(value, dict):
            dot = f"{name}." if name else ""
            return {key: dense(one, f"{dot}{key}") for key, one in value.items()}
        if not isinstance(value, tf.RaggedTensor):
            return value
        if not ends.get(name):  # with its shape, as what is empty has none
            return value.to_tensor(shape=value.shape)
        longest, end = tf.reduce_max(value.row_lengths()), tf.constant(ends[name], tf.int64)
        next_end = tf.reduce_min(tf.where(end >= longest, end, end[-1]))
        most = tf.maximum(longest, next_end)
        shape = [-1, most, *(dim or -1 for dim in value.shape[2:])]
        return tf.ensure_shape(
            value.to_tensor(shape=tf.stack([tf.cast(size, tf.int64) for size in shape])),
            [None, None, *value.shape[2:]],
        )

    def parse(*batch: Any) -> Any:
        found = finish(*batch)
        if not job.as_supervised:
            return dense(found, "")
        features, label = found
        return dense(features, "" if isinstance(features, dict) else alone), label

    return parse


def windowed(job: Any, length: int, step: int) -> None:
    """Makes ``job.epoch`` give batches of windows, and the rest of a record with each of its own.

    The windows of as many records as a batch holds are shuffled together. A record that is shorter
    than a window has none.
    """
    if length < 1 or step < 1:
        raise ValueError(f"windows=({length}, {step}): length and step must be 1 or more.")
    epoch, finish = job.epoch, job.finish

    def cut(number: Any, batch: Any, seed: Any) -> Any:
        leaves = tf.nest.flatten(batch)
        lists = [leaf for leaf in leaves if isinstance(leaf, tf.RaggedTensor)]
        if not lists or any(leaf.ragged_rank > 1 for leaf in lists):
            raise ValueError("windows= needs lists, each of whose values has one shape.")
        num = lists[0].row_lengths()
        same = [tf.debugging.assert_equal(leaf.row_lengths(), num) for leaf in lists[1:]]
        with tf.control_dependencies([one for one in same if one is not None]):
            counts = tf.maximum((num - length) // step + 1, 0)
        records = tf.repeat(tf.range(tf.size(counts)), counts)
        within = tf.range(tf.reduce_sum(counts)) - tf.repeat(
            tf.cumsum(counts, exclusive=True), counts
        )
        order = tf.range(tf.size(records))
        if job.buffer:
            order = tf.argsort(tf.random.stateless_uniform([tf.size(records)], [seed, number]))
        records, within = tf.gather(records, order), tf.gather(within, order)

        def windows(leaf: Any) -> Any:
            if not isinstance(leaf, tf.RaggedTensor):
                return tf.gather(leaf, records)
            begin = tf.gather(leaf.row_starts(), records) + within * step
            return tf.gather(leaf.values, begin[:, None] + tf.range(length, dtype=tf.int64))

        return tf.nest.pack_sequence_as(batch, [windows(leaf) for leaf in leaves])

    def cut_epoch(seed: Any) -> tf.data.Dataset:
        def finished(number: Any, serialized: Any) -> Any:
            return cut(number, finish(serialized), seed)

        batches = epoch(seed).enumerate().map(finished, num_parallel_calls=tf.data.AUTOTUNE)
        batches = batches.rebatch(job.batch_size, drop_remainder=job.drop_windows)
        return _some(batches, f"windows={job.windows}") if job.epochs is None else batches

    job.epoch, job.finish = cut_epoch, job.reader._beside("reader_options").as_it_is
    job.num_batches = None if job.num_batches else 0


def _some(batches: tf.data.Dataset, option: str) -> tf.data.Dataset:
    """The same batches of an epoch, and an error where there are none.

    A dataset of epochs without end would look for the first batch forever.
    """
    spec = batches.element_spec

    def empty(one: Any) -> Any:
        return tf.zeros([0, *(dim or 0 for dim in one.shape[1:])], one.dtype)

    def count(num: Any, batch: Any) -> Any:
        is_batch = tf.shape(tf.nest.flatten(batch)[0])[0] > 0
        text = f"epochs=None waits forever: {option} gives no batch."
        with tf.control_dependencies([tf.debugging.Assert(is_batch | (num > 0), [text])]):
            return num + 1, (tf.identity(is_batch), batch)

    def is_kept(is_batch: Any, batch: Any) -> Any:
        del batch
        return is_batch

    def kept(is_batch: Any, batch: Any) -> Any:
        del is_batch
        return tf.nest.map_structure(
            lambda value, one: tf.ensure_shape(value, one.shape), batch, spec
        )

    end = tf.data.Dataset.from_tensors(tf.nest.map_structure(empty, spec))
    zero = tf.constant(0, tf.int64)
    return batches.concatenate(end).scan(zero, count).filter(is_kept).map(kept)
