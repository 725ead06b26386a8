"""``diagnose``: does input limit training, at which stage of the pipeline, and what helps?

    print(reader.diagnose("train", 128, step_ms=50, as_supervised=True, augment=augment))

It measures first: the pipeline up to each of its stages, in three rounds, then training whose steps
only sleep. ``conclude`` works on these numbers alone. The cost of a stage is what
it adds to the stages before it:

    µs per example up to   frame 15   shuffle 16   batch 16   parse 93
    so they add                  15            1          0         77: parse binds

The cost is processor time if the processors are saturated, since each stage then slows down all
others; otherwise it is wall time. If the costs contradict each other, or the rounds disagree, the
stage that binds is unknown.
"""

from __future__ import annotations

import collections
import concurrent.futures
import copy
import dataclasses
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

from . import facts, pipeline
from .cache import as_is, free_memory
from .input_wait import STARVED, Epoch, Summary, summarize
from .options import Options
from .order import CHUNK
from .pipeline import Plan
from .plan import plan_reading
from .shards import Shard
from .splits import Split, select

MB = 1_000_000
_ROUNDS = 3
_STEPS = 20
"""Minimum number of simulated steps, and of batches of each stage in all rounds."""
_WARM_UP = 10
"""Number of batches before the clock starts."""
_LARGE_BYTES = 4 * MB
"""Size of the batches in which records reach Python before the stage "batch"."""
_SATURATED = 0.75
"""Processors are saturated if this process uses this share of them …"""
_CROWDED = 0.9
"""… or if all programs together use this share, and this process a quarter."""


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


@dataclasses.dataclass(frozen=True)
class Stage:
    """The pipeline up to a stage, timed in rounds."""

    name: str
    rounds: Sequence[Timed]

    def median(self, of: Callable[[Timed], float]) -> float:
        """The median of the rounds."""
        return statistics.median(map(of, self.rounds))


@dataclasses.dataclass(frozen=True)
class Measured:
    """What is read, with which options, and everything that was measured."""

    options: Options
    shards: Sequence[Shard]
    processors: int
    """Number that this process may use."""
    stages: Sequence[Stage]
    """In order, each including those before it; the first is "read", of bytes alone, if storage,
    not the page cache, serves later epochs too."""
    waits: Summary
    """Of simulated training."""
    bytes_each: float
    """Size of an example's tensors, without strings."""

    def allows(self, **changes: Any) -> bool:
        """Whether these options could be set in addition to the given ones."""
        try:
            dataclasses.replace(self.options, **changes)
        except ValueError:
            return False
        return True


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """Whether input limits training, where, and what to change; ``print`` shows all of it."""

    is_bound: bool
    """Whether the pipeline limits training."""
    stage: str | None
    """The stage that adds most; None if that is unknown."""
    doubt: str | None
    """Why the stage is unknown."""
    verdict: str
    advice: Sequence[str]
    """What to change, most effective first: only what the options allow."""
    notes: Sequence[str]
    """What else is out of the ordinary."""
    summary: Sequence[str]
    """The measurements."""

    def __str__(self) -> str:
        advice, notes = ([f"   - {text}" for text in each] for each in (self.advice, self.notes))
        also = ["also:", *notes] if notes else []
        return "\n".join([*self.summary, f"=> {self.verdict}", *advice, *also])


def diagnose(
    split: Split, batch_size: int, *, step_ms: float, seconds: float = 2.0, **options: Any
) -> Diagnosis:
    """Measures the input of a training, stage by stage, and recommends what to change.

    Args:
        split: As in ``dataset``.
        batch_size: As in ``dataset``.
        step_ms: Duration of a training step without waiting for input.
        seconds: Duration of each measurement.
        options: Other options of ``dataset``, as the training passes them; ``epochs`` is ignored.

    Returns:
        The diagnosis; ``print`` it.

    Raises:
        ValueError: if an option is invalid, or the snapshot cannot be read.
    """
    if not 0 <= step_ms < float("inf"):
        raise ValueError(f"step_ms={step_ms!r} must be a number of milliseconds, 0 or more.")
    if not select(split).num_examples:
        raise ValueError(f"split={split!r} has no records to measure. Use another split.")
    given = Options(split, batch_size, **{**options, "epochs": None})
    plan = plan_reading(dataclasses.replace(given, augment=None, augment_batch=None))
    whole = plan_reading(given) if given.augments else plan
    return conclude(_measure(plan, whole, step_ms / 1000, seconds), step_ms)


# Measurements.


