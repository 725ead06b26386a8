"""What ``reader.py`` beside it does for options that few runs use.

``change`` is told of each of them by ``dataset``. It needs TensorFlow and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

_Range = tuple[str, int, int, int]  # path; records to skip there, to take; place of the first
_Epoch = Callable[[Any], tf.data.Dataset]  # from the seed of an epoch to its batches


def change(job: Any) -> None:
    """Changes what ``dataset`` is about to read, as the options ask for it.

    Args:
        job: The arguments of ``dataset`` by name; and ``reader`` (what reader.py holds), ``root``,
            ``shards`` (path, number), ``ranges`` and ``streams`` (the same as a dataset), ``read``
            (opens one), ``ahead`` (what is done to streams before they are opened), ``num_open``,
            ``buffer``, ``num_batches`` of an epoch, ``epoch`` (batches of serialized examples, from
            an epoch's seed), ``finish`` (what is made of them), ``passes`` (the batches of all
            epochs) and ``last`` (what is done to the finished dataset). Each may be replaced.

    Raises:
        ValueError: if two of the options exclude each other, or one is none that can be.
    """
    asked = vars(job)
    balance, bucket, pad = (asked.get(name) for name in ("balance", "bucket", "pad"))
    _check(asked)
    _refuse(asked)
    job.drop_rows = job.drop_remainder
    if asked.get("windows") or asked.get("pack"):
        job.drop_remainder = False  # of what is cut or packed nothing is left out
    if bucket:
        job.lengths = job.reader._beside("reader_sequences").lengths_of(job)
    if job.input_context is not None:
        context = job.input_context
        job.shard = (context.input_pipeline_id, context.num_input_pipelines)
    job.part = job.shard or (0, 1)
    job.numbered = bool(job.augment or job.augment_batch or (bucket and job.start_step))
    job.ranges = divide(job.shards, job.part, even=job.equal_steps)
    if job.start_step or not {(path, num) for path, _, num, _ in job.ranges} <= {*job.shards}:
        job.read = functools.partial(job.reader._records, whole=False)
    job.streams = job.reader._streams(job.ranges)
    job.num_batches, job.order = num_batches(job, job.part, job.batch_size, bytearray()), None
    if job.buffer and job.seed is not None:
        job.reader._beside("reader_streams").streamed(job)
    if job.local_copy:
        one = isinstance(job.local_copy, str | os.PathLike)
        folder, limit = (job.local_copy, None) if one else job.local_copy
        job.reader._beside("reader_copies").copied(job, os.fspath(folder), limit)
    job.read_uncached = job.read
    if job.cache:
        job.reader._beside("reader_caches").cached(job)
    if job.numbered:
        job.read, job.read_uncached = _numbered(job.read), _numbered(job.read_uncached)
    if balance is not None and job.seed is None and job.part[1] > 1:
        raise ValueError("balance= of several workers needs a seed=, or each draws its own epoch.")
    if balance is not None:
        job.reader._beside("reader_balance").balanced(job, balance)
    if pad and not job.service:
        job.finish = job.reader._beside("reader_sequences").padded(job)
    if job.augment or job.augment_batch:
        job.finish = augmented(job.finish, job.augment, job.augment_batch)
    if job.service:
        job.reader._beside("reader_service").served(job)
        if pad:
            job.finish = job.reader._beside("reader_sequences").padded(job)
    else:
        job.epoch = _complete(job, job.epoch, job.num_batches)
    if asked.get("windows"):
        job.reader._beside("reader_sequences").windowed(job, *asked["windows"])
    if asked.get("pack"):
        job.reader._beside("reader_sequences").packed(job, int(asked["pack"]))
    if job.debug:
        tf.data.experimental.enable_debug_mode()
        job.epoch, job.read = _kept(job.epoch), _kept(job.read)
    if job.start_step:
        stages = job.start_step
        if hasattr(stages, "__index__"):
            stages = [(stages, job.batch_size, job.part[1])]
        resume = job.reader._beside("reader_resume")
        number, epoch, num = (
            job.resume(stages) if balance is not None else resume.going_on(job, stages)
        )
        rest = _complete(job, epoch, num)
        rest = _kept(rest) if job.debug else rest
        job.passes = lambda: resume.resumed(job, number, rest)
        job.num_batches = None if job.num_batches or job.epochs else 0
    job.last = _last(job, job.last)


def _check(asked: dict[str, Any]) -> None:
    """Raises where an option is none that can be, which would be told late or never."""
    for name, form in {"shard": "(index, count)", "windows": "(length, step)"}.items():
        if asked.get(name) is not None and not _are_whole(asked[name], 2):
            raise ValueError(f"{name}={asked[name]!r} must be {form}.")
    pack = asked.get("pack")
    if pack is not None and (pack is True or not _are_whole([pack], 1) or pack < 1):
        raise ValueError(f"pack={pack!r} must be the length of a row, a whole number from 1.")
    stages = asked["start_step"]
    if hasattr(stages, "__index__"):
        is_right = stages >= 0
    else:
        is_right = isinstance(stages, list | tuple) and all(
            _are_whole(one, 3) and one[0] >= 0 and min(one[1:]) >= 1 for one in stages
        )
    if not is_right:
        raise ValueError(
            f"start_step={stages!r} must be a number of steps, or a list of (steps, batch size, "
            "workers)."
        )
    for name in ("augment", "augment_batch"):
        if asked[name] is not None and not callable(asked[name]):
            raise ValueError(f"{name}={asked[name]!r} must be a function.")
    cache, copy = asked["cache"], asked["local_copy"]
    folder = copy[0] if isinstance(copy, list | tuple) and len(copy) == 2 else copy
    for name, value, kept in (("cache", cache, cache), ("local_copy", copy, folder)):
        if kept is not None and not (isinstance(kept, str | os.PathLike) and os.fspath(kept)):
            raise ValueError(f"{name}={value!r} must be the name of a folder.")
    if folder is not copy and not (copy[1] is None or hasattr(copy[1], "__index__")):
        raise ValueError(f"local_copy={copy!r} must be (folder, bytes).")
    if asked["options"] is not None and not isinstance(asked["options"], tf.data.Options):
        raise ValueError(f"options={asked['options']!r} must be tf.data.Options().")


def _are_whole(value: Any, num: int) -> bool:
    """Whether it is so many whole numbers."""
    return (
        isinstance(value, list | tuple)
        and len(value) == num
        and all(hasattr(one, "__index__") and abs(one) < 2**31 for one in value)
    )


def _refuse(asked: dict[str, Any]) -> None:
    """Raises where options make no sense together."""
    together = {
        (
            "cache",
            "local_copy",
        ): "both keep a copy: the folder of local_copy serves later runs, too",
        ("cache", "balance"): "records are read by their places, and none is read twice in vain",
        ("augment", "augment_batch"): "one does what the other would",
        ("shard", "input_context"): "both divide the work",
    }
    for name in ("shard", "input_context", "equal_steps"):
        together["service", name] = "the service divides the work"
    if asked["cache"] == "decoded":
        for name in ("bucket", "windows", "pack", "start_step"):
            together["cache", name] = "decoded examples are shuffled all together"
    for name in ("pad", "bucket", "start_step", "equal_steps", "augment", "augment_batch"):
        together["windows", name] = "windows are all of one length, and cut last of all"
        together["pack", name] = "rows are all of one length, and packed last of all"
    together["pack", "windows"] = "windows fill rows without packing"
    together["pack", "as_supervised"] = "labels cannot be packed"
    for name in ("seed", "start_step"):
        together["service", name] = "which worker reads what depends on who is first"
    for name in ("cache", "local_copy", "balance", "bucket", "windows", "pack"):
        together["service", name] = "that cannot travel to its workers"
    given = {name for name, value in asked.items() if value or (name == "seed" and value == 0)}
    for (one, other), why in together.items():
        if one in given and other in given:
            raise ValueError(f"{one}= and {other}= exclude each other ({why}): leave one out.")
    if asked["start_step"] and asked["seed"] is None and (asked["buffer"] or asked.get("balance")):
        raise ValueError("start_step= goes on in the order of a seed: give seed= as before.")


# Workers


def divide(
    shards: list[tuple[str, int]], part: tuple[int, int], *, even: bool = False
) -> list[_Range]:
    """The ranges of records that make up one of ``count`` parts.

    Part i is what lies between two cuts in the stored order, at i / count and (i + 1) / count of
    the records: so every record is in exactly one part. Where moving all cuts to the nearest ends
    of shards keeps every part within 5 % of an even share, they are moved, unless ``even``.
    """
    index, count = part
    if not 0 <= index < count:
        raise ValueError(f"shard=({index}, {count}) must be (index, count), 0 <= index < count.")
    starts = [0, *itertools.accumulate(num for _, num in shards)]
    total = starts[-1]
    cuts = [total * i // count for i in range(count + 1)]
    whole = [min((abs(start - cut), start) for start in starts)[1] for cut in cuts]
    shares = [b - a for a, b in itertools.pairwise(whole)]
    if not even and all(abs(share * count - total) <= 0.05 * total for share in shares):
        cuts = whole
    first, last = cuts[index], cuts[index + 1]
    ranges = []
    for (path, num), start in zip(shards, starts, strict=False):
        skip, end = max(first - start, 0), min(last - start, num)
        if skip < end:
            ranges.append((path, skip, end - skip, start + skip))
    return ranges


def left(job: Any, part: tuple[int, int], done: bytearray) -> tuple[list[_Range], list[int]]:
    """The ranges of a part of what is not done, and the places in them that are."""
    if not any(done):
        return divide(job.shards, part, even=job.equal_steps), []
    rest = done.count(0)
    first, last = rest * part[0] // part[1], rest * (part[0] + 1) // part[1]
    ranges, gaps, place = [], [], 0
    for path, num in job.shards:
        size = done.count(0, place, place + num)
        start, stop = max(first, 0), min(last, size)
        if start < stop:
            mine = [i for i in range(place, place + num) if not done[i]][start:stop]
            ranges.append((path, mine[0] - place, mine[-1] + 1 - mine[0], mine[0]))
            gaps += [i for i in range(mine[0], mine[-1]) if done[i]]
        first, last, place = first - size, last - size, place + num
    return ranges, gaps


def num_batches(job: Any, part: tuple[int, int], size: int, done: bytearray) -> int:
    """Batches that a part of what is not done makes."""
    parts = [(i, part[1]) for i in range(part[1])] if job.equal_steps else [part]
    found = [left(job, one, done) for one in parts]
    nums = [sum(take for _, _, take, _ in ranges) - len(gaps) for ranges, gaps in found]
    return min(num // size if job.drop_remainder else -(-num // size) for num in nums)


# Records


def _numbered(read: Callable[..., tf.data.Dataset]) -> Callable[..., tf.data.Dataset]:
    """The records of a range with their places."""

    def open_(*stream: Any) -> tf.data.Dataset:
        places = tf.data.Dataset.range(stream[-1], tf.int64.max)
        return tf.data.Dataset.zip((read(*stream), places))

    return open_


# Batches


def _complete(job: Any, epoch: _Epoch, num: int) -> _Epoch:
    """An epoch as it is asked for: so many batches, of alike length, with its seed."""

    def completed(seed: Any) -> tf.data.Dataset:
        batches = epoch(seed)
        if job.equal_steps:
            batches = batches.take(num)
        if vars(job).get("bucket"):
            batches = job.reader._beside("reader_sequences").bucketed(job, batches, seed)
        if job.augment or job.augment_batch:
            return tf.data.Dataset.zip((batches, tf.data.Dataset.from_tensors(seed).repeat()))
        return batches.map(_first) if job.numbered else batches

    return completed


def _first(record: Any, place: Any) -> Any:
    del place
    return record


def augmented(
    parse: Callable[[Any], Any],
    augment: Callable[[Any, Any], Any] | None,
    augment_batch: Callable[[Any, Any], Any] | None,
) -> Callable[[Any, Any], Any]:
    """Parses a batch and changes each example by (the seed of its epoch, its place)."""

    def finish(numbered: Any, epoch_seed: Any) -> Any:
        serialized, places = numbered
        batch = parse(serialized)
        seeds = tf.stack([tf.fill(tf.shape(places), epoch_seed), places], axis=1)
        if augment is None:
            assert augment_batch is not None
            return augment_batch(batch, seeds)
        like = augment(tf.nest.map_structure(lambda value: value[0], batch), seeds[0])
        is_ragged = any(isinstance(one, tf.RaggedTensor) for one in tf.nest.flatten(batch))
        spec = tf.nest.map_structure(functools.partial(_spec, is_ragged), like)

        def one(pair: Any) -> Any:
            return augment(*pair)

        return tf.map_fn(one, (batch, seeds), fn_output_signature=spec)

    return finish


def _spec(is_ragged: bool, value: Any) -> Any:
    """What examples as this one make a batch of: ragged again, where lists came so."""
    spec = tf.type_spec_from_value(value)
    if not is_ragged or not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        return spec
    if spec.shape[0] is not None or not spec.shape[1:].is_fully_defined():
        return spec
    return tf.RaggedTensorSpec(spec.shape, spec.dtype, 0, tf.int64)


# The end


def as_it_is(*batch: Any) -> Any:
    """In place of what finishes batches, where they are finished already."""
    return batch[0] if len(batch) == 1 else batch


def free_memory() -> int:
    """Bytes of memory that are free, or what this container is limited to."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        sizes += [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(f"/sys/fs/cgroup/{limit}") as file:
            sizes.append(int(file.read()))  # or the word "max"
    return min(sizes)


def _kept(make: Callable[..., tf.data.Dataset]) -> Callable[..., tf.data.Dataset]:
    """The same datasets, kept: in debug mode their functions are gone once Python forgets them."""
    kept: list[tf.data.Dataset] = []

    def made(*arguments: Any) -> tf.data.Dataset:
        kept.append(make(*arguments))
        return kept[-1]

    return made


def _last(job: Any, last: Callable[..., tf.data.Dataset]) -> Callable[..., tf.data.Dataset]:
    """What is done to the finished dataset: the user's options, and where its batches go."""

    def end(batches: tf.data.Dataset) -> tf.data.Dataset:
        batches = last(batches)
        if job.options is not None:
            batches = batches.with_options(job.options)
        if job.prefetch_to_device:
            batches = batches.apply(tf.data.experimental.prefetch_to_device(job.prefetch_to_device))
        return batches

    return end
