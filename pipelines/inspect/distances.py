"""Distances between the statistics of a feature in two splits, and what sampling explains of them.

Categories are compared by the largest change of a share (the L-infinity distance): cats from 50 %
to 35 % are 0.15. Numbers are compared by the Jensen-Shannon divergence, in bits, of two histograms
over common bins: 0 if they are equal, 1 if they have no bin in common, 0.045 if a normal
distribution moves by half its deviation. Of lists, lengths and sizes means are compared, of all
features the shares of missing values.

The limit of a distance is a threshold, or what sampling explains if that is more: of 20 records,
half may be cats by chance. It follows from bounds of tails, which equal data exceeds in one of
160,000 comparisons.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from ...schemas.visible import human_number, visible
from ...transforms.examples.statistics import MEDIA_RECORDS
from ..recipe.lock import Thresholds
from .statistics import MAX_TOP

_EXPONENT = 12.0
"""Sampling alone exceeds a limit with a probability of at most exp(-12)."""
_MAX_VALUES = 20
"""Numbers of up to so many different values are compared value by value, others in bins."""
_FILLED = 0.05
"""Bins with a smaller part of the values add more noise than they tell."""
_MAX_TEXT = 60
_MEDIA = (
    ("brightness", "channel_means", 64.0),
    ("shares", "shares", 0.25),
    ("level", "level", 6.0),
)
"""What is measured of images (of 8 bits), masks and sounds (in dB), with an assumed deviation."""

Bounds = tuple[float, float]


class Change(NamedTuple):
    """A distance of two distributions.

    Attributes:
        measure: What is compared: "missing", "not finite", "values", "lengths", "heights",
            "widths", "areas", "shares", "brightness" or "level".
        text: The change for people, such as "median 4.5 → 45".
        before: What it was, as plain JSON.
        after: What it is.
        distance: How far the distributions are apart.
        limit: The distance up to which they count as equal.
    """

    measure: str
    text: str
    before: Any
    after: Any
    distance: float
    limit: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The statistics of a feature in two splits."""

    old: Mapping[str, Any]
    new: Mapping[str, Any]
    kind: tuple[str, str | None]
    classes: Set[str]
    """Those that both know: others are a difference of the schema."""
    sizes: Sizes
    thresholds: Thresholds

    def changes(self) -> Iterator[Change]:
        """The distances of all that both have, large or not."""
        if not (self.sizes.old and self.sizes.new):
            return
        yield from self._missing()
        if self._both("quantiles"):
            yield from self._numbers()
        elif self._both("top"):
            yield from self._categories()
        elif self._both("mean") and self._both("deviation"):
            yield self._mean("values", self.old, self.new)
        for aspect in ("lengths", "heights", "widths", "areas"):
            if self._both(aspect, "mean") and self._both(aspect, "deviation"):
                yield self._mean(aspect, self.old[aspect], self.new[aspect])
        yield from self._media()

    def _both(self, *keys: str) -> bool:
        """Whether both have such a figure."""
        for side in (self.old, self.new):
            found: Any = side
            for key in keys:
                found = ({} if found is None else found).get(key)
            if found in (None, [], {}):
                return False
        return True

    def _missing(self) -> Iterator[Change]:
        for measure, key in (("missing", "num_missing"), ("not finite", "num_non_finite")):
            if not self._both(key):
                continue
            totals = self.sizes.both
            if key == "num_non_finite":
                totals = tuple(max(1, side["count"] + side[key]) for side in (self.old, self.new))
            before, after = self.old[key] / totals[0], self.new[key] / totals[1]
            limit = max(self.thresholds.missing, self.sizes.share(before, after))
            text = _arrow(f"share {measure}", before, after)
            yield Change(measure, text, before, after, abs(after - before), limit)

    def _categories(self) -> Iterator[Change]:
        """The share that changed most; one beyond the top may be as large as the last of them."""
        counts = [{str(name): n for name, n in side["top"]} for side in (self.old, self.new)]
        totals = [side["top_of"] for side in (self.old, self.new)]
        if self.kind[0] == "class_label":
            counts = [{c: n for c, n in side.items() if c in self.classes} for side in counts]
            others = [
                sum(n for name, n in side["top"] if name not in self.classes)
                for side in (self.old, self.new)
            ]
            totals = [total - other for total, other in zip(totals, others, strict=True)]
        if not all(totals):
            return
        sizes = Sizes(*totals)
        old, new = (
            {name: n / total for name, n in side.items()}
            for side, total in zip(counts, totals, strict=True)
        )
        rest = [min(shares.values()) if len(shares) >= MAX_TOP else 0.0 for shares in (old, new)]
        changes = []
        for name in {**old, **new}:
            before = old.get(name, min(rest[0], new.get(name, 0.0)))
            after = new.get(name, min(rest[1], before))
            noise = sizes.share(before, after, among=len(old) + len(new))
            limit, distance = max(self.thresholds.categories, noise), abs(after - before)
            text = _arrow(f"{visible(name[:_MAX_TEXT])}: share", before, after)
            changes.append(Change("values", text, {name: before}, {name: after}, distance, limit))
        yield max(changes, key=lambda change: change.distance - change.limit)

    def _numbers(self) -> Iterator[Change]:
        sides = self.old, self.new
        counts = [dict(map(tuple, side.get("top", ()))) for side in sides]
        if all(0 < len(values) <= _MAX_VALUES for values in counts):
            either = {**counts[0], **counts[1]}
            bins = [[values.get(key, 0) for key in either] for values in counts]
            sizes = Sizes(*(sum(values.values()) for values in counts))
        else:
            histograms = [side["histogram"] for side in sides]
            sizes = Sizes(*(sum(one["counts"]) for one in histograms))
            if histograms[0]["edges"] == histograms[1]["edges"]:
                bins = _filled_bins(*(one["counts"] for one in histograms))
            else:
                bins = _common_bins(*(side["quantiles"] for side in sides))
        limit = max(self.thresholds.numbers, sizes.divergence(len(bins[0])))
        before, after = ({"median": s["quantiles"][5], "mean": s["mean"]} for s in sides)
        known = [key for key in before if before[key] is not None and after[key] is not None]
        text = ", ".join(_arrow(key, before[key], after[key]) for key in known)
        yield Change("values", text, before, after, jensen_shannon(*bins), limit)

    def _mean(self, aspect: str, old: Mapping[str, float], new: Mapping[str, float]) -> Change:
        before, after = old["mean"], new["mean"]
        pooled = math.hypot(old["deviation"], new["deviation"]) / math.sqrt(2)
        # Where all values are equal, any other value is far away.
        pooled = max(pooled, 1e-6 * max(abs(before), abs(after)), 1e-300)
        limit = max(self.thresholds.means, self.sizes.mean())
        text = _arrow("mean" if aspect == "values" else f"mean of {aspect}", before, after)
        return Change(aspect, text, before, after, abs(after - before) / pooled, limit)

    def _media(self) -> Iterator[Change]:
        """Of the few records whose pixels and sounds are measured."""
        sizes = Sizes(*(min(size, MEDIA_RECORDS) for size in self.sizes.both))
        limit = max(self.thresholds.means, sizes.mean())
        for measure, key, deviation in _MEDIA:
            if self._both(key):
                old, new = (_figures(side[key]) for side in (self.old, self.new))
                indices = {**old, **new}
                changes = [(index, old.get(index, 0.0), new.get(index, 0.0)) for index in indices]
                index, before, after = max(changes, key=lambda change: abs(change[2] - change[1]))
                deviation *= 257 if self.kind == ("image", "uint16") else 1
                distance = abs(after - before) / deviation
                text = _arrow(f"{measure} {visible(index)}", before, after)
                yield Change(measure, text, before, after, distance, limit)


