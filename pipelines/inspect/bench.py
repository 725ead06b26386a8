"""Bench: how fast a snapshot reads on this machine, and how fast it would from slower storage.

Times the snapshot's own reader, and beside it reading without parsing, the limit on this machine.
MB are 1,000,000 bytes, of the shards as stored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from ...schemas.errors import DamagedSnapshotError, RecipeError
from ...schemas.naming import join
from ...transforms import storage
from ..snapshot import Snapshot

MB = 1_000_000
_WARM_UP = 10
"""Number of batches before the clock starts."""
_SAMPLE_BYTES = 32 * MB
"""Size of the sample of records that is compressed to estimate what GZIP saves."""


@dataclasses.dataclass(frozen=True)
class Rate:
    """One measurement."""

    what: str
    examples_per_s: float
    mb_per_s: float
    cpu_us: float
    """Processor time per example in µs."""


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """The measurements of one split."""

    split: str
    batch_size: int
    num_examples: int
    num_shards: int
    bytes_each: float
    """Stored bytes per example …"""
    gzip_each: float
    """… with GZIP …"""
    plain_each: float
    """… and uncompressed."""
    compression: str
    rates: Sequence[Rate]
    not_cold: str | None
    """Why reading from a cold page cache was not measured; None if it was."""
    estimates: Mapping[float, Mapping[str, float]]
    """For each MB/s of a slower store: examples/s as "none", "gzip", and from a local "copy"."""

    def to_json(self) -> dict[str, Any]:
        """The measurements as plain data."""
        return dataclasses.asdict(self)

    def lines(self) -> list[str]:
        """The measurements as text."""
        lines = [
            f"{self.split}: {self.num_examples:,} examples of {self.bytes_each:,.0f} bytes in "
            f"{self.num_shards} shards ({self.compression}); batches of {self.batch_size}"
        ]
        for rate in self.rates:
            lines.append(
                f"  {rate.what:<15} {rate.examples_per_s:>11,.0f} examples/s "
                f"{rate.mb_per_s:>8,.1f} MB/s {rate.cpu_us:>8,.1f} µs of processor time each"
            )
        lines.append("unparsed: TFRecordDataset(shards).batch(), the limit of reading records here")
        if self.not_cold is not None:
            lines.append(f"cold was not measured: {self.not_cold}")
        for mb_per_s, by_form in self.estimates.items():
            lines.append(
                f"a store of {mb_per_s:g} MB/s would give {by_form['none']:,.0f} examples/s "
                f"uncompressed, {by_form['gzip']:,.0f} with GZIP ({self.gzip_each:,.0f} bytes "
                f"each); {by_form['copy']:,.0f} from the second epoch on with local_copy= or cache="
            )
        return lines


def bench(
    snapshot: Snapshot,
    *,
    split: str | None = None,
    batch_size: int = 128,
    seconds: float = 5.0,
    options: Mapping[str, Any] | None = None,
    mb_per_s: Sequence[float] = (),
) -> Benchmark:
    """Times the snapshot's reader, cold and warm, beside reading without parsing.

    Args:
        snapshot: The snapshot; TensorFlow reads one in a store directly from there.
        split: The split to read; by default the snapshot's :attr:`~Snapshot.main_split`.
        batch_size: Examples per batch.
        seconds: Duration of each measurement.
        options: Other options of the reader's ``dataset``.
        mb_per_s: Rates of slower stores, for which the result is estimated.

    Raises:
        RecipeError: if the snapshot has no such split, or an option is invalid.
        DamagedSnapshotError: if a shard is missing or damaged.
        StorageError: if it cannot be read.
    """
    import tensorflow as tf  # takes seconds

    manifest = snapshot.manifest
    sizes = {name: entry.num_examples for name, entry in manifest.splits.items()}
    name = split or snapshot.main_split
    if not sizes.get(name):
        known = ", ".join(name for name, num in sizes.items() if num)
        raise RecipeError(f"Invalid split {name!r}: expected one with examples, such as {known}.")
    shards = manifest.splits[name].shards
    paths = [join(snapshot.path, shard.file) for shard in shards]
    if storage.is_local(snapshot.path):
        paths = [storage.local_path(path) for path in paths]
    kind = "GZIP" if manifest.compression == "gzip" else ""
    bytes_each = sum(shard.num_bytes for shard in shards) / sizes[name]
    try:
        train = snapshot.reader().dataset(name, batch_size, **{**(options or {}), "epochs": None})
    except (TypeError, ValueError) as error:
        if "Verify the snapshot: " in str(error):  # a shard is missing or damaged
            raise DamagedSnapshotError(str(error)) from None
        raise RecipeError(f"{snapshot.path} cannot be read with these options: {error}") from None
    unparsed = tf.data.TFRecordDataset(paths, kind).batch(batch_size)
    try:
        rates, not_cold = _rates(paths, train, unparsed, seconds=seconds, bytes_each=bytes_each)
        plain_each, gzip_each = (
            _sampled(tf.data.TFRecordDataset(paths, kind)) if mb_per_s else (0, 0)
        )
    except tf.errors.OpError as error:
        what = re.sub(r"\{\{.*?\}\} ?| ?\[Op:.*", "", error.message.splitlines()[0])
        raise DamagedSnapshotError(
            f"{snapshot.path} cannot be read ({what}). `snapshard verify {snapshot.path}` names "
            "the shard and the record."
        ) from None
    here = rates[-2].examples_per_s
    return Benchmark(
        split=name,
        batch_size=batch_size,
        num_examples=sizes[name],
        num_shards=len(shards),
        bytes_each=bytes_each,
        gzip_each=gzip_each,
        plain_each=plain_each,
        compression=manifest.compression,
        rates=rates,
        not_cold=not_cold,
        estimates={
            rate: {
                "none": min(here, rate * MB / plain_each),
                "gzip": min(here, rate * MB / gzip_each),
                "copy": here,
            }
            for rate in mb_per_s
        },
    )


def _rates(
    paths: Sequence[str], train: Any, unparsed: Any, *, seconds: float, bytes_each: float
) -> tuple[list[Rate], str | None]:
    """The rates of the reader and of reading without parsing, and why there are no cold ones."""
    rates, not_cold = [], None
    for what, dataset in (("reader, cold", train), ("unparsed, cold", unparsed)):
        not_cold = not_cold or _drop_cache(paths)
        if not_cold is None:
            rates.append(_timed(what, dataset, seconds, bytes_each, warm_up=0))
    rates = [] if not_cold is not None else rates  # one of the two alone is meaningless
    rates.append(_timed("reader, warm", train, seconds, bytes_each))
    rates.append(_timed("unparsed, warm", unparsed.repeat(), seconds, bytes_each))
    return rates, not_cold


def _timed(
    what: str, batches: Any, seconds: float, bytes_each: float, *, warm_up: int = _WARM_UP
) -> Rate:
    """Reads batches for ``seconds``, after some that do not count."""
    import tensorflow as tf

    iterator, until = iter(batches), time.perf_counter() + seconds
    for _ in range(warm_up):
        if next(iterator, None) is None or time.perf_counter() > until:
            break
    count, elapsed = 0, 0.0
    begun, cpu = time.perf_counter(), time.process_time()
    for batch in iterator:
        first = tf.nest.flatten(batch)[0]
        count += int(first.nrows()) if hasattr(first, "nrows") else int(first.shape[0])
        elapsed = time.perf_counter() - begun
        if elapsed >= seconds:
            break
    rate, cpu = count / max(1e-9, elapsed), time.process_time() - cpu
    return Rate(what, rate, rate * bytes_each / MB, 1e6 * cpu / max(1, count))


def _sampled(records: Any) -> tuple[float, float]:
    """Bytes per record of a shard that holds the first records: uncompressed, and with GZIP."""
    frame_bytes = 16
    packer, num, plain, packed = zlib.compressobj(wbits=31), 0, 0, 0
    for record in records.as_numpy_iterator():
        num, plain = num + 1, plain + len(record) + frame_bytes
        packed += len(packer.compress(record + bytes(frame_bytes)))
        if plain >= _SAMPLE_BYTES:
            break
    return plain / num, (packed + len(packer.flush())) / num


def _drop_cache(paths: Sequence[str]) -> str | None:
    """Drops the shards from the page cache; returns why it could not, or None."""
    if any("://" in path for path in paths):
        return "the shards are in a store"
    if not hasattr(os, "posix_fadvise"):
        return "this system has no posix_fadvise"
    for path in paths:
        with open(path, "rb") as file:
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())  # a dirty page would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = _cached_share(paths)
    return f"{share:.0%} of the pages stayed in the page cache" if share > 0.1 else None


def _cached_share(paths: Sequence[str]) -> float:
    """The share of sampled pages of the files that are in the page cache; 0 if unknown."""
    is_cached = []
    with contextlib.suppress(OSError, AttributeError):
        for path in paths:
            with open(path, "rb") as file:
                num_bytes = os.fstat(file.fileno()).st_size
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no readahead
                for place in range(0, num_bytes, max(4096, num_bytes // 8)):
                    try:
                        os.preadv(file.fileno(), [bytearray(1)], place, os.RWF_NOWAIT)
                        is_cached.append(1)
                    except BlockingIOError:
                        is_cached.append(0)
    return sum(is_cached) / len(is_cached) if is_cached else 0.0
