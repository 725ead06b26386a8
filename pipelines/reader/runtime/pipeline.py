"""The pipeline: list shards → interleave → shuffle → batch → parse → prefetch.

``list_shards`` is in ``shards.py``, and ``parse_batch`` is built in ``parsing.py``. The other
stages are the functions below, in this order. Each less common option has a module of its own,
which replaces one stage of the ``Plan``; ``plan_reading`` (``plan.py``) lists them all.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from .options import Options, ReadSoFar
from .order import CHUNK, Order
from .shards import Shard, as_columns

_SHARED = (
    "Several workers of a tf.data service read this dataset, each of them every record. Pass the "
    "address of the service to reader.dataset as service=, and apply no distribute()."
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The stages of the pipeline for the given options."""

    options: Options
    order: Order
    """Decides which records come when."""
    num_batches: int | None
    """Batches per complete epoch; None if unknown."""
    open_records: Callable[..., tf.data.Dataset]
    """From the fields of a ``Piece`` and its number to a dataset of its serialized examples."""
    parse_batch: Callable[..., Any]
    """From an element of ``read_epoch`` to a batch of tensors."""
    read_epoch: Callable[[Plan, Any], tf.data.Dataset]
    """From the seed of an epoch to a dataset of its batches of serialized examples."""
    read_epochs: Callable[[Plan], tf.data.Dataset]
    """All epochs, one after another."""
    shards: Sequence[Shard] = ()
    """All shards to read, in stored order."""
    ahead: Callable[[Plan, tf.data.Dataset], tf.data.Dataset] = lambda plan, pieces: pieces
    """Applied to the numbers of the pieces before they are opened, e.g. to fetch them ahead."""
    open_uncached: Callable[..., tf.data.Dataset] | None = None
    """With a cache: ``open_records`` without it, for pieces that are not cached."""
    localize: Callable[[str], str] = str
    """From the path of a shard to the path of the file to read."""
    is_numbered: bool = False
    """Whether each record is paired with its position in the stored order."""
    first: int = 0
    """The place in an epoch at which to begin, if the stage that reads epochs computes it."""
    begins_later: bool = False
    """Whether the first pass begins after its first batch, with ``start_step``."""
    rest_of_epoch: Callable[[ReadSoFar], tuple[int, int, int]] | None = None
    """Computes the number of finished epochs, ``first`` of the next one, and its batches."""

    @property
    def is_sequential(self) -> bool:
        """Whether one thread reads all streams: starting others takes longer if little is read."""
        options = self.options
        return self.order.is_small and options.is_local and options.parallelism is None

    @functools.cached_property
    def pieces(self) -> tuple[Any, ...]:
        """The fields of the pieces of the order: their paths, string[n], and four int64[n]."""
        with tf.init_scope():  # outside of any function that happens to be traced first
            return as_columns(self.order.pieces)


