"""``InputWait``: a Keras callback that measures how long ``fit`` waits for its input.

The epochs that it collects are summarized by ``summarize``, which the doctor uses as well.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

STARVED = 0.05
"""Training is starved of input above this share of waiting time."""
STALL_MS = 5.0
"""Shorter waits are not stalls."""


@dataclasses.dataclass
class Epoch:
    """One epoch of training."""

    waits: list[float] = dataclasses.field(default_factory=list)
    """Milliseconds that each step waited for its batch; the first wait includes filling buffers."""
    seconds: float = 0.0
    """Duration of the epoch, including waits."""
    is_complete: bool = False


@dataclasses.dataclass(frozen=True)
class Stalls:
    """Long waits at regular intervals."""

    every: int
    """Number of steps from one to the next."""
    milliseconds: float
    """Duration of one."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """Summary of the waits of some epochs, in ms."""

    steps: int
    median: float
    p95: float
    share: float
    """Share of training time, without the very first batch."""
    epoch_start: float
    """Median wait of the first steps."""
    first_epoch: float | None
    """How much longer the first epoch waited, relative to an epoch's time; None for one epoch."""
    stalls: Stalls | None

    def lines(self) -> list[str]:
        """The summary as sentences."""
        text = (
            f"{self.steps:,} steps waited for input {self.share:.0%} of the time (median "
            f"{self.median:.2f} ms per step, 95th percentile {self.p95:.2f} ms; "
            f"{self.epoch_start:,.0f} ms for the first batch of an epoch)."
        )
        sentences = [text]
        if self.first_epoch is not None and self.first_epoch > STARVED:
            sentences.append(
                f"The first epoch waited longer than the others, by {self.first_epoch:.0%} of an "
                "epoch's time."
            )
        if self.stalls is not None:
            sentences.append(
                f"Every {self.stalls.every} steps training stalls for "
                f"{self.stalls.milliseconds:,.0f} ms."
            )
        return sentences


def summarize(epochs: Sequence[Epoch]) -> Summary:
    """Summarizes the waits of some epochs.

    Raises:
        ValueError: if there was no step.
    """
    ran = [epoch for epoch in epochs if epoch.waits]
    if not ran:
        raise ValueError("no step was measured")
    starts = [epoch.waits[0] for epoch in ran]
    steady = [wait for epoch in ran for wait in epoch.waits[1:]] or starts
    # The very first batch includes one-time work; an incomplete epoch is too short for its first
    # batch to count.
    left_out = [epoch.waits[0] for i, epoch in enumerate(ran) if not i or not epoch.is_complete]
    waited = sum(sum(epoch.waits) for epoch in ran) - sum(left_out)
    seconds = sum(epoch.seconds for epoch in ran) - sum(left_out) / 1000
    return Summary(
        steps=sum(len(epoch.waits) for epoch in ran),
        median=statistics.median(steady),
        p95=sorted(steady)[int(0.95 * (len(steady) - 1))],
        share=min(1.0, waited / 1000 / max(1e-9, seconds)),
        epoch_start=statistics.median(starts),
        first_epoch=_slow_first(ran),
        stalls=periodic_stalls(*(epoch.waits[1:] for epoch in ran)),
    )


def _slow_first(epochs: Sequence[Epoch]) -> float | None:
    """How much longer the first epoch waited than the median of the others, in epoch times."""
    first, *others = [epoch for epoch in epochs if epoch.is_complete] or [Epoch()]
    if not others or len(first.waits) < 2:
        return None
    waited = statistics.median(sum(epoch.waits[1:]) for epoch in others) / 1000
    seconds = statistics.median(epoch.seconds for epoch in others)
    return max(0.0, (sum(first.waits[1:]) / 1000 - waited) / max(1e-9, seconds))


