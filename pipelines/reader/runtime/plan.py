"""Turns the options into a ``Plan``: chooses the stages of the pipeline."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .options import BUFFER_BYTES, BUFFER_RECORDS, Options
from .order import SMALL, ByShard, Dealing, Dealt, Order
from .parsing import make_parser
from .pipeline import Plan, read_epoch, read_epochs
from .shards import (
    Piece,
    Shard,
    divide,
    list_shards,
    locate,
    open_records,
    stored_bytes,
)

_WINDOW = 8
"""Minimum number of records shuffled at a time within each stream …"""
_MOST_WINDOW = 256
"""… and maximum, unless set by ``shuffle``: more do not fit into the processor's cache."""
_SHORT = 1_280
"""Streams of up to this many records, which are too short for several pieces, are shuffled
completely …"""
_SMALL_SPLIT_BYTES = 64 << 20
"""… if the split has at most this many bytes."""


def plan_reading(options: Options) -> Plan:
    """Builds the plan for the given options. Each less common option replaces one stage.

    Raises:
        ValueError: if the snapshot cannot be read with these options.
    """
    warn_of_workers(options)
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
    if options.pads and options.service is None and options.filter is None:
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
        from .sequences import cut_windows

        plan = cut_windows(plan)
    if options.pack is not None:
        from .sequences import pack_lists

        plan = pack_lists(plan)
    if options.filter is not None:
        from .filtering import filter_examples

        plan = filter_examples(plan)
    if options.pads and (options.service is not None or options.filter is not None):
        from .sequences import pad_lists

        plan = pad_lists(plan)
    if options.debug:
        plan = _run_eagerly(plan)
    if options.stages:
        from .resume import resume

        plan = resume(plan)
    _check_end(options, plan.num_batches)
    return plan


def _check_end(options: Options, num_batches: int | None) -> None:
    if options.epochs is None and num_batches == 0:
        raise ValueError(
            f"epochs=None waits forever: {options.split} gives no batch of {options.batch_size}."
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
    shards = list_shards(options.split, options.root_folder)
    order = plan_order(options, shards)
    whole = {(shard.path, shard.num_stored) for shard in shards}
    is_fresh = not options.stages
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
        parse_batch=parser_of(options, decodes=options.windows is None),
        read_epoch=read_epoch,
        read_epochs=read_epochs,
    )


def parser_of(
    options: Options, *, needs_size: bool = True, decodes: bool = True
) -> Callable[..., Any]:
    """Builds the function that parses a batch.

    Raises:
        ValueError: if a column does not exist, or an image option is invalid.
    """
    return make_parser(
        columns=options.columns,
        as_supervised=options.as_supervised,
        image_size=options.image_size,
        dtype=options.dtype,
        scale=options.scale,
        needs_size=needs_size,
        decodes=decodes,
    )


def plan_order(options: Options, shards: Sequence[Shard], delivered: int = 0) -> Order:
    """Decides which records come when, and checks the shards to be read.

    Args:
        options: Of ``dataset``.
        shards: All shards to read.
        delivered: Records that all workers together have delivered in this epoch, if dealt.
    """
    if not is_dealt(options, shards):
        pieces = divided_pieces(options, shards)
        # Balanced reading checks the shards that it opens, and the workers of a service check those
        # assigned to them. Stored order resumes without the finished shards: they may be gone.
        is_in_order = not options.shuffles and options.part[1] == 1
        if options.balance is None and options.service is None:
            inner = [piece for piece in pieces if piece.skip or not is_in_order]
            may_be_missing = options.has_own_files or (is_in_order and bool(options.stages))
            found = locate(inner, shards, options.root_folder, may_be_missing=may_be_missing)
            by_place = {piece.place: piece for piece in found}
            pieces = [by_place.get(piece.place, piece) for piece in pieces]
        return ByShard(pieces, buffer=options.buffer, batch_size=options.batch_size)
    order = deal_records(options, shards, delivered)
    order.pieces = locate(
        order.pieces, shards, options.root_folder, may_be_missing=options.has_own_files
    )
    return order


def deal_records(options: Options, shards: Sequence[Shard], delivered: int = 0) -> Dealt:
    """The same for dealt records, before the bytes at which pieces start are looked up."""
    dealing = deal(options)
    return Dealt(
        dealing,
        shards,
        options.part[0],
        window=window_of(options, dealing),
        gaps=has_gaps(options),
        delivered=delivered,
    )


