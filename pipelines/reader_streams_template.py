"""What ``reader.py`` beside it does to give a seeded epoch one order, however many workers read it.

The records are dealt from a fixed number of streams, each a contiguous part of the split: chunk t
of an epoch is one of stream t mod ``Order.num``, and of n workers each takes every n-th stream. So
a step of all workers together holds the same records for any number of workers that divides the
streams, and an epoch can be continued at any step by arithmetic. It needs TensorFlow and nothing
else.
"""

from __future__ import annotations

import bisect
import concurrent.futures
import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

_Range = tuple[str, int, int, int]  # path; records to skip there, to take; place of the first
_Epoch = Callable[[Any], tf.data.Dataset]  # from the seed of an epoch to its batches

_FEW = (2, 2, 2, 3)  # 24 streams …
_MANY = (2, 2, 2, 2, 3)  # … or 48, for as many and more workers, where each has records enough:
_LARGE = 65_536  # so many of each of the 48
_BLOCK = 2_048  # records of a stream that are put in another place of it, all together, about …
_BLOCKS = 16  # … and how many such blocks a stream has, at most
_WINDOW = 8  # records that are shuffled in each stream, at least …
_MOST = 256  # … and at most, unless asked: more are no longer in the processor's cache
_CHUNK = 32  # records that travel together, at most
_PIECES = 3  # ranges of a block that are opened one by one, at most
_THREADS = 16  # for asking a store where records begin


