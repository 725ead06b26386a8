"""Statistics of how long training steps wait for their input."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

STARVED = 0.05
"""The share of waiting above which training is starved of input."""
STALL_MS = 5.0
"""A shorter wait is not a stall."""


@dataclasses.dataclass
class Epoch:
    """One epoch of training."""

    waits: list[float] = dataclasses.field(default_factory=list)
    """ms that each step waited for its batch; the first one fills the buffers."""
    seconds: float = 0.0
    """How long the epoch took, waits included."""
    is_complete: bool = False


@dataclasses.dataclass(frozen=True)
class Stalls:
    """Long waits at regular intervals."""

    every: int
    """Steps from one to the next."""
    milliseconds: float
    """How long one takes."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """What the waits of some epochs were, in ms."""

    steps: int
    median: float
    p95: float
    share: float
    """Of the time of training, without the very first batch."""
    epoch_start: float
    """The median wait of first steps."""
    first_epoch: float | None
    """How much of an epoch's time the first one waited longer; None if there is one only."""
    stalls: Stalls | None

    def lines(self) -> list[str]:
        """The summary in sentences."""
        text = (
            f"{self.steps:,} steps waited for input {self.share:.0%} of the time (median "
            f"{self.median:.2f} ms a step, 95th percentile {self.p95:.2f} ms; "
            f"{self.epoch_start:,.0f} ms for the first batch of an epoch)."
        )
        found = [text]
        if self.first_epoch is not None and self.first_epoch > STARVED:
            found.append(
                f"The first epoch waited longer than the others, by {self.first_epoch:.0%} of an "
                "epoch's time."
            )
        if self.stalls is not None:
            found.append(
                f"Every {self.stalls.every} steps training stalls for "
                f"{self.stalls.milliseconds:,.0f} ms."
            )
        return found


def summarize(epochs: Sequence[Epoch]) -> Summary:
    """What the waits of some epochs were.

    Raises:
        ValueError: if there was no step.
    """
    ran = [epoch for epoch in epochs if epoch.waits]
    if not ran:
        raise ValueError("no step was measured")
    starts = [epoch.waits[0] for epoch in ran]
    steady = [wait for epoch in ran for wait in epoch.waits[1:]] or starts
    # The very first batch includes work that is done once; an incomplete epoch is too short for
    # its first batch to count.
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
        stalls=_most_frequent(ran),
    )


def _slow_first(epochs: Sequence[Epoch]) -> float | None:
    """How much of an epoch's time the first one waited longer than the median of the others."""
    first, *others = [epoch for epoch in epochs if epoch.is_complete] or [Epoch()]
    if not others or len(first.waits) < 2:
        return None
    waited = statistics.median(sum(epoch.waits[1:]) for epoch in others) / 1000
    seconds = statistics.median(epoch.seconds for epoch in others)
    return max(0.0, (sum(first.waits[1:]) / 1000 - waited) / max(1e-9, seconds))


def _most_frequent(epochs: Sequence[Epoch]) -> Stalls | None:
    longest = max(epochs, key=lambda epoch: len(epoch.waits))
    return periodic_stalls(longest.waits[1:])


def periodic_stalls(waits: Sequence[float]) -> Stalls | None:
    """Stalls at regular intervals among the waits of steps, in ms; None where there are none.

    A stall is a wait of 5 ms or more, and 8 times as long as the median. Three are needed, and
    three quarters of the intervals between them must be equal, within a fifth.
    """
    if len(waits) < 9:
        return None
    limit = max(STALL_MS, 8 * statistics.median(waits))
    places = [place for place, wait in enumerate(waits) if wait >= limit]
    # A stall may last for several steps.
    places = [b for a, b in itertools.pairwise([-9, *places]) if b - a > 1]
    intervals = [b - a for a, b in itertools.pairwise(places)]
    if len(intervals) < 2:
        return None
    every = round(statistics.median(intervals))
    alike = sum(abs(interval - every) <= max(1, 0.2 * every) for interval in intervals)
    if every < 3 or alike < 0.75 * len(intervals):
        return None
    return Stalls(every, statistics.median(waits[place] for place in places))
