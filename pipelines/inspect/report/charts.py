"""Geometry of the charts: outlines and places that the templates put into SVG elements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ....schemas.visible import human_number

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
    axis: Sequence[tuple[float, str, str]]
    """Places below it, how texts are aligned with them, and the texts."""
    caption: str
    """What is counted, if not the feature's values."""
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
    name_width: int = _NAME_WIDTH - 4
    width: int = WIDTH


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _shown(number: float) -> str:
    return human_number(number, digits=5)


def histogram(
    series: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    caption: str = "",
    show: Callable[[float], str] = _shown,
) -> Histogram | None:
    """The chart of a numeric feature.

    All bins are drawn equally wide: only the first and the last one differ, which reach to the
    extreme values where these are far from all others.

    Args:
        series: Title and statistics of each split; their histograms have the same edges.
        caption: What is counted, if not the feature's values.
        show: Writes a number.

    Returns:
        The chart; None if no split has a histogram.
    """
    known = [(title, s) for title, s in series if sum(s.get("histogram", {}).get("counts", ()))]
    if not known:
        return None
    edges = known[0][1]["histogram"]["edges"]
    wide = WIDTH / (len(edges) - 1)
    shares = [np.divide(s["histogram"]["counts"], sum(s["histogram"]["counts"])) for _, s in known]
    scale = (_HEIGHT - 4) / max(float(one.max()) for one in shares)
    rows = []
    for number, ((title, stats), heights) in enumerate(zip(known, shares, strict=True)):
        outline = "".join(
            f"M{_short(place * wide)} {_HEIGHT - 2}v-{_short(max(1.0, scale * height))}"
            f"h{_short(max(0.6, wide - 1))}V{_HEIGHT - 2}z"
            for place, height in enumerate(heights.tolist())
            if height
        )
        median, text = None, f"{title}: no median"
        if len(deciles := stats.get("quantiles") or []) == 11:
            median = round(float(np.interp(deciles[5], edges, np.arange(len(edges)))) * wide, 1)
            low, half, high = (show(deciles[at]) for at in (1, 5, 9))
            text = f"{title}: a tenth below {low}, half below {half}, nine tenths below {high}"
        top = number * _HEIGHT
        rows.append(Row(title=title, top=top, outline=outline, median=median, text=text))
    return Histogram(
        rows=rows,
        height=len(rows) * _HEIGHT,
        axis=_axis(edges, show),
        caption=caption,
    )


def _axis(edges: Sequence[float], show: Callable[[float], str]) -> list[tuple[float, str, str]]:
    middle, last = len(edges) // 2, len(edges) - 1
    texts = [show(edge) for edge in edges]
    usual = 1.5 * (edges[middle] - edges[middle - 1])
    if edges[1] - edges[0] > usual:
        texts[0] = f"{texts[0]} to {texts[1]}"
    if edges[last] - edges[last - 1] > usual:
        texts[last] = f"{texts[last - 1]} to {texts[last]}"
    return [
        (WIDTH * place / last, align, texts[place])
        for place, align in ((0, "start"), (middle, "middle"), (last, "end"))
    ]


def bars(
    series: Sequence[tuple[str, Mapping[str, float], float | None]],
    *,
    most: int,
    order: Callable[[str], float] | None = None,
) -> Bars | None:
    """A chart of named values.

    Args:
        series: Of each column its title, its values by name, and their whole, of which shares are
            shown, largest first; None shows the values in their order.
        most: Maximum number of rows, of the largest values in all columns together.
        order: Orders the names, instead.

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
    by_total = (lambda name: -totals[name]) if is_ranked else (lambda _: 0.0)
    ordered = sorted(totals, key=order or by_total)[:most]
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
