"""Which records come when: the streams of an epoch, for each worker.

An epoch reads several *streams* at a time, and takes a chunk of a few records from each in turn. A
stream is a list of pieces (``shards.Piece``) that are read one after another.

``Dealt`` is the order of shuffled reading. The split is cut into 24 or more streams of as many
records each, and each stream into pieces, whose order within the stream is drawn for every epoch.
Small records are dealt one by one, large ones in chunks.
Of n workers, worker i reads the streams i, i + n, i + 2 n, … So a step of all workers together
holds the same records for each n that divides 24, and an epoch can be resumed at any step by
arithmetic.

``ByShard`` is the order where that cannot be: shards that cannot be begun in the middle (GZIP), or
are not all there at a time (a window of ``local_copy=``). Each shard is a stream of its own.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .shards import Piece, Shard, cut, ends_of

_RADICES = (2, 2, 2, 3)
"""Their product is the number of streams."""
_RADICES_LARGE = (2, 2, 2, 2, 3)
"""The same of a split that has so many records for each of them:"""
_LARGE = 65_536
_PIECE = 640
"""Records of a piece, about, at least: opening one costs as much as 50 to 100 small records …"""
_PIECE_BYTES = 2 << 20
"""… or so many bytes, where that is less, and no fewer than a twelfth of those records."""
_PIECES = 12
"""Pieces of a stream, about, at most: with 8, epochs correlate by more than 0.12 now and then."""
OPEN_SHARDS = 16
"""Shards that are read at a time where each is a stream …"""
_WINDOWS = 1_024
"""… and records that are shuffled within them, all together, at most."""
CHUNK = 8
"""Records of a chunk, at most: in chunks of 16, they meet again 10 times as often as by chance."""
SMALL = 2_048
"""Records of so many bytes or fewer are dealt one by one, since copying them costs little."""
_TURN = 64
"""How many of them are read from a stream at a time."""


def random_order(num: Any, seed: Any, stream: Any) -> Any:
    """int64[num]: a permutation of 0 … num - 1, a function of two seeds."""
    drawn = tf.random.stateless_uniform(
        [num], [seed, stream], minval=None, maxval=None, dtype=tf.int64
    )
    return tf.cast(tf.argsort(drawn, stable=True), tf.int64)


class Dealing:
    """How the records of a split are dealt to streams: arithmetic, without TensorFlow.

    Attributes:
        total: Records of the split.
        num_streams: A multiple of the number of workers.
        chunk: Records that are taken from a stream at a time. It divides the batch of a worker.
        length: Records of each stream, a multiple of the chunk.
        tail: Records that are left, fewer than a chunk of each stream. They come last, one by one.
    """

    def __init__(
        self,
        total: int,
        batch_size: int,
        workers: int,
        *,
        same_for_all: bool,
        is_one_by_one: bool = False,
    ) -> None:
        """Chooses the number of streams and the size of a chunk.

        Args:
            total: Records of the split.
            batch_size: Of each worker.
            workers: How many there are.
            same_for_all: Whether a step of all workers must not depend on their number, if that
                divides the number of streams. Chunks are small then where the batch of all workers
                is not a multiple of 24.
            is_one_by_one: Whether a chunk is one record.
        """
        self.total, self.workers, self.is_one_by_one = total, workers, is_one_by_one
        radices: tuple[int, ...] = (
            _RADICES_LARGE if total >= math.prod(_RADICES_LARGE) * _LARGE else _RADICES
        )
        if math.prod(radices) % workers:  # an order of its own for this number of workers
            radices, same_for_all = (-(-math.prod(radices) // workers) * workers,), False
        self.num_streams, self._radices = math.prod(radices), radices
        batch = batch_size * workers
        divided = batch // math.gcd(batch, self.num_streams) if same_for_all else batch_size
        limit = 1 if is_one_by_one else max(1, min(CHUNK, batch // 8))
        self.chunk = max(size for size in range(1, limit + 1) if divided % size == 0)
        self.length = total // (self.num_streams * self.chunk) * self.chunk
        self.tail = total - self.num_streams * self.length

    def position(self, stream: int) -> int:
        """Where among all streams in stored order one lies.

        Its digits are reversed: streams that are dealt one after another are far apart, and a
        worker reads one part of the split, where the number of workers is a power of two.
        """
        found = 0
        for radix in self._radices:
            stream, digit = divmod(stream, radix)
            found = found * radix + digit
        return found

    def num_records(self, worker: int) -> int:
        """Records of one worker in an epoch."""
        share = self.num_streams // self.workers * self.length
        return share + len(range(worker, self.tail, self.workers))

    def num_delivered(self, records: int) -> tuple[int, int]:
        """How far the streams are after so many records of all workers together.

        Returns:
            How many records each stream has delivered; how many streams, the first ones, have
            delivered another chunk.
        """
        rounds, rest = divmod(min(records, self.total - self.tail) // self.chunk, self.num_streams)
        return rounds * self.chunk, rest


def _uneven(length: int, num: int, number: int) -> list[int]:
    """The ends of so many pieces of a stream: of unequal lengths, others for each stream.

    Were all alike, records that are read at the same time would be so again whenever their pieces
    come at the same time.
    """
    drawn = random.Random(number)
    inner = (round((i + 0.7 * (drawn.random() - 0.5)) * length / num) for i in range(1, num))
    return [0, *inner, length]


class Order(Protocol):
    """The streams of one worker."""

    pieces: Sequence[Piece]
    num_records: int
    """Records of an epoch."""
    num: int
    """Streams."""
    num_open: int
    """Streams that are read at a time."""
    chunk: int
    """Records that come from one stream before the next has its turn."""
    turn: int
    """Records that are read from a stream at a time: a chunk, or many chunks of one record."""
    begun: int
    """Chunks of the first round of turns that were delivered before."""
    window: int
    """Records that are shuffled within a piece at a time."""
    buffer: int
    """Records that are shuffled behind all streams."""
    shuffles_streams: bool
    """Whether the streams come in another order in each epoch."""
    is_resumed: bool
    """Whether some records of the epoch were delivered before."""

    def stream(self, number: Any, seed: Any) -> tuple[Any, Any]:
        """The pieces of a stream in the order of an epoch.

        Returns:
            int64[n], their numbers; int64[n], how many records of each were delivered before.
        """

    def tail(self, seed: Any) -> tuple[Any, int, int] | None:
        """Pieces whose records come last, one by one, dealt to all workers.

        Returns:
            int64[n], their numbers; how many records they have; how many of these were delivered
            to this worker before.
        """


class ByShard:
    """Each shard, or what this worker reads of it, is a stream of its own."""

    is_resumed = False
    begun = 0

    def __init__(
        self, pieces: Sequence[Piece], *, buffer: int, batch_size: int, num_open: int = OPEN_SHARDS
    ) -> None:
        """Divides the shuffle buffer: windows within each open shard, and chunks of all of them.

        Args:
            pieces: What this worker reads.
            buffer: Records that are shuffled; 0 gives the stored order.
            batch_size: Of this worker.
            num_open: Shards that are read at a time, at most.
        """
        self.pieces, self.num, self.most_open = pieces, len(pieces), num_open
        self.num_records = sum(piece.take for piece in pieces)
        self.shuffles_streams = buffer > 0
        self.num_open = max(1, min(num_open, self.num)) if buffer else 1
        self.window = max(1, min(_WINDOWS, buffer // 2) // self.num_open)
        self.chunk = self.turn = max(1, min(CHUNK, batch_size // 8, self.window))
        self.buffer = max(0, buffer - self.window * self.num_open)

    def stream(self, number: Any, seed: Any) -> tuple[Any, Any]:
        """See ``Order``."""
        del seed
        return tf.reshape(number, [1]), tf.zeros([1], tf.int64)

    def tail(self, seed: Any) -> None:
        """There is none."""


class Dealt:
    """The streams of one worker where all records are dealt; see ``Dealing``.

    The tail lies in a gap before, between or behind the streams, another one in each epoch. The
    streams behind the gap begin later by its length: so there are two layouts.
    """

    shuffles_streams = False

    def __init__(
        self,
        dealing: Dealing,
        shards: Sequence[Shard],
        worker: int,
        *,
        window: int,
        gaps: bool = True,
        delivered: int = 0,
    ) -> None:
        """Cuts the streams into pieces.

        Args:
            dealing: The streams of all workers.
            shards: Of the split.
            worker: Whose streams, from 0.
            window: Records that are shuffled within a piece.
            gaps: Whether the tail lies elsewhere in each epoch, or always behind all streams. All
                workers must have one seed then.
            delivered: Records of all workers that came before in this epoch, as many of each, and
                whole chunks.
        """
        self._dealing = dealing
        self.num_records = dealing.num_records(worker)
        streams = range(worker, dealing.num_streams, dealing.workers)
        self.num = self.num_open = len(streams) if dealing.length else 0
        self.chunk, self.window, self.buffer = dealing.chunk, window, 0
        self._positions = [dealing.position(stream) for stream in streams]
        self._delivered, begun = dealing.num_delivered(delivered)
        self.begun = len(range(worker, begun, dealing.workers))
        self.turn = _TURN if dealing.is_one_by_one else dealing.chunk
        tail_delivered = max(0, delivered - dealing.num_streams * dealing.length)
        self._tail_delivered = len(range(worker, tail_delivered, dealing.workers))
        self._num_gaps = dealing.num_streams + 1 if gaps and dealing.tail else 1
        self.is_resumed = delivered > 0
        least = max(1, min(_PIECE, max(_PIECE // 12, _PIECE_BYTES // facts.RECORD_BYTES)))
        num_pieces = max(1, min(_PIECES, dealing.length // least))
        groups, ends = [], ends_of(shards)
        for shift in (0, dealing.tail) if self._num_gaps > 1 else (0,):
            for position in self._positions:
                begin = position * dealing.length + shift
                cuts = [begin + end for end in _uneven(dealing.length, num_pieces, position)]
                found = [cut(shards, ends, *places) for places in itertools.pairwise(cuts)]
                groups.append([*itertools.chain.from_iterable(found)])
        self._first_tail = len(groups)
        for gap in range(dealing.num_streams + 1)[-self._num_gaps :]:
            begin = gap * dealing.length
            groups.append(cut(shards, ends, begin, begin + dealing.tail))
        self.pieces: Sequence[Piece] = [*itertools.chain.from_iterable(groups)]
        self._splits = [0, *itertools.accumulate(map(len, groups))]

    def stream(self, number: Any, seed: Any) -> tuple[Any, Any]:
        """See ``Order``."""
        group = number
        if self._num_gaps > 1:
            gap = tf.math.floormod(seed, self._num_gaps)
            is_behind = tf.gather(tf.constant(self._positions, tf.int64), number) >= gap
            group += tf.where(is_behind, tf.constant(self.num, tf.int64), 0)
        first, end = (tf.gather(tf.constant(self._splits, tf.int64), group + i) for i in (0, 1))
        position = tf.gather(tf.constant(self._positions, tf.int64), number)
        numbers = first + random_order(end - first, seed, position)
        if not self.is_resumed:
            return numbers, tf.zeros_like(numbers)
        takes = tf.gather(tf.constant([piece.take for piece in self.pieces], tf.int64), numbers)
        before = tf.maximum(self._delivered - tf.cumsum(takes, exclusive=True), 0)
        is_left = before < takes
        return tf.boolean_mask(numbers, is_left), tf.boolean_mask(before, is_left)

    def tail(self, seed: Any) -> tuple[Any, int, int] | None:
        """See ``Order``."""
        if not self._dealing.tail:
            return None
        group = self._first_tail + tf.math.floormod(seed, self._num_gaps)
        first, end = (tf.gather(tf.constant(self._splits, tf.int64), group + i) for i in (0, 1))
        return tf.range(first, end), self._dealing.tail, self._tail_delivered
