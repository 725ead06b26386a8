"""Reads the snapshot without TensorFlow: ``Records`` by number, ``Stream`` sequentially.

    from reader import arrays

    loader = DataLoader(arrays.Records("train"), batch_size=128, shuffle=True, num_workers=4)
    loader = DataLoader(arrays.Stream("train", seed=1), batch_size=128, num_workers=4)
    source = grain.MapDataset.source(arrays.Records("train"))

Requires NumPy and a local copy of the snapshot. With google-crc32c installed, checksums cost next
to nothing.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import operator
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from . import facts
from .examples import Parser, decode_image
from .frames import (
    Inflated,
    LocalFile,
    fault_of,
    fault_of_shard,
    how_to_verify,
    own_folder,
    read_manifest,
)
from .splits import Section, Split, check_not_empty, select
from .targets import Supervised, ask, warn_of_fills

__all__ = ["DamagedShardError", "Records", "Stream", "decode_image", "process_shard"]

_BUFFER_BYTES = 16 << 20
"""Memory of the default shuffle buffer …"""
_BUFFER_RECORDS = 16_384
"""… and maximum number of records in it."""
_PIECE_BYTES = 256 << 10
"""Size of a piece of a stream, which is read at once …"""
_PIECE_RECORDS = 256
"""… and maximum number of records in it."""
_READ_BYTES = 4 << 20
"""Maximum size of one read of adjacent records."""
_OPEN_SHARDS = 256
"""Maximum number of files kept open."""
_BLOCK = 4_096
"""Number of records of a stream whose order is computed at once …"""
_SKIPPED_BLOCK = 1 << 20
"""… and of those already yielded, when a pass is resumed."""

_Read = Callable[[int, int], bytes]
"""(offset, how many bytes) -> bytes"""
_Positions = npt.NDArray[np.int64]
"""Numbers of records in the stored order of their split."""


class DamagedShardError(ValueError):
    """A shard or its index is damaged; the message names the file, the record and the byte."""


def process_shard() -> tuple[int, int]:
    """(rank, number of processes) of this process, for ``shard=``.

    From ``torch.distributed`` once its process group is initialized; before that, from the
    environment variables RANK and WORLD_SIZE, which torchrun sets; otherwise (0, 1). Call it in the
    training process: DataLoader workers receive the result with their dataset.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class _Record(NamedTuple):
    shard: _Shard
    number: int
    """Number within the shard."""
    serialized: bytes