class Order(NamedTuple):
    """How the records of a split are dealt: a function of the manifest and of ``shuffle=``.

    All streams have as many blocks, all blocks as many records. What is left, the tail, comes last,
    record by record: it is at the split's end or at its beginning, as the epoch's seed decides.
    """

    total: int
    radices: tuple[int, ...]
    """Their product is the number of streams."""
    window: int
    """Records that are shuffled within a stream at a time."""
    grain: int
    """A power of two. The records of a block are a multiple of it."""
    blocks: int
    """Of each stream."""
    size: int
    """Records of a block."""

    @classmethod
    def of(cls, total: int, window: Callable[[int], int]) -> Order:
        """For so many records; ``window`` is a function of the number of streams."""
        radices = _MANY if total >= math.prod(_MANY) * _LARGE else _FEW
        num = math.prod(radices)
        records = window(num)
        grain = _power(min(_CHUNK, records // 4))
        chunks = total // (num * grain)
        most = max(1, min(_BLOCKS, chunks * grain // _BLOCK))
        blocks = min(range(most, most // 2, -1), key=lambda blocks: chunks % blocks)
        return cls(total, radices, records, grain, blocks, chunks // blocks * grain)

    @property
    def num(self) -> int:
        """Streams."""
        return math.prod(self.radices)

    @property
    def main(self) -> int:
        """Records in blocks."""
        return self.num * self.blocks * self.size

    def fits(self, workers: int) -> bool:
        """Whether so many workers have as many streams each."""
        return self.num % workers == 0

    def chunk(self, batch: int) -> int:
        """Records of a chunk for batches of so many records of all workers together.

        It divides the batch of each worker, whatever their number, and is an eighth of all or less.
        """
        batch = int(batch)
        each = batch // math.gcd(batch, self.num)
        return min(self.grain, _power(batch // 8), each & -each)

    def start(self, stream: int) -> int:
        """Where among all streams in stored order one lies.

        Its digits are reversed: neighbours in the order of dealing are far apart, and what a worker
        reads is one part of the split, where the number of workers is a power of two.
        """
        found = 0
        for radix in self.radices:
            stream, digit = divmod(stream, radix)
            found = found * radix + digit
        return found

    def num_records(self, part: tuple[int, int]) -> int:
        """Of a worker."""
        index, count = part
        return self.main // count + len(range(index, self.total - self.main, count))

    def left(self, part: tuple[int, int], first: int, chunk: int) -> list[tuple[int, int, int]]:
        """What a worker reads after so many records of all: (block's number, stream, to skip).

        In the order of opening. Where the streams have read different numbers of chunks of a block,
        those that have read less come first; so streams that end early are followed by their own.
        """
        at, chunks = divmod(min(first, self.main) // chunk, self.num)[::-1]
        begun, chunks = divmod(chunks, max(1, self.size // chunk))
        streams = range(part[0], self.num, part[1])
        found = [(begun, stream, chunks * chunk) for stream in streams if stream >= at]
        found += [(begun, stream, (chunks + 1) * chunk) for stream in streams if stream < at]
        rest = range(begun + 1, self.blocks)
        found = [one for one in found if begun < self.blocks and one[2] < self.size]
        return found + [(number, stream, 0) for number in rest for stream in streams]


def _power(number: int) -> int:
    """The largest power of two that is no larger, at least 1."""
    return 1 << max(0, number.bit_length() - 1)


def streamed(job: Any) -> None:
    """Makes ``job`` read by streams, where its seed and its number of workers allow it.

    Sets ``job.order`` (None where an order of its own for each number of workers remains), and then
    ``ranges``, ``slices`` (the same as tensors), ``read``, ``epoch`` and ``num_batches``.
    """
    job.order, asked = None, vars(job)
    own = asked.get("bucket") or asked.get("balance") is not None or asked["cache"] == "decoded"
    own = own or job.debug  # in which every block would be traced anew
    if own or job.reader.COMPRESSION != "none" or _is_window(job):
        return
    job.order = Order.of(sum(num for _, num in job.shards), functools.partial(_window, job))
    part = asked.get("part") or (0, 1)
    if not job.order.fits(part[1]):
        return
    job.plan = _Plan(job, part, layouts=1 if job.cache else 2)
    job.ranges, job.num_batches = job.plan.ranges, num_batches(job, part, job.batch_size)
    job.slices, job.read = job.plan.columns, functools.partial(_read, job)
    job.epoch = functools.partial(_epoch, job, 0)


def _is_window(job: Any) -> bool:
    """Whether shards are copied to a window, which holds fewer than the streams read at a time."""
    if not isinstance(job.local_copy, tuple | list) or job.local_copy[1] is None:
        return False
    content = job.reader._beside("reader_copies").read_bytes(f"{job.root}/manifest.json")
    return bool(job.local_copy[1] < json.loads(content)["splits"][job.split]["num_bytes"])


def _window(job: Any, num: int) -> int:
    """Records that are shuffled in each of so many streams."""
    if job.shuffle is None or job.shuffle is True:
        return min(_MOST, max(_WINDOW, int(job.reader._buffer(job.split, True, 1)) // num))
    return max(1, int(job.buffer) // num)


def num_batches(job: Any, part: tuple[int, int], size: int) -> int:
    """Batches of a worker in an epoch."""
    parts = [(part[1] - 1, part[1])] if job.equal_steps else [part]  # the last has fewest records
    num = job.order.num_records(parts[0])
    return int(num // size if job.drop_remainder else -(-num // size))


def rest(job: Any, first: int) -> tuple[_Epoch, int, int]:
    """What a worker reads of an epoch after so many records of all workers together.

    Returns:
        The same order from there on; its number of batches; and how many records are passed over.
    """
    other = type(job)(**vars(job) | {"read": job.read_uncached, "slices": job.plan.columns})
    steps = first // (job.batch_size * job.part[1])
    chunk = job.order.chunk(job.batch_size * job.part[1])
    over = sum(skip for *_, skip in job.order.left(job.part, first, chunk))
    over += max(0, first - job.order.main)
    num = num_batches(job, job.part, job.batch_size) - steps
    return functools.partial(_epoch, other, first), num, over


def places(job: Any, first: int, batch: int, seed: int) -> list[int]:
    """The places of the first records of an epoch, dealt in batches of so many.

    They are found by going through the same shuffles with the records' places alone.
    """
    facts: dict[str, Any] = {
        "batch_size": batch,
        "part": (0, 1),
        "ahead": functools.partial(tf.data.Dataset.take, count=-1),
        "read": _only_places,
    }
    other = type(job)(**vars(job) | facts)
    other.plan = _Plan(other, (0, 1), layouts=1 if job.cache else 2)
    other.slices = other.plan.columns
    found = _epoch(other, 0, seed).unbatch().take(first)
    return [int(place) for place in found.as_numpy_iterator()]


def _only_places(path: Any, skip: Any, take: Any, first: Any) -> tf.data.Dataset:
    """In place of the records of a range, their places."""
    del path, skip
    return tf.data.Dataset.range(first, first + take)


class _Plan:
    """Where the blocks of a worker lie: as ranges of shards, and as tensors."""

    def __init__(self, job: Any, part: tuple[int, int], *, layouts: int) -> None:
        """Of one layout, with the tail at the split's end, or of two."""
        order, self.layouts = job.order, layouts
        begins = [0, *itertools.accumulate(num for _, num in job.shards)]
        found: list[_Range] = []
        blocks: list[list[tuple[int, int, int]]] = []
        tails: list[tuple[int, int, int]] = []
        self.tail, length = order.total - order.main, order.blocks * order.size
        for shift in (0, self.tail)[:layouts]:
            starts = [
                shift + order.start(stream) * length + block * order.size
                for stream in range(part[0], order.num, part[1])
                for block in range(order.blocks)
            ]
            at = 0 if shift else order.main
            blocks.append([_put(found, job.shards, begins, one, order.size) for one in starts])
            tails.append(_put(found, job.shards, begins, at, self.tail))
        self.ranges = placed(found, job.root)
        self.is_placed = all(skip < 0 for _, skip, _, _ in self.ranges)
        self.most = max(num for layout in (*blocks, tails) for _, num, _ in layout)
        self.blocks = tf.constant(blocks, tf.int64)  # [layouts, blocks, 3]
        self.tails = tf.constant(tails, tf.int64)  # [layouts, 3]
        columns: Any = zip(*self.ranges, strict=True) if self.ranges else ((), (), (), ())
        dtypes = (tf.string, tf.int64, tf.int64, tf.int64)
        self.columns = tuple(map(tf.constant, columns, dtypes))

    def pieces(self, block: Any) -> list[tuple[Any, ...]]:
        """The ranges of blocks (first, how many, place)[…, 3] as columns; some may be empty."""
        found, last = [], len(self.ranges) - 1
        for number in range(self.most):
            at = tf.minimum(block[..., 0] + number, last)
            path, skip, take, first = (tf.gather(column, at) for column in self.columns)
            take *= tf.cast(block[..., 1] > number, tf.int64)
            found.append((path, skip, take, first))
        return found


def _put(
    ranges: list[_Range],
    shards: Sequence[tuple[str, int]],
    begins: list[int],
    place: int,
    num: int,
) -> tuple[int, int, int]:
    """Adds the ranges of a block: gives the first one's number, how many; and the place."""
    first, start, end = len(ranges), place, place + num
    shard = bisect.bisect_right(begins, place) - 1
    while place < end:
        stop = min(end, begins[shard + 1])
        if place < stop:
            ranges.append((shards[shard][0], place - begins[shard], stop - place, place))
        place, shard = stop, shard + 1
    return first, len(ranges) - first, start


def _epoch(job: Any, first: int, seed: Any) -> tf.data.Dataset:
    """Batches of serialized examples of an epoch, without the first records of all workers."""
    order, plan = job.order, job.plan
    index, count = part = vars(job).get("part") or (0, 1)
    chunk = order.chunk(job.batch_size * count)
    seed = tf.convert_to_tensor(seed, tf.int64)
    layout = seed % plan.layouts
    todo = order.left(part, first, chunk) if order.size else []
    few = plan.most <= _PIECES and len(job.slices) == len(plan.columns)
    both: list[tf.data.Dataset] = []

    def records(found: Any, pieces: list[tuple[Any, ...]]) -> tf.data.Dataset:
        if few:  # by fewer calls of functions, which take a millisecond
            return functools.reduce(
                tf.data.Dataset.concatenate, [job.read(*piece) for piece in pieces]
            )
        slices = tuple(column[found[0] : found[0] + found[1]] for column in job.slices)
        return tf.data.Dataset.from_tensor_slices(slices).flat_map(job.read)

    def block(path: Any, found: Any, pieces: Any, skip: Any) -> tf.data.Dataset:
        del path
        shuffled = job.reader._shuffle(records(found, pieces), order.window, seed, 1 + found[2])
        return (shuffled.skip(skip) if first else shuffled).batch(chunk)

    if todo:
        numbers, streams, skips = (tf.constant(one, tf.int64) for one in zip(*todo, strict=True))
        which = numbers
        if order.blocks > 1:  # which block of a stream comes when
            drawn = tf.random.stateless_uniform(
                [order.num, order.blocks], [seed, 0], minval=None, maxval=None, dtype=tf.int64
            )
            turns = tf.argsort(drawn, axis=1, stable=True)
            which = tf.cast(tf.gather_nd(turns, tf.stack([streams, numbers], 1)), tf.int64)
        found = tf.gather(plan.blocks[layout], streams // count * order.blocks + which)
        pieces = tuple(plan.pieces(found)) if few else ()
        paths = tf.gather(plan.columns[0], found[:, 0])
        blocks = tf.data.Dataset.from_tensor_slices((paths, found, pieces, skips))
        dealt = job.ahead(blocks).interleave(
            block,
            cycle_length=min(order.num // count, len(todo)),
            block_length=1,
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        both.append(dealt)
    if plan.tail or not todo:
        found = plan.tails[layout]
        tail = records(found, plan.pieces(found) if few else [])
        tail = job.reader._shuffle(tail, order.num * order.grain, seed, -1)
        both.append(tail.skip(max(0, first - order.main)).shard(count, index).batch(1))
    batches = functools.reduce(tf.data.Dataset.concatenate, both)
    return batches.rebatch(job.batch_size, drop_remainder=job.drop_remainder)


# Where records begin


def _read(job: Any, path: Any, skip: Any, take: Any, *places: Any) -> tf.data.Dataset:
    """The serialized examples of a range, from the byte where it begins, if ``skip`` tells it."""
    if tf.executing_eagerly():  # TensorFlow 2.21 refuses to begin at a byte but in a function
        stream = [tf.constant(place, tf.int64) for place in (skip, take, *places)]
        read = functools.partial(_read, job)
        return tf.data.Dataset.from_tensors((path, *stream)).flat_map(read)
    is_store = "://" in job.root and not job.local_copy
    size = job.reader._FETCH_BYTES if is_store else job.reader._READ_BYTES
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=tf.reshape(path, [1]),
        compression_type="",
        buffer_size=tf.constant(size, tf.int64),
        byte_offsets=tf.reshape(tf.maximum(-1 - skip, 0), [1]),
    )
    records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    if not job.plan.is_placed:
        records = records.skip(tf.maximum(skip, 0))
    return records.take(take).apply(tf.data.experimental.assert_cardinality(take))


def placed(ranges: list[_Range], root: str) -> list[_Range]:
    """The same, with -1 - the byte where it begins in place of what is to be skipped.

    As they are, where the index does not tell it; passing records over costs half of reading them.
    """
    skips: dict[str, set[int]] = {}
    for path, skip, _, _ in ranges:
        skips.setdefault(path, set()).add(skip)
    asked = [(path, found) for path, found in skips.items() if found != {0}]
    places = {(path, 0): 0 for path in skips}

    def ask(path: str, skips: set[int]) -> dict[tuple[str, int], int]:
        name = path.removeprefix(f"{root}/")
        with tf.io.gfile.GFile(f"{root}/index/{name}.idx", "rb") as file:
            return {(path, skip): _offset(file, skip) for skip in sorted(skips)}

    try:
        with concurrent.futures.ThreadPoolExecutor(_THREADS if "://" in root else 1) as pool:
            for one in pool.map(ask, *zip(*asked, strict=True)) if asked else ():
                places |= one
    except (tf.errors.OpError, OSError, ValueError):
        return ranges  # no index: as they are
    return [(path, -1 - places[path, skip], take, first) for path, skip, take, first in ranges]


def _offset(file: Any, skip: int) -> int:
    """Where the frame of a record begins: pairs of (offset, length), little-endian uint64."""
    file.seek(16 * skip)
    content = file.read(16)
    if len(content) != 16:
        raise ValueError("the index is too short")
    return int.from_bytes(content[:8], "little")