def _figures(value: Any) -> dict[str, float]:
    """What was measured of media, by what it is of."""
    if isinstance(value, Mapping):
        return {f"of index {index}": share for index, share in value.items()}
    if isinstance(value, list):
        return {f"of channel {channel}": mean for channel, mean in enumerate(value)}
    return {"in dB": 20 * math.log10(max(value, 1e-6))}


def _filled_bins(old: Sequence[int], new: Sequence[int]) -> list[list[int]]:
    """The counts of two histograms with the same edges; bins of few values are joined.

    >>> _filled_bins([50, 1, 1, 40], [60, 0, 1, 40])
    [[50, 42], [60, 41]]
    """
    bins: list[list[int]] = [[0], [0]]
    least = _FILLED * (sum(old) + sum(new))
    for counts in zip(old, new, strict=True):
        if bins[0][-1] + bins[1][-1] >= least:
            for known in bins:
                known.append(0)
        for known, count in zip(bins, counts, strict=True):
            known[-1] += count
    return bins


def _common_bins(old: Sequence[float], new: Sequence[float]) -> list[list[float]]:
    """The shares of two samples of numbers in common bins, from their deciles.

    The bins end halfway between a decile of one and that of the other, so that each has about a
    tenth of the values. Up to the third decile are 30 % of a sample, and between two of them a part
    as on a straight line. But if many values are equal, such as 35 % zeros, up to them may be any
    share from 30 % to 40 %: then one that fits both is taken.
    """
    edges = sorted({one / 2 + other / 2 for one, other in zip(old[1:-1], new[1:-1], strict=True)})
    pairs = itertools.chain(itertools.pairwise(old), itertools.pairwise(new))
    frequent = {one for one, other in pairs if one == other}
    shares: list[list[float]] = [[0.0], [0.0]]
    for edge in edges:
        bounds = [_share_up_to(edge, deciles, frequent) for deciles in (old, new)]
        middle = (max(low for low, _ in bounds) + min(high for _, high in bounds)) / 2
        for known, (low, high) in zip(shares, bounds, strict=True):
            known.append(max(known[-1], min(max(middle, low), high)))
    return [[b - a for a, b in itertools.pairwise([*known, 1.0])] for known in shares]


