"""How long each stage of reading a snapshot takes: what ``reader_tools.py doctor`` finds out.

Emitted by snapshard with every snapshot, not to be edited by hand; ``reader_tools.py`` is the
command. MB are of 1,000,000 bytes, of the shards as they are stored.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib.util
import inspect
import itertools
import json
import os
import re
import statistics
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

MB = 1_000_000
_OURS = ("split", "batch_size", "root", "epochs")  # arguments that the commands choose
_WARM_UP = 10  # batches before the clock starts
DAMAGED = 4  # the exit code
_STARVED = 0.05  # a share of the time spent waiting that is worth a word


class RefusedError(Exception):
    """What cannot be done, in a sentence for whoever asked, and the exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


_UNSEEN = re.compile(  # letters and marks that are not seen: what isprintable() passes
    "[\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u2800\\u3164\\ufe00-\\ufe0f\\uffa0"
    "\\U000e0100-\\U000e01ef]"
)


class Output:
    """What a command found out: lines as they come, or one JSON object at the end."""

    def __init__(self, as_json: bool) -> None:
        self.facts: dict[str, Any] = {}
        self._as_json = as_json

    def say(self, text: str = "") -> None:
        """A line for people."""
        if not self._as_json:
            print("\n".join(map(visible, text.split("\n"))))
            sys.stdout.flush()

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Rows for people, and as objects under a key of the JSON; numbers stand on the right."""
        self.facts[key] = [dict(zip(columns, row, strict=True)) for row in rows]
        lines = [list(columns), *([cell(value) for value in row] for row in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        right = [any(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
        for line in lines:
            cells = zip(line, widths, right, strict=True)
            self.say(
                "  " + "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in cells).rstrip()
            )

    def end(self) -> None:
        """Prints the JSON object, where one was asked for."""
        if self._as_json:
            print(json.dumps(self.facts))


def cell(value: Any) -> str:
    """A value as it stands in a table."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else visible(str(value))


def visible(text: str) -> str:
    """Text of the data in one line: what is not seen, or steers a terminal, as an escape."""
    seen = (c if c.isprintable() and not _UNSEEN.match(c) else ascii(c)[1:-1] for c in text)
    return "".join(seen)


