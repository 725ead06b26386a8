"""``doctor``: does input limit training, at which stage of the pipeline, and what helps?

The reader's own pipeline is timed up to each of its stages, in three rounds. The cost of a stage is
what it adds: processor time if the processors are saturated, since each stage then slows down all
others; otherwise wall time. If the costs contradict each other, or the rounds disagree, the verdict
is "inconclusive".
"""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import hashlib
import importlib.util
import itertools
import math
import os
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import facts
from .console import MB, Output, RefusedError
from .timing import (
    Input,
    Timed,
    bytes_of,
    cached_share,
    drop_cache,
    held_memory,
    load_tensorflow,
    num_processors,
    plain_parser,
    size_of,
    throttle,
    time_batches,
    time_bytes,
)
from .waits import STARVED, Epoch, Summary, summarize

if TYPE_CHECKING:
    from .pipeline import Plan

_ROUNDS = 3
_STEPS = 20
"""Minimum number of steps of simulated training, and of batches of each stage in all rounds."""
_LARGE_BYTES = 4 * MB
"""Size of the batches in which records reach Python before the stage "batch" …"""
_SLOW_SECONDS = 0.05
"""… and the maximum seconds for one of them: on a slow store they are smaller."""
_SATURATED = 0.75
"""Processors are saturated if this process uses this share of them …"""
_CROWDED = 0.9
"""… or if all programs together use this share, and this process a quarter."""


@dataclasses.dataclass
class Stage:
    """The timed pipeline up to a stage."""

    name: str
    what: str
    rounds: list[Timed] = dataclasses.field(default_factory=list)
    added: float = 0.0
    """µs per example that it adds to the stages before it."""

    def median(self, of: Callable[[Timed], float]) -> float:
        """The median of the rounds."""
        return statistics.median(map(of, self.rounds))


@dataclasses.dataclass(frozen=True)
class Measured:
    """The measured stages."""

    stages: Sequence[Stage]
    by: str
    """"processor time" or "wall time"."""
    from_storage: bool
    """Whether reads are served by storage, not by the page cache."""
    first_mb_per_s: float
    """Rate of the first read."""
    doubt: str | None
    """Why the slowest stage is unknown; None if it is known."""

    @property
    def whole(self) -> Stage:
        """The complete pipeline."""
        return self.stages[-1]

    @property
    def slowest(self) -> Stage:
        """The stage that adds the most."""
        return max(self.stages, key=lambda stage: stage.added)


@dataclasses.dataclass(frozen=True)
class Trained:
    """Results of simulated training."""

    waits: Summary
    epoch_end: float | None
    """ms until the end of an epoch was detected; None if none was reached."""
    sizes: Sequence[int]
    """Distinct batch sizes."""
    bytes_each: float
    """Bytes per example, as tensors."""
    spread: float
    """Bytes of the largest of 20 batches, relative to the median."""
    memory_mb: float
    growth_mb: float
    """During the second half."""


def doctor(arguments: argparse.Namespace, out: Output) -> int:
    """Measures stage by stage, with a simulated training step, and recommends what to change."""
    source = Input(arguments)
    if arguments.step_ms < 0:
        raise RefusedError(f"--step-ms {arguments.step_ms} must be 0 or more.")
    step = arguments.step_ms / 1000
    plan, augmented = _plans(source, arguments)
    measured = _measure(source, plan, augmented, arguments)
    _say_stages(source, measured, out)
    trained = _train(source, augmented or plan, step, max(arguments.seconds, _STEPS * step))
    bound = _say_verdict(source, measured, trained, arguments.step_ms, out)
    report_symptoms(source, measured, trained, arguments.step_ms, out)
    _checklist(source, augmented or plan, measured, bound, trained, out)
    return 0


def _plans(source: Input, arguments: argparse.Namespace) -> tuple[Plan, Plan | None]:
    """The reader's plan, and the plan with ``--augment``."""
    plan = _throttled(source, source.plan(), arguments.mb_per_s)
    if not arguments.augment:
        return plan, None
    augment = _function(arguments.augment)
    from .pipeline import read

    try:
        augmented = source.plan(augment=augment)
        read(augmented)  # traces it
    except Exception as error:  # noqa: BLE001, RUF100 (the user's code)
        reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        raise RefusedError(f"--augment {arguments.augment} cannot be applied: {reason}") from None
    source.options["augment"] = augment
    return plan, _throttled(source, augmented, arguments.mb_per_s)