def _share_up_to(edge: float, deciles: Sequence[float], frequent: Set[float]) -> Bounds:
    """The smallest and the largest share of values up to an edge."""
    place, last = bisect.bisect_right(deciles, edge) - 1, len(deciles) - 1
    if place in (-1, last):
        return (0.0, 0.0) if place < 0 else (1.0, 1.0)
    start, stop = deciles[place : place + 2]
    if not frequent.isdisjoint((start, stop)):
        return place / last, (place + 1) / last
    share = (place + (edge - start) / (stop - start)) / last
    return share, share


def jensen_shannon(old: Sequence[float], new: Sequence[float]) -> float:
    """The divergence of two histograms, in bits.

    >>> jensen_shannon([1, 1], [2, 2]), jensen_shannon([1, 0], [0, 1])
    (0.0, 1.0)
    """
    sums, total = (sum(old), sum(new)), 0.0
    for one, other in zip(old, new, strict=True):
        p, q = one / sums[0], other / sums[1]
        total += sum(share * math.log2(2 * share / (p + q)) for share in (p, q) if share > 0)
    return total / 2


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of two samples, and the differences that they explain at most."""

    old: int
    new: int

    @property
    def both(self) -> tuple[int, int]:
        """The old and the new one."""
        return self.old, self.new

    @property
    def variance(self) -> float:
        """That of the difference of two means, if a value has the variance 1."""
        return 1 / self.old + 1 / self.new

    def share(self, old: float, new: float, *, among: int = 1) -> float:
        """Of a share, the one of so many that differs most (Bernstein's inequality)."""
        exponent = _EXPONENT + math.log(among)
        share = (old * self.old + new * self.new) / (self.old + self.new)
        spread = math.sqrt(2 * exponent * share * (1 - share) * self.variance)
        return spread + 2 / 3 * exponent / min(self.old, self.new)

    def mean(self) -> float:
        """Of a mean, in deviations."""
        return math.sqrt(2 * _EXPONENT * self.variance)

    def divergence(self, num_bins: int) -> float:
        """Of the Jensen-Shannon divergence in bits: chi-squared, times ``variance`` / (8 ln 2).

        The tail of chi-squared is bounded as by Laurent and Massart (2000).
        """
        freedom = max(1, num_bins - 1)
        tail = freedom + 2 * math.sqrt(freedom * _EXPONENT) + 2 * _EXPONENT
        return tail * self.variance / (8 * math.log(2))


def _arrow(what: str, before: float, after: float) -> str:
    """A change for people.

    >>> _arrow("mean", 4.5, 45000.25)
    'mean 4.5 → 45,000'
    """
    return f"{what} {human_number(before)} → {human_number(after)}"
