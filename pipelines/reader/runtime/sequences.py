"""Lists of varying length: bucketing, padding, windows, packing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .cache import as_is
from .kinds import is_clip
from .options import Options
from .parsing import clip_decoder, make_parser
from .pipeline import Plan
from .targets import targets_of

_POOL = 32
"""Number of batches that are sorted by length together, or whose records are packed together …"""
_PACKED = 1_024
"""… and minimum number of records packed together."""
_OPEN_ROWS = 512
"""Maximum number of rows searched for room."""


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

        pools = read_epoch(plan, seed).rebatch(_POOL * size).enumerate()
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
    parse = make_parser(columns=[str(name)], needs_size=False, decodes=False)

    def lengths(serialized: Any) -> Any:
        return dict(_named(parse(serialized)))[name].row_lengths()

    return lengths


def _named(values: Any, name: str = "") -> list[tuple[str, Any]]:
    """The tensors in nested dicts, with the names of their features."""
    if not isinstance(values, dict):
        return [(name, values)]
    dot = f"{name}." if name else ""
    return [leaf for key, value in values.items() for leaf in _named(value, f"{dot}{key}")]


def pad_lists(plan: Plan) -> Plan:
    """Converts ragged tensors to dense ones, padded to the longest list of the batch.

    With ``bucket=``, the width is rounded up to the next of ``LENGTHS``.
    """
    parse, options = plan.parse_batch, plan.options
    values, ends = paddings(options), facts.LENGTHS if options.bucket else {}

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
        return _map_features(dense, parse(*batch), options)

    return dataclasses.replace(plan, parse_batch=padded)


def _map_features(change: Callable[[Any, str], Any], batch: Any, options: Options) -> Any:
    """Applies ``change(tensor, name)`` to the features of a batch."""
    targets = targets_of(options.as_supervised)

    def changed(value: Any, name: str) -> Any:
        if not isinstance(value, dict):
            return change(value, name)
        dot = f"{name}." if name else ""
        return {key: changed(one, f"{dot}{key}") for key, one in value.items()}

    if targets is None:
        return changed(batch, "")
    names = targets.tensor_names(options.columns)
    pair = (
        changed(value, "" if isinstance(value, dict) else name)
        for value, name in zip(batch[:2], names, strict=True)
    )
    return *pair, *batch[2:]


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
        targets = targets_of(options.as_supervised)
        wanted = {*features} if options.columns is None else {*options.columns}
        wanted = wanted if targets is None else targets.wanted(options.columns)
        values = {name: pad for name in lists if name in wanted}
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
    has_clips = any(map(is_clip, facts.FEATURES.values()))
    decode = clip_decoder(
        columns=options.columns,
        as_supervised=options.as_supervised,
        image_size=options.image_size,
        dtype=options.dtype,
        scale=options.scale,
    )

    def cut(number: Any, batch: Any, seed: Any) -> Any:
        leaves = tf.nest.flatten(batch)
        lists = [leaf for leaf in leaves if isinstance(leaf, tf.RaggedTensor)]
        num = lists[0].row_lengths()
        same = [tf.debugging.assert_equal(leaf.row_lengths(), num, unlike) for leaf in lists[1:]]
        with tf.control_dependencies([one for one in same if one is not None]):
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
        return _map_features(decode, found, options)

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
    targets = targets_of(options.as_supervised)
    wanted = {*(facts.FEATURES if options.columns is None else options.columns)}
    wanted = wanted if targets is None else targets.wanted(options.columns)
    shapes = [facts.FEATURES[name].get("shape", []) for name in wanted]
    varying = [shape for shape in shapes if None in shape]
    if not varying or any(None in shape[1:] for shape in varying):
        raise ValueError("windows= needs lists, each of whose values has one shape.")


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


def pack_lists(plan: Plan) -> Plan:
    """Batches rows of one length, each filled with several lists.

    The records of a pool of batches are packed together: longest first, each into the first row
    that has room for it. Within a row, records keep their order. For each list, also yields
    ``<name>_segment_ids``, int32, 1 for a row's first record and 0 for padding, and
    ``<name>_positions``, int32, the position within the record. Records without a value are
    dropped.
    """
    options, parse = plan.options, plan.parse_batch
    read_epoch = all_records(plan.read_epoch)
    lists = packed_lists(options)
    assert options.pack is not None
    length = int(options.pack)

    def pack(serialized: Any) -> dict[str, Any]:
        parsed = dict(_named(parse(serialized)))
        values = {name: parsed[name] for name in lists}
        found = _split(values, length) if len(lists) == 1 else _unsplit(values, length)
        lengths = tf.stack([one.row_lengths() for one in found.values()], axis=1)
        rows = tf.numpy_function(_rows, [lengths, length], tf.int64, stateful=False)
        rows = tf.ensure_shape(rows, [None])
        order = tf.argsort(rows, stable=True)
        rows, lengths = tf.gather(rows, order), tf.gather(lengths, order)
        num = tf.reduce_max(tf.concat([rows, [-1]], axis=0)) + 1
        counts = tf.math.bincount(rows, minlength=num, dtype=tf.int64)  # of segments in each row
        segments = tf.ragged.range(counts).flat_values + 1
        packed: dict[str, Any] = {}
        for number, (name, one) in enumerate(found.items()):
            each = lengths[:, number]
            totals = tf.math.unsorted_segment_sum(each, rows, num)
            columns = {
                name: tf.gather(one, order).flat_values,
                f"{name}_segment_ids": tf.cast(tf.repeat(segments, each), tf.int32),
                f"{name}_positions": tf.cast(tf.ragged.range(each).flat_values, tf.int32),
            }
            for key, flat in columns.items():
                dense = tf.RaggedTensor.from_row_lengths(flat, totals).to_tensor(
                    shape=[None, length]
                )
                packed[key] = tf.ensure_shape(dense, [None, length])
        return packed

    def read(plan: Plan, seed: Any) -> tf.data.Dataset:
        pools = read_epoch(plan, seed).rebatch(max(_POOL * options.batch_size, _PACKED))
        batches = pools.map(pack, num_parallel_calls=options.num_parallel_calls)
        batches = batches.rebatch(options.batch_size, drop_remainder=options.drop_remainder)
        endless = options.epochs is None
        return fail_if_empty(batches, waits_forever(f"pack={length}")) if endless else batches

    return finished(plan, read)


def packed_lists(options: Options) -> list[str]:
    """The names of the lists that ``pack=`` packs.

    Raises:
        ValueError: if other features are read, or there are several lists and some are too long.
    """
    assert options.pack is not None
    length, features = int(options.pack), facts.FEATURES
    wanted = [*features] if options.columns is None else [*options.columns]
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
    feature = facts.FEATURES[name]
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


def waits_forever(option: str) -> str:
    """The error of endless epochs without a batch: the first one would be searched for forever."""
    return f"epochs=None would wait forever: {option} gives no batch."


def fail_if_empty(
    batches: tf.data.Dataset, text: str, end: tf.data.Dataset | None = None
) -> tf.data.Dataset:
    """The same batches of an epoch; raises an error with this text if there are none.

    ``end`` is a dataset of one batch without examples, required if batches contain ragged tensors.
    """
    spec = batches.element_spec

    def empty(one: Any) -> Any:
        return tf.zeros([0, *(dim or 0 for dim in one.shape[1:])], one.dtype)

    def count(num: Any, batch: Any) -> Any:
        first = tf.nest.flatten(batch)[0]
        is_ragged = isinstance(first, tf.RaggedTensor)
        is_batch = (first.nrows() if is_ragged else tf.shape(first, tf.int64)[0]) > 0
        with tf.control_dependencies([tf.debugging.Assert(is_batch | (num > 0), [text])]):
            return num + 1, (tf.identity(is_batch), batch)

    def is_kept(is_batch: Any, batch: Any) -> Any:
        del batch
        return is_batch

    def kept(is_batch: Any, batch: Any) -> Any:
        del is_batch
        return tf.nest.map_structure(shaped, batch, spec)

    def shaped(value: Any, one: Any) -> Any:
        is_ragged = isinstance(value, tf.RaggedTensor)
        return value if is_ragged else tf.ensure_shape(value, one.shape)

    if end is None:
        end = tf.data.Dataset.from_tensors(tf.nest.map_structure(empty, spec))
    zero = tf.constant(0, tf.int64)
    return batches.concatenate(end).scan(zero, count).filter(is_kept).map(kept)
