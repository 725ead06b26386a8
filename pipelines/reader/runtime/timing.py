"""Shared measurements of the commands: a snapshot, a split as a trainer reads it, and its speed.

MB are 1,000,000 bytes, of the shards as stored.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import contextlib
import dataclasses
import importlib
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import facts
from .console import DAMAGED, MB, RefusedError
from .kinds import has_pixels
from .splits import Section, select

if TYPE_CHECKING:
    from .options import Options
    from .pipeline import Plan

_OURS = ("split", "batch_size", "root", "epochs")
"""Arguments of ``dataset`` that the commands set themselves."""
_WARM_UP = 10
"""Number of batches before the clock starts."""
_PIECE_BYTES = 1 << 20


class Snapshot:
    """The snapshot to examine: its folder or URL, and its manifest."""

    def __init__(self, root: str | None) -> None:
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self.root = (root or here).rstrip("/")
        try:
            self.manifest: dict[str, Any] = json.loads(self.read("manifest.json"))
            self.splits: dict[str, dict[str, Any]] = self.manifest["splits"]
            self.gzip = self.manifest["compression"] == "gzip"
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RefusedError(
                f"{self.root}/manifest.json is not a manifest ({error!r}).", DAMAGED
            ) from None

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        path = f"{self.root}/{name}"
        if "://" in path:
            with load_tensorflow().io.gfile.GFile(path, "rb") as file:
                return bytes(file.read())
        if not os.path.exists(path):
            raise RefusedError(
                f"There is no {path}: pass the folder of a published snapshot as --root."
            )
        with open(path, "rb") as file:
            return file.read()

    def split(self, name: str | None) -> str:
        """A split that has examples: the named one, or by default train, or the largest.

        A name may also be a part of a split, or several joined by "+", as in ``dataset``.
        """
        counts = {key: int(split["num_examples"]) for key, split in self.splits.items()}
        if name is None:
            name = "train" if counts.get("train") else max(counts, key=lambda key: counts[key])
        if not select(name).num_examples:
            raise RefusedError(f"Split {name!r} has no examples: pass another one as --split.")
        return name

    def sections(self, split: str) -> list[Section]:
        """The shards that hold the records of a split, or of part of it."""
        if (found := self.manifest.get("fingerprint")) != facts.FINGERPRINT:
            raise RefusedError(
                f"{self.root} has fingerprint {found}, this reader {facts.FINGERPRINT}: use the "
                "reader of that snapshot, or pass another --root."
            )
        return [*select(split).sections(self.manifest)]


def load_tensorflow() -> Any:
    """Imports TensorFlow on first use; --help does not need it."""
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        sys.stderr.flush()
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)  # it reports missing accelerators on import
        try:
            importlib.import_module("tensorflow")
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(nowhere)
    return sys.modules["tensorflow"]


class Input:
    """A split as a trainer would read it, and parts of that pipeline."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.snapshot = snapshot = Snapshot(arguments.root)
        self.split = snapshot.split(arguments.split)
        self.batch_size: int = arguments.batch_size
        if self.batch_size < 1:
            raise RefusedError(f"--batch-size {self.batch_size} must be 1 or more.")
        sections = snapshot.sections(self.split)
        entries = {section.entry["file"]: section.entry for section in sections}
        self.paths = [f"{snapshot.root}/{name}" for name in entries]
        for path in self.paths:
            if "://" not in path and not os.path.exists(path):
                raise RefusedError(f"{path} is missing: restore it, or rebuild.", DAMAGED)
        self.num_examples = sum(section.num for section in sections)
        self.shard_bytes: list[int] = [int(entry["num_bytes"]) for entry in entries.values()]
        stored = sum(int(entry["num_examples"]) for entry in entries.values())
        self.bytes_each = sum(self.shard_bytes) / stored
        self.num_bytes = int(self.bytes_each * self.num_examples)
        load_tensorflow()
        from .api import dataset

        self._dataset = dataset
        known = [name for name in inspect.signature(dataset).parameters if name not in _OURS]
        self.options: dict[str, Any] = {}
        for given in arguments.option:
            key, equals, text = given.partition("=")
            if not equals or key not in known:
                raise RefusedError(
                    f"--option {given}: expected NAME=VALUE with an option of reader.dataset(): "
                    f"{', '.join(known)}."
                )
            try:
                self.options[key] = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                self.options[key] = text
        if arguments.image_size:
            if not any(map(has_pixels, facts.FEATURES.values())):
                raise RefusedError(f"{facts.NAME} has no images: leave out --image-size.")
            self.options["image_size"] = tuple(arguments.image_size)

    def dataset(self, **changes: Any) -> Any:
        """The reader's dataset with the given options, and changes to them."""
        options = {"epochs": None, **self.options, **changes}
        batch_size = options.pop("batch_size", self.batch_size)
        return self._dataset(self.split, batch_size, root=self.snapshot.root, **options)

    def plan(self, **changes: Any) -> Plan:
        """The reader's plan for the given options, and changes to them."""
        from .plan import plan_reading

        return plan_reading(self.asked(**changes))

    def asked(self, **changes: Any) -> Options:
        """The given options, and changes to them; raises ValueError if they are invalid."""
        from .options import Options

        options = {"epochs": None, **self.options, **changes}
        return Options(self.split, self.batch_size, root=self.snapshot.root, **options)

    def allows(self, **changes: Any) -> bool:
        """Whether these options can be set in addition to the given ones."""
        try:
            self.asked(**changes)
        except ValueError:
            return False
        return True

    @property
    def is_remote(self) -> bool:
        """Whether the snapshot is in a store."""
        return "://" in self.snapshot.root

    def parser(self) -> Callable[[Any], Any]:
        """The reader's own function from a batch of serialized examples to tensors."""
        from .parsing import make_parser

        names = ("columns", "as_supervised", "image_size", "dtype", "scale")
        return make_parser(**{name: self.options[name] for name in names if name in self.options})

    def records(self, paths: Sequence[str] | None = None, gzip: bool | None = None) -> Any:
        """Serialized examples of some shards, repeated forever, by TensorFlow's public API."""
        tf = load_tensorflow()
        names = self.paths if paths is None else list(paths)
        kind = "GZIP" if (self.snapshot.gzip if gzip is None else gzip) else ""
        if not self.asked().shuffles:
            return tf.data.TFRecordDataset(names, kind).repeat()
        return (
            tf.data.Dataset.from_tensor_slices(names)
            .repeat()
            .interleave(
                lambda path: tf.data.TFRecordDataset(path, kind),
                cycle_length=min(16, len(names)),
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=False,
            )
        )


