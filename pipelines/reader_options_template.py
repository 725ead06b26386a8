"""What ``reader.py`` beside it does for options that few runs use.

``cache=``, ``augment=`` and ``start_step=`` of ``dataset``. It needs TensorFlow and nothing else.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

_Range = tuple[str, int, int, int]  # path; records to skip there, to take; place of the first
_Read = Callable[..., tf.data.Dataset]
_Source = tuple[tf.data.Dataset, _Read, int]  # ranges; what opens one; how many there are


def cached(ranges: list[_Range], read: _Read, where: str, *, reader: Any) -> _Source:
    """The ranges as datasets that keep their records, in memory or in a folder.

    A file that this process writes has a name of its own, and others take it for complete once
    its index is there: no two processes meet in one, and what breaks off leaves the rest as it is.
    """
    num_bytes = reader.RECORD_BYTES * sum(take for _, _, take, _ in ranges)
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if where != "memory":
        os.makedirs(where, exist_ok=True)
        room = shutil.disk_usage(where).free
    kept: Any = []
    missing = 0
    for path, skip, take, first in ranges:
        records, file = read(path, skip, take, first), ""
        if where != "memory":
            kind = "numbered" if isinstance(records.element_spec, tuple) else "plain"
            name = f"{reader.FINGERPRINT}-{os.path.basename(path)}-{skip}-{take}-{kind}"
            done = sorted(tf.io.gfile.glob(f"{where}/{name}.*.index"))
            file = done[0].removesuffix(".index") if done else f"{where}/{name}.{uuid.uuid4().hex}"
            missing += not done
        kept.append(records.cache(file))
    if num_bytes > room and (missing or where == "memory"):
        text = f"cache={where!r}: the records take {num_bytes:,} bytes, and there are {room:,}."
        warnings.warn(text, ResourceWarning, stacklevel=3)
    if not kept:
        return reader._streams(ranges), read, 0
    spec = kept[0].element_spec
    variants = tf.stack([tf.data.experimental.to_variant(records) for records in kept])
    firsts = tf.constant([first for _, _, _, first in ranges], tf.int64)
    streams = tf.data.Dataset.from_tensor_slices((variants, firsts))

    def open_(variant: Any, first: Any) -> tf.data.Dataset:
        del first
        return tf.data.experimental.from_variant(variant, spec)

    return streams, open_, len(kept)


def augmented(
    parse: Callable[[Any], Any], augment: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    """Parses a batch and changes each example by (the seed of its epoch, its place)."""

    def finish(numbered: Any, epoch_seed: Any) -> Any:
        serialized, places = numbered
        batch = parse(serialized)
        seeds = tf.stack([tf.fill(tf.shape(places), epoch_seed), places], axis=1)
        like = augment(tf.nest.map_structure(lambda value: value[0], batch), seeds[0])
        spec = tf.nest.map_structure(tf.type_spec_from_value, like)

        def one(pair: Any) -> Any:
            return augment(*pair)

        return tf.map_fn(one, (batch, seeds), fn_output_signature=spec)

    return finish


class Work(NamedTuple):
    """What the workers of a run share out among them in each epoch."""

    reader: Any
    """The module that reads."""
    shards: list[tuple[str, int]]
    """(path, number of records) in stored order."""
    equal_steps: bool
    """Whether every worker has as many batches."""
    drop_remainder: bool
    """Whether short batches are left out."""

    def left(self, part: tuple[int, int], done: bytearray) -> tuple[list[_Range], list[int]]:
        """The ranges of a part of what is not done, and the places in them that are."""
        if not any(done):
            return self.reader._divide(self.shards, part, even=self.equal_steps), []
        left = done.count(0)
        first, last = left * part[0] // part[1], left * (part[0] + 1) // part[1]
        ranges, gaps, place = [], [], 0
        for path, num in self.shards:
            size = done.count(0, place, place + num)
            start, stop = max(first, 0), min(last, size)
            if start < stop:
                mine = [i for i in range(place, place + num) if not done[i]][start:stop]
                ranges.append((path, mine[0] - place, mine[-1] + 1 - mine[0], mine[0]))
                gaps += [i for i in range(mine[0], mine[-1]) if done[i]]
            first, last, place = first - size, last - size, place + num
        return ranges, gaps

    def num_batches(self, part: tuple[int, int], size: int, done: bytearray) -> int:
        """Batches that a part of what is not done makes."""
        parts = [(i, part[1]) for i in range(part[1])] if self.equal_steps else [part]
        found = [self.left(one, done) for one in parts]
        nums = [sum(take for _, _, take, _ in ranges) - len(gaps) for ranges, gaps in found]
        return min(num // size if self.drop_remainder else -(-num // size) for num in nums)


def resumed(
    epoch: Callable[..., tf.data.Dataset],
    stages: list[tuple[int, int, int]],
    *,
    facts: dict[str, Any],
    part: tuple[int, int],
    read: _Read,
    buffer: Callable[[int], int],
    seed: int,
    epochs: int | None,
) -> tf.data.Dataset:
    """The batches from where the stages, (steps, batch size, workers) each, came to.

    What they read is found by going through the same shuffles with the records' places alone, 1.4
    µs each. What is left of the epoch that was broken off is divided anew among the workers.
    """
    work = Work(**facts)
    number, done = 0, bytearray(sum(num for _, num in work.shards))
    for steps, size, workers in stages:
        steps_left, parts = steps, [(worker, workers) for worker in range(workers)]
        while steps_left >= (most := max(work.num_batches(one, size, done) for one in parts)):
            # Epochs that are over; all after the first are alike.
            if not any(done) and not most:
                break  # none has a batch
            num_over = 1 if any(done) else steps_left // most
            number, steps_left = number + num_over, steps_left - num_over * most
            done = bytearray(len(done))
        if steps_left:
            epoch_seed = _seeds(work.reader, seed, number, epochs)[1][-1]
            before = bytearray(done)
            for one in parts:
                places = _source(*work.left(one, before), _places, reader=work.reader)
                options = {"buffer": buffer(size), "seed": epoch_seed}
                batches = work.reader._batches(places, size, work.drop_remainder, **options)
                for batch in batches.take(steps_left).as_numpy_iterator():
                    for place in batch.tolist():
                        done[place] = 1
    seeds, (*over, current) = _seeds(work.reader, seed, number, epochs)
    ranges, gaps = work.left(part, done)
    _tell(work, ranges, gaps, done)
    num = work.num_batches(part, stages[-1][1], done)
    source = _source(ranges, gaps, read, reader=work.reader)

    def is_to_come(epoch_seed: Any) -> Any:
        return tf.reduce_all(epoch_seed != tf.constant(over, tf.int64))

    def either(epoch_seed: Any) -> tf.data.Dataset:
        spec = epoch(epoch_seed).element_spec
        variant = tf.cond(
            epoch_seed == current,
            lambda: tf.data.experimental.to_variant(epoch(epoch_seed, source, num)),
            lambda: tf.data.experimental.to_variant(epoch(epoch_seed)),
        )
        return tf.data.experimental.from_variant(variant, spec)

    return seeds.filter(is_to_come).flat_map(either)


def _seeds(reader: Any, seed: int, number: int, epochs: int | None) -> tuple[Any, list[int]]:
    """The seeds of the pass in which the epoch of this number lies, and those up to this epoch.

    What is done already of the dataset of seeds are the passes before: the next is that pass.
    """
    passes, inner = (0, number) if epochs is None else divmod(number, epochs)
    seeds, same = reader._epoch_seeds(seed), reader._epoch_seeds(seed)
    for _ in range(passes):
        next(iter(seeds)), next(iter(same))
    seeds = seeds.take(-1 if epochs is None else epochs)
    return seeds, [int(one) for one in same.take(inner + 1)]


def _source(ranges: list[_Range], gaps: list[int], read: _Read, *, reader: Any) -> _Source:
    """Ranges, and what opens one without the records whose places are given."""
    over = tf.constant(gaps, tf.int64)

    def kept(path: Any, skip: Any, take: Any, first: Any) -> tf.data.Dataset:
        places = tf.data.Dataset.range(first, first + take)
        found = tf.data.Dataset.zip((read(path, skip, take, first), places))
        return found.filter(is_left).map(without_place)

    def is_left(record: Any, place: Any) -> Any:
        del record
        return tf.reduce_all(place != over)

    def without_place(record: Any, place: Any) -> Any:
        del place
        return record

    return reader._streams(ranges), kept if gaps else read, len(ranges)


def _places(path: Any, skip: Any, take: Any, first: Any) -> tf.data.Dataset:
    """In place of the records of a range, their places."""
    del path, skip
    return tf.data.Dataset.range(first, first + take)


def _tell(work: Work, ranges: list[_Range], gaps: list[int], done: bytearray) -> None:
    """Logs what going on costs: records that are read again, to be passed over."""
    again = sum(skip for _, skip, _, _ in ranges) + len(gaps)
    logging.getLogger(work.reader.NAME).info(
        "%d of %d records are done: %d of %d shards are opened, and %d records (about %d bytes) "
        "in them passed over, not decoded.",
        *(sum(done), len(done), len(ranges), len(work.shards)),
        *(again, again * work.reader.RECORD_BYTES),
    )
