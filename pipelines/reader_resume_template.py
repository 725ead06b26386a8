"""What ``reader.py`` beside it does to go on in the middle of an epoch (``start_step=``).

It needs TensorFlow and nothing else.
"""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

_Range = tuple[str, int, int, int]  # path; records to skip there, to take; place of the first
_Epoch = Callable[[Any], tf.data.Dataset]  # from the seed of an epoch to its batches

_EPOCHS = 1_000_000  # of a pass, after which going on finds its place: it takes a second …
_PASSES = 10_000  # … and so many passes as long


def going_on(job: Any, stages: list[tuple[int, int, int]]) -> tuple[int, _Epoch, int]:
    """How many epochs the stages, (steps, batch size, workers) each, completed; the rest of one.

    As long as the streams of a seeded epoch were dealt in batches of one size, of all workers
    together, the same order goes on. Else what was read is found by going through the same shuffles
    with the records' places alone, 1.4 µs each, and what is left is divided anew.
    """
    number, done = 0, bytearray(sum(num for _, num in job.shards))
    first = batch = 0  # what was read of the streams, in batches of so many of all workers
    streams: Any = job.reader._beside("reader_streams") if job.order else None
    for steps, size, workers in (*stages, (0, job.batch_size, job.part[1])):
        steps_left, parts = steps, [(worker, workers) for worker in range(workers)]
        dealt = streams is not None and job.order.fits(workers) and not any(done)
        if first and not (dealt and batch == size * workers):
            for place in streams.places(job, first, batch, _seeds(job, number)[1][-1]):
                done[place] = 1
            first, dealt = 0, False
        while steps_left >= (most := _most(job, streams, parts, size, done, first)) and steps:
            # Epochs that are over; all after the first are alike.
            begun = first or any(done)
            if not begun and not most:
                steps_left = 0  # none has a batch
                break
            num_over = 1 if begun else steps_left // most
            number, steps_left = number + num_over, steps_left - num_over * most
            done, first = bytearray(len(done)), 0
            dealt = streams is not None and job.order.fits(workers)
        if steps_left and dealt:
            first, batch = first + steps_left * size * workers, size * workers
        elif steps_left:
            epoch_seed = _seeds(job, number)[1][-1]
            before = bytearray(done)
            for one in parts:
                for place in _places(job, before, one, size, steps_left, epoch_seed):
                    done[place] = 1
    if dealt:
        same, num, over = streams.rest(job, first)
        _tell(job, first, len(job.ranges), over)
        return number, same, num
    ranges, gaps = _options(job).left(job, job.part, done)
    if "plan" in vars(job):  # what opens ranges for the streams opens these
        ranges = streams.placed(ranges, job.root)
        job.plan.is_placed &= all(skip < 0 for _, skip, _, _ in ranges)
    over = sum(max(0, skip) for _, skip, _, _ in ranges)  # below 0: begun at a byte
    _tell(job, sum(done), len(ranges), over + len(gaps))
    rest = _other(job, ranges, _without(job.read_uncached, gaps))

    def epoch(seed: Any) -> tf.data.Dataset:
        return job.reader._batches(rest, seed)

    return number, epoch, _options(job).num_batches(job, job.part, job.batch_size, done)


def _most(
    job: Any,
    streams: Any,
    parts: list[tuple[int, int]],
    size: int,
    done: bytearray,
    first: int,
) -> int:
    """Batches that are left of an epoch for the worker that has most of them."""
    if streams is None or not job.order.fits(len(parts)) or any(done):
        return max(int(_options(job).num_batches(job, one, size, done)) for one in parts)
    most = max(int(streams.num_batches(job, one, size)) for one in parts)
    return most - first // (size * len(parts))


def _other(job: Any, ranges: list[_Range], read: Any, **changes: Any) -> Any:
    """The same job for other ranges."""
    streams = job.reader._streams(ranges)
    facts = {"ranges": ranges, "streams": streams, "read": read, **changes}
    return types.SimpleNamespace(**(vars(job) | facts))