def unconverted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps AutoGraph from a function of this package that is traced outside of others.

    Converting it, and all that it calls, would take 50 ms to seconds.
    """
    wrapped: Callable[..., Any] = tf.autograph.experimental.do_not_convert(function)
    return wrapped


def read(plan: Plan) -> tf.data.Dataset:
    """Returns the dataset: batches of tensors of all epochs, prefetched."""
    return prefetch(plan, parsed(plan))


def parsed(plan: Plan) -> tf.data.Dataset:
    """Batches of tensors of all epochs."""
    return plan.read_epochs(plan).map(  # in order: no batch may overtake the last one of an epoch
        unconverted(plan.parse_batch),
        num_parallel_calls=plan.options.num_parallel_calls,
        deterministic=True,
    )


def read_epochs(plan: Plan) -> tf.data.Dataset:
    """Concatenates the batches of all epochs, each shuffled with its own seed."""
    seeds = epoch_seeds(plan.options.seed)
    return read_each(seeds, plan.options.epochs, functools.partial(plan.read_epoch, plan))


def read_each(
    elements: tf.data.Dataset, num: int | None, read: Callable[[Any], tf.data.Dataset]
) -> tf.data.Dataset:
    """Concatenates what ``read`` returns for each of the first ``num`` elements; None: all.

    The workers of a tf.data service would all do this. In its mode "distributed_epoch" they share
    the numbers, so that one of them gets a number that nobody gets here, which is an error.
    """
    numbered = tf.data.Dataset.zip((tf.data.Dataset.range(tf.int64.max), elements))

    def read_one(number: Any, element: Any) -> tf.data.Dataset:
        if num is not None:
            with tf.control_dependencies([tf.debugging.Assert(number < num, [_SHARED])]):
                element = tf.identity(element)
        return read(element)

    return numbered.take(num or -1).flat_map(unconverted(read_one))


def read_epoch(plan: Plan, seed: Any) -> tf.data.Dataset:
    """Batches of serialized examples of one epoch."""
    if not plan.options.shuffles:
        return batch_records(plan, read_in_order(plan))
    chunks = interleave_records(plan, seed)
    chunks = shuffle_records(plan, chunks, seed)
    return batch_chunks(plan, chunks)


def read_in_order(plan: Plan) -> tf.data.Dataset:
    """Records in stored order, piece by piece."""
    if plan.order.num_streams == 1 and plan.options.is_local:  # needs no function that opens it
        return open_pieces(plan, tf.constant(0, tf.int64))
    return open_pieces(plan, tf.range(plan.order.num_streams, dtype=tf.int64), plan.ahead)


def interleave_records(plan: Plan, seed: Any) -> tf.data.Dataset:
    """Interleaves the streams: chunks of records, one from each open stream in turn.

    Records are shuffled within windows of their piece, then travel in chunks, which is cheaper than
    one by one. The records left over when all streams have given their equal shares come last.
    """
    order = plan.order
    # Streams without fixed turns may yield many chunks in a row, and end long before others.
    has_turns = not order.shuffles_streams and plan.options.deterministic is not False
    turn = order.turn if has_turns else min(order.turn, CHUNK)
    is_one_by_one = plan.is_sequential and order.chunk == 1
    tail = _tail(plan, seed)
    if tail is not None and not order.num_streams:
        return tail.batch(turn)

    def open_stream(*row: Any) -> tf.data.Dataset:
        if order.has_single_pieces:
            records = open_shuffled(*row)
        else:
            numbers, delivered = order.stream(row[0], seed)
            others = [delivered] if order.is_resumed else []
            records = plan.ahead(plan, list_pieces(plan, numbers, *others)).flat_map(open_shuffled)
        return records if is_one_by_one else records.batch(turn)

    def open_shuffled(number: Any, *others: Any) -> tf.data.Dataset:
        *delivered, path, offset, skip, take, place = others
        records = plan.open_records(path, offset, skip, take, place, number)
        records = shuffle(records, order.window, seed, 1 + place)
        return records.skip(*delivered) if delivered else records

    rows = order.streams(seed)
    if order.has_single_pieces:  # without a function that lists the pieces of a stream
        streams = list_pieces(plan, rows)
        if order.shuffles_streams:
            streams = shuffle(streams, order.num_streams, seed, -1)
        streams = plan.ahead(plan, streams)
    else:
        streams = tf.data.Dataset.from_tensor_slices(rows)
    num_open, calls = max(1, order.num_open), plan.options.num_parallel_calls
    chunks = streams.interleave(
        open_stream,
        cycle_length=num_open,
        block_length=1,
        num_parallel_calls=None if plan.is_sequential else min(calls, num_open),
        deterministic=True if has_turns and not plan.is_sequential else None,
    )
    if is_one_by_one:
        records = chunks.skip(order.begun) if order.begun else chunks
        return (records if tail is None else records.concatenate(tail)).batch(turn)
    if has_turns and order.turn > order.chunk:
        chunks = chunks.batch(num_open).map(deal_one_by_one)
    if order.begun:
        chunks = rebatch(chunks, order.chunk).skip(order.begun)
    return chunks if tail is None else chunks.concatenate(tail.batch(1))


def _tail(plan: Plan, seed: Any) -> tf.data.Dataset | None:
    """The records that come last, for all workers or this one; None if there are none."""
    tail = plan.order.tail(seed)
    if tail is None:
        return None
    numbers, size, delivered = tail
    records = open_pieces(plan, numbers)
    index, count = plan.options.part
    if count == 1:
        records = shuffle(records, size, seed, -2)
    elif plan.options.seed is None:  # each worker draws its own seed
        return shuffle(records.shard(count, index), size, seed, -2)
    else:
        records = shuffle(records, size, seed, -2).shard(count, index)
    return records.skip(delivered) if delivered else records


def deal_one_by_one(*turns: Any) -> Any:
    """From [streams, records] to the first record of each stream, the second of each, and so on."""
    dealt = [tf.reshape(tf.transpose(column), [-1]) for column in turns]
    return dealt[0] if len(dealt) == 1 else tuple(dealt)


def shuffle_records(plan: Plan, chunks: tf.data.Dataset, seed: Any) -> tf.data.Dataset:
    """Shuffles the chunks of all streams (only where each stream is a whole shard)."""
    return shuffle(chunks, plan.order.buffer // plan.order.chunk, seed, -3)


def batch_chunks(plan: Plan, chunks: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of ``batch_size``, from chunks of records."""
    return rebatch(chunks, plan.options.batch_size, drop_remainder=plan.options.drop_remainder)