def _throttled(source: Input, plan: Plan, mb_per_s: float | None) -> Plan:
    """The plan, with records delayed as if they came from a store at ``mb_per_s``."""
    if mb_per_s is None:
        return plan
    if plan.options.service is not None or plan.options.cache == "decoded":
        raise RefusedError("--mb-per-s: leave out --option service= and cache=decoded.")
    read_epoch, rate = plan.read_epoch, mb_per_s

    def read(plan: Plan, seed: Any) -> Any:
        return throttle(read_epoch(plan, seed), rate, source.bytes_each)

    return dataclasses.replace(plan, read_epoch=read)


def _function(place: str) -> Callable[..., Any]:
    """Loads the function named by ``FILE.py:NAME``."""
    path, _, name = place.rpartition(":")
    if not os.path.exists(path):
        raise RefusedError(f"--augment {place}: expected FILE.py:FUNCTION; there is no {path!r}.")
    spec = importlib.util.spec_from_file_location("augmentation", path)
    if spec is None or spec.loader is None:
        raise RefusedError(f"--augment {place}: {path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001, RUF100 (the user's code)
        raise RefusedError(f"--augment {place}: {path} fails when imported: {error!r}.") from None
    found: Callable[..., Any] | None = getattr(module, name, None)
    if found is None:
        raise RefusedError(f"--augment {place}: {path} has no {name!r}.")
    return found


# Stages.


def _measure(
    source: Input, plan: Plan, augmented: Plan | None, arguments: argparse.Namespace
) -> Measured:
    """Times the bytes, then the pipeline with one stage added after another, in rounds."""
    seconds = arguments.seconds / _ROUNDS
    makers = _stages(source, plan, augmented, arguments)
    stages = [Stage(name, what) for name, what, _ in makers]
    datasets = [make() for _, _, make in makers]
    read, from_storage, first = _read(source, plan, arguments)
    for _ in range(_ROUNDS):
        for stage, dataset in zip(stages, datasets, strict=True):
            # An iterator kept alive would fill its buffers while the next one is timed.
            stage.rounds.append(time_batches(dataset, seconds, least=-(-_STEPS // _ROUNDS)))
    stages = [read, *stages]
    by, cost = cost_basis(stages[-1])
    base = [read] if from_storage else []
    attribute([*base, *stages[1:]], cost)
    doubt = doubt_of([*base, *stages[1:]], cost)
    return Measured(stages, by, from_storage, first, doubt)


def _read(source: Input, plan: Plan, arguments: argparse.Namespace) -> tuple[Stage, bool, float]:
    """The stage "read": only the bytes of the shards.

    Returns:
        The stage; whether storage serves the reads of later epochs; MB/s of the first read.
    """
    seconds, threads = arguments.seconds, max(1, min(plan.order.num_open, len(source.paths)))
    is_cold = drop_cache(source.paths) is None
    first = time_bytes(source, seconds, threads=threads)
    again = time_bytes(source, seconds, threads=threads)
    mb_per_s = [timed.rate * source.bytes_each / MB for timed in (first, again)]
    where = "storage" if is_cold or source.is_remote else "the page cache"
    what = f"bytes: {mb_per_s[0]:,.0f} MB/s from {where}, then {mb_per_s[1]:,.0f}"
    if arguments.mb_per_s is not None:
        slow = [_slowed(source, timed, arguments.mb_per_s) for timed in (first, again)]
        what = f"bytes: as if storage gave {arguments.mb_per_s:g} MB/s"
        return Stage("read", what, slow), True, min(mb_per_s[0], arguments.mb_per_s)
    share = None if source.is_remote else cached_share(source.paths)
    if share is None:  # unknown: cached if there is room
        from .cache import free_memory

        from_storage = source.is_remote or 2 * source.num_bytes > free_memory()
    else:
        from_storage = share < 0.9
    rounds = [first, first, again] if from_storage else [again]
    return Stage("read", what, rounds), from_storage, mb_per_s[0]


def _slowed(source: Input, timed: Timed, mb_per_s: float) -> Timed:
    """The same measurement, limited to ``mb_per_s``."""
    seconds = timed.num * source.bytes_each / (mb_per_s * MB)
    return dataclasses.replace(timed, seconds=max(timed.seconds, seconds))


def _stages(
    source: Input, plan: Plan, augmented: Plan | None, arguments: argparse.Namespace
) -> list[tuple[str, str, Callable[[], Any]]]:
    """The name of each stage, its description, and the pipeline up to it."""
    from . import pipeline
    from .cache import as_is

    options, size = plan.options, source.batch_size
    # A slow store would take too long for a large batch.
    num_bytes = min(_LARGE_BYTES, (arguments.mb_per_s or math.inf) * MB * _SLOW_SECONDS)
    large = max(size, int(num_bytes / source.bytes_each))

    def up_to(read_epoch: Callable[..., Any], plan: Plan = plan) -> Callable[[], Any]:
        part = dataclasses.replace(plan, read_epoch=read_epoch, num_batches=None)
        return lambda: pipeline.prefetch(part, part.read_epochs(part))

    def slowed(batches: Any) -> Any:
        rate = arguments.mb_per_s
        return batches if rate is None else throttle(batches, rate, source.bytes_each)

    def interleaved(plan: Plan, seed: Any) -> Any:
        return slowed(pipeline.interleave_records(plan, seed).rebatch(large))

    def shuffled(plan: Plan, seed: Any) -> Any:
        chunks = pipeline.interleave_records(plan, seed)
        return slowed(pipeline.shuffle_records(plan, chunks, seed).rebatch(large))

    def in_order(plan: Plan, seed: Any) -> Any:
        return slowed(pipeline.read_in_order(plan).batch(large))

    first = "decompress" if source.snapshot.gzip else "frame"
    shards = f"{len(source.paths)} {'shard' if len(source.paths) == 1 else 'shards'}"
    plain = source.plan() if arguments.mb_per_s is not None else plan
    found: list[tuple[str, str, Callable[[], Any]]] = []
    if plain.read_epoch is not pipeline.read_epoch:
        rare = ("balance", "bucket", "cache", "equal_steps", "service", "start_step")
        given = [name for name in rare if getattr(options, name)]
        what = f"records and batches of {size}, with {', '.join(given) or 'these options'}"
        found.append((first, what, up_to(plan.read_epoch)))
    else:
        if options.shuffles:
            calm = dataclasses.replace(plan, order=_unshuffled(plan.order))
            what = f"records of {plan.order.num_open} streams in {shards}, checksums"
            found.append((first, what, up_to(interleaved, calm)))
            found.append(("shuffle", "records within streams, chunks", up_to(shuffled)))
        else:
            found.append((first, f"records of {shards}, one after another", up_to(in_order)))
        found.append(("batch", f"of {size}", up_to(plan.read_epoch)))
    if plan.parse_batch is not as_is:

        def whole() -> Any:
            return pipeline.read(plan)

        if facts.LAYOUT:  # values are sliced out of the bytes: there is no separate parsing
            found.append(("parse", "all values, sliced out at fixed offsets", whole))
        else:
            only = dataclasses.replace(plan, parse_batch=_first_parsed(plain_parser()))
            found.append(("parse", "tf.io.parse_example", lambda: pipeline.read(only)))
            found.append(("decode", "media, packed and ragged values", whole))
    if augmented is not None:
        found.append(("augment", arguments.augment, lambda: pipeline.read(augmented)))
    return found


def _first_parsed(parse: Callable[[Any], Any]) -> Callable[..., Any]:
    """Parses only the first component of an element, the batch of records."""
    return lambda serialized, *_: parse(serialized)


def _unshuffled(order: Any) -> Any:
    """The same streams, in stored order within each piece."""
    calm = copy.copy(order)
    calm.window = 1
    return calm


def cost_basis(whole: Stage) -> tuple[str, Callable[[Timed], float]]:
    """The measure of cost: processor time if the processors are saturated, else wall time."""
    number = num_processors()
    busy = whole.median(lambda timed: timed.busy)
    others = whole.median(lambda timed: timed.busy_others)
    crowded = busy + others >= _CROWDED * number and busy >= 0.25 * number
    if busy >= _SATURATED * number or crowded:
        return "processor time", lambda timed: timed.cpu_each
    return "wall time", lambda timed: timed.wall_each


def attribute(stages: Sequence[Stage], cost: Callable[[Timed], float]) -> None:
    """Sets what each stage adds to those before it; a stage hidden by others adds nothing."""
    for stage, added in zip(stages, _added([stage.median(cost) for stage in stages]), strict=True):
        stage.added = added


def _added(costs: Sequence[float]) -> list[float]:
    most = [0.0, *itertools.accumulate(costs, max)]
    return [b - a for a, b in itertools.pairwise(most)]


def doubt_of(stages: Sequence[Stage], cost: Callable[[Timed], float]) -> str | None:
    """Why the slowest stage is unknown; None if it is known.

    Args:
        stages: In order, each including all before it, after ``attribute``.
        cost: Cost of one round.
    """
    slowest = max(stages, key=lambda stage: stage.added)
    before = 0.0
    for stage in stages:
        spent = stage.median(cost)
        if before - spent > 0.5 * slowest.added:
            return (
                f"with {stage.name!r} an example took {spent:.1f} µs, and without it {before:.1f}"
            )
        before = max(before, spent)
    winners: collections.Counter[str] = collections.Counter()
    for number in range(_ROUNDS):
        costs = [cost(stage.rounds[min(number, len(stage.rounds) - 1)]) for stage in stages]
        added = _added(costs)
        winners[stages[added.index(max(added))].name] += 1
    if winners[slowest.name] <= _ROUNDS // 2:
        return f"three rounds named {', '.join(winners)}"
    return None


def _say_stages(source: Input, measured: Measured, out: Output) -> None:
    out.say(
        f"{source.split}, batches of {source.batch_size}, {num_processors()} processors; each "
        f"stage includes all above it; medians of {_ROUNDS} rounds; µs added are {measured.by}"
    )
    columns = ("stage", "what", "examples/s", "µs added", "µs of CPU", "processors")
    rows = [
        (
            stage.name,
            stage.what,
            stage.median(lambda timed: timed.rate),
            stage.added,
            stage.median(lambda timed: timed.cpu_each),
            stage.median(lambda timed: timed.busy),
        )
        for stage in measured.stages
    ]
    out.table("stages", columns, rows)
    out.facts["attributed_by"] = measured.by
    out.facts["reads_served_by"] = "storage" if measured.from_storage else "page cache"


# Training.


def _train(source: Input, plan: Plan, step: float, seconds: float) -> Trained:
    """Simulates epochs of training, at least 20 steps: how long each step waits for its batch."""
    from .pipeline import read

    dataset = read(dataclasses.replace(plan, options=dataclasses.replace(plan.options, epochs=1)))
    epochs: list[Epoch] = []
    ends: list[float] = []
    sizes: set[int] = set()
    memory: list[int] = []
    begun, steps, is_over = time.perf_counter(), 0, False
    while not is_over:
        epoch, iterator, started = Epoch(), iter(dataset), time.perf_counter()
        while not is_over:
            asked = time.perf_counter()
            batch = next(iterator, None)
            waited = (time.perf_counter() - asked) * 1000
            if batch is None:
                ends.append(waited)
                epoch.is_complete = True
                break
            epoch.waits.append(waited)
            asked = time.perf_counter()
            sizes.add(size_of(batch))
            if steps % 16 == 0:
                memory.append(held_memory())
            time.sleep(max(0.0, step - (time.perf_counter() - asked)))
            steps += 1
            is_over = time.perf_counter() - begun >= seconds and steps >= _STEPS
        epoch.seconds = time.perf_counter() - started
        epochs.append(epoch)
        is_over = is_over or not epoch.waits
    # Not within a step, which would give the pipeline more time than a training step does.
    volumes = [(size_of(batch), bytes_of(batch)) for batch in itertools.islice(dataset, _STEPS)]
    if not ends:
        ends.extend(_end_of_part(source))
    later = memory[len(memory) // 2 :]
    full = [num_bytes for size, num_bytes in volumes if size == max(sizes)]
    return Trained(
        waits=summarize(epochs),
        epoch_end=max(ends) if ends else None,
        sizes=sorted(sizes),
        bytes_each=sum(num for _, num in volumes) / max(1, sum(size for size, _ in volumes)),
        spread=max(full) / max(1.0, statistics.median(full)) if full else 1.0,
        memory_mb=later[-1] / MB,
        growth_mb=(later[-1] - later[0]) / MB,
    )


def _end_of_part(source: Input) -> list[float]:
    """Measures how long the end of an epoch of a few batches takes, in ms; empty if impossible."""
    parts = -(-source.num_examples // (8 * source.batch_size))
    try:
        for _ in source.dataset(epochs=1, shard=(0, parts)):
            asked = time.perf_counter()
    except (ValueError, TypeError):
        return []
    return [(time.perf_counter() - asked) * 1000]


def _say_verdict(
    source: Input, measured: Measured, trained: Trained, step_ms: float, out: Output
) -> str | None:
    """Reports whether input limits training; returns the name of the limiting stage, if known."""
    waits = trained.waits
    rate = measured.whole.median(lambda timed: timed.rate)
    needed = 1000 * source.batch_size / step_ms if step_ms else math.inf
    starves = waits.share > STARVED
    is_bound = starves and rate < 1.5 * needed
    slowest = measured.slowest
    out.say(
        f"\na step of {step_ms:g} ms needs {needed:,.0f} examples/s; the pipeline delivers "
        f"{rate:,.0f}. {waits.lines()[0]}"
    )
    out.facts |= {
        "bound_by_input": is_bound,
        "slowest_stage": None if measured.doubt else slowest.name,
        "inconclusive": measured.doubt,
        "train": dataclasses.asdict(waits) | {"sizes": trained.sizes},
    }
    if not is_bound:
        out.say(
            "=> not bound by input: a faster reader would not make training faster."
            if not starves
            else "=> not bound by the pipeline, which is fast enough: the rest is the cost of "
            "passing a batch to Python. Larger batches, or several steps per call (Keras: "
            "steps_per_execution), hide it."
        )
        return None
    if measured.doubt:
        advice = [
            "measure again without other programs, and longer (--seconds 10)",
            *advice_on_processors(source, measured.whole),
        ]
        out.say(f"=> bound by INPUT; the limiting stage is inconclusive: {measured.doubt}.")
    else:
        total = sum(stage.added for stage in measured.stages)
        out.say(
            f"=> bound by INPUT, mostly by {slowest.name}: {slowest.added:.1f} of {total:.1f} µs "
            f"of {measured.by} per example."
        )
        advice = [
            *_advice(source, measured, trained),
            *advice_on_processors(source, measured.whole),
        ]
    for text in advice:
        out.say(f"   - {text}")
    out.facts["advice"] = advice
    return None if measured.doubt else slowest.name


def advice_on_processors(source: Input, whole: Stage) -> list[str]:
    """Advice on processors: whether more of them would help."""
    number = num_processors()
    busy = whole.median(lambda timed: timed.busy)
    others = whole.median(lambda timed: timed.busy_others)
    if others >= 0.25 * number:
        text = (
            f"other programs use {others:.1f} of {number} processors, this one {busy:.1f}: "
            "measure again without them"
        )
        return [text]
    if busy >= _SATURATED * number:
        ways = ["do less per example", "use more processors"]
        if not source.options.get("service") and source.allows(service="grpc://host:1"):
            ways.append("read on other machines (python -m reader serve)")
        text = f"{', '.join(ways[:-1])} or {ways[-1]}"
        return [f"{busy:.1f} of {number} processors are busy: {text}"]
    return []


# Advice: only options that can be set for this split and with these options.


def _advice(source: Input, measured: Measured, trained: Trained) -> list[str]:
    """What to change if the slowest stage limits training."""
    name = measured.slowest.name
    cache, shards = cache_advice(source, trained, name), judge_shards(source)
    found: list[str] = []
    if name in ("read", "decompress", "frame"):
        found += _faster_reading(source, measured)
        found += [] if cache is None else [cache]
        found += [] if shards.advice is None else [f"{shards.fact}: {shards.advice}"]
    elif name == "shuffle":
        found += less_shuffling(source)
    elif name == "batch":
        found.append("the overhead of each batch dominates: use larger batches (--batch-size)")
    elif name in ("parse", "decode"):
        found += [] if cache is None else [cache]
        found += _less_parsing(source, name)
    elif name == "augment":
        found.append(
            "move what is the same in every epoch into the recipe, and the rest into the model "
            "(Keras preprocessing layers run on the accelerator)"
        )
        found.append("augment a batch in one call: augment_batch= instead of augment=")
    return [f"{name} binds: {text}" if not i else text for i, text in enumerate(found)]


def _faster_reading(source: Input, measured: Measured) -> list[str]:
    """Advice on reading, decompressing and framing, without caches."""
    name, found = measured.slowest.name, []
    pays, *_ = _compression(source, measured)
    if name == "read":
        found.append(f"storage is slow ({measured.first_mb_per_s:,.0f} MB/s)")
        if source.allows(local_copy="/a/local/folder") and not source.options.get("local_copy"):
            found.append("keep a copy on a local disk: local_copy=FOLDER")
        if pays == "gzip" and not source.snapshot.gzip:
            found.append('fewer bytes: build with Shards(compression="gzip")')
    elif name == "frame":
        found.append(
            "reading records is the limit: store fewer bytes per example, or use more processors"
        )
    else:
        if pays == "none":
            found.append(
                'GZIP costs more than it saves here: build with Shards(compression="none")'
            )
        if len(source.paths) < num_processors() and judge_shards(source).advice is None:
            found.append(
                f"each shard is decompressed by one processor, and there are only "
                f"{len(source.paths)}: build with Shards(min_shards={num_processors()})"
            )
    return found


def less_shuffling(source: Input) -> list[str]:
    """Advice if shuffling is the slowest stage."""
    from .order import CHUNK

    buffer = source.options.get("shuffle")
    if type(buffer) is int:
        return [f"a smaller buffer than shuffle={buffer} (the shards are already shuffled)"]
    if source.batch_size < 8 * CHUNK:
        text = f"larger batches, up to {8 * CHUNK}: chunks of an eighth of a batch are shuffled"
        return [text]
    return ["a smaller buffer: shuffle=1000, for example (the shards are already shuffled)"]


def _less_parsing(source: Input, name: str) -> list[str]:
    """Advice on less parsing or decoding."""
    encoded = [
        key for key, feature in facts.FEATURES.items()
        if feature["kind"] == "image" and feature.get("storage") == "encoded"
    ]  # fmt: skip
    if name == "decode" and encoded:
        text = (
            "store pixels instead of files (ss.images.decode in the recipe), at their final size "
            "(ss.images.resize)"
        )
        return [text]
    found = "store fewer and smaller features (a Tensor instead of many Scalars)"
    if len(facts.FEATURES) > 1 and not source.options.get("columns"):
        found += ", or read fewer: columns="
    return [found]


def cache_advice(source: Input, trained: Trained, name: str) -> str | None:
    """A cache that would save a stage and can be set, and its memory; None if there is none."""
    from .cache import free_memory

    free = free_memory()
    if source.options.get("cache") or source.options.get("local_copy"):
        return None
    decoded = 2 * trained.bytes_each * source.num_examples  # twice while it is being filled
    if name in ("parse", "decode") or (name == "decompress" and decoded < free):
        if decoded < free and source.allows(cache="decoded"):
            return (
                f'cache="decoded" keeps examples in memory from the first epoch on '
                f"({decoded / MB:,.0f} MB while it is being filled, {free / MB:,.0f} MB free)"
            )
        return None
    stored = facts.RECORD_BYTES * source.num_examples
    if name in ("read", "decompress") and 2 * stored < free and source.allows(cache="memory"):
        return (
            f'cache="memory" keeps records from the first epoch on ({stored / MB:,.0f} MB, '
            f"{free / MB:,.0f} MB free)"
        )
    return None


@dataclasses.dataclass(frozen=True)
class Judged:
    """Assessment of a split's shards."""

    fact: str
    advice: str | None = None
    """What to set instead; None if nothing is wrong."""


def judge_shards(source: Input) -> Judged:
    """Compares the shards of a split with the build's own rule for its size."""
    sizes = source.shard_bytes
    total, num = sum(sizes), len(sizes)
    # 150 MB each, or 16 as long as they stay over 8 MB, as ``Shards()`` does.
    ideal = max(1, -(-total // (150 * MB)), min(16, total // (8 * MB)))
    fact = f"{num} of {min(sizes) / MB:,.2f} to {max(sizes) / MB:,.2f} MB, {total / MB:,.0f} MB"
    if source.split not in facts.NUM_EXAMPLES:  # shards belong to splits, not to parts of them
        return Judged(fact)
    setting = f'Shards(num_shards={{"{source.split}": {ideal}}})'
    # Opening a file costs as much as 50 to 100 records; in a store, one or two requests.
    short = source.num_examples / num < 1_000 or source.is_remote
    if num > max(2 * ideal, 16) and total / num < 8 * MB and short:
        return Judged(
            f"{num} shards of {total / num / MB:,.2f} MB and {source.num_examples / num:,.0f} "
            f"examples each",
            f"opening them costs more than interleaving gains: build with {setting}",
        )
    if 2 * num <= ideal:
        return Judged(fact, f"too few for this much data: build with {setting}")
    return Judged(fact)


def _compression(source: Input, measured: Measured) -> tuple[str, float, float]:
    """The compression that pays off with this storage; GZIP's ratio; its MB/s per processor.

    If the page cache serves the reads, no compression pays off.
    """
    with load_tensorflow().io.gfile.GFile(source.paths[0], "rb") as file:
        content = bytes(file.read(4 << 20))
    packed = content if source.snapshot.gzip else zlib.compress(content, wbits=31)
    begun = time.perf_counter()
    plain = zlib.decompressobj(31).decompress(packed)
    spent = time.perf_counter() - begun
    ratio, unzipped = len(packed) / max(1, len(plain)), len(plain) / max(1e-6, spent) / MB
    pays = measured.from_storage and ratio < 0.9 and measured.first_mb_per_s < unzipped
    return ("gzip" if pays else "none"), ratio, unzipped


# Symptoms and checklist.


def report_symptoms(
    source: Input, measured: Measured, trained: Trained, step_ms: float, out: Output
) -> None:
    """Reports the symptoms known from tuning guides: whether each was seen, and likely causes."""
    waits, end = trained.waits, trained.epoch_end
    short = source.num_examples % source.batch_size
    growing = trained.growth_mb > max(64, 0.1 * trained.memory_mb)
    jumpy = waits.p95 > max(5.0, 10 * waits.median) and waits.stalls is None
    unequal = trained.spread > 1.5
    first = waits.first_epoch
    # Examples/s of training, limited by the pipeline. The first epoch needs them from storage.
    rate = min(
        1000 * source.batch_size / max(1e-6, step_ms),
        measured.whole.median(lambda timed: timed.rate),
    )
    needed = rate * source.bytes_each / MB
    cold = not measured.from_storage and measured.first_mb_per_s < needed
    rows = [
        (
            "starved accelerator",
            "yes" if waits.share > STARVED else "no",
            f"waits {waits.share:.0%} of the time",
            "the slowest stage above",
        ),
        (
            "slow epoch start",
            "yes" if waits.epoch_start > max(200.0, 2 * step_ms) else "no",
            f"{waits.epoch_start:,.0f} ms for the first batch of an epoch",
            "buffers fill, files open: epochs=None and steps_per_epoch= make it one long pass",
        ),
        (
            "slow first epoch",
            "yes" if cold or (first or 0) > STARVED else "not reached" if first is None else "no",
            (f"{first:.0%} of an epoch's time longer than the others" if first is not None else
             "fewer than two epochs were read completely")
            + f"; bytes came at {measured.first_mb_per_s:,.0f} MB/s at first",
            "storage, until the page cache or a cache holds the shards",
        ),
        (
            "periodic stalls",
            "yes" if waits.stalls else "no",
            "no regular interval" if waits.stalls is None else
            f"{waits.stalls.milliseconds:,.0f} ms every {waits.stalls.every} steps "
            f"({waits.stalls.every * source.batch_size:,} examples)",
            ("something that recurs after this many examples: shards that end together, a large "
            "shuffle buffer, a costly kind of record, or another program's timer"),
        ),
        (
            "memory growth",
            "yes" if growing else "no",
            f"{trained.growth_mb:+,.0f} MB in the second half, of {trained.memory_mb:,.0f}",
            "a cache that fills, a shuffle buffer of large records, or batches kept in a list",
        ),
        (
            "hanging epoch end",
            "not reached" if end is None else "yes" if end > 1000 else "no",
            "the epoch was not read to its end" if end is None else f"{end:.1f} ms",
            "workers with unequal step counts wait for each other"
            + (": equal_steps=True" if source.allows(equal_steps=True) else ""),
        ),
        (
            "uneven batches",
            "yes" if jumpy or unequal or (short and len(trained.sizes) > 1) else "no",
            (f"sizes {', '.join(map(str, trained.sizes))}; the largest has "
            f"{trained.spread:.2f} × the median's bytes; waits {waits.median:.2f} ms, 95 % under "
            f"{waits.p95:.2f}"),
            _uneven(source, short, unequal=unequal, jumpy=jumpy),
        ),
    ]  # fmt: skip
    out.say("\nsymptoms")
    out.table("symptoms", ("symptom", "seen", "measured", "where it comes from"), rows)


def _uneven(source: Input, short: int, *, unequal: bool, jumpy: bool) -> str:
    """The cause of uneven batches."""
    if unequal and facts.LENGTHS:
        same = ": bucket=True makes batches of similar length" if source.allows(bucket=True) else ""
        return f"examples of very unequal length{same}"
    if jumpy or unequal or not short:
        return "records of very unequal cost, or other programs that use the disk and processors"
    return f"the last batch of an epoch has {short} examples" + (
        " (drop_remainder=True drops it)" if source.allows(drop_remainder=True) else ""
    )


def operations_of(dataset: Any) -> tuple[set[str], str]:
    """The names of all ops in a dataset's graph, and the op of its last dataset.

    Uses the raw op because TensorFlow has no public function for this graph.
    """
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
    source: Input,
    plan: Plan,
    measured: Measured,
    bound: str | None,
    trained: Trained,
    out: Output,
) -> None:
    """Reports the advice known from tuning guides, item by item, with measurements."""
    dataset = source.dataset()
    used, last = operations_of(dataset)
    pays, ratio, unzipped = _compression(source, measured)
    rows: list[tuple[str, bool, str]] = []

    def check(item: str, good: bool, fact: str, advice: str | None = None) -> None:
        rows.append((item, good, fact if good or not advice else f"{fact}: {advice}"))

    def has(name: str) -> bool:
        return any(op.startswith(name) for op in used)

    stored = "gzip" if source.snapshot.gzip else "none"
    served = "storage" if measured.from_storage else "the page cache"
    check(
        "compression where it pays",
        # Worth a rebuild if reading is the limit, or if GZIP is decompressed for nothing.
        pays == stored or (pays == "gzip" and bound != "read"),
        f"{stored}; GZIP leaves {ratio:.0%} of the bytes, yields {unzipped:,.0f} MB/s per "
        f"processor; {measured.first_mb_per_s:,.0f} MB/s at first, {served} serves later reads",
        f'build with Shards(compression="{pays}")',
    )
    shards = judge_shards(source)
    check("shards that suit the split", shards.advice is None, shards.fact, shards.advice)
    check(
        "interleaved reading",
        has("ParallelInterleave") or len(source.paths) == 1 or not plan.options.shuffles,
        f"{plan.order.num_open} streams at a time" if has("ParallelInterleave") else "one by one",
        "shuffle=True interleaves",
    )
    changing = _first_batch(dataset) != _first_batch(dataset)
    check(
        "files and elements shuffled",
        not plan.options.shuffles or (changing and (has("Shuffle") or has("StatelessShuffle"))),
        ("shuffled: two passes start with different batches" if changing else "stored order")
        + ("" if plan.options.shuffles else ", as intended for evaluation"),
    )
    check(
        "parallel map",
        has("ParallelMap"),
        "ParallelMap" if has("ParallelMap") else "map in one thread",
    )
    single = has("ParseSingleExample")
    check("batched, then parsed", not single, f"one call per {'example' if single else 'batch'}")
    cache = cache_advice(source, trained, bound or "")
    used_cache = source.options.get("cache")
    check(
        "cache",
        cache is None,
        f"{f'cache={used_cache!r}' if used_cache else 'not used'}"
        + ("" if bound else ", input is not the limit" if measured.doubt is None else ""),
        cache,
    )
    check("prefetch last", last.startswith("Prefetch"), f"the last stage is {last}")
    check("profiled", True, "by stage: above; by operation: python -m reader profile DIR")
    order = bool(dataset.options().deterministic)
    seeded = source.options.get("seed") is not None
    check(
        "non-deterministic order where allowed",
        not (order and plan.options.shuffles) or seeded,
        f"deterministic={order}" + (", as the seed requires" if seeded else ""),
        "leave out deterministic=True",
    )
    out.say("\nchecklist")
    table = [(item, "ok" if good else "ADVICE", fact) for item, good, fact in rows]
    out.table("checklist", ("item", "", "measured"), table)


def _first_batch(dataset: Any) -> str:
    """A hash of the first batch's values."""
    tf = load_tensorflow()
    parts = tf.nest.flatten(next(iter(dataset)), expand_composites=True)
    values = [tf.io.serialize_tensor(part).numpy() for part in parts]
    return hashlib.sha256(b"".join(values)).hexdigest()