def _places(
    job: Any, done: bytearray, part: tuple[int, int], size: int, num: int, seed: int
) -> list[int]:
    """The places of what a worker read of an epoch in so many steps."""
    ranges, gaps = _options(job).left(job, part, done)
    buffer = job.reader._buffer(job.split, job.shuffle, size)
    facts: dict[str, Any] = {"batch_size": size, "buffer": buffer}
    total = _options(job).num_batches(job, part, size, done)
    if vars(job).get("bucket"):  # lengths decide, so records are read
        other = _other(job, ranges, _without(job.read_uncached, gaps), **facts)
        batches = job.reader._batches(other, seed).take(total)
        batches = job.reader._beside("reader_sequences").bucketed(other, batches, seed)
        return [int(i) for _, places in batches.take(num) for i in places]
    other = _other(
        job,
        ranges,
        _without(_only_places, gaps),
        ahead=functools.partial(tf.data.Dataset.take, count=-1),
        **facts,
    )
    batches = job.reader._batches(other, seed).take(total)
    return [i for places in batches.take(num).as_numpy_iterator() for i in places.tolist()]


def _only_places(path: Any, skip: Any, take: Any, first: Any) -> tf.data.Dataset:
    """In place of the records of a range, their places."""
    del path, skip
    return tf.data.Dataset.range(first, first + take)


def _without(
    read: Callable[..., tf.data.Dataset], gaps: list[int]
) -> Callable[..., tf.data.Dataset]:
    """What opens a range without the records whose places are given."""
    over = tf.constant(gaps, tf.int64)
    if not gaps:
        return read

    def kept(path: Any, skip: Any, take: Any, first: Any) -> tf.data.Dataset:
        places = tf.data.Dataset.range(first, first + take)
        found = tf.data.Dataset.zip((read(path, skip, take, first), places))
        return found.filter(is_left).map(_first)

    def is_left(record: Any, place: Any) -> Any:
        del record
        return tf.reduce_all(place != over)

    return kept


def _first(record: Any, place: Any) -> Any:
    del place
    return record


def resumed(job: Any, number: int, rest: _Epoch) -> tf.data.Dataset:
    """What is left of the epoch of this number, and those after it."""
    seeds, (*over, current) = _seeds(job, number)

    def either(epoch_seed: Any) -> tf.data.Dataset:
        spec = job.epoch(epoch_seed).element_spec
        variant = tf.cond(
            epoch_seed == current,
            lambda: tf.data.experimental.to_variant(rest(epoch_seed)),
            lambda: tf.data.experimental.to_variant(job.epoch(epoch_seed)),
        )
        return tf.data.experimental.from_variant(variant, spec)

    before = tf.sort(tf.constant([*over, tf.int64.max], tf.int64))

    def to_come(drawn: Any) -> Any:
        return tf.boolean_mask(drawn, tf.gather(before, tf.searchsorted(before, drawn)) != drawn)

    # Many at a time: one by one, those of a million epochs would take minutes to pass over.
    return seeds.batch(1_024).map(to_come).unbatch().flat_map(either)


def _seeds(job: Any, number: int) -> tuple[Any, list[int]]:
    """The seeds of the pass in which the epoch of this number lies, and those up to this epoch.

    What is done already of the dataset of seeds are the passes before: the next is that pass.
    """
    passes, inner = (0, number) if job.epochs is None else divmod(number, job.epochs)
    if inner >= _EPOCHS or passes >= _PASSES:
        raise ValueError(
            f"start_step={job.start_step!r} is behind {number:,} epochs, in pass {passes + 1:,}, "
            f"which are found by drawing all seeds before: at most {_EPOCHS:,} epochs and "
            f"{_PASSES:,} passes. Begin anew with another seed=."
        )
    seeds, same = (job.reader._epoch_seeds(job.seed or 0) for _ in range(2))
    for _ in range(passes):
        next(iter(seeds)), next(iter(same))
    drawn = same.take(inner + 1).batch(_EPOCHS).get_single_element()
    return seeds.take(job.epochs or -1), drawn.numpy().tolist()


def _tell(job: Any, num_done: int, num_opened: int, again: int) -> None:
    """Logs what going on costs: records that are read again, to be passed over."""
    logging.getLogger(job.reader.NAME).info(
        "%d of %d records are done: %d ranges of %d shards are opened, and %d records (about %d "
        "bytes) in them passed over, not decoded.",
        *(num_done, sum(num for _, num in job.shards), num_opened, len(job.shards)),
        *(again, again * job.reader.RECORD_BYTES),
    )


def _options(job: Any) -> Any:
    """What divides records among workers."""
    return job.reader._beside("reader_options")
