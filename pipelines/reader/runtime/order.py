"""Which records come when: the streams of an epoch, for each worker.

An epoch reads several *streams* at a time, and takes a chunk of a few records from each in turn. A
stream is a list of pieces (``shards.Piece``) that are read one after another.

``Dealt`` is the order of shuffled reading. The split is cut into 24 or more streams of equal
length, and each stream into pieces, whose order within the stream is drawn again for every epoch.
Small records are dealt one by one, large ones in chunks. Of n workers, worker i reads the streams
i, i + n, i + 2 n, … A step of all workers together therefore holds the same records for each n that
divides 24, and an epoch can be resumed at any step by arithmetic.

For example, 1,000 small records, read by one worker: 24 streams of 41 records, and a tail of 16.
Stream 0 holds the records 0 to 40; stream 1 is at position 12 and holds 492 to 532, stream 2 at
position 6 (246 to 286), stream 3 at position 18: the digits of the stream's number, reversed. The
first 24 records of an epoch are one of each stream. Of two workers, one reads the even streams,
which are at the positions 0 to 11, so the first half of the split. The tail moves with the epoch's
seed: in gap 2 it is the records 82 to 97, which come last, and the stream at position 2 begins at
98. After 100 records, streams 0 to 3 have delivered 5 records each and the others 4, so that an
epoch is resumed there without reading what came before.

Without a seed, one worker deals none of a small split's records: all of them are the tail.

``ByShard`` is the order where this is impossible: shards that cannot be read from the middle
(GZIP), or pieces that the workers of a service share. Each shard is a stream.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .options import BUFFER_BYTES, BUFFER_RECORDS, Options
from .shards import Piece, Shard, cut, divide, ends_of, locate

_RADICES = (2, 2, 2, 3)
"""Their product is the number of streams."""
_RADICES_LARGE = (2, 2, 2, 2, 3)
"""The same for a split with at least this many records per stream:"""
_LARGE = 65_536
_PIECE = 640
"""Approximate minimum of records in a piece: opening one costs as much as 50 to 100 small ones …"""
_PIECE_BYTES = 2 << 20
"""… or this many bytes, if that is fewer records …"""
_MIN_PIECE = 53
"""… but no fewer than this."""
_PIECES = 12
"""Approximate maximum of pieces in a stream: with 8, the orders of two epochs sometimes correlate
by more than 0.12 …"""
_FEW_PIECES = 5
"""… and the minimum, even if they are smaller then: with 2, epochs correlate by 0.2. A stream that
is shuffled completely needs no pieces."""
OPEN_SHARDS = 16
"""Shards read at a time if each is a stream …"""
_WINDOWS = 1_024
"""… and the maximum number of records shuffled within them, in total."""
CHUNK = 8
"""Maximum records in a chunk: with 16, records meet again 10 times as often as by chance."""
SMALL = 2_048
"""Records of up to this many bytes are dealt one by one, since copying them is cheap."""
_TURN = 64
"""How many of them are read from a stream at a time."""
_WINDOW = 8
"""Minimum number of records shuffled at a time within each stream …"""
_MAX_WINDOW = 256
"""… and maximum, unless set by ``shuffle``: more do not fit into the processor's cache."""
_SHORT = 1_280
"""Streams of up to this many records, which are too short for several pieces, are shuffled
completely …"""
_SMALL_SPLIT_BYTES = 64 << 20
"""… if the split has at most this many bytes."""
_UNDEALT = 65_536
"""Records of the largest split that is not dealt: its first batch waits until all are read."""


def random_order(num: Any, seed: Any, stream: Any) -> Any:
    """int64[num]: a permutation of 0 … num - 1, determined by two seeds."""
    drawn = tf.random.stateless_uniform(
        [num], [seed, stream], minval=None, maxval=None, dtype=tf.int64
    )
    # As tf.argsort(drawn), with a quarter of its operations to trace; ~ reverses the order.
    return tf.math.top_k(~drawn, num, index_type=tf.int64).indices