def _measure(plan: Plan, whole: Plan, step: float, seconds: float) -> Measured:
    """Times the bytes, then the pipeline with one stage added after another, then training."""
    shards, rounds = plan.shards, dict[str, list[Timed]]()
    total = sum(shard.num_bytes for shard in shards)
    each = total / sum(shard.num_stored for shard in shards)
    if "://" in plan.options.root_folder or 2 * total > free_memory():
        rounds["read"] = [_time_bytes(shards, each, plan.order.num_open, seconds)]
    datasets = _stages(plan, whole, max(plan.options.batch_size, int(_LARGE_BYTES / each)))
    for _ in range(_ROUNDS):
        for name, dataset in datasets.items():
            # An iterator kept alive would fill its buffers while the next one is timed.
            timed = _time_batches(dataset, seconds / _ROUNDS)
            rounds.setdefault(name, []).append(timed)
    waits = summarize(_train(whole, step, max(seconds, _STEPS * step)))
    some = list(itertools.islice(pipeline.read(whole), _STEPS))
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Measured(
        options=whole.options,
        shards=shards,
        processors=available or 1,
        stages=[Stage(name, timed) for name, timed in rounds.items()],
        waits=waits,
        bytes_each=sum(map(_bytes_of, some)) / sum(map(_size_of, some)),
    )


def _stages(plan: Plan, whole: Plan, large: int) -> dict[str, tf.data.Dataset]:
    """The pipeline up to each stage, by name; records reach Python in batches of ``large``."""

    def up_to(plan: Plan, read_epoch: Callable[[Plan, Any], tf.data.Dataset]) -> tf.data.Dataset:
        part = dataclasses.replace(plan, read_epoch=read_epoch, num_batches=None)
        return pipeline.prefetch(part, part.read_epochs(part))

    def interleaved(plan: Plan, seed: Any) -> tf.data.Dataset:
        return pipeline.interleave_records(plan, seed).rebatch(large)

    def shuffled(plan: Plan, seed: Any) -> tf.data.Dataset:
        chunks = pipeline.interleave_records(plan, seed)
        return pipeline.shuffle_records(plan, chunks, seed).rebatch(large)

    def in_order(plan: Plan, seed: Any) -> tf.data.Dataset:
        return pipeline.read_in_order(plan).batch(large)

    first = "decompress" if facts.COMPRESSION == "gzip" else "frame"
    stages: dict[str, tf.data.Dataset] = {}
    if plan.read_epoch is not pipeline.read_epoch:  # an option replaces these stages
        stages[first] = up_to(plan, plan.read_epoch)
    else:
        if plan.options.shuffles:
            order = copy.copy(plan.order)
            order.window = 1  # stored order within each piece
            stages[first] = up_to(dataclasses.replace(plan, order=order), interleaved)
            stages["shuffle"] = up_to(plan, shuffled)
        else:
            stages[first] = up_to(plan, in_order)
        stages["batch"] = up_to(plan, plan.read_epoch)
    if plan.parse_batch is not as_is:
        stages["parse"] = pipeline.read(plan)
    if whole is not plan:
        stages["augment"] = pipeline.read(whole)
    return stages


def _train(plan: Plan, step: float, seconds: float) -> list[Epoch]:
    """Simulates epochs of training, at least 20 steps; each step sleeps."""
    one = dataclasses.replace(plan, options=dataclasses.replace(plan.options, epochs=1))
    dataset, epochs, steps = pipeline.read(one), list[Epoch](), 0
    begun, is_over = time.perf_counter(), False
    while not is_over:
        epoch, batches, started = Epoch(), iter(dataset), time.perf_counter()
        while not is_over and not epoch.is_complete:
            asked = time.perf_counter()
            if next(batches, None) is None:
                epoch.is_complete = True
                continue
            epoch.waits.append(1000 * (time.perf_counter() - asked))
            time.sleep(step)
            steps += 1
            is_over = time.perf_counter() - begun >= seconds and steps >= _STEPS
        epoch.seconds = time.perf_counter() - started
        epochs.append(epoch)
    return epochs


def _time_batches(batches: Iterable[Any], seconds: float) -> Timed:
    """Reads batches for ``seconds``, and at least 7 of them, after an untimed warm-up."""
    iterator, until = iter(batches), time.perf_counter() + seconds
    for _ in range(_WARM_UP):
        if next(iterator, None) is None or time.perf_counter() > until:
            break
    count, elapsed = 0, 0.0
    begun, cpu, machine = time.perf_counter(), time.process_time(), _machine_seconds()
    for number, batch in enumerate(iterator, start=1):
        count += _size_of(batch)
        elapsed = time.perf_counter() - begun
        if elapsed >= seconds and number * _ROUNDS >= _STEPS:
            break
    cpu = time.process_time() - cpu
    return Timed(count, elapsed, cpu, max(0.0, _machine_seconds() - machine - cpu))


