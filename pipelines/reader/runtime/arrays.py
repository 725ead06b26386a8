# [header]
"""The reader without TensorFlow, kept as a module: ``readers.py`` makes ``reader_numpy.py`` of it.

Emission replaces this header and the constants, puts ``reader_frames_template.py`` and
``reader_numpy_examples.py`` behind it, and leaves out a section from ``# [if FACT]`` to its
``# [end]`` where the fact does not hold for the snapshot. As it stands, it describes a made-up
snapshot with a feature of every kind.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import operator
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from .reader_frames_template import Inflated, LocalFile, fault_of
from .reader_numpy_examples import Parser

# [end]

# [constants]
FORMAT_VERSION = 1
NAME = "every_kind"
FINGERPRINT = "0000000000000000"
NUM_EXAMPLES: dict[str, int] = {"train": 80, "validation": 10, "test": 10}
LABEL: str | None = "label"
CLASS_NAMES: list[str] | None = ["left", "right"]
FEATURES: dict[str, dict[str, Any]] = {
    "at.boxes": {"kind": "bounding_boxes", "dtype": "float32", "shape": [None, 4]},
    "at.time": {"kind": "timestamp", "dtype": "int64", "unit": "s"},
    "image": {"kind": "image", "height": 8, "width": 8, "channels": 3, "storage": "raw"},
    "label": {"kind": "class_label", "dtype": "int64", "names": CLASS_NAMES},
    "photo": {"kind": "image", "height": None, "width": None, "channels": 3, "storage": "encoded"},
    "scan": {"kind": "image", "height": None, "width": None, "channels": 1, "storage": "raw"},
    "sound": {"kind": "audio", "dtype": "int16", "shape": [None], "packed": True, "rate": None},
    "words": {
        "kind": "tensor",
        "dtype": "string",
        "shape": [None],
        "optional": True,
        "present": "words_present",
    },
}
SIDES: dict[str, list[str]] = {"scan": ["scan/height", "scan/width"], "sound": ["sound/rate"]}
STRUCTS: list[str] = ["at"]
COMPRESSION = "none"
RECORD_BYTES = 20_000
# [end]

Read = Callable[[int, int], bytes]  # (where, how many bytes) -> bytes

_BUFFER_BYTES = 16 << 20  # memory of the default shuffle buffer …
_BUFFER_RECORDS = 16_384  # … which never holds more records than this
_READ_BYTES = 256 << 10  # one read of a stream …
_READ_RECORDS = 256  # … which never takes more records than this
_OPEN_SHARDS = 256  # files that are kept open, at most


class DamagedShardError(ValueError):
    """A shard is not as it was written; the message names the file, the record and the byte."""


class _Split:
    """What both datasets are made of: a split's shards, and the way from bytes to values."""

    _in_any_order = False  # whether records are read so

    def __init__(self, split: str, **options: Any) -> None:
        if split not in NUM_EXAMPLES:
            raise ValueError(f"{NAME} has no split {split!r}, only {', '.join(NUM_EXAMPLES)}.")
        root = os.path.dirname(__file__) if options["root"] is None else os.fspath(options["root"])
        options["root"] = root if "://" in root else os.path.abspath(root)
        self._split, self._options, self._check = split, options, options["check"]
        self._parse = Parser(
            FEATURES,
            sides=SIDES,
            structs=STRUCTS,
            columns=options["columns"],
            decode=options["decode"],
        )
        entries = _entries(split, options["root"])
        self._shards = [_Shard(options["root"], entry) for entry in entries]

    def __reduce__(self) -> tuple[Any, ...]:
        """Only the arguments travel to another process: no open file, no index."""
        return functools.partial(type(self), self._split, **self._options), ()

    def __repr__(self) -> str:
        """The same for equal data: Grain compares it when it restores a checkpoint."""
        columns = self._options["columns"]
        return f"{type(self).__name__}({NAME!r}, {FINGERPRINT}, {self._split!r}, {columns=})"

    def _read(
        self, shard: _Shard, start: int, stop: int, *, files: dict[str, Read]
    ) -> list[tuple[_Shard, int, bytes]]:
        """Some records of a shard: (shard, number, serialized); opens a file that is not open."""
        read = files.get(shard.path)
        if read is None:
            most = _OPEN_SHARDS
            # [if gzip]
            most = len(self._shards) if self._in_any_order else 1
            # [end]
            if len(files) >= most:
                files.clear()  # a file is closed when nothing refers to it
            read = files[shard.path] = shard.open(in_any_order=self._in_any_order)
        return [
            (shard, number, serialized)
            for number, serialized in enumerate(shard.read(read, start, stop, self._check), start)
        ]

    def _values(self, shard: _Shard, number: int, serialized: bytes) -> dict[str, Any]:
        try:
            return self._parse(serialized)
        except (ValueError, IndexError) as error:
            raise DamagedShardError(f"{shard.place(number)} is no example: {error}.") from error


