"""``filter=``: leaves out examples, and forms full batches of the others."""

from __future__ import annotations

from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from .augment import converted, explained, map_each
from .pipeline import Plan
from .sequences import all_records, fail_if_empty, finished, waits_forever


def filter_examples(plan: Plan) -> Plan:
    """Keeps the examples for which ``filter`` is True; the number of batches is unknown.

    Each epoch's batches are formed again, so only its last one may be short.
    """
    options, parse = plan.options, plan.parse_batch
    read_epoch = all_records(plan.read_epoch)
    assert options.filter is not None
    is_kept = converted(options.filter)

    def checked(example: Any) -> Any:
        with explained("filter", "example", options):
            found = is_kept(example)
        value = None if found is None else tf.convert_to_tensor(found)
        if value is None or value.dtype != tf.bool or value.shape.rank != 0:
            raise ValueError(
                f"filter= must return True or False for each example, found {found!r}."
            )
        return value

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator, unused-ignore]
    def kept(*element: Any) -> Any:
        batch = parse(*element)
        mask = map_each(checked, batch, tf.bool)
        return tf.nest.map_structure(lambda values: _masked(values, mask), batch)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator, unused-ignore]
    def without_rows(*element: Any) -> Any:
        return tf.nest.map_structure(lambda values: values[:0], parse(*element))

    def read(plan: Plan, seed: Any) -> tf.data.Dataset:
        batches = read_epoch(plan, seed).map(
            kept, num_parallel_calls=options.num_parallel_calls, deterministic=True
        )
        batches = batches.rebatch(options.batch_size, drop_remainder=options.drop_remainder)
        if options.epochs is not None:
            return batches
        specs = tf.nest.flatten(batches.element_spec)
        end = None
        if any(isinstance(spec, tf.RaggedTensorSpec) for spec in specs):
            end = read_epoch(plan, seed).take(1).map(without_rows)
        return fail_if_empty(batches, waits_forever("filter="), end)

    return finished(plan, read)


def _masked(values: Any, mask: Any) -> Any:
    if isinstance(values, tf.RaggedTensor):
        return tf.ragged.boolean_mask(values, mask)
    return tf.boolean_mask(values, mask)
