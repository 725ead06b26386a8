"""``augment=`` and ``augment_batch=``: examples are changed after they are parsed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from .pipeline import Plan

Open = Callable[..., tf.data.Dataset]


def number_records(plan: Plan) -> Plan:
    """Gives each record with its place in the split's stored order."""

    def numbered(read: Open) -> Open:
        def open_numbered(*piece: Any) -> tf.data.Dataset:
            place = piece[4]
            return tf.data.Dataset.zip((read(*piece), tf.data.Dataset.range(place, tf.int64.max)))

        return open_numbered

    return dataclasses.replace(
        plan,
        open_records=numbered(plan.open_records),
        open_uncached=None if plan.open_uncached is None else numbered(plan.open_uncached),
        is_numbered=True,
    )


def augment_batches(plan: Plan) -> Plan:
    """Changes each example by a function of itself and of (the seed of its epoch, its place)."""
    read_epoch, parse = plan.read_epoch, plan.parse_batch
    # Calls in this package are not converted by AutoGraph; the user's function must be.
    augment, augment_batch = (
        None if function is None else tf.function(function)
        for function in (plan.options.augment, plan.options.augment_batch)
    )

    def read(plan: Plan, seed: Any) -> tf.data.Dataset:
        seeds = tf.data.Dataset.from_tensors(seed).repeat()
        return tf.data.Dataset.zip((read_epoch(plan, seed), seeds))

    def augmented(numbered: Any, epoch_seed: Any) -> Any:
        records, places = numbered
        batch = parse(records)
        seeds = tf.stack([tf.fill(tf.shape(places), epoch_seed), places], axis=1)
        if augment is None:
            return _not_none("augment_batch", augment_batch(batch, seeds))
        first = tf.nest.map_structure(lambda value: value[0], batch)
        like = _not_none("augment", augment(first, seeds[0]))
        is_ragged = any(isinstance(one, tf.RaggedTensor) for one in tf.nest.flatten(batch))
        spec = tf.nest.map_structure(functools.partial(_spec, is_ragged), like)
        return tf.map_fn(lambda pair: augment(*pair), (batch, seeds), fn_output_signature=spec)

    return dataclasses.replace(plan, read_epoch=read, parse_batch=augmented)


def _not_none(name: str, found: Any) -> Any:
    if found is None or any(one is None for one in tf.nest.flatten(found)):
        raise ValueError(f"{name}= must return the changed example, found {found!r}.")
    return found


def _spec(is_ragged: bool, value: Any) -> Any:
    """What examples like this one make a batch of: ragged again, where lists came so."""
    spec = tf.type_spec_from_value(value)
    if not is_ragged or not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        return spec
    if spec.shape[0] is not None or not spec.shape[1:].is_fully_defined():
        return spec
    return tf.RaggedTensorSpec(spec.shape, spec.dtype, 0, tf.int64)
