"""Curves as SVG paths. Pure: numbers in, text out.

A plot's box is PLOT_WIDTH by PLOT_HEIGHT and is stretched by the page; labels are beside it as
text, so that they keep their size on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

PLOT_WIDTH = 600
PLOT_HEIGHT = 160
SPANS_S = (60.0, 120.0, 300.0, 600.0)
BUCKETS = 300
SPARK_BUCKETS = 60
LINES = 4  # horizontal lines of the grid above zero
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)

Points = Sequence[tuple[float, float | None]]


class Timed(Protocol):
    """Values that were known at a moment."""

    @property
    def at_s(self) -> float:
        """Moment, monotonic seconds."""
        ...


S = TypeVar("S", bound=Timed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One curve, broken where the value was not known.

    Attributes:
        path: Its line as SVG; empty without points.
        area: The same, closed down to zero.
        last: The last value, or None.
        most: The highest value; None if no value is known.
    """

    path: str
    area: str
    last: float | None
    most: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Curves under one scale.

    Attributes:
        curves: One per value.
        top: The value at the upper edge.
        lines: The y coordinates of the grid's lines.
        span_s: Seconds from the left edge to the present at the right.
    """

    curves: tuple[Curve, ...]
    top: float
    lines: tuple[float, ...]
    span_s: float

    @property
    def middle(self) -> float:
        """Value at half height."""
        return self.top / 2


def make_plot(
    samples: Sequence[S],
    values: Sequence[Callable[[S], float | None]],
    *,
    now_s: float,
    least_top: float,
    span_s: float | None = None,
    bucket_count: int = BUCKETS,
) -> Plot:
    """Draw the last minute, or as much as there is, up to the longest of SPANS_S.

    If several points fall into one bucket, the highest is drawn: a peak must not vanish.

    Args:
        samples: The points, oldest first.
        values: One function per curve.
        now_s: The present, monotonic seconds.
        least_top: The lowest top of the scale, so that noise looks small.
        span_s: Seconds that the plot covers; None to choose them by the samples.
        bucket_count: How many points a curve has at most.
    """
    span_s = span_of(samples, now_s) if span_s is None else span_s
    series = [_buckets(samples, value, now_s, span_s, bucket_count) for value in values]
    most = max((y for points in series for _, y in points if y is not None), default=0.0)
    top = scale_top(max(most, least_top))
    curves = tuple(_curve(points, top, span_s) for points in series)
    lines = tuple(PLOT_HEIGHT * n / LINES for n in range(LINES))
    return Plot(curves=curves, top=top, lines=lines, span_s=span_s)


def span_of(samples: Sequence[Timed], now_s: float) -> float:
    """Return the shortest of SPANS_S that holds all samples, or else the longest."""
    age_s = now_s - samples[0].at_s if samples else 0.0
    return next((span_s for span_s in SPANS_S if age_s <= span_s), SPANS_S[-1])


def scale_top(most: float) -> float:
    """Return the next round number that is at least this."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in STEPS if step * power >= most * 0.999)


def _buckets(
    samples: Sequence[S],
    value: Callable[[S], float | None],
    now_s: float,
    span_s: float,
    bucket_count: int,
) -> Points:
    """Return age (in seconds) and value of the points to draw, oldest first; the value is None if
    unknown.
    """
    width_s = span_s / bucket_count
    highest: dict[int, tuple[float, float | None]] = {}
    for sample in samples:
        found, age_s = value(sample), now_s - sample.at_s
        if not 0 <= age_s <= span_s:
            continue
        # The bucket follows from the clock, not the age: a moving point must not change its bucket.
        bucket = int(sample.at_s / width_s)
        before = highest.get(bucket, (0.0, None))[1]
        if before is None or (found is not None and found > before):
            highest[bucket] = (age_s, found)
    return [highest[bucket] for bucket in sorted(highest)]


def _curve(points: Points, top: float, span_s: float) -> Curve:
    pieces: list[list[tuple[float, float]]] = [[]]
    for age_s, value in points:
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append((PLOT_WIDTH * (1 - age_s / span_s), PLOT_HEIGHT * (1 - value / top)))
    path, area = "", ""
    for piece in filter(None, pieces):
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in piece)
        path += f"M{line}"
        area += f"M{piece[0][0]:.1f} {PLOT_HEIGHT}L{line}L{piece[-1][0]:.1f} {PLOT_HEIGHT}Z"
    known = [value for _, value in points if value is not None]
    return Curve(
        path=path,
        area=area,
        last=points[-1][1] if points else None,
        most=max(known, default=None),
    )
