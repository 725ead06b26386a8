"""``windows=``: cuts the lists inside a record into windows while reading.

For long sounds, series and clips, whose overlapping windows would take many times the space if a
build stored them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .kinds import is_clip
from .options import Options
from .parsing import clip_decoder
from .pipeline import Plan
from .sequences import all_records, fail_if_empty, finished


def cut_windows(plan: Plan) -> Plan:
    """Cuts lists into windows and batches these; each repeats the other features of its record.

    Windows are shuffled together with those of as many records as a batch has. A record shorter
    than a window yields none; an epoch without any window fails. The frames of clips are decoded
    after that, in the batches of windows, which are small.
    """
    options, parse = plan.options, plan.parse_batch
    read_epoch = all_records(plan.read_epoch)
    check_windows(options)
    assert options.windows is not None
    length, step = options.windows
    has_clips = options.decode and any(map(is_clip, facts.FEATURES.values()))
    decode = clip_decoder(
        options.asked,
        image_size=options.image_size,
        dtype=options.dtype,
        scale=options.scale,
    )

    def cut(number: Any, batch: Any, seed: Any) -> Any:
        leaves = tf.nest.flatten(batch)
        lists = [leaf for leaf in leaves if isinstance(leaf, tf.RaggedTensor)]
        num = lists[0].row_lengths()
        same = [tf.debugging.assert_equal(leaf.row_lengths(), num, unlike) for leaf in lists[1:]]
        with tf.control_dependencies([check for check in same if check is not None]):
            counts = tf.maximum((num - length) // step + 1, 0)
        records = tf.repeat(tf.range(tf.size(counts)), counts)
        within = tf.range(tf.reduce_sum(counts)) - tf.repeat(
            tf.cumsum(counts, exclusive=True), counts
        )
        order = tf.range(tf.size(records))
        if options.shuffles:
            order = tf.argsort(tf.random.stateless_uniform([tf.size(records)], [seed, number]))
        records, within = tf.gather(records, order), tf.gather(within, order)

        def windows(leaf: Any) -> Any:
            if not isinstance(leaf, tf.RaggedTensor):
                return tf.gather(leaf, records)
            begin = tf.gather(leaf.row_starts(), records) + within * step
            return tf.gather(leaf.values, begin[:, None] + tf.range(length, dtype=tf.int64))

        return tf.nest.pack_sequence_as(batch, [windows(leaf) for leaf in leaves])

    def decoded(*batch: Any) -> Any:
        found = batch[0] if len(batch) == 1 else batch
        return options.asked.change(decode, found)

    def read(plan: Plan, seed: Any) -> tf.data.Dataset:
        def parsed(number: Any, serialized: Any) -> Any:
            return cut(number, parse(serialized), seed)

        batches = read_epoch(plan, seed).enumerate()
        batches = batches.map(parsed, num_parallel_calls=options.num_parallel_calls)
        batches = batches.rebatch(options.batch_size, drop_remainder=options.drop_remainder)
        if has_clips:
            batches = batches.map(decoded, num_parallel_calls=options.num_parallel_calls)
        return fail_if_empty(batches, no_window) if plan.order.num_records else batches

    unlike = (
        f"windows={options.windows} cuts all lists of a record alike, and some have different "
        "numbers of values: name those to cut with columns=."
    )
    few = f", or only a few have, with less than {options.batch_size} windows together"
    no_window = (
        f"windows={options.windows} gives no batch: no list read from {options.split} has {length} "
        f"values{few if options.drop_remainder else ''}. Choose a shorter window; LENGTHS of the "
        "reader shows lengths."
    )
    return finished(plan, read)


def check_windows(options: Options) -> None:
    """Raises ValueError if there are no lists to cut, or their values differ in shape."""
    shapes = [feature.get("shape", []) for feature in options.asked.features.values()]
    varying = [shape for shape in shapes if None in shape]
    if not varying or any(None in shape[1:] for shape in varying):
        raise ValueError("windows= needs lists, each of whose values has one shape.")
