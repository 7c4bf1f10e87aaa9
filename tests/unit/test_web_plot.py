"""Curves of the web interface."""

from __future__ import annotations

import re

import pytest

from penstock.web.plot import BUCKETS, PLOT_HEIGHT, PLOT_WIDTH, Plot, make_plot, scale_top
from penstock.web.reading import Sample


def samples(*values: tuple[float, float | None]) -> list[Sample]:
    """Return moments and lags."""
    return [
        Sample(at_s=at_s, lag_s=lag_s, extracted_transactions=0.0, loaded_transactions=0.0)
        for at_s, lag_s in values
    ]


def draw_plot(found: list[Sample], *, now_s: float, least_top: float = 1.0) -> Plot:
    """Return the lag's plot."""
    return make_plot(found, [lambda sample: sample.lag_s], now_s=now_s, least_top=least_top)


def points(path: str) -> list[tuple[float, float]]:
    """Return the corners of a path."""
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", path)]


def test_the_present_is_at_the_right_and_zero_at_the_bottom() -> None:
    """A minute ago is the left edge; the highest value stays inside."""
    plot = draw_plot(samples((0.0, 0.0), (30.0, 0.5), (60.0, 1.0)), now_s=60.0)
    assert points(plot.curves[0].path) == [
        (0.0, PLOT_HEIGHT),
        (PLOT_WIDTH / 2, PLOT_HEIGHT / 2),
        (PLOT_WIDTH, 0.0),
    ]
    assert (plot.top, plot.span_s, plot.curves[0].last, plot.curves[0].most) == (1, 60, 1, 1)


def test_the_curve_moves_to_the_left_as_time_goes_on() -> None:
    """The same samples are a second further left after a second."""
    found = samples((0.0, 0.2), (20.0, 0.4))
    before = points(draw_plot(found, now_s=30.0).curves[0].path)
    after = points(draw_plot(found, now_s=31.0).curves[0].path)
    assert [round(b[0] - a[0]) for b, a in zip(before, after, strict=True)] == [10, 10]


@pytest.mark.parametrize(
    ("age_s", "span_s"), [(0, 60), (61, 120), (121, 300), (599, 600), (900, 600)]
)
def test_the_span_grows_with_what_is_known(age_s: float, span_s: float) -> None:
    """The span grows from one minute to ten."""
    assert draw_plot(samples((0.0, 1.0), (float(age_s), 1.0)), now_s=age_s).span_s == span_s


def test_a_peak_between_drawn_points_is_drawn() -> None:
    """The highest of many samples in one bucket stays; the length of the path is limited."""
    many = samples(*((n / 10, 9.0 if n == 3333 else 0.1) for n in range(6000)))
    curve = draw_plot(many, now_s=600.0).curves[0]
    corners = points(curve.path)
    assert len(corners) <= BUCKETS + 1
    assert curve.most == 9.0
    assert min(y for _, y in corners) == pytest.approx(PLOT_HEIGHT * 0.1)


def test_what_was_not_known_breaks_the_curve() -> None:
    """A missing value is not zero, and no line crosses it; at the end there is no present value."""
    curve = draw_plot(samples((0.0, 1.0), (1.0, 0.5), (2.0, None), (3.0, 1.0)), now_s=3.0).curves[0]
    assert len(points(curve.path)) == 3
    assert curve.path.count("M") == curve.area.count("Z") == 2
    assert (curve.last, curve.most) == (1.0, 1.0)
    ended = draw_plot(samples((0.0, 1.0), (1.0, None)), now_s=2.0).curves[0]
    assert (ended.last, ended.most) == (None, 1.0)
    empty = draw_plot(samples((0.0, None)), now_s=2.0).curves[0]
    assert (empty.path, empty.area, empty.last) == ("", "", None)
    assert draw_plot([], now_s=2.0).curves[0].most is None


@pytest.mark.parametrize(
    ("most", "top"),
    [(0, 1), (0.3, 0.5), (1.0, 1.0), (1.01, 2), (24, 25), (999, 1000), (2600, 5000)],
)
def test_the_scale_ends_at_a_round_number(most: float, top: float) -> None:
    """The end is the next of 1, 2, 2.5, 5 and their tenfolds."""
    assert scale_top(most) == pytest.approx(top)