def _time_bytes(shards: Sequence[Shard], each: float, threads: int, seconds: float) -> Timed:
    """Reads only the bytes of the shards, once, for at most ``seconds``."""
    begun, cpu = time.perf_counter(), time.process_time()

    def read(shard: Shard) -> int:
        num_bytes = 0
        with tf.io.gfile.GFile(shard.path, "rb") as file:
            while time.perf_counter() - begun < seconds and (content := file.read(1 << 20)):
                num_bytes += len(content)
        return num_bytes

    with concurrent.futures.ThreadPoolExecutor(min(threads, len(shards))) as pool:
        num = sum(pool.map(read, shards)) / each
    return Timed(num, time.perf_counter() - begun, time.process_time() - cpu, 0.0)


def _size_of(batch: Any) -> int:
    """The number of examples in a batch."""
    first = tf.nest.flatten(batch)[0]
    return int(first.nrows()) if hasattr(first, "nrows") else int(first.shape[0])


def _bytes_of(batch: Any) -> int:
    """The size of a batch's tensors, without strings."""
    tensors = tf.nest.flatten(batch, expand_composites=True)
    return sum(
        int(tf.size(tensor)) * tensor.dtype.size for tensor in tensors if tensor.dtype != tf.string
    )


def _machine_seconds() -> float:
    """Seconds that this machine's processors worked; 0 if unknown."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(part) for part in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0.0
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # minus idle and iowait


# Conclusions.


def conclude(measured: Measured, step_ms: float) -> Diagnosis:
    """Draws the conclusions from what was measured."""
    whole, waits, processors = measured.stages[-1], measured.waits, measured.processors
    busy = whole.median(lambda timed: timed.cpu / max(1e-9, timed.seconds))
    others = whole.median(lambda timed: timed.others / max(1e-9, timed.seconds))
    is_busy = busy >= _SATURATED * processors
    by_cpu = is_busy or (busy + others >= _CROWDED * processors and busy >= 0.25 * processors)
    added, doubt = attribute(measured, by_cpu=by_cpu)
    stage = max(added, key=lambda name: added[name])
    rate, needed = _rate(whole), 1000 * measured.options.batch_size / max(1e-6, step_ms)
    is_bound = waits.share > STARVED and rate < 1.5 * needed
    verdict = "not bound by input: a faster reader would not make training faster"
    if waits.share > STARVED and not is_bound:
        verdict = (
            "the pipeline is fast enough: the waits are the cost of passing a batch to Python; "
            "larger batches, or several steps per call (Keras: steps_per_execution), hide it"
        )
    advice: list[str] = []
    if is_bound:
        verdict = f"bound by input, mostly by the stage {stage!r}"
        if doubt is not None:
            verdict = f"bound by input; the stage is inconclusive: {doubt}"
        advice += _advice(measured, stage) if doubt is None else []
        if others >= 0.25 * processors:
            advice.append(
                f"other programs use {others:.1f} of {processors} processors, this one "
                f"{busy:.1f}: measure again without them"
            )
        elif doubt is not None:
            advice.append("measure again, for longer: seconds=10")
        elif is_busy:
            text = f"{busy:.1f} of {processors} processors are busy: do less per example"
            is_local = measured.options.service is None and measured.allows(service="grpc://a:1")
            advice.append(text + (", or read on other machines: service=" if is_local else ""))
    summary = [
        f"{one.name:<10} {_rate(one):>11,.0f} examples/s {added.get(one.name, 0.0):>9,.1f} µs added"
        for one in measured.stages
    ]
    summary += [
        f"(each with the stages above it; {'processor' if by_cpu else 'wall'} time per example)",
        f"A step of {step_ms:g} ms needs {needed:,.0f} examples/s. {' '.join(waits.lines())}",
    ]
    notes = [text for text in (judge_shards(measured.options.split, measured.shards),) if text]
    if waits.epoch_start > 200:
        text = f"the first batch of an epoch takes {waits.epoch_start:,.0f} ms: epochs=None with "
        notes.append(text + "steps_per_epoch= makes one long pass")
    known = None if doubt else stage
    return Diagnosis(is_bound, known, doubt, verdict, advice, notes, summary)


def attribute(measured: Measured, *, by_cpu: bool) -> tuple[dict[str, float], str | None]:
    """What each stage adds to those before it, in µs; a stage hidden by others adds nothing.

    Returns:
        The added time by stage; why the stage that adds most is unknown, or None if it is known.
    """

    def cost(timed: Timed) -> float:
        return 1e6 * (timed.cpu if by_cpu else timed.seconds) / max(1.0, timed.num)

    def add(costs: Sequence[float]) -> list[float]:
        return [b - a for a, b in itertools.pairwise([0.0, *itertools.accumulate(costs, max)])]

    stages = measured.stages
    costs = [stage.median(cost) for stage in stages]
    added = {stage.name: each for stage, each in zip(stages, add(costs), strict=True)}
    slowest, most = max(added.items(), key=lambda item: item[1])
    before = 0.0
    for stage, spent in zip(stages, costs, strict=True):
        if before - spent > 0.5 * most:
            return added, (
                f"with {stage.name!r} an example took {spent:.1f} µs, and without it {before:.1f}"
            )
        before = max(before, spent)
    winners: collections.Counter[str] = collections.Counter()
    for number in range(_ROUNDS):
        each = add([cost(stage.rounds[min(number, len(stage.rounds) - 1)]) for stage in stages])
        winners[stages[each.index(max(each))].name] += 1
    if winners[slowest] <= _ROUNDS // 2:
        return added, f"three rounds named {', '.join(winners)}"
    return added, None


def _rate(stage: Stage) -> float:
    """Examples per second."""
    return stage.median(lambda timed: timed.num / max(1e-9, timed.seconds))


def _advice(measured: Measured, stage: str) -> list[str]:
    """What to change if this stage limits training: only what the options allow."""
    options, num_shards = measured.options, len(measured.shards)
    has_photos = any(feature.get("storage") == "encoded" for feature in facts.FEATURES.values())
    advice = []
    if stage == "read":
        if options.local_copy is None and measured.allows(local_copy="/a/folder"):
            advice.append("storage is slow: keep a copy on a local disk, local_copy=")
        if facts.COMPRESSION == "none" and not has_photos:
            advice.append('fewer bytes: build with Shards(compression="gzip")')
    elif stage == "decompress":
        if measured.stages[0].name != "read":
            advice.append('GZIP costs time here: build with Shards(compression="none")')
        if num_shards < measured.processors:
            advice.append(
                f"a shard is decompressed by one processor, and there are only {num_shards}: build "
                f"with Shards(min_shards={measured.processors})"
            )
    elif stage == "frame":
        advice.append("reading records is the limit: store fewer bytes per example")
    elif stage == "shuffle":
        advice.append(
            "a smaller buffer, such as shuffle=1000: shards are shuffled already"
            if options.batch_size >= 8 * CHUNK
            else f"larger batches, up to {8 * CHUNK}: an eighth of a batch is shuffled as one chunk"
        )
    elif stage == "batch":
        advice.append("the overhead of each batch dominates: use a larger batch_size")
    elif stage == "augment":
        advice.append("move what is the same in every epoch into the recipe")
        if options.augment is not None:
            advice.append("augment a batch in one call: augment_batch= instead of augment=")
    elif has_photos:
        advice.append("store pixels at their final size (ss.images.decode, ss.images.resize)")
    elif len(facts.FEATURES) > 1 and options.columns is None:
        advice.append("read fewer features: columns=")
    cache = _cache_advice(measured, stage)
    return [cache, *advice] if cache else advice


def _cache_advice(measured: Measured, stage: str) -> str | None:
    """A cache that would save this stage, can be set, and has room; else None."""
    if measured.options.cache is not None or measured.options.local_copy is not None:
        return None
    free, num = free_memory(), sum(shard.num_examples for shard in measured.shards)
    for kind, saved, each in (
        ("decoded", ("decompress", "parse"), measured.bytes_each),
        ("memory", ("read", "decompress"), facts.RECORD_BYTES),
    ):
        total = 2 * each * num  # twice while the cache is being filled
        if stage in saved and total < free and measured.allows(cache=kind):
            return (
                f'cache="{kind}" saves the stage {stage!r} from the second epoch on '
                f"({total / MB:,.0f} MB at most, {free / MB:,.0f} MB are free)"
            )
    return None


def judge_shards(split: Split, shards: Sequence[Shard]) -> str | None:
    """Compares the shards of a split with the build's own rule for its size; None if they fit."""
    num, total = len(shards), sum(shard.num_bytes for shard in shards)
    if split not in facts.NUM_EXAMPLES:  # a part of a split has no shards of its own
        return None
    # 150 MB each, or 16 as long as they stay over 8 MB, as ``Shards()`` does.
    ideal = max(1, -(-total // (150 * MB)), min(16, total // (8 * MB)))
    setting = f'build with Shards(num_shards={{"{split}": {ideal}}})'
    # Opening a file costs as much as 50 to 100 records; in a store, one or two requests.
    is_short = sum(shard.num_examples for shard in shards) / num < 1_000 or "://" in shards[0].path
    if num > max(2 * ideal, 16) and total / num < 8 * MB and is_short:
        return f"opening {num} shards of {total / num / MB:,.2f} MB costs time: {setting}"
    if 2 * num <= ideal:
        return f"{num} shards are too few for {total / MB:,.0f} MB: {setting}"
    return None