def has_gaps(options: Options) -> bool:
    """Whether the last records of an epoch come from a different place of the split each time.

    Not with a cache, which would keep most records twice, nor with local copies, since each worker
    would copy shards that others read. Workers without a seed would disagree about the place, since
    each draws its own seed.
    """
    if options.cache is not None or options.local_copy is not None:
        return False
    return options.seed is not None or options.part[1] == 1


def is_dealt(options: Options, shards: Sequence[Shard]) -> bool:
    """Whether records are dealt from streams; otherwise shards are read from front to back."""
    if not options.shuffles or facts.COMPRESSION != "none":
        return False
    if options.cache == "decoded" or options.service is not None or options.debug:
        return False
    if isinstance(options.local_copy, tuple | list):
        limit = options.local_copy[1]
        if limit is not None and limit < stored_bytes(shards):
            return False
    return options.balance is None


def divided_pieces(options: Options, shards: Sequence[Shard]) -> list[Piece]:
    """The pieces that a worker reads if each shard is a stream."""
    return divide(shards, options.part, even=options.equal_steps)


def deal(options: Options) -> Dealing:
    """Decides how the records of a shuffled split are dealt."""
    return Dealing(
        options.selection.num_examples,
        options.batch_size,
        options.part[1],
        same_for_all=options.seed is not None,
        is_one_by_one=facts.RECORD_BYTES <= SMALL,
    )


def window_of(options: Options, dealing: Dealing) -> int:
    """Records shuffled at a time within a piece; the same for any number of workers."""
    if options.shuffle is None or options.shuffle is True:
        is_small = dealing.total * facts.RECORD_BYTES <= _SMALL_SPLIT_BYTES
        if is_small and dealing.length <= _SHORT:
            return max(1, dealing.length)
        buffer = min(BUFFER_RECORDS, BUFFER_BYTES // facts.RECORD_BYTES)
        return min(_MOST_WINDOW, max(_WINDOW, buffer // dealing.num_streams))
    return max(1, options.buffer // dealing.num_streams)


def num_batches(options: Options, shards: Sequence[Shard]) -> int:
    """Batches per epoch of this worker, by arithmetic."""
    worker, workers = options.part
    if is_dealt(options, shards):
        # The last worker has the fewest records.
        nums = [deal(options).num_records(workers - 1 if options.equal_steps else worker)]
    else:
        parts = [(i, workers) for i in range(workers)] if options.equal_steps else [options.part]
        divided = [divide(shards, part, even=options.equal_steps) for part in parts]
        nums = [sum(piece.take for piece in pieces) for pieces in divided]
    size = options.batch_size
    return min(num // size if options.drop_remainder else -(-num // size) for num in nums)


def _take_batches(plan: Plan) -> Plan:
    """Limits each worker to the batches of the one that has the fewest."""
    read, num, options = plan.read_epoch, plan.num_batches, plan.options

    def read_some(plan: Plan, seed: Any) -> tf.data.Dataset:
        is_same = plan.options is options  # not a stage of a resumed epoch
        most = num if is_same else num_batches(plan.options, plan.shards)
        return read(plan, seed).take(most)

    return dataclasses.replace(plan, read_epoch=read_some)


def _run_eagerly(plan: Plan) -> Plan:
    """Runs all functions eagerly; keeps references to their datasets, which Python would free."""
    tf.data.experimental.enable_debug_mode()
    kept: list[tf.data.Dataset] = []

    def keep(make: Any) -> Any:
        def made(*arguments: Any) -> tf.data.Dataset:
            kept.append(make(*arguments))
            return kept[-1]

        return made

    return dataclasses.replace(
        plan, read_epoch=keep(plan.read_epoch), open_records=keep(plan.open_records)
    )


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
        from .sequences import check_windows

        check_windows(options)
    if options.pack is not None:
        from .sequences import packed_lists

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
    if (options.windows, options.pack, options.filter) != (None, None, None):
        some = num_batches(dataclasses.replace(options, drop_remainder=False), shards)
        num = int(tf.data.UNKNOWN_CARDINALITY) if some else 0
    elif options.service is not None:
        from .service import is_exact

        num = num if is_exact(options) else int(tf.data.UNKNOWN_CARDINALITY)
    _check_end(options, num)
    return num