class Records(_Split):
    """The records of one split by their number, in stored order: a sequence of dicts.

    ``torch.utils.data.DataLoader(records, …)`` and ``grain.MapDataset.source(records)`` take it as
    it is. Threads may read from it at once; it travels to worker processes by its arguments, and
    each opens the files that it reads. It holds 16 bytes for each record of the shards it has read.
    # [if gzip]
    GZIP cannot be read at random: a shard is inflated when it is first read and stays in memory,
    in each process. Where that is too much, take ``Stream``.
    # [end]

    A record is a dict by feature name: images ``uint8[height, width, channels]`` (encoded ones the
    ``bytes`` of their file, or what ``decode`` makes of them), strings ``bytes``, other scalars
    NumPy scalars, all else arrays ``dtype[*shape]`` of the record's own shape (object arrays of
    bytes where the dtype is string). Sounds are float32 in [-1, 1]; where rates differ,
    ``<name>/rate`` gives each one's, in Hz. bfloat16, which NumPy has not, is float32. Where there
    is no value: the default in ``FEATURES``, or length zero; beside a feature that has a mask,
    ``<name>_present`` says whether there is one. The fields of a struct stand in a dict of their
    own. Arrays are the caller's to change.
    """

    _in_any_order = True

    def __init__(
        self,
        split: str,
        *,
        root: str | os.PathLike[str] | None = None,
        check: bool = True,
        columns: list[str] | None = None,
        decode: Callable[[bytes, int], Any] | None = None,
    ) -> None:
        """Reads the manifest; no shard yet.

        Args:
            split: One of ``NUM_EXAMPLES``.
            root: Local folder of the snapshot; None is the folder of this file.
            check: Compare each record's checksum (CRC32C): about 1 microsecond for 12 kB where
                google-crc32c is installed, 40 where it is not.
            columns: Names of the features, or structs, to parse; None is all.
            decode: Called with an encoded image's content and its number of channels:
                ``decode_image``, which uses Pillow, or your own (a module's function, if
                processes are spawned). None gives the content.

        Raises:
            ValueError: if an argument, or the snapshot under ``root``, is none that can be read.
        """
        options: dict[str, Any] = {"root": root, "check": check, "columns": columns}
        super().__init__(split, decode=decode, **options)
        self._files: dict[str, Read] = {}
        self._ends = list(itertools.accumulate(shard.num_examples for shard in self._shards))

    def __len__(self) -> int:
        """The number of records."""
        return NUM_EXAMPLES[self._split]

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """The record of this number; negative ones count from the end.

        Raises:
            IndexError: if there is none of this number.
            DamagedShardError: if its bytes are not as they were written.
        """
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"{self._split} has {len(self)} records, none of number {number}")
        number %= len(self)
        at = bisect.bisect_right(self._ends, number)
        shard = self._shards[at]
        number -= self._ends[at] - shard.num_examples
        return self._values(*self._read(shard, number, number + 1, files=self._files)[0])