class Snapshot:
    """The snapshot that is looked at: its manifest, and its reader, which loads TensorFlow."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._here: str = arguments.here
        self.root: str = (arguments.root or self._here).rstrip("/")
        try:
            self.manifest: dict[str, Any] = json.loads(self.read("manifest.json"))
            self.splits: dict[str, dict[str, Any]] = self.manifest["splits"]
            self.gzip = self.manifest["compression"] == "gzip"
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RefusedError(
                f"{self.root}/manifest.json is no manifest ({error!r}).", DAMAGED
            ) from None

    def read(self, name: str) -> bytes:
        """A small file's content."""
        path = f"{self.root}/{name}"
        if "://" in path:
            with load_tensorflow().io.gfile.GFile(path, "rb") as file:
                return bytes(file.read())
        if not os.path.exists(path):
            raise RefusedError(f"There is no {path}: give a published snapshot's folder as --root.")
        with open(path, "rb") as file:
            return file.read()

    def reader(self) -> types.ModuleType:
        """The module ``reader.py`` that lies beside this file."""
        path = os.path.join(self._here, "reader.py")
        if not os.path.exists(path):
            raise RefusedError(f"There is no {path}: keep reader_tools.py beside its reader.py.")
        load_tensorflow()
        spec = importlib.util.spec_from_file_location("reader", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            spec.loader.exec_module(module)
        finally:
            sys.dont_write_bytecode = before
        return module

    def split(self, name: str | None) -> str:
        """A split that holds examples: the one named, else train, else the largest."""
        counts = {key: int(split["num_examples"]) for key, split in self.splits.items()}
        if name is None:
            name = "train" if counts.get("train") else max(counts, key=lambda key: counts[key])
        if name not in counts:
            raise RefusedError(f"There is no split {name!r}, only {', '.join(counts)}.")
        if not counts[name]:
            raise RefusedError(f"Split {name!r} holds no examples: give another as --split.")
        return name

    def paths(self, split: str) -> list[str]:
        """The files of a split's shards."""
        return [f"{self.root}/{shard['file']}" for shard in self.splits[split]["shards"]]


def load_tensorflow() -> Any:
    """TensorFlow, loaded when it is needed: --help does without."""
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        sys.stderr.flush()
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)  # it talks of missing accelerators while it loads
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
        self.snapshot = snapshot = Snapshot(arguments)
        self.split = snapshot.split(arguments.split)
        self.batch_size: int = arguments.batch_size
        if self.batch_size < 1:
            raise RefusedError(f"--batch-size {self.batch_size} must be 1 or more.")
        self.paths = snapshot.paths(self.split)
        for path in self.paths:
            if "://" not in path and not os.path.exists(path):
                raise RefusedError(f"{path} is missing: restore it, or build again.", DAMAGED)
        facts = snapshot.splits[self.split]
        self.num_examples, self.num_bytes = int(facts["num_examples"]), int(facts["num_bytes"])
        self.bytes_each = self.num_bytes / self.num_examples
        self.reader = snapshot.reader()
        self.known = inspect.signature(self.reader.dataset).parameters
        self.options: dict[str, Any] = {}
        for given in arguments.option:
            key, equals, text = given.partition("=")
            if not equals or key not in self.known or key in _OURS:
                raise RefusedError(
                    f"--option {given}: expected NAME=VALUE with a name that reader.dataset() "
                    f"takes: {', '.join(name for name in self.known if name not in _OURS)}."
                )
            try:
                self.options[key] = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                self.options[key] = text
        if arguments.image_size and "image_size" not in self.known:
            raise RefusedError(f"{self.reader.NAME} has no images: leave out --image-size.")
        if arguments.image_size:
            self.options["image_size"] = tuple(arguments.image_size)

    def dataset(self, **changes: Any) -> Any:
        """The reader's dataset with the options given, and changes to them."""
        options = {"epochs": None, **self.options, **changes}
        batch_size = options.pop("batch_size", self.batch_size)
        return self.reader.dataset(self.split, batch_size, root=self.snapshot.root, **options)

    def shuffles(self) -> bool:
        """Whether the options shuffle."""
        chosen = self.options.get("shuffle")
        return self.split == "train" if chosen is None else bool(chosen)

    @property
    def num_open(self) -> int:
        """Shards that are read at a time."""
        return min(16, len(self.paths)) if self.shuffles() else 1

    def parser(self) -> Callable[[Any], Any]:
        """The reader's own function from a batch of serialized examples to tensors."""
        names = ("columns", "as_supervised", "image_size", "dtype", "scale")
        chosen = {name: self.options[name] for name in names if name in self.options}
        parse: Callable[[Any], Any] = self.reader._parser(**chosen)
        return parse

    def records(self, paths: Sequence[str] | None = None, gzip: bool | None = None) -> Any:
        """Serialized examples of all shards, forever: interleaved where the reader does that."""
        tf = load_tensorflow()
        names = self.paths if paths is None else list(paths)
        kind = "GZIP" if (self.snapshot.gzip if gzip is None else gzip) else ""
        if not self.shuffles():
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

    def plain_parser(self) -> Callable[[Any], Any]:
        """``tf.io.parse_example`` alone: lists as they are stored, media as bytes."""
        tf = load_tensorflow()
        columns = {}
        for name, feature in self.reader.FEATURES.items():
            kind = feature.get("dtype", "string")
            stored = tf.float32 if kind in ("float16", "bfloat16", "float32") else tf.int64
            if feature["kind"] == "image" or kind == "string" or feature.get("packed"):
                stored = tf.string
            columns[name] = tf.io.RaggedFeature(stored, row_splits_dtype=tf.int64)
        return lambda serialized: tf.io.parse_example(serialized, columns)


def size_of(batch: Any) -> int:
    """How many examples a batch holds."""
    first = load_tensorflow().nest.flatten(batch)[0]
    return int(first.nrows()) if hasattr(first, "nrows") else int(first.shape[0])