class _Split:
    """Common base of both datasets: the shards to read, and the parser of records."""

    _reads_any_order = False

    def __init__(self, split: Split, shard: tuple[int, int], **options: Any) -> None:
        self._total = select(split).num_examples
        try:
            index, count = map(operator.index, shard)
        except (TypeError, ValueError):
            raise ValueError(f"shard={shard!r} must be (index, count), two integers.") from None
        if not 0 <= index < count:
            raise ValueError(f"shard={shard} must be (index, count) with 0 <= index < count.")
        root = options["root"]
        root = own_folder() if root is None else os.fspath(root)
        options |= {"shard": shard, "root": root if "://" in root else os.path.abspath(root)}
        self._split, self._options = split if isinstance(split, str) else [*split], options
        self._asked = ask(options["columns"], options["as_supervised"], options["masks"])
        self._lengths = self._asked.lengths
        warn_of_fills(self._asked, options["masks"])
        self._parse = Parser(self._asked.features, sides=facts.SIDES, decode=options["decode"])
        self._shards = _list_shards(split, options["root"])
        self._ends = [*itertools.accumulate(shard.num_examples for shard in self._shards)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Only the arguments are pickled: no open files, no index."""
        return functools.partial(type(self), self._split, **self._options), ()

    def __repr__(self) -> str:
        """Equal for equal data: Grain compares it when it restores a checkpoint."""
        columns, shard = self._options["columns"], self._options["shard"]
        part = "" if shard[1] == 1 else f", {shard=}"
        for option, default in (("as_supervised", False), ("masks", None)):
            value = self._options[option]
            part += "" if value is default else f", {option}={value!r}"
        name = type(self).__name__
        return f"{name}({facts.NAME!r}, {facts.FINGERPRINT}, {self._split!r}, {columns=}{part})"

    def _read(self, positions: _Positions, files: dict[str, _Read]) -> Iterator[_Record]:
        """The records at these positions, in this order; adjacent ones of a shard in one read."""
        most = max(1, _READ_BYTES // facts.RECORD_BYTES)
        numbers = np.searchsorted(self._ends, positions, side="right")
        is_break = (np.diff(positions) != 1) | (np.diff(numbers) != 0)
        firsts = [0, *(np.flatnonzero(is_break) + 1).tolist()] if len(positions) else []
        begins = zip(numbers[firsts].tolist(), positions[firsts].tolist(), strict=True)
        lasts = [*firsts[1:], len(positions)]
        for (at, begin), first, last in zip(begins, firsts, lasts, strict=False):
            shard = self._shards[at]
            start = begin - self._ends[at] + shard.end
            stop = start + last - first
            while start < stop:
                contents = self._read_shard(shard, start, min(stop, start + most), files)
                for number, content in enumerate(contents, start):
                    yield _Record(shard, number, content)
                start += most

    def _read_shard(
        self, shard: _Shard, start: int, stop: int, files: dict[str, _Read]
    ) -> list[bytes]:
        """Consecutive records of a shard, in one read; opens the file if necessary."""
        read = files.get(shard.path)
        if read is None:
            most = _OPEN_SHARDS
            if facts.COMPRESSION == "gzip":
                most = len(self._shards) if self._reads_any_order else 1
            if len(files) >= most:
                files.clear()  # a file is closed when nothing refers to it
            read = files[shard.path] = shard.open(any_order=self._reads_any_order)
        return shard.read(read, start, stop, self._options["check"])

    def _values(self, record: _Record) -> Any:
        try:
            values = self._parse(record.serialized)
            for length, name in self._lengths.items():
                values[length] = np.int64(len(values[name]))
            return self._asked.arrange(values)
        except (ValueError, IndexError) as error:
            raise record.shard.damaged(f"is not a valid example: {error}", record.number) from error


class Records(_Split):
    """The records of one split by number, in stored order: a sequence of dicts.

    Pass it directly to ``torch.utils.data.DataLoader(records, …)`` or
    ``grain.MapDataset.source(records)``. Threads may read from it concurrently. It is pickled as
    its arguments, and each worker process opens the files that it reads. It keeps 16 bytes in
    memory for each record of the shards that it has read.

    GZIP does not support random access: a shard is decompressed when it is first read and stays in
    memory, in each process. If that is too much, use ``Stream``.

    A record is a dict by feature name: images are ``uint8[height, width, channels]`` (encoded ones
    the ``bytes`` of their file, or the result of ``decode``), strings ``bytes``, other scalars
    NumPy scalars, all others arrays ``dtype[*shape]`` of the record's own shape (object arrays of
    bytes for strings). Sounds are float32 in [-1, 1]; where rates differ, ``<name>/rate`` gives
    the rate in Hz. bfloat16, which NumPy lacks, becomes float32. A missing value is the default in
    ``FEATURES``, or has length zero; for a feature with a mask, ``<name>_present`` says whether
    there is a value. The fields of a struct are in a nested dict. With ``as_supervised`` it is
    (inputs, targets[, weights]) instead. The caller may modify the arrays.
    """

    _reads_any_order = True

    def __init__(
        self,
        split: Split,
        *,
        shard: tuple[int, int] = (0, 1),
        root: str | os.PathLike[str] | None = None,
        check: bool = True,
        columns: Sequence[str] | None = None,
        as_supervised: Supervised = False,
        masks: bool | None = None,
        decode: Callable[[bytes, int], Any] | None = None,
    ) -> None:
        """Reads the manifest, but no shard yet.

        Args:
            split: As in ``dataset``: a split, a part such as "train[:10%]", or a list of these.
            shard: (index, count): one of ``count`` parts that together contain every record once,
                and differ by at most one record; ``process_shard()`` for one part per process.
            root: Local folder of the snapshot; None is the folder that contains this package.
            check: Verify each record's checksum (CRC32C): about 1 microsecond for 12 kB with
                google-crc32c installed, 40 without.
            columns: As in ``dataset``: names of features, structs, masks, rates and lengths.
            as_supervised: As in ``dataset``: (inputs, targets[, weights]) instead of a dict.
            masks: As in ``dataset``.
            decode: Called with an encoded image's content and its number of channels. Pass
                ``decode_image``, which uses Pillow, or your own function (defined in a module, if
                processes are spawned). None leaves the content as it is.

        Raises:
            ValueError: if an argument is invalid, or the snapshot under ``root`` cannot be read.
        """
        super().__init__(
            *(split, shard),
            root=root,
            check=check,
            columns=columns,
            as_supervised=as_supervised,
            masks=masks,
            decode=decode,
        )
        self._first, self._end = _cuts(self._total, shard)
        self._files: dict[str, _Read] = {}

    def __len__(self) -> int:
        """The number of records."""
        return self._end - self._first

    def __getitem__(self, index: SupportsIndex) -> Any:
        """The record with this number; negative numbers count from the end.

        Raises:
            IndexError: if there is no record with this number.
            DamagedShardError: if the shard or its index is damaged.
        """
        position = self._position(index)
        at = bisect.bisect_right(self._ends, position)
        shard = self._shards[at]
        number = position - self._ends[at] + shard.end
        (content,) = self._read_shard(shard, number, number + 1, self._files)
        return self._values(_Record(shard, number, content))

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """The records with these numbers, in this order; torch's DataLoader calls it for a batch.

        They are read in stored order, adjacent records of a shard in one read.

        Raises:
            IndexError: if there is no record with one of the numbers.
            DamagedShardError: if a shard or its index is damaged.
        """
        numbers = np.array([*map(operator.index, indices)], np.int64)
        if (odd := np.flatnonzero((numbers < -len(self)) | (numbers >= len(self)))).size:
            self._position(indices[odd[0]])  # raises
        positions = self._first + numbers % max(1, len(self))
        order = np.argsort(positions, kind="stable")
        records: list[Any] = [{}] * len(positions)
        for at, record in zip(
            order.tolist(), self._read(positions[order], self._files), strict=True
        ):
            records[at] = self._values(record)
        return records

    def _position(self, index: SupportsIndex) -> int:
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"{self!r} has {len(self)} records, no number {number}")
        return self._first + number % len(self)


class Stream(_Split):
    """Iterates over the records of one split, each once; dicts as in ``Records``.

    In a worker of ``torch.utils.data.DataLoader`` it yields that worker's share: all workers
    together yield each record once. Import torch before you create a stream; a DataLoader then
    recognises it as an ``IterableDataset``.

    ``state_dict()`` returns the position of the current pass. ``load_state_dict()`` makes the next
    pass resume there, without reading again what was already yielded: in this process, or in each
    worker of torchdata's ``StatefulDataLoader``, which calls both.
    """

    def __init__(
        self,
        split: Split,
        *,
        shuffle: bool | int | None = None,
        seed: int | None = None,
        epoch: int = 0,
        shard: tuple[int, int] | None = None,
        equal_steps: bool = False,
        root: str | os.PathLike[str] | None = None,
        check: bool = True,
        columns: Sequence[str] | None = None,
        as_supervised: Supervised = False,
        masks: bool | None = None,
        decode: Callable[[bytes, int], Any] | None = None,
    ) -> None:
        """Reads the manifest, but no shard yet. For ``root`` and later arguments see ``Records``.

        Args:
            split: As in ``dataset``: a split, a part such as "train[:10%]", or a list of these.
            shuffle: Whether each pass has a new order; None: only for "train", its parts, and lists
                of folds. Pieces of 256 KiB (with GZIP: whole shards) are read in random order,
                through a shuffle buffer. True buffers 16 MiB, at most 16,384 records, in each
                worker; an integer sets the number of records. False yields the stored order.
            seed: Fixes the order for each epoch, part and number of workers.
            epoch: Selects the order of this seed; ``set_epoch`` changes it.
            shard: (index, count): one of ``count`` parts that together contain every record once,
                and differ by at most one record; ``process_shard()`` for one part per process.
                Workers divide their part among themselves. With GZIP, a part that starts within a
                shard decompresses everything before it.
            equal_steps: Give every worker of every part the same number of records, at the cost of
                one record of some workers in each pass. For processes that wait for each other in
                every step.
            root: Local folder of the snapshot.
            check: Verify checksums.
            columns: As in ``dataset``.
            as_supervised: As in ``dataset``.
            masks: As in ``dataset``.
            decode: Function that decodes encoded images.

        Raises:
            ValueError: if an argument is invalid, or the snapshot under ``root`` cannot be read.
        """
        size = select(split).is_training if shuffle is None else shuffle
        if size is True:
            size = max(1, min(_BUFFER_RECORDS, _BUFFER_BYTES // facts.RECORD_BYTES))
        if not hasattr(size, "__index__") or size < 0:
            raise ValueError(f"shuffle={shuffle!r} must be True, False or a number of records.")
        if seed is not None and not hasattr(seed, "__index__"):
            raise ValueError(f"seed={seed!r} must be an integer or None.")
        if shard is None and (processes := process_shard())[1] > 1:
            warnings.warn(
                f"This is process {processes[0]} of {processes[1]}, and each will read all of "
                f"{split!r}. Pass shard=process_shard() to divide it, or shard=(0, 1) if each is "
                "meant to read everything.",
                stacklevel=2,
            )
        options: dict[str, Any] = {
            "shuffle": operator.index(size),
            "seed": None if seed is None else operator.index(seed),
            "epoch": operator.index(epoch),
        }
        options |= {"equal_steps": equal_steps, "root": root, "check": check, "columns": columns}
        options |= {"as_supervised": as_supervised, "masks": masks}
        super().__init__(split, (0, 1) if shard is None else shard, decode=decode, **options)
        part = self._options["shard"]
        check_not_empty(split, len(self), shard=part, equal_steps=equal_steps)
        self._pass: _Pass | None = None
        """The latest pass."""
        self._resumed: dict[str, Any] | None = None
        """The state that the next pass resumes."""
        if (torch_data := sys.modules.get("torch.utils.data")) is not None:
            torch_data.IterableDataset.register(Stream)

    def __reduce__(self) -> tuple[Any, ...]:
        """The arguments, and the state to resume."""
        return (*super().__reduce__(), {"_resumed": self._resumed})

    def __len__(self) -> int:
        """The number of records in this part, over all its workers.

        Each worker ends with its own short batch, so a DataLoader with several workers may yield a
        few batches more than its length, or with ``equal_steps`` a few records fewer.
        """
        index, count = self._options["shard"]
        if self._options["equal_steps"]:
            return self._total // int(count)
        first, end = _cuts(self._total, (index, count))
        return end - first

    def set_epoch(self, epoch: int) -> None:
        """Uses the order of another epoch from the next pass on.

        A pass of the same epoch set by ``load_state_dict`` is still resumed. If the epoch changes,
        ``state_dict`` returns its beginning. Persistent workers keep the epoch with which they were
        started.
        """
        if epoch != self._options["epoch"]:
            self._pass = self._resumed = None
        self._options["epoch"] = operator.index(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of the latest pass, as plain data: numbers, strings, lists.

        It is exact between two records; with a batching loader around the stream, in the same
        process, between two batches. After loading the state of a finished pass, the next pass is
        empty, and the one after it complete.
        """
        if self._pass is not None:
            return self._state(self._pass.part, self._pass.seed, self._pass.given)
        if self._resumed is not None:
            return dict(self._resumed)
        return self._state(self._part(), self._options["seed"], 0)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass resume where ``state_dict()`` was called, in the same epoch.

        Raises:
            ValueError: if the state is incomplete, or belongs to another snapshot, split or
                shuffle buffer.
        """
        own = self._state(self._part(), self._options["seed"], 0)
        for name in own:
            if name not in state:
                raise ValueError(f"The state has no {name!r}. Pass what state_dict() returned.")
        for name in ("fingerprint", "split", "shuffle", "equal_steps"):
            if state.get(name) != own[name]:
                raise ValueError(
                    f"The state has {name}={state.get(name)!r}, but this stream has "
                    f"{name}={own[name]!r}. Create the stream with the same arguments as before."
                )
        self._options["epoch"] = state["epoch"]
        self._pass, self._resumed = None, dict(state)

    def __iter__(self) -> Iterator[Any]:
        """One pass; in a worker of a torch DataLoader, over that worker's share.

        Raises:
            DamagedShardError: if a shard or its index is damaged; no record is skipped.
            ValueError: if it would resume the pass of another part, or number of workers.
        """
        part, seed, epoch, given = self._part(), self._options["seed"], self._options["epoch"], 0
        if self._resumed is not None:
            if [*self._resumed["part"]] != [*part]:
                raise ValueError(
                    f"The state is for part {tuple(self._resumed['part'])}, but this is {part} "
                    "of all workers of all processes. Resume with the same shard=, the same number "
                    "of workers, and each worker with its own state (torchdata's "
                    "StatefulDataLoader)."
                )
            seed, given = self._resumed["seed"], self._resumed["given"]
        self._resumed = None
        seed = secrets.randbits(63) if seed is None else seed
        self._pass = _Pass(part, f"{seed} {epoch} {part[0]} {part[1]}", seed, given)
        return self._iterate(self._pass)

    def _iterate(self, current: _Pass) -> Iterator[Any]:
        end = sys.maxsize
        if self._options["equal_steps"]:
            end = self._total // current.part[1]
        for record in self._ordered(current.part, current.key, current.given):
            if current.given == end:
                break
            values = self._values(record)
            current.given += 1
            yield values

    def _ordered(self, part: tuple[int, int], key: str, given: int) -> Iterator[_Record]:
        """The records of a part from number ``given`` on, through the shuffle buffer, if any."""
        order = _Order(self._pieces(*_cuts(self._total, part)), self._options["shuffle"], key)
        files: dict[str, _Read] = {}
        turns = order.total - order.size
        done = min(given, turns)
        held: list[Any] = []
        if order.size:
            slots = order.held_after(done)  # the inputs in the buffer
            if given > turns:
                slots = slots[order.last[given - turns :]]
            by_input = np.argsort(slots)
            held = [None] * len(slots)
            records = self._read(order.positions(slots[by_input]), files)
            for slot, record in zip(by_input.tolist(), records, strict=True):
                held[slot] = record
        for first in range(order.size + done, order.total, _BLOCK):
            inputs = np.arange(first, min(first + _BLOCK, order.total))
            records = self._read(order.positions(inputs), files)
            if not order.size:
                yield from records
                continue
            for slot, record in zip(order.slots(len(inputs)).tolist(), records, strict=True):
                record, held[slot] = held[slot], record
                yield record
        if given > turns or not order.size:
            yield from held
        else:
            yield from (held[slot] for slot in order.last.tolist())

    def _pieces(self, first: int, end: int) -> list[_Positions]:
        """Start and end positions of the pieces between two positions: int64[n, 2] per shard."""
        step = max(1, min(_PIECE_RECORDS, _PIECE_BYTES // facts.RECORD_BYTES))
        if facts.COMPRESSION == "gzip":
            step = max(1, self._total)
        pieces = []
        for start, stop in itertools.pairwise([0, *self._ends]):
            starts = np.arange(max(start, first), min(stop, end), step, dtype=np.int64)
            pieces.append(np.stack([starts, np.minimum(starts + step, min(stop, end))], axis=1))
        return pieces

    def _part(self) -> tuple[int, int]:
        """(index, count) of this worker among all workers of all parts."""
        index, count = self._options["shard"]
        worker, workers = _torch_worker()
        return index * workers + worker, count * workers

    def _state(self, part: tuple[int, int], seed: int | None, given: int) -> dict[str, Any]:
        return {
            "fingerprint": facts.FINGERPRINT,
            "split": self._split,
            "shuffle": self._options["shuffle"],
            "equal_steps": self._options["equal_steps"],
            "epoch": self._options["epoch"],
            "part": list(part),
            "seed": seed,
            "given": given,
        }


class _Pass:
    """One pass of a stream, and the number of records yielded so far."""

    def __init__(self, part: tuple[int, int], key: str, seed: int, given: int) -> None:
        self.part, self.key, self.seed, self.given = part, key, seed, given


class _Order:
    """The order in which a pass reads records, its *inputs*, and yields them, its *outputs*.

    Pieces come in random order. The first ``size`` inputs fill the slots of the buffer. Each later
    input replaces the record in a random slot, which becomes an output. At the end the slots are
    emptied in random order. All randomness is drawn from the key in bulk, so a pass can be resumed
    without reading what was already yielded. Only raw numbers of NumPy's generator are used: they
    are the same in all NumPy versions.
    """

    def __init__(self, pieces: list[_Positions], buffer: int, key: str) -> None:
        """Draws the order of the pieces.

        Args:
            pieces: int64[n, 2] for each shard: the start and end positions of its pieces.
            buffer: Size of the buffer; 0 for stored order.
            key: Seeds all randomness.
        """
        drawn = hashlib.blake2b(key.encode(), digest_size=32).digest()
        self._random = np.random.PCG64(int.from_bytes(drawn, "little"))
        ends = np.concatenate([np.empty((0, 2), np.int64), *pieces])
        if buffer:
            ends = ends[self._shuffled(len(ends))]
        self._starts, self._input_ends = ends[:, 0], np.cumsum(ends[:, 1] - ends[:, 0])
        self.total = int(self._input_ends[-1]) if len(ends) else 0
        self.size = min(buffer, self.total)
        """Number of slots."""
        self.last = self._shuffled(self.size)
        """The order in which the slots are emptied at the end."""

    def positions(self, inputs: _Positions) -> _Positions:
        """Positions of these inputs in the stored order."""
        piece = np.searchsorted(self._input_ends, inputs, side="right")
        begins = np.concatenate([[0], self._input_ends])[piece]
        positions: _Positions = self._starts[piece] + inputs - begins
        return positions

    def slots(self, num: int) -> _Positions:
        """The slots of the next inputs."""
        raw = self._random.random_raw(num) >> np.uint64(32)
        return (raw * np.uint64(self.size) >> np.uint64(32)).astype(np.int64)

    def held_after(self, num: int) -> _Positions:
        """The input in each slot after ``num`` outputs; continue with ``slots``."""
        held = np.arange(self.size)
        for first in range(0, num, _SKIPPED_BLOCK):
            slots = self.slots(min(_SKIPPED_BLOCK, num - first))
            held[slots] = np.arange(self.size + first, self.size + first + len(slots))
        return held

    def _shuffled(self, num: int) -> _Positions:
        return np.argsort(self._random.random_raw(num), kind="stable")


class _Shard:
    """One shard, or records of it that are selected: the file, and where each record is in it."""

    def __init__(self, folder: str, section: Section, index_sha256: str) -> None:
        entry = section.entry
        self.path = os.path.join(folder, entry["file"])
        self.num_examples = section.num
        """Number of the selected records."""
        self.end = section.first + section.num
        """Number of the record after the last selected one."""
        self._num_stored: int = entry["num_examples"]
        self._num_bytes: int = entry["num_bytes"]
        self._checksum = section.checksum
        self._index_sha256 = index_sha256
        self._folder = folder
        self._index_path = os.path.join(folder, "index", f"{entry['file']}.idx")

    @functools.cached_property
    def _index(self) -> npt.NDArray[np.uint64]:
        """uint64[num_stored, 2]: offset and length of each frame, uncompressed."""
        content = b""
        if os.path.exists(self._index_path):
            with open(self._index_path, "rb") as file:
                content = file.read()
        if len(content) != 16 * self._num_stored:
            raise self._damaged_index(
                f"has {len(content):,} bytes, expected 16 for each of {self._num_stored:,} records"
            )
        if self._index_sha256 and hashlib.sha256(content).hexdigest() != self._index_sha256:
            raise self._damaged_index("is not the file that the manifest lists: its sha256 differs")
        index = np.frombuffer(content, "<u8").reshape(-1, 2)
        expected = np.concatenate([np.zeros(1, np.uint64), index.sum(axis=1)])
        if (odd := np.flatnonzero((index[:, 0] != expected[:-1]) | (index[:, 1] < 16))).size:
            number = int(odd[0])
            raise self._damaged_index(
                f"says that record {number:,} has {int(index[number, 1]):,} bytes at byte "
                f"{int(index[number, 0]):,}, expected at least 16 bytes at byte "
                f"{int(expected[number]):,}, where the record before it ends"
            )
        if facts.COMPRESSION == "none" and expected[-1] != self._num_bytes:
            raise self._damaged_index(
                f"says that the last record ends at byte {int(expected[-1]):,}, expected "
                f"{self._num_bytes:,}, the size of {self.path}"
            )
        return index

    def read(self, read: _Read, start: int, stop: int, check: bool) -> list[bytes]:
        """The serialized examples of these records, in one read."""
        frames = self._index[start:stop].tolist()
        begin, end = frames[0][0], sum(frames[-1])
        content = read(begin, end - begin)
        examples = []
        for number, (offset, length) in enumerate(frames, start):
            frame = content[offset - begin : offset - begin + length]
            if fault := fault_of(frame, length, check):
                raise self.damaged(fault, number)
            examples.append(frame[12:-4])
        return examples

    def open(self, *, any_order: bool) -> _Read:
        """Opens the file to read uncompressed bytes; GZIP is held in memory for ``any_order``."""
        size = os.path.getsize(self.path) if os.path.exists(self.path) else 0
        if size != self._num_bytes:
            raise DamagedShardError(
                f"{self.path} has {size:,} bytes, expected {self._num_bytes:,}: it is damaged from "
                f"byte {min(size, self._num_bytes):,} on. {self._advice()}"
            )
        read = LocalFile(self.path).read
        if fault := fault_of_shard(read, size, facts.COMPRESSION, self._checksum):
            raise DamagedShardError(f"{self.path} {fault}. {self._advice()}")
        if facts.COMPRESSION == "gzip":
            inflated = Inflated(self.path)
            if not any_order:
                return inflated.read
            content = inflated.read(0, int(self._index[-1:].sum()))
            return lambda offset, size: content[offset : offset + size]
        return read

    def damaged(self, what: str, number: int) -> DamagedShardError:
        """The error for a damaged record."""
        offset = int(self._index[number, 0])
        return DamagedShardError(
            f"{self.path}, record {number:,} at byte {offset:,}, {what}. {self._advice()}"
        )

    def _damaged_index(self, what: str) -> DamagedShardError:
        return DamagedShardError(f"{self._index_path} {what}. {self._advice()}")

    def _advice(self) -> str:
        return f"Copy it again. {how_to_verify(self._folder)}"


def _list_shards(split: Split, folder: str) -> list[_Shard]:
    """Lists the shards to read in stored order, from the manifest."""
    path = os.path.join(folder, "manifest.json")
    if not os.path.exists(path):
        raise ValueError(
            f"{path} is missing. Pass the local folder of {facts.NAME} {facts.FINGERPRINT} as "
            "root=; if it is in a store, copy it to a local disk first."
        )
    with open(path, encoding="utf-8", errors="replace") as file:
        manifest = read_manifest(file.read(), path)
    sha256 = {name: entry["sha256"] for name, entry in manifest.get("files", {}).items()}
    return [
        _Shard(folder, section, sha256.get(f"index/{section.entry['file']}.idx", ""))
        for section in select(split).sections(manifest)
    ]


def _cuts(total: int, part: tuple[int, int]) -> tuple[int, int]:
    """The positions at which the records of a part start and end."""
    index, count = part
    return total * index // count, total * (index + 1) // count


def _torch_worker() -> tuple[int, int]:
    """(index, number of workers) in a worker of a DataLoader; elsewhere (0, 1)."""
    torch_data = sys.modules.get("torch.utils.data")
    worker = None if torch_data is None else torch_data.get_worker_info()
    return (0, 1) if worker is None else (int(worker.id), int(worker.num_workers))
