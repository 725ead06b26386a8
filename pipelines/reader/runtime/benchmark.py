"""``benchmark``: how fast the snapshot reads on this machine, and how fast it would elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .console import MB, Output, cell
from .timing import (
    Input,
    Timed,
    drop_cache,
    load_tensorflow,
    num_processors,
    time_batches,
)

_SAMPLE_BYTES = 32 * MB
"""Size of the sample of records that is rewritten to compare compressions."""
_PIECE_BYTES = 64 << 10
"""Size of one read from a throttled file."""


def benchmark(arguments: argparse.Namespace, out: Output) -> int:
    """Times the pipeline as configured, compared with the limit of plain record reading."""
    tf = load_tensorflow()
    source = Input(arguments)
    seconds, processors = arguments.seconds, num_processors()
    kind = "GZIP" if source.snapshot.gzip else ""
    raw = tf.data.TFRecordDataset(source.paths, kind).batch(source.batch_size)
    once = source.dataset(epochs=1)
    whole, limit = time_batches(source.dataset(), seconds), time_batches(raw.repeat(), seconds)
    out.say(
        f"{source.split}: {source.num_examples:,} examples of {source.bytes_each:,.0f} bytes in "
        f"{len(source.paths)} shards ({source.snapshot.manifest['compression']}); batches of "
        f"{source.batch_size}, {processors} processors"
        + "".join(f", {name}={value!r}" for name, value in source.options.items())
    )
    rows: list[tuple[str, Timed]] = []
    cold_why = None
    for name, dataset in (("reader, cold", once), ("unparsed, cold", raw)):
        cold_why = cold_why or drop_cache(source.paths)
        if cold_why is None:
            rows.append((name, time_batches(dataset, seconds, warm_up=0)))
    if cold_why is not None:
        rows = []  # one of the two alone is meaningless
    rows += [("reader, warm", whole), ("unparsed, warm", limit)]
    out.table(
        "rates",
        ("what", "examples/s", "MB/s", "µs of CPU", "× unparsed"),
        [
            (
                name,
                timed.rate,
                timed.rate * source.bytes_each / MB,
                timed.cpu_each,
                timed.rate / max(1, limit.rate) if name.endswith("warm") else None,
            )
            for name, timed in rows
        ],
    )
    out.say("unparsed is TFRecordDataset(shards).batch(): the limit of reading records here.")
    out.say(
        "cold: one epoch at most, including its start, after dropping the shards from the page "
        "cache (posix_fadvise); caches below it, of a disk or a hypervisor, remain."
        if cold_why is None
        else f"cold was not measured: {cold_why}."
    )
    others = max(timed.busy_others for _, timed in rows)
    if others >= 0.25 * processors:
        out.say(f"other programs used up to {others:.1f} processors meanwhile: rates are too low.")
    out.facts["other_processors"] = others
    out.facts |= {"split": source.split, "batch_size": source.batch_size, "cold": cold_why is None}
    if arguments.mb_per_s:
        _throttles(source, arguments.mb_per_s, seconds, out)
    return 0


def _throttles(source: Input, rates: Sequence[float], seconds: float, out: Output) -> None:
    """Compares GZIP, a local copy and a cache on a store with the given MB/s."""
    tf = load_tensorflow()
    parse, auto = source.parser(), tf.data.AUTOTUNE

    def parsed(batches: Any) -> Any:
        return batches.map(parse, num_parallel_calls=auto).prefetch(auto)

    def local(paths: Sequence[str], gzip: bool) -> float:
        batches = source.records(paths, gzip).batch(source.batch_size)
        return time_batches(parsed(batches), seconds).rate

    def feed(paths: Sequence[str], gzip: bool, rate: float) -> Any:
        return tf.data.Dataset.from_generator(
            lambda: _arriving(itertools.cycle(paths), gzip, rate * MB, source.batch_size),
            output_signature=tf.TensorSpec([None], tf.string),
        )

    with tempfile.TemporaryDirectory(prefix="reader-benchmark-") as folder:
        forms = {gzip: _rewritten(source, folder, gzip) for gzip in (False, True)}
        cached = source.records(forms[False][0], False).take(forms[False][2]).cache().repeat()
        from_cache = time_batches(parsed(cached.batch(source.batch_size)), seconds).rate
        warm = {gzip: local(paths, gzip) for gzip, (paths, _, _) in forms.items()}
        fed = {
            gzip: time_batches(feed(paths, gzip, 1e6), seconds / 2).rate
            for gzip, (paths, _, _) in forms.items()
        }
        rows = []
        for rate in rates:
            for gzip, (paths, each, _) in forms.items():
                estimated = min(rate * MB / each, warm[gzip])
                name = "GZIP" if gzip else "uncompressed"
                name += ", as stored" if gzip == source.snapshot.gzip else ", instead"
                measured = None
                if fed[gzip] > estimated:
                    batches = parsed(feed(paths, gzip, rate))
                    measured = time_batches(batches, seconds, warm_up=2).rate
                rows.append((rate, name, each, estimated, measured))
            stored = forms[source.snapshot.gzip][1]
            first = min(rate * MB / stored, warm[source.snapshot.gzip])
            rows.append((rate, "local copy, first epoch", stored, first, None))
            later = warm[source.snapshot.gzip]
            rows.append((rate, "local copy, later epochs", stored, later, later))
            rows.append((rate, "cache in memory, later", stored, from_cache, from_cache))
    out.say(f"\nthrottled, unshuffled, batches of {source.batch_size}, on {_SAMPLE_BYTES // MB} MB")
    columns = ("MB/s", "read as", "bytes each", "estimated examples/s", "measured")
    out.table("throttled", columns, rows)
    out.say(
        "estimated: the smaller of MB/s divided by the bytes of an example, and this machine's "
        "rate; measured: fed at that many bytes per second (–: the feed is Python and too slow), "
        "or read from local files."
    )
    plain, packed = forms[False][1], forms[True][1]
    pays = [rate for rate in rates if _pays(rate, plain, packed, warm)]
    out.say(
        f"GZIP leaves {packed / plain:.0%} of the bytes; it pays off at "
        + (f"{', '.join(map(cell, pays))} MB/s." if pays else "none of these rates.")
        + " From the second epoch on, a local copy or a cache reads at local speed."
    )
    out.facts["gzip_ratio"] = packed / plain


def _pays(rate: float, plain: float, packed: float, warm: dict[bool, float]) -> bool:
    """Whether this rate is the limit, and GZIP yields at least 5 % more examples per second."""
    without = rate * MB / plain
    return without < warm[False] and min(rate * MB / packed, warm[True]) > 1.05 * without


def _rewritten(source: Input, folder: str, gzip: bool) -> tuple[list[str], float, int]:
    """Rewrites the first records to four files; returns their paths, bytes each, and number."""
    tf = load_tensorflow()
    kind = "GZIP" if gzip else ""
    paths = [f"{folder}/{kind or 'plain'}-{index}" for index in range(4)]
    count, num_bytes = 0, 0
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(tf.io.TFRecordWriter(path, kind)) for path in paths]
        stored = tf.data.TFRecordDataset(source.paths, "GZIP" if source.snapshot.gzip else "")
        for record in stored.as_numpy_iterator():
            writers[count % 4].write(record)
            count, num_bytes = count + 1, num_bytes + len(record)
            if num_bytes >= _SAMPLE_BYTES:
                break
    paths = paths[: min(4, count)]
    return paths, sum(os.path.getsize(path) for path in paths) / count, count


def _arriving(
    paths: Iterable[str], gzip: bool, bytes_per_s: float, num: int
) -> Iterator[list[bytes]]:
    """Batches of the serialized examples in files that arrive at ``bytes_per_s``."""
    begun, arrived, batch = time.perf_counter(), 0, []
    for path in paths:
        unzip = zlib.decompressobj(31) if gzip else None
        held = b""
        with open(path, "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                arrived += len(piece)
                early = begun + arrived / bytes_per_s - time.perf_counter()
                if early > 0:
                    time.sleep(early)
                elif early < -0.05:  # unused time is lost, as on a line
                    begun -= early
                held += unzip.decompress(piece) if unzip else piece
                place = 0
                while len(held) - place >= 12:
                    end = place + 16 + int(struct.unpack_from("<Q", held, place)[0])
                    if end > len(held):
                        break
                    batch.append(held[place + 12 : end - 4])
                    place = end
                    if len(batch) == num:
                        yield batch
                        batch = []
                held = held[place:]