def plain_parser() -> Callable[[Any], Any]:
    """``tf.io.parse_example`` alone: lists as stored, media as bytes."""
    tf = load_tensorflow()
    columns = {}
    for name, feature in facts.FEATURES.items():
        kind = feature.get("dtype", "string")
        stored = tf.float32 if kind in ("float16", "bfloat16", "float32") else tf.int64
        if feature["kind"] in ("image", "mask") or kind == "string" or feature.get("packed"):
            stored = tf.string
        columns[name] = tf.io.RaggedFeature(stored, row_splits_dtype=tf.int64)
    return lambda serialized: tf.io.parse_example(serialized, columns)


def size_of(batch: Any) -> int:
    """The number of examples in a batch."""
    first = load_tensorflow().nest.flatten(batch)[0]
    return int(first.nrows()) if hasattr(first, "nrows") else int(first.shape[0])


def bytes_of(batch: Any) -> int:
    """The number of bytes that the values of a batch take."""
    tf = load_tensorflow()
    parts = tf.nest.flatten(batch, expand_composites=True)
    strings = sum(int(tf.reduce_sum(tf.strings.length(p))) for p in parts if p.dtype == tf.string)
    return strings + sum(int(tf.size(p)) * int(p.dtype.size) for p in parts if p.dtype != tf.string)


@dataclasses.dataclass(frozen=True)
class Timed:
    """How long it took to read some examples."""

    num: float
    """Number of examples."""
    seconds: float
    cpu: float
    """Seconds of processor time used by this process …"""
    others: float
    """… and by all others."""

    @property
    def rate(self) -> float:
        """Examples per second."""
        return self.num / self.seconds if self.seconds else 0.0

    @property
    def wall_each(self) -> float:
        """µs per example."""
        return 1e6 * self.seconds / max(1.0, self.num)

    @property
    def cpu_each(self) -> float:
        """µs of processor time per example."""
        return 1e6 * self.cpu / max(1.0, self.num)

    @property
    def busy(self) -> float:
        """Number of processors that worked for this process."""
        return self.cpu / max(1e-9, self.seconds)

    @property
    def busy_others(self) -> float:
        """Number of processors that worked for other programs."""
        return self.others / max(1e-9, self.seconds)