class Dealing:
    """How the records of a split are dealt to streams: arithmetic, without TensorFlow.

    Attributes:
        total: Records of the split.
        num_streams: Number of streams, a multiple of the number of workers.
        chunk: Records taken from a stream at a time. Divides the batch size of a worker.
        length: Records of each stream, a multiple of the chunk.
        tail: Remaining records, fewer than one chunk per stream. They come last, one by one.
    """

    def __init__(
        self,
        total: int,
        batch_size: int,
        workers: int,
        *,
        same_for_all: bool,
        is_one_by_one: bool = False,
        is_undealt: bool = False,
    ) -> None:
        """Chooses the number of streams and the chunk size.

        Args:
            total: Records of the split.
            batch_size: Batch size of each worker.
            workers: Number of workers.
            same_for_all: Whether a step of all workers must not depend on their number, as long as
                that divides the number of streams. Chunks are then small if the global batch size
                is not a multiple of 24.
            is_one_by_one: Whether a chunk is a single record.
            is_undealt: Whether no record is dealt if the split has at most 65,536 records and
                64 MiB: the tail, which is shuffled completely, is then the whole split.
        """
        self.total, self.workers, self.is_one_by_one = total, workers, is_one_by_one
        radices: tuple[int, ...] = (
            _RADICES_LARGE if total >= math.prod(_RADICES_LARGE) * _LARGE else _RADICES
        )
        if math.prod(radices) % workers:  # this number of workers gets its own order
            radices, same_for_all = (-(-math.prod(radices) // workers) * workers,), False
        self.num_streams, self._radices = math.prod(radices), radices
        batch = batch_size * workers
        divided = batch // math.gcd(batch, self.num_streams) if same_for_all else batch_size
        limit = 1 if is_one_by_one else max(1, min(CHUNK, batch // 8))
        self.chunk = max(size for size in range(1, limit + 1) if divided % size == 0)
        self.length = total // (self.num_streams * self.chunk) * self.chunk
        if is_undealt and total <= _UNDEALT and self._has_few_bytes:
            self.length = 0
        self.tail = total - self.num_streams * self.length

    @property
    def is_small(self) -> bool:
        """Whether the split is shuffled completely, unless ``shuffle`` is a number."""
        return self._has_few_bytes and self.length <= _SHORT

    @property
    def _has_few_bytes(self) -> bool:
        return self.total * facts.RECORD_BYTES <= _SMALL_SPLIT_BYTES

    def position(self, stream: int) -> int:
        """The position of a stream among all streams in stored order.

        It is the stream's number with its digits reversed: streams that are dealt one after another
        are far apart, and if the number of workers is a power of two, each worker reads one
        contiguous part of the split.
        """
        position = 0
        for radix in self._radices:
            stream, digit = divmod(stream, radix)
            position = position * radix + digit
        return position

    def num_records(self, worker: int) -> int:
        """Records of one worker per epoch."""
        share = self.num_streams // self.workers * self.length
        return share + len(range(worker, self.tail, self.workers))

    def num_delivered(self, records: int) -> tuple[int, int]:
        """How far the streams are after all workers together have delivered ``records``.

        Returns:
            The number of records that each stream has delivered; the number of streams, counted
            from the first, that have delivered one more chunk.
        """
        rounds, rest = divmod(min(records, self.total - self.tail) // self.chunk, self.num_streams)
        return rounds * self.chunk, rest


def _uneven(length: int, num: int, number: int) -> list[int]:
    """Cuts a stream into ``num`` pieces of unequal lengths, different for each stream.

    With equal lengths, records that are read at the same time once would be so again whenever
    their pieces are.

    Returns:
        The ends of the pieces, and 0 before them.
    """
    drawn = random.Random(number)
    inner = (round((i + 0.7 * (drawn.random() - 0.5)) * length / num) for i in range(1, num))
    return [0, *inner, length]


class Order(Protocol):
    """The streams of one worker."""

    pieces: Sequence[Piece]
    num_records: int
    """Records per epoch."""
    num_streams: int
    """Number of streams."""
    num_open: int
    """Streams read at a time."""
    chunk: int
    """Records taken from one stream before the next has its turn."""
    turn: int
    """Records read from a stream at a time: one chunk, or many chunks of one record."""
    begun: int
    """Chunks of the first round of turns that were already delivered."""
    window: int
    """Records shuffled at a time within a piece."""
    buffer: int
    """Records in the shuffle buffer behind all streams."""
    shuffles_streams: bool
    """Whether the order of the streams differs in each epoch."""
    is_resumed: bool
    """Whether some records of the epoch were already delivered."""
    has_single_pieces: bool
    """Whether each stream is a single piece."""
    is_small: bool
    """Whether few records are read, and all streams at once."""

    def streams(self, seed: Any) -> Any:
        """The streams of an epoch: int64[num_streams, ...], a row for each.

        If they are single pieces, int64[num_streams], the numbers of these.
        """

    def stream(self, row: Any, seed: Any) -> tuple[Any, Any]:
        """The pieces of a stream in the order of an epoch.

        Args:
            row: Of ``streams``.
            seed: Of the epoch.

        Returns:
            int64[n], their numbers; int64[n], how many records of each were already delivered.
        """

    def tail(self, seed: Any) -> tuple[Any, int, int] | None:
        """The pieces whose records come last, dealt one by one to all workers.

        Returns:
            int64[n], their numbers, or the number of the only piece; the number of their records;
            how many of these were already delivered to this worker.
        """


class ByShard:
    """Each shard, or this worker's part of it, is a stream."""

    is_resumed = is_small = False
    has_single_pieces = True
    begun = 0

    def __init__(
        self, pieces: Sequence[Piece], *, buffer: int, batch_size: int, num_open: int = OPEN_SHARDS
    ) -> None:
        """Divides the shuffle buffer into windows within each open shard and a buffer of chunks.

        Args:
            pieces: The pieces that this worker reads.
            buffer: Records in the shuffle buffer; 0 for stored order.
            batch_size: Batch size of this worker.
            num_open: Maximum number of shards read at a time.
        """
        self.pieces, self.num_streams = pieces, len(pieces)
        self.num_records = sum(piece.take for piece in pieces)
        self.shuffles_streams = buffer > 0
        self.num_open = max(1, min(num_open, self.num_streams)) if buffer else 1
        self.window = max(1, min(_WINDOWS, buffer // 2) // self.num_open)
        self.chunk = self.turn = max(1, min(CHUNK, batch_size // 8, self.window))
        self.buffer = max(0, buffer - self.window * self.num_open)

    def streams(self, seed: Any) -> Any:
        """int64[num_streams], the numbers of their only pieces."""
        del seed
        return tf.range(self.num_streams, dtype=tf.int64)

    def stream(self, row: Any, seed: Any) -> tuple[Any, Any]:
        """See ``Order``."""
        del seed
        return tf.reshape(row, [1]), tf.zeros([1], tf.int64)

    def tail(self, seed: Any) -> None:
        """None: all records are in streams."""


class Dealt:
    """The streams of one worker if records are dealt; see ``Dealing``.

    The tail is in a gap before, between or after the streams, a different one in each epoch. It
    shifts the streams after the gap by its length, so each stream is cut in two ways.
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
            shards: All shards to read.
            worker: Number of the worker, from 0.
            window: Records shuffled at a time within a piece.
            gaps: Whether the tail is elsewhere in each epoch, which requires all workers to have
                the same seed; otherwise it is always after all streams.
            delivered: Records already delivered in this epoch by all workers: the same number by
                each, in whole chunks.
        """
        self._dealing = dealing
        self.num_records = dealing.num_records(worker)
        numbers = range(worker, dealing.num_streams if dealing.length else 0, dealing.workers)
        positions = [dealing.position(number) for number in numbers]
        self.num_streams = self.num_open = len(positions)
        self.chunk, self.window, self.buffer = dealing.chunk, window, 0
        self._delivered, begun = dealing.num_delivered(delivered)
        self.begun = len(range(worker, begun, dealing.workers))
        self.turn = _TURN if dealing.is_one_by_one else dealing.chunk
        tail_delivered = max(0, delivered - dealing.num_streams * dealing.length)
        self._tail_delivered = len(range(worker, tail_delivered, dealing.workers))
        has_gaps = gaps and dealing.tail and dealing.length
        self._num_gaps = dealing.num_streams + 1 if has_gaps else 1
        self.is_resumed = delivered > 0
        least = max(1, min(_PIECE, max(_MIN_PIECE, _PIECE_BYTES // facts.RECORD_BYTES)))
        num_pieces = max(dealing.length // least, min(_FEW_PIECES, dealing.length // _MIN_PIECE))
        num_pieces = 1 if window >= dealing.length else max(1, min(_PIECES, num_pieces))
        pieces: list[Piece] = []
        streams, tails, ends = [], [], ends_of(shards)
        shifts = (0, dealing.tail) if self._num_gaps > 1 else (0,)
        for shift in shifts:
            for position in positions:
                first, begin = len(pieces), position * dealing.length + shift
                cuts = [begin + end for end in _uneven(dealing.length, num_pieces, position)]
                for places in itertools.pairwise(cuts):
                    pieces += cut(shards, ends, *places)
                streams.append((position, first, len(pieces)))
        for gap in range(dealing.num_streams + 1)[-self._num_gaps :]:
            first, begin = len(pieces), gap * dealing.length
            pieces += cut(shards, ends, begin, begin + dealing.tail)
            tails.append((first, len(pieces)))
        self.pieces: Sequence[Piece] = pieces
        self.has_single_pieces = (
            len(pieces) - sum(end - first for first, end in tails) == len(streams)
            and not self.is_resumed
        )
        self.is_small = self.has_single_pieces and dealing.is_small
        self._streams = np.array(streams, np.int64).reshape(len(shifts), self.num_streams, 3)
        """What ``streams`` returns for streams before the gap, and for those behind it."""
        self._tails = np.array(tails, np.int64)
        """int64[gaps, 2]: for each gap, the first piece of the tail, and the end of its pieces."""

    def streams(self, seed: Any) -> Any:
        """int64[num_streams, 3]: position, first piece, and end of the pieces of each.

        If they are single pieces, int64[num_streams], the numbers of these.
        """
        column = 1 if self.has_single_pieces else slice(None)
        if self._num_gaps == 1:
            return tf.constant(self._streams[0, :, column])
        positions = self._streams[0, :, 0 if self.has_single_pieces else slice(1)]
        before, behind = self._streams[..., column]
        gap = tf.math.floormod(seed, self._num_gaps)
        return tf.where(positions >= gap, behind, before)

    def stream(self, row: Any, seed: Any) -> tuple[Any, Any]:
        """See ``Order``."""
        if self.has_single_pieces:
            return tf.reshape(row, [1]), tf.zeros([1], tf.int64)
        position, first, end = tf.unstack(row)
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
        first, end = self._tails[0].tolist()
        if self._num_gaps == 1:
            is_single = end == first + 1
            numbers = tf.constant(first, tf.int64) if is_single else tf.range(*self._tails[0])
            return numbers, self._dealing.tail, self._tail_delivered
        gap = tf.math.floormod(seed, self._num_gaps)
        if (np.diff(self._tails) == 1).all():  # and so they have consecutive numbers
            numbers = gap + first
        else:
            numbers = tf.range(*tf.unstack(tf.gather(self._tails, gap)))
        return numbers, self._dealing.tail, self._tail_delivered


def plan_order(options: Options, shards: Sequence[Shard], delivered: int = 0) -> Order:
    """Decides which records come when, and checks the shards to be read.

    Args:
        options: Of ``dataset``.
        shards: All shards to read.
        delivered: Records that all workers together have delivered in this epoch, if dealt.
    """
    has_copies = options.local_copy is not None  # of shards that the root may have lost
    if not is_dealt(options):
        pieces = divided_pieces(options, shards)
        if options.balance is None:  # which checks the shards that it opens
            # Stored order resumes without the finished shards, and checks those that remain.
            is_resumed = bool(options.read_so_far) and not options.shuffles and options.part[1] == 1
            pieces = locate(
                *(pieces, shards, options.root_folder), may_be_missing=has_copies or is_resumed
            )
        return ByShard(pieces, buffer=options.buffer, batch_size=options.batch_size)
    order = deal_records(options, shards, delivered)
    order.pieces = locate(order.pieces, shards, options.root_folder, may_be_missing=has_copies)
    return order


def deal_records(options: Options, shards: Sequence[Shard], delivered: int = 0) -> Dealt:
    """The order of dealt records; the byte at which each piece starts is not looked up yet."""
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


def is_dealt(options: Options) -> bool:
    """Whether records are dealt from streams; otherwise shards are read from front to back."""
    if not options.shuffles or facts.COMPRESSION != "none":
        return False
    if options.cache == "decoded" or options.service is not None:
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
        is_undealt=(
            options.seed is None
            and options.part[1] == 1
            and options.shuffle in (None, True)
            and options.is_local
        ),
    )


def window_of(options: Options, dealing: Dealing) -> int:
    """Records shuffled at a time within a piece; the same for any number of workers."""
    if options.shuffle is None or options.shuffle is True:
        if dealing.is_small:
            return max(1, dealing.length)
        buffer = min(BUFFER_RECORDS, BUFFER_BYTES // facts.RECORD_BYTES)
        return min(_MAX_WINDOW, max(_WINDOW, buffer // dealing.num_streams))
    return max(1, options.buffer // dealing.num_streams)


def num_batches(options: Options, shards: Sequence[Shard]) -> int:
    """Batches per epoch of this worker, by arithmetic."""
    worker, workers = options.part
    if is_dealt(options):
        # The last worker has the fewest records.
        nums = [deal(options).num_records(workers - 1 if options.equal_steps else worker)]
    else:
        parts = [(i, workers) for i in range(workers)] if options.equal_steps else [options.part]
        divided = [divide(shards, part, even=options.equal_steps) for part in parts]
        nums = [sum(piece.take for piece in pieces) for pieces in divided]
    size = options.batch_size
    return min(num // size if options.drop_remainder else -(-num // size) for num in nums)
