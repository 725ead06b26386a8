"""Geometry of the charts: outlines and places that the templates put into SVG elements."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 400
"""Width of a chart, in its own units."""
_NAME_WIDTH = 132
_ROW, _BAR = 16, 10
_HEIGHT = 30
_MAX_COLUMNS = 4
"""Splits that a chart of categories shows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One split's row of a histogram."""

    title: str
    top: int
    outline: str
    median: float | None
    """Where to mark the median."""
    text: str
    """In words, for those who do not see it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Histogram:
    """Histograms of one feature, a row for each split, on a common scale."""

    rows: Sequence[Row]
    height: int
    low: float
    high: float
    row_height: int = _HEIGHT
    width: int = WIDTH


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars of named values: a row for each value, a column for each split."""

    titles: Sequence[tuple[float, str]]
    """Where each column begins, and its title."""
    names: Sequence[tuple[float, str]]
    """The baseline of each row, and its name."""
    outlines: Sequence[str]
    """All bars of each column."""
    texts: Sequence[tuple[float, float, str]]
    """Numbers beside the bars: x, baseline and text."""
    height: int
    num_hidden: int
    """Values that have no row."""
    width: int = WIDTH


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def histogram(series: Sequence[tuple[str, Mapping[str, Any]]]) -> Histogram | None:
    """The chart of a numeric feature.

    Args:
        series: Title and statistics of each split.

    Returns:
        The chart; None if no split has a histogram.
    """
    known = []
    for title, stats in series:
        counts, edges = (stats.get("histogram", {}).get(key, []) for key in ("counts", "edges"))
        if sum(counts) and len(edges) == len(counts) + 1 and edges[0] < edges[-1]:
            known.append((title, stats, edges, [count / sum(counts) for count in counts]))
    if not known:
        return None
    low, high = min(edges[0] for _, _, edges, _ in known), max(e[-1] for _, _, e, _ in known)
    # An area is a share: bins of unequal width would mislead as heights.
    densities = [
        [share / max(b - a, 1e-300) for share, a, b in zip(shares, edges, edges[1:], strict=False)]
        for _, _, edges, shares in known
    ]
    highest = max(map(max, densities))
    scale = WIDTH / (high - low)
    rows = []
    for number, ((title, stats, edges, _), heights) in enumerate(
        zip(known, densities, strict=True)
    ):
        base, outline = _HEIGHT - 2, ""
        for left, right, height in zip(edges, edges[1:], heights, strict=False):
            if height:
                tall = max(1.0, (_HEIGHT - 4) * height / highest)
                x, wide = (left - low) * scale, max(0.6, (right - left) * scale - 1)
                outline += f"M{_short(x)} {base}v-{_short(tall)}h{_short(wide)}V{base}z"
        deciles = stats.get("quantiles") or []
        middle = deciles[5] if len(deciles) == 11 else None
        text = f"{title}: no median"
        if middle is not None:
            text = (
                f"{title}: a tenth below {deciles[1]:.4g}, half below {middle:.4g}, "
                f"nine tenths below {deciles[9]:.4g}"
            )
        inside = middle is not None and low <= middle <= high
        rows.append(
            Row(
                title=title,
                top=number * _HEIGHT,
                outline=outline,
                median=round((middle - low) * scale, 1) if inside else None,
                text=text,
            )
        )
    return Histogram(rows=rows, height=len(rows) * _HEIGHT, low=low, high=high)


def bars(
    series: Sequence[tuple[str, Mapping[str, float], float | None]], *, most: int
) -> Bars | None:
    """A chart of named values.

    Args:
        series: Of each column its title, its values by name, and their whole, of which shares are
            shown, largest first; None shows the values in their order.
        most: Maximum number of rows, of the largest values in all columns together.

    Returns:
        The chart; None if there are no values.
    """
    totals = {name: 0.0 for _, values, _ in series for name in values}
    shares = []
    for title, values, whole in series[:_MAX_COLUMNS]:
        unit = (max(values.values(), default=0) if whole is None else whole) or 1
        shares.append((title, {name: value / unit for name, value in values.items()}))
        for name, share in shares[-1][1].items():
            totals[name] += share
    is_ranked = any(whole is not None for *_, whole in series)
    ordered = sorted(totals, key=lambda name: -totals[name] if is_ranked else 0)[:most]
    if not ordered:
        return None
    step = (WIDTH - _NAME_WIDTH) / len(shares)
    room = step - 46
    longest = max((column.get(name, 0) for _, column in shares for name in ordered), default=0) or 1
    head = _ROW if any(title for title, _ in shares) else 0
    outlines, texts, titles = [], [], []
    for number, (title, column) in enumerate(shares):
        x, outline = _NAME_WIDTH + number * step, ""
        titles.append((x, title))
        for place, name in enumerate(ordered):
            share, top = column.get(name, 0), head + place * _ROW + 3
            long = share / longest * room
            if share:
                outline += f"M{_short(x)} {top}h{_short(max(long, 0.6))}v{_BAR}H{_short(x)}z"
            whole, given = series[number][2], series[number][1].get(name, 0)
            text = f"{given:,}" if whole is None else percentage(share)
            texts.append((round(x + long + 4, 1), top + _BAR - 1.0, text))
        outlines.append(outline)
    names = [(head + place * _ROW + _BAR + 2.0, name) for place, name in enumerate(ordered)]
    return Bars(
        titles=titles,
        names=names,
        outlines=outlines,
        texts=texts,
        height=head + len(ordered) * _ROW + 2,
        num_hidden=len(totals) - len(ordered),
    )


def percentage(share: float) -> str:
    """A share for people; only exact ones are 0 % and 100 %.

    >>> percentage(0.123), percentage(0.0004), percentage(0.9999), percentage(1)
    ('12.3 %', '<0.1 %', '>99.9 %', '100 %')
    """
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.999 < share < 1:
        return ">99.9 %"
    return f"{100 * share:.1f}".removesuffix(".0") + " %"
