"""What is measured of a pipeline: its rate in a window of time, and how well it mixes.

Imported by read.py and by the peer that runs in an environment of its own.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def rate(
    dataset: Any, *, num_examples: int, batch_size: int, warm: float, seconds: float
) -> tuple[float, float]:
    """Reads an endless dataset: examples/s, and processor time of an example in µs.

    The first ``warm`` seconds, in which buffers fill and TensorFlow tunes, do not count. An epoch
    ends with a short batch, which counts by its share of all batches.
    """
    batch = num_examples / -(-num_examples // batch_size)
    iterator = iter(dataset)
    begin = time.perf_counter()
    for _ in iterator:
        if time.perf_counter() - begin > warm:
            break
    num, begin, worked = 0, time.perf_counter(), time.process_time()
    for _ in iterator:
        num += 1
        if (taken := time.perf_counter() - begin) > seconds:
            break
    worked = time.process_time() - worked
    return num * batch / taken, worked / (num * batch) * 1e6


def some_epochs(
    dataset: Any, feature: str, *, num_examples: int, num: int = 2
) -> list[list[np.ndarray[Any, Any]]]:
    """The places of the records in each batch of some epochs of an endless dataset.

    ``feature`` tells a record's place: an integer, or the first pixel of an image.
    """
    batches = dataset.map(lambda batch: batch[feature]).as_numpy_iterator()
    epochs: list[list[np.ndarray[Any, Any]]] = []
    for _ in range(num):
        places: list[np.ndarray[Any, Any]] = []
        while sum(map(len, places)) < num_examples:
            batch = next(batches).astype(np.int64)
            places.append(batch[:, 0, 0] @ [1 << 16, 1 << 8, 1] if batch.ndim == 4 else batch)
        epochs.append(places)
    return epochs


def mixing(
    epochs: Sequence[Iterable[np.ndarray[Any, Any]]], ends: Sequence[int]
) -> tuple[float, float]:
    """How well two epochs of batches of places mix.

    Args:
        epochs: Of each the batches, each ``int64[batch]``, the places of records in stored order.
        ends: The place behind the last record of each shard.

    Returns:
        Shards in a batch, on average; and how often two records of a batch of the first epoch are
        together again in the second, as a multiple of how often they would be by chance.
    """
    first, second = (list(epoch) for epoch in epochs)
    num = ends[-1]
    for batches in (first, second):
        places = np.sort(np.concatenate(batches))
        if not np.array_equal(places, np.arange(num)):
            raise SystemExit(f"an epoch does not hold each of {num} records once")
    shards = [len(np.unique(np.searchsorted(ends, batch, side="right"))) for batch in first]
    batch_of = np.empty(num, np.int64)
    for number, batch in enumerate(second):
        batch_of[batch] = number
    together = 0
    for batch in first:
        counts = np.unique(batch_of[batch], return_counts=True)[1]
        together += int((counts * (counts - 1)).sum())
    sizes = (np.array([len(batch) for batch in batches]) for batches in (first, second))
    pairs = [int((size * (size - 1)).sum()) for size in sizes]
    chance = pairs[0] * pairs[1] / (num * (num - 1))
    return float(np.mean(shards)), together / chance