def time_batches(
    batches: Iterable[Any], seconds: float, *, warm_up: int = _WARM_UP, least: int = 1
) -> Timed:
    """Reads batches for ``seconds``, and at least ``least`` of them, after an untimed warm-up."""
    iterator, until = iter(batches), time.perf_counter() + seconds
    for _ in range(warm_up):
        if next(iterator, None) is None or time.perf_counter() > until:
            break
    count, elapsed = 0, 0.0
    clock = _Clock()
    for num_batches, batch in enumerate(iterator, start=1):
        count += size_of(batch)
        elapsed = time.perf_counter() - clock.begun
        if elapsed >= seconds and num_batches >= least:
            break
    return clock.stop(count, elapsed)


class _Clock:
    """Measures wall time and processor time from its creation on."""

    def __init__(self) -> None:
        self._all = _all_processors()
        self.begun, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, num: float, seconds: float | None = None) -> Timed:
        spent = time.perf_counter() - self.begun if seconds is None else seconds
        cpu = time.process_time() - self._cpu
        return Timed(num, spent, cpu, max(0.0, _all_processors() - self._all - cpu))


def _all_processors() -> float:
    """Seconds that this machine's processors worked; 0 if unknown."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(part) for part in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0.0
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # minus idle and iowait


def num_processors() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def time_bytes(source: Input, seconds: float, *, threads: int) -> Timed:
    """Reads only the bytes of the shards, once, for at most ``seconds``."""
    clock = _Clock()
    tf = load_tensorflow()

    def read(path: str) -> int:
        num_bytes = 0
        with tf.io.gfile.GFile(path, "rb") as file:
            while time.perf_counter() - clock.begun < seconds and (
                piece := file.read(_PIECE_BYTES)
            ):
                num_bytes += len(piece)
        return num_bytes

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        num_bytes = sum(pool.map(read, source.paths))
    return clock.stop(max(1.0, num_bytes / source.bytes_each))


def drop_cache(paths: Sequence[str]) -> str | None:
    """Drops the shards from the page cache; returns why it could not, or None."""
    if not hasattr(os, "posix_fadvise"):
        return "this system has no posix_fadvise"
    if any("://" in path for path in paths):
        return "the shards are in a store, not in this machine's page cache"
    for path in paths:
        with open(path, "rb") as file:
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())  # a dirty page would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = cached_share(paths)
    return f"{share:.0%} of the pages stayed" if share is not None and share > 0.1 else None


def cached_share(paths: Sequence[str]) -> float | None:
    """The share of sampled pages of the files that are in the page cache; None if unknown."""
    found = []
    with contextlib.suppress(OSError, AttributeError):
        for path in paths:
            with open(path, "rb") as file:
                num_bytes = os.fstat(file.fileno()).st_size
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no readahead
                for place in range(0, num_bytes, max(4096, num_bytes // 8)):
                    try:
                        os.preadv(file.fileno(), [bytearray(1)], place, os.RWF_NOWAIT)
                        found.append(1)
                    except BlockingIOError:
                        found.append(0)
    return sum(found) / len(found) if found else None


def throttle(batches: Any, mb_per_s: float, bytes_each: float) -> Any:
    """Delays batches of serialized examples as if they came from a store at ``mb_per_s``."""
    tf = load_tensorflow()
    line = _Line(mb_per_s * MB)

    def wait(*batch: Any) -> Any:
        num_bytes = tf.cast(tf.size(tf.nest.flatten(batch)[0]), tf.float64) * bytes_each
        tf.numpy_function(line.send, [num_bytes], [])
        return batch[0] if len(batch) == 1 else batch

    return batches.map(tf.autograph.experimental.do_not_convert(wait))


class _Line:
    """A line that carries a number of bytes per second; unused time is lost."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._free = bytes_per_s, 0.0

    def send(self, num_bytes: float) -> None:
        """Waits until this many bytes have arrived."""
        self._free = max(self._free, time.perf_counter() - 0.05)
        self._free += float(num_bytes) / self._bytes_per_s
        time.sleep(max(0.0, self._free - time.perf_counter()))


def held_memory() -> int:
    """Bytes of resident memory of this process; 0 if unknown."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