def periodic_stalls(*epochs: Sequence[float]) -> Stalls | None:
    """Finds stalls at regular intervals among the waits of steps, in ms; None if there are none.

    A stall is a wait of at least 5 ms and 8 times the median; the largest are looked at first,
    since smaller ones may hide their rhythm. There must be at least three, four of the largest, and
    three quarters of the intervals between them must be equal, within a fifth.
    """
    steady = [wait for waits in epochs for wait in waits]
    if len(steady) < 9:
        return None
    lowest, limit = max(STALL_MS, 8 * statistics.median(steady)), max(steady) / 2
    while limit > lowest:
        if (stalls := _rhythm(epochs, limit, fewest=4)) is not None:
            return stalls
        limit /= 2
    return _rhythm(epochs, lowest, fewest=3)


def _rhythm(epochs: Sequence[Sequence[float]], limit: float, *, fewest: int) -> Stalls | None:
    stalls: list[float] = []
    intervals: list[int] = []
    for waits in epochs:
        places = [place for place, wait in enumerate(waits) if wait >= limit]
        # A stall may last for several steps.
        places = [b for a, b in itertools.pairwise([-9, *places]) if b - a > 1]
        stalls += [waits[place] for place in places]
        intervals += [b - a for a, b in itertools.pairwise(places)]
    if len(stalls) < fewest or not intervals:
        return None
    every = round(statistics.median(intervals))
    alike = sum(abs(interval - every) <= max(1, 0.2 * every) for interval in intervals)
    if every < 3 or alike < 0.75 * len(intervals):
        return None
    return Stalls(every, statistics.median(stalls))


class InputWait(tf.keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Measures how long each step of a real ``fit`` waits for its batch.

        wait = reader.InputWait()
        model.fit(wait.watch(train), callbacks=[wait], epochs=3)
        print(*wait.summary().lines(), sep=" ")

    Each epoch's share of waiting time is in the logs and the history as ``input_wait``. If it is
    above 0.05, ``reader.diagnose`` finds the stage of the input that causes it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[Epoch] = []
        self._waits: list[float] = []
        self._begun = 0.0
        self._tested = 0.0

    def watch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the same dataset, which records how long each batch takes to arrive.

        Pass the result to ``fit`` directly: after a ``prefetch``, which ``fit`` adds for
        ``class_weight=``, the recorded waits would be those of the prefetching.
        """

        def asked(_: Any) -> Any:
            return tf.timestamp()

        def given(asked: Any, batch: Any) -> Any:
            tf.numpy_function(self._note, [tf.timestamp() - asked], [])
            return batch

        convert = tf.autograph.experimental.do_not_convert
        # zip reads its inputs in this order: first the timestamp, then the batch.
        pairs = tf.data.Dataset.zip((tf.data.Dataset.counter().map(convert(asked)), dataset))
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        options.experimental_optimization.map_parallelization = False
        # A saved position (Resume) needs no waits.
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        return pairs.map(convert(given)).with_options(options)

    def _note(self, seconds: Any) -> None:
        self._waits.append(1000 * float(seconds))

    def summary(self) -> Summary:
        """Summarizes the waits.

        Raises:
            ValueError: if no step was measured.
        """
        if not any(epoch.waits for epoch in self.epochs):
            raise ValueError(
                "InputWait measured no step: pass wait.watch(dataset) to fit, and wait as one of "
                "callbacks=."
            )
        return summarize(self.epochs)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts an epoch; excludes what Keras requested before, to build the model."""
        self._waits.clear()
        self._begun, self._tested = time.perf_counter(), 0.0

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Excludes the validation within ``fit``."""
        self._tested -= time.perf_counter()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """See ``on_test_begin``."""
        self._tested += time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Ends an epoch, and adds its share of waiting time to the logs."""
        seconds = time.perf_counter() - self._begun - self._tested
        self.epochs.append(Epoch([*self._waits], seconds, is_complete=True))
        if logs is not None and self._waits:
            logs["input_wait"] = summarize(self.epochs[-1:]).share