class Stream(_Split):
    """The records of one split one after another, each once: dicts as ``Records`` gives them.

    In a worker of ``torch.utils.data.DataLoader`` it gives that worker's share, so that all
    workers together give each record once. Import torch before you make one: a DataLoader takes
    it for an ``IterableDataset`` then.
    """

    def __init__(
        self,
        split: str,
        *,
        shuffle: bool | int | None = None,
        seed: int | None = None,
        epoch: int = 0,
        shard: tuple[int, int] = (0, 1),
        root: str | os.PathLike[str] | None = None,
        check: bool = True,
        columns: list[str] | None = None,
        decode: Callable[[bytes, int], Any] | None = None,
    ) -> None:
        """Reads the manifest; no shard yet. ``root`` and what follows are as in ``Records``.

        Args:
            split: One of ``NUM_EXAMPLES``.
            shuffle: Another order in every pass; None means for "train" only. Pieces of 256 KiB
                (of GZIP: whole shards) are read in random order, through a buffer of records:
                True holds 16 MiB, at most 16,384 records, in each worker; a number holds so
                many. False gives the stored order.
            seed: Fixes the order for each epoch, part and number of workers.
            epoch: Which order of this seed; ``set_epoch`` changes it.
            shard: (index, count): one of ``count`` parts that together hold every record once,
                alike but for one record; workers share their part among themselves. With GZIP,
                a part that begins within a shard inflates what lies before it.
            root: Local folder of the snapshot.
            check: Compare checksums.
            columns: What to parse.
            decode: What to make of encoded images.

        Raises:
            ValueError: if an argument, or the snapshot under ``root``, is none that can be read.
        """
        size = split == "train" if shuffle is None else shuffle
        if size is True:
            size = max(1, min(_BUFFER_RECORDS, _BUFFER_BYTES // RECORD_BYTES))
        if size < 0:
            raise ValueError(f"shuffle={shuffle} must be True, False or a number of records.")
        if not 0 <= shard[0] < shard[1]:
            raise ValueError(f"shard={shard} must be (index, count), 0 <= index < count.")
        options: dict[str, Any] = {"shuffle": int(size), "seed": seed, "epoch": epoch}
        options |= {"shard": shard, "root": root, "check": check, "columns": columns}
        super().__init__(split, decode=decode, **options)
        if (torch_data := sys.modules.get("torch.utils.data")) is not None:
            torch_data.IterableDataset.register(Stream)

    def __len__(self) -> int:
        """The number of records in this part, over all its workers.

        Each worker ends with a short batch of its own, so a DataLoader of several may give a few
        batches more than it says.
        """
        return sum(stop - start for _, start, stop in self._ranges(*self._options["shard"]))

    def set_epoch(self, epoch: int) -> None:
        """Takes the order of another epoch from the next pass on.

        Workers that persist keep the epoch that they were started with.
        """
        self._options["epoch"] = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """One pass: over the share of this worker, in a worker of torch's.

        Raises:
            DamagedShardError: where bytes are not as they were written; nothing is passed over.
        """
        index, count = self._options["shard"]
        torch_data = sys.modules.get("torch.utils.data")
        worker = None if torch_data is None else torch_data.get_worker_info()
        if worker is not None:
            index, count = index * worker.num_workers + worker.id, count * worker.num_workers
        seed, epoch = self._options["seed"], self._options["epoch"]
        order = random.Random(None if seed is None else f"{seed} {epoch} {index} {count}")
        for found in self._ordered(self._ranges(index, count), order):
            yield self._values(*found)

    def _ranges(self, index: int, count: int) -> list[tuple[_Shard, int, int]]:
        """The ranges of records between two cuts in the stored order: (shard, first, end)."""
        total = NUM_EXAMPLES[self._split]
        first, last = total * index // count, total * (index + 1) // count
        ranges, start = [], 0
        for shard in self._shards:
            skip, end = max(first - start, 0), min(last - start, shard.num_examples)
            if skip < end:
                ranges.append((shard, skip, end))
            start += shard.num_examples
        return ranges

    def _ordered(
        self, ranges: list[tuple[_Shard, int, int]], order: random.Random
    ) -> Iterator[tuple[_Shard, int, bytes]]:
        """The records of the ranges: through the shuffle buffer, if there is one."""
        step = max(1, min(_READ_RECORDS, _READ_BYTES // RECORD_BYTES))
        pieces = [
            [(shard, first, min(first + step, stop)) for first in range(start, stop, step)]
            for shard, start, stop in ranges
        ]
        size, files = self._options["shuffle"], dict[str, Read]()
        if size and COMPRESSION != "gzip":
            pieces = [[piece] for of_shard in pieces for piece in of_shard]
        if size:
            order.shuffle(pieces)
        held: list[tuple[_Shard, int, bytes]] = []
        for piece in itertools.chain.from_iterable(pieces):
            for found in self._read(*piece, files=files):
                if len(held) < size:
                    held.append(found)
                    continue
                if size:
                    at = int(order.random() * size)
                    found, held[at] = held[at], found
                yield found
        order.shuffle(held)
        yield from held


class _Shard:
    """One shard: its file, and where each record lies in it."""

    def __init__(self, folder: str, entry: dict[str, Any]) -> None:
        self.path = os.path.join(folder, entry["file"])
        self.num_examples: int = entry["num_examples"]
        self._num_bytes: int = entry["num_bytes"]
        self._index_path = os.path.join(folder, "index", f"{entry['file']}.idx")

    @functools.cached_property
    def _index(self) -> npt.NDArray[np.uint64]:
        """uint64[num_examples, 2]: offset and length of each frame, uncompressed."""
        content = b""
        if os.path.exists(self._index_path):
            with open(self._index_path, "rb") as file:
                content = file.read()
        if len(content) != 16 * self.num_examples:
            raise DamagedShardError(
                f"{self._index_path} has {len(content):,} bytes, expected 16 for each of "
                f"{self.num_examples:,} records. Copy it again."
            )
        return np.frombuffer(content, "<u8").reshape(-1, 2)

    def place(self, number: int) -> str:
        """Which record, for messages."""
        return f"{self.path}, record {number:,} at byte {int(self._index[number, 0]):,},"

    def read(self, read: Read, start: int, stop: int, check: bool) -> list[bytes]:
        """The serialized examples of these records, by one read."""
        frames = self._index[start:stop].tolist()
        begin, end = frames[0][0], sum(frames[-1])
        content = read(begin, end - begin)
        found = []
        for number, (offset, length) in enumerate(frames, start):
            frame = content[offset - begin : offset - begin + length]
            if fault := fault_of(frame, length, check):
                raise DamagedShardError(f"{self.place(number)} {fault}. Copy or build it again.")
            found.append(frame[12:-4])
        return found

    def open(self, *, in_any_order: bool) -> Read:
        """The way to the file's bytes, uncompressed; what is GZIP has to lie in memory for it."""
        size = os.path.getsize(self.path) if os.path.exists(self.path) else 0
        if size != self._num_bytes:
            raise DamagedShardError(
                f"{self.path} has {size:,} bytes, expected {self._num_bytes:,}: from byte "
                f"{min(size, self._num_bytes):,} on it is not as it was written. Copy it again."
            )
        # [if gzip]
        if COMPRESSION == "gzip":
            inflated = Inflated(self.path)
            if not in_any_order:
                return inflated.read
            content = inflated.read(0, int(self._index[-1:].sum()))
            return lambda offset, size: content[offset : offset + size]
        # [end]
        return LocalFile(self.path).read


def _entries(split: str, folder: str) -> list[dict[str, Any]]:
    """The split's shards in stored order, as the manifest lists them."""
    path = os.path.join(folder, "manifest.json")
    if not os.path.exists(path):
        raise ValueError(
            f"There is no file {path}. Give the local folder of {NAME} {FINGERPRINT} as root=; "
            "copy to a disk what lies in a store."
        )
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        found = (manifest["fingerprint"], manifest["format_version"])
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} is no manifest ({error!r}): copy or build it again.") from None
    if found != (FINGERPRINT, FORMAT_VERSION):
        raise ValueError(
            f"{path} is of fingerprint {found[0]} (format {found[1]}), but this reader reads "
            f"{FINGERPRINT} (format {FORMAT_VERSION}) only. Use the reader_numpy.py that lies in "
            f"{folder}, or give the folder of {FINGERPRINT} as root=."
        )
    shards: list[dict[str, Any]] = manifest["splits"][split]["shards"]
    return shards
