"""Lists of varying length: bucketing, padding, and what ``windows=`` and ``pack=`` share."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .cache import as_is
from .options import Options
from .parsing import make_parser
from .pipeline import Plan
from .targets import ask

_SAMPLE = 128
"""Number of records that show which values a list has."""
POOL = 32
"""Number of batches that are sorted by length together, or whose records are packed together."""


def bucket_batches(plan: Plan) -> Plan:
    """Batches records of similar length together; the number of batches stays the same.

    The records of a pool of batches are sorted by length and cut into batches, whose order is
    shuffled. Lengths differ little within a batch, and only the last batch may be short.
    """
    read_epoch, lengths = plan.read_epoch, lengths_of(plan.options.bucket)

    def read(plan: Plan, seed: Any) -> tf.data.Dataset:
        options = plan.options  # possibly of a resumed stage
        size = options.batch_size

        def sort(number: Any, pool: Any) -> Any:
            order = tf.argsort(lengths(pool[0] if plan.is_numbered else pool), stable=True)
            full = tf.size(order) // size
            groups = tf.reshape(order[: full * size], [full, size])
            if options.shuffles:
                numbers = tf.random.stateless_uniform([full], [seed, number])
                groups = tf.gather(groups, tf.argsort(numbers))
            order = tf.concat([tf.reshape(groups, [-1]), order[full * size :]], axis=0)
            return tf.nest.map_structure(lambda column: tf.gather(column, order), pool)

        pools = read_epoch(plan, seed).rebatch(POOL * size).enumerate()
        pools = pools.map(sort, num_parallel_calls=options.num_parallel_calls)
        return pools.rebatch(size, drop_remainder=options.drop_remainder)

    return dataclasses.replace(plan, read_epoch=read)


def lengths_of(bucket: bool | str) -> Callable[[Any], Any]:
    """Builds the function that returns the lengths of a batch of serialized examples.

    Raises:
        ValueError: if there is no such list, or several to choose from.
    """
    features = facts.FEATURES
    varying = [name for name in features if features[name].get("shape", [])[:1] == [None]]
    name = varying[0] if bucket is True and len(varying) == 1 else bucket
    if not varying:
        raise ValueError(f"bucket={bucket!r} needs lists, and {facts.NAME} has none.")
    if name is True:
        raise ValueError(f"bucket=True needs one list: name one of {', '.join(varying)}.")
    if name not in varying:
        raise ValueError(f"bucket={bucket!r} must be one of {', '.join(varying)}.")
    parse = make_parser(ask([str(name)]), needs_size=False, decodes_clips=False)

    def lengths(serialized: Any) -> Any:
        return dict(named(parse(serialized)))[name].row_lengths()

    return lengths


def named(values: Any, name: str = "") -> list[tuple[str, Any]]:
    """The tensors in nested dicts, with the names of their features."""
    if not isinstance(values, dict):
        return [(name, values)]
    dot = f"{name}." if name else ""
    return [leaf for key, value in values.items() for leaf in named(value, f"{dot}{key}")]


def pad_lists(plan: Plan) -> Plan:
    """Converts ragged tensors to dense ones, padded to the longest list of the batch.

    With ``bucket=``, the width is rounded up to the next of ``LENGTHS``.
    """
    parse, options = plan.parse_batch, plan.options
    values, ends = paddings(options), facts.LENGTHS if options.bucket else {}
    _propose_paddings(plan, values)

    def dense(value: Any, name: str) -> Any:
        if not isinstance(value, tf.RaggedTensor):
            return value
        fill = tf.constant(values[name], value.dtype) if name in values else None
        if not ends.get(name):  # an explicit shape, since an empty batch has none
            return value.to_tensor(fill, shape=value.shape)
        longest, end = tf.reduce_max(value.row_lengths()), tf.constant(ends[name], tf.int64)
        next_end = tf.reduce_min(tf.where(end >= longest, end, end[-1]))
        most = tf.maximum(longest, next_end)
        shape = [-1, most, *(dim or -1 for dim in value.shape[2:])]
        return tf.ensure_shape(
            value.to_tensor(fill, shape=tf.stack([tf.cast(size, tf.int64) for size in shape])),
            [None, None, *value.shape[2:]],
        )

    def padded(*batch: Any) -> Any:
        return options.asked.change(dense, parse(*batch))

    return dataclasses.replace(plan, parse_batch=padded)


def _propose_paddings(plan: Plan, values: Mapping[str, float]) -> None:
    """Logs another number for lists that would be padded with 0, if 0 is among their values.

    A sample of records shows that. Whoever asks for the lengths can tell them apart.
    """
    asked = plan.options.asked
    names = [
        name
        for name, feature in asked.features.items()
        if _is_numeric_list(name) and feature["kind"] != "audio"  # in which 0 is silence
        if name not in values and f"{name}_length" not in asked.names
    ]
    if not (names and plan.shards):
        return
    kind = "GZIP" if facts.COMPRESSION == "gzip" else ""
    with tf.init_scope():
        try:
            records = tf.data.TFRecordDataset(plan.shards[0].path, kind).take(_SAMPLE)
            sample = make_parser(ask(names))(records.batch(_SAMPLE).get_single_element())
        except tf.errors.OpError:  # reading it is not this function's task
            return
    for name, value in named(sample):
        held = value.flat_values.numpy()
        if not held.size or not held.min() <= 0 <= held.max():
            continue
        least, is_integer = held.min().item(), value.dtype.is_integer
        other = -1 if least >= 0 else least - 1 if is_integer else round(least, 4)
        fits = value.dtype.min <= other <= value.dtype.max
        pad = f"pad it with {other:g}, pad={{{name!r}: {other:g}}}, or " if fits else ""
        logging.getLogger(facts.NAME).warning(
            "%s is padded with 0, which lies among its values (%g to %g): %sask for %s_length.",
            *(name, least, held.max().item(), pad, name),
        )


def paddings(options: Options) -> dict[str, float]:
    """The numbers that ``pad`` names, by feature; all other lists are padded with zeros.

    Raises:
        ValueError: if a feature is not a list of numbers, or its dtype cannot hold the number.
    """
    pad, features = options.pad, facts.FEATURES
    lists = [name for name in features if _is_numeric_list(name)]
    if isinstance(pad, Mapping):
        for name in pad:
            if name not in lists:
                raise ValueError(
                    f"pad: {name!r} is not a list of numbers; expected one of "
                    f"{', '.join(lists) or 'none, since there are none'}."
                )
        values = dict(pad)
    elif isinstance(pad, bool):
        return {}
    else:
        values = {name: pad for name in lists if name in options.asked.features}
    for name, value in values.items():
        kind = tf.float32 if features[name]["kind"] == "audio" else features[name]["dtype"]
        kind = tf.as_dtype(kind)
        if kind.is_integer:
            fits = value == value // 1 and kind.min <= value <= kind.max
        else:  # NaN and infinity included
            fits = not float(kind.max) < abs(value) < math.inf
        if not fits:
            raise ValueError(
                f"pad: {name!r} is {kind.name}, which cannot hold {value}. Choose another number, "
                "or name the features to pad with it, pad={feature: number}."
            )
        values[name] = int(value) if kind.is_integer else value
    return values


def _is_numeric_list(name: str) -> bool:
    feature = facts.FEATURES[name]
    return None in feature.get("shape", []) and feature["dtype"] not in ("string", "bool")


def all_records(read_epoch: Callable[[Plan, Any], tf.data.Dataset]) -> Any:
    """Keeps an epoch's short batch: no record may be dropped before it is cut or packed."""

    def read(plan: Plan, seed: Any) -> tf.data.Dataset:
        options = dataclasses.replace(plan.options, drop_remainder=False)
        return read_epoch(dataclasses.replace(plan, options=options), seed)

    return read