def batch_records(plan: Plan, records: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of ``batch_size``, from single records."""
    return records.batch(plan.options.batch_size, drop_remainder=plan.options.drop_remainder)


def prefetch(plan: Plan, batches: tf.data.Dataset) -> tf.data.Dataset:
    """Finishes the dataset: sets its cardinality and options, and prefetches batches."""
    options = plan.options
    if options.epochs is None:
        batches = batches.repeat()  # endless anyway, but this makes the cardinality infinite
    elif plan.num_batches is not None:
        num = options.epochs * plan.num_batches
        if plan.begins_later:
            # Keras asks for the cardinality once, or else takes the length of the first pass for
            # all. A choice is infinite if one of its datasets is, here one that is never chosen.
            first = tf.data.Dataset.from_tensors(tf.zeros([], tf.int64)).repeat()
            either = [batches, batches.take(0).repeat()]
            batches = tf.data.Dataset.choose_from_datasets(
                either, first, stop_on_empty_dataset=True
            )
            batches = batches.take(num)
        else:
            batches = batches.apply(tf.data.experimental.assert_cardinality(num))
    own = tf.data.Options()
    own.deterministic = options.is_deterministic
    own.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    batches = batches.with_options(own)
    if options.prefetch != 0:
        batches = batches.prefetch(options.prefetch or tf.data.AUTOTUNE)
    if options.options is not None:
        batches = batches.with_options(options.options)
    return batches


def list_pieces(plan: Plan, numbers: Any, *others: Any) -> tf.data.Dataset:
    """The numbers of some pieces, with other values of each and its fields."""
    fields = _fields(plan, numbers)
    return tf.data.Dataset.from_tensor_slices((numbers, *others, *fields))


def _fields(plan: Plan, numbers: Any) -> list[Any]:
    """The fields of some pieces, or of one. The raw op takes half as long to trace."""
    number = tf.get_static_value(numbers)
    if number is not None and number.ndim == 0:
        path, *places = plan.order.pieces[int(number)]
        return [tf.constant(path), *(tf.constant(place, tf.int64) for place in places)]
    axis = tf.constant(0)
    return [
        tf.raw_ops.GatherV2(params=column, indices=numbers, axis=axis) for column in plan.pieces
    ]


def open_pieces(
    plan: Plan,
    numbers: Any,
    ahead: Callable[[Plan, tf.data.Dataset], tf.data.Dataset] = lambda plan, pieces: pieces,
) -> tf.data.Dataset:
    """The serialized examples of some pieces, one after another; or of one, given by a scalar."""
    # A dataset outside of all functions is serialized, which fails for a TFRecordDatasetV2.
    if numbers.shape.rank == 0 and not tf.executing_eagerly():
        return plan.open_records(*_fields(plan, numbers), numbers)
    numbers = tf.reshape(numbers, [-1])
    pieces = ahead(plan, list_pieces(plan, numbers))
    return pieces.flat_map(lambda number, *fields: plan.open_records(*fields, number))


def rebatch(chunks: tf.data.Dataset, size: int, *, drop_remainder: bool = False) -> tf.data.Dataset:
    """``chunks.rebatch(size)``, by the raw op: the method also maps a function over the chunks."""
    num = size if drop_remainder else None
    spec = tf.nest.map_structure(
        lambda part: tf.TensorSpec([num, *part.shape[1:]], part.dtype), chunks.element_spec
    )
    variant = tf.raw_ops.RebatchDatasetV2(
        input_dataset=tf.data.experimental.to_variant(chunks),
        batch_sizes=tf.constant([size], tf.int64),
        drop_remainder=drop_remainder,
        output_types=[part.dtype for part in tf.nest.flatten(spec)],
        output_shapes=[part.shape for part in tf.nest.flatten(spec)],
    )
    return tf.data.experimental.from_variant(variant, spec)


def epoch_seeds(seed: int | None) -> tf.data.Dataset:
    """Yields one number per epoch, which seeds all its shuffling; each pass draws new numbers.

    Uses the raw op because ``Dataset.random`` mixes in the seed of ``tf.random.set_seed``.
    """
    variant = tf.raw_ops.RandomDatasetV2(
        seed=tf.constant(seed or 0, tf.int64),
        seed2=tf.constant(seed is not None, tf.int64),  # two zeros mean no seed
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        output_types=[tf.int64],
        output_shapes=[[]],
        rerandomize_each_iteration=True,
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.int64))


def shuffle(elements: tf.data.Dataset, size: int, seed: Any, stream: Any) -> tf.data.Dataset:
    """``elements.shuffle(size)``, seeded by two tensors.

    Uses the raw op because ``Dataset.shuffle`` mixes in the seed of ``tf.random.set_seed``.
    """
    spec = elements.element_spec
    if size <= 1:
        return elements
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(elements),
        buffer_size=tf.constant(size, tf.int64),
        seed=seed,
        seed2=tf.convert_to_tensor(stream, tf.int64),
        output_types=[part.dtype for part in tf.nest.flatten(spec)],
        output_shapes=[part.shape for part in tf.nest.flatten(spec)],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(variant, spec)
