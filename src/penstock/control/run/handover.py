"""The handover, as the load process sees it: it waits for the position and reads at its point.

The extract process takes document 000's four steps, in its engine's way, and keeps them in
state/handover.json. Not here: these steps (`handover` of each engine), the file
(`penstock.ports.handover`), and the bulk load itself (`bulk_load.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.host.clock import REAL_CLOCK
from penstock.model import PenstockError
from penstock.ports.bulk import Planning, Point, open_planner
from penstock.ports.config import Config
from penstock.ports.handover import Handover, HandoverPhase, HandoverView, read_handover
from penstock.ports.positions import kind_of

__all__ = ["HandoverView", "bulk_planner", "read_handover", "wait_for_point"]


POLL_INTERVAL_S = 0.2


class HandoverFailed(PenstockError):
    """The extract process reports that the handover failed."""

    code = "CT34"


def wait_for_point(
    config: Config, *, stop: Callable[[], bool] = lambda: False, timeout_s: float = float("inf")
) -> Handover | None:
    """Wait, in the load process, until the position is captured; return None if stopped before.

    Raises HandoverFailed after timeout_s.
    """
    deadline_s = REAL_CLOCK.monotonic_s() + timeout_s
    while not stop():
        state = read_handover(config)
        if state is not None and state.position and state.phase is not HandoverPhase.STOPPED:
            return state
        if REAL_CLOCK.monotonic_s() > deadline_s:
            raise HandoverFailed(
                f"no position was captured within {timeout_s:.0f} s",
                hint=f"Start the other half: penstock extract {config.path.name}",
            )
        REAL_CLOCK.sleep(POLL_INTERVAL_S)
    return None


def bulk_planner(config: Config) -> Planning:
    """Return the planner of the bulk load in mode data+change, with the handover's point."""

    def first() -> Point | None:
        state = read_handover(config)
        return None if state is None else state.point(kind_of(config))

    return open_planner(config, first=first)
