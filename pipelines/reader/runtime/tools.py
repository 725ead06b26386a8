"""Measures, checks and shows the snapshot whose ``reader.py`` lies beside this file.

    python reader_tools.py benchmark --batch-size 128 --mb-per-s 10,100
    python reader_tools.py doctor --step-ms 50

Emitted by snapshard with every snapshot, not to be edited by hand. It needs TensorFlow and nothing
else, and works with any root that the reader takes. MB are of 1,000,000 bytes, of the shards as
they are stored. Exit codes: 0 done, 2 it cannot be done as asked, 4 the snapshot is damaged.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import ipaddress
import itertools
import os
import signal
import socket
import stat
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .reader_timing_template import (
    DAMAGED,
    MB,
    Input,
    Output,
    RefusedError,
    Snapshot,
    cell,
    drop_cache,
    examine,
    load_tensorflow,
    size_of,
    time_batches,
    visible,
)

_SAMPLE_BYTES = 32 * MB  # of records that are written anew to compare compressions
_PIECE_BYTES = 64 << 10  # at a time from a throttled file
_EXPOSED = (
    "the service cannot be kept to loopback ({}): --host, with this machine's name, lets it listen "
    "on all interfaces, where whoever reaches it can run any TensorFlow graph."
)


def _benchmark(arguments: argparse.Namespace, out: Output) -> int:
    """Times the pipeline as configured, beside the limit of plain record reading."""
    tf = load_tensorflow()
    source = Input(arguments)
    seconds = arguments.seconds
    kind = "GZIP" if source.snapshot.gzip else ""
    raw = tf.data.TFRecordDataset(source.paths, kind).batch(source.batch_size)
    once = source.dataset(epochs=1)
    whole, limit = time_batches(source.dataset(), seconds), time_batches(raw.repeat(), seconds)
    out.say(
        f"{source.split}: {source.num_examples:,} examples of {source.bytes_each:,.0f} bytes in "
        f"{len(source.paths)} shards ({source.snapshot.manifest['compression']}); batches of "
        f"{source.batch_size}, {os.cpu_count()} processors"
        + "".join(f", {name}={value!r}" for name, value in source.options.items())
    )
    rows: list[tuple[str, dict[str, float]]] = []
    cold_why = None
    for name, dataset in (("reader, cold", once), ("unparsed, cold", raw)):
        cold_why = cold_why or drop_cache(source.paths)
        if cold_why is None:
            rows.append((name, time_batches(dataset, seconds, warm_up=0)))
    if cold_why is not None:
        rows = []  # one of the two tells nothing
    rows += [("reader, warm", whole), ("unparsed, warm", limit)]
    out.table(
        "rates",
        ("what", "examples/s", "MB/s", "µs of CPU", "× unparsed"),
        [
            (
                name,
                found["rate"],
                found["rate"] * source.bytes_each / MB,
                found["cpu"] / max(1, found["num"]) * 1e6,
                found["rate"] / max(1, limit["rate"]) if name.endswith("warm") else None,
            )
            for name, found in rows
        ],
    )
    out.say("unparsed is TFRecordDataset(shards).batch(): the limit of reading records here.")
    out.say(
        "cold: one epoch at most, its start included, after the shards were dropped from the page "
        "cache (posix_fadvise); a cache below it, of a disk or a hypervisor, stays."
        if cold_why is None
        else f"cold was not measured: {cold_why}."
    )
    others = [(found["all_cpu"] - found["cpu"]) / max(1e-9, found["seconds"]) for _, found in rows]
    if max(others) >= 0.25 * (os.cpu_count() or 1):
        out.say(f"other programs took up to {max(others):.1f} processors meanwhile: rates are low.")
    out.facts["other_processors"] = max(others)
    out.facts |= {"split": source.split, "batch_size": source.batch_size, "cold": cold_why is None}
    if arguments.sweep:
        _sweep(source, seconds, out)
    if arguments.mb_per_s:
        _throttles(source, arguments.mb_per_s, seconds, out)
    return 0


def _sweep(source: Input, seconds: float, out: Output) -> None:
    """Other batch sizes of the reader, and other parallelism and prefetch of the same stages."""
    tf = load_tensorflow()
    auto, parse, base = tf.data.AUTOTUNE, source.parser(), source.batch_size
    buffer, num_open = 4 * base, min(16, len(source.paths))

    def stages(parallel: int, prefetch: int) -> Any:
        names = tf.data.Dataset.from_tensor_slices(source.paths).repeat()
        kind = "GZIP" if source.snapshot.gzip else ""
        records = names.interleave(
            lambda path: tf.data.TFRecordDataset(path, kind),
            cycle_length=num_open,
            num_parallel_calls=min(parallel, num_open),  # AUTOTUNE is -1
        )
        batches = records.shuffle(buffer).batch(base).map(parse, num_parallel_calls=parallel)
        return batches.prefetch(prefetch) if prefetch else batches

    out.say("sweep: the reader by batch size, then the same stages written out by hand")
    rows: list[tuple[str, int, Any, Any, float]] = []
    for size in sorted({max(1, base // 4), base, base * 4}):
        found = time_batches(source.dataset(batch_size=size), seconds)
        rows.append(("reader", size, "auto", "auto", found["rate"]))
    processors = os.cpu_count() or 1
    for parallel in sorted({1, 2, processors, 2 * processors}):
        found = time_batches(stages(parallel, auto), seconds)
        rows.append(("by hand", base, parallel, "auto", found["rate"]))
    for prefetch in (0, 1, 4):
        rows.append(
            (
                "by hand",
                base,
                "auto",
                prefetch,
                time_batches(stages(auto, prefetch), seconds)["rate"],
            )
        )
    rows.append(
        ("by hand", base, "auto", "auto", time_batches(stages(auto, auto), seconds)["rate"])
    )
    out.table("sweep", ("pipeline", "batch size", "parallelism", "prefetch", "examples/s"), rows)
    best = max(rows, key=lambda row: row[4])
    out.say(f"fastest: {best[0]}, batches of {best[1]}, parallelism {best[2]}, prefetch {best[3]}")


def _throttles(source: Input, rates: Sequence[float], seconds: float, out: Output) -> None:
    """What GZIP, a local copy and a cache give where a store sends so many MB/s."""
    tf = load_tensorflow()
    parse, auto = source.parser(), tf.data.AUTOTUNE

    def parsed(batches: Any) -> Any:
        return batches.map(parse, num_parallel_calls=auto).prefetch(auto)

    def local(paths: Sequence[str], gzip: bool) -> float:
        batches = source.records(paths, gzip).batch(source.batch_size)
        return time_batches(parsed(batches), seconds)["rate"]

    def feed(paths: Sequence[str], gzip: bool, rate: float) -> Any:
        return tf.data.Dataset.from_generator(
            lambda: _arriving(itertools.cycle(paths), gzip, rate * MB, source.batch_size),
            output_signature=tf.TensorSpec([None], tf.string),
        )

    with tempfile.TemporaryDirectory(prefix="reader_tools-") as folder:
        forms = {gzip: _rewritten(source, folder, gzip) for gzip in (False, True)}
        cached = source.records(forms[False][0], False).take(forms[False][2]).cache().repeat()
        from_cache = time_batches(parsed(cached.batch(source.batch_size)), seconds)["rate"]
        warm = {gzip: local(paths, gzip) for gzip, (paths, _, _) in forms.items()}
        fed = {
            gzip: time_batches(feed(paths, gzip, 1e6), seconds / 2)["rate"]
            for gzip, (paths, _, _) in forms.items()
        }
        rows = []
        for rate in rates:
            for gzip, (paths, each, _) in forms.items():
                reckoned = min(rate * MB / each, warm[gzip])
                name = "GZIP" if gzip else "uncompressed"
                name += ", as stored" if gzip == source.snapshot.gzip else ", instead"
                measured = None
                if fed[gzip] > reckoned:
                    batches = parsed(feed(paths, gzip, rate))
                    measured = time_batches(batches, seconds, warm_up=2)["rate"]
                rows.append((rate, name, each, reckoned, measured))
            stored = forms[source.snapshot.gzip][1]
            first = min(rate * MB / stored, warm[source.snapshot.gzip])
            rows.append((rate, "local copy, first epoch", stored, first, None))
            later = warm[source.snapshot.gzip]
            rows.append((rate, "local copy, later epochs", stored, later, later))
            rows.append((rate, "cache in memory, later", stored, from_cache, from_cache))
    out.say(f"\nthrottled, unshuffled, batches of {source.batch_size}, on {_SAMPLE_BYTES // MB} MB")
    columns = ("MB/s", "read as", "bytes each", "reckoned examples/s", "measured")
    out.table("throttled", columns, rows)
    out.say(
        "reckoned: the smaller of MB/s over the bytes of an example, and the rate on this machine; "
        "measured: fed at that many bytes a second (–: the feed is Python and gives less), "
        "or read from local files."
    )
    plain, packed = forms[False][1], forms[True][1]
    pays = [rate for rate in rates if _pays(rate, plain, packed, warm)]
    out.say(
        f"GZIP leaves {packed / plain:.0%} of the bytes; it pays at "
        + (f"{', '.join(map(cell, pays))} MB/s." if pays else "none of these rates.")
        + " From the second epoch on, a local copy or a cache reads at local speed."
    )
    out.facts["gzip_ratio"] = packed / plain


def _pays(rate: float, plain: float, packed: float, warm: dict[bool, float]) -> bool:
    """Whether a store of so many MB/s binds, and GZIP then gives 5 % more examples a second."""
    without = rate * MB / plain
    return without < warm[False] and min(rate * MB / packed, warm[True]) > 1.05 * without


def _rewritten(source: Input, folder: str, gzip: bool) -> tuple[list[str], float, int]:
    """The first records written anew, into four files: their paths, bytes each, and number."""
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
    """Batches of the serialized examples in files that arrive at so many bytes a second."""
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
                elif early < -0.05:  # time that nobody used is lost, as on a line
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


def _doctor(arguments: argparse.Namespace, out: Output) -> int:
    """Measures stage by stage, with a simulated training step, and says what to change."""
    return examine(arguments, out)


def _profile(arguments: argparse.Namespace, out: Output) -> int:
    """Writes a TensorBoard profile of some batches."""
    tf = load_tensorflow()
    source = Input(arguments)
    iterator = iter(source.dataset())
    next(iterator)
    tf.profiler.experimental.start(arguments.folder)
    for step in range(arguments.batches):
        with tf.profiler.experimental.Trace("next_batch", step_num=step, _r=1):
            next(iterator)
    tf.profiler.experimental.stop()
    found = tf.io.gfile.glob(f"{arguments.folder}/plugins/profile/*/*.xplane.pb")
    if not found:
        raise RefusedError(f"TensorFlow wrote no profile into {arguments.folder}.")
    out.facts |= {"batches": arguments.batches, "files": found}
    out.say(f"{arguments.batches} batches of {source.batch_size} profiled: {max(found)}")
    out.say(
        f"tensorboard --logdir {arguments.folder}  (with the plugin tensorboard-plugin-profile)"
    )
    return 0


_INDEX_BYTES = {".idx": 16, ".labels": 4}  # for each record of a shard


def _verify(arguments: argparse.Namespace, out: Output) -> int:
    """Holds every file against the manifest, every record of a shard against its checksums."""
    tf = load_tensorflow()
    snapshot = Snapshot(arguments)
    shards = {
        shard["file"]: shard for split in snapshot.splits.values() for shard in split["shards"]
    }
    findings, edited, num_records = [], [], 0
    for name, entry in sorted(snapshot.manifest["files"].items()):
        path = f"{snapshot.root}/{name}"
        if not tf.io.gfile.exists(path):
            findings.append(f"{name} is missing")
            continue
        hasher, num_bytes = hashlib.sha256(), 0
        with tf.io.gfile.GFile(path, "rb") as file:
            while piece := file.read(4 << 20):
                hasher.update(piece)
                num_bytes += len(piece)
        wrong = []
        if num_bytes != entry["bytes"]:
            wrong.append(f"has {num_bytes:,} bytes, expected {entry['bytes']:,}")
        elif hasher.hexdigest() != entry["sha256"]:
            wrong.append("its sha256 differs")
        stem, kind = os.path.splitext(name.removeprefix("index/"))
        if kind in _INDEX_BYTES and stem in shards:
            num_records_told = num_bytes / _INDEX_BYTES[kind]
            if num_records_told != shards[stem]["num_examples"]:
                wrong.append(
                    f"tells of {num_records_told:,g} records, expected "
                    f"{shards[stem]['num_examples']:,}"
                )
        if name in shards:
            count, damage = _count_records(path, "GZIP" if snapshot.gzip else "")
            num_records += count
            if damage is not None:
                wrong.append(damage)
            elif count != shards[name]["num_examples"]:
                wrong.append(f"holds {count:,} records, expected {shards[name]['num_examples']:,}")
        if wrong and name.endswith(".py") and _is_python(path):
            edited.append(name)
        elif wrong:
            findings.append(f"{name}: {'; '.join(wrong)}")
    out.facts |= {
        "whole": not findings,
        "damaged": findings,
        "edited": edited,
        "num_records": num_records,
    }
    if edited:
        out.say(f"edited, which harms no data: {', '.join(edited)}")
    if not findings:
        out.say(
            f"whole: {len(snapshot.manifest['files'])} files, {num_records:,} records in "
            f"{snapshot.root}"
        )
        return 0
    out.end()
    listed = "".join(f"\n  {finding}" for finding in findings)
    raise RefusedError(f"{snapshot.root} is damaged:{listed}\nRestore or build again.", DAMAGED)


def _is_python(path: str) -> bool:
    """Whether a file can be parsed: what a user has adapted can, what is damaged seldom."""
    with load_tensorflow().io.gfile.GFile(path, "rb") as file:
        try:
            ast.parse(file.read())
        except (SyntaxError, ValueError):
            return False
    return True


def _count_records(path: str, kind: str) -> tuple[int, str | None]:
    """How many whole records a shard holds, and what is wrong with the first that is not."""
    tf = load_tensorflow()
    try:
        return sum(len(batch) for batch in tf.data.TFRecordDataset(path, kind).batch(1024)), None
    except tf.errors.OpError:
        records = iter(tf.data.TFRecordDataset(path, kind))
        for count in itertools.count():
            try:
                next(records)
            except StopIteration:
                return count, None
            except tf.errors.OpError as error:
                return count, f"record {count} is damaged ({_reason(error)})"
    raise AssertionError


def _reason(error: Any) -> str:
    """What TensorFlow says, without where in its graph."""
    text = str(getattr(error, "message", error)).partition(" [Op:")[0].partition("\n")[0]
    return text.rpartition("}} ")[2]


def _show(arguments: argparse.Namespace, out: Output) -> int:
    """Shows features, splits, classes and the first records."""
    snapshot = Snapshot(arguments)
    split = snapshot.split(arguments.split)
    reader = snapshot.reader()
    features: dict[str, dict[str, Any]] = reader.FEATURES
    out.say(f"{reader.NAME} {reader.FINGERPRINT}, label {reader.LABEL}, {reader.COMPRESSION}\n")
    rows = []
    for name, feature in features.items():
        shape = feature.get("shape", [])
        if feature["kind"] == "image":
            shape = [feature["height"], feature["width"], feature["channels"]]
        told = [
            key
            for key in ("unit", "rate", "default", "optional", "present", "storage")
            if feature.get(key)
        ]
        notes = [f"{key} {feature[key]}" for key in told]
        if feature.get("names"):
            notes.insert(0, f"{len(feature['names']):,} classes")
        kind, dtype = feature["kind"], feature.get("dtype", "uint8")
        rows.append((name, kind, dtype, str(shape or ""), ", ".join(notes)))
    out.table("features", ("feature", "kind", "dtype", "shape", ""), rows)
    out.say()
    counts: dict[str, dict[str, int]] = {}
    table = []
    for name, facts in snapshot.splits.items():
        found = counts[name] = {}
        for shard in facts["shards"]:
            for label, count in shard["label_counts"].items():
                found[label] = found.get(label, 0) + count
        top = sorted(found.items(), key=lambda item: -item[1])[:5]
        listed = ", ".join(f"{visible(label)}: {count:,}" for label, count in top)
        megabytes = facts["num_bytes"] / MB
        table.append((name, facts["num_examples"], len(facts["shards"]), megabytes, listed))
    out.table("splits", ("split", "examples", "shards", "MB", "most frequent"), table)
    out.facts |= {"name": reader.NAME, "label": reader.LABEL, "label_counts": counts}
    images = [name for name, feature in features.items() if feature["kind"] == "image"]
    if arguments.sheet and not images:
        raise RefusedError(f"--sheet: {reader.NAME} has no images.")
    unsized = any(
        features[name]["height"] is None or features[name]["width"] is None for name in images
    )
    size = (96, 96) if images and (arguments.sheet or unsized) else None
    size = tuple(arguments.image_size) if images and arguments.image_size else size
    resized = {"image_size": size} if images else {}
    number = max(arguments.records, arguments.sheet_images if arguments.sheet else 1)
    batch = next(iter(
        reader.dataset(split, number, shuffle=False, root=snapshot.root, **resized)
    ))  # fmt: skip
    flat = dict(_flat(batch))
    out.facts["records"] = []
    for index in range(min(arguments.records, size_of(batch))):
        out.say(f"\n{split} record {index}")
        record = {name: _value(flat[name][index], features.get(name, {})) for name in flat}
        out.facts["records"].append(record)
        for name, text in record.items():
            out.say(f"  {visible(name)}: {text}")
    if arguments.sheet:
        _sheet(flat[images[0]], arguments.sheet)
        out.say(f"\n{size_of(batch)} images of {images[0]!r}: {arguments.sheet}")
    return 0


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Features by dotted name, of a dict that may hold dicts."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _value(value: Any, feature: dict[str, Any]) -> str:
    """One value in a line."""
    tf = load_tensorflow()
    if feature.get("kind") in ("image", "audio"):
        mean = float(tf.reduce_mean(tf.cast(value, tf.float32)))
        return f"{value.dtype.name}{value.shape.as_list()}, mean {mean:.3g}"
    found = value.to_list() if hasattr(value, "to_list") else value.numpy()
    found = found.tolist() if hasattr(found, "tolist") else found
    names = feature.get("names")
    if names and isinstance(found, int) and 0 <= found < len(names):
        name = visible(names[found])
        return name if name == str(found) else f"{found} = {name}"
    text = visible(repr(found.decode(errors="replace") if isinstance(found, bytes) else found))
    return text if len(text) <= 200 else f"{text[:200]} …"


def _sheet(images: Any, path: str) -> None:
    """Writes images beside each other, as many rows as columns, as one PNG."""
    tf = load_tensorflow()
    count, height, width, channels = images.shape
    columns = int(count**0.5 + 0.999)
    rows = -(-count // columns)
    images = tf.pad(images, [[0, rows * columns - count], [0, 2], [0, 2], [0, 0]])
    grid = tf.reshape(images, [rows, columns, height + 2, width + 2, channels])
    grid = tf.transpose(grid, [0, 2, 1, 3, 4])
    pixels = tf.reshape(grid, [rows * (height + 2), columns * (width + 2), channels])
    try:
        tf.io.write_file(path, tf.io.encode_png(pixels))
    except tf.errors.OpError as error:
        raise RefusedError(f"--sheet {path} cannot be written: {error.message}.") from None


def _serve(arguments: argparse.Namespace, out: Output) -> int:
    """Runs a tf.data service, on loopback unless --host names this machine, until interrupted."""
    if arguments.workers < 1:
        raise RefusedError(f"--workers {arguments.workers} must be 1 or more.")
    target, is_private = arguments.join, _is_loopback(arguments.host)
    joined = "" if target is None else target.rpartition("://")[2].rpartition(":")[0]
    if joined and is_private and not _is_loopback(joined):
        raise RefusedError(
            f"--join {target} is another machine, which cannot reach a worker at "
            f"{arguments.host}: give --host, this machine's name as others see it."
        )
    tf = load_tensorflow()
    service = tf.data.experimental.service
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own waits for what blocks
    listening: list[int] = []
    servers: list[Any] = []

    def started(server: Any) -> None:
        servers.append(server)
        listening[:] = _listening_ports(keep_to_loopback=is_private)

    try:
        if target is None:
            _free(arguments.port)
            dispatcher = service.DispatchServer(service.DispatcherConfig(port=arguments.port))
            started(dispatcher)
            target = dispatcher.target.replace("localhost", arguments.host)
        address = target.rpartition("://")[2]
        _reach(address)
        config = service.WorkerConfig(
            dispatcher_address=address, worker_address=f"{arguments.host}:%port%"
        )
        for _ in range(arguments.workers):
            started(service.WorkerServer(config))
    except tf.errors.OpError as error:
        raise RefusedError(f"the service cannot be started: {_reason(error)}") from None
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    interface = "loopback" if is_private else "all interfaces"
    ports = ", ".join(map(str, listening))
    out.facts |= {"address": target, "workers": arguments.workers}
    out.facts |= {"interface": interface, "ports": listening}
    out.say(f"{target}, workers: {arguments.workers}; Ctrl-C ends it")
    if is_private:
        out.say(f"listens on loopback only, ports {ports}")
    else:
        out.say(
            f"listens on all interfaces (0.0.0.0), ports {ports}, without authentication: whoever "
            "reaches one of them can run any TensorFlow graph as this user"
        )
    out.end()
    sys.stdout.flush()
    while not ended.wait(3600):
        pass
    os._exit(0)  # the servers' stop() waits for what clients still ask, and holds Python meanwhile


def _is_loopback(host: str) -> bool:
    """Whether a host is written as loopback; a name that merely resolves to it is not."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _listening_ports(*, keep_to_loopback: bool) -> list[int]:
    """The TCP ports that this process listens on, optionally for this machine alone.

    TensorFlow's servers take no address and always listen on 0.0.0.0. A socket that is bound to
    the loopback device gets nothing from any other.
    """
    ports = []
    for name in os.listdir("/dev/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            copy = os.dup(int(name))
        except OSError:  # closed meanwhile, as the descriptor of this listing is
            continue
        with socket.socket(fileno=copy) as found:
            if found.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            ports.append(int(found.getsockname()[1]))
            if keep_to_loopback:
                _bind_to_loopback(found)
    if keep_to_loopback and not ports:
        raise RefusedError(_EXPOSED.format("its sockets were not found"))
    return sorted(set(ports))


def _bind_to_loopback(found: socket.socket) -> None:
    device = getattr(socket, "SO_BINDTODEVICE", None)
    if device is None:
        raise RefusedError(_EXPOSED.format("this system has no SO_BINDTODEVICE"))
    try:
        found.setsockopt(socket.SOL_SOCKET, device, b"lo\0")
    except OSError as error:
        raise RefusedError(_EXPOSED.format(error)) from None


def _free(port: int) -> None:
    """Refuses a port that is taken: gRPC would share it with whoever has it."""
    try:
        with socket.socket() as found:
            found.bind(("", port))
    except (OSError, OverflowError) as error:
        raise RefusedError(f"--port {port} cannot be used ({error}): give another, or 0.") from None


def _reach(address: str) -> None:
    """Refuses a dispatcher that does not answer: a worker would wait for it without end."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise RefusedError(
            f"no dispatcher answers at {address} ({error}): start one by serve, and give the "
            "grpc:// address that it prints as --join."
        ) from None


def _parser() -> argparse.ArgumentParser:
    """The commands and what they take."""
    parser = argparse.ArgumentParser(
        prog="reader_tools.py", description=str(__doc__).splitlines()[0].replace("``", "")
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(run: Callable[..., int], *, reads: bool = True) -> argparse.ArgumentParser:
        text = str(run.__doc__)
        added = commands.add_parser(run.__name__[1:], help=text, description=text)
        added.set_defaults(run=run)
        added.add_argument(
            "--root", help="folder or URL of the snapshot; default: beside this file"
        )
        added.add_argument("--json", action="store_true", help="print one JSON object")
        if reads:
            added.add_argument("--split", help="default: train, or the largest")
            added.add_argument("--batch-size", type=int, default=128, metavar="N")
            added.add_argument(
                "--option", action="append", default=[], metavar="NAME=VALUE",
                help="what reader.dataset() takes, for example seed=1",
            )  # fmt: skip
            added.add_argument("--image-size", nargs=2, type=int, metavar=("H", "W"))
        return added

    benchmark = command(_benchmark)
    benchmark.add_argument("--seconds", type=float, default=5, help="of each measurement")
    benchmark.add_argument("--sweep", action="store_true", help="try batch sizes and parallelism")
    benchmark.add_argument(
        "--mb-per-s", type=_rates, metavar="10,100", help="read as from stores that give so much"
    )
    doctor = command(_doctor)
    doctor.add_argument("--step-ms", type=float, default=50, help="length of a training step")
    doctor.add_argument("--seconds", type=float, default=2, help="of each measurement")
    doctor.add_argument("--augment", metavar="FILE.py:FUNCTION", help="given to reader.dataset()")
    profile = command(_profile)
    profile.add_argument("folder", metavar="DIR", help="where TensorBoard looks for it")
    profile.add_argument("--batches", type=int, default=100, metavar="N")
    command(_verify, reads=False)
    show = command(_show, reads=False)
    show.add_argument("--split", help="default: train, or the largest")
    show.add_argument("--records", type=int, default=3, metavar="N", help="how many to show")
    show.add_argument("--sheet", metavar="FILE.png", help="write the first images as one")
    show.add_argument("--sheet-images", type=int, default=64, metavar="N", help="on the sheet")
    show.add_argument("--image-size", nargs=2, type=int, metavar=("H", "W"), help="on the sheet")
    serve = command(_serve, reads=False)
    serve.add_argument("--workers", type=int, default=1, metavar="N")
    serve.add_argument("--port", type=int, default=0, help="of the dispatcher; 0: any that is free")
    serve.add_argument(
        "--host",
        default="localhost",
        help="this machine's name, as clients on others see it: then the service listens on all "
        "interfaces, without authentication; default: localhost, on loopback only",
    )
    serve.add_argument("--join", metavar="grpc://…", help="only workers, for that dispatcher")
    return parser


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = [0.0]
    if not all(0 < rate < float("inf") for rate in rates):
        raise argparse.ArgumentTypeError(f"expected numbers above 0 such as 10,100, found {text!r}")
    return rates


def _say_error(message: str) -> None:
    print("\n".join(map(visible, f"error: {message}".split("\n"))), file=sys.stderr)


def main(arguments: Sequence[str] | None = None, *, here: str | None = None) -> int:
    """Runs one command on the snapshot in a folder, by default this file's; gives the exit code."""
    parsed = _parser().parse_args(arguments)
    parsed.here = here or os.path.dirname(os.path.abspath(__file__))
    out = Output(parsed.json)
    try:
        code: int = parsed.run(parsed, out)
        if out.facts:
            out.end()
    except RefusedError as error:
        _say_error(str(error))
        return error.code
    except BrokenPipeError:  # whoever read the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        hint = " Here that is --image-size H W." if "image_size=(" in str(error) else ""
        _say_error(f"{error}{hint}")
        return 2
    except Exception as error:
        if "tensorflow" not in type(error).__module__:
            raise
        _say_error(f"the snapshot cannot be read: {_reason(error)}")
        return DAMAGED if type(error).__name__ == "DataLossError" else 2
    except KeyboardInterrupt:
        _say_error("interrupted.")
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
