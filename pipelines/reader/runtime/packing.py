"""``pack=``: fills rows of one length with several lists, anew in every epoch.

For training language models on short texts. A build's ``ss.text.pack`` stores the same rows for
every epoch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .options import Options
from .pipeline import Plan
from .sequences import POOL, all_records, fail_if_empty, finished, named

_PACKED = 1_024
"""Minimum number of records packed together."""
_OPEN_ROWS = 512
"""Maximum number of rows searched for room."""


def pack_lists(plan: Plan) -> Plan:
    """Batches rows of one length, each filled with several lists.

    The records of a pool of batches are packed together: longest first, each into the first row
    that has room for it. Within a row, records keep their order. For each list, also yields
    ``<name>_segments``, int32, 1 for a row's first record and 0 for padding, and
    ``<name>_positions``, int32, the position within the record. Records without a value are
    dropped.
    """
    options, parse = plan.options, plan.parse_batch
    read_epoch = all_records(plan.read_epoch)
    lists = packed_lists(options)
    assert options.pack is not None
    length = int(options.pack)
    empty = f"epochs=None would wait forever: pack={length} gives no batch."

    def pack(serialized: Any) -> dict[str, Any]:
        parsed = dict(named(parse(serialized)))
        values = {name: parsed[name] for name in lists}
        pieces = _split(values, length) if len(lists) == 1 else _unsplit(values, length)
        lengths = tf.stack([piece.row_lengths() for piece in pieces.values()], axis=1)
        rows = tf.numpy_function(_rows, [lengths, length], tf.int64, stateful=False)
        rows = tf.ensure_shape(rows, [None])
        order = tf.argsort(rows, stable=True)
        rows, lengths = tf.gather(rows, order), tf.gather(lengths, order)
        num = tf.reduce_max(tf.concat([rows, [-1]], axis=0)) + 1
        counts = tf.math.bincount(rows, minlength=num, dtype=tf.int64)  # of segments in each row
        segments = tf.ragged.range(counts).flat_values + 1
        packed: dict[str, Any] = {}
        for number, (name, piece) in enumerate(pieces.items()):
            each = lengths[:, number]
            totals = tf.math.unsorted_segment_sum(each, rows, num)
            columns = {
                name: tf.gather(piece, order).flat_values,
                f"{name}_segments": tf.cast(tf.repeat(segments, each), tf.int32),
                f"{name}_positions": tf.cast(tf.ragged.range(each).flat_values, tf.int32),
            }
            for key, flat in columns.items():
                dense = tf.RaggedTensor.from_row_lengths(flat, totals).to_tensor(
                    shape=[None, length]
                )
                packed[key] = tf.ensure_shape(dense, [None, length])
        return packed

    def read(plan: Plan, seed: Any) -> tf.data.Dataset:
        pools = read_epoch(plan, seed).rebatch(max(POOL * options.batch_size, _PACKED))
        batches = pools.map(pack, num_parallel_calls=options.num_parallel_calls)
        batches = batches.rebatch(options.batch_size, drop_remainder=options.drop_remainder)
        endless = options.epochs is None
        return fail_if_empty(batches, empty) if endless else batches

    return finished(plan, read)


def packed_lists(options: Options) -> list[str]:
    """The names of the lists that ``pack=`` packs.

    Raises:
        ValueError: if other features are read, or there are several lists and some are too long.
    """
    assert options.pack is not None
    length, features = int(options.pack), facts.FEATURES
    wanted = [*(features if options.columns is None else options.asked.names)]
    lists = [name for name in wanted if _is_packable(name)]
    packable = [name for name in features if _is_packable(name)]
    if not packable:
        raise ValueError(f"pack={length} needs lists of numbers, and {facts.NAME} has none.")
    if not lists or lists != wanted:
        others = ", ".join(name for name in wanted if name not in lists)
        raise ValueError(
            f"pack={length} packs only lists of numbers, not {others}: pass "
            f"columns={lists or packable}."
        )
    ends = {name: facts.LENGTHS.get(name) or [0] for name in lists}
    for name in lists if len(lists) > 1 else ():
        if ends[name][-1] > length:
            raise ValueError(
                f"pack={length}: lists of {name!r} have up to {ends[name][-1]} values. Give a "
                "larger number, or a single list, which is split (columns=)."
            )
    return lists


def _is_packable(name: str) -> bool:
    """Whether a feature is a list of numbers."""
    feature = facts.FEATURES.get(name, {})  # none is a mask, or the like
    return feature.get("shape") == [None] and feature["dtype"] != "string"


def _split(values: dict[str, Any], length: int) -> dict[str, Any]:
    """Splits longer lists into pieces of this length and a rest; drops empty ones."""
    ((name, value),) = values.items()
    lengths = value.row_lengths()
    counts = (lengths + length - 1) // length
    before = tf.ragged.range(counts).flat_values * length  # preceding values of the same list
    pieces = tf.minimum(tf.repeat(lengths, counts) - before, length)
    return {name: tf.RaggedTensor.from_row_lengths(value.flat_values, pieces)}


def _unsplit(values: dict[str, Any], length: int) -> dict[str, Any]:
    """The lists of records that have a value; raises if a list is longer than a row."""
    lengths = tf.stack([value.row_lengths() for value in values.values()], axis=1)
    longest = tf.reduce_max(tf.concat([lengths, tf.zeros([1, len(values)], tf.int64)], 0), 0)
    text = f"pack={length} is less than the longest lists of {', '.join(values)}:"
    with tf.control_dependencies(
        [tf.debugging.Assert(tf.reduce_all(longest <= length), [text, longest])]
    ):
        is_kept = tf.reduce_any(lengths > 0, axis=1)
    return {name: tf.ragged.boolean_mask(value, is_kept) for name, value in values.items()}


def _rows(lengths: Any, length: Any) -> Any:
    """The row of each record, numbered by their first records: first fit, longest first.

    Args:
        lengths: int64[records, lists].
        length: Length of a row; no list is longer.
    """
    num, rows = 0, np.zeros(len(lengths), np.int64)
    room = np.zeros((len(lengths), lengths.shape[1]), np.int64)
    for record in np.argsort(-lengths.sum(axis=1), kind="stable"):
        need, first = lengths[record], max(0, num - _OPEN_ROWS)
        fits = (room[first:num] >= need).all(axis=1)
        at = int(fits.argmax()) if num else 0
        if num and fits[at]:
            at += first
        else:
            at, num = num, num + 1
            room[at] = length
        room[at] -= need
        rows[record] = at
    _, firsts, numbers = np.unique(rows, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(firsts)).astype(np.int64)[numbers]
