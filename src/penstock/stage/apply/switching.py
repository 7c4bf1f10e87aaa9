"""The mode that applies mutations now, by how far the target is behind. Pure."""

from __future__ import annotations

from penstock.model.sections import StageMode

LOOK_AGAIN_S = 10.0
"""Seconds between looks at the lag, if nothing changes."""


def first_mode(window_s: float) -> StageMode:
    """Return the mode of `auto` before the lag is known."""
    return StageMode.BEST_EFFORT if window_s else StageMode.CONSISTENT


def next_mode(current: StageMode, lag_s: float, window_s: float) -> StageMode:
    """Return the mode of `auto`: the present one, unless the lag has become large or small.

    current: BEST_EFFORT or CONSISTENT. window_s: bestEffortWindow; 0: always consistent.
    """
    if not window_s:
        return StageMode.CONSISTENT
    if lag_s >= window_s:
        return StageMode.BEST_EFFORT
    if lag_s <= window_s / 4:
        return StageMode.CONSISTENT
    return current