def time_batches(
    batches: Iterable[Any], seconds: float, *, warm_up: int = _WARM_UP
) -> dict[str, float]:
    """Reads batches for so many seconds, after a few that do not count; what it took."""
    iterator, until = iter(batches), time.perf_counter() + seconds
    for _ in range(warm_up):
        if next(iterator, None) is None or time.perf_counter() > until:
            break
    all_worked = _all_processors()
    count, elapsed, begun, worked = 0, 0.0, time.perf_counter(), time.process_time()
    for batch in iterator:
        count += size_of(batch)
        elapsed = time.perf_counter() - begun
        if elapsed >= seconds:
            break
    return {
        "num": count,
        "seconds": elapsed,
        "rate": count / elapsed if elapsed else 0,
        "cpu": time.process_time() - worked,
        "all_cpu": _all_processors() - all_worked,
    }


def _all_processors() -> float:
    """Seconds that this machine's processors worked, for whomever; 0 where it does not tell."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(part) for part in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0.0
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # idle, waiting for disks


def drop_cache(paths: Sequence[str]) -> str | None:
    """Drops the shards from the page cache; says why it could not, else None."""
    if not hasattr(os, "posix_fadvise"):
        return "this system has no posix_fadvise"
    if any("://" in path for path in paths):
        return "the shards lie in a store, not in this machine's page cache"
    for path in paths:
        with open(path, "rb") as file:
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())  # a page that is not written yet stays
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = _cached_share(paths)
    return f"{share:.0%} of the pages stayed" if share is not None and share > 0.1 else None


def _cached_share(paths: Sequence[str]) -> float | None:
    """Which share of some pages of the files lies in memory; None where the system cannot tell."""
    found = []
    with contextlib.suppress(OSError, AttributeError):
        for path in paths:
            with open(path, "rb") as file:
                num_bytes = os.fstat(file.fileno()).st_size
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # look, don't read on
                for place in range(0, num_bytes, max(4096, num_bytes // 8)):
                    try:
                        os.preadv(file.fileno(), [bytearray(1)], place, os.RWF_NOWAIT)
                        found.append(1)
                    except BlockingIOError:
                        found.append(0)
    return sum(found) / len(found) if found else None


_ADVICE = {
    "read": "storage is slow: keep a local copy or a cache{cache}, more and larger reads (bigger "
    "shards), or GZIP where it saves bytes",
    "decompress": 'GZIP costs more than it saves here: build with Shards(compression="none")',
    "frame": "reading records is all that is done here: more processors, or fewer bytes an example",
    "batch": "the overhead of a batch shows: take larger batches",
    "parse": "parsing binds: store fewer and smaller features (a Tensor instead of many Scalars), "
    "and take larger batches",
    "decode": "decoding binds: store pixels instead of JPEG (ss.images.decode in the recipe), at "
    "their final size (ss.images.resize); a cache holds records as they are stored, and would not "
    "help",
    "shuffle": "shuffling binds: a smaller buffer (shuffle=N; the shards are shuffled already), no "
    "seed where the order may vary, no augmentation before it",
    "augment": "augmenting binds: put what is the same in every epoch into the recipe, the rest "
    "into the model (Keras preprocessing layers on the accelerator)",
}


def examine(arguments: argparse.Namespace, out: Output) -> int:
    """Measures stage by stage, with a simulated training step, and says what to change."""
    source = Input(arguments)
    if arguments.step_ms < 0:
        raise RefusedError(f"--step-ms {arguments.step_ms} must be 0 or more.")
    step = arguments.step_ms / 1000
    stages = _stages(source, arguments, out)
    trained = _train(source, step, max(arguments.seconds, 20 * step))
    whole = stages[-1]
    needed = source.batch_size / step if step else float("inf")
    out.say(
        f"\na step of {arguments.step_ms:g} ms takes {needed:,.0f} examples/s; the pipeline gives "
        f"{whole['rate']:,.0f}. In {trained['steps']} steps training waited {trained['share']:.0%} "
        f"of the time (median {trained['median']:.2f} ms a step, 95th percentile "
        f"{trained['p95']:.2f} ms)."
    )
    waits = trained["share"] > _STARVED
    bound = waits and whole["rate"] < 1.5 * needed
    slowest = max(stages, key=lambda stage: float(stage["added"]))
    out.facts |= {"bound_by_input": bound, "slowest_stage": slowest["name"], "train": trained}
    if bound:
        rest = sum(stage["added"] for stage in stages if stage is not slowest)
        without = 1e6 / max(rest, 1e-3)
        out.say(
            f"=> bound by INPUT, most by {slowest['name']}: {slowest['added']:.1f} of "
            f"{rest + slowest['added']:.1f} µs an example; the other stages alone give about "
            f"{without:,.0f} examples/s."
        )
        cache = ' (cache="memory" or a folder)' if "cache" in source.known else ""
        advice = [_ADVICE[slowest["name"]].format(cache=cache), _processors(whole)]
        for text in advice:
            out.say(f"   - {text}")
        out.facts["advice"] = advice
    elif waits:
        out.say(
            "=> not bound by the pipeline, which is fast enough: what is left is handing over a "
            "batch. Larger batches, or several steps a call (Keras: steps_per_execution), hide it."
        )
    else:
        out.say("=> not bound by input: a faster reader would not make training faster.")
    _symptoms(source, trained, out)
    reads = bound and slowest["name"] in ("read", "decompress", "frame")
    _checklist(source, stages, out, reading_binds=reads)
    return 0


def _processors(whole: dict[str, Any]) -> str:
    """Whether more processors or more parallelism would help."""
    number = os.cpu_count() or 1
    if whole["others"] >= 0.25 * number:
        return (
            f"other programs take {whole['others']:.1f} of {number} processors, this one "
            f"{whole['busy']:.1f}: measure again without them"
        )
    if whole["busy"] >= 0.75 * number:
        return (
            f"{whole['busy']:.1f} of {number} processors work: do less per example, take more "
            "processors, or read on other machines (reader_tools.py serve)"
        )
    return (
        f"only {whole['busy']:.1f} of {number} processors work: more parallelism helps (more "
        "shards, no seed where the order may vary, larger batches)"
    )


def _stages(source: Input, arguments: argparse.Namespace, out: Output) -> list[dict[str, Any]]:
    """Times the pipeline with one stage after the other added."""
    tf = load_tensorflow()
    auto, size = tf.data.AUTOTUNE, source.batch_size
    seconds = arguments.seconds
    large = max(size, int(4 * MB / source.bytes_each))

    def parsed() -> Any:
        if not source.shuffles():
            return source.dataset()
        batches = source.records().batch(size)
        return batches.map(source.parser(), num_parallel_calls=auto).prefetch(auto)

    layers: list[tuple[str, str, Callable[[], Any]]] = [
        (
            "decompress" if source.snapshot.gzip else "frame",
            f"records of {source.num_open} shards at a time, checksums",
            lambda: source.records().batch(large).prefetch(1),
        ),
        ("batch", f"of {size}", lambda: source.records().batch(size).prefetch(auto)),
    ]
    if getattr(source.reader, "LAYOUT", None):
        # The reader cuts such values out of the bytes: it has no parsing of its own.
        layers.append(("parse", "all values cut out at their places", parsed))
    else:
        layers += [
            (
                "parse",
                "tf.io.parse_example",
                lambda: (
                    source.records()
                    .batch(size)
                    .map(source.plain_parser(), num_parallel_calls=auto)
                    .prefetch(auto)
                ),
            ),
            ("decode", "media, packed and ragged values", parsed),
        ]
    if source.shuffles():
        layers.append(("shuffle", "files, records, chunks", source.dataset))
    if arguments.augment:
        augment = _function(arguments.augment)
        if "augment" not in source.known:
            raise RefusedError("--augment: this snapshot's reader.dataset() takes none.")
        layers.append(
            ("augment", arguments.augment, lambda: _augmented(source, augment, arguments))
        )

    found = [_bytes_read(source, seconds)]
    for name, what, make in layers:
        timed = time_batches(make(), seconds)
        found.append(
            {
                "name": name,
                "what": what,
                "rate": timed["rate"],
                "cpu": timed["cpu"] / max(1, timed["num"]) * 1e6,
                "busy": timed["cpu"] / max(1e-9, timed["seconds"]),
                "others": (timed["all_cpu"] - timed["cpu"]) / max(1e-9, timed["seconds"]),
            }
        )
    if arguments.augment:
        source.options["augment"] = augment
    before = 0.0
    for index, stage in enumerate(found):
        # A stage takes no longer than it does with others behind it: what does was disturbed.
        rate = max(later["rate"] for later in found[index:]) if index else stage["rate"]
        spent = 1e6 / max(1e-9, rate)
        # Stages overlap: one that the others hide adds nothing.
        stage["added"] = max(0.0, spent - before)
        before = max(before, spent)
    out.say(
        f"{source.split}, batches of {size}, {os.cpu_count()} processors; each with all above it"
    )
    columns = ("stage", "what", "examples/s", "µs added", "µs of CPU", "processors")
    keys = ("name", "what", "rate", "added", "cpu", "busy")
    out.table("stages", columns, [[stage[key] for key in keys] for stage in found])
    return found


def _bytes_read(source: Input, seconds: float) -> dict[str, Any]:
    """The stage "read": the shards' bytes and nothing else.

    As they come from storage, where later epochs do so too; else as they come from memory.
    """
    cold = drop_cache(source.paths) is None
    first, again = _read_once(source, seconds), _read_once(source, seconds)
    fits = cold and 2 * source.num_bytes < _free_memory()
    told = f"{first['mb_per_s']:,.0f} MB/s {'from storage' if cold else 'at first'}"
    what = f"bytes: {told}, then {again['mb_per_s']:,.0f}"
    return (again if fits else first) | {"name": "read", "what": what, "first": first["mb_per_s"]}


def _read_once(source: Input, seconds: float) -> dict[str, Any]:
    """Reads the shards' bytes one after the other, for so many seconds at most."""
    begun, worked, num_bytes = time.perf_counter(), time.process_time(), 0
    for path in source.paths:
        with load_tensorflow().io.gfile.GFile(path, "rb") as file:
            while time.perf_counter() - begun < seconds and (piece := file.read(1 << 20)):
                num_bytes += len(piece)
    spent, cpu = time.perf_counter() - begun, time.process_time() - worked
    num = max(1.0, num_bytes / source.bytes_each)
    rates = {"rate": num / spent, "cpu": cpu / num * 1e6, "busy": cpu / spent}
    return {**rates, "mb_per_s": num_bytes / spent / MB}