def finished(plan: Plan, read_epoch: Callable[[Plan, Any], tf.data.Dataset]) -> Plan:
    """A plan whose epochs yield parsed batches, an unknown number of them."""
    num_batches = None if plan.order.num_records else 0
    return dataclasses.replace(
        plan, read_epoch=read_epoch, parse_batch=as_is, num_batches=num_batches
    )


def fail_if_empty(batches: tf.data.Dataset, text: str) -> tf.data.Dataset:
    """The same dense batches of an epoch; raises an error with this text if there are none."""
    spec = batches.element_spec

    def empty(tensor: Any) -> Any:
        return tf.zeros([0, *(dim or 0 for dim in tensor.shape[1:])], tensor.dtype)

    def count(num: Any, batch: Any) -> Any:
        is_batch = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0] > 0
        with tf.control_dependencies([tf.debugging.Assert(is_batch | (num > 0), [text])]):
            return num + 1, (tf.identity(is_batch), batch)

    def is_kept(is_batch: Any, batch: Any) -> Any:
        del batch
        return is_batch

    def kept(is_batch: Any, batch: Any) -> Any:
        del is_batch
        return tf.nest.map_structure(
            lambda value, tensor: tf.ensure_shape(value, tensor.shape), batch, spec
        )

    end = tf.data.Dataset.from_tensors(tf.nest.map_structure(empty, spec))
    zero = tf.constant(0, tf.int64)
    return batches.concatenate(end).scan(zero, count).filter(is_kept).map(kept)
