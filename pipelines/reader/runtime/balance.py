"""``balance=``: the classes of an epoch in a given ratio."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import numbers
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts
from .cache import free_memory
from .draw import Draw, num_batches, share, went
from .frames import Inflated, LocalFile, fault_of, fault_of_shard, how_to_verify
from .options import Options, ReadSoFar
from .pipeline import Plan
from .shards import Shard, read_index, read_listed, read_of
from .splits import Split

_Array = npt.NDArray[Any]
_Read = Callable[[int, int], bytes]
"""(offset, number of bytes) -> bytes."""

_AT_ONCE = 4_096
"""Approximate number of places drawn together."""
_OPEN_SHARDS = 256
"""Maximum number of files kept open."""
_LINGER_S = 1.0
"""Seconds that records are kept after their dataset."""
_AGAIN_S = 60.0
"""Seconds that records are kept if they were created after their dataset was gone."""
_MASK = (1 << 64) - 1


def balance_classes(plan: Plan) -> Plan:
    """Balances epochs: classes come in the given ratio, whatever their numbers of records.

    An epoch has as many examples as the split. Each class gets its share of them by weight, exact
    to one example. Its records take turns, in a new order in each turn: within an epoch, no record
    comes more than once more than another of its class. The whole epoch is shuffled. The record at
    each place of an epoch is found by arithmetic, so workers take turns in one order that does not
    depend on their number, and resuming skips exactly what came before. Records without a class,
    and those of classes missing in a dict of weights, never come.

    Each record is read by its position in its shard: exactly its bytes for each example. When it is
    first read, its checksum and its class are checked. From local files in the page cache that
    costs little more than plain reading: 13 to 22 µs of a core for 12 kB, 2 or 3 of them for
    drawing. At a URL, each record is a request of half a megabyte (use ``local_copy=``, of the
    whole split). A GZIP shard is decompressed into memory when it is first read. The index takes
    22 to 25 bytes of memory for each record of the split, and about 0.2 s to read per million.

    Raises:
        ValueError: if the snapshot has no classes, its index is damaged, weights are invalid or
            name a class without records.
    """
    options, part = plan.options, plan.options.part
    is_numbered = options.is_numbered
    make = functools.partial(_Records, plan.shards, options, plan.localize)
    records = make()
    held, num, kept = _WeakRecords(records, make), records.draw.num, _Kept(records)

    def rest(plan: Plan, epoch_seed: Any) -> tf.data.Dataset:
        """The batches of a worker from a place in the epoch on."""
        assert kept, "TensorFlow keeps this function, and with it the records, with the dataset"
        options, first = plan.options, plan.first
        size, (index, count) = options.batch_size, part
        full, start, num_rest = share(options, num - first, size, part)
        more = max(1, _AT_ONCE // size)

        def batches(step: Any) -> Any:
            steps = tf.range(step, tf.minimum(step + more, full))
            starts = first + (steps * count + index) * size
            places = tf.reshape(starts[:, tf.newaxis] + tf.range(size, dtype=tf.int64), [-1])
            return tf.reshape(drawn(places), [-1, size])

        def drawn(places: Any) -> Any:
            return tf.numpy_function(held.drawn, [epoch_seed, places], tf.int64, stateful=False)

        def read(numbers: Any) -> Any:
            kinds = [tf.string, tf.string]
            serialized, fault = tf.numpy_function(held.read, [numbers], kinds, stateful=False)
            with tf.control_dependencies([tf.debugging.Assert(tf.equal(fault, b""), [fault])]):
                serialized = tf.ensure_shape(tf.identity(serialized), numbers.shape)
            return (serialized, numbers) if is_numbered else serialized

        def loose(numbers: Any) -> Any:
            return tf.ensure_shape(numbers, [None])

        batched = tf.data.Dataset.range(0, full, more).map(batches).prefetch(1).unbatch()
        if not options.drop_remainder:
            last = tf.range(first + start, first + start + num_rest, dtype=tf.int64)
            short = tf.data.Dataset.from_tensors(last).take(int(num_rest > 0)).map(drawn)
            batched = batched.map(loose).concatenate(short.map(loose))
        # In order even without a seed: the one short batch must stay last.
        return batched.map(read, num_parallel_calls=options.num_parallel_calls, deterministic=True)

    def rest_of_epoch(read_so_far: ReadSoFar) -> tuple[int, int, int]:
        """The number of finished epochs; the place to begin in the next; its number of batches."""
        over, first = went(options, num, read_so_far)
        return over, first, num_batches(options, num - first, options.batch_size, part)

    return dataclasses.replace(
        plan,
        read_epoch=rest,
        rest_of_epoch=rest_of_epoch,
        num_batches=num_batches(options, num, options.batch_size, part),
        is_numbered=is_numbered,
    )


# Index and classes of the snapshot


def _stored(shards: Sequence[Shard], root: str) -> tuple[_Array, _Array]:
    """The index of a split: int32[n], class of each record; int64[n, 2], offset and length.

    Raises:
        ValueError: if a file of the index is missing or damaged.
    """
    codes, index = [np.empty(0, "<i4")], [np.empty((0, 2), "<i8")]
    for shard in shards:
        path = f"{root}/index/{shard.path.rsplit('/', 1)[-1]}"
        labels = read_listed(f"{path}.labels", 4 * shard.num_stored, shard.labels_sha256, root)
        frames = read_index(shard, root)
        if labels is None or frames is None:
            missing = f"{path}{'.labels' if labels is None else '.idx'}"
            raise ValueError(
                f"There is no {missing}, which balance= needs to find the records of a class: copy "
                "the snapshot's index again, or rebuild the snapshot if it never had one."
            )
        selected = slice(shard.first, shard.first + shard.num_examples)
        stored = np.frombuffer(labels, "<i4")
        codes.append(stored[selected])
        index.append(frames[selected])
        if fault := _fault_of_labels(stored):
            raise ValueError(f"{path}.labels {fault}, of {shard.path}. {how_to_verify(root)}")
    return np.concatenate(codes), np.concatenate(index)


def _fault_of_labels(codes: _Array) -> str:
    """Describes what is wrong with the classes of a shard; "" if nothing."""
    num = len(facts.CLASS_NAMES or ())
    wrong = np.flatnonzero((codes < -1) | (codes >= num))
    if not len(wrong):
        return ""
    return f"has class {codes[wrong[0]]} for record {wrong[0]:,}, expected -1 to {num - 1}"


def _weights(
    split: Split, balance: str | Mapping[str | int, float], counts: Mapping[int, int]
) -> dict[int, float]:
    """Weights by class code, for the classes that the split contains.

    Raises:
        ValueError: as ``weights_of``, or if a class has no records.
    """
    weights = weights_of(balance)
    if not counts:
        raise ValueError(f"balance={balance!r}: no record of {split!r} has a class.")
    if weights is None:
        return dict.fromkeys(counts, 1.0)
    names = facts.CLASS_NAMES or []
    missing = [names[code] for code, weight in weights.items() if weight and code not in counts]
    if missing:
        raise ValueError(
            f"balance: {split!r} has no records of {', '.join(map(repr, missing))}: leave "
            "them out, or give them weight 0."
        )
    return weights


def weights_of(balance: str | Mapping[str | int, float]) -> dict[int, float] | None:
    """The weights by class code; None if all classes have the same weight.

    Raises:
        ValueError: if there are no classes, or a weight is invalid or of a class that does not
            exist.
    """
    if facts.LABEL is None or facts.FEATURES[facts.LABEL]["kind"] != "class_label":
        raise ValueError(f"balance= needs a label that is a class, and {facts.NAME} has {_label()}")
    if isinstance(balance, str) and balance == "uniform":
        return None
    if not hasattr(balance, "items"):
        raise ValueError(f'balance={balance!r} must be "uniform" or {{class: weight}}.')
    weights = dict[int, float]()
    names = facts.CLASS_NAMES or []
    codes = {name: code for code, name in enumerate(names)}
    for key, weight in balance.items():
        code = _code_of(key, codes)
        if code in weights:
            raise ValueError(f"balance names class {names[code]!r} twice.")
        weights[code] = _checked_weight(key, weight)
    if not any(weights.values()):
        raise ValueError(f"balance={balance!r}: no class has a weight above 0.")
    return weights


def _label() -> str:
    """What the label is, and how it becomes a class."""
    name = facts.LABEL
    if name is None:
        return "none: name a class in the recipe, ss.Recipe(label=…)."
    feature = facts.FEATURES[name]
    kind = feature.get("dtype", feature["kind"]) + str(feature.get("shape", ""))
    if kind == "string":
        how = f'{{"{name}": ss.ClassLabel(["died", "lived"])}}'
    else:
        how = f'{{"{name}": ss.ClassLabel({{0: "died", 1: "lived"}})}}'
    if feature.get("shape"):
        return f"{name!r}, {kind}: several values have no one class."
    return (
        f"{name!r}, {kind}: declare its classes in the recipe, {how}, in types= of the source or "
        "in features=."
    )


def _code_of(key: Any, codes: Mapping[str, int]) -> int:
    """The code of the class with this name; an integer is a name as well, not a code."""
    is_name = isinstance(key, str | numbers.Integral) and not isinstance(key, bool)
    if not is_name:
        raise ValueError(f"balance: {key!r} must be the name of a class.")
    if str(key) in codes:
        return codes[str(key)]
    names = [*codes]
    few = ", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else "")
    is_code = not isinstance(key, str) and 0 <= key < len(names)
    why = f" (class {key} is {names[key]!r}: give its name)" if is_code else ""
    raise ValueError(f"balance: there is no class {str(key)!r}, only {few}{why}.")


def _checked_weight(key: Any, weight: Any) -> float:
    is_number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
    if not is_number or not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"balance: the weight of {key!r} is {weight!r}, expected 0 or more.")
    return float(weight)


class _Kept:
    """Keeps records as long as it exists, and a little longer.

    TensorFlow releases the Python objects of a dataset before it stops the iterator's threads,
    which may begin to read once more.
    """

    def __init__(self, records: _Records) -> None:
        # At exit nothing needs to be kept.
        weakref.finalize(self, _keep, records, _LINGER_S).atexit = False


def _keep(records: _Records, seconds: float) -> None:
    timer = threading.Timer(seconds, lambda _: None, [records])
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no thread can start at exit
        timer.start()


class _WeakRecords:
    """Weak reference to records, for functions that TensorFlow never releases (``numpy_function``).

    The records, and their open files, live as long as the Python objects of the dataset. If only
    TensorFlow's part of a dataset is left and is still read, they are created again, once a minute.
    """

    def __init__(self, records: _Records, make: Callable[[], _Records]) -> None:
        self._records, self._make = weakref.ref(records), make
        self._lock = threading.Lock()

    def drawn(self, epoch_seed: Any, places: _Array) -> _Array:
        """The records at these places of an epoch."""
        return self._found().draw(epoch_seed, places)

    def read(self, numbers: _Array) -> tuple[_Array, bytes]:
        """The serialized records, and an error message, if any."""
        return self._found().read(numbers)

    def _found(self) -> _Records:
        records = self._records()
        if records is None:
            with self._lock:
                records = self._records()
                if records is None:
                    records = self._make()
                    self._records = weakref.ref(records)
                    _keep(records, _AGAIN_S)
        return records


class _Records:
    """Reads the serialized examples of a split and draws their order; thread-safe."""

    def __init__(
        self,
        shards: Sequence[Shard],
        options: Options,
        localize: Callable[[str], str],
    ) -> None:
        split, balance = options.split, options.balance
        assert balance is not None
        weights_of(balance)
        codes, index = _stored(shards, options.root_folder)
        classes, counts = np.unique(codes[codes >= 0], return_counts=True)
        weights = _weights(
            split, balance, dict(zip(classes.tolist(), counts.tolist(), strict=True))
        )
        self.draw = Draw.of(codes, weights)
        self.num_bytes = int(index[:, 1].sum())
        self._shards, self._localize, self._root = shards, localize, options.root_folder
        self._starts = np.cumsum([0, *(shard.num_examples for shard in shards)])
        self._index, self._unchecked = index, np.ones(len(index), bool)
        self._codes = codes.astype(np.min_scalar_type(-max(1, len(facts.CLASS_NAMES or ()))))
        self._entries = {code: _class_entry(code) for code in self.draw.codes.tolist()}
        self._read: dict[int, _Read] = {}
        self._locks = [threading.Lock() for _ in shards]
        room = free_memory()
        if facts.COMPRESSION == "gzip" and self.num_bytes > room:
            text = (
                f"balance= holds all of {split!r} in memory, since its shards are GZIP: "
                f"{self.num_bytes:,} bytes, but only {room:,} are free. Build the snapshot with "
                'compression="none".'
            )
            warnings.warn(text, ResourceWarning, stacklevel=5)

    def read(self, numbers: _Array) -> tuple[_Array, bytes]:
        """Returns object[n], the records as bytes; and an error message, b"" if there is none.

        (It does not raise: threads of TensorFlow that raise at the same time may crash Python 3.11,
        which parses the lines of their tracebacks.)
        """
        places = numbers % len(self._index)
        shards = np.searchsorted(self._starts, places, side="right") - 1
        records = np.full(len(places), b"", object)
        frames = zip(places.tolist(), shards.tolist(), self._index[places].tolist(), strict=True)
        for i, (place, shard, (offset, length)) in enumerate(frames):
            try:
                read = self._read.get(shard) or self._open(shard)
                records[i], fault = self._one(read, place, offset, length)
            except (OSError, ValueError, tf.errors.OpError) as error:
                fault = f"cannot be read: {error}"
            if fault:
                number = place - int(self._starts[shard]) + self._shards[shard].first
                where = f"{self._shards[shard].path}, record {number:,}"
                return records, (
                    f"{where} at byte {offset:,}, {fault}. Copy or build it again. "
                    f"{how_to_verify(self._root)}"
                ).encode()
        return records, b""

    def _one(self, read: _Read, place: int, offset: int, length: int) -> tuple[bytes, str]:
        """One record, and what is wrong with it, if anything; checked on first read."""
        if self._unchecked[place]:
            frame = read(offset, length)
            fault = fault_of(frame, length, check=True)
            code = int(self._codes[place])
            if not fault and self._entries[code] not in frame:
                name = (facts.CLASS_NAMES or [])[code]
                fault = f"is not of class {name}, as the index of the shard says"
            self._unchecked[place] = bool(fault)
            return frame[12:-4], fault
        content = read(offset + 12, length - 16)
        return content, "" if len(content) == length - 16 else "is truncated"

    def _open(self, shard: int) -> _Read:
        with self._locks[shard]:
            if shard in self._read:
                return self._read[shard]
            read = self._opened(shard)
            self._read[shard] = read
            if facts.COMPRESSION != "gzip":
                for old in [*self._read][:-_OPEN_SHARDS]:
                    self._read.pop(old, None)  # a file is closed when nothing refers to it
            return read

    def _opened(self, number: int) -> _Read:
        shard = self._shards[number]
        path = self._localize(shard.path)
        read: _Read
        if "://" in path:
            file = tf.io.gfile.GFile(path, "rb")
            size, read = file.size(), _locked(read_of(file))
        else:
            file = None
            size, read = os.path.getsize(path), LocalFile(path).read
        if size != shard.num_bytes:
            raise ValueError(f"it has {size:,} bytes, expected {shard.num_bytes:,}")
        if fault := fault_of_shard(read, size, facts.COMPRESSION, shard.checksum):
            raise ValueError(f"it {fault}")
        if facts.COMPRESSION == "none":
            return read
        if file is not None:
            file.seek(0)
        mine = slice(self._starts[number], self._starts[number + 1])
        content = Inflated(path, file).read(0, int(self._index[mine][-1].sum()))
        return lambda offset, size: content[offset : offset + size]


def _locked(read: _Read) -> _Read:
    """The same function, safe for several threads."""
    lock = threading.Lock()

    def locked(offset: int, size: int) -> bytes:
        with lock:
            return read(offset, size)

    return locked


def _class_entry(code: int) -> bytes:
    """The bytes with which a serialized example states its class."""
    key, value = str(facts.LABEL).encode(), _varint(code)
    for tag in (b"\x0a", b"\x1a", b"\x12"):  # a packed list; int64_list; the feature of a name
        value = tag + _varint(len(value)) + value
    return b"\x0a" + _varint(len(key)) + key + value


def _varint(value: int) -> bytes:
    """Encodes a number as a protobuf varint."""
    digits = bytearray()
    while value >= 128:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])