def _function(place: str) -> Callable[..., Any]:
    """The function that ``FILE.py:NAME`` names."""
    path, _, name = place.rpartition(":")
    if not os.path.exists(path):
        raise RefusedError(f"--augment {place}: expected FILE.py:FUNCTION; there is no {path!r}.")
    spec = importlib.util.spec_from_file_location("augmentation", path)
    if spec is None or spec.loader is None:
        raise RefusedError(f"--augment {place}: {path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001, RUF100 (code of somebody)
        raise RefusedError(f"--augment {place}: {path} fails when imported: {error!r}.") from None
    found: Callable[..., Any] | None = getattr(module, name, None)
    if found is None:
        raise RefusedError(f"--augment {place}: {path} has no {name!r}.")
    return found


def _augmented(source: Input, augment: Any, arguments: argparse.Namespace) -> Any:
    """The pipeline with an augmentation, which is somebody's code."""
    try:
        return source.dataset(augment=augment)
    except Exception as error:  # noqa: BLE001, RUF100 (code of somebody)
        reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        raise RefusedError(f"--augment {arguments.augment} cannot be applied: {reason}") from None


def _train(source: Input, step: float, seconds: float) -> dict[str, Any]:
    """Epochs of simulated training: how long each step waited for its batch, in ms."""
    dataset = source.dataset(epochs=1)
    waits: list[float] = []
    starts: list[float] = []
    ends: list[float] = []
    sizes: set[int] = set()
    memory: list[int] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        iterator = iter(dataset)
        for number in itertools.count():
            asked = time.perf_counter()
            batch = next(iterator, None)
            waited = (time.perf_counter() - asked) * 1000
            if batch is None:
                ends.append(waited)
                break
            (waits if number else starts).append(waited)
            sizes.add(size_of(batch))
            time.sleep(step)
            if number % 16 == 0:
                memory.append(_memory())
            if time.perf_counter() - begun >= seconds:
                break
    if not ends:
        ends.extend(_end_of_part(source))
    steady = waits or starts
    later = memory[len(memory) // 2 :]
    return {
        "steps": len(waits) + len(starts),
        "median": statistics.median(steady),
        "p95": sorted(steady)[int(0.95 * (len(steady) - 1))],
        "share": sum(steady) / max(1e-9, sum(steady) + len(steady) * step * 1000),
        "epoch_start": statistics.median(starts),
        "epoch_end": max(ends) if ends else None,
        "sizes": sorted(sizes),
        "memory_mb": later[-1] / MB,
        "growth_mb": (later[-1] - later[0]) / MB,
    }


def _end_of_part(source: Input) -> list[float]:
    """How long the end of a few batches' part of an epoch took, in ms; empty where none can be."""
    parts = -(-source.num_examples // (8 * source.batch_size))
    try:
        for _ in source.dataset(epochs=1, shard=(0, parts)):
            asked = time.perf_counter()
    except (ValueError, TypeError):
        return []
    return [(time.perf_counter() - asked) * 1000]


def _memory() -> int:
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _symptoms(source: Input, trained: dict[str, Any], out: Output) -> None:
    """The usual complaints: what of them was seen, and where they come from."""
    end = trained["epoch_end"]
    short = source.num_examples % source.batch_size
    growing = trained["growth_mb"] > max(64, 0.1 * trained["memory_mb"])
    jumpy = trained["p95"] > max(5.0, 10 * trained["median"])
    rows = [
        (
            "starved accelerator",
            "yes" if trained["share"] > _STARVED else "no",
            f"waits {trained['share']:.0%} of the time",
            (
                f"the slowest stage above; {trained['epoch_start']:.0f} ms to fill the buffers "
                "at each epoch's start"
            ),
        ),
        (
            "memory growth",
            "yes" if growing else "no",
            f"{trained['growth_mb']:+,.0f} MB in the second half, of {trained['memory_mb']:,.0f}",
            "a cache that fills, a shuffle buffer of large records, or batches kept in a list",
        ),
        (
            "hanging epoch end",
            "not reached" if end is None else "yes" if end > 1000 else "no",
            "the epoch was not read to its end" if end is None else f"{end:.1f} ms",
            "workers with unequal step counts wait for each other"
            + (": equal_steps=True" if "equal_steps" in source.known else ": drop_remainder=True"),
        ),
        (
            "uneven batches",
            "yes" if jumpy or (short and len(trained["sizes"]) > 1) else "no",
            (
                f"sizes {', '.join(map(str, trained['sizes']))}; waits {trained['median']:.2f} ms, "
                f"95 % under {trained['p95']:.2f}"
            ),
            "records of very unequal cost, or a disk and processors that others use too"
            if jumpy or not short
            else f"the last batch of an epoch holds {short} (drop_remainder=True leaves it out)",
        ),
    ]
    out.say("\nsymptoms")
    out.table("symptoms", ("symptom", "seen", "measured", "where it comes from"), rows)


def _operations(dataset: Any) -> tuple[set[str], str]:
    """The names of all operations of a dataset's graph, and of its last dataset."""
    tf = load_tensorflow()
    content = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset), external_state_policy=1
    )
    graph = tf.compat.v1.GraphDef.FromString(content.numpy())
    functions = [node for function in graph.library.function for node in function.node_def]
    by_name = {node.name: node for node in graph.node}
    last = next((by_name[n.input[0].split(":")[0]].op for n in graph.node if n.op == "_Retval"), "")
    return {node.op for node in [*graph.node, *functions]}, last


def _checklist(
    source: Input, stages: list[dict[str, Any]], out: Output, *, reading_binds: bool
) -> None:
    """The advice that production pipelines are given, item by item, against what was measured."""
    dataset = source.dataset()
    used, last = _operations(dataset)
    sizes = [shard["num_bytes"] / MB for shard in source.snapshot.splits[source.split]["shards"]]
    read_mb_per_s = stages[0]["first"]
    ratio, unzip_mb_per_s = _gzip_facts(source)
    pays = ratio < 0.9 and read_mb_per_s < unzip_mb_per_s
    rows: list[tuple[str, bool, str]] = []

    def check(item: str, good: bool, fact: str, advice: str = "") -> None:
        rows.append((item, good, fact if good or not advice else f"{fact}: {advice}"))

    def has(name: str) -> bool:
        return any(op.startswith(name) for op in used)

    check(
        "compression where it pays",
        pays == source.snapshot.gzip,
        f"{source.snapshot.manifest['compression']}; GZIP leaves {ratio:.0%} of the bytes, gives "
        f"{unzip_mb_per_s:,.0f} MB/s a processor, storage gave {read_mb_per_s:,.0f}",
        f'build with Shards(compression="{"gzip" if pays else "none"}")',
    )
    few = sum(sizes) < 16 * 8  # so small that 16 shards would be crumbs
    check(
        "shards of 100–200 MB, 16 or more",
        few or (len(sizes) >= 16 and 8 <= max(sizes) <= 250),
        f"{len(sizes)} of {min(sizes):,.1f} to {max(sizes):,.1f} MB, {sum(sizes):,.0f} MB in all"
        + (", as many as so little data is good for" if few else ""),
        "set Shards(target_bytes=…)",
    )
    check(
        "interleaved reading",
        has("ParallelInterleave") or len(sizes) == 1 or not source.shuffles(),
        f"{min(16, len(sizes))} shards at a time" if has("ParallelInterleave") else "one by one",
        "shuffle=True interleaves",
    )
    changing = _first_batch(dataset) != _first_batch(dataset)
    check(
        "files and elements shuffled",
        not source.shuffles() or (has("Shuffle") and changing),
        ("shuffled: two passes begin with different batches" if changing else "stored order")
        + ("" if source.shuffles() else ", as meant for evaluation"),
        "a seed in every pass gives the same order",
    )
    check(
        "parallel map",
        has("ParallelMap"),
        "ParallelMap" if has("ParallelMap") else "map in one thread",
    )
    single = has("ParseSingleExample")
    check("batched, then parsed", not single, f"one call {'an example' if single else 'a batch'}")
    free = _free_memory()
    fits = source.num_bytes * 2 < free
    cached = bool(source.options.get("cache"))
    check(
        "cache",
        cached or not reading_binds or not fits,
        f"{source.num_bytes / MB:,.0f} MB stored, {free / MB:,.0f} MB of memory free; "
        f"{'used' if cached else 'not used'}{'' if reading_binds else ', reading does not bind'}",
        'it fits: cache="memory"' if "cache" in source.known else "it fits: Dataset.cache()",
    )
    check("prefetch last", last.startswith("Prefetch"), f"the last stage is {last}")
    check("profiled", True, "by stage, above; by operation: reader_tools.py profile DIR")
    order = bool(dataset.options().deterministic)
    check(
        "non-deterministic order where allowed",
        not (order and source.shuffles()) or "seed" in source.options,
        f"deterministic={order}"
        + (", which the seed asks for" if "seed" in source.options else ""),
    )
    out.say("\nchecklist")
    table = [(item, "ok" if good else "ADVICE", fact) for item, good, fact in rows]
    out.table("checklist", ("item", "", "measured"), table)


def _gzip_facts(source: Input) -> tuple[float, float]:
    """What GZIP leaves of the bytes, and how many MB/s (of what it gives) a processor unpacks."""
    with load_tensorflow().io.gfile.GFile(source.paths[0], "rb") as file:
        content = bytes(file.read(4 << 20))
    packed = content if source.snapshot.gzip else zlib.compress(content, wbits=31)
    begun = time.perf_counter()
    plain = zlib.decompressobj(31).decompress(packed)
    spent = time.perf_counter() - begun
    return len(packed) / max(1, len(plain)), len(plain) / max(1e-6, spent) / MB


def _first_batch(dataset: Any) -> str:
    """A hash of the first batch's values."""
    tf = load_tensorflow()
    parts = tf.nest.flatten(next(iter(dataset)), expand_composites=True)
    values = [tf.io.serialize_tensor(part).numpy() for part in parts]
    return hashlib.sha256(b"".join(values)).hexdigest()


def _free_memory() -> int:
    """Bytes of memory that are free; 0 where the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
