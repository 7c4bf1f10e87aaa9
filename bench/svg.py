"""Pictures of measurements as SVG, for docs/performance.md: no library, a few shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 820, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 290, 40, 50
COLOURS = ("#8a8a8a", "#1f6feb", "#d1242f", "#1a7f37")
DASHES = ("", "6 3", "2 3", "10 3 2 3", "1 2")
POINTS_MAX = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Values of one series. group: those of one group have one colour."""

    name: str
    values: Sequence[float]
    group: str


def distribution(curves: Sequence[Curve], *, title: str, unit: str) -> str:
    """Return a picture: the percentage of values below a value, on a logarithmic axis."""
    values = [max(value, 0.1) for curve in curves for value in curve.values]
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)))
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(value: float) -> float:
        return LEFT + (math.log10(max(value, 10**low)) - low) / (high - low) * wide

    def y(share: float) -> float:
        return TOP + (1 - share) * tall

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        at = x(10**power)
        parts.append(f'<path d="M{at:.1f} {TOP}V{TOP + tall}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{TOP + tall + 18}" text-anchor="middle">'
            f"{10**power:g} {escape(unit)}</text>"
        )
    for share in (0, 0.25, 0.5, 0.75, 0.9, 0.99, 1):
        parts.append(f'<path d="M{LEFT} {y(share):.1f}h{wide}" stroke="#eee"/>')
        if share != 0.99:
            parts.append(
                f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>'
            )
    groups = list(dict.fromkeys(curve.group for curve in curves))
    counts = dict.fromkeys(groups, 0)
    for number, curve in enumerate(curves):
        colour = COLOURS[groups.index(curve.group) % len(COLOURS)]
        dash = DASHES[counts[curve.group] % len(DASHES)]
        counts[curve.group] += 1
        ordered = sorted(curve.values)
        step = max(1, len(ordered) // POINTS_MAX)
        chosen = [*range(0, len(ordered), step), len(ordered) - 1]
        line = " ".join(f"{x(ordered[at]):.1f},{y((at + 1) / len(ordered)):.1f}" for at in chosen)
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{line}" {style}/>')
        row = TOP + 14 + number * 20
        left = WIDTH - RIGHT + 16
        parts.append(f'<path d="M{left} {row}h28" {style}/>')
        parts.append(f'<text x="{left + 36}" y="{row + 4}">{escape(curve.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
