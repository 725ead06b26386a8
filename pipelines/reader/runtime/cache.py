"""``cache=``: keeps serialized records, or decoded examples, in memory for later epochs."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import warnings
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .pipeline import Plan, list_pieces, open_pieces, unconverted

_AT_ONCE = 1_024
"""Number of records decoded together."""


def keep_records(plan: Plan) -> Plan:
    """Caches the serialized records of each piece in memory."""
    num = len(plan.order.pieces)
    _warn(plan, facts.RECORD_BYTES)
    if not num:
        return plan
    spec = tf.TensorSpec([], tf.string)

    def keep(number: Any, *fields: Any) -> Any:
        opened = tf.data.Dataset.from_tensors((*fields, number)).interleave(
            unconverted(plan.open_records), cycle_length=1
        )
        take = fields[3]
        return tf.data.experimental.to_variant(_complete_or_error(opened, take).cache())

    # Traced once for all pieces. Tracing 300 of them one by one would take seconds.
    pieces = list_pieces(plan, tf.range(num, dtype=tf.int64))
    kept = pieces.map(unconverted(keep)).batch(num)
    variants = kept.get_single_element()

    def open_kept(*piece: Any) -> tf.data.Dataset:
        return tf.data.experimental.from_variant(tf.gather(variants, piece[-1]), spec)

    return dataclasses.replace(plan, open_records=open_kept, open_uncached=plan.open_records)


def _complete_or_error(elements: tf.data.Dataset, num: Any) -> tf.data.Dataset:
    """The same ``num`` elements; raises an error if there are fewer.

    If opening a piece fails, e.g. because reading is cancelled, ``flat_map`` raises the error once
    and then continues without the piece, and ``rebatch`` ends. Without this check directly before
    ``cache``, that would cache the elements so far as if they were complete.
    """
    return elements.apply(tf.data.experimental.assert_cardinality(num))


def keep_decoded(plan: Plan) -> Plan:
    """Caches the parsed examples as whole tensors; an epoch gathers a permutation of them.

    They are parsed when the first batch is requested. Until all are, they take twice their size.
    """
    options = plan.options
    num, size = sum(piece.take for piece in plan.order.pieces), options.batch_size
    if not num:
        return plan
    parsed = unconverted(open_pieces)(plan, tf.range(plan.order.num_streams, dtype=tf.int64))
    parsed = _complete_or_error(parsed, num).batch(_AT_ONCE)
    calls = options.num_parallel_calls
    parse = unconverted(plan.parse_batch)
    parsed = parsed.map(parse, num_parallel_calls=calls, deterministic=True)
    leaves = tf.nest.flatten(parsed.element_spec)
    is_fixed = all(
        isinstance(leaf, tf.TensorSpec) and None not in leaf.shape[1:] for leaf in leaves
    )
    sizes = [math.prod(leaf.shape[1:]) * leaf.dtype.size for leaf in leaves] if is_fixed else []
    _warn(plan, 2 * (sum(sizes) or facts.RECORD_BYTES))  # twice while the cache is being filled
    examples = _complete_or_error(parsed.rebatch(num), 1).cache()
    variant, spec = tf.data.experimental.to_variant(examples), examples.element_spec
    first = plan.order.pieces[0].place
    is_numbered = options.is_numbered

    def read_epoch(plan: Plan, seed: Any) -> tf.data.Dataset:
        del plan

        def batches(*columns: Any) -> tf.data.Dataset:
            order = tf.range(num, dtype=tf.int64)
            if options.shuffles:
                order = tf.random.experimental.stateless_shuffle(order, [seed, 0])

            def batch(start: Any) -> Any:
                rows = order[start : start + size]
                if options.drop_remainder:
                    rows = tf.ensure_shape(rows, [size])
                values = tf.nest.map_structure(lambda column: tf.gather(column, rows), columns)
                values = values[0] if len(values) == 1 else values
                return (values, first + rows) if is_numbered else values

            starts = tf.data.Dataset.range(0, num - (size - 1) * options.drop_remainder, size)
            # In order even without a seed: the one short batch must stay last.
            return starts.map(batch, num_parallel_calls=calls, deterministic=True)

        return tf.data.experimental.from_variant(variant, spec).flat_map(batches)

    return dataclasses.replace(
        plan, read_epoch=read_epoch, parse_batch=as_is, is_numbered=is_numbered
    )


def as_is(*batch: Any) -> Any:
    """Replaces the parser where batches are already parsed."""
    return batch[0] if len(batch) == 1 else batch


def free_memory() -> int:
    """Bytes of free memory, at most the limit of this container."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        sizes += [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(f"/sys/fs/cgroup/{limit}") as file:
            sizes.append(int(file.read()))  # or the word "max"
    return min(sizes)


def _warn(plan: Plan, each: int) -> None:
    """Warns if there is no room for ``each`` bytes per record."""
    num_bytes, room = each * sum(piece.take for piece in plan.order.pieces), free_memory()
    if num_bytes > room:
        text = (
            f"cache={plan.options.cache!r} needs {num_bytes:,} bytes, but only {room:,} are free."
        )
        warnings.warn(text, ResourceWarning, stacklevel=5)
