"""Turns the options into a ``Plan``: chooses the stages of the pipeline."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from .options import Options
from .order import num_batches, plan_order
from .parsing import make_parser
from .pipeline import Plan, read_epoch, read_epochs
from .shards import list_shards, open_records
from .splits import check_not_empty
from .targets import warn_of_fills
from .urls import check_protocol


def plan_reading(options: Options, num_skipped: int = 0) -> Plan:
    """Builds the plan for the given options. Each less common option replaces one stage.

    Args:
        options: Of ``dataset``.
        num_skipped: With ``start_step``, examples of the first batch that were already read.

    Raises:
        ValueError: if the snapshot cannot be read with these options.
    """
    warn_of_workers(options)
    if options.pack is None:  # which leaves out records without a value
        warn_of_fills(options.asked, options.masks)
    plan = plain_plan(options)
    if options.local_copy is not None:
        from .local_copy import read_copies

        plan = read_copies(plan)
    if options.cache is not None:
        from .cache import keep_decoded, keep_records

        plan = keep_decoded(plan) if options.cache == "decoded" else keep_records(plan)
    if options.is_numbered:
        from .augment import number_records

        plan = number_records(plan)
    if options.balance is not None:
        from .balance import balance_classes

        plan = balance_classes(plan)
    if options.pads and options.service is None:
        from .sequences import pad_lists

        plan = pad_lists(plan)
    if options.equal_steps:
        plan = _take_batches(plan)
    if options.bucket:
        from .sequences import bucket_batches

        plan = bucket_batches(plan)
    if options.augments:
        from .augment import augment_batches

        plan = augment_batches(plan)
    if options.with_id:
        from .record_ids import add_ids, check_ids

        check_ids(options)
        plan = add_ids(plan)
    if options.service is not None:
        from .service import share_work

        plan = share_work(plan)
    if options.windows is not None:
        from .windows import cut_windows

        plan = cut_windows(plan)
    if options.pack is not None:
        from .packing import pack_lists

        plan = pack_lists(plan)
    if options.pads and options.service is not None:
        from .sequences import pad_lists

        plan = pad_lists(plan)
    if options.read_so_far or num_skipped:
        from .resume import resume

        plan = resume(plan, num_skipped)
    _check_batches(options, plan.num_batches)
    return plan


def _check_batches(options: Options, num_batches: int | None) -> None:
    check_not_empty(
        options.split,
        num_batches,
        shard=options.part,
        batch_size=options.batch_size,
        drop_remainder=options.drop_remainder,
        equal_steps=options.equal_steps,
        is_endless=options.epochs is None,
    )


def warn_of_workers(options: Options) -> None:
    """Warns if there are several workers, each of which would read the whole split."""
    if (options.shard, options.input_context, options.service) != (None, None, None):
        return
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        cluster, task = config.get("cluster", {}), config.get("task", {}).get("type")
        num = sum(len(cluster.get(kind, ())) for kind in ("chief", "master", "worker"))
    except (ValueError, AttributeError, TypeError):
        num, task = 0, None  # TensorFlow itself reports what is wrong with it
    where = "TF_CONFIG"
    if tf.distribute.has_strategy():
        resolver = tf.distribute.get_strategy().cluster_resolver
        jobs = resolver.cluster_spec().as_dict() if resolver is not None else {}
        in_strategy = sum(len(jobs.get(kind, ())) for kind in ("chief", "master", "worker"))
        if in_strategy > 1:
            num, where = in_strategy, "the strategy"
    if num > 1 and task != "evaluator":  # an evaluator works alone
        text = (
            f"{where} has {num} workers, and each of them reads all of {options.split!r}. Pass "
            "input_context= or shard=(index, count), or shard=(0, 1) if each is meant to read "
            "everything."
        )
        warnings.warn(text, UserWarning, stacklevel=4)


def plain_plan(options: Options) -> Plan:
    """The plan before any option replaces a stage."""
    if options.local_copy is None:
        check_protocol(options.root_folder)
    shards = list_shards(options.split, options.root_folder)
    order = plan_order(options, shards)
    whole = {(shard.path, shard.num_stored) for shard in shards}
    is_fresh = not options.read_so_far
    return Plan(
        options=options,
        shards=shards,
        order=order,
        num_batches=num_batches(options, shards),
        open_records=functools.partial(
            open_records,
            # The rest of a resumed epoch has other pieces.
            is_whole=is_fresh and all((piece.path, piece.take) in whole for piece in order.pieces),
            passes_over=not is_fresh or any(piece.skip for piece in order.pieces),
            is_remote="://" in options.root_folder,
        ),
        # Frames are decoded after windows are cut.
        parse_batch=parser_of(options, decodes_clips=options.windows is None),
        read_epoch=read_epoch,
        read_epochs=read_epochs,
    )


def parser_of(
    options: Options, *, needs_size: bool = True, decodes_clips: bool = True
) -> Callable[..., Any]:
    """Builds the function that parses a batch.

    Raises:
        ValueError: if a column does not exist, or an image option is invalid.
    """
    return make_parser(
        options.asked,
        expand_scalars=options.expand_scalars,
        image_size=options.image_size,
        dtype=options.dtype,
        scale=options.scale,
        decode=options.decode,
        needs_size=needs_size,
        decodes_clips=decodes_clips,
    )


def _take_batches(plan: Plan) -> Plan:
    """Limits each worker to the batches of the one that has the fewest."""
    read, num, options = plan.read_epoch, plan.num_batches, plan.options

    def read_some(plan: Plan, seed: Any) -> tf.data.Dataset:
        is_same = plan.options is options  # not the options of a part of a resumed epoch
        most = num if is_same else num_batches(plan.options, plan.shards)
        return read(plan, seed).take(most)

    return dataclasses.replace(plan, read_epoch=read_some)


def steps_of(options: Options) -> int:
    """Batches per epoch of this worker; reads only the manifest.

    Raises:
        ValueError: as ``plan_reading``, except for errors that only reading or tracing finds.
    """
    parser_of(options, needs_size=False)
    if options.bucket:
        from .sequences import lengths_of

        lengths_of(options.bucket)
    if options.pads:
        from .sequences import paddings

        paddings(options)
    if options.windows is not None:
        from .windows import check_windows

        check_windows(options)
    if options.pack is not None:
        from .packing import packed_lists

        packed_lists(options)
    if options.with_id:
        from .record_ids import check_ids

        check_ids(options)
    shards = list_shards(options.split, options.root_folder)
    num = num_batches(options, shards)
    if options.balance is not None:
        from .balance import weights_of
        from .draw import num_batches as num_drawn

        weights_of(options.balance)
        total = options.selection.num_examples
        num = num_drawn(options, total, options.batch_size, options.part)
    if (options.windows, options.pack) != (None, None):
        some = num_batches(dataclasses.replace(options, drop_remainder=False), shards)
        num = int(tf.data.UNKNOWN_CARDINALITY) if some else 0
    elif options.service is not None:
        from .service import is_exact

        num = num if is_exact(options) else int(tf.data.UNKNOWN_CARDINALITY)
    _check_batches(options, num)
    return num
